//! Finds the program's own wrappers of the allocator in its recording: `zmalloc`, `jv_mem_alloc`.
//!
//! A wrapper calls the allocator at its end in nearly all stacks through it, and is called from
//! several functions. That holds for many a constructor, too, so one of these must be added:
//!
//! - its name says so: `alloc`, `strdup`, `memdup` in the last part of it;
//! - its name says that it works on a string, buffer or container of anything: `strbuf_grow`;
//! - its callers decide the size: their blocks differ, while it calls the allocator at one or two
//!   places; or
//! - nearly all bytes of its module flow through it and a few functions like it.
//!
//! A function that is named after the function of a library that it calls is one, too:
//! `git_inflate` around `inflate`.
//!
//! Wrappers call wrappers (`jv_mem_alloc` < `jv_mem_uninit`), so the search is repeated from their
//! callers. Only the frames next to the allocator are named for it: a function that also calls
//! others that allocate shows that within a few frames.

use std::collections::{BTreeMap, BTreeSet};

use super::wrapper_names::{Prefixes, has_stem, least_callers, stem};
use super::{OwnerKind, evidence, plain_name};
use crate::heap::{FunctionId, HeapProfile, LineId, Names, Position};

/// Frames outside of the allocator that are examined, beside the innermost one.
///
/// 3, because a function that calls two levels of helpers is no wrapper any more.
const FRAMES_OUTSIDE: usize = 3;
/// Wrappers that call wrappers; 8: SQLite has five layers, and strings are a few more above them.
const MOST_LEVELS: usize = 8;
/// Stacks that are examined, the most frequent first.
///
/// 50,000, so that the search costs less than the rows do; the rarest stacks have few calls.
const MOST_STACKS: usize = 50_000;
/// Share of a wrapper's calls that end in it.
const LEAST_END_SHARE: f64 = 0.95;
/// Functions that call a wrapper whose name says nothing.
const LEAST_CALLERS: usize = 8;
/// Different mean sizes of its callers' blocks, where these decide.
///
/// Sizes differ by steps of a factor of the square root of 2.
const LEAST_SIZES: usize = 4;
/// Lines at which a wrapper calls the allocator, where callers decide the size: `malloc` and
/// `realloc`. A function with more of them has data of its own.
const MOST_SITES: usize = 2;
/// Share of a module's calls or bytes that flows through its wrappers, where names say nothing.
const LEAST_SHARE_OF_MODULE: f64 = 0.9;
/// Share of the other one of the two: a few large blocks may come from elsewhere.
const LEAST_OTHER_SHARE: f64 = 0.5;
/// Share of a module's calls or bytes that a wrapper by behaviour alone has at least.
const LEAST_OWN_SHARE: f64 = 0.05;
/// Letters of the shortest name of a library's function that a wrapper may be named after.
///
/// 5, because `push` and `read` are parts of any name.
const LEAST_LETTERS: usize = 5;

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

    /// The mean size of a block, in steps of a factor of the square root of 2.
    fn size_class(self) -> u32 {
        let mean = self.bytes as f64 / self.allocations.max(1) as f64;
        (mean.max(1.0).log2() * 2.0) as u32
    }
}

/// The calls of a function at one level of the search.
#[derive(Default)]
struct Candidate {
    ends: Flow,
    /// Calls of stacks in which it is not the end.
    goes_on: u64,
    callers: BTreeMap<FunctionId, Flow>,
    /// Its lines that call the allocator, or a wrapper.
    sites: BTreeSet<LineId>,
    /// The user said of a caller that it is none: then it is to be named.
    has_settled_caller: bool,
}

impl Candidate {
    fn is_an_end(&self) -> bool {
        let all = self.ends.allocations.saturating_add(self.goes_on);
        self.ends.allocations as f64 >= all as f64 * LEAST_END_SHARE
    }

    /// True when its callers decide how large the blocks are.
    fn has_sizes_of_callers(&self) -> bool {
        let sizes: BTreeSet<u32> = self.callers.values().map(|flow| flow.size_class()).collect();
        self.callers.len() >= LEAST_CALLERS && sizes.len() >= LEAST_SIZES && self.sites.len() <= MOST_SITES
    }
}

