//! `cairn heap` on Windows: runs a program and records what it does with its heap. Experimental.

#[path = "heap/children.rs"]
mod children;
#[path = "heap/summary.rs"]
mod summary;

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};

use cairn_analysis::units::bytes;
use cairn_recording::Recording;
use cairn_run::windows::{Library, Start, StartError, Unrecorded, is_running};
use clap::Args;

use super::family::has_index;
use children::RunDirectory;

use crate::output::{Outcome, complain, refusal};

/// Record where a program's memory goes: experimental on Windows
///
/// Runs the program unchanged, records every allocation and every free of its heaps with its call
/// stack to PROGRAM.PID.cairn in the current directory, and ends with the program's exit code. The
/// program need not be recompiled; it must be a 64-bit program for x86-64.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct HeapCommand {
    /// The program and its arguments. cairn's own options come before it
    // Hyphens are not allowed in front: an option that cairn does not know is an error, not a
    // program.
    #[arg(trailing_var_arg = true, required_unless_present_any = ["attach", "detach"], value_name = "PROGRAM")]
    program: Vec<OsString>,

    /// Write the recording to this file, or into this directory. In the name, `%n` means the
    /// program's name and `%p` its PID [default: %n.%p.cairn]
    #[arg(short, long, value_name = "PATH")]
    output: Option<PathBuf>,

    /// Replace an existing recording of the same name; otherwise the new one gets a number
    #[arg(long, requires = "output")]
    force: bool,

    /// Print errors only: no summary
    #[arg(short, long)]
    quiet: bool,

    /// Also record child processes; all recordings go to a directory PROGRAM.PID.cairn
    #[arg(long)]
    children: bool,

    /// Also record the ranges of addresses that the program itself maps; `cairn play` prints them
    #[arg(long)]
    mmap: bool,

    #[command(flatten)]
    of_linux: OptionsOfLinux,
}

/// Options that exist on Linux, so that the message says that instead of "unexpected argument".
#[derive(Args)]
struct OptionsOfLinux {
    #[arg(long, hide = true)]
    attach: Option<OsString>,
    #[arg(long, hide = true)]
    detach: Option<OsString>,
    #[arg(long, hide = true)]
    python: Option<OsString>,
    #[arg(long, hide = true)]
    sample: Option<OsString>,
    #[arg(long = "for", hide = true)]
    duration: Option<OsString>,
    #[arg(long, hide = true)]
    start_paused: bool,
    #[arg(long, hide = true)]
    max_size: Option<OsString>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "cairn")]
    annotate: Option<OsString>,
    #[arg(long, hide = true)]
    or_run: bool,
}

impl OptionsOfLinux {
    /// Returns the first one that was given.
    fn given(&self) -> Option<&'static str> {
        [
            (self.attach.is_some(), "--attach"),
            (self.detach.is_some(), "--detach"),
            (self.python.is_some(), "--python"),
            (self.sample.is_some(), "--sample"),
            (self.duration.is_some(), "--for"),
            (self.start_paused, "--start-paused"),
            (self.max_size.is_some(), "--max-size"),
            (self.annotate.is_some(), "--annotate"),
            (self.or_run, "--or-run"),
        ]
        .into_iter()
        .find_map(|(is_given, name)| is_given.then_some(name))
    }
}

const EXAMPLES: &str = "\
Examples:
  cairn heap server.exe --port 80             record a program
  cairn heap -o C:\\recordings\\ server.exe     write the recording into a directory
  cairn heap --children build.exe             record the program and those that it starts
  cairn heap -- --odd-name.exe                a program whose name begins with a hyphen

Exit codes: that of the program; 127 there is no such program; 126 it cannot be run; 2 it cannot be
recorded; 1 a file cannot be written.";

/// The usual name of a recording.
const USUAL_NAME: &str = "%n.%p.cairn";

impl HeapCommand {
    pub(crate) fn run(self) -> io::Result<Outcome> {
        if let Some(option) = self.of_linux.given() {
            return Err(refusal(format!("{option} works on Linux only")));
        }
        let Some((program, arguments)) = self.program.split_first() else { return Ok(Outcome::Done) };
        // A program of that name is given by its path.
        if program == "ctl" {
            return Err(refusal("`cairn heap ctl` works on Linux only"));
        }
        let path = match cairn_run::windows::find(program) {
            Ok(path) => path,
            Err(error) => return Ok(refused(&error)),
        };
        let name = path.file_stem().unwrap_or_default();
        let output = self.output()?;
        let library = Library::unpack()?;
        let run = self.run_directory(&output, name)?;
        if self.force && run.is_none() {
            make_room(&output, name)?;
        }
        let start = Start {
            program: path.as_os_str(),
            arguments,
            library: &library,
            children: self.children,
            mappings: self.mmap,
        };
        let recording = |process| match &run {
            Some(run) => run.path().to_owned(),
            None => unused(&filled(&output, name, Some(process)).unwrap_or_default()),
        };
        let mut running = match start.run(recording) {
            Ok(running) => running,
            Err(error) => return Ok(refused(&error)),
        };
        let code = running.wait()?;
        if !self.quiet {
            complain_of_children(&running.unrecorded());
            summarize(running.process(), running.recording());
        }
        if let Some(run) = run {
            run.finish(self.quiet, is_running);
        }
        // All 32 bits of it, which no `ExitCode` has room for.
        std::process::exit(code)
    }

