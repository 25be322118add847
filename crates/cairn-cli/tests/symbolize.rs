//! `cairn symbolize` as a user runs it, and as addr2line and llvm-symbolizer are run.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use snapbox::cmd::cargo_bin;
use snapbox::{file, str};

fn fixtures() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/symbol-kinds")
}

/// A path where no directory can be made: no test leaves anything for the next.
const NO_CACHE: &str = "/dev/null/no-cache";

fn cairn() -> snapbox::cmd::Command {
    snapbox::cmd::Command::new(cargo_bin!("cairn"))
        .current_dir(fixtures())
        .env("COLUMNS", "100")
        .env("NO_COLOR", "1")
        .env("XDG_CACHE_HOME", NO_CACHE)
        .env("LOCALAPPDATA", NO_CACHE)
        .arg("symbolize")
}

/// Runs the command under another name, as a link to it does.
fn run_as(name: &str, arguments: &[&str], directory: &Path, input: &Path) -> Output {
    let file = format!("cairn-link-{}-{name}{}", std::process::id(), std::env::consts::EXE_SUFFIX);
    let link = std::env::temp_dir().join(file);
    #[cfg(unix)]
    let _ = std::os::unix::fs::symlink(cargo_bin!("cairn"), &link);
    // Links take a right on Windows that most users lack: they copy the program.
    #[cfg(windows)]
    let _ = link.exists() || fs::copy(cargo_bin!("cairn"), &link).is_ok();
    let mut command = Command::new(&link);
    command
        .env("XDG_CACHE_HOME", NO_CACHE)
        .env("LOCALAPPDATA", NO_CACHE)
        .args(arguments)
        .current_dir(directory)
        .stdin(fs::File::open(input).unwrap());
    command.output().unwrap()
}

#[test]
fn help_is_what_the_snapshot_shows() {
    cairn().arg("--help").assert().success().stdout_eq(file!["snapshots/symbolize-help.txt"]);
}

/// Each golden file begins with a command and its input; behind that is what the real tool printed.
#[test]
fn the_output_is_that_of_addr2line_and_llvm_symbolizer() {
    let directory = fixtures().join("elf");
    let mut compared = 0;
    for entry in fs::read_dir(&directory).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "golden") {
            continue;
        }
        let golden = fs::read_to_string(&path).unwrap();
        let (command, expected) = golden.split_once('\n').unwrap();
        let (command, input) = command.split_once(" < ").unwrap();
        let words: Vec<&str> = command.split(' ').collect();
        let name = if words[0] == "addr2line" { "addr2line" } else { "llvm-symbolizer" };
        let output = run_as(name, &words[1..], &directory, &directory.join(input));
        assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
        let printed = String::from_utf8(output.stdout).unwrap();
        assert_eq!(printed, expected, "{command}");
        compared += 1;
    }
    assert!(compared >= 26, "{compared} golden files");
}

#[test]
fn other_tools_are_asked_for_their_version_before_they_are_used() {
    let input = fixtures().join("elf/addresses");
    for (name, option) in [("addr2line", "-v"), ("addr2line", "--version"), ("llvm-symbolizer", "--version")]
    {
        let output = run_as(name, &[option], &fixtures(), &input);
        assert_eq!(
            String::from_utf8(output.stdout).unwrap(),
            concat!("cairn ", env!("CARGO_PKG_VERSION"), "\n")
        );
    }
}

