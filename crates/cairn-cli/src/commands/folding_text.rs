//! How folded frames and wrappers are written: below rows, and in notes.

use cairn_analysis::heap::{FoundWrapper, LineId, Names, OwnerKind, Questions, Suppressed};

use super::heap_text::{bytes, count, counted, percent};

/// A line below a row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum StackLine {
    /// A frame.
    Frame(LineId),
    /// Frames that are not shown.
    LeftOut {
        /// Their number.
        frames: usize,
        /// ` of Qt`, where all are one library's; else empty.
        of: String,
    },
}

/// The lines of the callers of a row's frame, at most `most`.
///
/// Where the row is the user's, calls in libraries are one line, so that the user's frames fill the
/// others. The outermost frame is always shown.
pub(crate) fn stack_lines(names: &Names<'_>, row: LineId, callers: &[LineId], most: usize) -> Vec<StackLine> {
    let is_mine = |line: LineId| names.owner_kind(line) == OwnerKind::Mine;
    if callers.len() <= most {
        return callers.iter().copied().map(StackLine::Frame).collect();
    }
    let mut lines: Vec<StackLine> = Vec::new();
    let mut rest = callers;
    while let [first, ..] = *rest {
        let others = rest.iter().take_while(|line| is_mine(row) && !is_mine(**line)).count();
        if others > 1 && rest.len() > others {
            lines.push(StackLine::LeftOut { frames: others, of: owner_of(names, &rest[..others]) });
            rest = &rest[others..];
        } else {
            lines.push(StackLine::Frame(first));
            rest = &rest[1..];
        }
    }
    if lines.len() <= most {
        return lines;
    }
    let last = lines.len() - 1;
    let frames = lines[most - 2..last].iter().map(|line| match line {
        StackLine::Frame(_) => 1,
        StackLine::LeftOut { frames, .. } => *frames,
    });
    let left_out = StackLine::LeftOut { frames: frames.sum(), of: String::new() };
    lines.splice(most - 2..last, [left_out]);
    lines
}

/// ` of NAME`, where all frames have one owner with a name.
fn owner_of(names: &Names<'_>, lines: &[LineId]) -> String {
    let owner = names.owner(lines[0]);
    let is_one = lines.iter().all(|line| names.owner(*line) == owner);
    if is_one && !owner.name.is_empty() { format!(" of {}", owner.name) } else { String::new() }
}

/// Notes on what was folded: the wrappers of the recording, and the number of frames.
pub(crate) fn folding_notes(questions: &Questions<'_>, folded: usize) -> Vec<String> {
    wrappers_text(questions).into_iter().chain(folded_text(folded)).collect()
}

/// `27 frames of the stacks shown are folded`; nothing for none.
pub(crate) fn folded_text(folded: usize) -> Option<String> {
    folded_of(folded, "the stacks shown", "shows")
}

/// `27 frames of all stacks are folded`, for files of other tools; nothing for none.
pub(crate) fn folded_note(folded: usize) -> Option<String> {
    folded_of(folded, "all stacks", "writes")
}

fn folded_of(folded: usize, stacks: &str, unfolds: &str) -> Option<String> {
    let (verb, them) = if folded == 1 { ("is", "it") } else { ("are", "them") };
    let frames = counted(folded as u64, "frame");
    (folded > 0).then(|| format!("{frames} of {stacks} {verb} folded: --internals {unfolds} {them}"))
}

/// `wrappers found: zmalloc, zcalloc (99 % of the bytes)`.
pub(crate) fn wrappers_text(questions: &Questions<'_>) -> Option<String> {
    const MOST: usize = 6;
    let names = questions.names();
    let found = names.found_wrappers();
    if found.is_empty() {
        return None;
    }
    let name = |wrapper: &FoundWrapper| names.function(wrapper.function).name.to_string();
    let mut text = found.iter().take(MOST).map(name).collect::<Vec<_>>().join(", ");
    if found.len() > MOST {
        text.push_str(&format!(" and {} more", count((found.len() - MOST) as u64)));
    }
    let share = percent(questions.share_through_wrappers());
    Some(format!("wrappers found: {text} ({} % of the bytes): rows name their callers", share.trim()))
}

/// `known leaks held back: stdio buffers 4.0 KiB`: those that every program has, in one line.
pub(crate) fn known_leaks_text(held_back: &[Suppressed]) -> Option<String> {
    let known: Vec<String> = held_back
        .iter()
        .filter(|entry| entry.reason.is_some())
        .map(|entry| format!("{} {} in {}", entry.name, bytes(entry.bytes), counted(entry.blocks, "block")))
        .collect();
    let text = known.join(", ");
    (!known.is_empty()).then(|| {
        format!("held back, because every program leaks it: {text}; --no-default-suppressions counts it")
    })
}
