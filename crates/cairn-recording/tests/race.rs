//! Threads that race realloc and free across one another, drained while they run: what is left is
//! what the program left, for each stack and size.
#![cfg(target_os = "linux")]

use std::collections::{BTreeMap, HashMap};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::time::Duration;

use cairn_capture::{Stack, capture};
use cairn_recorder::{Options, heap, start, stop};
use cairn_recording::{Alloc, Drain, EndReason, Events, Free, Recording, Wanted};

const THREADS: u64 = 8;
const TURNS: usize = 100_000;
const SLOTS: usize = 48;

/// How many blocks live of each stack and size.
type Left = BTreeMap<(u32, u64), u64>;

/// At the start of every block.
#[repr(C)]
#[derive(Clone, Copy)]
struct Block {
    stack: u32,
    size: u64,
}

struct Worker {
    random: u64,
    leaked: Left,
    allocations: u64,
}

#[inline(never)]
fn here() -> Stack {
    capture()
}

#[inline(never)]
fn there() -> Stack {
    std::hint::black_box(capture())
}

impl Worker {
    fn random(&mut self, below: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 20) as usize % below
    }

    fn stack(&mut self) -> Stack {
        match self.random(3) {
            0 => here(),
            1 => there(),
            _ => capture(),
        }
    }

    fn allocate(&mut self) -> *mut Block {
        let size = 16 + self.random(6) * 16 + if self.random(50) == 0 { 5000 } else { 0 };
        let stack = self.stack();
        self.allocations += 1;
        // SAFETY: a block of at least 16 bytes, written before anybody else has it.
        unsafe {
            let block = libc::malloc(size).cast::<Block>();
            heap::allocated_by(block as u64, size as u64, stack);
            block.write(Block { stack: stack.id().number(), size: size as u64 });
            block
        }
    }

    fn free(block: *mut Block) {
        heap::freeing(block as u64);
        // SAFETY: taken out of its slot, so it is this thread's alone.
        unsafe { libc::free(block.cast()) };
    }

    fn reallocate(&mut self, block: *mut Block) -> *mut Block {
        let size = 16 + self.random(20) * 16;
        let stack = self.stack();
        self.allocations += 1;
        // SAFETY: as above.
        unsafe {
            let moving = heap::moving(block as u64);
            let moved = libc::realloc(block.cast(), size).cast::<Block>();
            // Others use the old address again while this event is still to be written.
            if self.random(16) == 0 {
                std::thread::yield_now();
            }
            heap::moved_by(moving, moved as u64, size as u64, stack);
            moved.write(Block { stack: stack.id().number(), size: size as u64 });
            moved
        }
    }

    /// Gives the block to the thread that frees it later, or to none.
    fn leave(&mut self, block: *mut Block, slots: &[AtomicPtr<Block>]) {
        if self.random(1000) == 0 {
            // SAFETY: it is this thread's alone.
            let Block { stack, size } = unsafe { block.read() };
            *self.leaked.entry((stack, size)).or_default() += 1;
            return;
        }
        let other = slots[self.random(SLOTS)].swap(block, Ordering::AcqRel);
        if !other.is_null() {
            Self::free(other);
        }
    }

    fn run(mut self, slots: &[AtomicPtr<Block>]) -> Self {
        for _ in 0..TURNS {
            if self.random(8) == 0 {
                std::thread::yield_now();
            }
            match self.random(4) {
                0 => {
                    let block = self.allocate();
                    Self::free(block);
                }
                1 => {
                    let taken = slots[self.random(SLOTS)].swap(std::ptr::null_mut(), Ordering::AcqRel);
                    if !taken.is_null() {
                        let moved = self.reallocate(taken);
                        self.leave(moved, slots);
                    }
                }
                _ => {
                    let block = self.allocate();
                    self.leave(block, slots);
                }
            }
        }
        self
    }
}

/// Blocks that live at the end.
#[derive(Default)]
struct Seen {
    live: HashMap<u32, (u32, u64)>,
    allocations: u64,
}

impl Events for Seen {
    fn alloc(&mut self, event: &Alloc) {
        self.allocations += 1;
        let block = (event.stack.number(), event.size_bytes);
        assert_eq!(self.live.insert(event.object.number(), block), None);
    }
    fn free(&mut self, event: &Free) {
        let block = (event.stack.number(), event.size_bytes);
        assert_eq!(self.live.remove(&event.object.number()), Some(block));
    }
}

fn read(path: &Path) -> (Left, u64, u64) {
    let recording = Recording::open(path).unwrap();
    let mut seen = Seen::default();
    let outcome = recording.read(&Wanted::HEAP, &mut seen).unwrap();
    assert_eq!(outcome.findings, []);
    let mut left = Left::new();
    seen.live.into_values().for_each(|block| *left.entry(block).or_default() += 1);
    (left, seen.allocations, outcome.unmatched_frees)
}

fn fresh_path(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("cairn-race-{}-{name}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    path
}

#[test]
fn million_racing_events_leave_the_right_blocks() {
    let (spool, packed) = (fresh_path("spool"), fresh_path("cairn"));
    start(&Options::new(spool.as_os_str().as_bytes())).unwrap();
    let slots: Vec<AtomicPtr<Block>> = (0..SLOTS).map(|_| AtomicPtr::new(std::ptr::null_mut())).collect();
    let is_over = AtomicBool::new(false);
    let (workers, summary) = std::thread::scope(|scope| {
        let draining = scope.spawn(|| {
            let mut drain = Drain::open(&spool, &packed).unwrap();
            while !is_over.load(Ordering::Acquire) {
                drain.step().unwrap();
                std::thread::sleep(Duration::from_millis(1));
            }
            drain.finish().unwrap()
        });
        let threads: Vec<_> = (1..=THREADS)
            .map(|number| {
                let slots = &slots;
                let random = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(number);
                scope.spawn(move || Worker { random, leaked: Left::new(), allocations: 0 }.run(slots))
            })
            .collect();
        let workers: Vec<Worker> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        stop(EndReason::Stopped);
        is_over.store(true, Ordering::Release);
        let (summary, findings) = draining.join().unwrap();
        assert_eq!(findings, []);
        (workers, summary)
    });

    let mut expected = Left::new();
    let allocations: u64 = workers.iter().map(|worker| worker.allocations).sum();
    for (&block, &count) in workers.iter().flat_map(|worker| &worker.leaked) {
        *expected.entry(block).or_default() += count;
    }
    for slot in &slots {
        let block = slot.load(Ordering::Acquire);
        if !block.is_null() {
            // SAFETY: nobody else is there any more.
            let Block { stack, size } = unsafe { block.read() };
            *expected.entry((stack, size)).or_default() += 1;
        }
    }
    let found = read(&packed);
    for path in [spool, packed] {
        let _ = std::fs::remove_file(path);
    }
    assert!(allocations > 500_000 && expected.len() > 30, "{allocations} of {} kinds", expected.len());
    assert_eq!((summary.allocations, summary.unmatched_frees), (allocations, 0));
    assert_eq!(found.0, expected);
    assert_eq!((found.1, found.2), (allocations, 0));
}
