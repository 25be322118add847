//! Whatever the bytes: a heaptrack file is read, or refused with a reason; its stacks are a tree,
//! and what its stacks add up to is its total.
#![no_main]

use cairn_fuzz::ask_imported;

libfuzzer_sys::fuzz_target!(|data: &[u8]| ask_imported(data));
