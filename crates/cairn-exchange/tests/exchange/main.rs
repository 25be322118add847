//! Exports recordings of a fictitious program to every format, and imports them again.

mod hostile_input;
mod real_files;
mod round_trip;
#[path = "../../../cairn-recording/tests/support/spool.rs"]
mod spool;
mod subject;
mod writers;
