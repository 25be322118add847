//! Heaps under load: whatever happens, every block keeps its content, its alignment, and what is
//! said of it.

#![allow(clippy::print_stdout, reason = "a test says what its random numbers began with")]

use std::alloc::System;
use std::cell::Cell;
use std::ffi::c_void;
use std::ops::ControlFlow;
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use cairn_heap::{Backend, BlockLayout, Event, Global, Heap, MallocFunctions, NoStack, Options, blocks};

const LAYOUTS: [BlockLayout; 3] = [BlockLayout::Lws, BlockLayout::Heapprof, BlockLayout::Cairn];

/// xorshift64*.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, limit: u64) -> usize {
        (self.next() % limit) as usize
    }

    /// Mostly small, sometimes large.
    fn size(&mut self) -> usize {
        match self.below(100) {
            0..80 => self.below(300),
            80..98 => self.below(9000),
            _ => self.below(300_000),
        }
    }

    /// 1 to 1 MiB, mostly what `malloc` gives anyway.
    fn alignment(&mut self) -> usize {
        if self.below(20) > 0 { 1 << self.below(5) } else { 1 << self.below(21) }
    }

    fn stack(&mut self) -> Vec<usize> {
        let depth = self.below(12);
        (0..depth).map(|_| 0x5555_5540_0000_usize + self.below(1 << 22)).collect()
    }
}

#[derive(Clone)]
struct Expected {
    user: usize,
    size: usize,
    alignment: usize,
    stack: Vec<usize>,
}

impl Expected {
    fn fill(&self) {
        // SAFETY: the block's bytes.
        unsafe { ptr::write_bytes(self.user as *mut u8, self.user as u8 ^ 0x5a, self.size) };
    }

    fn holds(&self, first: usize, filled_at: usize) -> bool {
        // SAFETY: the block's bytes.
        let bytes = unsafe { std::slice::from_raw_parts(self.user as *const u8, first.min(self.size)) };
        bytes.iter().all(|byte| *byte == filled_at as u8 ^ 0x5a)
    }
}

type TestHeap = Heap<Sharded, 8>;

/// The system's allocator, with a shard for each thread, and a thread's blocks freed by others.
struct Sharded;

thread_local! {
    static THREAD: Cell<usize> = const { Cell::new(1) };
}

// SAFETY: as the allocator that it passes on to.
unsafe impl Backend for Sharded {
    fn alignment(&self) -> usize {
        Global(System).alignment()
    }

    fn allocate(&self, size: usize, alignment: usize, is_zeroed: bool) -> *mut u8 {
        Global(System).allocate(size, alignment, is_zeroed)
    }

    unsafe fn release(&self, origin: *mut u8, size: usize, alignment: usize) {
        // SAFETY: by contract.
        unsafe { Global(System).release(origin, size, alignment) }
    }

    unsafe fn resize(&self, origin: *mut u8, size: usize, new_size: usize) -> *mut u8 {
        // SAFETY: by contract.
        unsafe { Global(System).resize(origin, size, new_size) }
    }

    fn thread(&self) -> usize {
        THREAD.get()
    }

    fn shard(&self) -> usize {
        THREAD.get()
    }
}

/// The stack in a block's annotation, read from the memory in front of the block.
fn stated(heap: &TestHeap, block: &Expected) -> (usize, Vec<usize>) {
    let user = block.user as *const u8;
    let mut addresses = [0; 97];
    // SAFETY: a live block of this heap; what is read lies in front of it.
    unsafe {
        let found = match heap.options().layout {
            BlockLayout::Lws => {
                let backtrace = cairn_heap::lws::parse(user).unwrap();
                let addresses = backtrace.addresses.iter().map(|address| address.value() as usize).collect();
                return (backtrace.allocation_size_bytes as usize, addresses);
            }
            BlockLayout::Cairn => {
                // The longest inline stack of these tests, and the header.
                let bytes = 128;
                blocks::cairn_blocks(user.sub(bytes), bytes, 4).last()
            }
            BlockLayout::Heapprof => {
                let bytes = (heap.options().callers + 3) * size_of::<usize>();
                blocks::heapprof_blocks(user.sub(bytes.next_multiple_of(8)), bytes).last()
            }
        };
        let found = found.unwrap_or_else(|| panic!("no block at {user:p}"));
        assert_eq!(found.user_address(), block.user);
        let count = found.addresses(|_, _| 0, &mut addresses);
        (found.size_bytes(), addresses[..count].to_vec())
    }
}

