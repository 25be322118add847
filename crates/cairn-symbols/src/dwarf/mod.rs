//! Answers from DWARF: the function at an address, the calls inlined into it, and the lines.
//!
//! `gimli` parses the bytes; this module decides what is parsed, when, and what is cached.
//! Everything is lazy and shared: the directory of units is read at the first query, a unit's
//! functions and lines at the first address in it, a function's inlined calls at the first address
//! in that function. Threads wait for each other only when they need the same unit.
//!
//! `addr2line::Context` does the same for one thread, but recurses once per level of inlining, so a
//! hostile file of one megabyte overflows the stack. Nothing recurses here, and the work is
//! bounded: see [`Budget`].

mod cuts;
mod engine;
mod functions;
mod hint;
mod lines;
mod split;
mod units;

pub(crate) use engine::{DebugFiles, Declared, Engine, ScopeId, SegmentSink, SourcePosition};
pub(crate) use split::FindSplit;
pub(crate) use units::DwarfError;
