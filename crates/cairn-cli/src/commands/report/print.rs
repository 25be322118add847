//! Prints the report for people: the answer first, then the stacks behind it.

mod tables;

use std::collections::HashSet;
use std::io::{self, IsTerminal, Write};
use std::path::Path;

use cairn_analysis::heap::schema::ReportRequest;
use cairn_analysis::heap::{Amount, Cost, Entry, Group, LineId, Position, Questions, Sampling, Tree};

use crate::commands::folding_text::{StackLine, folding_notes, known_leaks_text, stack_lines};
use crate::commands::heap_input::resident_text;
use crate::commands::heap_text::{
    bytes, count, counted, curve, duration, list_name, name_and_place, name_columns, percent, stretched,
    width,
};
use crate::commands::symbol_options::advice_on_names;
use crate::output::{Palette, printable};

/// Prints one report.
pub(super) struct ReportPrinter<'p, 'q, W> {
    output: &'p mut W,
    questions: &'p mut Questions<'q>,
    asked: &'p ReportRequest<'p>,
    full: bool,
    file: &'p Path,
    palette: Palette,
    width: usize,
    /// Frames of printed stacks that were folded.
    folded: usize,
    /// Stacks whose frames were printed.
    shown: HashSet<(u32, Position)>,
    /// The reason for an empty answer.
    unseen: Option<String>,
    /// It is known how long blocks lived.
    has_frees: bool,
    /// Names were searched for.
    has_names: bool,
    /// Only blocks that were alive at one moment are known.
    is_image: bool,
    /// A person reads it as it is written.
    is_to_people: bool,
}

/// Columns in front of the names: share, value, blocks.
const NUMBERS: usize = 33;
/// Lines of a stack below its first one; more only on demand. 6, because a line that hides two
/// frames saves one line and hides two answers.
const FRAMES: usize = 6;
/// Rows of the curve.
const CURVE_ROWS: usize = 6;

impl<'p, 'q, W: Write> ReportPrinter<'p, 'q, W> {
    pub(super) fn new(
        output: &'p mut W,
        questions: &'p mut Questions<'q>,
        asked: &'p ReportRequest<'p>,
        full: bool,
        file: &'p Path,
        unseen: Option<String>,
    ) -> Self {
        Self {
            output,
            questions,
            asked,
            full,
            file,
            palette: Palette::of_stdout(),
            width: width(),
            folded: 0,
            shown: HashSet::new(),
            unseen,
            has_frees: true,
            has_names: true,
            is_image: false,
            is_to_people: true,
        }
    }

    /// With these colours.
    pub(super) fn colored(mut self, palette: Palette) -> Self {
        self.palette = palette;
        self
    }

    /// For a file, which needs no advice about the next command.
    pub(super) fn in_file(mut self) -> Self {
        self.is_to_people = false;
        self
    }

    /// For an image of memory.
    pub(super) fn of_image(mut self) -> Self {
        self.is_image = true;
        self
    }

    /// Without advice on missing names.
    pub(super) fn without_names(mut self) -> Self {
        self.has_names = false;
        self
    }

    /// For a file that does not record how long blocks lived.
    pub(super) fn without_frees(mut self) -> Self {
        self.has_frees = false;
        self
    }

    /// Everything at a glance; or, with a cost, its list alone below the totals.
    pub(super) fn whole_picture(&mut self, only: Option<Cost>) -> io::Result<()> {
        self.head()?;
        self.totals()?;
        self.curve(CURVE_ROWS)?;
        match only {
            Some(cost) => self.section(cost)?,
            None => {
                for cost in [Cost::Peak, Cost::Leaked, Cost::Allocated, Cost::Count, Cost::Temporary] {
                    self.section(cost)?;
                }
                self.resident_section()?;
                self.thread_section()?;
                self.size_section()?;
            }
        }
        self.suppressed()?;
        self.notes()?;
        self.next_steps()
    }

    /// One list.
    pub(super) fn list(&mut self) -> io::Result<()> {
        self.head()?;
        self.section_by(self.asked.group, self.asked.cost)?;
        self.suppressed()?;
        self.notes()
    }