/// Runs `operations` operations of one thread, some on blocks that other threads left in `shared`.
fn work(heap: &TestHeap, seed: u64, operations: usize, shared: &Mutex<Vec<Expected>>, wrong: &AtomicUsize) {
    THREAD.set(seed as usize);
    let mut random = Random(seed);
    let mut own: Vec<Expected> = Vec::new();
    let expect = |is_right: bool| {
        if !is_right {
            wrong.fetch_add(1, Ordering::Relaxed);
        }
    };
    for _ in 0..operations {
        match random.below(10) {
            0..4 => {
                let (size, alignment, stack) = (random.size(), random.alignment(), random.stack());
                let is_zeroed = random.below(4) == 0;
                let user = heap.allocate(size, alignment, is_zeroed, stack.as_slice());
                expect(!user.is_null() && user.addr().is_multiple_of(alignment.max(16)));
                // SAFETY: a fresh block.
                let bytes = unsafe { std::slice::from_raw_parts(user, size) };
                expect(!is_zeroed || bytes.iter().all(|byte| *byte == 0));
                let block = Expected { user: user.addr(), size, alignment, stack };
                block.fill();
                expect(stated(heap, &block) == (size, block.stack.clone()));
                own.push(block);
            }
            4..7 if !own.is_empty() => {
                let index = random.below(own.len() as u64);
                let block = own.swap_remove(index);
                expect(block.holds(usize::MAX, block.user));
                // SAFETY: a live block.
                expect(unsafe { heap.size_of(block.user as *const u8) } == Some(block.size));
                // SAFETY: the same, and it is used no more.
                unsafe { heap.release(block.user as *mut u8, block.alignment) };
            }
            7..9 if !own.is_empty() => {
                let index = random.below(own.len() as u64);
                let old = own.swap_remove(index);
                let (size, stack) = (random.size(), random.stack());
                // SAFETY: a live block.
                let user = unsafe { heap.resize(old.user as *mut u8, size, old.alignment, stack.as_slice()) };
                expect(!user.is_null() && user.addr() % old.alignment.max(16) == 0);
                let block = Expected { user: user.addr(), size, alignment: old.alignment, stack };
                expect(block.holds(old.size.min(size), old.user));
                block.fill();
                expect(stated(heap, &block) == (size, block.stack.clone()));
                own.push(block);
            }
            9 => {
                let mut shared = shared.lock().unwrap();
                if shared.len() < 64 {
                    shared.extend(own.pop());
                }
                if shared.len() > 32 {
                    own.push(shared.remove(0));
                }
            }
            // SAFETY: null is no block.
            _ => unsafe { heap.release(ptr::null_mut(), 1) },
        }
        if own.len() > 200 {
            let block = own.remove(0);
            expect(block.holds(usize::MAX, block.user));
            // SAFETY: a live block.
            unsafe { heap.release(block.user as *mut u8, block.alignment) };
        }
    }
    shared.lock().unwrap().append(&mut own);
}

/// A hundred thousand operations of each layout by default; `CAIRN_HEAP_OPERATIONS` asks for more.
#[test]
fn blocks_are_sound_after_thread_race() {
    let asked = std::env::var("CAIRN_HEAP_OPERATIONS").ok().and_then(|text| text.parse().ok());
    let operations: usize = asked.unwrap_or(40_000);
    let seed = std::env::var("CAIRN_HEAP_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    println!("CAIRN_HEAP_SEED={seed}");
    for layout in LAYOUTS {
        let heap: TestHeap = Heap::new(Sharded, Options::new(layout));
        let (shared, wrong) = (Mutex::new(Vec::new()), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for thread in 1..=4 {
                let (heap, shared, wrong) = (&heap, &shared, &wrong);
                scope.spawn(move || work(heap, seed * 1000 + thread, operations / 4, shared, wrong));
            }
        });
        assert_eq!(wrong.load(Ordering::Relaxed), 0, "{layout:?}");
        let left = shared.into_inner().unwrap();
        let counters = heap.counters();
        assert_eq!(counters.live_blocks, left.len(), "{layout:?}");
        assert_eq!(counters.live_bytes, left.iter().map(|block| block.size).sum::<usize>(), "{layout:?}");
        assert_eq!((counters.foreign, counters.overflowed, counters.refused), (0, 0, 0), "{layout:?}");
        if layout == BlockLayout::Lws {
            let mut live = Vec::new();
            heap.for_each_live(|block| live.push(block.user().addr()));
            live.sort_unstable();
            let mut expected: Vec<usize> = left.iter().map(|block| block.user).collect();
            expected.sort_unstable();
            assert_eq!(live, expected);
        }
        for block in left {
            // SAFETY: live blocks.
            unsafe { heap.release(block.user as *mut u8, block.alignment) };
        }
        assert_eq!((heap.counters().live_blocks, heap.counters().live_bytes), (0, 0), "{layout:?}");
    }
}

