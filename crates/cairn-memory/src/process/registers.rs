//! The general registers of a thread, as in `PTRACE_GETREGSET` and the core file note
//! `NT_PRSTATUS`.

use cairn_unwind::aarch64::Aarch64;
use cairn_unwind::x86_64::{self, X86_64};
use cairn_unwind::{Registers, aarch64};

/// The registers of a stopped thread, by architecture.
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub enum ThreadRegisters {
    /// x86-64.
    X86_64(Registers<X86_64>),
    /// AArch64.
    Aarch64(Registers<Aarch64>),
}

/// Registers in the kernel's order, as DWARF numbers; `SKIPPED` ones are not tracked.
const X86_64_ORDER: [u16; 27] = {
    use x86_64::{R8, R9, R10, R11, R12, R13, R14, R15, RAX, RBP, RBX, RCX, RDI, RDX, RIP, RSI, RSP};
    const SKIPPED: u16 = u16::MAX;
    let general = [R15, R14, R13, R12, RBP, RBX, R11, R10, R9, R8, RAX, RCX, RDX, RSI, RDI];
    let mut order = [SKIPPED; 27];
    let mut index = 0;
    while index < general.len() {
        order[index] = general[index];
        index += 1;
    }
    order[16] = RIP;
    order[19] = RSP;
    order
};

/// Words of x0 to x30, sp, pc, and the status register, which is not tracked.
const AARCH64_WORDS: usize = 34;

impl ThreadRegisters {
    /// Parses the kernel's `struct user_regs_struct` of x86-64.
    ///
    /// `None` for any other size: a 32-bit thread has 68 bytes.
    #[must_use]
    pub fn from_x86_64(bytes: &[u8]) -> Option<Self> {
        let words = words::<27>(bytes)?;
        let mut registers = Registers::new(0, 0, 0);
        for (register, value) in X86_64_ORDER.into_iter().zip(words) {
            registers.set(register, value);
        }
        Some(Self::X86_64(registers))
    }

    /// Returns the thread pointer, from the bytes of [`from_x86_64`](Self::from_x86_64); `None` on
    /// other machines.
    #[cfg(target_os = "linux")]
    pub(crate) fn thread_pointer(&self, bytes: &[u8]) -> Option<u64> {
        /// Index of `fs_base`.
        const WORD: usize = 21;
        let Self::X86_64(_) = self else { return None };
        words::<27>(bytes)?.get(WORD).copied()
    }

    /// Parses the kernel's `struct user_pt_regs` of AArch64.
    ///
    /// `None` for any other size: a 32-bit thread has 72 bytes.
    ///
    /// `address_mask` has the bits of a code address without a signature.
    #[must_use]
    pub fn from_aarch64(bytes: &[u8], address_mask: u64) -> Option<Self> {
        let words = words::<AARCH64_WORDS>(bytes)?;
        let mut registers = Registers::new(0, 0, 0).with_address_mask(address_mask);
        for (register, value) in (0..=aarch64::PC).zip(words) {
            registers.set(register, value);
        }
        Some(Self::Aarch64(registers))
    }
}

fn words<const COUNT: usize>(bytes: &[u8]) -> Option<[u64; COUNT]> {
    let (words, rest) = bytes.as_chunks::<8>();
    let words: &[[u8; 8]; COUNT] = words.try_into().ok().filter(|_| rest.is_empty())?;
    Some(words.map(u64::from_le_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(count: u64) -> Vec<u8> {
        (0..count).flat_map(u64::to_le_bytes).collect()
    }

    #[test]
    fn registers_are_in_kernel_order() {
        let Some(ThreadRegisters::X86_64(registers)) = ThreadRegisters::from_x86_64(&counted(27)) else {
            panic!("27 words are the registers of x86-64");
        };
        assert_eq!((registers.pc().value(), registers.sp(), registers.fp()), (16, 19, 4));
        assert_eq!((registers.value(x86_64::R15), registers.value(x86_64::RDI)), (Some(0), Some(14)));
        let Some(ThreadRegisters::Aarch64(registers)) = ThreadRegisters::from_aarch64(&counted(34), 0xffff)
        else {
            panic!("34 words are the registers of AArch64");
        };
        assert_eq!((registers.pc().value(), registers.sp(), registers.fp()), (32, 31, 29));
        assert_eq!((registers.value(aarch64::X30), registers.address_mask()), (Some(30), 0xffff));
    }

    #[test]
    fn registers_of_wrong_size_are_refused() {
        assert_eq!(ThreadRegisters::from_x86_64(&[0; 68]), None);
        assert_eq!(ThreadRegisters::from_x86_64(&counted(28)), None);
        assert_eq!(ThreadRegisters::from_aarch64(&counted(27), u64::MAX), None);
    }
}
