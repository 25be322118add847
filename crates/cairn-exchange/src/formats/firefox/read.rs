//! Imports a heap from a processed profile.
//!
//! The file is parsed as a stream, and only the columns of a heap are stored, as numbers, so false
//! sizes in a hostile file cost no memory. The heap comes from the first of these that is present:
//!
//! | | frees |
//! |---|---|
//! | `nativeAllocations` with addresses of blocks | known, also from other threads of the process |
//! | `nativeAllocations` without addresses | unknown which block was freed: only allocations count |
//! | `jsAllocations` | not recorded |
//! | `samples` whose weights are bytes | not recorded |

use std::collections::HashMap;
use std::fmt;
use std::io::{self, BufReader, Read};
use std::sync::Arc;

use cairn_analysis::heap::ThreadName;
use serde::de::{DeserializeSeed, Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::FORMAT;
use crate::error::ExchangeError;
use crate::inflate::{Budget, Limits, Unpacked};
use crate::model::changes::{BLOCK_BYTES, Change, Changes};
use crate::model::profile::{Function, Line, Location, Module, Profile, Stack};

/// Newest known version. Later ones may move their tables, as versions before have, and would be
/// misread.
const NEWEST_VERSION: u64 = 75;
/// Maximum bytes of memory per byte of input: `0,` becomes a number of 8 bytes.
const BYTES_PER_BYTE: usize = 4;
/// Bytes per table entry, in all its forms; an upper bound, so that the budget is valid.
const ENTRY_BYTES: usize = 192;
/// Maximum threads; 65536, because large systems run ten thousand.
///
/// An empty thread takes three bytes of a file but much more memory.
const MOST_THREADS: usize = 1 << 16;
/// Maximum time; thirty years. A later one is invalid.
const MOST_NANOS: f64 = 30.0 * 366.0 * 86_400.0 * 1e9;
const NANOS_PER_MILLISECOND: f64 = 1e6;
/// Marks the tables shared by all threads; above all thread indices.
const SHARED: u32 = u32::MAX;

/// Detects the first bytes of a profile: writers emit `meta` first.
pub(crate) fn begins(bytes: &[u8]) -> bool {
    let Some((b'{', rest)) = bytes.trim_ascii_start().split_first() else { return false };
    let version: &[u8] = b"\"preprocessedProfileVersion\"";
    rest.trim_ascii_start().starts_with(b"\"meta\"")
        || bytes.windows(version.len()).any(|window| window == version)
}

/// The heap of a profile.
#[derive(Debug)]
pub(crate) struct FirefoxImport {
    /// Names and stacks.
    pub(crate) profile: Profile,
    /// All threads, by number.
    pub(crate) threads: Vec<ThreadName>,
    /// Sentences about missing data.
    pub(crate) notes: Vec<String>,
    pub(crate) changes: Changes,
}

/// Parses a profile.
pub(crate) fn read(input: impl Read, limits: Limits) -> Result<FirefoxImport, ExchangeError> {
    let unpacked = Unpacked::new(FORMAT, input, limits)?;
    let budget = unpacked.budget();
    let mut source = Charged { unpacked, budget, failed: None };
    let file = parse(&mut source);
    if let Some(failed) = source.failed {
        return Err(failed);
    }
    let file = file.map_err(|error| {
        let place = format!("line {}, column {}", error.line(), error.column());
        let text = error.to_string();
        // The text repeats the position at its end.
        let problem = text.split(" at line ").next().unwrap_or_default().to_owned();
        ExchangeError::Malformed { format: FORMAT, place, problem }
    })?;
    let Some(version) = file.meta.version else {
        let problem = "it has no preprocessedProfileVersion; is it a raw profile of Gecko? Load that into profiler.firefox.com, and save it there";
        return Err(bad("meta".to_owned(), problem));
    };
    if version > NEWEST_VERSION {
        let problem =
            format!("version {version} of the format; the newest supported version is {NEWEST_VERSION}");
        return Err(bad("meta.preprocessedProfileVersion".to_owned(), problem));
    }
    heap(file, &mut source.budget)
}

fn parse(source: &mut Charged<'_>) -> Result<ProcessedProfile, serde_json::Error> {
    let mut json = serde_json::Deserializer::from_reader(BufReader::with_capacity(1 << 16, source));
    let file = ProcessedProfile::deserialize(&mut json)?;
    json.end()?;
    Ok(file)
}

fn bad(place: String, problem: impl Into<String>) -> ExchangeError {
    ExchangeError::Malformed { format: FORMAT, place, problem: problem.into() }
}

/// Counts the bytes that are charged to the budget as they are read.
struct Charged<'r> {
    unpacked: Unpacked<'r>,
    budget: Budget,
    failed: Option<ExchangeError>,
}

