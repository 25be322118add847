//! Merges all stacks into one tree of functions, from `main` inwards, with every sum at each call.
//!
//! [`Questions`](cairn_analysis::heap::Questions) grow a tree for one cost. The page switches
//! between costs, and adds up times that its reader chooses, so it takes the calls of all costs at
//! once, and the sums where they end: what goes through a call is added up in the browser.
//!
//! Small branches are found before names are, on the stacks as they were recorded: a branch stays
//! when it holds the least share of any cost. The memory of the other branches is merged into one
//! call, at the place where they leave the tree, so that every sum stays what it is.

use std::collections::HashMap;

use cairn_analysis::heap::{
    Cost, FunctionId, HeapProfile, LOST_STACK, LineId, NO_FRAMES, Names, Position, Sums,
};

/// Longer paths lose calls in their middle: both ends of a recursion show it, and pages draw by
/// depth.
const MOST_LEVELS: usize = 1000;
/// Innermost calls that are never left out.
const LEAST_INNER_LEVELS: usize = 16;

/// The stacks that asked for memory, and the frame of each that did.
pub(crate) struct Askers {
    pub(crate) askers: Vec<(u32, Position)>,
    /// By stack: the cost of its innermost address or further in, as a part of the whole.
    ///
    /// One share for each cost.
    shares: Vec<[f32; Cost::ALL.len()]>,
}

impl Askers {
    pub(crate) fn new(profile: &HeapProfile, names: &mut Names<'_>) -> Self {
        let used = profile.stacks.iter().enumerate().filter(|(_, sums)| !sums.is_empty());
        let mut stacks: Vec<u32> = used.map(|(stack, _)| stack as u32).collect();
        if !profile.lost_stack.is_empty() {
            stacks.push(LOST_STACK);
        }
        names.find_wrappers(profile);
        let positions = names.ends(&stacks);
        let askers: Vec<(u32, Position)> = stacks.into_iter().zip(positions).collect();
        let whole = Cost::ALL.map(|cost| cost.of(&profile.totals));
        let mut shares = vec![[0.0; Cost::ALL.len()]; names.stacks().len()];
        for &(stack, position) in &askers {
            let Some(place) = shares.get_mut(position.stack as usize) else { continue };
            let sums = sums_of(profile, stack);
            for ((share, cost), whole) in place.iter_mut().zip(Cost::ALL).zip(whole) {
                *share += cost.of(sums).share_of(whole) as f32;
            }
        }
        // Parents have smaller numbers.
        for stack in (1..shares.len()).rev() {
            let share = shares[stack];
            let parent = names.stacks().parent(stack as u32).filter(|&parent| parent != NO_FRAMES);
            if let Some(place) = parent.and_then(|parent| shares.get_mut(parent as usize)) {
                place.iter_mut().zip(share).for_each(|(sum, share)| *sum += share);
            }
        }
        Self { askers, shares }
    }

    fn share(&self, stack: usize) -> f64 {
        let largest = self.shares.get(stack).map(|shares| shares.iter().copied().fold(0.0, f32::max));
        largest.map_or(0.0, f64::from)
    }

    /// The smallest share, from `least` on, that no more than this many stacks have.
    fn least_share(&self, least: f64, most_calls: usize) -> f64 {
        let mut shares: Vec<f64> =
            (1..self.shares.len()).map(|stack| self.share(stack)).filter(|&share| share > 0.0).collect();
        if shares.len() <= most_calls {
            return least;
        }
        shares.sort_unstable_by(|a, b| b.total_cmp(a));
        let first_too_many = shares.get(most_calls).copied().unwrap_or(0.0);
        // A round number that is above the share of the first one that is too many.
        let magnitude = 10_f64.powf(first_too_many.log10().floor());
        let round = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * magnitude);
        let above = round.into_iter().find(|&share| share > first_too_many);
        above.unwrap_or(magnitude * 20.0).max(least)
    }
}

pub(crate) fn sums_of(profile: &HeapProfile, stack: u32) -> &Sums {
    match stack {
        LOST_STACK => &profile.lost_stack,
        _ => profile.stacks.get(stack as usize).unwrap_or(&profile.lost_stack),
    }
}

