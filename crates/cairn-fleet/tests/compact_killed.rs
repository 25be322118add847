//! Compaction that is killed at any moment: no row is lost, none is there twice, and the next one
//! goes on.
//!
//! `CAIRN_KILL_RUNS=200` makes it long.

mod program;

use std::path::Path;
use std::time::{Duration, Instant};

use program::{command, copy, done, kill_runs, run};

/// The sums of each service, which are the same before and after.
fn sums(directory: &Path) -> String {
    let query = "select service, count(*) as n, sum(live_bytes) as live, sum(alloc_bytes) as allocated, \
                 count(distinct process) as processes, count(distinct stack_id) as stacks from sample \
                 group by service order by service";
    done(directory, &["sql", "store", query, "--format", "csv"])
}

#[test]
fn killed_compaction_loses_and_doubles_nothing() {
    let runs = kill_runs(6);
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let sizes = ["--hosts", "48", "--services", "3", "--stacks", "120", "--stacks-of-host", "40"];
    done(directory, &[&["generate", "store"], &sizes[..]].concat());
    copy(&directory.join("store"), &directory.join("before"));
    let expected = sums(directory);
    assert!(expected.lines().count() == 4, "{expected}");
    let start = Instant::now();
    done(directory, &["compact", "store"]);
    let whole = start.elapsed();
    assert_eq!(sums(directory), expected);

    let mut killed = 0;
    for turn in 0..runs {
        std::fs::remove_dir_all(directory.join("store")).unwrap();
        copy(&directory.join("before"), &directory.join("store"));
        // Twice, so that one begins where another was killed.
        for part in [2 * turn, 2 * turn + 1] {
            let mut compaction = command(directory, &["compact", "store"]).spawn().unwrap();
            std::thread::sleep(moment(whole, part, 2 * runs));
            killed += u32::from(compaction.try_wait().unwrap().is_none());
            compaction.kill().unwrap();
            compaction.wait().unwrap();
            assert_eq!(sums(directory), expected, "turn {turn}");
        }
        done(directory, &["compact", "store"]);
        assert_eq!(sums(directory), expected, "turn {turn}");
        // Files of killed compactions are in no commit, and go.
        done(directory, &["expire", "store", "--older", "36500d", "--unnamed-older", "0s"]);
        let check = run(directory, &["check", "store"]);
        assert!(check.status.success(), "turn {turn}: {check:?}");
        assert!(!String::from_utf8_lossy(&check.stdout).contains("in no commit"), "turn {turn}: {check:?}");
        assert_eq!(sums(directory), expected, "turn {turn}");
    }
    assert!(killed >= runs / 2, "{killed} of {} compactions were killed before their end", 2 * runs);
}

/// A moment of a compaction that takes this long, later with each of `parts`.
fn moment(whole: Duration, part: u32, parts: u32) -> Duration {
    // The order is mixed, so that both kills of a turn come early in some turns and late in others.
    let mixed = u64::from(part) * 7919 % u64::from(parts.max(1));
    whole.mul_f64(mixed as f64 / f64::from(parts.max(1)))
}
