//! The offsets, by version.

use cairn_format::AbsoluteAddress;
use cairn_format::recording::{InterpreterState, LineTableFormat};

use crate::MemoryReader;

/// Fields of one interpreter's data, in bytes from the start of each structure.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// How the list of frames begins, and what marks the C frames that run them.
    pub chain: ChainKind,
    /// Thread state: the first step to the frames.
    pub state_frames: u64,
    /// Thread state: the structure at the end of the list of C frames, for 3.10 and 3.11.
    pub state_root: u64,
    /// Frame: its code; the low two bits may be a tag.
    pub frame_code: u64,
    /// Frame: the one outside of it.
    pub frame_previous: u64,
    /// Frame: the instruction, as [`ChainKind`] says.
    pub frame_instruction: u64,
    /// Frame: one byte; from 3 on it is no Python frame but a mark.
    pub frame_owner: u64,
    /// Code: the first instruction.
    pub code_start: u64,
    /// Code: the source file, a string.
    pub code_file: u64,
    /// Code: the plain name, a string.
    pub code_name: u64,
    /// Code: the qualified name; 0 where there is none, and the plain name is used.
    pub code_qualified_name: u64,
    /// Code: the first line, four bytes.
    pub code_first_line: u64,
    /// Code: the line table, a bytes object.
    pub code_lines: u64,
    /// Encoding of the line table.
    pub line_format: LineTableFormat,
    /// String: the data of a compact one in ASCII.
    pub ascii_data: u64,
    /// String: the data of another compact one, and the address of one that is not compact.
    pub compact_data: u64,
    /// Runtime: not 0 once an interpreter is being finalized.
    pub runtime_finalizing: u64,
}

/// The list of frames of a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChainKind {
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

/// Where an interpreter has its list of thread states, in bytes from the start of each structure.
///
/// A thread state has the next one of its interpreter; an interpreter has the next interpreter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ThreadListLayout {
    /// Runtime: the first interpreter.
    pub runtime_interpreters: u64,
    /// Interpreter: the next one.
    pub interpreter_next: u64,
    /// Interpreter: the first thread state.
    pub interpreter_threads: u64,
    /// Thread state: the next one.
    pub state_next: u64,
    /// Thread state: its thread, as `pthread_self` says it.
    pub state_thread_id: u64,
}

/// Object: its type.
pub const OBJECT_TYPE: u64 = 8;
/// Bytes object: its length.
pub const BYTES_LENGTH: u64 = 16;
/// Bytes object: its data.
pub const BYTES_DATA: u64 = 32;
/// String: its length, in characters.
pub const STRING_LENGTH: u64 = 16;
/// String: its state, four bytes of flags.
pub const STRING_STATE: u64 = 32;
/// Type: its name.
pub const TYPE_NAME: u64 = 24;
/// Type: the function that frees its objects.
pub const TYPE_DEALLOC: u64 = 48;

/// First value of a frame's owner that makes it a mark.
pub const FIRST_MARK_OWNER: u8 = 3;
/// Thread state of 3.10: the innermost `CFrame`.
pub const STATE_C_FRAME_3_10: u64 = 48;
/// `CFrame` of 3.10: the one outside of it.
pub const C_FRAME_PREVIOUS_3_10: u64 = 8;
/// `_PyCFrame` of 3.11: the innermost frame that it runs.
pub const C_FRAME_CURRENT_3_11: u64 = 8;
/// `_PyCFrame` of 3.11: the one outside of it.
pub const C_FRAME_PREVIOUS_3_11: u64 = 16;
/// `_PyCFrame` of 3.12: the innermost frame that it runs.
pub const C_FRAME_CURRENT_3_12: u64 = 0;
/// `_PyCFrame` of 3.12: the one outside of it.
pub const C_FRAME_PREVIOUS_3_12: u64 = 8;
/// Frame object of 3.10: the depth of its stack of values, four bytes; -1 while it runs.
pub const STACK_DEPTH_3_10: u64 = 80;
/// Frame object of 3.10: its generator, if it has one.
pub const GENERATOR_3_10: u64 = 88;

/// Longer lists of frames are taken for damage; 2^20. The interpreter limits recursion to 1000
/// frames unless the program raises that.
pub const MAX_LINKS: usize = 1 << 20;

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

