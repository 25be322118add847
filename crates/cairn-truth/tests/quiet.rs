//! Captures make no system call, no allocation and no errno in steady state, and work in a sandbox.

use std::process::Command;
use std::time::Duration;

use cairn_truth::driver::Workplace;
use cairn_truth::report::{Counter, Report};

fn run(case: &str) -> Report {
    let workplace = Workplace::new(&format!("quiet-{case}")).unwrap();
    let program = workplace.compile("quiet.c", "quiet", &["-O2"]).unwrap();
    let ended = workplace.run(Command::new(program).arg(case), Duration::from_secs(30)).unwrap();
    assert!(ended.is_good(), "{:?}: {}", ended.status, ended.report);
    for counter in [Counter::Wrong, Counter::Failed, Counter::Lost, Counter::Cut] {
        assert_eq!(ended.report.count(counter), 0, "{}", ended.report);
    }
    ended.report
}

#[test]
fn steady_state_makes_no_system_call_and_no_allocation() {
    run("steady");
}

#[test]
fn captures_work_in_a_sandbox_without_process_vm_readv() {
    let report = run("denied");
    assert!(report.count(Counter::OtherWalks) >= 5, "{report}");
}
