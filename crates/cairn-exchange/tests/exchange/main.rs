//! Recordings of a program that never ran, written in every format, and read again where a format is read.

mod hostile_input;
mod real_files;
mod round_trip;
#[path = "../../../cairn-recording/tests/support/spool.rs"]
mod spool;
mod subject;
mod writers;
