//! Finds the program's own wrappers of the allocator in its recording: `zmalloc`, `jv_mem_alloc`.
//!
//! A wrapper calls the allocator at its end in nearly all stacks through it, and is called from
//! several functions. That holds for many a constructor, too, so one of these must be added:
//!
//! - its name says so: `alloc`, `strdup`, `memdup` in the last part of it; or
//! - nearly all bytes of its module flow through it and a few functions like it.
//!
//! Wrappers call wrappers (`jv_mem_alloc` < `jv_mem_uninit`), so the search is repeated from their
//! callers. Only the frames next to the allocator are named for it: a function that also calls
//! others that allocate shows that within a few frames.

use std::collections::{BTreeMap, BTreeSet};

use super::{OwnerKind, plain_name};
use crate::heap::{FunctionId, HeapProfile, Names, Position};

/// Frames outside of the allocator that are examined, beside the innermost one.
///
/// 3, because a function that calls two levels of helpers is no wrapper any more.
const FRAMES_OUTSIDE: usize = 3;
/// Wrappers that call wrappers; 6, because SQLite has five layers.
const MOST_LEVELS: usize = 6;
/// Stacks that are examined, the most frequent first.
///
/// 50,000, so that the search costs less than the rows do; the rarest stacks have few calls.
const MOST_STACKS: usize = 50_000;
/// Share of a wrapper's calls that end in it.
const LEAST_END_SHARE: f64 = 0.95;
/// Functions that call a wrapper whose name says that it is one.
const LEAST_CALLERS_BY_NAME: usize = 2;
/// Functions that call a wrapper whose name says nothing.
const LEAST_CALLERS: usize = 8;
/// Share of a module's calls or bytes that flows through its wrappers, where names say nothing.
const LEAST_SHARE_OF_MODULE: f64 = 0.9;
/// Share of the other one of the two: a few large blocks may come from elsewhere.
const LEAST_OTHER_SHARE: f64 = 0.5;
/// Share of a module's calls or bytes that a wrapper by behaviour alone has at least.
const LEAST_OWN_SHARE: f64 = 0.05;

/// A function that the recording shows to be a wrapper of the allocator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FoundWrapper {
    /// The function.
    pub function: FunctionId,
    /// Bytes that were allocated through it.
    pub bytes: u64,
    /// Allocations through it.
    pub allocations: u64,
    /// Most of these come from another wrapper that it calls, and are that one's, too.
    pub is_nested: bool,
}

/// A stack, seen from its end outwards.
struct Path {
    /// Positions that are not folded, innermost first.
    positions: Vec<Position>,
    /// How many of these are wrappers, or may be.
    passed: usize,
    allocations: u64,
    bytes: u64,
}

impl Path {
    fn at(&self, index: usize) -> Option<Position> {
        self.positions.get(self.passed + index).copied()
    }
}

#[derive(Clone, Copy, Default)]
struct Flow {
    allocations: u64,
    bytes: u64,
}

impl Flow {
    fn add(&mut self, path: &Path) {
        self.allocations = self.allocations.saturating_add(path.allocations);
        self.bytes = self.bytes.saturating_add(path.bytes);
    }

    /// Its shares of the calls and of the bytes, the greater one first.
    fn shares_of(self, whole: Self) -> (f64, f64) {
        let share = |part: u64, whole: u64| part as f64 / whole.max(1) as f64;
        let (calls, bytes) = (share(self.allocations, whole.allocations), share(self.bytes, whole.bytes));
        (calls.max(bytes), calls.min(bytes))
    }
}

/// The calls of a function at one level of the search.
#[derive(Default)]
struct Candidate {
    ends: Flow,
    /// Calls of stacks in which it is not the end.
    goes_on: u64,
    callers: BTreeSet<FunctionId>,
    /// The user said of a caller that it is none: then it is to be named.
    has_settled_caller: bool,
}

impl Candidate {
    fn is_an_end(&self) -> bool {
        let all = self.ends.allocations.saturating_add(self.goes_on);
        self.ends.allocations as f64 >= all as f64 * LEAST_END_SHARE
    }
}

