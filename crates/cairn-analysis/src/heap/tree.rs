//! Merges stacks into a tree of functions: from `main` inwards, or from the allocations outwards.
//!
//! A tree is grown level by level, and only where it will be shown: the names of a branch that is
//! too small to be shown are never looked up.

use std::collections::{HashMap, HashSet};

use super::names::{FunctionId, LineId, Position};
use super::questions::Questions;
use super::stacks::NO_FRAMES;
use super::{Amount, Cost, LOST_STACK};

/// Which end of the stacks is the root.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// `main` is: each branch leads to what it calls.
    FromMain,
    /// The allocations are: each branch leads to its callers.
    FromAllocations,
}

/// How much of a tree is grown.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct TreeLimits {
    /// Branches that are a smaller part of the whole are left out.
    pub least_share: f64,
    /// Levels below this one are left out.
    pub most_levels: usize,
    /// Most branches in all; the smallest are left out.
    pub most_nodes: usize,
}

impl Default for TreeLimits {
    /// As much as fits a few screens.
    fn default() -> Self {
        Self { least_share: 0.01, most_levels: 100, most_nodes: 10_000 }
    }
}

impl TreeLimits {
    /// Everything.
    pub const NONE: Self = Self { least_share: 0.0, most_levels: usize::MAX, most_nodes: usize::MAX };
}

/// A tree of functions; node 0 is the root, which holds everything.
#[derive(Clone, PartialEq, Debug)]
pub struct Tree {
    /// The nodes: each one's children come after it, in the order of [`TreeNode::children`].
    pub nodes: Vec<TreeNode>,
    /// The measure.
    pub cost: Cost,
    /// Which end of the stacks its root is.
    pub direction: Direction,
}

/// A function and how it was reached.
#[derive(Clone, PartialEq, Debug)]
pub struct TreeNode {
    /// The line of the function that costs most; none for the root.
    pub line: Option<LineId>,
    /// How many calls from the root.
    pub level: usize,
    /// The cost of it and of its children.
    pub amount: Amount,
    /// Cost of the entry itself.
    ///
    /// These are its own allocations, or, from the allocations outwards, those of stacks in which
    /// it is the outermost frame.
    pub own: Amount,
    /// Its children, most expensive first.
    pub children: Vec<usize>,
    /// The cost of children that were left out.
    pub left_out: Amount,
    /// Folded frames between it and its caller, the most of any stack.
    pub folded_outside: usize,
    /// Folded frames between it and the allocations that it is named for, the most of any stack.
    pub folded_inside: usize,
}

impl Tree {
    /// How many frames are folded: as many rows more has the tree with each run in its place.
    #[must_use]
    pub fn folded_frames(&self) -> usize {
        self.nodes.iter().map(|node| node.folded_outside + node.folded_inside).sum()
    }

    /// The indices of the nodes in the order in which a tree is printed, without the root.
    pub fn in_order(&self) -> impl Iterator<Item = usize> {
        let mut open: Vec<usize> = self.nodes.first().map_or(Vec::new(), |root| reversed(&root.children));
        std::iter::from_fn(move || {
            let next = open.pop()?;
            open.extend(self.nodes.get(next).map_or(Vec::new(), |node| reversed(&node.children)));
            Some(next)
        })
    }
}

fn reversed(list: &[usize]) -> Vec<usize> {
    list.iter().rev().copied().collect()
}

/// Where a node of the tree is in the recording's stacks, and what goes through there.
type Places = Vec<(Position, Amount)>;

