//! Opens a heap from a file of any kind, and decides what it can answer.
//!
//! Recordings, images of memory and files of other tools differ in what they know: an image has one
//! moment, a profile of pprof has sums without times. Commands and pages ask a [`HeapSource`],
//! which refuses a question that its file cannot answer, and says why. So every command opens the
//! same files, and an option means the same for each of them.
//!
//! ```no_run
//! use std::path::Path;
//!
//! use cairn_analysis::heap::{Folding, Group, Questions};
//! use cairn_analysis::source::{HeapSource, ReadDetail, SourceOptions, TimeSpan};
//!
//! let source = HeapSource::open(Path::new("program.4711.cairn"), &SourceOptions::default())?;
//! let symbols = source.symbols();
//! let mut names = source.names(&symbols, Folding::default());
//! let scope = source.scope(&[], TimeSpan::ALL, &mut names)?;
//! let read = source.read(scope, ReadDetail::Whole)?;
//! let questions = Questions::new(&read.profile, names);
//! for entry in questions.top(Group::Function, source.usual_cost(TimeSpan::ALL)).iter().take(10) {
//!     println!("{} {}", entry.sums.peak_bytes, questions.names().function_of(entry.line).name);
//! }
//! # Ok::<(), cairn_analysis::source::SourceError>(())
//! ```
//!
//! | module | task |
//! |---|---|
//! | `error` | why a file cannot be opened, or a question not be answered |
//! | `filter` | which blocks are counted: functions, modules, threads, sizes, times |
//! | `followed` | a heap that may still grow |
//! | `image` | the blocks in a core file or a minidump |
//! | `source_names` | names for the frames of a source |
//!
//! Formats of other tools are read in `cairn-exchange`, which uses this crate. Its
//! [`ForeignFormats`] come in by [`SourceOptions::formats`]: without them, recordings and images
//! open and nothing else does.

mod error;
mod filter;
mod followed;
mod image;
mod source_names;

use std::any::Any;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cairn_format::recording::{FILE_HEADER_BYTES, FileHeader};
use cairn_recording::{Finding, Recording, RecordingError};
use cairn_symbols::SymbolizerOptions;

use crate::file_kind::{FileKind, WrongFile, start_of};
use crate::heap::slices::Slices;
use crate::heap::{
    About, Cost, Folding, HeapRead, HeapRecording, Namer, Names, Scope, Stacks, Unfreed, counted_stacks,
};
use crate::names;

pub use error::SourceError;
pub use filter::{HeapFilter, TimePoint, TimeSpan, parse_size, parse_time, split_size};
pub use followed::FollowedHeap;
pub use image::{ImageHeap, names_of_image};
pub use source_names::SourceNames;

/// How much the events of a file record of time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Times {
    /// When each block was allocated and freed.
    #[default]
    All,
    /// When each was allocated; nothing of frees.
    Allocations,
    /// Nothing: it has sums.
    None,
}

/// A question that not every kind of file can answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Question {
    /// How much of this cost there is.
    Cost(Cost),
    /// Which threads allocated.
    Threads,
    /// How large the blocks were.
    Sizes,
    /// How long the blocks lived.
    Lifetimes,
    /// Sums of a stretch of time, or of a moment.
    Times,
    /// When the program held most.
    PeakTime,
}

impl fmt::Display for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cost(cost) => write!(f, "cost {}", cost.name()),
            Self::Threads => f.write_str("threads"),
            Self::Sizes => f.write_str("sizes"),
            Self::Lifetimes => f.write_str("lifetimes"),
            Self::Times => f.write_str("times"),
            Self::PeakTime => f.write_str("time of the peak"),
        }
    }
}

/// How much of a heap is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadDetail {
    /// Everything.
    Whole,
    /// Data of the picture of the whole: see [`HeapRecording::read_brief`].
    Brief,
    /// Sums by stack: see [`HeapRecording::read_stacks`].
    Stacks,
}

/// A heap in a file of another tool.
///
/// It is its own [`Namer`]: the file holds the names that are known.
pub trait ImportedHeap: Namer + Any + fmt::Debug + Send + Sync {
    /// Returns the format, as people call it.
    fn format(&self) -> &'static str;

    /// Returns what is known of the program.
    fn about(&self) -> About;

    /// Returns the stacks that sums are of.
    fn stacks(&self) -> &Stacks;

    /// Returns how much its events record of time.
    fn times(&self) -> Times;

