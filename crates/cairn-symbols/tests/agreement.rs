//! Compares lines with binutils' `addr2line`, installed with every linker, across this test
//! program.

// Other symbolizers are programs of this system, and so is the file that they read.
#![cfg(target_os = "linux")]

use std::io::Write;
use std::path::{Component, Path};
use std::process::{Command, Stdio};

use cairn_format::StatedAddress;
use cairn_symbols::{Lookup, Symbolizer, SymbolizerOptions};

#[test]
fn lines_agree_with_addr2line() {
    let program = std::env::current_exe().unwrap();
    let mut symbolizer = Symbolizer::new(SymbolizerOptions::new());
    let module = symbolizer.add_file(&program).unwrap();
    let end = std::fs::metadata(&program).unwrap().len();
    let known = |address: &u64| {
        let answer = symbolizer.resolve(module, Lookup::stated(StatedAddress::new(*address)));
        answer.frames().first().is_some_and(|frame| frame.line.is_some())
    };
    let addresses: Vec<u64> = (0..end).step_by(997).filter(known).collect();
    assert!(addresses.len() > 300, "{}", addresses.len());

    let mut peer = Command::new("addr2line");
    peer.arg("-e").arg(&program);
    let mut peer = peer.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("addr2line of binutils");
    let asked: String = addresses.iter().map(|address| format!("{address:#x}\n")).collect();
    let mut input = peer.stdin.take().unwrap();
    let writer = std::thread::spawn(move || input.write_all(asked.as_bytes()).unwrap());
    let output = String::from_utf8(peer.wait_with_output().unwrap().stdout).unwrap();
    writer.join().unwrap();

    let mut differences = Vec::new();
    for (&address, theirs) in addresses.iter().zip(output.lines()) {
        let answer = symbolizer.resolve(module, Lookup::stated(StatedAddress::new(address)));
        let frame = &answer.frames()[0];
        let ours = format!("{}:{}", plain(frame.file.as_deref().unwrap_or("??")), frame.line.unwrap());
        let theirs = theirs.split(" (disc").next().unwrap();
        let (file, line) = theirs.rsplit_once(':').unwrap();
        if ours != format!("{}:{line}", plain(file)) {
            differences.push(format!("{address:#x}: {ours}, addr2line {theirs}"));
        }
    }
    assert_eq!(output.lines().count(), addresses.len());
    assert!(differences.is_empty(), "{} of {}: {differences:#?}", differences.len(), addresses.len());
}

/// Normalizes `.` and `..` in a path.
fn plain(path: &str) -> String {
    let mut parts: Vec<String> = Vec::new();
    for part in Path::new(path).components() {
        match part {
            Component::ParentDir => drop(parts.pop()),
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
            Component::Normal(name) => parts.push(name.to_string_lossy().into_owned()),
        }
    }
    parts.join("/")
}

/// Compares every function of the local C library, at the start and halfway.
///
/// With `cargo xtask symbols-agreement`, also those of the files and with the peers that it names.
/// docs/book/reference/symbolize.md explains each class.
#[test]
fn functions_of_libraries_agree_with_other_symbolizers() {
    let files = std::env::var("CAIRN_AGREEMENT_FILES").unwrap_or_else(|_| loaded_c_library());
    let peers = std::env::var("CAIRN_AGREEMENT_PEERS").unwrap_or_else(|_| "addr2line".to_owned());
    let mut unexplained = Vec::new();
    for file in files.split(':') {
        for peer in peers.split(':') {
            unexplained.extend(compare(Path::new(file), peer));
        }
    }
    assert!(
        unexplained.is_empty(),
        "{} unexplained: {:#?}",
        unexplained.len(),
        &unexplained[..unexplained.len().min(40)]
    );
}

fn loaded_c_library() -> String {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let path = maps.lines().filter_map(|line| line.split_ascii_whitespace().nth(5));
    path.filter(|path| path.contains("/libc.so") || path.contains("/libc-"))
        .map(str::to_owned)
        .next()
        .expect("a C library")
}

