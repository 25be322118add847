//! Starts a program on Windows with the heap hooks in it.
//!
//! The program starts suspended; a thread loads the library, which hooks the heap and starts the
//! recording; then the program's first instruction runs. A program that cannot be recorded is ended
//! before that.
//!
//! ```no_run
//! use cairn_run::windows::{Library, Start};
//! let library = Library::unpack()?;
//! let start = Start {
//!     program: "demo.exe".as_ref(),
//!     arguments: &[],
//!     library: &library,
//!     children: false,
//!     mappings: false,
//! };
//! let mut running = start.run(|process| format!(r"C:\recordings\demo.{process}.cairn").into())?;
//! println!("recording: {}", running.recording().display());
//! std::process::exit(running.wait()?);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | module | content |
//! |---|---|
//! | [`program`](find) | finds the file of a program, and checks whether it can be recorded |
//! | [`library`](Library) | writes the library, which this crate carries, to a file |
//! | [`start`](Start) | starts the program, and waits for its end |
//! | `inject` | loads the library into the suspended process |
//! | `exchange` | memory shared with the library: what is requested, and the answer |
//! | `section` | named memory that processes share |
//! | `unrecorded` | memory of a whole run: which children are not recorded |
//! | `calls` | functions of Windows |

mod calls;
mod exchange;
mod inject;
mod library;
mod program;
mod section;
mod start;
mod unrecorded;

pub use library::Library;
pub use program::find;
pub use start::{Running, Start, StartError, is_running};
pub use unrecorded::Unrecorded;
