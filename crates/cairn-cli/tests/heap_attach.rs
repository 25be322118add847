//! `cairn heap --attach` on programs that run: each goes on as without, and what it does afterwards
//! is recorded exactly.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(clippy::print_stdout, reason = "a test says what it could not check here")]

#[allow(dead_code, reason = "shared with other tests, and each test uses a part")]
mod support;

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use support::{Count, cairn, compile, recording, recordings, run, scratch, wait_for};

/// Sizes and counts of the blocks that the program allocates after the test lets it continue.
const KNOWN: [(u64, Count); 2] =
    [(77777, Count { made: 1000, left: 100 }), (3000, Count { made: 10, left: 0 })];

fn prepared(test: &str) -> (PathBuf, PathBuf) {
    let directory = scratch(&format!("attach_{test}"));
    let program = compile(&directory, "attached.c", "program", &["-fno-builtin"]);
    for (name, size) in [("module.so", "-DSIZE=333"), ("late.so", "-DSIZE=66666")] {
        compile(&directory, "attached_module.c", name, &["-fno-builtin", "-shared", "-fPIC", size]);
    }
    (directory, program)
}

fn begin(directory: &Path, program: &Path, arguments: &[&str]) -> Child {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(directory);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Does the same as [`begin`], and waits until the program runs.
///
/// cairn cannot attach to a program that is being loaded.
fn begin_and_wait(directory: &Path, program: &Path, arguments: &[&str]) -> Child {
    let begun = directory.join("begun");
    let _ = fs::remove_file(&begun);
    let child = begin(directory, program, arguments);
    wait_for("the program", || begun.exists().then_some(()));
    child
}

/// Returns the kernel's status of the first thread of a process.
fn state_of(process: u32) -> char {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    stat.rsplit_once(") ").unwrap().1.chars().next().unwrap()
}

/// Attaches, and waits until events are recorded.
fn attach(directory: &Path, process: u32, options: &[&str]) -> Child {
    let mut command = cairn();
    command.args(["heap", "--attach", &process.to_string()]).args(options).current_dir(directory);
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut text = Vec::new();
    let mut byte = [0];
    // Its first line says that it has begun, or why it has not.
    let errors = child.stderr.as_mut().unwrap();
    while byte != *b"\n" && errors.read(&mut byte).unwrap() == 1 {
        text.push(byte[0]);
    }
    let text = String::from_utf8_lossy(&text);
    assert!(text.contains("is recorded; Ctrl-C"), "{text}");
    child
}

fn go(directory: &Path) {
    fs::write(directory.join("go"), "").unwrap();
}

/// Its end, which must come in time.
fn end(mut child: Child) -> Output {
    let began = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if began.elapsed() > Duration::from_secs(300) {
            let _ = child.kill();
            panic!("it has not ended");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn check_known(recording: &support::Recording) {
    for (size, count) in KNOWN {
        assert_eq!(recording.count(size), count, "blocks of {size} bytes in {}", recording.path.display());
    }
    assert_eq!(recording.count(55555), Count::default(), "older than the recording");
    assert_eq!(recording.lost, 0);
}

/// Attaches while the program is in `mode`, lets it go on, and compares.
fn check(mode: &str) -> (PathBuf, support::Recording) {
    let (directory, program) = prepared(mode);
    let mut child = begin_and_wait(&directory, &program, &[mode]);
    if mode == "long" {
        // Past the half of it: begun anew, it would take much longer than it should, even on a
        // machine that is busy.
        std::thread::sleep(Duration::from_millis(2500));
    }
    let cairn = attach(&directory, child.id(), &[]);
    go(&directory);
    child.stdin.take().unwrap().write_all(b"abc").unwrap();
    let shown = end(child);
    let expected = match mode {
        "read" => "read 3 0\ndone\n",
        "epoll" => "epoll 1 0\ndone\n",
        "socket" => "socket -1 1\ndone\n",
        "long" => "slept 0 right\ndone\n",
        _ => "done\n",
    };
    assert_eq!((text(&shown.stdout).as_str(), text(&shown.stderr).as_str()), (expected, ""));
    assert_eq!(shown.status.code(), Some(7), "{:?}", shown.status);
    let cairn = end(cairn);
    assert!(cairn.status.success(), "{}", text(&cairn.stderr));
    let recording = recording(&directory);
    check_known(&recording);
    (directory, recording)
}

#[test]
fn a_program_that_sleeps_now_and_then_is_attached_to() {
    check("sleep");
}

#[test]
fn a_program_that_waits_for_input_gets_it_whole() {
    check("read");
}

#[test]
fn a_wait_that_no_signal_interrupts_is_not_interrupted() {
    check("epoll");
    check("socket");
}

#[test]
fn a_long_sleep_takes_no_longer_and_no_shorter() {
    check("long");
}

#[test]
fn one_thread_that_is_mostly_inside_malloc_is_attached_to() {
    check("busy");
}

#[test]
fn eight_threads_inside_malloc_are_attached_to() {
    let (_, recording) = check("threads");
    let others: u64 =
        recording.by_size.iter().filter(|(size, _)| **size < 2000).map(|(_, count)| count.made).sum();
    assert!(others > 8 * 16, "the threads were recorded, too: {others}");
}

#[test]
fn attach_records_later_modules_from_their_constructors_on() {
    let (_, recording) = check("loads");
    assert_eq!(
        recording.count(66666),
        Count { made: 1, left: 0 },
        "the constructor, and the destructor at exit"
    );
    assert_eq!(recording.count(66667), Count { made: 5, left: 0 });
    assert!(recording.count(334).made > 0, "the module that is loaded again and again");
}

#[test]
fn attach_works_again_after_a_detach_without_traces() {
    let (directory, program) = prepared("again");
    let child = begin_and_wait(&directory, &program, &["threads"]);
    let process = child.id();
    let first = attach(&directory, process, &[]);
    let second = run(cairn().args(["heap", "--attach", &process.to_string()]).current_dir(&directory));
    assert_eq!(second.status.code(), Some(2));
    assert!(text(&second.stderr).contains("recorded already"), "{}", text(&second.stderr));
    let detached = run(cairn().args(["heap", "--detach", &process.to_string()]));
    assert!(detached.status.success(), "{}", text(&detached.stderr));
    assert!(end(first).status.success());
    let detached = run(cairn().args(["heap", "--detach", &process.to_string()]));
    assert_eq!(detached.status.code(), Some(1));
    assert!(text(&detached.stderr).contains("not attached to"), "{}", text(&detached.stderr));
    // Without `go` nothing of the known is in the first one; all of it is in the second one.
    let first = recording(&directory);
    assert_eq!((first.count(77777), first.lost), (Count::default(), 0));
    let maps = fs::read_to_string(format!("/proc/{process}/maps")).unwrap();
    let is_recording = |line: &&str| {
        line.split_ascii_whitespace().nth(1).is_some_and(|rights| rights.ends_with('s'))
            && line.contains(&*directory.to_string_lossy())
    };
    assert_eq!(maps.lines().find(is_recording), None, "the file has a mapping without use");
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
    let size: u64 = size.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(size < 16 << 20, "{size} KiB of address space, most of it for a recording that has ended");
    let again = attach(&directory, process, &[]);
    go(&directory);
    assert_eq!(end(child).status.code(), Some(7));
    assert!(end(again).status.success());
    let all = recordings(&directory);
    assert_eq!(all.len(), 2);
    let last = all.iter().find(|one| one.count(77777).made > 0).unwrap();
    check_known(last);
}

#[test]
fn an_interrupt_ends_the_recording_and_not_the_program() {
    let (directory, program) = prepared("interrupt");
    let child = begin_and_wait(&directory, &program, &["sleep"]);
    let cairn = attach(&directory, child.id(), &[]);
    assert!(Command::new("kill").args(["-INT", &cairn.id().to_string()]).status().unwrap().success());
    let cairn = end(cairn);
    assert!(
        cairn.status.success() && text(&cairn.stderr).contains("is recorded in"),
        "{}",
        text(&cairn.stderr)
    );
    assert_eq!(recording(&directory).count(77777), Count::default());
    go(&directory);
    let shown = end(child);
    assert_eq!((text(&shown.stdout).as_str(), shown.status.code()), ("done\n", Some(7)));
}

#[test]
fn a_time_limit_detaches() {
    let (directory, program) = prepared("limit");
    let child = begin_and_wait(&directory, &program, &["busy"]);
    let cairn = attach(&directory, child.id(), &["--for", "200ms"]);
    assert!(end(cairn).status.success());
    go(&directory);
    assert_eq!(end(child).status.code(), Some(7));
    let recording = recording(&directory);
    assert_eq!(recording.count(77777), Count::default());
    assert!(recording.events > 0);
}

/// The interpreter itself: its name may lead to a script that finds it.
fn python() -> PathBuf {
    let found = run(Command::new("python3").args(["-c", "import sys; print(sys.executable, end='')"]));
    text(&found.stdout).into()
}

#[test]
fn python_is_attached_to() {
    let directory = scratch("attach_python");
    let source = "import os, time\n\
                  def load(count):\n    return [bytes(2000 + number % 2) for number in range(count)]\n\
                  def small(count):\n    return [bytes(300) for number in range(count)]\n\
                  open('begun', 'w').close()\n\
                  while not os.path.exists('go'): time.sleep(0.01)\n\
                  retained = load(100), small(5000)\n\
                  print(len(retained))\n";
    fs::write(directory.join("program.py"), source).unwrap();
    let child = begin_and_wait(&directory, &python(), &["program.py"]);
    let follower = attach(&directory, child.id(), &[]);
    go(&directory);
    let shown = end(child);
    assert_eq!((text(&shown.stdout).as_str(), text(&shown.stderr).as_str()), ("2\n", ""));
    assert!(shown.status.success());
    assert!(end(follower).status.success());
    let recording = recording(&directory);
    let made = |sizes: std::ops::Range<u64>| -> u64 {
        recording.by_size.range(sizes).map(|(_, count)| count.made).sum()
    };
    // Header, data, and the zero behind them.
    let large = made(2033..2035);
    assert!((100..=110).contains(&large), "{large}");
    let opened = cairn_recording::Recording::open(&recording.path).unwrap();
    let states: Vec<_> = opened.interpreters().iter().map(|found| found.state()).collect();
    if states != [cairn_recording::InterpreterState::Read] {
        println!("skipped: Python frames are not read here: {states:?}");
        return;
    }
    let small = made(333..334);
    assert!((5000..=5010).contains(&small), "{small}");
    let report = run(cairn().args(["report", "--by", "stack", "--full"]).arg(&recording.path));
    let report = text(&report.stdout);
    for frame in ["load  program.py:3", "small  program.py:5", "<module>  program.py:8"] {
        assert!(report.contains(frame), "{frame} in\n{report}");
    }
}

/// Threads that allocate all the time, and two that compile code and free it, check their own sums.
const CHURN_OF_PYTHON: &str = "\
import hashlib, os, sys, threading

def tree(depth):
    return (tree(depth - 1), {'depth': depth}, tree(depth - 1)) if depth else None

def count(node):
    return 1 + count(node[0]) + count(node[2]) if node else 0

def work():
    while not os.path.exists('go'):
        assert count(tree(7)) == 127
        assert len(hashlib.sha256(bytes(5000)).hexdigest()) == 64

def compiled():
    number = 0
    while not os.path.exists('go'):
        number += 1
        names = {}
        exec(f'def made(): return [{number}, bytearray({number % 600})]', names)
        assert names['made']()[0] == number

threads = [threading.Thread(target=target) for target in (work, work, compiled, compiled)]
for thread in threads:
    thread.start()
open('begun', 'w').close()
for thread in threads:
    thread.join()
print('done')
sys.exit(7)
";

#[test]
fn attach_leaves_python_alone() {
    let directory = scratch("attach_churn_python");
    fs::write(directory.join("program.py"), CHURN_OF_PYTHON).unwrap();
    let child = begin_and_wait(&directory, &python(), &["program.py"]);
    cycle(&directory, child.id(), 3);
    go(&directory);
    let shown = end(child);
    assert_eq!((text(&shown.stdout).as_str(), text(&shown.stderr).as_str()), ("done\n", ""));
    assert_eq!(shown.status.code(), Some(7), "{:?}", shown.status);
}

fn refused(process: u32, directory: &Path, reason: &str) {
    let output = run(cairn().args(["heap", "--attach", &process.to_string()]).current_dir(directory));
    let errors = text(&output.stderr);
    // As in every command, a missing process ends with 1.
    let expected = if reason.contains("no process") { 1 } else { 2 };
    assert_eq!(output.status.code(), Some(expected), "{errors}");
    assert!(errors.contains(reason), "{errors}");
}

#[test]
fn attach_refuses_unsuitable_processes_with_a_reason() {
    let (directory, program) = prepared("refused");
    refused(1 << 30, &directory, "there is no process");

    let linked = compile(&directory, "attached.c", "static", &["-static"]);
    let child = begin_and_wait(&directory, &linked, &["sleep"]);
    refused(child.id(), &directory, "linked statically");
    let stopped = begin_and_wait(&directory, &program, &["sleep"]);
    let process = stopped.id().to_string();
    assert!(Command::new("kill").args(["-STOP", &process]).status().unwrap().success());
    wait_for("the stop", || (state_of(stopped.id()) == 'T').then_some(()));
    refused(stopped.id(), &directory, "kill -CONT");
    let left = begin_and_wait(&directory, &program, &["leaves"]);
    wait_for("the end of its first thread", || (state_of(left.id()) == 'Z').then_some(()));
    refused(left.id(), &directory, "its main thread has exited");
    assert!(Command::new("kill").args(["-CONT", &process]).status().unwrap().success());

    let command = Path::new(env!("CARGO_BIN_EXE_cairn"));
    let recorded = begin_and_wait(&directory, command, &["heap", "--quiet", "./program", "sleep"]);
    refused(recording(&directory).process, &directory, "recorded already");

    go(&directory);
    for child in [child, stopped, left, recorded] {
        assert_eq!(end(child).status.code(), Some(7));
    }
}

/// Returns the resources of a process that must not grow.
///
/// They are mappings without a file, address space and resident memory in MiB, and descriptors.
fn held_by(process: u32) -> [u64; 4] {
    let maps = fs::read_to_string(format!("/proc/{process}/maps")).unwrap();
    let anonymous = maps.lines().filter(|line| !line.contains('/')).count() as u64;
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let mebibytes = |name: &str| {
        let value = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        value.trim().trim_end_matches(" kB").parse::<u64>().unwrap() >> 10
    };
    let descriptors = fs::read_dir(format!("/proc/{process}/fd")).unwrap().count() as u64;
    [anonymous, mebibytes("VmSize:"), mebibytes("VmRSS:"), descriptors]
}

/// How often to attach and detach: `cargo xtask torture` asks for more.
fn cycles() -> usize {
    std::env::var("CAIRN_ATTACH_CYCLES").map_or(6, |number| number.parse().unwrap())
}

fn detach(process: u32) -> Output {
    run(cairn().args(["heap", "--detach", &process.to_string()]))
}

/// Builds a program that loads and unloads modules, and starts it.
fn begin_churn(test: &str, source: &str) -> (PathBuf, Child) {
    let directory = scratch(&format!("attach_{test}"));
    let program = compile(&directory, source, "program", &["-fno-builtin"]);
    let mut modules = Vec::new();
    for (number, binding) in ["now", "now", "lazy"].into_iter().enumerate() {
        let (name, size) = (format!("module{number}.so"), format!("-DSIZE={}", 3000 + number));
        let flags = ["-fno-builtin", "-shared", "-fPIC", &size, &format!("-Wl,-z,{binding}")];
        compile(&directory, "attached_module.c", &name, &flags);
        modules.push(format!("./{name}"));
    }
    let modules: Vec<&str> = modules.iter().map(String::as_str).collect();
    let child = begin_and_wait(&directory, &program, &modules);
    (directory, child)
}

/// Attaches to a process and detaches from it, repeatedly.
///
/// Both must succeed, and nothing may be left behind.
fn cycle(directory: &Path, process: u32, descriptors: u64) {
    let mut after_first = None;
    for cycle in 0..cycles() {
        let follower = attach(directory, process, &[]);
        if cycle % 2 == 0 {
            let detached = detach(process);
            assert!(detached.status.success(), "{}", text(&detached.stderr));
        } else {
            let number = follower.id().to_string();
            assert!(Command::new("kill").args(["-INT", &number]).status().unwrap().success());
        }
        let followed = end(follower);
        assert!(followed.status.success(), "cycle {cycle}: {}", text(&followed.stderr));
        fs::remove_file(recording(directory).path).unwrap();
        after_first.get_or_insert_with(|| held_by(process));
    }
    let (first, last) = (after_first.unwrap(), held_by(process));
    // The program itself has some more or fewer at each moment: arenas of malloc, modules, pipes.
    for ((first, last), room) in first.into_iter().zip(last).zip([8, 80, 16, descriptors]) {
        assert!(last <= first + room, "{first} after the first cycle, {last} after {}", cycles());
    }
}

fn check_churn(test: &str, source: &str) {
    let (directory, child) = begin_churn(test, source);
    cycle(&directory, child.id(), 3);
    go(&directory);
    let shown = end(child);
    assert_eq!((text(&shown.stdout).as_str(), text(&shown.stderr).as_str()), ("done\n", ""));
    assert_eq!(shown.status.code(), Some(7), "{:?}", shown.status);
}

/// A server that works off requests all the time.
fn with_redis(test: impl FnOnce(&Path, u32)) {
    const CLIENTS: &str = "20";
    if Command::new("redis-server").arg("--version").stdout(Stdio::null()).status().is_err() {
        println!("skipped: redis-server is not installed");
        return;
    }
    let directory = scratch("attach_redis");
    let socket = directory.join("socket");
    let mut server = Command::new("redis-server");
    server.args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"]).arg(&socket);
    let mut server = server.current_dir(&directory).stdout(Stdio::null()).spawn().unwrap();
    wait_for("the server", || socket.exists().then_some(()));
    let script = format!(
        "while [ -e load ]; do redis-benchmark -s {0} -q -n 5000 -c {CLIENTS} -t set,get,lpush,lpop >> benchmark 2>&1 \
         || exit 1; done; redis-cli -s {0} set whole yes; redis-cli -s {0} shutdown nosave",
        socket.display()
    );
    fs::write(directory.join("load"), "").unwrap();
    let load = Command::new("sh")
        .args(["-c", &script])
        .current_dir(&directory)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    test(&directory, server.id());
    fs::remove_file(directory.join("load")).unwrap();
    let load = end(load);
    assert_eq!(
        (text(&load.stdout).as_str(), load.status.code()),
        ("OK\n", Some(0)),
        "{}",
        text(&load.stderr)
    );
    assert!(server.wait().unwrap().success());
}

// Before: 4 mappings and 28 MiB more after each cycle.
#[test]
fn attach_leaves_redis_alone_under_load() {
    // As many descriptors as there are clients come and go.
    with_redis(|directory, process| cycle(directory, process, 30));
}

// Before: 4 mappings and 28 MiB more after each cycle, or a detach that found nothing attached, or
// the death of the program.
#[test]
fn attach_leaves_programs_alone_that_load_modules() {
    check_churn("churn_modules", "churn_modules.c");
}

// Before: "a thread of it is inside the loader", each of 400 times.
#[test]
fn attach_leaves_programs_alone_that_throw_and_fork() {
    check_churn("churn_all", "churn_all.cpp");
}

// Before: the thread ran into a breakpoint that nobody traced any more, which ended the program.
#[test]
fn attach_leaves_the_program_alive_when_cairn_is_killed() {
    let (directory, child) = begin_churn("killed", "churn_modules.c");
    let process = child.id().to_string();
    // The test needs many different moments; it does not matter which.
    for moment in 0..cycles() as u64 * 4 {
        let what = if moment % 3 == 2 { "--detach" } else { "--attach" };
        let mut command = cairn();
        command.args(["heap", what, &process]).current_dir(&directory);
        let mut killed = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(moment * 13 % 400));
        let _ = killed.kill();
        killed.wait().unwrap();
    }
    let mut detached = detach(child.id());
    if !detached.status.success() {
        assert!(text(&detached.stderr).contains("not attached to"), "{}", text(&detached.stderr));
    }
    let follower = attach(&directory, child.id(), &[]);
    detached = detach(child.id());
    assert!(detached.status.success(), "{}", text(&detached.stderr));
    assert!(end(follower).status.success());
    go(&directory);
    let shown = end(child);
    assert_eq!((text(&shown.stdout).as_str(), shown.status.code()), ("done\n", Some(7)));
}

// Before: "none of its calls of the allocator can be bound": they were, by its parent.
#[test]
fn attach_reaches_a_child_forked_while_attached() {
    let (directory, program) = prepared("forked");
    let parent = begin_and_wait(&directory, &program, &["forks"]);
    let first = attach(&directory, parent.id(), &["-o", "parent.cairn"]);
    fs::write(directory.join("fork"), "").unwrap();
    let number = wait_for("the child", || fs::read_to_string(directory.join("child")).ok());
    let second = attach(&directory, number.parse().unwrap(), &["-o", "child.cairn"]);
    go(&directory);
    let shown = end(parent);
    assert_eq!((text(&shown.stdout).as_str(), shown.status.code()), ("done\ndone\n", Some(7)));
    for cairn in [first, second] {
        let cairn = end(cairn);
        assert!(cairn.status.success(), "{}", text(&cairn.stderr));
    }
    for recording in recordings(&directory) {
        assert_eq!(recording.count(77777), KNOWN[0].1, "{}", recording.path.display());
    }
}

// Before: "is not attached to" at once, or with status 0 from the command that follows the
// recording.
#[test]
fn attach_says_busy_while_the_loader_is_held() {
    let (directory, program) = prepared("holds");
    compile(&directory, "slow_module.c", "slow.so", &["-shared", "-fPIC"]);
    let child = begin_and_wait(&directory, &program, &["holds"]);
    let follower = attach(&directory, child.id(), &[]);
    fs::write(directory.join("hold"), "").unwrap();
    wait_for("the constructor", || directory.join("held").exists().then_some(()));
    let busy = detach(child.id());
    assert_eq!(busy.status.code(), Some(2), "{}", text(&busy.stderr));
    assert!(text(&busy.stderr).contains("is busy"), "{}", text(&busy.stderr));
    fs::write(directory.join("release"), "").unwrap();
    let detached = detach(child.id());
    assert!(detached.status.success(), "{}", text(&detached.stderr));
    assert!(end(follower).status.success());
    go(&directory);
    assert_eq!(end(child).status.code(), Some(7));
}

/// Two commands at once, and what became of each.
#[test]
fn attach_by_two_commands_lets_one_of_them() {
    // Before: the second one ended with "the recording could not be made", and announced a failure.
    let (directory, program) = prepared("two");
    let child = begin_and_wait(&directory, &program, &["threads"]);
    let process = child.id().to_string();
    let start = |name: &str| {
        let mut command = cairn();
        command.args(["heap", "--attach", &process, "-o", name]).current_dir(&directory);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let mut both = [start("one.cairn"), start("two.cairn")];
    // The one that was refused ends at once; the other one is ended.
    wait_for("the refused one", || {
        both.iter_mut().any(|one| one.try_wait().unwrap().is_some()).then_some(())
    });
    assert!(detach(child.id()).status.success());
    let mut statuses: Vec<i32> = Vec::new();
    for one in both {
        let one = end(one);
        let errors = text(&one.stderr);
        assert!(one.status.success() || errors.contains("recorded already"), "{errors}");
        statuses.push(one.status.code().unwrap());
    }
    statuses.sort_unstable();
    assert_eq!(statuses, [0, 2]);
    go(&directory);
    assert_eq!(end(child).status.code(), Some(7));
}

fn deep_program(test: &str) -> PathBuf {
    let directory = scratch(&format!("attach_{test}"));
    compile(&directory, "deep.c", "program", &["-fno-builtin"]);
    let flags = ["-fno-builtin", "-shared", "-fPIC", "-DSIZE=4444"];
    compile(&directory, "attached_module.c", "module.so", &flags);
    directory
}

// Before: none of the 1,001 blocks.
#[test]
fn heap_sees_modules_opened_with_deepbind() {
    let directory = deep_program("deep");
    let shown = run(cairn().args(["heap", "-q", "./program"]).current_dir(&directory));
    assert_eq!((text(&shown.stdout).as_str(), shown.status.code()), ("done\n", Some(7)));
    let recording = recording(&directory);
    assert_eq!(recording.count(4445), Count { made: 1000, left: 0 });
    assert_eq!(recording.count(4444), Count { made: 1, left: 0 }, "its constructor");
    assert_eq!(recording.lost, 0);
}

// Before: nothing said that its calls were missing.
#[test]
fn heap_names_calls_past_another_allocator() {
    let directory = deep_program("passing");
    compile(&directory, "foreign.c", "libforeign.so", &["-shared", "-fPIC"]);
    let flags = ["-fno-builtin", "-Wl,--no-as-needed", "libforeign.so", "-Wl,-rpath,$ORIGIN"];
    // The compiler searches for the library from here.
    let flags = flags.map(|flag| match flag {
        "libforeign.so" => directory.join(flag).into_os_string().into_string().unwrap(),
        flag => flag.to_owned(),
    });
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    compile(&directory, "deep.c", "program", &flags);
    let shown = run(cairn().args(["heap", "-q", "./program"]).current_dir(&directory));
    assert_eq!((text(&shown.stdout).as_str(), shown.status.code()), ("done\n", Some(7)));
    let path = recording(&directory).path;
    let report = run(cairn().arg("report").arg(&path));
    let said = text(&report.stdout) + &text(&report.stderr);
    assert!(said.contains("RTLD_DEEPBIND"), "{said}");
}
