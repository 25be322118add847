//! Questions: lines and arguments, in the ways of addr2line and of llvm-symbolizer.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use cairn_symbols::{BuildId, Lookup, ModuleId, ModuleInfo, Symbolizer};

/// One thing that was asked.
pub(super) enum Question {
    /// An address in a file that is open.
    Address { module: ModuleId, address: u64, lookup: Lookup },
    /// A question about an address of code or data.
    Data { module: ModuleId, address: u64, lookup: Lookup },
    /// An address that is nowhere in the file.
    Outside { module: ModuleId, address: u64 },
    /// A file that could not be opened.
    NoFile { path: String, address: u64, error: String },
    /// A text that is no address.
    Unknown { text: String },
}

/// The files that were asked for so far.
pub(super) struct Files {
    pub(super) symbolizer: Symbolizer,
    opened: HashMap<PathBuf, Result<ModuleId, String>>,
    paths: Vec<PathBuf>,
}

/// A file could not be opened: the message says which, and why.
#[derive(Debug)]
pub(super) struct OpenError(String);

impl std::fmt::Display for OpenError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for OpenError {}

impl Files {
    pub(super) fn new(symbolizer: Symbolizer) -> Self {
        Self { symbolizer, opened: HashMap::new(), paths: Vec::new() }
    }

    /// The module of a file; each file is opened once, also when that fails.
    pub(super) fn open(&mut self, path: &Path) -> Result<ModuleId, OpenError> {
        let known = match self.opened.get(path) {
            Some(known) => known.clone(),
            None => {
                let opened = self.symbolizer.add_file(path).map_err(|error| error.to_string());
                if opened.is_ok() {
                    self.paths.push(path.to_owned());
                }
                self.opened.insert(path.to_owned(), opened.clone());
                opened
            }
        };
        known.map_err(OpenError)
    }

    /// The module of a build: its program or its debug file, wherever those of builds are searched
    /// for. It goes by its id in the capitals that llvm-symbolizer shows.
    pub(super) fn open_build(&mut self, build: &BuildId) -> Result<ModuleId, OpenError> {
        let path = PathBuf::from(build.to_string().to_uppercase());
        let key = PathBuf::from(format!("BUILDID:{build}"));
        let known = match self.opened.get(&key) {
            Some(known) => known.clone(),
            None => {
                let info = ModuleInfo::new(&path).with_build_id(build.clone());
                let module = self.symbolizer.add_module(info);
                // Every module that was added has a path here, also one that is not found.
                self.paths.push(path);
                let missing = self.symbolizer.module_report(module).missing;
                let opened = missing.map_or(Ok(module), |_| Err("could not find build ID".to_owned()));
                self.opened.insert(key, opened.clone());
                opened
            }
        };
        known.map_err(OpenError)
    }

    /// Builds the index of each file that has none, where that is worth it.
    pub(super) fn build_indexes(&self) {
        for module in self.opened.values().flatten() {
            // Without one, the answers are the same.
            let _ = self.symbolizer.build_index(*module);
        }
    }

    /// The path as it was given.
    pub(super) fn path(&self, module: ModuleId) -> &Path {
        &self.paths[module.index()]
    }
}

/// A line that was understood.
pub(super) struct Parsed {
    pub(super) file: Option<String>,
    /// In place of a file.
    pub(super) build: Option<BuildId>,
    pub(super) address: u64,
    /// Asks for the symbol at the address, not for the source line.
    pub(super) is_data: bool,
}

/// How numbers without `0x` are read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Numbers {
    /// As hexadecimal ones.
    Hexadecimal,
    /// As in source code: decimal, and octal or binary behind their marks.
    Literals,
}

/// Parses like addr2line: as many hexadecimal digits as there are, and 0 if there are none. Ignores
/// the rest of the line.
pub(super) fn addr2line(text: &str) -> Parsed {
    let text = text.trim_start();
    let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")).unwrap_or(text);
    let end = digits.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(digits.len());
    // More digits than an address has: it stops at the largest number.
    let address = if end == 0 { 0 } else { u64::from_str_radix(&digits[..end], 16).unwrap_or(u64::MAX) };
    Parsed { file: None, build: None, address, is_data: false }
}

/// Parses like llvm-symbolizer: `[CODE|DATA] [FILE] ADDRESS`.
///
/// The file is in quotes if it contains blanks. `BUILDID:` and an id may take its place, but only
/// if no file was given before. Returns `None` for lines without an answer that are no mistake:
/// empty lines, names of symbols, and `FRAME`, which are not looked up here.
pub(super) fn line(text: &str, has_file: bool, numbers: Numbers) -> Result<Option<Parsed>, &'static str> {
    let mut rest = text.trim_end_matches(['\n', '\r']);
    if rest.trim().is_empty() {
        return Ok(None);
    }
    let (is_data, is_frame) = (rest.starts_with("DATA "), rest.starts_with("FRAME "));
    for command in ["CODE ", "DATA ", "FRAME "] {
        if let Some(behind) = rest.strip_prefix(command) {
            rest = behind;
            break;
        }
    }
    let (mut file, mut build) = (None, None);
    let trimmed = rest.trim_start();
    if let Some(id) = trimmed.strip_prefix("BUILDID:") {
        if has_file {
            return Err("input file has already been specified");
        }
        let (word, behind) = first_word(id)?;
        build = Some(BuildId::from_hex(word).ok_or("wrong format of build-id")?);
        rest = behind;
    } else if !has_file {
        rest = trimmed.strip_prefix("FILE:").unwrap_or(trimmed);
        let (word, behind) = first_word(rest)?;
        file = Some(word.to_owned());
        rest = behind;
    }
    let address = rest.trim().split([' ', '\r']).next().unwrap_or_default();
    let Some(first) = address.chars().next() else {
        return Err("no address behind the file; write FILE ADDRESS, or give the file with -e");
    };
    match number(address, numbers) {
        Some(_) if is_frame => Ok(None),
        Some(address) => Ok(Some(Parsed { file, build, address, is_data })),
        None if first.is_ascii_digit() || numbers == Numbers::Hexadecimal => Err("not an address"),
        None => Ok(None),
    }
}

