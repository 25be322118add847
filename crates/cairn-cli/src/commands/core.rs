//! `cairn core`: finds out who allocated the blocks in an image of memory.

mod answers;
mod json;
mod print;

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use cairn_analysis::code_names::CodeNames;
use cairn_analysis::file_kind::FileKind;
use cairn_analysis::heap::{
    Cost, Direction, FlameOptions, Folding, ModuleNames, Namer, Names, NoNames, Questions, Scope, TreeLimits,
    stacks_in_focus,
};
use cairn_analysis::source::{HeapFilter, HeapSource, ImageHeap, Question, SourceError, names_of_image};
use cairn_exchange::target::{Choice, EventSource, HeapEvents, LiveBlock, Rows};
use cairn_exchange::{Profile, Subject, Target, write};
use cairn_format::{AbsoluteAddress, WordSize};
use cairn_memory::heap::{Annotated, BlockLayout, FindOptions};
use cairn_memory::image::{Image, Machine, OpenOptions, RawFile};
#[cfg(target_os = "linux")]
use cairn_recording::code_files_of;
use cairn_wire::heapblock::ByteOrder;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};

use super::fold_options::FoldOptions;
use super::heap_input::{FilterOptions, HeapInput};
use super::heap_text::{bytes, counted};
use super::input_file::{InputFile, with_kind};
use super::options::{CostName, ListOptions, OutputOptions, ViewName};
use super::perf_maps;
use super::processes::parse_pid;
use super::report::{ReportCommand, ReportOptions};
use super::symbol_options::{SymbolOptions, complain_about_modules};
use crate::new_file::{DASH, Output};
use crate::output::{Outcome, Progress, complain, max_unpacked_bytes, refusal};
use answers::{Answers, Wanted};
use print::CorePrinter;

