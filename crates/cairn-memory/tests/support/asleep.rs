//! Programs that have come to rest, as `/proc` tells.

use std::fs;
use std::time::{Duration, Instant};

/// Waits until every thread of a process sleeps, as they do once they are where the test wants them: at the same moment, of which two
/// looks with nothing between them tell. One after the other, each of several that hand something around may be seen asleep.
pub(crate) fn wait_until_asleep(process: u32) {
    // Only what never comes takes so long, however busy the machine is.
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

/// For each thread, how often it has given its processor away; nothing when one of them runs.
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