/// An allocator without `memalign`, `realloc`, and with blocks at multiples of one word only.
mod poor {
    use super::*;

    thread_local! {
        static LIVE: Cell<isize> = const { Cell::new(0) };
    }

    pub(super) fn live() -> isize {
        LIVE.get()
    }

    pub(super) unsafe extern "C" fn malloc(size: usize) -> *mut c_void {
        LIVE.set(LIVE.get() + 1);
        // A multiple of 8 and never of 16.
        // SAFETY: takes any size.
        unsafe { libc_malloc(size + 24).add(24).cast() }
    }

    pub(super) unsafe extern "C" fn free(block: *mut c_void) {
        LIVE.set(LIVE.get() - 1);
        // SAFETY: as `malloc` left it.
        unsafe { libc_free(block.cast::<u8>().sub(24)) }
    }

    unsafe fn libc_malloc(size: usize) -> *mut u8 {
        // SAFETY: the size is not zero, the alignment is valid, and the size is stored in front.
        unsafe {
            let layout = std::alloc::Layout::from_size_align_unchecked(size + 16, 16);
            let block = std::alloc::alloc(layout);
            block.cast::<usize>().write(size + 16);
            block.add(16)
        }
    }

    unsafe fn libc_free(block: *mut u8) {
        // SAFETY: as above.
        unsafe {
            let block = block.sub(16);
            let layout = std::alloc::Layout::from_size_align_unchecked(block.cast::<usize>().read(), 16);
            std::alloc::dealloc(block, layout);
        }
    }
}

#[test]
fn heap_works_with_malloc_and_free_alone() {
    let functions = MallocFunctions {
        malloc: poor::malloc,
        free: poor::free,
        realloc: None,
        memalign: None,
        alignment: 8,
    };
    for layout in LAYOUTS {
        let heap: Heap<MallocFunctions> = Heap::new(functions, Options::new(layout));
        let mut random = Random(7);
        let mut live: Vec<(usize, usize)> = Vec::new();
        for _ in 0..3000 {
            if random.below(3) > 0 {
                let (size, alignment) = (random.below(500), random.alignment());
                let user = heap.allocate(size, alignment, true, random.stack().as_slice());
                assert_eq!(user.addr() % alignment.max(8), 0, "{layout:?} {alignment}");
                // SAFETY: fresh blocks.
                unsafe { ptr::write_bytes(user, 0xff, size) };
                live.push((user.addr(), alignment));
            } else if let Some((user, alignment)) = live.pop() {
                let size = random.below(500);
                // SAFETY: live blocks.
                let new = unsafe { heap.resize(user as *mut u8, size, alignment, NoStack) };
                assert_eq!(new.addr() % alignment.max(8), 0);
                // SAFETY: as above.
                unsafe { heap.release(new, alignment) };
            }
        }
        for (user, alignment) in live {
            // SAFETY: live blocks.
            unsafe { heap.release(user as *mut u8, alignment) };
        }
        assert_eq!(poor::live(), 0, "{layout:?}");
        let counters = heap.counters();
        assert_eq!((counters.live_blocks, counters.foreign, counters.overflowed), (0, 0, 0), "{layout:?}");
    }
}

thread_local! {
    static EVENTS: Cell<Vec<Event>> = const { Cell::new(Vec::new()) };
    static NESTED_HEAP: Cell<Option<&'static Heap<Global<System>>>> = const { Cell::new(None) };
}

