//! From a file to the source that reads its kind.

use std::path::Path;

use crate::loader_source::LoaderSource;
use crate::source::SymbolSource;
use crate::{Error, ModuleInfo, SymbolizerOptions};

/// Opens a file that was found for a module by whatever source reads its kind.
pub(crate) fn open(
    path: &Path,
    _info: &ModuleInfo,
    _options: &SymbolizerOptions,
) -> Result<Box<dyn SymbolSource>, Error> {
    Ok(Box::new(LoaderSource::open(path)?))
}
