//! The lists of heaptrack_print.
//!
//! ```text
//! PEAK MEMORY CONSUMERS
//! 686.55K peak memory consumed over 6091 calls from     <- a row of the list ...
//! jv_mem_alloc                                          <- ... and what it names
//!   at src/jv_alloc.c:131
//!   in /usr/bin/jq
//! 31.92K consumed over 210 calls from:                  <- a stack of this row
//!     gen_op_simple                                     <- its caller
//!       in /usr/bin/jq
//! ```

use super::listing::{Entry, View};

/// The headings of heaptrack_print's lists, and the questions that a list answers.
///
/// It has no list by allocated bytes. Its rows have the same names in every list, so the stacks of
/// that question are taken from the list by calls.
const LISTS: &[(&str, &[View])] = &[
    ("MOST CALLS TO ALLOCATION FUNCTIONS", &[View::Count, View::Allocated]),
    ("PEAK MEMORY CONSUMERS", &[View::Peak]),
    ("MEMORY LEAKS", &[View::Leaked]),
    ("MOST TEMPORARY ALLOCATIONS", &[]),
];

/// Arguments with which heaptrack_print prints the rows and stacks that matter.
///
/// The expected stacks are among the first five of a question, so they and their rows are among the
/// first here. Without limits, clang's lists take minutes and a gigabyte.
pub(crate) const LIMITS: &[&str] =
    &["--print-leaks=1", "--print-temporary=0", "--peak-limit=1000", "--sub-peak-limit=1000"];

/// Reads the lists that heaptrack_print prints.
pub(crate) fn entries(printed: &str) -> Vec<Entry> {
    let mut reader = Reader::default();
    printed.lines().for_each(|line| reader.line(line));
    reader.finish_stack();
    reader.entries
}

#[derive(Default)]
struct Reader {
    entries: Vec<Entry>,
    views: &'static [View],
    /// Innermost function of the row, and those into which it is inlined.
    row: Vec<String>,
    /// Cost and callers of the stack that is being read.
    stack: Option<(f64, Vec<String>)>,
    /// Cost of the row, for a row that lists no stacks.
    row_cost: f64,
    has_stacks: bool,
}

impl Reader {
    fn line(&mut self, line: &str) {
        if let Some((_, views)) = LISTS.iter().find(|(heading, _)| *heading == line.trim_end()) {
            self.finish_row();
            self.views = views;
        } else if line.is_empty() {
            self.finish_row();
        } else if line.starts_with("total runtime:") {
            self.finish_row();
            self.views = &[];
        } else if let Some(cost) = cost_of(line) {
            if line.trim_end().ends_with("from:") {
                self.finish_stack();
                self.stack = Some((cost, Vec::new()));
                self.has_stacks = true;
            } else {
                self.finish_row();
                self.row_cost = cost;
            }
        } else if let Some(function) = function_of(line) {
            match &mut self.stack {
                Some((_, callers)) => callers.push(function.to_owned()),
                None => self.row.push(function.to_owned()),
            }
        }
    }

    fn finish_stack(&mut self) {
        let Some((cost, callers)) = self.stack.take() else { return };
        let Some(first) = self.row.first() else { return };
        let frames: Vec<String> = self.row.iter().chain(&callers).cloned().collect();
        for view in self.views {
            self.entries.push(Entry { view: *view, first: first.clone(), frames: frames.clone(), cost });
        }
    }

    fn finish_row(&mut self) {
        self.finish_stack();
        if !self.has_stacks && !self.row.is_empty() {
            self.stack = Some((self.row_cost, Vec::new()));
            self.finish_stack();
        }
        self.row.clear();
        self.has_stacks = false;
    }
}

/// Returns the cost with which a row or a stack begins: `31.92K consumed over 210 calls from:`.
fn cost_of(line: &str) -> Option<f64> {
    let line = line.trim_end();
    if line.starts_with(' ') || !(line.ends_with(" from") || line.ends_with(" from:")) {
        return None;
    }
    let number = line.split(' ').next()?;
    let digits = number.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let scale = match &number[digits.len()..] {
        "" | "B" => 1.0,
        "K" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        _ => return None,
    };
    Some(digits.parse::<f64>().ok()? * scale)
}

/// Returns the function of a line with one. Places (`at`, `in`) and sums (`and 3 from ...`) have
/// none.
fn function_of(line: &str) -> Option<&str> {
    let line = line.trim();
    let is_place = ["at ", "in "].iter().any(|word| line.starts_with(word));
    let is_sum = line.starts_with("and ") && line.contains(" from ");
    (!is_place && !is_sum).then_some(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    // Printed by heaptrack_print 1.4.0, shortened.
    const PRINTED: &str = r#"reading file "ht.zst" - please wait, this might take some time...
Debuggee command was: source/src/redis-server --port 0
finished reading file, now analyzing data:

MOST CALLS TO ALLOCATION FUNCTIONS
1114357 calls to allocation functions with 2.46M peak consumption from
ztrymalloc_usable_internal
  at /redis/src/zmalloc.c:126
  in /redis/src/redis-server
zmalloc
  at /redis/src/zmalloc.c:154
160000 calls with 19.20K peak consumption from:
    dictAddRaw
      at /redis/src/dict.c:349
      in /redis/src/redis-server
    main
      at /redis/src/server.c:7171
      in /redis/src/redis-server
4000 calls with 310.89K peak consumption from:
    _sdsnewlen
      at /redis/src/sds.c:128
      in /redis/src/redis-server
  and 40 from 12 other places

606 calls to allocation functions with 4.61K peak consumption from
0x7f49917591ea
  in /lib/x86_64-linux-gnu/libjq.so.1

PEAK MEMORY CONSUMERS
2.46M peak memory consumed over 1114357 calls from
zmalloc
  in /redis/src/redis-server
324.10K consumed over 1 calls from:
    aeCreateEventLoop
      at /redis/src/ae.c:74
      in /redis/src/redis-server

MEMORY LEAKS
41B leaked over 3 calls from
strdup
  in libc.so.6

total runtime: 2.16s.
calls to allocation functions: 1246691 (577439/s)
"#;

    #[test]
    fn heaptrack_rows_and_stacks_are_read() {
        let entries = entries(PRINTED);
        let short: Vec<(View, &str, String, f64)> = entries
            .iter()
            .map(|entry| (entry.view, entry.first.as_str(), entry.frames.join(" "), entry.cost))
            .collect();
        let inlined = "ztrymalloc_usable_internal";
        let dict = format!("{inlined} zmalloc dictAddRaw main");
        let sds = format!("{inlined} zmalloc _sdsnewlen");
        assert_eq!(
            short,
            [
                (View::Count, inlined, dict.clone(), 160_000.0),
                (View::Allocated, inlined, dict, 160_000.0),
                (View::Count, inlined, sds.clone(), 4000.0),
                (View::Allocated, inlined, sds, 4000.0),
                (View::Count, "0x7f49917591ea", "0x7f49917591ea".to_owned(), 606.0),
                (View::Allocated, "0x7f49917591ea", "0x7f49917591ea".to_owned(), 606.0),
                (View::Peak, "zmalloc", "zmalloc aeCreateEventLoop".to_owned(), 324_100.0),
                (View::Leaked, "strdup", "strdup".to_owned(), 41.0),
            ]
        );
    }

    #[test]
    fn heaptrack_text_without_lists_has_no_entries() {
        assert_eq!(entries(""), []);
        assert_eq!(
            entries(
                "Failed to open heaptrack log file: ht.zst
"
            ),
            []
        );
    }
}
