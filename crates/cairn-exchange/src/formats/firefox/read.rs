//! From a processed profile to a heap.
//!
//! The file is read as a stream, and of it only the columns that a heap has are kept, as numbers: what a hostile one says of its sizes costs no memory.
//! What it holds of a heap is one of these, the first that is there:
//!
//! | | frees |
//! |---|---|
//! | `nativeAllocations` with addresses of blocks | known, also from other threads of the process |
//! | `nativeAllocations` without addresses | not known which block was freed: only allocations count |
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
use crate::model::changes::{Change, Changes, SEGMENT_BYTES};
use crate::model::profile::{Function, Line, Location, Module, Profile, Stack};

/// Later ones may have their tables elsewhere, as some versions before had: read as these are, they would be wrong.
const NEWEST_VERSION: u64 = 75;
/// What a byte of the file can become: `0,` is a number of 8 bytes.
const BYTES_PER_BYTE: usize = 4;
/// What an entry of a table takes here, in all its forms: more than it can take, so that a budget holds.
const ENTRY_BYTES: usize = 192;
/// The largest systems run some ten thousand; an empty one takes three bytes of a file, and much more here.
const MOST_THREADS: usize = 1 << 16;
/// Thirty years: what is said to be later is no time.
const MOST_NANOS: f64 = 30.0 * 366.0 * 86_400.0 * 1e9;
const NANOS_PER_MILLISECOND: f64 = 1e6;
/// Stands for the tables that all threads share; threads are fewer.
const SHARED: u32 = u32::MAX;

/// True for bytes that a profile can begin with: writers have `meta` first.
pub(crate) fn begins(bytes: &[u8]) -> bool {
    let Some((b'{', rest)) = bytes.trim_ascii_start().split_first() else { return false };
    let version: &[u8] = b"\"preprocessedProfileVersion\"";
    rest.trim_ascii_start().starts_with(b"\"meta\"")
        || bytes.windows(version.len()).any(|window| window == version)
}

/// The heap of a profile.
#[derive(Debug)]
pub(crate) struct Recorded {
    /// Names and stacks.
    pub(crate) profile: Profile,
    /// All threads, by their number.
    pub(crate) threads: Vec<ThreadName>,
    /// What is not in the file: a sentence each.
    pub(crate) notes: Vec<String>,
    pub(crate) changes: Changes,
}

/// Reads a profile.
pub(crate) fn read(input: impl Read, limits: Limits) -> Result<Recorded, ExchangeError> {
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
        // The place stands at the end of the text as well.
        let problem = text.split(" at line ").next().unwrap_or_default().to_owned();
        ExchangeError::Malformed { format: FORMAT, place, problem }
    })?;
    let Some(version) = file.meta.version else {
        let problem = "it has no preprocessedProfileVersion; is it a raw profile of Gecko? Load that into profiler.firefox.com, and save it there";
        return Err(bad("meta".to_owned(), problem));
    };
    if version > NEWEST_VERSION {
        let problem = format!(
            "version {version} of the format, of which {NEWEST_VERSION} is the newest that is known here"
        );
        return Err(bad("meta.preprocessedProfileVersion".to_owned(), problem));
    }
    heap(file, &mut source.budget)
}

fn parse(source: &mut Charged<'_>) -> Result<File, serde_json::Error> {
    let mut json = serde_json::Deserializer::from_reader(BufReader::with_capacity(1 << 16, source));
    let file = File::deserialize(&mut json)?;
    json.end()?;
    Ok(file)
}

fn bad(place: String, problem: impl Into<String>) -> ExchangeError {
    ExchangeError::Malformed { format: FORMAT, place, problem: problem.into() }
}

/// Bytes that are noted as kept when they are read.
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
            io::Error::other("see the error that is kept")
        })
    }
}

