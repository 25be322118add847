//! The stacks that blocks refer to, each stored once.

use std::collections::HashMap;

use cairn_format::Frame;

/// Stacks by number. Number 0 is the unknown stack.
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
    /// Returns the number of a stack, innermost frame first.
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

    /// Returns a stack's frames as stored: after the real ones, heapprof blocks have zeros or
    /// remains.
    #[must_use]
    pub fn raw(&self, number: u32) -> &[Frame] {
        self.stacks.get(number as usize).map_or(&[], |frames| frames)
    }

    /// Returns the frames of a stack, innermost first, up to the first zero.
    #[must_use]
    pub fn frames(&self, number: u32) -> &[Frame] {
        let raw = self.raw(number);
        let is_zero = |frame: &Frame| frame.address().is_some_and(|address| address.value() == 0);
        let end = raw.iter().position(is_zero).unwrap_or(raw.len());
        raw.get(..end).unwrap_or_default()
    }

    /// Returns the number of stacks, including the unknown one.
    #[must_use]
    pub fn len(&self) -> usize {
        self.stacks.len()
    }

    /// Always false: the unknown stack is always present.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }
}
