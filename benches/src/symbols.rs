//! Names for addresses, against llvm-symbolizer and binutils, each as a whole process on the same
//! addresses.
//!
//! An address is asked for as often as stacks repeat it: 20,000 places picked by code size, asked
//! for 100,000 times by Zipf's law. The child process of our own, `symbols-run`, prints what
//! llvm-symbolizer prints.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use cairn_format::StatedAddress;
use cairn_symbols::{Lookup, ModuleId, Symbolizer, SymbolizerOptions};

use crate::machine;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const ROUNDS: usize = 3;
const PLACES: usize = 20_000;
const ASKED: usize = 100_000;

/// Measures programs, each given as a path, and prints Markdown.
pub(crate) fn run(programs: &[&str]) -> Result<()> {
    if programs.is_empty() {
        return Err("name the programs with debug information to measure".into());
    }
    println!("{}", machine::description());
    println!(
        "{ROUNDS} rounds, interleaved; medians. CPU seconds are user and system; the peak counts mapped pages.\n"
    );
    let scratch = std::env::temp_dir().join(format!("cairn-bench-symbols-{}", std::process::id()));
    fs::create_dir_all(&scratch)?;
    let outcome = programs.iter().try_for_each(|program| measure(Path::new(program), &scratch));
    fs::remove_dir_all(&scratch)?;
    outcome
}

/// Returns the child: answers the addresses of standard input. With a cache directory it uses the
/// index there; with `build` it makes the index and answers nothing; with `memory` it prints what
/// memory the answers took in place of them.
pub(crate) fn answer(arguments: &[&str]) -> Result<()> {
    let [file, rest @ ..] = arguments else { return Err("symbols-run FILE [CACHE [build|memory]]".into()) };
    let mut options = SymbolizerOptions::new();
    if let Some(cache) = rest.first() {
        options = options.cache_dir(cache);
    }
    let mut symbolizer = Symbolizer::new(options);
    let module = symbolizer.add_file(file)?;
    if rest.get(1) == Some(&"build") {
        return symbolizer.build_index(module).then_some(()).ok_or("there is no index".into());
    }
    let mut text = String::new();
    io::stdin().read_to_string(&mut text)?;
    let lookups = text.lines().map(|line| parse(line, module)).collect::<Result<Vec<_>>>()?;
    if rest.get(1) == Some(&"memory") {
        return answer_one_by_one(&symbolizer, &lookups);
    }
    let answers = symbolizer.resolve_many(&lookups);
    // Each distinct answer is formatted once, behind the one before, as the command does it.
    let mut formatted = String::new();
    let mut texts = Vec::with_capacity(answers.distinct().len());
    for answer in answers.distinct() {
        let start = formatted.len();
        print_as_llvm(answer, &mut formatted);
        texts.push(start..formatted.len());
    }
    let mut output = io::BufWriter::with_capacity(1 << 16, io::stdout().lock());
    for index in 0..answers.len() {
        let distinct = answers.distinct_index(index).ok_or("an answer is missing")?;
        output.write_all(&formatted.as_bytes()[texts[distinct].clone()])?;
    }
    output.flush()?;
    // As in the command: the kernel takes all memory at once.
    std::mem::forget((symbolizer, answers));
    Ok(())
}

/// Returns the memory of the answers. Each is dropped before the next one, so that the list of
/// questions and the answers do not count.
///
/// Touched is what the kernel says is resident of the mappings of the index and of the program
/// (`Rss` in `/proc/self/smaps`); it maps up to 16 pages around each that is asked for. The growth
/// is that of the process's resident memory, at its highest (`VmHWM`), since before the first
/// answer; what was mapped until then counts as touched and as growth.
fn answer_one_by_one(symbolizer: &Symbolizer, lookups: &[(ModuleId, Lookup)]) -> Result<()> {
    let (before, mapped) = (resident_kb("VmRSS:")?, mapped_kb()?);
    for &(module, lookup) in lookups {
        std::hint::black_box(symbolizer.resolve(module, lookup));
    }
    let touched = mapped_kb()?;
    let growth = resident_kb("VmHWM:")?.saturating_sub(before) + mapped;
    println!("{touched} {growth}");
    Ok(())
}

