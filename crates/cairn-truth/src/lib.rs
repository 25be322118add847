//! Is a captured stack the right one? This library is loaded into a program and asks libgcc, in the same process, at the
//! same call, and compares every frame.
//!
//! A program calls [`checks::truth_check`] where it likes (the programs in `fixtures/programs` do), or is run with a
//! small preload library that calls it in malloc (`fixtures/programs/hooks.c`). The results are counters in a shared file
//! that `CAIRN_TRUTH_REPORT` names: they are there however the program ends, and all its children count into the same.
//!
//! Nothing here allocates or keeps thread-local state, because all of it runs inside malloc and in signal handlers.

pub mod checks;
pub mod driver;
mod libgcc;
pub mod real_programs;
pub mod report;
pub mod torture;
pub mod torture_runs;
