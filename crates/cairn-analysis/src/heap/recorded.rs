//! From a recording to a profile: the one file here that knows what recordings look like.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

use cairn_format::StatedAddress;
use cairn_format::recording::ChunkKind;
use cairn_symbols::{AddressKind, Lookup, ModuleReport, Place, SourceFrame, SymbolizerOptions};

use super::aggregate::{HeapProfile, Scope};
use super::brief;
use super::fold::{Fold, MOST_NANOS};
use super::kept;
use super::names::Namer;
use super::resident::{Resident, UsageSample};
use super::sampling::Sampling;
use super::slices::{SliceOptions, Slices};
use super::stacks::{Address, Module, NO_FRAMES, Stacks};
use super::unfreed::Unfreed;
use crate::names::{ModuleKey, Names};
use cairn_recording::{
    Detail, EndReason, Finding, Growth, PcKind, Recording, RecordingError, StackId, Wanted,
};

/// A recording, ready for questions about the heap.
///
/// ```no_run
/// use cairn_analysis::heap::{Cost, Folding, Group, HeapRecording, Names, Questions, Scope};
/// use cairn_recording::Recording;
/// use cairn_symbols::SymbolizerOptions;
///
/// let heap = HeapRecording::new(Recording::open("program.4711.cairn")?);
/// let read = heap.read(Scope::default())?;
/// let symbols = heap.symbols(SymbolizerOptions::new());
/// let names = Names::new(heap.stacks(), &symbols, Folding::default());
/// let questions = Questions::new(&read.profile, names);
/// for entry in questions.top(Group::Function, Cost::Peak).iter().take(10) {
///     println!("{} {}", entry.sums.peak_bytes, questions.names().function_of(entry.line).name);
/// }
/// # Ok::<(), cairn_recording::RecordingError>(())
/// ```
pub struct HeapRecording {
    recording: Recording,
    stacks: Stacks,
    sampling: Sampling,
    /// So much of the events is checked when sums answer.
    checked_bytes: u64,
}

impl std::fmt::Debug for HeapRecording {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HeapRecording").field("stacks", &self.stacks.len()).finish_non_exhaustive()
    }
}

/// What one pass over the events of a recording gives.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct HeapRead {
    /// The sums.
    pub profile: HeapProfile,
    /// Frees of blocks that are older than the recording.
    pub unmatched_frees: u64,
    /// Most resident memory of the process, where it was sampled.
    pub most_resident_bytes: Option<u64>,
    /// Page faults of the process, where they were sampled.
    pub page_faults: Option<u64>,
    /// When most memory was resident, and what it was made of, where it was sampled.
    pub resident: Option<Resident>,
    /// What the process used over time, where it was sampled.
    pub usage: Vec<UsageSample>,
    /// What the program marked, the first [`MOST_MARKS`] of it.
    pub marks: Vec<MarkTold>,
    /// Marks beyond these.
    pub more_marks: u64,
    /// What was wrong with the events, or with sums of them that the recording keeps; [`HeapRecording::findings`] tells of the rest.
    pub findings: Vec<Finding>,
}

/// What [`HeapRecording::keep`] did.
#[derive(Debug)]
#[non_exhaustive]
pub struct Kept {
    /// What was read.
    pub read: HeapRead,
    /// How many bytes longer the file is now; why it could not be written.
    pub added: Result<u64, RecordingError>,
}

/// A mark of the program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MarkTold {
    /// When, in nanoseconds from the start of the recording.
    pub nanos: u64,
    /// The thread's index, in the order of a profile's [`threads`](HeapProfile::threads); `u32::MAX` when it is not known.
    pub thread: u32,
    /// The text, as near as can be where it is none; the beginning of a very long one.
    pub text: String,
}

/// Allocations and frees that are read soon enough without all sums, and without any.
const MANY_EVENTS: u64 = 2_000_000;
const SOME_EVENTS: u64 = 500_000;
/// Reading and checking so much takes some hundredths of a second.
const CHECKED_BYTES: u64 = 64 << 20;

