//! `cairn symbolize`: names addresses in files: function, file and line.

mod input;
mod print;

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};

use cairn_analysis::file_kind::FileKind;
use cairn_format::{ModuleOffset, StatedAddress};
use cairn_logs::lines::LineReader;
use cairn_symbols::{AddressKind, Lookup, ModuleId, Place, Section, Symbolizer};
use clap::error::ErrorKind;
use clap::{ArgAction, Args, CommandFactory, ValueEnum};

use super::input_file::{InputFile, with_kind};
use super::symbol_options::SymbolSearch;
use crate::new_file::DASH;
use crate::output::{Outcome, complain};
use input::{Files, Question};
use print::AnswerPrinter;

/// Name addresses in programs and libraries: function, file, line and inlined calls
///
/// Reads ELF files with DWARF inside or in separate debug files, PE with PDB or DWARF, Mach-O with
/// dSYM, Breakpad symbols, perf maps and jitdumps. Answers each line as it arrives, and many at
/// once if many are available.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Symbolize {
    /// Hexadecimal addresses; lines of standard input if there are none, or for -
    #[arg(value_name = "ADDRESS")]
    addresses: Vec<String>,

    /// File that contains the addresses; - for standard input
    #[arg(short, long, value_name = "FILE", alias = "obj")]
    exe: Option<PathBuf>,

    /// Style of the output
    #[arg(long, value_name = "STYLE", ignore_case = true, overrides_with = "output_style")]
    output_style: Option<Style>,

    /// Print the output of binutils' addr2line, as -f, -i, -p and -C also do
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

    /// Addresses are return addresses: look up the call before each
    #[arg(long)]
    return_addresses: bool,

    /// Subtract this from every address first
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, default_value = "0")]
    adjust_vma: u64,

    #[command(flatten)]
    shape: ShapeArguments,

    #[command(flatten)]
    search: SymbolSearch,

    /// Build missing indexes before ending, instead of in another process afterwards
    #[arg(long, conflicts_with = "no_cache")]
    index: bool,

    /// Build the indexes of these files, and answer nothing
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with_all = ["no_cache", "addresses", "exe"])]
    index_only: Vec<PathBuf>,
}

/// Parts of an answer that are shown, by the options of addr2line and llvm-symbolizer.
#[derive(Args)]
#[command(next_help_heading = "Options of addr2line and llvm-symbolizer")]
struct ShapeArguments {
    /// Show function names; KIND is none or linkage
    #[arg(short, long, value_name = "KIND", num_args = 0..=1, require_equals = true, default_missing_value = "linkage", value_parser = ["none", "linkage"])]
    functions: Option<String>,

    /// Show inlined calls
    #[arg(short, long, alias = "inlining", action = ArgAction::SetTrue)]
    inlines: bool,

    /// Show no inlined calls: the name of the function that contains the address
    #[arg(long, conflicts_with = "inlines")]
    no_inlines: bool,

    /// Show readable function names
    #[arg(short = 'C', long, value_name = "STYLE", num_args = 0..=1, require_equals = true, default_missing_value = "auto")]
    demangle: Option<String>,

    /// Show function names as in the symbol table
    #[arg(long, conflicts_with = "demangle")]
    no_demangle: bool,

    /// Print each frame on one line
    #[arg(short, long)]
    pretty_print: bool,

    /// Show the address before its answer
    #[arg(short = 'a', long = "addresses")]
    show_addresses: bool,

    /// Show the names of files without directories
    #[arg(short = 's', long)]
    basenames: bool,

    /// Ignored, for scripts: the file itself shows its kind
    #[arg(short = 'b', long, value_name = "NAME", hide = true)]
    target: Option<String>,

    /// Ignored, for scripts: demangling is always limited
    #[arg(short = 'r', long, visible_short_alias = 'R', alias = "recurse-limit", hide = true)]
    no_recurse_limit: bool,
}

const EXAMPLES: &str = "\
Examples:
  cairn symbolize -e app 0x1234 0x1250       two addresses
  cairn symbolize -e app < addresses         many, one a line
  echo '/usr/lib/libz.so.1 0x4a20' | cairn symbolize
                                             a file on each line, as for llvm-symbolizer
  xzcat vmlinux.xz | cairn symbolize -e - ffffffff81000000
  cairn symbolize -fpiCe app 1234            the output of addr2line -fpiCe app 1234
  cairn symbolize --output-style=JSON -e app 0x1234
                                             the output of llvm-symbolizer
  ln -s cairn addr2line                      under this name, cairn takes addr2line's arguments

Addresses are those in the file, as nm and objdump print them. In the styles of
llvm-symbolizer, numbers without 0x are decimal.

Exit codes: 0 all addresses were named; 1 a file could not be read; 2 the arguments are invalid;
3 some addresses are unknown. In the styles of other tools, unknown addresses end with 0.";

