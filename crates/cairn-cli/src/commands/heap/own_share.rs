//! How much of a process's resident memory is cairn's own.
//!
//! The recorder says in the spool's first block which memory it has reserved (`Drain::own_memory`);
//! which pages of that and of the spool are resident, the kernel says in `/proc/PID/pagemap`, eight
//! bytes for each. So it costs some ten kilobytes to read, whatever the program has: `smaps` would
//! walk all of its memory.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use cairn_recording::Drain;

/// Bit of a present page.
const PRESENT: u64 = 1 << 63;
/// Bit of a page that no other process has.
///
/// The page of zeros, which reads return before the first write and which is not counted as
/// resident, is never exclusive.
const EXCLUSIVE: u64 = 1 << 56;
/// How many pages are read at once.
const STEP_PAGES: u64 = 4096;
/// Minimum size, in pages, of pieces that are filled from their start.
///
/// After [`STEP_PAGES`] pages without a resident one, such a piece contains no more.
const LARGE_PAGES: u64 = 4 * STEP_PAGES;
/// The names of the library's files begin so.
const LIBRARY: &str = "libcairn_preload";

/// Follows one process.
#[derive(Default)]
pub(super) struct OwnShare {
    process: u32,
    pagemap: Option<File>,
    /// Address, bytes, whether of a file.
    library: Vec<(u64, u64, bool)>,
    pieces: Vec<(u64, u64, bool)>,
}

impl OwnShare {
    /// The bytes; `None` where they cannot be known.
    pub(super) fn bytes(&mut self, process: u32, drain: &Drain) -> Option<u64> {
        if self.process != process {
            *self = Self {
                process,
                pagemap: File::open(format!("/proc/{process}/pagemap")).ok(),
                ..Self::default()
            };
        }
        if let Some(pieces) = drain.own_memory() {
            self.pieces = pieces;
        }
        let pagemap = self.pagemap.as_ref()?;
        if self.library.is_empty() {
            self.library = library(&fs::read_to_string(format!("/proc/{process}/maps")).ok()?);
        }
        if self.pieces.is_empty() || self.library.is_empty() {
            return None;
        }
        let mut pages = 0;
        for &(address, bytes, is_of_file) in self.pieces.iter().chain(&self.library) {
            pages += resident_pages(pagemap, address, bytes, is_of_file)?;
        }
        Some(pages * cairn_run::page_bytes())
    }
}

/// Where the library is, by the lines of `/proc/PID/maps`; what it has beside its file lies behind
/// it.
fn library(maps: &str) -> Vec<(u64, u64, bool)> {
    let mut found: Vec<(u64, u64, bool)> = Vec::new();
    for line in maps.lines() {
        let mut words = line.split_ascii_whitespace();
        let Some((start, end)) = words.next().and_then(|range| range.split_once('-')) else { continue };
        let number = |text| u64::from_str_radix(text, 16).ok();
        let (Some(start), Some(end)) = (number(start), number(end)) else { continue };
        let path = words.nth(4);
        let is_library =
            path.is_some_and(|path| path.rsplit('/').next().is_some_and(|name| name.starts_with(LIBRARY)));
        let is_behind = path.is_none() && found.last().is_some_and(|last| last.2 && last.0 + last.1 == start);
        if is_library || is_behind {
            found.push((start, end - start, is_library));
        }
    }
    found
}

fn resident_pages(pagemap: &File, address: u64, bytes: u64, is_of_file: bool) -> Option<u64> {
    let page_bytes = cairn_run::page_bytes();
    let (first, end) = (address / page_bytes, (address + bytes).div_ceil(page_bytes));
    let is_large = end - first > LARGE_PAGES;
    let wanted = if is_of_file { PRESENT } else { PRESENT | EXCLUSIVE };
    let mut resident = 0;
    let mut entries = vec![0; STEP_PAGES as usize * 8];
    let mut page = first;
    while page < end {
        let count = STEP_PAGES.min(end - page);
        let part = entries.get_mut(..count as usize * 8)?;
        // A process that has just ended has no pages.
        pagemap.read_exact_at(part, page * 8).ok()?;
        let (words, _) = part.as_chunks::<8>();
        let found = words.iter().filter(|word| u64::from_ne_bytes(**word) & wanted == wanted).count() as u64;
        if found == 0 && is_large {
            break;
        }
        resident += found;
        page += count;
    }
    Some(resident)
}

#[cfg(test)]
mod tests {
    use super::*;

    // Failed before: there was no share, and all that was resident counted as the program's.
    #[test]
    fn own_pages_are_those_that_were_written_to() {
        let page = cairn_run::page_bytes() as usize;
        let pagemap = File::open("/proc/self/pagemap").unwrap();
        // Whole pages of its own.
        let mut memory = vec![0_u8; 64 * page];
        let start = (memory.as_ptr() as usize).next_multiple_of(page);
        let skipped = start - memory.as_ptr() as usize;
        let count = || resident_pages(&pagemap, start as u64, 60 * page as u64, false).unwrap();
        let before = count();
        assert!(before <= 60);
        for index in 0..60 {
            memory[skipped + index * page] = 1;
        }
        std::hint::black_box(&memory);
        assert_eq!(count(), 60);
    }

    // Failed before: as above.
    #[test]
    fn library_is_found_with_what_lies_behind_it() {
        let maps = "1000-3000 r-xp 00000000 08:01 12 /usr/bin/program\n\
                    7f0000001000-7f0000003000 r--p 00000000 08:01 99 /root/.cache/cairn/libcairn_preload-12.so\n\
                    7f0000003000-7f0000004000 rw-p 00002000 08:01 99 /root/.cache/cairn/libcairn_preload-12.so\n\
                    7f0000004000-7f0000006000 rw-p 00000000 00:00 0 \n\
                    7f0000006000-7f0000007000 rw-p 00000000 00:00 0 \n";
        let found = library(maps);
        assert_eq!(
            found,
            [
                (0x7f00_0000_1000, 0x2000, true),
                (0x7f00_0000_3000, 0x1000, true),
                (0x7f00_0000_4000, 0x2000, false)
            ]
        );
    }
}
