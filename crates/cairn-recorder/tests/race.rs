//! Threads that race realloc and free across one another: every free finds its own allocation, by
//! the published rules alone.

#![cfg(target_os = "linux")]

mod support;

use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::sync::Barrier;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use cairn_capture::capture;
use cairn_recorder::{EndReason, Options, heap, start, stop};
use support::{Pairing, Place, Spool, fresh_path};

const THREADS: u32 = 8;
const TURNS: usize = 80_000;
const SLOTS: usize = 64;
const ROUNDS: u64 = 40;

/// The contents of a block: the event that made it. The truth that the recording is compared with.
#[repr(C)]
#[derive(Clone, Copy)]
struct Made {
    kernel_thread: u64,
    index: u64,
}

/// Lets other threads run, without a yield. On a busy machine, a yield gives all other programs
/// their turn first, and some ten thousand turns are minutes.
fn let_others_run() {
    std::thread::sleep(std::time::Duration::from_micros(1));
}

struct Worker {
    kernel_thread: u64,
    /// Heap events of this thread so far.
    events: u64,
    random: u64,
    /// Blocks that this thread freed: the event that made each, and the event that freed it.
    truth: Vec<(Made, Made)>,
}

impl Worker {
    fn random(&mut self, below: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 20) as usize % below
    }

    fn next(&mut self) -> Made {
        self.events += 1;
        Made { kernel_thread: self.kernel_thread, index: self.events - 1 }
    }

    fn allocate(&mut self) -> *mut Made {
        let size = 16 + self.random(5) * 16 + if self.random(50) == 0 { 5000 } else { 0 };
        // SAFETY: a block of at least 16 bytes, written before anybody else has it.
        unsafe {
            let block = libc::malloc(size).cast::<Made>();
            heap::allocated_by(block as u64, size as u64, capture());
            block.write(self.next());
            block
        }
    }

    fn free(&mut self, block: *mut Made) {
        // SAFETY: taken out of its slot, so it is this thread's alone.
        unsafe {
            let made = block.read();
            heap::freeing(block as u64);
            let freed = self.next();
            self.truth.push((made, freed));
            libc::free(block.cast());
        }
    }

    fn reallocate(&mut self, block: *mut Made) -> *mut Made {
        let size = 16 + self.random(20) * 16;
        // SAFETY: as above.
        unsafe {
            let made = block.read();
            let moving = heap::moving(block as u64);
            let moved = libc::realloc(block.cast(), size).cast::<Made>();
            heap::moved_by(moving, moved as u64, size as u64, capture());
            let freed = self.next();
            self.truth.push((made, freed));
            moved.write(self.next());
            moved
        }
    }

    fn run(mut self, slots: &[AtomicPtr<Made>], turns: usize, progress: Option<&AtomicU64>) -> Self {
        for turn in 0..turns {
            if let Some(progress) = progress {
                progress.store(turn as u64 + 1, Ordering::Relaxed);
            }
            // Few processors for many threads: without it each would have its blocks to itself for
            // milliseconds.
            if self.random(8) == 0 {
                let_others_run();
            }
            let slot = &slots[self.random(SLOTS)];
            let fresh = if self.random(3) > 0 { self.allocate() } else { std::ptr::null_mut() };
            let taken = slot.swap(fresh, Ordering::AcqRel);
            if !taken.is_null() {
                if self.random(4) == 0 {
                    let moved = self.reallocate(taken);
                    let other = slots[self.random(SLOTS)].swap(moved, Ordering::AcqRel);
                    if !other.is_null() {
                        self.free(other);
                    }
                } else {
                    self.free(taken);
                }
            }
        }
        self
    }
}

#[test]
fn frees_pair_with_their_own_allocation_under_race() {
    let pairing = race(THREADS, TURNS, |_| 0);
    assert!(
        pairing.remote > 20_000 && pairing.local > 10_000,
        "{} remote, {} local",
        pairing.remote,
        pairing.local
    );
    // One thread alone for a while, whose frees need no counters, until the others come.
    for round in 0..ROUNDS {
        let pairing = race(3, 4_000, |number| u64::from(number) * (50 + round * 37));
        assert!(
            pairing.remote > 0 && pairing.local > 50,
            "{} remote, {} local",
            pairing.remote,
            pairing.local
        );
    }
}

/// Has threads race, and compares with the truth. Thread `n` begins when the first one has
/// `begins(n)` turns behind it.
fn race(threads: u32, turns: usize, begins: impl Fn(u32) -> u64) -> Pairing {
    let path = fresh_path("race");
    start(&Options::new(path.as_os_str().as_bytes())).unwrap();
    let slots: Vec<AtomicPtr<Made>> = (0..SLOTS).map(|_| AtomicPtr::new(std::ptr::null_mut())).collect();
    // A thread that begins when another one has ended takes over its number: so none ends before
    // all have begun.
    let (barrier, end) = (Barrier::new(threads as usize), Barrier::new(threads as usize));
    let of_first = AtomicU64::new(0);
    let workers: Vec<Worker> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads)
            .map(|number| {
                let (slots, barrier, end, of_first, begins) =
                    (&slots, &barrier, &end, &of_first, begins(number));
                scope.spawn(move || {
                    // SAFETY: only asks.
                    let kernel_thread = unsafe { libc::syscall(libc::SYS_gettid) } as u64;
                    let random = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(u64::from(number) + 1);
                    let worker =
                        Worker { kernel_thread, events: 0, random, truth: Vec::with_capacity(turns * 2) };
                    barrier.wait();
                    while of_first.load(Ordering::Relaxed) < begins {
                        let_others_run();
                    }
                    let worker = worker.run(slots, turns, (number == 0).then_some(of_first));
                    end.wait();
                    worker
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let live = slots.iter().filter(|slot| !slot.load(Ordering::Relaxed).is_null()).count();
    stop(EndReason::Stopped);

    let spool = Spool::open(&path);
    let _ = std::fs::remove_file(&path);
    assert_eq!((spool.lost_events, spool.state), (0, cairn_format::recording::control::State::Ended));
    let events: usize = spool.check();
    assert_eq!(events as u64, workers.iter().map(|worker| worker.events).sum::<u64>());
    let number: HashMap<u64, u32> = spool
        .sequences
        .iter()
        .filter_map(|((thread, _), sequence)| Some((u64::from(*sequence.kernel_threads.first()?), *thread)))
        .collect();
    let place = |made: &Made| -> Place { (number[&made.kernel_thread], false, made.index as usize) };
    let truth: HashMap<Place, Place> = workers
        .iter()
        .flat_map(|worker| &worker.truth)
        .map(|(made, freed)| (place(made), place(freed)))
        .collect();
    let pairing = spool.pair();
    let wrong = pairing.pairs.iter().filter(|(made, freed)| truth.get(made) != Some(freed)).count();
    assert_eq!((wrong, pairing.unmatched), (0, 0));
    assert_eq!(pairing.pairs.len(), truth.len());
    assert_eq!(pairing.live.len(), live);
    pairing
}
