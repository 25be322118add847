//! The stacks that blocks refer to, each stored once.

use std::collections::HashMap;

use cairn_format::Frame;

/// Stacks by number. Number 0 is the stack of which nothing is known.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BlockStacks {
    stacks: Vec<Box<[Frame]>>,
    numbers: HashMap<Box<[Frame]>, u32>,
}

impl Default for BlockStacks {
    fn default() -> Self {
        Self { stacks: vec![Box::default()], numbers: HashMap::from([(Box::default(), 0)]) }
    }
}

impl BlockStacks {
    /// The number of a stack, innermost frame first.
    pub(crate) fn number(&mut self, frames: &[Frame]) -> u32 {
        if let Some(&number) = self.numbers.get(frames) {
            return number;
        }
        let number = u32::try_from(self.stacks.len()).unwrap_or(0);
        if number != 0 {
            self.stacks.push(frames.into());
            self.numbers.insert(frames.into(), number);
        }
        number
    }

    /// The frames of a stack as they stand in memory: a heapprof block has zeros, or remains of earlier blocks, behind the
    /// real ones.
    #[must_use]
    pub fn raw(&self, number: u32) -> &[Frame] {
        self.stacks.get(number as usize).map_or(&[], |frames| frames)
    }

    /// The frames of a stack, innermost first, up to the first that is zero.
    #[must_use]
    pub fn frames(&self, number: u32) -> &[Frame] {
        let raw = self.raw(number);
        let is_zero = |frame: &Frame| frame.address().is_some_and(|address| address.value() == 0);
        let end = raw.iter().position(is_zero).unwrap_or(raw.len());
        raw.get(..end).unwrap_or_default()
    }

    /// How many stacks there are, the unknown one among them.
    #[must_use]
    pub fn len(&self) -> usize {
        self.stacks.len()
    }

    /// Never: the unknown stack is always there.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }
}
