//! Stores indexes in a directory, by build id, atomically, and below a size limit.
//!
//! The directory is used only if no other user can write to it or replace it, and an index only if
//! it belongs to this user or root: its content is shown as if it came from the program itself.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use cairn_files::Directory;

use super::build::Built;
use super::cache::{Cache, EXTENSION, Identity};
use super::format::Index;
use crate::mapped_file::FileBytes;

impl Cache {
    /// Opens the index of these files, if there is one.
    pub(crate) fn open(&self, identity: &Identity) -> Option<Index> {
        let directory = Directory::private_if_there(&self.directory).ok()?;
        let file = directory.read_own(identity.name.as_ref()).ok()?;
        let index = Index::parse(FileBytes::map_file(&file).ok()?)?;
        if index.identity() != identity.bytes() {
            return None;
        }
        // The modification time records the last use. It is updated rarely, because it is a write.
        let now = SystemTime::now();
        let is_old = |then| now.duration_since(then).is_ok_and(|since| since > TOUCH_AFTER);
        if file.metadata().and_then(|metadata| metadata.modified()).is_ok_and(is_old) {
            let _ = file.set_modified(now);
        }
        Some(index)
    }

    /// Stores an index.
    ///
    /// Concurrent writers of the same index each write a temporary file and rename it, so that a
    /// reader sees a whole index or none.
    pub(crate) fn store(&self, identity: &Identity, index: &Built) -> io::Result<()> {
        if index.len_bytes() > self.limit_bytes {
            self.note_failure(identity);
            return Ok(());
        }
        let directory = Directory::private(&self.directory)?;
        self.make_room(&directory, index.len_bytes())?;
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!(".{}.{}.{number}.{TEMPORARY}", identity.name, std::process::id());
        let written = write_whole(&directory, name.as_ref(), index)
            .and_then(|()| directory.rename(name.as_ref(), identity.name.as_ref()));
        written.inspect_err(|_| {
            let _ = directory.remove(name.as_ref());
        })
    }

    /// Records that these files have no index, because that is known only after long work.
    pub(crate) fn note_failure(&self, identity: &Identity) {
        let noted = Directory::private(&self.directory)
            .and_then(|directory| directory.modify_or_create(&note_of(identity)))
            .and_then(|file| file.set_modified(SystemTime::now()));
        // If this write fails, the next process tries again.
        drop(noted);
    }

    /// Reports whether building this index failed in the last day; a missing file may have appeared
    /// since.
    pub(crate) fn failed_lately(&self, identity: &Identity) -> bool {
        let modified = Directory::private_if_there(&self.directory)
            .and_then(|directory| directory.read_own(&note_of(identity)))
            .and_then(|file| file.metadata()?.modified());
        modified
            .is_ok_and(|then| SystemTime::now().duration_since(then).is_ok_and(|age| age < FORGOTTEN_AFTER))
    }

    /// Deletes the least recently used indexes until there is room, and files of writers that died.
    fn make_room(&self, directory: &Directory, wanted_bytes: u64) -> io::Result<()> {
        let now = SystemTime::now();
        let mut retained = Vec::new();
        for name in directory.names()? {
            let Ok(facts) = directory.facts(&name) else { continue };
            let modified = facts.modified;
            let has = |extension: &str| Path::new(&name).extension().is_some_and(|found| found == extension);
            if has(EXTENSION) && facts.is_file {
                retained.push((modified, facts.bytes, name));
                continue;
            }
            let old_after = [(TEMPORARY, ABANDONED_AFTER), (FAILED, FORGOTTEN_AFTER)];
            let old_after = old_after.into_iter().find(|(extension, _)| has(extension));
            if old_after.is_some_and(|(_, after)| now.duration_since(modified).is_ok_and(|age| age > after)) {
                let _ = directory.remove(&name);
            }
        }
        retained.sort_unstable();
        let mut total = retained.iter().map(|&(_, bytes, _)| bytes).sum::<u64>().saturating_add(wanted_bytes);
        for (_, bytes, name) in retained {
            if total <= self.limit_bytes {
                break;
            }
            if directory.remove(&name).is_ok() {
                total -= bytes;
            }
        }
        Ok(())
    }
}

const TEMPORARY: &str = "writing";

/// Extension of the empty file that records a failed build.
const FAILED: &str = "cairnsym-none";

fn note_of(identity: &Identity) -> std::ffi::OsString {
    Path::new(&identity.name).with_extension(FAILED).into()
}

const TOUCH_AFTER: Duration = Duration::from_secs(60 * 60);

const ABANDONED_AFTER: Duration = Duration::from_secs(60 * 60);

const FORGOTTEN_AFTER: Duration = Duration::from_secs(24 * 60 * 60);

fn write_whole(directory: &Directory, name: &OsStr, index: &Built) -> io::Result<()> {
    let mut file = directory.create_new(name)?;
    index.pieces().try_for_each(|piece| file.write_all(piece))?;
    // The data must be on disk before the name appears, in case the machine stops.
    file.sync_data()
}
