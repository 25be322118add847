//! A recording, ready for questions about the heap: the one file here that decides between events
//! and summary.

use std::path::Path;

use cairn_symbols::SymbolizerOptions;

use super::about::{About, ThreadName, about, command, threads};
use super::aggregate::Scope;
use super::heap_read::HeapRead;
use super::module_names::ModuleNames;
use super::recording_fold::RecordingFold;
use super::recording_stacks::{end_nanos, sampling, stacks};
use super::sampling::Sampling;
use super::slices::{SliceOptions, Slices};
use super::stacks::Stacks;
use super::summary::{Summary, SummarySize, WrittenSummary, abridge};
use cairn_recording::{Finding, Recording, RecordingError, Wanted};

/// Minimum events for storing all sums; reading these takes some hundredths of a second.
const MANY_EVENTS: u64 = 2_000_000;
/// Minimum events for storing the brief sums; fewer are read in a hundredth of a second.
const SOME_EVENTS: u64 = 500_000;
/// Bytes of events whose checksums are compared before a summary answers; 64 MiB.
///
/// That takes some hundredths of a second.
const CHECKED_BYTES: u64 = 64 << 20;

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
    /// So much of the events is checked when a summary answers.
    checked_bytes: u64,
}

impl std::fmt::Debug for HeapRecording {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HeapRecording").field("stacks", &self.stacks.len()).finish_non_exhaustive()
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

    /// Makes answers from a [summary](Self::write_summary) check the checksums of all events.
    ///
    /// By default at most 64 MiB of them are checked.
    pub fn check_all_events(&mut self) {
        self.checked_bytes = u64::MAX;
    }

    /// Returns the problems of the events behind a summary that answers.
    fn damage_behind_summary(&self) -> Result<Vec<Finding>, RecordingError> {
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

    /// The threads, in the order of a profile's [`threads`](super::HeapProfile::threads).
    #[must_use]
    pub fn threads(&self) -> Vec<ThreadName> {
        threads(&self.recording)
    }

    /// Returns the facts about it beside its sums.
    #[must_use]
    pub fn about(&self) -> About {
        about(&self.recording, self.findings())
    }

    /// Reads the events and adds them up. They need not be read for everything where the recording
    /// has a [summary](Self::write_summary).
    ///
    /// # Errors
    ///
    /// When the file cannot be read any more.
    pub fn read(&self, scope: Scope) -> Result<HeapRead, RecordingError> {
        self.read_unless_summarized(scope, None).map(|(read, _)| read)
    }

    /// Reads like [`read`](Self::read), for questions by stack alone.
    ///
    /// The profile's sums by thread, size and lifetime may be missing. So a summary can answer
    /// where only some stacks are counted, too.
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
            && let Some(mut read) = self.summary().read(&mut Vec::new())?
        {
            read.profile.keep_stacks(counted);
            read.findings = self.damage_behind_summary()?;
            return Ok(read);
        }
        self.read(scope)
    }

    /// Reads like [`read`](Self::read), for a picture of the whole.
    ///
    /// It has the allocations by size, and a curve over time of few steps with the maximum in each
    /// to a 255th of the peak; lifetimes, samples and marks are left out. The
    /// [summary](Self::write_summary) of short recordings has this data, too.
    ///
    /// # Errors
    ///
    /// When the file cannot be read any more.
    pub fn read_brief(&self, scope: Scope) -> Result<HeapRead, RecordingError> {
        let mut findings = Vec::new();
        if scope == Scope::default()
            && let Some(mut read) = self.summary().read_brief(&mut findings)?
        {
            read.findings = self.damage_behind_summary()?;
            return Ok(read);
        }
        let mut read = self.read(scope)?;
        abridge(&mut read);
        // Both passes report data that is unreadable.
        findings.retain(|finding| !read.findings.contains(finding));
        read.findings.append(&mut findings);
        Ok(read)
    }

