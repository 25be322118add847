//! Converts wall times: nanoseconds since 1970 to dates and back, in UTC without leap seconds, like
//! Unix.

use std::fmt;

const SECONDS_OF_DAY: i64 = 86_400;
const NANOS: u64 = 1_000_000_000;

/// A UTC time as date and time of day.
///
/// ```
/// use cairn_analysis::calendar::Moment;
/// let moment = Moment::new(1_523_217_944_123_456_700);
/// assert_eq!(moment.iso().to_string(), "2018-04-08T20:05:44.123456700Z");
/// assert_eq!(moment.plain().to_string(), "Sun Apr  8 20:05:44 2018");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Moment {
    year: i64,
    /// Counted from 1.
    month: u32,
    /// Counted from 1.
    day: u32,
    /// Counted from Sunday.
    weekday: usize,
    second_of_day: u32,
    nanos: u32,
}

const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const WEEKDAYS: [&str; 7] = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];

impl Moment {
    /// Converts nanoseconds since the start of 1970.
    #[must_use]
    pub fn new(nanos_since_1970: u64) -> Self {
        let seconds = (nanos_since_1970 / NANOS).cast_signed();
        let days = seconds.div_euclid(SECONDS_OF_DAY);
        let (year, month, day) = date_of(days);
        Self {
            year,
            month,
            day,
            // 1 January 1970 was a Thursday.
            weekday: usize::try_from((days + 4).rem_euclid(7)).unwrap_or(0),
            second_of_day: u32::try_from(seconds.rem_euclid(SECONDS_OF_DAY)).unwrap_or(0),
            nanos: u32::try_from(nanos_since_1970 % NANOS).unwrap_or(0),
        }
    }

    /// Formats as `2018-04-08T20:05:44.123456700Z`.
    pub fn iso(self) -> impl fmt::Display {
        let (hour, minute, second) = self.time();
        let Self { year, month, day, nanos, .. } = self;
        fmt::from_fn(move |f| {
            write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{nanos:09}Z")
        })
    }

    /// Formats like C's `%c`: `Sun Apr  8 20:05:44 2018`.
    pub fn plain(self) -> impl fmt::Display {
        let (hour, minute, second) = self.time();
        let month = MONTHS.get(self.month as usize - 1).unwrap_or(&"?");
        let weekday = WEEKDAYS.get(self.weekday).unwrap_or(&"?");
        let Self { year, day, .. } = self;
        fmt::from_fn(move |f| write!(f, "{weekday} {month} {day:2} {hour:02}:{minute:02}:{second:02} {year}"))
    }

    /// Returns the nanoseconds within the second.
    #[must_use]
    pub fn nanos_of_second(self) -> u32 {
        self.nanos
    }

    fn time(self) -> (u32, u32, u32) {
        (self.second_of_day / 3600, self.second_of_day / 60 % 60, self.second_of_day % 60)
    }
}

/// Parses an ISO 8601 time to nanoseconds since 1970.
///
/// Accepts `2018-04-08`, `2018-04-08T20:05`, `2018-04-08 20:05:44.5`, with `Z`, an offset such as
/// `+02:00`, or neither, which also means UTC. `None` for anything else, and before 1970.
///
/// ```
/// use cairn_analysis::calendar::parse_iso;
/// assert_eq!(parse_iso("1970-01-02T00:00:01.25Z"), Some(86_401_250_000_000));
/// assert_eq!(parse_iso("1970-01-01T02:00+02:00"), Some(0));
/// assert_eq!(parse_iso("yesterday"), None);
/// ```
#[must_use]
pub fn parse_iso(text: &str) -> Option<u64> {
    let (date, time) = match text.split_once(['T', 't', ' ']) {
        Some((date, time)) => (date, Some(time)),
        None => (text, None),
    };
    let mut parts = date.splitn(3, '-');
    let year = digits(parts.next()?, 4)?;
    let month = digits(parts.next()?, 2).filter(|month| (1..=12).contains(month))?;
    let day = digits(parts.next()?, 2)?;
    let days = days_until(year.into(), month, day);
    // A day that the month lacks converts back to another date.
    if date_of(days) != (year.into(), month, day) {
        return None;
    }
    let (seconds, nanos) = time.map_or(Some((0, 0)), parse_time)?;
    let seconds = u64::try_from(days * SECONDS_OF_DAY + seconds).ok()?;
    seconds.checked_mul(NANOS)?.checked_add(nanos)
}

