//! Whatever the bytes: a recording of call-stack-tracker is read as a heap, or refused with a
//! reason; its stacks are a tree, and what its stacks add up to is its total.
#![no_main]

use cairn_fuzz::ask_imported;

libfuzzer_sys::fuzz_target!(|data: &[u8]| ask_imported(data));
