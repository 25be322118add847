//! `cairn diff`: what grew between two recordings, or two moments of one.

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use cairn_analysis::heap::schema::DiffReport;
use cairn_analysis::heap::{Cost, Diff, DiffEntry, DiffFrame, Sums, Unfreed};
use clap::error::ErrorKind;
use clap::{Args, CommandFactory};

use super::heap_input::{
    Heap, HeapInput, Moment, Symbols, complain_about, nanos_of, outcome_of, parse_moment, questions,
    read_stacks,
};
use super::heap_text::{bytes, count, shortened, signed_bytes, signed_count, width};
use super::report::CostName;
use crate::output::{Outcome, Palette, Progress, colored_stdout, printable};

/// Show what grew between two recordings, or two moments of one
///
/// Stacks are matched by functions, modules and files, not by addresses or lines, so that another build compares well.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DiffCommand {
    /// The recording before
    before: PathBuf,

    /// The recording after; leave it out to compare two moments of one
    after: Option<PathBuf>,

    /// Look at the first recording as it was at this time, as 1.5s or peak
    #[arg(long, value_name = "TIME", value_parser = parse_moment)]
    from: Option<Moment>,

    /// Look at the second recording as it was at this time
    #[arg(long, value_name = "TIME", value_parser = parse_moment)]
    to: Option<Moment>,

    /// What is compared [default: peak; leaked, which is what is alive, where a time is given]
    #[arg(long, value_name = "COST")]
    cost: Option<CostName>,

    /// Put together what one function asked for, whoever called it
    #[arg(long)]
    by_function: bool,

    /// Changes that are shown
    #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 20, conflicts_with = "full")]
    limit: usize,

    /// Show every change and every frame
    #[arg(long)]
    full: bool,

    /// End with exit code 4 when the cost grew by more than this, as 64KiB or 100; for checks before a merge
    #[arg(long, value_name = "AMOUNT", value_parser = super::heap_input::parse_size)]
    fail_above: Option<u64>,

    /// Print one JSON object; docs/report.md tells its fields
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    input: HeapInput,
}

const EXAMPLES: &str = "\
Examples:
  cairn diff old.cairn new.cairn                     what costs more at the peak
  cairn diff old.cairn new.cairn --cost leaked --fail-above 0
  cairn diff app.4711.cairn --from 10s --to 60s      what is alive at 60 s and was not at 10 s

Exit codes: 0 all went well; 1 a recording cannot be read; 2 the arguments make no sense; 3 parts of one are missing;
4 the cost grew by more than --fail-above.";

/// One of the two.
struct Side {
    path: PathBuf,
    heap: Heap,
    symbols: Symbols,
    to_nanos: u64,
}

impl Side {
    /// What its blocks are that were not freed.
    fn unfreed(&self) -> Unfreed {
        if self.to_nanos == u64::MAX { self.heap.about().unfreed } else { Unfreed::Alive }
    }
}

impl DiffCommand {
    pub(crate) fn run(self) -> io::Result<Outcome> {
        if self.after.is_none() && self.from.is_none() {
            let complaint =
                "one recording is compared with itself at two times: give --from TIME, or a second recording";
            crate::Cairn::command().error(ErrorKind::MissingRequiredArgument, complaint).exit()
        }
        let progress = Progress::begin("reading both recordings");
        let before = self.side(&self.before, self.from)?;
        let after = self.side(self.after.as_ref().unwrap_or(&self.before), self.to)?;
        let usual =
            if self.from.is_some() || self.to.is_some() { Cost::Leaked } else { after.heap.usual_cost() };
        let cost = self.cost.map_or(usual, CostName::cost);
        let (diff, totals, of_events) = self.compare(&before, &after, cost)?;
        drop(progress);
        let by_function = self.by_function.then(|| diff.by_function());
        let entries = by_function.as_deref().unwrap_or(&diff.entries);
        let limit = self.most_entries();
        let unfreed = [before.unfreed(), after.unfreed()];
        let mut output = BufWriter::new(colored_stdout());
        if self.json {
            let report = DiffReport::new(&diff, entries, (&totals.0, &totals.1), unfreed, limit);
            serde_json::to_writer(&mut output, &report)?;
            writeln!(output)?;
        } else {
            self.print(&mut output, &diff, entries, &totals, unfreed)?;
        }
        output.flush()?;
        let grew_too_much = self.fail_above.is_some_and(|most| diff.growth() > i128::from(most));
        let outcomes = [complain_about(&before.path, &before.heap), complain_about(&after.path, &after.heap)];
        before.symbols.finish(&self.input);
        if self.after.is_some() {
            after.symbols.finish(&self.input);
        }
        Ok(match outcomes {
            _ if grew_too_much => Outcome::Exceeded,
            [Outcome::Done, Outcome::Done] => of_events,
            [Outcome::Done, outcome] | [outcome, _] => outcome,
        })
    }

