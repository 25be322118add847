//! `cairn export`: a recording in the format of another tool.

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use cairn_analysis::heap::Scope;
use cairn_analysis::names::Names;
use cairn_analysis::player::{Filter, PlayError, Player};
use cairn_exchange::target::{Choice, HeapEvents, Rows};
use cairn_exchange::{ExchangeError, Profile, Subject, Target, Written, marks, write};
use clap::{Args, ValueEnum};
use indicatif::ProgressBar;

use super::heap_input::{
    Heap, HeapInput, Moment, complain_about, nanos_of, open, parse_moment, questions, read, title_of,
};
use super::report::CostName;
use crate::new_file::NewFile;
use crate::output::{Outcome, complain};

/// Write a recording in the format of another tool: pprof, Firefox Profiler, heaptrack, speedscope …
///
/// Takes recordings of heaps and of marks. What a format cannot hold is said on standard error.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Export {
    /// The recording; a heaptrack file or a pprof heap profile will do too
    file: PathBuf,

    /// The format
    #[arg(long, value_name = "FORMAT")]
    to: Format,

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

/// The formats.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Google's pprof, and services that take it
    Pprof,
    /// profiler.firefox.com: allocations over time
    Firefox,
    /// speedscope.app
    Speedscope,
    /// Chrome's .heapprofile
    Heapprofile,
    /// Folded stacks, for flame graph tools
    Folded,
    /// heaptrack_gui and heaptrack_print
    Heaptrack,
    /// valgrind's dh_view.html
    Dhat,
    /// OpenTelemetry profiles (an alpha)
    Otlp,
    /// A table with commas
    Csv,
    /// A table of JSON objects, one a line
    Jsonl,
}

impl Format {
    const fn target(self) -> Target {
        match self {
            Self::Pprof => Target::Pprof,
            Self::Firefox => Target::Firefox,
            Self::Speedscope => Target::Speedscope,
            Self::Heapprofile => Target::Heapprofile,
            Self::Folded => Target::Folded,
            Self::Heaptrack => Target::Heaptrack,
            Self::Dhat => Target::Dhat,
            Self::Otlp => Target::Otlp,
            Self::Csv => Target::Csv,
            Self::Jsonl => Target::JsonLines,
        }
    }
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
        let mut sink = match self.output_path() {
            Some(path) => Sink::File(NewFile::create(&path, self.force)?),
            None => Sink::Stdout(Box::new(BufWriter::with_capacity(1 << 18, io::stdout().lock()))),
        };
        // Drawn on terminals alone.
        let progress = &ProgressBar::new_spinner();
        progress.enable_steady_tick(Duration::from_millis(100));
        let (written, outcome) = if self.marks {
            self.write_marks(&mut sink, progress)?
        } else {
            match open(&self.file) {
                Ok(heap) if is_heap(&heap) => self.write_heap(&heap, &mut sink, progress)?,
                // A recording of marks, or of another tool: the player knows, and says what is wrong.
                _ => self.write_marks(&mut sink, progress)?,
            }
        };
        let path = sink.finish()?;
        progress.finish_and_clear();
        for loss in &written.losses {
            complain(&format_args!("note: {loss}"));
        }
        if let Some(path) = path {
            let path = path.display().to_string();
            writeln!(anstream::stderr(), "wrote {}", crate::output::printable(&path))?;
        }
        Ok(outcome)
    }

    fn output_path(&self) -> Option<PathBuf> {
        match &self.output {
            Some(path) if path == Path::new("-") => None,
            Some(path) => Some(path.clone()),
            None => Some(beside(&self.file, self.to.target().extension())),
        }
    }

    fn times(&self, heap: &Heap) -> io::Result<(u64, u64)> {
        match (self.at, self.between.as_deref()) {
            (Some(at), _) => Ok((0, nanos_of(&self.file, heap, at)?)),
            (None, Some(&[from, to])) => {
                let (from, to) = (nanos_of(&self.file, heap, from)?, nanos_of(&self.file, heap, to)?);
                if from > to {
                    return Err(io::Error::other("--between: the earlier time comes first"));
                }
                Ok((from, to))
            }
            _ => Ok((0, u64::MAX)),
        }
    }

    fn write_heap(
        &self,
        heap: &Heap,
        sink: &mut Sink,
        progress: &ProgressBar,
    ) -> io::Result<(Written, Outcome)> {
        progress.set_message("reading the events");
        let (from_nanos, to_nanos) = self.times(heap)?;
        let symbols = self.input.symbols(heap);
        let written = {
            let mut names = self.input.names(heap, &symbols);
            let scope = self.input.scope(heap, &mut names, from_nanos, to_nanos)?;
            let answer = read(&self.file, heap, scope.clone())?;
            progress.set_message("looking for names");
            let mut questions = questions(&answer, names);
            let (mut profile, stacks) = Profile::of_heap(&mut questions);
            let about = heap.about();
            profile.title = title_of(&self.file, heap);
            profile.process = about.process;
            profile.started_wall_nanos = about.started_wall_nanos;
            let column = profile.column(column_of(self.cost)).unwrap_or(profile.main_column);
            let events = match heap {
                Heap::Recording(recording) => Some(HeapEvents {
                    recording,
                    scope: &scope,
                    sums: &answer.profile,
                    threads: about.threads,
                    stacks: &stacks,
                }),
                Heap::Imported(_) => None,
            };
            let subject = Subject { profile: &profile, heap: events.as_ref(), marks: &[] };
            progress.set_message("writing");
            self.put(&subject, column, sink)?
        };
        let outcome = complain_about(&self.file, heap);
        symbols.finish(&self.input);
        Ok((written, outcome))
    }

    fn write_marks(&self, sink: &mut Sink, progress: &ProgressBar) -> io::Result<(Written, Outcome)> {
        let problem = |problem: PlayError| io::Error::other(format!("{}: {problem}", self.file.display()));
        progress.set_message("reading the marks");
        let mut player = Player::open(&self.file).map_err(problem)?;
        let mut names = Names::new(self.input.symbolizer());
        let mut found = marks::read(&mut player, &Filter::default(), &mut names).map_err(problem)?;
        found.profile.title = self.file.display().to_string();
        let subject = Subject { profile: &found.profile, heap: None, marks: &found.marks };
        progress.set_message("writing");
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

    fn put(&self, subject: &Subject<'_>, column: usize, sink: &mut Sink) -> io::Result<Written> {
        let choice = Choice { column, rows: self.table.rows() };
        write(self.to.target(), subject, choice, sink).map_err(|error| match error {
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

fn is_heap(heap: &Heap) -> bool {
    let Heap::Recording(heap) = heap else { return true };
    match heap.recording().summary() {
        Some(summary) => summary.allocations > 0,
        None => heap.read(Scope::default()).is_ok_and(|read| read.profile.totals.allocations > 0),
    }
}

/// Where the export goes.
enum Sink {
    File(NewFile),
    Stdout(Box<dyn Write>),
}

impl Sink {
    /// Gives a file its name, which is told by the caller.
    fn finish(self) -> io::Result<Option<PathBuf>> {
        match self {
            Self::File(file) => file.commit().map(Some),
            Self::Stdout(mut output) => output.flush().map(|()| None),
        }
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::File(file) => file.write(bytes),
            Self::Stdout(output) => output.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::File(file) => file.flush(),
            Self::Stdout(output) => output.flush(),
        }
    }
}
