//! The kinds of numbered addresses, as recordings have them too: code of a frame, or the reason why
//! a stack ends.

use cairn_format::AbsoluteAddress;
pub(crate) use cairn_format::recording::PcKind;
use cairn_unwind::StopReason;

/// Reads a kind that this crate has written.
pub(crate) fn from_bits(bits: u32) -> PcKind {
    PcKind::from_number(bits).unwrap_or(PcKind::Limit)
}

/// Returns the kind and the address of the mark for a reason; `None` for a complete stack.
pub(crate) fn of_stop(reason: StopReason) -> Option<(PcKind, u64)> {
    Some(match reason {
        StopReason::EndOfStack => return None,
        StopReason::NoUnwindInfo { pc } => (PcKind::NoUnwindInfo, pc.value()),
        StopReason::BadUnwindInfo { pc } => (PcKind::BadUnwindInfo, pc.value()),
        StopReason::UnreadableMemory { address } => (PcKind::UnreadableMemory, address.value()),
        StopReason::NoProgress { pc } => (PcKind::NoProgress, pc.value()),
        StopReason::OutsideStack { address } => (PcKind::OutsideStack, address.value()),
        StopReason::UnknownRegister { register } => (PcKind::UnknownRegister, register.into()),
        _ => (PcKind::Limit, 0),
    })
}

/// Returns the code that an address of this kind refers to: `None` when it refers to no code.
pub(crate) fn code_address(kind: PcKind, pc: u64) -> Option<AbsoluteAddress> {
    match kind {
        PcKind::ReturnAddress | PcKind::ReturnWithoutTables => Some(AbsoluteAddress::new(pc.wrapping_sub(1))),
        PcKind::ProgramCounter | PcKind::NoUnwindInfo | PcKind::BadUnwindInfo | PcKind::NoProgress => {
            Some(AbsoluteAddress::new(pc))
        }
        _ => None,
    }
}
