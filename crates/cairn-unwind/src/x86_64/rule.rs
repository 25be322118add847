//! The packed rule: one step of a stack walk in 32 bits.
//!
//! ```text
//!   31            22 21             2 1  0
//!   | fp slot: 10   | CFA / 8: 20    | kind |
//!
//!   kind 0   CFA = sp + 8 * n             return address at CFA - 8
//!        1   CFA = fp + 8 * n             saved fp at CFA - 8 * slot, or unchanged when slot is 0
//!        2   CFA = word at (fp - 8 * n)   return address at CFA - 8; saved fp at (fp), or unchanged when slot is 0
//!            slots 2 to 9: CFA = sp + 8 * n (even slots) or fp + 8 * n (odd ones); saved fp at CFA + 8 * (slot / 2 - 1)
//!        3   special: n is its number
//! ```
//!
//! Frames of up to 8 MiB, the default stack of a main thread, fit: a large local array in an outer
//! function must not exclude all stacks above it from the fast path. Compilers save the frame
//! pointer next to the CFA, so 8 KiB are enough for its distance. The few other functions are
//! evaluated in full. Kind 2 is what GCC emits for functions that realign their stack. Its further
//! slots are for Windows, where a caller leaves room for four words above the return address, and
//! Microsoft's compiler saves registers there.
//!
//! No rule is zero (a CFA lies at least one word above the stack pointer), so a zeroed cache entry
//! is an empty one.

use core::fmt;

use cairn_format::AbsoluteAddress;

use super::registers::{RBP, RIP, RSP};
use super::step::X86_64;
use crate::cfi::{CoreRow, LinearCfa, RegisterRule};
use crate::{CoreRegisters, MemoryReader, RuleFailure};

/// One step of a stack walk, packed.
///
/// ```
/// use cairn_format::AbsoluteAddress;
/// use cairn_unwind::{CoreRegisters, SliceMemory, x86_64::X86_64Rule};
///
/// let words: [u64; 3] = [0, 0x7000, 0x401234];
/// let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
/// let memory = SliceMemory::new(AbsoluteAddress::new(0x1000), &bytes);
///
/// let rule = X86_64Rule::from_sp(24, Some(16)).unwrap();
/// let caller = rule.apply(CoreRegisters { sp: 0x1000, ..CoreRegisters::default() }, &memory).unwrap();
/// assert_eq!((caller.pc, caller.sp, caller.fp), (0x401234, 0x1018, 0x7000));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct X86_64Rule(u32);

/// An unpacked rule.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum X86_64RuleKind {
    /// The CFA is the stack pointer plus an offset.
    FromSp {
        /// Bytes from the stack pointer up to the CFA.
        cfa_offset: u64,
        /// Bytes from the CFA down to the saved frame pointer; `None` when the register still holds
        /// it.
        saved_fp_below: Option<u64>,
    },
    /// The CFA is the frame pointer plus an offset.
    FromFp {
        /// Bytes from the frame pointer up to the CFA.
        cfa_offset: u64,
        /// Bytes from the CFA down to the saved frame pointer; `None` when the register still holds
        /// it.
        saved_fp_below: Option<u64>,
    },
    /// The CFA is stored in the frame, because the function has realigned its stack.
    Realigned {
        /// Bytes from the frame pointer down to the slot that holds the CFA.
        slot_below_fp: u64,
        /// True when the frame pointer points at its saved value; false when the register still
        /// holds it.
        fp_is_saved: bool,
    },
    /// The frame pointer is saved above the CFA, in the room that callers leave on Windows.
    SavedAbove {
        /// True when the CFA is counted from the frame pointer; false for the stack pointer.
        is_from_fp: bool,
        /// Bytes from that register up to the CFA.
        cfa_offset: u64,
        /// Bytes from the CFA up to the saved frame pointer.
        saved_fp_above: u64,
    },
    /// A signal frame of Linux: all registers are in the context above the stack pointer.
    SignalFrame,
    /// There is no caller.
    EndOfStack,
    /// The row does not fit: evaluate it in full.
    NeedsFullEvaluation,
    /// No table covers the code: try the frame pointer.
    NoTables,
    /// No table covers the code, and its bytes had a known shape: read them again.
    ByCode,
    /// No table covers the code, and a runtime may have made it: try that runtime's step.
    ByRuntime,
}

