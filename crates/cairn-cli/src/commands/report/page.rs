//! `cairn report --html`: everything as one page.

use std::io::{self, Write};

use cairn_analysis::heap::slices::Slices;
use cairn_analysis::heap::{HeapRead, Names, Scope};
use cairn_analysis::source::HeapSource;
use cairn_web::{PageOptions, page};

use crate::new_file::Output;

/// Slices of time that a page holds by default.
pub(super) fn most_slices() -> usize {
    PageOptions::default().most_slices
}

/// The content of the page.
pub(super) struct PageContent<'a> {
    pub(super) source: &'a HeapSource,
    pub(super) read: &'a HeapRead,
    pub(super) slices: &'a Slices,
}

/// Writes the page.
pub(super) fn write(
    mut output: Output,
    content: &PageContent<'_>,
    names: &mut Names<'_>,
    scope: Scope,
    filters: Vec<String>,
) -> io::Result<()> {
    let mut options = PageOptions::default();
    options.scope = scope;
    options.filters = filters;
    let page =
        page(content.source, content.read, content.slices, names, &options).map_err(io::Error::other)?;
    output.write_all(page.html.as_bytes())?;
    output.finish().map(drop)
}
