//! The calling-context tree: every stack ever captured, as a path from a thread's start to a call.
//! A node is a stack, and its number is the [`StackId`](crate::StackId).
//!
//! ```text
//! words:   | 0 | HEAD parent | pc | pc | pc | HEAD parent | pc | ...
//!                              ^    ^    ^ these three are nodes; the parent of a pc is the word before it,
//!                              |           or, behind a HEAD word, the node that the HEAD word names
//!                              a node's number is its index; node 0 is the root
//! ```
//!
//! A new stack shares the nodes of its callers and adds one *segment*: a HEAD word and its own
//! frames, outermost first. So a frame costs four bytes, and the walk from a stack outwards mostly
//! runs through neighbouring words.
//!
//! A child of a node is the next word, or the first node of another segment. An index finds
//! segments by (parent, first pc).
//!
//! The tree runs inside malloc and signal handlers: it is lock-free, and a thread that stops
//! anywhere leaves no partial state that another thread could see. A segment becomes visible by one
//! store into the index, once it is complete. When two threads add the same segment at once one of
//! them wins, and the words of the other are lost (rarely, and few bytes).

use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use crate::stacks::counters::{self, Counter};
use crate::stacks::index::{Index, MIX};
use crate::stacks::region::{Elements, Region};

/// Flag of a word that begins a segment and contains its parent.
const HEAD: u32 = 1 << 31;

/// Distance of the words below other mappings.
const DISTANCE_BYTES: usize = 96 << 30;

/// The calling-context tree.
pub(crate) struct Tree {
    words: Region<AtomicU32>,
    segments: Index,
    /// Called for each segment before any other thread can find it.
    observer: SegmentObserver,
}

/// A function that any thread may set at any time.
struct SegmentObserver(AtomicPtr<()>);

/// Takes the index of a segment's HEAD word and the number of its nodes.
pub(crate) type ObserveSegment = fn(u32, u32);

impl SegmentObserver {
    fn set(&self, observe: ObserveSegment) {
        self.0.store(observe as *mut (), Ordering::Release);
    }

    fn notify(&self, head: u32, nodes: u32) {
        let function = self.0.load(Ordering::Acquire);
        // SAFETY: null becomes `None`; any other value was stored by `set`, which takes functions
        // of this type alone.
        if let Some(observe) = unsafe { core::mem::transmute::<*mut (), Option<ObserveSegment>>(function) } {
            observe(head, nodes);
        }
    }
}

/// There is no memory for a further stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TreeFull;

impl Tree {
    pub(crate) const fn new() -> Self {
        // 1 GiB of address space holds a quarter of a billion frames.
        Self {
            words: Region::new(&[1 << 28, 1 << 25, 1 << 22, 1 << 18], DISTANCE_BYTES),
            segments: Index::new(),
            observer: SegmentObserver(AtomicPtr::new(core::ptr::null_mut())),
        }
    }

