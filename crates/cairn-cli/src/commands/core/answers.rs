//! The answers about an image, as values: a process can continue as soon as they are complete.

use cairn_analysis::heap::{Address, CoreStacks};
use cairn_format::AbsoluteAddress;
use cairn_format::recording::PcKind;
use cairn_memory::heap::{
    Annotated, Block, BlockLayout, Chunk, Damage, FindOptions, GlibcHeap, Holder, Near, NearPlace,
    Reachability, Reference, References,
};
use cairn_memory::image::{About, Finding, Image, ImageModule, ImageThread, Machine};
use cairn_memory::process::{StopReason, ThreadSource};
use cairn_memory::python::{MixedFrame, PythonCode, PythonFrames, PythonNote};

/// No stack that one wants to read has more frames.
const MAX_FRAMES: u32 = 10_000;
/// Maximum references in an answer.
const MAX_REFERENCES: usize = 200;

/// The questions.
pub(super) struct Wanted {
    pub(super) layout: Option<BlockLayout>,
    pub(super) heap: bool,
    pub(super) at: Vec<u64>,
    pub(super) refs: Vec<u64>,
    pub(super) leaks: bool,
    pub(super) stacks: bool,
}

/// The answers.
pub(super) struct Answers {
    pub(super) about: About,
    pub(super) machine: Machine,
    pub(super) dumped_bytes: u64,
    pub(super) modules: Vec<ImageModule>,
    pub(super) findings: Vec<Finding>,
    pub(super) annotated: Annotated,
    pub(super) heap: Option<GlibcHeap>,
    /// Blocks of the heap, where none are annotated.
    plain: Vec<Block>,
    pub(super) damage: Vec<Damage>,
    pub(super) threads: Vec<ThreadAnswer>,
    pub(super) stacks: CoreStacks,
    /// The code of Python frames; the number of a frame's code is its index and one.
    pub(super) codes: Vec<PythonCode>,
    pub(super) places: Vec<PlaceAnswer>,
    pub(super) references: Vec<ReferencesAnswer>,
    pub(super) leaks: Option<Leaks>,
}

/// A thread and its stack.
pub(super) struct ThreadAnswer {
    pub(super) thread: ImageThread,
    /// Innermost first; the number of the tree's stack is that of all of them.
    pub(super) frames: Vec<MixedFrame>,
    pub(super) stack: u32,
    /// Why there are no more frames; none where stacks of this machine are not known.
    pub(super) stop: Option<StopReason>,
    /// Gaps in its Python frames.
    pub(super) notes: Vec<PythonNote>,
}

/// The answer about an address.
pub(super) struct PlaceAnswer {
    pub(super) address: u64,
    /// The annotated block.
    pub(super) near: Option<Near>,
    /// The chunk of the heap that it lies in.
    pub(super) chunk: Option<(Chunk, u64, u64)>,
    pub(super) what: Where,
    pub(super) word: Option<u64>,
}

/// The kind of memory that contains an address.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Where {
    /// In no memory that the image has.
    Nowhere,
    /// In a file that was loaded: which, and how far from its start.
    Module(usize, u64),
    /// On the stack of a thread.
    Stack(u32),
    /// In what glibc's malloc manages.
    Heap,
    /// In other memory; the kernel's word for it, if any.
    Other(String),
}

/// The references to a block.
pub(super) struct ReferencesAnswer {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) found: Vec<(Reference, Option<Near>, Where)>,
    pub(super) more: u64,
}

/// Blocks that nothing leads to.
pub(super) struct Leaks {
    pub(super) direct: Vec<Block>,
    pub(super) indirect: Vec<Block>,
    pub(super) root_bytes: u64,
}

impl Answers {
    pub(super) fn of(image: &Image, wanted: &Wanted) -> Self {
        let options = wanted.layout.map_or_else(FindOptions::default, FindOptions::only);
        let annotated = Annotated::find(image, &options);
        let is_plain = annotated.blocks().is_empty();
        let asks_for_heap =
            wanted.heap || wanted.leaks || is_plain || !wanted.at.is_empty() || !wanted.refs.is_empty();
        let heap = if asks_for_heap { GlibcHeap::find(image) } else { None };
        let plain =
            if is_plain { heap.as_ref().map(GlibcHeap::blocks).unwrap_or_default() } else { Vec::new() };
        let damage = annotated.damage(image);
        let python = PythonFrames::find(image);
        let mut threads = threads(image, &python, wanted.stacks);
        let frames: Vec<Vec<MixedFrame>> = threads.iter().map(|thread| thread.frames.clone()).collect();
        let stacks = CoreStacks::new(image, annotated.stacks(), &frames, python.codes());
        let of_threads = stacks.numbers.get(annotated.stacks().len()..).unwrap_or_default();
        for (thread, &stack) in threads.iter_mut().zip(of_threads) {
            thread.stack = stack;
        }
        let mut answers = Self {
            about: image.about().clone(),
            machine: image.machine(),
            dumped_bytes: image.dumped_bytes(),
            modules: image.modules().to_vec(),
            findings: image.findings().to_vec(),
            annotated,
            heap,
            plain,
            damage,
            threads,
            stacks,
            codes: python.codes().to_vec(),
            places: Vec::new(),
            references: Vec::new(),
            leaks: None,
        };
        answers.places = wanted.at.iter().map(|&address| answers.place(image, address)).collect();
        answers.references = wanted.refs.iter().map(|&address| answers.references(image, address)).collect();
        if wanted.leaks {
            answers.leaks = Some(answers.leaks(image));
        }
        answers
    }

