//! Standard output and standard error: colours, messages, exit codes, and closed pipes.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anstyle::{AnsiColor, Style};
use cairn_format::changes_its_surroundings;
use clap::ColorChoice;
use indicatif::ProgressBar;

/// The colours on standard output: none when it is no terminal, or when they are turned off. Input
/// that is passed through may contain escape sequences of its own, so nothing is stripped
/// afterwards.
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

    /// Returns the colours of text that is printed; none when the text goes to a file.
    pub(crate) fn of_stdout() -> Self {
        if NO_PALETTE.load(Ordering::Relaxed) {
            return Self::default();
        }
        match anstream::AutoStream::choice(&io::stdout()) {
            anstream::ColorChoice::Never => Self::default(),
            _ => Self { function: AnsiColor::Green.on_default(), dim: Style::new().dimmed() },
        }
    }
}

static NO_PALETTE: AtomicBool = AtomicBool::new(false);

/// Turns the palette off, for text that goes to a file.
pub(crate) fn use_no_palette() {
    NO_PALETTE.store(true, Ordering::Relaxed);
}

/// A progress line on a terminal; removed when it is dropped.
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

/// How a command ended: the exit codes, which mean the same in every command.
///
/// [`EXIT_CODES`] says the same to users. Invalid arguments end the command before it runs, by
/// clap, with the code of [`Outcome::Refused`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// Everything was done.
    Done,
    /// A file or process is missing, or cannot be read or written; the rest was done. Also the code
    /// of a command that ends with an error.
    Partly,
    /// When the command refuses its arguments and has changed nothing.
    ///
    /// They contradict each other, or the program or process cannot be recorded.
    Refused,
    /// The answer is incomplete: input ends early or is damaged, or names are unknown.
    Incomplete,
    /// Everything was done, and a limit that was given is exceeded.
    Exceeded,
    /// The program of `cairn heap` is there and cannot be run, with the code that shells use.
    CannotRun,
    /// There is no program of the name that `cairn heap` was given, with the code that shells use.
    NoProgram,
    /// A code of a caller's own.
    Status(u8),
}

impl Outcome {
    /// Returns the exit code.
    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Partly => 1,
            Self::Refused => 2,
            Self::Incomplete => 3,
            Self::Exceeded => 4,
            Self::CannotRun => 126,
            Self::NoProgram => 127,
            Self::Status(status) => status,
        }
    }
}

/// An error that ends the command with [`Outcome::Refused`].
#[derive(Debug)]
struct Refusal(String);

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refusal {}

/// Returns an error for arguments that the command refuses.
pub(crate) fn refusal(message: impl Into<String>) -> io::Error {
    io::Error::other(Refusal(message.into()))
}

/// Returns how a command ends with this error.
pub(crate) fn outcome_of_error(error: &io::Error) -> Outcome {
    match error.get_ref() {
        Some(inner) if inner.is::<Refusal>() => Outcome::Refused,
        _ => Outcome::Partly,
    }
}

impl From<Outcome> for ExitCode {
    fn from(outcome: Outcome) -> Self {
        Self::from(outcome.code())
    }
}

/// The exit codes of all commands, for `cairn --help` and the manual page.
pub(crate) const EXIT_CODES: &str = "\
Exit codes, the same in every command:
  0    everything was done
  1    a file or process is missing, or cannot be read or written; the rest was done
  2    the arguments are invalid, or the program or process cannot be recorded; nothing was done
  3    the answer is incomplete: input ends early or is damaged, or names are unknown
  4    the cost grew by more than `cairn diff --fail-above` allows
  126  `cairn heap`: the program cannot be run
  127  `cairn heap`: there is no such program
Otherwise `cairn heap PROGRAM` ends as the program ends.";

/// Applies `--color` to both streams; `auto` depends on the terminal and the environment.
pub(crate) fn choose_color(choice: ColorChoice) {
    // Consoles before those of Windows 10 show the sequences themselves.
    #[cfg(windows)]
    if anstyle_query::windows::enable_ansi_colors() == Some(false) && choice == ColorChoice::Auto {
        anstream::ColorChoice::Never.write_global();
        return;
    }
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

/// Returns the value of `--max-unpacked`.
pub(crate) fn max_unpacked_bytes() -> Option<u64> {
    MAX_UNPACKED_BYTES.get().copied()
}

/// True when the reader of the output went away, as `head` does, which is success.
pub(crate) fn is_broken_pipe(error: &io::Error) -> bool {
    /// `ERROR_PIPE_NOT_CONNECTED`, which std has no kind for.
    const NOT_CONNECTED: i32 = 233;
    error.kind() == io::ErrorKind::BrokenPipe || cfg!(windows) && error.raw_os_error() == Some(NOT_CONNECTED)
}

/// Prints `cairn: message` on standard error. A failure to print has nowhere to be reported.
pub(crate) fn complain(message: &impl std::fmt::Display) {
    let text = message.to_string();
    let _ = writeln!(anstream::stderr(), "{ERROR}cairn:{ERROR:#} {}", printable(&text));
}

/// Escapes the control and direction characters of untrusted text, so that it cannot drive a
/// terminal.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    if !text.chars().any(changes_its_surroundings) {
        return text.into();
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        if changes_its_surroundings(character) {
            escaped.extend(character.escape_default());
        } else {
            escaped.push(character);
        }
    }
    escaped.into()
}

