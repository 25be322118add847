//! `cairn pack` as a user runs it.

use std::fs;
use std::path::PathBuf;

use cairn_recording::Recording;
use snapbox::cmd::{Command, cargo_bin};
use snapbox::str;

fn cairn() -> Command {
    Command::new(cargo_bin!("cairn")).env("NO_COLOR", "1")
}

fn directory(name: &str) -> PathBuf {
    let directory = std::env::temp_dir().join(format!("cairn-pack-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory).unwrap();
    directory
}

fn spool() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/recordings/v1/spool.cairn")
}

#[test]
fn pack_writes_beside_the_spool_and_replaces_nothing() {
    let directory = directory("beside");
    let (from, to) = (directory.join("program.spool"), directory.join("program.cairn"));
    fs::copy(spool(), &from).unwrap();
    cairn().arg("pack").arg(&from).assert().success().stdout_eq("");
    assert!(fs::metadata(&to).unwrap().len() * 10 < fs::metadata(&from).unwrap().len());
    assert!(Recording::open(&to).unwrap().totals().is_some());
    cairn().arg("pack").arg(&from).assert().code(1).stderr_eq(str![[r#"
...
cairn: [..]program.cairn: the file exists; name another one, or replace it with --force

"#]]);
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 2, "something was left behind");
    fs::remove_dir_all(directory).unwrap();
}

#[test]
fn a_pipe_in_and_a_pipe_out_are_fine() {
    let bytes = fs::read(spool()).unwrap();
    let output = cairn().args(["pack", "-o", "-", "-"]).stdin(bytes).output().unwrap();
    assert!(output.status.success());
    assert!(Recording::from_bytes(output.stdout).unwrap().totals().is_some());
}

#[test]
fn wrong_files_are_reported_with_their_name() {
    cairn().args(["pack", "-o", "-", "-"]).stdin("hello").assert().code(1).stderr_eq(str![[r#"
cairn: -: no cairn recording: it begins with other bytes

"#]]);
}

#[test]
fn pack_reports_unreadable_events_and_packs_the_others() {
    let whole = fs::read(spool().with_file_name("packed-stream.cairn")).unwrap();
    let chunk = whole.windows(4).position(|kind| kind == b"HEP2").unwrap();
    let mut damaged = whole;
    damaged[chunk + 40] ^= 1;
    let output = cairn().args(["pack", "-o", "-", "-"]).stdin(damaged).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("note: chunk HEP2 at byte "), "{errors}");
    let packed = Recording::from_bytes(output.stdout).unwrap();
    assert!(packed.totals().is_some_and(|totals| totals.marks > 0));
}
