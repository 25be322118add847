//! Faults of calls that were injected into a process.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use cairn_run::{AttachError, Target};

fn compile(directory: &Path, name: &str, source: &str, flags: &[&str]) -> PathBuf {
    let (path, output) = (directory.join(format!("{name}.c")), directory.join(name));
    fs::write(&path, source).unwrap();
    let status =
        Command::new("cc").args(["-O1", "-w"]).arg(&path).arg("-o").arg(&output).args(flags).status();
    assert!(status.unwrap().success());
    output
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(300), "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Starts a program in a long `nanosleep` that waits for a file. The program prints whether it was
/// interrupted.
fn begin(directory: &Path) -> Child {
    let program = compile(
        directory,
        "program",
        "#include <errno.h>\n#include <stdio.h>\n#include <time.h>\n#include <unistd.h>\n\
         int main() { setvbuf(stdout, 0, _IONBF, 0); puts(\"begun\"); int bad = 0;\n\
         while (access(\"go\", F_OK)) { struct timespec time = {0, 200000000};\n\
         errno = 77; if (nanosleep(&time, 0) || errno != 77 && errno != ENOENT) bad++; }\n\
         printf(\"done %d\\n\", bad); return 7; }",
        &[],
    );
    let child =
        Command::new(program).current_dir(directory).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    child.unwrap()
}

/// Stops the first thread of a process for the calling thread.
fn stop(process: u32) {
    let (thread, none) = (process as i32, std::ptr::null_mut::<libc::c_void>());
    // SAFETY: tracing requests that take no memory, and a place for a status.
    unsafe {
        assert_eq!(libc::ptrace(libc::PTRACE_SEIZE, thread, none, none), 0);
        assert_eq!(libc::ptrace(libc::PTRACE_INTERRUPT, thread, none, none), 0);
        let mut status = 0;
        assert_eq!(libc::waitpid(thread, &raw mut status, libc::__WALL), thread);
    }
}

// Held before as well, by another way back, which this one has to be as good as.
#[test]
fn attach_recovers_from_a_fault_in_the_library() {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("attach_faults");
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory).unwrap();
    let library = compile(
        &directory,
        "fault.so",
        "__attribute__((constructor)) static void begin(void) { *(volatile int *)8 = 1; }",
        &["-shared", "-fPIC"],
    );
    let mut child = begin(&directory);
    let process = child.id();
    wait_until("the program sleeps", || {
        fs::read_to_string(format!("/proc/{process}/syscall")).is_ok_and(|text| text.starts_with("230 "))
    });
    let target = Target::inspect(process).unwrap();
    stop(process);
    let answer = target.attach(process, &library, OsStr::new(""));
    Target::release(process, 0);
    assert!(
        matches!(&answer, Err(AttachError::Failed { reason, .. }) if reason.contains("signal 11")),
        "{answer:?}"
    );
    fs::write(directory.join("go"), "").unwrap();
    wait_until("the program ends", || child.try_wait().unwrap().is_some());
    let shown = child.wait_with_output().unwrap();
    assert_eq!(
        (String::from_utf8_lossy(&shown.stdout).as_ref(), shown.status.code()),
        ("begun\ndone 0\n", Some(7))
    );
}

// Before: "taking one of its threads failed: ...; it goes on as it was".
#[test]
fn attach_reports_that_a_process_has_ended() {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("attach_ended");
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory).unwrap();
    let mut child = begin(&directory);
    let process = child.id();
    wait_until("the program sleeps", || {
        fs::read_to_string(format!("/proc/{process}/syscall")).is_ok_and(|text| text.starts_with("230 "))
    });
    let target = Target::inspect(process).unwrap();
    stop(process);
    child.kill().unwrap();
    child.wait().unwrap();
    let answer = target.attach(process, Path::new("/nothing.so"), OsStr::new(""));
    assert!(matches!(answer, Err(AttachError::Ended { .. })), "{answer:?}");
    assert!(answer.unwrap_err().to_string().contains("has ended"));
}
