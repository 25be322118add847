//! `cairn heap`: runs a program and records what it does with its memory.

mod annotate;
#[cfg(target_arch = "x86_64")]
mod attach;
#[cfg(not(target_arch = "x86_64"))]
#[path = "heap/attach_elsewhere.rs"]
mod attach;
mod chain;
mod children;
mod control;
mod holder;
mod live;
mod own_share;
mod summary;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, IsTerminal};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cairn_analysis::source::split_size;
use cairn_files::Directory;
use cairn_run::{Announcements, End, Event, Library, Obstacle, Program, Running, Start};
use clap::Args;

use super::family::has_index;
use super::heap_text;
use super::processes::parse_pid;
use crate::output::{Outcome, complain};
use children::RunDirectory;
use live::Recordings;

/// Record where a program's memory goes
///
/// Runs the program unchanged, records every allocation and every free with its call stack to
/// PROGRAM.PID.cairn in the current directory, and ends with the program's exit code. The program
/// need not be recompiled; it must be linked dynamically, against glibc, for the processor of this
/// machine.
#[derive(Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct HeapCommand {
    #[command(subcommand)]
    action: Option<Action>,

    /// The program and its arguments. cairn's own options come before it
    // Hyphens are not allowed in front: an option that cairn does not know is an error, not a
    // program.
    #[arg(
        trailing_var_arg = true,
        required_unless_present_any = ["attach", "detach"],
        value_name = "PROGRAM"
    )]
    program: Vec<OsString>,

    /// Record a running process until Ctrl-C or its end; it continues afterwards
    #[arg(long, value_name = "PID", value_parser = parse_pid, conflicts_with_all = ["program", "detach", "children", "or_run"])]
    attach: Option<u32>,

    /// End the recording that `--attach` began, from another terminal
    #[arg(long, value_name = "PID", value_parser = parse_pid, conflicts_with = "program")]
    detach: Option<u32>,

    /// Write the recording to this file or directory (`DIR/` is created). In the name, `%n` means
    /// the program's name and `%p` its PID [default: %n.%p.cairn]
    #[arg(short, long, value_name = "PATH")]
    output: Option<PathBuf>,

    /// Replace an existing recording of the same name; otherwise the new one gets a number
    #[arg(long, requires = "output")]
    force: bool,

    /// Print errors only: no status line and no summary
    #[arg(short, long)]
    quiet: bool,

    /// Also record child processes, forked or started; all go to a directory PROGRAM.PID.cairn
    #[arg(long)]
    children: bool,

    /// Also record the mappings that the program itself creates
    #[arg(long)]
    mmap: bool,

    /// Record Python's frames and all of its objects, or native frames and what `malloc` sees
    #[arg(long, value_name = "WHAT", default_value = "full", hide_default_value = true)]
    python: PythonMode,

    /// Record a sample: one byte in SIZE on average, as 512KiB. Costs almost nothing; totals are
    /// estimates
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    sample: Option<u64>,

    /// Stop recording after this time (30s, 5m, 1h); the program continues
    #[arg(long = "for", value_name = "TIME", value_parser = parse_time)]
    duration: Option<Duration>,

    /// Record nothing until `cairn heap ctl PID start`
    #[arg(long)]
    start_paused: bool,

    /// Stop recording when a file reaches this size, as 2GiB
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    max_size: Option<u64>,

    /// Record nothing; write the stack that allocated a block in front of it, for core files and
    /// dumps
    #[arg(
        long,
        value_name = "LAYOUT",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "cairn",
        conflicts_with_all = ["attach", "detach", "output", "force", "mmap", "sample", "duration", "start_paused", "max_size"]
    )]
    annotate: Option<annotate::Layout>,

    /// Run the program unrecorded if it cannot be recorded, instead of refusing
    #[arg(long)]
    or_run: bool,
}

/// The part of Python that is recorded.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum PythonMode {
    /// Python frames in all stacks, and every object
    Full,
    /// Native frames, and the allocations that `malloc` sees
    Native,
}

#[derive(clap::Subcommand)]
enum Action {
    Ctl(control::Ctl),
}

