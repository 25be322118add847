//! `cairn view` as a user starts it, with a program that runs: its requests see it grow, and make
//! it stop.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

#[path = "../../cairn-web/tests/support/client.rs"]
mod client;
#[allow(dead_code, reason = "this file needs a part of it")]
mod support;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use client::Server;
use support::{cairn, compile, scratch};

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures");

const PATIENCE: Duration = Duration::from_secs(60);

/// Ends its process with the test, however that ends.
struct Running(Child);

impl Running {
    fn signal(&self, name: &str) {
        let _ = Command::new("kill").args([name, &self.0.id().to_string()]).stderr(Stdio::null()).status();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn view(words: &[&str], directory: &Path) -> (Running, Server) {
    let mut command = cairn();
    command.args(["view", "--no-open", "--no-cache"]).args(words).current_dir(directory);
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let server = Server::at(&line);
    assert!(server.address.ip().is_loopback());
    (Running(child), server)
}

fn until(what: &str, mut check: impl FnMut() -> bool) {
    let began = Instant::now();
    while !check() {
        assert!(began.elapsed() < PATIENCE, "{what} did not come");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn view_follows_and_controls_a_running_program() {
    let directory = scratch("view-live");
    let program = compile(&directory, "steady.c", "program", &[]);
    let mut command = cairn();
    // It ends by itself, should the test not come to that.
    command
        .args(["heap", "--quiet", "--output", "live.cairn", "--"])
        .arg(&program)
        .args(["20000", "4", "100"]);
    let recorder = command.current_dir(&directory).stdin(Stdio::null()).stdout(Stdio::null());
    let recorder = Running(recorder.spawn().unwrap());
    until("the recording", || directory.join("live.cairn").exists());
    let (mut viewer, server) = view(&["."], &directory);
    let state = || server.get("recordings/live.cairn").json();
    until("the state", || state()["state"] == "recording");
    let process = state()["process"].as_u64().unwrap().to_string();
    let mut known = String::new();
    let mut allocations = || {
        let answer = server.get(&format!("recordings/live.cairn/content?known={known}"));
        if answer.status == 200 {
            known = answer.header("cairn-version").unwrap().to_owned();
            let object = answer.object();
            return Some((object["totals"]["allocations"].as_u64().unwrap(), object["marks"].to_string()));
        }
        assert_eq!(answer.status, 204);
        None
    };
    let first = allocations().unwrap().0;
    until("news", || allocations().is_some_and(|(count, _)| count > first));
    // The process is named as well as the file.
    let (_other, by_process) = view(&[&process], &directory);
    assert_eq!(by_process.get("recordings").json()["recordings"][0]["id"], "live.cairn");

    assert_eq!(server.post("recordings/live.cairn/stop", b"").status, 200);
    until("the stop", || state()["state"] == "paused");
    assert_eq!(server.post("recordings/live.cairn/start", b"").status, 200);
    until("the start", || state()["state"] == "recording");
    assert_eq!(server.post("recordings/live.cairn/mark", b"<b>now</b>").status, 200);
    until("the mark", || allocations().is_some_and(|(_, marks)| marks.contains("<b>now</b>")));

    let _ = Command::new("kill").arg(&process).status();
    until("its end", || state()["is_growing"] == false);
    until("the end of the recorder", || fs::metadata(directory.join("live.cairn.new")).is_err());
    until("the whole", || server.get("recordings/live.cairn/content").status == 200);
    assert_eq!(server.post("recordings/live.cairn/stop", b"").status, 409);
    drop(recorder);

    viewer.signal("-INT");
    until("the end of the view", || viewer.0.try_wait().unwrap().is_some());
    assert!(viewer.0.wait().unwrap().success(), "Ctrl-C is how it ends");
}

// Failed before: unknown options, and functions were refused.
#[test]
fn view_begins_with_the_part_that_options_choose() {
    let directory = scratch("view-options");
    for name in ["one.cairn", "two.cairn"] {
        fs::copy(format!("{FIXTURES}/recordings/v1/packed.cairn"), directory.join(name)).unwrap();
    }
    let url = |words: &[&str]| {
        let mut command = cairn();
        command.args(["view", "--no-open", "--no-symbols"]).args(words).current_dir(&directory);
        let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut running = Running(command.spawn().unwrap());
        let mut line = String::new();
        BufReader::new(running.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        line.trim_end().split_once('#').map_or_else(String::new, |(_, state)| state.to_owned())
    };
    for (words, state) in [
        (&["one.cairn"][..], ""),
        (&["one.cairn", "--from", "1ms", "--to", "2ms"], "from=1000000&to=2000000"),
        (&["one.cairn", "--at", "5us"], "to=5000"),
        (&["one.cairn", "--limit", "7"], "limit=7"),
        (&["one.cairn", "-n", "2.5%"], "limit=2.5%25"),
        (&["one.cairn", "--full"], "limit=all"),
        (
            &["one.cairn", "--filter", "function=load *", "--filter", "module=lib*"],
            "function=load%20%2A&module=lib%2A",
        ),
        (
            &["one.cairn", "two.cairn", "--filter", "thread=a", "--filter", "size=1KiB.."],
            "thread=a&size=1024-18446744073709551615",
        ),
    ] {
        assert_eq!(url(words), state, "{words:?}");
    }
    // The peak is a time of the recording.
    let peak = url(&["one.cairn", "--at", "peak"]);
    assert!(peak.strip_prefix("to=").is_some_and(|nanos| nanos.parse::<u64>().unwrap() > 0), "{peak}");
    for (words, why) in [
        (&["one.cairn", "two.cairn", "--from", "1s"][..], "choose a part of one file"),
        (&[".", "--at", "peak"], "choose a part of one file"),
        (&["one.cairn", "--filter", "thread=a", "--filter", "thread=b"], "one filter of each kind"),
        (&["one.cairn", "--from", "2s", "--to", "1s"], "the earlier time comes first"),
        (&["one.cairn", "--full", "--limit", "3"], "cannot be used with"),
    ] {
        let output =
            cairn().args(["view", "--no-open"]).args(words).current_dir(&directory).output().unwrap();
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(complaint.contains(why) && output.status.code() == Some(2), "{words:?}: {complaint}");
    }
}

#[test]
fn view_names_a_file_that_it_cannot_show() {
    let directory = scratch("view-refused");
    fs::write(directory.join("notes.txt"), "no recording").unwrap();
    for (words, expected) in [
        (&["nowhere.cairn"][..], "nowhere.cairn: "),
        (&["notes.txt"], "notes.txt: "),
        (&["4294967295"], "no process 4294967295"),
        (&[".", "."], "a directory is shown by itself"),
        (&[".", "--source", "nowhere"], "nowhere: "),
    ] {
        let output =
            cairn().args(["view", "--no-open"]).args(words).current_dir(&directory).output().unwrap();
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(complaint.contains(expected), "{words:?}: {complaint}");
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{words:?}");
    }
}

#[test]
fn view_refuses_a_taken_port_and_listens_on_ipv6() {
    let directory = scratch("view-port");
    let (_first, server) = view(&["."], &directory);
    let port = server.address.port().to_string();
    let output =
        cairn().args(["view", "--no-open", "--port", &port, "."]).current_dir(&directory).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        String::from_utf8_lossy(&output.stderr).contains(&format!("127.0.0.1:{port} cannot be listened at"))
    );
    if std::net::TcpListener::bind("[::1]:0").is_ok() {
        let (_second, six) = view(&[".", "--ipv6"], &directory);
        assert!(six.address.is_ipv6());
        assert_eq!(six.get("recordings").status, 200);
    }
}
