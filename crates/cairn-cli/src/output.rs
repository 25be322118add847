//! What the command shows: colours, complaints on standard error, and how a closed pipe ends.

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::OnceLock;
use std::time::Duration;

use anstyle::{AnsiColor, Style};
use clap::ColorChoice;
use indicatif::ProgressBar;

/// The colours on standard output: none when it is no terminal or nobody wants them. What is passed through unchanged
/// may hold escape sequences of its own, so nothing is stripped afterwards.
#[derive(Clone, Copy, Default)]
pub(crate) struct Palette {
    /// Function names.
    pub(crate) function: Style,
    /// Addresses and other things that most eyes skip.
    pub(crate) dim: Style,
}

impl Palette {
    /// Headings, and the numbers that are the answer.
    pub(crate) fn strong(self) -> Style {
        if self.function == Style::new() { Style::new() } else { Style::new().bold() }
    }

    pub(crate) fn of_stdout() -> Self {
        match anstream::AutoStream::choice(&io::stdout()) {
            anstream::ColorChoice::Never => Self::default(),
            _ => Self { function: AnsiColor::Green.on_default(), dim: Style::new().dimmed() },
        }
    }
}

/// What is being done, on a terminal alone; gone when it ends.
pub(crate) struct Progress(ProgressBar);

impl Progress {
    pub(crate) fn begin(what: &'static str) -> Self {
        let progress = Self(ProgressBar::new_spinner());
        progress.0.enable_steady_tick(Duration::from_millis(100));
        progress.now(what);
        progress
    }

    pub(crate) fn now(&self, what: &'static str) {
        self.0.set_message(what);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

const ERROR: Style = AnsiColor::Red.on_default().bold();

/// How a subcommand ended when nothing stopped it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// All went well.
    Done,
    /// Something could not be read and was reported; the rest was done.
    Partly,
    /// The input ends too early, or some of what was asked for is not known; what there is was shown.
    Incomplete,
    /// All went well, and a limit that was given is exceeded.
    Exceeded,
    /// It ended for a reason that has a status of its own.
    Status(u8),
}

impl From<Outcome> for ExitCode {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Done => Self::SUCCESS,
            Outcome::Partly => Self::from(1),
            Outcome::Incomplete => Self::from(3),
            Outcome::Exceeded => Self::from(4),
            Outcome::Status(status) => Self::from(status),
        }
    }
}

/// Applies `--color` to both streams; `auto` looks at the terminal and the environment.
pub(crate) fn choose_color(choice: ColorChoice) {
    match choice {
        ColorChoice::Auto => anstream::ColorChoice::Auto,
        ColorChoice::Always => anstream::ColorChoice::Always,
        ColorChoice::Never => anstream::ColorChoice::Never,
    }
    .write_global();
}

static MAX_UNPACKED_BYTES: OnceLock<u64> = OnceLock::new();

/// Applies `--max-unpacked`.
pub(crate) fn choose_max_unpacked(bytes: Option<u64>) {
    if let Some(bytes) = bytes {
        let _ = MAX_UNPACKED_BYTES.set(bytes);
    }
}

/// What compressed input may unpack to, where the user says it.
pub(crate) fn max_unpacked_bytes() -> Option<u64> {
    MAX_UNPACKED_BYTES.get().copied()
}

/// True when the reader of our output went away, as `head` does: that is success.
pub(crate) fn is_broken_pipe(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::BrokenPipe
}

/// Prints `cairn: message` on standard error. When even that fails there is nobody to tell.
pub(crate) fn complain(message: &impl std::fmt::Display) {
    let text = message.to_string();
    let _ = writeln!(anstream::stderr(), "{ERROR}cairn:{ERROR:#} {}", printable(&text));
}

/// Text from strangers with its control characters escaped, so that it cannot drive a terminal.
pub(crate) fn printable(text: &str) -> std::borrow::Cow<'_, str> {
    if !text.chars().any(char::is_control) {
        return text.into();
    }
    let escape = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    text.chars().map(escape).collect::<String>().into()
}
