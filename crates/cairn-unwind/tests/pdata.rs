//! Windows unwind tables, by tables of bytes. Most are from real files, which the cases name.

use cairn_format::AbsoluteAddress;
use cairn_unwind::aarch64::{self, Aarch64};
use cairn_unwind::pdata::{CodePlace, FunctionTable, ImagePart, PdataError, PeImage, PeMachine};
use cairn_unwind::x86_64::{
    R12, R13, R14, R15, RBP, RBX, RDI, RIP, RSI, RSP, X86_64, X86_64Rule, X86_64RuleKind,
};
use cairn_unwind::{FnMemory, Machine, Registers, RuleFailure, StopReason};
use proptest::prelude::*;

const BASE: u64 = 0x1_4000_0000;
const STACK: u64 = 0x7000_0000;
/// Places of the parts of the images here.
const DATA: u32 = 0x100;
const CHAINED_DATA: u32 = 0x180;
const CODE: u32 = 0x1000;
const CODE_BYTES: usize = 0x1000;

fn word_at(address: u64) -> u64 {
    address.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn memory() -> FnMemory<impl Fn(AbsoluteAddress, &mut [u8]) -> Option<()>> {
    FnMemory(|address: AbsoluteAddress, into: &mut [u8]| {
        into.copy_from_slice(word_at(address.value()).to_le_bytes().get(..into.len())?);
        Some(())
    })
}

/// Registers with values that differ.
fn registers<M: Machine>(pc: u64) -> Registers<M> {
    let mut registers = Registers::new(pc, STACK, 0);
    for number in 0..32 {
        if u64::from(number) != u64::from(M::STACK_POINTER) && number != M::PROGRAM_COUNTER {
            registers.set(number, STACK + 0x1000 * (1 + u64::from(number)));
        }
    }
    registers
}

/// An image of one function, and its end.
struct Image {
    bytes: Vec<u8>,
    length: u32,
}

impl Image {
    fn new(code: &[u8], data: &[u8], length: u32) -> Self {
        let mut bytes = vec![0; CODE as usize + CODE_BYTES];
        for (index, word) in [CODE, CODE + length, DATA].into_iter().enumerate() {
            bytes[4 * index..4 * index + 4].copy_from_slice(&word.to_le_bytes());
        }
        bytes[DATA as usize..DATA as usize + data.len()].copy_from_slice(data);
        bytes[CODE as usize..CODE as usize + code.len()].copy_from_slice(code);
        Self { bytes, length }
    }

    fn with(mut self, place: u32, bytes: &[u8]) -> Self {
        self.bytes[place as usize..place as usize + bytes.len()].copy_from_slice(bytes);
        self
    }

    fn table(&self, machine: PeMachine) -> FunctionTable<'_> {
        FunctionTable::new(PeImage::loaded(AbsoluteAddress::new(BASE), &self.bytes), machine, 0, 1)
    }
}

fn instruction(offset: u32) -> CodePlace {
    CodePlace::Instruction(AbsoluteAddress::new(BASE + u64::from(CODE + offset)))
}

fn behind_call(offset: u32) -> CodePlace {
    CodePlace::ReturnAddress(AbsoluteAddress::new(BASE + u64::from(CODE + offset)))
}

/// A frame: the CFA, and registers saved at distances from it.
struct Expected<'e> {
    cfa: (u16, i64),
    saved: &'e [(u16, i64)],
}

const PRESERVED: [u16; 8] = [RBX, RBP, RSI, RDI, R12, R13, R14, R15];

/// Compares the step with the expected frame, and the packed rule with the step.
fn check(image: &Image, place: CodePlace, expected: &Expected<'_>) {
    let table = image.table(PeMachine::X64);
    let registers = registers::<X86_64>(BASE);
    let caller = table.step(place, &registers, &memory()).unwrap();
    let (register, offset) = expected.cfa;
    let cfa = registers.value(register).unwrap().wrapping_add_signed(offset);
    assert_eq!(caller.sp(), cfa, "{place:?}: sp");
    assert_eq!(caller.value(RIP), Some(word_at(cfa - 8)), "{place:?}: pc");
    for number in PRESERVED {
        let saved = expected.saved.iter().find(|(register, _)| *register == number);
        let value =
            saved.map_or(registers.value(number), |(_, at)| Some(word_at(cfa.wrapping_add_signed(*at))));
        assert_eq!(caller.value(number), value, "{place:?}: register {number}");
    }
    let rule = table.rule::<X86_64>(place).unwrap();
    match X86_64::apply(rule, registers.core(), &memory()) {
        Ok(core) => {
            assert_eq!((core.pc, core.sp, core.fp), (caller.pc().value(), cfa, caller.fp()), "{place:?}")
        }
        Err(failure) => assert_eq!(failure, RuleFailure::NeedsFullEvaluation, "{place:?}"),
    }
}

