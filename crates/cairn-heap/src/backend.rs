//! The underlying allocator, which provides the memory of annotated blocks.

use core::alloc::{GlobalAlloc, Layout};
use core::ffi::c_void;
use core::ptr;

/// An allocator that [`Heap`](crate::Heap) gets its memory from.
///
/// # Safety
///
/// - Returned memory is exclusive until it is released, and has the requested size and alignment.
/// - [`alignment`](Self::alignment) is a power of two, at least the size of a pointer, and always
///   the same.
pub unsafe trait Backend {
    /// Returns the alignment that all memory has without a request.
    fn alignment(&self) -> usize;

    /// Returns whether [`allocate`](Self::allocate) supports larger alignments. Otherwise the heap
    /// requests more bytes and aligns by itself.
    fn can_align(&self) -> bool {
        true
    }

    /// Allocates `size` bytes, zeroed if `is_zeroed`; null when there is no memory.
    fn allocate(&self, size: usize, alignment: usize, is_zeroed: bool) -> *mut u8;

    /// Releases memory.
    ///
    /// # Safety
    ///
    /// This allocator returned `origin` for this size and this alignment, and nobody uses it any
    /// more.
    unsafe fn release(&self, origin: *mut u8, size: usize, alignment: usize);

    /// Resizes memory and preserves its contents; on failure returns null and changes nothing.
    ///
    /// # Safety
    ///
    /// This allocator returned `origin` for this size and [`alignment`](Self::alignment), and
    /// nobody else uses it.
    unsafe fn resize(&self, origin: *mut u8, size: usize, new_size: usize) -> *mut u8;

    /// Returns the usable bytes at `origin`, if the allocator knows them.
    ///
    /// # Safety
    ///
    /// This allocator returned `origin`.
    unsafe fn usable_size(&self, _origin: *mut u8) -> Option<usize> {
        None
    }

    /// Returns whether the 16 bytes in front of `user` may be read: true for every block of this
    /// allocator. Override it where blocks of other allocators may come.
    fn may_read_before(&self, _user: *const u8) -> bool {
        true
    }

    /// Releases memory that was allocated without the heap. By default it does nothing.
    ///
    /// # Safety
    ///
    /// Nobody uses it any more.
    unsafe fn release_foreign(&self, _user: *mut u8) {}

    /// Resizes memory that was allocated without the heap. By default it returns null.
    ///
    /// # Safety
    ///
    /// Nobody else uses the memory.
    unsafe fn resize_foreign(&self, _user: *mut u8, _size: usize) -> *mut u8 {
        ptr::null_mut()
    }

    /// Called when a released block is freed again. By default it does nothing; a C library's
    /// `free` reports the error and ends the program.
    ///
    /// # Safety
    ///
    /// This allocator returned `origin`, and it was released.
    unsafe fn freed_twice(&self, _origin: *mut u8) {}

    /// Returns a nonzero number that differs between threads that run at the same time.
    fn thread(&self) -> usize {
        1
    }

    /// Returns any number, which selects the shard of this thread. Threads that often run at once
    /// should differ.
    fn shard(&self) -> usize {
        0
    }
}

/// Uses any [`GlobalAlloc`] as the underlying allocator.
#[derive(Clone, Copy, Default, Debug)]
pub struct Global<A>(pub A);

/// Alignment of all requests to `GlobalAlloc`; that of `malloc`.
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

/// Functions with the signatures of `malloc` and its family: an RTOS's heap, dlmalloc, a pool.
#[derive(Clone, Copy, Debug)]
pub struct MallocFunctions {
    /// Allocates as `malloc` does.
    pub malloc: unsafe extern "C" fn(usize) -> *mut c_void,
    /// Frees as `free` does.
    pub free: unsafe extern "C" fn(*mut c_void),
    /// Resizes as `realloc` does, if there is one.
    pub realloc: Option<unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void>,
    /// Allocates as `memalign` does, if there is one: alignment, size.
    pub memalign: Option<unsafe extern "C" fn(usize, usize) -> *mut c_void>,
    /// Alignment of memory from `malloc`: a power of two, at least the size of a pointer.
    pub alignment: usize,
}

// SAFETY: the C interface, which alone makes such values of foreign functions, requires an
// allocator.
unsafe impl Backend for MallocFunctions {
    fn alignment(&self) -> usize {
        self.alignment
    }

    fn can_align(&self) -> bool {
        self.memalign.is_some()
    }

    fn allocate(&self, size: usize, alignment: usize, is_zeroed: bool) -> *mut u8 {
        // SAFETY: `malloc` and `memalign` accept any size.
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
        // SAFETY: the caller promises memory that the program got from the same functions.
        unsafe { (self.free)(user.cast()) }
    }

    unsafe fn resize_foreign(&self, user: *mut u8, size: usize) -> *mut u8 {
        // SAFETY: the caller promises memory that the program got from the same functions.
        self.realloc.map_or(ptr::null_mut(), |realloc| unsafe { realloc(user.cast(), size) }.cast())
    }

    unsafe fn resize(&self, origin: *mut u8, size: usize, new_size: usize) -> *mut u8 {
        if let Some(realloc) = self.realloc {
            // SAFETY: the caller promises memory of `malloc` that nobody else uses.
            return unsafe { realloc(origin.cast(), new_size) }.cast();
        }
        let new = self.allocate(new_size, self.alignment, false);
        if !new.is_null() {
            // SAFETY: both blocks have at least as many bytes as are copied; the caller promises
            // that nobody else uses the old one.
            unsafe {
                ptr::copy_nonoverlapping(origin, new, size.min(new_size));
                (self.free)(origin.cast());
            }
        }
        new
    }
}
