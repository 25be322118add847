//! Owners of frames: which frames are folded, and which one names a row.

use std::sync::Arc;

use super::{FunctionId, LineId, Names, Owner, OwnerKind, Position, Verdict};
use crate::attribution::Folding;
use crate::attribution::wrappers::{self, FoundWrapper};
use crate::heap::stacks::NO_FRAMES;
use crate::heap::{HeapProfile, LOST_STACK};

/// Ranks of frames, the best name of a row first; those of owners are smaller.
const RANK_OF_HIDDEN: u8 = 100;

/// The best frame that was found at a stack and outside of it.
#[derive(Clone, Copy)]
struct Best {
    rank: u8,
    position: Position,
}

impl Names<'_> {
    /// The choices of what is folded.
    #[must_use]
    pub fn folding(&self) -> &Folding {
        self.attribution.folding()
    }

    /// The owner of a line's function.
    #[must_use]
    pub fn owner(&self, line: LineId) -> Owner {
        if self.is_wrapper_by_recording(line) {
            return Owner { kind: OwnerKind::Wrapper, name: "".into() };
        }
        self.verdict(line).owner.clone()
    }

    /// The kind of a line's owner.
    #[must_use]
    pub fn owner_kind(&self, line: LineId) -> OwnerKind {
        if self.is_wrapper_by_recording(line) { OwnerKind::Wrapper } else { self.verdict(line).owner.kind }
    }

    pub(crate) fn verdict(&self, line: LineId) -> &Verdict {
        &self.verdicts[self.line_verdicts[line.index()] as usize]
    }

    fn is_wrapper_by_recording(&self, line: LineId) -> bool {
        self.is_found_wrapper[self.source_line(line).function.index()] && !self.verdict(line).is_settled
    }

    /// True when the frame is left out of stacks.
    #[must_use]
    pub fn is_folded(&self, line: LineId) -> bool {
        !self.folding().rules().internals && (self.verdict(line).is_hidden || self.is_folded_by_owner(line))
    }

    /// The same without what the user hides, which changes no owner.
    fn is_folded_by_owner(&self, line: LineId) -> bool {
        let verdict = self.verdict(line);
        let is_interpreter = self.has_interpreted && verdict.owner.kind == OwnerKind::Interpreter;
        verdict.is_folded || is_interpreter || self.is_wrapper_by_recording(line)
    }

    /// The wrappers that the recording shows, most bytes first.
    #[must_use]
    pub fn found_wrappers(&self) -> &[FoundWrapper] {
        self.found_wrappers.as_deref().unwrap_or_default()
    }

    /// Searches a profile for wrappers of the allocator, and folds them from now on.
    ///
    /// Names the frames next to the allocator. The first profile decides.
    pub fn find_wrappers(&mut self, profile: &HeapProfile) {
        if self.found_wrappers.is_some() || self.folding().rules().internals {
            return;
        }
        self.found_wrappers = Some(Vec::new());
        let found = wrappers::find(profile, self);
        for wrapper in &found {
            self.is_found_wrapper[wrapper.function.index()] = true;
        }
        self.found_wrappers = Some(found);
    }

    /// Folds the functions of these names, too, wherever they may be wrappers.
    fn fold_also(&mut self, wrappers: &[Arc<str>]) {
        self.wrappers_elsewhere.extend(wrappers.iter().cloned());
        for (function, is_wrapper) in self.functions.iter().zip(&mut self.is_found_wrapper) {
            *is_wrapper |= function.is_named && self.wrappers_elsewhere.contains(&function.name);
        }
    }

    fn wrapper_names(&self) -> Vec<Arc<str>> {
        let functions = self.found_wrappers().iter().map(|wrapper| self.function(wrapper.function));
        functions.filter(|function| function.is_named).map(|function| Arc::clone(&function.name)).collect()
    }

    /// Finds, for each stack, the position that names its row.
    ///
    /// That is the innermost frame of the user, or else of the best owner. If libraries call each
    /// other, as in a thread that one of them started, the outermost one counts, because the user
    /// chose it. It finds only the names that are needed for that.
    pub fn askers(&mut self, stacks: &[u32]) -> Vec<Position> {
        let rank = |names: &Self, line: LineId, is_start: bool| names.rank(line, is_start);
        self.best(stacks, rank, Self::is_of_inner_library)
    }

    /// True when a library that another one calls owns the inner line.
    fn is_of_inner_library(&self, inner: LineId, outer: LineId) -> bool {
        let [inner, outer] = [inner, outer].map(|line| self.verdict(line));
        let is_library = |verdict: &Verdict| {
            verdict.owner.kind == OwnerKind::Library && !verdict.is_folded && !verdict.is_interpreted
        };
        let counts = !self.attribution.is_distributed() && !self.folding().rules().internals;
        counts && is_library(inner) && is_library(outer) && inner.owner.name != outer.owner.name
    }

    /// Finds, for each stack, the innermost position that is not folded.
    ///
    /// It is at the frame of [`askers`](Self::askers), or further in, in a library.
    pub fn ends(&mut self, stacks: &[u32]) -> Vec<Position> {
        let rank = |names: &Self, line: LineId, is_start: bool| {
            let is_left_out = is_start || names.is_folded(line);
            if is_left_out { 1 + names.rank(line, is_start) } else { 0 }
        };
        self.best(stacks, rank, |_, _, _| false)
    }

    /// For each stack, the innermost position that is not folded because of its owner.
    ///
    /// A stack of folded frames alone has none.
    pub(crate) fn innermost_positions(&mut self, stacks: &[u32]) -> Vec<Option<Position>> {
        let rank = |names: &Self, line: LineId, _: bool| u8::from(names.is_folded_by_owner(line));
        let ends = self.best(stacks, rank, |_, _, _| false);
        ends.into_iter().map(|end| (!self.is_folded_by_owner(self.at_position(end))).then_some(end)).collect()
    }

    /// Adds the next outer position that is not folded because of its owner to each list.
    ///
    /// The names of all of them are found together.
    pub(crate) fn extend_outwards(&mut self, lists: &mut [&mut Vec<Position>]) {
        let outermost: Vec<Position> = lists.iter().filter_map(|list| list.last().copied()).collect();
        self.find_callers(&outermost);
        for list in lists {
            let last = list.last().copied();
            list.extend(last.and_then(|last| self.caller_by(last, Self::is_folded_by_owner)));
        }
    }

    /// The rank of a line as the name of a row; the smallest is the best.
    fn rank(&self, line: LineId, is_start: bool) -> u8 {
        match self.verdict(line) {
            _ if is_start => OwnerKind::Runtime as u8,
            verdict if verdict.is_hidden && !self.folding().rules().internals => RANK_OF_HIDDEN,
            // In a program of the distribution, any function with a name says more than a place.
            _ if self.attribution.is_distributed()
                && !self.function_of(line).is_named
                && matches!(self.owner_kind(line), OwnerKind::Mine | OwnerKind::Library) =>
            {
                self.attribution.rank(OwnerKind::Unknown)
            }
            // A container of a library is no better a name than one of the standard library.
            verdict if verdict.is_folded && verdict.owner.kind == OwnerKind::Library => {
                self.attribution.rank(OwnerKind::StandardLibrary)
            }
            _ => self.attribution.rank(self.owner_kind(line)),
        }
    }

    /// Finds the innermost position with the smallest rank.
    ///
    /// An inner line yields to an outer one of the same rank where `yields(inner, outer)`.
    /// Stacks share their outer parts, so each node of the tree is judged once, in rounds: names
    /// are looked up for all open nodes together.
    fn best(
        &mut self,
        stacks: &[u32],
        rank: impl Fn(&Self, LineId, bool) -> u8,
        yields: impl Fn(&Self, LineId, LineId) -> bool,
    ) -> Vec<Position> {
        let has_frames = |&stack: &u32| self.stacks.innermost(stack).is_some();
        let mut open: Vec<u32> = stacks.iter().copied().filter(has_frames).collect();
        let mut best: Vec<Option<Best>> = vec![None; self.stacks.len()];
        let mut judged: Vec<u32> = Vec::new();
        while !open.is_empty() {
            open.sort_unstable();
            open.dedup();
            self.find(open.iter().filter_map(|&stack| self.stacks.innermost(stack)));
            let mut outer = Vec::new();
            for &stack in &open {
                let here = self.best_at(stack, &rank, &yields);
                best[stack as usize] = Some(here);
                judged.push(stack);
                let parent = self.stacks.parent(stack).filter(|&parent| parent != NO_FRAMES && here.rank > 0);
                outer.extend(parent.filter(|&parent| best[parent as usize].is_none()));
            }
            open = outer;
        }
        // Parents have smaller numbers: each is complete before its children.
        judged.sort_unstable();
        for stack in judged {
            let outer = self.stacks.parent(stack).and_then(|parent| *best.get(parent as usize)?);
            if let (Some(here), Some(outer)) = (best[stack as usize], outer)
                && self.is_better(outer, here, &yields)
            {
                best[stack as usize] = Some(outer);
            }
        }
        let position = |&stack: &u32| {
            let found = best.get(stack as usize).copied().flatten();
            found.map_or(Position { stack, inlined: 0 }, |best| best.position)
        };
        stacks.iter().map(position).collect()
    }

    /// True when an outer position is a better name than an inner one.
    fn is_better(&self, outer: Best, inner: Best, yields: &impl Fn(&Self, LineId, LineId) -> bool) -> bool {
        let line = |best: Best| self.at_position(best.position);
        outer.rank < inner.rank || (outer.rank == inner.rank && yields(self, line(inner), line(outer)))
    }

    fn best_at(
        &self,
        stack: u32,
        rank: &impl Fn(&Self, LineId, bool) -> u8,
        yields: &impl Fn(&Self, LineId, LineId) -> bool,
    ) -> Best {
        let frames = self.at(stack);
        let is_outermost = self.stacks.parent(stack) == Some(NO_FRAMES);
        let position = |inlined: usize| Position { stack, inlined: inlined as u32 };
        let mut best: Option<Best> = None;
        for (inlined, &line) in frames.iter().enumerate().rev() {
            // The outermost frame without a name is the program's `_start`.
            let is_start = is_outermost
                && inlined + 1 == frames.len()
                && !self.function_of(line).is_named
                && self.owner_kind(line) == OwnerKind::Mine
                && !self.folding().rules().internals;
            let here = Best { rank: rank(self, line, is_start), position: position(inlined) };
            if best.is_none_or(|outer| !self.is_better(outer, here, yields)) {
                best = Some(here);
            }
        }
        best.unwrap_or(Best { rank: u8::MAX, position: position(0) })
    }

    /// The next outer position, folded frames left out; `None` at the outermost one.
    ///
    /// The names of the whole stack must have been found.
    #[must_use]
    pub fn caller(&self, position: Position) -> Option<Position> {
        self.caller_by(position, Self::is_folded)
    }

    fn caller_by(&self, position: Position, is_folded: impl Fn(&Self, LineId) -> bool) -> Option<Position> {
        let mut inner_is_folded = is_folded(self, self.at_position(position));
        let mut next = self.next_outer(position);
        while let Some(outer) = next {
            let line = self.at_position(outer);
            let is_folded = is_folded(self, line);
            next = self.next_outer(outer);
            // The outermost frame, `_start`, has no name in programs without symbols.
            let is_start = next.is_none() && inner_is_folded && !self.function_of(line).is_named;
            if !is_folded && !is_start {
                return Some(outer);
            }
            inner_is_folded = is_folded;
        }
        None
    }

    fn next_outer(&self, position: Position) -> Option<Position> {
        if position.stack == LOST_STACK {
            return None;
        }
        if (position.inlined as usize) + 1 < self.at(position.stack).len() {
            return Some(Position { inlined: position.inlined + 1, ..position });
        }
        let parent = self.stacks.parent(position.stack).filter(|&parent| parent != NO_FRAMES)?;
        Some(Position { stack: parent, inlined: 0 })
    }

    /// Finds the names that [`caller`](Self::caller) needs for these positions.
    pub fn find_callers(&mut self, positions: &[Position]) {
        let outer =
            |position: &Position| self.stacks.parent(position.stack).filter(|&parent| parent != NO_FRAMES);
        let mut open: Vec<u32> = positions.iter().filter_map(outer).collect();
        // Where a whole address is folded, the caller is further out. A frame without a name may be
        // `_start`, which depends on whether it is the outermost one: that needs no more names.
        while !open.is_empty() {
            open.sort_unstable();
            open.dedup();
            self.find(open.iter().filter_map(|&stack| self.stacks.innermost(stack)));
            open.retain(|&stack| self.at(stack).iter().all(|&line| self.is_folded(line)));
            open = open
                .iter()
                .filter_map(|&stack| self.stacks.parent(stack))
                .filter(|&parent| parent != NO_FRAMES)
                .collect();
        }
    }

    /// The frames from a position outwards, folded ones left out.
    pub fn outwards(&self, position: Position) -> impl Iterator<Item = Position> {
        std::iter::successors(Some(position), |&position| self.caller(position))
    }

    /// All frames from a position outwards, and whether each is folded.
    ///
    /// The names of the whole stack must have been found.
    pub fn outwards_with_folded(&self, position: Position) -> impl Iterator<Item = (Position, bool)> {
        let mut inner_is_folded = false;
        std::iter::successors(Some(position), |&position| self.next_outer(position)).map(move |position| {
            let line = self.at_position(position);
            // The outermost frame, `_start`, has no name in programs without symbols.
            let is_start =
                inner_is_folded && self.next_outer(position).is_none() && !self.function_of(line).is_named;
            inner_is_folded = self.is_folded(line) || is_start;
            (position, inner_is_folded)
        })
    }

    /// How many frames a stack has, folded ones included; its names must have been found.
    #[must_use]
    pub fn frames_in(&self, stack: u32) -> usize {
        if stack == LOST_STACK {
            return 1;
        }
        self.stacks.path(stack).map(|stack| self.at(stack).len()).sum()
    }

    /// How many folded frames there are between a position and its [`caller`](Self::caller).
    #[must_use]
    pub fn folded_outside(&self, position: Position) -> usize {
        let outside = self.outwards_with_folded(position).skip(1);
        outside.take_while(|(_, is_folded)| *is_folded).count()
    }

    /// How many folded frames of a stack are further in than a position of it.
    ///
    /// The names from the innermost frame to the position must have been found.
    #[must_use]
    pub fn folded_inside(&self, stack: u32, position: Position) -> usize {
        self.lines_inside(stack, position).filter(|&line| self.is_folded(line)).count()
    }

    /// How many frames of a stack are further in than a position of it.
    ///
    /// The names from the innermost frame to the position must have been found.
    #[must_use]
    pub fn frames_inside(&self, stack: u32, position: Position) -> usize {
        self.lines_inside(stack, position).count()
    }

    /// The frames of a stack that are further in than a position of it, innermost first.
    fn lines_inside(&self, stack: u32, position: Position) -> impl Iterator<Item = LineId> {
        let is_known = stack != LOST_STACK && position.stack != LOST_STACK;
        let path = is_known.then(|| self.stacks.path(stack)).into_iter().flatten();
        let inner = path.take_while(move |&on_path| on_path != position.stack);
        let here = is_known.then(|| self.at(position.stack).iter().take(position.inlined as usize));
        inner.flat_map(|on_path| self.at(on_path)).chain(here.into_iter().flatten()).copied()
    }

    /// The function of a position.
    pub(crate) fn function_at(&self, position: Position) -> FunctionId {
        self.source_line(self.at_position(position)).function
    }
}

/// Finds the wrappers of two heaps that are compared: one of either is one in both.
///
/// Else the same stacks would be named after different functions.
pub fn find_common_wrappers(before: (&HeapProfile, &mut Names<'_>), after: (&HeapProfile, &mut Names<'_>)) {
    before.1.find_wrappers(before.0);
    after.1.find_wrappers(after.0);
    let of_before = before.1.wrapper_names();
    before.1.fold_also(&after.1.wrapper_names());
    after.1.fold_also(&of_before);
}
