//! `cairn top`: shows who holds the memory of a running program.

mod app;
mod naming;
mod screen;
#[cfg_attr(windows, path = "top/signals_elsewhere.rs")]
mod signals;
mod table;
mod terminal;
mod watch;

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::sync::mpsc::TryRecvError;
use std::time::{Duration, Instant};

use cairn_analysis::source::FollowedHeap;
use clap::{Args, ValueEnum};
use crossterm::event::{self, Event, KeyEventKind};

use cairn_analysis::source::parse_time;

use super::heap_input::{HeapInput, failed};
use super::heap_text::{bytes, width};
use super::input_file::InputFile;
use super::options::ListOptions;
use super::target::{Target, resolve};
use crate::output::{Outcome, complain};
use app::{App, Filters, Reaction};
use naming::Naming;
use signals::Signals;
use table::{By, Column, Wish};
use terminal::Terminal;
use watch::{News, Watch};

/// Show who holds a program's memory while it runs
///
/// Reads a recording once a second and shows who holds memory, whose memory grows, and who
/// allocates most. The program must be recorded: by `cairn heap PROGRAM`, or by `cairn heap
/// --attach PID` when it runs already. A recording that has ended, a core file, or a file of
/// another tool is shown as it is.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Top {
    /// The process, a recording, core file or file of another tool; - for standard input. Also a
    /// directory with one recording in it
    #[arg(value_name = "PID|FILE")]
    target: OsString,

    /// The meaning of a row
    #[arg(long, value_name = "VIEW", value_enum, default_value_t = By::Function)]
    by: By,

    /// The cost that rows are ordered by: leaked is what is alive now, count the allocations in a
    /// second
    #[arg(long, value_name = "COST", conflicts_with = "sort")]
    cost: Option<RowCost>,

    /// The column that rows are ordered by
    #[arg(long, value_name = "COLUMN", value_enum, default_value_t = Column::Live)]
    sort: Column,

    /// Only rows with this text in their names
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    search: String,

    /// Time between two updates: 1s, 200ms
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_interval)]
    interval: Duration,

    /// Print a table at each interval, for logs and pipes; this is so wherever there is no terminal
    #[arg(long)]
    plain: bool,

    /// Print one table and end
    #[arg(long)]
    once: bool,

    /// End when the recording ends, in place of waiting for q
    #[arg(long)]
    exit: bool,

    #[command(flatten)]
    list: ListOptions,

    #[command(flatten)]
    input: HeapInput,
}

/// A cost that has a column.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum RowCost {
    /// Bytes that are alive
    #[value(alias = "leak", alias = "leaks", alias = "live")]
    Leaked,
    /// Bytes of all allocations
    Allocated,
    /// Allocations in a second
    Count,
    /// Allocations freed before their thread allocated again
    Temporary,
}

impl RowCost {
    const fn column(self) -> Column {
        match self {
            Self::Leaked => Column::Live,
            Self::Allocated => Column::Total,
            Self::Count => Column::Rate,
            Self::Temporary => Column::Temporary,
        }
    }
}

/// Rows of a printed table without --limit.
const USUAL_ROWS: usize = 20;

const EXAMPLES: &str = "\
Examples:
  cairn top 4711                               process 4711, which `cairn heap` records
  cairn top server.4711.cairn                  the same by its file
  cairn top 4711 --by line --sort growth       the lines whose memory grows
  cairn top 4711 --filter module=libfoo*       one library's memory
  cairn top 4711 --filter thread=worker --filter size=1MiB..   large blocks of the workers
  cairn top core.4711 --once                   what a core file holds
  cairn top 4711 --plain --interval 10s >> log a table every ten seconds
  cairn top 4711 --once -n 5                   the five largest, once

Keys: ? shows all keys. q leaves, Enter shows the whole stack of a row, Tab changes what a row is,
< and > change the order of the rows, / searches, 0 counts growth from now on, p pauses the screen,
m puts a mark into the recording, x and s stop and start it.

Exit codes: 0 success; 1 there is no such process or file, or it cannot be read; 2 invalid
arguments.";

fn parse_interval(text: &str) -> Result<Duration, String> {
    /// More often there is nothing new.
    const LEAST: Duration = Duration::from_millis(50);
    let interval = Duration::from_nanos(parse_time(text)?);
    if interval < LEAST { Err("the shortest interval is 50ms".to_owned()) } else { Ok(interval) }
}

impl Top {
    pub(crate) fn run(self) -> io::Result<Outcome> {
        let Some(file) = self.file()? else { return Ok(Outcome::Status(2)) };
        let options = self.input.options_for(&file);
        let heap = FollowedHeap::open(file.path(), &options, &self.input.filters()).map_err(failed)?;
        let is_terminal = io::stdout().is_terminal() && io::stdin().is_terminal();
        let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        let is_interactive = is_terminal && !is_dumb && !self.plain && !self.once;
        let wish = Wish {
            by: self.by,
            column: self.cost.map_or(self.sort, RowCost::column),
            is_reversed: false,
            search: self.search.to_lowercase(),
            least_share: self.list.least_share().unwrap_or(0.0),
            chosen: None,
        };
        let name = file.name().map_or_else(|| file.path().display().to_string(), str::to_owned);
        let filters = Filters { filters: self.input.filters(), texts: self.input.filter_texts() };
        let app = App::new(name, wish, self.input.folding()?, filters, is_interactive);
        let naming = Naming::begin(options.symbols, heap.own_names());
        let watch = Watch::begin(heap, self.interval);
        let (outcome, failure) = if is_interactive {
            self.interact(app, &naming, &watch)?
        } else {
            self.print(app, &naming, &watch)?
        };
        if let Some(names) = naming.finish() {
            self.input.index_later(&names);
        }
        match failure {
            Some(why) => Err(io::Error::other(why)),
            None => Ok(outcome),
        }
    }

