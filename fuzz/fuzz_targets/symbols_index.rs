//! Indexes of any bytes behind a sound header: no panic, bounded time, and an answer to every
//! address.

#![no_main]

use std::fs;
use std::path::PathBuf;
use std::sync::OnceLock;

use cairn_format::StatedAddress;
use cairn_symbols::{Lookup, Symbolizer, SymbolizerOptions};
use libfuzzer_sys::fuzz_target;

/// Address and size of the program's code.
const CODE: u64 = 0x1000;
const CODE_BYTES: u64 = 0x1000;

const BUILD_ID: [u8; 8] = [0xca, 0x1a, 1, 2, 3, 4, 5, 6];

/// An input begins with the shares of the parts behind the first two, in front of the checksums.
const SHARES: usize = 6;

/// Version of the layout. The sizes are bytes of the header, and of the page that one checksum
/// covers: `docs/book/reference/symbol-index.md`.
const VERSION: u32 = 3;
const HEADER_BYTES: usize = 96;
const PAGE_BYTES: usize = 4096;

fuzz_target!(|input: &[u8]| {
    let Some((shares, bytes)) = input.split_first_chunk::<SHARES>() else { return };
    // Bytes between the last part and the checksums would be an unsound header.
    if shares.iter().all(|&share| share == 0) {
        return;
    }
    let place = place();
    fs::write(&place.index, index(shares, bytes, &place.identity)).unwrap();
    let options = SymbolizerOptions::new().sysroot("/nonexistent").threads(1).cache_dir(&place.cache);
    let mut symbolizer = Symbolizer::new(options);
    let module = symbolizer.add_file(&place.program).unwrap();
    assert!(symbolizer.module_report(module).from_index, "the header is sound");
    for address in (CODE..CODE + CODE_BYTES).step_by(61) {
        let answer = symbolizer.resolve(module, Lookup::stated(StatedAddress::new(address)));
        assert_eq!(answer.frames().is_empty(), answer.reason().is_some());
        assert!(answer.frames().len() <= 1001);
    }
});

/// Header, identity, code and checksums as they must be, and the rest as it comes.
fn index(shares: &[u8; SHARES], bytes: &[u8], identity: &[u8]) -> Vec<u8> {
    let code = [CODE.to_le_bytes(), (CODE + CODE_BYTES).to_le_bytes()].concat();
    let total: usize = shares.iter().map(|&share| usize::from(share)).sum();
    let mut ends = vec![HEADER_BYTES + identity.len(), HEADER_BYTES + identity.len() + code.len()];
    let mut sum = 0;
    for &share in shares {
        sum += usize::from(share);
        ends.push(ends[1] + bytes.len() * sum / total);
    }
    let text_end = ends[1] + bytes.len();
    ends.push(text_end + text_end.div_ceil(PAGE_BYTES) * 4);
    let mut checked = CODE.to_le_bytes().to_vec();
    ends.iter().for_each(|&end| checked.extend((end as u64).to_le_bytes()));
    let mut all = b"cairnsym".to_vec();
    all.extend(VERSION.to_le_bytes());
    all.extend(crc32fast::hash(&checked).to_le_bytes());
    let all = [all, checked, identity.to_vec(), code, bytes.to_vec()].concat();
    let checks: Vec<u8> =
        all.chunks(PAGE_BYTES).flat_map(|page| crc32fast::hash(page).to_le_bytes()).collect();
    [all, checks].concat()
}

struct Place {
    cache: PathBuf,
    index: PathBuf,
    program: PathBuf,
    identity: Vec<u8>,
}

/// Returns the program, which is written once; the index lies where the symbolizer searches for it.
fn place() -> &'static Place {
    static PLACE: OnceLock<Place> = OnceLock::new();
    PLACE.get_or_init(|| {
        let cache = std::env::temp_dir().join(format!("cairn-fuzz-index-{}", std::process::id()));
        fs::create_dir_all(&cache).unwrap();
        let bytes = program();
        let program = cache.join("program");
        fs::write(&program, &bytes).unwrap();
        let mut identity = vec![1];
        identity.extend((bytes.len() as u64).to_le_bytes());
        identity.push(BUILD_ID.len() as u8);
        identity.extend(BUILD_ID);
        let id: String = BUILD_ID.iter().map(|byte| format!("{byte:02x}")).collect();
        let index = cache.join(format!("{id}-{:08x}.cairnsym", crc32fast::hash(&identity)));
        Place { cache, index, program, identity }
    })
}

/// Returns a 64-bit ELF program of two segments. One is the code, which is not in the file, the
/// other a note with the build id.
fn program() -> Vec<u8> {
    let mut elf = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    elf.extend([2_u16, 62].iter().flat_map(|half| half.to_le_bytes()));
    elf.extend(1_u32.to_le_bytes());
    elf.extend([CODE, 64, 0].iter().flat_map(|word| word.to_le_bytes()));
    elf.extend(0_u32.to_le_bytes());
    elf.extend([64_u16, 56, 2, 64, 0, 0].iter().flat_map(|half| half.to_le_bytes()));
    let note_at = 64 + 2 * 56;
    let mut segment = |kind: u32, flags: u32, words: [u64; 6]| {
        elf.extend(kind.to_le_bytes());
        elf.extend(flags.to_le_bytes());
        elf.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    };
    segment(1, 5, [0, CODE, CODE, 0, CODE_BYTES, 0x1000]);
    segment(4, 4, [note_at, 0, 0, 16 + BUILD_ID.len() as u64, 16 + BUILD_ID.len() as u64, 4]);
    elf.extend([4, BUILD_ID.len() as u32, 3].iter().flat_map(|word| word.to_le_bytes()));
    elf.extend(b"GNU\0");
    elf.extend(BUILD_ID);
    elf
}
