//! The text of a source file, when it lies under a directory that was named for that.
//!
//! The names of files come from a recording, which may be a stranger's. So nothing is read but
//! below the roots that the user gave, after every symbolic link was followed; and nothing but
//! regular files of a bounded size, as text. Without roots there is no source.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf, Prefix};

use serde::Serialize;

/// Bytes of a file that are shown; more is not written by hand.
const MOST_BYTES: u64 = 4 << 20;
/// Bytes at the start in which a NUL shows that a file is no text.
const LOOKED_AT: usize = 8192;
/// A longer name is none.
const MOST_NAME_BYTES: usize = 4096;

/// A directory whose files may be shown.
#[derive(Clone, Debug)]
pub struct SourceRoot {
    /// The directory, links resolved.
    directory: PathBuf,
    /// The start of recorded names that is replaced by it.
    recorded: Option<PathBuf>,
}

impl SourceRoot {
    /// A directory; with `recorded`, what the recorded names of its files begin with.
    ///
    /// # Errors
    ///
    /// When there is no such directory.
    pub fn new(directory: &Path, recorded: Option<&Path>) -> io::Result<Self> {
        let named =
            |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", directory.display()));
        let resolved = directory.canonicalize().map_err(named)?;
        if !resolved.is_dir() {
            return Err(named(io::Error::from(io::ErrorKind::NotADirectory)));
        }
        Ok(Self { directory: resolved, recorded: recorded.map(Path::to_owned) })
    }

    /// Lists the possible paths of a recorded name, the most likely first.
    fn places(&self, name: &Path) -> Vec<PathBuf> {
        if let Some(recorded) = &self.recorded {
            return name.strip_prefix(recorded).map(|rest| self.directory.join(rest)).into_iter().collect();
        }
        let mut places = Vec::new();
        if is_here(name) {
            places.push(name.to_owned());
        }
        // As it was called where it was built, and with fewer and fewer of the outer directories; a
        // name alone is too little where more is known.
        let parts: Vec<Component<'_>> =
            name.components().filter(|part| matches!(part, Component::Normal(_))).collect();
        let least = parts.len().min(2);
        for first in 0..=parts.len() - least {
            let rest: PathBuf = parts.iter().skip(first).collect();
            places.push(self.directory.join(rest));
        }
        places
    }
}

/// True for a path with a root, of this machine.
///
/// Asking a server of Windows for a file would give it a proof of the user's password.
fn is_here(path: &Path) -> bool {
    let is_drive = match path.components().next() {
        Some(Component::Prefix(prefix)) => {
            matches!(prefix.kind(), Prefix::Disk(_) | Prefix::VerbatimDisk(_))
        }
        _ => true,
    };
    is_drive && path.has_root()
}

/// The text of a file.
#[derive(Debug, Serialize)]
pub(crate) struct SourceText {
    /// Path of the file that was found.
    pub(crate) path: String,
    pub(crate) text: String,
    /// It is longer than what is shown.
    pub(crate) is_cut: bool,
}

/// Why there is nothing to show.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NoSource {
    /// No roots were given.
    NoRoots,
    /// There is no such file below any of them.
    NotFound,
    /// It is no text.
    NoText,
}

/// The text of the file that a recording calls so.
pub(crate) fn read(roots: &[SourceRoot], name: &str) -> Result<SourceText, NoSource> {
    if roots.is_empty() {
        return Err(NoSource::NoRoots);
    }
    if name.is_empty() || name.len() > MOST_NAME_BYTES || name.contains('\0') {
        return Err(NoSource::NotFound);
    }
    // Nothing that climbs: a compiler that writes `..` means a place that is below a root by
    // another name as well.
    let name: PathBuf = Path::new(name).components().fold(PathBuf::new(), |mut path, part| {
        match part {
            Component::ParentDir => drop(path.pop()),
            part => path.push(part),
        }
        path
    });
    let place = |root: &SourceRoot| root.places(&name).into_iter().find_map(|place| allowed(roots, &place));
    let path = roots.iter().find_map(place).ok_or(NoSource::NotFound)?;
    let mut bytes = Vec::new();
    let file = File::open(&path).map_err(|_| NoSource::NotFound)?;
    file.take(MOST_BYTES + 1).read_to_end(&mut bytes).map_err(|_| NoSource::NotFound)?;
    if bytes.iter().take(LOOKED_AT).any(|&byte| byte == 0) {
        return Err(NoSource::NoText);
    }
    let is_cut = bytes.len() as u64 > MOST_BYTES;
    bytes.truncate(MOST_BYTES as usize);
    Ok(SourceText {
        path: crate::shown(&path.display().to_string()).into_owned(),
        text: String::from_utf8_lossy(&bytes).into_owned(),
        is_cut,
    })
}

