//! Facts about a recording beside its events: command, threads, end, findings.

use super::recording_stacks::end_nanos;
use super::unfreed::Unfreed;
use cairn_recording::{EndReason, Finding, Growth, PcKind, Recording};

/// Facts about a recording beside its sums.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct About {
    /// The words of the command line.
    pub command: Vec<String>,
    /// The process; 0 when that is not known.
    pub process: u32,
    /// When it began, in nanoseconds since 1970; 0 when that is not known.
    pub started_wall_nanos: u64,
    /// How long it was recorded, as far as that is known without reading events.
    pub lasted_nanos: Option<u64>,
    /// How it ended, where the recording says so.
    pub end: Option<EndReason>,
    /// Up to when it was read, where the program still writes it.
    pub growth: Option<Growth>,
    /// A part of it is from the program's spool, because `cairn` was killed.
    ///
    /// Frees after that point find no block if the block is from before it.
    pub is_continued: bool,
    /// Whether the recording ended, or was read, before the program ended.
    pub ended_before_program: bool,
    /// The kind of the blocks that were not freed.
    pub unfreed: Unfreed,
    /// Why and when the recording ended before the program did, if it did.
    ///
    /// It is the first of the findings, too.
    pub ended_early: Option<String>,
    /// Most resident memory of the process at any time, by the kernel's count, cairn's own
    /// included.
    ///
    /// Known of recordings of programs that ended through `exit`.
    pub peak_resident_bytes: Option<u64>,
    /// The threads, in the order of a profile's [`threads`](super::HeapProfile::threads).
    pub threads: Vec<ThreadName>,
    /// Findings about the file that a reader should know.
    pub findings: Vec<String>,
    /// Those of the findings that belong to the answer, as that something was lost.
    pub notes: Vec<String>,
    /// The findings of damage.
    pub damage: Vec<String>,
}

/// A thread of the program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ThreadName {
    /// Its number in the recording.
    pub number: u32,
    /// Thread identifier of the kernel.
    pub kernel_thread: u32,
    /// Its last name; empty when it has none.
    pub name: String,
    /// The names that it had before.
    pub earlier_names: Vec<String>,
}

impl ThreadName {
    /// Whether `wanted` is one of its names, or the kernel's number.
    #[must_use]
    pub fn is_called(&self, wanted: &str) -> bool {
        self.name == wanted
            || self.earlier_names.iter().any(|name| name == wanted)
            || self.kernel_thread.to_string() == wanted
    }
}

pub(super) fn command(recording: &Recording) -> Vec<String> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let facts = recording.facts();
    let words: Vec<String> =
        facts.iter().filter(|fact| fact.name == "argument").map(|fact| text(&fact.value)).collect();
    if !words.is_empty() {
        return words;
    }
    // Words are separate where one of them holds a space.
    if let Some(whole) = recording.fact("command") {
        return text(whole).split(' ').map(str::to_owned).collect();
    }
    recording.fact("executable").map(text).into_iter().collect()
}

pub(super) fn threads(recording: &Recording) -> Vec<ThreadName> {
    let name = |thread: &cairn_recording::Thread| ThreadName {
        number: thread.id.number(),
        kernel_thread: thread.kernel_thread,
        name: String::from_utf8_lossy(&thread.name).into_owned(),
        earlier_names: texts(&thread.earlier_names),
    };
    recording.threads().iter().map(name).collect()
}

fn texts(names: &[Vec<u8>]) -> Vec<String> {
    names.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect()
}

/// Advises a flag where compiled Java methods end stacks. They have no frame pointers by default.
fn cut_java_stacks(recording: &Recording) -> Option<String> {
    const LIBRARY: &[u8] = b"/libjvm.so";
    let ends = recording.stacks().count_of_kind(PcKind::NoUnwindInfo);
    let is_java = recording.modules().iter().any(|module| module.path.ends_with(LIBRARY));
    (ends > 0 && is_java).then(|| {
        format!(
            "{ends} return addresses end stacks, because code that Java compiles has no frame pointers: run java with -XX:+PreserveFramePointer"
        )
    })
}

/// Returns the facts about a recording, with these findings.
pub(super) fn about(recording: &Recording, findings: &[Finding]) -> About {
    let header = recording.header();
    let is_note = |finding: &&Finding| {
        matches!(
            finding,
            Finding::NoEnd
                | Finding::Growing(_)
                | Finding::UnknownClock
                | Finding::Lost { .. }
                | Finding::ClockJump { .. }
        )
    };
    let early = recording.ended_early();
    let is_listed = |finding: &&Finding| !matches!(finding, Finding::EndedEarly(_));
    let early_text = early.map(|early| early.to_string());
    let mut about = About {
        command: command(recording),
        process: header.process,
        started_wall_nanos: header.start_wall_nanos,
        lasted_nanos: end_nanos(recording),
        end: recording.end().map(|(reason, _)| reason),
        growth: recording.growth(),
        is_continued: findings.iter().any(|finding| matches!(finding, Finding::Continued { .. })),
        ended_before_program: recording.ended_before_program(),
        unfreed: Unfreed::of(recording),
        peak_resident_bytes: recording.peak_resident_bytes(),
        threads: threads(recording),
        findings: early_text
            .iter()
            .cloned()
            .chain(findings.iter().filter(is_listed).map(ToString::to_string))
            .collect(),
        ended_early: early_text,
        notes: findings.iter().filter(is_note).map(ToString::to_string).collect(),
        damage: findings.iter().filter(|finding| finding.is_damage()).map(ToString::to_string).collect(),
    };
    let without_tables = recording.stacks().count_of_kind(PcKind::ReturnWithoutTables);
    if without_tables > 0 {
        let note = format!(
            "{without_tables} return addresses are in code without unwind tables, as JIT compilers make it: their callers were found by frame pointers, or by data of the runtime"
        );
        about.notes.push(note.clone());
        about.findings.push(note);
    }
    if let Some(note) = cut_java_stacks(recording) {
        about.notes.push(note.clone());
        about.findings.push(note);
    }
    for (from, to) in recording.pauses() {
        let (from, to) = (from as f64 / 1e9, to as f64 / 1e9);
        let note = format!(
            "the recording was stopped from {from:.3} s to {to:.3} s: blocks that were freed in this time seem to live"
        );
        about.notes.push(note.clone());
        about.findings.push(note);
    }
    about
}
