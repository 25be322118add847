//! The page: where a program's memory goes, as one HTML file that is looked at instead of read
//! about.
//!
//! The file needs nothing else: no server, no network, no fonts. Its security rests on three walls,
//! and each would suffice alone: names reach the browser as compressed data in base64 and nowhere
//! else, so that none of them can end a tag; the page's own script sets texts, never markup; and
//! its Content-Security-Policy lets in that one script and that one style, by their hashes, and no
//! connection at all.
//!
//! ```no_run
//! use cairn_analysis::heap::{Folding, HeapRecording, Names, Scope};
//! use cairn_recording::Recording;
//! use cairn_symbols::SymbolizerOptions;
//!
//! let heap = HeapRecording::new(Recording::open("program.4711.cairn")?);
//! let options = cairn_web::PageOptions::default();
//! let (read, slices) = heap.read_sliced(Scope::default(), options.most_slices)?;
//! let symbols = heap.symbols(SymbolizerOptions::new());
//! let mut names = Names::new(heap.stacks(), &symbols, Folding::default());
//! let page = cairn_web::page(&heap, &read, &slices, &mut names, &options)?;
//! std::fs::write("program.html", page.html)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | module | task |
//! |---|---|
//! | `frames` | merges all stacks into one tree of functions, with every sum, and small branches into one |
//! | `slices` | what happened to each call in each slice of time |
//! | `content` | both, and what else the page shows, as one value that a number of bytes bounds |
//! | `subject` | the facts of a heap beside its sums: program, modules, threads |
//! | `columns` | numbers as few bytes |
//! | `shown` | texts without characters that move or hide others |
//! | `html` | content, script and style as one file |
//! | [`view`] | the same page, served on this machine, of recordings that are large, that grow, or that are compared |

#![forbid(unsafe_code)]

mod columns;
mod content;
mod frames;
mod html;
mod shown;
mod slices;
mod subject;
#[cfg(test)]
mod tests;
pub mod view;

use std::fmt;

use cairn_analysis::heap::slices::Slices;
use cairn_analysis::heap::{HeapRead, Names, Scope};

pub use content::PAGE_SCHEMA;
pub use shown::shown;
pub use subject::{PageModule, PageSubject, PageThread, Times};

use slices::PageSlices;

/// How much a page holds, and of what.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct PageOptions {
    /// The scope with which the recording was read.
    pub scope: Scope,
    /// The filters of the scope, as they were written.
    pub filters: Vec<String>,
    /// Branches of the tree of calls that are a smaller part of every cost are merged.
    pub least_share: f64,
    /// Calls that a page holds, at most: the least share is raised until there are not more.
    pub most_calls: usize,
    /// Slices of time, at most; a power of two.
    pub most_slices: usize,
    /// The size of the page, at most, as far as leaving out calls and slices can bring it about.
    pub most_bytes: usize,
}

impl Default for PageOptions {
    /// As much as a browser shows without delay, and an e-mail takes.
    fn default() -> Self {
        Self {
            scope: Scope::default(),
            filters: Vec::new(),
            least_share: 0.0,
            most_calls: 200_000,
            most_slices: 256,
            most_bytes: 9_500_000,
        }
    }
}

/// A page, and how much of the recording is in it. The page itself says so too.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct Page {
    /// The file.
    pub html: String,
    /// Calls in its tree.
    pub calls: usize,
    /// Branches that are a smaller part of every cost are merged.
    pub least_share: f64,
    /// Stacks that were merged, because they are in such branches.
    pub stacks_put_together: usize,
    /// Slices of time.
    pub slices: usize,
}

/// Why there is no page.
#[derive(Debug)]
#[non_exhaustive]
pub enum PageError {
    /// The content could not be compressed or written as JSON.
    Content(std::io::Error),
}

impl fmt::Display for PageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Content(error) => write!(f, "the page's content could not be packed: {error}"),
        }
    }
}

impl std::error::Error for PageError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Content(error) => Some(error),
        }
    }
}

impl From<std::io::Error> for PageError {
    fn from(error: std::io::Error) -> Self {
        Self::Content(error)
    }
}

/// Slices that a page has at least, if there are times, before calls are left out for its size.
const LEAST_SLICES: usize = 64;
/// Calls that a page has at least.
const LEAST_CALLS: usize = 64;

/// Makes the page of a recording, or of a file of another tool.
///
/// # Errors
///
/// When its content cannot be compressed or written.
pub fn page(
    of: impl Into<PageSubject>,
    read: &HeapRead,
    slices: &Slices,
    names: &mut Names<'_>,
    options: &PageOptions,
) -> Result<Page, PageError> {
    let subject = of.into();
    let (mut html, most_bytes) = (String::new(), options.most_bytes);
    let (_, extent) = contents(&subject, read, slices, names, options, |content| {
        html = html::page(content);
        html.len() as f64 / most_bytes.max(1) as f64
    })?;
    Ok(Page {
        html,
        calls: extent.calls,
        least_share: extent.least_share,
        stacks_put_together: extent.stacks_put_together,
        slices: extent.slices,
    })
}

/// How much of a recording is in a content.
pub(crate) struct ContentExtent {
    calls: usize,
    least_share: f64,
    stacks_put_together: usize,
    slices: usize,
}

/// Makes the content of a page, smaller and smaller until it fits.
///
/// It fits if `excess_of` the content, its size divided by the largest allowed size, is at most 1.
pub(crate) fn contents(
    subject: &PageSubject,
    read: &HeapRead,
    slices: &Slices,
    names: &mut Names<'_>,
    options: &PageOptions,
    mut excess_of: impl FnMut(&content::Packed) -> f64,
) -> Result<(content::Packed, ContentExtent), PageError> {
    let askers = frames::Askers::new(&read.profile, names);
    let mut most_calls = options.most_calls.max(1);
    let mut least_share = options.least_share;
    loop {
        let frames = frames::Frames::new(&read.profile, names, &askers, least_share, most_calls);
        let mut of_calls = PageSlices::new(slices, &frames, read.profile.threads.len());
        while of_calls.count > options.most_slices.max(1) {
            of_calls.halve();
        }
        let mut excess;
        loop {
            let content = content::pack(subject, read, names, &frames, &of_calls, options)?;
            excess = excess_of(&content);
            let is_least = of_calls.count <= LEAST_SLICES && frames.calls() <= LEAST_CALLS;
            if excess <= 1.0 || is_least {
                let extent = ContentExtent {
                    calls: frames.calls(),
                    least_share: frames.least_share,
                    stacks_put_together: frames.stacks_put_together,
                    slices: of_calls.count,
                };
                return Ok((content, extent));
            }
            // Coarser time first, as far as there is still something to brush on; then fewer calls.
            if of_calls.count <= LEAST_SLICES || (excess > 3.0 && frames.calls() > LEAST_CALLS) {
                break;
            }
            of_calls.halve();
        }
        // Fewer each time, so this ends.
        most_calls = (most_calls.min(frames.calls()) as f64 / excess.clamp(1.2, 10.0)) as usize;
        least_share = frames.least_share;
    }
}
