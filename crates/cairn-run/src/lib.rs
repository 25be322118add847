//! Starts a program with cairn's recording library in it.
//!
//! The program does not notice: it gets the arguments, the environment, the directory, the
//! descriptors and the signals that it would get from the shell, and ends with the same status. A
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
//! | module | content |
//! |---|---|
//! | [`program`](Program) | finds the file of a command, and checks whether it can be recorded |
//! | [`library`](Library) | writes the library, which this crate carries, to a file |
//! | [`start`](Start) | starts the program, forwards signals, waits for the end |
//! | [`outliving`](Outliving) | ends with the program when the command has no memory left |
//! | [`detached`](start_detached) | starts work for later in a separate process |
//! | `attach` | loads the library into a running process: `Target`; on x86-64 |
//! | [`interrupts`](Interrupts) | receives the signals that ask a command to end |
//! | [`announcements`](Announcements) | reads the library's announcements of recordings |

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

pub use announcements::{Announcement, Announcements, Numbering};
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
