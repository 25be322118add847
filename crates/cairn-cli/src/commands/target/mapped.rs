//! Finds the recording that a process has mapped, in the kernel's list of its mappings.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::{Path, PathBuf};

use cairn_format::recording::{FileHeader, Shape};

use super::{header_in, header_of};

/// Returns the spool that `process` has mapped, from the kernel's list of its mappings.
pub(crate) fn recording_of(process: u32) -> io::Result<PathBuf> {
    find_recording(process, |mapping| {
        mapping.places(process).into_iter().find(|path| is_recording_of(path, process))
    })
}

/// Opens the spool that `process` has mapped for reading and writing; returns its path for
/// messages.
///
/// The opened file itself is checked: it is the mapped one, and belongs to the user of the process
/// or to root.
pub(crate) fn open_recording_of(process: u32) -> io::Result<(File, PathBuf)> {
    let owner = fs::metadata(format!("/proc/{process}")).map_or(u32::MAX, |facts| facts.uid());
    find_recording(process, |mapping| {
        let places = mapping.places(process).into_iter().rev();
        let mut open = places.filter_map(|path| Some((cairn_files::open_existing(&path).ok()?, path)));
        open.find(|(file, _)| {
            file.metadata().is_ok_and(|facts| {
                let is_of_user = [0, owner, cairn_files::effective_user()].contains(&facts.uid());
                is_of_user && mapping.is_of(process, &facts)
            }) && header_in(file).is_some_and(|header| is_spool_of(&header, process))
        })
    })
}

fn find_recording<T>(process: u32, look: impl FnMut(SharedMapping<'_>) -> Option<T>) -> io::Result<T> {
    let maps = PathBuf::from(format!("/proc/{process}/maps"));
    let text = fs::read(&maps).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => io::Error::new(error.kind(), format!("there is no process {process}")),
        io::ErrorKind::PermissionDenied => io::Error::new(
            error.kind(),
            format!("{}: {error}; only its own user, or root, may control its recording", maps.display()),
        ),
        kind => io::Error::new(kind, format!("{}: {error}", maps.display())),
    })?;
    let shared = text.split(|byte| *byte == b'\n').filter_map(SharedMapping::parse);
    shared.filter_map(look).next().ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::NotFound,
            format!(
                "process {process} is not recorded; begin with `cairn heap --attach {process}`, or start it with `cairn heap`"
            ),
        )
    })
}

/// A line of the kernel's list of mappings that can be a recording: shared and writable.
struct SharedMapping<'a> {
    range: &'a [u8],
    inode: u64,
    /// The name of the file when it was opened.
    path: &'a Path,
}

impl<'a> SharedMapping<'a> {
    /// Reads `range permissions offset device inode path`.
    fn parse(line: &'a [u8]) -> Option<Self> {
        let path = Path::new(OsStr::from_bytes(line.get(line.iter().position(|byte| *byte == b'/')?..)?));
        let mut words = line.split(|byte| *byte == b' ').filter(|word| !word.is_empty());
        let (range, permissions) = (words.next()?, words.next()?);
        let inode = std::str::from_utf8(words.nth(2)?).ok()?.parse().ok()?;
        (permissions == b"rw-s").then_some(Self { range, inode, path })
    }

    /// True for the metadata of the mapped file.
    fn is_of(&self, process: u32, facts: &fs::Metadata) -> bool {
        // On some file systems the list has the numbers of a layer below. The kernel's link has
        // those of the file itself, but only root may follow it.
        let linked = self.link(process);
        match fs::metadata(linked) {
            Ok(mapped) => (mapped.dev(), mapped.ino()) == (facts.dev(), facts.ino()),
            Err(_) => facts.ino() == self.inode,
        }
    }

    /// The kernel's own link to the file.
    fn link(&self, process: u32) -> PathBuf {
        PathBuf::from(format!("/proc/{process}/map_files")).join(OsStr::from_bytes(self.range))
    }

