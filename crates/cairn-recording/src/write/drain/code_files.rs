//! Reads the files in which the program's JIT compilers name their code, while they grow.
//!
//! `/tmp/perf-PID.map` and `jit-PID.dump` are in the file system of the program, which may be that
//! of a container, with the process's number there. They are opened once and read on to the end,
//! also when the program is gone by then.

use std::fs::{Metadata, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::code_file::{MAX_BYTES, Tail};
use crate::generated::{CodeFileKind, CodePiece};

/// How long a search for files is valid. 200 ms, because most short programs run longer, and a
/// search reads the list of mappings.
const SEARCH_EVERY: Duration = Duration::from_millis(200);
/// Most files; 64. A program that writes more of them is not a JIT compiler.
const MAX_FILES: usize = 64;
/// How much older than the recording a file may be: clocks of file systems are coarse.
const CLOCK_SLACK_NANOS: u64 = 2_000_000_000;

/// Reads the files in which a process's JIT compilers have named their code so far: at most 64 MiB.
#[must_use]
pub fn code_files_of(process: u32) -> Vec<CodePiece> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    // The last number is the one in the process's own namespace.
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let own_number = numbers.and_then(|numbers| numbers.split_whitespace().last()?.parse().ok());
    let started = started_wall_nanos(process).unwrap_or(0);
    let mut files = CodeFiles::new(own_number.unwrap_or(process), started);
    files.set_process(process);
    let mut pieces = Vec::new();
    files.read(0, true, |piece| pieces.push(piece));
    pieces
}

/// Returns the start of a process, in nanoseconds since 1970.
fn started_wall_nanos(process: u32) -> Option<u64> {
    /// Nanoseconds of a tick in `/proc`, which are 100 a second on every machine.
    const TICK_NANOS: u64 = 10_000_000;
    /// Index of the start among the words behind the name.
    const START: usize = 19;
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let (_, behind_name) = stat.rsplit_once(')')?;
    let ticks: u64 = behind_name.split_whitespace().nth(START)?.parse().ok()?;
    let system = std::fs::read_to_string("/proc/stat").ok()?;
    let boot: u64 = system.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    Some(boot.saturating_mul(1_000_000_000).saturating_add(ticks.saturating_mul(TICK_NANOS)))
}

/// The files of one program.
pub(super) struct CodeFiles {
    /// The process's number in its own namespace, as the names of the files have it.
    own_number: u32,
    /// The process's number here, once it is known.
    process: Option<u32>,
    start_wall_nanos: u64,
    files: Vec<Tail>,
    next_number: u32,
    searched: Option<Instant>,
    taken_bytes: u64,
    lost_bytes: u64,
}

impl CodeFiles {
    pub(super) fn new(own_number: u32, start_wall_nanos: u64) -> Self {
        Self {
            own_number,
            process: None,
            start_wall_nanos,
            files: Vec::new(),
            next_number: 0,
            searched: None,
            taken_bytes: 0,
            lost_bytes: 0,
        }
    }

    pub(super) fn set_process(&mut self, process: u32) {
        self.process = Some(process);
    }

    /// Bytes that were not stored.
    pub(super) fn lost_bytes(&self) -> u64 {
        self.lost_bytes
    }

    /// True when a file has more bytes than were read, or is to be searched for.
    pub(super) fn is_due(&mut self) -> bool {
        if self.searched.is_none_or(|at| at.elapsed() >= SEARCH_EVERY) {
            self.search();
        }
        self.files.iter().any(Tail::has_more)
    }

    /// Hands on what is new, with the time `nanos`. At the end, `is_last`, a line without an end
    /// counts as one.
    pub(super) fn read(&mut self, nanos: u64, is_last: bool, mut take: impl FnMut(CodePiece)) {
        if is_last {
            self.search();
        }
        self.read_known(nanos, is_last, &mut take);
    }

    fn read_known(&mut self, nanos: u64, is_last: bool, take: &mut impl FnMut(CodePiece)) {
        for tail in &mut self.files {
            tail.notice_new_contents(&mut self.next_number);
            while let Some(bytes) = tail.next_piece(is_last) {
                let room = MAX_BYTES - self.taken_bytes;
                if bytes.len() as u64 > room {
                    self.lost_bytes += bytes.len() as u64;
                    continue;
                }
                self.taken_bytes += bytes.len() as u64;
                if !bytes.is_empty() {
                    take(CodePiece { kind: tail.kind, file: tail.number, nanos, bytes });
                }
            }
        }
    }

    /// Opens files that were not there before.
    fn search(&mut self) {
        self.searched = Some(Instant::now());
        let name = format!("perf-{}.map", self.own_number);
        let root = self.process.map(|process| PathBuf::from(format!("/proc/{process}/root")));
        // The process may be gone, or of another user: then its file system is taken to be this
        // one. A wrong file is recognized by its time.
        let root = root.filter(|root| root.join("tmp").is_dir()).unwrap_or_else(|| "/".into());
        let maps = self.process.map(|process| format!("/proc/{process}/maps"));
        let maps = maps.and_then(|maps| std::fs::read(maps).ok()).unwrap_or_default();
        self.open(&root.join("tmp").join(name), CodeFileKind::PerfMap);
        for path in mapped_dumps(&maps, self.own_number) {
            self.open(&root.join(path.strip_prefix("/").unwrap_or(&path)), CodeFileKind::JitDump);
        }
    }