    /// With children, makes the directory of their recordings, which has the recording's name.
    fn run_directory(&self, output: &Path, name: &OsStr) -> io::Result<Option<RunDirectory>> {
        let (true, Some(parent), Some(file)) = (self.children, output.parent(), output.file_name()) else {
            return Ok(None);
        };
        let within = |error: io::Error| {
            let text = format!("{}: {error}; nothing can be recorded there", output.display());
            io::Error::new(error.kind(), text)
        };
        RunDirectory::make(parent, file, name, self.force).map(Some).map_err(within)
    }

    /// Returns the absolute pattern of the recording's name, in a directory that exists.
    fn output(&self) -> io::Result<PathBuf> {
        let asked = self.output.as_deref().unwrap_or(Path::new("."));
        if asked == Path::new("-") {
            return Err(refusal(
                "-: a recording grows while the program runs, and is written to a file: give its name, as in \
                 -o app.cairn",
            ));
        }
        let ends_with_slash = asked.as_os_str().as_encoded_bytes().ends_with(b"/")
            || asked.as_os_str().as_encoded_bytes().ends_with(b"\\");
        let within = |error: io::Error| {
            let text = format!("{}: {error}; nothing can be recorded there", asked.display());
            io::Error::new(error.kind(), text)
        };
        if ends_with_slash {
            std::fs::create_dir_all(asked).map_err(within)?;
        }
        // A directory of recordings is the result of an earlier run, and no place for another one.
        let is_place = ends_with_slash || asked.is_dir() && !has_index(asked);
        let pattern = if is_place { asked.join(USUAL_NAME) } else { asked.to_owned() };
        let pattern = std::path::absolute(pattern)?;
        match pattern.parent().map(std::fs::metadata) {
            Some(Err(error)) => Err(within(error)),
            _ => Ok(pattern),
        }
    }
}

/// Prints the reason why nothing was run.
fn refused(error: &StartError) -> Outcome {
    complain(error);
    match error {
        StartError::NotFound(_) => Outcome::NoProgram,
        StartError::NotStarted(..) => Outcome::CannotRun,
        StartError::Unreadable(..) => Outcome::Partly,
        _ => Outcome::Refused,
    }
}

/// Removes the file that has the recording's name; no other process has a name with the PID.
fn make_room(output: &Path, name: &OsStr) -> io::Result<()> {
    let Some(path) = filled(output, name, None) else { return Ok(()) };
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(io::Error::new(error.kind(), format!("{}: {error}", path.display())))
        }
        _ => Ok(()),
    }
}

/// Fills `%n`, `%p` and `%%` into the name of a recording.
///
/// `None` when the pattern contains the PID and none is given.
fn filled(pattern: &Path, program: &OsStr, process: Option<u32>) -> Option<PathBuf> {
    let name = pattern.file_name().unwrap_or_default().to_string_lossy();
    let mut text = OsString::new();
    let mut parts = name.split('%');
    text.push(parts.next().unwrap_or_default());
    while let Some(part) = parts.next() {
        match part.chars().next() {
            Some('n') => text.push(program),
            Some('p') => text.push(process?.to_string()),
            // `%%`: the next part is behind both.
            None => {
                text.push("%");
                text.push(parts.next().unwrap_or_default());
                continue;
            }
            Some(_) => {
                text.push("%");
                text.push(part);
                continue;
            }
        }
        text.push(&part[1..]);
    }
    Some(pattern.with_file_name(text))
}

/// Puts a number above 1 into a name.
fn numbered(path: &Path, number: u32) -> PathBuf {
    if number <= 1 {
        return path.to_owned();
    }
    let mut name = path.file_stem().unwrap_or_default().to_owned();
    name.push(format!(".{number}"));
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

/// Puts a number above 1 into the name if a file has it.
fn unused(path: &Path) -> PathBuf {
    // The recorder appends a number of its own to a name that is in use.
    (1..1000)
        .map(|number| numbered(path, number))
        .find(|path| !path.exists())
        .unwrap_or_else(|| path.to_owned())
}

/// Explains which children were not recorded.
fn complain_of_children(unrecorded: &[Unrecorded]) {
    for Unrecorded { count, reason } in unrecorded {
        let children = if *count == 1 {
            "1 child was not recorded".to_owned()
        } else {
            format!("{count} children were not recorded")
        };
        complain(&format_args!("{children}: {reason}"));
    }
}

/// Prints where the recording is, and its summary. Errors change nothing about the program's end.
fn summarize(process: u32, path: &Path) {
    let length = std::fs::metadata(path).map_or(0, |data| data.len());
    complain(&format_args!("process {process} is recorded in {} ({})", path.display(), bytes(length)));
    let written = Recording::open(path)
        .map_err(io::Error::other)
        .and_then(|recording| summary::write(&mut crate::output::stderr(), recording, path));
    if let Err(error) = written
        && error.kind() != io::ErrorKind::BrokenPipe
    {
        complain(&format_args!("{}: {error}", path.display()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_recordings_have_their_fields_filled() {
        let cases = [
            ("%n.%p.cairn", "app.7.cairn"),
            ("100%%.cairn", "100%.cairn"),
            ("%%n%%p.cairn", "%n%p.cairn"),
            ("a%x%", "a%x%"),
            ("测试%n", "测试app"),
        ];
        for (pattern, name) in cases {
            let path = Path::new(r"Z:\none\%n").join(pattern);
            assert_eq!(
                filled(&path, OsStr::new("app"), Some(7)).unwrap(),
                Path::new(r"Z:\none\%n").join(name),
                "{pattern}"
            );
        }
    }
}
