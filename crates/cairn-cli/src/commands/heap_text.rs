//! How numbers, names and curves of the heap reports are written.

use std::fmt::Write;

use cairn_analysis::heap::{LineId, Names};
pub(crate) use cairn_analysis::units::{bytes, count, counted};
use cairn_symbols::shorten::{fit, shorten, shorten_without_parameters};
use unicode_width::UnicodeWidthStr;

use crate::output::printable;

/// Returns the name of a frame, and its place: `  file:line [module]`.
pub(crate) fn name_and_place(names: &Names<'_>, line: LineId) -> (String, String) {
    let source = names.source_line(line);
    let function = names.function(source.function);
    let mut place = String::new();
    if let Some(file) = source.file.as_deref() {
        place = match source.line {
            Some(number) => format!("  {}:{number}", file_name(file)),
            None => format!("  {}", file_name(file)),
        };
    }
    let module = names.module_name(line);
    if !module.is_empty() && function.is_named {
        place = format!("{place} [{module}]");
    }
    (printable(&function.name).into_owned(), printable(&place).into_owned())
}

/// A difference of bytes, with its sign.
pub(crate) fn signed_bytes(value: i128) -> String {
    let size = bytes(u64::try_from(value.unsigned_abs()).unwrap_or(u64::MAX));
    format!("{}{size}", sign(value))
}

/// A difference of numbers, with its sign.
pub(crate) fn signed_count(value: i128) -> String {
    format!("{}{}", sign(value), count(u64::try_from(value.unsigned_abs()).unwrap_or(u64::MAX)))
}

fn sign(value: i128) -> &'static str {
    match value {
        0 => "",
        1.. => "+",
        _ => "-",
    }
}