impl Read for &mut Charged<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let outcome = self.unpacked.chunk().map(|chunk| {
            let length = chunk.len().min(buffer.len());
            buffer[..length].copy_from_slice(&chunk[..length]);
            length
        });
        let outcome = outcome.and_then(|length| {
            self.unpacked.consume(length)?;
            self.budget.keep(length.saturating_mul(BYTES_PER_BYTE)).map(|()| length)
        });
        outcome.map_err(|error| {
            self.failed = Some(error);
            io::Error::other("see the stored error")
        })
    }
}

/// The file, without data that no heap has.
#[derive(Deserialize, Default)]
#[serde(default)]
struct ProcessedProfile {
    meta: Meta,
    shared: Thread,
    threads: Threads,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Meta {
    #[serde(rename = "preprocessedProfileVersion")]
    version: Option<u64>,
    #[serde(rename = "startTime")]
    start_milliseconds: Option<f64>,
    product: Option<String>,
}

/// A thread with its tables, or the shared tables, which have the same names.
#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Thread {
    name: Option<String>,
    pid: Id,
    tid: Id,
    samples: Option<Weights>,
    native_allocations: Option<Weights>,
    js_allocations: Option<Weights>,
    string_array: TextColumn,
    stack_table: StackTable,
    frame_table: FrameTable,
    func_table: FuncTable,
    resource_table: ResourceTable,
    sources: SourceTable,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct StackTable {
    frame: NumberColumn,
    prefix: NumberColumn,
    /// In newer versions, the distance back to the caller; 0 if there is none.
    #[serde(rename = "prefixOffset")]
    prefix_offset: NumberColumn,
}

impl StackTable {
    /// Returns the caller of a stack; an error if it is impossible.
    fn caller(&self, stack: usize) -> Result<Option<usize>, ()> {
        let caller = match self.prefix_offset.index(stack) {
            None => self.prefix.index(stack),
            Some(0) => None,
            Some(offset) => Some(stack.checked_sub(offset).ok_or(())?),
        };
        if caller.is_some_and(|caller| caller >= stack) { Err(()) } else { Ok(caller) }
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct FrameTable {
    func: NumberColumn,
    line: NumberColumn,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct FuncTable {
    name: NumberColumn,
    resource: NumberColumn,
    #[serde(rename = "fileName")]
    file_name: NumberColumn,
    /// In newer versions, the file is an entry of a table.
    source: NumberColumn,
    /// In the newest versions, bits that state which columns are set.
    flags: NumberColumn,
}

impl FuncTable {
    fn has(&self, function: usize, bit: usize) -> bool {
        self.flags.index(function).is_none_or(|flags| flags & bit > 0)
    }

    fn resource(&self, function: usize) -> Option<usize> {
        self.resource.index(function).filter(|_| self.has(function, HAS_RESOURCE))
    }

    fn source(&self, function: usize) -> Option<usize> {
        self.source.index(function).filter(|_| self.has(function, HAS_SOURCE))
    }
}

const HAS_RESOURCE: usize = 4;
const HAS_SOURCE: usize = 8;

#[derive(Deserialize, Default)]
#[serde(default)]
struct ResourceTable {
    name: NumberColumn,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct SourceTable {
    filename: NumberColumn,
}

/// Samples or allocations.
#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Weights {
    stack: NumberColumn,
    weight: Option<NumberColumn>,
    weight_type: Option<String>,
    time: Option<NumberColumn>,
    time_deltas: Option<NumberColumn>,
    memory_address: Option<NumberColumn>,
}

impl Weights {
    fn has_bytes(&self) -> bool {
        self.weight.is_some() && self.weight_type.as_deref() == Some("bytes")
    }
}

/// A column of numbers, with `null` as NaN.
#[derive(Default)]
struct NumberColumn(Vec<f64>);

impl NumberColumn {
    fn at(&self, index: usize) -> Option<f64> {
        self.0.get(index).copied().filter(|number| !number.is_nan())
    }

    /// Returns an index into a table; `None` for negative values, as in older versions.
    fn index(&self, index: usize) -> Option<usize> {
        self.at(index).filter(|&number| number >= 0.0).map(|number| number as usize)
    }
}

impl<'de> Deserialize<'de> for NumberColumn {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Cells;

        impl<'de> Visitor<'de> for Cells {
            type Value = Vec<f64>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of numbers")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
                let mut cells = Vec::new();
                while let Some(cell) = list.next_element::<Option<f64>>()? {
                    cells.push(cell.unwrap_or(f64::NAN));
                }
                Ok(cells)
            }

            fn visit_unit<E>(self) -> Result<Self::Value, E> {
                Ok(Vec::new())
            }
        }

        deserializer.deserialize_any(Cells).map(Self)
    }
}

/// A list of texts, concatenated.
#[derive(Default)]
struct TextColumn {
    text: String,
    ends: Vec<usize>,
}

impl TextColumn {
    fn at(&self, index: usize) -> Option<&str> {
        let start = index.checked_sub(1).map_or(Some(0), |before| self.ends.get(before).copied())?;
        self.text.get(start..*self.ends.get(index)?)
    }
}

impl<'de> Deserialize<'de> for TextColumn {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextListVisitor;

