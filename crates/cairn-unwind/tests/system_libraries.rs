//! Every row of real libraries, against gimli: the whole row register by register, the packed rule
//! wherever it claims to hold, and the two applied to the same registers and memory.
//!
//! Libraries that are not installed are skipped and named; libc must be there.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(clippy::print_stdout, reason = "shown by `cargo test -- --nocapture`: how many rows no rule holds")]

use std::collections::BTreeMap;
use std::path::PathBuf;

use cairn_format::{AbsoluteAddress, WordSize};
use cairn_unwind::cfi::{
    Bases, CachingTable, CfaRule, Flavor, FrameTable, IndexEntry, RegisterRule, Row, RuleAt, Section,
    find_frames,
};
use cairn_unwind::x86_64::{self, X86_64, X86_64Rule as Rule, X86_64RuleKind as RuleKind};
use cairn_unwind::{FnMemory, Registers, RuleFailure, StopReason};
use gimli::{BaseAddresses, EhFrame, EndianSlice, LittleEndian, UnwindContext, UnwindSection};
use object::{Object, ObjectSection};

type Reader<'a> = EndianSlice<'a, LittleEndian>;

/// The path of an installed library, in the directories of the usual distributions.
fn library(name: &str) -> PathBuf {
    let folders = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"];
    let paths = folders.map(|folder| PathBuf::from(folder).join(name));
    paths.iter().find(|path| path.exists()).unwrap_or(&paths[0]).clone()
}

/// The libraries to compare, as far as they are installed.
fn libraries() -> Vec<PathBuf> {
    let names = [
        "libc.so.6",
        "libstdc++.so.6",
        "libcrypto.so.3",
        "libm.so.6",
        "libgcc_s.so.1",
        "ld-linux-x86-64.so.2",
    ];
    let mut paths: Vec<PathBuf> = names.iter().map(|name| library(name)).collect();
    paths.extend(["/usr/bin/python3"].map(PathBuf::from));
    paths.push(std::env::current_exe().unwrap());
    paths.retain(|path| {
        let is_there = path.exists();
        if !is_there {
            println!("skipped, not installed: {}", path.display());
        }
        is_there
    });
    paths
}

#[derive(Default, Debug)]
struct Counts {
    rows: u64,
    plain: u64,
    realigned: u64,
    signal: u64,
    end: u64,
    full: u64,
}

/// A value for every register, all different, and 16-byte aligned so that arithmetic stays
/// plausible.
fn test_registers(pc: u64) -> Registers<X86_64> {
    let mut registers = Registers::new(pc, 0x7ffe_0000_1000, 0x7ffe_0000_4000);
    for register in [0, 1, 2, 3, 4, 5, 8, 9, 10, 11, 12, 13, 14, 15] {
        registers.set(register, 0x5000_0000_0000 + u64::from(register) * 0x1_0000);
    }
    registers
}

/// Memory that holds something different at every address.
fn test_memory() -> FnMemory<impl Fn(AbsoluteAddress, &mut [u8]) -> Option<()>> {
    FnMemory(|address: AbsoluteAddress, into: &mut [u8]| {
        for (at, byte) in into.iter_mut().enumerate() {
            let place = address.value().wrapping_add(at as u64);
            *byte = (place ^ (place >> 8)).wrapping_mul(0x9e37_79b9) as u8;
        }
        Some(())
    })
}

fn gimli_rule_matches(
    row: &Row<'_, X86_64>,
    theirs: &gimli::UnwindTableRow<usize>,
    section: &EhFrame<Reader<'_>>,
) -> bool {
    let bytes =
        |expression: &gimli::UnwindExpression<usize>| expression.get(section).unwrap().0.slice().to_vec();
    let cfa_matches = match (row.cfa(), theirs.cfa()) {
        (
            CfaRule::Register { register, offset },
            gimli::CfaRule::RegisterAndOffset { register: their_register, offset: their_offset },
        ) => register == their_register.0 && i64::from(offset) == *their_offset,
        (CfaRule::Expression(ours), gimli::CfaRule::Expression(theirs)) => {
            row.expression(ours) == bytes(theirs)
        }
        _ => false,
    };
    cfa_matches
        && (0..17).all(|register| {
            match (row.register(register), theirs.register(gimli::Register(register))) {
                (RegisterRule::Unspecified | RegisterRule::Undefined, gimli::RegisterRule::Undefined)
                | (RegisterRule::SameValue, gimli::RegisterRule::SameValue) => true,
                (RegisterRule::Offset(ours), gimli::RegisterRule::Offset(theirs))
                | (RegisterRule::ValueOffset(ours), gimli::RegisterRule::ValOffset(theirs)) => {
                    i64::from(ours) == theirs
                }
                (RegisterRule::Register(ours), gimli::RegisterRule::Register(theirs)) => ours == theirs.0,
                (RegisterRule::Expression(ours), gimli::RegisterRule::Expression(theirs))
                | (RegisterRule::ValueExpression(ours), gimli::RegisterRule::ValExpression(theirs)) => {
                    row.expression(ours) == bytes(&theirs)
                }
                _ => false,
            }
        })
}

