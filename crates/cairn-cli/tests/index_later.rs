//! Indexes that another process builds for the next command after the answer is out.

#![cfg(target_os = "linux")]

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

const CAIRN: &str = env!("CARGO_BIN_EXE_cairn");

fn scratch(name: &str) -> Scratch {
    // Not below the checkout, which may be another user's: the cache would not count.
    let directory = std::env::temp_dir().join(format!("cairn-index-later-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&directory);
    fs::DirBuilder::new().mode(0o700).create(&directory).unwrap();
    Scratch(directory)
}

/// Removed at the end of the test.
struct Scratch(PathBuf);

impl std::ops::Deref for Scratch {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Asks for an address of the command itself, which has megabytes of debug information.
fn ask(more: &[&str], cache: &Path) -> Output {
    let main = {
        let symbols = Command::new("nm").arg(CAIRN).output().expect("nm of binutils");
        let text = String::from_utf8(symbols.stdout).unwrap();
        text.lines().find_map(|line| line.strip_suffix(" T main")).unwrap().to_owned()
    };
    let mut command = Command::new(CAIRN);
    command.args(["symbolize", "-e", CAIRN, &main]).args(more);
    command.env("HOME", cache).env_remove("XDG_CACHE_HOME").output().unwrap()
}

fn indexes(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.extension().is_some_and(|extension| extension == "cairnsym")).collect()
}

#[test]
fn second_command_finds_the_index_built_in_background() {
    let home = scratch("second");
    let directory = home.join(".cache/cairn/symbols");
    let first = ask(&[], &home);
    assert!(first.status.success(), "{first:?}");
    let start = Instant::now();
    // It is built with the lowest priority: on a busy machine it waits for all others.
    while indexes(&directory).is_empty() {
        assert!(start.elapsed() < Duration::from_secs(900), "no index in {}", directory.display());
        std::thread::sleep(Duration::from_millis(20));
    }
    // Its bytes are there when its name is.
    let [index] = &*indexes(&directory) else { panic!("more than one index") };
    let written = fs::metadata(index).unwrap();
    let second = ask(&[], &home);
    assert_eq!(second.stdout, first.stdout);
    let found = fs::metadata(index).unwrap();
    assert_eq!((found.len(), found.modified().unwrap()), (written.len(), written.modified().unwrap()));
}

#[test]
fn without_a_cache_nothing_is_left_behind() {
    let home = scratch("none");
    let answer = ask(&["--no-cache"], &home);
    assert!(answer.status.success(), "{answer:?}");
    assert_eq!(fs::read_dir(&*home).unwrap().count(), 0);
}

#[test]
fn one_process_at_a_time_builds_indexes() {
    let cache = scratch("busy");
    let text = cache.display().to_string();
    let lock = fs::File::create(cache.join(".builder.lock")).unwrap();
    lock.lock().unwrap();
    let build = || {
        let mut command = Command::new(CAIRN);
        command.args(["symbolize", "--cache-dir", &text, "--index-only", CAIRN]).output().unwrap()
    };
    let busy = build();
    let words = String::from_utf8(busy.stderr).unwrap();
    assert_eq!((busy.status.code(), words.contains("another process")), (Some(1), true), "{words}");
    assert!(indexes(&cache).is_empty());
    // Closing it would have no immediate effect: a child that another test starts at this moment
    // also has it open until it calls `exec`.
    lock.unlock().unwrap();
    let free = build();
    assert!(free.status.success(), "{free:?}");
    assert_eq!(indexes(&cache).len(), 1);
}
