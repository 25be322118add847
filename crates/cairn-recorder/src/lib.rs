//! Records marks, heap events and their call stacks from inside a program, into a file that
//! survives any end of the program.
//!
//! ```
//! # let directory = std::env::temp_dir();
//! # let path = directory.join(format!("doc-{}.cairn", std::process::id()));
//! # let path_bytes = path.as_os_str().as_encoded_bytes();
//! use cairn_recorder::{EndReason, MarkValue, Options, is_recording, mark, mark_value, start, stop};
//!
//! start(&Options::new(path_bytes))?;
//! mark("before the slow part");
//! let lines = (1..=3).sum::<i64>();
//! mark_value("lines read", MarkValue::Integer(lines));
//! assert!(is_recording());
//! stop(EndReason::Stopped);
//! # std::fs::remove_file(&path).unwrap();
//! # Ok::<(), cairn_recorder::StartError>(())
//! ```
//!
//! The file is a *spool*: `cairn_format::recording` describes its bytes. Every `cairn` command
//! reads it, while the program runs and after its end. Events lie in a shared mapping of the file
//! as soon as they are committed, so that no event is lost when the program is killed, and nothing
//! has to be written at its end.
//!
//! # Overhead
//!
//! An event in steady state is a capture and a few stores: no system call, no lock, no allocation.
//! Each thread has 8 bytes of thread-local storage and up to 33 KiB of the recorder's memory. Every
//! function may be called in a signal handler unless its documentation excludes it.
//!
//! # Failures
//!
//! The program continues; the recording ends, and states the reason and the number of lost events.
//! After a fork the child records nothing until it calls [`start`] itself, and never touches its
//! parent's file.
//!
//! # Systems
//!
//! Linux on x86-64 and AArch64, and Windows on x86-64. There the path is UTF-8, or WTF-8 as
//! `OsStr::as_encoded_bytes` returns it; loads, unloads and the ends of threads are noticed without
//! a call of the program; nothing forks. Tested in wine 8 only.
//! `docs/design/0018-recordings-on-windows.md` says how it works.
//!
//! # Modules
//!
//! Each module uses only modules above it in this table; there is no circle.
//!
//! | module | task | uses |
//! |---|---|---|
//! | `zone` | parts of the address space | |
//! | `path_text` | C strings in buffers | |
//! | `calls` | functions of Windows | |
//! | `text` | UTF-16 and WTF-8, on Windows | |
//! | `errors` | error numbers of Windows | `calls` |
//! | `memory` | memory of Windows | `calls`, `errors`, `zone` |
//! | `file` | files of Windows | `calls`, `errors`, `memory`, `text`, `zone` |
//! | `process_block` | paths, command line and variables, on Windows | `calls`, `text` |
//! | `os` | system calls | `calls`, `errors`, `file`, `memory`, `path_text`, `process_block`, `zone` |
//! | `clock` | reads the counter and the clocks | `os` |
//! | `thread_word` | a word of thread-local storage | |
//! | `epochs` | counters that order frees and allocations | |
//! | `build_id` | build ids of loaded modules | |
//! | `call_site` | entries that pass the caller's registers on | |
//! | `module_table` | table of loaded modules | |
//! | `mode` | the word that decides whether events are recorded | `os` |
//! | `extent` | memory that grows in place | `os` |
//! | `chooser` | random choice of blocks | `clock` |
//! | `module_list` | lists the loaded modules | `build_id`, `calls`, `os`, `path_text`, `process_block` |
//! | `facts` | writes facts | `build_id`, `path_text` |
//! | `process_facts` | facts of the process that the system states | `build_id`, `facts`, `os`, `path_text`, `process_block` |
//! | `fact_list` | all facts of the process | `clock`, `facts`, `os`, `process_facts` |
//! | `spool` | the file, its mapping, its segments | `clock`, `extent`, `os`, `zone` |
//! | `writer` | appends records to segments | `clock`, `spool` |
//! | `table_log` | places to write tables through | `writer` |
//! | `thread_log` | lanes and filter of a thread; takes a lane on the fast path | `chooser`, `epochs`, `mode`, `os`, `thread_word`, `writer` |
//! | `recorder` | the state that all threads share; forks | `clock`, `extent`, `mode`, `module_table`, `os`, `spool`, `table_log`, `thread_log`, `writer`, `zone` |
//! | `requests` | pauses and resumes; starts children | `epochs`, `mode`, `os`, `recorder` |
//! | `tables` | writes records of tables | `recorder`, `spool`, `table_log` |
//! | [`modules`] | writes loads and unloads | `build_id`, `clock`, `module_list`, `module_table`, `os`, `recorder`, `spool`, `tables`, `writer` |
//! | `interpreters` | writes code of interpreters | `os`, `recorder`, `tables` |
//! | `stacks` | writes new stacks | `interpreters`, `modules`, `os`, `recorder`, `tables` |
//! | `lanes` | takes a lane on the slow path; stamps; first event of a thread | `clock`, `epochs`, `os`, `recorder`, `requests`, `spool`, `thread_log`, `writer` |
//! | `sampling` | remembers chosen blocks | `chooser`, `lanes`, `os`, `thread_log` |
//! | [`heap`] | events of the heap | `clock`, `epochs`, `lanes`, `mode`, `recorder`, `requests`, `sampling`, `spool`, `thread_log`, `writer` |
//! | `ending` | ends a recording, unmaps it | `clock`, `lanes`, `mode`, `os`, `recorder`, `sampling`, `thread_log` |
//! | `notifications` | loads and unloads, as Windows states them | `calls`, `ending`, `module_list`, `modules`, `os`, `requests` |
//! | `exits` | ends of threads and of the process, on Windows | `calls`, `ending`, `lanes`, `notifications` |
//! | `dump` | copies a recording, flushes it | `os`, `path_text`, `recorder`, `spool`, `tables` |
//! | `start` | starts a recording | `epochs`, `fact_list`, `facts`, `lanes`, `mode`, `module_list`, `modules`, `notifications`, `os`, `path_text`, `recorder`, `requests`, `sampling`, `spool`, `stacks`, `thread_word` |
//! | `marks` | events that the program marks | `clock`, `lanes`, `mode`, `start` |
#![no_std]

