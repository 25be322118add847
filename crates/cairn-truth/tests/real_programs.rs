//! Real programs with a small amount of work; `cargo xtask truth` uses a large one.

use cairn_truth::driver::Following;
use cairn_truth::real_programs::{CHANGING, Hooks, Length, PROGRAMS};
use cairn_truth::report::Counter;

#[test]
fn captures_at_allocations_equal_libgcc() {
    let hooks = Hooks::build("programs-short").unwrap();
    let mut checked = 0;
    // Programs that are installed with every C compiler, and those that most machines have.
    for program in PROGRAMS.iter().take(7) {
        let Some(ended) = hooks.run(program, Length::Short, Following::Usual).unwrap() else { continue };
        let report = &ended.report;
        assert!(ended.is_good(), "{}: {:?}: {report}", program.name, ended.status);
        assert_eq!(report.count(Counter::Wrong), 0, "{}: {report}", program.name);
        assert_eq!(report.count(Counter::Lost), 0, "{}: {report}", program.name);
        assert!(report.count(Counter::Stacks) > 500, "{}: {report}", program.name);
        checked += 1;
    }
    assert!(checked >= 3, "only {checked} programs are installed");
}

#[test]
fn captures_of_changing_stacks_equal_libgcc() {
    if !cairn_truth::driver::has_cpp_compiler() {
        return;
    }
    let hooks = Hooks::build("changing-short").unwrap();
    for program in CHANGING {
        for following in Following::ALL {
            let ended = hooks.run(program, Length::Short, following).unwrap().unwrap();
            let report = &ended.report;
            assert!(ended.is_good(), "{} {following:?}: {:?}: {report}", program.name, ended.status);
            assert_eq!(report.count(Counter::Wrong), 0, "{} {following:?}: {report}", program.name);
            assert_eq!(report.count(Counter::Lost), 0, "{} {following:?}: {report}", program.name);
            assert!(report.count(Counter::Stacks) > 500, "{} {following:?}: {report}", program.name);
        }
    }
}
