//! Where each version of CPython has the fields that lead from a thread to its frames.
//!
//! The offsets of 3.8 to 3.12 were measured, and are constant within a minor version. From 3.13 on
//! the interpreter publishes most of them (`_Py_DebugOffsets`, at the start of `_PyRuntime`), in a
//! structure whose own layout is fixed for each minor version. A version that is in no table is
//! refused: nothing is guessed.

use cairn_format::recording::{InterpreterState, LineTableFormat};

use super::memory::Words;

/// Fields of one interpreter's data, in bytes from the start of each structure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    /// How the list of frames begins, and what marks the C frames that run them.
    pub(crate) chain: ChainKind,
    /// Thread state: the first step to the frames.
    pub(crate) state_frames: u64,
    /// Thread state: the structure at the end of the list of C frames, for 3.10 and 3.11.
    pub(crate) state_root: u64,
    /// Frame: its code; the low two bits may be a tag.
    pub(crate) frame_code: u64,
    pub(crate) frame_previous: u64,
    /// Frame: the instruction, as [`ChainKind`] says.
    pub(crate) frame_instruction: u64,
    /// Frame: one byte; from 3 on it is no Python frame but a mark.
    pub(crate) frame_owner: u64,
    /// Code: the first instruction.
    pub(crate) code_start: u64,
    pub(crate) code_file: u64,
    pub(crate) code_name: u64,
    /// 0 where there is none: the plain name is used.
    pub(crate) code_qualified_name: u64,
    pub(crate) code_first_line: u64,
    pub(crate) code_lines: u64,
    pub(crate) line_format: LineTableFormat,
    /// String: the data of a compact one in ASCII, and of another compact one.
    pub(crate) ascii_data: u64,
    pub(crate) compact_data: u64,
    /// Runtime: not 0 once an interpreter is being finalized.
    pub(crate) runtime_finalizing: u64,
}

/// The list of frames of a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ChainKind {
    /// 3.8, 3.9: frame objects, each run by a call of the evaluation function.
    ///
    /// The instruction is a number of bytes.
    Objects,
    /// 3.10: frame objects, and a list of the C frames that run them.
    ///
    /// The instruction is a number of two bytes each.
    ObjectsAndCFrames,
    /// 3.11: frames, and a list of the C frames, each with the innermost of its Python frames.
    CFrames,
    /// 3.12: frames, in which marks lie on the C stack; reached by another structure.
    MarksBehindCFrame,
    /// 3.13 and later: frames, in which marks lie on the C stack.
    Marks,
}

/// Object: its type.
pub(super) const OBJECT_TYPE: u64 = 8;
/// Bytes object: length and data. String: length and state.
pub(super) const BYTES_LENGTH: u64 = 16;
pub(super) const BYTES_DATA: u64 = 32;
pub(super) const STRING_LENGTH: u64 = 16;
pub(super) const STRING_STATE: u64 = 32;
/// Type: its name, and the function that frees its objects.
pub(super) const TYPE_NAME: u64 = 24;
pub(super) const TYPE_DEALLOC: u64 = 48;

const OBJECTS_3_8: Layout = Layout {
    chain: ChainKind::Objects,
    state_frames: 24,
    state_root: 0,
    frame_code: 32,
    frame_previous: 24,
    frame_instruction: 104,
    frame_owner: 0,
    code_start: 0,
    code_file: 104,
    code_name: 112,
    code_qualified_name: 0,
    code_first_line: 40,
    code_lines: 120,
    line_format: LineTableFormat::Python38,
    ascii_data: 48,
    compact_data: 72,
    runtime_finalizing: 16,
};

const OBJECTS_3_10: Layout = Layout {
    chain: ChainKind::ObjectsAndCFrames,
    state_frames: 24,
    state_root: 264,
    frame_instruction: 96,
    line_format: LineTableFormat::Python310,
    ..OBJECTS_3_8
};

const FRAMES_3_11: Layout = Layout {
    chain: ChainKind::CFrames,
    state_frames: 56,
    state_root: 336,
    frame_code: 32,
    frame_previous: 48,
    frame_instruction: 56,
    frame_owner: 69,
    code_start: 184,
    code_file: 112,
    code_name: 120,
    code_qualified_name: 128,
    code_first_line: 72,
    code_lines: 136,
    line_format: LineTableFormat::Python311,
    ascii_data: 48,
    compact_data: 72,
    runtime_finalizing: 24,
};

const FRAMES_3_12: Layout = Layout {
    chain: ChainKind::MarksBehindCFrame,
    state_root: 0,
    frame_code: 0,
    frame_previous: 8,
    frame_owner: 70,
    code_start: 192,
    code_first_line: 68,
    ascii_data: 40,
    compact_data: 56,
    ..FRAMES_3_11
};

/// Where `_Py_DebugOffsets` of one minor version stores each offset.
struct PublishedOffsets {
    minor: u64,
    free_threaded: u64,
    runtime_finalizing: u64,
    state_current_frame: u64,
    frame_previous: u64,
    frame_executable: u64,
    frame_instruction: u64,
    frame_owner: u64,
    code_file: u64,
    code_name: u64,
    code_qualified_name: u64,
    code_lines: u64,
    code_first_line: u64,
    code_start: u64,
    object_type: u64,
    type_name: u64,
    bytes_length: u64,
    bytes_data: u64,
    string_state: u64,
    string_length: u64,
    ascii_data: u64,
}