    /// Returns the cost that people ask for first.
    fn usual_cost(&self) -> Cost;

    /// Returns why a question cannot be answered; `None` if it can.
    fn refusal(&self, question: Question) -> Option<String>;

    /// True for a file whose names were looked up when it was opened, if they were wanted.
    fn is_named_at_opening(&self) -> bool {
        false
    }

    /// Returns what files of this format do not record: a sentence each.
    fn notes(&self) -> &[String];

    /// Returns what is wrong with the file: a sentence each.
    fn findings(&self) -> &[String];

    /// Adds up what the scope asks for.
    ///
    /// # Errors
    ///
    /// When the file cannot be read again, or contradicts itself.
    fn read_scope(&self, scope: &Scope) -> Result<HeapRead, ImportError>;

    /// Adds up what the scope asks for, and what happened in each slice of the time.
    ///
    /// # Errors
    ///
    /// As [`read_scope`](Self::read_scope).
    fn read_scope_sliced(&self, scope: &Scope, most_slices: usize)
    -> Result<(HeapRead, Slices), ImportError>;
}

/// Why a file of another tool cannot be read.
pub type ImportError = Box<dyn std::error::Error + Send + Sync>;

/// A file of another tool that was opened.
pub struct OpenedImport {
    /// The heap.
    pub heap: Box<dyn ImportedHeap>,
    /// The names that were looked up when it was opened.
    pub lookups: Option<names::AddressNames>,
}

/// Reads formats of other tools.
pub trait ForeignFormats: Sync {
    /// Returns the names of the formats, for [`InputFormat::Foreign`].
    fn names(&self) -> &'static [&'static str];

    /// Opens a file; `None` if it is of no format that is known. [`SourceOptions::input_format`]
    /// may name the format.
    ///
    /// # Errors
    ///
    /// When a file of a known format is damaged; it gives the problem and its place.
    fn open(&self, path: &Path, options: &SourceOptions) -> Result<Option<OpenedImport>, ImportError>;

    /// Unpacks the first bytes of a compressed file; `None` if that cannot be done.
    fn unpacked_start(&self, path: &Path) -> Option<Vec<u8>>;
}

/// The format of a file, where it is not to be recognised by content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InputFormat {
    /// A recording of cairn.
    Recording,
    /// A core file or minidump, compressed or not.
    Image,
    /// A format of another tool, by its name in [`ForeignFormats::names`].
    Foreign(&'static str),
}

/// How a heap is opened and named.
#[derive(Clone, Default)]
#[non_exhaustive]
pub struct SourceOptions {
    /// Where symbols are searched for; `None` for no names.
    pub symbols: Option<SymbolizerOptions>,
    /// Files of another build may name the functions of an image.
    pub allows_mismatch: bool,
    /// The root of the recorded machine's files, for images.
    pub root: Option<PathBuf>,
    /// Bytes that compressed input may unpack to, in place of the usual limit.
    pub max_unpacked_bytes: Option<u64>,
    /// The formats of other tools.
    pub formats: Option<&'static dyn ForeignFormats>,
    /// The format of the file; `None` to recognise it by its content.
    pub input_format: Option<InputFormat>,
    /// The name of the file in messages, if that is not its path.
    pub name: Option<String>,
}

impl fmt::Debug for SourceOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SourceOptions")
            .field("symbols", &self.symbols)
            .field("has_formats", &self.formats.is_some())
            .finish_non_exhaustive()
    }
}

/// Result of a [`HeapSource`].
#[derive(Debug)]
pub enum SourceHeap {
    /// A recording, also of a program that still runs.
    Recording(Box<HeapRecording>),
    /// An image of memory.
    Image(Box<ImageHeap>),
    /// A file of another tool.
    Imported(Arc<dyn ImportedHeap>),
}

/// A heap from a file of any kind.
pub struct HeapSource {
    path: PathBuf,
    heap: SourceHeap,
    options: SourceOptions,
    lookups: Option<names::AddressNames>,
}

impl fmt::Debug for HeapSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeapSource")
            .field("path", &self.path)
            .field("heap", &self.heap)
            .finish_non_exhaustive()
    }
}

/// Notes about a file for the reader of its answers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Remark {
    /// A sentence.
    pub text: String,
    /// True when parts of the heap are missing from the answers.
    pub is_loss: bool,
}

