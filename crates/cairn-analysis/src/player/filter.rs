//! Selects the events to play.

use std::collections::HashMap;

use regex::Regex;

use super::event::{Event, PlayedModule, StackKey, Tables, What};
use crate::calendar::{fraction_nanos, parse_iso};
use crate::names::AddressNames;
use cairn_symbols::SourceFrame;

const NANOS: i64 = 1_000_000_000;

/// Maximum stacks whose verdict is cached.
const MAX_REMEMBERED: usize = 1 << 18;

/// A bound of the time to play.
///
/// ```
/// use cairn_analysis::player::TimeBound;
/// assert_eq!(TimeBound::parse("1.5"), Some(TimeBound::FromStart(1_500_000_000)));
/// assert_eq!(TimeBound::parse("20ms"), Some(TimeBound::FromStart(20_000_000)));
/// assert_eq!(TimeBound::parse("2018-04-08T20:05:44Z"), Some(TimeBound::Wall(1_523_217_944_000_000_000)));
/// assert_eq!(TimeBound::parse("soon"), None);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TimeBound {
    /// Nanoseconds since the start of the recording.
    FromStart(i64),
    /// Nanoseconds since 1970.
    Wall(u64),
}

impl TimeBound {
    /// Parses seconds since the start, optionally with a unit of `h m s ms us ns`, or an ISO 8601
    /// time.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        parse_seconds(text).map(Self::FromStart).or_else(|| parse_iso(text).map(Self::Wall))
    }

    /// Converts to nanoseconds since the start of a recording.
    #[must_use]
    pub fn from_start(self, tables: &dyn Tables) -> i64 {
        self.nanos_by(|wall_nanos| tables.nanos_at_wall(wall_nanos))
    }

    fn nanos_by(self, nanos_at_wall: impl Fn(u64) -> i64) -> i64 {
        match self {
            Self::FromStart(nanos) => nanos,
            Self::Wall(nanos) => nanos_at_wall(nanos),
        }
    }
}

fn parse_seconds(text: &str) -> Option<i64> {
    const UNITS: [(&str, i64); 6] =
        [("ms", 1_000_000), ("us", 1000), ("ns", 1), ("h", 3600 * NANOS), ("m", 60 * NANOS), ("s", NANOS)];
    let found = UNITS.iter().find_map(|&(unit, nanos)| Some((text.strip_suffix(unit)?, nanos)));
    let (number, unit) = found.unwrap_or((text, NANOS));
    let (sign, number) = number.strip_prefix('-').map_or((1, number), |number| (-1, number));
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || !whole.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let whole = i128::from(whole.parse::<u64>().ok()?) * i128::from(unit);
    let fraction = i128::from(fraction_nanos(fraction)?) * i128::from(unit) / i128::from(NANOS);
    i64::try_from(sign * (whole + fraction)).ok()
}

/// Selects the events to play; by default all but allocations and frees.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Excludes earlier events.
    pub since: Option<TimeBound>,
    /// Excludes events from this time on.
    pub until: Option<TimeBound>,
    /// Selects threads by number or name; empty for all.
    pub threads: Vec<String>,
    /// Selects modules, and stacks with a frame in one of them; empty for all. A module is given by
    /// its path, its last component, or that up to a dot: `libc` is `/usr/lib/libc.so.6`.
    pub modules: Vec<String>,
    /// Selects marks by text, stacks by function, source file or module, and modules by path.
    pub pattern: Option<Regex>,
    /// Includes allocations and frees.
    pub heap: bool,
    /// Selects events with a stack only.
    pub only_stacks: bool,
}

impl Filter {
    /// Returns the times to play, since the start of the recording: inclusive start, exclusive end.
    #[must_use]
    pub fn window(&self, tables: &dyn Tables) -> (i64, i64) {
        self.window_by(|wall_nanos| tables.nanos_at_wall(wall_nanos))
    }

    pub(super) fn window_by(&self, nanos_at_wall: impl Fn(u64) -> i64) -> (i64, i64) {
        let since = self.since.map_or(i64::MIN, |bound| bound.nanos_by(&nanos_at_wall));
        let until = self.until.map_or(i64::MAX, |bound| bound.nanos_by(&nanos_at_wall));
        (since, until)
    }

    /// Reports whether a module passes, by name and by pattern.
    #[must_use]
    pub fn takes_module(&self, module: &PlayedModule) -> bool {
        let is_wanted = |wanted: &String| is_named(&module.path, module.name(), wanted);
        (self.modules.is_empty() || self.modules.iter().any(is_wanted))
            && self.pattern.as_ref().is_none_or(|pattern| pattern.is_match(&module.path))
    }
}

/// Applies a [`Filter`], and caches its verdicts.
pub(super) struct Sieve<'a> {
    filter: &'a Filter,
    window: (i64, i64),
    in_modules: HashMap<(StackKey, usize), bool>,
    matches: HashMap<(StackKey, usize), bool>,
}

impl<'a> Sieve<'a> {
    pub(super) fn new(filter: &'a Filter, tables: &dyn Tables) -> Self {
        Self { filter, window: filter.window(tables), in_modules: HashMap::new(), matches: HashMap::new() }
    }

