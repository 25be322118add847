//! Input of `cairn decode`: files, standard input and arguments; whole, or line by line.

use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use cairn_analysis::file_kind::{FileKind, WrongFile};
use cairn_logs::crash_log::{self, CrashLogError, Gathered, GatheredText, ObjectGatherer};
use cairn_logs::decode::{self, DecodeOptions, Format, Record};
use cairn_logs::lines::LineReader;
use cairn_logs::text_bytes::TextEncoding;
use cairn_wire::lws::log_line::{self, Mark};
use cairn_wire::swift_json;

use super::print::{DecodePrinter, Place};
use super::{Decode, InputEncoding, InputFormat};
use crate::output::Outcome;

/// Maximum bytes of an input that is read as one record. Stacks are small; a larger file is
/// something else.
const MAX_RECORD_BYTES: u64 = 64 << 20;

/// Minimum characters of base64 or hexadecimal digits: words in a log consist of the same
/// characters.
const MIN_BARE_CHARACTERS: usize = 8;

/// One input.
pub(super) enum InputSource {
    StandardInput,
    File(PathBuf),
    /// The argument itself.
    Argument(String),
}

impl fmt::Display for InputSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::StandardInput => f.write_str("standard input"),
            Self::File(path) => path.display().fmt(f),
            Self::Argument(_) => f.write_str("argument"),
        }
    }
}

/// The reason why reading of an input stopped.
pub(super) enum ReadError {
    /// The input failed; others may be fine.
    Input(io::Error),
    /// The output failed, which ends the command.
    Output(io::Error),
}

/// Returns the inputs that the arguments name: existing files, and texts that may hold stacks.
pub(super) fn sources(arguments: &[OsString]) -> Vec<InputSource> {
    if arguments.is_empty() {
        return vec![InputSource::StandardInput];
    }
    arguments.iter().map(source).collect()
}

fn source(argument: &OsString) -> InputSource {
    let path = PathBuf::from(argument);
    match argument.to_str() {
        Some("-") => InputSource::StandardInput,
        Some(text) if !path.exists() && may_be_text(text) => InputSource::Argument(text.to_owned()),
        _ => InputSource::File(path),
    }
}

/// True for marked texts, JSON, addresses, base64, and hexadecimal digits. A dot or a second word
/// makes the argument the name of a missing file.
fn may_be_text(argument: &str) -> bool {
    let is_bare = |c: char| c.is_ascii_alphanumeric() || "+/-_=".contains(c);
    let is_frame = |word: &str| log_line::parse_frame(word.trim_end_matches(',').as_bytes()).is_some();
    argument.contains("~m#")
        || argument.contains("~b#")
        || argument.trim_start().starts_with('{')
        || (argument.len() >= 2 && !argument.starts_with('/') && argument.chars().all(is_bare))
        || argument.split_ascii_whitespace().all(is_frame)
}

/// Reads one input to its end and passes every record to the printer.
pub(super) fn read(
    source: &InputSource,
    arguments: &Decode,
    options: &DecodeOptions,
    printer: &mut DecodePrinter<'_>,
) -> Result<Outcome, ReadError> {
    let reader: Box<dyn Read> = match source {
        InputSource::StandardInput => Box::new(io::stdin().lock()),
        InputSource::File(path) => {
            let file = open_file(path).map_err(ReadError::Input)?;
            if arguments.input_format == InputFormat::Auto {
                refuse_binary(path).map_err(ReadError::Input)?;
            }
            Box::new(file)
        }
        InputSource::Argument(text) => Box::new(io::Cursor::new(text.clone().into_bytes())),
    };
    let mut reading = Reading { source, arguments, options, printer, outcome: Outcome::Done };
    match arguments.input_format {
        InputFormat::Auto => reading.lines(reader)?,
        InputFormat::Named(name) => reading.records(reader, name.format())?,
    }
    Ok(reading.outcome)
}

/// Opens a file or a pipe. A directory is an error here, where the message can be clear.
fn open_file(path: &PathBuf) -> io::Result<File> {
    // Windows opens no directory.
    if path.is_dir() {
        return Err(io::Error::other("is a directory; name the files in it"));
    }
    File::open(path)
}

/// Refuses files of a known kind that is no log: without a stack in them, nothing would be printed.
fn refuse_binary(path: &Path) -> io::Result<()> {
    // A pipe must not be read twice.
    let kind = if path.is_file() { FileKind::of_file(path)? } else { FileKind::Unknown };
    match kind {
        FileKind::Recording
        | FileKind::Core
        | FileKind::Minidump
        | FileKind::ElfProgram
        | FileKind::ElfObject
        | FileKind::MachO
        | FileKind::Pe
        | FileKind::Pdb
        | FileKind::Gzip
        | FileKind::Zstd
        | FileKind::Lz4
        | FileKind::Xz
        | FileKind::Bzip2
        | FileKind::Zip
        | FileKind::Tar => {
            let wrong = WrongFile { kind, inside: None };
            Err(io::Error::other(format!("no log; the file is {wrong}")))
        }
        _ => Ok(()),
    }
}

