//! Records allocations and frees: the hot path.
//!
//! A hook calls [`allocated`] after the real call and [`freeing`] before it; around a reallocation
//! it calls [`moving`] before and [`moved`] after. An allocation is two slots and a free is one,
//! neither with a clock. A reader pairs frees with allocations across threads by epochs and
//! tickets, which `cairn_format::recording` describes and `epochs` counts; a thread finds
//! the blocks that it made itself in a filter of its own.
//!
//! Allocates nothing, takes no lock, and in steady state makes no system call.

use core::sync::atomic::Ordering;

use cairn_capture::{CallSite, Stack, capture_at};
use cairn_format::recording::{
    ADDRESS_BITS, MappingKind, RecordSink, STAMP_SHIFT, STAMPED_BYTES, SinkTooSmall, control,
};

use crate::clock;
use crate::epochs::{HashedAddress, lone_epoch, take_ticket};
use crate::lanes::{self, EVENT_SLOTS, Entered, enter_any, enter_slowly};
use crate::mode::is_on;
use crate::recorder;
use crate::requests::{self, is_at_rest};
use crate::sampling;
use crate::spool::control_word;
use crate::thread_log::{OwnLane, enter};
use crate::writer::commit;

/// Returns nonzero if the address is misaligned or wider than 48 bits: no filter can hold it.
#[inline(always)]
const fn unfilterable(address: u64) -> u64 {
    address.rotate_right(4) >> (ADDRESS_BITS - 4)
}

/// Returns true if the address is wider than 48 bits: no event can hold it.
const fn is_wide(address: u64) -> bool {
    address >> ADDRESS_BITS != 0
}

