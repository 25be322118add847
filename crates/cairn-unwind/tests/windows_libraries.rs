//! Every function of real Windows libraries, against `pe-unwind-info`: the whole step and the
//! packed rule, on the same registers and memory.
//!
//! Libraries that are not installed are skipped and named; see [`DIRECTORIES`].

#![allow(clippy::print_stdout, reason = "shown by `cargo test -- --nocapture`: what was compared")]

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::PathBuf;

use cairn_format::AbsoluteAddress;
use cairn_unwind::pdata::{CodePlace, FunctionTable, PeImage};
use cairn_unwind::x86_64::{
    R8, R9, R10, R11, R12, R13, R14, R15, RAX, RBP, RBX, RCX, RDI, RDX, RIP, RSI, RSP, X86_64,
};
use cairn_unwind::{FnMemory, Machine, Registers, RuleFailure};
use object::read::pe::PeFile64;
use object::{Object, ObjectSection};
use pe_unwind_info::x86_64::{
    FunctionEpilogInstruction, FunctionTableEntries, Register, RuntimeFunction, UnwindInfo,
    UnwindInfoTrailer, UnwindOperation, UnwindState, XmmRegister,
};

/// Directories of libraries, and the packages that have them.
const DIRECTORIES: &[(&str, &str)] = &[
    ("/usr/lib/gcc/x86_64-w64-mingw32/12-win32", "gcc-mingw-w64-x86-64-win32-runtime"),
    ("/usr/x86_64-w64-mingw32/lib", "mingw-w64-x86-64-dev"),
    ("/usr/lib/x86_64-linux-gnu/wine/x86_64-windows", "libwine"),
];
const LIBRARIES: &[&str] = &[
    "libstdc++-6.dll",
    "libgcc_s_seh-1.dll",
    "libwinpthread-1.dll",
    "ntdll.dll",
    "kernel32.dll",
    "kernelbase.dll",
    "msvcrt.dll",
    "ucrtbase.dll",
];

/// Names more files to compare, separated by `:`.
const MORE: &str = "CAIRN_PE_FILES";

fn libraries() -> Vec<PathBuf> {
    let mut found = Vec::new();
    for (directory, package) in DIRECTORIES {
        if !PathBuf::from(directory).is_dir() {
            println!("skipped, not installed: {directory} (package {package})");
        }
        found.extend(
            LIBRARIES.iter().map(|name| PathBuf::from(directory).join(name)).filter(|path| path.exists()),
        );
    }
    found.extend(
        std::env::var(MORE).unwrap_or_default().split(':').filter(|name| !name.is_empty()).map(PathBuf::from),
    );
    found
}

const BASE: u64 = 0x1_8000_0000;
const STACK: u64 = 0x7000_0000;
/// DWARF numbers by the processor's own, as `Register` has them.
const DWARF: [u16; 16] = [RAX, RCX, RDX, RBX, RSP, RBP, RSI, RDI, R8, R9, R10, R11, R12, R13, R14, R15];
/// Registers that a callee preserves.
const PRESERVED: [u16; 9] = [RBX, RBP, RSP, RSI, RDI, R12, R13, R14, R15];

/// The word at an address: any, and the same each time.
fn word_at(address: u64) -> u64 {
    address.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The bytes of a file as the loader maps them.
fn mapped(file: &PeFile64<'_>) -> Vec<u8> {
    let size = file.nt_headers().optional_header.size_of_image.get(object::LittleEndian) as usize;
    let mut image = vec![0; size];
    let headers = file.data().get(..0x400).unwrap();
    image[..headers.len()].copy_from_slice(headers);
    let base = file.relative_address_base();
    for section in file.sections() {
        let place = (section.address() - base) as usize;
        let data = section.data().unwrap_or_default();
        let data = &data[..data.len().min(section.size() as usize)];
        image[place..place + data.len()].copy_from_slice(data);
    }
    image
}

struct Oracle<'a> {
    image: &'a [u8],
    values: [u64; 16],
}

impl UnwindState for Oracle<'_> {
    fn read_register(&mut self, register: Register) -> u64 {
        self.values[register as usize]
    }

    fn read_stack(&mut self, address: u64) -> Option<u64> {
        Some(word_at(address))
    }

    fn write_register(&mut self, register: Register, value: u64) {
        self.values[register as usize] = value;
    }

    fn write_xmm_register(&mut self, _: XmmRegister, _: u128) {}
}

/// An answer of the oracle.
enum Answer {
    /// The return address; the other registers are in its state.
    Caller(u64),
    /// When the oracle is known to be wrong there, or its answer depends on what is not code.
    NotComparable,
}

impl<'a> Oracle<'a> {
    fn new(image: &'a [u8], registers: &Registers<X86_64>) -> Self {
        Self { image, values: DWARF.map(|number| registers.value(number).unwrap()) }
    }

