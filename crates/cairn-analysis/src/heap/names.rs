//! Names for the frames of stacks, found as late and as rarely as can be: only for addresses that a
//! question needs.
//!
//! Finding the names of all addresses of a large program takes longer than adding up its events. So
//! questions ask in rounds: the innermost addresses of all stacks first (a few thousand), then
//! those of the callers where the innermost ones turned out to be the allocator's; whole stacks
//! only where they are shown.

mod places;

pub use places::find_common_wrappers;

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use cairn_format::recording::PcKind;
use cairn_symbols::SourceFrame;

use super::stacks::{Address, Stacks};
use crate::attribution::wrappers::FoundWrapper;
use crate::attribution::{
    Attribution, Folding, FrameFacts, Owner, OwnerKind, Verdict, depends_on_main, plain_name,
};
use crate::names::with_slashes;

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
    /// Source file of a function that an interpreter runs; none for native code. Functions of the
    /// same name in different files are different ones.
    pub script: Option<Arc<str>>,
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
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Position {
    /// The stack whose innermost address it is at.
    pub stack: u32,
    /// Which of the frames at that address, innermost first.
    pub inlined: u32,
}

/// Frames from the outermost one in which `main` is searched; Rust's is the tenth.
const FRAMES_TO_MAIN: usize = 12;
/// Addresses that are named for that; the way to `main` is the same in most stacks.
const ADDRESSES_TO_MAIN: usize = 64;
/// The frames of an address while its name is being found.
const NO_LINES: (u32, u32) = (0, 0);

