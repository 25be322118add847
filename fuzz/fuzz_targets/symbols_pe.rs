//! A PE file, with its PDB nowhere to be found: every address has frames or a reason, soon.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cairn_fuzz::ask_symbols("x.exe", bytes));
