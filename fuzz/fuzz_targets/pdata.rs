//! Windows unwind tables of any bytes: no panic, bounded time, and the packed rule never says other
//! than the whole row.
//!
//! The input is `| asked for: u16 | entries: u8 | image |`; the entries are at the start of the
//! image, unless it has headers.

#![no_main]

use cairn_format::AbsoluteAddress;
use cairn_unwind::aarch64::Aarch64;
use cairn_unwind::pdata::{CodePlace, FunctionTable, ImagePart, PeImage, PeMachine};
use cairn_unwind::x86_64::X86_64;
use cairn_unwind::{FnMemory, Machine, Registers, RuleFailure, StopReason};
use libfuzzer_sys::fuzz_target;

const BASE: AbsoluteAddress = AbsoluteAddress::new(0x1_4000_0000);

fn readers_agree<M: Machine>(table: &FunctionTable<'_>, place: CodePlace) {
    let memory = FnMemory(|address: AbsoluteAddress, into: &mut [u8]| {
        let word = address.value().wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
        into.copy_from_slice(word.get(..into.len())?);
        Some(())
    });
    let mut registers = Registers::<M>::new(BASE.value(), 0x7000_0000, 0x7000_0100);
    for number in 0..33 {
        if registers.value(number).is_none() {
            registers.set(number, 0x5000 + u64::from(number));
        }
    }
    match (table.rule::<M>(place), table.step(place, &registers, &memory)) {
        (Ok(rule), Ok(caller)) => match M::apply(rule, registers.core(), &memory) {
            Ok(core) => {
                assert_eq!((core.pc, core.sp, core.fp), (caller.pc().value(), caller.sp(), caller.fp()));
            }
            Err(failure) => assert_eq!(failure, RuleFailure::NeedsFullEvaluation, "{rule:?}"),
        },
        (Err(_), Err(StopReason::NoUnwindInfo { .. } | StopReason::BadUnwindInfo { .. })) => {}
        (rule, step) => panic!("{rule:?} and {step:?}"),
    }
}

fn ask(table: &FunctionTable<'_>, asked: u16) {
    let (first, end) = table.function_at(BASE).or_else(|| table.function(0)).unwrap_or((BASE, BASE));
    for address in [BASE.value() + u64::from(asked), first.value() + u64::from(asked >> 8), end.value()] {
        let address = AbsoluteAddress::new(address);
        for place in [CodePlace::Instruction(address), CodePlace::ReturnAddress(address)] {
            readers_agree::<X86_64>(table, place);
            readers_agree::<Aarch64>(table, place);
        }
    }
}

fuzz_target!(|input: &[u8]| {
    let Some((&[low, high, entries], bytes)) = input.split_first_chunk::<3>() else { return };
    let asked = u16::from_le_bytes([low, high]);
    let loaded = PeImage::loaded(BASE, bytes);
    let (front, back) = bytes.split_at(bytes.len() / 2);
    let parts = [ImagePart { place: 0, bytes: front }, ImagePart { place: front.len() as u32, bytes: back }];
    let in_parts = PeImage::in_parts(BASE, bytes.len() as u32, &parts);
    for image in [loaded, in_parts] {
        for machine in [PeMachine::X64, PeMachine::Arm64] {
            ask(&FunctionTable::new(image, machine, 0, entries.into()), asked);
        }
        if let Some(table) = FunctionTable::of_image(image) {
            ask(&table, asked);
        }
    }
});
