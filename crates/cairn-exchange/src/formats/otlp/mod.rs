//! OpenTelemetry's profiles signal, `v1development`: an alpha that changes between releases. Files
//! are readable with version 1.10 of the messages.
//!
//! Entry 0 of every table means none.

mod read;
mod write;

pub(crate) use read::{Resource, read};
pub(crate) use write::write;

/// Name of the format in messages.
pub(crate) const FORMAT: &str = "OTLP";
