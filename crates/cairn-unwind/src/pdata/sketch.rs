//! A frame while its codes are undone: the CFA, and the places of saved registers.

use crate::Machine;
use crate::cfi::{CfaRule, CoreRow, LinearCfa, RegisterRule, RowHead, RowState};

use super::PdataError;

/// Registers that can be saved; 32, those of arm64, which has more.
const REGISTERS: usize = 32;

/// A frame: what the executed part of its prologue has done.
///
/// Places are distances from the stack pointer at the start (`x` = 0). Undoing a code moves `x` up.
/// A frame pointer fixes the same scale to another register.
#[derive(Clone, Copy)]
pub(super) struct FrameSketch {
    /// Places of saved registers, by their DWARF numbers; `NOWHERE` for others.
    saved: [i32; REGISTERS],
    /// Distance of the present place.
    x: i32,
    /// The register that the CFA is counted from, and its distance.
    ///
    /// `None` for the stack pointer, whose distance is 0.
    base: Option<(u16, i32)>,
    end: End,
    /// Registers that callees preserve here and not by the calling convention of the machine.
    also_preserved: &'static [u16],
}

/// The place of the return address.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// Pushed by the call, at the end of the frame.
    Pushed,
    /// In the link register, or where that was saved.
    Linked,
    /// In the processor's record of an interrupt, at the end of the frame.
    MachineFrame,
}

const NOWHERE: i32 = i32::MIN;
/// Distance of the stack pointer in the processor's record of an interrupt; the pc comes first.
const MACHINE_FRAME_SP: i32 = 24;
/// Maximum distance; far more than a stack, and so small that the sum of several fits.
const MAX_DISTANCE: i32 = 1 << 29;

impl FrameSketch {
    /// A frame whose return address a call has pushed.
    pub(super) const fn pushed(also_preserved: &'static [u16]) -> Self {
        Self { saved: [NOWHERE; REGISTERS], x: 0, base: None, end: End::Pushed, also_preserved }
    }

    /// A frame whose return address is in the link register.
    pub(super) const fn linked() -> Self {
        Self { saved: [NOWHERE; REGISTERS], x: 0, base: None, end: End::Linked, also_preserved: &[] }
    }

    /// The present distance.
    pub(super) const fn x(&self) -> i32 {
        self.x
    }

    /// Undoes an allocation.
    pub(super) fn release(&mut self, bytes: u32) -> Result<(), PdataError> {
        let bytes = i32::try_from(bytes).map_err(|_| PdataError::OutOfRange)?;
        self.x = within(self.x.checked_add(bytes))?;
        Ok(())
    }

    /// Fixes the scale to a register: it is `register` that lies at distance `x`.
    pub(super) fn count_from(&mut self, register: u16, x: i32) -> Result<(), PdataError> {
        self.base = Some((register, within(Some(x))?));
        Ok(())
    }

    /// Continues at the distance `x`, where the frame pointer leads.
    pub(super) fn continue_at(&mut self, x: i32) -> Result<(), PdataError> {
        self.x = within(Some(x))?;
        Ok(())
    }

    /// Notes a register that was saved at the distance `x`. Codes are undone from the last one to
    /// the first, so a later note is of an earlier instruction and has the caller's value.
    pub(super) fn save(&mut self, register: u16, x: i32) -> Result<(), PdataError> {
        let x = within(Some(x))?;
        if let Some(place) = self.saved.get_mut(usize::from(register)) {
            *place = x;
        }
        Ok(())
    }

    /// Undoes a push.
    pub(super) fn pop(&mut self, register: u16) -> Result<(), PdataError> {
        self.save(register, self.x)?;
        self.release(8)
    }

    /// Ends the frame with the processor's record of an interrupt.
    pub(super) fn end_with_machine_frame(&mut self) {
        self.end = End::MachineFrame;
    }

    /// Distance of the CFA.
    fn cfa(&self) -> i32 {
        // `x` is small, by `within`.
        self.x + if self.end == End::Pushed { 8 } else { 0 }
    }

    fn cfa_rule<M: Machine>(&self) -> (u16, i32) {
        let (register, x) = self.base.unwrap_or((M::STACK_POINTER, 0));
        (register, self.cfa() - x)
    }

    fn register(&self, register: u16) -> RegisterRule {
        match self.saved.get(usize::from(register)) {
            Some(&place) if place != NOWHERE => RegisterRule::Offset(place - self.cfa()),
            _ if self.also_preserved.contains(&register) => RegisterRule::SameValue,
            _ => RegisterRule::Unspecified,
        }
    }

    fn return_address<M: Machine>(&self) -> RegisterRule {
        match self.end {
            End::Pushed => RegisterRule::Offset(-8),
            End::MachineFrame => RegisterRule::Offset(0),
            End::Linked => self.register(M::RETURN_ADDRESS),
        }
    }

    fn stack_pointer(&self) -> RegisterRule {
        match self.end {
            End::MachineFrame => RegisterRule::Offset(MACHINE_FRAME_SP),
            _ => RegisterRule::Unspecified,
        }
    }

    /// The parts that a packed rule has.
    pub(super) fn core_row<M: Machine>(&self) -> CoreRow<'static> {
        let (register, offset) = self.cfa_rule::<M>();
        CoreRow::of_offsets(
            LinearCfa::Register { register, offset: offset.into() },
            self.register(M::FRAME_POINTER),
            self.return_address::<M>(),
            self.stack_pointer(),
            M::RETURN_ADDRESS,
            self.end == End::MachineFrame,
        )
    }

    /// Fills an empty row.
    pub(super) fn fill<M: Machine>(&self, head: &mut RowHead<'_>, state: &mut RowState<M>) {
        let (register, offset) = self.cfa_rule::<M>();
        let mut define = |register, rule| {
            if rule != RegisterRule::Unspecified {
                state.define(register, rule);
            }
        };
        (0..REGISTERS as u16).for_each(|register| define(register, self.register(register)));
        define(M::STACK_POINTER, self.stack_pointer());
        define(M::RETURN_ADDRESS, self.return_address::<M>());
        state.define_cfa(CfaRule::Register { register, offset });
        head.complete_by_offsets(M::RETURN_ADDRESS, self.end == End::MachineFrame);
    }
}

/// Refuses distances so large that the sum of two might not fit.
fn within(x: Option<i32>) -> Result<i32, PdataError> {
    x.filter(|x| (-MAX_DISTANCE..=MAX_DISTANCE).contains(x)).ok_or(PdataError::OutOfRange)
}
