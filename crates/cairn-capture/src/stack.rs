//! A captured stack: a number, and the frames behind it.

use cairn_format::Frame;

use crate::pcs::StopMark;
use crate::process::PROCESS;
use crate::tree::StackId;

/// A call stack of this process.
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

    /// Its number. Equal stacks have equal numbers.
    #[must_use]
    pub const fn id(self) -> StackId {
        self.id
    }

    /// The frames, innermost first; after them [`Frame::Truncated`] when the stack could not be followed to its start.
    pub fn frames(self) -> impl Iterator<Item = Frame> {
        let words = PROCESS.tree.words();
        let pcs = PROCESS.pcs.entries();
        let mut node = self.id.number();
        core::iter::from_fn(move || {
            if node == 0 || node == StackId::LOST.number() {
                return None;
            }
            let number = words.pc(node);
            node = words.parent(node);
            if StopMark::from_number(number).is_some() {
                return Some(Frame::Truncated);
            }
            Some(pcs.get(number as usize)?.frame())
        })
    }
}
