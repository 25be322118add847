//! Days of moments, in UTC.

use chrono::DateTime;

/// Returns the day of a moment in milliseconds since 1970, as `2026-11-27`. A moment that no
/// calendar has is the first day of 1970.
///
/// ```
/// assert_eq!(cairn_store::day_of(0), "1970-01-01");
/// assert_eq!(cairn_store::day_of(1_795_737_600_000), "2026-11-27");
/// ```
#[must_use]
pub fn day_of(moment_ms: i64) -> String {
    DateTime::from_timestamp_millis(moment_ms).unwrap_or_default().format("%Y-%m-%d").to_string()
}

/// Returns true for two moments of one day.
pub(crate) fn is_same_day(a_ms: i64, b_ms: i64) -> bool {
    const DAY_MS: i64 = 86_400_000;
    a_ms.div_euclid(DAY_MS) == b_ms.div_euclid(DAY_MS)
}

/// Returns the present moment in milliseconds since 1970.
#[must_use]
pub fn now_ms() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
