//! The state of one thread: caches that are trusted only after a check, and its shadows.
//!
//! The memory of a thread is one mapping of 160 KiB of address space. A thread whose stack is 120
//! frames deep touches 64 KiB of it. A stack of more than 500 frames takes another mapping, and
//! thousands of stacks in use take one of 640 KiB. The mapping is reached through one thread-local
//! word without a destructor. A later thread recognises by its owner's number that the owner has
//! ended, and reuses the mapping.
//!
//! A signal handler may capture while it interrupts a capture. So a [`ThreadBlock`] has parts that
//! are borrowed separately:
//!
//! ```text
//! | busy | ThreadState: the capture's | HashTables | WalkRoom: the capture's | HandlerPart: the handler's | turns |
//! ```

pub(crate) mod record;
pub(crate) mod shadow;

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU64, Ordering, compiler_fence};

use crate::stacks::modules::KnownModules;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
use crate::stacks::python::PythonThread;
use crate::stacks::stack_bounds::{self, Hole};
use crate::stacks::stack_memory::StackMemory;
#[cfg(target_os = "linux")]
use crate::stacks::threads::NO_OWNER;
use crate::stacks::threads::{has_ended, ids};
use crate::stacks::walk::WalkRoom;
use crate::stacks::{mapping, thread_pointer};
use record::{
    Discriminator, FIRST_COUNT, FIRST_FURTHER, FURTHER_CHECKS, FurtherChecks, HashTables, LARGE_COUNT,
    LARGE_FURTHER, MANY_REPLACED, PcSet, Record, RecordChecks, WordCheck,
};
use shadow::{CommonHeights, FIRST_TURNS, SHADOWS, ShadowSize, Turn};

/// The state of a capture of one thread. All-zero bytes are a thread that knows nothing yet,
/// apart from the pointers that [`ThreadBlock::make`] sets.
///
/// The fields that every capture needs come first, in two cache lines with [`ThreadBlock::busy`].
#[repr(C)]
pub(crate) struct ThreadState {
    /// The [`ModuleState`](crate::stacks::module_state::ModuleState) that the caches belong to.
    pub(crate) module_state: u64,
    /// The readable part of this thread's own stack; see [`set_stack`](Self::set_stack).
    pub(crate) low: u64,
    pub(crate) high: u64,
    /// 4 GiB below `high`: every slot is a 32-bit distance above it.
    pub(crate) slot_base: u64,
    first_turn: *mut Turn,
    records: *mut Record,
    discriminators: *mut [Discriminator; 2],
    pub(crate) sizes: [ShadowSize; SHADOWS],
    pc_sets: *mut PcSet,
    /// Number of records and of discriminators, less 1.
    mask: u32,
    /// The shadow that the last walk met.
    pub(crate) current: u32,
    turn_count: u32,
    /// Shifts a hash so that only the bits remain that select a set of addresses.
    pc_shift: u32,
    /// Rises with each capture that no record answered, and falls with each other one.
    pub(crate) misses: u32,
    /// Captures that still follow before one is looked for in the records; see `engine::follow`.
    pub(crate) follows_left: u32,
    /// Table entries that were replaced by others.
    replaced: u32,
    /// Number of [`FurtherChecks`], less 1.
    further_mask: u32,
    further_checks: *mut FurtherChecks,
    pub(crate) common: CommonHeights,
    /// The copy of `low` and `high` that signal handlers read.
    published: Option<&'static PublishedBounds>,
    pub(crate) modules: KnownModules,
    pub(crate) hole: Hole,
}

/// Weights of captures that a record answered, and of others.
///
/// 1 to 2, because following a stack costs as much as the records do when a third of the captures
/// miss them.
const HELD_WEIGHT: u32 = 1;
const MISSED_WEIGHT: u32 = 2;

/// The readable part of a thread's own stack, for signal handlers that interrupt a capture. `high`
/// is 0 while the two change.
struct PublishedBounds {
    low: AtomicU64,
    high: AtomicU64,
}

