//! The calls of two recordings as one tree, with what each of the two has at every call: what a
//! differential flame graph is drawn from.
//!
//! Stacks are matched as [`Diff`](super::Diff) matches them: by the names of functions, modules and
//! files. So another build, or the same program at other addresses, falls on the same branches.

use std::collections::HashMap;

use super::diff::{DiffFrame, NO_PATH, Paths};
use super::questions::Questions;
use super::{Cost, Sums};
use crate::attribution::Owner;

/// Two recordings as one tree; node 0 is the root, which holds everything.
///
/// Every call comes before those in it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DiffTree {
    /// The calls.
    pub nodes: Vec<DiffNode>,
    /// The frames that nodes are calls of.
    pub frames: Vec<DiffFrame>,
    /// The owner of each of these frames: as before, where both recordings have it.
    pub owners: Vec<Owner>,
    /// Paths that were merged, because their share of every cost is small in both recordings.
    pub put_together: usize,
}

/// A call in either recording, or in both.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DiffNode {
    /// Index of its frame; none for the root, and for small calls that were merged.
    pub frame: Option<u32>,
    /// How many calls from the root.
    pub depth: u32,
    /// Index of the call that it is in; the root's is its own.
    pub parent: u32,
    /// Folded frames between it and the call that it is in, the most of any stack.
    pub folded_frames: u32,
    /// The sums of this call itself, before.
    pub before: Sums,
    /// And after.
    pub after: Sums,
}

impl DiffTree {
    /// Compares two recordings. When there are more than `most_calls` calls, it merges those that
    /// are the smallest part of every cost in both; every sum is unchanged.
    ///
    /// ```no_run
    /// # use cairn_analysis::heap::{DiffTree, Questions};
    /// # fn of(before: &mut Questions<'_>, after: &mut Questions<'_>) {
    /// let tree = DiffTree::of(before, after, 100_000);
    /// for node in &tree.nodes {
    ///     let grown = i128::from(node.after.live_bytes) - i128::from(node.before.live_bytes);
    ///     println!("{:indent$}{grown:+}", "", indent = node.depth as usize);
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn of(before: &mut Questions<'_>, after: &mut Questions<'_>, most_calls: usize) -> Self {
        let mut paths = Paths::default();
        let befores = paths.of_stacks(before, |sums| !sums.is_empty());
        let afters = paths.of_stacks(after, |sums| !sums.is_empty());
        let mut sums = vec![(Sums::default(), Sums::default()); paths.paths.len() + 1];
        for place in befores {
            sums[place.path as usize].0.add(before.sums(place.stack));
        }
        for place in afters {
            sums[place.path as usize].1.add(after.sums(place.stack));
        }
        let whole = (before.profile().totals, after.profile().totals);
        let (fates, put_together) = keep_largest(&paths.paths, &mut sums, &whole, most_calls);
        let nodes = in_order(&paths, &sums, &fates);
        Self { nodes, frames: paths.frames, owners: paths.owners, put_together }
    }
}

/// The place of a path in the tree.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PathFate {
    /// It has a node of its own.
    Own,
    /// Its node holds all smaller calls of its outer path.
    Merged,
    /// It has no node.
    LeftOut,
}

