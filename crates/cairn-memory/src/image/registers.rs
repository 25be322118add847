//! The registers of an image's threads, on machines with and without stack walks.

use cairn_format::AbsoluteAddress;
use cairn_unwind::{aarch64, x86_64};
use cairn_wire::heapblock::ByteOrder;

use super::Fields;
use crate::process::{Thread, ThreadRegisters};

/// A thread of an image.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct ImageThread {
    /// The number of the thread.
    pub id: u32,
    /// The name, if the image has it.
    pub name: String,
    /// The signal that was about to be delivered, if any.
    pub signal: Option<u32>,
    /// Names and values of its general registers, in the machine's usual order.
    pub registers: Vec<(&'static str, u64)>,
    /// The stack pointer.
    pub sp: Option<AbsoluteAddress>,
    /// The next instruction.
    pub pc: Option<AbsoluteAddress>,
    /// See [`Thread::thread_pointer`].
    pub thread_pointer: Option<u64>,
    /// The registers for a stack walk; `None` on machines without stack walks.
    pub walk: Option<Walkable>,
}

/// Registers for a stack walk.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Walkable(WalkRegisters);

#[derive(Clone, Copy, PartialEq, Debug)]
enum WalkRegisters {
    /// Complete: the address mask is known or unnecessary.
    Ready(ThreadRegisters),
    /// The words in kernel order; the address mask is not yet known.
    Aarch64([u64; 34]),
}

impl Walkable {
    pub(super) fn ready(registers: ThreadRegisters) -> Self {
        Self(WalkRegisters::Ready(registers))
    }
}

impl ImageThread {
    pub(super) fn walkable(&self, address_mask: u64) -> Option<Thread> {
        let registers = match self.walk?.0 {
            WalkRegisters::Ready(registers) => registers,
            WalkRegisters::Aarch64(words) => {
                let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
                ThreadRegisters::from_aarch64(&bytes, address_mask)?
            }
        };
        let (name, thread_pointer) = (self.name.clone(), self.thread_pointer);
        Some(Thread { id: self.id, name, registers: Ok(registers), thread_pointer })
    }

    /// Creates a thread from parsed registers.
    pub(super) fn of_walk(id: u32, name: String, registers: ThreadRegisters) -> Self {
        let (list, pc, sp): (Vec<(&'static str, u64)>, _, _) = match registers {
            ThreadRegisters::X86_64(of) => {
                let known = X86_64_NAMES.iter().filter_map(|&(name, number)| Some((name, of.value(number)?)));
                (known.collect(), of.pc(), of.sp())
            }
            ThreadRegisters::Aarch64(of) => {
                let numbers = (0..=30).zip(AARCH64_NAMES).chain([(aarch64::SP, "sp"), (aarch64::PC, "pc")]);
                (
                    numbers.filter_map(|(number, name)| Some((name, of.value(number)?))).collect(),
                    of.pc(),
                    of.sp(),
                )
            }
        };
        Self {
            id,
            name,
            signal: None,
            registers: list,
            sp: Some(AbsoluteAddress::new(sp)),
            pc: Some(pc),
            thread_pointer: None,
            walk: Some(Walkable::ready(registers)),
        }
    }

    /// Creates a thread from register words in the kernel's order for this processor.
    pub(super) fn of_words(id: u32, name: String, processor: u16, words: &[u64]) -> Self {
        let mut thread = Self {
            id,
            name,
            signal: None,
            registers: Vec::new(),
            sp: None,
            pc: None,
            thread_pointer: None,
            walk: None,
        };
        let names: &[&'static str] = match processor {
            elf::X86_64 => &X86_64_KERNEL,
            elf::AARCH64 => &AARCH64_KERNEL,
            elf::I386 => &I386_KERNEL,
            elf::ARM => &ARM_KERNEL,
            _ => &[],
        };
        let named = names.iter().copied().chain(std::iter::repeat("word")).zip(words.iter().copied());
        thread.registers = named.filter(|(name, _)| !name.is_empty()).collect();
        let value = |wanted: &str| {
            let found = thread.registers.iter().find(|(name, _)| *name == wanted);
            found.map(|&(_, value)| AbsoluteAddress::new(value))
        };
        (thread.pc, thread.sp) = match processor {
            elf::X86_64 => (value("rip"), value("rsp")),
            elf::I386 => (value("eip"), value("esp")),
            elf::AARCH64 | elf::ARM => (value("pc"), value("sp")),
            _ => (None, None),
        };
        thread.thread_pointer = value("fs_base").map(AbsoluteAddress::value);
        thread.walk = match processor {
            elf::X86_64 => {
                let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
                ThreadRegisters::from_x86_64(&bytes).map(Walkable::ready)
            }
            elf::AARCH64 => words.first_chunk().map(|words| Walkable(WalkRegisters::Aarch64(*words))),
            _ => None,
        };
        thread
    }
}

/// Machine numbers of ELF headers.
pub(super) mod elf {
    pub(in crate::image) const I386: u16 = 3;
    pub(in crate::image) const ARM: u16 = 40;
    pub(in crate::image) const X86_64: u16 = 62;
    pub(in crate::image) const AARCH64: u16 = 183;

