//! The recordings of a program and of its children, in one directory.
//!
//! A [`Family`] is read from the recordings themselves, so that a directory opens whose `cairn` was
//! killed, or into which files were copied. The rows of an earlier reading save reading a file
//! again: they count for as long as the file has the length and the time of its last change that
//! they state.
//!
//! ```no_run
//! use std::path::Path;
//!
//! use cairn_analysis::family::Family;
//!
//! let family = Family::read(Path::new("make.4711.cairn"), Vec::new())?;
//! for member in family.members() {
//!     println!("{} {} {}", member.process, member.peak_bytes, member.command.join(" "));
//! }
//! # Ok::<(), std::io::Error>(())
//! ```

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use cairn_format::recording::{FILE_HEADER_BYTES, FileHeader};
use cairn_recording::{EndReason, Recording, RecordingError};
use serde::{Deserialize, Serialize};

use crate::heap::{Cost, HeapRecording, Scope, Suppressed};

/// A program that lived less and allocated fewer than [`FEW_BYTES`] is short.
pub const SHORT_NANOS: u64 = 1_000_000_000;
/// A program that allocated fewer and lived less than [`SHORT_NANOS`] is short.
pub const FEW_BYTES: u64 = 1 << 20;

/// Maximum files of a directory that are examined; more are counted.
const MOST_FILES: usize = 100_000;

/// The recordings in a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Family {
    directory: PathBuf,
    members: Vec<Member>,
    unread: Vec<Unread>,
    main: Option<usize>,
}

/// One recording, as its row in the index has it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Member {
    /// Name of the file.
    pub file: String,
    /// Length of the file.
    pub file_bytes: u64,
    /// When the file was last changed, in nanoseconds since 1970.
    pub file_changed_nanos: u64,
    /// The process.
    pub process: u32,
    /// The process that started it; `None` in recordings of older versions.
    pub parent: Option<u32>,
    /// The words of the command line.
    pub command: Vec<String>,
    /// When it began, in nanoseconds since 1970.
    pub started_wall_nanos: u64,
    /// How long it was recorded.
    pub duration_nanos: u64,
    /// Mean of a sampled recording, whose sums are estimates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sample_bytes: Option<u64>,
    /// Number of allocations.
    pub total_allocations: u64,
    /// Bytes of all allocations.
    pub total_bytes: u64,
    /// Bytes at the moment at which it held most.
    pub peak_bytes: u64,
    /// Blocks that were not freed.
    pub leaked_allocations: u64,
    /// Bytes that were not freed.
    pub leaked_bytes: u64,
    /// The kind of the blocks that were not freed: `leaked` or `alive`.
    pub unfreed: String,
    /// True while the program runs.
    #[serde(default)]
    pub is_running: bool,
    /// True when its process became another program by `exec`.
    #[serde(default)]
    pub became_other: bool,
    /// Losses, damage and pauses, as sentences.
    #[serde(default)]
    pub findings: Vec<String>,
}

/// A recording that cannot be read.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Unread {
    /// Name of the file.
    pub file: String,
    /// Why.
    pub reason: String,
}

/// Sums of several recordings.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize)]
pub struct FamilySums {
    /// Number of recordings.
    pub recordings: u64,
    /// Number of allocations.
    pub total_allocations: u64,
    /// Bytes of all allocations.
    pub total_bytes: u64,
    /// Largest peak of one recording.
    pub largest_peak_bytes: u64,
    /// Blocks that were not freed.
    pub leaked_allocations: u64,
    /// Bytes that were not freed.
    pub leaked_bytes: u64,
}

impl FamilySums {
    /// Sums these recordings.
    pub fn of<'a>(members: impl IntoIterator<Item = &'a Member>) -> Self {
        members.into_iter().fold(Self::default(), |sums, member| Self {
            recordings: sums.recordings + 1,
            total_allocations: sums.total_allocations.saturating_add(member.total_allocations),
            total_bytes: sums.total_bytes.saturating_add(member.total_bytes),
            largest_peak_bytes: sums.largest_peak_bytes.max(member.peak_bytes),
            leaked_allocations: sums.leaked_allocations.saturating_add(member.leaked_allocations),
            leaked_bytes: sums.leaked_bytes.saturating_add(member.leaked_bytes),
        })
    }
}

