//! Two recordings, or two parts of one, as one tree: what the page draws a differential flame graph
//! from.
//!
//! The bytes are laid out as those of a page's content are: a JSON object, and columns behind it.
//! The tree is [`DiffTree`]'s, which matches calls by their names.

use std::collections::BTreeMap;
use std::path::PathBuf;

use cairn_analysis::heap::{DiffTree, HeapRead, Names, Questions, Scope, Sums, find_common_wrappers};
use cairn_analysis::source::HeapSource;
use cairn_symbols::shorten::shorten;
use serde::Serialize;

use super::desk::{CachedNames, Naming, NoAnswer, Part, open, read_whole, scope};
use crate::columns::MOST;
use crate::content::{ColumnPlace, Columns, OwnerJson, OwnerList, Strings, with_json};
use crate::shown;

/// Name and version of the content of a comparison.
pub(crate) const COMPARISON_SCHEMA: &str = "cairn.comparison/1";

/// Calls of a comparison, at most.
const MOST_CALLS: usize = 100_000;
/// Levels, at most: pages draw by depth.
const MOST_DEPTH: u32 = 1000;

#[derive(Serialize)]
struct Comparison {
    schema: &'static str,
    before: SideJson,
    after: SideJson,
    put_together: usize,
    folded_frames: u64,
    owners: Vec<OwnerJson>,
    strings: Vec<String>,
    columns: BTreeMap<&'static str, ColumnPlace>,
}

#[derive(Serialize)]
struct SideJson {
    command: Vec<String>,
    filters: Vec<String>,
    duration_nanos: u64,
    from_nanos: u64,
    to_nanos: Option<u64>,
    peak_nanos: u64,
    /// `leaked` or `alive`.
    unfreed: &'static str,
    is_estimate: bool,
}

/// A recording to compare, and what of it.
pub(crate) struct Side {
    pub(crate) file: PathBuf,
    pub(crate) part: Part,
}

/// Reads both and compares them.
pub(crate) fn compare(before: &Side, after: &Side, naming: &Naming) -> Result<Vec<u8>, NoAnswer> {
    let unreadable = |why: &dyn std::fmt::Display| NoAnswer::Unreadable(why.to_string());
    let first = open(&before.file, naming).map_err(|why| unreadable(&why))?;
    let second = open(&after.file, naming).map_err(|why| unreadable(&why))?;
    let (mut first_names, mut second_names) = (CachedNames::default(), CachedNames::default());
    let first_namer = first_names.of_source(&first, naming);
    let second_namer = second_names.of_source(&second, naming);
    let read = |source: &HeapSource, names: &mut Names<'_>, part: &Part| {
        let all = read_whole(source, Scope::default())?;
        if *part == Part::default() {
            return Ok((all, Vec::new()));
        }
        let (scope, words) = scope(source, &all, names, part)?;
        Ok((read_whole(source, scope)?, words))
    };
    let mut names = first.names(first_namer, naming.folding.clone());
    let (first_read, first_words) = read(&first, &mut names, &before.part)?;
    let mut other_names = second.names(second_namer, naming.folding.clone());
    let (second_read, second_words) = read(&second, &mut other_names, &after.part)?;
    find_common_wrappers((&first_read.profile, &mut names), (&second_read.profile, &mut other_names));
    let mut first_questions = Questions::new(&first_read.profile, names);
    let mut second_questions = Questions::new(&second_read.profile, other_names);
    let tree = DiffTree::of(&mut first_questions, &mut second_questions, MOST_CALLS);
    let side_json = |read: &HeapRead, part: &Part, words: Vec<String>, source: &HeapSource| SideJson {
        unfreed: source.unfreed(part.span()).word(),
        command: source.about().command.iter().take(100).map(|word| shown(word).into_owned()).collect(),
        filters: words.iter().map(|word| shown(word).into_owned()).collect(),
        duration_nanos: read.profile.end_nanos.min(MOST),
        from_nanos: part.from_nanos.min(MOST),
        to_nanos: part.to_nanos.map(|nanos| nanos.min(MOST)),
        peak_nanos: read.profile.peak_nanos.min(MOST),
        is_estimate: read.profile.sampling.is_estimate(),
    };
    let first_json = side_json(&first_read, &before.part, first_words, &first);
    let second_json = side_json(&second_read, &after.part, second_words, &second);
    pack(&tree, first_json, second_json).map_err(|error| unreadable(&error))
}