/// A time in the unit that reads best: `1.204 s`.
pub(crate) fn duration(nanos: u64) -> String {
    match nanos {
        0..1_000 => format!("{nanos} ns"),
        1_000..1_000_000 => format!("{:.1} µs", nanos as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", nanos as f64 / 1e6),
        1_000_000_000..120_000_000_000 => format!("{:.3} s", nanos as f64 / 1e9),
        _ => {
            let seconds = nanos / 1_000_000_000;
            let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
            if hours > 0 {
                format!("{hours} h {minutes:02} min {:02} s", seconds % 60)
            } else {
                format!("{minutes} min {:02} s", seconds % 60)
            }
        }
    }
}

/// A part of a whole in percent, five characters wide; empty parts of nothing are 0.
pub(crate) fn percent(share: f64) -> String {
    match share * 100.0 {
        percent if percent > 0.0 && percent < 0.1 => "< 0.1".to_owned(),
        percent => format!("{percent:5.1}"),
    }
}

/// Columns of the terminal; `COLUMNS` where it is set, and 100 without a terminal.
pub(crate) fn width() -> usize {
    let stated = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
    let terminal = || terminal_size::terminal_size().map(|(width, _)| usize::from(width.0));
    stated.or_else(terminal).unwrap_or(100).clamp(60, 400)
}

/// Returns the columns of the terminal, which names are cut to.
///
/// `None` for a pipe or a file, in which nothing is cut.
pub(crate) fn name_columns(is_terminal: bool) -> Option<usize> {
    is_terminal.then(width)
}

/// Fewest columns of a name, however long its place is.
const LEAST_NAME: usize = 12;

/// Shortens the name of a frame for a list, and cuts it to fit beside its place.
///
/// Both fit into `columns`; the place is never cut.
/// Without a file, parameters tell overloads apart, and stay.
pub(crate) fn list_name(name: &str, place: &str, columns: Option<usize>) -> String {
    let short = if place.starts_with("  ") { shorten_without_parameters(name) } else { shorten(name) };
    match columns {
        Some(columns) => {
            let room = columns.saturating_sub(place.width()).max(LEAST_NAME);
            fit(&short, room, |text| text.width())
        }
        None => short.into_owned(),
    }
}

/// The last part of a path.
pub(crate) fn file_name(path: &str) -> &str {
    path.rsplit(['/', '\\']).next().filter(|name| !name.is_empty()).unwrap_or(path)
}

/// A curve as rows of block characters, the highest first; each value is the height of one column.
pub(crate) fn curve(values: &[u64], rows: usize) -> Vec<String> {
    const EIGHTHS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let most = values.iter().copied().max().unwrap_or(0).max(1) as f64;
    let row = |row: usize| {
        let below = (rows - 1 - row) * 8;
        let mut text = String::new();
        for &value in values {
            // A value above 0 is visible.
            let height = (value as f64 / most * (rows * 8) as f64).round() as usize;
            let height = height.max(usize::from(value > 0));
            text.push(EIGHTHS[height.saturating_sub(below).min(8)]);
        }
        text.trim_end().to_owned()
    };
    (0..rows).map(row).collect()
}

/// The most of each of `columns` equal stretches of the values.
pub(crate) fn stretched(values: &[u64], columns: usize) -> Vec<u64> {
    let column = |column: usize| {
        let start = column * values.len() / columns;
        let end = ((column + 1) * values.len()).div_ceil(columns);
        values.get(start..end.max(start + 1)).and_then(|part| part.iter().copied().max()).unwrap_or(0)
    };
    (0..columns).map(column).collect()
}

/// A bar of this part of `columns`.
pub(crate) fn bar(share: f64, columns: usize) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let eighths = (share.clamp(0.0, 1.0) * (columns * 8) as f64).round() as usize;
    let mut text = "█".repeat(eighths / 8);
    let _ = text.write_str(EIGHTHS[eighths % 8]);
    if text.is_empty() && share > 0.0 { EIGHTHS[1].to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_four_digits_at_most() {
        let cases = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1_048_575, "1.0 MiB"),
            (1_047_000, "1022.5 KiB"),
            (u64::MAX, "16.0 EiB"),
        ];
        for (value, text) in cases {
            assert_eq!(bytes(value), text);
        }
        assert_eq!(signed_bytes(-2048), "-2.0 KiB");
        assert_eq!(signed_bytes(0), "0 B");
        assert_eq!(signed_count(1_000_000), "+1,000,000");
    }

    #[test]
    fn numbers_and_times_read_well() {
        assert_eq!(count(7), "7");
        assert_eq!(count(123_456), "123,456");
        assert_eq!(counted(1, "block"), "1 block");
        assert_eq!(counted(1_000, "block"), "1,000 blocks");
        let cases = [
            (12, "12 ns"),
            (1_500, "1.5 µs"),
            (1_204_000_000, "1.204 s"),
            (3_723_000_000_000, "1 h 02 min 03 s"),
        ];
        for (nanos, text) in cases {
            assert_eq!(duration(nanos), text);
        }
        assert_eq!(
            (percent(0.463), percent(0.0001), percent(1.0)),
            (" 46.3".into(), "< 0.1".into(), "100.0".into())
        );
    }

    #[test]
    fn list_names_fit_beside_their_place() {
        let name = "std::map<Key, std::vector<S, std::allocator<S> > >::operator[](Key const&)";
        let place = "  stl_map.h:501 [shop]";
        let cases = [
            (None, "std::map<Key, std::vector<S>>::operator[]"),
            (Some(80), "std::map<Key, std::vector<S>>::operator[]"),
            (Some(60), "std::map<Key, …>::operator[]"),
            (Some(45), "std::map<…>::operator[]"),
            (Some(20), "std…erator[]"),
        ];
        for (columns, shown) in cases {
            assert_eq!(list_name(name, place, columns), shown, "{columns:?}");
            let shown = shown.width() + place.width();
            assert!(columns.is_none_or(|columns| shown <= columns.max(LEAST_NAME + place.width())));
        }
        // Parameters stay where no file tells overloads apart; wide characters have two columns.
        assert_eq!(list_name("load(int)", " [shop]", None), "load(int)");
        assert_eq!(list_name("読み込み::注文書を読む", " [shop]", Some(20)), "読み…書を読む");
    }

    #[test]
    fn curves_reach_from_nothing_to_the_top() {
        assert_eq!(curve(&[0, 1, 8, 16], 2), ["   █", " ▁██"]);
        assert_eq!(stretched(&[1, 5, 2, 9], 2), [5, 9]);
        assert_eq!(stretched(&[3], 4), [3, 3, 3, 3]);
        assert_eq!(bar(0.5, 4), "██");
        assert_eq!(bar(0.0001, 4), "▏");
        assert_eq!(bar(0.0, 4), "");
    }
}
