//! Output of `cairn decode`: lines, JSON, other formats, or totals.

use std::collections::HashMap;
use std::fmt;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::sync::Arc;

use anstyle::Style;
use cairn_format::{AbsoluteAddress, Frame, Hexadecimal, StatedAddress, WordSize};
use cairn_logs::convert;
use cairn_logs::decode::{Image, ImageMap, Record, StackRecord};
use cairn_logs::totals::AllocationTotals;
use cairn_symbols::{Lookup, ModuleId, Resolution, SourceFrame, Symbolizer};
use cairn_wire::lws::log_line;
use cairn_wire::{cbf, xnu};
use serde::Serialize;

use super::crash::CrashNames;
use super::input::InputSource;
use super::{Decode, FormatName, OutputEncoding};
use crate::new_file::Output;
use crate::output::{Outcome, Palette, complain, escaped_line, printable};

/// Maximum frames that are printed of one stack; the others are counted. A few bytes may claim
/// 2^63.
const MAX_FRAMES: usize = 1 << 16;

/// Maximum addresses whose symbols are cached. Firmware has some thousand.
const MAX_REMEMBERED: usize = 1 << 20;

/// The position of a record in the input.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) source: &'a InputSource,
    pub(super) line: Option<u64>,
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}", self.source),
            None => self.source.fmt(f),
        }
    }
}

impl Place<'_> {
    pub(super) fn complain(self, problem: &dyn fmt::Display) {
        complain(&format_args!("{self}: {problem}"));
    }
}

/// Prints records as the arguments say.
pub(super) struct DecodePrinter<'a> {
    pub(super) output: BufWriter<Output>,
    /// Each line is awaited: by a terminal, or because the input is a live pipe.
    flush_lines: bool,
    pub(super) mode: Mode,
    pub(super) symbols: Option<ExecutableSymbols>,
    pub(super) crash_names: CrashNames<'a>,
    architecture: Option<String>,
    dialect: cbf::CbfDialect,
    xnu_packing: xnu::Packing,
    pub(super) strict: bool,
    with_kinds: bool,
}

pub(super) enum Mode {
    Lines,
    Json,
    Convert(FormatName, OutputEncoding),
    Totals { totals: Box<AllocationTotals>, json: bool },
}

impl<'a> DecodePrinter<'a> {
    pub(super) fn new(
        arguments: &'a Decode,
        output: Output,
        symbols: Option<(Symbolizer, ModuleId)>,
        xnu_packing: xnu::Packing,
    ) -> Self {
        let mode = match arguments.format {
            Some(format) => Mode::Convert(format, arguments.text),
            None if arguments.totals => Mode::Totals { totals: Box::default(), json: arguments.json },
            None if arguments.json => Mode::Json,
            None => Mode::Lines,
        };
        let is_live_pipe = !io::stdin().is_terminal() && arguments.inputs.is_empty();
        Self {
            flush_lines: output.is_terminal() || is_live_pipe,
            output: BufWriter::with_capacity(1 << 16, output),
            mode,
            symbols: symbols.map(|(symbolizer, module)| {
                ExecutableSymbols::new(symbolizer, module, arguments.load_address.unwrap_or(0))
            }),
            crash_names: CrashNames::new(&arguments.symbols),
            architecture: arguments.architecture.clone(),
            dialect: arguments.dialect.dialect(),
            xnu_packing,
            strict: arguments.strict,
            with_kinds: arguments.kinds,
        }
    }

    /// Adds an allocation to the totals.
    pub(super) fn total(&mut self, stack: &[AbsoluteAddress], size_bytes: u64) {
        if let Mode::Totals { totals, .. } = &mut self.mode {
            totals.add(stack, size_bytes);
        }
    }

    /// Prints a line of the input unchanged; a terminal gets its control characters escaped.
    pub(super) fn keep(&mut self, line: &[u8], ends: bool) -> io::Result<()> {
        if self.output.get_ref().is_terminal() {
            self.output.write_all(&escaped_line(line))?;
        } else {
            self.output.write_all(line)?;
        }
        if ends { self.output.write_all(b"\n") } else { Ok(()) }
    }

