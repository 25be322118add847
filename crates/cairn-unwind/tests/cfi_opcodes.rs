//! Every instruction, augmentation, pointer encoding and length form, on synthesized tables.

mod support;

use cairn_format::{AbsoluteAddress, WordSize};
use cairn_unwind::aarch64::{self, Aarch64};
use cairn_unwind::cfi::{
    Bases, CfaRule, CfiErrorKind, Flavor, FrameTable, IndexEntry, RegisterRule, Row, Section,
};
use cairn_unwind::x86_64::{RBP, RBX, RSP, X86_64, X86_64Rule as Rule, X86_64RuleKind as RuleKind};
use cairn_unwind::{FnMemory, Machine, Registers, StopReason};
use support::assembler::{Bytes, CieSpec, Format, SectionBuilder, program};

const CODE: u64 = 0x10_0000;
const FRAMES: u64 = 0x20_0000;

fn at(address: u64) -> AbsoluteAddress {
    AbsoluteAddress::new(address)
}

/// One function of 0x100 bytes at `CODE` with that program.
fn one_function(cie: &CieSpec, program: &Bytes) -> SectionBuilder {
    let mut section = SectionBuilder::new(Format::Eh, FRAMES);
    let cie = section.cie(cie);
    section.fde(cie, CODE, 0x100, program);
    section.end();
    section
}

fn linear(section: &SectionBuilder) -> FrameTable<'_> {
    let flavor = match section.format {
        Format::Eh | Format::EhLong => Flavor::EhFrame,
        Format::Debug | Format::DebugLong => Flavor::DebugFrame,
    };
    let bytes = Section::new(&section.bytes, at(section.address));
    FrameTable::linear(flavor, bytes, Bases::default(), WordSize::Bits64)
}

fn cfa(register: u16, offset: i32) -> CfaRule {
    CfaRule::Register { register, offset }
}

