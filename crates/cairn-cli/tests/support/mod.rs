//! Fixture programs, compiled; runs of them, plain and under `cairn heap`; and a reader of their
//! recordings that is as simple as it can be, apart from the one that is tested elsewhere.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use cairn_format::recording::{
    FileHeader, Record, Records, SEGMENT_BYTES, SEGMENT_HEADER_BYTES, SegmentHeader, Shape, control,
};

pub(crate) fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// A directory for one test, empty.
pub(crate) fn scratch(test: &str) -> PathBuf {
    let directory = scratch_place(test);
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory).unwrap();
    directory
}

/// Returns the path of that directory.
#[allow(dead_code, reason = "not all that use this module need it")]
pub(crate) fn scratch_place(test: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("heap").join(test)
}

/// Compiles `source` of fixtures/programs/heap to `directory/name`.
pub(crate) fn compile(directory: &Path, source: &str, name: &str, flags: &[&str]) -> PathBuf {
    let program = directory.join(name);
    let compiler = if source.ends_with(".cpp") { "c++" } else { "cc" };
    let output = Command::new(compiler)
        .args(["-O1", "-g", "-pthread", "-w"])
        .arg(workspace().join("fixtures/programs/heap").join(source))
        .arg("-o")
        .arg(&program)
        .args(flags)
        .output()
        .unwrap();
    assert!(output.status.success(), "{source}: {}", String::from_utf8_lossy(&output.stderr));
    program
}

/// Writes a script, or copies a program, that is to be run. Another process does that: while this
/// one has a file open to write to it, each child that another test starts has it as well for a
/// moment, and the kernel runs no file that is open for writing.
#[allow(dead_code, reason = "not all that use this module need it")]
pub(crate) fn executable(path: &Path, from: &Executable<'_>) {
    let mut command = Command::new("sh");
    match from {
        Executable::Script(text) => {
            command.args(["-c", "printf %s \"$1\" > \"$0\" && chmod 755 \"$0\""]).arg(path).arg(text)
        }
        Executable::Copy(file) => {
            command.args(["-c", "cp \"$1\" \"$0\" && chmod 755 \"$0\""]).arg(path).arg(file)
        }
    };
    assert!(command.status().unwrap().success());
}

/// The content of an executable.
#[allow(dead_code, reason = "not all that use this module need it")]
pub(crate) enum Executable<'a> {
    Script(&'a str),
    Copy(&'a Path),
}

/// Waits until `found` returns a value; the limit is long enough for a busy machine.
#[allow(dead_code, reason = "not all that use this module need it")]
pub(crate) fn wait_for<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    const PATIENCE: Duration = Duration::from_secs(300);
    let began = Instant::now();
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(began.elapsed() < PATIENCE, "{what} did not come");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub(crate) fn cairn() -> Command {
    Command::new(env!("CARGO_BIN_EXE_cairn"))
}

/// Runs `command`, which must end in time.
pub(crate) fn run(command: &mut Command) -> Output {
    const PATIENCE: Duration = Duration::from_secs(300);
    let description = format!("{command:?}");
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let process = child.id();
    let began = Instant::now();
    let (sender, receiver) = std::sync::mpsc::channel();
    let waiter = std::thread::spawn(move || {
        let output = child.wait_with_output().unwrap();
        let _ = sender.send(());
        output
    });
    if receiver.recv_timeout(PATIENCE).is_err() {
        let _ = Command::new("kill").args(["-9", &process.to_string()]).status();
        panic!("{description}: has not ended after {:?}", began.elapsed());
    }
    waiter.join().unwrap()
}

/// The visible results of a program: its output, errors and exit status.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Shown {
    pub(crate) status: Option<i32>,
    pub(crate) signal: Option<i32>,
    pub(crate) output: String,
    pub(crate) errors: String,
}