/// Finds the wrappers of a profile.
pub(crate) fn find(profile: &HeapProfile, names: &mut Names<'_>) -> Vec<FoundWrapper> {
    let mut paths = paths(profile, names);
    let mut found: BTreeMap<FunctionId, Flow> = BTreeMap::new();
    let mut nested: BTreeMap<FunctionId, u64> = BTreeMap::new();
    // Named like a wrapper, but called by one function only, which may be a wrapper itself.
    let mut inner: BTreeMap<FunctionId, FunctionId> = BTreeMap::new();
    for level in 0..MOST_LEVELS {
        let candidates = candidates(&paths, names);
        let mut wrappers: BTreeSet<FunctionId> = BTreeSet::new();
        for (&function, candidate) in &candidates {
            let named = names.function(function);
            if !candidate.is_an_end() || !named.is_named || !is_named_like_a_wrapper(&named.name) {
                continue;
            }
            match candidate.callers.iter().collect::<Vec<_>>()[..] {
                [_] if candidate.has_settled_caller => drop(wrappers.insert(function)),
                [caller] if *caller != function => drop(inner.insert(function, *caller)),
                ref callers if callers.len() >= LEAST_CALLERS_BY_NAME => drop(wrappers.insert(function)),
                _ => {}
            }
        }
        // A caller of a wrapper that calls nothing else is more often a constructor.
        if level == 0 {
            wrappers.extend(by_behaviour(&paths, names, &candidates, &wrappers));
        }
        let passed = |path: &Path| {
            let function = path.at(0).map(|position| names.function_at(position));
            function.filter(|function| wrappers.contains(function) || inner.contains_key(function))
        };
        let mut moves = false;
        for path in &mut paths {
            let Some(function) = passed(path) else { continue };
            if path.at(1).is_some() {
                found.entry(function).or_default().add(path);
                if path.passed > 0 {
                    let bytes = nested.entry(function).or_default();
                    *bytes = bytes.saturating_add(path.bytes);
                }
                path.passed += 1;
                moves = true;
            }
        }
        // An inner function counts once its caller does.
        inner.retain(|function, _| !wrappers.contains(function));
        if !moves {
            break;
        }
    }
    while let Some(lone) = inner.iter().find(|(_, caller)| !found.contains_key(caller)).map(|(lone, _)| *lone)
    {
        inner.remove(&lone);
        found.remove(&lone);
    }
    let mut list: Vec<FoundWrapper> = found
        .into_iter()
        .map(|(function, Flow { allocations, bytes })| {
            let is_nested = nested.get(&function).is_some_and(|&nested| nested > bytes / 2);
            FoundWrapper { function, bytes, allocations, is_nested }
        })
        .collect();
    list.sort_by_key(|wrapper| (std::cmp::Reverse((wrapper.bytes, wrapper.allocations)), wrapper.function));
    list
}

/// The ends of the most frequent stacks.
fn paths(profile: &HeapProfile, names: &mut Names<'_>) -> Vec<Path> {
    let used = profile.stacks.iter().enumerate().filter(|(_, sums)| sums.allocations > 0);
    let mut used: Vec<(u64, u64, u32)> =
        used.map(|(stack, sums)| (sums.allocations, sums.allocated_bytes, stack as u32)).collect();
    used.sort_unstable_by(|a, b| b.cmp(a));
    used.truncate(MOST_STACKS);
    let stacks: Vec<u32> = used.iter().map(|&(_, _, stack)| stack).collect();
    let positions = names.first_positions(&stacks, 1 + FRAMES_OUTSIDE + MOST_LEVELS);
    used.into_iter()
        .zip(positions)
        .filter(|(_, positions)| !positions.is_empty())
        .map(|((allocations, bytes, _), positions)| Path { positions, passed: 0, allocations, bytes })
        .collect()
}

