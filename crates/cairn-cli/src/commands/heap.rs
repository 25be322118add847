//! `cairn heap`: runs a program and records what it does with its memory.

mod annotate;
#[cfg(target_arch = "x86_64")]
mod attach;
#[cfg(not(target_arch = "x86_64"))]
#[path = "heap/attach_elsewhere.rs"]
mod attach;
mod control;
mod holder;
mod live;
mod own_share;
mod summary;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cairn_files::Directory;
use cairn_run::{Announcements, End, Event, Library, Obstacle, Program, Running, Start};
use clap::Args;

use super::heap_text;
use crate::output::{Outcome, complain};
use live::Recordings;

/// Record where a program's memory goes
///
/// Runs the program as it would run without cairn, and records every allocation and every free with its call stack, to
/// PROGRAM.PID.cairn in the current directory. The exit status is the program's own. No recompiling; the program must be
/// linked dynamically, against glibc, for this machine's processor.
#[derive(Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Heap {
    #[command(subcommand)]
    action: Option<Action>,

    /// The program, and its arguments
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        required_unless_present_any = ["attach", "detach"],
        value_name = "PROGRAM"
    )]
    program: Vec<OsString>,

    /// Record a process that runs already, until Ctrl-C or its end; it goes on afterwards
    #[arg(long, value_name = "PID", conflicts_with_all = ["program", "detach", "children", "or_run"])]
    attach: Option<u32>,

    /// End what `--attach` began
    #[arg(long, value_name = "PID", conflicts_with = "program")]
    detach: Option<u32>,

    /// Where to record to: a directory (`DIR/` is made if need be), or a file; `%n` is the program's name, `%p` its
    /// process id
    #[arg(short, long, value_name = "PATH")]
    output: Option<PathBuf>,

    /// Say nothing but what went wrong: no status line, no summary
    #[arg(short, long)]
    quiet: bool,

    /// Record its children, too, forked ones and the programs that it starts, each to a file of its own
    #[arg(long)]
    children: bool,

    /// Record also the mappings that the program makes itself
    #[arg(long)]
    mmap: bool,

    /// Record a sample only, on average one byte of so many (512KiB): costs next to nothing, sums are estimates
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    sample: Option<u64>,

    /// Stop recording after this time (30s, 5m, 1h); the program goes on
    #[arg(long = "for", value_name = "TIME", value_parser = parse_time)]
    duration: Option<Duration>,

    /// Record nothing until `cairn heap ctl PID start`
    #[arg(long)]
    start_paused: bool,

    /// Stop recording when a file is that large (2GiB)
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    max_size: Option<u64>,

    /// Record nothing; put in front of every block who allocated it, for core files and dumps
    #[arg(
        long,
        value_name = "LAYOUT",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "cairn",
        conflicts_with_all = ["attach", "detach", "output", "mmap", "sample", "duration", "start_paused", "max_size"]
    )]
    annotate: Option<annotate::Layout>,

    /// Run the program without recording where it cannot be recorded, in place of refusing
    #[arg(long)]
    or_run: bool,
}

#[derive(clap::Subcommand)]
enum Action {
    Ctl(control::Ctl),
}

const EXAMPLES: &str = "\
Examples:
  cairn heap python3 -c 'print(sorted(str(n) for n in range(100000))[:3])'
  cairn heap --children make -j8                 the compilers that it starts as well
  cairn heap --sample 512KiB -- server --port 80 a sample, at nearly no cost
  cairn heap --for 30s -- server --port 80       the first half minute of a server
  cairn heap --annotate -- server --port 80      no recording; a core file says who allocated which block
  cairn heap --attach 4711                       process 4711, from now until Ctrl-C
  cairn heap ctl 4711 stop                       pause the recording of process 4711
  cairn heap ctl 4711 mark 'after warm-up'       put a mark into it

Without this command: LD_PRELOAD=libcairn_preload.so CAIRN_HEAP=output=/var/tmp/%n.%p.cairn PROGRAM

Exit codes: the program's own; 127 there is no such program; 126 it cannot be run; 2 it cannot be recorded, see the message.";

impl Heap {
    pub(crate) fn run(self) -> io::Result<Outcome> {
        if let Some(Action::Ctl(ctl)) = self.action {
            return ctl.run();
        }
        if let Some(done) = match (self.attach, self.detach) {
            (Some(process), _) => Some(self.attach(process)),
            (_, Some(process)) => Some(attach::detach(process)),
            _ => None,
        } {
            return Ok(done.unwrap_or_else(|Refused { status, message }| {
                complain(&message);
                Outcome::Status(status)
            }));
        }
        let Some((name, arguments)) = self.program.split_first() else { return Ok(Outcome::Done) };
        let ended = match self.annotate {
            Some(layout) => self.annotate(layout, name, arguments),
            None => self.record(name, arguments),
        };
        match ended {
            Ok(end) => end.imitate(),
            Err(Refused { status, message }) => {
                complain(&message);
                Ok(Outcome::Status(status))
            }
        }
    }