/// Find out who allocated what, in a core file, a memory dump or a running process
///
/// Finds annotated blocks (of heapprof, libwebsockets, and `cairn heap --annotate`); without any,
/// it reads the heap of glibc's malloc. Shows which stacks hold the memory, what is damaged or
/// leaked, what an address belongs to, and what the threads were doing.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Core {
    /// The core file or minidump, - for standard input; and the program, if it was moved since it
    /// ran
    #[arg(value_name = "FILE", num_args = 0..=2)]
    files: Vec<PathBuf>,

    /// A running process instead, which is stopped while its memory is read
    #[arg(long, value_name = "PID", value_parser = parse_pid, conflicts_with_all = ["files", "raw"])]
    pid: Option<u32>,

    /// Raw bytes of memory instead, as a debug probe reads them, from ADDRESS on. May be repeated
    #[arg(long, value_name = "FILE[@ADDRESS]")]
    raw: Vec<String>,

    /// Address of the first byte of a --raw file, for each in order
    #[arg(long, value_name = "ADDRESS", value_parser = parse_address, requires = "raw")]
    load_address: Vec<u64>,

    /// The program
    #[arg(short, long, value_name = "FILE")]
    exe: Option<PathBuf>,

    /// Bits of an address in --raw memory [default: as the ELF file of --exe says, else 64]
    #[arg(long, value_name = "BITS", value_parser = ["32", "64"], requires = "raw")]
    word: Option<String>,

    /// The --raw memory is big-endian, if there is no ELF file in --exe that says so
    #[arg(long, requires = "raw")]
    big_endian: bool,

    /// Search for blocks of this layout only
    #[arg(long, value_name = "LAYOUT")]
    layout: Option<LayoutName>,

    /// Read glibc's heap even if there are annotated blocks: sizes, free lists, corruption
    #[arg(long, conflicts_with_all = REPORT_OPTIONS)]
    heap: bool,

    /// Show the block that contains this address or ends before it, and who allocated it. May be
    /// repeated
    #[arg(long, value_name = "ADDRESS", value_parser = parse_address, alias = "at", conflicts_with_all = REPORT_OPTIONS)]
    address: Vec<u64>,

    /// Show what points to the block at this address: registers, stacks, data, other blocks. May be
    /// repeated
    #[arg(long, value_name = "ADDRESS", value_parser = parse_address, conflicts_with_all = REPORT_OPTIONS)]
    refs: Vec<u64>,

    /// Show blocks that cannot be reached from registers, stacks and data
    #[arg(long, conflicts_with_all = REPORT_OPTIONS)]
    leaks: bool,

    /// Show the stacks of all threads, with their registers
    #[arg(long, conflicts_with_all = REPORT_OPTIONS)]
    stacks: bool,

    /// List the modules, and whether their files are on this machine
    #[arg(long, conflicts_with_all = REPORT_OPTIONS)]
    modules: bool,

    /// Format of the output
    #[arg(long, value_name = "FORMAT", default_value = "text", value_parser = core_formats())]
    format: CoreFormat,

    /// Print one JSON object
    #[arg(long, conflicts_with = "format")]
    json: bool,

    /// Write to this file; - for standard output
    #[arg(short, long, value_name = "FILE", default_value = DASH, hide_default_value = true)]
    output: PathBuf,

    /// Replace existing files
    #[arg(long)]
    force: bool,

    /// `--format flame -o FILE`, beside the other output
    #[arg(long, value_name = "FILE", hide = true, conflicts_with_all = REPORT_OPTIONS)]
    flame: Option<PathBuf>,

    /// `--format FORMAT -o FILE`, beside the other output
    #[arg(long, value_name = "FORMAT=FILE", value_parser = parse_export, hide = true, conflicts_with_all = REPORT_OPTIONS)]
    export: Vec<(Target, PathBuf)>,

    /// Show one view of the blocks, as `cairn report` does
    ///
    /// The views are function, line, module, stack, tree, callers and size.
    #[arg(long, value_name = "VIEW")]
    by: Option<ViewName>,

    /// The measure of the blocks; an image answers for leaked, which is what is alive
    #[arg(long, value_name = "COST")]
    cost: Option<CostName>,

    #[command(flatten)]
    filters: FilterOptions,

    #[command(flatten)]
    list: ListOptions,

    #[command(flatten)]
    folds: FoldOptions,

    /// A perf map or jitdump with the names of generated code. May be repeated [default:
    /// perf-PID.map and jit-PID.dump beside the core file]
    #[arg(long, value_name = "FILE")]
    perf_map: Vec<PathBuf>,

    #[command(flatten)]
    symbols: SymbolOptions,
}

const EXAMPLES: &str = "\
Examples:
  cairn core core.4711                         the stacks that hold the memory, and damage
  cairn core ./program core.4711.zst           a compressed core of a program that was moved
  cairn core core.4711 --address 0x55d01a2b31c9
                                               the block at this address, and who allocated it
  cairn core core.4711 --leaks --refs 0x55d01a2b31c0
  cairn core core.4711 --stacks                the stacks of its threads
  cairn core core.4711 --by function --filter size=1KiB.. --limit 1%
                                               which functions hold large blocks, as cairn report has it
  cairn core core.4711 --format flame -o core.svg
  cairn core core.4711 --format pprof -o core.pb.gz
  ssh device cat core.4711 | cairn core - ./program
  cairn core --pid 4711 --heap                 a running process, which is not changed
  cairn core --raw sram.bin@0x20000000 --raw heap.bin@0xc0000000 --exe app.elf

Core files: after `ulimit -c unlimited` a crash writes one; `gcore PID` writes one of a running process.

Exit codes: 0 everything was done; 1 the image is missing or cannot be read; 2 the arguments are invalid; 3 parts of the
image are missing, as standard error says; the rest was read.";

/// The options that show the blocks as `cairn report` does, in place of the command's own answers.
const REPORT_OPTIONS: [&str; 3] = ["by", "cost", "filter"];

/// Entries of a list without `--limit` and `--full`; 10, which fit a screen with their stacks.
const USUAL_ENTRIES: usize = 10;

/// Maximum findings that are printed; a damaged image can have one for each of its segments.
const MOST_FINDINGS: usize = 20;

