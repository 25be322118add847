//! Reads what programs and devices left behind, and answers questions about it.
//!
//! Every answer is a value; printing and pages are made by others. The inputs come from strangers: sizes are checked
//! before memory is taken, and a damaged record never hides the sound ones around it.
//!
//! | module | task |
//! |---|---|
//! | [`calendar`] | times on the wall, read and written |
//! | [`core`] | from a memory image to who allocated its blocks, what is damaged, and what leaked |
//! | [`crash_log`] | from a JSON crash log of Swift to its threads, frames and images |
//! | [`decode`] | from bytes or texts of any format to a stack |
//! | [`convert`] | from a stack to the bytes of another format |
//! | [`totals`] | from many allocations to "who holds how much" |
//! | [`heap`] | from a program's allocations and frees to "where does the memory go?" |
//! | [`image`] | the memory of a program that is no more, or on another machine: cores, minidumps, raw dumps |
//! | [`lines`] | lines of a log in bounded memory |
//! | [`names`] | from recorded places to functions and lines |
//! | [`player`] | from a recording to its events in order, each with its names |
//! | [`process`] | from a running process to the stacks of its threads |
//! | [`recording`] | from a recording to its modules, stacks, threads and events in order |
//! | [`snapshot`] | the threads of a running process as one value, with names |
//! | [`spool_builder`] | from what was found out otherwise to a recording |
//! | [`text_bytes`] | bytes written as hexadecimal digits or base64 |

#![deny(unsafe_code)]

pub use cairn_format as format;
pub use cairn_symbols as symbols;

pub mod calendar;
pub mod convert;
#[cfg(target_os = "linux")]
pub mod core;
pub mod crash_log;
pub mod decode;
pub mod heap;
#[cfg(target_os = "linux")]
pub mod image;
pub mod lines;
pub mod names;
pub mod player;
#[cfg(target_os = "linux")]
pub mod process;
pub mod recording;
#[cfg(target_os = "linux")]
pub mod snapshot;
pub mod spool_builder;
pub mod text_bytes;
pub mod totals;