fn resident_kb(field: &str) -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(field)).ok_or("no such field")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

/// Resident bytes of all files that are mapped from their first byte and not executable. They are
/// the index and the program in question.
fn mapped_kb() -> Result<u64> {
    let maps = fs::read_to_string("/proc/self/smaps")?;
    let mut counts = false;
    let mut total = 0;
    for line in maps.lines() {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        match &*words {
            [range, rights, ..] if range.contains('-') && rights.len() == 4 => {
                let path = words.get(5).copied().unwrap_or_default();
                let is_own = Path::new(path) == std::env::current_exe()? || path.contains("/lib/");
                counts = rights.starts_with("r--") && path.starts_with('/') && !is_own;
            }
            ["Rss:", size, ..] if counts => total += size.parse::<u64>()?,
            _ => {}
        }
    }
    Ok(total)
}

fn parse(line: &str, module: ModuleId) -> Result<(ModuleId, Lookup)> {
    let address = u64::from_str_radix(line.trim_start_matches("0x"), 16)?;
    Ok((module, Lookup::stated(StatedAddress::new(address))))
}

fn print_as_llvm(answer: &cairn_symbols::Resolution, text: &mut String) {
    for frame in answer.frames() {
        let (function, file) = (frame.function.as_deref(), frame.file.as_deref());
        let (line, column) = (frame.line.unwrap_or(0), frame.column.unwrap_or(0));
        let _ = writeln!(text, "{}\n{}:{line}:{column}", function.unwrap_or("??"), file.unwrap_or("??"));
    }
    if answer.frames().is_empty() {
        text.push_str("??\n??:0:0\n");
    }
    text.push('\n');
}

/// Resources that one process used.
#[derive(Clone, Copy, Default)]
struct Used {
    wall_seconds: f64,
    cpu_seconds: f64,
    peak_mb: f64,
}