/// The memory of one thread. It is never unmapped, so that references to it are `'static`.
#[repr(C)]
pub(crate) struct ThreadBlock {
    /// Not 0 during a capture: the stack pointer of the frame that is captured. A signal handler
    /// that captures meanwhile uses `handler` alone.
    busy: AtomicU64,
    state: UnsafeCell<ThreadState>,
    /// The first tables of the state.
    own_tables: UnsafeCell<HashTables<FIRST_COUNT, FIRST_FURTHER>>,
    /// For a whole walk.
    walk_room: UnsafeCell<WalkRoom>,
    handler: HandlerPart,
    /// The first turns of the state.
    own_turns: UnsafeCell<[Turn; FIRST_TURNS]>,
    /// For the capture: what it remembers of Python frames; null in most programs.
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    python: AtomicPtr<PythonThread>,
}

const _: () = assert!(align_of::<ThreadBlock>() <= 4096, "a mapping begins a page");

/// The part that a capture in a signal handler uses when it interrupts a capture. Other threads
/// read it.
#[repr(C)]
struct HandlerPart {
    /// Like [`ThreadBlock::busy`], for the capture in the handler.
    busy: AtomicU64,
    walk_room: UnsafeCell<WalkRoom>,
    bounds: PublishedBounds,
    owner_process: AtomicI32,
    owner_thread: AtomicI32,
    /// The next block in the list of all; constant once the block is in the list.
    next: AtomicPtr<ThreadBlock>,
}

/// All blocks, newest first.
static BLOCKS: AtomicPtr<ThreadBlock> = AtomicPtr::new(core::ptr::null_mut());

