//! The overview of a directory of recordings: its programs, ranked, and sums of all.

use std::io::{self, IsTerminal, Write};
use std::path::Path;

use cairn_analysis::family::{Family, FamilySums, Member, Unread};
use cairn_analysis::heap::schema::SuppressedJson;
use cairn_analysis::heap::{Cost, HeapRecording, ModuleNames, Namer, Names, NoNames, Scope, Suppressed};
use cairn_analysis::names::AddressNames;
use cairn_recording::Recording;
use serde::Serialize;

use super::{ReportCommand, ReportFormat};
use crate::commands::family::{name_one_of, read_family};
use crate::commands::folding_text::known_leaks_text;
use crate::commands::heap_text::{bytes, count, counted, duration, width};
use crate::commands::options::{CostName, TextOutput};
use crate::output::{Outcome, Progress, printable};

/// Rows without `--limit` and `--full`.
const USUAL_ROWS: usize = 20;

/// The overview as JSON.
#[derive(Serialize)]
struct Overview<'a> {
    schema: &'static str,
    directory: String,
    main: Option<&'a str>,
    processes: usize,
    duration_nanos: u64,
    cost: &'static str,
    totals: FamilySums,
    short: FamilySums,
    recordings: Vec<FamilyRow<'a>>,
    suppressed: Vec<SuppressedJson>,
    unread: &'a [Unread],
}

#[derive(Serialize)]
struct FamilyRow<'a> {
    #[serde(flatten)]
    member: &'a Member,
    is_short: bool,
}

impl ReportCommand {
    /// Reports on a directory.
    pub(super) fn report_family(&self, directory: &Path) -> io::Result<Outcome> {
        let mut family = read_family(directory)?;
        if family.members().is_empty() && family.unread().is_empty() {
            let why =
                "there is no recording in it; `cairn heap --children PROGRAM` makes a directory of them";
            return Err(io::Error::other(format!("{}: {why}", directory.display())));
        }
        if let Some(option) = self.option_of_one_recording() {
            let why = format!("{option} is a question about one recording");
            return Err(io::Error::other(format!("{why}; {}", name_one_of(&family))));
        }
        let cost = self.cost.map_or(Cost::Peak, CostName::cost);
        if family.ranked(cost).is_none() {
            let why =
                "--cost temporary is not known without reading all events, which is done for one recording";
            return Err(io::Error::other(format!("{why}; {}", name_one_of(&family))));
        }
        let mut output = self.output.begin_text(directory)?;
        let progress = Progress::begin("looking for known leaks");
        let held_back = self.hold_back_in(&mut family)?;
        drop(progress);
        let ranked = family.ranked(cost).unwrap_or_default();
        if self.is_json() {
            let overview = Overview {
                schema: "cairn.heap.family/1",
                directory: directory.display().to_string(),
                main: family.main().map(|member| member.file.as_str()),
                processes: family.processes(),
                duration_nanos: family.duration_nanos(),
                cost: word(cost),
                totals: FamilySums::of(family.members()),
                short: FamilySums::of(family.members().iter().filter(|member| member.is_short())),
                recordings: ranked
                    .iter()
                    .map(|&member| FamilyRow { member, is_short: member.is_short() })
                    .collect(),
                suppressed: held_back.iter().map(SuppressedJson::from).collect(),
                unread: family.unread(),
            };
            serde_json::to_writer(&mut output, &overview)?;
            writeln!(output)?;
        } else {
            self.write_overview(&mut output, &family, &ranked, cost)?;
            for text in held_back_texts(&held_back) {
                writeln!(output, "note: {}", printable(&text))?;
            }
        }
        output.finish()?;
        let is_whole =
            family.unread().is_empty() && family.members().iter().all(|member| member.findings.is_empty());
        Ok(if is_whole { Outcome::Done } else { Outcome::Incomplete })
    }

