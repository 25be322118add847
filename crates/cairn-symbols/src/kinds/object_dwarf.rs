//! The DWARF inside of PE and Mach-O files.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use cairn_format::StatedAddress;

use super::{Bytes, Problem};
use crate::Unknown;
use crate::dwarf::{self, DebugFiles, Engine};
use crate::elf::debug_object::DebugObject;
use crate::mapped_file::FileBytes;
use crate::source::FrameSink;

/// Debug information that is read when it is asked for.
pub(crate) struct ObjectDwarf {
    files: Arc<DebugFiles>,
    engine: OnceLock<Result<Engine, dwarf::Problem>>,
}

impl ObjectDwarf {
    /// The debug information in `content`, which is a part of the file's bytes. `None` when there is none.
    ///
    /// # Errors
    ///
    /// When a section is broken from the start. What is broken later shows when it is asked for.
    pub(crate) fn new(
        path: &Path,
        bytes: &Bytes,
        content: &[u8],
        max_unpacked_bytes: Option<u64>,
    ) -> Result<Option<Self>, Problem> {
        let start = (content.as_ptr() as usize).checked_sub(bytes.as_ptr() as usize);
        let start = start.ok_or("a program outside of its file")?;
        let part = FileBytes::Part(Arc::clone(bytes), start..start + content.len());
        let main =
            DebugObject::parse(path, part, max_unpacked_bytes).map_err(|problem| problem.to_string())?;
        if !main.has_debug_info() {
            return Ok(None);
        }
        // Nothing splits its debug information on these systems, or shares it between files.
        let files = DebugFiles { main, supplement: None, package: None, find_split: Arc::new(|_| None) };
        Ok(Some(Self { files: Arc::new(files), engine: OnceLock::new() }))
    }

    /// Pushes the frames of an address. No frame when the debug information does not cover it.
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
