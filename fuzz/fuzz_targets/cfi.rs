//! Unwind tables of any bytes: no panic, bounded time, and the packed rule never says other than
//! the whole row.
//!
//! The input is `| header length: u16 | asked for: u8 | header | frames |`; the frames lie right
//! behind the header.

#![no_main]

use cairn_format::{AbsoluteAddress, WordSize};
use cairn_unwind::aarch64::Aarch64;
use cairn_unwind::cfi::{Bases, Flavor, FrameTable, IndexEntry, Section};
use cairn_unwind::x86_64::X86_64;
use cairn_unwind::{FnMemory, Machine, Registers, RuleFailure, StopReason};
use libfuzzer_sys::fuzz_target;

const HEADER: u64 = 0x1_0000;

fn readers_agree<M: Machine>(table: &FrameTable<'_>, address: AbsoluteAddress) {
    let memory = FnMemory(|address: AbsoluteAddress, into: &mut [u8]| {
        let word = address.value().wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
        into.copy_from_slice(word.get(..into.len())?);
        Some(())
    });
    let mut registers = Registers::<M>::new(address.value(), 0x7000_0000, 0x7000_0100);
    for number in 0..33 {
        if registers.value(number).is_none() {
            registers.set(number, 0x5000 + u64::from(number));
        }
    }
    match (table.rule::<M>(address), table.row::<M>(address)) {
        (Ok(found), Ok(row)) => {
            assert!(found.range.contains(address) && row.range().contains(address));
            match (M::apply(found.rule, registers.core(), &memory), row.step(&registers, &memory)) {
                (Ok(core), Ok(caller)) => {
                    assert_eq!((core.pc, core.sp, core.fp), (caller.pc().value(), caller.sp(), caller.fp()));
                }
                (Err(RuleFailure::EndOfStack), Err(StopReason::EndOfStack)) => {}
                (Err(RuleFailure::NeedsFullEvaluation), _) => {}
                (core, full) => panic!("{:?} gives {core:?}, the row {full:?}", found.rule),
            }
        }
        (rule, row) => assert_eq!(rule.err(), row.err()),
    }
}

fuzz_target!(|input: &[u8]| {
    let Some((&[low, high, asked], rest)) = input.split_first_chunk::<3>() else { return };
    let header_length = usize::from(u16::from_le_bytes([low, high])).min(rest.len());
    let (header, frames) = rest.split_at(header_length);
    let frames = Section::new(frames, AbsoluteAddress::new(HEADER + header_length as u64));
    let header = Section::new(header, AbsoluteAddress::new(HEADER));

    let linear = FrameTable::linear(Flavor::EhFrame, frames, Bases::default(), WordSize::Bits64);
    let entries: Vec<_> = linear.entries().take(64).flatten().collect();
    for entry in &entries {
        let length = entry.range.end.value() - entry.range.start.value();
        let address = entry.range.start.value() + u64::from(asked) % length.max(1);
        readers_agree::<X86_64>(&linear, AbsoluteAddress::new(address));
        readers_agree::<Aarch64>(&linear, AbsoluteAddress::new(address));
        if let Ok(table) = FrameTable::with_header(header, frames) {
            readers_agree::<X86_64>(&table, AbsoluteAddress::new(address));
        }
    }
    let mut index: Vec<IndexEntry> = entries
        .iter()
        .map(|entry| IndexEntry { start: entry.range.start, entry_offset: entry.offset })
        .collect();
    index.sort_unstable();
    let indexed = linear.with_index(&index);
    readers_agree::<X86_64>(&indexed, AbsoluteAddress::new(HEADER + u64::from(asked)));

    let bases = Bases { absolute_bias: u64::from(asked), ..Bases::default() };
    let debug = FrameTable::linear(Flavor::DebugFrame, frames, bases, WordSize::Bits32);
    for entry in debug.entries().take(64).flatten() {
        readers_agree::<X86_64>(&debug, entry.range.start);
    }
});
