//! DWARF expressions, to the extent that call frame information uses them: a small stack machine.
//!
//! They occur in four places: the entries of a procedure linkage table (the CFA depends on the pc),
//! functions that realign their stack (the CFA was saved in the frame), signal trampolines (every
//! register lies in the signal's context), and hand-written assembly.
//!
//! There are two evaluators. [`evaluate`] computes with the registers and the memory of a frame.
//! [`linear`] computes without them, and succeeds if the result is "a register plus a number", or
//! the word stored there: enough to pack all of the above into a rule.

use cairn_format::{AbsoluteAddress, WordSize};

use super::cursor::Cursor;
use crate::{Machine, MemoryReader, Registers, StopReason};

/// Depth of the stack; 32, which is more than any compiler needs (4), and takes 256 bytes.
const MAX_STACK: usize = 32;
/// Maximum operations of one expression, because `bra` and `skip` can make loops.
const MAX_STEPS: u32 = 1000;

/// The inputs of an expression.
pub(super) struct Environment<'e, M: Machine, Mem> {
    pub(super) registers: &'e Registers<M>,
    pub(super) memory: &'e Mem,
    pub(super) word_size: WordSize,
}

/// A bounded stack of values.
struct ValueStack<T> {
    values: [T; MAX_STACK],
    depth: usize,
}

impl<T: Copy> ValueStack<T> {
    fn push(&mut self, value: T) -> Option<()> {
        *self.values.get_mut(self.depth)? = value;
        self.depth += 1;
        Some(())
    }

    fn pop(&mut self) -> Option<T> {
        self.depth = self.depth.checked_sub(1)?;
        self.values.get(self.depth).copied()
    }

    fn pick(&self, index: usize) -> Option<T> {
        self.values.get(self.depth.checked_sub(index)?.checked_sub(1)?).copied()
    }
}

/// The value of `bytes`, with `initial` on the stack at the start.
///
/// # Errors
///
/// [`StopReason::UnknownRegister`], [`StopReason::UnreadableMemory`], and
/// [`StopReason::BadUnwindInfo`] for all that is malformed.
pub(super) fn evaluate<M: Machine, Mem: MemoryReader>(
    bytes: &[u8],
    initial: Option<u64>,
    environment: &Environment<'_, M, Mem>,
) -> Result<u64, StopReason> {
    let bad = StopReason::BadUnwindInfo { pc: environment.registers.pc() };
    let mut stack = ValueStack { values: [0_u64; MAX_STACK], depth: 0 };
    if let Some(initial) = initial {
        stack.push(initial).ok_or(bad)?;
    }
    let mut program = Cursor::new(bytes, 0, bytes.len()).map_err(|_| bad)?;
    let mut steps = 0;
    while !program.is_empty() {
        steps += 1;
        if steps > MAX_STEPS {
            return Err(bad);
        }
        execute(&mut program, bytes, &mut stack, environment, bad)?;
    }
    stack.pop().map(|value| environment.word_size.truncate(value)).ok_or(bad)
}

/// One operation. The match is long because the instruction set is.
fn execute<'a, M: Machine, Mem: MemoryReader>(
    program: &mut Cursor<'a>,
    bytes: &'a [u8],
    stack: &mut ValueStack<u64>,
    environment: &Environment<'_, M, Mem>,
    bad: StopReason,
) -> Result<(), StopReason> {
    let opcode = program.byte().map_err(|_| bad)?;
    if let Some(constant) = read_constant(opcode, program, environment.word_size) {
        return stack.push(constant).ok_or(bad);
    }
    match opcode {
        // deref, deref_size
        0x06 | 0x94 => {
            let size = if opcode == 0x06 {
                environment.word_size.bytes() as u8
            } else {
                program.byte().map_err(|_| bad)?
            };
            let address = AbsoluteAddress::new(environment.word_size.truncate(stack.pop().ok_or(bad)?));
            stack.push(load(environment.memory, address, size, bad)?).ok_or(bad)
        }
        // breg0..breg31, bregx
        0x70..=0x8f | 0x92 => {
            let (number, offset) = register_and_offset(opcode, program).ok_or(bad)?;
            let value = environment.registers.value(number);
            let value = value.ok_or(StopReason::UnknownRegister { register: number })?;
            stack.push(value.wrapping_add_signed(offset)).ok_or(bad)
        }
        // bra, skip
        0x28 | 0x2f => {
            let distance = program.u16().map_err(|_| bad)? as i16;
            let taken = opcode == 0x2f || stack.pop().ok_or(bad)? != 0;
            if taken {
                let target = program.offset().checked_add_signed(isize::from(distance)).ok_or(bad)?;
                *program = Cursor::new(bytes, target, bytes.len()).map_err(|_| bad)?;
            }
            Ok(())
        }
        0x96 => Ok(()), // nop
        _ => shuffle_or_compute(opcode, program, stack).ok_or(bad),
    }
}

