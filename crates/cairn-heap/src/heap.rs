//! The heap: an allocator underneath, and the annotation that every block gets.
//!
//! ```text
//!   allocate: ask for the stack -> how much goes in front -> memory from below -> write it there -> count -> tell
//!   release:  is it ours? -> is its guard whole? -> tell -> mark it as free -> count -> give the memory back
//! ```
//!
//! A block is told from those of others by what stands in front of it, never by a table: so an allocation costs its stack
//! and a few stores, and no two threads meet. Only the lws layout has lists, one for each shard, each with its lock.
//!
//! Blocks of a larger alignment than the allocator's own have one word more, below everything else: the address of the
//! underlying allocation. Where it is, is known from the rest: the header's alignment (cairn), the list (lws), always (heapprof).

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use core::{mem, ptr};

use cairn_format::{AbsoluteAddress, Frame, SliceSink, WordSize};
use cairn_wire::heapblock::{
    ANCHOR_BYTES, Anchor, BlockLayout, BlockState, ByteOrder, HEADER_BYTES, Header, MAX_ALIGNMENT_LOG2,
    SIZE_LIMIT, StackReference, guard, inline_stack,
};
use cairn_wire::heapprof::MAX_CALLERS;
use cairn_wire::{cbf, lws as format};

use crate::atomic::SwapUsize;
use crate::backend::Backend;
use crate::compressed::Key;
use crate::lock::{Critical, HAS_CRITICAL_SECTION, Lock, in_critical_section};
use crate::lws::{self, Owner};
use crate::stack::CallStack;

const WORD_BYTES: usize = size_of::<usize>();
/// Frames of an inline stack at most.
const INLINE_FRAMES: usize = 32;
/// Bytes of an inline stack at most: 32 addresses of 9 bytes and an end.
const INLINE_BYTES: usize = 296;
/// Frames that are asked for, for the lws layout: the ones it keeps and what is left out at the inner end.
const LWS_FRAMES: usize = 64;

/// How blocks are annotated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Which layout. It must not change once there are blocks.
    pub layout: BlockLayout,
    /// heapprof: how many callers; at most [`MAX_CALLERS`]. The same goes for it.
    pub callers: usize,
    /// How many innermost frames to leave out of addresses.
    pub pre: usize,
    /// How many outermost frames to leave out of addresses: the loader's.
    pub post: usize,
    /// cairn: whether a guard stands behind each block.
    pub has_guards: bool,
    /// cairn: keep addresses inline even where stacks have numbers.
    pub is_inline: bool,
}

impl Options {
    /// The layout with what is usual for it: 16 callers, nothing left out, guards.
    #[must_use]
    pub const fn new(layout: BlockLayout) -> Self {
        Self { layout, callers: 16, pre: 0, post: 0, has_guards: true, is_inline: false }
    }
}

/// Options that may be set at run time; `pre` and `post` at any moment.
#[derive(Debug)]
struct Settings {
    layout: AtomicU32,
    callers: AtomicU32,
    pre: AtomicU32,
    post: AtomicU32,
    has_guards: AtomicU32,
    is_inline: AtomicU32,
}

impl Settings {
    const fn new(options: Options) -> Self {
        Self {
            layout: AtomicU32::new(options.layout as u32),
            callers: AtomicU32::new(callers(options.callers)),
            pre: AtomicU32::new(options.pre as u32),
            post: AtomicU32::new(options.post as u32),
            has_guards: AtomicU32::new(options.has_guards as u32),
            is_inline: AtomicU32::new(options.is_inline as u32),
        }
    }
}

const fn callers(wanted: usize) -> u32 {
    if wanted > MAX_CALLERS { MAX_CALLERS as u32 } else { wanted as u32 }
}

/// What happened to a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Event {
    /// It was given out. What the observer does comes before the program has it.
    Allocated {
        /// The user's address.
        user: *mut u8,
        /// The user's size.
        size: usize,
    },
    /// It is about to be given back; its content is as the program left it.
    Freeing {
        /// The user's address.
        user: *mut u8,
        /// The user's size.
        size: usize,
    },
    /// It has another size, and mostly another address.
    Moved {
        /// The address before.
        from: *mut u8,
        /// The user's address.
        to: *mut u8,
        /// The user's size.
        size: usize,
    },
    /// There is no memory, or a limit was met.
    Refused {
        /// What the program asked for.
        size: usize,
    },
    /// Somebody wrote behind its end. Noticed when it is freed or resized.
    Overflowed {
        /// The user's address.
        user: *mut u8,
        /// The user's size.
        size: usize,
        /// How many bytes of the guard are wrong, up to the last one.
        bytes: usize,
    },
    /// It was freed before. The underlying allocator is not asked again.
    FreedTwice {
        /// The user's address.
        user: *mut u8,
    },
}

/// Told of events, in the thread that they happen in. It may allocate and free from the same heap, and is told of that,
/// too; where that ends is its own affair.
pub type Observer = fn(&Event);

/// How much of what there was.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct Counters {
    /// Blocks in use.
    pub live_blocks: usize,
    /// Bytes in use, as the program asked for them.
    pub live_bytes: usize,
    /// The most bytes in use; exact with one shard, else an upper bound.
    pub peak_bytes: usize,
    /// Blocks given out since the start.
    pub allocations: usize,
    /// Requests that were refused.
    pub refused: usize,
    /// Frees of what is no block of this heap.
    pub foreign: usize,
    /// Blocks freed twice.
    pub freed_twice: usize,
    /// Blocks whose guard was overwritten.
    pub overflowed: usize,
}