const EXAMPLES: &str = "\
Examples:
  cairn heap python3 -c 'print(sorted(str(n) for n in range(100000))[:3])'
  cairn heap --children make -j8              record make and the compilers that it starts
  cairn heap --sample 512KiB server --port 80 record a sample, at almost no cost
  cairn heap --for 30s server --port 80       record the first 30 seconds of a server
  cairn heap --annotate server --port 80      no recording; a core file names the stack of each block
  cairn heap --attach 4711                    record process 4711, from now until Ctrl-C
  cairn heap ctl 4711 stop                    pause the recording of process 4711
  cairn heap ctl 4711 mark 'after warm-up'    write a mark into the recording
  cairn heap -- --odd-name                    a program whose name begins with a hyphen

Without this command: LD_PRELOAD=libcairn_preload.so CAIRN_HEAP=output=/var/tmp/%n.%p.cairn PROGRAM

Exit codes: that of the program; 127 there is no such program; 126 it cannot be run; 2 it cannot be
recorded; 1 a file cannot be written, or with --attach and --detach, the process is missing.";

impl HeapCommand {
    pub(crate) fn run(self) -> io::Result<Outcome> {
        if let Some(Action::Ctl(ctl)) = self.action {
            return ctl.run();
        }
        if let Some(done) = match (self.attach, self.detach) {
            (Some(process), _) => Some(self.attach(process)),
            (_, Some(process)) => Some(attach::detach(process)),
            _ => None,
        } {
            return Ok(done.unwrap_or_else(|Refused { outcome, message }| {
                complain(&message);
                outcome
            }));
        }
        let Some((name, arguments)) = self.program.split_first() else { return Ok(Outcome::Done) };
        let ended = match self.annotate {
            Some(layout) => self.annotate(layout, name, arguments),
            None => self.record(name, arguments),
        };
        match ended {
            Ok(end) => end.imitate(),
            Err(Refused { outcome, message }) => {
                complain(&message);
                Ok(outcome)
            }
        }
    }

    fn record(&self, name: &OsStr, arguments: &[OsString]) -> Result<End, Refused> {
        let program = Program::find(name)?;
        let is_ready = program.inspect().map_err(Refused::from).and_then(|()| {
            let (output, run) = self.run_output(&program)?;
            let unpacked = if program.uses_other_allocator() {
                Library::unpack_for_allocators()
            } else {
                Library::unpack()
            };
            let library = unpacked.map_err(|error| Refused::because("the library for recording", &error))?;
            let announcements = Announcements::new().map_err(|error| Refused {
                outcome: Outcome::Partly,
                message: format!(
                    "{error}; set TMPDIR to a directory for temporary files that can be written to"
                ),
            })?;
            Ok((output, run, library, announcements))
        });
        match is_ready {
            Ok((output, run, library, announcements)) => {
                if run.is_none() {
                    self.make_room(&output, &program)?;
                }
                let options = self.options(&output, announcements.path());
                let start = Start { program: &program, arguments, library: Some((&library, &options)) };
                let running = start.run().map_err(|error| Refused::start(&program, &error))?;
                let ended = self.follow(running, announcements);
                if let Some(run) = run {
                    // All recordings were closed.
                    run.finish(self.quiet, |_| false);
                }
                ended
            }
            Err(refused) if self.or_run && refused.outcome != Outcome::CannotRun => {
                complain(&format_args!("{}; it runs unrecorded", refused.message));
                let start = Start { program: &program, arguments, library: None };
                let mut running = start.run().map_err(|error| Refused::start(&program, &error))?;
                loop {
                    if let Event::Ended(end) =
                        running.wait(Duration::from_secs(3600)).map_err(|error| not_run(&error))?
                    {
                        return Ok(end);
                    }
                }
            }
            Err(refused) => Err(refused),
        }
    }

    /// Returns the pattern of the recordings' names; with children, they lie in a directory that
    /// is made.
    fn run_output(&self, program: &Program) -> Result<(PathBuf, Option<RunDirectory>), Refused> {
        if !self.children {
            return Ok((self.output()?, None));
        }
        let (directory, file) = self.place()?;
        let name = program.path().file_name().unwrap_or_default();
        let run = RunDirectory::make(&directory, &file, name, self.force)
            .map_err(|error| Refused::because(&directory.join(&file).display().to_string(), &error))?;
        Ok((pattern(run.path().to_owned(), OsStr::new(USUAL_NAME)), Some(run)))
    }

