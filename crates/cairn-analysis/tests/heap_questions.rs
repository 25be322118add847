//! Lists and trees against the same put together from whole stacks, written out one by one.

use std::collections::BTreeMap;

use cairn_analysis::heap::{
    Address, Aggregator, Amount, Cost, Diff, Direction, FlameOptions, Folding, Group, HeapProfile,
    LOST_STACK, Module, Namer, Names, Pattern, Questions, Sampling, Scope, Stacks, Suppressions, Tree,
    TreeLimits, stacks_with,
};
use cairn_format::recording::PcKind;
use cairn_symbols::SourceFrame;
use proptest::prelude::*;

/// The frames at each address, innermost first. Addresses are indices of this list.
const FRAMES: &[&[&str]] = &[
    &["_start"],
    &["__libc_start_main_impl"],
    &["main"],
    &[
        "std::__new_allocator<int>::allocate(unsigned long)",
        "std::vector<int>::push_back(int)",
        "fill<int>()",
    ],
    &["operator new(unsigned long)"],
    &["load"],
    &["load_all", "load"],
    &["xmalloc"],
    &["parse"],
    &[],
    &["start_thread"],
    &["xmalloc", "xcalloc"],
];

/// The rank of a frame as the name of a row, by the documented order; 0 is the user's.
fn rank(name: &str, is_outermost: bool) -> u8 {
    match name {
        "xmalloc" | "xcalloc" => 6,
        "_start" | "__libc_start_main_impl" | "start_thread" => 5,
        // The outermost frame without a name is `_start`.
        name if name.starts_with("app+") && is_outermost => 5,
        name if name.starts_with("operator new") || name.starts_with("std::__new_allocator") => 7,
        name if name.starts_with("std::") => 4,
        _ => 0,
    }
}

struct Table;

impl Namer for Table {
    fn name(&self, _stacks: &Stacks, addresses: &[&Address]) -> Vec<Vec<SourceFrame>> {
        let frame = |name: &&str| {
            let mut frame = SourceFrame::default();
            frame.function = Some((*name).into());
            frame.file = Some(format!("{}.c", name.len()).into());
            frame.line = Some(7);
            frame
        };
        addresses
            .iter()
            .map(|address| FRAMES[address.absolute as usize].iter().map(frame).collect())
            .collect()
    }
}

/// A tree of stacks: for each new stack, which older one is its parent, and its address.
fn stacks(shape: &[(usize, usize)]) -> Stacks {
    let mut stacks = Stacks::new();
    let module = stacks.add_module(Module { path: "/opt/app".into(), build_id: vec![] });
    for index in 0..FRAMES.len() as u64 {
        let kind = PcKind::ReturnAddress;
        stacks.add_address(Address { kind, absolute: index, stated: index, module: Some((module, index)) });
    }
    for &(parent, address) in shape {
        let parent = parent % stacks.len();
        stacks.add_stack(parent as u32, (address % FRAMES.len()) as u32).expect("both are there");
    }
    stacks
}

fn profile(stacks: &Stacks, allocations: &[(usize, u64)]) -> HeapProfile {
    let mut heap = Aggregator::new(stacks.len(), 1, Scope::default(), Sampling::All);
    for (object, &(stack, size)) in allocations.iter().enumerate() {
        let stack = stack % (stacks.len() + 1);
        let stack = if stack == stacks.len() { LOST_STACK } else { stack as u32 };
        heap.allocated(object as u32, stack, 0, size, object as u64);
    }
    heap.finish(1_000)
}

