//! The device's own allocator: first fit in 64 KiB, neighbours joined when they are free.

use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::ptr;

pub(crate) const POOL_BYTES: usize = 64 << 10;

#[repr(C, align(8))]
struct Memory(UnsafeCell<[u8; POOL_BYTES]>);

/// A part of the pool: in front of it, how large it is, with the lowest bit set while it is in use.
const HEADER_BYTES: usize = 8;

pub(crate) struct Pool {
    memory: Memory,
    is_set_up: UnsafeCell<bool>,
}

// SAFETY: the device has one core, and nothing here runs in interrupt handlers.
unsafe impl Sync for Pool {}

impl Pool {
    pub(crate) const fn new() -> Self {
        Self { memory: Memory(UnsafeCell::new([0; POOL_BYTES])), is_set_up: UnsafeCell::new(false) }
    }

    /// Returns how many bytes are in use, headers included.
    pub(crate) fn in_use_bytes(&self) -> usize {
        let (mut at, mut in_use) = (0, 0);
        // SAFETY: sizes in the headers lead from part to part to the end of the pool.
        while at < POOL_BYTES && unsafe { *self.is_set_up.get() } {
            // SAFETY: as above.
            let size = unsafe { self.part(at).read() };
            in_use += if size & 1 != 0 { size & !1 } else { 0 };
            at += size & !1;
        }
        in_use
    }

    /// Where it is.
    #[cfg(not(feature = "plain"))]
    pub(crate) const fn start(&self) -> *const u8 {
        self.memory.0.get().cast()
    }

    fn part(&self, at: usize) -> *mut usize {
        // SAFETY: the callers stay inside.
        unsafe { self.memory.0.get().cast::<u8>().add(at).cast() }
    }
}

// For a reference, so that the pool can be looked at beside the allocator. SAFETY: parts do not
// overlap, and are multiples of 8.
unsafe impl GlobalAlloc for &'static Pool {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.align() > 8 || layout.size() > POOL_BYTES {
            return ptr::null_mut();
        }
        let wanted = layout.size().next_multiple_of(8) + HEADER_BYTES;
        // SAFETY: sizes in the headers lead from part to part to the end of the pool.
        unsafe {
            if !*self.is_set_up.get() {
                *self.is_set_up.get() = true;
                self.part(0).write(POOL_BYTES);
            }
            let mut at = 0;
            while at < POOL_BYTES {
                let header = self.part(at);
                let mut size = header.read();
                if size & 1 != 0 {
                    at += size & !1;
                    continue;
                }
                while at + size < POOL_BYTES && self.part(at + size).read() & 1 == 0 {
                    size += self.part(at + size).read();
                }
                if size >= wanted {
                    if size - wanted >= 2 * HEADER_BYTES {
                        self.part(at + wanted).write(size - wanted);
                        size = wanted;
                    }
                    header.write(size | 1);
                    return header.cast::<u8>().add(HEADER_BYTES);
                }
                header.write(size);
                at += size;
            }
        }
        ptr::null_mut()
    }

    unsafe fn dealloc(&self, block: *mut u8, _: Layout) {
        // SAFETY: by contract, a part in use.
        unsafe {
            let header = block.sub(HEADER_BYTES).cast::<usize>();
            header.write(header.read() & !1);
        }
    }
}
