//! The tree and the slices of a page against what the questions of `cairn-analysis` answer to the
//! same recordings.

#[path = "../tests/support/programs.rs"]
mod programs;

use std::collections::BTreeMap;

use cairn_analysis::heap::slices::SliceEntry;
use cairn_analysis::heap::{
    Cost, Direction, HeapRead, HeapRecording, Names, Questions, Scope, Sums, TreeLimits,
};
use cairn_recording::Recording;

use crate::frames::{Askers, Callee, Frames};
use crate::slices::PageSlices;
use crate::{PageOptions, page};
use programs::{EVIL, Made, Random, hostile, large, ordinary};

fn frames(read: &HeapRead, names: &mut Names<'_>, least_share: f64, most_calls: usize) -> Frames {
    let askers = Askers::new(&read.profile, names);
    Frames::new(&read.profile, names, &askers, least_share, most_calls)
}

fn html(made: &Made) -> String {
    let (read, slices) = made.read_sliced();
    page(&made.heap, &read, &slices, &mut made.names(), &PageOptions::default()).unwrap().html
}

/// The path of each call, by names, and what goes through it.
fn paths(frames: &Frames, names: &Names<'_>, cost: Cost) -> BTreeMap<Vec<String>, u64> {
    let mut totals: Vec<u64> = frames.nodes.iter().map(|node| cost.of(&node.own).value).collect();
    for index in (1..frames.nodes.len()).rev() {
        totals[frames.nodes[index].parent as usize] += totals[index];
    }
    let mut of_nodes: Vec<Vec<String>> = Vec::new();
    for node in &frames.nodes {
        let name = match node.callee {
            Callee::Function(id) => names.function(id).name.to_string(),
            other => format!("{other:?}"),
        };
        let outer =
            if node.callee == Callee::Root { Vec::new() } else { of_nodes[node.parent as usize].clone() };
        of_nodes.push(outer.into_iter().chain([name]).collect());
    }
    of_nodes.into_iter().zip(totals).filter(|&(_, total)| total > 0).collect()
}

#[test]
fn the_tree_is_that_of_the_questions_for_every_cost() {
    for made in [ordinary(), large(3000)] {
        let read = made.read();
        let mut names = made.names();
        let frames = frames(&read, &mut names, 0.0, usize::MAX);
        for cost in Cost::ALL {
            let found = paths(&frames, &names, cost);
            let mut questions = Questions::new(&read.profile, made.names());
            let tree = questions.tree(Direction::FromMain, cost, TreeLimits::NONE);
            let mut expected: Vec<Vec<String>> = vec![Vec::new(); tree.nodes.len()];
            let mut of_paths = BTreeMap::new();
            for (index, node) in tree.nodes.iter().enumerate() {
                let name = node
                    .line
                    .map_or("Root".to_owned(), |line| questions.names().function_of(line).name.to_string());
                expected[index].push(name);
                for &child in &node.children {
                    expected[child] = expected[index].clone();
                }
                if node.amount.value > 0 {
                    of_paths.insert(expected[index].clone(), node.amount.value);
                }
            }
            assert_eq!(found.len(), of_paths.len(), "{cost:?}");
            assert!(found == of_paths, "{cost:?}");
        }
    }
}

#[test]
fn page_merges_small_branches_and_keeps_every_sum() {
    let made = large(3000);
    let read = made.read();
    let mut names = made.names();
    for (least_share, most_calls) in [(0.01, usize::MAX), (0.0, 200), (0.0, 1)] {
        let frames = frames(&read, &mut names, least_share, most_calls);
        let mut sum = Sums::default();
        frames.nodes.iter().for_each(|node| sum.add(&node.own));
        assert_eq!(sum, read.profile.totals);
        assert!(frames.stacks_put_together > 0 && frames.stacks_put_together <= frames.stacks);
        let functions = frames.nodes.iter().filter(|node| matches!(node.callee, Callee::Function(_))).count();
        assert!(functions <= most_calls, "{functions} of {most_calls}");
        let put_together = frames.nodes.iter().filter(|node| node.callee == Callee::PutTogether).count();
        assert!((1..=functions + 1).contains(&put_together), "{put_together}, {functions}");
        let whole = Cost::Allocated.of(&read.profile.totals);
        let mut totals: Vec<f64> =
            frames.nodes.iter().map(|node| Cost::Allocated.of(&node.own).share_of(whole)).collect();
        for index in (1..frames.nodes.len()).rev() {
            totals[frames.nodes[index].parent as usize] += totals[index];
        }
        assert!((totals[0] - 1.0).abs() < 1e-9);
    }
}

