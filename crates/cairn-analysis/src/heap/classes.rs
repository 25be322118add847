//! Size and lifetime classes: powers of two.

/// Number of size classes: 0, 1, 2, 3-4, 5-8, and so on.
pub const SIZE_CLASSES: usize = 66;

/// Returns the class of a size.
///
/// ```
/// use cairn_analysis::heap::{size_class, size_class_range};
/// assert_eq!(size_class_range(size_class(24)), (17, 32));
/// assert_eq!(size_class_range(size_class(32)), (17, 32));
/// assert_eq!(size_class_range(size_class(33)), (33, 64));
/// assert_eq!(size_class_range(size_class(0)), (0, 0));
/// ```
#[inline]
#[must_use]
pub const fn size_class(size_bytes: u64) -> usize {
    match size_bytes.checked_sub(1) {
        None => 0,
        Some(below) => 65 - below.leading_zeros() as usize,
    }
}

/// Returns the smallest and largest size of a class.
#[must_use]
pub const fn size_class_range(class: usize) -> (u64, u64) {
    match class {
        0 => (0, 0),
        1 => (1, 1),
        2..=64 => ((1 << (class - 2)) + 1, 1 << (class - 1)),
        _ => ((1 << 63) + 1, u64::MAX),
    }
}

/// Number of lifetime classes.
pub const LIFETIME_CLASSES: usize = 64;

/// Returns the class of a lifetime: below 2 ns, 2-3 ns, 4-7 ns, and so on.
#[inline]
#[must_use]
pub const fn lifetime_class(nanos: u64) -> usize {
    63 - (nanos | 1).leading_zeros() as usize
}

/// Returns the shortest and longest lifetime of a class.
#[must_use]
pub const fn lifetime_class_range(class: usize) -> (u64, u64) {
    match class {
        0 => (0, 1),
        1..=62 => (1 << class, (1 << (class + 1)) - 1),
        _ => (1 << 63, u64::MAX),
    }
}

/// Blocks of one lifetime class.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Lifetimes {
    /// The number of blocks.
    pub blocks: u64,
    /// The bytes of the blocks.
    pub bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_classes_contain_their_sizes() {
        for size in (0..200).chain([1 << 20, (1 << 20) + 1, 1 << 63, (1 << 63) + 1, u64::MAX]) {
            let (low, high) = size_class_range(size_class(size));
            assert!((low..=high).contains(&size), "{size}: {low}-{high}");
        }
        assert!(size_class(u64::MAX) < SIZE_CLASSES);
    }

    #[test]
    fn lifetime_classes_contain_their_lifetimes() {
        for nanos in (0..200).chain([1 << 62, 1 << 63, u64::MAX]) {
            let (low, high) = lifetime_class_range(lifetime_class(nanos));
            assert!((low..=high).contains(&nanos), "{nanos}: {low}-{high}");
        }
        assert!(lifetime_class(u64::MAX) < LIFETIME_CLASSES);
    }
}