/// A word, or what is in quotes, and what is behind it.
fn first_word(text: &str) -> Result<(&str, &str), &'static str> {
    if let Some(quote) = text.chars().next().filter(|first| matches!(first, '"' | '\'')) {
        let inside = &text[1..];
        return inside.split_once(quote).ok_or("the quote does not end");
    }
    Ok(text.split_once(' ').unwrap_or((text, "")))
}

fn number(text: &str, numbers: Numbers) -> Option<u64> {
    let (radix, digits) = match (numbers, text.get(..2).unwrap_or_default()) {
        (_, "0x" | "0X") => (16, &text[2..]),
        (Numbers::Hexadecimal, _) => (16, text),
        (_, "0b" | "0B") => (2, &text[2..]),
        (_, "0o") => (8, &text[2..]),
        _ if text.len() > 1 && text.starts_with('0') => (8, &text[1..]),
        _ => (10, text),
    };
    (!digits.starts_with('+')).then(|| u64::from_str_radix(digits, radix).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addr2line_reads_what_there_is() {
        for (text, expected) in [
            ("1461", 0x1461),
            ("  0x1461", 0x1461),
            ("0X1461 trailing", 0x1461),
            ("146G", 0x146),
            ("", 0),
            ("zz", 0),
            ("-5", 0),
            ("0x", 0),
            ("ffffffffffffffffff", u64::MAX),
        ] {
            assert_eq!(addr2line(text).address, expected, "{text}");
        }
    }

    #[track_caller]
    fn check(
        text: &str,
        has_file: bool,
        numbers: Numbers,
        expected: Result<Option<(Option<&str>, u64)>, ()>,
    ) {
        let parsed = line(text, has_file, numbers).map_err(|_| ());
        let parsed = parsed.map(|parsed| parsed.map(|parsed| (parsed.file, parsed.address)));
        assert_eq!(
            parsed,
            expected.map(|some| some.map(|(file, address)| (file.map(str::to_owned), address))),
            "{text}"
        );
    }

    #[test]
    fn build_replaces_a_file() {
        let parsed = line("CODE BUILDID:aBcd 0x10", false, Numbers::Literals).unwrap().unwrap();
        assert_eq!((parsed.file, parsed.address), (None, 0x10));
        assert_eq!(parsed.build.unwrap().to_string(), "abcd");
        check("BUILDID:abcd 0x10", true, Numbers::Literals, Err(()));
        check("BUILDID:xyz 0x10", false, Numbers::Literals, Err(()));
        check("BUILDID:abcd", false, Numbers::Literals, Err(()));
    }

    #[test]
    fn lines_of_llvm_symbolizer_are_understood() {
        use Numbers::{Hexadecimal, Literals};
        check("0x10", true, Literals, Ok(Some((None, 0x10))));
        check("  0x10  \r\n", true, Literals, Ok(Some((None, 0x10))));
        check("16", true, Literals, Ok(Some((None, 16))));
        check("16", true, Hexadecimal, Ok(Some((None, 0x16))));
        check("010", true, Literals, Ok(Some((None, 8))));
        check("0b11", true, Literals, Ok(Some((None, 3))));
        check("CODE 0x10", true, Literals, Ok(Some((None, 0x10))));
        check("DATA 0x10", true, Literals, Ok(Some((None, 0x10))));
        check("DATA a.out 0x10", false, Literals, Ok(Some((Some("a.out"), 0x10))));
        check("DATA a.out 0x10", true, Literals, Ok(None));
        check("FRAME 0x10", true, Literals, Ok(None));
        assert!(line("DATA 0x10", true, Literals).unwrap().unwrap().is_data);
        assert!(!line("CODE 0x10", true, Literals).unwrap().unwrap().is_data);
        check("main", true, Literals, Ok(None));
        check("main", true, Hexadecimal, Err(()));
        check("", true, Literals, Ok(None));
        check("0x", true, Literals, Err(()));
        check("12zz", true, Literals, Err(()));
        check("a.out 0x10", false, Literals, Ok(Some((Some("a.out"), 0x10))));
        check("CODE a.out 0x10", false, Literals, Ok(Some((Some("a.out"), 0x10))));
        check("\"a b\" 0x10", false, Literals, Ok(Some((Some("a b"), 0x10))));
        check("'a b' 10", false, Hexadecimal, Ok(Some((Some("a b"), 0x10))));
        check("FILE:a.out 0x10 more", false, Literals, Ok(Some((Some("a.out"), 0x10))));
        check("0x10", false, Literals, Err(()));
        check("\"a b 0x10", false, Literals, Err(()));
    }
}
