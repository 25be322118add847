//! Converts recordings to the formats of other tools, and their files to heaps.
//!
//! ```
//! use cairn_exchange::{Compression, Target, import::Kind};
//!
//! // Reading: the first bytes decide the format.
//! assert_eq!(Kind::of(&b"v 10400 3\nX ls\n"[..])?, Some(Kind::Heaptrack));
//! // Writing: a target has a name on the command line, and a default extension.
//! let target = Target::ALL.into_iter().find(|target| target.name() == "heaptrack").unwrap();
//! let file = format!("app.{}", target.extension());
//! assert_eq!(Compression::of_name(file.as_ref()), Compression::Zstd);
//! # Ok::<(), cairn_exchange::ExchangeError>(())
//! ```
//!
//! ```text
//!   a heap recording ----+                    +--> pprof, speedscope, folded, OTLP,
//!   a recording of marks +--> Profile --------+    .heapprofile, tables
//!   a core analysis -----+    (sums by stack) +<-- pprof
//!
//!   a heap recording ----> replayed events ---+--> heaptrack, Firefox Profiler, DHAT
//!                                             +<-- heaptrack, Firefox Profiler, tracker
//! ```
//!
//! A [`Profile`] holds stacks of named frames, each with several numbers; most formats are written
//! from it. Formats that need the order of events are written from the events.
//! [`write_tracker`] writes the events of modules and marks as call-stack-tracker does.
//! [`Written::losses`] lists, in sentences for the user, what a format could not store.
//!
//! | module | task |
//! |---|---|
//! | `formats` | one folder per tool, with `read` and `write` |
//! | `model` | the data between them: [`profile`], events, changes, [`marks`] |
//! | [`target`] | exports to any format, chosen by name |
//! | [`import`] | imports any format, recognised by its first bytes |

#![forbid(unsafe_code)]

mod dispatch;
mod error;
mod formats;
pub mod import;
mod inflate;
mod model;

pub use dispatch::target::{self, Compression, Subject, Target, Written, write};
pub use error::ExchangeError;
pub use formats::tracker::write as write_tracker;
pub use model::marks;
pub use model::profile::{self, Column, Profile, Unit};