fn measure(program: &Path, scratch: &Path) -> Result<()> {
    let addresses = addresses(program)?;
    let distinct = {
        let mut all = addresses.clone();
        all.sort_unstable();
        all.dedup();
        all
    };
    let bytes = fs::metadata(program)?.len();
    println!("## {} ({:.0} MB)\n", program.file_name().unwrap_or_default().display(), bytes as f64 / 1e6);
    println!("{} addresses, {} distinct\n", addresses.len(), distinct.len());
    let [bulk, one, each] = ["bulk", "one", "each"].map(|name| scratch.join(name));
    write_addresses(&bulk, &addresses)?;
    write_addresses(&one, &addresses[..1])?;
    write_addresses(&each, &distinct)?;
    let cache = scratch.join("cache");
    let own = std::env::current_exe()?;
    let ours = |rest: &[&str]| {
        let mut words =
            vec![own.display().to_string(), "symbols-run".to_owned(), program.display().to_string()];
        words.extend(rest.iter().map(|&word| word.to_owned()));
        words
    };
    let cache_text = cache.display().to_string();
    let build = spent(&ours(&[&cache_text, "build"]), None, None)?;
    let index_bytes =
        fs::read_dir(&cache)?.filter_map(|entry| Some(entry.ok()?.metadata().ok()?.len())).sum::<u64>();
    let llvm = ["llvm-symbolizer-19", "llvm-symbolizer"].into_iter().find(|name| on_path(name));
    let llvm = llvm.ok_or("install llvm-symbolizer (Debian: llvm-19)")?;
    let object = program.display().to_string();
    let mut tools = vec![
        ("cairn, no index", ours(&[])),
        ("cairn, index", ours(&[&cache_text])),
        ("llvm-symbolizer", vec![llvm.to_owned(), format!("--obj={object}")]),
    ];
    if on_path("addr2line") {
        tools.push((
            "binutils addr2line",
            ["addr2line", "-f", "-i", "-C", "-e", &object].map(str::to_owned).to_vec(),
        ));
    }
    let mut figures = vec![(Vec::new(), Vec::new()); tools.len()];
    for round in 0..ROUNDS {
        for ((name, words), (cold, all)) in tools.iter().zip(&mut figures) {
            cold.push(spent(words, Some(&one), None)?);
            // Ten times slower than the others: once is enough.
            if round == 0 || *name != "binutils addr2line" {
                all.push(spent(words, Some(&bulk), None)?);
            }
        }
    }
    println!("| tool | first answer, ms | all: CPU s | wall s | peak MB | CPU, x llvm | wall, x llvm |");
    println!("|---|---:|---:|---:|---:|---:|---:|");
    let reference = median(&figures[2].1);
    for ((name, _), (cold, all)) in tools.iter().zip(&figures) {
        let (cold, all) = (median(cold), median(all));
        println!(
            "| {name} | {:.1} | {:.3} | {:.3} | {:.0} | {:.1} | {:.1} |",
            cold.wall_seconds * 1e3,
            all.cpu_seconds,
            all.wall_seconds,
            all.peak_mb,
            reference.cpu_seconds / all.cpu_seconds,
            reference.wall_seconds / all.wall_seconds,
        );
    }
    let once = median(&figures[0].1).cpu_seconds;
    println!(
        "\nIndex: {:.1} MB ({:.1} % of the file), built in {:.2} CPU s ({:.1} times one bulk run), peak {:.0} MB\n",
        index_bytes as f64 / 1e6,
        index_bytes as f64 * 100.0 / bytes as f64,
        build.cpu_seconds,
        build.cpu_seconds / once,
        build.peak_mb,
    );
    for (name, input) in [("one answer", &one), ("all answers, one after the other", &bulk)] {
        let output = scratch.join("memory");
        spent(&ours(&[&cache_text, "memory"]), Some(input), Some(&output))?;
        let text = fs::read_to_string(&output)?;
        let (touched, growth) = text.trim().split_once(' ').ok_or("no memory figures")?;
        let (touched, growth): (f64, f64) = (touched.parse()?, growth.parse()?);
        println!(
            "Memory with the index, {name}: {touched:.0} KiB of mapped pages touched, growth {growth:.0} KiB, {:.2} times",
            growth / touched.max(1.0)
        );
    }
    println!();
    let outputs = tools[..3].iter().map(|(_, words)| {
        let output = scratch.join("output");
        spent(words, Some(&each), Some(&output))?;
        Ok(String::from_utf8_lossy(&fs::read(output)?).into_owned())
    });
    let outputs = outputs.collect::<Result<Vec<String>>>()?;
    println!(
        "With the index {} as without.\n",
        if outputs[0] == outputs[1] { "the same" } else { "NOT THE SAME" }
    );
    print_agreement(&outputs[0], &outputs[2]);
    fs::remove_dir_all(&cache)?;
    Ok(())
}

/// How many times all frames have the same file and line as llvm-symbolizer's, and what the rest
/// is.
fn print_agreement(ours: &str, theirs: &str) {
    let places = |answer: &str| -> Vec<String> {
        let lines = answer.trim_end().lines().skip(1).step_by(2);
        lines.map(|line| line.rsplit_once(':').map_or(line, |(place, _)| place).to_owned()).collect()
    };
    let (mut same, mut depth, mut symbol_file, mut other, mut all) = (0_u32, 0_u32, 0_u32, 0_u32, 0_u32);
    for (ours, theirs) in
        ours.split("\n\n").zip(theirs.split("\n\n")).filter(|(ours, _)| !ours.trim().is_empty())
    {
        let (ours, theirs) = (places(ours), places(theirs));
        all += 1;
        depth += u32::from(ours.len() == theirs.len());
        if ours == theirs {
            same += 1;
        } else if ours == ["??:0"] && theirs.len() == 1 && theirs[0].ends_with(":0") {
            symbol_file += 1;
        } else {
            other += 1;
        }
    }
    let percent = |count: u32| f64::from(count) * 100.0 / f64::from(all.max(1));
    println!(
        "Agreement with llvm-symbolizer on {all} distinct addresses: depth {:.3} %, all frames' file:line {:.3} %; \
         {symbol_file} differ as llvm names the symbol table's file entry, {other} in another way\n",
        percent(depth),
        percent(same),
    );
}