fn pack(tree: &DiffTree, before: SideJson, after: SideJson) -> std::io::Result<Vec<u8>> {
    let (mut columns, mut strings) = (Columns::default(), Strings::default());
    // 0 and 1 are no functions.
    let mut names = vec![strings.number("everything"), strings.number("[smaller calls, put together]")];
    let (mut modules, mut files, mut kinds) = (vec![0, 0], vec![0, 0], vec![2, 2]);
    let (mut owners, mut function_owners) = (OwnerList::default(), vec![0, 0]);
    for (frame, owner) in tree.frames.iter().zip(&tree.owners) {
        function_owners.push(owners.number(owner.clone()));
        let stand_in =
            || format!("[in {}]", if frame.module.is_empty() { "no module" } else { &frame.module });
        let name = frame.function.as_ref().map_or_else(stand_in, ToString::to_string);
        names.push(strings.number(&name));
        modules.push(if frame.module.is_empty() { 0 } else { strings.number(&frame.module) + 1 });
        files.push(frame.file.as_deref().map_or(0, |file| strings.number(file) + 1));
        kinds.push(u64::from(frame.function.is_none()));
    }
    // Calls that are too deep count for the deepest call above them.
    let mut nodes: Vec<(u64, u32, Sums, Sums)> = Vec::with_capacity(tree.nodes.len());
    let mut folded: Vec<u64> = Vec::with_capacity(tree.nodes.len());
    for (index, node) in tree.nodes.iter().enumerate() {
        let function = match node.frame {
            Some(frame) => u64::from(frame) + 2,
            None => u64::from(index > 0),
        };
        match nodes.last_mut() {
            Some((.., before, after)) if node.depth > MOST_DEPTH => {
                before.add(&node.before);
                after.add(&node.after);
            }
            _ => {
                nodes.push((function, node.depth, node.before, node.after));
                folded.push(u64::from(node.folded_frames));
            }
        }
    }
    columns.add("call_function", nodes.iter().map(|node| node.0));
    columns.add("call_depth", nodes.iter().map(|node| u64::from(node.1)));
    type Field = fn(&Sums) -> u64;
    let fields: [(&'static str, &'static str, Field); 7] = [
        ("before_peak_bytes", "after_peak_bytes", |sums| sums.peak_bytes),
        ("before_peak_blocks", "after_peak_blocks", |sums| sums.peak_blocks),
        ("before_leaked_bytes", "after_leaked_bytes", |sums| sums.live_bytes),
        ("before_leaked_blocks", "after_leaked_blocks", |sums| sums.live_blocks),
        ("before_allocated_bytes", "after_allocated_bytes", |sums| sums.allocated_bytes),
        ("before_allocations", "after_allocations", |sums| sums.allocations),
        ("before_temporary", "after_temporary", |sums| sums.temporary),
    ];
    for (name, other, field) in fields {
        columns.add(name, nodes.iter().map(|node| field(&node.2)));
        columns.add(other, nodes.iter().map(|node| field(&node.3)));
    }
    let folded_frames = folded.iter().sum();
    columns.add("call_folded_frames", folded);
    columns.add("function_owner", function_owners);
    let short: Vec<u64> = names
        .iter()
        .map(|&name| {
            let short = shorten(&strings.texts[name as usize]).into_owned();
            strings.number(&short)
        })
        .collect();
    columns.add("function_short_name", short);
    columns.add("function_name", names);
    columns.add("function_module", modules);
    columns.add("function_file", files);
    columns.add("function_kind", kinds);
    let comparison = Comparison {
        schema: COMPARISON_SCHEMA,
        before,
        after,
        put_together: tree.put_together,
        folded_frames,
        owners: owners.list,
        strings: strings.texts,
        columns: columns.places,
    };
    with_json(&comparison, &columns.bytes)
}
