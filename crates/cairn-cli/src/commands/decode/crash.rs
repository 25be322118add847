//! Output of `cairn decode` for a crash log: text, JSON, or the stacks in another format.

use std::cell::RefCell;
use std::io::{self, Write};

use cairn_analysis::names::{AddressNames, ModuleKey, file_name, named_frames};
use cairn_format::{Frame, Hexadecimal, ModuleOffset};
use cairn_logs::convert;
use cairn_logs::crash_log::{
    CrashFrame, CrashImage, CrashImages, CrashLocation, CrashLog, CrashSymbol, CrashThread,
};
use cairn_logs::decode::{Format, Record};
use cairn_symbols::demangle::readable;
use cairn_symbols::{AddressKind, Lookup, Place as ModulePlace, SourceFrame};
use cairn_wire::lws::log_line;
use serde::{Serialize, Serializer};

use super::print::{DecodePrinter, ExecutableSymbols, JSON_SCHEMA, JsonLocation, Mode, Place, kind_name};
use crate::commands::symbol_options::{SymbolOptions, complain_about_modules};
use crate::output::{Outcome, Palette, printable};

/// Registers on one line.
const REGISTERS_PER_LINE: usize = 4;

/// Names for the frames of crash logs, from the files of their images.
pub(super) struct CrashNames<'a> {
    options: &'a SymbolOptions,
    /// `None` before the first frame without a name: most inputs have none.
    names: Option<AddressNames>,
}

impl<'a> CrashNames<'a> {
    pub(super) fn new(options: &'a SymbolOptions) -> Self {
        Self { options, names: None }
    }

    /// The source locations of a place in an image.
    fn locations(&mut self, image: &CrashImage, offset: ModuleOffset, frame: Frame) -> Vec<SourceFrame> {
        let kind = match frame {
            Frame::ProgramCounter(_) => AddressKind::ProgramCounter,
            Frame::ReturnAddress(_) => AddressKind::ReturnAddress,
            Frame::AsyncResumePoint(_) => AddressKind::AsyncResumePoint,
            Frame::Omitted(_) | Frame::Truncated => return Vec::new(),
        };
        let Some(path) = image.path.as_deref().or(image.name.as_deref()) else { return Vec::new() };
        if !self.options.wanted() {
            return Vec::new();
        }
        let key = ModuleKey {
            path: path.into(),
            build_id: image.build_id.as_deref().unwrap_or_default().to_vec(),
            size_bytes: None,
        };
        let names = self.names.get_or_insert_with(|| AddressNames::new(self.options.symbolizer()));
        named_frames(names.resolve(&key, Lookup { place: ModulePlace::Offset(offset), kind })).to_vec()
    }

    /// Reports the images without symbols. To be called when the answers are out.
    pub(super) fn finish(&self) {
        if let Some(names) = &self.names {
            complain_about_modules(names);
            self.options.index_later(names);
        }
    }
}

/// Names frames that have no name in the log.
struct Namer<'a, 'b> {
    images: CrashImages<'a>,
    names: &'a mut CrashNames<'b>,
    symbols: Option<&'a mut ExecutableSymbols>,
}

impl<'a> Namer<'a, '_> {
    /// The image that the frame lies in, and the source locations where the log has no name.
    fn look_up(&mut self, frame: &CrashFrame) -> (Option<(&'a CrashImage, ModuleOffset)>, Vec<SourceFrame>) {
        let Some(captured) = frame.frame else { return (None, Vec::new()) };
        let found = self.images.find(captured);
        let has_name = frame.symbol.as_deref().is_some_and(|symbol| name_of(symbol).is_some());
        let locations = match (found, &mut self.symbols) {
            _ if has_name => Vec::new(),
            (Some((image, offset)), _) => self.names.locations(image, offset, captured),
            (None, Some(symbols)) => symbols.locations(captured).to_vec(),
            (None, None) => Vec::new(),
        };
        (found, locations)
    }
}

