//! What the command shows: colours, complaints on standard error, and how a closed pipe ends.

use std::io::{self, Write};
use std::process::ExitCode;

use anstyle::{AnsiColor, Style};
use clap::ColorChoice;

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
    pub(crate) fn of_stdout() -> Self {
        match anstream::AutoStream::choice(&io::stdout()) {
            anstream::ColorChoice::Never => Self::default(),
            _ => Self { function: AnsiColor::Green.on_default(), dim: Style::new().dimmed() },
        }
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
    /// Everything was read, and some of what was asked for is not known.
    Unknown,
}

impl From<Outcome> for ExitCode {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Done => Self::SUCCESS,
            Outcome::Partly => Self::from(1),
            Outcome::Unknown => Self::from(3),
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