/// Tells what lies behind a set of places.
trait Growth {
    /// Finds the names of the places; returns the cost that ends in them, and the places behind
    /// them.
    fn step(&mut self, questions: &mut Questions<'_>, places: &Places) -> (Amount, Places);

    /// Makes the names known that [`step`](Self::step) needs for all of these.
    fn prepare(&self, questions: &mut Questions<'_>, places: &[&Places]);

    /// Returns how many folded frames are between a position at a level and the allocations there.
    fn folded_inside(&self, position: Position, level: usize) -> usize;
}

impl Questions<'_> {
    /// The stacks as a tree.
    #[must_use]
    pub fn tree(&mut self, direction: Direction, cost: Cost, limits: TreeLimits) -> Tree {
        match direction {
            Direction::FromMain => {
                let mut inwards = Inwards::new(self, cost);
                let start = inwards.start(self);
                grow(self, &mut inwards, start, (direction, cost), limits)
            }
            Direction::FromAllocations => {
                let start = self.places(cost, |asker| asker.position);
                let mut outwards = Outwards { inside: self.folded_inside(cost, |asker| asker.position) };
                grow(self, &mut outwards, start, (direction, cost), limits)
            }
        }
    }

    /// A position of each stack that asked for memory, with the cost, each position once, in order.
    fn places(&self, cost: Cost, of: impl Fn(&super::Asker) -> Position) -> Places {
        let mut ends: Places = self
            .askers
            .iter()
            .map(|asker| (of(asker), cost.of(self.sums(asker.stack))))
            .filter(|(_, amount)| !amount.is_zero())
            .collect();
        ends.sort_unstable_by_key(|&(position, _)| position);
        ends.dedup_by(|next, first| {
            let same = next.0 == first.0;
            if same {
                first.1 = first.1.plus(next.1);
            }
            same
        });
        ends
    }

    /// Counts the folded frames inside of a position of each stack that asked for memory.
    ///
    /// The most of any stack counts.
    fn folded_inside(&self, cost: Cost, of: impl Fn(&super::Asker) -> Position) -> HashMap<Position, usize> {
        let mut inside = HashMap::new();
        for asker in self.askers.iter().filter(|asker| !cost.of(self.sums(asker.stack)).is_zero()) {
            let position = of(asker);
            let folded = self.names.folded_inside(asker.stack, position);
            let most: &mut usize = inside.entry(position).or_default();
            *most = folded.max(*most);
        }
        inside
    }
}

fn grow(
    questions: &mut Questions<'_>,
    growth: &mut impl Growth,
    start: Places,
    (direction, cost): (Direction, Cost),
    limits: TreeLimits,
) -> Tree {
    let whole = sum(&start);
    let root = TreeNode {
        line: None,
        level: 0,
        amount: whole,
        own: Amount::default(),
        children: Vec::new(),
        left_out: Amount::default(),
        folded_outside: 0,
        folded_inside: 0,
    };
    let mut tree = Tree { nodes: vec![root], cost, direction };
    let mut level: Vec<(usize, Places)> = branch(questions, &mut tree, 0, start, limits);
    while !level.is_empty() {
        growth.prepare(questions, &level.iter().map(|(_, places)| places).collect::<Vec<_>>());
        let mut next = Vec::new();
        for (node, places) in level {
            let (own, behind) = growth.step(questions, &places);
            let node_level = tree.nodes[node].level;
            let positions = || places.iter().map(|&(position, _)| position);
            let outside = positions().map(|position| questions.names.folded_outside(position));
            let inside = positions().map(|position| growth.folded_inside(position, node_level));
            (tree.nodes[node].folded_outside, tree.nodes[node].folded_inside) =
                (outside.max().unwrap_or(0), inside.max().unwrap_or(0));
            tree.nodes[node].own = own;
            next.extend(branch(questions, &mut tree, node, behind, limits));
        }
        level = next;
    }
    tree
}

fn sum(places: &Places) -> Amount {
    places.iter().fold(Amount::default(), |sum, (_, amount)| sum.plus(*amount))
}

/// Merges places by function into children of `parent`. Returns the children that are large enough,
/// with their places.
fn branch(
    questions: &Questions<'_>,
    tree: &mut Tree,
    parent: usize,
    places: Places,
    limits: TreeLimits,
) -> Vec<(usize, Places)> {
    struct Branch {
        places: Places,
        amount: Amount,
        heaviest: (Amount, LineId),
    }
    let names = &questions.names;
    let mut by_function: HashMap<FunctionId, usize> = HashMap::new();
    let mut branches: Vec<Branch> = Vec::new();
    for (position, amount) in places {
        let line = names.at_position(position);
        let index = *by_function.entry(names.source_line(line).function).or_insert_with(|| {
            branches.push(Branch { places: Vec::new(), amount: Amount::default(), heaviest: (amount, line) });
            branches.len() - 1
        });
        let branch = &mut branches[index];
        branch.places.push((position, amount));
        branch.amount = branch.amount.plus(amount);
        if amount > branch.heaviest.0 {
            branch.heaviest = (amount, line);
        }
    }
    branches.sort_by(|a, b| {
        let name = |branch: &Branch| &names.function_of(branch.heaviest.1).name;
        b.amount.cmp(&a.amount).then_with(|| name(a).cmp(name(b)))
    });
    let whole = tree.nodes[0].amount;
    let level = tree.nodes[parent].level + 1;
    let mut children = Vec::new();
    for branch in branches {
        let too_small = branch.amount.share_of(whole) < limits.least_share;
        if too_small || level > limits.most_levels || tree.nodes.len() > limits.most_nodes {
            let left_out = &mut tree.nodes[parent].left_out;
            *left_out = left_out.plus(branch.amount);
            continue;
        }
        let node = tree.nodes.len();
        tree.nodes[parent].children.push(node);
        tree.nodes.push(TreeNode {
            line: Some(branch.heaviest.1),
            level,
            amount: branch.amount,
            own: Amount::default(),
            children: Vec::new(),
            left_out: Amount::default(),
            folded_outside: 0,
            folded_inside: 0,
        });
        children.push((node, branch.places));
    }
    children
}

/// From the allocations to their callers: places are where the stacks of a node have come to.
struct Outwards {
    /// By position of a row's frame: folded frames inside of it.
    inside: HashMap<Position, usize>,
}

impl Growth for Outwards {
    fn folded_inside(&self, position: Position, level: usize) -> usize {
        if level == 1 { self.inside.get(&position).copied().unwrap_or(0) } else { 0 }
    }

