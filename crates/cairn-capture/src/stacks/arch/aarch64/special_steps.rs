//! Steps that are not plain. The hot path takes none of them but the end of the stack.
//!
//! Signal frames and code of JIT compilers have no tables here, and one is distinguished from the
//! other by memory that no record compares. So the whole walk handles both. The rule of a frame
//! whose return address is in the link register needs a register that a call has overwritten,
//! unless a signal interrupted it.

use super::{Rule, RuleKind};
use crate::stacks::engine::NeedsWholeWalk;
use crate::stacks::engine::learn::SpecialFrame;
use crate::stacks::engine::step::SteppedCapture;

impl SteppedCapture<'_> {
    /// Returns `None` when there is no caller.
    ///
    /// # Safety
    ///
    /// - None on this processor. The function is unsafe because the one of x86-64 is.
    #[inline(always)]
    pub(crate) unsafe fn special_step(&mut self, rule: Rule) -> Result<Option<()>, NeedsWholeWalk> {
        match rule.kind() {
            RuleKind::EndOfStack => Ok(None),
            _ => Err(NeedsWholeWalk),
        }
    }

    /// True, because no frame is stepped by the shape of its code.
    pub(crate) fn codes_are_unchanged(&self) -> bool {
        true
    }
}

/// Notes nothing: the end of the stack reads no word, and outer frames do not exist.
pub(crate) fn note_special_checks(
    _rule: Rule,
    _frame: SpecialFrame,
    _note: impl FnMut(u64, u64) -> Option<()>,
) -> Option<bool> {
    Some(false)
}
