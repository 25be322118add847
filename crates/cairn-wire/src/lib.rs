//! Reads and writes the byte formats of call stacks and annotated heaps that other tools made
//! first.
//!
//! The crate is usable on its own, on a microcontroller as well as in a shell pipe: `no_std`, no
//! allocation, no `unsafe`. Its only dependency is [`cairn_format`], which has the types of
//! addresses, frames and modules.
//!
//! ```
//! use cairn_format::{AbsoluteAddress, Frame, SliceSink, WordSize};
//! use cairn_wire::cbf;
//!
//! // On the device: encode a stack into a small buffer.
//! let stack = [0x0800_1234, 0x0800_0f42].map(|address| Frame::ReturnAddress(AbsoluteAddress::new(address)));
//! let mut buffer = [0; 32];
//! let mut sink = SliceSink::new(&mut buffer);
//! cbf::encode(stack, WordSize::Bits32, cbf::CbfDialect::Strict, &mut sink)?;
//!
//! // Later, on another machine: decode the stack.
//! let frames: Result<Vec<Frame>, _> = cbf::CbfDecoder::new(sink.written(), cbf::Rules::STRICT).collect();
//! assert_eq!(frames?, stack);
//! # Ok::<(), Box<dyn core::error::Error>>(())
//! ```
//!
//! # Which format for what
//!
//! | format | module | holds | bytes a frame | made by |
//! |---|---|---|---|---|
//! | Compact Backtrace Format | [`cbf`] | all five kinds of frames, any depth | 4.2 | Swift |
//! | libwebsockets backtrace | [`lws`] | up to 31 return addresses, an allocation size, own bit fields | 4.6 | libwebsockets |
//! | XNU packing | [`xnu`] | addresses, whole or as distances from the kernel | 8 or 4 | Darwin |
//! | Compact ImageMap Format | [`cif`] | modules: addresses, build ids, paths | - | Swift |
//! | Swift's JSON | [`swift_json`] | a stack and its modules, as text | - | Swift |
//! | heapprof blocks | [`heapprof`] | an allocation's callers, in memory in front of it | 8 | heapprof |
//! | cairn's heap blocks | [`heapblock`] | who allocated a block, in memory in front of it; the program's table of stacks | 16 a block | cairn |
//! | cairn's recordings | [`cairn_format::recording`] | modules, stacks, marks, allocations, in time | 0.1 to 4 | cairn |
//! | Python's line tables | [`python_lines`] | the line of each instruction of a code object | - | CPython |
//! | call-stack-tracker recordings | [`tracker`] | module loads and unloads and stacks, in time | 8 | a Windows tutorial |
//!
//! A new program that may choose takes CBF: it is the only one that says where frames are missing.
//! A device that already prints `~m#` lines keeps doing so. (Bytes a frame: real stacks of thirteen
//! programs, 64-bit addresses.)
//!
//! # How the modules are alike
//!
//! An encoder writes into any [`Sink`](cairn_format::Sink): a slice, a UART, a file. A decoder is
//! an iterator over borrowed bytes; repeats are expanded as they are read, because a few bytes may
//! claim 2^63 frames. No input, however hostile, makes a decoder panic, allocate, or work longer
//! than its output is asked for.
//!
//! *Strict* decoders refuse what the format's document does not allow, and say at which byte or
//! bit. *Lenient* ones return as much as possible, with a list of findings, and never fewer frames
//! than the strict ones.
//!
//! # Where the published documents are wrong
//!
//! Each module ends its introduction with what its documents get wrong; all of it was established
//! by running the implementations. In short:
//!
//! - [`lws`]: every field has a spare bit that the description does not mention, whose content
//!   depends on the compiler; the documented example does not decode to the printed line;
//!   addresses of 2^31 and more come out damaged.
//! - [`cbf`]: Swift writes the first address relative and, up to 6.2, no end mark, and its reader
//!   then claims that a complete stack was cut; older copies of the document reserve the `rep`
//!   instruction that every shipped version writes.
//! - [`cif`]: counts with a useless leading byte, prefix codes cut to too few bytes, framework
//!   names that overflow.
//! - [`xnu`]: the last entry that exactly fits a buffer is written but not counted.
//! - [`heapprof`]: a stray magic word in user data swallows the block after it.
//! - [`tracker`]: a module that takes the place of another keeps the other's range.

#![no_std]
#![forbid(unsafe_code)]

pub mod base64;
pub mod bits;
pub mod cbf;
pub mod cif;
pub mod heapblock;
pub mod heapprof;
pub mod lws;
pub mod python_lines;
pub mod swift_json;
pub mod tracker;
pub mod xnu;

/// Runs the example in the book as a test.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/book/reference/wire-formats.md")]
struct Book;