/// The parts of its block that a thread may use now.
pub(crate) enum Access {
    /// All but the handler's, until [`ThreadBlock::release`].
    Whole(&'static ThreadBlock),
    /// When a capture was interrupted: the handler's, until [`ThreadBlock::release_nested`].
    Nested(&'static ThreadBlock),
    /// When there is no memory, or for the third capture inside two others.
    None,
}

/// Acquires this thread's block, for a capture of the frame at `sp`.
#[inline(always)]
pub(crate) fn acquire(sp: u64) -> Access {
    // SAFETY: the word is null or was set by `acquire_first` to a block, which is never unmapped.
    let Some(block) = (unsafe { thread_pointer::load().cast::<ThreadBlock>().as_ref() }) else {
        return acquire_first(sp);
    };
    // Only this thread and its signal handlers write the word: plain loads and stores suffice, in
    // this order.
    if block.busy.load(Ordering::Relaxed) != 0 {
        return acquire_nested(block, sp);
    }
    block.busy.store(sp, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
    Access::Whole(block)
}

#[cold]
fn acquire_nested(block: &'static ThreadBlock, sp: u64) -> Access {
    let holder = block.busy.load(Ordering::Relaxed);
    let StackMemory { low, high } = block.published_stack();
    // A handler that left by longjmp never releases the block. The frame of its capture is gone if
    // it lies below this one.
    if low <= sp && sp < high && low <= holder && holder < sp {
        // SAFETY: the capture that acquired the block has no frame any more, by the comparison
        // above, so no reference to its part is in use; and this thread is the owner.
        unsafe { (*block.state.get()).forget() };
        block.handler.busy.store(0, Ordering::Relaxed);
        block.busy.store(0, Ordering::Relaxed);
        return acquire(sp);
    }
    if block.handler.busy.load(Ordering::Relaxed) != 0 {
        return Access::None;
    }
    block.handler.busy.store(sp, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
    Access::Nested(block)
}

#[cold]
fn acquire_first(sp: u64) -> Access {
    let (process, thread) = ids();
    let Some(block) = ThreadBlock::reuse(process, thread).or_else(|| ThreadBlock::make(process, thread))
    else {
        return Access::None;
    };
    // A signal handler may have made a block in between; it is reused once this thread has ended.
    if !thread_pointer::store(core::ptr::from_ref(block).cast_mut().cast()) {
        return Access::None;
    }
    acquire(sp)
}

impl ThreadBlock {
    /// The state of the capture that acquired the block.
    ///
    /// # Safety
    ///
    /// - [`acquire`] has returned the block as [`Access::Whole`] on this thread, and it was not
    ///   released since.
    /// - No other reference to the state is in use.
    #[inline(always)]
    #[expect(clippy::mut_from_ref, reason = "the contract makes the borrow unique")]
    pub(crate) unsafe fn state(&self) -> &mut ThreadState {
        // SAFETY: while `busy` is set, only the capture that set it uses the state, and the caller
        // has no other reference.
        unsafe { &mut *self.state.get() }
    }

    /// The room for a whole walk of the capture that acquired the block.
    ///
    /// # Safety
    ///
    /// - [`acquire`] has returned the block as [`Access::Whole`] on this thread, and it was not
    ///   released since.
    /// - No other reference to this room is in use.
    #[expect(clippy::mut_from_ref, reason = "the contract makes the borrow unique")]
    pub(crate) unsafe fn walk_room(&self) -> &mut WalkRoom {
        // SAFETY: while `busy` is set, only the capture that set it uses this room, and the caller
        // has no other reference.
        unsafe { &mut *self.walk_room.get() }
    }

    /// The Python frames that captures of the owner remember; `None` without memory for it.
    ///
    /// # Safety
    ///
    /// - [`acquire`] has returned the block as [`Access::Whole`] on this thread, and it was not
    ///   released since.
    /// - No other reference to this part is in use.
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    #[inline(always)]
    #[expect(clippy::mut_from_ref, reason = "the contract makes the borrow unique")]
    pub(crate) unsafe fn python_thread(&self) -> Option<&mut PythonThread> {
        let mut place = self.python.load(Ordering::Relaxed);
        if place.is_null() {
            place = mapping::reserve(size_of::<PythonThread>())?.cast().as_ptr();
            self.python.store(place, Ordering::Relaxed);
        }
        // SAFETY: a zeroed mapping, for which zeros are a value, that is never unmapped; while
        // `busy` is set, only the capture that set it uses it, and the caller has no other
        // reference.
        unsafe { place.as_mut() }
    }

    /// The room for a walk in a signal handler that interrupted a capture.
    ///
    /// # Safety
    ///
    /// - [`acquire`] has returned the block as [`Access::Nested`] on this thread, and it was not
    ///   released since.
    /// - No other reference to this room is in use.
    #[expect(clippy::mut_from_ref, reason = "the contract makes the borrow unique")]
    pub(crate) unsafe fn nested_walk_room(&self) -> &mut WalkRoom {
        // SAFETY: while `handler.busy` is set, only the handler that set it uses this room, and the
        // caller has no other reference.
        unsafe { &mut *self.handler.walk_room.get() }
    }

    /// Ends the capture that acquired the block as [`Access::Whole`].
    #[inline(always)]
    pub(crate) fn release(&self) {
        compiler_fence(Ordering::SeqCst);
        self.busy.store(0, Ordering::Relaxed);
    }

    /// Ends the capture that acquired the block as [`Access::Nested`].
    pub(crate) fn release_nested(&self) {
        compiler_fence(Ordering::SeqCst);
        self.handler.busy.store(0, Ordering::Relaxed);
    }

    /// The readable part of the owner's stack, as signal handlers may read it. Empty while it
    /// changes.
    pub(crate) fn published_stack(&self) -> StackMemory {
        let bounds = &self.handler.bounds;
        let high = bounds.high.load(Ordering::Relaxed);
        StackMemory { low: bounds.low.load(Ordering::Relaxed), high }
    }

    /// Reuses the block of a thread of this process that has ended.
    ///
    /// Blocks that a fork left behind belong to another process and are not touched: the thread
    /// that forked continues to use its own.
    fn reuse(process: i32, thread: i32) -> Option<&'static Self> {
        /// Blocks to examine at most. In a process of many live threads the next call continues
        /// where this one stops.
        const MAX_EXAMINED: usize = 64;
        static EXAMINE_FROM: AtomicPtr<ThreadBlock> = AtomicPtr::new(core::ptr::null_mut());

        let mut candidate = EXAMINE_FROM.load(Ordering::Acquire);
        for _ in 0..MAX_EXAMINED {
            if candidate.is_null() {
                candidate = BLOCKS.load(Ordering::Acquire);
            }
            // SAFETY: null ends the list; any other element was initialised before `make` published
            // it, and is never unmapped.
            let block: &'static Self = unsafe { candidate.as_ref() }?;
            let (next, owners) = (block.handler.next.load(Ordering::Relaxed), &block.handler.owner_thread);
            let owner = owners.load(Ordering::Acquire);
            let is_ours = block.handler.owner_process.load(Ordering::Relaxed) == process;
            if is_ours
                && owner != thread
                && has_ended(process, owner)
                && owners.compare_exchange(owner, thread, Ordering::AcqRel, Ordering::Relaxed).is_ok()
            {
                EXAMINE_FROM.store(next, Ordering::Release);
                // SAFETY: the owner has ended, and the exchange made this thread the only new one.
                unsafe { block.forget() };
                return Some(block);
            }
            candidate = next;
        }
        EXAMINE_FROM.store(candidate, Ordering::Release);
        None
    }

    fn make(process: i32, thread: i32) -> Option<&'static Self> {
        let memory = mapping::reserve(size_of::<Self>())?.cast::<Self>();
        // SAFETY: the mapping is zeroed, large enough, page aligned and never unmapped. Zeros are a
        // value of all fields: atomics, pointers, numbers, `None` and `MaybeUninit`.
        let block: &'static Self = unsafe { memory.as_ref() };
        block.handler.owner_process.store(process, Ordering::Relaxed);
        block.handler.owner_thread.store(thread, Ordering::Relaxed);
        // SAFETY: the block is known to nobody else yet, and this is the only reference to its
        // state.
        let state = unsafe { &mut *block.state.get() };
        (state.first_turn, state.turn_count) = (block.own_turns.get().cast(), FIRST_TURNS as u32);
        state.published = Some(&block.handler.bounds);
        // SAFETY: the tables lie in the block, which is never unmapped, and only this state refers
        // to them.
        unsafe { state.use_tables(block.own_tables.get()) };
        let mut first = BLOCKS.load(Ordering::Relaxed);
        loop {
            block.handler.next.store(first, Ordering::Relaxed);
            match BLOCKS.compare_exchange_weak(first, memory.as_ptr(), Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return Some(block),
                Err(other) => first = other,
            }
        }
    }

    /// Drops everything that was learned on another thread's stack, and any capture in progress.
    ///
    /// # Safety
    ///
    /// - No thread is inside a capture with this block, and none acquires it before this function
    ///   returns.
    unsafe fn forget(&self) {
        self.busy.store(0, Ordering::Relaxed);
        self.handler.busy.store(0, Ordering::Relaxed);
        // SAFETY: no capture uses the block, as the caller promises, so this is the only reference
        // to its state.
        unsafe { (*self.state.get()).forget() };
    }
}

/// Makes this process, a forked child, the owner of all blocks. This thread gets its own block, the
/// others get no thread.
///
/// # Safety
///
/// - The calling thread is the only one with access to this memory.
#[cfg(target_os = "linux")]
pub(crate) unsafe fn take_over_after_fork() {
    let (process, thread) = ids();
    let own = thread_pointer::load().cast::<ThreadBlock>();
    for block in blocks() {
        let owner = if core::ptr::eq(block, own) { thread } else { NO_OWNER };
        block.handler.owner_thread.store(owner, Ordering::Relaxed);
        block.handler.owner_process.store(process, Ordering::Release);
    }
}

/// Drops, for all threads, everything that was learned of stacks and modules.
///
/// # Safety
///
/// - No other thread runs before it returns, and none was stopped inside a capture.
pub(crate) unsafe fn forget_all() {
    for block in blocks() {
        // SAFETY: no thread is inside a capture, and no other thread runs, as the caller promises.
        unsafe { block.forget() };
        #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
        // SAFETY: as above; null, or what `python_thread` has mapped.
        if let Some(python) = unsafe { block.python.load(Ordering::Relaxed).as_mut() } {
            python.forget();
        }
    }
}

/// All blocks, newest first.
fn blocks() -> impl Iterator<Item = &'static ThreadBlock> {
    let mut next = BLOCKS.load(Ordering::Acquire);
    core::iter::from_fn(move || {
        // SAFETY: null ends the list; any other element was initialised before `make` published it,
        // and is never unmapped.
        let block: &'static ThreadBlock = unsafe { next.as_ref() }?;
        next = block.handler.next.load(Ordering::Relaxed);
        Some(block)
    })
}

impl ThreadState {
    /// The readable part of this thread's own stack, as far as it is known.
    #[inline(always)]
    pub(crate) fn own_stack(&self) -> StackMemory {
        StackMemory { low: self.low, high: self.high }
    }