#[test]
fn a_stack_that_is_too_deep_keeps_both_ends() {
    let made = hostile();
    let read = made.read();
    let mut names = made.names();
    let frames = frames(&read, &mut names, 0.0, usize::MAX);
    let deepest = frames.nodes.iter().map(|node| node.depth).max().unwrap_or(0);
    assert!((900..1100).contains(&deepest), "{deepest}");
    assert_eq!(frames.nodes.iter().filter(|node| node.callee == Callee::TooDeep).count(), 1);
    assert_eq!(frames.stacks_too_deep, 1);
    let mut sum = Sums::default();
    frames.nodes.iter().for_each(|node| sum.add(&node.own));
    assert_eq!(sum, read.profile.totals);
}

/// Sums over slices, by row.
fn by_row(slices: &PageSlices, from: u32, to: u32, value: impl Fn(&SliceEntry) -> i64) -> BTreeMap<u32, i64> {
    let mut sums = BTreeMap::new();
    for entry in slices.entries.iter().filter(|entry| (from..to).contains(&entry.slice)) {
        *sums.entry(entry.row).or_default() += value(entry);
    }
    sums.retain(|_, sum| *sum != 0);
    sums
}

/// The same of the calls of a tree, sizes and threads, by the sums of a profile.
fn expected(
    frames: &Frames,
    slices: &PageSlices,
    read: &HeapRead,
    value: impl Fn(&Sums) -> u64,
) -> BTreeMap<u32, i64> {
    let mut sums: BTreeMap<u32, i64> = BTreeMap::new();
    for (stack, of_stack) in read.profile.stacks.iter().enumerate() {
        if let Some(end) = frames.end_of(stack as u32) {
            *sums.entry(end).or_default() += value(of_stack) as i64;
        }
    }
    let beside = read.profile.sizes.iter().chain(&read.profile.threads);
    for (row, of_row) in (slices.calls as u32..).zip(beside) {
        sums.insert(row, value(of_row) as i64);
    }
    sums.retain(|_, sum| *sum != 0);
    sums
}

/// Lifetimes are rows of their own kind: they come last.
fn without_lifetimes(
    mut sums: BTreeMap<u32, i64>,
    slices: &PageSlices,
    threads: usize,
) -> BTreeMap<u32, i64> {
    let first = slices.calls + cairn_analysis::heap::SIZE_CLASSES + threads;
    sums.retain(|&row, _| (row as usize) < first);
    sums
}

#[test]
fn slices_equal_the_answer_for_their_time() {
    for made in [ordinary(), large(2000)] {
        let (read, slices) = made.read_sliced();
        let mut names = made.names();
        let frames = frames(&read, &mut names, 0.0, 500);
        let mut slices = PageSlices::new(&slices, &frames, read.profile.threads.len());
        for _ in 0..3 {
            let count = slices.count as u32;
            for (from, to) in [(0, count), (0, count / 2), (count / 4, count), (count / 3, count / 3 + 1)] {
                let between = |from: u32, to: u32| {
                    let nanos = |slice: u32| u64::from(slice) * slices.slice_nanos;
                    let to_nanos = if to == count { u64::MAX } else { nanos(to) - 1 };
                    made.heap.read(Scope { from_nanos: nanos(from), to_nanos, ..Scope::default() }).unwrap()
                };
                let check = |read: &HeapRead,
                             from,
                             to,
                             of: fn(&SliceEntry) -> i64,
                             value: fn(&Sums) -> u64,
                             what: &str| {
                    let threads = read.profile.threads.len();
                    let found = without_lifetimes(by_row(&slices, from, to, of), &slices, threads);
                    assert!(
                        found == expected(&frames, &slices, read, value),
                        "{what}, {from} to {to} of {count}"
                    );
                };
                let scoped = between(from, to);
                check(
                    &scoped,
                    from,
                    to,
                    |entry| entry.allocated_bytes as i64,
                    |sums| sums.allocated_bytes,
                    "allocated",
                );
                check(
                    &scoped,
                    from,
                    to,
                    |entry| entry.allocations as i64,
                    |sums| sums.allocations,
                    "allocations",
                );
                let until = between(0, to);
                check(&until, 0, to, |entry| entry.grown_bytes, |sums| sums.live_bytes, "held");
                check(&until, 0, to, |entry| entry.temporary as i64, |sums| sums.temporary, "temporary");
                let since = between(from, count);
                check(
                    &since,
                    from,
                    count,
                    |entry| entry.leaked_bytes as i64,
                    |sums| sums.live_bytes,
                    "leaked",
                );
            }
            slices.halve();
        }
    }
}

