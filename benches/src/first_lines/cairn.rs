//! The lists of `cairn report --by stack --json`.
//!
//! The default list may fold frames: those inside the function that it names, and any between. So a
//! stack is recognised in the list of `--internals`, which folds nothing, and its name is taken
//! from the default list.

use serde_json::Value;

use super::listing::{Entry, View};

/// Arguments of a report in which the expected stacks occur.
///
/// They are among the first five of the recording from which the expectations were made.
pub(crate) const STACKS: &[&str] = &["--by", "stack", "--limit", "400", "--json"];
/// A further argument, for whole stacks.
pub(crate) const UNFOLDED: &str = "--internals";

/// A stack of a report.
struct Listed {
    first: String,
    frames: Vec<String>,
    bytes: u64,
    allocations: u64,
}

/// Joins the default report and the unfolded one, whose costs are those of `view`.
///
/// # Errors
/// A text is no JSON, or no report by stack.
pub(crate) fn entries(report: &str, unfolded: &str, view: View) -> Result<Vec<Entry>, String> {
    let (rows, wholes) = (listed(report)?, listed(unfolded)?);
    let named = wholes.into_iter().filter_map(|whole| {
        let row = row_of(&whole, &rows)?;
        let cost = if view == View::Count { whole.allocations } else { whole.bytes };
        Some(Entry { view, first: row.first.clone(), frames: whole.frames, cost: cost as f64 })
    });
    Ok(named.collect())
}

/// Returns the row of the default list that has this stack.
///
/// All frames of the row are frames of the stack, in this order. Among several rows, the one with
/// the stack's own numbers is taken, then the one with most frames.
fn row_of<'a>(whole: &Listed, rows: &'a [Listed]) -> Option<&'a Listed> {
    let fits = |row: &&Listed| {
        let mut frames = whole.frames.iter();
        row.allocations >= whole.allocations
            && row.bytes >= whole.bytes
            && row.frames.iter().all(|frame| frames.any(|other| other == frame))
    };
    let same = |row: &Listed| (row.bytes, row.allocations) == (whole.bytes, whole.allocations);
    rows.iter().filter(fits).max_by_key(|row| (same(row), row.frames.len()))
}

fn listed(report: &str) -> Result<Vec<Listed>, String> {
    let report: Value = serde_json::from_str(report).map_err(|error| error.to_string())?;
    let rows = report["top"].as_array().ok_or("the report has no list `top`")?;
    let mut listed = Vec::new();
    for row in rows {
        let first = row["function"].as_str().ok_or("a row of the report names no function")?;
        for stack in row["stacks"].as_array().into_iter().flatten() {
            let frames = stack["frames"].as_array().into_iter().flatten();
            listed.push(Listed {
                first: first.to_owned(),
                frames: frames.filter_map(|frame| Some(frame["function"].as_str()?.to_owned())).collect(),
                bytes: stack["bytes"].as_u64().unwrap_or_default(),
                allocations: stack["count"].as_u64().unwrap_or_default(),
            });
        }
    }
    Ok(listed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(stacks: &[(&str, u64, u64, &str)]) -> String {
        let rows = stacks.iter().map(|(first, bytes, count, frames)| {
            let frames: Vec<Value> =
                frames.split(' ').map(|frame| serde_json::json!({ "function": frame })).collect();
            let stack = serde_json::json!({ "bytes": bytes, "count": count, "frames": frames });
            serde_json::json!({ "function": first, "stacks": [stack] })
        });
        serde_json::json!({ "top": rows.collect::<Vec<_>>() }).to_string()
    }

    #[test]
    fn cairn_names_whole_stacks_by_their_folded_row() {
        let whole = report(&[
            ("zmalloc", 9, 2, "zmalloc sdsnew set call main"),
            ("zmalloc", 9, 2, "zmalloc sdsnew get call main"),
            ("zmalloc", 5, 1, "zmalloc dict set call main"),
        ]);
        let folded = report(&[
            ("get", 9, 2, "get call main"),
            ("set", 9, 2, "set call main"),
            ("dict", 5, 1, "dict set call main"),
        ]);
        let firsts = |view| -> Vec<(String, f64)> {
            let entries = entries(&folded, &whole, view).unwrap();
            entries.into_iter().map(|entry| (entry.first, entry.cost)).collect()
        };
        assert_eq!(firsts(View::Peak), [("set".into(), 9.0), ("get".into(), 9.0), ("dict".into(), 5.0)]);
        assert_eq!(firsts(View::Count)[2].1, 1.0);
    }

    #[test]
    fn cairn_stacks_that_are_held_back_have_no_entry() {
        let whole = report(&[("a", 1, 1, "a main"), ("b", 2, 1, "b main")]);
        let entries = entries(&report(&[("b", 2, 1, "b main")]), &whole, View::Peak).unwrap();
        assert_eq!(entries.len(), 1);
        assert_eq!(entries[0].frames, ["b", "main"]);
    }

    #[test]
    fn cairn_report_of_another_kind_is_an_error() {
        assert!(entries("{}", "{}", View::Peak).unwrap_err().contains("top"));
        assert!(entries("", "{}", View::Peak).is_err());
    }
}