/// The name that the log has for a frame, with the offset.
fn name_of(symbol: &CrashSymbol) -> Option<String> {
    if let Some(description) = &symbol.description {
        return Some(description.to_string());
    }
    let name = readable(symbol.raw_name.as_deref()?);
    Some(match symbol.offset {
        None | Some(0) => name.into_owned(),
        Some(offset @ 1..) => format!("{name} + {offset}"),
        Some(offset) => format!("{name} - {}", offset.unsigned_abs()),
    })
}

/// The name of an image: its own, or the last part of its path.
fn image_name(image: &CrashImage) -> Option<&str> {
    image.name.as_deref().or_else(|| image.path.as_deref().map(file_name))
}

impl DecodePrinter<'_> {
    /// Prints one crash log. [`Outcome::Partly`] when not all of it could be printed, which was
    /// reported.
    pub(super) fn crash(&mut self, place: Place<'_>, log: &CrashLog) -> io::Result<Outcome> {
        if self.strict && !log.faults.is_empty() {
            return Ok(Outcome::Partly);
        }
        if let &Mode::Convert(format, encoding) = &self.mode {
            let mut outcome = Outcome::Done;
            if format.format() == Format::Cif {
                let Some(map) = log.image_map() else {
                    place.complain(&convert::ConvertError::NothingToHold);
                    return Ok(Outcome::Partly);
                };
                return self.convert(place, &Record::Images(map), format, encoding);
            }
            let carrier = log.threads.iter().position(|thread| thread.crashed).unwrap_or(0);
            for (number, thread) in log.threads.iter().enumerate() {
                let mut stack = log.stack(thread);
                // Once: with each of many threads, many images would be without bounds.
                if number == carrier && format.format() == Format::SwiftJson {
                    stack.images = log.image_map();
                }
                if self.convert(place, &Record::Stack(stack), format, encoding)? == Outcome::Partly {
                    outcome = Outcome::Partly;
                }
            }
            return Ok(outcome);
        }
        let namer = Namer {
            images: log.images_by_address(),
            names: &mut self.crash_names,
            symbols: self.symbols.as_mut(),
        };
        match &self.mode {
            Mode::Totals { .. } => {
                place.complain(&"a crash log has no allocation sizes; it is not in the totals");
                return Ok(Outcome::Partly);
            }
            Mode::Json => {
                let json = JsonCrash { place, log, namer: RefCell::new(namer) };
                serde_json::to_writer(&mut self.output, &json)?;
                self.output.write_all(b"\n")?;
            }
            Mode::Lines | Mode::Convert(..) => {
                TextCrash { output: &mut self.output, palette: Palette::of_stdout(), namer }.write(log)?;
            }
        }
        Ok(Outcome::Done)
    }
}

/// A crash log as text.
struct TextCrash<'a, 'b, W> {
    output: &'a mut W,
    palette: Palette,
    namer: Namer<'a, 'b>,
}

impl<W: Write> TextCrash<'_, '_, W> {
    fn write(&mut self, log: &CrashLog) -> io::Result<()> {
        let strong = self.palette.strong();
        let description = log.description.as_deref().unwrap_or("crash");
        write!(self.output, "{strong}{}{strong:#}", printable(description))?;
        if let Some(address) = log.fault_address {
            write!(self.output, " at {address}")?;
        }
        let facts = [&log.timestamp, &log.platform, &log.architecture].map(Option::as_deref);
        let facts: Vec<_> = facts.into_iter().flatten().map(printable).collect();
        writeln!(self.output, "\n{}", facts.join(", "))?;
        for (number, thread) in log.threads.iter().enumerate() {
            self.thread(number, thread)?;
        }
        if log.omitted_threads > 0 {
            writeln!(self.output, "\n{} threads omitted", log.omitted_threads)?;
        }
        if !log.memory.is_empty() {
            writeln!(self.output, "\nmemory:")?;
            for piece in &log.memory {
                write!(self.output, "    {}", piece.address)?;
                piece.bytes.iter().try_for_each(|byte| write!(self.output, " {byte:02x}"))?;
                writeln!(self.output)?;
            }
        }
        self.images(log)?;
        if let Some(seconds) = log.backtrace_seconds {
            writeln!(self.output, "\nwritten in {seconds} s")?;
        }
        writeln!(self.output)
    }

