//! Other engines on the files of a store: their sums are equal, row by row.
//!
//! They are packages of Python. `cargo xtask fleet` installs them, and names the interpreter in
//! `CAIRN_FLEET_PYTHON`; without it these tests are skipped.

#![allow(clippy::print_stdout, reason = "a skipped test says so")]

mod program;

use std::process::Command;

use program::{done, python};

const GROWTH: &str = "
select service, stack_id,
  sum(case when version = '1.4' then live_bytes else 0 end) as before,
  sum(case when version = '1.5' then live_bytes else 0 end) as after
from sample group by service, stack_id";

/// The queries of the book's chapter among them. Binary columns are printed by their digits.
const QUERIES: &[&str] = &[
    "select service, version, count(*), sum(live_bytes), sum(live_blocks), sum(alloc_bytes), sum(alloc_blocks), \
     sum(freed_bytes), sum(freed_blocks), sum(temporary), sum(peak_bytes), sum(peak_blocks), sum(variance) \
     from sample group by service, version order by service, version",
    "select day, host, sum(live_bytes) as bytes from sample where service = 'service-01' group by day, host \
     order by bytes desc, day, host limit 50",
    "select lower(hex(s.shape_id)) as shape, sum(g.after - g.before) as grew from (GROWTH) g \
     join stack s on s.stack_id = g.stack_id group by s.shape_id order by grew desc, shape limit 30",
    "select count(*), count(distinct process), count(distinct stack_id), min(t_end), max(t_end) from sample",
];

/// Asks all queries of these stores, after compaction of the one with that name.
fn compare(engine: &str, stores: &[&str]) {
    let Some(python) = python() else {
        println!("skipped: CAIRN_FLEET_PYTHON names no python with duckdb, pyspark and deltalake");
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let generated = ["--hosts", "60", "--services", "3", "--stacks", "80", "--stacks-of-host", "20"];
    for store in stores {
        done(directory, &[&["generate", store][..], &generated].concat());
    }
    if stores.contains(&"compacted") {
        done(directory, &["compact", "compacted"]);
    }
    let queries: Vec<String> = QUERIES.iter().map(|query| query.replace("GROWTH", GROWTH)).collect();
    std::fs::write(directory.join("queries.sql"), queries.join(";")).unwrap();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/engines/ask.py");
    let output = Command::new(&python)
        .args([script, engine])
        .args(stores)
        .arg("queries.sql")
        .current_dir(directory)
        .output()
        .unwrap();
    assert!(output.status.success(), "{engine}: {output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let theirs: Vec<&str> = text.split("\n\n").filter(|answer| !answer.is_empty()).collect();
    let asked = stores.iter().flat_map(|store| queries.iter().map(move |query| (store, query)));
    assert_eq!(theirs.len(), asked.clone().count(), "{text}");
    for (theirs, (store, query)) in theirs.iter().zip(asked) {
        let ours = query.replace("lower(hex(s.shape_id))", "encode(s.shape_id, 'hex')");
        let ours = done(directory, &["sql", store, &ours, "--format", "csv"]);
        let (_, ours) = ours.split_once('\n').unwrap();
        assert!(!ours.is_empty(), "{query}");
        assert_eq!(*theirs, ours.trim_end(), "{engine}, {store}: {query}");
    }
}

#[test]
fn duckdb_has_equal_sums() {
    compare("duckdb", &["as-stored", "compacted"]);
}

#[test]
fn spark_has_equal_sums() {
    compare("pyspark", &["compacted"]);
}
