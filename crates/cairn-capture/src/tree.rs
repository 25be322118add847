//! The calling-context tree: every stack ever seen, as a path from a thread's start to a call. A node is a stack, and
//! its number is the [`StackId`].
//!
//! ```text
//! words:   | 0 | HEAD parent | pc | pc | pc | HEAD parent | pc | ...
//!                              ^    ^    ^ these three are nodes; the parent of a pc is the word before it,
//!                              |           or, behind a HEAD word, the node that the HEAD word names
//!                              a node's number is its index; node 0 is the root
//! ```
//!
//! A new stack shares the nodes of its callers and adds one *segment*: a HEAD word and its own frames, outermost first.
//! So a frame costs four bytes, and the walk from a stack outwards mostly runs through neighbouring words.
//!
//! Finding a child: it is the next word, or it begins a segment, and then an index of segments by (parent, first pc)
//! has it.
//!
//! Runs inside malloc and signal handlers: all is lock-free, and a thread stopped anywhere leaves nothing half done
//! that another thread could see. A segment becomes visible by one store into the index, after it is whole. When two
//! threads add the same segment at once one of them wins, and the words of the other are lost (a few bytes, rarely).

use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use crate::index::{Index, MIX};
use crate::process::PROCESS;
use crate::region::{Elements, Region};

/// Number of a call stack: a node of the calling-context tree.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(transparent)]
pub struct StackId(u32);

impl StackId {
    /// The stack without frames.
    pub const EMPTY: Self = Self(0);
    /// Given when there was no room to keep the stack. The loss is counted.
    pub const LOST: Self = Self(u32::MAX);

    /// The number.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }

    /// The stack of this number, where numbers have travelled as such: through C, a file, a pipe. `None` when this
    /// process has given no stack such a number.
    ///
    /// ```
    /// use cairn_capture::{StackId, capture};
    /// let id = capture().id();
    /// assert_eq!(StackId::from_number(id.number()), Some(id));
    /// assert_eq!(StackId::from_number(0x7fff_fff0), None);
    /// ```
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        let id = Self(number);
        (id == Self::EMPTY || id == Self::LOST || PROCESS.tree.has_node(number)).then_some(id)
    }

    pub(crate) const fn from_node(node: u32) -> Self {
        Self(node)
    }
}

/// Marks a word that begins a segment and names its parent.
const HEAD: u32 = 1 << 31;

/// How far below other mappings the words lie.
const DISTANCE: usize = 96 << 30;

/// See the module documentation.
pub(crate) struct Tree {
    words: Region<AtomicU32>,
    segments: Index,
    /// Told of each segment before anybody else can meet it.
    observer: Observer,
}

/// A function that may be set at any time, by any thread.
struct Observer(AtomicPtr<()>);

/// Takes the index of a segment's HEAD word and the number of its nodes.
pub(crate) type TellSegment = fn(u32, u32);

impl Observer {
    fn set(&self, tell: TellSegment) {
        self.0.store(tell as *mut (), Ordering::Release);
    }

    fn tell(&self, head: u32, nodes: u32) {
        let function = self.0.load(Ordering::Acquire);
        // SAFETY: null becomes `None`; `set` stores functions of this type alone.
        if let Some(tell) = unsafe { core::mem::transmute::<*mut (), Option<TellSegment>>(function) } {
            tell(head, nodes);
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
            words: Region::new(&[1 << 28, 1 << 25, 1 << 22, 1 << 18], DISTANCE),
            segments: Index::new(),
            observer: Observer(AtomicPtr::new(core::ptr::null_mut())),
        }
    }

