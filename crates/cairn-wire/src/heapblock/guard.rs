//! The pattern after a block's data: a write past the end changes it.
//!
//! It fills the bytes from the end of the user's data to the next multiple of 8 from the user
//! address, at least one. The byte at a distance d from the user address is `PATTERN[d % 8]`. All
//! have their highest bit set: what overflows is mostly text or a zero, and never equal to one of
//! these.
//!
//! ```
//! use cairn_wire::heapblock::guard;
//! // 13 bytes for the user: three of guard.
//! assert_eq!(guard::bytes_behind(13), 3);
//! assert!(guard::pattern(13).eq(guard::PATTERN[5..].iter().copied()));
//! assert_eq!(guard::bytes_behind(16), 8);
//!
//! // A text of 13 characters and its end were written there.
//! let found = [0, guard::PATTERN[6], guard::PATTERN[7]];
//! assert_eq!(guard::damaged_bytes(13, &found), 1);
//! ```

/// See the module documentation.
pub const PATTERN: [u8; 8] = [0xc5, 0x9a, 0xe9, 0xb6, 0xd3, 0x8d, 0xf1, 0xac];

/// Returns the number of guard bytes after `size_bytes` of user data: 1 to 8.
#[inline]
#[must_use]
pub const fn bytes_behind(size_bytes: u64) -> usize {
    8 - (size_bytes & 7) as usize
}

/// Returns the guard's bytes.
pub fn pattern(size_bytes: u64) -> impl Iterator<Item = u8> + Clone {
    PATTERN.into_iter().skip((size_bytes & 7) as usize)
}

/// Returns the number of overwritten guard bytes, up to the last wrong one; 0 if the guard is
/// intact. A guard that was not read whole is judged by what there is.
#[must_use]
pub fn damaged_bytes(size_bytes: u64, found: &[u8]) -> usize {
    let wrong =
        pattern(size_bytes).zip(found).enumerate().filter(|(_, (expected, found))| expected != *found);
    wrong.last().map_or(0, |(index, _)| index + 1)
}
