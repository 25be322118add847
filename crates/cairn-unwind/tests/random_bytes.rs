//! Whatever the bytes say: no panic, bounded time, and both readers agree.

mod support;

use cairn_format::{AbsoluteAddress, Frame, WordSize};
use cairn_unwind::aarch64::Aarch64;
use cairn_unwind::cfi::{Bases, CachingTable, Flavor, FrameTable, Section};
use cairn_unwind::x86_64::X86_64;
use cairn_unwind::xnu::{KernelWalk, Quirks, UserWalk, Validity};
use cairn_unwind::{
    AddressRange, FnMemory, FoldRecursion, FramePointerWalk, Machine, OneModule, Registers, RuleFailure,
    SliceMemory, StopReason, Walk,
};
use proptest::prelude::*;
use support::assembler::{Bytes, CieSpec, Format, SectionBuilder};

const CODE: u64 = 0x10_0000;
const FRAMES: u64 = 0x20_0000;

fn at(address: u64) -> AbsoluteAddress {
    AbsoluteAddress::new(address)
}

/// The packed rule says the same as the row, or that it does not know.
fn readers_agree<M: Machine>(table: &FrameTable<'_>, address: AbsoluteAddress) {
    let memory = FnMemory(|address: AbsoluteAddress, into: &mut [u8]| {
        let word = address.value().wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
        into.copy_from_slice(word.get(..into.len())?);
        Some(())
    });
    let mut registers = Registers::<M>::new(address.value(), 0x7000_0000, 0x7000_0100);
    (0..33).filter(|&number| registers.value(number).is_none()).collect::<Vec<_>>().into_iter().for_each(
        |number| {
            registers.set(number, 0x5000 + u64::from(number));
        },
    );
    match (table.rule::<M>(address), table.row::<M>(address)) {
        (Ok(found), Ok(row)) => {
            assert!(found.range.contains(address) && row.range().contains(address));
            let stepped = row.step(&registers, &memory);
            match (M::apply(found.rule, registers.core(), &memory), stepped) {
                (Ok(core), Ok(caller)) => {
                    assert_eq!((core.pc, core.sp, core.fp), (caller.pc().value(), caller.sp(), caller.fp()));
                }
                (Err(RuleFailure::EndOfStack), Err(StopReason::EndOfStack)) => {}
                (Err(RuleFailure::NeedsFullEvaluation), _) => {}
                (core, full) => panic!("{address}: {:?} gives {core:?}, the row {full:?}", found.rule),
            }
        }
        (rule, row) => assert_eq!(rule.err(), row.err(), "{address}: the readers see different faults"),
    }
}