/// GCC 12, libstdc++-6.dll: eight pushes, 0x228 bytes, rbp = rsp + 0x80.
fn gcc_with_frame_pointer() -> Image {
    let code = [
        0x55, 0x41, 0x57, 0x41, 0x56, 0x41, 0x55, 0x41, 0x54, 0x57, 0x56, 0x53, 0x48, 0x81, 0xec, 0x28, 0x02,
        0, 0, 0x48, 0x8d, 0xac, 0x24, 0x80, 0, 0, 0,
    ];
    let data = [
        0x01, 0x1b, 0x0b, 0x85, 0x1b, 0x03, 0x13, 0x01, 0x45, 0x00, 0x0c, 0x30, 0x0b, 0x60, 0x0a, 0x70, 0x09,
        0xc0, 0x07, 0xd0, 0x05, 0xe0, 0x03, 0xf0, 0x01, 0x50, 0, 0,
    ];
    Image::new(&code, &data, 0x5cd)
}

#[test]
fn prologue_is_undone_as_far_as_it_was_executed() {
    let image = gcc_with_frame_pointer();
    let pushed =
        [(RBP, -16), (R15, -24), (R14, -32), (R13, -40), (R12, -48), (RDI, -56), (RSI, -64), (RBX, -72)];
    check(&image, instruction(0), &Expected { cfa: (RSP, 8), saved: &[] });
    check(&image, instruction(1), &Expected { cfa: (RSP, 16), saved: &pushed[..1] });
    // Within `push r15`, which is not executed yet.
    check(&image, instruction(2), &Expected { cfa: (RSP, 16), saved: &pushed[..1] });
    check(&image, instruction(0x0c), &Expected { cfa: (RSP, 72), saved: &pushed });
    check(&image, instruction(0x13), &Expected { cfa: (RSP, 0x228 + 72), saved: &pushed });
    let whole = Expected { cfa: (RBP, 0x228 - 0x80 + 72), saved: &pushed };
    check(&image, instruction(0x1b), &whole);
    check(&image, behind_call(0x100), &whole);
    check(&image, behind_call(0x5cd), &whole);
}

#[test]
fn leaf_function_calls_nothing() {
    let image = Image::new(&[], &[], 0x10);
    let behind = CODE + 0x20 - CODE;
    check(&image, instruction(behind), &Expected { cfa: (RSP, 8), saved: &[] });
    let table = image.table(PeMachine::X64);
    assert_eq!(table.rule::<X86_64>(behind_call(behind)), Err(PdataError::NotCovered));
    let outside = CodePlace::Instruction(AbsoluteAddress::new(BASE - 1));
    assert_eq!(table.rule::<X86_64>(outside), Err(PdataError::NotCovered));
    assert_eq!(table.rule::<Aarch64>(instruction(0)), Err(PdataError::NotCovered));
}

/// Microsoft's compiler, numpy: rbp and rsi are saved above the return address.
#[test]
fn registers_saved_above_the_frame_are_found() {
    let code = [0x48, 0x89, 0x6c, 0x24, 0x10, 0x48, 0x89, 0x74, 0x24, 0x18, 0x57, 0x41, 0x54, 0x41, 0x55];
    let data = [
        0x01, 0x17, 0x0a, 0x00, 0x17, 0x64, 0x0c, 0x00, 0x17, 0x54, 0x0b, 0x00, 0x17, 0x32, 0x13, 0xf0, 0x11,
        0xe0, 0x0f, 0xd0, 0x0d, 0xc0, 0x0b, 0x70,
    ];
    let image = Image::new(&code, &data, 0x37);
    let saved = [(RDI, -16), (R12, -24), (R13, -32), (R14, -40), (R15, -48), (RBP, 8), (RSI, 16)];
    check(&image, behind_call(0x37), &Expected { cfa: (RSP, 0x20 + 48), saved: &saved });
    // The registers still have their values before the last instruction of the prologue.
    check(&image, instruction(0x13), &Expected { cfa: (RSP, 48), saved: &saved[..5] });
    let rule = image.table(PeMachine::X64).rule::<X86_64>(behind_call(0x37)).unwrap();
    let expected = X86_64RuleKind::SavedAbove { is_from_fp: false, cfa_offset: 0x50, saved_fp_above: 8 };
    assert_eq!(rule.kind(), expected);
    assert_eq!(X86_64Rule::saved_above(false, 0x50, 32), None, "callers leave four words");
}