/// Queries both for all functions of a file and prints the differences by class.
///
/// Returns the differences without a class.
#[expect(clippy::print_stdout, reason = "the long run reports counts")]
fn compare(file: &Path, peer: &str) -> Vec<String> {
    let mut symbolizer = Symbolizer::new(SymbolizerOptions::new());
    let module = symbolizer.add_file(file).unwrap();
    let functions = Functions::read(&symbolizer.module_report(module).used);
    let addresses: Vec<u64> = functions.addresses();
    assert!(addresses.len() > 1000, "{}: {} addresses", file.display(), addresses.len());
    let is_gdb = peer == "gdb";
    // gdb takes a hundred times as long as the others.
    let every = if is_gdb { addresses.len().div_ceil(GDB_ADDRESSES) } else { 1 };
    let addresses: Vec<u64> = addresses.into_iter().step_by(every).collect();
    let theirs =
        if is_gdb { ask_gdb(file, &addresses) } else { ask(peer, peer.contains("llvm"), file, &addresses) };
    // If gdb has another line, addr2line decides.
    let others = if is_gdb { ask("addr2line", false, file, &addresses) } else { Vec::new() };
    assert_eq!(theirs.len(), addresses.len(), "{peer}");
    let lookups: Vec<_> =
        addresses.iter().map(|&address| (module, Lookup::stated(StatedAddress::new(address)))).collect();
    let answers = symbolizer.resolve_many(&lookups);
    let mut counts = std::collections::BTreeMap::<&str, usize>::new();
    let mut unexplained = Vec::new();
    for (index, ((&address, (name, place)), answer)) in
        addresses.iter().zip(&theirs).zip(answers.iter()).enumerate()
    {
        let frames = answer.frames();
        // addr2line and llvm-symbolizer omit outer calls unless asked; gdb names the containing
        // function.
        let named = if is_gdb { frames.last() } else { frames.first() };
        let own_name = named.and_then(|frame| frame.raw_name.as_deref()).unwrap_or("??");
        let innermost = frames.first();
        let own_place = innermost
            .map_or(("??", 0), |frame| (frame.file.as_deref().unwrap_or("??"), frame.line.unwrap_or(0)));
        let class =
            match (class_of_names(own_name, name, &functions, address), class_of_places(own_place, place)) {
                (Some("same"), class) => class,
                (class, Some("same")) => class,
                (Some(_), class) => class,
                (None, _) => None,
            };
        let outvoted = || {
            let (_, place) = others.get(index)?;
            class_of_places(own_place, place)
                .filter(|_| class_of_names(own_name, name, &functions, address).is_some())
                .map(|_| "gdb has another line, addr2line this one")
        };
        let class = class.or_else(outvoted);
        match class {
            Some(class) => *counts.entry(class).or_default() += 1,
            None => unexplained.push(format!(
                "{} {address:#x}: {own_name} {}:{}, {peer} {name} {place}",
                file.display(),
                own_place.0,
                own_place.1
            )),
        }
    }
    println!(
        "{} {peer}: {} addresses: {counts:?}, unexplained {}",
        file.display(),
        addresses.len(),
        unexplained.len()
    );
    unexplained
}

fn class_of_names(ours: &str, theirs: &str, functions: &Functions, address: u64) -> Option<&'static str> {
    let bare = |name: &str| name.split('@').next().unwrap_or(name).to_owned();
    let (ours, theirs) = (bare(ours), bare(theirs));
    match () {
        () if ours == theirs => Some("same"),
        // Only the function's start is known, from the unwind table.
        () if ours == "??" && !functions.covers(&theirs, address) => Some("behind the end of a function"),
        () if functions.share_address(&ours, &theirs) => Some("one of several names at one address"),
        () if ours.contains(&theirs) || theirs.contains(&ours) => Some("the linker's name"),
        // The same, if the debug information lacks the suffix of the linkage name.
        () if functions.covers(&theirs, address) && functions.covers_with_suffix(&ours, address) => {
            Some("one of several names at one address")
        }
        () if functions.covers(&ours, address) && !functions.covers(&theirs, address) => Some("a label"),
        // Symbol tables and debug information have different names for this code.
        () if functions.covers(&theirs, address) && !functions.ranges.contains_key(&ours) => {
            Some("functions that were merged")
        }
        () if functions.covers(&ours, address) && functions.covers(&theirs, address) => {
            Some("functions within functions")
        }
        () => None,
    }
}

fn class_of_places((file, line): (&str, u32), theirs: &str) -> Option<&'static str> {
    let theirs = theirs.split(" (disc").next().unwrap_or(theirs);
    let (their_file, their_line) = theirs.rsplit_once(':')?;
    let their_line: u32 = their_line.parse().unwrap_or(0);
    let (own, other) = (plain(file), plain(their_file));
    let own_name = Path::new(&own).file_name();
    match () {
        () if own == other && line == their_line => Some("same"),
        () if file == "??" && their_line == 0 => Some("file of a local symbol without lines"),
        () if line != their_line => None,
        () if own_name == Path::new(&other).file_name() => Some("relative directory"),
        () => Some("file of the innermost line"),
    }
}

/// Maximum addresses for gdb, which takes some seconds for them.
const GDB_ADDRESSES: usize = 500;

