//! What a thread keeps between its captures: caches that are only ever trusted after a check, and stacks that were there.
//!
//! The memory is one mapping of 128 KiB of address space, of which a thread whose stack is 120 frames deep touches 64 KiB;
//! a stack of more than 500 frames brings another one, and thousands of stacks in use one of 384 KiB. It is reached through one
//! thread-local word, without a destructor: a thread that has ended is recognised by its number, and its memory is given to a later one.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU64, Ordering, compiler_fence};

use crate::modules::KnownModules;
use crate::pcs::NUMBER_BITS;
use crate::stack_bounds::Hole;
use crate::walk::WalkRoom;
use crate::{mapping, thread_pointer};

/// Frames of one stack; deeper ones are cut, and the cut is marked.
pub(crate) const MAX_DEPTH: usize = 1 << 20;

/// What a thread finds stacks and addresses by: as many records as places and sets of addresses.
#[repr(C)]
pub(crate) struct Tables<const COUNT: usize> {
    /// For each place the stack words that tell its stacks apart; see `engine::record_key`. First, to lie in a page with the state's
    /// own numbers.
    telling: [[Telling; 2]; COUNT],
    records: [Record; COUNT],
    pc_sets: [PcSet; COUNT],
}

/// A new thread has tables for so many.
const FIRST_COUNT: usize = 1 << 9;
/// When so many entries had to give way to others, the thread gets larger tables: a compiler has thousands of stacks in use at any
/// time, and walking costs it twenty times as much as a record.
const MANY_REPLACED: u32 = 8 * FIRST_COUNT as u32;
const LARGE_COUNT: usize = 8 * FIRST_COUNT;

/// Addresses of code have no more bits.
pub(crate) const PC_BITS: u32 = 47;
/// So many of the bits of their hashes tell the addresses of a set apart; the others name the set, or more than that.
pub(crate) const PC_TAG_BITS: u32 = PC_BITS - FIRST_COUNT.ilog2();
const _: () = assert!(NUMBER_BITS + PC_TAG_BITS == u64::BITS);

/// A whole stack as a list of conditions, in one cache line: if they all hold, the answer is `leaf`'s node.
///
/// It covers the frames that change often one by one, up to a frame of a shadow, which covers the rest. Where frames hang on frame
/// pointers ([`HANGS_ON_FPS`]), the words that these come from are among those that are compared.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub(crate) struct Record {
    /// Return address into the innermost frame, and in the lowest 16 bits the height of the shadow's frame.
    pub(crate) pc_and_height: u64,
    /// Where the innermost frame must lie, and the node that is the answer; see [`place`].
    pub(crate) leaf: u64,
    /// What the shadow must have at that height; in the lowest bits, which are zero in a place, the number of the shadow,
    /// and [`HANGS_ON_FPS`].
    pub(crate) join: u64,
    /// Words of the stack: in the lowest 16 bits how many words above the innermost return address, in the others the
    /// value. Unused ones repeat that return address, so that there are always as many.
    ///
    /// With [`HANGS_ON_FPS`] the last one has in its lowest 16 bits where the frame pointer comes from that the shadow's frame has, if
    /// that matters, and in the others what the register must hold in the innermost frame, if not 0.
    pub(crate) checks: [u64; RECORD_CHECKS],
}

pub(crate) const RECORD_CHECKS: usize = 5;
/// Stands for a place on the stack that is a register.
pub(crate) const FP_IN_REGISTER: u64 = u16::MAX as u64;
/// Set in [`Record::join`].
pub(crate) const HANGS_ON_FPS: u64 = 4;
/// The bits of [`Record::join`] that number the shadow.
pub(crate) const SHADOW_NUMBER: u64 = SHADOWS as u64 - 1;
const _: () = assert!(SHADOWS.is_power_of_two() && SHADOW_NUMBER < HANGS_ON_FPS && HANGS_ON_FPS < 8);

impl Record {
    const NONE: Self = Self { pc_and_height: 0, leaf: 0, join: 0, checks: [0; RECORD_CHECKS] };

    /// The number of the shadow that covers the outer frames.
    #[inline(always)]
    pub(crate) fn shadow(&self) -> usize {
        (self.join & SHADOW_NUMBER) as usize
    }

