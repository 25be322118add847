//! What the heap commands share: which recording, which part of it, and with which names.

use std::fs::File;
use std::io::{self, Read};
use std::ops::RangeInclusive;
use std::path::Path;

use cairn_analysis::heap::schema::ScopeTold;
use cairn_analysis::heap::slices::Slices;
use cairn_analysis::heap::{
    About, Cost, Folding, HeapRead, HeapRecording, ModuleNames, Namer, Names, NoNames, Pattern, Questions,
    Scope, Stacks, stacks_with,
};
use cairn_exchange::import::{ImportOptions, Imported, Kind, Times};
use cairn_format::recording::{FILE_HEADER_BYTES, FileHeader};
use cairn_recording::{Finding, Recording, RecordingError};
use cairn_symbols::SymbolizerOptions;
use clap::Args;

use super::symbol_options::{SymbolOptions, complain_about_modules};
use crate::output::{Outcome, complain, max_unpacked_bytes};

/// Which part of a recording, and how its frames are shown.
#[derive(Args)]
pub(crate) struct HeapInput {
    /// Only blocks that match: function=PATTERN or module=PATTERN (any frame of the stack), thread=NAME or thread=NUMBER,
    /// size=FROM..TO. May be repeated: kinds narrow down, the same kind widens. Patterns know *, ^ and $
    #[arg(long, value_name = "KIND=WHAT", value_parser = parse_filter)]
    filter: Vec<Filter>,

    /// Show the allocator's frames and those in front of main too
    #[arg(long)]
    internals: bool,

    #[command(flatten)]
    symbols: SymbolOptions,
}

/// A filter, and how it was written.
#[derive(Clone)]
struct Filter {
    text: String,
    kind: FilterKind,
}

#[derive(Clone)]
enum FilterKind {
    Function(Pattern),
    Module(Pattern),
    Thread(String),
    Size(RangeInclusive<u64>),
}

fn parse_filter(text: &str) -> Result<Filter, String> {
    let (kind, what) = text.split_once('=').ok_or("write it as KIND=WHAT, as in function=load*")?;
    let kind = match kind {
        "function" => FilterKind::Function(Pattern::new(what)),
        "module" => FilterKind::Module(Pattern::new(what)),
        "thread" => FilterKind::Thread(what.to_owned()),
        "size" => FilterKind::Size(parse_sizes(what)?),
        _ => return Err(format!("{kind} is no kind of filter; there are function, module, thread and size")),
    };
    Ok(Filter { text: text.to_owned(), kind })
}

fn parse_sizes(text: &str) -> Result<RangeInclusive<u64>, String> {
    let Some((from, to)) = text.split_once("..") else {
        let size = parse_size(text)?;
        return Ok(size..=size);
    };
    let from = if from.is_empty() { 0 } else { parse_size(from)? };
    let to = if to.is_empty() { u64::MAX } else { parse_size(to)? };
    if from > to { Err(format!("{text}: the smaller size comes first")) } else { Ok(from..=to) }
}

/// `4096`, `4k`, `4KiB`: all units are powers of 1024.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        _ => return Err(format!("{text}: not a size; write 4096, 4KiB or 1MiB")),
    };
    let number: u64 = number.parse().map_err(|_| format!("{text}: not a size; write 4096, 4KiB or 1MiB"))?;
    number.checked_mul(1 << shift).ok_or_else(|| format!("{text}: too large"))
}

/// `1.5s`, `200ms`, `2min`; a number alone is seconds.
pub(crate) fn parse_time(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit_nanos = match unit.trim() {
        "" | "s" => 1e9,
        "ms" => 1e6,
        "us" | "µs" => 1e3,
        "ns" => 1.0,
        "m" | "min" => 60e9,
        "h" => 3600e9,
        _ => return Err(format!("{text}: not a time; write 1.5s, 200ms or 2min from the start")),
    };
    let number: f64 = number
        .parse()
        .map_err(|_| format!("{text}: not a time; write 1.5s, 200ms or 2min from the start"))?;
    // Rounded up, so that the time that a report shows includes what happened at it.
    Ok((number * unit_nanos).ceil() as u64)
}

/// A time of the recording: from its start, or the one of its peak.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Moment {
    Nanos(u64),
    Peak,
}

