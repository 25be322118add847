//! What all threads share.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::pcs::Pcs;
use crate::tree::Tree;
use crate::{mapping, thread};

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

/// Takes no more than a part of the address space for stacks from now on, because the program is about to limit its address
/// space to `limit_bytes`, or to have all of it locked in memory. There is then less room for stacks that are new.
///
/// Safe wherever a capture is.
pub fn take_less_room(limit_bytes: u64) {
    /// Parts of the address space that the two tables may take.
    const TREE_SHARE: u64 = 16;
    const PCS_SHARE: u64 = 32;
    let share = |of: u64| usize::try_from(limit_bytes / of).unwrap_or(usize::MAX);
    PROCESS.tree.shrink(share(TREE_SHARE));
    PROCESS.pcs.shrink(share(PCS_SHARE));
}

/// Forgets all stacks, and unmaps the memory that they took. Stacks are numbered from the beginning again.
///
/// For a recorder that leaves a process which goes on: each time that it comes back there are new stacks, of modules that were
/// loaded meanwhile, and the table would grow with each visit. Unloads between the visits, which nobody wrapped in
/// [`while_unloading`], do no harm afterwards either.
///
/// # Safety
///
/// - No other thread runs before it returns, and none was stopped inside a capture or another function of this crate.
/// - No [`StackId`](crate::StackId), frame or [`StackCursor`](crate::StackCursor) from before is used afterwards.
pub unsafe fn forget_stacks() {
    let next = |state: u64| Some(state.wrapping_add(ONE_DONE));
    let _ = PROCESS.module_state.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next);
    // SAFETY: by contract.
    unsafe {
        thread::forget_all();
        PROCESS.tree.release();
        PROCESS.pcs.release();
        mapping::drop_released_entries();
    }
}

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
    let end =
        |state: u64| Some((state - u64::from(is_unloading(state)) * ONE_UNDER_WAY).wrapping_add(ONE_DONE));
    let _ = PROCESS.module_state.fetch_update(Ordering::SeqCst, Ordering::SeqCst, end);
    result
}

/// Takes over, in a forked child, what the threads of the parent left behind: memory of threads that are not there any more
/// goes to new ones, and unloads that another thread was in the midst of are over.
///
/// Captures in a child work without it. What is missing then: each new thread takes new memory, and if another thread of the
/// parent was unloading a module at the moment of the fork, all captures of the child are whole walks. Nothing in this crate
/// holds a lock, so there is nothing to do before a fork, or in the parent. A `vfork` child must not call it.
///
/// ```
/// extern "C" fn in_child() {
///     // SAFETY: called in a child of `fork`, before it can have started a thread.
///     unsafe { cairn_capture::after_fork_in_child() };
/// }
/// // SAFETY: registers a function that lives as long as the program.
/// unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
/// ```
///
/// # Safety
///
/// - The calling thread is the only one of its process, and the process shares its memory with no other one.
pub unsafe fn after_fork_in_child() {
    // An unload by this very thread, around the fork, ends at zero and leaves it so.
    let end_all = |state: u64| Some((state & !(ONE_DONE - 1)).wrapping_add(ONE_DONE));
    if is_unloading(PROCESS.module_state.load(Ordering::SeqCst)) {
        PROCESS.pcs.forget_unloaded();
        let _ = PROCESS.module_state.fetch_update(Ordering::SeqCst, Ordering::SeqCst, end_all);
    }
    // SAFETY: by contract.
    unsafe { thread::take_over_after_fork() };
}
