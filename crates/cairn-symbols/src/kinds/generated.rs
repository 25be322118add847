//! Names of code that a JIT compiler made, at the time at which it was seen.
//!
//! Compilers move code and reuse addresses. Their files say in their order which function took
//! which addresses; [`GeneratedNames`] knows besides in which pieces the files were read, and
//! answers for an address that was first seen between two pieces.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use super::jitdump::JitDump;
use super::{Bytes, perf_map};
use crate::SourceFrame;
use crate::mapped_file::FileBytes;
use crate::source::{FrameSink, Language, RawFrame};

/// Format of a file in which a JIT compiler names its code.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum GeneratedFormat {
    /// `perf-PID.map`.
    PerfMap,
    /// `jit-PID.dump`.
    JitDump,
}

/// A piece of such a file. Pieces with the same number are one file.
#[derive(Clone, Copy, Debug)]
pub struct GeneratedPiece<'a> {
    /// Format of the file.
    pub format: GeneratedFormat,
    /// Number of the file.
    pub file: u32,
    /// The bytes that follow those of the file's earlier pieces.
    pub bytes: &'a [u8],
}

/// An address that was on a stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SeenAddress {
    /// The address to look up.
    pub address: u64,
    /// How many pieces were read before it was first seen.
    pub pieces_before: usize,
}

/// The names of generated code.
///
/// ```
/// use cairn_symbols::{GeneratedFormat, GeneratedNames, GeneratedPiece, SeenAddress};
///
/// let piece = |bytes| GeneratedPiece { format: GeneratedFormat::PerfMap, file: 0, bytes };
/// let names = GeneratedNames::new([piece(b"1000 20 py::first:/a.py\n"), piece(b"1000 20 py::second:/a.py\n")]);
/// let seen = |pieces_before| SeenAddress { address: 0x1008, pieces_before };
/// let found = names.resolve(&[seen(1), seen(2)]);
/// let function = |index: usize| found[index].as_ref()?.function.clone();
/// assert_eq!(function(0).as_deref(), Some("first"));
/// assert_eq!(function(1).as_deref(), Some("second"));
/// ```
#[derive(Default)]
pub struct GeneratedNames {
    files: Vec<NamedFile>,
    /// In the order in which they were announced.
    announcements: Vec<Announcement>,
}

impl std::fmt::Debug for GeneratedNames {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GeneratedNames").field("announcements", &self.announcements.len()).finish()
    }
}

/// A file while it is put together from its pieces.
struct JoinedFile {
    format: GeneratedFormat,
    number: u32,
    bytes: Vec<u8>,
    /// Where each piece ends, and its index among all pieces.
    ends: Vec<(usize, usize)>,
}

/// A file, put together from its pieces.
struct NamedFile {
    bytes: Bytes,
    dump: Option<JitDump>,
}

/// Code that a file has announced.
#[derive(Clone, Copy)]
struct Announcement {
    start: u64,
    end: u64,
    /// The piece in which the announcement ends.
    piece: usize,
    file: usize,
    text: Text,
}

#[derive(Clone, Copy)]
enum Text {
    /// Bounds of the name in a map.
    Name(usize, usize),
    /// Number of the function in a dump.
    Function(usize),
}