/// True if the packed rule agrees with gimli's row.
fn packed_rule_matches(rule: Rule, theirs: &gimli::UnwindTableRow<usize>, is_signal_frame: bool) -> bool {
    let rbp = theirs.register(gimli::Register(x86_64::RBP));
    let return_address = theirs.register(gimli::Register(x86_64::RIP));
    let base_and_offset = |base: u16, cfa_offset: u64, saved_fp_below: Option<u64>| {
        let fp_matches = match (saved_fp_below, &rbp) {
            (None, gimli::RegisterRule::Undefined | gimli::RegisterRule::SameValue) => true,
            (Some(below), gimli::RegisterRule::Offset(offset)) => *offset == -(below as i64),
            _ => false,
        };
        let cfa_matches = match theirs.cfa() {
            gimli::CfaRule::RegisterAndOffset { register, offset } => {
                register.0 == base && *offset == cfa_offset as i64
            }
            // The linkage table's rows; the comparison of steps below judges their value.
            gimli::CfaRule::Expression(_) => true,
        };
        fp_matches && cfa_matches && !is_signal_frame && return_address == gimli::RegisterRule::Offset(-8)
    };
    match rule.kind() {
        RuleKind::FromSp { cfa_offset, saved_fp_below } => {
            base_and_offset(x86_64::RSP, cfa_offset, saved_fp_below)
        }
        RuleKind::FromFp { cfa_offset, saved_fp_below } => {
            base_and_offset(x86_64::RBP, cfa_offset, saved_fp_below)
        }
        RuleKind::Realigned { .. } | RuleKind::SignalFrame => {
            matches!(theirs.cfa(), gimli::CfaRule::Expression(_))
        }
        RuleKind::EndOfStack => return_address == gimli::RegisterRule::Undefined,
        RuleKind::NeedsFullEvaluation => true,
        RuleKind::SavedAbove { .. } | RuleKind::NoTables | RuleKind::ByCode | RuleKind::ByRuntime => false,
    }
}

/// The packed rule and the row, stepped from the same place.
fn steps_agree(rule: Rule, row: &Row<'_, X86_64>, pc: AbsoluteAddress) -> bool {
    let registers = test_registers(pc.value());
    let memory = test_memory();
    match (rule.apply(registers.core(), &memory), row.step(&registers, &memory)) {
        (Ok(core), Ok(caller)) => {
            let fp = caller.value(x86_64::RBP);
            core.pc == caller.pc().value() && core.sp == caller.sp() && fp == Some(core.fp)
        }
        (Err(RuleFailure::EndOfStack), Err(StopReason::EndOfStack)) => true,
        (Err(RuleFailure::NeedsFullEvaluation), _) => true,
        _ => false,
    }
}

fn count(counts: &mut Counts, rule: Rule) {
    counts.rows += 1;
    *match rule.kind() {
        RuleKind::FromSp { .. } | RuleKind::FromFp { .. } => &mut counts.plain,
        RuleKind::Realigned { .. } => &mut counts.realigned,
        RuleKind::SignalFrame => &mut counts.signal,
        RuleKind::EndOfStack => &mut counts.end,
        RuleKind::NeedsFullEvaluation => &mut counts.full,
        RuleKind::SavedAbove { .. } | RuleKind::NoTables | RuleKind::ByCode | RuleKind::ByRuntime => {
            unreachable!("a table says that there is none")
        }
    } += 1;
}