    fn head(&mut self) -> io::Result<()> {
        let strong = self.palette.strong();
        let about = self.asked.about;
        let command = about.command.join(" ");
        let title = if command.is_empty() { self.file.display().to_string() } else { command };
        let title = printable(&title);
        let title = self.columns().map_or(title.to_string(), |columns| shorten_end(&title, columns - 2));
        writeln!(self.output, "{strong}{title}{strong:#}")?;
        let mut facts = Vec::new();
        if about.process > 0 {
            facts.push(format!("process {}", about.process));
        }
        match about.lasted_nanos {
            _ if about.growth.is_some() => facts.push(self.growth()),
            Some(nanos) if about.ended_before_program => {
                facts.push(format!("recorded for {}", duration(nanos)));
            }
            Some(nanos) => facts.push(format!("ran {}", duration(nanos))),
            None if self.is_image => facts.push("an image of memory".to_owned()),
            None => facts.push(format!("recorded until {}", duration(self.questions.profile().end_nanos))),
        }
        if let Sampling::Poisson { mean_bytes } = self.questions.profile().sampling {
            facts.push(format!("sampled, one byte of {}", count(mean_bytes)));
        }
        let scope = &self.asked.scope;
        match (scope.from_nanos, scope.to_nanos) {
            (0, None) => {}
            (0, Some(to)) => facts.push(format!("seen at {}", duration(to))),
            (from, None) => facts.push(format!("allocated after {}", duration(from))),
            (from, Some(to)) => facts.push(format!("allocated from {} to {}", duration(from), duration(to))),
        }
        facts.extend(scope.filters.iter().map(|filter| format!("only {}", printable(filter))));
        let of_events = self.asked.read.findings.iter().filter(|finding| finding.is_damage());
        let damage: Vec<String> =
            about.damage.iter().cloned().chain(of_events.map(ToString::to_string)).collect();
        let dim = self.palette.dim;
        writeln!(self.output, "{dim}{}{dim:#}", facts.join(" · "))?;
        if let Some(early) = &about.ended_early {
            let text = printable(early);
            writeln!(self.output, "\n{strong}{text}{strong:#}")?;
        }
        for what in &damage {
            writeln!(self.output, "{strong}damaged: {}{strong:#}", printable(what))?;
        }
        writeln!(self.output)
    }

    /// Until when a recording was read that the program still writes.
    fn growth(&self) -> String {
        let growth = self.asked.about.growth;
        let end_nanos = self.questions.profile().end_nanos;
        let until =
            growth.and_then(|growth| growth.until_nanos).map_or(end_nanos, |until| until.max(end_nanos));
        let age = growth.filter(|growth| growth.is_drained).and_then(|growth| growth.age_nanos);
        let age = age.map_or(String::new(), |age| format!(", {:.1} s ago", age as f64 / 1e9));
        format!("still runs, as of {}{age}", duration(until))
    }

    fn totals(&mut self) -> io::Result<()> {
        let profile = self.questions.profile();
        let totals = &profile.totals;
        let seconds = profile.end_nanos as f64 / 1e9;
        let rate = if seconds > 0.0 {
            format!(", {} a second", count((totals.allocations as f64 / seconds) as u64))
        } else {
            String::new()
        };
        let is_part = totals.peak_bytes != profile.peak_bytes_of_all;
        let of_all =
            if is_part { format!(" of {}", bytes(profile.peak_bytes_of_all)) } else { String::new() };
        if self.is_image {
            let blocks = counted(totals.live_blocks, "block");
            self.total("alive", Cost::Leaked, &format!(" in {blocks}"))?;
            return writeln!(self.output);
        }
        if !self.has_frees {
            return self.totals_without_frees(&rate);
        }
        self.total(
            "peak",
            Cost::Peak,
            &format!(
                "{of_all} in {}, after {}",
                counted(totals.peak_blocks, "block"),
                duration(profile.peak_nanos)
            ),
        )?;
        let (word, _) = self.words(Cost::Leaked);
        self.total(word, Cost::Leaked, &format!(" in {}", counted(totals.live_blocks, "block")))?;
        self.total(
            "allocated",
            Cost::Allocated,
            &format!(" in {}{rate}", counted(totals.allocations, "call")),
        )?;
        if !profile.sampling.is_estimate() {
            let share = Amount { value: totals.temporary, blocks: 0 }
                .share_of(Amount { value: totals.allocations, blocks: 0 });
            let calls = counted(totals.temporary, "call");
            writeln!(
                self.output,
                "  {:<10}{:>12} {calls} ({} %) freed before their thread allocated again",
                "temporary",
                "",
                percent(share).trim()
            )?;
        }
        if let Some(text) = resident_text(self.asked.read, self.asked.about.peak_resident_bytes) {
            // The first number and its unit fill the column.
            let number = text.split(' ').take(2).map(|word| word.len() + 1).sum::<usize>() - 1;
            let (number, rest) = text.split_at(number);
            writeln!(self.output, "  {:<10}{number:>12}{rest}", "resident")?;
        }
        writeln!(self.output)
    }