const KIND_BITS: u32 = 2;
const CFA_BITS: u32 = 20;
const SLOT_BITS: u32 = 10;
const CFA_MASK: u32 = (1 << CFA_BITS) - 1;
const SLOT_SHIFT: u32 = KIND_BITS + CFA_BITS;

const FROM_SP: u32 = 0;
const FROM_FP: u32 = 1;
const REALIGNED: u32 = 2;
const SPECIAL: u32 = 3;

/// The first slot of kind 2 that means a place above the CFA.
const FIRST_ABOVE: u32 = 2;
/// Words above the return address that a caller on Windows leaves to its callee.
const WORDS_ABOVE: u32 = 4;

const END_OF_STACK: u32 = 0;
const NEEDS_FULL_EVALUATION: u32 = 1;
const SIGNAL_FRAME: u32 = 2;
const NO_TABLES: u32 = 3;
const BY_CODE: u32 = 4;
const BY_RUNTIME: u32 = 5;

/// Distance of the interrupted registers from the stack pointer in Linux's signal trampoline. It is
/// that of the `gregs`, which start at byte 40 of a `struct ucontext`.
const CONTEXT_RBP: i64 = 120;
const CONTEXT_RSP: i64 = 160;
const CONTEXT_RIP: i64 = 168;

const _: () = assert!(SLOT_SHIFT + SLOT_BITS == X86_64Rule::BITS);

impl X86_64Rule {
    /// Number of bits of a rule.
    pub const BITS: u32 = u32::BITS;
    /// There is no caller.
    pub const END_OF_STACK: Self = Self::special(END_OF_STACK);
    /// The row does not fit: evaluate it in full.
    pub const NEEDS_FULL_EVALUATION: Self = Self::special(NEEDS_FULL_EVALUATION);
    /// A signal frame of Linux.
    pub const SIGNAL_FRAME: Self = Self::special(SIGNAL_FRAME);
    /// No table covers the code. The caller makes this rule for such addresses.
    pub const NO_TABLES: Self = Self::special(NO_TABLES);
    /// No table covers the code, and its bytes had a known shape. The caller makes this rule for
    /// such addresses.
    pub const BY_CODE: Self = Self::special(BY_CODE);
    /// No table covers the code, and a runtime may have made it. The caller makes this rule for
    /// such addresses.
    pub const BY_RUNTIME: Self = Self::special(BY_RUNTIME);

    const fn special(code: u32) -> Self {
        Self(SPECIAL | code << KIND_BITS)
    }

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

    /// The rule "CFA = sp + `cfa_offset`", or `None` when it does not fit.
    #[must_use]
    pub const fn from_sp(cfa_offset: i64, saved_fp_below: Option<i64>) -> Option<Self> {
        match Self::pack(FROM_SP, cfa_offset, saved_fp_below) {
            Some(Self(0)) | None => None,
            rule => rule,
        }
    }

    /// The rule "CFA = fp + `cfa_offset`", or `None` when it does not fit.
    #[must_use]
    pub fn from_fp(cfa_offset: i64, saved_fp_below: Option<i64>) -> Option<Self> {
        Self::pack(FROM_FP, cfa_offset, saved_fp_below)
    }

    /// The rule "CFA = word at fp - `slot_below_fp`", or `None` when it does not fit.
    #[must_use]
    pub fn realigned(slot_below_fp: i64, fp_is_saved: bool) -> Option<Self> {
        Self::pack(REALIGNED, slot_below_fp, fp_is_saved.then_some(8))
    }

    /// The rule "CFA = base + `cfa_offset`, saved fp at CFA + `saved_fp_above`".
    ///
    /// The base is sp or fp. `None` when the rule does not fit.
    #[must_use]
    pub fn saved_above(is_from_fp: bool, cfa_offset: i64, saved_fp_above: i64) -> Option<Self> {
        let cfa = by_8(cfa_offset, CFA_BITS)?;
        let word = by_8(saved_fp_above, SLOT_BITS).filter(|&word| word < WORDS_ABOVE)?;
        let slot = FIRST_ABOVE + 2 * word + u32::from(is_from_fp);
        Some(Self(REALIGNED | cfa << KIND_BITS | slot << SLOT_SHIFT))
    }

