//! Builds table rows and writes them as CSV or as JSON lines.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::Write;

use cairn_analysis::heap::{HeapProfile, Sums, ThreadName, lifetime_class_range, size_class_range};
use cairn_format::changes_its_surroundings;
use serde_json::{Map, Value};

use crate::dispatch::target::{Rows, Subject};
use crate::error::ExchangeError;
use crate::formats::folded::joined;
use crate::model::profile::{Column, Profile, heap_columns, heap_values};

/// What stands in a place of a table.
#[derive(Clone, PartialEq, Debug)]
enum Cell {
    Text(String),
    Number(u64),
}

/// A table with names for its columns.
struct Table<'a> {
    header: Vec<String>,
    rows: Box<dyn Iterator<Item = Vec<Cell>> + 'a>,
}

/// Text that a spreadsheet shows, and does not compute: behind a quotation mark where it would
/// begin a formula, also behind blanks and quotation marks, which some programs take away, as in
/// OWASP's "CSV Injection". A text may have a line break in it, but none of its lines is a cell.
fn no_formula(text: &str) -> Cow<'_, str> {
    let start = text.trim_start_matches(|c: char| {
        c.is_whitespace() || matches!(c, '"' | '\'') || changes_its_surroundings(c)
    });
    let begins_one = start.starts_with(['=', '+', '-', '@', '＝', '＋', '－', '＠']);
    if begins_one || text.starts_with(['\t', '\r', '\n']) { format!("'{text}").into() } else { text.into() }
}

/// Writes the table as CSV, a header first. Text that would be a formula to a spreadsheet begins
/// with `'`.
pub(crate) fn write_csv(
    subject: &Subject<'_>,
    rows: Rows,
    output: &mut dyn Write,
) -> Result<(), ExchangeError> {
    let table = table(subject, rows)?;
    let failed = |error: csv::Error| ExchangeError::writing(error.into());
    let mut writer = csv::Writer::from_writer(output);
    writer.write_record(table.header.iter().map(|name| no_formula(name).into_owned())).map_err(failed)?;
    for row in table.rows {
        let cells = row.into_iter().map(|cell| match cell {
            Cell::Text(text) => no_formula(&text).into_owned(),
            Cell::Number(number) => number.to_string(),
        });
        writer.write_record(cells).map_err(failed)?;
    }
    writer.flush().map_err(ExchangeError::writing)
}

/// Writes the table as one JSON object a line.
pub(crate) fn write_json_lines(
    subject: &Subject<'_>,
    rows: Rows,
    output: &mut dyn Write,
) -> Result<(), ExchangeError> {
    let table = table(subject, rows)?;
    for row in table.rows {
        let object: Map<String, Value> = table
            .header
            .iter()
            .cloned()
            .zip(row.into_iter().map(|cell| match cell {
                Cell::Text(text) => Value::from(text),
                Cell::Number(number) => Value::from(number),
            }))
            .collect();
        let line = serde_json::to_string(&object).map_err(|error| ExchangeError::writing(error.into()))?;
        writeln!(output, "{line}").map_err(ExchangeError::writing)?;
    }
    Ok(())
}

fn table<'a>(subject: &Subject<'a>, rows: Rows) -> Result<Table<'a>, ExchangeError> {
    let profile = subject.profile;
    let of_heap = || {
        subject.heap.ok_or(ExchangeError::CannotHold {
            format: "this table",
            reason: "there are only stacks, functions, lines and modules of what is no heap recording",
        })
    };
    Ok(match rows {
        Rows::Stacks => stacks(profile),
        Rows::Functions => grouped(profile, &["function", "file", "module"], |place| {
            vec![place.function.clone(), place.file.clone(), place.module.clone()]
        }),
        Rows::Lines => grouped(profile, &["file", "line", "function", "module"], |place| {
            vec![place.file.clone(), place.line.clone(), place.function.clone(), place.module.clone()]
        }),
        Rows::Modules => grouped(profile, &["module"], |place| vec![place.module.clone()]),
        Rows::Threads => {
            let heap = of_heap()?;
            threads(heap.sums, &heap.threads)
        }
        Rows::Sizes => sizes(of_heap()?.sums),
        Rows::Lifetimes => lifetimes(of_heap()?.sums),
        Rows::Timeline => timeline(of_heap()?.sums),
    })
}

fn names_of(columns: &[Column]) -> impl Iterator<Item = String> {
    columns.iter().map(|column| column.name.to_string())
}

fn header(first: &[&str], columns: &[Column]) -> Vec<String> {
    first.iter().map(|&name| name.to_owned()).chain(names_of(columns)).collect()
}

fn row(first: impl IntoIterator<Item = Cell>, values: &[u64]) -> Vec<Cell> {
    first.into_iter().chain(values.iter().map(|&value| Cell::Number(value))).collect()
}

