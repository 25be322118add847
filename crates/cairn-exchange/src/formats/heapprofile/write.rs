//! Writes the column of bytes as a `.heapprofile` tree.

use std::io::Write;

use serde::Serialize;

use crate::error::ExchangeError;
use crate::model::profile::{Profile, TreeNode};

/// What a node begins with. Its children are written by hand: stacks are deeper than what a recursive writer can stand.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct CallFrame<'a> {
    function_name: &'a str,
    script_id: &'static str,
    url: &'a str,
    line_number: i64,
    column_number: i64,
}

/// Writes one column.
pub(crate) fn write(profile: &Profile, column: usize, output: &mut dyn Write) -> Result<(), ExchangeError> {
    let tree = profile.function_tree();
    let mut children: Vec<Vec<usize>> = vec![Vec::new(); tree.len()];
    for (index, node) in tree.iter().enumerate() {
        if let Some(caller) = node.caller {
            children[caller as usize].push(index);
        }
    }
    let mut write = |text: &str| output.write_all(text.as_bytes()).map_err(ExchangeError::writing);
    write("{\"head\":")?;
    // Indices to open, and between them what closes a node.
    let mut open = vec![Step::Open(0)];
    while let Some(step) = open.pop() {
        let index = match step {
            Step::Open(index) => index,
            Step::Text(text) => {
                write(text)?;
                continue;
            }
        };
        let node = &tree[index];
        let frame = serde_json::to_string(&call_frame(profile, node))
            .map_err(|error| ExchangeError::writing(error.into()))?;
        write(&format!(
            "{{\"callFrame\":{frame},\"selfSize\":{},\"id\":{},\"children\":[",
            node.own[column],
            index + 1
        ))?;
        open.push(Step::Text("]}"));
        for (place, &child) in children[index].iter().enumerate().rev() {
            open.push(Step::Open(child));
            if place > 0 {
                open.push(Step::Text(","));
            }
        }
    }
    write(",\"samples\":[]}\n")
}

enum Step {
    Open(usize),
    Text(&'static str),
}

fn call_frame<'a>(profile: &'a Profile, node: &TreeNode) -> CallFrame<'a> {
    let function = profile.functions.get(node.function as usize);
    CallFrame {
        function_name: if node.caller.is_none() {
            "(root)"
        } else {
            function.map_or("?", |function| &function.name)
        },
        script_id: "0",
        url: function.and_then(|function| function.file.as_deref()).unwrap_or(""),
        line_number: -1,
        column_number: -1,
    }
}
