//! The encoder's memory: which prefixes have a code by now, and the longest of them that a path
//! starts with.
//!
//! All prefixes that one path assigns are cuts of one text, its string data: `/opt`, `/opt/tools`,
//! `/opt/tools/x64`. So one slot per *path* holds them all, and the text itself stays in the
//! caller's images.
//!
//! String data is written only when no known prefix fits. Hence its first component (`/opt`) is new
//! every time and can be the key of its slot. A path that starts with any known prefix starts with
//! such a key, and the longest such key leads to the longest prefix: keys hold no separator but as
//! first byte, so of two that fit only the longer can go on after one. The search is therefore:
//! the longest key, then as far along the text of its slot as the two agree.
//!
//! The keys form a digital search tree: every node is a slot, and a node at depth `d` sends a key
//! left or right by its bit `d`. A byte counts as nine bits. The first bit is 1 if there is a byte;
//! a 0 ends the key:
//!
//! ```text
//!                /opt         depth 0: is there a first byte?
//!                    \
//!                    /home    depth 1: its top bit ('/' is 0010 1111)
//!                    /
//!                 /srv        depth 2 ...
//! ```
//!
//! A search passes at most one node per bit of the path's first component, however many images
//! there are. A hash table does that on average only, and a plain list, as the reference has it,
//! makes the time grow with the square of the number of images.

use super::prefixes::{FIRST_ASSIGNED_CODE, FIXED_PREFIXES, is_separator};
use cairn_format::Module;

/// Working memory of [`encode`](super::encode()): what it remembers of one path.
#[derive(Clone, Copy, Debug)]
pub struct EncoderSlot {
    image: u32,
    /// Where the string data begins in the path of the image.
    start: u32,
    /// Length of the first component of the string data.
    key_length: u32,
    /// The code of the first component. Each further component has the next one.
    first_code: u32,
    children: [u32; 2],
}

// A few hundred images must fit on a small stack.
const _: () = assert!(size_of::<EncoderSlot>() == 24);

impl EncoderSlot {
    /// A slot that holds nothing, to fill an array or vector with.
    pub const EMPTY: Self =
        Self { image: 0, start: 0, key_length: 0, first_code: 0, children: [Self::NO_CHILD; 2] };

    const NO_CHILD: u32 = u32::MAX;
}

/// A known prefix that a path starts with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct KnownPrefix {
    pub(super) code: u64,
    pub(super) length: usize,
}

pub(super) struct KnownPrefixes<'a> {
    images: &'a [Module<'a>],
    slots: &'a mut [EncoderSlot],
    used: u32,
    next_code: u64,
}

