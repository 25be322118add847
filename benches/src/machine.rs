//! Where and of what a figure was made: without it the figure says nothing.

use std::fs;
use std::process::Command;

/// Markdown lines that name the machine, the tools and the commit.
pub(crate) fn description() -> String {
    let processor = fs::read_to_string("/proc/cpuinfo").ok().and_then(|text| {
        let value = |key: &str| {
            let line = text.lines().find(|line| line.starts_with(key))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        let count = text.lines().filter(|line| line.starts_with("processor")).count();
        Some(format!(
            "{} (family {}, model {}), {count} processors",
            value("model name")?,
            value("cpu family")?,
            value("model\t")?
        ))
    });
    let commit = first_line("git", &["rev-parse", "--short=12", "HEAD"]);
    let changed = first_line("git", &["status", "--porcelain", "--untracked-files=no"]).is_some();
    let commit =
        commit.map(|commit| if changed { format!("{commit} with uncommitted changes") } else { commit });
    let rows = [
        ("Processor", processor),
        ("Kernel", first_line("uname", &["-srm"])),
        ("C compiler", first_line("cc", &["--version"])),
        ("Rust", first_line("rustc", &["--version"])),
        ("Commit", commit),
    ];
    let unknown = || "unknown".to_owned();
    rows.into_iter().map(|(name, value)| format!("- {name}: {}\n", value.unwrap_or_else(unknown))).collect()
}

fn first_line(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    Some(text.lines().next()?.trim().to_owned())
}