    fn record(&self, name: &OsStr, arguments: &[OsString]) -> Result<End, Refused> {
        let program = Program::find(name)?;
        let is_ready = program.inspect().map_err(Refused::from).and_then(|()| {
            let output = self.output()?;
            let unpacked = if program.uses_other_allocator() {
                Library::unpack_for_allocators()
            } else {
                Library::unpack()
            };
            let library = unpacked.map_err(|error| Refused::because("the library for recording", &error))?;
            let announcements = Announcements::new().map_err(|error| Refused {
                status: 2,
                message: format!(
                    "{error}; set TMPDIR to a directory for temporary files that can be written to"
                ),
            })?;
            Ok((output, library, announcements))
        });
        match is_ready {
            Ok((output, library, announcements)) => {
                let options = self.options(&output, announcements.path());
                let start = Start { program: &program, arguments, library: Some((&library, &options)) };
                let running = start.run().map_err(|error| Refused::start(&program, &error))?;
                self.follow(running, announcements)
            }
            Err(refused) if self.or_run && refused.status != 126 => {
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

    /// Where the recordings go: absolute, checked to be writable.
    fn output(&self) -> Result<PathBuf, Refused> {
        let asked = self.output.as_deref().unwrap_or(Path::new("."));
        let unusable = |path: &Path, error: &io::Error| Refused::because(&path.display().to_string(), error);
        if asked.as_os_str().as_encoded_bytes().ends_with(b"/") {
            Directory::open_or_make(asked).map_err(|error| unusable(asked, &error))?;
        }
        let (directory, file) = if asked.is_dir() {
            (asked, OsStr::new("%n.%p.cairn"))
        } else {
            let directory = asked.parent().filter(|parent| !parent.as_os_str().is_empty());
            let file = asked.file_name().ok_or_else(|| Refused {
                status: 2,
                message: format!(
                    "{}: no name for a file; give a file or a directory that exists",
                    asked.display()
                ),
            })?;
            (directory.unwrap_or(Path::new(".")), file)
        };
        let directory = fs::canonicalize(directory).map_err(|error| unusable(directory, &error))?;
        // Whether files can be made there, before the program runs and not after.
        try_to_write(&directory).map_err(|error| unusable(&directory, &error))?;
        // The percent signs of directories are no fields.
        let mut path = OsString::from(directory.into_os_string().to_string_lossy().replace('%', "%%"));
        path.push("/");
        path.push(file);
        Ok(path.into())
    }

    /// The value of `CAIRN_HEAP`.
    fn options(&self, output: &Path, announcements: &Path) -> OsString {
        let mut options = OsString::from("parent,announce=");
        options.push(announcements);
        let mut add = |text: String| {
            options.push(",");
            options.push(text);
        };
        if let Some(bytes) = self.max_size {
            // The program's own file is drained all the time: this is for the case that nobody can. It needs some room to turn
            // round in.
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
        options.push(",output=");
        options.push(output);
        options
    }

    fn follow(&self, mut running: Running, mut announcements: Announcements) -> Result<End, Refused> {
        /// A sample is small, and the program shall not notice who reads it.
        const SAMPLE_TICK: Duration = Duration::from_millis(20);
        /// A program that has not begun to record by then does not begin.
        const PATIENCE: Duration = Duration::from_secs(2);
        let began = Instant::now();
        let mut tick = if self.sample.is_some() { SAMPLE_TICK } else { SHORTEST_TICK };
        let shows_status = !self.quiet && io::stderr().is_terminal();
        let mut recordings =
            Recordings::new(Some(running.process()), shows_status, self.max_size.unwrap_or(u64::MAX));
        let (mut is_late, mut is_over) = (false, false);
        // The time that recording may take begins with it, however long the program takes to be loaded.
        let mut recorded_since = None;
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
            if recorded_since.is_none() && !recordings.is_empty() {
                recorded_since = Some(Instant::now());
            }
            let recorded = recorded_since.map(|since| since.elapsed());
            if !is_over && self.duration.is_some_and(|duration| recorded.is_some_and(|time| time >= duration))
            {
                is_over = true;
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

    /// A recording ends with its process: one that is closed before would lack what follows.
    fn wait_for_children(
        &self,
        recordings: &mut Recordings,
        announcements: &mut Announcements,
        tick: Duration,
    ) {
        /// What the program started last may still be on its way to its recording; what has none by then will have none.
        const PATIENCE: Duration = Duration::from_secs(5);
        let mut interrupts = None;
        let (mut is_told, mut quiet_since) = (false, Instant::now());
        loop {
            recordings.tick();
            let is_open = recordings.open_children() > 0;
            let is_awaited = self.children
                && !is_open
                && quiet_since.elapsed() < PATIENCE
                && recordings.awaits_any_of(holder::started_with(announcements.path()));
            // After the looks at who lives: what has ended by then has announced whatever it did.
            let late = announcements.read().unwrap_or_default();
            let is_late = !late.is_empty();
            late.into_iter().for_each(|announced| recordings.add(announced));
            if is_open || is_late {
                quiet_since = Instant::now();
            }
            if !is_open && !is_late && !is_awaited {
                return;
            }
            if is_open && !is_told && !self.quiet {
                is_told = true;
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

/// What the program wrote is looked at so often while it writes much,
const SHORTEST_TICK: Duration = Duration::from_millis(1);
/// and so often while it writes little: each look wakes a processor, and finds its caches cold.
const LONGEST_TICK: Duration = Duration::from_millis(4);
/// Some thousands of allocations are much, and some ten thousand too much: what waits is to stay in the caches.
const LITTLE_BYTES: u64 = 64 << 10;
const MUCH_BYTES: u64 = 256 << 10;

/// How long to wait when so much came in the last time.
fn next_tick(tick: Duration, read_bytes: u64) -> Duration {
    match read_bytes {
        ..LITTLE_BYTES => (tick * 2).min(LONGEST_TICK),
        LITTLE_BYTES..MUCH_BYTES => tick,
        _ => (tick / 2).max(SHORTEST_TICK),
    }
}

/// Makes a file in a directory and removes it again.
fn try_to_write(directory: &Path) -> io::Result<()> {
    let directory = Directory::open(directory)?;
    let mut number = 0_u32;
    loop {
        let trial = OsString::from(format!(".cairn-{}-{number}", std::process::id()));
        match directory.create_new(&trial) {
            Ok(_) => return directory.remove(&trial),
            // Of a process with the same number in another container, or left by one that was killed.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && number < 1000 => number += 1,
            Err(error) => return Err(error),
        }
    }
}

/// Why nothing is put into a process that runs, and what to do.
fn not_run(error: &io::Error) -> Refused {
    Refused { status: 126, message: format!("the program cannot be run: {error}") }
}

/// Why nothing is recorded, and the exit status for it.
struct Refused {
    status: u8,
    message: String,
}

impl Refused {
    fn because(what: &str, error: &io::Error) -> Self {
        Self {
            status: 2,
            message: format!(
                "{what}: {error}; nothing can be recorded there, give another place with --output"
            ),
        }
    }

    fn start(program: &Program, error: &cairn_run::StartError) -> Self {
        Self { status: 126, message: format!("{}: cannot be started: {error}", program.path().display()) }
    }
}

impl From<Obstacle> for Refused {
    fn from(obstacle: Obstacle) -> Self {
        Self { status: obstacle.exit_status(), message: obstacle.to_string() }
    }
}

/// A number of bytes with its unit.
fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        _ => return Err("a size is a number with a unit: 512KiB, 64MiB, 2GiB".to_owned()),
    };
    let bytes = number.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
    bytes
        .filter(|bytes| *bytes > 0)
        .ok_or_else(|| "a size is a number above 0: 512KiB, 64MiB, 2GiB".to_owned())
}

/// A time with its unit.
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
        let after = |looks: &[u64]| looks.iter().fold(SHORTEST_TICK, |tick, &bytes| next_tick(tick, bytes));
        assert_eq!(after(&[0; 20]), LONGEST_TICK);
        assert_eq!(after(&[0, 100 << 10]), SHORTEST_TICK * 2);
        assert_eq!(after(&[0, 0, 0, 1 << 20]), LONGEST_TICK / 2);
        assert_eq!(after(&[1 << 20; 20]), SHORTEST_TICK);
    }

    #[test]
    fn what_another_one_left_in_a_directory_does_not_say_that_nothing_can_be_written() {
        let directory = std::env::temp_dir().join(format!("cairn-trial-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        for number in 0..3 {
            fs::write(directory.join(format!(".cairn-{}-{number}", std::process::id())), "").unwrap();
        }
        try_to_write(&directory).unwrap();
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 3);
        fs::remove_dir_all(&directory).unwrap();
        assert_eq!(try_to_write(&directory).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn sizes_and_times_have_units() {
        assert_eq!(parse_size("512KiB"), Ok(512 << 10));
        assert_eq!(parse_size("2g"), Ok(2 << 30));
        assert_eq!(parse_size("17"), Ok(17));
        assert!(parse_size("0").is_err() && parse_size("x").is_err() && parse_size("3 stones").is_err());
        assert!(parse_size("99999999999GiB").is_err());
        assert_eq!(parse_time("1.5m"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_time("250ms"), Ok(Duration::from_millis(250)));
        assert!(parse_time("soon").is_err() && parse_time("-1s").is_err());
    }
}
