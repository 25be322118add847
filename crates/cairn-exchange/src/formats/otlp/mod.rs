//! OpenTelemetry's profiles signal, `v1development`: an alpha, which changes between its releases. What is written here is read by those who
//! read version 1.10 of the messages.
//!
//! Entry 0 of every table is the one that means none.

mod write;

pub(crate) use write::write;
