//! Allocations and frees: the hot path.
//!
//! A hook calls [`allocated`] after the real call and [`freeing`] before it, around a reallocation [`moving`] before and
//! [`moved`] after. What is written for each is two slots and one, and no clock: `cairn_format::recording` tells how frees find
//! their allocations across threads all the same, by the counters and the filter that are kept here.
//!
//! While one thread alone has recorded anything (`LONE_EPOCH`), all that it frees is its own or older than the recording: it then
//! needs neither counters nor filter, and every free is one slot.
//!
//! ```text
//!   address --multiply--> | counter: 8 bits | .. | filter index: 12 | rest: 32 |      (44 bits are the whole address / 16)
//!   filter entry:   | rest: 32 bits | the counter's value: 32 bits |;      0: none
//! ```
//!
//! Allocates nothing, takes no lock, and in steady state makes no system call.

use core::sync::atomic::{AtomicU32, Ordering};

use cairn_capture::{CallSite, Stack, capture_at};
use cairn_format::recording::{
    ADDRESS_BITS, EPOCHS, MappingKind, RecordSink, STAMP_SHIFT, STAMPED_BYTES, SinkTooSmall, control,
    epoch_of,
};

use crate::clock;
use crate::recorder::{self, is_at_rest, is_on};
use crate::sampling;
use crate::spool::control_word;
use crate::thread_log::{self, Entered, FILTER_ENTRIES, ThreadLog};
use crate::writer::commit;

/// One of the counters that order frees, in a cache line of its own: threads that free each other's blocks meet here only.
#[repr(align(64))]
struct Epoch(AtomicU32);

static EPOCH_COUNTERS: [Epoch; EPOCHS] = [const { Epoch(AtomicU32::new(FIRST_EPOCH)) }; EPOCHS];

/// What all counters are at while one thread alone has recorded, since the recording began; then 0, for good.
///
/// Whatever ends it does so before another thread can meet a block that hangs on it: a second thread when it takes a log, before
/// its first event; a handler that interrupts an event, before its own; and whoever takes a ticket, before the real free. So a
/// thread that still reads a value here, after it was given a block, knows that no ticket was taken for that address; and one
/// that is about to free a block, that no other thread's event was about it.
static LONE_EPOCH: AtomicU32 = AtomicU32::new(0);

#[inline(always)]
fn lone_epoch() -> Option<u32> {
    Some(LONE_EPOCH.load(Ordering::Relaxed)).filter(|&epoch| epoch != 0)
}

/// Before a recording begins.
pub(crate) fn begin_alone() {
    let most = EPOCH_COUNTERS.iter().map(|counter| counter.0.load(Ordering::Relaxed)).max().unwrap_or(0);
    LONE_EPOCH.store(most, Ordering::SeqCst);
    // To whoever still writes to an earlier recording it is as if others had freed something.
    for counter in &EPOCH_COUNTERS {
        counter.0.fetch_max(most, Ordering::SeqCst);
    }
    // A thread that is just taking a ticket either finds the value above or has counted.
    if EPOCH_COUNTERS.iter().any(|counter| counter.0.load(Ordering::SeqCst) != most) {
        end_alone();
    }
}

/// From now on counters are kept: see [`LONE_EPOCH`].
pub(crate) fn end_alone() {
    if LONE_EPOCH.load(Ordering::SeqCst) != 0 {
        LONE_EPOCH.store(0, Ordering::SeqCst);
    }
}

/// What an address is hashed to.
#[derive(Clone, Copy)]
struct Place(u64);

const REST_BITS: u32 = 32;
const _: () = assert!(
    FILTER_ENTRIES.ilog2() + REST_BITS == ADDRESS_BITS - 4,
    "a place and its rest are the whole address"
);

/// Where the counters begin: no entry is 0 then until a counter has gone most of the way round.
const FIRST_EPOCH: u32 = 1 << 29;