/// Writes an event of at most [`EVENT_SLOTS`] slots at the cursor and commits it.
///
/// # Safety
///
/// [`stamp_if_due`] has returned true for this event.
#[inline(always)]
unsafe fn write(lane: &mut OwnLane, event: impl FnOnce(&mut RecordSink<'_>) -> Result<(), SinkTooSmall>) {
    let writer = &mut lane.lane().writer;
    prefetch_for_writing(writer.cursor + PREFETCH_BYTES);
    // SAFETY: the last stamp made room for one event behind `stamp_at`, and by contract the cursor
    // is not behind it; the segment is this lane's alone.
    let place = unsafe { core::slice::from_raw_parts_mut(writer.cursor as *mut u64, EVENT_SLOTS) };
    let mut sink = RecordSink::new(place);
    // No event is longer than the place. The result is ignored, because the check would cost one
    // instruction of the hot path for each event.
    let _ = event(&mut sink);
    writer.cursor += sink.written().len() * 8;
    commit(writer.cursor);
}

/// Distance of the prefetch, in bytes; 1024, because a line arrives within about 1 KiB of events.
/// The parent has read a drained segment, so that its lines come from the other processor's cache.
const PREFETCH_BYTES: usize = 1024;

/// Prefetches the cache line at `address` for writing; no effect where nothing is mapped.
#[inline(always)]
fn prefetch_for_writing(address: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint that changes no memory and never faults; processors without it ignore it.
    unsafe {
        core::arch::asm!("prefetchw [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a hint that changes no memory and never faults.
    unsafe {
        core::arch::asm!("prfm pstl1keep, [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
}

/// Puts a stamp in front of the next event if one is due, and makes room for both. Returns false
/// when there is no room: the event is lost, and counted.
#[inline(always)]
fn stamp_if_due(lane: &mut OwnLane, is_due: bool) -> bool {
    let state = lane.lane();
    let tick = control_word(state.base, control::TICK).load(Ordering::Relaxed);
    if state.writer.cursor >= state.stamp_at || tick != state.tick || is_due {
        return lane.stamp();
    }
    true
}

/// Records a block of `size_bytes` at `address` that the program has just got by a call from
/// `site`.
///
/// Call it after the real allocation, and only when that returned a block.
///
/// # Safety
///
/// As for [`capture_at`]: `site` is of a call on this thread that has not returned.
#[inline(always)]
pub unsafe fn allocated(address: u64, size_bytes: u64, site: CallSite) {
    if !is_on() {
        return not_recorded();
    }
    if !is_chosen(address, size_bytes) {
        return;
    }
    // Before a lane is entered: the capture may have new stacks to write.
    // SAFETY: `site` is of a call that has not returned, by contract.
    let stack = unsafe { capture_at(site) };
    record_allocated(address, size_bytes, stack);
}

/// Returns true when an allocation of this size surely is not recorded. The hook has nothing else
/// to do then. Call it once, and [`allocated`] after the real call if it returns false.
#[inline(always)]
#[must_use]
pub fn skips_allocation(size_bytes: u64) -> bool {
    sampling::skips(size_bytes)
}

/// Returns true when the free of the block at `address` surely is not recorded. If it returns
/// false, call [`freeing`].
#[inline(always)]
#[must_use]
pub fn skips_free(address: u64) -> bool {
    sampling::is_surely_unknown(address)
}

/// Returns whether the block is recorded: always, unless blocks are chosen.
#[inline(always)]
fn is_chosen(address: u64, size_bytes: u64) -> bool {
    !sampling::is_on() || sampling::takes(size_bytes) && is_remembered(address)
}

/// Remembers a chosen block. Skips, and counts, a block whose free could not be matched.
#[cold]
fn is_remembered(address: u64) -> bool {
    let is_remembered = sampling::remember(address);
    if !is_remembered {
        recorder::count_lost_events(1);
    }
    is_remembered
}

/// Records as [`allocated`] does, with a stack that was captured before.
#[inline(always)]
pub fn allocated_by(address: u64, size_bytes: u64, stack: Stack) {
    if is_chosen(address, size_bytes) {
        record_allocated(address, size_bytes, stack);
    }
}

#[inline(always)]
fn record_allocated(address: u64, size_bytes: u64, stack: Stack) {
    let stack = stack.id().number();
    let Some(mut lane) = enter() else { return allocated_slowly(address, size_bytes, stack) };
    if unfilterable(address) != 0 || size_bytes >= STAMPED_BYTES {
        return allocated_unusually(lane, address, size_bytes, stack);
    }
    // After the real call: a thread that freed a block here before has incremented the counter.
    let epoch = lone_epoch().unwrap_or_else(|| {
        let hashed = HashedAddress::of(address);
        let epoch = hashed.epoch();
        lane.log().filter(hashed.index()).store(hashed.entry(epoch), Ordering::Relaxed);
        epoch
    });
    if stamp_if_due(&mut lane, false) {
        // SAFETY: there is room, by the line above.
        unsafe { write(&mut lane, |sink| sink.alloc(address, size_bytes, epoch, stack)) };
    }
}

/// Records that the block at `address` is about to be freed. Call it before the real call, and not
/// for null.
#[inline(always)]
pub fn freeing(address: u64) {
    freeing_of_size(address, || u64::MAX);
}

/// Records as [`freeing`] does, where an upper bound of the block's size is available. This may be
/// the allocator's usable size. Small blocks need no stamp then. `most_bytes` is called only for
/// blocks that this thread has not just made.
#[inline(always)]
pub fn freeing_of_size(address: u64, most_bytes: impl FnOnce() -> u64) {
    if sampling::is_on() && !sampling::forget(address) {
        return;
    }
    let Some(lane) = enter() else { return freeing_slowly(address) };
    freed(lane, address, most_bytes);
}

#[inline(always)]
fn freed(mut lane: OwnLane, address: u64, most_bytes: impl FnOnce() -> u64) {
    if !take_if_own(&lane, address) {
        freed_elsewhere(lane, address, most_bytes() >= STAMPED_BYTES);
    } else if stamp_if_due(&mut lane, false) {
        // SAFETY: there is room, by the line above.
        unsafe { write(&mut lane, |sink| sink.free(address, None)) };
    }
}

/// Returns true if the block is one that this thread made and that was not freed since, and forgets
/// it. While other threads record too, only small blocks are found.
#[inline(always)]
fn take_if_own(lane: &OwnLane, address: u64) -> bool {
    if lone_epoch().is_some() {
        return !is_wide(address);
    }
    let hashed = HashedAddress::of(address);
    let entry = lane.log().filter(hashed.index());
    let wanted = hashed.entry(hashed.epoch());
    let is_own = (entry.load(Ordering::Relaxed) ^ wanted) | unfilterable(address) == 0;
    if is_own {
        entry.store(0, Ordering::Relaxed);
    }
    is_own
}

/// Records the free of a block that is large, or that another thread made, or this one long ago.
#[inline(never)]
fn freed_elsewhere(mut lane: OwnLane, address: u64, may_be_large: bool) {
    // Before the real call: the next owner of this address sees that it was freed.
    let ticket = take_ticket(address);
    if is_wide(address) {
        recorder::count_lost_events(1);
    } else if stamp_if_due(&mut lane, may_be_large) {
        // SAFETY: there is room, by the line above.
        unsafe { write(&mut lane, |sink| sink.free(address, Some(ticket))) };
    }
}

/// A reallocation between [`moving`] and [`moved`].
#[derive(Clone, Copy, Debug)]
#[must_use = "without `moved` the reallocation is not recorded"]
pub struct Moving {
    address: u64,
    ticket: Option<u32>,
    is_recorded: bool,
    /// True when the block was not chosen at its allocation.
    is_unknown: bool,
}

/// Begins the reallocation of the block at `old`. Call it before the real call, and [`moved`] after
/// it if that succeeds. If it fails, nothing has happened.
#[inline]
pub fn moving(old: u64) -> Moving {
    let is_unknown = sampling::is_on() && !sampling::knows(old);
    let mut moving = Moving { address: old, ticket: None, is_recorded: false, is_unknown };
    if is_unknown {
        return moving;
    }
    match enter() {
        Some(lane) => {
            let entry = lane.log().filter(HashedAddress::of(old).index());
            let before = entry.load(Ordering::Relaxed);
            moving.is_recorded = true;
            if take_if_own(&lane, old) {
                // The block stays where it is if the real call fails.
                entry.store(before, Ordering::Relaxed);
            } else {
                moving.ticket = Some(take_ticket(old));
            }
        }
        None if is_at_rest() => {}
        None => {
            moving.ticket = Some(take_ticket(old));
            moving.is_recorded = is_on();
        }
    }
    moving
}

/// Records that the block is now at `address`, with another size. Both ends of the reallocation are
/// in one commit.
///
/// # Safety
///
/// As for [`allocated`].
#[inline]
pub unsafe fn moved(moving: Moving, address: u64, size_bytes: u64, site: CallSite) {
    if !is_on() {
        return not_recorded();
    }
    if !goes_on(moving, address, size_bytes) {
        return;
    }
    // SAFETY: `site` is of a call that has not returned, by contract.
    let stack = unsafe { capture_at(site) };
    record_moved(moving, address, size_bytes, stack);
}

/// Returns whether the block is recorded at its new address, where it is chosen anew. If it is not,
/// its end at the old address is recorded.
#[inline(always)]
fn goes_on(moving: Moving, address: u64, size_bytes: u64) -> bool {
    !sampling::is_on() || goes_on_chosen(moving, address, size_bytes)
}

fn goes_on_chosen(moving: Moving, address: u64, size_bytes: u64) -> bool {
    // Another thread may have got a block at the old address that is recorded: then the address is
    // in the table twice, and once after this.
    let was_known = !moving.is_unknown && sampling::forget(moving.address);
    let is_chosen = is_chosen(address, size_bytes);
    if was_known && !is_chosen && moving.is_recorded {
        record_end(moving);
    }
    is_chosen
}

/// Records the free that is part of a reallocation.
#[cold]
fn record_end(moving: Moving) {
    let mut lane = match enter_any() {
        Entered::Own(lane) => lane,
        entered => {
            let ticket = Some(moving.ticket.unwrap_or_else(|| take_ticket(moving.address)));
            return append_stamped(entered, 2, |sink| sink.free(moving.address, ticket));
        }
    };
    if moving.ticket.is_none() {
        forget_own(&lane, moving.address);
    }
    if is_wide(moving.address) {
        recorder::count_lost_events(1);
    } else if stamp_if_due(&mut lane, moving.ticket.is_some()) {
        // SAFETY: there is room, by the line above.
        unsafe { write(&mut lane, |sink| sink.free(moving.address, moving.ticket)) };
    }
}

fn forget_own(lane: &OwnLane, address: u64) {
    lane.log().filter(HashedAddress::of(address).index()).store(0, Ordering::Relaxed);
}

/// Records as [`moved`] does, with a stack that was captured before.
pub fn moved_by(moving: Moving, address: u64, size_bytes: u64, stack: Stack) {
    if goes_on(moving, address, size_bytes) {
        record_moved(moving, address, size_bytes, stack);
    }
}

fn record_moved(moving: Moving, address: u64, size_bytes: u64, stack: Stack) {
    let stack = stack.id().number();
    let mut lane = match enter_any() {
        Entered::Own(lane) => lane,
        entered => {
            let epoch = HashedAddress::of(address).epoch();
            // In a handler that interrupted an event. The nested lane has no filter, so that a
            // block of this thread needs a ticket too.
            let ticket = Some(moving.ticket.unwrap_or_else(|| take_ticket(moving.address)));
            append_stamped(entered, 5, |sink| {
                if moving.is_recorded {
                    sink.moved(moving.address, ticket)?;
                }
                sink.alloc(address, size_bytes, epoch, stack)
            });
            return;
        }
    };
    if is_wide(address) || is_wide(moving.address) {
        return recorder::count_lost_events(1);
    }
    let is_large = size_bytes >= STAMPED_BYTES;
    if moving.ticket.is_none() && !moving.is_unknown {
        forget_own(&lane, moving.address);
    }
    let epoch = remember_own(&lane, address, is_large);
    // A large block has no local free.
    if stamp_if_due(&mut lane, is_large || moving.ticket.is_some()) {
        let event = |sink: &mut RecordSink<'_>| {
            if moving.is_recorded {
                sink.moved(moving.address, moving.ticket)?;
            }
            sink.alloc(address, size_bytes, epoch, stack)
        };
        // SAFETY: there is room, by the condition above.
        unsafe { write(&mut lane, event) };
    }
}

/// Stores a small block in the filter of this thread, if a filter can hold it; returns its epoch.
fn remember_own(lane: &OwnLane, address: u64, is_large: bool) -> u32 {
    if let Some(epoch) = lone_epoch() {
        // A single recording thread frees without the filter, which must stay empty then.
        return epoch;
    }
    let hashed = HashedAddress::of(address);
    let epoch = hashed.epoch();
    let is_held = unfilterable(address) == 0 && !is_large;
    let entry = if is_held { hashed.entry(epoch) } else { 0 };
    lane.log().filter(hashed.index()).store(entry, Ordering::Relaxed);
    epoch
}

/// Records a large allocation, or one at an address that no filter holds.
#[inline(never)]
fn allocated_unusually(mut lane: OwnLane, address: u64, size_bytes: u64, stack: u32) {
    if is_wide(address) {
        recorder::count_lost_events(1);
    } else {
        let is_large = size_bytes >= STAMPED_BYTES;
        let epoch = remember_own(&lane, address, is_large);
        if stamp_if_due(&mut lane, is_large) {
            // SAFETY: there is room, by the line above.
            unsafe { write(&mut lane, |sink| sink.alloc(address, size_bytes, epoch, stack)) };
        }
    }
}

/// Records the first event of a thread, or one in a signal handler that interrupted another event.
#[cold]
#[inline(never)]
fn allocated_slowly(address: u64, size_bytes: u64, stack: u32) {
    match enter_slowly() {
        Entered::Own(lane) => allocated_unusually(lane, address, size_bytes, stack),
        entered => {
            let epoch = HashedAddress::of(address).epoch();
            append_stamped(entered, 3, |sink| sink.alloc(address, size_bytes, epoch, stack));
        }
    }
}

#[cold]
#[inline(never)]
fn freeing_slowly(address: u64) {
    if is_at_rest() {
        // `resume` invalidates all filters.
        return;
    }
    match enter_slowly() {
        Entered::Own(lane) => freed(lane, address, || u64::MAX),
        // An unrecorded free invalidates the filter entries of the address.
        Entered::No => drop(take_ticket(address)),
        entered @ Entered::Nested(_) => {
            let ticket = take_ticket(address);
            append_stamped(entered, 2, |sink| sink.free(address, Some(ticket)));
        }
    }
}

/// Appends an event with a stamp of its own, as all events of the nested lane have.
fn append_stamped(
    entered: Entered,
    slots: usize,
    write: impl FnOnce(&mut RecordSink<'_>) -> Result<(), SinkTooSmall>,
) {
    let Some(recorder) = recorder::current() else { return };
    let ticks = clock::counter().wrapping_sub(recorder.spool.start_counter) >> STAMP_SHIFT;
    lanes::append_to(entered, slots + 1, |sink| {
        sink.stamp(ticks)?;
        write(sink)
    });
}

/// Ends a hook that found recording off: counts the event, or notices a fork.
#[cold]
#[inline(never)]
fn not_recorded() {
    if !is_at_rest() {
        let _ = requests::recording();
    }
}

/// Records that a range of addresses was mapped, unmapped, or added to the heap.
///
/// # Safety
///
/// As for [`allocated`].
pub unsafe fn mapping(kind: MappingKind, address: u64, size_bytes: u64, site: CallSite) {
    if !is_on() {
        return not_recorded();
    }
    // SAFETY: `site` is of a call that has not returned, by contract.
    let stack = unsafe { capture_at(site) }.id().number();
    let counter = clock::counter();
    lanes::append(5, |sink| sink.mapping(kind, counter, address, size_bytes, stack));
}