/// Places in functions, by size, repeated as stacks repeat them. Always the same ones.
fn addresses(program: &Path) -> Result<Vec<u64>> {
    let listing =
        Command::new("nm").args(["-S", "--defined-only"]).arg(program).stderr(Stdio::null()).output()?;
    let listing = String::from_utf8_lossy(&listing.stdout);
    let mut functions: Vec<(u64, u64)> = listing.lines().filter_map(function).collect();
    functions.sort_unstable();
    functions.dedup();
    let mut ends = Vec::with_capacity(functions.len());
    let total = functions.iter().fold(0, |before, &(_, size)| {
        ends.push(before + size);
        before + size
    });
    if total == 0 {
        return Err(format!("{}: `nm` finds no functions", program.display()).into());
    }
    let mut random = AddressRandom(0x9e37_79b9_7f4a_7c15);
    let places: Vec<u64> = (0..PLACES)
        .map(|_| {
            let at = random.next() % total;
            let function = ends.partition_point(|&end| end <= at);
            functions[function].0 + random.next() % functions[function].1
        })
        .collect();
    let mut weights = Vec::with_capacity(PLACES);
    let whole = (0..PLACES).fold(0.0, |before, rank| {
        weights.push(before + 1.0 / (rank + 1) as f64);
        before + 1.0 / (rank + 1) as f64
    });
    Ok((0..ASKED)
        .map(|_| {
            let at = (random.next() >> 11) as f64 / (1_u64 << 53) as f64 * whole;
            places[weights.partition_point(|&weight| weight <= at).min(PLACES - 1)]
        })
        .collect())
}

/// `address size kind name`.
fn function(line: &str) -> Option<(u64, u64)> {
    let mut words = line.split_ascii_whitespace();
    let address = u64::from_str_radix(words.next()?, 16).ok()?;
    let size = u64::from_str_radix(words.next()?, 16).ok()?;
    (matches!(words.next()?, "t" | "T" | "w" | "W") && size > 0).then_some((address, size))
}

/// xorshift64*.
struct AddressRandom(u64);

impl AddressRandom {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

fn write_addresses(path: &Path, addresses: &[u64]) -> Result<()> {
    let text = addresses.iter().fold(String::new(), |mut text, address| {
        let _ = writeln!(text, "{address:#x}");
        text
    });
    Ok(fs::write(path, text)?)
}

fn spent(words: &[String], input: Option<&PathBuf>, output: Option<&PathBuf>) -> Result<Used> {
    let input = input.map_or_else(|| Ok(Stdio::null()), |path| File::open(path).map(Stdio::from))?;
    let output = output.map_or_else(|| Ok(Stdio::null()), |path| File::create(path).map(Stdio::from))?;
    let start = Instant::now();
    let child = Command::new(&words[0]).args(&words[1..]).stdin(input).stdout(output).spawn()?;
    let id = libc::pid_t::try_from(child.id())?;
    let mut status = 0;
    // SAFETY: all fields are integers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to locals; the child is ours and nobody else waits for it.
    if unsafe { libc::wait4(id, &raw mut status, 0, &raw mut usage) } != id || status != 0 {
        return Err(format!("`{}` failed", words.join(" ")).into());
    }
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    Ok(Used {
        wall_seconds: start.elapsed().as_secs_f64(),
        cpu_seconds: seconds(usage.ru_utime) + seconds(usage.ru_stime),
        peak_mb: usage.ru_maxrss as f64 * 1024.0 / 1e6,
    })
}

fn median(runs: &[Used]) -> Used {
    let of = |field: fn(&Used) -> f64| {
        let mut values: Vec<f64> = runs.iter().map(field).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or(0.0)
    };
    Used {
        wall_seconds: of(|used| used.wall_seconds),
        cpu_seconds: of(|used| used.cpu_seconds),
        peak_mb: of(|used| used.peak_mb),
    }
}

fn on_path(program: &str) -> bool {
    Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
}
