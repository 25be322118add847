//! A growing array that never moves: a mapping that the kernel makes longer where it lies.
//!
//! Readers hold plain references into it for as long as the process lives, in signal handlers too, which no array that
//! is copied when it grows could offer. Address space is not reserved: programs read how much they have mapped, and limit
//! themselves by it. So the mapping lies far below the addresses at which the kernel places new ones, where nothing else grows to.

use core::marker::PhantomData;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use crate::mapping;

/// Types for which all-zero bytes are a value and shared access is safe: atomics, and structs of them.
///
/// # Safety
///
/// The type consists of atomics only, without padding that matters and without a destructor.
pub(crate) unsafe trait ZeroedAtomics {}

// SAFETY: it is an atomic.
unsafe impl ZeroedAtomics for core::sync::atomic::AtomicU32 {}
// SAFETY: it is an atomic.
unsafe impl ZeroedAtomics for core::sync::atomic::AtomicU64 {}

/// In front of the elements, so that a reader that sees the memory sees its size too.
#[repr(C, align(64))]
struct Header {
    /// How many elements there is memory for.
    mapped: AtomicUsize,
    /// How many there may be.
    limit: AtomicUsize,
    used: AtomicUsize,
}

/// So many bytes a region has at first, and so many it grows by at least.
const FIRST_BYTES: usize = 1 << 18;

/// See the module documentation. Element 0 is never handed out, so that 0 can mean "none".
pub(crate) struct Region<T> {
    header: AtomicPtr<Header>,
    /// How many elements there may be: the first of these, or a later one where the process limits its address space.
    limits: &'static [usize],
    /// How far below other mappings it lies.
    distance_bytes: usize,
    elements: PhantomData<T>,
}

// SAFETY: `T` is made of atomics (the bound of every method), and the pointer is only written once, atomically.
unsafe impl<T: ZeroedAtomics> Sync for Region<T> {}

impl<T: ZeroedAtomics> Region<T> {
    pub(crate) const fn new(limits: &'static [usize], distance_bytes: usize) -> Self {
        Self { header: AtomicPtr::new(ptr::null_mut()), limits, distance_bytes, elements: PhantomData }
    }

    /// All elements that there is memory for, also those that were not handed out yet, which read as zero. Empty when there is no memory.
    #[inline]
    pub(crate) fn elements(&self) -> Elements<'_, T> {
        Elements { header: self.existing().unwrap_or(&NOTHING), elements: PhantomData }
    }

    /// Takes `count` neighbouring elements; returns the index of the first, or `None` when the region is full.
    pub(crate) fn take(&self, count: usize) -> Option<usize> {
        let header = self.existing().or_else(|| self.make())?;
        let mut used = header.used.load(Ordering::Relaxed);
        loop {
            let end = used.checked_add(count).filter(|&end| end <= header.limit.load(Ordering::Relaxed))?;
            let mapped = header.mapped.load(Ordering::Acquire);
            // Early: the thread that makes it longer may be stopped in the midst of that, and none waits for it.
            if end > mapped - mapped / 4 {
                lengthen::<T>(header, end);
                if end > header.mapped.load(Ordering::Acquire) {
                    return None;
                }
            }
            match header.used.compare_exchange_weak(used, end, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(first) => return Some(first),
                Err(other) => used = other,
            }
        }
    }

    /// The element at `index`, for a region that goes as far as another one does; `None` when there is no memory for it.
    pub(crate) fn reach(&self, index: usize) -> Option<&T> {
        let header = self.existing().or_else(|| self.make())?;
        let end = index.checked_add(1).filter(|&end| end <= header.limit.load(Ordering::Relaxed))?;
        let mapped = header.mapped.load(Ordering::Acquire);
        if end > mapped - mapped / 4 {
            lengthen::<T>(header, end);
        }
        self.elements().get(index)
    }

    /// How many elements were handed out, the unused first one included.
    pub(crate) fn used(&self) -> usize {
        self.existing().map_or(0, |header| header.used.load(Ordering::Relaxed))
    }

    #[inline]
    fn existing(&self) -> Option<&Header> {
        let header = self.header.load(Ordering::Acquire);
        // SAFETY: null, or a mapping that `make` initialised before it published it; `release` unmaps it when nothing uses it.
        unsafe { header.as_ref() }
    }

    #[cold]
    fn make(&self) -> Option<&Header> {
        let &limit = self.limits.first()?;
        let mapped = elements_in::<T>(FIRST_BYTES).min(limit);
        let least_distance = Self::bytes(limit).saturating_mul(2);
        let fresh = mapping::reserve_apart(FIRST_BYTES, self.distance_bytes, least_distance)?;
        let header: NonNull<Header> = fresh.cast();
        let first = Header {
            mapped: AtomicUsize::new(mapped),
            limit: AtomicUsize::new(limit),
            used: AtomicUsize::new(1),
        };
        // SAFETY: the mapping is ours alone, large enough, and page aligned.
        unsafe { header.write(first) };
        let null = ptr::null_mut();
        if self.header.compare_exchange(null, header.as_ptr(), Ordering::AcqRel, Ordering::Acquire).is_err() {
            // SAFETY: the mapping was not published, so nobody else knows it.
            unsafe { mapping::release(fresh, FIRST_BYTES) };
        }
        self.existing()
    }

    /// Lets it have no more than `most_bytes`, or what is there already.
    pub(crate) fn shrink(&self, most_bytes: usize) {
        // Made now if need be: later it would be made of memory that is locked.
        let Some(header) = self.existing().or_else(|| self.make()) else { return };
        let fits = |&&limit: &&usize| Self::bytes(limit) <= most_bytes;
        let Some(&allowed) = self.limits.iter().find(fits).or(self.limits.last()) else { return };
        header.limit.fetch_min(allowed.max(header.mapped.load(Ordering::Relaxed)), Ordering::Relaxed);
    }

    /// Unmaps it. It is then as it was before its first element.
    ///
    /// # Safety
    ///
    /// No reference into it is used afterwards, and no other thread uses it meanwhile.
    pub(crate) unsafe fn release(&self) {
        let header = self.header.swap(ptr::null_mut(), Ordering::AcqRel);
        let Some(memory) = NonNull::new(header) else { return };
        // SAFETY: `make` published it, and nothing unmapped it since: the pointer was the only one.
        let mapped = unsafe { memory.as_ref() }.mapped.load(Ordering::Acquire);
        let bytes = Self::bytes(mapped).next_multiple_of(mapping::PAGE_BYTES);
        // SAFETY: a whole mapping of this region, which nobody uses any more, by contract.
        unsafe { mapping::release(memory.cast(), bytes) };
    }

    const fn bytes(limit: usize) -> usize {
        size_of::<Header>() + limit * size_of::<T>()
    }
}

