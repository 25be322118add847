//! Opens the file that a user has named for output: a new one, or what is there already.

use std::fs::{self, File};
use std::io;
use std::path::{Component, Path, Prefix};

use super::names::{is_device, is_reserved};
use crate::{Directory, NewFile, Output};

/// As many links Windows follows.
const MAX_LINK_STEPS: usize = 63;

/// Opens `path` for output.
///
/// Devices (`NUL`, `CON`) and pipes (`\\.\pipe\name`) are written into. A link leads to its target.
/// Regular files must not be there, unless `replace` is set.
///
/// # Errors
///
/// [`AlreadyExists`](io::ErrorKind::AlreadyExists) for what only `replace` would write to,
/// [`InvalidInput`](io::ErrorKind::InvalidInput) for names such as `nul.txt`, which some versions
/// of Windows take for a device, and what the system says.
pub fn open_output(path: &Path, replace: bool) -> io::Result<Output> {
    if is_in_device_namespace(path) || path.file_name().is_some_and(is_device) {
        return File::options().write(true).open(path).map(Output::Stream);
    }
    if path.file_name().is_some_and(is_reserved) {
        let text = "Windows reserves this name for a device; choose another one";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    let mut path = path.to_owned();
    let mut through_link = false;
    for _ in 0..MAX_LINK_STEPS {
        let (directory, name) = Directory::of(&path)?;
        let metadata = match fs::symlink_metadata(directory.path().join(&name)) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // A link that leads nowhere exists as well.
                if through_link && !replace {
                    return Err(io::ErrorKind::AlreadyExists.into());
                }
                return NewFile::create_in(directory, name).map(Output::New);
            }
            Err(error) => return Err(error),
        };
        if metadata.is_symlink() {
            path = directory.path().join(fs::read_link(directory.path().join(&name))?);
            through_link = true;
        } else if metadata.is_dir() {
            return Err(io::ErrorKind::IsADirectory.into());
        } else if replace {
            return NewFile::create_in(directory, name).map(Output::New);
        } else {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "too many links"))
}

/// Opens a regular file that is there for reading and writing, and changes nothing of it. Links are
/// followed.
///
/// # Errors
///
/// [`InvalidInput`](io::ErrorKind::InvalidInput) when it is no regular file, and what the system
/// says.
pub fn open_existing(path: &Path) -> io::Result<File> {
    // Asked before: opening alone can have effects on a device.
    if fs::metadata(path)?.is_file() {
        let file = File::options().read(true).write(true).open(path)?;
        if file.metadata()?.is_file() {
            return Ok(file);
        }
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"))
}

/// Returns true for paths as `\\.\pipe\name`.
fn is_in_device_namespace(path: &Path) -> bool {
    match path.components().next() {
        Some(Component::Prefix(prefix)) => matches!(prefix.kind(), Prefix::DeviceNS(_)),
        _ => false,
    }
}
