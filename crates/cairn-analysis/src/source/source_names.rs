//! Names for the frames of a [`HeapSource`](super::HeapSource).

use std::path::PathBuf;
use std::sync::Arc;

use cairn_symbols::SourceFrame;

use super::ImportedHeap;
use crate::heap::{Address, ModuleNames, Namer, Stacks};
use crate::names::AddressNames;

/// Names of the frames of one source: from symbol files, from the file itself, or none.
#[derive(Debug)]
pub struct SourceNames {
    pub(super) files: Option<ModuleNames>,
    pub(super) own: Option<Arc<dyn ImportedHeap>>,
}

impl SourceNames {
    /// True when names come from symbol files, which may be missing.
    #[must_use]
    pub const fn are_from_files(&self) -> bool {
        self.files.is_some()
    }

    /// The programs here that an index would name faster.
    #[must_use]
    pub fn without_index(&self) -> Vec<PathBuf> {
        self.files.as_ref().map_or_else(Vec::new, ModuleNames::without_index)
    }

    /// The names from files, to report what is missing.
    #[must_use]
    pub fn into_lookups(self) -> Option<AddressNames> {
        self.files.map(ModuleNames::into_inner)
    }
}

impl Namer for SourceNames {
    fn name(&self, stacks: &Stacks, addresses: &[&Address]) -> Vec<Vec<SourceFrame>> {
        match (&self.files, &self.own) {
            (Some(files), _) => files.name(stacks, addresses),
            (None, Some(own)) => own.name(stacks, addresses),
            (None, None) => vec![Vec::new(); addresses.len()],
        }
    }
}