impl GeneratedNames {
    /// Reads the announcements of all pieces, in their order.
    #[must_use]
    pub fn new<'a>(pieces: impl IntoIterator<Item = GeneratedPiece<'a>>) -> Self {
        let mut joined: Vec<JoinedFile> = Vec::new();
        for (index, piece) in pieces.into_iter().enumerate() {
            // The last file is mostly the one that goes on.
            let is_same = |file: &JoinedFile| (file.format, file.number) == (piece.format, piece.file);
            let place = joined.iter().rposition(is_same).unwrap_or_else(|| {
                joined.push(JoinedFile {
                    format: piece.format,
                    number: piece.file,
                    bytes: Vec::new(),
                    ends: Vec::new(),
                });
                joined.len() - 1
            });
            if let Some(file) = joined.get_mut(place) {
                file.bytes.extend_from_slice(piece.bytes);
                file.ends.push((file.bytes.len(), index));
            }
        }
        let mut names = Self::default();
        for JoinedFile { format, bytes, ends, .. } in joined {
            let piece_at = |offset: usize| {
                let place = ends.partition_point(|&(end, _)| end < offset);
                ends.get(place).or(ends.last()).map_or(0, |&(_, piece)| piece)
            };
            names.add_file(format, Arc::new(FileBytes::Owned(bytes)), piece_at);
        }
        names.announcements.sort_by_key(|announcement| announcement.piece);
        names
    }

    fn add_file(&mut self, format: GeneratedFormat, bytes: Bytes, piece_at: impl Fn(usize) -> usize) {
        let file = self.files.len();
        let mut dump = None;
        match format {
            GeneratedFormat::PerfMap => {
                let mut at = 0;
                for line in bytes.split_inclusive(|&byte| byte == b'\n') {
                    let end = at + line.trim_ascii_end().len();
                    if let Some((range, name_at)) = perf_map::parse_line(line) {
                        let text = Text::Name(at + name_at, end);
                        let piece = piece_at(at + line.len());
                        self.announcements.push(Announcement {
                            start: range.0,
                            end: range.1,
                            piece,
                            file,
                            text,
                        });
                    }
                    at += line.len();
                }
            }
            GeneratedFormat::JitDump => {
                // Without a header there is nothing to name.
                let Ok(parsed) = JitDump::parse(Path::new("jit.dump"), Arc::clone(&bytes)) else { return };
                self.announcements.extend(parsed.announced().enumerate().map(|(number, function)| {
                    let (start, end) = (function.start, function.end);
                    let text = Text::Function(number);
                    Announcement { start, end, piece: piece_at(function.record_end), file, text }
                }));
                dump = Some(parsed);
            }
        }
        self.files.push(NamedFile { bytes, dump });
    }

    /// Names each address; `None` where no code was announced.
    ///
    /// If several announcements cover an address, the last one before it was seen counts; if there
    /// is none, the first one afterwards, because compilers write late.
    ///
    /// One sweep over ascending addresses, with the open announcements in a set.
    #[must_use]
    pub fn resolve(&self, seen: &[SeenAddress]) -> Vec<Option<SourceFrame>> {
        let mut starts: Vec<usize> = (0..self.announcements.len()).collect();
        starts.retain(|&number| self.range(number).0 < self.range(number).1);
        let mut ends = starts.clone();
        starts.sort_unstable_by_key(|&number| self.range(number).0);
        ends.sort_unstable_by_key(|&number| self.range(number).1);
        let (mut starts, mut ends) = (starts.into_iter().peekable(), ends.into_iter().peekable());
        let mut order: Vec<usize> = (0..seen.len()).collect();
        order.sort_unstable_by_key(|&index| seen.get(index).map(|seen| seen.address));

        let mut open: BTreeSet<usize> = BTreeSet::new();
        let mut sink = FrameSink::default();
        let mut found = vec![None; seen.len()];
        for index in order {
            let Some(&SeenAddress { address, pieces_before }) = seen.get(index) else { continue };
            while let Some(number) = starts.next_if(|&number| self.range(number).0 <= address) {
                open.insert(number);
            }
            while let Some(number) = ends.next_if(|&number| self.range(number).1 <= address) {
                open.remove(&number);
            }
            let first_later = self.announcements.partition_point(|known| known.piece < pieces_before);
            let number = open.range(..first_later).next_back().or_else(|| open.range(first_later..).next());
            if let (Some(&number), Some(place)) = (number, found.get_mut(index)) {
                *place = self.frame(number, address, &mut sink);
            }
        }
        found
    }

    fn range(&self, number: usize) -> (u64, u64) {
        self.announcements.get(number).map_or((0, 0), |known| (known.start, known.end))
    }

    fn frame(&self, number: usize, address: u64, sink: &mut FrameSink) -> Option<SourceFrame> {
        let known = self.announcements.get(number)?;
        let file = self.files.get(known.file)?;
        let mut place = None;
        let text = match known.text {
            Text::Name(start, end) => super::text(&file.bytes, start, end),
            Text::Function(number) => {
                let dump = file.dump.as_ref()?;
                place = dump.place_in(number, address);
                dump.name_of(number)
            }
        };
        let label = Label::parse(&text);
        let (file, line, column) = match &place {
            Some((file, line, column)) => (Some(file.as_str()), Some(*line), Some(*column)),
            None => (label.file, label.line, label.column),
        };
        let name = Some(label.function).filter(|name| !name.is_empty());
        let at_least_1 = |number: Option<u32>| number.filter(|&number| number > 0);
        let (line, column) = (at_least_1(line), at_least_1(column));
        let file = file.filter(|file| !file.is_empty());
        sink.push(RawFrame { name, language: Language::Unknown, file, line, column, ..RawFrame::default() });
        sink.take().0.first().cloned()
    }
}

