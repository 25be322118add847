//! Files of every kind that are added to a store.

mod program;

use std::path::Path;

use program::{fixtures, run, sql};

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
    let mut options = cairn_analysis::source::SourceOptions::default();
    options.formats = Some(&cairn_exchange::import::FORMATS);
    for (path, row) in [&heaptrack, &go, &packed].into_iter().zip(&sums) {
        let source = cairn_analysis::source::HeapSource::open(Path::new(path), &options).unwrap();
        let read = source
            .read(cairn_analysis::heap::Scope::default(), cairn_analysis::source::ReadDetail::Whole)
            .unwrap();
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