impl Member {
    /// Returns true for a program that matters to nobody.
    ///
    /// It lived less than [`SHORT_NANOS`], allocated fewer bytes than [`FEW_BYTES`], and nothing
    /// of it was lost.
    #[must_use]
    pub fn is_short(&self) -> bool {
        self.duration_nanos < SHORT_NANOS
            && self.total_bytes < FEW_BYTES
            && !self.is_running
            && self.findings.is_empty()
    }

    /// The value of a cost; `None` for the one that is not in a row.
    #[must_use]
    pub const fn value(&self, cost: Cost) -> Option<u64> {
        match cost {
            Cost::Peak => Some(self.peak_bytes),
            Cost::Leaked => Some(self.leaked_bytes),
            Cost::Allocated => Some(self.total_bytes),
            Cost::Count => Some(self.total_allocations),
            Cost::Temporary => None,
        }
    }

    fn read(path: &Path, file: String, listed: &Listed) -> Result<Self, RecordingError> {
        let heap = HeapRecording::new(Recording::open(path)?);
        let about = heap.about();
        let recording = heap.recording();
        let number = |name: &str| std::str::from_utf8(recording.fact(name)?).ok()?.parse::<u64>().ok();
        let sample_bytes = number("sample_bytes");
        let mut findings = about.notes;
        findings.extend(about.ended_early);
        // The numbers of a program that a signal ended, or that called `_exit`, are whole.
        findings.retain(|note| *note != cairn_recording::Finding::NoEnd.to_string());
        // A row says by itself that the program still runs.
        findings.retain(|note| about.growth.is_none_or(|growth| *note != growth.to_string()));
        findings.extend(about.damage);
        let mut member = Self {
            file,
            file_bytes: listed.bytes,
            file_changed_nanos: listed.changed_nanos,
            process: about.process,
            parent: number("parent").and_then(|parent| u32::try_from(parent).ok()),
            command: about.command,
            started_wall_nanos: about.started_wall_nanos,
            duration_nanos: about.lasted_nanos.unwrap_or(0),
            sample_bytes,
            total_allocations: 0,
            total_bytes: 0,
            peak_bytes: 0,
            leaked_allocations: 0,
            leaked_bytes: 0,
            unfreed: about.unfreed.word().to_owned(),
            is_running: about.growth.is_some(),
            became_other: about.end == Some(EndReason::Exec),
            findings,
        };
        // The sums of a sample are weighted, which takes its events.
        match recording.totals().filter(|_| sample_bytes.is_none()) {
            Some(totals) => {
                member.duration_nanos = totals.end_nanos;
                member.total_allocations = totals.allocations;
                member.total_bytes = totals.allocated_bytes;
                member.peak_bytes = totals.peak_bytes;
                member.leaked_allocations = totals.live_blocks;
                member.leaked_bytes = totals.live_bytes;
            }
            None => {
                let profile = heap.read(Scope::default())?.profile;
                member.duration_nanos = profile.end_nanos;
                member.total_allocations = profile.totals.allocations;
                member.total_bytes = profile.totals.allocated_bytes;
                member.peak_bytes = profile.totals.peak_bytes;
                member.leaked_allocations = profile.totals.live_blocks;
                member.leaked_bytes = profile.totals.live_bytes;
            }
        }
        let until_nanos = about.growth.and_then(|growth| growth.until_nanos);
        member.duration_nanos = member.duration_nanos.max(until_nanos.unwrap_or(0));
        Ok(member)
    }
}

/// A file of the directory.
struct Listed {
    bytes: u64,
    changed_nanos: u64,
}

