//! Compressed backtraces of libwebsockets: a call stack and an allocation size in some thirty
//! bytes.
//!
//! libwebsockets can put a record in front of every allocation with the requesting stack and the
//! size, and can print these records as log lines. This module writes and reads the records
//! ([`encode`], [`decode`], [`salvage`], and piece by piece [`LwsEncoder`] and [`Blob`]), lays them
//! out in memory ([`metadata`]), finds and writes the log lines ([`log_line`]), and picks frames as
//! libwebsockets does ([`trim`]).
//!
//! ```
//! use cairn_format::{AbsoluteAddress, SliceSink, WordSize};
//! use cairn_wire::lws;
//!
//! let addresses = [0x406651, 0x406852, 0x406c1b, 0x406294].map(AbsoluteAddress::new);
//! let mut buffer = [0; 64];
//! let mut sink = SliceSink::new(&mut buffer);
//! lws::encode(&addresses, 7520, &mut sink)?;
//! assert_eq!(sink.written().len(), 21);
//!
//! let backtrace = lws::decode(sink.written(), WordSize::Bits64).unwrap();
//! assert_eq!(*backtrace.addresses, addresses);
//! assert_eq!(backtrace.allocation_size_bytes, 7520);
//! # Ok::<(), lws::LwsEncodeError>(())
//! ```
//!
//! # The bytes
//!
//! A blob is a bit stream, most significant bit first. `n+1` is a field of n bits followed by a
//! spare bit ([`bits`](crate::bits)).
//!
//! ```text
//!   | depth 5+1 | depth items | size | caller's own fields | 0 bits to the byte border | blob length 16 |
//!
//!   item, literal    | 0   1+1 | k 6+1 | address, k+1 |
//!   item, delta      | 1   1+1 | back-1 3+1 | sign 1+1 | k 6+1 | distance, k+1 |     sign 0: added, 1: subtracted
//!   size             | k 6+1 | size in bytes, k+1 |
//! ```
//!
//! A delta counts from the address `back` (1 to 8) items before. The length counts the whole blob,
//! itself included; because it is at the end, a reader that has only the address after the
//! blob finds its start. The two documented addresses 0x406651 and 0x406852 begin so:
//!
//! ```text
//!   20       5d       01       99       44       2e       80       d0       a4 ...
//!   00100 0  0 0 010111 0  10000000110011001010001 0  0 0 010111 0  10000000110100001010010 0 ...
//!   depth 4  literal, k 23  0x406651                   literal, k 23  0x406852
//! ```
//!
//! The encoder takes the nearest of the eight addresses before, of equally near ones the farthest
//! back, and writes a delta when `bits(distance) + 11 < bits(address) + 7`.
//!
//! # Where the published description and the C code differ from this
//!
//! - The description has no spare bits. Every field has one; without them not even its own examples
//!   decode.
//! - The spare bit depends on the compiler that built the C code; some builds misread the bits of
//!   others. Here it is written 0 and ignored.
//! - The description's first example, `~m#IF0BmagugNDWgCnkhdAYpQa6wAAV`, does not decode to the
//!   line printed next to it, but to `0x40666a 0x40686b 0x406c34 0x406294`. The example in its
//!   addr2line section is the matching one. The 55-byte example of the decode tool's README is in
//!   an older format that nothing reads.
//! - The first address is never the base of a delta the encoder writes, and when it is the nearest
//!   one, no other base is tried. (The C code takes its index, 0, for "none found".) The decoder
//!   accepts such deltas.
//! - On 64-bit machines the C code keeps values below 2^31 only. Others it writes damaged
//!   ([`SuspectedLosses`]) and reads sign-extended, even from blobs of 32-bit devices. Here all
//!   values up to 63 bits come back as they were. Nothing can hold a literal of 64 bits, such as a
//!   kernel address: that is [`LwsEncodeErrorKind::AddressTooWide`].
//! - The C code writes 32 addresses as depth 0. Here more than 31 are refused.
//! - The C code's buffer must be a byte larger than the blob ([`BlobCapacity::Reference`]). If it
//!   is not, two zero bytes represent the blob: a length field that says 0, though its own two
//!   bytes are there. Its reader of the memory in front of an allocation is then off by one word;
//!   [`metadata`] is not.

mod decode;
mod encode;
pub mod log_line;
pub mod metadata;
mod trim;

pub use decode::{
    AddressList, Backtrace, Blob, BlobEnding, LwsDecoder, LwsError, LwsErrorKind, LwsFindings, Salvage,
    SuspectedLosses, decode, salvage,
};
pub use encode::{
    BlobCapacity, LwsEncodeError, LwsEncodeErrorKind, LwsEncoder, OpenBlob, encode, encode_into,
    encode_or_give_up,
};
pub use trim::{CAPTURE_LIMIT, DEFAULT_POST, DEFAULT_PRE, trim};

/// The most addresses a blob can hold: its depth field has 5 bits.
pub const MAX_DEPTH: usize = 31;

/// The longest blob: its length field has 16 bits.
pub const MAX_BLOB_BYTES: usize = 0xffff;

/// Buffer size for every blob without own fields, in bytes; 31 literals of 63 bits take 291 bytes.
/// The reference's spare byte is included.
pub const BLOB_BUFFER_BYTES: usize = 296;

/// Placeholder for a blob that could not be made: a length field of 0.
pub const GIVE_UP_BLOB: [u8; 2] = [0, 0];

/// The bits of an address that are right even where [`SuspectedLosses`] suspects a loss.
pub const CERTAIN_BITS: u64 = 0x7fff_ffff;

/// Size of the length field at the end of a blob.
const LENGTH_BYTES: usize = 2;

/// How far back a delta can refer.
const HISTORY: usize = 8;

// The largest blob: depth, 31 literals of 63 bits, a size of 63 bits, length; and the byte of
// `BlobCapacity::Reference`.
const _: () = assert!((6 + 31 * 73 + 71_usize).div_ceil(8) + LENGTH_BYTES < BLOB_BUFFER_BYTES);
