//! jitdump: functions and source lines, written for perf by agents in just-in-time compilers.
//!
//! A header, then records, all in the byte order of the writing machine:
//!
//! ```text
//! header  | "JiTD" as a number: u32 | version: u32 | size of header: u32 | machine: u32
//!         | 0: u32 | pid: u32 | time: u64 | flags: u64 |
//! record  | kind: u32 | size with this prefix: u32 | time: u64 | …
//!   load  | pid: u32 | tid: u32 | vma: u64 | address: u64 | size: u64 | number: u64
//!         | name, 0 | the code |
//!   move  | pid: u32 | tid: u32 | vma: u64 | old address: u64 | new address: u64
//!         | size: u64 | number: u64 |
//!   lines | address of the code: u64 | count: u64
//!         | count times: | address: u64 | line: u32 | column or 0: u32 | file, 0 |
//! ```
//!
//! The lines of a function precede its load record. The file name `\xff` repeats the previous
//! entry's. Addresses are those of the process; of replaced code, the last is used.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

use cairn_format::StatedAddress;

use super::overlay::Overlay;
use super::{Bytes, FormatError, text};
use crate::Unknown;
use crate::source::{FrameSink, Language, RawFrame, SymbolSource};

/// The functions of a dump.
pub(crate) struct JitDump {
    path: PathBuf,
    bytes: Bytes,
    order: Order,
    functions: Vec<CompiledFunction>,
    ranges: Overlay,
}

pub(super) struct CompiledFunction {
    pub(super) start: u64,
    pub(super) end: u64,
    /// Where the record that announces it ends.
    pub(super) record_end: usize,
    /// Bounds of the name in the file.
    name: (usize, usize),
    /// Position and count of its lines in the file, counted from `lines_base`.
    lines: Option<LineEntries>,
}

#[derive(Clone, Copy)]
struct LineEntries {
    start: usize,
    end: usize,
    /// Start of the function, in the address space of the lines.
    base: u64,
}

/// The byte order of the writer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    Little,
    Big,
}

const LOAD: u32 = 0;
const MOVE: u32 = 1;
const LINES: u32 = 2;

/// Bytes of kind, size and time.
const PREFIX_BYTES: usize = 16;

/// Bytes of an ELF header, which lines may include.
///
/// perf wraps each function into an ELF file with a header of 64 bytes, and LLVM and V8 emit line
/// addresses that include it; others do not. If all lines of a function are at least this far from
/// its start, they include it.
const HEADER_IN_LINES: u64 = 64;

impl JitDump {
    /// Parses all records except lines, which are parsed on demand.
    ///
    /// A truncated record ends the file, because the process may be writing it.
    ///
    /// # Errors
    ///
    /// If the header is invalid.
    pub(crate) fn parse(path: &Path, bytes: Bytes) -> Result<Self, FormatError> {
        let content = &**bytes;
        let order = match content.get(..4) {
            Some(b"DTiJ") => Order::Little,
            Some(b"JiTD") => Order::Big,
            _ => return Err("not a jitdump: its first word is not `JiTD`".into()),
        };
        let mut header = FieldReader { bytes: content.get(4..).unwrap_or_default(), order };
        let cut = || FormatError::from("the header of the jitdump is cut off");
        let version = header.u32().ok_or_else(cut)?;
        if version != 1 {
            return Err(format!("jitdump version {version} at byte 4; only version 1 is known here").into());
        }
        let header_bytes = header.u32().ok_or_else(cut)? as usize;
        let mut dump =
            ParseState { content, order, functions: Vec::new(), numbers: HashMap::new(), lines: Vec::new() };
        dump.records(header_bytes.max(12));
        let ranges = Overlay::new(dump.functions.iter().map(|function| (function.start, function.end)));
        let functions = dump.functions;
        Ok(Self { path: path.to_owned(), bytes, order, functions, ranges })
    }

    /// The functions, in the order of their records.
    pub(super) fn announced(&self) -> impl Iterator<Item = &CompiledFunction> {
        self.functions.iter()
    }

