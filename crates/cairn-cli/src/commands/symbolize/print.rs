//! Output of answers in each style. Each distinct answer is looked up and formatted once.

use std::collections::HashMap;
use std::io::{self, BufWriter, Write};
use std::ops::Range;

use cairn_format::{StatedAddress, WordSize};
use cairn_symbols::{DataSymbol, Declaration, Lookup, ModuleId, Resolution, SourceFrame};
use serde::Serialize;

use super::input::{Files, Question};
use super::{Shape, Style};
use crate::output::{Guarded, Palette, colored_stdout, printable, stdout};

/// Maximum bytes of cached texts of answers.
const MAX_CACHED_BYTES: usize = 64 << 20;

/// Writes answers.
pub(super) struct AnswerPrinter {
    output: BufWriter<Guarded<io::Stdout>>,
    style: Style,
    shape: Shape,
    palette: Palette,
    /// The texts of answers, one behind the other.
    texts: Vec<u8>,
    /// The range of an answer in `texts`, and whether it has a name.
    known: HashMap<(ModuleId, u64, Lookup), (Range<usize>, bool)>,
    /// Inside of a JSON list, and whether anything is in it.
    list: Option<bool>,
    some_unknown: bool,
    failed: bool,
}

impl AnswerPrinter {
    pub(super) fn new(style: Style, shape: Shape) -> Self {
        let output = if style == Style::Cairn { colored_stdout() } else { stdout() };
        Self {
            output: BufWriter::with_capacity(1 << 16, output),
            style,
            shape,
            palette: Palette::of_stdout(),
            texts: Vec::new(),
            known: HashMap::new(),
            list: None,
            some_unknown: false,
            failed: false,
        }
    }

    /// Some address had no name.
    pub(super) fn some_unknown(&self) -> bool {
        self.some_unknown
    }

    /// Some question could not be answered at all.
    pub(super) fn failed(&self) -> bool {
        self.failed
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }

    /// Addresses from the command line are one list in llvm-symbolizer's JSON.
    pub(super) fn begin_list(&mut self) -> io::Result<()> {
        if self.style == Style::Json {
            self.list = Some(false);
            self.output.write_all(b"[")?;
        }
        Ok(())
    }

    pub(super) fn end_list(&mut self) -> io::Result<()> {
        match self.list.take() {
            Some(_) => self.output.write_all(b"]\n"),
            None => Ok(()),
        }
    }

    /// Writes the answers in the order of the questions. Each distinct address is looked up and
    /// formatted once.
    pub(super) fn answer(&mut self, questions: &[Question], files: &Files) -> io::Result<()> {
        if self.texts.len() > MAX_CACHED_BYTES {
            self.texts.clear();
            self.known.clear();
        }
        let mut unseen: Vec<(ModuleId, u64, Lookup)> = Vec::new();
        for question in questions {
            if let &Question::Address { module, address, lookup } = question
                && !self.known.contains_key(&(module, address, lookup))
            {
                unseen.push((module, address, lookup));
            }
        }
        unseen.sort_unstable();
        unseen.dedup();
        self.look_up(&unseen, files)?;
        for question in questions {
            self.write(question, files)?;
        }
        Ok(())
    }

    fn look_up(&mut self, unseen: &[(ModuleId, u64, Lookup)], files: &Files) -> io::Result<()> {
        let lookups: Vec<_> = unseen.iter().map(|&(module, _, lookup)| (module, lookup)).collect();
        // One address is answered without starting threads.
        let many = (lookups.len() > 1).then(|| files.symbolizer.resolve_many(&lookups));
        for (index, &key) in unseen.iter().enumerate() {
            let (module, _, lookup) = key;
            let one;
            let resolution = match many.as_ref().and_then(|many| many.get(index)) {
                Some(resolution) => resolution,
                None => {
                    one = files.symbolizer.resolve(module, lookup);
                    &one
                }
            };
            let start = self.texts.len();
            let mut texts = std::mem::take(&mut self.texts);
            let written = self.format(&mut texts, files, key, resolution);
            self.texts = texts;
            written?;
            self.known.insert(key, (start..self.texts.len(), is_known(resolution)));
        }
        Ok(())
    }

    fn write(&mut self, question: &Question, files: &Files) -> io::Result<()> {
        match &mut self.list {
            Some(true) => self.output.write_all(b",")?,
            Some(is_filled) => *is_filled = true,
            None => {}
        }
        match question {
            &Question::Address { module, address, lookup } => {
                let (range, is_known) = &self.known[&(module, address, lookup)];
                self.some_unknown |= !is_known;
                self.output.write_all(&self.texts[range.clone()])
            }
            _ => self.write_unanswered(question, files),
        }
    }

