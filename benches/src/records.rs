//! Encoded records, one after the other in one piece of memory.

use cairn_format::{Sink, SinkFull};

use crate::corpus::{Stack, Stacks};

/// Many encoded stacks and where each ends.
#[derive(Clone, Default)]
pub(crate) struct Records {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Records {
    /// Returns one record for each stack.
    pub(crate) fn of(stacks: &Stacks, encode: impl Fn(Stack<'_>, &mut GrowingSink<'_>)) -> Self {
        let mut records = Self::default();
        for stack in stacks.iter() {
            records.push(|sink| encode(stack, sink));
        }
        records
    }

    /// Appends one record that `encode` writes.
    pub(crate) fn push(&mut self, encode: impl FnOnce(&mut GrowingSink<'_>)) {
        encode(&mut GrowingSink(&mut self.bytes));
        self.ends.push(self.bytes.len());
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let mut start = 0;
        self.ends.iter().map(move |&end| {
            let record = &self.bytes[start..end];
            start = end;
            record
        })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes.len()
    }
}

/// A sink without end.
pub(crate) struct GrowingSink<'a>(pub(crate) &'a mut Vec<u8>);

impl Sink for GrowingSink<'_> {
    fn put(&mut self, bytes: &[u8]) -> Result<(), SinkFull> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }
}
