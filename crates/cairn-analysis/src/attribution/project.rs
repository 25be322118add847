//! The project file `.cairn.toml`: what a project knows about its own frames and leaks.
//!
//! It is searched from the working directory upwards, so that all commands in a source tree give
//! the same answer. All keys are optional lists of texts, but for one:
//!
//! ```toml
//! mine = ["crate=shop_core"]           # the user's, whatever the tables say
//! wrappers = ["^pool_get$"]            # folded as wrappers of the allocator
//! not-wrappers = ["^alloc_report$"]    # never wrappers
//! hidden = ["file=generated/"]         # folded
//! source-roots = ["src", "../common"]  # other sources in the program are a library's
//! suppressions = ["leak:load_plugin"]  # known leaks
//! default-suppressions = true          # the leaks that every program has
//! ```

use std::fmt;
use std::io;
use std::path::{Component, Path, PathBuf};

use toml::{Table, Value};

use super::{FoldRules, FramePattern};
use crate::heap::Suppressions;

/// The name of the file.
pub const FILE_NAME: &str = ".cairn.toml";

/// Largest project file; 1 MiB, a thousand times what people write.
const MOST_BYTES: u64 = 1 << 20;

/// The keys of the file.
const KEYS: &[&str] =
    &["default-suppressions", "hidden", "mine", "not-wrappers", "source-roots", "suppressions", "wrappers"];

/// The contents of a project file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Project {
    /// Its path.
    pub path: PathBuf,
    /// The choices about frames.
    pub rules: FoldRules,
    /// Its known leaks.
    pub suppressions: Suppressions,
    /// Whether the leaks that every program has are held back.
    pub has_default_suppressions: bool,
}

/// Why a project file cannot be used.
#[derive(Debug)]
#[non_exhaustive]
pub enum ProjectError {
    /// It cannot be read.
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Its contents are wrong.
    Contents {
        /// The file.
        path: PathBuf,
        /// The fault, in a sentence.
        why: String,
    },
}

impl fmt::Display for ProjectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read { path, source } => write!(f, "{}: {source}", path.display()),
            Self::Contents { path, why } => write!(f, "{}: {why}", path.display()),
        }
    }
}

impl std::error::Error for ProjectError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Read { source, .. } => Some(source),
            Self::Contents { .. } => None,
        }
    }
}

impl Project {
    /// Finds the project file of a directory: in it, or in the nearest directory above.
    ///
    /// Files of another user are not used, as in a shared directory: they would decide what a
    /// report hides.
    ///
    /// # Errors
    ///
    /// When there is a file that cannot be read, or its contents are wrong.
    pub fn find(directory: &Path) -> Result<Option<Self>, ProjectError> {
        for above in directory.ancestors() {
            let path = above.join(FILE_NAME);
            if path.symlink_metadata().is_ok() && is_own(&path) {
                return Self::read(&path).map(Some);
            }
        }
        Ok(None)
    }

    /// Reads a project file.
    ///
    /// # Errors
    ///
    /// When it cannot be read, or its contents are wrong.
    pub fn read(path: &Path) -> Result<Self, ProjectError> {
        use std::io::Read;
        let unreadable = |source| ProjectError::Read { path: path.to_owned(), source };
        let file = std::fs::File::open(path).map_err(unreadable)?;
        let mut bytes = Vec::new();
        file.take(MOST_BYTES + 1).read_to_end(&mut bytes).map_err(unreadable)?;
        let wrong = |why: String| ProjectError::Contents { path: path.to_owned(), why };
        if bytes.len() as u64 > MOST_BYTES {
            return Err(wrong("a project file has at most 1 MiB".into()));
        }
        let text = String::from_utf8(bytes).map_err(|_| wrong("the file is not UTF-8".into()))?;
        Self::parse(&text, path).map_err(wrong)
    }

