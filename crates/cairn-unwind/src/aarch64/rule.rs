//! The packed rule: one step of a stack walk in 29 bits.
//!
//! ```text
//!   28         16 15 14 13          2 1  0
//!   | slot: 13   | form | CFA/16: 12 | kind |
//!
//!   kind 0  CFA = sp + 16 * n      form 1  return address in x30; x29 unchanged (a leaf)
//!        1  CFA = fp + 16 * n           2  return address at CFA - 8 * slot, saved x29 in the word below (a frame record)
//!        3  special: n is its number      3  return address at CFA - 8 * slot; x29 unchanged
//! ```
//!
//! A form is never 0, so no rule is zero and a zeroed cache entry is an empty one. Unlike on x86-64
//! the rule must contain the place of the return address; in exchange the stack pointer is always a
//! multiple of 16, and x29 and x30 are saved together.

use core::fmt;

use cairn_format::AbsoluteAddress;

use super::registers::{SP, X29, X30};
use crate::cfi::{CoreRow, LinearCfa, RegisterRule};
use crate::{CoreRegisters, MemoryReader, RuleFailure};

/// One step of a stack walk, packed.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Aarch64Rule(u32);

/// An unpacked rule.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Aarch64RuleKind {
    /// A step.
    Plain {
        /// True when the CFA is counted from the frame pointer, false for the stack pointer.
        is_from_fp: bool,
        /// Bytes from there up to the CFA.
        cfa_offset: u64,
        /// Bytes from the CFA down to the return address; `None` when it is in x30.
        return_address_below: Option<u64>,
        /// True when x29 is saved in the word below the return address.
        fp_is_saved: bool,
    },
    /// There is no caller.
    EndOfStack,
    /// The row does not fit: evaluate it in full.
    NeedsFullEvaluation,
}

const KIND_MASK: u32 = 3;
const CFA_SHIFT: u32 = 2;
const CFA_BITS: u32 = 12;
const FORM_SHIFT: u32 = 14;
const SLOT_SHIFT: u32 = 16;
const SLOT_BITS: u32 = 13;

const FROM_SP: u32 = 0;
const FROM_FP: u32 = 1;
const SPECIAL: u32 = 3;

const IN_LINK_REGISTER: u32 = 1;
const FRAME_RECORD: u32 = 2;
const RETURN_ADDRESS_ONLY: u32 = 3;

const _: () = assert!(SLOT_SHIFT + SLOT_BITS == Aarch64Rule::BITS);

impl Aarch64Rule {
    /// Number of bits of a rule; those above are zero.
    pub const BITS: u32 = 29;
    /// There is no caller.
    pub const END_OF_STACK: Self = Self(SPECIAL);
    /// The row does not fit: evaluate it in full.
    pub const NEEDS_FULL_EVALUATION: Self = Self(SPECIAL | 1 << CFA_SHIFT);
    /// No table covers the code. The caller makes this rule for such addresses.
    pub const NO_TABLES: Self = Self(SPECIAL | 2 << CFA_SHIFT);

    /// The packed bits, below `1 << 29` and never zero.
    #[must_use]
    #[inline]
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// The rule with these bits, a result of [`bits`](Self::bits). Other numbers give a wrong rule,
    /// but are not unsafe.
    #[must_use]
    #[inline]
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    #[inline]
    fn plain(kind: u32, cfa_offset: i64, form: u32, slot: u32) -> Option<Self> {
        let sixteenth = u32::try_from(cfa_offset >> 4).ok()?;
        let fits = cfa_offset & 15 == 0 && sixteenth < 1 << CFA_BITS;
        fits.then_some(Self(kind | sixteenth << CFA_SHIFT | form << FORM_SHIFT | slot << SLOT_SHIFT))
    }

    /// Unpacks the rule.
    #[must_use]
    pub const fn kind(self) -> Aarch64RuleKind {
        let cfa_offset = ((self.0 >> CFA_SHIFT & ((1 << CFA_BITS) - 1)) as u64) * 16;
        let below = ((self.0 >> SLOT_SHIFT) as u64) * 8;
        let form = self.0 >> FORM_SHIFT & 3;
        match self.0 & KIND_MASK {
            kind @ (FROM_SP | FROM_FP) => Aarch64RuleKind::Plain {
                is_from_fp: kind == FROM_FP,
                cfa_offset,
                return_address_below: if form == IN_LINK_REGISTER { None } else { Some(below) },
                fp_is_saved: form == FRAME_RECORD,
            },
            SPECIAL if cfa_offset == 0 => Aarch64RuleKind::EndOfStack,
            _ => Aarch64RuleKind::NeedsFullEvaluation,
        }
    }

