//! Reads the logs of devices and crash logs: decodes the stacks in them, converts them, and sums
//! allocations.
//!
//! ```
//! use cairn_format::AbsoluteAddress;
//! use cairn_logs::lines::LineReader;
//! use cairn_logs::totals::AllocationTotals;
//!
//! let log = "alloc 0x8001234 64\nalloc 0x8001234 32\n";
//! let mut lines = LineReader::new(log.as_bytes());
//! let mut totals = AllocationTotals::with_stack_limit(1000);
//! while let Some(line) = lines.next_line()? {
//!     let size = std::str::from_utf8(line.bytes).unwrap().rsplit(' ').next().unwrap();
//!     totals.add(&[AbsoluteAddress::new(0x800_1234)], size.parse().unwrap());
//! }
//! assert_eq!(totals.size_bytes(), 96);
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! | module | task |
//! |---|---|
//! | [`lines`] | cuts a log into lines in bounded memory |
//! | [`decode`] | decodes bytes or text of any wire format into a stack |
//! | [`convert`] | encodes a stack in another format |
//! | [`crash_log`] | reads the threads, frames and images of a JSON crash log of Swift |
//! | [`text_bytes`] | reads bytes that were written as hexadecimal digits or base64 |
//! | [`totals`] | sums allocations by stack |

#![forbid(unsafe_code)]

pub mod convert;
pub mod crash_log;
pub mod decode;
pub mod lines;
pub mod text_bytes;
pub mod totals;