/// Microsoft's compiler, numpy: a part of the function above, which saves rbx besides.
#[test]
fn chained_part_undoes_the_whole_prologue() {
    let mut data = vec![0x21, 0x05, 0x02, 0x00, 0x05, 0x34, 0x0a, 0x00];
    for word in [0x10b0_u32, 0x10e7, CHAINED_DATA] {
        data.extend(word.to_le_bytes());
    }
    let primary = [
        0x01, 0x17, 0x0a, 0x00, 0x17, 0x64, 0x0c, 0x00, 0x17, 0x54, 0x0b, 0x00, 0x17, 0x32, 0x13, 0xf0, 0x11,
        0xe0, 0x0f, 0xd0, 0x0d, 0xc0, 0x0b, 0x70,
    ];
    let image = Image::new(&[0x48, 0x89, 0x5c, 0x24, 0x50], &data, 0x7e).with(CHAINED_DATA, &primary);
    let saved = [(RBX, 0), (RDI, -16), (R12, -24), (R13, -32), (R14, -40), (R15, -48), (RBP, 8), (RSI, 16)];
    check(&image, behind_call(0x20), &Expected { cfa: (RSP, 0x50), saved: &saved });
    check(&image, instruction(0), &Expected { cfa: (RSP, 0x50), saved: &saved[1..] });
}

#[test]
fn chain_that_leads_to_itself_is_refused() {
    let mut data = vec![0x21, 0, 0, 0];
    for word in [CODE, CODE + 0x10, DATA] {
        data.extend(word.to_le_bytes());
    }
    let image = Image::new(&[], &data, 0x10);
    assert_eq!(image.table(PeMachine::X64).rule::<X86_64>(behind_call(8)), Err(PdataError::TooLong));
    let indirect = Image::new(&[], &[], 0x10).with(8, &1_u32.to_le_bytes());
    assert_eq!(indirect.table(PeMachine::X64).rule::<X86_64>(behind_call(8)), Err(PdataError::TooLong));
}

#[test]
fn entry_that_refers_to_another_entry_has_its_data() {
    let mut other = Vec::new();
    for word in [0_u32, 0, CHAINED_DATA] {
        other.extend(word.to_le_bytes());
    }
    let image = Image::new(&[], &other, 0x10)
        .with(8, &(DATA | 1).to_le_bytes())
        .with(CHAINED_DATA, &[1, 4, 1, 0, 4, 0x42]);
    check(&image, behind_call(8), &Expected { cfa: (RSP, 0x30), saved: &[] });
}

/// Epilogues of version 1: what precedes the given end, and the frame at the place in it.
#[test]
fn epilogue_of_version_1_is_recognized_by_its_bytes() {
    // push rbx; push rsi; sub rsp, 0x28.
    let data = [0x01, 0x06, 0x03, 0x00, 0x06, 0x42, 0x02, 0x60, 0x01, 0x30];
    let body = Expected { cfa: (RSP, 0x28 + 24), saved: &[(RBX, -16), (RSI, -24)] };
    let pops = Expected { cfa: (RSP, 24), saved: &[(RBX, -16), (RSI, -24)] };
    let last_pop = Expected { cfa: (RSP, 16), saved: &[(RBX, -16)] };
    let returns = Expected { cfa: (RSP, 8), saved: &[] };
    let at = |code: &[u8], offset: u32, expected: &Expected<'_>| {
        let mut all = vec![0x90; 0x20];
        all[..6].copy_from_slice(&[0x53, 0x56, 0x48, 0x83, 0xec, 0x28]);
        all.extend(code);
        let image = Image::new(&all, &data, all.len() as u32);
        check(&image, instruction(0x20 + offset), expected);
    };
    let epilogue = [0x48, 0x83, 0xc4, 0x28, 0x5e, 0x5b, 0xc3];
    at(&epilogue, 0, &body);
    at(&epilogue, 4, &pops);
    at(&epilogue, 5, &last_pop);
    at(&epilogue, 6, &returns);
    let large = [0x48, 0x81, 0xc4, 0x28, 0, 0, 0, 0x5e, 0x5b, 0xf3, 0xc3];
    at(&large, 0, &body);
    at(&large, 9, &returns);
    // Calls of other functions as jumps: far, through the import table, through a register.
    at(&[0x5e, 0x5b, 0xe9, 0, 0, 1, 0], 0, &pops);
    at(&[0x5e, 0x5b, 0xe9, 0, 0, 1, 0], 2, &returns);
    at(&[0x5b, 0x48, 0xff, 0x25, 0, 0, 0, 0], 1, &returns);
    at(&[0x5b, 0x48, 0xff, 0xe0], 1, &returns);
    at(&[0x5b, 0x48, 0xff, 0xe0], 0, &last_pop);
    // A jump to the pops of the epilogue, and one to the function's start, which calls itself.
    at(&[0xeb, 0x01, 0x90, 0x5e, 0x5b, 0xc3], 0, &pops);
    at(&[0xe9, 0xdb, 0xff, 0xff, 0xff], 0, &returns);
    // No epilogues: a jump through a register as switches have it, other code, a jump backwards.
    at(&[0xff, 0xe0], 0, &body);
    at(&[0x5e, 0x90, 0xc3], 0, &body);
    at(&[0xeb, 0xf0], 0, &body);
    at(&[0x48, 0x83, 0xc4, 0xf8, 0xc3], 0, &body);
    // Two jumps to each other.
    at(&[0xeb, 0x00, 0xeb, 0xfc], 0, &body);
    // Cut by the end of the function.
    at(&[0x48, 0x83], 0, &body);
}

