//! Helpers that the tests of this crate share.

#![allow(dead_code, reason = "each test file uses its own part of these helpers")]
#![allow(unreachable_pub, reason = "a test's modules have no other way to be seen by it")]

pub mod assembler;
// One reader of the vectors for all crates.
#[path = "../../../cairn-wire/tests/support/mod.rs"]
pub mod vectors;
