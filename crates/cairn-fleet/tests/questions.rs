//! Questions to a store whose leaks and growth are known, before and after maintenance.

mod program;

use std::path::Path;

use program::{done, rows, run};
use serde_json::Value;

/// Generates a store. Returns each service with its leaking shape and its grown one.
fn generated(directory: &Path) -> Vec<(String, String, String)> {
    let sizes = ["--hosts", "240", "--services", "4", "--stacks", "150", "--stacks-of-host", "40"];
    let arguments: Vec<&str> = ["generate", "store"].into_iter().chain(sizes).collect();
    let truth = done(directory, &arguments);
    let planted = |line: &str| match line.split(' ').collect::<Vec<_>>()[..] {
        [service, "leak", leak, "grown", grown] => (service.to_owned(), leak.to_owned(), grown.to_owned()),
        _ => panic!("{line}"),
    };
    truth.lines().map(planted).collect()
}

fn field<'a>(row: &'a Value, name: &str) -> &'a str {
    row[name].as_str().unwrap_or_else(|| panic!("{name} of {row}"))
}

/// Service and shape of each row, in their order.
fn shapes(rows: &[Value]) -> Vec<(&str, &str)> {
    let mut shapes: Vec<_> = rows.iter().map(|row| (field(row, "service"), field(row, "shape_id"))).collect();
    shapes.sort_unstable();
    shapes
}

#[test]
fn planted_leaks_and_growth_are_found() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let planted = generated(directory);
    assert_eq!(planted.len(), 4);
    let ask = || {
        let leaks = rows(directory, &["leaks", "store", "--limit", "4"]);
        let expected: Vec<(&str, &str)> =
            planted.iter().map(|(service, leak, _)| (service.as_str(), leak.as_str())).collect();
        assert_eq!(shapes(&leaks), expected);

        let growth = rows(directory, &["growth", "store", "--from", "1.4", "--to", "1.5", "--limit", "4"]);
        let expected: Vec<(&str, &str)> =
            planted.iter().map(|(service, _, grown)| (service.as_str(), grown.as_str())).collect();
        assert_eq!(shapes(&growth), expected);

        for (service, leak, grown) in &planted {
            let verdicts = |shape: &str| -> Vec<(String, String)> {
                rows(directory, &["introduced", "store", shape])
                    .iter()
                    .filter(|row| field(row, "service") == service)
                    .map(|row| (field(row, "version").to_owned(), field(row, "verdict").to_owned()))
                    .collect()
            };
            let expected = [
                ("1.4".to_owned(), "from the first version on".to_owned()),
                ("1.5".into(), "introduced".into()),
            ];
            assert_eq!(verdicts(&grown[..16]), expected, "{service}");
            assert_eq!(verdicts(leak)[1].1, "", "{service}");
        }
        (
            leaks,
            growth,
            rows(directory, &["top", "store"]),
            rows(directory, &["top", "store", "--by", "allocated"]),
        )
    };
    let before = ask();
    done(directory, &["compact", "store"]);
    assert_eq!(ask(), before);
    done(directory, &["expire", "store", "--older", "0s", "--unnamed-older", "0s"]);
    done(directory, &["check", "store"]);
}

#[test]
fn answers_are_equal_to_sums_of_the_samples() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    generated(directory);
    let sql = |query: &str| rows(directory, &["sql", "store", query]);
    let number = |rows: &[Value], name: &str| rows[0][name].as_i64().unwrap();
    assert_eq!(number(&sql("select count(*) as n from samples"), "n"), 240 * 40 * 4);
    assert_eq!(number(&sql("select count(*) as n from process"), "n"), 240);
    assert_eq!(number(&sql("select count(*) as n from stack"), "n"), 4 * 150 * 2);

    // The label is a column.
    let eu = sql(
        "select sum(live_bytes) as bytes, count(distinct service) as services from samples where region = 'eu-west'",
    );
    assert_eq!(number(&eu, "services"), 2);
    let graph = sql("select * from flame('region = ''eu-west''', 'live_bytes')");
    assert_eq!((graph[0]["level"].as_i64(), field(&graph[0], "label")), (Some(0), "all"));
    assert_eq!(graph[0]["value"], eu[0]["bytes"]);
    // Grafana's form: depth first, and a parent is as wide as what is in it.
    let mut open: Vec<(i64, i64)> = Vec::new();
    let mut sum_of_self = 0;
    for node in &graph {
        let (level, value) = (node["level"].as_i64().unwrap(), node["value"].as_i64().unwrap());
        let own = node["self"].as_i64().unwrap();
        sum_of_self += own;
        open.truncate(usize::try_from(level).unwrap());
        assert_eq!(open.len(), usize::try_from(level).unwrap(), "{node}");
        if let Some((_, left)) = open.last_mut() {
            *left -= value;
            assert!(*left >= 0, "{node}");
        }
        open.push((level, value - own));
    }
    assert_eq!(sum_of_self, graph[0]["value"].as_i64().unwrap());

    let inclusive = sql("select * from inclusive('true', 'alloc_bytes') limit 3");
    assert_eq!(inclusive.len(), 3);
    let all = number(&sql("select sum(alloc_bytes) as n from samples"), "n");
    assert!(inclusive[0]["value"].as_i64().unwrap() <= all);

    done(directory, &["flame", "store", "--where", "service = 'service-01'", "-o", "f.svg"]);
    let svg = std::fs::read_to_string(directory.join("f.svg")).unwrap();
    let held = number(
        &sql("select sum(live_bytes) as n from samples s where service = 'service-01' and t_end = \
              (select max(t_end) from samples)"),
        "n",
    );
    assert!(svg.contains(&format!("data-whole=\"{held}\"")), "{held}");
    assert!(svg.contains("service_01::handle_"));
}

#[test]
fn one_seed_makes_one_store() {
    let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    assert_eq!(generated(first.path()), generated(second.path()));
    let query = [
        "sql",
        "store",
        "select service, version, sum(live_bytes) as l, sum(alloc_bytes) as a from samples group by 1, 2 order by 1, 2",
    ];
    assert_eq!(rows(first.path(), &query), rows(second.path(), &query));
}

#[test]
fn wrong_questions_are_refused_with_a_reason() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    generated(directory);
    let refused = |arguments: &[&str], code: i32, reason: &str| {
        let output = run(directory, arguments);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {errors}");
        assert!(errors.contains(reason), "{arguments:?}: {errors}");
    };
    refused(&["top", "nowhere"], 1, "there is no store here; make one with `cairn fleet init nowhere`");
    refused(&["init", "store"], 1, "other files are here");
    refused(&["add", "store", "missing.cairn"], 1, "missing.cairn: ");
    refused(&["add", "store", "missing.cairn", "--label", "region"], 2, "a label is KEY=VALUE");
    refused(&["introduced", "store", "xyz"], 2, "hexadecimal digits");
    refused(&["introduced", "store", "ffffffffffffffffffffffffffffffff"], 1, "no such shape");
    refused(&["growth", "store", "--from", "1.4", "--to", "1.6"], 1, "no version 1.6; it has: 1.4, 1.5");
    refused(&["top", "store", "--where", "nothing = 1"], 1, "nothing");
    refused(&["sql", "store", "select * from flame('true', 'service')"], 1, "no column that counts");
    refused(&["leaks", "store", "--since", "soon"], 2, "--since");
}