/// Queries gdb, without running a program: the symbol at each address, and its line.
fn ask_gdb(file: &Path, addresses: &[u64]) -> Vec<(String, String)> {
    let script = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("gdb-{}", std::process::id()));
    let mut text = "set print demangle off\nset print asm-demangle off\n".to_owned();
    for address in addresses {
        text += &format!("echo @\\n\ninfo symbol {address:#x}\ninfo line *{address:#x}\n");
    }
    std::fs::write(&script, text).unwrap();
    let mut gdb = Command::new("gdb");
    gdb.args(["--batch", "-nx", "-iex", "set debuginfod enabled off", "-x"]).arg(&script).arg(file);
    let output =
        gdb.stderr(Stdio::null()).output().unwrap_or_else(|error| panic!("gdb: {error}; install it"));
    std::fs::remove_file(&script).unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let answers = text.split("@\n").skip(1).map(|answer| {
        // `name + 4 in section .text`, or `No symbol matches 0x12.`
        let symbol = answer.lines().next().and_then(|line| line.split_once(" in section "));
        let name = symbol.map_or("??", |(name, _)| name.split(" + ").next().unwrap_or(name));
        // `Line 4 of "a.c" starts at address …`, or `Line 4 of "a.c" is at address … but contains
        // no code.`
        let place = answer.lines().find_map(|line| line.strip_prefix("Line ")?.split_once(" of \""));
        let place = place.and_then(|(line, rest)| Some(format!("{}:{line}", rest.split_once('"')?.0)));
        (name.to_owned(), place.unwrap_or_else(|| "??:0".to_owned()))
    });
    answers.collect()
}

/// Queries a symbolizer that reads addresses from standard input and prints name and position
/// lines.
fn ask(peer: &str, is_llvm: bool, file: &Path, addresses: &[u64]) -> Vec<(String, String)> {
    let mut command = Command::new(peer);
    match is_llvm {
        true => command.args(["--no-inlines", "--no-demangle", "--output-style=GNU", "-e"]),
        false => command.args(["-f", "-e"]),
    };
    let command = command.arg(file).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut peer_process = command.spawn().unwrap_or_else(|error| panic!("{peer}: {error}; install it"));
    let asked: String = addresses.iter().map(|address| format!("{address:#x}\n")).collect();
    let mut input = peer_process.stdin.take().unwrap();
    let writer = std::thread::spawn(move || input.write_all(asked.as_bytes()).unwrap());
    let output = peer_process.wait_with_output().unwrap().stdout;
    writer.join().unwrap();
    let text = String::from_utf8_lossy(&output);
    let lines: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
    lines.chunks_exact(2).map(|pair| (pair[0].to_owned(), pair[1].to_owned())).collect()
}

/// The functions in the symbol tables of a file.
struct Functions {
    ranges: std::collections::HashMap<String, Vec<(u64, u64)>>,
}

impl Functions {
    fn read(paths: &[std::path::PathBuf]) -> Self {
        use object::{Object, ObjectSymbol, SymbolKind};
        let mut ranges = std::collections::HashMap::<String, Vec<(u64, u64)>>::new();
        for path in paths {
            let bytes = std::fs::read(path).unwrap();
            let Ok(object) = object::File::parse(&*bytes) else { continue };
            for symbol in object.symbols().chain(object.dynamic_symbols()) {
                if symbol.kind() == SymbolKind::Text && symbol.size() > 0 && symbol.is_definition() {
                    let name = symbol.name().unwrap_or_default().split('@').next().unwrap_or_default();
                    ranges.entry(name.to_owned()).or_default().push((symbol.address(), symbol.size()));
                }
            }
        }
        Self { ranges }
    }

    /// Returns the start and the middle of each function.
    fn addresses(&self) -> Vec<u64> {
        let all = self.ranges.values().flatten();
        let mut all: Vec<u64> = all.flat_map(|&(start, size)| [start, start + size / 2]).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    fn covers(&self, name: &str, address: u64) -> bool {
        let ranges = self.ranges.get(name).into_iter().flatten();
        ranges.into_iter().any(|&(start, size)| (start..start + size).contains(&address))
    }

    fn covers_with_suffix(&self, name: &str, address: u64) -> bool {
        let with_suffix = |key: &str| key.strip_prefix(name).is_some_and(|suffix| suffix.starts_with('.'));
        self.ranges.keys().any(|key| with_suffix(key) && self.covers(key, address))
    }

    fn share_address(&self, one: &str, other: &str) -> bool {
        let (Some(one), Some(other)) = (self.ranges.get(one), self.ranges.get(other)) else { return false };
        one.iter().any(|(start, _)| other.iter().any(|(also, _)| start == also))
    }
}
