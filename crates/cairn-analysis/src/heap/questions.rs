//! Answers questions to a profile with lists: the functions, lines, modules or stacks that asked
//! for memory.

use std::cmp::Reverse;

use super::names::{LineId, Names, Position};
use super::sampling::Errors;
use super::{Amount, Cost, HeapProfile, LOST_STACK, Sums};

/// A profile and the names to answer with.
///
/// ```
/// use cairn_analysis::heap::{
///     Address, Aggregator, Cost, Folding, Group, Module, Names, NoNames, Questions, Sampling, Scope, Stacks,
/// };
/// use cairn_format::recording::PcKind;
///
/// let mut stacks = Stacks::new();
/// let module = stacks.add_module(Module { path: "/usr/bin/app".into(), build_id: vec![] });
/// let site = |offset| Address {
///     kind: PcKind::ReturnAddress, absolute: 0x40_0000 + offset, stated: offset, module: Some((module, offset)),
/// };
/// let (outer, inner) = (stacks.add_address(site(0x10)), stacks.add_address(site(0x20)));
/// let main = stacks.add_stack(0, outer).unwrap();
/// let load = stacks.add_stack(main, inner).unwrap();
///
/// let mut heap = Aggregator::new(stacks.len(), 1, Scope::default(), Sampling::All);
/// heap.allocated(0, load, 0, 4096, 10);
/// heap.allocated(1, main, 0, 64, 20);
/// let profile = heap.finish(30);
///
/// let mut questions = Questions::new(&profile, Names::new(&stacks, &NoNames, Folding::default()));
/// let top = questions.top(Group::Function, Cost::Peak);
/// assert_eq!(questions.names().function_of(top[0].line).name.as_ref(), "app+0x20");
/// assert_eq!(top[0].sums.peak_bytes, 4096);
/// ```
#[derive(Debug)]
pub struct Questions<'a> {
    pub(super) names: Names<'a>,
    pub(super) profile: &'a HeapProfile,
    pub(super) askers: Vec<Asker>,
    /// Line and sums of each asker.
    ///
    /// Few of all stacks asked for memory, and lists go through these again and again.
    rows: Vec<(LineId, Sums)>,
}

/// A stack that allocated something, and the frame that asked for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asker {
    /// [`LOST_STACK`] for all whose stack was lost.
    pub stack: u32,
    /// The frame that names its row: the user's innermost one, or that of the next best owner.
    pub position: Position,
    /// The innermost frame that is not folded: the same frame, or one of a library that it called.
    pub end: Position,
}

/// The group that an entry sums.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Group {
    /// The function that asked.
    Function,
    /// The line that asked.
    Line,
    /// The module of the function that asked.
    Module,
    /// The whole stack.
    Stack,
}

impl Group {
    /// The word for it, as arguments and JSON have it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Function => "function",
            Self::Line => "line",
            Self::Module => "module",
            Self::Stack => "stack",
        }
    }
}

/// One line of an answer.
#[derive(Clone, PartialEq, Debug)]
pub struct Entry {
    /// The line that asked for most of it.
    pub line: LineId,
    /// The sums of the group.
    pub sums: Sums,
    /// How far off they may be, in a sampled recording.
    pub errors: Errors,
    /// The stacks that are in it, most expensive first, each with the position of the one that
    /// asked.
    pub stacks: Vec<(u32, Position)>,
}

/// The entry of each function, line or module, by number.
#[derive(Default)]
struct EntryNumbers(Vec<u32>);

impl EntryNumbers {
    fn entry(&mut self, number: usize) -> &mut u32 {
        if self.0.len() <= number {
            self.0.resize(number + 1, NO_ENTRY);
        }
        &mut self.0[number]
    }
}

const NO_ENTRY: u32 = u32::MAX;

/// The order of stacks in an entry: the most expensive first, equal ones by number.
///
/// The last field is the asker's index.
type Rank = (Reverse<Amount>, u32, u32);

impl<'a> Questions<'a> {
    /// Finds the frames that asked for memory.
    #[must_use]
    pub fn new(profile: &'a HeapProfile, mut names: Names<'a>) -> Self {
        let used = profile.stacks.iter().enumerate().filter(|(_, sums)| !sums.is_empty());
        let mut stacks: Vec<u32> = used.map(|(stack, _)| stack as u32).collect();
        if !profile.lost_stack.is_empty() {
            stacks.push(LOST_STACK);
        }
        names.find_wrappers(profile);
        let positions = names.askers(&stacks).into_iter().zip(names.ends(&stacks));
        let askers: Vec<Asker> = stacks
            .into_iter()
            .zip(positions)
            .map(|(stack, (position, end))| Asker { stack, position, end })
            .collect();
        let row = |asker: &Asker| (names.at_position(asker.position), *sums_of(profile, asker.stack));
        let rows = askers.iter().map(row).collect();
        Self { names, profile, askers, rows }
    }

