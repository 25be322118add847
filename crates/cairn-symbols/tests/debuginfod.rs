//! Fetches debug files from a minimal local server. Each test runs itself again in a child process,
//! because the environment is the configuration.

#![cfg(feature = "debuginfod")]
#![allow(clippy::print_stdout, reason = "the child reports to its parent")]
#![allow(clippy::print_stderr, reason = "reports skipped comparisons")]

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use cairn_format::ModuleOffset;
use cairn_symbols::{Lookup, Symbolizer, SymbolizerOptions};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/symbols").canonicalize().unwrap()
}

fn debug_file() -> PathBuf {
    let ids = fixtures().join("debug/.build-id");
    let first = fs::read_dir(ids).unwrap().next().unwrap().unwrap().path();
    fs::read_dir(first).unwrap().next().unwrap().unwrap().path()
}

/// Runs in the child: prints the position of the stripped program's first code byte.
#[test]
fn child() {
    let Some(how) = std::env::var_os("CAIRN_TEST_CHILD") else { return };
    let mut symbolizer = Symbolizer::new(SymbolizerOptions::new().debuginfod(how != "without"));
    let module = symbolizer.add_file(fixtures().join("bin/stripped")).unwrap();
    let answer = symbolizer.resolve(module, Lookup::program_counter(ModuleOffset::new(0x144)));
    println!("answer: {} frames: {}", answer.frames().len(), answer.frames().last().unwrap());
}

fn run_child(urls: Option<&str>, cache: &Path) -> String {
    run_child_with(urls, cache, "with")
}

fn run_child_with(urls: Option<&str>, cache: &Path, how: &str) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child", "--nocapture"]).env("CAIRN_TEST_CHILD", how);
    command.env("DEBUGINFOD_CACHE_PATH", cache).env("DEBUGINFOD_TIMEOUT", "2").env_remove("DEBUGINFOD_URLS");
    if let Some(urls) = urls {
        command.env("DEBUGINFOD_URLS", urls);
    }
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().find(|line| line.contains("answer: ")).unwrap().to_owned()
}

fn scratch(name: &str) -> PathBuf {
    let directory =
        std::env::temp_dir().join(format!("cairn-symbols-debuginfod-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&directory);
    directory
}

/// Answers `requests` requests with `body`, or never if there is none; sends the requested paths.
fn serve(body: Option<Vec<u8>>, requests: usize) -> (String, std::sync::mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (asked, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut silent = Vec::new();
        for _ in 0..requests {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 1024];
            let length = stream.read(&mut request).unwrap();
            let line =
                String::from_utf8_lossy(&request[..length]).lines().next().unwrap_or_default().to_owned();
            let _ = asked.send(line);
            match &body {
                Some(body) => {
                    write!(
                        stream,
                        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                        body.len()
                    )
                    .unwrap();
                    stream.write_all(body).unwrap();
                }
                None => silent.push(stream),
            }
        }
        std::thread::sleep(Duration::from_secs(30));
    });
    (url, receiver)
}

const WITHOUT: &str = "answer: 1 frames: stripped+0x144";
const WITH: &str = "answer: 2 frames: outer at /fixture/inlined.c:15";

#[test]
fn debuginfod_is_off_without_environment() {
    assert!(run_child(None, &scratch("off")).ends_with(WITHOUT));
}

#[test]
fn debuginfod_caches_downloads() {
    let cache = scratch("retained");
    let (url, asked) = serve(Some(fs::read(debug_file()).unwrap()), 1);
    assert!(run_child(Some(&url), &cache).ends_with(WITH));
    let request = asked.recv().unwrap();
    assert!(request.starts_with("GET /buildid/") && request.contains("/debuginfo "), "{request}");
    // No server listens there.
    assert!(run_child(Some("http://127.0.0.1:9"), &cache).ends_with(WITH));
}

#[test]
fn debuginfod_file_of_another_build_is_refused() {
    let (url, _asked) = serve(Some(fs::read(fixtures().join("bin/dwarf4")).unwrap()), 1);
    assert!(run_child(Some(&url), &scratch("other")).ends_with(WITHOUT));
}

#[test]
fn debuginfod_times_out_on_a_silent_server() {
    let (url, _asked) = serve(None, 1);
    let start = Instant::now();
    assert!(run_child(Some(&url), &scratch("silent")).ends_with(WITHOUT));
    assert!(start.elapsed() < Duration::from_secs(12), "{:?}", start.elapsed());
}

/// The server of Debian's package `debuginfod`, which indexes the fixtures itself.
#[test]
fn debuginfod_works_with_the_real_server() {
    let database = scratch("server");
    fs::create_dir_all(&database).unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut server = Command::new("debuginfod");
    server.args(["--port", &port.to_string(), "--database"]).arg(database.join("index.sqlite"));
    server.arg("-F").arg(fixtures().join("debug"));
    // It would query other servers.
    server.env_remove("DEBUGINFOD_URLS").stdout(Stdio::null()).stderr(Stdio::null());
    let _running = match server.spawn() {
        Ok(child) => Running(child),
        Err(error) => {
            eprintln!(
                "not compared with the real server: debuginfod: {error}; Debian has it in the package debuginfod"
            );
            return;
        }
    };
    let url = format!("http://127.0.0.1:{port}");
    // Until its scan is complete it lacks files, and a process that got this answer does not ask
    // again.
    let start = Instant::now();
    let mut last = String::new();
    for attempt in 0.. {
        assert!(start.elapsed() < Duration::from_secs(60), "{last}");
        last = run_child(Some(&url), &scratch(&format!("real-{attempt}")));
        if last.ends_with(WITH) {
            break;
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Stops the server at the end of the test, in every case.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn debuginfod_is_off_by_option() {
    let (url, asked) = serve(Some(fs::read(debug_file()).unwrap()), 1);
    assert!(run_child_with(Some(&url), &scratch("switched-off"), "without").ends_with(WITHOUT));
    assert!(asked.try_recv().is_err());
}