/// Parses a time of day: seconds, less the offset from UTC, and nanoseconds.
fn parse_time(text: &str) -> Option<(i64, u64)> {
    let (text, offset) = match text.strip_suffix(['Z', 'z']) {
        Some(text) => (text, 0),
        None => match text.rfind(['+', '-']) {
            Some(at) => (text.get(..at)?, parse_offset(text.get(at..)?)?),
            None => (text, 0),
        },
    };
    let (text, fraction) = text.split_once('.').map_or((text, ""), |(text, fraction)| (text, fraction));
    let mut parts = text.split(':');
    let mut next = |limit: u32| digits(parts.next()?, 2).filter(|&value| value < limit);
    let (hour, minute) = (next(24)?, next(60)?);
    let second = match parts.next() {
        Some(second) => digits(second, 2).filter(|&value| value < 60)?,
        None if fraction.is_empty() => 0,
        None => return None,
    };
    if parts.next().is_some() {
        return None;
    }
    let seconds = i64::from(hour * 3600 + minute * 60 + second) - offset;
    Some((seconds, fraction_nanos(fraction)?))
}

/// Parses an offset to the seconds that a clock there is ahead of UTC.
fn parse_offset(text: &str) -> Option<i64> {
    let (sign, rest) = text.split_at_checked(1)?;
    let (hours, minutes) = match rest.split_once(':') {
        Some((hours, minutes)) => (hours, minutes),
        None if rest.len() == 4 => rest.split_at_checked(2)?,
        None => (rest, "00"),
    };
    let seconds = i64::from(digits(hours, 2)? * 3600 + digits(minutes, 2)? * 60);
    Some(if sign == "-" { -seconds } else { seconds })
}

/// Parses the decimals of a second; digits beyond nanoseconds are ignored.
pub(crate) fn fraction_nanos(digits: &str) -> Option<u64> {
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let nine = digits.bytes().map(|byte| u64::from(byte - b'0')).chain(std::iter::repeat(0)).take(9);
    Some(nine.fold(0, |value, digit| value * 10 + digit))
}

fn digits(text: &str, count: usize) -> Option<u32> {
    let plain = text.len() == count && text.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| text.parse().ok())?
}

/// Converts days since 1970-01-01 to a date.
///
/// Years count from March, so that the leap day is the last of a year, in periods of 400 years of
/// equal length.
fn date_of(days: i64) -> (i64, u32, u32) {
    const DAYS_OF_400_YEARS: i64 = 146_097;
    // Days since 0000-03-01.
    let days = days + 719_468;
    let period = days.div_euclid(DAYS_OF_400_YEARS);
    let day = days.rem_euclid(DAYS_OF_400_YEARS);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day_of_month = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + period * 400 + i64::from(month <= 2);
    (year, u32::try_from(month).unwrap_or(1), u32::try_from(day_of_month).unwrap_or(1))
}

/// Converts a date to days since 1970-01-01; the inverse of [`date_of`].
fn days_until(year: i64, month: u32, day: u32) -> i64 {
    let year = year - i64::from(month <= 2);
    let (period, year) = (year.div_euclid(400), year.rem_euclid(400));
    let month = i64::from(if month > 2 { month - 3 } else { month + 9 });
    let day_of_year = (153 * month + 2) / 5 + i64::from(day) - 1;
    period * 146_097 + year * 365 + year / 4 - year / 100 + day_of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn calendar_agrees_with_date() {
        // From `date -u -d @SECONDS`.
        let known = [
            (0, "1970-01-01T00:00:00.000000000Z", "Thu Jan  1 00:00:00 1970"),
            (951_782_400, "2000-02-29T00:00:00.000000000Z", "Tue Feb 29 00:00:00 2000"),
            (4_107_542_399, "2100-02-28T23:59:59.000000000Z", "Sun Feb 28 23:59:59 2100"),
            (4_107_542_400, "2100-03-01T00:00:00.000000000Z", "Mon Mar  1 00:00:00 2100"),
        ];
        for (seconds, iso, plain) in known {
            let moment = Moment::new(seconds * NANOS);
            assert_eq!(
                (moment.iso().to_string().as_str(), moment.plain().to_string().as_str()),
                (iso, plain)
            );
        }
    }

    #[test]
    fn calendar_refuses_invalid_times() {
        for text in [
            "",
            "2018",
            "2018-13-01",
            "2018-02-29",
            "2018-1-1",
            "2018-01-01T",
            "2018-01-01T24:00",
            "-5",
            "1.5",
            "2018-01-01T00:00.5",
            "2018-01-01T00:00:00:00",
            "2018-01-01T00:00:00.x",
            "1969-12-31",
        ] {
            assert_eq!(parse_iso(text), None, "{text}");
        }
        assert_eq!(parse_iso("1970-01-01 00:01:00-0130"), Some(5460 * NANOS));
    }

    proptest! {
        #[test]
        fn calendar_round_trip(nanos: u64) {
            prop_assert_eq!(parse_iso(&Moment::new(nanos).iso().to_string()), Some(nanos));
        }

        #[test]
        fn calendar_parser_never_panics(text in "[-0-9T:.Z+ ]{0,30}|.*") {
            let _ = parse_iso(&text);
        }
    }
}
