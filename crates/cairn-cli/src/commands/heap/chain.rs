//! The programs that one process was, one after the other, by `exec`.
//!
//! A user names the last one, also where `python3` is a script that becomes a shell, that becomes
//! another script, that becomes Python. So the last one gets the name that was asked for:
//!
//! ```text
//!   out.cairn     the shim's spool: is closed, then removed, or moved to out.cairn.before/
//!   out.2.cairn   Python's spool     ───────────────────────────────────────────> out.cairn
//! ```
//!
//! Each step is one system call on files that are complete, so that at any moment at which cairn
//! may be killed each recording is in a file. The program learns its file's new name before the
//! file gets it ([`cairn_recording::announce_rename_in`]).

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cairn_analysis::family::{FEW_BYTES, SHORT_NANOS};
use cairn_files::Directory;
use cairn_format::recording::{FILE_HEADER_BYTES, FileHeader, Shape};
use cairn_recording::announce_rename_in;
use cairn_run::Numbering;

use super::live::few;
use super::numbered;
use crate::output::complain;

/// The programs before the present one, and where they are.
pub(super) struct Chain {
    /// `--force`: the last recording replaces a file of its plain name.
    replaces: bool,
    /// Number of the programs before the present one.
    count: usize,
    /// Names of the dropped programs.
    dropped: Vec<PathBuf>,
    /// Recordings in `FILE.before`, by name.
    moved: Vec<PathBuf>,
    /// Recordings that are where the program made them, because they could not be moved.
    left: Vec<PathBuf>,
    before: Option<Before>,
    /// The plain name of the pattern for the present program, if it chose another one.
    plain: Option<PathBuf>,
}

/// The directory for the earlier programs.
struct Before {
    parent: Directory,
    name: OsString,
    directory: Directory,
}

/// A recording that was closed because its program became another one.
pub(super) struct Closed<'a> {
    pub(super) file: &'a File,
    pub(super) path: &'a Path,
    pub(super) directory: &'a Directory,
}

impl Chain {
    pub(super) fn new(replaces: bool) -> Self {
        Self {
            replaces,
            count: 0,
            dropped: Vec::new(),
            moved: Vec::new(),
            left: Vec::new(),
            before: None,
            plain: None,
        }
    }

    /// True if nothing of the programs before the present one was of note.
    pub(super) fn has_only_dropped(&self) -> bool {
        self.moved.is_empty() && self.left.is_empty()
    }

    /// Drops a recording, or moves it out of the way of the next program's, whose spool is at
    /// `successor`.
    pub(super) fn leave(&mut self, closed: &Closed<'_>, successor: &Path, numbering: Numbering) {
        self.count += 1;
        match self.try_to_leave(closed, successor, numbering) {
            Ok(()) => {}
            Err(error) => {
                complain(&format_args!(
                    "{}: {error}; the recording of the program that was there before `exec` stays here",
                    closed.path.display()
                ));
                self.left.push(closed.path.to_owned());
            }
        }
    }

    /// Notes a recording that could not be closed.
    pub(super) fn leave_broken(&mut self, path: &Path) {
        self.count += 1;
        self.left.push(path.to_owned());
    }

    fn try_to_leave(
        &mut self,
        closed: &Closed<'_>,
        successor: &Path,
        numbering: Numbering,
    ) -> io::Result<()> {
        let (directory, name) = (closed.directory, closed.path.file_name().unwrap_or_default());
        let program = {
            // By its descriptor: the name may lead to another file by now.
            let opened = PathBuf::from(format!("/proc/self/fd/{}", closed.file.as_raw_fd()));
            let recording = cairn_recording::Recording::open(&opened).map_err(io::Error::other)?;
            let lived = started(successor).map(|next| {
                let nanos = next.saturating_sub(recording.header().start_monotonic_nanos);
                Duration::from_nanos(nanos)
            });
            Program::of(&recording, lived)
        };
        if !directory.is(name, closed.file) {
            return Err(io::Error::other("it was replaced by another file"));
        }
        if program.is_short {
            directory.remove(name)?;
            self.dropped.push(program.name.into());
            return Ok(());
        }
        let wanted = names_before(successor, numbering).last().unwrap_or_else(|| successor.to_owned());
        let moved = OsString::from(format!("{:02}-{}.cairn", self.count, program.name));
        let before = self.before_of(&wanted)?;
        directory.move_new(name, &before.directory, &moved)?;
        self.moved.push(moved.into());
        Ok(())
    }

    /// Returns `FILE.before` beside `file`; makes the directory, or gives it this name.
    fn before_of(&mut self, file: &Path) -> io::Result<&Before> {
        match self.before.take() {
            Some(before) => Ok(self.before.insert(before.renamed(file))),
            None => Ok(self.before.insert(Before::make(file)?)),
        }
    }