const THREADS_3_8: ThreadListLayout = ThreadListLayout {
    runtime_interpreters: 32,
    interpreter_next: 0,
    interpreter_threads: 8,
    state_next: 8,
    state_thread_id: 176,
};

const THREADS_3_11: ThreadListLayout = ThreadListLayout {
    runtime_interpreters: 40,
    interpreter_threads: 16,
    state_thread_id: 152,
    ..THREADS_3_8
};

const THREADS_3_12: ThreadListLayout =
    ThreadListLayout { interpreter_threads: 72, state_thread_id: 136, ..THREADS_3_11 };

/// Where `_Py_DebugOffsets` of one minor version stores each offset.
struct PublishedOffsets {
    minor: u64,
    free_threaded: u64,
    runtime_finalizing: u64,
    runtime_interpreters: u64,
    interpreter_next: u64,
    interpreter_threads: u64,
    state_next: u64,
    state_thread_id: u64,
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
        runtime_interpreters: 40,
        interpreter_next: 64,
        interpreter_threads: 72,
        state_next: 168,
        state_thread_id: 192,
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
        runtime_interpreters: 40,
        interpreter_next: 64,
        interpreter_threads: 72,
        state_next: 192,
        state_thread_id: 216,
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
        runtime_interpreters: 40,
        interpreter_next: 64,
        interpreter_threads: 72,
        state_next: 192,
        state_thread_id: 240,
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

/// No structure is as large as this, except runtime and interpreter.
const MOST_BYTES: u64 = 1 << 12;
/// No runtime or interpreter is as large as this.
const MOST_RUNTIME_BYTES: u64 = 1 << 24;

impl Layout {
    /// Returns the layout of the interpreter whose `_PyRuntime` lies at `runtime`. `version` is
    /// `PY_VERSION_HEX`.
    ///
    /// # Errors
    ///
    /// Why frames of this interpreter are not read.
    pub fn of(version: u32, runtime: u64, memory: &impl MemoryReader) -> Result<Self, InterpreterState> {
        match (version >> 24, version >> 16 & 0xff) {
            (3, 8 | 9) => Ok(OBJECTS_3_8),
            (3, 10) => Ok(OBJECTS_3_10),
            (3, 11) => Ok(FRAMES_3_11),
            (3, 12) => Ok(FRAMES_3_12),
            (3, minor) => Published::find(version, minor, runtime, memory)?.layout(),
            _ => Err(InterpreterState::UnknownVersion),
        }
    }
}

impl ThreadListLayout {
    /// Returns the layout of the list of threads, as [`Layout::of`] does of the frames.
    ///
    /// # Errors
    ///
    /// Why frames of this interpreter are not read.
    pub fn of(version: u32, runtime: u64, memory: &impl MemoryReader) -> Result<Self, InterpreterState> {
        match (version >> 24, version >> 16 & 0xff) {
            (3, 8..=10) => Ok(THREADS_3_8),
            (3, 11) => Ok(THREADS_3_11),
            (3, 12) => Ok(THREADS_3_12),
            (3, minor) => Published::find(version, minor, runtime, memory)?.thread_list(),
            _ => Err(InterpreterState::UnknownVersion),
        }
    }
}

/// The published offsets of an interpreter.
struct Published<'a, M> {
    places: &'static PublishedOffsets,
    runtime: u64,
    memory: &'a M,
}

impl<'a, M: MemoryReader> Published<'a, M> {
    fn find(version: u32, minor: u32, runtime: u64, memory: &'a M) -> Result<Self, InterpreterState> {
        let places = PUBLISHED.iter().find(|places| places.minor == u64::from(minor));
        let published = Self { places: places.ok_or(InterpreterState::UnknownVersion)?, runtime, memory };
        if published.read(0)? != COOKIE || published.read(8)? != u64::from(version) {
            return Err(InterpreterState::OtherLayout);
        }
        if published.read(published.places.free_threaded)? != 0 {
            return Err(InterpreterState::FreeThreaded);
        }
        Ok(published)
    }

    fn read(&self, place: u64) -> Result<u64, InterpreterState> {
        let address = AbsoluteAddress::new(self.runtime.wrapping_add(place));
        self.memory.word64(address).ok_or(InterpreterState::OtherLayout)
    }

