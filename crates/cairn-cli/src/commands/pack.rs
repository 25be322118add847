//! `cairn pack`: packs a spool into a small recording.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use cairn_analysis::file_kind::FileKind;
use cairn_analysis::heap::{HeapRecording, SummarySize};
use cairn_recording::{Events, Finding, Recording, RecordingError, Totals, Wanted, pack};
use clap::{Args, ValueEnum};

use super::input_file::with_kind;
use crate::new_file::{DASH, Output};
use crate::output::{Outcome, Progress, complain, refusal};

/// Pack a recording: the same events in a tenth of the bytes
///
/// A program that records without `cairn` leaves a spool. Every command reads spools; a packed
/// recording is smaller and opens faster.
#[derive(Args)]
#[command(after_help = "\
Examples:
  cairn pack program.4711.spool            writes program.4711.cairn
  cairn pack -o small.cairn old.cairn      writes small.cairn
  cairn pack -o - program.spool | ssh ...  writes to standard output, without sums
  cairn pack --in-place old.cairn          adds sums to a large recording, so that reports are fast
  cairn pack --check old.cairn             reads everything and reports damage

Exit codes: 0 everything was done; 1 the recording cannot be read, or the file cannot be written; 2 the arguments are invalid;
3 parts of the recording are missing or damaged, and what there is was packed.")]
pub(crate) struct Pack {
    /// The recording; - for standard input
    recording: PathBuf,

    /// Write to this file; - for standard output. [default: the recording's name, ending in .cairn;
    /// for -, -]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Replace an existing file
    #[arg(long)]
    force: bool,

    /// Store the sums of all events beside them, so that reports need not read the events
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    sums: Sums,

    /// Write nothing: read the whole recording and report damage
    #[arg(long, conflicts_with_all = ["output", "force", "sums", "in_place"])]
    check: bool,

    /// Write no other file: add the sums to the recording itself, which must be packed
    #[arg(long, conflicts_with_all = ["output", "force", "sums"])]
    in_place: bool,
}

/// When sums are stored.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Sums {
    /// Store sums if they are small compared with the file. Stores all sums of at least two million
    /// events, or those of the whole picture of at least half a million
    Auto,
    /// Always, whatever their size
    Always,
    /// Never
    Never,
}

impl Pack {
    pub(crate) fn run(self) -> io::Result<Outcome> {
        let name = self.recording.display().to_string();
        let in_file = |error: RecordingError| match error {
            RecordingError::Io { source, .. } if crate::output::is_broken_pipe(&source) => source,
            error => {
                let message = format!("{name}: {error}");
                io::Error::other(with_kind(&message, &self.recording, &[FileKind::Recording]))
            }
        };
        let recording = if self.recording == Path::new(DASH) {
            Recording::from_reader(io::stdin().lock())
        } else {
            Recording::open(&self.recording)
        }
        .map_err(in_file)?;
        let note = |findings: &[Finding]| {
            findings.iter().for_each(|finding| complain(&format_args!("{name}: note: {finding}")));
        };
        note(recording.findings());

        let of_opening = outcome_of(recording.findings());
        if self.check {
            return check(recording, &self.recording);
        }
        let is_stdin = self.recording == Path::new(DASH);
        if self.in_place && is_stdin {
            return Err(refusal("--in-place changes a file; standard input is none, name the file"));
        }
        if self.in_place {
            return add_sums(recording, &self.recording);
        }
        let beside = || if is_stdin { DASH.into() } else { self.recording.with_extension("cairn") };
        let output = self.output.unwrap_or_else(beside);
        let mut file = Output::begin(&output, self.force)?;
        file.refuse_terminal("a packed recording")?;
        if output == Path::new(DASH) {
            let totals = pack(&recording, &mut file).map_err(in_file)?;
            file.finish()?;
            note(&totals.findings);
            return Ok(either(of_opening, outcome_of(&totals.findings)));
        }
        let progress = Progress::begin("packing");
        let totals = pack(&recording, &mut file).map_err(in_file)?;
        let mut bytes = None;
        let present = file.present_path();
        if let Some(packed) = file.new_file()? {
            progress.now("adding up");
            if let Some(path) = present.filter(|_| self.sums != Sums::Never) {
                write_summary(&path, self.sums == Sums::Always).map_err(in_file)?;
            }
            bytes = Some(packed.metadata()?.len());
        }
        drop(progress);
        note(&totals.findings);
        file.finish()?;
        bytes.map_or(Ok(()), |bytes| print_size(&totals, &output, bytes))?;
        Ok(either(of_opening, outcome_of(&totals.findings)))
    }
}