/// The layout of an annotated block.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LayoutName {
    /// libwebsockets' allocation metadata
    Lws,
    /// heapprof's blocks
    Heapprof,
    /// The 16 bytes of `cairn heap --annotate`
    Cairn,
}

/// Format of the output.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CoreFormat {
    Text,
    Heapprof,
    Folded,
    Flame,
    /// The format of another tool, as `cairn export` writes it.
    Tool(Target),
}

impl CoreFormat {
    /// The formats that `cairn export` does not have, or has in another form.
    const OWN: [(&'static str, &'static str, Self); 4] = [
        ("text", "For reading", Self::Text),
        ("heapprof", "As heapprof.py prints blocks", Self::Heapprof),
        ("folded", "A line for each stack, for speedscope, inferno and flamegraph.pl", Self::Folded),
        ("flame", "A flame graph, as one SVG file", Self::Flame),
    ];

    /// All formats, with their names and descriptions.
    fn all() -> impl Iterator<Item = (&'static str, &'static str, Self)> {
        let is_new = |target: &Target| Self::OWN.iter().all(|(name, ..)| *name != target.name());
        let tools = Target::ALL.into_iter().filter(is_new);
        let tools = tools.map(|target| (target.name(), target.reader(), Self::Tool(target)));
        Self::OWN.into_iter().chain(tools)
    }

    /// The name of a picture or binary format, which does not belong on a terminal.
    const fn unprintable(self) -> Option<&'static str> {
        match self {
            Self::Flame => Some("a flame graph"),
            Self::Tool(Target::Pprof | Target::Heaptrack | Target::Otlp) => Some("a binary format"),
            _ => None,
        }
    }
}

/// The formats by their names, for `--help` and for the value of `--format`.
fn core_formats() -> impl TypedValueParser<Value = CoreFormat> {
    let values = CoreFormat::all().map(|(name, help, _)| PossibleValue::new(name).help(help));
    PossibleValuesParser::new(values.collect::<Vec<_>>()).map(|name| {
        let format = CoreFormat::all().find(|(other, ..)| *other == name);
        // Clap refuses other names before.
        format.map_or(CoreFormat::Text, |(.., format)| format)
    })
}

fn parse_address(text: &str) -> Result<u64, String> {
    let plain = text.replace('_', "");
    let digits = plain.strip_prefix("0x").or_else(|| plain.strip_prefix("0X"));
    let address = match digits {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => plain.parse().or_else(|_| u64::from_str_radix(&plain, 16)),
    };
    address.map_err(|_| format!("{text}: not an address; write it as 0x20000000"))
}

fn parse_export(text: &str) -> Result<(Target, PathBuf), String> {
    let (format, path) = text.split_once('=').ok_or("write it as FORMAT=FILE, as in pprof=core.pb.gz")?;
    let target = Target::ALL.into_iter().find(|target| target.name() == format).ok_or_else(|| {
        let known: Vec<&str> = Target::ALL.iter().map(|target| target.name()).collect();
        format!("{format} is no format; there are {}", known.join(", "))
    })?;
    Ok((target, path.into()))
}

