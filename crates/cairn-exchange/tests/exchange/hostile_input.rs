//! Files that are broken, and files that were made to break what reads them.

use std::io::Read;

use cairn_analysis::heap::Scope;
use cairn_exchange::import::{Imported, ImportedSums};
use cairn_exchange::{ExchangeError, Target};

use crate::spool::Random;
use crate::subject::{export, recorded};

fn read(bytes: &[u8]) -> Result<ImportedSums, ExchangeError> {
    Imported::from_bytes(bytes.to_vec())?.read(&Scope::default())
}

/// An error says where, or that the file is something else.
fn check(bytes: &[u8]) {
    match read(bytes) {
        Ok(_) | Err(ExchangeError::Unknown | ExchangeError::NoHeap { .. }) => {}
        Err(ExchangeError::Malformed { place, .. }) => {
            assert!(
                place.starts_with("byte ") || place.starts_with("line ") || place.starts_with("before byte ")
            );
        }
        Err(error) => panic!("{error}: {bytes:?}"),
    }
}

/// A small file of each format, as it is written and without its compression.
fn files() -> Vec<Vec<u8>> {
    let shape: Vec<(usize, usize)> = (0..12).map(|index| (index / 2, index)).collect();
    let events: Vec<(usize, u64, u32)> =
        (0..30).map(|index| (index * 7, if index % 3 == 2 { 0 } else { 8 << (index % 5) }, 0)).collect();
    let heap = recorded(&shape, &events);
    let (pprof, heaptrack) = (export(Target::Pprof, &heap), export(Target::Heaptrack, &heap));
    let mut plain_pprof = Vec::new();
    flate2::read::GzDecoder::new(&pprof[..]).read_to_end(&mut plain_pprof).unwrap();
    let plain_heaptrack = zstd::decode_all(&heaptrack[..]).unwrap();
    let files = vec![plain_pprof, plain_heaptrack, pprof, heaptrack];
    for file in &files {
        assert!(read(file).unwrap().sums.totals.allocations > 15);
    }
    files
}

#[test]
fn every_truncation_gives_a_result_or_a_place() {
    for file in files() {
        (0..file.len()).for_each(|end| check(&file[..end]));
    }
}

#[test]
fn every_damage_gives_a_result_or_a_place() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for file in files() {
        for _ in 0..2000 {
            let mut bytes = file.clone();
            for _ in 0..=random.below(3) {
                let at = random.below(bytes.len() as u64) as usize;
                match random.below(4) {
                    0 => bytes[at] = random.next() as u8,
                    1 => bytes[at] ^= 1 << random.below(8),
                    2 => drop(bytes.remove(at)),
                    _ => bytes.insert(at, random.next() as u8),
                }
            }
            check(&bytes);
        }
    }
}

fn error_of(text: &str) -> String {
    read(text.as_bytes()).map(|read| read.sums.totals).unwrap_err().to_string()
}

#[test]
fn a_heaptrack_file_that_makes_no_sense_is_told_by_its_line() {
    let cases = [
        ("v 10400 2\n", "line 1: version 2 of the format"),
        ("v \n", "line 1: a heaptrack file begins with its version"),
        ("v 1 3\ns 5 abc\n", "line 2: a text of 3 bytes, where 5 are announced"),
        ("v 1 3\ni 10 1\n", "line 2: text 1, where there are 0"),
        ("v 1 3\nt 1 0\n", "line 2: place 1, where there are 0"),
        ("v 1 3\ni 10 0\nt 1 1\n", "line 3: stack 1, where there are 0"),
        ("v 1 3\ni 10 0\nt 0 0\n", "line 3: a stack without a place"),
        ("v 1 3\na 10 1\n", "line 2: stack 1, where there are 0"),
        ("v 1 3\n+ 0\n", "line 2: class 0, where there are 0"),
        ("v 1 3\na 10 0\n+ x\n", "line 3: \"x\" is no hexadecimal number"),
        ("v 1 3\na 10 0\n-\n", "line 3: a class is missing"),
        ("v 1 3\nc ffffffffffffffff\n", "are no time"),
    ];
    for (text, problem) in cases {
        let error = error_of(text);
        assert!(error.contains(problem), "{text:?}: {error}");
    }
}

#[test]
fn what_a_killed_heaptrack_leaves_is_read_up_to_its_last_whole_line() {
    let read = read(b"v 1 3\na ffffffffffffffff 0\n+ 0\n+ 0\n- 0\n- 0\n- 0\n+ 0\n+ ").unwrap();
    assert_eq!((read.sums.totals.allocations, read.sums.totals.live_blocks), (3, 1));
    assert_eq!(read.unmatched_frees, 1);
}

/// A field of a message: its number, and what is in it.
fn field(tag: u8, content: &[u8]) -> Vec<u8> {
    assert!(content.len() < 128);
    [&[tag << 3 | 2, content.len() as u8], content].concat()
}

#[test]
fn a_pprof_file_that_makes_no_sense_is_told_by_its_byte() {
    let kind = field(1, &[8, 1, 16, 2]);
    let texts = [field(6, b""), field(6, b"inuse_space"), field(6, b"bytes")].concat();
    let sound = [&kind[..], &texts].concat();
    assert_eq!(read(&sound).unwrap().sums.totals.allocations, 0);
    let at = sound.len();
    let cases: [(Vec<u8>, String); 7] = [
        (field(4, &[]), format!("byte {at}: a location without an id")),
        (
            [field(4, &[8, 1]), field(4, &[8, 1])].concat(),
            format!("byte {}: location 1 for the second time", at + 4),
        ),
        (field(2, &[8, 7, 16, 1]), format!("byte {at}: a sample at location 7, which is not there")),
        (field(2, &[16, 1, 16, 1]), format!("byte {at}: a sample of 2 values, where each has 1")),
        (vec![0x12, 0x7f], format!("byte {at}: a field that is longer than the file")),
        (vec![0x0b], format!("byte {at}: a field of a kind that the format does not have")),
        (field(3, &[8]), format!("byte {at}: mapping: ")),
    ];
    for (more, problem) in cases {
        let error = read(&[&sound[..], &more].concat()).map(|read| read.sums.totals).unwrap_err().to_string();
        assert!(error.contains(&problem), "{error}, not {problem}");
    }
    let cpu = [field(1, &[8, 1, 16, 1]), field(6, b""), field(6, b"cpu")].concat();
    assert!(matches!(read(&cpu), Err(ExchangeError::NoHeap { counts, .. }) if counts == "cpu"));
}

#[test]
fn other_files_are_unknown() {
    for bytes in [&b""[..], b"hello, world\n", b"{\"meta\":{}}", b"\x7fELF\x02\x01\x01", b"\n\n\n", &[0; 100]]
    {
        assert!(matches!(read(bytes), Err(ExchangeError::Unknown)), "{bytes:?}");
    }
}

#[test]
fn what_cannot_be_read_again_is_refused() {
    let directory = std::env::temp_dir();
    assert!(matches!(Imported::open(&directory), Err(ExchangeError::NoFile)));
    assert!(matches!(Imported::open(&directory.join("no-such-file")), Err(ExchangeError::Io { .. })));
}
