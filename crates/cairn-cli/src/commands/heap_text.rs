//! How numbers, names and curves of the heap reports are written.

use std::fmt::Write;

use cairn_analysis::heap::{LineId, Names};

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

/// Bytes in the unit that leaves one to four digits in front of the point: `4.1 MiB`.
pub(crate) fn bytes(value: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if value < 1024 {
        return format!("{value} B");
    }
    let mut scaled = value as f64 / 1024.0;
    let mut unit = 0;
    // 1023.96 KiB would be written as 1024.0 KiB.
    while scaled >= 1023.95 && unit + 1 < UNITS.len() {
        scaled /= 1024.0;
        unit += 1;
    }
    format!("{scaled:.1} {}", UNITS[unit])
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

/// A number with its thousands apart: `65,826`.
pub(crate) fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a number and its noun: `1 block`, `2 blocks`.
pub(crate) fn counted(value: u64, word: &str) -> String {
    let plural = if value == 1 { "" } else { "s" };
    format!("{} {word}{plural}", count(value))
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

/// Shortens a function's name to `most` characters.
///
/// Drops its parameters first, then its template arguments, then its middle.
pub(crate) fn shortened(name: &str, most: usize) -> String {
    let fits = |text: &str| text.chars().count() <= most;
    if fits(name) {
        return name.to_owned();
    }
    let without_parameters = without_brackets(name, '(', ')', 1);
    if fits(&without_parameters) {
        return without_parameters;
    }
    for depth in (1..=3).rev() {
        let shorter = without_brackets(&without_parameters, '<', '>', depth);
        if fits(&shorter) {
            return shorter;
        }
    }
    let short: Vec<char> = without_brackets(&without_parameters, '<', '>', 1).chars().collect();
    if short.len() <= most {
        return short.into_iter().collect();
    }
    // The end of a name says more than its start.
    let front = most.saturating_sub(1) / 3;
    let back = most.saturating_sub(1) - front;
    short[..front].iter().chain(&['…']).chain(&short[short.len() - back..]).collect()
}

/// The name with what is in the brackets of this depth replaced by `…`. A `<` or `>` of an operator
/// is none, and neither is a bracket that begins the name, as in Rust's `<T as Trait>::f`.
fn without_brackets(name: &str, open: char, close: char, from_depth: usize) -> String {
    const ANONYMOUS: &str = "(anonymous namespace)";
    let mut text = String::with_capacity(name.len());
    let mut depth = 0_usize;
    let mut rest = name;
    while let Some(c) = rest.chars().next() {
        let is_operator = ["operator", "operator<", "operator>", "-"].iter().any(|end| text.ends_with(end));
        let taken = if rest.starts_with(ANONYMOUS) { ANONYMOUS.len() } else { c.len_utf8() };
        let (part, behind) = rest.split_at(taken);
        let is_plain = is_operator || taken > c.len_utf8() || rest.len() == name.len();
        rest = behind;
        if c == open && !is_plain {
            depth += 1;
            if depth <= from_depth {
                text.push(open);
            }
            if depth == from_depth {
                text.push('…');
            }
        } else if c == close && !is_plain && depth > 0 {
            if depth <= from_depth {
                text.push(close);
            }
            depth -= 1;
        } else if depth < from_depth {
            text.push_str(part);
        }
    }
    text
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
    fn names_lose_parameters_before_their_middle() {
        let name = "std::map<int, std::vector<S> >::operator[](int const&)";
        let cases = [
            (60, name),
            (45, "std::map<int, std::vector<S> >::operator[](…)"),
            (44, "std::map<…>::operator[](…)"),
            (26, "std::map<…>::operator[](…)"),
            (20, "std::m…operator[](…)"),
        ];
        for (most, short) in cases {
            assert_eq!(shortened(name, most), short, "{most}");
        }
        assert_eq!(shortened("<Type as Trait<Other>>::f", 21), "<Type as Trait<…>>::f");
        assert_eq!(shortened("operator<<(std::ostream&, S)", 20), "operator<<(…)");
        assert_eq!(shortened("(anonymous namespace)::f(int, int, int)", 30), "(anonymous namespace)::f(…)");
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