#[test]
fn return_address_is_in_no_epilogue() {
    // The call is the last instruction of its function, and its last byte is that of `ret`.
    let image = Image::new(&[0xe8, 0, 0, 0, 0xc3], &[0x01, 0x04, 0x01, 0x00, 0x04, 0x42], 5);
    check(&image, behind_call(5), &Expected { cfa: (RSP, 0x30), saved: &[] });
}

#[test]
fn epilogue_may_release_by_the_frame_register() {
    // Wine, ntdll: push rbp; mov rbp, rsp ... lea rsp, [rbp + 0]; pop rbp; ret.
    let data = [0x01, 0x04, 0x02, 0x05, 0x04, 0x03, 0x01, 0x50];
    let code = [0x55, 0x48, 0x89, 0xe5, 0x90, 0x48, 0x8d, 0x65, 0x00, 0x5d, 0xc3];
    let image = Image::new(&code, &data, code.len() as u32);
    check(&image, instruction(4), &Expected { cfa: (RBP, 16), saved: &[(RBP, -16)] });
    check(&image, instruction(5), &Expected { cfa: (RBP, 16), saved: &[(RBP, -16)] });
    check(&image, instruction(9), &Expected { cfa: (RSP, 16), saved: &[(RBP, -16)] });
    check(&image, instruction(10), &Expected { cfa: (RSP, 8), saved: &[] });
    // Another register's value is no frame.
    let code = [0x55, 0x48, 0x89, 0xe5, 0x90, 0x48, 0x8d, 0x63, 0x00, 0x5d, 0xc3];
    let image = Image::new(&code, &data, code.len() as u32);
    check(&image, instruction(5), &Expected { cfa: (RBP, 16), saved: &[(RBP, -16)] });
}

/// Microsoft's C library, `memcpy`: push rdi; push rsi ... pop rsi; pop rdi; ret.
#[test]
fn epilogue_of_version_2_is_found_by_its_codes() {
    let code =
        [0x57, 0x56, 0x48, 0x8b, 0xf9, 0x48, 0x8b, 0xf2, 0x49, 0x8b, 0xc8, 0xf3, 0xa4, 0x5e, 0x5f, 0xc3];
    let data = [0x02, 0x02, 0x04, 0x00, 0x03, 0x16, 0x00, 0x06, 0x02, 0x60, 0x01, 0x70];
    let image = Image::new(&code, &data, 0x10);
    let both = [(RDI, -16), (RSI, -24)];
    check(&image, instruction(0), &Expected { cfa: (RSP, 8), saved: &[] });
    check(&image, instruction(1), &Expected { cfa: (RSP, 16), saved: &both[..1] });
    check(&image, instruction(0x0b), &Expected { cfa: (RSP, 24), saved: &both });
    check(&image, instruction(0x0d), &Expected { cfa: (RSP, 24), saved: &both });
    check(&image, instruction(0x0e), &Expected { cfa: (RSP, 16), saved: &both[..1] });
    check(&image, instruction(0x0f), &Expected { cfa: (RSP, 8), saved: &[] });
}

#[test]
fn version_2_has_several_epilogues() {
    // push r12; sub rsp, 0x20. Epilogues of 3 bytes at the end and 0x110 bytes in front of it.
    let data = [0x02, 0x06, 0x04, 0x00, 0x03, 0x16, 0x10, 0x16, 0x06, 0x32, 0x02, 0xc0];
    let image = Image::new(&[], &data, 0x200);
    let body = Expected { cfa: (RSP, 0x30), saved: &[(R12, -16)] };
    let pop = Expected { cfa: (RSP, 16), saved: &[(R12, -16)] };
    let returns = Expected { cfa: (RSP, 8), saved: &[] };
    check(&image, instruction(0x80), &body);
    for start in [0x200 - 0x110, 0x200 - 3] {
        check(&image, instruction(start - 1), &body);
        check(&image, instruction(start), &pop);
        check(&image, instruction(start + 2), &returns);
    }
    check(&image, instruction(0x200 - 0x110 + 3), &body);
}

