//! `cargo xtask book`: builds the book with mdBook and checks all documents of the repository.
//!
//! The checks need no mdBook and are tests, too (`cargo test -p xtask`): links and anchors of every
//! Markdown file, paths of documents that sources name, and the constants that design pages state.
//! That the commands in the book run is checked by `crates/cairn-cli/tests/book.rs`.

use std::process::Command;

use crate::process::{Failure, Outcome, run as run_command, workspace_root};
use crate::tool::Tool;
use crate::{design_constants, documents};

/// Without its features mdBook serves and watches nothing, and builds in half the time.
const MDBOOK: Tool = Tool {
    name: "mdbook",
    version: "0.5.4",
    asks_version: &["--version"],
    build: &["--no-default-features", "--features", "search"],
};

/// Where the built book is, relative to the workspace.
const BUILT: &str = "target/book";

/// Checks the documents, then builds the book into `target/book`; with `--check` only checks.
pub(crate) fn run(arguments: &[String]) -> Outcome {
    let check_only = match arguments {
        [] => false,
        [flag] if flag == "--check" => true,
        _ => return Err(Failure::usage("usage: cargo xtask book [--check]")),
    };
    let root = workspace_root();
    let mut complaints = documents::complaints(&root)?;
    complaints.extend(design_constants::complaints(&root)?);
    if !complaints.is_empty() {
        return Err(Failure::new(format!("the documents have faults:\n{}", complaints.join("\n"))));
    }
    println!("links, paths and constants of the documents are right");
    if check_only {
        return Ok(());
    }
    let mdbook = MDBOOK.program()?;
    run_command(
        Command::new(mdbook).arg("build").arg(root.join("docs/book")).arg("--dest-dir").arg(root.join(BUILT)),
    )?;
    println!("the book is in {BUILT}/index.html");
    Ok(())
}
