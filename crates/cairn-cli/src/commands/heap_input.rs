//! Options of the commands that read heaps: which file, which part of it, and with which names.

use std::io;
use std::path::Path;
use std::str::FromStr;

use cairn_analysis::heap::schema::ScopeJson;
use cairn_analysis::heap::slices::Slices;
use cairn_analysis::heap::{Folding, HeapProfile, HeapRead, Names, Scope, Suppressed, UsageSample};
use cairn_analysis::source::{
    HeapFilter, HeapSource, InputFormat, ReadDetail, SourceError, SourceNames, SourceOptions, TimeSpan,
    is_complete,
};
use cairn_exchange::import::FORMATS;
use clap::{Args, ValueEnum};

use super::fold_options::{FoldOptions, KnownLeakOptions};
use super::input_file::InputFile;
use super::symbol_options::{SymbolOptions, complain_about_modules};
use crate::output::{Outcome, complain, max_unpacked_bytes};

pub(crate) use cairn_analysis::source::parse_size;

/// Which part of a heap is read, and how its frames are shown.
#[derive(Args)]
pub(crate) struct HeapInput {
    #[command(flatten)]
    filters: FilterOptions,

    /// The format of the file [default: recognised by its content]
    #[arg(long, value_name = "FORMAT")]
    input_format: Option<InputFormatName>,

    #[command(flatten)]
    folds: FoldOptions,

    #[command(flatten)]
    symbols: SymbolOptions,
}

/// Which blocks are counted.
#[derive(Args)]
pub(crate) struct FilterOptions {
    /// Count only blocks that match. The kinds are function=PATTERN or module=PATTERN (any frame of
    /// the stack), thread=NAME or thread=NUMBER, size=FROM..TO. May be repeated: kinds narrow down,
    /// the same kind widens. Patterns support *, ^ and $
    #[arg(long, value_name = "KIND=WHAT")]
    filter: Vec<WrittenFilter>,
}

impl FilterOptions {
    /// True without a filter.
    pub(crate) fn is_empty(&self) -> bool {
        self.filter.is_empty()
    }

    /// Returns the filters.
    pub(crate) fn filters(&self) -> Vec<HeapFilter> {
        self.filter.iter().map(|filter| filter.filter.clone()).collect()
    }
}

/// A format of files that hold heaps.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum InputFormatName {
    /// A recording of cairn
    Cairn,
    /// A core file or minidump, compressed or not
    Core,
    /// A data file of heaptrack
    Heaptrack,
    /// A profile of pprof
    Pprof,
    /// A processed profile of the Firefox Profiler
    Firefox,
    /// A recording of call-stack-tracker
    Tracker,
}

impl From<InputFormatName> for InputFormat {
    fn from(name: InputFormatName) -> Self {
        match name {
            InputFormatName::Cairn => Self::Recording,
            InputFormatName::Core => Self::Image,
            InputFormatName::Heaptrack => Self::Foreign("heaptrack"),
            InputFormatName::Pprof => Self::Foreign("pprof"),
            InputFormatName::Firefox => Self::Foreign("firefox"),
            InputFormatName::Tracker => Self::Foreign("tracker"),
        }
    }
}

/// A filter, and how it was written.
#[derive(Clone)]
struct WrittenFilter {
    text: String,
    filter: HeapFilter,
}

impl FromStr for WrittenFilter {
    type Err = <HeapFilter as FromStr>::Err;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self { text: text.to_owned(), filter: text.parse()? })
    }
}

/// A heap that is open, and the file that it is read from.
pub(crate) struct OpenHeap {
    pub(crate) source: HeapSource,
    /// Holds the bytes that came from a pipe.
    _file: InputFile,
}

/// Converts an error of the library to one of this command.
///
/// An empty span is reported like other invalid arguments.
pub(crate) fn failed(error: SourceError) -> io::Error {
    match error {
        SourceError::EmptySpan => {
            let text = "--from and --to: the earlier time comes first\n";
            clap::Error::raw(clap::error::ErrorKind::ValueValidation, text).exit()
        }
        SourceError::Open { ref source, .. } => io::Error::new(source.kind(), error.to_string()),
        error => io::Error::other(error.to_string()),
    }
}

