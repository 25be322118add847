//! Compares each stack of the fixture programs with libgcc's at the same call, for several ways to
//! compile them.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use cairn_truth::driver::Workplace;
use cairn_truth::report::Counter;

/// Compiler flags that give stacks of different shapes.
const BUILDS: &[(&str, &[&str])] = &[
    ("O0", &["-O0"]),
    ("O1", &["-O1"]),
    ("O2", &["-O2"]),
    ("O3", &["-O3"]),
    ("frame-pointers", &["-O2", "-fno-omit-frame-pointer", "-mno-omit-leaf-frame-pointer"]),
    ("avx-realign", &["-O2", "-mavx", "-mstackrealign"]),
    ("holes", &["-O2", "-no-pie", "-Wl,-z,separate-code", "-Wl,--section-start=.text=0x900000"]),
    ("lazy", &["-O2", "-Wl,-z,lazy"]),
    ("now", &["-O2", "-Wl,-z,now"]),
];

/// The minimum number of checks of a case.
const CASES: &[(&str, u64)] = &[
    ("deep_recursion", 6),
    ("many_depths", 1000),
    ("mutual_recursion", 6),
    ("alloca_frames", 12),
    ("variable_arrays", 12),
    ("realigned_frames", 30),
    ("wide_vectors", 10),
    ("tail_calls", 4),
    ("long_jumps", 50),
    ("switch_contexts", 30),
    ("many_coroutines", 150),
    ("nested_signals", 40),
    ("alternate_stack", 40),
    ("timer_in_vdso", 400),
    ("through_the_library", 4),
    ("without_table", 10),
    ("stop_reasons", 2),
    ("call_at_the_end", 2),
    ("threads", 1000),
    ("small_stacks", 100),
    ("forks", 10),
    ("exit_handlers", 4),
    ("very_deep", 2),
];

fn has(processor_feature: &str) -> bool {
    match processor_feature {
        "avx" => std::arch::is_x86_feature_detected!("avx"),
        _ => true,
    }
}

fn run(
    workplace: &Workplace,
    program: &PathBuf,
    build: &str,
    case: &str,
    least: u64,
    troubles: &mut Vec<String>,
) {
    let ended = workplace.run(Command::new(program).arg(case), Duration::from_secs(30)).unwrap();
    let report = &ended.report;
    let is_right = ended.is_good()
        && report.count(Counter::Wrong) == 0
        && report.count(Counter::Failed) == 0
        && report.count(Counter::Lost) == 0
        && report.count(Counter::Stacks) + report.count(Counter::OtherWalks) >= least
        // Only code without tables may cut a stack; the C library's start of a coroutine is such
        // code.
        && (matches!(case, "without_table" | "stop_reasons" | "switch_contexts" | "many_coroutines")
            || report.count(Counter::Cut) == 0);
    if !is_right {
        troubles.push(format!("{build} {case}: {:?}: {report}", ended.status));
    }
}

#[test]
fn captures_of_random_calls_equal_libgcc() {
    let workplace = Workplace::new("cases").unwrap();
    let mut troubles = Vec::new();
    for &(build, flags) in BUILDS {
        if build.starts_with("avx") && !has("avx") {
            continue;
        }
        let program = workplace.compile("cases.c", build, flags).unwrap();
        for &(case, least) in CASES {
            run(&workplace, &program, build, case, least, &mut troubles);
        }
        if build == "frame-pointers" {
            run(&workplace, &program, build, "frame_pointers", 40, &mut troubles);
        }
    }
    assert!(troubles.is_empty(), "{}", troubles.join("\n"));
}
