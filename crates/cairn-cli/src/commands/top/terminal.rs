//! The terminal: its own screen while `cairn top` runs, and as it was when it ends, however that
//! is.

use std::io::{self, IsTerminal, Stdout, Write};
use std::sync::Arc;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use anstyle::{AnsiColor, Style};
use crossterm::{cursor, execute, queue, style, terminal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::screen::{Look, ScreenLine};

/// The terminal, until it is dropped.
pub(super) struct Terminal {
    out: Stdout,
    shown: Vec<ScreenLine>,
    columns: usize,
    has_colors: bool,
}

impl Terminal {
    pub(super) fn enter() -> io::Result<Self> {
        restore_on_panic();
        terminal::enable_raw_mode()?;
        let mut out = io::stdout();
        let has_colors = !matches!(anstream::AutoStream::choice(&out), anstream::ColorChoice::Never);
        IS_ENTERED.store(true, Ordering::Relaxed);
        let entered = execute!(out, terminal::EnterAlternateScreen, cursor::Hide);
        let terminal = Self { out, shown: Vec::new(), columns: 0, has_colors };
        // Dropped when it failed.
        entered.map(|()| terminal)
    }

    /// True when a panic of some thread has given the terminal back.
    pub(super) fn is_lost() -> bool {
        !IS_ENTERED.load(Ordering::Relaxed)
    }

    /// Columns and lines.
    pub(super) fn size() -> (usize, usize) {
        let (columns, lines) = terminal::size().unwrap_or((80, 24));
        // A terminal of unknown size says 0.
        let or = |value: u16, usual: usize| if value == 0 { usual } else { usize::from(value) };
        (or(columns, 80), or(lines, 24))
    }

    /// Writes the lines that are not there yet.
    pub(super) fn show(&mut self, lines: Vec<ScreenLine>, columns: usize) -> io::Result<()> {
        if columns != self.columns || lines.len() != self.shown.len() {
            queue!(self.out, terminal::Clear(terminal::ClearType::All))?;
            (self.shown, self.columns) = (Vec::new(), columns);
        }
        if lines == self.shown {
            return Ok(());
        }
        queue!(self.out, terminal::BeginSynchronizedUpdate)?;
        for (place, line) in
            lines.iter().enumerate().filter(|(place, line)| self.shown.get(*place) != Some(line))
        {
            queue!(self.out, cursor::MoveTo(0, place as u16), style::ResetColor)?;
            for (text, look) in &line.0 {
                let style = self.style(*look);
                write!(self.out, "{style}{text}{style:#}")?;
            }
            queue!(self.out, terminal::Clear(terminal::ClearType::UntilNewLine))?;
        }
        queue!(self.out, terminal::EndSynchronizedUpdate)?;
        self.out.flush()?;
        self.shown = lines;
        Ok(())
    }

    /// Everything is written anew at the next time: something else may have written there.
    pub(super) fn forget(&mut self) {
        self.columns = 0;
    }

    fn style(&self, look: Look) -> Style {
        let colored = |color: AnsiColor| if self.has_colors { color.on_default() } else { Style::new() };
        match look {
            Look::Plain => Style::new(),
            Look::Strong => Style::new().bold(),
            Look::Dim => Style::new().dimmed(),
            Look::Reversed => Style::new().invert(),
            Look::Grown => colored(AnsiColor::Red),
            Look::Shrunk => colored(AnsiColor::Green),
            Look::Library => colored(AnsiColor::Cyan),
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        restore();
    }
}

/// True while the command shows its own screen.
static IS_ENTERED: AtomicBool = AtomicBool::new(false);

/// Restores the previous screen, once.
///
/// A second time would move the cursor into the message of a panic.
fn restore() {
    if !IS_ENTERED.swap(false, Ordering::Relaxed) {
        return;
    }
    let mut out = io::stdout();
    let _ = execute!(out, style::ResetColor, cursor::Show, terminal::LeaveAlternateScreen);
    let _ = terminal::disable_raw_mode();
}

/// Prints the message of a panic of any thread on the screen that remains.
fn restore_on_panic() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            restore();
            before(info);
        }));
    });
}

/// Notes signals that end the command, for the loop that checks them.
pub(super) struct Signals(Arc<AtomicUsize>);

impl Signals {
    pub(super) fn watch() -> io::Result<Self> {
        let last = Arc::new(AtomicUsize::new(0));
        for signal in [SIGTERM, SIGINT, SIGHUP] {
            signal_hook::flag::register_usize(signal, Arc::clone(&last), signal as usize)?;
        }
        let signals = Self(last);
        let watched = Self(Arc::clone(&signals.0));
        std::thread::spawn(move || watched.insist());
        Ok(signals)
    }

    /// Ends the command if the loop does not.
    ///
    /// A read from a terminal that is gone may block for ever.
    fn insist(&self) {
        const PATIENCE: Duration = Duration::from_secs(1);
        loop {
            std::thread::sleep(PATIENCE);
            // A terminal that was closed takes no output any more.
            let is_gone = !io::stdin().is_terminal();
            if is_gone || self.status().is_some() {
                std::thread::sleep(PATIENCE);
                restore();
                std::process::exit(self.status().unwrap_or(128 + SIGHUP as u8).into());
            }
        }
    }

    /// The exit status for the signal that came, if one did.
    pub(super) fn status(&self) -> Option<u8> {
        match self.0.load(Ordering::Relaxed) {
            0 => None,
            signal => Some(128 + signal as u8),
        }
    }
}