/// The value that a constant operation pushes; `None` when it is not one, or is cut off.
fn read_constant(opcode: u8, program: &mut Cursor<'_>, word_size: WordSize) -> Option<u64> {
    Some(match opcode {
        0x03 if word_size == WordSize::Bits64 => program.u64().ok()?, // addr
        0x03 => u64::from(program.u32().ok()?),
        0x08 => u64::from(program.byte().ok()?),
        0x09 => i64::from(program.byte().ok()? as i8) as u64,
        0x0a => u64::from(program.u16().ok()?),
        0x0b => i64::from(program.u16().ok()? as i16) as u64,
        0x0c => u64::from(program.u32().ok()?),
        0x0d => i64::from(program.u32().ok()? as i32) as u64,
        0x0e | 0x0f => program.u64().ok()?,
        0x10 => program.uleb().ok()?,
        0x11 => program.sleb().ok()? as u64,
        0x30..=0x4f => u64::from(opcode - 0x30), // lit0..lit31
        _ => return None,
    })
}

/// The operands of `breg0`..`breg31` and `bregx`.
fn register_and_offset(opcode: u8, program: &mut Cursor<'_>) -> Option<(u16, i64)> {
    let number = match opcode {
        0x92 => u16::try_from(program.uleb().ok()?).ok()?,
        _ => u16::from(opcode - 0x70),
    };
    Some((number, program.sleb().ok()?))
}

/// The operations that only touch the stack.
fn shuffle_or_compute(opcode: u8, program: &mut Cursor<'_>, stack: &mut ValueStack<u64>) -> Option<()> {
    match opcode {
        0x12 => stack.push(stack.pick(0)?), // dup
        0x13 => stack.pop().map(|_| ()),    // drop
        0x14 => stack.push(stack.pick(1)?), // over
        0x15 => {
            let index = usize::from(program.byte().ok()?);
            stack.push(stack.pick(index)?) // pick
        }
        0x16 => {
            let (top, below) = (stack.pop()?, stack.pop()?); // swap
            stack.push(top)?;
            stack.push(below)
        }
        0x17 => {
            let (first, second, third) = (stack.pop()?, stack.pop()?, stack.pop()?); // rot
            stack.push(first)?;
            stack.push(third)?;
            stack.push(second)
        }
        0x19 | 0x1f | 0x20 | 0x23 => {
            let value = stack.pop()?;
            stack.push(match opcode {
                0x19 => (value as i64).unsigned_abs(),         // abs
                0x1f => value.wrapping_neg(),                  // neg
                0x20 => !value,                                // not
                _ => value.wrapping_add(program.uleb().ok()?), // plus_uconst
            })
        }
        _ => {
            let (top, below) = (stack.pop()?, stack.pop()?);
            stack.push(combine(opcode, below, top)?)
        }
    }
}

/// The operations on two values. Comparisons and division are signed, as in DWARF; `mod` is not,
/// as compilers do.
fn combine(opcode: u8, below: u64, top: u64) -> Option<u64> {
    let (signed_below, signed_top) = (below as i64, top as i64);
    let shift = u32::try_from(top).unwrap_or(u32::MAX);
    Some(match opcode {
        0x1a => below & top,
        0x1b => signed_below.checked_div(signed_top)? as u64,
        0x1c => below.wrapping_sub(top),
        0x1d => below.checked_rem(top)?,
        0x1e => below.wrapping_mul(top),
        0x21 => below | top,
        0x22 => below.wrapping_add(top),
        0x24 => below.checked_shl(shift).unwrap_or(0),
        0x25 => below.checked_shr(shift).unwrap_or(0),
        0x26 => (signed_below >> shift.min(63)) as u64,
        0x27 => below ^ top,
        0x29 => u64::from(below == top),
        0x2a => u64::from(signed_below >= signed_top),
        0x2b => u64::from(signed_below > signed_top),
        0x2c => u64::from(signed_below <= signed_top),
        0x2d => u64::from(signed_below < signed_top),
        0x2e => u64::from(below != top),
        _ => return None,
    })
}

