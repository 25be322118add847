//! Any bytes as the file that a process is about to become by `exec`, read inside of it: there is
//! an answer after a bounded number of reads, and what is not known to refuse the library takes it.
#![no_main]

use std::cell::Cell;

#[path = "../../crates/cairn-preload/src/program_file.rs"]
mod program_file;

use program_file::{ReadAt, START_BYTES, interpreter, program_takes_library};

struct File<'a> {
    bytes: &'a [u8],
    reads: Cell<u32>,
}

impl ReadAt for File<'_> {
    fn read_at(&self, into: &mut [u8], at: u64) -> usize {
        self.reads.set(self.reads.get() + 1);
        let rest = usize::try_from(at).ok().and_then(|at| self.bytes.get(at..)).unwrap_or_default();
        let count = rest.len().min(into.len());
        into[..count].copy_from_slice(&rest[..count]);
        count
    }
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let file = File { bytes, reads: Cell::new(0) };
    let mut start = [0; START_BYTES];
    let count = file.read_at(&mut start, 0);
    if start.starts_with(b"#!") {
        let name = interpreter(&start[..count]);
        assert!(!name.contains(&b'\n') && name.len() < START_BYTES);
    }
    let takes_it = program_takes_library(&file, &start);
    assert!(takes_it || bytes.starts_with(b"\x7fELF"));
    // Three passes over the headers, the loader's name, and twice the dynamic section with a name
    // for each entry.
    assert!(file.reads.get() < 3 * 128 + 2 * 4096 + 200);
});
