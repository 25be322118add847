//! Heap blocks that say who allocated them: in memory, right in front of the user's bytes.
//!
//! On a device without a profiler, in a core file from the field, after a memory corruption, the
//! question is "who allocated this block?". The answer stands beside the block, so whoever has the
//! memory has it: `cairn core` finds it in a core file, a dump read over JTAG, a running process;
//! the program itself prints it to a UART.
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
//! # An allocator of one's own
//!
//! [`Heap`] takes memory from anything that implements [`Backend`]: a `GlobalAlloc`, functions of
//! the shape of `malloc`, a pool. Who asks is told by a [`CallStack`].
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
//! Without a heap around it, line by line into an allocator that is there: [`lws`].
//!
//! # Which layout
//!
//! | layout | in front of a block | finds itself | for |
//! |---|---|---|---|
//! | [`Cairn`](BlockLayout::Cairn) | 16 bytes, and up to 8 behind it | always, with its state; damage is named | what is new |
//! | [`Lws`](BlockLayout::Lws) | 12 or 24 bytes and a compressed stack, 20 to 150 | by a list | tools that read libwebsockets' |
//! | [`Heapprof`](BlockLayout::Heapprof) | a word for each caller and four more | by text, with false finds | tools that read heapprof's |
//!
//! The cairn layout holds the number of a stack, where stacks have numbers (on Linux, by
//! `cairn-capture`; the table lies in the program's memory, see [`StackTable`]), or the stack
//! itself, compressed, where they have none.
//!
//! # Rules of the house
//!
//! No allocation, no std, no formatting, no panic. Nothing is locked but lists, for a few stores
//! ([`lws`] says which functions the caller has to lock himself). What came from elsewhere is told
//! from blocks of the heap before it is touched.
//!
//! An [`Observer`] is told of every allocation and free, in the thread where it happens, and may
//! itself allocate. [`Heap::set_limit`] refuses what is too much; [`Heap::counters`] says what
//! there is.

//! # A processor without compare-and-swap
//!
//! RISC-V without the A extension (`riscv32imc`), Cortex-M0 (`thumbv6m`): there, and with the
//! feature `critical-section` everywhere, the crate
//! [`critical-section`](https://docs.rs/critical-section) guards counters and lists. The program,
//! or the crate of its chip (`cortex-m`, `riscv`, `esp-hal`), says what a critical section is, as
//! for embedded allocators: interrupts off, and on again. C programs give two functions, see
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

/// Atomics with compare-and-swap: the processor's own, else made of the program's critical section,
/// where even a load enters it. For words that are loaded and stored only, `core` has atomics on
/// every processor.
pub(crate) mod atomic {
    #[cfg(target_has_atomic = "ptr")]
    pub(crate) use core::sync::atomic::{AtomicU32 as SwapU32, AtomicUsize as SwapUsize};

    #[cfg(not(target_has_atomic = "ptr"))]
    pub(crate) use portable_atomic::{AtomicU32 as SwapU32, AtomicUsize as SwapUsize};
}

pub use annotated::{Annotated, DefaultStack};
pub use backend::{Backend, Global, MallocFunctions};
pub use cairn_format::heapblock::{BlockLayout, StackReference};
pub use compressed::CompressedStacks;
pub use heap::{Counters, Event, Heap, Observer, Options};
pub use lock::Critical;
#[cfg(feature = "capture")]
pub use stack::{At, Here};
pub use stack::{CallStack, NoStack, UserBits};
#[cfg(target_has_atomic = "64")]
pub use table::StackTable;

/// There is nobody to tell. No input is known that leads here.
#[cfg(feature = "staticlib")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {
        core::hint::spin_loop();
    }
}
