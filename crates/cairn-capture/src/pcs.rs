//! Every code address that was ever part of a stack, numbered, with the rule that steps from it to its caller.
//!
//! A pc number is what the calling-context tree holds in place of an address: half the size, and it tells apart two
//! pieces of code that lay at the same address at different times. When a module goes away its addresses leave the
//! index, and whatever comes to lie there gets new numbers; the old ones stay, for the stacks that have them.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use cairn_format::{AbsoluteAddress, Frame};
use cairn_unwind::StopReason;

use crate::arch::Rule;
use crate::index::{Index, MIX};
use crate::modules::{self, Identities};
use crate::region::{Elements, Region, ZeroedAtomics};

/// Pc numbers fit 26 bits, so that a cache entry of 8 bytes has 38 left for its tag.
pub(crate) const NUMBER_BITS: u32 = 26;

/// What a numbered address is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(crate) enum PcKind {
    ReturnAddress = 0,
    ProgramCounter = 1,
    /// Stands outside the outermost frame of a stack that could not be followed to its start, and says why. The address
    /// is the one in the reason.
    NoUnwindInfo = 2,
    BadUnwindInfo = 3,
    UnreadableMemory = 4,
    NoProgress = 5,
    OutsideStack = 6,
    UnknownRegister = 7,
    Limit = 8,
}

impl PcKind {
    fn from_bits(bits: u32) -> Self {
        match bits {
            0 => Self::ReturnAddress,
            1 => Self::ProgramCounter,
            2 => Self::NoUnwindInfo,
            3 => Self::BadUnwindInfo,
            4 => Self::UnreadableMemory,
            5 => Self::NoProgress,
            6 => Self::OutsideStack,
            7 => Self::UnknownRegister,
            _ => Self::Limit,
        }
    }

    /// The kind and address that stand for a reason; `None` for the good end.
    pub(crate) fn of_stop(reason: StopReason) -> Option<(Self, u64)> {
        Some(match reason {
            StopReason::EndOfStack => return None,
            StopReason::NoUnwindInfo { pc } => (Self::NoUnwindInfo, pc.value()),
            StopReason::BadUnwindInfo { pc } => (Self::BadUnwindInfo, pc.value()),
            StopReason::UnreadableMemory { address } => (Self::UnreadableMemory, address.value()),
            StopReason::NoProgress { pc } => (Self::NoProgress, pc.value()),
            StopReason::OutsideStack { address } => (Self::OutsideStack, address.value()),
            StopReason::UnknownRegister { register } => (Self::UnknownRegister, register.into()),
            _ => (Self::Limit, 0),
        })
    }
}

/// One numbered address: 16 bytes, four to a cache line.
#[repr(C)]
pub(crate) struct PcEntry {
    pc: AtomicU64,
    /// Bits of the rule at the pc; 0 while the entry is being filled.
    rule: AtomicU32,
    kind: AtomicU32,
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

    /// What it is: a frame, or the reason why the stack ends here.
    pub(crate) fn meaning(&self) -> Result<Frame, StopReason> {
        let address = AbsoluteAddress::new(self.pc());
        Err(match PcKind::from_bits(self.kind.load(Ordering::Relaxed)) {
            PcKind::ReturnAddress => return Ok(Frame::ReturnAddress(address)),
            PcKind::ProgramCounter => return Ok(Frame::ProgramCounter(address)),
            PcKind::NoUnwindInfo => StopReason::NoUnwindInfo { pc: address },
            PcKind::BadUnwindInfo => StopReason::BadUnwindInfo { pc: address },
            PcKind::UnreadableMemory => StopReason::UnreadableMemory { address },
            PcKind::NoProgress => StopReason::NoProgress { pc: address },
            PcKind::OutsideStack => StopReason::OutsideStack { address },
            PcKind::UnknownRegister => StopReason::UnknownRegister { register: address.value() as u16 },
            PcKind::Limit => StopReason::Limit,
        })
    }
}

/// Where the two lie, below other mappings: apart from each other, from the tree and from what a recorder has.
const ENTRIES_DISTANCE: usize = 80 << 30;
const IDENTITIES_DISTANCE: usize = 72 << 30;

/// See the module documentation.
pub(crate) struct Pcs {
    entries: Region<PcEntry>,
    /// Of each entry the identity of its module, apart from the entries because it is hardly ever read.
    identities: Region<AtomicU32>,
    index: Index,
}

impl Pcs {
    pub(crate) const fn new() -> Self {
        // A gigabyte of code has some ten million call sites.
        let limits = &[1 << 24, 1 << 20, 1 << 16];
        Self {
            entries: Region::new(limits, ENTRIES_DISTANCE),
            identities: Region::new(limits, IDENTITIES_DISTANCE),
            index: Index::new(),
        }
    }

