//! The file that a command reads: a path, or `-` for standard input.

use std::fs::File;
use std::io::{self, IsTerminal, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use cairn_analysis::file_kind::{FileKind, WrongFile};

use super::family::{name_one_of, read_family};
use crate::output::max_unpacked_bytes;

/// Maximum bytes to read from a pipe; 8 GiB, the limit of unpacked cores.
///
/// An endless pipe must not fill the disk. `--max-unpacked` sets another limit.
const MOST_PIPED_BYTES: u64 = 8 << 30;

/// A file to read. Bytes of a pipe are in an unnamed file for as long as this lives, because most
/// formats are read more than once.
#[derive(Debug)]
pub(crate) struct InputFile {
    path: PathBuf,
    name: Option<String>,
    _copy: Option<File>,
}

impl InputFile {
    /// Opens the file that the user named; `-` is standard input.
    pub(crate) fn open(given: &Path) -> io::Result<Self> {
        if given == Path::new("-") {
            let stdin = io::stdin();
            if stdin.is_terminal() {
                let text = "standard input is a terminal; name a file, or pipe one in";
                return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
            }
            let name = "standard input".to_owned();
            return Self::copy(stdin.lock(), name);
        }
        if given.is_dir() {
            let family = read_family(given)?;
            return match family.members() {
                [only] => Ok(Self { path: given.join(&only.file), name: None, _copy: None }),
                _ => Err(io::Error::new(io::ErrorKind::IsADirectory, name_one_of(&family))),
            };
        }
        // A pipe, as the shell's <(command) is one. Missing files are for the reader to refuse.
        let is_pipe = is_pipe(given);
        if is_pipe {
            let name = given.display().to_string();
            let pipe = File::open(given).map_err(|error| named(&name, error))?;
            return Self::copy(pipe, name);
        }
        Ok(Self { path: given.to_owned(), name: None, _copy: None })
    }

    fn copy(input: impl Read, name: String) -> io::Result<Self> {
        let most = max_unpacked_bytes().unwrap_or(MOST_PIPED_BYTES);
        let (mut copy, path) = cairn_files::reopenable_file()?;
        let mut input = input.take(most.saturating_add(1));
        let copied = io::copy(&mut input, &mut copy).map_err(|error| named(&name, error))?;
        if copied > most {
            let why = format!(
                "{name}: more than {most} bytes; read a file, or raise the limit with --max-unpacked SIZE"
            );
            return Err(io::Error::other(why));
        }
        copy.flush()?;
        copy.seek(SeekFrom::Start(0))?;
        Ok(Self { path, name: Some(name), _copy: Some(copy) })
    }

    /// The path to open.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Makes an error of a message about this file, with the name that the user knows.
    pub(crate) fn error(&self, message: &dyn std::fmt::Display) -> io::Error {
        let message = message.to_string();
        io::Error::other(match &self.name {
            Some(name) => message.replace(&*self.path.to_string_lossy(), name),
            None => message,
        })
    }

    /// The name in messages, where that is not the path.
    pub(crate) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }
}

#[cfg(unix)]
fn is_pipe(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    path.metadata().is_ok_and(|facts| facts.file_type().is_fifo())
}

/// Pipes have names of their own on Windows: `\\.\pipe\name`.
#[cfg(windows)]
fn is_pipe(path: &Path) -> bool {
    path.to_string_lossy().to_ascii_lowercase().starts_with(r"\\.\pipe\")
}

/// Adds to an error of reading a file what the file is, unless it is of a kind that the command
/// reads.
pub(crate) fn with_kind(message: &dyn std::fmt::Display, path: &Path, reads: &[FileKind]) -> String {
    match FileKind::of_file(path) {
        Ok(kind) if kind != FileKind::Unknown && !reads.contains(&kind) => {
            let wrong = WrongFile { kind, inside: None };
            format!("{message}; the file is {wrong}")
        }
        // A missing file is explained by the error itself.
        _ => message.to_string(),
    }
}

fn named(name: &str, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{name}: {error}"))
}
