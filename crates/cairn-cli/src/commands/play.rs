//! `cairn play`: prints the events of a recording in order, each stack with the names of its time.

mod json;
mod modules;
mod text;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cairn_analysis::file_kind::FileKind;
use cairn_analysis::names::AddressNames;
use cairn_analysis::player::{Collapsed, Event, EventSink, Filter, PlayError, Player, Tables, TimeBound};
use cairn_format::WordSize;
use clap::{Args, ValueEnum};
use regex::Regex;

use super::input_file::with_kind;
use super::perf_maps;
use super::symbol_options::{SymbolOptions, complain_about_modules};
use crate::output::{Outcome, complain};

/// Pause between two reads of a growing recording.
const READ_INTERVAL: Duration = Duration::from_millis(100);

/// Play a recording: its events in order, each stack with the modules loaded when it was taken
///
/// Reads cairn's own recordings, also while they are written, and recordings of call-stack-tracker
/// from Windows.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Play {
    /// The recording; - for standard input
    #[arg(value_name = "RECORDING")]
    file: PathBuf,

    /// Begin at this time: seconds from the start (also 20ms, 5m, 2h), or 2026-11-20T14:05:00.5Z
    #[arg(long, value_name = "TIME", value_parser = parse_time, allow_hyphen_values = true, alias = "since")]
    from: Option<TimeBound>,

    /// End before this time
    #[arg(long, value_name = "TIME", value_parser = parse_time, allow_hyphen_values = true, alias = "until")]
    to: Option<TimeBound>,

    /// Print the last event of each thread at this time; with --modules, the modules that were
    /// loaded
    #[arg(
        long,
        value_name = "TIME",
        value_parser = parse_time,
        allow_hyphen_values = true,
        conflicts_with_all = ["from", "to", "follow", "collapse"]
    )]
    at: Option<TimeBound>,

    /// Only events of this thread: its number or its name. May be repeated
    #[arg(short, long, value_name = "THREAD")]
    thread: Vec<String>,

    /// Only stacks with a frame in this module, and its loads: its path, its name, or the name up
    /// to a dot. May be repeated
    #[arg(short, long, value_name = "MODULE")]
    module: Vec<String>,

    /// Only marks whose text matches, and stacks with a matching function, source file or module
    /// path
    #[arg(long = "match", value_name = "REGEX")]
    pattern: Option<Regex>,

    /// Only events with a stack
    #[arg(long)]
    stacks: bool,

    /// Also print allocations and frees, which are left out otherwise
    #[arg(long)]
    heap: bool,

    /// Continue while the recording grows, until the recorded program ends
    #[arg(short, long, conflicts_with_all = ["collapse", "modules", "word"])]
    follow: bool,

    /// Count equal stacks instead of printing each, most frequent first
    #[arg(long, conflicts_with = "modules")]
    collapse: bool,

    /// Print when each module was loaded and where, as a table and as a picture
    #[arg(long)]
    modules: bool,

    /// Print one JSON object a line
    #[arg(long)]
    json: bool,

    /// Format of times
    #[arg(long, value_name = "HOW", default_value = "clock")]
    time: TimeStyle,

    /// Bits of an address in a recording of call-stack-tracker, which does not state it [default:
    /// guessed]
    #[arg(long, value_name = "BITS", value_parser = ["32", "64"])]
    word: Option<String>,

    /// A perf map or jitdump with the names of generated code, for a recording without them. May be
    /// repeated
    #[arg(long, value_name = "FILE", conflicts_with = "follow")]
    perf_map: Vec<PathBuf>,

    #[command(flatten)]
    symbols: SymbolOptions,
}

const EXAMPLES: &str = "\
Examples:
  cairn play app.cairn                           everything, in order
  cairn play app.cairn --from 2 --to 2.5         half a second
  cairn play app.cairn --at 2.5                  the last event of each thread at this time
  cairn play app.cairn --match 'parse|lex'       stacks with such a function
  cairn play app.cairn --collapse -m libfoo      the callers of libfoo, most frequent first
  cairn play app.cairn --follow --match error    events as they happen
  cairn play app.cairn --modules                 the modules: addresses, and when they were loaded
  cairn play windows.rec --symbols pdbs/         a recording of call-stack-tracker

