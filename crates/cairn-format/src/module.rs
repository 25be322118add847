//! The module: a program or library as it lies in the watched process.

use crate::{AbsoluteAddress, ModuleOffset};

/// A program or library in the memory of a process.
///
/// `P` is how a format yields the path: plain bytes, or a value that builds the text as it is
/// read. Paths are bytes because file names are; formats that demand UTF-8 say so.
///
/// ```
/// use cairn_format::{AbsoluteAddress, Module, ModuleOffset};
///
/// let libc = Module {
///     base: AbsoluteAddress::new(0x7f00_0000_0000),
///     end: AbsoluteAddress::new(0x7f00_0020_0000),
///     build_id: Some(&[0x1d, 0x46, 0xab, 0x19]),
///     path: Some(&b"/usr/lib/libc.so.6"[..]),
/// };
/// let malloc = AbsoluteAddress::new(0x7f00_0009_a110);
/// assert_eq!(libc.offset_of(malloc), Some(ModuleOffset::new(0x9_a110)));
/// assert_eq!(libc.offset_of(AbsoluteAddress::new(0x1000)), None);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Module<'a, P = &'a [u8]> {
    /// Where the module begins.
    pub base: AbsoluteAddress,
    /// The first address after the module, or after its code in formats that record only that.
    pub end: AbsoluteAddress,
    /// Identity that the linker wrote into the file: a GNU build id, a Mach-O UUID, a PDB
    /// signature.
    pub build_id: Option<&'a [u8]>,
    /// Where the file was found.
    pub path: Option<P>,
}

impl<P> Module<'_, P> {
    /// Returns the distance from base to end; 0 when the end lies before the base.
    #[must_use]
    pub const fn size_bytes(&self) -> u64 {
        self.end.value().saturating_sub(self.base.value())
    }

    /// Returns how far into the module an address lies, or `None` outside of it.
    #[must_use]
    pub fn offset_of(&self, address: AbsoluteAddress) -> Option<ModuleOffset> {
        let offset = address.value().checked_sub(self.base.value())?;
        (offset < self.size_bytes()).then_some(ModuleOffset::new(offset))
    }

    /// Returns the address of a place in the module, or `None` when it lies outside.
    #[must_use]
    pub fn address_of(&self, offset: ModuleOffset) -> Option<AbsoluteAddress> {
        (offset.value() < self.size_bytes()).then_some(())?;
        self.base.checked_add(offset.value())
    }
}
