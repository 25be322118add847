//! Decides which users can change a file or a directory.

use std::path::{Path, PathBuf};
use std::{fmt, fs, io};

use rustix::fs::{FileType, Stat};

/// Write permission of the group and of all others.
const OTHERS_MAY_WRITE: u32 = 0o022;
const STICKY: u32 = 0o1000;

/// Why another user can change what lies below a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Doubt {
    path: PathBuf,
    reason: Reason,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reason {
    OwnedBy(u32),
    OthersMayWrite,
    /// It was reached through a link of `/proc`, so that nothing is known of the directories above.
    ReachedThroughProc,
    /// It is a link that another user may have made.
    ForeignLink,
}

impl Doubt {
    pub(crate) fn new(path: &Path, reason: Reason) -> Self {
        Self { path: path.to_owned(), reason }
    }

    pub(crate) fn into_error(self) -> io::Error {
        io::Error::new(io::ErrorKind::PermissionDenied, self)
    }
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match self.reason {
            Reason::OwnedBy(user) => write!(f, "{path} belongs to another user ({user})"),
            Reason::OthersMayWrite => write!(f, "other users may write to {path}"),
            Reason::ReachedThroughProc => write!(f, "{path} is reached through a link of /proc"),
            Reason::ForeignLink => {
                write!(f, "{path}: this link may be another user's and is not followed")
            }
        }
    }
}

impl std::error::Error for Doubt {}

/// Returns true if this crate refused because another user could interfere; false for a kernel
/// error.
#[must_use]
pub fn is_distrust(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<Doubt>())
}

/// Returns why another user can replace the entries of a directory; a sticky one protects them.
pub(crate) fn doubt_in_directory(stat: &Stat) -> Option<Reason> {
    if !is_trusted_owner(stat.st_uid) {
        Some(Reason::OwnedBy(stat.st_uid))
    } else if stat.st_mode & OTHERS_MAY_WRITE != 0 && stat.st_mode & STICKY == 0 {
        Some(Reason::OthersMayWrite)
    } else {
        None
    }
}

/// Returns why another user can write to a file, or has written it.
pub(crate) fn doubt_in_file(stat: &Stat) -> Option<Reason> {
    if !is_own_or_root(stat.st_uid) {
        Some(Reason::OwnedBy(stat.st_uid))
    } else if stat.st_mode & OTHERS_MAY_WRITE != 0 {
        Some(Reason::OthersMayWrite)
    } else {
        None
    }
}

/// Returns true when a link in this directory cannot be another user's.
pub(crate) fn may_follow(directory: &Stat, link: &Stat) -> bool {
    if !is_trusted_owner(directory.st_uid) {
        // The owner can rename every link in it, our own ones as well.
        return false;
    }
    let mode = directory.st_mode;
    if mode & OTHERS_MAY_WRITE == 0 {
        return true;
    }
    // Everybody could rename a link in a directory without the sticky bit. A directory that only a
    // group may write to is often a home directory, whose group is the user alone.
    (mode & STICKY != 0 || mode & 0o002 == 0) && is_own_or_root(link.st_uid)
}

pub(crate) fn is_own_or_root(user: u32) -> bool {
    user == 0 || user == super::effective_user()
}

/// Extends [`is_own_or_root`] by the overflow user where it represents root. That is the case in a
/// user namespace without the machine's root.
fn is_trusted_owner(user: u32) -> bool {
    is_own_or_root(user) || is_unmapped_owner(user)
}

fn is_unmapped_owner(user: u32) -> bool {
    let number = |path| fs::read_to_string(path).ok()?.trim().parse::<u32>().ok();
    if number("/proc/sys/kernel/overflowuid") != Some(user) {
        return false;
    }
    // Lines of | first user inside | first user outside | count |.
    let Ok(map) = fs::read_to_string("/proc/self/uid_map") else { return false };
    !map.lines().any(|line| {
        let mut words = line.split_ascii_whitespace().map(|word| word.parse::<u64>().unwrap_or(0));
        let (first, count) = (words.next().unwrap_or(0), words.nth(1).unwrap_or(u64::MAX));
        u64::from(user).checked_sub(first).is_some_and(|within| within < count)
    })
}

pub(crate) fn file_type(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}
