//! The stacks of a recording, as analysis needs them: a tree of numbered addresses, with their
//! modules.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::code_names::{CodeNames, lookup_address};
use crate::names::file_name;
use cairn_format::recording::{LineTableFormat, PcKind};
use cairn_memory::python::PythonCode;
use cairn_symbols::SourceFrame;
use cairn_wire::python_lines::line_at;

/// Stacks as nodes of a tree: node 0 is the empty stack, every other node adds one inner call.
///
/// Parents have smaller numbers than their children, so one pass over an array visits the tree in
/// order, without recursion.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Stacks {
    nodes: Vec<Node>,
    addresses: Vec<Address>,
    modules: Vec<Module>,
    codes: BTreeMap<u32, InterpretedCode>,
    /// By address: the name of code that a JIT compiler made.
    generated: BTreeMap<u32, SourceFrame>,
    program: Option<u32>,
}

/// Code of an interpreter, in which addresses of the kind [`PcKind::Interpreted`] lie.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InterpretedCode {
    /// Source file, as the interpreter names it.
    pub file: Arc<str>,
    /// Name of the function, qualified where the interpreter knows that.
    pub function: Arc<str>,
    /// The line that the line table begins with.
    pub first_line: u32,
    /// Encoding of the line table.
    pub format: LineTableFormat,
    /// The line table.
    pub line_table: Vec<u8>,
}

impl InterpretedCode {
    /// Returns the code of an interpreter in a recording.
    #[must_use]
    pub fn of_recording(code: &cairn_recording::Code) -> Self {
        let text = |bytes: &[u8]| Arc::from(String::from_utf8_lossy(bytes));
        Self {
            file: text(&code.file),
            function: text(&code.name),
            first_line: code.first_line,
            format: code.format,
            line_table: code.line_table.clone(),
        }
    }

    /// Returns the code of a Python function in an image of memory. A name that the image does not
    /// have is [`PythonCode::NO_NAME`].
    #[must_use]
    pub fn of_image(code: &PythonCode) -> Self {
        let text = |bytes: &Option<Vec<u8>>, missing: &str| match bytes {
            Some(bytes) => Arc::from(String::from_utf8_lossy(bytes)),
            None => Arc::from(missing),
        };
        // An empty table of this format has no lines; one of the others has the first line.
        let format = if code.line_table.is_some() { code.format } else { LineTableFormat::Python311 };
        Self {
            file: text(&code.file, ""),
            function: text(&code.name, PythonCode::NO_NAME),
            first_line: code.first_line.unwrap_or(0),
            format,
            line_table: code.line_table.clone().unwrap_or_default(),
        }
    }

    /// Returns the placeholder for code that an image of memory does not have.
    pub(crate) fn unreadable() -> Self {
        Self {
            file: Arc::from(""),
            function: Arc::from(PythonCode::NO_CODE),
            first_line: 0,
            // An empty table of this format has no lines.
            format: LineTableFormat::Python311,
            line_table: Vec::new(),
        }
    }

    /// Names the frame whose instruction is at a byte offset.
    #[must_use]
    pub fn source_frame(&self, offset: u32) -> SourceFrame {
        let mut frame = SourceFrame::default();
        frame.function = Some(Arc::clone(&self.function));
        frame.file = Some(Arc::clone(&self.file)).filter(|file| !file.is_empty());
        frame.line = self.line_at(offset);
        frame
    }

