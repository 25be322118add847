//! The unwind table of the program or library that holds this crate, where it was linked without `.eh_frame_hdr`.
//!
//! `gcc -static` of some systems (Debian's among them) asks the linker for no header, so that the loader's
//! `_dl_find_object` knows the program and not its table. The table is loaded all the same: it is found by its own
//! structure ([`find_frames`]), once, and an index of it is made, as the header would have been.
//!
//! That is done while the program is loaded, before its own constructors run, or in a capture that comes still earlier.
//! It reads the module's own readable segments, which stay, and takes one mapping; no lock, no file, no allocation.

use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicUsize, Ordering};

use cairn_format::{AbsoluteAddress, WordSize};
use cairn_unwind::AddressRange;
use cairn_unwind::cfi::{Bases, Flavor, FrameTable, IndexEntry, Section, find_frames};

use crate::{mapping, modules};

const UNKNOWN: u8 = 0;
/// A thread, maybe below this signal handler, searches; others find no table meanwhile.
const SEARCHING: u8 = 1;
const ABSENT: u8 = 2;
const FOUND: u8 = 3;

static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);
/// `.eh_frame`; these hold when the state is [`FOUND`].
static FRAMES: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());
static FRAMES_BYTES: AtomicUsize = AtomicUsize::new(0);
/// Its index; null when there was no memory for it.
static INDEX: AtomicPtr<IndexEntry> = AtomicPtr::new(core::ptr::null_mut());
static INDEX_COUNT: AtomicUsize = AtomicUsize::new(0);

/// Before constructors without a priority, which come in the order of the linker's arguments: a program's own are first there,
/// and may capture.
#[used]
#[unsafe(link_section = ".init_array.00099")]
static SEARCH_AT_START: extern "C" fn() = {
    extern "C" fn search_at_start() {
        search();
    }
    search_at_start
};

/// The table, if it covers `address`; for modules that have no header.
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
    // SAFETY: a part of a segment of the module that this code is in, found by `search`; it stays while this code does.
    let bytes = unsafe { core::slice::from_raw_parts(frames, FRAMES_BYTES.load(Ordering::Relaxed)) };
    let section = Section::new(bytes, AbsoluteAddress::new(frames as u64));
    let table = FrameTable::linear(Flavor::EhFrame, section, Bases::default(), WordSize::NATIVE);
    let index = INDEX.load(Ordering::Relaxed);
    let table = if index.is_null() {
        table
    } else {
        // SAFETY: a mapping of `INDEX_COUNT` entries that `search` has filled; nothing writes to it afterwards.
        table.with_index(unsafe { core::slice::from_raw_parts(index, INDEX_COUNT.load(Ordering::Relaxed)) })
    };
    // Another module without a header is none of ours.
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
        // SAFETY: a readable segment of the module that this code is in, as far as its file goes; it stays while this code
        // does. What is writable in it may change while it is read, and then is no table.
        let bytes = unsafe { core::slice::from_raw_parts(start.value() as *const u8, length) };
        find_frames(Section::new(bytes, start), code, WordSize::NATIVE)
    })
}

/// An index of the table, in a mapping that stays. `None` when there is no memory: the table is then searched entry by entry.
fn make_index(frames: Section<'static>) -> Option<&'static [IndexEntry]> {
    let table = FrameTable::linear(Flavor::EhFrame, frames, Bases::default(), WordSize::NATIVE);
    let entries = || table.entries().map_while(Result::ok).filter(|entry| entry.range.start.value() != 0);
    let count = entries().count();
    let place = mapping::reserve(count.max(1) * size_of::<IndexEntry>())?.cast::<IndexEntry>();
    for (number, entry) in entries().take(count).enumerate() {
        let line = IndexEntry { start: entry.range.start, entry_offset: entry.offset };
        // SAFETY: below the count that the mapping was made for, and known to nobody else.
        unsafe { place.add(number).write(line) };
    }
    // SAFETY: all of them were written above: the bytes that are iterated over do not change.
    let index = unsafe { core::slice::from_raw_parts_mut(place.as_ptr(), count) };
    index.sort_unstable_by_key(|entry| entry.start);
    Some(index)
}