/// The callee of a call.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Callee {
    /// Node 0: everything.
    Root,
    Function(FunctionId),
    /// All branches here that are below the least share.
    PutTogether,
    /// Calls in the middle of a stack that is too deep.
    TooDeep,
}

#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) callee: Callee,
    pub(crate) parent: u32,
    pub(crate) depth: u32,
    /// The line of the costliest stack through here.
    pub(crate) line: Option<LineId>,
    line_share: f32,
    /// The cost of the call itself.
    pub(crate) own: Sums,
}

/// The tree, each call followed by the calls in it.
pub(crate) struct Frames {
    pub(crate) nodes: Vec<Node>,
    /// By stack: the node where it ends; none for stacks that asked for nothing.
    pub(crate) ends: Vec<Option<u32>>,
    pub(crate) lost_end: Option<u32>,
    pub(crate) least_share: f64,
    pub(crate) stacks: usize,
    pub(crate) stacks_put_together: usize,
    pub(crate) stacks_too_deep: usize,
}

impl Frames {
    /// Builds the tree of branches of at least this share.
    ///
    /// If there are more than `most_calls` of them, the share is larger.
    pub(crate) fn new(
        profile: &HeapProfile,
        names: &mut Names<'_>,
        askers: &Askers,
        least_share: f64,
        most_calls: usize,
    ) -> Self {
        let least_share = askers.least_share(least_share, most_calls);
        let places: Vec<(Position, bool)> = askers
            .askers
            .iter()
            .map(|&(_, position)| shown_end(names, askers, position, least_share))
            .collect();
        names.find_stacks(places.iter().map(|(position, _)| position.stack));
        let mut growing = Growing::new(askers.shares.len());
        for (&(stack, _), &(place, is_whole)) in askers.askers.iter().zip(&places) {
            let end = growing.add(names, askers, place, is_whole);
            growing.nodes[end as usize].own.add(sums_of(profile, stack));
            match growing.ends.get_mut(stack as usize) {
                Some(place) => *place = Some(end),
                None => growing.lost_end = Some(end),
            }
        }
        growing.finish(names, least_share, askers.askers.len())
    }

    /// How many calls there are, the root not among them.
    pub(crate) fn calls(&self) -> usize {
        self.nodes.len().saturating_sub(1)
    }

    /// The node where a stack ends.
    pub(crate) fn end_of(&self, stack: u32) -> Option<u32> {
        if stack == LOST_STACK { self.lost_end } else { self.ends.get(stack as usize).copied().flatten() }
    }
}

/// The innermost part of a stack that is large enough, and whether that is all of it.
fn shown_end(names: &Names<'_>, askers: &Askers, position: Position, least_share: f64) -> (Position, bool) {
    if position.stack == LOST_STACK {
        return (position, true);
    }
    let mut stack = position.stack;
    while stack != NO_FRAMES && askers.share(stack as usize) < least_share {
        stack = names.stacks().parent(stack).unwrap_or(NO_FRAMES);
    }
    if stack == position.stack { (position, true) } else { (Position { stack, inlined: 0 }, false) }
}

struct Growing {
    nodes: Vec<Node>,
    ends: Vec<Option<u32>>,
    lost_end: Option<u32>,
    children: HashMap<(u32, Callee), u32>,
    /// Nodes of the outer parts of paths.
    ///
    /// Most stacks differ from the previous one only in their inner part.
    known: HashMap<Position, u32>,
    path: Vec<Position>,
    stacks_put_together: usize,
    stacks_too_deep: usize,
}

impl Growing {
    fn new(stacks: usize) -> Self {
        let root = Node {
            callee: Callee::Root,
            parent: 0,
            depth: 0,
            line: None,
            line_share: 0.0,
            own: Sums::default(),
        };
        Self {
            nodes: vec![root],
            ends: vec![None; stacks],
            lost_end: None,
            children: HashMap::new(),
            known: HashMap::new(),
            path: Vec::new(),
            stacks_put_together: 0,
            stacks_too_deep: 0,
        }
    }

    fn add(&mut self, names: &Names<'_>, askers: &Askers, place: Position, is_whole: bool) -> u32 {
        // A part of a stack begins at its innermost frame that is not folded; the asker of a whole one
        // may be folded, where everything is.
        let is_folded = names.is_folded(names.at_position(place));
        let shown = match place {
            place if is_whole => Some(place),
            Position { stack: NO_FRAMES, .. } => None,
            place if is_folded => names.caller(place),
            place => Some(place),
        };
        let mut node = shown.map_or(0, |place| self.path_to(names, askers, place));
        if !is_whole {
            self.stacks_put_together += 1;
            node = self.child(node, Callee::PutTogether, None, 0.0);
        }
        node
    }