/// The file itself, links resolved, when it is a regular one below a root.
fn allowed(roots: &[SourceRoot], place: &Path) -> Option<PathBuf> {
    let path = place.canonicalize().ok()?;
    let is_below = roots.iter().any(|root| path.starts_with(&root.directory));
    (is_below && path.metadata().is_ok_and(|facts| facts.is_file())).then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    struct Directory(PathBuf);

    impl Directory {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("cairn-source-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir_all(path.join("project/src")).unwrap();
            Self(path.canonicalize().unwrap())
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn source_text_is_shown_below_the_roots_only() {
        let directory = Directory::new("traversal");
        let at = |name: &str| directory.0.join(name);
        fs::write(at("project/src/load.c"), "int main(void) {}\n").unwrap();
        fs::write(at("project/src/binary"), b"\x7fELF\0\0").unwrap();
        fs::write(at("secret"), "secret").unwrap();
        fs::create_dir(at("project2")).unwrap();
        fs::write(at("project2/beside"), "beside").unwrap();
        #[cfg(unix)]
        {
            use std::os::unix::fs::symlink;
            symlink(at("secret"), at("project/src/link")).unwrap();
            symlink(&directory.0, at("project/up")).unwrap();
            symlink(at("project/src/load.c"), at("outside_link.c")).unwrap();
        }
        let roots = [SourceRoot::new(&at("project"), None).unwrap()];
        let absolute = |name: &str| at(name).display().to_string();
        let cases: &[(&str, Result<(), NoSource>)] = &[
            (&absolute("project/src/load.c"), Ok(())),
            ("src/load.c", Ok(())),
            ("/build/1234/project/src/load.c", Ok(())),
            ("./src/../src/load.c", Ok(())),
            // A link from outside to a file inside shows what is inside.
            #[cfg(unix)]
            (&absolute("outside_link.c"), Ok(())),
            ("load.c", Err(NoSource::NotFound)),
            (&absolute("secret"), Err(NoSource::NotFound)),
            ("../secret", Err(NoSource::NotFound)),
            ("src/../../secret", Err(NoSource::NotFound)),
            (&absolute("project/../secret"), Err(NoSource::NotFound)),
            (&absolute("project/src/link"), Err(NoSource::NotFound)),
            ("src/link", Err(NoSource::NotFound)),
            ("up/secret", Err(NoSource::NotFound)),
            ("../project2/beside", Err(NoSource::NotFound)),
            (&absolute("project2/beside"), Err(NoSource::NotFound)),
            ("/etc/passwd", Err(NoSource::NotFound)),
            ("/proc/self/environ", Err(NoSource::NotFound)),
            ("src", Err(NoSource::NotFound)),
            ("", Err(NoSource::NotFound)),
            ("src/load.c\0", Err(NoSource::NotFound)),
            ("src/binary", Err(NoSource::NoText)),
        ];
        for (name, expected) in cases {
            let found = read(&roots, name);
            assert_eq!(found.as_ref().map(|_| ()).map_err(|why| *why), *expected, "{name}: {found:?}");
        }
        assert_eq!(read(&[], &absolute("project/src/load.c")).unwrap_err(), NoSource::NoRoots);
    }

    #[test]
    fn recorded_names_are_searched_in_their_mapped_roots() {
        let directory = Directory::new("mapping");
        fs::write(directory.0.join("project/src/load.c"), "é\n").unwrap();
        fs::write(directory.0.join("project/src/latin.c"), b"\xe9\n").unwrap();
        let roots = [SourceRoot::new(&directory.0.join("project"), Some(Path::new("/build/app"))).unwrap()];
        assert_eq!(read(&roots, "/build/app/src/load.c").unwrap().text, "é\n");
        assert_eq!(read(&roots, "/build/app/src/latin.c").unwrap().text, "\u{fffd}\n");
        assert_eq!(read(&roots, "/build/application/src/load.c").unwrap_err(), NoSource::NotFound);
        assert_eq!(read(&roots, "/build/app/../../etc/passwd").unwrap_err(), NoSource::NotFound);
        assert!(SourceRoot::new(&directory.0.join("nowhere"), None).is_err());
    }

    #[test]
    fn a_file_that_is_too_long_is_cut() {
        let directory = Directory::new("long");
        fs::write(directory.0.join("project/src/long.c"), vec![b'x'; MOST_BYTES as usize + 10]).unwrap();
        let roots = [SourceRoot::new(&directory.0.join("project"), None).unwrap()];
        let shown = read(&roots, "src/long.c").unwrap();
        assert!(shown.is_cut);
        assert_eq!(shown.text.len() as u64, MOST_BYTES);
    }
}
