//! Steps out of code that runtimes have made: none are known on Windows.

use cairn_unwind::{CoreRegisters, MemoryReader};

use crate::stacks::process::Process;

pub(crate) fn are_known() -> bool {
    false
}

pub(crate) fn forget_unloaded() {}

pub(crate) fn caller(
    _process: &Process,
    _callee: CoreRegisters,
    _memory: &dyn MemoryReader,
) -> Option<CoreRegisters> {
    None
}