    /// What the shadow must have.
    #[inline(always)]
    pub(crate) fn join_place(&self) -> u64 {
        self.join & !(SHADOW_NUMBER | HANGS_ON_FPS)
    }

    /// The node that the innermost frame has, if the record is right.
    #[inline(always)]
    pub(crate) fn node(&self) -> u32 {
        (self.leaf >> 32) as u32
    }

    /// True when it is about a frame with this return address in this slot.
    #[inline(always)]
    pub(crate) fn is_of(&self, pc: u64, slot: u32) -> bool {
        self.pc_and_height >> 16 == pc && self.leaf as u32 == slot
    }
}

const _: () = assert!(size_of::<Record>() == 64);

/// Where the return address lies that tells two stacks of one place apart: in the lowest 16 bits, in words above sp. In stacks that
/// differ further in, another frame may lie there and the word be anything, which would make a new key each time; so the upper half of
/// the return address seen there is kept as well, inverted in order that zeros are no address.
#[derive(Clone, Copy)]
pub(crate) struct Telling(u32);

impl Telling {
    /// The word `bytes_above` sp, where `return_address` was seen. `None` if that is too far away.
    pub(crate) fn new(bytes_above: u32, return_address: u64) -> Option<Self> {
        let words_above = u16::try_from(bytes_above / 8).ok()?;
        Some(Self(u32::from(!((return_address >> 32) as u16)) << 16 | u32::from(words_above)))
    }

    #[inline(always)]
    pub(crate) fn is_none(self) -> bool {
        self.0 == 0
    }

    #[inline(always)]
    pub(crate) fn bytes_above(self) -> u64 {
        u64::from(self.0 & 0xffff) * 8
    }

    /// The word that was found there, if it can be an address in that code; otherwise 0.
    #[inline(always)]
    pub(crate) fn part(self, word: u64) -> u64 {
        // Masked in any case, to spare the branch.
        word & u64::from(word >> 32 == u64::from(!self.0 >> 16)).wrapping_neg()
    }
}

/// One frame of a shadow: of a stack that was there before, with what must hold for it to be there again.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ShadowFrame {
    /// The return address in this frame ...
    pub(crate) pc: u64,
    /// ... and where on the stack it lies, in bytes from [`ThreadState::slot_base`].
    pub(crate) slot: u32,
    /// The node of this frame, with [`NEEDS_FP`] added when the frames outside of it depend on the frame pointer in it.
    pub(crate) node: u32,
}

impl ShadowFrame {
    /// Slot and node in one number, to be compared at once.
    #[inline(always)]
    pub(crate) fn place(&self) -> u64 {
        place(self.slot, self.node)
    }
}

/// See [`ShadowFrame::place`]. The flag is the highest bit.
#[inline(always)]
pub(crate) fn place(slot: u32, node: u32) -> u64 {
    u64::from(node) << 32 | u64::from(slot)
}

/// A stack word beside the return addresses that decides where an outer frame lies: a saved frame pointer that is used,
/// or the place where a realigned frame keeps its CFA.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ExtraCheck {
    pub(crate) value: u64,
    pub(crate) slot: u32,
    /// Height of the frame whose step reads the word.
    pub(crate) height: u32,
}

/// A frame that was found but whose node is not known yet.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct PendingFrame {
    pub(crate) fp: u64,
    /// The number of its pc, with [`HANGS_ON_FP`] added when the rule there does.
    pub(crate) flagged_number: u32,
    pub(crate) slot: u32,
}

/// Set in [`PendingFrame::flagged_number`]; numbers of pcs are far below.
pub(crate) const HANGS_ON_FP: u32 = 1 << 31;
const _: () = assert!(NUMBER_BITS < HANGS_ON_FP.ilog2());

impl PendingFrame {
    #[inline(always)]
    pub(crate) fn pc_number(&self) -> u32 {
        self.flagged_number & !HANGS_ON_FP
    }

    #[inline(always)]
    pub(crate) fn hangs_on_fp(&self) -> bool {
        self.flagged_number & HANGS_ON_FP != 0
    }
}

