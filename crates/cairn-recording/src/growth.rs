//! Whether a program still writes a recording, and up to which moment such a recording was read.
//!
//! ```text
//!   spool that `cairn` drains:  packed file up to its last PROG chunk; the spool is not read,
//!                               its segments are used again meanwhile
//!   spool that is not drained:  all segments, events up to the moment at which the reading began
//!   packed file + spool:        as above; `cairn` was killed, and the program goes on
//! ```
//!
//! So every event before that moment is counted once, each free finds its block, and nothing behind
//! that moment is counted. The reading says which moment it is.

use std::fmt;
use std::path::Path;

use cairn_format::recording::FileHeader;

use crate::files::header_of;

/// Up to which moment a recording was read that still grows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Growth {
    /// Nanoseconds from the start; `None` where the file does not say it.
    pub until_nanos: Option<u64>,
    /// How long before the reading that was.
    pub age_nanos: Option<u64>,
    /// Another process packs it meanwhile, and what was packed was read.
    pub is_drained: bool,
}

/// Age at which a packed recording counts as stalled, in nanoseconds; 3 s.
///
/// A healthy drain writes twice a second; an older file has a writer that gets no processor.
const STALLED_NANOS: u64 = 3_000_000_000;

impl fmt::Display for Growth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the program still runs and is recorded: these are the numbers ")?;
        match self.until_nanos {
            Some(until) => write!(f, "of its first {:.1} s", until as f64 / 1e9)?,
            None => f.write_str("of what is packed so far")?,
        }
        if let Some(age) = self.age_nanos.filter(|_| self.is_drained) {
            write!(f, ", as of {:.1} s ago", age as f64 / 1e9)?;
        }
        if self.is_stalled() {
            f.write_str(
                "; the cairn that packs it has not packed anything since, it is stopped or has no processor",
            )?;
        }
        Ok(())
    }
}

impl Growth {
    /// Whether the process that packs the recording has fallen behind the program.
    #[must_use]
    pub fn is_stalled(&self) -> bool {
        self.is_drained && self.age_nanos.is_some_and(|age| age > STALLED_NANOS)
    }
}

/// The moment at which a reading began, of a recording that a program of this machine writes.
pub(crate) struct Moment {
    pub(crate) ticks: u64,
    pub(crate) nanos: u64,
}

impl Moment {
    /// `None` when no process has the file mapped, or that cannot be known.
    pub(crate) fn of_writer(path: &Path) -> Option<Self> {
        let header = header_of(path)?;
        is_written(path, header.process).then(|| Self::now(&header)).flatten()
    }

    #[cfg(target_os = "linux")]
    fn now(header: &FileHeader) -> Option<Self> {
        // A packed recording has another counter; only its nanoseconds are asked for.
        let clock = crate::mapped_file::read_clocks(header.counter);
        let ticks = clock.counter.checked_sub(header.start_counter)?;
        let nanos = clock.monotonic_nanos.checked_sub(header.start_monotonic_nanos)?;
        Some(Self { ticks, nanos })
    }

    #[cfg(not(target_os = "linux"))]
    fn now(_: &FileHeader) -> Option<Self> {
        None
    }
}

/// Returns the nanoseconds from the start of the recording with this header to now.
///
/// It must be called on the machine that made the recording.
pub fn nanos_since_start(header: &FileHeader) -> Option<u64> {
    Moment::now(header).map(|moment| moment.nanos)
}

/// Whether `process` has the recording at `path` mapped, as the program that writes it has. A
/// process that may not be looked at counts for as long as it lives.
#[must_use]
pub fn is_written(path: &Path, process: u32) -> bool {
    let text = match std::fs::read(format!("/proc/{process}/maps")) {
        Ok(text) => text,
        Err(error) => return error.kind() == std::io::ErrorKind::PermissionDenied,
    };
    let inode = inode_of(path).map(|inode| inode.to_string().into_bytes());
    let name = path.as_os_str().as_encoded_bytes();
    text.split(|&byte| byte == b'\n').any(|line| {
        // | range | permissions | offset | device | inode | path |
        // In containers the device is that of a layer below.
        let mut words = line.split(|&byte| byte == b' ').filter(|word| !word.is_empty());
        words.nth(1) == Some(b"rw-s")
            && (inode.is_some() && inode.as_deref() == words.nth(2) || line.ends_with(name))
    })
}

#[cfg(unix)]
fn inode_of(path: &Path) -> Option<u64> {
    std::os::unix::fs::MetadataExt::ino(&path.metadata().ok()?).into()
}

#[cfg(not(unix))]
fn inode_of(_: &Path) -> Option<u64> {
    None
}
