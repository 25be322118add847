//! In place of the hot path of x86-64: prepares the whole walk, and leaves everything to it.

use crate::stack_bounds;
use crate::thread::ThreadState;

/// The registers of a frame that has made a call, as the entry hands them over.
#[derive(Clone, Copy)]
pub(crate) struct Frame {
    /// Return address. The walk finds it itself.
    #[expect(dead_code, reason = "part of what the entry hands over on every processor")]
    pub(crate) pc: u64,
    /// The stack pointer after the return.
    pub(crate) sp: u64,
    #[expect(dead_code, reason = "as above")]
    pub(crate) fp: u64,
}

/// The fast way does not lead there.
pub(crate) struct Unusual;

/// Learns the bounds of the stack, which make the walk's reads plain loads.
///
/// # Safety
///
/// None here; the hot path of x86-64 has one.
pub(crate) unsafe fn capture(thread: &mut ThreadState, frame: Frame) -> Result<u32, Unusual> {
    if frame.sp < thread.low || frame.sp >= thread.high {
        // A stack that cannot be entered is read through the kernel.
        let _ = stack_bounds::enter(thread, frame.sp);
    }
    Err(Unusual)
}
