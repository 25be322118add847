//! Explains a recording without allocations. The program's file is on the machine that recorded it.

use cairn_analysis::heap::{HeapRecording, Sampling};

/// Returns the message for a recording without allocations.
pub(crate) fn why_nothing_was_seen(_heap: &HeapRecording, sampling: Sampling) -> String {
    match sampling {
        Sampling::Poisson { .. } => "no allocation was picked for the sample".to_owned(),
        _ => "no allocation was seen".to_owned(),
    }
}
