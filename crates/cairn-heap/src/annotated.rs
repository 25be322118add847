//! A global allocator for Rust programs.

use core::alloc::{GlobalAlloc, Layout};
use core::ptr;

use cairn_wire::heapblock::BlockLayout;

use crate::backend::Global;
use crate::heap::{Heap, Options};
use crate::stack::CallStack;

/// Default source of stacks of an [`Annotated`]: captured with the feature `capture`, else none.
#[cfg(feature = "capture")]
pub type DefaultStack = crate::Here;
/// Default source of stacks of an [`Annotated`]: captured with the feature `capture`, else none.
#[cfg(not(feature = "capture"))]
pub type DefaultStack = crate::NoStack;

/// An allocator that writes the allocating stack in front of each block.
///
/// ```
/// use std::alloc::System;
/// use cairn_heap::Annotated;
///
/// #[global_allocator]
/// static ALLOCATOR: Annotated<System> = Annotated::new(System);
///
/// let before = ALLOCATOR.heap().counters();
/// let data = vec![0_u8; 1000];
/// let after = ALLOCATOR.heap().counters();
/// assert_eq!(after.live_bytes - before.live_bytes, 1000);
/// # drop(data);
/// ```
///
/// On a device without an operating system the underlying allocator is that of the device's crate,
/// and stacks come from what the device has: see [`CallStack`].
pub struct Annotated<A, S = DefaultStack> {
    heap: Heap<Global<A>>,
    stack: S,
}

impl<A: GlobalAlloc> Annotated<A> {
    /// Annotates the blocks of `allocator` in the cairn layout.
    #[cfg(feature = "capture")]
    #[must_use]
    pub const fn new(allocator: A) -> Self {
        Self::with(allocator, Options::new(BlockLayout::Cairn), crate::Here { skip: 0 })
    }

    /// Annotates the blocks of `allocator` in the cairn layout.
    #[cfg(not(feature = "capture"))]
    #[must_use]
    pub const fn new(allocator: A) -> Self {
        Self::with(allocator, Options::new(BlockLayout::Cairn), crate::NoStack)
    }
}

impl<A: GlobalAlloc, S: CallStack> Annotated<A, S> {
    /// Annotates the blocks of `allocator` by these options, with stacks from `stack`.
    #[must_use]
    pub const fn with(allocator: A, options: Options, stack: S) -> Self {
        Self { heap: Heap::new(Global(allocator), options), stack }
    }

    /// Returns the heap with its counters, limit, observer and blocks.
    pub const fn heap(&self) -> &Heap<Global<A>> {
        &self.heap
    }
}

// SAFETY: `Heap::allocate` returns exclusive memory of the requested size and alignment.
unsafe impl<A: GlobalAlloc, S: CallStack> GlobalAlloc for Annotated<A, S> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.heap.allocate(layout.size(), layout.align(), false, &self.stack)
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        self.heap.allocate(layout.size(), layout.align(), true, &self.stack)
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller promises a block of this allocator that nobody uses any more.
        unsafe { self.heap.release(block, layout.align()) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        if Layout::from_size_align(new_size, layout.align()).is_err() {
            return ptr::null_mut();
        }
        // SAFETY: the caller promises a block of this allocator that nobody else uses.
        unsafe { self.heap.resize(block, new_size, layout.align(), &self.stack) }
    }
}
