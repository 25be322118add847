//! The bytes of a PE image by their distance from its start, wherever they are stored.

use cairn_format::AbsoluteAddress;

/// The processor that an image is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum PeMachine {
    /// x86-64.
    X64,
    /// arm64.
    Arm64,
}

impl PeMachine {
    /// Bytes of an entry of the function table.
    pub(super) const fn entry_bytes(self) -> u32 {
        match self {
            Self::X64 => 12,
            Self::Arm64 => 8,
        }
    }
}

/// Bytes of an image at their place: a section of a file, or memory of a dump.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ImagePart<'a> {
    /// Distance from the start of the image.
    pub place: u32,
    /// The bytes.
    pub bytes: &'a [u8],
}

#[derive(Clone, Copy, Debug)]
enum Bytes<'a> {
    Loaded(&'a [u8]),
    Parts { parts: &'a [ImagePart<'a>], size: u32 },
}

/// A PE image: its address in the watched process, and its bytes.
#[derive(Clone, Copy, Debug)]
pub struct PeImage<'a> {
    base: AbsoluteAddress,
    bytes: Bytes<'a>,
}

impl<'a> PeImage<'a> {
    /// An image as the loader has mapped it.
    #[must_use]
    pub const fn loaded(base: AbsoluteAddress, bytes: &'a [u8]) -> Self {
        Self { base, bytes: Bytes::Loaded(bytes) }
    }

    /// An image of `size` bytes whose parts are elsewhere.
    ///
    /// These are the headers and sections of a file, or the memory in a dump. Where two overlap,
    /// the first wins.
    #[must_use]
    pub const fn in_parts(base: AbsoluteAddress, size: u32, parts: &'a [ImagePart<'a>]) -> Self {
        Self { base, bytes: Bytes::Parts { parts, size } }
    }

    fn size(&self) -> u32 {
        match self.bytes {
            Bytes::Loaded(bytes) => u32::try_from(bytes.len()).unwrap_or(u32::MAX),
            Bytes::Parts { size, .. } => size,
        }
    }

    /// The distance of `address` from the start; `None` outside of the image.
    pub(super) fn place(&self, address: AbsoluteAddress) -> Option<u32> {
        let distance = address.value().checked_sub(self.base.value())?;
        u32::try_from(distance).ok().filter(|&place| place < self.size())
    }

    pub(super) fn address(&self, place: u32) -> Option<AbsoluteAddress> {
        self.base.checked_add(place.into())
    }

    /// The bytes from `place` on, up to the end of their part.
    pub(super) fn from(&self, place: u32) -> Option<&'a [u8]> {
        match self.bytes {
            Bytes::Loaded(bytes) => bytes.get(place as usize..),
            Bytes::Parts { parts, .. } => parts.iter().find_map(|part| {
                let within = place.checked_sub(part.place)? as usize;
                part.bytes.get(within..).filter(|bytes| !bytes.is_empty())
            }),
        }
    }

    pub(super) fn array<const N: usize>(&self, place: u32) -> Option<[u8; N]> {
        self.from(place)?.first_chunk().copied()
    }

    pub(super) fn u32(&self, place: u32) -> Option<u32> {
        self.array(place).map(u32::from_le_bytes)
    }

    fn u16(&self, place: u32) -> Option<u16> {
        self.array(place).map(u16::from_le_bytes)
    }
}

/// The parts of the headers that lead to the function table.
pub(super) struct Headers {
    pub(super) machine: PeMachine,
    /// Place of the exception directory, which is the function table.
    pub(super) exceptions: u32,
    pub(super) exceptions_bytes: u32,
}

impl Headers {
    pub(super) fn read(image: &PeImage<'_>) -> Option<Self> {
        /// Place of the distance to the PE header.
        const NEW_HEADER: u32 = 0x3c;
        const PE32_PLUS: u16 = 0x20b;
        /// Number of the exception directory.
        const EXCEPTION: u32 = 3;
        if image.array(0)? != *b"MZ" {
            return None;
        }
        let header = image.u32(NEW_HEADER)?;
        if image.array(header)? != *b"PE\0\0" {
            return None;
        }
        let machine = match image.u16(header.checked_add(4)?)? {
            0x8664 => PeMachine::X64,
            // Arm64EC images state x64 and have a table of each kind; only the x64 part is read.
            0xaa64 => PeMachine::Arm64,
            _ => return None,
        };
        let optional = header.checked_add(24)?;
        if image.u16(optional)? != PE32_PLUS {
            return None;
        }
        let directories = image.u32(optional.checked_add(108)?)?;
        let directory = optional.checked_add(112 + EXCEPTION * 8)?;
        let (exceptions, exceptions_bytes) = match directories > EXCEPTION {
            true => (image.u32(directory)?, image.u32(directory.checked_add(4)?)?),
            false => (0, 0),
        };
        Some(Self { machine, exceptions, exceptions_bytes })
    }
}
