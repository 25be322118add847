//! Records marks and blocks of the program's own allocators, with their stacks, into a file that
//! survives the program.

use core::ffi::{CStr, c_char, c_int, c_void};

use cairn_capture::{CallSite, Stack, capture_at};
use cairn_recorder::{DumpError, EndReason, Keep, MarkValue, Options, StartError, heap, modules};

use crate::capture::CAIRN_ERROR_ARGUMENT;

/// A recording is under way already, or being started by another thread.
pub const CAIRN_ERROR_STARTED: c_int = -6;

/// The file cannot be made, or a file of that name exists.
pub const CAIRN_ERROR_FILE: c_int = -7;

/// There is no room: the disk is full, or a limit of the process too low.
pub const CAIRN_ERROR_ROOM: c_int = -8;

/// Nothing is recorded in this process.
pub const CAIRN_ERROR_NOT_STARTED: c_int = -9;

/// Options of a recording. Fill it with zeros, then set type_size and the fields that differ from
/// their defaults.
#[repr(C)]
pub struct CairnRecordingOptions {
    /// The size of this struct.
    pub type_size: usize,
    /// Path of the file, in UTF-8 on Windows. %p is replaced with the process id, %e with the
    /// program's name; if the file exists, .1, .2 and so on are appended. Null to record into
    /// memory, which requires ring_bytes or ring_nanos.
    pub path: *const c_char,
    /// Nonzero to keep only the last events, as a flight recorder does: their bytes (1 MiB to 1
    /// GiB).
    pub ring_bytes: u64,
    /// Nonzero to end the recording at this size of its file.
    pub limit_bytes: u64,
    /// Names of environment variables to store, separated by commas; null for none.
    pub environment: *const c_char,
    /// Nonzero for a recording of its own for each forked child that marks something.
    pub follows_children: u32,
    /// Nonzero to begin paused.
    pub is_paused: u32,
    /// Nonzero to keep only the events of the last ring_nanos nanoseconds. They take at most
    /// ring_bytes, or 64 MiB if that is 0.
    pub ring_nanos: u64,
}

const _: () = assert!(size_of::<CairnRecordingOptions>() == 56);

/// Size of the struct in the first version of the header.
const FIRST_OPTIONS_BYTES: usize = 48;
/// Bytes of a ring without a size.
const RING_BYTES: u64 = 64 << 20;

/// Begins to record. Null selects the path in the environment variable CAIRN_RECORDING, or else
/// PROGRAM.PID.cairn in the working directory. Returns 0, or a negative CAIRN_ERROR_... and the
/// program continues unrecorded.
///
/// The call is optional: the first mark starts a recording as with null.
///
/// # Safety
///
/// `options` is null or points to `type_size` bytes, and its strings end with a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairn_recording_start(options: *const CairnRecordingOptions) -> c_int {
    if options.is_null() {
        return cairn_recorder::start_default().map_or_else(start_error, |()| 0);
    }
    // SAFETY: not null; the size is the first field.
    let type_size = unsafe { (&raw const (*options).type_size).read() };
    if type_size < FIRST_OPTIONS_BYTES {
        return CAIRN_ERROR_ARGUMENT;
    }
    let mut given = core::mem::MaybeUninit::<CairnRecordingOptions>::zeroed();
    let known = type_size.min(size_of::<CairnRecordingOptions>());
    // SAFETY: `known` bytes are there by contract, and fit. All bits are values of the fields, the
    // zeros behind them too.
    let given = unsafe {
        core::ptr::copy_nonoverlapping(options.cast::<u8>(), given.as_mut_ptr().cast::<u8>(), known);
        given.assume_init()
    };
    // SAFETY: the caller promises that `options` is null or points to `type_size` bytes, and its
    // strings end with a NUL.
    let mut wanted = Options::new(unsafe { bytes(given.path) });
    // SAFETY: the caller promises that `options` is null or points to `type_size` bytes, and its
    // strings end with a NUL.
    wanted.environment = unsafe { bytes(given.environment) };
    if given.ring_bytes > 0 || given.ring_nanos > 0 {
        let or = |number: u64, other| if number > 0 { number } else { other };
        wanted.keep =
            Keep::Last { bytes: or(given.ring_bytes, RING_BYTES), nanos: or(given.ring_nanos, u64::MAX) };
    }
    if given.limit_bytes > 0 {
        wanted.limit_bytes = given.limit_bytes;
    }
    wanted.follows_children = given.follows_children != 0;
    wanted.is_paused = given.is_paused != 0;
    cairn_recorder::start(&wanted).map_or_else(start_error, |()| 0)
}

