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
        let mut sums: HashMap<u32, (Amount, Amount)> = HashMap::new();
        let mut totals = (Amount::default(), Amount::default());
        for (path, amount) in paths.of(before, cost) {
            let sum = &mut sums.entry(path).or_default().0;
            *sum = sum.plus(amount);
            totals.0 = totals.0.plus(amount);
        }
        for (path, amount) in paths.of(after, cost) {
            let sum = &mut sums.entry(path).or_default().1;
            *sum = sum.plus(amount);
            totals.1 = totals.1.plus(amount);
        }
        let differs = sums.into_iter().filter(|(_, (before, after))| before != after);
        let mut entries: Vec<DiffEntry> = differs
            .map(|(path, (before, after))| DiffEntry { frames: paths.frames(path), before, after })
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
        let mut sums: HashMap<DiffFrame, (Amount, Amount)> = HashMap::new();
        for entry in &self.entries {
            if let Some(asker) = entry.frames.first() {
                let sum = sums.entry(key(asker)).or_default();
                *sum = (sum.0.plus(entry.before), sum.1.plus(entry.after));
            }
        }
        let mut entries: Vec<DiffEntry> = sums
            .into_iter()
            .map(|(asker, (before, after))| DiffEntry { frames: vec![asker], before, after })
            .filter(|entry| entry.before != entry.after)
            .collect();
        entries.sort_by(|a, b| b.growth().abs().cmp(&a.growth().abs()).then_with(|| a.frames.cmp(&b.frames)));
        entries
    }
}

/// Stacks as paths of what is compared, numbered the same for both recordings.
#[derive(Default)]
pub(super) struct Paths {
    /// A path: its outer part, and its innermost frame. Path 0 has no frames and is not in the
    /// list.
    pub(super) paths: Vec<(u32, u32)>,
    path_numbers: HashMap<(u32, u32), u32>,
    pub(super) frames: Vec<DiffFrame>,
    frame_numbers: HashMap<DiffFrame, u32>,
}

impl Paths {
    /// The path of each stack that asked for memory, and what it cost.
    fn of(&mut self, questions: &mut Questions<'_>, cost: Cost) -> Vec<(u32, Amount)> {
        let paths = self.of_stacks(questions, |sums| !cost.of(sums).is_zero());
        paths.into_iter().map(|(path, stack)| (path, cost.of(questions.sums(stack)))).collect()
    }

    /// Returns the path of each stack for which `is_wanted` holds.
    pub(super) fn of_stacks(
        &mut self,
        questions: &mut Questions<'_>,
        is_wanted: impl Fn(&Sums) -> bool,
    ) -> Vec<(u32, u32)> {
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
        let mut path_of = vec![NO_PATH; stacks.len()];
        for stack in (1..stacks.len() as u32).filter(|&stack| on_path[stack as usize]) {
            let outer = stacks.parent(stack).unwrap_or(NO_FRAMES);
            path_of[stack as usize] =
                self.extended(names, &mut lines, (path_of[outer as usize], outer), names.at(stack));
        }
        wanted
            .into_iter()
            .map(|(stack, position)| (self.of_position(names, &mut lines, &path_of, position), stack))
            .collect()
    }

    fn of_position(
        &mut self,
        names: &Names<'_>,
        lines: &mut Lines,
        path_of: &[u32],
        position: Position,
    ) -> u32 {
        let asker = names.at_position(position);
        if matches!(position.stack, LOST_STACK | NO_FRAMES) {
            return self.with(names, lines, NO_PATH, asker);
        }
        let outer = names.stacks().parent(position.stack).unwrap_or(NO_FRAMES);
        let frames = names.at(position.stack).get(position.inlined as usize..).unwrap_or_default();
        let path = self.extended(names, lines, (path_of[outer as usize], outer), frames);
        // Where all is folded, the one that asked is shown all the same.
        if names.is_folded(asker) || path == NO_PATH { self.with(names, lines, path, asker) } else { path }
    }

    /// A path with further frames, given innermost first, folded ones left out.
    fn extended(
        &mut self,
        names: &Names<'_>,
        lines: &mut Lines,
        (path, outer): (u32, u32),
        frames: &[LineId],
    ) -> u32 {
        // The outermost frame of a program without symbols is a start-up without a name.
        let mut is_start = names.stacks().parent(outer) == Some(NO_FRAMES)
            && matches!(names.at(outer), [only] if !names.function_of(*only).is_named);
        frames.iter().rev().fold(path, |path, &line| {
            let is_folded = names.is_folded(line);
            let path = if is_folded && is_start { NO_PATH } else { path };
            is_start = false;
            if is_folded { path } else { self.with(names, lines, path, line) }
        })
    }

    fn with(&mut self, names: &Names<'_>, lines: &mut Lines, path: u32, line: LineId) -> u32 {
        let frame = *lines.frames.entry(line).or_insert_with(|| self.frame(names, line));
        let is_unknown = self.frames[frame as usize].function.is_none();
        if is_unknown && path != NO_PATH && self.paths[path as usize - 1].1 == frame {
            return path;
        }
        *self.path_numbers.entry((path, frame)).or_insert_with(|| {
            self.paths.push((path, frame));
            self.paths.len() as u32
        })
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
            self.frames.len() as u32 - 1
        })
    }

    /// The frames of a path, innermost first.
    fn frames(&self, path: u32) -> Vec<DiffFrame> {
        let step = |path: u32| path.checked_sub(1).and_then(|index| self.paths.get(index as usize));
        std::iter::successors(step(path), |&&(outer, _)| step(outer))
            .map(|&(_, frame)| self.frames[frame as usize].clone())
            .collect()
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
