//! `cairn symbolize`: from addresses in files to functions, files and lines.

mod input;
mod print;

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};

use cairn_format::{ModuleOffset, StatedAddress};
use cairn_logs::lines::LineReader;
use cairn_symbols::{AddressKind, Lookup, ModuleId, Place, Section, Symbolizer, SymbolizerOptions};
use clap::error::ErrorKind;
use clap::{ArgAction, Args, CommandFactory, ValueEnum};

use super::index_later::{CacheOptions, Search};
use super::symbol_options::limited;
use crate::output::{Outcome, complain};
use input::{Files, Question};
use print::AnswerPrinter;

/// Name addresses in programs and libraries: function, file, line and inlined calls
///
/// Reads ELF files with DWARF inside or in separate debug files, PE with PDB or DWARF, Mach-O with dSYM, Breakpad symbols,
/// perf maps and jitdumps. Answers as addresses come in, one after the other, and many at once when many are there.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Symbolize {
    /// Addresses, hexadecimal; without any, lines of standard input
    addresses: Vec<String>,

    /// File that the addresses lie in
    #[arg(short, long, value_name = "FILE", visible_alias = "obj")]
    exe: Option<PathBuf>,

    /// Whose output to print
    #[arg(long, value_name = "STYLE", ignore_case = true, overrides_with = "output_style")]
    output_style: Option<Style>,

    /// Print what binutils' addr2line prints; -f, -i, -p or -C mean this too
    #[arg(long, conflicts_with = "output_style")]
    addr2line: bool,

    /// Print one JSON object a line
    #[arg(long, conflicts_with_all = ["output_style", "addr2line"])]
    json: bool,

    /// Addresses count from the start of this section
    #[arg(short = 'j', long, value_name = "NAME", requires = "exe")]
    section: Option<String>,

    /// Addresses count from the base of the module
    #[arg(long, conflicts_with = "section")]
    relative_address: bool,

    /// Addresses are those that calls return to: look up the call before
    #[arg(long)]
    return_addresses: bool,

    /// Subtract this from every address first
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, default_value = "0")]
    adjust_vma: u64,

    #[command(flatten)]
    shape: ShapeArguments,

    #[command(flatten)]
    places: Places,
}

/// What is shown of an answer, by the names that addr2line and llvm-symbolizer have for it.
#[derive(Args)]
#[command(next_help_heading = "As addr2line and llvm-symbolizer have it")]
struct ShapeArguments {
    /// Show function names; KIND is none or linkage
    #[arg(short, long, value_name = "KIND", num_args = 0..=1, require_equals = true, default_missing_value = "linkage", value_parser = ["none", "linkage"])]
    functions: Option<String>,

    /// Show inlined calls
    #[arg(short, long, visible_alias = "inlining", action = ArgAction::SetTrue)]
    inlines: bool,

    /// Show the place only, with the name of the function that holds it
    #[arg(long, conflicts_with = "inlines")]
    no_inlines: bool,

    /// Show readable function names
    #[arg(short = 'C', long, value_name = "STYLE", num_args = 0..=1, require_equals = true, default_missing_value = "auto")]
    demangle: Option<String>,

    /// Show function names as the linker knows them
    #[arg(long, conflicts_with = "demangle")]
    no_demangle: bool,

    /// Print a frame on one line
    #[arg(short, long)]
    pretty_print: bool,

    /// Show the address before its answer
    #[arg(short = 'a', long = "addresses")]
    show_addresses: bool,

    /// Leave the directories of files out
    #[arg(short = 's', long)]
    basenames: bool,

    /// The kind of file; taken for the sake of scripts, and seen from the file itself
    #[arg(short = 'b', long, value_name = "NAME", hide = true)]
    target: Option<String>,

    /// Taken for the sake of scripts: names have their limits in any case
    #[arg(short = 'r', long, visible_short_alias = 'R', alias = "recurse-limit", hide = true)]
    no_recurse_limit: bool,
}

/// Where files are looked for.
#[derive(Args)]
#[command(next_help_heading = "Where files are looked for")]
struct Places {
    /// Look for debug files in this directory too
    #[arg(long, value_name = "DIR", visible_alias = "debug-file-directory")]
    debug_dir: Vec<PathBuf>,

    /// Look for the files themselves in this directory too
    #[arg(long, value_name = "DIR")]
    symbol_dir: Vec<PathBuf>,