        impl<'de> Visitor<'de> for TextListVisitor {
            type Value = TextColumn;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of texts")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
                let mut texts = TextColumn::default();
                while list.next_element_seed(Next(&mut texts))?.is_some() {}
                Ok(texts)
            }
        }

        struct Next<'t>(&'t mut TextColumn);

        impl<'de> DeserializeSeed<'de> for Next<'_> {
            type Value = ();

            fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
                deserializer.deserialize_str(self)
            }
        }

        impl Visitor<'_> for Next<'_> {
            type Value = ();

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text")
            }

            fn visit_str<E>(self, text: &str) -> Result<(), E> {
                self.0.text.push_str(text);
                self.0.ends.push(self.0.text.len());
                Ok(())
            }
        }

        deserializer.deserialize_seq(TextListVisitor)
    }
}

/// The id of a process or thread, which newer versions store as text.
#[derive(Default)]
struct Id(String);

impl Id {
    fn number(&self) -> u32 {
        self.0.split('.').next().and_then(|digits| digits.parse().ok()).unwrap_or(0)
    }
}

impl<'de> Deserialize<'de> for Id {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Word;

        impl Visitor<'_> for Word {
            type Value = String;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number or a text")
            }

            fn visit_u64<E>(self, number: u64) -> Result<String, E> {
                Ok(number.to_string())
            }

            fn visit_i64<E>(self, number: i64) -> Result<String, E> {
                Ok(number.to_string())
            }

            fn visit_f64<E>(self, number: f64) -> Result<String, E> {
                Ok(number.to_string())
            }

            fn visit_str<E>(self, text: &str) -> Result<String, E> {
                Ok(text.to_owned())
            }

            fn visit_unit<E>(self) -> Result<String, E> {
                Ok(String::new())
            }
        }

        deserializer.deserialize_any(Word).map(Self)
    }
}

/// The threads, up to the maximum.
#[derive(Default)]
struct Threads(Vec<Thread>);

impl<'de> Deserialize<'de> for Threads {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ThreadListVisitor;

        impl<'de> Visitor<'de> for ThreadListVisitor {
            type Value = Vec<Thread>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of threads")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
                let mut threads = Vec::new();
                while let Some(thread) = list.next_element()? {
                    if threads.len() >= MOST_THREADS {
                        return Err(A::Error::custom(format_args!("more than {MOST_THREADS} threads")));
                    }
                    threads.push(thread);
                }
                Ok(threads)
            }
        }

        deserializer.deserialize_seq(ThreadListVisitor).map(Self)
    }
}

/// The list of a thread that describes its heap.
#[derive(Clone, Copy, PartialEq, Eq)]
enum HeapList {
    Native,
    Js,
    Samples,
}

impl HeapList {
    const fn name(self) -> &'static str {
        match self {
            Self::Native => "nativeAllocations",
            Self::Js => "jsAllocations",
            Self::Samples => "samples",
        }
    }

    fn of(self, thread: &mut Thread) -> Option<Weights> {
        match self {
            Self::Native => thread.native_allocations.take(),
            Self::Js => thread.js_allocations.take(),
            Self::Samples => thread.samples.take().filter(Weights::has_bytes),
        }
    }
}