impl HeapInput {
    /// Combines the options of a command that opens its heap itself.
    pub(crate) fn of_opened(filters: FilterOptions, folds: FoldOptions, symbols: SymbolOptions) -> Self {
        Self { filters, input_format: None, folds, symbols }
    }

    /// Opens a heap of any kind; an error names the file.
    pub(crate) fn open(&self, path: &Path) -> io::Result<OpenHeap> {
        let file = InputFile::open(path)?;
        Ok(OpenHeap { source: self.open_file(&file)?, _file: file })
    }

    /// The same for an input that is open already, and has to be as long as the heap is read.
    pub(crate) fn open_file(&self, file: &InputFile) -> io::Result<HeapSource> {
        let mut source = HeapSource::open(file.path(), &self.options_for(file)).map_err(failed)?;
        if let Some(names) = source.take_lookups() {
            complain_about_modules(&names);
            self.symbols.index_later(&names);
        }
        Ok(source)
    }

    /// How this file is opened and named.
    pub(crate) fn options_for(&self, file: &InputFile) -> SourceOptions {
        let mut options = self.source_options();
        options.name = file.name().map(str::to_owned);
        options
    }

    /// How files are opened and named.
    pub(crate) fn source_options(&self) -> SourceOptions {
        let mut options = SourceOptions::default();
        options.symbols = self.symbols.wanted().then(|| self.symbols.symbolizer());
        options.allows_mismatch = self.symbols.allows_mismatch();
        options.root = self.symbols.root().map(Path::to_owned);
        options.max_unpacked_bytes = max_unpacked_bytes();
        options.formats = Some(&FORMATS);
        options.input_format = self.input_format.map(InputFormat::from);
        options
    }

    /// Says which modules have no names, and why; has the missing indexes built. To be called after
    /// the answers.
    pub(crate) fn finish(&self, symbols: SourceNames) {
        if let Some(names) = symbols.into_lookups() {
            complain_about_modules(&names);
            self.symbols.index_later(&names);
        }
    }

    /// Has the indexes of these programs built.
    pub(crate) fn index_later(&self, names: &cairn_analysis::names::AddressNames) {
        self.symbols.index_later(names);
    }

    /// The same for programs that are known.
    pub(crate) fn index_these_later(&self, programs: Vec<std::path::PathBuf>) {
        self.symbols.index_these_later(programs);
    }

    /// The frames that are left out of stacks.
    pub(crate) fn folding(&self) -> io::Result<Folding> {
        self.folds.folding()
    }

    /// Holds back the known leaks of a profile; returns them by name.
    pub(crate) fn hold_back(
        &self,
        known: &KnownLeakOptions,
        source: &HeapSource,
        span: TimeSpan,
        profile: &mut HeapProfile,
        names: &mut Names<'_>,
    ) -> io::Result<Vec<Suppressed>> {
        known.hold_back(&self.folds, source, span, profile, names)
    }

    /// The same where it is known whether blocks are leaked.
    pub(crate) fn hold_back_of(
        &self,
        known: &KnownLeakOptions,
        is_leaked: bool,
        profile: &mut HeapProfile,
        names: &mut Names<'_>,
    ) -> io::Result<Vec<Suppressed>> {
        known.hold_back_of(&self.folds, is_leaked, profile, names)
    }

    /// The names of a heap's frames.
    pub(crate) fn names<'a>(
        &self,
        source: &'a HeapSource,
        symbols: &'a SourceNames,
    ) -> io::Result<Names<'a>> {
        Ok(source.names(symbols, self.folding()?))
    }

    /// The filters as they were written.
    pub(crate) fn filter_texts(&self) -> Vec<String> {
        self.filters.filter.iter().map(|filter| filter.text.clone()).collect()
    }

    /// The filters.
    pub(crate) fn filters(&self) -> Vec<HeapFilter> {
        self.filters.filters()
    }

    /// The scope of the filters and a span.
    pub(crate) fn scope(
        &self,
        source: &HeapSource,
        names: &mut Names<'_>,
        span: TimeSpan,
    ) -> io::Result<Scope> {
        source.scope(&self.filters(), span, names).map_err(failed)
    }

    /// The scope as JSON has it.
    pub(crate) fn scope_json(&self, span: TimeSpan) -> ScopeJson {
        ScopeJson {
            from_nanos: span.from_nanos,
            to_nanos: (span.to_nanos != u64::MAX).then_some(span.to_nanos),
            filters: self.filter_texts(),
        }
    }
}