#[test]
fn symbolize_prints_as_addr2line_for_its_short_options() {
    cairn().args(["-fpiCe", "elf/dwarf4.so", "1461", "99999999"]).assert().success().stdout_eq(str![[r#"
shapes::Scale<int>::once(int) const at /build/./scale.h:13
 (inlined by) shapes::Scale<int>::twice(int) const at /build/./scale.h:18
 (inlined by) shapes::area(int, int) at /build/program.cpp:12
?? ??:0

"#]]);
    cairn().args(["--addr2line", "-e", "elf/dwarf4.so", "1500"]).assert().success().stdout_eq(str![[r#"
/build/program.cpp:50

"#]]);
}

#[test]
fn symbolize_says_why_a_name_is_unknown() {
    cairn().args(["-e", "elf/dwarf4.so", "1461", "0x99999999"]).assert().code(3).stdout_eq(str![[r#"
0x1461 shapes::Scale<int>::once(int) const at /build/./scale.h:13:14
       inlined into shapes::Scale<int>::twice(int) const at /build/./scale.h:18:19
       inlined into shapes::area(int, int) at /build/program.cpp:12:24
0x99999999 ?? (the address is outside of the module's code)

"#]]);
    cairn().args(["--no-inlines", "-s", "-e", "elf/dwarf4.so", "1461"]).assert().success().stdout_eq(str![[
        r#"
0x1461 shapes::area(int, int) at scale.h:13:14

"#
    ]]);
}

#[test]
fn files_of_all_kinds_can_be_named_on_each_line() {
    let lines = "\
pdb/program.exe 0x140001015
'macho/macho-x86_64' 0x100000470
\"mingw/mingw.exe\" 14000101f
CODE breakpad/program.sym 1015
jit/perf-4242.map 7f5671fc5b80
FILE:elf/dwarf4.so 1500
";
    cairn().stdin(lines).assert().success().stdout_eq(str![[r#"
0x140001015 shapes::area(int, int) at /build/program.cpp:13
0x100000470 plain_c at /build/program.cpp:41
0x14000101f shapes::(anonymous namespace)::hidden(int) at /build/program.cpp:33:49
0x1015 shapes::area(int, int) at /build/program.cpp:13
0x7f5671fc5b80 JS:^fib /build/fib.js:1:13
0x1500 start_here at /build/program.cpp:50:45

"#]]);
}

#[test]
fn json_has_names_places_and_reasons() {
    cairn().args(["--json", "-e", "elf/dwarf4.so", "1500", "99999999"]).assert().code(3).stdout_eq(str![[r#"
{"schema":1,"file":"elf/dwarf4.so","address":"0x1500","frames":[{"function":"start_here","raw_name":"start_here","file":"/build/program.cpp","line":50,"column":45,"inlined":false}]}
{"schema":1,"file":"elf/dwarf4.so","address":"0x99999999","frames":[],"reason":"the address is outside of the module's code"}

"#]]);
}

#[test]
fn return_addresses_and_offsets_are_looked_up_where_they_belong() {
    // 0x140001015 is the first byte of line 13.
    let program = ["-e", "pdb/program.exe"];
    cairn().args(program).args(["--relative-address", "1015"]).assert().success().stdout_eq(str![[r#"
0x1015 shapes::area(int, int) at /build/program.cpp:13

"#]]);
    let before = cairn().args(program).args(["--return-addresses", "--no-inlines", "140001015"]);
    before.assert().success().stdout_eq(str![[r#"
0x140001015 shapes::area(int, int) at /build/./scale.h:14

"#]]);
}

#[test]
fn each_line_is_answered_before_the_next_one_is_asked() {
    let mut child = Command::new(cargo_bin!("cairn"))
        .args(["symbolize", "--no-cache", "--addr2line", "-e", "elf/dwarf4.so"])
        .current_dir(fixtures())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    for _ in 0..3 {
        input.write_all(b"1500\n").unwrap();
        let mut answer = String::new();
        output.read_line(&mut answer).unwrap();
        assert_eq!(answer, "/build/program.cpp:50\n");
    }
    drop(input);
    assert!(child.wait().unwrap().success());
}

#[test]
fn many_addresses_are_answered_in_their_order() {
    let asked: String =
        (0..50_000_u64).map(|number| format!("{:x}\n", 0x1460 + number * 7919 % 0x200)).collect();
    let output = cairn().args(["-afpiC", "-e", "elf/dwarf4.so"]).stdin(asked.clone()).output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    let addresses = printed.lines().filter_map(|line| line.strip_prefix("0x")?.split(':').next());
    let addresses: Vec<u64> = addresses.map(|digits| u64::from_str_radix(digits, 16).unwrap()).collect();
    let expected: Vec<u64> = asked.lines().map(|digits| u64::from_str_radix(digits, 16).unwrap()).collect();
    assert_eq!(addresses, expected);
}

#[test]
fn symbolize_reports_files_it_cannot_read() {
    cairn().args(["-e", "no/such.so", "1"]).assert().code(1).stdout_eq("").stderr_eq(str![[r#"
cairn: no/such.so: cannot read symbols: [..] (os error [..])

"#]]);
    cairn().args(["-e", "README.md", "1"]).assert().code(1).stderr_eq(str![[r#"
cairn: README.md: cannot read symbols: [..]

"#]]);
    cairn().args(["-j", ".nothing", "-e", "elf/dwarf4.so", "1"]).assert().code(1).stderr_eq(str![[r#"
cairn: elf/dwarf4.so: no section .nothing

"#]]);
    cairn().args(["-e", "elf/dwarf4.so"]).stdin("main\n1500\n").assert().code(1).stderr_eq(str![[r#"
cairn: standard input:1: 'main': not an address

"#]]);
    cairn().stdin("elf/dwarf4.so\n").assert().code(1).stderr_eq(str![[r#"
cairn: standard input:1: 'elf/dwarf4.so': no address behind the file; write FILE ADDRESS, or give the file with -e

"#]]);
    cairn().arg("1500").assert().code(2);
    cairn().arg("elf/dwarf4.so 1500").assert().success();
    cairn().args(["--addr2line", "--output-style=LLVM", "-e", "elf/dwarf4.so"]).assert().code(2);
}

#[test]
fn answers_are_the_same_with_a_directory_for_indexes() {
    let directory = std::env::temp_dir().join(format!("cairn-cache-{}", std::process::id()));
    let addresses: String = (0x1460..0x1600).map(|address| format!("{address:x}\n")).collect();
    let run = |options: &[&str]| {
        let cached = ["--cache-dir", directory.to_str().unwrap(), "-afpiC", "-e", "elf/dwarf4.so"];
        cairn().args(cached).args(options).stdin(addresses.clone()).output().unwrap().stdout
    };
    let first = run(&["--index"]);
    assert_eq!(run(&[]), first);
    let _ = fs::remove_dir_all(&directory);
}

#[test]
fn control_characters_of_a_file_are_not_printed() {
    let path = std::env::temp_dir().join(format!("cairn-control-{}.sym", std::process::id()));
    fs::write(&path, "MODULE Linux x86_64 0 x\nFUNC 0 10 0 evil\u{1b}[31m\n").unwrap();
    let output = cairn().arg("-e").arg(&path).arg("0").output().unwrap();
    fs::remove_file(&path).unwrap();
    assert!(output.status.success());
    assert!(!output.stdout.contains(&0x1b), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn data_is_named_in_our_own_output_too() {
    let asked = "DATA 0x36e9\nDATA 36a8\nDATA 0x99999999\n";
    let program = ["-e", "elf/dwarf4.so"];
    cairn().args(program).stdin(asked).assert().code(3).stdout_eq(str![[r#"
0x36e9 shapes::sink+0x1 (4 bytes) at /build/program.cpp:8
0x36a8 _fltused (4 bytes) at /build/program.cpp:47
0x99999999 ?? (no symbol is known at the address)

"#]]);
    cairn().arg("--json").args(program).stdin(asked).assert().code(3).stdout_eq(str![[r#"
{"schema":1,"file":"elf/dwarf4.so","address":"0x36e9","data":{"name":"shapes::sink","raw_name":"_ZN6shapes4sinkE","start":"0x36e8","size_bytes":4,"file":"/build/program.cpp","line":8}}
{"schema":1,"file":"elf/dwarf4.so","address":"0x36a8","data":{"name":"_fltused","raw_name":"_fltused","start":"0x36a8","size_bytes":4,"file":"/build/program.cpp","line":47}}
{"schema":1,"file":"elf/dwarf4.so","address":"0x99999999","data":null}

"#]]);
    // No symbol tables of other kinds are read for it.
    cairn().stdin("DATA breakpad/program.sym 0x1015\n").assert().code(3).stdout_eq(str![[r#"
0x1015 ?? (no symbol is known at the address)

"#]]);
}

/// Checks the output for an unknown build, and for a program given by its build id alone.
///
/// llvm-symbolizer 19 prints the same.
#[test]
fn builds_are_found_by_their_ids() {
    let build = "BUILDID:3278d18a8f3f68f4ec125ed623494f1b6ac53d45 0x144";
    let debug = ["--debug-dir", "../symbols/debug"];
    let answer = cairn().arg("--relative-address").args(debug).arg(build).assert().success();
    let printed = String::from_utf8(answer.get_output().stdout.clone()).unwrap();
    assert!(printed.contains("outer at /fixture/inlined.c:15"), "{printed}");
    let unknown = ["--output-style=JSON", "BUILDID:abcd 0x1"];
    cairn().args(unknown).assert().success().stdout_eq(str![[r#"
[{"Address":"0x1","Error":{"Message":"could not find build ID"},"ModuleName":"ABCD"}]

"#]]);
    cairn().args(["--output-style=LLVM", "BUILDID:abcd 0x1"]).assert().success().stdout_eq(str![[r#"
??
??:0:0


"#]]);
}