fn stacks(profile: &Profile) -> Table<'_> {
    let rows = profile.samples.iter().map(|sample| {
        let names: Vec<&str> =
            profile.lines_of(sample.stack).map(|(line, _)| profile.function_name(line)).collect();
        row([Cell::Text(joined(names.into_iter().rev()))], &sample.values)
    });
    Table { header: header(&["stack"], &profile.columns), rows: Box::new(rows) }
}

/// Who asked: the innermost frame of a stack.
#[derive(Default)]
struct Place {
    function: String,
    file: String,
    line: String,
    module: String,
}

fn place(profile: &Profile, stack: Option<u32>) -> Place {
    let Some((line, module)) = profile.lines_of(stack).next() else { return Place::default() };
    let file = profile.functions.get(line.function as usize).and_then(|function| function.file.as_deref());
    Place {
        function: profile.function_name(line).to_owned(),
        file: file.unwrap_or("").to_owned(),
        line: if line.line > 0 { line.line.to_string() } else { String::new() },
        module: module
            .and_then(|module| profile.modules.get(module as usize))
            .map_or_else(String::new, |module| module.path.to_string()),
    }
}

fn grouped(profile: &Profile, names: &[&str], key: impl Fn(&Place) -> Vec<String>) -> Table<'static> {
    let mut groups: BTreeMap<Vec<String>, Vec<u64>> = BTreeMap::new();
    for sample in &profile.samples {
        let sums = groups
            .entry(key(&place(profile, sample.stack)))
            .or_insert_with(|| vec![0; profile.columns.len()]);
        for (sum, value) in sums.iter_mut().zip(&sample.values) {
            *sum = sum.saturating_add(*value);
        }
    }
    let rows = groups.into_iter().map(|(key, sums)| row(key.into_iter().map(Cell::Text), &sums));
    Table { header: header(names, &profile.columns), rows: Box::new(rows) }
}

fn of_sums<'s>(names: &[&str], rows: impl Iterator<Item = (Vec<Cell>, &'s Sums)> + 's) -> Table<'s> {
    let rows = rows.filter(|(_, sums)| !sums.is_empty()).map(|(first, sums)| row(first, &heap_values(sums)));
    Table { header: header(names, &heap_columns()), rows: Box::new(rows) }
}

fn threads<'a>(sums: &'a HeapProfile, threads: &'a [ThreadName]) -> Table<'a> {
    let rows = threads.iter().zip(&sums.threads).map(|(thread, sums)| {
        (vec![Cell::Number(thread.kernel_thread.into()), Cell::Text(thread.name.clone())], sums)
    });
    of_sums(&["thread", "name"], rows)
}

fn sizes(sums: &HeapProfile) -> Table<'_> {
    let rows = sums.sizes.iter().enumerate().map(|(class, sums)| {
        let (least, most) = size_class_range(class);
        (vec![Cell::Number(least), Cell::Number(most)], sums)
    });
    of_sums(&["least_bytes", "most_bytes"], rows)
}

fn lifetimes(sums: &HeapProfile) -> Table<'_> {
    let rows = sums.lifetimes.iter().enumerate().filter(|(_, lifetimes)| lifetimes.blocks > 0);
    let rows = rows.map(|(class, lifetimes)| {
        let (shortest, longest) = lifetime_class_range(class);
        [shortest, longest, lifetimes.blocks, lifetimes.bytes].map(Cell::Number).to_vec()
    });
    let header = ["shortest_nanos", "longest_nanos", "blocks", "bytes"].map(str::to_owned).to_vec();
    Table { header, rows: Box::new(rows) }
}

fn timeline(sums: &HeapProfile) -> Table<'_> {
    let timeline = &sums.timeline;
    let rows = timeline.bins.iter().zip(0_u64..).map(|(bin, index)| {
        let numbers = [
            index.saturating_mul(timeline.bin_nanos),
            bin.most_bytes,
            bin.last_bytes,
            bin.last_blocks,
            bin.allocations,
            bin.allocated_bytes,
        ];
        numbers.map(Cell::Number).to_vec()
    });
    let header = ["from_nanos", "most_bytes", "last_bytes", "last_blocks", "allocations", "allocated_bytes"];
    Table { header: header.map(str::to_owned).to_vec(), rows: Box::new(rows) }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Failed with: each of them as it is.
    #[test]
    fn csv_text_is_no_formula() {
        let formulas = [
            "=1+2",
            "+1",
            "-1",
            "@SUM(A1)",
            "\t=1",
            "\r=1",
            "\n=1",
            "\ttab",
            " =1",
            "\"=1",
            "'=1",
            " \" =1",
            "\u{a0}=1",
            "\u{200b}=1",
            "\u{feff}@x",
            "＝1",
            "=cmd|' /C calc'!A0",
        ];
        for text in formulas {
            assert_eq!(no_formula(text), format!("'{text}"), "{text:?}");
        }
        for text in [
            "",
            "main",
            "operator-",
            "a=b",
            "std::vec<int>",
            "'quoted",
            "\"quoted\"",
            "123",
            "[in libc, names not known]",
        ] {
            assert_eq!(no_formula(text), text);
        }
    }
}
