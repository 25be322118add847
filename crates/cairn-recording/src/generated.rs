//! The names that JIT compilers gave to their code, as a recording stores them: pieces of their
//! files, in the order in which the drain read them.
//!
//! ```text
//!   chunks:  ADDR  JITC  ADDR  JITC  JITC  ADDR
//!             |     |
//!             |     +-- lines that the program had written by then
//!             +-- addresses that were first on a stack before that
//! ```
//!
//! Compilers move code and reuse addresses. So an address means what the last line in front of it
//! says or, where compilers write late, the first line behind it.

use std::collections::HashMap;
use std::sync::Arc;

use crate::model::PcId;
use crate::packed::columns::{Put, Take};

/// Kind of a file in which a JIT compiler names its code.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CodeFileKind {
    /// `perf-PID.map`: lines of text.
    PerfMap,
    /// `jit-PID.dump`: records, stored without the code in them.
    JitDump,
}

impl CodeFileKind {
    const fn number(self) -> u64 {
        match self {
            Self::PerfMap => 0,
            Self::JitDump => 1,
        }
    }

    const fn from_number(number: u64) -> Option<Self> {
        match number {
            0 => Some(Self::PerfMap),
            1 => Some(Self::JitDump),
            _ => None,
        }
    }
}

/// A piece of a file. All pieces of a file, one behind the other, are what was read of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CodePiece {
    /// Kind of the file.
    pub kind: CodeFileKind,
    /// Number of the file, from 0. A file that was written anew has another number.
    pub file: u32,
    /// When the piece was read.
    pub nanos: u64,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

impl CodePiece {
    pub(crate) fn put(&self, payload: &mut Vec<u8>) {
        payload.put_number(self.kind.number());
        payload.put_number(self.file.into());
        payload.put_number(self.bytes.len() as u64);
        payload.extend_from_slice(&self.bytes);
    }

    /// `None` for a damaged piece, and for one of a kind that is not known here.
    pub(crate) fn take(payload: &[u8], nanos: u64) -> Option<Self> {
        let mut take = Take::new(payload);
        let kind = CodeFileKind::from_number(take.number()?)?;
        let file = take.number32()?;
        let bytes = take.column()?.to_vec();
        Some(Self { kind, file, nanos, bytes })
    }
}

/// The pieces of a recording, and where its addresses were first seen among them.
#[derive(Clone, Default, Debug)]
pub struct GeneratedCode {
    /// Each with its place in the file.
    pieces: Vec<(u64, Arc<CodePiece>)>,
    /// Place of the row of each address that is in no module.
    seen: HashMap<u32, u64>,
}

impl GeneratedCode {
    /// The pieces, in the order in which they were read.
    pub fn pieces(&self) -> impl ExactSizeIterator<Item = &CodePiece> {
        self.pieces.iter().map(|(_, piece)| &**piece)
    }

    /// True when no compiler has named any code.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Counts the pieces that were read before this address was first on a stack.
    ///
    /// All of them for an address whose row is in no packed file yet.
    #[must_use]
    pub fn pieces_before(&self, pc: PcId) -> usize {
        let seen = self.seen.get(&pc.number()).copied().unwrap_or(u64::MAX);
        self.pieces.partition_point(|(place, _)| *place < seen)
    }

    pub(crate) fn add(&mut self, place: u64, piece: CodePiece) {
        // Chunks are read in their order; an index that says otherwise is no reason to fail.
        let index = self.pieces.partition_point(|(other, _)| *other <= place);
        self.pieces.insert(index, (place, Arc::new(piece)));
    }

    pub(crate) fn note_seen(&mut self, pc: u32, place: u64) {
        self.seen.insert(pc, place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_pieces_are_read_again() {
        let piece = CodePiece { kind: CodeFileKind::JitDump, file: 3, nanos: 7, bytes: b"JiTD".to_vec() };
        let mut payload = Vec::new();
        piece.put(&mut payload);
        assert_eq!(CodePiece::take(&payload, 7), Some(piece));
        for length in 0..payload.len() {
            assert_eq!(CodePiece::take(&payload[..length], 7), None);
        }
        assert_eq!(CodePiece::take(&[9, 0, 0], 0), None, "an unknown kind");
    }

    #[test]
    fn addresses_are_placed_among_pieces() {
        let mut code = GeneratedCode::default();
        for place in [10, 30] {
            let piece = CodePiece { kind: CodeFileKind::PerfMap, file: 0, nanos: place, bytes: Vec::new() };
            code.add(place, piece);
        }
        for (pc, place) in [(1, 5), (2, 20), (3, 40)] {
            code.note_seen(pc, place);
        }
        let before: Vec<usize> = (1..5).map(|pc| code.pieces_before(PcId(pc))).collect();
        assert_eq!(before, [0, 1, 2, 2]);
    }
}
