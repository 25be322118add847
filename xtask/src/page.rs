//! `cargo xtask page` and `cargo xtask view`: the page in a real browser, as a file and served.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::{Failure, Outcome, at, cargo, on_path, run as run_command, workspace_root};

/// Drives the browser; it brings none of its own.
const DRIVER: &str = "puppeteer-core@24";

/// Debian calls it by the first name.
const BROWSERS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

/// Tests the page's tree of calls in node, and the pages of `examples/pages.rs` in a browser.
///
/// The pages are written to `target/browser/page`; `tests/browser/page.mjs` gets the arguments.
pub(crate) fn run(arguments: &[String]) -> Outcome {
    check_arguments(arguments, &["--times", "--no-screens"], "page [--times] [--no-screens]")?;
    let browser = Browser::find()?;
    run_command(Command::new("node").arg(workspace_root().join("crates/cairn-web/tests/browser/shape.mjs")))?;
    run_command(
        cargo()
            .args(["run", "--package", "cairn-web", "--example", "pages", "--"])
            .arg(browser.directory.join("page")),
    )?;
    browser.run("page.mjs", "page", arguments, None)
}

/// Builds the command and runs `tests/browser/view.mjs` with it; arguments go to it. Programs,
/// recordings and pictures are in `target/browser/view`.
pub(crate) fn run_view(arguments: &[String]) -> Outcome {
    check_arguments(arguments, &["--no-screens"], "view [--no-screens]")?;
    let browser = Browser::find()?;
    if !on_path("cc") {
        return Err(Failure::new(
            "no cc on the path; install one (Debian: apt install gcc libc6-dev)".to_owned(),
        ));
    }
    run_command(cargo().args(["build", "--package", "cairn-cli"]))?;
    let command = target_directory().join("debug/cairn");
    browser.run("view.mjs", "view", arguments, Some(&command))
}

fn check_arguments(arguments: &[String], known: &[&str], usage: &str) -> Outcome {
    match arguments.iter().find(|argument| !known.contains(&argument.as_str())) {
        Some(unknown) => Err(Failure::usage(format!("{unknown}: usage: cargo xtask {usage}"))),
        None => Ok(()),
    }
}

pub(crate) fn target_directory() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or(workspace_root().join("target"), Into::into)
}

/// A browser, and what drives it.
pub(crate) struct Browser {
    name: &'static str,
    /// Where the driver is, and a directory for each kind of test.
    pub(crate) directory: PathBuf,
}

impl Browser {
    pub(crate) fn find() -> Result<Self, Failure> {
        for (tool, package) in [("node", "nodejs"), ("npm", "npm")] {
            if !on_path(tool) {
                return Err(Failure::new(format!(
                    "no {tool} on the path; install it (Debian: apt install {package})"
                )));
            }
        }
        let name = BROWSERS.into_iter().find(|browser| on_path(browser)).ok_or_else(|| {
            Failure::new(format!(
                "none of {} on the path; install one (Debian: apt install chromium)",
                BROWSERS.join(", ")
            ))
        })?;
        let directory = target_directory().join("browser");
        fs::create_dir_all(&directory).map_err(at(&directory))?;
        if !directory.join("node_modules/puppeteer-core").is_dir() {
            run_command(
                Command::new("npm")
                    .args(["install", "--no-save", "--no-audit", "--no-fund", "--prefix"])
                    .arg(&directory)
                    .arg(DRIVER),
            )?;
        }
        Ok(Self { name, directory })
    }

    /// Runs a test in a directory of its own.
    pub(crate) fn run(
        &self,
        test: &str,
        directory: &str,
        arguments: &[String],
        cairn: Option<&Path>,
    ) -> Outcome {
        let directory = self.directory.join(directory);
        fs::create_dir_all(&directory).map_err(at(&directory))?;
        let mut node = Command::new("node");
        node.arg(workspace_root().join("crates/cairn-web/tests/browser").join(test))
            .arg(&directory)
            .args(arguments)
            .env("PUPPETEER_FROM", &self.directory)
            .env("CHROMIUM", which(self.name));
        if let Some(cairn) = cairn {
            node.env("CAIRN", cairn);
        }
        run_command(&mut node)
    }
}

fn which(program: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found =
        std::env::split_paths(&path).map(|directory| directory.join(program)).find(|file| file.is_file());
    found.unwrap_or_else(|| program.into())
}
