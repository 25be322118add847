//! Files of other tools as a heap that can be asked questions: recognised by their bytes, names and
//! all.
//!
//! ```no_run
//! use std::path::Path;
//!
//! use cairn_analysis::heap::{Cost, Folding, Group, Names, Questions, Scope};
//! use cairn_exchange::import::Imported;
//!
//! let heap = Imported::open(Path::new("heaptrack.app.4711.zst"))?;
//! let read = heap.read(&Scope::default())?;
//! let names = Names::new(heap.stacks(), &heap, Folding::default());
//! for entry in Questions::new(&read.sums, names).top(Group::Function, Cost::Peak) {
//!     println!("{}", entry.sums.peak_bytes);
//! }
//! # Ok::<(), cairn_exchange::ExchangeError>(())
//! ```

use std::any::Any;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cairn_analysis::heap::slices::{SliceOptions, Slices};
use cairn_analysis::heap::{About, Cost, HeapRead};
use cairn_analysis::heap::{
    Address, HeapProfile, Module, NO_FRAMES, Namer, Scope, Stacks, Sums, ThreadName, UsageSample,
};
use cairn_analysis::names;
use cairn_analysis::source::{
    ForeignFormats, HeapSource, ImportError, ImportedHeap, InputFormat, OpenedImport, Question, SourceHeap,
    SourceOptions,
};
use cairn_format::recording::{MAGIC, PcKind};
use cairn_symbols::SourceFrame;

use crate::dispatch::target::{EventSource, LiveBlock};
use crate::error::ExchangeError;
use crate::formats::{firefox, heaptrack, otlp, pprof, tracker};
use crate::inflate::{Limits, Unpacked};
use crate::model::changes::{Added, BlockEvent, Changes};
use crate::model::profile::{Line, Profile};

pub use cairn_analysis::source::Times;

/// A kind of file that is known here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Kind {
    /// A recording of cairn's own: for [`HeapRecording`](cairn_analysis::heap::HeapRecording), not
    /// for this module.
    Cairn,
    /// heaptrack's data file.
    Heaptrack,
    /// A profile of pprof.
    Pprof,
    /// A processed profile of the Firefox Profiler.
    Firefox,
    /// A recording of call-stack-tracker.
    Tracker,
    /// A message of OTLP's profiles signal. Its bytes could be pprof's, so that it is never
    /// recognised: [`Imported::from_otlp`] reads it.
    Otlp,
}

/// The names of the formats that are read here, as options have them.
const NAMES: [&str; 4] = ["heaptrack", "pprof", "firefox", "tracker"];

impl Kind {
    /// The format of this name.
    fn named(name: &str) -> Option<Self> {
        let kinds = [Self::Heaptrack, Self::Pprof, Self::Firefox, Self::Tracker];
        NAMES.iter().position(|known| *known == name).and_then(|at| kinds.get(at).copied())
    }

    /// Detects the format of a file by its first bytes; `None` if it is unknown.
    ///
    /// ```
    /// use cairn_exchange::import::Kind;
    ///
    /// assert_eq!(Kind::of(&b"v 10400 3\nX ls\n"[..])?, Some(Kind::Heaptrack));
    /// assert_eq!(Kind::of(&b"{\"nodes\":{}}"[..])?, None);
    /// # Ok::<(), cairn_exchange::ExchangeError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// When the file cannot be read, or its compression is broken where it begins.
    pub fn of(input: impl Read) -> Result<Option<Self>, ExchangeError> {
        let mut input = Unpacked::new("compressed", input, Limits::default())?;
        let start = input.chunk()?;
        Ok(match start {
            start if start.starts_with(MAGIC.as_ref()) => Some(Self::Cairn),
            [b'v', b' ', ..] => Some(Self::Heaptrack),
            start if firefox::begins(start) => Some(Self::Firefox),
            start if tracker::begins(start) => Some(Self::Tracker),
            start if pprof::begins(start) => Some(Self::Pprof),
            _ => None,
        })
    }
}

/// A heap from a file of another tool.
///
/// Opening reads names and stacks; [`read`](Self::read) adds up what a scope asks for, as often as
/// wanted. It is its own [`Namer`]: what the file says of its places is all that is known, save of
/// a recording of call-stack-tracker, whose names are looked up when it is opened.
#[derive(Debug)]
pub struct Imported {
    kind: Kind,
    profile: Profile,
    stacks: Stacks,
    threads: Vec<ThreadName>,
    notes: Vec<String>,
    findings: Vec<String>,
    events: Events,
    limits: Limits,
}