fn start_error(error: StartError) -> c_int {
    match error {
        StartError::AlreadyStarted => CAIRN_ERROR_STARTED,
        StartError::Path => CAIRN_ERROR_ARGUMENT,
        StartError::Storage(_) | StartError::AddressSpace(_) => CAIRN_ERROR_ROOM,
        _ => CAIRN_ERROR_FILE,
    }
}

/// The body of a naked function whose caller's registers a hook gets. Stated are the number of
/// arguments in integer registers, which counts elsewhere, and of all, which counts on Windows.
#[cfg(not(windows))]
macro_rules! with_call_site {
    ($this:ident, $integers:tt of $all:tt, $hook:ident) => {
        cairn_recorder::jump_with_call_site!($integers, $hook)
    };
}
#[cfg(windows)]
macro_rules! with_call_site {
    ($this:ident, $integers:tt of $all:tt, $hook:ident) => {
        cairn_recorder::call_with_call_site!($this, $all, $hook)
    };
}

/// Marks this moment in the recording with a text and the caller's stack. The skip innermost frames
/// are hidden. Call it from anywhere: in malloc, in a signal handler, in a static constructor.
/// Texts are cut at 4096 bytes; null is an empty one.
///
/// # Safety
///
/// `text` is null or ends with a NUL.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn cairn_mark(text: *const c_char, skip: u32) {
    with_call_site!(cairn_mark, 2 of 2, mark_at)
}

/// Marks this moment as cairn_mark does, with a number.
///
/// # Safety
///
/// `text` is null or ends with a NUL.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn cairn_mark_value(text: *const c_char, skip: u32, value: f64) {
    with_call_site!(cairn_mark_value, 2 of 3, mark_value_at)
}

/// Marks this moment as cairn_mark does, with a whole number.
///
/// # Safety
///
/// `text` is null or ends with a NUL.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn cairn_mark_integer(text: *const c_char, skip: u32, value: i64) {
    with_call_site!(cairn_mark_integer, 3 of 3, mark_integer_at)
}

/// Marks this moment with the stack that a signal interrupted, as cairn_capture_interrupted finds
/// it. For crash handlers: earlier events are safe already, and this one when the function returns.
///
/// # Safety
///
/// `ucontext` is null or an interrupted context of this thread; `text` as for `cairn_mark`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairn_mark_from_context(ucontext: *const c_void, text: *const c_char) {
    if !ucontext.is_null() {
        // SAFETY: the caller promises that `ucontext` is null or an interrupted context of this
        // thread; `text` as for `cairn_mark`.
        unsafe { cairn_recorder::capture_from_context(ucontext.cast(), bytes(text)) };
    }
}

/// Records that an allocator of the program, a pool or an arena, has allocated size bytes at
/// address. Blocks of malloc are recorded by cairn heap. Does nothing without a recording.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub extern "C" fn cairn_heap_alloc(address: *const c_void, size: usize) {
    with_call_site!(cairn_heap_alloc, 2 of 2, heap_alloc_at)
}

/// Records that such a block is about to be freed. Call it before the block can be allocated again.
#[unsafe(no_mangle)]
pub extern "C" fn cairn_heap_free(address: *const c_void) {
    if !address.is_null() {
        heap::freeing(address as u64);
    }
}

/// Waits until all recorded events are on the disk, to survive a power failure. The end of the
/// program needs no flush. Returns 0 or a negative CAIRN_ERROR_...
#[unsafe(no_mangle)]
pub extern "C" fn cairn_recording_flush() -> c_int {
    cairn_recorder::flush().map_or_else(dump_error, |()| 0)
}