    /// The blocks that the questions are about: annotated ones, or those of the heap.
    pub(super) fn blocks(&self) -> &[Block] {
        if self.annotated.blocks().is_empty() { &self.plain } else { self.annotated.blocks() }
    }

    /// Explains what cannot be said of a frame; `None` for native ones.
    pub(super) fn gap(&self, address: &Address) -> Option<&'static str> {
        if address.kind != PcKind::Interpreted {
            return None;
        }
        let code = (address.absolute >> 32).checked_sub(1).and_then(|index| self.codes.get(index as usize));
        code.map_or(Some(PythonCode::UNREADABLE), PythonCode::gap)
    }

    fn near(&self, address: u64) -> Option<Near> {
        if !self.annotated.blocks().is_empty() {
            return self.annotated.near(address);
        }
        let after = self.plain.partition_point(|block| block.user_address <= address);
        let block = *self.plain.get(after.checked_sub(1)?)?;
        let place = if block.contains(address) {
            NearPlace::Inside(address - block.user_address)
        } else {
            NearPlace::Behind(address - block.end())
        };
        Some(Near { block, place })
    }

    fn place(&self, image: &Image, address: u64) -> PlaceAnswer {
        let heap = self.heap.as_ref();
        let chunk = heap.and_then(|heap| {
            let chunk = *heap.chunk_at(address)?;
            let (user, length) = heap.user_part(&chunk);
            Some((chunk, user, length))
        });
        PlaceAnswer {
            address,
            near: self.near(address).filter(|near| is_near(image, near, address)),
            chunk,
            what: self.location(image, address),
            word: image.word(address),
        }
    }

    fn location(&self, image: &Image, address: u64) -> Where {
        let at = AbsoluteAddress::new(address);
        let mapping = image.mapping_at(at);
        if let Some(index) = image.module_index_at(at)
            && let Some(module) = image.modules().get(index)
        {
            return Where::Module(index, address - module.range.start.value());
        }
        if self.heap.as_ref().is_some_and(|heap| heap.manages(address)) {
            return Where::Heap;
        }
        let Some(piece) = image.piece_at(at) else { return Where::Nowhere };
        // Several threads' stacks may lie in one stretch; an address is on the one whose pointer is
        // the next below.
        let on = image.threads().iter().filter_map(|thread| Some((thread.sp?, thread.id)));
        let on = on.filter(|(sp, _)| piece.range.contains(*sp) && *sp <= at).max();
        match on {
            Some((_, thread)) => Where::Stack(thread),
            None => {
                let name = mapping.map(|mapping| String::from_utf8_lossy(&mapping.name).into_owned());
                Where::Other(name.unwrap_or_default())
            }
        }
    }

    fn references(&self, image: &Image, address: u64) -> ReferencesAnswer {
        let block = self.near(address).filter(|near| near.block.contains(address)).map(|near| near.block);
        let (start, end) = block.map_or((address, address.saturating_add(1)), |block| {
            (block.user_address, block.end().max(block.user_address + 1))
        });
        let references = References::find(image, start, end, MAX_REFERENCES);
        let describe = |reference: Reference| match reference.holder {
            Holder::Register { .. } => (reference, None, Where::Nowhere),
            Holder::Memory(at) => {
                let near = self.near(at).filter(|near| !matches!(near.place, NearPlace::Behind(_)));
                (reference, near, self.location(image, at))
            }
        };
        let found = references.found.into_iter().map(describe).collect();
        ReferencesAnswer { start, end, found, more: references.more }
    }

    fn leaks(&self, image: &Image) -> Leaks {
        let blocks = self.blocks();
        let reach = Reachability::find(image, blocks, self.heap.as_ref());
        let pick = |index: usize| blocks.get(index).copied();
        Leaks {
            direct: reach.leaked().filter_map(pick).collect(),
            indirect: reach.indirectly_leaked().filter_map(pick).collect(),
            root_bytes: reach.root_bytes,
        }
    }
}

/// True if a block that ends before an address is relevant: both are in one range of memory.
fn is_near(image: &Image, near: &Near, address: u64) -> bool {
    const AT_LEAST: u64 = 4096;
    let stretch = |address| image.piece_at(AbsoluteAddress::new(address)).map(|piece| piece.range.start);
    match near.place {
        NearPlace::Behind(past) => past < AT_LEAST || stretch(near.block.user_address) == stretch(address),
        _ => true,
    }
}

/// The threads; the stack of the first one at least, which is what a crash is about.
fn threads(image: &Image, python: &PythonFrames, all: bool) -> Vec<ThreadAnswer> {
    let walk = |(index, thread): (usize, &ImageThread)| {
        let walkable = ThreadSource::threads(image).iter().find(|known| known.id == thread.id);
        let stack = walkable.filter(|_| all || index == 0).and_then(|known| {
            let stack = image.stack(known.registers.as_ref().ok()?, MAX_FRAMES);
            Some(python.merge(image, known, stack, MAX_FRAMES))
        });
        let (frames, stop, notes) = match stack {
            Some(stack) => (stack.frames, Some(stack.stop), stack.notes),
            None => Default::default(),
        };
        ThreadAnswer { thread: thread.clone(), frames, stack: 0, stop, notes }
    };
    image.threads().iter().enumerate().map(walk).collect()
}
