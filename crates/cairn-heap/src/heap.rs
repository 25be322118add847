//! The heap: writes an annotation in front of each block of an underlying allocator.
//!
//! ```text
//!   allocate: take the stack -> size of the prefix -> memory -> write the prefix -> count -> observe
//!   release:  find the block -> check its guard -> observe -> mark it as free -> count -> release the memory
//! ```
//!
//! The words in front of a block identify it, without a table: so an allocation costs its stack and
//! a few stores, and threads share nothing. Only the lws layout has lists, one for each shard, each
//! with a lock.
//!
//! Blocks of a larger alignment than the allocator's own have one word more, below everything else:
//! the address of the underlying allocation. The alignment in the header (cairn) or the list (lws)
//! states that there is one; heapprof always has one.
//!
//! Long because allocation, release and resizing of all layouts share the private steps of one
//! heap: they place, write, check and count a block by the same plan.

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
use crate::compressed::BacktraceKey;
use crate::lock::{Critical, HAS_CRITICAL_SECTION, Lock, in_critical_section};
use crate::lws::{self, Owner};
use crate::stack::CallStack;

const WORD_BYTES: usize = size_of::<usize>();
/// Maximum frames of an inline stack.
const INLINE_FRAMES: usize = 32;
/// Maximum bytes of an inline stack: 32 addresses of 9 bytes and an end.
const INLINE_BYTES: usize = 296;
/// Frames that the lws layout requests: those that it stores, and those left out at the inner end.
const LWS_FRAMES: usize = 64;

/// Options of the annotation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Layout of the annotation. It must not change once there are blocks.
    pub layout: BlockLayout,
    /// heapprof: number of callers, at most [`MAX_CALLERS`]. It must not change either.
    pub callers: usize,
    /// Number of innermost frames to leave out.
    pub pre: usize,
    /// Number of outermost frames to leave out, such as the loader's.
    pub post: usize,
    /// cairn: true for a guard behind each block.
    pub has_guards: bool,
    /// cairn: true to store addresses inline even if stacks have numbers.
    pub is_inline: bool,
}

impl Options {
    /// Returns the default options of a layout: 16 callers, all frames, guards.
    #[must_use]
    pub const fn new(layout: BlockLayout) -> Self {
        Self { layout, callers: 16, pre: 0, post: 0, has_guards: true, is_inline: false }
    }
}

/// The options as atomics; `pre` and `post` may change at any time.
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

/// Event of a block, for an [`Observer`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Event {
    /// It was allocated. The observer runs before the program has it.
    Allocated {
        /// The user's address.
        user: *mut u8,
        /// The user's size.
        size: usize,
    },
    /// It is about to be freed; its contents are unchanged.
    Freeing {
        /// The user's address.
        user: *mut u8,
        /// The user's size.
        size: usize,
    },
    /// It was resized, and usually moved.
    Moved {
        /// The address before.
        from: *mut u8,
        /// The user's address.
        to: *mut u8,
        /// The user's size.
        size: usize,
    },
    /// An allocation failed for want of memory, or for the limit.
    Refused {
        /// The requested size.
        size: usize,
    },
    /// Its guard was overwritten. Noticed when it is freed or resized.
    Overflowed {
        /// The user's address.
        user: *mut u8,
        /// The user's size.
        size: usize,
        /// Bytes from the start of the guard to its last wrong byte.
        bytes: usize,
    },
    /// It was freed before. It is not released again.
    FreedTwice {
        /// The user's address.
        user: *mut u8,
    },
}

/// Function that is called for each event, in its thread. It may allocate and free from the same
/// heap, is called for that as well, and has to end such a recursion itself.
pub type Observer = fn(&Event);

/// Counters of a heap.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct Counters {
    /// Blocks in use.
    pub live_blocks: usize,
    /// Bytes in use, by requested sizes.
    pub live_bytes: usize,
    /// Peak of bytes in use; exact with one shard, else an upper bound.
    pub peak_bytes: usize,
    /// Blocks allocated since the start.
    pub allocations: usize,
    /// Requests that were refused.
    pub refused: usize,
    /// Frees of addresses that are no blocks of this heap.
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

/// A list of blocks, in half a cache line of its own if there are caches.
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
    /// The thread that holds all locks: see [`lock_all`](Self::lock_all).
    all_held_by: AtomicUsize,
    shards: [Shard; SHARDS],
    /// For each shard a list of usual blocks, and one of over-aligned ones.
    lists: [[List; 2]; SHARDS],
    anchor: AnchorPlace,
}