    fn prepare(&self, questions: &mut Questions<'_>, places: &[&Places]) {
        let positions: Vec<Position> =
            places.iter().flat_map(|places| places.iter().map(|&(position, _)| position)).collect();
        questions.names.find_callers(&positions);
    }

    fn step(&mut self, questions: &mut Questions<'_>, places: &Places) -> (Amount, Places) {
        let mut own = Amount::default();
        let mut callers: HashMap<Position, Amount> = HashMap::new();
        for &(position, amount) in places {
            match questions.names.caller(position) {
                Some(caller) => {
                    let sum = callers.entry(caller).or_default();
                    *sum = sum.plus(amount);
                }
                None => own = own.plus(amount),
            }
        }
        let mut callers: Places = callers.into_iter().collect();
        callers.sort_unstable_by_key(|&(position, _)| position);
        (own, callers)
    }
}

/// From `main` to what it calls.
struct Inwards {
    /// By stack: what was asked for at its innermost address or further in.
    below: Vec<Amount>,
    /// The cost of the frame itself.
    ends: HashMap<Position, Amount>,
    /// Folded frames inside of it.
    inside: HashMap<Position, usize>,
    lost: Amount,
    /// Folded frames in which something ends: what they lead to is elsewhere in the tree.
    closed: HashSet<Position>,
    /// Frames that took the place of the one outside of them.
    moved: HashSet<Position>,
    /// The stacks one call further in than each stack: `children[first_child[s]..first_child[s +
    /// 1]]`.
    children: Vec<u32>,
    first_child: Vec<u32>,
}

impl Inwards {
    fn new(questions: &Questions<'_>, cost: Cost) -> Self {
        let stacks = questions.names.stacks();
        let mut below = vec![Amount::default(); stacks.len()];
        let mut lost = Amount::default();
        let ends: HashMap<Position, Amount> = questions.places(cost, |asker| asker.end).into_iter().collect();
        for (position, amount) in &ends {
            match below.get_mut(position.stack as usize) {
                Some(place) => *place = place.plus(*amount),
                None => lost = lost.plus(*amount),
            }
        }
        // Parents have smaller numbers, so that each is complete before it is added to its own
        // parent.
        let mut first_child = vec![0_u32; stacks.len() + 1];
        for stack in (1..stacks.len()).rev() {
            if below[stack].is_zero() {
                continue;
            }
            if let Some(parent) = stacks.parent(stack as u32) {
                below[parent as usize] = below[parent as usize].plus(below[stack]);
                first_child[parent as usize + 1] += 1;
            }
        }
        for index in 1..first_child.len() {
            first_child[index] += first_child[index - 1];
        }
        let mut free = first_child.clone();
        let mut children = vec![0; first_child.last().copied().unwrap_or(0) as usize];
        for (stack, amount) in below.iter().enumerate().skip(1) {
            if let (false, Some(parent)) = (amount.is_zero(), stacks.parent(stack as u32)) {
                let place = &mut free[parent as usize];
                children[*place as usize] = stack as u32;
                *place += 1;
            }
        }
        let inside = questions.folded_inside(cost, |asker| asker.end);
        Self {
            below,
            ends,
            inside,
            lost,
            closed: HashSet::new(),
            moved: HashSet::new(),
            children,
            first_child,
        }
    }

    fn children(&self, stack: u32) -> &[u32] {
        let bounds = (self.first_child.get(stack as usize), self.first_child.get(stack as usize + 1));
        match bounds {
            (Some(&start), Some(&end)) => &self.children[start as usize..end as usize],
            _ => &[],
        }
    }

    /// The outermost frames, or, where these are folded, what they lead to.
    fn start(&mut self, questions: &mut Questions<'_>) -> Places {
        let mut start = Places::new();
        if !self.lost.is_zero() {
            start.push((Position { stack: LOST_STACK, inlined: 0 }, self.lost));
        }
        let without_frames = Position { stack: NO_FRAMES, inlined: 0 };
        if let Some(&amount) = self.ends.get(&without_frames) {
            start.push((without_frames, amount));
        }
        self.find_unfolded(questions, vec![NO_FRAMES]);
        for (position, amount) in self.outermost(questions, NO_FRAMES) {
            let places = self.without_nameless_start(questions, position, amount);
            start.extend(self.unfolded(questions, places));
        }
        start.sort_unstable_by_key(|&(position, _)| position);
        start
    }

