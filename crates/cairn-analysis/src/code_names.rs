//! Names of code that JIT compilers made, from their perf maps and jitdumps.

use cairn_format::recording::PcKind;
use cairn_recording::{CodeFileKind, CodePiece};
use cairn_symbols::{GeneratedFormat, GeneratedNames, GeneratedPiece, SeenAddress, SourceFrame};

/// The names of generated code at the time at which the files were read.
#[derive(Debug)]
pub struct CodeNames {
    names: GeneratedNames,
    pieces: usize,
}

impl CodeNames {
    /// Reads the names in the pieces of files; `None` without any piece.
    #[must_use]
    pub fn new(pieces: &[CodePiece]) -> Option<Self> {
        if pieces.is_empty() {
            return None;
        }
        let names = GeneratedNames::new(pieces.iter().map(piece));
        Some(Self { names, pieces: pieces.len() })
    }

    /// Names each address by its kind.
    ///
    /// `None` where no code was announced, and for a kind that is no address of code. The caller
    /// leaves addresses in modules out.
    #[must_use]
    pub fn resolve(&self, addresses: &[(PcKind, u64)]) -> Vec<Option<SourceFrame>> {
        let known: Vec<Option<SeenAddress>> = addresses
            .iter()
            .map(|&(kind, address)| {
                Some(SeenAddress { address: lookup_address(kind, address)?, pieces_before: self.pieces })
            })
            .collect();
        let seen: Vec<SeenAddress> = known.iter().flatten().copied().collect();
        let mut found = self.names.resolve(&seen).into_iter();
        known.into_iter().map(|known| known.and_then(|_| found.next().flatten())).collect()
    }
}

/// A piece as the reader of names takes it.
pub(crate) fn piece(piece: &CodePiece) -> GeneratedPiece<'_> {
    let format = match piece.kind {
        CodeFileKind::PerfMap => GeneratedFormat::PerfMap,
        CodeFileKind::JitDump => GeneratedFormat::JitDump,
    };
    GeneratedPiece { format, file: piece.file, bytes: &piece.bytes }
}

/// The address at which the name of a frame of this kind is looked up; `None` for no code.
pub(crate) fn lookup_address(kind: PcKind, address: u64) -> Option<u64> {
    match kind {
        PcKind::ReturnAddress | PcKind::ReturnWithoutTables => Some(address.saturating_sub(1)),
        PcKind::ProgramCounter => Some(address),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_names_answer_for_each_address_in_order() {
        let map = b"1000 20 JS:*make /srv/app.js:12:3\n2000 10 other\n".to_vec();
        let piece = CodePiece { kind: CodeFileKind::PerfMap, file: 0, nanos: 0, bytes: map };
        let names = CodeNames::new(&[piece]).unwrap();
        let asked = [
            (PcKind::ProgramCounter, 0x2000),
            (PcKind::Limit, 0x1000),
            (PcKind::ReturnAddress, 0x1020),
            (PcKind::ReturnAddress, 0x1000),
            (PcKind::ReturnWithoutTables, 0x2001),
        ];
        let found = names.resolve(&asked).into_iter();
        let found: Vec<Option<String>> =
            found.map(|frame| frame?.function.as_deref().map(str::to_owned)).collect();
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(found, [text("other"), None, text("make"), None, text("other")]);
        assert!(CodeNames::new(&[]).is_none());
    }
}