/// The heap of a resource of an OTLP message: of a process, mostly.
#[derive(Debug)]
#[non_exhaustive]
pub struct ResourceHeap {
    /// The attributes of the resource that are texts, numbers or truth values.
    pub attributes: BTreeMap<String, String>,
    /// The profiles of the resource as one.
    pub heap: Imported,
}

/// How a file is opened.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ImportOptions {
    /// Maximum bytes of an unpacked file.
    ///
    /// The default is the limit for the file's size
    /// ([`UnpackBound::PROFILE_TEXT`](cairn_format::unpack::UnpackBound::PROFILE_TEXT)).
    pub max_unpacked_bytes: Option<u64>,
    /// The kind of file; `None` to recognise it by its first bytes.
    pub kind: Option<Kind>,
}

/// Location of the events.
#[derive(Debug)]
enum Events {
    /// None: the profile has sums.
    None,
    /// In the file, which is read once more each time.
    Heaptrack(Source),
    /// In memory.
    InMemory(Changes),
}

/// Location of the bytes, for the next read.
#[derive(Debug)]
enum Source {
    File(PathBuf),
    Bytes(Vec<u8>),
}

impl Source {
    fn open(&self) -> Result<Box<dyn Read + '_>, ExchangeError> {
        Ok(match self {
            Self::File(path) => Box::new(File::open(path).map_err(ExchangeError::reading)?),
            Self::Bytes(bytes) => Box::new(bytes.as_slice()),
        })
    }

    fn bytes(&self) -> Result<u64, ExchangeError> {
        match self {
            Self::File(path) => path.metadata().map(|facts| facts.len()).map_err(ExchangeError::reading),
            Self::Bytes(bytes) => Ok(bytes.len() as u64),
        }
    }
}

/// The sums of the events of a scope.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct ImportedSums {
    /// The sums, by the [stacks](Imported::stacks). Files of sums have no threads, sizes, lifetimes
    /// and times; heaptrack's have no threads, and their lifetimes assume that the latest of equal
    /// blocks is freed first. Files without frees have allocations alone.
    pub sums: HeapProfile,
    /// Frees of blocks that were not there.
    pub unmatched_frees: u64,
    /// Resident memory over time, where the file has it.
    pub usage: Vec<UsageSample>,
}

impl Imported {
    /// Reads names and stacks of a file.
    ///
    /// # Errors
    ///
    /// [`ExchangeError::Unknown`] for what is of no format that is read here; else what is wrong
    /// with the file, and where.
    pub fn open(path: &Path) -> Result<Self, ExchangeError> {
        Self::open_with(path, &ImportOptions::default(), None)
    }