/// Marks that a [`HeapRead`] holds.
pub const MOST_MARKS: usize = 2000;
/// Bytes of the text of one.
pub(super) const MOST_MARK_BYTES: usize = 8192;

impl HeapRead {
    /// Cairn's own resident memory when that of the program was most; `None` when it is not known,
    /// and included.
    #[must_use]
    pub fn own_resident_bytes(&self) -> Option<u64> {
        self.resident.as_ref()?.sample.own_bytes
    }

    /// What was read of a file of another tool.
    #[must_use]
    pub fn of_sums(profile: HeapProfile, unmatched_frees: u64, usage: Vec<UsageSample>) -> Self {
        Self {
            profile,
            unmatched_frees,
            most_resident_bytes: usage.iter().map(|sample| sample.resident_bytes).max(),
            page_faults: None,
            resident: None,
            usage,
            marks: Vec::new(),
            more_marks: 0,
            findings: Vec::new(),
        }
    }
}

/// What is known of a recording beside its sums.
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
    /// A part of it is from the program's spool, because `cairn` was killed: of blocks from before
    /// that, frees after it find no block.
    pub is_continued: bool,
    /// Whether the recording ended, or was read, before the program ended.
    pub ended_before_program: bool,
    /// What the blocks are that were not freed.
    pub unfreed: Unfreed,
    /// Why and when the recording ended before the program did, if it did; it is the first of the findings, too.
    pub ended_early: Option<String>,
    /// The threads, in the order of a profile's [`threads`](HeapProfile::threads).
    pub threads: Vec<ThreadName>,
    /// What a reader should know of the file.
    pub findings: Vec<String>,
    /// Those of the findings that belong to the answer, as that something was lost.
    pub notes: Vec<String>,
    /// Those of the findings that tell of damage.
    pub damage: Vec<String>,
}

/// A thread of the program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ThreadName {
    /// Its number in the recording.
    pub number: u32,
    /// What the kernel called it.
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

impl HeapRecording {
    /// Takes in the stack table.
    #[must_use]
    pub fn new(recording: Recording) -> Self {
        let stacks = stacks(&recording);
        let sampling = sampling(&recording);
        Self { recording, stacks, sampling, checked_bytes: CHECKED_BYTES }
    }

    /// Makes answers from [sums](Self::keep) check the checksums of all events; by default at most
    /// 64 MiB of them are checked.
    pub fn check_all_events(&mut self) {
        self.checked_bytes = u64::MAX;
    }

    /// What is wrong with the events behind sums that answer.
    fn damage_behind_sums(&self) -> Result<Vec<Finding>, RecordingError> {
        let found = self.recording.check_events(self.checked_bytes)?;
        Ok(found
            .into_iter()
            .map(|finding| match finding {
                Finding::DamagedChunk { offset, kind, problem } => {
                    Finding::DamagedBehindSums { offset, kind, problem }
                }
                other => other,
            })
            .collect())
    }

    /// The recording.
    #[must_use]
    pub fn recording(&self) -> &Recording {
        &self.recording
    }

    /// Its stacks; equal files that were loaded several times are one module.
    #[must_use]
    pub fn stacks(&self) -> &Stacks {
        &self.stacks
    }

    /// The words of the command line; one that is no text is shown as near as can be.
    #[must_use]
    pub fn command(&self) -> Vec<String> {
        command(&self.recording)
    }

    /// The threads, in the order of a profile's [`threads`](HeapProfile::threads).
    #[must_use]
    pub fn threads(&self) -> Vec<ThreadName> {
        threads(&self.recording)
    }

    /// What is known of it beside its sums.
    #[must_use]
    pub fn about(&self) -> About {
        about(&self.recording, self.findings())
    }

    /// Reads the events and adds them up. Sums of everything need not be added up where the recording [keeps](Self::keep) them.
    ///
    /// # Errors
    ///
    /// When the file cannot be read any more.
    pub fn read(&self, scope: Scope) -> Result<HeapRead, RecordingError> {
        self.read_unless_kept(scope, None).map(|(read, _)| read)
    }

