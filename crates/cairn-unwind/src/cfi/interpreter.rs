//! The interpreter of call frame programs, for both readers: it is generic over the state.
//!
//! ```text
//!   advance ... offset ... remember_state ... restore_state ... advance ... end
//!                          |<-- epilogue -->|
//! ```
//!
//! `remember_state` saves nothing. The programs have no branches, so there are two cases: either
//! the wanted row lies before the matching `restore_state`, and then the saved state is never used;
//! or it lies behind, and then only the locations matter up to the `restore_state`. The interpreter
//! scans forward with a state that ignores everything ([`Ignored`]), and then either jumps there or
//! continues where it is. The rejected way, a stack of states, takes up to a kilobyte of the signal
//! handler's stack and copies it without need.
//!
//! Time is linear in the program: each level of nesting that contains the wanted row scans forward
//! once, and there are at most [`MAX_DEPTH`] levels.

use cairn_format::AbsoluteAddress;

use super::cursor::Cursor;
use super::entry::Cie;
use super::row::{CfaRule, ExpressionRef, RegisterRule};
use super::{CfiError, CfiErrorKind};
use crate::AddressRange;

/// Maximum nesting; 16, because compilers nest one or two deep. Hostile tables must not cost much
/// time.
const MAX_DEPTH: u32 = 16;

/// The state that a program builds.
pub(super) trait State {
    fn cfa(&self) -> CfaRule;
    fn set_cfa(&mut self, rule: CfaRule);
    fn set(&mut self, register: u64, rule: RegisterRule);
    /// Marks a register as restored to its rule in the CIE's program. That rule is looked up
    /// afterwards, if the row still needs it: a second state would take 150 bytes of the signal
    /// handler's stack.
    fn restore(&mut self, register: u64);
    /// True when registers are marked as restored.
    fn has_restored(&self) -> bool;
    /// Starts the second run of the CIE's program. It changes only the registers that are marked as
    /// restored.
    fn begin_restoring(&mut self);
    /// Ends the second run of the CIE's program.
    fn end_restoring(&mut self);
    /// Sets the result of the CIE program that nearly all modules share. Returns false when
    /// `program` is another one.
    fn set_usual(&mut self, program: &[u8], data_alignment: i64) -> bool;
    /// True when the machine supports signed return addresses.
    fn signs_return_addresses() -> bool;
}

/// The state of a forward scan.
struct Ignored;

impl State for Ignored {
    #[inline]
    fn cfa(&self) -> CfaRule {
        CfaRule::Register { register: 0, offset: 0 }
    }

    #[inline]
    fn set_cfa(&mut self, _: CfaRule) {}

    #[inline]
    fn set(&mut self, _: u64, _: RegisterRule) {}

    #[inline]
    fn restore(&mut self, _: u64) {}

    #[inline]
    fn has_restored(&self) -> bool {
        false
    }

    #[inline]
    fn begin_restoring(&mut self) {}

    #[inline]
    fn end_restoring(&mut self) {}

    #[inline]
    fn set_usual(&mut self, _: &[u8], _: i64) -> bool {
        false
    }

    #[inline]
    fn signs_return_addresses() -> bool {
        true
    }
}

/// The location that a program has reached, and the wanted row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Position {
    wanted: u64,
    row_start: u64,
    row_end: u64,
}

impl Position {
    /// At the start of `range`, wanting the row of `address`.
    #[inline]
    pub(super) fn new(range: AddressRange, address: AbsoluteAddress) -> Self {
        Self { wanted: address.value(), row_start: range.start.value(), row_end: range.end.value() }
    }

    /// Wanting the state at the end of the program.
    #[inline]
    pub(super) fn everywhere() -> Self {
        Self { wanted: u64::MAX, row_start: 0, row_end: u64::MAX }
    }

    /// The addresses for which the row holds, once it is found.
    #[inline]
    pub(super) fn range(&self) -> AddressRange {
        AddressRange::new(AbsoluteAddress::new(self.row_start), AbsoluteAddress::new(self.row_end))
    }

    /// Moves on to `location`; true when the wanted row lies before it.
    #[inline]
    fn reaches(&mut self, location: u64) -> bool {
        if location > self.wanted {
            self.row_end = self.row_end.min(location);
            return true;
        }
        self.row_start = location;
        false
    }

    #[inline]
    fn advance(&mut self, delta: u64, cie: &Cie<'_>) -> bool {
        self.reaches(self.row_start.saturating_add(delta.wrapping_mul(cie.code_alignment)))
    }
}

