//! Compares two heaps, or two moments of one: which stacks grew.
//!
//! Stacks are matched by the names of their functions, modules and files, never by addresses or
//! lines: between two builds, or two runs, these are what stays. Frames without a name count as
//! their module, and neighbours of one module as one, since without symbols not even the number of
//! functions is known. Versions at the end of a library's name do not count.

use std::collections::HashMap;
use std::sync::Arc;

use super::names::{LineId, Names, Position};
use super::questions::Questions;
use super::stacks::NO_FRAMES;
use super::{Amount, Cost, LOST_STACK, Sums};
use crate::attribution::Owner;

/// The properties of a frame that are compared.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DiffFrame {
    /// Its function; none where the names of a module are not known.
    pub function: Option<Arc<str>>,
    /// Its module, without a version.
    pub module: String,
    /// The last part of its source file's path.
    pub file: Option<String>,
}

/// A stack in both recordings.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DiffEntry {
    /// The frames from the one that asked outwards.
    pub frames: Vec<DiffFrame>,
    /// The owner of each of these frames: as before, where both recordings have it.
    ///
    /// The owner of a module is that of the function in it that changed most.
    pub owners: Vec<Owner>,
    /// Frames that are left out of the longest of its stacks; `None` for a function or a module.
    pub folded_frames: Option<usize>,
    /// Its cost before.
    pub before: Amount,
    /// Its cost now.
    pub after: Amount,
}

impl DiffEntry {
    /// By how much its value grew; negative when it shrank.
    #[must_use]
    pub fn growth(&self) -> i128 {
        growth(self.before, self.after)
    }

    /// By how many its blocks grew; negative when they became fewer.
    #[must_use]
    pub fn block_growth(&self) -> i128 {
        i128::from(self.after.blocks) - i128::from(self.before.blocks)
    }
}

fn growth(before: Amount, after: Amount) -> i128 {
    i128::from(after.value) - i128::from(before.value)
}

/// The stacks that grew and shrank.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Diff {
    /// The measure.
    pub cost: Cost,
    /// All of it before.
    pub before: Amount,
    /// All of it now.
    pub after: Amount,
    /// The stacks that differ, the greatest change first, be it growth or the reverse.
    pub entries: Vec<DiffEntry>,
}

impl Diff {
    /// Compares two recordings.
    #[must_use]
    pub fn of(before: &mut Questions<'_>, after: &mut Questions<'_>, cost: Cost) -> Self {
        let mut paths = Paths::default();
        let mut sums: HashMap<u32, PathSums> = HashMap::new();
        let mut totals = (Amount::default(), Amount::default());
        for (place, amount) in paths.of(before, cost) {
            let sum = sums.entry(place.path).or_default();
            sum.before = sum.before.plus(amount);
            sum.folded_frames = sum.folded_frames.max(place.folded_frames);
            totals.0 = totals.0.plus(amount);
        }
        for (place, amount) in paths.of(after, cost) {
            let sum = sums.entry(place.path).or_default();
            sum.after = sum.after.plus(amount);
            sum.folded_frames = sum.folded_frames.max(place.folded_frames);
            totals.1 = totals.1.plus(amount);
        }
        let differs = sums.into_iter().filter(|(_, sums)| sums.before != sums.after);
        let mut entries: Vec<DiffEntry> = differs
            .map(|(path, PathSums { before, after, folded_frames })| {
                let (frames, owners) = paths.frames(path);
                DiffEntry { frames, owners, folded_frames: Some(folded_frames), before, after }
            })
            .collect();
        entries.sort_by(|a, b| {
            let size = |entry: &DiffEntry| (entry.growth().abs(), entry.block_growth().abs());
            size(b).cmp(&size(a)).then_with(|| a.frames.cmp(&b.frames))
        });
        Self { cost, before: totals.0, after: totals.1, entries }
    }

    /// By how much all of it grew.
    #[must_use]
    pub fn growth(&self) -> i128 {
        growth(self.before, self.after)
    }

    /// The changes by the function that asked, the greatest first.
    #[must_use]
    pub fn by_function(&self) -> Vec<DiffEntry> {
        self.grouped(DiffFrame::clone)
    }

    /// The changes by the module of the function that asked, the greatest first: frames without a
    /// function.
    #[must_use]
    pub fn by_module(&self) -> Vec<DiffEntry> {
        self.grouped(|asker| DiffFrame { function: None, module: asker.module.clone(), file: None })
    }

