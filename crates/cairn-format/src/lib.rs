//! Defines the types that describe call stacks (addresses, frames, modules), and the bytes of
//! recordings.
//!
//! Every other crate of cairn depends on this one. It is `no_std`, without allocation, `unsafe` or
//! dependencies.
//!
//! ```
//! use cairn_format::{AbsoluteAddress, Frame};
//!
//! let pc = Frame::ProgramCounter(AbsoluteAddress::new(0x1000));
//! let caller = Frame::ReturnAddress(AbsoluteAddress::new(0x2000));
//!
//! // The call before a return address may be the last instruction of its function.
//! assert_eq!(pc.lookup_address(), Some(AbsoluteAddress::new(0x1000)));
//! assert_eq!(caller.lookup_address(), Some(AbsoluteAddress::new(0x1fff)));
//! ```
//!
//! # One vocabulary
//!
//! A [`Frame`] is a program counter, a return address, an async resume point, a number of omitted
//! frames, or the mark that a stack goes on unrecorded. A stack is a sequence of frames, innermost
//! first, with a [`WordSize`]. The difference between a program counter and a return address
//! matters to the very end: a return address is looked up one byte earlier
//! ([`Frame::lookup_address`]), because the call that it returns to may be the last instruction of
//! its function.
//!
//! Addresses have types, by where they are valid: [`AbsoluteAddress`] in a process,
//! [`ModuleOffset`] in a [`Module`], [`StatedAddress`] in a file's own tables, [`FileOffset`].

#![no_std]
#![forbid(unsafe_code)]

mod address;
pub mod bytes;
mod frame;
mod hexadecimal;
mod module;
pub mod recording;
mod shown;
mod sink;
pub mod unpack;
mod word_size;

pub use address::{AbsoluteAddress, FileOffset, ModuleOffset, StatedAddress};
pub use frame::Frame;
pub use hexadecimal::Hexadecimal;
pub use module::Module;
pub use shown::changes_its_surroundings;
pub use sink::{CountingSink, Sink, SinkFull, SliceSink};
pub use word_size::WordSize;
