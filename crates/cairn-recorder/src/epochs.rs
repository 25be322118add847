//! Counters that order a free and an allocation of the same address without a clock.
//!
//! Each address belongs to one of [`EPOCHS`] counters. A thread that frees a block which it has not
//! made itself takes a *ticket*, the counter's value, and increments the counter. Every allocation
//! stores the counter's value, its *epoch*. `cairn_format::recording` describes how a reader
//! pairs frees with allocations by these numbers.
//!
//! While a single thread has recorded anything ([`LONE_EPOCH`]), all that it frees is its own or
//! older than the recording. It then needs neither counters nor filter, and every free is one slot.
//!
//! ```text
//!   address --multiply--> | counter: 8 bits | .. | filter index: 12 | rest: 32 |
//!                                                 (44 bits are the whole address / 16)
//!   filter entry:   | rest: 32 bits | the counter's value: 32 bits |;      0: none
//! ```

use core::sync::atomic::{AtomicU32, Ordering};

use cairn_format::recording::{ADDRESS_BITS, EPOCHS, epoch_of};

/// Entries of a thread's filter: the table of the blocks that it made last.
pub(crate) const FILTER_ENTRIES: usize = 1 << 12;

/// A counter in a cache line of its own. Threads which free each other's blocks share a line only
/// when these blocks share a counter.
#[repr(align(64))]
struct Epoch(AtomicU32);

static EPOCH_COUNTERS: [Epoch; EPOCHS] = [const { Epoch(AtomicU32::new(FIRST_EPOCH)) }; EPOCHS];

/// First value of the counters; 2^29, so that no filter entry is 0 until a counter has wrapped.
const FIRST_EPOCH: u32 = 1 << 29;

/// Value of all counters while a single thread has recorded since the recording began. It is 0 for
/// good after that.
///
/// It is set to 0 before another thread can see a block whose free depends on it: by a second
/// thread when it takes a log, before its first event; by a signal handler that interrupts an
/// event, before its own event; and by a thread that takes a ticket, before the real free. So a
/// thread that still reads a nonzero value after it got a block knows that no ticket was taken for
/// that address. A thread that is about to free a block knows that no other thread recorded an
/// event of that block.
static LONE_EPOCH: AtomicU32 = AtomicU32::new(0);

/// Returns the epoch of all addresses while a single thread records.
#[inline(always)]
pub(crate) fn lone_epoch() -> Option<u32> {
    Some(LONE_EPOCH.load(Ordering::Relaxed)).filter(|&epoch| epoch != 0)
}

/// Enters the state of a single recording thread, before a recording begins.
pub(crate) fn begin_alone() {
    let most = EPOCH_COUNTERS.iter().map(|counter| counter.0.load(Ordering::Relaxed)).max().unwrap_or(0);
    LONE_EPOCH.store(most, Ordering::SeqCst);
    // A thread that still writes to an earlier recording sees this as frees by other threads.
    for counter in &EPOCH_COUNTERS {
        counter.0.fetch_max(most, Ordering::SeqCst);
    }
    // A thread that takes a ticket meanwhile either reads the value above or has incremented a
    // counter.
    if EPOCH_COUNTERS.iter().any(|counter| counter.0.load(Ordering::SeqCst) != most) {
        end_alone();
    }
}

/// Ends the state of a single recording thread; see [`LONE_EPOCH`].
pub(crate) fn end_alone() {
    if LONE_EPOCH.load(Ordering::SeqCst) != 0 {
        LONE_EPOCH.store(0, Ordering::SeqCst);
    }
}

/// Invalidates all filter entries: events that follow were not observed from the start of their
/// blocks.
pub(crate) fn forget_blocks() {
    end_alone();
    for counter in &EPOCH_COUNTERS {
        counter.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Hash of an address: counter, filter index and the rest that a filter entry stores.
#[derive(Clone, Copy)]
pub(crate) struct HashedAddress(u64);

const REST_BITS: u32 = 32;
const _: () = assert!(
    FILTER_ENTRIES.ilog2() + REST_BITS == ADDRESS_BITS - 4,
    "filter index and rest are the whole address"
);

impl HashedAddress {
    #[inline(always)]
    pub(crate) const fn of(address: u64) -> Self {
        // As `epoch_of`, whose result is the upper bits. The multiplier is odd, so that the lower
        // bits lose nothing.
        Self((address >> 4).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// Returns the present epoch of the address.
    #[inline(always)]
    pub(crate) fn epoch(self) -> u32 {
        self.counter().load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn counter(self) -> &'static AtomicU32 {
        &EPOCH_COUNTERS[(self.0 >> 56) as usize].0
    }

    /// Returns the index of the address in a filter.
    #[inline(always)]
    pub(crate) const fn index(self) -> usize {
        (self.0 >> REST_BITS) as usize % FILTER_ENTRIES
    }

    /// Returns the filter entry of a block at the address that was allocated in this epoch.
    #[inline(always)]
    pub(crate) const fn entry(self, epoch: u32) -> u64 {
        self.0 << (64 - REST_BITS) ^ epoch as u64
    }
}

const _: () = assert!(epoch_of(0x7f12_3456_7890) == (HashedAddress::of(0x7f12_3456_7890).0 >> 56) as usize);

/// Takes a ticket for a free of this address. Call it before the real free.
pub(crate) fn take_ticket(address: u64) -> u32 {
    let ticket = HashedAddress::of(address).counter().fetch_add(1, Ordering::SeqCst);
    end_alone();
    ticket
}
