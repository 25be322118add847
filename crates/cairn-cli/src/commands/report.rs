//! `cairn report`: where the memory goes.

mod page;
mod print;

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use cairn_analysis::heap::schema::{Asked, Limits, Report};
use cairn_analysis::heap::{Cost, Direction, Group, HeapRead, Suppressions, Tree, TreeLimits};
use clap::{Args, ValueEnum};

use super::heap_input::{
    Heap, HeapInput, Moment, complain_about, outcome_of, parse_moment, questions, read, read_brief,
    read_sliced, read_stacks, scope_told, times,
};
use super::unseen::why_nothing_was_seen;
use crate::new_file::Output;
use crate::output::{Outcome, Progress, colored_stdout};
use print::Printer;

/// Show where the memory goes: peak, leaks, allocations
///
/// Reads what `cairn heap` recorded, also while the program still runs. Without --by it shows the whole picture: the
/// totals, memory over time, and who holds most at the peak, leaks, allocates, and allocates for a moment only.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ReportCommand {
    /// The recording; a file of heaptrack, pprof, the Firefox Profiler or call-stack-tracker will do too
    file: PathBuf,

    /// Show only this view
    #[arg(long, value_name = "VIEW")]
    by: Option<View>,

    /// What is measured [default: peak]
    #[arg(long, value_name = "COST")]
    cost: Option<CostName>,

    /// Show the heap as it was at this time, as 1.5s, 200ms, or peak
    #[arg(long, value_name = "TIME", value_parser = parse_moment, conflicts_with = "between")]
    at: Option<Moment>,

    /// Show only what was allocated between two times; what of it still lived at the second one counts as leaked
    #[arg(long, num_args = 2, value_names = ["FROM", "TO"], value_parser = parse_moment)]
    between: Option<Vec<Moment>>,

    /// Known leaks, as LeakSanitizer reads them: lines of leak:PATTERN. May be repeated
    #[arg(long, value_name = "FILE")]
    suppressions: Vec<PathBuf>,

    /// Entries of each list [default: 5 in the whole picture, else 20]
    #[arg(short = 'n', long, value_name = "COUNT", conflicts_with = "full")]
    limit: Option<usize>,

    /// Show every entry, every stack and every frame
    #[arg(long)]
    full: bool,

    /// Print one JSON object; docs/book/reference/json.md describes its fields
    #[arg(long)]
    json: bool,

    /// Write a page that opens in any browser, from disk; it holds all views and needs nothing else
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "by", "cost", "limit", "full", "suppressions"])]
    html: Option<PathBuf>,

    /// Check all events of a recording that answers from sums, whatever its size; without it, up to
    /// 64 MiB of them
    #[arg(long)]
    check: bool,

    /// Let --html replace a file that is there
    #[arg(long, requires = "html")]
    force: bool,

    #[command(flatten)]
    input: HeapInput,
}

const EXAMPLES: &str = "\
Examples:
  cairn report app.4711.cairn                              the whole picture
  cairn report app.4711.cairn --by tree                    from main inwards: what holds the peak
  cairn report app.4711.cairn --by callers --cost leaked   from each leak outwards
  cairn report app.4711.cairn --by function --cost count -n 50
  cairn report app.4711.cairn --between 10s 20s            what grew meanwhile
  cairn report app.4711.cairn --filter thread=worker --filter size=1KiB..
  cairn report app.4711.cairn --html app.html              look at it in a browser
  cairn report app.4711.cairn --suppressions lsan.supp --json | jq .leaked_bytes

A frame is shown as function, file:line and [module]; an entry names the innermost one that is not the allocator's.
Temporary: freed before its thread allocated another block, whatever was freed meanwhile and whichever thread frees.
heaptrack counts otherwise: a free right behind an allocation of the same stack and size, in the order of all threads.

Exit codes: 0 all went well; 1 the recording cannot be read; 2 the arguments make no sense; 3 parts of it are missing.";

