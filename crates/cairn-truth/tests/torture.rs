//! The short torture; `cargo xtask torture` is the long one.

use std::time::Duration;

use cairn_truth::report::Counter;
use cairn_truth::torture_runs::Torture;

#[test]
fn torture_leaves_every_stack_complete_or_explained() {
    if !cairn_truth::driver::has_cpp_compiler() {
        return;
    }
    let torture = Torture::build("torture-short").unwrap();
    for run in 0..10 {
        torture.run(Duration::from_millis(50), false).unwrap_or_else(|what| panic!("cold run {run}: {what}"));
    }
    let report = torture.run(Duration::from_secs(3), true).unwrap();
    assert!(report.count(Counter::InHandlers) > 100, "{report}");
    // Cut stacks were interrupted in code that no table describes, such as a jump to an exception's
    // handler.
    assert!(report.count(Counter::Cut) * 50 < report.count(Counter::Stacks), "{report}");
}