    const fn most_entries(&self) -> usize {
        if self.full { usize::MAX } else { self.limit }
    }

    fn side(&self, path: &Path, moment: Option<Moment>) -> io::Result<Side> {
        let heap = self.input.open(path)?;
        let to_nanos = match moment {
            Some(moment) => nanos_of(path, &heap, moment)?,
            None => u64::MAX,
        };
        let symbols = self.input.symbols(&heap);
        Ok(Side { path: path.to_owned(), heap, symbols, to_nanos })
    }

    fn compare(&self, before: &Side, after: &Side, cost: Cost) -> io::Result<(Diff, (Sums, Sums), Outcome)> {
        let mut names =
            [self.input.names(&before.heap, &before.symbols), self.input.names(&after.heap, &after.symbols)];
        let [names_before, names_after] = &mut names;
        let scope_before = self.input.scope(&before.heap, names_before, 0, before.to_nanos)?;
        let scope_after = self.input.scope(&after.heap, names_after, 0, after.to_nanos)?;
        let read_before = read_stacks(&before.path, &before.heap, scope_before)?;
        let read_after = read_stacks(&after.path, &after.heap, scope_after)?;
        let [names_before, names_after] = names;
        let mut questions_before = questions(&read_before, names_before);
        let mut questions_after = questions(&read_after, names_after);
        let diff = Diff::of(&mut questions_before, &mut questions_after, cost);
        let of_events = outcome_of(&read_before, outcome_of(&read_after, Outcome::Done));
        Ok((diff, (read_before.profile.totals, read_after.profile.totals), of_events))
    }

    fn print(
        &self,
        output: &mut impl Write,
        diff: &Diff,
        entries: &[DiffEntry],
        totals: &(Sums, Sums),
        unfreed: [Unfreed; 2],
    ) -> io::Result<()> {
        let limit = self.most_entries();
        let name = |cost: Cost| match cost {
            Cost::Leaked => unfreed[0].of_both(unfreed[1]).word(),
            cost => cost.name(),
        };
        let palette = Palette::of_stdout();
        let (Palette { dim, function }, strong) = (palette, palette.strong());
        writeln!(output, "{dim}  {:<10} {:>12} {:>12} {:>12}{dim:#}", "", "before", "after", "growth")?;
        for cost in Cost::ALL {
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
        writeln!(output, "{strong}What changed ({}){strong:#}", name(diff.cost))?;
        let width = width();
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
            let most = if self.full { usize::MAX } else { 6 };
            for (index, frame) in entry.frames.iter().take(most).enumerate() {
                let lead = if index == 0 { String::new() } else { format!("{indent}{dim}← {dim:#}") };
                let (name, place) = told(frame);
                let room = width.saturating_sub(used + 2 + place.chars().count()).max(20);
                let name = if self.full { name } else { shortened(&name, room) };
                writeln!(output, "{lead}{function}{name}{function:#}{dim}{place}{dim:#}")?;
            }
            if entry.frames.len() > most {
                let more = entry.frames.len() - most;
                writeln!(
                    output,
                    "{indent}{dim}… {more} frames to {}{dim:#}",
                    told(&entry.frames[entry.frames.len() - 1]).0
                )?;
            }
        }
        if entries.len() > limit {
            writeln!(output, "{dim}and {} smaller changes{dim:#}", count((entries.len() - limit) as u64))?;
        }
        Ok(())
    }
}

/// A frame's name, and where it is.
fn told(frame: &DiffFrame) -> (String, String) {
    let Some(function) = &frame.function else {
        return (format!("[in {}, names not known]", printable(&frame.module)), String::new());
    };
    let file = frame.file.as_deref().map(|file| format!("  {file}")).unwrap_or_default();
    let module = if frame.module.is_empty() { String::new() } else { format!(" [{}]", frame.module) };
    (printable(function).into_owned(), printable(&format!("{file}{module}")).into_owned())
}
