//! `cargo xtask ci`: runs the steps of CI.
//!
//! Cheap checks come first, so that a slip shows within seconds. The long ones then run three at a
//! time: most of them wait for a download, for one processor or for an emulator at some point. Each
//! prints what it has to say when it ends. The tests come last and alone, and nothing is printed
//! after them, so that the log ends with the test runner's own summary.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::Instant;

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

/// Chores with their arguments, the longest first.
const LONG: &[&[&str]] = &[
    &["portability"],
    &["fleet"],
    &["fuzz-smoke"],
    &["lint"],
    &["deny"],
    &["doc"],
    &["api", "--check"],
    &["book"],
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
    if let [first, ..] = arguments {
        return Err(Failure::usage(format!("ci takes no arguments, but got {first:?}")));
    }
    let mut times = Vec::new();
    for (name, step) in CHEAP {
        println!("\n== {name}");
        let start = Instant::now();
        step().map_err(|failure| Failure::new(format!("{name}: {failure}")))?;
        times.push(spent(name, start));
    }
    println!(
        "\n== {} at a time: {}",
        AT_A_TIME,
        LONG.iter().map(|step| step[0]).collect::<Vec<_>>().join(", ")
    );
    times.extend(run_long()?);
    println!("\n== done so far: {}\n\n== test", times.join(", "));
    debian::require(FOR_TESTS)?;
    cargo_chores::test_in_ci()
}

fn spent(name: &str, start: Instant) -> String {
    format!("{name} {:.0} s", start.elapsed().as_secs_f64())
}

/// Runs the long steps. After a failure none is begun, and those that run come to their end.
fn run_long() -> Outcome<Vec<String>> {
    let queue = Mutex::new(LONG.iter());
    let ended: Mutex<Vec<String>> = Mutex::default();
    let failed: Mutex<Option<Failure>> = Mutex::default();
    let work = || {
        loop {
            // Not in the head of a loop: the lock would be held for the whole body.
            let next = queue.lock().expect("no step panics").next();
            let Some(step) = next else { break };
            println!("-- {} begins", step.join(" "));
            let start = Instant::now();
            let result = run_apart(step);
            ended.lock().expect("no step panics").push(spent(step[0], start));
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

/// Runs a chore in a process of its own, and prints its output when it ends.
fn run_apart(step: &[&str]) -> Outcome {
    let name = step.join(" ");
    let path: PathBuf = workspace_root().join("target").join(format!("ci-{}.log", step[0]));
    let log = File::create(&path).map_err(at(&path))?;
    let errors = log.try_clone().map_err(at(&path))?;
    let this = std::env::current_exe().map_err(at(&path))?;
    let status = Command::new(this)
        .args(step)
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(errors)
        .status()
        .map_err(|error| Failure::new(format!("{name}: cannot be started: {error}")))?;
    let text = fs::read(&path).map_err(at(&path))?;
    let mut output = io::stdout().lock();
    let print = |output: &mut io::StdoutLock<'_>| -> io::Result<()> {
        writeln!(output, "\n== {name}")?;
        output.write_all(&text)?;
        output.flush()
    };
    print(&mut output).map_err(|error| Failure::new(format!("{name}: {error}")))?;
    if status.success() { Ok(()) } else { Err(Failure::new(format!("{name}: {status}, output above"))) }
}
