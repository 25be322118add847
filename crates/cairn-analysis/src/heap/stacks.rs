//! The stacks of a recording as the questions need them: a tree of numbered addresses, and the modules they lie in.

use cairn_format::recording::PcKind;

/// Stacks as nodes of a tree: node 0 is the stack without frames, every other node is its parent with one more inner call.
///
/// Parents have smaller numbers than their children, so that one pass over an array visits a tree in order, and nothing
/// here is recursive.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Stacks {
    nodes: Vec<Node>,
    addresses: Vec<Address>,
    modules: Vec<Module>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Node {
    parent: u32,
    address: u32,
}

/// Number of the stack without frames.
pub const NO_FRAMES: u32 = 0;

/// An address that occurs in stacks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Address {
    /// What it is, or why the stack ends there.
    pub kind: PcKind,
    /// The address in the process.
    pub absolute: u64,
    /// The address as the module's file counts.
    pub stated: u64,
    /// Index of the module that it lies in, and how far from its start.
    pub module: Option<(u32, u64)>,
}

/// A module that addresses lie in.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Module {
    /// Its path on the machine of the recording.
    pub path: String,
    /// Its build id; empty when it has none.
    pub build_id: Vec<u8>,
}

impl Module {
    /// The last part of the path, as people call it.
    #[must_use]
    pub fn name(&self) -> &str {
        self.path.rsplit('/').find(|part| !part.is_empty()).unwrap_or("?")
    }
}

impl Stacks {
    /// The stack without frames, alone.
    #[must_use]
    pub fn new() -> Self {
        Self { nodes: vec![Node { parent: 0, address: u32::MAX }], ..Self::default() }
    }

    /// Makes room for so many more.
    pub(super) fn reserve(&mut self, stacks: usize, addresses: usize) {
        self.nodes.reserve(stacks);
        self.addresses.reserve(addresses);
    }

    /// Adds a module and returns its index.
    pub fn add_module(&mut self, module: Module) -> u32 {
        self.modules.push(module);
        index_of_last(&self.modules)
    }

    /// Adds an address and returns its index. An unknown module reads as none.
    pub fn add_address(&mut self, address: Address) -> u32 {
        let module = address.module.filter(|&(module, _)| (module as usize) < self.modules.len());
        self.addresses.push(Address { module, ..address });
        index_of_last(&self.addresses)
    }

    /// Adds `parent` with one more inner call and returns its number; `None` when one of the two is not there.
    pub fn add_stack(&mut self, parent: u32, address: u32) -> Option<u32> {
        let known = (parent as usize) < self.nodes.len() && (address as usize) < self.addresses.len();
        known.then(|| {
            self.nodes.push(Node { parent, address });
            index_of_last(&self.nodes)
        })
    }

    /// Takes up the next number without a stack, for tables whose numbers have gaps: it reads as a stack without frames.
    pub fn skip(&mut self) {
        self.nodes.push(Node { parent: NO_FRAMES, address: u32::MAX });
    }

    /// How many stacks there are, the one without frames among them.
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// True when there is not even the stack without frames.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// The stack without its innermost call; `None` for [`NO_FRAMES`], and for what is no stack.
    #[must_use]
    pub fn parent(&self, stack: u32) -> Option<u32> {
        if stack == NO_FRAMES { None } else { self.nodes.get(stack as usize).map(|node| node.parent) }
    }

    /// Index of the address of the innermost call.
    #[must_use]
    pub fn innermost(&self, stack: u32) -> Option<u32> {
        let node = self.nodes.get(stack as usize)?;
        ((node.address as usize) < self.addresses.len()).then_some(node.address)
    }

    /// Indices of the addresses of a stack, innermost first.
    pub fn addresses_of(&self, stack: u32) -> impl Iterator<Item = u32> {
        self.path(stack).filter_map(|stack| self.innermost(stack))
    }

    /// The stack, its parent, and so on, without [`NO_FRAMES`].
    pub fn path(&self, stack: u32) -> impl Iterator<Item = u32> {
        let known = Some(stack).filter(|&stack| self.innermost(stack).is_some());
        std::iter::successors(known, |&stack| self.parent(stack).filter(|&parent| parent != NO_FRAMES))
    }

    /// The address of this index.
    #[must_use]
    pub fn address(&self, index: u32) -> Option<&Address> {
        self.addresses.get(index as usize)
    }

    /// All addresses.
    #[must_use]
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// All modules.
    #[must_use]
    pub fn modules(&self) -> &[Module] {
        &self.modules
    }
}

fn index_of_last<T>(list: &[T]) -> u32 {
    u32::try_from(list.len() - 1).expect("recordings number everything in 32 bits")
}
