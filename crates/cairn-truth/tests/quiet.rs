//! What a capture must not do, and what must not be needed for it.

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
fn in_steady_state_there_is_no_system_call_no_allocation_and_no_errno() {
    run("steady");
}

#[test]
fn a_sandbox_that_forbids_to_read_processes_does_not_matter() {
    let report = run("denied");
    assert!(report.count(Counter::OtherWalks) >= 5, "{report}");
}
