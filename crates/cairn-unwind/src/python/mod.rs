//! Where CPython has its frames: which words of a process's memory lead from the interpreter to the
//! Python functions that each thread runs.
//!
//! ```
//! use cairn_format::AbsoluteAddress;
//! use cairn_unwind::SliceMemory;
//! use cairn_unwind::python::{ChainKind, Layout};
//!
//! // Up to 3.12 the version alone decides, and no memory is read.
//! let memory = SliceMemory::new(AbsoluteAddress::new(0), &[]);
//! let layout = Layout::of(0x030b_07f0, 0x1000, &memory)?;
//! assert_eq!(layout.chain, ChainKind::CFrames);
//! # Ok::<(), cairn_format::recording::InterpreterState>(())
//! ```
//!
//! ```text
//!   _PyRuntime -> interpreters -> thread states -> frames -> code objects -> file, name, line table
//! ```
//!
//! The capture inside of a program begins at the state of its own thread; a reader of a stopped
//! process or a core file begins at `_PyRuntime`. Both use the offsets of this module, so that each
//! is written down once. The offsets of 3.8 to 3.12 were measured, and are constant within a minor
//! version. From 3.13 on the interpreter publishes most of them (`_Py_DebugOffsets`, at the start
//! of `_PyRuntime`), in a structure whose own layout is fixed for each minor version. A version
//! that is in no table is refused: nothing is guessed.

mod layout;
mod text;

pub use layout::{
    BYTES_DATA, BYTES_LENGTH, C_FRAME_CURRENT_3_11, C_FRAME_CURRENT_3_12, C_FRAME_PREVIOUS_3_10,
    C_FRAME_PREVIOUS_3_11, C_FRAME_PREVIOUS_3_12, ChainKind, FIRST_MARK_OWNER, GENERATOR_3_10, Layout,
    MAX_LINKS, OBJECT_TYPE, STACK_DEPTH_3_10, STATE_C_FRAME_3_10, STRING_LENGTH, STRING_STATE, TYPE_DEALLOC,
    TYPE_NAME, ThreadListLayout,
};
pub use text::copy_text;