    fn grouped(&self, key: impl Fn(&DiffFrame) -> DiffFrame) -> Vec<DiffEntry> {
        let mut groups: HashMap<DiffFrame, DiffEntry> = HashMap::new();
        // The greatest change comes first: it decides about the owner.
        for entry in &self.entries {
            let (Some(asker), Some(owner)) = (entry.frames.first(), entry.owners.first()) else { continue };
            let asker = key(asker);
            let group = groups.entry(asker.clone()).or_insert_with(|| DiffEntry {
                frames: vec![asker],
                owners: vec![owner.clone()],
                folded_frames: None,
                before: Amount::default(),
                after: Amount::default(),
            });
            (group.before, group.after) = (group.before.plus(entry.before), group.after.plus(entry.after));
        }
        let mut entries: Vec<DiffEntry> =
            groups.into_values().filter(|entry| entry.before != entry.after).collect();
        entries.sort_by(|a, b| b.growth().abs().cmp(&a.growth().abs()).then_with(|| a.frames.cmp(&b.frames)));
        entries
    }
}

/// Returns the frames by which [`Diff`] finds each stack in another build, the innermost first.
///
/// They are those of every stack that something was counted for, or of all that `is_wanted`
/// chooses. Stores of many recordings make an identifier of them.
pub fn shapes(
    questions: &mut Questions<'_>,
    is_wanted: impl Fn(&Sums) -> bool,
) -> Vec<(u32, Vec<DiffFrame>)> {
    let mut paths = Paths::default();
    let places = paths.of_stacks(questions, is_wanted);
    places.into_iter().map(|place| (place.stack, paths.frames(place.path).0)).collect()
}

/// The sums of a path.
#[derive(Default)]
struct PathSums {
    before: Amount,
    after: Amount,
    folded_frames: usize,
}

/// Where a stack is among the paths.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) path: u32,
    pub(super) stack: u32,
    /// Frames of the stack that are not in its path, because they are folded or further in.
    folded_frames: usize,
}

/// The path of a stack as far as it has been followed from outside.
#[derive(Clone, Copy)]
struct Trail {
    path: u32,
    /// Folded frames in it.
    folded: u32,
    /// Folded frames behind the last one of the path.
    run: u32,
}

impl Trail {
    const START: Self = Self { path: NO_PATH, folded: 0, run: 0 };

    fn fold(&mut self) {
        self.folded += 1;
        self.run += 1;
    }
}

/// Stacks as paths of what is compared, numbered the same for both recordings.
#[derive(Default)]
pub(super) struct Paths {
    /// A path: its outer part, and its innermost frame. Path 0 has no frames and is not in the
    /// list.
    pub(super) paths: Vec<(u32, u32)>,
    /// By path: folded frames between its innermost frame and the caller, the most of any stack.
    pub(super) runs: Vec<u32>,
    path_numbers: HashMap<(u32, u32), u32>,
    pub(super) frames: Vec<DiffFrame>,
    /// By frame.
    pub(super) owners: Vec<Owner>,
    frame_numbers: HashMap<DiffFrame, u32>,
}

impl Paths {
    /// The path of each stack that asked for memory, and what it cost.
    fn of(&mut self, questions: &mut Questions<'_>, cost: Cost) -> Vec<(Place, Amount)> {
        let places = self.of_stacks(questions, |sums| !cost.of(sums).is_zero());
        places.into_iter().map(|place| (place, cost.of(questions.sums(place.stack)))).collect()
    }

    /// Returns the path of each stack for which `is_wanted` holds.
    pub(super) fn of_stacks(
        &mut self,
        questions: &mut Questions<'_>,
        is_wanted: impl Fn(&Sums) -> bool,
    ) -> Vec<Place> {
        let wanted: Vec<(u32, Position)> = questions
            .askers
            .iter()
            .filter(|asker| is_wanted(questions.sums(asker.stack)))
            .map(|asker| (asker.stack, asker.position))
            .collect();
        let names = &mut questions.names;
        names.find_stacks(wanted.iter().map(|&(stack, _)| stack));
        let stacks = names.stacks();
        let mut on_path = vec![false; stacks.len()];
        for &(_, position) in &wanted {
            for stack in stacks.path(position.stack) {
                if std::mem::replace(&mut on_path[stack as usize], true) {
                    break;
                }
            }
        }
        let mut lines = Lines::default();
        // Parents have smaller numbers, so that their paths are known first.
        let mut trails = vec![Trail::START; stacks.len()];
        for stack in (1..stacks.len() as u32).filter(|&stack| on_path[stack as usize]) {
            let outer = stacks.parent(stack).unwrap_or(NO_FRAMES);
            trails[stack as usize] =
                self.extended(names, &mut lines, (trails[outer as usize], outer), names.at(stack));
        }
        let place = |(stack, position): (u32, Position)| {
            let Trail { path, folded, .. } = self.of_position(names, &mut lines, &trails, position);
            Place { path, stack, folded_frames: folded as usize + names.frames_inside(stack, position) }
        };
        wanted.into_iter().map(place).collect()
    }