    fn open(&mut self, path: &Path, kind: CodeFileKind) {
        // Neither a link, which another user may have planted, nor a pipe that would block.
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;
        let Ok(file) = OpenOptions::new().read(true).custom_flags(flags).open(path) else { return };
        let Ok(metadata) = file.metadata() else { return };
        let identity = (metadata.dev(), metadata.ino());
        let is_known = self.files.iter().any(|tail| tail.identity == identity);
        if is_known || self.files.len() >= MAX_FILES || !self.is_of_program(&metadata) {
            return;
        }
        let number = self.next_number;
        self.next_number += 1;
        self.files.push(Tail { file, identity, kind, number, offset: 0 });
    }

    /// Excludes files of other users, and those of an earlier process of this number.
    fn is_of_program(&self, metadata: &Metadata) -> bool {
        let owner = self.process.and_then(|process| std::fs::metadata(format!("/proc/{process}")).ok());
        let is_own = metadata.uid() == cairn_files::effective_user()
            || owner.is_some_and(|owner| owner.uid() == metadata.uid());
        let modified = (metadata.mtime() as u64)
            .saturating_mul(1_000_000_000)
            .saturating_add(metadata.mtime_nsec() as u64);
        metadata.is_file() && is_own && modified.saturating_add(CLOCK_SLACK_NANOS) >= self.start_wall_nanos
    }
}

/// Returns the jitdumps among a process's mappings.
///
/// Compilers map a page of them so that perf learns of them, wherever they lie.
fn mapped_dumps(maps: &[u8], own_number: u32) -> Vec<PathBuf> {
    let name = format!("/jit-{own_number}.dump");
    let path_of = |line: &[u8]| {
        let start = line.iter().position(|&byte| byte == b'/')?;
        let path = line.get(start..)?;
        path.ends_with(name.as_bytes()).then(|| PathBuf::from(std::ffi::OsStr::from_bytes(path)))
    };
    let mut paths: Vec<PathBuf> = maps.split(|&byte| byte == b'\n').filter_map(path_of).collect();
    paths.dedup();
    paths
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;

    use super::*;

    fn read_all(files: &mut CodeFiles, is_last: bool) -> Vec<(u32, String)> {
        let mut pieces = Vec::new();
        files.read(5, is_last, |piece| {
            pieces.push((piece.file, String::from_utf8_lossy(&piece.bytes).into_owned()));
        });
        pieces
    }

    fn temporary(name: &str) -> (PathBuf, File) {
        let path = std::env::temp_dir().join(format!("cairn-code-files-{}-{name}", std::process::id()));
        let file = OpenOptions::new().create(true).truncate(true).write(true).open(&path).unwrap();
        (path, file)
    }

    #[test]
    fn perf_map_is_read_line_by_line_while_it_grows() {
        let (path, mut file) = temporary("perf.map");
        let mut files = CodeFiles::new(1, 0);
        files.open(&path, CodeFileKind::PerfMap);
        assert_eq!(read_all(&mut files, false), []);
        file.write_all(b"1000 20 first\n2000 10 sec").unwrap();
        assert_eq!(read_all(&mut files, false), [(0, "1000 20 first\n".to_owned())]);
        file.write_all(b"ond\n3000 1 cut").unwrap();
        assert_eq!(read_all(&mut files, false), [(0, "2000 10 second\n".to_owned())]);
        assert_eq!(read_all(&mut files, true), [(0, "3000 1 cut".to_owned())]);
        // The file is written anew, with another number.
        let mut anew = OpenOptions::new().truncate(true).write(true).open(&path).unwrap();
        anew.write_all(b"1 1 again\n").unwrap();
        assert_eq!(read_all(&mut files, true), [(1, "1 1 again\n".to_owned())]);
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn older_and_foreign_files_are_not_read() {
        let (path, _file) = temporary("old.map");
        let link = path.with_extension("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let in_an_hour = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap()
            + Duration::from_secs(3600);
        let mut later = CodeFiles::new(1, in_an_hour.as_nanos() as u64);
        later.open(&path, CodeFileKind::PerfMap);
        assert!(later.files.is_empty(), "the file is older than the recording");
        let mut files = CodeFiles::new(1, 0);
        files.open(&link, CodeFileKind::PerfMap);
        files.open(Path::new("/"), CodeFileKind::PerfMap);
        assert!(files.files.is_empty(), "neither a link nor a directory");
        std::fs::remove_file(path).unwrap();
        std::fs::remove_file(link).unwrap();
    }

    #[test]
    fn mapped_dumps_are_found_by_their_names() {
        let maps = b"7f00-7f01 r-xp 00000000 fe:00 12                         /home/x/jit-77.dump\n\
            7f01-7f02 r--p 00000000 fe:00 13                         /home/x/jit-771.dump\n\
            7f03-7f04 rw-p 00000000 00:00 0 \n";
        assert_eq!(mapped_dumps(maps, 77), [PathBuf::from("/home/x/jit-77.dump")]);
        assert!(mapped_dumps(maps, 7).is_empty());
    }
}
