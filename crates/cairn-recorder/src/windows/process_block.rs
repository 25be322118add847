//! Reads the process's environment block: its paths, its command line, its variables.
//!
//! The block lies at a place that the system has documented by its debuggers since Windows NT and
//! that all loaders and runtimes read. Functions of kernel32 for the same take locks or allocate.
//! A program may change its working directory and its variables meanwhile in another thread, so
//! that all is read as memory that may be unreadable.

use cairn_capture::environment::environment_word;
use cairn_capture::read_own_memory;

use super::calls::UnicodeString;
use super::text;

/// Place of the block's address in a thread's environment block.
const PROCESS_BLOCK: usize = 0x60;
/// Places in the block.
const PROGRAM_BASE: u64 = 0x10;
const LOADER_DATA: u64 = 0x18;
const PARAMETERS: u64 = 0x20;
/// Places in the parameters.
const WORKING_DIRECTORY: u64 = 0x38;
const PROGRAM: u64 = 0x60;
const COMMAND_LINE: u64 = 0x70;
const VARIABLES: u64 = 0x80;

fn word(address: u64) -> Option<u64> {
    let mut bytes = [0; 8];
    (read_own_memory(address, &mut bytes) == bytes.len()).then(|| u64::from_le_bytes(bytes))
}

fn in_block(place: u64) -> Option<u64> {
    // SAFETY: the place lies within the thread's block.
    word(unsafe { environment_word(PROCESS_BLOCK) } + place)
}

fn parameter(place: u64) -> Option<u64> {
    Some(in_block(PARAMETERS)? + place)
}

/// Returns the address at which the program begins.
pub(crate) fn program_base() -> Option<u64> {
    in_block(PROGRAM_BASE)
}

/// Returns the address of the loader's data.
pub(crate) fn loader_data() -> Option<u64> {
    in_block(LOADER_DATA)
}

/// Copies the text of a `UNICODE_STRING` as WTF-8.
fn string_at(address: Option<u64>, into: &mut [u8]) -> &[u8] {
    let length_and_text = address.and_then(|at| Some((word(at)? & 0xffff, word(at + 8)?)));
    let Some((bytes, from)) = length_and_text else { return &[] };
    text::to_bytes(Units::new(from, bytes / 2), into)
}

/// Copies a text as WTF-8.
pub(crate) fn copy(string: &UnicodeString, into: &mut [u8]) -> usize {
    text::to_bytes(Units::new(string.text as u64, u64::from(string.length / 2)), into).len()
}

/// Copies the program's path.
pub(crate) fn program(into: &mut [u8]) -> &[u8] {
    string_at(parameter(PROGRAM), into)
}

/// Copies the command line.
pub(crate) fn command_line(into: &mut [u8]) -> &[u8] {
    string_at(parameter(COMMAND_LINE), into)
}

/// Copies the working directory, without a separator at its end.
pub(crate) fn working_directory(into: &mut [u8]) -> &[u8] {
    let directory = string_at(parameter(WORKING_DIRECTORY), into);
    directory.strip_suffix(b"\\").unwrap_or(directory)
}

/// Calls `visit` with each variable, `NAME=VALUE`, in `room`, until it returns true.
pub(crate) fn variables(room: &mut [u8], mut visit: impl FnMut(&[u8]) -> bool) {
    /// Maximum units of all variables; 2^20, more than Windows allows.
    const MOST_UNITS: u64 = 1 << 20;
    let Some(from) = parameter(VARIABLES).and_then(word) else { return };
    let mut units = Units::new(from, MOST_UNITS);
    loop {
        let mut is_whole = false;
        let mut is_text = |unit: &u16| {
            is_whole = *unit == 0;
            !is_whole
        };
        let variable = text::to_bytes(units.by_ref().take_while(&mut is_text), room);
        if !is_whole {
            units.by_ref().find(|unit| *unit == 0);
        }
        // The last variable has a NUL behind its own one.
        if variable.is_empty() || visit(variable) {
            return;
        }
    }
}

/// UTF-16 units in memory that may be unreadable, read in pieces.
pub(crate) struct Units {
    from: u64,
    left: u64,
    piece: [u8; 128],
    used: usize,
    filled: usize,
}

impl Units {
    pub(crate) const fn new(from: u64, left: u64) -> Self {
        Self { from, left, piece: [0; 128], used: 0, filled: 0 }
    }
}

impl Iterator for Units {
    type Item = u16;

    fn next(&mut self) -> Option<u16> {
        self.left = self.left.checked_sub(1)?;
        if self.used >= self.filled {
            let wanted = self.piece.len().min((self.left as usize + 1).saturating_mul(2));
            self.filled = read_own_memory(self.from, self.piece.get_mut(..wanted)?) & !1;
            self.from += self.filled as u64;
            self.used = 0;
        }
        let pair = self.piece.get(..self.filled)?.get(self.used..)?.first_chunk()?;
        self.used += 2;
        Some(u16::from_le_bytes(*pair))
    }
}