    /// Applies the conditions that need no names.
    pub(super) fn may_pass(&mut self, event: &Event, tables: &dyn Tables) -> bool {
        let (since, until) = self.window;
        let is_heap = matches!(event.what, What::Alloc { .. } | What::Free { .. });
        (since..until).contains(&event.nanos)
            && (self.filter.heap || !is_heap)
            && (!self.filter.only_stacks || event.stack().is_some())
            && self.is_of_thread(event, tables)
            && self.is_of_module(event, tables)
    }

    fn is_of_thread(&self, event: &Event, tables: &dyn Tables) -> bool {
        if self.filter.threads.is_empty() {
            return true;
        }
        let Some(thread) = event.thread.and_then(|thread| tables.threads().get(thread)) else { return false };
        let is_it = |wanted: &String| {
            *wanted == thread.name
                || thread.earlier_names.contains(wanted)
                || *wanted == thread.kernel_thread.to_string()
        };
        self.filter.threads.iter().any(is_it)
    }

    fn is_of_module(&mut self, event: &Event, tables: &dyn Tables) -> bool {
        let filter = self.filter;
        if filter.modules.is_empty() {
            return true;
        }
        let is_wanted = |module: usize| {
            let Some(module) = tables.modules().get(module) else { return false };
            filter.modules.iter().any(|wanted| is_named(&module.path, module.name(), wanted))
        };
        if let Some(module) = event.module() {
            return is_wanted(module);
        }
        let Some(stack) = event.stack() else { return false };
        remembered(&mut self.in_modules, (stack, event.skip()), || {
            event.frames(tables).iter().filter_map(|frame| frame.module).any(is_wanted)
        })
    }

    /// Applies the conditions that need names.
    pub(super) fn passes(
        &mut self,
        event: &Event,
        tables: &dyn Tables,
        names: Option<&mut AddressNames>,
    ) -> bool {
        let Some(pattern) = &self.filter.pattern else { return true };
        if let Some(module) = event.module() {
            return tables.modules().get(module).is_some_and(|module| pattern.is_match(&module.path));
        }
        if let What::Mark { text, .. } = &event.what
            && pattern.is_match(&String::from_utf8_lossy(text))
        {
            return true;
        }
        let Some(stack) = event.stack() else { return false };
        remembered(&mut self.matches, (stack, event.skip()), || stack_matches(pattern, event, tables, names))
    }
}

fn remembered<K: std::hash::Hash + Eq>(
    known: &mut HashMap<K, bool>,
    key: K,
    find: impl FnOnce() -> bool,
) -> bool {
    if known.len() > MAX_REMEMBERED {
        known.clear();
    }
    *known.entry(key).or_insert_with(find)
}

fn is_named(path: &str, name: &str, wanted: &str) -> bool {
    let up_to_point = || name.strip_prefix(wanted).is_some_and(|rest| rest.starts_with('.'));
    path == wanted || name == wanted || up_to_point()
}

fn stack_matches(
    pattern: &Regex,
    event: &Event,
    tables: &dyn Tables,
    mut names: Option<&mut AddressNames>,
) -> bool {
    event.frames(tables).iter().any(|frame| {
        let module = frame.module.and_then(|module| tables.modules().get(module));
        if module.is_some_and(|module| pattern.is_match(&module.path)) {
            return true;
        }
        let is_match = |source: &SourceFrame| {
            let texts = [&source.function, &source.raw_name, &source.file];
            texts.into_iter().flatten().any(|text| pattern.is_match(text))
        };
        if let Some(own) = tables.own_name(frame) {
            return is_match(&own);
        }
        let Some((names, (file, lookup))) = names.as_deref_mut().zip(frame.lookup(tables)) else {
            return false;
        };
        names.resolve(file, lookup).frames().iter().any(is_match)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filter_parses_times_with_and_without_units() {
        let from_start = |text| match TimeBound::parse(text) {
            Some(TimeBound::FromStart(nanos)) => Some(nanos),
            _ => None,
        };
        for (text, nanos) in [
            ("0", 0),
            ("2", 2 * NANOS),
            ("0.25s", NANOS / 4),
            ("1.5m", 90 * NANOS),
            ("2h", 7200 * NANOS),
            ("-1.5", -NANOS * 3 / 2),
            ("7ns", 7),
            ("0.5us", 500),
        ] {
            assert_eq!(from_start(text), Some(nanos), "{text}");
        }
        for text in ["", ".", "s", "1.x", "1e9", "99999999999999999999", "--1", "1 s"] {
            assert_eq!(TimeBound::parse(text), None, "{text}");
        }
    }

    #[test]
    fn filter_matches_modules_by_path_name_and_stem() {
        for (wanted, is_it) in [
            ("/usr/lib/libc.so.6", true),
            ("libc.so.6", true),
            ("libc.so", true),
            ("libc", true),
            ("lib", false),
        ] {
            assert_eq!(is_named("/usr/lib/libc.so.6", "libc.so.6", wanted), is_it, "{wanted}");
        }
    }
}