    fn write_unanswered(&mut self, question: &Question, files: &Files) -> io::Result<()> {
        let mut text = Vec::new();
        match question {
            Question::Address { .. } => {}
            &Question::Data { module, address, lookup } => {
                let symbol = files.symbolizer.data_symbol(module, lookup);
                self.some_unknown |= symbol.is_none();
                let path = files.path(module).to_string_lossy();
                self.data(&mut text, &path, address, symbol.as_ref())?;
            }
            &Question::Outside { module, address } => {
                self.some_unknown = true;
                self.unknown(
                    &mut text,
                    Some((address, files.symbolizer.word_size(module))),
                    "outside of the section",
                )?;
            }
            Question::NoFile { path, address, error } => {
                self.failed = true;
                match self.style {
                    Style::Json => {
                        let error = JsonError { message: error };
                        let answer = JsonNoFile { address: HexAddress(*address), error, module_name: path };
                        serde_json::to_writer(&mut text, &answer)?;
                        self.end_of_json(&mut text);
                    }
                    _ => self.unknown(&mut text, Some((*address, WordSize::Bits64)), error)?,
                }
            }
            Question::Unknown { text: asked } => {
                self.failed = true;
                match self.style {
                    Style::Json => {
                        let answer = JsonNoAddress { module_name: asked, symbol: [SymbolJson::default()] };
                        serde_json::to_writer(&mut text, &answer)?;
                        self.end_of_json(&mut text);
                    }
                    // Standard error has reported this already.
                    Style::Cairn | Style::OwnJson => {}
                    _ => self.unknown(&mut text, None, "not an address")?,
                }
            }
        }
        self.output.write_all(&text)
    }

    fn end_of_json(&self, text: &mut Vec<u8>) {
        if self.list.is_none() {
            text.push(b'\n');
        }
    }

    /// Formats an answer into `text`.
    fn format(
        &self,
        text: &mut Vec<u8>,
        files: &Files,
        (module, address, lookup): (ModuleId, u64, Lookup),
        resolution: &Resolution,
    ) -> io::Result<()> {
        let word_size = files.symbolizer.word_size(module);
        match self.style {
            Style::Cairn => self.own(text, address, resolution),
            Style::OwnJson => {
                let path = files.path(module).to_string_lossy();
                serde_json::to_writer(&mut *text, &OwnJson::new(&path, address, resolution))?;
                text.push(b'\n');
                Ok(())
            }
            Style::Addr2line => self.addr2line(text, address, word_size, resolution),
            Style::Llvm | Style::Gnu => self.llvm(text, address, resolution),
            Style::Json => {
                let module_name = files.path(module).to_string_lossy();
                let declarations = files.symbolizer.declarations(module, lookup);
                let symbol = self.json_symbols(resolution, &declarations);
                serde_json::to_writer(
                    &mut *text,
                    &JsonAnswer { address: HexAddress(address), module_name: &module_name, symbol },
                )?;
                self.end_of_json(text);
                Ok(())
            }
        }
    }

    /// Prints an unknown address, in each style but those of JSON.
    fn unknown(&self, text: &mut Vec<u8>, address: Option<(u64, WordSize)>, reason: &str) -> io::Result<()> {
        let functions = self.shape.functions;
        match self.style {
            Style::Cairn => {
                let Palette { dim, .. } = self.palette;
                let address = address.map_or(0, |(address, _)| address);
                writeln!(text, "{dim}{address:#x}{dim:#} ?? {dim}({}){dim:#}", printable(reason))
            }
            Style::Addr2line => {
                let (address, word_size) = address.unwrap_or((0, WordSize::Bits64));
                self.addr2line_address(text, address, word_size)?;
                match (functions, self.shape.pretty) {
                    (true, true) => text.write_all(b"?? ??:0\n"),
                    (true, false) => text.write_all(b"??\n??:0\n"),
                    (false, _) => text.write_all(b"??:0\n"),
                }
            }
            _ => {
                if let Some((address, _)) = address {
                    self.llvm_address(text, address)?;
                }
                self.llvm_frame(text, None, None)?;
                if self.style == Style::Llvm { text.write_all(b"\n") } else { Ok(()) }
            }
        }
    }