/// Returns the functions of a stack as reports show them, innermost first, by the documented
/// rules.
fn shown(stacks: &Stacks, stack: u32) -> Vec<String> {
    if stack == LOST_STACK {
        return vec!["[stack was lost]".into()];
    }
    let mut all: Vec<String> = Vec::new();
    for address in stacks.addresses_of(stack) {
        match FRAMES[address as usize] {
            [] => all.push(format!("app+{address:#x}")),
            frames => all.extend(frames.iter().map(|name| (*name).to_owned())),
        }
    }
    if all.is_empty() {
        return vec!["[no stack]".into()];
    }
    let ranks: Vec<u8> =
        all.iter().enumerate().map(|(index, name)| rank(name, index + 1 == all.len())).collect();
    let best = ranks.iter().min().expect("there are frames");
    let first = ranks.iter().position(|rank| rank == best).expect("it is one of them");
    let is_folded = |index: usize| match all[index].starts_with("app+") {
        true => index + 1 == all.len() && index > 0 && rank(&all[index - 1], false) > 0,
        false => ranks[index] > 0,
    };
    let outwards = (first + 1..all.len()).filter(|&index| !is_folded(index)).map(|index| all[index].clone());
    [all[first].clone()].into_iter().chain(outwards).collect()
}

/// Amounts by path from the root of the tree.
fn naive_tree(
    stacks: &Stacks,
    profile: &HeapProfile,
    direction: Direction,
    cost: Cost,
) -> BTreeMap<Vec<String>, Amount> {
    let mut tree = BTreeMap::new();
    let lost = [(LOST_STACK, &profile.lost_stack)];
    let all = profile.stacks.iter().enumerate().map(|(stack, sums)| (stack as u32, sums)).chain(lost);
    for (stack, sums) in all.filter(|(_, sums)| !cost.of(sums).is_zero()) {
        let mut path = shown(stacks, stack);
        if direction == Direction::FromMain {
            path.reverse();
        }
        for end in 1..=path.len() {
            let amount: &mut Amount = tree.entry(path[..end].to_vec()).or_default();
            *amount = amount.plus(cost.of(sums));
        }
    }
    tree
}

fn flat(questions: &Questions<'_>, tree: &Tree) -> BTreeMap<Vec<String>, Amount> {
    let mut flat = BTreeMap::new();
    let mut path: Vec<String> = Vec::new();
    for index in tree.in_order() {
        let node = &tree.nodes[index];
        path.truncate(node.level - 1);
        path.push(questions.names().function_of(node.line.expect("only the root has none")).name.to_string());
        assert_eq!(flat.insert(path.clone(), node.amount), None, "{path:?} twice");
        let through_children =
            node.children.iter().fold(node.own, |sum, &child| sum.plus(tree.nodes[child].amount));
        assert_eq!(through_children, node.amount, "{path:?}");
    }
    flat
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn trees_are_those_of_whole_stacks(
        shape in prop::collection::vec((any::<usize>(), any::<usize>()), 0..25),
        allocations in prop::collection::vec((any::<usize>(), 0_u64..1000), 0..30),
    ) {
        let stacks = stacks(&shape);
        let profile = profile(&stacks, &allocations);
        for direction in [Direction::FromMain, Direction::FromAllocations] {
            for cost in [Cost::Peak, Cost::Count] {
                let names = Names::new(&stacks, &Table, Folding::default());
                let mut questions = Questions::new(&profile, names);
                let tree = questions.tree(direction, cost, TreeLimits::NONE);
                prop_assert_eq!(tree.nodes[0].amount, cost.of(&profile.totals));
                prop_assert_eq!(
                    flat(&questions, &tree), naive_tree(&stacks, &profile, direction, cost), "{:?}", direction
                );
            }
        }
    }

    #[test]
    fn lists_are_those_of_whole_stacks(
        shape in prop::collection::vec((any::<usize>(), any::<usize>()), 0..25),
        allocations in prop::collection::vec((any::<usize>(), 0_u64..1000), 0..30),
    ) {
        let stacks = stacks(&shape);
        let profile = profile(&stacks, &allocations);
        let questions = Questions::new(&profile, Names::new(&stacks, &Table, Folding::default()));
        let mut naive: BTreeMap<String, u64> = BTreeMap::new();
        for (stack, sums) in profile.stacks.iter().enumerate().filter(|(_, sums)| sums.allocations > 0) {
            *naive.entry(shown(&stacks, stack as u32)[0].clone()).or_default() += sums.allocations;
        }
        if profile.lost_stack.allocations > 0 {
            naive.insert("[stack was lost]".into(), profile.lost_stack.allocations);
        }
        let top = questions.top(Group::Function, Cost::Count);
        prop_assert!(top.is_sorted_by_key(|entry| std::cmp::Reverse(entry.sums.allocations)));
        let found: BTreeMap<String, u64> = top
            .iter()
            .map(|entry| (questions.names().function_of(entry.line).name.to_string(), entry.sums.allocations))
            .collect();
        prop_assert_eq!(found, naive);
        for group in [Group::Line, Group::Module, Group::Stack] {
            let sum: u64 = questions.top(group, Cost::Peak).iter().map(|entry| entry.sums.peak_bytes).sum();
            prop_assert_eq!(sum, profile.totals.peak_bytes);
        }
    }
}

