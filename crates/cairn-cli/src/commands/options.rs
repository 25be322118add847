//! Options that mean the same in every command that shows lists: `--limit`, `--full`, percentages.
#![allow(dead_code, reason = "used by the next change")]

use clap::Args;

/// How much of a list or tree is shown.
#[derive(Args, Clone, Copy, Default)]
pub(crate) struct ListOptions {
    /// Entries of each list; with a percent sign, as 1%, only entries that are at least this part of the whole
    #[arg(short = 'n', long, value_name = "COUNT|PERCENT", value_parser = parse_limit, conflicts_with = "full")]
    limit: Option<Limit>,

    /// Show every entry, every stack and every frame
    #[arg(long)]
    pub(crate) full: bool,
}

/// Where a list ends.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Limit {
    /// After this many entries.
    Count(usize),
    /// Before entries that are a smaller part of the whole, from 0 to 1.
    Share(f64),
}

impl ListOptions {
    /// True when the user gave `--limit`.
    pub(crate) fn is_limited(self) -> bool {
        self.limit.is_some()
    }

    /// Returns the most entries of a list, `usual` without `--limit` and `--full`.
    pub(crate) fn most_entries(self, usual: usize) -> usize {
        match self.limit {
            _ if self.full => usize::MAX,
            Some(Limit::Count(count)) => count,
            Some(Limit::Share(_)) => usize::MAX,
            None => usual,
        }
    }

    /// Returns the least part of the whole that an entry has to be, from 0 to 1.
    pub(crate) fn least_share(self) -> Option<f64> {
        match self.limit {
            Some(Limit::Share(share)) => Some(share),
            _ => None,
        }
    }
}

/// Parses `20` or `1%`.
pub(crate) fn parse_limit(text: &str) -> Result<Limit, String> {
    match text.strip_suffix('%') {
        Some(number) => parse_percent(number.trim_end()).map(|percent| Limit::Share(percent / 100.0)),
        None => text
            .parse()
            .map(Limit::Count)
            .map_err(|_| format!("{text}: neither a number of entries, as 20, nor a percentage, as 1%")),
    }
}

/// Parses a percentage, with or without its sign.
pub(crate) fn parse_percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim_end();
    let percent: f64 = number.parse().map_err(|_| format!("{text}: not a percentage; write 0.5 or 0.5%"))?;
    if (0.0..=100.0).contains(&percent) {
        Ok(percent)
    } else {
        Err(format!("{text}: a percentage is 0 to 100"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_is_a_count_or_a_percentage() {
        assert_eq!(parse_limit("20"), Ok(Limit::Count(20)));
        assert_eq!(parse_limit("1%"), Ok(Limit::Share(0.01)));
        assert_eq!(parse_limit("0.5 %"), Ok(Limit::Share(0.005)));
        for text in ["", "%", "-1", "1.5", "101%", "-1%", "a", "NaN%", "1%%x"] {
            assert!(parse_limit(text).is_err(), "{text}");
        }
    }
}
