//! `cargo xtask page`: the page in a real browser.

use std::fs;
use std::process::Command;

use crate::process::{Failure, Outcome, at, cargo, on_path, run as run_command, workspace_root};

/// Drives the browser; it brings none of its own.
const DRIVER: &str = "puppeteer-core@24";

/// Debian calls it by the first name.
const BROWSERS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

/// Writes the pages of `examples/pages.rs` into `target/page` and runs `tests/browser/page.mjs` on them; arguments go to it.
pub(crate) fn run(arguments: &[String]) -> Outcome {
    let known = ["--times", "--no-screens"];
    if let Some(unknown) = arguments.iter().find(|argument| !known.contains(&argument.as_str())) {
        return Err(Failure::usage(format!("{unknown}: usage: cargo xtask page [--times] [--no-screens]")));
    }
    for (tool, package) in [("node", "nodejs"), ("npm", "npm")] {
        if !on_path(tool) {
            return Err(Failure::new(format!(
                "no {tool} on the path; install it (Debian: apt install {package})"
            )));
        }
    }
    let browser = BROWSERS.into_iter().find(|browser| on_path(browser)).ok_or_else(|| {
        Failure::new(format!(
            "none of {} on the path; install one (Debian: apt install chromium)",
            BROWSERS.join(", ")
        ))
    })?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(workspace_root().join("target"), Into::into);
    let directory = target.join("page");
    fs::create_dir_all(&directory).map_err(at(&directory))?;
    if !directory.join("node_modules/puppeteer-core").is_dir() {
        run_command(
            Command::new("npm")
                .args(["install", "--no-save", "--no-audit", "--no-fund", "--prefix"])
                .arg(&directory)
                .arg(DRIVER),
        )?;
    }
    run_command(cargo().args(["run", "--package", "cairn-web", "--example", "pages", "--"]).arg(&directory))?;
    run_command(
        Command::new("node")
            .arg(workspace_root().join("crates/cairn-web/tests/browser/page.mjs"))
            .arg(&directory)
            .args(arguments)
            .env("PUPPETEER_FROM", &directory)
            .env("CHROMIUM", which(browser)),
    )
}

fn which(program: &str) -> std::path::PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found =
        std::env::split_paths(&path).map(|directory| directory.join(program)).find(|file| file.is_file());
    found.unwrap_or_else(|| program.into())
}
