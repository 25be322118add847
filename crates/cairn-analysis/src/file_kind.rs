//! Recognises files by their first bytes, so that a wrong file gets an error that says what it is.
//!
//! ```
//! use cairn_analysis::file_kind::FileKind;
//!
//! let kind = FileKind::of_start(b"<!DOCTYPE html>\n<html>");
//! assert_eq!(kind.name(), "an HTML page");
//! assert!(kind.advice().is_some());
//! ```

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use cairn_format::recording::MAGIC;

/// First bytes that [`FileKind::of_start`] reads; tar has its magic at byte 257.
pub const START_BYTES: usize = 4096;

/// The kind of a file, as far as its first bytes show it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum FileKind {
    /// A recording of cairn.
    Recording,
    /// A core file.
    Core,
    /// A minidump.
    Minidump,
    /// An ELF program or shared library.
    ElfProgram,
    /// An ELF object file.
    ElfObject,
    /// A program or library of macOS.
    MachO,
    /// A program or library of Windows.
    Pe,
    /// Debug information of Windows.
    Pdb,
    /// An index of symbols that `cairn symbolize` builds.
    SymbolIndex,
    /// heaptrack's data file.
    Heaptrack,
    /// An HTML page.
    Html,
    /// An XML document, such as a flame graph.
    Xml,
    /// A JSON document.
    Json,
    /// Compressed by gzip.
    Gzip,
    /// Compressed by Zstandard.
    Zstd,
    /// Compressed by LZ4.
    Lz4,
    /// Compressed by xz.
    Xz,
    /// Compressed by bzip2.
    Bzip2,
    /// A zip archive.
    Zip,
    /// A tar archive.
    Tar,
    /// A script, by its first line.
    Script,
    /// Text of another kind, such as a log.
    Text,
    /// A file without a byte.
    Empty,
    /// Bytes of no kind that is known here.
    Unknown,
}

impl FileKind {
    /// Recognises a file by its first bytes; [`START_BYTES`] are enough.
    #[must_use]
    pub fn of_start(start: &[u8]) -> Self {
        const MAGICS: [(&[u8], FileKind); 17] = [
            (b"MDMP", FileKind::Minidump),
            (b"\xfe\xed\xfa\xce", FileKind::MachO),
            (b"\xfe\xed\xfa\xcf", FileKind::MachO),
            (b"\xce\xfa\xed\xfe", FileKind::MachO),
            (b"\xcf\xfa\xed\xfe", FileKind::MachO),
            (b"\xca\xfe\xba\xbe", FileKind::MachO),
            (b"Microsoft C/C++ MSF 7.00", FileKind::Pdb),
            (b"\x1f\x8b", FileKind::Gzip),
            (b"\x28\xb5\x2f\xfd", FileKind::Zstd),
            (b"\x04\x22\x4d\x18", FileKind::Lz4),
            (b"\xfd7zXZ\0", FileKind::Xz),
            (b"BZh", FileKind::Bzip2),
            (b"PK\x03\x04", FileKind::Zip),
            (b"#!", FileKind::Script),
            (b"<?xml", FileKind::Xml),
            (b"<svg", FileKind::Xml),
            (b"v 1", FileKind::Heaptrack),
        ];
        if start.is_empty() {
            return Self::Empty;
        }
        if start.starts_with(MAGIC.as_ref()) {
            return Self::Recording;
        }
        if start.starts_with(b"cairnsym") {
            return Self::SymbolIndex;
        }
        if start.starts_with(b"\x7fELF") {
            return elf_kind(start);
        }
        if start.starts_with(b"MZ") {
            return pe_kind(start);
        }
        if let Some((_, kind)) = MAGICS.iter().find(|(magic, _)| start.starts_with(magic)) {
            return *kind;
        }
        if start.get(257..262) == Some(b"ustar") {
            return Self::Tar;
        }
        text_kind(start)
    }

    /// Reads the first bytes of a file and recognises it by them.
    ///
    /// # Errors
    ///
    /// When the file cannot be opened or read.
    pub fn of_file(path: &Path) -> io::Result<Self> {
        start_of(path).map(|start| Self::of_start(&start))
    }

    /// Returns the kind with its article, as a message names it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Recording => "a recording of cairn",
            Self::Core => "a core file",
            Self::Minidump => "a minidump",
            Self::ElfProgram => "an ELF program or library",
            Self::ElfObject => "an ELF object file",
            Self::MachO => "a Mach-O program or library",
            Self::Pe => "a Windows program or library",
            Self::Pdb => "a PDB file",
            Self::SymbolIndex => "a symbol index of cairn",
            Self::Heaptrack => "a file of heaptrack",
            Self::Html => "an HTML page",
            Self::Xml => "an XML document",
            Self::Json => "a JSON document",
            Self::Gzip => "a gzip file",
            Self::Zstd => "a Zstandard file",
            Self::Lz4 => "an LZ4 file",
            Self::Xz => "an xz file",
            Self::Bzip2 => "a bzip2 file",
            Self::Zip => "a zip archive",
            Self::Tar => "a tar archive",
            Self::Script => "a script",
            Self::Text => "a text file",
            Self::Empty => "an empty file",
            Self::Unknown => "a file of no known format",
        }
    }

    /// Returns the question that names the command for a file of this kind, where there is one.
    #[must_use]
    pub const fn advice(self) -> Option<&'static str> {
        match self {
            Self::Recording => Some("did you mean `cairn report` or `cairn play`?"),
            Self::Core | Self::Minidump => Some("did you mean `cairn core`?"),
            Self::ElfProgram | Self::Script => Some("did you mean `cairn heap`, which runs and records it?"),
            Self::ElfObject | Self::MachO | Self::Pe | Self::Pdb | Self::SymbolIndex => {
                Some("did you mean `cairn symbolize -e`?")
            }
            Self::Heaptrack => Some("did you mean `cairn report`?"),
            Self::Html => Some("was a web page saved in place of the file?"),
            Self::Text | Self::Json => Some("did you mean `cairn decode`, which reads logs?"),
            Self::Xz | Self::Bzip2 | Self::Zip | Self::Tar => Some("unpack it first"),
            Self::Xml | Self::Gzip | Self::Zstd | Self::Lz4 | Self::Empty | Self::Unknown => None,
        }
    }

    /// Returns the name of the compression, if this is a compressed file that cairn unpacks.
    #[must_use]
    pub const fn compression(self) -> Option<&'static str> {
        match self {
            Self::Gzip => Some("gzip"),
            Self::Zstd => Some("Zstandard"),
            Self::Lz4 => Some("LZ4"),
            _ => None,
        }
    }
}

