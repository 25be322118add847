//! Names for the frames of stacks, found as late and as rarely as can be: only for addresses that a
//! question needs.
//!
//! Finding the names of all addresses of a large program takes longer than adding up its events. So
//! questions ask in rounds: the innermost addresses of all stacks first (a few thousand), then
//! those of the callers where the innermost ones turned out to be the allocator's; whole stacks
//! only where they are shown.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use cairn_format::recording::PcKind;
use cairn_symbols::SourceFrame;

use super::internals::{Role, role_of};
use super::stacks::{Address, NO_FRAMES, Stacks};

/// Something that knows the source frames of addresses.
pub trait Namer {
    /// Names each address: innermost inlined call first, the function that holds the address last.
    ///
    /// An entry is empty when nothing is known of its address.
    fn name(&self, stacks: &Stacks, addresses: &[&Address]) -> Vec<Vec<SourceFrame>>;
}

/// Knows no names: frames are called by module and offset.
#[derive(Clone, Copy, Debug)]
pub struct NoNames;

impl Namer for NoNames {
    fn name(&self, _stacks: &Stacks, addresses: &[&Address]) -> Vec<Vec<SourceFrame>> {
        vec![Vec::new(); addresses.len()]
    }
}

/// Number of a [`Function`] in its [`Names`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FunctionId(u32);

impl FunctionId {
    pub(super) const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Number of a [`Line`] in its [`Names`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LineId(u32);

impl LineId {
    pub(super) const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A function of a module.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Function {
    /// Readable name, or a place without a name: `module+0x1234`, `[stack was lost]`.
    pub name: Arc<str>,
    /// Index of its module; none for addresses outside of all modules, and for what is no function.
    pub module: Option<u32>,
    /// False when the name is only a place, because nothing else is known.
    pub is_named: bool,
}

/// A line of a function.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Line {
    /// The function that the line is part of, inlined or not.
    pub function: FunctionId,
    /// Source file as the compiler wrote it.
    pub file: Option<Arc<str>>,
    /// Line in the source file, from 1.
    pub line: Option<u32>,
}

/// Where in the tree of stacks a source frame is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Position {
    /// The stack whose innermost address it is at.
    pub stack: u32,
    /// Which of the frames at that address, innermost first.
    pub inlined: u32,
}

/// Frames that are left out of stacks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Folding {
    /// The innermost run of frames that belong to the allocator.
    pub allocator: bool,
    /// The outermost run of frames that lead to `main` or to a thread's function.
    pub startup: bool,
}

impl Default for Folding {
    fn default() -> Self {
        Self { allocator: true, startup: true }
    }
}

/// The frames of an address while its name is being found.
const NO_LINES: (u32, u32) = (0, 0);

/// The names of a recording's frames.
pub struct Names<'a> {
    stacks: &'a Stacks,
    namer: &'a dyn Namer,
    folding: Folding,
    /// By address: where its frames are in `lines`.
    known: Vec<Option<(u32, u32)>>,
    at_addresses: Vec<LineId>,
    lines: Vec<Line>,
    functions: Vec<Function>,
    roles: Vec<Role>,
    line_ids: HashMap<Line, LineId>,
    function_ids: HashMap<(Arc<str>, Option<u32>), FunctionId>,
    no_frames: LineId,
    lost: LineId,
}

impl std::fmt::Debug for Names<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Names").field("functions", &self.functions.len()).finish_non_exhaustive()
    }
}

impl<'a> Names<'a> {
    /// Names that were not asked for yet.
    #[must_use]
    pub fn new(stacks: &'a Stacks, namer: &'a dyn Namer, folding: Folding) -> Self {
        let mut names = Self {
            stacks,
            namer,
            folding,
            known: vec![None; stacks.addresses().len()],
            at_addresses: Vec::new(),
            lines: Vec::new(),
            functions: Vec::new(),
            roles: Vec::new(),
            line_ids: HashMap::new(),
            function_ids: HashMap::new(),
            no_frames: LineId(0),
            lost: LineId(0),
        };
        names.no_frames = names.line("[no stack]".into(), false, None, None, None);
        names.lost = names.line("[stack was lost]".into(), false, None, None, None);
        names
    }

