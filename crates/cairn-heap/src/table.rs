//! The stack table in this program's own memory, which maps the numbers in block headers to stacks
//! for readers of a memory image.
//!
//! The source of the numbers fills it before any block can have one; `cairn core` reads it from an
//! image. It only grows, in segments that never move. See [`cairn_wire::heapblock::stack_table`]
//! for the bytes.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use cairn_wire::heapblock::stack_table::{ENTRY_BYTES, FrameKind, HEAD_BYTES, HEAD_MAGIC, MAX_SEGMENTS};

/// Logarithm of the entries of a segment, which takes 1 MiB.
const SEGMENT_ENTRIES_LOG2: u32 = 16;
const SEGMENT_BYTES: usize = ENTRY_BYTES << SEGMENT_ENTRIES_LOG2;

/// A table with room for `SEGMENTS` times 65,536 stacks.
///
/// ```
/// use cairn_wire::heapblock::stack_table::FrameKind;
/// use cairn_heap::StackTable;
///
/// static TABLE: StackTable<4> = StackTable::new();
/// let zeros = |bytes| Box::leak(vec![0_u64; bytes / 8].into_boxed_slice()).as_mut_ptr().cast();
/// assert!(TABLE.add(1, 0, 0x40_1000, FrameKind::ReturnAddress, zeros));
/// assert!(TABLE.add(2, 1, 0x40_2000, FrameKind::ReturnAddress, zeros));
///
/// let mut addresses = [0; 8];
/// let count = TABLE.addresses(2, &mut addresses);
/// assert_eq!(addresses[..count], [0x40_2000, 0x40_1000]);
/// ```
#[repr(C, align(8))]
#[derive(Debug)]
pub struct StackTable<const SEGMENTS: usize> {
    magic: [u8; 16],
    version: u32,
    segment_entries_log2: u32,
    end: AtomicU32,
    segment_count: u32,
    segments: [AtomicU64; SEGMENTS],
}

const _: () = assert!(size_of::<StackTable<2>>() == HEAD_BYTES + 16);

/// An entry in a segment.
#[repr(C)]
struct TableEntry {
    address: AtomicU64,
    parent: AtomicU32,
    kind: AtomicU32,
}

const _: () = assert!(size_of::<TableEntry>() == ENTRY_BYTES);

impl<const SEGMENTS: usize> StackTable<SEGMENTS> {
    /// Returns an empty table.
    #[must_use]
    pub const fn new() -> Self {
        const { assert!(SEGMENTS > 0 && SEGMENTS <= MAX_SEGMENTS as usize, "as many as a reader accepts") };
        Self {
            magic: HEAD_MAGIC,
            version: 1,
            segment_entries_log2: SEGMENT_ENTRIES_LOG2,
            end: AtomicU32::new(0),
            segment_count: SEGMENTS as u32,
            segments: [const { AtomicU64::new(0) }; SEGMENTS],
        }
    }

    /// Adds the stack `number`: that of `parent`, and one frame more. `map` returns null, or zeroed
    /// memory of the passed size, aligned to 8, that is never released. Returns false when there is
    /// no room. May be called by several threads at once, and in signal handlers; the same number
    /// with the same content any number of times.
    pub fn add(
        &self,
        number: u32,
        parent: u32,
        address: u64,
        kind: FrameKind,
        map: impl FnOnce(usize) -> *mut u8,
    ) -> bool {
        let Some(place) = self.place(number, map) else { return false };
        place.address.store(address, Ordering::Relaxed);
        place.parent.store(parent, Ordering::Relaxed);
        place.kind.store(kind as u32, Ordering::Release);
        self.end.fetch_max(number.saturating_add(1), Ordering::Release);
        true
    }

    fn place(&self, number: u32, map: impl FnOnce(usize) -> *mut u8) -> Option<&TableEntry> {
        let segment = self.segments.get((number >> SEGMENT_ENTRIES_LOG2) as usize)?;
        let mut start = segment.load(Ordering::Acquire);
        if start == 0 {
            let fresh = map(SEGMENT_BYTES);
            if fresh.is_null() {
                return None;
            }
            // The second of two threads has mapped a segment in vain; that is rare, and the memory
            // was never touched.
            start = match segment.compare_exchange(0, fresh as u64, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => fresh as u64,
                Err(present) => present,
            };
        }
        Self::entry(start, number)
    }

    fn entry(start: u64, number: u32) -> Option<&'static TableEntry> {
        let index = (number & ((1 << SEGMENT_ENTRIES_LOG2) - 1)) as usize;
        // SAFETY: `map` returned zeroed memory for a segment, which is never released.
        (start != 0).then(|| unsafe { &*(start as *const TableEntry).add(index) })
    }

    /// Writes the addresses of a stack, innermost first, and returns their number.
    pub fn addresses(&self, number: u32, into: &mut [usize]) -> usize {
        let (mut number, mut count) = (number, 0);
        while number != 0 && count < into.len() {
            let segment = self.segments.get((number >> SEGMENT_ENTRIES_LOG2) as usize);
            let Some(entry) = segment.and_then(|start| Self::entry(start.load(Ordering::Acquire), number))
            else {
                break;
            };
            let kind = entry.kind.load(Ordering::Acquire);
            if kind == 0 {
                break;
            }
            if kind != FrameKind::Truncated as u32
                && let Some(place) = into.get_mut(count)
            {
                *place = entry.address.load(Ordering::Relaxed) as usize;
                count += 1;
            }
            let parent = entry.parent.load(Ordering::Relaxed);
            // Numbers of parents are smaller, so that the loop ends.
            number = if parent < number { parent } else { 0 };
        }
        count
    }
}

impl<const SEGMENTS: usize> Default for StackTable<SEGMENTS> {
    fn default() -> Self {
        Self::new()
    }
}