    /// The names.
    #[must_use]
    pub fn names(&self) -> &Names<'a> {
        &self.names
    }

    /// The names, to ask for more of them.
    pub fn names_mut(&mut self) -> &mut Names<'a> {
        &mut self.names
    }

    /// The profile.
    #[must_use]
    pub fn profile(&self) -> &'a HeapProfile {
        self.profile
    }

    /// Every stack that allocated something, and the frame that asked for it.
    #[must_use]
    pub fn askers(&self) -> &[Asker] {
        &self.askers
    }

    /// The sums of a stack.
    #[must_use]
    pub fn sums(&self, stack: u32) -> &'a Sums {
        sums_of(self.profile, stack)
    }

    /// Lists the code that allocated, the most expensive first, without entries that cost nothing.
    /// Equal ones are ordered by name, so that the same recording always gives the same answer.
    #[must_use]
    pub fn top(&self, group: Group, cost: Cost) -> Vec<Entry> {
        self.top_of(group, cost, usize::MAX)
    }

    /// Lists entries like [`top`](Self::top), with only the first `most_stacks` of each in order.
    ///
    /// The others are behind them in any order.
    #[must_use]
    pub fn top_of(&self, group: Group, cost: Cost, most_stacks: usize) -> Vec<Entry> {
        let mut entries: Vec<Entry> = Vec::new();
        let mut ranks: Vec<Vec<Rank>> = Vec::new();
        let mut places = EntryNumbers::default();
        for (index, (asker, &(line, ref sums))) in self.askers.iter().zip(&self.rows).enumerate() {
            let amount = cost.of(sums);
            if amount.is_zero() {
                continue;
            }
            let number = match group {
                Group::Function => self.names.source_line(line).function.index(),
                Group::Line => line.index(),
                Group::Module => self.names.function_of(line).module.map_or(0, |module| module as usize + 1),
                // No stack is there twice.
                Group::Stack => entries.len(),
            };
            let place = places.entry(number);
            if *place == NO_ENTRY {
                *place = entries.len() as u32;
                entries.push(Entry {
                    line,
                    sums: Sums::default(),
                    errors: Errors::default(),
                    stacks: Vec::new(),
                });
                ranks.push(Vec::new());
            }
            let place = *place as usize;
            let entry = &mut entries[place];
            entry.sums.add(sums);
            if let Some(errors) = self.profile.stack_errors.get(asker.stack as usize) {
                entry.errors.add(errors);
            }
            ranks[place].push((Reverse(amount), asker.stack, index as u32));
        }
        for (entry, ranks) in entries.iter_mut().zip(ranks) {
            self.put_stacks(entry, ranks, most_stacks);
        }
        let tie = |entry: &Entry| {
            let line = self.names.source_line(entry.line);
            (&self.names.function(line.function).name, &line.file, line.line, entry.stacks.first().copied())
        };
        entries.sort_by(|a, b| cost.of(&b.sums).cmp(&cost.of(&a.sums)).then_with(|| tie(a).cmp(&tie(b))));
        entries
    }

    /// Puts the first stacks of an entry in order, the others behind them.
    ///
    /// The line of the first one becomes the entry's.
    fn put_stacks(&self, entry: &mut Entry, mut ranks: Vec<Rank>, most_stacks: usize) {
        // The entry's line is that of the first one, also if no stack is shown.
        let most_stacks = most_stacks.max(1);
        if most_stacks < ranks.len() {
            ranks.select_nth_unstable(most_stacks);
        }
        let first = most_stacks.min(ranks.len());
        ranks[..first].sort_unstable();
        let stack = |&(_, stack, index): &Rank| (stack, self.askers[index as usize].position);
        entry.stacks = ranks.iter().map(stack).collect();
        if let Some(&(_, _, index)) = ranks.first() {
            entry.line = self.rows[index as usize].0;
        }
    }

    /// The frames of a stack from the one that asked outwards, folded ones left out.
    #[must_use]
    pub fn frames(&mut self, stack: u32, asker: Position) -> Vec<LineId> {
        self.names.find_stacks([stack]);
        self.names.outwards(asker).map(|position| self.names.at_position(position)).collect()
    }

    /// How many frames of a stack [`frames`](Self::frames) leaves out.
    ///
    /// These are folded ones, and those that the one that asked called.
    #[must_use]
    pub fn left_out(&mut self, stack: u32, asker: Position) -> usize {
        let shown = self.frames(stack, asker).len();
        self.names.frames_in(stack).saturating_sub(shown)
    }

    /// How many frames are folded of the stacks for whose sums `is_counted` holds.
    ///
    /// The names of these stacks must have been found.
    pub fn folded_frames(&self, is_counted: impl Fn(&Sums) -> bool) -> usize {
        let names = &self.names;
        let left_out =
            |asker: &Asker| names.frames_in(asker.stack).saturating_sub(names.outwards(asker.end).count());
        let counted = self.askers.iter().filter(|asker| is_counted(self.sums(asker.stack)));
        counted.map(left_out).sum()
    }

    /// The share of a cost that flows through the wrappers that the recording shows, from 0 to 1.
    #[must_use]
    pub fn share_through_wrappers(&self) -> f64 {
        let whole = self.profile.totals.allocated_bytes.max(1);
        let wrappers = self.names.found_wrappers();
        // Wrappers call wrappers: the innermost ones have it all, but a path counts once only.
        let most = wrappers.iter().filter(|wrapper| !wrapper.is_nested).map(|wrapper| wrapper.bytes);
        (most.fold(0_u64, u64::saturating_add) as f64 / whole as f64).min(1.0)
    }
}

fn sums_of(profile: &HeapProfile, stack: u32) -> &Sums {
    match stack {
        LOST_STACK => &profile.lost_stack,
        _ => profile.stacks.get(stack as usize).unwrap_or(&profile.lost_stack),
    }
}
