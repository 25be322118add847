//! Breakpad's `.sym`: symbols as text, for every system; crash collectors store them as debug
//! files.
//!
//! ```text
//! MODULE os architecture id name
//! INFO CODE_ID id …
//! FILE number path
//! INLINE_ORIGIN number name
//! FUNC [m] address size parameters name       all numbers are hexadecimal,
//! INLINE depth line file origin (address size)…
//! address size line file                      but depth, line, file, origin are decimal
//! PUBLIC [m] address parameters name
//! STACK …
//! ```
//!
//! Addresses count from the module's base. Parsing records only the position of each function's
//! lines, which are parsed again at each query: 40 bytes in memory per function, and none for its
//! lines.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use cairn_format::StatedAddress;

use super::{Bytes, FormatError, text};
use crate::source::{FrameSink, Language, RawFrame, SymbolSource};
use crate::{BuildId, MAX_INLINE_DEPTH, Unknown};

/// The functions of one module.
pub(crate) struct Breakpad {
    path: PathBuf,
    bytes: Bytes,
    build_id: Option<BuildId>,
    /// Sorted by address.
    functions: Vec<FunctionRecord>,
    /// Names without a size, sorted by address.
    publics: Vec<Public>,
    files: HashMap<u32, Span>,
    origins: HashMap<u32, Span>,
}

/// A range of the file that holds text.
#[derive(Clone, Copy)]
struct Span {
    start: usize,
    end: usize,
}

struct FunctionRecord {
    start: u64,
    size: u64,
    name: Span,
    /// End of the lines that follow the name.
    lines_end: usize,
}

struct Public {
    address: u64,
    name: Span,
}

/// Maximum bytes of a function's lines that one query parses; 4 MiB.
///
/// Real functions reach a few hundred KiB.
const MAX_LINES_BYTES: usize = 4 << 20;

impl Breakpad {
    /// Records the positions of all functions. Unknown lines are ignored.
    ///
    /// # Errors
    ///
    /// If the first line is not a `MODULE` line.
    pub(crate) fn parse(path: &Path, bytes: Bytes) -> Result<Self, FormatError> {
        let content = &**bytes;
        let mut new = Self {
            path: path.to_owned(),
            bytes: bytes.clone(),
            build_id: None,
            functions: Vec::new(),
            publics: Vec::new(),
            files: HashMap::new(),
            origins: HashMap::new(),
        };
        let (os, id) =
            module_line(content).ok_or("its first line is not `MODULE os architecture id name`")?;
        let is_windows = os == b"windows";
        new.build_id = debug_id(id, is_windows).filter(|_| is_windows || os == b"Mac");
        let mut at = 0;
        for line in content.split_inclusive(|&byte| byte == b'\n') {
            new.line(line, at, is_windows);
            at += line.len();
        }
        new.functions.sort_by_key(|function| function.start);
        new.functions.dedup_by_key(|function| function.start);
        new.publics.sort_by_key(|public| public.address);
        Ok(new)
    }

    fn line(&mut self, line: &[u8], at: usize, is_windows: bool) {
        let end = at + line.trim_ascii_end().len();
        let mut words = Words::new(&line[..end - at], at);
        let Some(keyword) = words.next() else { return };
        // An invalid line names nothing, and is ignored.
        let _: Option<()> = match keyword.bytes {
            b"FUNC" => self.function(words, end),
            b"PUBLIC" => self.public(words, end),
            b"FILE" => Self::numbered(words, end, &mut self.files),
            b"INLINE_ORIGIN" => Self::numbered(words, end, &mut self.origins),
            b"INFO" if !is_windows => self.code_id(words),
            _ => {
                let in_function = keyword.bytes == b"INLINE" || keyword.hexadecimal().is_some();
                let function = self.functions.last_mut().filter(|function| function.lines_end == at);
                if let (true, Some(function)) = (in_function, function) {
                    function.lines_end = at + line.len();
                }
                None
            }
        };
        // The line's newline belongs to the function, so that the next line is seen to follow
        // directly.
        if keyword.bytes == b"FUNC"
            && let Some(function) = self.functions.last_mut()
            && function.name.end == end
        {
            function.lines_end = at + line.len();
        }
    }

    fn function(&mut self, mut words: Words<'_>, end: usize) -> Option<()> {
        let start = words.address()?;
        let (size, _parameters) = (words.next()?.hexadecimal()?, words.next()?);
        let name = Span { start: words.at(), end };
        self.functions.push(FunctionRecord { start, size, name, lines_end: end });
        Some(())
    }

    fn public(&mut self, mut words: Words<'_>, end: usize) -> Option<()> {
        let address = words.address()?;
        words.next()?;
        self.publics.push(Public { address, name: Span { start: words.at(), end } });
        Some(())
    }

