//! Memory of a whole run, of a program and its children: which children are not recorded.
//!
//! `cairn` makes it and reads it at the end (`cairn-run`'s `windows/unrecorded.rs`):
//!
//! ```text
//!   0  magic
//!   8  children that are not recorded, by their reasons: 4 counts
//!  24  last error of a library that was not loaded
//!  28  text: 0 none, 1 being written, 2 written
//!  32  length of the text
//!  64  first reason of a library that cannot record, WTF-8
//! 576  end
//! ```

use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use crate::exchange::open_section;

const MAGIC: u64 = u64::from_le_bytes(*b"cairnrn1");
const BYTES: usize = 576;
const COUNTS: usize = 8;
const ERROR: usize = 24;
const TEXT_STATE: usize = 28;
const TEXT_LENGTH: usize = 32;
const TEXT: usize = 64;
const NAME: &str = r"Local\cairn-heap-run-";

/// The mapped memory; null where `cairn` has ended.
static RUN: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());

/// Reason why a child is not recorded.
#[derive(Clone, Copy)]
pub(crate) enum Unrecorded<'a> {
    /// It is no 64-bit program for x86-64.
    Machine,
    /// Its parent debugs it.
    Debugged,
    /// The library was not loaded; the number is the system's error, 0 for none.
    NotLoaded(u32),
    /// The library cannot record, for this reason.
    Refused(&'a [u8]),
}

/// Maps the memory that this `cairn` has made.
pub(crate) fn open(cairn: u32) {
    if let Some(address) = open_section(NAME, cairn, BYTES) {
        // SAFETY: the memory is mapped, and aligned to a page.
        if unsafe { address.cast::<u64>().read() } == MAGIC {
            RUN.store(address, Ordering::Release);
        }
    }
}

/// Counts a child that is not recorded.
pub(crate) fn count(reason: Unrecorded<'_>) {
    let run = RUN.load(Ordering::Acquire);
    if run.is_null() {
        return;
    }
    // SAFETY: mapped by `open` until the end of the process; all numbers are aligned, and every
    // process accesses them by atomics.
    let number = |at: usize| unsafe { &*run.add(at).cast::<AtomicU32>() };
    let index = match reason {
        Unrecorded::Machine => 0,
        Unrecorded::Debugged => 1,
        Unrecorded::NotLoaded(error) => {
            number(ERROR).store(error, Ordering::Relaxed);
            2
        }
        Unrecorded::Refused(text) => {
            let state = number(TEXT_STATE);
            if state.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                let length = text.len().min(BYTES - TEXT);
                // SAFETY: the memory has that many bytes, and no other process writes them
                // after the exchange above.
                unsafe { core::ptr::copy_nonoverlapping(text.as_ptr(), run.add(TEXT), length) };
                number(TEXT_LENGTH).store(length as u32, Ordering::Relaxed);
                state.store(2, Ordering::Release);
            }
            3
        }
    };
    number(COUNTS + 4 * index).fetch_add(1, Ordering::Relaxed);
}
