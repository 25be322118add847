//! The terminal: its own screen while `cairn top` runs, and as it was when it ends, however that
//! is.

use std::io::{self, Stdout, Write};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use anstyle::{AnsiColor, Style};
use crossterm::{cursor, execute, queue, style, terminal};

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
pub(super) fn restore() {
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
