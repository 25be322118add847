//! What a process is about to become by `exec`: whether the loader that will run there takes this library.
//!
//! The loader of musl ends a program that it is to load this library into, a loader for 32 bits complains on standard error, and some
//! sanitizers end the program when they are not the first of all libraries. So the file is looked at, as the kernel will: through
//! scripts, to the loader and the libraries that it asks for. What cannot be looked at is taken for one that does.
//!
//! May run in a child of `vfork`: nothing is written but this stack.

use core::ffi::{CStr, c_char, c_int};

use crate::environment;
use crate::system::{self, ReadOnly};
use crate::text::Text;

/// Longer paths are not followed.
const PATH_BYTES: usize = 512;
/// The kernel follows no more scripts that are interpreted by scripts.
const MAX_SCRIPTS: usize = 5;
/// As much of a file as the kernel looks at for a script.
const START_BYTES: usize = 256;

const PROGRAM_HEADER_BYTES: usize = 56;
const CLASS_64: u8 = 2;
/// The processor that this library is for, as ELF numbers it.
const MACHINE: u16 = if cfg!(target_arch = "x86_64") { 62 } else { 183 };
const LOAD: u32 = 1;
const DYNAMIC: u32 = 2;
const INTERPRETER: u32 = 3;
const NEEDED: u64 = 1;
const STRINGS: u64 = 5;
/// More program headers than any program has.
const MAX_SEGMENTS: u64 = 128;

/// The file at `path`.
///
/// # Safety
///
/// A text that ends with a NUL.
pub(crate) unsafe fn takes_library(path: *const c_char) -> bool {
    // SAFETY: by contract.
    unsafe { at_takes_library(libc::AT_FDCWD, path) }
}

/// The file at `path`, from an open directory.
///
/// # Safety
///
/// As for [`takes_library`].
pub(crate) unsafe fn at_takes_library(directory: c_int, path: *const c_char) -> bool {
    if path.is_null() {
        return true;
    }
    // SAFETY: by contract.
    let file = ReadOnly::open(directory, unsafe { CStr::from_ptr(path) });
    file.is_none_or(|file| file_takes_library(&file))
}

/// The program that a shell would find by this name.
///
/// # Safety
///
/// As for [`takes_library`].
pub(crate) unsafe fn found_takes_library(name: *const c_char) -> bool {
    if name.is_null() {
        return true;
    }
    // SAFETY: by contract.
    let text = unsafe { CStr::from_ptr(name) };
    if text.to_bytes().contains(&b'/') {
        // SAFETY: by contract.
        return unsafe { takes_library(name) };
    }
    // SAFETY: the present environment, as the C library's function reads it.
    let directories = unsafe { environment::search_path(environment::current()) };
    for directory in directories.unwrap_or(b"/bin:/usr/bin").split(|byte| *byte == b':') {
        let mut path = Text::<PATH_BYTES>::new();
        path.push(if directory.is_empty() { b"." } else { directory });
        path.push(b"/");
        path.push(text.to_bytes());
        path.push(b"\0");
        let whole = CStr::from_bytes_with_nul(path.as_bytes()).ok().filter(|_| !path.is_cut());
        if let Some(whole) = whole
            && system::may_execute(whole)
        {
            // SAFETY: a text with a NUL.
            return unsafe { takes_library(whole.as_ptr()) };
        }
    }
    true
}

/// An open file.
pub(crate) fn file_takes_library(file: &ReadOnly) -> bool {
    let mut start = [0; START_BYTES];
    let mut count = file.read_at(&mut start, 0);
    if !start.starts_with(b"#!") {
        return program_takes_library(file, &start);
    }
    for _ in 0..MAX_SCRIPTS {
        let mut path = Text::<{ START_BYTES + 1 }>::new();
        path.push(interpreter(start.get(..count).unwrap_or_default()));
        path.push(b"\0");
        let Ok(path) = CStr::from_bytes_with_nul(path.as_bytes()) else { return true };
        let Some(file) = ReadOnly::open(libc::AT_FDCWD, path) else { return true };
        start = [0; START_BYTES];
        count = file.read_at(&mut start, 0);
        if !start.starts_with(b"#!") {
            return program_takes_library(&file, &start);
        }
    }
    true
}

/// What the first line of a script names.
fn interpreter(start: &[u8]) -> &[u8] {
    let line = start.get(2..).unwrap_or_default().split(|byte| *byte == b'\n').next().unwrap_or_default();
    let mut words = line.split(|byte| matches!(byte, b' ' | b'\t' | b'\r' | 0));
    words.find(|word| !word.is_empty()).unwrap_or_default()
}

/// A program without a loader takes nothing, and what it starts may.
fn program_takes_library(file: &ReadOnly, start: &[u8; START_BYTES]) -> bool {
    if !start.starts_with(b"\x7fELF") {
        // A script without a first line that says so: the shell's.
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
struct Segments<'a> {
    file: &'a ReadOnly,
    at: u64,
    count: u64,
}

/// Where a part of the file lies, there and in memory.
struct Segment {
    offset: u64,
    address: u64,
    bytes: u64,
}

impl Segments<'_> {
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

/// Whether a sanitizer is among the libraries that is no use behind another one.
fn needs_sanitizer(segments: &Segments<'_>) -> bool {
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

/// The first answer of `meet` to the values of the entries of a dynamic section that have this tag.
fn entries<T>(
    file: &ReadOnly,
    dynamic: &Segment,
    tag: u64,
    mut meet: impl FnMut(u64) -> Option<T>,
) -> Option<T> {
    const ENTRY_BYTES: u64 = 16;
    /// More than any program has.
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
