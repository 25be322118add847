//! The list of a tool: for each stack, the function that it names first.

use super::names::same_function;

/// A question that a person asks a heap profiler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum View {
    /// Bytes held at the peak.
    Peak,
    /// Bytes that were not freed.
    Leaked,
    /// Bytes of all allocations.
    Allocated,
    /// Calls of allocation functions.
    Count,
}

impl View {
    pub(crate) const ALL: [Self; 4] = [Self::Peak, Self::Leaked, Self::Allocated, Self::Count];

    /// Returns the word for `--cost`, which the tables of expectations use, too.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Peak => "peak",
            Self::Leaked => "leaked",
            Self::Allocated => "allocated",
            Self::Count => "count",
        }
    }

    pub(crate) fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|view| view.name() == name)
    }
}

/// A stack in a tool's list.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Entry {
    pub(crate) view: View,
    /// The function with which the list's row for this stack begins.
    pub(crate) first: String,
    /// All functions of the stack, innermost first.
    pub(crate) frames: Vec<String>,
    /// Bytes or calls, by which the list is sorted.
    pub(crate) cost: f64,
}

/// A tool's answer for one stack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    Right(String),
    Wrong(String),
    /// No stack in the list has these functions.
    NotMet,
}

/// Judges the row of the stack that `key` names.
///
/// Among several stacks that match, the one with most cost counts.
pub(crate) fn judge(entries: &[Entry], view: View, key: &[String], expected: &[String]) -> Verdict {
    let matching = entries.iter().filter(|entry| entry.view == view && has_frames(&entry.frames, key));
    let Some(entry) = matching.max_by(|a, b| a.cost.total_cmp(&b.cost)) else { return Verdict::NotMet };
    if expected.iter().any(|name| same_function(&entry.first, name)) {
        Verdict::Right(entry.first.clone())
    } else {
        Verdict::Wrong(entry.first.clone())
    }
}

/// Returns whether all functions of a key occur in a stack, in this order, with any others between.
fn has_frames(frames: &[String], key: &[String]) -> bool {
    let mut frames = frames.iter();
    key.iter().all(|name| frames.any(|frame| same_function(frame, name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    fn entry(first: &str, frames: &str, cost: f64) -> Entry {
        Entry { view: View::Peak, first: first.to_owned(), frames: words(frames), cost }
    }

    #[test]
    fn judge_takes_the_costliest_matching_stack() {
        let entries = [
            entry("zmalloc", "zmalloc sdsnew setCommand main", 5.0),
            entry("setCommand", "zmalloc sdsnew setCommand call main", 9.0),
            entry("other", "zmalloc other main", 100.0),
        ];
        let judged = |key: &str, expected: &str| judge(&entries, View::Peak, &words(key), &words(expected));
        assert_eq!(judged("sdsnew setCommand", "x setCommand"), Verdict::Right("setCommand".to_owned()));
        assert_eq!(judged("sdsnew setCommand", "sdsnew"), Verdict::Wrong("setCommand".to_owned()));
        assert_eq!(judged("setCommand sdsnew", "sdsnew"), Verdict::NotMet);
        assert_eq!(judge(&entries, View::Leaked, &words("main"), &words("main")), Verdict::NotMet);
    }

    #[test]
    fn key_functions_repeat_as_often_as_in_the_stack() {
        let frames = words("a a b");
        assert!(has_frames(&frames, &words("a a")));
        assert!(!has_frames(&frames, &words("a a a")));
        assert!(!has_frames(&frames, &words("b b")));
    }
}
