//! `cairn flame`: the heap as a flame graph.

use std::io::{self, Write};
use std::path::PathBuf;

use cairn_analysis::heap::{Cost, Direction, FlameOptions, Questions, TreeLimits};
use cairn_analysis::source::{HeapSource, ReadDetail, TimeSpan};
use clap::{Args, ValueEnum};

use super::fold_options::KnownLeakOptions;
use super::folding_text::folded_note;
use super::heap_input::{HeapInput, complain_about, outcome_of, read, worse_of};
use super::heap_text::{bytes, count, counted, duration};
use super::options::{
    CostName, ListOptions, OutputOptions, TimeOptions, ViewName, cost_of, parse_percent, views,
};
use crate::new_file::Output;
use crate::output::{Outcome, Progress, complain};

/// Draw where the memory goes: a flame graph as one SVG file, or folded stacks
///
/// The file opens in any browser, from disk: a click zooms, / searches, Esc goes back.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct FlameCommand {
    /// A recording, core file, minidump or file of another tool; - for standard input. Other tools
    /// are heaptrack, pprof, the Firefox Profiler and call-stack-tracker
    file: PathBuf,

    /// Where the graph begins: tree at main, callers at the functions that asked for memory
    #[arg(long, value_name = "VIEW", value_parser = views(VIEWS), default_value = "tree")]
    by: ViewName,

    /// The measure of widths [default: peak; leaked, which is what is alive, where a time is given]
    #[arg(long, value_name = "COST")]
    cost: Option<CostName>,

    #[command(flatten)]
    times: TimeOptions,

    #[command(flatten)]
    list: ListOptions,

    /// --limit in percent, as it was called
    #[arg(long, hide = true, value_name = "PERCENT", value_parser = parse_percent, conflicts_with = "limit")]
    least: Option<f64>,

    /// The format
    #[arg(long, value_name = "FORMAT", default_value = "svg")]
    format: FlameFormat,

    /// --format folded, as it was called
    #[arg(long, hide = true, conflicts_with = "format")]
    folded: bool,

    #[command(flatten)]
    known: KnownLeakOptions,

    #[command(flatten)]
    output: OutputOptions,

    #[command(flatten)]
    input: HeapInput,
}

/// The views that a graph can have.
const VIEWS: &[ViewName] = &[ViewName::Tree, ViewName::Callers];

/// A format of the graph.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum FlameFormat {
    /// A picture for a browser
    Svg,
    /// Folded stacks as text, for speedscope, inferno and flamegraph.pl
    Folded,
}

const EXAMPLES: &str = "\
Examples:
  cairn flame app.4711.cairn -o peak.svg
  cairn flame app.4711.cairn --cost leaked --limit 1% -o leaks.svg
  cairn flame core.4711 -o core.svg                      the blocks in a core file
  cairn flame app.4711.cairn --format folded | inferno-flamegraph > peak.svg

--limit 1% leaves out what is narrower than 1 % of the whole; 0.05 % is usual, and --full leaves out nothing.

Exit codes: 0 success; 1 the file cannot be read, or cannot answer the question; 2 invalid arguments;
3 parts of the file are missing from the answer.";

impl FlameCommand {
    pub(crate) fn run(self) -> io::Result<Outcome> {
        if self.by == ViewName::Callers && self.is_folded() {
            let text = "folded stacks begin at main: leave --by callers out\n";
            clap::Error::raw(clap::error::ErrorKind::ArgumentConflict, text).exit();
        }
        // An output that cannot be written is refused before minutes of reading.
        let mut output = self.begin()?;
        let progress = Progress::begin("reading the events");
        let heap = self.input.open(&self.file)?;
        let source = &heap.source;
        let span = self.times.span(source)?;
        let cost = cost_of(source, self.cost, span)?;
        let symbols = source.symbols();
        let mut folded = None;
        let (text, of_events) = {
            let mut names = self.input.names(source, &symbols)?;
            let scope = self.input.scope(source, &mut names, span)?;
            let mut answer = read(source, scope, ReadDetail::Stacks)?;
            self.input.hold_back(&self.known, source, span, &mut answer.profile, &mut names)?;
            progress.now("looking for names");
            let mut questions = Questions::new(&answer.profile, names);
            let text = if self.is_folded() {
                let text = questions.folded(cost);
                folded = folded_note(questions.folded_frames(|sums| !cost.of(sums).is_zero()));
                text
            } else {
                self.picture(source, &mut questions, cost, span)
            };
            (text, outcome_of(&answer))
        };
        drop(progress);
        let named = |error: io::Error| {
            io::Error::new(error.kind(), format!("{}: {error}", self.output.output.display()))
        };
        output.write_all(text.as_bytes()).map_err(named)?;
        output.finish()?;
        if let Some(note) = folded {
            complain(&format_args!("note: {note}"));
        }
        let outcome = worse_of(complain_about(source), of_events);
        self.input.finish(symbols);
        Ok(outcome)
    }

    fn is_folded(&self) -> bool {
        self.folded || self.format == FlameFormat::Folded
    }

    fn begin(&self) -> io::Result<Output> {
        if self.is_folded() {
            Output::create(&self.output.output, self.output.force, &self.file)
        } else {
            self.output.begin_file(&self.file, "a picture")
        }
    }

    fn picture(
        &self,
        source: &HeapSource,
        questions: &mut Questions<'_>,
        cost: Cost,
        span: TimeSpan,
    ) -> String {
        /// Most frames, so that a browser draws the picture without delay.
        const MOST_FRAMES: usize = 200_000;
        const USUAL_PERCENT: f64 = 0.05;
        let usual = if self.list.is_limited() { 0.0 } else { self.least.unwrap_or(USUAL_PERCENT) / 100.0 };
        // Deeper stacks are narrower than a line of a screen is high.
        let most_levels = 2000;
        let limits = if self.list.full {
            TreeLimits { most_levels, ..TreeLimits::NONE }
        } else {
            TreeLimits {
                least_share: self.list.least_share().unwrap_or(usual),
                most_levels,
                most_nodes: self.list.most_entries(MOST_FRAMES).min(MOST_FRAMES),
            }
        };
        let direction = match self.by {
            ViewName::Callers => Direction::FromAllocations,
            _ => Direction::FromMain,
        };
        let tree = questions.tree(direction, cost, limits);
        let amount = tree.nodes[0].amount;
        let profile = questions.profile();
        let whole = if cost.is_bytes() {
            format!("{} in {}", bytes(amount.value), counted(amount.blocks, "block"))
        } else {
            format!("{} allocations", count(amount.value))
        };
        let what = match cost {
            Cost::Peak => format!("held at the peak, after {}", duration(profile.peak_nanos)),
            Cost::Leaked if source.is_image() => "alive in this image of memory".to_owned(),
            Cost::Leaked => format!("alive after {}", duration(profile.end_nanos)),
            Cost::Allocated => "allocated in all".to_owned(),
            Cost::Count => "by number".to_owned(),
            Cost::Temporary => "freed before their thread allocated again".to_owned(),
        };
        let since = match span.from_nanos {
            0 => String::new(),
            from => format!(", allocated after {}", duration(from)),
        };
        let options = FlameOptions { title: source.title(), subtitle: format!("{whole}, {what}{since}") };
        questions.flame_svg(&tree, &options)
    }
}