    /// As [`read`](Self::read), for those who ask by stack alone: what the profile holds by thread, size and lifetime may be missing. So sums
    /// that the recording keeps can answer where only some stacks are counted, too.
    ///
    /// # Errors
    ///
    /// When the file cannot be read any more.
    pub fn read_stacks(&self, scope: Scope) -> Result<HeapRead, RecordingError> {
        let whole = Scope { stacks: None, ..scope.clone() };
        // Estimates are rounded when all is added up: sums of a part are no sum of rounded parts.
        if let Some(counted) = &scope.stacks
            && whole == Scope::default()
            && !self.sampling.is_estimate()
            && let Some(mut read) = self.kept(&mut Vec::new())?
        {
            read.profile.keep_stacks(counted);
            read.findings = self.damage_behind_sums()?;
            return Ok(read);
        }
        self.read(scope)
    }

    /// As [`read`](Self::read), for those who show a picture of the whole: of sizes only the allocations are told, of the time a curve of few steps,
    /// the most that was held in each to a 255th of the peak, and lifetimes, samples and marks are left out. So much is [kept](Self::keep) also
    /// of short recordings.
    ///
    /// # Errors
    ///
    /// When the file cannot be read any more.
    pub fn read_brief(&self, scope: Scope) -> Result<HeapRead, RecordingError> {
        let mut findings = Vec::new();
        if scope == Scope::default()
            && let Some(mut read) = self.kept_brief(&mut findings)?
        {
            read.findings = self.damage_behind_sums()?;
            return Ok(read);
        }
        let mut read = self.read(scope)?;
        brief::abridge(&mut read);
        // What cannot be read at all was met twice.
        findings.retain(|finding| !read.findings.contains(finding));
        read.findings.append(&mut findings);
        Ok(read)
    }

    /// The same as [`read`](Self::read), and what happened in each [slice](super::slices) of the time, in one pass.
    ///
    /// # Errors
    ///
    /// When the file cannot be read any more.
    pub fn read_sliced(
        &self,
        scope: Scope,
        most_slices: usize,
    ) -> Result<(HeapRead, Slices), RecordingError> {
        let options = SliceOptions {
            most_slices,
            end_nanos: self.end_nanos().map(|nanos| nanos.min(scope.to_nanos)),
            ..SliceOptions::default()
        };
        let (read, slices) = self.read_unless_kept(scope, Some(&options))?;
        Ok((read, slices.unwrap_or_default()))
    }

    fn read_unless_kept(
        &self,
        scope: Scope,
        slices: Option<&SliceOptions>,
    ) -> Result<(HeapRead, Option<Slices>), RecordingError> {
        let mut findings = Vec::new();
        if scope == Scope::default()
            && let Some(mut read) = self.kept(&mut findings)?
        {
            let Some(options) = slices else {
                read.findings = self.damage_behind_sums()?;
                return Ok((read, None));
            };
            if let Some(mut slices) = self.kept_slices(&read.profile, &mut findings)? {
                while slices.count > options.most_slices.max(1) {
                    slices.halve();
                }
                read.findings = self.damage_behind_sums()?;
                return Ok((read, Some(slices)));
            }
        }
        let (mut read, slices) = self.read_events(scope, slices)?;
        read.findings.append(&mut findings);
        Ok((read, slices))
    }

    fn tables(&self) -> kept::Tables {
        kept::Tables {
            stacks: self.stacks.len(),
            threads: self.recording.threads().len(),
            sampling: self.sampling,
        }
    }

    /// The sums that the recording keeps, if it does, and they are what they should be.
    fn kept(&self, findings: &mut Vec<Finding>) -> Result<Option<HeapRead>, RecordingError> {
        self.kept_stream((ChunkKind::SUMS, Detail::Whole), findings, |bytes| kept::take(bytes, self.tables()))
    }

