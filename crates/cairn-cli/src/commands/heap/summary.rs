//! The summary at the end: totals of a recording, five places of each kind, and the next commands.
//! The numbers are those of `cairn report`, from the same pass over the same events; a recording of
//! many events stores them for later reports.

use std::io::{self, IsTerminal, Write};
use std::path::Path;

use cairn_analysis::heap::{
    Cost, Folding, Group, HeapRecording, Names, Questions, Sampling, SummarySize, Unfreed,
};
use cairn_recording::{Finding, Recording};
use cairn_symbols::SymbolizerOptions;
use unicode_width::UnicodeWidthStr;

use crate::commands::fold_options::{FoldOptions, KnownLeakOptions};
use crate::commands::folding_text::{known_leaks_text, wrappers_text};
use crate::commands::heap_input::resident_text;
use crate::commands::heap_text::{
    bytes, count, counted, duration, file_name, list_name, name_columns, percent,
};
use crate::commands::symbol_options::advice_on_names;
use crate::commands::unseen::why_nothing_was_seen;
use crate::output::{complain, printable};

/// Number of places of each kind.
const PLACES: usize = 5;
/// Maximum functions of a stack: the one that allocated, and its callers.
const FUNCTIONS: usize = 4;
/// Width of the columns in front of the functions.
const NUMBERS: usize = 28;

/// Writes the summary of `recording`, which is in the file at `path`.
pub(super) fn write(out: &mut impl Write, recording: Recording, path: &Path) -> io::Result<()> {
    let heap = HeapRecording::new(recording);
    // Without a summary, reports take longer and show the same: errors are ignored.
    let mut read = heap.write_summary(path, SummarySize::Small).map_err(io::Error::other)?.read;
    let symbols = heap.symbols(SymbolizerOptions::new());
    let options = FoldOptions::default();
    // A faulty project file must not cost the summary: the next command says what is wrong with it.
    let folding = options.folding().unwrap_or_else(|error| {
        complain(&error);
        Folding::default()
    });
    let mut names = Names::new(heap.stacks(), &symbols, folding);
    let unfreed = Unfreed::of(heap.recording());
    let known = KnownLeakOptions::default();
    let held_back = known.hold_back_of(&options, unfreed.is_leaked(), &mut read.profile, &mut names);
    let held_back = held_back.unwrap_or_default();
    let mut questions = Questions::new(&read.profile, names);
    if let Some(early) = heap.recording().ended_early() {
        writeln!(out, "cairn: {early}")?;
    }
    write_totals(out, &questions, unfreed)?;
    if read.profile.totals.allocations == 0 {
        let why = why_nothing_was_seen(&heap, read.profile.sampling);
        writeln!(out, "  note: {}", printable(&why))?;
    }
    if let Some(text) = resident_text(&read, heap.recording().peak_resident_bytes()) {
        writeln!(out, "  resident   {text}")?;
    }
    if read.unmatched_frees > 0 {
        writeln!(out, "  freed      {} older than the recording", counted(read.unmatched_frees, "block"))?;
    }
    for finding in heap.findings() {
        // The user knows that the program was killed.
        if !matches!(finding, Finding::NoEnd | Finding::EndedEarly(_)) {
            writeln!(out, "  note: {}", printable(&finding.to_string()))?;
        }
    }
    if !unfreed.is_leaked() && unfreed != Unfreed::Alive {
        writeln!(out, "  note: not freed: {}", unfreed.heading())?;
    }
    let most_unfreed =
        if unfreed.is_leaked() { "Most memory leaked" } else { "Most memory alive at the end" };
    for (title, cost) in [
        ("Most memory at the peak", Cost::Peak),
        (most_unfreed, Cost::Leaked),
        ("Most memory allocated", Cost::Allocated),
        ("Most temporary blocks", Cost::Temporary),
    ] {
        write_places(out, &mut questions, title, cost)?;
    }
    if let Some(wrappers) = wrappers_text(&questions) {
        writeln!(out, "\n  note: {}", printable(&wrappers))?;
    }
    if let Some(known) = known_leaks_text(&held_back) {
        writeln!(out, "\n  note: {}", printable(&known))?;
    }
    if let Some(why) = advice_on_names(questions.names()) {
        writeln!(out, "\n  note: {why}")?;
    }
    let path = path.display().to_string();
    writeln!(out, "\nNext: cairn report {0}    cairn flame {0}", printable(&path))
}

