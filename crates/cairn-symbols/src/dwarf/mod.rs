//! What DWARF knows of an address: the function, the calls inlined into it, and the lines.
//!
//! `gimli` reads the bytes; this room decides what is read, when, and what is kept. Everything is lazy and everything is
//! shared: the directory of units is read at the first question, a unit's functions and lines at the first address in it,
//! a function's inlined calls at the first address in that. Readers of other threads wait for a unit only when they need
//! the same one.
//!
//! `addr2line::Context` does the same work for one thread, and recurses once per level of inlining, so that a hostile file
//! of a megabyte ends the process. Here nothing recurses, and what is read is bounded: see [`Budget`].

mod cuts;
mod engine;
mod functions;
mod hint;
mod lines;
mod split;
mod units;

pub(crate) use engine::{DebugFiles, Declared, Engine, ScopeId, Told, ToldPlace};
pub(crate) use split::FindSplit;
pub(crate) use units::Problem;