    /// Take all paths as below this directory
    #[arg(long, value_name = "DIR")]
    sysroot: Option<PathBuf>,

    /// Look for files below FROM in TO instead
    #[arg(long, value_name = "FROM=TO", value_parser = parse_map)]
    map: Vec<(PathBuf, PathBuf)>,

    /// Use debug files of another build too
    #[arg(long)]
    allow_mismatch: bool,

    /// Ask no servers for files that are not here; else those in DEBUGINFOD_URLS are asked, if this cairn was built with the
    /// feature debuginfod
    #[arg(long, overrides_with = "debuginfod")]
    no_debuginfod: bool,

    /// What is the case anyway, as llvm-symbolizer calls it
    #[arg(long, hide = true)]
    debuginfod: bool,

    #[command(flatten)]
    cache: CacheOptions,

    /// Build the index of each file that was asked for before ending; else another process does, when this one is done
    #[arg(long, conflicts_with = "no_cache")]
    index: bool,

    /// Build the indexes of these files, and answer nothing
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with_all = ["no_cache", "addresses", "exe"])]
    index_only: Vec<PathBuf>,
}

impl Places {
    /// The same places for another process.
    fn search(&self) -> Search {
        let mut search = Search::default().flag("--allow-mismatch", self.allow_mismatch);
        search = search.flag("--no-debuginfod", self.no_debuginfod);
        search = self.debug_dir.iter().fold(search, |search, path| search.path("--debug-dir", path));
        search = self.symbol_dir.iter().fold(search, |search, path| search.path("--symbol-dir", path));
        search = self.sysroot.iter().fold(search, |search, path| search.path("--sysroot", path));
        self.map.iter().fold(search, |search, (from, to)| search.map(from, to))
    }
}

const EXAMPLES: &str = "\
Examples:
  cairn symbolize -e app 0x1234 0x1250       two addresses
  cairn symbolize -e app < addresses         many, one a line
  echo '/usr/lib/libz.so.1 0x4a20' | cairn symbolize
                                             files on the lines, as llvm-symbolizer takes them
  cairn symbolize -fpiCe app 1234            what addr2line -fpiCe app 1234 prints
  cairn symbolize --output-style=JSON -e app 0x1234
                                             what llvm-symbolizer prints
  ln -s cairn addr2line                      called by that name, it takes addr2line's arguments

Addresses are those of the file itself, as nm and objdump print them. In the style of
llvm-symbolizer numbers without 0x are decimal, as there.

Exit codes: 0 all addresses were named; 1 a file could not be read; 2 the arguments are invalid;
3 some addresses are not known. In the styles of other tools unknown addresses are 0.";

/// Whose output to print.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Style {
    /// One line a frame, with the reason where nothing is known
    Cairn,
    /// As binutils' addr2line
    Addr2line,
    /// As llvm-symbolizer
    #[value(name = "LLVM")]
    Llvm,
    /// As llvm-symbolizer in its GNU style
    #[value(name = "GNU")]
    Gnu,
    /// As llvm-symbolizer in its JSON style
    #[value(name = "JSON")]
    Json,
    /// A JSON object a line, of our own
    #[value(skip)]
    OwnJson,
}

/// What is shown of an answer.
#[derive(Clone, Copy)]
struct Shape {
    functions: bool,
    inlines: bool,
    demangle: bool,
    pretty: bool,
    addresses: bool,
    basenames: bool,
}

/// Called as `addr2line` or `llvm-symbolizer`, also with a target in front or a version behind, the program is that command.
pub(crate) fn by_name(mut arguments: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let Some(name) = arguments.next() else { return Vec::new() };
    let stem = Path::new(&name).file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    // Debian appends the version.
    let stem = stem.trim_end_matches(|c: char| c.is_ascii_digit() || c == '-').to_owned();
    let mut all = vec![name];
    let arguments: Vec<OsString> = arguments.collect();
    if let ([only], true) = (&*arguments, stem.ends_with("addr2line") || stem.ends_with("llvm-symbolizer"))
        && ["-v", "-V", "--version"].iter().any(|version| only == version)
    {
        all.push("--version".into());
        return all;
    }
    if stem.ends_with("addr2line") {
        all.extend(["symbolize", "--output-style=addr2line"].map(OsString::from));
    } else if stem.ends_with("llvm-symbolizer") {
        all.extend(["symbolize", "--output-style=LLVM"].map(OsString::from));
    }
    all.extend(arguments);
    all
}

