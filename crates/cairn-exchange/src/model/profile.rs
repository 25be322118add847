//! Stacks of named frames with numbers: the model that most formats are written from and read into.

use std::collections::HashMap;
use std::sync::Arc;

use cairn_analysis::heap::{
    Address, Asker, LOST_STACK, LineId, NO_FRAMES, Names, Position, Questions, Stacks, Sums,
};
use cairn_format::Hexadecimal;

/// The unit of a column.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Unit {
    /// Bytes of memory.
    Bytes,
    /// A number of things.
    Count,
}

impl Unit {
    /// Returns the unit's name in exported formats.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bytes => "bytes",
            Self::Count => "count",
        }
    }
}

/// A number that every stack has.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Column {
    /// Name in pprof, as `inuse_space`.
    pub name: Arc<str>,
    /// Unit of its values.
    pub unit: Unit,
    /// Title for display, as `Not freed`.
    pub title: Arc<str>,
}

/// A file that contains code.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct Module {
    /// Path on the recorded machine.
    pub path: Arc<str>,
    /// Build id in hexadecimal; empty if it has none.
    pub build_id: String,
    /// Lowest used address.
    pub start: u64,
    /// End of the highest used address.
    pub end: u64,
}

impl Module {
    /// Returns the last component of the path.
    #[must_use]
    pub fn name(&self) -> &str {
        cairn_analysis::names::file_name(self.path.trim_end_matches('/'))
    }
}

/// A function.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub struct Function {
    /// Readable name.
    pub name: Arc<str>,
    /// Source file.
    pub file: Option<Arc<str>>,
}

/// A line of a function.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub struct Line {
    /// Index of the function.
    pub function: u32,
    /// Line in its file; 0 if unknown.
    pub line: u32,
}

/// A code address, with the lines that the compiler generated there.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Location {
    /// Address as the module's file counts; 0 if it has none.
    pub address: u64,
    /// Index of the module.
    pub module: Option<u32>,
    /// Innermost inlined call first; never empty.
    pub lines: Vec<Line>,
}

/// A location and its caller's stack; the outermost has no caller.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub struct Stack {
    /// Index of the caller's stack; always smaller than that of this one.
    pub caller: Option<u32>,
    /// Index of the innermost location.
    pub location: u32,
}

/// The values of a stack.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Sample {
    /// Index of the stack; `None` without frames.
    pub stack: Option<u32>,
    /// One value per column.
    pub values: Vec<u64>,
}

/// Stacks of named frames, with values for each.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct Profile {
    /// Remarks on the values, for formats that can store them.
    pub notes: Vec<String>,
    /// The command that was run.
    pub title: String,
    /// Process id, if known.
    pub process: u32,
    /// Start in nanoseconds since 1970; 0 if unknown.
    pub started_wall_nanos: u64,
    /// Duration in nanoseconds.
    pub duration_nanos: u64,
    /// Names and units of the values.
    pub columns: Vec<Column>,
    /// Index of the default column.
    pub main_column: usize,
    /// Files with code.
    pub modules: Vec<Module>,
    /// Functions.
    pub functions: Vec<Function>,
    /// Code addresses.
    pub locations: Vec<Location>,
    /// Stacks, callers first.
    pub stacks: Vec<Stack>,
    /// Values; each stack at most once.
    pub samples: Vec<Sample>,
}

/// Returns the columns of a heap profile.
#[must_use]
pub fn heap_columns() -> Vec<Column> {
    let column = |name: &str, unit, title: &str| Column { name: name.into(), unit, title: title.into() };
    vec![
        column("alloc_objects", Unit::Count, "Allocations"),
        column("alloc_space", Unit::Bytes, "Allocated"),
        column("inuse_objects", Unit::Count, "Blocks not freed"),
        column("inuse_space", Unit::Bytes, "Not freed"),
        column("peak_objects", Unit::Count, "Blocks at the peak"),
        column("peak_space", Unit::Bytes, "Held at the peak"),
        column("temporary_objects", Unit::Count, "Temporary allocations"),
    ]
}

/// Returns the values for [`heap_columns`].
#[must_use]
pub fn heap_values(sums: &Sums) -> Vec<u64> {
    vec![
        sums.allocations,
        sums.allocated_bytes,
        sums.live_blocks,
        sums.live_bytes,
        sums.peak_blocks,
        sums.peak_bytes,
        sums.temporary,
    ]
}

/// Index in [`heap_columns`] of the default column.
const PEAK_SPACE: usize = 5;

impl Profile {
    /// Makes a line for a location without a name: `module+0x1234`.
    pub(crate) fn line_without_name(&mut self, address: u64, module: Option<u32>) -> Line {
        let module = module.and_then(|module| self.modules.get(module as usize));
        let name = match module {
            Some(module) => format!("{}+{:#x}", module.name(), address.wrapping_sub(module.start)),
            None => format!("{address:#x}"),
        };
        self.functions.push(Function { name: name.into(), file: None });
        Line { function: self.functions.len() as u32 - 1, line: 0 }
    }

