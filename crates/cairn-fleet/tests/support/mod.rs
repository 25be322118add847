//! A server in a process of its own, and a client that speaks HTTP by hand.

#![allow(dead_code, unused_imports, reason = "each test uses a part of this")]

use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

pub(crate) use crate::program::{command, done, fixtures, run, sql};

pub(crate) const TOKEN: &str = "0123456789abcdef-of-tests";

/// A directory with an empty store of the name `store`.
pub(crate) fn store() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    done(directory.path(), &["init", "store"]);
    directory
}

/// A server over the store of a directory; it is killed when this is dropped.
pub(crate) struct Server {
    child: Child,
    pub(crate) address: SocketAddr,
    pub(crate) log: Arc<Mutex<String>>,
}

impl Server {
    /// Starts a server with the token of the tests and short intervals.
    pub(crate) fn start(directory: &Path, options: &[&str]) -> Self {
        std::fs::write(directory.join("token"), format!("{TOKEN}\n")).unwrap();
        let mut all = vec!["--token-file", "token"];
        if !options.contains(&"--commit-every") {
            all.extend(["--commit-every", "10ms"]);
        }
        all.extend(options);
        Self::start_with(directory, &all)
    }

    pub(crate) fn start_with(directory: &Path, options: &[&str]) -> Self {
        let mut child = command(directory, &["serve", "store", "--listen", "127.0.0.1:0"])
            .args(options)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = Arc::new(Mutex::new(String::new()));
        let mut lines = BufReader::new(child.stderr.take().unwrap());
        let address = loop {
            let mut line = String::new();
            assert!(lines.read_line(&mut line).unwrap() > 0, "no server: {}", log.lock().unwrap());
            log.lock().unwrap().push_str(&line);
            if let Some((_, address)) = line.trim_end().split_once("://") {
                break address.parse().unwrap();
            }
        };
        let sink = Arc::clone(&log);
        std::thread::spawn(move || {
            let mut line = String::new();
            while lines.read_line(&mut line).is_ok_and(|read| read > 0) {
                sink.lock().unwrap().push_str(&line);
                line.clear();
            }
        });
        Self { child, address, log }
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Asks the server to end.
    pub(crate) fn terminate(&self) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }

    /// Peak resident memory in kibibytes.
    pub(crate) fn peak_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    pub(crate) fn send(&self, path: &str, kind: &str, body: &[u8]) -> Answer {
        let headers = [("authorization", &*format!("Bearer {TOKEN}")), ("content-type", kind)];
        request(self.address, "POST", path, &headers, body).unwrap()
    }

    /// Sends a block.
    pub(crate) fn block(&self, block: &Value) -> Answer {
        self.send("/v1/block", "application/json", block.to_string().as_bytes())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An answer of a server.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }
}

/// Sends a request over a connection of its own.
pub(crate) fn request(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> std::io::Result<Answer> {
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(120)))?;
    exchange(stream, method, path, headers, body)
}

pub(crate) fn exchange(
    mut stream: impl Read + Write,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> std::io::Result<Answer> {
    let mut head = format!("{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n");
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    head += &format!("content-length: {}\r\n\r\n", body.len());
    stream.write_all(head.as_bytes())?;
    // A server that refuses a body by its length closes before it has read it.
    let sent = stream.write_all(body).and_then(|()| stream.flush());
    let mut answer = Vec::new();
    let received = stream.read_to_end(&mut answer);
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n");
    let Some(end) = end else {
        sent?;
        received?;
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    };
    let head = String::from_utf8_lossy(&answer[..end]).into_owned();
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    Ok(Answer { status, head, body: answer[end + 4..].to_vec() })
}

/// The present moment in milliseconds since 1970.
pub(crate) fn now_ms() -> i64 {
    cairn_store::now_ms()
}

pub(crate) const DAY_MS: i64 = 86_400_000;

/// A block with `rows` samples, whose counters follow from sender, number and row.
pub(crate) fn block(sender: &str, number: i64, rows: usize, end_ms: i64) -> Value {
    let stacks: Vec<Value> = (0..rows).map(|row| json!([[0, 4096 + 16 * row], [1, 100]])).collect();
    let samples: Vec<Value> = (0..rows as i64)
        .map(|row| {
            json!([row, 1000 * number + row, number, 7 * row, row, 3 * row, row / 2, 1, 2000 + row, row])
        })
        .collect();
    json!({
        "version": 1,
        "sender": sender,
        "number": number,
        "process": {
            "service": "web", "version": "1.4", "host": sender, "build_id": "0a0b", "command": "web --all",
            "labels": { "region": "eu" }, "started": end_ms - DAY_MS,
        },
        "slice": { "end": end_ms, "length": 600_000 },
        "modules": [
            { "path": "/srv/web", "build_id": "0a0b" },
            { "path": "/lib/libc.so.6", "build_id": "0c0d" },
        ],
        "stacks": stacks,
        "samples": samples,
    })
}

/// All samples of the store, one a line, in an order that follows from themselves.
pub(crate) fn samples(directory: &Path) -> String {
    done(
        directory,
        &[
            "sql",
            "store",
            "select day, host, t_end, slice_ms, stack_id, live_bytes, live_blocks, alloc_bytes, alloc_blocks, \
             freed_bytes, freed_blocks, temporary, peak_bytes, peak_blocks from samples \
             order by host, t_end, stack_id, live_bytes",
            "--format",
            "csv",
        ],
    )
}
