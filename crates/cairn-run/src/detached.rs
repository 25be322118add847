//! Deferred work in a process that disturbs nobody.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// Starts a program that goes on when this one is over, and does not wait for it.
///
/// It has a session of its own, so that neither a key nor the end of the terminal reaches it; the
/// lowest priority for processors and disks; and none of this process's descriptors, so that nobody
/// waits for the end of a pipe or a lock that it holds. It is this process's child until this
/// process ends, which should be soon.
///
/// # Errors
///
/// The program could not be started.
pub fn start_detached(program: &Path, name: &OsStr, arguments: &[OsString]) -> io::Result<()> {
    let mut command = Command::new(program);
    command.arg0(name).args(arguments).current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // SAFETY: `step_back` makes system calls only; all of them are allowed between fork and exec.
    unsafe { command.pre_exec(step_back) };
    command.spawn().map(drop)
}

/// Ignores errors: the priorities are a courtesy, and the work is done without them.
fn step_back() -> io::Result<()> {
    // SAFETY: numbers only. Descriptors are not closed, but marked to be closed by exec: the
    // standard library waits on one of them for the news of exec.
    unsafe {
        libc::setsid();
        libc::setpriority(libc::PRIO_PROCESS, 0, LOWEST);
        libc::syscall(libc::SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, IOPRIO_CLASS_IDLE << IOPRIO_CLASS_SHIFT);
        libc::syscall(libc::SYS_close_range, 3, u32::MAX, CLOSE_RANGE_CLOEXEC);
    }
    Ok(())
}

const LOWEST: libc::c_int = 19;

// From <linux/ioprio.h> and <linux/close_range.h>, which the libc crate does not have for every C
// library.
const IOPRIO_WHO_PROCESS: libc::c_int = 1;
const IOPRIO_CLASS_IDLE: libc::c_int = 3;
const IOPRIO_CLASS_SHIFT: libc::c_int = 13;
const CLOSE_RANGE_CLOEXEC: libc::c_uint = 4;

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn detached_program_has_own_session_and_low_priority() {
        let mark = std::env::temp_dir().join(format!("cairn-detached-{}", std::process::id()));
        let whole = mark.with_extension("whole");
        let script = format!(
            "cut -d' ' -f1,6,19 /proc/self/stat > {0}; ls /proc/$$/fd >> {0}; mv {0} {1}",
            mark.display(),
            whole.display()
        );
        // Marked to stay open over exec, as what a shell hands down is.
        let inherited = fs::File::open("/dev/null").unwrap();
        // SAFETY: the descriptor is open.
        assert!(unsafe { libc::dup2(std::os::fd::AsRawFd::as_raw_fd(&inherited), 77) } == 77);
        start_detached(Path::new("/bin/sh"), "sh".as_ref(), &["-c".into(), script.into()]).unwrap();
        let start = Instant::now();
        while !whole.exists() {
            assert!(start.elapsed() < Duration::from_secs(20), "it did not run");
            std::thread::sleep(Duration::from_millis(5));
        }
        let text = fs::read_to_string(&whole).unwrap();
        fs::remove_file(&whole).unwrap();
        let mut lines = text.lines();
        let numbers: Vec<i64> =
            lines.next().unwrap().split(' ').map(|number| number.parse().unwrap()).collect();
        // SAFETY: a number only.
        let own_session = unsafe { libc::getsid(0) };
        assert!(numbers[1] != i64::from(own_session) && numbers[2] == 19, "{numbers:?}");
        let descriptors: Vec<&str> = lines.collect();
        assert!(!descriptors.contains(&"77"), "{descriptors:?}");
    }
}
