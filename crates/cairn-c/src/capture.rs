//! Captures stacks, and reads captured ones.

use core::ffi::{c_char, c_int, c_void};

use crate::versioned;
use cairn_capture::{Stack, StackId, StopReason};
use cairn_format::Frame;

/// The number of a call stack of this process. Equal stacks have equal numbers, as long as the
/// process lives.
pub type CairnStackId = u32;

/// The stack without frames.
pub const CAIRN_STACK_EMPTY: CairnStackId = 0;

/// There was no room to store the stack. Such losses are counted, see cairn_statistics.
pub const CAIRN_STACK_LOST: CairnStackId = 0xffff_ffff;

/// An argument is invalid: a null pointer, a wrong type_size, a reserved field that is not zero.
pub const CAIRN_ERROR_ARGUMENT: c_int = -1;

/// The number is not one of a stack of this process, or the stack was lost.
pub const CAIRN_ERROR_STACK: c_int = -2;

/// The buffer is too small. Call with a null pointer to get the size.
pub const CAIRN_ERROR_BUFFER: c_int = -3;

/// The format cannot hold this stack: in an lws blob, an address or a size of 64 bits.
pub const CAIRN_ERROR_FORMAT: c_int = -4;

/// Writing to the file descriptor failed.
pub const CAIRN_ERROR_WRITE: c_int = -5;

/// The address is that of the instruction that was interrupted, or was about to run.
pub const CAIRN_FRAME_PROGRAM_COUNTER: u32 = 1;

/// The address is where a call returns to; the call itself lies before it, so look up address - 1.
pub const CAIRN_FRAME_RETURN_ADDRESS: u32 = 2;

/// The address is where an asynchronous task continues.
pub const CAIRN_FRAME_ASYNC_RESUME_POINT: u32 = 3;

/// The outermost frame was reached: the whole stack is known.
pub const CAIRN_STOP_END_OF_STACK: u32 = 0;

/// There are more frames than the limit (1048575). The innermost ones are known.
pub const CAIRN_STOP_LIMIT: u32 = 1;

/// There is no unwind information for the code at the address.
pub const CAIRN_STOP_NO_UNWIND_INFO: u32 = 2;

/// The unwind tables for the address are malformed.
pub const CAIRN_STOP_BAD_UNWIND_INFO: u32 = 3;

/// The tables need a register whose value is not known; the address is its DWARF number.
pub const CAIRN_STOP_UNKNOWN_REGISTER: u32 = 4;

/// Memory at the address could not be read.
pub const CAIRN_STOP_UNREADABLE_MEMORY: u32 = 5;

/// A frame pointer leads outside the stack, to the address.
pub const CAIRN_STOP_OUTSIDE_STACK: u32 = 6;

/// The caller of the code at the address is not above it on the stack: the stack is damaged.
pub const CAIRN_STOP_NO_PROGRESS: u32 = 7;

/// There is no such stack: it was lost, or the number is not one of a stack of this process.
pub const CAIRN_STOP_NO_STACK: u32 = 8;

/// A reason that this version of the header does not name.
pub const CAIRN_STOP_OTHER: u32 = 9;

/// One entry of a stack.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CairnFrame {
    /// One of CAIRN_FRAME_...
    pub kind: u32,
    /// Zero.
    pub reserved: u32,
    /// The address, as the processor sees it.
    pub address: u64,
}

/// The reason why a stack ends at its outermost frame.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CairnStop {
    /// One of CAIRN_STOP_...
    pub kind: u32,
    /// Zero.
    pub reserved: u32,
    /// The address that belongs to the kind, or zero.
    pub address: u64,
}

/// Memory and losses of the captures of this process.
#[repr(C)]
pub struct CairnStatistics {
    /// Set it to the size of this struct before the call; the fields of a newer library are then
    /// left out.
    pub type_size: usize,
    /// Captures for which there was no room, or that interrupted two others of the same thread.
    pub lost: u64,
    /// Bytes of memory that hold all stacks, without the threads' caches.
    pub memory_bytes: u64,
}

const _: () = assert!(size_of::<CairnFrame>() == 16 && size_of::<CairnStop>() == 16);
const _: () = assert!(size_of::<CairnStatistics>() == 24);
const _: () = assert!(CAIRN_STACK_LOST == StackId::LOST.number() && StackId::EMPTY.number() == 0);

/// Captures the call stack of the caller, whose own frame is the innermost.
///
/// Call it from anywhere: in malloc, in a signal handler, in a thread that is about to end. It does
/// not allocate, takes no lock, and preserves errno.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub extern "C" fn cairn_capture() -> CairnStackId {
    // A jump, so that this function leaves no frame to unwind.
    #[cfg(target_arch = "x86_64")]
    core::arch::naked_asm!("jmp {here}", here = sym cairn_capture::cairn_capture_here);
    #[cfg(target_arch = "aarch64")]
    core::arch::naked_asm!("b {here}", here = sym cairn_capture::cairn_capture_here);
}

/// Captures the call stack of the code that a signal interrupted. The innermost frame is the
/// interrupted instruction; the handler's own frames are not included. ucontext is the third
/// argument of a handler installed with SA_SIGINFO.
///
/// It works after a stack overflow too, when the handler runs on its own stack (SA_ONSTACK).
///
/// # Safety
///
/// `ucontext` is null or an interrupted context of this thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairn_capture_interrupted(ucontext: *const c_void) -> CairnStackId {
    if ucontext.is_null() {
        return CAIRN_STACK_LOST;
    }
    // SAFETY: the caller promises that `ucontext` is null or an interrupted context of this thread.
    unsafe { cairn_capture::capture_interrupted(ucontext.cast()) }.id().number()
}

