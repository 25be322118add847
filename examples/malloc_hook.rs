//! Counts allocated bytes by call stack, with an allocator around the usual one.
//!
//! `cargo run --release -p cairn-examples --bin malloc_hook`

#![allow(clippy::print_stdout, reason = "a program that prints")]

mod names;

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use cairn_capture::{Stack, StackId, capture};
use names::Names;

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// One stack and what it asked for.
struct Slot {
    stack: AtomicU32,
    bytes: AtomicU64,
    calls: AtomicU64,
}

/// A hash table that only grows; a slot belongs to the first stack that claims it.
static TABLE: [Slot; 1 << 14] =
    [const { Slot { stack: AtomicU32::new(0), bytes: AtomicU64::new(0), calls: AtomicU64::new(0) } };
        1 << 14];

// SAFETY: the memory is the system allocator's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // Nothing in here allocates: a capture takes its memory from the kernel.
        let stack = capture().id().number();
        let first = stack.wrapping_mul(0x9e37_79b9) >> 18;
        for slot in TABLE.iter().cycle().skip(first as usize).take(64) {
            let owner = slot
                .stack
                .compare_exchange(0, stack, Ordering::Relaxed, Ordering::Relaxed)
                .unwrap_or_else(|owner| owner);
            if owner == 0 || owner == stack {
                slot.bytes.fetch_add(layout.size() as u64, Ordering::Relaxed);
                slot.calls.fetch_add(1, Ordering::Relaxed);
                break;
            }
        }
        // SAFETY: as our caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as our caller promises; the block came from there.
        unsafe { System.dealloc(block, layout) }
    }
}

#[inline(never)]
fn ask() {
    black_box(Vec::<u8>::with_capacity(black_box(1000)));
}

fn main() {
    for _ in 0..100 {
        ask();
    }
    // Read before the report allocates, too.
    let mut largest: Vec<(u64, u64, u32)> = Vec::with_capacity(TABLE.len());
    largest.extend(TABLE.iter().map(|slot| {
        (
            slot.bytes.load(Ordering::Relaxed),
            slot.calls.load(Ordering::Relaxed),
            slot.stack.load(Ordering::Relaxed),
        )
    }));
    largest.retain(|&(_, calls, _)| (2..).contains(&calls));
    largest.sort_unstable();
    let names = Names::of_this_program().expect("the program can be read");
    for &(bytes, calls, number) in largest.iter().rev().take(3) {
        println!("{bytes} bytes in {calls} allocations");
        let id = StackId::from_number(number).expect("every slot with calls is a stack");
        for frame in Stack::from_id(id).frames() {
            println!("    {}", names.name(frame));
        }
    }
}
