//! A device without an operating system, without a debugger, with a heap of 64 KiB: and when memory
//! runs short, it says over its UART who has it.
//!
//! ```text
//! cargo build --release
//! cargo run --release | cairn decode --totals -e target/thumbv7em-none-eabi/release/annotated-device
//! ```
//!
//! With `--target thumbv6m-none-eabi` it is built for a Cortex-M0, which has no compare-and-swap:
//! [`device`] says then what a critical section is.
//!
//! The allocator underneath ([`pool`]) knows nothing of this. [`cairn_heap::Annotated`] is in
//! front of it, asks [`device::FramePointers`] who allocates, and keeps the answer in front of each
//! block. [`dump`] walks the pool and prints a line `~m#…` for each live block, without allocating.

#![no_std]
#![no_main]

extern crate alloc;

mod device;
mod pool;

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
#[cfg(not(feature = "plain"))]
use core::ops::ControlFlow;

#[cfg(not(feature = "plain"))]
use cairn_heap::{Annotated, BlockLayout, Options, blocks};
use pool::Pool;

#[cfg(not(feature = "plain"))]
use device::FramePointers;

#[cfg(not(feature = "plain"))]
const LAYOUT: BlockLayout = if cfg!(feature = "lws") {
    BlockLayout::Lws
} else if cfg!(feature = "heapprof") {
    BlockLayout::Heapprof
} else {
    BlockLayout::Cairn
};

#[cfg(not(feature = "plain"))]
const OPTIONS: Options = {
    let mut options = Options::new(LAYOUT);
    options.callers = 8;
    // The allocator itself.
    options.pre = 1;
    options
};

#[cfg(not(feature = "plain"))]
#[global_allocator]
static ALLOCATOR: Annotated<&'static Pool, FramePointers> = Annotated::with(&POOL, OPTIONS, FramePointers);

#[cfg(feature = "plain")]
#[global_allocator]
static ALLOCATOR: &'static Pool = &POOL;

static POOL: Pool = Pool::new();

/// Memory that a packet leaves allocated.
struct Connection {
    _peer: u32,
    _buffer: Vec<u8>,
}

#[inline(never)]
fn accept(connections: &mut Vec<Box<Connection>>, peer: u32) {
    connections.push(Box::new(Connection { _peer: peer, _buffer: read_packet(peer as usize * 16) }));
}

#[inline(never)]
fn read_packet(bytes: usize) -> Vec<u8> {
    let mut packet = Vec::with_capacity(bytes);
    packet.resize(bytes, 0xee);
    packet
}

#[inline(never)]
fn sample_sensors(history: &mut BTreeMap<u32, [u16; 4]>) {
    for tick in 0..100 {
        history.insert(tick, [tick as u16; 4]);
    }
}

/// Called by the board's start.
fn main() {
    let mut connections = Vec::new();
    let mut history = BTreeMap::new();
    for peer in 1..=40 {
        accept(&mut connections, peer);
        if peer % 2 == 0 {
            // Half of them are closed again.
            connections.remove(0);
        }
    }
    sample_sensors(&mut history);
    dump();
    print_number(b"pool ", POOL.in_use_bytes());
    core::hint::black_box((&connections, &history));
}

/// A line for each live block, the largest first.
#[cfg(not(feature = "plain"))]
fn dump() {
    let show = |block: &blocks::Block<'_>| {
        let mut uart = cairn_heap::lws::line_sink(device::print);
        // The UART takes everything.
        let _ = block.write_line(|_, _| 0, &mut uart);
        ControlFlow::Continue(())
    };
    let largest_first = |a: &blocks::Block<'_>, b: &blocks::Block<'_>| b.size_bytes().cmp(&a.size_bytes());
    // SAFETY: the device has one core, and showing allocates nothing.
    unsafe {
        let (start, bytes) = (POOL.start(), pool::POOL_BYTES);
        match LAYOUT {
            BlockLayout::Lws => {
                let live = ALLOCATOR.heap().live_unlocked();
                blocks::for_each_in_order(live, |_| true, largest_first, show);
            }
            BlockLayout::Cairn => {
                let live = blocks::cairn_blocks(start, bytes, 8);
                blocks::for_each_in_order(live, |_| true, largest_first, show);
            }
            BlockLayout::Heapprof => {
                let live = blocks::heapprof_blocks(start, bytes);
                blocks::for_each_in_order(live, |_| true, largest_first, show);
            }
        }
    }
    let counters = ALLOCATOR.heap().counters();
    print_number(b"blocks ", counters.live_blocks);
    print_number(b"bytes ", counters.live_bytes);
}

#[cfg(feature = "plain")]
const fn dump() {}

fn print_number(name: &[u8], number: usize) {
    device::print(name);
    let mut digits = [0_u8; 10];
    let (mut rest, mut at) = (number, digits.len());
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    device::print(&digits[at..]);
    device::print(b"\n");
}
