//! `cargo xtask ci`: runs the steps of CI.
//!
//! Cheap checks come first, so that a slip shows within seconds. The long ones then run three at a
//! time: most of them wait for a download, for one processor or for an emulator at some point. Each
//! prints what it has to say when it ends. The tests come last and alone, and nothing is printed
//! after them, so that the log ends with the test runner's own summary.
//!
//! `--spare-disk` removes what a long step built as soon as it has ended: all builds together need
//! 40 GB, and the largest of them need not be there at the same time. It is for machines that run
//! CI once; on others the next run would build everything again.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::Instant;

use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

use crate::debian::Tool;
use crate::process::{Failure, Outcome, at, workspace_root};
use crate::{cargo_chores, check_rooms, check_words, debian, header, unsafe_inventory};

type Step = (&'static str, fn() -> Outcome);

const CHEAP: &[Step] = &[
    ("fmt", || cargo_chores::fmt(&["--check".to_owned()])),
    ("check-rooms", || check_rooms::run(&[])),
    ("check-words", || check_words::run(&[])),
    ("unsafe-inventory", || unsafe_inventory::run(&["--check".to_owned()])),
    ("header", || header::run(&["--check".to_owned()])),
];

/// A chore of some length.
struct Long {
    /// Name and arguments.
    words: &'static [&'static str],
    /// Directory that it alone builds in, relative to the workspace.
    builds_in: Option<&'static str>,
}

const fn long(words: &'static [&'static str], builds_in: Option<&'static str>) -> Long {
    Long { words, builds_in }
}

/// The longest first.
const LONG: &[Long] = &[
    long(&["portability"], Some("target/portability")),
    long(&["fleet"], Some("target/fleet")),
    long(&["windows", "system"], Some("target/windows")),
    long(&["fuzz-smoke"], Some("fuzz/target")),
    long(&["lint"], None),
    long(&["deny"], None),
    long(&["doc"], None),
    long(&["api", "--check"], Some("target/api")),
    long(&["book"], None),
];

/// Long steps that run at a time.
const AT_A_TIME: usize = 3;

/// Programs that tests skip by hand when they are missing, and need in CI.
const FOR_TESTS: &[Tool] = &[
    Tool { program: "zsh", package: "zsh", also: &[] },
    Tool { program: "fish", package: "fish", also: &[] },
    Tool { program: "groff", package: "groff-base", also: &[] },
    Tool { program: "gcore", package: "gdb", also: &[] },
    Tool { program: "python3", package: "python3", also: &[] },
    Tool { program: "node", package: "nodejs", also: &[] },
    Tool { program: "javac", package: "openjdk-17-jdk-headless", also: &[] },
    Tool { program: "luajit", package: "luajit", also: &["libluajit-5.1-dev"] },
    Tool { program: "numba", package: "python3-numba", also: &[] },
    Tool { program: "php8.2", package: "php8.2-cli", also: &["php8.2-opcache"] },
];

/// Runs every step; the first that fails ends the run.
pub(crate) fn run(arguments: &[String]) -> Outcome {
    let spare_disk = match arguments {
        [] => false,
        [flag] if flag == "--spare-disk" => true,
        _ => return Err(Failure::usage("usage: cargo xtask ci [--spare-disk]")),
    };
    let mut times = Vec::new();
    for (name, step) in CHEAP {
        println!("\n== {name}");
        let start = Instant::now();
        step().map_err(|failure| Failure::new(format!("{name}: {failure}")))?;
        times.push(format!("{name} {:.0} s", start.elapsed().as_secs_f64()));
    }
    println!(
        "\n== {} at a time: {}",
        AT_A_TIME,
        LONG.iter().map(|step| step.words[0]).collect::<Vec<_>>().join(", ")
    );
    times.extend(run_long(spare_disk)?);
    println!("\n== done so far: {}\n\n== test", times.join(", "));
    debian::require(FOR_TESTS)?;
    cargo_chores::test_in_ci()
}

