//! `cairn report --html`: everything as one page.

use std::io::{self, Write};

use cairn_analysis::heap::slices::Slices;
use cairn_analysis::heap::{HeapRead, Names, Scope};
use cairn_exchange::import::Times;
use cairn_web::{PageOptions, PageSubject, page};

use super::super::heap_input::Heap;
use crate::new_file::Output;

/// What a page holds by default decides how finely time is cut.
pub(super) fn most_slices() -> usize {
    PageOptions::default().most_slices
}

/// What the page is made of.
pub(super) struct Made<'a> {
    pub(super) heap: &'a Heap,
    pub(super) read: &'a HeapRead,
    pub(super) slices: &'a Slices,
}

/// Writes the page.
pub(super) fn write(
    mut output: Output,
    made: &Made<'_>,
    names: &mut Names<'_>,
    scope: Scope,
    filters: Vec<String>,
) -> io::Result<()> {
    let mut options = PageOptions::default();
    options.scope = scope;
    options.filters = filters;
    let subject = match made.heap {
        Heap::Recording(heap) => PageSubject::from(&**heap),
        Heap::Imported(imported) => {
            let times = match imported.times() {
                Times::All => cairn_web::Times::All,
                Times::Allocations => cairn_web::Times::Allocations,
                _ => cairn_web::Times::None,
            };
            PageSubject::of(&made.heap.about(), imported.stacks(), times)
        }
    };
    let page = page(subject, made.read, made.slices, names, &options).map_err(io::Error::other)?;
    output.write_all(page.html.as_bytes())?;
    output.finish().map(drop)
}