pub(crate) fn parse_moment(text: &str) -> Result<Moment, String> {
    if text == "peak" { Ok(Moment::Peak) } else { parse_time(text).map(Moment::Nanos) }
}

/// What can be asked where its memory goes.
pub(crate) enum Heap {
    /// A recording of cairn's.
    Recording(Box<HeapRecording>),
    /// A file of another tool.
    Imported(Box<Imported>),
}

impl Heap {
    pub(crate) fn about(&self) -> About {
        match self {
            Self::Recording(heap) => heap.about(),
            Self::Imported(heap) => {
                let profile = heap.profile();
                About {
                    command: Some(profile.title.clone())
                        .filter(|title| !title.is_empty())
                        .into_iter()
                        .collect(),
                    process: profile.process,
                    started_wall_nanos: profile.started_wall_nanos,
                    threads: heap.threads().to_vec(),
                    findings: heap.notes().iter().chain(heap.findings()).cloned().collect(),
                    ..About::default()
                }
            }
        }
    }

    /// What people ask for first: of files without frees, what was allocated; of those without bytes, how often.
    pub(crate) fn usual_cost(&self) -> Cost {
        match self {
            Self::Imported(heap) if heap.kind() == Kind::Tracker => Cost::Count,
            Self::Imported(heap) if heap.times() == Times::Allocations => Cost::Allocated,
            _ => Cost::Peak,
        }
    }

    pub(crate) fn stacks(&self) -> &Stacks {
        match self {
            Self::Recording(heap) => heap.stacks(),
            Self::Imported(heap) => heap.stacks(),
        }
    }
}

/// Tells whether a file can be looked at as a recording of cairn's; an error names it.
pub(crate) fn check_recording(path: &Path) -> io::Result<()> {
    let mut header = [0; FILE_HEADER_BYTES];
    let is_read = File::open(path).and_then(|mut file| file.read_exact(&mut header)).is_ok();
    if is_read && FileHeader::read(&header).is_ok() {
        return Ok(());
    }
    let kind = File::open(path).ok().and_then(|file| Kind::of(file).ok().flatten());
    if !matches!(kind, None | Some(Kind::Cairn)) {
        let why = "a file of another tool; cairn report FILE --html PAGE makes its page";
        return Err(io::Error::other(format!("{}: {why}", path.display())));
    }
    // What reads all of it says best what is wrong.
    Recording::open(path).map(drop).map_err(|error| at(path, &error))
}

fn at(path: &Path, error: &dyn std::fmt::Display) -> io::Error {
    let text = error.to_string();
    let path = path.display().to_string();
    // Some errors of opening name the file themselves.
    io::Error::other(if text.contains(&path) { text } else { format!("{path}: {text}") })
}

/// Names for one recording: from symbol files, or none.
pub(crate) enum Symbols {
    Files(Box<ModuleNames>),
    None(NoNames),
}

impl Symbols {
    fn namer(&self) -> &dyn Namer {
        match self {
            Self::Files(names) => &**names,
            Self::None(none) => none,
        }
    }

    /// Says which modules have no names, and why; has the indexes built that were missed. For when the answers are out.
    pub(crate) fn finish(self, input: &HeapInput) {
        if let Self::Files(names) = self {
            let names = names.into_inner();
            complain_about_modules(&names);
            input.symbols.index_later(&names);
        }
    }
}

impl HeapInput {
    /// Opens a recording, or a file of another tool; an error names it.
    pub(crate) fn open(&self, path: &Path) -> io::Result<Heap> {
        let is_file = path.metadata().is_ok_and(|metadata| metadata.is_file());
        let kind =
            if is_file { File::open(path).ok().and_then(|file| Kind::of(file).ok().flatten()) } else { None };
        let mut options = ImportOptions::default();
        options.max_unpacked_bytes = max_unpacked_bytes();
        // What is of no known format is a damaged recording more often than anything else: its reader says what is wrong.
        let heap = match kind {
            None | Some(Kind::Cairn) => {
                let recording = Recording::open(path).map_err(|error| at(path, &error))?;
                return Ok(Heap::Recording(Box::new(HeapRecording::new(recording))));
            }
            Some(Kind::Tracker) if self.symbols.wanted() => {
                let mut names = cairn_analysis::names::Names::new(self.symbolizer());
                let heap = Imported::open_with(path, &options, Some(&mut names));
                complain_about_modules(&names);
                self.symbols.index_later(&names);
                heap
            }
            Some(_) => Imported::open_with(path, &options, None),
        };
        Ok(Heap::Imported(Box::new(heap.map_err(|error| at(path, &error))?)))
    }

