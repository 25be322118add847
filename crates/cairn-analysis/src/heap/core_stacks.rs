//! Gives the stacks of an image's blocks to the questions that recordings answer too.

use std::collections::HashMap;

use cairn_format::recording::PcKind;
use cairn_format::{AbsoluteAddress, Frame};
use cairn_memory::heap::{Block, BlockStacks};
use cairn_memory::image::Image;
use cairn_memory::python::{MixedFrame, PythonCode, PythonFrame};

use super::{Address, Aggregator, HeapProfile, InterpretedCode, Module, NO_FRAMES, Sampling, Scope, Stacks};

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
    /// Finds the module of each frame. The numbers of `threads`, stacks of threads, innermost frame
    /// first, come behind those of blocks; `codes` are the code of their Python frames.
    #[must_use]
    pub fn new(
        image: &Image,
        found: &BlockStacks,
        threads: &[Vec<MixedFrame>],
        codes: &[PythonCode],
    ) -> Self {
        let mut builder = Builder::new(image);
        builder.stacks.add_code(0, InterpretedCode::unreadable());
        for (number, code) in (1..).zip(codes) {
            builder.stacks.add_code(number, InterpretedCode::of_image(code));
        }
        let native = |frame: &Frame| StackFrame::Native(*frame);
        let numbers =
            (0..found.len()).map(|number| builder.add(found.frames(number as u32).iter().map(native)));
        let mut numbers: Vec<u32> = numbers.collect();
        numbers.extend(threads.iter().map(|frames| {
            builder.add(frames.iter().map(|frame| match frame {
                MixedFrame::Native(native) => StackFrame::Native(native.frame),
                MixedFrame::Python(python) => StackFrame::python(*python),
            }))
        }));
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

/// A frame as the tree identifies it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum StackFrame {
    Native(Frame),
    /// Number of the code << 32 | the byte offset in it.
    Interpreted(u64),
}

impl StackFrame {
    fn python(frame: PythonFrame) -> Self {
        // Codes are numbered from 1; 0 is code that cannot be read.
        let code = frame.code.map_or(0, |code| u64::from(code) + 1);
        Self::Interpreted(code << 32 | u64::from(frame.offset))
    }
}

struct Builder<'a> {
    image: &'a Image,
    stacks: Stacks,
    addresses: HashMap<StackFrame, u32>,
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

    fn add(&mut self, frames: impl DoubleEndedIterator<Item = StackFrame>) -> u32 {
        let mut stack = NO_FRAMES;
        for frame in frames.rev() {
            let address = match self.addresses.get(&frame) {
                Some(&known) => known,
                None => {
                    let added = self.stacks.add_address(self.address(frame));
                    self.addresses.insert(frame, added);
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

    fn address(&self, frame: StackFrame) -> Address {
        let frame = match frame {
            StackFrame::Native(frame) => frame,
            StackFrame::Interpreted(absolute) => {
                return Address { kind: PcKind::Interpreted, absolute, stated: 0, module: None };
            }
        };
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
