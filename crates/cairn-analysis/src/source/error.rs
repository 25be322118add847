//! Why a file cannot be opened as a heap, or a question not be answered.

use std::path::Path;
use std::{error, fmt, io};

use cairn_recording::RecordingError;

use super::{ImportError, Question, SourceOptions, name_of};
use crate::file_kind::WrongFile;
use crate::heap::ThreadName;

/// Why a heap cannot be opened or asked. Its text names the file.
#[derive(Debug)]
#[non_exhaustive]
pub enum SourceError {
    /// When the file is missing, or the system refuses to open it.
    Open {
        /// The file's name.
        name: String,
        /// The system's reason.
        source: io::Error,
    },
    /// When the file is recognised as another kind than one that holds a heap.
    Wrong {
        /// The file's name.
        name: String,
        /// The kind.
        wrong: WrongFile,
    },
    /// When the file cannot be read as what it is.
    Unreadable {
        /// The whole text, with the file's name.
        text: String,
        /// The reader's error, if there is one.
        source: Option<ImportError>,
    },
    /// When a file of this kind cannot answer the question.
    Unanswerable {
        /// The file's name.
        name: String,
        /// The question.
        question: Question,
        /// The reason.
        why: String,
    },
    /// When a filter asks for a thread that is not there.
    NoThread {
        /// The name or number that was asked for.
        wanted: String,
        /// The threads that there are, as far as a line holds them.
        threads: String,
    },
    /// When a span of time ends before it begins.
    EmptySpan,
}

impl SourceError {
    pub(super) fn open(path: &Path, options: &SourceOptions, source: io::Error) -> Self {
        Self::Open { name: name_of(path, options), source }
    }

    pub(super) fn wrong(path: &Path, options: &SourceOptions, wrong: WrongFile) -> Self {
        Self::Wrong { name: name_of(path, options), wrong }
    }

    pub(super) fn unusable(path: &Path, options: &SourceOptions, why: &str) -> Self {
        Self::Unreadable { text: format!("{}: {why}", name_of(path, options)), source: None }
    }

    pub(super) fn recording(path: &Path, options: &SourceOptions, error: RecordingError) -> Self {
        Self::import(path, options, Box::new(error))
    }

    pub(super) fn import(path: &Path, options: &SourceOptions, error: ImportError) -> Self {
        Self::Unreadable { text: with_name(path, options, &error.to_string()), source: Some(error) }
    }

    pub(super) fn no_thread(wanted: &str, threads: &[ThreadName]) -> Self {
        const MOST: usize = 20;
        // Lanes without a thread have no number of the kernel.
        let named = || threads.iter().filter(|thread| thread.kernel_thread != 0 || !thread.name.is_empty());
        let name = |thread: &ThreadName| format!("{} {}", thread.kernel_thread, thread.name);
        let mut list = named().take(MOST).map(name).collect::<Vec<_>>().join(", ");
        let more = named().count().saturating_sub(MOST);
        if more > 0 {
            list.push_str(&format!(", and {more} more"));
        }
        Self::NoThread { wanted: wanted.to_owned(), threads: list }
    }

    /// True when the fault lies in what was asked, not in the file.
    #[must_use]
    pub const fn is_of_question(&self) -> bool {
        matches!(self, Self::Unanswerable { .. } | Self::NoThread { .. } | Self::EmptySpan)
    }
}

/// The text with the file's name in front, unless it names the file already.
fn with_name(path: &Path, options: &SourceOptions, text: &str) -> String {
    let (path, name) = (path.display().to_string(), name_of(path, options));
    if text.contains(&path) { text.replace(&path, &name) } else { format!("{name}: {text}") }
}

impl fmt::Display for SourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open { name, source } => write!(f, "{name}: {source}"),
            Self::Wrong { name, wrong } => write!(f, "{name}: {wrong}"),
            Self::Unreadable { text, .. } => f.write_str(text),
            Self::Unanswerable { name, question, why } => write!(f, "{name}: no {question}: {why}"),
            Self::NoThread { wanted, threads } => {
                write!(f, "no thread {wanted:?} in the recording; there are: {threads}")
            }
            Self::EmptySpan => {
                f.write_str("the span of time ends before it begins; the earlier time comes first")
            }
        }
    }
}

impl error::Error for SourceError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::Open { source, .. } => Some(source),
            Self::Unreadable { source: Some(source), .. } => Some(&**source),
            _ => None,
        }
    }
}
