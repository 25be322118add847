//! Output of commands: files that appear whole or not at all, devices, and standard output.

use std::fs::{self, File};
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};

use cairn_exchange::Compression;
use cairn_files::{Existing, NewFile};

use crate::output::{self, Guarded};

const BUFFER_BYTES: usize = 1 << 18;

/// Names standard input or output instead of a file, in every command.
pub(crate) const DASH: &str = "-";

/// The output of a command.
pub(crate) struct Output {
    path: PathBuf,
    sink: Sink,
    existing: Existing,
}

enum Sink {
    /// A file that has no name until it is complete.
    New(NewFile, BufWriter<File>),
    /// A device, a FIFO, or what another program has opened.
    Stream(BufWriter<Guarded<File>>),
    Stdout(Box<dyn Write>),
}

impl Output {
    /// Opens the output; `-` is standard output, and devices and FIFOs are written into. An
    /// existing regular file is an error unless it may be replaced; the file `input`, which is
    /// read, always is.
    pub(crate) fn create(path: &Path, replace: bool, input: &Path) -> io::Result<Self> {
        let is_regular = |path: &Path| fs::metadata(path).is_ok_and(|facts| facts.is_file());
        let same = is_regular(path)
            && fs::canonicalize(path)
                .is_ok_and(|path| fs::canonicalize(input).is_ok_and(|input| input == path));
        if same && path != Path::new(DASH) {
            let text = format!("{}: this is the file that is read; write to another one", path.display());
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
        }
        Self::begin(path, replace)
    }

    /// As [`create`](Self::create), for a command that reads no file.
    pub(crate) fn begin(path: &Path, replace: bool) -> io::Result<Self> {
        Self::begin_on(path, replace, output::stdout)
    }

    /// As [`begin`](Self::begin), for text with the colours of a [`Palette`](output::Palette),
    /// which files get without them.
    pub(crate) fn begin_text(path: &Path, replace: bool) -> io::Result<Self> {
        let output = Self::begin_on(path, replace, output::colored_stdout)?;
        if !matches!(output.sink, Sink::Stdout(_)) {
            output::use_no_palette();
        }
        Ok(output)
    }

    fn begin_on(path: &Path, replace: bool, open: fn() -> Guarded<io::Stdout>) -> io::Result<Self> {
        let existing = if replace { Existing::Replace } else { Existing::Refuse };
        let stdout = || Sink::Stdout(Box::new(BufWriter::with_capacity(BUFFER_BYTES, open())));
        let sink = if path == Path::new(DASH) {
            stdout()
        } else {
            match cairn_files::open_output(path, replace).map_err(|error| named(path, error))? {
                cairn_files::Output::New(file) => {
                    let writer = file.file().try_clone().map_err(|error| named(path, error))?;
                    Sink::New(file, BufWriter::with_capacity(BUFFER_BYTES, writer))
                }
                cairn_files::Output::Stream(file) => {
                    Sink::Stream(BufWriter::with_capacity(BUFFER_BYTES, output::device(file)))
                }
                cairn_files::Output::Stdout => stdout(),
            }
        };
        Ok(Self { path: path.to_owned(), sink, existing })
    }

    /// True when the output is shown on a terminal.
    pub(crate) fn is_terminal(&self) -> bool {
        match &self.sink {
            Sink::New(..) => false,
            Sink::Stream(writer) => writer.get_ref().is_terminal(),
            Sink::Stdout(_) => io::stdout().is_terminal(),
        }
    }

    /// Refuses to write `what`, a picture or a binary format, to a terminal.
    ///
    /// # Errors
    ///
    /// When the output is a terminal; the text says how to get a file.
    pub(crate) fn refuse_terminal(&self, what: &str) -> io::Result<()> {
        if !self.is_terminal() {
            return Ok(());
        }
        let how = "name a file with -o FILE, or redirect the output";
        Err(output::refusal(format!("{what} is not written to a terminal; {how}")))
    }

    /// Returns the new file with all that was written, if the output is a new file.
    pub(crate) fn new_file(&mut self) -> io::Result<Option<&File>> {
        let Sink::New(file, writer) = &mut self.sink else { return Ok(None) };
        writer.flush()?;
        Ok(Some(file.file()))
    }

    /// Returns a path by which the new file can be opened before it has its name, if there is one.
    pub(crate) fn present_path(&self) -> Option<PathBuf> {
        match &self.sink {
            Sink::New(file, _) => file.present_path(),
            _ => None,
        }
    }

    /// Returns the compression that the file's name asks for.
    ///
    /// `None` for standard output, devices and FIFOs, whose names do not state any.
    pub(crate) fn named_compression(&self) -> Option<Compression> {
        matches!(self.sink, Sink::New(..)).then(|| Compression::of_name(&self.path))
    }

    /// Gives a file its name and returns that; returns nothing for standard output.
    pub(crate) fn finish(self) -> io::Result<Option<PathBuf>> {
        let Self { path, sink, existing } = self;
        let finished = match sink {
            Sink::Stdout(mut output) => return output.flush().map(|()| None),
            Sink::New(file, mut writer) => writer.flush().and_then(|()| file.commit(existing)),
            Sink::Stream(mut writer) => writer.flush(),
        };
        finished.map_err(|error| named(&path, error))?;
        Ok(Some(path))
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.sink {
            Sink::New(_, writer) => writer.write(bytes),
            Sink::Stream(writer) => writer.write(bytes),
            Sink::Stdout(output) => output.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.sink {
            Sink::New(_, writer) => writer.flush(),
            Sink::Stream(writer) => writer.flush(),
            Sink::Stdout(output) => output.flush(),
        }
    }
}

fn named(path: &Path, error: io::Error) -> io::Error {
    // The reader of a FIFO went away, which is no failure. Callers know it by its kind.
    if error.kind() == io::ErrorKind::BrokenPipe {
        return error;
    }
    let path = path.display();
    let text = match error.kind() {
        io::ErrorKind::AlreadyExists => {
            format!("{path}: the file exists; name another one, or replace it with --force")
        }
        _ => format!("{path}: {error}"),
    };
    io::Error::new(error.kind(), text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_appears_whole_and_replaces_nothing_unasked() {
        let directory = std::env::temp_dir().join(format!("cairn-new-file-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let path = directory.join("out");
        let mut file = Output::begin(&path, false).unwrap();
        file.write_all(b"first").unwrap();
        assert!(!path.exists());
        file.finish().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"first");

        let refused = Output::begin(&path, false).map(|_| ()).unwrap_err();
        assert!(refused.to_string().contains("--force"), "{refused}");

        let input = directory.join("input");
        fs::write(&input, b"read").unwrap();
        let refused = Output::create(&directory.join("./input"), true, &input).map(|_| ()).unwrap_err();
        assert!(refused.to_string().contains("that is read"), "{refused}");
        fs::remove_file(&input).unwrap();

        let mut replaced = Output::begin(&path, true).unwrap();
        replaced.write_all(b"second").unwrap();
        drop(Output::begin(&directory.join("dropped"), false).unwrap());
        replaced.finish().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"second");

        let mut late = Output::begin(&directory.join("late"), false).unwrap();
        late.write_all(b"x").unwrap();
        fs::write(directory.join("late"), b"another's").unwrap();
        assert!(late.finish().is_err());
        assert_eq!(fs::read(directory.join("late")).unwrap(), b"another's");

        let mut names: Vec<_> =
            fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["late", "out"]);
        fs::remove_dir_all(&directory).unwrap();
    }
}
