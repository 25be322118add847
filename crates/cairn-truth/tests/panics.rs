//! A Rust program that panics often: before, during and after a panic, captures equal libgcc's
//! stacks.

use std::process::Command;
use std::time::Duration;

use cairn_truth::driver::Workplace;
use cairn_truth::report::Counter;

const BUILDS: &[(&str, &[&str])] = &[
    ("O0", &["-Copt-level=0"]),
    ("O3", &["-Copt-level=3"]),
    ("O3-frame-pointers", &["-Copt-level=3", "-Cforce-frame-pointers=yes"]),
    ("Oz-one-unit", &["-Copt-level=z", "-Ccodegen-units=1"]),
];

#[test]
fn captures_between_panics_equal_libgcc() {
    let workplace = Workplace::new("panics").unwrap();
    for (build, flags) in BUILDS {
        let program = workplace.compile_rust("panics.rs", build, flags).unwrap();
        let ended = workplace.run(&mut Command::new(program), Duration::from_secs(60)).unwrap();
        let report = &ended.report;
        let context = format!("{build}: {:?}: {report}", ended.status);
        assert!(ended.is_good(), "{context}");
        for counter in [Counter::Wrong, Counter::Failed, Counter::Lost, Counter::Cut, Counter::Further] {
            assert_eq!(report.count(counter), 0, "{context}");
        }
        assert!(report.count(Counter::Stacks) > 2000, "{context}");
        assert!(report.count(Counter::OtherWalks) > 1000, "{context}");
    }
}
