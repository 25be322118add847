//! Stores and clusters for tests: real processes, on the loopback interface.

#![allow(dead_code, unused_imports, reason = "each test uses a part of this")]

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

pub(crate) use crate::program::{command, done, run};

/// The longest time that anything here takes.
const PATIENCE: Duration = Duration::from_secs(120);

/// Makes a store of `hosts` made-up hosts.
pub(crate) fn generate(directory: &Path, hosts: u32) {
    let hosts = hosts.to_string();
    let sizes = ["--hosts", &hosts, "--services", "4", "--stacks", "150", "--stacks-of-host", "40"];
    let arguments: Vec<&str> = ["generate", "store"].into_iter().chain(sizes).collect();
    done(directory, &arguments);
}

/// Waits until something holds.
pub(crate) fn wait_for<T>(what: &str, mut ready: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(value) = ready() {
            return value;
        }
        assert!(begun.elapsed() < PATIENCE, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A process that lasts until it is dropped.
pub(crate) struct Running {
    child: Child,
    lines: Receiver<String>,
    /// Where it listens, once that is known.
    pub(crate) address: String,
}

impl Running {
    pub(crate) fn start(directory: &Path, arguments: &[&str]) -> Self {
        let mut child = command(directory, arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let errors = child.stderr.take().unwrap();
        let (send, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(errors).lines().map_while(Result::ok) {
                let _ = send.send(line);
            }
        });
        Self { child, lines, address: String::new() }
    }

    /// Waits for a line with this text; returns what follows the text.
    pub(crate) fn after(&self, text: &str) -> String {
        let begun = Instant::now();
        let mut seen = Vec::new();
        while let Ok(line) = self.lines.recv_timeout(PATIENCE.saturating_sub(begun.elapsed())) {
            if let Some((_, rest)) = line.split_once(text) {
                return rest.to_owned();
            }
            seen.push(line);
        }
        panic!("{text:?} was not written, but {seen:#?}");
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn signal(&self, name: &str) {
        let process = self.child.id().to_string();
        assert!(std::process::Command::new("kill").args(["-s", name, &process]).status().unwrap().success());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A scheduler and two executors.
pub(crate) struct Cluster {
    pub(crate) url: String,
    pub(crate) scheduler: Running,
    pub(crate) executors: Vec<Running>,
    pub(crate) work: Vec<PathBuf>,
}

impl Cluster {
    /// Starts all of them; `options` are those of every member.
    pub(crate) fn start(directory: &Path, options: &[&str]) -> Self {
        let scheduler = Self::scheduler(directory, "127.0.0.1:0", options);
        let url = format!("df://{}", scheduler.after("listens on df://"));
        let mut cluster = Self { url, scheduler, executors: Vec::new(), work: Vec::new() };
        for _ in 0..2 {
            cluster.add_executor(directory, options);
        }
        cluster
    }

    pub(crate) fn scheduler(directory: &Path, address: &str, options: &[&str]) -> Running {
        Running::start(directory, &[&["scheduler", "--listen", address][..], options].concat())
    }

    pub(crate) fn add_executor(&mut self, directory: &Path, options: &[&str]) {
        let place = directory.join(format!("work-{}", self.work.len()));
        std::fs::create_dir_all(&place).unwrap();
        let of_place = place.display().to_string();
        let arguments =
            ["executor", "--scheduler", &self.url, "--threads", "1", "--work-directory", &of_place];
        let mut executor = Running::start(directory, &[&arguments[..], options].concat());
        let where_it_is = executor.after("the executor listens on ");
        executor.address = where_it_is.split(' ').next().unwrap().to_owned();
        self.executors.push(executor);
        self.work.push(place);
    }

    /// The results that an executor has, as [`results_below`].
    pub(crate) fn results(&self, executor: usize) -> Vec<(u32, PathBuf)> {
        results_below(&self.work[executor])
    }
}

/// Files of intermediate results in the directory of an executor, as (stage, file).
pub(crate) fn results_below(work: &Path) -> Vec<(u32, PathBuf)> {
    let below = |directory: PathBuf| {
        std::fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path())
    };
    let mut files = Vec::new();
    // The executor's own directory, the job, the stage.
    for stage in below(work.to_owned()).flat_map(below).flat_map(below) {
        let number = stage.file_name().and_then(|name| name.to_str()?.parse().ok()).unwrap_or(0);
        let mut open = vec![stage];
        while let Some(path) = open.pop() {
            if path.is_dir() {
                open.extend(below(path));
            } else {
                files.push((number, path));
            }
        }
    }
    files
}