impl HeapSource {
    /// Opens a heap, whatever kind of file it is in.
    ///
    /// # Errors
    ///
    /// When the file cannot be read, is damaged where it begins, or holds no heap. The error names
    /// the file.
    pub fn open(path: &Path, options: &SourceOptions) -> Result<Self, SourceError> {
        let failed = |source| SourceError::open(path, options, source);
        let facts = path.metadata().map_err(failed)?;
        if facts.is_dir() {
            return Err(SourceError::unusable(path, options, "a directory; name a file in it"));
        }
        if !facts.is_file() {
            return Err(SourceError::unusable(
                path,
                options,
                "no regular file; give - to read standard input",
            ));
        }
        let kind = FileKind::of_start(&start_of(path).map_err(failed)?);
        if let Some(source) = Self::open_image(path, options, kind)? {
            return Ok(source);
        }
        let opened = match (kind, options.input_format) {
            (_, Some(InputFormat::Recording)) | (FileKind::Recording, None) => None,
            _ => match options.formats {
                Some(formats) => {
                    formats.open(path, options).map_err(|error| SourceError::import(path, options, error))?
                }
                None => None,
            },
        };
        if let Some(OpenedImport { heap, lookups }) = opened {
            return Ok(Self::new(path, options, SourceHeap::Imported(Arc::from(heap)), lookups));
        }
        if options.input_format != Some(InputFormat::Recording)
            && let Some(wrong) = wrong_file(path, kind, options)
        {
            return Err(SourceError::wrong(path, options, wrong));
        }
        // A file of no known kind is a damaged recording more often than anything else: its reader
        // says what is wrong.
        let recording =
            Recording::open(path).map_err(|error| SourceError::recording(path, options, error))?;
        let heap = SourceHeap::Recording(Box::new(HeapRecording::new(recording)));
        Ok(Self::new(path, options, heap, None))
    }

