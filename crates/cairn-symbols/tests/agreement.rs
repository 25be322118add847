//! The same lines as binutils' `addr2line` (which is where the linker is), all over this test's own program.

use std::io::Write;
use std::path::{Component, Path};
use std::process::{Command, Stdio};

use cairn_format::StatedAddress;
use cairn_symbols::{Lookup, Symbolizer, SymbolizerOptions};

#[test]
fn lines_agree_with_addr2line() {
    let program = std::env::current_exe().unwrap();
    let mut symbolizer = Symbolizer::new(SymbolizerOptions::new());
    let module = symbolizer.add_file(&program).unwrap();
    let end = std::fs::metadata(&program).unwrap().len();
    let known = |address: &u64| {
        let answer = symbolizer.resolve(module, Lookup::stated(StatedAddress::new(*address)));
        answer.frames().first().is_some_and(|frame| frame.line.is_some())
    };
    let addresses: Vec<u64> = (0..end).step_by(997).filter(known).collect();
    assert!(addresses.len() > 300, "{}", addresses.len());

    let mut peer = Command::new("addr2line");
    peer.arg("-e").arg(&program);
    let mut peer = peer.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("addr2line of binutils");
    let asked: String = addresses.iter().map(|address| format!("{address:#x}\n")).collect();
    let mut input = peer.stdin.take().unwrap();
    let writer = std::thread::spawn(move || input.write_all(asked.as_bytes()).unwrap());
    let output = String::from_utf8(peer.wait_with_output().unwrap().stdout).unwrap();
    writer.join().unwrap();

    let mut differences = Vec::new();
    for (&address, theirs) in addresses.iter().zip(output.lines()) {
        let answer = symbolizer.resolve(module, Lookup::stated(StatedAddress::new(address)));
        let frame = &answer.frames()[0];
        let ours = format!("{}:{}", plain(frame.file.as_deref().unwrap_or("??")), frame.line.unwrap());
        let theirs = theirs.split(" (disc").next().unwrap();
        let (file, line) = theirs.rsplit_once(':').unwrap();
        if ours != format!("{}:{line}", plain(file)) {
            differences.push(format!("{address:#x}: {ours}, addr2line {theirs}"));
        }
    }
    assert_eq!(output.lines().count(), addresses.len());
    assert!(differences.is_empty(), "{} of {}: {differences:#?}", differences.len(), addresses.len());
}

/// A path without `.` and with `..` worked off.
fn plain(path: &str) -> String {
    let mut parts: Vec<String> = Vec::new();
    for part in Path::new(path).components() {
        match part {
            Component::ParentDir => drop(parts.pop()),
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
            Component::Normal(name) => parts.push(name.to_string_lossy().into_owned()),
        }
    }
    parts.join("/")
}