    pub(crate) fn symbols(&self, heap: &Heap) -> Symbols {
        match heap {
            Heap::Recording(heap) if self.symbols.wanted() => {
                Symbols::Files(Box::new(heap.symbols(self.symbols.symbolizer())))
            }
            _ => Symbols::None(NoNames),
        }
    }

    pub(crate) fn wants_names(&self) -> bool {
        self.symbols.wanted()
    }

    /// Where names are searched for.
    pub(crate) fn symbolizer(&self) -> SymbolizerOptions {
        self.symbols.symbolizer()
    }

    /// Whether files of another build may name functions too.
    #[cfg(target_os = "linux")]
    pub(crate) fn allows_mismatch(&self) -> bool {
        self.symbols.allows_mismatch()
    }

    /// How images of memory are opened.
    #[cfg(target_os = "linux")]
    pub(crate) fn image_options(&self) -> cairn_memory::image::OpenOptions {
        let mut options = cairn_memory::image::OpenOptions::default();
        options.unpack_limit_bytes = max_unpacked_bytes();
        if let Some(root) = self.symbols.root() {
            options.root = root.to_owned();
        }
        options
    }

    fn folding(&self) -> Folding {
        Folding { allocator: !self.internals, startup: !self.internals }
    }

    /// Names of stacks that are of no recording.
    #[cfg(target_os = "linux")]
    pub(crate) fn names_of<'a>(&self, stacks: &'a Stacks, symbols: &'a Symbols) -> Names<'a> {
        Names::new(stacks, symbols.namer(), self.folding())
    }

    pub(crate) fn names<'a>(&self, heap: &'a Heap, symbols: &'a Symbols) -> Names<'a> {
        let namer: &dyn Namer = match heap {
            // It brings its names with it.
            Heap::Imported(heap) if self.symbols.wanted() || heap.kind() == Kind::Tracker => &**heap,
            _ => symbols.namer(),
        };
        Names::new(heap.stacks(), namer, self.folding())
    }

    /// The filters, as they were written.
    pub(crate) fn filters(&self) -> Vec<String> {
        self.filter.iter().map(|filter| filter.text.clone()).collect()
    }

    /// The scope of the filters, from a time on and up to one.
    pub(crate) fn scope(
        &self,
        heap: &Heap,
        names: &mut Names<'_>,
        from_nanos: u64,
        to_nanos: u64,
    ) -> io::Result<Scope> {
        let scope = Scope { from_nanos, to_nanos, ..Scope::default() };
        self.scope_with(scope, names, |wanted| threads_called(heap, wanted))
    }

    /// The scope of the filters on an image of memory, whose blocks have no threads.
    #[cfg(target_os = "linux")]
    pub(crate) fn scope_of_image(&self, path: &Path, names: &mut Names<'_>) -> io::Result<Scope> {
        self.scope_with(Scope::default(), names, |wanted| {
            let why = "an image of memory does not say which thread allocated a block";
            Err(io::Error::other(format!("{}: --filter thread={wanted}: {why}", path.display())))
        })
    }

    fn scope_with(
        &self,
        mut scope: Scope,
        names: &mut Names<'_>,
        threads_called: impl Fn(&str) -> io::Result<Vec<u32>>,
    ) -> io::Result<Scope> {
        let (mut functions, mut modules, mut sizes) = (Vec::new(), Vec::new(), None::<RangeInclusive<u64>>);
        for filter in &self.filter {
            match &filter.kind {
                FilterKind::Function(pattern) => functions.push(pattern.clone()),
                FilterKind::Module(pattern) => modules.push(pattern.clone()),
                FilterKind::Thread(wanted) => {
                    scope.threads.get_or_insert_default().extend(threads_called(wanted)?);
                }
                FilterKind::Size(range) => {
                    let known = sizes.take().unwrap_or_else(|| range.clone());
                    sizes = Some(*known.start().min(range.start())..=*known.end().max(range.end()));
                }
            }
        }
        if !functions.is_empty() || !modules.is_empty() {
            scope.stacks = Some(stacks_with(names, &functions, &modules));
        }
        scope.sizes = sizes.unwrap_or(scope.sizes);
        Ok(scope)
    }
}

