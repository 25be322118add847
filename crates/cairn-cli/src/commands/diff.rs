//! `cairn diff`: what grew between two recordings, or two moments of one.

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

#[cfg(target_os = "linux")]
use cairn_analysis::heap::NoNames;
use cairn_analysis::heap::schema::DiffReport;
use cairn_analysis::heap::{Cost, Diff, DiffEntry, DiffFrame, HeapProfile, Names, Questions, Sums, Unfreed};
use clap::error::ErrorKind;
use clap::{Args, CommandFactory};

#[cfg(target_os = "linux")]
use super::core::blocks::CoreBlocks;
use super::heap_input::{
    Heap, HeapInput, Moment, Symbols, complain_about, nanos_of, outcome_of, parse_moment, read_stacks,
};
use super::heap_text::{bytes, count, shortened, signed_bytes, signed_count, width};
use super::report::CostName;
#[cfg(target_os = "linux")]
use crate::output::complain;
use crate::output::{Outcome, Palette, Progress, colored_stdout, printable};

/// Show what grew between two recordings or core files, or two moments of one recording
///
/// Of core files and minidumps the blocks that were alive are compared. Stacks are matched by functions, modules and files, not by addresses or lines, so that another build compares well.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DiffCommand {
    /// The recording or core file before
    before: PathBuf,

    /// The recording or core file after; leave it out to compare two moments of one recording
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

    /// Print one JSON object; docs/book/reference/json.md describes its fields
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    input: HeapInput,
}

const EXAMPLES: &str = "\
Examples:
  cairn diff old.cairn new.cairn                     what costs more at the peak
  cairn diff old.cairn new.cairn --cost leaked --fail-above 0
  cairn diff core.100 core.200                       what blocks two cores of one program hold
  cairn diff app.4711.cairn --from 10s --to 60s      what is alive at 60 s and was not at 10 s

Exit codes: 0 all went well; 1 a recording cannot be read; 2 the arguments make no sense; 3 parts of one are missing;
4 the cost grew by more than --fail-above.";

/// One of the two.
struct Side {
    path: PathBuf,
    source: Source,
    symbols: Symbols,
    to_nanos: u64,
}

/// Where the blocks of a side are.
enum Source {
    /// In a recording, or a file of another tool.
    Heap(Box<Heap>),
    /// In an image of memory.
    #[cfg(target_os = "linux")]
    Core(Box<CoreBlocks>),
}

/// The sums of a side, and how complete they are.
struct SideRead {
    profile: HeapProfile,
    outcome: Outcome,
}

impl Side {
    /// What its blocks are that were not freed.
    fn unfreed(&self) -> Unfreed {
        match &self.source {
            Source::Heap(heap) if self.to_nanos == u64::MAX => heap.about().unfreed,
            _ => Unfreed::Alive,
        }
    }

    /// True when it has no blocks but those that are alive.
    fn is_image(&self) -> bool {
        !matches!(self.source, Source::Heap(_))
    }

    fn usual_cost(&self) -> Cost {
        match &self.source {
            Source::Heap(heap) => heap.usual_cost(),
            #[cfg(target_os = "linux")]
            Source::Core(_) => Cost::Leaked,
        }
    }