#[test]
fn interrupt_record_has_pc_and_stack_pointer() {
    // An interrupt with an error code, then sub rsp, 0x100000 and a vector register.
    let data =
        [0x01, 0x10, 0x06, 0x00, 0x10, 0x68, 0x02, 0x00, 0x08, 0x11, 0x00, 0x00, 0x10, 0x00, 0x00, 0x1a];
    let image = Image::new(&[], &data, 0x40);
    let registers = registers::<X86_64>(BASE);
    let table = image.table(PeMachine::X64);
    let caller = table.step(behind_call(0x30), &registers, &memory()).unwrap();
    let record = STACK + 0x10_0000 + 8;
    assert_eq!((caller.pc().value(), caller.sp()), (word_at(record), word_at(record + 24)));
    // Everything else was interrupted as it is.
    assert_eq!(caller.value(0), registers.value(0));
    let rule = table.rule::<X86_64>(behind_call(0x30)).unwrap();
    assert_eq!(rule, X86_64Rule::NEEDS_FULL_EVALUATION);
}

#[test]
fn frame_register_other_than_rbp_needs_the_row() {
    // push rdi; rdi = rsp.
    let image = Image::new(&[], &[0x01, 0x04, 0x02, 0x07, 0x04, 0x03, 0x01, 0x70], 0x20);
    check(&image, behind_call(0x10), &Expected { cfa: (RDI, 16), saved: &[(RDI, -16)] });
    let rule = image.table(PeMachine::X64).rule::<X86_64>(behind_call(0x10)).unwrap();
    assert_eq!(rule, X86_64Rule::NEEDS_FULL_EVALUATION);
}

#[test]
fn malformed_data_is_refused_with_its_kind() {
    let rule = |data: &[u8]| {
        let image = Image::new(&[], data, 0x20);
        image.table(PeMachine::X64).rule::<X86_64>(behind_call(0x10))
    };
    assert_eq!(rule(&[0x03, 0, 0, 0]), Err(PdataError::UnknownVersion));
    assert_eq!(rule(&[0x01, 4, 1, 0, 4, 0x0b]), Err(PdataError::UnknownCode));
    assert_eq!(rule(&[0x01, 4, 1, 0, 4, 0x21]), Err(PdataError::UnknownCode));
    // A stack pointer that was pushed, and one that was stored.
    assert_eq!(rule(&[0x01, 4, 1, 0, 4, 0x40]), Err(PdataError::UnknownCode));
    assert_eq!(rule(&[0x01, 4, 2, 0, 4, 0x44, 1, 0]), Err(PdataError::UnknownCode));
    // The number of an allocation is missing.
    assert_eq!(rule(&[0x01, 4, 1, 0, 4, 0x01]), Err(PdataError::UnexpectedEnd));
    assert_eq!(rule(&[0x01, 4, 3, 0, 4, 0x11, 0, 0, 0, 0x80]), Err(PdataError::OutOfRange));
    let image = Image::new(&[], &[], 0x20).with(8, &0x7fff_fff0_u32.to_le_bytes());
    assert_eq!(image.table(PeMachine::X64).rule::<X86_64>(behind_call(0x10)), Err(PdataError::UnexpectedEnd));
}

#[test]
fn image_in_parts_has_the_same_rules() {
    let image = gcc_with_frame_pointer();
    let whole = image.table(PeMachine::X64);
    let parts = [
        ImagePart { place: CODE, bytes: &image.bytes[CODE as usize..] },
        ImagePart { place: 0, bytes: &image.bytes[..0x20] },
        ImagePart { place: DATA, bytes: &image.bytes[DATA as usize..DATA as usize + 0x40] },
    ];
    let in_parts = PeImage::in_parts(AbsoluteAddress::new(BASE), image.bytes.len() as u32, &parts);
    let table = FunctionTable::new(in_parts, PeMachine::X64, 0, 1);
    for offset in 1..image.length {
        assert_eq!(table.rule::<X86_64>(behind_call(offset)), whole.rule::<X86_64>(behind_call(offset)));
    }
}

/// A function of arm64 of 16 instructions, with this second word of its entry and this data.
fn arm64(word: u32, data: &[u8]) -> Image {
    Image::new(&[], data, 0x40).with(4, &word.to_le_bytes())
}