    /// Returns the line of the instruction at a byte offset. `None` for an instruction that the
    /// interpreter added.
    #[must_use]
    pub fn line_at(&self, offset: u32) -> Option<u32> {
        /// Offset of a frame that has not begun its first instruction.
        const NOT_BEGUN: u32 = u32::MAX;
        let line = match offset {
            NOT_BEGUN => Some(self.first_line),
            offset => line_at(self.format, self.first_line, &self.line_table, offset),
        };
        line.filter(|&line| line > 0)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Node {
    parent: u32,
    address: u32,
}

/// Number of the empty stack.
pub const NO_FRAMES: u32 = 0;

/// An address that occurs in stacks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Address {
    /// The kind of the address, or the reason why the stack ends there.
    pub kind: PcKind,
    /// The address in the process.
    pub absolute: u64,
    /// The address as the module's file counts.
    pub stated: u64,
    /// Index of its module, and the offset from the module's start.
    pub module: Option<(u32, u64)>,
}

impl Address {
    /// Returns the offset in the module at which a name is looked up.
    ///
    /// A return address is looked up at its call. `None` outside of modules, and where the stack
    /// ends for a reason.
    #[must_use]
    pub fn lookup_offset(&self) -> Option<u64> {
        lookup_address(self.kind, self.module?.1)
    }
}

/// A module that contains addresses.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Module {
    /// Path on the recorded machine.
    pub path: String,
    /// Build id; empty if it has none.
    pub build_id: Vec<u8>,
}

impl Module {
    /// Returns the last component of the path.
    #[must_use]
    pub fn name(&self) -> &str {
        match file_name(self.path.trim_end_matches('/')) {
            "" => "?",
            name => name,
        }
    }
}

impl Stacks {
    /// Creates a tree with the empty stack only.
    #[must_use]
    pub fn new() -> Self {
        Self { nodes: vec![Node { parent: 0, address: u32::MAX }], ..Self::default() }
    }

    /// Reserves space for more entries.
    pub(super) fn reserve(&mut self, stacks: usize, addresses: usize) {
        self.nodes.reserve(stacks);
        self.addresses.reserve(addresses);
    }

    /// Adds a module and returns its index.
    pub fn add_module(&mut self, module: Module) -> u32 {
        self.modules.push(module);
        index_of_last(&self.modules)
    }

    /// States which module is the program itself.
    pub fn set_program(&mut self, module: u32) {
        self.program = Some(module);
    }

    /// Returns the addresses of the outermost frames of all stacks, the outermost first.
    pub(super) fn outermost(&self, frames: usize) -> Vec<u32> {
        let mut depths = vec![0_usize; self.nodes.len()];
        let mut found: Vec<(usize, u32)> = Vec::new();
        // Parents have smaller numbers.
        for (stack, node) in self.nodes.iter().enumerate().skip(1) {
            let depth = depths.get(node.parent as usize).map_or(usize::MAX, |depth| depth.saturating_add(1));
            depths[stack] = depth;
            if depth <= frames {
                found.push((depth, node.address));
            }
        }
        found.sort_unstable();
        found.dedup();
        found.into_iter().map(|(_, address)| address).collect()
    }

    /// Returns the module that is the program itself.
    ///
    /// Where that was not stated, it is the first module that is not named like a library.
    #[must_use]
    pub fn program(&self) -> Option<u32> {
        let is_library = |module: &Module| module.name().contains(".so") || module.path.starts_with('[');
        let first = || self.modules.iter().position(|module| !is_library(module)).map(|index| index as u32);
        self.program.filter(|&module| (module as usize) < self.modules.len()).or_else(first)
    }

    /// Adds an address and returns its index. An unknown module counts as none.
    pub fn add_address(&mut self, address: Address) -> u32 {
        let module = address.module.filter(|&(module, _)| (module as usize) < self.modules.len());
        self.addresses.push(Address { module, ..address });
        index_of_last(&self.addresses)
    }

    /// Adds code of an interpreter, by its number in the upper half of addresses.
    pub fn add_code(&mut self, number: u32, code: InterpretedCode) {
        self.codes.insert(number, code);
    }

    /// Names a frame of an interpreter.
    ///
    /// `None` for other addresses, and where the recording lost the code.
    #[must_use]
    pub fn interpreted_frame(&self, address: &Address) -> Option<SourceFrame> {
        if address.kind != PcKind::Interpreted {
            return None;
        }
        let code = self.codes.get(&((address.absolute >> 32) as u32))?;
        Some(code.source_frame(address.absolute as u32))
    }

    /// Names an address that lies in the code of a JIT compiler.
    pub fn name_generated(&mut self, address: u32, frame: SourceFrame) {
        self.generated.insert(address, frame);
    }

