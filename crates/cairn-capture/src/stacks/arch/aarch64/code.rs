//! The rule of code without tables.

use super::Rule;

/// The rule at a return address that no table covers.
pub(crate) fn rule_without_tables(_pc: u64) -> Rule {
    Rule::NO_TABLES
}

/// True for the rule of code that a table covers.
pub(crate) fn has_tables(rule: Rule) -> bool {
    rule != Rule::NO_TABLES
}
