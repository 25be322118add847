//! cairn's capture and its peers behind one function type.
//!
//! Each capture writes its frames to [`FRAMES`] and returns their number, except cairn, which
//! returns the stack's number and writes nothing: what others would have to do next (find out
//! whether this stack is a known one) is part of it.
//!
//! For benchmarks: one thread at a time, and no care for errors that a benchmark does not have.

mod frame_pointers;
mod framehop_modules;
mod libunwind;

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};

/// Deeper stacks are cut.
pub const MAX_FRAMES: usize = 1 << 12;

/// Where captures write their frames, innermost first.
pub struct Frames(UnsafeCell<[usize; MAX_FRAMES]>);

// SAFETY: the benchmarks capture on one thread at a time.
unsafe impl Sync for Frames {}

/// The frames of the last capture by a peer.
pub static FRAMES: Frames = Frames(UnsafeCell::new([0; MAX_FRAMES]));

impl Frames {
    /// Returns the first element.
    pub fn as_mut_ptr(&self) -> *mut usize {
        self.0.get().cast()
    }
}

/// Captures the caller's stack; the number of frames, or cairn's number of the stack.
pub type Capture = extern "C" fn() -> u64;

/// One way to capture a stack.
#[derive(Clone, Copy)]
pub struct Unwinder {
    /// As it is in the tables.
    pub name: &'static str,
    /// Makes it ready on this thread, or says why it is missing here.
    pub prepare: fn() -> Result<(), String>,
    /// The capture.
    pub capture: Capture,
}

/// The name of cairn's own.
pub const CAIRN: &str = "cairn";

/// All of them; cairn first.
pub const UNWINDERS: &[Unwinder] = &[
    Unwinder { name: CAIRN, prepare: nothing, capture: cairn },
    Unwinder { name: "frame-pointers", prepare: frame_pointers::prepare, capture: frame_pointers::capture },
    Unwinder { name: "libunwind", prepare: libunwind::prepare, capture: libunwind::capture },
    Unwinder { name: "framehop", prepare: framehop_modules::prepare, capture: framehop_modules::capture },
    Unwinder { name: "libgcc", prepare: nothing, capture: libgcc },
    Unwinder { name: "glibc", prepare: nothing, capture: glibc },
    Unwinder { name: "backtrace-crate", prepare: nothing, capture: backtrace_crate },
];

/// Returns the unwinder of this name.
#[must_use]
pub fn by_name(name: &str) -> Option<Unwinder> {
    UNWINDERS.iter().copied().find(|unwinder| unwinder.name == name)
}

fn nothing() -> Result<(), String> {
    Ok(())
}

extern "C" fn cairn() -> u64 {
    u64::from(cairn_capture::capture().id().number())
}

/// Returns the frames of the stack with this number, which [`CAIRN`]'s capture returned.
#[must_use]
pub fn cairn_frames(number: u64) -> Vec<cairn_format::Frame> {
    // SAFETY: a `StackId` is its number (`repr(transparent)`), and this one came from a capture in
    // this process.
    let id = unsafe { std::mem::transmute::<u32, cairn_capture::StackId>(number as u32) };
    cairn_capture::Stack::from_id(id).frames().collect()
}

extern "C" fn glibc() -> u64 {
    // SAFETY: the buffer has room for that number of frames.
    unsafe { libc::backtrace(FRAMES.as_mut_ptr().cast::<*mut c_void>(), MAX_FRAMES as c_int) as u64 }
}

unsafe extern "C" {
    fn _Unwind_Backtrace(
        visit: extern "C" fn(*mut c_void, *mut c_void) -> c_int,
        argument: *mut c_void,
    ) -> c_int;
    fn _Unwind_GetIP(context: *mut c_void) -> usize;
}

const END_OF_STACK: c_int = 5;

extern "C" fn libgcc() -> u64 {
    extern "C" fn visit(context: *mut c_void, argument: *mut c_void) -> c_int {
        // SAFETY: the address of `count` below.
        let count = unsafe { &mut *argument.cast::<usize>() };
        if *count == MAX_FRAMES {
            return END_OF_STACK;
        }
        // SAFETY: a context of libgcc's, and an index below the capacity.
        unsafe { FRAMES.as_mut_ptr().add(*count).write(_Unwind_GetIP(context)) };
        *count += 1;
        0
    }
    let mut count = 0_usize;
    // SAFETY: `visit` takes what it is given.
    unsafe { _Unwind_Backtrace(visit, (&raw mut count).cast()) };
    count as u64
}

extern "C" fn backtrace_crate() -> u64 {
    let mut count = 0_usize;
    // SAFETY: one thread at a time.
    unsafe {
        backtrace::trace_unsynchronized(|frame| {
            // SAFETY: an index below the capacity, as checked after the last frame.
            FRAMES.as_mut_ptr().add(count).write(frame.ip() as usize);
            count += 1;
            count < MAX_FRAMES
        });
    }
    count as u64
}