fn load<Mem: MemoryReader>(
    memory: &Mem,
    address: AbsoluteAddress,
    size: u8,
    bad: StopReason,
) -> Result<u64, StopReason> {
    let mut bytes = [0; 8];
    let wanted = bytes.get_mut(..usize::from(size)).filter(|wanted| !wanted.is_empty()).ok_or(bad)?;
    memory.read(address, wanted).ok_or(StopReason::UnreadableMemory { address })?;
    Ok(u64::from_le_bytes(bytes))
}

/// A value that is known except for one register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Linear {
    /// The register, or `None` for a plain number.
    pub(crate) register: Option<u16>,
    pub(crate) offset: i64,
}

/// The result of [`linear`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LinearResult {
    pub(crate) value: Linear,
    /// True when the result is the word in memory at `value`.
    pub(crate) is_loaded: bool,
    /// True when the result depends on the pc.
    pub(crate) depends_on_pc: bool,
}

/// Evaluates `bytes` with only the pc known. Returns `None` when the result is neither a register
/// plus a number nor the word stored there.
pub(super) fn linear<M: Machine>(bytes: &[u8], pc: u64) -> Option<LinearResult> {
    // Four values, as the entries of a procedure linkage table need.
    let mut stack = LinearStack { values: [Linear { register: None, offset: 0 }; 4], depth: 0 };
    let mut depends_on_pc = false;
    let mut program = Cursor::new(bytes, 0, bytes.len()).ok()?;
    while !program.is_empty() {
        let opcode = program.byte().ok()?;
        if let Some(constant) = read_constant(opcode, &mut program, WordSize::Bits64) {
            stack.push(Linear { register: None, offset: constant as i64 })?;
            continue;
        }
        match opcode {
            0x70..=0x8f | 0x92 => {
                let (number, offset) = register_and_offset(opcode, &mut program)?;
                if number == M::PROGRAM_COUNTER {
                    depends_on_pc = true;
                    stack.push(Linear { register: None, offset: pc.wrapping_add_signed(offset) as i64 })?;
                } else {
                    stack.push(Linear { register: Some(number), offset })?;
                }
            }
            0x23 => {
                let value = stack.pop()?;
                let more = program.uleb().ok()? as i64;
                stack.push(Linear { offset: value.offset.wrapping_add(more), ..value })?;
            }
            0x06 if program.is_empty() => {
                return Some(LinearResult { value: stack.pop()?, is_loaded: true, depends_on_pc });
            }
            0x1a..=0x1e | 0x21 | 0x22 | 0x24..=0x27 | 0x29..=0x2e => {
                let (top, below) = (stack.pop()?, stack.pop()?);
                stack.push(combine_linear(opcode, below, top)?)?;
            }
            _ => return None,
        }
    }
    Some(LinearResult { value: stack.pop()?, is_loaded: false, depends_on_pc })
}

struct LinearStack {
    values: [Linear; 4],
    depth: usize,
}

impl LinearStack {
    fn push(&mut self, value: Linear) -> Option<()> {
        *self.values.get_mut(self.depth)? = value;
        self.depth += 1;
        Some(())
    }

    fn pop(&mut self) -> Option<Linear> {
        self.depth = self.depth.checked_sub(1)?;
        self.values.get(self.depth).copied()
    }
}

/// Sums may have a register on one side, everything else needs plain numbers.
fn combine_linear(opcode: u8, below: Linear, top: Linear) -> Option<Linear> {
    match (opcode, below.register, top.register) {
        (_, None, None) => {
            let offset = combine(opcode, below.offset as u64, top.offset as u64)? as i64;
            Some(Linear { register: None, offset })
        }
        (0x22, Some(register), None) | (0x22, None, Some(register)) => {
            Some(Linear { register: Some(register), offset: below.offset.wrapping_add(top.offset) })
        }
        (0x1c, Some(register), None) => {
            Some(Linear { register: Some(register), offset: below.offset.wrapping_sub(top.offset) })
        }
        _ => None,
    }
}