/// The functions at the ends of the paths.
fn candidates(paths: &[Path], names: &Names<'_>) -> BTreeMap<FunctionId, Candidate> {
    let mut candidates: BTreeMap<FunctionId, Candidate> = BTreeMap::new();
    for path in paths {
        let Some(end) = path.at(0).filter(|&end| may_be_a_wrapper(names, end)) else { continue };
        let candidate = candidates.entry(names.function_at(end)).or_default();
        candidate.ends.add(path);
        if let Some(caller) = path.at(1) {
            candidate.callers.insert(names.function_at(caller));
            candidate.has_settled_caller |= names.verdict(names.at_position(caller)).is_settled;
        }
    }
    for path in paths {
        let end = path.at(0).map(|end| names.function_at(end));
        let outside = (1..=FRAMES_OUTSIDE).map_while(|index| path.at(index));
        let functions: BTreeSet<FunctionId> = outside.map(|position| names.function_at(position)).collect();
        // A recursion has the end outside of itself, too.
        for function in functions.into_iter().filter(|function| Some(*function) != end) {
            if let Some(candidate) = candidates.get_mut(&function) {
                candidate.goes_on = candidate.goes_on.saturating_add(path.allocations);
            }
        }
    }
    candidates
}

fn may_be_a_wrapper(names: &Names<'_>, position: Position) -> bool {
    let line = names.at_position(position);
    let verdict = names.verdict(line);
    !verdict.is_settled
        && !verdict.is_interpreted
        // A function without a name has a number; what is no function has none.
        && !names.function_of(line).name.starts_with('[')
        && matches!(verdict.owner.kind, OwnerKind::Mine | OwnerKind::Library)
}

/// The functions through which nearly all memory of a module flows, whatever their names.
fn by_behaviour(
    paths: &[Path],
    names: &Names<'_>,
    candidates: &BTreeMap<FunctionId, Candidate>,
    by_name: &BTreeSet<FunctionId>,
) -> BTreeSet<FunctionId> {
    let mut modules: BTreeMap<Option<u32>, Flow> = BTreeMap::new();
    for path in paths {
        if let Some(end) = path.at(0) {
            modules.entry(names.function(names.function_at(end)).module).or_default().add(path);
        }
    }
    let mut found = BTreeSet::new();
    for (module, whole) in modules {
        let of_module = candidates.iter().filter(|(function, _)| names.function(**function).module == module);
        let mut through = Flow::default();
        let mut behave = Vec::new();
        for (&function, candidate) in of_module {
            let is_important = candidate.ends.shares_of(whole).0 >= LEAST_OWN_SHARE;
            let behaves = candidate.callers.len() >= LEAST_CALLERS && candidate.is_an_end() && is_important;
            if behaves {
                behave.push(function);
            }
            if behaves || by_name.contains(&function) {
                through.allocations = through.allocations.saturating_add(candidate.ends.allocations);
                through.bytes = through.bytes.saturating_add(candidate.ends.bytes);
            }
        }
        let (greater, other) = through.shares_of(whole);
        if greater >= LEAST_SHARE_OF_MODULE && other >= LEAST_OTHER_SHARE {
            found.extend(behave);
        }
    }
    found
}

/// True when the last part of a name says that the function returns new memory.
fn is_named_like_a_wrapper(name: &str) -> bool {
    let plain = plain_name(name);
    let last = plain.rsplit("::").next().unwrap_or(&plain).to_ascii_lowercase();
    let is_opposite = last.contains("dealloc") || last.contains("free");
    let says = ["alloc", "strdup", "strndup", "memdup", "memndup", "operator new"];
    !is_opposite && says.iter().any(|word| last.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_wrappers_say_so() {
        for name in
            ["zmalloc", "jv_mem_alloc", "Arena::AllocateAligned(unsigned long)", "my_strdup", "xCalloc"]
        {
            assert!(is_named_like_a_wrapper(name), "{name}");
        }
        for name in
            ["main", "dealloc_all", "alloc::load", "new_order", "std::vector<my_alloc>::push_back(int)"]
        {
            assert!(!is_named_like_a_wrapper(name), "{name}");
        }
    }
}
