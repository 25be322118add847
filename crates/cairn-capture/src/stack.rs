//! A captured stack: a number, and the frames behind it.

use cairn_format::Frame;
use cairn_unwind::StopReason;

use crate::process::PROCESS;
use crate::text::{self, WriteError};
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

    /// The frames, and [`Frame::Truncated`] behind them when the stack goes on but could not be followed: what a reader
    /// of a wire format has to know as well.
    ///
    /// ```
    /// let stack = cairn_capture::capture();
    /// assert!(stack.marked_frames().eq(stack.frames()));
    /// ```
    pub fn marked_frames(self) -> impl Iterator<Item = Frame> + Clone {
        let is_cut = self.id == StackId::LOST || self.stop_reason() != StopReason::EndOfStack;
        self.frames().chain(is_cut.then_some(Frame::Truncated))
    }

    /// Writes the stack as text into a file descriptor, from anywhere, signal handlers included: a line for each frame
    /// with its address, the module and the address there, as `addr2line -e module` takes it. Recursion is folded.
    ///
    /// ```text
    /// #0  0x000055f2b4a0716c /usr/bin/prog+0x116c
    /// #1  0x00007f0f7f2461ca /lib/x86_64-linux-gnu/libc.so.6+0x271ca
    /// ```
    ///
    /// Modules are those that are loaded now: where one was unloaded since the capture, its lines name what lies there
    /// today.
    ///
    /// # Errors
    ///
    /// [`WriteError`] when the descriptor takes no more.
    ///
    /// ```
    /// cairn_capture::capture().write_text(2)?;
    /// # Ok::<(), cairn_capture::WriteError>(())
    /// ```
    pub fn write_text(self, descriptor: i32) -> Result<(), WriteError> {
        text::write(self, descriptor)
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
