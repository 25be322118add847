//! The recording library for programs: carried inside this crate, unpacked where the loader finds
//! it.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::{env, fs, process};

use cairn_files::Directory;

use crate::content::{hash, holds};

#[cfg(has_library)]
const BYTES: &[u8] = include_bytes!(env!("CAIRN_PRELOAD_LIBRARY"));
/// The library for programs with another allocator.
#[cfg(has_library)]
const ALLOCATORS: &[u8] = include_bytes!(env!("CAIRN_PRELOAD_ALLOCATORS"));
/// The library that annotates blocks.
#[cfg(has_library)]
const ANNOTATE: &[u8] = include_bytes!(env!("CAIRN_PRELOAD_ANNOTATE"));
/// Empty, because there is no library for this processor.
#[cfg(not(has_library))]
const BYTES: &[u8] = &[];
/// Empty, because there is no library for this processor.
#[cfg(not(has_library))]
const ALLOCATORS: &[u8] = &[];
/// Empty, because there is no library for this processor.
#[cfg(not(has_library))]
const ANNOTATE: &[u8] = &[];

/// The library as a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Library {
    path: PathBuf,
}

impl Library {
    /// Puts the library into the user's cache directory, under a name with a hash of its content.
    /// Several versions live side by side, and a running program retains its own.
    ///
    /// Where there is no cache directory that no other user can write to or replace, or its path
    /// has a character that the loader takes for a separator, the directory is one below `/tmp`.
    ///
    /// # Errors
    ///
    /// When neither can be written to, and on processors without a library.
    pub fn unpack() -> io::Result<Self> {
        Self::unpack_bytes(BYTES, "libcairn_preload")
    }

    /// Returns the library for programs that use jemalloc, tcmalloc or mimalloc. It also interposes
    /// their own functions and `operator new`; see
    /// [`Program::uses_other_allocator`](crate::Program::uses_other_allocator).
    ///
    /// # Errors
    ///
    /// As [`unpack`](Self::unpack).
    pub fn unpack_for_allocators() -> io::Result<Self> {
        Self::unpack_bytes(ALLOCATORS, "libcairn_preload_allocators")
    }

    /// Returns the library that records nothing, and writes the allocating stack in front of every
    /// block.
    ///
    /// # Errors
    ///
    /// As [`unpack`](Self::unpack).
    pub fn unpack_for_annotation() -> io::Result<Self> {
        Self::unpack_bytes(ANNOTATE, "libcairn_annotate")
    }

    fn unpack_bytes(bytes: &[u8], stem: &str) -> io::Result<Self> {
        if bytes.is_empty() {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "this cairn has no library for recording: it has one on Linux with glibc, on x86-64 and AArch64",
            ));
        }
        let name = format!("{stem}-{:016x}.so", hash(bytes));
        let mut last = None;
        for directory in directories() {
            match unpack_into(&directory, &name, bytes) {
                Ok(path) => return Ok(Self { path }),
                Err(error) => {
                    last = Some(io::Error::new(error.kind(), format!("{}: {error}", directory.display())))
                }
            }
        }
        Err(last.unwrap_or_else(|| io::ErrorKind::NotFound.into()))
    }

    /// Returns its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Returns the directories where it may lie, best first.
fn directories() -> impl Iterator<Item = PathBuf> {
    let cache = env::var_os("XDG_CACHE_HOME")
        .filter(|path| !path.is_empty())
        .map(PathBuf::from)
        .or_else(|| env::var_os("HOME").map(|home| Path::new(&home).join(".cache")))
        .map(|cache| cache.join("cairn"));
    let shared = PathBuf::from(format!("/tmp/cairn-{}", cairn_files::effective_user()));
    cache.into_iter().chain([shared]).filter(|path| path.is_absolute() && is_one_word(path))
}

/// Returns whether the loader takes a path as that of one library, and not of several.
fn is_one_word(path: &Path) -> bool {
    !path.as_os_str().as_bytes().iter().any(|byte| matches!(byte, b':' | b' ' | b'$'))
}

