//! Places that modules, frames and stacks are written through, and the set of frames that are
//! written.
//!
//! Tables go to segments of their own, so that a recording of its last part only can still keep
//! them all. A thread that has something to write claims any free [`TableLog`]; a signal handler
//! that interrupts it claims another one. So no thread waits for another.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use cairn_capture::FrameId;

use crate::writer::Writer;

/// Number of threads and handlers that can write tables at once.
const TABLE_LOGS: usize = 16;
/// Room for a path and other texts that do not fit on small stacks.
pub(crate) const SCRATCH_BYTES: usize = 8192;
/// Limit of frame numbers.
const PCS: usize = 1 << 24;

/// A writer of tables and scratch memory. All-zero bytes are one without a segment.
#[repr(C)]
struct TableLog {
    is_taken: AtomicU32,
    writer: UnsafeCell<Writer>,
    scratch: UnsafeCell<[u8; SCRATCH_BYTES]>,
}

// SAFETY: the cells are accessed only by the holder of a `TakenLog`; `is_taken` allows one at a
// time.
unsafe impl Sync for TableLog {}

/// All logs of a recording, and the stacks that found none of them free.
#[repr(C)]
pub(crate) struct TableLogs {
    logs: [TableLog; TABLE_LOGS],
    /// Lowest word of the stack table that is not written yet; 0 for none.
    left_out_from: AtomicU32,
}

impl TableLogs {
    /// Claims a free log for the caller.
    pub(crate) fn take(&self) -> Option<TakenLog<'_>> {
        let is_claimed = |log: &&TableLog| {
            log.is_taken.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
        };
        let log = self.logs.iter().find(is_claimed)?;
        // SAFETY: the exchange above succeeded, so that no other reference into the cells exists
        // until `TakenLog` is dropped; the two cells are disjoint.
        let (writer, scratch) = unsafe { (&mut *log.writer.get(), &mut *log.scratch.get()) };
        Some(TakenLog { is_taken: &log.is_taken, writer, scratch })
    }

    /// Notes that stacks from this word on still have to be written.
    pub(crate) fn leave_out(&self, first: u32) {
        let first = first.max(1);
        let lower = |known: u32| (known == 0 || first < known).then_some(first);
        let _ = self.left_out_from.fetch_update(Ordering::SeqCst, Ordering::Relaxed, lower);
    }

    pub(crate) fn has_left_out(&self) -> bool {
        self.left_out_from.load(Ordering::SeqCst) != 0
    }

    /// Takes the lowest word that is not written yet; 0 for none.
    pub(crate) fn take_left_out(&self) -> u32 {
        self.left_out_from.swap(0, Ordering::SeqCst)
    }
}

/// Exclusive access to one log, released on drop.
pub(crate) struct TakenLog<'a> {
    is_taken: &'a AtomicU32,
    pub(crate) writer: &'a mut Writer,
    /// Empty while its bytes are lent out.
    pub(crate) scratch: &'a mut [u8],
}

impl Drop for TakenLog<'_> {
    fn drop(&mut self) {
        self.is_taken.store(0, Ordering::Release);
    }
}

/// Limit of numbers of interpreted code; what is beyond is written again with each new frame.
const CODES: usize = 1 << 20;

/// Set of the code of interpreters that is in the file.
#[repr(C)]
pub(crate) struct PublishedCodes([AtomicU64; CODES / 64]);

#[cfg(target_arch = "x86_64")]
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
impl PublishedCodes {
    pub(crate) fn has(&self, number: u32) -> bool {
        let word = self.0.get(number as usize / 64);
        word.is_some_and(|word| word.load(Ordering::Acquire) >> (number % 64) & 1 != 0)
    }

    pub(crate) fn add(&self, number: u32) {
        if let Some(word) = self.0.get(number as usize / 64) {
            word.fetch_or(1 << (number % 64), Ordering::Release);
        }
    }
}

/// Set of the frames that are in the file.
#[repr(C)]
pub(crate) struct PublishedPcs([AtomicU64; PCS / 64]);

impl PublishedPcs {
    pub(crate) fn has(&self, pc: FrameId) -> bool {
        let word = self.0.get(pc.number() as usize / 64);
        word.is_some_and(|word| word.load(Ordering::Acquire) >> (pc.number() % 64) & 1 != 0)
    }

    pub(crate) fn add(&self, pc: FrameId) {
        if let Some(word) = self.0.get(pc.number() as usize / 64) {
            word.fetch_or(1 << (pc.number() % 64), Ordering::Release);
        }
    }
}
