//! Lists and trees against the same put together from whole stacks, written out one by one.

use std::collections::BTreeMap;

use cairn_analysis::format::recording::PcKind;
use cairn_analysis::heap::{
    Address, Aggregator, Amount, Cost, Direction, Folding, Group, HeapProfile, LOST_STACK, Module, Namer,
    Names, Questions, Sampling, Scope, Stacks, Tree, TreeLimits,
};
use cairn_analysis::symbols::SourceFrame;
use proptest::prelude::*;

/// The frames at each address, innermost first. Addresses are indices of this list.
const FRAMES: &[&[&str]] = &[
    &["_start"],
    &["__libc_start_main_impl"],
    &["main"],
    &["std::__new_allocator<int>::allocate(unsigned long)", "std::vector<int>::push_back(int)", "fill"],
    &["operator new(unsigned long)"],
    &["load"],
    &["load_all", "load"],
    &["xmalloc"],
    &["parse"],
    &[],
    &["start_thread"],
    &["xmalloc", "xcalloc"],
];

fn is_allocator(name: &str) -> bool {
    ["std::__new_allocator", "operator new", "xmalloc", "xcalloc"]
        .iter()
        .any(|prefix| name.starts_with(prefix))
}

fn is_startup(name: &str) -> bool {
    ["_start", "__libc_start_main_impl", "start_thread"].contains(&name)
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

/// The functions of a stack as they are shown, innermost first, by the rules as the documentation tells them.
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
    let first = all.iter().position(|name| !is_allocator(name)).unwrap_or(0);
    let rest = &all[first..];
    let startup = rest.iter().rev().take_while(|name| is_startup(name)).count();
    rest[..(rest.len() - startup).max(1)].to_vec()
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
    assert_eq!(counting.0.get(), 4, "main, load, parse, and who asked at the end of the chain");
}
