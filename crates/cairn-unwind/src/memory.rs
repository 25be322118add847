//! Readers of stack memory, the only access of an unwinder to its surroundings.

use cairn_format::{AbsoluteAddress, WordSize};

/// Reads the memory of the stack's owner. Little-endian machines only.
///
/// Implement it over `process_vm_readv`, a core file or a debug probe. A reader returns `None` for
/// unreadable bytes. It must not fault, because an unwinder reads at addresses from memory that may
/// contain garbage.
///
/// ```
/// use cairn_format::AbsoluteAddress;
/// use cairn_unwind::{MemoryReader, SliceMemory};
///
/// let memory = SliceMemory::new(AbsoluteAddress::new(0x1000), &[1, 0, 0, 0, 0, 0, 0, 0x80]);
/// assert_eq!(memory.word64(AbsoluteAddress::new(0x1000)), Some(0x8000_0000_0000_0001));
/// assert_eq!(memory.word64(AbsoluteAddress::new(0x1001)), None);
/// ```
pub trait MemoryReader {
    /// Fills all of `into` with the bytes at `address`, or returns `None` and leaves `into`
    /// unspecified.
    fn read(&self, address: AbsoluteAddress, into: &mut [u8]) -> Option<()>;

    /// The 8-byte word at `address`.
    #[inline]
    fn word64(&self, address: AbsoluteAddress) -> Option<u64> {
        let mut bytes = [0; 8];
        self.read(address, &mut bytes)?;
        Some(u64::from_le_bytes(bytes))
    }

    /// The word of that width at `address`, widened with zeros.
    #[inline]
    fn word(&self, address: AbsoluteAddress, word_size: WordSize) -> Option<u64> {
        match word_size {
            WordSize::Bits64 => self.word64(address),
            WordSize::Bits32 => {
                let mut bytes = [0; 4];
                self.read(address, &mut bytes)?;
                Some(u64::from(u32::from_le_bytes(bytes)))
            }
            WordSize::Bits16 => {
                let mut bytes = [0; 2];
                self.read(address, &mut bytes)?;
                Some(u64::from(u16::from_le_bytes(bytes)))
            }
        }
    }
}

impl<M: MemoryReader + ?Sized> MemoryReader for &M {
    #[inline]
    fn read(&self, address: AbsoluteAddress, into: &mut [u8]) -> Option<()> {
        (**self).read(address, into)
    }

    #[inline]
    fn word64(&self, address: AbsoluteAddress) -> Option<u64> {
        (**self).word64(address)
    }

    #[inline]
    fn word(&self, address: AbsoluteAddress, word_size: WordSize) -> Option<u64> {
        (**self).word(address, word_size)
    }
}

/// The addresses from `start` up to, not including, `end`. Empty when `end` is not above `start`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AddressRange {
    /// The first address inside.
    pub start: AbsoluteAddress,
    /// The first address above.
    pub end: AbsoluteAddress,
}

impl AddressRange {
    /// Every address except the last byte, at which no word fits.
    pub const ALL: Self = Self { start: AbsoluteAddress::new(0), end: AbsoluteAddress::new(u64::MAX) };

    /// The addresses from `start` up to, not including, `end`.
    #[must_use]
    pub const fn new(start: AbsoluteAddress, end: AbsoluteAddress) -> Self {
        Self { start, end }
    }

    /// True when `address` lies inside.
    #[must_use]
    #[inline]
    pub const fn contains(self, address: AbsoluteAddress) -> bool {
        self.start.value() <= address.value() && address.value() < self.end.value()
    }

    /// True when all of the `bytes` bytes at `address` lie inside.
    #[must_use]
    #[inline]
    pub const fn contains_bytes(self, address: AbsoluteAddress, bytes: u64) -> bool {
        match address.value().checked_add(bytes) {
            Some(end) => self.start.value() <= address.value() && end <= self.end.value(),
            None => false,
        }
    }
}

/// Memory that is one slice: a copied stack, a segment of a core file, a test.
#[derive(Clone, Copy, Debug)]
pub struct SliceMemory<'a> {
    base: AbsoluteAddress,
    bytes: &'a [u8],
}

impl<'a> SliceMemory<'a> {
    /// The bytes that lie at `base` in the stack's owner.
    #[must_use]
    pub const fn new(base: AbsoluteAddress, bytes: &'a [u8]) -> Self {
        Self { base, bytes }
    }

    /// The part of the slice from `address` on, or `None` when it starts outside.
    #[inline]
    fn from(&self, address: AbsoluteAddress) -> Option<&'a [u8]> {
        let offset = address.value().checked_sub(self.base.value())?;
        self.bytes.get(usize::try_from(offset).ok()?..)
    }
}

impl MemoryReader for SliceMemory<'_> {
    #[inline]
    fn read(&self, address: AbsoluteAddress, into: &mut [u8]) -> Option<()> {
        into.copy_from_slice(self.from(address)?.get(..into.len())?);
        Some(())
    }

    #[inline]
    fn word64(&self, address: AbsoluteAddress) -> Option<u64> {
        self.from(address)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
    }
}

/// Memory in several slices, as the segments of a core file lie. A read must lie within one of
/// them.
#[derive(Clone, Copy, Debug)]
pub struct RegionMemory<'a> {
    regions: &'a [SliceMemory<'a>],
}

impl<'a> RegionMemory<'a> {
    /// Memory made of these regions. They are tried in order; where two overlap, the first wins.
    #[must_use]
    pub const fn new(regions: &'a [SliceMemory<'a>]) -> Self {
        Self { regions }
    }
}

impl MemoryReader for RegionMemory<'_> {
    fn read(&self, address: AbsoluteAddress, into: &mut [u8]) -> Option<()> {
        self.regions.iter().find_map(|region| region.read(address, into))
    }
}

/// Restricts a reader to one range.
///
/// Wrap a reader that would fault elsewhere: within the bounds of the stack, an invalid frame
/// pointer gives `None` instead of a crash.
#[derive(Clone, Copy, Debug)]
pub struct BoundedMemory<M> {
    inner: M,
    bounds: AddressRange,
}

impl<M> BoundedMemory<M> {
    /// Restricts `inner` to `bounds`.
    #[must_use]
    pub const fn new(inner: M, bounds: AddressRange) -> Self {
        Self { inner, bounds }
    }
}

impl<M: MemoryReader> MemoryReader for BoundedMemory<M> {
    #[inline]
    fn read(&self, address: AbsoluteAddress, into: &mut [u8]) -> Option<()> {
        self.bounds.contains_bytes(address, into.len() as u64).then_some(())?;
        self.inner.read(address, into)
    }

    #[inline]
    fn word64(&self, address: AbsoluteAddress) -> Option<u64> {
        self.bounds.contains_bytes(address, 8).then_some(())?;
        self.inner.word64(address)
    }
}

/// Memory behind a closure.
#[derive(Clone, Copy, Debug)]
pub struct FnMemory<F>(pub F);

impl<F: Fn(AbsoluteAddress, &mut [u8]) -> Option<()>> MemoryReader for FnMemory<F> {
    #[inline]
    fn read(&self, address: AbsoluteAddress, into: &mut [u8]) -> Option<()> {
        (self.0)(address, into)
    }
}