    fn of_position(
        &mut self,
        names: &Names<'_>,
        lines: &mut Lines,
        trails: &[Trail],
        position: Position,
    ) -> Trail {
        let asker = names.at_position(position);
        if matches!(position.stack, LOST_STACK | NO_FRAMES) {
            return Trail { path: self.with(names, lines, Trail::START, asker), ..Trail::START };
        }
        let outer = names.stacks().parent(position.stack).unwrap_or(NO_FRAMES);
        let frames = names.at(position.stack).get(position.inlined as usize..).unwrap_or_default();
        let mut trail = self.extended(names, lines, (trails[outer as usize], outer), frames);
        // Where all is folded, the one that asked is shown all the same.
        if names.is_folded(asker) || trail.path == NO_PATH {
            (trail.folded, trail.run) = (trail.folded.saturating_sub(1), trail.run.saturating_sub(1));
            trail.path = self.with(names, lines, trail, asker);
        }
        trail
    }

    /// A path with further frames, given innermost first, folded ones left out.
    fn extended(
        &mut self,
        names: &Names<'_>,
        lines: &mut Lines,
        (trail, outer): (Trail, u32),
        frames: &[LineId],
    ) -> Trail {
        // The outermost frame of a program without symbols is a start-up without a name.
        let mut is_start = names.stacks().parent(outer) == Some(NO_FRAMES)
            && matches!(names.at(outer), [only] if !names.function_of(*only).is_named);
        frames.iter().rev().fold(trail, |mut trail, &line| {
            let is_folded = names.is_folded(line);
            if is_folded && is_start {
                trail.path = NO_PATH;
                trail.fold();
            }
            is_start = false;
            if is_folded {
                trail.fold();
                trail
            } else {
                Trail { path: self.with(names, lines, trail, line), run: 0, ..trail }
            }
        })
    }

    /// A path with one more frame.
    fn with(&mut self, names: &Names<'_>, lines: &mut Lines, trail: Trail, line: LineId) -> u32 {
        let Trail { path, run, .. } = trail;
        let frame = *lines.frames.entry(line).or_insert_with(|| self.frame(names, line));
        let is_unknown = self.frames[frame as usize].function.is_none();
        if is_unknown && path != NO_PATH && self.paths[path as usize - 1].1 == frame {
            return path;
        }
        let number = *self.path_numbers.entry((path, frame)).or_insert_with(|| {
            self.paths.push((path, frame));
            self.runs.push(0);
            self.paths.len() as u32
        });
        let longest = &mut self.runs[number as usize - 1];
        *longest = run.max(*longest);
        number
    }

    fn frame(&mut self, names: &Names<'_>, line: LineId) -> u32 {
        let source = names.source_line(line);
        let function = names.function(source.function);
        let last_part = |path: &Arc<str>| path.rsplit(['/', '\\']).next().unwrap_or(path).to_owned();
        let is_reported = function.is_named || function.module.is_none();
        let frame = DiffFrame {
            function: is_reported.then(|| Arc::clone(&function.name)),
            module: without_version(names.module(function.module)).to_owned(),
            file: source.file.as_ref().map(last_part),
        };
        *self.frame_numbers.entry(frame).or_insert_with_key(|frame| {
            self.frames.push(frame.clone());
            self.owners.push(names.owner(line));
            self.frames.len() as u32 - 1
        })
    }

    /// The frames of a path and the owner of each, innermost first.
    fn frames(&self, path: u32) -> (Vec<DiffFrame>, Vec<Owner>) {
        let step = |path: u32| path.checked_sub(1).and_then(|index| self.paths.get(index as usize));
        std::iter::successors(step(path), |&&(outer, _)| step(outer))
            .map(|&(_, frame)| (self.frames[frame as usize].clone(), self.owners[frame as usize].clone()))
            .unzip()
    }
}

pub(super) const NO_PATH: u32 = 0;

/// The frames of one recording's lines.
#[derive(Default)]
struct Lines {
    frames: HashMap<LineId, u32>,
}

/// `libfoo.so` of `libfoo.so.1.2.3`.
fn without_version(module: &str) -> &str {
    match module.find(".so.") {
        Some(at) => &module[..at + ".so".len()],
        None => module,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_libraries_do_not_count() {
        assert_eq!(without_version("libc.so.6"), "libc.so");
        assert_eq!(without_version("libstdc++.so.6.0.30"), "libstdc++.so");
        assert_eq!(without_version("app"), "app");
    }
}