    /// Returns the pattern of the recording's name: absolute, in a directory that can be written
    /// to.
    fn output(&self) -> Result<PathBuf, Refused> {
        let (directory, file) = self.place()?;
        Ok(pattern(directory, &file))
    }

    /// Returns a directory that can be written to, and the pattern of a name in it.
    fn place(&self) -> Result<(PathBuf, OsString), Refused> {
        let asked = self.output.as_deref().unwrap_or(Path::new("."));
        if asked == Path::new("-") {
            let why = "a recording grows while the program runs, and is written to a file: give its name, as in \
                       -o app.cairn (`cairn pack -o -` writes a finished one to standard output)";
            return Err(Refused { outcome: Outcome::Refused, message: format!("-: {why}") });
        }
        let unusable = |path: &Path, error: &io::Error| Refused::because(&path.display().to_string(), error);
        let ends_with_slash = asked.as_os_str().as_encoded_bytes().ends_with(b"/");
        if ends_with_slash {
            Directory::open_or_make(asked).map_err(|error| unusable(asked, &error))?;
        }
        // A directory of recordings is the result of an earlier run, and no place for another one.
        let is_place = asked.is_dir() && (ends_with_slash || !has_index(asked));
        let (directory, file) = if is_place {
            (asked, OsStr::new(USUAL_NAME))
        } else {
            let directory = asked.parent().filter(|parent| !parent.as_os_str().is_empty());
            let file = asked.file_name().ok_or_else(|| Refused {
                outcome: Outcome::Refused,
                message: format!(
                    "{}: this names no file; give a file or an existing directory",
                    asked.display()
                ),
            })?;
            (directory.unwrap_or(Path::new(".")), file)
        };
        let directory = fs::canonicalize(directory).map_err(|error| unusable(directory, &error))?;
        // An error must come before the program runs, not after.
        cairn_files::unnamed_file_in(&directory).map_err(|error| unusable(&directory, &error))?;
        Ok((directory, file.to_owned()))
    }

    /// With `--force`, removes the file that has the recording's name: the library replaces
    /// nothing. Not needed for names with the PID, which no other process has.
    fn make_room(&self, output: &Path, program: &Program) -> Result<(), Refused> {
        if !self.force {
            return Ok(());
        }
        let name = program.path().file_name().unwrap_or_default();
        let Some(path) = filled(output, name, None) else { return Ok(()) };
        let refused = |error: &io::Error| Refused::because(&path.display().to_string(), error);
        let (directory, name) = Directory::of(&path).map_err(|error| refused(&error))?;
        match directory.facts(&name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(refused(&error)),
            Ok(_) => directory.remove(&name).map_err(|error| refused(&error)),
        }
    }

    /// Returns the value of `CAIRN_HEAP`.
    fn options(&self, output: &Path, announcements: &Path) -> OsString {
        let mut options = OsString::from("parent,announce=");
        options.push(announcements);
        let mut add = |text: String| {
            options.push(",");
            options.push(text);
        };
        if let Some(bytes) = self.max_size {
            // The program's own file is drained continuously and stays small; this limit is for the
            // case that cairn is killed. The file needs room for what is not yet drained.
            const LEAST_BYTES: u64 = 64 << 20;
            add(format!("max-size={}", bytes.max(LEAST_BYTES)));
        }
        if let Some(bytes) = self.sample {
            add(format!("sample={bytes}"));
        }
        for (is_on, word) in [(self.children, "children"), (self.mmap, "mmap"), (self.start_paused, "paused")]
        {
            if is_on {
                add(word.to_owned());
            }
        }
        if self.python == PythonMode::Native {
            add("python=native".to_owned());
        }
        options.push(",output=");
        options.push(output);
        options
    }

