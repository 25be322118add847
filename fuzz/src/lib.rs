//! Functions that the targets for symbol files share, and those for files of other tools.

use std::time::{Duration, Instant};

use cairn_analysis::heap::{Cost, Folding, Group, Names, Questions, Scope};
use cairn_exchange::import::Imported;
use cairn_format::{ModuleOffset, StatedAddress};
use cairn_symbols::{Lookup, ModuleInfo, Symbolizer, SymbolizerOptions};

/// Opens the bytes as a file of this name and looks up addresses. Some are near the base, others
/// are words of the file. An answer has frames or a reason, names within their limits, and comes
/// soon.
pub fn ask_symbols(name: &str, bytes: &[u8]) {
    // The places that are searched must not exist: only these bytes are of interest.
    let options = SymbolizerOptions::new().threads(1).sysroot("/nonexistent");
    let mut symbolizer = Symbolizer::new(options);
    let path = format!("/nonexistent/{name}");
    let Ok(module) = symbolizer.add_image(ModuleInfo::new(path), bytes.to_vec()) else { return };
    let near = (0..16).map(|step| Lookup::program_counter(ModuleOffset::new(0x1000 + step * 0x13)));
    let nearer = (0..8).map(|step| Lookup::return_address(ModuleOffset::new(0x400 + step * 0x21)));
    let words = bytes
        .windows(8)
        .step_by(4)
        .take(64)
        .map(|word| Lookup::stated(StatedAddress::new(u64::from_le_bytes(word.try_into().unwrap()))));
    let start = Instant::now();
    for lookup in near.chain(nearer).chain(words) {
        let answer = symbolizer.resolve(module, lookup);
        assert!(answer.frames().is_empty() == answer.reason().is_some());
        assert!(answer.frames().len() <= 1001);
        for frame in answer.frames() {
            assert!(frame.line != Some(0) || frame.column.is_none_or(|column| column == 0));
        }
    }
    assert!(start.elapsed() < Duration::from_secs(8), "{:?}", start.elapsed());
}

/// Reads the bytes as a file of another tool, and asks what a report asks.
pub fn ask_imported(bytes: &[u8]) {
    let file = match Imported::from_bytes(bytes.to_vec()) {
        Ok(file) => file,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    for (stack, index) in file.profile().stacks.iter().zip(0..) {
        assert!(stack.caller.is_none_or(|caller| caller < index));
        assert!((stack.location as usize) < file.profile().locations.len());
    }
    let Ok(read) = file.read(&Scope::default()) else { return };
    let names = Names::new(file.stacks(), &file, Folding::default());
    let questions = Questions::new(&read.sums, names);
    let top = questions.top(Group::Function, Cost::Allocated);
    let sum = top.iter().fold(0_u64, |sum, entry| sum.saturating_add(entry.sums.allocations));
    assert_eq!(sum, read.sums.totals.allocations);
}
