//! Memory that will be needed: asked for early, and from the kernel in large pages.
//!
//! All of it only makes things faster: a program does the same without.

#[cfg(target_os = "linux")]
pub(super) use super::mapped_file::{Table, fetch};

/// Does nothing here.
#[cfg(not(target_os = "linux"))]
#[inline(always)]
pub(super) fn fetch<T>(_: &[T], _: usize) {}

/// Does nothing here.
#[cfg(not(target_os = "linux"))]
pub(super) fn use_large_pages<T>(_: &[T], _: usize) {}

/// Elements that begin as zeros.
#[cfg(not(target_os = "linux"))]
pub(super) struct Table<T>(Vec<T>);

#[cfg(not(target_os = "linux"))]
impl<const N: usize> Table<[u32; N]> {
    pub(super) fn new(length: usize) -> Self {
        Self(vec![[0; N]; length])
    }

    /// Appends zeros.
    pub(super) fn grow(&mut self, length: usize) {
        self.0.resize(length, [0; N]);
    }

    #[inline(always)]
    pub(super) fn as_slice(&self) -> &[[u32; N]] {
        &self.0
    }

    #[inline(always)]
    pub(super) fn as_mut_slice(&mut self) -> &mut [[u32; N]] {
        &mut self.0
    }
}
