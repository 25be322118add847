//! Writers and maintenance that are killed at any moment: what was answered is there, once.
//!
//! The child is this program: `killed child STORE NUMBER`. `CAIRN_KILL_RUNS=200` makes it long.

#![allow(clippy::print_stdout, reason = "a test program that says what it has done")]

mod support;

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use cairn_store::{Appended, Store, StoreError};
use support::{NOON_MS, block, rows, scratch};

const ROWS: usize = 40;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["child", place, first] => runtime.block_on(child(place, first.parse().unwrap())),
        ["--list", ..] => println!("killed: test"),
        _ => runtime.block_on(parent()),
    }
}

/// Stores block after block, and merges in between; says each number that was answered.
async fn child(place: &str, first: i64) {
    let mut store = Store::open(place).await.unwrap();
    for number in first.. {
        let result = store.append(&[block("sender", number, ROWS, NOON_MS)]).await.unwrap();
        assert!(matches!(result[..], [Appended::Stored | Appended::Duplicate]), "{result:?}");
        println!("{number}");
        if number % 3 == 0 {
            match store.compact().await {
                Ok(_) | Err(StoreError::Raced { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }
}

async fn parent() {
    let runs: u64 = std::env::var("CAIRN_KILL_RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(12);
    let directory = scratch();
    let place = directory.path().join("store").display().to_string();
    Store::create(&place).await.unwrap();
    let mut random = fastrand::Rng::with_seed(runs);
    let mut answered = 0;
    for run in 0..runs {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["child", &place, &(answered + 1).to_string()])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        // Some are killed in their first block.
        for _ in 0..random.usize(0..4) {
            answered = lines.next().unwrap().unwrap().parse().unwrap();
        }
        std::thread::sleep(Duration::from_micros(random.u64(0..150_000)));
        child.kill().unwrap();
        for line in lines.map_while(Result::ok) {
            answered = line.parse().unwrap();
        }
        child.wait().unwrap();
        let found = rows(&Store::open(&place).await.unwrap()).await;
        let numbers: Vec<i64> = found.keys().map(|(_, number)| *number).collect();
        let last = numbers.last().copied().unwrap_or(0);
        assert!(last == answered || last == answered + 1, "run {run}: {answered} answered, {last} found");
        let expected: BTreeMap<_, _> =
            (1..=last).map(|number| (("sender".to_owned(), number), ROWS)).collect();
        assert_eq!(found, expected, "run {run}");
    }
    let store = Store::open(&place).await.unwrap();
    let before = rows(&store).await;
    let swept = store.sweep(-1000).await.unwrap();
    assert_eq!(rows(&store).await, before);
    for table in store.check().await.unwrap() {
        assert_eq!((table.problems, table.unnamed_files), (Vec::new(), 0));
    }
    println!("test killed ... ok ({runs} runs, {answered} blocks, {} files swept)", swept.files);
}