    /// Returns the name of the function of this number.
    pub(super) fn name_of(&self, number: usize) -> Cow<'_, str> {
        let (start, end) = self.functions.get(number).map_or((0, 0), |function| function.name);
        text(&self.bytes, start, end)
    }

    /// Returns file, line and column of an address in the function of this number.
    pub(super) fn place_in(&self, number: usize, address: u64) -> Option<(String, u32, u32)> {
        let function = self.functions.get(number)?;
        self.place(function.lines?, address.checked_sub(function.start)?)
    }

    /// Returns file, line and column of an address: those of the last entry at or before it.
    fn place(&self, lines: LineEntries, offset: u64) -> Option<(String, u32, u32)> {
        let entries = Entries::new(&self.bytes, self.order, lines);
        let mut best: Option<(u64, Entry<'_>)> = None;
        for entry in entries {
            let at = entry.address.wrapping_sub(lines.base);
            if at <= offset && best.as_ref().is_none_or(|&(other, _)| other <= at) {
                best = Some((at, entry));
            }
        }
        let (_, entry) = best?;
        Some((String::from_utf8_lossy(entry.file).into_owned(), entry.line, entry.column))
    }
}

/// State while records are parsed.
struct ParseState<'a> {
    content: &'a [u8],
    order: Order,
    functions: Vec<CompiledFunction>,
    /// Index of the function with a number, by which move records refer to it.
    numbers: HashMap<u64, u32>,
    /// LineEntries whose function has not appeared yet, by its address.
    lines: Vec<(u64, LineEntries)>,
}

/// Maximum bytes of a function's lines; 4 MiB, because they are parsed again at every query.
const MAX_LINES_BYTES: usize = 4 << 20;

/// Maximum functions that await their code; 64. More indicate a broken file, and a slow search.
const MAX_WAITING_LINES: usize = 64;

impl ParseState<'_> {
    fn records(&mut self, mut at: usize) {
        while let Some(prefix) = self.content.get(at..at.saturating_add(PREFIX_BYTES)) {
            let mut prefix = FieldReader { bytes: prefix, order: self.order };
            let (Some(kind), Some(size)) = (prefix.u32(), prefix.u32()) else { return };
            let end = at.saturating_add(size as usize);
            if (size as usize) < PREFIX_BYTES
                || end > self.content.len()
                || self.functions.len() == u32::MAX as usize
            {
                return;
            }
            let body = at + PREFIX_BYTES;
            // A known record that is too short is ignored, like unknown kinds.
            let _ = match kind {
                LOAD => self.load(body, end),
                MOVE => self.moved(body, end),
                LINES => self.line_table(body, end),
                _ => None,
            };
            at = end;
        }
    }

    fn load(&mut self, body: usize, end: usize) -> Option<()> {
        let mut reader = FieldReader { bytes: &self.content[body..end], order: self.order };
        let (_pid_and_tid, _vma) = (reader.u64()?, reader.u64()?);
        let (start, size, number) = (reader.u64()?, reader.u64()?, reader.u64()?);
        let name_bytes = reader.bytes.iter().position(|&byte| byte == 0)?;
        let name_start = end - reader.bytes.len();
        let waiting = self.lines.iter().rposition(|&(address, _)| address == start);
        let lines = waiting.map(|index| self.lines.swap_remove(index).1);
        let name = (name_start, name_start + name_bytes);
        let function =
            CompiledFunction { start, end: start.checked_add(size)?, record_end: end, name, lines };
        self.push(function, number);
        Some(())
    }

    fn push(&mut self, function: CompiledFunction, number: u64) {
        self.numbers.insert(number, self.functions.len() as u32);
        self.functions.push(function);
    }

    fn moved(&mut self, body: usize, end: usize) -> Option<()> {
        let mut reader = FieldReader { bytes: &self.content[body..end], order: self.order };
        let (_pid_and_tid, _vma) = (reader.u64()?, reader.u64()?);
        let (old, new, size, number) = (reader.u64()?, reader.u64()?, reader.u64()?, reader.u64()?);
        let &CompiledFunction { start, name, lines, .. } =
            &self.functions[*self.numbers.get(&number)? as usize];
        if start == old {
            let function =
                CompiledFunction { start: new, end: new.checked_add(size)?, record_end: end, name, lines };
            self.push(function, number);
        }
        Some(())
    }

    fn line_table(&mut self, body: usize, end: usize) -> Option<()> {
        let mut reader = FieldReader { bytes: &self.content[body..end], order: self.order };
        let (address, _count) = (reader.u64()?, reader.u64()?);
        let start = end - reader.bytes.len();
        let mut lines = LineEntries { start, end: end.min(start + MAX_LINES_BYTES), base: address };
        let first = Entries::new(self.content, self.order, lines).map(|entry| entry.address).min()?;
        if let Some(behind_header) = address.checked_add(HEADER_IN_LINES).filter(|&at| first >= at) {
            lines.base = behind_header;
        }
        if self.lines.len() >= MAX_WAITING_LINES {
            self.lines.clear();
        }
        self.lines.push((address, lines));
        Some(())
    }
}

