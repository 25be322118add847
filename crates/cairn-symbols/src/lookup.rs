//! What is asked: an address in a module, and what kind of address it is.

use cairn_format::{AbsoluteAddress, Frame, ModuleOffset, StatedAddress};

/// How an address counts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Place {
    /// From the module's base, as recordings have it.
    Offset(ModuleOffset),
    /// As the file itself counts, as `addr2line` takes it.
    Stated(StatedAddress),
}

/// What kind of address it is, which decides the byte that is looked up.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum AddressKind {
    /// Where a call returns to: the byte before it is looked up, because the call may end its line or its function.
    ReturnAddress,
    /// The instruction that was about to run.
    ProgramCounter,
    /// Where an asynchronous task continues; looked up as it stands.
    AsyncResumePoint,
}

/// One question to a [`Symbolizer`](crate::Symbolizer).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Lookup {
    /// The address.
    pub place: Place,
    /// What kind of address it is.
    pub kind: AddressKind,
}

impl Lookup {
    /// A return address at an offset of the module.
    #[must_use]
    pub const fn return_address(offset: ModuleOffset) -> Self {
        Self { place: Place::Offset(offset), kind: AddressKind::ReturnAddress }
    }

    /// A program counter at an offset of the module.
    #[must_use]
    pub const fn program_counter(offset: ModuleOffset) -> Self {
        Self { place: Place::Offset(offset), kind: AddressKind::ProgramCounter }
    }

    /// An async resume point at an offset of the module.
    #[must_use]
    pub const fn async_resume_point(offset: ModuleOffset) -> Self {
        Self { place: Place::Offset(offset), kind: AddressKind::AsyncResumePoint }
    }

    /// An address as the file counts, looked up as it stands.
    #[must_use]
    pub const fn stated(address: StatedAddress) -> Self {
        Self { place: Place::Stated(address), kind: AddressKind::ProgramCounter }
    }

    /// The stated address to look up in a module whose base is stated as `base`; `None` past the end of the address space.
    pub(crate) fn stated_address(self, base: StatedAddress) -> Option<StatedAddress> {
        let stated = match self.place {
            Place::Offset(offset) => base.checked_add(offset.value())?,
            Place::Stated(address) => address,
        };
        let address = AbsoluteAddress::new(stated.value());
        let frame = match self.kind {
            AddressKind::ReturnAddress => Frame::ReturnAddress(address),
            AddressKind::ProgramCounter => Frame::ProgramCounter(address),
            AddressKind::AsyncResumePoint => Frame::AsyncResumePoint(address),
        };
        Some(StatedAddress::new(frame.lookup_address()?.value()))
    }
}