/// Escapes an argument of the command line like [`printable`]: a message may quote any of them.
pub(crate) fn printable_argument(argument: &OsStr) -> OsString {
    match argument.to_str() {
        Some(text) => printable(text).into_owned().into(),
        None => String::from_utf8_lossy(&escaped_line(argument.as_encoded_bytes())).into_owned().into(),
    }
}

/// Returns standard output, for text without colours.
pub(crate) fn stdout() -> Guarded<io::Stdout> {
    Guarded::new(io::stdout(), io::stdout().is_terminal(), Colors::None)
}

/// Returns standard output, for text that is coloured by a [`Palette`]. Untrusted text goes through
/// [`printable`] before.
pub(crate) fn colored_stdout() -> Guarded<io::Stdout> {
    Guarded::new(io::stdout(), io::stdout().is_terminal(), Colors::Palette)
}

/// Returns standard error, as [`stdout`].
pub(crate) fn stderr() -> Guarded<io::Stderr> {
    Guarded::new(io::stderr(), io::stderr().is_terminal(), Colors::None)
}

/// Returns a device that the user has named for output, as [`stdout`]: it may be a terminal.
pub(crate) fn device(file: File) -> Guarded<File> {
    let is_terminal = file.is_terminal();
    Guarded::new(file, is_terminal, Colors::None)
}

/// The escape sequences that pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Colors {
    None,
    Palette,
}

/// Guards a terminal against control and direction characters by escaping them.
///
/// Newlines, tabs and the colours of a [`Palette`] pass. All bytes pass unchanged to anything else,
/// where a program that knows the format may read them.
pub(crate) struct Guarded<W: Write> {
    inner: W,
    is_terminal: bool,
    colors: Colors,
    /// The beginning of a character or of a colour whose end was not written yet.
    held: Vec<u8>,
    escaped: Vec<u8>,
}

impl<W: Write> Guarded<W> {
    fn new(inner: W, is_terminal: bool, colors: Colors) -> Self {
        Self { inner, is_terminal, colors, held: Vec::new(), escaped: Vec::new() }
    }

    /// True if the inner writer is a terminal.
    pub(crate) fn is_terminal(&self) -> bool {
        self.is_terminal
    }

    fn pass(&mut self, is_end: bool) -> io::Result<()> {
        self.escaped.clear();
        let used = escape(&self.held, self.colors, is_end, &mut self.escaped);
        self.held.drain(..used);
        self.inner.write_all(&self.escaped)
    }
}

impl<W: Write> Write for Guarded<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.is_terminal {
            return self.inner.write(bytes);
        }
        self.held.extend_from_slice(bytes);
        self.pass(false)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if !self.held.is_empty() {
            self.pass(true)?;
        }
        self.inner.flush()
    }
}

impl<W: Write> Drop for Guarded<W> {
    fn drop(&mut self) {
        if !self.held.is_empty() {
            let _ = self.pass(true);
        }
    }
}

/// Escapes a line for a terminal, colours included.
pub(crate) fn escaped_line(line: &[u8]) -> Vec<u8> {
    let mut escaped = Vec::with_capacity(line.len());
    // A carriage return at the end belongs to the newline that follows.
    escape(line.strip_suffix(b"\r").unwrap_or(line), Colors::None, true, &mut escaped);
    escaped
}

/// Appends `bytes` with unsafe characters escaped. Returns the number of bytes used; an incomplete
/// character at the end is left for the next call, unless this is the end.
fn escape(bytes: &[u8], colors: Colors, is_end: bool, escaped: &mut Vec<u8>) -> usize {
    let mut rest = bytes;
    while let Some(&first) = rest.first() {
        let length = match first {
            b'\n' | b'\t' | b' '..=b'~' => 1,
            b'\r' if rest.starts_with(b"\r\n") => 2,
            b'\r' if rest.len() == 1 && !is_end => break,
            0x1b if colors == Colors::Palette => match color(rest) {
                Color::Whole(length) => length,
                Color::Cut if !is_end => break,
                Color::Cut | Color::None => 0,
            },
            0x80.. => match character(rest) {
                Character::Valid(character) if !changes_its_surroundings(character) => character.len_utf8(),
                Character::Cut if !is_end => break,
                _ => 0,
            },
            _ => 0,
        };
        let (whole, behind) = rest.split_at(length);
        escaped.extend_from_slice(whole);
        rest = behind;
        if length > 0 {
            continue;
        }
        match character(rest) {
            Character::Valid(character) => {
                escaped.extend(character.escape_default().map(|c| c as u8));
                rest = rest.split_at(character.len_utf8()).1;
            }
            Character::Cut | Character::Invalid => {
                escaped.extend(std::ascii::escape_default(first));
                rest = rest.split_at(1).1;
            }
        }
    }
    bytes.len() - rest.len()
}