    /// Learns the bounds of the stack that `sp` lies on, and returns its readable part. That is a
    /// part of the thread's own stack, or as much of another stack as is readable without a gap.
    pub(crate) fn enter_stack(&mut self, sp: u64) -> StackMemory {
        if !self.own_stack().contains(sp) {
            // A stack that cannot be entered is read through the kernel.
            let _ = self.enter_own_stack(sp);
        }
        self.stack_around(sp)
    }

    /// The readable part of the stack that `sp` lies on, as [`enter_stack`](Self::enter_stack)
    /// returns it.
    pub(crate) fn stack_around(&self, sp: u64) -> StackMemory {
        let own = self.own_stack();
        if own.contains(sp) { own } else { StackMemory::elsewhere(sp) }
    }

    /// Learns how far this thread's own stack is readable; `None` when `sp` lies on another one.
    #[cold]
    pub(crate) fn enter_own_stack(&mut self, sp: u64) -> Option<()> {
        let (low, high) = stack_bounds::own_stack_at(sp, (self.low, self.high), &mut self.hole)?;
        if self.high != high {
            self.forget_shadows();
        }
        self.set_stack(low, high);
        Some(())
    }

    /// Sets the readable part of this thread's own stack, here and for signal handlers.
    pub(crate) fn set_stack(&mut self, low: u64, high: u64) {
        if let Some(published) = self.published {
            // A handler that interrupts this must read a range that is readable, even if it is
            // empty.
            published.high.store(0, Ordering::Relaxed);
            compiler_fence(Ordering::SeqCst);
            published.low.store(low, Ordering::Relaxed);
            compiler_fence(Ordering::SeqCst);
            published.high.store(high, Ordering::Relaxed);
        }
        (self.low, self.high) = (low, high);
        self.slot_base = high.wrapping_sub(1 << 32);
    }

