//! `cairn export`: a recording in the format of another tool.

use std::cmp::Reverse;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use cairn_analysis::file_kind::FileKind;
use cairn_analysis::heap::{Cost, Questions, Scope};
use cairn_analysis::names::AddressNames;
use cairn_analysis::player::{Filter, PlayError, Player};
use cairn_analysis::source::{HeapSource, ReadDetail, SourceHeap, TimePoint, TimeSpan};
use cairn_exchange::import::{Kind, event_source, live_blocks};
use cairn_exchange::target::{Choice, HeapEvents, MOST_BLOCKS, Rows};
use cairn_exchange::{ExchangeError, Profile, Subject, Target, Written, marks, write, write_tracker};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Args, ValueEnum};

use super::folding_text::folded_note;
use super::heap_input::{HeapInput, complain_about, failed, outcome_of, read, worse_of};
use super::input_file::InputFile;
use super::options::{CostName, ListOptions, ViewName, begin_file, cost_of, views};
use crate::new_file::Output;
use crate::output::{Outcome, Progress, complain};

/// Write a heap in the format of another tool: pprof, Firefox Profiler, heaptrack, speedscope …
///
/// Takes recordings of heaps and of marks, core files, and files of other tools. The command says
/// on standard error what a format cannot hold.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Export {
    /// A recording, core file, minidump or file of another tool; - for standard input. Other tools
    /// are heaptrack, pprof, the Firefox Profiler and call-stack-tracker
    file: PathBuf,

    /// The format
    #[arg(long, value_name = "FORMAT", value_parser = formats())]
    format: Option<FormatChoice>,

    /// Where to write it; - for standard output [default: the file's name with the format's ending]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Replace a file that is there
    #[arg(long)]
    force: bool,

    /// The rows of a table, in the formats csv and jsonl [default: stack]
    #[arg(long, value_name = "VIEW", value_parser = views(VIEWS))]
    by: Option<ViewName>,

    /// --by, as it was called
    #[arg(long, hide = true, value_name = "ROWS", conflicts_with = "by")]
    table: Option<TableRows>,

    /// The measure, in formats that hold one number for each stack: folded, heapprofile [default:
    /// peak]
    #[arg(long, value_name = "COST")]
    cost: Option<CostName>,

    #[command(flatten)]
    list: ListOptions,

    /// The marks of a recording that has allocations, too
    #[arg(long)]
    marks: bool,

    /// The heap as it was at this time, as 1.5s, 200ms, or peak
    #[arg(long, value_name = "TIME", conflicts_with_all = ["from", "between"])]
    at: Option<TimePoint>,

    /// Only what was allocated from this time on
    #[arg(long, value_name = "TIME", conflicts_with = "between")]
    from: Option<TimePoint>,

    /// Only what was allocated up to this time
    #[arg(long, value_name = "TIME")]
    to: Vec<ToValue>,

    /// --from and --to, as they were called
    #[arg(long, hide = true, num_args = 2, value_names = ["FROM", "TO"])]
    between: Option<Vec<TimePoint>>,

    #[command(flatten)]
    input: HeapInput,
}

/// The value of `--to`: the end of a stretch of time. It was the name of a format, which is still
/// understood.
#[derive(Clone, Copy)]
enum ToValue {
    Time(TimePoint),
    Format(Target),
}

/// The value of `--format`.
#[derive(Clone, Copy)]
enum FormatChoice {
    Target(Target),
    /// The events of a recording of marks, as call-stack-tracker records them.
    Tracker,
}

/// The name of call-stack-tracker's format.
const TRACKER: &str = "tracker";

impl FromStr for ToValue {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(target) = Target::ALL.into_iter().find(|target| target.name() == text) {
            return Ok(Self::Format(target));
        }
        text.parse().map(Self::Time).map_err(|error| format!("{error}; a format is chosen by --format"))
    }
}

/// The views that a table can have.
const VIEWS: &[ViewName] = &[
    ViewName::Stack,
    ViewName::Function,
    ViewName::Line,
    ViewName::Module,
    ViewName::Thread,
    ViewName::Size,
    ViewName::Lifetime,
    ViewName::Time,
];

const EXAMPLES: &str = "\
Examples:
  cairn export app.4711.cairn --format pprof && pprof -http : app.4711.pb.gz
  cairn export app.4711.cairn --format firefox            drop it on https://profiler.firefox.com
  cairn export app.4711.cairn --format heaptrack && heaptrack_gui app.4711.heaptrack.zst
  cairn export app.4711.cairn --format folded --cost leaked -o - | inferno-flamegraph > leaks.svg
  cairn export app.4711.cairn --format csv --by time
  cairn export core.4711 --format pprof                   the blocks in a core file

