//! Reads the memory of another process, a few pages at a time.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

use cairn_format::AbsoluteAddress;
use cairn_unwind::MemoryReader;

use super::ptrace;

pub(super) const PAGE_BYTES: u64 = 4096;

/// Pages per read; 16, from the first one upwards, the direction of a walk. A stack of a hundred
/// frames takes one or two system calls.
const PAGES_AT_ONCE: u64 = 16;

/// Maximum cached pages; 8192, which take 32 MiB. A longer walk clears the cache.
const MAX_PAGES: usize = 8192;

/// Maximum bytes of a cached read; larger ones bypass the cache.
const MAX_CACHED_BYTES: usize = 4 * PAGE_BYTES as usize;

type Page = Box<[u8; PAGE_BYTES as usize]>;

/// Reads the memory of a stopped process, and caches it.
///
/// Uses `process_vm_readv`, and falls back to `/proc/PID/mem` if that fails: a sandbox may forbid
/// the call, or the page may be unreadable for the process itself.
#[derive(Debug)]
pub struct ProcessMemory {
    process: i32,
    file: Option<File>,
    /// `None` for an unreadable page.
    pages: RefCell<HashMap<u64, Option<Page>>>,
    system_calls: Cell<u64>,
}

impl ProcessMemory {
    /// Opens the memory of this thread's process, which must be stopped for consistent answers.
    pub(crate) fn of(thread: u32) -> Self {
        Self::new(thread as i32)
    }

    pub(super) fn new(process: i32) -> Self {
        let file = File::open(format!("/proc/{process}/mem")).ok();
        Self { process, file, pages: RefCell::default(), system_calls: Cell::new(0) }
    }

    /// Returns the number of system calls so far.
    #[must_use]
    pub fn system_calls(&self) -> u64 {
        self.system_calls.get()
    }

    /// Copies from the page at `page`, from `offset` on. The copy must stay within the page.
    fn read_cached(&self, page: u64, offset: usize, into: &mut [u8]) -> Option<()> {
        let mut pages = self.pages.borrow_mut();
        if !pages.contains_key(&page) {
            if pages.len() >= MAX_PAGES {
                pages.clear();
            }
            self.fetch(page, &mut pages);
        }
        let bytes = pages.get(&page)?.as_ref()?;
        into.copy_from_slice(bytes.get(offset..)?.get(..into.len())?);
        Some(())
    }

    /// Reads the page, and pages above it with the same call.
    fn fetch(&self, first: u64, pages: &mut HashMap<u64, Option<Page>>) {
        let mut bytes = vec![0; (PAGES_AT_ONCE * PAGE_BYTES) as usize];
        let starts: Vec<u64> =
            (0..PAGES_AT_ONCE).map_while(|index| first.checked_add(index * PAGE_BYTES)).collect();
        self.count_system_call();
        let read = ptrace::read_memory(self.process, &starts, PAGE_BYTES as usize, &mut bytes).unwrap_or(0);
        let (whole, _) = bytes.get(..read).unwrap_or_default().as_chunks::<{ PAGE_BYTES as usize }>();
        for (&start, page) in starts.iter().zip(whole) {
            pages.insert(start, Some(Box::new(*page)));
        }
        if whole.is_empty() {
            pages.insert(first, self.fetch_from_file(first));
        }
    }

    fn fetch_from_file(&self, page: u64) -> Option<Page> {
        let mut bytes = Box::new([0; PAGE_BYTES as usize]);
        self.count_system_call();
        self.file.as_ref()?.read_exact_at(&mut *bytes, page).ok()?;
        Some(bytes)
    }

    /// Reads many pages without caching, because no walk repeats such a read.
    fn read_directly(&self, address: u64, into: &mut [u8]) -> Option<()> {
        self.count_system_call();
        let read = ptrace::read_memory(self.process, &[address], into.len(), into);
        if read.is_ok_and(|read| read == into.len()) {
            return Some(());
        }
        self.count_system_call();
        self.file.as_ref()?.read_exact_at(into, address).ok()
    }

    fn count_system_call(&self) {
        self.system_calls.set(self.system_calls.get() + 1);
    }
}

impl MemoryReader for ProcessMemory {
    fn read(&self, address: AbsoluteAddress, into: &mut [u8]) -> Option<()> {
        if into.len() > MAX_CACHED_BYTES {
            return self.read_directly(address.value(), into);
        }
        let mut address = address.value();
        let mut rest = into;
        while !rest.is_empty() {
            let offset = address % PAGE_BYTES;
            let length = rest.len().min((PAGE_BYTES - offset) as usize);
            let (part, behind) = rest.split_at_mut(length);
            self.read_cached(address - offset, offset as usize, part)?;
            // No page follows the last page of the address space.
            address = address.checked_add(length as u64).or(behind.is_empty().then_some(0))?;
            rest = behind;
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own_memory() -> ProcessMemory {
        ProcessMemory::new(std::process::id() as i32)
    }

    fn address_of<T>(value: &T) -> AbsoluteAddress {
        AbsoluteAddress::new(std::ptr::from_ref(value) as u64)
    }

    #[test]
    fn memory_reads_words_and_large_ranges() {
        let memory = own_memory();
        let values: Vec<u64> = (0..20_000).collect();
        let start = address_of(&values[0]);
        for index in [0_u64, 511, 512, 19_999] {
            assert_eq!(memory.word64(start.checked_add(8 * index).unwrap()), Some(index));
        }
        let mut across_pages = [0; 8 * 1024];
        memory.read(start.checked_add(8).unwrap(), &mut across_pages).unwrap();
        let mut large = vec![0; 8 * 20_000];
        memory.read(start, &mut large).unwrap();
        let expected: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        assert_eq!(large, expected);
        assert_eq!(across_pages[..], expected[8..8 + across_pages.len()]);
    }

    #[test]
    fn memory_reads_neighbouring_pages_once() {
        let memory = own_memory();
        let values = vec![7_u64; 4096];
        for value in &values {
            assert_eq!(memory.word64(address_of(value)), Some(7));
        }
        assert!(memory.system_calls() <= 3, "{} system calls for nine pages", memory.system_calls());
    }

    #[test]
    fn memory_read_of_unmapped_page_fails() {
        let memory = own_memory();
        for address in [0, 8, u64::MAX - 7, u64::MAX, 0xffff_8000_0000_0000] {
            assert_eq!(memory.word64(AbsoluteAddress::new(address)), None, "{address:#x}");
        }
        assert_eq!(memory.read(AbsoluteAddress::new(8), &mut [0; 100_000]), None);
    }

    #[test]
    fn memory_falls_back_to_proc_mem() {
        // No process has the number 0, so the call fails as it does in a sandbox.
        let memory = ProcessMemory { process: 0, ..own_memory() };
        let value = 0x1234_5678_u64;
        assert_eq!(memory.word64(address_of(&value)), Some(0x1234_5678));
        let large = vec![3_u8; 50_000];
        let mut read = vec![0; large.len()];
        memory.read(address_of(&large[0]), &mut read).unwrap();
        assert_eq!(read, large);
    }
}