    /// Returns paths of the file: names first, because the packed recording is beside them.
    fn places(&self, process: u32) -> Vec<PathBuf> {
        let linked = self.link(process);
        let mut places = vec![self.path.to_owned()];
        // A recording is created without a name and gets one later, which this list does not show.
        // The kernel's link leads to it, but for root only; others search its directory, through
        // the root of the process if that is in another mount namespace.
        let directory = self.path.parent().unwrap_or(Path::new("/"));
        let through_root = Path::new(&format!("/proc/{process}/root"))
            .join(directory.strip_prefix("/").unwrap_or(directory));
        for directory in [directory, &through_root] {
            let entries = fs::read_dir(directory).into_iter().flatten().filter_map(Result::ok);
            places.extend(entries.filter(|entry| entry.ino() == self.inode).map(|entry| entry.path()));
        }
        places.push(linked);
        places
    }
}

fn is_recording_of(path: &Path, process: u32) -> bool {
    header_of(path).is_some_and(|header| is_spool_of(&header, process))
}

fn is_spool_of(header: &FileHeader, process: u32) -> bool {
    header.shape == Shape::Spool && header.process == process
}

/// True when both are there, and not the same file.
pub(crate) fn is_other(one: &Path, other: &Path) -> bool {
    let place = |path: &Path| path.metadata().map(|facts| (facts.dev(), facts.ino())).ok();
    place(one).is_some() && place(one) != place(other)
}

#[cfg(test)]
mod tests {
    use cairn_format::recording::control::{COMMAND, Command};
    use cairn_recording::command_from_outside;

    use super::*;

    #[test]
    fn only_shared_mappings_of_files_can_be_recordings() {
        let line = b"7f00-7f40 rw-s 00000000 fd:00 4711                   /var/tmp/my dir/#4711 (deleted)";
        let mapping = SharedMapping::parse(line).unwrap();
        assert_eq!((mapping.range, mapping.inode), (&b"7f00-7f40"[..], 4711));
        assert_eq!(mapping.path, Path::new("/var/tmp/my dir/#4711 (deleted)"));
        for other in [
            &b"7f00-7f40 rw-p 00000000 fd:00 4711 /var/tmp/a"[..],
            b"7f00-7f40 r--s 00000000 fd:00 4711 /var/tmp/a",
            b"7f00-7f40 rw-s 00000000 00:00 0",
            b"7f00-7f40 rw-s / x / y /",
            b"",
        ] {
            assert!(SharedMapping::parse(other).is_none(), "{}", String::from_utf8_lossy(other));
        }
    }

    #[test]
    fn recording_that_was_named_later_is_found() {
        let directory = std::env::temp_dir().join(format!("cairn-target-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let file = directory.join("named later");
        fs::write(&file, "").unwrap();
        let inode = fs::metadata(&file).unwrap().ino();
        let nameless = directory.join(format!("#{inode} (deleted)"));
        let places = SharedMapping { range: b"1000-2000", inode, path: &nameless }.places(std::process::id());
        fs::remove_dir_all(&directory).unwrap();
        assert!(places.contains(&file), "{places:?}");
    }

    #[test]
    fn ctl_leaves_a_closed_recording_unchanged() {
        let path = std::env::temp_dir().join(format!("cairn-closed-{}", std::process::id()));
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/recordings/v1");
        let packed = fs::read(fixture.join("packed.cairn")).unwrap();
        assert!(packed.len() > COMMAND + 8);
        fs::write(&path, &packed).unwrap();
        let message = command_from_outside(&path, Command::Pause).unwrap_err().to_string();
        assert!(message.ends_with("the recording is closed"), "{message}");
        assert!(fs::read(&path).unwrap() == packed, "it was written to");
        fs::copy(fixture.join("spool.cairn"), &path).unwrap();
        command_from_outside(&path, Command::Pause).unwrap();
        fs::remove_file(&path).unwrap();
    }
}