/// Runs the long steps. After a failure none is begun, and those that run come to their end.
fn run_long(spare_disk: bool) -> Outcome<Vec<String>> {
    let queue = Mutex::new(LONG.iter());
    let ended: Mutex<Vec<String>> = Mutex::default();
    let failed: Mutex<Option<Failure>> = Mutex::default();
    let work = || {
        loop {
            // Not in the head of a loop: the lock would be held for the whole body.
            let next = queue.lock().expect("no step panics").next();
            let Some(step) = next else { break };
            println!("-- {} begins", step.words.join(" "));
            let start = Instant::now();
            let (result, processors) = match run_apart(step.words) {
                Ok(processors) => (Ok(()), processors),
                Err(failure) => (Err(failure), None),
            };
            let processors = processors.map_or(String::new(), |time| format!(" (processors {time:.0} s)"));
            let took = start.elapsed().as_secs_f64();
            ended.lock().expect("no step panics").push(format!("{} {took:.0} s{processors}", step.words[0]));
            if let Some(directory) = step.builds_in.filter(|_| spare_disk) {
                // A missing directory has nothing to remove.
                let _ = fs::remove_dir_all(workspace_root().join(directory));
            }
            if let Err(failure) = result {
                failed.lock().expect("no step panics").get_or_insert(failure);
                queue.lock().expect("no step panics").by_ref().for_each(drop);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(work);
        }
    });
    match failed.into_inner().expect("no step panics") {
        Some(failure) => Err(failure),
        None => Ok(ended.into_inner().expect("no step panics")),
    }
}

/// Runs a chore in a process of its own, and prints its output when it ends. Returns the processor
/// time that it took together with all that it started.
fn run_apart(step: &[&str]) -> Outcome<Option<f64>> {
    let name = step.join(" ");
    let path: PathBuf = workspace_root().join("target").join(format!("ci-{}.log", step[0]));
    let log = File::create(&path).map_err(at(&path))?;
    let errors = log.try_clone().map_err(at(&path))?;
    let this = std::env::current_exe().map_err(at(&path))?;
    let not_run = |error: io::Error| Failure::new(format!("{name}: cannot be run: {error}"));
    let mut command = Command::new(this);
    command.args(step).stdin(Stdio::null()).stdout(log).stderr(errors);
    let mut child = command.spawn().map_err(not_run)?;
    let processors = processor_time_at_end(child.id());
    let status = child.wait().map_err(not_run)?;
    let text = fs::read(&path).map_err(at(&path))?;
    let mut output = io::stdout().lock();
    let print = |output: &mut io::StdoutLock<'_>| -> io::Result<()> {
        writeln!(output, "\n== {name}")?;
        output.write_all(&text)?;
        output.flush()
    };
    print(&mut output).map_err(|error| Failure::new(format!("{name}: {error}")))?;
    if status.success() {
        Ok(processors)
    } else {
        Err(Failure::new(format!("{name}: {status}, output above")))
    }
}

/// Waits for the end of a child of ours, and reads its time before it is collected.
fn processor_time_at_end(child: u32) -> Option<f64> {
    let pid = Pid::from_raw(i32::try_from(child).ok()?)?;
    waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).ok()?;
    processor_time(&fs::read_to_string(format!("/proc/{child}/stat")).ok()?)
}

/// Returns the seconds of a process and of its collected children, from its `/proc/PID/stat`.
fn processor_time(stat: &str) -> Option<f64> {
    // The name of the program comes second, and may contain blanks and parentheses.
    let (_, after_name) = stat.rsplit_once(')')?;
    let ticks: Vec<u64> = after_name
        .split_whitespace()
        .skip(FIELDS_BEFORE_TIMES)
        .take(4)
        .map(|field| field.parse().ok())
        .collect::<Option<_>>()?;
    #[allow(clippy::cast_precision_loss, reason = "far below 2^53")]
    let seconds = ticks.iter().sum::<u64>() as f64 / TICKS_A_SECOND;
    (ticks.len() == 4).then_some(seconds)
}

/// State to `cmajflt`, which precede `utime`, `stime`, `cutime` and `cstime`.
const FIELDS_BEFORE_TIMES: usize = 11;

/// `USER_HZ`, the same on all processors that Linux runs on but Alpha.
const TICKS_A_SECOND: f64 = 100.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ci_adds_the_times_of_a_process_and_of_its_children() {
        let stat = "7 (a (b) c) R 1 7 7 0 -1 4194560 10 20 30 40 150 50 1000 300 20 0 1 0 5 6 7";
        assert_eq!(processor_time(stat), Some(15.0));
        assert_eq!(processor_time("7 (a) R 1 7 7"), None);
    }

    #[test]
    fn ci_reads_the_time_of_a_child_that_has_ended() {
        let mut command = Command::new("sh");
        let mut child =
            command.args(["-c", "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done"]).spawn().unwrap();
        assert!(processor_time_at_end(child.id()).unwrap() > 0.0);
        assert!(child.wait().unwrap().success());
    }
}
