//! Numbers and bytes as reports write them.

/// Returns bytes in the unit that leaves one to four digits in front of the point.
///
/// ```
/// use cairn_analysis::units::bytes;
///
/// assert_eq!(bytes(1023), "1023 B");
/// assert_eq!(bytes(4_300_000), "4.1 MiB");
/// ```
#[must_use]
pub fn bytes(value: u64) -> String {
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

/// Returns a number with its thousands apart: `65,826`.
#[must_use]
pub fn count(value: u64) -> String {
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

/// Returns a number and its noun: `1 block`, `2 blocks`.
#[must_use]
pub fn counted(value: u64, word: &str) -> String {
    let plural = if value == 1 { "" } else { "s" };
    format!("{} {word}{plural}", count(value))
}
