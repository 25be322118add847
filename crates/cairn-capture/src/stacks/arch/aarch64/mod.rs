//! AArch64.

mod bytes;
mod code;
mod entry;
mod frames;
mod registers;
mod special_steps;

pub(crate) use bytes::equal_bytes;
pub(crate) use cairn_unwind::aarch64::{Aarch64 as Native, Aarch64Rule as Rule, Aarch64RuleKind as RuleKind};
pub(crate) use code::{has_tables, rule_without_tables};
pub use entry::cairn_capture_here;
pub(crate) use frames::{PC_ZERO_BITS, is_code_address, reads_within, return_address_below, strip};
pub(crate) use registers::{address_mask, no_registers, take_own_registers};
pub(crate) use special_steps::note_special_checks;
