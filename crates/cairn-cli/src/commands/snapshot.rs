//! `cairn snapshot`: prints the stacks of all threads of a running process.

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use cairn_analysis::names::{AddressNames, file_name_of};
use cairn_analysis::snapshot::{self, SnapshotFrame, SnapshotThread};
use cairn_memory::process::FoundBy;
use cairn_symbols::SourceFrame;
use clap::Args;
use serde::Serialize;

use super::perf_maps;
use super::processes::parse_pid;
use super::symbol_options::{SymbolOptions, complain_about_modules};
use crate::new_file::{DASH, Output};
use crate::output::{Outcome, Palette, colored_stdout, printable};

/// Print the stacks of all threads of a running process
///
/// The process stops for some milliseconds and continues by itself; names are looked up while it
/// runs again.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Snapshot {
    /// PID of the process
    #[arg(value_name = "PID", value_parser = parse_pid)]
    process: u32,

    /// Show only this thread, by number or name. May be repeated
    #[arg(short, long, value_name = "THREAD")]
    thread: Vec<String>,

    /// Print at most this many frames of each stack
    #[arg(long, value_name = "COUNT", default_value_t = 10_000)]
    max_frames: u32,

    /// Print one JSON object
    #[arg(long)]
    json: bool,

    /// Also write the snapshot to this file, as a recording that `cairn play` reads. Use - for
    /// standard output, without the text
    #[arg(short, long, value_name = "FILE", alias = "record")]
    output: Option<PathBuf>,

    /// Replace an existing file
    #[arg(long, requires = "output")]
    force: bool,

    /// A perf map or jitdump with the names of generated code, besides those of the process. May be
    /// repeated
    #[arg(long, value_name = "FILE")]
    perf_map: Vec<PathBuf>,

    #[command(flatten)]
    symbols: SymbolOptions,
}

const EXAMPLES: &str = "\
Examples:
  cairn snapshot 4711                 the stacks of all threads
  cairn snapshot 4711 -t worker       one thread
  cairn snapshot $(pgrep -n server)   the newest process of this name
  cairn snapshot 4711 -o now.cairn    write a recording too, for cairn play on any machine
  cairn snapshot 4711 --json | jq '.threads[].frames[0].function'

Output: a line for each thread, and one for each call, innermost first:
  thread 4711 \"worker\"
    #0  0x00007f3a5c8d2e4c  clock_nanosleep at clock_nanosleep.c:78  libc.so.6+0xd2e4c
    #1  0x000055d01a2b31c9  wait at worker.c:12 (inlined)
                            work at worker.c:31  worker+0x11c9
        end of stack
The last line of a stack says why it ends there. Inlined calls have no address of their own.

Exit codes: 0 all stacks were found; 1 the process is missing or cannot be read; 2 the arguments are
invalid; 3 some threads have no stack, and say why.";

impl Snapshot {
    pub(crate) fn run(self) -> io::Result<Outcome> {
        // Opened first: the process need not stop for a file that cannot be written.
        let file = self.output.as_deref().map(|path| Output::begin(path, self.force)).transpose()?;
        if let Some(file) = &file {
            file.refuse_terminal("a recording")?;
        }
        let snapshot = snapshot::Snapshot::take(self.process, self.max_frames).map_err(io::Error::other)?;
        let mut snapshot = snapshot;
        snapshot.add_code_files(perf_maps::read(&self.perf_map)?);
        if let Some(mut file) = file {
            file.write_all(&snapshot.to_recording().map_err(io::Error::other)?)?;
            file.finish()?;
        }
        let wanted = |thread: &&SnapshotThread| {
            let is_it = |wanted: &String| *wanted == thread.name || *wanted == thread.id.to_string();
            self.thread.is_empty() || self.thread.iter().any(is_it)
        };
        let threads: Vec<&SnapshotThread> = snapshot.threads.iter().filter(wanted).collect();
        if threads.is_empty() {
            let all: Vec<String> =
                snapshot.threads.iter().map(|thread| format!("{} {}", thread.id, thread.name)).collect();
            return Err(io::Error::other(format!("no such thread; there are: {}", all.join(", "))));
        }
        let mut names = self.symbols.wanted().then(|| {
            // The kernel knows which files a running process has mapped.
            let symbols = self.symbols.symbolizer().only_checked_paths(false);
            let mut names = snapshot.names(symbols, self.symbols.in_own_root());
            snapshot.prepare(&mut names);
            names
        });
        let mut output = BufWriter::new(colored_stdout());
        if self.output.as_deref() == Some(Path::new(DASH)) {
            // Standard output has the recording.
        } else if self.json {
            let json = SnapshotJson::new(&snapshot, &threads, names.as_mut());
            serde_json::to_writer(&mut output, &json)?;
            writeln!(output)?;
        } else {
            print(&mut output, &snapshot, &threads, names.as_mut())?;
        }
        output.flush()?;
        if let Some(names) = &names {
            complain_about_modules(names);
            self.symbols.index_later(names);
        }
        let whole = threads.iter().all(|thread| thread.stack.is_ok());
        Ok(if whole { Outcome::Done } else { Outcome::Incomplete })
    }
}