    /// The stacks that are named.
    #[must_use]
    pub fn stacks(&self) -> &'a Stacks {
        self.stacks
    }

    /// The function of this number.
    #[must_use]
    pub fn function(&self, id: FunctionId) -> &Function {
        &self.functions[id.0 as usize]
    }

    /// The line of this number.
    #[must_use]
    pub fn source_line(&self, id: LineId) -> &Line {
        &self.lines[id.0 as usize]
    }

    /// The function of a line.
    #[must_use]
    pub fn function_of(&self, id: LineId) -> &Function {
        self.function(self.source_line(id).function)
    }

    /// Name of the module of a line's function; empty for none.
    #[must_use]
    pub fn module_name(&self, id: LineId) -> &'a str {
        self.module(self.function_of(id).module)
    }

    /// Path of the module of a line's function; empty for none.
    #[must_use]
    pub fn module_path(&self, id: LineId) -> &'a str {
        let module = self.function_of(id).module;
        module.and_then(|module| self.stacks.modules().get(module as usize)).map_or("", |module| &module.path)
    }

    /// Name of the module of this index; empty for none.
    #[must_use]
    pub fn module(&self, module: Option<u32>) -> &'a str {
        module
            .and_then(|module| self.stacks.modules().get(module as usize))
            .map_or("", super::stacks::Module::name)
    }

    /// Finds the names of these addresses, all at once.
    pub fn find(&mut self, addresses: impl IntoIterator<Item = u32>) {
        let mut wanted = Vec::new();
        for index in addresses {
            // The same addresses are asked for again and again: each is taken once, before there is
            // something to sort.
            if let Some(known @ None) = self.known.get_mut(index as usize) {
                *known = Some(NO_LINES);
                wanted.push(index);
            }
        }
        wanted.sort_unstable();
        if wanted.is_empty() {
            return;
        }
        wanted.retain(|&index| match (self.stacks.address(index), self.stacks.generated_name(index)) {
            (Some(address), Some(frame)) => {
                self.keep(index, address, vec![frame.clone()]);
                false
            }
            _ => true,
        });
        let asked: Vec<&Address> = wanted.iter().filter_map(|&index| self.stacks.address(index)).collect();
        let mut answers = self.namer.name(self.stacks, &asked).into_iter();
        for (&index, &address) in wanted.iter().zip(&asked) {
            self.keep(index, address, answers.next().unwrap_or_default());
        }
    }

    /// Finds the names of all addresses of these stacks.
    pub fn find_stacks(&mut self, stacks: impl IntoIterator<Item = u32>) {
        let mut seen = vec![false; self.stacks.len()];
        let mut wanted = Vec::new();
        for stack in stacks {
            for on_path in self.stacks.path(stack) {
                if std::mem::replace(&mut seen[on_path as usize], true) {
                    break;
                }
                wanted.extend(self.stacks.innermost(on_path));
            }
        }
        self.find(wanted);
    }

    fn keep(&mut self, index: u32, address: &Address, frames: Vec<SourceFrame>) {
        let start = self.at_addresses.len() as u32;
        let module = address.module.map(|(module, _)| module);
        let mut outermost = None;
        for frame in &frames {
            let name = frame.function.clone().filter(|name| !name.is_empty());
            // Where only the start of a function is known, symbol files call it so.
            let represents = |name: &str| {
                name.strip_prefix(self.module(module)).is_some_and(|rest| rest.starts_with("+0x"))
            };
            let is_named = name.as_deref().is_some_and(|name| !represents(name));
            let name = name.unwrap_or_else(|| self.stand_in(address));
            let line = self.line(name, is_named, module, frame.file.clone(), frame.line);
            // A compiler that inlines a recursion names the same line twice.
            self.at_addresses.push(line);
            outermost = Some(line);
        }
        if outermost.is_none() {
            let line = self.line(self.stand_in(address), false, module, None, None);
            self.at_addresses.push(line);
        }
        let place = (start, self.at_addresses.len() as u32);
        if let Some(known) = self.known.get_mut(index as usize) {
            *known = Some(place);
        }
    }

    /// Returns a name for an address about which nothing is known.
    fn stand_in(&self, address: &Address) -> Arc<str> {
        let reason = match address.kind {
            PcKind::ReturnAddress | PcKind::ReturnWithoutTables | PcKind::ProgramCounter => None,
            PcKind::NoUnwindInfo => Some("no unwind information"),
            PcKind::BadUnwindInfo => Some("unreadable unwind information"),
            PcKind::UnreadableMemory => Some("unreadable memory"),
            PcKind::NoProgress => Some("the next frame was the same one"),
            PcKind::OutsideStack => Some("the next frame was outside of the stack"),
            PcKind::UnknownRegister => Some("a register's value was not known"),
            PcKind::Limit => Some("the stack is too deep"),
            _ => Some("for a reason that this cairn does not know"),
        };
        let place = match address.module {
            Some((module, offset)) => format!("{}+{offset:#x}", self.module(Some(module))),
            None => format!("{:#x}", address.absolute),
        };
        match reason {
            Some(reason) if address.kind == PcKind::Limit => format!("[cut: {reason}]").into(),
            Some(reason) => format!("[ends at {place}: {reason}]").into(),
            None => place.into(),
        }
    }

    fn line(
        &mut self,
        name: Arc<str>,
        is_named: bool,
        module: Option<u32>,
        file: Option<Arc<str>>,
        line: Option<u32>,
    ) -> LineId {
        let function = match self.function_ids.get(&(Arc::clone(&name), module)) {
            Some(&id) => id,
            None => {
                let id = FunctionId(self.functions.len() as u32);
                self.roles.push(if is_named { role_of(&name) } else { Role::Ordinary });
                self.functions.push(Function { name: Arc::clone(&name), module, is_named });
                self.function_ids.insert((name, module), id);
                id
            }
        };
        let line = Line { function, file, line };
        if let Some(&id) = self.line_ids.get(&line) {
            return id;
        }
        let id = LineId(self.lines.len() as u32);
        self.lines.push(line.clone());
        self.line_ids.insert(line, id);
        id
    }

    /// Returns the modules whose functions met so far mostly have no name.
    ///
    /// Those with the most such functions come first.
    #[must_use]
    pub fn mostly_unnamed(&self) -> Vec<&'a str> {
        let mut met: BTreeMap<u32, (usize, usize)> = BTreeMap::new();
        for function in &self.functions {
            // Where a walk ended is no function.
            let is_place = function.name.starts_with('[');
            if let Some(module) = function.module.filter(|_| !is_place) {
                let (named, unnamed) = met.entry(module).or_default();
                *if function.is_named { named } else { unnamed } += 1;
            }
        }
        let mut unnamed: Vec<(u32, usize)> = met
            .into_iter()
            .filter_map(|(module, (named, unnamed))| (unnamed > named).then_some((module, unnamed)))
            .collect();
        unnamed.sort_by_key(|&(_, functions)| Reverse(functions));
        // Mappings of the kernel itself, such as `[vdso]`, have no debug file.
        let names = unnamed.into_iter().map(|(module, _)| self.module(Some(module)));
        names.filter(|name| !name.starts_with('[')).collect()
    }

    /// The frames at an address, innermost first; empty when its names were not asked for.
    #[must_use]
    pub fn at_address(&self, address: u32) -> &[LineId] {
        match self.known.get(address as usize) {
            Some(&Some((start, end))) => &self.at_addresses[start as usize..end as usize],
            _ => &[],
        }
    }

    /// The frames at the innermost address of a stack.
    #[must_use]
    pub fn at(&self, stack: u32) -> &[LineId] {
        self.stacks.innermost(stack).map_or(&[], |address| self.at_address(address))
    }

    /// The frame at a position.
    #[must_use]
    pub fn at_position(&self, position: Position) -> LineId {
        match position.stack {
            super::LOST_STACK => self.lost,
            stack => self.at(stack).get(position.inlined as usize).copied().unwrap_or(self.no_frames),
        }
    }

    fn is(&self, line: LineId, role: Role) -> bool {
        self.roles.get(self.source_line(line).function.0 as usize) == Some(&role)
    }

    /// Finds, for each stack, the position responsible for its memory.
    ///
    /// That is the innermost frame that is not the allocator's. It finds only the names that are
    /// needed for that.
    pub fn askers(&mut self, stacks: &[u32]) -> Vec<Position> {
        let mut positions: Vec<Position> =
            stacks.iter().map(|&stack| Position { stack, inlined: 0 }).collect();
        let mut open: Vec<usize> = (0..stacks.len()).collect();
        while !open.is_empty() {
            self.find(open.iter().filter_map(|&index| self.stacks.innermost(positions[index].stack)));
            open.retain(|&index| self.step_outwards(stacks[index], &mut positions[index]));
        }
        positions
    }

    /// Moves to the innermost ordinary frame at this address, or to the caller.
    ///
    /// Returns true when that frame needs another check.
    fn step_outwards(&self, whole: u32, position: &mut Position) -> bool {
        let frames = self.at(position.stack);
        let allocator = |line: &LineId| self.folding.allocator && self.is(*line, Role::Allocator);
        match frames.iter().position(|line| !allocator(line)) {
            Some(inlined) => {
                position.inlined = inlined as u32;
                false
            }
            None => match self.stacks.parent(position.stack) {
                Some(parent) if parent != NO_FRAMES => {
                    position.stack = parent;
                    true
                }
                // There is nothing but the allocator: then it is the answer.
                _ => {
                    *position = Position { stack: whole, inlined: 0 };
                    false
                }
            },
        }
    }

    /// The next outer position, folded frames left out; `None` at the outermost one. The names of
    /// the whole stack must have been asked for.
    #[must_use]
    pub fn caller(&self, position: Position) -> Option<Position> {
        let next = self.next_outer(position)?;
        let after_startup = self.is_folded_startup(self.at_position(position));
        (!self.is_startup_from(next, after_startup)).then_some(next)
    }

    fn next_outer(&self, position: Position) -> Option<Position> {
        if (position.inlined as usize) + 1 < self.at(position.stack).len() {
            return Some(Position { inlined: position.inlined + 1, ..position });
        }
        let parent = self.stacks.parent(position.stack).filter(|&parent| parent != NO_FRAMES)?;
        Some(Position { stack: parent, inlined: 0 })
    }

    /// True when from here to the outermost frame nothing but start-up is left. The outermost one,
    /// `_start`, has no name in programs without symbols.
    fn is_startup_from(&self, position: Position, mut after_startup: bool) -> bool {
        let mut outwards =
            std::iter::successors(Some(position), |&position| self.next_outer(position)).peekable();
        while let Some(position) = outwards.next() {
            let line = self.at_position(position);
            let is_start = after_startup && outwards.peek().is_none() && !self.function_of(line).is_named;
            if !self.is_folded_startup(line) && !is_start {
                return false;
            }
            after_startup = true;
        }
        self.folding.startup
    }

    /// Finds what [`caller`](Self::caller) needs to know of these positions' callers.
    pub fn find_callers(&mut self, positions: &[Position]) {
        let outer =
            |position: &Position| self.stacks.parent(position.stack).filter(|&parent| parent != NO_FRAMES);
        let mut open: Vec<u32> = positions.iter().filter_map(outer).collect();
        // Only where a frame is one of start-up does it matter what comes further out.
        while !open.is_empty() {
            open.sort_unstable();
            open.dedup();
            self.find(open.iter().filter_map(|&stack| self.stacks.innermost(stack)));
            let leads_on = |stack: &u32| {
                self.folding.startup && self.at(*stack).iter().all(|&line| self.is(line, Role::Startup))
            };
            open.retain(leads_on);
            open = open
                .iter()
                .filter_map(|&stack| self.stacks.parent(stack))
                .filter(|&p| p != NO_FRAMES)
                .collect();
        }
    }

    /// True when the frame at the position leads to `main` or to a thread's function.
    ///
    /// Such frames are left out.
    #[must_use]
    pub fn is_folded_startup(&self, line: LineId) -> bool {
        self.folding.startup && self.is(line, Role::Startup)
    }

    /// The frames from a position outwards, folded ones left out.
    pub fn outwards(&self, position: Position) -> impl Iterator<Item = Position> {
        std::iter::successors(Some(position), |&position| self.caller(position))
    }
}
