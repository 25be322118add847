//! Lists the recordings, and what is known of each without reading it.
//!
//! A recording is called by its file's name everywhere: the browser never names a path, so that it
//! cannot ask for one.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::UNIX_EPOCH;

use cairn_format::recording::control::{self, State};
use cairn_format::recording::{FILE_HEADER_BYTES, FileHeader, SEGMENT_BYTES, Shape};
use cairn_recording::is_written;
use serde::Serialize;

/// Recordings that are listed; in a directory with more, the latest.
const MOST_RECORDINGS: usize = 1000;

/// The files to show.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Shown {
    /// These files.
    Files(Vec<PathBuf>),
    /// Every recording in this directory, those that are made later as well.
    Directory(PathBuf),
}

/// A recording in the list.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Listed {
    /// Its name here.
    pub(crate) id: String,
    pub(crate) path: String,
    pub(crate) process: u32,
    pub(crate) size_bytes: u64,
    /// Milliseconds since 1970.
    pub(crate) changed_wall_millis: u64,
    /// A program writes it.
    pub(crate) is_growing: bool,
    /// `recording`, `paused`, ... of one that grows.
    pub(crate) state: Option<&'static str>,
    #[serde(skip)]
    pub(crate) file: PathBuf,
}

pub(crate) struct Catalogue {
    shown: Shown,
    /// Recordings keep the name that they were listed by first.
    known: Mutex<Vec<(String, PathBuf)>>,
}

impl Catalogue {
    pub(crate) fn new(shown: Shown) -> Self {
        Self { shown, known: Mutex::new(Vec::new()) }
    }

    /// All of them: files in the order that was asked for, those of a directory latest first.
    pub(crate) fn list(&self) -> Vec<Listed> {
        let paths = match &self.shown {
            Shown::Files(paths) => paths.clone(),
            Shown::Directory(directory) => recordings_in(directory),
        };
        let named = self.named(paths);
        let mut list: Vec<Listed> = named.into_iter().filter_map(|(id, path)| listed(id, path)).collect();
        if let Shown::Directory(_) = self.shown {
            list.sort_by(|a, b| {
                (b.is_growing, b.changed_wall_millis, &a.id).cmp(&(
                    a.is_growing,
                    a.changed_wall_millis,
                    &b.id,
                ))
            });
            list.truncate(MOST_RECORDINGS);
        }
        list
    }

    /// The one of this name.
    pub(crate) fn find(&self, id: &str) -> Option<Listed> {
        let path = self.path(id).or_else(|| {
            self.list();
            self.path(id)
        })?;
        listed(id.to_owned(), path)
    }

    fn path(&self, id: &str) -> Option<PathBuf> {
        let known = self.known.lock().ok()?;
        known.iter().find(|(name, _)| name == id).map(|(_, path)| path.clone())
    }

    fn named(&self, paths: Vec<PathBuf>) -> Vec<(String, PathBuf)> {
        let Ok(mut known) = self.known.lock() else { return Vec::new() };
        let mut taken: HashSet<String> = known.iter().map(|(name, _)| name.clone()).collect();
        let mut named = Vec::new();
        for path in paths {
            let id = known.iter().find(|(_, of)| *of == path).map(|(name, _)| name.clone());
            let id = id.unwrap_or_else(|| {
                let name = path.file_name().map_or_else(|| "?".into(), |name| name.to_string_lossy());
                let mut id = name.to_string();
                let mut number = 2;
                while taken.contains(&id) {
                    id = format!("{name}~{number}");
                    number += 1;
                }
                taken.insert(id.clone());
                known.push((id.clone(), path.clone()));
                id
            });
            named.push((id, path));
        }
        named
    }
}

/// The files of a directory that say that they are recordings.
fn recordings_in(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().filter_map(Result::ok);
    let is_recording = |path: &PathBuf| {
        // The file that a command packs into appears as the recording that it becomes.
        let is_half = path.extension().is_some_and(|extension| extension == "new");
        !is_half
            && fs::metadata(path).is_ok_and(|facts| facts.is_file())
            && header_of(path).is_ok_and(|it| it.is_some())
    };
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_recording).collect();
    paths.sort();
    paths
}

/// The header of a file; none when it is no recording.
fn header_of(path: &Path) -> io::Result<Option<FileHeader>> {
    let mut bytes = [0; FILE_HEADER_BYTES];
    match File::open(path)?.read_exact(&mut bytes) {
        Ok(()) => Ok(FileHeader::read(&bytes).ok()),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}

fn listed(id: String, path: PathBuf) -> Option<Listed> {
    let facts = fs::metadata(&path).ok()?;
    let header = header_of(&path).ok().flatten();
    let state = header.as_ref().and_then(|header| state_of(&path, header));
    let changed = facts.modified().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    Some(Listed {
        id,
        path: crate::shown(&path.display().to_string()).into_owned(),
        process: header.map_or(0, |header| header.process),
        size_bytes: with_new(&path)
            .and_then(|new| fs::metadata(new).ok())
            .map_or(facts.len(), |new| new.len()),
        changed_wall_millis: changed.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX)),
        is_growing: state.is_some(),
        state: state.map(|state| match state {
            State::Starting => "starting",
            State::Paused => "paused",
            State::Full => "full",
            State::Ended => "ended",
            _ => "recording",
        }),
        file: path,
    })
}

/// Where `cairn heap` packs a spool while the program runs, when it does.
fn with_new(path: &Path) -> Option<PathBuf> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let new = PathBuf::from(new);
    new.is_file().then_some(new)
}

/// Reports whether a program writes it at present.
pub(crate) fn is_growing(path: &Path) -> bool {
    header_of(path).ok().flatten().is_some_and(|header| state_of(path, &header).is_some())
}

/// The state that a program gives its recording; `None` when no program has it any more.
fn state_of(path: &Path, header: &FileHeader) -> Option<State> {
    if header.shape != Shape::Spool {
        return None;
    }
    let mut start = vec![0; SEGMENT_BYTES];
    File::open(path).ok()?.read_exact(&mut start).ok()?;
    let word = start.get(control::STATE..control::STATE + 8)?.try_into().ok()?;
    let state = State::from_word(u64::from_le_bytes(word));
    let is_over = state == State::Ended || !is_written(path, header.process);
    // A command that still packs it will take its place in a moment.
    (!is_over).then_some(state)
}
