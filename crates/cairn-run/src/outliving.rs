//! Lets a program go on when this process has no memory left; its end is still this process's own.
//!
//! A limit of the shell (`ulimit -v`, `ulimit -d`) holds for the command as well as for the
//! program, and the command may be the one that needs more. Its end would be an abort in place of
//! the program's.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ffi::c_int;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use crate::End;

/// The system's allocator for a command that starts a program ([`Start`](crate::Start)). When no
/// memory is left while the program runs, the command reports that, waits for the program's end and
/// ends as it did; when the program has already ended, the command ends in the same way at once. An
/// abort has the same effect, with this allocator or without. Without a program, it acts as the
/// system's allocator. It also does so where the caller may accept an error; [`Vec::try_reserve`]
/// is no such case, because it cannot be distinguished.
///
/// ```
/// #[global_allocator]
/// static ALLOCATOR: cairn_run::Outliving = cairn_run::Outliving;
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Outliving;

/// The program's process id, or [`NONE`], [`ENDED`] or [`TAKEN`].
static PROGRAM: AtomicI32 = AtomicI32::new(NONE);
const NONE: i32 = 0;
const ENDED: i32 = -1;
/// Value when a thread has found that no memory is left, and is about to end the process.
const TAKEN: i32 = -2;
/// How the program ended: the status, or 256 and the signal.
static END: AtomicU32 = AtomicU32::new(0);
const SIGNAL: u32 = 256;

/// Notes the program that this process has started.
pub(crate) fn note_start(process: c_int) {
    PROGRAM.store(process, Ordering::Release);
    // SAFETY: the handler makes only calls that handlers may make, and the old action is not
    // requested.
    unsafe { libc::signal(libc::SIGABRT, aborted as *const () as libc::sighandler_t) };
}

/// Handles SIGABRT. Rust aborts a process in this way on stack overflow, or without memory outside
/// the allocator, after it has printed a message.
extern "C" fn aborted(_: c_int) {
    nothing_is_left();
}

/// Notes that the program is no longer this process's child, and how it ended if it ran.
pub(crate) fn note_end(end: Option<End>) {
    if let Some(end) = end {
        END.store(
            match end {
                End::Status(status) => status.into(),
                End::Signal(signal) => SIGNAL + signal.unsigned_abs(),
            },
            Ordering::Release,
        );
    }
    PROGRAM.store(if end.is_some() { ENDED } else { NONE }, Ordering::Release);
}

#[cold]
fn nothing_is_left() {
    let end = match PROGRAM.load(Ordering::Acquire) {
        NONE => return,
        ENDED => {
            PROGRAM.store(TAKEN, Ordering::Release);
            let number = END.load(Ordering::Acquire);
            number
                .checked_sub(SIGNAL)
                .map_or(End::Status(number as u8), |signal| End::Signal(signal as c_int))
        }
        program if PROGRAM.swap(TAKEN, Ordering::AcqRel) == program && program > 0 => {
            say(
                "cairn: no memory is left to follow the program; it goes on, and so does its recording by itself\n",
            );
            wait_for(program)
        }
        _ => loop {
            // SAFETY: waits for signals; another thread ends this process.
            unsafe { libc::pause() };
        },
    };
    // SAFETY: ends the process at once, because the usual exit may need memory.
    end.imitate_by(|status| unsafe { libc::_exit(status) })
}

fn say(text: &str) {
    // SAFETY: the text lives here. A failed write is ignored, because there is no other way to
    // report.
    unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
}

fn wait_for(program: c_int) -> End {
    loop {
        let mut status = 0;
        // SAFETY: our child, and a place for the status.
        let found = unsafe { libc::waitpid(program, &raw mut status, 0) };
        // SAFETY: the place is this thread's own.
        let was_interrupted = found < 0 && unsafe { *libc::__errno_location() } == libc::EINTR;
        if found == program {
            return End::of(status);
        }
        if !was_interrupted {
            return End::Signal(libc::SIGABRT);
        }
    }
}

// SAFETY: every call goes to the system's allocator, and only its pointers are returned.
unsafe impl GlobalAlloc for Outliving {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: `GlobalAlloc` requires of our caller what it requires of us here: a layout of a
        // size other than 0.
        let block = unsafe { System.alloc(layout) };
        if block.is_null() {
            nothing_is_left();
        }
        block
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: `GlobalAlloc` requires of our caller what it requires of us here: a layout of a
        // size other than 0.
        let block = unsafe { System.alloc_zeroed(layout) };
        if block.is_null() {
            nothing_is_left();
        }
        block
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: `GlobalAlloc` requires of our caller a block of this allocator with its layout,
        // and every such block is of `System`.
        let block = unsafe { System.realloc(block, layout, size) };
        if block.is_null() {
            nothing_is_left();
        }
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: `GlobalAlloc` requires of our caller a block of this allocator with its layout,
        // and every such block is of `System`.
        unsafe { System.dealloc(block, layout) };
    }
}