    fn names<'a>(&'a self, input: &HeapInput) -> Names<'a> {
        match &self.source {
            Source::Heap(heap) => input.names(heap, &self.symbols),
            #[cfg(target_os = "linux")]
            Source::Core(blocks) => input.names_of(blocks.stacks(), &self.symbols),
        }
    }

    fn read(&self, input: &HeapInput, names: &mut Names<'_>) -> io::Result<SideRead> {
        match &self.source {
            Source::Heap(heap) => {
                let scope = input.scope(heap, names, 0, self.to_nanos)?;
                let read = read_stacks(&self.path, heap, scope)?;
                let outcome = outcome_of(&read, Outcome::Done);
                Ok(SideRead { profile: read.profile, outcome })
            }
            #[cfg(target_os = "linux")]
            Source::Core(blocks) => {
                let scope = input.scope_of_image(&self.path, names)?;
                Ok(SideRead { profile: blocks.profile(scope), outcome: Outcome::Done })
            }
        }
    }

    fn complain(&self) -> Outcome {
        match &self.source {
            Source::Heap(heap) => complain_about(&self.path, heap),
            #[cfg(target_os = "linux")]
            Source::Core(blocks) => {
                for finding in blocks.findings() {
                    complain(&format_args!("{}: {finding}", self.path.display()));
                }
                if blocks.findings().is_empty() { Outcome::Done } else { Outcome::Incomplete }
            }
        }
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
        let is_image = before.is_image() || after.is_image();
        let usual = if self.from.is_some() || self.to.is_some() || is_image {
            Cost::Leaked
        } else {
            after.usual_cost()
        };
        let cost = self.cost.map_or(usual, CostName::cost);
        if is_image && cost != Cost::Leaked {
            let why = "an image of memory has the blocks that were alive, and nothing of those before; compare it with --cost \
                       leaked";
            return Err(io::Error::other(format!("--cost {}: {why}", cost.name())));
        }
        let (diff, totals, of_events) = self.compare(&before, &after, cost)?;
        drop(progress);
        let by_function = self.by_function.then(|| diff.by_function());
        let entries = by_function.as_deref().unwrap_or(&diff.entries);
        let limit = self.most_entries();
        let unfreed = [before.unfreed(), after.unfreed()];
        let mut output = BufWriter::new(colored_stdout());
        if self.json {
            let mut report = DiffReport::new(&diff, entries, (&totals.0, &totals.1), unfreed, limit);
            report.only_alive = is_image;
            serde_json::to_writer(&mut output, &report)?;
            writeln!(output)?;
        } else {
            let shown = if is_image { &[Cost::Leaked][..] } else { &Cost::ALL };
            self.print(&mut output, &diff, entries, &totals, unfreed, shown)?;
        }
        output.flush()?;
        let grew_too_much = self.fail_above.is_some_and(|most| diff.growth() > i128::from(most));
        let outcomes = [before.complain(), after.complain()];
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
        #[cfg(target_os = "linux")]
        if let Some(blocks) = CoreBlocks::open(path, &self.input.image_options())? {
            if moment.is_some() || self.after.is_none() {
                let why =
                    "an image of memory is one moment; compare it with another one, without --from and --to";
                return Err(io::Error::other(format!("{}: {why}", path.display())));
            }
            let symbols = if self.input.wants_names() {
                let names = blocks.names(self.input.symbolizer(), self.input.allows_mismatch());
                Symbols::Files(Box::new(names))
            } else {
                Symbols::None(NoNames)
            };
            let source = Source::Core(Box::new(blocks));
            return Ok(Side { path: path.to_owned(), source, symbols, to_nanos: u64::MAX });
        }
        let heap = self.input.open(path)?;
        let to_nanos = match moment {
            Some(moment) => nanos_of(path, &heap, moment)?,
            None => u64::MAX,
        };
        let symbols = self.input.symbols(&heap);
        Ok(Side { path: path.to_owned(), source: Source::Heap(Box::new(heap)), symbols, to_nanos })
    }

    fn compare(&self, before: &Side, after: &Side, cost: Cost) -> io::Result<(Diff, (Sums, Sums), Outcome)> {
        let (mut names_before, mut names_after) = (before.names(&self.input), after.names(&self.input));
        let read_before = before.read(&self.input, &mut names_before)?;
        let read_after = after.read(&self.input, &mut names_after)?;
        let mut questions_before = Questions::new(&read_before.profile, names_before);
        let mut questions_after = Questions::new(&read_after.profile, names_after);
        let diff = Diff::of(&mut questions_before, &mut questions_after, cost);
        let of_events = match read_before.outcome {
            Outcome::Done => read_after.outcome,
            incomplete => incomplete,
        };
        Ok((diff, (read_before.profile.totals, read_after.profile.totals), of_events))
    }

    fn print(
        &self,
        output: &mut impl Write,
        diff: &Diff,
        entries: &[DiffEntry],
        totals: &(Sums, Sums),
        unfreed: [Unfreed; 2],
        shown: &[Cost],
    ) -> io::Result<()> {
        let limit = self.most_entries();
        let name = |cost: Cost| match cost {
            Cost::Leaked => unfreed[0].of_both(unfreed[1]).word(),
            cost => cost.name(),
        };
        let palette = Palette::of_stdout();
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