/// Addresses that fell to the same place of a thread's cache: their numbers, below what tells them apart, and their rules.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct PcSet {
    pub(crate) ways: [u64; 2],
    pub(crate) rules: [u32; 2],
}

impl PcSet {
    const NONE: Self = Self { ways: [0; 2], rules: [0; 2] };
}

/// For each two shadows up to which height they are certainly the same, so that one becomes like the other by few copies.
#[repr(C)]
pub(crate) struct CommonHeights([[u32; SHADOWS]; SHADOWS]);

impl CommonHeights {
    pub(crate) fn height(&self, one: usize, other: usize) -> u32 {
        self.0[one][other]
    }

    /// A shadow gets other frames inside of this height.
    pub(crate) fn cut(&mut self, number: usize, height: u32) {
        for other in 0..SHADOWS {
            self.set(number, other, self.0[number][other].min(height));
        }
    }

    /// One shadow has become the same as another up to this height, and ends there.
    pub(crate) fn copied(&mut self, from: usize, to: usize, height: u32) {
        for other in 0..SHADOWS {
            let common = if other == from { height } else { self.0[from][other].min(height) };
            self.set(to, other, common);
        }
    }

    fn set(&mut self, one: usize, other: usize, height: u32) {
        self.0[one][other] = height;
        self.0[other][one] = height;
    }
}

const _: () = assert!(size_of::<ShadowFrame>() == 16);
const _: () = assert!(size_of::<ExtraCheck>() == 16);
const _: () = assert!(size_of::<PendingFrame>() == 16);

/// So many shadows: stacks that alternate below a common part need one each.
pub(crate) const SHADOWS: usize = 4;
/// A shadow is compared in blocks of so many frames, to have few branches.
pub(crate) const SHADOW_BLOCK: usize = 8;
/// In front of the outermost frame stand copies of it, so that the last block is whole.
pub(crate) const SHADOW_PADDING: usize = SHADOW_BLOCK - 1;

/// The shadows and all that goes with them lie woven, in turns of so many frames: shallow ones share their pages of memory.
pub(crate) const WEAVE: usize = 128;
/// So many extra checks of a shadow lie in a turn; most have few.
pub(crate) const EXTRA_WEAVE: usize = 32;
const _: () = assert!(WEAVE.is_multiple_of(SHADOW_BLOCK));

/// What the shadows have from one height to 128 further in, and as many frames of a stack that is just found.
#[repr(C, align(4096))]
pub(crate) struct Turn {
    /// By height, which for the outermost frame is 1, moved up by [`SHADOW_PADDING`].
    pub(crate) shadow: [[ShadowFrame; WEAVE]; SHADOWS],
    /// The frame pointer in each frame that has [`NEEDS_FP`]; others are not written.
    pub(crate) shadow_fp: [[u64; WEAVE]; SHADOWS],
    /// Innermost first.
    pending: [PendingFrame; WEAVE],
    /// By rising height.
    extra: [[ExtraCheck; EXTRA_WEAVE]; SHADOWS],
}

const _: () = assert!(size_of::<Turn>() == 16 << 10);

/// A new thread has room for 512 frames. Of the others few ever need more.
const FIRST_TURNS: usize = 4;
/// When it does not suffice, so many times as much is taken.
const TURNS_FACTOR: usize = 8;
const MAX_TURNS: usize = MAX_DEPTH / WEAVE;

impl ThreadState {
    #[inline(always)]
    fn turns(&self) -> &[Turn] {
        // SAFETY: so many turns lie there (`make`, `make_room`), zeroed or written by this thread.
        unsafe { core::slice::from_raw_parts(self.first_turn, self.turn_count) }
    }

    #[inline(always)]
    pub(crate) fn turns_mut(&mut self) -> &mut [Turn] {
        // SAFETY: as above, and nobody else has them.
        unsafe { core::slice::from_raw_parts_mut(self.first_turn, self.turn_count) }
    }

    /// So many frames fit into a shadow, padding included, or wait for their nodes.
    #[inline(always)]
    pub(crate) fn room(&self) -> usize {
        self.turn_count * WEAVE
    }

