//! Finds the unwind table of the module that contains this crate, if it was linked without
//! `.eh_frame_hdr`.
//!
//! `gcc -static` of some systems, such as Debian's, requests no header from the linker. The
//! loader's `_dl_find_object` then finds the program, but not its table. The table is in memory all
//! the same: [`find_frames`] finds it by its structure, once, and an index of it replaces the
//! header.
//!
//! The search runs while the program is loaded, before the program's own constructors, or in a
//! capture that comes still earlier. It reads the module's own readable segments, which remain
//! mapped, and takes one mapping; no lock, no file, no allocation.

use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicUsize, Ordering};

use cairn_format::{AbsoluteAddress, WordSize};
use cairn_unwind::AddressRange;
use cairn_unwind::cfi::{Bases, Flavor, FrameTable, IndexEntry, Section, find_frames};

use crate::stacks::{mapping, modules};

const UNKNOWN: u8 = 0;
/// One thread searches, possibly interrupted by this signal handler; captures find no table
/// meanwhile.
const SEARCHING: u8 = 1;
const ABSENT: u8 = 2;
const FOUND: u8 = 3;

static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);
/// The bytes of `.eh_frame`; valid when the state is [`FOUND`].
static FRAMES: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());
static FRAMES_BYTES: AtomicUsize = AtomicUsize::new(0);
/// The index of the table; null when there was no memory for it.
static INDEX: AtomicPtr<IndexEntry> = AtomicPtr::new(core::ptr::null_mut());
static INDEX_COUNT: AtomicUsize = AtomicUsize::new(0);

/// Runs before constructors without a priority. Those run in the order of the linker's arguments: a
/// program's own come first, and may capture.
#[cfg(not(miri))] // Miri runs constructors, but no assembly.
#[used]
#[unsafe(link_section = ".init_array.00099")]
static SEARCH_AT_START: extern "C" fn() = {
    extern "C" fn search_at_start() {
        search();
    }
    search_at_start
};

/// The table, if it covers `address`, which lies in a module without a header.
#[cold]
#[inline(never)]
pub(crate) fn table(address: AbsoluteAddress) -> Option<FrameTable<'static>> {
    if STATE.load(Ordering::Acquire) == UNKNOWN {
        search();
    }
    if STATE.load(Ordering::Acquire) != FOUND {
        return None;
    }
    let frames = FRAMES.load(Ordering::Relaxed);
    // SAFETY: in the state `FOUND`, the two statics describe a part of a readable segment of the
    // module that contains this code; the segment remains mapped while this code runs.
    let bytes = unsafe { core::slice::from_raw_parts(frames, FRAMES_BYTES.load(Ordering::Relaxed)) };
    let section = Section::new(bytes, AbsoluteAddress::new(frames as u64));
    let table = FrameTable::linear(Flavor::EhFrame, section, Bases::default(), WordSize::NATIVE);
    let index = INDEX.load(Ordering::Relaxed);
    let table = if index.is_null() {
        table
    } else {
        // SAFETY: `make_index` has filled a mapping of `INDEX_COUNT` entries; it is never unmapped,
        // and nothing writes to it afterwards.
        table.with_index(unsafe { core::slice::from_raw_parts(index, INDEX_COUNT.load(Ordering::Relaxed)) })
    };
    // The address may lie in another module without a header.
    table.find(address).is_ok().then_some(table)
}

#[cold]
#[inline(never)]
fn search() {
    if STATE.compare_exchange(UNKNOWN, SEARCHING, Ordering::Acquire, Ordering::Relaxed).is_err() {
        return;
    }
    let found = find_own().map(|frames| {
        FRAMES.store(frames.bytes.as_ptr().cast_mut(), Ordering::Relaxed);
        FRAMES_BYTES.store(frames.bytes.len(), Ordering::Relaxed);
        if let Some(index) = make_index(frames) {
            INDEX_COUNT.store(index.len(), Ordering::Relaxed);
            INDEX.store(index.as_ptr().cast_mut(), Ordering::Relaxed);
        }
    });
    STATE.store(if found.is_some() { FOUND } else { ABSENT }, Ordering::Release);
}

fn find_own() -> Option<Section<'static>> {
    let code = AbsoluteAddress::new(search as *const () as u64);
    let mut segments = modules::segments_without_header(code)?;
    segments.find_map(|AddressRange { start, end }| {
        let length = usize::try_from(end.value().checked_sub(start.value())?).ok()?;
        // SAFETY: the bytes are the part of a readable segment that the file covers, in the module
        // that contains this code, so they remain mapped while it runs. Writable parts may change
        // while they are read; any bytes are valid input for the search.
        let bytes = unsafe { core::slice::from_raw_parts(start.value() as *const u8, length) };
        find_frames(Section::new(bytes, start), code, WordSize::NATIVE)
    })
}

/// Builds an index of the table in a mapping that is never unmapped. `None` without memory; the
/// table is then searched linearly.
fn make_index(frames: Section<'static>) -> Option<&'static [IndexEntry]> {
    let table = FrameTable::linear(Flavor::EhFrame, frames, Bases::default(), WordSize::NATIVE);
    let entries = || table.entries().map_while(Result::ok).filter(|entry| entry.range.start.value() != 0);
    let count = entries().count();
    let place = mapping::reserve(count.max(1) * size_of::<IndexEntry>())?.cast::<IndexEntry>();
    for (number, entry) in entries().take(count).enumerate() {
        let line = IndexEntry { start: entry.range.start, entry_offset: entry.offset };
        // SAFETY: `number` is below the count that the mapping was made for, and the mapping is
        // known here alone.
        unsafe { place.add(number).write(line) };
    }
    // SAFETY: the loop above wrote `count` entries: the table does not change, so both iterations
    // return the same entries. The mapping is known here alone.
    let index = unsafe { core::slice::from_raw_parts_mut(place.as_ptr(), count) };
    index.sort_unstable_by_key(|entry| entry.start);
    Some(index)
}