    /// Holds back the known leaks of each recording, as a report on it does.
    ///
    /// Returns their sums by name. A recording that cannot be read any more is left as it is.
    fn hold_back_in(&self, family: &mut Family) -> io::Result<Vec<Suppressed>> {
        let folding = self.input.folding()?;
        let options = self.input.source_options();
        let mut shared = options.symbols.map(AddressNames::new);
        let mut sums: Vec<Suppressed> = Vec::new();
        for index in 0..family.members().len() {
            let Some(member) = family.members().get(index).filter(|member| member.leaked_allocations > 0)
            else {
                continue;
            };
            let Ok(recording) = Recording::open(family.directory().join(&member.file)) else { continue };
            let heap = HeapRecording::new(recording);
            let Ok(mut read) = heap.read(Scope::default()) else { continue };
            // Files that two recordings share are opened once.
            let symbols = shared.take().map(|names| ModuleNames::over(heap.stacks(), names));
            let namer: &dyn Namer = symbols.as_ref().map_or(&NoNames, |symbols| symbols);
            let mut names = Names::new(heap.stacks(), namer, folding.clone());
            let is_leaked = heap.about().unfreed.is_leaked();
            let held_back = self.input.hold_back_of(&self.known, is_leaked, &mut read.profile, &mut names);
            drop(names);
            shared = symbols.map(ModuleNames::into_inner);
            let held_back = held_back?;
            family.hold_back(index, &held_back);
            for known in held_back {
                match sums.iter_mut().find(|sum| sum.name == known.name) {
                    Some(sum) => {
                        sum.blocks += known.blocks;
                        sum.bytes = sum.bytes.saturating_add(known.bytes);
                    }
                    None => sums.push(known),
                }
            }
        }
        if let Some(names) = shared {
            self.input.index_later(&names);
        }
        sums.sort_by_key(|sum| std::cmp::Reverse(sum.bytes));
        Ok(sums)
    }

