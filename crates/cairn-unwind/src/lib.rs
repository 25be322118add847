//! Unwinds call stacks: from registers, a memory reader and unwind tables to the calling frame.
//!
//! ```
//! use cairn_format::AbsoluteAddress;
//! use cairn_unwind::{AddressRange, OneModule, Registers, SliceMemory, Walk, x86_64::X86_64};
//!
//! let at = AbsoluteAddress::new;
//! let stack: Vec<u8> = [0_u64, 0x40_1100].iter().flat_map(|word| word.to_le_bytes()).collect();
//! let program = OneModule::new(AddressRange::new(at(0x40_1000), at(0x40_2000)), None);
//! let registers = Registers::<X86_64>::new(0x40_1050, 0x7000, 0x7000);
//! let walk = Walk::new(registers, SliceMemory::new(at(0x7000), &stack), program);
//! let frames: Vec<_> = walk.filter_map(|frame| frame.frame.address()).collect();
//! assert_eq!(frames, [at(0x40_1050), at(0x40_1100)]);
//! ```
//!
//! # How it works
//!
//! ```text
//!   registers ---+
//!   memory ------+--> row or rule of the pc --> registers of the caller --> ... --> StopReason
//!   tables ------+
//! ```
//!
//! The same code walks this thread, another process, a core file and a test, because it does not
//! depend on the source of bytes: stack memory is behind a [`MemoryReader`], unwind tables are
//! borrowed slices. It runs inside signal handlers and allocators, so it never allocates, never
//! locks, never calls the operating system, and never panics, for any contents of the tables.
//!
//! Where no table covers the code, as in the output of a JIT compiler, a step must prove itself: by
//! code of a known shape, or by a frame pointer that leads to a return address with a call in front
//! of it. Only there a walk reads code, a few bytes on both sides of a return address, by
//! [`Modules::read_code`].
//!
//! | to | use |
//! |---|---|
//! | walk a whole stack and get the reason why it ended | [`Walk`] |
//! | turn one pc into a few bits that a cache can hold | [`FrameTable::rule`](cfi::FrameTable::rule) |
//! | step one frame with complete unwind information | [`FrameTable::row`](cfi::FrameTable::row), [`Row::step`](cfi::Row::step) |
//! | step by the tables of a Windows module | [`pdata::FunctionTable`] |
//! | follow frame pointers alone | [`FramePointerWalk`] |
//! | walk the stack of a RISC-V device with frame pointers | [`riscv::RiscvWalk`] |
//! | walk the register windows of an Xtensa device | [`xtensa::XtensaWalk`] |
//! | walk as Darwin's kernel does | [`xnu`] |
//! | find the frames of CPython | [`python`] |
//!
//! Machines are twin folders with equal file names, [`x86_64`] and [`aarch64`], behind the trait
//! [`Machine`]. Shadow stacks (Intel's SHSTK, Arm's GCS) need no unwinding: they contain only
//! return addresses. A capture could copy one, and use this crate only to find the signal frames
//! among its entries.

#![no_std]
#![forbid(unsafe_code)]

pub mod aarch64;
pub mod cfi;
pub mod compact;
mod fold;
mod frame_pointer;
mod machine;
mod memory;
pub mod pdata;
pub mod python;
mod registers;
pub mod riscv;
mod stop_reason;
mod walk;
pub mod x86_64;
pub mod xnu;
pub mod xtensa;

pub use fold::FoldRecursion;
pub use frame_pointer::{FrameLayout, FramePointerWalk, FrameRecord};
pub use machine::{
    CALL_BYTES, CoreRegisters, Machine, RuleFailure, SHAPE_BYTES, SHAPE_BYTES_BEFORE, UsualCie,
};
pub use memory::{AddressRange, BoundedMemory, FnMemory, MemoryReader, RegionMemory, SliceMemory};
pub use registers::Registers;
pub use stop_reason::StopReason;
pub use walk::{FoundBy, Modules, OneModule, Walk, WalkFrame};