    /// Checks that a file opens; of a large recording it reads the header alone.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn check_file(path: &Path, options: &SourceOptions) -> Result<(), SourceError> {
        let start = start_of(path).map_err(|error| SourceError::open(path, options, error))?;
        if start.get(..FILE_HEADER_BYTES).is_some_and(|header| FileHeader::read(header).is_ok()) {
            return Ok(());
        }
        let options = SourceOptions { symbols: None, ..options.clone() };
        Self::open(path, &options).map(drop)
    }

    /// Makes a heap of an image that is open already, as one of a running process is.
    ///
    /// ```no_run
    /// use std::path::Path;
    ///
    /// use cairn_analysis::source::{HeapSource, ImageHeap, SourceOptions};
    /// use cairn_memory::image::{Image, OpenOptions};
    ///
    /// let path = Path::new("core.4711");
    /// let image = Image::open(path, &OpenOptions::default())?;
    /// if let Some(heap) = ImageHeap::of(&image) {
    ///     let source = HeapSource::of_image(path, heap, &SourceOptions::default());
    ///     println!("{} stacks", source.stacks().len());
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn of_image(path: &Path, heap: ImageHeap, options: &SourceOptions) -> Self {
        Self::new(path, options, SourceHeap::Image(Box::new(heap)), None)
    }

    /// Returns the source of a heap that is in memory already, as a selection of a store is. `path`
    /// names it in messages.
    #[must_use]
    pub fn of_import(path: &Path, heap: Arc<dyn ImportedHeap>, options: &SourceOptions) -> Self {
        Self::new(path, options, SourceHeap::Imported(heap), None)
    }

    fn new(
        path: &Path,
        options: &SourceOptions,
        heap: SourceHeap,
        lookups: Option<names::AddressNames>,
    ) -> Self {
        Self { path: path.to_owned(), heap, options: options.clone(), lookups }
    }

    fn open_image(path: &Path, options: &SourceOptions, kind: FileKind) -> Result<Option<Self>, SourceError> {
        let is_image = match kind {
            _ if let Some(format) = options.input_format => format == InputFormat::Image,
            FileKind::Core | FileKind::Minidump => true,
            // Unpacking all of a large file, only to see that it is no image, would take long.
            kind if kind.compression().is_some() => {
                let inside = options.formats.and_then(|formats| formats.unpacked_start(path));
                inside.map_or(kind == FileKind::Lz4, |start| {
                    matches!(FileKind::of_start(&start), FileKind::Core | FileKind::Minidump)
                })
            }
            _ => false,
        };
        if !is_image {
            return Ok(None);
        }
        let heap = ImageHeap::open(path, options)?;
        if heap.is_none() && options.input_format.is_some() {
            let wrong = WrongFile { kind, inside: None };
            return Err(SourceError::unusable(
                path,
                options,
                &format!("no core file or minidump, but {wrong}"),
            ));
        }
        Ok(heap.map(|heap| Self::new(path, options, SourceHeap::Image(Box::new(heap)), None)))
    }

    /// The heap itself, for what only one kind of file has.
    #[must_use]
    pub fn heap(&self) -> &SourceHeap {
        &self.heap
    }

    /// The recording, if it is one.
    #[must_use]
    pub fn recording(&self) -> Option<&HeapRecording> {
        match &self.heap {
            SourceHeap::Recording(heap) => Some(heap),
            _ => None,
        }
    }

    /// Makes answers from summaries check the checksums of all events, where it is a recording.
    pub fn check_all_events(&mut self) {
        if let SourceHeap::Recording(heap) = &mut self.heap {
            heap.check_all_events();
        }
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file's name in messages.
    #[must_use]
    pub fn name(&self) -> String {
        name_of(&self.path, &self.options)
    }

    /// True for one moment of a program's memory, in which only blocks that were alive are known.
    #[must_use]
    pub fn is_image(&self) -> bool {
        !matches!(self.heap, SourceHeap::Recording(_) | SourceHeap::Imported(_))
    }

    /// Returns the kind of the file, in a word or two.
    #[must_use]
    pub fn kind_name(&self) -> &'static str {
        match &self.heap {
            SourceHeap::Recording(_) => "recording",
            SourceHeap::Image(_) => "image of memory",
            SourceHeap::Imported(heap) => heap.format(),
        }
    }

    /// Returns the facts about the program beside its sums.
    #[must_use]
    pub fn about(&self) -> About {
        match &self.heap {
            SourceHeap::Recording(heap) => heap.about(),
            SourceHeap::Image(heap) => heap.about(),
            SourceHeap::Imported(heap) => heap.about(),
        }
    }

    /// The stacks that sums are of.
    #[must_use]
    pub fn stacks(&self) -> &Stacks {
        match &self.heap {
            SourceHeap::Recording(heap) => heap.stacks(),
            SourceHeap::Image(heap) => heap.stacks(),
            SourceHeap::Imported(heap) => heap.stacks(),
        }
    }

    /// How much its events record of time.
    #[must_use]
    pub fn times(&self) -> Times {
        match &self.heap {
            SourceHeap::Recording(_) => Times::All,
            SourceHeap::Image(_) => Times::None,
            SourceHeap::Imported(heap) => heap.times(),
        }
    }

    /// Returns the kind of the blocks that were not freed within a span.
    #[must_use]
    pub fn unfreed(&self, span: TimeSpan) -> Unfreed {
        match &self.heap {
            SourceHeap::Recording(_) | SourceHeap::Imported(_) if span.to_nanos == u64::MAX => {
                self.about().unfreed
            }
            _ => Unfreed::Alive,
        }
    }

    /// Returns the default cost of a report.
    ///
    /// It is the blocks that are alive for a span or an image, the allocated bytes for files
    /// without frees, and the number of allocations for files without bytes.
    #[must_use]
    pub fn usual_cost(&self, span: TimeSpan) -> Cost {
        let usual = match &self.heap {
            SourceHeap::Recording(_) => Cost::Peak,
            SourceHeap::Image(_) => Cost::Leaked,
            SourceHeap::Imported(heap) => heap.usual_cost(),
        };
        if usual == Cost::Peak && span != TimeSpan::ALL { Cost::Leaked } else { usual }
    }

    /// The costs that it can answer for.
    #[must_use]
    pub fn costs(&self) -> Vec<Cost> {
        Cost::ALL.into_iter().filter(|&cost| self.refusal(Question::Cost(cost)).is_none()).collect()
    }

    /// Refuses a question that the file cannot answer.
    ///
    /// # Errors
    ///
    /// [`SourceError::Unanswerable`], with the reason.
    pub fn check(&self, question: Question) -> Result<(), SourceError> {
        match self.refusal(question) {
            Some(why) => Err(SourceError::Unanswerable { name: self.name(), question, why }),
            None => Ok(()),
        }
    }

    fn refusal(&self, question: Question) -> Option<String> {
        match &self.heap {
            SourceHeap::Recording(_) => None,
            SourceHeap::Image(_) => ImageHeap::refusal(question).map(str::to_owned),
            SourceHeap::Imported(heap) => heap.refusal(question),
        }
    }

    /// The nanoseconds of a moment from the start. The peak is that of the whole heap.
    ///
    /// # Errors
    ///
    /// When the file has no such moment, or cannot be read.
    pub fn nanos_of(&self, moment: TimePoint) -> Result<u64, SourceError> {
        self.check(Question::Times)?;
        match moment {
            TimePoint::Nanos(nanos) => Ok(nanos),
            TimePoint::Peak => {
                self.check(Question::PeakTime)?;
                Ok(self.read(Scope::default(), ReadDetail::Whole)?.profile.peak_nanos)
            }
        }
    }

    /// The span that options name: `at` alone, or what was allocated from one moment to another.
    ///
    /// # Errors
    ///
    /// As [`nanos_of`](Self::nanos_of), and when the span ends before it begins.
    pub fn span(
        &self,
        at: Option<TimePoint>,
        from: Option<TimePoint>,
        to: Option<TimePoint>,
    ) -> Result<TimeSpan, SourceError> {
        let nanos_of = |moment: Option<TimePoint>, usual: u64| match moment {
            Some(moment) => self.nanos_of(moment),
            None => Ok(usual),
        };
        let span = match at {
            Some(at) => TimeSpan { from_nanos: 0, to_nanos: self.nanos_of(at)? },
            None => TimeSpan { from_nanos: nanos_of(from, 0)?, to_nanos: nanos_of(to, u64::MAX)? },
        };
        if span.from_nanos > span.to_nanos { Err(SourceError::EmptySpan) } else { Ok(span) }
    }

    /// Names of the frames, where names are wanted.
    #[must_use]
    pub fn symbols(&self) -> SourceNames {
        match (&self.heap, &self.options.symbols) {
            (SourceHeap::Imported(heap), symbols) if symbols.is_some() || heap.is_named_at_opening() => {
                SourceNames { files: None, own: Some(Arc::clone(heap)) }
            }
            (SourceHeap::Recording(heap), Some(symbols)) => {
                SourceNames { files: Some(heap.symbols(symbols.clone())), own: None }
            }
            (SourceHeap::Image(heap), Some(symbols)) => {
                let names = heap.names(symbols.clone(), self.options.allows_mismatch);
                SourceNames { files: Some(names), own: None }
            }
            _ => SourceNames { files: None, own: None },
        }
    }

    /// Names that a question can be asked with.
    #[must_use]
    pub fn names<'a>(&'a self, symbols: &'a dyn Namer, folding: Folding) -> Names<'a> {
        Names::new(self.stacks(), symbols, folding)
    }

    /// The names that were looked up when the file was opened, to report what is missing.
    pub fn take_lookups(&mut self) -> Option<names::AddressNames> {
        self.lookups.take()
    }

    /// The scope of filters and a span. Filters of different kinds narrow it down, those of one
    /// kind widen it.
    ///
    /// # Errors
    ///
    /// When the file cannot be asked by such a filter, or has no thread of that name.
    pub fn scope(
        &self,
        filters: &[HeapFilter],
        span: TimeSpan,
        names: &mut Names<'_>,
    ) -> Result<Scope, SourceError> {
        if span != TimeSpan::ALL {
            self.check(Question::Times)?;
        }
        let mut scope = Scope { from_nanos: span.from_nanos, to_nanos: span.to_nanos, ..Scope::default() };
        let (mut functions, mut modules, mut sizes) = (Vec::new(), Vec::new(), None);
        for filter in filters {
            match filter {
                HeapFilter::Function(pattern) => functions.push(pattern.clone()),
                HeapFilter::Module(pattern) => modules.push(pattern.clone()),
                HeapFilter::Thread(wanted) => {
                    self.check(Question::Threads)?;
                    scope.threads.get_or_insert_default().extend(self.threads_called(wanted)?);
                }
                HeapFilter::Size(range) => {
                    self.check(Question::Sizes)?;
                    sizes = Some(filter::widest(sizes, range));
                }
            }
        }
        scope.stacks = counted_stacks(names, &functions, &modules);
        scope.sizes = sizes.unwrap_or(scope.sizes);
        Ok(scope)
    }

    fn threads_called(&self, wanted: &str) -> Result<Vec<u32>, SourceError> {
        let threads = self.about().threads;
        let found: Vec<u32> = (0..)
            .zip(&threads)
            .filter_map(|(index, thread)| thread.is_called(wanted).then_some(index))
            .collect();
        if found.is_empty() { Err(SourceError::no_thread(wanted, &threads)) } else { Ok(found) }
    }

    /// Adds up what a scope asks for.
    ///
    /// # Errors
    ///
    /// When the file cannot be read any more, or contradicts itself.
    pub fn read(&self, scope: Scope, detail: ReadDetail) -> Result<HeapRead, SourceError> {
        match &self.heap {
            SourceHeap::Recording(heap) => match detail {
                ReadDetail::Whole => heap.read(scope),
                ReadDetail::Brief => heap.read_brief(scope),
                ReadDetail::Stacks => heap.read_stacks(scope),
            }
            .map_err(|error| self.unreadable(error)),
            SourceHeap::Image(heap) => Ok(heap.read(scope)),
            SourceHeap::Imported(heap) => {
                heap.read_scope(&scope).map_err(|error| SourceError::import(&self.path, &self.options, error))
            }
        }
    }

    /// Adds up the events of a scope, and those of each slice of the time.
    ///
    /// A file without times has no slices.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    pub fn read_sliced(&self, scope: Scope, most_slices: usize) -> Result<(HeapRead, Slices), SourceError> {
        match &self.heap {
            SourceHeap::Recording(heap) => {
                heap.read_sliced(scope, most_slices).map_err(|error| self.unreadable(error))
            }
            SourceHeap::Image(heap) => Ok((heap.read(scope), Slices::default())),
            SourceHeap::Imported(heap) => heap
                .read_scope_sliced(&scope, most_slices)
                .map_err(|error| SourceError::import(&self.path, &self.options, error)),
        }
    }

    fn unreadable(&self, error: RecordingError) -> SourceError {
        SourceError::recording(&self.path, &self.options, error)
    }

    /// Returns the notes about the file, beside those in the answers themselves.
    #[must_use]
    pub fn remarks(&self) -> Vec<Remark> {
        let remark = |is_loss: bool| move |text: &String| Remark { text: text.clone(), is_loss };
        match &self.heap {
            SourceHeap::Recording(heap) => heap.findings().iter().filter_map(remark_of).collect(),
            SourceHeap::Image(heap) => heap.findings().iter().map(remark(true)).collect(),
            SourceHeap::Imported(heap) => {
                let notes =
                    heap.notes().iter().map(|note| Remark { text: format!("note: {note}"), is_loss: false });
                notes.chain(heap.findings().iter().map(remark(true))).collect()
            }
        }
    }

    /// Its title: the command line, or else the file's name.
    #[must_use]
    pub fn title(&self) -> String {
        let command = self.about().command;
        if command.is_empty() { self.name() } else { command.join(" ") }
    }
}