    /// The totals of a file that does not record how long blocks lived.
    fn totals_without_frees(&mut self, rate: &str) -> io::Result<()> {
        let calls = counted(self.questions.profile().totals.allocations, "call");
        self.total("allocated", Cost::Allocated, &format!(" in {calls}{rate}"))?;
        writeln!(self.output, "  {:<10}{:>12} not known: frees are not recorded in this file\n", "held", "")
    }

    fn total(&mut self, word: &str, cost: Cost, rest: &str) -> io::Result<()> {
        let profile = self.questions.profile();
        let error = if profile.sampling.is_estimate() {
            format!(" ± {}", bytes(cost.error(&profile.errors).round() as u64))
        } else {
            String::new()
        };
        let strong = self.palette.strong();
        let value = bytes(cost.of(&profile.totals).value);
        writeln!(self.output, "  {word:<10}{strong}{value:>12}{strong:#}{error}{rest}")
    }

    /// Returns the word for a cost, and the heading of its list.
    fn words(&self, cost: Cost) -> (&'static str, String) {
        let profile = self.questions.profile();
        match cost {
            Cost::Peak => ("peak", format!("Held at the peak, after {}", duration(profile.peak_nanos))),
            Cost::Leaked if self.is_image => ("alive", "Alive in this image of memory".to_owned()),
            Cost::Leaked if self.asked.scope.to_nanos.is_some() => {
                ("alive", format!("Alive after {}", duration(profile.end_nanos)))
            }
            Cost::Leaked => {
                let unfreed = self.asked.about.unfreed;
                (unfreed.word(), unfreed.heading().to_owned())
            }
            Cost::Allocated => ("allocated", "Allocated most bytes".to_owned()),
            Cost::Count => ("calls", "Allocated most often".to_owned()),
            Cost::Temporary => {
                ("temporary", "Temporary (freed before their thread allocated again)".to_owned())
            }
        }
    }

    fn section(&mut self, cost: Cost) -> io::Result<()> {
        self.section_by(Group::Function, cost)
    }

    fn section_by(&mut self, group: Group, cost: Cost) -> io::Result<()> {
        if cost == Cost::Temporary && self.questions.profile().sampling.is_estimate() {
            return writeln!(
                self.output,
                "Which allocations are temporary is not known of a sampled recording.\n"
            );
        }
        let (_, heading) = self.words(cost);
        let by = match group {
            Group::Function => "",
            Group::Line => ", by line",
            Group::Module => ", by module",
            Group::Stack => ", by stack",
        };
        let whole = cost.of(&self.questions.profile().totals);
        let sum = if cost.is_bytes() {
            format!("{} in {}", bytes(whole.value), counted(whole.blocks, "block"))
        } else {
            counted(whole.blocks, "call")
        };
        self.heading(&format!("{heading}{by}: {sum}"))?;
        if whole.is_zero() {
            return writeln!(self.output);
        }
        let entries = self.questions.top_of(group, cost, self.asked.limits.stacks);
        let limits = self.asked.limits;
        let shown = limits.shown(&entries, cost, whole);
        let stacks = |entry: &Entry| {
            entry.stacks.iter().take(limits.stacks).map(|&(stack, _)| stack).collect::<Vec<_>>()
        };
        self.questions.names_mut().find_stacks(entries[..shown].iter().flat_map(stacks));
        for entry in &entries[..shown] {
            self.entry(group, cost, entry, whole)?;
        }
        let rest =
            entries[shown..].iter().fold(Amount::default(), |sum, entry| sum.plus(cost.of(&entry.sums)));
        if !rest.is_zero() {
            let what = match group {
                Group::Stack => "stack",
                Group::Line => "line",
                Group::Module => "module",
                Group::Function => "function",
            };
            let dim = self.palette.dim;
            self.numbers(cost, rest, whole, None)?;
            writeln!(
                self.output,
                "{dim}in {}{dim:#}",
                counted((entries.len() - shown) as u64, &format!("more {what}"))
            )?;
        }
        writeln!(self.output)
    }

    fn heading(&mut self, text: &str) -> io::Result<()> {
        let strong = self.palette.strong();
        writeln!(self.output, "{strong}{text}{strong:#}")
    }

