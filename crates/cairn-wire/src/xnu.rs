//! XNU backtrace packing: kernel addresses in four bytes each.
//!
//! The XNU kernel stores backtraces as plain words, or as signed distances from the kernel's base
//! address, half as big. [`Packer`] writes both into a buffer of the caller's; [`unpack`] and
//! [`unpack_lenient`] read them back.
//!
//! ```text
//! BTP_NONE            | address: u64 LE | address: u64 LE | …
//! BTP_KERN_OFFSET_32  | address - kernel base: i32 LE | … |       base + sign-extended entry, wrapping at 2^64
//! ```
//!
//! There is no header and no count: the size of the buffer, the packing and the kernel base travel
//! separately.
//!
//! ```
//! use cairn_format::AbsoluteAddress;
//! use cairn_wire::xnu;
//! let packing = xnu::Packing::KernelOffset32 { kernel_base: AbsoluteAddress::new(0xffff_ff80_0020_0000) };
//! let stack = [0xffff_ff80_0034_5678, 0xffff_ff80_001f_fff0].map(AbsoluteAddress::new);
//! let mut buffer = [0; 64];
//! let packed = xnu::Packer::new(packing).pack(stack, &mut buffer)?;
//! assert_eq!((packed.size_bytes, packed.count), (8, 2));
//! assert_eq!(buffer[..8], [0x78, 0x56, 0x14, 0x00, 0xf0, 0xff, 0xff, 0xff]);
//! assert!(xnu::unpack(&buffer[..8], packing)?.eq(stack));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Surprises of the kernel
//!
//! - The kernel's pack function writes an entry that fits exactly, but does not count it: `n`
//!   entries need `n * width + 1` bytes. Here an entry that is written is counted;
//!   [`PackCapacity::Xnu`] reproduces the kernel's count.
//! - An address out of reach of a signed 32-bit distance does not survive: x86-64 kernels store the
//!   distance of a fixed function instead, arm64 release kernels keep the low 32 bits (debug
//!   kernels stop). Here it is an error, unless [`OutOfReach`] says otherwise.
//! - The kernel's unpack function skips bytes after the last whole entry; for plain words it
//!   even copies them into the next slot without counting it. [`unpack`] refuses such a size,
//!   [`unpack_lenient`] reports the bytes.

use core::fmt;

use cairn_format::{AbsoluteAddress, Sink};

/// Forms of addresses in a packed buffer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Packing {
    /// `BTP_NONE`: whole 64-bit words, little-endian.
    None,
    /// `BTP_KERN_OFFSET_32`: signed 32-bit distances from the kernel's base.
    KernelOffset32 {
        /// Where the kernel that made the backtrace was loaded.
        kernel_base: AbsoluteAddress,
    },
}

impl Packing {
    /// Returns bytes of one entry: 8 or 4.
    #[must_use]
    pub const fn entry_bytes(self) -> usize {
        match self {
            Self::None => 8,
            Self::KernelOffset32 { .. } => 4,
        }
    }
}

/// Which of the entries that fit into the buffer are counted.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub enum PackCapacity {
    /// All of them.
    #[default]
    Exact,
    /// All but one that ends at the very end of the buffer, as the kernel counts. That entry is in
    /// memory nevertheless.
    Xnu,
}

/// Treatment of an address that is 2 GiB or more away from the kernel's base.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub enum OutOfReach {
    /// Packing stops with [`PackErrorKind::OutOfReach`].
    #[default]
    Error,
    /// This address is stored instead, as in x86-64 kernels. Only the low 32 bits of *its* distance
    /// are retained.
    Sentinel(AbsoluteAddress),
    /// The low 32 bits of the distance are stored, as arm64 release kernels do. Unpacking yields
    /// another address.
    KeepLow32,
}

/// Writes packed backtraces. The default counts exactly and refuses what it cannot represent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packer {
    packing: Packing,
    capacity: PackCapacity,
    out_of_reach: OutOfReach,
}

/// Result of [`Packer::pack`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packed {
    /// Bytes of the entries counted.
    pub size_bytes: usize,
    /// Entries counted.
    pub count: usize,
    /// True if addresses did not fit. With [`PackCapacity::Xnu`] also if the last entry in the
    /// buffer is not counted.
    pub truncated: bool,
}

impl Packer {
    /// Creates a packer that counts exactly and refuses addresses out of reach.
    #[must_use]
    pub const fn new(packing: Packing) -> Self {
        Self { packing, capacity: PackCapacity::Exact, out_of_reach: OutOfReach::Error }
    }

    /// Counts entries by another rule.
    #[must_use]
    pub const fn capacity(self, capacity: PackCapacity) -> Self {
        Self { capacity, ..self }
    }

