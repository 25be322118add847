//! A growing array that never moves: address space reserved once, memory taken as it is filled.
//!
//! Readers hold plain references into it for as long as the process lives, in signal handlers too, which no array that
//! is copied when it grows could offer.

use core::marker::PhantomData;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering, fence};

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
    limit: AtomicUsize,
    used: AtomicUsize,
}

/// A region takes at most one part in so many of the address space that is left, so that the other regions and the program
/// itself get theirs.
const SHARE: usize = 4;

/// See the module documentation. Element 0 is never handed out, so that 0 can mean "none".
pub(crate) struct Region<T> {
    header: AtomicPtr<Header>,
    /// Sizes to ask the kernel for, in elements; the first is taken that leaves enough to others ([`SHARE`]), or else the
    /// last. A process that limits its address space gets a smaller region.
    limits: &'static [usize],
    elements: PhantomData<T>,
}

// SAFETY: `T` is made of atomics (the bound of every method), and the pointer is only written once, atomically.
unsafe impl<T: ZeroedAtomics> Sync for Region<T> {}

impl<T: ZeroedAtomics> Region<T> {
    pub(crate) const fn new(limits: &'static [usize]) -> Self {
        Self { header: AtomicPtr::new(ptr::null_mut()), limits, elements: PhantomData }
    }

    /// All elements, also those that were not handed out yet, which read as zero. Empty when there is no memory.
    #[inline]
    pub(crate) fn elements(&self) -> &[T] {
        match self.existing() {
            Some(header) => elements_behind(header),
            None => &[],
        }
    }

    /// Takes `count` neighbouring elements; returns the index of the first, or `None` when the region is full.
    pub(crate) fn take(&self, count: usize) -> Option<usize> {
        let header = self.existing().or_else(|| self.make())?;
        let take =
            |used: usize| used.checked_add(count).filter(|&end| end <= header.limit.load(Ordering::Relaxed));
        header.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).ok()
    }

    /// How many elements were handed out, the unused first one included.
    pub(crate) fn used(&self) -> usize {
        self.existing().map_or(0, |header| header.used.load(Ordering::Relaxed))
    }

    #[inline]
    fn existing(&self) -> Option<&Header> {
        let header = self.header.load(Ordering::Acquire);
        // SAFETY: null, or a mapping that `make` initialised before it published it and that is never released.
        unsafe { header.as_ref() }
    }

    #[cold]
    fn make(&self) -> Option<&Header> {
        let (&smallest, larger) = self.limits.split_last()?;
        let (limit, fresh) = larger
            .iter()
            .find_map(|&limit| Some((limit, reserve_share(Self::bytes(limit))?)))
            .or_else(|| Some((smallest, mapping::reserve(Self::bytes(smallest))?)))?;
        let header: NonNull<Header> = fresh.cast();
        // SAFETY: the mapping is ours alone, large enough, and page aligned.
        unsafe { header.write(Header { limit: AtomicUsize::new(limit), used: AtomicUsize::new(1) }) };
        let null = ptr::null_mut();
        if self.header.compare_exchange(null, header.as_ptr(), Ordering::AcqRel, Ordering::Acquire).is_err() {
            // SAFETY: the mapping was not published, so nobody else knows it.
            unsafe { mapping::release(fresh, Self::bytes(limit)) };
        }
        self.existing()
    }

    /// Gives back what was reserved beyond `most_bytes`, as far as it is behind the elements in use, `used` of them at this moment.
    pub(crate) fn shrink(&self, most_bytes: usize, used: impl Fn() -> usize) {
        /// Elements that threads may take meanwhile which still know the old limit.
        const SLACK: usize = 1 << 14;
        // Made now if need be: later it would be made of memory that is locked.
        let Some(header) = self.existing().or_else(|| self.make()) else { return };
        let limit = header.limit.load(Ordering::Relaxed);
        let fits = |&&limit: &&usize| Self::bytes(limit) <= most_bytes;
        let Some(&allowed) = self.limits.iter().find(fits).or(self.limits.last()) else { return };
        let wanted = allowed.max(used() + SLACK);
        let kept = wanted + SLACK;
        if kept >= limit {
            return;
        }
        header.limit.store(wanted, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let kept = kept.max(used() + SLACK);
        let from = Self::bytes(kept).next_multiple_of(PAGE_BYTES);
        if let Some(bytes) = Self::bytes(limit).checked_sub(from)
            && bytes > 0
        {
            let first = NonNull::from(header).cast::<u8>();
            // SAFETY: whole pages of the region's own mapping, behind all that was handed out or can be from now on.
            unsafe { mapping::release(first.add(from), bytes) };
        }
    }

    const fn bytes(limit: usize) -> usize {
        size_of::<Header>() + limit * size_of::<T>()
    }
}

/// Reserves memory if that is at most one [`SHARE`] of what could be had.
fn reserve_share(bytes: usize) -> Option<NonNull<u8>> {
    let bytes = bytes.next_multiple_of(PAGE_BYTES);
    let all = mapping::reserve(bytes * SHARE)?;
    // SAFETY: the rest of the new mapping, in whole pages, which nobody knows.
    unsafe { mapping::release(all.add(bytes), bytes * (SHARE - 1)) };
    Some(all)
}

/// The largest page of any system we know: what is given back begins at a page.
const PAGE_BYTES: usize = 1 << 16;

#[inline]
fn elements_behind<T: ZeroedAtomics>(header: &Header) -> &[T] {
    const { assert!(align_of::<T>() <= align_of::<Header>()) };
    let first = ptr::from_ref(header).wrapping_add(1).cast::<T>();
    // SAFETY: `make` reserved this many zeroed elements behind the header, and zeroed atomics are values (bound).
    unsafe { core::slice::from_raw_parts(first, header.limit.load(Ordering::Relaxed)) }
}