fn print(
    output: &mut impl Write,
    snapshot: &snapshot::Snapshot,
    threads: &[&SnapshotThread],
    mut names: Option<&mut AddressNames>,
) -> io::Result<()> {
    write!(output, "process {}", snapshot.process)?;
    if !snapshot.command_line.is_empty() {
        write!(output, ": {}", printable(&snapshot.command_line.join(" ")))?;
    }
    writeln!(output)?;
    for thread in threads {
        writeln!(output, "\nthread {} \"{}\"", thread.id, printable(&thread.name))?;
        match &thread.stack {
            Err(reason) => writeln!(output, "      {reason}")?,
            Ok(stack) => {
                for (number, frame) in stack.frames.iter().enumerate() {
                    let number = format!("#{number}");
                    print_frame(output, &number, snapshot, frame, names.as_deref_mut())?;
                }
                writeln!(output, "      {}", stack.stop)?;
                for note in &stack.notes {
                    writeln!(output, "      {note}")?;
                }
            }
        }
    }
    Ok(())
}

fn print_frame(
    output: &mut impl Write,
    number: &str,
    snapshot: &snapshot::Snapshot,
    frame: &SnapshotFrame,
    names: Option<&mut AddressNames>,
) -> io::Result<()> {
    let Palette { function, dim } = Palette::of_stdout();
    let found = snapshot.source_frames(frame, names);
    match frame {
        SnapshotFrame::Native(native) => {
            let address = native.frame.address().unwrap_or_default().value();
            write!(output, "  {number:<4}{dim}{address:#018x}{dim:#}  ")?;
        }
        // As wide as an address.
        SnapshotFrame::Python(_) => write!(output, "  {number:<4}{dim}{:18}{dim:#}  ", "Python")?,
    }
    for (index, source) in found.iter().enumerate() {
        if index > 0 {
            write!(output, "{:26}", "")?;
        }
        let name = source.function.as_deref().unwrap_or("??");
        write!(output, "{function}{}{function:#}", printable(name))?;
        if let Some(file) = &source.file {
            write!(output, " at {}", printable(file))?;
            if let Some(line) = source.line {
                write!(output, ":{line}")?;
            }
        }
        if index + 1 < found.len() {
            writeln!(output, " (inlined)")?;
        }
    }
    if found.is_empty() {
        write!(output, "??")?;
    }
    let frame = match frame {
        SnapshotFrame::Native(native) => native,
        SnapshotFrame::Python(python) => {
            return match snapshot.gap(*python) {
                Some(gap) => writeln!(output, "  ({gap})"),
                None => writeln!(output),
            };
        }
    };
    if let (Some(module), Some(stated)) = (snapshot.module(frame), snapshot.stated_address(frame)) {
        let gone =
            if module.file_is_there || is_kernels(module) { "" } else { " (file replaced or deleted)" };
        write!(output, "  {dim}{}+{stated}{gone}{dim:#}", printable(&file_name_of(&module.path)))?;
    }
    match frame.found_by {
        FoundBy::FramePointer => writeln!(output, "  (by frame pointer)"),
        FoundBy::KnownCode => writeln!(output, "  (by the form of the code inside of it)"),
        FoundBy::Runtime => writeln!(output, "  (by the data of the runtime inside of it)"),
        _ => writeln!(output),
    }
}

fn is_kernels(module: &snapshot::SnapshotModule) -> bool {
    module.path.as_os_str().as_encoded_bytes().starts_with(b"[")
}

/// The object of `--json`; `docs/book` documents its fields.
#[derive(Serialize)]
struct SnapshotJson<'a> {
    schema: u32,
    process: u32,
    command_line: &'a [String],
    /// Nanoseconds since 1970.
    time_nanos: u64,
    stopped_nanos: u64,
    threads: Vec<SnapshotThreadJson<'a>>,
    modules: Vec<SnapshotModuleJson>,
}

#[derive(Serialize)]
struct SnapshotThreadJson<'a> {
    thread: u32,
    name: &'a str,
    frames: Vec<SnapshotFrameJson>,
    /// Why there are no more frames, or none at all.
    end: String,
    /// Gaps in the Python frames.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notes: Vec<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    failed: bool,
}