Output of each stack, innermost call first:
  Fri Nov 20 14:05:00 2026.500000: { thread 4711 \"main\": \"request\" = 42
      \"libfoo.so\"! foo.cpp(12): inner [inlined]
      \"libfoo.so\"! foo.cpp(20): foo
      \"app\"! 0x55d01a2b31c9: app+0x11c9
      \"\"! 0x7f3a5c8d2e4c:
  }
A frame without names shows its module and the offset in it; a frame outside of all modules, its address.

Exit codes: 0 all was read; 1 the file is no recording or cannot be read; 2 the arguments are
invalid; 3 the recording ends too early or is damaged, and all that can be read of it was printed.";

/// Format of times.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(super) enum TimeStyle {
    /// Date and time in UTC, with microseconds
    Clock,
    /// Seconds from the start of the recording
    Relative,
    /// ISO 8601 in UTC, with nanoseconds
    Iso,
    /// As call-stack-tracker's viewer: behind the point are the nanoseconds of the millisecond
    Viewer,
}

fn parse_time(text: &str) -> Result<TimeBound, &'static str> {
    TimeBound::parse(text)
        .ok_or("give seconds from the start (1.5, 20ms, 5m) or a time (2026-11-20T14:05:00Z)")
}

impl Play {
    pub(crate) fn run(self) -> io::Result<Outcome> {
        let problem = |problem: PlayError| {
            let message = format!("{}: {problem}", self.file.display());
            io::Error::other(with_kind(&message, &self.file, &[FileKind::Recording]))
        };
        let mut names = self.symbols.wanted().then(|| AddressNames::new(self.symbols.symbolizer()));
        let output = RefCell::new(BufWriter::with_capacity(1 << 16, crate::output::colored_stdout()));
        let mut player = if self.follow { None } else { Some(self.open().map_err(problem)?) };
        if let Some(player) = &mut player
            && !self.perf_map.is_empty()
        {
            player.add_code_files(perf_maps::read(&self.perf_map)?);
        }
        let played = match &mut player {
            None => self.follow(names.as_mut(), &output).map(|followed| player = Some(followed)),
            Some(player) if self.modules => {
                let mut output = output.borrow_mut();
                Ok(modules::print(&mut *output, player.tables(), &self.filter(), self.json, self.time)?)
            }
            Some(player) if self.collapse => {
                self.print_groups(player, names.as_mut(), &mut *output.borrow_mut())
            }
            Some(player) if self.at.is_some() => {
                self.print_last_events(player, names.as_mut(), &mut *output.borrow_mut())
            }
            Some(player) => self.print_events(player, names.as_mut(), &output),
        };
        output.into_inner().flush()?;
        played.map_err(|stopped| match stopped {
            Stopped::Output(error) => error,
            Stopped::Recording(error) => problem(error),
        })?;
        let Some(player) = player else { return Ok(Outcome::Done) };
        for finding in player.findings() {
            complain(&format_args!("{}: {finding}", self.file.display()));
        }
        if let Some(names) = &names {
            complain_about_modules(names);
            self.symbols.index_later(names);
        }
        Ok(if player.is_whole() { Outcome::Done } else { Outcome::Incomplete })
    }

    fn open(&self) -> Result<Player, PlayError> {
        let is_stdin = self.file == Path::new("-");
        let word_size = match self.word.as_deref() {
            Some("32") => WordSize::Bits32,
            Some(_) => WordSize::Bits64,
            None if is_stdin => return Player::from_reader(io::stdin().lock()),
            // The picture of the modules shows the whole time.
            None if self.modules => return Player::open(&self.file),
            None => return Player::open_for(&self.file, &self.filter()),
        };
        let mut bytes = Vec::new();
        let read = match is_stdin {
            true => io::stdin().lock().read_to_end(&mut bytes),
            false => File::open(&self.file).and_then(|mut file| file.read_to_end(&mut bytes)),
        };
        read.map_err(PlayError::Io)?;
        Player::tracker(&bytes, Some(word_size))
    }

