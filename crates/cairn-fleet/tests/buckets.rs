//! Stores in a bucket of a real server for S3 (moto), whose address is in the environment.
//!
//! moto is a package of Python: `cargo xtask fleet` installs it, and names the interpreter in
//! `CAIRN_FLEET_PYTHON`; without it the tests that need it are skipped.

#![allow(clippy::print_stdout, reason = "a skipped test says so")]

mod program;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Output};
use std::time::{Duration, Instant};

/// A server with a bucket `fleet`.
struct Server {
    child: Child,
    port: u16,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    fn start() -> Option<Self> {
        let Some(python) = program::python() else {
            println!("skipped: CAIRN_FLEET_PYTHON names no python with moto");
            return None;
        };
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let child = Command::new(python)
            .args(["-m", "moto.server", "-H", "127.0.0.1", "-p", &port.to_string()])
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let server = Self { child, port };
        let end = Instant::now() + Duration::from_secs(300);
        while !server.make_bucket() {
            assert!(Instant::now() < end, "moto does not answer");
            std::thread::sleep(Duration::from_millis(100));
        }
        Some(server)
    }

    fn make_bucket(&self) -> bool {
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.port)) else { return false };
        let request = format!(
            "PUT /fleet HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nAuthorization: AWS4-HMAC-SHA256 \
             Credential=test/20261127/us-east-1/s3/aws4_request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
            self.port
        );
        let mut answer = String::new();
        stream.write_all(request.as_bytes()).is_ok()
            && stream.read_to_string(&mut answer).is_ok()
            && answer.starts_with("HTTP/1.1 200")
    }
}

fn fleet(port: u16, arguments: &[&str]) -> Command {
    let mut command = program::command(Path::new("."), arguments);
    command
        .env("AWS_ENDPOINT", format!("http://127.0.0.1:{port}"))
        .env("AWS_ALLOW_HTTP", "true")
        .env("AWS_REGION", "us-east-1")
        .env("AWS_ACCESS_KEY_ID", "test")
        .env("AWS_SECRET_ACCESS_KEY", "test");
    command
}

fn done(mut command: Command) -> String {
    let output: Output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

const QUESTIONS: &[&[&str]] = &[
    &["top", "STORE", "--format", "csv"],
    &["leaks", "STORE", "--format", "csv"],
    &["growth", "STORE", "--from", "1.4", "--to", "1.5", "--format", "csv"],
    &[
        "sql",
        "STORE",
        "select count(*), sum(live_bytes) from samples where region = 'eu-west'",
        "--format",
        "csv",
    ],
];

/// Answers to all questions.
fn answers(port: u16, store: &str) -> Vec<String> {
    let ask = |question: &&[&str]| {
        let words: Vec<&str> =
            question.iter().map(|&word| if word == "STORE" { store } else { word }).collect();
        done(fleet(port, &words))
    };
    QUESTIONS.iter().map(ask).collect()
}

#[test]
fn a_store_in_a_bucket_answers_as_one_in_a_directory() {
    let Some(server) = Server::start() else { return };
    let directory = tempfile::tempdir().unwrap();
    let local = directory.path().join("store").display().to_string();
    let sizes = ["--hosts", "24", "--services", "2", "--stacks", "40", "--stacks-of-host", "10"];
    let bucket = "s3://fleet/production/heap";
    for store in [local.as_str(), bucket] {
        let arguments: Vec<&str> = ["generate", store].into_iter().chain(sizes).collect();
        done(fleet(server.port, &arguments));
    }
    let expected = answers(server.port, &local);
    assert_eq!(answers(server.port, bucket), expected);
    let again = fleet(server.port, &["init", bucket]).output().unwrap();
    assert!(String::from_utf8_lossy(&again.stderr).contains("other files are here"), "{again:?}");

    // Maintenance of two at once: one of them may be refused, and no row is lost or doubled.
    let compact = || fleet(server.port, &["compact", bucket]).spawn().unwrap();
    for mut child in [compact(), compact()] {
        child.wait().unwrap();
    }
    done(fleet(server.port, &["compact", bucket]));
    done(fleet(server.port, &["check", bucket]));
    done(fleet(server.port, &["expire", bucket, "--older", "36500d", "--unnamed-older", "0s"]));
    assert_eq!(answers(server.port, bucket), expected);
    let missing = fleet(server.port, &["top", "s3://fleet/nothing"]).output().unwrap();
    assert!(String::from_utf8_lossy(&missing.stderr).contains("there is no store here"), "{missing:?}");
}

/// Serves as an object store that ignores conditions, until the test ends.
fn careless_store() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.unwrap());
            let mut head = String::new();
            while stream.read_line(&mut head).is_ok_and(|bytes| bytes > 2) {}
            let length = head.lines().find_map(|line| {
                let (name, value) = line.split_once(": ")?;
                name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
            });
            let mut body = vec![0; length.unwrap_or(0)];
            stream.read_exact(&mut body).unwrap();
            let listing = "<?xml version=\"1.0\"?><ListBucketResult><KeyCount>0</KeyCount>\
                           <IsTruncated>false</IsTruncated></ListBucketResult>";
            let (status, text) = match head.split(' ').next() {
                Some("GET") => ("200 OK", listing),
                Some("POST") => ("200 OK", "<DeleteResult></DeleteResult>"),
                _ => ("200 OK", ""),
            };
            let answer = format!(
                "HTTP/1.1 {status}\r\nETag: \"1\"\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{text}",
                text.len()
            );
            stream.get_mut().write_all(answer.as_bytes()).unwrap();
        }
    });
    port
}

#[test]
fn an_object_store_that_ignores_conditions_is_refused() {
    let output = fleet(careless_store(), &["init", "s3://fleet/heap"]).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("replaces objects although it is asked not to"), "{errors}");
}