/// Finds the wrappers of a profile.
pub(crate) fn find(profile: &HeapProfile, names: &mut Names<'_>) -> Vec<FoundWrapper> {
    let mut paths = paths(profile, names);
    let mut least: BTreeMap<FunctionId, Option<usize>> = BTreeMap::new();
    // `sds`, after `_sdsnewlen` was found by its behaviour.
    let mut stems: BTreeSet<String> = BTreeSet::new();
    let mut found: BTreeMap<FunctionId, Flow> = BTreeMap::new();
    let mut nested: BTreeMap<FunctionId, u64> = BTreeMap::new();
    // Named like a wrapper, but called by one function only, which may be a wrapper itself.
    let mut inner: BTreeMap<FunctionId, FunctionId> = BTreeMap::new();
    let whole = flows_of_modules(&paths, names);
    let of_libraries = named_after_libraries(&paths, names);
    let prefixes = prefixes(&paths, names);
    let no_prefixes = Prefixes::default();
    for level in 0..MOST_LEVELS {
        let candidates = candidates(&paths, names);
        let mut wrappers: BTreeSet<FunctionId> = BTreeSet::new();
        for (&function, candidate) in candidates.iter().filter(|(_, candidate)| candidate.is_an_end()) {
            let named = names.function(function);
            let by_name = *least.entry(function).or_insert_with(|| {
                let prefixes = prefixes.get(&named.module).unwrap_or(&no_prefixes);
                named.is_named.then(|| least_callers(&named.name, prefixes)).flatten()
            });
            let by_stem = || stems.iter().any(|stem| has_stem(&named.name, stem)).then_some(1);
            let Some(least_callers) = by_name.or_else(by_stem) else {
                let is_important = whole
                    .get(&named.module)
                    .is_some_and(|&whole| candidate.ends.shares_of(whole).0 >= LEAST_OWN_SHARE);
                if is_important && candidate.has_sizes_of_callers() {
                    wrappers.insert(function);
                }
                continue;
            };
            let mut callers = candidate.callers.keys();
            match (callers.next(), callers.next()) {
                (Some(_), None) if candidate.has_settled_caller || least_callers == 1 => {
                    wrappers.insert(function);
                }
                (Some(&caller), None) => drop(inner.insert(function, caller)),
                _ if candidate.callers.len() >= least_callers => drop(wrappers.insert(function)),
                _ => {}
            }
        }
        // A caller of a wrapper that calls nothing else is more often a constructor.
        if level == 0 {
            wrappers.extend(by_behaviour(&whole, names, &candidates, &wrappers));
        }
        for function in wrappers.iter().filter(|function| least.get(function) == Some(&None)) {
            stems.extend(stem(&names.function(*function).name));
        }
        let mut moved = Vec::new();
        for path in &mut paths {
            let Some(function) = path.at(0).map(|position| names.function_at(position)) else { continue };
            let is_passed = wrappers.contains(&function) || inner.contains_key(&function);
            if is_passed && path.at(1).is_some() {
                found.entry(function).or_default().add(path);
                if path.passed > 0 {
                    let bytes = nested.entry(function).or_default();
                    *bytes = bytes.saturating_add(path.bytes);
                }
                path.passed += 1;
                moved.push(&mut path.positions);
            }
        }
        // An inner function counts once its caller does.
        inner.retain(|function, _| !wrappers.contains(function));
        if moved.is_empty() {
            break;
        }
        names.extend_outwards(&mut moved);
    }
    while let Some(lone) = inner.iter().find(|(_, caller)| !found.contains_key(caller)).map(|(lone, _)| *lone)
    {
        inner.remove(&lone);
        found.remove(&lone);
    }
    for (function, flow) in of_libraries {
        found.entry(function).or_insert(flow);
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
    let mut paths: Vec<Path> = used
        .into_iter()
        .zip(names.innermost_positions(&stacks))
        .filter_map(|((allocations, bytes, _), position)| {
            Some(Path { positions: vec![position?], passed: 0, allocations, bytes })
        })
        .collect();
    for _ in 0..FRAMES_OUTSIDE {
        let mut lists: Vec<_> = paths.iter_mut().map(|path| &mut path.positions).collect();
        names.extend_outwards(&mut lists);
    }
    paths
}

/// The functions at the ends of the paths.
fn candidates(paths: &[Path], names: &Names<'_>) -> BTreeMap<FunctionId, Candidate> {
    let mut candidates: BTreeMap<FunctionId, Candidate> = BTreeMap::new();
    for path in paths {
        let Some(end) = path.at(0).filter(|&end| may_be_a_wrapper(names, end)) else { continue };
        let candidate = candidates.entry(names.function_at(end)).or_default();
        candidate.ends.add(path);
        candidate.sites.insert(names.at_position(end));
        if let Some(caller) = caller(path, names) {
            candidate.callers.entry(names.function_at(caller)).or_default().add(path);
            candidate.has_settled_caller |= names.verdict(names.at_position(caller)).is_settled;
        }
    }
    for path in paths {
        // A recursion has the end outside of itself, too; each function counts once.
        let mut seen: [Option<FunctionId>; 1 + FRAMES_OUTSIDE] = [None; 1 + FRAMES_OUTSIDE];
        for index in 0..=FRAMES_OUTSIDE {
            let function = path.at(index).map(|position| names.function_at(position));
            let is_new = !seen.contains(&function);
            seen[index] = function;
            if index > 0
                && is_new
                && let Some(candidate) = function.and_then(|function| candidates.get_mut(&function))
            {
                candidate.goes_on = candidate.goes_on.saturating_add(path.allocations);
            }
        }
    }
    candidates
}

/// The caller of a path's end; a part of the function that a compiler split off is none.
fn caller(path: &Path, names: &Names<'_>) -> Option<Position> {
    let function = |position| names.function(names.function_at(position));
    let end = function(path.at(0)?);
    let name = evidence::without_clone(&end.name);
    let is_other = |position: &Position| {
        let caller = function(*position);
        caller.module != end.module || evidence::without_clone(&caller.name) != name
    };
    (1..).map_while(|index| path.at(index)).find(is_other)
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

/// The memory that each module's innermost functions allocate.
fn flows_of_modules(paths: &[Path], names: &Names<'_>) -> BTreeMap<Option<u32>, Flow> {
    let mut modules: BTreeMap<Option<u32>, Flow> = BTreeMap::new();
    for path in paths {
        if let Some(end) = path.at(0) {
            modules.entry(names.function(names.function_at(end)).module).or_default().add(path);
        }
    }
    modules
}

/// The words in front of the names of each module's functions.
fn prefixes(paths: &[Path], names: &Names<'_>) -> BTreeMap<Option<u32>, Prefixes> {
    let mut functions: BTreeMap<Option<u32>, BTreeSet<FunctionId>> = BTreeMap::new();
    for &position in paths.iter().flat_map(|path| &path.positions) {
        let function = names.function_at(position);
        functions.entry(names.function(function).module).or_default().insert(function);
    }
    let of_module = |(module, functions): (Option<u32>, BTreeSet<FunctionId>)| {
        let named = functions.iter().map(|function| names.function(*function));
        let of_functions = named.filter(|function| function.is_named).map(|function| &*function.name);
        (module, Prefixes::of_module(names.module(module), of_functions))
    };
    functions.into_iter().map(of_module).collect()
}

/// The functions through which nearly all memory of a module flows, whatever their names.
fn by_behaviour(
    modules: &BTreeMap<Option<u32>, Flow>,
    names: &Names<'_>,
    candidates: &BTreeMap<FunctionId, Candidate>,
    others: &BTreeSet<FunctionId>,
) -> BTreeSet<FunctionId> {
    let mut found = BTreeSet::new();
    for (&module, &whole) in modules {
        let of_module = candidates.iter().filter(|(function, _)| names.function(**function).module == module);
        let mut through = Flow::default();
        let mut behave = Vec::new();
        for (&function, candidate) in of_module {
            let is_important = candidate.ends.shares_of(whole).0 >= LEAST_OWN_SHARE;
            let behaves = candidate.callers.len() >= LEAST_CALLERS && candidate.is_an_end() && is_important;
            if behaves {
                behave.push(function);
            }
            if behaves || others.contains(&function) {
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

/// The user's functions that are named after the function of a library that they call.
fn named_after_libraries(paths: &[Path], names: &Names<'_>) -> BTreeMap<FunctionId, Flow> {
    let mut pairs: BTreeMap<(FunctionId, FunctionId), Flow> = BTreeMap::new();
    for path in paths {
        for pair in path.positions.windows(2) {
            let positions = [pair[0], pair[1]];
            let [inner, outer] = positions.map(|position| names.at_position(position));
            let is_border = names.owner_kind(inner) == OwnerKind::Library
                && names.owner_kind(outer) == OwnerKind::Mine
                && !names.verdict(outer).is_settled;
            if is_border {
                let [inner, outer] = positions.map(|position| names.function_at(position));
                pairs.entry((outer, inner)).or_default().add(path);
            }
        }
    }
    let mut found: BTreeMap<FunctionId, Flow> = BTreeMap::new();
    for ((outer, inner), flow) in pairs {
        let (outer_function, inner) = (names.function(outer), names.function(inner));
        let is_named = outer_function.is_named && inner.is_named;
        if is_named && is_named_after(&outer_function.name, &inner.name) {
            let sum = found.entry(outer).or_default();
            sum.allocations = sum.allocations.saturating_add(flow.allocations);
            sum.bytes = sum.bytes.saturating_add(flow.bytes);
        }
    }
    found
}

/// True for `git_inflate` and `xinflate` around `inflate`.
fn is_named_after(outer: &str, inner: &str) -> bool {
    let (outer, inner) = (plain_name(outer), plain_name(inner));
    let inner = evidence::without_clone(&inner);
    let Some(prefix) = evidence::without_clone(&outer).strip_suffix(inner) else { return false };
    let is_short = !prefix.trim_end_matches('_').contains('_');
    inner.len() >= LEAST_LETTERS && is_short && (prefix == "x" || (prefix.len() > 1 && prefix.ends_with('_')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrappers_of_libraries_have_their_names() {
        for (outer, inner) in
            [("git_inflate", "inflate"), ("xdeflate", "deflate"), ("my_BZ2_open", "BZ2_open")]
        {
            assert!(is_named_after(outer, inner), "{outer}");
        }
        for (outer, inner) in [
            ("inflate", "inflate"),
            ("git_read", "read"),
            ("preinflate", "inflate"),
            ("unpack_entry", "inflate"),
            ("load_all_fonts_inflate", "inflate"),
        ] {
            assert!(!is_named_after(outer, inner), "{outer}");
        }
    }
}