    /// The brief sums that the recording keeps, likewise.
    fn kept_brief(&self, findings: &mut Vec<Finding>) -> Result<Option<HeapRead>, RecordingError> {
        self.kept_stream((ChunkKind::SUMS, Detail::Brief), findings, |bytes| {
            brief::take(bytes, self.tables())
        })
    }

    fn kept_slices(
        &self,
        profile: &HeapProfile,
        findings: &mut Vec<Finding>,
    ) -> Result<Option<Slices>, RecordingError> {
        let take = |bytes: &[u8]| kept::take_slices(bytes, self.tables(), profile);
        self.kept_stream((ChunkKind::SLICES, Detail::Whole), findings, take)
    }

    fn kept_stream<T>(
        &self,
        (kind, detail): (ChunkKind, Detail),
        findings: &mut Vec<Finding>,
        take: impl FnOnce(&[u8]) -> Option<T>,
    ) -> Result<Option<T>, RecordingError> {
        match self.recording.kept_sums(kind, detail)? {
            None => {}
            Some(Err(finding)) => findings.push(finding),
            Some(Ok(cairn_recording::Kept { offset, bytes })) => {
                let taken = take(&bytes);
                if taken.is_some() {
                    return Ok(taken);
                }
                let problem = "they do not add up";
                findings.push(Finding::UnusableSums { offset, problem });
            }
        }
        Ok(None)
    }

    /// Reads everything, as [`read_sliced`](Self::read_sliced), and keeps the answer in the recording itself, which is in the file at
    /// `path`: whoever opens it again and asks for everything need not read the events. The file grows by no more than
    /// `most_bytes`, for which slices become wider, and by none where that is not enough;
    /// [`room_for_sums`](Self::room_for_sums) is a good choice.
    ///
    /// Only a packed recording that was closed is added to, and only when nothing is wrong with it; what is there already is left alone.
    ///
    /// ```no_run
    /// use cairn_analysis::heap::HeapRecording;
    /// use cairn_recording::Recording;
    ///
    /// let path = std::path::Path::new("program.4711.cairn");
    /// let heap = HeapRecording::new(Recording::open(path)?);
    /// let kept = heap.keep(path, heap.room_for_sums()?)?;
    /// println!("{} allocations", kept.read.profile.totals.allocations);
    /// # Ok::<(), cairn_recording::RecordingError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// When the file cannot be read any more. That it cannot be written is told in the answer: it is as it was then.
    pub fn keep(&self, path: &Path, most_bytes: u64) -> Result<Kept, RecordingError> {
        let mut findings = Vec::new();
        if let Some(read) = self.kept(&mut findings)? {
            return Ok(Kept { read, added: Ok(0) });
        }
        let options = SliceOptions { end_nanos: self.end_nanos(), ..SliceOptions::default() };
        let (read, slices) = self.read_events(Scope::default(), Some(&options))?;
        let is_sound = read.findings.is_empty();
        let added = match slices.filter(|_| is_sound) {
            Some(slices) => self.add_sums(path, &read, slices, most_bytes),
            None => Ok(0),
        };
        Ok(Kept { read, added })
    }

    /// Reads everything, as [`read`](Self::read), and [keeps](Self::keep) what [`read_brief`](Self::read_brief) tells, when the file grows by no more than
    /// `most_bytes`: some hundred bytes, and some for each stack that allocated.
    ///
    /// # Errors
    ///
    /// When the file cannot be read any more.
    pub fn keep_brief(&self, path: &Path, most_bytes: u64) -> Result<Kept, RecordingError> {
        let is_kept = self.kept_brief(&mut Vec::new())?.is_some();
        let read = self.read(Scope::default())?;
        let is_sound = read.findings.is_empty() && !self.sampling.is_estimate();
        let added = if is_sound && !is_kept { self.add_brief(path, &read, most_bytes) } else { Ok(0) };
        Ok(Kept { read, added })
    }