    /// Flushes after a line of input, so that a live console shows it.
    pub(super) fn end_of_line(&mut self) -> io::Result<()> {
        if self.flush_lines && !self.output.buffer().is_empty() { self.output.flush() } else { Ok(()) }
    }

    /// Prints one record. Returns [`Outcome::Partly`] after reporting what the format cannot hold.
    pub(super) fn record(&mut self, place: Place<'_>, record: Record) -> io::Result<Outcome> {
        if self.strict && record.faults().next().is_some() {
            return Ok(Outcome::Partly);
        }
        match (&mut self.mode, record) {
            (Mode::Lines, Record::Stack(stack)) => self.stack_lines(&stack)?,
            (Mode::Lines, Record::Images(images)) => image_lines(&mut self.output, &images)?,
            (Mode::Json, record) => {
                let line = JsonRecord::new(place, &record, self.symbols.as_mut());
                serde_json::to_writer(&mut self.output, &line)?;
                self.output.write_all(b"\n")?;
            }
            (&mut Mode::Convert(format, encoding), record) => {
                return self.convert(place, &record, format, encoding);
            }
            (Mode::Totals { totals, .. }, Record::Stack(stack)) => match stack.allocation_size_bytes {
                Some(size_bytes) if !stack.is_size_uncertain => {
                    let addresses: Vec<_> = stack.addresses(MAX_FRAMES).collect();
                    totals.add_marked(&addresses, size_bytes, &stack.uncertain);
                }
                size_bytes => {
                    totals.add_without_size();
                    let problem = match size_bytes {
                        Some(_) => "the uncertain size is not in the totals",
                        None => "a stack without an allocation size; it is not in the totals",
                    };
                    place.complain(&problem);
                    return Ok(Outcome::Partly);
                }
            },
            (Mode::Totals { .. }, Record::Images(_)) => {}
        }
        Ok(Outcome::Done)
    }

    /// Prints the totals, and completes the output.
    pub(super) fn finish(mut self) -> io::Result<()> {
        if let Mode::Totals { totals, json } = &self.mode {
            let symbols = self.symbols.as_mut();
            match json {
                true => totals_json(&mut self.output, totals, symbols)?,
                false => totals_lines(&mut self.output, totals, symbols)?,
            }
        }
        self.output.into_inner().map_err(io::IntoInnerError::into_error)?.finish()?;
        self.crash_names.finish();
        Ok(())
    }

    fn stack_lines(&mut self, stack: &StackRecord) -> io::Result<()> {
        let output = &mut self.output;
        writeln!(output, "{}", convert::TextLine { stack, with_kinds: self.with_kinds })?;
        let Some(symbols) = &mut self.symbols else { return Ok(()) };
        for (index, frame) in stack.frames().take(MAX_FRAMES).enumerate() {
            // Only stacks without repeats have uncertain addresses.
            let is_uncertain = stack.uncertain.binary_search(&index).is_ok();
            let kind = if self.with_kinds { log_line::kind_prefix(frame) } else { "" };
            symbols.write_frame(output, frame, kind, is_uncertain)?;
        }
        output.write_all(b"\n")
    }