impl Core {
    pub(crate) fn run(self) -> io::Result<Outcome> {
        if self.by.is_some() || self.cost.is_some() || !self.filters.is_empty() {
            return self.report();
        }
        let started = std::time::Instant::now();
        let wanted = Wanted {
            layout: self.block_layout(),
            heap: self.heap,
            at: self.address.clone(),
            refs: self.refs.clone(),
            leaks: self.leaks,
            stacks: self.stacks,
        };
        let mut output = Output::begin_text(&self.output, self.force)?;
        if let Some(what) = self.format.unprintable() {
            output.refuse_terminal(what)?;
        }
        let progress = Progress::begin("searching the memory");
        let mut answers = match self.pid {
            Some(pid) => {
                Image::of_process(pid, |image| Answers::of(image, &wanted)).map_err(io::Error::other)?
            }
            None => Answers::of(&self.open()?, &wanted),
        };
        drop(progress);
        self.name_generated_code(&mut answers)?;
        let names = self.names(&answers);
        {
            let namer: &dyn Namer = match &names {
                Some(names) => names,
                None => &NoNames,
            };
            self.show(&mut output, &answers, namer, started)?;
        }
        output.finish()?;
        for finding in answers.findings.iter().take(MOST_FINDINGS) {
            complain(finding);
        }
        if answers.findings.len() > MOST_FINDINGS {
            complain(&format_args!(
                "and {} more of this kind; --json has all",
                answers.findings.len() - MOST_FINDINGS
            ));
        }
        if !self.raw.is_empty() && self.layout.is_none() && answers.blocks().is_empty() {
            self.report_no_blocks(answers.machine)?;
            return Ok(Outcome::Incomplete);
        }
        if self.format != CoreFormat::Text && answers.annotated.blocks().is_empty() {
            complain(&"no annotated blocks were found, so there are no stacks to write");
            return Ok(Outcome::Incomplete);
        }
        if let Some(names) = names {
            let names = names.into_inner();
            complain_about_modules(&names);
            self.symbols.index_later(&names);
        }
        Ok(if answers.findings.is_empty() { Outcome::Done } else { Outcome::Incomplete })
    }

    fn block_layout(&self) -> Option<BlockLayout> {
        self.layout.map(|layout| match layout {
            LayoutName::Lws => BlockLayout::Lws,
            LayoutName::Heapprof => BlockLayout::Heapprof,
            LayoutName::Cairn => BlockLayout::Cairn,
        })
    }

    /// Prints what `cairn report` prints for the blocks of the image.
    fn report(self) -> io::Result<Outcome> {
        let path = match self.pid {
            Some(pid) => PathBuf::from(format!("process {pid}")),
            None => match self.raw_files().into_iter().next() {
                Some(file) => file.path,
                None => self.core_and_program()?.0.to_owned(),
            },
        };
        let name =
            if path == Path::new(DASH) { "standard input".to_owned() } else { path.display().to_string() };
        self.refuse_unanswerable(&name)?;
        let progress = Progress::begin("searching the memory");
        let layouts = self.block_layout().map_or_else(FindOptions::default, FindOptions::only);
        let (heap, machine) = match self.pid {
            Some(pid) => Image::of_process(pid, |image| (ImageHeap::find(image, &layouts), image.machine()))
                .map_err(io::Error::other)?,
            None => {
                let image = self.open()?;
                (ImageHeap::find(&image, &layouts), image.machine())
            }
        };
        let Some(heap) = heap else {
            if !self.raw.is_empty() && self.layout.is_none() {
                self.report_no_blocks(machine)?;
                return Ok(Outcome::Incomplete);
            }
            return Err(io::Error::other(format!("{name}: {}", ImageHeap::NO_BLOCKS)));
        };
        let input = HeapInput::of_opened(self.filters, self.folds, self.symbols);
        let mut options = input.source_options();
        options.name = Some(name);
        let source = HeapSource::of_image(&path, heap, &options);
        let asked = ReportOptions {
            by: self.by,
            cost: self.cost,
            list: self.list,
            json: self.json,
            output: OutputOptions { output: self.output, force: self.force },
            input,
        };
        ReportCommand::run_on(asked, &source, progress)
    }

    /// Refuses views, costs and filters that no image answers, before its memory is read.
    fn refuse_unanswerable(&self, name: &str) -> io::Result<()> {
        if self.format != CoreFormat::Text {
            let why = "--by, --cost and --filter choose what a text or --json shows: leave --format out; `cairn flame` and \
                       `cairn export` read core files by --cost and --filter";
            return Err(refusal(why));
        }
        let by_thread = |filter: &HeapFilter| matches!(filter, HeapFilter::Thread(_));
        let questions = [
            self.by.and_then(ViewName::question),
            self.cost.map(|cost| Question::Cost(cost.cost())),
            self.filters.filters().iter().any(by_thread).then_some(Question::Threads),
        ];
        for question in questions.into_iter().flatten() {
            if let Some(why) = ImageHeap::refusal(question) {
                let error =
                    SourceError::Unanswerable { name: name.to_owned(), question, why: why.to_owned() };
                // The code of every command that is asked what its file cannot answer.
                return Err(io::Error::other(error.to_string()));
            }
        }
        Ok(())
    }

