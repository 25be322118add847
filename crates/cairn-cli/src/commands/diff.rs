//! `cairn diff`: shows what grew between two recordings, or two moments of one.

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};

use cairn_analysis::heap::schema::{DiffReport, WrapperJson};
use cairn_analysis::heap::{
    Cost, Diff, DiffEntry, DiffFrame, HeapProfile, Names, Questions, Sums, Unfreed, find_common_wrappers,
};
use cairn_analysis::source::{HeapSource, Question, ReadDetail, SourceNames, TimePoint, TimeSpan};
use clap::error::ErrorKind;
use clap::{Args, CommandFactory, ValueEnum};

use super::fold_options::KnownLeakOptions;
use super::folding_text::{folded_text, wrappers_text};
use super::heap_input::{HeapInput, OpenHeap, complain_about, failed, outcome_of, read, worse_of};
use super::heap_text::{bytes, count, list_name, name_columns, signed_bytes, signed_count};
use super::options::{CostName, ListOptions, OutputOptions, TextOutput, ViewName, views};
use crate::output::{Outcome, Palette, Progress, printable};

/// Show what grew between two recordings or core files, or two moments of one recording
///
/// Compares files of any kind: recordings, core files, files of other tools. For a core file or
/// minidump, compares the blocks that were alive. Stacks are matched by functions, modules and
/// files, not by addresses or lines, so that another build compares well.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DiffCommand {
    /// The file before; - for standard input
    before: PathBuf,

    /// The file after; leave it out to compare two moments of one recording
    after: Option<PathBuf>,

    /// Compare from this moment of the first file, as 1.5s or peak
    #[arg(long, value_name = "TIME")]
    from: Option<TimePoint>,

    /// Compare to this moment of the second file
    #[arg(long, value_name = "TIME")]
    to: Option<TimePoint>,

    /// The meaning of an entry: one stack, or all stacks of a function or module [default: stack]
    #[arg(long, value_name = "VIEW", value_parser = views(VIEWS))]
    by: Option<ViewName>,

    /// --by function, as it was called
    #[arg(long, hide = true, conflicts_with = "by")]
    by_function: bool,

    /// The measure [default: peak; leaked, which is what is alive, where a time is given]
    #[arg(long, value_name = "COST")]
    cost: Option<CostName>,

    #[command(flatten)]
    list: ListOptions,

    /// End with exit code 4 if the cost grew by more than this; for checks before a merge. Accepts
    /// 64KiB, 100, or 5% of the old cost
    #[arg(long, value_name = "AMOUNT", value_parser = parse_growth)]
    fail_above: Option<Growth>,

    /// The format of the answer
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    format: DiffFormat,

    /// Print one JSON object; docs/book/reference/json.md describes its fields. Short for --format
    /// json
    #[arg(long, conflicts_with = "format")]
    json: bool,

    #[command(flatten)]
    known: KnownLeakOptions,

    #[command(flatten)]
    output: OutputOptions,

    #[command(flatten)]
    input: HeapInput,
}

/// A format of the answer.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum DiffFormat {
    /// For people
    Text,
    /// One JSON object, for programs
    Json,
}

/// Entries that are shown without --limit.
const USUAL_ENTRIES: usize = 20;

/// The views that two heaps can be compared by.
const VIEWS: &[ViewName] = &[ViewName::Stack, ViewName::Function, ViewName::Module];

/// How much a cost may grow.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Growth {
    /// By bytes or blocks.
    Amount(u64),
    /// By a part of the earlier cost, from 0 on.
    Share(f64),
}

fn parse_growth(text: &str) -> Result<Growth, String> {
    let Some(number) = text.strip_suffix('%') else {
        return super::heap_input::parse_size(text).map(Growth::Amount);
    };
    let percent: f64 = number.trim_end().parse().map_err(|_| format!("{text}: not a percentage, as 5%"))?;
    let is_sound = percent.is_finite() && percent >= 0.0;
    if is_sound {
        Ok(Growth::Share(percent / 100.0))
    } else {
        Err(format!("{text}: not a percentage, as 5%"))
    }
}

