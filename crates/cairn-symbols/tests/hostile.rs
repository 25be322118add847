//! Hostile debug information, assembled byte by byte: each file ends in an answer within seconds.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use cairn_format::StatedAddress;
use cairn_symbols::{Lookup, Resolution, Symbolizer, SymbolizerOptions, Unknown};

const CODE: u64 = 0x1000;

/// Builds a 64-bit ELF file with one executable segment and these sections.
fn elf(sections: &[(&str, u64, &[u8])]) -> Vec<u8> {
    let mut names = vec![0_u8];
    let mut bytes = vec![0_u8; 64 + 56];
    let mut headers = vec![0_u8; 64];
    let header =
        |names: &mut Vec<u8>, bytes: &mut Vec<u8>, name: &str, kind: u32, flags: u64, data: &[u8]| {
            let mut header = Vec::new();
            header.extend((names.len() as u32).to_le_bytes());
            header.extend(kind.to_le_bytes());
            for field in [flags, 0, bytes.len() as u64, data.len() as u64, 0, 1, 0] {
                header.extend(field.to_le_bytes());
            }
            // Link and info are 32 bits each, in one field here.
            names.extend(name.as_bytes());
            names.push(0);
            bytes.extend(data);
            header
        };
    for &(name, flags, data) in sections {
        headers.extend(header(&mut names, &mut bytes, name, 1, flags, data));
    }
    let mut last_names = names.clone();
    last_names.extend(b".shstrtab\0");
    let last = header(&mut names, &mut bytes, ".shstrtab", 3, 0, &last_names);
    headers.extend(last);
    let section_headers = bytes.len() as u64;
    bytes.extend(&headers);
    let mut start = Vec::new();
    start.extend(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    start.extend([2, 0, 62, 0, 1, 0, 0, 0]);
    for field in [CODE, 64, section_headers] {
        start.extend(field.to_le_bytes());
    }
    start.extend([0, 0, 0, 0, 64, 0, 56, 0, 1, 0, 64, 0]);
    start.extend((sections.len() as u16 + 2).to_le_bytes());
    start.extend((sections.len() as u16 + 1).to_le_bytes());
    start.extend([1, 0, 0, 0, 5, 0, 0, 0]);
    for field in [0, 0, 0, 0x10_0000, 0x10_0000, 0x1000_u64] {
        start.extend(field.to_le_bytes());
    }
    bytes[..start.len()].copy_from_slice(&start);
    bytes
}

const UNIT: u8 = 1;
const FUNCTION: u8 = 2;
const INLINED: u8 = 3;
const REFERRING: u8 = 4;
const LISTED: u8 = 5;

/// Tag, children, then attributes and forms, as above.
const ABBREVIATIONS: &[u8] = &[
    UNIT, 0x11, 1, 0x11, 0x01, 0x12, 0x07, 0, 0, // low_pc, high_pc
    FUNCTION, 0x2e, 1, 0x11, 0x01, 0x12, 0x07, 0x03, 0x0e, 0, 0, // and a name of .debug_str
    INLINED, 0x1d, 1, 0x11, 0x01, 0x12, 0x07, 0, 0, //
    REFERRING, 0x2e, 0, 0x11, 0x01, 0x12, 0x07, 0x31, 0x13, 0, 0, // and an abstract origin
    LISTED, 0x2e, 0, 0x55, 0x17, 0, 0, // ranges
    0,
];

fn place(abbreviation: u8) -> Vec<u8> {
    let mut entry = vec![abbreviation];
    entry.extend(CODE.to_le_bytes());
    entry.extend(0x100_u64.to_le_bytes());
    entry
}

/// Builds a unit of version 4 around entries.
fn unit(entries: &[u8]) -> Vec<u8> {
    let mut unit = vec![4, 0, 0, 0, 0, 0, 8];
    unit.extend(place(UNIT));
    unit.extend(entries);
    let mut info = (unit.len() as u32).to_le_bytes().to_vec();
    info.extend(unit);
    info
}

fn ask(name: &str, file: &[u8]) -> Resolution {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("symbols-hostile");
    fs::create_dir_all(&directory).unwrap();
    let path = directory.join(name);
    fs::write(&path, file).unwrap();
    let start = Instant::now();
    let mut symbolizer = Symbolizer::new(SymbolizerOptions::new());
    let module = symbolizer.add_file(&path).unwrap();
    let lookup = Lookup::stated(StatedAddress::new(CODE + 4));
    let answer = symbolizer.resolve(module, lookup);
    assert!(symbolizer.declarations(module, lookup).len() <= 1001);
    // None of them has a symbol table.
    assert_eq!(symbolizer.data_symbol(module, lookup), None);
    assert!(start.elapsed() < Duration::from_secs(20), "{name}: {:?}", start.elapsed());
    fs::remove_file(&path).unwrap();
    answer
}

fn assert_broken(answer: &Resolution, expected: &str) {
    match answer.reason() {
        Some(Unknown::Broken { problem }) => assert!(problem.contains(expected), "{problem}"),
        other => panic!("{other:?} {:?}", answer.frames()),
    }
}

fn function(name: u32) -> Vec<u8> {
    let mut entry = place(FUNCTION);
    entry.extend(name.to_le_bytes());
    entry
}

fn file(entries: &[u8], more: &[(&str, u64, &[u8])]) -> Vec<u8> {
    let info = unit(entries);
    let mut sections = vec![(".debug_abbrev", 0, ABBREVIATIONS), (".debug_info", 0, &*info)];
    sections.extend(more);
    elf(&sections)
}

#[test]
fn valid_file_from_this_builder_is_read() {
    let entries = [function(0), place(INLINED), vec![0, 0]].concat();
    let answer = ask("honest", &file(&entries, &[(".debug_str", 0, b"name\0")]));
    let names: Vec<_> = answer.frames().iter().map(|frame| frame.function.as_deref()).collect();
    assert_eq!(names, [None, Some("name")]);
}

#[test]
fn inline_depth_of_a_million_is_refused() {
    let mut entries = function(0);
    (0..1_000_000).for_each(|_| entries.extend(place(INLINED)));
    let answer = ask("deep", &file(&entries, &[(".debug_str", 0, b"name\0")]));
    assert_broken(&answer, "inlined into each other");
}

#[test]
fn name_of_a_hundred_megabytes_is_refused() {
    let mut name = vec![b'a'; 100 << 20];
    name.push(0);
    let answer = ask("long-name", &file(&function(0), &[(".debug_str", 0, &name)]));
    assert_broken(&answer, "a name of more than");
}

#[test]
fn cyclic_references_end() {
    // The entry follows the unit's header and the unit's own entry.
    let own_offset = 11_u32 + 17;
    let mut entry = place(REFERRING);
    entry.extend(own_offset.to_le_bytes());
    let answer = ask("ring", &file(&entry, &[]));
    assert_eq!(answer.frames().len(), 1);
    assert_eq!(answer.frames()[0].function, None);
}

#[test]
fn shared_range_list_is_bounded() {
    let mut ranges = Vec::new();
    for index in 0..100_000_u64 {
        ranges.extend((0x4000 + index).to_le_bytes());
        ranges.extend((0x4001 + index).to_le_bytes());
    }
    ranges.extend([0; 16]);
    let mut entries = Vec::new();
    (0..100_000).for_each(|_| entries.extend([LISTED, 0, 0, 0, 0]));
    assert_broken(&ask("ranges", &file(&entries, &[(".debug_ranges", 0, &ranges)])), "address ranges");
}

#[test]
fn endless_indirect_attribute_ends() {
    let abbreviations = [&[UNIT, 0x11, 1, 0x03, 0x16, 0, 0][..], &[0]].concat();
    let mut unit = vec![4, 0, 0, 0, 0, 0, 8, UNIT];
    unit.extend(vec![0x16; 4 << 20]);
    let info = [&(unit.len() as u32).to_le_bytes()[..], &unit].concat();
    let answer = ask("indirect", &elf(&[(".debug_abbrev", 0, &abbreviations), (".debug_info", 0, &info)]));
    assert!(answer.reason().is_some());
}

#[test]
fn oversized_compressed_section_is_refused() {
    const COMPRESSED: u64 = 0x800;
    let mut section = [1_u32.to_le_bytes(), [0; 4]].concat();
    section.extend((1_u64 << 40).to_le_bytes());
    section.extend(1_u64.to_le_bytes());
    section.extend([0x78, 0x9c, 1, 2, 3]);
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("symbols-hostile");
    fs::create_dir_all(&directory).unwrap();
    let path = directory.join("bomb");
    fs::write(&path, elf(&[(".debug_info", COMPRESSED, &section)])).unwrap();
    let error = Symbolizer::new(SymbolizerOptions::new()).add_file(&path).unwrap_err().to_string();
    assert!(error.contains("would unpack to more than 64 MiB ("), "{error}");
}