    /// As [`open`](Self::open), of a file's bytes.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, ExchangeError> {
        Self::new(Source::Bytes(bytes), &ImportOptions::default(), None)
    }

    /// As [`from_bytes`](Self::from_bytes), with options.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn from_bytes_with(bytes: Vec<u8>, options: &ImportOptions) -> Result<Self, ExchangeError> {
        Self::new(Source::Bytes(bytes), options, None)
    }

    /// As [`open`](Self::open), and finds names for a file that has none of its own: a recording of
    /// call-stack-tracker.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn open_with_names(path: &Path, names: &mut names::AddressNames) -> Result<Self, ExchangeError> {
        Self::open_with(path, &ImportOptions::default(), Some(names))
    }

    /// As [`open`](Self::open), with options, and with names where they are wanted.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn open_with(
        path: &Path,
        options: &ImportOptions,
        names: Option<&mut names::AddressNames>,
    ) -> Result<Self, ExchangeError> {
        let is_file = path.metadata().map_err(ExchangeError::reading)?.is_file();
        if is_file {
            Self::new(Source::File(path.to_owned()), options, names)
        } else {
            Err(ExchangeError::NoFile)
        }
    }

    fn new(
        source: Source,
        options: &ImportOptions,
        names: Option<&mut names::AddressNames>,
    ) -> Result<Self, ExchangeError> {
        let limits = Limits { packed_bytes: source.bytes()?, chosen_bytes: options.max_unpacked_bytes };
        let kind = match options.kind {
            Some(kind) => kind,
            None => Kind::of(source.open()?)?.ok_or(ExchangeError::Unknown)?,
        };
        let (mut threads, mut notes, mut findings) = (Vec::new(), Vec::new(), Vec::new());
        let (profile, events) = match kind {
            Kind::Heaptrack => {
                let profile = heaptrack::read_tables(source.open()?, limits)?;
                (profile, Events::Heaptrack(source))
            }
            Kind::Pprof => (pprof::read(source.open()?, limits)?, Events::None),
            Kind::Firefox => {
                let recorded = firefox::read(source.open()?, limits)?;
                (threads, notes) = (recorded.threads, recorded.notes);
                (recorded.profile, Events::InMemory(recorded.changes))
            }
            Kind::Tracker => {
                let recorded = tracker::read(source.open()?, names)?;
                notes.push(tracker::NOTE.to_owned());
                findings = recorded.findings;
                (recorded.profile, Events::InMemory(recorded.changes))
            }
            Kind::Cairn | Kind::Otlp => return Err(ExchangeError::Unknown),
        };
        let stacks = stacks_of(&profile);
        Ok(Self { kind, profile, stacks, threads, notes, findings, events, limits })
    }

    /// Reads an uncompressed message of OTLP's profiles signal: a heap for each resource.
    ///
    /// # Errors
    ///
    /// The violation of the format, and its place.
    pub fn from_otlp(message: &[u8]) -> Result<Vec<ResourceHeap>, ExchangeError> {
        let limits = Limits { packed_bytes: message.len() as u64, chosen_bytes: None };
        let resources = otlp::read(message, limits)?;
        let heap = |otlp::Resource { attributes, profile }: otlp::Resource| {
            let stacks = stacks_of(&profile);
            let (threads, notes, findings) = (Vec::new(), Vec::new(), Vec::new());
            let events = Events::None;
            let kind = Kind::Otlp;
            let heap = Self { kind, profile, stacks, threads, notes, findings, events, limits };
            ResourceHeap { attributes, heap }
        };
        Ok(resources.into_iter().map(heap).collect())
    }

    /// Returns how much its events record of time.
    #[must_use]
    pub const fn times(&self) -> Times {
        match &self.events {
            Events::None => Times::None,
            Events::InMemory(changes) if !changes.has_frees => Times::Allocations,
            Events::Heaptrack(_) | Events::InMemory(_) => Times::All,
        }
    }

    /// As [`read`](Self::read), with what happened in each [slice](cairn_analysis::heap::slices) of
    /// the time, where the file has times.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    pub fn read_sliced(
        &self,
        scope: &Scope,
        most_slices: usize,
    ) -> Result<(ImportedSums, Slices), ExchangeError> {
        let end_nanos = Some(self.profile.duration_nanos.min(scope.to_nanos));
        let mut options = SliceOptions::default();
        (options.most_slices, options.end_nanos) = (most_slices, end_nanos);
        let (read, slices) = self.read_events(scope, Some(&options))?;
        Ok((read, slices.unwrap_or_default()))
    }

    /// Adds up what the scope asks for. Where a file has no [threads](Self::threads), all is of
    /// number 0.
    ///
    /// # Errors
    ///
    /// When the file is damaged, with the place; or when it does not record what the scope asks
    /// for.
    pub fn read(&self, scope: &Scope) -> Result<ImportedSums, ExchangeError> {
        self.read_events(scope, None).map(|(read, _)| read)
    }

    fn read_events(
        &self,
        scope: &Scope,
        slices: Option<&SliceOptions>,
    ) -> Result<(ImportedSums, Option<Slices>), ExchangeError> {
        match &self.events {
            Events::Heaptrack(source) => {
                let heap = heaptrack::read_events(source.open()?, self.limits, &self.profile, scope, slices)?;
                let heaptrack::Sums { sums, slices, usage, unmatched_frees } = heap;
                Ok((ImportedSums { sums, unmatched_frees, usage }, slices))
            }
            Events::InMemory(changes) => {
                let threads = self.threads.len().max(1);
                let added = changes.read(self.stacks.len(), threads, scope, slices);
                let Added { sums, slices, unmatched_frees } = added;
                Ok((ImportedSums { sums, unmatched_frees, usage: Vec::new() }, slices))
            }
            Events::None => {
                let whole = Scope { stacks: scope.stacks.clone(), ..Scope::default() };
                if *scope != whole {
                    return Err(ExchangeError::CannotHold {
                        format: self.format(),
                        reason: "a profile has sums alone, so there are no times, threads and sizes to choose by",
                    });
                }
                let sums = sums_of(self.format(), &self.profile, scope)?;
                Ok((ImportedSums { sums, unmatched_frees: 0, usage: Vec::new() }, None))
            }
        }
    }

    /// The threads, by the numbers that a scope has; none where the file has none.
    #[must_use]
    pub fn threads(&self) -> &[ThreadName] {
        &self.threads
    }

    /// Lists the data that files of this kind do not record: a sentence each.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Returns the damage behind which nothing was read: a sentence each.
    #[must_use]
    pub fn findings(&self) -> &[String] {
        &self.findings
    }

    /// Gives each block that came or went to `take`, and the samples of what the process used.
    pub(crate) fn replay(&self, take: impl FnMut(BlockEvent)) -> Result<(), ExchangeError> {
        match &self.events {
            Events::Heaptrack(source) => {
                heaptrack::replay(source.open()?, self.limits, &self.profile, take).map(drop)
            }
            Events::InMemory(changes) if changes.has_frees => {
                changes.replay(take);
                Ok(())
            }
            Events::InMemory(_) | Events::None => Err(ExchangeError::CannotHold {
                format: "a format of events",
                reason: "the file does not record when blocks were freed; pprof or speedscope hold sums",
            }),
        }
    }

    /// Returns the kind of file.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns the program and its start; of a file of sums, all of it.
    #[must_use]
    pub const fn profile(&self) -> &Profile {
        &self.profile
    }

    /// The stacks: those of the [profile](Self::profile), behind the one without frames.
    #[must_use]
    pub const fn stacks(&self) -> &Stacks {
        &self.stacks
    }
}

