//! A balanced search tree whose nodes are slots of the caller's: no memory of its own, and no input
//! makes it slow.
//!
//! This is an AA tree: a node's level is that of its place in a tree of nodes with two or three
//! children. The depth is at most twice the logarithm of the number of nodes, whatever the order in
//! which they come. (A tree with random priorities would be shorter to write, but its numbers could
//! only come from the slots' indices, and the writer of a recording chooses the order in which
//! these meet the keys.)
//!
//! ```text
//!   left child     one level below its parent
//!   right child    the same level or one below; its own right child below that
//! ```

use core::cmp::Ordering;

/// The index that represents no node.
pub(super) const NONE: usize = usize::MAX;

/// The place of one node in one tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Link {
    left: usize,
    right: usize,
    /// 1 for a leaf; 0 for [`NONE`].
    level: u8,
}

impl Link {
    /// The link of a node that is in no tree.
    pub(super) const EMPTY: Self = Self { left: NONE, right: NONE, level: 0 };
    const LEAF: Self = Self { level: 1, ..Self::EMPTY };
}

/// Slots as the nodes of one tree.
pub(super) trait Nodes {
    /// Returns the link of a node; [`Link::EMPTY`] for [`NONE`].
    fn link(&self, index: usize) -> Link;
    /// Changes it.
    fn set_link(&mut self, index: usize, link: Link);
    /// Returns how two nodes are ordered. Equal are those with the same index only.
    fn order(&self, one: usize, other: usize) -> Ordering;
}

/// Adds a node that is not in the tree; the new root.
pub(super) fn insert(nodes: &mut impl Nodes, root: usize, index: usize) -> usize {
    if root == NONE {
        nodes.set_link(index, Link::LEAF);
        return index;
    }
    let link = nodes.link(root);
    let link = match nodes.order(index, root) {
        Ordering::Less => Link { left: insert(nodes, link.left, index), ..link },
        _ => Link { right: insert(nodes, link.right, index), ..link },
    };
    nodes.set_link(root, link);
    let root = skew(nodes, root);
    split(nodes, root)
}

/// Takes a node out of the tree; the new root.
pub(super) fn remove(nodes: &mut impl Nodes, root: usize, index: usize) -> usize {
    if root == NONE {
        return NONE;
    }
    let link = nodes.link(root);
    let root = match nodes.order(index, root) {
        Ordering::Less => {
            let left = remove(nodes, link.left, index);
            nodes.set_link(root, Link { left, ..link });
            root
        }
        Ordering::Greater => {
            let right = remove(nodes, link.right, index);
            nodes.set_link(root, Link { right, ..link });
            root
        }
        // Without a left child it is a leaf, alone or with another one to its right.
        Ordering::Equal if link.left == NONE => return link.right,
        Ordering::Equal => {
            // The next node takes its place.
            let next = leftmost(nodes, link.right);
            let right = remove(nodes, link.right, next);
            nodes.set_link(next, Link { right, ..link });
            next
        }
    };
    rebalance(nodes, root)
}

/// Returns the last node for which `is_before` holds and the first for which it does not.
/// `is_before` must hold for all nodes before the latter.
pub(super) fn around(
    link_of: impl Fn(usize) -> Link,
    root: usize,
    is_before: impl Fn(usize) -> bool,
) -> (Option<usize>, Option<usize>) {
    let (mut at, mut before, mut behind) = (root, None, None);
    while at != NONE {
        let link = link_of(at);
        if is_before(at) {
            before = Some(at);
            at = link.right;
        } else {
            behind = Some(at);
            at = link.left;
        }
    }
    (before, behind)
}

fn leftmost(nodes: &impl Nodes, root: usize) -> usize {
    around(|index| nodes.link(index), root, |_| false).1.unwrap_or(NONE)
}

/// Turns a left child of the same level into the parent of `root`.
fn skew(nodes: &mut impl Nodes, root: usize) -> usize {
    let link = nodes.link(root);
    let left = nodes.link(link.left);
    if link.left == NONE || left.level != link.level {
        return root;
    }
    nodes.set_link(root, Link { left: left.right, ..link });
    nodes.set_link(link.left, Link { right: root, ..left });
    link.left
}

/// Lifts the middle one of three nodes of the same level.
fn split(nodes: &mut impl Nodes, root: usize) -> usize {
    let link = nodes.link(root);
    let right = nodes.link(link.right);
    if link.right == NONE || right.right == NONE || nodes.link(right.right).level != link.level {
        return root;
    }
    nodes.set_link(root, Link { right: right.left, ..link });
    nodes.set_link(link.right, Link { left: root, level: right.level.saturating_add(1), ..right });
    link.right
}

