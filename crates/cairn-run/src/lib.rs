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
//!
//! `content` distinguishes libraries that were written, on both systems. On Windows there is the
//! module `windows` besides: it starts a program suspended, loads another library into it, and lets
//! it run.

#![cfg(any(target_os = "linux", windows))]

#[cfg(target_os = "linux")]
mod announcements;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod attach;
mod content;
#[cfg(target_os = "linux")]
mod detached;
#[cfg(target_os = "linux")]
mod inherited;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod inject;
#[cfg(target_os = "linux")]
mod interrupts;
#[cfg(target_os = "linux")]
mod library;
#[cfg(target_os = "linux")]
mod obstacle;
#[cfg(target_os = "linux")]
mod outliving;
#[cfg(target_os = "linux")]
mod program;
#[cfg(target_os = "linux")]
mod start;
#[cfg(windows)]
pub mod windows;

#[cfg(target_os = "linux")]
pub use announcements::{Announcement, Announcements, Numbering};
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub use attach::{AttachError, Target};
#[cfg(target_os = "linux")]
pub use detached::start_detached;
#[cfg(target_os = "linux")]
pub use interrupts::Interrupts;
#[cfg(target_os = "linux")]
pub use library::Library;
#[cfg(target_os = "linux")]
pub use obstacle::Obstacle;
#[cfg(target_os = "linux")]
pub use outliving::Outliving;
#[cfg(target_os = "linux")]
pub use program::Program;
#[cfg(target_os = "linux")]
pub use start::{End, Event, Running, Start, StartError, terminal_takes_lines};

/// Returns the size of a page in bytes; the kernel counts some things in pages.
#[cfg(target_os = "linux")]
#[must_use]
pub fn page_bytes() -> u64 {
    // SAFETY: only asks.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}