    /// The file; `None` after a message that there are several.
    fn file(&self) -> io::Result<Option<InputFile>> {
        const SHOWN: usize = 20;
        if self.target == "-" {
            return InputFile::open("-".as_ref()).map(Some);
        }
        match resolve(&self.target)? {
            Target::File(path) => InputFile::open(&path).map(Some),
            Target::Directory(directory, mut all) if all.len() == 1 => {
                InputFile::open(&all.pop().map_or(directory, |one| one.path)).map(Some)
            }
            Target::Directory(directory, all) if all.is_empty() => Err(io::Error::other(format!(
                "{}: there is no recording in it; `cairn heap PROGRAM` makes one",
                directory.display()
            ))),
            Target::Directory(directory, all) => {
                complain(&format_args!(
                    "{}: there are {} recordings in it; name one of them:",
                    directory.display(),
                    all.len()
                ));
                for one in all.iter().take(SHOWN) {
                    complain(&format_args!(
                        "  {}  process {}, {}",
                        one.path.display(),
                        one.process,
                        bytes(one.bytes)
                    ));
                }
                if all.len() > SHOWN {
                    complain(&format_args!("  and {} older ones", all.len() - SHOWN));
                }
                Ok(None)
            }
        }
    }

    fn print(&self, mut app: App, naming: &Naming, watch: &Watch) -> io::Result<(Outcome, Option<String>)> {
        /// Names that take longer appear in the next table; a single table waits for all of them.
        const PATIENCE: Duration = Duration::from_secs(2);
        /// A longer read prints how far it is, this often.
        const PROGRESS: Duration = Duration::from_secs(2);
        let patience = if self.once { Duration::from_secs(3600) } else { PATIENCE };
        let mut out = crate::output::stdout();
        let (mut updates, mut tables) = (0, 0);
        let mut reported = Instant::now();
        loop {
            match watch.news.recv() {
                Ok(News::Seen(seen)) => drop(app.saw(seen)),
                Ok(News::Moments(_)) => continue,
                Ok(News::Failed(why)) => return Ok((Outcome::Done, Some(why))),
                Err(_) => return Ok((Outcome::Done, None)),
            }
            if !app.is_complete() {
                if let Some(nanos) = app.behind_nanos()
                    && reported.elapsed() >= PROGRESS
                {
                    reported = Instant::now();
                    complain(&format_args!("catching up: {} behind", screen::time(nanos)));
                }
                continue;
            }
            updates += 1;
            // Growth is known at the second update.
            if self.once && updates < 2 && !app.is_over() {
                continue;
            }
            let began = Instant::now();
            app.remake(naming);
            while began.elapsed() < patience && naming.wait(patience.saturating_sub(began.elapsed())) {
                app.remake(naming);
            }
            if tables > 0 {
                writeln!(out)?;
            }
            tables += 1;
            let rows = self.list.most_entries(USUAL_ROWS);
            for line in screen::plain(&app, width(), rows, io::stdout().is_terminal()) {
                writeln!(out, "{line}")?;
            }
            out.flush()?;
            if self.once || app.is_over() {
                return Ok((Outcome::Done, None));
            }
        }
    }

    fn interact(
        &self,
        mut app: App,
        naming: &Naming,
        watch: &Watch,
    ) -> io::Result<(Outcome, Option<String>)> {
        /// Longest wait for a key, after which other news is handled.
        const TICK: Duration = Duration::from_millis(100);
        /// Names come in small portions; the table is made again at most this often for them.
        const NAMES: Duration = Duration::from_millis(300);
        let signals = Signals::watch()?;
        let mut terminal = Terminal::enter()?;
        let mut named = Instant::now();
        let mut has_new_names = false;
        loop {
            if let Some(status) = signals.status() {
                return Ok((Outcome::Status(status), None));
            }
            match watch.news.try_recv() {
                Ok(News::Seen(seen)) => {
                    if app.saw(seen) {
                        app.remake(naming);
                    }
                }
                Ok(News::Moments(slices)) => app.took_moments(*slices, naming),
                Ok(News::Failed(why)) => app.failed(why),
                Err(TryRecvError::Disconnected) if !app.is_over() => {
                    return Ok((Outcome::Done, Some("the thread that reads it has ended".to_owned())));
                }
                Err(_) => {}
            }
            has_new_names |= naming.take(Duration::ZERO);
            if has_new_names && (named.elapsed() >= NAMES || !naming.is_waiting()) {
                app.remake(naming);
                (named, has_new_names) = (Instant::now(), false);
            }
            if self.exit && app.is_over() {
                return Ok((Outcome::Done, app.failure().map(str::to_owned)));
            }
            if Terminal::is_lost() {
                return Ok((Outcome::Done, Some("a part of the command has failed, see above".to_owned())));
            }
            let (columns, lines) = Terminal::size();
            app.resized(lines);
            terminal.show(screen::screen(&app, columns, lines), columns)?;
            // All waiting keys are handled before the screen is written again.
            let mut patience = TICK;
            while event::poll(patience)? {
                patience = Duration::ZERO;
                match event::read()? {
                    Event::Key(key) if key.kind != KeyEventKind::Release => match app.key(key, naming) {
                        Reaction::Redraw => {}
                        Reaction::Remake => app.remake(naming),
                        Reaction::WantMoments => watch.want_moments(),
                        Reaction::Leave => {
                            return Ok((Outcome::Done, app.failure().map(str::to_owned)));
                        }
                    },
                    Event::Resize(..) => terminal.forget(),
                    _ => {}
                }
            }
        }
    }
}
