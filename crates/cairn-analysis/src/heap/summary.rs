//! Summaries: the answer of one pass over all events, stored behind them, so that the next question
//! need not read them.
//!
//! | detail | contents | stored with |
//! |---|---|---|
//! | [`whole`] and [`slices`] | a whole [`HeapRead`], and the [`Slices`] of its time | many events |
//! | [`brief`] | what the first screen of a report shows | fewer events |
//!
//! Bytes of a summary that contradict the recording are no answer, and the events are read instead.

mod brief;
mod columns;
mod slices;
mod whole;

use std::path::Path;

use cairn_format::recording::ChunkKind;

use super::aggregate::HeapProfile;
use super::heap_read::HeapRead;
use super::sampling::Sampling;
use super::slices::Slices;
use cairn_recording::{Detail, Finding, Recording, RecordingError, StoredSummary};

pub(super) use brief::abridge;

/// Facts from the tables of a recording that its sums have to match.
#[derive(Clone, Copy, Debug)]
struct SummaryTables {
    stacks: usize,
    threads: usize,
    sampling: Sampling,
}

/// How much of a summary is to be [written](super::HeapRecording::write_summary).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SummarySize {
    /// As much as is small beside the file or the events.
    ///
    /// From two million events on it is all of it, in a sixteenth of the file and one byte for
    /// each 128 events above these; from half a million on, the sums of
    /// [`read_brief`](super::HeapRecording::read_brief), in a fourth of the file. Fewer events are
    /// read in a hundredth of a second.
    Small,
    /// All of it; slices become wider until it fits.
    Whole {
        /// By how much the file grows at most.
        most_bytes: u64,
    },
    /// The sums of [`read_brief`](super::HeapRecording::read_brief): some hundred bytes, and some
    /// for each stack that allocated.
    Brief {
        /// By how much the file grows at most.
        most_bytes: u64,
    },
}

/// Result of [`HeapRecording::write_summary`](super::HeapRecording::write_summary).
#[derive(Debug)]
#[non_exhaustive]
pub struct WrittenSummary {
    /// Result of the read.
    pub read: HeapRead,
    /// How many bytes longer the file is now; why it could not be written.
    pub added: Result<u64, RecordingError>,
}

/// The summary of one recording.
pub(super) struct Summary<'a> {
    recording: &'a Recording,
    tables: SummaryTables,
}

impl<'a> Summary<'a> {
    pub(super) fn of(recording: &'a Recording, stacks: usize, sampling: Sampling) -> Self {
        let threads = recording.threads().len();
        Self { recording, tables: SummaryTables { stacks, threads, sampling } }
    }

    /// Reads all sums; `None` when there are none that can be used, which `findings` explain.
    pub(super) fn read(&self, findings: &mut Vec<Finding>) -> Result<Option<HeapRead>, RecordingError> {
        self.read_chunks(ChunkKind::SUMS, Detail::Whole, findings, |bytes| whole::take(bytes, self.tables))
    }

    /// Reads the brief sums, likewise.
    pub(super) fn read_brief(&self, findings: &mut Vec<Finding>) -> Result<Option<HeapRead>, RecordingError> {
        self.read_chunks(ChunkKind::SUMS, Detail::Brief, findings, |bytes| brief::take(bytes, self.tables))
    }

    /// Reads the slices that belong to these sums, likewise.
    pub(super) fn read_slices(
        &self,
        profile: &HeapProfile,
        findings: &mut Vec<Finding>,
    ) -> Result<Option<Slices>, RecordingError> {
        let take = |bytes: &[u8]| slices::take(bytes, self.tables, profile);
        self.read_chunks(ChunkKind::SLICES, Detail::Whole, findings, take)
    }

    fn read_chunks<T>(
        &self,
        kind: ChunkKind,
        detail: Detail,
        findings: &mut Vec<Finding>,
        take: impl FnOnce(&[u8]) -> Option<T>,
    ) -> Result<Option<T>, RecordingError> {
        match self.recording.read_summary(kind, detail)? {
            None => {}
            Some(Err(finding)) => findings.push(finding),
            Some(Ok(StoredSummary { offset, bytes, .. })) => {
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

    /// Writes all sums and as many slices as fit; returns how many bytes longer the file is.
    pub(super) fn write(
        &self,
        path: &Path,
        read: &HeapRead,
        mut slices: Slices,
        most_bytes: u64,
    ) -> Result<u64, RecordingError> {
        /// Fewer are no picture of time.
        const LEAST_SLICES: usize = 16;
        let sums = whole::put(read);
        if whole::take(&sums, self.tables).as_ref() != Some(read) {
            // Numbers so large that they wrap.
            return Ok(0);
        }
        let write = |parts: &[(ChunkKind, &[u8])]| {
            self.recording.write_summary(path, Detail::Whole, parts, most_bytes)
        };
        loop {
            let bytes = slices::put(&slices);
            // Slices that are far too long do not become that much shorter.
            let is_near = slices.entries() <= slices::MAX_ENTRIES && bytes.len() as u64 / 8 <= most_bytes;
            if is_near && slices::take(&bytes, self.tables, &read.profile).as_ref() == Some(&slices) {
                let added = write(&[(ChunkKind::SUMS, &sums), (ChunkKind::SLICES, &bytes)])?;
                if let Some(added) = added {
                    return Ok(added);
                }
            }
            if slices.count <= LEAST_SLICES {
                break;
            }
            slices.halve();
        }
        Ok(write(&[(ChunkKind::SUMS, &sums)])?.unwrap_or(0))
    }

    /// Writes the brief sums; returns how many bytes longer the file is.
    pub(super) fn write_brief(
        &self,
        path: &Path,
        read: &HeapRead,
        most_bytes: u64,
    ) -> Result<u64, RecordingError> {
        let mut read = read.clone();
        abridge(&mut read);
        let sums = brief::put(&read);
        if brief::take(&sums, self.tables).as_ref() != Some(&read) {
            // Numbers so large that they wrap.
            return Ok(0);
        }
        let parts: &[(ChunkKind, &[u8])] = &[(ChunkKind::SUMS, &sums)];
        Ok(self.recording.write_summary(path, Detail::Brief, parts, most_bytes)?.unwrap_or(0))
    }
}