    /// Share, value and blocks; [`NUMBERS`] columns, but for an error behind them.
    fn numbers(&mut self, cost: Cost, amount: Amount, whole: Amount, error: Option<f64>) -> io::Result<()> {
        let share = percent(amount.share_of(whole));
        let strong = self.palette.strong();
        let (value, blocks) = (amount.value, count(amount.blocks));
        if cost.is_bytes() {
            let value = bytes(value);
            write!(self.output, " {share:>5} % {strong}{value:>10}{strong:#} {blocks:>10} × ")?;
        } else {
            write!(self.output, " {share:>5} % {:>10} {strong}{blocks:>10}{strong:#} × ", "")?;
        }
        match error {
            Some(error) if cost.is_bytes() => write!(self.output, "(± {}) ", bytes(error.round() as u64)),
            Some(error) => write!(self.output, "(± {}) ", count(error.round() as u64)),
            None => Ok(()),
        }
    }

    fn entry(&mut self, group: Group, cost: Cost, entry: &Entry, whole: Amount) -> io::Result<()> {
        let error = self.questions.profile().sampling.is_estimate().then(|| cost.error(&entry.errors));
        self.numbers(cost, cost.of(&entry.sums), whole, error)?;
        if group == Group::Module {
            let module = self.questions.names().module_name(entry.line);
            let module = if module.is_empty() { "outside of all modules" } else { module };
            let function = self.palette.function;
            return writeln!(self.output, "{function}{}{function:#}", printable(module));
        }
        self.frame(entry.line, NUMBERS)?;
        let stacks: Vec<(u32, Position)> =
            entry.stacks.iter().take(self.asked.limits.stacks).copied().collect();
        for (index, &(stack, asker)) in stacks.iter().enumerate() {
            if entry.stacks.len() > 1 && self.full {
                let amount = cost.of(self.questions.sums(stack));
                self.numbers(cost, amount, whole, None)?;
                writeln!(self.output, "by stack {}", index + 1)?;
            }
            let more = if index + 1 == stacks.len() { entry.stacks.len() - stacks.len() } else { 0 };
            self.callers(stack, asker, more)?;
        }
        Ok(())
    }

    /// Prints the callers of a frame, one a line.
    ///
    /// Omits the middle of a long stack, but never its outermost frame.
    fn callers(&mut self, stack: u32, asker: Position, more_stacks: usize) -> io::Result<()> {
        let dim = self.palette.dim;
        let indent = " ".repeat(NUMBERS);
        let frames = self.questions.frames(stack, asker);
        self.folded += self.questions.left_out(stack, asker);
        let callers = frames.get(1..).unwrap_or_default();
        // The same stack is often at the top of several lists.
        if !self.full && !callers.is_empty() && !self.shown.insert((stack, asker)) {
            return writeln!(self.output, "{indent}{dim}← as above{dim:#}");
        }
        let lines = if self.full {
            callers.iter().copied().map(StackLine::Frame).collect()
        } else {
            stack_lines(self.questions.names(), frames[0], callers, FRAMES)
        };
        for line in lines {
            write!(self.output, "{indent}{dim}← {dim:#}")?;
            match line {
                StackLine::Frame(line) => self.frame(line, NUMBERS + 2)?,
                StackLine::LeftOut { frames, of } => {
                    writeln!(
                        self.output,
                        "{dim}… {}{} …{dim:#}",
                        counted(frames as u64, "frame"),
                        printable(&of)
                    )?;
                }
            }
        }
        if more_stacks > 0 {
            writeln!(
                self.output,
                "{indent}{dim}  and {}{dim:#}",
                counted(more_stacks as u64, "other stack")
            )?;
        }
        Ok(())
    }

    /// The width of a terminal, which lines are cut to.
    fn columns(&self) -> Option<usize> {
        name_columns(self.is_to_people && io::stdout().is_terminal())
    }

    /// `function  file:line [module]`; the name is cut to the rest of the line.
    fn frame(&mut self, line: LineId, used: usize) -> io::Result<()> {
        let (name, place) = name_and_place(self.questions.names(), line);
        let room = self.columns().map(|columns| columns.saturating_sub(used));
        let name = if self.full { name } else { list_name(&name, &place, room) };
        let Palette { function, dim, .. } = self.palette;
        writeln!(self.output, "{function}{name}{function:#}{dim}{place}{dim:#}")
    }