    /// Names an option that a directory cannot answer.
    fn option_of_one_recording(&self) -> Option<&'static str> {
        [
            (self.by.is_some(), "--by"),
            (self.times.is_given(), "a part of the time"),
            (self.format() == ReportFormat::Html, "a page"),
            (self.check, "--check"),
            (!self.input.filter_texts().is_empty(), "--filter"),
        ]
        .into_iter()
        .find_map(|(is_given, name)| is_given.then_some(name))
    }

    fn write_overview(
        &self,
        out: &mut TextOutput,
        family: &Family,
        ranked: &[&Member],
        cost: Cost,
    ) -> io::Result<()> {
        let palette = out.palette();
        let (strong, dim) = (palette.strong(), palette.dim);
        let sums = FamilySums::of(family.members());
        let about =
            if family.members().iter().any(|member| member.sample_bytes.is_some()) { "about " } else { "" };
        if let Some(main) = family.main() {
            writeln!(out, "{strong}{}{strong:#}", printable(&main.command.join(" ")))?;
        }
        let processes = match family.processes() {
            1 => "1 process".to_owned(),
            processes => format!("{} processes", count(processes as u64)),
        };
        writeln!(
            out,
            "{processes} · {} · {}\n",
            counted(sums.recordings, "recording"),
            duration(family.duration_nanos())
        )?;
        let (allocated, leaked) = (bytes(sums.total_bytes), bytes(sums.leaked_bytes));
        writeln!(out, "  allocated    {about}{allocated} in {}", counted(sums.total_allocations, "call"))?;
        writeln!(out, "  unfreed      {about}{leaked} in {}", counted(sums.leaked_allocations, "block"))?;
        if let Some(most) = family.members().iter().max_by_key(|member| member.peak_bytes) {
            let (peak, file) = (bytes(most.peak_bytes), printable(&most.file).into_owned());
            writeln!(out, "  largest peak {about}{peak} in one program: {file}")?;
        }

        // The program that was started is never grouped.
        let main = family.main().map(|member| &member.file);
        let is_grouped = |member: &Member| !self.list.full && member.is_short() && Some(&member.file) != main;
        let (grouped, single): (Vec<&Member>, Vec<&Member>) =
            ranked.iter().copied().partition(|member| is_grouped(member));
        let whole: u64 = ranked.iter().filter_map(|member| member.value(cost)).sum();
        let shown = self.list.shown(USUAL_ROWS, &single, whole, |member| member.value(cost).unwrap_or(0));
        writeln!(out, "\n{strong}Programs, by {}{strong:#}", heading(cost))?;
        writeln!(
            out,
            "{dim}{:>11} {:>11} {:>11} {:>9} {:>10} {:>8} {:>8}  FILE, COMMAND{dim:#}",
            "PEAK", "ALLOCATED", "UNFREED", "CALLS", "TIME", "PID", "PARENT"
        )?;
        for member in &shown {
            self.write_row(out, member)?;
        }
        if single.len() > shown.len() {
            let rest = FamilySums::of(single.iter().copied().skip(shown.len()));
            writeln!(
                out,
                "{dim}and {} more, {} allocated in all{dim:#}",
                count(rest.recordings),
                bytes(rest.total_bytes)
            )?;
        }
        if !grouped.is_empty() {
            let sums = FamilySums::of(grouped.iter().copied());
            writeln!(
                out,
                "{}: {} allocated in all, {} at most at once in one of them, {} unfreed{dim} (--full lists them){dim:#}",
                counted(sums.recordings, "short program"),
                bytes(sums.total_bytes),
                bytes(sums.largest_peak_bytes),
                bytes(sums.leaked_bytes)
            )?;
        }
        for Unread { file, reason } in family.unread() {
            writeln!(out, "{}: not read: {}", printable(file), printable(reason))?;
        }
        if let Some(first) = shown.first() {
            let path = family.directory().join(&first.file).display().to_string();
            writeln!(out, "\nNext: cairn report {}", printable(&path))?;
        }
        Ok(())
    }

    fn write_row(&self, out: &mut TextOutput, member: &Member) -> io::Result<()> {
        let parent = member.parent.map_or_else(|| "?".to_owned(), |parent| parent.to_string());
        let numbers = format!(
            "{:>11} {:>11} {:>11} {:>9} {:>10} {:>8} {:>8}  ",
            bytes(member.peak_bytes),
            bytes(member.total_bytes),
            bytes(member.leaked_bytes),
            count(member.total_allocations),
            duration(member.duration_nanos),
            member.process,
            parent
        );
        let mut text = printable(&format!("{}  {}", member.file, member.command.join(" "))).into_owned();
        // Nothing is cut in a file or a pipe.
        let room = width().saturating_sub(numbers.chars().count()).max(20);
        let is_cut = !self.list.full && self.output.is_stdout() && io::stdout().is_terminal();
        if is_cut && text.chars().count() > room {
            text = text.chars().take(room.saturating_sub(1)).chain(['…']).collect();
        }
        writeln!(out, "{numbers}{text}")?;
        let state = if member.is_running { Some("still runs") } else { None };
        for note in state.into_iter().chain(member.findings.iter().map(String::as_str)) {
            writeln!(out, "{:>11}   note: {}", "", printable(note))?;
        }
        Ok(())
    }
}

/// Notes on known leaks: those of every program in one line, and the user's.
fn held_back_texts(held_back: &[Suppressed]) -> Vec<String> {
    let of_user = held_back.iter().filter(|known| known.reason.is_none()).map(|known| {
        let blocks = counted(known.blocks, "block");
        format!("held back, because it is known: leak:{}: {} in {blocks}", known.name, bytes(known.bytes))
    });
    known_leaks_text(held_back).into_iter().chain(of_user).collect()
}

const fn word(cost: Cost) -> &'static str {
    match cost {
        Cost::Peak => "peak",
        Cost::Leaked => "leaked",
        Cost::Allocated => "allocated",
        Cost::Count => "count",
        Cost::Temporary => "temporary",
    }
}

const fn heading(cost: Cost) -> &'static str {
    match cost {
        Cost::Peak => "the peak of each",
        Cost::Leaked => "bytes that were not freed",
        Cost::Allocated => "bytes allocated",
        Cost::Count => "number of allocations",
        Cost::Temporary => "temporary allocations",
    }
}