    /// All entries, for many look-ups in a row.
    #[inline]
    pub(crate) fn entries(&self) -> Elements<'_, PcEntry> {
        self.entries.elements()
    }

    /// See [`crate::take_less_room`].
    pub(crate) fn shrink(&self, most_bytes: usize) {
        // One identity for each entry; the smaller of the two regions decides.
        self.entries.shrink(most_bytes);
        self.identities.shrink(most_bytes);
    }

    /// See [`Index::tables`].
    pub(crate) fn tables(&self) -> usize {
        self.index.tables()
    }

    /// The number of an address that was seen before.
    #[inline]
    pub(crate) fn number(&self, pc: u64, kind: PcKind) -> Option<u32> {
        let entries = self.entries();
        self.index.find(hash(pc), |number| is_entry(entries, number, pc, kind))
    }

    /// Numbers an address. `None` when there is no memory left.
    pub(crate) fn add(&self, pc: u64, kind: PcKind, rule: Rule) -> Option<u32> {
        self.add_of_module(pc, kind, rule, modules::identity_at(pc, kind), 0)
    }

    /// As [`add`](Self::add), of the module with this identity; `searched` as [`Index::insert`] takes it.
    pub(crate) fn add_of_module(
        &self,
        pc: u64,
        kind: PcKind,
        rule: Rule,
        identity: u32,
        searched: usize,
    ) -> Option<u32> {
        let number = self.add_passing(pc, kind, rule, identity)?;
        let entries = self.entries();
        // Publishing in the index is a release store.
        self.index.insert(hash(pc), number, searched, |other| is_entry(entries, other, pc, kind)).ok()
    }

    /// Numbers an address for this once: the index does not learn it.
    fn add_passing(&self, pc: u64, kind: PcKind, rule: Rule, identity: u32) -> Option<u32> {
        let number = u32::try_from(self.entries.take(1)?).ok().filter(|number| number >> NUMBER_BITS == 0)?;
        // One identity for each entry; under a limit of the address space there may be fewer, and 0 is never trusted.
        if let Some(place) = self.identities.reach(number as usize) {
            place.store(identity, Ordering::Relaxed);
        }
        let entry = self.entries().get(number as usize)?;
        entry.pc.store(pc, Ordering::Relaxed);
        entry.rule.store(rule.bits(), Ordering::Relaxed);
        entry.kind.store(kind as u32, Ordering::Relaxed);
        Some(number)
    }

    /// The identity of the module that a numbered address belongs to; see [`modules::identity_at`].
    pub(crate) fn identity(&self, number: u32) -> u32 {
        let place = self.identities.elements().get(number as usize);
        place.map_or(0, |identity| identity.load(Ordering::Relaxed))
    }

    /// Numbers an address while a module is being unloaded: what the index has is believed only if the address is still
    /// of the module that it was of.
    pub(crate) fn number_amid_unload(
        &self,
        pc: u64,
        kind: PcKind,
        rule: impl FnOnce() -> Rule,
    ) -> Option<u32> {
        let identity = modules::identity_at(pc, kind);
        let known = self.number(pc, kind).filter(|number| self.identity(*number) == identity);
        known.or_else(|| self.add_passing(pc, kind, rule(), identity))
    }

    /// Takes the addresses out of the index whose module is gone, or is another one than when they were numbered: whatever
    /// comes to lie there gets new numbers.
    pub(crate) fn forget_unloaded(&self) {
        let entries = self.entries();
        let identities = self.identities.elements();
        let mut now = Identities::new();
        self.index.remove_all(|number| {
            let number = number as usize;
            let (Some(entry), Some(identity)) = (entries.get(number), identities.get(number)) else {
                return true;
            };
            let kind = PcKind::from_bits(entry.kind.load(Ordering::Relaxed));
            now.identity_at(entry.pc(), kind) != identity.load(Ordering::Relaxed)
        });
    }

    /// Unmaps everything. No address has a number then.
    ///
    /// # Safety
    ///
    /// As [`Region::release`].
    pub(crate) unsafe fn release(&self) {
        // SAFETY: by contract.
        unsafe {
            self.index.release();
            self.identities.release();
            self.entries.release();
        }
    }

    /// Bytes of memory in use.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.entries.used() * (size_of::<PcEntry>() + size_of::<AtomicU32>()) + self.index.memory_bytes()
    }
}

fn is_entry(entries: Elements<'_, PcEntry>, number: u32, pc: u64, kind: PcKind) -> bool {
    let entry = entries.get(number as usize);
    entry.is_some_and(|entry| entry.pc() == pc && entry.kind.load(Ordering::Relaxed) == kind as u32)
}

fn hash(pc: u64) -> u32 {
    (pc.wrapping_mul(MIX) >> 32) as u32
}