fn outcome_of(findings: &[Finding]) -> Outcome {
    if findings.iter().any(Finding::is_damage) { Outcome::Incomplete } else { Outcome::Done }
}

fn either(one: Outcome, other: Outcome) -> Outcome {
    if one == Outcome::Done { other } else { one }
}

/// Reads a whole recording, with the events that sums stand for, and checks the sums.
fn check(recording: Recording, path: &Path) -> io::Result<Outcome> {
    /// Ignores all events.
    struct IgnoredEvents;
    impl Events for IgnoredEvents {}

    let named = |error: RecordingError| io::Error::other(format!("{}: {error}", path.display()));
    let progress = Progress::begin("reading all of it");
    let mut findings = recording.check_events(u64::MAX).map_err(named)?;
    for finding in recording.read(&Wanted::ALL, &mut IgnoredEvents).map_err(named)?.findings {
        if !findings.contains(&finding) {
            findings.push(finding);
        }
    }
    let mut outcome = either(outcome_of(recording.findings()), outcome_of(&findings));
    let heap = HeapRecording::new(recording);
    let of_summary = heap.check_summary().map_err(named)?;
    if !of_summary.is_empty() {
        outcome = Outcome::Incomplete;
    }
    drop(progress);
    for finding in findings.iter().chain(&of_summary) {
        complain(&format_args!("{}: {finding}", path.display()));
    }
    if outcome == Outcome::Done {
        let name = path.display().to_string();
        writeln!(anstream::stderr(), "{}: nothing is damaged", crate::output::printable(&name))?;
    }
    Ok(outcome)
}

/// Adds a summary to a recording that was just packed. It is complete without one, so errors of
/// writing are ignored.
fn write_summary(path: &Path, always: bool) -> Result<(), RecordingError> {
    let heap = HeapRecording::new(Recording::open(path)?);
    let size = if always { SummarySize::Whole { most_bytes: u64::MAX } } else { SummarySize::Small };
    heap.write_summary(path, size).map(drop)
}

fn add_sums(recording: Recording, path: &Path) -> io::Result<Outcome> {
    let named = |error: RecordingError| io::Error::other(format!("{}: {error}", path.display()));
    if recording.totals().is_none() {
        let why = "sums are added to a packed recording that was closed; pack this one to another file";
        return Err(io::Error::other(format!("{}: {why}", path.display())));
    }
    let heap = HeapRecording::new(recording);
    let report = |what: &str| {
        let name = path.display().to_string();
        writeln!(anstream::stderr(), "{}: {what}", crate::output::printable(&name))
    };
    if heap.has_summary().map_err(named)? {
        report("the sums are there already")?;
        return Ok(Outcome::Done);
    }
    let progress = Progress::begin("adding up");
    let size = SummarySize::Whole { most_bytes: u64::MAX };
    let written = heap.write_summary(path, size).map_err(named)?;
    drop(progress);
    for finding in &written.read.findings {
        complain(&format_args!("{}: {finding}", path.display()));
    }
    let added = written.added.map_err(|error| io::Error::other(error.to_string()))?;
    if added == 0 {
        let why = "no sums are added to what is damaged or was not closed; pack it to another file";
        return Err(io::Error::other(format!("{}: {why}", path.display())));
    }
    report(&format!("{added} bytes of sums added"))?;
    Ok(Outcome::Done)
}

fn print_size(totals: &Totals, output: &Path, bytes: u64) -> io::Result<()> {
    let Totals { allocations, marks, changes, .. } = totals;
    writeln!(
        anstream::stderr(),
        "{}: {bytes} bytes; {allocations} allocations, {marks} marks, {changes} other events",
        crate::output::printable(&output.display().to_string()),
    )
}