enum Character {
    Valid(char),
    Cut,
    Invalid,
}

/// Decodes the first character of bytes that are not empty.
fn character(bytes: &[u8]) -> Character {
    let start = bytes.get(..4).unwrap_or(bytes);
    let (valid, error) = match std::str::from_utf8(start) {
        Ok(text) => (text, None),
        Err(error) => {
            let valid = start.get(..error.valid_up_to()).unwrap_or_default();
            (std::str::from_utf8(valid).unwrap_or_default(), error.error_len())
        }
    };
    match valid.chars().next() {
        Some(character) => Character::Valid(character),
        None if error.is_none() => Character::Cut,
        None => Character::Invalid,
    }
}

enum Color {
    Whole(usize),
    Cut,
    None,
}

/// Recognises a sequence that a [`Palette`] writes: `ESC [`, one number, `m`. Other sequences move
/// the cursor, hide text, or make the terminal answer.
fn color(bytes: &[u8]) -> Color {
    let Some(number) = bytes.strip_prefix(b"\x1b[") else {
        return if bytes == b"\x1b" { Color::Cut } else { Color::None };
    };
    let digits = number.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (text, behind) = number.split_at(digits);
    match (text, behind.first()) {
        (b"0" | b"1" | b"2" | b"31" | b"32" | b"33", Some(b'm')) => Color::Whole(digits + 3),
        (_, None) if digits <= 2 => Color::Cut,
        _ => Color::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(bytes: &[u8], colors: Colors, step: usize) -> String {
        let mut output = Vec::new();
        let mut guarded = Guarded::new(&mut output, true, colors);
        bytes.chunks(step).for_each(|piece| guarded.write_all(piece).unwrap());
        guarded.flush().unwrap();
        drop(guarded);
        String::from_utf8(output).unwrap()
    }

    // Failed with: the bytes of the input on the terminal.
    #[test]
    fn terminal_gets_no_control_characters_in_any_pieces() {
        let cases: [(&[u8], &str); 14] = [
            (b"plain\ttext\nline\r\n", "plain\ttext\nline\r\n"),
            ("é名🦀".as_bytes(), "é名🦀"),
            (b"a\x1b[31mb", "a\\u{1b}[31mb"),
            (b"a\x1b]0;title\x07b", "a\\u{1b}]0;title\\u{7}b"),
            (b"over\rwrite", "over\\rwrite"),
            (b"\x7f\x00\x08", "\\u{7f}\\u{0}\\u{8}"),
            ("c1\u{9b}2J".as_bytes(), "c1\\u{9b}2J"),
            (b"raw c1 \x9b2J", "raw c1 \\x9b2J"),
            ("rtl\u{202e}lmth".as_bytes(), "rtl\\u{202e}lmth"),
            ("\u{61c}\u{200b}\u{2066}\u{feff}".as_bytes(), "\\u{61c}\\u{200b}\\u{2066}\\u{feff}"),
            ("tag\u{e0041}".as_bytes(), "tag\\u{e0041}"),
            (b"cut \xe2\x80", "cut \\xe2\\x80"),
            (b"end \x1b", "end \\u{1b}"),
            (b"end \r", "end \\r"),
        ];
        for (bytes, expected) in cases {
            for step in 1..=bytes.len() {
                assert_eq!(shown(bytes, Colors::None, step), expected, "pieces of {step}");
            }
        }
    }

    #[test]
    fn terminal_gets_the_colors_of_the_palette() {
        let style = AnsiColor::Green.on_default().bold();
        let text = format!("{style}name{style:#} {}", Style::new().dimmed());
        for step in 1..=text.len() {
            assert_eq!(shown(text.as_bytes(), Colors::Palette, step), text);
        }
        for other in ["\x1b[2J", "\x1b[8m", "\x1b[1;31m", "\x1bc", "\x1b[6n", "\x1b[?25l", "\x1b[123m"] {
            let expected = other.replace('\x1b', "\\u{1b}");
            for step in 1..=other.len() {
                assert_eq!(shown(other.as_bytes(), Colors::Palette, step), expected);
            }
        }
    }

    #[test]
    fn pipe_gets_every_byte() {
        let bytes: Vec<u8> = (0..=255).collect();
        let mut output = Vec::new();
        Guarded::new(&mut output, false, Colors::None).write_all(&bytes).unwrap();
        assert_eq!(output, bytes);
    }
}