/// Compares the step of arm64: the CFA, the places of registers, where the return address is.
fn check_arm64(image: &Image, place: CodePlace, expected: &Expected<'_>) {
    let table = image.table(PeMachine::Arm64);
    let registers = registers::<Aarch64>(BASE);
    let caller = table.step(place, &registers, &memory()).unwrap();
    let (register, offset) = expected.cfa;
    let cfa = registers.value(register).unwrap().wrapping_add_signed(offset);
    assert_eq!(caller.sp(), cfa, "{place:?}: sp");
    for number in 19..=30 {
        let saved = expected.saved.iter().find(|(register, _)| *register == number);
        let value =
            saved.map_or(registers.value(number), |(_, at)| Some(word_at(cfa.wrapping_add_signed(*at))));
        let found = if number == 30 { Some(caller.pc().value()) } else { caller.value(number) };
        assert_eq!(found, value, "{place:?}: register {number}");
    }
    let rule = table.rule::<Aarch64>(place).unwrap();
    match Aarch64::apply(rule, registers.core(), &memory()) {
        Ok(core) => {
            assert_eq!((core.pc, core.sp, core.fp), (caller.pc().value(), cfa, caller.fp()), "{place:?}")
        }
        Err(failure) => assert_eq!(failure, RuleFailure::NeedsFullEvaluation, "{place:?}"),
    }
}

const SP: u16 = aarch64::SP;
const FP: u16 = aarch64::X29;
const LR: u16 = aarch64::X30;

#[test]
fn arm64_full_codes_are_undone_in_order() {
    // stp x29, lr, [sp, #-0x20]!; mov x29, sp; stp x19, x20, [sp, #0x10]; sub sp, sp, #0x40.
    // 16 instructions, one epilogue at the end with the codes of the prologue, 2 words of codes.
    let header = 16_u32 | 1 << 21 | 2 << 27;
    let mut data = header.to_le_bytes().to_vec();
    data.extend([0x04, 0xc8, 0x02, 0xe1, 0x83, 0xe4, 0xe3, 0xe3]);
    let image = arm64(DATA, &data);
    let (fp, lr, x19, x20) = ((FP, -32), (LR, -24), (19, -16), (20, -8));
    check_arm64(&image, instruction(0), &Expected { cfa: (SP, 0), saved: &[] });
    check_arm64(&image, instruction(4), &Expected { cfa: (SP, 32), saved: &[fp, lr] });
    check_arm64(&image, instruction(8), &Expected { cfa: (FP, 32), saved: &[fp, lr] });
    check_arm64(&image, instruction(12), &Expected { cfa: (FP, 32), saved: &[fp, lr, x19, x20] });
    check_arm64(&image, behind_call(0x20), &Expected { cfa: (FP, 32), saved: &[fp, lr, x19, x20] });
    // The epilogue: four instructions and the return, from the eleventh on.
    check_arm64(&image, instruction(11 * 4), &Expected { cfa: (FP, 32), saved: &[fp, lr, x19, x20] });
    check_arm64(&image, instruction(14 * 4), &Expected { cfa: (SP, 32), saved: &[fp, lr] });
    check_arm64(&image, instruction(15 * 4), &Expected { cfa: (SP, 0), saved: &[] });
}

#[test]
fn arm64_epilogues_have_codes_of_their_own() {
    // Prologue: sub sp, sp, #0x20; str lr, [sp, #8]. One epilogue at instruction 8, with the codes
    // from the fifth on: ldr lr, [sp, #8]; add sp, sp, #0x20.
    let header = 16_u32 | 1 << 22 | 3 << 27;
    let mut data = header.to_le_bytes().to_vec();
    data.extend((8_u32 | 5 << 22).to_le_bytes());
    data.extend([0xd2, 0xc1, 0x02, 0xe4, 0xe3, 0xd2, 0xc1, 0x02, 0xe4, 0, 0, 0]);
    let image = arm64(DATA, &data);
    check_arm64(&image, instruction(7 * 4), &Expected { cfa: (SP, 32), saved: &[(LR, -24)] });
    check_arm64(&image, instruction(8 * 4), &Expected { cfa: (SP, 32), saved: &[(LR, -24)] });
    check_arm64(&image, instruction(9 * 4), &Expected { cfa: (SP, 32), saved: &[] });
    check_arm64(&image, instruction(10 * 4), &Expected { cfa: (SP, 0), saved: &[] });
    check_arm64(&image, instruction(11 * 4), &Expected { cfa: (SP, 32), saved: &[(LR, -24)] });
}

