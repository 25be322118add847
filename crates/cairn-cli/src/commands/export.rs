//! `cairn export`: a recording in the format of another tool.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use cairn_analysis::heap::Scope;
use cairn_analysis::names::Names;
use cairn_analysis::player::{Filter, PlayError, Player};
use cairn_exchange::import::{Kind, Times};
use cairn_exchange::target::{Choice, EventSource, HeapEvents, Rows};
use cairn_exchange::{ExchangeError, Profile, Subject, Target, Written, marks, write};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};

use super::heap_input::{
    Heap, HeapInput, Moment, complain_about, outcome_of, parse_moment, questions, read, times, title_of,
};
use super::report::CostName;
use crate::new_file::Output;
use crate::output::{Outcome, Progress, complain};

/// Write a recording in the format of another tool: pprof, Firefox Profiler, heaptrack, speedscope …
///
/// Takes recordings of heaps and of marks. What a format cannot hold is said on standard error.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Export {
    /// The recording; a file of heaptrack, pprof, the Firefox Profiler or call-stack-tracker will do too
    file: PathBuf,

    /// The format
    #[arg(long, value_name = "FORMAT", value_parser = formats())]
    to: Target,

    /// Where to write it; - for standard output [default: the recording's name with the format's ending]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Replace a file that is there
    #[arg(long)]
    force: bool,

    /// Which number, in formats that hold one for each stack: folded, heapprofile
    #[arg(long, value_name = "COST", default_value = "peak")]
    cost: CostName,

    /// What the rows of a table are: csv, jsonl
    #[arg(long, value_name = "ROWS", default_value = "stacks")]
    table: TableRows,

    /// The marks of a recording that has allocations, too
    #[arg(long)]
    marks: bool,

    /// The heap as it was at this time, as 1.5s, 200ms, or peak
    #[arg(long, value_name = "TIME", value_parser = parse_moment, conflicts_with = "between")]
    at: Option<Moment>,

    /// Only what was allocated between two times
    #[arg(long, num_args = 2, value_names = ["FROM", "TO"], value_parser = parse_moment)]
    between: Option<Vec<Moment>>,

    #[command(flatten)]
    input: HeapInput,
}

const EXAMPLES: &str = "\
Examples:
  cairn export app.4711.cairn --to pprof && pprof -http : app.4711.pb.gz
  cairn export app.4711.cairn --to firefox            drop it on https://profiler.firefox.com
  cairn export app.4711.cairn --to heaptrack && heaptrack_gui app.4711.heaptrack.zst
  cairn export app.4711.cairn --to folded --cost leaked -o - | inferno-flamegraph > leaks.svg
  cairn export app.4711.cairn --to csv --table timeline

Exit codes: 0 all went well; 1 the recording cannot be read, or the file not be written; 2 the arguments make no sense; 3 parts of the recording
are missing.";

/// The formats by their names, for `--help` and for what `--to` takes.
fn formats() -> impl TypedValueParser<Value = Target> {
    let values = Target::ALL.map(|target| PossibleValue::new(target.name()).help(target.reader()));
    PossibleValuesParser::new(values).map(|name| {
        // Others are refused before.
        Target::ALL.into_iter().find(|target| target.name() == name).unwrap_or(Target::Pprof)
    })
}

/// What a table lists.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum TableRows {
    /// Whole stacks
    Stacks,
    /// Functions that asked for memory
    Functions,
    /// Lines that asked for memory
    Lines,
    /// Modules that asked for memory
    Modules,
    /// Threads
    Threads,
    /// Sizes of blocks
    Sizes,
    /// How long blocks lived
    Lifetimes,
    /// Memory over time
    Timeline,
}

impl TableRows {
    const fn rows(self) -> Rows {
        match self {
            Self::Stacks => Rows::Stacks,
            Self::Functions => Rows::Functions,
            Self::Lines => Rows::Lines,
            Self::Modules => Rows::Modules,
            Self::Threads => Rows::Threads,
            Self::Sizes => Rows::Sizes,
            Self::Lifetimes => Rows::Lifetimes,
            Self::Timeline => Rows::Timeline,
        }
    }
}

/// The column of a heap's profile that holds a cost.
const fn column_of(cost: CostName) -> &'static str {
    match cost {
        CostName::Peak => "peak_space",
        CostName::Leaked => "inuse_space",
        CostName::Allocated => "alloc_space",
        CostName::Count => "alloc_objects",
        CostName::Temporary => "temporary_objects",
    }
}