    fn numbered(mut words: Words<'_>, end: usize, texts: &mut HashMap<u32, Span>) -> Option<()> {
        let number = words.next()?.decimal()?;
        texts.insert(number, Span { start: words.at(), end });
        Some(())
    }

    /// Adopts the full build id of an ELF file; the module's own id is only the first part of it.
    fn code_id(&mut self, mut words: Words<'_>) -> Option<()> {
        words.next().filter(|word| word.bytes == b"CODE_ID")?;
        let id = std::str::from_utf8(words.next()?.bytes).ok()?;
        self.build_id = Some(BuildId::from_hex(id)?);
        Some(())
    }

    fn text(&self, span: Span) -> std::borrow::Cow<'_, str> {
        text(&self.bytes, span.start, span.end)
    }

    fn covering(&self, address: u64) -> Option<&FunctionRecord> {
        let before = self.functions.partition_point(|function| function.start <= address);
        let function = &self.functions[before.checked_sub(1)?];
        (address - function.start < function.size).then_some(function)
    }

    /// Finds the nearest sizeless name before the address, unless a function begins between them.
    fn public_before(&self, address: u64) -> Option<&Public> {
        let before = self.publics.partition_point(|public| public.address <= address);
        let public = &self.publics[before.checked_sub(1)?];
        let functions = self.functions.partition_point(|function| function.start <= address);
        let nearer =
            functions.checked_sub(1).is_some_and(|last| self.functions[last].start >= public.address);
        (!nearer).then_some(public)
    }
}

/// The facts that a function's lines state about one address.
#[derive(Default)]
struct InFunction {
    line: Option<(u32, u32)>,
    inlined: Vec<InlineRecord>,
}

#[derive(Clone, Copy)]
struct InlineRecord {
    depth: u32,
    call_line: u32,
    call_file: u32,
    origin: u32,
}

impl InFunction {
    fn read(lines: &[u8], address: u64) -> Self {
        let mut known = Self::default();
        for line in lines.split(|&byte| byte == b'\n') {
            let mut words = Words::new(line.trim_ascii_end(), 0);
            let _ = match words.next() {
                Some(word) if word.bytes == b"INLINE" => known.inline(words, address),
                Some(word) => known.line(word, words, address),
                None => None,
            };
        }
        known.inlined.sort_by_key(|inlined| inlined.depth);
        known
    }

    fn inline(&mut self, mut words: Words<'_>, address: u64) -> Option<()> {
        let mut number = || words.next()?.decimal();
        let (depth, call_line, call_file, origin) = (number()?, number()?, number()?, number()?);
        while let (Some(start), Some(size)) = (words.next(), words.next()) {
            let (start, size) = (start.hexadecimal()?, size.hexadecimal()?);
            if address.checked_sub(start).is_some_and(|offset| offset < size) {
                self.inlined.push(InlineRecord { depth, call_line, call_file, origin });
                break;
            }
        }
        Some(())
    }

    fn line(&mut self, start: Word<'_>, mut words: Words<'_>, address: u64) -> Option<()> {
        let (start, size) = (start.hexadecimal()?, words.next()?.hexadecimal()?);
        if address.checked_sub(start).is_some_and(|offset| offset < size) {
            self.line = Some((words.next()?.decimal()?, words.next()?.decimal()?));
        }
        Some(())
    }

    /// Returns one call per depth, outermost first, up to the first missing depth.
    fn chain(&self) -> Vec<InlineRecord> {
        let mut chain: Vec<InlineRecord> = Vec::new();
        for inlined in &self.inlined {
            if inlined.depth as usize == chain.len() && chain.len() < MAX_INLINE_DEPTH {
                chain.push(*inlined);
            }
        }
        chain
    }
}

impl SymbolSource for Breakpad {
    fn frames_at(&self, address: StatedAddress, out: &mut FrameSink) -> Result<(), Unknown> {
        let address = address.value();
        let Some(function) = self.covering(address) else {
            let public = self.public_before(address).ok_or(Unknown::NotCovered)?;
            let name = self.text(public.name);
            // Mozilla's writer adds these after the last function.
            if name.is_empty() || name.starts_with("<unknown in ") {
                return Err(Unknown::NotCovered);
            }
            out.push(RawFrame { name: Some(&name), ..RawFrame::default() });
            out.set_function_start(StatedAddress::new(public.address));
            return Ok(());
        };
        let lines_end = function.lines_end.min(function.name.end + MAX_LINES_BYTES);
        let content = &**self.bytes;
        let known = InFunction::read(content.get(function.name.end..lines_end).unwrap_or_default(), address);
        let chain = known.chain();
        // The innermost call has the instruction's position, each outer one the position of its
        // call.
        let mut place = known.line;
        for inlined in chain.iter().rev() {
            let origin = self.origins.get(&inlined.origin).map(|&span| self.text(span));
            self.push(out, origin.as_deref(), place, true);
            place = Some((inlined.call_line, inlined.call_file));
        }
        self.push(out, Some(&self.text(function.name)), place, false);
        out.set_function_start(StatedAddress::new(function.start));
        Ok(())
    }