fn threads_called(heap: &Heap, wanted: &str) -> io::Result<Vec<u32>> {
    let threads = heap.about().threads;
    let found: Vec<u32> = threads
        .iter()
        .enumerate()
        .filter(|(_, thread)| thread.is_called(wanted))
        .map(|(index, _)| index as u32)
        .collect();
    if !found.is_empty() {
        return Ok(found);
    }
    const MOST: usize = 20;
    let name = |thread: &cairn_analysis::heap::ThreadName| {
        format!("{} {}", thread.kernel_thread, crate::output::printable(&thread.name))
    };
    // What has no number of the kernel is a lane without a thread.
    let there = || threads.iter().filter(|thread| thread.kernel_thread != 0 || !thread.name.is_empty());
    let all: Vec<String> = there().take(MOST).map(name).collect();
    let more = match there().count().saturating_sub(MOST) {
        0 => String::new(),
        more => format!(", and {more} more"),
    };
    let all = all.join(", ");
    Err(io::Error::other(format!("no thread {wanted:?} in the recording; there are: {all}{more}")))
}

/// Reads the part of the recording that the options name; says on standard error what was wrong with its events.
pub(crate) fn read(path: &Path, heap: &Heap, scope: Scope) -> io::Result<HeapRead> {
    read_by(path, heap, scope, HeapRecording::read)
}

/// The same, for a picture of the whole.
pub(crate) fn read_brief(path: &Path, heap: &Heap, scope: Scope) -> io::Result<HeapRead> {
    read_by(path, heap, scope, HeapRecording::read_brief)
}

/// The same, for what is asked by stack alone.
pub(crate) fn read_stacks(path: &Path, heap: &Heap, scope: Scope) -> io::Result<HeapRead> {
    read_by(path, heap, scope, HeapRecording::read_stacks)
}

fn read_by(
    path: &Path,
    heap: &Heap,
    scope: Scope,
    read: impl FnOnce(&HeapRecording, Scope) -> Result<HeapRead, RecordingError>,
) -> io::Result<HeapRead> {
    let read = match heap {
        Heap::Recording(heap) => read(heap, scope).map_err(|error| at(path, &error))?,
        Heap::Imported(heap) => imported(path, heap, &scope)?,
    };
    complain_about_events(path, &read);
    Ok(read)
}

fn imported(path: &Path, heap: &Imported, scope: &Scope) -> io::Result<HeapRead> {
    let read = heap.read(scope).map_err(|error| at(path, &error))?;
    Ok(HeapRead::of_sums(read.sums, read.unmatched_frees, read.usage))
}

/// The same as [`read`], with what happened in each slice of its time; a file of sums alone has none.
pub(crate) fn read_sliced(
    path: &Path,
    heap: &Heap,
    scope: &Scope,
    most_slices: usize,
) -> io::Result<(HeapRead, Slices)> {
    let (read, slices) = match heap {
        Heap::Recording(heap) => {
            heap.read_sliced(scope.clone(), most_slices).map_err(|error| at(path, &error))?
        }
        Heap::Imported(heap) => {
            let (read, slices) = heap.read_sliced(scope, most_slices).map_err(|error| at(path, &error))?;
            (HeapRead::of_sums(read.sums, read.unmatched_frees, read.usage), slices)
        }
    };
    complain_about_events(path, &read);
    Ok((read, slices))
}

fn complain_about_events(path: &Path, read: &HeapRead) {
    for finding in &read.findings {
        complain(&format_args!("{}: {finding}", path.display()));
    }
}

/// Whether an answer is of all events, or `otherwise`.
pub(crate) fn outcome_of(read: &HeapRead, otherwise: Outcome) -> Outcome {
    // In place of sums that cannot be used the events were read.
    let is_missing = |finding: &Finding| !matches!(finding, Finding::UnusableSums { .. });
    if read.findings.iter().any(is_missing) { Outcome::Incomplete } else { otherwise }
}