    /// Names frames in the code of JIT compilers, by the files that they have written.
    fn name_generated_code(&self, answers: &mut Answers) -> io::Result<()> {
        let process = answers.about.process;
        let pieces = match (self.perf_map.as_slice(), self.pid, process) {
            #[cfg(target_os = "linux")]
            ([], Some(running), _) => code_files_of(running),
            ([], None, Some(process)) => perf_maps::read(&perf_maps::beside(self.core_file(), process))?,
            (given, ..) => perf_maps::read(given)?,
        };
        if let Some(names) = CodeNames::new(&pieces) {
            answers.stacks.stacks.name_all_generated(&names);
        }
        Ok(())
    }

    fn names(&self, answers: &Answers) -> Option<ModuleNames> {
        let wanted = self.symbols.wanted();
        let (options, allows) = (self.symbols.symbolizer(), self.symbols.allows_mismatch());
        wanted.then(|| names_of_image(&answers.stacks.stacks, &answers.modules, options, allows))
    }

    fn show(
        &self,
        output: &mut Output,
        answers: &Answers,
        namer: &dyn Namer,
        started: std::time::Instant,
    ) -> io::Result<()> {
        let folding = self.folds.folding()?;
        let mut profile = answers.stacks.profile(answers.blocks());
        let mut names = Names::new(&answers.stacks.stacks, namer, folding);
        if let Some(focus) = stacks_in_focus(&mut names) {
            profile = profile.of_stacks(&focus);
        }
        let mut questions = Questions::new(&profile, names);
        if let Some(path) = &self.flame {
            let mut file = Output::create(path, self.force, self.core_file())?;
            file.write_all(flame(&mut questions, answers).as_bytes())?;
            file.finish()?;
        }
        for (target, path) in &self.export {
            let mut file = Output::create(path, self.force, self.core_file())?;
            let name = path.display().to_string();
            export(&mut file, &mut questions, answers, *target, &name)?;
            file.finish()?;
        }
        if self.json {
            let mut names = Names::new(&answers.stacks.stacks, namer, Folding::none());
            let json = json::CoreJson::new(answers, &mut questions, &mut names, self.list);
            serde_json::to_writer(&mut *output, &json)?;
            return writeln!(output);
        }
        match self.format {
            CoreFormat::Flame => output.write_all(flame(&mut questions, answers).as_bytes())?,
            CoreFormat::Tool(target) => {
                export(output, &mut questions, answers, target, target.name())?;
            }
            CoreFormat::Folded => output.write_all(questions.folded(Cost::Leaked).as_bytes())?,
            CoreFormat::Heapprof => {
                let mut names = Names::new(&answers.stacks.stacks, namer, Folding::default());
                print::heapprof(output, answers, &mut names)?;
            }
            CoreFormat::Text => {
                let mut names = Names::new(&answers.stacks.stacks, namer, Folding::none());
                let mut printer = CorePrinter::new(output, answers, &mut questions, &mut names, self.list);
                printer.head(started)?;
                if self.modules {
                    printer.modules()?;
                }
                let asks = self.stacks
                    || self.leaks
                    || !self.address.is_empty()
                    || !self.refs.is_empty()
                    || self.modules;
                if self.stacks {
                    printer.threads()?;
                }
                printer.places()?;
                printer.references()?;
                if self.leaks {
                    printer.leaks()?;
                }
                if !asks || self.heap {
                    printer.overview(self.heap)?;
                }
            }
        }
        Ok(())
    }

    /// Returns the core file; an empty path if there is none.
    fn core_file(&self) -> &Path {
        self.files.first().map_or(Path::new(""), PathBuf::as_path)
    }

