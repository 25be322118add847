//! Recordings of processes that are killed, that fork, that run out of a resource, or that are
//! interrupted.
//!
//! Every case is a child process of this program: `processes child CASE PATH`. Without arguments
//! all cases are run and checked, one after the other. `CAIRN_KILL_RUNS=1000` makes the kill test
//! long.

#![allow(clippy::print_stdout, reason = "a test program that says what it has done")]

#[path = "../support/mod.rs"]
mod support;

#[cfg(target_os = "linux")]
mod fork;
mod kill;
#[cfg(target_os = "linux")]
mod limits;
#[cfg(target_os = "linux")]
mod parent;
#[cfg(target_os = "linux")]
mod races;
#[cfg(target_os = "linux")]
mod rights;
mod ring;
#[cfg(target_os = "linux")]
mod signals;
mod threads;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use cairn_recorder::Options;

/// A test: its name, what the child does, and what is checked about it.
struct Case {
    name: &'static str,
    child: fn(&Path),
    check: fn(&Runner),
}

/// Cases of all systems.
const SHARED_CASES: &[Case] = &[
    Case { name: "kill", child: kill::child, check: kill::check },
    Case { name: "ring", child: ring::child, check: ring::check },
    Case { name: "ring-age", child: ring::child_by_age, check: ring::check_by_age },
    Case { name: "ring-memory", child: ring::child_in_memory, check: ring::check_in_memory },
    Case { name: "threads", child: threads::child, check: threads::check },
    Case { name: "pause", child: threads::pausing_child, check: threads::check_pausing },
    Case { name: "switching", child: threads::switching_child, check: threads::check_switching },
    Case { name: "lazy", child: threads::lazy_child, check: threads::check_lazy },
];

/// Cases that need what Linux alone has: forks, signals, limits, a command that drains.
#[cfg(target_os = "linux")]
const SYSTEM_CASES: &[Case] = &[
    Case { name: "fork", child: fork::child, check: fork::check },
    Case { name: "fork-own", child: fork::child_with_own, check: fork::check_with_own },
    Case { name: "file-size", child: limits::file_size, check: limits::check_file_size },
    Case { name: "address-space", child: limits::address_space, check: limits::check_address_space },
    Case { name: "descriptors", child: limits::descriptors, check: limits::check_descriptors },
    Case { name: "full-disk", child: limits::full_disk, check: limits::check_full_disk },
    Case { name: "closed", child: limits::closed, check: limits::check_closed },
    Case { name: "unwritable", child: limits::unwritable, check: limits::check_unwritable },
    Case { name: "resident", child: limits::resident, check: limits::check_resident },
    Case { name: "signals", child: signals::child, check: signals::check },
    Case { name: "stopping", child: races::stopping_child, check: races::check_stopping },
    Case {
        name: "thread-of-child",
        child: races::children_of_threads,
        check: races::check_children_of_threads,
    },
    Case { name: "dumping", child: races::dumping_child, check: races::check_dumping },
    Case { name: "new-stacks", child: races::new_stacks_at_once, check: races::check_new_stacks },
    Case { name: "sharing", child: races::sharing_child, check: races::check_sharing },
    Case { name: "crowded", child: races::crowded_child, check: races::check_crowded },
    Case { name: "zeroed", child: races::zeroed_child, check: races::check_zeroed },
    Case { name: "restarting", child: races::restarting_child, check: races::check_restarting },
    Case {
        name: "forked-amid-start",
        child: races::forked_amid_start,
        check: races::check_forked_amid_start,
    },
    Case { name: "forked-amid-list", child: races::forked_amid_list, check: races::check_forked_amid_list },
    Case { name: "drained", child: parent::drained, check: parent::check_drained },
    Case { name: "orphan", child: parent::orphan, check: parent::check_orphan },
    Case { name: "returning", child: parent::returning, check: parent::check_returning },
    Case { name: "forbidden", child: parent::forbidden, check: parent::check_forbidden },
    Case { name: "raised-rights", child: rights::child, check: rights::check },
];
#[cfg(not(target_os = "linux"))]
const SYSTEM_CASES: &[Case] = &[];

fn cases() -> impl Iterator<Item = &'static Case> {
    SHARED_CASES.iter().chain(SYSTEM_CASES)
}

/// Starts the child of one case.
pub(crate) struct Runner {
    name: &'static str,
    pub(crate) path: PathBuf,
}

impl Runner {
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["child", self.name]).arg(&self.path);
        command
    }

    /// Runs the child to its end, at most five minutes, which must be a good one; what it printed.
    pub(crate) fn run(&self) -> String {
        let (status, printed) = self.run_to_any_end(&mut self.command());
        assert!(status.success(), "{}: {status}, printed: {printed}", self.name);
        printed
    }

    pub(crate) fn run_to_any_end(&self, command: &mut Command) -> (ExitStatus, String) {
        let start = Instant::now();
        let mut child = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
        while child.try_wait().unwrap().is_none() {
            if start.elapsed() > Duration::from_secs(300) {
                let _ = child.kill();
                panic!("{}: the child hangs", self.name);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let output = child.wait_with_output().unwrap();
        (output.status, String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// Options that store everything in a file.
pub(crate) fn options(path: &Path) -> Options<'_> {
    Options::new(path.as_os_str().as_encoded_bytes())
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [word, name, path] = arguments.as_slice()
        && word == "child"
    {
        let case = cases().find(|case| case.name == name).expect("a case");
        (case.child)(Path::new(path));
        return ExitCode::SUCCESS;
    }
    // As other test programs: words select.
    let selected = |case: &&Case| {
        let words: Vec<&String> = arguments.iter().filter(|word| !word.starts_with('-')).collect();
        words.is_empty() || words.iter().any(|word| case.name.contains(word.as_str()))
    };
    if arguments.iter().any(|word| word == "--list") {
        cases().for_each(|case| println!("{}: test", case.name));
        return ExitCode::SUCCESS;
    }
    let mut code = ExitCode::SUCCESS;
    for case in cases().filter(selected) {
        let runner = Runner { name: case.name, path: support::fresh_path(case.name) };
        let result = std::panic::catch_unwind(|| (case.check)(&runner));
        println!("test {} ... {}", case.name, if result.is_ok() { "ok" } else { "FAILED" });
        if result.is_ok() {
            let _ = std::fs::remove_file(&runner.path);
        } else {
            code = ExitCode::FAILURE;
        }
    }
    code
}
