//! From a file to the source that reads its kind.

use std::path::Path;

use crate::debug_object::DebugObject;
use crate::dwarf::{DebugFiles, no_split_files};
use crate::elf_source::ElfSource;
use crate::loader_source::LoaderSource;
use crate::mapped_file::FileBytes;
use crate::source::SymbolSource;
use crate::{Error, ModuleInfo, SymbolizerOptions};

/// Opens a file that was found for a module by whatever source reads its kind.
pub(crate) fn open(
    path: &Path,
    _info: &ModuleInfo,
    _options: &SymbolizerOptions,
) -> Result<Box<dyn SymbolSource>, Error> {
    let open_error = |source| Error::Open { path: path.to_owned(), source };
    let bytes = FileBytes::map(path).map_err(|error| open_error(error.into()))?;
    if bytes.starts_with(b"\x7fELF") {
        let main = DebugObject::parse(path, bytes).map_err(|e| open_error(e.to_string().into()))?;
        let debug = DebugFiles { main, supplement: None, package: None, find_split: no_split_files() };
        return ElfSource::new(None, debug, None)
            .map(|s| Box::new(s) as Box<dyn SymbolSource>)
            .map_err(|e| open_error(e.to_string().into()));
    }
    Ok(Box::new(LoaderSource::open(path)?))
}
