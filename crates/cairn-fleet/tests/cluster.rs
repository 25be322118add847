//! Questions to a scheduler and two executors: the answers are those of one process, byte for byte,
//! also when members are killed meanwhile; or there is none.

#![allow(clippy::print_stdout, reason = "a test says how many questions were answered")]

mod members;
mod program;

use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use members::{Cluster, command, done, generate, results_below, run, wait_for};
use program::kill_runs;

/// A question of each kind.
const QUESTIONS: &[&[&str]] = &[
    &["top", "store", "--by", "peak", "--limit", "7", "--format", "csv"],
    &["top", "store", "--by", "allocated", "--where", "region = 'eu-west'", "--format", "json"],
    &["leaks", "store"],
    &["leaks", "store", "--by", "service", "--format", "csv"],
    &["growth", "store", "--from", "1.4", "--to", "1.5", "--format", "json"],
    &["sql", "store", "select * from flame('region = ''eu-west''', 'live_bytes')", "--format", "csv"],
    &["sql", "store", "select count(*) as n from samples where false"],
    &[
        "sql",
        "store",
        "select service, region, sum(live_bytes) as l, median(alloc_bytes) as m from samples group by 1, 2 order by 1",
    ],
];

/// Questions whose plans join tables of one file.
const OF_ONE_FILE: &[&[&str]] = &[
    &["top", "store", "--format", "csv"],
    &["leaks", "store"],
    &["growth", "store", "--from", "1.4", "--to", "1.5"],
    &["sql", "store", "select count(*) as n from stack s left join shape h on h.shape_id = s.shape_id"],
    &["sql", "store", "select count(*) as n from process p join process q on p.host < q.host"],
];

fn with<'a>(question: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    [question, more].concat()
}