    /// Makes room for more frames; `None` where the kernel gives no memory, or a stack has too many.
    #[cold]
    #[inline(never)]
    pub(crate) fn make_room(&mut self) -> Option<()> {
        let count = (self.turn_count * TURNS_FACTOR).min(MAX_TURNS);
        if count <= self.turn_count {
            return None;
        }
        let fresh = mapping::reserve(count * size_of::<Turn>())?;
        let first = fresh.cast::<Turn>().as_ptr();
        let old = core::mem::replace(&mut self.first_turn, first);
        // SAFETY: the new mapping is larger, and nobody else knows either.
        unsafe { core::ptr::copy_nonoverlapping(old, first, self.turn_count) };
        if self.turn_count > FIRST_TURNS {
            // SAFETY: a mapping of its own, made here, to which nothing points any more.
            unsafe {
                mapping::release(NonNull::new_unchecked(old.cast()), self.turn_count * size_of::<Turn>())
            };
        }
        self.turn_count = count;
        Some(())
    }

    /// # Safety
    ///
    /// The tables belong to this thread, and stay.
    unsafe fn use_tables<const COUNT: usize>(&mut self, tables: *mut Tables<COUNT>) {
        // SAFETY: by contract.
        unsafe {
            self.records = (&raw mut (*tables).records).cast();
            self.telling = (&raw mut (*tables).telling).cast();
            self.pc_sets = (&raw mut (*tables).pc_sets).cast();
        }
        self.mask = COUNT as u32 - 1;
        self.pc_shift = u64::BITS - COUNT.ilog2();
    }

    #[inline(always)]
    fn index(&self, hash: u64) -> usize {
        (hash >> 48) as usize & self.mask as usize
    }

    /// Where the record is that this hash finds.
    #[inline(always)]
    fn record_place(&self, key: u64) -> *mut Record {
        // SAFETY: so many bits of the hash are left as make an index (`use_tables`).
        unsafe { self.records.add(self.index(key)) }
    }

    /// The record that this hash finds.
    #[inline(always)]
    pub(crate) fn record(&self, key: u64) -> &Record {
        // SAFETY: zeros are a record too.
        unsafe { &*self.record_place(key) }
    }

    /// The record that this hash finds, to be written.
    #[inline(always)]
    pub(crate) fn record_mut(&mut self, key: u64) -> &mut Record {
        // SAFETY: as above, and nobody else has it.
        unsafe { &mut *self.record_place(key) }
    }

    /// What tells the stacks of a place apart.
    #[inline(always)]
    pub(crate) fn telling(&self, place_key: u64) -> [Telling; 2] {
        // SAFETY: as for records.
        unsafe { *self.telling.add(self.index(place_key)) }
    }

    pub(crate) fn set_telling(&mut self, place_key: u64, telling: [Telling; 2]) {
        // SAFETY: as for records.
        unsafe { *self.telling.add(self.index(place_key)) = telling };
    }

    /// The set of the addresses that this hash finds.
    #[inline(always)]
    pub(crate) fn pc_set(&mut self, hash: u64) -> &mut PcSet {
        // SAFETY: as for records.
        unsafe { &mut *self.pc_sets.add((hash >> self.pc_shift) as usize) }
    }

    /// Notes that an entry of a table gives way to another.
    pub(crate) fn count_replaced(&mut self) {
        self.replaced = self.replaced.wrapping_add(1);
        if self.replaced == MANY_REPLACED {
            self.take_large_tables();
        }
    }

    /// What was learned is learned again. Where the kernel gives no memory, the small tables must do.
    #[cold]
    #[inline(never)]
    fn take_large_tables(&mut self) {
        if let Some(fresh) = mapping::reserve(size_of::<Tables<LARGE_COUNT>>()) {
            // SAFETY: the mapping is for this, zeroed and page aligned, and never given back.
            unsafe { self.use_tables(fresh.cast::<Tables<LARGE_COUNT>>().as_ptr()) };
        }
    }

    /// The entry of a shadow at this index, which is a height with [`SHADOW_PADDING`] added.
    ///
    /// # Safety
    ///
    /// The index is below [`room`](Self::room).
    #[inline(always)]
    pub(crate) unsafe fn shadow_unchecked(&self, number: usize, index: usize) -> &ShadowFrame {
        // SAFETY: by contract; there are as many shadows as numbers.
        unsafe {
            let turn = self.turns().get_unchecked(index / WEAVE);
            turn.shadow.get_unchecked(number % SHADOWS).get_unchecked(index % WEAVE)
        }
    }

