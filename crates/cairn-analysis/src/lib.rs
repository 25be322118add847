//! Answers questions about heaps: where memory went, what leaked, what changed, and what happened
//! when.
//!
//! Every answer is a value; `cairn-cli` prints them and `cairn-web` makes pages of them.
//!
//! ```no_run
//! use cairn_analysis::heap::{Cost, Folding, Group, HeapRecording, Names, Questions, Scope};
//! use cairn_recording::Recording;
//! use cairn_symbols::SymbolizerOptions;
//!
//! let heap = HeapRecording::new(Recording::open("program.4711.cairn")?);
//! let read = heap.read(Scope::default())?;
//! let symbols = heap.symbols(SymbolizerOptions::new());
//! let questions = Questions::new(&read.profile, Names::new(heap.stacks(), &symbols, Folding::default()));
//! for entry in questions.top(Group::Function, Cost::Peak).iter().take(10) {
//!     println!("{} {}", entry.sums.peak_bytes, questions.names().function_of(entry.line).name);
//! }
//! # Ok::<(), cairn_recording::RecordingError>(())
//! ```
//!
//! | module | task |
//! |---|---|
//! | [`attribution`] | decides whose each frame is, and which frames are folded |
//! | [`calendar`] | reads and writes times on the wall |
//! | [`family`] | lists the recordings of a program and of its children in a directory |
//! | [`file_kind`] | recognises files by their first bytes |
//! | [`heap`] | answers where a program's memory went, from its allocations and frees |
//! | [`names`] | names recorded addresses: functions, files and lines |
//! | [`player`] | replays a recording's events in order, with names |
//! | [`snapshot`] | captures and names the stacks of a running process's threads |
//! | [`source`] | opens a heap from a file of any kind, and decides what it can answer |
//! | [`units`] | writes numbers and bytes |

#![forbid(unsafe_code)]

pub mod attribution;
pub mod calendar;
pub mod code_names;
pub mod family;
pub mod file_kind;
pub mod heap;
pub mod names;
pub mod player;
#[cfg(target_os = "linux")]
pub mod snapshot;
pub mod source;
pub mod units;
