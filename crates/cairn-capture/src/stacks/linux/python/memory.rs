//! Reads an interpreter's data: directly where they cannot go away meanwhile, else through the
//! kernel.

use cairn_format::AbsoluteAddress;
use cairn_unwind::MemoryReader;

use crate::stacks::own_memory;

/// Words of this process's memory.
pub(crate) trait Words {
    /// The word at an address; `None` where it is unreadable.
    ///
    /// The address is a multiple of 8 in all structures that are read.
    fn word(&self, address: u64) -> Option<u64>;

    /// Four bytes, at a multiple of 4.
    fn half(&self, address: u64) -> Option<u32> {
        let word = self.word(address & !7)?;
        Some((word >> ((address & 4) * 8)) as u32)
    }

    /// One byte.
    fn byte(&self, address: u64) -> Option<u8> {
        let word = self.word(address & !7)?;
        Some((word >> ((address & 7) * 8)) as u8)
    }

    /// Copies bytes; false where they are unreadable.
    fn copy(&self, address: u64, into: &mut [u8]) -> bool;
}

/// Words as the reader of strings takes them.
pub(super) struct Readable<'a, W>(pub(super) &'a W);

impl<W: Words> MemoryReader for Readable<'_, W> {
    fn read(&self, address: AbsoluteAddress, into: &mut [u8]) -> Option<()> {
        self.0.copy(address.value(), into).then_some(())
    }
}

/// Reads as ordinary code does.
#[derive(Clone, Copy)]
pub(crate) struct Direct(());

impl Direct {
    /// # Safety
    ///
    /// - All addresses that are read with it are those of live structures of an interpreter.
    /// - These stay mapped meanwhile.
    #[inline(always)]
    pub(crate) unsafe fn new() -> Self {
        Self(())
    }

    /// The word at an address that was read before, in a structure that is still there.
    ///
    /// # Safety
    ///
    /// - [`word`](Words::word) has returned a value for this address, and the structure around it
    ///   is live.
    #[inline(always)]
    pub(crate) unsafe fn word_again(self, address: u64) -> u64 {
        // SAFETY: `word` has found the address aligned and not null; the caller promises that the
        // structure is live, and `new`'s caller that it stays mapped.
        unsafe { (address as *const u64).read_volatile() }
    }
}

impl Words for Direct {
    #[inline(always)]
    fn word(&self, address: u64) -> Option<u64> {
        // Null ends lists; everything below the first page is damage.
        if address < 4096 || !address.is_multiple_of(8) {
            return None;
        }
        // SAFETY: `new`'s caller promises live structures; the address is aligned, and any bits are
        // a value.
        Some(unsafe { (address as *const u64).read_volatile() })
    }

    fn copy(&self, address: u64, into: &mut [u8]) -> bool {
        if address < 4096 {
            return false;
        }
        // SAFETY: `new`'s caller promises live structures, and `into` is the caller's own memory.
        unsafe { core::ptr::copy_nonoverlapping(address as *const u8, into.as_mut_ptr(), into.len()) };
        true
    }
}

/// Reads through the kernel: unmapped memory is an answer, and no fault.
#[derive(Clone, Copy)]
pub(crate) struct Guarded;

impl MemoryReader for Guarded {
    fn read(&self, address: AbsoluteAddress, into: &mut [u8]) -> Option<()> {
        self.copy(address.value(), into).then_some(())
    }
}

impl Words for Guarded {
    fn word(&self, address: u64) -> Option<u64> {
        address.is_multiple_of(8).then(|| own_memory::read_word(address))?
    }

    fn copy(&self, address: u64, into: &mut [u8]) -> bool {
        own_memory::read_bytes(address, into) == into.len()
    }
}
