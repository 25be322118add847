//! Writes packed recordings, from events or from the spool of a running program.

#[cfg(target_os = "linux")]
pub(crate) mod drain;
pub(crate) mod pack;