#[test]
fn answers_equal_those_of_one_process() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    generate(directory, 60);
    let cluster = Cluster::start(directory, &[]);
    let on = ["--on", cluster.url.as_str(), "--partitions", "4"];
    let has_worked = [AtomicBool::new(false), AtomicBool::new(false)];
    let (is_over, work) = (AtomicBool::new(false), &cluster.work);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Results are gone with their job.
            while !is_over.load(Ordering::Relaxed) {
                for (work, has_worked) in work.iter().zip(&has_worked) {
                    if !results_below(work).is_empty() {
                        has_worked.store(true, Ordering::Relaxed);
                    }
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        for question in QUESTIONS {
            let here = done(directory, question);
            assert!(here.lines().count() > 1, "{question:?}: {here}");
            assert_eq!(done(directory, &with(question, &on)), here, "{question:?}");
        }
        let growth = ["growth", "store", "--from", "1.4", "--to", "1.5", "--limit", "1", "--format", "csv"];
        let growth = done(directory, &growth);
        let shape = growth.lines().nth(1).unwrap().split(',').nth(1).unwrap();
        let introduced = ["introduced", "store", shape];
        assert_eq!(done(directory, &with(&introduced, &on)), done(directory, &introduced));
        let picture = |name: &str, more: &[&str]| {
            done(
                directory,
                &with(&["flame", "store", "--where", "service = 'service-01'", "-o", name], more),
            );
            std::fs::read(directory.join(name)).unwrap()
        };
        assert_eq!(picture("there.svg", &on), picture("here.svg", &[]));
        // One file of a table: plans have other joins.
        done(directory, &["compact", "store"]);
        for question in OF_ONE_FILE {
            assert_eq!(done(directory, &with(question, &on)), done(directory, question), "{question:?}");
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert!(has_worked.iter().all(|worked| worked.load(Ordering::Relaxed)), "{has_worked:?}");
}

#[test]
fn tables_without_files_are_empty_on_a_cluster() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    done(directory, &["init", "store"]);
    let cluster = Cluster::start(directory, &[]);
    for query in [
        "select count(*) as n, sum(live_bytes) as l from samples",
        "select count(*) as n from stack s left join shape h on h.shape_id = s.shape_id",
    ] {
        let here = done(directory, &["sql", "store", query]);
        assert!(here.contains('0'), "{here}");
        assert_eq!(done(directory, &["sql", "store", query, "--on", &cluster.url]), here, "{query}");
    }
}

/// The question whose executors are killed: it has map and reduce stages, and takes seconds.
const LONG: &[&str] = &["leaks", "store", "--limit", "50", "--format", "csv"];

/// The same question to a cluster.
fn long_on(url: &str) -> Vec<&str> {
    with(LONG, &["--on", url, "--partitions", "4"])
}

/// Asks while `disturb` does something, which is given the cluster.
///
/// Returns whether there was an answer, which then is the right one.
fn ask_disturbed(
    directory: &Path,
    cluster: &mut Cluster,
    right: &str,
    disturb: impl FnOnce(&mut Cluster),
) -> bool {
    let url = cluster.url.clone();
    let asking =
        command(directory, &long_on(&url)).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    disturb(cluster);
    let output = asking.wait_with_output().unwrap();
    let (answer, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if output.status.success() {
        assert_eq!(answer, right, "{errors}");
        true
    } else {
        assert_eq!((output.status.code(), answer.as_ref()), (Some(1), ""), "{errors}");
        assert!(errors.contains("ask again"), "{errors}");
        false
    }
}

/// Runs of each kind of fault.
fn runs() -> u32 {
    kill_runs(1)
}

/// Kills an executor once it has results of a stage after the first `stages` ones.
fn kill_in_stage(least_stage: u32) {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    generate(directory, 160);
    let right = done(directory, LONG);
    assert!(right.lines().count() > 4, "{right}");
    let mut cluster = Cluster::start(directory, &[]);
    let mut answered = 0;
    for run in 0..runs() {
        let victim = (run % 2) as usize;
        answered += u32::from(ask_disturbed(directory, &mut cluster, &right, |cluster| {
            wait_for("results of the executor", || {
                cluster.results(victim).iter().any(|(stage, _)| *stage >= least_stage).then_some(())
            });
            // At another moment in each run.
            std::thread::sleep(Duration::from_millis(u64::from(run % 20) * 10));
            cluster.executors[victim].kill();
        }));
        // A new one takes its place.
        cluster.add_executor(directory, &[]);
        let (new, work) = (cluster.executors.pop().unwrap(), cluster.work.pop().unwrap());
        cluster.executors[victim] = new;
        cluster.work[victim] = work;
        assert_eq!(done(directory, &long_on(&cluster.url)), right);
    }
    println!("stage {least_stage}: {answered} of {} questions were answered, each right", runs());
}

#[test]
fn executor_killed_while_it_maps_changes_no_sum() {
    kill_in_stage(1);
}

#[test]
fn executor_killed_while_it_reduces_changes_no_sum() {
    kill_in_stage(3);
}

/// An executor is silent for longer than the scheduler waits, and then goes on.
///
/// So it is when its machine slept, or its network was away.
#[test]
fn executor_silent_for_a_while_changes_no_sum() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    generate(directory, 160);
    let right = done(directory, LONG);
    let mut cluster = Cluster::start(directory, &[]);
    let mut answered = 0;
    for run in 0..runs() {
        let victim = (run % 2) as usize;
        // The first stage reads files, the third one joins results of both executors.
        let least_stage = 1 + run % 5;
        let before = cluster.results(victim);
        answered += u32::from(ask_disturbed(directory, &mut cluster, &right, |cluster| {
            let begun = Instant::now();
            // It may have no part of that stage.
            wait_for("results of the executor", || {
                let results = cluster.results(victim);
                let mut new = results.iter().filter(|result| !before.contains(result));
                let is_there = new.any(|(stage, _)| *stage >= least_stage);
                (is_there || begun.elapsed() > Duration::from_secs(5)).then_some(())
            });
            std::thread::sleep(Duration::from_millis(u64::from(run % 20)));
            cluster.executors[victim].signal("STOP");
        }));
        // Its share of the work is done by the other one at once.
        assert_eq!(done(directory, &long_on(&cluster.url)), right);
        cluster.executors[victim].signal("CONT");
        assert_eq!(done(directory, &long_on(&cluster.url)), right);
    }
    println!("silent: {answered} of {} questions were answered, each right", runs());
}

#[test]
fn scheduler_that_ends_and_comes_back_loses_no_sum() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    generate(directory, 60);
    let right = done(directory, LONG);
    let mut cluster = Cluster::start(directory, &[]);
    let address = cluster.url.trim_start_matches("df://").to_owned();
    for _ in 0..runs() {
        let was_answered = ask_disturbed(directory, &mut cluster, &right, |cluster| {
            wait_for("results", || (!cluster.results(0).is_empty()).then_some(()));
            cluster.scheduler.kill();
        });
        assert!(!was_answered, "a question without a scheduler has no answer");
        let output = run(directory, &long_on(&cluster.url));
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        cluster.scheduler = Cluster::scheduler(directory, &address, &[]);
        cluster.scheduler.after("listens on");
        // The executors come back by themselves.
        assert_eq!(done(directory, &long_on(&cluster.url)), right);
    }
}

