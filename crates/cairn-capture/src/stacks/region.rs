//! A growing array that never moves: a mapping that the kernel extends in place.
//!
//! Readers hold plain references into it until the process ends, in signal handlers too. An array
//! that is copied when it grows could not offer that. Address space is not reserved in advance,
//! because programs limit themselves by how much they have mapped. So the mapping lies far below
//! the addresses of the kernel's choice, where no other mapping grows.

use core::marker::PhantomData;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use crate::stacks::mapping;

/// Marks types that are valid as zero bytes and safe to share: atomics, and structs of them.
///
/// # Safety
///
/// - The type consists of atomics only, without padding and without a destructor.
pub(crate) unsafe trait ZeroedAtomics {}

// SAFETY: the type is one atomic, for which zero is a value.
unsafe impl ZeroedAtomics for core::sync::atomic::AtomicU32 {}
// SAFETY: the type is one atomic, for which zero is a value.
unsafe impl ZeroedAtomics for core::sync::atomic::AtomicU64 {}

/// Precedes the elements, so that a reader that finds the memory finds its size as well.
#[repr(C, align(64))]
struct RegionHeader {
    /// Number of elements that have memory.
    mapped: AtomicUsize,
    /// Maximum number of elements.
    limit: AtomicUsize,
    /// Number of elements allocated.
    used: AtomicUsize,
}

/// Initial size of a region, and the smallest growth.
const FIRST_BYTES: usize = 1 << 18;

/// The array. Element 0 is never allocated, so that 0 can mean "none".
pub(crate) struct Region<T> {
    header: AtomicPtr<RegionHeader>,
    /// Maximum numbers of elements. The first applies, or a later one where the process limits its
    /// address space.
    limits: &'static [usize],
    /// Distance below other mappings.
    distance_bytes: usize,
    elements: PhantomData<T>,
}

// SAFETY: `T` consists of atomics (the bound of every method), and the pointer and the header are
// atomics too.
unsafe impl<T: ZeroedAtomics> Sync for Region<T> {}

impl<T: ZeroedAtomics> Region<T> {
    pub(crate) const fn new(limits: &'static [usize], distance_bytes: usize) -> Self {
        Self { header: AtomicPtr::new(ptr::null_mut()), limits, distance_bytes, elements: PhantomData }
    }

