//! The rule of code without tables.

use cairn_unwind::{Machine, SHAPE_BYTES, SHAPE_BYTES_BEFORE};

use super::{Native, Rule};
use crate::stacks::{own_memory, runtimes};

/// The step of all known shapes: there is one, CPython's trampoline.
pub(crate) const KNOWN_SHAPE: Rule = match Rule::from_sp(16, None) {
    Some(rule) => rule,
    None => panic!("it fits"),
};

/// The rule at a return address that no table covers.
pub(crate) fn rule_without_tables(pc: u64) -> Rule {
    match has_known_shape(pc) {
        true => Rule::BY_CODE,
        false if runtimes::are_known() => Rule::BY_RUNTIME,
        false => Rule::NO_TABLES,
    }
}

/// True for the rule of code that a table covers.
pub(crate) fn has_tables(rule: Rule) -> bool {
    !matches!(rule, Rule::NO_TABLES | Rule::BY_CODE | Rule::BY_RUNTIME)
}

/// True when the code around a return address has the known shape now. The kernel reads it.
pub(crate) fn has_known_shape(pc: u64) -> bool {
    let mut code = [0; SHAPE_BYTES];
    let start = pc.wrapping_sub(SHAPE_BYTES_BEFORE as u64);
    own_memory::read_bytes(start, &mut code) == code.len() && is_known_shape(&code)
}

/// True when the code around a return address still has the known shape, which it had before.
///
/// # Safety
///
/// - A live frame of this thread returns to `pc`.
/// - The kernel has read the code around it before, so that it is readable and not only executable.
#[inline]
pub(crate) unsafe fn still_has_known_shape(pc: u64) -> bool {
    let start = pc.wrapping_sub(SHAPE_BYTES_BEFORE as u64) as *const [u8; SHAPE_BYTES];
    // Volatile, because a compiler may write there.
    // SAFETY: a live frame runs this code, so it is mapped; the caller promises that it is
    // readable. An array of bytes needs no alignment.
    is_known_shape(&unsafe { start.read_volatile() })
}

fn is_known_shape(code: &[u8; SHAPE_BYTES]) -> bool {
    Native::rule_of_shape(code) == Some(KNOWN_SHAPE)
}
