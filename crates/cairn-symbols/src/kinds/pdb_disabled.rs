//! In the place of the reader of PDBs, when the feature `pdb` is off: every PDB is refused, and the message says why.

use std::path::{Path, PathBuf};

use cairn_format::StatedAddress;

use super::{Bytes, Problem};
use crate::source::{FrameSink, SymbolSource};
use crate::{BuildId, Unknown};

/// There is none.
pub(crate) enum Pdb {}

impl Pdb {
    pub(crate) fn parse(_: &Path, _: Bytes) -> Result<Self, Problem> {
        Err("PDBs are not read by this build; enable the feature `pdb` of cairn-symbols".into())
    }

    pub(crate) fn id(&self) -> &BuildId {
        match *self {}
    }
}

pub(crate) fn read_id(_: &[u8]) -> Option<BuildId> {
    None
}

impl SymbolSource for Pdb {
    fn frames_at(&self, _: StatedAddress, _: &mut FrameSink) -> Result<(), Unknown> {
        match *self {}
    }

    fn files(&self) -> Vec<PathBuf> {
        match *self {}
    }
}