    fn follow(&self, mut running: Running, mut announcements: Announcements) -> Result<End, Refused> {
        /// A sample is small: rare reads suffice, and disturb the program less.
        const SAMPLE_TICK: Duration = Duration::from_millis(20);
        /// A program that does not record by then never will.
        const PATIENCE: Duration = Duration::from_secs(2);
        let began = Instant::now();
        let mut tick = if self.sample.is_some() { SAMPLE_TICK } else { SHORTEST_TICK };
        let shows_status = !self.quiet && io::stderr().is_terminal();
        let mut recordings =
            Recordings::new(Some(running.process()), shows_status, self.max_size.unwrap_or(u64::MAX));
        if !self.children {
            recordings = recordings.following_exec(self.force);
        }
        let mut is_late = false;
        let end = loop {
            let event = running.wait(tick).map_err(|error| not_run(&error))?;
            for announced in announcements.read().unwrap_or_default() {
                recordings.add(announced);
            }
            recordings.tick();
            if self.sample.is_none() {
                tick = next_tick(tick, recordings.read_bytes());
            }
            if !is_late
                && recordings.is_empty()
                && began.elapsed() > PATIENCE
                && live::has_run(running.process())
            {
                is_late = true;
                complain(
                    &"the program runs, but does not record: the loader ignored LD_PRELOAD, or nothing was written",
                );
            }
            // `--for` counts from the start of the recording: loading the program may take long.
            let is_over =
                self.duration.zip(recordings.recorded_for()).is_some_and(|(limit, time)| time >= limit);
            if is_over && !recordings.is_paused() {
                recordings.pause();
            }
            if let Event::Ended(end) = event {
                break end;
            }
        };
        for announced in announcements.read().unwrap_or_default() {
            recordings.add(announced);
        }
        self.wait_for_children(&mut recordings, &mut announcements, tick);
        recordings.finish(end, self.quiet);
        Ok(end)
    }

    /// Waits until the recordings of all children have ended. One that is closed earlier would lack
    /// the rest.
    fn wait_for_children(
        &self,
        recordings: &mut Recordings,
        announcements: &mut Announcements,
        tick: Duration,
    ) {
        /// A child that was just started may not record yet; one that does not by then never will.
        const PATIENCE: Duration = Duration::from_secs(5);
        let mut interrupts = None;
        let (mut has_warned, mut quiet_since) = (false, Instant::now());
        loop {
            recordings.tick();
            let is_open = recordings.open_children() > 0;
            let is_awaited = self.children
                && !is_open
                && quiet_since.elapsed() < PATIENCE
                && recordings.awaits_any_of(holder::started_with(announcements.path()));
            // Read after the liveness checks: a process that has ended by then has announced
            // everything.
            let late = announcements.read().unwrap_or_default();
            let is_late = !late.is_empty();
            late.into_iter().for_each(|announced| recordings.add(announced));
            if is_open || is_late {
                quiet_since = Instant::now();
            }
            if !is_open && !is_late && !is_awaited {
                return;
            }
            if is_open && !has_warned && !self.quiet {
                has_warned = true;
                recordings.say(&format_args!(
                    "the program has ended; still open: {}; Ctrl-C closes what is open",
                    heap_text::counted(recordings.open_children() as u64, "child recording")
                ));
            }
            if interrupts.get_or_insert_with(cairn_run::Interrupts::hold).wait(tick) {
                return;
            }
        }
    }
}

/// Shortest pause between two reads of the spool, for programs that write much.
const SHORTEST_TICK: Duration = Duration::from_millis(1);
/// Longest pause between two reads of programs that write little; 4 ms.
///
/// Each read wakes a processor, whose caches are cold by then.
const LONGEST_TICK: Duration = Duration::from_millis(4);
/// Bytes of one read below which the pause grows: some thousands of allocations.
const LITTLE_BYTES: u64 = 64 << 10;
/// Bytes of one read from which the pause shrinks, so that waiting events stay in the caches.
const MUCH_BYTES: u64 = 256 << 10;

/// Returns the pause before the next read, from the last pause and the bytes that were read after
/// it.
fn next_tick(tick: Duration, read_bytes: u64) -> Duration {
    match read_bytes {
        ..LITTLE_BYTES => (tick * 2).min(LONGEST_TICK),
        LITTLE_BYTES..MUCH_BYTES => tick,
        _ => (tick / 2).max(SHORTEST_TICK),
    }
}

/// The usual name of a recording.
const USUAL_NAME: &str = "%n.%p.cairn";

