//! Answers from the DWARF inside PE and Mach-O files.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use cairn_format::StatedAddress;

use super::{Bytes, FormatError};
use crate::Unknown;
use crate::dwarf::{self, DebugFiles, Engine};
use crate::elf::debug_object::DebugObject;
use crate::mapped_file::FileBytes;
use crate::source::FrameSink;

/// Debug information, parsed on first use.
pub(crate) struct ObjectDwarf {
    files: Arc<DebugFiles>,
    engine: OnceLock<Result<Engine, dwarf::DwarfError>>,
}

impl ObjectDwarf {
    /// Opens the debug information in `content`, a part of `bytes`. `None` if there is none.
    ///
    /// # Errors
    ///
    /// When a section's header is broken. Later damage shows on first use.
    pub(crate) fn new(
        path: &Path,
        bytes: &Bytes,
        content: &[u8],
        max_unpacked_bytes: Option<u64>,
    ) -> Result<Option<Self>, FormatError> {
        let start = (content.as_ptr() as usize).checked_sub(bytes.as_ptr() as usize);
        let start = start.ok_or("a program outside of its file")?;
        let part = FileBytes::Part(Arc::clone(bytes), start..start + content.len());
        let main =
            DebugObject::parse(path, part, max_unpacked_bytes).map_err(|problem| problem.to_string())?;
        if !main.has_debug_info() {
            return Ok(None);
        }
        // Split and shared debug information does not exist on these systems.
        let files = DebugFiles { main, supplement: None, package: None, find_split: Arc::new(|_| None) };
        Ok(Some(Self { files: Arc::new(files), engine: OnceLock::new() }))
    }

    /// Pushes the frames of an address; none if the debug information does not cover it.
    pub(crate) fn frames_at(&self, address: StatedAddress, out: &mut FrameSink) -> Result<(), Unknown> {
        let engine = self.engine.get_or_init(|| Engine::new(Arc::clone(&self.files)));
        let answered = match engine {
            Ok(engine) => engine.frames_at(address.value(), out),
            Err(problem) => Err(*problem),
        };
        answered.map_err(|problem| {
            out.clear();
            Unknown::Broken { problem: problem.to_string().into() }
        })
    }
}
