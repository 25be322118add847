//! Sources of the stack that a heap writes into the annotation of a block.

use cairn_format::SliceSink;
use cairn_wire::bits::BitWriter;
use cairn_wire::heapblock::StackReference;

use crate::compressed::CompressedStacks;

/// Source of the call stack of an allocation. A heap requests the form that its layout needs:
/// addresses (lws, heapprof, inline stacks) or a number (cairn).
///
/// On a device without an operating system implement it by what the device has: a walk along frame
/// pointers, a scan of the stack for return addresses, or the return address alone.
///
/// ```
/// use cairn_heap::CallStack;
///
/// /// The caller's address, taken by the caller (`__builtin_return_address(0)`, the link register).
/// struct ReturnAddress(usize);
/// impl CallStack for ReturnAddress {
///     fn addresses(&self, into: &mut [usize]) -> usize {
///         into.first_mut().map_or(0, |place| { *place = self.0; 1 })
///     }
/// }
/// assert_eq!(ReturnAddress(0x0800_1234).addresses(&mut [0; 4]), 1);
/// ```
pub trait CallStack {
    /// Writes the return addresses, innermost first, and returns their number.
    fn addresses(&self, into: &mut [usize]) -> usize;

    /// Returns the stack as a number in the [stack table](cairn_wire::heapblock::stack_table), or
    /// as a tag of the program. [`StackReference::None`] if stacks have no numbers; then the cairn
    /// layout stores the addresses inline.
    fn reference(&self) -> StackReference {
        StackReference::None
    }

    /// Returns a number that identifies these addresses as long as the program runs, and a cache.
    /// The cache holds compressed backtraces, so that the lws layout compresses each stack once.
    /// `None` if stacks have no such numbers.
    fn numbered(&self) -> Option<(u32, &'static CompressedStacks)> {
        None
    }

    /// Returns bits of the program for this block; only the lws layout has room for them.
    fn user_bits(&self) -> UserBits {
        UserBits::NONE
    }
}

/// Bits that a program adds to a compressed backtrace: a task, a tag, a tick.
///
/// They follow the size in the blob, as a field of libwebsockets: a reader has to know their
/// number.
///
/// ```
/// use cairn_heap::{BlockLayout, CallStack, Global, Heap, Options, UserBits, lws};
/// use std::alloc::System;
///
/// struct Task(u64);
/// impl CallStack for Task {
///     fn addresses(&self, into: &mut [usize]) -> usize {
///         into.first_mut().map_or(0, |place| { *place = 0x0800_1234; 1 })
///     }
///     fn user_bits(&self) -> UserBits {
///         UserBits { value: self.0, count: 6 }
///     }
/// }
///
/// let heap: Heap<_, 1> = Heap::new(Global(System), Options::new(BlockLayout::Lws));
/// let block = heap.allocate(100, 1, false, Task(37));
/// // SAFETY: a live block of this layout.
/// assert_eq!(unsafe { lws::user_bits(block, 6) }, Some(37));
/// # unsafe { heap.release(block, 1) };
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct UserBits {
    /// The bits; those above the count are ignored.
    pub value: u64,
    /// Number of bits, 0 to 64.
    pub count: u32,
}

impl UserBits {
    /// No bits.
    pub const NONE: Self = Self { value: 0, count: 0 };

    /// Returns a function that writes them behind the size of a blob.
    pub(crate) fn fields(self) -> impl FnOnce(&mut BitWriter<SliceSink<'_>>) {
        move |writer| {
            if self.count > 0 {
                // A sink that is full here is still full when the blob is closed, which reports it.
                let _ = writer.field(self.value, self.count.min(64));
            }
        }
    }
}

/// Addresses that were captured before, innermost first.
impl CallStack for [usize] {
    fn addresses(&self, into: &mut [usize]) -> usize {
        into.iter_mut().zip(self).map(|(place, address)| *place = *address).count()
    }
}

