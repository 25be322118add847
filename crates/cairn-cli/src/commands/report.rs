//! `cairn report`: shows where the memory goes.

mod family;
mod page;
mod print;

use std::io::{self, Write};
use std::path::PathBuf;

use cairn_analysis::heap::schema::{Limits, Report, ReportRequest};
use cairn_analysis::heap::{Cost, Direction, HeapRead, Names, Questions, Suppressed, Tree, TreeLimits};
use cairn_analysis::source::{HeapSource, ReadDetail, TimeSpan};
use clap::{Args, ValueEnum};

use super::fold_options::KnownLeakOptions;
use super::heap_input::{HeapInput, complain_about, failed, outcome_of, read, read_sliced, worse_of};
use super::options::{
    CostName, ListOptions, OutputOptions, TextOutput, TimeOptions, ViewName, begin_file, cost_of,
};
use super::unseen::why_nothing_was_seen;
use crate::new_file::Output;
use crate::output::{Outcome, Progress};
use print::ReportPrinter;

/// Show where the memory goes: peak, leaks, allocations
///
/// Reads a recording of `cairn heap`, also while the program still runs, and other files that hold
/// a heap. Without --by it shows the whole picture: totals, memory over time, and the functions
/// with most memory at the peak, most leaks, most allocations and most temporary allocations.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ReportCommand {
    /// A recording, core file, minidump or file of another tool; - for standard input. Other tools
    /// are heaptrack, pprof, the Firefox Profiler and call-stack-tracker. The programs of a
    /// directory with recordings are compared
    file: PathBuf,

    /// Show only this view
    #[arg(long, value_name = "VIEW")]
    by: Option<ViewName>,

    /// The measure [default: peak; leaked, which is what is alive, where a time is given]
    #[arg(long, value_name = "COST")]
    cost: Option<CostName>,

    #[command(flatten)]
    times: TimeOptions,

    #[command(flatten)]
    known: KnownLeakOptions,

    #[command(flatten)]
    list: ListOptions,

    /// The format of the answer
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    format: ReportFormat,

    /// Print one JSON object; docs/book/reference/json.md describes its fields. Short for --format
    /// json
    #[arg(long, conflicts_with = "format")]
    json: bool,

    /// Write a page that opens in any browser, from disk. Short for --format html -o FILE
    #[arg(long, value_name = "FILE", conflicts_with_all = ["format", "json", "output"])]
    html: Option<PathBuf>,

    /// Check all events of a recording that has a summary, whatever its size. Without it, up to 64
    /// MiB of them
    #[arg(long)]
    check: bool,

    #[command(flatten)]
    output: OutputOptions,

    #[command(flatten)]
    input: HeapInput,
}

/// The options of a report that another command has, too.
pub(super) struct ReportOptions {
    pub(super) by: Option<ViewName>,
    pub(super) cost: Option<CostName>,
    pub(super) list: ListOptions,
    pub(super) json: bool,
    pub(super) output: OutputOptions,
    pub(super) input: HeapInput,
}

/// A format of the answer.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ReportFormat {
    /// For people
    Text,
    /// One JSON object, for programs
    Json,
    /// A page for a browser; it holds all views and needs nothing else
    Html,
}

const EXAMPLES: &str = "\
Examples:
  cairn report app.4711.cairn                              the whole picture
  cairn report app.4711.cairn --by tree                    from main inwards: what holds the peak
  cairn report app.4711.cairn --by callers --cost leaked   from each leak outwards
  cairn report app.4711.cairn --by function --cost count --limit 1%
  cairn report app.4711.cairn --from 10s --to 20s          what grew meanwhile
  cairn report core.4711 --by stack                        the blocks in a core file
  cairn report app.4711.cairn --filter thread=worker --filter size=1KiB..
  cairn report app.4711.cairn --format html -o app.html    a page for a browser
  cairn report make.4711.cairn                             the programs that `cairn heap --children` recorded
  cairn report app.4711.cairn --suppressions lsan.supp --json | jq .leaked_bytes

A frame is shown as function, file:line and [module]; an entry names your innermost frame: frames of the
allocator, its wrappers, standard libraries and libraries are passed over (docs/book/my-code.md).
Temporary: freed before its thread allocated another block, whatever was freed meanwhile and whichever
thread frees. heaptrack counts otherwise: a free right behind an allocation of the same stack and
size, in the order of all threads.

