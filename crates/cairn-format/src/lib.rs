//! The words of call stacks, and every byte format cairn reads and writes.
//!
//! The crate is the ground floor of cairn and usable on its own: `no_std`, no allocation, no `unsafe`, no dependency. An
//! encoder writes into any [`Sink`]; a decoder is an iterator over borrowed bytes.
//! No input, however hostile, makes a decoder panic, allocate, or run longer than its output is asked for.

#![no_std]
#![forbid(unsafe_code)]

mod address;
pub mod base64;
pub mod bits;
pub mod bytes;
pub mod cbf;
pub mod cif;
mod frame;
pub mod heapprof;
pub mod lws;
mod module;
mod sink;
pub mod swift_json;
pub mod tracker;
mod word_size;
pub mod xnu;

pub use address::{AbsoluteAddress, FileOffset, ModuleOffset, StatedAddress};
pub use frame::Frame;
pub use module::Module;
pub use sink::{CountingSink, Sink, SinkFull, SliceSink};
pub use word_size::WordSize;

/// Runs the example in the README as a test.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