    fn curve(&mut self, rows: usize) -> io::Result<()> {
        let profile = self.questions.profile();
        let bins: Vec<u64> = profile.timeline.bins.iter().map(|bin| bin.most_bytes).collect();
        let most = bins.iter().copied().max().unwrap_or(0);
        if bins.len() < 2 || most == 0 {
            return Ok(());
        }
        const LABEL: usize = 12;
        let columns = (self.width - LABEL - 4).min(120);
        let dim = self.palette.dim;
        for (index, row) in curve(&stretched(&bins, columns), rows).iter().enumerate() {
            let label = if index == 0 { bytes(most) } else { String::new() };
            writeln!(self.output, "{dim}{label:>LABEL$} │{dim:#}{row}")?;
        }
        let end =
            duration(profile.timeline.bin_nanos.saturating_mul(bins.len() as u64).min(profile.end_nanos));
        writeln!(self.output, "{dim}{:>LABEL$} └{}{dim:#}", "0 B", "─".repeat(columns))?;
        let space = columns.saturating_sub(end.chars().count() + 1);
        writeln!(self.output, "{dim}{:>LABEL$}  0{:space$}{end}{dim:#}\n", "", "")
    }

    /// Memory over time alone: a taller curve, and a table.
    pub(super) fn time(&mut self) -> io::Result<()> {
        const ROWS: usize = 20;
        self.head()?;
        self.curve(12)?;
        let timeline = &self.questions.profile().timeline;
        let rows = if self.full { timeline.bins.len() } else { ROWS.min(timeline.bins.len()) };
        let dim = self.palette.dim;
        let usage = &self.asked.read.usage;
        let resident_title = if usage.is_empty() { "" } else { "resident" };
        writeln!(
            self.output,
            "{dim}{:>14} {:>12} {:>12} {:>14} {resident_title:>12}{dim:#}",
            "until", "most", "at the end", "allocations"
        )?;
        for row in 0..rows {
            let (start, end) = (row * timeline.bins.len() / rows, (row + 1) * timeline.bins.len() / rows);
            let bins = &timeline.bins[start..end];
            let most = bins.iter().map(|bin| bin.most_bytes).max().unwrap_or(0);
            let last = bins.last().map_or(0, |bin| bin.last_bytes);
            let allocations: u64 = bins.iter().map(|bin| bin.allocations).sum();
            let (from, until) = (start as u64, end as u64);
            let (from, until) =
                (timeline.bin_nanos.saturating_mul(from), timeline.bin_nanos.saturating_mul(until));
            // Resident memory of the whole process, where it was sampled in this stretch of time.
            let samples = usage.iter().filter(|sample| (from..until).contains(&sample.nanos));
            let resident = samples.map(|sample| sample.resident_bytes).max().map_or(String::new(), bytes);
            let (until, most, last) = (duration(until), bytes(most), bytes(last));
            let line = format!("{until:>14} {most:>12} {last:>12} {:>14} {resident:>12}", count(allocations));
            writeln!(self.output, "{}", line.trim_end())?;
        }
        writeln!(self.output)?;
        self.notes()
    }

    /// A tree.
    pub(super) fn tree(&mut self, from_main: bool) -> io::Result<()> {
        self.head()?;
        let Some(tree) = self.asked.tree else { return Ok(()) };
        let (_, heading) = self.words(tree.cost);
        let direction = if from_main { "from main inwards" } else { "from the allocations outwards" };
        self.heading(&format!("{heading}, {direction}"))?;
        let whole = tree.nodes[0].amount;
        if whole.is_zero() {
            return writeln!(self.output, "  nothing");
        }
        // The lines that lead from a node to its children, as one goes down.
        let mut is_last: Vec<bool> = Vec::new();
        let parents = last_children(tree);
        for index in tree.in_order() {
            let node = &tree.nodes[index];
            is_last.truncate(node.level - 1);
            is_last.push(parents[index]);
            self.numbers(tree.cost, node.amount, whole, None)?;
            let lead = lead(&is_last);
            let dim = self.palette.dim;
            write!(self.output, "{dim}{lead}{dim:#}")?;
            if let Some(line) = node.line {
                self.frame(line, NUMBERS + lead.chars().count())?;
            }
            if !node.left_out.is_zero() && node.children.is_empty() {
                let space = " ".repeat(NUMBERS + lead.chars().count() + 2);
                let left_out = if tree.cost.is_bytes() {
                    bytes(node.left_out.value)
                } else {
                    count(node.left_out.value)
                };
                writeln!(self.output, "{space}{dim}… {left_out} in smaller branches{dim:#}")?;
            }
        }
        let left_out = tree.nodes[0].left_out;
        if !left_out.is_zero() {
            self.numbers(tree.cost, left_out, whole, None)?;
            let dim = self.palette.dim;
            writeln!(self.output, "{dim}in smaller branches{dim:#}")?;
        }
        writeln!(self.output)?;
        self.folded += tree.folded_frames();
        self.notes()
    }

