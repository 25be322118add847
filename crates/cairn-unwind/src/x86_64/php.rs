//! The step out of code that PHP's JIT has made.
//!
//! The interpreter's function, `execute_ex`, jumps to compiled code and back. So compiled code runs
//! in that function's frame, at the same stack pointer: the frame has room for its temporary
//! values. Where it leaves a trace, it saves all registers below, and restores the stack pointer by
//! the instruction at the return address. The parts that it calls itself push a return address and
//! 8 bytes:
//!
//! ```text
//!   CFA    -> | the frame that called execute_ex |
//!   CFA-8     | return address                   |
//!             | execute_ex: registers, locals    | <- rsp in compiled code
//!             | return address in compiled code  |
//!             | padding                          | <- rsp in a part that it has called
//! ```
//!
//! A step is proven by the return address outside: the call in front of it is one of `execute_ex`.
//! A wrong distance reads another word: one of the registers that `execute_ex` or a part has saved,
//! which never holds a return address.

use cairn_format::AbsoluteAddress;

use super::rule::X86_64Rule;
use crate::{CALL_BYTES, CoreRegisters, MemoryReader};

/// Bytes from the stack pointer of a called part up to that of the code that has called it.
const PART_BYTES: u64 = 16;

/// The functions of a PHP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PhpFunctions {
    /// `execute_ex`.
    pub execute: u64,
    /// `zend_execute_ex`, the variable by which it is called.
    pub execute_variable: u64,
    /// The rule of the tables for the frame of `execute_ex` behind its first instructions.
    pub rule: X86_64Rule,
}

/// The answers about code that a step needs.
pub trait PhpCode {
    /// Decides whether a call returns to `address`.
    fn is_return_address(&self, address: AbsoluteAddress) -> bool;
    /// Decides whether `address` lies in executable memory that belongs to no module.
    fn is_generated(&self, address: AbsoluteAddress) -> bool;
    /// Fills all of `into` with the code at `address`, or returns `None`.
    fn read(&self, address: AbsoluteAddress, into: &mut [u8]) -> Option<()>;
}

/// Steps from a return address in compiled code; `None` when it is in none.
pub fn step(
    functions: &PhpFunctions,
    compiled: CoreRegisters,
    memory: &dyn MemoryReader,
    code: &dyn PhpCode,
) -> Option<CoreRegisters> {
    if let Some(caller) = leave(functions, compiled, memory, code) {
        return Some(caller);
    }
    if let Some(caller) = leave_exit(functions, compiled, memory, code) {
        return Some(caller);
    }
    let return_address = memory.word64(AbsoluteAddress::new(compiled.sp.checked_add(8)?))?;
    let caller = CoreRegisters { pc: return_address, sp: compiled.sp.checked_add(PART_BYTES)?, ..compiled };
    let address = AbsoluteAddress::new(return_address);
    let is_call = code.is_generated(address) && code.is_return_address(address);
    (is_call && leave(functions, caller, memory, code).is_some()).then_some(caller)
}

/// Steps from the exit of a trace, which continues with `add rsp, 256`.
fn leave_exit(
    functions: &PhpFunctions,
    compiled: CoreRegisters,
    memory: &dyn MemoryReader,
    code: &dyn PhpCode,
) -> Option<CoreRegisters> {
    const ADDED: u64 = 256;
    const ADD: [u8; 7] = [0x48, 0x81, 0xc4, 0, 1, 0, 0];
    let mut bytes = [0; ADD.len()];
    code.read(AbsoluteAddress::new(compiled.pc), &mut bytes).filter(|()| bytes == ADD)?;
    leave(functions, CoreRegisters { sp: compiled.sp.checked_add(ADDED)?, ..compiled }, memory, code)
}

/// Steps from `execute_ex`, which has jumped to the code at this stack pointer.
fn leave(
    functions: &PhpFunctions,
    compiled: CoreRegisters,
    memory: &dyn MemoryReader,
    code: &dyn PhpCode,
) -> Option<CoreRegisters> {
    let caller = functions.rule.apply(compiled, &memory).ok()?;
    calls_execute(functions, caller.pc, code).then_some(caller)
}

/// Decides whether the call in front of this return address may be one of `execute_ex`.
fn calls_execute(functions: &PhpFunctions, return_address: u64, code: &dyn PhpCode) -> bool {
    let mut bytes = [0; CALL_BYTES];
    let start = AbsoluteAddress::new(return_address.wrapping_sub(CALL_BYTES as u64));
    let address = AbsoluteAddress::new(return_address);
    if return_address == 0
        || !code.is_return_address(address)
        || code.is_generated(address)
        || code.read(start, &mut bytes).is_none()
    {
        return false;
    }
    let target = |offset: [u8; 4]| return_address.wrapping_add_signed(i64::from(i32::from_le_bytes(offset)));
    match bytes {
        // call rel32
        [.., 0xe8, a, b, c, d] if target([a, b, c, d]) == functions.execute => true,
        // call [rip + rel32]
        [.., 0xff, 0x15, a, b, c, d] if target([a, b, c, d]) == functions.execute_variable => true,
        // call [register], which has the address of the variable; not rsp or rbp
        [.., 0xff, operand] => operand & 0xf8 == 0x10 && operand & 7 != 4 && operand & 7 != 5,
        _ => false,
    }
}