/// How many elements fit into so many bytes, behind the header.
const fn elements_in<T>(bytes: usize) -> usize {
    (bytes - size_of::<Header>()) / size_of::<T>()
}

/// Sees to it that there is memory for elements up to `end`, and some more, where the kernel gives it and no other thread is at it.
#[cold]
fn lengthen<T>(header: &Header, end: usize) {
    let mapped = header.mapped.load(Ordering::Acquire);
    let begin = ptr::from_ref(header) as usize;
    // What is mapped is whole pages; the elements in them may be fewer by one than would fit.
    let old_bytes = (size_of::<Header>() + mapped * size_of::<T>()).next_multiple_of(mapping::PAGE_BYTES);
    let needed = (size_of::<Header>() + end * size_of::<T>()).saturating_sub(old_bytes);
    let limit = header.limit.load(Ordering::Relaxed);
    let all = (size_of::<Header>() + limit * size_of::<T>()).next_multiple_of(mapping::PAGE_BYTES);
    // A quarter more of a large one, twice as much of a small one.
    let step = (old_bytes / 4).max(old_bytes.min(8 * FIRST_BYTES)).max(needed);
    let more = step.next_multiple_of(mapping::PAGE_BYTES).min(all.saturating_sub(old_bytes));
    if more > 0 && mapping::lengthen(begin + old_bytes, more) {
        let elements = elements_in::<T>(old_bytes + more).min(limit);
        header.mapped.fetch_max(elements, Ordering::AcqRel);
    }
}

/// Of a region that was not made.
static NOTHING: Header =
    Header { mapped: AtomicUsize::new(0), limit: AtomicUsize::new(0), used: AtomicUsize::new(0) };

/// The elements of a region, those that are added later too.
pub(crate) struct Elements<'a, T> {
    header: &'a Header,
    elements: PhantomData<&'a T>,
}

impl<T> Clone for Elements<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Elements<'_, T> {}

impl<'a, T: ZeroedAtomics> Elements<'a, T> {
    /// The element at `index`, if there is memory for it. A thread that has the number of an element from the one that took it finds
    /// it: the memory was there before.
    #[inline(always)]
    pub(crate) fn get(self, index: usize) -> Option<&'a T> {
        const { assert!(align_of::<T>() <= align_of::<Header>()) };
        if index >= self.header.mapped.load(Ordering::Relaxed) {
            return None;
        }
        let first = ptr::from_ref(self.header).wrapping_add(1).cast::<T>();
        // SAFETY: behind the header are `mapped` zeroed elements, for good, and zeroed atomics are values (bound); the index is below.
        Some(unsafe { &*first.wrapping_add(index) })
    }
}