impl Growth {
    fn is_exceeded(self, diff: &Diff) -> bool {
        match self {
            Self::Amount(most) => diff.growth() > i128::from(most),
            Self::Share(share) => diff.growth() as f64 > diff.before.value as f64 * share,
        }
    }
}

const EXAMPLES: &str = "\
Examples:
  cairn diff old.cairn new.cairn                     what costs more at the peak
  cairn diff old.cairn new.cairn --cost leaked --fail-above 0
  cairn diff old.cairn new.cairn --by function --limit 1%
  cairn diff core.100 core.200                       what blocks two cores of one program hold
  cairn diff app.4711.cairn --from 10s --to 60s      what is alive at 60 s and was not at 10 s

Exit codes: 0 success; 1 a file cannot be read, or cannot answer the question; 2 invalid arguments;
3 parts of a file are missing from the answer; 4 the cost grew by more than --fail-above.";

/// One of the two.
struct Side {
    heap: OpenHeap,
    symbols: SourceNames,
    span: TimeSpan,
}

/// The sums of a side, and how complete they are.
struct SideRead {
    profile: HeapProfile,
    outcome: Outcome,
}

/// The answer.
struct Compared {
    diff: Diff,
    totals: (Sums, Sums),
    /// Those of the recording before, and of that after.
    wrappers: [Vec<WrapperJson>; 2],
    wrapper_note: Option<String>,
    outcome: Outcome,
}

impl Side {
    fn source(&self) -> &HeapSource {
        &self.heap.source
    }

    fn read(
        &self,
        input: &HeapInput,
        known: &KnownLeakOptions,
        names: &mut Names<'_>,
    ) -> io::Result<SideRead> {
        let scope = input.scope(self.source(), names, self.span)?;
        let mut read = read(self.source(), scope, ReadDetail::Stacks)?;
        let outcome = outcome_of(&read);
        input.hold_back(known, self.source(), self.span, &mut read.profile, names)?;
        Ok(SideRead { profile: read.profile, outcome })
    }
}

impl DiffCommand {
    pub(crate) fn run(self) -> io::Result<Outcome> {
        if self.after.is_none() && self.from.is_none() {
            let complaint =
                "one recording is compared with itself at two times: give --from TIME, or a second recording";
            crate::Cairn::command().error(ErrorKind::MissingRequiredArgument, complaint).exit()
        }
        let is_twice = |path: &Path| path == Path::new("-");
        if is_twice(&self.before) && self.after.as_deref().is_none_or(is_twice) {
            let complaint = "standard input can be read once: name a file for the other side";
            crate::Cairn::command().error(ErrorKind::ArgumentConflict, complaint).exit()
        }
        let mut output = self.output.begin_text(self.after.as_deref().unwrap_or(&self.before))?;
        let progress = Progress::begin("reading both recordings");
        let before = self.side(&self.before, self.from)?;
        let after = self.side(self.after.as_ref().unwrap_or(&self.before), self.to)?;
        let cost = self.cost(&before, &after)?;
        let Compared { diff, totals, wrappers, wrapper_note, outcome: of_events } =
            self.compare(&before, &after, cost)?;
        drop(progress);
        let grouped = match self.view() {
            ViewName::Function => Some(diff.by_function()),
            ViewName::Module => Some(diff.by_module()),
            _ => None,
        };
        let entries = self.shown(&diff, grouped.as_deref().unwrap_or(&diff.entries));
        let limit = self.list.most_entries(USUAL_ENTRIES);
        let unfreed = [&before, &after].map(|side| side.source().unfreed(side.span));
        let is_image = before.source().is_image() || after.source().is_image();
        if self.json || self.format == DiffFormat::Json {
            let mut report = DiffReport::new(&diff, entries, (&totals.0, &totals.1), unfreed, limit);
            report.only_alive = is_image;
            [report.wrappers_before, report.wrappers] = wrappers;
            serde_json::to_writer(&mut output, &report)?;
            writeln!(output)?;
        } else {
            let shown = if is_image { &[Cost::Leaked][..] } else { &Cost::ALL };
            self.print(&mut output, &diff, entries, &totals, unfreed, shown)?;
            let shown = &entries[..entries.len().min(limit)];
            let folded = shown.iter().filter_map(|entry| entry.folded_frames).sum();
            let notes: Vec<String> = wrapper_note.into_iter().chain(folded_text(folded)).collect();
            if !notes.is_empty() {
                writeln!(output)?;
            }
            for note in notes {
                writeln!(output, "note: {}", printable(&note))?;
            }
        }
        output.finish()?;
        let grew_too_much = self.fail_above.is_some_and(|most| most.is_exceeded(&diff));
        let outcomes = [complain_about(before.source()), complain_about(after.source())];
        self.input.finish(before.symbols);
        if self.after.is_some() {
            self.input.finish(after.symbols);
        }
        if grew_too_much {
            return Ok(Outcome::Exceeded);
        }
        Ok(worse_of(worse_of(outcomes[0], outcomes[1]), of_events))
    }

