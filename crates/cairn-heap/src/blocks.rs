//! Iterates over the live blocks of a heap in its memory, filters and sorts them, and writes them
//! as lines of a log. Nothing allocates.
//!
//! ```
//! use core::ops::ControlFlow;
//! use cairn_heap::{BlockLayout, Heap, Options, blocks};
//! # use std::alloc::System;
//! # let heap: Heap<_, 1> = Heap::new(cairn_heap::Global(System), Options::new(BlockLayout::Lws));
//! # let users = [30, 10, 20].map(|size| heap.allocate(size, 1, false, &[0x1234_usize, 0x5678]));
//! // The heap's blocks of 20 bytes and more, largest first.
//! let mut sizes = Vec::new();
//! // SAFETY: nobody allocates or frees meanwhile.
//! let live = unsafe { heap.live_unlocked() };
//! blocks::for_each_in_order(
//!     live,
//!     |block| block.size_bytes() >= 20,
//!     |a, b| b.size_bytes().cmp(&a.size_bytes()),
//!     |block| {
//!         sizes.push(block.size_bytes());
//!         ControlFlow::Continue(())
//!     },
//! );
//! assert_eq!(sizes, [30, 20]);
//! # for user in users { unsafe { heap.release(user, 1) } }
//! ```

use core::cmp::Ordering;
use core::ops::ControlFlow;
use core::slice;

use cairn_format::{AbsoluteAddress, Sink, SinkFull, WordSize};
use cairn_wire::cbf;
use cairn_wire::heapblock::{BlockState, ByteOrder, HEADER_BYTES, Header, StackReference, inline_stack};
use cairn_wire::heapprof;
use cairn_wire::lws::{self as format, log_line};

use crate::lws;

/// A live block.
#[derive(Clone, Copy, Debug)]
pub struct Block<'a> {
    user_address: usize,
    size_bytes: usize,
    stack: BlockStack<'a>,
}

/// The stack in the annotation of a block.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum BlockStack<'a> {
    /// No stack.
    None,
    /// A number in the stack table.
    Number(u32),
    /// A number of the program's own.
    Tag(u32),
    /// A record of the Compact Backtrace Format.
    Inline(&'a [u8]),
    /// A compressed backtrace of libwebsockets, which has the size as well.
    Lws(&'a [u8]),
    /// Callers as words.
    Heapprof(heapprof::Block<'a>),
}

impl<'a> Block<'a> {
    /// Returns the address of the user's bytes.
    #[must_use]
    pub const fn user_address(&self) -> usize {
        self.user_address
    }

    /// Returns the requested size.
    #[must_use]
    pub const fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    /// Returns the stack in the annotation.
    #[must_use]
    pub const fn stack(&self) -> BlockStack<'a> {
        self.stack
    }

    /// Writes the return addresses, innermost first, and returns their number. `of_number` does the
    /// same for the number of a stack; a tag counts as an address.
    pub fn addresses(&self, of_number: impl Fn(u32, &mut [usize]) -> usize, into: &mut [usize]) -> usize {
        let fill = |into: &mut [usize], addresses: &mut dyn Iterator<Item = u64>| {
            into.iter_mut().zip(addresses).map(|(place, address)| *place = address as usize).count()
        };
        match self.stack {
            BlockStack::None => 0,
            BlockStack::Number(number) => of_number(number, into),
            BlockStack::Tag(tag) => fill(into, &mut core::iter::once(tag.into())),
            BlockStack::Inline(bytes) => {
                let frames = cbf::CbfDecoder::new(bytes, cbf::Rules::STRICT).map_while(Result::ok);
                fill(into, &mut frames.filter_map(|frame| Some(frame.address()?.value())))
            }
            BlockStack::Lws(blob) => match lws::decode(blob) {
                Ok(backtrace) => fill(into, &mut backtrace.addresses.iter().map(|address| address.value())),
                Err(_) => 0,
            },
            BlockStack::Heapprof(block) => {
                fill(into, &mut block.callers().map(AbsoluteAddress::value).filter(|caller| *caller != 0))
            }
        }
    }

    /// Writes the block as a line of a log, `~m#` and base64, which `cairn decode` reads. It works
    /// for each layout.
    ///
    /// # Errors
    ///
    /// [`SinkFull`] when the sink is full.
    pub fn write_line(
        &self,
        of_number: impl Fn(u32, &mut [usize]) -> usize,
        sink: &mut impl Sink,
    ) -> Result<(), SinkFull> {
        if let BlockStack::Lws(blob) = self.stack {
            log_line::write_compressed(blob, sink)?;
            return sink.put(b"\n");
        }
        let mut words = [0; format::MAX_DEPTH];
        let count = self.addresses(of_number, &mut words);
        let words = words.get(..count).unwrap_or_default();
        let mut buffer = [0; lws::BLOB_BYTES];
        let generated = lws::generate(words, self.size_bytes, size_of::<usize>(), |_| (), &mut buffer);
        log_line::write_compressed(generated.blob(), sink)?;
        sink.put(b"\n")
    }
}

impl<'a> From<lws::LiveBlock<'a>> for Block<'a> {
    fn from(block: lws::LiveBlock<'a>) -> Self {
        let size_bytes = block.backtrace().map_or(0, |backtrace| backtrace.allocation_size_bytes as usize);
        Self { user_address: block.user().addr(), size_bytes, stack: BlockStack::Lws(block.blob()) }
    }
}

