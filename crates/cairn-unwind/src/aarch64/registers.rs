//! DWARF numbers of the registers: x0 to x30 have their own.

/// Number of tracked registers: the general ones, the stack pointer and the pc.
pub const REGISTER_COUNT: usize = 33;
/// The first register that a callee preserves.
pub(super) const X19: u16 = 19;
/// The frame pointer.
pub const X29: u16 = 29;
/// The link register.
pub const X30: u16 = 30;
/// The stack pointer.
pub const SP: u16 = 31;
/// The pc. DWARF reserves its number, and tables never use it: the return address column is x30.
pub const PC: u16 = 32;
