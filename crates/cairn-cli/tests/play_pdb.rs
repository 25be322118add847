//! A recording from Windows, named by a program and its PDB file, and by a PDB file alone.

use std::fs;
use std::path::{Path, PathBuf};

use cairn_format::{AbsoluteAddress, SliceSink};
use cairn_wire::tracker::{TrackerLayout, Writer};
use snapbox::cmd::{Command, cargo_bin};
use snapbox::str;

/// Load address of the program; it states 0x140000000.
const BASE: u64 = 0x7ff6_1000_0000;

fn recording() -> PathBuf {
    let at = |offset| AbsoluteAddress::new(BASE + offset);
    let mut buffer = [0; 300];
    let mut writer = Writer::new(SliceSink::new(&mut buffer), TrackerLayout::WINDOWS_64);
    writer.module_loaded(1_523_217_944_000_000_000, r"C:\测试\program.exe", at(0), 0x5000).unwrap();
    // Return addresses: of the second one, the byte before belongs to the call's line.
    let stack = [at(0x1009), at(0x10e4 + 6), at(0x10b0), AbsoluteAddress::new(0x7ffd_0000_1234)];
    writer.stack(1_523_217_944_000_001_000, stack).unwrap();
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("windows.rec");
    fs::write(&path, writer.into_sink().into_written()).unwrap();
    path
}

fn symbols(name: &str, files: &[&str]) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::create_dir_all(&directory).unwrap();
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/symbol-kinds/pdb");
    for file in files {
        fs::copy(fixtures.join(file), directory.join(file)).unwrap();
    }
    directory
}

#[test]
fn a_windows_recording_has_names_by_its_pdb_file() {
    for (directory, files, used) in [
        ("with-program", &["program.exe", "program.pdb"][..], "program.exe"),
        ("pdb-alone", &["program.pdb"], "program.pdb"),
    ] {
        // Without it, `.exe` of the recorded module would count as that of programs here.
        let assert = snapbox::Assert::new().action_env(snapbox::assert::DEFAULT_ACTION_ENV);
        let cairn =
            Command::new(cargo_bin!("cairn")).with_assert(assert.redact_with(snapbox::Redactions::new()));
        let play = cairn.arg("play").arg(recording()).arg("--stacks");
        let play = play.arg("--symbols").arg(symbols(directory, files)).assert().success();
        let play = play.stdout_eq(str![[r#"
Sun Apr  8 20:05:44 2018.000001: {
    "program.exe"! /build/./scale.h(14): shapes::Scale<int>::once(int) const [inlined]
    "program.exe"! /build/./scale.h(18): shapes::Scale<int>::twice(int) const [inlined]
    "program.exe"! /build/program.cpp(12): shapes::area(int, int)
    "program.exe"! /build/program.cpp(34): shapes::`anonymous namespace'::hidden(int)
    "program.exe"! /build/program.cpp(51): mainCRTStartup()
    ""! 0x7ffd00001234: 
}

"#]]);
        let answer = format!(
            "cairn: program.exe: names are those of [..]/{used}; whether that is the same build is not recorded\n"
        );
        play.stderr_eq(answer);
    }
}