#[derive(Debug)]
struct ShardCounters {
    allocations: SwapUsize,
    frees: SwapUsize,
    /// Wraps: a shard may free what another one allocated.
    live_bytes: SwapUsize,
    peak_bytes: SwapUsize,
}

/// A list, in a cache line half of its own where there are caches.
#[cfg_attr(target_pointer_width = "64", repr(C, align(32)))]
#[cfg_attr(not(target_pointer_width = "64"), repr(C))]
struct List(UnsafeCell<Owner>);

#[cfg_attr(target_pointer_width = "64", repr(C, align(64)))]
#[cfg_attr(not(target_pointer_width = "64"), repr(C))]
struct Shard {
    counters: ShardCounters,
    lock: Lock,
}

/// An annotated heap. See the [crate's documentation](crate).
pub struct Heap<B, const SHARDS: usize = 1> {
    backend: B,
    settings: Settings,
    critical: Option<Critical>,
    limit_bytes: AtomicUsize,
    observer: AtomicPtr<()>,
    refused: SwapUsize,
    foreign: SwapUsize,
    freed_twice: SwapUsize,
    overflowed: SwapUsize,
    /// Who has all locks for a while: see [`lock_all`](Self::lock_all).
    all_held_by: AtomicUsize,
    shards: [Shard; SHARDS],
    /// For each shard one of usual and one of over-aligned blocks.
    lists: [[List; 2]; SHARDS],
    anchor: AnchorPlace,
}

#[repr(C, align(8))]
struct AnchorPlace(UnsafeCell<[u8; ANCHOR_BYTES]>);

// SAFETY: the lists are changed under their locks; the anchor is written by one call that its contract keeps alone.
unsafe impl<B: Sync, const SHARDS: usize> Sync for Heap<B, SHARDS> {}