struct Reading<'a, 'b> {
    source: &'a InputSource,
    arguments: &'a Decode,
    options: &'a DecodeOptions,
    printer: &'a mut DecodePrinter<'b>,
    outcome: Outcome,
}

impl Reading<'_, '_> {
    /// Reads log lines: marks, JSON, and bare texts. Other lines are skipped or printed unchanged.
    fn lines(&mut self, reader: Box<dyn Read>) -> Result<(), ReadError> {
        let mut lines = LineReader::new(reader);
        let mut blob = vec![0; log_line::BUFFER_BYTES];
        let mut gatherer = ObjectGatherer::new();
        while let Some(line) = lines.next_line().map_err(ReadError::Input)? {
            self.gather(&mut gatherer, (line.number, line.bytes, line.ends), &mut blob)?;
            self.printer.end_of_line().map_err(ReadError::Output)?;
        }
        gatherer.take().map_or(Ok(()), |text| self.broken_object(&text, &mut blob))
    }

    /// Adds a line to the JSON object that it may be part of.
    fn gather(
        &mut self,
        gatherer: &mut ObjectGatherer,
        line: (u64, &[u8], bool),
        blob: &mut [u8],
    ) -> Result<(), ReadError> {
        let (number, bytes, ends) = line;
        match gatherer.add(number, bytes, ends) {
            Gathered::Other => self.line(line, blob),
            Gathered::Part => Ok(()),
            Gathered::Whole => gatherer.take().map_or(Ok(()), |text| self.object(&text, blob)),
            Gathered::Broken => {
                let Some(text) = gatherer.take() else { return Ok(()) };
                let Some(before) = text.before_last() else { return self.broken_object(&text, blob) };
                if crash_log::is_crash_log(before) {
                    // The damage may be in the last line.
                    let place = Place { source: self.source, line: Some(text.first_line) };
                    self.crash(place, &text.bytes)?;
                } else {
                    let count = before.split(|&byte| byte == b'\n').count();
                    text.lines().take(count).try_for_each(|line| self.line(line, blob))?;
                }
                // The last line begins another object.
                let last = text.into_last();
                self.gather(gatherer, (last.first_line, &last.bytes, last.ends), blob)
            }
        }
    }

    /// Decodes a line, or a piece of one: its number, its bytes, and whether it ends.
    fn line(&mut self, line: (u64, &[u8], bool), blob: &mut [u8]) -> Result<(), ReadError> {
        let (number, bytes, ends) = line;
        let is_argument = matches!(self.source, InputSource::Argument(_));
        let place = Place { source: self.source, line: Some(number) };
        let mut found = false;
        for mark in log_line::marks(bytes) {
            found = true;
            self.mark(place, &mark, blob)?;
        }
        if !found {
            found = self.unmarked(place, bytes, is_argument)?;
        }
        if !found && self.arguments.keep {
            self.printer.keep(bytes, ends).map_err(ReadError::Output)?;
        }
        if !found && is_argument {
            self.report(place, &"no call stack found in this text; name its format with --input-format");
        }
        Ok(())
    }

    /// Decodes a JSON object, on one line or on many.
    fn object(&mut self, text: &GatheredText, blob: &mut [u8]) -> Result<(), ReadError> {
        let place = Place { source: self.source, line: Some(text.first_line) };
        if crash_log::is_crash_log(&text.bytes) {
            return self.crash(place, &text.bytes);
        }
        if swift_json::read(&text.bytes).is_ok() {
            return self.decode(place, Format::SwiftJson, &text.bytes);
        }
        text.lines().try_for_each(|line| self.line(line, blob))
    }

    /// Decodes the beginning of a JSON object: a damaged crash log, or other lines.
    fn broken_object(&mut self, text: &GatheredText, blob: &mut [u8]) -> Result<(), ReadError> {
        if crash_log::is_crash_log(&text.bytes) {
            let place = Place { source: self.source, line: Some(text.first_line) };
            return self.crash(place, &text.bytes);
        }
        text.lines().try_for_each(|line| self.line(line, blob))
    }

    /// Prints a crash log of Swift.
    fn crash(&mut self, place: Place<'_>, bytes: &[u8]) -> Result<(), ReadError> {
        let log = match crash_log::read(bytes) {
            Ok(log) => log,
            Err(error) => {
                let within = match error {
                    CrashLogError::Json { line, .. } => line.saturating_sub(1) as u64,
                    _ => 0,
                };
                let line = place.line.map(|line| line.saturating_add(within));
                self.report(Place { line, ..place }, &error);
                return Ok(());
            }
        };
        for fault in &log.faults {
            self.report(place, fault);
        }
        if log.further_faults > 0 {
            self.report(place, &format_args!("bad crash log: {} further faults", log.further_faults));
        }
        let outcome = self.printer.crash(place, &log).map_err(ReadError::Output)?;
        if outcome == Outcome::Partly {
            self.outcome = Outcome::Partly;
        }
        Ok(())
    }

