//! Builds the programs in `fixtures/programs`, runs programs with the library loaded, and reads
//! what they counted.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::report::{FOLLOW_AFTER, Report, VARIABLE};

/// A result, with the reason why a program could not be checked.
pub type Outcome<T = ()> = Result<T, String>;

/// When threads begin to follow a stack that changes every time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Following {
    /// As in every program.
    Usual,
    /// After two captures without a record, so that as many captures as possible follow.
    Early,
}

impl Following {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Usual, Self::Early];

    /// Makes a command's programs follow in this way.
    pub fn apply(self, command: &mut Command) {
        if self == Self::Early {
            command.env(FOLLOW_AFTER.to_str().unwrap_or_default(), "2");
        }
    }
}

/// A directory for built programs and their reports, below the build directory.
pub struct Workplace {
    directory: PathBuf,
}

/// The end of a checked program.
#[derive(Debug)]
pub struct Ended {
    /// Its exit status; `None` when it was killed because it took too long.
    pub status: Option<ExitStatus>,
    /// The counters of the program and its children.
    pub report: Report,
}

impl Ended {
    /// True when the program itself succeeded.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.status.is_some_and(|status| status.success())
    }
}

impl Workplace {
    /// Creates the directory, or empties it.
    ///
    /// # Errors
    ///
    /// When it cannot be created.
    pub fn new(name: &str) -> Outcome<Self> {
        let directory = build_directory()?.join("truth").join(name);
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
        Ok(Self { directory })
    }

    /// A path in the directory.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Compiles `source` (in `fixtures/programs`) to `output`, linked to the library of this crate.
    ///
    /// # Errors
    ///
    /// The compiler's messages.
    pub fn compile(&self, source: &str, output: &str, flags: &[&str]) -> Outcome<PathBuf> {
        let compiler = if source.ends_with(".cpp") { "c++" } else { "cc" };
        let library = library()?;
        let folder = library.parent().unwrap_or(Path::new("."));
        let target = self.path(output);
        let mut command = Command::new(compiler);
        command.args(["-g", "-pthread", "-I"]).arg(sources()).args(flags);
        command.arg(sources().join(source)).arg("-o").arg(&target).arg(&library);
        command.arg(format!("-Wl,-rpath,{}", folder.display())).args(["-ldl", "-lrt"]);
        must_succeed(&mut command)?;
        Ok(target)
    }

    /// Compiles a Rust source in the same way.
    ///
    /// # Errors
    ///
    /// The compiler's messages.
    pub fn compile_rust(&self, source: &str, output: &str, flags: &[&str]) -> Outcome<PathBuf> {
        let library = library()?;
        let folder = library.parent().unwrap_or(Path::new("."));
        let target = self.path(output);
        let mut command = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
        command.args(["--edition=2024", "-g"]).args(flags).arg(sources().join(source)).arg("-o").arg(&target);
        command.arg(format!("-Clink-arg={}", library.display()));
        command.arg(format!("-Clink-arg=-Wl,-rpath,{}", folder.display()));
        must_succeed(&mut command)?;
        Ok(target)
    }

    /// Runs a program that counts into a new file. One that takes longer than `limit` is killed.
    ///
    /// # Errors
    ///
    /// When it does not start or its file cannot be read.
    pub fn run(&self, command: &mut Command, limit: Duration) -> Outcome<Ended> {
        let file = self.path("report");
        Report::make(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        command.env(VARIABLE.to_str().unwrap_or_default(), &file).stdin(Stdio::null());
        let mut child = command.spawn().map_err(|error| format!("could not start {command:?}: {error}"))?;
        let end = Instant::now() + limit;
        let status = loop {
            match child.try_wait().map_err(|error| error.to_string())? {
                Some(status) => break Some(status),
                None if Instant::now() > end => {
                    let _ = child.kill();
                    let _ = child.wait();
                    break None;
                }
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        let report = Report::read(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        Ok(Ended { status, report })
    }
}

/// The sources of the fixture programs.
#[must_use]
pub fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/programs")
}

/// True if a program of this name is on the path.
#[must_use]
pub fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

/// The shared library of this crate, which cargo builds next to every test and program of it.
fn library() -> Outcome<PathBuf> {
    let build = build_directory()?;
    let candidates = [build.join("deps/libcairn_truth.so"), build.join("libcairn_truth.so")];
    let found = candidates.iter().find(|path| path.is_file()).cloned();
    found.ok_or_else(|| format!("{}: not built", candidates[0].display()))
}

/// The directory of the running test or program: `target/debug` or `target/release`.
fn build_directory() -> Outcome<PathBuf> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let folder = program.parent().ok_or("the path of the running program has no directory")?;
    let is_deps = folder.file_name() == Some(OsStr::new("deps"));
    Ok(if is_deps { folder.parent().unwrap_or(folder) } else { folder }.to_path_buf())
}

fn must_succeed(command: &mut Command) -> Outcome {
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("could not start {command:?}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{command:?} failed: {}", String::from_utf8_lossy(&output.stderr)))
}

/// True when there is a C++ compiler. Without one, tests skip the programs in C++, with a message
/// on standard error.
#[must_use]
#[expect(clippy::print_stderr, reason = "only tests call it, and a skipped test must report that")]
pub fn has_cpp_compiler() -> bool {
    let is_here = Command::new("c++").arg("--version").output().is_ok_and(|output| output.status.success());
    if !is_here {
        eprintln!("skipped: c++ is not installed (Debian: apt-get install g++)");
    }
    is_here
}
