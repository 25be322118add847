//! Reads which interpreter, loader and libraries a script or a program needs.
//!
//! Files are untrusted: any bytes give an answer, which is yes unless a reason against it is found.

/// A file that can be read at any offset.
pub(crate) trait ReadAt {
    /// Reads up to the length of `into`; returns the number of bytes, 0 for errors.
    fn read_at(&self, into: &mut [u8], at: u64) -> usize;
}

/// Bytes of a file that the kernel reads for a script.
pub(crate) const START_BYTES: usize = 256;

const PROGRAM_HEADER_BYTES: usize = 56;
const CLASS_64: u8 = 2;
/// The processor that this library is for, as ELF numbers it.
const MACHINE: u16 = if cfg!(target_arch = "x86_64") { 62 } else { 183 };
const LOAD: u32 = 1;
const DYNAMIC: u32 = 2;
const INTERPRETER: u32 = 3;
const NEEDED: u64 = 1;
const STRINGS: u64 = 5;
/// Maximum program headers that are read; 128, more than any program has.
const MAX_SEGMENTS: u64 = 128;

/// Returns the interpreter in the first line of a script.
pub(crate) fn interpreter(start: &[u8]) -> &[u8] {
    let line = start.get(2..).unwrap_or_default().split(|byte| *byte == b'\n').next().unwrap_or_default();
    let mut words = line.split(|byte| matches!(byte, b' ' | b'\t' | b'\r' | 0));
    words.find(|word| !word.is_empty()).unwrap_or_default()
}

/// Returns whether a program can load the library. One without a loader cannot, but its children
/// may.
pub(crate) fn program_takes_library(file: &impl ReadAt, start: &[u8; START_BYTES]) -> bool {
    if !start.starts_with(b"\x7fELF") {
        // A script without an interpreter line, which the shell runs.
        return true;
    }
    if start[4] != CLASS_64 || u16::from_le_bytes([start[18], start[19]]) != MACHINE {
        return false;
    }
    let (Some(at), Some(count)) = (long(start, 32), start.get(56..58)) else { return true };
    let count = u64::from(u16::from_le_bytes([count[0], count[1]])).min(MAX_SEGMENTS);
    let segments = Segments { file, at, count };
    let Some(loader) = segments.find(INTERPRETER, |_| true) else { return true };
    let mut path = [0; START_BYTES];
    let length = file.read_at(&mut path, loader.offset);
    let path = path[..length].split(|byte| *byte == 0).next().unwrap_or_default();
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    name.starts_with(b"ld-linux") && !needs_sanitizer(&segments)
}

/// The program headers of a file.
struct Segments<'a, File> {
    file: &'a File,
    at: u64,
    count: u64,
}

/// Place of a part of the file, there and in memory.
struct Segment {
    offset: u64,
    address: u64,
    bytes: u64,
}

impl<File: ReadAt> Segments<'_, File> {
    fn find(&self, kind: u32, is_wanted: impl Fn(&Segment) -> bool) -> Option<Segment> {
        (0..self.count).find_map(|index| {
            let mut words = [0; PROGRAM_HEADER_BYTES];
            let at = self.at.checked_add(index * PROGRAM_HEADER_BYTES as u64)?;
            if self.file.read_at(&mut words, at) != words.len() || words[..4] != kind.to_le_bytes() {
                return None;
            }
            let segment =
                Segment { offset: long(&words, 8)?, address: long(&words, 16)?, bytes: long(&words, 32)? };
            Some(segment).filter(|segment| is_wanted(segment))
        })
    }
}

/// Returns whether a needed library is a sanitizer that must be the first library.
fn needs_sanitizer(segments: &Segments<'_, impl ReadAt>) -> bool {
    let Some(dynamic) = segments.find(DYNAMIC, |_| true) else { return false };
    let Some(strings) = entries(segments.file, &dynamic, STRINGS, Some) else { return false };
    let is_there =
        |segment: &Segment| strings.checked_sub(segment.address).is_some_and(|within| within < segment.bytes);
    let Some(load) = segments.find(LOAD, is_there) else { return false };
    let strings = (strings - load.address).saturating_add(load.offset);
    let is_sanitizer = |name: u64| {
        let mut text = [0; 48];
        let length = segments.file.read_at(&mut text, strings.saturating_add(name));
        let text = text[..length].split(|byte| *byte == 0).next().unwrap_or_default();
        let has = |part: &[u8]| text.windows(part.len()).any(|there| there == part);
        let of_gcc = [&b"libasan.so"[..], b"libtsan.so", b"libhwasan.so"];
        let of_clang = [&b".asan"[..], b".tsan", b".hwasan"];
        of_gcc.iter().any(|start| text.starts_with(start))
            || text.starts_with(b"libclang_rt.") && of_clang.iter().any(|part| has(part))
    };
    entries(segments.file, &dynamic, NEEDED, |name| is_sanitizer(name).then_some(())).is_some()
}

/// Calls `meet` with the values of this tag in a dynamic section, until it returns something.
fn entries<T>(
    file: &impl ReadAt,
    dynamic: &Segment,
    tag: u64,
    mut meet: impl FnMut(u64) -> Option<T>,
) -> Option<T> {
    const ENTRY_BYTES: u64 = 16;
    /// Maximum entries that are read; 4096, more than any program has.
    const MOST: u64 = 4096;
    let mut part = [0; 32 * ENTRY_BYTES as usize];
    let end = dynamic.bytes.min(MOST * ENTRY_BYTES);
    let mut at = 0;
    while at < end {
        let length = file.read_at(&mut part, dynamic.offset.saturating_add(at));
        if length < ENTRY_BYTES as usize {
            break;
        }
        for entry in part[..length].chunks_exact(ENTRY_BYTES as usize) {
            match (long(entry, 0), long(entry, 8)) {
                (Some(0), _) => return None,
                (Some(found), Some(value)) if found == tag => {
                    if let Some(answer) = meet(value) {
                        return Some(answer);
                    }
                }
                _ => {}
            }
        }
        at += part.len() as u64;
    }
    None
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|word| u64::from_le_bytes(*word))
}
