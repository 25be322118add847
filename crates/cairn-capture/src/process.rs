//! What all threads share.

use core::sync::atomic::AtomicU32;

use crate::pcs::Pcs;
use crate::tree::Tree;

/// The stacks and addresses of this process.
pub(crate) struct Process {
    pub(crate) tree: Tree,
    pub(crate) pcs: Pcs,
    /// Changes whenever modules are unloaded: what threads cached before is void.
    pub(crate) generation: AtomicU32,
    /// Captures for which there was no room.
    pub(crate) lost: AtomicU32,
}

pub(crate) static PROCESS: Process =
    Process { tree: Tree::new(), pcs: Pcs::new(), generation: AtomicU32::new(0), lost: AtomicU32::new(0) };
