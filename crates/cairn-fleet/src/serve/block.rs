//! Blocks of cairn's own senders, as JSON: `POST /v1/block`. The book describes the form.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use axum::extract::{Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse as _, Response};
use cairn_store::block::{Frame, Line, Module, ModuleId, Place, Process, Sample, Stack};
use cairn_store::{Appended, Block, Id, now_ms};
use cairn_symbols::BuildId;
use serde::Deserialize;
use serde::de::{self, DeserializeSeed, Deserializer, SeqAccess, Visitor};

use super::body;
use super::clock::{self, Moments};
use super::labels::{self, MOST_TEXT_BYTES};
use super::queue::Queue;
use super::refusal::Refusal;
use crate::add::MOST_FRAMES;

/// The version of the form.
const VERSION: u64 = 1;
/// Stacks of a block.
pub(crate) const MOST_STACKS: usize = 200_000;
/// Samples of a block.
pub(crate) const MOST_SAMPLES: usize = 500_000;
/// Modules of a block.
const MOST_MODULES: usize = 20_000;
/// Frames with names of a block.
const MOST_NAMED: usize = 200_000;
/// Lines of code at one place: inlined calls.
const MOST_LINES: usize = 1000;
/// Bytes of a build id; 64: SHA-512, and real ones have 20.
const MOST_BUILD_ID_BYTES: usize = 64;
/// Bytes of a command line or of remarks.
const MOST_COMMAND_BYTES: usize = 64 << 10;

/// A block as it is sent.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Sent {
    version: u64,
    sender: String,
    number: i64,
    #[serde(default)]
    content: Option<String>,
    /// The sender's clock when it sent this.
    #[serde(default)]
    sent: Option<i64>,
    process: SentProcess,
    slice: Slice,
    #[serde(default)]
    modules: Vec<SentModule>,
    #[serde(default)]
    stacks: SentStacks,
    #[serde(default)]
    names: Vec<SentFrame>,
    #[serde(default)]
    samples: Vec<Row>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SentProcess {
    service: String,
    #[serde(default)]
    version: String,
    #[serde(default)]
    host: String,
    #[serde(default)]
    build_id: String,
    #[serde(default)]
    command: String,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    started: i64,
    #[serde(default)]
    ended: Option<i64>,
    #[serde(default)]
    sample_bytes: Option<i64>,
    #[serde(default)]
    remarks: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Slice {
    end: i64,
    length: i64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SentModule {
    path: String,
    #[serde(default)]
    build_id: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SentFrame {
    module: u32,
    offset: i64,
    lines: Vec<SentLine>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SentLine {
    #[serde(default)]
    function: Option<String>,
    #[serde(default)]
    file: Option<String>,
    #[serde(default)]
    line: Option<i64>,
    #[serde(default)]
    inlined: bool,
}

/// Stacks, each a list of pairs: the number of a module, and an offset.
#[derive(Default)]
struct SentStacks {
    /// The frames of all stacks, one stack behind the other.
    frames: Vec<(u32, i64)>,
    /// For each stack, the number of frames up to its end.
    ends: Vec<usize>,
}

impl SentStacks {
    fn iter(&self) -> impl Iterator<Item = &[(u32, i64)]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, &end)| self.frames.get(start..end).unwrap_or_default())
    }
}

impl<'de> Deserialize<'de> for SentStacks {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OfStacks;
        impl<'de> Visitor<'de> for OfStacks {
            type Value = SentStacks;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("a list of stacks")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<SentStacks, A::Error> {
                let mut stacks = SentStacks::default();
                while list.next_element_seed(OfFrames(&mut stacks.frames))?.is_some() {
                    stacks.ends.push(stacks.frames.len());
                }
                Ok(stacks)
            }
        }
        deserializer.deserialize_seq(OfStacks)
    }
}

/// Appends the frames of one stack.
struct OfFrames<'a>(&'a mut Vec<(u32, i64)>);

