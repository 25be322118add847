//! Call frame information: `.eh_frame`, `.eh_frame_hdr` and `.debug_frame`.
//!
//! ```text
//!  .eh_frame_hdr   | version 1 | encodings (3) | address of .eh_frame | count | count x (function start, FDE address), sorted |
//!
//!  .eh_frame       CIE | length | 0           | version | augmentation | factors | program that every function starts with |
//!                  FDE | length | back to CIE | first pc | pc count | augmentation data | program of this function         |
//!                  ...
//! ```
//!
//! A program is a list of instructions that build a table, one row for each stretch of code:
//!
//! ```text
//!      pc      CFA       rbp       return address          CFA: the canonical frame address, which is the value of the
//!      0x1000  rsp+8     same      at CFA-8                stack pointer before the call; all else is counted from it
//!      0x1001  rsp+16    at CFA-16 at CFA-8
//!      0x1004  rbp+16    at CFA-16 at CFA-8
//! ```
//!
//! There are two readers of the same programs. [`FrameTable::row`] returns the complete row.
//! [`FrameTable::rule`] tracks only the CFA, the frame pointer and the return address, which a
//! stack walk needs, in one pass and without a table in memory, and packs them in 32 bits.
//!
//! Nothing is decoded in advance: a program uses a few thousand of the hundred thousands of rows in
//! its libraries, and decoding one row costs about as much as one or two cache misses to memory
//! (`cargo bench --bench lazy_rule`).
//!
//! Practice differs from the documents (DWARF 5 section 6.4, the Linux Standard Base):
//! - `remember_state` saves the CFA too, though DWARF calls what is saved "the rules for every
//!   register".
//! - `.eh_frame` has 32-bit CIE pointers also where its lengths are 64-bit, and its pointer counts
//!   backwards.
//! - Linkers leave an FDE of zero length for a discarded function. It covers nothing; it is not an
//!   error.
//! - Opcode 0x2d is SPARC's `GNU_window_save`, and AArch64's `negate_ra_state`.
//! - glibc's signal trampoline starts its FDE one byte before its first instruction, for unwinders
//!   that subtract one.

mod cursor;
mod entry;
mod expression;
mod interpreter;
mod pointer;
mod row;
mod search;
mod table;

use core::fmt;

pub use entry::{FrameEntries, FrameEntry};
pub use row::{CfaRule, CoreRow, ExpressionRef, RegisterRule, Row};
pub(crate) use row::{LinearCfa, RowHead, RowState, RowView};
pub use search::find_frames;
pub use table::{Bases, CachingTable, Flavor, FrameTable, IndexEntry, RuleAt, Section};

/// An error in a table entry, with its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CfiError {
    /// Offset of the offending byte from the start of the section's slice.
    pub offset: usize,
    /// The kind of error.
    pub kind: CfiErrorKind,
}

/// The kinds of errors in a table entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CfiErrorKind {
    /// When no entry covers the address. The table may still be valid.
    NotCovered,
    /// When the bytes end too early.
    UnexpectedEnd,
    /// When the header, the CIE or the table has an unsupported version.
    UnknownVersion,
    /// When the augmentation string has a letter whose data cannot be skipped.
    UnknownAugmentation,
    /// When a pointer has an encoding that cannot be resolved here.
    UnknownPointerEncoding,
    /// When a CIE pointer does not lead to a CIE.
    NoCie,
    /// When an instruction is unknown for this machine.
    UnknownInstruction,
    /// When a `restore_state` has no `remember_state` before it.
    RestoreWithoutRemember,
    /// When more than 16 states would have to be remembered at once.
    TooDeep,
    /// When an instruction changes the offset of a CFA that is not a register plus an offset.
    NoCfaRegister,
    /// When an offset does not fit 32 bits, or an address wraps around.
    OutOfRange,
}

impl fmt::Display for CfiErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotCovered => "no entry covers the address",
            Self::UnexpectedEnd => "the bytes end within an entry",
            Self::UnknownVersion => "unknown version",
            Self::UnknownAugmentation => "unknown augmentation",
            Self::UnknownPointerEncoding => "pointer encoding that cannot be resolved",
            Self::NoCie => "the CIE pointer does not lead to a CIE",
            Self::UnknownInstruction => "unknown call frame instruction",
            Self::RestoreWithoutRemember => "restore_state without remember_state",
            Self::TooDeep => "more than 16 remembered states",
            Self::NoCfaRegister => "the CFA has no register whose offset could change",
            Self::OutOfRange => "number out of range",
        })
    }
}

impl fmt::Display for CfiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at byte {:#x} of the unwind table", self.kind, self.offset)
    }
}

impl core::error::Error for CfiError {}