    /// Uses other tables from now on.
    ///
    /// # Safety
    ///
    /// - `tables` points to zeroed or initialised tables that are never unmapped, and to which
    ///   nothing else refers.
    unsafe fn use_tables<const COUNT: usize, const FURTHER: usize>(
        &mut self,
        tables: *mut HashTables<COUNT, FURTHER>,
    ) {
        const { assert!(COUNT.is_power_of_two() && FURTHER.is_power_of_two() && FURTHER <= COUNT) };
        // SAFETY: the caller promises that the tables are there; only addresses of fields are
        // taken.
        unsafe {
            self.records = (&raw mut (*tables).records).cast();
            self.discriminators = (&raw mut (*tables).discriminators).cast();
            self.pc_sets = (&raw mut (*tables).pc_sets).cast();
            self.further_checks = (&raw mut (*tables).further_checks).cast();
        }
        self.mask = COUNT as u32 - 1;
        self.further_mask = FURTHER as u32 - 1;
        self.pc_shift = u64::BITS - COUNT.ilog2();
    }

    #[inline(always)]
    fn index(&self, hash: u64) -> usize {
        (hash >> 48) as usize & self.mask as usize
    }

    /// Notes that a record answered a capture.
    #[inline(always)]
    pub(crate) fn note_held(&mut self) {
        self.misses = self.misses.saturating_sub(HELD_WEIGHT);
    }

