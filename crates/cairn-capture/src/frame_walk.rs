//! This thread by its frame pointers, with the controls of Darwin's `backtrace(9)`: another start, an offset, an
//! interrupted context, a buffer to be continued, async frames.
//!
//! Nothing is remembered and no table is read. A walk is for programs that are built with frame pointers, and for what a
//! [`capture`](crate::capture) does not show: the async frames of Swift, and where each address came from.
//!
//! It may be called where a capture may. What a frame pointer leads to is read directly within the part of the stack that is
//! known to be readable, and through the kernel elsewhere, so that garbage in it ends the walk and not the program.

use cairn_format::{AbsoluteAddress, WordSize};
use cairn_unwind::xnu::{Interrupted, KernelWalk, Quirks, UserWalk, UserWalkInfo, Validity};

use crate::CallSite;
#[cfg(target_os = "linux")]
use crate::arch::{address_mask, interrupted_call_site};
use crate::call_site::call_site_here;
#[cfg(target_os = "macos")]
use crate::macos::{ThreadMemory, address_mask, interrupted_call_site};
#[cfg(target_os = "linux")]
use crate::thread_memory::ThreadMemory;

/// Where a walk of this thread starts and what it adds; `backtrace_control` of the manual page.
///
/// ```
/// use cairn_capture::{FrameControl, walk_frames};
/// use cairn_format::AbsoluteAddress;
///
/// let mut addresses = [AbsoluteAddress::default(); 64];
/// let info = walk_frames(&FrameControl::new(), &mut addresses);
/// // The first is the place of this call. How far the walk gets depends on who has frame pointers.
/// assert!(info.count >= 1);
///
/// // What did not fit is had by another walk.
/// let mut first = [AbsoluteAddress::default(); 1];
/// let mut control = FrameControl::new();
/// control.start_frame = walk_frames(&control, &mut first).next_frame;
/// ```
#[derive(Clone, Copy, Default, Debug)]
#[non_exhaustive]
pub struct FrameControl<'a> {
    /// The first frame record, in place of the caller's; no pc is recorded then. To leave out frames, to go on where a buffer was
    /// full ([`UserWalkInfo::next_frame`]), or to follow an async stack ([`AsyncStack::frame`](cairn_unwind::xnu::AsyncStack)).
    pub start_frame: Option<AbsoluteAddress>,
    /// Added to each address recorded.
    pub address_offset: i64,
    /// The context that a signal interrupted on this thread: the walk starts at its pc.
    pub interrupted: Option<&'a libc::ucontext_t>,
    /// Whether the kernel's faults at the end of the buffer are repeated.
    pub quirks: Quirks,
}

impl FrameControl<'_> {
    /// From the caller, without an offset.
    #[must_use]
    pub const fn new() -> Self {
        Self { start_frame: None, address_offset: 0, interrupted: None, quirks: Quirks::Corrected }
    }
}

/// Which frame pointers are followed on this processor.
const VALIDITY: Validity = if cfg!(target_arch = "aarch64") { Validity::Arm64 } else { Validity::X86_64 };

/// Fills `addresses` with this thread's stack by frame pointers, innermost first: `backtrace_user` of the manual page, for the
/// calling thread. The first address is that of this call, unless `control` says otherwise.
///
/// The caller has to be compiled with frame pointers (`-C force-frame-pointers`); otherwise the walk starts at the next frame
/// outwards that has one, or nowhere.
#[inline(always)]
pub fn walk_frames(control: &FrameControl<'_>, addresses: &mut [AbsoluteAddress]) -> UserWalkInfo {
    walk_frames_at(control, call_site_here(), addresses)
}

/// As [`walk_frames`], from registers that were noted before, such as a hook's caller's. Wrong ones give a wrong stack.
#[inline(never)]
pub fn walk_frames_at(
    control: &FrameControl<'_>,
    site: CallSite,
    addresses: &mut [AbsoluteAddress],
) -> UserWalkInfo {
    let site = control.interrupted.map_or(site, interrupted_call_site);
    let memory = ThreadMemory::around(site.sp);
    let mut walk = UserWalk::new(site.pc, site.fp, WordSize::Bits64, VALIDITY);
    walk.start_frame = control.start_frame;
    walk.address_offset = control.address_offset;
    walk.address_mask = address_mask();
    walk.quirks = control.quirks;
    walk.run(&memory, addresses)
}

/// The walk that `backtrace` of the manual page makes, on this thread's stack: return addresses only, and none of the outermost
/// frame. Run it with the memory that comes with it.
///
/// ```
/// use cairn_capture::{CallSite, FrameControl, kernel_walk_at};
/// use cairn_format::AbsoluteAddress;
///
/// // Without a frame pointer there is nothing to follow.
/// let local = 0_u64;
/// let site = CallSite { pc: 0, sp: (&raw const local) as u64, fp: 0 };
/// let (walk, memory) = kernel_walk_at(&FrameControl::new(), site);
/// assert_eq!(walk.run(&memory, &mut [AbsoluteAddress::default(); 8]).count, 0);
/// ```
#[must_use]
pub fn kernel_walk_at(control: &FrameControl<'_>, site: CallSite) -> (KernelWalk, ThreadMemory) {
    let interrupted = control.interrupted.map(interrupted_call_site);
    let memory = ThreadMemory::around(interrupted.unwrap_or(site).sp);
    let start = control.start_frame.map(AbsoluteAddress::value);
    // Zero stands for the interrupted frame.
    let default_start = if interrupted.is_some() { 0 } else { site.fp };
    let mut walk = KernelWalk::new(start.unwrap_or(default_start), memory.stack());
    walk.address_offset = control.address_offset;
    walk.interrupted = interrupted.map(|site| Interrupted { pc: site.pc, frame_pointer: site.fp });
    walk.address_mask = address_mask();
    walk.quirks = control.quirks;
    (walk, memory)
}
