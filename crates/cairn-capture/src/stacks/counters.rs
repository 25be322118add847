//! Counts how captures are answered, for benchmarks.
//!
//! Only builds with the feature `counters` count. In all others, [`add`] is nothing.

#[cfg(feature = "counters")]
use core::sync::atomic::{AtomicU64, Ordering};

/// A quantity that is counted over all captures.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Counter {
    /// Captures that a record answered at once.
    HeldAtOnce,
    /// Captures that a record answered after it was bound to another shadow.
    HeldAfterBinding,
    /// Captures that followed the stack of the capture before.
    Followed,
    /// Captures that could not follow it, and were answered in another way.
    NotFollowed,
    /// Captures that stepped until a shadow was met, and learned the stack.
    Walked,
    /// Captures that learned nothing: on other stacks, or with a step by code.
    SteppedOnly,
    /// Frames stepped over by walks.
    WalkedSteps,
    /// Frames stepped over by captures that followed.
    FollowedSteps,
    /// Walks, by the number of frames stepped over: up to 2, 4, 8, 16, and more.
    WalksOf2,
    WalksOf4,
    WalksOf8,
    WalksOf16,
    WalksOfMore,
    /// Comparisons with a shadow's frames to find the one that is met.
    MeetComparisons,
    /// Walks that found another stack than the record of the place expected.
    OtherThanExpected,
    /// Records written.
    Records,
    /// Records written over one of another place.
    RecordsReplaced,
    /// Shadows made.
    Shadows,
    /// Frames written to shadows.
    ShadowFrames,
    /// Frames copied from one shadow to another.
    CopiedFrames,
    /// Addresses that the thread's cache did not contain.
    UncachedAddresses,
    /// Addresses that no thread had seen.
    NewAddresses,
    /// Children found in the next word of the tree.
    NextWords,
    /// Look-ups in the index of segments.
    IndexLookups,
    /// Tables that look-ups in all indices searched.
    IndexTables,
    /// Buckets (cache lines) that look-ups in all indices read.
    IndexBuckets,
    /// New segments of the tree.
    NewSegments,
}

/// The counters with their names.
#[cfg(feature = "counters")]
const NAMES: &[(Counter, &str)] = &[
    (Counter::HeldAtOnce, "held_at_once"),
    (Counter::HeldAfterBinding, "held_after_binding"),
    (Counter::Followed, "followed"),
    (Counter::NotFollowed, "not_followed"),
    (Counter::Walked, "walked"),
    (Counter::SteppedOnly, "stepped_only"),
    (Counter::WalkedSteps, "walked_steps"),
    (Counter::FollowedSteps, "followed_steps"),
    (Counter::WalksOf2, "walks_of_2"),
    (Counter::WalksOf4, "walks_of_4"),
    (Counter::WalksOf8, "walks_of_8"),
    (Counter::WalksOf16, "walks_of_16"),
    (Counter::WalksOfMore, "walks_of_more"),
    (Counter::MeetComparisons, "meet_comparisons"),
    (Counter::OtherThanExpected, "other_than_expected"),
    (Counter::Records, "records"),
    (Counter::RecordsReplaced, "records_replaced"),
    (Counter::Shadows, "shadows"),
    (Counter::ShadowFrames, "shadow_frames"),
    (Counter::CopiedFrames, "copied_frames"),
    (Counter::UncachedAddresses, "uncached_addresses"),
    (Counter::NewAddresses, "new_addresses"),
    (Counter::NextWords, "next_words"),
    (Counter::IndexLookups, "index_lookups"),
    (Counter::IndexTables, "index_tables"),
    (Counter::IndexBuckets, "index_buckets"),
    (Counter::NewSegments, "new_segments"),
];

#[cfg(feature = "counters")]
static COUNTS: [AtomicU64; NAMES.len()] = [const { AtomicU64::new(0) }; NAMES.len()];

/// Adds to a counter, in a build that counts.
#[inline(always)]
pub(crate) fn add(counter: Counter, amount: u64) {
    #[cfg(feature = "counters")]
    COUNTS[counter as usize].fetch_add(amount, Ordering::Relaxed);
    #[cfg(not(feature = "counters"))]
    let _ = (counter, amount);
}

/// Adds a walk to the counter of its length.
#[inline(always)]
pub(crate) fn add_walk(steps: usize) {
    let by_length = match steps {
        0..=2 => Counter::WalksOf2,
        3..=4 => Counter::WalksOf4,
        5..=8 => Counter::WalksOf8,
        9..=16 => Counter::WalksOf16,
        _ => Counter::WalksOfMore,
    };
    add(by_length, 1);
    add(Counter::Walked, 1);
    add(Counter::WalkedSteps, steps as u64);
}

/// Returns what was counted so far over all captures of this process, by name.
#[cfg(feature = "counters")]
#[doc(hidden)]
pub fn counts() -> impl Iterator<Item = (&'static str, u64)> {
    NAMES.iter().map(|&(counter, name)| (name, COUNTS[counter as usize].load(Ordering::Relaxed)))
}

#[cfg(all(test, feature = "counters"))]
mod tests {
    use super::NAMES;

    #[test]
    fn counters_are_named_in_order() {
        assert!(NAMES.iter().enumerate().all(|(index, (counter, _))| *counter as usize == index));
    }
}
