//! Moments by the clocks of senders. Some clocks are wrong.

use super::refusal::Refusal;

/// Milliseconds by which a sender's clock may differ from the receiver's; ten minutes.
pub(crate) const MOST_DIFFERENCE_MS: i64 = 600_000;
/// Milliseconds of the longest slice; a year: files of sums have the whole life of a process.
pub(crate) const MOST_SLICE_MS: i64 = 366 * 86_400_000;
/// The beginning of 2001: earlier moments are those of clocks that were never set.
const NEVER_SET_MS: i64 = 978_307_200_000;

/// The year 3000: no clock says more, and sums of moments stay numbers.
const MOST_MOMENT_MS: i64 = 32_503_680_000_000;

/// Refuses a moment that no clock has.
pub(crate) fn check(what: &str, moment_ms: i64) -> Result<(), Refusal> {
    if (0..=MOST_MOMENT_MS).contains(&moment_ms) {
        return Ok(());
    }
    Err(Refusal::wrong(format!("{what}: {moment_ms}; a moment is in milliseconds since 1970")))
}

/// The moments of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Moments {
    /// The end of the slice.
    pub(crate) end_ms: i64,
    /// The start of the process.
    pub(crate) started_ms: i64,
    /// The end of the process.
    pub(crate) ended_ms: Option<i64>,
    /// By how much the sender's clock is ahead; 0 when it is believed.
    pub(crate) offset_ms: i64,
}

impl Moments {
    /// Puts moments of a wrong clock right, by the time of receipt.
    ///
    /// `sent_ms` is the sender's clock at the sending. Without it, only a slice that ends in the
    /// future, or in a time before all profiles, shows that the clock is wrong; its end is then the
    /// receipt.
    pub(crate) fn correct(&mut self, sent_ms: Option<i64>, received_ms: i64) {
        let difference_ms = sent_ms.map_or(0, |sent_ms| sent_ms - received_ms);
        let mut offset_ms = if difference_ms.abs() > MOST_DIFFERENCE_MS { difference_ms } else { 0 };
        let ahead_ms = self.end_ms - offset_ms - received_ms;
        if ahead_ms > MOST_DIFFERENCE_MS || ahead_ms + received_ms < NEVER_SET_MS {
            offset_ms += ahead_ms;
        }
        self.offset_ms = offset_ms;
        self.end_ms -= offset_ms;
        self.started_ms -= offset_ms;
        self.ended_ms = self.ended_ms.map(|moment| moment - offset_ms);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_790_856_000_000;
    const MINUTE: i64 = 60_000;
    const HOUR: i64 = 60 * MINUTE;
    const DAY: i64 = 24 * HOUR;

    #[test]
    fn moments_of_wrong_clocks_are_by_receipt() {
        for (end, sent, expected, offset) in [
            (NOW, None, NOW, 0),
            (NOW - 7 * DAY, None, NOW - 7 * DAY, 0),
            (NOW - 7 * DAY, Some(NOW), NOW - 7 * DAY, 0),
            (NOW + 9 * MINUTE, None, NOW + 9 * MINUTE, 0),
            (NOW + 11 * MINUTE, None, NOW, 11 * MINUTE),
            (NOW + HOUR, Some(NOW + HOUR), NOW, HOUR),
            (NOW + HOUR - MINUTE, Some(NOW + HOUR), NOW - MINUTE, HOUR),
            (NOW - HOUR - MINUTE, Some(NOW - HOUR), NOW - MINUTE, -HOUR),
            (NOW + HOUR, Some(NOW), NOW, HOUR),
            (MINUTE, None, NOW, MINUTE - NOW),
            (MINUTE, Some(2 * MINUTE), NOW - MINUTE, 2 * MINUTE - NOW),
            (MINUTE, Some(NOW), NOW, MINUTE - NOW),
            (MOST_MOMENT_MS, None, NOW, MOST_MOMENT_MS - NOW),
        ] {
            let mut moments = Moments { end_ms: end, started_ms: end - MINUTE, ended_ms: None, offset_ms: 0 };
            moments.correct(sent, NOW);
            assert_eq!((moments.end_ms, moments.offset_ms), (expected, offset), "{end} {sent:?}");
            assert_eq!(moments.started_ms, expected - MINUTE);
        }
    }
}
