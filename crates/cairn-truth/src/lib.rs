//! Compares captured stacks with libgcc's, frame by frame, in the same process and at the same
//! call.
//!
//! ```no_run
//! use std::process::Command;
//! use std::time::Duration;
//!
//! use cairn_truth::driver::Workplace;
//! use cairn_truth::report::Counter;
//!
//! let workplace = Workplace::new("example")?;
//! let program = workplace.compile("cases.c", "cases", &["-O2"])?;
//! let ended = workplace.run(&mut Command::new(program), Duration::from_secs(60))?;
//! assert_eq!(ended.report.count(Counter::Wrong), 0);
//! # Ok::<(), String>(())
//! ```
//!
//! A program calls [`checks::truth_check`] itself (the programs in `fixtures/programs` do), or runs
//! with a small preload library that calls it in malloc (`fixtures/programs/hooks.c`). The results
//! are counters in a shared file, the value of `CAIRN_TRUTH_REPORT`. The file survives any end of
//! the program, and all of the program's children add to the same counters.
//!
//! Nothing here allocates or has thread-local state, because all of it runs inside malloc and in
//! signal handlers.

pub mod checks;
pub mod driver;
mod libgcc;
#[cfg(target_arch = "x86_64")]
pub mod python;
pub mod real_programs;
pub mod report;
pub mod torture;
pub mod torture_runs;