/// Restores the levels after a node below `root` was taken out.
fn rebalance(nodes: &mut impl Nodes, root: usize) -> usize {
    let link = nodes.link(root);
    let level = nodes.link(link.left).level.min(nodes.link(link.right).level).saturating_add(1);
    if level < link.level {
        nodes.set_link(root, Link { level, ..link });
        let right = nodes.link(link.right);
        if link.right != NONE && right.level > level {
            nodes.set_link(link.right, Link { level, ..right });
        }
    }
    let root = skew(nodes, root);
    update_right(nodes, root, skew);
    let right = nodes.link(root).right;
    if right != NONE {
        update_right(nodes, right, skew);
    }
    let root = split(nodes, root);
    update_right(nodes, root, split);
    root
}

fn update_right<N: Nodes>(nodes: &mut N, root: usize, change: fn(&mut N, usize) -> usize) {
    let link = nodes.link(root);
    if link.right != NONE {
        let right = change(nodes, link.right);
        nodes.set_link(root, Link { right, ..link });
    }
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;

    use super::*;

    /// Numbers as nodes, which count how many times they are compared.
    struct Numbers<'a> {
        keys: &'a [u32],
        links: [Link; 1024],
        comparisons: Cell<u32>,
    }

    impl Nodes for Numbers<'_> {
        fn link(&self, index: usize) -> Link {
            self.links.get(index).copied().unwrap_or(Link::EMPTY)
        }
        fn set_link(&mut self, index: usize, link: Link) {
            self.links[index] = link;
        }
        fn order(&self, one: usize, other: usize) -> Ordering {
            self.comparisons.set(self.comparisons.get() + 1);
            (self.keys[one], one).cmp(&(self.keys[other], other))
        }
    }

    /// Returns the depth of the tree, whose rules must hold.
    fn depth(nodes: &Numbers<'_>, root: usize) -> u32 {
        if root == NONE {
            return 0;
        }
        let link = nodes.link(root);
        let (left, right) = (nodes.link(link.left), nodes.link(link.right));
        assert_eq!(left.level + 1, link.level);
        assert!(right.level == link.level || right.level + 1 == link.level);
        assert!(right.level < link.level || nodes.link(right.right).level < link.level);
        1 + depth(nodes, link.left).max(depth(nodes, link.right))
    }

    /// Adds and removes all keys, each in its own order, and compares with a sorted list each time.
    fn check(keys: &[u32], removal: impl Fn(usize) -> usize) {
        let count = keys.len();
        let mut nodes = Numbers { keys, links: [Link::EMPTY; 1024], comparisons: Cell::new(0) };
        let mut root = NONE;
        let is_in_order = |nodes: &Numbers<'_>, root: usize, expected: usize| {
            let link = |index| nodes.link(index);
            let (_, mut at) = around(link, root, |_| false);
            let mut found = 0;
            while let Some(index) = at {
                found += 1;
                let (_, next) = around(link, root, |other| nodes.order(other, index) != Ordering::Greater);
                let before = next.and_then(|next| {
                    around(link, root, |other| nodes.order(other, next) == Ordering::Less).0
                });
                assert!(next.is_none() || before == Some(index));
                at = next;
            }
            assert_eq!(found, expected);
        };
        for index in 0..count {
            root = insert(&mut nodes, root, index);
        }
        // 1024 nodes in at most 2 * 10 levels, and one comparison on each.
        assert!(depth(&nodes, root) <= 20);
        assert!(nodes.comparisons.get() <= 20 * 1024, "{}", nodes.comparisons.get());
        is_in_order(&nodes, root, count);
        let mut comparisons = 0;
        for step in 0..count {
            nodes.comparisons.set(0);
            root = remove(&mut nodes, root, removal(step));
            comparisons += nodes.comparisons.get();
            if step % 64 == 0 {
                depth(&nodes, root);
                is_in_order(&nodes, root, count - step - 1);
            }
        }
        assert_eq!(root, NONE);
        assert!(comparisons <= 2 * 20 * 1024, "{comparisons}");
    }

    // Failed with: no tree; a list that was shifted at each load, 2 billion steps for 64,000
    // modules.
    #[test]
    fn tracker_trees_stay_shallow_in_any_order() {
        let mut keys = [0; 1024];
        let mut fill = |key: fn(u32) -> u32| {
            (0..).zip(&mut keys).for_each(|(index, slot)| *slot = key(index));
            keys
        };
        let (rising, falling) = (fill(|index| index), fill(|index| 1024 - index));
        let (mixed, equal) = (fill(|index| index.wrapping_mul(0x9e37_79b9) >> 7), fill(|_| 5));
        for keys in [rising, falling, mixed, equal] {
            check(&keys, |step| step);
            check(&keys, |step| 1023 - step);
            // Odd, so that each of the 1024 comes once.
            check(&keys, |step| step * 389 % 1024);
        }
    }
}
