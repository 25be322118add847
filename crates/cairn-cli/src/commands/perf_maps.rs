//! Files with the names of generated code, that a user names or that lie beside a core file.

use std::io;
use std::path::{Path, PathBuf};

use cairn_recording::{CodePiece, code_file};

/// Reads perf maps and jitdumps.
///
/// # Errors
///
/// If one cannot be read; the message names it.
pub(super) fn read(paths: &[PathBuf]) -> io::Result<Vec<CodePiece>> {
    let mut pieces = Vec::new();
    for (number, path) in (0..).zip(paths) {
        let problem = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        pieces.extend(code_file(path, number).map_err(problem)?);
    }
    Ok(pieces)
}

/// Returns the files of a process that lie in the directory of its core file.
///
/// Those in `/tmp` are not searched: another process of this number may have written them since.
pub(super) fn beside(core: &Path, process: u32) -> Vec<PathBuf> {
    let directory = core.parent().unwrap_or(Path::new(""));
    let names = [format!("perf-{process}.map"), format!("jit-{process}.dump")];
    names.iter().map(|name| directory.join(name)).filter(|path| path.is_file()).collect()
}