/// Runs `check` on the row at `CODE + offset`.
fn row_of<T>(program: &Bytes, offset: u64, check: impl FnOnce(&Row<'_, X86_64>) -> T) -> T {
    let section = one_function(&CieSpec::x86_64(), program);
    check(&linear(&section).row(at(CODE + offset)).unwrap())
}

fn rule_of(program: &Bytes, offset: u64) -> Rule {
    let section = one_function(&CieSpec::x86_64(), program);
    linear(&section).rule::<X86_64>(at(CODE + offset)).unwrap().rule
}

fn error_of(program: &Bytes, offset: u64) -> CfiErrorKind {
    let section = one_function(&CieSpec::x86_64(), program);
    let table = linear(&section);
    let error = table.row::<X86_64>(at(CODE + offset)).unwrap_err();
    assert_eq!(
        table.rule::<X86_64>(at(CODE + offset)).unwrap_err(),
        error,
        "both readers see the same fault"
    );
    error.kind
}

#[test]
fn every_register_instruction_sets_its_rule() {
    let expression = [0x77, 8]; // breg7 + 8
    let cases: Vec<(&str, Bytes, RegisterRule)> = vec![
        ("offset", program().offset(3, 2), RegisterRule::Offset(-16)),
        ("offset_extended", program().offset_extended(3, 300), RegisterRule::Offset(-2400)),
        ("offset_extended_sf", program().offset_extended_sf(3, -3), RegisterRule::Offset(24)),
        ("negative_offset_extended", program().negative_offset_extended(3, 3), RegisterRule::Offset(24)),
        ("val_offset", program().val_offset(3, 2), RegisterRule::ValueOffset(-16)),
        ("val_offset_sf", program().val_offset_sf(3, -2), RegisterRule::ValueOffset(16)),
        ("undefined", program().undefined(3), RegisterRule::Undefined),
        ("same_value", program().same_value(3), RegisterRule::SameValue),
        ("register", program().register(3, 12), RegisterRule::Register(12)),
        ("restore", program().offset(3, 2).restore(3), RegisterRule::Unspecified),
        ("restore_extended", program().offset(3, 2).restore_extended(3), RegisterRule::Unspecified),
        ("nop and args_size", program().nop().args_size(16).offset(3, 2).nop(), RegisterRule::Offset(-16)),
    ];
    for (name, program, expected) in cases {
        row_of(&program, 0, |row| assert_eq!(row.register(3), expected, "{name}"));
    }
    row_of(&program().expression(3, &expression), 0, |row| match row.register(3) {
        RegisterRule::Expression(place) => assert_eq!(row.expression(place), expression),
        other => panic!("{other:?}"),
    });
    row_of(&program().val_expression(3, &expression), 0, |row| match row.register(3) {
        RegisterRule::ValueExpression(value) => assert_eq!(row.expression(value), expression),
        other => panic!("{other:?}"),
    });
}

#[test]
fn every_cfa_instruction_sets_its_rule() {
    for (name, program, expected) in [
        ("from the CIE", program(), cfa(7, 8)),
        ("def_cfa", program().def_cfa(6, 4000), cfa(6, 4000)),
        ("def_cfa_sf", program().def_cfa_sf(6, -3), cfa(6, 24)),
        ("def_cfa_register", program().def_cfa_register(6), cfa(6, 8)),
        ("def_cfa_offset", program().def_cfa_offset(48), cfa(7, 48)),
        ("def_cfa_offset_sf", program().def_cfa_offset_sf(-6), cfa(7, 48)),
    ] {
        row_of(&program, 0, |row| assert_eq!(row.cfa(), expected, "{name}"));
    }
    row_of(&program().def_cfa_expression(&[0x76, 0, 6]), 0, |row| match row.cfa() {
        CfaRule::Expression(value) => assert_eq!(row.expression(value), [0x76, 0, 6]),
        other => panic!("{other:?}"),
    });
}

#[test]
fn every_advance_moves_by_its_operand() {
    let forms: [(&str, Bytes, u64); 5] = [
        ("advance", program().advance(0x20), 0x20),
        ("advance_loc1", program().advance_loc1(0x80), 0x80),
        ("advance_loc2", program().advance_loc2(0x81), 0x81),
        ("advance_loc4", program().advance_loc4(0x82), 0x82),
        ("advance by nothing", program().advance(0).advance(5), 5),
    ];
    for (name, advance, distance) in forms {
        let program = advance.def_cfa_offset(16);
        row_of(&program, distance - 1, |row| {
            assert_eq!(row.cfa(), cfa(7, 8), "{name}");
            assert_eq!((row.range().start, row.range().end), (at(CODE), at(CODE + distance)), "{name}");
        });
        row_of(&program, distance, |row| {
            assert_eq!(row.cfa(), cfa(7, 16), "{name}");
            assert_eq!(
                (row.range().start, row.range().end),
                (at(CODE + distance), at(CODE + 0x100)),
                "{name}"
            );
        });
    }
}

#[test]
fn set_loc_names_the_address_itself() {
    let mut spec = CieSpec::x86_64();
    spec.augmentation_data = vec![0x00];
    let mut section = SectionBuilder::new(Format::Eh, FRAMES);
    let cie = section.cie(&spec);
    let program = program().set_loc(CODE + 0x40).def_cfa_offset(16);
    section.fde_with(cie, CODE, 0x100, |_| Bytes::default().u64(CODE).u64(0x100).uleb(0).raw(&program.0).0);
    let table = linear(&section);
    assert_eq!(table.row::<X86_64>(at(CODE + 0x3f)).unwrap().cfa(), cfa(7, 8));
    assert_eq!(table.row::<X86_64>(at(CODE + 0x40)).unwrap().cfa(), cfa(7, 16));
}

#[test]
fn alignment_factors_scale_advances_and_offsets() {
    let mut spec = CieSpec::x86_64();
    (spec.code_alignment, spec.data_alignment) = (4, -16);
    let section = one_function(&spec, &program().advance(2).offset(3, 3).def_cfa_offset(7));
    let table = linear(&section);
    assert_eq!(table.row::<X86_64>(at(CODE + 7)).unwrap().register(3), RegisterRule::Unspecified);
    let row = table.row::<X86_64>(at(CODE + 8)).unwrap();
    assert_eq!(
        (row.register(3), row.cfa()),
        (RegisterRule::Offset(-48), cfa(7, 7)),
        "CFA offsets are not scaled"
    );
}

/// The state at each pc as a stack of states would give it, for programs with nested remembering.
#[test]
fn restore_state_works_at_any_depth() {
    // cfa offset:  8 |1| 16 (|2| 24 (|3| 32 )|4| 24 |5| 40 )|6| 16 |7| 48, with rbx saved in the
    // inner parts only
    let program = program()
        .advance(1)
        .def_cfa_offset(16)
        .remember_state()
        .advance(1)
        .def_cfa_offset(24)
        .offset(3, 3)
        .remember_state()
        .advance(1)
        .def_cfa_offset(32)
        .restore(3)
        .restore_state()
        .advance(1)
        .nop()
        .advance(1)
        .def_cfa_offset(40)
        .restore_state()
        .advance(1)
        .advance(1)
        .def_cfa_offset(48);
    let saved = RegisterRule::Offset(-24);
    let none = RegisterRule::Unspecified;
    // Row 3 has a restore_state at its end without an advance before it: like every state, it holds
    // from there on, so the remembered state rules from 3 already.
    let expected =
        [(8, none), (16, none), (24, saved), (24, saved), (24, saved), (16, none), (16, none), (48, none)];
    for (offset, (cfa_offset, rbx)) in expected.into_iter().enumerate() {
        row_of(&program, offset as u64, |row| {
            assert_eq!((row.cfa(), row.register(3)), (cfa(7, cfa_offset), rbx), "at {offset}");
        });
        let RuleKind::FromSp { cfa_offset: packed, .. } = rule_of(&program, offset as u64).kind() else {
            panic!()
        };
        assert_eq!(packed, cfa_offset as u64, "at {offset}");
    }
}

#[test]
fn restore_applies_the_rule_of_the_cie() {
    let mut spec = CieSpec::x86_64();
    spec.program = spec.program.offset(3, 5);
    let section = one_function(&spec, &program().same_value(3).advance(4).restore(3));
    let table = linear(&section);
    assert_eq!(table.row::<X86_64>(at(CODE)).unwrap().register(3), RegisterRule::SameValue);
    assert_eq!(table.row::<X86_64>(at(CODE + 4)).unwrap().register(3), RegisterRule::Offset(-40));
}

#[test]
fn malformed_tables_give_errors_with_a_kind() {
    let deep = (0..20).fold(program(), |program, _| program.remember_state());
    let cases: Vec<(&str, Bytes, CfiErrorKind)> = vec![
        ("restore_state alone", program().restore_state(), CfiErrorKind::RestoreWithoutRemember),
        ("20 states", deep, CfiErrorKind::TooDeep),
        ("no such instruction", program().u8(0x3f), CfiErrorKind::UnknownInstruction),
        ("signed return addresses on x86-64", program().negate_ra_state(), CfiErrorKind::UnknownInstruction),
        (
            "offset of an expression",
            program().def_cfa_expression(&[0x77, 0]).def_cfa_offset(8),
            CfiErrorKind::NoCfaRegister,
        ),
        ("offset beyond 32 bits", program().offset(3, 1 << 40), CfiErrorKind::OutOfRange),
        ("expression longer than the program", program().u8(0x0f).uleb(1000), CfiErrorKind::UnexpectedEnd),
    ];
    for (name, program, expected) in cases {
        assert_eq!(error_of(&program, 0), expected, "{name}");
    }
    // A fault beyond the wanted row is not reached.
    row_of(&program().advance(8).u8(0x3f), 7, |row| assert_eq!(row.cfa(), cfa(7, 8)));
}

#[test]
fn augmentations_are_read_or_skipped() {
    // Personality (pc-relative 32 bits), language data encoding, pointer encoding, in the order
    // that GCC writes.
    let gcc = ("zPLR", vec![0x9b, 1, 2, 3, 4, 0x1b, 0x1b], false);
    let signal = ("zRS", vec![0x1b], true);
    let key_b = ("zRB", vec![0x1b], false);
    let unknown_letter = ("zRX", vec![0x1b, 7, 7, 7], false);
    for (augmentation, augmentation_data, is_signal_frame) in [gcc, signal, key_b, unknown_letter] {
        let spec = CieSpec { augmentation, augmentation_data, ..CieSpec::x86_64() };
        let section = one_function(&spec, &program().def_cfa_offset(16));
        let row = linear(&section).row::<X86_64>(at(CODE)).unwrap();
        assert_eq!((row.cfa(), row.is_signal_frame()), (cfa(7, 16), is_signal_frame), "{augmentation}");
    }
    let spec = CieSpec { augmentation: "X", ..CieSpec::x86_64() };
    let section = one_function(&spec, &program());
    let error = linear(&section).row::<X86_64>(at(CODE)).unwrap_err();
    assert_eq!(error.kind, CfiErrorKind::UnknownAugmentation);
}

#[test]
fn lengths_and_ids_of_every_format_are_read() {
    for format in [Format::Eh, Format::EhLong, Format::Debug, Format::DebugLong] {
        for version in [1, 3, 4] {
            let mut section = SectionBuilder::new(format, FRAMES);
            // Padding in front, so that offsets from the start are not zero.
            let decoy = section.cie(&CieSpec::x86_64());
            section.fde(decoy, CODE - 0x100, 0x100, &program());
            let cie = section.cie(&CieSpec { version, ..CieSpec::x86_64() });
            section.fde(cie, CODE, 0x100, &program().advance(1).def_cfa_offset(16));
            let table = linear(&section);
            let row = table.row::<X86_64>(at(CODE + 1)).unwrap();
            assert_eq!(row.cfa(), cfa(7, 16), "{format:?} version {version}");
            assert_eq!(table.entries().map(Result::unwrap).count(), 2);
        }
    }
    let mut spec = CieSpec::x86_64();
    spec.version = 2;
    let section = one_function(&spec, &program());
    let error = linear(&section).row::<X86_64>(at(CODE)).unwrap_err();
    assert_eq!(error.kind, CfiErrorKind::UnknownVersion);
}

#[test]
fn pointers_of_every_encoding_are_resolved() {
    let bases = Bases { text: Some(at(CODE - 0x40)), data: Some(at(CODE + 0x500)), absolute_bias: 0x1000 };
    let pointer = |encoding: u8, value: u64| match encoding & 0xf {
        0x0 | 0x4 | 0xc => Bytes::default().u64(value),
        0x1 => Bytes::default().uleb(value),
        0x9 => Bytes::default().sleb(value as i64),
        0x2 | 0xa => Bytes::default().u16(value as u16),
        _ => Bytes::default().u32(value as u32),
    };
    // Pointers of 16 bits reach only near the section, so the code lies right behind it.
    for encoding in
        [0x00, 0x01, 0x03, 0x04, 0x09, 0x0c, 0x10, 0x1a, 0x1b, 0x1c, 0x14, 0x20, 0x23, 0x2a, 0x30, 0x3b]
    {
        let near = FRAMES + 0x800;
        let start = if encoding == 0x1a { near } else { CODE };
        let spec = CieSpec { augmentation_data: vec![encoding], ..CieSpec::x86_64() };
        let mut section = SectionBuilder::new(Format::Eh, FRAMES);
        let cie = section.cie(&spec);
        section.fde_with(cie, start, 0x40, |address| {
            let base = match encoding & 0x70 {
                0x10 => address,
                0x20 => CODE - 0x40,
                0x30 => CODE + 0x500,
                _ => 0x1000,
            };
            let first = pointer(encoding, start.wrapping_sub(base));
            first.raw(&pointer(encoding & 0xf, 0x30).0).uleb(0).raw(&program().def_cfa_offset(24).0).0
        });
        let bytes = Section::new(&section.bytes, at(FRAMES));
        let table = FrameTable::linear(Flavor::EhFrame, bytes, bases, WordSize::Bits64);
        let row = table.row::<X86_64>(at(start)).unwrap_or_else(|error| panic!("{encoding:#x}: {error}"));
        assert_eq!((row.cfa(), row.range().end), (cfa(7, 24), at(start + 0x30)), "{encoding:#x}");
    }
    // Through memory, or from a base that nobody gave.
    for encoding in [0x9b, 0x2b, 0x70, 0x0f] {
        let spec = CieSpec { augmentation_data: vec![encoding], ..CieSpec::x86_64() };
        let section = one_function(&spec, &program());
        let error = linear(&section).row::<X86_64>(at(CODE)).unwrap_err();
        assert_eq!(error.kind, CfiErrorKind::UnknownPointerEncoding, "{encoding:#x}");
    }
}

#[test]
fn header_finds_entries_and_gaps() {
    let mut section = SectionBuilder::new(Format::Eh, FRAMES);
    let cie = section.cie(&CieSpec::x86_64());
    for function in (0..50_u64).rev() {
        section.fde(cie, CODE + function * 0x100, 0x80, &program().def_cfa_offset(16 + 8 * function));
    }
    section.end();
    let header_address = FRAMES - 0x1000;
    let header = section.header(header_address);
    let frames = Section::new(&section.bytes, at(FRAMES));
    let table = FrameTable::with_header(Section::new(&header, at(header_address)), frames).unwrap();
    for function in 0..50 {
        let start = CODE + function * 0x100;
        for inside in [start, start + 0x7f] {
            let row = table.row::<X86_64>(at(inside)).unwrap();
            assert_eq!(row.cfa(), cfa(7, 16 + 8 * function as i32));
        }
        for outside in [start - 1, start + 0x80] {
            let error = table.row::<X86_64>(at(outside)).unwrap_err();
            assert_eq!(error.kind, CfiErrorKind::NotCovered);
        }
    }
    // The same functions through a header of absolute 8-byte pointers.
    let mut functions = section.functions.clone();
    functions.sort_unstable();
    let mut unusual = Bytes::default().raw(&[1, 0xff, 0x03, 0x04]).u32(functions.len() as u32);
    for (start, fde) in functions {
        unusual = unusual.u64(start).u64(fde);
    }
    let other = FrameTable::with_header(Section::new(&unusual.0, at(header_address)), frames).unwrap();
    for address in (CODE - 2..CODE + 0x3300).step_by(0x3f) {
        let same = table.find(at(address)).map(|entry| entry.offset).ok();
        assert_eq!(other.find(at(address)).map(|entry| entry.offset).ok(), same, "{address:#x}");
    }
    // No table in the header: the section is searched.
    let bare =
        FrameTable::with_header(Section::new(&[1, 0xff, 0xff, 0xff], at(header_address)), frames).unwrap();
    assert_eq!(bare.row::<X86_64>(at(CODE + 0x100)).unwrap().cfa(), cfa(7, 24));
    // Headers that are none.
    for (bytes, expected) in [
        (&[2, 0x1b, 3, 0x3b][..], CfiErrorKind::UnknownVersion),
        (&[1, 0x1b, 3], CfiErrorKind::UnexpectedEnd),
        (&[1, 0xff, 3, 0x3b, 9, 0, 0, 0], CfiErrorKind::UnexpectedEnd),
        (&[1, 0xff, 3, 0x04, 0xff, 0xff, 0xff, 0xff], CfiErrorKind::UnexpectedEnd),
        (&[1, 0xff, 3, 0x01, 0, 0, 0, 0], CfiErrorKind::UnknownPointerEncoding),
    ] {
        let error = FrameTable::with_header(Section::new(bytes, at(0)), frames).unwrap_err();
        assert_eq!(error.kind, expected, "{bytes:?}");
    }
}

#[test]
fn debug_frame_is_searched_through_the_callers_index() {
    let mut section = SectionBuilder::new(Format::Debug, 0);
    let cie = section.cie(&CieSpec { augmentation: "", ..CieSpec::x86_64() });
    for function in (0..10_u64).rev() {
        let start = 0x1000 + function * 0x100;
        let program = program().def_cfa_offset(16 + 8 * function);
        section.fde_with(cie, start, 0x100, |_| Bytes::default().u64(start).u64(0x100).raw(&program.0).0);
    }
    let bases = Bases { absolute_bias: CODE, ..Bases::default() };
    let table =
        FrameTable::linear(Flavor::DebugFrame, Section::new(&section.bytes, at(0)), bases, WordSize::Bits64);
    let entries = table.entries().map(Result::unwrap);
    let mut index: Vec<IndexEntry> =
        entries.map(|entry| IndexEntry { start: entry.range.start, entry_offset: entry.offset }).collect();
    index.sort_unstable();
    let table = table.with_index(&index);
    for function in 0..10 {
        let row = table.row::<X86_64>(at(CODE + 0x1050 + function * 0x100)).unwrap();
        assert_eq!(row.cfa(), cfa(7, 16 + 8 * function as i32));
    }
    assert_eq!(table.find(at(CODE + 0xfff)).unwrap_err().kind, CfiErrorKind::NotCovered);
}

// Packed rules and steps.

#[test]
fn rules_pack_rows_that_fit_and_reject_others() {
    for (name, program, expected) in [
        ("leaf", program(), Rule::from_sp(8, None)),
        ("pushed rbp", program().def_cfa_offset(16).offset(6, 2), Rule::from_sp(16, Some(16))),
        ("frame pointer", program().def_cfa(6, 16).offset(6, 2), Rule::from_fp(16, Some(16))),
        ("largest frame", program().def_cfa_offset((1 << 23) - 8), Rule::from_sp((1 << 23) - 8, None)),
        ("too large a frame", program().def_cfa_offset(1 << 23), None),
        ("frame of odd size", program().def_cfa_offset(12), None),
        ("no frame at all", program().def_cfa_offset(0), None),
        ("below", program().def_cfa_sf(7, 2), None),
        ("farthest rbp", program().offset(6, 1023), Rule::from_sp(8, Some(8184))),
        ("rbp too far", program().offset(6, 8192), None),
        ("rbp above the CFA", program().offset_extended_sf(6, -2), Rule::saved_above(false, 8, 16)),
        ("rbp far above the CFA", program().offset_extended_sf(6, -4), None),
        ("rbp in another register", program().register(6, 12), None),
        ("rbp lost", program().undefined(6), None),
        ("other base", program().def_cfa(10, 0), None),
        ("return address elsewhere", program().offset(16, 2), None),
        ("return address in a register", program().register(16, 2), None),
        ("no caller", program().undefined(16), Some(Rule::END_OF_STACK)),
        ("stack pointer moved", program().val_offset(7, 2), None),
        (
            "realigned",
            program().def_cfa_expression(&[0x76, 0x78, 6]).expression(6, &[0x76, 0]),
            Rule::realigned(8, true),
        ),
        ("realigned, rbp saved", program().def_cfa_expression(&[0x76, 0x78, 6]), Rule::realigned(8, false)),
        (
            "realigned, rbp elsewhere",
            program().def_cfa_expression(&[0x76, 0x78, 6]).expression(6, &[0x76, 8]),
            None,
        ),
        ("loaded from the stack", program().def_cfa_expression(&[0x77, 0, 6]), None),
        ("sum of two registers", program().def_cfa_expression(&[0x77, 0, 0x76, 0, 0x22]), None),
    ] {
        assert_eq!(rule_of(&program, 0), expected.unwrap_or(Rule::NEEDS_FULL_EVALUATION), "{name}");
    }
}

#[test]
fn rule_of_unusual_return_address_column_does_not_pack() {
    for (spec, column) in [(CieSpec::x86_64(), 7), (CieSpec::x86_64(), 3), (CieSpec::aarch64(), 0)] {
        let spec = CieSpec { return_address_register: column, ..spec };
        let section = one_function(&spec, &program().offset(column as u8, 1));
        let table = linear(&section);
        assert_eq!(
            table.rule::<X86_64>(at(CODE)).unwrap().rule,
            Rule::NEEDS_FULL_EVALUATION,
            "column {column}"
        );
        let rule = table.rule::<Aarch64>(at(CODE)).unwrap().rule;
        assert_eq!(rule, aarch64::Aarch64Rule::NEEDS_FULL_EVALUATION, "column {column}");
    }
}

/// The rows of a procedure linkage table: the second push happens at byte 11 of each entry of 16.
#[test]
fn linkage_table_rows_pack_for_one_pc() {
    let expression = [0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22];
    let program = program().def_cfa_expression(&expression);
    for offset in [0, 10, 11, 15, 16, 0x2a, 0x2b] {
        let expected = if offset % 16 >= 11 { 16 } else { 8 };
        let section = one_function(&CieSpec::x86_64(), &program);
        let table = linear(&section);
        let found = table.rule::<X86_64>(at(CODE + offset)).unwrap();
        assert_eq!(Some(found.rule), Rule::from_sp(expected, None), "at {offset}");
        assert_eq!((found.range.start, found.range.end), (at(CODE + offset), at(CODE + offset + 1)));
        let registers = Registers::<X86_64>::new(CODE + offset, 0x7000, 0);
        let caller = table.row(at(CODE + offset)).unwrap().step(&registers, &address_memory()).unwrap();
        assert_eq!(caller.sp(), 0x7000 + expected as u64);
    }
}

/// Memory whose every 8-byte word is its own address plus one.
fn address_memory() -> FnMemory<impl Fn(AbsoluteAddress, &mut [u8]) -> Option<()>> {
    FnMemory(|address: AbsoluteAddress, into: &mut [u8]| {
        let word = (address.value() + 1).to_le_bytes();
        into.copy_from_slice(word.get(..into.len())?);
        Some(())
    })
}

#[test]
fn linux_signal_trampoline_packs_and_restores_registers() {
    // The program of glibc's __restore_rt: breg7 + offset, for each register of struct ucontext.
    let places: [(u64, i64); 17] = [
        (8, 40),
        (9, 48),
        (10, 56),
        (11, 64),
        (12, 72),
        (13, 80),
        (14, 88),
        (15, 96),
        (5, 104),
        (4, 112),
        (6, 120),
        (3, 128),
        (1, 136),
        (0, 144),
        (2, 152),
        (7, 160),
        (16, 168),
    ];
    let place = |offset: i64| Bytes::default().u8(0x77).sleb(offset).0;
    let mut cfa_expression = place(160);
    cfa_expression.push(6);
    let program =
        places.iter().fold(program().def_cfa_expression(&cfa_expression), |program, &(register, offset)| {
            program.expression(register, &place(offset))
        });
    let spec = CieSpec { augmentation: "zRS", ..CieSpec::x86_64() };
    let section = one_function(&spec, &program);
    let table = linear(&section);
    assert_eq!(table.rule::<X86_64>(at(CODE)).unwrap().rule, Rule::SIGNAL_FRAME);
    let row = table.row::<X86_64>(at(CODE)).unwrap();
    assert!(row.is_signal_frame());
    let caller = row.step(&Registers::new(CODE, 0x7000, 0), &address_memory()).unwrap();
    for (register, offset) in places {
        assert_eq!(caller.value(register as u16), Some(0x7001 + offset as u64), "register {register}");
    }
    let core = Rule::SIGNAL_FRAME
        .apply(Registers::<X86_64>::new(CODE, 0x7000, 0).core(), &address_memory())
        .unwrap();
    assert_eq!((core.pc, core.sp, core.fp), (0x7001 + 168, 0x7001 + 160, 0x7001 + 120));
    // A trampoline with another layout does not pack.
    let moved = program.expression(16, &place(176));
    let section = one_function(&spec, &moved);
    assert_eq!(linear(&section).rule::<X86_64>(at(CODE)).unwrap().rule, Rule::NEEDS_FULL_EVALUATION);
}

#[test]
fn step_recovers_registers_by_every_rule() {
    let program = program()
        .def_cfa_offset(32)
        .offset(3, 2)
        .val_offset(12, 1)
        .register(13, 0)
        .expression(14, &[0x23, 8])
        .val_expression(15, &[0x23, 24])
        .same_value(1);
    row_of(&program, 0, |row| {
        let mut registers = Registers::<X86_64>::new(CODE, 0x7000, 0xb000);
        (0..6).for_each(|register| registers.set(register, 0x100 + u64::from(register)));
        let caller = row.step(&registers, &address_memory()).unwrap();
        let cfa = 0x7020;
        assert_eq!(caller.pc(), at(cfa - 8 + 1));
        for (register, expected) in [
            (RSP, Some(cfa)),
            (RBP, Some(0xb000)),
            (RBX, Some(cfa - 16 + 1)),
            (12, Some(cfa - 8)),
            (13, Some(0x100)),
            (14, Some(cfa + 8 + 1)),
            (15, Some(cfa + 24)),
            (1, Some(0x101)),
            (0, None),
            (10, None),
        ] {
            assert_eq!(caller.value(register), expected, "register {register}");
        }
    });
}

#[test]
fn failed_step_reports_its_reason() {
    let nothing = FnMemory(|_, _: &mut [u8]| None);
    let registers = Registers::<X86_64>::new(CODE, 0x7000, 0);
    let stop = |program: &Bytes| row_of(program, 0, |row| row.step(&registers, &nothing).unwrap_err());
    assert_eq!(stop(&program()), StopReason::UnreadableMemory { address: at(0x7000) });
    assert_eq!(stop(&program().def_cfa(10, 0)), StopReason::UnknownRegister { register: 10 });
    assert_eq!(stop(&program().undefined(16)), StopReason::EndOfStack);
    assert_eq!(stop(&program().def_cfa_expression(&[0x22])), StopReason::BadUnwindInfo { pc: at(CODE) });
    assert_eq!(stop(&program().same_value(16)), StopReason::BadUnwindInfo { pc: at(CODE) });
}

#[test]
fn expressions_compute() {
    let cases: Vec<(&str, Bytes, Option<u64>)> = vec![
        ("lit", Bytes::default().u8(0x30 + 31), Some(31)),
        ("const1u", Bytes::default().u8(0x08).u8(0xfe), Some(0xfe)),
        ("const1s", Bytes::default().u8(0x09).u8(0xfe), Some(-2_i64 as u64)),
        ("const2u", Bytes::default().u8(0x0a).u16(0xfffe), Some(0xfffe)),
        ("const2s", Bytes::default().u8(0x0b).u16(0xfffe), Some(-2_i64 as u64)),
        ("const4u", Bytes::default().u8(0x0c).u32(0xffff_fffe), Some(0xffff_fffe)),
        ("const4s", Bytes::default().u8(0x0d).u32(0xffff_fffe), Some(-2_i64 as u64)),
        ("const8u", Bytes::default().u8(0x0e).u64(u64::MAX), Some(u64::MAX)),
        ("const8s", Bytes::default().u8(0x0f).u64(u64::MAX), Some(u64::MAX)),
        ("constu", Bytes::default().u8(0x10).uleb(300), Some(300)),
        ("consts", Bytes::default().u8(0x11).sleb(-300), Some(-300_i64 as u64)),
        ("addr", Bytes::default().u8(0x03).u64(0x1234), Some(0x1234)),
        ("breg", Bytes::default().u8(0x77).sleb(-16), Some(0x6ff0)),
        ("bregx", Bytes::default().u8(0x92).uleb(7).sleb(300), Some(0x7000 + 300)),
        ("breg of an unknown register", Bytes::default().u8(0x70).sleb(0), None),
        ("deref", Bytes::default().u8(0x77).sleb(0).u8(0x06), Some(0x7001)),
        ("deref_size", Bytes::default().u8(0x77).sleb(0).u8(0x94).u8(1), Some(1)),
        ("deref_size of 0", Bytes::default().u8(0x77).sleb(0).u8(0x94).u8(0), None),
        ("deref_size of 9", Bytes::default().u8(0x77).sleb(0).u8(0x94).u8(9), None),
        ("dup plus", Bytes::default().raw(&[0x35, 0x12, 0x22]), Some(10)),
        ("drop", Bytes::default().raw(&[0x35, 0x36, 0x13]), Some(5)),
        ("over", Bytes::default().raw(&[0x35, 0x36, 0x14]), Some(5)),
        ("pick", Bytes::default().raw(&[0x35, 0x36, 0x37, 0x15, 2]), Some(5)),
        ("pick the CFA", Bytes::default().raw(&[0x35, 0x15, 1]), Some(0x7008)),
        ("pick too deep", Bytes::default().raw(&[0x35, 0x15, 2]), None),
        ("swap minus", Bytes::default().raw(&[0x35, 0x39, 0x16, 0x1c]), Some(4)),
        // 1 2 3 rot: the third becomes the first, so 3 1 2 from the bottom.
        ("rot", Bytes::default().raw(&[0x31, 0x32, 0x33, 0x17]), Some(2)),
        ("rot, second", Bytes::default().raw(&[0x31, 0x32, 0x33, 0x17, 0x13]), Some(1)),
        ("rot, third", Bytes::default().raw(&[0x31, 0x32, 0x33, 0x17, 0x13, 0x13]), Some(3)),
        ("abs neg", Bytes::default().raw(&[0x35, 0x1f, 0x19]), Some(5)),
        ("not", Bytes::default().raw(&[0x35, 0x20]), Some(!5)),
        ("plus_uconst", Bytes::default().raw(&[0x35, 0x23]).uleb(1000), Some(1005)),
        ("and", Bytes::default().raw(&[0x36, 0x33, 0x1a]), Some(2)),
        ("div", Bytes::default().raw(&[0x36, 0x1f, 0x34, 0x1b]), Some(-1_i64 as u64)),
        ("div by zero", Bytes::default().raw(&[0x36, 0x30, 0x1b]), None),
        ("mod", Bytes::default().raw(&[0x37, 0x34, 0x1d]), Some(3)),
        ("mod by zero", Bytes::default().raw(&[0x37, 0x30, 0x1d]), None),
        ("minus", Bytes::default().raw(&[0x37, 0x34, 0x1c]), Some(3)),
        ("mul", Bytes::default().raw(&[0x37, 0x34, 0x1e]), Some(28)),
        ("or", Bytes::default().raw(&[0x36, 0x33, 0x21]), Some(7)),
        ("xor", Bytes::default().raw(&[0x36, 0x33, 0x27]), Some(5)),
        ("shl", Bytes::default().raw(&[0x31, 0x3f, 0x24]), Some(1 << 15)),
        ("shl by 64", Bytes::default().raw(&[0x31, 0x08, 64, 0x24]), Some(0)),
        ("shr", Bytes::default().raw(&[0x31, 0x1f, 0x08, 60, 0x25]), Some(15)),
        ("shra", Bytes::default().raw(&[0x38, 0x1f, 0x32, 0x26]), Some(-2_i64 as u64)),
        ("shra by 64", Bytes::default().raw(&[0x38, 0x1f, 0x08, 64, 0x26]), Some(u64::MAX)),
        ("eq", Bytes::default().raw(&[0x31, 0x31, 0x29]), Some(1)),
        ("ge, signed", Bytes::default().raw(&[0x31, 0x1f, 0x30, 0x2a]), Some(0)),
        ("gt", Bytes::default().raw(&[0x32, 0x31, 0x2b]), Some(1)),
        ("le", Bytes::default().raw(&[0x32, 0x31, 0x2c]), Some(0)),
        ("lt", Bytes::default().raw(&[0x31, 0x32, 0x2d]), Some(1)),
        ("ne", Bytes::default().raw(&[0x31, 0x32, 0x2e]), Some(1)),
        ("skip", Bytes::default().raw(&[0x31, 0x2f, 1, 0, 0x32]), Some(1)),
        ("bra taken", Bytes::default().raw(&[0x31, 0x31, 0x28, 1, 0, 0x32]), Some(1)),
        ("bra not taken", Bytes::default().raw(&[0x31, 0x30, 0x28, 1, 0, 0x32]), Some(2)),
        ("skip out of the expression", Bytes::default().raw(&[0x31, 0x2f, 9, 0]), None),
        ("endless loop", Bytes::default().raw(&[0x31, 0x2f, 0xfd, 0xff]), None),
        ("stack overflow", Bytes::default().raw(&[0x31; 40]), None),
        ("nop", Bytes::default().raw(&[0x96, 0x31, 0x96]), Some(1)),
        ("nothing", Bytes::default(), None),
        ("a location operation", Bytes::default().raw(&[0x50]), None),
        ("cut off", Bytes::default().raw(&[0x0c, 1, 2]), None),
    ];
    for (name, expression, expected) in cases {
        row_of(&program().val_expression(3, &expression.0).undefined(12), 0, |row| {
            let registers = Registers::<X86_64>::new(CODE, 0x7000, 0);
            // The CFA is on the stack at the start; it must not be what comes out.
            let value = row.step(&registers, &address_memory()).unwrap().value(3);
            let expected = if name == "nothing" { Some(0x7008) } else { expected };
            assert_eq!(value, expected, "{name}");
        });
    }
}

// AArch64.

fn aarch64_rule(program: &Bytes) -> aarch64::Aarch64Rule {
    let section = one_function(&CieSpec::aarch64(), program);
    linear(&section).rule::<Aarch64>(at(CODE)).unwrap().rule
}

#[test]
fn aarch64_rows_pack_with_the_place_of_the_return_address() {
    let kind = |program: Bytes| aarch64_rule(&program).kind();
    let plain = |is_from_fp, cfa_offset, return_address_below, fp_is_saved| aarch64::Aarch64RuleKind::Plain {
        is_from_fp,
        cfa_offset,
        return_address_below,
        fp_is_saved,
    };
    assert_eq!(kind(program()), plain(false, 0, None, false));
    assert_eq!(
        kind(program().def_cfa_offset(32).offset(29, 4).offset(30, 3)),
        plain(false, 32, Some(24), true)
    );
    assert_eq!(kind(program().def_cfa(29, 64).offset(29, 8).offset(30, 7)), plain(true, 64, Some(56), true));
    assert_eq!(kind(program().def_cfa_offset(16).offset(30, 2)), plain(false, 16, Some(16), false));
    // Clang's frame record is next to the CFA, GCC's next to the stack pointer.
    assert_eq!(
        kind(program().def_cfa_offset(1 << 21).offset(29, 2).offset(30, 1)),
        plain(false, 1 << 21, Some(8), true)
    );
    assert_eq!(
        kind(program().def_cfa_offset(1 << 18).offset(29, 1 << 15).offset(30, (1 << 15) - 1)),
        plain(false, 1 << 18, Some((1 << 18) - 8), true)
    );
    assert_eq!(
        kind(program().def_cfa(29, 1 << 18).offset(29, 1 << 15).offset(30, (1 << 15) - 1)),
        plain(true, 1 << 18, Some((1 << 18) - 8), true)
    );
    assert_eq!(kind(program().negate_ra_state().def_cfa_offset(16)), plain(false, 16, None, false));
    assert_eq!(kind(program().undefined(30)), aarch64::Aarch64RuleKind::EndOfStack);
    for does_not_fit in [
        program().def_cfa_offset(8),
        program().def_cfa_offset(1 << 22),
        program().def_cfa_offset(1 << 20).offset(29, 1 << 16 | 1).offset(30, 1 << 16),
        program().def_cfa_offset(1 << 16).offset(29, 2049).offset(30, 2048),
        program().def_cfa_offset(32).offset(29, 3).offset(30, 4),
        program().def_cfa_offset(32).offset(29, 4),
        program().def_cfa(12, 0),
    ] {
        assert_eq!(aarch64_rule(&does_not_fit), aarch64::Aarch64Rule::NEEDS_FULL_EVALUATION);
    }
    assert_ne!(aarch64_rule(&program()).bits(), 0, "not even the rule of a leaf is zero");
}

#[test]
fn aarch64_steps_from_a_leaf_and_strip_signatures() {
    let signed = 0x0055_0000_0000_4000;
    let mut registers = Registers::<Aarch64>::new(CODE, 0x7000, 0x7100).with_address_mask((1 << 48) - 1);
    registers.set(aarch64::X30, signed);
    let section = one_function(&CieSpec::aarch64(), &program().negate_ra_state());
    let table = linear(&section);
    let caller = table.row::<Aarch64>(at(CODE)).unwrap().step(&registers, &address_memory()).unwrap();
    assert_eq!((caller.pc(), caller.sp(), caller.fp()), (at(0x4000), 0x7000, 0x7100));
    assert_eq!(caller.value(aarch64::X30), None, "a caller's link register is spent");
    let core =
        Aarch64::apply(table.rule::<Aarch64>(at(CODE)).unwrap().rule, registers.core(), &address_memory());
    assert_eq!(core.unwrap().pc, signed, "a packed step leaves stripping to its caller");

    let section =
        one_function(&CieSpec::aarch64(), &program().def_cfa_offset(32).offset(29, 4).offset(30, 3));
    let table = linear(&section);
    let caller = table.row::<Aarch64>(at(CODE)).unwrap().step(&registers, &address_memory()).unwrap();
    let core =
        table.rule::<Aarch64>(at(CODE)).unwrap().rule.apply(registers.core(), &address_memory()).unwrap();
    assert_eq!((caller.pc(), caller.sp(), caller.fp()), (at(0x7009), 0x7020, 0x7001));
    assert_eq!((core.pc, core.sp, core.fp), (0x7009, 0x7020, 0x7001));
}