    /// As [`shadow_unchecked`](Self::shadow_unchecked), to be written.
    ///
    /// # Safety
    ///
    /// The index is below [`room`](Self::room).
    #[inline(always)]
    pub(crate) unsafe fn shadow_unchecked_mut(&mut self, number: usize, index: usize) -> &mut ShadowFrame {
        // SAFETY: by contract; there are as many shadows as numbers.
        unsafe {
            let turn = self.turns_mut().get_unchecked_mut(index / WEAVE);
            turn.shadow.get_unchecked_mut(number % SHADOWS).get_unchecked_mut(index % WEAVE)
        }
    }

    /// All entries of a shadow in its first turn.
    #[inline(always)]
    pub(crate) fn first_of_shadow(&self, number: usize) -> &[ShadowFrame; WEAVE] {
        // SAFETY: there is always a first turn.
        unsafe { &self.turns().get_unchecked(0).shadow[number % SHADOWS] }
    }

    /// The frame of a shadow at this height.
    #[inline(always)]
    pub(crate) fn shadow_at(&self, number: usize, height: usize) -> &ShadowFrame {
        let index = height + SHADOW_PADDING;
        &self.turns()[index / WEAVE].shadow[number % SHADOWS][index % WEAVE]
    }

    /// The frame of a shadow at this height, to be written.
    #[inline(always)]
    pub(crate) fn shadow_at_mut(&mut self, number: usize, height: usize) -> &mut ShadowFrame {
        let index = height + SHADOW_PADDING;
        &mut self.turns_mut()[index / WEAVE].shadow[number % SHADOWS][index % WEAVE]
    }

    /// The frame pointer in the frame of a shadow at this height, if it has [`NEEDS_FP`].
    #[inline(always)]
    pub(crate) fn shadow_fp_at(&self, number: usize, height: usize) -> u64 {
        self.turns()[height / WEAVE].shadow_fp[number % SHADOWS][height % WEAVE]
    }

    pub(crate) fn set_shadow_fp(&mut self, number: usize, height: usize, fp: u64) {
        self.turns_mut()[height / WEAVE].shadow_fp[number % SHADOWS][height % WEAVE] = fp;
    }

    /// The pending frame of this index, innermost first.
    #[inline(always)]
    pub(crate) fn pending(&self, index: usize) -> PendingFrame {
        self.turns()[index / WEAVE].pending[index % WEAVE]
    }

    /// As [`pending_mut`](Self::pending_mut), for the hot path.
    ///
    /// # Safety
    ///
    /// The index is below [`room`](Self::room).
    #[inline(always)]
    pub(crate) unsafe fn pending_unchecked_mut(&mut self, index: usize) -> &mut PendingFrame {
        // SAFETY: by contract.
        unsafe {
            let turn = self.turns_mut().get_unchecked_mut(index / WEAVE);
            turn.pending.get_unchecked_mut(index % WEAVE)
        }
    }

    #[inline(always)]
    pub(crate) fn pending_mut(&mut self, index: usize) -> &mut PendingFrame {
        &mut self.turns_mut()[index / WEAVE].pending[index % WEAVE]
    }

    /// An extra check of a shadow.
    #[inline(always)]
    pub(crate) fn extra(&self, number: usize, index: usize) -> ExtraCheck {
        self.turns()[index / EXTRA_WEAVE].extra[number % SHADOWS][index % EXTRA_WEAVE]
    }

    /// The places for all extra checks of a shadow, turn by turn.
    #[inline(always)]
    pub(crate) fn extras(&self, number: usize) -> impl Iterator<Item = &[ExtraCheck; EXTRA_WEAVE]> {
        self.turns().iter().map(move |turn| &turn.extra[number % SHADOWS])
    }

    pub(crate) fn set_extra(&mut self, number: usize, index: usize, check: ExtraCheck) {
        self.turns_mut()[index / EXTRA_WEAVE].extra[number % SHADOWS][index % EXTRA_WEAVE] = check;
    }
}