    /// Notes that no record answered a capture. Returns true when it is better to follow the stack,
    /// which the caller wants to do after `most` captures in a row without a record.
    pub(crate) fn note_missed(&mut self, most: u32) -> bool {
        let limit = most.saturating_mul(MISSED_WEIGHT);
        // Not more than the limit, so that a record that holds ends the following. It begins again
        // with the next miss, unless most records hold.
        self.misses = self.misses.saturating_add(MISSED_WEIGHT).min(limit);
        self.misses >= limit
    }

    /// The record that this key selects.
    #[inline(always)]
    pub(crate) fn record(&self, key: u64) -> &Record {
        // SAFETY: the masked index is below the length of the table (`use_tables`), and zeros are a
        // record.
        unsafe { &*self.records.add(self.index(key)) }
    }

    /// The record that this key selects, for writing.
    #[inline(always)]
    pub(crate) fn record_mut(&mut self, key: u64) -> &mut Record {
        // SAFETY: as in `record`; the exclusive borrow of `self`, the table's only owner, makes the
        // reference unique.
        unsafe { &mut *self.records.add(self.index(key)) }
    }

    /// The further checks of the [long](Record::is_long) record that this key selects. `None` if
    /// another record has taken their place.
    #[inline(always)]
    pub(crate) fn further_checks(&self, key: u64) -> Option<&[WordCheck; FURTHER_CHECKS]> {
        let index = self.index(key);
        // SAFETY: the masked index is below the length of the table (`use_tables`), and zeros are
        // checks.
        unsafe { &*self.further_checks.add(index & self.further_mask as usize) }.of(index)
    }

    /// Replaces the record that this key selects. `checks` are those of the record.
    pub(crate) fn set_record(&mut self, key: u64, record: Record, checks: &RecordChecks) {
        let index = self.index(key);
        if record.is_long() {
            // SAFETY: the masked index is below the length of the table (`use_tables`), whose only
            // owner is `self`; zeros are checks.
            let further = unsafe { &mut *self.further_checks.add(index & self.further_mask as usize) };
            further.write(index, &record, checks);
        }
        *self.record_mut(key) = record;
    }

    /// The stack words that distinguish the stacks of a call site, the newer one first.
    #[inline(always)]
    pub(crate) fn discriminators(&self, site_key: u64) -> [Discriminator; 2] {
        // SAFETY: the masked index is below the length of the table (`use_tables`), and zeros are
        // discriminators.
        unsafe { *self.discriminators.add(self.index(site_key)) }
    }

    pub(crate) fn set_discriminators(&mut self, site_key: u64, discriminators: [Discriminator; 2]) {
        // SAFETY: the masked index is below the length of the table (`use_tables`), whose only
        // owner is `self`.
        unsafe { *self.discriminators.add(self.index(site_key)) = discriminators };
    }

    /// The set of addresses that this hash selects.
    #[inline(always)]
    pub(crate) fn pc_set(&mut self, hash: u64) -> &mut PcSet {
        // SAFETY: the shift leaves an index below the length of the table (`use_tables`); zeros are
        // a set, and `self`, the table's only owner, is borrowed exclusively.
        unsafe { &mut *self.pc_sets.add((hash >> self.pc_shift) as usize) }
    }

    /// Counts that a table entry was replaced by another.
    pub(crate) fn count_replaced(&mut self) {
        self.replaced = self.replaced.wrapping_add(1);
        if self.replaced == MANY_REPLACED {
            self.take_large_tables();
        }
    }

    /// Replaces the tables by large, empty ones. Where the kernel gives no memory, the small ones
    /// stay.
    #[cold]
    #[inline(never)]
    fn take_large_tables(&mut self) {
        if let Some(fresh) = mapping::reserve(size_of::<HashTables<LARGE_COUNT, LARGE_FURTHER>>()) {
            // SAFETY: the mapping is zeroed, page aligned, large enough, never unmapped, and known
            // here alone.
            unsafe { self.use_tables(fresh.cast::<HashTables<LARGE_COUNT, LARGE_FURTHER>>().as_ptr()) };
        }
    }

