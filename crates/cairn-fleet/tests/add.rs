//! Files of every kind that are added to a store.

mod program;

use std::path::Path;

use cairn_analysis::heap::Scope;
use cairn_analysis::source::{ReadDetail, SourceOptions};
use program::{fixtures, run, sql};

/// Adds the sums of a recording up to the end of each millisecond of it.
fn sums_by_millisecond(path: &str) -> Vec<cairn_analysis::heap::Sums> {
    let source =
        cairn_analysis::source::HeapSource::open(Path::new(path), &SourceOptions::default()).unwrap();
    let read = |to_nanos: u64| {
        let scope = Scope { to_nanos, ..Scope::default() };
        source.read(scope, ReadDetail::Whole).unwrap().profile
    };
    let slices = read(u64::MAX).end_nanos.div_ceil(1_000_000);
    (1..slices).map(|slice| read(slice * 1_000_000).totals).chain([read(u64::MAX).totals]).collect()
}

#[test]
fn slices_of_a_recording_add_up() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    assert!(run(directory, &["init", "store"]).status.success());
    let path = fixtures().join("recordings/v1/packed.cairn").display().to_string();
    let add = |slice: &str| run(directory, &["add", "store", &path, "--slice", slice]);
    let refused = add("0s");
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert!(add("1ms").status.success());

    let expected = sums_by_millisecond(&path);
    assert_eq!(expected.len(), 5);
    let rows = sql(
        directory,
        "select t_end, min(slice_ms) as length, sum(live_bytes) as live, sum(alloc_blocks) as n, \
         sum(alloc_bytes) as bytes, sum(freed_blocks) as freed, sum(temporary) as temporary from samples \
         group by t_end order by t_end",
    );
    assert_eq!(rows.len(), expected.len(), "{rows:?}");
    let mut before = cairn_analysis::heap::Sums::default();
    for (row, sums) in rows.iter().zip(&expected) {
        assert_eq!(row["live"], sums.live_bytes, "{row}");
        assert_eq!(row["n"], sums.allocations - before.allocations, "{row}");
        assert_eq!(row["bytes"], sums.allocated_bytes - before.allocated_bytes, "{row}");
        assert_eq!(row["freed"], sums.frees() - before.frees(), "{row}");
        assert_eq!(row["temporary"], sums.temporary - before.temporary, "{row}");
        before = *sums;
    }
    assert_eq!(rows.iter().map(|row| row["length"].as_i64().unwrap()).collect::<Vec<_>>(), [1, 1, 1, 1, 1]);
    // The difference of the last slice and the first.
    let grown = sql(
        directory,
        &format!(
            "select sum(case when t_end = {} then live_bytes else -live_bytes end) as bytes from samples \
             where t_end in ({}, {})",
            rows[4]["t_end"], rows[0]["t_end"], rows[4]["t_end"]
        ),
    );
    let leaks = program::rows(directory, &["leaks", "store", "--by", "service"]);
    let leaked = leaks.first().map_or(0, |row| row["bytes"].as_i64().unwrap());
    assert!(leaked >= grown[0]["bytes"].as_i64().unwrap(), "{leaks:?} {grown:?}");
}

#[test]
fn files_are_added_once_with_their_sums_and_names() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    assert!(run(directory, &["init", "store"]).status.success());
    let file = |name: &str| fixtures().join(name).display().to_string();
    let heaptrack = file("exchange/heaptrack-small.zst");
    let go = file("exchange/go-heap.pb.gz");
    let packed = file("recordings/v1/packed.cairn");
    for (path, version) in [(&heaptrack, "1"), (&go, "2"), (&packed, "3")] {
        let label = format!("version={version}");
        let arguments =
            ["add", "store", path, "--label", "service=web", "--label", &label, "--label", "region=eu"];
        for is_again in [false, true] {
            let output = run(directory, &arguments);
            let errors = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{errors}");
            assert_eq!(errors.contains("is in the store already"), is_again, "{errors}");
        }
    }
    let processes =
        sql(directory, "select version, source, labels['region'] as region from process order by version");
    let sources: Vec<&str> = processes.iter().map(|row| row["source"].as_str().unwrap()).collect();
    assert_eq!(sources, ["heaptrack", "pprof", "recording"]);
    assert!(processes.iter().all(|row| row["region"] == "eu"));
    assert!(
        sql(directory, "select * from sample left join stack using (stack_id) where frames is null")
            .is_empty()
    );

    // `cairn report` counts the same.
    let sums = sql(
        directory,
        "select version, sum(alloc_blocks) as n, sum(alloc_bytes) as bytes, sum(live_bytes) as live from samples \
         group by version order by version",
    );
    let mut options = SourceOptions::default();
    options.formats = Some(&cairn_exchange::import::FORMATS);
    for (path, row) in [&heaptrack, &go, &packed].into_iter().zip(&sums) {
        let source = cairn_analysis::source::HeapSource::open(Path::new(path), &options).unwrap();
        let read = source.read(Scope::default(), ReadDetail::Whole).unwrap();
        let totals = read.profile.totals;
        assert_eq!(row["n"].as_u64().unwrap(), totals.allocations, "{path}");
        assert_eq!(row["bytes"].as_u64().unwrap(), totals.allocated_bytes, "{path}");
        assert_eq!(row["live"].as_u64().unwrap(), totals.live_bytes, "{path}");
    }
    let names = sql(directory, "select count(*) as n from frame where array_length(lines) > 0");
    assert!(names[0]["n"].as_u64().unwrap() > 10, "{names:?}");

    // Each is drawn, names and all.
    for version in ["1", "2"] {
        let condition = format!("version = '{version}' and region = 'eu'");
        let picture = format!("{version}.svg");
        let output =
            run(directory, &["flame", "store", "--by", "allocated", "--where", &condition, "-o", &picture]);
        assert!(output.status.success(), "{output:?}");
        let svg = std::fs::read_to_string(directory.join(&picture)).unwrap();
        assert!(svg.contains("main"), "{version}");
    }
}

#[test]
fn damaged_and_foreign_files_are_refused_and_leave_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    assert!(run(directory, &["init", "store"]).status.success());
    let bytes = std::fs::read(fixtures().join("exchange/go-heap.pb.gz")).unwrap();
    std::fs::write(directory.join("cut.pb.gz"), &bytes[..bytes.len() / 2]).unwrap();
    std::fs::write(directory.join("text"), "no heap\n").unwrap();
    std::fs::write(directory.join("empty"), "").unwrap();
    for name in ["cut.pb.gz", "text", "empty"] {
        let output = run(directory, &["add", "store", name]);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{name}: {errors}");
        assert!(errors.contains(name), "{errors}");
    }
    assert_eq!(sql(directory, "select count(*) as n from sample")[0]["n"], 0);
    assert_eq!(sql(directory, "select count(*) as n from process")[0]["n"], 0);
}