/// The time that a moment stands for. The peak is that of the whole recording.
pub(crate) fn nanos_of(path: &Path, heap: &Heap, moment: Moment) -> io::Result<u64> {
    match moment {
        Moment::Nanos(nanos) => Ok(nanos),
        Moment::Peak => Ok(read(path, heap, Scope::default())?.profile.peak_nanos),
    }
}

/// The part of the time that the options name. Times that make no sense end the command.
pub(crate) fn times(
    path: &Path,
    heap: &Heap,
    at: Option<Moment>,
    between: Option<&[Moment]>,
) -> io::Result<(u64, u64)> {
    match (at, between) {
        (Some(at), _) => Ok((0, nanos_of(path, heap, at)?)),
        (None, Some(&[from, to])) => {
            let (from, to) = (nanos_of(path, heap, from)?, nanos_of(path, heap, to)?);
            if from > to {
                let kind = clap::error::ErrorKind::ValueValidation;
                clap::Error::raw(kind, "--between: the earlier time comes first\n").exit();
            }
            Ok((from, to))
        }
        _ => Ok((0, u64::MAX)),
    }
}

/// Says on standard error what is wrong with the file, where that makes the answer doubtful.
pub(crate) fn complain_about(path: &Path, heap: &Heap) -> Outcome {
    let mut outcome = Outcome::Done;
    let heap = match heap {
        Heap::Recording(heap) => heap,
        Heap::Imported(heap) => {
            for note in heap.notes() {
                complain(&format_args!("{}: note: {note}", path.display()));
            }
            for finding in heap.findings() {
                complain(&format_args!("{}: {finding}", path.display()));
                outcome = Outcome::Incomplete;
            }
            return outcome;
        }
    };
    for finding in heap.findings() {
        match finding {
            // What a reader of the report should know is in the report.
            Finding::NoEnd
            | Finding::NoIndex
            | Finding::UnknownChunk { .. }
            | Finding::UnknownClock
            | Finding::ClockJump { .. } => {}
            Finding::Growing(_) => complain(&format_args!("{}: note: {finding}", path.display())),
            Finding::EndedEarly(ended) if ended.cause.is_intended() => {}
            finding => {
                complain(&format_args!("{}: {finding}", path.display()));
                outcome = Outcome::Incomplete;
            }
        }
    }
    outcome
}

/// The scope as JSON tells it.
pub(crate) fn scope_told(input: &HeapInput, from_nanos: u64, to_nanos: u64) -> ScopeTold {
    ScopeTold { from_nanos, to_nanos: (to_nanos != u64::MAX).then_some(to_nanos), filters: input.filters() }
}

/// A recording, named and read.
pub(crate) fn questions<'a>(read: &'a HeapRead, names: Names<'a>) -> Questions<'a> {
    Questions::new(&read.profile, names)
}

/// The name of a file for a title.
pub(crate) fn title_of(path: &Path, heap: &Heap) -> String {
    let command = heap.about().command;
    if command.is_empty() { path.display().to_string() } else { command.join(" ") }
}

/// Behind a number of resident memory: whose it is.
pub(crate) fn whose_resident(read: &HeapRead) -> String {
    match read.own_resident_bytes() {
        Some(own) => format!("all of the process but {} of cairn", super::heap_text::bytes(own)),
        None => "all of the process, cairn's own included".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_sizes_are_read_with_their_units() {
        let times = [
            ("2", 2_000_000_000),
            ("1.5s", 1_500_000_000),
            ("200ms", 200_000_000),
            ("3us", 3_000),
            ("7ns", 7),
            ("2min", 120_000_000_000),
        ];
        for (text, nanos) in times {
            assert_eq!(parse_time(text), Ok(nanos), "{text}");
        }
        for text in ["", "s", "1 day", "-1", "1.2.3", "1e400x"] {
            assert!(parse_time(text).is_err(), "{text}");
        }
        assert_eq!(parse_sizes("1KiB..2m"), Ok(1024..=2 << 20));
        assert_eq!(parse_sizes("..64"), Ok(0..=64));
        assert_eq!(parse_sizes("64"), Ok(64..=64));
        for text in ["9..1", "a", "1..b", "99999999999999999999", "99999999999g"] {
            assert!(parse_sizes(text).is_err(), "{text}");
        }
    }
}
