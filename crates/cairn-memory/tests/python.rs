//! Python frames of real processes and core files equal those that the interpreter itself reports.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(clippy::print_stdout, reason = "shown by `cargo test -- --nocapture`: what is not installed here")]

#[path = "support/asleep.rs"]
mod asleep;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use cairn_memory::image::{Image, OpenOptions};
use cairn_memory::process::{ThreadSource, while_stopped};
use cairn_memory::python::{MixedFrame, PythonFrames, PythonNote, PythonRefusalReason};
use cairn_symbols::{AddressKind, Lookup, ModuleInfo, Place, Symbolizer, SymbolizerOptions};

/// A frame as the interpreter reports it: name, file, line.
type Reported = (String, String, Option<u32>);

/// Returns the interpreters of this machine.
///
/// They are `python3` of the path, those of pyenv, and those that `CAIRN_PYTHONS` names, between
/// colons.
fn pythons() -> BTreeSet<PathBuf> {
    let executable = ["-c", "import sys; print(sys.executable)"];
    let of_path = ["python3", "/usr/bin/python3"].into_iter().filter_map(|name| {
        let output = Command::new(name).args(executable).stderr(Stdio::null()).output().ok()?;
        Some(PathBuf::from(String::from_utf8(output.stdout).ok()?.trim()))
    });
    let root = std::env::var_os("PYENV_ROOT").map(PathBuf::from);
    let root = root.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".pyenv")));
    let versions = root.and_then(|root| std::fs::read_dir(root.join("versions")).ok());
    let of_pyenv =
        versions.into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path().join("bin/python")));
    let given = std::env::var_os("CAIRN_PYTHONS").unwrap_or_default();
    let given: Vec<PathBuf> = std::env::split_paths(&given).collect();
    let found = of_path.chain(of_pyenv).chain(given).filter_map(|path| path.canonicalize().ok());
    found.filter(|path| path.is_file()).collect()
}

/// Major and minor version; `None` for what is no CPython.
fn version(python: &Path) -> Option<(u32, u32)> {
    let program = "import sys; print(sys.version_info[0], sys.version_info[1], hasattr(sys, 'getrefcount'))";
    let output = Command::new(python).args(["-c", program]).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let mut words = text.split_whitespace();
    let version = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    Some(version).filter(|_| output.status.success())
}

const SUPPORTED: RangeInclusive<(u32, u32)> = (3, 8)..=(3, 15);

/// The interpreters whose frames are read.
fn supported_pythons() -> impl Iterator<Item = PathBuf> {
    pythons().into_iter().filter(|python| version(python).is_some_and(|found| SUPPORTED.contains(&found)))
}

