//! DWARF numbers of the registers, which differ from the processor's own: there, rdx and rcx, rsi
//! and rbx are swapped.

/// Number of tracked registers: the general ones and the pc.
pub const REGISTER_COUNT: usize = 17;

macro_rules! registers {
    ($($name:ident = $number:literal),* $(,)?) => {
        $(
            #[doc = concat!("DWARF register ", $number, ".")]
            pub const $name: u16 = $number;
        )*
    };
}

registers! {
    RAX = 0, RDX = 1, RCX = 2, RBX = 3, RSI = 4, RDI = 5, RBP = 6, RSP = 7,
    R8 = 8, R9 = 9, R10 = 10, R11 = 11, R12 = 12, R13 = 13, R14 = 14, R15 = 15, RIP = 16,
}
