//! The query of a symbolizer: an address in a module, and the kind of address.

use cairn_format::{AbsoluteAddress, Frame, ModuleOffset, StatedAddress};

/// An address, with the base from which it counts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Place {
    /// An offset from the module's base, as recordings store it.
    Offset(ModuleOffset),
    /// An address as the file itself counts, as `addr2line` takes it.
    Stated(StatedAddress),
}

/// The kind of an address; it decides which byte is looked up.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum AddressKind {
    /// A return address: the byte before it is looked up, because the call may end its line or
    /// function.
    ReturnAddress,
    /// The next instruction to run.
    ProgramCounter,
    /// The address at which an asynchronous task resumes; looked up unchanged.
    AsyncResumePoint,
}

/// A query to a [`Symbolizer`](crate::Symbolizer).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Lookup {
    /// The address.
    pub place: Place,
    /// The kind of the address.
    pub kind: AddressKind,
}

impl Lookup {
    /// Creates a lookup of a return address at an offset of the module.
    #[must_use]
    pub const fn return_address(offset: ModuleOffset) -> Self {
        Self { place: Place::Offset(offset), kind: AddressKind::ReturnAddress }
    }

    /// Creates a lookup of a program counter at an offset of the module.
    #[must_use]
    pub const fn program_counter(offset: ModuleOffset) -> Self {
        Self { place: Place::Offset(offset), kind: AddressKind::ProgramCounter }
    }

    /// Creates a lookup of an async resume point at an offset of the module.
    #[must_use]
    pub const fn async_resume_point(offset: ModuleOffset) -> Self {
        Self { place: Place::Offset(offset), kind: AddressKind::AsyncResumePoint }
    }

    /// Creates a lookup of an address as the file counts, unchanged.
    #[must_use]
    pub const fn stated(address: StatedAddress) -> Self {
        Self { place: Place::Stated(address), kind: AddressKind::ProgramCounter }
    }

    /// Converts to the stated address in a module with this base; `None` past the end of the
    /// address space.
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
