//! `cargo xtask pictures`: makes the two pictures of the README from a real recording.
//!
//! The terminal answer is the coloured output of `cairn report` on `docs/book/programs/inbox.c`, as
//! an SVG file. The page is `cairn report --html` on `docs/book/programs/orders.cpp`, photographed
//! by the browser that tests the page.

use std::fs;
use std::process::Command;

use anstyle_svg::Term;

use crate::page::Browser;
use crate::process::{Failure, Outcome, at, cargo, on_path, read, run as run_command, workspace_root};

/// Where the pictures are, relative to the workspace.
const PICTURES: &str = "docs/pictures";

/// Columns of the terminal answer; 96, so that a page of 1000 pixels shows it unscaled.
const COLUMNS: &str = "96";

/// One program of the book: source, compiler with its options, recording.
const PROGRAMS: [(&str, &str, &[&str]); 2] =
    [("inbox.c", "cc", &["-O1", "-fno-inline"]), ("orders.cpp", "c++", &["-std=c++17", "-O1", "-pthread"])];

/// Records both programs, and writes `report.svg` and `page.webp`.
pub(crate) fn run(arguments: &[String]) -> Outcome {
    if let [first, ..] = arguments {
        return Err(Failure::usage(format!("pictures takes no arguments, but got {first:?}")));
    }
    if let Some((_, compiler, _)) = PROGRAMS.iter().find(|(_, compiler, _)| !on_path(compiler)) {
        return Err(Failure::new(format!(
            "no {compiler} on the path; install one (Debian: apt install gcc g++)"
        )));
    }
    let browser = Browser::find()?;
    let root = workspace_root();
    let pictures = root.join(PICTURES);
    let scratch = browser.directory.join("pictures");
    for directory in [&pictures, &scratch] {
        fs::create_dir_all(directory).map_err(at(directory))?;
    }
    run_command(cargo().args(["build", "--package", "cairn-cli"]))?;
    let cairn = || {
        let mut command = Command::new(crate::page::target_directory().join("debug/cairn"));
        command.current_dir(&scratch).env("COLUMNS", COLUMNS);
        command
    };
    for (source, compiler, options) in PROGRAMS {
        let name = source.split_once('.').map_or(source, |(name, _)| name);
        run_command(
            Command::new(compiler)
                .args(options)
                .args(["-g", "-o", name])
                .arg(root.join("docs/book/programs").join(source))
                .current_dir(&scratch),
        )?;
        let recording = scratch.join(format!("{name}.cairn"));
        if recording.exists() {
            fs::remove_file(&recording).map_err(at(&recording))?;
        }
        run_command(cairn().args(["heap", "--quiet", "-o"]).arg(&recording).arg(format!("./{name}")))?;
    }

    let report =
        read(cairn().args(["report", "--cost", "leaked", "inbox.cairn"]).env("CLICOLOR_FORCE", "1"))?;
    let answer = format!("$ cairn report --cost leaked inbox.cairn\n{}\n", report.trim_end());
    let file = pictures.join("report.svg");
    fs::write(&file, Term::new().render_svg(&answer)).map_err(at(&file))?;

    run_command(cairn().args(["report", "--html", "orders.html", "--force", "orders.cairn"]))?;
    browser.run("picture.mjs", "pictures", &[pictures.join("page.webp").display().to_string()], None)
}
