//! Control words and facts of a spool: losses, how the recording ended, whether it is a ring.

use cairn_format::recording::control::EarlyEnd;
use cairn_format::recording::{Clock, EndReason, LossKind, SEGMENT_BYTES, control};

use crate::clock::TimeScale;
use crate::error::{EndedEarly, Finding};
use crate::model::Fact;

/// Why a recording ended before its program did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RawEarlyEnd {
    pub(crate) cause: EarlyEnd,
    /// The counter then; 0 where that is not known.
    pub(crate) counter: u64,
    pub(crate) missed: u64,
}

impl RawEarlyEnd {
    /// Reads the control words.
    pub(crate) fn of_words(word: impl Fn(usize) -> u64) -> Option<Self> {
        let state = control::State::from_word(word(control::STATE));
        // A recording that was asked to end can be asked to continue.
        let goes_on = state == control::State::Recording
            && control::Command::from_word(word(control::COMMAND)) == control::Command::Record;
        let noted = EarlyEnd::from_word(word(control::EARLY_END));
        let noted = noted.filter(|cause| !(goes_on && cause.is_intended()));
        let cause = noted.or(match state {
            // By a recorder that gave no reason.
            control::State::Full => Some(EarlyEnd::NoRoom),
            // The program has ended, and no command let it go on.
            control::State::Paused if word(control::EXITING) != 0 => Some(EarlyEnd::Paused),
            _ => None,
        })?;
        let counter = word(control::EARLY_END_COUNTER);
        Some(Self { cause, counter, missed: word(control::LOST_EVENTS) })
    }

    /// As the end of the recording.
    pub(crate) fn end(self) -> (EndReason, u64) {
        (EndReason::Stopped, if self.counter == 0 { u64::MAX } else { self.counter })
    }

    pub(crate) fn ended(self, scale: &TimeScale) -> EndedEarly {
        let nanos = if self.counter == 0 { 0 } else { scale.nanos(self.counter).max(1) };
        EndedEarly { cause: self.cause, nanos, missed: self.missed }
    }
}

/// The clocks when the program ended through `exit`, from the control words.
pub(crate) fn exit_clock(bytes: &[u8]) -> Option<Clock> {
    let counter = word(bytes, control::EXIT_COUNTER);
    let monotonic_nanos = word(bytes, control::EXIT_MONOTONIC_NANOS);
    let wall_nanos = word(bytes, control::EXIT_WALL_NANOS);
    (counter != 0).then_some(Clock { counter, monotonic_nanos, wall_nanos })
}

/// How a recording ended that has no record of it. A program that exits says so by a word; what was
/// stopped or had no room then ended before the program did.
pub(crate) fn unsaid_end(state: control::State, is_exiting: bool) -> Option<EndReason> {
    match state {
        control::State::Ended => Some(if is_exiting { EndReason::Exit } else { EndReason::Stopped }),
        control::State::Paused | control::State::Full => is_exiting.then_some(EndReason::Stopped),
        _ => is_exiting.then_some(EndReason::Exit),
    }
}

/// Control words that count what is not in the recording.
pub(crate) const LOSSES: [(usize, LossKind); 4] = [
    (control::LOST_EVENTS, LossKind::NoStorage),
    (control::LOST_STACKS, LossKind::NoStackMemory),
    (control::PASSING_SLOTS, LossKind::Passing),
    (control::UNREAD_FRAMES, LossKind::UnreadFrames),
];

/// Adds a loss to the finding of its kind.
pub(crate) fn note_loss(kind: LossKind, count: u64, findings: &mut Vec<Finding>) {
    for finding in findings.iter_mut() {
        match finding {
            Finding::Lost { kind: known, count: sum } if *known == kind => {
                *sum = sum.saturating_add(count);
                return;
            }
            _ => {}
        }
    }
    findings.push(Finding::Lost { kind, count });
}

/// Whether the program keeps its last events only.
pub(crate) fn is_ring(facts: &[Fact]) -> bool {
    facts.iter().any(|fact| fact.name == "mode" && fact.value == b"ring")
}

pub(crate) fn word(bytes: &[u8], at: usize) -> u64 {
    let word = bytes.get(at..).and_then(|rest| rest.first_chunk());
    word.map_or(0, |word| u64::from_le_bytes(*word))
}

pub(super) fn control_findings(control: &[u8], length: u64, ended_early: bool, findings: &mut Vec<Finding>) {
    if control.len() < SEGMENT_BYTES {
        findings.push(Finding::TornTail { offset: length, lost_bytes: SEGMENT_BYTES as u64 - length });
        return;
    }
    let claimed = word(control, control::CLAIMED_SEGMENTS).min(1 << 40) * SEGMENT_BYTES as u64;
    if claimed > length {
        // The segment at the cut says what it lost of itself.
        let whole = length.next_multiple_of(SEGMENT_BYTES as u64);
        if claimed > whole {
            findings.push(Finding::TornTail { offset: whole, lost_bytes: claimed - whole });
        }
    }
    for (at, kind) in LOSSES {
        let count = word(control, at);
        // Events after an early end are counted with it.
        if count > 0 && !(ended_early && kind == LossKind::NoStorage) {
            note_loss(kind, count, findings);
        }
    }
}

/// The facts: `name=value` pairs, each ended by a NUL, and the words that are facts.
pub(crate) fn facts(control: &[u8]) -> Vec<Fact> {
    let length = word(control, control::FACTS_BYTES).min(control::FACTS_LIMIT_BYTES as u64) as usize;
    let bytes = control.get(control::FACTS..).unwrap_or_default();
    let mut facts = parse_facts(bytes.get(..length).unwrap_or(bytes));
    let peak = word(control, control::PEAK_RESIDENT_BYTES);
    if peak > 0 {
        let value = peak.to_string().into_bytes();
        facts.push(Fact { name: PEAK_RESIDENT_FACT.to_owned(), value });
    }
    facts
}

/// Name of the fact that holds the most resident memory of the process, by the kernel's count.
pub(crate) const PEAK_RESIDENT_FACT: &str = "peak_resident_bytes";

pub(crate) fn parse_facts(bytes: &[u8]) -> Vec<Fact> {
    let lines = bytes.split(|&byte| byte == 0).filter(|line| !line.is_empty());
    lines
        .map(|line| {
            let cut = line.iter().position(|&byte| byte == b'=').unwrap_or(line.len());
            let (name, value) = line.split_at(cut);
            Fact {
                name: String::from_utf8_lossy(name).into_owned(),
                value: value.get(1..).unwrap_or_default().to_vec(),
            }
        })
        .collect()
}

/// How fast the counter runs, where the recorder found out.
pub(crate) fn counter_hz(facts: &[Fact]) -> Option<u64> {
    let fact = facts.iter().find(|fact| fact.name == "counter_hz")?;
    std::str::from_utf8(&fact.value).ok()?.parse().ok()
}