    /// Reads everything and keeps as much of it as is small beside the file or the events: all sums of
    /// [many events](Self::has_many_events) where there is [room](Self::room_for_sums), else the [brief](Self::keep_brief) ones where they
    /// are no more than a fourth of the file. Fewer than half a million events are read in a hundredth of a second, and nothing is
    /// kept of them.
    ///
    /// # Errors
    ///
    /// When the file cannot be read any more.
    pub fn keep_what_is_small(&self, path: &Path) -> Result<Kept, RecordingError> {
        let room_for_brief = if self.events() >= SOME_EVENTS { self.recording.length()? / 4 } else { 0 };
        if !self.has_many_events() {
            return self.keep_brief(path, room_for_brief);
        }
        let mut kept = self.keep(path, self.room_for_sums()?)?;
        let is_sound = kept.read.findings.is_empty() && !self.sampling.is_estimate();
        if is_sound && matches!(kept.added, Ok(0)) && !self.keeps_sums()? {
            kept.added = self.add_brief(path, &kept.read, room_for_brief);
        }
        Ok(kept)
    }

    fn add_brief(&self, path: &Path, read: &HeapRead, most_bytes: u64) -> Result<u64, RecordingError> {
        let mut read = read.clone();
        brief::abridge(&mut read);
        let sums = brief::put(&read);
        if brief::take(&sums, self.tables()).as_ref() != Some(&read) {
            // Numbers so large that they wrap.
            return Ok(0);
        }
        let added = self.recording.keep_sums(path, Detail::Brief, &[(ChunkKind::SUMS, &sums)], most_bytes)?;
        Ok(added.unwrap_or(0))
    }

    /// Whether it keeps sums that can be used.
    ///
    /// # Errors
    ///
    /// When the file cannot be read any more.
    pub fn keeps_sums(&self) -> Result<bool, RecordingError> {
        self.kept(&mut Vec::new()).map(|read| read.is_some())
    }

    /// What is wrong with the sums that it keeps, if it keeps any.
    ///
    /// # Errors
    ///
    /// When the file cannot be read any more.
    pub fn check_sums(&self) -> Result<Vec<Finding>, RecordingError> {
        let mut findings = Vec::new();
        if let Some(read) = self.kept(&mut findings)? {
            self.kept_slices(&read.profile, &mut findings)?;
        } else {
            self.kept_brief(&mut findings)?;
        }
        findings.dedup();
        Ok(findings)
    }

    /// Whether reading all events takes some hundredths of a second or more, so that sums are worth their bytes beside them.
    #[must_use]
    pub fn has_many_events(&self) -> bool {
        self.events() >= MANY_EVENTS
    }

    /// So many bytes of sums are a small part of the file, a sixteenth, or of what reading the events would take: one for each 128
    /// events above those that are read soon. Of a recording of few events that is too little for any.
    ///
    /// # Errors
    ///
    /// When the file cannot be asked for its length.
    pub fn room_for_sums(&self) -> Result<u64, RecordingError> {
        Ok(self.recording.length()? / 16 + self.events().saturating_sub(MANY_EVENTS) / 128)
    }

    /// Allocations and frees, where the recording says how many there are.
    fn events(&self) -> u64 {
        let summary = self.recording.summary();
        summary.map_or(0, |summary| summary.allocations.saturating_add(summary.frees))
    }

    fn add_sums(
        &self,
        path: &Path,
        read: &HeapRead,
        mut slices: Slices,
        most_bytes: u64,
    ) -> Result<u64, RecordingError> {
        /// Fewer are no picture of time.
        const LEAST_SLICES: usize = 16;
        let sums = kept::put(read);
        if kept::take(&sums, self.tables()).as_ref() != Some(read) {
            // Numbers so large that they wrap.
            return Ok(0);
        }
        let add = |streams: &[(ChunkKind, &[u8])]| {
            self.recording.keep_sums(path, Detail::Whole, streams, most_bytes)
        };
        loop {
            let bytes = kept::put_slices(&slices);
            // What is so much longer does not become so much shorter.
            let is_near = slices.entries() <= kept::MOST_ENTRIES && bytes.len() as u64 / 8 <= most_bytes;
            if is_near && kept::take_slices(&bytes, self.tables(), &read.profile).as_ref() == Some(&slices) {
                let added = add(&[(ChunkKind::SUMS, &sums), (ChunkKind::SLICES, &bytes)])?;
                if let Some(added) = added {
                    return Ok(added);
                }
            }
            if slices.count <= LEAST_SLICES {
                break;
            }
            slices.halve();
        }
        Ok(add(&[(ChunkKind::SUMS, &sums)])?.unwrap_or(0))
    }