    fn below(&self, most: u64, place: u64) -> Result<u64, InterpreterState> {
        let offset = self.read(place)?;
        if offset < most { Ok(offset) } else { Err(InterpreterState::OtherLayout) }
    }

    fn layout(&self) -> Result<Layout, InterpreterState> {
        let places = self.places;
        let fixed = [
            (places.object_type, OBJECT_TYPE),
            (places.type_name, TYPE_NAME),
            (places.bytes_length, BYTES_LENGTH),
            (places.bytes_data, BYTES_DATA),
            (places.string_state, STRING_STATE),
            (places.string_length, STRING_LENGTH),
        ];
        for (place, expected) in fixed {
            if self.read(place)? != expected {
                return Err(InterpreterState::OtherLayout);
            }
        }
        /// Bytes of a compact string that is not ASCII alone: length and address of its UTF-8.
        const UTF8_BYTES: u64 = 16;
        let offset = |place: u64| self.below(MOST_BYTES, place);
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
            runtime_finalizing: self.below(MOST_RUNTIME_BYTES, places.runtime_finalizing)?,
        })
    }

    fn thread_list(&self) -> Result<ThreadListLayout, InterpreterState> {
        let places = self.places;
        Ok(ThreadListLayout {
            runtime_interpreters: self.below(MOST_RUNTIME_BYTES, places.runtime_interpreters)?,
            interpreter_next: self.below(MOST_RUNTIME_BYTES, places.interpreter_next)?,
            interpreter_threads: self.below(MOST_RUNTIME_BYTES, places.interpreter_threads)?,
            state_next: self.below(MOST_BYTES, places.state_next)?,
            state_thread_id: self.below(MOST_BYTES, places.state_thread_id)?,
        })
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::*;
    use crate::SliceMemory;

    const RUNTIME: u64 = 0x1000;

    /// The published offsets of a made-up 3.13, with other values at some places.
    fn published(version: u32, changes: &[(usize, u64)]) -> Vec<u8> {
        let mut words = [0_u64; 128];
        words[0] = COOKIE;
        words[1] = version.into();
        for (place, value) in [(360, 8), (376, 24), (520, 16), (528, 32), (544, 32), (552, 16), (560, 40)] {
            words[place / 8] = value;
        }
        for &(place, value) in changes {
            words[place / 8] = value;
        }
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn state(version: u32, changes: &[(usize, u64)]) -> Option<InterpreterState> {
        let bytes = published(version, changes);
        let memory = SliceMemory::new(AbsoluteAddress::new(RUNTIME), &bytes);
        let state = Layout::of(version, RUNTIME, &memory).err();
        let of_threads = ThreadListLayout::of(version, RUNTIME, &memory).err();
        if state != Some(InterpreterState::OtherLayout) {
            assert_eq!(state, of_threads);
        }
        state
    }

    #[test]
    fn python_versions_in_no_table_are_refused() {
        for version in [0x0207_12f0, 0x0307_10f0, 0x0310_00f0, 0x0400_00f0, 0] {
            assert_eq!(state(version, &[]), Some(InterpreterState::UnknownVersion), "{version:x}");
        }
        for version in [0x0308_12f0, 0x0309_12f0, 0x030a_0df0, 0x030b_07f0, 0x030c_01f0, 0x030d_00f0] {
            assert_eq!(state(version, &[]), None, "{version:x}");
        }
    }

    #[test]
    fn python_builds_without_a_global_lock_are_refused() {
        assert_eq!(state(0x030d_00f0, &[(16, 1)]), Some(InterpreterState::FreeThreaded));
    }

    #[test]
    fn python_offsets_that_differ_are_refused() {
        for (place, value) in [(360, 24), (544, 48), (240, 1 << 12), (528, 40), (0, 1)] {
            assert_eq!(state(0x030d_00f0, &[(place, value)]), Some(InterpreterState::OtherLayout));
        }
        let other = published(0x030d_05f0, &[]);
        let memory = SliceMemory::new(AbsoluteAddress::new(RUNTIME), &other);
        assert_eq!(Layout::of(0x030d_00f0, RUNTIME, &memory).err(), Some(InterpreterState::OtherLayout));
    }
}