impl From<Output> for Shown {
    fn from(output: Output) -> Self {
        let status: ExitStatus = output.status;
        Self {
            status: status.code(),
            signal: status.signal(),
            output: String::from_utf8_lossy(&output.stdout).into_owned(),
            errors: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// Runs `program` plain and recorded: both must show the same. The recording lies in `directory`.
#[allow(dead_code, reason = "not all that use this module need it")]
pub(crate) fn same_as_plain(directory: &Path, program: &Path, arguments: &[&str]) -> Shown {
    same_as_plain_with(directory, program.as_os_str(), arguments, &[])
}

#[allow(dead_code, reason = "not all that use this module need it")]
pub(crate) fn same_as_plain_with(
    directory: &Path,
    program: &OsStr,
    arguments: &[&str],
    options: &[&str],
) -> Shown {
    let mut plain = Command::new(program);
    let plain = Shown::from(run(plain.args(arguments).current_dir(directory)));
    let mut recorded = cairn();
    recorded.args(["heap", "--quiet"]).args(options).arg("--").arg(program).args(arguments);
    let recorded = Shown::from(run(recorded.current_dir(directory)));
    assert_eq!(plain, recorded, "left: plain, right: recorded; {program:?} {arguments:?}");
    recorded
}

/// The recordings in `directory`, by name; also in those that hold the recordings of one run.
pub(crate) fn recordings(directory: &Path) -> Vec<Recording> {
    let mut paths: Vec<PathBuf> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .flat_map(with_content)
        .filter(|path| path.extension() == Some(OsStr::new("cairn")) && path.is_file())
        .collect();
    paths.sort();
    paths.iter().map(|path| Recording::read(path)).collect()
}

/// The only one.
#[allow(dead_code, reason = "not all that use this module need it")]
pub(crate) fn recording(directory: &Path) -> Recording {
    let mut all = recordings(directory);
    assert_eq!(all.len(), 1, "{:?}", all.iter().map(|one| &one.path).collect::<Vec<_>>());
    all.remove(0)
}

/// A path; of a directory that `cairn heap` made, also the paths in it.
fn with_content(path: PathBuf) -> Vec<PathBuf> {
    let is_made = path.is_dir() && path.to_string_lossy().contains(".cairn");
    let entries = is_made.then(|| fs::read_dir(&path).unwrap()).into_iter().flatten();
    let inside: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    std::iter::once(path).chain(inside).collect()
}

/// Recorded counts of blocks of one size.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Count {
    pub(crate) made: u64,
    pub(crate) left: u64,
}

pub(crate) struct Recording {
    pub(crate) path: PathBuf,
    pub(crate) process: u32,
    pub(crate) by_size: BTreeMap<u64, Count>,
    pub(crate) lost: u64,
    pub(crate) modules_loaded: Vec<String>,
    pub(crate) modules_unloaded: usize,
    pub(crate) events: u64,
    #[allow(dead_code, reason = "not all that use this module need it")]
    pub(crate) mappings: Vec<(cairn_recording::MappingKind, u64)>,
}

#[derive(Default)]
struct Counts {
    by_size: BTreeMap<u64, Count>,
    events: u64,
    mappings: Vec<(cairn_recording::MappingKind, u64)>,
}

impl cairn_recording::Events for Counts {
    fn alloc(&mut self, event: &cairn_recording::Alloc) {
        self.events += 1;
        let count = self.by_size.entry(event.size_bytes).or_default();
        count.made += 1;
        count.left += 1;
    }

    fn free(&mut self, event: &cairn_recording::Free) {
        self.events += 1;
        self.by_size.entry(event.size_bytes).or_default().left -= 1;
    }

    fn mapping(&mut self, event: &cairn_recording::Mapping) {
        self.mappings.push((event.kind, event.size_bytes));
    }
}

struct Allocation {
    size: u64,
    epoch: u32,
    is_free: bool,
}

impl Recording {
    pub(crate) fn read(path: &Path) -> Self {
        let file = fs::read(path).unwrap();
        let header = FileHeader::read(&file).unwrap();
        match header.shape {
            Shape::Spool => Self::read_spool(path, &header, &file),
            Shape::Packed => Self::read_packed(path, &header),
        }
    }

    fn read_packed(path: &Path, header: &FileHeader) -> Self {
        let opened = cairn_recording::Recording::open(path).unwrap();
        let summary = opened.totals().expect("it was closed");
        let mut counts = Counts::default();
        opened.read(&cairn_recording::Wanted::ALL, &mut counts).unwrap();
        let modules = opened.modules();
        Self {
            path: path.to_owned(),
            process: header.process,
            by_size: counts.by_size,
            lost: summary.lost.iter().map(|(_, count)| count).sum(),
            modules_loaded: modules.iter().map(|module| module.path_text().into_owned()).collect(),
            modules_unloaded: modules.iter().filter(|module| module.unloaded_nanos.is_some()).count(),
            events: counts.events,
            mappings: counts.mappings,
        }
    }

    /// Reads each thread's blocks by their sequence.
    ///
    /// Frees find their allocations by the rule of `cairn_format::recording`.
    fn read_spool(path: &Path, header: &FileHeader, file: &[u8]) -> Self {
        let word = |at: usize| u64::from_le_bytes(file[at..at + 8].try_into().unwrap());
        let mut recording = Self {
            path: path.to_owned(),
            process: header.process,
            by_size: BTreeMap::new(),
            lost: word(control::LOST_EVENTS) + word(control::LOST_STACKS),
            modules_loaded: Vec::new(),
            modules_unloaded: 0,
            events: 0,
            mappings: Vec::new(),
        };
        let mut blocks: BTreeMap<(u32, u32), &[u8]> = BTreeMap::new();
        for block in file.chunks_exact(SEGMENT_BYTES).skip(1) {
            let Ok(header) = SegmentHeader::read(block) else { continue };
            blocks.insert((header.thread, header.sequence), block);
        }
        let mut allocations: HashMap<u64, Vec<Allocation>> = HashMap::new();
        let mut remote: Vec<(u64, u32)> = Vec::new();
        let mut own: HashMap<u64, usize> = HashMap::new();
        let mut thread = 0;
        for ((of_thread, _), block) in blocks {
            if of_thread != thread {
                own.clear();
                thread = of_thread;
            }
            let committed = SegmentHeader::read(block).unwrap().committed_bytes as usize;
            for record in Records::new(&block[SEGMENT_HEADER_BYTES..committed], SEGMENT_HEADER_BYTES) {
                match record.unwrap().record {
                    Record::Alloc { address, size_bytes, epoch, .. } => {
                        let at = allocations.entry(address).or_default();
                        own.insert(address, at.len());
                        at.push(Allocation { size: size_bytes, epoch, is_free: false });
                        recording.events += 1;
                    }
                    Record::Free { address, ticket } | Record::Move { address, ticket } => {
                        recording.events += 1;
                        match ticket {
                            Some(ticket) => remote.push((address, ticket)),
                            None => allocations.get_mut(&address).unwrap()[own[&address]].is_free = true,
                        }
                    }
                    Record::ModuleLoaded(module) => {
                        recording.modules_loaded.push(String::from_utf8_lossy(module.path).into_owned());
                    }
                    Record::ModuleUnloaded { .. } => recording.modules_unloaded += 1,
                    _ => {}
                }
            }
        }
        remote.sort_unstable();
        for (address, ticket) in remote {
            // The latest of the blocks allocated by then and not yet freed; none for a block older
            // than the recording.
            let candidates = allocations.entry(address).or_default().iter_mut();
            let found =
                candidates.filter(|one| !one.is_free && one.epoch <= ticket).max_by_key(|one| one.epoch);
            if let Some(found) = found {
                found.is_free = true;
            }
        }
        for allocation in allocations.into_values().flatten() {
            let count = recording.by_size.entry(allocation.size).or_default();
            count.made += 1;
            count.left += u64::from(!allocation.is_free);
        }
        recording
    }

    pub(crate) fn count(&self, size: u64) -> Count {
        self.by_size.get(&size).copied().unwrap_or_default()
    }

    /// Compares with the `expect` lines that the program printed.
    #[allow(dead_code, reason = "not all that use this module need it")]
    pub(crate) fn assert_as_expected(&self, shown: &Shown) {
        let mut checked = 0;
        for line in shown.output.lines().filter_map(|line| line.strip_prefix("expect ")) {
            let numbers: Vec<u64> = line.split(' ').map(|word| word.parse().unwrap()).collect();
            let [size, made, left] = numbers[..] else { panic!("{line}") };
            let found = self.count(size);
            assert_eq!(
                found,
                Count { made, left },
                "left: recorded, right: expected; blocks of {size} bytes in {}",
                self.path.display()
            );
            checked += 1;
        }
        assert!(checked > 0, "the program expects nothing: {shown:?}");
        assert_eq!(self.lost, 0, "{}", self.path.display());
    }
}
