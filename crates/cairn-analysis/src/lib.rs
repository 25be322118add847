//! Reads what programs and devices left behind, and answers questions about it.
//!
//! Every answer is a value; printing and pages are made by others. The inputs come from strangers: sizes are checked
//! before memory is taken, and a damaged record never hides the sound ones around it.
//!
//! | module | task |
//! |---|---|
//! | [`decode`] | from bytes or texts of any format to a stack |
//! | [`convert`] | from a stack to the bytes of another format |
//! | [`totals`] | from many allocations to "who holds how much" |
//! | [`lines`] | lines of a log in bounded memory |
//! | [`process`] | from a running process to the stacks of its threads |
//! | [`recording`] | from a recording to its modules, stacks, threads and events in order |
//! | [`text_bytes`] | bytes written as hexadecimal digits or base64 |

#![deny(unsafe_code)]

pub use cairn_format as format;
pub use cairn_symbols as symbols;

pub mod convert;
pub mod decode;
pub mod heap_summary;
pub mod lines;
#[cfg(target_os = "linux")]
pub mod process;
pub mod recording;
pub mod text_bytes;
pub mod totals;
