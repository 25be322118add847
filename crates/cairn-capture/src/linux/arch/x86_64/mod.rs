//! x86-64.

mod bytes;
mod code;
mod entry;
mod registers;
mod words;

pub(crate) use bytes::equal_bytes;
pub(crate) use cairn_unwind::x86_64::{X86_64 as Native, X86_64Rule as Rule, X86_64RuleKind as RuleKind};
pub(crate) use code::{KNOWN_SHAPE, has_known_shape, has_tables, rule_without_tables, still_has_known_shape};
pub use entry::cairn_capture_here;
pub(crate) use registers::{
    address_mask, interrupted_call_site, interrupted_sp, no_registers, take_interrupted_registers,
    take_own_registers,
};
pub(crate) use words::{find_object_address, load_thread_word, store_thread_word, thread_control_block};
