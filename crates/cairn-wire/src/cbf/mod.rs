//! Swift's Compact Backtrace Format, version 0: one stack as a string of one-byte instructions with
//! operands.
//!
//! ```
//! use cairn_wire::cbf::{CbfDecoder, CbfDialect, Rules, encode};
//! use cairn_format::{AbsoluteAddress, Frame, SliceSink, WordSize};
//!
//! let stack = [
//!     Frame::ProgramCounter(AbsoluteAddress::new(0x1000)),
//!     Frame::ReturnAddress(AbsoluteAddress::new(0x1010)),
//!     Frame::ReturnAddress(AbsoluteAddress::new(0x1010)),
//! ];
//! let mut buffer = [0; 32];
//! let mut sink = SliceSink::new(&mut buffer);
//! encode(stack, WordSize::Bits64, CbfDialect::Strict, &mut sink)?;
//! assert_eq!(sink.written(), [0x02, 0x19, 0x10, 0x00, 0x20, 0x10, 0x80, 0x00]);
//!
//! let frames: Result<Vec<Frame>, _> = CbfDecoder::new(sink.written(), Rules::STRICT).collect();
//! assert_eq!(frames?, stack);
//! # Ok::<(), Box<dyn core::error::Error>>(())
//! ```
//!
//! # The bytes
//!
//! ```text
//! 02          info byte: version << 2 | word size (0: 16, 1: 32, 2: 64 bits; 3 is reserved)
//! 19 10 00    pc, absolute, 2 operand bytes: 0x1000
//! 20 10       ra, relative, 1 operand byte: the last address + 0x10
//! 80          rep: the frame before, once more
//! 00          end
//!
//! 00          end       the stack is complete
//! 01          trunc     the stack goes on, but was not recorded: Frame::Truncated
//! 0001 annn   pc        a: absolute, else relative to the last address of any kind (at first 0)
//! 0010 annn   ra        n: operand bytes - 1; most significant byte first, sign-extended to the word;
//! 0011 annn   async        the sum wraps in the word
//! 01x nnnnn   omit      x = 0: n + 1 frames; x = 1: n + 1 bytes hold the number, zero-extended
//! 1000 xnnn   rep       x = 0: n + 1 times;  x = 1: n + 1 bytes hold the number
//! others      reserved
//! ```
//!
//! `omit` and `rep` leave the last address alone, and after a `rep` the frame before is still the
//! same frame. An `omit` may be repeated too.
//!
//! # Where Swift and the published document differ
//!
//! - The document demands that the first address be absolute. Swift writes it relative to 0 and
//!   reads both.
//! - The document lets a writer leave `end` out. Swift 6.2 always does, and yet its reader turns
//!   data that is over into a last "truncated" frame, so that every complete capture prints `...`
//!   at its end. Newer Swift writes `end`.
//! - Older copies of the document know no `rep` and call `1xxxxxxx` reserved; all shipped versions
//!   write it.
//! - A `rep` with a number of 0 means no repeat; Swift repeats once. Swift 6.2 accepts every number
//!   (and stops the program at the lowest negative one); newer Swift refuses more than 1048577.
//! - Operands wider than the word are not foreseen; Swift accepts them and drops the bits on top.
//! - Counts above 63 bits are read by Swift as negative numbers.
//! - Errors have no place in Swift's reader: a bad first byte is an empty stack, every later error
//!   a "truncated" frame.
//!
//! [`CbfDialect`] selects what is written and [`Rules`] what is accepted.
//!
//! # Parts
//!
//! [`CbfEncoder`] takes frame by frame on the capturing side; [`CaptureLimit`] keeps both ends of a
//! stack that is too deep; [`CbfDecoder`] and [`Runs`] read; [`Accumulator`] and [`Records`] find
//! where a record ends in a stream.

mod cursor;
mod decode;
mod encode;
mod error;
mod limit;
mod split;

pub use decode::{CbfDecoder, End, Rules, Runs};
pub use encode::{CbfDialect, CbfEncodeError, CbfEncoder, encode};
pub use error::{CbfError, CbfErrorKind, CbfFindings};
pub use limit::{CaptureLimit, KnownLength, RingTooSmall, Streaming, Tail, TailRing};
pub use split::{Accumulated, Accumulator, CbfRecord, RecordEnding, Records};

use cairn_format::WordSize;

/// Maximum of one `rep`, in repeats; 2^20 + 1, because newer Swift and [`Rules::STRICT`] accept
/// that.
pub const MAX_REPEATS: u64 = 1_048_577;

/// Returns the first byte of a record of this word size.
const fn info_byte(word_size: WordSize) -> u8 {
    match word_size {
        WordSize::Bits16 => 0,
        WordSize::Bits32 => 1,
        WordSize::Bits64 => 2,
    }
}

/// Returns the word size that the first byte of a record states.
const fn read_info_byte(info: u8) -> Result<WordSize, CbfErrorKind> {
    match info {
        0 => Ok(WordSize::Bits16),
        1 => Ok(WordSize::Bits32),
        2 => Ok(WordSize::Bits64),
        3 => Err(CbfErrorKind::ReservedWordSize),
        _ => Err(CbfErrorKind::UnsupportedVersion { version: info >> 2 }),
    }
}
