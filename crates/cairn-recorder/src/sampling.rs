//! Which blocks are recorded when not all are: each byte that is allocated is picked with the same small probability, and a
//! block of which a byte was picked is recorded.
//!
//! ```text
//!   thread:   | 40 | 16 | 1000 ...... | 64 | 64 |       bytes, as they are allocated
//!                        ^ the next picked byte: so many bytes are left to it
//! ```
//!
//! The distance from one picked byte to the next is exponentially distributed, so what is left of it after a block is again as
//! long as a fresh one. A block of `size` bytes is recorded with probability `1 - exp(-size / mean)`, whatever the program does:
//! a reader that divides by it has an estimate without bias.
//!
//! A free has to know whether its block was recorded. The addresses of those that live are in one table for all threads; in front of
//! it, a small array of counters answers nearly every question by one load.
//!
//! ```text
//!   address, bits 10 to 23 ----> counter (0: none of those addresses is recorded)
//!   address --multiply---------> group: 15 bits --> 4 groups of 8 addresses, anywhere in them
//! ```
//!
//! No lock, no allocation, no system call once a recording has begun.

use core::sync::atomic::{AtomicI64, AtomicPtr, AtomicU8, AtomicU64, Ordering};

use crate::clock;
use crate::os::{self, Errno};
use crate::thread_log::{self, ThreadLog};
use crate::thread_word;

/// On average one byte of so many is picked; 0 when all blocks are recorded.
static MEAN_BYTES: AtomicU64 = AtomicU64::new(0);
/// What the threads' random numbers begin with; 0 for the clock.
static SEED: AtomicU64 = AtomicU64::new(0);
/// In memory that a forked child finds wiped: it has recorded no block.
static TABLE: AtomicPtr<Table> = AtomicPtr::new(core::ptr::null_mut());

/// How many addresses of the table share each counter. One that has come to its end stays there.
static COUNTERS: [AtomicU8; 1 << COUNTER_BITS] = [const { AtomicU8::new(0) }; 1 << COUNTER_BITS];
const COUNTER_BITS: u32 = 14;
/// Addresses that differ only in so many bits share one: neighbours are freed together, and their counters are in one cache line.
const GRANULE_BITS: u32 = 10;

const GROUP_BITS: u32 = 15;
/// Addresses in a cache line.
const GROUP: usize = 8;
/// So many groups in a row are looked at.
const PROBES: usize = 4;

/// The addresses of recorded blocks that live, and zeros.
#[repr(C, align(64))]
struct Table([[AtomicU64; GROUP]; (1 << GROUP_BITS) + PROBES]);

/// What a thread needs to choose blocks. All-zero bytes are a thread that has not begun.
#[repr(C)]
pub(crate) struct Chooser {
    /// Bytes up to the next picked one.
    left_bytes: AtomicI64,
    random: AtomicU64,
    /// The number of the log.
    number: AtomicU64,
}

impl Chooser {
    pub(crate) fn set_number(&self, number: u32) {
        self.number.store(number.into(), Ordering::Relaxed);
    }
}

/// Whether blocks are chosen at all.
#[inline(always)]
pub(crate) fn is_on() -> bool {
    MEAN_BYTES.load(Ordering::Relaxed) != 0
}

/// Before a recording begins: how its blocks are chosen.
pub(crate) fn begin(mean_bytes: Option<u64>, seed: u64) -> Result<(), Errno> {
    if mean_bytes.is_some() {
        let table = TABLE.load(Ordering::Acquire);
        if table.is_null() {
            let at = os::zeroed(size_of::<Table>())?;
            os::wipe_on_fork(at, size_of::<Table>())?;
            TABLE.store(at as *mut Table, Ordering::Release);
        } else {
            // SAFETY: a table, which is never unmapped.
            let table = unsafe { &*table };
            table.0.iter().flatten().for_each(|place| place.store(0, Ordering::Relaxed));
        }
        COUNTERS.iter().for_each(|counter| counter.store(0, Ordering::Relaxed));
    }
    SEED.store(seed, Ordering::Relaxed);
    MEAN_BYTES.store(mean_bytes.unwrap_or(0), Ordering::Release);
    Ok(())
}

/// As [`crate::recorder::wipe_in_child`].
///
/// # Safety
///
/// As for that.
pub(crate) unsafe fn wipe_in_child() {
    let table = TABLE.load(Ordering::Acquire);
    if !table.is_null() {
        // SAFETY: a mapping of that size, which nobody uses: by contract.
        unsafe { table.write_bytes(0, 1) };
    }
}

/// True when blocks are chosen and one of this size, which the calling thread is about to ask for, is none of those; it is then
/// counted. False decides nothing. What is asked for in vain is counted too, which picks other bytes, as likely ones.
#[inline(always)]
pub(crate) fn passes(size_bytes: u64) -> bool {
    if !is_on() {
        return false;
    }
    let log = thread_word::load().cast::<ThreadLog>();
    if log.is_null() {
        return false;
    }
    // SAFETY: a log; logs are never unmapped.
    let left_bytes = unsafe { &(*log).chooser.left_bytes };
    let left = left_bytes.load(Ordering::Relaxed).wrapping_sub(size_bytes.max(1) as i64);
    if left < 0 {
        return false;
    }
    left_bytes.store(left, Ordering::Relaxed);
    true
}

