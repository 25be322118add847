//! Connections that send nothing, too little or take nothing: a request beside them is answered all
//! the same.
//!
//! The server waits an hour for a header in these tests, and an hour for a connection as a whole,
//! so that a timeout answers none of them: a request that is answered has not waited for one.

#[path = "support/client.rs"]
mod client;
#[path = "support/programs.rs"]
mod programs;

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::Duration;

use cairn_web::view::{Shown, View, ViewOptions};
use client::Server;

fn serve(name: &str) -> (Server, PathBuf) {
    let directory = std::env::temp_dir().join(format!("cairn-view-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::write(directory.join("ordinary.cairn"), &programs::ordinary().bytes).unwrap();
    let mut options = ViewOptions::new(Shown::Directory(directory.clone()));
    options.source.symbols = None;
    options.header_time = Duration::from_secs(3600);
    let view = View::bind(options).unwrap();
    let server = Server::at(&view.url());
    std::thread::spawn(move || view.run());
    (server, directory)
}

/// Opens up to `count` connections and sends these bytes on each; stops at the system's limit.
fn connections(server: &Server, count: usize, sends: &[u8]) -> Vec<TcpStream> {
    let mut all = Vec::new();
    for _ in 0..count {
        match TcpStream::connect(server.address) {
            Ok(mut stream) => {
                // One that was closed already to make room takes nothing.
                let _ = stream.write_all(sends);
                all.push(stream);
            }
            Err(error) => {
                let _ = writeln!(std::io::stderr(), "only {} connections: {error}", all.len());
                break;
            }
        }
    }
    all
}

fn is_open(stream: &mut TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    matches!(stream.read(&mut [0; 16]), Err(error) if error.kind() == ErrorKind::WouldBlock)
}

/// Limits connections to leave descriptors for answers: this process is the server as well.
fn most_connections(wanted: usize) -> usize {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let files = limits.lines().find(|line| line.starts_with("Max open files"));
    let soft = files.and_then(|line| line.split_whitespace().nth(3)?.parse::<usize>().ok()).unwrap_or(1024);
    wanted.min(soft.saturating_sub(256))
}

fn check(name: &str, count: usize, sends: impl Fn(&Server) -> Vec<u8>) {
    let (server, directory) = serve(name);
    let mut all = connections(&server, most_connections(count), &sends(&server));
    assert!(all.len() >= count.min(300), "{}", all.len());
    assert_eq!(server.get("recordings").status, 200);
    // Those that came last are there still: no timeout has made room.
    assert!(is_open(all.last_mut().unwrap()));
    assert_eq!(server.get("recordings").status, 200);
    drop(all);
    std::fs::remove_dir_all(directory).unwrap();
}

// Failed with: no answer within the minute that the client waits, and after 15 seconds for each 128
// connections by default.
#[test]
fn request_is_answered_beside_300_silent_connections() {
    check("silent", 300, |_| Vec::new());
}

// Failed with: as above.
#[test]
fn request_is_answered_beside_5000_silent_connections() {
    check("silent-5000", 5000, |_| Vec::new());
}

// Failed with: as above.
#[test]
fn request_is_answered_beside_300_cut_headers() {
    check("cut-headers", 300, |server| {
        format!("GET /{}/ HTTP/1.1\r\nHost: {}\r\nX-Slow: ", server.token, server.address).into_bytes()
    });
}

// Failed with: as above. These have the token, and do not take their answer.
#[test]
fn request_is_answered_beside_300_slow_readers() {
    let (server, directory) = serve("slow-readers");
    let page = format!("GET /{}/ HTTP/1.1\r\nHost: {}\r\n\r\n", server.token, server.address);
    let all = connections(&server, 300, page.repeat(40).as_bytes());
    assert_eq!(server.get("recordings").status, 200);
    drop(all);
    std::fs::remove_dir_all(directory).unwrap();
}

// Failed with: as above; a request without the token does not make a connection one of the user's.
#[test]
fn user_connection_stays_beside_300_refused_ones() {
    let (server, directory) = serve("refused");
    let mut own = TcpStream::connect(server.address).unwrap();
    own.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let request = |token: &str| {
        format!(
            "GET /api/1/recordings HTTP/1.1\r\nHost: {}\r\nX-Cairn-Token: {token}\r\n\r\n",
            server.address
        )
    };
    let ask = |own: &mut TcpStream| {
        own.write_all(request(&server.token).as_bytes()).unwrap();
        let (mut head, mut byte) = (Vec::new(), [0]);
        while !head.ends_with(b"\r\n\r\n") {
            own.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        let head = String::from_utf8(head).unwrap();
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
        own.read_exact(&mut vec![0; length.parse().unwrap()]).unwrap();
    };
    ask(&mut own);
    let all = connections(&server, 300, request("wrong").as_bytes());
    assert_eq!(server.get("recordings").status, 200);
    // The connection was not closed for them.
    ask(&mut own);
    drop(all);
    std::fs::remove_dir_all(directory).unwrap();
}