    pub(super) fn convert(
        &mut self,
        place: Place<'_>,
        record: &Record,
        format: FormatName,
        encoding: OutputEncoding,
    ) -> io::Result<Outcome> {
        let options = convert::ConvertOptions {
            architecture: self.architecture.as_deref(),
            dialect: self.dialect,
            xnu_packing: self.xnu_packing,
        };
        let converted = match convert::convert(record, format.format(), &options) {
            Ok(converted) => converted,
            Err(error) => {
                place.complain(&error);
                return Ok(Outcome::Partly);
            }
        };
        for loss in &converted.losses {
            place.complain(loss);
        }
        let output = &mut self.output;
        match (format, encoding) {
            (FormatName::SwiftJson, _) => {
                output.write_all(&converted.bytes)?;
                output.write_all(b"\n")?;
            }
            (FormatName::Lws, OutputEncoding::Base64) => {
                output.write_all(b"~m#")?;
                output.write_all(convert::base64_text(&converted.bytes).as_bytes())?;
                output.write_all(b"\n")?;
            }
            (_, OutputEncoding::Base64) => writeln!(output, "{}", convert::base64_text(&converted.bytes))?,
            (_, OutputEncoding::Hex) => writeln!(output, "{}", Hexadecimal(&converted.bytes))?,
            (_, OutputEncoding::Raw) => output.write_all(&converted.bytes)?,
        }
        Ok(if converted.losses.is_empty() { Outcome::Done } else { Outcome::Partly })
    }
}

/// Symbols of the executable, with a cache of the addresses.
pub(super) struct ExecutableSymbols {
    symbolizer: Symbolizer,
    module: ModuleId,
    load_address: u64,
    known: HashMap<u64, Resolution>,
    palette: Palette,
}

impl ExecutableSymbols {
    fn new(symbolizer: Symbolizer, module: ModuleId, load_address: u64) -> Self {
        Self { symbolizer, module, load_address, known: HashMap::new(), palette: Palette::of_stdout() }
    }

    pub(super) fn locations(&mut self, frame: Frame) -> &[SourceFrame] {
        let stated = frame.lookup_address().and_then(|address| address.checked_sub(self.load_address));
        let Some(stated) = stated.map(AbsoluteAddress::value) else { return &[] };
        if self.known.len() >= MAX_REMEMBERED && !self.known.contains_key(&stated) {
            self.known.clear();
        }
        let lookup = Lookup::stated(StatedAddress::new(stated));
        self.known.entry(stated).or_insert_with(|| self.symbolizer.resolve(self.module, lookup)).frames()
    }

    /// Writes a line for the frame and for each call inlined into it, as `addr2line -f -p -i` does.
    fn write_frame(
        &mut self,
        output: &mut impl Write,
        frame: Frame,
        kind: &str,
        is_uncertain: bool,
    ) -> io::Result<()> {
        let doubt = if is_uncertain { "?" } else { "" };
        let Palette { function, dim } = self.palette;
        let Some(address) = frame.address() else {
            return match frame {
                Frame::Omitted(count) => writeln!(output, "    {dim}... {count} frames omitted ...{dim:#}"),
                _ => writeln!(output, "    {dim}... the stack goes on, but was not recorded{dim:#}"),
            };
        };
        let locations = self.locations(frame);
        if locations.is_empty() {
            return writeln!(output, "    {dim}{kind}{address}{doubt}{dim:#} ??");
        }
        for (index, location) in locations.iter().enumerate() {
            match index {
                0 => write!(output, "    {dim}{kind}{address}{doubt}{dim:#} ")?,
                _ => write!(output, "     (inlined by) ")?,
            }
            write_location(output, location, function)?;
        }
        Ok(())
    }
}

fn write_location(output: &mut impl Write, location: &SourceFrame, style: Style) -> io::Result<()> {
    let function = location.function.as_deref().unwrap_or("??");
    write!(output, "{style}{}{style:#}", printable(function))?;
    match (&location.file, location.line) {
        (Some(file), Some(line)) => writeln!(output, " at {}:{line}", printable(file)),
        (Some(file), None) => writeln!(output, " at {}", printable(file)),
        (None, _) => writeln!(output),
    }
}

fn image_lines(output: &mut impl Write, map: &ImageMap) -> io::Result<()> {
    writeln!(output, "# {} images, platform {}", map.images.len(), printable(&map.platform))?;
    for Image { base, end_of_text, build_id, path } in &map.images {
        let build_id = build_id.as_ref().map_or("-".to_owned(), |id| Hexadecimal(id).to_string());
        let path = path.as_deref().unwrap_or("-");
        writeln!(output, "{base:#018x}-{end_of_text:#018x} {build_id} {}", printable(path))?;
    }
    Ok(())
}