/// Copies the frames of a stack, innermost first, and returns how many it has. At most capacity
/// frames are written. stop, if it is not null, gets the reason why the stack ends.
///
/// # Safety
///
/// `frames` has room for `capacity` entries; `stop` is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairn_stack_frames(
    stack: CairnStackId,
    frames: *mut CairnFrame,
    capacity: usize,
    stop: *mut CairnStop,
) -> usize {
    let (mut count, mut reason) = (0, CairnStop { kind: CAIRN_STOP_NO_STACK, reserved: 0, address: 0 });
    if let Some(stack) = known(stack) {
        let capacity = if frames.is_null() { 0 } else { capacity };
        let mut found = stack.frames();
        for frame in found.by_ref() {
            if count < capacity {
                // SAFETY: the index is below the capacity, for which the caller promises room.
                unsafe { frames.add(count).write(exported(frame)) };
            }
            count += 1;
        }
        reason = exported_stop(found.stop_reason());
    }
    if !stop.is_null() {
        // SAFETY: the caller promises that `frames` has room for `capacity` entries; `stop` is null
        // or valid.
        unsafe { stop.write(reason) };
    }
    count
}

/// Writes a stack as text into a file descriptor, one line for each frame. A line has the address,
/// the module, and the address in the module as addr2line takes it. Recursion is folded. Returns 0
/// or a negative CAIRN_ERROR_...
///
///     #0  0x000055f2b4a0716c /usr/bin/prog+0x116c
///     #1  0x00007f0f7f2461ca /lib/x86_64-linux-gnu/libc.so.6+0x271ca
///
/// It may be called in a signal handler.
#[unsafe(no_mangle)]
pub extern "C" fn cairn_stack_print(stack: CairnStackId, descriptor: c_int) -> c_int {
    let Some(stack) = known(stack) else { return CAIRN_ERROR_STACK };
    stack.write_text(descriptor).map_or(CAIRN_ERROR_WRITE, |()| 0)
}

/// Does the same as backtrace() of the C library. It fills buffer with the addresses of the
/// caller's stack, innermost first, and returns their number, at most size. Unlike backtrace() it
/// may be called in malloc and in signal handlers.
///
/// # Safety
///
/// `buffer` has room for `size` pointers.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn cairn_backtrace(buffer: *mut *mut c_void, size: c_int) -> c_int {
    if buffer.is_null() {
        return 0;
    }
    let capacity = usize::try_from(size).unwrap_or(0);
    // The innermost frame is this function.
    let addresses = cairn_capture::capture().frames().skip(1).filter_map(Frame::address);
    let mut count = 0;
    for (index, address) in addresses.take(capacity).enumerate() {
        // SAFETY: the index is below the capacity, for which the caller promises room.
        unsafe { buffer.add(index).write(address.value() as *mut c_void) };
        count += 1;
    }
    count
}

/// Fills statistics, whose type_size the caller has set. Returns 0 or CAIRN_ERROR_ARGUMENT.
///
/// # Safety
///
/// `statistics` is null or points to `type_size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairn_statistics(statistics: *mut CairnStatistics) -> c_int {
    if statistics.is_null() {
        return CAIRN_ERROR_ARGUMENT;
    }
    // SAFETY: not null, so the caller promises `type_size` bytes, which include the first field.
    let type_size = unsafe { (*statistics).type_size };
    if type_size < size_of::<usize>() {
        return CAIRN_ERROR_ARGUMENT;
    }
    let found = cairn_capture::statistics();
    let known =
        CairnStatistics { type_size, lost: found.lost.into(), memory_bytes: found.memory_bytes as u64 };
    // SAFETY: the caller promises that `statistics` is null or points to `type_size` bytes.
    unsafe { versioned::give(&known, statistics, type_size) };
    0
}

/// Returns the version of the library, such as "0.1.0". The string lives as long as the process.
#[unsafe(no_mangle)]
pub extern "C" fn cairn_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// Returns the stack of this number, if there is one.
pub(crate) fn known(stack: CairnStackId) -> Option<Stack> {
    StackId::from_number(stack).filter(|&id| id != StackId::LOST).map(Stack::from_id)
}

fn exported(frame: Frame) -> CairnFrame {
    let kind = match frame {
        Frame::ProgramCounter(_) => CAIRN_FRAME_PROGRAM_COUNTER,
        Frame::AsyncResumePoint(_) => CAIRN_FRAME_ASYNC_RESUME_POINT,
        // Captured stacks hold addresses only.
        Frame::ReturnAddress(_) | Frame::Omitted(_) | Frame::Truncated => CAIRN_FRAME_RETURN_ADDRESS,
    };
    CairnFrame { kind, reserved: 0, address: frame.address().map_or(0, |address| address.value()) }
}

pub(crate) fn exported_stop(reason: StopReason) -> CairnStop {
    let (kind, address) = match reason {
        StopReason::EndOfStack => (CAIRN_STOP_END_OF_STACK, 0),
        StopReason::Limit => (CAIRN_STOP_LIMIT, 0),
        StopReason::NoUnwindInfo { pc } => (CAIRN_STOP_NO_UNWIND_INFO, pc.value()),
        StopReason::BadUnwindInfo { pc } => (CAIRN_STOP_BAD_UNWIND_INFO, pc.value()),
        StopReason::UnknownRegister { register } => (CAIRN_STOP_UNKNOWN_REGISTER, register.into()),
        StopReason::UnreadableMemory { address } => (CAIRN_STOP_UNREADABLE_MEMORY, address.value()),
        StopReason::OutsideStack { address } => (CAIRN_STOP_OUTSIDE_STACK, address.value()),
        StopReason::NoProgress { pc } => (CAIRN_STOP_NO_PROGRESS, pc.value()),
        _ => (CAIRN_STOP_OTHER, 0),
    };
    CairnStop { kind, reserved: 0, address }
}