    /// The words, for a walk outwards. Take them once for many steps.
    #[inline]
    pub(crate) fn words(&self) -> Words<'_> {
        Words(self.words.elements())
    }

    /// Unmaps everything. No stack has a number then.
    ///
    /// # Safety
    ///
    /// - No other thread uses the tree meanwhile, and no [`Words`] are used afterwards.
    pub(crate) unsafe fn release(&self) {
        // SAFETY: the caller promises that nothing uses the index or the words.
        unsafe {
            self.segments.release();
            self.words.release();
        }
    }

    /// Limits the address space that the words take; see [`crate::take_less_room`].
    pub(crate) fn shrink(&self, most_bytes: usize) {
        self.words.shrink(most_bytes);
    }

    /// Calls `observe` for every segment that is added from now on. It must be able to run wherever
    /// a capture can.
    pub(crate) fn set_observer(&self, observe: ObserveSegment) {
        self.observer.set(observe);
    }

    /// Bytes of memory in use.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.words.used() * size_of::<u32>() + self.segments.memory_bytes()
    }

    /// True for a word that was allocated and is not a HEAD word. The words of a segment that
    /// another thread is adding count as well; they read as some stack or none.
    pub(crate) fn has_node(&self, number: u32) -> bool {
        number != 0 && (number as usize) < self.words.used() && self.words().at(number) & HEAD == 0
    }

    /// The word at `index`; `None` where none was allocated yet.
    pub(crate) fn word(&self, index: u32) -> Option<TreeWord> {
        if index == 0 || index as usize >= self.words.used() {
            return None;
        }
        let words = self.words();
        Some(match words.acquire(index) {
            0 => TreeWord::Unfinished,
            word if word & HEAD != 0 => TreeWord::Head,
            pc => match words.acquire(index - 1) {
                // Words are written in order, but a number from outside this process may refer to
                // any of them.
                0 => TreeWord::Unfinished,
                _ => TreeWord::Node { parent: words.parent(index), pc },
            },
        })
    }

    /// The child of `parent` that was called from `pc`, if there is one.
    #[inline]
    pub(crate) fn child(&self, parent: u32, pc: u32) -> Option<u32> {
        let words = self.words();
        words.next(parent, pc).or_else(|| self.child_in_segment(words, parent, pc))
    }

    /// The child that is the first node of a segment.
    #[inline]
    fn child_in_segment(&self, words: Words<'_>, parent: u32, pc: u32) -> Option<u32> {
        counters::add(Counter::IndexLookups, 1);
        let head = self.segments.find_and_move(
            segment_hash(parent, pc),
            |head| words.is_segment(head, parent, pc),
            |head| words.hash_of_segment(head),
        )?;
        Some(head + 1)
    }

    /// The node reached from `parent` by calls from each of `pcs`, outermost first. Adds the nodes
    /// that do not exist.
    ///
    /// # Errors
    ///
    /// [`TreeFull`] when memory ran out. Existing nodes stay valid.
    pub(crate) fn descend(
        &self,
        parent: u32,
        pcs: impl ExactSizeIterator<Item = u32> + Clone,
    ) -> Result<u32, TreeFull> {
        let mut parent = parent;
        let mut rest = pcs;
        let words = self.words();
        loop {
            let here = rest.clone();
            let Some(pc) = rest.next() else { return Ok(parent) };
            // Most stacks that are new to a thread run through a few segments.
            if let Some(child) = words.next(parent, pc) {
                parent = child;
                continue;
            }
            let searched = self.segments.tables();
            // Asks for the next word again, because `words` may be older than the first segment.
            parent = match self.child(parent, pc) {
                Some(child) => child,
                None => match self.add_segment(parent, pc, here, searched)? {
                    Added::New(node) => return Ok(node),
                    Added::LostRace(child) => child,
                },
            };
        }
    }

    #[cold]
    fn add_segment(
        &self,
        parent: u32,
        first_pc: u32,
        pcs: impl ExactSizeIterator<Item = u32>,
        searched: usize,
    ) -> Result<Added, TreeFull> {
        let count = pcs.len();
        let head = self.words.take(count + 1).ok_or(TreeFull)?;
        let words = self.words();
        let (Ok(head), Ok(count)) = (u32::try_from(head), u32::try_from(count)) else { return Err(TreeFull) };
        words.set(head, HEAD | parent);
        for (word, pc) in (head + 1..).zip(pcs) {
            words.set(word, pc);
        }
        self.observer.notify(head, count);
        counters::add(Counter::NewSegments, 1);
        self.segments.move_one_bucket(|head| words.hash_of_segment(head));
        let hash = segment_hash(parent, first_pc);
        let winner = self
            .segments
            .insert(hash, head, searched, |other| words.is_segment(other, parent, first_pc))
            .map_err(|_| TreeFull)?;
        Ok(if winner == head { Added::New(head + count) } else { Added::LostRace(winner + 1) })
    }
}

/// A word of the tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TreeWord {
    /// When a thread has allocated it and not written it yet.
    Unfinished,
    /// When it begins a segment.
    Head,
    /// When it is a node.
    Node { parent: u32, pc: u32 },
}

/// The result of adding a segment.
enum Added {
    /// When it is in the tree; this is its innermost node.
    New(u32),
    /// When another thread added the same first frame before: this is its node.
    LostRace(u32),
}

/// The words of a tree, for walks.
#[derive(Clone, Copy)]
pub(crate) struct Words<'a>(Elements<'a, AtomicU32>);

