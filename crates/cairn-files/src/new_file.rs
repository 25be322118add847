//! Files that appear whole, or not at all.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Seek};
use std::path::{Path, PathBuf};

use crate::{Directory, random_number};

/// Treatment of a file that has the name already.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Existing {
    /// It stays, and giving the name fails.
    Refuse,
    /// It is replaced at once.
    Replace,
}

/// A file that gets its name when it is complete. Only this user can read it.
#[derive(Debug)]
pub struct NewFile {
    directory: Directory,
    name: OsString,
    /// The name that it has meanwhile, where the file system has no files without names.
    part: Option<OsString>,
    file: File,
}

impl NewFile {
    /// Begins a file that will be at `path`.
    ///
    /// # Errors
    ///
    /// As [`Directory::of`], and when the file cannot be made.
    pub fn create(path: &Path) -> io::Result<Self> {
        let (directory, name) = Directory::of(path)?;
        Self::create_in(directory, name)
    }

    /// Begins a file that will have this name in an open directory.
    ///
    /// # Errors
    ///
    /// When the file cannot be made.
    pub fn create_in(directory: Directory, name: OsString) -> io::Result<Self> {
        // A file without a name gets one by the link that /proc has to it.
        let has_links = Path::new("/proc/self/fd").exists();
        if let Some(file) = has_links.then(|| directory.create_unnamed().ok()).flatten() {
            return Ok(Self { directory, name, part: None, file });
        }
        let part = part_of(&name);
        let file = directory.create_new(&part)?;
        Ok(Self { directory, name, part: Some(part), file })
    }

    /// Returns the open file.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Returns a path by which this process can open the file before it has its name.
    ///
    /// `None` where there is none.
    #[must_use]
    pub fn present_path(&self) -> Option<PathBuf> {
        match &self.part {
            Some(part) => Some(self.directory.path().join(part)),
            None => self.directory.path_of_unnamed(&self.file).filter(|path| path.exists()),
        }
    }

    /// Returns the open file, for writing.
    pub fn file_mut(&mut self) -> &mut File {
        &mut self.file
    }

    /// Gives the file its name.
    ///
    /// # Errors
    ///
    /// [`AlreadyExists`](io::ErrorKind::AlreadyExists), or what the kernel says; the file is gone
    /// then.
    pub fn commit(mut self, existing: Existing) -> io::Result<()> {
        if self.part.is_none() && existing == Existing::Refuse {
            match self.directory.name_unnamed(&self.file, &self.name) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {}
                result => return result,
            }
        }
        // Only a rename replaces, and it needs a name to begin with.
        let part = match self.part.take() {
            Some(part) => part,
            None => self.give_part_name()?,
        };
        let renamed = match existing {
            Existing::Refuse => self.directory.rename_new(&part, &self.name),
            Existing::Replace => self.directory.rename(&part, &self.name),
        };
        if renamed.is_err() {
            self.part = Some(part);
        }
        renamed
    }

    /// Gives a file without a name one beside the final name. Where the kernel refuses that, the
    /// bytes are copied: they may be the result of an hour.
    fn give_part_name(&mut self) -> io::Result<OsString> {
        let part = part_of(&self.name);
        if self.directory.name_unnamed(&self.file, &part).is_err() {
            let mut copy = self.directory.create_new(&part)?;
            let copied = self.file.rewind().and_then(|()| io::copy(&mut self.file, &mut copy));
            if let Err(error) = copied {
                let _ = self.directory.remove(&part);
                return Err(error);
            }
        }
        Ok(part)
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if let Some(part) = &self.part {
            let _ = self.directory.remove(part);
        }
    }
}

/// Returns a name beside the final one that nothing has. File systems end names at 255 bytes.
fn part_of(name: &OsStr) -> OsString {
    let own = format!(".{:016x}.part", random_number());
    let mut part = OsString::from(".");
    if name.len() + own.len() < 250 {
        part.push(name);
    }
    part.push(own);
    part
}
