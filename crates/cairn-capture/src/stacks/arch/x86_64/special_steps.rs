//! Steps that are not plain, and the stack words that they read.

use cairn_unwind::CoreRegisters;

use super::{KNOWN_SHAPE, Rule, RuleKind, has_known_shape, still_has_known_shape};
use crate::CallSite;
use crate::stacks::engine::learn::SpecialFrame;
use crate::stacks::engine::step::{CodeSteps, SteppedCapture, plain_step};
use crate::stacks::engine::{NeedsWholeWalk, load};
use crate::stacks::generated::Evidence;
use crate::stacks::pc_kind::PcKind;
use crate::stacks::runtimes;

impl SteppedCapture<'_> {
    /// Moves to the caller by a rule that is not plain; `None` when there is no caller.
    ///
    /// A plain rule whose step failed is refused.
    ///
    /// # Safety
    ///
    /// - `self.memory` is readable.
    #[inline(always)]
    pub(crate) unsafe fn special_step(&mut self, rule: Rule) -> Result<Option<()>, NeedsWholeWalk> {
        match rule.kind() {
            RuleKind::EndOfStack => Ok(None),
            RuleKind::Realigned { slot_below_fp, fp_is_saved } => {
                // SAFETY: the caller promises that `self.memory` is readable.
                self.frame = unsafe { self.realigned_step(slot_below_fp, fp_is_saved)? };
                Ok(Some(()))
            }
            RuleKind::SavedAbove { is_from_fp, cfa_offset, saved_fp_above } => {
                // SAFETY: the caller promises that `self.memory` is readable.
                self.frame = unsafe { self.step_saved_above(is_from_fp, cfa_offset, saved_fp_above)? };
                Ok(Some(()))
            }
            // SAFETY: the caller promises that `self.memory` is readable.
            RuleKind::NoTables => unsafe { self.step_without_tables() },
            // SAFETY: the caller promises that `self.memory` is readable.
            RuleKind::ByCode => unsafe { self.step_by_code() },
            // SAFETY: the caller promises that `self.memory` is readable.
            RuleKind::ByRuntime => unsafe { self.step_by_runtime() },
            _ => Err(NeedsWholeWalk),
        }
    }

    /// Compares the code of all frames that were stepped by its shape, innermost first. The rule of
    /// an address remains; its code may be another by now.
    pub(crate) fn codes_are_unchanged(&self) -> bool {
        let entries = self.process.pcs.entries();
        // False behind a step by frame pointer, which is plausible and no more: the frames there
        // may not be live.
        let mut is_live = true;
        (0..self.pending_count).all(|index| {
            let number = self.thread.pending(index).pc_number();
            let Some(entry) = entries.get(number as usize) else { return false };
            match entry.rule() {
                Rule::NO_TABLES | Rule::BY_RUNTIME => {
                    is_live = false;
                    true
                }
                // SAFETY: all steps inside of this frame were by tables or by code that was just
                // compared, so it is live. The kernel read its code when it was numbered.
                Rule::BY_CODE if is_live => unsafe { still_has_known_shape(entry.pc()) },
                Rule::BY_CODE => has_known_shape(entry.pc()),
                _ => true,
            }
        })
    }

    /// Steps by the frame pointer if that proves itself. The whole walk does the same where no
    /// table covers the code.
    ///
    /// If not, the stack ends here with a mark, which becomes the outermost of the pending frames.
    /// The mark has the slot of the last frame, and in place of a frame pointer the return address
    /// that is not code.
    ///
    /// # Safety
    ///
    /// - `self.memory` is readable.
    #[cold]
    #[inline(never)]
    unsafe fn step_without_tables(&mut self) -> Result<Option<()>, NeedsWholeWalk> {
        let CallSite { pc, sp, fp } = self.frame;
        if sp >= self.memory.high {
            return Err(NeedsWholeWalk);
        }
        let mut return_address = 0;
        if may_be_frame_record(sp, fp) {
            // SAFETY: the caller promises that `self.memory` is readable; `load_checked` checks the
            // address against it.
            let found = unsafe { self.load_checked(fp.wrapping_add(8)) };
            return_address = match found {
                Ok(word) => word,
                // A word outside of this stack is read through the kernel, and could not be
                // compared in later captures.
                Err(NeedsWholeWalk) if self.memory.is_own() => return Err(NeedsWholeWalk),
                // A coroutine starts with the frame pointer of the code that created it.
                Err(NeedsWholeWalk) => 0,
            };
            // SAFETY: as for the load above.
            if return_address != 0 && unsafe { self.proves_itself(fp, return_address)? } {
                // SAFETY: as for the load above.
                let caller_fp = unsafe { self.load_checked(fp)? };
                self.frame = CallSite { pc: return_address, sp: fp.wrapping_add(16), fp: caller_fp };
                return Ok(Some(()));
            }
        }
        let mark = self.process.number(pc, PcKind::NoUnwindInfo).ok_or(NeedsWholeWalk)?;
        self.add_pending(mark, Rule::NEEDS_FULL_EVALUATION)?;
        self.thread.pending_mut(self.pending_count - 1).fp = return_address;
        Ok(None)
    }

    /// Ends the capture at a step that depends on code, unless such steps are taken.
    fn meet_code_step(&mut self) -> Result<(), NeedsWholeWalk> {
        if self.code_steps != CodeSteps::Taken {
            self.code_steps = CodeSteps::Met;
            return Err(NeedsWholeWalk);
        }
        Ok(())
    }

    /// Steps from code that had a known shape when its address was numbered. Whether it still has
    /// one is left to [`step_and_intern`](Self::step_and_intern).
    ///
    /// # Safety
    ///
    /// - `self.memory` is readable.
    #[cold]
    #[inline(never)]
    unsafe fn step_by_code(&mut self) -> Result<Option<()>, NeedsWholeWalk> {
        self.meet_code_step()?;
        let CallSite { sp, fp, .. } = self.frame;
        // SAFETY: the caller promises that `self.memory` is readable, and sp lies in it.
        let caller = unsafe { plain_step(self.memory, KNOWN_SHAPE, sp, fp) }.ok_or(NeedsWholeWalk)?;
        if !self.process.is_return_address(caller.pc) {
            return Err(NeedsWholeWalk);
        }
        self.frame = caller;
        Ok(Some(()))
    }

    /// Steps from code that a runtime may have made. Without such a step it is code without tables.
    ///
    /// The step depends on memory that no record compares, so nothing is learned of this stack.
    ///
    /// # Safety
    ///
    /// - `self.memory` is readable.
    #[cold]
    #[inline(never)]
    unsafe fn step_by_runtime(&mut self) -> Result<Option<()>, NeedsWholeWalk> {
        self.meet_code_step()?;
        let CallSite { pc, sp, fp } = self.frame;
        let callee = CoreRegisters { pc, sp, fp, link: 0 };
        match runtimes::caller(self.process, callee, &self.memory) {
            Some(caller) if caller.sp > self.memory.high => Err(NeedsWholeWalk),
            Some(caller) => {
                self.frame = CallSite { pc: caller.pc, sp: caller.sp, fp: caller.fp };
                Ok(Some(()))
            }
            // SAFETY: the caller promises the same.
            None => unsafe { self.step_without_tables() },
        }
    }

    /// Decides, as the whole walk does, whether the record at `fp` is one.
    ///
    /// # Safety
    ///
    /// - `self.memory` is readable, and the two words at `fp` lie in it.
    unsafe fn proves_itself(&self, fp: u64, return_address: u64) -> Result<bool, NeedsWholeWalk> {
        if self.process.is_return_address(return_address) {
            return Ok(true);
        }
        if !self.process.is_generated(return_address, Evidence::Word) {
            return Ok(false);
        }
        // SAFETY: the caller promises that `self.memory` is readable; `load_checked` checks the
        // address against it.
        let next_fp = unsafe { self.load_checked(fp)? };
        if !may_be_frame_record(fp.wrapping_add(16), next_fp) {
            return Ok(false);
        }
        // SAFETY: as for the load above.
        let next = match unsafe { self.load_checked(next_fp.wrapping_add(8)) } {
            Ok(next) => next,
            // The whole walk reads it through the kernel.
            Err(NeedsWholeWalk) if self.memory.is_own() => return Err(NeedsWholeWalk),
            Err(NeedsWholeWalk) => return Ok(false),
        };
        Ok(self.process.is_executable(next, Evidence::Word))
    }

    /// Steps from a function that has realigned its stack.
    ///
    /// # Safety
    ///
    /// - `self.memory` is readable.
    #[cold]
    unsafe fn realigned_step(
        &self,
        slot_below_fp: u64,
        fp_is_saved: bool,
    ) -> Result<CallSite, NeedsWholeWalk> {
        let CallSite { sp, fp, .. } = self.frame;
        // SAFETY: the caller promises that `self.memory` is readable; `load_checked` checks the
        // address against it.
        let cfa = unsafe { self.load_checked(fp.wrapping_sub(slot_below_fp))? };
        if cfa <= sp {
            return Err(NeedsWholeWalk);
        }
        // SAFETY: as for the load above.
        let pc = unsafe { self.load_checked(cfa.wrapping_sub(8))? };
        // SAFETY: as for the load above.
        let fp = if fp_is_saved { unsafe { self.load_checked(fp)? } } else { fp };
        Ok(CallSite { pc, sp: cfa, fp })
    }

    /// Steps out of a function that has saved its frame pointer in the room above its return
    /// address.
    ///
    /// # Safety
    ///
    /// - `self.memory` is readable.
    #[cold]
    unsafe fn step_saved_above(
        &self,
        is_from_fp: bool,
        cfa_offset: u64,
        saved_fp_above: u64,
    ) -> Result<CallSite, NeedsWholeWalk> {
        let CallSite { sp, fp, .. } = self.frame;
        let cfa = if is_from_fp { fp } else { sp }.wrapping_add(cfa_offset);
        if cfa <= sp {
            return Err(NeedsWholeWalk);
        }
        // SAFETY: the caller promises that `self.memory` is readable; `load_checked` checks the
        // address against it.
        let pc = unsafe { self.load_checked(cfa.wrapping_sub(8))? };
        // SAFETY: as for the load above.
        let fp = unsafe { self.load_checked(cfa.wrapping_add(saved_fp_above))? };
        Ok(CallSite { pc, sp: cfa, fp })
    }

    /// The stack word at `address`, if it lies in `self.memory`.
    ///
    /// # Safety
    ///
    /// - `self.memory` is readable.
    unsafe fn load_checked(&self, address: u64) -> Result<u64, NeedsWholeWalk> {
        if address < self.memory.low
            || address > self.memory.high.wrapping_sub(8)
            || !address.is_multiple_of(8)
        {
            return Err(NeedsWholeWalk);
        }
        // SAFETY: low <= address <= high - 8, and a multiple of 8; the caller promises that this
        // memory is readable.
        Ok(unsafe { load(address) })
    }
}

