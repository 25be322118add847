//! Announcements of the recordings that the library has begun: lines in a file that the command
//! creates and the library appends to, or links next to it where no file may become larger. No
//! descriptor and no socket stays in the program for that.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use std::{env, process};

use cairn_files::Directory;

/// An announcement.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Announcement {
    /// The process.
    pub process: u32,
    /// The file of its recording.
    pub path: PathBuf,
    /// How the name of the file differs from the plain one.
    pub numbering: Numbering,
    /// Why the process does not record, if it does not.
    pub failure: Option<String>,
}

/// How the name of a recording differs from the plain one of its pattern.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Numbering {
    /// 1 for the plain name, 2 for that with `.2` in it.
    pub number: u32,
    /// Bytes behind that name, because another process took it meanwhile: 2 for `out.cairn.1`.
    pub appended_bytes: usize,
}

impl Numbering {
    /// The plain name.
    pub const PLAIN: Self = Self { number: 1, appended_bytes: 0 };

    fn parse(text: &str) -> Option<Self> {
        let (number, appended) = text.split_once('.')?;
        Some(Self { number: number.parse().ok()?, appended_bytes: appended.parse().ok()? })
    }
}

/// The file for announcements, in a directory of its own; both are removed at the end.
#[derive(Debug)]
pub struct Announcements {
    directory: PathBuf,
    path: PathBuf,
    file: File,
    rest: Vec<u8>,
    /// Names of the links beside the file that were read.
    links: BTreeSet<OsString>,
    /// Time of the directory's last change when its links were last read.
    changed: Option<SystemTime>,
}

/// Maximum length of a line, which is a path and few words.
const MAX_LINE_BYTES: usize = 1 << 16;

impl Announcements {
    /// Creates the file in the directory for temporary files, else in `/tmp` or `/var/tmp`. A
    /// directory with a comma in its path is skipped, because a comma ends an option.
    ///
    /// # Errors
    ///
    /// When nothing can be written there.
    pub fn new() -> io::Result<Self> {
        let wished = Some(env::temp_dir()).filter(|path| is_one_word(path) && path.is_absolute());
        let usual = ["/tmp", "/var/tmp"].map(PathBuf::from);
        let mut first_error = None;
        for parent in wished.into_iter().chain(usual) {
            match Self::new_in(&parent) {
                Ok(made) => return Ok(made),
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        Err(first_error.unwrap_or_else(|| io::ErrorKind::NotFound.into()))
    }

    fn new_in(parent: &Path) -> io::Result<Self> {
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", parent.display()));
        let beside = Directory::open(parent).map_err(named)?;
        for number in 0.. {
            let name = format!("cairn-{}-{number}", process::id());
            let directory = parent.join(&name);
            match beside.make(name.as_ref()) {
                Ok(made) => {
                    let path = directory.join("announcements");
                    // The library opens it for itself, and only appends.
                    let file = made.create_new("announcements".as_ref())?;
                    let (rest, links, changed) = (Vec::new(), BTreeSet::new(), None);
                    return Ok(Self { directory, path, file, rest, links, changed });
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && number < 1000 => {}
                Err(error) => {
                    return Err(io::Error::new(error.kind(), format!("{}: {error}", directory.display())));
                }
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// Returns the path where the library finds the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the announcements since the last call.
    ///
    /// # Errors
    ///
    /// When the file cannot be read.
    pub fn read(&mut self) -> io::Result<Vec<Announcement>> {
        let mut buffer = [0; 4096];
        let mut found = Vec::new();
        loop {
            let count = self.file.read(&mut buffer)?;
            if count == 0 {
                self.read_links(&mut found);
                return Ok(found);
            }
            self.rest.extend_from_slice(&buffer[..count]);
            while let Some(end) = self.rest.iter().position(|byte| *byte == 0) {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                found.extend(parse(&line[..end]));
            }
            // The program may write there too, and its text may be invalid.
            if self.rest.len() > MAX_LINE_BYTES {
                self.rest.clear();
            }
        }
    }
}

impl Announcements {
    /// Announcements by links, for programs that may not make a file larger.
    fn read_links(&mut self, found: &mut Vec<Announcement>) {
        /// Directories have their time of change to some milliseconds only.
        const RECENT: Duration = Duration::from_secs(1);
        let Ok(changed) = fs::metadata(&self.directory).and_then(|facts| facts.modified()) else { return };
        let is_recent = changed.elapsed().is_ok_and(|age| age < RECENT);
        if self.changed == Some(changed) && !is_recent {
            return;
        }
        self.changed = Some(changed);
        for entry in fs::read_dir(&self.directory).into_iter().flatten().filter_map(Result::ok) {
            let Ok(text) = fs::read_link(entry.path()) else { continue };
            if self.links.insert(entry.file_name()) {
                found.extend(parse(text.as_os_str().as_bytes()));
            }
        }
    }
}

/// Returns whether a path can be one of several options with commas between them.
fn is_one_word(path: &Path) -> bool {
    !path.as_os_str().as_bytes().contains(&b',')
}

fn parse(line: &[u8]) -> Option<Announcement> {
    let mut fields = line.splitn(4, |byte| *byte == b'\t');
    let what = fields.next()?;
    let process = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    let why = String::from_utf8_lossy(fields.next()?).into_owned();
    let path = PathBuf::from(std::ffi::OsStr::from_bytes(fields.next()?));
    let (numbering, failure) = match what {
        b"began" => (Numbering::parse(&why).unwrap_or(Numbering::PLAIN), None),
        b"failed" => (Numbering::PLAIN, Some(why)),
        _ => return None,
    };
    Some(Announcement { process, path, numbering, failure })
}

impl Drop for Announcements {
    fn drop(&mut self) {
        // Directories that are left behind do no harm.
        let _ = fs::remove_file(&self.path);
        for link in &self.links {
            let _ = fs::remove_file(self.directory.join(link));
        }
        let _ = fs::remove_dir(&self.directory);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn announcements_arrive_whole_and_once() {
        let mut announcements = Announcements::new().unwrap();
        let mut writer = fs::OpenOptions::new().append(true).open(announcements.path()).unwrap();
        writer.write_all(b"began\t12\t3.2\t/tmp/a\nb.12.cairn\0failed\t13\tread-only").unwrap();
        let first = announcements.read().unwrap();
        let numbering = Numbering { number: 3, appended_bytes: 2 };
        let path = "/tmp/a\nb.12.cairn".into();
        assert_eq!(first, [Announcement { process: 12, path, numbering, failure: None }]);
        writer.write_all(b" file system\t/x\0nonsense\0").unwrap();
        let second = announcements.read().unwrap();
        let failure = Some("read-only file system".to_owned());
        assert_eq!(
            second,
            [Announcement { process: 13, path: "/x".into(), numbering: Numbering::PLAIN, failure }]
        );
        assert_eq!(announcements.read().unwrap(), []);
    }
}