/// Hexadecimal with `0x`, else decimal.
fn parse_bytes(text: &str) -> Result<u64, std::num::ParseIntError> {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    }
}

fn parse_map(text: &str) -> Result<(PathBuf, PathBuf), String> {
    match text.split_once('=') {
        Some((from, to)) if !from.is_empty() => Ok((from.into(), to.into())),
        _ => Err("write FROM=TO".to_owned()),
    }
}

impl Symbolize {
    pub(crate) fn run(self) -> io::Result<Outcome> {
        if !self.places.index_only.is_empty() {
            let all = self.places.cache.build_now(&self.places.index_only, self.options())?;
            return Ok(if all { Outcome::Done } else { Outcome::Incomplete });
        }
        let style = self.style();
        let mut session = Session::new(&self, style)?;
        let mut printer = AnswerPrinter::new(style, self.shape(style));
        if self.addresses.is_empty() {
            session.answer_lines(&mut printer)?;
        } else {
            let questions = self.addresses.iter().map(|text| session.question(text.as_bytes(), &"argument"));
            let questions: Vec<Question> = questions.collect();
            printer.begin_list()?;
            printer.answer(&questions, &session.files)?;
            printer.end_list()?;
        }
        printer.flush()?;
        let places = &self.places;
        if places.index {
            session.files.build_indexes();
        } else {
            places.cache.build_later(session.files.symbolizer.without_index(), places.search());
        }
        let failed = session.failed;
        // The process ends now. To free the tables one by one takes as long as many answers; the kernel takes them at once.
        std::mem::forget(session);
        Ok(match style {
            Style::Cairn | Style::OwnJson if failed || printer.failed() => Outcome::Partly,
            Style::Cairn | Style::OwnJson if printer.some_unknown() => Outcome::Incomplete,
            _ => Outcome::Done,
        })
    }

    fn style(&self) -> Style {
        let shape = &self.shape;
        let wants_shape =
            shape.functions.is_some() || shape.inlines || shape.pretty_print || shape.demangle.is_some();
        match self.output_style {
            Some(style) => style,
            None if self.json => Style::OwnJson,
            None if self.addr2line || wants_shape => Style::Addr2line,
            None => Style::Cairn,
        }
    }

    fn shape(&self, style: Style) -> Shape {
        let asked = &self.shape;
        let is_addr2line = style == Style::Addr2line;
        Shape {
            functions: match asked.functions.as_deref() {
                Some(kind) => kind != "none",
                None => !is_addr2line,
            },
            inlines: if is_addr2line { asked.inlines } else { !asked.no_inlines },
            demangle: if is_addr2line { asked.demangle.is_some() } else { !asked.no_demangle },
            pretty: asked.pretty_print,
            addresses: asked.show_addresses,
            basenames: asked.basenames,
        }
    }

    fn options(&self) -> SymbolizerOptions {
        let places = &self.places;
        let mut options = limited(SymbolizerOptions::new()).allow_mismatch(places.allow_mismatch);
        options = options.debuginfod(!places.no_debuginfod);
        options = places.debug_dir.iter().fold(options, SymbolizerOptions::debug_dir);
        options = places.symbol_dir.iter().fold(options, SymbolizerOptions::symbol_dir);
        options = places.map.iter().fold(options, |options, (from, to)| options.map_path(from, to));
        options = places.sysroot.iter().fold(options, SymbolizerOptions::sysroot);
        places.cache.apply(options)
    }
}

/// What questions are understood by.
struct Session {
    style: Style,
    files: Files,
    /// The file that addresses without one lie in.
    exe: Option<ModuleId>,
    section: Option<Section>,
    relative: bool,
    kind: AddressKind,
    adjust: u64,
    failed: bool,
}

impl Session {
    fn new(arguments: &Symbolize, style: Style) -> io::Result<Self> {
        let mut files = Files::new(Symbolizer::new(arguments.options()));
        let default = (style == Style::Addr2line).then(|| PathBuf::from("a.out"));
        let exe = arguments.exe.clone().or(default);
        let exe = exe.map(|path| files.open(&path).map_err(io::Error::other)).transpose()?;
        let names_file = |argument: &String| argument.contains(' ');
        if exe.is_none() && arguments.addresses.iter().any(|argument| !names_file(argument)) {
            let complaint = "addresses need a file to lie in: -e FILE";
            crate::Cairn::command().error(ErrorKind::MissingRequiredArgument, complaint).exit();
        }
        let section = match (&arguments.section, &arguments.exe) {
            (Some(name), Some(path)) => {
                let found = Section::find(path, name).map_err(io::Error::other)?;
                let missing = || io::Error::other(format!("{}: no section {name}", path.display()));
                Some(found.ok_or_else(missing)?)
            }
            _ => None,
        };
        let kind = match arguments.return_addresses {
            true => AddressKind::ReturnAddress,
            false => AddressKind::ProgramCounter,
        };
        let (relative, adjust) = (arguments.relative_address, arguments.adjust_vma);
        Ok(Self { style, files, exe, section, relative, kind, adjust, failed: false })
    }