/// True when a frame record at `fp` could belong to the frame at `sp` or to one further out.
fn may_be_frame_record(sp: u64, fp: u64) -> bool {
    fp >= sp && fp.is_multiple_of(8) && fp.checked_add(16).is_some()
}

/// Notes the words other than the return address that a step reads which is not plain. Returns true
/// if the outer frames depend on the frame's own fp; `None` without memory for the checks.
pub(crate) fn note_special_checks(
    rule: Rule,
    SpecialFrame { sp, cfa, fp, outer }: SpecialFrame,
    mut note: impl FnMut(u64, u64) -> Option<()>,
) -> Option<bool> {
    match rule.kind() {
        RuleKind::Realigned { slot_below_fp, fp_is_saved } => {
            note(fp.wrapping_sub(slot_below_fp), cfa)?;
            if outer.needs_fp && fp_is_saved {
                note(fp, outer.fp)?;
            }
            Some(true)
        }
        RuleKind::SavedAbove { is_from_fp, saved_fp_above, .. } => {
            if outer.needs_fp {
                note(cfa.wrapping_add(saved_fp_above), outer.fp)?;
            }
            Some(is_from_fp)
        }
        RuleKind::NoTables => {
            if cfa != sp {
                if outer.needs_fp {
                    note(fp, outer.fp)?;
                }
            } else if may_be_frame_record(sp, fp) {
                // The outer frame is the mark for the end of the stack.
                note(fp.wrapping_add(8), outer.fp)?;
            }
            Some(true)
        }
        _ => Some(false),
    }
}