impl<'de> DeserializeSeed<'de> for OfFrames<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for OfFrames<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("a stack: a list of pairs of a module's number and an offset")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while let Some(frame) = list.next_element()? {
            self.0.push(frame);
        }
        Ok(())
    }
}

/// A sample: the number of its stack, the nine counters, and the variance where there is one.
#[derive(Clone, Copy)]
struct Row {
    stack: u32,
    counters: [i64; 9],
    variance: Option<i64>,
}

impl<'de> Deserialize<'de> for Row {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OfRow;
        impl<'de> Visitor<'de> for OfRow {
            type Value = Row;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("a list of a stack's number, nine counters, and perhaps a variance")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Row, A::Error> {
                let short = |length: usize| de::Error::invalid_length(length, &self);
                let stack = list.next_element()?.ok_or_else(|| short(0))?;
                let mut counters = [0; 9];
                for (counter, at) in counters.iter_mut().zip(1..) {
                    *counter = list.next_element()?.ok_or_else(|| short(at))?;
                }
                let variance = list.next_element::<Option<i64>>()?.flatten();
                match list.next_element::<de::IgnoredAny>()? {
                    None => Ok(Row { stack, counters, variance }),
                    Some(_) => Err(short(12)),
                }
            }
        }
        deserializer.deserialize_seq(OfRow)
    }
}

/// Takes a block.
pub(crate) async fn take(State(queue): State<Queue>, request: Request) -> Response {
    match taken(&queue, request).await {
        Ok(Appended::Stored) => answer("stored"),
        Ok(Appended::Duplicate) => answer("duplicate"),
        Ok(Appended::Gap { .. }) => Refusal::unavailable("no result").as_json(),
        Err(refusal) => refusal.as_json(),
    }
}

fn answer(result: &str) -> Response {
    let body = serde_json::json!({ "result": result }).to_string();
    ([(CONTENT_TYPE, "application/json")], body).into_response()
}

async fn taken(queue: &Queue, request: Request) -> Result<Appended, Refusal> {
    let (head, sent) = request.into_parts();
    labels::check_kind(&head.headers, &["application/json"])?;
    let mut held = queue.held();
    let bytes = body::read(&head.headers, sent, body::MOST_BYTES, &mut held, &queue.parsers).await?;
    let received_ms = now_ms();
    let block = body::apart(&queue.parsers, move || parse(&bytes, received_ms)).await?;
    let number = block.number;
    match queue.store(vec![block], held).await?.first() {
        Some(&Appended::Gap { expected }) => Err(Refusal::gap(number, expected)),
        Some(&result) => Ok(result),
        None => Err(Refusal::unavailable("no result")),
    }
}