    fn info(&self, function: &RuntimeFunction) -> UnwindInfo<'a> {
        UnwindInfo::parse(&self.image[function.unwind_info_address.get() as usize..]).unwrap()
    }

    /// Steps by the codes, as framehop does for frames that have called.
    fn by_codes(&mut self, function: &RuntimeFunction, place: u32) -> u64 {
        let offset = place - function.begin_address.get();
        let mut info = self.info(function);
        let mut is_first = true;
        loop {
            // The offsets of these are no places in the prologue.
            let operations = info
                .unwind_operations()
                .filter(|(_, operation)| !matches!(operation, UnwindOperation::EpilogInformation(_)));
            for (_, operation) in operations.skip_while(|(at, _)| is_first && u32::from(*at) > offset) {
                if let ControlFlow::Break(pc) = info.resolve_operation(self, &operation).unwrap() {
                    return pc;
                }
            }
            let Some(UnwindInfoTrailer::ChainedUnwindInfo { chained }) = info.trailer() else { break };
            info = UnwindInfo::parse(&self.image[chained.unwind_info_address.get() as usize..]).unwrap();
            is_first = false;
        }
        self.pop()
    }

    /// Gives the frame register its value by the stack pointer.
    ///
    /// That is its value in a function that has no variable allocation. Registers that were pushed
    /// after it was set are found by either one.
    fn set_frame_register(&self, function: &RuntimeFunction, place: u32, registers: &mut Registers<X86_64>) {
        let info = self.info(function);
        let Some(frame) = info.frame_register() else { return };
        let mut sp = STACK;
        for (at, operation) in info.unwind_operations() {
            if u32::from(at) > place - function.begin_address.get() {
                continue;
            }
            match operation {
                UnwindOperation::UnStackAlloc(bytes) => sp += u64::from(bytes),
                UnwindOperation::PopNonVolatile(_) => sp += 8,
                UnwindOperation::RestoreSPFromFP => {
                    registers.set(DWARF[frame as usize], sp + u64::from(info.frame_register_offset()));
                }
                _ => {}
            }
        }
    }

    fn pop(&mut self) -> u64 {
        let rsp = self.values[Register::RSP as usize];
        self.values[Register::RSP as usize] = rsp.wrapping_add(8);
        word_at(rsp)
    }

    /// Steps from an instruction, which may be in an epilogue.
    fn by_instruction(&mut self, function: &RuntimeFunction, place: u32) -> Answer {
        let info = self.info(function);
        let (begin, end) = (function.begin_address.get(), function.end_address.get());
        if place - begin < info.prolog_size.into() {
            return Answer::Caller(self.by_codes(function, place));
        }
        let frame = info.frame_register();
        let mut code = &self.image[place as usize..end as usize];
        let mut instructions = Vec::new();
        loop {
            match FunctionEpilogInstruction::parse(code, frame, instructions.is_empty()) {
                // It takes relative jumps within the function for returns, and knows prefixes in
                // front of returns, the long form of `pop` and `pop rsp`, which no compiler emits.
                Ok(None) if code[0] != 0xc3 => return Answer::NotComparable,
                Ok(None) => break,
                Ok(Some((instruction, rest))) => {
                    let is_of_rsp = matches!(instruction, FunctionEpilogInstruction::Pop(Register::RSP));
                    if is_of_rsp || code[..code.len() - rest.len()].contains(&0x8f) {
                        return Answer::NotComparable;
                    }
                    // It reads distances without their sign.
                    let length = code.len() - rest.len();
                    let is_short = length == 4;
                    let signed = |n: u32| if is_short { n as u8 as i8 as i32 } else { n as i32 };
                    instructions.push(match instruction {
                        FunctionEpilogInstruction::AddSP(n) => (None, signed(n)),
                        FunctionEpilogInstruction::AddSPFromFP(n) => (frame, signed(n)),
                        FunctionEpilogInstruction::Pop(register) => (Some(register), POP),
                    });
                    code = rest;
                }
                // It does not know these forms of returns and jumps.
                Err(_) if ends_in_another_way(code) => return Answer::NotComparable,
                Err(_) => return Answer::Caller(self.by_codes(function, place)),
            }
        }
        if instructions.iter().any(|(register, n)| register.is_none() && *n < 0) {
            return Answer::NotComparable;
        }
        for (register, n) in instructions {
            let rsp = Register::RSP as usize;
            match (register, n) {
                (Some(register), POP) => self.values[register as usize] = self.pop(),
                (Some(register), n) => {
                    self.values[rsp] = self.values[register as usize].wrapping_add_signed(n.into());
                }
                (None, n) => self.values[rsp] = self.values[rsp].wrapping_add_signed(n.into()),
            }
        }
        Answer::Caller(self.pop())
    }
}

/// True for the ends of epilogues that the oracle does not know.
///
/// These are `ret n`, prefixes of `ret`, and `jmp` through a register or a far place.
fn ends_in_another_way(code: &[u8]) -> bool {
    matches!(code, [0xc2, ..] | [0xf2 | 0xf3, 0xc3, ..] | [0xff, 0x25, ..] | [0x48..=0x4f, 0xff, ..])
}

/// A pop, among distances.
const POP: i32 = i32::MIN;