impl Place {
    #[inline(always)]
    const fn of(address: u64) -> Self {
        // As `epoch_of`, whose result are the upper bits. The multiplier is odd, so that the lower bits lose nothing.
        Self((address >> 4).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    #[inline(always)]
    fn counter(self) -> &'static AtomicU32 {
        &EPOCH_COUNTERS[(self.0 >> 56) as usize].0
    }

    #[inline(always)]
    const fn index(self) -> usize {
        (self.0 >> REST_BITS) as usize % FILTER_ENTRIES
    }

    #[inline(always)]
    const fn entry(self, epoch: u32) -> u64 {
        self.0 << (64 - REST_BITS) ^ epoch as u64
    }
}

const _: () = assert!(epoch_of(0x7f12_3456_7890) == (Place::of(0x7f12_3456_7890).0 >> 56) as usize);

/// Not 0 for an address that no filter can hold: one that is no multiple of 16, or has more than 48 bits.
#[inline(always)]
const fn oddness(address: u64) -> u64 {
    address.rotate_right(4) >> (ADDRESS_BITS - 4)
}

/// Slots that the events take which may be written without looking for room: a reallocation has most.
pub(crate) const EVENT_SLOTS: usize = 5;

/// Writes an event at the cursor and commits it. [`stamp_if_due`] has seen to it that there is room.
#[inline(always)]
fn write(log: &mut ThreadLog, event: impl FnOnce(&mut RecordSink<'_>) -> Result<(), SinkTooSmall>) {
    // SAFETY: there is room, and the block is this thread's.
    let place = unsafe { core::slice::from_raw_parts_mut(log.own.cursor as *mut u64, EVENT_SLOTS) };
    let mut sink = RecordSink::new(place);
    prefetch_for_writing(log.own.cursor + AHEAD_BYTES);
    let _ = event(&mut sink);
    log.own.cursor += sink.written().len() * 8;
    commit(log.own.cursor);
}

/// A block that was drained lies in the other processor's cache: it takes about so many bytes of events until it is here.
const AHEAD_BYTES: usize = 1024;

/// Has the cache line at `address` brought here, to be written to; nothing where nothing is.
#[inline(always)]
fn prefetch_for_writing(address: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint that touches no memory and never faults; processors that do not know it pass it by.
    unsafe {
        core::arch::asm!("prefetchw [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        core::arch::asm!("prfm pstl1keep, [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
}

/// Puts a stamp in front of the next event where one is due, and sees to it that there is room for both. False when there is none.
#[inline(always)]
fn stamp_if_due(log: &mut ThreadLog, is_due: bool) -> bool {
    let tick = control_word(log.base, control::TICK).load(Ordering::Relaxed);
    if log.own.cursor >= log.stamp_at || tick != log.tick || is_due {
        return log.stamp();
    }
    true
}

/// Notes a block of `size_bytes` at `address` that the program has just got, by a call from `site`.
///
/// Call it after the real allocation, and only when that gave a block.
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
    // Before the log is entered: the capture may itself have stacks to write.
    // SAFETY: by contract.
    let stack = unsafe { capture_at(site) };
    note_allocated(address, size_bytes, stack);
}

/// True when there is nothing to be noted of a block of this size that the program is about to get, and that is known already: for a
/// hook that has nothing else to do. Call it once, and [`allocated`] after the real call if it answers false.
#[inline(always)]
#[must_use]
pub fn passes(size_bytes: u64) -> bool {
    sampling::passes(size_bytes)
}

/// True when there is nothing to be noted of the end of the block at `address`. If it answers false, call [`freeing`].
#[inline(always)]
#[must_use]
pub fn passes_free(address: u64) -> bool {
    sampling::is_surely_unknown(address)
}

/// Whether the block is to be recorded: always, unless blocks are chosen.
#[inline(always)]
fn is_chosen(address: u64, size_bytes: u64) -> bool {
    !sampling::is_on() || sampling::takes(size_bytes) && is_remembered(address)
}

/// What could not be found again at its free is better left out, and counted.
#[cold]
fn is_remembered(address: u64) -> bool {
    let is_remembered = sampling::remember(address);
    if !is_remembered {
        recorder::count_lost_events(1);
    }
    is_remembered
}

/// As [`allocated`], by a stack that is known.
#[inline(always)]
pub fn allocated_by(address: u64, size_bytes: u64, stack: Stack) {
    if is_chosen(address, size_bytes) {
        note_allocated(address, size_bytes, stack);
    }
}

#[inline(always)]
fn note_allocated(address: u64, size_bytes: u64, stack: Stack) {
    let stack = stack.id().number();
    let Some(log) = thread_log::enter() else { return allocated_slowly(address, size_bytes, stack) };
    // SAFETY: entered.
    let own = unsafe { &mut *log };
    if oddness(address) != 0 || size_bytes >= STAMPED_BYTES {
        return allocated_unusually(own, address, size_bytes, stack);
    }
    // After the real call: whoever freed a block here before has counted.
    let epoch = lone_epoch().unwrap_or_else(|| {
        let place = Place::of(address);
        let epoch = place.counter().load(Ordering::Relaxed);
        own.filter[place.index()] = place.entry(epoch);
        epoch
    });
    if stamp_if_due(own, false) {
        write(own, |sink| sink.alloc(address, size_bytes, epoch, stack));
    }
    // SAFETY: entered above.
    unsafe { thread_log::leave(log) };
}

/// Notes that the block at `address` is about to be freed. Call it before the real call; null is no block.
#[inline(always)]
pub fn freeing(address: u64) {
    freeing_of_size(address, || u64::MAX);
}

/// As [`freeing`], where it can be asked how large the block is at most: small blocks then need no stamp. What an allocator tells
/// as the usable size will do. It is asked only for blocks that this thread has not just made.
#[inline(always)]
pub fn freeing_of_size(address: u64, most_bytes: impl FnOnce() -> u64) {
    if sampling::is_on() && !sampling::forget(address) {
        return;
    }
    let Some(log) = thread_log::enter() else { return freeing_slowly(address) };
    // SAFETY: entered.
    let own = unsafe { &mut *log };
    if !take_if_own(own, address) {
        freed_elsewhere(own, address, most_bytes() >= STAMPED_BYTES);
    } else if stamp_if_due(own, false) {
        write(own, |sink| sink.free(address, None));
    }
    // SAFETY: entered above.
    unsafe { thread_log::leave(log) };
}

/// Whether the block is one that this thread made, and that was not freed since: of those that other threads may have freed, a
/// small one. It is then forgotten.
#[inline(always)]
fn take_if_own(log: &mut ThreadLog, address: u64) -> bool {
    if lone_epoch().is_some() {
        return !is_wide(address);
    }
    let place = Place::of(address);
    let entry = &mut log.filter[place.index()];
    let wanted = place.entry(place.counter().load(Ordering::Relaxed));
    let is_own = (*entry ^ wanted) | oddness(address) == 0;
    if is_own {
        *entry = 0;
    }
    is_own
}

/// The free of a block that another thread made, or this one long ago, or that is large.
#[inline(never)]
fn freed_elsewhere(log: &mut ThreadLog, address: u64, may_be_large: bool) {
    // Before the real call: whoever gets this address next will see that it was freed.
    let ticket = take_ticket(address);
    if is_wide(address) {
        recorder::count_lost_events(1);
    } else if stamp_if_due(log, may_be_large) {
        write(log, |sink| sink.free(address, Some(ticket)));
    }
}

/// Call it before the real free.
fn take_ticket(address: u64) -> u32 {
    let ticket = Place::of(address).counter().fetch_add(1, Ordering::SeqCst);
    end_alone();
    ticket
}

const fn is_wide(address: u64) -> bool {
    address >> ADDRESS_BITS != 0
}

/// A reallocation under way.
#[derive(Clone, Copy, Debug)]
#[must_use = "without `moved` the reallocation is not recorded"]
pub struct Moving {
    address: u64,
    ticket: Option<u32>,
    is_recorded: bool,
    /// The block was not chosen when it was allocated.
    is_unknown: bool,
}

/// Begins the reallocation of the block at `old`. Call it before the real call, and [`moved`] after it if that succeeds; if it fails,
/// nothing has happened.
#[inline]
pub fn moving(old: u64) -> Moving {
    let is_unknown = sampling::is_on() && !sampling::knows(old);
    let mut moving = Moving { address: old, ticket: None, is_recorded: false, is_unknown };
    if is_unknown {
        return moving;
    }
    match thread_log::enter() {
        Some(log) => {
            // SAFETY: entered.
            let own = unsafe { &mut *log };
            let before = own.filter[Place::of(old).index()];
            moving.is_recorded = true;
            if take_if_own(own, old) {
                // The block stays where it is if the real call fails.
                own.filter[Place::of(old).index()] = before;
            } else {
                moving.ticket = Some(take_ticket(old));
            }
            // SAFETY: entered above.
            unsafe { thread_log::leave(log) };
        }
        None if is_at_rest() => {}
        None => {
            moving.ticket = Some(take_ticket(old));
            moving.is_recorded = is_on();
        }
    }
    moving
}

/// Notes that the block is now at `address`, with another size: both ends of the reallocation in one commit.
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
    // SAFETY: by contract.
    let stack = unsafe { capture_at(site) };
    note_moved(moving, address, size_bytes, stack);
}

/// Whether the block is to be recorded at its new place, of which it is chosen anew. Where it is not, only its end is.
#[inline(always)]
fn goes_on(moving: Moving, address: u64, size_bytes: u64) -> bool {
    !sampling::is_on() || goes_on_chosen(moving, address, size_bytes)
}

fn goes_on_chosen(moving: Moving, address: u64, size_bytes: u64) -> bool {
    // Another thread may have got the old place, and a block there be recorded: then it is in the table twice, and once after this.
    let was_known = !moving.is_unknown && sampling::forget(moving.address);
    let is_chosen = is_chosen(address, size_bytes);
    if was_known && !is_chosen && moving.is_recorded {
        note_end(moving);
    }
    is_chosen
}

/// Notes the free that a reallocation is.
#[cold]
fn note_end(moving: Moving) {
    let entered = thread_log::enter().map_or_else(thread_log::enter_slowly, Entered::Own);
    let Entered::Own(log) = entered else {
        let ticket = Some(moving.ticket.unwrap_or_else(|| take_ticket(moving.address)));
        return append_stamped(entered, 2, |sink| sink.free(moving.address, ticket));
    };
    // SAFETY: entered.
    let own = unsafe { &mut *log };
    if moving.ticket.is_none() {
        own.filter[Place::of(moving.address).index()] = 0;
    }
    if is_wide(moving.address) {
        recorder::count_lost_events(1);
    } else if stamp_if_due(own, moving.ticket.is_some()) {
        write(own, |sink| sink.free(moving.address, moving.ticket));
    }
    // SAFETY: entered above.
    unsafe { thread_log::leave(log) };
}

/// As [`moved`], by a stack that is known.
pub fn moved_by(moving: Moving, address: u64, size_bytes: u64, stack: Stack) {
    if goes_on(moving, address, size_bytes) {
        note_moved(moving, address, size_bytes, stack);
    }
}

fn note_moved(moving: Moving, address: u64, size_bytes: u64, stack: Stack) {
    let stack = stack.id().number();
    let entered = thread_log::enter().map_or_else(thread_log::enter_slowly, Entered::Own);
    let Entered::Own(log) = entered else {
        let epoch = Place::of(address).counter().load(Ordering::Relaxed);
        // A handler that interrupted an event of its thread: the nested lane has no filter, so an own block needs a ticket too.
        let ticket = Some(moving.ticket.unwrap_or_else(|| take_ticket(moving.address)));
        append_stamped(entered, 5, |sink| {
            if moving.is_recorded {
                sink.moved(moving.address, ticket)?;
            }
            sink.alloc(address, size_bytes, epoch, stack)
        });
        return;
    };
    // SAFETY: entered.
    let own = unsafe { &mut *log };
    if is_wide(address) || is_wide(moving.address) {
        recorder::count_lost_events(1);
    } else {
        let is_large = size_bytes >= STAMPED_BYTES;
        if moving.ticket.is_none() && !moving.is_unknown {
            own.filter[Place::of(moving.address).index()] = 0;
        }
        let epoch = note_own(own, address, is_large);
        // A large block has no local free.
        if stamp_if_due(own, is_large || moving.ticket.is_some()) {
            write(own, |sink| {
                if moving.is_recorded {
                    sink.moved(moving.address, moving.ticket)?;
                }
                sink.alloc(address, size_bytes, epoch, stack)
            });
        }
    }
    // SAFETY: entered above.
    unsafe { thread_log::leave(log) };
}

/// Remembers a small block as this thread's own, where a filter can; the counter's value.
fn note_own(log: &mut ThreadLog, address: u64, is_large: bool) -> u32 {
    if let Some(epoch) = lone_epoch() {
        // What is freed without a look at the filter must not stand in it.
        return epoch;
    }
    let place = Place::of(address);
    let epoch = place.counter().load(Ordering::Relaxed);
    let is_kept = oddness(address) == 0 && !is_large;
    log.filter[place.index()] = if is_kept { place.entry(epoch) } else { 0 };
    epoch
}

/// A large allocation, or one at an address that no filter holds.
#[inline(never)]
fn allocated_unusually(log: &mut ThreadLog, address: u64, size_bytes: u64, stack: u32) {
    if is_wide(address) {
        recorder::count_lost_events(1);
    } else {
        let is_large = size_bytes >= STAMPED_BYTES;
        let epoch = note_own(log, address, is_large);
        if stamp_if_due(log, is_large) {
            write(log, |sink| sink.alloc(address, size_bytes, epoch, stack));
        }
    }
    // SAFETY: entered by the caller.
    unsafe { thread_log::leave(log) };
}

/// The first event of a thread, or one in a signal handler that interrupted another.
#[cold]
#[inline(never)]
fn allocated_slowly(address: u64, size_bytes: u64, stack: u32) {
    match thread_log::enter_slowly() {
        // SAFETY: entered.
        Entered::Own(log) => allocated_unusually(unsafe { &mut *log }, address, size_bytes, stack),
        entered => {
            let epoch = Place::of(address).counter().load(Ordering::Relaxed);
            append_stamped(entered, 3, |sink| sink.alloc(address, size_bytes, epoch, stack));
        }
    }
}

#[cold]
#[inline(never)]
fn freeing_slowly(address: u64) {
    if is_at_rest() {
        // When it goes on, all that threads remember is made stale.
        return;
    }
    match thread_log::enter_slowly() {
        Entered::Own(log) => {
            // SAFETY: entered.
            let own = unsafe { &mut *log };
            if !take_if_own(own, address) {
                freed_elsewhere(own, address, true);
            } else if stamp_if_due(own, false) {
                write(own, |sink| sink.free(address, None));
            }
            // SAFETY: as above.
            unsafe { thread_log::leave(log) };
        }
        // What is freed unseen makes all that threads remember of the address stale.
        Entered::No => drop(take_ticket(address)),
        entered => {
            let ticket = take_ticket(address);
            append_stamped(entered, 2, |sink| sink.free(address, Some(ticket)));
        }
    }
}

/// Events of the nested lane have a stamp each.
fn append_stamped(
    entered: Entered,
    slots: usize,
    write: impl FnOnce(&mut RecordSink<'_>) -> Result<(), SinkTooSmall>,
) {
    let Some(recorder) = recorder::current() else { return };
    let ticks = clock::counter().wrapping_sub(recorder.spool.start_counter) >> STAMP_SHIFT;
    thread_log::append_to(entered, slots + 1, |sink| {
        sink.stamp(ticks)?;
        write(sink)
    });
}

/// A hook that found recording off.
#[cold]
#[inline(never)]
fn not_recorded() {
    if !is_at_rest() {
        let _ = recorder::recording();
    }
}

/// Notes that a range of addresses was mapped, unmapped, or added to the heap.
///
/// # Safety
///
/// As for [`allocated`].
pub unsafe fn mapping(kind: MappingKind, address: u64, size_bytes: u64, site: CallSite) {
    if !is_on() {
        return not_recorded();
    }
    // SAFETY: by contract.
    let stack = unsafe { capture_at(site) }.id().number();
    let counter = clock::counter();
    thread_log::append(5, |sink| sink.mapping(kind, counter, address, size_bytes, stack));
}

/// Makes everything stale that threads remember of blocks: what follows was not seen from its start.
pub(crate) fn forget_blocks() {
    end_alone();
    for counter in &EPOCH_COUNTERS {
        counter.0.fetch_add(1, Ordering::Relaxed);
    }
}