    /// The same as [`read`](Self::read), and what happened in each [slice](super::slices) of the
    /// time, in one pass.
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
        let (read, slices) = self.read_unless_summarized(scope, Some(&options))?;
        Ok((read, slices.unwrap_or_default()))
    }

    fn read_unless_summarized(
        &self,
        scope: Scope,
        slices: Option<&SliceOptions>,
    ) -> Result<(HeapRead, Option<Slices>), RecordingError> {
        let mut findings = Vec::new();
        if scope == Scope::default()
            && let Some(mut read) = self.summary().read(&mut findings)?
        {
            let Some(options) = slices else {
                read.findings = self.damage_behind_summary()?;
                return Ok((read, None));
            };
            if let Some(mut slices) = self.summary().read_slices(&read.profile, &mut findings)? {
                while slices.count > options.most_slices.max(1) {
                    slices.halve();
                }
                read.findings = self.damage_behind_summary()?;
                return Ok((read, Some(slices)));
            }
        }
        let (mut read, slices) = self.read_events(scope, slices)?;
        read.findings.append(&mut findings);
        Ok((read, slices))
    }

    fn summary(&self) -> Summary<'_> {
        Summary::of(&self.recording, self.stacks.len(), self.sampling)
    }

    /// Reads everything, and writes a summary into the recording's own file at `path`.
    ///
    /// When that file is opened again, its events need not be read for questions about everything.
    ///
    /// Only a packed recording that was closed is added to, and only when nothing is wrong with it;
    /// a summary that is there already is left alone, and so is a file that would grow by more than
    /// `size` allows.
    ///
    /// ```no_run
    /// use cairn_analysis::heap::{HeapRecording, SummarySize};
    /// use cairn_recording::Recording;
    ///
    /// let path = std::path::Path::new("program.4711.cairn");
    /// let heap = HeapRecording::new(Recording::open(path)?);
    /// let written = heap.write_summary(path, SummarySize::Small)?;
    /// println!("{} allocations", written.read.profile.totals.allocations);
    /// # Ok::<(), cairn_recording::RecordingError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// When the file cannot be read any more. That it cannot be written is part of the answer: it
    /// is as it was then.
    pub fn write_summary(&self, path: &Path, size: SummarySize) -> Result<WrittenSummary, RecordingError> {
        match size {
            SummarySize::Whole { most_bytes } => self.write_whole(path, most_bytes),
            SummarySize::Brief { most_bytes } => self.write_brief(path, most_bytes),
            SummarySize::Small => self.write_small(path),
        }
    }

    fn write_whole(&self, path: &Path, most_bytes: u64) -> Result<WrittenSummary, RecordingError> {
        if let Some(read) = self.summary().read(&mut Vec::new())? {
            return Ok(WrittenSummary { read, added: Ok(0) });
        }
        let options = SliceOptions { end_nanos: self.end_nanos(), ..SliceOptions::default() };
        let (read, slices) = self.read_events(Scope::default(), Some(&options))?;
        let is_sound = read.findings.is_empty();
        let added = match slices.filter(|_| is_sound) {
            Some(slices) => self.summary().write(path, &read, slices, most_bytes),
            None => Ok(0),
        };
        Ok(WrittenSummary { read, added })
    }

    fn write_brief(&self, path: &Path, most_bytes: u64) -> Result<WrittenSummary, RecordingError> {
        let is_there = self.summary().read_brief(&mut Vec::new())?.is_some();
        let read = self.read(Scope::default())?;
        let added = if self.is_exact(&read) && !is_there {
            self.summary().write_brief(path, &read, most_bytes)
        } else {
            Ok(0)
        };
        Ok(WrittenSummary { read, added })
    }

    fn write_small(&self, path: &Path) -> Result<WrittenSummary, RecordingError> {
        let (events, length) = (self.events(), self.recording.length()?);
        let room_for_brief = if events >= SOME_EVENTS { length / 4 } else { 0 };
        if events < MANY_EVENTS {
            return self.write_brief(path, room_for_brief);
        }
        let room_for_whole = length / 16 + (events - MANY_EVENTS) / 128;
        let mut written = self.write_whole(path, room_for_whole)?;
        if self.is_exact(&written.read) && matches!(written.added, Ok(0)) && !self.has_summary()? {
            written.added = self.summary().write_brief(path, &written.read, room_for_brief);
        }
        Ok(written)
    }

    /// Whether brief sums of what was read are worth storing: estimates are of few events.
    fn is_exact(&self, read: &HeapRead) -> bool {
        read.findings.is_empty() && !self.sampling.is_estimate()
    }

    /// Whether it has a whole summary that can be used.
    ///
    /// # Errors
    ///
    /// When the file cannot be read any more.
    pub fn has_summary(&self) -> Result<bool, RecordingError> {
        self.summary().read(&mut Vec::new()).map(|read| read.is_some())
    }

    /// Returns the problems of its summary, if it has one.
    ///
    /// # Errors
    ///
    /// When the file cannot be read any more.
    pub fn check_summary(&self) -> Result<Vec<Finding>, RecordingError> {
        let mut findings = Vec::new();
        let summary = self.summary();
        if let Some(read) = summary.read(&mut findings)? {
            summary.read_slices(&read.profile, &mut findings)?;
        } else {
            summary.read_brief(&mut findings)?;
        }
        findings.dedup();
        Ok(findings)
    }

    /// Allocations and frees, where the recording says how many there are.
    fn events(&self) -> u64 {
        let totals = self.recording.totals();
        totals.map_or(0, |totals| totals.allocations.saturating_add(totals.frees))
    }

    fn read_events(
        &self,
        scope: Scope,
        slices: Option<&SliceOptions>,
    ) -> Result<(HeapRead, Option<Slices>), RecordingError> {
        let wanted = Wanted::ALL.between(0, scope.to_nanos.saturating_add(1));
        let mut fold = RecordingFold::new(&self.recording, self.sampling, scope, slices);
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

    /// Returns the findings about the file.
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
