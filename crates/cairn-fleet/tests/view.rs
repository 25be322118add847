//! The page over a selection: what it serves has the sums of the store.

mod members;
mod program;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Stdio;

use members::{command, done, generate, wait_for};
use serde_json::Value;

/// Asks the page; returns the body of its answer.
fn fetched(address: &str, path: &str) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
    let head = String::from_utf8_lossy(&answer[..end]).into_owned();
    assert!(head.starts_with("HTTP/1.1 200"), "{path}: {head}");
    answer.split_off(end + 4)
}

#[test]
fn page_of_a_selection_has_the_sums_of_the_store() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    generate(directory, 24);
    let where_it_is = std::fs::File::create(directory.join("url")).unwrap();
    let mut page = command(directory, &["view", "store", "--where", "service = 'service-01'"])
        .env("TMPDIR", directory)
        .stdout(where_it_is)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let url = wait_for("the address of the page", || {
        let url = std::fs::read_to_string(directory.join("url")).ok()?;
        Some(url.strip_suffix('\n')?.to_owned())
    });
    let (address, token) = url.trim_start_matches("http://").split_once('/').unwrap();
    let token = token.split('/').next().unwrap();
    let content = fetched(address, &format!("/{token}/api/1/recordings/selection/content"));
    let bytes = u32::from_le_bytes(content[..4].try_into().unwrap()) as usize;
    let content: Value = serde_json::from_slice(&content[4..4 + bytes]).unwrap();
    let query = "select sum(live_bytes) as live_bytes, sum(live_blocks) as live_blocks from samples \
                 where service = 'service-01' and t_end = (select max(t_end) from samples)";
    let sums = done(directory, &["sql", "store", query, "--format", "json"]);
    let sums: Value = serde_json::from_str(sums.lines().next().unwrap()).unwrap();
    assert_eq!(content["totals"]["leaked_bytes"], sums["live_bytes"], "{}", content["totals"]);
    assert_eq!(content["totals"]["leaked_blocks"], sums["live_blocks"]);
    assert!(
        content["strings"]
            .as_array()
            .unwrap()
            .iter()
            .any(|text| { text.as_str().is_some_and(|text| text.starts_with("service_01::handle_")) })
    );

    // Nothing is left of it.
    let process = page.id().to_string();
    assert!(std::process::Command::new("kill").arg(&process).status().unwrap().success());
    assert!(page.wait().unwrap().success());
    assert!(!directory.join(format!("cairn-fleet-view-{process}")).exists());
}
