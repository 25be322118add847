//! `cairn top`: who holds the memory of a program that runs, now.

mod app;
mod naming;
mod screen;
mod table;
mod terminal;
mod watch;

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::sync::mpsc::TryRecvError;
use std::time::{Duration, Instant};

use cairn_analysis::heap::{Folding, LiveHeap};
use clap::Args;
use crossterm::event::{self, Event, KeyEventKind};

use super::heap_input::parse_time;
use super::heap_text::{bytes, width};
use super::symbol_options::SymbolOptions;
use super::target::{Target, resolve};
use crate::output::{Outcome, complain};
use app::{App, Reaction};
use naming::Naming;
use table::{By, Column, Wish};
use terminal::{Signals, Terminal};
use watch::{News, Watch};

/// Show who holds a program's memory while it runs
///
/// Looks at a recording once a second and shows who holds memory, whose memory grows, and who allocates most. The program must be
/// recorded: by `cairn heap PROGRAM`, or by `cairn heap --attach PID` when it runs already. A recording that has ended is shown as it
/// was at its end.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Top {
    /// The process, or its recording; a directory with one recording in it
    #[arg(value_name = "PID|FILE")]
    target: OsString,

    /// What a row is
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = By::Function)]
    by: By,

    /// What rows are ordered by
    #[arg(long, value_name = "COLUMN", value_enum, default_value_t = Column::Live)]
    sort: Column,

    /// Only rows with this text in their names
    #[arg(long, value_name = "TEXT", default_value = "")]
    search: String,

    /// How often to look: 1s, 200ms
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

    /// Rows of a printed table
    #[arg(short = 'n', long, value_name = "N", default_value_t = 20)]
    limit: usize,

    /// Show the allocator's frames and those in front of main too
    #[arg(long)]
    internals: bool,

    #[command(flatten)]
    symbols: SymbolOptions,
}

const EXAMPLES: &str = "\
Examples:
  cairn top 4711                               process 4711, which `cairn heap` records
  cairn top server.4711.cairn                  the same by its file
  cairn top 4711 --by line --sort growth       the lines whose memory grows
  cairn top 4711 --plain --interval 10s >> log a table every ten seconds
  cairn top 4711 --once -n 5                   the five largest, once

Keys: ? shows them all. q leaves, Enter shows the whole stack of a row, Tab changes what a row is,
< and > what rows are ordered by, / searches, 0 counts growth from now on, p holds the screen, m puts
a mark into the recording, x and s stop and start it.

Exit codes: 0 all went well; 1 there is no such process or recording, or it cannot be read;
2 the arguments make no sense.";

fn parse_interval(text: &str) -> Result<Duration, String> {
    /// More often there is nothing new.
    const LEAST: Duration = Duration::from_millis(50);
    let interval = Duration::from_nanos(parse_time(text)?);
    if interval < LEAST { Err("the shortest interval is 50ms".to_owned()) } else { Ok(interval) }
}

impl Top {
    pub(crate) fn run(self) -> io::Result<Outcome> {
        let Some(path) = self.file()? else { return Ok(Outcome::Status(2)) };
        let named = |error: &dyn std::fmt::Display| {
            let (text, path) = (error.to_string(), path.display().to_string());
            // Some errors of opening name the file themselves.
            let is_named = text.starts_with(&path) || text.contains(&format!(" {path}:"));
            io::Error::other(if is_named { text } else { format!("{path}: {text}") })
        };
        let heap = LiveHeap::open(&path).map_err(|error| named(&error))?;
        let is_terminal = io::stdout().is_terminal() && io::stdin().is_terminal();
        let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        let is_interactive = is_terminal && !is_dumb && !self.plain && !self.once;
        let wish = Wish {
            by: self.by,
            column: self.sort,
            is_reversed: false,
            search: self.search.to_lowercase(),
            chosen: None,
        };
        let folding = Folding { allocator: !self.internals, startup: !self.internals };
        let app = App::new(path.display().to_string(), wish, folding, is_interactive);
        let naming = Naming::begin(self.symbols.wanted().then(|| self.symbols.symbolizer()));
        let watch = Watch::begin(heap, self.interval);
        let (outcome, failure) = if is_interactive {
            self.interact(app, &naming, &watch)?
        } else {
            self.print(app, &naming, &watch)?
        };
        if let Some(names) = naming.finish() {
            self.symbols.index_later(&names);
        }
        match failure {
            Some(why) => Err(named(&why)),
            None => Ok(outcome),
        }
    }

    /// The recording's file; nothing when it was told that there are several.
    fn file(&self) -> io::Result<Option<PathBuf>> {
        const SHOWN: usize = 20;
        match resolve(&self.target)? {
            Target::File(path) => Ok(Some(path)),
            Target::Directory(directory, mut all) if all.len() == 1 => {
                Ok(all.pop().map_or(Some(directory), |one| Some(one.path)))
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
        /// Names that take longer are there in the next table; a single table has them all.
        const PATIENCE: Duration = Duration::from_secs(2);
        /// What takes longer to be read says how far it is.
        const PROGRESS: Duration = Duration::from_secs(2);
        let patience = if self.once { Duration::from_secs(3600) } else { PATIENCE };
        let mut out = crate::output::stdout();
        let (mut looks, mut tables) = (0, 0);
        let mut told = Instant::now();
        loop {
            match watch.news.recv() {
                Ok(News::Seen(seen)) => drop(app.saw(seen)),
                Ok(News::Moments(_)) => continue,
                Ok(News::Failed(why)) => return Ok((Outcome::Done, Some(why))),
                Err(_) => return Ok((Outcome::Done, None)),
            }
            if !app.is_complete() {
                if let Some(nanos) = app.behind_nanos()
                    && told.elapsed() >= PROGRESS
                {
                    told = Instant::now();
                    complain(&format_args!("catching up: {} behind", screen::time(nanos)));
                }
                continue;
            }
            looks += 1;
            // What grows is known at the second look.
            if self.once && looks < 2 && !app.is_over() {
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
            for line in screen::plain(&app, width(), self.limit) {
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
        /// A key is answered at once, and what others have to say in such a time.
        const TICK: Duration = Duration::from_millis(100);
        /// Names come in small portions; the table is made again for them so often.
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
            // All that is there is taken before the screen is written again.
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
