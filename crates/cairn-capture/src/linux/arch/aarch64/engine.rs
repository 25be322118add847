//! Replaces the hot path of x86-64: prepares the whole walk, which captures every stack.

use crate::CallSite;
use crate::linux::process::Process;
use crate::linux::thread::ThreadState;

/// The fast path cannot handle this stack.
pub(crate) struct NeedsWholeWalk;

/// Learns the bounds of the stack, so that the walk can read it directly.
///
/// # Safety
///
/// - None on this processor. The function is unsafe because the one of x86-64 is.
pub(crate) unsafe fn capture(
    _process: &Process,
    thread: &mut ThreadState,
    site: CallSite,
) -> Result<u32, NeedsWholeWalk> {
    let _ = thread.enter_stack(site.sp);
    Err(NeedsWholeWalk)
}
