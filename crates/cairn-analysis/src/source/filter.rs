//! Which blocks of a heap are counted, and from which stretch of its time.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use crate::heap::Pattern;

/// Chooses blocks by one property.
///
/// ```
/// use cairn_analysis::source::HeapFilter;
///
/// assert!(matches!("size=1KiB..4KiB".parse(), Ok(HeapFilter::Size(range)) if range == (1024..=4096)));
/// assert!("colour=red".parse::<HeapFilter>().is_err());
/// ```
#[derive(Clone, Debug)]
pub enum HeapFilter {
    /// Any frame of the stack is in a function of this name.
    Function(Pattern),
    /// Any frame of the stack is in a module of this name.
    Module(Pattern),
    /// A thread of this name or number allocated the block.
    Thread(String),
    /// The block has one of these sizes.
    Size(RangeInclusive<u64>),
}

impl HeapFilter {
    /// True if it chooses blocks by themselves, false if it chooses stacks.
    #[must_use]
    pub fn is_of_blocks(&self) -> bool {
        matches!(self, Self::Thread(_) | Self::Size(_))
    }
}

/// Returns the range from the smallest to the largest size of both.
pub(super) fn widest(known: Option<RangeInclusive<u64>>, other: &RangeInclusive<u64>) -> RangeInclusive<u64> {
    match known {
        Some(known) => *known.start().min(other.start())..=*known.end().max(other.end()),
        None => other.clone(),
    }
}

/// Why a text is no filter, size or time: a sentence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadFilter(String);

impl fmt::Display for BadFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadFilter {}

impl FromStr for HeapFilter {
    type Err = BadFilter;

    /// Parses `KIND=WHAT`.
    fn from_str(text: &str) -> Result<Self, BadFilter> {
        let bad = |text: String| BadFilter(text);
        let (kind, what) =
            text.split_once('=').ok_or_else(|| bad("write it as KIND=WHAT, as in function=load*".into()))?;
        match kind {
            "function" => Ok(Self::Function(Pattern::new(what))),
            "module" => Ok(Self::Module(Pattern::new(what))),
            "thread" => Ok(Self::Thread(what.to_owned())),
            "size" => parse_sizes(what).map(Self::Size).map_err(bad),
            _ => {
                Err(bad(format!("{kind} is no kind of filter; there are function, module, thread and size")))
            }
        }
    }
}

fn parse_sizes(text: &str) -> Result<RangeInclusive<u64>, String> {
    let Some((from, to)) = text.split_once("..") else {
        let size = parse_size(text)?;
        return Ok(size..=size);
    };
    let from = if from.is_empty() { 0 } else { parse_size(from)? };
    let to = if to.is_empty() { u64::MAX } else { parse_size(to)? };
    if from > to { Err(format!("{text}: the smaller size comes first")) } else { Ok(from..=to) }
}

/// Splits a size into its digits and the power of 2 of its unit; `None` for an unknown unit.
///
/// ```
/// assert_eq!(cairn_analysis::source::split_size("4KiB"), Some(("4", 10)));
/// ```
#[must_use]
pub fn split_size(text: &str) -> Option<(&str, u32)> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        _ => return None,
    };
    Some((number, shift))
}

/// Parses `4096`, `4k`, `4KiB`: all units are powers of 1024.
///
/// # Errors
///
/// A sentence for the person who wrote it.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let bad = || format!("{text}: not a size; write 4096, 4KiB or 1MiB");
    let (number, shift) = split_size(text).ok_or_else(bad)?;
    let number: u64 = number.parse().map_err(|_| bad())?;
    number.checked_mul(1 << shift).ok_or_else(|| format!("{text}: too large"))
}

/// Parses `1.5s`, `200ms`, `2min` into nanoseconds; a number alone is seconds.
///
/// # Errors
///
/// A sentence for the person who wrote it.
pub fn parse_time(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit_nanos = match unit.trim() {
        "" | "s" => 1e9,
        "ms" => 1e6,
        "us" | "µs" => 1e3,
        "ns" => 1.0,
        "m" | "min" => 60e9,
        "h" => 3600e9,
        _ => return Err(format!("{text}: not a time; write 1.5s, 200ms or 2min from the start")),
    };
    let number: f64 = number
        .parse()
        .map_err(|_| format!("{text}: not a time; write 1.5s, 200ms or 2min from the start"))?;
    // Rounded up, so that the time that a report shows includes what happened at it.
    Ok((number * unit_nanos).ceil() as u64)
}

/// A moment of a heap: a time from its start, or its peak.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TimePoint {
    /// Nanoseconds from the start.
    Nanos(u64),
    /// The moment at which the program held most.
    Peak,
}

impl FromStr for TimePoint {
    type Err = BadFilter;

    /// Parses a time, as 1.5s, or `peak`.
    fn from_str(text: &str) -> Result<Self, BadFilter> {
        if text == "peak" { Ok(Self::Peak) } else { parse_time(text).map(Self::Nanos).map_err(BadFilter) }
    }
}

/// A stretch of a heap's time. Blocks are counted that were allocated in it; those not freed in it
/// are alive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TimeSpan {
    /// Blocks that were allocated earlier are not counted.
    pub from_nanos: u64,
    /// Later events are not read; `u64::MAX` for the end.
    pub to_nanos: u64,
}

impl TimeSpan {
    /// All of the time.
    pub const ALL: Self = Self { from_nanos: 0, to_nanos: u64::MAX };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_sizes_are_parsed_with_their_units() {
        let times = [
            ("2", 2_000_000_000),
            ("1.5s", 1_500_000_000),
            ("200ms", 200_000_000),
            ("3us", 3_000),
            ("7ns", 7),
            ("2min", 120_000_000_000),
        ];
        for (text, nanos) in times {
            assert_eq!(parse_time(text), Ok(nanos), "{text}");
        }
        for text in ["", "s", "1 day", "-1", "1.2.3", "1e400x"] {
            assert!(parse_time(text).is_err(), "{text}");
        }
        assert_eq!(parse_sizes("1KiB..2m"), Ok(1024..=2 << 20));
        assert_eq!(parse_sizes("..64"), Ok(0..=64));
        assert_eq!(parse_sizes("64"), Ok(64..=64));
        for text in ["9..1", "a", "1..b", "99999999999999999999", "99999999999g"] {
            assert!(parse_sizes(text).is_err(), "{text}");
        }
    }
}