    fn view(&self) -> ViewName {
        if self.by_function { ViewName::Function } else { self.by.unwrap_or(ViewName::Stack) }
    }

    /// The cost that both sides can answer for.
    fn cost(&self, before: &Side, after: &Side) -> io::Result<Cost> {
        let usual = [before, after].map(|side| side.source().usual_cost(side.span));
        let usual = if usual.contains(&Cost::Leaked) { Cost::Leaked } else { usual[1] };
        let cost = self.cost.map_or(usual, CostName::cost);
        for side in [before, after] {
            side.source().check(Question::Cost(cost)).map_err(failed)?;
        }
        Ok(cost)
    }

    /// The changes that are a large enough part of the larger whole.
    fn shown<'e>(&self, diff: &Diff, entries: &'e [DiffEntry]) -> &'e [DiffEntry] {
        let whole = diff.before.value.max(diff.after.value) as f64;
        let least = self.list.least_share().unwrap_or(0.0) * whole;
        let is_shown = |entry: &&DiffEntry| entry.growth().unsigned_abs() as f64 >= least;
        &entries[..entries.iter().take_while(is_shown).count()]
    }

    fn side(&self, path: &Path, moment: Option<TimePoint>) -> io::Result<Side> {
        let heap = self.input.open(path)?;
        // One file that has no times cannot be compared with itself.
        let moment = moment.or_else(|| self.after.is_none().then_some(TimePoint::Nanos(u64::MAX)));
        let span = heap.source.span(moment, None, None).map_err(failed)?;
        let symbols = heap.source.symbols();
        Ok(Side { heap, symbols, span })
    }

    fn compare(&self, before: &Side, after: &Side, cost: Cost) -> io::Result<Compared> {
        let mut names_before = self.input.names(before.source(), &before.symbols)?;
        let mut names_after = self.input.names(after.source(), &after.symbols)?;
        let read_before = before.read(&self.input, &self.known, &mut names_before)?;
        let read_after = after.read(&self.input, &self.known, &mut names_after)?;
        find_common_wrappers(
            (&read_before.profile, &mut names_before),
            (&read_after.profile, &mut names_after),
        );
        let mut questions_before = Questions::new(&read_before.profile, names_before);
        let mut questions_after = Questions::new(&read_after.profile, names_after);
        let diff = Diff::of(&mut questions_before, &mut questions_after, cost);
        let outcome = match read_before.outcome {
            Outcome::Done => read_after.outcome,
            incomplete => incomplete,
        };
        Ok(Compared {
            diff,
            totals: (read_before.profile.totals, read_after.profile.totals),
            wrappers: [&questions_before, &questions_after].map(WrapperJson::all_of),
            // The present is of more interest.
            wrapper_note: wrappers_text(&questions_after).or_else(|| wrappers_text(&questions_before)),
            outcome,
        })
    }

    fn print(
        &self,
        output: &mut TextOutput,
        diff: &Diff,
        entries: &[DiffEntry],
        totals: &(Sums, Sums),
        unfreed: [Unfreed; 2],
        shown: &[Cost],
    ) -> io::Result<()> {
        let limit = self.list.most_entries(USUAL_ENTRIES);
        let name = |cost: Cost| match cost {
            Cost::Leaked => unfreed[0].of_both(unfreed[1]).word(),
            cost => cost.name(),
        };
        let palette = output.palette();
        let (Palette { dim, function }, strong) = (palette, palette.strong());
        writeln!(output, "{dim}  {:<10} {:>12} {:>12} {:>12}{dim:#}", "", "before", "after", "growth")?;
        for &cost in shown {
            let (before, after) = (cost.of(&totals.0).value, cost.of(&totals.1).value);
            let growth = i128::from(after) - i128::from(before);
            let (before, after, growth) = if cost.is_bytes() {
                (bytes(before), bytes(after), signed_bytes(growth))
            } else {
                (count(before), count(after), signed_count(growth))
            };
            let style = if cost == diff.cost { strong } else { anstyle::Style::new() };
            writeln!(output, "  {style}{:<10} {before:>12} {after:>12} {growth:>12}{style:#}", name(cost))?;
        }
        writeln!(output)?;
        if entries.is_empty() {
            return writeln!(output, "No stack costs more or less than before ({}).", name(diff.cost));
        }
        writeln!(output, "{strong}Changes ({}){strong:#}", name(diff.cost))?;
        let columns = name_columns(self.output.is_stdout() && io::stdout().is_terminal());
        for entry in entries.iter().take(limit) {
            let growth = if diff.cost.is_bytes() {
                signed_bytes(entry.growth())
            } else {
                signed_count(entry.growth())
            };
            let blocks = signed_count(entry.block_growth());
            let column = if diff.cost.is_bytes() { format!("{blocks:>12} × ") } else { String::new() };
            write!(output, " {strong}{growth:>12}{strong:#} {column}")?;
            let used = 14 + column.chars().count();
            let indent = " ".repeat(used);
            let most = if self.list.full { usize::MAX } else { 6 };
            for (index, frame) in entry.frames.iter().take(most).enumerate() {
                let lead = if index == 0 { String::new() } else { format!("{indent}{dim}← {dim:#}") };
                let (name, place) = self.name_and_place(frame);
                let room = columns.map(|columns| columns.saturating_sub(used + 2));
                let name = if self.list.full { name } else { list_name(&name, &place, room) };
                writeln!(output, "{lead}{function}{name}{function:#}{dim}{place}{dim:#}")?;
            }
            if entry.frames.len() > most {
                let more = entry.frames.len() - most;
                writeln!(
                    output,
                    "{indent}{dim}… {more} frames to {}{dim:#}",
                    self.name_and_place(&entry.frames[entry.frames.len() - 1]).0
                )?;
            }
        }
        if entries.len() > limit {
            writeln!(output, "{dim}and {} smaller changes{dim:#}", count((entries.len() - limit) as u64))?;
        }
        Ok(())
    }

    /// A frame's name, and where it is.
    fn name_and_place(&self, frame: &DiffFrame) -> (String, String) {
        let Some(function) = &frame.function else {
            let name = match (self.view(), frame.module.as_str()) {
                (ViewName::Module, "") => "outside of all modules".to_owned(),
                (ViewName::Module, module) => printable(module).into_owned(),
                (_, module) => format!("[in {}, names not known]", printable(module)),
            };
            return (name, String::new());
        };
        let file = frame.file.as_deref().map(|file| format!("  {file}")).unwrap_or_default();
        let module = if frame.module.is_empty() { String::new() } else { format!(" [{}]", frame.module) };
        (printable(function).into_owned(), printable(&format!("{file}{module}")).into_owned())
    }
}