fn unpack_into(directory: &Path, name: &str, content: &[u8]) -> io::Result<PathBuf> {
    // No other user can replace the directory, what is in it, or any directory above it. So the
    // file that is compared here, through its descriptor, is the one that the loader finds by the
    // path.
    let directory = Directory::private(directory)?;
    let path = directory.path().join(name);
    if !is_one_word(&path) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the loader does not take such a path"));
    }
    let name = OsStr::new(name);
    if directory.read_own(name).and_then(|file| holds(file, content)).unwrap_or(false) {
        return Ok(path);
    }
    // The file is written beside the place and then renamed: readers find it complete.
    let (fresh, mut file) = fresh_file(&directory, name)?;
    let written = file.write_all(content).and_then(|()| directory.rename(&fresh, name));
    if written.is_err() {
        let _ = directory.remove(&fresh);
    }
    written.map(|()| path)
}

/// Creates a file next to `name` that no other thread or process writes to. Another process may
/// have the same PID, in another container with the same cache directory.
fn fresh_file(directory: &Directory, name: &OsStr) -> io::Result<(OsString, fs::File)> {
    let mut number = 0_u32;
    loop {
        let mut fresh = name.to_owned();
        fresh.push(format!(".{}.{number}", process::id()));
        match directory.create_new_with_mode(&fresh, 0o755) {
            Ok(file) => return Ok((fresh, file)),
            // The file is another process's, or was left by a killed one.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && number < 1000 => number += 1,
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn library_is_whole_after_concurrent_unpacking() {
        let directory = env::temp_dir().join(format!("cairn-unpacked-{}", process::id()));
        let content: Vec<u8> = (0..100_000_u32).flat_map(u32::to_le_bytes).collect();
        for round in 0..20 {
            let name = format!("library-{round}.so");
            let unpack = || {
                let path = unpack_into(&directory, &name, &content).unwrap();
                assert!(fs::read(path).unwrap() == content, "it is there in parts");
            };
            std::thread::scope(|scope| (0..8).for_each(|_| drop(scope.spawn(unpack))));
        }
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 20, "something is left behind");
        fs::remove_dir_all(directory).unwrap();
    }

    /// The library came from a directory whose parents another user could replace. Its file was not
    /// ours.
    #[test]
    fn library_refuses_files_of_other_users() {
        use std::os::unix::fs::{PermissionsExt, chown, symlink};

        let directory = env::temp_dir().join(format!("cairn-library-{}", process::id()));
        let _ = fs::remove_dir_all(&directory);
        let own = directory.join("own");
        let path = unpack_into(&own, "library.so", b"content").unwrap();
        assert_eq!(path, fs::canonicalize(&own).unwrap().join("library.so"));
        let inode = || std::os::unix::fs::MetadataExt::ino(&fs::metadata(&path).unwrap());
        let first = inode();
        unpack_into(&own, "library.so", b"content").unwrap();
        assert_eq!(inode(), first, "it was there, and sound");
        // The content is right, but others can change it after it was compared.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
        unpack_into(&own, "library.so", b"content").unwrap();
        assert_ne!(inode(), first);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o022, 0);
        fs::remove_file(&path).unwrap();
        fs::write(directory.join("elsewhere.so"), b"content").unwrap();
        symlink(directory.join("elsewhere.so"), &path).unwrap();
        unpack_into(&own, "library.so", b"content").unwrap();
        assert!(fs::symlink_metadata(&path).unwrap().is_file());

        let theirs = directory.join("theirs");
        fs::create_dir(&theirs).unwrap();
        if chown(&theirs, Some(65534), None).is_ok() {
            let refused = unpack_into(&theirs.join("own"), "library.so", b"content").unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
            assert_eq!(fs::read_dir(&theirs).unwrap().count(), 0);
        } else {
            #[expect(clippy::print_stdout, reason = "a test says what it has skipped")]
            {
                println!("skipped: only root can give a directory to another user");
            }
        }
        fs::remove_dir_all(directory).unwrap();
    }
}
