//! Writes the stack of a crash on Windows, and goes on to die of it.
//!
//! The filter runs on the stack of the thread that crashed. After a stack overflow the system
//! leaves room there, as much as `SetThreadStackGuarantee` has reserved before. The overflow is not
//! tested: under Wine 8 no filter of any program runs after one.
//!
//! `cargo run -p cairn-capture --example windows_crash_handler -- overflow`

#[cfg(windows)]
pub(crate) mod handler {
    use std::ffi::c_void;
    use std::hint::black_box;
    use std::ptr;

    use cairn_capture::{Context, capture_interrupted};

    #[repr(C)]
    struct ExceptionPointers {
        record: *mut c_void,
        context: *mut Context,
    }

    type Filter = extern "system" fn(*mut ExceptionPointers) -> i32;

    #[link(name = "kernel32")]
    unsafe extern "system" {
        fn SetUnhandledExceptionFilter(filter: Filter) -> *mut c_void;
        fn SetThreadStackGuarantee(bytes: *mut u32) -> i32;
        fn SetErrorMode(mode: u32) -> u32;
    }

    extern "system" fn on_crash(pointers: *mut ExceptionPointers) -> i32 {
        /// Goes on to the system's own handling, which ends the process.
        const CONTINUE_SEARCH: i32 = 0;
        // SAFETY: the system passes the context of the crash, which waits for this filter.
        let stack = unsafe { capture_interrupted((*pointers).context) };
        // A closed standard error is no reason to crash differently.
        let _ = stack.write_text(2);
        CONTINUE_SEARCH
    }

    fn install() {
        /// No dialog about the crash.
        const NO_CRASH_DIALOG: u32 = 2;
        let mut bytes = 64 * 1024;
        // SAFETY: the filter is safe to run for any exception; the number is a place to read and
        // write.
        unsafe {
            SetErrorMode(NO_CRASH_DIALOG);
            SetThreadStackGuarantee(&raw mut bytes);
            SetUnhandledExceptionFilter(on_crash);
        }
    }

    #[inline(never)]
    fn write_to_nowhere() {
        // SAFETY: it is not; that is what this program is for.
        unsafe { black_box(ptr::without_provenance_mut::<u64>(16)).write_volatile(1) };
    }

    #[inline(never)]
    fn recurse(depth: u64) -> u64 {
        let frame = black_box([depth; 32]);
        if black_box(true) { recurse(depth + 1) + frame[3] } else { 0 }
    }

    /// Crashes, by a stack overflow if that is wanted.
    pub(crate) fn crash(by_overflow: bool) {
        install();
        if by_overflow {
            black_box(recurse(0));
        } else {
            write_to_nowhere();
        }
    }
}

#[cfg(windows)]
fn main() {
    handler::crash(std::env::args().nth(1).as_deref() == Some("overflow"));
}

#[cfg(not(windows))]
fn main() {}