impl Export {
    pub(crate) fn run(self) -> io::Result<Outcome> {
        // What cannot be written is said before minutes of reading.
        let mut sink = Output::create(&self.output_path(), self.force, &self.file)?;
        let progress = Progress::begin("reading the events");
        let (written, outcome) = if self.marks {
            self.write_marks(&mut sink, &progress)?
        } else {
            match self.input.open(&self.file) {
                Ok(mut heap) if is_heap(&heap) => {
                    // These read all events, and sums do not answer for them.
                    if matches!(self.to, Target::Firefox | Target::Heaptrack | Target::Dhat)
                        && let Heap::Recording(recording) = &mut heap
                    {
                        recording.check_all_events();
                    }
                    self.write_heap(&heap, &mut sink, &progress)?
                }
                // The player does not know it, and would say that it is no recording.
                Err(error) if is_of_another_tool(&self.file) => return Err(error),
                // A recording of marks, or of call-stack-tracker: the player knows, and says what is wrong.
                _ => self.write_marks(&mut sink, &progress)?,
            }
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

    fn output_path(&self) -> PathBuf {
        self.output.clone().unwrap_or_else(|| beside(&self.file, self.to.extension()))
    }

    fn write_heap(
        &self,
        heap: &Heap,
        sink: &mut Output,
        progress: &Progress,
    ) -> io::Result<(Written, Outcome)> {
        let (from_nanos, to_nanos) = times(&self.file, heap, self.at, self.between.as_deref())?;
        let symbols = self.input.symbols(heap);
        let (written, of_events) = {
            let mut names = self.input.names(heap, &symbols);
            let scope = self.input.scope(heap, &mut names, from_nanos, to_nanos)?;
            let answer = read(&self.file, heap, scope.clone())?;
            progress.now("looking for names");
            let mut questions = questions(&answer, names);
            let (mut profile, stacks) = Profile::of_heap(&mut questions);
            let about = heap.about();
            profile.title = title_of(&self.file, heap);
            profile.process = about.process;
            profile.started_wall_nanos = about.started_wall_nanos;
            // The first text of some formats is the title.
            if let Heap::Recording(_) = heap
                && !about.unfreed.is_leaked()
                && !profile.title.is_empty()
            {
                profile.notes.push(format!(
                    "blocks that were not freed are no leaks here: {}",
                    about.unfreed.heading()
                ));
            }
            let column = profile.column(column_of(self.cost)).unwrap_or(profile.main_column);
            let source = match heap {
                Heap::Recording(recording) => Some(EventSource::Recording(recording)),
                Heap::Imported(file) if file.times() == Times::All => Some(EventSource::Imported(file)),
                Heap::Imported(_) => None,
            };
            let events = source.map(|source| HeapEvents {
                source,
                scope: &scope,
                sums: &answer.profile,
                threads: about.threads,
                stacks: &stacks,
            });
            let subject = Subject { profile: &profile, heap: events.as_ref(), marks: &[] };
            progress.now("writing");
            (self.put(&subject, column, sink)?, outcome_of(&answer, Outcome::Done))
        };
        let outcome = match complain_about(&self.file, heap) {
            Outcome::Done => of_events,
            outcome => outcome,
        };
        symbols.finish(&self.input);
        Ok((written, outcome))
    }

    fn write_marks(&self, sink: &mut Output, progress: &Progress) -> io::Result<(Written, Outcome)> {
        let problem = |problem: PlayError| io::Error::other(format!("{}: {problem}", self.file.display()));
        progress.now("reading the marks");
        let mut player = Player::open(&self.file).map_err(problem)?;
        let mut names = self.input.wants_names().then(|| Names::new(self.input.symbolizer()));
        let mut found = marks::read(&mut player, &Filter::default(), names.as_mut()).map_err(problem)?;
        found.profile.title = self.file.display().to_string();
        let subject = Subject { profile: &found.profile, heap: None, marks: &found.marks };
        progress.now("writing");
        let mut written = self.put(&subject, 0, sink)?;
        if found.left_out > 0 {
            written.losses.push(format!(
                "{} marks are in the sums alone: a file holds two million one by one",
                found.left_out
            ));
        }
        for finding in player.findings() {
            complain(&format_args!("{}: {finding}", self.file.display()));
        }
        Ok((written, if player.is_whole() { Outcome::Done } else { Outcome::Incomplete }))
    }

    fn put(&self, subject: &Subject<'_>, column: usize, sink: &mut Output) -> io::Result<Written> {
        let compression = sink.named_compression();
        let choice = Choice { column, rows: self.table.rows(), compression };
        write(self.to, subject, choice, sink).map_err(|error| match error {
            ExchangeError::Io { source, .. } if crate::output::is_broken_pipe(&source) => source,
            error => io::Error::other(format!("{}: {error}", self.file.display())),
        })
    }
}

/// The recording's name with another ending. What is behind the last point of `app.4711` is no ending.
fn beside(file: &Path, extension: &str) -> PathBuf {
    let is_ending = |ending: &std::ffi::OsStr| ending == "cairn" || ending == "spool";
    let stem = if file.extension().is_some_and(is_ending) { file.file_stem() } else { file.file_name() };
    let mut name = stem.unwrap_or_default().to_owned();
    name.push(".");
    name.push(extension);
    file.with_file_name(name)
}

/// True for the files of other tools that hold heaps.
fn is_of_another_tool(path: &Path) -> bool {
    let file = path.is_file().then(|| File::open(path).ok()).flatten();
    let kind = file.and_then(|file| Kind::of(file).ok().flatten());
    matches!(kind, Some(Kind::Heaptrack | Kind::Pprof | Kind::Firefox))
}

fn is_heap(heap: &Heap) -> bool {
    let heap = match heap {
        Heap::Recording(heap) => heap,
        // It has stacks and times, which are told better as marks: there are no bytes.
        Heap::Imported(heap) => return heap.kind() != Kind::Tracker,
    };
    match heap.recording().totals() {
        Some(summary) => summary.allocations > 0,
        None => heap.read(Scope::default()).is_ok_and(|read| read.profile.totals.allocations > 0),
    }
}
