//! Memory that begins small, grows where it lies, and never moves.
//!
//! ```text
//!   lower addresses                                                                            higher
//!   | extent ->   nothing here, to grow into   ...     | new mappings of the program <- | its libraries |
//!                                                       the kernel places them downwards
//! ```
//!
//! The address space is not reserved: what a process has mapped counts against limits of its address space, and programs
//! read how much that is before they set such a limit. So an extent lies far below the addresses at which the kernel places new
//! mappings, and the kernel makes it longer in place (`mremap` without `MREMAP_MAYMOVE`), or refuses where another mapping is in
//! the way: it replaces none.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::os::{self, Errno};

/// Why an extent has not grown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ungrown {
    /// The kernel refuses.
    Refused(Errno),
    /// Another thread is about to, or this one is, below a signal handler.
    Busy,
}

/// How far a mapping goes. All-zero bytes are one that was not made.
#[repr(C)]
pub(crate) struct Extent {
    end: AtomicUsize,
    /// Process and thread that make it longer; 0 for none.
    grower: AtomicU64,
}

impl Extent {
    /// Of a new mapping, that ends there.
    pub(crate) fn begin(&mut self, end: usize) {
        *self.end.get_mut() = end;
        *self.grower.get_mut() = 0;
    }

    /// The first address behind it.
    pub(crate) fn end(&self) -> usize {
        self.end.load(Ordering::Acquire)
    }

    /// Sees to it that it goes up to `end`, a multiple of the page size. `note` is called with the new end before other threads see it.
    /// Makes system calls unless it goes that far already.
    pub(crate) fn reach(&self, end: usize, note: impl Fn(usize)) -> Result<(), Ungrown> {
        if self.end() >= end {
            return Ok(());
        }
        let grow = || {
            let old = self.end();
            if old < end {
                os::lengthen(old, end - old)?;
                note(end);
                self.end.store(end, Ordering::Release);
            }
            Ok(())
        };
        match alone(&self.grower, || self.end() >= end, grow) {
            Alone::Done(result) => result.map_err(Ungrown::Refused),
            Alone::Unneeded => Ok(()),
            Alone::Busy => Err(Ungrown::Busy),
        }
    }
}

/// What came of [`alone`].
pub(crate) enum Alone<T> {
    /// It was done, with this result.
    Done(T),
    /// Another thread has done it.
    Unneeded,
    /// Another thread is at it and has not finished in a second, or this one is, below a signal handler.
    Busy,
}

/// Does what one thread at a time may do; `word` says which one does. Waits for that one, at most a second, unless `is_done` by
/// then, or the thread has ended in the midst of it.
pub(crate) fn alone<T>(word: &AtomicU64, is_done: impl Fn() -> bool, act: impl FnOnce() -> T) -> Alone<T> {
    const TRIES: u32 = 10_000;
    const MICROS: u32 = 100;
    let here = u64::from(os::process_id()) << 32 | u64::from(os::thread_id());
    let order = Ordering::AcqRel;
    for _ in 0..TRIES {
        match word.compare_exchange(0, here, order, Ordering::Acquire) {
            Ok(_) => {
                let result = act();
                word.store(0, Ordering::Release);
                return Alone::Done(result);
            }
            // A handler that has interrupted it.
            Err(other) if other == here => return Alone::Busy,
            Err(other) if os::has_ended_in((other >> 32) as u32, other as u32) => {
                let _ = word.compare_exchange(other, 0, order, Ordering::Relaxed);
            }
            Err(_) => os::sleep_micros(MICROS),
        }
        if is_done() {
            return Alone::Unneeded;
        }
    }
    Alone::Busy
}
