//! Files, by system calls that allocate nothing, and the mappings of their parts.
//!
//! Paths are absolute WTF-8 (`os::push_directory` makes them so). The kernel takes them with a
//! prefix, without `.`, `..` and slashes; [`KernelPath`] is that.

use core::ffi::{CStr, c_char, c_void};
use core::ptr;

use super::calls::{
    FileInformation, GetFileInformationByHandle, IoStatus, NtClose, NtCreateFile, NtCreateSection,
    NtFlushBuffersFile, NtMapViewOfSection, NtReadFile, NtSetInformationFile, NtWriteFile, ObjectAttributes,
    THIS_PROCESS, UnicodeString,
};
use super::errors::{Errno, answer};
use super::memory::{place, zeroed};
use super::text;
use crate::zone::Zone;

const GENERIC_READ: u32 = 0x8000_0000;
const GENERIC_WRITE: u32 = 0x4000_0000;
const SYNCHRONIZE: u32 = 0x10_0000;
const DELETE: u32 = 0x1_0000;
/// `FILE_OPEN` and `FILE_CREATE`.
const OPEN: u32 = 1;
const CREATE: u32 = 2;
/// `FILE_SYNCHRONOUS_IO_NONALERT | FILE_NON_DIRECTORY_FILE`, and `FILE_DELETE_ON_CLOSE`.
const PLAIN_FILE: u32 = 0x60;
const DELETE_ON_CLOSE: u32 = 0x1000;
const NORMAL: u32 = 0x80;
/// Readers and renaming are allowed while the file is open.
const SHARE_ALL: u32 = 7;

const READ_WRITE_PAGES: u32 = 4;
/// `SEC_COMMIT`.
const COMMIT: u32 = 0x800_0000;
/// `SECTION_MAP_READ | SECTION_MAP_WRITE | SECTION_QUERY`.
const MAP_SECTION: u32 = 7;
/// `ViewUnmap`: children do not get the mapping.
const NOT_INHERITED: u32 = 2;

/// Maximum units of a path, with its prefix; 4,112 for the longest path of a spool.
const PATH_UNITS: usize = 4096 + 16;

/// A path as the kernel takes it.
struct KernelPath {
    units: [u16; PATH_UNITS],
    length: usize,
}