fn totals_lines(
    output: &mut impl Write,
    totals: &AllocationTotals,
    mut symbols: Option<&mut ExecutableSymbols>,
) -> io::Result<()> {
    for cluster in totals.clusters_by_size() {
        write!(output, "{} bytes in {}", cluster.size_bytes, allocations(cluster.count))?;
        match (cluster.count, cluster.smallest_bytes == cluster.largest_bytes) {
            (1, _) => writeln!(output)?,
            (_, true) => writeln!(output, " of {}", cluster.smallest_bytes)?,
            _ => writeln!(output, " of {} to {}", cluster.smallest_bytes, cluster.largest_bytes)?,
        }
        for (index, &address) in cluster.stack.iter().enumerate() {
            let is_uncertain = cluster.uncertain.binary_search(&index).is_ok();
            match &mut symbols {
                Some(symbols) => {
                    symbols.write_frame(output, Frame::ReturnAddress(address), "", is_uncertain)?;
                }
                None if is_uncertain => writeln!(output, "    {address}?")?,
                None => writeln!(output, "    {address}")?,
            }
        }
        writeln!(output)?;
    }
    let (size_bytes, count) = totals.unclustered();
    if count > 0 {
        writeln!(output, "{size_bytes} bytes in {} with too many different stacks\n", allocations(count))?;
    }
    if totals.without_size() > 0 {
        let count = allocations(totals.without_size());
        writeln!(output, "# {count} without a certain size, not in the total")?;
    }
    writeln!(output, "# Total instrumented allocation {}", totals.size_bytes())
}

fn allocations(count: u64) -> String {
    if count == 1 { "1 allocation".to_owned() } else { format!("{count} allocations") }
}

fn totals_json(
    output: &mut impl Write,
    totals: &AllocationTotals,
    mut symbols: Option<&mut ExecutableSymbols>,
) -> io::Result<()> {
    let clusters = totals.clusters_by_size();
    let clusters = clusters.iter().map(|cluster| JsonCluster {
        size: cluster.size_bytes,
        count: cluster.count,
        smallest: cluster.smallest_bytes,
        largest: cluster.largest_bytes,
        uncertain_frames: cluster.uncertain.to_vec(),
        frames: cluster
            .stack
            .iter()
            .map(|&address| DecodedFrameJson::new(Frame::ReturnAddress(address), 1, symbols.as_deref_mut()))
            .collect(),
    });
    let (unclustered_size, unclustered_count) = totals.unclustered();
    let json = JsonTotals {
        schema: JSON_SCHEMA,
        total_size: totals.size_bytes(),
        total_count: totals.count(),
        unclustered_size,
        unclustered_count,
        without_size_count: totals.without_size(),
        clusters: clusters.collect(),
    };
    serde_json::to_writer(&mut *output, &json)?;
    output.write_all(b"\n")
}

/// Version of the JSON that this command prints. Keys may be added; a changed meaning gets a new
/// number.
pub(super) const JSON_SCHEMA: u32 = 1;

#[derive(Serialize)]
struct JsonTotals {
    schema: u32,
    total_size: u128,
    total_count: u64,
    unclustered_size: u128,
    unclustered_count: u64,
    without_size_count: u64,
    clusters: Vec<JsonCluster>,
}

#[derive(Serialize)]
struct JsonCluster {
    size: u128,
    count: u64,
    smallest: u64,
    largest: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    uncertain_frames: Vec<usize>,
    frames: Vec<DecodedFrameJson>,
}

#[derive(Serialize)]
struct JsonRecord {
    schema: u32,
    input: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u64>,
    format: &'static str,
    word_bits: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    architecture: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    frames: Option<Vec<DecodedFrameJson>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    images: Option<ImagesJson>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    faults: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    uncertain_frames: Vec<usize>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    uncertain_size: bool,
}