    /// Parses the text of a project file.
    ///
    /// # Errors
    ///
    /// A sentence: what is wrong, and where.
    pub fn parse(text: &str, path: &Path) -> Result<Self, String> {
        let table: Table =
            text.parse().map_err(|error: toml::de::Error| error.to_string().trim_end().to_owned())?;
        let mut project = Self {
            path: path.to_owned(),
            rules: FoldRules::default(),
            suppressions: Suppressions::default(),
            has_default_suppressions: true,
        };
        for (key, value) in &table {
            match key.as_str() {
                "mine" => project.rules.mine = patterns(key, value)?,
                "wrappers" => project.rules.wrappers = patterns(key, value)?,
                "not-wrappers" => project.rules.not_wrappers = patterns(key, value)?,
                "hidden" => project.rules.hidden = patterns(key, value)?,
                "source-roots" => {
                    let base = path.parent().unwrap_or(Path::new("")).to_owned();
                    project.rules.source_roots = texts(key, value)?.map(|root| below(&base, root)).collect();
                }
                "suppressions" => {
                    for text in texts(key, value)? {
                        let line =
                            if text.starts_with("leak:") { text.to_owned() } else { format!("leak:{text}") };
                        let parsed = Suppressions::parse(&line);
                        project
                            .suppressions
                            .extend(parsed.map_err(|_| bad_text(key, text, "write leak:PATTERN"))?);
                    }
                }
                "default-suppressions" => {
                    let is = value.as_bool();
                    project.has_default_suppressions = is.ok_or_else(|| format!("{key} is true or false"))?;
                }
                _ => return Err(unknown(key)),
            }
        }
        Ok(project)
    }
}

/// The patterns of a file of wrappers: one a line, `!` in front of what is none, `#` for comments.
///
/// # Errors
///
/// A sentence with the number of the first wrong line.
pub fn read_wrappers(text: &str) -> Result<(Vec<FramePattern>, Vec<FramePattern>), String> {
    let (mut wrappers, mut others) = (Vec::new(), Vec::new());
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (list, pattern) = match line.strip_prefix('!') {
            Some(pattern) => (&mut others, pattern.trim_start()),
            None => (&mut wrappers, line),
        };
        list.push(pattern.parse().map_err(|error| format!("line {}: {error}", index + 1))?);
    }
    Ok((wrappers, others))
}

fn patterns(key: &str, value: &Value) -> Result<Vec<FramePattern>, String> {
    let parse = |text: &str| {
        text.parse().map_err(|error: super::BadFramePattern| bad_text(key, text, &error.to_string()))
    };
    texts(key, value)?.map(parse).collect()
}

fn texts<'v>(key: &'v str, value: &'v Value) -> Result<impl Iterator<Item = &'v str>, String> {
    let wrong = || format!("{key} is a list of texts, as {key} = [\"one\", \"two\"]");
    let list = value.as_array().ok_or_else(wrong)?;
    let texts: Option<Vec<&str>> = list.iter().map(Value::as_str).collect();
    Ok(texts.ok_or_else(wrong)?.into_iter())
}

fn bad_text(key: &str, text: &str, why: &str) -> String {
    let text: String = text.chars().take(200).collect();
    format!("{key}: {text:?}: {why}")
}

fn unknown(key: &str) -> String {
    let near = KEYS.iter().map(|known| (distance(key, known), known)).min();
    let near = near.filter(|(distance, _)| *distance <= 3);
    let advice = near.map_or_else(
        || format!("the keys are {}", KEYS.join(", ")),
        |(_, near)| format!("did you mean {near}?"),
    );
    let key: String = key.chars().take(100).collect();
    format!("{key:?} is no key; {advice}")
}

/// How many letters differ between two words (Levenshtein's distance).
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    // A key is as long as a word: longer texts are near to none.
    for (index, letter) in one.chars().take(64).enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], index + 1);
        for (column, other) in other.iter().enumerate() {
            let changed = diagonal + usize::from(letter != *other);
            diagonal = row[column + 1];
            row[column + 1] = changed.min(row[column] + 1).min(diagonal + 1);
        }
    }
    row.last().copied().unwrap_or(0)
}

