//! Reads this process's memory where it may be unreadable: the kernel copies it, and reports where
//! it cannot.
//!
//! `NtReadVirtualMemory` on this process, and `NtQueryVirtualMemory` for ranges. A guard page is
//! not read: reading it would take away the guard.

use core::ffi::c_void;

use super::calls::{NtReadVirtualMemory, PageRange, THIS_PROCESS};

pub(crate) const PAGE_BYTES: u64 = 4096;

/// Pages that [`readable_end`] asks for at most.
pub(crate) const PROBE_PAGES: usize = 32;

/// Returns true when all pages from `low` to `high` are readable.
pub(crate) fn is_readable(low: u64, high: u64) -> bool {
    let mut at = low;
    while at < high {
        match PageRange::around(at) {
            Some(range) if range.is_readable() && range.end() > at => at = range.end(),
            _ => return false,
        }
    }
    true
}

/// Returns the end of the readable memory that begins at `address`. It lies at most `pages` pages
/// and at most [`PROBE_PAGES`] further up.
pub(crate) fn readable_end(address: u64, pages: usize) -> u64 {
    let first_page = address & !(PAGE_BYTES - 1);
    let limit = first_page.saturating_add(pages.min(PROBE_PAGES) as u64 * PAGE_BYTES);
    match PageRange::around(address) {
        Some(range) if range.is_readable() => range.end().min(limit),
        _ => address,
    }
}

/// Reads one word of a stack; `None` where it is unreadable.
pub(crate) fn read_word(address: u64) -> Option<u64> {
    let mut word = [0; 8];
    (read_bytes(address, &mut word) == word.len()).then(|| u64::from_ne_bytes(word))
}

/// Copies bytes from any address of this process, up to the first unreadable page. Returns their
/// count.
///
/// Takes no lock. Another thread may unmap the memory meanwhile.
pub fn read_bytes(address: u64, into: &mut [u8]) -> usize {
    let mut count = 0;
    while let Some(rest) = into.get_mut(count..).filter(|rest| !rest.is_empty()) {
        let from = address.wrapping_add(count as u64);
        let Some(range) = PageRange::around(from).filter(PageRange::is_readable) else { break };
        let length = rest.len().min(usize::try_from(range.end() - from).unwrap_or(usize::MAX));
        let mut read = 0;
        // SAFETY: the kernel checks the source, and `rest` has at least `length` bytes.
        let status = unsafe {
            NtReadVirtualMemory(
                THIS_PROCESS,
                from as *const c_void,
                rest.as_mut_ptr().cast(),
                length,
                &raw mut read,
            )
        };
        if status < 0 || read != length {
            break;
        }
        count += length;
    }
    count
}
