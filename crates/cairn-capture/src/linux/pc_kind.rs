//! The kinds of numbered addresses: code of a frame, or the reason why a stack ends.

use cairn_format::AbsoluteAddress;
use cairn_unwind::StopReason;

/// The meaning of a numbered address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(crate) enum PcKind {
    ReturnAddress = 0,
    ProgramCounter = 1,
    /// Marks a stack that ends because code has no unwind information. From here on, values are
    /// reasons why a stack could not be followed to its start: marks outside of the outermost
    /// frame. The address is the one in the reason.
    NoUnwindInfo = 2,
    BadUnwindInfo = 3,
    UnreadableMemory = 4,
    NoProgress = 5,
    OutsideStack = 6,
    UnknownRegister = 7,
    Limit = 8,
}

impl PcKind {
    pub(crate) fn from_bits(bits: u32) -> Self {
        match bits {
            0 => Self::ReturnAddress,
            1 => Self::ProgramCounter,
            2 => Self::NoUnwindInfo,
            3 => Self::BadUnwindInfo,
            4 => Self::UnreadableMemory,
            5 => Self::NoProgress,
            6 => Self::OutsideStack,
            7 => Self::UnknownRegister,
            _ => Self::Limit,
        }
    }

    /// The kind and the address of the mark for a reason; `None` for a complete stack, which has no
    /// mark.
    pub(crate) fn of_stop(reason: StopReason) -> Option<(Self, u64)> {
        Some(match reason {
            StopReason::EndOfStack => return None,
            StopReason::NoUnwindInfo { pc } => (Self::NoUnwindInfo, pc.value()),
            StopReason::BadUnwindInfo { pc } => (Self::BadUnwindInfo, pc.value()),
            StopReason::UnreadableMemory { address } => (Self::UnreadableMemory, address.value()),
            StopReason::NoProgress { pc } => (Self::NoProgress, pc.value()),
            StopReason::OutsideStack { address } => (Self::OutsideStack, address.value()),
            StopReason::UnknownRegister { register } => (Self::UnknownRegister, register.into()),
            _ => (Self::Limit, 0),
        })
    }

    /// The code that an address of this kind refers to: `None` when it refers to no code.
    pub(crate) fn code_address(self, pc: u64) -> Option<AbsoluteAddress> {
        match self {
            Self::ReturnAddress => Some(AbsoluteAddress::new(pc.wrapping_sub(1))),
            Self::ProgramCounter | Self::NoUnwindInfo | Self::BadUnwindInfo | Self::NoProgress => {
                Some(AbsoluteAddress::new(pc))
            }
            Self::UnreadableMemory | Self::OutsideStack | Self::UnknownRegister | Self::Limit => None,
        }
    }
}