#[derive(Serialize)]
struct SnapshotModuleJson {
    path: String,
    start: String,
    end: String,
    build_id: Option<String>,
    file_is_there: bool,
}

#[derive(Serialize)]
struct SnapshotFrameJson {
    /// None for a Python frame.
    address: Option<String>,
    /// Index in the list of modules.
    module: Option<usize>,
    /// As the module's file counts.
    stated_address: Option<String>,
    found_by: &'static str,
    /// The missing part of a Python frame.
    #[serde(skip_serializing_if = "Option::is_none")]
    missing: Option<&'static str>,
    function: Option<String>,
    file: Option<String>,
    line: Option<u32>,
    column: Option<u32>,
    /// Calls that were inlined here, innermost first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    inlined: Vec<SnapshotCallJson>,
}

#[derive(Serialize)]
struct SnapshotCallJson {
    function: Option<String>,
    file: Option<String>,
    line: Option<u32>,
    column: Option<u32>,
}

impl SnapshotCallJson {
    fn new(frame: &SourceFrame) -> Self {
        let text = |text: &Option<std::sync::Arc<str>>| text.as_deref().map(str::to_owned);
        Self {
            function: text(&frame.function),
            file: text(&frame.file),
            line: frame.line,
            column: frame.column,
        }
    }
}

impl<'a> SnapshotJson<'a> {
    fn new(
        snapshot: &'a snapshot::Snapshot,
        threads: &[&'a SnapshotThread],
        mut names: Option<&mut AddressNames>,
    ) -> Self {
        let nanos = |duration: std::time::Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let since_1970 = snapshot.taken.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let mut thread = |thread: &&'a SnapshotThread| {
            let (frames, end, notes) = match &thread.stack {
                Ok(stack) => {
                    let notes = stack.notes.iter().map(ToString::to_string).collect();
                    let frames = stack.frames.iter();
                    let frames =
                        frames.map(|frame| SnapshotFrameJson::new(snapshot, frame, names.as_deref_mut()));
                    (frames.collect(), stack.stop.to_string(), notes)
                }
                Err(reason) => (Vec::new(), reason.to_string(), Vec::new()),
            };
            SnapshotThreadJson {
                thread: thread.id,
                name: &thread.name,
                frames,
                end,
                notes,
                failed: thread.stack.is_err(),
            }
        };
        let threads = threads.iter().map(&mut thread).collect();
        let modules = snapshot.modules.iter().map(|module| SnapshotModuleJson {
            path: module.path.to_string_lossy().into_owned(),
            start: module.range.start.to_string(),
            end: module.range.end.to_string(),
            build_id: (!module.build_id.is_empty())
                .then(|| cairn_symbols::BuildId::new(&module.build_id).to_string()),
            file_is_there: module.file_is_there,
        });
        Self {
            schema: 1,
            process: snapshot.process,
            command_line: &snapshot.command_line,
            time_nanos: nanos(since_1970),
            stopped_nanos: nanos(snapshot.stopped_for),
            threads,
            modules: modules.collect(),
        }
    }
}

impl SnapshotFrameJson {
    fn new(snapshot: &snapshot::Snapshot, frame: &SnapshotFrame, names: Option<&mut AddressNames>) -> Self {
        let found = snapshot.source_frames(frame, names);
        let (outermost, inlined) = match found.split_last() {
            Some((outermost, inlined)) => (SnapshotCallJson::new(outermost), inlined),
            None => (SnapshotCallJson::new(&SourceFrame::default()), &[][..]),
        };
        let native = match frame {
            SnapshotFrame::Native(native) => Some(native),
            SnapshotFrame::Python(_) => None,
        };
        let missing = match frame {
            SnapshotFrame::Native(_) => None,
            SnapshotFrame::Python(python) => snapshot.gap(*python),
        };
        Self {
            address: native.map(|native| native.frame.address().unwrap_or_default().to_string()),
            module: native.and_then(|native| native.module),
            stated_address: native
                .and_then(|native| snapshot.stated_address(native))
                .map(|address| address.to_string()),
            found_by: match native.map(|native| native.found_by) {
                None => "python",
                Some(FoundBy::Context) => "context",
                Some(FoundBy::Cfi) => "tables",
                Some(FoundBy::SignalFrame) => "signal-frame",
                Some(FoundBy::FramePointer) => "frame-pointer",
                Some(FoundBy::KnownCode) => "known-code",
                Some(FoundBy::Runtime) => "runtime",
                Some(FoundBy::BadCall) => "bad-call",
                Some(_) => "other",
            },
            missing,
            function: outermost.function,
            file: outermost.file,
            line: outermost.line,
            column: outermost.column,
            inlined: inlined.iter().map(SnapshotCallJson::new).collect(),
        }
    }
}
