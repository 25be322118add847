//! DWARF numbers of the registers: x0 to x30 have their own.

/// How many registers are tracked: the general ones, the stack pointer and the pc.
pub const REGISTER_COUNT: usize = 33;
/// The first register that a callee preserves.
pub(super) const X19: u16 = 19;
/// The frame pointer.
pub const X29: u16 = 29;
/// The link register.
pub const X30: u16 = 30;
/// The stack pointer.
pub const SP: u16 = 31;
/// The pc. DWARF reserves its number and the tables never name it: the return address column is x30.
pub const PC: u16 = 32;