/// Decides which paths stay, and merges the sums of the others into outer paths.
///
/// Each goes to the outermost path on its way that is not large enough.
fn keep_largest(
    paths: &[(u32, u32)],
    sums: &mut [(Sums, Sums)],
    whole: &(Sums, Sums),
    most_calls: usize,
) -> (Vec<PathFate>, usize) {
    let mut fates = vec![PathFate::Own; sums.len()];
    if paths.len() <= most_calls {
        return (fates, 0);
    }
    let mut totals = sums.to_vec();
    // Outer paths have smaller numbers.
    for path in (1..totals.len()).rev() {
        let (before, after) = totals[path];
        let outer = &mut totals[paths[path - 1].0 as usize];
        outer.0.add(&before);
        outer.1.add(&after);
    }
    let share = |(before, after): &(Sums, Sums)| {
        let of = |cost: Cost, sums: &Sums, whole: &Sums| cost.of(sums).share_of(cost.of(whole));
        Cost::ALL
            .iter()
            .map(|&cost| of(cost, before, &whole.0).max(of(cost, after, &whole.1)))
            .fold(0.0, f64::max)
    };
    let shares: Vec<f64> = totals.iter().map(share).collect();
    let mut sorted = shares[1..].to_vec();
    sorted.sort_unstable_by(|a, b| b.total_cmp(a));
    let least = sorted.get(most_calls).copied().unwrap_or(0.0);
    let mut put_together = 0;
    // By outer path: the path that holds all small calls there.
    let mut stand_ins: HashMap<u32, u32> = HashMap::new();
    for path in 1..sums.len() {
        let outer = paths[path - 1].0;
        fates[path] = if fates[outer as usize] != PathFate::Own {
            PathFate::LeftOut
        } else if shares[path] > least {
            PathFate::Own
        } else {
            match stand_ins.entry(outer) {
                std::collections::hash_map::Entry::Vacant(entry) => {
                    entry.insert(path as u32);
                    PathFate::Merged
                }
                std::collections::hash_map::Entry::Occupied(_) => PathFate::LeftOut,
            }
        };
        if fates[path] == PathFate::Own {
            continue;
        }
        put_together += 1;
        // All of it, once: what is further in is counted there.
        if fates[outer as usize] == PathFate::Own {
            let place = stand_ins[&outer] as usize;
            let (before, after) = totals[path];
            if place == path {
                sums[path] = (before, after);
            } else {
                sums[place].0.add(&before);
                sums[place].1.add(&after);
            }
        }
    }
    (fates, put_together)
}

/// Lists the nodes of the paths that stay, each call in front of those in it.
///
/// The larger ones of these come first.
fn in_order(all: &Paths, sums: &[(Sums, Sums)], fates: &[PathFate]) -> Vec<DiffNode> {
    let Paths { paths, runs, .. } = all;
    let mut bytes: Vec<u64> = (0..sums.len())
        .map(|path| match fates[path] {
            PathFate::LeftOut => 0,
            _ => sums[path].0.allocated_bytes.max(sums[path].1.allocated_bytes),
        })
        .collect();
    let mut inner: Vec<Vec<u32>> = vec![Vec::new(); sums.len()];
    for path in (1..sums.len()).rev().filter(|&path| fates[path] != PathFate::LeftOut) {
        let outer = paths[path - 1].0 as usize;
        bytes[outer] = bytes[outer].saturating_add(bytes[path]);
        inner[outer].push(path as u32);
    }
    let mut nodes = Vec::new();
    let mut open = vec![(NO_PATH, 0, 0)];
    while let Some((path, parent, depth)) = open.pop() {
        let node = nodes.len() as u32;
        let (before, after) = sums[path as usize];
        let (frame, folded_frames) = match fates[path as usize] {
            PathFate::Own if path != NO_PATH => (Some(paths[path as usize - 1].1), runs[path as usize - 1]),
            _ => (None, 0),
        };
        nodes.push(DiffNode { frame, depth, parent, folded_frames, before, after });
        let list = &mut inner[path as usize];
        // The last one is taken first.
        list.sort_by(|&a, &b| bytes[a as usize].cmp(&bytes[b as usize]).then(b.cmp(&a)));
        open.extend(list.iter().map(|&path| (path, node, depth + 1)));
    }
    nodes
}

#[cfg(test)]
mod tests {
    use super::super::{Address, Aggregator, Folding, HeapProfile, Namer, Names, Sampling, Scope, Stacks};
    use super::*;
    use cairn_format::recording::PcKind;
    use cairn_symbols::SourceFrame;

