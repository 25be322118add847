//! Questions to a profile whose answers are lists: who asked for the memory, by function, line, module, or stack.

use std::collections::HashMap;

use super::names::{FunctionId, LineId, Names, Position};
use super::sampling::Errors;
use super::{Cost, HeapProfile, LOST_STACK, Sums};

/// A profile and the names to answer with.
///
/// ```
/// use cairn_analysis::heap::{
///     Address, Aggregator, Cost, Folding, Group, Module, Names, NoNames, Questions, Sampling, Scope, Stacks,
/// };
/// use cairn_analysis::format::recording::PcKind;
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
}

/// A stack that allocated something, and the frame that asked for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asker {
    /// [`LOST_STACK`] for all whose stack was lost.
    pub stack: u32,
    /// The innermost frame that is not the allocator's.
    pub position: Position,
}

/// By what things are put together.
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
    /// The stacks that are in it, most expensive first, each with the position of the one that asked.
    pub stacks: Vec<(u32, Position)>,
}

#[derive(PartialEq, Eq, Hash)]
enum Key {
    Function(FunctionId),
    Line(LineId),
    Module(Option<u32>),
    Stack(u32),
}

impl<'a> Questions<'a> {
    /// Finds out who asked for memory.
    #[must_use]
    pub fn new(profile: &'a HeapProfile, mut names: Names<'a>) -> Self {
        let used = profile.stacks.iter().enumerate().filter(|(_, sums)| !sums.is_empty());
        let mut stacks: Vec<u32> = used.map(|(stack, _)| stack as u32).collect();
        if !profile.lost_stack.is_empty() {
            stacks.push(LOST_STACK);
        }
        let positions = names.askers(&stacks);
        let askers =
            stacks.into_iter().zip(positions).map(|(stack, position)| Asker { stack, position }).collect();
        Self { names, profile, askers }
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

    /// Every stack that allocated something, and who asked for it there.
    #[must_use]
    pub fn askers(&self) -> &[Asker] {
        &self.askers
    }

    /// What is known of a stack.
    #[must_use]
    pub fn sums(&self, stack: u32) -> &'a Sums {
        match stack {
            LOST_STACK => &self.profile.lost_stack,
            _ => self.profile.stacks.get(stack as usize).unwrap_or(&self.profile.lost_stack),
        }
    }

    /// Who asked for memory, the most expensive first; what costs nothing is not listed. Equal ones are ordered by name, so
    /// that the same recording always gives the same answer.
    #[must_use]
    pub fn top(&self, group: Group, cost: Cost) -> Vec<Entry> {
        let mut entries: Vec<Entry> = Vec::new();
        let mut places: HashMap<Key, usize> = HashMap::new();
        for asker in &self.askers {
            let sums = self.sums(asker.stack);
            if cost.of(sums).is_zero() {
                continue;
            }
            let line = self.names.at_position(asker.position);
            let key = match group {
                Group::Function => Key::Function(self.names.source_line(line).function),
                Group::Line => Key::Line(line),
                Group::Module => Key::Module(self.names.function_of(line).module),
                Group::Stack => Key::Stack(asker.stack),
            };
            let place = *places.entry(key).or_insert_with(|| {
                entries.push(Entry {
                    line,
                    sums: Sums::default(),
                    errors: Errors::default(),
                    stacks: Vec::new(),
                });
                entries.len() - 1
            });
            let entry = &mut entries[place];
            entry.sums.add(sums);
            if let Some(errors) = self.profile.stack_errors.get(asker.stack as usize) {
                entry.errors.add(errors);
            }
            entry.stacks.push((asker.stack, asker.position));
        }
        for entry in &mut entries {
            self.sort_stacks(entry, cost);
        }
        let tie = |entry: &Entry| {
            let line = self.names.source_line(entry.line);
            (&self.names.function(line.function).name, &line.file, line.line, entry.stacks.first().copied())
        };
        entries.sort_by(|a, b| cost.of(&b.sums).cmp(&cost.of(&a.sums)).then_with(|| tie(a).cmp(&tie(b))));
        entries
    }

    /// Orders the stacks of an entry, and makes the line of the first one the entry's.
    fn sort_stacks(&self, entry: &mut Entry, cost: Cost) {
        entry.stacks.sort_by_key(|&(stack, _)| (std::cmp::Reverse(cost.of(self.sums(stack))), stack));
        if let Some(&(_, position)) = entry.stacks.first() {
            entry.line = self.names.at_position(position);
        }
    }

    /// The frames of a stack from the one that asked outwards, those that lead to `main` left out.
    #[must_use]
    pub fn frames(&mut self, stack: u32, asker: Position) -> Vec<LineId> {
        self.names.find_stacks([stack]);
        self.names.outwards(asker).map(|position| self.names.at_position(position)).collect()
    }
}
