//! Chooses blocks at random: each allocated byte is picked with the same small probability, and a
//! block is chosen if one of its bytes was picked.
//!
//! ```text
//!   thread:   | 40 | 16 | 1000 ...... | 64 | 64 |       bytes, as they are allocated
//!                        ^ the next picked byte; the distance to it is `left_bytes`
//! ```
//!
//! The distance from one picked byte to the next is exponentially distributed. Such a distribution
//! has no memory: the distance that is left behind a block is distributed as a fresh one. A block
//! of `size` bytes is chosen with probability `1 - exp(-size / mean)`, independent of the program's
//! behaviour: a reader that divides by it has an unbiased estimate.

use core::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use crate::clock;

/// Mean distance between picked bytes; 0 when all blocks are recorded.
static MEAN_BYTES: AtomicU64 = AtomicU64::new(0);
/// Seed of the threads' random numbers; 0 to seed from the clock.
static SEED: AtomicU64 = AtomicU64::new(0);

/// Sets mean and seed before a recording begins.
pub(crate) fn configure(mean_bytes: Option<u64>, seed: u64) {
    SEED.store(seed, Ordering::Relaxed);
    MEAN_BYTES.store(mean_bytes.unwrap_or(0), Ordering::Release);
}

/// Returns true when a part of the blocks is recorded, false when all are.
#[inline(always)]
pub(crate) fn is_on() -> bool {
    MEAN_BYTES.load(Ordering::Relaxed) != 0
}

/// State of one thread's random choice. All-zero bytes are a thread that has not begun.
#[repr(C)]
pub(crate) struct Chooser {
    /// Bytes in front of the next picked one.
    left_bytes: AtomicI64,
    random: AtomicU64,
    /// Number of the thread's log.
    number: AtomicU64,
}

impl Chooser {
    pub(crate) fn set_number(&self, number: u32) {
        self.number.store(number.into(), Ordering::Relaxed);
    }

    /// Counts an allocation of this size, and returns true if it surely is not chosen. False
    /// decides nothing.
    #[inline(always)]
    pub(crate) fn skips(&self, size_bytes: u64) -> bool {
        let left = self.left_bytes.load(Ordering::Relaxed).wrapping_sub(size_bytes.max(1) as i64);
        if left < 0 {
            return false;
        }
        self.left_bytes.store(left, Ordering::Relaxed);
        true
    }

    /// Counts an allocation of this size; returns whether it is chosen.
    #[inline(always)]
    pub(crate) fn takes(&self, size_bytes: u64) -> bool {
        // A signal handler between load and store loses its own bytes from the count. That is as
        // good as another random number: it prefers no block.
        let left = self.left_bytes.load(Ordering::Relaxed).wrapping_sub(size_bytes.max(1) as i64);
        self.left_bytes.store(left, Ordering::Relaxed);
        left < 0 && self.takes_picked(size_bytes)
    }

    /// Begins a new distance: the picked byte is in the block, unless the thread has just begun.
    #[cold]
    #[inline(never)]
    fn takes_picked(&self, size_bytes: u64) -> bool {
        if self.random.load(Ordering::Relaxed) == 0 {
            let seed = match SEED.load(Ordering::Relaxed) {
                0 => clock::counter() ^ (&raw const *self as u64).rotate_left(32),
                // The distances of a log are the same in every run.
                seed => seed.wrapping_add(self.number.load(Ordering::Relaxed).rotate_left(32)),
            };
            self.random.store(seed | 1, Ordering::Relaxed);
            let left = self.distance().wrapping_sub(size_bytes.max(1) as i64);
            self.left_bytes.store(left, Ordering::Relaxed);
            if left >= 0 {
                return false;
            }
        }
        self.left_bytes.store(self.distance(), Ordering::Relaxed);
        true
    }

    /// Draws the number of bytes in front of the next picked one.
    fn distance(&self) -> i64 {
        let state = self.random.load(Ordering::Relaxed).wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.random.store(state, Ordering::Relaxed);
        // SplitMix64.
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        let random = mixed ^ mixed >> 31;
        // Above 0, and at most 1.
        let part = ((random >> 11) + 1) as f64 / (1_u64 << 53) as f64;
        (minus_ln(part) * MEAN_BYTES.load(Ordering::Relaxed) as f64) as i64
    }
}

/// Computes the negated natural logarithm of a number from 2^-53 to 1; `core` has no logarithm.
fn minus_ln(number: f64) -> f64 {
    const MANTISSA: u64 = (1 << 52) - 1;
    let bits = number.to_bits();
    let exponent = (bits >> 52) as i64 - 1023;
    let mantissa = f64::from_bits(bits & MANTISSA | 1023 << 52);
    // ln m = 2 artanh z, where z is at most 1/3: each term is at most 1/9 of the one before.
    let z = (mantissa - 1.0) / (mantissa + 1.0);
    let (mut power, mut sum) = (z, 0.0);
    for term in 0..14 {
        sum += power / f64::from(2 * term + 1);
        power *= z * z;
    }
    -(exponent as f64 * core::f64::consts::LN_2 + 2.0 * sum)
}
