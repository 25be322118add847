//! Directories that were reached without following another user's link.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;

use super::trust::{Doubt, Reason, doubt_in_directory, doubt_in_file, file_type, may_follow};
use crate::Facts;

/// As many links the kernel follows.
const MAX_LINKS: usize = 40;

/// An open directory, and whether another user can interfere with what lies in it.
///
/// All functions take the name of an entry, not a path, and none of them follows a link.
#[derive(Debug)]
pub struct Directory {
    fd: OwnedFd,
    path: PathBuf,
    doubt: Option<Doubt>,
}

/// Treatment of directories that do not exist.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Missing {
    Fail,
    /// They are made, for this user alone, where no other user can interfere.
    MakePrivate,
    /// They are made with the permissions that the umask leaves.
    Make,
}

impl Directory {
    /// Opens a directory. Other users may be able to write to it; but no link is followed that
    /// another user may have made.
    ///
    /// # Errors
    ///
    /// When a directory is missing or cannot be searched, and when a link on the way may be another
    /// user's.
    pub fn open(path: &Path) -> io::Result<Self> {
        let start = if path.has_root() { "/" } else { "." };
        walk(Path::new(start), path, Missing::Fail)
    }

    /// As [`open`](Self::open), and makes what is missing of it, with the permissions that the
    /// umask leaves.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open), and when a directory cannot be made.
    pub fn open_or_make(path: &Path) -> io::Result<Self> {
        let start = if path.has_root() { "/" } else { "." };
        walk(Path::new(start), path, Missing::Make)
    }

    /// Opens a directory that no other user can replace or write to; creates missing parts. Each of
    /// its parents is this user's or root's, and others may write to none of them, unless it is
    /// sticky, as `/tmp` is.
    ///
    /// # Errors
    ///
    /// [`PermissionDenied`](io::ErrorKind::PermissionDenied) when another user can interfere; the
    /// text says where. Nothing is made then.
    pub fn private(path: &Path) -> io::Result<Self> {
        walk(Path::new("/"), &std::path::absolute(path)?, Missing::MakePrivate)?.checked()
    }

    /// As [`private`](Self::private), but makes nothing.
    ///
    /// # Errors
    ///
    /// As [`private`](Self::private), and when the directory is not there.
    pub fn private_if_there(path: &Path) -> io::Result<Self> {
        walk(Path::new("/"), &std::path::absolute(path)?, Missing::Fail)?.checked()
    }

    /// Returns an error when [`private`](Self::private) would refuse the path because of another
    /// user. Makes nothing; what is missing of the path is no reason.
    ///
    /// # Errors
    ///
    /// As [`private`](Self::private).
    pub fn check_private(path: &Path) -> io::Result<()> {
        let path = std::path::absolute(path)?;
        for part in path.ancestors() {
            match walk(Path::new("/"), part, Missing::Fail) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
                Ok(directory) if part == path => return directory.checked().map(drop),
                Ok(Self { doubt: Some(doubt), .. }) => return Err(doubt.into_error()),
                Ok(_) => return Ok(()),
            }
        }
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
        if path.as_os_str().as_encoded_bytes().ends_with(b"/") {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        Ok((Self::open(parent.unwrap_or(Path::new(".")))?, name.to_owned()))
    }

    fn checked(self) -> io::Result<Self> {
        let stat = rustix::fs::fstat(&self.fd)?;
        // In a sticky directory the entries are safe, but others can add some.
        let is_shared = stat.st_mode & 0o022 != 0;
        let shared = is_shared.then(|| Doubt::new(&self.path, Reason::OthersMayWrite));
        match self.doubt.clone().or(shared) {
            Some(doubt) => Err(doubt.into_error()),
            None => Ok(self),
        }
    }