/// Selects the tool whose output format is printed.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Style {
    /// A line for each frame, or the reason why it has no name
    Cairn,
    /// Output of binutils' addr2line
    Addr2line,
    /// Output of llvm-symbolizer
    #[value(name = "LLVM")]
    Llvm,
    /// Output of llvm-symbolizer in its GNU style
    #[value(name = "GNU")]
    Gnu,
    /// Output of llvm-symbolizer in its JSON style
    #[value(name = "JSON")]
    Json,
    /// The object of `--json`
    #[value(skip)]
    OwnJson,
}

/// Parts of an answer that are shown.
#[derive(Clone, Copy)]
struct Shape {
    functions: bool,
    inlines: bool,
    demangle: bool,
    pretty: bool,
    addresses: bool,
    basenames: bool,
}

/// Rewrites the arguments if the program is called `addr2line` or `llvm-symbolizer`.
///
/// The name may have a target in front or a version behind. The result is then a call of `cairn
/// symbolize` in that tool's style, else the arguments are unchanged.
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

/// Reads a number: hexadecimal with `0x`, else decimal.
fn parse_bytes(text: &str) -> Result<u64, std::num::ParseIntError> {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    }
}

impl Symbolize {
    pub(crate) fn run(self) -> io::Result<Outcome> {
        if !self.index_only.is_empty() {
            let all = self.search.index_now(&self.index_only)?;
            return Ok(if all { Outcome::Done } else { Outcome::Incomplete });
        }
        let style = self.style();
        let mut session = Session::new(&self, style)?;
        let mut printer = AnswerPrinter::new(style, self.shape(style));
        if self.addresses.is_empty() || self.addresses == [DASH] {
            session.answer_lines(&mut printer)?;
        } else {
            let questions = self.addresses.iter().map(|text| session.question(text.as_bytes(), &"argument"));
            let questions: Vec<Question> = questions.collect();
            printer.begin_list()?;
            printer.answer(&questions, &session.files)?;
            printer.end_list()?;
        }
        printer.flush()?;
        if self.index {
            session.files.build_indexes();
        } else {
            self.search.index_later(session.files.symbolizer.without_index());
        }
        let failed = session.failed;
        // The process ends now: the kernel frees the tables faster than their destructors.
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
}

/// The state that questions are parsed with.
struct Session {
    style: Style,
    files: Files,
    /// The file of addresses that name none.
    exe: Option<ModuleId>,
    /// Owns the copy of standard input, if that is the file.
    _input: Option<InputFile>,
    section: Option<Section>,
    relative: bool,
    kind: AddressKind,
    adjust: u64,
    failed: bool,
}

impl Session {
    fn new(arguments: &Symbolize, style: Style) -> io::Result<Self> {
        let mut files = Files::new(Symbolizer::new(arguments.search.symbolizer()));
        let default = (style == Style::Addr2line).then(|| PathBuf::from("a.out"));
        let exe = arguments.exe.clone().or(default);
        let input = exe.as_deref().map(InputFile::open).transpose()?;
        let open = |input: &InputFile| {
            let explained = |error| input.error(&with_kind(&error, input.path(), &NAMED_KINDS));
            files.open(input.path()).map_err(explained)
        };
        let exe = input.as_ref().map(open).transpose()?;
        let names_file = |argument: &String| argument.contains(' ') || argument == DASH;
        if exe.is_none() && arguments.addresses.iter().any(|argument| !names_file(argument)) {
            let complaint = "addresses need a file to lie in: -e FILE";
            crate::Cairn::command().error(ErrorKind::MissingRequiredArgument, complaint).exit();
        }
        let section = match (&arguments.section, &arguments.exe) {
            (Some(name), Some(path)) => {
                let file = input.as_ref().map_or(path.as_path(), InputFile::path);
                let found = Section::find(file, name).map_err(io::Error::other)?;
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
        Ok(Self { style, files, exe, _input: input, section, relative, kind, adjust, failed: false })
    }

    /// Answers all lines that are available, then waits for more.
    ///
    /// A single question is answered at once, and a thousand questions are answered together.
    fn answer_lines(&mut self, printer: &mut AnswerPrinter) -> io::Result<()> {
        let mut lines = LineReader::new(io::stdin().lock());
        let mut questions = Vec::new();
        // A terminal delivers one line at a time.
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

    /// Parses a line or an argument. Reports errors, and answers them as unknown.
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
                // llvm-symbolizer takes this for the name of the file.
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

/// Kinds of files that have symbols.
const NAMED_KINDS: [FileKind; 5] =
    [FileKind::ElfProgram, FileKind::ElfObject, FileKind::MachO, FileKind::Pe, FileKind::Pdb];

/// Maximum questions that are answered together, which bounds the memory for answers.
const MAX_QUESTIONS: usize = 1 << 17;
