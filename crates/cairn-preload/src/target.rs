//! Decides whether the program of an `exec` can load this library.
//!
//! The loader of musl ends a program into which it cannot load this library, a loader for 32 bits
//! reports an error, and some sanitizers end the program unless they are the first library. So the
//! file is read as the kernel reads it: through scripts, to the loader and the needed libraries. A
//! file that cannot be read counts as one that can load the library.
//!
//! A program with more rights than its caller cannot: its loader ignores a library with a path, and
//! our variable must not direct it.
//!
//! May run in a child of `vfork`: it writes to its own stack only.

use core::ffi::{CStr, c_char, c_int};

use crate::environment;
use crate::program_file::{ReadAt, START_BYTES, interpreter, program_takes_library};
use crate::system::{self, ReadOnly};
use crate::text::Text;

/// Maximum bytes of a path that is followed.
const PATH_BYTES: usize = 512;
/// Maximum scripts that are interpreted by scripts; 5, as in the kernel.
const MAX_SCRIPTS: usize = 5;

/// Returns whether the program at `path` can load the library.
///
/// # Safety
///
/// The text ends with a NUL.
pub(crate) unsafe fn takes_library(path: *const c_char) -> bool {
    // SAFETY: the caller promises a text that ends with a NUL.
    unsafe { at_takes_library(libc::AT_FDCWD, path) }
}

/// The file at `path`, from an open directory.
///
/// # Safety
///
/// As for [`takes_library`].
pub(crate) unsafe fn at_takes_library(directory: c_int, path: *const c_char) -> bool {
    if path.is_null() {
        return true;
    }
    // SAFETY: the caller promises a text that ends with a NUL.
    let path = unsafe { CStr::from_ptr(path) };
    match ReadOnly::open(directory, path) {
        Some(file) => file_takes_library(&file),
        // Programs with more rights are often not readable.
        None => !system::raises_rights_at(directory, path, 0),
    }
}

/// Returns the same for the program that a shell finds by this name.
///
/// # Safety
///
/// As for [`takes_library`].
pub(crate) unsafe fn found_takes_library(name: *const c_char) -> bool {
    if name.is_null() {
        return true;
    }
    // SAFETY: the caller promises a text that ends with a NUL.
    let text = unsafe { CStr::from_ptr(name) };
    if text.to_bytes().contains(&b'/') {
        // SAFETY: the caller promises a text that ends with a NUL.
        return unsafe { takes_library(name) };
    }
    // SAFETY: the present environment, as the C library's function reads it.
    let directories = unsafe { environment::search_path(environment::current()) };
    for directory in directories.unwrap_or(b"/bin:/usr/bin").split(|byte| *byte == b':') {
        let mut path = Text::<PATH_BYTES>::new();
        path.push(if directory.is_empty() { b"." } else { directory });
        path.push(b"/");
        path.push(text.to_bytes());
        path.push(b"\0");
        let whole = CStr::from_bytes_with_nul(path.as_bytes()).ok().filter(|_| !path.is_cut());
        if let Some(whole) = whole
            && system::may_execute(whole)
        {
            // SAFETY: a text with a NUL.
            return unsafe { takes_library(whole.as_ptr()) };
        }
    }
    true
}

impl ReadAt for ReadOnly {
    fn read_at(&self, into: &mut [u8], at: u64) -> usize {
        self.read_at(into, at)
    }
}

/// Returns the same for an open file.
pub(crate) fn file_takes_library(file: &ReadOnly) -> bool {
    let mut start = [0; START_BYTES];
    let mut count = file.read_at(&mut start, 0);
    if !start.starts_with(b"#!") {
        return !file.raises_rights() && program_takes_library(file, &start);
    }
    for _ in 0..MAX_SCRIPTS {
        let mut path = Text::<{ START_BYTES + 1 }>::new();
        path.push(interpreter(start.get(..count).unwrap_or_default()));
        path.push(b"\0");
        let Ok(path) = CStr::from_bytes_with_nul(path.as_bytes()) else { return true };
        let Some(file) = ReadOnly::open(libc::AT_FDCWD, path) else {
            return !system::raises_rights_at(libc::AT_FDCWD, path, 0);
        };
        start = [0; START_BYTES];
        count = file.read_at(&mut start, 0);
        if !start.starts_with(b"#!") {
            return !file.raises_rights() && program_takes_library(&file, &start);
        }
    }
    true
}