    /// Builds the profile of a heap, and a map from the recording's stacks to the profile's.
    ///
    /// Names are folded as in `questions`.
    #[must_use]
    pub fn of_heap(questions: &mut Questions<'_>) -> (Self, HashMap<u32, Option<u32>>) {
        let profile = questions.profile();
        let askers: Vec<Asker> = questions
            .askers()
            .iter()
            .copied()
            .filter(|asker| !questions.sums(asker.stack).is_empty())
            .collect();
        let rows: Vec<(Asker, Vec<u64>)> =
            askers.into_iter().map(|asker| (asker, heap_values(questions.sums(asker.stack)))).collect();
        let (mut built, at) = HeapProfileBuilder::new(questions.names_mut()).build(&rows);
        built.columns = heap_columns();
        built.main_column = PEAK_SPACE;
        built.duration_nanos = profile.end_nanos;
        (built, at)
    }

    /// Returns the sum of a column.
    #[must_use]
    pub fn total(&self, column: usize) -> u64 {
        let values = self.samples.iter().filter_map(|sample| sample.values.get(column));
        values.fold(0, |sum, &value| sum.saturating_add(value))
    }

    /// Returns the locations of a stack, innermost first.
    pub fn locations_of(&self, stack: Option<u32>) -> impl Iterator<Item = u32> {
        let at = |index: Option<u32>| self.stacks.get(index? as usize).copied();
        std::iter::successors(at(stack), move |stack| at(stack.caller)).map(|stack| stack.location)
    }

    /// Returns the lines of a stack, innermost first, with inlined calls.
    pub fn lines_of(&self, stack: Option<u32>) -> impl Iterator<Item = (Line, Option<u32>)> {
        self.locations_of(stack)
            .filter_map(|index| self.locations.get(index as usize))
            .flat_map(|location| location.lines.iter().map(move |&line| (line, location.module)))
    }

    /// Returns the name of a line's function, or a placeholder if the index is invalid.
    #[must_use]
    pub fn function_name(&self, line: Line) -> &str {
        self.name_of(line.function)
    }

    /// Returns the name of a function by its index.
    pub(crate) fn name_of(&self, function: u32) -> &str {
        self.functions.get(function as usize).map_or("?", |function| &function.name)
    }

    /// Selects columns, in this order; the first becomes the default. Unknown names are ignored.
    #[must_use]
    pub fn with_columns(mut self, names: &[&str]) -> Self {
        let retained: Vec<usize> = names.iter().filter_map(|name| self.column(name)).collect();
        self.columns = retained.iter().map(|&index| self.columns[index].clone()).collect();
        for sample in &mut self.samples {
            sample.values =
                retained.iter().map(|&index| sample.values.get(index).copied().unwrap_or(0)).collect();
        }
        self.main_column = 0;
        self
    }

    /// Finds a column by name.
    #[must_use]
    pub fn column(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| &*column.name == name)
    }

    /// Builds a tree of functions without lines and addresses, for viewers with one name per frame.
    ///
    /// Children follow their callers.
    #[must_use]
    pub fn function_tree(&self) -> Vec<TreeNode> {
        let mut nodes = vec![TreeNode { function: u32::MAX, caller: None, own: vec![0; self.columns.len()] }];
        let mut known: HashMap<(u32, u32), u32> = HashMap::new();
        // The tree node of each stack's innermost frame. Callers come first, so each is known when
        // needed.
        let mut at_stack: Vec<u32> = Vec::with_capacity(self.stacks.len());
        for stack in &self.stacks {
            let mut node =
                stack.caller.and_then(|caller| at_stack.get(caller as usize)).copied().unwrap_or(0);
            let lines =
                self.locations.get(stack.location as usize).map_or(&[][..], |location| &location.lines);
            for line in lines.iter().rev() {
                node = *known.entry((node, line.function)).or_insert_with(|| {
                    nodes.push(TreeNode {
                        function: line.function,
                        caller: Some(node),
                        own: vec![0; self.columns.len()],
                    });
                    nodes.len() as u32 - 1
                });
            }
            at_stack.push(node);
        }
        for sample in &self.samples {
            let node = sample.stack.and_then(|stack| at_stack.get(stack as usize)).copied().unwrap_or(0);
            for (sum, value) in nodes[node as usize].own.iter_mut().zip(&sample.values) {
                *sum = sum.saturating_add(*value);
            }
        }
        nodes
    }
}

/// A function, with the calls that led to it.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct TreeNode {
    /// Index of the function; `u32::MAX` for the root.
    pub function: u32,
    /// Index of the calling node; `None` for the root.
    pub caller: Option<u32>,
    /// Values of the stacks that end here, by column.
    pub own: Vec<u64>,
}

/// The address of lines.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Site {
    /// The address of this index.
    Address(u32),
    /// None: the stack was lost.
    None(u32),
}