#[derive(Default, Debug)]
struct Counts {
    functions: u64,
    places: u64,
    in_epilogues_or_jumps: u64,
    by_rule: u64,
    by_full_row: u64,
}

#[test]
fn every_function_agrees_with_pe_unwind_info() {
    let mut all = BTreeMap::new();
    for path in libraries() {
        let bytes = std::fs::read(&path).unwrap();
        let file = PeFile64::parse(&*bytes).unwrap();
        let image = mapped(&file);
        let counts = compare(&image);
        println!("{}: {counts:?}", path.display());
        all.insert(path, counts);
    }
    let full: u64 = all.values().map(|counts| counts.by_full_row).sum();
    let places: u64 = all.values().map(|counts| counts.places).sum();
    assert!(full * 20 < places || places == 0, "{full} of {places} places have no packed rule");
}

fn compare(image: &[u8]) -> Counts {
    let mut counts = Counts::default();
    let table = FunctionTable::of_image(PeImage::loaded(AbsoluteAddress::new(BASE), image)).unwrap();
    let pdata = section(image, b".pdata\0\0").unwrap_or_default();
    let entries = FunctionTableEntries::parse(pdata);
    for index in 0..table.len() {
        let (begin, end) = table.function(index).unwrap();
        counts.functions += 1;
        let (begin, end) = ((begin.value() - BASE) as u32, (end.value() - BASE) as u32);
        // Bytes within instructions are compared as well: both decoders take them for code.
        for place in begin..end {
            // All of the prologue and of the last epilogue, and some of the rest.
            if place - begin > 20 && end - place > 12 && place % 97 != 0 {
                continue;
            }
            let Some(function) = entries.lookup(place) else { panic!("{place:x} has no entry") };
            compare_place(image, &table, function, place, &mut counts);
        }
    }
    counts
}

/// The section of that name.
fn section<'a>(image: &'a [u8], name: &[u8; 8]) -> Option<&'a [u8]> {
    let file = PeFile64::parse(image).ok()?;
    let header = file.section_table().iter().find(|section| section.name == *name)?;
    let (place, size) = header.pe_address_range_in_image();
    image.get(place as usize..(place + size) as usize)
}

trait InImage {
    fn pe_address_range_in_image(&self) -> (u32, u32);
}

impl InImage for object::pe::ImageSectionHeader {
    fn pe_address_range_in_image(&self) -> (u32, u32) {
        (self.virtual_address.get(object::LittleEndian), self.virtual_size.get(object::LittleEndian))
    }
}

fn compare_place(
    image: &[u8],
    table: &FunctionTable<'_>,
    function: &RuntimeFunction,
    place: u32,
    counts: &mut Counts,
) {
    let address = AbsoluteAddress::new(BASE + u64::from(place));
    let mut registers = Registers::<X86_64>::new(address.value(), STACK, STACK + 0x100);
    for (index, number) in DWARF.into_iter().enumerate() {
        if registers.value(number).is_none() {
            registers.set(number, STACK + 0x1000 * index as u64);
        }
    }
    Oracle::new(image, &registers).set_frame_register(function, place, &mut registers);
    // The byte behind the call, which is looked up one byte earlier.
    let after = AbsoluteAddress::new(address.value() + 1);
    let mut oracle = Oracle::new(image, &registers);
    let pc = oracle.by_codes(function, place);
    check(table, CodePlace::ReturnAddress(after), &registers, &oracle.values, pc, counts);

    let mut oracle = Oracle::new(image, &registers);
    match oracle.by_instruction(function, place) {
        Answer::Caller(pc) => {
            check(table, CodePlace::Instruction(address), &registers, &oracle.values, pc, counts);
        }
        Answer::NotComparable => counts.in_epilogues_or_jumps += 1,
    }
}

fn check(
    table: &FunctionTable<'_>,
    place: CodePlace,
    registers: &Registers<X86_64>,
    values: &[u64; 16],
    pc: u64,
    counts: &mut Counts,
) {
    let memory = FnMemory(|address: AbsoluteAddress, into: &mut [u8]| {
        into.copy_from_slice(word_at(address.value()).to_le_bytes().get(..into.len())?);
        Some(())
    });
    let caller =
        table.step(place, registers, &memory).unwrap_or_else(|reason| panic!("{place:x?}: {reason}"));
    counts.places += 1;
    assert_eq!(caller.value(RIP), Some(pc), "{place:x?}: pc");
    for (number, value) in DWARF.into_iter().zip(values) {
        if PRESERVED.contains(&number) {
            assert_eq!(caller.value(number), Some(*value), "{place:x?}: register {number}");
        }
    }
    match X86_64::apply(table.rule::<X86_64>(place).unwrap(), registers.core(), &memory) {
        Ok(core) => {
            counts.by_rule += 1;
            assert_eq!((core.pc, core.sp, core.fp), (pc, caller.sp(), caller.fp()), "{place:x?}: rule");
        }
        Err(RuleFailure::NeedsFullEvaluation) => counts.by_full_row += 1,
        Err(failure) => panic!("{place:x?}: {failure:?}"),
    }
}
