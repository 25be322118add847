//! Knows the executable memory that belongs to no module: the output of JIT compilers.
//!
//! A frame pointer proves itself only by a return address in code. The loader knows the modules;
//! the kernel's list of mappings (`/proc/self/maps`) has the rest. It is read when a return address
//! is in no known range, with raw system calls, into a buffer of the process: stacks may be small.
//!
//! A range stays known for good. JIT compilers take the execute permission from their pages while
//! they write to them, and the frames on the stack remain frames; and a range that was unmapped
//! contains no return addresses of live frames.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::stacks::own_memory::with_errno_unchanged;

/// Number of ranges; 64, because JIT compilers reserve their memory in few pieces.
const MAX_RANGES: usize = 64;

/// A range of addresses. Its bounds only move apart, so that a reader between two writes finds a
/// part of it.
struct Range {
    start: AtomicU64,
    end: AtomicU64,
}

impl Range {
    fn contains(&self, address: u64) -> bool {
        self.start.load(Ordering::Relaxed) <= address && address < self.end.load(Ordering::Relaxed)
    }
}

static RANGES: [Range; MAX_RANGES] =
    [const { Range { start: AtomicU64::new(0), end: AtomicU64::new(0) } }; MAX_RANGES];
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// Taken by the thread that reads the list. Others, and a handler that interrupts it, do not wait:
/// to them the address is in no known range.
static IS_READING: AtomicBool = AtomicBool::new(false);
/// Bytes of one reading: a few lines.
const PIECE_BYTES: usize = 1 << 10;

/// Room for one reading, of the thread that has taken [`IS_READING`].
struct Piece(UnsafeCell<[u8; PIECE_BYTES]>);

// SAFETY: `find` calls the only user between taking and giving back `IS_READING`, which one thread
// has at a time.
unsafe impl Sync for Piece {}

static PIECE: Piece = Piece(UnsafeCell::new([0; PIECE_BYTES]));

/// Readings in a row that did not find their address, and the searches that were skipped since.
static FAILURES: AtomicU32 = AtomicU32::new(0);
static SKIPPED: AtomicU32 = AtomicU32::new(0);

/// The reason to search for an address.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Evidence {
    /// It is a word of the stack.
    Word,
    /// A call instruction is in front of it.
    Call,
}

impl Evidence {
    /// Most searches that are skipped after failures. Reading the list takes 0.1 ms and more, and
    /// garbage in a frame pointer leads to the same wrong address again and again; one in 256 words
    /// has a call in front of it by chance.
    const fn most_skipped(self) -> u32 {
        match self {
            Self::Word => 4096,
            Self::Call => 64,
        }
    }
}

/// True when `address`, which lies in no module, is known to be executable, or was so earlier.
#[inline]
pub(crate) fn is_known(address: u64) -> bool {
    let count = COUNT.load(Ordering::Acquire).min(MAX_RANGES);
    RANGES.iter().take(count).any(|range| range.contains(address))
}

/// Returns true when `address`, which lies in no module, is executable.
///
/// Calls `learned` when the list of mappings has brought new ranges: stacks that were cut there
/// before go on now.
#[inline]
pub(crate) fn is_executable(address: u64, evidence: Evidence, learned: impl FnOnce()) -> bool {
    is_known(address) || find(address, evidence, learned)
}

#[cold]
#[inline(never)]
fn find(address: u64, evidence: Evidence, learned: impl FnOnce()) -> bool {
    let failures = FAILURES.load(Ordering::Relaxed);
    let skipped = 1_u32.checked_shl(failures).unwrap_or(u32::MAX).saturating_sub(1);
    if SKIPPED.fetch_add(1, Ordering::Relaxed) < skipped.min(evidence.most_skipped()) {
        return false;
    }
    if IS_READING.swap(true, Ordering::Acquire) {
        return false;
    }
    // SAFETY: this thread has taken `IS_READING`, and gives it back below.
    let has_changed = read_mappings(unsafe { &mut *PIECE.0.get() });
    IS_READING.store(false, Ordering::Release);
    SKIPPED.store(0, Ordering::Relaxed);
    let is_found = is_known(address);
    FAILURES.store(if is_found { 0 } else { failures.saturating_add(1) }, Ordering::Relaxed);
    if has_changed {
        learned();
    }
    is_found
}

