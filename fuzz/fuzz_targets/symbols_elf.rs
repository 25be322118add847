//! Programs of any bytes: no panic, bounded time, and the same answer one by one and all at once.

#![no_main]

use cairn_format::ModuleOffset;
use cairn_symbols::{Lookup, ModuleInfo, Symbolizer, SymbolizerOptions};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    // Without a sysroot, names in the bytes would be looked for on this machine.
    let options = SymbolizerOptions::new().sysroot("/nonexistent").threads(1);
    let mut symbolizer = Symbolizer::new(options);
    let Ok(module) = symbolizer.add_image(ModuleInfo::new("/fuzzed"), input.to_vec()) else { return };
    let offsets = (0..64).map(|index| ModuleOffset::new(index * 9 + 0x140));
    let lookups: Vec<_> = offsets.map(|offset| (module, Lookup::return_address(offset))).collect();
    let answers = symbolizer.resolve_many(&lookups);
    for (&(module, lookup), answer) in lookups.iter().zip(answers.iter()).take(8) {
        assert_eq!(symbolizer.resolve(module, lookup), *answer);
        assert_eq!(answer.frames().is_empty(), answer.reason().is_some());
        assert!(symbolizer.declarations(module, lookup).len() <= 1001);
        if let Some(data) = symbolizer.data_symbol(module, lookup) {
            assert!(data.declaration.start.is_some());
        }
    }
});