    /// Gives the spool of the present program the first free name of the pattern.
    ///
    /// Returns where it is.
    ///
    pub(super) fn place(&mut self, process: u32, path: PathBuf, numbering: Numbering) -> PathBuf {
        self.plain = names_before(&path, numbering).last();
        let placed = Self::try_to_place(process, &path, numbering).unwrap_or(path);
        if let Some(before) = self.before.take() {
            self.before = Some(before.renamed(&placed));
        }
        placed
    }

    fn try_to_place(process: u32, path: &Path, numbering: Numbering) -> Option<PathBuf> {
        if numbering == Numbering::PLAIN {
            return None;
        }
        let (directory, name) = Directory::of(path).ok()?;
        let spool = directory.modify(&name).ok()?;
        if !header(&spool).is_some_and(|header| header.shape == Shape::Spool && header.process == process) {
            return None;
        }
        for wanted in names_before(path, numbering).collect::<Vec<_>>().into_iter().rev() {
            let wanted_name = wanted.file_name()?;
            if directory.facts(wanted_name).is_ok() {
                continue;
            }
            announce_rename_in(&spool, &wanted).ok()?;
            if directory.rename_new(&name, wanted_name).is_ok() {
                return Some(wanted);
            }
        }
        None
    }

    /// With `--force`, gives the last recording the plain name of the pattern, whatever has it.
    ///
    /// The recording is closed; returns where it is then.
    ///
    /// Not earlier: of a pattern with `%n`, each shim would replace the file of its own name.
    pub(super) fn claim(&mut self, directory: &Directory, path: &Path) -> PathBuf {
        let wanted = self.plain.take().filter(|plain| self.replaces && plain != path);
        let Some(wanted) = wanted.filter(|plain| !self.left.contains(plain)) else { return path.to_owned() };
        let names = path.file_name().zip(wanted.file_name());
        match names.map(|(name, wanted)| directory.rename(name, wanted)) {
            Some(Ok(())) => {
                self.before = self.before.take().map(|before| before.renamed(&wanted));
                wanted
            }
            Some(Err(error)) => {
                complain(&format_args!("{}: {error}; it is not replaced", wanted.display()));
                path.to_owned()
            }
            None => path.to_owned(),
        }
    }

    /// Says in one line where the programs before the last one are; nothing without any.
    pub(super) fn text(&self) -> Option<String> {
        let programs = match self.count {
            0 => return None,
            1 => "1 program".to_owned(),
            count => format!("{count} programs"),
        };
        let mut parts = Vec::new();
        let dropped = self.dropped.len();
        if dropped > 0 {
            let names = few(&self.dropped);
            parts.push(match (dropped, dropped == self.count) {
                (1, true) => format!("1 short program, which is dropped: {names}"),
                (_, true) => format!("{dropped} short programs, which are dropped: {names}"),
                (1, false) => format!("1 short one, which is dropped ({names})"),
                (_, false) => format!("{dropped} short ones, which are dropped ({names})"),
            });
        }
        if let Some(before) = self.before.as_ref().filter(|_| !self.moved.is_empty()) {
            let place = before.parent.path().join(&before.name);
            parts.push(format!("recorded in {}: {}", place.display(), few(&self.moved)));
        }
        if !self.left.is_empty() {
            parts.push(format!("recorded in {}", few(&self.left)));
        }
        let head = if dropped == self.count { String::new() } else { format!("{programs}: ") };
        Some(format!("before, it was {head}{}", parts.join("; ")))
    }
}

/// A program of a chain, as its recording describes it.
struct Program {
    /// The file name of its executable, or of what remains of it.
    name: String,
    is_short: bool,
}