    fn open(&self) -> io::Result<Image> {
        let mut options = OpenOptions::default();
        options.unpack_limit_bytes = max_unpacked_bytes();
        if let Some(sysroot) = self.symbols.root() {
            options.root = sysroot.to_owned();
        }
        if !self.raw.is_empty() {
            return self.open_raw(options);
        }
        let (core, program) = self.core_and_program()?;
        options.program = self.program(program)?;
        let core = InputFile::open(core)?;
        Image::open(core.path(), &options).map_err(|error| {
            core.error(&with_kind(&error, core.path(), &[FileKind::Core, FileKind::Minidump]))
        })
    }

    /// Returns the core file and the program, which are given in either order.
    fn core_and_program(&self) -> io::Result<(&PathBuf, Option<&PathBuf>)> {
        match self.files.as_slice() {
            [] => {
                let usage =
                    "give a core file, --raw FILE@ADDRESS, or --pid PID; `cairn core --help` has examples";
                Err(refusal(usage))
            }
            [core] => Ok((core, None)),
            [first, second, ..] if is_program(second) => Ok((first, Some(second))),
            [first, second, ..] => Ok((second, Some(first))),
        }
    }

    /// Returns the program with its canonical path, as modules are named.
    fn program(&self, given: Option<&PathBuf>) -> io::Result<Option<PathBuf>> {
        let Some(path) = self.exe.as_ref().or(given) else { return Ok(None) };
        match path.canonicalize() {
            Ok(path) => Ok(Some(path)),
            Err(error) => Err(io::Error::new(error.kind(), format!("{}: {error}", path.display()))),
        }
    }

    fn open_raw(&self, mut options: OpenOptions) -> io::Result<Image> {
        options.program = self.program(self.files.first())?;
        let files = self.raw_files();
        let machine = self.machine(options.program.as_deref())?;
        Image::open_raw(&files, machine, &options).map_err(io::Error::other)
    }

    /// Returns the machine of raw memory: as the options say, else as the program says.
    fn machine(&self, program: Option<&Path>) -> io::Result<Machine> {
        let of_program = program.and_then(machine_of);
        let stated = self.word.as_deref().map(|bits| match bits {
            "32" => WordSize::Bits32,
            _ => WordSize::Bits64,
        });
        if let (Some(program), Some(of_program), Some(stated)) = (program, of_program, stated)
            && of_program.word_size != stated
        {
            let bits = of_program.word_size.bytes() * 8;
            let problem = format!("is a program of {bits} bits, and --word says otherwise; leave --word out");
            return Err(io::Error::other(format!("{}: {problem}", program.display())));
        }
        let usual = Machine { word_size: WordSize::Bits64, byte_order: ByteOrder::LittleEndian };
        let machine = of_program.unwrap_or(usual);
        Ok(Machine {
            word_size: stated.unwrap_or(machine.word_size),
            byte_order: if self.big_endian { ByteOrder::BigEndian } else { machine.byte_order },
        })
    }

    /// Reports that raw memory contains no blocks for this machine, and names a machine for which
    /// it does.
    fn report_no_blocks(&self, machine: Machine) -> io::Result<()> {
        let others = [WordSize::Bits64, WordSize::Bits32].into_iter().flat_map(|word_size| {
            [ByteOrder::LittleEndian, ByteOrder::BigEndian]
                .map(|byte_order| Machine { word_size, byte_order })
        });
        let mut options = OpenOptions::default();
        options.unpack_limit_bytes = max_unpacked_bytes();
        for other in others.filter(|&other| other != machine) {
            let image = Image::open_raw(&self.raw_files(), other, &options).map_err(io::Error::other)?;
            let found = Annotated::find(&image, &FindOptions::default()).blocks().len() as u64;
            if found > 0 {
                let order = if other.byte_order == ByteOrder::BigEndian { " --big-endian" } else { "" };
                complain(&format_args!(
                    "no blocks in memory of {}; of {} it holds {}: use --word {}{order}",
                    machine_name(machine),
                    machine_name(other),
                    counted(found, "annotated block"),
                    other.word_size.bytes() * 8
                ));
                return Ok(());
            }
        }
        complain(&format_args!(
            "no annotated blocks in memory of {}, nor of any other machine, and no heap of glibc's malloc",
            machine_name(machine)
        ));
        Ok(())
    }

