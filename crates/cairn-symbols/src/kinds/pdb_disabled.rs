//! Replaces the PDB reader when the feature `pdb` is off: refuses every PDB with a message.

use std::path::{Path, PathBuf};

use cairn_format::StatedAddress;

use super::{Bytes, FormatError};
use crate::source::{FrameSink, SymbolSource};
use crate::{BuildId, Unknown};

/// A PDB; never constructed in this build.
pub(crate) enum Pdb {}

impl Pdb {
    pub(crate) fn parse(_: &Path, _: Bytes) -> Result<Self, FormatError> {
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
