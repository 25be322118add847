//! Recordings in the formats of other tools, and theirs in ours.
//!
//! ```text
//!   a heap recording ----+                      +--> pprof, speedscope, folded, .heapprofile, OTLP, tables
//!   a recording of marks +--> Profile ----------+
//!   a core analysis -----+    (sums by stack)   +<-- pprof
//!
//!   a heap recording ----> its events, again ---+--> heaptrack, Firefox Profiler, DHAT
//!                                               +<-- heaptrack, Firefox Profiler, call-stack-tracker
//! ```
//!
//! A [`Profile`] is what most formats hold: stacks of named frames, with some numbers for each. What needs the order of events is written from the
//! events. What a format cannot hold is said in [`Written::losses`], in sentences for the person who asked for it.
//!
//! | module | task |
//! |---|---|
//! | [`profile`] | stacks with numbers, and where they come from |
//! | [`target`] | the formats by name, and one function that writes any |
//! | [`import`] | files of other tools, recognised by their bytes, as a heap that can be asked questions |
//! | `pprof`, `speedscope`, `folded`, `heapprofile`, `otlp`, `table` | from a profile to bytes |
//! | `heaptrack`, `firefox`, `dhat` | from events to bytes, and back |
//! | `tracker` | from recordings of call-stack-tracker |

#![forbid(unsafe_code)]

mod dispatch;
mod error;
mod formats;
pub mod import;
mod inflate;
mod model;

pub use dispatch::target::{self, Compression, Subject, Target, Written, write};
pub use error::ExchangeError;
pub use model::marks;
pub use model::profile::{self, Column, Profile, Unit};
