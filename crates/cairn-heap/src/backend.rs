//! The allocator underneath: where the memory of annotated blocks comes from.

use core::alloc::{GlobalAlloc, Layout};
use core::ffi::c_void;
use core::ptr;

/// An allocator that [`Heap`](crate::Heap) gets its memory from.
///
/// # Safety
///
/// - Memory that was given out is nobody else's until it is given back, and has the size and the
///   alignment asked for.
/// - [`alignment`](Self::alignment) is a power of two, at least the size of a pointer, and always
///   the same.
pub unsafe trait Backend {
    /// The alignment that every block has, without being asked for.
    fn alignment(&self) -> usize;

    /// Whether [`allocate`](Self::allocate) can give larger alignments. Where it cannot, the heap
    /// asks for more and aligns by itself.
    fn can_align(&self) -> bool {
        true
    }

    /// Memory of `size` bytes; zeros if `is_zeroed`. Null when there is none.
    fn allocate(&self, size: usize, alignment: usize, is_zeroed: bool) -> *mut u8;

    /// Takes memory back.
    ///
    /// # Safety
    ///
    /// `origin` was given out by this allocator, with this size and this alignment, and nobody uses
    /// it.
    unsafe fn release(&self, origin: *mut u8, size: usize, alignment: usize);

    /// Memory of another size with the old content, or null and nothing has changed.
    ///
    /// # Safety
    ///
    /// `origin` was given out by this allocator with this size and [`alignment`](Self::alignment),
    /// and nobody uses it.
    unsafe fn resize(&self, origin: *mut u8, size: usize, new_size: usize) -> *mut u8;

    /// How many bytes at `origin` may be used, where the allocator knows.
    ///
    /// # Safety
    ///
    /// `origin` was given out by this allocator.
    unsafe fn usable_size(&self, _origin: *mut u8) -> Option<usize> {
        None
    }

    /// Whether the 16 bytes in front of `user` may be read. True for every block of this allocator;
    /// it is for whoever must expect blocks of others.
    fn may_read_before(&self, _user: *const u8) -> bool {
        true
    }

    /// Takes what is no block of the heap: memory that was allocated past it. Nothing happens where
    /// there is no such thing.
    ///
    /// # Safety
    ///
    /// Nobody uses it any more.
    unsafe fn release_foreign(&self, _user: *mut u8) {}

    /// Resizes what is no block of the heap; null where there is no such thing.
    ///
    /// # Safety
    ///
    /// As for [`release_foreign`](Self::release_foreign).
    unsafe fn resize_foreign(&self, _user: *mut u8, _size: usize) -> *mut u8 {
        ptr::null_mut()
    }

    /// Is told that memory which was released is freed again. Nothing happens by default; a C
    /// library's own `free` would say so and end the program.
    ///
    /// # Safety
    ///
    /// `origin` was given out by this allocator and released.
    unsafe fn freed_twice(&self, _origin: *mut u8) {}

    /// A number that is not 0 and that no other thread has which runs at the same time.
    fn thread(&self) -> usize {
        1
    }

    /// Which of the heap's shards this thread uses. Any number; threads that are likely to run at
    /// once should differ.
    fn shard(&self) -> usize {
        0
    }
}

/// Any [`GlobalAlloc`] as what is underneath.
#[derive(Clone, Copy, Default, Debug)]
pub struct Global<A>(pub A);

/// What `GlobalAlloc` is always asked for: the alignment of `malloc`.
const GLOBAL_ALIGNMENT: usize = 2 * size_of::<usize>();

// SAFETY: `GlobalAlloc` requires exclusive memory of the size and alignment of the layout, which is
// all that `Backend` requires.
unsafe impl<A: GlobalAlloc> Backend for Global<A> {
    fn alignment(&self) -> usize {
        GLOBAL_ALIGNMENT
    }