/// Reads a part of a heap; says on standard error what is wrong with its events.
pub(crate) fn read(source: &HeapSource, scope: Scope, detail: ReadDetail) -> io::Result<HeapRead> {
    let read = source.read(scope, detail).map_err(failed)?;
    complain_about_events(source, &read);
    Ok(read)
}

/// As [`read`], with what happened in each slice of the time; a file without times has none.
pub(crate) fn read_sliced(
    source: &HeapSource,
    scope: &Scope,
    most_slices: usize,
) -> io::Result<(HeapRead, Slices)> {
    let (read, slices) = source.read_sliced(scope.clone(), most_slices).map_err(failed)?;
    complain_about_events(source, &read);
    Ok((read, slices))
}

fn complain_about_events(source: &HeapSource, read: &HeapRead) {
    for finding in &read.findings {
        complain(&format_args!("{}: {finding}", source.name()));
    }
}

/// Whether an answer is of all events.
pub(crate) fn outcome_of(read: &HeapRead) -> Outcome {
    if is_complete(read) { Outcome::Done } else { Outcome::Incomplete }
}

/// Says on standard error what is wrong with the file, where that makes the answer doubtful.
pub(crate) fn complain_about(source: &HeapSource) -> Outcome {
    let mut outcome = Outcome::Done;
    for remark in source.remarks() {
        complain(&format_args!("{}: {}", source.name(), remark.text));
        if remark.is_loss {
            outcome = Outcome::Incomplete;
        }
    }
    outcome
}

/// The worse of two outcomes.
pub(crate) fn worse_of(one: Outcome, other: Outcome) -> Outcome {
    if one == Outcome::Done { other } else { one }
}

/// Resident memory of a process: the kernel's count if known, the samples, and cairn's part.
///
/// A program may hold its most between two samples, so that theirs is no maximum.
pub(crate) fn resident_text(read: &HeapRead, peak_bytes: Option<u64>) -> Option<String> {
    /// The part of the kernel's maximum that the samples may miss and still count as having met it.
    const MISSED: f64 = 0.05;
    let bytes = super::heap_text::bytes;
    let Some(sampled) = read.most_resident_bytes else {
        return peak_bytes.map(|peak| format!("{} at most, cairn's own included", bytes(peak)));
    };
    let own = read.own_resident_bytes();
    let whose = match own {
        Some(own) => format!("all of the process but {} of cairn", bytes(own)),
        None => "all of the process, cairn's own included".to_owned(),
    };
    let together = sampled.saturating_add(own.unwrap_or(0));
    Some(match peak_bytes {
        Some(peak) if together as f64 >= peak as f64 * (1.0 - MISSED) => {
            format!("{} at most, {whose}", bytes(sampled))
        }
        Some(peak) => {
            let beside = own.map_or(String::new(), |own| format!(" beside {} of cairn", bytes(own)));
            let (peak, sampled) = (bytes(peak), bytes(sampled));
            format!("{peak} at most, cairn's own included; {sampled}{beside} {}", samples_text(&read.usage))
        }
        None => format!("{} {}, {whose}", bytes(sampled), samples_text(&read.usage)),
    })
}

/// `in the one sample, after 3.10 ms`, or `in 12 samples, one every 105 ms`.
fn samples_text(usage: &[UsageSample]) -> String {
    /// From this number on, every second sample may be missing in the list; their maximum has all.
    const MANY: usize = 2048;
    let duration = super::heap_text::duration;
    match usage {
        many if many.len() >= MANY => {
            format!("in more than {} samples", super::heap_text::count(MANY as u64 - 1))
        }
        [] => "in samples".to_owned(),
        [only] => format!("in the one sample, after {}", duration(only.nanos)),
        [first, .., last] => {
            let gap = last.nanos.saturating_sub(first.nanos) / (usage.len() as u64 - 1);
            format!("in {} samples, one every {}", super::heap_text::count(usage.len() as u64), duration(gap))
        }
    }
}