    fn thread(&mut self, number: usize, thread: &CrashThread) -> io::Result<()> {
        write!(self.output, "\nthread {number}")?;
        if let Some(name) = &thread.name {
            write!(self.output, " {:?}", printable(name))?;
        }
        writeln!(self.output, "{}:", if thread.crashed { ", crashed" } else { "" })?;
        for frame in &thread.frames {
            self.frame(frame)?;
        }
        let Palette { dim, .. } = self.palette;
        for registers in thread.registers.chunks(REGISTERS_PER_LINE) {
            write!(self.output, "   {dim}")?;
            for (name, value) in registers {
                match value {
                    Some(value) => write!(self.output, " {}={value:#x}", printable(name))?,
                    None => write!(self.output, " {}=??", printable(name))?,
                }
            }
            writeln!(self.output, "{dim:#}")?;
        }
        Ok(())
    }

    fn frame(&mut self, frame: &CrashFrame) -> io::Result<()> {
        let Palette { function, dim } = self.palette;
        let (found, locations) = self.namer.look_up(frame);
        let output = &mut *self.output;
        match frame.frame {
            Some(Frame::Omitted(count)) => {
                return writeln!(output, "    {dim}... {count} frames omitted ...{dim:#}");
            }
            Some(Frame::Truncated) => {
                return writeln!(output, "    {dim}... the stack goes on, but was not recorded{dim:#}");
            }
            Some(captured) => {
                let kind = log_line::kind_prefix(captured);
                let address = captured.address().unwrap_or_default();
                write!(output, "    {dim}{kind}{address}{dim:#} ")?;
            }
            None => write!(output, "    {dim}??{dim:#} ")?,
        }
        if let [_, ..] = locations[..] {
            for (index, location) in locations.iter().enumerate() {
                if index > 0 {
                    write!(output, "     (inlined by) ")?;
                }
                let name = location.function.as_deref().unwrap_or("??");
                write!(output, "{function}{}{function:#}", printable(name))?;
                write_place(
                    output,
                    found.and_then(|(image, _)| image_name(image)),
                    location.file.as_deref(),
                    location.line.map(u64::from),
                    location.column.map(u64::from),
                )?;
                write_flags(output, frame)?;
            }
            return Ok(());
        }
        let symbol = frame.symbol.as_deref();
        match (symbol.and_then(name_of), found) {
            (Some(name), _) => write!(output, "{function}{}{function:#}", printable(&name))?,
            (None, Some((image, offset))) => {
                let image = image_name(image).unwrap_or("??");
                write!(output, "?? ({}+{:#x})", printable(image), offset.value())?;
            }
            (None, None) => write!(output, "??")?,
        }
        let location = symbol.and_then(|symbol| symbol.location.as_ref());
        write_place(
            output,
            symbol.and_then(|symbol| symbol.image.as_deref()),
            location.map(|location| &*location.file),
            location.and_then(|location| location.line),
            location.and_then(|location| location.column),
        )?;
        write_flags(output, frame)
    }

    fn images(&mut self, log: &CrashLog) -> io::Result<()> {
        let omitted = log.omitted_images.unwrap_or(0);
        let images = log.images.as_deref().unwrap_or_default();
        if !images.is_empty() {
            writeln!(self.output, "\nimages:")?;
        }
        for image in images {
            let [base, end] = [image.base, image.end_of_text]
                .map(|address| address.map_or("??".to_owned(), |address| format!("{address:#018x}")));
            let build_id = image.build_id.as_deref().map_or("-".to_owned(), |id| Hexadecimal(id).to_string());
            let name = image_name(image).unwrap_or("-");
            let path = image.path.as_deref().unwrap_or("-");
            writeln!(self.output, "    {base}-{end} {build_id} {} {}", printable(name), printable(path))?;
        }
        if omitted > 0 {
            writeln!(self.output, "\n{omitted} images omitted")?;
        }
        Ok(())
    }
}