    /// Addresses are named by a table: two programs have the same functions at other addresses.
    struct Table(Vec<&'static str>);

    impl Namer for Table {
        fn name(&self, _stacks: &Stacks, addresses: &[&Address]) -> Vec<Vec<SourceFrame>> {
            let name = |address: &&Address| {
                let mut frame = SourceFrame::default();
                frame.function = Some(self.0[address.stated as usize].into());
                vec![frame]
            };
            addresses.iter().map(name).collect()
        }
    }

    /// Stacks as paths of names, each with its bytes, allocated once.
    fn program(asked: &[(&[&'static str], u64)], absolute: u64) -> (Stacks, Table, HeapProfile) {
        let mut stacks = Stacks::new();
        let mut names = Vec::new();
        let mut known: HashMap<(u32, &'static str), u32> = HashMap::new();
        let mut ends = Vec::new();
        for (path, bytes) in asked {
            let mut stack = 0;
            for &name in *path {
                stack = *known.entry((stack, name)).or_insert_with(|| {
                    let address = stacks.add_address(Address {
                        kind: PcKind::ReturnAddress,
                        absolute: absolute + names.len() as u64,
                        stated: names.len() as u64,
                        module: None,
                    });
                    names.push(name);
                    stacks.add_stack(stack, address).unwrap()
                });
            }
            ends.push((stack, *bytes));
        }
        let mut heap = Aggregator::new(stacks.len(), 1, Scope::default(), Sampling::All);
        for (object, &(stack, bytes)) in ends.iter().enumerate() {
            heap.allocated(object as u32, stack, 0, bytes, 10 + object as u64);
        }
        (stacks, Table(names), heap.finish(1000))
    }

    fn tree(
        before: &[(&[&'static str], u64)],
        after: &[(&[&'static str], u64)],
        most_calls: usize,
    ) -> DiffTree {
        let (stacks, table, profile) = program(before, 0x1000);
        let (other_stacks, other_table, other_profile) = program(after, 0x7000);
        let mut before = Questions::new(&profile, Names::new(&stacks, &table, Folding::default()));
        let mut after =
            Questions::new(&other_profile, Names::new(&other_stacks, &other_table, Folding::default()));
        DiffTree::of(&mut before, &mut after, most_calls)
    }

    fn sums_by_depth(tree: &DiffTree) -> Vec<(u32, &str, u64, u64)> {
        let name = |node: &DiffNode| match node.frame {
            Some(frame) => tree.frames[frame as usize].function.as_deref().unwrap_or("?"),
            None => "-",
        };
        let line = |node: &DiffNode| (node.depth, name(node), node.before.live_bytes, node.after.live_bytes);
        tree.nodes.iter().map(line).collect()
    }

    #[test]
    fn diff_tree_holds_the_calls_and_sums_of_both() {
        let before: &[(&[&str], u64)] = &[(&["run", "load"], 100), (&["run", "gone"], 50), (&["run"], 7)];
        // In another order, and so at other addresses.
        let after: &[(&[&str], u64)] =
            &[(&["run", "new", "deep"], 30), (&["run", "load"], 400), (&["run"], 7)];
        let tree = tree(before, after, 100);
        assert_eq!(
            sums_by_depth(&tree),
            [
                (0, "-", 0, 0),
                (1, "run", 7, 7),
                (2, "load", 100, 400),
                (2, "gone", 50, 0),
                (2, "new", 0, 0),
                (3, "deep", 0, 30),
            ]
        );
        assert_eq!(tree.put_together, 0);
        assert_eq!(tree.nodes.iter().map(|node| node.parent).collect::<Vec<_>>(), [0, 0, 1, 1, 1, 4]);
    }

    #[test]
    fn small_calls_are_merged_and_stay_in_every_sum() {
        let names: Vec<&'static str> = ["a", "b", "c", "d", "e", "f", "g", "h"].to_vec();
        let paths: Vec<Vec<&'static str>> = names.iter().map(|&name| vec!["run", name, "inner"]).collect();
        let of = |factor: u64| -> Vec<(&[&'static str], u64)> {
            paths.iter().enumerate().map(|(i, path)| (path.as_slice(), (1 << (2 * i)) * factor)).collect()
        };
        let (before, after) = (of(1), of(3));
        let whole: u64 = before.iter().map(|(_, bytes)| bytes).sum();
        for most_calls in [1, 2, 4, 8, 16, 17] {
            let tree = tree(&before, &after, most_calls);
            let sum = |of: fn(&DiffNode) -> u64| tree.nodes.iter().map(of).sum::<u64>();
            assert_eq!(sum(|node| node.before.live_bytes), whole, "{most_calls}");
            assert_eq!(sum(|node| node.after.live_bytes), whole * 3, "{most_calls}");
            let calls = tree.nodes.iter().filter(|node| node.frame.is_some()).count();
            assert!(calls <= most_calls, "{calls} of {most_calls}");
            assert_eq!(tree.put_together > 0, most_calls < 17, "{most_calls}");
        }
    }
}