fn note_event(event: &Event) {
    let mut events = EVENTS.take();
    events.push(*event);
    let is_outer = events.len() % 2 == 1;
    EVENTS.set(events);
    // One allocation inside of each notification: they nest.
    if let (Some(heap), true) = (NESTED_HEAP.get(), is_outer) {
        assert!(!heap.allocate(1, 1, false, NoStack).is_null());
    }
}

#[test]
fn observer_sees_all_events_and_may_allocate() {
    let heap: &Heap<_> = Box::leak(Box::new(Heap::new(Global(System), Options::new(BlockLayout::Lws))));
    NESTED_HEAP.set(Some(heap));
    heap.set_observer(Some(note_event));
    let user = heap.allocate(10, 1, false, NoStack);
    // SAFETY: the block.
    unsafe { heap.release(user, 1) };
    heap.set_observer(None);
    let events = EVENTS.take();
    assert_eq!(events[0], Event::Allocated { user, size: 10 });
    assert!(matches!(events[1], Event::Allocated { size: 1, .. }), "{events:?}");
    assert_eq!(events[2], Event::Freeing { user, size: 10 });
    assert_eq!(events.len(), 4);
    NESTED_HEAP.set(None);
    // The events of the other kinds, without nesting.
    heap.set_observer(Some(note_event));
    heap.set_limit(1000);
    assert!(heap.allocate(1000, 1, false, NoStack).is_null());
    let small = heap.allocate(500, 1, false, NoStack);
    // SAFETY: the block.
    let moved = unsafe { heap.resize(small, 600, 1, NoStack) };
    // SAFETY: the block.
    assert!(unsafe { heap.resize(moved, 1100, 1, NoStack) }.is_null());
    heap.set_observer(None);
    let events = EVENTS.take();
    assert_eq!(events[0], Event::Refused { size: 1000 });
    assert_eq!(events[1], Event::Allocated { user: small, size: 500 });
    assert_eq!(events[2], Event::Moved { from: small, to: moved, size: 600 });
    assert_eq!(events[3], Event::Refused { size: 1100 });
    assert_eq!(heap.counters().refused, 2);
    // SAFETY: what was refused is as it was.
    assert_eq!(unsafe { heap.size_of(moved) }, Some(600));
    // SAFETY: the block.
    unsafe { heap.release(moved, 1) };
}

#[test]
fn guard_reports_overflow() {
    let heap: Heap<Global<System>> = Heap::new(Global(System), Options::new(BlockLayout::Cairn));
    for size in 0..40_usize {
        for bytes in 1..=(8 - size % 8) {
            heap.set_observer(Some(note_event));
            let user = heap.allocate(size, 1, false, [1_usize, 2]);
            // SAFETY: behind the user's bytes, in the guard.
            unsafe { ptr::write_bytes(user.add(size), 0, bytes) };
            // SAFETY: the block.
            unsafe { heap.release(user, 1) };
            heap.set_observer(None);
            assert!(EVENTS.take().contains(&Event::Overflowed { user, size, bytes }), "{size} {bytes}");
        }
    }
    // By a wrong byte in any place, and not when all is well.
    let before = heap.counters().overflowed;
    let user = heap.allocate(13, 1, false, NoStack);
    // SAFETY: the block.
    unsafe { heap.release(user, 1) };
    assert_eq!(heap.counters().overflowed, before);
}

/// Memory of a pool, which nobody else gets: so what is free stays as it was.
static POOL: Mutex<(usize, usize)> = Mutex::new((0, 0));

unsafe extern "C" fn pool_malloc(size: usize) -> *mut c_void {
    let mut pool = POOL.lock().unwrap();
    if pool.0 == 0 {
        pool.0 = Box::leak(vec![0_u128; 4096].into_boxed_slice()).as_mut_ptr().addr();
    }
    let at = pool.1;
    pool.1 += size.next_multiple_of(16);
    assert!(pool.1 <= 4096 * 16);
    (pool.0 + at) as *mut c_void
}

unsafe extern "C" fn pool_free(_: *mut c_void) {}