/// ` in IMAGE at FILE:LINE:COLUMN`, as far as they are known.
fn write_place(
    output: &mut impl Write,
    image: Option<&str>,
    file: Option<&str>,
    line: Option<u64>,
    column: Option<u64>,
) -> io::Result<()> {
    if let Some(image) = image {
        write!(output, " in {}", printable(image))?;
    }
    if let Some(file) = file {
        write!(output, " at {}", printable(file))?;
        if let Some(line) = line {
            write!(output, ":{line}")?;
            column.map_or(Ok(()), |column| write!(output, ":{column}"))?;
        }
    }
    Ok(())
}

fn write_flags(output: &mut impl Write, frame: &CrashFrame) -> io::Result<()> {
    let flags = [
        (frame.inlined, " [inlined]"),
        (frame.runtime_failure, " [runtime failure]"),
        (frame.thunk, " [thunk]"),
        (frame.system, " [system]"),
    ];
    for (_, text) in flags.into_iter().filter(|&(is_set, _)| is_set) {
        output.write_all(text.as_bytes())?;
    }
    writeln!(output)
}

/// A crash log as JSON, written piece by piece.
struct JsonCrash<'a, 'b> {
    place: Place<'a>,
    log: &'a CrashLog,
    namer: RefCell<Namer<'a, 'b>>,
}

impl Serialize for JsonCrash<'_, '_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Fields<'a, T> {
            schema: u32,
            input: String,
            #[serde(skip_serializing_if = "Option::is_none")]
            line: Option<u64>,
            format: &'static str,
            word_bits: u32,
            crash: Crash<'a, T>,
            #[serde(skip_serializing_if = "Vec::is_empty")]
            faults: Vec<String>,
            #[serde(skip_serializing_if = "is_zero")]
            further_faults: u64,
        }
        let log = self.log;
        let fields = Fields {
            schema: JSON_SCHEMA,
            input: self.place.source.to_string(),
            line: self.place.line,
            format: Format::SwiftJson.name(),
            word_bits: log.word_size().bits(),
            crash: Crash {
                timestamp: log.timestamp.as_deref(),
                description: log.description.as_deref(),
                fault_address: log.fault_address.map(|address| address.to_string()),
                platform: log.platform.as_deref(),
                architecture: log.architecture.as_deref(),
                threads: JsonThreads { threads: &log.threads, namer: &self.namer },
                omitted_threads: log.omitted_threads,
                memory: JsonMemory(log),
                images: log.images.as_deref().map(CrashImagesJson),
                omitted_images: log.omitted_images,
                backtrace_seconds: log.backtrace_seconds,
            },
            faults: log.faults.iter().map(ToString::to_string).collect(),
            further_faults: log.further_faults,
        };
        fields.serialize(serializer)
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_false(flag: &bool) -> bool {
    !flag
}

#[derive(Serialize)]
struct Crash<'a, T> {
    timestamp: Option<&'a str>,
    description: Option<&'a str>,
    fault_address: Option<String>,
    platform: Option<&'a str>,
    architecture: Option<&'a str>,
    threads: T,
    omitted_threads: u64,
    memory: JsonMemory<'a>,
    images: Option<CrashImagesJson<'a>>,
    omitted_images: Option<u64>,
    backtrace_seconds: Option<f64>,
}

struct JsonThreads<'n, 'a, 'b> {
    threads: &'a [CrashThread],
    namer: &'n RefCell<Namer<'a, 'b>>,
}

impl Serialize for JsonThreads<'_, '_, '_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.threads.iter().map(|thread| CrashThreadJson {
            name: thread.name.as_deref(),
            crashed: thread.crashed,
            frames: JsonFrames { frames: &thread.frames, namer: self.namer },
            registers: JsonRegisters(&thread.registers),
        }))
    }
}

#[derive(Serialize)]
struct CrashThreadJson<'n, 'a, 'b> {
    name: Option<&'a str>,
    crashed: bool,
    frames: JsonFrames<'n, 'a, 'b>,
    #[serde(skip_serializing_if = "JsonRegisters::is_empty")]
    registers: JsonRegisters<'a>,
}

