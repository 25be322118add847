//! The frame: the one vocabulary that all formats decode to and encode from.

use crate::AbsoluteAddress;

/// One entry of a call stack, innermost first.
///
/// A *stack* is any sequence of frames together with a [`WordSize`](crate::WordSize). Formats
/// differ in what they can hold: libwebsockets blobs and XNU buffers hold return addresses only,
/// the Compact Backtrace Format holds all five.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Frame {
    /// The instruction about to run: the one a signal interrupted, or the top of a paused thread.
    ProgramCounter(AbsoluteAddress),
    /// Where a call returns to. The call itself lies *before* this address.
    ReturnAddress(AbsoluteAddress),
    /// Where an asynchronous task continues. Like a program counter, it is looked up without
    /// subtracting a byte.
    AsyncResumePoint(AbsoluteAddress),
    /// Number of frames were left out here.
    Omitted(u64),
    /// The stack goes on, but was not recorded further. Always the last frame.
    Truncated,
}

impl Frame {
    /// Returns the address in this frame, if it has one.
    #[must_use]
    pub const fn address(self) -> Option<AbsoluteAddress> {
        match self {
            Self::ProgramCounter(address)
            | Self::ReturnAddress(address)
            | Self::AsyncResumePoint(address) => Some(address),
            Self::Omitted(_) | Self::Truncated => None,
        }
    }

    /// Returns the address to look up in symbol tables: one byte before a return address. A call at
    /// the very end of a line, a function or an inlined range is then found in the range it belongs
    /// to. The others are looked up as they are.
    ///
    /// ```
    /// use cairn_format::{AbsoluteAddress, Frame};
    /// let frame = Frame::ReturnAddress(AbsoluteAddress::new(0x1000));
    /// assert_eq!(frame.lookup_address(), Some(AbsoluteAddress::new(0xfff)));
    /// ```
    #[must_use]
    pub const fn lookup_address(self) -> Option<AbsoluteAddress> {
        match self {
            Self::ReturnAddress(address) => Some(AbsoluteAddress::new(address.value().saturating_sub(1))),
            Self::ProgramCounter(address) | Self::AsyncResumePoint(address) => Some(address),
            Self::Omitted(_) | Self::Truncated => None,
        }
    }
}
