//! What all threads share.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::pcs::Pcs;
use crate::tree::Tree;

/// The stacks and addresses of this process.
pub(crate) struct Process {
    pub(crate) tree: Tree,
    pub(crate) pcs: Pcs,
    /// Low half: how many unloads are under way. High half: how many there were. What a thread cached under another
    /// value is void, and while an unload is under way nothing is cached.
    pub(crate) module_state: AtomicU64,
    /// Captures for which there was no room.
    pub(crate) lost: AtomicU32,
    /// Captures that the hot path could not answer.
    pub(crate) whole_walks: AtomicU64,
}

pub(crate) static PROCESS: Process = Process {
    tree: Tree::new(),
    pcs: Pcs::new(),
    module_state: AtomicU64::new(0),
    lost: AtomicU32::new(0),
    whole_walks: AtomicU64::new(0),
};

const ONE_UNDER_WAY: u64 = 1;
const ONE_DONE: u64 = 1 << 32;

/// True when a module is being unloaded at this moment.
pub(crate) const fn is_unloading(module_state: u64) -> bool {
    module_state as u32 != 0
}

/// Runs `unload`, which may unload modules, as a call of `dlclose` does; nothing that was learned of them is believed
/// from then on, even if other modules take their addresses at once.
///
/// Wrap every unload in this; a program that interposes `dlclose` wraps them all. Captures in other threads go on
/// meanwhile, without caches.
///
/// ```no_run
/// # let handle = std::ptr::null_mut();
/// // SAFETY: a handle from dlopen that is not used any more.
/// let status = cairn_capture::while_unloading(|| unsafe { libc::dlclose(handle) });
/// ```
pub fn while_unloading<R>(unload: impl FnOnce() -> R) -> R {
    PROCESS.module_state.fetch_add(ONE_UNDER_WAY, Ordering::SeqCst);
    let result = unload();
    PROCESS.pcs.forget_unloaded();
    PROCESS.module_state.fetch_add(ONE_DONE.wrapping_sub(ONE_UNDER_WAY), Ordering::SeqCst);
    result
}