    #[inline]
    const fn pack(kind: u32, cfa_offset: i64, saved_fp_below: Option<i64>) -> Option<Self> {
        let Some(cfa) = by_8(cfa_offset, CFA_BITS) else { return None };
        let slot = match saved_fp_below {
            None => 0,
            Some(below) => match by_8(below, SLOT_BITS) {
                None | Some(0) => return None,
                Some(slot) => slot,
            },
        };
        Some(Self(kind | cfa << KIND_BITS | slot << SLOT_SHIFT))
    }

    /// Unpacks the rule.
    #[must_use]
    pub const fn kind(self) -> X86_64RuleKind {
        let cfa_offset = self.cfa_offset();
        let slot = self.slot_below_cfa();
        let saved_fp_below = if slot == 0 { None } else { Some(slot) };
        match self.0 & SPECIAL {
            FROM_SP => X86_64RuleKind::FromSp { cfa_offset, saved_fp_below },
            FROM_FP => X86_64RuleKind::FromFp { cfa_offset, saved_fp_below },
            REALIGNED if self.0 >> SLOT_SHIFT >= FIRST_ABOVE => X86_64RuleKind::SavedAbove {
                is_from_fp: self.0 >> SLOT_SHIFT & 1 != 0,
                cfa_offset,
                saved_fp_above: (slot - 8 * FIRST_ABOVE as u64) / 16 * 8,
            },
            REALIGNED => X86_64RuleKind::Realigned { slot_below_fp: cfa_offset, fp_is_saved: slot != 0 },
            _ => match cfa_offset / 8 {
                0 => X86_64RuleKind::EndOfStack,
                2 => X86_64RuleKind::SignalFrame,
                3 => X86_64RuleKind::NoTables,
                4 => X86_64RuleKind::ByCode,
                5 => X86_64RuleKind::ByRuntime,
                _ => X86_64RuleKind::NeedsFullEvaluation,
            },
        }
    }

    /// True for the two plain kinds, which a hot loop handles inline.
    #[must_use]
    #[inline]
    pub const fn is_plain(self) -> bool {
        self.0 & REALIGNED == 0
    }

    /// True when the CFA is counted from the frame pointer; only meaningful for the plain kinds.
    #[must_use]
    #[inline]
    pub const fn is_from_fp(self) -> bool {
        self.0 & FROM_FP != 0
    }

    /// True when the step reads the frame pointer, or is of another than the plain kinds.
    #[must_use]
    #[inline]
    pub const fn depends_on_fp(self) -> bool {
        self.0 & (REALIGNED | FROM_FP) != 0
    }

    /// Bytes from the base register to the CFA; only meaningful for the plain kinds.
    #[must_use]
    #[inline]
    pub const fn cfa_offset(self) -> u64 {
        ((self.0 >> KIND_BITS & CFA_MASK) as u64) * 8
    }

    /// Returns the bytes from the CFA down to the saved frame pointer, zero when it is not saved.
    /// They are only meaningful for the plain kinds.
    #[must_use]
    #[inline]
    pub const fn slot_below_cfa(self) -> u64 {
        ((self.0 >> SLOT_SHIFT) as u64) * 8
    }

    /// The caller's registers.
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
        if !self.is_plain() {
            return self.apply_special(registers, memory);
        }
        let base = if self.is_from_fp() { registers.fp } else { registers.sp };
        let cfa = base.wrapping_add(self.cfa_offset());
        let pc = load(memory, cfa.wrapping_sub(8))?;
        let fp = match self.slot_below_cfa() {
            0 => registers.fp,
            below => load(memory, cfa.wrapping_sub(below))?,
        };
        Ok(CoreRegisters { pc, sp: cfa, fp, link: 0 })
    }

    #[cold]
    fn apply_special<M: MemoryReader>(
        self,
        registers: CoreRegisters,
        memory: &M,
    ) -> Result<CoreRegisters, RuleFailure> {
        match self.kind() {
            X86_64RuleKind::Realigned { slot_below_fp, fp_is_saved } => {
                let cfa = load(memory, registers.fp.wrapping_sub(slot_below_fp))?;
                let pc = load(memory, cfa.wrapping_sub(8))?;
                let fp = if fp_is_saved { load(memory, registers.fp)? } else { registers.fp };
                Ok(CoreRegisters { pc, sp: cfa, fp, link: 0 })
            }
            X86_64RuleKind::SavedAbove { is_from_fp, cfa_offset, saved_fp_above } => {
                let base = if is_from_fp { registers.fp } else { registers.sp };
                let cfa = base.wrapping_add(cfa_offset);
                let pc = load(memory, cfa.wrapping_sub(8))?;
                let fp = load(memory, cfa.wrapping_add(saved_fp_above))?;
                Ok(CoreRegisters { pc, sp: cfa, fp, link: 0 })
            }
            X86_64RuleKind::SignalFrame => {
                let field = |offset: i64| load(memory, registers.sp.wrapping_add_signed(offset));
                let (pc, sp, fp) = (field(CONTEXT_RIP)?, field(CONTEXT_RSP)?, field(CONTEXT_RBP)?);
                Ok(CoreRegisters { pc, sp, fp, link: 0 })
            }
            X86_64RuleKind::EndOfStack => Err(RuleFailure::EndOfStack),
            _ => Err(RuleFailure::NeedsFullEvaluation),
        }
    }
}