impl Family {
    /// Reads the recordings in a directory. `known` are the rows of an earlier reading.
    ///
    /// # Errors
    ///
    /// When the directory cannot be read. A recording that cannot be read is listed as
    /// [`Unread`].
    pub fn read(directory: &Path, known: Vec<Member>) -> io::Result<Self> {
        let mut known: HashMap<String, Member> =
            known.into_iter().map(|member| (member.file.clone(), member)).collect();
        let (mut members, mut unread) = (Vec::new(), Vec::new());
        let mut names: Vec<PathBuf> = fs::read_dir(directory)?
            .take(MOST_FILES)
            .filter_map(Result::ok)
            .map(|entry| entry.path())
            .collect();
        names.sort();
        for path in names {
            let Some(header) = header_of(&path) else { continue };
            // A recording that is being drained appears under the name of its spool.
            let spool = path.to_str().and_then(|text| text.strip_suffix(".new")).map(Path::new);
            if spool.and_then(header_of).is_some_and(|of_spool| of_spool.process == header.process) {
                continue;
            }
            let (Some(name), Ok(facts)) = (path.file_name(), fs::metadata(&path)) else { continue };
            let file = name.to_string_lossy().into_owned();
            let changed = facts.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            let since = changed.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            let changed_nanos = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
            let listed = Listed { bytes: facts.len(), changed_nanos };
            let is_same = |member: &Member| {
                member.file_bytes == listed.bytes
                    && member.file_changed_nanos == listed.changed_nanos
                    && member.process == header.process
                    && member.started_wall_nanos == header.start_wall_nanos
                    && !member.is_running
            };
            match known.remove(&file).filter(is_same) {
                Some(member) => members.push(member),
                None => match Member::read(&path, file.clone(), &listed) {
                    Ok(member) => members.push(member),
                    Err(error) => unread.push(Unread { file, reason: error.to_string() }),
                },
            }
        }
        let main = main_of(&members);
        note_lost_programs(&mut members);
        Ok(Self { directory: directory.to_owned(), members, unread, main })
    }

    /// Returns the directory.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the recordings, by the names of their files.
    #[must_use]
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// Takes leaks that are known out of the leaks of a recording.
    ///
    /// `index` is that of [`members`](Self::members).
    pub fn hold_back(&mut self, index: usize, held_back: &[Suppressed]) {
        let Some(member) = self.members.get_mut(index) else { return };
        for known in held_back {
            member.leaked_allocations = member.leaked_allocations.saturating_sub(known.blocks);
            member.leaked_bytes = member.leaked_bytes.saturating_sub(known.bytes);
        }
    }

    /// Returns the files that are recordings and cannot be read.
    #[must_use]
    pub fn unread(&self) -> &[Unread] {
        &self.unread
    }

    /// Returns the recording of the program that was started first.
    ///
    /// If its process became other programs, it is that of the last one.
    #[must_use]
    pub fn main(&self) -> Option<&Member> {
        self.members.get(self.main?)
    }

    /// Returns the number of processes.
    #[must_use]
    pub fn processes(&self) -> usize {
        self.members.iter().map(|member| member.process).collect::<BTreeSet<_>>().len()
    }

    /// Returns the time from the first start to the last end, in nanoseconds.
    #[must_use]
    pub fn duration_nanos(&self) -> u64 {
        let first = self.members.iter().map(|member| member.started_wall_nanos).min().unwrap_or(0);
        let end = |member: &Member| member.started_wall_nanos.saturating_add(member.duration_nanos);
        self.members.iter().map(end).max().unwrap_or(0).saturating_sub(first)
    }

    /// Returns the recordings in order of a cost, the highest first.
    ///
    /// `None` for a cost that is not known without reading events.
    #[must_use]
    pub fn ranked(&self, cost: Cost) -> Option<Vec<&Member>> {
        let mut ranked = self
            .members
            .iter()
            .map(|member| Some((member.value(cost)?, member)))
            .collect::<Option<Vec<_>>>()?;
        ranked.sort_by(|(a, one), (b, other)| (b, &one.file).cmp(&(a, &other.file)));
        Some(ranked.into_iter().map(|(_, member)| member).collect())
    }
}