/// Writes all recorded events into a new file at path, as a recording of its own. In a ring, a
/// last_nanos other than 0 selects about the last last_nanos nanoseconds. It may be called in a
/// signal handler. Returns 0 or a negative CAIRN_ERROR_...
///
/// # Safety
///
/// `path` is null or ends with a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairn_recording_dump(path: *const c_char, last_nanos: u64) -> c_int {
    let last = (last_nanos > 0).then_some(last_nanos);
    // SAFETY: the caller promises that `path` is null or ends with a NUL.
    cairn_recorder::dump(unsafe { bytes(path) }, last).map_or_else(dump_error, |()| 0)
}

fn dump_error(error: DumpError) -> c_int {
    match error {
        DumpError::NoRecording => CAIRN_ERROR_NOT_STARTED,
        DumpError::Path => CAIRN_ERROR_ARGUMENT,
        _ => CAIRN_ERROR_FILE,
    }
}

/// Records no marks and blocks until cairn_recording_resume.
#[unsafe(no_mangle)]
pub extern "C" fn cairn_recording_pause() {
    cairn_recorder::pause();
}

/// Records again after cairn_recording_pause.
#[unsafe(no_mangle)]
pub extern "C" fn cairn_recording_resume() {
    cairn_recorder::resume();
}

/// Ends the recording. The call is optional: no event is lost without it. Not for signal handlers.
#[unsafe(no_mangle)]
pub extern "C" fn cairn_recording_stop() {
    modules::scan();
    cairn_recorder::stop(EndReason::Stopped);
}

/// Records which modules are loaded. A module is recorded without this call when it is first on a
/// stack, and when any module is closed; the call records the others as well. Not for signal
/// handlers.
#[unsafe(no_mangle)]
pub extern "C" fn cairn_recording_scan_modules() {
    modules::scan();
}

/// Returns the bytes of a C string; none for null.
///
/// # Safety
///
/// `text` is null or ends with a NUL, and stays as it is.
unsafe fn bytes<'a>(text: *const c_char) -> &'a [u8] {
    if text.is_null() {
        return &[];
    }
    // SAFETY: the caller promises that `text` is null or ends with a NUL, and stays as it is.
    unsafe { CStr::from_ptr(text) }.to_bytes()
}

/// # Safety
///
/// The registers of a caller that waits for this function; `text` as for `cairn_mark`.
unsafe extern "C" fn mark_at(text: *const c_char, skip: u32, pc: u64, sp: u64, fp: u64) {
    // SAFETY: the caller promises the registers of its own caller, and a text that is null or ends
    // with a NUL.
    unsafe { note(text, skip, MarkValue::None, CallSite { pc, sp, fp }) };
}

/// # Safety
///
/// The registers of a caller that waits for this function; `text` is null or ends with a NUL.
unsafe extern "C" fn mark_value_at(text: *const c_char, skip: u32, value: f64, pc: u64, sp: u64, fp: u64) {
    // SAFETY: the caller promises the registers of its own caller, and a text that is null or ends
    // with a NUL.
    unsafe { note(text, skip, MarkValue::Float(value), CallSite { pc, sp, fp }) };
}

/// # Safety
///
/// The registers of a caller that waits for this function; `text` is null or ends with a NUL.
unsafe extern "C" fn mark_integer_at(text: *const c_char, skip: u32, value: i64, pc: u64, sp: u64, fp: u64) {
    // SAFETY: the caller promises the registers of its own caller, and a text that is null or ends
    // with a NUL.
    unsafe { note(text, skip, MarkValue::Integer(value), CallSite { pc, sp, fp }) };
}

/// # Safety
///
/// The registers of a caller that waits for this function; `text` is null or ends with a NUL.
#[inline(always)]
unsafe fn note(text: *const c_char, skip: u32, value: MarkValue, site: CallSite) {
    // SAFETY: the caller promises the registers of its own caller, and a text that is null or ends
    // with a NUL.
    let (stack, text): (Stack, &[u8]) = unsafe { (capture_at(site), bytes(text)) };
    cairn_recorder::mark_stack(stack, u16::try_from(skip).unwrap_or(u16::MAX), value, text);
}

/// # Safety
///
/// The registers of a caller that waits for this function.
unsafe extern "C" fn heap_alloc_at(address: *const c_void, size: usize, pc: u64, sp: u64, fp: u64) {
    if !address.is_null() {
        // SAFETY: the caller promises the registers of its own caller, which waits for this
        // function.
        unsafe { heap::allocated(address as u64, size as u64, CallSite { pc, sp, fp }) };
    }
}
