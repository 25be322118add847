//! `cairn heap --children`: one directory for the recordings of a run, with an index.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};

use cairn_files::Directory;

use super::{filled, numbered};
use crate::commands::family::{INDEX, read_family, write_index};
use crate::commands::heap_text::counted;
use crate::output::complain;

/// The directory of a run. Without a recording, it is removed at the end.
pub(super) struct RunDirectory {
    parent: Directory,
    name: OsString,
    path: PathBuf,
}

impl RunDirectory {
    /// Makes the directory for a pattern.
    ///
    /// Its PID is that of this process, because the program has none yet.
    pub(super) fn make(parent: &Path, pattern: &OsStr, program: &OsStr, replaces: bool) -> io::Result<Self> {
        let parent_directory = Directory::open(parent)?;
        let plain = filled(Path::new(pattern), program, Some(std::process::id())).unwrap_or_default();
        for number in 1..1000 {
            let name = numbered(&plain, number).into_os_string();
            if replaces && number == 1 {
                remove_run(parent, &parent_directory, &name)?;
            }
            match parent_directory.make(&name) {
                Ok(directory) => {
                    write_index(directory, Vec::new())?;
                    let path = parent.join(&name);
                    return Ok(Self { parent: parent_directory, name, path });
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && !replaces => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the index of the recordings that are closed; says where all are.
    pub(super) fn finish(&self, is_quiet: bool, is_open: impl Fn(u32) -> bool) {
        let family = match read_family(&self.path) {
            Ok(family) => family,
            Err(error) => return complain(&error),
        };
        let (open, closed): (Vec<_>, Vec<_>) =
            family.members().iter().cloned().partition(|member| is_open(member.process));
        let written = Directory::open(&self.path).and_then(|directory| write_index(directory, closed));
        if let Err(error) = written {
            complain(&format_args!("{}: {error}", self.path.join(INDEX).display()));
        }
        if !is_quiet && !open.is_empty() {
            complain(&format_args!(
                "the program has ended; still running and recorded: {}",
                counted(open.len() as u64, "child process")
            ));
        }
        let recordings = family.members().len();
        if !is_quiet && recordings > 0 {
            complain(&format_args!(
                "{} of {} {} in {}; `cairn report {}` compares them",
                counted(recordings as u64, "recording"),
                match family.processes() {
                    1 => "1 process".to_owned(),
                    processes => format!("{processes} processes"),
                },
                if recordings == 1 { "is" } else { "are" },
                self.path.display(),
                self.path.display()
            ));
        }
    }
}

impl Drop for RunDirectory {
    fn drop(&mut self) {
        let Ok(directory) = Directory::open(&self.path) else { return };
        if directory.names().is_ok_and(|names| names.iter().all(|name| name == INDEX)) {
            let _ = directory.remove(INDEX.as_ref());
            // Windows removes no directory that is open.
            drop(directory);
            let _ = self.parent.remove_directory(&self.name);
        }
    }
}

/// Removes a file, or a directory with nothing but recordings and their index in it.
fn remove_run(parent: &Path, directory: &Directory, name: &OsStr) -> io::Result<()> {
    let facts = match directory.facts(name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        facts => facts?,
    };
    if facts.is_file {
        return directory.remove(name);
    }
    let path = parent.join(name);
    let run = Directory::open(&path)?;
    let family = read_family(&path)?;
    let is_of_run = |entry: &OsString| {
        entry == INDEX || family.members().iter().any(|member| entry.to_str() == Some(&member.file))
    };
    let names = run.names()?;
    if let Some(other) = names.iter().find(|entry| !is_of_run(entry)) {
        let why = format!("{} is no recording; remove the directory by hand", path.join(other).display());
        return Err(io::Error::other(why));
    }
    names.iter().try_for_each(|entry| run.remove(entry))?;
    drop(run);
    directory.remove_directory(name)
}