/// True when an answer is of all events. In place of a summary that cannot be used, the events were
/// read.
#[must_use]
pub fn is_complete(read: &HeapRead) -> bool {
    read.findings.iter().all(|finding| matches!(finding, Finding::UnusableSums { .. }))
}

/// A finding of a recording, unless answers themselves say it.
fn remark_of(finding: &Finding) -> Option<Remark> {
    match finding {
        Finding::NoEnd
        | Finding::NoIndex
        | Finding::UnknownChunk { .. }
        | Finding::UnknownClock
        | Finding::ClockJump { .. } => None,
        Finding::Growing(_) => Some(Remark { text: format!("note: {finding}"), is_loss: false }),
        Finding::EndedEarly(ended) if ended.cause.is_intended() => None,
        finding => Some(Remark { text: finding.to_string(), is_loss: true }),
    }
}

/// The wrong kind of a file, if it is recognised as one.
fn wrong_file(path: &Path, kind: FileKind, options: &SourceOptions) -> Option<WrongFile> {
    if matches!(kind, FileKind::Recording | FileKind::Unknown) {
        return None;
    }
    let inside = kind.compression().and_then(|_| options.formats?.unpacked_start(path));
    Some(WrongFile { kind, inside: inside.map(|start| FileKind::of_start(&start)) })
}

/// The name of a file in messages.
fn name_of(path: &Path, options: &SourceOptions) -> String {
    options.name.clone().unwrap_or_else(|| path.display().to_string())
}