    fn mark(&mut self, place: Place<'_>, mark: &Mark<'_>, blob: &mut [u8]) -> Result<(), ReadError> {
        if let (true, Mark::Compressed(text)) = (self.arguments.totals, mark) {
            // Fast path for millions of lines: no record is built for an intact blob.
            if let Ok(backtrace) = text.decode(self.options.word_size, blob)
                && !backtrace.suspected_losses.any()
            {
                self.printer.total(&backtrace.addresses, backtrace.allocation_size_bytes);
                return Ok(());
            }
        }
        match decode::mark(mark, self.options, blob) {
            Ok(record) => self.print(place, Record::Stack(record)),
            Err(error) => {
                self.report(place, &error);
                Ok(())
            }
        }
    }

    /// Decodes a line without a mark: JSON, addresses, base64 or hexadecimal digits.
    fn unmarked(&mut self, place: Place<'_>, line: &[u8], is_argument: bool) -> Result<bool, ReadError> {
        let line = line.trim_ascii();
        if line.first() == Some(&b'{') && contains(line, b"\"backtrace\"") {
            self.decode(place, Format::SwiftJson, line)?;
            return Ok(true);
        }
        if let Some(record) = decode::address_line(line, self.options) {
            self.print(place, Record::Stack(record))?;
            return Ok(true);
        }
        if line.len() < MIN_BARE_CHARACTERS && !is_argument {
            return Ok(false);
        }
        for encoding in [TextEncoding::Hex, TextEncoding::Base64] {
            let Ok(bytes) = encoding.decode(line) else { continue };
            if let Some(format) = decode::guess(&bytes, self.options) {
                self.decode(place, format, &bytes)?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Decodes records of one known format: raw bytes, or a text a line.
    fn records(&mut self, reader: Box<dyn Read>, format: Format) -> Result<(), ReadError> {
        let mut content = Vec::new();
        reader.take(MAX_RECORD_BYTES + 1).read_to_end(&mut content).map_err(ReadError::Input)?;
        if content.len() as u64 > MAX_RECORD_BYTES {
            let text = "longer than 64 MiB, which no call stack is; for a log, leave --input-format out";
            return Err(ReadError::Input(io::Error::other(text)));
        }
        let place = Place { source: self.source, line: None };
        if format == Format::SwiftJson {
            // A crash log names its kind; without the name, its threads identify it.
            let is_crash_log = crash_log::is_crash_log(&content) || contains(&content, b"\"threads\"");
            return match is_crash_log && swift_json::read(&content).is_err() {
                true => self.crash(place, &content),
                false => self.decode(place, format, &content),
            };
        }
        let encoding = match self.arguments.encoding {
            InputEncoding::Auto => TextEncoding::of(&content),
            InputEncoding::Raw => None,
            InputEncoding::Hex => Some(TextEncoding::Hex),
            InputEncoding::Base64 => Some(TextEncoding::Base64),
        };
        let Some(encoding) = encoding else { return self.decode(place, format, &content) };
        for (number, line) in (1..).zip(content.split(|&byte| byte == b'\n')) {
            let place = Place { source: self.source, line: Some(number) };
            let line = strip_mark(line.trim_ascii());
            if line.is_empty() {
                continue;
            }
            match encoding.decode(line) {
                Ok(bytes) => self.decode(place, format, &bytes)?,
                Err(error) => self.report(place, &error),
            }
        }
        Ok(())
    }

    fn decode(&mut self, place: Place<'_>, format: Format, bytes: &[u8]) -> Result<(), ReadError> {
        let options = self.options;
        // Each record is printed at once: 64 MiB may hold 32 million of them.
        let mut printed = Ok(());
        let result = decode::records(format, bytes, options, |record| {
            if printed.is_ok() {
                printed = self.print(place, record);
            }
        });
        printed?;
        if let Err(error) = result {
            self.report(place, &error);
        }
        Ok(())
    }

    fn print(&mut self, place: Place<'_>, record: Record) -> Result<(), ReadError> {
        for fault in record.faults() {
            self.report(place, fault);
        }
        let outcome = self.printer.record(place, record).map_err(ReadError::Output)?;
        if outcome == Outcome::Partly {
            self.outcome = Outcome::Partly;
        }
        Ok(())
    }

    fn report(&mut self, place: Place<'_>, problem: &dyn fmt::Display) {
        self.outcome = Outcome::Partly;
        place.complain(problem);
    }
}

/// Removes the mark of `--input-format lws`, which takes marked texts as well as bare ones.
fn strip_mark(line: &[u8]) -> &[u8] {
    line.strip_prefix(b"~m#").unwrap_or(line)
}

fn contains(line: &[u8], text: &[u8]) -> bool {
    line.windows(text.len()).any(|window| window == text)
}