fn heap(file: ProcessedProfile, budget: &mut Budget) -> Result<FirefoxImport, ExchangeError> {
    let ProcessedProfile { meta, shared, threads: Threads(mut threads) } = file;
    let heap_list = if threads.iter().any(|thread| thread.native_allocations.is_some()) {
        HeapList::Native
    } else if threads.iter().any(|thread| thread.js_allocations.is_some()) {
        HeapList::Js
    } else if threads.iter().any(|thread| thread.samples.as_ref().is_some_and(Weights::has_bytes)) {
        HeapList::Samples
    } else {
        let counts = "time samples or markers; a heap needs nativeAllocations or jsAllocations";
        return Err(ExchangeError::NoHeap { format: FORMAT, counts: counts.to_owned() });
    };
    let mut builder = ProfileAssembly::default();
    let milliseconds = meta.start_milliseconds.unwrap_or(0.0);
    builder.profile.started_wall_nanos = (milliseconds * NANOS_PER_MILLISECOND) as u64;
    builder.profile.title = meta.product.unwrap_or_default();
    let mut recorded_threads = Vec::new();
    let mut processes: HashMap<String, u32> = HashMap::new();
    let mut has_frees = heap_list == HeapList::Native;
    for (index, thread) in threads.iter_mut().enumerate() {
        let changes = heap_list.of(thread);
        let next = processes.len() as u32;
        let process = *processes.entry(std::mem::take(&mut thread.pid.0)).or_insert(next);
        recorded_threads.push(ThreadName {
            number: index as u32,
            kernel_thread: thread.tid.number(),
            name: thread.name.take().unwrap_or_default(),
            earlier_names: Vec::new(),
        });
        let Some(changes) = changes else { continue };
        has_frees &= changes.memory_address.is_some();
        let mut tables = ThreadReader { thread, shared: &shared, index, stacks: HashMap::new() };
        builder.changes(&changes, heap_list, process, &mut tables, budget)?;
    }
    if let Some((pid, _)) = processes.iter().find(|(_, index)| **index == 0) {
        builder.profile.process = Id(pid.clone()).number();
    }
    let ProfileAssembly { mut profile, mut list, .. } = builder;
    // Threads have separate lists; the sort is stable, so simultaneous events stay in file order.
    list.sort_by_key(|change| change.nanos);
    let end_nanos = list.last().map_or(0, |change| change.nanos);
    profile.duration_nanos = end_nanos;
    let mut notes = Vec::new();
    if !has_frees {
        notes.push(format!(
            "{} of this file have no frees of identified blocks: allocations are known, but not the memory in use",
            heap_list.name()
        ));
    }
    Ok(FirefoxImport {
        profile,
        threads: recorded_threads,
        notes,
        changes: Changes { list, has_frees, end_nanos },
    })
}

/// A thread's tables during parsing.
struct ThreadReader<'f> {
    thread: &'f Thread,
    shared: &'f Thread,
    index: usize,
    /// Stacks by the file's number: 0 is without frames, `n + 1` is the profile's stack `n`.
    stacks: HashMap<usize, u32>,
}