/// Reads a block; `received_ms` is the moment at which it came.
pub(crate) fn parse(bytes: &[u8], received_ms: i64) -> Result<Block, Refusal> {
    let sent: Sent = serde_json::from_slice(bytes).map_err(|error| match error.classify() {
        serde_json::error::Category::Data => Refusal::wrong(format!("the block: {error}")),
        _ => Refusal::bad(format!("the body is no JSON: {error}")),
    })?;
    if sent.version != VERSION {
        return Err(Refusal::wrong(format!(
            "version: {}, and this server reads version {VERSION}; use a server of the sender's release",
            sent.version
        )));
    }
    labels::check_text("sender", &sent.sender, MOST_TEXT_BYTES)?;
    if sent.sender.is_empty() || sent.number < 1 {
        return Err(Refusal::wrong("sender and number: a sender has a name and counts its blocks from 1"));
    }
    for (what, found, most) in [
        ("stacks", sent.stacks.ends.len(), MOST_STACKS),
        ("samples", sent.samples.len(), MOST_SAMPLES),
        ("modules", sent.modules.len(), MOST_MODULES),
        ("names", sent.names.len(), MOST_NAMED),
    ] {
        at_most(what, found, most)?;
    }
    let content = match &sent.content {
        None => Id::of_content([bytes]),
        Some(text) => Id::parse(text)
            .ok_or_else(|| Refusal::wrong("content: an identifier has 32 hexadecimal digits"))?,
    };
    let mut process = process_of(&sent)?;
    let moments = [
        ("slice.end", Some(sent.slice.end)),
        ("process.started", Some(process.started_ms)),
        ("process.ended", process.ended_ms),
        ("sent", sent.sent),
    ];
    for (what, moment) in moments {
        moment.map_or(Ok(()), |moment| clock::check(what, moment))?;
    }
    let mut moments = Moments {
        end_ms: sent.slice.end,
        started_ms: process.started_ms,
        ended_ms: process.ended_ms,
        offset_ms: 0,
    };
    if !(1..=clock::MOST_SLICE_MS).contains(&sent.slice.length) {
        return Err(Refusal::wrong(format!(
            "slice.length: {} ms; a slice has 1 to {} ms",
            sent.slice.length,
            clock::MOST_SLICE_MS
        )));
    }
    moments.correct(sent.sent, received_ms);
    (process.started_ms, process.ended_ms) = (moments.started_ms, moments.ended_ms);
    process.clock_offset_ms = moments.offset_ms;

    let modules = sent.modules.iter().map(module_of).collect::<Result<Vec<_>, _>>()?;
    let mut stacks = Vec::with_capacity(sent.stacks.ends.len());
    for (number, frames) in sent.stacks.iter().enumerate() {
        stacks.push(stack_of(number, frames, &modules)?);
    }
    let mut samples = Vec::with_capacity(sent.samples.len());
    for (number, row) in sent.samples.iter().enumerate() {
        let stack: &Stack = stacks.get(row.stack as usize).ok_or_else(|| {
            Refusal::wrong(format!("samples[{number}]: stack {}, and there are {}", row.stack, stacks.len()))
        })?;
        if row.counters.iter().chain(&row.variance).any(|&count| count < 0) {
            return Err(Refusal::wrong(format!("samples[{number}]: a counter is below 0")));
        }
        samples.push(sample_of(row, stack.id(), moments.end_ms, sent.slice.length));
    }
    let frames = frames_of(&sent, &modules, &stacks)?;
    let mut rows: BTreeMap<ModuleId, Module> = BTreeMap::new();
    let named: BTreeSet<&ModuleId> =
        frames.iter().filter(|frame| !frame.lines.is_empty()).map(|frame| &frame.place.0).collect();
    for module in &modules {
        let has_names = named.contains(&module.id);
        rows.entry(module.id.clone()).or_insert_with(|| Module { has_names, ..module.clone() });
    }
    stacks.sort_unstable_by_key(Stack::id);
    stacks.dedup_by_key(|stack| stack.id());
    Ok(Block {
        // Names of processes, of files, and of maintenance never meet.
        sender: format!("process:{}", sent.sender),
        number: sent.number,
        content,
        process,
        samples,
        stacks,
        shapes: Vec::new(),
        frames,
        modules: rows.into_values().collect(),
    })
}

fn at_most(what: &str, found: usize, most: usize) -> Result<(), Refusal> {
    if found > most { Err(Refusal::too_large(what, found as u64, most as u64)) } else { Ok(()) }
}

fn process_of(sent: &Sent) -> Result<Process, Refusal> {
    let SentProcess { service, version, host, build_id, command, labels, started, .. } = &sent.process;
    let SentProcess { ended, sample_bytes, remarks, .. } = &sent.process;
    if service.is_empty() {
        return Err(Refusal::wrong("process.service: a process is of a service; give its name"));
    }
    for (what, text) in [("process.service", service), ("process.version", version), ("process.host", host)] {
        labels::check_text(what, text, MOST_TEXT_BYTES)?;
    }
    labels::check_length("process.command", command, MOST_COMMAND_BYTES)?;
    labels::check_length("process.remarks", remarks, MOST_COMMAND_BYTES)?;
    labels::check(labels)?;
    Ok(Process {
        id: Id::of_content([&b"process"[..], sent.sender.as_bytes()]),
        service: service.clone(),
        version: version.clone(),
        host: host.clone(),
        build_id: build_id_of("process.build_id", build_id)?,
        command: command.clone(),
        labels: labels.clone(),
        started_ms: *started,
        ended_ms: *ended,
        source: "block".to_owned(),
        clock_offset_ms: 0,
        sample_bytes: sample_bytes.filter(|&bytes| bytes > 0),
        remarks: remarks.clone(),
    })
}

