//! The stack itself, in front of a header: for images that carry no stack table.
//!
//! The frames in the [Compact Backtrace Format](crate::cbf), innermost first, ending right where
//! the header begins. The header has the length and 16 bits of check, because these bytes may be
//! overwritten from below while the header is whole.
//!
//! ```
//! use cairn_format::{AbsoluteAddress, Frame, SliceSink, WordSize};
//! use cairn_wire::cbf;
//! use cairn_wire::heapblock::{Header, inline_stack};
//!
//! let stack = [0x0800_1235, 0x0800_0f43].map(|address| Frame::ReturnAddress(AbsoluteAddress::new(address)));
//! let mut buffer = [0; 64];
//! let mut sink = SliceSink::new(&mut buffer);
//! cbf::encode(stack, WordSize::Bits32, cbf::CbfDialect::Strict, &mut sink)?;
//! let bytes = sink.written();
//!
//! let reference = inline_stack::reference(bytes).unwrap();
//! let header = Header::new(52, reference, 3, false).unwrap();
//! assert_eq!(header.prefix_bytes(), (16 + bytes.len() as u64).next_multiple_of(8));
//! assert!(inline_stack::is_intact(reference, bytes));
//! # Ok::<(), cbf::CbfEncodeError>(())
//! ```

use super::StackReference;

/// Returns the reference to a stack of these bytes; `None` when they are more than 65,535.
#[must_use]
pub fn reference(bytes: &[u8]) -> Option<StackReference> {
    let length_bytes = u16::try_from(bytes.len()).ok()?;
    Some(StackReference::Inline { length_bytes, check: check(bytes) })
}

/// Returns whether these are the bytes that the reference was made of. False for a reference of
/// another kind.
#[must_use]
pub fn is_intact(reference: StackReference, bytes: &[u8]) -> bool {
    self::reference(bytes) == Some(reference)
}

/// FNV-1a of 32 bits, folded.
fn check(bytes: &[u8]) -> u16 {
    let hash =
        bytes.iter().fold(0x811c_9dc5_u32, |hash, &byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    (hash ^ hash >> 16) as u16
}