impl Program {
    fn of(recording: &cairn_recording::Recording, lived: Option<Duration>) -> Self {
        /// Maximum bytes of a name; file names have 255.
        const NAME_BYTES: usize = 64;
        let path = recording.fact("executable").unwrap_or_default();
        let base = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
        let plain = |&byte: &u8| byte.is_ascii_alphanumeric() || b"._+-".contains(&byte);
        let name: String = base
            .iter()
            .take(NAME_BYTES)
            .map(|byte| if plain(byte) { char::from(*byte) } else { '_' })
            .collect();
        let name = if name.trim_matches('.').is_empty() { "program".to_owned() } else { name };
        let sample_bytes = recording
            .fact("sample_bytes")
            .and_then(|text| std::str::from_utf8(text).ok()?.parse::<u64>().ok())
            .unwrap_or(0);
        // In a sample, each picked block represents as many bytes as are between two picks.
        let is_small = recording.totals().is_some_and(|totals| {
            let allocated = totals.allocations.saturating_mul(sample_bytes).max(totals.allocated_bytes);
            let is_whole = recording.pauses().is_empty()
                && recording.ended_early().is_none_or(|early| early.cause.is_intended());
            allocated < FEW_BYTES && totals.lost.is_empty() && totals.marks == 0 && is_whole
        });
        let lived = lived.map_or(u64::MAX, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        Self { name, is_short: is_small && lived < SHORT_NANOS }
    }
}

impl Before {
    fn make(file: &Path) -> io::Result<Self> {
        let (parent, file) = Directory::of(file)?;
        for name in names_of_before(&file) {
            match parent.make(&name) {
                Ok(directory) => return Ok(Self { parent, name, directory }),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// Gives the directory the name that belongs to `file`, as far as possible.
    fn renamed(mut self, file: &Path) -> Self {
        let file = file.file_name().unwrap_or_default();
        let belongs = self.name.as_bytes().strip_prefix(file.as_bytes());
        if belongs.is_some_and(|rest| rest.starts_with(b".before")) {
            return self;
        }
        for name in names_of_before(file) {
            match self.parent.rename_new(&self.name, &name) {
                Ok(()) => {
                    self.name = name;
                    break;
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(_) => break,
            }
        }
        self
    }
}

/// Yields `FILE.before`, `FILE.before.2` and so on.
fn names_of_before(file: &OsStr) -> impl Iterator<Item = OsString> {
    let mut stem = file.to_owned();
    stem.push(".before");
    (1..1000).map(move |number| {
        let mut name = stem.clone();
        if number > 1 {
            name.push(format!(".{number}"));
        }
        name
    })
}

/// Yields the names of the pattern before that of a file, the plain one last.
fn names_before(path: &Path, numbering: Numbering) -> impl Iterator<Item = PathBuf> {
    let Numbering { number, appended_bytes } = numbering;
    let name = path.file_name().unwrap_or_default().as_bytes();
    let name = name.get(..name.len().saturating_sub(appended_bytes)).unwrap_or_default();
    let (stem, ending) = match name.strip_suffix(b".cairn") {
        Some(stem) => (stem, &b".cairn"[..]),
        None => (name, &b""[..]),
    };
    let own = if number > 1 { format!(".{number}") } else { String::new() };
    let plain = stem.strip_suffix(own.as_bytes()).map(|stem| [stem, ending].concat());
    // The name without what was appended may be free by now.
    let end = if appended_bytes > 0 { number + 1 } else { number };
    let path = path.to_owned();
    plain.into_iter().flat_map(move |plain| {
        let plain = path.with_file_name(OsString::from_vec(plain));
        (1..end).rev().map(move |number| numbered(&plain, number))
    })
}

/// Reads when the recording at `path` began, by the monotonic clock.
fn started(path: &Path) -> Option<u64> {
    let (directory, name) = Directory::of(path).ok()?;
    header(&directory.read(&name).ok()?).map(|header| header.start_monotonic_nanos)
}

fn header(file: &File) -> Option<FileHeader> {
    let mut bytes = [0; FILE_HEADER_BYTES];
    file.read_exact_at(&mut bytes, 0).ok()?;
    FileHeader::read(&bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_before_a_number_end_with_the_plain_one() {
        let before = |path: &str, number, appended_bytes| -> Vec<String> {
            let names = names_before(Path::new(path), Numbering { number, appended_bytes });
            names.map(|path| path.display().to_string()).collect()
        };
        assert_eq!(before("/a/out.3.cairn", 3, 0), ["/a/out.2.cairn", "/a/out.cairn"]);
        assert_eq!(before("/a/out.2", 2, 0), ["/a/out"]);
        assert_eq!(before("/a/out.4711.cairn", 1, 0), [""; 0]);
        // Another process took the name, and the recorder appended a number.
        assert_eq!(before("/a/out.cairn.1", 1, 2), ["/a/out.cairn"]);
        assert_eq!(before("/a/out.2.cairn.1", 2, 2), ["/a/out.2.cairn", "/a/out.cairn"]);
    }

    #[test]
    fn directory_of_earlier_programs_follows_the_name_of_the_last() {
        let place = std::env::temp_dir().join(format!("cairn-before-{}", std::process::id()));
        std::fs::create_dir_all(place.join("b.cairn.before")).unwrap();
        let made = Before::make(&place.join("a.cairn")).unwrap();
        assert_eq!(made.name, "a.cairn.before");
        let renamed = made.renamed(&place.join("b.cairn"));
        assert_eq!(renamed.name, "b.cairn.before.2");
        assert_eq!(renamed.renamed(&place.join("b.cairn")).name, "b.cairn.before.2");
        std::fs::remove_dir_all(&place).unwrap();
    }
}