fn write_totals(out: &mut impl Write, questions: &Questions<'_>, unfreed: Unfreed) -> io::Result<()> {
    let profile = questions.profile();
    let totals = &profile.totals;
    let error = |cost: Cost| match profile.sampling {
        Sampling::Poisson { .. } => format!(" ± {}", bytes(cost.error(&profile.errors).round() as u64)),
        _ => String::new(),
    };
    writeln!(out)?;
    if let Sampling::Poisson { mean_bytes } = profile.sampling {
        writeln!(out, "  estimated from a sample: one byte of {}", count(mean_bytes))?;
    }
    let (allocated, peak, leaked) = (error(Cost::Allocated), error(Cost::Peak), error(Cost::Leaked));
    writeln!(
        out,
        "  allocated  {}{allocated} in {}",
        bytes(totals.allocated_bytes),
        counted(totals.allocations, "call")
    )?;
    writeln!(
        out,
        "  peak       {}{peak} in {}, after {} of {}",
        bytes(totals.peak_bytes),
        counted(totals.peak_blocks, "block"),
        duration(profile.peak_nanos),
        duration(profile.end_nanos)
    )?;
    let live = counted(totals.live_blocks, "block");
    writeln!(out, "  {:<10} {}{leaked} in {live}", unfreed.word(), bytes(totals.live_bytes))?;
    if profile.sampling.is_estimate() {
        return Ok(());
    }
    let share = totals.temporary as f64 / totals.allocations.max(1) as f64;
    writeln!(
        out,
        "  temporary  {} ({} %) freed before their thread allocated again",
        counted(totals.temporary, "call"),
        percent(share).trim()
    )
}

fn write_places(
    out: &mut impl Write,
    questions: &mut Questions<'_>,
    title: &str,
    cost: Cost,
) -> io::Result<()> {
    if cost == Cost::Temporary && questions.profile().sampling.is_estimate() {
        return Ok(());
    }
    let mut places = questions.top_of(Group::Function, cost, 1);
    places.truncate(PLACES);
    if places.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n{title}:")?;
    for place in places {
        let amount = cost.of(&place.sums);
        let value = if cost.is_bytes() { bytes(amount.value) } else { String::new() };
        let &(stack, asker) = place.stacks.first().ok_or(io::ErrorKind::InvalidData)?;
        let functions = functions(questions, stack, asker);
        writeln!(out, "  {value:>10} {:>11} ×  {}", count(amount.blocks), printable(&functions))?;
    }
    Ok(())
}

/// Returns the allocating function and its callers, as far as they fit on a line.
fn functions(questions: &mut Questions<'_>, stack: u32, asker: cairn_analysis::heap::Position) -> String {
    let frames = questions.frames(stack, asker);
    let names = questions.names();
    let columns = name_columns(io::stderr().is_terminal());
    let room = columns.map(|columns| columns.saturating_sub(NUMBERS).max(30));
    let mut text = String::new();
    for (index, &line) in frames.iter().take(FUNCTIONS).enumerate() {
        let source = names.source_line(line);
        let name = &names.function(source.function).name;
        // The file of a caller is not shown, and tells its overloads apart all the same.
        let place = if source.file.is_some() { "  " } else { "" };
        let function = list_name(name, place, room.map(|room| room * 2 / 3));
        let place = match (source.file.as_deref(), source.line) {
            // For callers, the names are enough.
            (Some(file), Some(number)) if index == 0 => {
                format!("{function} ({}:{number})", file_name(file))
            }
            _ => function,
        };
        let needed = place.width() + 3;
        if index > 0 && room.is_some_and(|room| text.width() + needed > room) {
            text.push_str(" < …");
            return text;
        }
        if index > 0 {
            text.push_str(" < ");
        }
        text.push_str(&place);
    }
    if frames.len() > FUNCTIONS {
        text.push_str(" < …");
    }
    if text.is_empty() { "(no stack)".to_owned() } else { text }
}
