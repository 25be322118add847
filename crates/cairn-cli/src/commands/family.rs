//! Directories with the recordings of a program and of its children: their index, and what a
//! command says that reads one recording only.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::Path;

use cairn_analysis::family::{Family, Member};
use cairn_files::{Directory, Existing, NewFile};
use serde::{Deserialize, Serialize};

/// Name of the index.
pub(crate) const INDEX: &str = "index.json";

const SCHEMA: &str = "cairn.heap.index/1";

/// Maximum bytes of an index that is read; 1 GiB, a million rows.
const MOST_INDEX_BYTES: u64 = 1 << 30;

/// The index: what the recordings say themselves, and which files that was read from.
#[derive(Serialize, Deserialize)]
struct Index {
    schema: String,
    recordings: Vec<Member>,
}

/// True for a directory that `cairn heap --children` made.
pub(crate) fn has_index(directory: &Path) -> bool {
    directory.join(INDEX).is_file()
}

/// Reads the recordings in a directory, by its index where that is up to date.
pub(crate) fn read_family(directory: &Path) -> io::Result<Family> {
    Family::read(directory, read_index(directory).unwrap_or_default())
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", directory.display())))
}

/// Reads the rows of an index; nothing if there is none, or not one of this version.
fn read_index(directory: &Path) -> Option<Vec<Member>> {
    let path = directory.join(INDEX);
    // Opening a pipe would wait for a writer.
    path.metadata().ok().filter(std::fs::Metadata::is_file)?;
    let mut text = Vec::new();
    File::open(path).ok()?.take(MOST_INDEX_BYTES).read_to_end(&mut text).ok()?;
    let index: Index = serde_json::from_slice(&text).ok()?;
    (index.schema == SCHEMA).then_some(index.recordings)
}

/// Writes the index of a directory in place of the one that is there.
pub(crate) fn write_index(directory: Directory, recordings: Vec<Member>) -> io::Result<()> {
    let mut file = NewFile::create_in(directory, INDEX.into())?;
    let mut out = BufWriter::new(file.file_mut());
    serde_json::to_writer(&mut out, &Index { schema: SCHEMA.to_owned(), recordings })?;
    writeln!(out)?;
    out.flush()?;
    drop(out);
    file.commit(Existing::Replace)
}

/// Explains that a command reads one recording, and which ones are in the directory.
pub(crate) fn name_one_of(family: &Family) -> String {
    const SHOWN: usize = 5;
    let directory = family.directory().display();
    let ranked = family.ranked(cairn_analysis::heap::Cost::Peak).unwrap_or_default();
    if ranked.is_empty() {
        return format!("{directory}: a directory without a recording; name a file");
    }
    let mut names: Vec<String> = Vec::new();
    for member in family.main().into_iter().chain(ranked.iter().copied()) {
        let name = family.directory().join(OsStr::new(&member.file)).display().to_string();
        if !names.contains(&name) && names.len() < SHOWN {
            names.push(name);
        }
    }
    let more = match ranked.len() - names.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!(
        "{directory}: a directory with {} recordings; name one of them: {}{more} (`cairn report {directory}` compares them)",
        ranked.len(),
        names.join(", ")
    )
}
