//! Every code address that was ever part of a stack, numbered, with the rule that steps from it to its caller.
//!
//! A pc number is what the calling-context tree holds in place of an address: half the size, and it tells apart two
//! pieces of code that lay at the same address at different times. When a module goes away its addresses leave the
//! index, and whatever comes to lie there gets new numbers; the old ones stay, for the stacks that have them.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use cairn_format::{AbsoluteAddress, Frame};
use cairn_unwind::x86_64::Rule;

use crate::index::Index;
use crate::region::{Region, ZeroedAtomics};

/// Numbers below this one are no addresses but marks at the outer end of a stack: see [`Pcs::stop_mark`].
const FIRST_ADDRESS: u32 = 16;

/// Pc numbers fit 27 bits, so that a cache entry of 8 bytes has 37 left for its tag.
pub(crate) const NUMBER_BITS: u32 = 27;

/// One numbered address: 16 bytes, four to a cache line.
#[repr(C)]
pub(crate) struct PcEntry {
    pc: AtomicU64,
    /// Bits of the rule at the pc; 0 while the entry is being filled.
    rule: AtomicU32,
    /// 1 for an interrupted program counter, 0 for a return address.
    is_exact: AtomicU32,
}

const _: () = assert!(size_of::<PcEntry>() == 16);

// SAFETY: atomics without padding.
unsafe impl ZeroedAtomics for PcEntry {}

impl PcEntry {
    #[inline]
    pub(crate) fn pc(&self) -> u64 {
        self.pc.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn rule(&self) -> Rule {
        Rule::from_bits(self.rule.load(Ordering::Relaxed))
    }

    /// The address as a frame.
    pub(crate) fn frame(&self) -> Frame {
        let address = AbsoluteAddress::new(self.pc());
        if self.is_exact.load(Ordering::Relaxed) != 0 {
            Frame::ProgramCounter(address)
        } else {
            Frame::ReturnAddress(address)
        }
    }
}

/// See the module documentation.
pub(crate) struct Pcs {
    entries: Region<PcEntry>,
    index: Index,
}

impl Pcs {
    pub(crate) const fn new() -> Self {
        // A gigabyte of code has some ten million call sites.
        Self { entries: Region::new(&[1 << 24, 1 << 20, 1 << 16]), index: Index::new() }
    }

    /// All entries, for many look-ups in a row.
    #[inline]
    pub(crate) fn entries(&self) -> &[PcEntry] {
        self.entries.elements()
    }

    /// The number of an address that was seen before.
    #[inline]
    pub(crate) fn number(&self, pc: u64, is_exact: bool) -> Option<u32> {
        let entries = self.entries();
        self.index.find(hash(pc), |number| is_entry(entries, number, pc, is_exact))
    }

    /// Numbers an address. `None` when there is no memory left.
    pub(crate) fn add(&self, pc: u64, is_exact: bool, rule: Rule) -> Option<u32> {
        if let Some(number) = self.number(pc, is_exact) {
            return Some(number);
        }
        if self.entries.used() < FIRST_ADDRESS as usize {
            // Two threads may both come here; then some numbers stay unused.
            self.entries.take(FIRST_ADDRESS as usize)?;
        }
        let number = u32::try_from(self.entries.take(1)?).ok().filter(|number| number >> NUMBER_BITS == 0)?;
        let entries = self.entries();
        let entry = entries.get(number as usize)?;
        entry.pc.store(pc, Ordering::Relaxed);
        entry.rule.store(rule.bits(), Ordering::Relaxed);
        entry.is_exact.store(is_exact.into(), Ordering::Relaxed);
        // Publishing in the index is a release store.
        self.index.insert(hash(pc), number, |other| is_entry(entries, other, pc, is_exact)).ok()
    }

    /// Takes the addresses that `is_stale` out of the index: whatever comes to lie there gets new numbers.
    pub(crate) fn forget(&self, is_stale: impl Fn(u64) -> bool) {
        let entries = self.entries();
        self.index.remove_all(|number| entries.get(number as usize).is_some_and(|entry| is_stale(entry.pc())));
    }

    /// Bytes of memory in use.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.entries.used() * size_of::<PcEntry>() + self.index.memory_bytes()
    }
}

fn is_entry(entries: &[PcEntry], number: u32, pc: u64, is_exact: bool) -> bool {
    entries
        .get(number as usize)
        .is_some_and(|entry| entry.pc() == pc && entry.is_exact.load(Ordering::Relaxed) == is_exact.into())
}

fn hash(pc: u64) -> u32 {
    (pc.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
}

/// The mark that stands outside the outermost frame of a stack that did not end well. A stack that was followed to its
/// start has none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(crate) enum StopMark {
    NoUnwindInfo = 1,
    BadUnwindInfo = 2,
    UnreadableMemory = 3,
    NoProgress = 4,
    Limit = 5,
    Other = 6,
}

const _: () = assert!((StopMark::Other as u32) < FIRST_ADDRESS);

impl StopMark {
    /// The mark with this pc number, if it is one.
    pub(crate) const fn from_number(number: u32) -> Option<Self> {
        Some(match number {
            1 => Self::NoUnwindInfo,
            2 => Self::BadUnwindInfo,
            3 => Self::UnreadableMemory,
            4 => Self::NoProgress,
            5 => Self::Limit,
            6 => Self::Other,
            _ => return None,
        })
    }
}