/// Compares all rows of one file; the rows that no rule holds are described in `unrepresentable`.
fn compare(file: &[u8], name: &str, unrepresentable: &mut BTreeMap<String, u64>) -> Option<Counts> {
    let object = object::File::parse(file).unwrap();
    let section = |name: &str| {
        let section = object.section_by_name(name)?;
        Some(Section::new(section.data().unwrap(), AbsoluteAddress::new(section.address())))
    };
    let (header, frames) = (section(".eh_frame_hdr")?, section(".eh_frame")?);
    let table = FrameTable::with_header(header, frames).unwrap();
    let mut caching = CachingTable::new(table);

    let their_section = EhFrame::new(frames.bytes, LittleEndian);
    let bases = BaseAddresses::default()
        .set_eh_frame(frames.address.value())
        .set_eh_frame_hdr(header.address.value());
    let mut context = UnwindContext::new();
    let mut counts = Counts::default();
    let mut entries = their_section.entries(&bases);
    while let Some(entry) = entries.next().unwrap() {
        let gimli::CieOrFde::Fde(partial) = entry else { continue };
        let fde = partial.parse(|section, bases, offset| section.cie_from_offset(bases, offset)).unwrap();
        let is_signal_frame = fde.is_signal_trampoline();
        let mut rows = fde.rows(&their_section, &bases, &mut context).unwrap();
        while let Some(theirs) = rows.next_row().unwrap() {
            let (start, end) = (theirs.start_address(), theirs.end_address());
            for pc in [start, end.wrapping_sub(1)] {
                if start >= end {
                    continue;
                }
                let pc = AbsoluteAddress::new(pc);
                let row = table.row::<X86_64>(pc).unwrap_or_else(|error| panic!("{name}: {pc}: {error}"));
                let RuleAt { rule, range } = table.rule::<X86_64>(pc).unwrap();
                assert_eq!(caching.rule::<X86_64>(pc), Ok(RuleAt { rule, range }), "{name}: {pc}");
                assert!(
                    gimli_rule_matches(&row, theirs, &their_section),
                    "{name}: {pc}: {row:?} is not {theirs:?}"
                );
                assert_eq!(row.is_signal_frame(), is_signal_frame, "{name}: {pc}");
                assert_eq!(
                    (row.range().start.value(), row.range().end.value()),
                    (start, end),
                    "{name}: {pc}"
                );
                assert!(
                    range.contains(pc) && range.start >= row.range().start && range.end <= row.range().end
                );
                assert!(
                    packed_rule_matches(rule, theirs, is_signal_frame),
                    "{name}: {pc}: {rule:?} is not {theirs:?}"
                );
                assert!(steps_agree(rule, &row, pc), "{name}: {pc}: {rule:?} steps otherwise than {row:?}");
                assert_ne!(rule.bits(), 0);
                assert_eq!(Rule::from_bits(rule.bits()), rule);
                if pc.value() == start {
                    count(&mut counts, rule);
                    if rule == Rule::NEEDS_FULL_EVALUATION {
                        let fp = row.register(x86_64::RBP);
                        let cfa = match row.cfa() {
                            CfaRule::Register { register, offset } => {
                                format!("CFA register {register} offset {offset}")
                            }
                            CfaRule::Expression(expression) => {
                                format!("CFA expression {:02x?}", row.expression(expression))
                            }
                            other => format!("{other:?}"),
                        };
                        *unrepresentable.entry(format!("{name}: {cfa}, rbp {fp:?}")).or_default() += 1;
                    }
                }
            }
        }
    }
    Some(counts)
}

#[test]
fn rows_of_system_libraries_equal_gimli() {
    let mut unrepresentable = BTreeMap::new();
    let mut rows = 0;
    for path in libraries() {
        let file = std::fs::read(&path).unwrap();
        if let Some(counts) = compare(&file, &path.display().to_string(), &mut unrepresentable) {
            println!("{}: {counts:?}", path.display());
            rows += counts.rows;
        }
    }
    for (what, times) in &unrepresentable {
        println!("{times:6} x {what}");
    }
    assert!(rows > 20_000, "libc alone has more rows than {rows}");
}