    /// The node of a position, after those of its callers.
    fn path_to(&mut self, names: &Names<'_>, askers: &Askers, place: Position) -> u32 {
        self.path.clear();
        let mut node = 0;
        for position in names.outwards(place) {
            if let Some(&known) = self.known.get(&position) {
                node = known;
                break;
            }
            self.path.push(position);
        }
        let path = std::mem::take(&mut self.path);
        let room = MOST_LEVELS.saturating_sub(self.nodes[node as usize].depth as usize);
        let is_too_deep = path.len() > room;
        // If there are too many calls, those in the middle are removed; some innermost ones always
        // remain. Innermost comes first here.
        let (inner_to, outer_from) = if is_too_deep {
            let inner = (room / 2).max(LEAST_INNER_LEVELS).min(path.len());
            (inner, path.len() - (room / 2).min(path.len() - inner))
        } else {
            (path.len(), path.len())
        };
        for (index, &position) in path.iter().enumerate().rev() {
            let share = askers.share(position.stack as usize) as f32;
            if (inner_to..outer_from).contains(&index) {
                if index + 1 == outer_from {
                    node = self.child(node, Callee::TooDeep, None, share);
                }
            } else {
                let line = names.at_position(position);
                let function = names.source_line(line).function;
                node = self.child(node, Callee::Function(function), Some(line), share);
            }
            self.known.insert(position, node);
        }
        self.stacks_too_deep += usize::from(is_too_deep);
        self.path = path;
        node
    }

    fn child(&mut self, parent: u32, callee: Callee, line: Option<LineId>, share: f32) -> u32 {
        let depth = self.nodes[parent as usize].depth + 1;
        let nodes = &mut self.nodes;
        let node = *self.children.entry((parent, callee)).or_insert_with(|| {
            nodes.push(Node { callee, parent, depth, line, line_share: share, own: Sums::default() });
            nodes.len() as u32 - 1
        });
        let place = &mut self.nodes[node as usize];
        if share > place.line_share {
            place.line = line;
            place.line_share = share;
        }
        node
    }

    /// Puts each call in front of those in it, the ones that allocated most first.
    fn finish(self, names: &Names<'_>, least_share: f64, stacks: usize) -> Frames {
        let Self { nodes, mut ends, mut lost_end, .. } = self;
        let mut bytes: Vec<u64> = nodes.iter().map(|node| node.own.allocated_bytes).collect();
        let mut children: Vec<Vec<u32>> = vec![Vec::new(); nodes.len()];
        for index in (1..nodes.len()).rev() {
            let parent = nodes[index].parent as usize;
            bytes[parent] = bytes[parent].saturating_add(bytes[index]);
            children[parent].push(index as u32);
        }
        let name = |node: u32| match nodes[node as usize].callee {
            Callee::Function(function) => names.function(function).name.as_ref(),
            _ => "",
        };
        let mut place_of = vec![0_u32; nodes.len()];
        let mut ordered: Vec<Node> = Vec::with_capacity(nodes.len());
        let mut open = vec![0_u32];
        while let Some(node) = open.pop() {
            place_of[node as usize] = ordered.len() as u32;
            let old = &nodes[node as usize];
            ordered.push(Node { parent: place_of[old.parent as usize], ..old.clone() });
            let inner = &mut children[node as usize];
            // The last one is taken first.
            inner.sort_by(|&a, &b| {
                bytes[a as usize].cmp(&bytes[b as usize]).then_with(|| name(b).cmp(name(a))).then(b.cmp(&a))
            });
            open.append(inner);
        }
        let moved = |end: &mut Option<u32>| *end = end.map(|end| place_of[end as usize]);
        ends.iter_mut().for_each(moved);
        moved(&mut lost_end);
        Frames {
            nodes: ordered,
            ends,
            lost_end,
            least_share,
            stacks,
            stacks_put_together: self.stacks_put_together,
            stacks_too_deep: self.stacks_too_deep,
        }
    }
}