/// How much of a shadow there is.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ShadowSize {
    /// Heights from 1 to below this one are filled.
    pub(crate) end: u32,
    pub(crate) extra_count: u32,
}

/// Set in [`ShadowFrame::node`]; nodes have 31 bits.
pub(crate) const NEEDS_FP: u32 = 1 << 31;

/// See the module documentation. All-zero bytes are a thread that knows nothing yet, but for the places of its tables.
///
/// What every capture needs comes first, in two cache lines.
#[repr(C, align(64))]
pub(crate) struct ThreadState {
    /// Not 0 while a capture is under way: the stack pointer of the frame it captures. A signal handler that captures now
    /// must leave everything here alone.
    busy: AtomicU64,
    /// [`Process::module_state`](crate::process::Process::module_state) that the caches belong to.
    pub(crate) module_state: u64,
    /// The readable part of this thread's own stack.
    pub(crate) low: u64,
    pub(crate) high: u64,
    /// 4 GiB below `high`: every slot is a 32-bit distance above it.
    pub(crate) slot_base: u64,
    first_turn: *mut Turn,
    records: *mut Record,
    telling: *mut [Telling; 2],
    pub(crate) sizes: [ShadowSize; SHADOWS],
    pc_sets: *mut PcSet,
    /// So many records and places are there, less 1.
    mask: u32,
    /// The shadow that was met last.
    pub(crate) current: u32,
    turn_count: usize,
    /// The highest bits of a hash find a set of addresses; so many are left away.
    pc_shift: u32,
    /// Entries of the tables that gave way to others.
    replaced: u32,
    pub(crate) common: CommonHeights,
    /// As `busy`, for the capture in the handler.
    nested_busy: AtomicU64,
    owner_process: AtomicI32,
    owner_thread: AtomicI32,
    next: *mut ThreadState,
    pub(crate) modules: KnownModules,
    pub(crate) hole: Hole,
    /// What the pointers to tables show at first.
    own_tables: Tables<FIRST_COUNT>,
    /// For a whole walk.
    pub(crate) walked: WalkRoom,
    /// For a capture in a signal handler that interrupted a capture.
    pub(crate) nested: WalkRoom,
    /// Where `first_turn` points at first.
    own_turns: [Turn; FIRST_TURNS],
}

/// Every state there is, newest first.
static STATES: AtomicPtr<ThreadState> = AtomicPtr::new(core::ptr::null_mut());

/// In place of an owner's thread number.
const NOBODY: i32 = 0;

/// How a thread may use its state right now.
pub(crate) enum Access {
    /// All of it, until [`release`].
    Whole(*mut ThreadState),
    /// A capture was interrupted: only `nested`, until [`release_nested`].
    Nested(*mut ThreadState),
    /// Nothing: no memory, or the third capture inside two others.
    None,
}