    fn suppressed(&mut self) -> io::Result<()> {
        let of_user: Vec<_> = self.asked.suppressed.iter().filter(|entry| entry.reason.is_none()).collect();
        if of_user.is_empty() {
            return Ok(());
        }
        let what = if self.words(Cost::Leaked).0 == "leaked" { "leaks" } else { "leaks, alive here" };
        self.heading(&format!("Known {what}, held back"))?;
        for held_back in of_user {
            let value = bytes(held_back.bytes);
            writeln!(
                self.output,
                "         {value:>10} {:>10} × leak:{}",
                count(held_back.blocks),
                printable(&held_back.name)
            )?;
        }
        writeln!(self.output)
    }

    /// Prints what limits the numbers.
    fn notes(&mut self) -> io::Result<()> {
        let mut notes: Vec<String> = Vec::new();
        if self.asked.read.unmatched_frees > 0 {
            let frees = counted(self.asked.read.unmatched_frees, "free");
            notes.push(if self.asked.about.is_continued {
                format!(
                    "{frees} of blocks that are older than the recording, or than the moment at which cairn was stopped: those seem to live"
                )
            } else {
                format!("{frees} of blocks that are older than the recording")
            });
        }
        let scope = &self.asked.scope;
        let profile = self.questions.profile();
        if profile.totals.allocations == 0 && !scope.filters.is_empty() {
            let filters = scope.filters.join(" ");
            notes.push(format!("no allocation matches --filter {}", printable(&filters)));
        }
        notes.extend(self.unseen.as_deref().map(|why| printable(why).into_owned()));
        let lost = self.questions.profile().lost_stack.allocations;
        if lost > 0 {
            notes.push(format!("{} without a stack, because it was lost", counted(lost, "allocation")));
        }
        let odd = self.questions.profile().anomalies;
        let sum = odd.bad_numbers + odd.reused_objects + odd.unknown_frees;
        if sum > 0 {
            notes.push(format!("{} were contradictory and were left out", counted(sum, "event")));
        }
        let texts = known_leaks_text(self.asked.suppressed).into_iter();
        let texts = texts.chain(folding_notes(self.questions, self.folded));
        notes.extend(texts.map(|text| printable(&text).into_owned()));
        notes.extend(self.asked.about.notes.iter().cloned());
        if self.has_names {
            notes.extend(advice_on_names(self.questions.names()));
        }
        for note in notes {
            writeln!(self.output, "note: {note}")?;
        }
        Ok(())
    }

    /// For people, not for files.
    fn next_steps(&mut self) -> io::Result<()> {
        if !self.is_to_people || !io::stdout().is_terminal() {
            return Ok(());
        }
        let file = self.file.display().to_string();
        let file = printable(&file);
        let dim = self.palette.dim;
        writeln!(
            self.output,
            "{dim}next: cairn report {file} --by tree     cairn flame {file} -o heap.svg{dim:#}"
        )
    }
}

/// For each node, whether it is the last child of its parent.
fn last_children(tree: &Tree) -> Vec<bool> {
    let mut last = vec![false; tree.nodes.len()];
    for node in &tree.nodes {
        if let Some(&child) = node.children.last() {
            last[child] = true;
        }
    }
    last
}

/// The lines that lead to a node: an only chain of calls needs no branches.
fn lead(is_last: &[bool]) -> String {
    let Some((own, outer)) = is_last.split_last() else { return String::new() };
    // Deep trees would leave no room for names.
    const MOST: usize = 24;
    let mut text = String::new();
    if outer.len() > MOST {
        text.push('⋯');
    }
    for &last in &outer[outer.len().saturating_sub(MOST)..] {
        text.push_str(if last { " " } else { "│" });
    }
    text.push_str(if *own { "└ " } else { "├ " });
    text
}

fn shorten_end(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most.saturating_sub(1)).chain(['…']).collect()
}
