//! The libraries as they are shipped, installed below a directory of the test's own; and the C
//! compiler.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// Where this workspace lies.
pub(crate) fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The prefix that libraries, header and pkg-config file are installed below. They are built in the
/// profile that is shipped: what `cargo test` itself builds is another library.
pub(crate) fn installed() -> &'static Path {
    static PREFIX: OnceLock<PathBuf> = OnceLock::new();
    PREFIX.get_or_init(|| {
        let prefix = scratch().join("prefix");
        let mut command = Command::new(env!("CARGO"));
        command.args(["run", "--quiet", "--package", "xtask", "--", "c-library", "--prefix"]).arg(&prefix);
        run(command.current_dir(workspace()));
        prefix
    })
}

/// A directory for what this test program makes.
pub(crate) fn scratch() -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(env!("CARGO_CRATE_NAME"));
    std::fs::create_dir_all(&directory).unwrap();
    directory
}

/// Runs a command that has to succeed.
pub(crate) fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    );
    output
}

/// Returns the standard output of a command that has to succeed.
pub(crate) fn output_of(command: &mut Command) -> String {
    String::from_utf8(run(command).stdout).unwrap()
}

/// `cc` with all warnings as errors. Debug information is for the names that the tests look up.
pub(crate) fn c_compiler() -> Command {
    let mut command = Command::new("cc");
    command.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-g", "-pthread"]);
    command
}
