//! x86-64.

mod bytes;
mod code;
mod entry;
mod frames;
mod registers;
mod special_steps;

pub(crate) use bytes::equal_bytes;
pub(crate) use cairn_unwind::x86_64::{X86_64 as Native, X86_64Rule as Rule, X86_64RuleKind as RuleKind};
use code::{KNOWN_SHAPE, has_known_shape, still_has_known_shape};
pub(crate) use code::{has_tables, rule_without_tables};
pub use entry::cairn_capture_here;
pub(crate) use frames::{PC_ZERO_BITS, is_code_address, reads_within, return_address_below, strip};
pub(crate) use registers::{address_mask, no_registers, take_own_registers};
pub(crate) use special_steps::note_special_checks;