    /// Drops everything that was learned on another thread's stack.
    fn forget(&mut self) {
        self.set_stack(0, 0);
        self.hole = Hole::NONE;
        self.forget_modules(self.module_state);
    }

    /// Drops the shadows.
    pub(crate) fn forget_shadows(&mut self) {
        self.sizes.fill(ShadowSize { end: 0, extra_count: 0 });
        self.common = CommonHeights::NONE;
    }

    /// Drops everything that depends on which modules are loaded.
    #[cold]
    pub(crate) fn forget_modules(&mut self, module_state: u64) {
        self.forget_shadows();
        self.modules.forget();
        let count = self.mask as usize + 1;
        // SAFETY: each table has `mask + 1` entries (`use_tables`), and `self`, their only owner,
        // is borrowed exclusively.
        unsafe {
            core::slice::from_raw_parts_mut(self.records, count).fill(Record::NONE);
            core::slice::from_raw_parts_mut(self.pc_sets, count).fill(PcSet::NONE);
        }
        self.module_state = module_state;
    }
}

#[cfg(target_os = "linux")]
#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;

    #[test]
    fn large_tables_are_empty_and_used_from_then_on() {
        let block = ThreadBlock::make(-1, -1).unwrap();
        // SAFETY: no thread's word leads to this block, and no process has this number, so no
        // capture acquires it; this is the only reference to its state.
        let state = unsafe { block.state() };
        let key = u64::MAX;
        state.pc_set(key).ways = [7, 8];
        state.set_discriminators(key, [Discriminator::new(8, 0x7fff_0000_0000).unwrap(); 2]);
        assert_eq!(state.pc_set(key).ways, [7, 8]);
        (0..MANY_REPLACED).for_each(|_| state.count_replaced());
        assert_eq!(state.mask as usize, LARGE_COUNT - 1);
        assert_eq!(state.pc_set(key).ways, [0, 0]);
        assert!(state.record(key).is_empty() && state.discriminators(key)[0].is_none());
        state.pc_set(key).ways = [9, 9];
        state.forget_modules(3);
        assert_eq!((state.pc_set(key).ways, state.module_state), ([0, 0], 3));
    }

    fn count_of_blocks() -> usize {
        blocks().count()
    }

    fn capture_in_new_thread() {
        std::thread::spawn(crate::capture).join().unwrap();
    }

    /// Exit code of a forked child: 0 if a new thread there reuses a block that the fork left
    /// behind.
    fn child_needs_memory(takes_over: bool) -> i32 {
        // SAFETY: in a child of a process with threads, glibc keeps malloc and pthread_create
        // usable.
        let child = unsafe { libc::fork() };
        if child == 0 {
            if takes_over {
                // SAFETY: the child has one thread.
                unsafe { crate::after_fork_in_child() };
            }
            let before = count_of_blocks();
            capture_in_new_thread();
            // SAFETY: the call does not return and runs no handlers.
            unsafe { libc::_exit(i32::from(count_of_blocks() != before)) };
        }
        let mut status = 0;
        // SAFETY: `status` is a valid place for the answer.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        libc::WEXITSTATUS(status)
    }

    #[test]
    fn child_takes_over_blocks_of_the_parents_threads() {
        let (captured, is_captured) = std::sync::mpsc::channel();
        let (end, wait) = std::sync::mpsc::channel::<()>();
        let other = std::thread::spawn(move || {
            captured.send(crate::capture()).unwrap();
            let _ = wait.recv();
        });
        is_captured.recv().unwrap();
        assert_eq!(child_needs_memory(false), 1, "without it the blocks of the parent stay unused");
        assert_eq!(child_needs_memory(true), 0);
        drop(end);
        other.join().unwrap();
    }
}