/// Returns the pattern of names in a directory, as the library reads it.
fn pattern(directory: PathBuf, file: &OsStr) -> PathBuf {
    // Percent signs in the names of directories are no fields.
    let mut path = OsString::from(directory.into_os_string().to_string_lossy().replace('%', "%%"));
    path.push("/");
    path.push(file);
    path.into()
}

/// Puts a number above 1 into a name, as the library does when a file has the name.
fn numbered(name: &Path, number: u32) -> PathBuf {
    if number <= 1 {
        return name.to_owned();
    }
    let bytes = name.as_os_str().as_bytes();
    let (stem, ending) = match bytes.strip_suffix(b".cairn") {
        Some(stem) => (stem, ".cairn"),
        None => (bytes, ""),
    };
    let mut name = OsStr::from_bytes(stem).to_owned();
    name.push(format!(".{number}{ending}"));
    name.into()
}

/// Fills `%n`, `%p` and `%%` into a pattern for names.
///
/// `None` when the pattern contains the PID and none is given.
fn filled(pattern: &Path, program: &OsStr, process: Option<u32>) -> Option<PathBuf> {
    let mut name = Vec::new();
    let mut bytes = pattern.as_os_str().as_bytes().iter();
    while let Some(&byte) = bytes.next() {
        match if byte == b'%' { bytes.next() } else { None } {
            Some(b'p') => name.extend_from_slice(process?.to_string().as_bytes()),
            Some(b'n') => name.extend_from_slice(program.as_bytes()),
            Some(&other) => name.push(other),
            None => name.push(byte),
        }
    }
    Some(OsString::from_vec(name).into())
}

/// Explains that waiting for the program failed.
fn not_run(error: &io::Error) -> Refused {
    Refused { outcome: Outcome::CannotRun, message: format!("the program cannot be run: {error}") }
}

/// The reason why nothing is recorded.
struct Refused {
    outcome: Outcome,
    message: String,
}

impl Refused {
    fn because(what: &str, error: &io::Error) -> Self {
        Self {
            outcome: Outcome::Partly,
            message: format!(
                "{what}: {error}; nothing can be recorded there, name another place with --output"
            ),
        }
    }

    fn start(program: &Program, error: &cairn_run::StartError) -> Self {
        let message = format!("{}: cannot be started: {error}", program.path().display());
        Self { outcome: Outcome::CannotRun, message }
    }
}

impl From<Obstacle> for Refused {
    fn from(obstacle: Obstacle) -> Self {
        let outcome = match obstacle {
            Obstacle::NotFound { .. } => Outcome::NoProgram,
            Obstacle::NotExecutable { .. } => Outcome::CannotRun,
            Obstacle::Unreadable { .. } => Outcome::Partly,
            _ => Outcome::Refused,
        };
        Self { outcome, message: obstacle.to_string() }
    }
}

/// Reads a number of bytes with its unit.
fn parse_size(text: &str) -> Result<u64, String> {
    let (number, shift) = split_size(text).ok_or("a size is a number with a unit: 512KiB, 64MiB, 2GiB")?;
    let bytes = number.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
    bytes
        .filter(|bytes| *bytes > 0)
        .ok_or_else(|| "a size is a number above 0: 512KiB, 64MiB, 2GiB".to_owned())
}

/// Reads a time with its unit.
fn parse_time(text: &str) -> Result<Duration, String> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let seconds = match unit {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err("a time is a number with a unit: 500ms, 30s, 5m, 1h".to_owned()),
    };
    let number: f64 =
        number.parse().map_err(|_| "a time is a number with a unit: 500ms, 30s, 5m, 1h".to_owned())?;
    Duration::try_from_secs_f64(number * seconds).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_longer_while_little_comes() {
        let after = |reads: &[u64]| reads.iter().fold(SHORTEST_TICK, |tick, &bytes| next_tick(tick, bytes));
        assert_eq!(after(&[0; 20]), LONGEST_TICK);
        assert_eq!(after(&[0, 100 << 10]), SHORTEST_TICK * 2);
        assert_eq!(after(&[0, 0, 0, 1 << 20]), LONGEST_TICK / 2);
        assert_eq!(after(&[1 << 20; 20]), SHORTEST_TICK);
    }
}
