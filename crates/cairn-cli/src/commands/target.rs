//! Finds a recording by its file, by the process that writes it, or by its directory.

#[cfg_attr(not(target_os = "linux"), path = "target/mapped_elsewhere.rs")]
mod mapped;

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use cairn_format::recording::{FILE_HEADER_BYTES, FileHeader};

#[cfg(target_os = "linux")]
pub(crate) use mapped::{is_other, open_recording_of, recording_of};
#[cfg(not(target_os = "linux"))]
pub(crate) use mapped::{is_other, recording_of};

/// A recording, or a directory with recordings.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Target {
    /// A recording, as `LiveHeap::open` takes it; of a process, its spool.
    File(PathBuf),
    /// A directory, and the recordings in it, the latest first.
    Directory(PathBuf, Vec<Listed>),
}

/// A recording in a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Listed {
    /// Its path.
    pub(crate) path: PathBuf,
    /// PID of the recorded process.
    pub(crate) process: u32,
    /// Time of the last change, by the file system.
    pub(crate) changed: SystemTime,
    /// Its length.
    pub(crate) bytes: u64,
}

/// Resolves `text` to a process, a file or a directory.
///
/// Digits are a PID, unless they are written as a path (`./4711`); all else is a file or a
/// directory.
///
/// # Errors
///
/// When there is no such process, when it is not recorded, or when nothing has that name; the text
/// says what to do.
pub(crate) fn resolve(text: &OsStr) -> io::Result<Target> {
    if let Some(process) = text.to_str().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))
        && let Ok(process) = process.parse()
    {
        return recording_of(process).map(Target::File);
    }
    let path = Path::new(text);
    let facts = fs::metadata(path)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
    if facts.is_dir() { list(path) } else { Ok(Target::File(path.to_owned())) }
}

/// Lists the recordings in a directory.
///
/// A recording that is being drained appears under the name of its spool.
fn list(directory: &Path) -> io::Result<Target> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", directory.display()));
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).map_err(named)?.filter_map(Result::ok) {
        let path = entry.path();
        let Some(header) = header_of(&path) else { continue };
        let spool = path.to_str().and_then(|text| text.strip_suffix(".new")).map(Path::new);
        if spool.and_then(header_of).is_some_and(|of_spool| of_spool.process == header.process) {
            continue;
        }
        let Ok(facts) = entry.metadata() else { continue };
        let changed = facts.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        found.push(Listed { path, process: header.process, changed, bytes: facts.len() });
    }
    found.sort_by(|a, b| (b.changed, &a.path).cmp(&(a.changed, &b.path)));
    Ok(Target::Directory(directory.to_owned(), found))
}

fn header_of(path: &Path) -> Option<FileHeader> {
    // Opening a pipe would wait for a writer.
    let is_file = fs::metadata(path).is_ok_and(|facts| facts.is_file());
    is_file.then(|| File::open(path).ok()).flatten().and_then(|file| header_in(&file))
}

fn header_in(file: &File) -> Option<FileHeader> {
    let mut bytes = [0; FILE_HEADER_BYTES];
    cairn_files::read_exact_at(file, &mut bytes, 0).ok()?;
    FileHeader::read(&bytes).ok()
}

#[cfg(test)]
mod tests {
    use cairn_format::recording::{CounterKind, Shape};

    use super::*;

    #[test]
    fn digits_are_a_process_and_everything_else_is_a_name() {
        let directory = std::env::temp_dir().join(format!("cairn-resolve-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let message = |text: &OsStr| resolve(text).unwrap_err().to_string();
        if cfg!(target_os = "linux") {
            assert_eq!(message("1073741824".as_ref()), "there is no process 1073741824");
            let own = std::process::id().to_string();
            assert!(message(own.as_ref()).contains(&format!("cairn heap --attach {own}")));
        } else {
            assert!(message("1073741824".as_ref()).contains("on Linux only"));
        }
        let nothing = directory.join("4711");
        assert!(message(nothing.as_ref()).contains("4711: "));
        assert_eq!(resolve(nothing.as_ref()).unwrap_err().kind(), io::ErrorKind::NotFound);
        fs::write(&nothing, "no recording").unwrap();
        assert_eq!(resolve(nothing.as_ref()).unwrap(), Target::File(nothing));
        assert_eq!(resolve(directory.as_ref()).unwrap(), Target::Directory(directory.clone(), vec![]));
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn directories_list_recordings_once_and_nothing_else() {
        let directory = std::env::temp_dir().join(format!("cairn-list-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let header = |shape, process| FileHeader {
            shape,
            address_bits: 64,
            machine: 62,
            counter: CounterKind::MonotonicNanos,
            process,
            start_wall_nanos: 1,
            start_monotonic_nanos: 1,
            start_counter: 1,
            stamp_interval: 1,
        };
        fs::write(directory.join("a.cairn"), header(Shape::Spool, 1).to_bytes()).unwrap();
        fs::write(directory.join("a.cairn.new"), header(Shape::Packed, 1).to_bytes()).unwrap();
        fs::write(directory.join("b.cairn"), header(Shape::Packed, 2).to_bytes()).unwrap();
        fs::write(directory.join("c.cairn"), "no recording").unwrap();
        let Target::Directory(_, mut all) = resolve(directory.as_ref()).unwrap() else { panic!("no list") };
        all.sort_by(|a, b| a.path.cmp(&b.path));
        fs::remove_dir_all(&directory).unwrap();
        let found: Vec<_> =
            all.iter().map(|one| (one.path.file_name().unwrap().to_str().unwrap(), one.process)).collect();
        assert_eq!(found, [("a.cairn", 1), ("b.cairn", 2)]);
    }
}
