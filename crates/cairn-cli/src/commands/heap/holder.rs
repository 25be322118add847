//! Which process a recording is of, as it is seen from here.
//!
//! A program in another name space tells a number that is another process's here, or nobody's. Whoever has the recording
//! mapped is the one that is meant.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::live::Usage;

/// Who has a recording mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Holder {
    /// The process of this number.
    Process(u32),
    /// Maybe the one of the number that was told: it lives, and nobody may look at what it has mapped, or it has mapped something
    /// else.
    Unsure,
    /// No process any more.
    Nobody,
}

/// Looks for the process that calls itself `told` and records to the file at `path`.
pub(super) fn find(told: u32, path: &Path) -> Holder {
    let inode = fs::metadata(path).map_or(0, |facts| facts.ino());
    let seen = maps(told, path, inode);
    if matches!(seen, Ok(true)) {
        return Holder::Process(told);
    }
    // Only of what is gone for sure the recording is closed.
    let otherwise = match seen {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Holder::Nobody,
        _ => Holder::Unsure,
    };
    let Ok(own) = fs::read_link("/proc/self/ns/pid") else { return otherwise };
    let entries = fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
    let processes = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    // Nearly always there is no other name space, and nothing more to read.
    let elsewhere = processes
        .filter(|process| fs::read_link(format!("/proc/{process}/ns/pid")).is_ok_and(|space| space != own));
    let mut holders = elsewhere.filter(|&process| maps(process, path, inode).unwrap_or(false));
    holders.next().map_or(otherwise, Holder::Process)
}

/// The processes that live and were started with what a recorded program hands on to those that it starts: the name of the file with
/// announcements is in their environment.
pub(super) fn started_with(announcements: &Path) -> impl Iterator<Item = u32> {
    let name = announcements.as_os_str().as_bytes().to_owned();
    let since = Usage::of(std::process::id()).map_or(0, |usage| usage.started);
    let entries = fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
    let processes = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    processes.filter(move |process| {
        // That of another user's cannot be read; that of one that has ended is empty, and so it is for a moment in the midst of exec.
        fs::read(format!("/proc/{process}/environ")).is_ok_and(|text| {
            let is_in_exec =
                || Usage::of(*process).is_some_and(|usage| usage.has_memory && usage.started >= since);
            text.windows(name.len()).any(|part| part == name) || text.is_empty() && is_in_exec()
        })
    })
}

/// Whether a process has the file mapped as a recording is.
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