    /// Our own way: `address name at file:line:column`, and what it is inlined into below.
    fn own(&self, text: &mut Vec<u8>, address: u64, resolution: &Resolution) -> io::Result<()> {
        let Palette { function, dim } = self.palette;
        if resolution.frames().is_empty() {
            let reason = resolution.reason().map_or_else(String::new, ToString::to_string);
            return self.unknown(text, Some((address, WordSize::Bits64)), &reason);
        }
        let address = format!("{address:#x}");
        for (index, frame) in self.frames(resolution).enumerate() {
            match index {
                0 => write!(text, "{dim}{address}{dim:#} ")?,
                _ => write!(text, "{:width$} {dim}inlined into{dim:#} ", "", width = address.len())?,
            }
            let name = if self.shape.demangle { &frame.function } else { &frame.raw_name };
            write!(text, "{function}{}{function:#}", printable(name.as_deref().unwrap_or("??")))?;
            if let Some(file) = self.file(&frame) {
                write!(text, " at {}", printable(file))?;
                if let Some(line) = frame.line {
                    write!(text, ":{line}")?;
                }
                if let (Some(_), Some(column @ 1..)) = (frame.line, frame.column) {
                    write!(text, ":{column}")?;
                }
            }
            text.push(b'\n');
        }
        Ok(())
    }

    /// As `translate_addresses` of binutils 2.40 has it.
    fn addr2line(
        &self,
        text: &mut Vec<u8>,
        address: u64,
        word_size: WordSize,
        resolution: &Resolution,
    ) -> io::Result<()> {
        if !is_known(resolution) {
            return self.unknown(text, Some((address, word_size)), "");
        }
        self.addr2line_address(text, address, word_size)?;
        // Without -i it shows the innermost frame.
        let frames = resolution.frames();
        let shown = if self.shape.inlines { frames.len() } else { 1 };
        for (index, frame) in frames[..shown].iter().enumerate() {
            if index > 0 && self.shape.pretty {
                text.write_all(b" (inlined by) ")?;
            }
            if self.shape.functions {
                text.write_all(self.linker_name(frame).unwrap_or("??").as_bytes())?;
                text.write_all(if self.shape.pretty { b" at " } else { b"\n" })?;
            }
            text.write_all(self.file(frame).unwrap_or("??").as_bytes())?;
            match (frame.line, frame.discriminator) {
                (Some(line), Some(number)) => writeln!(text, ":{line} (discriminator {number})")?,
                (Some(line), None) => writeln!(text, ":{line}")?,
                (None, _) => text.write_all(b":?\n")?,
            }
        }
        Ok(())
    }

    fn addr2line_address(&self, text: &mut Vec<u8>, address: u64, word_size: WordSize) -> io::Result<()> {
        if !self.shape.addresses {
            return Ok(());
        }
        let end = if self.shape.pretty { ": " } else { "\n" };
        match word_size {
            WordSize::Bits64 => write!(text, "{address:#018x}{end}"),
            _ => write!(text, "{:#010x}{end}", address & 0xffff_ffff),
        }
    }

    /// As llvm-symbolizer has it: LLVM with columns and a blank line at the end, GNU without.
    fn llvm(&self, text: &mut Vec<u8>, address: u64, resolution: &Resolution) -> io::Result<()> {
        if !is_known(resolution) {
            return self.unknown(text, Some((address, WordSize::Bits64)), "");
        }
        self.llvm_address(text, address)?;
        for (index, frame) in self.frames(resolution).enumerate() {
            if index > 0 && self.shape.pretty && self.shape.functions {
                text.write_all(b" (inlined by) ")?;
            }
            self.llvm_frame(text, self.linker_name(&frame), Some(&frame))?;
        }
        if self.style == Style::Llvm { text.write_all(b"\n") } else { Ok(()) }
    }

    fn llvm_address(&self, text: &mut Vec<u8>, address: u64) -> io::Result<()> {
        match (self.shape.addresses, self.shape.pretty) {
            (true, true) => write!(text, "{address:#x}: "),
            (true, false) => writeln!(text, "{address:#x}"),
            (false, _) => Ok(()),
        }
    }

    fn llvm_frame(
        &self,
        text: &mut Vec<u8>,
        name: Option<&str>,
        frame: Option<&SourceFrame>,
    ) -> io::Result<()> {
        if self.shape.functions {
            text.write_all(name.unwrap_or("??").as_bytes())?;
            text.write_all(if self.shape.pretty { b" at " } else { b"\n" })?;
        }
        let file = frame.and_then(|frame| self.file(frame)).unwrap_or("??");
        let line = frame.and_then(|frame| frame.line).unwrap_or(0);
        text.write_all(file.as_bytes())?;
        match self.style {
            Style::Llvm => writeln!(text, ":{line}:{}", frame.and_then(|frame| frame.column).unwrap_or(0)),
            _ => writeln!(text, ":{line}"),
        }
    }

