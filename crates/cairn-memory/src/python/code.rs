//! Copies what names the frames of code objects.

use std::collections::HashMap;

use cairn_format::AbsoluteAddress;
use cairn_format::recording::{LineTableFormat, MAX_CODE_NAME_BYTES};
use cairn_unwind::MemoryReader;
use cairn_unwind::python::{BYTES_DATA, BYTES_LENGTH, OBJECT_TYPE, copy_text};

use super::Words;
use super::interpreter::PythonInterpreter;

/// Longer line tables are left out; 1 MiB. A file of a hundred thousand lines of data has less.
const MAX_TABLE_BYTES: u64 = 1 << 20;
/// Maximum bytes of all names and line tables; 256 MiB, more than the code of any program has.
const MAX_ALL_BYTES: usize = 256 << 20;

/// The code of a Python function. A part is `None` if it is not in the image.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PythonCode {
    /// The source file, as the interpreter names it.
    pub file: Option<Vec<u8>>,
    /// The function; qualified where the interpreter knows that.
    pub name: Option<Vec<u8>>,
    /// The line that the line table begins with.
    pub first_line: Option<u32>,
    /// Encoding of the line table.
    pub format: LineTableFormat,
    /// The line table.
    pub line_table: Option<Vec<u8>>,
}

impl PythonCode {
    /// The name of a function whose name is not in the image.
    pub const NO_NAME: &'static str = "[Python function without a readable name]";
    /// The name of a function whose code object cannot be read.
    pub const NO_CODE: &'static str = "[Python function without readable code]";
    /// The gap of a frame whose code object cannot be read.
    pub const UNREADABLE: &'static str = "its code object cannot be read";

    /// Explains what the image does not have of this code.
    #[must_use]
    pub fn gap(&self) -> Option<&'static str> {
        match (&self.name, &self.file, &self.line_table) {
            (Some(_), Some(_), Some(_)) => None,
            (None, ..) => Some("its name is not in the memory"),
            (_, None, _) => Some("its file's name is not in the memory"),
            (.., None) => Some("its line table is not in the memory"),
        }
    }
}

/// A code object, as frames refer to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ReadCode {
    /// Index of its contents.
    Contents(u32),
    /// When the interpreter made it up; its frames are not shown.
    Artificial,
    /// When it is no code object, or is not in the image.
    Unreadable,
}

#[derive(Default)]
pub(super) struct CodeReader {
    known: HashMap<u64, ReadCode>,
    codes: Vec<PythonCode>,
    used_bytes: usize,
    /// By interpreter: how many objects were code, and how many were something else.
    met: HashMap<usize, (u64, u64)>,
}

impl CodeReader {
    /// Reads the code object at `address`, once.
    pub(super) fn read<M: MemoryReader>(
        &mut self,
        address: u64,
        interpreter: &PythonInterpreter,
        index: usize,
        words: Words<'_, M>,
    ) -> ReadCode {
        if let Some(&known) = self.known.get(&address) {
            return known;
        }
        let met = self.met.entry(index).or_default();
        let is_code = words
            .word(address.wrapping_add(OBJECT_TYPE))
            .map(|object_type| object_type == interpreter.code_type);
        let code = match is_code {
            Some(true) => {
                met.0 += 1;
                self.describe(address, interpreter, words)
            }
            Some(false) => {
                met.1 += 1;
                ReadCode::Unreadable
            }
            None => ReadCode::Unreadable,
        };
        self.known.insert(address, code);
        code
    }

    /// True if no code object was one: the interpreter has another layout than its version should
    /// have.
    pub(super) fn has_met_other_layout(&self, interpreter: usize) -> bool {
        self.met.get(&interpreter).is_some_and(|&(code, other)| code == 0 && other > 0)
    }

    pub(super) fn finish(self) -> Vec<PythonCode> {
        self.codes
    }

    fn describe<M: MemoryReader>(
        &mut self,
        address: u64,
        interpreter: &PythonInterpreter,
        words: Words<'_, M>,
    ) -> ReadCode {
        let layout = &interpreter.layout;
        let word = |offset: u64| words.word(address.wrapping_add(offset));
        let (file, plain_name) = (word(layout.code_file), word(layout.code_name));
        // The code of a frame that cleans up behind `__init__`: one string serves as both.
        if file.is_some() && file == plain_name {
            return ReadCode::Artificial;
        }
        let name = match layout.code_qualified_name {
            0 => plain_name,
            place => word(place),
        };
        let text = |object: Option<u64>| {
            let mut bytes = vec![0; MAX_CODE_NAME_BYTES];
            let length = copy_text(object?, layout, words.0, &mut bytes)?;
            bytes.truncate(length);
            bytes.shrink_to_fit();
            Some(bytes)
        };
        let mut code = PythonCode {
            file: text(file),
            name: text(name),
            first_line: words.half(address.wrapping_add(layout.code_first_line)),
            format: layout.line_format,
            line_table: word(layout.code_lines).and_then(|table| bytes_object(table, words)),
        };
        let bytes = [&code.file, &code.name, &code.line_table].into_iter().flatten().map(Vec::len).sum();
        self.used_bytes = self.used_bytes.saturating_add(bytes);
        if self.used_bytes > MAX_ALL_BYTES {
            code = PythonCode { file: None, name: None, line_table: None, ..code };
        }
        self.codes.push(code);
        ReadCode::Contents((self.codes.len() - 1) as u32)
    }
}

fn bytes_object<M: MemoryReader>(object: u64, words: Words<'_, M>) -> Option<Vec<u8>> {
    let length = words.word(object.wrapping_add(BYTES_LENGTH)).filter(|&length| length <= MAX_TABLE_BYTES)?;
    let mut bytes = vec![0; usize::try_from(length).ok()?];
    words.0.read(AbsoluteAddress::new(object.wrapping_add(BYTES_DATA)), &mut bytes)?;
    Some(bytes)
}