    fn read_events(
        &self,
        scope: Scope,
        slices: Option<&SliceOptions>,
    ) -> Result<(HeapRead, Option<Slices>), RecordingError> {
        let wanted = Wanted::ALL.between(0, scope.to_nanos.saturating_add(1));
        let mut fold = Fold::new(&self.recording, self.sampling, scope, slices);
        let outcome = self.recording.read(&wanted, &mut fold)?;
        let end_nanos = self.recording.end().map(|(_, nanos)| nanos);
        let threads = self.recording.threads();
        let mut read = fold.read(threads, end_nanos, outcome.unmatched_frees);
        read.findings = outcome.findings;
        Ok((read, fold.into_slices(threads, end_nanos)))
    }

    /// How long the recording lasted, as far as it is known without reading events.
    #[must_use]
    pub fn end_nanos(&self) -> Option<u64> {
        end_nanos(&self.recording)
    }

    /// What a reader should know of the file.
    #[must_use]
    pub fn findings(&self) -> &[Finding] {
        self.recording.findings()
    }

    /// Names by files that are searched for as `options` say.
    #[must_use]
    pub fn symbols(&self, options: SymbolizerOptions) -> ModuleNames {
        ModuleNames::of(&self.stacks, options)
    }
}

fn command(recording: &Recording) -> Vec<String> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let facts = recording.facts();
    let words: Vec<String> =
        facts.iter().filter(|fact| fact.name == "argument").map(|fact| text(&fact.value)).collect();
    if !words.is_empty() {
        return words;
    }
    // Words are kept apart where one of them holds a space.
    if let Some(whole) = recording.fact("command") {
        return text(whole).split(' ').map(str::to_owned).collect();
    }
    recording.fact("executable").map(text).into_iter().collect()
}