/// Each kind of code: its bytes, the CFA behind it, the registers that it restores.
#[test]
fn arm64_code_has_its_effect() {
    type Case<'c> = (&'c [u8], i64, &'c [(u16, i64)]);
    let cases: &[Case<'_>] = &[
        (&[0x1f], 31 * 16, &[]),
        (&[0x23], 24, &[(19, -24), (20, -16)]),
        (&[0x43, 0x04], 64, &[(FP, 24 - 64), (LR, 32 - 64)]),
        (&[0x83], 32, &[(FP, -32), (LR, -24)]),
        (&[0xc7, 0xff], 0x7ff * 16, &[]),
        (&[0xc8, 0x81, 0x02], 32, &[(21, 8 - 32), (22, 16 - 32)]),
        (&[0xcc, 0x83], 32, &[(21, -32), (22, -24)]),
        (&[0xd0, 0x42, 0x02], 32, &[(20, 16 - 32)]),
        (&[0xd4, 0x23], 32, &[(20, -32)]),
        (&[0xd6, 0x41, 0x02], 32, &[(21, 8 - 32), (LR, 16 - 32)]),
        (&[0xd8, 0x02, 0x02], 32, &[]),
        (&[0xda, 0x03], 32, &[]),
        (&[0xdc, 0x02, 0x02], 32, &[]),
        (&[0xde, 0x03], 32, &[]),
        (&[0xe0, 0x01, 0x00, 0x00], 0x10_0000, &[]),
        (&[0xe3, 0xfc], 0, &[]),
        // Two pairs: x21 and x22 in front of x19 and x20's place, 16 bytes further up.
        (&[0xe6, 0xcc, 0x03], 32, &[(19, -32), (20, -24), (21, -16), (22, -8)]),
        (&[0xe7, 0x15, 0x02, 0x02], 32, &[(21, 16 - 32)]),
        (&[0xe7, 0x55, 0x01, 0x02], 32, &[(21, 16 - 32), (22, 24 - 32)]),
        (&[0xe7, 0x35, 0x01], 32, &[(21, -32)]),
    ];
    for &(codes, cfa, saved) in cases {
        let mut data = (16_u32 | 1 << 21 | 2 << 27).to_le_bytes().to_vec();
        data.extend(codes);
        data.resize(12, 0xe4);
        let image = arm64(DATA, &data);
        check_arm64(&image, behind_call(0x20), &Expected { cfa: (SP, cfa), saved });
    }
}

#[test]
fn arm64_extended_header_and_unknown_codes() {
    let mut data = (16_u32 | 1 << 21).to_le_bytes().to_vec();
    data.extend((1_u32 << 16).to_le_bytes());
    data.extend([0x02, 0xe4, 0xe3, 0xe3]);
    check_arm64(&arm64(DATA, &data), behind_call(0x20), &Expected { cfa: (SP, 32), saved: &[] });
    let rule = |codes: [u8; 4]| {
        let mut data = (16_u32 | 1 << 21 | 1 << 27).to_le_bytes().to_vec();
        data.extend(codes);
        arm64(DATA, &data).table(PeMachine::Arm64).rule::<Aarch64>(behind_call(0x20))
    };
    assert_eq!(rule([0xf0, 0xe4, 0, 0]), Err(PdataError::UnknownCode));
    assert_eq!(rule([0xe8, 0xe4, 0, 0]), Err(PdataError::UnknownCode));
    assert_eq!(rule([0xe3, 0xe3, 0xe3, 0xe3]), Err(PdataError::UnexpectedEnd));
}

/// The second word of an entry of 16 instructions.
fn pack(vectors: u32, registers: u32, home: u32, chain: u32, frame_bytes: u32) -> u32 {
    1 | 16 << 2 | vectors << 13 | registers << 16 | home << 20 | chain << 21 | (frame_bytes / 16) << 23
}

#[test]
fn arm64_packed_descriptions_are_written_out() {
    let check = |word: u32, cfa: (u16, i64), saved: &[(u16, i64)]| {
        check_arm64(&arm64(word, &[]), behind_call(0x20), &Expected { cfa, saved });
    };
    check(pack(0, 0, 0, 0, 64), (SP, 64), &[]);
    check(pack(0, 2, 0, 0, 16), (SP, 16), &[(19, -16), (20, -8)]);
    // x19 and lr; x19 to x21 and lr; lr alone.
    check(pack(0, 1, 0, 1, 32), (SP, 32), &[(19, -16), (LR, -8)]);
    check(pack(0, 3, 0, 1, 48), (SP, 48), &[(19, -32), (20, -24), (21, -16), (LR, -8)]);
    check(pack(0, 0, 0, 1, 16), (SP, 16), &[(LR, -16)]);
    check(pack(0, 2, 0, 1, 48), (SP, 48), &[(19, -32), (20, -24), (LR, -16)]);
    // A chain: x29 and lr at the bottom of the locals, short and long.
    check(pack(0, 2, 0, 3, 48), (FP, 48), &[(19, -16), (20, -8), (FP, -48), (LR, -40)]);
    check(pack(0, 2, 0, 2, 0x1000), (FP, 0x1000), &[(19, -16), (20, -8), (FP, -0x1000), (LR, -0x1000 + 8)]);
    // Two vectors behind x19 and x20, and the home of eight arguments behind these.
    check(pack(1, 2, 0, 0, 64), (SP, 64), &[(19, -32), (20, -24)]);
    check(pack(1, 2, 1, 0, 96), (SP, 96), &[(19, -96), (20, -88)]);
    check(pack(1, 0, 0, 0, 32), (SP, 32), &[]);
}

