//! The stacks that blocks refer to: each kept once, and given to the questions that are asked of recordings too.

use std::collections::HashMap;

use cairn_format::recording::PcKind;
use cairn_format::{AbsoluteAddress, Frame};

use super::{Annotated, Block};
use crate::heap::{Address, Aggregator, HeapProfile, Module, NO_FRAMES, Sampling, Scope, Stacks};
use crate::image::Image;

/// Stacks by number. Number 0 is the stack of which nothing is known.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BlockStacks {
    stacks: Vec<Box<[Frame]>>,
    numbers: HashMap<Box<[Frame]>, u32>,
}

impl Default for BlockStacks {
    fn default() -> Self {
        Self { stacks: vec![Box::default()], numbers: HashMap::from([(Box::default(), 0)]) }
    }
}

impl BlockStacks {
    /// The number of a stack, innermost frame first.
    pub(super) fn number(&mut self, frames: &[Frame]) -> u32 {
        if let Some(&number) = self.numbers.get(frames) {
            return number;
        }
        let number = u32::try_from(self.stacks.len()).unwrap_or(0);
        if number != 0 {
            self.stacks.push(frames.into());
            self.numbers.insert(frames.into(), number);
        }
        number
    }

    /// The frames of a stack as they stand in memory: a heapprof block has zeros, or remains of earlier blocks, behind the
    /// real ones.
    #[must_use]
    pub fn raw(&self, number: u32) -> &[Frame] {
        self.stacks.get(number as usize).map_or(&[], |frames| frames)
    }

    /// The frames of a stack, innermost first, up to the first that is zero.
    #[must_use]
    pub fn frames(&self, number: u32) -> &[Frame] {
        let raw = self.raw(number);
        let is_zero = |frame: &Frame| frame.address().is_some_and(|address| address.value() == 0);
        let end = raw.iter().position(is_zero).unwrap_or(raw.len());
        raw.get(..end).unwrap_or_default()
    }

    /// How many stacks there are, the unknown one among them.
    #[must_use]
    pub fn len(&self) -> usize {
        self.stacks.len()
    }

    /// Never: the unknown stack is always there.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }
}

/// The stacks of an image's blocks with modules, as [`Names`](crate::heap::Names) and [`Questions`](crate::heap::Questions)
/// take them.
#[derive(Debug)]
pub struct CoreStacks {
    /// The tree.
    pub stacks: Stacks,
    /// For each stack of [`BlockStacks`], its number in the tree.
    pub numbers: Vec<u32>,
}

impl CoreStacks {
    /// Finds the module of each frame. The numbers of `others`, as the stacks of threads are, innermost frame first, come
    /// behind those of blocks.
    #[must_use]
    pub fn new(image: &Image, found: &BlockStacks, others: &[Vec<Frame>]) -> Self {
        let mut builder = Builder::new(image);
        let numbers = (0..found.len()).map(|number| builder.add(found.frames(number as u32)));
        let mut numbers: Vec<u32> = numbers.collect();
        numbers.extend(others.iter().map(|frames| builder.add(frames)));
        Self { stacks: builder.stacks, numbers }
    }

    /// The number of a block's stack among [`stacks`](Self::stacks).
    #[must_use]
    pub fn number_of(&self, block: &Block) -> u32 {
        self.numbers.get(block.stack as usize).copied().unwrap_or(NO_FRAMES)
    }

    /// The sums of blocks by stack: what they hold counts as leaked, and as the peak.
    #[must_use]
    pub fn profile<'b>(&self, blocks: impl IntoIterator<Item = &'b Block>) -> HeapProfile {
        self.profile_in(blocks, Scope::default())
    }

    /// The same of the blocks that a scope's stacks and sizes let through.
    #[must_use]
    pub fn profile_in<'b>(&self, blocks: impl IntoIterator<Item = &'b Block>, scope: Scope) -> HeapProfile {
        let mut sums = Aggregator::new(self.stacks.len(), 1, scope, Sampling::All);
        for (object, block) in (0_u32..).zip(blocks) {
            sums.allocated(object, self.number_of(block), 0, block.size_bytes, 0);
        }
        sums.finish(0)
    }
}

impl Annotated {
    /// The stacks with modules.
    #[must_use]
    pub fn core_stacks(&self, image: &Image) -> CoreStacks {
        CoreStacks::new(image, self.stacks(), &[])
    }
}

struct Builder<'a> {
    image: &'a Image,
    stacks: Stacks,
    addresses: HashMap<Frame, u32>,
    nodes: HashMap<(u32, u32), u32>,
}

impl<'a> Builder<'a> {
    fn new(image: &'a Image) -> Self {
        let mut stacks = Stacks::new();
        for module in image.modules() {
            let path = module.path.to_string_lossy().into_owned();
            stacks.add_module(Module { path, build_id: module.build_id.clone() });
        }
        Self { image, stacks, addresses: HashMap::new(), nodes: HashMap::new() }
    }

    fn add(&mut self, frames: &[Frame]) -> u32 {
        let mut stack = NO_FRAMES;
        for frame in frames.iter().rev() {
            let address = match self.addresses.get(frame) {
                Some(&known) => known,
                None => {
                    let added = self.stacks.add_address(self.address(*frame));
                    self.addresses.insert(*frame, added);
                    added
                }
            };
            let key = (stack, address);
            stack = match self.nodes.get(&key) {
                Some(&known) => known,
                None => {
                    let Some(added) = self.stacks.add_stack(stack, address) else { break };
                    self.nodes.insert(key, added);
                    added
                }
            };
        }
        stack
    }

    fn address(&self, frame: Frame) -> Address {
        let kind = match frame {
            Frame::ReturnAddress(_) => PcKind::ReturnAddress,
            Frame::ProgramCounter(_) => PcKind::ProgramCounter,
            _ => PcKind::Limit,
        };
        let address = frame.address().unwrap_or_default();
        let lookup = frame.lookup_address().unwrap_or(AbsoluteAddress::new(u64::MAX));
        let index = self.image.module_index_at(lookup);
        let module = index.and_then(|index| self.image.modules().get(index));
        let stated = module.map_or(address.value(), |module| address.value().wrapping_sub(module.bias));
        let offset = module.map_or(0, |module| address.value().wrapping_sub(module.range.start.value()));
        Address { kind, absolute: address.value(), stated, module: index.map(|index| (index as u32, offset)) }
    }
}