#[test]
fn cluster_with_a_key_refuses_all_others() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    generate(directory, 24);
    for name in ["key.pem", "other.pem"] {
        done(directory, &["key", name]);
    }
    let again = run(directory, &["key", "key.pem"]);
    assert_eq!(again.status.code(), Some(1), "a key is never replaced: {again:?}");
    let cluster = Cluster::start(directory, &["--cluster-key", "key.pem"]);
    let question = ["top", "store", "--format", "csv"];
    let here = done(directory, &question);
    let on = ["--on", cluster.url.as_str()];
    let with_key = with(&with(&question, &on), &["--cluster-key", "key.pem"]);
    assert_eq!(done(directory, &with_key), here);
    for wrong in [&[][..], &["--cluster-key", "other.pem"]] {
        let output = run(directory, &with(&with(&question, &on), wrong));
        assert_eq!(output.status.code(), Some(1), "{wrong:?}: {output:?}");
        assert!(output.stdout.is_empty(), "{output:?}");
    }
    // Results are fetched from executors, which ask for the key as well.
    let executor = cluster.executors[0].address.clone();
    let output = run(directory, &with(&question, &["--on", &format!("df://{executor}")]));
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}

#[test]
fn ports_beyond_this_machine_need_a_key() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let refused = |arguments: &[&str], code: i32, reason: &str| {
        let output = run(directory, arguments);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {errors}");
        assert!(errors.contains(reason), "{arguments:?}: {errors}");
    };
    refused(&["scheduler", "--listen", "0.0.0.0:0"], 2, "--cluster-key FILE");
    let executor = ["executor", "--scheduler", "df://127.0.0.1:1"];
    refused(&with(&executor, &["--listen", "0.0.0.0:0"]), 2, "--cluster-key FILE");
    refused(&["executor", "--scheduler", "127.0.0.1:50050"], 2, "df://HOST:PORT");
    refused(&["scheduler", "--cluster-key", "missing.pem"], 1, "missing.pem");
    std::fs::write(directory.join("text.pem"), "no key").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode;
    std::fs::set_permissions(directory.join("text.pem"), mode(0o600)).unwrap();
    refused(&["scheduler", "--cluster-key", "text.pem"], 1, "no key of a cluster");
    done(directory, &["key", "key.pem"]);
    std::fs::set_permissions(directory.join("key.pem"), mode(0o640)).unwrap();
    refused(&["scheduler", "--cluster-key", "key.pem"], 1, "chmod 600");
    generate(directory, 24);
    refused(&["top", "store", "--on", "df://127.0.0.1:1"], 1, "ask again");
}