/// Converts positions in a recording's stacks to the tables of a [`Profile`].
struct HeapProfileBuilder<'n, 'a> {
    names: &'n mut Names<'a>,
    profile: Profile,
    functions: HashMap<Function, u32>,
    /// A stack may start or end within inlined calls, so the key includes the first frame and their
    /// number.
    locations: HashMap<(Site, u32, usize), u32>,
    stacks: HashMap<Stack, u32>,
    /// Stacks by innermost position: callers are shared, because recursion can be deep.
    known: HashMap<Position, u32>,
    samples: HashMap<Option<u32>, usize>,
}

impl<'n, 'a> HeapProfileBuilder<'n, 'a> {
    fn new(names: &'n mut Names<'a>) -> Self {
        Self {
            names,
            profile: Profile::default(),
            functions: HashMap::new(),
            locations: HashMap::new(),
            stacks: HashMap::new(),
            known: HashMap::new(),
            samples: HashMap::new(),
        }
    }

    fn build(mut self, rows: &[(Asker, Vec<u64>)]) -> (Profile, HashMap<u32, Option<u32>>) {
        let mut at = HashMap::new();
        let stacks = self.names.stacks();
        self.profile.modules = modules_of(stacks);
        self.names
            .find_stacks(rows.iter().map(|(asker, _)| asker.stack).filter(|&stack| stack != LOST_STACK));
        for (asker, values) in rows {
            let stack = self.stack(asker.end);
            at.insert(asker.stack, stack);
            let index = *self.samples.entry(stack).or_insert_with(|| {
                self.profile.samples.push(Sample { stack, values: vec![0; values.len()] });
                self.profile.samples.len() - 1
            });
            let sums = &mut self.profile.samples[index].values;
            for (sum, value) in sums.iter_mut().zip(values) {
                *sum = sum.saturating_add(*value);
            }
        }
        (self.profile, at)
    }

    /// Returns the stack from a position outwards.
    fn stack(&mut self, position: Position) -> Option<u32> {
        let mut caller = None;
        // Groups frames by address, up to an address whose stack is known.
        let mut groups: Vec<Vec<Position>> = Vec::new();
        for position in self.names.outwards(position) {
            match groups.last_mut() {
                Some(group) if group[0].stack == position.stack => group.push(position),
                _ => {
                    caller = self.known.get(&position).copied();
                    if caller.is_some() {
                        break;
                    }
                    groups.push(vec![position]);
                }
            }
        }
        for group in groups.into_iter().rev() {
            let lines: Vec<LineId> = group.iter().map(|&position| self.names.at_position(position)).collect();
            let location = self.location(group[0], &lines);
            let stack = Stack { caller, location };
            let index = match self.stacks.get(&stack) {
                Some(&known) => known,
                None => {
                    let index = self.profile.stacks.len() as u32;
                    self.profile.stacks.push(stack);
                    self.stacks.insert(stack, index);
                    index
                }
            };
            self.known.insert(group[0], index);
            caller = Some(index);
        }
        caller
    }

    fn location(&mut self, innermost: Position, lines: &[LineId]) -> u32 {
        let stacks = self.names.stacks();
        let address = match innermost.stack {
            LOST_STACK | NO_FRAMES => None,
            stack => stacks.innermost(stack),
        };
        let site = address.map_or(Site::None(innermost.stack), Site::Address);
        let key = (site, innermost.inlined, lines.len());
        if let Some(&known) = self.locations.get(&key) {
            return known;
        }
        let lines = lines.iter().map(|&line| self.line(line)).collect();
        let place = address.and_then(|address| stacks.address(address));
        let location = Location {
            address: place.map_or(0, |address| address.stated),
            module: place.and_then(|address| address.module).map(|(module, _)| module),
            lines,
        };
        let index = self.profile.locations.len() as u32;
        self.profile.locations.push(location);
        self.locations.insert(key, index);
        index
    }

    fn line(&mut self, id: LineId) -> Line {
        let line = self.names.source_line(id);
        let name = Arc::clone(&self.names.function_of(id).name);
        let (function, number) = (Function { name, file: line.file.clone() }, line.line.unwrap_or(0));
        let index = match self.functions.get(&function) {
            Some(&known) => known,
            None => {
                let index = self.profile.functions.len() as u32;
                self.profile.functions.push(function.clone());
                self.functions.insert(function, index);
                index
            }
        };
        Line { function: index, line: number }
    }
}

fn modules_of(stacks: &Stacks) -> Vec<Module> {
    let mut modules: Vec<Module> = stacks
        .modules()
        .iter()
        .map(|module| Module {
            path: module.path.as_str().into(),
            build_id: Hexadecimal(&module.build_id).to_string(),
            start: u64::MAX,
            end: 0,
        })
        .collect();
    for Address { stated, module, .. } in stacks.addresses() {
        if let Some(module) = module.and_then(|(module, _)| modules.get_mut(module as usize)) {
            module.start = module.start.min(*stated);
            module.end = module.end.max(stated.saturating_add(1));
        }
    }
    for module in &mut modules {
        module.start = module.start.min(module.end);
    }
    modules
}
