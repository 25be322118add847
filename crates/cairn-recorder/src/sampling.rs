//! Remembers which blocks were chosen, when a part of the blocks is recorded ([`crate::chooser`]).
//!
//! At a free, the recorder has to know whether the block was recorded. The addresses of recorded
//! blocks that live are in one table for all threads. In front of it, a small array of counters
//! answers nearly every question by one load.
//!
//! ```text
//!   address, bits 10 to 23 ----> counter (0: none of those addresses is recorded)
//!   address --multiply---------> group: 15 bits --> 4 groups of 8 addresses, anywhere in them
//! ```
//!
//! No lock, no allocation, no system call once a recording has begun.

use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU64, Ordering};

use crate::chooser;
use crate::lanes;
use crate::os::{self, Errno};
use crate::thread_log::current_log;

pub(crate) use crate::chooser::is_on;

/// Lies in memory that a forked child finds wiped: a child has recorded no block.
static TABLE: AtomicPtr<SampledBlocks> = AtomicPtr::new(core::ptr::null_mut());

/// Number of recorded addresses for each counter. A counter that reaches its maximum stays there.
static COUNTERS: [AtomicU8; 1 << COUNTER_BITS] = [const { AtomicU8::new(0) }; 1 << COUNTER_BITS];
const COUNTER_BITS: u32 = 14;
/// Low bits of an address that do not select the counter; 10, to group the counters of neighbours.
/// Neighbours are often freed together, and share a cache line of counters then.
const GRANULE_BITS: u32 = 10;

const GROUP_BITS: u32 = 15;
/// Addresses in a cache line.
const GROUP: usize = 8;
/// Number of groups in a row that an address can be in.
const PROBES: usize = 4;

/// The addresses of recorded blocks that live, and zeros.
#[repr(C, align(64))]
struct SampledBlocks([[AtomicU64; GROUP]; (1 << GROUP_BITS) + PROBES]);

fn table() -> Option<&'static SampledBlocks> {
    // SAFETY: null, or a table that `begin` has mapped and that is never unmapped.
    unsafe { TABLE.load(Ordering::Acquire).as_ref() }
}

/// Sets how the blocks of a recording are chosen, before it begins.
pub(crate) fn begin(mean_bytes: Option<u64>, seed: u64) -> Result<(), Errno> {
    if mean_bytes.is_some() {
        match table() {
            Some(table) => table.0.iter().flatten().for_each(|place| place.store(0, Ordering::Relaxed)),
            None => {
                let at = os::zeroed(size_of::<SampledBlocks>())?;
                os::wipe_on_fork(at, size_of::<SampledBlocks>())?;
                TABLE.store(at as *mut SampledBlocks, Ordering::Release);
            }
        }
        COUNTERS.iter().for_each(|counter| counter.store(0, Ordering::Relaxed));
    }
    chooser::configure(mean_bytes, seed);
    Ok(())
}

/// Empties the table in a forked child that the kernel has not wiped.
pub(crate) fn wipe_in_child() {
    if let Some(table) = table() {
        table.0.iter().flatten().for_each(|place| place.store(0, Ordering::Relaxed));
    }
}

/// Counts an allocation that the calling thread is about to make. Returns true if it surely is not
/// chosen; false decides nothing. An allocation that fails is counted too, which picks other bytes
/// with the same probability.
#[inline(always)]
pub(crate) fn skips(size_bytes: u64) -> bool {
    is_on() && current_log().is_some_and(|log| log.chooser.skips(size_bytes))
}

/// Returns true when blocks are chosen and none at `address` was. False decides nothing.
#[inline(always)]
pub(crate) fn is_surely_unknown(address: u64) -> bool {
    is_on() && counter(address).load(Ordering::Relaxed) == 0
}

/// Returns whether a block of this size, which the calling thread has got, is chosen.
#[inline(always)]
pub(crate) fn takes(size_bytes: u64) -> bool {
    match current_log() {
        Some(log) => log.chooser.takes(size_bytes),
        None => takes_first(size_bytes),
    }
}

/// As [`takes`], at the first allocation of a thread.
#[cold]
#[inline(never)]
fn takes_first(size_bytes: u64) -> bool {
    lanes::with_own(|log| log.chooser.takes(size_bytes)).unwrap_or(false)
}

#[inline(always)]
const fn hash(address: u64) -> u64 {
    (address >> 4).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[inline(always)]
fn counter(address: u64) -> &'static AtomicU8 {
    &COUNTERS[(address >> GRANULE_BITS) as usize % COUNTERS.len()]
}

/// Yields the entries of the table that an address can be in.
fn places(address: u64) -> Option<impl Iterator<Item = &'static AtomicU64>> {
    let first = (hash(address) >> 16) as usize & ((1 << GROUP_BITS) - 1);
    Some(table()?.0.get(first..first + PROBES)?.iter().flatten())
}

/// Adds the block at `address` to the recorded ones; returns false when there is no room for it.
#[cold]
#[inline(never)]
pub(crate) fn remember(address: u64) -> bool {
    let is_put = places(address).is_some_and(|mut places| {
        places.any(|place| {
            place.load(Ordering::Relaxed) == 0
                && place.compare_exchange(0, address, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        })
    });
    if is_put {
        let up = |count: u8| count.checked_add(1);
        let _ = counter(address).fetch_update(Ordering::Relaxed, Ordering::Relaxed, up);
    }
    is_put
}

/// Returns whether the block at `address` is recorded.
#[inline(always)]
pub(crate) fn knows(address: u64) -> bool {
    counter(address).load(Ordering::Relaxed) != 0 && finds(address)
}

#[cold]
#[inline(never)]
fn finds(address: u64) -> bool {
    address != 0
        && places(address)
            .is_some_and(|mut places| places.any(|place| place.load(Ordering::Relaxed) == address))
}

/// Removes the block at `address` from the recorded ones; returns whether it was one of them.
#[inline(always)]
pub(crate) fn forget(address: u64) -> bool {
    counter(address).load(Ordering::Relaxed) != 0 && removes(address)
}

#[cold]
#[inline(never)]
fn removes(address: u64) -> bool {
    let is_out = address != 0
        && places(address).is_some_and(|mut places| {
            places.any(|place| {
                place.load(Ordering::Relaxed) == address
                    && place.compare_exchange(address, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
            })
        });
    if is_out {
        let down = |count: u8| (count != u8::MAX).then(|| count.saturating_sub(1));
        let _ = counter(address).fetch_update(Ordering::Relaxed, Ordering::Relaxed, down);
    }
    is_out
}