const PUBLISHED: [PublishedOffsets; 3] = [
    PublishedOffsets {
        minor: 13,
        free_threaded: 16,
        runtime_finalizing: 32,
        state_current_frame: 184,
        frame_previous: 232,
        frame_executable: 240,
        frame_instruction: 248,
        frame_owner: 264,
        code_file: 280,
        code_name: 288,
        code_qualified_name: 296,
        code_lines: 304,
        code_first_line: 312,
        code_start: 344,
        object_type: 360,
        type_name: 376,
        bytes_length: 520,
        bytes_data: 528,
        string_state: 544,
        string_length: 552,
        ascii_data: 560,
    },
    PublishedOffsets {
        minor: 14,
        free_threaded: 16,
        runtime_finalizing: 32,
        state_current_frame: 208,
        frame_previous: 256,
        frame_executable: 264,
        frame_instruction: 272,
        frame_owner: 288,
        code_file: 320,
        code_name: 328,
        code_qualified_name: 336,
        code_lines: 344,
        code_first_line: 352,
        code_start: 384,
        object_type: 408,
        type_name: 424,
        bytes_length: 600,
        bytes_data: 608,
        string_state: 624,
        string_length: 632,
        ascii_data: 640,
    },
    PublishedOffsets {
        minor: 15,
        free_threaded: 16,
        runtime_finalizing: 32,
        state_current_frame: 208,
        frame_previous: 320,
        frame_executable: 328,
        frame_instruction: 336,
        frame_owner: 352,
        code_file: 384,
        code_name: 392,
        code_qualified_name: 400,
        code_lines: 408,
        code_first_line: 416,
        code_start: 448,
        object_type: 472,
        type_name: 488,
        bytes_length: 696,
        bytes_data: 704,
        string_state: 720,
        string_length: 728,
        ascii_data: 736,
    },
];

/// First eight bytes of `_PyRuntime` where offsets are published.
const COOKIE: u64 = u64::from_le_bytes(*b"xdebugpy");

/// Returns the layout of the interpreter whose `_PyRuntime` lies at `runtime`. `version` is
/// `PY_VERSION_HEX`.
pub(super) fn layout_of(version: u32, runtime: u64, memory: &impl Words) -> Result<Layout, InterpreterState> {
    let (major, minor) = (version >> 24, version >> 16 & 0xff);
    match (major, minor) {
        (3, 8 | 9) => Ok(OBJECTS_3_8),
        (3, 10) => Ok(OBJECTS_3_10),
        (3, 11) => Ok(FRAMES_3_11),
        (3, 12) => Ok(FRAMES_3_12),
        (3, minor) => published_layout(version, minor.into(), runtime, memory),
        _ => Err(InterpreterState::UnknownVersion),
    }
}

fn published_layout(
    version: u32,
    minor: u64,
    runtime: u64,
    memory: &impl Words,
) -> Result<Layout, InterpreterState> {
    let places =
        PUBLISHED.iter().find(|places| places.minor == minor).ok_or(InterpreterState::UnknownVersion)?;
    let read = |place: u64| memory.word(runtime.wrapping_add(place)).ok_or(InterpreterState::OtherLayout);
    if read(0)? != COOKIE || read(8)? != u64::from(version) {
        return Err(InterpreterState::OtherLayout);
    }
    if read(places.free_threaded)? != 0 {
        return Err(InterpreterState::FreeThreaded);
    }
    // No structure is as large as this, except the runtime.
    const MOST_BYTES: u64 = 1 << 12;
    let offset = |place: u64| Ok(read(place)?).and_then(|offset| bounded(offset, MOST_BYTES));
    let fixed = [
        (places.object_type, OBJECT_TYPE),
        (places.type_name, TYPE_NAME),
        (places.bytes_length, BYTES_LENGTH),
        (places.bytes_data, BYTES_DATA),
        (places.string_state, STRING_STATE),
        (places.string_length, STRING_LENGTH),
    ];
    for (place, expected) in fixed {
        if read(place)? != expected {
            return Err(InterpreterState::OtherLayout);
        }
    }
    /// Bytes that a compact string has only if it is not ASCII: length and address of its UTF-8.
    const UTF8_BYTES: u64 = 16;
    let ascii_data = offset(places.ascii_data)?;
    Ok(Layout {
        chain: ChainKind::Marks,
        state_frames: offset(places.state_current_frame)?,
        state_root: 0,
        frame_code: offset(places.frame_executable)?,
        frame_previous: offset(places.frame_previous)?,
        frame_instruction: offset(places.frame_instruction)?,
        frame_owner: offset(places.frame_owner)?,
        code_start: offset(places.code_start)?,
        code_file: offset(places.code_file)?,
        code_name: offset(places.code_name)?,
        code_qualified_name: offset(places.code_qualified_name)?,
        code_first_line: offset(places.code_first_line)?,
        code_lines: offset(places.code_lines)?,
        line_format: LineTableFormat::Python311,
        ascii_data,
        compact_data: ascii_data + UTF8_BYTES,
        runtime_finalizing: bounded(read(places.runtime_finalizing)?, 1 << 24)?,
    })
}

fn bounded(offset: u64, most: u64) -> Result<u64, InterpreterState> {
    if offset < most { Ok(offset) } else { Err(InterpreterState::OtherLayout) }
}