/// The reason why the interpreter stopped.
enum Halt {
    /// The wanted row is complete.
    RowFound,
    /// The program has ended, so the state is valid to the end of the range.
    End,
    Remember,
    Restore,
}

/// Runs `program` until the wanted row is complete.
#[inline]
pub(super) fn run<'a, S: State>(
    cie: &Cie<'a>,
    mut program: Cursor<'a>,
    position: &mut Position,
    state: &mut S,
) -> Result<(), CfiError> {
    let mut depth = 0;
    loop {
        match execute(cie, &mut program, position, state)? {
            Halt::RowFound | Halt::End => return Ok(()),
            Halt::Restore => return Err(program.error(CfiErrorKind::RestoreWithoutRemember)),
            Halt::Remember => {}
        }
        if let Some((after_restore, position_there)) = look_ahead(cie, program, *position)? {
            program = after_restore;
            *position = position_there;
            continue;
        }
        depth += 1;
        if depth > MAX_DEPTH {
            return Err(program.error(CfiErrorKind::TooDeep));
        }
    }
}

/// Finds the `restore_state` that matches the last `remember_state`. Returns `None` when the wanted
/// row lies before it.
#[inline]
fn look_ahead<'a>(
    cie: &Cie<'a>,
    mut program: Cursor<'a>,
    mut position: Position,
) -> Result<Option<(Cursor<'a>, Position)>, CfiError> {
    let mut nested = 0_u32;
    loop {
        match execute(cie, &mut program, &mut position, &mut Ignored)? {
            Halt::RowFound | Halt::End => return Ok(None),
            Halt::Remember => nested += 1,
            Halt::Restore if nested == 0 => return Ok(Some((program, position))),
            Halt::Restore => nested -= 1,
        }
    }
}

/// The instruction loop: one flat match, so that an instruction costs one indirect branch.
#[inline]
fn execute<'a, S: State>(
    cie: &Cie<'a>,
    program: &mut Cursor<'a>,
    position: &mut Position,
    state: &mut S,
) -> Result<Halt, CfiError> {
    while let Some(opcode) = program.next_byte() {
        let operand = opcode & 0x3f;
        let row_found = match opcode {
            // advance_loc, and its forms with an operand of 1, 2 and 4 bytes
            0x40..=0x7f => position.advance(u64::from(operand), cie),
            0x02 => position.advance(u64::from(program.byte()?), cie),
            0x03 => position.advance(u64::from(program.u16()?), cie),
            0x04 => position.advance(u64::from(program.u32()?), cie),
            // def_cfa_offset
            0x0e => {
                let offset = unfactored(program)?;
                state.set_cfa(CfaRule::Register { register: cfa_register(program, state)?, offset });
                false
            }
            // offset
            0x80..=0xbf => {
                let offset = factored(program, cie)?;
                state.set(u64::from(operand), RegisterRule::Offset(offset));
                false
            }
            0x0a => return Ok(Halt::Remember),
            0x0b => return Ok(Halt::Restore),
            // restore
            0xc0..=0xff => {
                state.restore(u64::from(operand));
                false
            }
            // def_cfa
            0x0c => {
                let register = register(program)?;
                state.set_cfa(CfaRule::Register { register, offset: unfactored(program)? });
                false
            }
            0x00 => false, // nop
            0x01 => position.reaches(set_location(program, cie)?),
            _ => {
                execute_rare(opcode, cie, program, state)?;
                false
            }
        };
        if row_found {
            return Ok(Halt::RowFound);
        }
    }
    Ok(Halt::End)
}

/// Executes the rare instructions. They do not move the location.
fn execute_rare<S: State>(
    opcode: u8,
    cie: &Cie<'_>,
    program: &mut Cursor<'_>,
    state: &mut S,
) -> Result<(), CfiError> {
    let rule = match opcode {
        // def_cfa_register
        0x0d => {
            let CfaRule::Register { offset, .. } = state.cfa() else {
                return Err(program.error(CfiErrorKind::NoCfaRegister));
            };
            CfaRule::Register { register: register(program)?, offset }
        }
        // def_cfa_expression, def_cfa_sf, def_cfa_offset_sf
        0x0f => CfaRule::Expression(expression(program)?),
        0x12 => CfaRule::Register { register: register(program)?, offset: factored_signed(program, cie)? },
        0x13 => {
            let register = cfa_register(program, state)?;
            CfaRule::Register { register, offset: factored_signed(program, cie)? }
        }
        _ => return set_register(opcode, cie, program, state),
    };
    state.set_cfa(rule);
    Ok(())
}