    /// Treats addresses out of reach by another rule.
    #[must_use]
    pub const fn out_of_reach(self, out_of_reach: OutOfReach) -> Self {
        Self { out_of_reach, ..self }
    }

    /// Writes as many addresses as fit into `buffer`, innermost first. The bytes after them stay
    /// unchanged.
    ///
    /// # Errors
    ///
    /// [`PackErrorKind::OutOfReach`] unless [`OutOfReach`] says otherwise; the entries before it
    /// are in the buffer.
    ///
    /// ```
    /// use cairn_format::AbsoluteAddress;
    /// use cairn_wire::xnu::{PackCapacity, Packer, Packing};
    /// let stack = [AbsoluteAddress::new(0x1000), AbsoluteAddress::new(0x2000)];
    /// let packer = Packer::new(Packing::None);
    /// let mut buffer = [0; 16];
    /// assert_eq!(packer.pack(stack, &mut buffer)?.size_bytes, 16);
    /// assert_eq!(packer.capacity(PackCapacity::Xnu).pack(stack, &mut buffer)?.size_bytes, 8);
    /// # Ok::<(), cairn_wire::xnu::PackError>(())
    /// ```
    pub fn pack(
        &self,
        addresses: impl IntoIterator<Item = AbsoluteAddress>,
        buffer: &mut [u8],
    ) -> Result<Packed, PackError> {
        match self.packing {
            Packing::None => self.fill(addresses, buffer, |address, _| Ok(address.value().to_le_bytes())),
            Packing::KernelOffset32 { kernel_base } => self
                .fill(addresses, buffer, |address, offset| self.distance_entry(address, kernel_base, offset)),
        }
    }

    /// Writes all addresses into `sink`, innermost first, and returns how many bytes that took. The
    /// capacity rule does not matter here.
    ///
    /// # Errors
    ///
    /// [`PackErrorKind::OutOfReach`] as for [`pack`](Self::pack), [`PackErrorKind::SinkFull`] when
    /// the sink refuses an entry. Whole entries were written before either.
    pub fn encode(
        &self,
        addresses: impl IntoIterator<Item = AbsoluteAddress>,
        sink: &mut impl Sink,
    ) -> Result<usize, PackError> {
        match self.packing {
            Packing::None => put_all(addresses, sink, |address, _| Ok(address.value().to_le_bytes())),
            Packing::KernelOffset32 { kernel_base } => {
                put_all(addresses, sink, |address, offset| self.distance_entry(address, kernel_base, offset))
            }
        }
    }

    /// Fills a buffer with entries of one width. The width is a constant, so that each entry is a
    /// single store.
    #[inline]
    fn fill<const WIDTH: usize>(
        &self,
        addresses: impl IntoIterator<Item = AbsoluteAddress>,
        buffer: &mut [u8],
        entry: impl Fn(AbsoluteAddress, usize) -> Result<[u8; WIDTH], PackError>,
    ) -> Result<Packed, PackError> {
        let mut packed = Packed { size_bytes: 0, count: 0, truncated: false };
        let mut room = buffer;
        for address in addresses {
            // The first address that does not fit ends the packing, and so does the first that is
            // not counted.
            let Some((place, rest)) = room.split_first_chunk_mut() else {
                return Ok(Packed { truncated: true, ..packed });
            };
            *place = entry(address, packed.size_bytes)?;
            if rest.is_empty() && self.capacity == PackCapacity::Xnu {
                return Ok(Packed { truncated: true, ..packed });
            }
            packed.size_bytes += WIDTH;
            packed.count += 1;
            room = rest;
        }
        Ok(packed)
    }

    /// Returns the entry for an address as its distance from the kernel's base.
    #[inline]
    fn distance_entry(
        &self,
        address: AbsoluteAddress,
        kernel_base: AbsoluteAddress,
        offset: usize,
    ) -> Result<[u8; 4], PackError> {
        let distance = |address: AbsoluteAddress| address.value().wrapping_sub(kernel_base.value()) as i64;
        let mut stored = distance(address);
        if i32::try_from(stored).is_err() {
            match self.out_of_reach {
                OutOfReach::Error => {
                    return Err(PackError { offset, kind: PackErrorKind::OutOfReach(address) });
                }
                OutOfReach::Sentinel(sentinel) => stored = distance(sentinel),
                OutOfReach::KeepLow32 => {}
            }
        }
        Ok((stored as i32).to_le_bytes())
    }
}