/// Calls `visit` with the blocks that `keep` accepts, until `visit` breaks. The blocks are sorted
/// by `order` and then by address.
///
/// Nothing is stored, so each further block costs a pass over all: which suits the few largest of
/// thousands, or all of a few hundred on a device.
pub fn for_each_in_order<'a>(
    blocks: impl Iterator<Item = Block<'a>> + Clone,
    keep: impl Fn(&Block<'a>) -> bool,
    order: impl Fn(&Block<'a>, &Block<'a>) -> Ordering,
    mut visit: impl FnMut(&Block<'a>) -> ControlFlow<()>,
) {
    let compare = |a: &Block<'a>, b: &Block<'a>| order(a, b).then(a.user_address.cmp(&b.user_address));
    let mut last: Option<Block<'a>> = None;
    loop {
        let later = |block: &Block<'a>| last.as_ref().is_none_or(|last| compare(last, block).is_lt());
        let next = blocks.clone().filter(|block| keep(block) && later(block)).min_by(&compare);
        match next {
            Some(block) if visit(&block).is_continue() => last = Some(block),
            _ => return,
        }
    }
}

/// Returns the blocks of the cairn layout in `bytes` bytes of memory from `start` on. They are in
/// the order of their addresses. `start` is a multiple of 4; `step` is the alignment of blocks, at
/// least 4.
///
/// # Safety
///
/// The memory may be read, and does not change while the iterator or one of its items is used.
#[must_use]
pub unsafe fn cairn_blocks<'a>(start: *const u8, bytes: usize, step: usize) -> CairnBlocks<'a> {
    // SAFETY: the caller promises that the memory may be read, and nobody changes it for as long as
    // the iterator or one of its items is used.
    let memory = unsafe { slice::from_raw_parts(start, bytes) };
    CairnBlocks { memory, address: start.addr(), at: 0, step: step.max(4) }
}

/// Iterates over blocks of the cairn layout: see [`cairn_blocks`].
#[derive(Clone, Debug)]
pub struct CairnBlocks<'a> {
    memory: &'a [u8],
    address: usize,
    at: usize,
    step: usize,
}

impl<'a> Iterator for CairnBlocks<'a> {
    type Item = Block<'a>;

    fn next(&mut self) -> Option<Block<'a>> {
        loop {
            let user = self.at.checked_add(HEADER_BYTES)?;
            let bytes: [u8; HEADER_BYTES] = self.memory.get(self.at..user)?.try_into().ok()?;
            let header_at = self.at;
            self.at += self.step;
            let user_address = self.address + user;
            let Ok((header, BlockState::Live)) =
                Header::from_bytes(bytes, user_address as u64, ByteOrder::NATIVE)
            else {
                continue;
            };
            let stack = match header.stack() {
                StackReference::None => BlockStack::None,
                StackReference::Number(number) => BlockStack::Number(number),
                StackReference::Tag(tag) => BlockStack::Tag(tag),
                reference @ StackReference::Inline { length_bytes, .. } => {
                    let from = header_at.checked_sub(length_bytes.into());
                    let inline = from.and_then(|from| self.memory.get(from..header_at));
                    let inline = inline.filter(|bytes| inline_stack::is_intact(reference, bytes));
                    inline.map_or(BlockStack::None, BlockStack::Inline)
                }
            };
            return Some(Block { user_address, size_bytes: header.size_bytes() as usize, stack });
        }
    }
}

/// Returns the blocks of the heapprof layout in `bytes` bytes of memory from `start` on. `bytes` is
/// a multiple of the word size.
///
/// # Safety
///
/// The memory may be read, and does not change while the iterator or one of its items is used.
pub unsafe fn heapprof_blocks<'a>(start: *const u8, bytes: usize) -> impl Iterator<Item = Block<'a>> + Clone {
    use cairn_wire::heapprof::{HeapprofLayout, Search};
    // SAFETY: the caller promises memory that may be read and does not change meanwhile.
    let memory = unsafe { slice::from_raw_parts(start, bytes) };
    let layout = match (WordSize::NATIVE, ByteOrder::NATIVE) {
        (WordSize::Bits64, ByteOrder::LittleEndian) => HeapprofLayout::LittleEndian64,
        (WordSize::Bits64, ByteOrder::BigEndian) => HeapprofLayout::BigEndian64,
        (_, ByteOrder::LittleEndian) => HeapprofLayout::LittleEndian32,
        (_, ByteOrder::BigEndian) => HeapprofLayout::BigEndian32,
    };
    Search::robust(layout).blocks(memory).map(move |block| Block {
        user_address: start.addr() + block.user_offset() as usize,
        size_bytes: block.size_bytes() as usize,
        stack: BlockStack::Heapprof(block),
    })
}