#[test]
fn lifetimes_are_in_the_slice_of_the_free() {
    let made = ordinary();
    let (read, slices) = made.read_sliced();
    let mut names = made.names();
    let frames = frames(&read, &mut names, 0.0, usize::MAX);
    let slices = PageSlices::new(&slices, &frames, read.profile.threads.len());
    let threads = read.profile.threads.len();
    let first = (slices.calls + cairn_analysis::heap::SIZE_CLASSES + threads) as u32;
    let mut found = by_row(&slices, 0, u32::MAX, |entry| entry.allocations as i64);
    found.retain(|&row, _| row >= first);
    let expected: BTreeMap<u32, i64> = (first..)
        .zip(&read.profile.lifetimes)
        .map(|(row, lifetime)| (row, lifetime.blocks as i64))
        .filter(|&(_, blocks)| blocks > 0)
        .collect();
    assert_eq!(found, expected);
    let marks: Vec<&str> = read.marks.iter().map(|mark| mark.text.as_str()).collect();
    assert_eq!(marks, ["loading begins", "work begins"]);
}

#[test]
fn page_stays_in_its_size_and_states_the_loss() {
    let made = large(5000);
    let (read, slices) = made.read_sliced();
    let whole = page(&made.heap, &read, &slices, &mut made.names(), &PageOptions::default()).unwrap();
    assert_eq!((whole.least_share, whole.stacks_put_together), (0.0, 0));
    let most_bytes = whole.html.len() / 2;
    let options = PageOptions { most_bytes, ..PageOptions::default() };
    let small = page(&made.heap, &read, &slices, &mut made.names(), &options).unwrap();
    assert!(small.html.len() <= most_bytes, "{} of {most_bytes}", small.html.len());
    assert!(small.slices < whole.slices || small.calls < whole.calls);
    // An impossible limit ends as well.
    let options = PageOptions { most_bytes: 1, ..PageOptions::default() };
    assert!(page(&made.heap, &read, &slices, &mut made.names(), &options).unwrap().calls <= 64);
}

#[test]
fn no_name_is_in_the_file_as_it_is() {
    let made = hostile();
    let evil = html(&made);
    let other = html(&ordinary());
    for name in EVIL {
        assert!(!evil.contains(name) || other.contains(name), "{name}");
    }
    // Two pages differ in their base64 alone.
    let frame = |html: &str| -> String {
        let data = |line: &&str| !line.starts_with("<script type=\"application/octet-stream\"");
        html.lines().filter(data).collect()
    };
    assert!(frame(&evil) == frame(&other));
    for line in
        evil.lines().filter_map(|line| line.strip_prefix("<script type=\"application/octet-stream\" id=\""))
    {
        let (data, end) = line.split_once("\">").and_then(|(_, rest)| rest.split_once('<')).unwrap();
        assert_eq!(end, "/script>");
        assert!(data.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte)));
    }
}

#[test]
fn a_damaged_recording_gives_a_page_all_the_same() {
    let made = ordinary();
    let mut random = Random(5);
    let mut pages = 0;
    for round in 0..40 {
        let mut bytes = made.bytes.clone();
        for _ in 0..1 + round * 2 {
            // Behind the header, and not in the room that is left in blocks; half of the changes
            // make a word very large.
            let mut place = 0;
            while place == 0 || bytes[place] == 0 {
                place = 64 + random.below(bytes.len() as u64 - 72) as usize;
            }
            let change = if random.below(2) == 0 { 0xff } else { random.next() as u8 };
            bytes[place] = change;
        }
        let Ok(recording) = Recording::from_bytes(bytes) else { continue };
        let heap = HeapRecording::new(recording);
        let Ok((read, slices)) = heap.read_sliced(Scope::default(), 256) else { continue };
        let mut names = Names::new(heap.stacks(), &made.namer, Default::default());
        let page = page(&heap, &read, &slices, &mut names, &PageOptions::default());
        assert!(page.is_ok_and(|page| page.html.ends_with("</html>\n")), "round {round}");
        pages += 1;
    }
    assert!(pages > 10, "only {pages} of the damaged recordings could be opened");
}
