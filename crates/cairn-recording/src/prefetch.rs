//! Memory that will be needed: asked for early.
//!
//! All of it only makes things faster: a program does the same without.

#[cfg(target_os = "linux")]
pub(crate) use super::mapped_file::Table;
#[cfg(target_os = "linux")]
pub use super::mapped_file::fetch;

/// Does nothing here.
#[cfg(not(target_os = "linux"))]
#[inline(always)]
pub fn fetch<T>(_: &[T], _: usize) {}

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