    fn files(&self) -> Vec<PathBuf> {
        vec![self.path.clone()]
    }
}

impl Breakpad {
    fn push(&self, out: &mut FrameSink, name: Option<&str>, place: Option<(u32, u32)>, inlined: bool) {
        let file = place.and_then(|(_, file)| self.files.get(&file)).map(|&span| self.text(span));
        let line = place.map(|(line, _)| line).filter(|&line| line > 0);
        let name = name.filter(|name| !name.is_empty());
        out.push(RawFrame {
            name,
            language: Language::Unknown,
            file: file.as_deref(),
            line,
            inlined,
            ..RawFrame::default()
        });
    }
}

/// Returns system and id of the first line.
fn module_line(content: &[u8]) -> Option<(&[u8], &[u8])> {
    let first = content.split(|&byte| byte == b'\n').next()?;
    let mut words = Words::new(first, 0).skip(1);
    let (os, _architecture, id) = (words.next()?, words.next()?, words.next()?);
    Some((os.bytes, id.bytes))
}

/// Reads the module's id from the first lines.
pub(crate) fn read_id(content: &[u8]) -> Option<BuildId> {
    // `INFO` follows directly after `MODULE`.
    let head = content.get(..MAX_HEAD_BYTES).unwrap_or(content).to_vec();
    Breakpad::parse(Path::new(""), std::sync::Arc::new(crate::mapped_file::FileBytes::Owned(head)))
        .ok()?
        .build_id
}

const MAX_HEAD_BYTES: usize = 4096;

/// Returns the directory names that a symbol server uses for a build.
///
/// They are the id as macOS writes it, and the first part of a Linux id, taken for a GUID.
pub(crate) fn server_ids(build: &BuildId) -> impl Iterator<Item = String> {
    let first = build.bytes().get(..16).map(<[u8]>::to_vec);
    first.into_iter().flat_map(|first| {
        [
            format!("{}0", BuildId::new(&first).to_string().to_uppercase()),
            format!("{}0", super::pe::guid_text(&first)),
        ]
    })
}

/// Converts the id of a `MODULE` line to its stored form.
///
/// For Windows it is a GUID, whose first three parts are written as numbers, and an age; for other
/// systems it is 16 bytes and a zero.
fn debug_id(text: &[u8], is_windows: bool) -> Option<BuildId> {
    let (guid, age) = std::str::from_utf8(text).ok()?.split_at_checked(32)?;
    let mut bytes = BuildId::from_hex(guid)?.bytes().to_vec();
    if is_windows {
        bytes[..4].reverse();
        bytes[4..6].reverse();
        bytes[6..8].reverse();
        bytes.extend(u32::from_str_radix(age, 16).ok()?.to_le_bytes());
    }
    Some(BuildId::new(&bytes))
}

/// Splits a line at blanks.
struct Words<'a> {
    rest: &'a [u8],
    /// The position of `rest` in the file.
    at: usize,
}

#[derive(Clone, Copy)]
struct Word<'a> {
    bytes: &'a [u8],
}

impl<'a> Words<'a> {
    fn new(rest: &'a [u8], at: usize) -> Self {
        Self { rest, at }
    }

    /// Returns the position of the next word.
    fn at(&self) -> usize {
        self.at
    }

    /// Parses the address of a `FUNC` or `PUBLIC`, after an optional `m` (shared by several names).
    fn address(&mut self) -> Option<u64> {
        match self.next()? {
            Word { bytes: b"m" } => self.next()?.hexadecimal(),
            word => word.hexadecimal(),
        }
    }
}

impl<'a> Iterator for Words<'a> {
    type Item = Word<'a>;

    fn next(&mut self) -> Option<Word<'a>> {
        let length = self.rest.iter().position(|&byte| byte == b' ').unwrap_or(self.rest.len());
        let (bytes, rest) = self.rest.split_at(length);
        self.rest = rest.strip_prefix(b" ").unwrap_or(rest);
        self.at += bytes.len() + (rest.len() - self.rest.len());
        (!bytes.is_empty()).then_some(Word { bytes })
    }
}

