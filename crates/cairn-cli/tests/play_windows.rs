//! Recordings of the demo `host.exe`, made by the recorder on Windows: names from DWARF and from
//! PDB files, the history of the modules, and the same as a recording of call-stack-tracker.

use std::path::{Path, PathBuf};
use std::process::Output;

use snapbox::cmd::{Command, cargo_bin};

const KINDS: [&str; 2] = ["dwarf", "pdb"];

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/windows-host")
}

fn recording(kind: &str) -> PathBuf {
    fixtures().join(kind).with_extension("cairn")
}

fn cairn(arguments: &[&str], files: &[&Path]) -> Output {
    let output = Command::new(cargo_bin!("cairn")).args(arguments).args(files).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

fn text(output: Output) -> String {
    String::from_utf8(output.stdout).unwrap()
}

/// The stacks that `cairn play` prints, each from the marked place to the host's own function.
fn stacks(recording: &Path, kind: &str) -> Vec<String> {
    let symbols = fixtures().join(kind);
    let printed = text(cairn(&["play", "--stacks"], &[recording, Path::new("--symbols"), &symbols]));
    let stacks = printed.split("\n}\n").filter(|stack| !stack.trim().is_empty());
    let inner = |stack: &str| {
        let lines: Vec<&str> = stack.trim_start().lines().skip(1).map(str::trim_start).collect();
        let is_of_host = |line: &&str| line.starts_with("\"host.exe\"");
        let end = lines.iter().skip(1).position(is_of_host).map_or(1, |place| place + 1);
        lines[..end].join("\n")
    };
    stacks.map(inner).collect()
}

#[test]
fn a_recording_of_windows_has_names_and_lines() {
    // Names in DWARF have parameters only where the linker's name of the function has them.
    let parameters = [
        "(void (*)(char const*), char const*)",
        "(void (*)(void (*)(char const*), char const*), void (*)(char const*), char const*)",
    ];
    for kind in KINDS {
        let is_pdb = kind == "pdb";
        let [one, three] = parameters.map(|text| if is_pdb { text } else { "" });
        let inner = if is_pdb { "测试::inner(void (*)(char const*), char const*)" } else { "inner" };
        let bar = format!(
            "\"bar.dll\"! /build/./bar.cpp(10): Bar::call(void (*)(char const*), char const*) const\n\
             \"bar.dll\"! /build/./bar.cpp(16): bar{three}"
        );
        let marked = "\"host.exe\"! 0x1400047cc: host.exe+0x47cc";
        let foo = format!(
            "{marked}\n\
             \"foo测试.dll\"! /build/./foo测试.cpp(9): {inner} [inlined]\n\
             \"foo测试.dll\"! /build/./foo测试.cpp(14): 测试::middle(void (*)(char const*), char const*)\n\
             \"foo测试.dll\"! /build/./foo测试.cpp(21): foo测试{one}\n{bar}"
        );
        let found = stacks(&recording(kind), kind);
        assert_eq!(found.len(), 6, "{found:#?}");
        assert_eq!(found[0], foo, "{kind}: foo through bar");
        assert!(found[1].starts_with("\"host.exe\"!") && !found[1].contains("foo"), "{kind}: foo is gone");
        assert_eq!(found[2], format!("{marked}\n\"\"! 0x6e5f0010: \n{bar}"), "{kind}: code without a file");
        let deeper = format!("deeper{one}");
        assert_eq!(
            found[3],
            format!(
                "{marked}\n\"qux.dll\"! /build/./qux.cpp(6): {deeper}\n\
                 \"qux.dll\"! /build/./qux.cpp(11): qux{one}\n{bar}"
            ),
            "{kind}: qux where foo was"
        );
        assert_eq!(found[4], foo, "{kind}: foo elsewhere");
    }
}

#[test]
fn modules_of_windows_come_and_go() {
    for kind in KINDS {
        let printed = text(cairn(&["play", "--modules"], &[&recording(kind)]));
        let rows: Vec<Vec<&str>> = printed.lines().map(|line| line.split_whitespace().collect()).collect();
        let of = |name: &'static str| rows.iter().filter(move |row| row.len() == 6 && row[5].ends_with(name));
        let foo: Vec<_> = of("foo测试.dll").collect();
        let (qux, bar): (Vec<_>, Vec<_>) = (of("qux.dll").collect(), of("bar.dll").collect());
        assert_eq!((foo.len(), qux.len(), bar.len()), (2, 1, 1), "{printed}");
        assert_eq!(foo[0][3], qux[0][3], "qux lies where foo was");
        assert_ne!(foo[0][3], foo[1][3]);
        assert_eq!(foo[0][4], foo[1][4], "both loads are of one build");
        let seconds = |text: &str| text.parse::<f64>().unwrap();
        let moments: Vec<f64> =
            [bar[0][1], foo[0][1], foo[0][2], qux[0][1], foo[1][1], foo[1][2], qux[0][2], bar[0][2]]
                .map(seconds)
                .to_vec();
        assert!(moments.is_sorted(), "{moments:?}");
        // The host itself, and a library of the system.
        assert_eq!(of("host.exe").count(), 1);
        assert!(of("ntdll.dll").next().is_some_and(|row| row[2] == "-" && row[4] != "-"));
    }
}

#[test]
fn export_for_call_stack_tracker_is_played_alike() {
    for kind in KINDS {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("windows-{kind}.tracker"));
        let _ = std::fs::remove_file(&path);
        let output = cairn(&["export", "--format", "tracker", "-o"], &[&path, &recording(kind)]);
        let losses = String::from_utf8(output.stderr).unwrap();
        assert!(losses.contains("6 marks had a text"), "{losses}");
        let (own, exported) = (stacks(&recording(kind), kind), stacks(&path, kind));
        assert_eq!(own, exported);
        let whole = |recording: &Path| {
            let printed = text(cairn(&["play", "--no-symbols", "--stacks"], &[recording]));
            printed.lines().filter(|line| line.starts_with(' ')).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(whole(&recording(kind)), whole(&path));
        let paths = |recording: &Path| {
            let printed = text(cairn(&["play", "--no-symbols"], &[recording]));
            let changes =
                printed.lines().filter(|line| line.contains(": loaded ") || line.contains(": unloaded "));
            changes.map(|line| line.split_once("loaded ").unwrap().1.to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(paths(&recording(kind)), paths(&path));
        // The reference has two bytes for a unit on Windows.
        let bytes = std::fs::read(&path).unwrap();
        let name: Vec<u8> = "foo测试.dll".encode_utf16().flat_map(u16::to_le_bytes).collect();
        assert!(bytes.windows(name.len()).any(|window| window == name));
    }
}
