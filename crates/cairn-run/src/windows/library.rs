//! The recording library for Windows: carried inside this crate, written where the loader finds it.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::{env, process};

use cairn_files::Directory;

use crate::content::{hash, holds};

#[cfg(has_library)]
const BYTES: &[u8] = include_bytes!(env!("CAIRN_HOOKS_LIBRARY"));
/// Empty, because this build has none.
#[cfg(not(has_library))]
const BYTES: &[u8] = &[];

/// The library as a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Library {
    path: PathBuf,
}

impl Library {
    /// Writes the library into `%LOCALAPPDATA%\cairn\library`, unless it is there.
    ///
    /// Its name has a hash of its content. Other users have no access to that directory.
    ///
    /// # Errors
    ///
    /// When it cannot be written, and in builds without a library.
    pub fn unpack() -> io::Result<Self> {
        if BYTES.is_empty() {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "this cairn was built without the library for recording on Windows",
            ));
        }
        let local = env::var_os("LOCALAPPDATA").filter(|path| !path.is_empty()).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::NotFound,
                "LOCALAPPDATA names no directory; set it to one of your own",
            )
        })?;
        let directory = std::path::absolute(local)?.join("cairn").join("library");
        let path = unpack_into(&directory, BYTES)
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", directory.display())))?;
        Ok(Self { path })
    }

    /// Returns its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn unpack_into(directory: &Path, content: &[u8]) -> io::Result<PathBuf> {
    let name = format!("cairn_hooks-{:016x}.dll", hash(content));
    let path = directory.join(&name);
    let name = OsStr::new(&name);
    let directory = Directory::private(directory)?;
    let is_there = || directory.read_own(name).and_then(|file| holds(file, content)).unwrap_or(false);
    if is_there() {
        return Ok(path);
    }
    // Written beside its place and renamed: a loader finds it complete.
    let fresh = OsString::from(format!("{}.{}.tmp", name.display(), process::id()));
    let written = directory.create_new(&fresh).and_then(|mut file| file.write_all(content));
    let renamed = written.and_then(|()| directory.rename(&fresh, name));
    if let Err(error) = renamed {
        let _ = directory.remove(&fresh);
        // Another process may have written it meanwhile, and has it loaded.
        return if is_there() { Ok(path) } else { Err(error) };
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn library_is_replaced_if_its_file_has_other_content() {
        let directory = env::temp_dir().join(format!("cairn-library-{}", process::id()));
        let path = unpack_into(&directory, b"content").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"content");
        fs::write(&path, "other").unwrap();
        assert_eq!(unpack_into(&directory, b"content").unwrap(), path);
        assert_eq!(fs::read(&path).unwrap(), b"content");
        assert_ne!(unpack_into(&directory, b"newer").unwrap(), path);
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 2, "something is left behind");
        fs::remove_dir_all(directory).unwrap();
    }
}