/// The file, without what no heap has.
#[derive(Deserialize, Default)]
#[serde(default)]
struct File {
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

/// A thread with its tables; or the tables that all threads share, which stand in the same words.
#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Thread {
    name: Option<String>,
    pid: Id,
    tid: Id,
    samples: Option<Weights>,
    native_allocations: Option<Weights>,
    js_allocations: Option<Weights>,
    string_array: Texts,
    stack_table: StackTable,
    frame_table: FrameTable,
    func_table: FuncTable,
    resource_table: ResourceTable,
    sources: SourceTable,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct StackTable {
    frame: Column,
    prefix: Column,
    /// In newer versions, how far in front of the stack its caller stands; 0 where it has none.
    #[serde(rename = "prefixOffset")]
    prefix_offset: Column,
}

impl StackTable {
    /// The caller of a stack; nothing where that cannot be.
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
    func: Column,
    line: Column,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct FuncTable {
    name: Column,
    resource: Column,
    #[serde(rename = "fileName")]
    file_name: Column,
    /// In newer versions the file is an entry of a table.
    source: Column,
    /// And in yet newer ones bits say which of the columns have something.
    flags: Column,
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
    name: Column,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct SourceTable {
    filename: Column,
}

/// Samples, or allocations.
#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Weights {
    stack: Column,
    weight: Option<Column>,
    weight_type: Option<String>,
    time: Option<Column>,
    time_deltas: Option<Column>,
    memory_address: Option<Column>,
}

impl Weights {
    fn has_bytes(&self) -> bool {
        self.weight.is_some() && self.weight_type.as_deref() == Some("bytes")
    }
}

/// A column of numbers; what is `null` there is none here.
#[derive(Default)]
struct Column(Vec<f64>);

impl Column {
    fn at(&self, index: usize) -> Option<f64> {
        self.0.get(index).copied().filter(|number| !number.is_nan())
    }

    /// An index into a table; what is below 0, as in older versions, is none.
    fn index(&self, index: usize) -> Option<usize> {
        self.at(index).filter(|&number| number >= 0.0).map(|number| number as usize)
    }
}

impl<'de> Deserialize<'de> for Column {
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

/// A list of texts, end to end.
#[derive(Default)]
struct Texts {
    text: String,
    ends: Vec<usize>,
}

impl Texts {
    fn at(&self, index: usize) -> Option<&str> {
        let start = index.checked_sub(1).map_or(Some(0), |before| self.ends.get(before).copied())?;
        self.text.get(start..*self.ends.get(index)?)
    }
}

impl<'de> Deserialize<'de> for Texts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List;

        impl<'de> Visitor<'de> for List {
            type Value = Texts;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of texts")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
                let mut texts = Texts::default();
                while list.next_element_seed(Next(&mut texts))?.is_some() {}
                Ok(texts)
            }
        }

        struct Next<'t>(&'t mut Texts);

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

        deserializer.deserialize_seq(List)
    }
}

/// The number of a process or thread, which newer versions have as text.
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

/// The threads, of which there are not too many.
#[derive(Default)]
struct Threads(Vec<Thread>);

impl<'de> Deserialize<'de> for Threads {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List;

        impl<'de> Visitor<'de> for List {
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

        deserializer.deserialize_seq(List).map(Self)
    }
}

/// Which of the lists of a thread tell of its heap.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tells {
    Native,
    Js,
    Samples,
}

impl Tells {
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

fn heap(file: File, budget: &mut Budget) -> Result<Recorded, ExchangeError> {
    let File { meta, shared, threads: Threads(mut threads) } = file;
    let tells = if threads.iter().any(|thread| thread.native_allocations.is_some()) {
        Tells::Native
    } else if threads.iter().any(|thread| thread.js_allocations.is_some()) {
        Tells::Js
    } else if threads.iter().any(|thread| thread.samples.as_ref().is_some_and(Weights::has_bytes)) {
        Tells::Samples
    } else {
        let counts = "samples of where time went, or marks; nativeAllocations and jsAllocations are what a heap is made of";
        return Err(ExchangeError::NoHeap { format: FORMAT, counts: counts.to_owned() });
    };
    let mut builder = Builder::default();
    let milliseconds = meta.start_milliseconds.unwrap_or(0.0);
    builder.profile.started_wall_nanos = (milliseconds * NANOS_PER_MILLISECOND) as u64;
    builder.profile.title = meta.product.unwrap_or_default();
    let mut recorded_threads = Vec::new();
    let mut processes: HashMap<String, u32> = HashMap::new();
    let mut has_frees = tells == Tells::Native;
    for (index, thread) in threads.iter_mut().enumerate() {
        let changes = tells.of(thread);
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
        let mut tables = Reading { thread, shared: &shared, index, stacks: HashMap::new() };
        builder.changes(&changes, tells, process, &mut tables, budget)?;
    }
    if let Some((pid, _)) = processes.iter().find(|(_, index)| **index == 0) {
        builder.profile.process = Id(pid.clone()).number();
    }
    let Builder { mut profile, mut list, .. } = builder;
    // Threads are lists of their own; what happened at the same time stays in the order of the file.
    list.sort_by_key(|change| change.nanos);
    let end_nanos = list.last().map_or(0, |change| change.nanos);
    profile.duration_nanos = end_nanos;
    let mut notes = Vec::new();
    if !has_frees {
        notes.push(format!(
            "{} of this file have no frees that belong to a block: what was allocated is known, and not what was held",
            tells.name()
        ));
    }
    Ok(Recorded {
        profile,
        threads: recorded_threads,
        notes,
        changes: Changes { list, has_frees, end_nanos },
    })
}

/// A thread's tables while it is read.
struct Reading<'f> {
    thread: &'f Thread,
    shared: &'f Thread,
    index: usize,
    /// By the file's number: 0 is without frames, `n + 1` the profile's stack `n`.
    stacks: HashMap<usize, u32>,
}

