//! Under a limit of the address space captures work, or count the stacks that they lose; the
//! program continues.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use cairn_truth::driver::Workplace;
use cairn_truth::report::{Counter, Report};

fn run(workplace: &Workplace, program: &Path, arguments: &[&str], limit_mib: u32) -> Report {
    run_in(workplace, program, arguments, limit_mib * 1024)
}

fn run_in(workplace: &Workplace, program: &Path, arguments: &[&str], limit_kib: u32) -> Report {
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -v \"$0\" && exec \"$@\"", &limit_kib.to_string()]);
    // The C library's malloc takes 64 MiB of address space for each thread, if the limit allows it.
    command.arg(program).args(arguments).env("MALLOC_ARENA_MAX", "1");
    let ended = workplace.run(&mut command, Duration::from_secs(60)).unwrap();
    let report = ended.report;
    for counter in [Counter::Wrong, Counter::Failed] {
        assert_eq!(report.count(counter), 0, "{limit_kib} KiB: {report}");
    }
    let has_succeeded = ended.status.is_some_and(|status| status.success());
    assert!(has_succeeded, "{limit_kib} KiB: {:?}: {report}", ended.status);
    report
}

#[test]
fn small_address_space_captures_or_counts_lost_stacks() {
    if !cairn_truth::driver::has_cpp_compiler() {
        return;
    }
    let workplace = Workplace::new("small-space").unwrap();
    let program = workplace.compile("random_calls.cpp", "random_calls", &["-O2"]).unwrap();
    // Several limits, so that the result does not depend on one that happens to fit.
    for limit_mib in [512, 128, 64, 48, 40, 36, 32, 28, 16, 12] {
        let report = run(&workplace, &program, &["11", "1", "0"], limit_mib);
        assert!(report.count(Counter::Stacks) >= 300, "{limit_mib} MiB: {report}");
        assert_eq!(report.count(Counter::Lost), 0, "{limit_mib} MiB: {report}");
    }
    let report = run(&workplace, &program, &["11", "2", "2"], 96);
    assert!(report.count(Counter::Stacks) >= 3 * 300, "{report}");
    // A limit with room for the program itself has some room for its stacks.
    let report = run(&workplace, &program, &["11", "2", "0"], 10);
    assert!(report.count(Counter::Stacks) + report.count(Counter::Lost) >= 300, "{report}");
}

#[test]
fn full_tables_count_lost_stacks_and_keep_known_ones() {
    let workplace = Workplace::new("many-stacks").unwrap();
    let program = workplace.compile("many_stacks.c", "many_stacks", &["-O2"]).unwrap();
    // The tables grow with the stacks, so all of them fit until little more than the program itself
    // fits. How much that is depends on the C library: 6 MiB with glibc 2.36.
    let mut limits_kib = (8..=48).rev().map(|quarters| quarters * 256);
    let report = limits_kib.find_map(|limit_kib| {
        Some(run_in(&workplace, &program, &[], limit_kib)).filter(|report| report.count(Counter::Lost) > 1000)
    });
    let report = report.unwrap();
    assert!(report.count(Counter::Stacks) > 2 * 8000, "{report}");
    let report = run(&workplace, &program, &[], 256);
    assert_eq!(report.count(Counter::Lost), 0, "{report}");
}
