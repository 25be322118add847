//! Directories that nobody can rename or remove while they are open.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::windows::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::Facts;

/// `FILE_TRAVERSE | FILE_READ_ATTRIBUTES`: the least for which sharing counts.
const TRAVERSE: u32 = 0x20 | 0x80;
/// `FILE_SHARE_READ | FILE_SHARE_WRITE`, and not `FILE_SHARE_DELETE`.
const NOT_REMOVED: u32 = 1 | 2;
/// `FILE_FLAG_BACKUP_SEMANTICS`: without it no directory is opened.
const BACKUP_SEMANTICS: u32 = 0x0200_0000;
/// `FILE_FLAG_OPEN_REPARSE_POINT`: opens a link itself.
const OPEN_REPARSE_POINT: u32 = 0x0020_0000;

/// An open directory. It keeps its name and place until it is dropped.
///
/// All functions take the name of an entry, not a path, and none of them follows a link.
#[derive(Debug)]
pub struct Directory {
    /// Absolute, so that std makes it a path of any length.
    path: PathBuf,
    /// Other processes can neither rename nor remove the directory while this is open.
    _held: File,
}

impl Directory {
    /// Opens a directory.
    ///
    /// # Errors
    ///
    /// When it is missing or not a directory.
    pub fn open(path: &Path) -> io::Result<Self> {
        let path = std::path::absolute(path)?;
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        let mut options = File::options();
        options.access_mode(TRAVERSE).share_mode(NOT_REMOVED).custom_flags(BACKUP_SEMANTICS);
        let held = options.open(&path).map_err(named)?;
        if !held.metadata().map_err(named)?.is_dir() {
            return Err(named(io::ErrorKind::NotADirectory.into()));
        }
        Ok(Self { path, _held: held })
    }

    /// As [`open`](Self::open), and makes what is missing of it.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open), and when a directory cannot be made.
    pub fn open_or_make(path: &Path) -> io::Result<Self> {
        fs::create_dir_all(path)
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
        Self::open(path)
    }

    /// Opens a directory for files of this user; creates missing parts. The access rights that it
    /// inherits decide who else may write there.
    ///
    /// # Errors
    ///
    /// As [`open_or_make`](Self::open_or_make).
    pub fn private(path: &Path) -> io::Result<Self> {
        Self::open_or_make(path)
    }