    /// The caller's registers. The pc may have a signature: strip it by the mask before looking it
    /// up.
    ///
    /// # Errors
    ///
    /// [`RuleFailure`] when the rule is not a step, or its memory cannot be read.
    #[inline]
    pub fn apply<M: MemoryReader>(
        self,
        registers: CoreRegisters,
        memory: &M,
    ) -> Result<CoreRegisters, RuleFailure> {
        let (is_from_fp, cfa_offset, return_address_below, fp_is_saved) = match self.kind() {
            Aarch64RuleKind::Plain { is_from_fp, cfa_offset, return_address_below, fp_is_saved } => {
                (is_from_fp, cfa_offset, return_address_below, fp_is_saved)
            }
            Aarch64RuleKind::EndOfStack => return Err(RuleFailure::EndOfStack),
            Aarch64RuleKind::NeedsFullEvaluation => return Err(RuleFailure::NeedsFullEvaluation),
        };
        let base = if is_from_fp { registers.fp } else { registers.sp };
        let cfa = base.wrapping_add(cfa_offset);
        let Some(below) = return_address_below else {
            return Ok(CoreRegisters { pc: registers.link, sp: cfa, fp: registers.fp, link: 0 });
        };
        let slot = cfa.wrapping_sub(below);
        let pc = load(memory, slot)?;
        let fp = if fp_is_saved { load(memory, slot.wrapping_sub(8))? } else { registers.fp };
        Ok(CoreRegisters { pc, sp: cfa, fp, link: 0 })
    }
}

#[inline]
fn load<M: MemoryReader>(memory: &M, address: u64) -> Result<u64, RuleFailure> {
    let address = AbsoluteAddress::new(address);
    memory.word64(address).ok_or(RuleFailure::UnreadableMemory { address })
}

/// Packs a row of the tables.
#[inline]
pub(super) fn pack(row: &CoreRow<'_>) -> Aarch64Rule {
    if row.return_address_register != X30 {
        return Aarch64Rule::NEEDS_FULL_EVALUATION;
    }
    if row.return_address == RegisterRule::Undefined {
        return Aarch64Rule::END_OF_STACK;
    }
    pack_plain(row).unwrap_or(Aarch64Rule::NEEDS_FULL_EVALUATION)
}

#[inline]
fn pack_plain(row: &CoreRow<'_>) -> Option<Aarch64Rule> {
    let LinearCfa::Register { register, offset } = row.cfa else { return None };
    if row.is_signal_frame || row.stack_pointer != RegisterRule::Unspecified {
        return None;
    }
    let kind = match register {
        SP => FROM_SP,
        X29 => FROM_FP,
        _ => return None,
    };
    let (form, slot) = match (row.return_address, row.frame_pointer) {
        (
            RegisterRule::Unspecified | RegisterRule::SameValue,
            RegisterRule::Unspecified | RegisterRule::SameValue,
        ) => (IN_LINK_REGISTER, 0),
        (RegisterRule::Offset(at), RegisterRule::Unspecified | RegisterRule::SameValue) => {
            (RETURN_ADDRESS_ONLY, slot_of(at)?)
        }
        (RegisterRule::Offset(at), RegisterRule::Offset(fp_at)) if fp_at == at.wrapping_sub(8) => {
            (FRAME_RECORD, slot_of(at)?)
        }
        _ => return None,
    };
    Aarch64Rule::plain(kind, offset, form, slot)
}

/// The distance of a slot below the CFA in words.
#[inline]
fn slot_of(offset: i32) -> Option<u32> {
    let below = u32::try_from(offset.checked_neg()?).ok()?;
    (below % 8 == 0 && below != 0 && below / 8 < 1 << SLOT_BITS).then_some(below / 8)
}

impl fmt::Debug for Aarch64Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Aarch64Rule({:?})", self.kind())
    }
}