    fn raw_files(&self) -> Vec<RawFile> {
        let mut addresses = self.load_address.iter();
        let file = |text: &String| {
            let stated =
                text.rsplit_once('@').and_then(|(path, address)| Some((path, parse_address(address).ok()?)));
            let (path, address) = match stated {
                Some((path, address)) => (path, address),
                None => (text.as_str(), addresses.next().copied().unwrap_or(0)),
            };
            RawFile { path: path.into(), load_address: AbsoluteAddress::new(address) }
        };
        self.raw.iter().map(file).collect()
    }
}

fn machine_name(machine: Machine) -> String {
    let order = if machine.byte_order == ByteOrder::BigEndian { "big-endian" } else { "little-endian" };
    format!("{} bits, {order}", machine.word_size.bytes() * 8)
}

/// Returns the machine of an ELF file.
fn machine_of(program: &Path) -> Option<Machine> {
    let mut start = [0; 6];
    File::open(program).and_then(|mut file| file.read_exact(&mut start)).ok()?;
    let [0x7f, b'E', b'L', b'F', class, order] = start else { return None };
    let word_size = match class {
        1 => WordSize::Bits32,
        2 => WordSize::Bits64,
        _ => return None,
    };
    let byte_order = if order == 2 { ByteOrder::BigEndian } else { ByteOrder::LittleEndian };
    Some(Machine { word_size, byte_order })
}

/// True for ELF files other than cores.
fn is_program(path: &Path) -> bool {
    const CORE: u8 = 4;
    let mut start = [0; 18];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut start));
    read.is_ok() && start.starts_with(b"\x7fELF") && !start[16..].contains(&CORE)
}

/// Writes the blocks in the format of another tool; `name` is for messages.
fn export(
    output: &mut Output,
    questions: &mut Questions<'_>,
    answers: &Answers,
    target: Target,
    name: &str,
) -> io::Result<()> {
    let (mut profile, stacks) = Profile::of_heap(questions);
    profile.title = title(answers);
    let blocks: Vec<LiveBlock> = answers
        .blocks()
        .iter()
        .map(|block| LiveBlock { stack: answers.stacks.number_of(block), size_bytes: block.size_bytes })
        .collect();
    let scope = Scope::default();
    let sums = answers.stacks.profile(answers.blocks());
    let events = HeapEvents {
        source: EventSource::Live(&blocks),
        scope: &scope,
        sums: &sums,
        threads: Vec::new(),
        stacks: &stacks,
    };
    if !target.has_events() {
        // An image does not show what was allocated before the live blocks.
        profile = profile.with_columns(&["inuse_space", "inuse_objects"]);
    }
    let heap = target.has_events().then_some(&events);
    let subject = Subject { profile: &profile, heap, marks: &[] };
    let compression = output.named_compression();
    let choice =
        Choice { column: profile.main_column, rows: Rows::Stacks, most_blocks: u64::MAX, compression };
    let written = write(target, &subject, choice, output)
        .map_err(|error| io::Error::other(format!("{name}: {error}")))?;
    for loss in &written.losses {
        complain(&format_args!("note: {loss}"));
    }
    Ok(())
}

fn flame(questions: &mut Questions<'_>, answers: &Answers) -> String {
    let limits = TreeLimits { least_share: 0.0005, most_levels: 2000, most_nodes: 200_000 };
    let tree = questions.tree(Direction::FromMain, Cost::Leaked, limits);
    let amount = tree.nodes[0].amount;
    let whole = format!("{} in {}", bytes(amount.value), counted(amount.blocks, "block"));
    questions.flame_svg(&tree, &FlameOptions { title: title(answers), subtitle: whole })
}

fn title(answers: &Answers) -> String {
    let about = &answers.about;
    if about.command_line.is_empty() { about.kind.to_owned() } else { about.command_line.clone() }
}