impl Word<'_> {
    fn hexadecimal(self) -> Option<u64> {
        self.digits(16)
    }

    fn decimal(self) -> Option<u32> {
        self.digits(10).and_then(|number| u32::try_from(number).ok())
    }

    fn digits(self, radix: u32) -> Option<u64> {
        let is_digit = |byte: &u8| char::from(*byte).is_digit(radix);
        let digits = std::str::from_utf8(self.bytes).ok()?;
        self.bytes.iter().all(is_digit).then(|| u64::from_str_radix(digits, radix).ok())?
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::mapped_file::FileBytes;

    const SYMBOLS: &str = "\
MODULE windows x86_64 8C93CAD340C0524F4C4C44205044422E1 program.pdb
INFO CODE_ID C28F7B0E4000 program.exe
FILE 0 /src/a dir/scale.h\r
FILE 7 /src/program.cpp
INLINE_ORIGIN 0 twice(int) const
INLINE_ORIGIN 1 once(int) const
PUBLIC 900 0 before
FUNC m 1000 20 0 area(int, int)
INLINE 0 12 7 0 1000 8 1010 4
INLINE 1 18 0 1 1002 2
INLINE 3 18 0 1 1002 2
1000 8 13 0
1008 8 14 7
1010 4 15 9
nonsense
1014 4 99 7
FUNC 2000 10 0
2000 10 0 0
PUBLIC m 3000 0 _ZN5space3fooEibc
PUBLIC 4000 0 <unknown in program.pdb>
STACK CFI INIT 1000 20 .cfa: $rsp 8 +
FUNC nonsense
";

    fn at(symbols: &str, address: u64) -> String {
        let source =
            Breakpad::parse("x.sym".as_ref(), Arc::new(FileBytes::Owned(symbols.as_bytes().to_vec())))
                .unwrap();
        let mut sink = FrameSink::default();
        match source.frames_at(StatedAddress::new(address), &mut sink) {
            Ok(()) => sink.take().0.iter().map(ToString::to_string).collect::<Vec<_>>().join(" < "),
            Err(_) => String::new(),
        }
    }

    #[test]
    fn breakpad_functions_inlines_and_publics_are_found() {
        for (address, expected) in [
            (0x8ff, ""),
            (0x900, "before"),
            (0xfff, "before"),
            (0x1000, "twice(int) const at /src/a dir/scale.h:13 < area(int, int) at /src/program.cpp:12"),
            (
                0x1003,
                "once(int) const at /src/a dir/scale.h:13 < twice(int) const at /src/a dir/scale.h:18 \
                 < area(int, int) at /src/program.cpp:12",
            ),
            (0x1008, "area(int, int) at /src/program.cpp:14"),
            // A file number that is not in the list.
            (0x1010, "twice(int) const < area(int, int) at /src/program.cpp:12"),
            // Lines after an invalid one no longer belong to this function.
            (0x1014, "area(int, int)"),
            (0x1020, ""),
            (0x2000, "?? at /src/a dir/scale.h"),
            (0x3005, "space::foo(int, bool, char)"),
            (0x4005, ""),
        ] {
            assert_eq!(at(SYMBOLS, address), expected, "{address:#x}");
        }
    }

    #[test]
    fn breakpad_ids_equal_those_in_the_files() {
        let id = |first: &str| {
            let source =
                Breakpad::parse("x".as_ref(), Arc::new(FileBytes::Owned(first.as_bytes().to_vec()))).unwrap();
            source.build_id.map(|id| id.to_string())
        };
        assert_eq!(
            id("MODULE windows x86 8C93CAD340C0524F4C4C44205044422Ea x.pdb\nINFO CODE_ID C28F7B0E4000 x.exe"),
            Some("d3ca938cc0404f524c4c44205044422e0a000000".to_owned())
        );
        assert_eq!(
            id("MODULE Mac arm64 4C4C447155553144A13412C01C7992920 m"),
            Some("4c4c447155553144a13412c01c799292".to_owned())
        );
        let linux = "MODULE Linux x86_64 73A8CD17D2DF6D3276D207347B05EC9D0 x";
        assert_eq!(id(linux), None);
        assert_eq!(id(&format!("{linux}\nINFO CODE_ID 17CDA8\n")), Some("17cda8".to_owned()));
        assert_eq!(id("MODULE windows x86 8C93 x.pdb"), None);
        assert!(Breakpad::parse("x".as_ref(), Arc::new(FileBytes::Owned(b"MODULE x".to_vec()))).is_err());
    }

    #[test]
    fn breakpad_endless_inline_chain_is_cut() {
        let mut symbols = "MODULE Linux x86 0 x\nFUNC 0 10 0 f\n".to_owned();
        for depth in 0..10_000 {
            symbols += &format!("INLINE {depth} 1 0 0 0 10\n");
        }
        assert_eq!(at(&symbols, 5).matches('<').count(), MAX_INLINE_DEPTH);
    }
}