/// A file that a command cannot use: its kind, and that of its unpacked content.
///
/// ```
/// use cairn_analysis::file_kind::{FileKind, WrongFile};
///
/// let wrong = WrongFile { kind: FileKind::Gzip, inside: Some(FileKind::ElfProgram) };
/// assert_eq!(
///     wrong.to_string(),
///     "gzip of an ELF program or library; did you mean `cairn heap`, which runs and records it?"
/// );
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WrongFile {
    /// The kind of the file itself.
    pub kind: FileKind,
    /// The kind of what a compressed file unpacks to, where that is known.
    pub inside: Option<FileKind>,
}

impl fmt::Display for WrongFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (content, advice) = match (self.kind.compression(), self.inside) {
            (Some(compression), Some(inside)) => {
                write!(f, "{compression} of ")?;
                let advice = match inside {
                    FileKind::Recording => Some("unpack it first"),
                    inside => inside.advice(),
                };
                (inside, advice)
            }
            _ => (self.kind, self.kind.advice()),
        };
        f.write_str(content.name())?;
        advice.map_or(Ok(()), |advice| write!(f, "; {advice}"))
    }
}

/// Reads the first bytes of a file.
pub(crate) fn start_of(path: &Path) -> io::Result<Vec<u8>> {
    let mut start = Vec::new();
    File::open(path)?.take(START_BYTES as u64).read_to_end(&mut start)?;
    Ok(start)
}

fn elf_kind(start: &[u8]) -> FileKind {
    let is_big_endian = start.get(5) == Some(&2);
    let kind = match start.get(16..18) {
        Some(&[first, second]) if is_big_endian => u16::from_be_bytes([first, second]),
        Some(&[first, second]) => u16::from_le_bytes([first, second]),
        _ => return FileKind::ElfProgram,
    };
    match kind {
        1 => FileKind::ElfObject,
        4 => FileKind::Core,
        _ => FileKind::ElfProgram,
    }
}

/// `MZ` alone could begin any text: the header that it leads to has to be there.
fn pe_kind(start: &[u8]) -> FileKind {
    let at = start.get(0x3c..0x40).and_then(|bytes| bytes.try_into().ok()).map(u32::from_le_bytes);
    let header = at.and_then(|at| start.get(at as usize..)?.get(..4));
    if header == Some(b"PE\0\0") { FileKind::Pe } else { text_kind(start) }
}

fn text_kind(start: &[u8]) -> FileKind {
    let trimmed = start.trim_ascii_start();
    let lower: Vec<u8> = trimmed.iter().take(16).map(u8::to_ascii_lowercase).collect();
    if lower.starts_with(b"<!doctype html") || lower.starts_with(b"<html") {
        return FileKind::Html;
    }
    let is_cut_off = |error: std::str::Utf8Error| error.error_len().is_none();
    let is_text = std::str::from_utf8(start).map_or_else(is_cut_off, |_| true)
        && !start.iter().any(|byte| matches!(byte, 0..=8 | 14..=26 | 28..=31));
    match trimmed.first() {
        _ if !is_text => FileKind::Unknown,
        Some(b'{' | b'[') => FileKind::Json,
        _ => FileKind::Text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_recognised_by_their_first_bytes() {
        let elf = |kind: u8| [b"\x7fELF\x02\x01\x01".as_slice(), &[0; 9], &[kind, 0]].concat();
        let mut tar = vec![0; 512];
        tar[257..262].copy_from_slice(b"ustar");
        let mut pe = vec![0; 0x90];
        pe[..2].copy_from_slice(b"MZ");
        pe[0x3c] = 0x80;
        pe[0x80..0x84].copy_from_slice(b"PE\0\0");
        let cases: [(&[u8], FileKind); 17] = [
            (b"", FileKind::Empty),
            (MAGIC.as_ref(), FileKind::Recording),
            (&elf(1), FileKind::ElfObject),
            (&elf(2), FileKind::ElfProgram),
            (&elf(3), FileKind::ElfProgram),
            (&elf(4), FileKind::Core),
            (b"\x7fELF", FileKind::ElfProgram),
            (b"\x1f\x8b\x08", FileKind::Gzip),
            (&tar, FileKind::Tar),
            (&pe, FileKind::Pe),
            (b"MZ is text", FileKind::Text),
            (b"\n <!DOCTYPE HTML PUBLIC", FileKind::Html),
            (b" {\"a\":1}", FileKind::Json),
            (b"#!/bin/sh\n", FileKind::Script),
            ("Grüße".as_bytes().split_last().unwrap().1, FileKind::Text),
            (b"gr\xfc\xdfe", FileKind::Unknown),
            (b"\0\x01\x02", FileKind::Unknown),
        ];
        for (start, expected) in cases {
            assert_eq!(FileKind::of_start(start), expected, "{start:?}");
        }
    }
}