/// The formats that this crate reads, for [`SourceOptions::formats`].
///
/// ```no_run
/// use std::path::Path;
///
/// use cairn_analysis::source::{HeapSource, SourceOptions};
/// use cairn_exchange::import::FORMATS;
///
/// let mut options = SourceOptions::default();
/// options.formats = Some(&FORMATS);
/// let source = HeapSource::open(Path::new("heaptrack.app.4711.zst"), &options)?;
/// println!("{}", source.title());
/// # Ok::<(), cairn_analysis::source::SourceError>(())
/// ```
pub static FORMATS: ImportFormats = ImportFormats;

/// Opens the formats of other tools.
#[derive(Clone, Copy, Debug)]
pub struct ImportFormats;

impl ForeignFormats for ImportFormats {
    fn names(&self) -> &'static [&'static str] {
        &NAMES
    }

    fn open(&self, path: &Path, options: &SourceOptions) -> Result<Option<OpenedImport>, ImportError> {
        let kind = match options.input_format {
            Some(InputFormat::Foreign(name)) => Kind::named(name),
            Some(_) => None,
            None => Kind::of(File::open(path).map_err(ExchangeError::reading)?)?,
        };
        if matches!(kind, None | Some(Kind::Cairn)) {
            return Ok(None);
        }
        let import = ImportOptions { max_unpacked_bytes: options.max_unpacked_bytes, kind };
        let symbols = options.symbols.clone().filter(|_| kind == Some(Kind::Tracker));
        let mut lookups = symbols.map(names::AddressNames::new);
        let heap = Imported::open_with(path, &import, lookups.as_mut())?;
        Ok(Some(OpenedImport { heap: Box::new(heap), lookups }))
    }

    fn unpacked_start(&self, path: &Path) -> Option<Vec<u8>> {
        let mut input = Unpacked::new("compressed", File::open(path).ok()?, Limits::default()).ok()?;
        input.chunk().ok().map(<[u8]>::to_vec)
    }
}