    /// Returns the path on which it was found, with links replaced by what they lead to.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes a directory that was not there, for this user alone, and opens it.
    ///
    /// # Errors
    ///
    /// [`AlreadyExists`](io::ErrorKind::AlreadyExists) when there is anything of that name, and
    /// what the kernel says.
    pub fn make(&self, name: &OsStr) -> io::Result<Self> {
        rustix::fs::mkdirat(&self.fd, name, Mode::RWXU)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&self.fd, name, flags, Mode::empty())?;
        Ok(Self { fd, path: self.path.join(name), doubt: self.doubt.clone() })
    }

    /// Makes a file that was not there, for reading and writing by this user alone.
    ///
    /// # Errors
    ///
    /// [`AlreadyExists`](io::ErrorKind::AlreadyExists) when there is anything of that name, a link
    /// included; and what the kernel says.
    pub fn create_new(&self, name: &OsStr) -> io::Result<File> {
        self.create_new_with_mode(name, 0o600)
    }

    /// As [`create_new`](Self::create_new), with other permissions, less those of the umask.
    ///
    /// # Errors
    ///
    /// As [`create_new`](Self::create_new).
    pub fn create_new_with_mode(&self, name: &OsStr, mode: u32) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&self.fd, name, flags, Mode::from_raw_mode(mode))?.into())
    }

    /// Makes a file that has no name yet; not all file systems can. For reading and writing by this
    /// user alone.
    pub(crate) fn create_unnamed(&self) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&self.fd, ".", flags, Mode::RUSR | Mode::WUSR)?.into())
    }

    /// Opens a regular file for reading. A FIFO is refused without waiting for it.
    ///
    /// # Errors
    ///
    /// If there is no regular file of that name; a link is not a regular file.
    pub fn read(&self, name: &OsStr) -> io::Result<File> {
        self.regular(name, OFlags::RDONLY)
    }

    /// Opens a regular file for reading and writing; nothing of it is changed.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    pub fn modify(&self, name: &OsStr) -> io::Result<File> {
        self.regular(name, OFlags::RDWR)
    }

    /// Opens a regular file for reading and writing; creates a missing one for this user alone.
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

    /// As [`read`](Self::read), and refuses a file that another user owns or may write to.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read), and [`PermissionDenied`](io::ErrorKind::PermissionDenied).
    pub fn read_own(&self, name: &OsStr) -> io::Result<File> {
        let file = self.read(name)?;
        match doubt_in_file(&rustix::fs::fstat(&file)?) {
            Some(reason) => Err(Doubt::new(&self.path.join(name), reason).into_error()),
            None => Ok(file),
        }
    }

    fn regular(&self, name: &OsStr, access: OFlags) -> io::Result<File> {
        let flags = access | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        // Opening alone can have effects on a device, so it is looked at before.
        let before = self.stat(name)?;
        if file_type(&before) == FileType::RegularFile {
            let fd = rustix::fs::openat(&self.fd, name, flags, Mode::empty())?;
            if file_type(&rustix::fs::fstat(&fd)?) == FileType::RegularFile {
                return Ok(fd.into());
            }
        }
        Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"))
    }

    /// Returns true when an entry is this open file, and no other that was put in its place.
    #[must_use]
    pub fn is(&self, name: &OsStr, file: &File) -> bool {
        let own = rustix::fs::fstat(file).map(|stat| (stat.st_dev, stat.st_ino));
        self.stat(name).is_ok_and(|there| own == Ok((there.st_dev, there.st_ino)))
    }

    /// Gives a file another name in the same directory, and replaces what has that name.
    ///
    /// # Errors
    ///
    /// The kernel's error.
    pub fn rename(&self, from: &OsStr, to: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.fd, from, &self.fd, to)?)
    }

    /// Gives a file a name that nothing else has.
    ///
    /// # Errors
    ///
    /// [`AlreadyExists`](io::ErrorKind::AlreadyExists) when there is anything of that name, and
    /// what the kernel says.
    pub fn rename_new(&self, from: &OsStr, to: &OsStr) -> io::Result<()> {
        self.move_new(from, self, to)
    }

    /// Moves a file into another directory, by a name that nothing else has there.
    ///
    /// # Errors
    ///
    /// As [`rename_new`](Self::rename_new).
    pub fn move_new(&self, from: &OsStr, into: &Self, to: &OsStr) -> io::Result<()> {
        match rustix::fs::renameat_with(&self.fd, from, &into.fd, to, RenameFlags::NOREPLACE) {
            Ok(()) => return Ok(()),
            // Not every file system can.
            Err(Errno::INVAL | Errno::NOSYS) => {}
            Err(error) => return Err(error.into()),
        }
        match rustix::fs::linkat(&self.fd, from, &into.fd, to, AtFlags::empty()) {
            Ok(()) => self.remove(from),
            Err(Errno::EXIST) => Err(Errno::EXIST.into()),
            // No links either. A file that appears between these two calls is replaced.
            Err(_) if into.stat(to).is_err() => Ok(rustix::fs::renameat(&self.fd, from, &into.fd, to)?),
            Err(_) => Err(Errno::EXIST.into()),
        }
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    ///
    /// The kernel's error.
    pub fn remove_directory(&self, name: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.fd, name, AtFlags::REMOVEDIR)?)
    }

    /// Returns the kernel's link to a file without a name.
    #[allow(clippy::unused_self, reason = "the signature of other systems")]
    pub(crate) fn path_of_unnamed(&self, file: &File) -> Option<PathBuf> {
        Some(format!("/proc/self/fd/{}", file.as_raw_fd()).into())
    }

    /// Gives a file without a name one that nothing else has.
    pub(crate) fn name_unnamed(&self, file: &File, name: &OsStr) -> io::Result<()> {
        let own = format!("/proc/self/fd/{}", file.as_raw_fd());
        Ok(rustix::fs::linkat(rustix::fs::CWD, own, &self.fd, name, AtFlags::SYMLINK_FOLLOW)?)
    }

    /// Removes a file.
    ///
    /// # Errors
    ///
    /// The kernel's error.
    pub fn remove(&self, name: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.fd, name, AtFlags::empty())?)
    }

    /// Returns the names of all entries.
    ///
    /// # Errors
    ///
    /// When the directory cannot be read.
    pub fn names(&self) -> io::Result<Vec<OsString>> {
        use std::os::unix::ffi::OsStrExt;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let readable = rustix::fs::openat(&self.fd, ".", flags, Mode::empty())?;
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::new(readable)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if !matches!(name, b"." | b"..") {
                names.push(OsStr::from_bytes(name).to_owned());
            }
        }
        Ok(names)
    }

    /// Returns what is known of an entry without opening it; of a link, of the link itself.
    ///
    /// # Errors
    ///
    /// When there is no such entry.
    pub fn facts(&self, name: &OsStr) -> io::Result<Facts> {
        let stat = self.stat(name)?;
        let since = Duration::new(u64::try_from(stat.st_mtime).unwrap_or(0), stat.st_mtime_nsec as u32);
        Ok(Facts {
            is_file: file_type(&stat) == FileType::RegularFile,
            bytes: u64::try_from(stat.st_size).unwrap_or(0),
            modified: SystemTime::UNIX_EPOCH + since,
        })
    }

    /// Returns the facts of an entry; of a link, those of the link itself.
    pub(crate) fn stat(&self, name: &OsStr) -> io::Result<Stat> {
        Ok(rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// Returns the facts of the directory itself.
    pub(crate) fn own_stat(&self) -> io::Result<Stat> {
        Ok(rustix::fs::fstat(&self.fd)?)
    }
}

impl AsFd for Directory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Walks from the directory `start` along `path`, one name after the other.
fn walk(start: &Path, path: &Path, missing: Missing) -> io::Result<Directory> {
    let at = |path: &Path, error: Errno| {
        let error = io::Error::from(error);
        io::Error::new(error.kind(), format!("{}: {error}", path.display()))
    };
    let search = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let open_start = |start: &Path| rustix::fs::open(start, search, Mode::empty());
    let mut current = open_start(start).map_err(|error| at(start, error))?;
    let mut shown = start.to_owned();
    let mut stat = rustix::fs::fstat(&current)?;
    let mut doubt = doubt_in_directory(&stat).map(|reason| Doubt::new(start, reason));
    let mut rest: Vec<OsString> = parts(path);
    let mut links = 0;
    while let Some(part) = rest.pop() {
        if part == "/" {
            (current, shown) = (open_start(Path::new("/")).map_err(|error| at(path, error))?, "/".into());
            stat = rustix::fs::fstat(&current)?;
            continue;
        }
        let next_path = shown.join(&part);
        let failed = |error| at(&next_path, error);
        // With `NOFOLLOW` and without `DIRECTORY`, a link itself is opened.
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open = || rustix::fs::openat(&current, &*part, flags, Mode::empty());
        let mut next = match open() {
            Err(Errno::NOENT) if missing != Missing::Fail => {
                let mode = match (missing, &doubt) {
                    // Nothing is made where another user could have planted or could replace it.
                    (Missing::MakePrivate, Some(doubt)) => return Err(doubt.clone().into_error()),
                    (Missing::MakePrivate, None) => Mode::RWXU,
                    _ => Mode::RWXU | Mode::RWXG | Mode::RWXO,
                };
                match rustix::fs::mkdirat(&current, &*part, mode) {
                    // Another process may make it at the same time.
                    Ok(()) | Err(Errno::EXIST) => open().map_err(failed)?,
                    Err(error) => return Err(failed(error)),
                }
            }
            result => result.map_err(failed)?,
        };
        let mut next_stat = rustix::fs::fstat(&next)?;
        if file_type(&next_stat) == FileType::Symlink {
            links += 1;
            if links > MAX_LINKS {
                return Err(failed(Errno::LOOP));
            }
            if !is_of_proc(&next) {
                if !may_follow(&stat, &next_stat) {
                    return Err(foreign_link(&next_path));
                }
                let target = rustix::fs::readlinkat(&next, "", Vec::new()).map_err(failed)?;
                use std::os::unix::ffi::OsStrExt;
                rest.extend(parts(Path::new(OsStr::from_bytes(target.to_bytes()))));
                continue;
            }
            // The links of /proc lead to what a process has open, whatever their text is.
            next = rustix::fs::openat(&current, &*part, search, Mode::empty()).map_err(failed)?;
            next_stat = rustix::fs::fstat(&next)?;
            doubt = doubt.or_else(|| Some(Doubt::new(&next_path, Reason::ReachedThroughProc)));
        }
        if file_type(&next_stat) != FileType::Directory {
            return Err(failed(Errno::NOTDIR));
        }
        doubt = doubt.or_else(|| doubt_in_directory(&next_stat).map(|reason| Doubt::new(&next_path, reason)));
        (current, shown, stat) = (next, next_path, next_stat);
    }
    Ok(Directory { fd: current, path: shown, doubt })
}

/// Returns the names of a path, the last one first; `/` is a name of its own, `.` is not a name.
fn parts(path: &Path) -> Vec<OsString> {
    let wanted = path.components().filter(|component| *component != Component::CurDir);
    wanted.rev().map(|component| component.as_os_str().to_owned()).collect()
}

/// Returns true for a file of the file system of processes.
pub(crate) fn is_of_proc(file: impl AsFd) -> bool {
    const PROC_SUPER_MAGIC: u64 = 0x9fa0;
    rustix::fs::fstatfs(file).is_ok_and(|facts| facts.f_type.cast_unsigned() == PROC_SUPER_MAGIC)
}

pub(crate) fn foreign_link(path: &Path) -> io::Error {
    Doubt::new(path, Reason::ForeignLink).into_error()
}