/// True when blocks are chosen and none at `address` was. False decides nothing.
#[inline(always)]
pub(crate) fn is_surely_unknown(address: u64) -> bool {
    is_on() && counter(address).load(Ordering::Relaxed) == 0
}

/// Whether a block of this size, which the calling thread has got, is to be recorded.
#[inline(always)]
pub(crate) fn takes(size_bytes: u64) -> bool {
    let log = thread_word::load().cast::<ThreadLog>();
    if log.is_null() {
        return takes_first(size_bytes);
    }
    // SAFETY: a log; logs are never unmapped.
    takes_by(unsafe { &(*log).chooser }, size_bytes)
}

#[inline(always)]
fn takes_by(chooser: &Chooser, size_bytes: u64) -> bool {
    // A handler that comes between loses its own bytes from the count, which picks no block rather than another.
    let left = chooser.left_bytes.load(Ordering::Relaxed).wrapping_sub(size_bytes.max(1) as i64);
    chooser.left_bytes.store(left, Ordering::Relaxed);
    left < 0 && takes_picked(chooser, size_bytes)
}

/// The picked byte is in the block, unless the thread has just begun.
#[cold]
#[inline(never)]
fn takes_picked(chooser: &Chooser, size_bytes: u64) -> bool {
    if chooser.random.load(Ordering::Relaxed) == 0 {
        let seed = match SEED.load(Ordering::Relaxed) {
            0 => clock::counter() ^ (&raw const *chooser as u64).rotate_left(32),
            // The distances of a log are the same in every run.
            seed => seed.wrapping_add(chooser.number.load(Ordering::Relaxed).rotate_left(32)),
        };
        chooser.random.store(seed | 1, Ordering::Relaxed);
        let left = distance(chooser).wrapping_sub(size_bytes.max(1) as i64);
        chooser.left_bytes.store(left, Ordering::Relaxed);
        if left >= 0 {
            return false;
        }
    }
    chooser.left_bytes.store(distance(chooser), Ordering::Relaxed);
    true
}

/// The first allocation of a thread.
#[cold]
#[inline(never)]
fn takes_first(size_bytes: u64) -> bool {
    thread_log::with_own(|log| takes_by(&log.chooser, size_bytes)).unwrap_or(false)
}

/// Bytes in front of the next picked one.
fn distance(chooser: &Chooser) -> i64 {
    let state = chooser.random.load(Ordering::Relaxed).wrapping_add(0x9e37_79b9_7f4a_7c15);
    chooser.random.store(state, Ordering::Relaxed);
    // SplitMix64.
    let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    let random = mixed ^ mixed >> 31;
    // Above 0, and at most 1.
    let part = ((random >> 11) + 1) as f64 / (1_u64 << 53) as f64;
    (minus_ln(part) * MEAN_BYTES.load(Ordering::Relaxed) as f64) as i64
}

/// The natural logarithm of a number from 2^-53 to 1, negated; there is no library for it here.
fn minus_ln(number: f64) -> f64 {
    const MANTISSA: u64 = (1 << 52) - 1;
    let bits = number.to_bits();
    let exponent = (bits >> 52) as i64 - 1023;
    let mantissa = f64::from_bits(bits & MANTISSA | 1023 << 52);
    // ln m = 2 artanh z, and z is at most a third: each term is a ninth of the one before.
    let z = (mantissa - 1.0) / (mantissa + 1.0);
    let (mut power, mut sum) = (z, 0.0);
    for term in 0..14 {
        sum += power / f64::from(2 * term + 1);
        power *= z * z;
    }
    -(exponent as f64 * core::f64::consts::LN_2 + 2.0 * sum)
}

#[inline(always)]
const fn hash(address: u64) -> u64 {
    (address >> 4).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[inline(always)]
fn counter(address: u64) -> &'static AtomicU8 {
    &COUNTERS[(address >> GRANULE_BITS) as usize % COUNTERS.len()]
}

/// The places where an address may be.
fn places(address: u64) -> Option<impl Iterator<Item = &'static AtomicU64>> {
    // SAFETY: null, or a table that is never unmapped.
    let table = unsafe { TABLE.load(Ordering::Acquire).as_ref() }?;
    let first = (hash(address) >> 16) as usize & ((1 << GROUP_BITS) - 1);
    Some(table.0.get(first..first + PROBES)?.iter().flatten())
}

/// Notes that the block at `address` is recorded; false when there is no room for it.
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

/// Whether the block at `address` is recorded.
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

/// Whether the block at `address` is recorded; from now on it is not.
#[inline(always)]
pub(crate) fn forget(address: u64) -> bool {
    counter(address).load(Ordering::Relaxed) != 0 && takes_out(address)
}

#[cold]
#[inline(never)]
fn takes_out(address: u64) -> bool {
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