    /// Answers all lines that are there, then waits for more: who asks one thing at a time gets each answer at once, and
    /// who asks a thousand at a time gets them sorted out together.
    fn answer_lines(&mut self, printer: &mut AnswerPrinter) -> io::Result<()> {
        let mut lines = LineReader::new(io::stdin().lock());
        let mut questions = Vec::new();
        // A terminal hands over one line at a time in any case.
        let most = if io::stdin().is_terminal() { 1 } else { MAX_QUESTIONS };
        while let Some(line) = lines.next_line()? {
            questions.push(self.question(line.bytes, &format_args!("standard input:{}", line.number)));
            if !lines.has_line() || questions.len() >= most {
                printer.answer(&questions, &self.files)?;
                printer.flush()?;
                questions.clear();
            }
        }
        printer.answer(&questions, &self.files)
    }

    /// Understands one line or argument. What cannot be understood is told, and answered as unknown.
    fn question(&mut self, text: &[u8], place: &dyn std::fmt::Display) -> Question {
        let text = String::from_utf8_lossy(text);
        let parsed = match self.style {
            Style::Addr2line => Ok(Some(input::addr2line(&text))),
            Style::Llvm | Style::Gnu | Style::Json => {
                input::line(&text, self.exe.is_some(), input::Numbers::Literals)
            }
            Style::Cairn | Style::OwnJson => {
                input::line(&text, self.exe.is_some(), input::Numbers::Hexadecimal)
            }
        };
        let parsed = match parsed {
            Ok(Some(parsed)) => parsed,
            Ok(None) => return Question::Unknown { text: text.trim().to_owned() },
            Err(problem) => {
                complain(&format_args!("{place}: '{text}': {problem}"));
                self.failed = true;
                // What llvm-symbolizer took for the name of the file.
                let text = match self.exe {
                    Some(exe) => self.files.path(exe).to_string_lossy().into_owned(),
                    None => text.trim().trim_start_matches("CODE ").trim_start_matches("DATA ").to_owned(),
                };
                return Question::Unknown { text };
            }
        };
        let module = match (&parsed.file, &parsed.build) {
            (None, None) => self.exe,
            (None, Some(build)) => match self.files.open_build(build) {
                Ok(module) => Some(module),
                Err(error) => {
                    let path = build.to_string().to_uppercase();
                    complain(&format_args!("'{path}': {error}"));
                    self.failed = true;
                    return Question::NoFile { path, address: parsed.address, error: error.to_string() };
                }
            },
            (Some(path), _) => match self.files.open(Path::new(path)) {
                Ok(module) => Some(module),
                Err(error) => {
                    complain(&error);
                    self.failed = true;
                    let (path, error) = (path.clone(), error.to_string());
                    return Question::NoFile { path, address: parsed.address, error };
                }
            },
        };
        let Some(module) = module else { return Question::Unknown { text: text.trim().to_owned() } };
        match self.lookup(parsed.address) {
            Some(lookup) if parsed.is_data => Question::Data { module, address: parsed.address, lookup },
            Some(lookup) => Question::Address { module, address: parsed.address, lookup },
            None => Question::Outside { module, address: parsed.address },
        }
    }

    fn lookup(&self, address: u64) -> Option<Lookup> {
        let adjusted = address.wrapping_sub(self.adjust);
        let place = match self.section {
            Some(section) if adjusted >= section.size_bytes => return None,
            Some(section) => Place::Stated(section.address.checked_add(adjusted)?),
            None if self.relative => Place::Offset(ModuleOffset::new(adjusted)),
            None => Place::Stated(StatedAddress::new(adjusted)),
        };
        Some(Lookup { place, kind: self.kind })
    }
}

/// More questions than this are answered in parts, so that the memory for answers stays bounded.
const MAX_QUESTIONS: usize = 1 << 17;
