//! Python frames of captured stacks equal those that the interpreter itself reports.

#![cfg(target_arch = "x86_64")]

use cairn_truth::python::runs::{Amount, Pythons};
use cairn_truth::report::Counter;

#[test]
#[expect(clippy::print_stderr, reason = "a test reports what it could not check here")]
fn python_frames_equal_the_interpreters_own() {
    let pythons = Pythons::build("python-short").unwrap();
    let mut checked = 0;
    for program in Pythons::installed() {
        let Some(ended) = pythons.run(&program, Amount::Short).unwrap() else {
            eprintln!("skipped: {}: its frames are not read", program.display());
            continue;
        };
        let report = &ended.report;
        assert!(ended.is_good(), "{}: {:?}: {report}", program.display(), ended.status);
        for counter in [Counter::PythonWrong, Counter::PythonElsewhere, Counter::Wrong, Counter::Lost] {
            assert_eq!(report.count(counter), 0, "{}: {counter:?}: {report}", program.display());
        }
        assert!(report.count(Counter::PythonFrames) > 10_000, "{}: {report}", program.display());
        checked += 1;
    }
    if checked == 0 {
        eprintln!("skipped: no python3 that is supported is on the path");
    }
}