/// A path below the project's directory, without `.` and `..`.
fn below(base: &Path, root: &str) -> String {
    let mut path = PathBuf::new();
    for part in base.join(root).components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => drop(path.pop()),
            part => path.push(part),
        }
    }
    path.to_string_lossy().into_owned()
}

/// True for a file of this user, or of the administrator.
#[cfg(target_os = "linux")]
fn is_own(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let own = std::fs::metadata("/proc/self").map(|process| process.uid());
    let file = path.metadata().map(|file| file.uid());
    matches!((own, file), (Ok(own), Ok(file)) if file == own || file == 0)
}

#[cfg(not(target_os = "linux"))]
const fn is_own(_path: &Path) -> bool {
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Project, String> {
        Project::parse(text, Path::new("/home/me/app/.cairn.toml"))
    }

    #[test]
    fn project_files_have_lists_of_patterns() {
        let project = parse(
            "mine = ['crate=shop']\nwrappers = ['^get$', 'function=put']\nsource-roots = ['src', '../common']\n\
             suppressions = ['leak:one', 'two']\ndefault-suppressions = false\n",
        )
        .expect("sound");
        assert_eq!(project.rules.mine.len(), 1);
        assert_eq!(project.rules.wrappers[1].to_string(), "function=put");
        let roots = project.rules.source_roots.iter().map(|root| root.replace('\\', "/"));
        assert_eq!(roots.collect::<Vec<_>>(), ["/home/me/app/src", "/home/me/common"]);
        assert_eq!(project.suppressions, Suppressions::parse("leak:one\nleak:two").expect("sound"));
        assert!(!project.has_default_suppressions);
        assert!(parse("").expect("empty").has_default_suppressions);
    }

    #[test]
    fn wrong_project_files_say_what_to_write() {
        let cases = [
            ("wrapers = []", "\"wrapers\" is no key; did you mean wrappers?"),
            ("not_wrappers = []", "\"not_wrappers\" is no key; did you mean not-wrappers?"),
            ("colour = 1", "the keys are default-suppressions, hidden, mine"),
            ("mine = 'x'", "mine is a list of texts, as mine = [\"one\", \"two\"]"),
            ("mine = [1]", "mine is a list of texts"),
            ("hidden = ['*']", "hidden: \"*\": an empty pattern matches every frame"),
            ("default-suppressions = 1", "default-suppressions is true or false"),
            ("mine = [\n'a'", "line 2"),
        ];
        for (text, expected) in cases {
            let why = parse(text).expect_err(text);
            assert!(why.contains(expected), "{text}: {why}");
        }
    }

    #[test]
    fn lists_of_wrappers_have_exceptions() {
        let (wrappers, others) = read_wrappers("# own\n^get_block$\n\n! ^alloc_page$\n").expect("sound");
        assert_eq!((wrappers.len(), others[0].to_string().as_str()), (1, "^alloc_page$"));
        assert!(read_wrappers("a\n!\n").expect_err("empty").starts_with("line 2: "));
    }

    #[test]
    fn project_files_are_found_upwards() {
        let top = std::env::temp_dir().join(format!("cairn-project-{}", std::process::id()));
        let deep = top.join("a/b");
        std::fs::create_dir_all(&deep).expect("directories");
        std::fs::write(top.join(FILE_NAME), "mine = ['x']").expect("written");
        let found = Project::find(&deep).expect("sound").expect("found");
        assert_eq!(found.path, top.join(FILE_NAME));
        std::fs::write(top.join("a").join(FILE_NAME), "mine = 1").expect("written");
        let error = Project::find(&deep).expect_err("the nearest one decides").to_string();
        let expected = format!("{}: mine is a list", Path::new("a").join(FILE_NAME).display());
        assert!(error.contains(&expected), "{error}");
        std::fs::remove_dir_all(&top).expect("removed");
    }
}
