//! Reads what programs and devices recorded, and answers questions about it.
#![forbid(unsafe_code)]
pub mod lines;
