//! `cairn decode`: decodes call stacks in logs, texts and raw bytes.

mod crash;
mod input;
mod print;

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;

use cairn_format::{AbsoluteAddress, WordSize};
use cairn_logs::decode::{DecodeOptions, Format};
use cairn_symbols::{Symbolizer, SymbolizerOptions};
use cairn_wire::{cbf, xnu};
use clap::error::ErrorKind;
use clap::{Args, CommandFactory, ValueEnum};

use super::symbol_options::{SymbolOptions, limited};
use crate::new_file::{DASH, Output};
use crate::output::{Outcome, complain};
use print::DecodePrinter;

/// Decode call stacks found in logs, texts or raw bytes
///
/// Reads log lines and finds the call stacks in them: the text `~m#` and base64 as libwebsockets
/// devices print it, anywhere in a line; `~b#` lines as decode tools and this command print them;
/// Swift's JSON, crash logs included; lines that are nothing but addresses, as `0x1000 0x2000`;
/// and lines that are nothing but the base64 or the hexadecimal digits of a stack. Other lines are
/// passed over.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Decode {
    /// Files to read, `-` for standard input (also the default), or the texts themselves
    #[arg(value_name = "FILE|TEXT")]
    inputs: Vec<OsString>,

    /// Executable that the addresses belong to; adds function, file and line to every frame
    #[arg(short, long, value_name = "FILE")]
    exe: Option<PathBuf>,

    /// Address at which a position-independent executable was loaded
    #[arg(long, value_name = "ADDRESS", value_parser = parse_number, requires = "exe")]
    load_address: Option<u64>,

    /// Sum up all allocations by call stack, most bytes first, as libwebsockets' heapmap.sh does
    #[arg(long, conflicts_with_all = ["format", "keep"])]
    totals: bool,

    /// Print one JSON object a line (with --totals: one object)
    #[arg(long, conflicts_with = "format")]
    json: bool,

    /// Convert to this format
    #[arg(long, value_name = "FORMAT", alias = "to")]
    format: Option<FormatName>,

    /// Write to this file; - for standard output
    #[arg(short, long, value_name = "FILE", default_value = DASH, hide_default_value = true)]
    output: PathBuf,

    /// Replace an existing file
    #[arg(long)]
    force: bool,

    /// Print the kind of each frame: pc:, ra: (return address) or async: before the address
    #[arg(long, conflicts_with_all = ["format", "json", "totals"])]
    kinds: bool,

    /// Also print lines without a call stack, unchanged
    #[arg(long)]
    keep: bool,

    /// Format of the input; `auto` finds texts that name their format
    #[arg(long, value_name = "FORMAT", default_value = "auto", alias = "from")]
    input_format: InputFormat,

    /// Encoding of the input (with --input-format)
    #[arg(long, value_name = "HOW", default_value = "auto")]
    encoding: InputEncoding,

    /// Encoding of the output of --format cbf, cif and xnu
    #[arg(long, value_name = "HOW", default_value = "base64")]
    text: OutputEncoding,

    /// Word size of the machine that made the stacks, if the format does not give it. [default:
    /// that of --exe, else 64]
    #[arg(long, value_name = "BITS", value_parser = ["16", "32", "64"])]
    word: Option<String>,

    /// Variant of the Compact Backtrace Format to write
    #[arg(long, value_name = "NAME", default_value = "strict")]
    dialect: Dialect,

    /// Base address of the kernel; XNU entries are then 32-bit distances from it, else whole words
    #[arg(long, value_name = "ADDRESS", value_parser = parse_number)]
    kernel_base: Option<u64>,

    /// Name of the architecture for --format swift-json, if the input has none
    #[arg(long, value_name = "NAME")]
    architecture: Option<String>,

    /// Skip damaged stacks instead of printing their readable part
    #[arg(long)]
    strict: bool,

    /// For the images of crash logs, which have build ids. -e names all other addresses.
    #[command(flatten)]
    symbols: SymbolOptions,
}