    /// All elements that have memory. Those that were not allocated yet read as zero. Empty when
    /// there is no memory.
    #[inline]
    pub(crate) fn elements(&self) -> Elements<'_, T> {
        Elements {
            header: self.existing_header().unwrap_or(NonNull::from_ref(&NOTHING)),
            elements: PhantomData,
        }
    }

    /// Allocates `count` neighbouring elements. Returns the index of the first, or `None` when the
    /// region is full.
    pub(crate) fn take(&self, count: usize) -> Option<usize> {
        let header = self.existing().or_else(|| self.make())?;
        let mut used = header.used.load(Ordering::Relaxed);
        loop {
            let end = used.checked_add(count).filter(|&end| end <= header.limit.load(Ordering::Relaxed))?;
            let mapped = header.mapped.load(Ordering::Acquire);
            // Extended early: a thread that stops while it extends the region must not block
            // others.
            if end > mapped - mapped / 4 {
                extend::<T>(header, end);
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

    /// Returns the element at `index`, or `None` when there is no memory for it. This is for a
    /// region whose elements belong to those of another one.
    pub(crate) fn reach(&self, index: usize) -> Option<&T> {
        let header = self.existing().or_else(|| self.make())?;
        let end = index.checked_add(1).filter(|&end| end <= header.limit.load(Ordering::Relaxed))?;
        let mapped = header.mapped.load(Ordering::Acquire);
        if end > mapped - mapped / 4 {
            extend::<T>(header, end);
        }
        self.elements().get(index)
    }

    /// Number of elements allocated, including the unused first one.
    pub(crate) fn used(&self) -> usize {
        self.existing().map_or(0, |header| header.used.load(Ordering::Relaxed))
    }

    #[inline]
    fn existing_header(&self) -> Option<NonNull<RegionHeader>> {
        NonNull::new(self.header.load(Ordering::Acquire))
    }

    #[inline]
    fn existing(&self) -> Option<&RegionHeader> {
        // SAFETY: `make` initialised the header before it published it. `release` unmaps it only
        // when nothing uses the region.
        self.existing_header().map(|header| unsafe { header.as_ref() })
    }

    #[cold]
    fn make(&self) -> Option<&RegionHeader> {
        let &limit = self.limits.first()?;
        let mapped = elements_in::<T>(FIRST_BYTES).min(limit);
        let min_distance = Self::bytes(limit).saturating_mul(2);
        let fresh = mapping::reserve_apart(FIRST_BYTES, self.distance_bytes, min_distance)?;
        let header: NonNull<RegionHeader> = fresh.cast();
        let first = RegionHeader {
            mapped: AtomicUsize::new(mapped),
            limit: AtomicUsize::new(limit),
            used: AtomicUsize::new(1),
        };
        // SAFETY: the mapping is not published yet, large enough, and page aligned.
        unsafe { header.write(first) };
        let null = ptr::null_mut();
        if self.header.compare_exchange(null, header.as_ptr(), Ordering::AcqRel, Ordering::Acquire).is_err() {
            // SAFETY: the mapping was not published, so this is the only pointer to it.
            unsafe { mapping::release(fresh, FIRST_BYTES) };
        }
        self.existing()
    }

    /// Limits the region to `max_bytes`, or to its present size.
    pub(crate) fn shrink(&self, max_bytes: usize) {
        // Mapped now if necessary: later it would be mapped as locked memory.
        let Some(header) = self.existing().or_else(|| self.make()) else { return };
        let fits = |&&limit: &&usize| Self::bytes(limit) <= max_bytes;
        let Some(&allowed) = self.limits.iter().find(fits).or(self.limits.last()) else { return };
        header.limit.fetch_min(allowed.max(header.mapped.load(Ordering::Relaxed)), Ordering::Relaxed);
    }

    /// Unmaps the region, which is empty afterwards.
    ///
    /// # Safety
    ///
    /// - No reference into the region is used afterwards, and no other thread uses it meanwhile.
    pub(crate) unsafe fn release(&self) {
        let header = self.header.swap(ptr::null_mut(), Ordering::AcqRel);
        let Some(memory) = NonNull::new(header) else { return };
        // SAFETY: `make` initialised the header and published this pointer, which the swap above
        // took, so that only this call unmaps it.
        let mapped = unsafe { memory.as_ref() }.mapped.load(Ordering::Acquire);
        let bytes = Self::bytes(mapped).next_multiple_of(mapping::PAGE_BYTES);
        // SAFETY: the region's mapping has `mapped` elements and whole pages (`make`, `extend`);
        // the caller promises that nothing uses it.
        unsafe { mapping::release(memory.cast(), bytes) };
    }

    const fn bytes(limit: usize) -> usize {
        size_of::<RegionHeader>() + limit * size_of::<T>()
    }
}

/// Number of elements that fit into `bytes` behind the header.
const fn elements_in<T>(bytes: usize) -> usize {
    (bytes - size_of::<RegionHeader>()) / size_of::<T>()
}

/// Extends the memory to elements up to `end` and some more. The kernel may refuse, or another
/// thread may do it at the same time.
#[cold]
fn extend<T>(header: &RegionHeader, end: usize) {
    let mapped = header.mapped.load(Ordering::Acquire);
    let begin = ptr::from_ref(header) as usize;
    // The mapping has whole pages, which may have room for one more element than is counted.
    let old_bytes =
        (size_of::<RegionHeader>() + mapped * size_of::<T>()).next_multiple_of(mapping::PAGE_BYTES);
    let needed = (size_of::<RegionHeader>() + end * size_of::<T>()).saturating_sub(old_bytes);
    let limit = header.limit.load(Ordering::Relaxed);
    let all = (size_of::<RegionHeader>() + limit * size_of::<T>()).next_multiple_of(mapping::PAGE_BYTES);
    // Grows a large region by a quarter, and doubles a small one.
    let step = (old_bytes / 4).max(old_bytes.min(8 * FIRST_BYTES)).max(needed);
    let more = step.next_multiple_of(mapping::PAGE_BYTES).min(all.saturating_sub(old_bytes));
    if more > 0 && mapping::extend(begin + old_bytes, more) {
        let elements = elements_in::<T>(old_bytes + more).min(limit);
        header.mapped.fetch_max(elements, Ordering::AcqRel);
    }
}

/// Header of a region that has no memory.
static NOTHING: RegionHeader =
    RegionHeader { mapped: AtomicUsize::new(0), limit: AtomicUsize::new(0), used: AtomicUsize::new(0) };

/// The elements of a region, including those that are added later.
pub(crate) struct Elements<'a, T> {
    /// Points to the header and, unlike a reference, allows access to the elements behind it.
    header: NonNull<RegionHeader>,
    elements: PhantomData<&'a T>,
}

impl<T> Clone for Elements<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Elements<'_, T> {}

impl<'a, T: ZeroedAtomics> Elements<'a, T> {
    /// The element at `index`, if it has memory. A thread that received the index from the
    /// allocating thread always finds it.
    #[inline(always)]
    pub(crate) fn get(self, index: usize) -> Option<&'a T> {
        const { assert!(align_of::<T>() <= align_of::<RegionHeader>()) };
        // SAFETY: the pointer is to `NOTHING` or to a header that `make` initialised; `release`
        // unmaps it only when no elements are used.
        let mapped = unsafe { self.header.as_ref() }.mapped.load(Ordering::Relaxed);
        if index >= mapped {
            return None;
        }
        // SAFETY: behind the header are `mapped` elements, zeroed or written as atomics, and zeros
        // are a value (bound); index < mapped.
        Some(unsafe { self.header.add(1).cast::<T>().add(index).as_ref() })
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::AtomicU32;

    use super::*;

    #[test]
    fn elements_remain_in_place_while_the_region_grows() {
        let region = Region::<AtomicU32>::new(&[1 << 18], 1 << 30);
        let first = region.take(1).unwrap();
        let elements = region.elements();
        let first_reference = elements.get(first).unwrap();
        first_reference.store(7, Ordering::Relaxed);
        // 256 KiB hold 65520 elements: this needs the kernel to extend the mapping, which Miri does
        // not model.
        let count = if cfg!(miri) { 1000 } else { 100_000 };
        let last = region.take(count).unwrap() + count - 1;
        assert_eq!(elements.get(last).unwrap().load(Ordering::Relaxed), 0);
        assert!(ptr::eq(elements.get(first).unwrap(), first_reference));
        assert_eq!(elements.get(first).unwrap().load(Ordering::Relaxed), 7);
    }

    #[test]
    fn full_region_returns_none() {
        const LIMIT: usize = elements_in::<AtomicU32>(FIRST_BYTES);
        let region = Region::<AtomicU32>::new(&[LIMIT], 1 << 30);
        assert_eq!(region.take(LIMIT - 1), Some(1));
        assert_eq!(region.take(1), None);
        // SAFETY: no reference into the region exists, and no other thread uses it.
        unsafe { region.release() };
        assert!(region.elements().get(1).is_none());
    }
}