/// A name in a map, cut into its parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Label<'a> {
    function: &'a str,
    file: Option<&'a str>,
    line: Option<u32>,
    column: Option<u32>,
}

impl<'a> Label<'a> {
    /// Cuts the forms of V8 (`JS:*name file:line:column`) and of CPython (`py::name:file`). Any
    /// other text is the name of a function.
    fn parse(text: &'a str) -> Self {
        /// V8's kinds of code that has a source; others are its own stubs and builtins.
        const V8_KINDS: [&str; 5] = ["JS:", "LazyCompile:", "Function:", "Eval:", "Script:"];
        /// Interpreted, and by which compiler: one letter in front of the name.
        const V8_TIERS: [char; 4] = ['~', '^', '+', '*'];
        /// Beginnings of a place behind a name.
        const V8_PLACES: [&str; 3] = [" /", " file:", " node:"];
        let plain = Self { function: text, file: None, line: None, column: None };
        if let Some(rest) = text.strip_prefix("py::") {
            return match rest.split_once(':') {
                Some((function, file)) => Self { function, file: Some(file), ..plain },
                None => Self { function: rest, ..plain },
            };
        }
        let Some(rest) = V8_KINDS.iter().find_map(|kind| text.strip_prefix(kind)) else { return plain };
        let rest = rest.strip_prefix(V8_TIERS).unwrap_or(rest);
        // Names and paths may both have spaces.
        let (function, place) = match V8_PLACES.iter().filter_map(|start| rest.find(start)).min() {
            Some(space) => (rest.get(..space).unwrap_or_default(), rest.get(space + 1..).unwrap_or_default()),
            None => rest.rsplit_once(' ').unwrap_or((rest, "")),
        };
        let function = if function.is_empty() { "(anonymous)" } else { function };
        let mut parts = place.rsplitn(3, ':');
        let (last, middle, file) = (parts.next(), parts.next(), parts.next());
        let number = |part: Option<&str>| part?.parse().ok();
        match (file, number(middle), number(last)) {
            (Some(file), line @ Some(_), column @ Some(_)) => {
                Self { function, file: Some(file), line, column }
            }
            _ => Self { function, file: Some(place).filter(|place| !place.is_empty()), ..plain },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(file: u32, bytes: &[u8]) -> GeneratedPiece<'_> {
        GeneratedPiece { format: GeneratedFormat::PerfMap, file, bytes }
    }

    fn names(pieces: &[GeneratedPiece<'_>], seen: &[(u64, usize)]) -> Vec<String> {
        let seen: Vec<SeenAddress> =
            seen.iter().map(|&(address, pieces_before)| SeenAddress { address, pieces_before }).collect();
        let found = GeneratedNames::new(pieces.iter().copied()).resolve(&seen);
        found.into_iter().map(|frame| frame.map_or("-".to_owned(), |frame| frame.to_string())).collect()
    }

    #[test]
    fn labels_of_v8_and_python_are_cut() {
        let cut = |text| {
            let label = Label::parse(text);
            (label.function, label.file, label.line, label.column)
        };
        for (text, expected) in [
            ("JS:*get make /srv/a b.js:12:3", ("get make", Some("/srv/a b.js"), Some(12), Some(3))),
            ("JS:*make b.js:12:3", ("make", Some("b.js"), Some(12), Some(3))),
            ("JS:~ node:internal/main:1:1", ("(anonymous)", Some("node:internal/main"), Some(1), Some(1))),
            ("LazyCompile:~foo.bar /x.js:7:9", ("foo.bar", Some("/x.js"), Some(7), Some(9))),
            ("Function:^get file:///x.mjs:7:9", ("get", Some("file:///x.mjs"), Some(7), Some(9))),
            ("JS:*noplace", ("noplace", None, None, None)),
            ("JS:+f /a.js", ("f", Some("/a.js"), None, None)),
            ("py::<module>:/srv/p.py", ("<module>", Some("/srv/p.py"), None, None)),
            ("py::alone", ("alone", None, None, None)),
            ("Builtin:ArrayMap", ("Builtin:ArrayMap", None, None, None)),
            ("int P.work(int, long)", ("int P.work(int, long)", None, None, None)),
        ] {
            assert_eq!(cut(text), expected, "{text}");
        }
    }

    #[test]
    fn address_means_what_was_announced_before_it() {
        let pieces = [
            piece(0, b"1000 20 old\n2000 10 other\n"),
            piece(0, b"1000 20 moved\n"),
            piece(1, b"1010 8 inner\n3000 4 late\n"),
        ];
        let expected = ["old", "old", "moved", "inner", "moved", "late", "-", "other"];
        let seen = [
            (0x1004, 0),
            (0x1014, 1),
            (0x1014, 2),
            (0x1014, 3),
            (0x1018, 3),
            (0x3003, 0),
            (0x3004, 3),
            (0x200f, 3),
        ];
        assert_eq!(names(&pieces, &seen), expected);
    }

    #[test]
    fn line_that_two_pieces_share_counts_with_the_second() {
        let pieces = [piece(0, b"1000 10 first\n1000 10 sec"), piece(0, b"ond\n")];
        assert_eq!(names(&pieces, &[(0x1000, 1), (0x1000, 2)]), ["first", "second"]);
    }

    #[test]
    fn sweep_equals_a_search_of_all_announcements() {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = |bound: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % bound
        };
        for _ in 0..300 {
            let count = random(12) as usize;
            let ranges: Vec<(u64, u64, usize)> =
                (0..count).map(|number| (random(64), random(20), number)).collect();
            let texts: Vec<String> = ranges
                .iter()
                .map(|(start, size, number)| format!("{start:x} {size:x} f{number}\n"))
                .collect();
            let pieces: Vec<GeneratedPiece<'_>> =
                texts.iter().map(|text| piece(0, text.as_bytes())).collect();
            let seen: Vec<(u64, usize)> =
                (0..20).map(|_| (random(80), random(count as u64 + 1) as usize)).collect();
            let expected: Vec<String> = seen
                .iter()
                .map(|&(address, before)| {
                    let covers = |range: &&(u64, u64, usize)| (range.0..range.0 + range.1).contains(&address);
                    let earlier = ranges[..before].iter().rev().find(covers);
                    let found = earlier.or_else(|| ranges[before..].iter().find(covers));
                    found.map_or("-".to_owned(), |range| format!("f{}", range.2))
                })
                .collect();
            assert_eq!(names(&pieces, &seen), expected, "{texts:?} {seen:?}");
        }
    }

    #[test]
    fn damaged_pieces_name_nothing() {
        let dump = |bytes| GeneratedPiece { format: GeneratedFormat::JitDump, file: 0, bytes };
        assert_eq!(
            names(&[dump(b"no dump at all"), piece(0, b"\xff\xff 1\n")], &[(1, 0), (0, 2)]),
            ["-", "-"]
        );
    }
}
