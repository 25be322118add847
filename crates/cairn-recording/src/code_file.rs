//! Reads files in which JIT compilers name their code, piece by piece.

use std::fs::File;
use std::io;
use std::path::Path;

use crate::generated::{CodeFileKind, CodePiece};
use crate::source::read_fully;

/// Most bytes of one piece; 1 MiB, a quarter of a chunk.
const PIECE_BYTES: usize = 1 << 20;
/// Most bytes of all pieces; 64 MiB, a million lines of 64 bytes. Later ones are counted as lost.
pub(crate) const MAX_BYTES: u64 = 64 << 20;

/// Reads a perf map or a jitdump, at most 64 MiB of it. `number` tells files apart.
///
/// # Errors
///
/// If it cannot be opened or read.
pub fn code_file(path: &Path, number: u32) -> io::Result<Vec<CodePiece>> {
    let file = File::open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    let mut magic = [0; 4];
    let filled = read_fully(&file, 0, &mut magic)?;
    let kind = match magic.get(..filled) {
        Some(b"JiTD" | b"DTiJ") => CodeFileKind::JitDump,
        _ => CodeFileKind::PerfMap,
    };
    let mut tail = Tail { file, identity: (0, 0), kind, number, offset: 0 };
    let (mut pieces, mut room) = (Vec::new(), MAX_BYTES);
    while let Some(bytes) = tail.next_piece(true) {
        if bytes.is_empty() || bytes.len() as u64 > room {
            continue;
        }
        room -= bytes.len() as u64;
        pieces.push(CodePiece { kind, file: number, nanos: 0, bytes });
    }
    Ok(pieces)
}

/// A file that is read while it grows.
pub(crate) struct Tail {
    pub(crate) file: File,
    /// Device and inode.
    pub(crate) identity: (u64, u64),
    pub(crate) kind: CodeFileKind,
    pub(crate) number: u32,
    /// Bytes that were read.
    pub(crate) offset: u64,
}

impl Tail {
    pub(crate) fn length(&self) -> u64 {
        self.file.metadata().map_or(0, |metadata| metadata.len())
    }

    pub(crate) fn has_more(&self) -> bool {
        self.length() != self.offset
    }

    /// Begins again when the file became shorter: Java writes its map anew at each request.
    pub(crate) fn notice_new_contents(&mut self, next_number: &mut u32) {
        if self.length() < self.offset {
            (self.offset, self.number) = (0, *next_number);
            *next_number += 1;
        }
    }

    /// The next complete lines or records; `None` when there are none.
    pub(crate) fn next_piece(&mut self, is_last: bool) -> Option<Vec<u8>> {
        let mut bytes = self.read_at(self.offset, PIECE_BYTES).ok()?;
        let (piece, used) = match self.kind {
            CodeFileKind::PerfMap => {
                let ends_here = is_last && bytes.len() < PIECE_BYTES;
                let used = match bytes.iter().rposition(|&byte| byte == b'\n') {
                    _ if ends_here => bytes.len(),
                    Some(newline) => newline + 1,
                    // No line is so long: what has no end in a whole piece is passed over.
                    None if bytes.len() == PIECE_BYTES => bytes.len(),
                    None => 0,
                };
                bytes.truncate(used);
                (bytes, used as u64)
            }
            CodeFileKind::JitDump => records_without_code(&bytes, self.offset == 0),
        };
        self.offset += used;
        (used > 0).then_some(piece)
    }

    fn read_at(&self, offset: u64, most: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; most.min(usize::try_from(self.length().saturating_sub(offset)).unwrap_or(0))];
        let filled = read_fully(&self.file, offset, &mut bytes)?;
        bytes.truncate(filled);
        Ok(bytes)
    }
}

/// Cuts whole records of a jitdump from its beginning, without the code of functions.
///
/// Records that have no names are left out, and one that is longer than a piece is passed over.
/// Returns the records, and how many bytes of the file they were.
fn records_without_code(bytes: &[u8], is_start: bool) -> (Vec<u8>, u64) {
    /// Bytes of kind, size and time.
    const PREFIX_BYTES: usize = 16;
    /// Bytes of a function's record from its start to its name.
    const NAME_AT: usize = PREFIX_BYTES + 40;
    const LOAD: u32 = 0;
    const MOVE: u32 = 1;
    const LINES: u32 = 2;
    let word = |at: usize| {
        let word = bytes.get(at..)?.first_chunk::<4>()?;
        Some(u32::from_le_bytes(*word))
    };
    let (mut taken, mut at) = (Vec::new(), 0);
    if is_start {
        // The program has this machine's byte order.
        let header = word(8).map_or(0, |size| size as usize);
        match bytes.get(..header).filter(|header| header.len() >= 16) {
            Some(header) => taken.extend_from_slice(header),
            None => return (taken, 0),
        }
        at = header;
    }
    while let (Some(kind), Some(size)) = (word(at), word(at + 4)) {
        let size = size as usize;
        if size < PREFIX_BYTES {
            // Damaged: nothing behind it can be found.
            return (taken, bytes.len() as u64);
        }
        let Some(record) = at.checked_add(size).and_then(|end| bytes.get(at..end)) else {
            let is_too_long = at == 0 && size > PIECE_BYTES;
            return (taken, if is_too_long { size as u64 } else { at as u64 });
        };
        match kind {
            LOAD => {
                let name = record.get(NAME_AT..).unwrap_or_default();
                let name_bytes = name.iter().position(|&byte| byte == 0).map_or(name.len(), |end| end + 1);
                let named = record.get(..NAME_AT + name_bytes).unwrap_or(record);
                taken.extend_from_slice(named.get(..4).unwrap_or_default());
                taken.extend_from_slice(&(named.len() as u32).to_le_bytes());
                taken.extend_from_slice(named.get(8..).unwrap_or_default());
            }
            MOVE | LINES => taken.extend_from_slice(record),
            _ => {}
        }
        at += size;
    }
    (taken, at as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: u32, body: &[u8]) -> Vec<u8> {
        let mut record = Vec::new();
        record.extend(kind.to_le_bytes());
        record.extend((body.len() as u32 + 16).to_le_bytes());
        record.extend(9_u64.to_le_bytes());
        record.extend(body);
        record
    }

    #[test]
    fn code_and_unknown_records_of_a_jitdump_are_left_out() {
        let mut header = [0; 40];
        header[..4].copy_from_slice(b"DTiJ");
        header[8] = 40;
        let named = [&[7_u8; 40][..], b"name\0"].concat();
        let load = record(0, &[&named[..], &[0x90; 100]].concat());
        let lines = record(2, &[3; 30]);
        let other = record(4, &[1; 50]);
        let file = [&header[..], &lines, &load, &other, &record(1, &[2; 48])].concat();
        let expected = [&header[..], &lines, &record(0, &named), &record(1, &[2; 48])].concat();
        assert_eq!(records_without_code(&file, true), (expected, file.len() as u64));
        // Whatever is there of it, whole records are taken and the rest waits.
        for length in 0..file.len() {
            let (taken, used) = records_without_code(&file[..length], true);
            let (more, rest) = records_without_code(&file[used as usize..], used == 0);
            assert_eq!(used + rest, file.len() as u64, "{length}");
            assert_eq!(taken.len() + more.len(), file.len() - 100 - other.len(), "{length}");
        }
    }
}
