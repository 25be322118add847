//! Unwind rows written by hand: captures follow rows that compilers rarely or never emit as libgcc
//! does.

use std::process::Command;
use std::time::Duration;

use cairn_truth::driver::Workplace;
use cairn_truth::report::Counter;

/// Every case, with what lies beyond libgcc's end. Some stacks continue where libgcc ends, and some
/// are cut there.
const CASES: &[(&str, Beyond)] = &[
    ("rbp_as_number", Beyond::Nothing),
    ("pushes_in_the_middle", Beyond::Nothing),
    ("remembered_state", Beyond::Nothing),
    ("cfa_expression", Beyond::Nothing),
    ("rbp_by_expression", Beyond::Nothing),
    ("rbp_by_value", Beyond::Nothing),
    ("rbp_in_a_register", Beyond::Nothing),
    ("frame_by_rbx", Beyond::Nothing),
    ("large_frames", Beyond::Nothing),
    ("far_saved_rbp", Beyond::Nothing),
    ("odd_stack", Beyond::Nothing),
    ("signal_frame", Beyond::Nothing),
    ("ends_here", Beyond::Nothing),
    ("without_rows", Beyond::Further),
    ("without_anything", Beyond::Cut),
];

/// The expected part of a stack outside of the last frame that libgcc finds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Beyond {
    Nothing,
    Further,
    Cut,
}

#[test]
fn rows_of_all_kinds_step_as_libgcc_does() {
    let workplace = Workplace::new("rows").unwrap();
    let program = workplace.compile("rows.s", "rows", &[]).unwrap();
    for &(case, beyond) in CASES {
        let ended = workplace.run(Command::new(&program).arg(case), Duration::from_secs(30)).unwrap();
        let report = &ended.report;
        let context = format!("{case}: {:?}: {report}", ended.status);
        assert!(ended.is_good(), "{context}");
        for counter in [Counter::Wrong, Counter::Failed, Counter::Lost] {
            assert_eq!(report.count(counter), 0, "{context}");
        }
        // At thirteen depths, from two callers, by two consecutive captures.
        assert!(report.count(Counter::Stacks) >= 13 * 2 * 2, "{context}");
        assert_eq!(report.count(Counter::Further) > 0, beyond == Beyond::Further, "{context}");
        assert_eq!(report.count(Counter::Cut) > 0, beyond == Beyond::Cut, "{context}");
    }
}