    pub(in crate::image) fn name(machine: u16) -> Option<&'static str> {
        Some(match machine {
            I386 => "x86",
            ARM => "Arm",
            X86_64 => "x86-64",
            AARCH64 => "AArch64",
            2 | 18 | 43 => "SPARC",
            8 => "MIPS",
            20 => "PowerPC",
            21 => "PowerPC 64",
            22 => "s390",
            243 => "RISC-V",
            258 => "LoongArch",
            _ => return None,
        })
    }
}

/// The relevant part of a `prstatus` note.
pub(super) struct Status {
    pub(super) thread: u32,
    pub(super) signal: u32,
    pub(super) words: Vec<u64>,
}

impl Status {
    /// Parses the kernel's `struct elf_prstatus`: signals, ids, times, the registers, and one more
    /// word.
    pub(super) fn read(note: &[u8], order: ByteOrder, is_wide: bool) -> Option<Self> {
        let fields = Fields { bytes: note, order, is_wide };
        let (registers, trailing) = if is_wide { (112, 8) } else { (72, 4) };
        let signal = fields.u16(12)?.into();
        let thread = fields.u32(if is_wide { 32 } else { 24 })?;
        let word = if is_wide { 8 } else { 4 };
        let count = (note.len() as u64).checked_sub(registers + trailing)? / word;
        let behind = fields.at(registers)?;
        let words = (0..count.min(64)).map_while(|index| behind.word(index)).collect();
        Some(Self { thread, signal, words })
    }
}

const X86_64_NAMES: [(&str, u16); 17] = [
    ("rax", x86_64::RAX),
    ("rbx", x86_64::RBX),
    ("rcx", x86_64::RCX),
    ("rdx", x86_64::RDX),
    ("rsi", x86_64::RSI),
    ("rdi", x86_64::RDI),
    ("rbp", x86_64::RBP),
    ("rsp", x86_64::RSP),
    ("r8", x86_64::R8),
    ("r9", x86_64::R9),
    ("r10", x86_64::R10),
    ("r11", x86_64::R11),
    ("r12", x86_64::R12),
    ("r13", x86_64::R13),
    ("r14", x86_64::R14),
    ("r15", x86_64::R15),
    ("rip", x86_64::RIP),
];

/// An empty name is a register without an address.
const X86_64_KERNEL: [&str; 27] = [
    "r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8", "rax", "rcx", "rdx", "rsi", "rdi",
    "", "rip", "", "", "rsp", "", "fs_base", "gs_base", "", "", "", "",
];

const AARCH64_NAMES: [&str; 31] = [
    "x0", "x1", "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9", "x10", "x11", "x12", "x13", "x14", "x15",
    "x16", "x17", "x18", "x19", "x20", "x21", "x22", "x23", "x24", "x25", "x26", "x27", "x28", "x29", "x30",
];

const AARCH64_KERNEL: [&str; 34] = [
    "x0", "x1", "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9", "x10", "x11", "x12", "x13", "x14", "x15",
    "x16", "x17", "x18", "x19", "x20", "x21", "x22", "x23", "x24", "x25", "x26", "x27", "x28", "x29", "x30",
    "sp", "pc", "",
];

const I386_KERNEL: [&str; 17] =
    ["ebx", "ecx", "edx", "esi", "edi", "ebp", "eax", "", "", "", "", "", "eip", "", "", "esp", ""];

const ARM_KERNEL: [&str; 18] =
    ["r0", "r1", "r2", "r3", "r4", "r5", "r6", "r7", "r8", "r9", "r10", "fp", "ip", "sp", "lr", "pc", "", ""];