/// What goes in front of a block, before it is known where that is.
#[derive(Clone, Copy)]
enum Note<'a> {
    Cairn { stack: StackReference, inline: &'a [u8], has_guard: bool },
    Lws { blob: &'a [u8] },
    Heapprof { addresses: &'a [usize], callers: usize },
}

impl Note<'_> {
    /// Whole words, without the word for an over-aligned block's origin.
    #[inline(always)]
    const fn own_bytes(&self) -> usize {
        match self {
            Self::Cairn { inline, .. } => (HEADER_BYTES + inline.len()).next_multiple_of(WORD_BYTES),
            Self::Lws { blob } => blob.len().next_multiple_of(WORD_BYTES) + 3 * WORD_BYTES,
            Self::Heapprof { callers, .. } => heapprof_bytes(*callers) + WORD_BYTES,
        }
    }

    /// Bytes behind the user's.
    #[inline(always)]
    const fn tail_bytes(&self, size: usize) -> usize {
        match self {
            Self::Cairn { has_guard: true, .. } if (size as u64) < SIZE_LIMIT => {
                guard::bytes_behind(size as u64)
            }
            _ => 0,
        }
    }
}

/// From the start magic to the user's data.
const fn heapprof_bytes(callers: usize) -> usize {
    ((callers + 3) * WORD_BYTES).next_multiple_of(8)
}

const HEAPPROF_START: usize = 0x5061_6548;
const HEAPPROF_END: usize = 0x466f_7250;

/// Where everything of a new block goes.
#[derive(Clone, Copy)]
struct Place {
    prefix_bytes: usize,
    own_bytes: usize,
    /// What the user may rely on.
    alignment: usize,
    is_over_aligned: bool,
    /// What is asked of the allocator underneath.
    total_bytes: usize,
    asked_alignment: usize,
}

/// A block that was found to be ours.
#[derive(Clone, Copy)]
struct Found {
    origin: *mut u8,
    size: usize,
    tail_bytes: usize,
    state: BlockState,
    is_over_aligned: bool,
    mark: Mark,
}

/// What has to be undone when a block becomes free.
#[derive(Clone, Copy)]
enum Mark {
    /// Word 3 of the header.
    Cairn(u32),
    /// The list.
    Lws { shard: usize, list: usize },
    /// Where the start magic is.
    Heapprof { start: *mut usize },
}

impl<B: Backend, const SHARDS: usize> Heap<B, SHARDS> {
    /// A heap that gets its memory from `backend`. Can be a static.
    #[must_use]
    pub const fn new(backend: B, options: Options) -> Self {
        const { assert!(SHARDS > 0, "a heap has at least one shard") };
        Self {
            backend,
            settings: Settings::new(options),
            critical: None,
            limit_bytes: AtomicUsize::new(usize::MAX),
            observer: AtomicPtr::new(ptr::null_mut()),
            refused: SwapUsize::new(0),
            foreign: SwapUsize::new(0),
            freed_twice: SwapUsize::new(0),
            overflowed: SwapUsize::new(0),
            all_held_by: AtomicUsize::new(0),
            shards: [const {
                Shard {
                    counters: ShardCounters {
                        allocations: SwapUsize::new(0),
                        frees: SwapUsize::new(0),
                        live_bytes: SwapUsize::new(0),
                        peak_bytes: SwapUsize::new(0),
                    },
                    lock: Lock::new(),
                }
            }; SHARDS],
            lists: [const { [const { List(UnsafeCell::new(Owner::new())) }; 2] }; SHARDS],
            anchor: AnchorPlace(UnsafeCell::new([0; ANCHOR_BYTES])),
        }
    }

    /// The same heap, which does this around the changes of its lists in place of spinning.
    #[must_use]
    pub const fn with_critical(mut self, critical: Critical) -> Self {
        self.critical = Some(critical);
        self
    }

    /// Other options: all of them before the first block, `pre` and `post` at any time.
    pub fn configure(&self, options: Options) {
        let set = |place: &AtomicU32, value| place.store(value, Ordering::Relaxed);
        set(&self.settings.layout, options.layout as u32);
        set(&self.settings.callers, callers(options.callers));
        set(&self.settings.pre, options.pre as u32);
        set(&self.settings.post, options.post as u32);
        set(&self.settings.has_guards, options.has_guards.into());
        set(&self.settings.is_inline, options.is_inline.into());
    }

    /// The options as they are.
    #[must_use]
    pub fn options(&self) -> Options {
        let value = |place: &AtomicU32| place.load(Ordering::Relaxed);
        Options {
            layout: self.layout(),
            callers: value(&self.settings.callers) as usize,
            pre: value(&self.settings.pre) as usize,
            post: value(&self.settings.post) as usize,
            has_guards: value(&self.settings.has_guards) != 0,
            is_inline: value(&self.settings.is_inline) != 0,
        }
    }

    /// Refuses what would bring the bytes in use above `bytes`. Threads that allocate at the same moment may pass it by what
    /// they ask for.
    pub fn set_limit(&self, bytes: usize) {
        self.limit_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Has `observer` told of all events from now on.
    pub fn set_observer(&self, observer: Option<Observer>) {
        let function = observer.map_or(ptr::null_mut(), |observer| observer as *mut ());
        self.observer.store(function, Ordering::Release);
    }

    /// The allocator underneath.
    pub const fn backend(&self) -> &B {
        &self.backend
    }

    #[inline(always)]
    fn layout(&self) -> BlockLayout {
        match self.settings.layout.load(Ordering::Relaxed) {
            1 => BlockLayout::Lws,
            2 => BlockLayout::Heapprof,
            _ => BlockLayout::Cairn,
        }
    }

    /// A block of `size` bytes that says that `stack` allocated it; null when there is no memory. `alignment` is a power of
    /// two; smaller ones than the allocator's own are that.
    #[inline]
    pub fn allocate(&self, size: usize, alignment: usize, is_zeroed: bool, stack: impl CallStack) -> *mut u8 {
        let user = self.note(size, &stack, |note| self.allocate_noted(size, alignment, is_zeroed, note));
        match self.observer() {
            None => {}
            Some(observer) if user.is_null() => observer(&Event::Refused { size }),
            Some(observer) => observer(&Event::Allocated { user, size }),
        }
        user
    }

    #[inline]
    fn allocate_noted(&self, size: usize, alignment: usize, is_zeroed: bool, note: Note<'_>) -> *mut u8 {
        if !self.is_within_limit(size) {
            return self.refuse();
        }
        let Some(place) = self.place(&note, size, alignment) else { return self.refuse() };
        let origin = self.backend.allocate(place.total_bytes, place.asked_alignment, is_zeroed);
        if origin.is_null() {
            return self.refuse();
        }
        // SAFETY: fresh memory of the size that was reckoned for this.
        unsafe {
            let user = user_in(origin, &place);
            self.write(origin, user, size, &place, note, !is_zeroed);
            self.count_allocated(size);
            user
        }
    }

    #[cold]
    fn refuse(&self) -> *mut u8 {
        self.refused.fetch_add(1, Ordering::Relaxed);
        ptr::null_mut()
    }

    /// Gives a block back. What is no block of this heap goes to [`Backend`] as it is, if the backend takes such.
    ///
    /// # Safety
    ///
    /// - `user` is null, or came from this heap, or is something that the backend takes; nobody uses it any more.
    /// - `alignment` is what it was allocated with, or the backend does not care.
    #[inline]
    pub unsafe fn release(&self, user: *mut u8, alignment: usize) {
        if user.is_null() {
            return;
        }
        // SAFETY: by contract.
        unsafe {
            let Some(found) = self.find(user) else { return self.release_foreign(user) };
            if found.state == BlockState::Freed {
                return self.report_freed_twice(user, found.origin);
            }
            self.check_guard(user, &found);
            if let Some(observer) = self.observer() {
                observer(&Event::Freeing { user, size: found.size });
            }
            self.unmark(user, &found);
            self.count_freed(found.size);
            let total = user.offset_from_unsigned(found.origin) + found.size + found.tail_bytes;
            self.backend.release(found.origin, total, alignment.max(self.backend.alignment()));
        }
    }

    /// The same block with another size and `stack` as who asked for it; null and nothing has changed when there is no memory.
    /// Null in `user` allocates. The alignment is kept only as far as it is given here again.
    ///
    /// # Safety
    ///
    /// As for [`release`](Self::release).
    pub unsafe fn resize(
        &self,
        user: *mut u8,
        size: usize,
        alignment: usize,
        stack: impl CallStack,
    ) -> *mut u8 {
        if user.is_null() {
            return self.allocate(size, alignment, false, stack);
        }
        // SAFETY: by contract.
        unsafe {
            let Some(found) = self.find(user) else {
                self.foreign.fetch_add(1, Ordering::Relaxed);
                return self.backend.resize_foreign(user, size);
            };
            if found.state == BlockState::Freed {
                self.report_freed_twice(user, found.origin);
                return ptr::null_mut();
            }
            self.check_guard(user, &found);
            let new = self.note(size, &stack, |note| self.resize_noted(user, &found, size, alignment, note));
            if let Some(observer) = self.observer() {
                if new.is_null() {
                    observer(&Event::Refused { size });
                } else {
                    observer(&Event::Moved { from: user, to: new, size });
                }
            }
            new
        }
    }

    unsafe fn resize_noted(
        &self,
        user: *mut u8,
        found: &Found,
        size: usize,
        alignment: usize,
        note: Note<'_>,
    ) -> *mut u8 {
        if !self.is_within_limit(size.saturating_sub(found.size)) {
            return self.refuse();
        }
        let Some(place) = self.place(&note, size, alignment) else { return self.refuse() };
        // SAFETY: by contract of `resize`.
        unsafe {
            let prefix_bytes = user.offset_from_unsigned(found.origin);
            if found.is_over_aligned || place.is_over_aligned || prefix_bytes != place.prefix_bytes {
                return self.move_noted(user, found, size, alignment, note);
            }
            // The memory below must not say "block" while the allocator may move it: it would remain where it was.
            self.unmark(user, found);
            let total = prefix_bytes + found.size + found.tail_bytes;
            let origin = self.backend.resize(found.origin, total, place.total_bytes);
            if origin.is_null() {
                self.mark_again(user, found);
                return self.refuse();
            }
            let new = user_in(origin, &place);
            self.write(origin, new, size, &place, note, false);
            self.count_freed(found.size);
            self.count_allocated(size);
            new
        }
    }

    /// By hand: what is in front has another length, or the alignment is not the allocator's own.
    #[cold]
    unsafe fn move_noted(
        &self,
        user: *mut u8,
        found: &Found,
        size: usize,
        alignment: usize,
        note: Note<'_>,
    ) -> *mut u8 {
        let new = self.allocate_noted(size, alignment, false, note);
        if !new.is_null() {
            // SAFETY: two blocks of these sizes; the old one is nobody's any more. The observer is told of the move.
            unsafe {
                ptr::copy_nonoverlapping(user, new, size.min(found.size));
                self.unmark(user, found);
                self.count_freed(found.size);
                let total = user.offset_from_unsigned(found.origin) + found.size + found.tail_bytes;
                self.backend.release(found.origin, total, alignment.max(self.backend.alignment()));
            }
        }
        new
    }

    /// The size of a block as the program asked for it; `None` for what is no block of this heap.
    ///
    /// # Safety
    ///
    /// - `user` is not null and came from this heap or is something that the backend takes.
    #[must_use]
    pub unsafe fn size_of(&self, user: *const u8) -> Option<usize> {
        // SAFETY: by contract.
        let found = unsafe { self.find(user.cast_mut()) }?;
        if found.size as u64 >= SIZE_LIMIT {
            // SAFETY: the block's origin.
            let usable = unsafe { self.backend.usable_size(found.origin) }?;
            return usable.checked_sub(user.addr() - found.origin.addr());
        }
        Some(found.size)
    }

    /// What there is and was.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let sum = |counter: fn(&ShardCounters) -> &SwapUsize| {
            self.shards.iter().fold(0_usize, |sum, shard| {
                sum.wrapping_add(counter(&shard.counters).load(Ordering::Relaxed))
            })
        };
        let allocations = sum(|shard| &shard.allocations);
        let load = |counter: &SwapUsize| counter.load(Ordering::Relaxed);
        Counters {
            live_blocks: allocations.wrapping_sub(sum(|shard| &shard.frees)),
            live_bytes: sum(|shard| &shard.live_bytes),
            peak_bytes: sum(|shard| &shard.peak_bytes),
            allocations,
            refused: load(&self.refused),
            foreign: load(&self.foreign),
            freed_twice: load(&self.freed_twice),
            overflowed: load(&self.overflowed),
        }
    }

    /// Calls `visit` with each live block of the lws layout, under the locks: it must not allocate here. The other layouts
    /// have no lists; see [`blocks`](mod@crate::blocks).
    pub fn for_each_live(&self, mut visit: impl FnMut(lws::LiveBlock<'_>)) {
        for shard in 0..SHARDS {
            self.locked(shard, || {
                for list in self.lists.get(shard).into_iter().flatten() {
                    // SAFETY: under the lock.
                    unsafe { lws::live(list.0.get()) }.for_each(&mut visit);
                }
            });
        }
    }

    /// The live blocks of the lws layout, all lists one after the other, without a lock: for [`blocks`](crate::blocks), where
    /// the program can see to it that nothing else runs.
    ///
    /// # Safety
    ///
    /// Nobody allocates, frees or resizes for as long as the iterator or one of its items is used.
    pub unsafe fn live_unlocked(&self) -> impl Iterator<Item = crate::blocks::Block<'_>> + Clone {
        // SAFETY: by contract.
        self.lists.iter().flatten().flat_map(|list| unsafe { lws::live(list.0.get()) }).map(Into::into)
    }

    /// Writes a landmark into this heap's own memory that whoever has an image of it finds: which layout, where the lists are.
    /// `stack_table` is the address of the table that stack numbers refer to, or 0.
    ///
    /// # Safety
    ///
    /// The heap stays where it is, and no other thread calls this at the same moment.
    pub unsafe fn write_anchor(&self, stack_table: usize) {
        let place = self.anchor.0.get();
        let options = self.options();
        let parameter = match options.layout {
            BlockLayout::Lws => self.backend.alignment() as u64,
            BlockLayout::Heapprof => options.callers as u64,
            BlockLayout::Cairn => options.has_guards.into(),
        };
        let has_lists = options.layout == BlockLayout::Lws;
        let anchor = Anchor {
            layout: options.layout,
            own_address: place.addr() as u64,
            parameter,
            lists_address: if has_lists { self.lists.as_ptr().addr() as u64 } else { 0 },
            list_count: if has_lists { 2 * SHARDS as u32 } else { 0 },
            list_stride_bytes: size_of::<List>() as u32,
            stack_table_address: stack_table as u64,
        };
        // SAFETY: by contract. Volatile, because nothing in this program reads it.
        unsafe { place.write_volatile(anchor.to_bytes(ByteOrder::NATIVE)) };
    }

    /// Takes the locks of all lists for the thread `holder`, which goes on to use the heap: before a `fork`, so that no list
    /// is half changed in the child.
    pub fn lock_all(&self, holder: usize) {
        for shard in &self.shards {
            shard.lock.acquire(holder);
        }
        self.all_held_by.store(holder, Ordering::Relaxed);
    }

    /// Gives back what [`lock_all`](Self::lock_all) took: after the `fork`, in both processes.
    pub fn unlock_all(&self) {
        self.all_held_by.store(0, Ordering::Relaxed);
        for shard in &self.shards {
            shard.lock.release();
        }
    }

    #[inline(always)]
    fn observer(&self) -> Option<Observer> {
        let function = self.observer.load(Ordering::Acquire);
        // SAFETY: null becomes `None`; `set_observer` stores functions of this type alone.
        unsafe { mem::transmute::<*mut (), Option<Observer>>(function) }
    }

    #[inline(always)]
    fn shard(&self) -> usize {
        if SHARDS == 1 { 0 } else { self.backend.shard() % SHARDS }
    }

    #[inline(always)]
    fn is_within_limit(&self, size: usize) -> bool {
        let limit = self.limit_bytes.load(Ordering::Relaxed);
        limit == usize::MAX
            || self.counters().live_bytes.checked_add(size).is_some_and(|bytes| bytes <= limit)
    }

    #[inline(always)]
    fn count_allocated(&self, size: usize) {
        let Some(Shard { counters, .. }) = self.shards.get(self.shard()) else { return };
        counters.allocations.fetch_add(1, Ordering::Relaxed);
        let live = counters.live_bytes.fetch_add(size, Ordering::Relaxed).wrapping_add(size);
        // Where other shards freed more, the sum of one is "negative" and no peak.
        if live > counters.peak_bytes.load(Ordering::Relaxed) && live <= isize::MAX as usize {
            counters.peak_bytes.fetch_max(live, Ordering::Relaxed);
        }
    }

    #[inline(always)]
    fn count_freed(&self, size: usize) {
        let Some(Shard { counters, .. }) = self.shards.get(self.shard()) else { return };
        counters.frees.fetch_add(1, Ordering::Relaxed);
        counters.live_bytes.fetch_sub(size, Ordering::Relaxed);
    }

    /// Asks for the stack as the layout needs it, and calls `then` with what goes in front of the block.
    #[inline(always)]
    fn note<R>(&self, size: usize, stack: &impl CallStack, then: impl FnOnce(Note<'_>) -> R) -> R {
        match self.layout() {
            BlockLayout::Cairn => {
                let has_guard = self.settings.has_guards.load(Ordering::Relaxed) != 0;
                if self.settings.is_inline.load(Ordering::Relaxed) == 0 {
                    let reference = stack.reference();
                    if reference != StackReference::None {
                        return then(Note::Cairn { stack: reference, inline: &[], has_guard });
                    }
                }
                self.note_inline(has_guard, stack, then)
            }
            BlockLayout::Lws => self.note_lws(size, stack, then),
            BlockLayout::Heapprof => self.note_heapprof(stack, then),
        }
    }

    /// The addresses that are kept of a stack.
    fn kept<'a>(&self, addresses: &'a [usize], post: bool) -> &'a [usize] {
        let pre = self.settings.pre.load(Ordering::Relaxed) as usize;
        let post = if post { self.settings.post.load(Ordering::Relaxed) as usize } else { 0 };
        let kept = addresses.get(pre..).unwrap_or_default();
        if kept.len() > post { kept.get(..kept.len() - post).unwrap_or_default() } else { kept }
    }

    #[inline(never)]
    fn note_inline<R>(&self, has_guard: bool, stack: &impl CallStack, then: impl FnOnce(Note<'_>) -> R) -> R {
        let mut addresses = [0; INLINE_FRAMES];
        let count = stack.addresses(&mut addresses);
        let mut kept = self.kept(addresses.get(..count).unwrap_or_default(), true);
        let mut bytes = [0; INLINE_BYTES];
        let written = loop {
            let frames =
                kept.iter().map(|address| Frame::ReturnAddress(AbsoluteAddress::new(*address as u64)));
            let mut sink = SliceSink::new(&mut bytes);
            match cbf::encode(frames, WordSize::NATIVE, cbf::CbfDialect::Strict, &mut sink) {
                Ok(()) => break sink.written().len(),
                Err(_) => match kept.split_last() {
                    Some((_, fewer)) => kept = fewer,
                    None => break 0,
                },
            }
        };
        let inline = if kept.is_empty() { &[] } else { bytes.get(..written).unwrap_or_default() };
        match inline_stack::reference(inline) {
            Some(stack) if !inline.is_empty() => then(Note::Cairn { stack, inline, has_guard }),
            _ => then(Note::Cairn { stack: StackReference::None, inline: &[], has_guard }),
        }
    }

    #[inline(never)]
    fn note_lws<R>(&self, size: usize, stack: &impl CallStack, then: impl FnOnce(Note<'_>) -> R) -> R {
        let pre = self.settings.pre.load(Ordering::Relaxed) as usize;
        let post = self.settings.post.load(Ordering::Relaxed) as usize;
        // A backtrace and a size, and the user's bits behind them.
        let mut buffer = [0; lws::BLOB_BYTES + 16];
        let bits = stack.user_bits();
        let known = stack.numbered().and_then(|(number, kept)| Some((Key::new(number, pre, post)?, kept)));
        if let Some((key, kept)) = known
            && let Some(bytes) = kept.blob(key, size, bits, &mut buffer)
        {
            return then(Note::Lws { blob: buffer.get(..bytes).unwrap_or_default() });
        }
        let mut addresses = [0; LWS_FRAMES];
        let count = stack.addresses(&mut addresses);
        let walked = addresses.get(..count).unwrap_or_default();
        // As libwebsockets: without the innermost, without zeros, at most 32, without the outermost.
        let walked = walked.iter().map(|address| AbsoluteAddress::new(*address as u64));
        let mut addresses = [0; format::MAX_DEPTH];
        let count = addresses
            .iter_mut()
            .zip(format::trim(walked, pre, post))
            .map(|(place, address)| *place = address.value() as usize)
            .count();
        let addresses = addresses.get(..count).unwrap_or_default();
        let bytes = match lws::encode(addresses, size, bits.fields(), &mut buffer) {
            Ok((bytes, backtrace_bits)) => {
                if let Some((key, kept)) = known {
                    kept.keep(key, &buffer, backtrace_bits as u32);
                }
                bytes
            }
            // Where an address cannot be written, the size still can, without which the block cannot be moved.
            Err(_) => lws::encode(&[], size, bits.fields(), &mut buffer).map_or(0, |(bytes, _)| bytes),
        };
        let blob = buffer.get(..bytes).filter(|blob| !blob.is_empty()).unwrap_or(&format::GIVE_UP_BLOB);
        then(Note::Lws { blob })
    }

    #[inline(never)]
    fn note_heapprof<R>(&self, stack: &impl CallStack, then: impl FnOnce(Note<'_>) -> R) -> R {
        let callers = self.settings.callers.load(Ordering::Relaxed) as usize;
        let pre = self.settings.pre.load(Ordering::Relaxed) as usize;
        let mut addresses = [0; MAX_CALLERS + 8];
        let wanted = addresses.len().min(callers + pre);
        let count = addresses.get_mut(..wanted).map_or(0, |places| stack.addresses(places));
        let kept = self.kept(addresses.get(..count).unwrap_or_default(), false);
        let addresses = kept.get(..callers).unwrap_or(kept);
        then(Note::Heapprof { addresses, callers })
    }

    #[inline(always)]
    fn place(&self, note: &Note<'_>, size: usize, alignment: usize) -> Option<Place> {
        let natural = self.backend.alignment();
        let is_over_aligned = alignment > natural;
        let own_bytes = note.own_bytes();
        let tail_bytes = note.tail_bytes(size);
        if !is_over_aligned {
            let prefix_bytes = own_bytes.next_multiple_of(natural);
            let total_bytes = prefix_bytes.checked_add(size)?.checked_add(tail_bytes)?;
            let place = Place {
                prefix_bytes,
                own_bytes,
                alignment: natural,
                is_over_aligned,
                total_bytes,
                asked_alignment: natural,
            };
            return (total_bytes <= isize::MAX as usize).then_some(place);
        }
        self.place_over_aligned(note, size, tail_bytes, alignment)
    }

    #[cold]
    fn place_over_aligned(
        &self,
        note: &Note<'_>,
        size: usize,
        tail_bytes: usize,
        alignment: usize,
    ) -> Option<Place> {
        if alignment.trailing_zeros() > MAX_ALIGNMENT_LOG2 || !alignment.is_power_of_two() {
            return None;
        }
        let has_own_word = matches!(note, Note::Heapprof { .. });
        let own_bytes = note.own_bytes();
        let needed = own_bytes + if has_own_word { 0 } else { WORD_BYTES };
        let prefix_bytes = needed.checked_next_multiple_of(alignment)?;
        let mut total_bytes = prefix_bytes.checked_add(size)?.checked_add(tail_bytes)?;
        let mut asked_alignment = alignment;
        if !self.backend.can_align() {
            asked_alignment = self.backend.alignment();
            total_bytes = total_bytes.checked_add(alignment - asked_alignment)?;
        }
        let place =
            Place { prefix_bytes, own_bytes, alignment, is_over_aligned: true, total_bytes, asked_alignment };
        (total_bytes <= isize::MAX as usize).then_some(place)
    }

    /// Writes everything around a new block.
    ///
    /// # Safety
    ///
    /// The memory from `origin` on has the size that `place` says, `user` is where it says, and `is_fresh` only if nobody
    /// has written to it yet.
    #[inline(always)]
    unsafe fn write(
        &self,
        origin: *mut u8,
        user: *mut u8,
        size: usize,
        place: &Place,
        note: Note<'_>,
        is_fresh: bool,
    ) {
        // SAFETY: by contract; the prefix has room for all of it, in whole words.
        unsafe {
            match note {
                Note::Cairn { stack, inline, .. } => {
                    if !inline.is_empty() {
                        let place = user.sub(HEADER_BYTES + inline.len());
                        ptr::copy_nonoverlapping(inline.as_ptr(), place, inline.len());
                    }
                    let tail_bytes = note.tail_bytes(size);
                    let alignment = place.alignment.trailing_zeros();
                    let header = Header::new(size as u64, stack, alignment, tail_bytes > 0);
                    if tail_bytes > 0 {
                        write_guard(user, size, is_fresh);
                    }
                    if place.is_over_aligned {
                        user.sub(place.own_bytes + WORD_BYTES).cast::<*mut u8>().write(origin);
                    }
                    if let Some(header) = header {
                        user.cast::<[u32; 4]>().sub(1).write(header.to_words(user.addr() as u64));
                    }
                }
                Note::Lws { blob } => {
                    lws::write_before(user, blob);
                    if place.is_over_aligned {
                        user.sub(place.own_bytes + WORD_BYTES).cast::<*mut u8>().write(origin);
                    }
                    self.link(user, self.shard(), place.is_over_aligned.into());
                }
                Note::Heapprof { addresses, callers } => {
                    let start = user.sub(heapprof_bytes(callers)).cast::<usize>();
                    start.sub(1).cast::<*mut u8>().write(origin);
                    start.add(1).write(size);
                    for index in 0..callers {
                        start.add(2 + index).write(addresses.get(index).copied().unwrap_or(0));
                    }
                    start.add(2 + callers).write_volatile(HEAPPROF_END);
                    start.write_volatile(HEAPPROF_START);
                }
            }
        }
    }

    unsafe fn link(&self, user: *mut u8, shard: usize, list: usize) {
        let Some(place) = self.lists.get(shard).and_then(|lists| lists.get(list)) else { return };
        // SAFETY: under the lock; the node is in the prefix.
        self.locked(shard, || unsafe { lws::link(place.0.get(), lws::node_of(user)) });
    }

    /// Runs `change` with the lists of a shard to itself.
    #[inline]
    fn locked<R>(&self, shard: usize, change: impl FnOnce() -> R) -> R {
        if let Some(critical) = self.critical {
            let state = (critical.enter)();
            let result = change();
            (critical.leave)(state);
            return result;
        }
        if HAS_CRITICAL_SECTION {
            return in_critical_section(change);
        }
        let Some(Shard { lock, .. }) = self.shards.get(shard) else { return change() };
        // Threads differ in where their stacks are.
        let holder = self.backend.thread();
        if self.all_held_by.load(Ordering::Relaxed) == holder && lock.is_held_by(holder) {
            return change();
        }
        lock.acquire(holder);
        let result = change();
        lock.release();
        result
    }

    /// The block whose user address this is, if it is one of this heap.
    ///
    /// # Safety
    ///
    /// As for [`release`](Self::release).
    #[inline(always)]
    unsafe fn find(&self, user: *mut u8) -> Option<Found> {
        // SAFETY: by contract; what is not ours may begin right at a page.
        unsafe {
            if !user.addr().is_multiple_of(WORD_BYTES) || !self.may_read_before(user) {
                return None;
            }
            match self.layout() {
                BlockLayout::Cairn => self.find_cairn(user),
                BlockLayout::Lws => self.find_lws(user),
                BlockLayout::Heapprof => self.find_heapprof(user),
            }
        }
    }

    #[inline(always)]
    fn may_read_before(&self, user: *const u8) -> bool {
        /// No page is smaller.
        const PAGE_BYTES: usize = 4096;
        user.addr() % PAGE_BYTES >= HEADER_BYTES || self.backend.may_read_before(user)
    }

    #[inline(always)]
    unsafe fn find_cairn(&self, user: *mut u8) -> Option<Found> {
        // SAFETY: by contract of `find` these may be read.
        let words = unsafe { user.cast::<[u32; 4]>().sub(1).read() };
        let (header, state) = Header::from_words(words, user.addr() as u64).ok()?;
        let natural = self.backend.alignment().trailing_zeros();
        let is_over_aligned = header.alignment_log2() > natural;
        let own_bytes = (HEADER_BYTES + header.stack().inline_bytes() as usize).next_multiple_of(WORD_BYTES);
        let origin = if is_over_aligned {
            // SAFETY: the header is ours, so the word is there.
            unsafe { user.sub(own_bytes + WORD_BYTES).cast::<*mut u8>().read() }
        } else {
            user.wrapping_sub(own_bytes.next_multiple_of(1 << natural))
        };
        Some(Found {
            origin,
            size: header.size_bytes() as usize,
            tail_bytes: header.guard_bytes() as usize,
            state,
            is_over_aligned,
            mark: Mark::Cairn(words[3]),
        })
    }

    unsafe fn find_lws(&self, user: *mut u8) -> Option<Found> {
        // SAFETY: by contract of `find` the word may be read.
        let owner = unsafe { lws::owner_of(user) };
        // In front of what is not ours stands anything, but not the address of one of our lists.
        let distance = owner.addr().checked_sub(self.lists.as_ptr().addr())?;
        let index = distance / size_of::<List>();
        if distance % size_of::<List>() != 0 || index >= 2 * SHARDS {
            return None;
        }
        let (shard, list) = (index / 2, index % 2);
        // SAFETY: a node on our list, in a block of ours.
        unsafe {
            let blob_bytes = lws::blob_before(lws::node_of(user)).len();
            let own_bytes = blob_bytes.next_multiple_of(WORD_BYTES) + 3 * WORD_BYTES;
            let origin = if list == 1 {
                user.sub(own_bytes + WORD_BYTES).cast::<*mut u8>().read()
            } else {
                user.sub(own_bytes.next_multiple_of(self.backend.alignment()))
            };
            Some(Found {
                origin,
                size: lws::size_of_block(user),
                tail_bytes: 0,
                state: BlockState::Live,
                is_over_aligned: list == 1,
                mark: Mark::Lws { shard, list },
            })
        }
    }

    unsafe fn find_heapprof(&self, user: *mut u8) -> Option<Found> {
        let callers = self.settings.callers.load(Ordering::Relaxed) as usize;
        let bytes = heapprof_bytes(callers);
        let start = user.wrapping_sub(bytes).cast::<usize>();
        let end = start.wrapping_add(2 + callers);
        // SAFETY: the end magic is in the last 8 bytes, which may be read by contract of `find`; where it stands, the rest is
        // there as well.
        unsafe {
            if end.read() != HEAPPROF_END || start.read() != HEAPPROF_START {
                return None;
            }
            let origin = start.sub(1).cast::<*mut u8>().read();
            let prefix_bytes = user.addr().checked_sub(origin.addr())?;
            let own_bytes = bytes + WORD_BYTES;
            let natural = self.backend.alignment();
            let is_over_aligned = prefix_bytes != own_bytes.next_multiple_of(natural);
            Some(Found {
                origin,
                size: start.add(1).read(),
                tail_bytes: 0,
                state: BlockState::Live,
                is_over_aligned,
                mark: Mark::Heapprof { start },
            })
        }
    }

    /// Takes from the memory in front of a block what says that it is one.
    #[inline(always)]
    unsafe fn unmark(&self, user: *mut u8, found: &Found) {
        // SAFETY: what `find` found.
        unsafe {
            match found.mark {
                Mark::Cairn(word) => user.cast::<u32>().sub(1).write_volatile(Header::freed(word)),
                Mark::Lws { shard, list } => {
                    let Some(place) = self.lists.get(shard).and_then(|lists| lists.get(list)) else { return };
                    self.locked(shard, || lws::unlink(place.0.get(), lws::node_of(user)));
                }
                Mark::Heapprof { start } => {
                    let callers = self.settings.callers.load(Ordering::Relaxed) as usize;
                    start.write_volatile(0);
                    start.add(2 + callers).write_volatile(0);
                }
            }
        }
    }

    /// Undoes [`unmark`](Self::unmark).
    #[cold]
    unsafe fn mark_again(&self, user: *mut u8, found: &Found) {
        // SAFETY: what `find` found.
        unsafe {
            match found.mark {
                Mark::Cairn(word) => user.cast::<u32>().sub(1).write_volatile(word),
                Mark::Lws { shard, list } => self.link(user, shard, list),
                Mark::Heapprof { start } => {
                    let callers = self.settings.callers.load(Ordering::Relaxed) as usize;
                    start.add(2 + callers).write_volatile(HEAPPROF_END);
                    start.write_volatile(HEAPPROF_START);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn check_guard(&self, user: *mut u8, found: &Found) {
        // SAFETY: the guard of a live block.
        if found.tail_bytes > 0 && !unsafe { is_guard_whole(user, found.size) } {
            // SAFETY: as above.
            unsafe { self.report_overflow(user, found) };
        }
    }

    #[cold]
    unsafe fn report_overflow(&self, user: *mut u8, found: &Found) {
        self.overflowed.fetch_add(1, Ordering::Relaxed);
        let mut tail = [0; 8];
        let tail = tail.get_mut(..found.tail_bytes).unwrap_or_default();
        // SAFETY: the guard of a live block.
        unsafe { ptr::copy_nonoverlapping(user.add(found.size), tail.as_mut_ptr(), tail.len()) };
        let bytes = guard::damaged_bytes(found.size as u64, tail);
        if let Some(observer) = self.observer() {
            observer(&Event::Overflowed { user, size: found.size, bytes });
        }
    }

    #[cold]
    unsafe fn report_freed_twice(&self, user: *mut u8, origin: *mut u8) {
        self.freed_twice.fetch_add(1, Ordering::Relaxed);
        if let Some(observer) = self.observer() {
            observer(&Event::FreedTwice { user });
        }
        // SAFETY: by contract of `release`.
        unsafe { self.backend.freed_twice(origin) };
    }

    #[cold]
    unsafe fn release_foreign(&self, user: *mut u8) {
        self.foreign.fetch_add(1, Ordering::Relaxed);
        // SAFETY: by contract of `release`.
        unsafe { self.backend.release_foreign(user) };
    }
}

/// Where the user's bytes begin.
#[inline(always)]
unsafe fn user_in(origin: *mut u8, place: &Place) -> *mut u8 {
    // SAFETY: the prefix, and what was asked for beyond it, are inside of the memory.
    unsafe {
        let user = origin.add(place.prefix_bytes);
        if place.is_over_aligned {
            // An allocator that does not align gave more: the next multiple is inside.
            let beyond = user.addr() % place.alignment;
            if beyond != 0 { user.add(place.alignment - beyond) } else { user }
        } else {
            user
        }
    }
}

/// The last bytes of the user's and the guard, as one word.
#[inline(always)]
unsafe fn last_word(user: *mut u8, size: usize) -> *mut u64 {
    // SAFETY: by contract of the callers: inside of the block.
    unsafe { user.add(size & !7).cast() }
}

/// # Safety
///
/// A block of that size with a guard; `is_fresh` when the user's bytes hold nothing yet.
#[inline(always)]
unsafe fn write_guard(user: *mut u8, size: usize, is_fresh: bool) {
    // SAFETY: by contract.
    unsafe {
        if is_fresh {
            last_word(user, size).write_unaligned(u64::from_ne_bytes(guard::PATTERN));
        } else {
            for (index, byte) in guard::pattern(size as u64).enumerate() {
                user.add(size + index).write(byte);
            }
        }
    }
}

/// # Safety
///
/// A block of that size with a guard.
#[inline(always)]
unsafe fn is_guard_whole(user: *mut u8, size: usize) -> bool {
    // SAFETY: by contract.
    let word = unsafe { last_word(user, size).read_unaligned() };
    let different = u64::from_le(word ^ u64::from_ne_bytes(guard::PATTERN));
    different >> (8 * (size & 7)) == 0
}