fn build_id_of(what: &str, text: &str) -> Result<Vec<u8>, Refusal> {
    at_most(what, text.len() / 2, MOST_BUILD_ID_BYTES)?;
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let build_id = BuildId::from_hex(text);
    let build_id = build_id.ok_or_else(|| Refusal::wrong(format!("{what}: not hexadecimal")))?;
    Ok(build_id.bytes().to_vec())
}

fn module_of(sent: &SentModule) -> Result<Module, Refusal> {
    labels::check_text("modules.path", &sent.path, MOST_TEXT_BYTES)?;
    let build_id = build_id_of("modules.build_id", &sent.build_id)?;
    Ok(Module {
        has_build_id: !build_id.is_empty(),
        id: ModuleId::of(&build_id, &sent.path),
        path: sent.path.clone(),
        has_names: false,
    })
}

fn stack_of(number: usize, frames: &[(u32, i64)], modules: &[Module]) -> Result<Stack, Refusal> {
    at_most("frames of a stack", frames.len(), MOST_FRAMES)?;
    let mut places = Vec::with_capacity(frames.len());
    for &(module, offset) in frames {
        let known = modules.get(module as usize).ok_or_else(|| {
            Refusal::wrong(format!("stacks[{number}]: module {module}, and there are {}", modules.len()))
        })?;
        places.push((known.id.clone(), offset));
    }
    Ok(Stack::new(places, None))
}

fn sample_of(row: &Row, stack: Id, end_ms: i64, slice_ms: i64) -> Sample {
    let [
        live_bytes,
        live_blocks,
        alloc_bytes,
        alloc_blocks,
        freed_bytes,
        freed_blocks,
        temporary,
        peak_bytes,
        peak_blocks,
    ] = row.counters;
    Sample {
        end_ms,
        slice_ms,
        stack,
        live_bytes,
        live_blocks,
        alloc_bytes,
        alloc_blocks,
        freed_bytes,
        freed_blocks,
        temporary,
        peak_bytes,
        peak_blocks,
        variance: row.variance,
    }
}

/// The names that the sender has for places of its stacks.
fn frames_of(sent: &Sent, modules: &[Module], stacks: &[Stack]) -> Result<Vec<Frame>, Refusal> {
    if sent.names.is_empty() {
        return Ok(Vec::new());
    }
    let places: HashSet<&Place> = stacks.iter().flat_map(Stack::frames).collect();
    let mut frames: BTreeMap<Place, Vec<Line>> = BTreeMap::new();
    for (number, named) in sent.names.iter().enumerate() {
        let absent = || Refusal::wrong(format!("names[{number}]: no stack has this place"));
        let module = modules.get(named.module as usize).ok_or_else(absent)?;
        let place = (module.id.clone(), named.offset);
        if !places.contains(&place) {
            return Err(absent());
        }
        at_most("lines of a place", named.lines.len(), MOST_LINES)?;
        frames.insert(place, named.lines.iter().map(line_of).collect::<Result<_, _>>()?);
    }
    Ok(frames.into_iter().map(|(place, lines)| Frame { place, lines }).collect())
}

fn line_of(sent: &SentLine) -> Result<Line, Refusal> {
    for text in [&sent.function, &sent.file].into_iter().flatten() {
        labels::check_length("names.lines", text, labels::MOST_NAME_BYTES)?;
    }
    Ok(Line {
        function: sent.function.clone(),
        file: sent.file.clone(),
        line: sent.line,
        is_inlined: sent.inlined,
    })
}