impl ImportedHeap for Imported {
    fn format(&self) -> &'static str {
        match self.kind {
            Kind::Cairn => "cairn",
            Kind::Heaptrack => "heaptrack",
            Kind::Pprof => "pprof",
            Kind::Firefox => "Firefox Profiler",
            Kind::Tracker => "call-stack-tracker",
            Kind::Otlp => "OTLP",
        }
    }

    fn about(&self) -> About {
        About {
            command: Some(self.profile.title.clone()).filter(|title| !title.is_empty()).into_iter().collect(),
            process: self.profile.process,
            started_wall_nanos: self.profile.started_wall_nanos,
            threads: self.threads.clone(),
            findings: self.notes.iter().chain(&self.findings).cloned().collect(),
            ..About::default()
        }
    }

    fn stacks(&self) -> &Stacks {
        &self.stacks
    }

    fn times(&self) -> Times {
        Self::times(self)
    }

    fn usual_cost(&self) -> Cost {
        match (self.kind, self.times()) {
            // A file without bytes counts its stacks; one without frees, its allocations.
            (Kind::Tracker, _) => Cost::Count,
            (_, Times::Allocations) => Cost::Allocated,
            _ => Cost::Peak,
        }
    }

    fn refusal(&self, question: Question) -> Option<String> {
        let why = match (self.times(), question) {
            (Times::None, Question::Cost(cost)) if !has_column_of(&self.profile, cost) => {
                "the profile does not count that"
            }
            (_, Question::Cost(Cost::Allocated) | Question::Sizes) if self.kind == Kind::Tracker => {
                "it keeps stacks, and no sizes of blocks"
            }
            (Times::Allocations, Question::Cost(Cost::Peak | Cost::Leaked | Cost::Temporary)) => {
                "frees are not recorded in it, so it is not known how long blocks lived; ask with --cost allocated or count"
            }
            (Times::Allocations, Question::Lifetimes | Question::PeakTime) => {
                "frees are not recorded in it, so it is not known how long blocks lived"
            }
            (
                Times::None,
                Question::Times
                | Question::PeakTime
                | Question::Sizes
                | Question::Threads
                | Question::Lifetimes,
            ) => "it has sums alone, so there are no times, threads and sizes to choose by",
            (_, Question::Threads) if self.threads.is_empty() => {
                "it does not say which thread allocated a block"
            }
            _ => return None,
        };
        Some(format!("a file of {}: {why}", self.format()))
    }

    fn is_named_at_opening(&self) -> bool {
        self.kind == Kind::Tracker
    }

    fn notes(&self) -> &[String] {
        &self.notes
    }

    fn findings(&self) -> &[String] {
        &self.findings
    }

    fn read_scope(&self, scope: &Scope) -> Result<HeapRead, ImportError> {
        Ok(self.read(scope)?.into_read())
    }

    fn read_scope_sliced(
        &self,
        scope: &Scope,
        most_slices: usize,
    ) -> Result<(HeapRead, Slices), ImportError> {
        let (read, slices) = self.read_sliced(scope, most_slices)?;
        Ok((read.into_read(), slices))
    }
}

/// The blocks of an image that a scope counts; none of another heap.
#[must_use]
pub fn live_blocks(source: &HeapSource, scope: &Scope) -> Vec<LiveBlock> {
    match source.heap() {
        SourceHeap::Image(heap) => heap
            .blocks()
            .iter()
            .map(|block| LiveBlock { stack: heap.stack_of(block), size_bytes: block.size_bytes })
            .filter(|block| scope.counts(0, block.size_bytes, block.stack, 0))
            .collect(),
        _ => Vec::new(),
    }
}

/// Returns the source of a heap's events, for formats that contain them.
///
/// `None` if its file does not record all of time. `live` are its [`live_blocks`].
#[must_use]
pub fn event_source<'a>(source: &'a HeapSource, live: &'a [LiveBlock]) -> Option<EventSource<'a>> {
    match source.heap() {
        SourceHeap::Recording(heap) => Some(EventSource::Recording(heap)),
        SourceHeap::Imported(heap) => {
            let heap: &dyn Any = &**heap;
            heap.downcast_ref::<Imported>()
                .filter(|file| file.times() == Times::All)
                .map(EventSource::Imported)
        }
        SourceHeap::Image(_) => Some(EventSource::Live(live)),
    }
}

impl ImportedSums {
    fn into_read(self) -> HeapRead {
        HeapRead::of_sums(self.sums, self.unmatched_frees, self.usage)
    }
}

/// True when a profile has a column from which the cost is read. A profile of one moment has no
/// other peak than that.
fn has_column_of(profile: &Profile, cost: Cost) -> bool {
    let names: &[&str] = match cost {
        Cost::Peak => &["peak_space", "inuse_space", "space", "inuse_bytes", "alloc_space"],
        Cost::Leaked => &["inuse_space", "space", "inuse_bytes"],
        Cost::Allocated => &["alloc_space"],
        Cost::Count => &["alloc_objects"],
        Cost::Temporary => &["temporary_objects"],
    };
    names.iter().any(|name| profile.column(name).is_some())
}