All stacks are written, and all frames but the folded ones. The Firefox format omits the
shortest-lived of more than a million blocks, and files of marks hold two million. --full writes
all of these.

Exit codes: 0 success; 1 the file cannot be read, or cannot answer the question, or the output cannot
be written; 2 invalid arguments; 3 parts of the file are missing from the output.";

/// The formats by their names, for `--help` and `--format`.
fn formats() -> impl TypedValueParser<Value = FormatChoice> {
    let values = Target::ALL.map(|target| PossibleValue::new(target.name()).help(target.reader()));
    let tracker = PossibleValue::new(TRACKER).help("call-stack-tracker's player: modules and marked stacks");
    PossibleValuesParser::new(values.into_iter().chain([tracker])).map(|name| {
        // Other names are refused before.
        let target = Target::ALL.into_iter().find(|target| target.name() == name);
        target.map_or(FormatChoice::Tracker, FormatChoice::Target)
    })
}

/// The rows of a table, as they were called.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum TableRows {
    Stacks,
    Functions,
    Lines,
    Modules,
    Threads,
    Sizes,
    Lifetimes,
    Timeline,
}

impl TableRows {
    const fn view(self) -> ViewName {
        match self {
            Self::Stacks => ViewName::Stack,
            Self::Functions => ViewName::Function,
            Self::Lines => ViewName::Line,
            Self::Modules => ViewName::Module,
            Self::Threads => ViewName::Thread,
            Self::Sizes => ViewName::Size,
            Self::Lifetimes => ViewName::Lifetime,
            Self::Timeline => ViewName::Time,
        }
    }
}

const fn rows_of(view: ViewName) -> Rows {
    match view {
        ViewName::Function => Rows::Functions,
        ViewName::Line => Rows::Lines,
        ViewName::Module => Rows::Modules,
        ViewName::Thread => Rows::Threads,
        ViewName::Size => Rows::Sizes,
        ViewName::Lifetime => Rows::Lifetimes,
        ViewName::Time => Rows::Timeline,
        ViewName::Stack | ViewName::Tree | ViewName::Callers => Rows::Stacks,
    }
}

/// The column of a heap's profile that holds a cost.
const fn column_of(cost: Cost) -> &'static str {
    match cost {
        Cost::Peak => "peak_space",
        Cost::Leaked => "inuse_space",
        Cost::Allocated => "alloc_space",
        Cost::Count => "alloc_objects",
        Cost::Temporary => "temporary_objects",
    }
}

/// True for formats that are no text.
const fn is_binary(target: Target) -> bool {
    matches!(target, Target::Pprof | Target::Heaptrack | Target::Otlp)
}

impl Export {
    pub(crate) fn run(self) -> io::Result<Outcome> {
        let choice = self.format_choice();
        if let FormatChoice::Target(target) = choice {
            self.check_limit(target);
        }
        // An output that cannot be written is refused before minutes of reading.
        let mut sink = self.begin(choice)?;
        let file = InputFile::open(&self.file)?;
        let progress = Progress::begin("reading the events");
        let (written, outcome) = match choice {
            FormatChoice::Tracker => self.write_for_tracker(&file, &mut sink)?,
            FormatChoice::Target(target) if self.marks => {
                self.write_marks(&file, target, &mut sink, &progress)?
            }
            FormatChoice::Target(target) => self.write_events(&file, target, &mut sink, &progress)?,
        };
        let path = sink.finish()?;
        drop(progress);
        for loss in &written.losses {
            complain(&format_args!("note: {loss}"));
        }
        if let Some(path) = path {
            let path = path.display().to_string();
            writeln!(anstream::stderr(), "wrote {}", crate::output::printable(&path))?;
        }
        Ok(outcome)
    }

    fn format_choice(&self) -> FormatChoice {
        let named = self.to.iter().find_map(|to| match to {
            ToValue::Format(target) => Some(FormatChoice::Target(*target)),
            ToValue::Time(_) => None,
        });
        self.format.or(named).unwrap_or_else(|| {
            let text = "which format? give --format FORMAT; `cairn export --help` lists the formats\n";
            clap::Error::raw(ErrorKind::MissingRequiredArgument, text).exit()
        })
    }

    fn span(&self, source: &HeapSource) -> io::Result<TimeSpan> {
        let to = self.to.iter().rev().find_map(|to| match to {
            ToValue::Time(time) => Some(*time),
            ToValue::Format(_) => None,
        });
        if self.at.is_some() && to.is_some() || self.between.is_some() && to.is_some() {
            let text = "--to TIME goes with --from TIME, and not with --at\n";
            clap::Error::raw(ErrorKind::ArgumentConflict, text).exit();
        }
        let (from, to) = match self.between.as_deref() {
            Some(&[from, to]) => (Some(from), Some(to)),
            _ => (self.from, to),
        };
        source.span(self.at, from, to).map_err(failed)
    }