    fn filter(&self) -> Filter {
        // An event at the moment itself belongs to `--at`.
        let after = |bound| match bound {
            TimeBound::FromStart(nanos) => TimeBound::FromStart(nanos.saturating_add(1)),
            TimeBound::Wall(nanos) => TimeBound::Wall(nanos.saturating_add(1)),
        };
        Filter {
            since: if self.modules { self.from.or(self.at) } else { self.from },
            until: self.to.or(self.at.map(after)),
            threads: self.thread.clone(),
            modules: self.module.clone(),
            pattern: self.pattern.clone(),
            heap: self.heap,
            only_stacks: self.stacks,
        }
    }

    fn print_events(
        &self,
        player: &mut Player,
        names: Option<&mut AddressNames>,
        output: &RefCell<impl Write>,
    ) -> Result<(), Stopped> {
        self.with_sink(output, |sink| player.play(&self.filter(), names, sink))
    }

    fn follow(
        &self,
        names: Option<&mut AddressNames>,
        output: &RefCell<impl Write>,
    ) -> Result<Player, Stopped> {
        let mut shown = Ok(());
        let player = self.with_sink(output, |sink| {
            Player::follow(&self.file, &self.filter(), names, sink, &mut || {
                shown = output.borrow_mut().flush();
                std::thread::sleep(READ_INTERVAL);
                if shown.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })
        })?;
        shown?;
        Ok(player)
    }

    /// Calls `play` with a sink that prints.
    fn with_sink<T>(
        &self,
        output: &RefCell<impl Write>,
        play: impl FnOnce(&mut EventSink<'_>) -> Result<T, PlayError>,
    ) -> Result<T, Stopped> {
        let mut written = Ok(());
        let mut text = text::EventPrinter::new(self.time);
        let played = play(&mut |event: &Event, tables: &dyn Tables, names: Option<&mut AddressNames>| {
            let output = &mut *output.borrow_mut();
            written = match self.json {
                true => json::event(output, event, tables, names),
                false => text.event(output, event, tables, names),
            };
            if written.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        written?;
        Ok(played?)
    }

    /// Prints the last event of each thread that passes the filter, in the order of time.
    fn print_last_events(
        &self,
        player: &mut Player,
        mut names: Option<&mut AddressNames>,
        output: &mut impl Write,
    ) -> Result<(), Stopped> {
        let mut last: BTreeMap<Option<usize>, Event> = BTreeMap::new();
        let mut sink = |event: &Event, _: &dyn Tables, _: Option<&mut AddressNames>| {
            last.insert(event.thread, event.clone());
            ControlFlow::Continue(())
        };
        player.play(&self.filter(), names.as_deref_mut(), &mut sink)?;
        let mut events: Vec<Event> = last.into_values().collect();
        events.sort_by_key(|event| event.nanos);
        let mut text = text::EventPrinter::new(self.time);
        for event in &events {
            match self.json {
                true => json::event(output, event, player.tables(), names.as_deref_mut())?,
                false => text.event(output, event, player.tables(), names.as_deref_mut())?,
            }
        }
        Ok(())
    }

    fn print_groups(
        &self,
        player: &mut Player,
        mut names: Option<&mut AddressNames>,
        output: &mut impl Write,
    ) -> Result<(), Stopped> {
        let mut collapsed = Collapsed::default();
        let mut sink = |event: &Event, tables: &dyn Tables, _: Option<&mut AddressNames>| {
            collapsed.add(event, tables);
            ControlFlow::Continue(())
        };
        player.play(&self.filter(), names.as_deref_mut(), &mut sink)?;
        let mut text = text::EventPrinter::new(self.time);
        for group in collapsed.into_groups() {
            match self.json {
                true => json::group(output, &group, player.tables(), names.as_deref_mut())?,
                false => text.group(output, &group, player.tables(), names.as_deref_mut())?,
            }
        }
        Ok(())
    }
}

/// The reason why playing ended early.
enum Stopped {
    /// The output cannot be written.
    Output(io::Error),
    /// The recording cannot be read.
    Recording(PlayError),
}

impl From<io::Error> for Stopped {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

impl From<PlayError> for Stopped {
    fn from(error: PlayError) -> Self {
        Self::Recording(error)
    }
}
