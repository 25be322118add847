//! `cairn completions`: scripts for shells, and the candidates that these scripts ask for.
//!
//! A script only calls `cairn` back, with [`VARIABLE`] in the environment: the candidates come from
//! the same definitions that arguments are parsed by, and from the machine: recordings, processes,
//! programs.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::{self, Write};
use std::path::Path;

use clap::{Arg, Args, CommandFactory, ValueHint};
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter};
use clap_complete::env::Shells;
use clap_complete::{CompleteEnv, Shell};

use super::processes::running_processes;
use crate::output::{Outcome, printable};

/// Names the shell when a completion script calls `cairn`. A name of our own: a recorded program
/// may use the usual one, `COMPLETE`.
const VARIABLE: &str = "_CAIRN_COMPLETE";

/// Print a completion script for your shell
///
/// Completes options, recordings, the PIDs of running processes, and the programs to record. The
/// script calls cairn back, so it stays valid when cairn is updated.
#[derive(Args)]
#[command(after_help = "\
Examples:
  cairn completions bash > ~/.local/share/bash-completion/completions/cairn
  cairn completions zsh > ~/.zfunc/_cairn
  cairn completions fish > ~/.config/fish/completions/cairn.fish
  cairn completions powershell >> $PROFILE

For zsh, ~/.zfunc must be in fpath before compinit runs: fpath=(~/.zfunc $fpath)")]
pub(crate) struct Completions {
    /// The shell
    shell: Shell,
}

impl Completions {
    pub(crate) fn run(self) -> io::Result<Outcome> {
        let name = self.shell.to_string();
        let unknown = || io::Error::other(format!("{name}: there is no completion script for this shell"));
        let shells = Shells::builtins();
        let shell = shells.completer(&name).ok_or_else(unknown)?;
        let mut script = Vec::new();
        shell.write_registration(VARIABLE, "cairn", "cairn", &own_name()?, &mut script)?;
        let mut output = crate::output::stdout();
        output.write_all(&script)?;
        output.flush()?;
        Ok(Outcome::Done)
    }
}

/// Returns the command that scripts run: its path if it was called by one, else its name in PATH.
fn own_name() -> io::Result<String> {
    let called = std::env::args_os().next().unwrap_or_default();
    if Path::new(&called).components().count() < 2 {
        return Ok("cairn".to_owned());
    }
    Ok(std::env::current_exe()?.to_string_lossy().into_owned())
}

/// Answers a completion script and ends the process, if one has called. Else does nothing.
pub(crate) fn answer_script() {
    if std::env::var_os(VARIABLE).is_some() {
        CompleteEnv::with_factory(command_with_completers).var(VARIABLE).complete();
    }
}

fn command_with_completers() -> clap::Command {
    with_completers(crate::Cairn::command())
}

/// Adds completers to all arguments of a command and of its subcommands, by the names of their
/// values.
fn with_completers(command: clap::Command) -> clap::Command {
    let takes_recordings = TAKES_RECORDINGS.contains(&command.get_name());
    command.mut_args(|argument| with_completer(argument, takes_recordings)).mut_subcommands(with_completers)
}

/// Subcommands whose positional arguments are recordings.
const TAKES_RECORDINGS: [&str; 8] = ["top", "report", "diff", "flame", "view", "export", "play", "pack"];

fn with_completer(argument: Arg, takes_recordings: bool) -> Arg {
    let names = argument.get_value_names().unwrap_or_default();
    let has = |name: &str| names.iter().any(|names| names.split('|').any(|one| one == name));
    if argument.is_positional() && takes_recordings {
        let takes_pids = has("PID");
        argument.add(ArgValueCompleter::new(RecordingCompleter { takes_pids }))
    } else if has("PID") {
        argument.add(ArgValueCompleter::new(pids))
    } else if has("PROGRAM") {
        argument.add(ArgValueCompleter::new(ProgramCompleter))
    } else if has("DIR") {
        argument.value_hint(ValueHint::DirPath)
    } else {
        argument
    }
}

/// Returns the processes whose PID begins with `current`, each with its command.
fn pids(current: &OsStr) -> Vec<CompletionCandidate> {
    /// Maximum characters of a command, so that a menu has one line for each process.
    const SHOWN: usize = 60;
    let Some(current) = current.to_str() else { return Vec::new() };
    let processes = running_processes().into_iter();
    let processes = processes.map(|process| (process.pid.to_string(), process.command));
    let matching = processes.filter(|(pid, _)| pid.starts_with(current));
    matching
        .map(|(pid, command)| {
            let command: String = printable(&command).chars().take(SHOWN).collect();
            CompletionCandidate::new(pid).help(Some(command.into()))
        })
        .collect()
}

/// Completes recordings: files that end in `.cairn`; any file if there is none.
struct RecordingCompleter {
    /// The recording of a process can be named by its PID.
    takes_pids: bool,
}

impl ValueCompleter for RecordingCompleter {
    fn complete(&self, current: &OsStr) -> Vec<CompletionCandidate> {
        let is_recording = |path: &Path| path.is_file() && path.extension() == Some(OsStr::new("cairn"));
        let mut candidates = PathCompleter::any().filter(is_recording).complete(current);
        let is_directory =
            |candidate: &CompletionCandidate| candidate.get_value().as_encoded_bytes().ends_with(b"/");
        if candidates.iter().all(is_directory) {
            candidates = PathCompleter::any().complete(current);
        }
        if self.takes_pids {
            candidates.extend(pids(current));
        }
        candidates
    }
}

/// Completes a program and, behind it, its arguments: files, as far as cairn knows.
struct ProgramCompleter;

impl ValueCompleter for ProgramCompleter {
    fn complete(&self, current: &OsStr) -> Vec<CompletionCandidate> {
        if current.as_encoded_bytes().contains(&b'/') {
            return PathCompleter::any().filter(is_program).complete(current);
        }
        // Without a letter, all programs of the machine would hide the options.
        let Some(current) = current.to_str().filter(|text| !text.is_empty()) else { return Vec::new() };
        let path = std::env::var_os("PATH").unwrap_or_default();
        let entries = std::env::split_paths(&path).filter_map(|directory| directory.read_dir().ok());
        let entries = entries.flatten().filter_map(Result::ok);
        let programs = entries.filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            (name.starts_with(current) && is_program(&entry.path())).then_some(name)
        });
        programs.collect::<BTreeSet<_>>().into_iter().map(CompletionCandidate::new).collect()
    }

    fn complete_at(&self, index: usize, current: &OsStr) -> Vec<CompletionCandidate> {
        if index == 0 { self.complete(current) } else { PathCompleter::any().complete(current) }
    }
}

/// True for files that may be executed.
#[cfg(unix)]
fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().is_ok_and(|facts| facts.is_file() && facts.permissions().mode() & 0o111 != 0)
}

/// True for files that may be executed.
#[cfg(windows)]
fn is_program(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("exe")) && path.is_file()
}
