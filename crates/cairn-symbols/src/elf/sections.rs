//! Where a section of a file is: for addresses that count from one, as those of object files do.

use std::path::Path;

use cairn_format::StatedAddress;
use object::{Object, ObjectSection};

use crate::Error;
use crate::mapped_file::FileBytes;

/// A section of an ELF, PE or Mach-O file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Section {
    /// Its first address.
    pub address: StatedAddress,
    /// Its size in memory.
    pub size_bytes: u64,
}

impl Section {
    /// Finds a section by its name, as `.text`; `None` when the file has none of that name.
    ///
    /// # Errors
    ///
    /// [`Error::Open`] when the file cannot be read, or is of no kind that has sections.
    pub fn find(path: &Path, name: &str) -> Result<Option<Self>, Error> {
        let error = |source| Error::Open { path: path.to_owned(), source };
        let bytes = FileBytes::map(path).map_err(|cause| error(cause.into()))?;
        let object = object::File::parse(&*bytes).map_err(|cause| error(cause.into()))?;
        let section = object.sections().find(|section| section.name_bytes() == Ok(name.as_bytes()));
        Ok(section.map(|section| Self {
            address: StatedAddress::new(section.address()),
            size_bytes: section.size(),
        }))
    }
}
