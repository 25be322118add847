//! The text of the reference's report, cluster by cluster. Grouping needs memory, so it is the
//! caller's:
//!
//! 1. group the blocks by their callers, all of them, zeros and garbage included;
//! 2. sum the sizes of each group;
//! 3. sort by (sum, callers), largest first, where callers compare word by word and a shorter list
//!    that is a prefix comes before the longer one;
//! 4. [`write_cluster`] for each.

use core::fmt;

use cairn_format::AbsoluteAddress;

/// Returns what part of `total` bytes a cluster of `sum` bytes is, in whole percent, rounded down.
/// `None` when `total` is zero, where the reference stops with a division error.
///
/// Computed in double precision like the reference's, so that the same numbers come out for garbage
/// sizes too.
///
/// ```
/// use cairn_wire::heapprof::percent;
/// assert_eq!(percent(2, 3), Some(66));
/// assert_eq!(percent(0, 0), None);
/// ```
#[must_use]
pub fn percent(sum: u128, total: u128) -> Option<u64> {
    (total != 0).then(|| (100.0 * sum as f64 / total as f64) as u64)
}

/// Writes one cluster as the reference's report does. A line `<percent>% <sum> [<sizes>]` comes
/// first, then a line `  0x<address> <symbol>` for each caller that is not zero.
///
/// Sizes are given in the order of the dump. `symbol` writes the text for an address. Sizes from
/// 2^63 on get a trailing `L`, as in the reference (Python 2).
///
/// # Errors
///
/// Passes on those of `out` and `symbol`.
///
/// ```
/// use std::fmt::Write;
/// use cairn_format::AbsoluteAddress;
/// use cairn_wire::heapprof::{percent, write_cluster};
/// let (sizes, callers) = ([24, 40], [0x401000, 0].map(AbsoluteAddress::new));
/// let mut text = String::new();
/// write_cluster(&mut text, percent(64, 100).unwrap(), 64, sizes, callers, |out, _| out.write_str("main"))?;
/// assert_eq!(text, "64% 64 [24, 40]\n  0x401000 main\n");
/// # Ok::<(), std::fmt::Error>(())
/// ```
pub fn write_cluster<W: fmt::Write>(
    out: &mut W,
    percent: u64,
    sum: u128,
    sizes: impl IntoIterator<Item = u64>,
    callers: impl IntoIterator<Item = AbsoluteAddress>,
    mut symbol: impl FnMut(&mut W, AbsoluteAddress) -> fmt::Result,
) -> fmt::Result {
    write!(out, "{percent}% {sum} [")?;
    let mut separator = "";
    for size in sizes {
        let suffix = if i64::try_from(size).is_err() { "L" } else { "" };
        write!(out, "{separator}{size}{suffix}")?;
        separator = ", ";
    }
    out.write_str("]\n")?;
    for caller in callers.into_iter().filter(|caller| caller.value() != 0) {
        write!(out, "  {caller} ")?;
        symbol(out, caller)?;
        out.write_str("\n")?;
    }
    Ok(())
}