    /// The word view that a walk outwards reads. Take it once for many steps.
    #[inline]
    pub(crate) fn words(&self) -> Words<'_> {
        Words(self.words.elements())
    }

    /// Unmaps everything. No stack has a number then.
    ///
    /// # Safety
    ///
    /// As [`Region::release`].
    pub(crate) unsafe fn release(&self) {
        // SAFETY: by contract.
        unsafe {
            self.segments.release();
            self.words.release();
        }
    }

    /// See [`crate::take_less_room`].
    pub(crate) fn shrink(&self, most_bytes: usize) {
        self.words.shrink(most_bytes);
    }

    /// Has every segment that is added from now on told to `tell`, which must be able to run wherever a capture can.
    pub(crate) fn observe(&self, tell: TellSegment) {
        self.observer.set(tell);
    }

    /// Bytes of memory in use.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.words.used() * size_of::<u32>() + self.segments.memory_bytes()
    }

    /// True for a word that was handed out and is no HEAD word. The words of a segment that another thread is just adding
    /// count as well; they belong to nobody yet and read as some stack or none.
    fn has_node(&self, number: u32) -> bool {
        number != 0 && (number as usize) < self.words.used() && self.words().at(number) & HEAD == 0
    }

    /// What stands at `index`; `None` where nothing was handed out yet.
    pub(crate) fn word(&self, index: u32) -> Option<Word> {
        if index == 0 || index as usize >= self.words.used() {
            return None;
        }
        let words = self.words();
        Some(match words.at_once(index) {
            0 => Word::Unfinished,
            word if word & HEAD != 0 => Word::Head,
            pc => match words.at_once(index - 1) {
                // Words are written in order, but a number from elsewhere may be of any place.
                0 => Word::Unfinished,
                _ => Word::Node { parent: words.parent(index), pc },
            },
        })
    }

    /// The child of `parent` that was called from `pc`, if it was seen before.
    #[inline]
    pub(crate) fn child(&self, parent: u32, pc: u32) -> Option<u32> {
        let words = self.words();
        if parent != 0 && words.at(parent + 1) == pc {
            return Some(parent + 1);
        }
        let head = self.segments.find(segment_hash(parent, pc), |head| words.is_segment(head, parent, pc))?;
        Some(head + 1)
    }

    /// The node reached from `parent` by calls from each of `pcs`, outermost first; made where it does not exist.
    ///
    /// # Errors
    ///
    /// [`TreeFull`] when memory ran out. What exists stays right.
    pub(crate) fn descend(
        &self,
        parent: u32,
        pcs: impl ExactSizeIterator<Item = u32> + Clone,
    ) -> Result<u32, TreeFull> {
        let mut parent = parent;
        let mut rest = pcs;
        loop {
            let here = rest.clone();
            let Some(pc) = rest.next() else { return Ok(parent) };
            let searched = self.segments.tables();
            parent = match self.child(parent, pc) {
                Some(child) => child,
                None => match self.add_segment(parent, pc, here, searched)? {
                    Added::Whole(node) => return Ok(node),
                    Added::CameSecond(child) => child,
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
        self.observer.tell(head, count);
        let hash = segment_hash(parent, first_pc);
        let winner = self
            .segments
            .insert(hash, head, searched, |other| words.is_segment(other, parent, first_pc))
            .map_err(|_| TreeFull)?;
        Ok(if winner == head { Added::Whole(head + count) } else { Added::CameSecond(winner + 1) })
    }
}

/// What a word of the tree is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Word {
    /// Some thread has taken it and not written it yet.
    Unfinished,
    /// It begins a segment.
    Head,
    /// It is a node.
    Node { parent: u32, pc: u32 },
}

/// What became of a new segment.
enum Added {
    /// It is in the tree; this is its innermost node.
    Whole(u32),
    /// Another thread added the same first frame before: this is its node.
    CameSecond(u32),
}

/// The words of a tree, for walks.
#[derive(Clone, Copy)]
pub(crate) struct Words<'a>(Elements<'a, AtomicU32>);

impl Words<'_> {
    /// The word at `index`. Reads past the end give 0, which is no node.
    #[inline]
    pub(crate) fn at(self, index: u32) -> u32 {
        // Relaxed is enough: an index reaches a thread through the segment index (acquire) or its own memory.
        self.0.get(index as usize).map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// As [`at`](Self::at), for an index that was guessed: what the word stands for is there when the word is.
    fn at_once(self, index: u32) -> u32 {
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

    fn is_segment(self, head: u32, parent: u32, first_pc: u32) -> bool {
        self.at(head) == HEAD | parent && self.at(head + 1) == first_pc
    }
}

fn segment_hash(parent: u32, pc: u32) -> u32 {
    let key = u64::from(parent) << 32 | u64::from(pc);
    (key.wrapping_mul(MIX) >> 32) as u32
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

    proptest! {
        #[test]
        fn equal_stacks_have_equal_numbers_and_come_back(
            stacks in prop::collection::vec(prop::collection::vec(1_u32..5, 0..12), 1..200),
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
    fn threads_that_add_the_same_stacks_agree() {
        let tree = Tree::new();
        let stack = |number: u32| [1 + number % 3, 1 + number % 7, 1 + number % 11, 1 + number % 13];
        let nodes: Vec<Vec<u32>> = std::thread::scope(|scope| {
            let run =
                || (0..3003).map(|number| tree.descend(0, stack(number).into_iter()).unwrap()).collect();
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(run)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        for number in 0..3003 {
            assert!(nodes.iter().all(|list| list[number as usize] == nodes[0][number as usize]));
            assert_eq!(pcs_of(&tree, nodes[0][number as usize]), stack(number));
        }
    }
}
