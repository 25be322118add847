//! Starts a program with cairn's recording library in it.
//!
//! The program shall not notice: it gets the arguments, the environment, the directory, the
//! descriptors, the signals that it would get from the shell, and ends with the same status. A
//! program that cannot be recorded is refused before it starts, with the reason and a remedy.
//!
//! ```no_run
//! use cairn_run::{Event, Library, Program, Start};
//! let program = Program::find("ls".as_ref())?;
//! program.inspect()?;
//! let library = Library::unpack()?;
//! let mut running = Start { program: &program, arguments: &["-l".into()], library: Some((&library, "paused".as_ref())) }.run()?;
//! loop {
//!     match running.wait(std::time::Duration::from_millis(1))? {
//!         Event::Ended(end) => break end.imitate(),
//!         _ => {}
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | module | what is in it |
//! |---|---|
//! | [`program`](Program) | which file a command is, and whether it can be recorded |
//! | [`library`](Library) | the library, carried in this crate, as a file |
//! | [`start`](Start) | the start, signals, the end |
//! | [`outliving`](Outliving) | the program's end, where the command has no memory left |
//! | [`detached`](start_detached) | work for later, in a process of its own |
//! | `attach` | the library put into a process that runs already: `Target`; on x86-64 |
//! | [`interrupts`](Interrupts) | the signals that ask a command to end |
//! | [`announcements`](Announcements) | what the library says of the recordings that it began |

#![cfg(target_os = "linux")]

mod announcements;
#[cfg(target_arch = "x86_64")]
mod attach;
mod detached;
mod inherited;
#[cfg(target_arch = "x86_64")]
mod inject;
mod interrupts;
mod library;
mod obstacle;
mod outliving;
mod program;
mod start;

pub use announcements::{Announcement, Announcements};
#[cfg(target_arch = "x86_64")]
pub use attach::{AttachError, Target};
pub use detached::start_detached;
pub use interrupts::Interrupts;
pub use library::Library;
pub use obstacle::Obstacle;
pub use outliving::Outliving;
pub use program::Program;
pub use start::{End, Event, Running, Start, StartError, terminal_takes_lines};

/// Returns the size of a page in bytes; the kernel counts some things in pages.
#[must_use]
pub fn page_bytes() -> u64 {
    // SAFETY: only asks.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}
