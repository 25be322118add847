//! Result of one pass over the events of a recording, or its summary in their place.

use super::aggregate::HeapProfile;
use super::resident::{Resident, UsageSample};
use cairn_recording::Finding;

/// Marks that a [`HeapRead`] holds.
pub const MOST_MARKS: usize = 2000;
/// Bytes of the text of one.
pub(super) const MOST_MARK_BYTES: usize = 8192;

/// Result of one pass over the events of a recording.
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
    /// Resources that the process used over time, where they were sampled.
    pub usage: Vec<UsageSample>,
    /// Marks of the program, the first [`MOST_MARKS`] of them.
    pub marks: Vec<HeapMark>,
    /// Marks beyond these.
    pub more_marks: u64,
    /// Problems of the events, or of a summary of them;
    /// [`HeapRecording::findings`](super::HeapRecording::findings) has the rest.
    pub findings: Vec<Finding>,
}

impl HeapRead {
    /// Returns cairn's own resident memory at the program's peak.
    ///
    /// `None` when it is not known; then the program's figure includes it.
    #[must_use]
    pub fn own_resident_bytes(&self) -> Option<u64> {
        self.resident.as_ref()?.sample.own_bytes
    }

    /// Wraps the data read from a file of another tool.
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

/// A mark of the program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HeapMark {
    /// When, in nanoseconds from the start of the recording.
    pub nanos: u64,
    /// The thread's index, in the order of a profile's [`threads`](HeapProfile::threads);
    /// `u32::MAX` when it is not known.
    pub thread: u32,
    /// The text, as near as can be where it is none; the beginning of a very long one.
    pub text: String,
}
