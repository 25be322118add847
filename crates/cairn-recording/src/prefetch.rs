//! Prefetching: loads memory into the caches before it is needed.
//!
//! Events of many live blocks each need a line of memory that is in no cache, and one after the
//! other they would wait for it. `spool::merge` runs the three stages of the prefetch for spools,
//! `packed::heap_events` the one for packed recordings; visitors take part by
//! `Events::prefetch_site` and `Events::prefetch_object`. Results are the same without.

#[cfg(target_os = "linux")]
pub(crate) use super::mapped_file::Table;
#[cfg(target_os = "linux")]
pub use super::mapped_file::prefetch;

/// Does nothing here.
#[cfg(not(target_os = "linux"))]
#[inline(always)]
pub fn prefetch<T>(_: &[T], _: usize) {}

/// Elements that begin as zeros.
#[cfg(not(target_os = "linux"))]
pub(crate) struct Table<T>(Vec<u32>, std::marker::PhantomData<T>);

#[cfg(not(target_os = "linux"))]
impl<const N: usize> Table<[u32; N]> {
    pub(crate) fn new(length: usize) -> Self {
        Self(vec![0; length * N], std::marker::PhantomData)
    }

    /// Appends zeros.
    pub(crate) fn grow(&mut self, length: usize) {
        self.0.resize(length * N, 0);
    }

    /// Does nothing here.
    pub(crate) fn prepare(&mut self, _: usize, _: usize) {}

    #[inline(always)]
    pub(crate) fn as_slice(&self) -> &[[u32; N]] {
        self.0.as_chunks().0
    }

    #[inline(always)]
    pub(crate) fn as_mut_slice(&mut self) -> &mut [[u32; N]] {
        self.0.as_chunks_mut().0
    }
}
