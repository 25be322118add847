//! Finds function bounds in the unwind table, the only trace of functions in stripped files.
//!
//! A few queries use the linker's search table, `.eh_frame_hdr`: a binary search finds one entry,
//! and only that entry is parsed, because a stripped compiler has fifty thousand. Without such a
//! table, or with an unusual one, or if all functions are wanted, every entry is parsed once.

use std::ops::Range;
use std::sync::OnceLock;

use gimli::{BaseAddresses, CieOrFde, EhFrame, EhFrameHdr, EndianSlice, RunTimeEndian, UnwindSection};
use object::{Object, ObjectSection};

use crate::elf::debug_object::DebugObject;

/// First and last address of every function.
#[derive(Debug, Default)]
pub(crate) struct UnwindStarts {
    sections: Option<Sections>,
    /// Sorted; filled by the first query for all of them.
    all: OnceLock<Vec<(u64, u64)>>,
}

/// The unwind table's position in the file, and the bases of its pointers.
#[derive(Debug)]
struct Sections {
    frames: Range<usize>,
    /// The search table.
    header: Option<Range<usize>>,
    bases: BaseAddresses,
    endian: RunTimeEndian,
    address_bytes: u8,
}

impl UnwindStarts {
    /// Finds the sections of a file.
    pub(crate) fn of(object: &object::File<'_>) -> Self {
        Self { sections: Sections::of(object), all: OnceLock::new() }
    }

    /// Returns the start of the function at an address of this file.
    pub(crate) fn find(&self, file: &DebugObject, address: u64) -> Option<u64> {
        if self.all.get().is_none()
            && let Some(answer) = self.sections.as_ref()?.search(file.bytes(), address)
        {
            return answer;
        }
        let all = self.all(file);
        let after = all.partition_point(|&(start, _)| start <= address);
        let &(start, end) = all.get(after.checked_sub(1)?)?;
        (address < end).then_some(start)
    }

    /// Returns the bounds of all functions, unordered.
    pub(crate) fn boundaries(&self, file: &DebugObject) -> impl Iterator<Item = u64> {
        self.all(file).iter().flat_map(|&(start, end)| [start, end])
    }

    fn all(&self, file: &DebugObject) -> &[(u64, u64)] {
        let read = || self.sections.as_ref().map_or_else(Vec::new, |sections| sections.read(file.bytes()));
        self.all.get_or_init(read)
    }
}

impl Sections {
    fn of(object: &object::File<'_>) -> Option<Self> {
        let range = |name| {
            let section = object.section_by_name(name)?;
            let (offset, size) = section.file_range()?;
            let end = offset.checked_add(size)?;
            Some((section.address(), usize::try_from(offset).ok()?..usize::try_from(end).ok()?))
        };
        let (frames_address, frames) = range(".eh_frame")?;
        let mut bases = BaseAddresses::default().set_eh_frame(frames_address);
        let header = range(".eh_frame_hdr").map(|(address, header)| {
            bases = std::mem::take(&mut bases).set_eh_frame_hdr(address);
            header
        });
        if let Some(text) = object.section_by_name(".text") {
            bases = bases.set_text(text.address());
        }
        if let Some(got) = object.section_by_name(".got") {
            bases = bases.set_got(got.address());
        }
        let endian = if object.is_little_endian() { RunTimeEndian::Little } else { RunTimeEndian::Big };
        Some(Self { frames, header, bases, endian, address_bytes: if object.is_64() { 8 } else { 4 } })
    }

    fn frames<'a>(&self, file: &'a [u8]) -> Option<EhFrame<EndianSlice<'a, RunTimeEndian>>> {
        let mut frames = EhFrame::from(EndianSlice::new(file.get(self.frames.clone())?, self.endian));
        frames.set_address_size(self.address_bytes);
        Some(frames)
    }

    /// Searches the table; `None` if the table cannot answer.
    fn search(&self, file: &[u8], address: u64) -> Option<Option<u64>> {
        let bytes = file.get(self.header.clone()?)?;
        let header = EhFrameHdr::new(bytes, self.endian).parse(&self.bases, self.address_bytes).ok()?;
        let table = header.table()?;
        let place = table.pointer_to_offset(table.lookup(address, &self.bases).ok()?).ok()?;
        let frames = self.frames(file)?;
        let entry = frames.fde_from_offset(&self.bases, place, EhFrame::cie_from_offset).ok()?;
        let start = entry.initial_address();
        let end = start.checked_add(entry.len()).filter(|&end| end > start)?;
        Some((start..end).contains(&address).then_some(start))
    }

    /// Parses all entries up to the first broken one.
    fn read(&self, file: &[u8]) -> Vec<(u64, u64)> {
        let mut all = Vec::new();
        let Some(frames) = self.frames(file) else { return all };
        let mut entries = frames.entries(&self.bases);
        while let Ok(Some(entry)) = entries.next() {
            let CieOrFde::Fde(partial) = entry else { continue };
            let Ok(entry) = partial.parse(EhFrame::cie_from_offset) else { continue };
            if entry.len() > 0
                && let Some(end) = entry.initial_address().checked_add(entry.len())
            {
                all.push((entry.initial_address(), end));
            }
        }
        all.sort_unstable();
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapped_file::FileBytes;

    /// This test program itself has thousands of functions and a linker's search table.
    #[cfg(target_os = "linux")]
    #[test]
    fn unwind_search_table_agrees_with_all_entries() {
        let path = std::env::current_exe().unwrap();
        let file = DebugObject::parse(&path, FileBytes::map(&path).unwrap(), None).unwrap();
        let searched = UnwindStarts::of(&file.object().unwrap());
        let read = UnwindStarts::of(&file.object().unwrap());
        let all = read.all(&file).to_vec();
        assert!(all.len() > 1000, "{} functions", all.len());
        for &(start, end) in &all {
            for address in [start.saturating_sub(1), start, start + (end - start) / 2, end - 1, end] {
                let sections = searched.sections.as_ref().unwrap();
                let answer = sections.search(file.bytes(), address).expect("there is a table");
                assert_eq!(answer, read.find(&file, address), "{address:#x}");
            }
        }
        assert!(searched.all.get().is_none());
        assert_eq!(searched.find(&file, 0), None);
    }
}
