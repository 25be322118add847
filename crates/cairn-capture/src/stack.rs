//! A captured stack: a number, and the frames behind it.

use cairn_format::Frame;
use cairn_unwind::StopReason;

use crate::process::PROCESS;
use crate::tree::StackId;

/// A call stack of this process. It is a number; the frames lie in tables that last as long as the process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Stack {
    id: StackId,
}

impl Stack {
    /// The stack with this number, which came from this process.
    #[must_use]
    pub const fn from_id(id: StackId) -> Self {
        Self { id }
    }

    /// Its number.
    #[must_use]
    pub const fn id(self) -> StackId {
        self.id
    }

    /// The frames, innermost first. Any encoder of `cairn-format` takes them as they are.
    #[must_use]
    pub fn frames(self) -> Frames {
        let node = if self.id == StackId::LOST { 0 } else { self.id.number() };
        Frames { node, stop: None }
    }

    /// Why the stack ends where it ends: [`StopReason::EndOfStack`] when it was followed to the start of its thread.
    #[must_use]
    pub fn stop_reason(self) -> StopReason {
        let mut frames = self.frames();
        frames.by_ref().for_each(drop);
        frames.stop_reason()
    }
}

/// Iterates over the frames of a stack, innermost first.
#[derive(Clone, Debug)]
pub struct Frames {
    node: u32,
    stop: Option<StopReason>,
}

impl Frames {
    /// Once the iterator has ended: why the stack ends there.
    #[must_use]
    pub fn stop_reason(&self) -> StopReason {
        self.stop.unwrap_or(StopReason::EndOfStack)
    }
}

impl Iterator for Frames {
    type Item = Frame;

    fn next(&mut self) -> Option<Frame> {
        if self.node == 0 {
            return None;
        }
        let words = PROCESS.tree.words();
        let entry = PROCESS.pcs.entries().get(words.pc(self.node) as usize)?;
        self.node = words.parent(self.node);
        match entry.meaning() {
            Ok(frame) => Some(frame),
            Err(reason) => {
                self.stop = Some(reason);
                self.node = 0;
                None
            }
        }
    }
}

impl core::iter::FusedIterator for Frames {}