#[repr(C, align(8))]
struct AnchorPlace(UnsafeCell<[u8; ANCHOR_BYTES]>);

// SAFETY: the lists are changed under their locks, and `write_anchor` may not be called by two
// threads at once. All other fields are atomic.
unsafe impl<B: Sync, const SHARDS: usize> Sync for Heap<B, SHARDS> {}

/// Contents of an annotation, before its address is known.
#[derive(Clone, Copy)]
enum Note<'a> {
    Cairn { stack: StackReference, inline: &'a [u8], has_guard: bool },
    Lws { blob: &'a [u8] },
    Heapprof { addresses: &'a [usize], callers: usize },
}

impl Note<'_> {
    /// Returns its bytes in whole words, without the word for an over-aligned block's origin.
    #[inline(always)]
    const fn own_bytes(&self) -> usize {
        match self {
            Self::Cairn { inline, .. } => (HEADER_BYTES + inline.len()).next_multiple_of(WORD_BYTES),
            Self::Lws { blob } => blob.len().next_multiple_of(WORD_BYTES) + 3 * WORD_BYTES,
            Self::Heapprof { callers, .. } => heapprof_bytes(*callers) + WORD_BYTES,
        }
    }

    /// Returns the bytes behind the user's.
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

/// Returns the bytes from the start magic to the user's data.
const fn heapprof_bytes(callers: usize) -> usize {
    ((callers + 3) * WORD_BYTES).next_multiple_of(8)
}

const HEAPPROF_START: usize = 0x5061_6548;
const HEAPPROF_END: usize = 0x466f_7250;

/// Sizes and alignments of a new block.
#[derive(Clone, Copy)]
struct BlockPlan {
    prefix_bytes: usize,
    own_bytes: usize,
    /// Alignment of the user's address.
    alignment: usize,
    is_over_aligned: bool,
    /// Size of the request to the backend.
    total_bytes: usize,
    asked_alignment: usize,
}

/// A block of this heap.
#[derive(Clone, Copy)]
struct Found {
    origin: *mut u8,
    size: usize,
    tail_bytes: usize,
    state: BlockState,
    is_over_aligned: bool,
    mark: Mark,
}

/// The words that mark a block as one of this heap.
#[derive(Clone, Copy)]
enum Mark {
    /// Word 3 of the header.
    Cairn(u32),
    /// The list.
    Lws { shard: usize, list: usize },
    /// Address of the start magic.
    Heapprof { start: *mut usize },
}

impl<B: Backend, const SHARDS: usize> Heap<B, SHARDS> {
    /// Returns a heap with memory from `backend`. Can initialise a static.
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

    /// Sets functions that are called around changes of the lists, in place of a spin lock.
    #[must_use]
    pub const fn with_critical(mut self, critical: Critical) -> Self {
        self.critical = Some(critical);
        self
    }

    /// Sets the options: all of them before the first block, `pre` and `post` at any time.
    pub fn configure(&self, options: Options) {
        let set = |place: &AtomicU32, value| place.store(value, Ordering::Relaxed);
        set(&self.settings.layout, options.layout as u32);
        set(&self.settings.callers, callers(options.callers));
        set(&self.settings.pre, options.pre as u32);
        set(&self.settings.post, options.post as u32);
        set(&self.settings.has_guards, options.has_guards.into());
        set(&self.settings.is_inline, options.is_inline.into());
    }

    /// Returns the present options.
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

    /// Limits the bytes in use to `bytes`. Threads that allocate at the same moment may exceed it
    /// by the size of their requests.
    pub fn set_limit(&self, bytes: usize) {
        self.limit_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Calls `observer` for all events from now on.
    pub fn set_observer(&self, observer: Option<Observer>) {
        let function = observer.map_or(ptr::null_mut(), |observer| observer as *mut ());
        self.observer.store(function, Ordering::Release);
    }

    /// Returns the underlying allocator.
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

    /// Allocates a block of `size` bytes with `stack` in its annotation; null when there is no
    /// memory. `alignment` is a power of two; the allocator's own is the least.
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
        // SAFETY: the backend has just returned memory of `total_bytes`, which cover prefix, block
        // and guard.
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

    /// Frees a block. An address that is no block of this heap is passed to the [`Backend`].
    ///
    /// # Safety
    ///
    /// - `user` is null, or a block of this heap, or an address that the backend takes; nobody uses
    ///   it any more.
    /// - `alignment` is that of its allocation, unless the backend ignores it.
    #[inline]
    pub unsafe fn release(&self, user: *mut u8, alignment: usize) {
        if user.is_null() {
            return;
        }
        // SAFETY: the caller promises that `user` is null, or came from this heap, or is something
        // that the backend takes; nobody uses it any more; `alignment` is what it was allocated
        // with, or the backend does not care.
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

    /// Resizes a block, and writes `stack` into its annotation. On failure, returns null and
    /// changes nothing. Allocates for a null `user`. The block has the alignment that is passed
    /// here.
    ///
    /// # Safety
    ///
    /// `user` is null, or a block of this heap, or an address that the backend takes; nobody else
    /// uses it.
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
        // SAFETY: the caller promises null, a block of this heap, or an address that the backend
        // takes.
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

    /// # Safety
    ///
    /// `found` is what `find` returned for `user`, and the block has not changed since.
    /// Nobody else uses the block.
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
        // SAFETY: the caller promises a block that `find` found and that nobody else uses.
        unsafe {
            let prefix_bytes = user.offset_from_unsigned(found.origin);
            if found.is_over_aligned || place.is_over_aligned || prefix_bytes != place.prefix_bytes {
                return self.move_noted(user, found, size, alignment, note);
            }
            // The annotation must be unmarked while the backend may move the memory: a stale copy
            // would look like a block.
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

    /// Moves a block whose prefix changes its length, or whose alignment is not the backend's own.
    ///
    /// # Safety
    ///
    /// `found` is what `find` returned for `user`, and the block has not changed since.
    /// Nobody else uses the block.
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
            // SAFETY: two blocks of these sizes; the old one is nobody's any more. The observer is
            // called for the move.
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

    /// Returns the requested size of a block; `None` for an address that is no block of this heap.
    ///
    /// # Safety
    ///
    /// - `user` is a block of this heap, or an address that the backend takes.
    #[must_use]
    pub unsafe fn size_of(&self, user: *const u8) -> Option<usize> {
        // SAFETY: the caller promises that `user` is not null and came from this heap or is
        // something that the backend takes.
        let found = unsafe { self.find(user.cast_mut()) }?;
        if found.size as u64 >= SIZE_LIMIT {
            // SAFETY: the block's origin.
            let usable = unsafe { self.backend.usable_size(found.origin) }?;
            return usable.checked_sub(user.addr() - found.origin.addr());
        }
        Some(found.size)
    }

    /// Returns the counters.
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

    /// Calls `visit` with each live block of the lws layout, under the locks. `visit` must not
    /// allocate from this heap. The other layouts have no lists; see [`blocks`](mod@crate::blocks).
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

    /// Returns the live blocks of the lws layout, all lists one after the other, without a lock. It
    /// serves [`blocks`](crate::blocks), if the program can make sure that nothing else runs.
    ///
    /// # Safety
    ///
    /// No thread allocates, frees or resizes while the iterator or one of its items is used.
    pub unsafe fn live_unlocked(&self) -> impl Iterator<Item = crate::blocks::Block<'_>> + Clone {
        // SAFETY: the caller promises that nobody allocates, frees or resizes for as long as the
        // iterator or one of its items is used.
        self.lists.iter().flatten().flat_map(|list| unsafe { lws::live(list.0.get()) }).map(Into::into)
    }

    /// Writes an anchor into this heap's own memory. It leads readers of a memory image to the
    /// layout and the lists. `stack_table` is the address of the table that stack numbers refer to,
    /// or 0.
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

    /// Takes the locks of all lists for the thread `holder`, which may continue to use the heap.
    /// Call it before a `fork`, so that no list is half changed in the child.
    pub fn lock_all(&self, holder: usize) {
        for shard in &self.shards {
            shard.lock.acquire(holder);
        }
        self.all_held_by.store(holder, Ordering::Relaxed);
    }

    /// Releases the locks of [`lock_all`](Self::lock_all). Call it after the `fork`, in both
    /// processes.
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
        // A shard that freed blocks of others has a negative sum, which is no peak.
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

    /// Takes the stack in the form that the layout needs, and calls `then` with the annotation.
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

    /// Selects the addresses of a stack by `pre` and `post`.
    fn selected<'a>(&self, addresses: &'a [usize], post: bool) -> &'a [usize] {
        let pre = self.settings.pre.load(Ordering::Relaxed) as usize;
        let post = if post { self.settings.post.load(Ordering::Relaxed) as usize } else { 0 };
        let selected = addresses.get(pre..).unwrap_or_default();
        if selected.len() > post {
            selected.get(..selected.len() - post).unwrap_or_default()
        } else {
            selected
        }
    }

    #[inline(never)]
    fn note_inline<R>(&self, has_guard: bool, stack: &impl CallStack, then: impl FnOnce(Note<'_>) -> R) -> R {
        let mut addresses = [0; INLINE_FRAMES];
        let count = stack.addresses(&mut addresses);
        let mut selected = self.selected(addresses.get(..count).unwrap_or_default(), true);
        let mut bytes = [0; INLINE_BYTES];
        let written = loop {
            let frames =
                selected.iter().map(|address| Frame::ReturnAddress(AbsoluteAddress::new(*address as u64)));
            let mut sink = SliceSink::new(&mut bytes);
            match cbf::encode(frames, WordSize::NATIVE, cbf::CbfDialect::Strict, &mut sink) {
                Ok(()) => break sink.written().len(),
                Err(_) => match selected.split_last() {
                    Some((_, fewer)) => selected = fewer,
                    None => break 0,
                },
            }
        };
        let inline = if selected.is_empty() { &[] } else { bytes.get(..written).unwrap_or_default() };
        match inline_stack::reference(inline) {
            Some(stack) if !inline.is_empty() => then(Note::Cairn { stack, inline, has_guard }),
            _ => then(Note::Cairn { stack: StackReference::None, inline: &[], has_guard }),
        }
    }

    #[inline(never)]
    fn note_lws<R>(&self, size: usize, stack: &impl CallStack, then: impl FnOnce(Note<'_>) -> R) -> R {
        let pre = self.settings.pre.load(Ordering::Relaxed) as usize;
        let post = self.settings.post.load(Ordering::Relaxed) as usize;
        // Room for backtrace, size and the user's bits.
        let mut buffer = [0; lws::BLOB_BYTES + 16];
        let bits = stack.user_bits();
        let known =
            stack.numbered().and_then(|(number, cache)| Some((BacktraceKey::new(number, pre, post)?, cache)));
        if let Some((key, cache)) = known
            && let Some(bytes) = cache.blob(key, size, bits, &mut buffer)
        {
            return then(Note::Lws { blob: buffer.get(..bytes).unwrap_or_default() });
        }
        let mut addresses = [0; LWS_FRAMES];
        let count = stack.addresses(&mut addresses);
        let walked = addresses.get(..count).unwrap_or_default();
        // As libwebsockets does: skips the innermost frames and zeros, takes at most 32, drops the
        // outermost ones.
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
                if let Some((key, cache)) = known {
                    cache.store(key, &buffer, backtrace_bits as u32);
                }
                bytes
            }
            // The size can be written even if an address cannot; without it the block could not be
            // moved.
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
        let selected = self.selected(addresses.get(..count).unwrap_or_default(), false);
        let addresses = selected.get(..callers).unwrap_or(selected);
        then(Note::Heapprof { addresses, callers })
    }

    #[inline(always)]
    fn place(&self, note: &Note<'_>, size: usize, alignment: usize) -> Option<BlockPlan> {
        let natural = self.backend.alignment();
        let is_over_aligned = alignment > natural;
        let own_bytes = note.own_bytes();
        let tail_bytes = note.tail_bytes(size);
        if !is_over_aligned {
            let prefix_bytes = own_bytes.next_multiple_of(natural);
            let total_bytes = prefix_bytes.checked_add(size)?.checked_add(tail_bytes)?;
            let place = BlockPlan {
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
    ) -> Option<BlockPlan> {
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
        let place = BlockPlan {
            prefix_bytes,
            own_bytes,
            alignment,
            is_over_aligned: true,
            total_bytes,
            asked_alignment,
        };
        (total_bytes <= isize::MAX as usize).then_some(place)
    }

    /// Writes the annotation of a new block.
    ///
    /// # Safety
    ///
    /// The memory from `origin` on has the size that `place` says, `user` is where it says, and
    /// `is_fresh` only if nobody has written to it yet.
    #[inline(always)]
    unsafe fn write(
        &self,
        origin: *mut u8,
        user: *mut u8,
        size: usize,
        place: &BlockPlan,
        note: Note<'_>,
        is_fresh: bool,
    ) {
        // SAFETY: the caller promises that the memory from `origin` on has the size that `place`
        // says, `user` is where it says, and `is_fresh` only if nobody has written to it yet; the
        // prefix has room for all of it, in whole words.
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

    /// # Safety
    ///
    /// `user` is a block of this heap with a node in front of it that is on no list.
    unsafe fn link(&self, user: *mut u8, shard: usize, list: usize) {
        let Some(place) = self.lists.get(shard).and_then(|lists| lists.get(list)) else { return };
        // SAFETY: under the lock; the node is in the prefix.
        self.locked(shard, || unsafe { lws::link(place.0.get(), lws::node_of(user)) });
    }

    /// Runs `change` with exclusive access to the lists of a shard.
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
        // A number that differs between threads.
        let holder = self.backend.thread();
        if self.all_held_by.load(Ordering::Relaxed) == holder && lock.is_held_by(holder) {
            return change();
        }
        lock.acquire(holder);
        let result = change();
        lock.release();
        result
    }

    /// Finds the block with this user address, if it is one of this heap.
    ///
    /// # Safety
    ///
    /// `user` is null, a block of this heap, or an address that the backend takes.
    #[inline(always)]
    unsafe fn find(&self, user: *mut u8) -> Option<Found> {
        // SAFETY: the caller promises null, a block of this heap, or an address that the backend
        // takes; what is not ours may begin right at a page.
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
        /// Smallest page size of all systems.
        const PAGE_BYTES: usize = 4096;
        user.addr() % PAGE_BYTES >= HEADER_BYTES || self.backend.may_read_before(user)
    }

    /// # Safety
    ///
    /// The 16 bytes in front of `user` may be read.
    #[inline(always)]
    unsafe fn find_cairn(&self, user: *mut u8) -> Option<Found> {
        // SAFETY: the caller promises that these bytes may be read; blocks are aligned to words.
        let words = unsafe { user.cast::<[u32; 4]>().sub(1).read() };
        let (header, state) = Header::from_words(words, user.addr() as u64).ok()?;
        let natural = self.backend.alignment().trailing_zeros();
        let is_over_aligned = header.alignment_log2() > natural;
        let own_bytes = (HEADER_BYTES + header.stack().inline_bytes() as usize).next_multiple_of(WORD_BYTES);
        let origin = if is_over_aligned {
            // SAFETY: the header's checksum depends on its address, so it is a block's, which has
            // this word.
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

    /// # Safety
    ///
    /// The word in front of `user` may be read.
    unsafe fn find_lws(&self, user: *mut u8) -> Option<Found> {
        // SAFETY: the caller promises that the word may be read.
        let owner = unsafe { lws::owner_of(user) };
        // The word in front of foreign memory may be anything except the address of one of this
        // heap's lists.
        let distance = owner.addr().checked_sub(self.lists.as_ptr().addr())?;
        let index = distance / size_of::<List>();
        if distance % size_of::<List>() != 0 || index >= 2 * SHARDS {
            return None;
        }
        let (shard, list) = (index / 2, index % 2);
        // SAFETY: the word is the address of a list of this heap, which only blocks of this heap
        // hold.
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

    /// # Safety
    ///
    /// The 8 bytes in front of `user` may be read.
    unsafe fn find_heapprof(&self, user: *mut u8) -> Option<Found> {
        let callers = self.settings.callers.load(Ordering::Relaxed) as usize;
        let bytes = heapprof_bytes(callers);
        let start = user.wrapping_sub(bytes).cast::<usize>();
        let end = start.wrapping_add(2 + callers);
        // SAFETY: the end magic is in the 8 bytes that the caller promises to be readable; a block
        // with this magic has the other words as well.
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

    /// Removes the mark of a block, so that it is not found any more.
    ///
    /// # Safety
    ///
    /// `found` is what `find` returned for `user`, and the block has not changed since.
    #[inline(always)]
    unsafe fn unmark(&self, user: *mut u8, found: &Found) {
        // SAFETY: the caller promises the result of `find` for this block, whose words are where
        // that states.
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

    /// Restores the mark that [`unmark`](Self::unmark) removed.
    ///
    /// # Safety
    ///
    /// `found` is what `find` returned for `user`, and the block has not changed since.
    #[cold]
    unsafe fn mark_again(&self, user: *mut u8, found: &Found) {
        // SAFETY: the caller promises the result of `find` for this block, whose words are where
        // that states.
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

    /// # Safety
    ///
    /// `found` is what `find` returned for `user`, and the block has not changed since.
    #[inline(always)]
    unsafe fn check_guard(&self, user: *mut u8, found: &Found) {
        // SAFETY: the caller promises a block of this size with a guard of `tail_bytes`.
        if found.tail_bytes > 0 && !unsafe { is_guard_whole(user, found.size) } {
            // SAFETY: the caller promises the result of `find` for this block.
            unsafe { self.report_overflow(user, found) };
        }
    }

    /// # Safety
    ///
    /// `found` is what `find` returned for `user`, and the block has not changed since.
    #[cold]
    unsafe fn report_overflow(&self, user: *mut u8, found: &Found) {
        self.overflowed.fetch_add(1, Ordering::Relaxed);
        let mut tail = [0; 8];
        let tail = tail.get_mut(..found.tail_bytes).unwrap_or_default();
        // SAFETY: the caller promises a block of this size with a guard of `tail_bytes`.
        unsafe { ptr::copy_nonoverlapping(user.add(found.size), tail.as_mut_ptr(), tail.len()) };
        let bytes = guard::damaged_bytes(found.size as u64, tail);
        if let Some(observer) = self.observer() {
            observer(&Event::Overflowed { user, size: found.size, bytes });
        }
    }

    /// # Safety
    ///
    /// `origin` was given out by the backend and released.
    #[cold]
    unsafe fn report_freed_twice(&self, user: *mut u8, origin: *mut u8) {
        self.freed_twice.fetch_add(1, Ordering::Relaxed);
        if let Some(observer) = self.observer() {
            observer(&Event::FreedTwice { user });
        }
        // SAFETY: the caller promises memory that the backend gave out and that was released.
        unsafe { self.backend.freed_twice(origin) };
    }

    /// # Safety
    ///
    /// `user` is an address that the backend takes and that nobody uses any more.
    #[cold]
    unsafe fn release_foreign(&self, user: *mut u8) {
        self.foreign.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller promises an address that the backend takes and that nobody uses any
        // more.
        unsafe { self.backend.release_foreign(user) };
    }
}

/// Returns the address of the user's bytes.
///
/// # Safety
///
/// `origin` is memory of the size that `place` states.
#[inline(always)]
unsafe fn user_in(origin: *mut u8, place: &BlockPlan) -> *mut u8 {
    // SAFETY: the prefix, and what was asked for beyond it, are inside of the memory.
    unsafe {
        let user = origin.add(place.prefix_bytes);
        if place.is_over_aligned {
            // A backend without alignments returned more bytes: the next multiple is inside.
            let beyond = user.addr() % place.alignment;
            if beyond != 0 { user.add(place.alignment - beyond) } else { user }
        } else {
            user
        }
    }
}

/// Returns the address of the word with the user's last bytes and the guard.
///
/// # Safety
///
/// `user` is a block of this size, with a guard behind it.
#[inline(always)]
unsafe fn last_word(user: *mut u8, size: usize) -> *mut u64 {
    // SAFETY: the caller promises a block with a guard: the word ends in the guard at the latest.
    unsafe { user.add(size & !7).cast() }
}

/// Writes the guard behind a block.
///
/// # Safety
///
/// A block of that size with a guard; `is_fresh` when the user's bytes hold nothing yet.
#[inline(always)]
unsafe fn write_guard(user: *mut u8, size: usize, is_fresh: bool) {
    // SAFETY: the caller promises a block of that size with a guard; `is_fresh` when the user's
    // bytes hold nothing yet.
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

/// Returns whether the guard behind a block is intact.
///
/// # Safety
///
/// A block of that size with a guard.
#[inline(always)]
unsafe fn is_guard_whole(user: *mut u8, size: usize) -> bool {
    // SAFETY: the caller promises a block of that size with a guard.
    let word = unsafe { last_word(user, size).read_unaligned() };
    let different = u64::from_le(word ^ u64::from_ne_bytes(guard::PATTERN));
    different >> (8 * (size & 7)) == 0
}