impl JsonRecord {
    fn new(place: Place<'_>, record: &Record, symbols: Option<&mut ExecutableSymbols>) -> Self {
        let faults = record.faults().map(ToString::to_string).collect();
        let (format, word_size) = match record {
            Record::Stack(stack) => (stack.format, stack.word_size),
            Record::Images(images) => (cairn_logs::decode::Format::Cif, images.word_size),
        };
        let mut json = Self {
            schema: JSON_SCHEMA,
            input: place.source.to_string(),
            line: place.line,
            format: format.name(),
            word_bits: WordSize::bits(word_size),
            size: None,
            architecture: None,
            frames: None,
            images: None,
            faults,
            uncertain_frames: Vec::new(),
            uncertain_size: false,
        };
        match record {
            Record::Stack(stack) => json.add_stack(stack, symbols),
            Record::Images(images) => json.images = Some(ImagesJson::new(images)),
        }
        json
    }

    fn add_stack(&mut self, stack: &StackRecord, mut symbols: Option<&mut ExecutableSymbols>) {
        self.size = stack.allocation_size_bytes;
        self.architecture.clone_from(&stack.architecture);
        let runs = stack.runs.iter();
        let frames = runs.map(|&(frame, count)| DecodedFrameJson::new(frame, count, symbols.as_deref_mut()));
        self.frames = Some(frames.collect());
        self.images = stack.images.as_ref().map(ImagesJson::new);
        self.uncertain_frames.clone_from(&stack.uncertain);
        self.uncertain_size = stack.is_size_uncertain;
    }
}

#[derive(Serialize)]
struct DecodedFrameJson {
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    omitted: Option<u64>,
    #[serde(skip_serializing_if = "is_one")]
    times: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    locations: Vec<JsonLocation>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_one(times: &u64) -> bool {
    *times == 1
}

/// Returns the kind of a frame in JSON, and the number of frames that it represents.
pub(super) fn kind_name(frame: Frame) -> (&'static str, Option<u64>) {
    match frame {
        Frame::ProgramCounter(_) => ("program-counter", None),
        Frame::ReturnAddress(_) => ("return-address", None),
        Frame::AsyncResumePoint(_) => ("async-resume-point", None),
        Frame::Omitted(count) => ("omitted", Some(count)),
        Frame::Truncated => ("truncated", None),
    }
}

impl DecodedFrameJson {
    fn new(frame: Frame, times: u64, symbols: Option<&mut ExecutableSymbols>) -> Self {
        let (kind, omitted) = kind_name(frame);
        let locations =
            symbols.map(|symbols| symbols.locations(frame).iter().map(JsonLocation::new).collect());
        Self {
            kind,
            address: frame.address().map(|address| address.to_string()),
            omitted,
            times,
            locations: locations.unwrap_or_default(),
        }
    }
}

#[derive(Serialize)]
pub(super) struct JsonLocation {
    function: Option<String>,
    file: Option<String>,
    line: Option<u32>,
    column: Option<u32>,
    inlined: bool,
}

impl JsonLocation {
    pub(super) fn new(frame: &SourceFrame) -> Self {
        let text = |text: &Option<Arc<str>>| text.as_deref().map(str::to_owned);
        let &SourceFrame { line, column, inlined, .. } = frame;
        Self { function: text(&frame.function), file: text(&frame.file), line, column, inlined }
    }
}

#[derive(Serialize)]
struct ImagesJson {
    platform: String,
    images: Vec<JsonImage>,
}

#[derive(Serialize)]
struct JsonImage {
    base: String,
    end_of_text: String,
    build_id: Option<String>,
    path: Option<String>,
}

impl ImagesJson {
    fn new(map: &ImageMap) -> Self {
        let images = map.images.iter().map(|image| JsonImage {
            base: image.base.to_string(),
            end_of_text: image.end_of_text.to_string(),
            build_id: image.build_id.as_ref().map(|id| Hexadecimal(id).to_string()),
            path: image.path.clone(),
        });
        Self { platform: map.platform.clone(), images: images.collect() }
    }
}