#[test]
fn arm64_packed_prologue_and_epilogue_are_partial() {
    // stp x19, x20, [sp, #-16]!; stp x29, lr, [sp, #-32]!; mov x29, sp.
    let image = arm64(pack(0, 2, 0, 3, 48), &[]);
    let at = |index: u32, cfa, saved: &[(u16, i64)]| {
        check_arm64(&image, instruction(index * 4), &Expected { cfa, saved });
    };
    let all = [(19, -16), (20, -8), (FP, -48), (LR, -40)];
    at(0, (SP, 0), &[]);
    at(1, (SP, 16), &all[..2]);
    at(2, (SP, 48), &all);
    at(3, (FP, 48), &all);
    // ldp x29, lr, [sp], #32; ldp x19, x20, [sp], #16; ret.
    at(12, (FP, 48), &all);
    at(13, (SP, 48), &all);
    at(14, (SP, 16), &all[..2]);
    at(15, (SP, 0), &[]);
    // A fragment has neither.
    let fragment = arm64(pack(0, 2, 0, 3, 48) + 1, &[]);
    check_arm64(&fragment, instruction(0), &Expected { cfa: (FP, 48), saved: &all });
}

#[test]
fn arm64_leaf_returns_by_its_link_register() {
    let image = arm64(pack(0, 0, 0, 0, 64), &[]);
    check_arm64(&image, instruction(0x80), &Expected { cfa: (SP, 0), saved: &[] });
    let bad = arm64(pack(0, 11, 0, 0, 0x100), &[]);
    assert_eq!(bad.table(PeMachine::Arm64).rule::<Aarch64>(behind_call(0x20)), Err(PdataError::UnknownCode));
    let short = arm64(pack(0, 4, 0, 0, 16), &[]);
    assert_eq!(short.table(PeMachine::Arm64).rule::<Aarch64>(behind_call(0x20)), Err(PdataError::OutOfRange));
}

/// Packed rule and step agree, or both refuse.
fn readers_agree<M: Machine>(image: &Image, machine: PeMachine, place: CodePlace) {
    let table = image.table(machine);
    let registers = registers::<M>(BASE);
    match (table.rule::<M>(place), table.step(place, &registers, &memory())) {
        (Ok(rule), Ok(caller)) => match M::apply(rule, registers.core(), &memory()) {
            Ok(core) => {
                assert_eq!((core.pc, core.sp, core.fp), (caller.pc().value(), caller.sp(), caller.fp()));
            }
            Err(failure) => assert_eq!(failure, RuleFailure::NeedsFullEvaluation),
        },
        (Err(_), Err(StopReason::NoUnwindInfo { .. } | StopReason::BadUnwindInfo { .. })) => {}
        (rule, step) => panic!("{place:?}: {rule:?} and {step:?}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_data_is_read_alike_by_rule_and_step(
        version in 1_u8..3,
        codes in proptest::collection::vec((0_u8..0x40, 0_u8..11, 0_u8..16), 0..20),
        frame in any::<u8>(),
        code in proptest::collection::vec(prop_oneof![
            Just(0x58_u8), Just(0x5d), Just(0x41), Just(0xc3), Just(0x48), Just(0x83), Just(0xc4), Just(0x8d),
            Just(0x65), Just(0xeb), 0_u8..0x20, any::<u8>()
        ], 0..0x40),
        arm64_codes in proptest::collection::vec(any::<u8>(), 0..60),
        packed in any::<u32>(),
        offset in 0_u32..0x48,
    ) {
        let mut data = vec![version, 0x20, codes.len() as u8, frame];
        data.extend(codes.iter().flat_map(|&(offset, operation, operand)| [offset, operation | operand << 4]));
        let image = Image::new(&code, &data, 0x40);
        let mut arm64_data = (16_u32 | 1 << 21 | 15 << 27).to_le_bytes().to_vec();
        arm64_data.extend(arm64_codes);
        let (full, packed) = (arm64(DATA, &arm64_data), arm64(packed | 1, &[]));
        for place in [instruction(offset), behind_call(offset)] {
            readers_agree::<X86_64>(&image, PeMachine::X64, place);
            readers_agree::<Aarch64>(&full, PeMachine::Arm64, place);
            readers_agree::<Aarch64>(&packed, PeMachine::Arm64, place);
        }
    }
}