impl Words<'_> {
    /// The word at `index`. Reads past the end give 0, which is not a node.
    #[inline]
    pub(crate) fn at(self, index: u32) -> u32 {
        // Relaxed is enough: an index reaches a thread through the segment index (acquire) or its
        // own memory.
        self.0.get(index as usize).map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// The child of `parent` that was called from `pc`, if that is the next word.
    #[inline(always)]
    fn next(self, parent: u32, pc: u32) -> Option<u32> {
        if parent == 0 || self.at(parent + 1) != pc {
            return None;
        }
        counters::add(Counter::NextWords, 1);
        Some(parent + 1)
    }

    /// Returns the word at `index`, for an index from any source. All memory that was written
    /// before the word is visible with it.
    fn acquire(self, index: u32) -> u32 {
        self.0.get(index as usize).map_or(0, |word| word.load(Ordering::Acquire))
    }

    fn set(self, index: u32, word: u32) {
        if let Some(slot) = self.0.get(index as usize) {
            slot.store(word, Ordering::Release);
        }
    }

    /// The pc number of `node`.
    #[inline]
    pub(crate) fn pc(self, node: u32) -> u32 {
        self.at(node)
    }

    /// The node of the caller; 0 at the outermost frame.
    #[inline]
    pub(crate) fn parent(self, node: u32) -> u32 {
        let before = self.at(node.wrapping_sub(1));
        if before & HEAD != 0 { before & !HEAD } else { node.wrapping_sub(1) }
    }

    /// The hash of the segment that begins at `head`.
    fn hash_of_segment(self, head: u32) -> u32 {
        segment_hash(self.at(head) & !HEAD, self.at(head + 1))
    }

    #[inline]
    fn is_segment(self, head: u32, parent: u32, first_pc: u32) -> bool {
        self.at(head) == HEAD | parent && self.at(head + 1) == first_pc
    }
}

#[inline]
fn segment_hash(parent: u32, pc: u32) -> u32 {
    // Mixed twice: the low bits of one product do not depend on the high bits of the parent.
    let key = (u64::from(parent) << 32 | u64::from(pc)).wrapping_mul(MIX);
    ((key ^ key >> 32).wrapping_mul(MIX) >> 32) as u32
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::collections::HashMap;
    use std::vec::Vec;

    use proptest::prelude::*;

    fn pcs_of(tree: &Tree, node: u32) -> Vec<u32> {
        let words = tree.words();
        let mut pcs = Vec::new();
        let mut node = node;
        while node != 0 {
            pcs.push(words.pc(node));
            node = words.parent(node);
        }
        pcs.reverse();
        pcs
    }

    /// Stacks of one property test; Miri takes long for each.
    const MAX_STACKS: usize = if cfg!(miri) { 6 } else { 200 };

    proptest! {
        #[test]
        fn equal_stacks_have_equal_nodes_and_read_back(
            stacks in prop::collection::vec(prop::collection::vec(1_u32..5, 0..12), 1..MAX_STACKS),
        ) {
            let tree = Tree::new();
            let mut seen = HashMap::new();
            for stack in &stacks {
                let node = tree.descend(0, stack.iter().copied()).unwrap();
                prop_assert_eq!(&pcs_of(&tree, node), stack);
                prop_assert_eq!(*seen.entry(stack.clone()).or_insert(node), node);
            }
            let distinct: std::collections::HashSet<_> = seen.values().collect();
            prop_assert_eq!(distinct.len(), seen.len());
        }
    }

    #[test]
    fn threads_that_add_equal_stacks_get_equal_nodes() {
        const COUNT: u32 = if cfg!(miri) { 40 } else { 3003 };
        let tree = Tree::new();
        let stack = |number: u32| [1 + number % 3, 1 + number % 7, 1 + number % 11, 1 + number % 13];
        let nodes: Vec<Vec<u32>> = std::thread::scope(|scope| {
            let run =
                || (0..COUNT).map(|number| tree.descend(0, stack(number).into_iter()).unwrap()).collect();
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(run)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        for number in 0..COUNT {
            assert!(nodes.iter().all(|list| list[number as usize] == nodes[0][number as usize]));
            assert_eq!(pcs_of(&tree, nodes[0][number as usize]), stack(number));
        }
    }
}