fn threads(recording: &Recording) -> Vec<ThreadName> {
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

fn end_nanos(recording: &Recording) -> Option<u64> {
    recording.end().map(|(_, nanos)| nanos).filter(|&nanos| nanos < MOST_NANOS)
}

/// What is known of a recording, with these findings.
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

/// How the allocations of a recording were chosen.
pub(super) fn sampling(recording: &Recording) -> Sampling {
    let sampled =
        recording.fact("sample_bytes").and_then(|text| std::str::from_utf8(text).ok()?.parse().ok());
    match sampled {
        Some(mean_bytes) if mean_bytes > 0 => Sampling::Poisson { mean_bytes },
        _ => Sampling::All,
    }
}

/// Its stacks; equal files that were loaded several times are one module.
pub(super) fn stacks(recording: &Recording) -> Stacks {
    let mut stacks = Stacks::new();
    let mut modules: HashMap<(String, Vec<u8>), u32> = HashMap::new();
    let mut module_indices: HashMap<cairn_recording::ModuleId, u32> = HashMap::new();
    for module in recording.modules() {
        let path = module.path_text().into_owned();
        let key = (path.clone(), module.build_id.clone());
        let index = *modules
            .entry(key)
            .or_insert_with(|| stacks.add_module(Module { path, build_id: module.build_id.clone() }));
        module_indices.insert(module.id, index);
    }
    let tree = recording.stacks();
    stacks.reserve(tree.len(), tree.pcs_len());
    // The numbers of addresses and stacks stay as they are; tables of a damaged file have gaps.
    let mut used: Vec<Option<cairn_recording::PcId>> = vec![None; tree.pcs_len()];
    for pc in tree.ids().filter_map(|id| tree.pc(id)) {
        if let Some(place) = used.get_mut(pc.index()) {
            *place = Some(pc);
        }
    }
    let unknown = Address { kind: PcKind::ReturnAddress, absolute: 0, stated: 0, module: None };
    for pc in used {
        let frame = pc.and_then(|pc| recording.frame(pc));
        stacks.add_address(frame.map_or(unknown, |frame| {
            let (module, bias) = match frame.place {
                cairn_recording::Place::Module(module, offset) => {
                    let bias = recording.module(module).map_or(0, |module| module.bias);
                    (module_indices.get(&module).map(|&index| (index, offset.value())), bias)
                }
                cairn_recording::Place::Absolute(_) => (None, 0),
            };
            let absolute = frame.address.value();
            Address { kind: frame.kind, absolute, stated: absolute.wrapping_sub(bias), module }
        }));
    }
    for number in 1..tree.len() as u32 {
        let id = StackId::from_number(number);
        let parent = tree.parent(id).map_or(NO_FRAMES, StackId::number);
        let added = tree.pc(id).and_then(|pc| stacks.add_stack(parent, pc.number()));
        if added.is_none() {
            stacks.skip();
        }
    }
    stacks
}

/// Names from symbol files.
#[derive(Debug)]
pub struct ModuleNames {
    names: RefCell<Names>,
    keys: Vec<ModuleKey>,
    /// By module: true where no name is asked for.
    is_left_out: Vec<bool>,
}

impl ModuleNames {
    /// Names for stacks that are of no recording, by files that are searched for as `options` say.
    #[must_use]
    pub fn of(stacks: &Stacks, options: SymbolizerOptions) -> Self {
        let key = |module: &Module| ModuleKey {
            path: PathBuf::from(&module.path),
            build_id: module.build_id.clone(),
            size_bytes: None,
        };
        let keys = stacks.modules().iter().map(key).collect();
        Self { names: RefCell::new(Names::new(options)), keys, is_left_out: Vec::new() }
    }

    /// Asks for no names of these modules, by their index: nothing says which build of them ran.
    #[must_use]
    pub fn without(mut self, modules: impl IntoIterator<Item = usize>) -> Self {
        self.is_left_out = vec![false; self.keys.len()];
        for module in modules {
            if let Some(is_left_out) = self.is_left_out.get_mut(module) {
                *is_left_out = true;
            }
        }
        self
    }

    /// Every module that was asked for, and what became of the search for its symbols.
    #[must_use]
    pub fn reports(&self) -> Vec<(ModuleKey, ModuleReport)> {
        self.names.borrow().reports().map(|(key, report)| (key.clone(), report)).collect()
    }

    /// The programs here that would be answered faster from an index.
    #[must_use]
    pub fn without_index(&self) -> Vec<PathBuf> {
        self.names.borrow().without_index()
    }

    /// The names, to tell what is missing.
    #[must_use]
    pub fn into_inner(self) -> Names {
        self.names.into_inner()
    }
}

impl Namer for ModuleNames {
    fn name(&self, _stacks: &Stacks, addresses: &[&Address]) -> Vec<Vec<SourceFrame>> {
        let mut names = self.names.borrow_mut();
        let place = |address: &&Address| {
            let kind = match address.kind {
                PcKind::ReturnAddress => AddressKind::ReturnAddress,
                PcKind::ProgramCounter => AddressKind::ProgramCounter,
                _ => return None,
            };
            let (module, _) = address.module?;
            if self.is_left_out.get(module as usize) == Some(&true) {
                return None;
            }
            let key = self.keys.get(module as usize)?;
            Some((key, Lookup { place: Place::Stated(StatedAddress::new(address.stated)), kind }))
        };
        names.prepare(addresses.iter().filter_map(place));
        let frames = |address: &&Address| {
            place(address).map_or_else(Vec::new, |(key, lookup)| names.resolve(key, lookup).frames().to_vec())
        };
        addresses.iter().map(frames).collect()
    }
}
