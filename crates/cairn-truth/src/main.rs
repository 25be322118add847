//! The long runs of `cargo xtask truth` and `cargo xtask torture`, with a table of the results.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program that prints its results")]

use std::process::ExitCode;
use std::time::{Duration, Instant};

use cairn_truth::driver::{Following, Outcome};
use cairn_truth::real_programs::{CHANGING, Hooks, Length, PROGRAMS};
use cairn_truth::report::Counter;
use cairn_truth::torture_runs::Torture;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match words[..] {
        ["programs"] => programs(Following::Usual),
        ["programs", "early"] => programs(Following::Early),
        #[cfg(target_arch = "x86_64")]
        ["python"] => python(&[]),
        #[cfg(target_arch = "x86_64")]
        ["python", ref interpreters @ ..] => python(interpreters),
        ["torture", seconds] => match seconds.parse() {
            Ok(seconds) => torture(seconds),
            Err(error) => Err(format!("{seconds}: {error}")),
        },
        _ => {
            Err("usage: cairn-truth programs [early] | python [INTERPRETER...] | torture SECONDS".to_owned())
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("cairn-truth: {message}");
            ExitCode::FAILURE
        }
    }
}

/// Runs every installed program with its large amount of work.
fn programs(following: Following) -> Outcome {
    let hooks = Hooks::build("programs")?;
    let shown =
        [Counter::Stacks, Counter::Frames, Counter::Wrong, Counter::Further, Counter::Cut, Counter::Lost];
    println!("| program | stacks | frames | wrong | further than libgcc | cut, with a reason | lost |");
    println!("|---|---|---|---|---|---|---|");
    let mut sums = [0; 6];
    let mut failures = Vec::new();
    for program in CHANGING.iter().chain(PROGRAMS) {
        let Some(ended) = hooks.run(program, Length::Long, following)? else {
            println!("| {} | not installed | | | | | |", program.name);
            continue;
        };
        let counts = shown.map(|counter| ended.report.count(counter));
        println!("| {} | {} |", program.name, counts.map(|count| count.to_string()).join(" | "));
        for (sum, count) in sums.iter_mut().zip(counts) {
            *sum += count;
        }
        if !ended.is_good() || ended.report.count(Counter::Wrong) != 0 {
            failures.push(format!("{}: {:?}: {}", program.name, ended.status, ended.report));
        }
    }
    println!("| all | {} |", sums.map(|count| count.to_string()).join(" | "));
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n")) }
}

/// Runs interpreters, or all on the path, each for a million stacks.
#[cfg(target_arch = "x86_64")]
fn python(interpreters: &[&str]) -> Outcome {
    use cairn_truth::python::runs::{Amount, Pythons};

    let pythons = Pythons::build("python")?;
    let mut programs: Vec<_> = interpreters.iter().map(std::path::PathBuf::from).collect();
    if programs.is_empty() {
        programs.extend(Pythons::installed());
    }
    let shown = [
        Counter::PythonStacks,
        Counter::PythonFrames,
        Counter::PythonWrong,
        Counter::PythonElsewhere,
        Counter::PythonBare,
        Counter::Wrong,
    ];
    println!(
        "| interpreter | stacks | Python frames | wrong | misplaced | evaluations without frames | native: wrong |"
    );
    println!("|---|---|---|---|---|---|---|");
    let mut failures = Vec::new();
    for program in programs {
        let name = program.display();
        let Some(ended) = pythons.run(&program, Amount::Long)? else {
            println!("| {name} | its frames are not read | | | | | |");
            continue;
        };
        println!("| {name} | {} |", shown.map(|counter| ended.report.count(counter).to_string()).join(" | "));
        let wrong = [Counter::PythonWrong, Counter::PythonElsewhere, Counter::Wrong];
        if !ended.is_good() || wrong.iter().any(|counter| ended.report.count(*counter) != 0) {
            failures.push(format!("{name}: {:?}: {}", ended.status, ended.report));
        }
    }
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n")) }
}

/// Runs a hundred cold starts, then two long runs.
fn torture(seconds: u64) -> Outcome {
    let torture = Torture::build("torture-long")?;
    let begin = Instant::now();
    for run in 0..100 {
        torture.run(Duration::from_millis(50), false).map_err(|error| format!("cold run {run}: {error}"))?;
    }
    println!("100 cold starts clean in {:.1} s", begin.elapsed().as_secs_f64());
    for is_warm in [true, false] {
        let report = torture.run(Duration::from_secs(seconds.div_ceil(2)), is_warm)?;
        println!("{} run clean: {report}", if is_warm { "warm" } else { "cold" });
    }
    Ok(())
}
