//! Running processes: the PIDs on a command line, and what their processes run.

use std::fs;

/// A running process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct RunningProcess {
    /// Its number.
    pub(crate) pid: u32,
    /// The name that the kernel has for it, of at most 15 bytes.
    pub(crate) name: String,
    /// Its arguments, separated by spaces; empty for threads of the kernel.
    pub(crate) command: String,
}

/// Lists the running processes by their numbers, without this one and the threads of the kernel.
pub(crate) fn running_processes() -> Vec<RunningProcess> {
    let entries = fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut processes: Vec<_> = pids
        .filter(|&pid| pid != std::process::id())
        .filter_map(running_process)
        .filter(|process| !process.command.is_empty())
        .collect();
    processes.sort_by_key(|process| process.pid);
    processes
}

/// Reads the status of a process from `/proc`; `None` if it has ended.
fn running_process(pid: u32) -> Option<RunningProcess> {
    let name = fs::read(format!("/proc/{pid}/comm")).ok()?;
    let arguments = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let arguments: Vec<_> =
        arguments.split(|&byte| byte == 0).filter(|argument| !argument.is_empty()).map(text).collect();
    Some(RunningProcess { pid, name: text(name.trim_ascii_end()), command: arguments.join(" ") })
}

/// Reads a PID from the command line.
///
/// # Errors
///
/// For anything but a number; the text says what a PID is, and which processes have that name.
pub(crate) fn parse_pid(text: &str) -> Result<u32, String> {
    if let Ok(pid) = text.parse::<u32>()
        && pid > 0
    {
        return Ok(pid);
    }
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("no process has this number".to_owned());
    }
    Err(not_a_pid(text, &running_processes()))
}

/// Says what a PID is, and which of the `processes` is called `text`.
fn not_a_pid(text: &str, processes: &[RunningProcess]) -> String {
    /// The longest list of processes in a message.
    const SHOWN: usize = 5;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._+-".contains(c);
    if text.is_empty() || text.starts_with('-') || !text.chars().all(is_plain) {
        return "a PID is a number, as `pgrep NAME` prints it".to_owned();
    }
    let pids: Vec<String> = processes
        .iter()
        .filter(|process| process.name == *text)
        .map(|process| process.pid.to_string())
        .collect();
    let about = format!("a PID is a number, as `pgrep {text}` prints it");
    match pids.len() {
        0 => about,
        1 => format!("{about}; {} is a process of this name", pids[0]),
        2..=SHOWN => format!("{about}; processes of this name: {}", pids.join(", ")),
        more => {
            let (first, more) = (pids[..SHOWN].join(", "), more - SHOWN);
            format!("{about}; processes of this name: {first} and {more} more")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn pid_of_this_test_is_not_listed_but_its_parent_is() {
        let processes = running_processes();
        let is_listed = |pid| processes.iter().any(|process| process.pid == pid);
        assert!(!is_listed(std::process::id()));
        assert!(is_listed(std::os::unix::process::parent_id()), "{processes:?}");
    }

    #[test]
    fn pid_must_be_a_positive_number() {
        assert_eq!(parse_pid("4711"), Ok(4711));
        for text in ["0", "99999999999", ""] {
            assert!(parse_pid(text).is_err(), "{text}");
        }
    }

    #[test]
    fn name_in_place_of_a_pid_lists_its_processes() {
        let process = |pid| RunningProcess { pid, name: "redis".to_owned(), command: String::new() };
        let processes: Vec<_> = (1..=7).map(process).collect();
        let message = |count: usize, text| not_a_pid(text, &processes[..count]);
        assert_eq!(message(0, "redis"), "a PID is a number, as `pgrep redis` prints it");
        assert!(message(1, "redis").ends_with("; 1 is a process of this name"));
        assert!(message(2, "redis").ends_with("; processes of this name: 1, 2"));
        assert!(message(7, "redis").ends_with("1, 2, 3, 4, 5 and 2 more"));
        assert_eq!(message(7, "$(reboot)"), "a PID is a number, as `pgrep NAME` prints it");
    }
}