const EXAMPLES: &str = "\
Examples:
  cairn decode '~m#IF0BmUQugNCkgCnkhdAYpQa6wAAV'      one stack, as numbers
  cairn decode -e app.elf device.log                   a log, as function names
  minicom -C /dev/stdout | cairn decode --keep -e app.elf
                                                       a live console, with the stacks explained
  cairn decode --totals -e app.elf < screen-scrape     who holds how much memory
  cairn decode --input-format cbf 021a00999900         Swift's compact backtraces, here in hexadecimal
  cairn decode --input-format cbf --format swift-json --architecture x86_64 -o trace.json trace.cbf
  cairn decode --symbols .build/release crash.json     a JSON crash log of Swift

Output: `~b#size: BYTES, ADDRESS ADDRESS ...` a stack, innermost call first; with -e each frame follows on its own line.
`...5`: five frames were omitted; `...`: the stack goes on, but was not recorded.
`?` behind a number: a 64-bit libwebsockets damaged it, and at most its low 31 bits are right.
Sizes with `?` are in no total.
A crash log (SWIFT_BACKTRACE=format=json) is printed with its threads, registers, memory and images.
A frame that has a name in the log keeps it. Files with the build ids of the log's images, which
--symbols and --debug-dir find, name the others; -e names those outside of all its images.
--format converts the stack of each of its threads.
A damaged stack is reported on standard error with its line; its readable part is printed, and decoding continues.

Exit codes: 0 all stacks were intact; 1 something was damaged or could not be read; 2 the arguments are invalid.";

/// A format by name.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum FormatName {
    /// libwebsockets compressed backtrace
    Lws,
    /// Swift's Compact Backtrace Format
    Cbf,
    /// Swift's Compact ImageMap Format
    Cif,
    /// XNU packed backtrace
    Xnu,
    /// Swift's JSON: a backtrace around CBF and CIF; as input, a crash log, too
    SwiftJson,
}

impl FormatName {
    const fn format(self) -> Format {
        match self {
            Self::Lws => Format::Lws,
            Self::Cbf => Format::Cbf,
            Self::Cif => Format::Cif,
            Self::Xnu => Format::Xnu,
            Self::SwiftJson => Format::SwiftJson,
        }
    }
}

/// The format of the input: stated, or found out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum InputFormat {
    Auto,
    Named(FormatName),
}

impl ValueEnum for InputFormat {
    fn value_variants<'a>() -> &'a [Self] {
        use FormatName::{Cbf, Cif, Lws, SwiftJson, Xnu};
        &[
            Self::Auto,
            Self::Named(Lws),
            Self::Named(Cbf),
            Self::Named(Cif),
            Self::Named(Xnu),
            Self::Named(SwiftJson),
        ]
    }

    fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
        match self {
            Self::Auto => Some(clap::builder::PossibleValue::new("auto").help("Log lines and texts")),
            Self::Named(name) => name.to_possible_value(),
        }
    }
}

/// Encoding of the input.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum InputEncoding {
    /// Hexadecimal or base64 if the input has no other characters, else raw
    Auto,
    /// Raw bytes
    Raw,
    /// Hexadecimal digits, a record a line
    Hex,
    /// Base64, a record a line
    Base64,
}

/// Encoding of the output.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum OutputEncoding {
    /// Base64, a record a line
    Base64,
    /// Hexadecimal digits, a record a line
    Hex,
    /// Raw bytes, one record after the other
    Raw,
}

/// Variant of the Compact Backtrace Format.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Dialect {
    /// As the format's document says
    Strict,
    /// The bytes of Swift 6.2
    #[value(name = "swift-6.2")]
    Swift62,
    /// The bytes of newer Swift
    SwiftNewer,
}

impl Dialect {
    const fn dialect(self) -> cbf::CbfDialect {
        match self {
            Self::Strict => cbf::CbfDialect::Strict,
            Self::Swift62 => cbf::CbfDialect::Swift62,
            Self::SwiftNewer => cbf::CbfDialect::SwiftNewer,
        }
    }
}

