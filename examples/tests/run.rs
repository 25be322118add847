//! Runs every example and reads what it prints.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};

fn run(program: &str, arguments: &[&str]) -> Output {
    Command::new(program).args(arguments).output().unwrap()
}

/// Returns the standard output of a program that has to succeed.
fn printed(program: &str) -> String {
    let output = run(program, &[]);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Returns true when lines of `text` are the functions `names`, in this order. Debug information of
/// lines alone does not name the module of each function.
fn in_order(text: &str, names: &[&str]) -> bool {
    let mut lines = text.lines();
    names.iter().all(|name| lines.any(|line| line.trim().rsplit("::").next() == Some(name)))
}

#[test]
fn self_print() {
    let text = printed(env!("CARGO_BIN_EXE_self_print"));
    assert!(text.starts_with("#0  0x"), "{text}");
    assert!(text.lines().next().unwrap().contains("/self_print+0x"), "{text}");
    assert!(text.contains(": end of stack\n"), "{text}");
    let functions = ["inner", "outer", "main", "main", "_start"];
    assert!(in_order(&text, &functions), "{text}");
}

#[test]
fn sigprof_sampler() {
    let text = printed(env!("CARGO_BIN_EXE_sigprof_sampler"));
    let top = text.lines().nth(1).unwrap();
    let top = top.trim_start_matches(|c: char| c == ' ' || c.is_ascii_digit()).replace(" < ", "\n");
    assert!(in_order(&top, &["busy", "main", "main", "_start"]), "{text}");
}

#[test]
fn crash_handler_after_a_wild_write() {
    let output = run(env!("CARGO_BIN_EXE_crash_handler"), &[]);
    assert_eq!(output.status.signal(), Some(libc::SIGSEGV), "{output:?}");
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.starts_with("crashed:\n#0  0x"), "{text}");
    assert!(!text.contains("the stack goes on"), "{text}");
    assert!(text.lines().nth(1).unwrap().contains("/crash_handler+0x"), "{text}");
}

#[test]
fn crash_handler_after_a_stack_overflow() {
    let output = run(env!("CARGO_BIN_EXE_crash_handler"), &["overflow"]);
    assert_eq!(output.status.signal(), Some(libc::SIGSEGV), "{output:?}");
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains(" frames of the same recursion\n"), "{text}");
    assert!(text.lines().count() < 40 && !text.contains("the stack goes on"), "{text}");
}

#[test]
fn malloc_hook() {
    let text = printed(env!("CARGO_BIN_EXE_malloc_hook"));
    assert!(text.starts_with("100000 bytes in 100 allocations\n"), "{text}");
    assert!(in_order(&text, &["ask", "main", "main", "_start"]), "{text}");
}

#[test]
fn paused_thread() {
    let text = printed(env!("CARGO_BIN_EXE_paused_thread"));
    assert!(in_order(&text, &["wait_for_work"]), "{text}");
    assert!(text.ends_with("end of stack\n"), "{text}");
}