fn put_all<const WIDTH: usize>(
    addresses: impl IntoIterator<Item = AbsoluteAddress>,
    sink: &mut impl Sink,
    entry: impl Fn(AbsoluteAddress, usize) -> Result<[u8; WIDTH], PackError>,
) -> Result<usize, PackError> {
    let mut offset = 0;
    for address in addresses {
        let bytes = entry(address, offset)?;
        sink.put(&bytes).map_err(|_| PackError { offset, kind: PackErrorKind::SinkFull })?;
        offset += WIDTH;
    }
    Ok(offset)
}

/// Reads a packed backtrace. Take only as many as there are slots with [`Iterator::take`].
///
/// # Errors
///
/// [`UnpackError`] when the size is not a whole number of entries; [`unpack_lenient`] reads what is
/// whole.
pub const fn unpack(packed: &[u8], packing: Packing) -> Result<UnpackedAddresses<'_>, UnpackError> {
    let addresses = unpack_lenient(packed, packing);
    if addresses.trailing_bytes().is_empty() {
        Ok(addresses)
    } else {
        let offset = packed.len() - addresses.trailing_bytes().len();
        Err(UnpackError { offset, kind: UnpackErrorKind::PartialEntry })
    }
}

/// Reads the whole entries of a packed backtrace. [`UnpackedAddresses::trailing_bytes`] holds the
/// rest.
///
/// ```
/// use cairn_wire::xnu;
/// let addresses = xnu::unpack_lenient(&[0x34, 0x12, 0, 0, 0, 0, 0, 0, 0xff], xnu::Packing::None);
/// assert_eq!(addresses.trailing_bytes(), [0xff]);
/// assert_eq!(addresses.map(|address| address.value()).collect::<Vec<_>>(), [0x1234]);
/// ```
#[must_use]
pub const fn unpack_lenient(packed: &[u8], packing: Packing) -> UnpackedAddresses<'_> {
    let (entries, trailing) = packed.split_at(packed.len() - packed.len() % packing.entry_bytes());
    UnpackedAddresses { entries, trailing, packing }
}

/// Iterates over the addresses of a packed backtrace, innermost first. They are return addresses,
/// except that the kernel puts the program counter first when it was interrupted.
#[derive(Clone, Debug)]
pub struct UnpackedAddresses<'a> {
    /// Always whole entries.
    entries: &'a [u8],
    trailing: &'a [u8],
    packing: Packing,
}

impl<'a> UnpackedAddresses<'a> {
    /// Returns the bytes after the last whole entry; empty when the buffer is well-formed.
    #[must_use]
    pub const fn trailing_bytes(&self) -> &'a [u8] {
        self.trailing
    }
}

impl Iterator for UnpackedAddresses<'_> {
    type Item = AbsoluteAddress;

    fn next(&mut self) -> Option<Self::Item> {
        let value = match self.packing {
            Packing::None => {
                let (entry, rest) = self.entries.split_first_chunk()?;
                self.entries = rest;
                u64::from_le_bytes(*entry)
            }
            Packing::KernelOffset32 { kernel_base } => {
                let (entry, rest) = self.entries.split_first_chunk()?;
                self.entries = rest;
                kernel_base.value().wrapping_add_signed(i64::from(i32::from_le_bytes(*entry)))
            }
        };
        Some(AbsoluteAddress::new(value))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.entries.len() / self.packing.entry_bytes();
        (left, Some(left))
    }
}

impl ExactSizeIterator for UnpackedAddresses<'_> {}
impl core::iter::FusedIterator for UnpackedAddresses<'_> {}

/// Why a backtrace could not be packed, and at which byte of the output.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PackError {
    /// Offset of the entry that failed.
    pub offset: usize,
    /// Kind of the fault.
    pub kind: PackErrorKind,
}

/// Kinds of [`PackError`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum PackErrorKind {
    /// The address is 2 GiB or more away from the kernel's base, and no substitute was chosen.
    OutOfReach(AbsoluteAddress),
    /// The sink refused the entry.
    SinkFull,
}

impl fmt::Display for PackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            PackErrorKind::OutOfReach(address) => {
                write!(
                    f,
                    "{address} is out of reach of the kernel base for the entry at byte {}",
                    self.offset
                )
            }
            PackErrorKind::SinkFull => write!(f, "the output is full at byte {}", self.offset),
        }
    }
}

impl core::error::Error for PackError {}

/// Why a packed backtrace was refused, and at which byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnpackError {
    /// Where the offending entry starts.
    pub offset: usize,
    /// Kind of the fault.
    pub kind: UnpackErrorKind,
}

/// Kinds of [`UnpackError`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum UnpackErrorKind {
    /// The buffer ends inside an entry.
    PartialEntry,
}

impl fmt::Display for UnpackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            UnpackErrorKind::PartialEntry => {
                write!(f, "the packed backtrace ends inside the entry at byte {}", self.offset)
            }
        }
    }
}

impl core::error::Error for UnpackError {}