/// Takes this thread's state, for a capture of the frame at `sp`.
#[inline(always)]
pub(crate) fn acquire(sp: u64) -> Access {
    let state = thread_pointer::load().cast::<ThreadState>();
    if state.is_null() {
        return acquire_first(sp);
    }
    // SAFETY: the word is null or points to this thread's state, which lives as long as the thread.
    let busy = unsafe { &(*state).busy };
    // The same thread and its signal handlers only: plain loads and stores do, in this order.
    if busy.load(Ordering::Relaxed) != 0 {
        return acquire_nested(state, sp);
    }
    busy.store(sp, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
    Access::Whole(state)
}

/// Gives the state back.
///
/// # Safety
///
/// `state` came from [`acquire`] as [`Access::Whole`] on this thread.
#[inline(always)]
pub(crate) unsafe fn release(state: *mut ThreadState) {
    compiler_fence(Ordering::SeqCst);
    // SAFETY: by contract.
    unsafe { (*state).busy.store(0, Ordering::Relaxed) };
}

#[cold]
fn acquire_nested(state: *mut ThreadState, sp: u64) -> Access {
    // SAFETY: as in `acquire`; shared access to a few plain numbers.
    let (busy, nested_busy, low, high) =
        unsafe { (&(*state).busy, &(*state).nested_busy, (*state).low, (*state).high) };
    let holder = busy.load(Ordering::Relaxed);
    // A handler that left by longjmp never gives the state back. Its capture's frame is gone when we stand above it.
    if low <= sp && sp < high && low <= holder && holder < sp {
        // SAFETY: nobody else uses the state, by the comparison above.
        unsafe { (*state).forget() };
        return acquire(sp);
    }
    if nested_busy.load(Ordering::Relaxed) != 0 {
        return Access::None;
    }
    nested_busy.store(sp, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
    Access::Nested(state)
}

/// Gives the nested part back.
///
/// # Safety
///
/// `state` came from [`acquire`] as [`Access::Nested`] on this thread.
pub(crate) unsafe fn release_nested(state: *mut ThreadState) {
    compiler_fence(Ordering::SeqCst);
    // SAFETY: by contract.
    unsafe { (*state).nested_busy.store(0, Ordering::Relaxed) };
}

#[cold]
fn acquire_first(sp: u64) -> Access {
    let (process, thread) = ids();
    let state = reuse(process, thread).or_else(|| make(process, thread));
    let Some(state) = state else { return Access::None };
    // A signal handler may have come between and made a state of its own; it is found again when this thread has ended.
    thread_pointer::store(state.cast());
    acquire(sp)
}

/// The state of a thread of this process that has ended.
///
/// States that a fork left behind belong to another process and are not touched: the thread that forked goes on to use
/// its own.
fn reuse(process: i32, thread: i32) -> Option<*mut ThreadState> {
    /// A process of many live threads must not look at all of them each time, but at others the next time.
    const LOOK_AT: usize = 64;
    static LOOK_FROM: AtomicPtr<ThreadState> = AtomicPtr::new(core::ptr::null_mut());

    let mut candidate = LOOK_FROM.load(Ordering::Acquire);
    for _ in 0..LOOK_AT {
        if candidate.is_null() {
            candidate = STATES.load(Ordering::Acquire);
        }
        // SAFETY: null ends the list; states are never released, and these fields are atomic or never change.
        let state = unsafe { candidate.as_ref() }?;
        let owner = state.owner_thread.load(Ordering::Acquire);
        let is_ours = state.owner_process.load(Ordering::Relaxed) == process;
        if is_ours && owner != thread && has_ended(process, owner) {
            let taken =
                state.owner_thread.compare_exchange(owner, thread, Ordering::AcqRel, Ordering::Relaxed);
            if taken.is_ok() {
                LOOK_FROM.store(state.next, Ordering::Release);
                // SAFETY: the owner has ended and the exchange made this thread the only new one.
                unsafe { (*candidate).forget() };
                return Some(candidate);
            }
        }
        candidate = state.next;
    }
    LOOK_FROM.store(candidate, Ordering::Release);
    None
}

fn make(process: i32, thread: i32) -> Option<*mut ThreadState> {
    let state = mapping::reserve(size_of::<ThreadState>())?.cast::<ThreadState>().as_ptr();
    // SAFETY: the mapping is zeroed, large enough, page aligned and known to nobody else; zeros are a state.
    let fresh = unsafe { &mut *state };
    fresh.owner_process = AtomicI32::new(process);
    fresh.owner_thread = AtomicI32::new(thread);
    (fresh.first_turn, fresh.turn_count) = (fresh.own_turns.as_mut_ptr(), FIRST_TURNS);
    // SAFETY: they stay as long as the state.
    unsafe { fresh.use_tables(&raw mut (*state).own_tables) };
    let mut first = STATES.load(Ordering::Relaxed);
    loop {
        fresh.next = first;
        match STATES.compare_exchange_weak(first, state, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => return Some(state),
            Err(other) => first = other,
        }
    }
}

/// In a forked child: all states belong to this process from now on, and all but this thread's own to nobody.
///
/// # Safety
///
/// This thread is the only one that has access to this memory.
pub(crate) unsafe fn take_over_after_fork() {
    let (process, thread) = ids();
    let own = thread_pointer::load().cast::<ThreadState>();
    let mut next = STATES.load(Ordering::Acquire);
    // SAFETY: null ends the list; states are never released, and these fields are atomic or never change.
    while let Some(state) = unsafe { next.as_ref() } {
        let owner = if next == own { thread } else { NOBODY };
        state.owner_thread.store(owner, Ordering::Relaxed);
        state.owner_process.store(process, Ordering::Release);
        next = state.next;
    }
}

/// Drops, for all threads, everything that was learned of stacks and modules.
///
/// # Safety
///
/// No other thread runs before it returns, and none was stopped inside a capture.
pub(crate) unsafe fn forget_all() {
    let mut next = STATES.load(Ordering::Acquire);
    while !next.is_null() {
        // SAFETY: states are never released, and nobody else has access to them, by contract.
        let state = unsafe { &mut *next };
        state.forget();
        next = state.next;
    }
}

impl ThreadState {
    /// Drops everything that was learned on another thread's stack.
    fn forget(&mut self) {
        self.busy.store(0, Ordering::Relaxed);
        self.nested_busy.store(0, Ordering::Relaxed);
        (self.low, self.high, self.slot_base) = (0, 0, 0);
        self.hole = Hole::NONE;
        self.forget_modules(self.module_state);
    }

    /// Drops what was learned of stacks.
    pub(crate) fn forget_stack(&mut self) {
        self.sizes.fill(ShadowSize { end: 0, extra_count: 0 });
        self.common = CommonHeights([[0; SHADOWS]; SHADOWS]);
    }

    /// Drops everything that depends on which modules are loaded.
    #[cold]
    pub(crate) fn forget_modules(&mut self, module_state: u64) {
        self.forget_stack();
        self.modules.forget();
        let count = self.mask as usize + 1;
        // SAFETY: so many lie there (`use_tables`), and nobody else has them.
        unsafe {
            core::slice::from_raw_parts_mut(self.records, count).fill(Record::NONE);
            core::slice::from_raw_parts_mut(self.pc_sets, count).fill(PcSet::NONE);
        }
        self.module_state = module_state;
    }
}

fn ids() -> (i32, i32) {
    // SAFETY: both calls only ask.
    unsafe { (libc::getpid(), libc::syscall(libc::SYS_gettid) as i32) }
}

/// True when no thread of that number is left in this process.
fn has_ended(process: i32, thread: i32) -> bool {
    if thread == NOBODY {
        return true;
    }
    // SAFETY: the address of this thread's errno is always valid.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let saved = unsafe { *errno };
    // SAFETY: signal 0 only asks whether the thread is there.
    let answer = unsafe { libc::syscall(libc::SYS_tgkill, process, thread, 0) };
    // SAFETY: as above.
    let is_gone = answer != 0 && unsafe { *errno } == libc::ESRCH;
    // SAFETY: as above.
    unsafe { *errno = saved };
    is_gone
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;

    fn count_of_states() -> usize {
        let mut count = 0;
        let mut next = STATES.load(Ordering::Acquire);
        // SAFETY: null ends the list; states are never released.
        while let Some(state) = unsafe { next.as_ref() } {
            count += 1;
            next = state.next;
        }
        count
    }

    fn capture_in_new_thread() {
        std::thread::spawn(crate::capture).join().unwrap();
    }

    /// Exit code of a forked child: 0 if a new thread there takes the state of one that the fork left behind.
    fn child_needs_memory(takes_over: bool) -> i32 {
        // SAFETY: the C library keeps what `thread::spawn` needs usable in a child.
        let child = unsafe { libc::fork() };
        if child == 0 {
            if takes_over {
                // SAFETY: the child has one thread.
                unsafe { crate::after_fork_in_child() };
            }
            let before = count_of_states();
            capture_in_new_thread();
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(count_of_states() != before)) };
        }
        let mut status = 0;
        // SAFETY: waits for our own child.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        libc::WEXITSTATUS(status)
    }

    #[test]
    fn a_child_takes_over_what_threads_of_the_parent_left() {
        let (captured, is_captured) = std::sync::mpsc::channel();
        let (end, wait) = std::sync::mpsc::channel::<()>();
        let other = std::thread::spawn(move || {
            captured.send(crate::capture()).unwrap();
            let _ = wait.recv();
        });
        is_captured.recv().unwrap();
        assert_eq!(child_needs_memory(false), 1, "without it states of the parent stay alone");
        assert_eq!(child_needs_memory(true), 0);
        drop(end);
        other.join().unwrap();
    }
}
