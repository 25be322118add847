//! `cairn report --html`: everything as one page.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use cairn_analysis::heap::slices::Slices;
use cairn_analysis::heap::{HeapRead, HeapRecording, Names, Scope};
use cairn_web::{PageOptions, page};

/// What a page holds by default decides how finely time is cut.
pub(super) fn most_slices() -> usize {
    PageOptions::default().most_slices
}

/// Writes the page; an error names it. As for `cairn flame`, a file that is there is written over, and `-` is standard output.
#[allow(clippy::too_many_arguments, reason = "a page is made of all of these")]
pub(super) fn write(
    html: &Path,
    file: &Path,
    heap: &HeapRecording,
    read: &HeapRead,
    slices: &Slices,
    names: &mut Names<'_>,
    scope: Scope,
    filters: Vec<String>,
) -> io::Result<()> {
    let mut options = PageOptions::default();
    options.scope = scope;
    options.filters = filters;
    let page = page(heap, read, slices, names, &options)
        .map_err(|error| io::Error::other(format!("{}: {error}", html.display())))?;
    if html.as_os_str() == "-" {
        let mut output = io::stdout().lock();
        output.write_all(page.html.as_bytes())?;
        return output.flush();
    }
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", html.display()));
    let same = |path: &Path| std::fs::canonicalize(path).ok();
    if same(html).is_some() && same(html) == same(file) {
        return Err(named(io::Error::other("this is the recording; name another file for the page")));
    }
    let mut output = File::create(html).map_err(named)?;
    output.write_all(page.html.as_bytes()).map_err(named)
}
