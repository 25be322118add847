//! Python frames of the threads of a process or a core file, put into their native stacks.
//!
//! ```no_run
//! use cairn_memory::process::{self, ThreadSource};
//! use cairn_memory::python::{MixedFrame, PythonFrames};
//!
//! process::while_stopped(1234, |process| {
//!     let python = PythonFrames::find(process);
//!     for thread in process.threads() {
//!         let Ok(registers) = &thread.registers else { continue };
//!         let stack = process.stack(registers, 1000);
//!         for frame in python.merge(process, thread, stack, 1000).frames {
//!             match frame {
//!                 MixedFrame::Native(native) => println!("{:?}", native.frame),
//!                 MixedFrame::Python(frame) => println!("{:?}", python.line(frame)),
//!             }
//!         }
//!     }
//! })?;
//! # Ok::<(), cairn_memory::process::Error>(())
//! ```
//!
//! ```text
//!   modules ---- exported symbols ----> _PyRuntime, version, layout, or a refusal   (interpreter)
//!   _PyRuntime -> interpreters -> thread states -> frames and marks                 (chain)
//!   frames -> code objects -> names, line tables                                    (code)
//!   marks in native frames -> one stack, innermost frame first                      (merge)
//! ```
//!
//! The offsets are those of [`cairn_unwind::python`], which the capture inside of a program uses as
//! well. A thread state belongs to the thread in whose native frames its marks lie, so numbers of
//! threads in containers and states of subinterpreters are no special cases.
//!
//! Images come from strangers. Every list has a bound, and the bytes of all names and line tables
//! together have one. Unreadable parts are notes on the stack or on the frame, never guesses.

mod chain;
mod code;
mod interpreter;
mod merge;
mod symbols;

use cairn_format::AbsoluteAddress;
use cairn_unwind::{AddressRange, MemoryReader};
use cairn_wire::python_lines::line_at;

use crate::process::{StopReason, ThreadFrame, ThreadRegisters, ThreadSource};
use chain::PythonChain;
use code::CodeReader;
use interpreter::PythonInterpreter;

pub use code::PythonCode;
pub use interpreter::{PythonRefusal, PythonRefusalReason};

/// A frame of Python code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PythonFrame {
    /// Index of its code in [`PythonFrames::codes`]; `None` if its code object cannot be read.
    pub code: Option<u32>,
    /// The byte offset of its instruction; [`PythonFrame::NOT_BEGUN`] before the first one.
    pub offset: u32,
}

impl PythonFrame {
    /// The offset of a frame that has not begun.
    pub const NOT_BEGUN: u32 = u32::MAX;
}

/// A native frame, or one of Python code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MixedFrame {
    /// A native frame.
    Native(ThreadFrame),
    /// A Python frame, which the next native frame runs.
    Python(PythonFrame),
}

/// The stack of a thread, with its Python frames.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct MixedStack {
    /// Its frames, innermost first.
    pub frames: Vec<MixedFrame>,
    /// The reason why the native walk ended.
    pub stop: StopReason,
    /// Gaps in its Python frames.
    pub notes: Vec<PythonNote>,
}

/// A gap in the Python frames of a stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum PythonNote {
    /// When the thread is in an interpreter whose frames are not read.
    Refused(PythonRefusal),
    /// When the interpreter's list of frames could not be read to its end.
    Unreadable,
    /// When native frames do not say where these Python frames belong.
    ///
    /// They follow behind all native ones.
    Unplaced,
    /// When several interpreters of a version without marks run on the thread.
    SeveralInterpreters,
}

impl std::fmt::Display for PythonNote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Refused(refusal) => refusal.fmt(f),
            Self::Unreadable => f.write_str("Python frames are missing: the interpreter's list of them cannot be read"),
            Self::Unplaced => f.write_str(
                "the last Python frames could not be placed among the native ones, and follow behind them",
            ),
            Self::SeveralInterpreters => f.write_str(
                "no Python frames: several interpreters run on this thread, which this version does not tell apart",
            ),
        }
    }
}

/// The Python frames of all threads.
#[derive(Debug, Default)]
pub struct PythonFrames {
    interpreters: Vec<PythonInterpreter>,
    refused: Vec<(AddressRange, PythonRefusal)>,
    chains: Vec<PythonChain>,
    codes: Vec<PythonCode>,
}

impl PythonFrames {
    /// Reads the frames of all interpreters among the modules.
    #[must_use]
    pub fn find<S: ThreadSource>(source: &S) -> Self {
        let mut found = Self::default();
        let is_known_machine = source
            .threads()
            .iter()
            .all(|thread| !matches!(thread.registers, Ok(ThreadRegisters::Aarch64(_))));
        let words = Words(source.memory());
        let mut codes = CodeReader::default();
        let mut budget = chain::MAX_LINKS_OF_ALL;
        for (module, interpreter) in interpreter::find(source, is_known_machine) {
            let refusal = match interpreter {
                Err(refusal) => refusal,
                Ok(known) => {
                    let index = found.interpreters.len();
                    let chains = chain::read_all(&known, index, words, &mut codes, &mut budget);
                    if !codes.has_met_other_layout(index) {
                        found.chains.extend(chains);
                        found.interpreters.push(known);
                        continue;
                    }
                    PythonRefusal::new(known.version, PythonRefusalReason::OtherLayout)
                }
            };
            found.refused.push((module, refusal));
        }
        found.codes = codes.finish();
        found
    }

    /// Returns the code of all frames.
    #[must_use]
    pub fn codes(&self) -> &[PythonCode] {
        &self.codes
    }

    /// Returns the code of a frame, if it could be read.
    #[must_use]
    pub fn code(&self, frame: PythonFrame) -> Option<&PythonCode> {
        self.codes.get(frame.code? as usize)
    }

    /// Returns the line of a frame. `None` for an instruction without one, and where the line table
    /// is not in the image.
    #[must_use]
    pub fn line(&self, frame: PythonFrame) -> Option<u32> {
        self.code(frame)?.line_at(frame.offset)
    }
}

impl PythonCode {
    /// Returns the line of the instruction at a byte offset, if the image says it.
    #[must_use]
    pub fn line_at(&self, offset: u32) -> Option<u32> {
        let first_line = self.first_line?;
        let line = match offset {
            PythonFrame::NOT_BEGUN => Some(first_line),
            offset => line_at(self.format, first_line, self.line_table.as_deref()?, offset),
        };
        line.filter(|&line| line > 0)
    }
}

/// Words of a memory, little-endian.
#[derive(Debug)]
struct Words<'a, M>(&'a M);

impl<M> Clone for Words<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M> Copy for Words<'_, M> {}

impl<M: MemoryReader> Words<'_, M> {
    fn word(self, address: u64) -> Option<u64> {
        self.0.word64(AbsoluteAddress::new(address))
    }

    fn half(self, address: u64) -> Option<u32> {
        let mut bytes = [0; 4];
        self.0.read(AbsoluteAddress::new(address), &mut bytes)?;
        Some(u32::from_le_bytes(bytes))
    }

    fn byte(self, address: u64) -> Option<u8> {
        let mut byte = [0];
        self.0.read(AbsoluteAddress::new(address), &mut byte)?;
        Some(byte[0])
    }
}