/// Finds the same entry by every search. The searches are the header, an index made from the
/// entries, and one after the other.
#[test]
fn header_index_and_linear_search_agree() {
    let file = std::fs::read(library("libc.so.6")).unwrap();
    let object = object::File::parse(&*file).unwrap();
    let section = |name: &str| {
        let section = object.section_by_name(name).unwrap();
        Section::new(section.data().unwrap(), AbsoluteAddress::new(section.address()))
    };
    let frames = section(".eh_frame");
    let by_header = FrameTable::with_header(section(".eh_frame_hdr"), frames).unwrap();
    let linear = FrameTable::linear(Flavor::EhFrame, frames, Bases::default(), WordSize::Bits64);
    let mut index: Vec<IndexEntry> = linear
        .entries()
        .map(|entry| entry.unwrap())
        .map(|entry| IndexEntry { start: entry.range.start, entry_offset: entry.offset })
        .collect();
    index.sort_unstable();
    let by_index = linear.with_index(&index);
    assert!(index.len() > 1000);

    for (number, entry) in index.iter().enumerate() {
        for address in [entry.start.value().wrapping_sub(1), entry.start.value(), entry.start.value() + 1] {
            let address = AbsoluteAddress::new(address);
            let found = by_header.find(address).map(|entry| entry.offset).ok();
            assert_eq!(by_index.find(address).map(|entry| entry.offset).ok(), found, "{address}");
            // The linear search takes its time; a sample is enough.
            if number % 97 == 0 {
                assert_eq!(linear.find(address).map(|entry| entry.offset).ok(), found, "{address}");
            }
        }
    }
}

/// The loaded segment of `file` that holds its `.eh_frame`, and that section.
fn segment_with_frames<'a>(file: &object::File<'a>) -> (Section<'a>, Section<'a>) {
    use object::ObjectSegment;
    let frames = file.section_by_name(".eh_frame").unwrap();
    let holds = |segment: &object::Segment<'_, '_>| {
        (segment.address()..segment.address() + segment.size()).contains(&frames.address())
    };
    let segment = file.segments().find(holds).unwrap();
    let at = AbsoluteAddress::new;
    (
        Section::new(segment.data().unwrap(), at(segment.address())),
        Section::new(frames.data().unwrap(), at(frames.address())),
    )
}

/// Finds by structure what the section headers state, in every library. The search begins at any
/// address that is covered.
#[test]
fn frame_search_finds_table_without_header() {
    let mut compared = 0;
    for path in libraries() {
        let bytes = std::fs::read(&path).unwrap();
        let (segment, frames) = segment_with_frames(&object::File::parse(&*bytes).unwrap());
        let linear = FrameTable::linear(Flavor::EhFrame, frames, Bases::default(), WordSize::Bits64);
        let entries: Vec<_> = linear.entries().map(Result::unwrap).collect();
        for entry in [entries.first(), entries.get(entries.len() / 2), entries.last()].into_iter().flatten() {
            let found = find_frames(segment, entry.range.start, WordSize::Bits64);
            let found = found.unwrap_or_else(|| panic!("{}: not found", path.display()));
            assert_eq!(found.address, frames.address, "{}", path.display());
            assert_eq!(found.bytes.len(), frames.bytes.len(), "{}", path.display());
            compared += 1;
        }
        // An address that the table does not cover finds none, in bounded time.
        assert!(find_frames(segment, AbsoluteAddress::new(u64::MAX), WordSize::Bits64).is_none());
    }
    assert!(compared >= 6);
}

/// Whatever is damaged, the search ends, and what it finds is a whole chain.
#[test]
fn frame_search_rejects_damaged_tables() {
    let bytes = std::fs::read(library("libgcc_s.so.1")).unwrap();
    let (segment, frames) = segment_with_frames(&object::File::parse(&*bytes).unwrap());
    let linear = FrameTable::linear(Flavor::EhFrame, frames, Bases::default(), WordSize::Bits64);
    let entries: Vec<_> = linear.entries().map(Result::unwrap).collect();
    let code = entries[entries.len() / 2].range.start;
    let start = (frames.address.value() - segment.address.value()) as usize;
    let mut found_count = 0;
    // Every entry's length, one after the other, and the place before the table.
    for entry in &entries {
        let mut damaged = segment.bytes.to_vec();
        damaged[start + entry.offset] ^= 0x55;
        if let Some(found) = find_frames(Section::new(&damaged, segment.address), code, WordSize::Bits64) {
            let table = FrameTable::linear(Flavor::EhFrame, found, Bases::default(), WordSize::Bits64);
            assert!(table.entries().all(|entry| entry.is_ok()));
            assert!(table.find(code).is_ok());
            found_count += 1;
        }
    }
    // Damage in front of a CIE costs the entries before that; damage behind the last CIE costs all.
    assert!(found_count < entries.len(), "damage was never noticed");
    for cut in 0..8 {
        // Within the last entry.
        let end = start + frames.bytes.len() - 5 - cut;
        let cut = Section::new(&segment.bytes[..end], segment.address);
        assert!(find_frames(cut, code, WordSize::Bits64).is_none(), "the last entry is cut");
    }
}
