//! Where functions begin and end by the unwind table: all that is left of them in a stripped file.

use gimli::{BaseAddresses, CieOrFde, EhFrame, EndianSlice, RunTimeEndian, UnwindSection};
use object::{Object, ObjectSection};

/// First and last address of every function, sorted.
#[derive(Debug, Default)]
pub(crate) struct UnwindStarts(Vec<(u64, u64)>);

impl UnwindStarts {
    /// Reads `.eh_frame` as far as it is sound.
    pub(crate) fn read(object: &object::File<'_>) -> Self {
        let mut starts = Self::default();
        let Some(section) = object.section_by_name(".eh_frame") else { return starts };
        let Ok(bytes) = section.data() else { return starts };
        let endian = if object.is_little_endian() { RunTimeEndian::Little } else { RunTimeEndian::Big };
        let mut frames = EhFrame::from(EndianSlice::new(bytes, endian));
        frames.set_address_size(if object.is_64() { 8 } else { 4 });
        let mut bases = BaseAddresses::default().set_eh_frame(section.address());
        if let Some(text) = object.section_by_name(".text") {
            bases = bases.set_text(text.address());
        }
        if let Some(got) = object.section_by_name(".got") {
            bases = bases.set_got(got.address());
        }
        let mut entries = frames.entries(&bases);
        while let Ok(Some(entry)) = entries.next() {
            let CieOrFde::Fde(partial) = entry else { continue };
            let Ok(entry) = partial.parse(EhFrame::cie_from_offset) else { continue };
            if entry.len() > 0
                && let Some(end) = entry.initial_address().checked_add(entry.len())
            {
                starts.0.push((entry.initial_address(), end));
            }
        }
        starts.0.sort_unstable();
        starts
    }

    /// The first address of the function at an address.
    pub(crate) fn find(&self, address: u64) -> Option<u64> {
        let after = self.0.partition_point(|&(start, _)| start <= address);
        let &(start, end) = self.0.get(after.checked_sub(1)?)?;
        (address < end).then_some(start)
    }

    /// Where the answer may change, in no order.
    pub(crate) fn boundaries(&self) -> impl Iterator<Item = u64> {
        self.0.iter().flat_map(|&(start, end)| [start, end])
    }
}