#[test]
fn second_free_is_reported() {
    let functions = MallocFunctions {
        malloc: pool_malloc,
        free: pool_free,
        realloc: None,
        memalign: None,
        alignment: 16,
    };
    let heap: Heap<MallocFunctions> = Heap::new(functions, Options::new(BlockLayout::Cairn));
    let users: Vec<*mut u8> =
        (0..20_usize).map(|index| heap.allocate(index * 7, 1, false, [0x1000 + index, 0x2000])).collect();
    // SAFETY: live blocks, one of them twice.
    unsafe {
        heap.release(users[3], 1);
        heap.release(users[3], 1);
        heap.release(users[5], 1);
    }
    assert_eq!(heap.counters().freed_twice, 1);
    assert_eq!(heap.counters().live_blocks, 18);

    let (start, bytes) = *POOL.lock().unwrap();
    // SAFETY: the pool, which nobody changes now.
    let live = unsafe { blocks::cairn_blocks(start as *const u8, bytes, 16) };
    assert_eq!(live.clone().count(), 18);
    let mut sorted = Vec::new();
    blocks::for_each_in_order(
        live.clone(),
        |block| block.size_bytes() >= 35,
        |a, b| b.size_bytes().cmp(&a.size_bytes()),
        |block| {
            let mut addresses = [0; 4];
            let count = block.addresses(|_, _| 0, &mut addresses);
            sorted.push((block.size_bytes(), addresses[..count].to_vec()));
            if sorted.len() < 4 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        },
    );
    let expected: Vec<_> = (16..20).rev().map(|index| (index * 7, vec![0x1000 + index, 0x2000])).collect();
    assert_eq!(sorted, expected);

    // Every one of them as a line that the log reader takes.
    for block in live {
        let mut line = Vec::new();
        block
            .write_line(|_, _| 0, &mut cairn_heap::lws::line_sink(|bytes| line.extend_from_slice(bytes)))
            .unwrap();
        let mut buffer = [0; 2048];
        let decoded = cairn_wire::lws::log_line::decode_text(
            line.trim_ascii_end(),
            cairn_format::WordSize::NATIVE,
            &mut buffer,
        )
        .unwrap();
        assert_eq!(decoded.allocation_size_bytes, block.size_bytes() as u64);
        assert_eq!(decoded.addresses.len(), 2);
    }
}

/// Memory that the heap did not give out is left alone.
#[test]
fn foreign_blocks_are_passed_on() {
    for layout in LAYOUTS {
        let heap: Heap<Global<System>> = Heap::new(Global(System), Options::new(layout));
        let mut memory = vec![0_u64; 512];
        let mut random = Random(3);
        for round in 0..10_000 {
            memory
                .iter_mut()
                .for_each(|word| *word = if round % 2 == 0 { random.next() } else { word.wrapping_add(1) });
            let user = memory[64 + random.below(400)..].as_mut_ptr().cast::<u8>();
            // SAFETY: there is memory in front of it, and this backend takes foreign blocks without
            // doing anything.
            unsafe {
                assert_eq!(heap.size_of(user), None);
                heap.release(user, 1);
                assert!(heap.resize(user, 10, 1, NoStack).is_null());
            }
        }
        assert_eq!(heap.counters().foreign, 20_000, "{layout:?}");
    }
}

#[test]
fn impossible_requests_are_refused() {
    for layout in LAYOUTS {
        let heap: Heap<Global<System>> = Heap::new(Global(System), Options::new(layout));
        for size in [usize::MAX, usize::MAX - 100, isize::MAX as usize, isize::MAX as usize - 10] {
            assert!(heap.allocate(size, 1, false, NoStack).is_null());
            assert!(heap.allocate(size, 1 << 20, false, NoStack).is_null());
        }
        assert!(heap.allocate(1, 1 << 40, false, NoStack).is_null());
        assert!(heap.allocate(1, 3 * 64, false, NoStack).is_null());
        let user = heap.allocate(0, 1, false, NoStack);
        assert!(!user.is_null());
        // SAFETY: the block.
        unsafe {
            assert_eq!(heap.size_of(user), Some(0));
            assert!(heap.resize(user, usize::MAX, 1, NoStack).is_null());
            heap.release(user, 1);
        }
        assert_eq!(heap.counters().live_blocks, 0);
    }
}
