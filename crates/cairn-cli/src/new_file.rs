//! Files that appear whole, or not at all.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// A file that is written under another name until it is complete.
pub(crate) struct NewFile {
    path: PathBuf,
    part: PathBuf,
    output: Option<BufWriter<File>>,
    replace: bool,
}

impl NewFile {
    /// Begins a file. One that is there already is an error, unless it may be replaced.
    pub(crate) fn create(path: &Path, replace: bool) -> io::Result<Self> {
        if !replace && path.symlink_metadata().is_ok() {
            return Err(exists(path));
        }
        let mut name = path.file_name().unwrap_or(OsStr::new("cairn")).to_owned();
        name.push(format!(".{}.part", std::process::id()));
        let part = path.with_file_name(name);
        let file =
            File::options().write(true).create_new(true).open(&part).map_err(|error| named(&part, &error))?;
        let output = Some(BufWriter::with_capacity(1 << 18, file));
        Ok(Self { path: path.to_owned(), part, output, replace })
    }

    /// Where it is until it is complete.
    pub(crate) fn part(&self) -> &Path {
        &self.part
    }

    /// Gives the file its name, and returns that.
    pub(crate) fn commit(mut self) -> io::Result<PathBuf> {
        if let Some(output) = self.output.take() {
            output.into_inner().map_err(|error| named(&self.path, error.error()))?;
        }
        // A rename would replace what somebody else has put there meanwhile; a link does not.
        let linked = if self.replace {
            Err(io::ErrorKind::Unsupported.into())
        } else {
            fs::hard_link(&self.part, &self.path)
        };
        match linked {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Err(exists(&self.path)),
            // Not every file system has links.
            Err(_) => fs::rename(&self.part, &self.path).map_err(|error| named(&self.path, &error))?,
        }
        Ok(self.path.clone())
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.part);
    }
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.output.as_mut().map_or(Ok(0), |output| output.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.as_mut().map_or(Ok(()), Write::flush)
    }
}

/// Where a command writes what was asked for: a new file, or standard output.
pub(crate) enum Output {
    File(NewFile),
    Stdout(Box<dyn Write>),
}

impl Output {
    /// Begins it; `-` is standard output. A file that is there is an error unless it may be replaced, and `input`, which is read from, always is.
    pub(crate) fn create(path: &Path, replace: bool, input: &Path) -> io::Result<Self> {
        if path == Path::new("-") {
            return Ok(Self::Stdout(Box::new(BufWriter::with_capacity(1 << 18, crate::output::stdout()))));
        }
        let same =
            fs::canonicalize(path).is_ok_and(|path| fs::canonicalize(input).is_ok_and(|input| input == path));
        if same {
            let text = format!("{}: this is the file that is read; write to another one", path.display());
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
        }
        NewFile::create(path, replace).map(Self::File)
    }

    /// Gives a file its name, and returns that.
    pub(crate) fn finish(self) -> io::Result<Option<PathBuf>> {
        match self {
            Self::File(file) => file.commit().map(Some),
            Self::Stdout(mut output) => output.flush().map(|()| None),
        }
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::File(file) => file.write(bytes),
            Self::Stdout(output) => output.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::File(file) => file.flush(),
            Self::Stdout(output) => output.flush(),
        }
    }
}

fn exists(path: &Path) -> io::Error {
    let text = format!("{}: the file exists; name another one, or replace it with --force", path.display());
    io::Error::new(io::ErrorKind::AlreadyExists, text)
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_appears_whole_and_replaces_nothing_unasked() {
        let directory = std::env::temp_dir().join(format!("cairn-new-file-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let path = directory.join("out");
        let mut file = NewFile::create(&path, false).unwrap();
        file.write_all(b"first").unwrap();
        assert!(!path.exists());
        file.commit().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"first");

        let refused = NewFile::create(&path, false).map(|_| ()).unwrap_err();
        assert!(refused.to_string().contains("--force"), "{refused}");

        let input = directory.join("input");
        fs::write(&input, b"read").unwrap();
        let refused = Output::create(&directory.join("./input"), true, &input).map(|_| ()).unwrap_err();
        assert!(refused.to_string().contains("that is read"), "{refused}");
        fs::remove_file(&input).unwrap();

        let mut replaced = NewFile::create(&path, true).unwrap();
        replaced.write_all(b"second").unwrap();
        drop(NewFile::create(&directory.join("dropped"), false).unwrap());
        replaced.commit().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"second");

        let mut late = NewFile::create(&directory.join("late"), false).unwrap();
        late.write_all(b"x").unwrap();
        fs::write(directory.join("late"), b"another's").unwrap();
        assert!(late.commit().is_err());
        assert_eq!(fs::read(directory.join("late")).unwrap(), b"another's");

        let mut names: Vec<_> =
            fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["late", "out"]);
        fs::remove_dir_all(&directory).unwrap();
    }
}
