//! Records marks, heap events and their call stacks from inside a program, into a file that survives its death.
//!
//! ```
//! # let directory = std::env::temp_dir();
//! # let path = directory.join(format!("doc-{}.cairn", std::process::id()));
//! # let path_bytes = std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str());
//! use cairn_recorder::{Options, mark, start};
//!
//! start(&Options::new(path_bytes))?;
//! mark("before the slow part");
//! # std::fs::remove_file(&path).unwrap();
//! # Ok::<(), cairn_recorder::StartError>(())
//! ```
//!
//! What is written is a *spool*: `cairn_format::recording` has its bytes, and every `cairn` command reads it, while the program
//! runs or after its end, whatever that was. Events lie in a shared mapping of the file as soon as they are committed, so
//! no event is lost when the program is killed, and nothing has to be written at its end.
//!
//! # What it costs the program
//!
//! An event in steady state is a capture and a few stores: no system call, no lock, no allocation. Each thread has 8 bytes of
//! thread-local storage and up to 33 KiB of memory of the recorder's. Signal handlers may do all that threads may.
//!
//! # When things go wrong
//!
//! The program goes on; the recording ends, with a word that says why, and a count of what was lost. After a fork the child
//! records nothing until it calls [`start`] itself, and never touches its parent's file.
#![no_std]

mod clock;
mod dump;
mod extent;
mod facts;
pub mod heap;
mod marks;
pub mod modules;
mod os;
mod recorder;
mod sampling;
mod spool;
mod start;
mod tables;
mod thread_log;
mod thread_word;
mod writer;

pub use cairn_capture::CallSite;
pub use cairn_format::recording::{EndReason, MappingKind, MarkValue};
pub use dump::{DumpError, dump, flush};
pub use marks::{capture_from_context, mark, mark_stack, mark_value};
pub use recorder::{
    end_before_sandbox, exiting, forbid_system_calls, forbids_system_calls, forked_child, has_ended_memory,
    is_at_rest, is_recording, is_under_way, leave_file, must_be_told_of_forks, note_passing_slots, pause,
    recording_path, release_ended, resume, set_child_starter, stop, take_less_room, wipe_in_child,
};
pub use start::{Keep, Options, StartError, start, start_default, start_in_child};
pub use thread_log::thread_ended;
#[cfg(target_arch = "x86_64")]
pub use thread_word::thread_word_offset;

/// Runs the examples in the book as tests.
#[cfg(all(doctest, target_os = "linux"))]
mod book {
    #[doc = include_str!("../../../docs/book/recorder-and-player.md")]
    struct Recorder;
    #[doc = include_str!("../../../docs/book/c-and-rust.md")]
    struct Capture;
}