/// An entry of a line table.
#[derive(Clone, Copy)]
struct Entry<'a> {
    address: u64,
    line: u32,
    column: u32,
    file: &'a [u8],
}

/// Iterates over a line table up to the end of its record, because the stated count is not trusted.
struct Entries<'a> {
    reader: FieldReader<'a>,
    file: &'a [u8],
}

impl<'a> Entries<'a> {
    fn new(content: &'a [u8], order: Order, lines: LineEntries) -> Self {
        let bytes = content.get(lines.start..lines.end).unwrap_or_default();
        Self { reader: FieldReader { bytes, order }, file: b"" }
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = Entry<'a>;

    fn next(&mut self) -> Option<Entry<'a>> {
        let (address, line, column) = (self.reader.u64()?, self.reader.u32()?, self.reader.u32()?);
        let file_bytes = self.reader.bytes.iter().position(|&byte| byte == 0)?;
        let (file, rest) = self.reader.bytes.split_at(file_bytes);
        self.reader.bytes = &rest[1..];
        if file != b"\xff" {
            self.file = file;
        }
        Some(Entry { address, line, column, file: self.file })
    }
}

/// Parses numbers.
struct FieldReader<'a> {
    bytes: &'a [u8],
    order: Order,
}

impl FieldReader<'_> {
    fn u32(&mut self) -> Option<u32> {
        let (number, rest) = self.bytes.split_first_chunk()?;
        self.bytes = rest;
        Some(if self.order == Order::Little {
            u32::from_le_bytes(*number)
        } else {
            u32::from_be_bytes(*number)
        })
    }

    fn u64(&mut self) -> Option<u64> {
        let (number, rest) = self.bytes.split_first_chunk()?;
        self.bytes = rest;
        Some(if self.order == Order::Little {
            u64::from_le_bytes(*number)
        } else {
            u64::from_be_bytes(*number)
        })
    }
}

impl SymbolSource for JitDump {
    fn frames_at(&self, address: StatedAddress, out: &mut FrameSink) -> Result<(), Unknown> {
        let number = self.ranges.find(address.value()).ok_or(Unknown::AddressOutside)?;
        let function = &self.functions[number as usize];
        let name = text(&self.bytes, function.name.0, function.name.1);
        let place = function.lines.and_then(|lines| self.place(lines, address.value() - function.start));
        let (file, line, column) = place.map_or((None, None, None), |(file, line, column)| {
            (Some(file), Some(line).filter(|&line| line > 0), Some(column).filter(|&column| column > 0))
        });
        let file = file.as_deref().filter(|file| !file.is_empty());
        let language = Language::Unknown;
        let name = Some(&*name).filter(|name| !name.is_empty());
        out.push(RawFrame { name, language, file, line, column, ..RawFrame::default() });
        out.set_function_start(StatedAddress::new(function.start));
        Ok(())
    }