#[inline]
fn load<M: MemoryReader>(memory: &M, address: u64) -> Result<u64, RuleFailure> {
    let address = AbsoluteAddress::new(address);
    memory.word64(address).ok_or(RuleFailure::UnreadableMemory { address })
}

/// A non-negative multiple of 8 that fits `bits` bits when divided.
#[inline]
const fn by_8(offset: i64, bits: u32) -> Option<u32> {
    let eighth = offset >> 3;
    if offset & 7 == 0 && 0 <= eighth && eighth < 1 << bits { Some(eighth as u32) } else { None }
}

/// Packs a row of the tables.
#[inline]
pub(super) fn pack(row: &CoreRow<'_>) -> X86_64Rule {
    if row.return_address_register != RIP {
        return X86_64Rule::NEEDS_FULL_EVALUATION;
    }
    if row.return_address == RegisterRule::Undefined {
        return X86_64Rule::END_OF_STACK;
    }
    if !row.is_signal_frame
        && let LinearCfa::Register { register, offset } = row.cfa
        && row.return_address == RegisterRule::Offset(-8)
        && row.stack_pointer == RegisterRule::Unspecified
    {
        let saved_fp_below = match row.frame_pointer {
            RegisterRule::Unspecified | RegisterRule::SameValue => None,
            RegisterRule::Offset(above @ 0..) if matches!(register, RSP | RBP) => {
                let rule = X86_64Rule::saved_above(register == RBP, offset, above.into());
                return rule.unwrap_or(X86_64Rule::NEEDS_FULL_EVALUATION);
            }
            RegisterRule::Offset(offset) => Some(-i64::from(offset)),
            _ => return X86_64Rule::NEEDS_FULL_EVALUATION,
        };
        let rule = match register {
            RSP => X86_64Rule::from_sp(offset, saved_fp_below),
            RBP => X86_64Rule::from_fp(offset, saved_fp_below),
            _ => None,
        };
        return rule.unwrap_or(X86_64Rule::NEEDS_FULL_EVALUATION);
    }
    pack_loaded(row).unwrap_or(X86_64Rule::NEEDS_FULL_EVALUATION)
}

/// Packs a row whose CFA is in memory: a signal frame or a realigned one.
#[cold]
fn pack_loaded(row: &CoreRow<'_>) -> Option<X86_64Rule> {
    let LinearCfa::Loaded { register, offset } = row.cfa else { return None };
    let fp_place = row.place::<X86_64>(row.frame_pointer);
    if row.is_signal_frame {
        let is_linux = (register, offset) == (RSP, CONTEXT_RSP)
            && row.place::<X86_64>(row.return_address) == Some((RSP, CONTEXT_RIP))
            && row.place::<X86_64>(row.stack_pointer) == Some((RSP, CONTEXT_RSP))
            && fp_place == Some((RSP, CONTEXT_RBP));
        return is_linux.then_some(X86_64Rule::SIGNAL_FRAME);
    }
    let is_usual = row.return_address == RegisterRule::Offset(-8)
        && row.stack_pointer == RegisterRule::Unspecified
        && register == RBP;
    let fp_is_saved = match (row.frame_pointer, fp_place) {
        (RegisterRule::Unspecified | RegisterRule::SameValue, _) => false,
        (_, Some((RBP, 0))) => true,
        _ => return None,
    };
    is_usual.then(|| X86_64Rule::realigned(-offset, fp_is_saved))?
}

impl fmt::Debug for X86_64Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "X86_64Rule({:?})", self.kind())
    }
}