/// A recording in which `main` (address 2) calls each of these stacks and allocates so much there.
fn run(stacks_and_sizes: &[(&[usize], u64)]) -> (Stacks, HeapProfile) {
    let mut shape = vec![(0, 0), (1, 1), (2, 2)];
    let mut allocations = Vec::new();
    for (addresses, size) in stacks_and_sizes {
        for (index, &address) in addresses.iter().enumerate() {
            let parent = if index == 0 { 3 } else { shape.len() };
            shape.push((parent, address));
        }
        allocations.push((shape.len(), *size));
    }
    let stacks = stacks(&shape);
    let profile = profile(&stacks, &allocations);
    (stacks, profile)
}

/// The same functions at other addresses and lines.
struct Rebuilt;

impl Namer for Rebuilt {
    fn name(&self, stacks: &Stacks, addresses: &[&Address]) -> Vec<Vec<SourceFrame>> {
        let mut names = Table.name(stacks, addresses);
        names.iter_mut().flatten().for_each(|frame| frame.line = frame.line.map(|line| line + 100));
        names
    }
}

#[test]
fn what_grew_is_found_across_builds_and_nothing_else() {
    let (old_stacks, old) = run(&[(&[5, 8], 100), (&[5, 8], 50), (&[8], 1000), (&[9], 7)]);
    // load -> parse grew by 60, parse shrank by 1000, fill is new; the stacks have other numbers.
    let (new_stacks, new) = run(&[(&[3], 30), (&[9, 9], 7), (&[5, 8], 210)]);
    let mut before = Questions::new(&old, Names::new(&old_stacks, &Table, Folding::default()));
    let mut after = Questions::new(&new, Names::new(&new_stacks, &Rebuilt, Folding::default()));
    let diff = Diff::of(&mut before, &mut after, Cost::Allocated);
    let answer: Vec<(Vec<&str>, i128, i128)> = diff
        .entries
        .iter()
        .map(|entry| {
            let names = entry.frames.iter().map(|frame| frame.function.as_deref().unwrap_or("?")).collect();
            (names, entry.growth(), entry.block_growth())
        })
        .collect();
    let expected = [
        (vec!["parse", "main"], -1000, -1),
        (vec!["parse", "load", "main"], 60, -1),
        (vec!["fill<int>()", "main"], 30, 1),
    ];
    assert_eq!(answer, expected, "one nameless frame and two are the same");
    assert_eq!(diff.growth(), 247 - 1157);
    let by_function = diff.by_function();
    assert_eq!(
        by_function.iter().map(cairn_analysis::heap::DiffEntry::growth).collect::<Vec<_>>(),
        [-940, 30]
    );
    let same = Diff::of(
        &mut before,
        &mut Questions::new(&old, Names::new(&old_stacks, &Table, Folding::default())),
        Cost::Peak,
    );
    assert_eq!(same.entries, []);
}

#[test]
fn known_leaks_are_held_back_and_counted() {
    let (stacks, profile) = run(&[(&[5, 8], 100), (&[8], 1000), (&[9], 7)]);
    let mut names = Names::new(&stacks, &Table, Folding::default());
    let list = Suppressions::parse("leak:nothing_of_that_name\nleak:^load$\n").expect("sound");
    let (held_back, rest) = list.apply(&profile, &mut names);
    assert_eq!(held_back.len(), 1);
    assert_eq!((held_back[0].blocks, held_back[0].bytes), (1, 100));
    assert_eq!((rest.totals.live_blocks, rest.totals.live_bytes), (2, 1007));
    assert_eq!(rest.totals.peak_bytes, profile.totals.peak_bytes);
}

