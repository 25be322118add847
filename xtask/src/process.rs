//! Starting other programs: each is printed before it runs, gets no stdin, and fails with its own
//! words.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

/// Result of a chore.
pub(crate) type Outcome<T = ()> = Result<T, Failure>;

/// Describes why a chore failed, and the remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    message: String,
    status: u8,
}

impl Failure {
    /// Something was found wrong: exit status 1.
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), status: 1 }
    }

    /// Creates a failure for unknown arguments: exit status 2.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self { message: message.into(), status: 2 }
    }

    /// Returns the exit status of xtask for this failure.
    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.status)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// Turns the error of a file operation into a failure that names the file.
pub(crate) fn at<E: fmt::Display>(path: &Path) -> impl FnOnce(E) -> Failure + '_ {
    move |error| Failure::new(format!("{}: {error}", path.display()))
}

/// Returns the directory of the workspace.
pub(crate) fn workspace_root() -> PathBuf {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().expect("xtask is a directory of the workspace").to_path_buf()
}

/// Returns the cargo that started us (or the one on the path), in the workspace's directory.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(workspace_root());
    command
}

/// Runs a command whose output goes where ours goes.
pub(crate) fn run(command: &mut Command) -> Outcome {
    println!("$ {}", shown(command));
    let start = Instant::now();
    let status = command.stdin(Stdio::null()).status().map_err(|error| not_started(command, &error))?;
    if status.success() {
        println!("  took {:.0} s", start.elapsed().as_secs_f64());
        return Ok(());
    }
    Err(Failure::new(format!("`{}` failed: {status}", shown(command))))
}

/// Runs a command quietly and returns what it wrote to stdout.
pub(crate) fn read(command: &mut Command) -> Outcome<String> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| not_started(command, &error))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let words = String::from_utf8_lossy(&output.stderr);
    Err(Failure::new(format!("`{}` failed: {}\n{}", shown(command), output.status, words.trim_end())))
}

/// Returns whether a program of this name is on the path.
pub(crate) fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

fn not_started(command: &Command, error: &std::io::Error) -> Failure {
    Failure::new(format!("could not start `{}`: {error}", shown(command)))
}

/// Returns the command as typed, with its variables; words with blanks are quoted.
fn shown(command: &Command) -> String {
    let variables = command.get_envs().filter_map(|(name, value)| {
        Some(format!("{}={}", name.to_string_lossy(), quoted(&value?.to_string_lossy())))
    });
    let program = Path::new(command.get_program());
    let program = program.file_name().filter(|_| program.ends_with("cargo")).unwrap_or(program.as_os_str());
    let words =
        std::iter::once(program).chain(command.get_args()).map(|word| quoted(&word.to_string_lossy()));
    variables.chain(words).collect::<Vec<_>>().join(" ")
}

fn quoted(word: &str) -> String {
    if word.is_empty() || word.contains(|c: char| c.is_whitespace() || "\"'$*;&|<>(){}".contains(c)) {
        return format!("'{}'", word.replace('\'', "'\\''"));
    }
    word.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_shows_commands_as_typed() {
        let mut command = Command::new("/opt/rust/bin/cargo");
        command.env("RUSTFLAGS", "-A -B").args(["test", "it's"]);
        assert_eq!(shown(&command), r"RUSTFLAGS='-A -B' cargo test 'it'\''s'");
    }

    #[test]
    fn process_reports_command_and_status() {
        let failure = read(Command::new("sh").args(["-c", "echo why >&2; exit 3"])).unwrap_err().to_string();
        assert!(failure.contains("sh -c") && failure.contains("exit status: 3"), "{failure}");
        assert!(failure.ends_with("why"), "{failure}");
    }

    #[test]
    fn process_names_a_missing_program() {
        let failure = run(&mut Command::new("no-such-program")).unwrap_err().to_string();
        assert!(failure.starts_with("could not start `no-such-program`"), "{failure}");
        assert!(!on_path("no-such-program") && on_path("sh"));
    }
}