/// Adds the executable mappings outside of modules. Returns true when one of them is new.
fn read_mappings(piece: &mut [u8; PIECE_BYTES]) -> bool {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    let (file, _) = with_errno_unchanged(|| {
        // SAFETY: the path is a C string, and the call writes no memory.
        unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, c"/proc/self/maps".as_ptr(), flags, 0) }
    });
    if file < 0 {
        return false;
    }
    let mut lines = MapLines::new();
    let mut has_changed = false;
    loop {
        let (count, _) = with_errno_unchanged(|| {
            // SAFETY: the call writes at most `PIECE_BYTES` bytes, to `piece`.
            unsafe { libc::syscall(libc::SYS_read, file, piece.as_mut_ptr(), PIECE_BYTES) }
        });
        let Some(read) = usize::try_from(count).ok().and_then(|count| piece.get(..count)) else { break };
        if read.is_empty() {
            break;
        }
        lines.feed(read, &mut |start, end| has_changed |= add(start, end));
    }
    // SAFETY: the descriptor was opened above, and nothing else uses it.
    with_errno_unchanged(|| unsafe { libc::syscall(libc::SYS_close, file) });
    has_changed
}

/// Adds a range; false when it was known, or is a module's.
fn add(start: u64, end: u64) -> bool {
    if start >= end || crate::stacks::modules::is_in_module(start) {
        return false;
    }
    let count = COUNT.load(Ordering::Relaxed).min(MAX_RANGES);
    let known = RANGES.get(..count).unwrap_or_default();
    // Within a known one, or its continuation.
    for range in known {
        let (known_start, known_end) =
            (range.start.load(Ordering::Relaxed), range.end.load(Ordering::Relaxed));
        if known_start <= start && end <= known_end {
            return false;
        }
        if start <= known_end && known_start <= end {
            return grow(range, start, end);
        }
    }
    if let Some(range) = RANGES.get(count) {
        range.start.store(start, Ordering::Relaxed);
        range.end.store(end, Ordering::Relaxed);
        COUNT.store(count + 1, Ordering::Release);
        return true;
    }
    // The nearest one takes it and what lies between: no code is there, and a return address there
    // still needs a call in front of it.
    let distance = |range: &&Range| {
        let (known_start, known_end) =
            (range.start.load(Ordering::Relaxed), range.end.load(Ordering::Relaxed));
        if end < known_start { known_start - end } else { start.saturating_sub(known_end) }
    };
    known.iter().min_by_key(distance).is_some_and(|range| grow(range, start, end))
}

fn grow(range: &Range, start: u64, end: u64) -> bool {
    let old_start = range.start.fetch_min(start, Ordering::Relaxed);
    let old_end = range.end.fetch_max(end, Ordering::Relaxed);
    start < old_start || old_end < end
}

/// Cuts the kernel's list of mappings, in pieces, into lines: `start-end rwxp ...`, hexadecimal.
struct MapLines {
    start: u64,
    end: u64,
    part: Part,
}

#[derive(Clone, Copy)]
enum Part {
    Start,
    End,
    /// This number of letters of the permissions was read.
    Permissions(u8),
    Rest,
}

impl MapLines {
    const fn new() -> Self {
        Self { start: 0, end: 0, part: Part::Start }
    }

    /// Takes the next piece, and passes the ranges of executable mappings on.
    fn feed(&mut self, piece: &[u8], executable: &mut impl FnMut(u64, u64)) {
        for &byte in piece {
            self.part = match (self.part, byte) {
                (_, b'\n') => {
                    (self.start, self.end) = (0, 0);
                    Part::Start
                }
                (Part::Start, b'-') => Part::End,
                (Part::End, b' ') => Part::Permissions(0),
                (Part::Permissions(2), b'x') => {
                    executable(self.start, self.end);
                    Part::Rest
                }
                (Part::Permissions(2), _) | (Part::Rest, _) => Part::Rest,
                (Part::Permissions(count), _) => Part::Permissions(count + 1),
                (part, digit) => {
                    let number = if matches!(part, Part::Start) { &mut self.start } else { &mut self.end };
                    *number = *number << 4 | (digit as char).to_digit(16).map_or(0, u64::from);
                    part
                }
            };
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::vec::Vec;

    use super::*;

    #[test]
    fn executable_mappings_are_read_in_pieces() {
        let list = b"55d0a000-55d0b000 r-xp 00000000 fe:00 12 /usr/bin/some-prog x\n\
            7f0000000000-7f0000010000 rwxp 00000000 00:00 0 \n\
            7f0000010000-7f0000020000 rw-p 00000000 00:00 0 [heap] r-xp\n\
            ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]\n";
        let expected = [
            (0x55d0_a000, 0x55d0_b000),
            (0x7f00_0000_0000, 0x7f00_0001_0000),
            (0xffff_ffff_ff60_0000, 0xffff_ffff_ff60_1000),
        ];
        for piece_bytes in [1, 7, 64, list.len()] {
            let (mut lines, mut found) = (MapLines::new(), Vec::new());
            for piece in list.chunks(piece_bytes) {
                lines.feed(piece, &mut |start, end| found.push((start, end)));
            }
            assert_eq!(found, expected, "{piece_bytes}");
        }
    }
}