#[test]
fn filters_look_at_every_frame() {
    let (stacks, _) = run(&[(&[5, 8], 100), (&[8], 1000)]);
    let mut names = Names::new(&stacks, &Table, Folding::default());
    let with = |names: &mut Names<'_>, function: &str, module: &str| {
        let list = |text: &str| if text.is_empty() { vec![] } else { vec![Pattern::new(text)] };
        let has = stacks_with(names, &list(function), &list(module));
        has.iter().enumerate().filter(|(_, has)| **has).map(|(stack, _)| stack).collect::<Vec<_>>()
    };
    assert_eq!(with(&mut names, "load", ""), [4, 5]);
    assert_eq!(with(&mut names, "^parse$", "/opt/"), [5, 6]);
    assert_eq!(with(&mut names, "", "elsewhere"), [] as [usize; 0]);
}

#[test]
fn flames_fill_their_row_and_names_cannot_leave_their_element() {
    let (stacks, profile) = run(&[(&[5, 8], 100), (&[8], 1000), (&[3], 500)]);
    let mut questions = Questions::new(&profile, Names::new(&stacks, &Table, Folding::default()));
    let tree = questions.tree(Direction::FromMain, Cost::Peak, TreeLimits::NONE);
    let options = FlameOptions { title: "a <b> & \"c\"".into(), subtitle: String::new() };
    let svg = questions.flame_svg(&tree, &options);
    assert!(svg.contains("<title>a &lt;b&gt; &amp; &quot;c&quot;</title>"), "{svg}");
    assert!(svg.contains("fill&lt;int&gt;()"));
    let shares: Vec<(usize, f64)> = svg
        .lines()
        .filter(|line| line.starts_with("<g data-x"))
        .map(|line| {
            let value =
                |name: &str| line.split_once(name).and_then(|(_, rest)| rest.split('"').next()).expect(name);
            (value("data-l=\"").parse().expect("level"), value("data-w=\"").parse().expect("share"))
        })
        .collect();
    for (level, flames) in [(0, 1), (1, 1), (2, 3)] {
        let of_level: Vec<f64> =
            shares.iter().filter(|(of, _)| *of == level).map(|(_, share)| *share).collect();
        assert_eq!(of_level.len(), flames, "level {level}");
        assert!((of_level.iter().sum::<f64>() - 1.0).abs() < 1e-6, "level {level}: {of_level:?}");
    }
    let folded = questions.folded(Cost::Allocated);
    assert_eq!(folded, "main;fill<int>() 500\nmain;load;parse 100\nmain;parse 1000\n");
}

#[test]
fn a_cut_tree_says_what_is_left_out_and_asks_for_few_names() {
    // A long chain behind a branch that is too small to be shown.
    let mut shape = vec![(0, 2), (1, 5), (1, 8)];
    shape.extend((0..20).map(|index| (3 + index, 9)));
    let stacks = stacks(&shape);
    let profile = profile(&stacks, &[(2, 10_000), (shape.len(), 1)]);
    struct Counting(std::cell::Cell<usize>);
    impl Namer for Counting {
        fn name(&self, stacks: &Stacks, addresses: &[&Address]) -> Vec<Vec<SourceFrame>> {
            self.0.set(self.0.get() + addresses.len());
            Table.name(stacks, addresses)
        }
    }
    let counting = Counting(0.into());
    let mut questions = Questions::new(&profile, Names::new(&stacks, &counting, Folding::default()));
    let tree = questions.tree(Direction::FromMain, Cost::Peak, TreeLimits::default());
    assert_eq!(tree.nodes.len(), 3);
    assert_eq!(tree.nodes[1].left_out, Amount { value: 1, blocks: 1 });
    assert_eq!(counting.0.get(), 4, "main, load, parse, and the asker at the end of the chain");
}
