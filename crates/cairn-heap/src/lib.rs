//! Writes who allocated a block into memory, right in front of the user's bytes.
//!
//! On a device without a profiler, in a core file from the field, or after a memory corruption, the
//! question is "who allocated this block?". The answer is beside the block: `cairn core` finds it
//! in a core file, a dump read over JTAG, or a running process, and the program itself can print it
//! to a UART.
//!
//! # A Rust program
//!
//! ```
//! use std::alloc::System;
//! use cairn_heap::Annotated;
//!
//! #[global_allocator]
//! static ALLOCATOR: Annotated<System> = Annotated::new(System);
//!
//! let text = String::from("a block");
//! assert!(ALLOCATOR.heap().counters().live_bytes >= text.len());
//! ```
//!
//! # A custom allocator
//!
//! [`Heap`] takes memory from any [`Backend`]: a `GlobalAlloc`, functions with the signatures of
//! `malloc`, a pool. A [`CallStack`] states the caller.
//!
//! ```
//! use cairn_heap::{BlockLayout, Global, Heap, Options};
//! use std::alloc::System;
//!
//! static HEAP: Heap<Global<System>> = Heap::new(Global(System), Options::new(BlockLayout::Lws));
//!
//! let block = HEAP.allocate(100, 64, false, &[0x406651_usize, 0x406852]);
//! assert_eq!(block as usize % 64, 0);
//! HEAP.for_each_live(|live| assert_eq!(live.backtrace().unwrap().allocation_size_bytes, 100));
//! // SAFETY: the block from above, with its alignment.
//! unsafe { HEAP.release(block, 64) };
//! ```
//!
//! To instrument an existing allocator line by line, without a heap around it, use [`lws`].
//!
//! # Layouts
//!
//! | layout | in front of a block | found in memory | purpose |
//! |---|---|---|---|
//! | [`Cairn`](BlockLayout::Cairn) | 16 bytes, and up to 8 behind it | always, with its state; damage is reported | new programs |
//! | [`Lws`](BlockLayout::Lws) | 12 or 24 bytes and a compressed stack, 20 to 150 | by a list | tools that read libwebsockets' |
//! | [`Heapprof`](BlockLayout::Heapprof) | a word for each caller and four more | by text, with false positives | tools that read heapprof's |
//!
//! The cairn layout holds the number of a stack if stacks have numbers (on Linux, by
//! `cairn-capture`; the table is in the program's memory, see [`StackTable`]), or the compressed
//! stack itself.
//!
//! # Rules
//!
//! No allocation, no std, no formatting, no panic. Only lists are locked, for a few stores ([`lws`]
//! states which functions the caller has to lock). Foreign memory is distinguished from blocks of
//! the heap before it is written to.
//!
//! An [`Observer`] is called for every allocation and free, in its thread, and may itself allocate.
//! [`Heap::set_limit`] limits the bytes in use; [`Heap::counters`] returns the counters.

//! # A processor without compare-and-swap
//!
//! RISC-V without the A extension (`riscv32imc`), Cortex-M0 (`thumbv6m`): there, and with the
//! feature `critical-section` everywhere, the crate
//! [`critical-section`](https://docs.rs/critical-section) guards counters and lists. The program,
//! or the crate of its chip (`cortex-m`, `riscv`, `esp-hal`), implements the critical section, as
//! for embedded allocators: interrupts off, and on again. C programs set two functions, see
//! `cairn_heap.h`.

#![no_std]

mod annotated;
mod backend;
pub mod blocks;
#[cfg(feature = "c-api")]
pub mod c;
mod compressed;
mod heap;
mod lock;
pub mod lws;
mod stack;
#[cfg(target_has_atomic = "64")]
mod table;

/// Atomics with compare-and-swap. They are the processor's own, or else built on the program's
/// critical section, which even a load enters. Words that are only loaded and stored use the
/// atomics of `core`, which every processor has.
pub(crate) mod atomic {
    #[cfg(target_has_atomic = "ptr")]
    pub(crate) use core::sync::atomic::{AtomicU32 as SwapU32, AtomicUsize as SwapUsize};

    #[cfg(not(target_has_atomic = "ptr"))]
    pub(crate) use portable_atomic::{AtomicU32 as SwapU32, AtomicUsize as SwapUsize};
}

pub use annotated::{Annotated, DefaultStack};
pub use backend::{Backend, Global, MallocFunctions};
pub use cairn_wire::heapblock::{BlockLayout, StackReference};
pub use compressed::CompressedStacks;
pub use heap::{Counters, Event, Heap, Observer, Options};
pub use lock::Critical;
#[cfg(feature = "capture")]
pub use stack::{At, Here};
pub use stack::{CallStack, NoStack, UserBits};
#[cfg(target_has_atomic = "64")]
pub use table::StackTable;

/// Loops forever: there is no output. No known input leads here.
#[cfg(feature = "staticlib")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {
        core::hint::spin_loop();
    }
}
