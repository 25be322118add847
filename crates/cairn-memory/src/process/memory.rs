//! The memory of another process, a few pages at a time.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

use cairn_format::AbsoluteAddress;
use cairn_unwind::MemoryReader;

use super::ptrace;

pub(super) const PAGE_BYTES: u64 = 4096;

/// So many pages are asked for at once: 64 KiB upwards from the first, the way a walk goes. A stack of a hundred frames
/// is one or two system calls.
const PAGES_AT_ONCE: u64 = 16;

/// 32 MiB. A walk over more memory starts the cache anew.
const MAX_PAGES: usize = 8192;

/// Reads that are larger go around the cache.
const MAX_CACHED_BYTES: usize = 4 * PAGE_BYTES as usize;

type Page = Box<[u8; PAGE_BYTES as usize]>;

/// Reads the memory of a process that holds still: what was read once is not read again.
///
/// Asks `process_vm_readv`; what that refuses (a sandbox forbids the call, the page may not be read by the process
/// itself) is asked from `/proc/PID/mem`.
#[derive(Debug)]
pub struct ProcessMemory {
    process: i32,
    file: Option<File>,
    /// `None` for a page that cannot be read.
    pages: RefCell<HashMap<u64, Option<Page>>>,
    system_calls: Cell<u64>,
}

impl ProcessMemory {
    /// The memory of the process that this thread belongs to, which must stand still for the answers to fit together.
    pub(crate) fn of(thread: u32) -> Self {
        Self::new(thread as i32)
    }

    pub(super) fn new(process: i32) -> Self {
        let file = File::open(format!("/proc/{process}/mem")).ok();
        Self { process, file, pages: RefCell::default(), system_calls: Cell::new(0) }
    }

    /// How many times the kernel was asked so far.
    #[must_use]
    pub fn system_calls(&self) -> u64 {
        self.system_calls.get()
    }

    /// Fills `into` with what lies in the page at `page`, from `offset` on. Both lie within the page.
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

    /// Reads the page and those above it that can be had with it.
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

    /// A read of many pages, which no walk repeats.
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
            // The last page of the address space has none behind it.
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
    fn words_and_large_pieces_are_what_they_are() {
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
    fn neighbours_are_read_at_once_and_only_once() {
        let memory = own_memory();
        let values = vec![7_u64; 4096];
        for value in &values {
            assert_eq!(memory.word64(address_of(value)), Some(7));
        }
        assert!(memory.system_calls() <= 3, "{} system calls for nine pages", memory.system_calls());
    }

    #[test]
    fn what_is_not_mapped_is_an_answer() {
        let memory = own_memory();
        for address in [0, 8, u64::MAX - 7, u64::MAX, 0xffff_8000_0000_0000] {
            assert_eq!(memory.word64(AbsoluteAddress::new(address)), None, "{address:#x}");
        }
        assert_eq!(memory.read(AbsoluteAddress::new(8), &mut [0; 100_000]), None);
    }

    #[test]
    fn the_file_serves_where_the_call_is_refused() {
        // No process has the number 0, so the call fails as it does under a sandbox.
        let memory = ProcessMemory { process: 0, ..own_memory() };
        let value = 0x1234_5678_u64;
        assert_eq!(memory.word64(address_of(&value)), Some(0x1234_5678));
        let large = vec![3_u8; 50_000];
        let mut read = vec![0; large.len()];
        memory.read(address_of(&large[0]), &mut read).unwrap();
        assert_eq!(read, large);
    }
}