impl<'f> Reading<'f> {
    /// The thread's own table, where it has one, and where tables are for an error.
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

    /// A text, and which one of all it is.
    fn text(&self, index: Option<usize>) -> Option<(&'f str, (u32, usize))> {
        let (texts, is_own) = self.table(|thread| &thread.string_array, |texts| texts.ends.len());
        let text = texts.at(index?).filter(|text| !text.is_empty())?;
        Some((text, (if is_own { self.index as u32 } else { SHARED }, index?)))
    }
}

#[derive(Default)]
struct Builder {
    profile: Profile,
    /// By the thread, or the number that stands for the tables of all, and the place there. A text is looked at once, however often it is named: they may
    /// be long.
    texts: HashMap<(u32, usize), u32>,
    text_numbers: HashMap<Arc<str>, u32>,
    kept_texts: Vec<Arc<str>>,
    functions: HashMap<(u32, Option<u32>), u32>,
    modules: HashMap<u32, u32>,
    locations: HashMap<(Line, Option<u32>), u32>,
    stacks: HashMap<Stack, u32>,
    list: Vec<Change>,
}

impl Builder {
    fn changes(
        &mut self,
        changes: &Weights,
        tells: Tells,
        process: u32,
        tables: &mut Reading<'_>,
        budget: &mut Budget,
    ) -> Result<(), ExchangeError> {
        let of_thread = tables.index;
        let place =
            |column: &str, index: usize| format!("threads[{of_thread}].{}.{column}[{index}]", tells.name());
        let Some(weights) = &changes.weight else {
            return Err(bad(
                format!("threads[{}].{}", tables.index, tells.name()),
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
            // In a list of samples, most may have allocated nothing.
            let Some(weight) = weights.at(index) else { continue };
            if weight.abs() > (1_u64 << 62) as f64 {
                return Err(bad(place("weight", index), format!("{weight} bytes are no size")));
            }
            let address = changes.memory_address.as_ref().and_then(|addresses| addresses.at(index));
            let stack = match changes.stack.index(index) {
                Some(stack) => self.stack(stack, tables, budget)?,
                None => 0,
            };
            budget.keep(size_of::<Change>().saturating_add(SEGMENT_BYTES))?;
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

    /// The stack that has this number in the file.
    fn stack(
        &mut self,
        number: usize,
        tables: &mut Reading<'_>,
        budget: &mut Budget,
    ) -> Result<u32, ExchangeError> {
        let (table, is_own) = tables.table(|thread| &thread.stack_table, |table| table.frame.0.len());
        // From the innermost outwards to the first that is known, and back.
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
                let problem = "a caller that does not stand in front of what it calls";
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
        tables: &Reading<'_>,
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
            let text = |number: u32| Arc::clone(&self.kept_texts[number as usize]);
            let name = name.map_or_else(|| "?".into(), text);
            self.profile.functions.push(Function { name, file: file.map(text) });
        }
        Ok(index)
    }

    /// The number of a text; the same text has the same one.
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
        let next = self.kept_texts.len() as u32;
        let number = match self.text_numbers.get(text) {
            Some(&known) => known,
            None => {
                let kept: Arc<str> = text.into();
                self.text_numbers.insert(Arc::clone(&kept), next);
                self.kept_texts.push(kept);
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
            let path = Arc::clone(&self.kept_texts[name as usize]);
            self.profile.modules.push(Module { path, ..Module::default() });
        }
        Ok(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_unpacks_without_end_stops_soon() {
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