    fn rows(&self) -> Rows {
        rows_of(self.by.or(self.table.map(TableRows::view)).unwrap_or(ViewName::Stack))
    }

    /// A limit leaves stacks out, which formats of events and other tables do not have.
    fn check_limit(&self, target: Target) {
        let is_table = matches!(target, Target::Csv | Target::JsonLines);
        if self.list.is_limited() && (target.has_events() || is_table && self.rows() != Rows::Stacks) {
            let text = "--limit chooses the largest stacks: it goes with formats that hold sums of stacks\n";
            clap::Error::raw(ErrorKind::ArgumentConflict, text).exit();
        }
    }

    fn begin(&self, choice: FormatChoice) -> io::Result<Output> {
        let (name, extension, is_binary) = match choice {
            FormatChoice::Target(target) => (target.name(), target.extension(), is_binary(target)),
            FormatChoice::Tracker => (TRACKER, "tracker", true),
        };
        let is_stdin = self.file == Path::new("-");
        let usual = || if is_stdin { "-".into() } else { beside(&self.file, extension) };
        let path = self.output.clone().unwrap_or_else(usual);
        if is_binary {
            return begin_file(&path, self.force, &self.file, &format!("the format {name}"));
        }
        Output::create(&path, self.force, &self.file)
    }

    fn write_events(
        &self,
        file: &InputFile,
        target: Target,
        sink: &mut Output,
        progress: &Progress,
    ) -> io::Result<(Written, Outcome)> {
        match self.input.open_file(file) {
            Ok(mut source) if is_heap(&source) => {
                // These formats hold events, which a summary does not check.
                if target.has_events() {
                    source.check_all_events();
                }
                self.write_heap(&source, target, sink, progress)
            }
            // Recordings of marks, and those of call-stack-tracker, are written by the player.
            Err(error) if !has_marks(file.path()) => Err(error),
            _ => self.write_marks(file, target, sink, progress),
        }
    }

    fn write_heap(
        &self,
        source: &HeapSource,
        target: Target,
        sink: &mut Output,
        progress: &Progress,
    ) -> io::Result<(Written, Outcome)> {
        let span = self.span(source)?;
        // Formats of one number hold the peak of a stretch of time, too.
        let cost = match self.cost {
            Some(_) => cost_of(source, self.cost, span)?,
            None => source.usual_cost(TimeSpan::ALL),
        };
        if let Some(question) = self.by.or(self.table.map(TableRows::view)).and_then(ViewName::question) {
            source.check(question).map_err(failed)?;
        }
        let symbols = source.symbols();
        let (written, of_events) = {
            let mut names = self.input.names(source, &symbols)?;
            let scope = self.input.scope(source, &mut names, span)?;
            let answer = read(source, scope.clone(), ReadDetail::Whole)?;
            progress.now("looking for names");
            let mut questions = Questions::new(&answer.profile, names);
            let (mut profile, stacks) = Profile::of_heap(&mut questions);
            let about = source.about();
            profile.title = source.title();
            profile.process = about.process;
            profile.started_wall_nanos = about.started_wall_nanos;
            // The first text of some formats is the title.
            if matches!(source.heap(), SourceHeap::Recording(_))
                && !about.unfreed.is_leaked()
                && !profile.title.is_empty()
            {
                profile.notes.push(format!(
                    "blocks that were not freed are no leaks here: {}",
                    about.unfreed.heading()
                ));
            }
            if source.is_image() && !target.has_events() {
                // Nothing is known of the allocations before those blocks.
                profile = profile.with_columns(&["inuse_space", "inuse_objects"]);
            }
            let column = profile.column(column_of(cost)).unwrap_or(profile.main_column);
            let folded = questions.folded_frames(|sums| !sums.is_empty());
            let left_out = self.leave_out_small_stacks(&mut profile, column);
            let live = live_blocks(source, &scope);
            let events = event_source(source, &live).map(|events| HeapEvents {
                source: events,
                scope: &scope,
                sums: &answer.profile,
                threads: about.threads,
                stacks: &stacks,
            });
            let subject = Subject { profile: &profile, heap: events.as_ref(), marks: &[] };
            progress.now("writing");
            let mut written = self.put(&subject, target, column, sink)?;
            written.losses.extend(folded_note(folded));
            if left_out > 0 {
                written.losses.push(format!("--limit leaves out {left_out} smaller stacks"));
            }
            (written, outcome_of(&answer))
        };
        let outcome = worse_of(complain_about(source), of_events);
        self.input.finish(symbols);
        Ok((written, outcome))
    }

