//! Compact unwind info of clang and lld, as LLVM's own reader lists it, and walks over made-up
//! stacks.

use cairn_format::AbsoluteAddress;
use cairn_unwind::compact::{CompactMachine, CompactRegisters, CompactRule, CompactTable};
use cairn_unwind::{AddressRange, SliceMemory, StopReason};
use proptest::prelude::*;

struct Fixture {
    bytes: &'static [u8],
    listing: &'static str,
    machine: CompactMachine,
}

macro_rules! fixture {
    ($name:literal, $machine:ident) => {
        Fixture {
            bytes: include_bytes!(concat!("../../../fixtures/compact_unwind/", $name, ".bin")),
            listing: include_str!(concat!("../../../fixtures/compact_unwind/", $name, ".txt")),
            machine: CompactMachine::$machine,
        }
    };
}

const FIXTURES: [Fixture; 4] = [
    fixture!("arm64_framed", Arm64),
    fixture!("arm64_frameless", Arm64),
    fixture!("x86_64_framed", X86_64),
    fixture!("x86_64_frameless", X86_64),
];

fn number(text: &str) -> u32 {
    u32::from_str_radix(text.strip_prefix("0x").unwrap(), 16).unwrap()
}

#[test]
fn compact_encodings_agree_with_llvm() {
    for Fixture { bytes, listing, machine } in FIXTURES {
        let table = CompactTable::new(bytes).unwrap();
        let mut rows: Vec<(u32, u32)> = Vec::new();
        let mut end = 0;
        for (first, second) in listing.lines().map(|line| line.split_once(' ').unwrap()) {
            if first == "end" { end = number(second) } else { rows.push((number(first), number(second))) }
        }
        assert!(!rows.is_empty());
        let ends = rows.iter().skip(1).map(|row| row.0).chain([end]);
        for (&(start, encoding), end) in rows.iter().zip(ends) {
            for offset in [start, start + 1, end - 1] {
                assert_eq!(table.encoding(offset), Some(encoding), "{machine:?} {offset:#x}");
            }
        }
        assert_eq!(table.encoding(rows[0].0 - 1), None);
        assert_eq!(table.encoding(end), None);
        assert_eq!(table.encoding(u32::MAX), None);
    }
}

#[test]
fn compact_encodings_decode_to_rules() {
    let rule = |encoding| CompactRule::of(encoding, CompactMachine::X86_64);
    // `use` of frames.c without a frame pointer: 0xe0 bytes, nothing saved; `deep` saves rbx alone.
    assert_eq!(rule(0x021c_0000), CompactRule::Frameless { frame_bytes: 224, saved_frame_pointer: None });
    assert_eq!(rule(0x0300_6802), CompactRule::Unsupported);
    // Six registers, rbp the first pushed: the one right below the return address (rbx, r12 … in
    // between).
    let six = CompactRule::Frameless { frame_bytes: 56, saved_frame_pointer: Some(16) };
    assert_eq!(rule(0x0200_0000 | 7 << 16 | 6 << 10), six);
    // One register, the sixth: rbp.
    let one = CompactRule::Frameless { frame_bytes: 16, saved_frame_pointer: Some(16) };
    assert_eq!(rule(0x0200_0000 | 2 << 16 | 1 << 10 | 5), one);
    assert_eq!(rule(0x0200_0000 | 2 << 16 | 1 << 10 | 6), CompactRule::Unsupported);
    assert_eq!(rule(0x0400_0123), CompactRule::Dwarf { fde_offset: 0x123 });
    assert_eq!(rule(0), CompactRule::None);
}

fn at(value: u64) -> AbsoluteAddress {
    AbsoluteAddress::new(value)
}

#[test]
fn compact_walk_steps_over_frameless_leaf_and_frames() {
    let words: [u64; 8] = [1, 2, 3, 4, 0x7030, 0x2000, 0, 0x3000];
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let memory = SliceMemory::new(at(0x7000), &bytes);
    let stack = AddressRange::new(at(0x7000), at(0x7040));
    let arm = CompactMachine::Arm64;
    let mut registers = CompactRegisters { pc: 0x1000, sp: 0x7000, fp: 0x7020, link: Some(0x1800) };
    let leaf = CompactRule::Frameless { frame_bytes: 32, saved_frame_pointer: None };
    leaf.step(arm, &mut registers, &memory, stack).unwrap();
    assert_eq!(registers, CompactRegisters { pc: 0x1800, sp: 0x7020, fp: 0x7020, link: None });
    // The link register is used up.
    let stop = leaf.step(arm, &mut registers, &memory, stack);
    assert_eq!(stop, Err(StopReason::NoUnwindInfo { pc: at(0x1800) }));
    CompactRule::FramePointer.step(arm, &mut registers, &memory, stack).unwrap();
    assert_eq!(registers, CompactRegisters { pc: 0x2000, sp: 0x7030, fp: 0x7030, link: None });
    CompactRule::FramePointer.step(arm, &mut registers, &memory, stack).unwrap();
    assert_eq!((registers.pc, registers.fp), (0x3000, 0));
    let stop = CompactRule::FramePointer.step(arm, &mut registers, &memory, stack);
    assert_eq!(stop, Err(StopReason::EndOfStack));

    let mut registers = CompactRegisters { pc: 0x1000, sp: 0x7010, fp: 0, link: None };
    let saved = CompactRule::Frameless { frame_bytes: 0x20, saved_frame_pointer: Some(16) };
    saved.step(CompactMachine::X86_64, &mut registers, &memory, stack).unwrap();
    assert_eq!(registers, CompactRegisters { pc: 0x2000, sp: 0x7030, fp: 0x7030, link: None });
}

proptest! {
    /// Whatever is in a table, a lookup answers and a walk goes up.
    #[test]
    fn damaged_tables_are_answered(
        fixture in 0..4_usize,
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        offset in any::<u32>(),
        sp in any::<u64>(),
    ) {
        let Fixture { bytes, machine, .. } = &FIXTURES[fixture];
        let mut bytes = bytes.to_vec();
        for (index, value) in changes {
            let place = index.index(bytes.len());
            bytes[place] = value;
        }
        if let Some(table) = CompactTable::new(&bytes) {
            for offset in [offset, offset % 0x800] {
                let Some(encoding) = table.encoding(offset) else { continue };
                let mut registers = CompactRegisters { pc: 1, sp, fp: sp, link: None };
                let memory = SliceMemory::new(at(sp & !7), &[0x5a; 64]);
                let step = CompactRule::of(encoding, *machine).step(*machine, &mut registers, &memory, AddressRange::ALL);
                prop_assert!(step.is_err() || registers.sp > sp);
            }
        }
    }
}
