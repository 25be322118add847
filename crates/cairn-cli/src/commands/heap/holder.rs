//! Finds the process of a recording, also in another PID namespace.
//!
//! A program in another namespace announces a PID that belongs to another process here, or to none.
//! The process that has the recording mapped is the right one.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::live::Usage;

/// The process that has a recording mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Holder {
    /// The process with this PID.
    Process(u32),
    /// The announced PID is alive, but its mappings are unreadable or do not contain the recording.
    Unsure,
    /// No process: it has ended.
    Nobody,
}

/// Finds the process that announced the PID `announced` and records to the file at `path`.
pub(super) fn find(announced: u32, path: &Path) -> Holder {
    let inode = fs::metadata(path).map_or(0, |facts| facts.ino());
    let seen = maps(announced, path, inode);
    if matches!(seen, Ok(true)) {
        return Holder::Process(announced);
    }
    // A recording is closed only when its process has certainly ended.
    let otherwise = match seen {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Holder::Nobody,
        _ => Holder::Unsure,
    };
    let Ok(own) = fs::read_link("/proc/self/ns/pid") else { return otherwise };
    let entries = fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
    let processes = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    // Usually there is no other namespace, and nothing more to read.
    let elsewhere = processes
        .filter(|process| fs::read_link(format!("/proc/{process}/ns/pid")).is_ok_and(|space| space != own));
    let mut holders = elsewhere.filter(|&process| maps(process, path, inode).unwrap_or(false));
    holders.next().map_or(otherwise, Holder::Process)
}

/// Lists the live processes that a recorded program started.
///
/// Their environment names the announcements file.
pub(super) fn started_with(announcements: &Path) -> impl Iterator<Item = u32> {
    let name = announcements.as_os_str().as_bytes().to_owned();
    let since = Usage::of(std::process::id()).map_or(0, |usage| usage.started);
    let entries = fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
    let processes = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    processes.filter(move |process| {
        // The environment of another user's process cannot be read. It is empty after the end of a
        // process and, for a moment, during exec.
        fs::read(format!("/proc/{process}/environ")).is_ok_and(|text| {
            let is_in_exec =
                || Usage::of(*process).is_some_and(|usage| usage.has_memory && usage.started >= since);
            text.windows(name.len()).any(|part| part == name) || text.is_empty() && is_in_exec()
        })
    })
}

/// True if a process has the file mapped like a recording.
fn maps(process: u32, path: &Path, inode: u64) -> io::Result<bool> {
    let text = fs::read(format!("/proc/{process}/maps"))?;
    // | range | permissions | offset | device | inode | path |, the device being that of a layer below in containers.
    let is_it = |line: &[u8]| {
        let mut words = line.split(|byte| *byte == b' ').filter(|word| !word.is_empty());
        let (permissions, numbered) = (words.nth(1), words.nth(2));
        let is_inode = inode != 0
            && numbered.and_then(|word| std::str::from_utf8(word).ok()?.parse().ok()) == Some(inode);
        permissions == Some(b"rw-s") && (is_inode || line.ends_with(path.as_os_str().as_bytes()))
    };
    Ok(text.split(|byte| *byte == b'\n').any(is_it))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holder_is_a_process_that_has_the_recording_mapped() {
        let path = std::env::temp_dir().join(format!("cairn-holder-{}", std::process::id()));
        fs::write(&path, "nobody maps this").unwrap();
        assert_eq!(find(std::process::id(), &path), Holder::Unsure);
        // Above what the kernel gives.
        assert_eq!(find(1 << 23, &path), Holder::Nobody);
        fs::remove_file(&path).unwrap();
    }
}