    /// Leaves out the stacks behind the limit; returns how many.
    fn leave_out_small_stacks(&self, profile: &mut Profile, column: usize) -> usize {
        if !self.list.is_limited() {
            return 0;
        }
        let before = profile.samples.len();
        let value = |values: &[u64]| values.get(column).copied().unwrap_or(0);
        let whole: u64 =
            profile.samples.iter().fold(0, |sum, sample| sum.saturating_add(value(&sample.values)));
        let least = self.list.least_share().unwrap_or(0.0) * whole as f64;
        profile.samples.sort_by_key(|sample| Reverse(value(&sample.values)));
        profile.samples.truncate(self.list.most_entries(usize::MAX));
        profile.samples.retain(|sample| value(&sample.values) as f64 >= least);
        before - profile.samples.len()
    }

    fn write_marks(
        &self,
        file: &InputFile,
        target: Target,
        sink: &mut Output,
        progress: &Progress,
    ) -> io::Result<(Written, Outcome)> {
        let name = file.name().map_or_else(|| self.file.display().to_string(), str::to_owned);
        let problem = |problem: PlayError| io::Error::other(format!("{name}: {problem}"));
        progress.now("reading the marks");
        let mut player = Player::open(file.path()).map_err(problem)?;
        let most_marks = if self.list.full { usize::MAX } else { marks::MOST_MARKS };
        let mut names = self.input.source_options().symbols.map(AddressNames::new);
        let mut found =
            marks::read(&mut player, &Filter::default(), names.as_mut(), most_marks).map_err(problem)?;
        found.profile.title.clone_from(&name);
        let subject = Subject { profile: &found.profile, heap: None, marks: &found.marks };
        progress.now("writing");
        let mut written = self.put(&subject, target, 0, sink)?;
        if found.left_out > 0 {
            written.losses.push(format!(
                "{} marks are in the sums alone: a file holds two million one by one, with --full all",
                found.left_out
            ));
        }
        for finding in player.findings() {
            complain(&format_args!("{name}: {finding}"));
        }
        Ok((written, if player.is_whole() { Outcome::Done } else { Outcome::Incomplete }))
    }

    /// Writes modules and marked stacks, whose addresses the format stores without names.
    fn write_for_tracker(&self, file: &InputFile, sink: &mut Output) -> io::Result<(Written, Outcome)> {
        let name = file.name().map_or_else(|| self.file.display().to_string(), str::to_owned);
        let mut player =
            Player::open(file.path()).map_err(|problem| io::Error::other(format!("{name}: {problem}")))?;
        let written = write_tracker(&mut player, sink).map_err(|error| self.writing_failed(error))?;
        for finding in player.findings() {
            complain(&format_args!("{name}: {finding}"));
        }
        Ok((written, if player.is_whole() { Outcome::Done } else { Outcome::Incomplete }))
    }

    fn writing_failed(&self, error: ExchangeError) -> io::Error {
        match error {
            ExchangeError::Io { source, .. } if crate::output::is_broken_pipe(&source) => source,
            error => io::Error::other(format!("{}: {error}", self.file.display())),
        }
    }

    fn put(
        &self,
        subject: &Subject<'_>,
        target: Target,
        column: usize,
        sink: &mut Output,
    ) -> io::Result<Written> {
        let compression = sink.named_compression();
        let most_blocks = if self.list.full { u64::MAX } else { MOST_BLOCKS };
        let choice = Choice { column, rows: self.rows(), most_blocks, compression };
        write(target, subject, choice, sink).map_err(|error| self.writing_failed(error))
    }
}

/// The file's name with another ending. In `app.4711`, the number behind the last point is no
/// ending.
fn beside(file: &Path, extension: &str) -> PathBuf {
    let is_ending = |ending: &std::ffi::OsStr| ending == "cairn" || ending == "spool";
    let stem = if file.extension().is_some_and(is_ending) { file.file_stem() } else { file.file_name() };
    let mut name = stem.unwrap_or_default().to_owned();
    name.push(".");
    name.push(extension);
    file.with_file_name(name)
}

/// True for files that the player reads.
fn has_marks(path: &Path) -> bool {
    let is_recording = FileKind::of_file(path).is_ok_and(|kind| kind == FileKind::Recording);
    let kind = || File::open(path).ok().and_then(|file| Kind::of(file).ok().flatten());
    is_recording || kind() == Some(Kind::Tracker)
}

fn is_heap(source: &HeapSource) -> bool {
    let heap = match source.heap() {
        SourceHeap::Recording(heap) => heap,
        // It has stacks and times, which marks hold better: there are no bytes.
        SourceHeap::Imported(heap) => return !heap.is_named_at_opening(),
        _ => return true,
    };
    match heap.recording().totals() {
        Some(summary) => summary.allocations > 0,
        None => heap.read(Scope::default()).is_ok_and(|read| read.profile.totals.allocations > 0),
    }
}
