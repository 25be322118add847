//! Opens the file that a user has named for output: a new one, or what is there already.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};

use super::directory::{Directory, foreign_link, is_of_proc};
use super::effective_user;
use super::trust::{file_type, is_own_or_root, may_follow};
use crate::{NewFile, Output};

/// As many links the kernel follows.
const MAX_LINKS: usize = 40;

/// Opens `path` for output.
///
/// Character devices and FIFOs are written into. A link leads to its target when it is this user's
/// or root's. Regular files, block devices and what links lead to must not be there, unless
/// `replace` is set.
///
/// # Errors
///
/// [`AlreadyExists`](io::ErrorKind::AlreadyExists) for what only `replace` would write to,
/// [`PermissionDenied`](io::ErrorKind::PermissionDenied) for links, targets and FIFOs of other
/// users, and what the kernel says.
pub fn open_output(path: &Path, replace: bool) -> io::Result<Output> {
    let mut path = path.to_owned();
    let mut through_link = false;
    for _ in 0..MAX_LINKS {
        let (directory, name) = Directory::of(&path)?;
        let stat = match directory.stat(&name) {
            Ok(stat) => stat,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // A link that leads nowhere exists as well.
                if through_link && !replace {
                    return Err(io::ErrorKind::AlreadyExists.into());
                }
                return NewFile::create_in(directory, name).map(Output::New);
            }
            Err(error) => return Err(error),
        };
        match file_type(&stat) {
            FileType::Symlink => {
                if is_same_file_as_stdout(&path) {
                    return Ok(Output::Stdout);
                }
                if is_of_proc(&directory) {
                    return through_proc(&directory, &name, replace);
                }
                path = target_of(&directory, &name, &path, &stat)?;
                through_link = true;
            }
            FileType::RegularFile => {
                if !replace {
                    return Err(io::ErrorKind::AlreadyExists.into());
                }
                if through_link && stat.st_uid != effective_user() {
                    return Err(of_another_user(&path, stat.st_uid));
                }
                return NewFile::create_in(directory, name).map(Output::New);
            }
            FileType::Directory => return Err(io::ErrorKind::IsADirectory.into()),
            FileType::Socket => {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "a socket is not written to"));
            }
            FileType::Fifo if !is_own_or_root(stat.st_uid) => {
                return Err(of_another_user(&path, stat.st_uid));
            }
            FileType::BlockDevice if !replace => return Err(io::ErrorKind::AlreadyExists.into()),
            _ => {
                let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::CLOEXEC;
                let fd = rustix::fs::openat(&directory, &*name, flags, Mode::empty())?;
                let opened = rustix::fs::fstat(&fd)?;
                if !is_same(&opened, &stat) {
                    return Err(io::Error::other("the file was replaced while it was opened"));
                }
                return Ok(Output::Stream(fd.into()));
            }
        }
    }
    Err(rustix::io::Errno::LOOP.into())
}

/// Opens a regular file that is there for reading and writing, and changes nothing of it. Links are
/// followed as by [`open_output`]; those of `/proc` lead to what a process has open or mapped.
///
/// # Errors
///
/// [`PermissionDenied`](io::ErrorKind::PermissionDenied) for links of other users,
/// [`InvalidInput`](io::ErrorKind::InvalidInput) when it is no regular file, and what the kernel
/// says.
pub fn open_existing(path: &Path) -> io::Result<File> {
    let mut path = path.to_owned();
    for _ in 0..MAX_LINKS {
        let (directory, name) = Directory::of(&path)?;
        let stat = directory.stat(&name)?;
        if file_type(&stat) != FileType::Symlink {
            return directory.modify(&name);
        }
        if is_of_proc(&directory) {
            // Looked at before: opening alone can have effects on a device.
            let is_regular = |stat: Stat| file_type(&stat) == FileType::RegularFile;
            if is_regular(rustix::fs::statat(&directory, &*name, AtFlags::empty())?) {
                let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
                let fd = rustix::fs::openat(&directory, &*name, flags, Mode::empty())?;
                if is_regular(rustix::fs::fstat(&fd)?) {
                    return Ok(fd.into());
                }
            }
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        path = target_of(&directory, &name, &path, &stat)?;
    }
    Err(rustix::io::Errno::LOOP.into())
}

/// Where a link leads, when it cannot be another user's.
fn target_of(directory: &Directory, name: &OsStr, path: &Path, link: &Stat) -> io::Result<PathBuf> {
    use std::os::unix::ffi::OsStrExt;
    if !may_follow(&directory.own_stat()?, link) {
        return Err(foreign_link(path));
    }
    let target = rustix::fs::readlinkat(directory, name, Vec::new())?;
    let target = Path::new(OsStr::from_bytes(target.to_bytes()));
    // An absolute target takes the place of the whole path.
    Ok(path.parent().map_or_else(|| PathBuf::from(target), |parent| parent.join(target)))
}

/// Returns what a process has open, by the kernel's own link to it, as in `/dev/fd/3` and
/// `>(command)`.
fn through_proc(directory: &Directory, name: &OsStr, replace: bool) -> io::Result<Output> {
    let flags = OFlags::WRONLY | OFlags::NOCTTY | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(directory.as_fd(), name, flags, Mode::empty())?;
    let stat = rustix::fs::fstat(&fd)?;
    match file_type(&stat) {
        FileType::Fifo | FileType::CharacterDevice => Ok(Output::Stream(fd.into())),
        _ if !replace => Err(io::ErrorKind::AlreadyExists.into()),
        FileType::RegularFile if stat.st_uid != effective_user() => {
            Err(of_another_user(&directory.path().join(name), stat.st_uid))
        }
        FileType::RegularFile => {
            rustix::fs::ftruncate(&fd, 0)?;
            Ok(Output::Stream(fd.into()))
        }
        _ => Ok(Output::Stream(fd.into())),
    }
}

/// Returns true for `/dev/stdout` and its like. These are not opened again, so that output
/// continues at the current position of a redirected file.
fn is_same_file_as_stdout(path: &Path) -> bool {
    let is_it = |link: &Path| {
        let names = ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"];
        names.iter().any(|name| link == Path::new(name))
    };
    is_it(path)
        && rustix::fs::stat(path)
            .is_ok_and(|there| rustix::fs::fstat(io::stdout()).is_ok_and(|own| is_same(&there, &own)))
}

fn is_same(one: &Stat, other: &Stat) -> bool {
    (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
}

fn of_another_user(path: &Path, user: u32) -> io::Error {
    let text = format!("{}: it belongs to another user ({user}) and is not written to", path.display());
    io::Error::new(io::ErrorKind::PermissionDenied, text)
}