struct JsonRegisters<'a>(&'a [(Box<str>, Option<u64>)]);

impl JsonRegisters<'_> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Serialize for JsonRegisters<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer
            .collect_map(self.0.iter().map(|(name, value)| (name, value.map(|value| format!("{value:#x}")))))
    }
}

struct JsonMemory<'a>(&'a CrashLog);

impl Serialize for JsonMemory<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Piece {
            address: String,
            bytes: String,
        }
        serializer.collect_seq(self.0.memory.iter().map(|piece| Piece {
            address: piece.address.to_string(),
            bytes: Hexadecimal(&piece.bytes).to_string(),
        }))
    }
}

struct CrashImagesJson<'a>(&'a [CrashImage]);

impl Serialize for CrashImagesJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Image<'a> {
            base: Option<String>,
            end_of_text: Option<String>,
            build_id: Option<String>,
            name: Option<&'a str>,
            path: Option<&'a str>,
        }
        serializer.collect_seq(self.0.iter().map(|image| Image {
            base: image.base.map(|address| address.to_string()),
            end_of_text: image.end_of_text.map(|address| address.to_string()),
            build_id: image.build_id.as_deref().map(|id| Hexadecimal(id).to_string()),
            name: image.name.as_deref(),
            path: image.path.as_deref(),
        }))
    }
}

struct JsonFrames<'n, 'a, 'b> {
    frames: &'a [CrashFrame],
    namer: &'n RefCell<Namer<'a, 'b>>,
}

impl Serialize for JsonFrames<'_, '_, '_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(
            self.frames.iter().map(|frame| JsonCrashFrame::new(frame, &mut self.namer.borrow_mut())),
        )
    }
}

/// One frame; `symbol` is what the log says, `locations` what the files of its images say.
#[derive(Serialize)]
struct JsonCrashFrame<'a> {
    kind: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    omitted: Option<u64>,
    #[serde(skip_serializing_if = "is_false")]
    inlined: bool,
    #[serde(skip_serializing_if = "is_false")]
    runtime_failure: bool,
    #[serde(skip_serializing_if = "is_false")]
    thunk: bool,
    #[serde(skip_serializing_if = "is_false")]
    system: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    module: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    module_offset: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    symbol: Option<CrashSymbolJson<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    locations: Vec<JsonLocation>,
}

impl<'a> JsonCrashFrame<'a> {
    fn new(frame: &'a CrashFrame, namer: &mut Namer<'a, '_>) -> Self {
        let (found, locations) = namer.look_up(frame);
        let (kind, omitted) = frame.frame.map(kind_name).unzip();
        Self {
            kind,
            address: frame.frame.and_then(Frame::address).map(|address| address.to_string()),
            omitted: omitted.flatten(),
            inlined: frame.inlined,
            runtime_failure: frame.runtime_failure,
            thunk: frame.thunk,
            system: frame.system,
            module: found.and_then(|(image, _)| image_name(image)),
            module_offset: found.map(|(_, offset)| format!("{:#x}", offset.value())),
            symbol: frame.symbol.as_deref().map(CrashSymbolJson::new),
            locations: locations.iter().map(JsonLocation::new).collect(),
        }
    }
}

#[derive(Serialize)]
struct CrashSymbolJson<'a> {
    name: Option<String>,
    raw_name: Option<&'a str>,
    offset: Option<i64>,
    image: Option<&'a str>,
    file: Option<&'a str>,
    line: Option<u64>,
    column: Option<u64>,
}

impl<'a> CrashSymbolJson<'a> {
    fn new(symbol: &'a CrashSymbol) -> Self {
        let location = symbol.location.as_ref();
        let file = location.map(|CrashLocation { file, .. }| &**file);
        Self {
            name: name_of(symbol),
            raw_name: symbol.raw_name.as_deref(),
            offset: symbol.offset,
            image: symbol.image.as_deref(),
            file,
            line: location.and_then(|location| location.line),
            column: location.and_then(|location| location.column),
        }
    }
}
