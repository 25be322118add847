//! Gives the stacks of an image's blocks to the questions that recordings answer too.

use std::collections::HashMap;

use cairn_format::recording::PcKind;
use cairn_format::{AbsoluteAddress, Frame};
use cairn_memory::heap::{Block, BlockStacks};
use cairn_memory::image::Image;

use super::{Address, Aggregator, HeapProfile, Module, NO_FRAMES, Sampling, Scope, Stacks};

/// The stacks of an image's blocks with modules, as [`Names`](super::Names) and
/// [`Questions`](super::Questions) take them.
#[derive(Debug)]
pub struct CoreStacks {
    /// The tree.
    pub stacks: Stacks,
    /// For each stack of [`BlockStacks`], its number in the tree.
    pub numbers: Vec<u32>,
}

impl CoreStacks {
    /// Finds the module of each frame. The numbers of `others`, as the stacks of threads are,
    /// innermost frame first, come behind those of blocks.
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
