//! Waits for programs to become idle, according to `/proc`.

use std::fs;
use std::time::{Duration, Instant};

/// Waits until every thread of a process sleeps at the same time.
///
/// Two identical readings prove it. Separate readings would not: threads that wake each other in
/// turn may each be seen asleep.
pub(crate) fn wait_until_asleep(process: u32) {
    // Only a program that never becomes idle takes this long, on any machine.
    let deadline = Instant::now() + Duration::from_secs(300);
    let mut before = None;
    loop {
        let now = sleep_of_threads(process);
        if now.is_some() && now == before {
            return;
        }
        before = now;
        assert!(Instant::now() < deadline, "the program does not come to rest");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Returns each thread's count of voluntary context switches; `None` if one of them runs.
fn sleep_of_threads(process: u32) -> Option<Vec<String>> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).unwrap().filter_map(Result::ok);
    let sleep_of = |thread: fs::DirEntry| {
        let status = fs::read_to_string(thread.path().join("status")).ok()?;
        let is_asleep = status.lines().any(|line| line.starts_with("State:\tS"));
        let switches = status.lines().filter(|line| line.contains("_ctxt_switches:"));
        is_asleep.then(|| switches.collect::<Vec<_>>().join(" "))
    };
    tasks.map(sleep_of).collect()
}