impl<'f> ThreadReader<'f> {
    /// Returns the thread's own table or else the shared one, and which of them, for errors.
    fn table<T>(&self, of: impl Fn(&'f Thread) -> &'f T, length: impl Fn(&T) -> usize) -> (&'f T, bool) {
        let own = of(self.thread);
        if length(own) > 0 { (own, true) } else { (of(self.shared), false) }
    }

    fn place(&self, is_own: bool, what: &str, index: usize) -> String {
        if is_own {
            format!("threads[{}].{what}[{index}]", self.index)
        } else {
            format!("shared.{what}[{index}]")
        }
    }

    /// Returns a text, and its key.
    fn text(&self, index: Option<usize>) -> Option<(&'f str, (u32, usize))> {
        let (texts, is_own) = self.table(|thread| &thread.string_array, |texts| texts.ends.len());
        let text = texts.at(index?).filter(|text| !text.is_empty())?;
        Some((text, (if is_own { self.index as u32 } else { SHARED }, index?)))
    }
}

#[derive(Default)]
struct ProfileAssembly {
    profile: Profile,
    /// Function numbers by thread (or [`SHARED`]) and index of the text. Each text is hashed once,
    /// however often it is referenced, because texts may be long.
    texts: HashMap<(u32, usize), u32>,
    text_numbers: HashMap<Arc<str>, u32>,
    retained_texts: Vec<Arc<str>>,
    functions: HashMap<(u32, Option<u32>), u32>,
    modules: HashMap<u32, u32>,
    locations: HashMap<(Line, Option<u32>), u32>,
    stacks: HashMap<Stack, u32>,
    list: Vec<Change>,
}

impl ProfileAssembly {
    fn changes(
        &mut self,
        changes: &Weights,
        heap_list: HeapList,
        process: u32,
        tables: &mut ThreadReader<'_>,
        budget: &mut Budget,
    ) -> Result<(), ExchangeError> {
        let of_thread = tables.index;
        let place = |column: &str, index: usize| {
            format!("threads[{of_thread}].{}.{column}[{index}]", heap_list.name())
        };
        let Some(weights) = &changes.weight else {
            return Err(bad(
                format!("threads[{}].{}", tables.index, heap_list.name()),
                "allocations without weights",
            ));
        };
        let mut passed = 0.0;
        let thread = tables.index as u32;
        for index in 0..weights.0.len() {
            if let Some(delta) = changes.time_deltas.as_ref().and_then(|deltas| deltas.at(index)) {
                passed += delta;
            }
            let milliseconds = changes.time.as_ref().and_then(|times| times.at(index)).unwrap_or(passed);
            let nanos = (milliseconds * NANOS_PER_MILLISECOND).round();
            if nanos > MOST_NANOS {
                return Err(bad(place("time", index), format!("{milliseconds} milliseconds are no time")));
            }
            // In a list of samples, most may have no allocation.
            let Some(weight) = weights.at(index) else { continue };
            if weight.abs() > (1_u64 << 62) as f64 {
                return Err(bad(place("weight", index), format!("{weight} bytes are no size")));
            }
            let address = changes.memory_address.as_ref().and_then(|addresses| addresses.at(index));
            let stack = match changes.stack.index(index) {
                Some(stack) => self.stack(stack, tables, budget)?,
                None => 0,
            };
            budget.keep(size_of::<Change>().saturating_add(BLOCK_BYTES))?;
            self.list.push(Change {
                nanos: nanos.max(0.0) as u64,
                stack,
                thread,
                process,
                bytes: weight as i64,
                address: address.map_or(0, f64::to_bits),
            });
        }
        Ok(())
    }

    /// Returns the profile's stack for a number in the file.
    fn stack(
        &mut self,
        number: usize,
        tables: &mut ThreadReader<'_>,
        budget: &mut Budget,
    ) -> Result<u32, ExchangeError> {
        let (table, is_own) = tables.table(|thread| &thread.stack_table, |table| table.frame.0.len());
        // Walk outwards to the first known stack, and back.
        let mut open = Vec::new();
        let mut next = Some(number);
        let mut caller = None;
        while let Some(stack) = next {
            if let Some(&known) = tables.stacks.get(&stack) {
                caller = Some(known);
                break;
            }
            if stack >= table.frame.0.len() {
                let problem = format!("stack {stack}, where there are {}", table.frame.0.len());
                return Err(bad(tables.place(is_own, "stackTable.prefix", stack), problem));
            }
            next = table.caller(stack).map_err(|()| {
                let problem = "a caller that does not precede its callee";
                bad(tables.place(is_own, "stackTable.prefix", stack), problem)
            })?;
            open.push(stack);
        }
        let mut caller = caller.unwrap_or(0);
        for stack in open.into_iter().rev() {
            let Some(frame) = table.frame.index(stack) else {
                return Err(bad(tables.place(is_own, "stackTable.frame", stack), "a stack without a frame"));
            };
            let location = self.location(frame, tables, budget)?;
            let key = Stack { caller: caller.checked_sub(1), location };
            let next = self.profile.stacks.len() as u32;
            let index = *self.stacks.entry(key).or_insert(next);
            if index == next {
                budget.keep(ENTRY_BYTES)?;
                self.profile.stacks.push(key);
            }
            caller = index + 1;
            budget.keep(ENTRY_BYTES / 4)?;
            tables.stacks.insert(stack, caller);
        }
        Ok(caller)
    }