Exit codes: 0 success; 1 the file cannot be read, or cannot answer the question; 2 invalid arguments;
3 parts of the file are missing from the answer.";

impl ReportCommand {
    pub(crate) fn run(self) -> io::Result<Outcome> {
        if self.file.is_dir() {
            return self.report_family(&self.file);
        }
        // An output that cannot be written is refused before minutes of reading.
        let page = self.begin_page()?;
        let progress = Progress::begin("reading the events");
        let mut heap = self.input.open(&self.file)?;
        if self.check {
            heap.source.check_all_events();
        }
        let outcome = match page {
            Some(page) => self.write_page(&heap.source, page, &progress)?,
            None => self.answer(&heap.source, progress)?,
        };
        Ok(worse_of(complain_about(&heap.source), outcome))
    }

    /// Answers another command's questions about a heap that it opened.
    pub(super) fn run_on(
        asked: ReportOptions,
        source: &HeapSource,
        progress: Progress,
    ) -> io::Result<Outcome> {
        let command = Self {
            file: source.path().to_owned(),
            by: asked.by,
            cost: asked.cost,
            times: TimeOptions::default(),
            known: KnownLeakOptions::default(),
            list: asked.list,
            format: ReportFormat::Text,
            json: asked.json,
            html: None,
            check: false,
            output: asked.output,
            input: asked.input,
        };
        let outcome = command.answer(source, progress)?;
        Ok(worse_of(complain_about(source), outcome))
    }

    fn format(&self) -> ReportFormat {
        match self.format {
            _ if self.html.is_some() => ReportFormat::Html,
            _ if self.json => ReportFormat::Json,
            format => format,
        }
    }

    fn is_json(&self) -> bool {
        self.format() == ReportFormat::Json
    }

    fn begin_page(&self) -> io::Result<Option<Output>> {
        if self.format() != ReportFormat::Html {
            return Ok(None);
        }
        let is_chosen = self.by.is_some() || self.cost.is_some() || self.known.is_chosen();
        if is_chosen || self.list.full || self.list.is_limited() {
            let text = "a page holds all views and costs: leave --by, --cost, --limit, --full and options of known leaks out\n";
            clap::Error::raw(clap::error::ErrorKind::ArgumentConflict, text).exit();
        }
        let path = self.html.as_deref().unwrap_or(&self.output.output);
        begin_file(path, self.output.force, &self.file, "a page").map(Some)
    }

    fn write_page(&self, source: &HeapSource, output: Output, progress: &Progress) -> io::Result<Outcome> {
        let span = self.times.span(source)?;
        let symbols = source.symbols();
        let answer = {
            let mut names = self.input.names(source, &symbols)?;
            let scope = self.input.scope(source, &mut names, span)?;
            let (answer, slices) = read_sliced(source, &scope, page::most_slices())?;
            progress.now("making the page");
            let content = page::PageContent { source, read: &answer, slices: &slices };
            page::write(output, &content, &mut names, scope, self.input.filter_texts())?;
            answer
        };
        self.input.finish(symbols);
        Ok(outcome_of(&answer))
    }

    fn answer(&self, source: &HeapSource, progress: Progress) -> io::Result<Outcome> {
        if let Some(question) = self.by.and_then(ViewName::question) {
            source.check(question).map_err(failed)?;
        }
        let output = self.output.begin_text(&self.file)?;
        let span = self.times.span(source)?;
        let cost = cost_of(source, self.cost, span)?;
        let symbols = source.symbols();
        let answer = {
            let mut names = self.input.names(source, &symbols)?;
            let scope = self.input.scope(source, &mut names, span)?;
            let mut answer = read(source, scope, self.detail())?;
            let suppressed =
                self.input.hold_back(&self.known, source, span, &mut answer.profile, &mut names)?;
            drop(progress);
            let shown = Shown { source, answer: &answer, suppressed: &suppressed, span, cost };
            self.show(&shown, names, symbols.are_from_files(), output)?;
            answer
        };
        self.input.finish(symbols);
        Ok(outcome_of(&answer))
    }