    fn allocate(&self, size: usize, alignment: usize, is_zeroed: bool) -> *mut u8 {
        let Ok(layout) = Layout::from_size_align(size.max(1), alignment) else { return ptr::null_mut() };
        // SAFETY: the size is not zero.
        unsafe { if is_zeroed { self.0.alloc_zeroed(layout) } else { self.0.alloc(layout) } }
    }

    unsafe fn release(&self, origin: *mut u8, size: usize, alignment: usize) {
        // SAFETY: by contract it was allocated with this layout, which was a valid one.
        unsafe { self.0.dealloc(origin, Layout::from_size_align_unchecked(size.max(1), alignment)) }
    }

    unsafe fn resize(&self, origin: *mut u8, size: usize, new_size: usize) -> *mut u8 {
        if Layout::from_size_align(new_size, GLOBAL_ALIGNMENT).is_err() {
            return ptr::null_mut();
        }
        // SAFETY: by contract, and the new size was checked.
        unsafe {
            let layout = Layout::from_size_align_unchecked(size.max(1), GLOBAL_ALIGNMENT);
            self.0.realloc(origin, layout, new_size.max(1))
        }
    }
}

/// Functions of the shape of `malloc`, given by the program: an RTOS's heap, dlmalloc, a pool.
#[derive(Clone, Copy, Debug)]
pub struct MallocFunctions {
    /// As `malloc`.
    pub malloc: unsafe extern "C" fn(usize) -> *mut c_void,
    /// As `free`.
    pub free: unsafe extern "C" fn(*mut c_void),
    /// As `realloc`, if there is one.
    pub realloc: Option<unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void>,
    /// As `memalign`, if there is one: alignment, size.
    pub memalign: Option<unsafe extern "C" fn(usize, usize) -> *mut c_void>,
    /// The alignment of what `malloc` returns: a power of two, at least the size of a pointer.
    pub alignment: usize,
}

// SAFETY: whoever gives the functions vouches for them (`CHeap::new`, the C interface).
unsafe impl Backend for MallocFunctions {
    fn alignment(&self) -> usize {
        self.alignment
    }

    fn can_align(&self) -> bool {
        self.memalign.is_some()
    }

    fn allocate(&self, size: usize, alignment: usize, is_zeroed: bool) -> *mut u8 {
        // SAFETY: functions of that shape take any size.
        let memory = unsafe {
            match self.memalign {
                Some(memalign) if alignment > self.alignment => memalign(alignment, size),
                _ => (self.malloc)(size),
            }
        };
        let memory = memory.cast::<u8>();
        if is_zeroed && !memory.is_null() {
            // SAFETY: fresh memory of that size.
            unsafe { memory.write_bytes(0, size) };
        }
        memory
    }

    unsafe fn release(&self, origin: *mut u8, _size: usize, _alignment: usize) {
        // SAFETY: the caller promises memory of `malloc` that nobody uses any more.
        unsafe { (self.free)(origin.cast()) }
    }

    unsafe fn release_foreign(&self, user: *mut u8) {
        // SAFETY: by contract it is this allocator's.
        unsafe { (self.free)(user.cast()) }
    }

    unsafe fn resize_foreign(&self, user: *mut u8, size: usize) -> *mut u8 {
        // SAFETY: by contract it is this allocator's.
        self.realloc.map_or(ptr::null_mut(), |realloc| unsafe { realloc(user.cast(), size) }.cast())
    }

    unsafe fn resize(&self, origin: *mut u8, size: usize, new_size: usize) -> *mut u8 {
        if let Some(realloc) = self.realloc {
            // SAFETY: the caller promises memory of `malloc` that nobody else uses.
            return unsafe { realloc(origin.cast(), new_size) }.cast();
        }
        let new = self.allocate(new_size, self.alignment, false);
        if !new.is_null() {
            // SAFETY: two blocks of at least so many bytes; the old one is nobody's from here on.
            unsafe {
                ptr::copy_nonoverlapping(origin, new, size.min(new_size));
                (self.free)(origin.cast());
            }
        }
        new
    }
}