    fn location(
        &mut self,
        frame: usize,
        tables: &ThreadReader<'_>,
        budget: &mut Budget,
    ) -> Result<u32, ExchangeError> {
        let (frames, is_own) = tables.table(|thread| &thread.frame_table, |table| table.func.0.len());
        let (functions, own_functions) =
            tables.table(|thread| &thread.func_table, |table| table.name.0.len());
        let Some(func) = frames.func.index(frame) else {
            let problem = format!("no function for frame {frame}, where there are {}", frames.func.0.len());
            return Err(bad(tables.place(is_own, "frameTable.func", frame), problem));
        };
        if func >= functions.name.0.len() {
            let problem = format!("no name for function {func}, where there are {}", functions.name.0.len());
            return Err(bad(tables.place(own_functions, "funcTable.name", func), problem));
        }
        let (sources, _) = tables.table(|thread| &thread.sources, |table| table.filename.0.len());
        let file =
            functions.file_name.index(func).or_else(|| sources.filename.index(functions.source(func)?));
        let (resources, _) = tables.table(|thread| &thread.resource_table, |table| table.name.0.len());
        let module = functions.resource(func).and_then(|resource| resources.name.index(resource));
        let name = self.text(tables.text(functions.name.index(func)), budget)?;
        let file = self.text(tables.text(file), budget)?;
        let module = self.text(tables.text(module), budget)?;
        let module = module.map(|name| self.module(name, budget)).transpose()?;
        let function = self.function(name, file, budget)?;
        let line = frames.line.index(frame).and_then(|line| u32::try_from(line).ok()).unwrap_or(0);
        let line = Line { function, line };
        let next = self.profile.locations.len() as u32;
        let location = *self.locations.entry((line, module)).or_insert(next);
        if location == next {
            budget.keep(ENTRY_BYTES)?;
            self.profile.locations.push(Location { address: 0, module, lines: vec![line] });
        }
        Ok(location)
    }

    fn function(
        &mut self,
        name: Option<u32>,
        file: Option<u32>,
        budget: &mut Budget,
    ) -> Result<u32, ExchangeError> {
        let next = self.profile.functions.len() as u32;
        let index = *self.functions.entry((name.map_or(0, |name| name + 1), file)).or_insert(next);
        if index == next {
            budget.keep(ENTRY_BYTES)?;
            let text = |number: u32| Arc::clone(&self.retained_texts[number as usize]);
            let name = name.map_or_else(|| "?".into(), text);
            self.profile.functions.push(Function { name, file: file.map(text) });
        }
        Ok(index)
    }

    /// Returns the number of a text; equal texts have one number.
    fn text(
        &mut self,
        text: Option<(&str, (u32, usize))>,
        budget: &mut Budget,
    ) -> Result<Option<u32>, ExchangeError> {
        let Some((text, place)) = text else { return Ok(None) };
        if let Some(&known) = self.texts.get(&place) {
            return Ok(Some(known));
        }
        budget.keep(text.len().saturating_add(ENTRY_BYTES))?;
        let next = self.retained_texts.len() as u32;
        let number = match self.text_numbers.get(text) {
            Some(&known) => known,
            None => {
                let retained: Arc<str> = text.into();
                self.text_numbers.insert(Arc::clone(&retained), next);
                self.retained_texts.push(retained);
                next
            }
        };
        self.texts.insert(place, number);
        Ok(Some(number))
    }

    fn module(&mut self, name: u32, budget: &mut Budget) -> Result<u32, ExchangeError> {
        let next = self.profile.modules.len() as u32;
        let index = *self.modules.entry(name).or_insert(next);
        if index == next {
            budget.keep(ENTRY_BYTES)?;
            let path = Arc::clone(&self.retained_texts[name as usize]);
            self.profile.modules.push(Module { path, ..Module::default() });
        }
        Ok(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unpacking_without_end_stops_at_the_limit() {
        let lists = [
            ("\"threads\":[", "{},", "{}]"),
            ("\"threads\":[{\"stringArray\":[", "\"\",", "\"\"]}]"),
            ("\"threads\":[{\"nativeAllocations\":{\"weight\":[", "1,", "1]}}]"),
            ("\"threads\":[{\"stackTable\":{\"frame\":[", "0,", "0]}}]"),
        ];
        for (start, middle, end) in lists {
            let text = format!(
                "{{\"meta\":{{\"preprocessedProfileVersion\":1}},{start}{}{end}}}",
                middle.repeat(1 << 20)
            );
            let packed = zstd::encode_all(text.as_bytes(), 1).unwrap();
            let error = read(&packed[..], Limits::default()).unwrap_err();
            let is_bounded = match &error {
                ExchangeError::TooLarge { format, .. } => *format == FORMAT,
                ExchangeError::Malformed { problem, .. } => problem.contains("threads"),
                _ => false,
            };
            assert!(is_bounded, "{middle}: {error}");
        }
    }
}