    fn files(&self) -> Vec<PathBuf> {
        vec![self.path.clone()]
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::mapped_file::FileBytes;

    /// Builds a dump by hand, in either byte order.
    struct DumpWriter {
        bytes: Vec<u8>,
        order: Order,
    }

    impl DumpWriter {
        fn new(order: Order) -> Self {
            let mut writer = Self { bytes: Vec::new(), order };
            for word in [0x4a69_5444, 1, 40, 62, 0, 77, 0, 0, 0, 0] {
                writer.u32(word);
            }
            writer
        }

        fn u32(&mut self, number: u32) -> &mut Self {
            let little = self.order == Order::Little;
            self.bytes.extend(if little { number.to_le_bytes() } else { number.to_be_bytes() });
            self
        }

        fn u64(&mut self, number: u64) -> &mut Self {
            let little = self.order == Order::Little;
            self.bytes.extend(if little { number.to_le_bytes() } else { number.to_be_bytes() });
            self
        }

        fn record(&mut self, kind: u32, body: impl FnOnce(&mut Self)) -> &mut Self {
            let mut record = Self { bytes: Vec::new(), order: self.order };
            body(&mut record);
            self.u32(kind).u32(record.bytes.len() as u32 + 16).u64(5);
            self.bytes.extend(record.bytes);
            self
        }

        fn load(&mut self, start: u64, size: u64, number: u64, name: &str) -> &mut Self {
            self.record(LOAD, |record| {
                record.u64(0).u64(start).u64(start).u64(size).u64(number);
                record.bytes.extend(name.bytes().chain([0]));
                record.bytes.extend(vec![0x90; size as usize]);
            })
        }

        fn lines(&mut self, start: u64, entries: &[(u64, u32, &[u8])]) -> &mut Self {
            self.record(LINES, |record| {
                record.u64(start).u64(entries.len() as u64);
                for &(address, line, file) in entries {
                    record.u64(address).u32(line).u32(0);
                    record.bytes.extend(file.iter().chain(&[0]));
                }
            })
        }

        fn at(&self, address: u64) -> String {
            let dump = JitDump::parse("jit-1.dump".as_ref(), Arc::new(FileBytes::Owned(self.bytes.clone())))
                .unwrap();
            let mut sink = FrameSink::default();
            match dump.frames_at(StatedAddress::new(address), &mut sink) {
                Ok(()) => sink.take().0[0].to_string(),
                Err(reason) => reason.to_string(),
            }
        }
    }

    const OUTSIDE: &str = "the address is outside of the module's code";

    #[test]
    fn jitdump_functions_lines_and_moves_are_read() {
        for order in [Order::Little, Order::Big] {
            let mut dump = DumpWriter::new(order);
            dump.lines(0x1000, &[(0x1000, 1, b"a.js"), (0x1008, 2, b"\xff"), (0x100c, 9, b"b.js")]);
            dump.load(0x1000, 16, 1, "first");
            assert_eq!(dump.at(0x1007), "first at a.js:1");
            assert_eq!(dump.at(0x1008), "first at a.js:2");
            assert_eq!(dump.at(0x100f), "first at b.js:9");
            assert_eq!(dump.at(0x1010), OUTSIDE);
            dump.record(MOVE, |record| {
                record.u64(0).u64(0x5000).u64(0x1000).u64(0x5000).u64(16).u64(1);
            });
            assert_eq!(dump.at(0x5009), "first at a.js:2");
            dump.record(77, |_| ());
            dump.load(0x1000, 4, 2, "second");
            assert_eq!(dump.at(0x1003), "second");
        }
    }

    #[test]
    fn jitdump_lines_after_an_elf_header_are_shifted() {
        let mut dump = DumpWriter::new(Order::Little);
        dump.lines(0x1000, &[(0x1040, 1, b"a.js"), (0x1048, 2, b"a.js")]).load(0x1000, 16, 1, "f");
        assert_eq!(dump.at(0x1000), "f at a.js:1");
        assert_eq!(dump.at(0x1009), "f at a.js:2");
    }

    #[test]
    fn jitdump_lines_do_not_wrap_around() {
        let mut dump = DumpWriter::new(Order::Little);
        let start = u64::MAX - 8;
        dump.lines(start, &[(u64::MAX, 1, b"a.js")]).load(start, 4, 1, "f");
        assert_eq!(dump.at(start), "f");
    }

    #[test]
    fn truncated_jitdump_keeps_earlier_functions() {
        let mut whole = DumpWriter::new(Order::Little);
        whole.load(0x1000, 16, 1, "first");
        let first_ends = whole.bytes.len();
        whole.lines(0x2000, &[(0x2000, 1, b"a.js")]).load(0x2000, 16, 2, "second");
        for length in 12..whole.bytes.len() {
            let cut = DumpWriter { bytes: whole.bytes[..length].to_vec(), order: Order::Little };
            assert_eq!(cut.at(0x1000), if length < first_ends { OUTSIDE } else { "first" }, "{length}");
            assert_eq!(cut.at(0x2000), OUTSIDE, "{length}");
        }
    }

    #[test]
    fn jitdump_of_another_version_is_refused() {
        let mut dump = DumpWriter::new(Order::Little);
        dump.bytes[4] = 2;
        for bytes in [dump.bytes, b"DTiJ".to_vec(), b"JiT".to_vec(), Vec::new()] {
            assert!(JitDump::parse("x".as_ref(), Arc::new(FileBytes::Owned(bytes))).is_err());
        }
    }
}
