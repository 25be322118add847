//! A PDB: every address has frames or a reason, soon. Its reader panics at some of them, which the
//! source catches; here that must not end the run.
#![no_main]

use std::sync::Once;

static QUIET: Once = Once::new();

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    QUIET.call_once(|| std::panic::set_hook(Box::new(|_| ())));
    cairn_fuzz::ask_symbols("x.pdb", bytes);
});