mod call_site;
mod chooser;
mod clock;
mod dump;
mod ending;
mod epochs;
mod extent;
mod fact_list;
mod facts;
pub mod heap;
mod interpreters;
mod lanes;
#[cfg(target_os = "linux")]
mod linux;
mod marks;
mod mode;
mod module_table;
pub mod modules;
mod path_text;
mod recorder;
mod requests;
mod sampling;
mod spool;
mod stacks;
mod start;
mod table_log;
mod tables;
mod thread_log;
#[cfg(windows)]
mod windows;
mod writer;
mod zone;

#[cfg(target_os = "linux")]
use linux as system;
#[cfg(windows)]
use windows as system;

#[cfg(windows)]
use system::notifications;
use system::{build_id, module_list, os, process_facts, thread_word};

#[cfg(not(any(target_os = "linux", windows)))]
compile_error!("cairn-recorder supports Linux, and Windows on x86-64");

pub use cairn_capture::CallSite;
#[cfg(windows)]
#[doc(hidden)]
pub use cairn_capture::environment;
pub use cairn_format::recording::{EndReason, InterpreterState, MappingKind, MarkValue};
pub use dump::{DumpError, dump, flush};
#[cfg(target_os = "linux")]
pub use ending::release_ended;
pub use ending::{end_before_sandbox, exiting, has_ended_memory, leave_file, note_exec, stop, wipe_in_child};
pub use interpreters::note_interpreter;
pub use lanes::thread_ended;
pub use marks::{capture_from_context, mark, mark_stack, mark_value};
pub use recorder::{needs_fork_hook, recording_path};
pub use requests::{
    forbid_system_calls, forbids_system_calls, forked_child, is_at_rest, is_recording, is_under_way,
    limit_room, note_bypassing_slots, pause, resume, set_child_starter,
};
pub use start::{Keep, Options, StartError, start, start_default, start_in_child};
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub use thread_word::thread_word_offset;

/// Runs the examples in the book as tests.
#[cfg(all(doctest, target_os = "linux"))]
mod book {
    #[doc = include_str!("../../../docs/book/recorder-and-player.md")]
    struct Recorder;
    #[doc = include_str!("../../../docs/book/c-and-rust.md")]
    struct Capture;
}
