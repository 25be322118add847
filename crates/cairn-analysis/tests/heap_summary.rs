//! The summary of a heap: totals, the peak and what was alive then, leaks, temporary blocks.

#[path = "support/spool.rs"]
mod spool;

use cairn_analysis::heap_summary::{Amount, HeapSummary};
use cairn_analysis::recording::Recording;
use spool::Program;

const fn amount(blocks: u64, bytes: u64) -> Amount {
    Amount { blocks, bytes }
}

#[test]
fn a_summary_tells_the_peak_the_leaks_and_the_temporary_blocks_by_stack() {
    let mut program = Program::new(2, 1);
    let stacks = program.spool.stacks(3);
    let step = |program: &mut Program| program.counter += 10_000;
    // Temporary: freed by its thread before it allocates anything else.
    program.alloc(1, 100, stacks[0]);
    step(&mut program);
    program.free(1, 0);
    step(&mut program);
    // The peak is with these two.
    program.alloc(1, 1000, stacks[1]);
    step(&mut program);
    program.alloc(2, 500, stacks[2]);
    step(&mut program);
    // Not temporary: another thread frees it, and the address is used again.
    program.free(1, 1);
    step(&mut program);
    program.alloc(2, 30, stacks[0]);
    step(&mut program);
    program.free(2, 1);
    step(&mut program);
    program.free_older(1, 0x1234_5670);
    let recording = Recording::from_bytes(program.finish()).unwrap();
    let summary = HeapSummary::of(&recording).unwrap();
    assert_eq!(summary.allocated, amount(4, 1630));
    assert_eq!(summary.peak_bytes, 1500);
    assert_eq!(summary.leaked, amount(1, 1000));
    assert_eq!(summary.temporary, amount(2, 130));
    assert_eq!(summary.unmatched_frees, 1);
    let at_peak = summary.most(5, |stack| stack.at_peak.bytes);
    let at_peak: Vec<Amount> = at_peak.iter().map(|(_, amounts)| amounts.at_peak).collect();
    assert_eq!(at_peak, [amount(1, 1000), amount(1, 500)]);
    let temporary = summary.most(5, |stack| stack.temporary.blocks);
    assert_eq!(temporary.len(), 1);
    assert_eq!(temporary[0].1.allocated, amount(2, 130));
    assert_eq!(summary.stack(temporary[0].0), temporary[0].1);
    assert_eq!(summary.most(1, |stack| stack.leaked.bytes)[0].1.leaked, amount(1, 1000));
}