    fn json_symbols(&self, resolution: &Resolution, declarations: &[Declaration]) -> Vec<SymbolJson> {
        if !is_known(resolution) {
            return vec![SymbolJson::default()];
        }
        let frames: Vec<_> = self.frames(resolution).collect();
        // Without inlined calls, the innermost one is shown, with the start of the function that
        // contains it.
        let merged = match declarations {
            [innermost, .., outermost] if !self.shape.inlines => {
                let mut merged = innermost.clone();
                merged.start = outermost.start;
                Some([merged])
            }
            _ => None,
        };
        let shown = merged.as_ref().map_or(declarations, |merged| merged.as_slice());
        // For all frames, or for none.
        let shown = if shown.len() == frames.len() { shown } else { &[] };
        let all = frames.iter().enumerate().map(|(index, frame)| {
            let declaration = shown.get(index);
            let start = match declaration {
                Some(declaration) => declaration.start,
                None => resolution.function_start(),
            };
            SymbolJson {
                column: frame.column.unwrap_or(0),
                discriminator: frame.discriminator.unwrap_or(0),
                file_name: self.file(frame).unwrap_or_default().to_owned(),
                function_name: self.linker_name(frame).unwrap_or_default().to_owned(),
                line: frame.line.unwrap_or(0),
                start_address: start.map_or_else(String::new, |start| format!("{:#x}", start.value())),
                start_file_name: self
                    .shown_file(declaration.and_then(|declaration| declaration.file.as_deref()))
                    .unwrap_or_default()
                    .to_owned(),
                start_line: declaration.and_then(|declaration| declaration.line).unwrap_or(0),
            }
        });
        all.collect()
    }

    /// Prints the symbol of a data address: its name, start, size, and declaration.
    fn data(
        &self,
        text: &mut Vec<u8>,
        path: &str,
        address: u64,
        symbol: Option<&DataSymbol>,
    ) -> io::Result<()> {
        let name = symbol.map(|symbol| if self.shape.demangle { &*symbol.name } else { &*symbol.raw_name });
        let start = symbol.and_then(|symbol| symbol.declaration.start).map_or(0, StatedAddress::value);
        let size = symbol.map_or(0, |symbol| symbol.size_bytes);
        let file = symbol.and_then(|symbol| symbol.declaration.file.as_deref());
        let line = symbol.and_then(|symbol| symbol.declaration.line);
        match self.style {
            Style::Json => {
                let data = JsonData {
                    name: name.unwrap_or_default(),
                    size: HexAddress(size),
                    start: HexAddress(start),
                };
                serde_json::to_writer(
                    &mut *text,
                    &JsonDataAnswer { address: HexAddress(address), data, module_name: path },
                )?;
                self.end_of_json(text);
                Ok(())
            }
            Style::OwnJson => {
                let data = symbol.map(|symbol| OwnData {
                    name: &symbol.name,
                    raw_name: &symbol.raw_name,
                    start: HexAddress(start),
                    size_bytes: size,
                    file,
                    line,
                });
                let answer = OwnDataAnswer { schema: 1, file: path, address: HexAddress(address), data };
                serde_json::to_writer(&mut *text, &answer)?;
                text.push(b'\n');
                Ok(())
            }
            Style::Cairn | Style::Addr2line => {
                let Some(name) = name else {
                    let reason = "no symbol is known at the address";
                    return self.unknown(text, Some((address, WordSize::Bits64)), reason);
                };
                let Palette { function, dim } = self.palette;
                write!(text, "{dim}{address:#x}{dim:#} {function}{}{function:#}", printable(name))?;
                if let Some(offset @ 1..) = address.checked_sub(start) {
                    write!(text, "+{offset:#x}")?;
                }
                if size != 0 {
                    write!(text, " ({size} bytes)")?;
                }
                if let Some(file) = self.shown_file(file) {
                    write!(text, " at {}", printable(file))?;
                    if let Some(line) = line {
                        write!(text, ":{line}")?;
                    }
                }
                text.push(b'\n');
                Ok(())
            }
            Style::Llvm | Style::Gnu => {
                self.llvm_address(text, address)?;
                writeln!(text, "{}\n{start} {size}", name.unwrap_or("??"))?;
                match file {
                    Some(file) => writeln!(text, "{file}:{}", line.unwrap_or(0))?,
                    None => text.write_all(b"??:?\n")?,
                }
                if self.style == Style::Llvm { text.write_all(b"\n") } else { Ok(()) }
            }
        }
    }

