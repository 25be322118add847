//! Numbers every code address that was ever part of a stack, and stores the rule that steps from it
//! to its caller.
//!
//! The calling-context tree holds pc numbers in place of addresses. They take half the size, and
//! they distinguish two pieces of code that lay at the same address at different times: when a
//! module is unloaded its addresses leave the index, and code that is later loaded there gets new
//! numbers. The old numbers remain valid for the stacks that contain them.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use cairn_format::{AbsoluteAddress, Frame};
use cairn_unwind::StopReason;

use crate::stacks::arch::{self, Rule};
use crate::stacks::index::{Index, MIX};
use crate::stacks::modules::Identities;
use crate::stacks::pc_kind::{self, PcKind};
use crate::stacks::region::{Elements, Region, ZeroedAtomics};

/// Bits of a pc number; 26, so that a cache entry of 8 bytes has 38 left for its tag.
pub(crate) const NUMBER_BITS: u32 = 26;

/// One numbered address: 16 bytes, four to a cache line.
#[repr(C)]
pub(crate) struct PcEntry {
    pc: AtomicU64,
    /// Bits of the rule at the pc; 0 while the entry is being filled.
    rule: AtomicU32,
    kind: AtomicU32,
}

const _: () = assert!(size_of::<PcEntry>() == 16);

/// Flag of [`PcEntry::kind`]: a call instruction was found in front of the address.
const PROVEN: u32 = 1 << 8;

// SAFETY: the three fields are atomics, and fill the 16 bytes without padding.
unsafe impl ZeroedAtomics for PcEntry {}

/// The meaning of a numbered address in a stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Meaning {
    Frame(Frame),
    /// When it is a frame of an interpreter: the number of the code, and the offset in it.
    Interpreted(u64),
    /// When the stack ends.
    End(StopReason),
}

impl PcEntry {
    #[inline]
    pub(crate) fn pc(&self) -> u64 {
        self.pc.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn rule(&self) -> Rule {
        Rule::from_bits(self.rule.load(Ordering::Relaxed))
    }

    /// True for the reason why a stack ends.
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    pub(crate) fn is_end(&self) -> bool {
        matches!(self.meaning(), Meaning::End(_))
    }

    /// The kind, as recordings have it.
    pub(crate) fn kind(&self) -> PcKind {
        pc_kind::from_bits(self.kind.load(Ordering::Relaxed) & !PROVEN)
    }

    /// The frame, or the reason why the stack ends here.
    pub(crate) fn meaning(&self) -> Meaning {
        let address = AbsoluteAddress::new(self.pc());
        Meaning::End(match self.kind() {
            PcKind::ReturnAddress | PcKind::ReturnWithoutTables => {
                return Meaning::Frame(Frame::ReturnAddress(address));
            }
            PcKind::ProgramCounter => return Meaning::Frame(Frame::ProgramCounter(address)),
            PcKind::Interpreted => return Meaning::Interpreted(self.pc()),
            PcKind::NoUnwindInfo => StopReason::NoUnwindInfo { pc: address },
            PcKind::BadUnwindInfo => StopReason::BadUnwindInfo { pc: address },
            PcKind::UnreadableMemory => StopReason::UnreadableMemory { address },
            PcKind::NoProgress => StopReason::NoProgress { pc: address },
            PcKind::OutsideStack => StopReason::OutsideStack { address },
            PcKind::UnknownRegister => StopReason::UnknownRegister { register: address.value() as u16 },
            _ => StopReason::Limit,
        })
    }
}

/// Distances of the two regions below other mappings. They keep them apart from each other, from
/// the tree, and from a recorder's memory.
const ENTRIES_DISTANCE: usize = 80 << 30;
const IDENTITIES_DISTANCE: usize = 72 << 30;

/// The numbered addresses of a process.
pub(crate) struct Pcs {
    entries: Region<PcEntry>,
    /// The identity of each entry's module, apart from the entries because it is rarely read.
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

    /// Limits the address space that the entries take; see [`crate::take_less_room`].
    pub(crate) fn shrink(&self, most_bytes: usize) {
        // One identity for each entry; the smaller of the two regions decides.
        self.entries.shrink(most_bytes);
        self.identities.shrink(most_bytes);
    }

    /// The number of tables of the index; see [`Index::tables`].
    pub(crate) fn tables(&self) -> usize {
        self.index.tables()
    }

    /// The number of an address that was seen before.
    #[inline]
    pub(crate) fn number(&self, pc: u64, kind: PcKind) -> Option<u32> {
        let entries = self.entries();
        self.index.find(hash(pc), |number| is_entry(entries, number, pc, kind))
    }