    fn detail(&self) -> ReadDetail {
        match self.by {
            _ if self.is_json() => ReadDetail::Whole,
            None => ReadDetail::Brief,
            Some(view) if view.is_by_stack() => ReadDetail::Stacks,
            Some(_) => ReadDetail::Whole,
        }
    }

    fn show(
        &self,
        shown: &Shown<'_>,
        names: Names<'_>,
        has_symbols: bool,
        mut output: TextOutput,
    ) -> io::Result<()> {
        let &Shown { source, answer, suppressed, span, cost } = shown;
        let mut questions = Questions::new(&answer.profile, names);
        let tree = self.tree(&mut questions, cost);
        let asked = ReportRequest {
            about: &source.about(),
            read: answer,
            scope: self.input.scope_json(span),
            cost,
            group: self.by.map_or(ViewName::Function, |view| view).group(),
            limits: self.limits(),
            suppressed,
            tree: tree.as_ref(),
        };
        let is_whole = span == TimeSpan::ALL && asked.scope.filters.is_empty();
        let unseen = source
            .recording()
            .filter(|_| is_whole && answer.profile.totals.allocations == 0)
            .map(|recording| why_nothing_was_seen(recording, answer.profile.sampling));
        if self.is_json() {
            let mut report = Report::new(&mut questions, &asked);
            report.findings.extend(unseen);
            serde_json::to_writer(&mut output, &report)?;
            writeln!(output)?;
            return output.finish();
        }
        let (file, palette) = (PathBuf::from(source.name()), output.palette());
        let is_to_people = self.output.is_stdout();
        let mut printer =
            ReportPrinter::new(&mut output, &mut questions, &asked, self.list.full, &file, unseen)
                .colored(palette);
        if !is_to_people {
            printer = printer.in_file();
        }
        if source.is_image() {
            printer = printer.of_image();
        } else if source.usual_cost(TimeSpan::ALL) != Cost::Peak {
            printer = printer.without_frees();
        }
        // A file of another tool brings its names with it.
        if !has_symbols {
            printer = printer.without_names();
        }
        match self.by {
            None => {
                // Most sections of a file without bytes or without frees would be empty.
                let only = Some(source.usual_cost(TimeSpan::ALL)).filter(|&cost| cost != Cost::Peak);
                printer.whole_picture(self.cost.map(CostName::cost).or(only))?;
            }
            Some(ViewName::Function | ViewName::Line | ViewName::Module | ViewName::Stack) => {
                printer.list()?
            }
            Some(ViewName::Tree | ViewName::Callers) => printer.tree(self.by == Some(ViewName::Tree))?,
            Some(ViewName::Thread) => printer.threads()?,
            Some(ViewName::Size) => printer.sizes()?,
            Some(ViewName::Lifetime) => printer.lifetimes()?,
            Some(ViewName::Time) => printer.time()?,
        }
        output.finish()
    }

    fn limits(&self) -> Limits {
        let least_share = self.list.least_share().unwrap_or(0.0);
        if self.list.full {
            return Limits { entries: usize::MAX, stacks: usize::MAX, least_share };
        }
        let usual = if self.by.is_none() && !self.is_json() { 5 } else { 20 };
        let stacks = if self.is_json() { 5 } else { 1 };
        Limits { entries: self.list.most_entries(usual), stacks, least_share }
    }

    fn tree(&self, questions: &mut Questions<'_>, cost: Cost) -> Option<Tree> {
        let direction = match self.by {
            Some(ViewName::Tree) => Direction::FromMain,
            Some(ViewName::Callers) => Direction::FromAllocations,
            _ => return None,
        };
        let usual = TreeLimits::default();
        let limits = match self.list.least_share() {
            _ if self.list.full => TreeLimits::NONE,
            Some(least_share) => TreeLimits { least_share, ..usual },
            None if self.list.is_limited() => {
                TreeLimits { least_share: 0.0, most_nodes: self.list.most_entries(usual.most_nodes), ..usual }
            }
            None => usual,
        };
        Some(questions.tree(direction, cost, limits))
    }
}

/// The content of a report.
struct Shown<'a> {
    source: &'a HeapSource,
    answer: &'a HeapRead,
    suppressed: &'a [Suppressed],
    span: TimeSpan,
    cost: Cost,
}
