//! Compares files from heaptrack and Go with the output of their own tools.

use std::path::PathBuf;

use cairn_analysis::heap::{Cost, Folding, Group, HeapProfile, Names, Questions, Scope, Sums};
use cairn_exchange::import::{Imported, Kind};

fn opened(name: &str) -> Imported {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/exchange").join(name);
    Imported::open(&path).unwrap()
}

/// Returns the sums of each allocating function.
fn functions(file: &Imported, sums: &HeapProfile) -> Vec<(String, Sums)> {
    let questions = Questions::new(sums, Names::new(file.stacks(), file, Folding::default()));
    let top = questions.top(Group::Function, Cost::Allocated);
    top.iter().map(|entry| (questions.names().function_of(entry.line).name.to_string(), entry.sums)).collect()
}

#[test]
fn heaptrack_file_agrees_with_its_own_tool() {
    let file = opened("heaptrack-small.zst");
    assert_eq!(file.kind(), Kind::Heaptrack);
    assert_eq!(file.profile().title, "./small");
    let read = file.read(&Scope::default()).unwrap();
    // The output of heaptrack_print, plus the leaks that it suppresses.
    let Sums { allocations, live_bytes, peak_bytes, temporary, .. } = read.sums.totals;
    assert_eq!((allocations, live_bytes, peak_bytes, temporary), (116, 4253, 138_820, 50));
    let load = functions(&file, &read.sums).into_iter().find(|(name, _)| name == "load").unwrap().1;
    assert_eq!((load.allocations, load.live_blocks), (115, 5));
    assert!(read.usage.iter().any(|sample| sample.resident_bytes > 1 << 20));
    // main, deep eleven times, load.
    let depth = |stack: u32| file.stacks().path(stack).count();
    let deepest = (0..file.stacks().len() as u32).map(depth).max();
    assert!(deepest >= Some(13), "{deepest:?}");
}

#[test]
fn go_file_agrees_with_its_own_tool() {
    let file = opened("go-heap.pb.gz");
    assert_eq!(file.kind(), Kind::Pprof);
    let read = file.read(&Scope::default()).unwrap();
    let Sums { allocations, allocated_bytes, live_blocks, live_bytes, peak_bytes, .. } = read.sums.totals;
    assert_eq!((allocations, allocated_bytes, live_blocks, live_bytes), (113, 158_056, 57, 54_144));
    assert_eq!(peak_bytes, live_bytes);
    let load = functions(&file, &read.sums).into_iter().find(|(name, _)| name == "main.load").unwrap().1;
    assert_eq!((load.allocations, load.allocated_bytes), (100, 153_600));
}
