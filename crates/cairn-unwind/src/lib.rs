//! Registers, a memory reader and unwind tables in; the calling frame out.
//!
//! ```text
//!   registers ---+
//!   memory ------+--> row or rule of the pc --> registers of the caller --> ... --> StopReason
//!   tables ------+
//! ```
//!
//! The same code walks this thread, another process, a core file and a test, because it never asks where bytes come
//! from: stack memory is behind a [`MemoryReader`], unwind tables are borrowed slices. It runs inside signal handlers
//! and allocators, so it never allocates, never locks, never calls the operating system, never reads code bytes, and
//! never panics, whatever the tables say.
//!
//! | to | use |
//! |---|---|
//! | walk a whole stack and learn why it ended | [`Walk`] |
//! | turn one pc into a few bits that a cache can hold | [`FrameTable::rule`](cfi::FrameTable::rule) |
//! | step one frame with everything the tables say | [`FrameTable::row`](cfi::FrameTable::row), [`Row::step`](cfi::Row::step) |
//! | follow frame pointers alone | [`FramePointerWalk`] |
//! | walk the stack of a RISC-V device with frame pointers | [`riscv::Walk`] |
//! | walk the register windows of an Xtensa device | [`xtensa::Walk`] |
//! | walk as Darwin's kernel does | [`xnu`] |
//!
//! Machines are twin folders with equal file names, [`x86_64`] and [`aarch64`], behind the trait [`Machine`].
//! Shadow stacks (Intel's SHSTK, Arm's GCS) need no unwinding: their return addresses lie side by side. A capture that
//! finds one copies it and uses this crate only to say which of the entries are signal frames.

#![no_std]
#![forbid(unsafe_code)]

pub mod aarch64;
pub mod cfi;
pub mod compact;
mod fold;
mod frame_pointer;
mod machine;
mod memory;
mod registers;
pub mod riscv;
mod stop_reason;
mod walk;
pub mod x86_64;
pub mod xnu;
pub mod xtensa;

pub use fold::FoldRecursion;
pub use frame_pointer::{FrameLayout, FramePointerWalk, FrameRecord};
pub use machine::{CoreRegisters, Machine, RuleFailure, UsualCie};
pub use memory::{AddressRange, BoundedMemory, FnMemory, MemoryReader, RegionMemory, SliceMemory};
pub use registers::Registers;
pub use stop_reason::StopReason;
pub use walk::{FoundBy, Modules, OneModule, Walk, WalkFrame};