/// Reads `0x…` as hexadecimal, other numbers as decimal.
fn parse_number(text: &str) -> Result<u64, std::num::ParseIntError> {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    }
}

impl Decode {
    pub(crate) fn run(self) -> io::Result<Outcome> {
        self.check_combinations();
        let symbols = match &self.exe {
            Some(path) => {
                let mut symbolizer = Symbolizer::new(limited(SymbolizerOptions::new()));
                let module = symbolizer.add_file(path).map_err(io::Error::other)?;
                Some((symbolizer, module))
            }
            None => None,
        };
        let options = DecodeOptions {
            word_size: self
                .word_size(symbols.as_ref().map(|(symbolizer, module)| symbolizer.word_size(*module))),
            strict: self.strict,
            xnu_packing: match self.kernel_base {
                Some(base) => xnu::Packing::KernelOffset32 { kernel_base: AbsoluteAddress::new(base) },
                None => xnu::Packing::None,
            },
        };
        let output = Output::begin_text(&self.output, self.force)?;
        if self.format.is_some_and(|format| format != FormatName::SwiftJson)
            && self.text == OutputEncoding::Raw
        {
            output.refuse_terminal("a binary format (--text raw)")?;
        }
        let mut printer = DecodePrinter::new(&self, output, symbols, options.xnu_packing);
        let mut outcome = Outcome::Done;
        for source in input::sources(&self.inputs) {
            match input::read(&source, &self, &options, &mut printer) {
                Ok(Outcome::Done) => {}
                Ok(partly) => outcome = partly,
                Err(input::ReadError::Output(error)) => return Err(error),
                Err(input::ReadError::Input(error)) => {
                    complain(&format_args!("{source}: {error}"));
                    outcome = Outcome::Partly;
                }
            }
        }
        printer.finish()?;
        Ok(outcome)
    }

    /// Ends the program like clap does when options contradict each other in a way that clap cannot
    /// detect.
    fn check_combinations(&self) {
        let is_xnu = self.input_format == InputFormat::Named(FormatName::Xnu);
        let (kind, complaint) = match (self.input_format, self.format) {
            (InputFormat::Auto, _) if self.encoding != InputEncoding::Auto => (
                ErrorKind::MissingRequiredArgument,
                "--encoding needs --input-format FORMAT: texts that name their format have one encoding",
            ),
            (_, Some(FormatName::SwiftJson))
                if self.architecture.is_none()
                    && self.input_format != InputFormat::Named(FormatName::SwiftJson) =>
            {
                (
                    ErrorKind::MissingRequiredArgument,
                    "--format swift-json needs --architecture NAME (such as x86_64 or arm64): Swift's JSON must name one",
                )
            }
            _ if is_xnu && matches!(self.word.as_deref(), Some("16" | "32")) => (
                ErrorKind::ArgumentConflict,
                "--word does not apply to --input-format xnu: XNU packs whole 64-bit words, or 32-bit distances from the \
                 kernel's base; leave --word out, and for distances add --kernel-base ADDRESS",
            ),
            (_, to) if self.kernel_base.is_some() && !is_xnu && to != Some(FormatName::Xnu) => (
                ErrorKind::ArgumentConflict,
                "--kernel-base needs --input-format xnu or --format xnu: no other format has distances from the kernel's base",
            ),
            _ => return,
        };
        crate::Cairn::command().error(kind, complaint).exit()
    }

    /// Returns the word size that was asked for, or that of the program.
    fn word_size(&self, program: Option<WordSize>) -> WordSize {
        match self.word.as_deref() {
            Some("16") => WordSize::Bits16,
            Some("32") => WordSize::Bits32,
            Some(_) => WordSize::Bits64,
            None => program.unwrap_or(WordSize::Bits64),
        }
    }
}