    /// The frames that are shown. Without inlined calls: the place of the innermost, the name of
    /// the outermost.
    fn frames<'a>(
        &self,
        resolution: &'a Resolution,
    ) -> impl Iterator<Item = std::borrow::Cow<'a, SourceFrame>> {
        let frames = resolution.frames();
        let merged = match (self.shape.inlines, frames) {
            (false, [innermost, .., outermost]) => {
                let mut merged = innermost.clone();
                (merged.function, merged.raw_name) = (outermost.function.clone(), outermost.raw_name.clone());
                merged.inlined = false;
                Some(merged)
            }
            _ => None,
        };
        let whole = if merged.is_some() { &[][..] } else { frames };
        merged.into_iter().map(std::borrow::Cow::Owned).chain(whole.iter().map(std::borrow::Cow::Borrowed))
    }

    /// The name of a function that has one: other tools know nothing of `module+0x…`.
    fn linker_name<'a>(&self, frame: &'a SourceFrame) -> Option<&'a str> {
        let raw = frame.raw_name.as_deref()?;
        if self.shape.demangle { frame.function.as_deref() } else { Some(raw) }
    }

    fn file<'a>(&self, frame: &'a SourceFrame) -> Option<&'a str> {
        self.shown_file(frame.file.as_deref())
    }

    fn shown_file<'a>(&self, file: Option<&'a str>) -> Option<&'a str> {
        let file = file?;
        Some(if self.shape.basenames { file.rsplit('/').next().unwrap_or(file) } else { file })
    }
}

/// True when there is a name, or a place, and not just the start of a function.
fn is_known(resolution: &Resolution) -> bool {
    resolution.frames().iter().any(|frame| frame.raw_name.is_some() || frame.file.is_some())
}

/// An address as llvm-symbolizer's JSON has it.
struct HexAddress(u64);

impl Serialize for HexAddress {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{:#x}", self.0))
    }
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct JsonAnswer<'a> {
    address: HexAddress,
    module_name: &'a str,
    symbol: Vec<SymbolJson>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct JsonNoFile<'a> {
    address: HexAddress,
    error: JsonError<'a>,
    module_name: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct JsonError<'a> {
    message: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct JsonNoAddress<'a> {
    module_name: &'a str,
    symbol: [SymbolJson; 1],
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct JsonDataAnswer<'a> {
    address: HexAddress,
    data: JsonData<'a>,
    module_name: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct JsonData<'a> {
    name: &'a str,
    size: HexAddress,
    start: HexAddress,
}

/// The keys in the order of llvm-symbolizer, which sorts them.
#[derive(Serialize, Default)]
#[serde(rename_all = "PascalCase")]
struct SymbolJson {
    column: u32,
    discriminator: u32,
    file_name: String,
    function_name: String,
    line: u32,
    start_address: String,
    start_file_name: String,
    start_line: u32,
}

#[derive(Serialize)]
struct OwnJson<'a> {
    schema: u32,
    file: &'a str,
    address: HexAddress,
    frames: Vec<OwnFrame<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    function_start: Option<HexAddress>,
    /// Which of a module's sources knew it, where there may be several.
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

#[derive(Serialize)]
struct OwnDataAnswer<'a> {
    schema: u32,
    file: &'a str,
    address: HexAddress,
    data: Option<OwnData<'a>>,
}

#[derive(Serialize)]
struct OwnData<'a> {
    name: &'a str,
    raw_name: &'a str,
    start: HexAddress,
    size_bytes: u64,
    file: Option<&'a str>,
    line: Option<u32>,
}

#[derive(Serialize)]
struct OwnFrame<'a> {
    function: Option<&'a str>,
    raw_name: Option<&'a str>,
    file: Option<&'a str>,
    line: Option<u32>,
    column: Option<u32>,
    inlined: bool,
}

impl<'a> OwnJson<'a> {
    fn new(file: &'a str, address: u64, resolution: &'a Resolution) -> Self {
        let frame = |frame: &'a SourceFrame| OwnFrame {
            function: frame.function.as_deref(),
            raw_name: frame.raw_name.as_deref(),
            file: frame.file.as_deref(),
            line: frame.line,
            column: frame.column,
            inlined: frame.inlined,
        };
        Self {
            schema: 1,
            file,
            address: HexAddress(address),
            frames: resolution.frames().iter().map(frame).collect(),
            function_start: resolution.function_start().map(|start| HexAddress(start.value())),
            source: resolution.answered_by().map(|source| source.to_string()),
            reason: resolution.reason().map(ToString::to_string),
        }
    }
}
