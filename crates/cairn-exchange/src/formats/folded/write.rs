//! Writes one column of a profile as folded stacks.

use std::io::Write;

use cairn_analysis::heap::folded_name;

use crate::error::ExchangeError;
use crate::model::profile::{Profile, TreeNode};

/// Writes one column. Stacks of the same functions are one line.
pub(crate) fn write(profile: &Profile, column: usize, output: &mut dyn Write) -> Result<(), ExchangeError> {
    let tree = profile.function_tree();
    for node in &tree {
        let value = node.own.get(column).copied().unwrap_or(0);
        if value == 0 {
            continue;
        }
        let functions: Vec<u32> = path(&tree, node).collect();
        let line = joined(functions.iter().rev().map(|&function| profile.name_of(function)));
        writeln!(output, "{line} {value}").map_err(ExchangeError::writing)?;
    }
    Ok(())
}

/// The functions from a node outwards.
fn path<'t>(tree: &'t [TreeNode], node: &'t TreeNode) -> impl Iterator<Item = u32> + 't {
    let caller = |node: &&'t TreeNode| tree.get(node.caller? as usize);
    std::iter::successors(Some(node), caller).filter(|node| node.caller.is_some()).map(|node| node.function)
}

/// The names of a stack, outermost first, as one text that can be taken apart again.
pub(crate) fn joined<'n>(names: impl Iterator<Item = &'n str>) -> String {
    let mut text = String::new();
    for name in names {
        if !text.is_empty() {
            text.push(';');
        }
        text.push_str(&folded_name(name));
    }
    text
}