impl Namer for Imported {
    fn name(&self, _stacks: &Stacks, addresses: &[&Address]) -> Vec<Vec<SourceFrame>> {
        let frame = |line: &Line, inlined: bool| {
            let function = self.profile.functions.get(line.function as usize);
            let mut frame = SourceFrame::default();
            frame.function = function.map(|function| Arc::clone(&function.name));
            frame.file = function.and_then(|function| function.file.clone());
            frame.line = Some(line.line).filter(|&line| line > 0);
            frame.inlined = inlined;
            frame
        };
        let frames = |address: &&Address| {
            let location = usize::try_from(address.stated).ok().and_then(|at| self.profile.locations.get(at));
            let lines = location.map_or(&[][..], |location| &location.lines);
            let last = lines.len().saturating_sub(1);
            lines.iter().enumerate().map(|(index, line)| frame(line, index < last)).collect()
        };
        addresses.iter().map(frames).collect()
    }
}

/// Stack `n` of the profile is stack `n + 1`, behind the one without frames; a location is an
/// address.
fn stacks_of(profile: &Profile) -> Stacks {
    let mut stacks = Stacks::new();
    for module in &profile.modules {
        let build_id = (0..module.build_id.len() / 2)
            .map_while(|index| u8::from_str_radix(module.build_id.get(2 * index..2 * index + 2)?, 16).ok());
        stacks.add_module(Module { path: module.path.to_string(), build_id: build_id.collect() });
    }
    for (location, index) in profile.locations.iter().zip(0..) {
        let start = |module: u32| profile.modules.get(module as usize).map_or(0, |module| module.start);
        stacks.add_address(Address {
            // A profile holds the address of the call, as symbolizers take it.
            kind: PcKind::ProgramCounter,
            absolute: location.address,
            // Names are found in the file's own table, by this index.
            stated: index,
            module: location.module.map(|module| (module, location.address.wrapping_sub(start(module)))),
        });
    }
    for stack in &profile.stacks {
        let caller = stack.caller.map_or(NO_FRAMES, |caller| caller + 1);
        if stacks.add_stack(caller, stack.location).is_none() {
            stacks.skip();
        }
    }
    stacks
}

/// Converts a heap profile of any maker to sums.
///
/// Profiles of Go, jemalloc and gperftools have no peak; the moment of the profile is then their
/// peak.
fn sums_of(format: &'static str, profile: &Profile, scope: &Scope) -> Result<HeapProfile, ExchangeError> {
    let column = |names: &[&str]| names.iter().find_map(|name| profile.column(name));
    let live_bytes = column(&["inuse_space", "space", "inuse_bytes"]);
    let live_blocks = column(&["inuse_objects", "objects"]);
    let bytes = column(&["alloc_space"]).or(live_bytes);
    let allocations = column(&["alloc_objects"]).or(live_blocks);
    if bytes.is_none() && allocations.is_none() {
        let names: Vec<&str> = profile.columns.iter().map(|column| &*column.name).collect();
        return Err(ExchangeError::NoHeap { format, counts: names.join(", ") });
    }
    let peak_bytes = column(&["peak_space"]).or(live_bytes);
    let peak_blocks = column(&["peak_objects"]).or(live_blocks);
    let temporary = column(&["temporary_objects"]);
    let mut rows = vec![Sums::default(); profile.stacks.len() + 1];
    for sample in &profile.samples {
        let stack = sample.stack.map_or(0, |stack| stack as usize + 1);
        if scope.stacks.as_ref().is_some_and(|list| !list.get(stack).copied().unwrap_or(false)) {
            continue;
        }
        let value =
            |column: Option<usize>| column.and_then(|column| sample.values.get(column)).copied().unwrap_or(0);
        let sums = Sums {
            allocations: value(allocations),
            allocated_bytes: value(bytes),
            live_blocks: value(live_blocks),
            live_bytes: value(live_bytes),
            peak_blocks: value(peak_blocks),
            peak_bytes: value(peak_bytes),
            temporary: value(temporary),
        };
        if let Some(row) = rows.get_mut(stack) {
            row.add(&sums);
        }
    }
    Ok(HeapProfile::of_sums(rows, profile.duration_nanos))
}