/// The names of a recording's frames.
pub struct Names<'a> {
    stacks: &'a Stacks,
    namer: &'a dyn Namer,
    attribution: Attribution,
    /// By address: where its frames are in `lines`.
    known: Vec<Option<(u32, u32)>>,
    at_addresses: Vec<LineId>,
    lines: Vec<Line>,
    functions: Vec<Function>,
    /// By function: the recording shows that it is a wrapper of the allocator.
    is_found_wrapper: Vec<bool>,
    found_wrappers: Option<Vec<FoundWrapper>>,
    /// Wrappers of another heap with which this one is compared.
    wrappers_elsewhere: HashSet<Arc<str>>,
    verdicts: Vec<Verdict>,
    verdict_ids: HashMap<Verdict, u32>,
    /// Verdicts do not depend on the number of the line.
    verdict_of: HashMap<(FunctionId, Option<Arc<str>>), u32>,
    /// By line: index of its verdict.
    line_verdicts: Vec<u32>,
    /// Frames of an interpreted language were met: its interpreter says nothing any more.
    has_interpreted: bool,
    line_ids: HashMap<Line, LineId>,
    function_ids: HashMap<Function, FunctionId>,
    no_frames: LineId,
    lost: LineId,
    /// The source file of `main` was searched.
    has_main: bool,
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
            attribution: Attribution::new(stacks, folding),
            known: vec![None; stacks.addresses().len()],
            at_addresses: Vec::new(),
            lines: Vec::new(),
            functions: Vec::new(),
            is_found_wrapper: Vec::new(),
            found_wrappers: None,
            wrappers_elsewhere: HashSet::new(),
            verdicts: Vec::new(),
            verdict_ids: HashMap::new(),
            verdict_of: HashMap::new(),
            line_verdicts: Vec::new(),
            has_interpreted: false,
            line_ids: HashMap::new(),
            function_ids: HashMap::new(),
            no_frames: LineId(0),
            lost: LineId(0),
            has_main: false,
        };
        let place = |name: &str| Named { name: name.into(), is_named: false, raw_name: None, script: None };
        names.no_frames = names.line(place("[no stack]"), None, None, None);
        names.lost = names.line(place("[stack was lost]"), None, None, None);
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
        // The recording itself names the frames of interpreters, and the code of JIT compilers.
        wanted.retain(|&index| {
            let Some(address) = self.stacks.address(index) else { return true };
            let generated = self.stacks.generated_name(index).cloned();
            match generated.or_else(|| self.stacks.interpreted_frame(address)) {
                Some(frame) => {
                    self.keep(index, address, vec![frame]);
                    false
                }
                None => true,
            }
        });
        let asked: Vec<&Address> = wanted.iter().filter_map(|&index| self.stacks.address(index)).collect();
        let mut answers = self.namer.name(self.stacks, &asked).into_iter();
        for (&index, &address) in wanted.iter().zip(&asked) {
            self.keep(index, address, answers.next().unwrap_or_default());
        }
    }

    /// Finds the source file of the program's `main`, by which its own sources are recognised.
    fn find_main(&mut self) {
        if std::mem::replace(&mut self.has_main, true) || self.folding().rules().internals {
            return;
        }
        let program = self.stacks.program();
        let is_programs = |index: &u32| {
            let address = self.stacks.address(*index);
            program.is_some()
                && address.and_then(|address| address.module).map(|(module, _)| module) == program
        };
        let outermost = self.stacks.outermost(FRAMES_TO_MAIN);
        let asked: Vec<u32> = outermost.into_iter().filter(is_programs).take(ADDRESSES_TO_MAIN).collect();
        let asked: Vec<&Address> = asked.iter().filter_map(|&index| self.stacks.address(index)).collect();
        let answers = self.namer.name(self.stacks, &asked);
        let is_main = |frame: &&SourceFrame| {
            let is_rust = frame.file.as_deref().is_some_and(|file| file.ends_with(".rs"));
            // Rust's own `main` for the C library has no file.
            let is_named =
                |name: &str| if is_rust { name.ends_with("::main") } else { plain_name(name) == "main" };
            frame.function.as_deref().is_some_and(is_named)
        };
        let mut mains = answers.iter().flatten().filter(is_main);
        if let Some(file) = mains.find_map(|frame| frame.file.as_deref()) {
            self.attribution.set_main(file);
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
        // Then it matters which of the sources are the program's own.
        let depends = |frame: &SourceFrame| {
            let file = frame.file.as_deref();
            file.is_some_and(|file| depends_on_main(frame.function.as_deref().unwrap_or(""), file))
        };
        if !self.has_main && frames.iter().any(depends) {
            self.find_main();
        }
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
            let script = frame.file.clone().filter(|_| address.kind == PcKind::Interpreted);
            let named = Named { name, is_named, raw_name: frame.raw_name.as_deref(), script };
            let line = self.line(named, module, frame.file.clone(), frame.line);
            // A compiler that inlines a recursion names the same line twice.
            self.at_addresses.push(line);
            outermost = Some(line);
        }
        if outermost.is_none() {
            let name = self.stand_in(address);
            let named = Named { name, is_named: false, raw_name: None, script: None };
            let line = self.line(named, module, None, None);
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
            PcKind::Interpreted => return format!("[Python code {}]", address.absolute >> 32).into(),
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
        named: Named<'_>,
        module: Option<u32>,
        file: Option<Arc<str>>,
        line: Option<u32>,
    ) -> LineId {
        let Named { name, is_named, raw_name, script } = named;
        let function = Function { name, module, is_named, script };
        let function = match self.function_ids.get(&function) {
            Some(&id) => id,
            None => {
                let id = FunctionId(self.functions.len() as u32);
                let may_wrap = is_named && function.script.is_none();
                self.is_found_wrapper.push(may_wrap && self.wrappers_elsewhere.contains(&function.name));
                self.functions.push(function.clone());
                self.function_ids.insert(function, id);
                id
            }
        };
        let line = Line { function, file, line };
        if let Some(&id) = self.line_ids.get(&line) {
            return id;
        }
        let id = LineId(self.lines.len() as u32);
        let verdict = self.verdict_id(&line, raw_name);
        self.line_verdicts.push(verdict);
        self.lines.push(line.clone());
        self.line_ids.insert(line, id);
        id
    }

    /// Decides about the frames of a function in a file, once.
    fn verdict_id(&mut self, line: &Line, raw_name: Option<&str>) -> u32 {
        let key = (line.function, line.file.clone());
        if let Some(&known) = self.verdict_of.get(&key) {
            return known;
        }
        let function = &self.functions[line.function.index()];
        let file = line.file.as_deref().map(with_slashes);
        let verdict = self.attribution.verdict(&FrameFacts {
            function: &function.name,
            is_named: function.is_named,
            raw_name,
            file: file.as_deref(),
            module: function.module,
        });
        self.has_interpreted |= verdict.is_interpreted;
        let next = self.verdicts.len() as u32;
        let id = *self.verdict_ids.entry(verdict.clone()).or_insert(next);
        if id == next {
            self.verdicts.push(verdict);
        }
        self.verdict_of.insert(key, id);
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
}

/// A name as it was found.
struct Named<'n> {
    name: Arc<str>,
    is_named: bool,
    raw_name: Option<&'n str>,
    /// The source file of a function that an interpreter runs.
    script: Option<Arc<str>>,
}