impl<'a> KnownPrefixes<'a> {
    pub(super) fn new(images: &'a [Module<'a>], slots: &'a mut [EncoderSlot]) -> Self {
        Self { images, slots, used: 0, next_code: FIRST_ASSIGNED_CODE }
    }

    /// Returns the longest known prefix that `rest` starts with. Boundaries of components do not
    /// matter: `/lib` fits `/library`.
    pub(super) fn longest(&self, rest: &[u8]) -> Option<KnownPrefix> {
        // Two of equal length would be the same text, and a text that starts with a known prefix
        // gets no second code.
        match (longest_fixed(rest), self.longest_assigned(rest)) {
            (Some(fixed), Some(assigned)) if fixed.length > assigned.length => Some(fixed),
            (fixed, assigned) => assigned.or(fixed),
        }
    }

    /// Gives codes to the prefixes of the string data that begins at `start` in the path of this
    /// image.
    ///
    /// Without a free slot the codes are assigned, because the reader counts them, but not
    /// remembered.
    pub(super) fn assign(&mut self, image: usize, start: usize) {
        let text = self.text(image, start);
        let Some(key_length) = first_separator(text) else { return };
        let first_code = self.next_code;
        let count = text.iter().skip(key_length).filter(|&&byte| is_separator(byte)).count();
        self.next_code = self.next_code.saturating_add(count as u64);
        self.remember(image, start, key_length, first_code);
    }

    /// Puts a slot into the tree, unless the slots are used up or a number needs more than 32 bits.
    fn remember(&mut self, image: usize, start: usize, key_length: usize, first_code: u64) -> Option<()> {
        let slot = EncoderSlot {
            image: image.try_into().ok()?,
            start: start.try_into().ok()?,
            key_length: key_length.try_into().ok()?,
            first_code: first_code.try_into().ok()?,
            children: [EncoderSlot::NO_CHILD; 2],
        };
        let new = self.used;
        *self.slots.get_mut(new as usize)? = slot;
        self.used = new.checked_add(1)?;

        let (mut at, mut depth) = (0, 0);
        while at != new {
            let side = usize::from(bit(self.key(&slot), depth));
            let child = self.slots.get_mut(at as usize)?.children.get_mut(side)?;
            if *child == EncoderSlot::NO_CHILD {
                *child = new;
            }
            at = *child;
            depth += 1;
        }
        Some(())
    }

    fn longest_assigned(&self, rest: &[u8]) -> Option<KnownPrefix> {
        let mut best: Option<&EncoderSlot> = None;
        let mut next = self.slot(0);
        let mut depth = 0;
        while let Some(node) = next {
            best = self.longer_fit(best, node, rest);
            let [ends_here, _] = node.children;
            if depth % BITS_PER_BYTE == 0 {
                // `rest` takes this turn only where it ends itself, but the key that ends here is a
                // cut of it.
                if let Some(ending) = self.slot(ends_here) {
                    best = self.longer_fit(best, ending, rest);
                }
            }
            let side = usize::from(bit(rest, depth));
            next = node.children.get(side).and_then(|&child| self.slot(child));
            depth += 1;
        }
        best.map(|slot| self.along(slot, rest))
    }

    /// `candidate` if its key begins `rest` and is longer than that of `best`.
    fn longer_fit<'s>(
        &self,
        best: Option<&'s EncoderSlot>,
        candidate: &'s EncoderSlot,
        rest: &[u8],
    ) -> Option<&'s EncoderSlot> {
        let longer = best.is_none_or(|best| best.key_length < candidate.key_length);
        if longer && rest.starts_with(self.key(candidate)) { Some(candidate) } else { best }
    }

    /// Returns the longest prefix in this slot, of whose key `rest` is known to start with.
    fn along(&self, slot: &EncoderSlot, rest: &[u8]) -> KnownPrefix {
        let text = self.text(slot.image as usize, slot.start as usize);
        let key_length = slot.key_length as usize;
        let common = text.iter().zip(rest).take_while(|(left, right)| left == right).count();
        let mut found = KnownPrefix { code: u64::from(slot.first_code), length: key_length };
        for (at, &byte) in text.iter().enumerate().take(common.saturating_add(1)).skip(key_length + 1) {
            if is_separator(byte) {
                found.code += 1;
                found.length = at;
            }
        }
        found
    }

    /// Returns a slot in use. The others may hold what an earlier map left.
    fn slot(&self, index: u32) -> Option<&EncoderSlot> {
        self.slots.get(..self.used as usize)?.get(index as usize)
    }

    fn key(&self, slot: &EncoderSlot) -> &'a [u8] {
        let text = self.text(slot.image as usize, slot.start as usize);
        text.get(..slot.key_length as usize).unwrap_or_default()
    }

    fn text(&self, image: usize, start: usize) -> &'a [u8] {
        let path = self.images.get(image).and_then(|image| image.path);
        path.and_then(|path| path.get(start..)).unwrap_or_default()
    }
}

fn longest_fixed(rest: &[u8]) -> Option<KnownPrefix> {
    (0..).zip(FIXED_PREFIXES).filter(|(_, prefix)| rest.starts_with(prefix)).fold(
        None,
        |best, (code, prefix)| {
            let found = KnownPrefix { code, length: prefix.len() };
            Some(best.filter(|best: &KnownPrefix| best.length >= found.length).unwrap_or(found))
        },
    )
}

/// Where the first prefix of string data ends: at a separator other than its first byte.
fn first_separator(text: &[u8]) -> Option<usize> {
    text.iter().skip(1).position(|&byte| is_separator(byte)).map(|position| position + 1)
}

/// "There is a byte" and its eight bits.
const BITS_PER_BYTE: usize = 9;

fn bit(key: &[u8], depth: usize) -> bool {
    let byte = key.get(depth / BITS_PER_BYTE);
    match depth % BITS_PER_BYTE {
        0 => byte.is_some(),
        place => byte.is_some_and(|byte| byte << (place - 1) & 0x80 != 0),
    }
}