    /// As [`private`](Self::private), but makes nothing.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn private_if_there(path: &Path) -> io::Result<Self> {
        Self::open(path)
    }

    /// Returns an error when [`private`](Self::private) would refuse the path because of another
    /// user: never on Windows.
    ///
    /// # Errors
    ///
    /// None.
    pub fn check_private(_path: &Path) -> io::Result<()> {
        Ok(())
    }

    /// Splits a path into its directory, which is opened as by [`open`](Self::open), and the name
    /// in it.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open), and when the path has no name at its end.
    pub fn of(path: &Path) -> io::Result<(Self, OsString)> {
        let no_name = || io::Error::new(io::ErrorKind::InvalidInput, "the path does not end with a name");
        let name = path.file_name().ok_or_else(no_name)?;
        if path.as_os_str().as_encoded_bytes().ends_with(b"\\")
            || path.as_os_str().as_encoded_bytes().ends_with(b"/")
        {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        // The parent of `C:name` is `C:`, the current directory of that drive.
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        Ok((Self::open(parent.unwrap_or(Path::new(".")))?, name.to_owned()))
    }

    /// Returns its absolute path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn at(&self, name: &OsStr) -> PathBuf {
        self.path.join(name)
    }

    /// Makes a directory that was not there, and opens it.
    ///
    /// # Errors
    ///
    /// [`AlreadyExists`](io::ErrorKind::AlreadyExists) when there is anything of that name, and
    /// what the system says.
    pub fn make(&self, name: &OsStr) -> io::Result<Self> {
        fs::create_dir(self.at(name))?;
        Self::open(&self.at(name))
    }

    /// Makes a file that was not there, for reading and writing.
    ///
    /// # Errors
    ///
    /// [`AlreadyExists`](io::ErrorKind::AlreadyExists) when there is anything of that name, a link
    /// included; and what the system says.
    pub fn create_new(&self, name: &OsStr) -> io::Result<File> {
        File::options().read(true).write(true).create_new(true).open(self.at(name))
    }

    /// As [`create_new`](Self::create_new). Windows has no modes.
    ///
    /// # Errors
    ///
    /// As [`create_new`](Self::create_new).
    pub fn create_new_with_mode(&self, name: &OsStr, _mode: u32) -> io::Result<File> {
        self.create_new(name)
    }

    /// Fails: all files have names on Windows.
    #[allow(clippy::unused_self, reason = "the signature of other systems")]
    pub(crate) fn create_unnamed(&self) -> io::Result<File> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Fails: all files have names on Windows.
    #[allow(clippy::unused_self, reason = "the signature of other systems")]
    pub(crate) fn name_unnamed(&self, _file: &File, _name: &OsStr) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Returns nothing: all files have names on Windows.
    #[allow(clippy::unused_self, reason = "the signature of other systems")]
    pub(crate) fn path_of_unnamed(&self, _file: &File) -> Option<PathBuf> {
        None
    }

    /// Opens a regular file for reading.
    ///
    /// # Errors
    ///
    /// If there is no regular file of that name; a link is not a regular file.
    pub fn read(&self, name: &OsStr) -> io::Result<File> {
        self.regular(name, File::options().read(true))
    }

    /// Opens a regular file for reading and writing; nothing of it is changed.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    pub fn modify(&self, name: &OsStr) -> io::Result<File> {
        self.regular(name, File::options().read(true).write(true))
    }

    /// Opens a regular file for reading and writing; creates a missing one.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    pub fn modify_or_create(&self, name: &OsStr) -> io::Result<File> {
        match self.create_new(name) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => self.modify(name),
            result => result,
        }
    }

    /// As [`read`](Self::read): the access rights of the directory decide who writes the file.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    pub fn read_own(&self, name: &OsStr) -> io::Result<File> {
        self.read(name)
    }

    fn regular(&self, name: &OsStr, options: &mut fs::OpenOptions) -> io::Result<File> {
        let path = self.at(name);
        // Asked before: opening alone can have effects on a device.
        if fs::symlink_metadata(&path)?.is_file() {
            let file = options.custom_flags(OPEN_REPARSE_POINT).open(path)?;
            if file.metadata()?.is_file() {
                return Ok(file);
            }
        }
        Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"))
    }

    /// Gives a file another name in the same directory, and replaces what has that name.
    ///
    /// # Errors
    ///
    /// The system's error, as when another program has the replaced file open without sharing it.
    pub fn rename(&self, from: &OsStr, to: &OsStr) -> io::Result<()> {
        fs::rename(self.at(from), self.at(to))
    }

    /// Gives a file a name that nothing else has.
    ///
    /// # Errors
    ///
    /// [`AlreadyExists`](io::ErrorKind::AlreadyExists) when there is anything of that name, and
    /// what the system says.
    pub fn rename_new(&self, from: &OsStr, to: &OsStr) -> io::Result<()> {
        self.move_new(from, self, to)
    }

    /// Moves a file into another directory, by a name that nothing else has there.
    ///
    /// # Errors
    ///
    /// As [`rename_new`](Self::rename_new).
    pub fn move_new(&self, from: &OsStr, into: &Self, to: &OsStr) -> io::Result<()> {
        // A second name first, because std's rename replaces.
        match fs::hard_link(self.at(from), into.at(to)) {
            Ok(()) => self.remove(from),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(error),
            // FAT has no second names. A file that appears between these two calls is replaced.
            Err(_) if fs::symlink_metadata(into.at(to)).is_err() => fs::rename(self.at(from), into.at(to)),
            Err(_) => Err(io::ErrorKind::AlreadyExists.into()),
        }
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub fn remove_directory(&self, name: &OsStr) -> io::Result<()> {
        fs::remove_dir(self.at(name))
    }

    /// Removes a file.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub fn remove(&self, name: &OsStr) -> io::Result<()> {
        fs::remove_file(self.at(name))
    }

    /// Returns the names of all entries.
    ///
    /// # Errors
    ///
    /// When the directory cannot be read.
    pub fn names(&self) -> io::Result<Vec<OsString>> {
        fs::read_dir(&self.path)?.map(|entry| Ok(entry?.file_name())).collect()
    }

    /// Returns what is known of an entry without opening it; of a link, of the link itself.
    ///
    /// # Errors
    ///
    /// When there is no such entry.
    pub fn facts(&self, name: &OsStr) -> io::Result<Facts> {
        let metadata = fs::symlink_metadata(self.at(name))?;
        Ok(Facts {
            is_file: metadata.is_file(),
            bytes: metadata.len(),
            modified: metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH),
        })
    }
}