/// A view of a recording.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum View {
    /// Functions that asked for memory
    Function,
    /// Lines that asked for memory
    Line,
    /// Modules that asked for memory
    Module,
    /// Whole stacks
    Stack,
    /// A tree from main inwards
    Tree,
    /// A tree from the allocations outwards
    Callers,
    /// Threads
    Thread,
    /// Sizes of blocks
    Size,
    /// How long blocks lived
    Lifetime,
    /// Memory over time
    Time,
}

impl View {
    /// Whether it needs the sums of stacks alone.
    const fn is_by_stack(self) -> bool {
        matches!(self, Self::Function | Self::Line | Self::Module | Self::Stack | Self::Tree | Self::Callers)
    }
}

/// A cost by name.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum CostName {
    /// Bytes at the moment at which the program held most
    Peak,
    /// Bytes that were not freed
    #[value(alias = "leak", alias = "leaks")]
    Leaked,
    /// Bytes of all allocations
    Allocated,
    /// Number of allocations
    Count,
    /// Number of allocations freed before their thread allocated again
    Temporary,
}

impl CostName {
    pub(crate) const fn cost(self) -> Cost {
        match self {
            Self::Peak => Cost::Peak,
            Self::Leaked => Cost::Leaked,
            Self::Allocated => Cost::Allocated,
            Self::Count => Cost::Count,
            Self::Temporary => Cost::Temporary,
        }
    }
}

impl ReportCommand {
    pub(crate) fn run(self) -> io::Result<Outcome> {
        let suppressions = self.read_suppressions()?;
        // What cannot be written is said before minutes of reading.
        let page = match &self.html {
            Some(html) => Some(Output::create(html, self.force, &self.file)?),
            None => None,
        };
        let progress = Progress::begin("reading the events");
        let mut heap = self.input.open(&self.file)?;
        if self.check
            && let Heap::Recording(recording) = &mut heap
        {
            recording.check_all_events();
        }
        let (from_nanos, to_nanos) = times(&self.file, &heap, self.at, self.between.as_deref())?;
        let symbols = self.input.symbols(&heap);
        let of_events = {
            let mut names = self.input.names(&heap, &symbols);
            let scope = self.input.scope(&heap, &mut names, from_nanos, to_nanos)?;
            if let Some(output) = page {
                let (answer, slices) = read_sliced(&self.file, &heap, &scope, page::most_slices())?;
                progress.now("making the page");
                let made = page::Made { heap: &heap, read: &answer, slices: &slices };
                page::write(output, &made, &mut names, scope, self.input.filters())?;
                drop(progress);
                outcome_of(&answer, Outcome::Done)
            } else {
                let reading = match self.by {
                    _ if self.json => read,
                    None => read_brief,
                    Some(view) if view.is_by_stack() => read_stacks,
                    Some(_) => read,
                };
                let mut answer = reading(&self.file, &heap, scope)?;
                let mut held_back = Vec::new();
                if !suppressions.is_empty() {
                    (held_back, answer.profile) = suppressions.apply(&answer.profile, &mut names);
                }
                drop(progress);
                self.show(&heap, &answer, names, &held_back, from_nanos, to_nanos)?;
                outcome_of(&answer, Outcome::Done)
            }
        };
        let outcome = match complain_about(&self.file, &heap) {
            Outcome::Done => of_events,
            outcome => outcome,
        };
        symbols.finish(&self.input);
        Ok(outcome)
    }

