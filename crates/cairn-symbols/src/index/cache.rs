//! The directory of indexes: found by build id, written whole or not at all, and kept below a size.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use super::build::Built;
use super::format::Index;
use crate::debug_object::DebugObject;
use crate::mapped_file::FileBytes;

/// A directory of indexes.
#[derive(Clone, Debug)]
pub(crate) struct Cache {
    pub(crate) directory: PathBuf,
    pub(crate) limit_bytes: u64,
}

/// What tells whether an index is of some files: their build ids and sizes; where one has no build id, its path and the
/// time of its last change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Identity {
    name: String,
    bytes: Vec<u8>,
}

impl Identity {
    /// Of the files that answer together, each with its role. The first one that has a build id gives the name.
    pub(crate) fn of<'a>(objects: impl Iterator<Item = (u8, &'a DebugObject)>) -> Self {
        let mut bytes = Vec::new();
        let mut name = None;
        for (role, object) in objects {
            bytes.push(role);
            bytes.extend((object.bytes().len() as u64).to_le_bytes());
            match crate::locate::build_id_of(object.bytes()) {
                Some(build_id) => {
                    bytes.push(build_id.bytes().len().min(255) as u8);
                    bytes.extend(build_id.bytes().iter().take(255));
                    let mut text = build_id.to_string();
                    text.truncate(MAX_NAME_CHARS);
                    name.get_or_insert(text);
                }
                None => {
                    let modified = fs::metadata(object.path()).and_then(|metadata| metadata.modified());
                    let nanos = modified
                        .ok()
                        .and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok())
                        .map_or(0, |since| since.as_nanos());
                    bytes.push(0);
                    bytes.extend(nanos.to_le_bytes());
                    bytes.extend(object.path().as_os_str().as_encoded_bytes());
                    bytes.push(0);
                }
            }
        }
        let mut checksum = flate2::Crc::new();
        checksum.update(&bytes);
        let name = name.unwrap_or_else(|| "no-build-id".to_owned());
        Self { name: format!("{name}-{:08x}.{EXTENSION}", checksum.sum()), bytes }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// Some file systems end names at 255 bytes.
const MAX_NAME_CHARS: usize = 128;

const EXTENSION: &str = "cairnsym";

impl Cache {
    /// The index of these files, if there is one.
    pub(crate) fn open(&self, identity: &Identity) -> Option<Index> {
        let path = self.directory.join(&identity.name);
        let file = crate::mapped_file::open_regular(&path).ok()?;
        let index = Index::parse(FileBytes::map_file(&file).ok()?)?;
        if index.identity() != identity.bytes {
            return None;
        }
        // The time of change says when an index was last wanted. Written rarely: it is a write.
        let now = SystemTime::now();
        let is_old = |then| now.duration_since(then).is_ok_and(|since| since > TOUCH_AFTER);
        if file.metadata().and_then(|metadata| metadata.modified()).is_ok_and(is_old) {
            let _ = file.set_modified(now);
        }
        Some(index)
    }

    /// Keeps an index. Others may write the same one at the same time: each writes a file of its own and moves it into
    /// place, so that a reader sees a whole index or none.
    pub(crate) fn store(&self, identity: &Identity, index: &Built) -> io::Result<()> {
        if index.len_bytes() > self.limit_bytes {
            self.note_failure(identity);
            return Ok(());
        }
        fs::create_dir_all(&self.directory)?;
        self.make_room(index.len_bytes())?;
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!(".{}.{}.{number}.{TEMPORARY}", identity.name, std::process::id());
        let temporary = self.directory.join(name);
        let written = write_whole(&temporary, index)
            .and_then(|()| fs::rename(&temporary, self.directory.join(&identity.name)));
        written.inspect_err(|_| {
            let _ = fs::remove_file(&temporary);
        })
    }

    /// Notes that these files have no index: that there can be none is found out only at the end of long work.
    pub(crate) fn note_failure(&self, identity: &Identity) {
        let noted = fs::create_dir_all(&self.directory)
            .and_then(|()| File::create(self.directory.join(&identity.name).with_extension(FAILED)));
        // Without the note, the next process tries again.
        drop(noted);
    }

    /// True when there was no index to be had of these files lately. What was missing then may be there by tomorrow.
    pub(crate) fn failed_lately(&self, identity: &Identity) -> bool {
        let note = self.directory.join(&identity.name).with_extension(FAILED);
        let modified = fs::metadata(note).and_then(|metadata| metadata.modified());
        modified
            .is_ok_and(|then| SystemTime::now().duration_since(then).is_ok_and(|age| age < FORGOTTEN_AFTER))
    }

    /// Deletes the indexes that were wanted longest ago, until there is room, and what writers that died left behind.
    fn make_room(&self, wanted_bytes: u64) -> io::Result<()> {
        let now = SystemTime::now();
        let mut kept: Vec<(SystemTime, u64, PathBuf)> = Vec::new();
        for entry in fs::read_dir(&self.directory)?.filter_map(Result::ok) {
            let path = entry.path();
            let Ok(metadata) = entry.metadata() else { continue };
            let modified = metadata.modified().unwrap_or(now);
            let has = |extension: &str| path.extension().is_some_and(|found| found == extension);
            if has(EXTENSION) && metadata.is_file() {
                kept.push((modified, metadata.len(), path));
                continue;
            }
            let old_after = [(TEMPORARY, ABANDONED_AFTER), (FAILED, FORGOTTEN_AFTER)];
            let old_after = old_after.into_iter().find(|(extension, _)| has(extension));
            if old_after.is_some_and(|(_, after)| now.duration_since(modified).is_ok_and(|age| age > after)) {
                let _ = fs::remove_file(&path);
            }
        }
        kept.sort_unstable();
        let mut total = kept.iter().map(|&(_, bytes, _)| bytes).sum::<u64>().saturating_add(wanted_bytes);
        for (_, bytes, path) in kept {
            if total <= self.limit_bytes {
                break;
            }
            if fs::remove_file(&path).is_ok() {
                total -= bytes;
            }
        }
        Ok(())
    }
}

const TEMPORARY: &str = "writing";

/// Says that there is no index to be had; an empty file.
const FAILED: &str = "cairnsym-none";

const TOUCH_AFTER: Duration = Duration::from_secs(60 * 60);

const ABANDONED_AFTER: Duration = Duration::from_secs(60 * 60);

const FORGOTTEN_AFTER: Duration = Duration::from_secs(24 * 60 * 60);

fn write_whole(path: &Path, index: &Built) -> io::Result<()> {
    let mut file = File::options().write(true).create_new(true).open(path)?;
    index.pieces().try_for_each(|piece| file.write_all(piece))?;
    // The name must not be there before the bytes are, should the machine stop.
    file.sync_data()
}