    /// Replaces folded frames by what they lead to.
    fn unfolded(&mut self, questions: &Questions<'_>, places: Places) -> Places {
        let mut open = places;
        let mut shown = Places::new();
        while let Some((position, amount)) = open.pop() {
            if !questions.names.is_folded(questions.names.at_position(position)) {
                shown.push((position, amount));
                continue;
            }
            // The cost that ends in a folded frame stays there.
            if let Some(&own) = self.ends.get(&position) {
                shown.push((position, own));
                self.closed.insert(position);
            }
            open.extend(self.behind(questions, position, amount));
        }
        shown
    }

    /// Splits an outermost frame without a name where it leads to folded frames.
    ///
    /// Such a frame is `_start`.
    fn without_nameless_start(
        &mut self,
        questions: &mut Questions<'_>,
        position: Position,
        amount: Amount,
    ) -> Places {
        let names = &questions.names;
        let is_outermost = names.stacks().parent(position.stack) == Some(NO_FRAMES);
        if !is_outermost || position.inlined > 0 || names.function_of(names.at_position(position)).is_named {
            return vec![(position, amount)];
        }
        self.find_unfolded(questions, vec![position.stack]);
        let mut places = Places::new();
        let mut rest = amount;
        for (inner, inner_amount) in self.outermost(questions, position.stack) {
            if questions.names.is_folded(questions.names.at_position(inner)) {
                self.moved.insert(inner);
                places.push((inner, inner_amount));
                rest = rest.minus(inner_amount);
            }
        }
        if !rest.is_zero() {
            places.push((position, rest));
        }
        places
    }

    /// Finds the names of the stacks one call further in, and, where these are folded, of those in
    /// them.
    fn find_unfolded(&self, questions: &mut Questions<'_>, stacks: Vec<u32>) {
        let mut open = stacks;
        while !open.is_empty() {
            open.sort_unstable();
            open.dedup();
            let inner: Vec<u32> = open.iter().flat_map(|&stack| self.children(stack)).copied().collect();
            let tree = questions.names.stacks();
            questions.names.find(inner.iter().filter_map(|&stack| tree.innermost(stack)));
            let names = &questions.names;
            let is_folded = |stack: &u32| names.at(*stack).iter().all(|&line| names.is_folded(line));
            open = inner.into_iter().filter(is_folded).collect();
        }
    }

    fn outermost(&self, questions: &Questions<'_>, stack: u32) -> Places {
        let child = |&child: &u32| {
            let inlined = questions.names.at(child).len().saturating_sub(1) as u32;
            (Position { stack: child, inlined }, self.below[child as usize])
        };
        self.children(stack).iter().map(child).collect()
    }

    fn behind(&self, questions: &Questions<'_>, position: Position, amount: Amount) -> Places {
        if position.inlined == 0 {
            return self.outermost(questions, position.stack);
        }
        // The cost of a frame's callees is its own cost without the part that ends there.
        let own = self.ends.get(&position).copied().unwrap_or_default();
        let inner = amount.minus(own);
        let place = (Position { inlined: position.inlined - 1, ..position }, inner);
        if inner.is_zero() { Vec::new() } else { vec![place] }
    }
}

impl Growth for Inwards {
    fn folded_inside(&self, position: Position, _level: usize) -> usize {
        self.inside.get(&position).copied().unwrap_or(0)
    }

    fn prepare(&self, questions: &mut Questions<'_>, places: &[&Places]) {
        let innermost =
            places.iter().flat_map(|places| places.iter()).filter(|(position, _)| position.inlined == 0);
        let stacks = innermost.map(|(position, _)| position.stack);
        let stacks = stacks.filter(|stack| !matches!(*stack, LOST_STACK | NO_FRAMES)).collect();
        self.find_unfolded(questions, stacks);
    }

    fn step(&mut self, questions: &mut Questions<'_>, places: &Places) -> (Amount, Places) {
        let mut own = Amount::default();
        let mut behind = Places::new();
        for &(position, amount) in places {
            own = own.plus(self.ends.get(&position).copied().unwrap_or_default());
            let leads_on = !matches!(position.stack, LOST_STACK | NO_FRAMES);
            if leads_on && !self.closed.contains(&position) {
                let mut further_in = self.behind(questions, position, amount);
                further_in.retain(|(inner, _)| !self.moved.contains(inner));
                behind.extend(self.unfolded(questions, further_in));
            }
        }
        (own, behind)
    }
}
