//! The packed rule: one step of a stack walk in 32 bits.
//!
//! ```text
//!   31       22 21  20 19          2 1  0
//!   | slot: 10 | form | CFA/16: 18  | kind |
//!
//!   kind 0  CFA = sp + 16 * n, return address at CFA - 8 * slot
//!        1  CFA = fp + 16 * n, return address at fp + 8 * slot
//!        2  CFA = sp + 16 * n, return address at sp + 8 * slot
//!        3  special: n is its number
//!   form 1  return address in x30, slot 0; x29 unchanged (a leaf)
//!        2  saved x29 in the word below the return address (a frame record)
//!        3  x29 unchanged
//! ```
//!
//! Frames of up to 4 MiB fit, so that a large local array in an outer function does not exclude all
//! stacks above it from the fast path. Clang stores the frame record next to the CFA, GCC next to
//! the stack pointer, and a frame pointer leads to the record; so 8 KiB are enough for its
//! distance. From the CFA down it is at most 512 KiB.
//!
//! A form is 0 only for special rules, so no rule is zero and a zeroed cache entry is an empty one.
//! Unlike on x86-64 the rule must contain the place of the return address; in exchange the stack
//! pointer is always a multiple of 16, and x29 and x30 are saved together.

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
const CFA_BITS: u32 = 18;
const FORM_SHIFT: u32 = 20;
const SLOT_SHIFT: u32 = 22;
const SLOT_BITS: u32 = 10;
/// Bits of the distance in words from the CFA down to the return address.
///
/// 16, because a list of frames stores it above an address of 48 bits.
const BELOW_BITS: u32 = 16;

const FROM_SP: u32 = 0;
const FROM_FP: u32 = 1;
const SLOT_FROM_SP: u32 = 2;
const SPECIAL: u32 = 3;

const IN_LINK_REGISTER: u32 = 1;
const FRAME_RECORD: u32 = 2;
const RETURN_ADDRESS_ONLY: u32 = 3;
/// The bit that the two forms with a return address on the stack have, and no other rule has.
const ON_STACK: u32 = 2 << FORM_SHIFT;
const _: () = assert!(FRAME_RECORD & RETURN_ADDRESS_ONLY == 2 && IN_LINK_REGISTER & 2 == 0);

const _: () = assert!(SLOT_SHIFT + SLOT_BITS == Aarch64Rule::BITS);

impl Aarch64Rule {
    /// Number of bits of a rule.
    pub const BITS: u32 = u32::BITS;
    /// There is no caller.
    pub const END_OF_STACK: Self = Self(SPECIAL);
    /// The row does not fit: evaluate it in full.
    pub const NEEDS_FULL_EVALUATION: Self = Self(SPECIAL | 1 << CFA_SHIFT);
    /// No table covers the code. The caller makes this rule for such addresses.
    pub const NO_TABLES: Self = Self(SPECIAL | 2 << CFA_SHIFT);

    /// The packed bits, never zero.
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

    /// True for a step whose return address is on the stack, which a hot loop handles inline.
    #[must_use]
    #[inline]
    pub const fn is_plain(self) -> bool {
        self.0 & ON_STACK != 0
    }

    /// True when the CFA is counted from the frame pointer; only meaningful for the plain rules.
    #[must_use]
    #[inline]
    pub const fn is_from_fp(self) -> bool {
        self.0 & FROM_FP != 0
    }

    /// True when the step reads the frame pointer, or is not a plain one.
    #[must_use]
    #[inline]
    pub const fn depends_on_fp(self) -> bool {
        self.is_from_fp() || !self.is_plain()
    }

    /// Bytes from the base register to the CFA; only meaningful for the plain rules.
    #[must_use]
    #[inline]
    pub const fn cfa_offset(self) -> u64 {
        ((self.0 >> CFA_SHIFT & ((1 << CFA_BITS) - 1)) as u64) * 16
    }

    /// Bytes from the CFA down to the return address; only meaningful for the plain rules. At least
    /// 8 and less than 512 KiB.
    #[must_use]
    #[inline]
    pub const fn return_address_below_cfa(self) -> u64 {
        let slot = ((self.0 >> SLOT_SHIFT) as u64) * 8;
        if self.0 & KIND_MASK == FROM_SP { slot } else { self.cfa_offset().wrapping_sub(slot) }
    }

    /// Bytes from the CFA down to the saved frame pointer, zero when it is not saved.
    ///
    /// Only meaningful for the plain rules.
    #[must_use]
    #[inline]
    pub const fn slot_below_cfa(self) -> u64 {
        let is_frame_record = self.0 >> FORM_SHIFT & 3 == FRAME_RECORD;
        if is_frame_record { self.return_address_below_cfa() + 8 } else { 0 }
    }

    /// The rule whose return address is `below` bytes below the CFA, if it is on the stack.
    #[inline]
    fn plain(kind: u32, cfa_offset: i64, form: u32, below: Option<i64>) -> Option<Self> {
        let sixteenth = u32::try_from(cfa_offset >> 4).ok()?;
        if cfa_offset & 15 != 0 || sixteenth >= 1 << CFA_BITS {
            return None;
        }
        let (kind, slot) = match below {
            None => (kind, 0),
            Some(below) => {
                words(below, BELOW_BITS).filter(|&words| words != 0)?;
                match words(below, SLOT_BITS) {
                    Some(slot) if kind == FROM_SP => (kind, slot),
                    _ => {
                        let slot = words(cfa_offset.checked_sub(below)?, SLOT_BITS)?;
                        (if kind == FROM_SP { SLOT_FROM_SP } else { kind }, slot)
                    }
                }
            }
        };
        Some(Self(kind | sixteenth << CFA_SHIFT | form << FORM_SHIFT | slot << SLOT_SHIFT))
    }

    /// Unpacks the rule.
    #[must_use]
    pub const fn kind(self) -> Aarch64RuleKind {
        let (cfa_offset, below) = (self.cfa_offset(), self.return_address_below_cfa());
        let form = self.0 >> FORM_SHIFT & 3;
        match self.0 & KIND_MASK {
            kind @ (FROM_SP | FROM_FP | SLOT_FROM_SP) => Aarch64RuleKind::Plain {
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
    let (form, below) = match (row.return_address, row.frame_pointer) {
        (
            RegisterRule::Unspecified | RegisterRule::SameValue,
            RegisterRule::Unspecified | RegisterRule::SameValue,
        ) => (IN_LINK_REGISTER, None),
        (RegisterRule::Offset(at), RegisterRule::Unspecified | RegisterRule::SameValue) => {
            (RETURN_ADDRESS_ONLY, Some(-i64::from(at)))
        }
        (RegisterRule::Offset(at), RegisterRule::Offset(fp_at)) if fp_at == at.wrapping_sub(8) => {
            (FRAME_RECORD, Some(-i64::from(at)))
        }
        _ => return None,
    };
    Aarch64Rule::plain(kind, offset, form, below)
}

/// A distance in bytes as a number of words, if it has at most that many bits.
#[inline]
fn words(bytes: i64, bits: u32) -> Option<u32> {
    let words = u32::try_from(bytes >> 3).ok()?;
    (bytes & 7 == 0 && words < 1 << bits).then_some(words)
}

impl fmt::Debug for Aarch64Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Aarch64Rule({:?})", self.kind())
    }
}