/// Bytes that are often instructions.
fn programs() -> impl Strategy<Value = Vec<u8>> {
    let opcode = prop_oneof![
        4 => 0x40_u8..0x50,
        3 => Just(0x0e_u8),
        3 => 0x80_u8..0x91,
        1 => 0xc0_u8..0xd1,
        2 => Just(0x0a_u8),
        2 => Just(0x0b_u8),
        1 => Just(0x0c_u8),
        1 => Just(0x0f_u8),
        2 => 0_u8..0x30,
        1 => any::<u8>(),
    ];
    proptest::collection::vec(opcode, 0..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_programs_are_read_alike_by_both_readers(
        cie_program in proptest::option::of(programs()),
        program in programs(),
        augmentation in prop_oneof![Just("zR"), Just("zRS")],
        offsets in proptest::collection::vec(0_u64..0x100, 1..6),
    ) {
        let mut spec = CieSpec { augmentation, ..CieSpec::x86_64() };
        if let Some(more) = cie_program {
            spec.program = spec.program.raw(&more);
        }
        for spec in [spec.clone(), CieSpec { program: Bytes(spec.program.0), ..CieSpec::aarch64() }] {
            let mut section = SectionBuilder::new(Format::Eh, FRAMES);
            let cie = section.cie(&spec);
            section.fde(cie, CODE, 0x100, &Bytes(program.clone()));
            let bytes = Section::new(&section.bytes, at(FRAMES));
            let table = FrameTable::linear(Flavor::EhFrame, bytes, Bases::default(), WordSize::Bits64);
            for &offset in &offsets {
                readers_agree::<X86_64>(&table, at(CODE + offset));
                readers_agree::<Aarch64>(&table, at(CODE + offset));
            }
            let entry = table.find(at(CODE)).unwrap();
            let mut next = CODE;
            let _ = table.rows::<X86_64>(&entry, |row| {
                assert_eq!(row.range().start, at(next), "rows lie side by side");
                next = row.range().end.value();
            });
        }
    }

    #[test]
    fn random_sections_do_not_panic(
        header in proptest::collection::vec(any::<u8>(), 0..100),
        frames in proptest::collection::vec(any::<u8>(), 0..400),
        usual_start in any::<bool>(),
        address in any::<u64>(),
    ) {
        let mut header = header;
        if usual_start && header.len() > 12 {
            header[..12].copy_from_slice(&[1, 0x1b, 3, 0x3b, 0, 0, 0, 0, 4, 0, 0, 0]);
        }
        let frames = Section::new(&frames, at(0x1000));
        if let Ok(table) = FrameTable::with_header(Section::new(&header, at(0x800)), frames) {
            readers_agree::<X86_64>(&table, at(address));
            readers_agree::<X86_64>(&table, at(address % 0x2000));
        }
        for flavor in [Flavor::EhFrame, Flavor::DebugFrame] {
            for word_size in [WordSize::Bits64, WordSize::Bits32] {
                let table = FrameTable::linear(flavor, frames, Bases::default(), word_size);
                let entries: Vec<_> = table.entries().collect();
                for entry in entries.iter().flatten() {
                    let _ = table.row::<X86_64>(entry.range.start);
                }
            }
        }
    }

    #[test]
    fn mutated_tables_do_not_panic(
        flips in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<proptest::sample::Index>(),
    ) {
        let mut section = SectionBuilder::new(Format::Eh, FRAMES);
        // More than a caching table remembers.
        let cies = [(); 3].map(|()| section.cie(&CieSpec::x86_64()));
        for function in 0..8 {
            let cie = cies[function as usize % cies.len()];
            let program = Bytes::default().advance(1).def_cfa_offset(16).offset(6, 2).remember_state().advance(3)
                .def_cfa_offset(8).restore_state().advance(1).def_cfa_register(6);
            section.fde(cie, CODE + function * 0x20, 0x20, &program);
        }
        let header = section.header(FRAMES - 0x400);
        for (place, value) in flips {
            let place = place.index(section.bytes.len());
            section.bytes[place] = value;
        }
        let cut = cut.index(section.bytes.len() + 1);
        let header = Section::new(&header, at(FRAMES - 0x400));
        let table = FrameTable::with_header(header, Section::new(&section.bytes[..cut], at(FRAMES))).unwrap();
        let mut caching = CachingTable::new(table);
        for address in (CODE - 1..CODE + 0x101).step_by(3) {
            readers_agree::<X86_64>(&table, at(address));
            prop_assert_eq!(caching.rule::<X86_64>(at(address)), table.rule::<X86_64>(at(address)));
        }
    }

    #[test]
    fn walks_over_garbage_end(words in proptest::collection::vec(prop_oneof![
        0x7000_u64..0x7400, (0x7000_u64..0x7400).prop_map(|value| value | 1 << 60), Just(0), any::<u64>(),
    ], 0..128), fp in 0x6ff0_u64..0x7410, max in 0_usize..40) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let memory = SliceMemory::new(at(0x7000), &bytes);
        let stack = AddressRange::new(at(0x7000), at(0x7000 + bytes.len() as u64));

        for word_size in [WordSize::Bits32, WordSize::Bits64] {
            let mut walk = FramePointerWalk::new(memory, fp, stack, word_size);
            let records: Vec<_> = walk.by_ref().collect();
            prop_assert!(records.windows(2).all(|pair| pair[0].address < pair[1].address));
            prop_assert!(walk.stop_reason().is_some());
            for validity in [Validity::X86_64, Validity::Arm64] {
                let mut walk = UserWalk::new(1, fp, word_size, validity);
                let mut addresses = vec![at(0); max];
                let corrected = walk.run(&memory, &mut addresses);
                prop_assert!(corrected.count <= max);
                walk.quirks = Quirks::Xnu;
                let xnu = walk.run(&memory, &mut addresses);
                prop_assert_eq!(corrected.count, xnu.count);
                prop_assert!(xnu.truncated || !corrected.truncated);
            }
        }
        let mut addresses = vec![at(0); max];
        let cut = KernelWalk::new(fp, stack).run(&memory, &mut addresses);
        let mut ample = vec![at(0); max + 1];
        let more = KernelWalk::new(fp, stack).run(&memory, &mut ample);
        if !matches!(more.stop, StopReason::UnreadableMemory { .. }) {
            prop_assert_eq!(cut.truncated, more.count > cut.count);
        }
        let program = OneModule::new(AddressRange::ALL, None);
        let registers = Registers::<X86_64>::new(0x1000, 0x7000, fp);
        let mut walk = Walk::new(registers, memory, program).with_stack(stack);
        prop_assert!(walk.by_ref().count() <= 128);
        prop_assert!(walk.stop_reason().is_some());
    }

    #[test]
    fn folded_frames_add_up(addresses in proptest::collection::vec(1_u64..5, 0..60)) {
        let frames: Vec<Frame> = addresses.iter().map(|&address| Frame::ReturnAddress(at(address))).collect();
        let folded: Vec<Frame> = FoldRecursion::<_, 4>::new(frames.iter().copied()).collect();
        // Unfolding: as many frames as were omitted, going round through those given out last.
        let mut unfolded: Vec<Frame> = Vec::new();
        for (place, frame) in folded.iter().enumerate() {
            let Frame::Omitted(count) = *frame else { unfolded.push(*frame); continue };
            let given: Vec<Frame> = folded[..place].iter().rev().take_while(|frame| frame.address().is_some()).copied().collect();
            let rest = &frames[unfolded.len()..][..count as usize];
            // The round is some number of the frames just given out.
            let is_round = |period: usize| {
                let whole = (count as usize).is_multiple_of(period);
                whole && rest.iter().enumerate().all(|(index, frame)| *frame == given[period - 1 - index % period])
            };
            prop_assert!((1..=given.len().min(4)).any(is_round), "not a round of the frames just given out");
            unfolded.extend_from_slice(rest);
        }
        prop_assert_eq!(unfolded, frames);
    }
}