    /// Names all addresses outside of modules that files of JIT compilers announce.
    pub fn name_all_generated(&mut self, names: &CodeNames) {
        let outside = |(_, address): &(u32, &Address)| address.module.is_none();
        let addresses = (0..).zip(&self.addresses).filter(outside);
        let (numbers, asked): (Vec<u32>, Vec<(PcKind, u64)>) =
            addresses.map(|(number, address)| (number, (address.kind, address.absolute))).unzip();
        for (number, frame) in numbers.into_iter().zip(names.resolve(&asked)) {
            if let Some(frame) = frame {
                self.name_generated(number, frame);
            }
        }
    }

    /// Returns the name of an address in the code of a JIT compiler, if that has named it.
    #[must_use]
    pub fn generated_name(&self, address: u32) -> Option<&SourceFrame> {
        self.generated.get(&address)
    }

    /// Adds `parent` with one more inner call, and returns its number; `None` if an argument is
    /// unknown.
    pub fn add_stack(&mut self, parent: u32, address: u32) -> Option<u32> {
        let known = (parent as usize) < self.nodes.len() && (address as usize) < self.addresses.len();
        known.then(|| {
            self.nodes.push(Node { parent, address });
            index_of_last(&self.nodes)
        })
    }

    /// Skips a number, for tables whose numbers have gaps: it reads as an empty stack.
    pub fn skip(&mut self) {
        self.nodes.push(Node { parent: NO_FRAMES, address: u32::MAX });
    }

    /// Returns the number of stacks, including the empty one.
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Reports whether there is not even the empty stack.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Returns the stack without its innermost call; `None` for [`NO_FRAMES`] and unknown numbers.
    #[must_use]
    pub fn parent(&self, stack: u32) -> Option<u32> {
        if stack == NO_FRAMES { None } else { self.nodes.get(stack as usize).map(|node| node.parent) }
    }

    /// Returns the index of the innermost call's address.
    #[must_use]
    pub fn innermost(&self, stack: u32) -> Option<u32> {
        let node = self.nodes.get(stack as usize)?;
        ((node.address as usize) < self.addresses.len()).then_some(node.address)
    }

    /// Iterates over the address indices of a stack, innermost first.
    pub fn addresses_of(&self, stack: u32) -> impl Iterator<Item = u32> {
        self.path(stack).filter_map(|stack| self.innermost(stack))
    }

    /// Iterates over the stack, its parent, and so on, without [`NO_FRAMES`].
    pub fn path(&self, stack: u32) -> impl Iterator<Item = u32> {
        let known = Some(stack).filter(|&stack| self.innermost(stack).is_some());
        std::iter::successors(known, |&stack| self.parent(stack).filter(|&parent| parent != NO_FRAMES))
    }

    /// Returns the address of an index.
    #[must_use]
    pub fn address(&self, index: u32) -> Option<&Address> {
        self.addresses.get(index as usize)
    }

    /// Returns all addresses.
    #[must_use]
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Returns all modules.
    #[must_use]
    pub fn modules(&self) -> &[Module] {
        &self.modules
    }
}

fn index_of_last<T>(list: &[T]) -> u32 {
    u32::try_from(list.len() - 1).expect("recordings number everything in 32 bits")
}

#[cfg(test)]
mod tests {
    use super::Module;

    // Failed with: the whole path of a module in a recording of Windows.
    #[test]
    fn module_names_are_the_last_part_of_either_kind_of_path() {
        let cases = [
            ("/usr/lib/libc.so.6", "libc.so.6"),
            (r"C:\app\foo测试.dll", "foo测试.dll"),
            (r"\\?\Z:\work\app.elf", "app.elf"),
            (r"/opt/a\b.so", r"a\b.so"),
            ("[vdso]", "[vdso]"),
            ("/opt/app/", "app"),
            ("/", "?"),
            ("", "?"),
        ];
        for (path, expected) in cases {
            let module = Module { path: path.to_owned(), build_id: Vec::new() };
            assert_eq!(module.name(), expected, "{path}");
        }
    }
}
