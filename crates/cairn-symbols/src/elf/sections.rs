//! Finds the addresses of sections, for object files, whose addresses count from a section's start.

use std::path::Path;

use cairn_format::StatedAddress;
use object::{Object, ObjectSection};

use crate::Error;
use crate::mapped_file::FileBytes;

/// A section of an ELF, PE or Mach-O file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Section {
    /// The section's first address.
    pub address: StatedAddress,
    /// The section's size in memory.
    pub size_bytes: u64,
}

impl Section {
    /// Finds a section by its name, as `.text`; `None` if the file has no such section.
    ///
    /// # Errors
    ///
    /// [`Error::Open`] if the file cannot be read, or is of a kind without sections.
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
