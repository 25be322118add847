//! Walks this thread's stack by frame pointers, with the controls of Darwin's `backtrace(9)`:
//! another start, an offset, an interrupted context, a full buffer to continue from, async frames.
//!
//! A walk uses neither a cache nor a table. It is for programs that are compiled with frame
//! pointers, and for results that [`capture`](crate::capture) does not have: the async frames of
//! Swift, and the origin of each address.
//!
//! It may be called wherever a capture may. Frame records are read directly within the part of the
//! stack that is known to be readable, and through the kernel elsewhere, so that an invalid frame
//! pointer ends the walk instead of crashing the program.

use cairn_format::{AbsoluteAddress, WordSize};
use cairn_unwind::xnu::{Interrupted, KernelWalk, Quirks, UserWalk, UserWalkInfo, Validity};

use crate::CallSite;
use crate::call_site::call_site_here;
#[cfg(target_os = "macos")]
use crate::macos::{Context, ThreadMemory, address_mask, interrupted_call_site};
#[cfg(any(target_os = "linux", windows))]
use crate::stacks::{Context, ThreadMemory, address_mask, interrupted_call_site};

/// Options of a walk by frame pointers; `backtrace_control` of the manual page.
///
/// ```
/// use cairn_capture::{FrameControl, walk_frames};
/// use cairn_format::AbsoluteAddress;
///
/// let mut addresses = [AbsoluteAddress::default(); 64];
/// let info = walk_frames(&FrameControl::new(), &mut addresses);
/// // The first address is that of this call. The walk ends at the first caller without a frame
/// // pointer.
/// assert!(info.count >= 1);
///
/// // Another walk continues where the buffer was full.
/// let mut first = [AbsoluteAddress::default(); 1];
/// let mut control = FrameControl::new();
/// control.start_frame = walk_frames(&control, &mut first).next_frame;
/// ```
#[derive(Clone, Copy, Default, Debug)]
#[non_exhaustive]
pub struct FrameControl<'a> {
    /// The first frame record, in place of the caller's; no pc is recorded then. Use it to skip
    /// frames, to continue where a buffer was full ([`UserWalkInfo::next_frame`]), or to follow an
    /// async stack ([`AsyncStack::frame`](cairn_unwind::xnu::AsyncStack)).
    pub start_frame: Option<AbsoluteAddress>,
    /// Added to each address recorded.
    pub address_offset: i64,
    /// The context that a signal interrupted on this thread: the walk starts at its pc.
    pub interrupted: Option<&'a Context>,
    /// Selects whether the walk reproduces the kernel's errors at the end of the buffer.
    pub quirks: Quirks,
}

impl FrameControl<'_> {
    /// The default options: from the caller, without an offset.
    #[must_use]
    pub const fn new() -> Self {
        Self { start_frame: None, address_offset: 0, interrupted: None, quirks: Quirks::Corrected }
    }
}

/// The frame pointers that are followed on this processor.
const VALIDITY: Validity = if cfg!(target_arch = "aarch64") { Validity::Arm64 } else { Validity::X86_64 };

/// Fills `addresses` with this thread's stack by frame pointers, innermost first.
///
/// This is `backtrace_user` of the manual page, for the calling thread. The first address is that
/// of this call, unless `control` has another start. The caller must be compiled with frame
/// pointers (`-C force-frame-pointers`); otherwise the walk starts at the next frame outwards that
/// has one, if any.
#[inline(always)]
pub fn walk_frames(control: &FrameControl<'_>, addresses: &mut [AbsoluteAddress]) -> UserWalkInfo {
    walk_frames_at(control, call_site_here(), addresses)
}

/// Walks as [`walk_frames`] does, from given registers, such as those of a hook's caller. Wrong
/// ones give a wrong stack.
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

/// Prepares the walk of the manual page's `backtrace` on this thread's stack. Run it with the
/// returned memory.
///
/// It records return addresses only, and none of the outermost frame.
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
    // Zero selects the interrupted frame.
    let default_start = if interrupted.is_some() { 0 } else { site.fp };
    let mut walk = KernelWalk::new(start.unwrap_or(default_start), memory.stack());
    walk.address_offset = control.address_offset;
    walk.interrupted = interrupted.map(|site| Interrupted { pc: site.pc, frame_pointer: site.fp });
    walk.address_mask = address_mask();
    walk.quirks = control.quirks;
    (walk, memory)
}
