//! `/tmp/perf-PID.map`: one line per function, `START SIZE NAME`, in hexadecimal without a prefix.
//!
//! Addresses are those of the process. A later line replaces earlier ones that it overlaps. Lines
//! have no times, so of replaced code only the last is known.

use std::path::{Path, PathBuf};

use cairn_format::StatedAddress;

use super::overlay::Overlay;
use super::{Bytes, FormatError, text};
use crate::Unknown;
use crate::source::{FrameSink, Language, RawFrame, SymbolSource};

/// The functions of a perf map.
pub(crate) struct PerfMap {
    path: PathBuf,
    bytes: Bytes,
    /// Address range of each line and position of its name, in file order.
    lines: Vec<Line>,
    ranges: Overlay,
}

struct Line {
    start: u64,
    name_start: usize,
    name_end: usize,
}

/// Recognises `perf-DIGITS.map`: this kind of file has no magic number, only a name.
pub(crate) fn is_name(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let pid = name.strip_prefix("perf-").and_then(|rest| rest.strip_suffix(".map"));
    pid.is_some_and(|pid| !pid.is_empty() && pid.bytes().all(|byte| byte.is_ascii_digit()))
}

impl PerfMap {
    /// Parses the lines.
    ///
    /// The last may be incomplete, because the process may be writing it; other invalid lines are
    /// ignored, like in perf.
    ///
    /// # Errors
    ///
    /// If there are lines, but none names a function.
    pub(crate) fn parse(path: &Path, bytes: Bytes) -> Result<Self, FormatError> {
        let content = &**bytes;
        let (mut lines, mut ranges) = (Vec::new(), Vec::new());
        let mut at = 0;
        for line in content.split_inclusive(|&byte| byte == b'\n') {
            if let Some((range, name_at)) = parse_line(line) {
                let name_end = at + line.trim_ascii_end().len();
                lines.push(Line { start: range.0, name_start: at + name_at, name_end });
                ranges.push(range);
            }
            at += line.len();
        }
        if lines.is_empty() && !content.is_empty() {
            return Err("none of its lines reads `START SIZE NAME` with hexadecimal numbers".into());
        }
        Ok(Self { path: path.to_owned(), bytes, lines, ranges: Overlay::new(ranges) })
    }
}

/// Parses the address range of a line, and the position of its name.
pub(super) fn parse_line(line: &[u8]) -> Option<((u64, u64), usize)> {
    let mut words = line.splitn(3, |&byte| byte == b' ');
    let (start, size, name) = (words.next()?, words.next()?, words.next()?);
    let name_at = start.len() + size.len() + 2;
    let (start, size) = (hexadecimal(start)?, hexadecimal(size)?);
    (!name.trim_ascii().is_empty()).then_some(((start, start.checked_add(size)?), name_at))
}

fn hexadecimal(digits: &[u8]) -> Option<u64> {
    let digits = std::str::from_utf8(digits).ok()?;
    // Some writers add a prefix. A sign, which the parser would accept, is invalid.
    let digits = digits.strip_prefix("0x").unwrap_or(digits);
    (!digits.starts_with('+')).then(|| u64::from_str_radix(digits, 16).ok())?
}

impl SymbolSource for PerfMap {
    fn frames_at(&self, address: StatedAddress, out: &mut FrameSink) -> Result<(), Unknown> {
        let number = self.ranges.find(address.value()).ok_or(Unknown::AddressOutside)?;
        let line = &self.lines[number as usize];
        let name = text(&self.bytes, line.name_start, line.name_end);
        let name = Some(&*name).filter(|name| !name.is_empty());
        out.push(RawFrame { name, language: Language::Unknown, ..RawFrame::default() });
        out.set_function_start(StatedAddress::new(line.start));
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

    fn names(content: &'static [u8], addresses: &[u64]) -> Vec<Option<String>> {
        let map =
            PerfMap::parse("perf-1.map".as_ref(), Arc::new(FileBytes::Owned(content.to_vec()))).unwrap();
        let mut sink = FrameSink::default();
        let name = |&address: &u64| {
            let result = map.frames_at(StatedAddress::new(address), &mut sink);
            let (frames, _) = sink.take();
            result.ok().map(|()| frames[0].function.as_deref().unwrap().to_owned())
        };
        addresses.iter().map(name).collect()
    }

    #[test]
    fn perf_map_later_lines_replace_earlier_ones() {
        let content = b"1000 20 JS:~fib /build/fib.js:1:13\n1010 4 stub\n\nnonsense\n0x2000 10 _ZN5space3fooEibc\r\n3000 8 cut";
        let fib = Some("JS:~fib /build/fib.js:1:13".to_owned());
        let expected = [
            None,
            fib.clone(),
            Some("stub".into()),
            fib,
            Some("space::foo(int, bool, char)".into()),
            Some("cut".into()),
            None,
        ];
        assert_eq!(names(content, &[0xfff, 0x1000, 0x1013, 0x1014, 0x2000, 0x3007, 0x3008]), expected);
    }

    #[test]
    fn perf_map_ignores_invalid_numbers() {
        let content =
            b"ffffffffffffffff 2 over\n+5 2 plus\n5 -2 minus\n5 2 \n6 1 good\n11111111111111111 1 long\n";
        assert_eq!(names(content, &[5, 6, u64::MAX]), [None, Some("good".to_owned()), None]);
        assert!(
            PerfMap::parse("perf-1.map".as_ref(), Arc::new(FileBytes::Owned(b"\x7fELF".to_vec()))).is_err()
        );
    }

    #[test]
    fn perf_map_names_follow_perf() {
        for (name, expected) in
            [("/tmp/perf-12.map", true), ("perf-.map", false), ("perf-1a.map", false), ("xperf-1.map", false)]
        {
            assert_eq!(is_name(name.as_ref()), expected, "{name}");
        }
    }
}