impl KernelPath {
    fn new(path: &[u8]) -> Result<Self, Errno> {
        let mut kernel = Self { units: [0; PATH_UNITS], length: 0 };
        let invalid = Errno::INVALID_NAME;
        if let Some(rest) = path.strip_prefix(br"\\?\") {
            // Such a path is the kernel's but for the prefix.
            kernel.push(br"\??\")?;
            kernel.push(rest)?;
            return Ok(kernel);
        }
        let is_server = |start: &[u8]| matches!(start, [b'\\' | b'/', b'\\' | b'/', ..]);
        let rest = match path {
            [drive, b':', b'\\' | b'/', rest @ ..] => {
                kernel.push(br"\??\")?;
                kernel.push(&[*drive, b':'])?;
                rest
            }
            // `\\.\` names devices.
            [_, _, b'.', ..] if is_server(path) => return Err(invalid),
            [_, _, rest @ ..] if is_server(path) => {
                kernel.push(br"\??\UNC")?;
                rest
            }
            _ => return Err(invalid),
        };
        let root = kernel.length;
        for name in rest.split(|byte| matches!(byte, b'\\' | b'/')) {
            match name {
                b"" | b"." => {}
                b".." => {
                    let up = kernel.text().iter().rposition(|unit| *unit == u16::from(b'\\'));
                    kernel.length = up.filter(|up| *up >= root).unwrap_or(root);
                }
                name => {
                    kernel.push(br"\")?;
                    kernel.push(name)?;
                }
            }
        }
        if kernel.length > root { Ok(kernel) } else { Err(invalid) }
    }

    fn push(&mut self, text: &[u8]) -> Result<(), Errno> {
        let room = self.units.get_mut(self.length..).unwrap_or_default();
        self.length += text::to_units(text, room).ok_or(Errno::NAME_TOO_LONG)?.len();
        Ok(())
    }

    fn text(&self) -> &[u16] {
        self.units.get(..self.length).unwrap_or_default()
    }
}

/// A file for the length of one function; null for memory without a file.
pub(crate) struct File(*mut c_void);

impl File {
    /// Makes an empty file for a spool. It has its name at once: Windows gives no file one later.
    pub(crate) fn create_spool(path: &CStr) -> Result<(Self, bool), Errno> {
        Self::open(path.to_bytes(), GENERIC_READ | GENERIC_WRITE, CREATE, 0).map(|file| (file, true))
    }

    /// Opens a spool to extend it.
    pub(crate) fn open_spool(path: &CStr) -> Result<Self, Errno> {
        Self::open(path.to_bytes(), GENERIC_READ | GENERIC_WRITE, OPEN, 0)
    }

    /// Refuses: no command renames spools on Windows.
    ///
    /// # Safety
    ///
    /// None is necessary here; the same function of Linux reads from `path`.
    pub(crate) unsafe fn open_shared_spool(_path: *const c_char) -> Result<Self, Errno> {
        Err(Errno::FILE_MISSING)
    }

    /// Makes a file to write to; fails if one of that name exists.
    pub(crate) fn create(path: &CStr) -> Result<Self, Errno> {
        Self::open(path.to_bytes(), GENERIC_WRITE, CREATE, 0)
    }

    /// Opens a file to read it.
    pub(crate) fn open_to_read(path: &[u8]) -> Result<Self, Errno> {
        Self::open(path, GENERIC_READ, OPEN, 0)
    }

    /// Removes a file, as soon as no other program uses it.
    pub(crate) fn remove(path: &CStr) {
        // The file goes when its handle is closed.
        drop(Self::open(path.to_bytes(), DELETE, OPEN, DELETE_ON_CLOSE));
    }

    fn open(path: &[u8], access: u32, disposition: u32, options: u32) -> Result<Self, Errno> {
        let path = KernelPath::new(path)?;
        let name = UnicodeString::of(path.text());
        let attributes = ObjectAttributes::named(&raw const name);
        let (mut handle, mut status) = (ptr::null_mut(), IoStatus::default());
        // SAFETY: all pointers lead to variables that live until the call returns, or are null
        // where that is allowed.
        answer(unsafe {
            NtCreateFile(
                &raw mut handle,
                access | SYNCHRONIZE,
                &raw const attributes,
                &raw mut status,
                ptr::null(),
                NORMAL,
                SHARE_ALL,
                disposition,
                PLAIN_FILE | options,
                ptr::null(),
                0,
            )
        })?;
        Ok(Self(handle))
    }

    /// Returns the file of memory that is no file.
    pub(crate) fn in_memory(_name: &CStr) -> Result<Self, Errno> {
        Ok(Self(ptr::null_mut()))
    }

    /// Reads from this place of the file; returns the number of bytes.
    pub(crate) fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize, Errno> {
        let (mut status, offset) = (IoStatus::default(), offset as i64);
        // SAFETY: the kernel writes at most the length of the slice, before the call returns: the
        // file was opened for that.
        answer(unsafe {
            NtReadFile(
                self.0,
                ptr::null_mut(),
                ptr::null(),
                ptr::null(),
                &raw mut status,
                into.as_mut_ptr().cast(),
                into.len() as u32,
                &raw const offset,
                ptr::null(),
            )
        })?;
        Ok(status.bytes)
    }

    pub(crate) fn write_all(&self, bytes: &[u8]) -> Result<(), Errno> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let mut status = IoStatus::default();
            // SAFETY: the kernel reads at most the length of the slice, before the call returns.
            answer(unsafe {
                NtWriteFile(
                    self.0,
                    ptr::null_mut(),
                    ptr::null(),
                    ptr::null(),
                    &raw mut status,
                    rest.as_ptr().cast(),
                    rest.len().min(1 << 30) as u32,
                    ptr::null(),
                    ptr::null(),
                )
            })?;
            match status.bytes {
                0 => return Err(Errno::DISK_FULL),
                count => rest = rest.get(count..).unwrap_or_default(),
            }
        }
        Ok(())
    }

    pub(crate) fn seek(&self, to: u64) -> Result<(), Errno> {
        /// `FilePositionInformation`.
        const POSITION: u32 = 14;
        self.set(POSITION, to)
    }

    pub(crate) fn set_length(&self, bytes: u64) -> Result<(), Errno> {
        /// `FileEndOfFileInformation`.
        const END: u32 = 20;
        if self.0.is_null() { Ok(()) } else { self.set(END, bytes) }
    }

    fn set(&self, class: u32, value: u64) -> Result<(), Errno> {
        let mut status = IoStatus::default();
        let information = (&raw const value).cast();
        // SAFETY: both classes read eight bytes, which live until the call returns.
        answer(unsafe { NtSetInformationFile(self.0, &raw mut status, information, 8, class) })
    }

    /// Returns the identity of the file: volume and index.
    pub(crate) fn identity(&self) -> Result<(u64, u64), Errno> {
        self.identity_and_length().map(|(identity, _)| identity)
    }

    /// Returns the identity of the file, and its length.
    pub(crate) fn identity_and_length(&self) -> Result<((u64, u64), u64), Errno> {
        if self.0.is_null() {
            return Ok(((0, 0), u64::MAX));
        }
        let mut found = FileInformation::default();
        // SAFETY: the call fills one structure of this type.
        if unsafe { GetFileInformationByHandle(self.0, &raw mut found) } == 0 {
            return Err(Errno::last());
        }
        let long = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
        let identity = (found.volume.into(), long(found.index_high, found.index_low));
        Ok((identity, long(found.bytes_high, found.bytes_low)))
    }

    /// Returns the free bytes of the file system as unknown: only a draining command needs them.
    pub(crate) fn free_bytes(&self) -> u64 {
        u64::MAX
    }

    /// Allocates storage for a range of the file, which grows as needed. Existing bytes stay.
    ///
    /// A section of the new length does that: unlike a change of the file's end, it never makes the
    /// file shorter, while another thread extends it as well.
    pub(crate) fn allocate(&self, from: u64, bytes: u64) -> Result<(), Errno> {
        if self.0.is_null() {
            return Ok(());
        }
        self.section(from + bytes).map(drop)
    }

    /// Refuses, because every file system allocates storage otherwise.
    pub(crate) fn write_zeros(&self, _from: u64, _bytes: u64) -> Result<(), Errno> {
        Err(Errno::DISK_FULL)
    }

    fn section(&self, bytes: u64) -> Result<Self, Errno> {
        let (mut section, bytes) = (ptr::null_mut(), bytes as i64);
        // SAFETY: the pointers lead to variables that live until the call returns, or are null.
        answer(unsafe {
            NtCreateSection(
                &raw mut section,
                MAP_SECTION,
                ptr::null(),
                &raw const bytes,
                READ_WRITE_PAGES,
                COMMIT,
                self.0,
            )
        })?;
        Ok(Self(section))
    }

    /// Maps a range of the file at an address, or anywhere for 0. Returns the address.
    fn map_range(&self, offset: u64, bytes: usize, at: usize) -> Result<usize, Errno> {
        let section = self.section(offset + bytes as u64)?;
        let mut address: *mut c_void = ptr::with_exposed_provenance_mut(at);
        let (mut offset, mut bytes) = (offset as i64, bytes);
        // SAFETY: the variables live until the call returns. The kernel replaces no memory: it
        // refuses an address that is in use.
        answer(unsafe {
            NtMapViewOfSection(
                section.0,
                THIS_PROCESS,
                &raw mut address,
                0,
                0,
                &raw mut offset,
                &raw mut bytes,
                NOT_INHERITED,
                0,
                READ_WRITE_PAGES,
            )
        })?;
        Ok(address as usize)
    }

    /// Maps the first `bytes` of the file, shared, readable and writable, in a zone. Returns the
    /// address, a multiple of 64 KiB as that of each mapping.
    pub(crate) fn map(&self, bytes: usize, _alignment: usize, zone: &Zone) -> Result<usize, Errno> {
        if self.0.is_null() {
            return zeroed(bytes);
        }
        place(zone, |at| self.map_range(0, bytes, at))
    }

    /// Maps a further range of the file behind its other ranges.
    pub(crate) fn map_behind(&self, end: usize, more: usize, offset: u64) -> Result<(), Errno> {
        self.map_range(offset, more, end).map(drop)
    }

    /// Waits until the disk has what was written.
    pub(crate) fn flush(&self) -> Result<(), Errno> {
        let mut status = IoStatus::default();
        // SAFETY: the variable lives until the call returns.
        answer(unsafe { NtFlushBuffersFile(self.0, &raw mut status) })
    }
}

impl Drop for File {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: the handle was opened by this type, which closes it once.
            unsafe { NtClose(self.0) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_paths_have_no_dots_and_slashes() {
        let check = |path: &str, expected: Option<&str>| {
            let is_right = match (KernelPath::new(path.as_bytes()), expected) {
                (Ok(found), Some(text)) => found.text().iter().copied().eq(text.encode_utf16()),
                (Err(_), None) => true,
                _ => false,
            };
            assert!(is_right, "{path}");
        };
        check(r"C:\a\b.cairn", Some(r"\??\C:\a\b.cairn"));
        check("c:/测试/./x/../b", Some(r"\??\c:\测试\b"));
        check(r"C:\..\..\b", Some(r"\??\C:\b"));
        check(r"\\server\share\b", Some(r"\??\UNC\server\share\b"));
        check(r"\\?\C:\a.\b", Some(r"\??\C:\a.\b"));
        for wrong in ["b", r"\b", "C:b", r"C:\", r"\\.\pipe\b", ""] {
            check(wrong, None);
        }
    }
}