/// The finding about a program that has no recording.
const LOST_PROGRAM: &str = "it then became another program, which is not recorded";

/// Adds a finding to the last recording of each process that became another program after it.
fn note_lost_programs(members: &mut [Member]) {
    let mut last: HashMap<u32, u64> = HashMap::new();
    for member in members.iter() {
        let started = last.entry(member.process).or_default();
        *started = member.started_wall_nanos.max(*started);
    }
    for member in members.iter_mut() {
        // Rows of an index have the finding already, which may be wrong by now.
        member.findings.retain(|finding| finding != LOST_PROGRAM);
        if member.became_other && last.get(&member.process) == Some(&member.started_wall_nanos) {
            member.findings.push(LOST_PROGRAM.to_owned());
        }
    }
}

fn main_of(members: &[Member]) -> Option<usize> {
    let first = members.iter().min_by_key(|member| member.started_wall_nanos)?;
    let of_first = members.iter().enumerate().filter(|(_, member)| member.process == first.process);
    of_first.max_by_key(|(_, member)| member.started_wall_nanos).map(|(index, _)| index)
}

fn header_of(path: &Path) -> Option<FileHeader> {
    // Opening a pipe would wait for a writer.
    fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
    let mut bytes = [0; FILE_HEADER_BYTES];
    File::open(path).ok()?.read_exact(&mut bytes).ok()?;
    FileHeader::read(&bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(file: &str, process: u32, started: u64, peak: u64) -> Member {
        Member {
            file: file.to_owned(),
            file_bytes: 1,
            file_changed_nanos: 1,
            process,
            parent: Some(1),
            command: vec![file.to_owned()],
            started_wall_nanos: started,
            duration_nanos: 5,
            sample_bytes: None,
            total_allocations: 1,
            total_bytes: peak,
            peak_bytes: peak,
            leaked_allocations: 0,
            leaked_bytes: 0,
            unfreed: "leaked".to_owned(),
            is_running: false,
            became_other: false,
            findings: Vec::new(),
        }
    }

    #[test]
    fn main_is_the_last_program_of_the_first_process() {
        let members =
            [member("a", 7, 20, 1), member("b", 5, 10, 1), member("c", 5, 30, 1), member("d", 6, 40, 1)];
        assert_eq!(main_of(&members), Some(2));
        assert_eq!(main_of(&[]), None);
    }

    #[test]
    fn programs_without_a_recording_are_a_finding_of_the_one_before() {
        let became_other =
            |file, process, started| Member { became_other: true, ..member(file, process, started, 1) };
        let mut members =
            [became_other("shell", 5, 10), member("tool", 5, 30, 1), became_other("setpriv", 6, 20)];
        for _ in 0..2 {
            note_lost_programs(&mut members);
            let findings = members.each_ref().map(|member| member.findings.len());
            assert_eq!(findings, [0, 0, 1], "{members:?}");
        }
    }

    #[test]
    fn rows_are_ranked_by_cost_and_then_by_name() {
        let members = vec![member("a", 1, 1, 10), member("b", 2, 2, 30), member("c", 3, 3, 10)];
        let family = Family { directory: PathBuf::new(), members, unread: Vec::new(), main: None };
        let ranked = family.ranked(Cost::Peak).unwrap();
        let names: Vec<_> = ranked.iter().map(|member| member.file.as_str()).collect();
        assert_eq!(names, ["b", "a", "c"]);
        assert_eq!(family.ranked(Cost::Temporary), None);
        assert_eq!(FamilySums::of(family.members()).total_bytes, 50);
    }

    #[test]
    fn short_programs_are_those_below_both_limits_without_a_loss() {
        let short = member("a", 1, 1, 10);
        assert!(short.is_short());
        assert!(!Member { duration_nanos: SHORT_NANOS, ..short.clone() }.is_short());
        assert!(!Member { total_bytes: FEW_BYTES, ..short.clone() }.is_short());
        assert!(!Member { findings: vec!["lost".to_owned()], ..short }.is_short());
    }
}
