//! Arrays of one thread that grow, in memory of the kernel.

use core::ptr::{self, NonNull};

use crate::stacks::mapping;

/// An array that grows as it is written. All-zero bytes are an empty one.
///
/// `T` is a value for all-zero bytes, and has no destructor.
pub(super) struct Room<T> {
    first: *mut T,
    capacity: usize,
}

impl<T: Copy> Room<T> {
    const FIRST_BYTES: usize = 16 << 10;

    /// The first `count` elements; fewer if fewer were ever written.
    #[inline(always)]
    pub(super) fn all(&self, count: usize) -> &[T] {
        if self.first.is_null() {
            return &[];
        }
        // SAFETY: with a pointer that is not null, `grow` has mapped `capacity` zeroed elements
        // there, to which only this refers.
        unsafe { core::slice::from_raw_parts(self.first, count.min(self.capacity)) }
    }

    /// Writes an element; `None` when there is no memory for it.
    #[inline(always)]
    pub(super) fn put(&mut self, index: usize, value: T) -> Option<()> {
        if index >= self.capacity {
            self.grow(index)?;
        }
        // SAFETY: `grow` has mapped `capacity` elements at `first`, and index < capacity.
        unsafe { self.first.add(index).write(value) };
        Some(())
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self, index: usize) -> Option<()> {
        let old_bytes = self.capacity * size_of::<T>();
        let bytes =
            (index + 1).checked_mul(size_of::<T>() * 2)?.max(Self::FIRST_BYTES).next_multiple_of(4096);
        let fresh = mapping::reserve(bytes)?.cast::<T>();
        if let Some(old) = NonNull::new(self.first) {
            // SAFETY: both hold `capacity` elements, the new mapping being larger, and a new
            // mapping overlaps nothing.
            unsafe { ptr::copy_nonoverlapping(old.as_ptr(), fresh.as_ptr(), self.capacity) };
            // SAFETY: `old` is a mapping of `old_bytes` bytes, in whole pages, that an earlier call
            // made; `first` was the only pointer to it.
            unsafe { mapping::release(old.cast(), old_bytes.next_multiple_of(4096)) };
        }
        (self.first, self.capacity) = (fresh.as_ptr(), bytes / size_of::<T>());
        Some(())
    }
}
