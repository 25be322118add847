//! A mapping that begins small, grows in place, and never moves.
//!
//! ```text
//!   lower addresses                                                                            higher
//!   | extent ->   free, to grow into   ...             | new mappings of the program <- | its libraries |
//!                                                       the kernel places them downwards
//! ```
//!
//! The address space is not reserved: mapped memory counts against limits of the address space, and
//! programs read how much is mapped before they set such a limit. So an extent lies far below the
//! addresses at which the kernel places new mappings. The kernel extends it in place (`mremap`
//! without `MREMAP_MAYMOVE`), or refuses when another mapping is in the way: it replaces none.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::os::{self, Errno};

/// Reason why an extent has not grown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ExtentError {
    /// The kernel refuses.
    Refused(Errno),
    /// Another thread extends it, or the thread that this signal handler has interrupted.
    Busy,
}

/// End of a mapping. All-zero bytes are one that was not made.
#[repr(C)]
pub(crate) struct Extent {
    end: AtomicUsize,
    /// Process and thread that extend it; 0 for none.
    grower: AtomicU64,
}

impl Extent {
    /// Begins with a new mapping that ends at `end`.
    pub(crate) fn begin(&mut self, end: usize) {
        *self.end.get_mut() = end;
        *self.grower.get_mut() = 0;
    }

    /// Returns the first address behind the mapping.
    pub(crate) fn end(&self) -> usize {
        self.end.load(Ordering::Acquire)
    }

    /// Extends the mapping to `end`, a multiple of the page size, unless it reaches that far
    /// already. `lengthen` maps the second number of bytes behind the first address; `note` is
    /// called with the new end before other threads see it.
    pub(crate) fn reach(
        &self,
        end: usize,
        lengthen: impl Fn(usize, usize) -> Result<(), Errno>,
        note: impl Fn(usize),
    ) -> Result<(), ExtentError> {
        if self.end() >= end {
            return Ok(());
        }
        let grow = || {
            let old = self.end();
            if old < end {
                lengthen(old, end - old)?;
                note(end);
                self.end.store(end, Ordering::Release);
            }
            Ok(())
        };
        match alone(&self.grower, || self.end() >= end, grow) {
            Outcome::Done(result) => result.map_err(ExtentError::Refused),
            Outcome::Unneeded => Ok(()),
            Outcome::Busy => Err(ExtentError::Busy),
        }
    }
}

/// Result of [`alone`].
pub(crate) enum Outcome<T> {
    /// The action was done, with this result.
    Done(T),
    /// Another thread has done it.
    Unneeded,
    /// Another thread has not finished it within a second, or the interrupted thread is doing it.
    Busy,
}

/// Runs an action that one thread at a time may run, whose number is in `word`.
///
/// Waits for another thread that runs it, at most a second, until `is_done`, or takes over if that
/// thread has ended meanwhile.
pub(crate) fn alone<T>(word: &AtomicU64, is_done: impl Fn() -> bool, act: impl FnOnce() -> T) -> Outcome<T> {
    const TRIES: u32 = 10_000;
    const MICROS: u32 = 100;
    let here = u64::from(os::process_id()) << 32 | u64::from(os::thread_id());
    let order = Ordering::AcqRel;
    for _ in 0..TRIES {
        match word.compare_exchange(0, here, order, Ordering::Acquire) {
            Ok(_) => {
                let result = act();
                word.store(0, Ordering::Release);
                return Outcome::Done(result);
            }
            // This is a signal handler, and the interrupted code runs the action.
            Err(other) if other == here => return Outcome::Busy,
            Err(other) if os::has_ended_in((other >> 32) as u32, other as u32) => {
                let _ = word.compare_exchange(other, 0, order, Ordering::Relaxed);
            }
            Err(_) => os::sleep_micros(MICROS),
        }
        if is_done() {
            return Outcome::Unneeded;
        }
    }
    Outcome::Busy
}
