//! The reasons why a walk ends, without which a reader could not tell a complete stack from a cut
//! one.

use core::fmt;

use cairn_format::AbsoluteAddress;

/// The reason why a walk ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum StopReason {
    /// When the outermost frame was reached. It has no caller by its tables, or its frame pointer
    /// or return address is zero.
    EndOfStack,
    /// When the maximum number of frames was found. The stack continues.
    Limit,
    /// When neither tables nor a plausible frame pointer lead to the caller of the code at `pc`.
    NoUnwindInfo {
        /// The address that no table covers.
        pc: AbsoluteAddress,
    },
    /// When the tables for `pc` are malformed or use an unsupported feature.
    BadUnwindInfo {
        /// The address whose entry is bad.
        pc: AbsoluteAddress,
    },
    /// When the tables use a register whose value is not known.
    UnknownRegister {
        /// Its number in the machine's DWARF numbering.
        register: u16,
    },
    /// When memory that the tables name could not be read.
    UnreadableMemory {
        /// The address of the read.
        address: AbsoluteAddress,
    },
    /// When a frame pointer leads outside the stack, or to an unaligned place.
    OutsideStack {
        /// The address to which it leads.
        address: AbsoluteAddress,
    },
    /// When the caller's frame is not above its callee's: a cycle, or a damaged stack.
    NoProgress {
        /// The address in the frame that does not advance.
        pc: AbsoluteAddress,
    },
}

impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::EndOfStack => f.write_str("end of stack"),
            Self::Limit => f.write_str("frame limit reached"),
            Self::NoUnwindInfo { pc } => write!(f, "no unwind information at {pc}"),
            Self::BadUnwindInfo { pc } => write!(f, "malformed unwind information at {pc}"),
            Self::UnknownRegister { register } => {
                write!(f, "the unwind tables need register {register}, whose value is not known")
            }
            Self::UnreadableMemory { address } => write!(f, "unreadable memory at {address}"),
            Self::OutsideStack { address } => {
                write!(f, "the frame pointer leads outside the stack, to {address}")
            }
            Self::NoProgress { pc } => write!(f, "the caller of {pc} is not above it on the stack"),
        }
    }
}
