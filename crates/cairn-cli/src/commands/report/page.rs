//! `cairn report --html`: everything as one page.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use cairn_analysis::heap::{HeapRead, HeapRecording, Names, Scope};
use cairn_web::{PageError, PageOptions, page};

/// Writes the page; an error names the recording or the page, whichever it is of. As for `cairn flame`, a file that is there is
/// written over, and `-` is standard output.
pub(super) fn write(
    html: &Path,
    file: &Path,
    heap: &HeapRecording,
    read: &HeapRead,
    names: &mut Names<'_>,
    scope: Scope,
    filters: Vec<String>,
) -> io::Result<()> {
    let mut options = PageOptions::default();
    options.scope = scope;
    options.filters = filters;
    let page = page(heap, read, names, &options).map_err(|error| match error {
        PageError::Recording(error) => io::Error::other(format!("{}: {error}", file.display())),
        error => io::Error::other(format!("{}: {error}", html.display())),
    })?;
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
