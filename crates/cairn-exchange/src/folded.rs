//! Folded stacks: a line for each stack, outermost function first, and one number. Read by every flame graph tool.

use std::collections::BTreeMap;
use std::io::Write;

use crate::error::ExchangeError;
use crate::profile::Profile;

/// Writes one column.
pub(crate) fn write(profile: &Profile, column: usize, output: &mut dyn Write) -> Result<(), ExchangeError> {
    let mut lines: BTreeMap<String, u64> = BTreeMap::new();
    for sample in profile.samples.iter().filter(|sample| sample.values[column] > 0) {
        let mut names: Vec<String> =
            profile.lines_of(sample.stack).map(|(line, _)| name(profile.function_name(line))).collect();
        names.reverse();
        let sum = lines.entry(names.join(";")).or_default();
        *sum = sum.saturating_add(sample.values[column]);
    }
    for (stack, value) in lines {
        writeln!(output, "{stack} {value}").map_err(ExchangeError::writing)?;
    }
    Ok(())
}

/// A name without what has a meaning in folded stacks.
fn name(name: &str) -> String {
    let plain = |c: char| match c {
        ';' => ':',
        c if c.is_control() => ' ',
        c => c,
    };
    name.chars().map(plain).collect()
}
