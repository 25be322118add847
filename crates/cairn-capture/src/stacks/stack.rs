//! Captured stacks: their numbers, and the frames that a number refers to.

use cairn_format::Frame;
use cairn_unwind::StopReason;

use crate::stacks::pcs::Meaning;
use crate::stacks::process::process;
use crate::stacks::text::{self, WriteError};

/// Number of a call stack: a node of the calling-context tree.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(transparent)]
pub struct StackId(u32);

impl StackId {
    /// The stack without frames.
    pub const EMPTY: Self = Self(0);
    /// Identifies a stack that was not stored, for lack of memory. The loss is counted.
    pub const LOST: Self = Self(u32::MAX);

    /// The number.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }

    /// The stack of this number, for numbers that come through C, a file or a pipe. `None` when no
    /// stack of this process has it.
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
        (id == Self::EMPTY || id == Self::LOST || process().tree.has_node(number)).then_some(id)
    }

    pub(crate) const fn from_node(node: u32) -> Self {
        Self(node)
    }
}

/// A call stack of this process: a number. Its frames are in tables that last as long as the
/// process.
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

    /// The frames, followed by [`Frame::Truncated`] when the stack could not be followed to its
    /// end. Readers of a wire format need to know that as well.
    ///
    /// ```
    /// let stack = cairn_capture::capture();
    /// assert!(stack.marked_frames().eq(stack.frames()));
    /// ```
    pub fn marked_frames(self) -> impl Iterator<Item = Frame> + Clone {
        let is_cut = self.id == StackId::LOST || self.stop_reason() != StopReason::EndOfStack;
        self.frames().chain(is_cut.then_some(Frame::Truncated))
    }

    /// Writes the stack as text to a file descriptor.
    ///
    /// Each frame takes a line with its address, its module and the address in the module's file,
    /// as `addr2line -e module` accepts it. Recursion is folded. Safe to call from anywhere, signal
    /// handlers included.
    ///
    /// ```text
    /// #0  0x000055f2b4a0716c /usr/bin/prog+0x116c
    /// #1  0x00007f0f7f2461ca /lib/x86_64-linux-gnu/libc.so.6+0x271ca
    /// ```
    ///
    /// The modules are those that are loaded now. If a module was unloaded since the capture, its
    /// lines name the module that is loaded there at present, if any.
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

    /// Returns the reason why the stack ends. It is [`StopReason::EndOfStack`] when the stack was
    /// followed to the start of its thread.
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
    /// The reason why the stack ends, once the iterator has ended.
    #[must_use]
    pub fn stop_reason(&self) -> StopReason {
        self.stop.unwrap_or(StopReason::EndOfStack)
    }
}

impl Iterator for Frames {
    type Item = Frame;

    fn next(&mut self) -> Option<Frame> {
        let process = process();
        let words = process.tree.words();
        while self.node != 0 {
            let entry = process.pcs.entries().get(words.pc(self.node) as usize)?;
            self.node = words.parent(self.node);
            match entry.meaning() {
                Meaning::Frame(frame) => return Some(frame),
                // It has no address: only recordings have such frames.
                Meaning::Interpreted(_) => {}
                Meaning::End(reason) => {
                    self.stop = Some(reason);
                    self.node = 0;
                }
            }
        }
        None
    }
}

impl core::iter::FusedIterator for Frames {}