struct Program {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Program {
    fn start(python: &Path, script: &str, arguments: &[&str]) -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support").join(script);
        let mut command = Command::new(python);
        command.arg(script).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        // No files beside the sources.
        let mut child = command.env("PYTHONDONTWRITEBYTECODE", "1").spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, output }
    }

    /// The interpreter's own answer, by thread, innermost frame first.
    fn reported(&mut self) -> BTreeMap<u32, Vec<Reported>> {
        let mut found: BTreeMap<u32, Vec<Reported>> = BTreeMap::new();
        loop {
            let mut line = String::new();
            self.output.read_line(&mut line).unwrap();
            if line.trim() == "end" {
                return found;
            }
            let fields: Vec<&str> = line.trim_end().split('\t').collect();
            let [thread, name, file, at] = fields.as_slice() else { panic!("{line:?}") };
            let frame = ((*name).to_owned(), (*file).to_owned(), at.parse().ok());
            found.entry(thread.parse().unwrap()).or_default().push(frame);
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The Python frames of a thread, as they were read.
#[derive(Debug)]
struct Read {
    frames: Vec<Reported>,
    notes: Vec<PythonNote>,
    /// Addresses of the native frames that run Python frames: module, stated address.
    runners: Vec<(PathBuf, u64)>,
}

fn read(source: &impl ThreadSource) -> BTreeMap<u32, Read> {
    let python = PythonFrames::find(source);
    let text = |bytes: &Option<Vec<u8>>| String::from_utf8_lossy(bytes.as_ref().unwrap()).into_owned();
    let of_thread = |thread: &cairn_memory::process::Thread| {
        let stack = source.stack(thread.registers.as_ref().ok()?, 10_000);
        let mixed = python.merge(source, thread, stack, 10_000);
        let mut runners = Vec::new();
        for pair in mixed.frames.windows(2) {
            if let [MixedFrame::Python(_), MixedFrame::Native(native)] = pair {
                let address = native.frame.address().unwrap();
                let module = source.modules().module_at(address).unwrap();
                let path = String::from_utf8_lossy(module.name()).into_owned();
                runners.push((path.into(), module.stated_address(address).value()));
            }
        }
        let frames = mixed.frames.iter().filter_map(|frame| match frame {
            MixedFrame::Python(frame) => {
                let code = python.code(*frame).expect("a readable code object");
                assert_eq!(code.gap(), None);
                Some((text(&code.name), text(&code.file), python.line(*frame)))
            }
            MixedFrame::Native(_) => None,
        });
        let frames = frames.collect();
        Some((thread.id, Read { frames, notes: mixed.notes, runners }))
    };
    source.threads().iter().filter_map(of_thread).collect()
}

/// Checks that a call of the evaluation function follows every run of Python frames.
///
/// Only where the interpreter has symbols.
fn check_runners(read: &BTreeMap<u32, Read>) -> usize {
    let mut symbolizer = Symbolizer::new(SymbolizerOptions::new());
    let mut modules = BTreeMap::new();
    let mut checked = 0;
    for (path, address) in read.values().flat_map(|read| &read.runners) {
        let module = *modules.entry(path).or_insert_with(|| symbolizer.add_module(ModuleInfo::new(path)));
        let place = Place::Stated(cairn_format::StatedAddress::new(*address));
        let found = symbolizer.resolve(module, Lookup { place, kind: AddressKind::ReturnAddress });
        let Some(name) = found.frames().last().and_then(|frame| frame.function.clone()) else { continue };
        // Where a stripped program has no symbol, the nearest one in front says nothing.
        if found.frames().iter().any(|frame| frame.raw_name.is_some()) {
            assert!(name.starts_with("_PyEval_EvalFrameDefault"), "{name} at {address:#x}");
            checked += 1;
        }
    }
    checked
}

/// True if the frames are those that the interpreter reported. Its list is cut in 3.9 and 3.8 where
/// `throw` delegates; both show what is there.
fn check(python: &Path, expected: &BTreeMap<u32, Vec<Reported>>, read: &BTreeMap<u32, Read>) -> usize {
    let mut frames = 0;
    for (thread, expected) in expected {
        let found = &read[thread];
        assert_eq!(found.frames, *expected, "{}: thread {thread}", python.display());
        assert_eq!(found.notes, [], "{}: thread {thread}", python.display());
        frames += found.frames.len();
    }
    frames
}

#[test]
fn python_frames_equal_the_interpreters_own() {
    let mut checked = 0;
    for python in supported_pythons() {
        let mut program = Program::start(&python, "frames.py", &[]);
        let expected = program.reported();
        asleep::wait_until_asleep(program.child.id());
        let read = while_stopped(program.child.id(), read).unwrap();
        let frames = check(&python, &expected, &read);
        let runners = check_runners(&read);
        println!("{}: {} threads, {frames} frames, {runners} runs", python.display(), expected.len());
        assert!(frames > 340, "{}: {frames} frames", python.display());
        checked += 1;
    }
    if checked == 0 {
        println!("not checked: no python3 that is supported is installed");
    }
}

#[test]
fn python_frames_of_core_files_equal_the_interpreters_own() {
    if Command::new("gcore").stdout(Stdio::null()).stderr(Stdio::null()).status().is_err() {
        println!("not checked: gcore (package gdb) is not installed");
        return;
    }
    for python in supported_pythons() {
        let mut program = Program::start(&python, "frames.py", &[]);
        let expected = program.reported();
        asleep::wait_until_asleep(program.child.id());
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("python-{}.core", std::process::id()));
        let id = program.child.id().to_string();
        let made = Command::new("gcore").arg("-o").arg(&path).arg(&id).output().unwrap();
        let core = path.with_file_name(format!("{}.{id}", path.file_name().unwrap().to_str().unwrap()));
        assert!(core.is_file(), "{made:?}");
        // gdb reads in large steps, and leaves zeros where one meets the guard pages of a stack.
        let complaints = String::from_utf8_lossy(&made.stderr).into_owned();
        let is_gap = |line: &str| line.contains("Memory read failed") && !line.contains("0xffffffffff600000");
        if complaints.lines().any(is_gap) {
            println!("not checked: gcore could not read all memory of {}", python.display());
            std::fs::remove_file(&core).unwrap();
            continue;
        }
        let image = Image::open(&core, &OpenOptions::default()).unwrap();
        std::fs::remove_file(&core).unwrap();
        let frames = check(&python, &expected, &read(&image));
        println!("{}: {frames} frames in a core file", python.display());
    }
}

/// The thread has a state in each of two interpreters. 3.8 and 3.9 do not say which calls are
/// whose.
#[test]
fn python_frames_of_a_subinterpreter_lead_to_the_main_one() {
    for python in supported_pythons() {
        let mut program = Program::start(&python, "subinterpreter.py", &[]);
        let expected = program.reported();
        asleep::wait_until_asleep(program.child.id());
        let read = while_stopped(program.child.id(), read).unwrap();
        if version(&python) < Some((3, 10)) {
            let thread = &read[expected.keys().next().unwrap()];
            let [note] = thread.notes.as_slice() else { panic!("{thread:?}") };
            assert!(thread.frames.is_empty() && note.to_string().contains("several interpreters"), "{note}");
            continue;
        }
        let frames = check(&python, &expected, &read);
        println!("{}: {frames} frames", python.display());
    }
}

#[test]
fn python_frames_of_running_threads_are_in_order() {
    /// Outermost first; the last frames of the list may be missing.
    const LEVELS: [&str; 6] = ["spin", "level_0", "<lambda>", "level_1", "level_2", "level_3"];
    for python in supported_pythons() {
        let mut program = Program::start(&python, "spin.py", &["thread"]);
        let mut line = String::new();
        program.output.read_line(&mut line).unwrap();
        let mut depths = BTreeSet::new();
        for _ in 0..40 {
            let read = while_stopped(program.child.id(), read).unwrap();
            let spins = read.values().filter(|read| read.frames.iter().any(|(name, ..)| name == "spin"));
            let spinning: Vec<&Read> = spins.collect();
            let [thread] = spinning.as_slice() else { panic!("{}: {read:?}", python.display()) };
            let names = thread.frames.iter().rev().map(|(name, ..)| name.rsplit('.').next().unwrap());
            let levels: Vec<&str> = names.skip_while(|name| *name != "spin").collect();
            assert_eq!(levels, LEVELS[..levels.len()], "{}: {thread:?}", python.display());
            assert_eq!(thread.notes, [], "{}", python.display());
            depths.insert(levels.len());
        }
        println!("{}: depths {depths:?}", python.display());
        assert!(depths.len() > 1, "{}: {depths:?}", python.display());
    }
}

#[test]
fn python_of_other_versions_is_refused_by_its_version() {
    for python in pythons() {
        let Some(version @ (major, minor)) = version(&python) else { continue };
        if SUPPORTED.contains(&version) {
            continue;
        }
        let mut program = Program::start(&python, "spin.py", &[]);
        let mut line = String::new();
        program.output.read_line(&mut line).unwrap();
        let read = while_stopped(program.child.id(), read).unwrap();
        let main = &read[&program.child.id()];
        assert!(main.frames.is_empty());
        let [PythonNote::Refused(refusal)] = main.notes.as_slice() else { panic!("{:?}", main.notes) };
        assert_eq!((refusal.version >> 24, refusal.version >> 16 & 0xff), (major, minor));
        assert_eq!(refusal.reason, PythonRefusalReason::UnknownVersion);
        let text = refusal.to_string();
        let expected = format!("no Python frames: Python {major}.{minor}.");
        assert!(text.starts_with(&expected) && text.ends_with(": this version is not supported"), "{text}");
    }
}