/// The base register of the CFA.
#[inline]
fn cfa_register<S: State>(program: &Cursor<'_>, state: &S) -> Result<u16, CfiError> {
    match state.cfa() {
        CfaRule::Register { register, .. } => Ok(register),
        _ => Err(program.error(CfiErrorKind::NoCfaRegister)),
    }
}

/// The instructions for the place of one register, in their rarer encodings.
fn set_register<S: State>(
    opcode: u8,
    cie: &Cie<'_>,
    program: &mut Cursor<'_>,
    state: &mut S,
) -> Result<(), CfiError> {
    // args_size: the bytes of pushed arguments, which only exception landing pads need.
    if opcode == 0x2e {
        return program.uleb().map(|_| ());
    }
    // negate_ra_state, negate_ra_state_with_pc
    if matches!(opcode, 0x2c | 0x2d) && S::signs_return_addresses() {
        return Ok(());
    }
    if !matches!(opcode, 0x05..=0x09 | 0x10 | 0x11 | 0x14..=0x16 | 0x2f) {
        return Err(program.error(CfiErrorKind::UnknownInstruction));
    }
    let number = program.uleb()?;
    let rule = match opcode {
        0x05 => RegisterRule::Offset(factored(program, cie)?), // offset_extended
        0x06 => {
            state.restore(number); // restore_extended
            return Ok(());
        }
        0x07 => RegisterRule::Undefined,
        0x08 => RegisterRule::SameValue,
        0x09 => RegisterRule::Register(register(program)?),
        0x10 => RegisterRule::Expression(expression(program)?),
        0x11 => RegisterRule::Offset(factored_signed(program, cie)?), // offset_extended_sf
        0x14 => RegisterRule::ValueOffset(factored(program, cie)?),
        0x15 => RegisterRule::ValueOffset(factored_signed(program, cie)?), // val_offset_sf
        0x16 => RegisterRule::ValueExpression(expression(program)?),
        _ => {
            // GNU_negative_offset_extended, which offset_extended_sf has replaced
            let offset = factored(program, cie)?.checked_neg();
            RegisterRule::Offset(offset.ok_or(program.error(CfiErrorKind::OutOfRange))?)
        }
    };
    state.set(number, rule);
    Ok(())
}

/// The operand of `set_loc`: an address, encoded as the FDE's own. Present compilers do not emit
/// it.
#[cold]
fn set_location(program: &mut Cursor<'_>, cie: &Cie<'_>) -> Result<u64, CfiError> {
    match (cie.pointer_encoding, cie.address_bytes) {
        (0, 8) => program.u64(),
        (0, 4) => program.u32().map(u64::from),
        _ => Err(program.error(CfiErrorKind::UnknownPointerEncoding)),
    }
}

/// A register number; numbers of more than 16 bits are all treated as one unknown register.
#[inline]
fn register(program: &mut Cursor<'_>) -> Result<u16, CfiError> {
    program.uleb().map(|number| u16::try_from(number).unwrap_or(u16::MAX))
}

#[inline]
fn unfactored(program: &mut Cursor<'_>) -> Result<i32, CfiError> {
    let offset = program.uleb()?;
    i32::try_from(offset).map_err(|_| program.error(CfiErrorKind::OutOfRange))
}

#[inline]
fn factored(program: &mut Cursor<'_>, cie: &Cie<'_>) -> Result<i32, CfiError> {
    let offset = program.uleb()? as i64;
    scale(offset, program, cie)
}

#[inline]
fn factored_signed(program: &mut Cursor<'_>, cie: &Cie<'_>) -> Result<i32, CfiError> {
    let offset = program.sleb()?;
    scale(offset, program, cie)
}

#[inline]
fn scale(offset: i64, program: &Cursor<'_>, cie: &Cie<'_>) -> Result<i32, CfiError> {
    let scaled = offset.wrapping_mul(cie.data_alignment);
    i32::try_from(scaled).map_err(|_| program.error(CfiErrorKind::OutOfRange))
}

/// Skips an expression and returns its place.
fn expression(program: &mut Cursor<'_>) -> Result<ExpressionRef, CfiError> {
    let length = program.uleb()?;
    let offset = program.offset();
    program.take(length)?;
    ExpressionRef::new(offset, length).ok_or(CfiError { offset, kind: CfiErrorKind::OutOfRange })
}