    /// Numbers an address of the module with this identity. `None` when there is no memory left.
    ///
    /// `searched` is the number of index tables that were searched for the address; see
    /// [`Index::insert`].
    pub(crate) fn add(
        &self,
        pc: u64,
        kind: PcKind,
        rule: Rule,
        identity: u32,
        searched: usize,
    ) -> Option<u32> {
        let number = self.add_unindexed(pc, kind, rule, identity)?;
        let entries = self.entries();
        // Publishing in the index is a release store.
        self.index.insert(hash(pc), number, searched, |other| is_entry(entries, other, pc, kind)).ok()
    }

    /// Numbers an address without adding it to the index.
    fn add_unindexed(&self, pc: u64, kind: PcKind, rule: Rule, identity: u32) -> Option<u32> {
        let number = u32::try_from(self.entries.take(1)?).ok().filter(|number| number >> NUMBER_BITS == 0)?;
        // Under a limit of the address space there may be fewer identities than entries; a missing
        // one reads as 0, which is never trusted.
        if let Some(place) = self.identities.reach(number as usize) {
            place.store(identity, Ordering::Relaxed);
        }
        let entry = self.entries().get(number as usize)?;
        entry.pc.store(pc, Ordering::Relaxed);
        entry.rule.store(rule.bits(), Ordering::Relaxed);
        let has_tables = kind != PcKind::ReturnAddress || arch::has_tables(rule);
        let kind = if has_tables { kind } else { PcKind::ReturnWithoutTables };
        entry.kind.store(kind.number(), Ordering::Relaxed);
        Some(number)
    }

    /// The identity of the module that a numbered address belongs to; see
    /// [`identity_at`](crate::stacks::modules::identity_at).
    pub(crate) fn identity(&self, number: u32) -> u32 {
        let place = self.identities.elements().get(number as usize);
        place.map_or(0, |identity| identity.load(Ordering::Relaxed))
    }

    /// True when a call instruction was found in front of this return address.
    pub(crate) fn is_proven(&self, pc: u64) -> bool {
        let number = self.number(pc, PcKind::ReturnAddress);
        let entry = number.and_then(|number| self.entries().get(number as usize));
        entry.is_some_and(|entry| entry.kind.load(Ordering::Relaxed) & PROVEN != 0)
    }

    /// Notes that a call instruction is in front of a numbered return address.
    pub(crate) fn set_proven(&self, number: u32) {
        if let Some(entry) = self.entries().get(number as usize) {
            entry.kind.fetch_or(PROVEN, Ordering::Relaxed);
        }
    }

    /// Numbers an address while a module is being unloaded. A number from the index is used only if
    /// its module still has this identity.
    pub(crate) fn number_during_unload(
        &self,
        pc: u64,
        kind: PcKind,
        rule: impl FnOnce() -> Rule,
        identity: u32,
    ) -> Option<u32> {
        let known = self.number(pc, kind).filter(|number| self.identity(*number) == identity);
        known.or_else(|| self.add_unindexed(pc, kind, rule(), identity))
    }

    /// Removes the addresses from the index whose module was unloaded or replaced. Code that is
    /// later loaded there gets new numbers.
    pub(crate) fn forget_unloaded(&self) {
        let entries = self.entries();
        let identities = self.identities.elements();
        let mut now = Identities::new();
        self.index.remove_all(|number| {
            let number = number as usize;
            let (Some(entry), Some(identity)) = (entries.get(number), identities.get(number)) else {
                return true;
            };
            now.identity_at(entry.pc(), entry.kind()) != identity.load(Ordering::Relaxed)
        });
    }

    /// Removes the addresses of a module that is about to be unmapped.
    #[cfg(windows)]
    pub(crate) fn forget_within(&self, start: u64, end: u64) {
        let entries = self.entries();
        self.index.remove_all(|number| {
            let address = entries
                .get(number as usize)
                .and_then(|entry| pc_kind::code_address(entry.kind(), entry.pc()));
            address.is_none_or(|address| (start..end).contains(&address.value()))
        });
    }

    /// Unmaps everything. No address has a number then.
    ///
    /// # Safety
    ///
    /// - No other thread uses the addresses meanwhile, and no reference to an entry is used
    ///   afterwards.
    pub(crate) unsafe fn release(&self) {
        // SAFETY: the caller promises that nothing uses the index, the entries or the identities.
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
    entry.is_some_and(|entry| entry.pc() == pc && same_role(entry.kind(), kind))
}

/// True for two kinds that exclude each other.
///
/// A return address is without tables by its rule, and not by the stack that it is in.
fn same_role(one: PcKind, other: PcKind) -> bool {
    let role = |kind| if kind == PcKind::ReturnWithoutTables { PcKind::ReturnAddress } else { kind };
    role(one) == role(other)
}

fn hash(pc: u64) -> u32 {
    (pc.wrapping_mul(MIX) >> 32) as u32
}