    fn show(
        &self,
        heap: &Heap,
        answer: &HeapRead,
        names: cairn_analysis::heap::Names<'_>,
        held_back: &[cairn_analysis::heap::Suppressed],
        from_nanos: u64,
        to_nanos: u64,
    ) -> io::Result<()> {
        let mut questions = questions(answer, names);
        let tree = self.tree(&mut questions, heap);
        let asked = Asked {
            about: &heap.about(),
            read: answer,
            scope: scope_told(&self.input, from_nanos, to_nanos),
            cost: self.cost(heap),
            group: self.group(),
            limits: self.limits(),
            suppressed: held_back,
            tree: tree.as_ref(),
        };
        let mut output = BufWriter::new(colored_stdout());
        let saw_all = from_nanos == 0 && to_nanos == u64::MAX && asked.scope.filters.is_empty();
        let unseen = match heap {
            Heap::Recording(heap) if saw_all && answer.profile.totals.allocations == 0 => {
                Some(why_nothing_was_seen(heap, answer.profile.sampling))
            }
            _ => None,
        };
        if self.json {
            let mut report = Report::new(&mut questions, &asked);
            report.findings.extend(unseen);
            serde_json::to_writer(&mut output, &report)?;
            writeln!(output)?;
        } else {
            let mut printer =
                Printer::new(&mut output, &mut questions, &asked, self.full, &self.file, unseen);
            if heap.usual_cost() != Cost::Peak {
                printer = printer.without_frees();
            }
            // A file of another tool brings its names with it.
            if !self.input.wants_names() || !matches!(heap, Heap::Recording(_)) {
                printer = printer.without_names();
            }
            match self.by {
                None => {
                    // Of a file without bytes, most sections would be empty.
                    let only = Some(heap.usual_cost()).filter(|&cost| cost != Cost::Peak);
                    printer.whole_picture(self.cost.map(CostName::cost).or(only))?;
                }
                Some(View::Function | View::Line | View::Module | View::Stack) => printer.list()?,
                Some(View::Tree | View::Callers) => printer.tree(self.by == Some(View::Tree))?,
                Some(View::Thread) => printer.threads()?,
                Some(View::Size) => printer.sizes()?,
                Some(View::Lifetime) => printer.lifetimes()?,
                Some(View::Time) => printer.time()?,
            }
        }
        output.flush()
    }

    fn read_suppressions(&self) -> io::Result<Suppressions> {
        let mut all = Suppressions::default();
        for path in &self.suppressions {
            let bad =
                |error: &dyn std::fmt::Display| io::Error::other(format!("{}: {error}", path.display()));
            let text = std::fs::read(path).map_err(|error| bad(&error))?;
            let text = String::from_utf8_lossy(&text);
            all.extend(Suppressions::parse(&text).map_err(|error| bad(&error))?);
        }
        Ok(all)
    }

    fn cost(&self, heap: &Heap) -> Cost {
        let usual = match heap.usual_cost() {
            // What was allocated between two times and still lives is what one asks for there.
            Cost::Peak if self.at.is_some() || self.between.is_some() => Cost::Leaked,
            usual => usual,
        };
        self.cost.map_or(usual, CostName::cost)
    }

    fn group(&self) -> Group {
        match self.by {
            Some(View::Line) => Group::Line,
            Some(View::Module) => Group::Module,
            Some(View::Stack) => Group::Stack,
            _ => Group::Function,
        }
    }

    fn limits(&self) -> Limits {
        if self.full {
            return Limits { entries: usize::MAX, stacks: usize::MAX };
        }
        let usual = if self.by.is_none() && !self.json { 5 } else { 20 };
        let entries = self.limit.unwrap_or(usual);
        Limits { entries, stacks: if self.json { 5 } else { 1 } }
    }

    fn tree(&self, questions: &mut cairn_analysis::heap::Questions<'_>, heap: &Heap) -> Option<Tree> {
        let direction = match self.by {
            Some(View::Tree) => Direction::FromMain,
            Some(View::Callers) => Direction::FromAllocations,
            _ => return None,
        };
        let limits = match (self.full, self.limit) {
            (true, _) => TreeLimits::NONE,
            (false, Some(limit)) => {
                TreeLimits { least_share: 0.0, most_nodes: limit, ..TreeLimits::default() }
            }
            (false, None) => TreeLimits::default(),
        };
        Some(questions.tree(direction, self.cost(heap), limits))
    }
}