impl<const N: usize> CallStack for [usize; N] {
    fn addresses(&self, into: &mut [usize]) -> usize {
        self.as_slice().addresses(into)
    }
}

impl<S: CallStack + ?Sized> CallStack for &S {
    fn addresses(&self, into: &mut [usize]) -> usize {
        (**self).addresses(into)
    }

    fn reference(&self) -> StackReference {
        (**self).reference()
    }

    fn numbered(&self) -> Option<(u32, &'static CompressedStacks)> {
        (**self).numbered()
    }

    fn user_bits(&self) -> UserBits {
        (**self).user_bits()
    }
}

/// No stack: annotations hold the size only.
#[derive(Clone, Copy, Default, Debug)]
pub struct NoStack;

impl CallStack for NoStack {
    fn addresses(&self, _into: &mut [usize]) -> usize {
        0
    }
}

/// The stack that calls the allocator, captured by `cairn-capture` on request of the heap.
#[cfg(feature = "capture")]
#[derive(Clone, Copy, Default, Debug)]
pub struct Here {
    /// Number of innermost frames to leave out: those of the allocator itself.
    pub skip: usize,
}

#[cfg(feature = "capture")]
impl CallStack for Here {
    #[inline]
    fn addresses(&self, into: &mut [usize]) -> usize {
        addresses_of(cairn_capture::capture(), self.skip, into)
    }

    #[inline]
    fn reference(&self) -> StackReference {
        let mut id = cairn_capture::capture().id();
        for _ in 0..self.skip {
            match id.row() {
                Some(row) if row.parent != cairn_capture::StackId::EMPTY => id = row.parent,
                _ => break,
            }
        }
        reference_of(id)
    }
}

/// The stack of a call whose registers a hook of an allocator has stored at its first instruction.
#[cfg(feature = "capture")]
#[derive(Clone, Copy, Debug)]
pub struct At(cairn_capture::CallSite);

#[cfg(feature = "capture")]
impl At {
    /// Returns the stack that calls from `site`.
    ///
    /// # Safety
    ///
    /// While this value is used, the contract of [`cairn_capture::capture_at`] holds: `site` is of
    /// a call on this thread that has not returned.
    #[inline(always)]
    #[must_use]
    pub const unsafe fn new(site: cairn_capture::CallSite) -> Self {
        Self(site)
    }
}

#[cfg(feature = "capture")]
impl CallStack for At {
    #[inline(always)]
    fn addresses(&self, into: &mut [usize]) -> usize {
        // SAFETY: the caller of `new` has promised a call that has not returned.
        addresses_of(unsafe { cairn_capture::capture_at(self.0) }, 0, into)
    }

    #[inline(always)]
    fn reference(&self) -> StackReference {
        // SAFETY: the caller of `new` has promised a call that has not returned.
        reference_of(unsafe { cairn_capture::capture_at(self.0) }.id())
    }

    #[inline(always)]
    fn numbered(&self) -> Option<(u32, &'static CompressedStacks)> {
        // SAFETY: the caller of `new` has promised a call that has not returned.
        match unsafe { cairn_capture::capture_at(self.0) }.id() {
            cairn_capture::StackId::LOST => None,
            id => Some((id.number(), &COMPRESSED)),
        }
    }
}

/// Cache of all heaps of the program, in which a number means the same stack.
#[cfg(feature = "capture")]
static COMPRESSED: CompressedStacks = CompressedStacks::new();

#[cfg(feature = "capture")]
fn addresses_of(stack: cairn_capture::Stack, skip: usize, into: &mut [usize]) -> usize {
    let addresses = stack.frames().skip(skip).filter_map(cairn_format::Frame::address);
    into.iter_mut().zip(addresses).map(|(place, address)| *place = address.value() as usize).count()
}

#[cfg(feature = "capture")]
fn reference_of(id: cairn_capture::StackId) -> StackReference {
    match id {
        cairn_capture::StackId::LOST => StackReference::None,
        id => StackReference::Number(id.number()),
    }
}
