//! The libraries and the header, as C and C++ programs meet them.

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

#[path = "../../cairn-recorder/tests/support/mod.rs"]
mod spool;

use support::{installed, output_of, run, scratch, workspace};

/// All that the shared library may take from its surroundings, each for a reason.
const TAKEN: &[&str] = &[
    // Functions that every shared library has from the linker's own start files.
    "_ITM_deregisterTMCloneTable",
    "_ITM_registerTMCloneTable",
    "__cxa_finalize",
    "__gmon_start__",
    // State of the caller's thread: its errno is saved and restored.
    "__errno_location",
    // State of the process: where its first stack begins, and which modules are loaded. No lock.
    "__libc_stack_end",
    // Facts of the process: its page size, its environment, the machine's name. No lock.
    "environ",
    "getauxval",
    "uname",
    // The list of modules, under the loader's lock: at the start of a recording and around
    // `dlclose`, never in a mark.
    "dl_iterate_phdr",
    // The clocks.
    "clock_gettime",
    // Memory and system calls.
    "getpid",
    // Behind the `mmap` of a large room, and nowhere else.
    "madvise",
    "mmap",
    "munmap",
    "syscall",
    // The real dlclose, for the one that is exported.
    "dlsym",
    // Copying memory.
    "bcmp",
    "memcmp",
    "memcpy",
    "memmove",
    "memset",
    "strlen",
    // Remains of panics.
    "abort",
];

fn symbols(library: &Path, kind: &str) -> BTreeSet<String> {
    let text = output_of(Command::new("nm").args(["-D", kind]).arg(library));
    let name = |line: &str| line.split_whitespace().last().unwrap().split('@').next().unwrap().to_owned();
    text.lines().map(name).collect()
}

#[test]
fn shared_library_imports_only_allowed_symbols() {
    let taken = symbols(&installed().join("lib/libcairn.so"), "--undefined-only");
    assert!(taken.contains("mmap"), "{taken:?}");
    let beyond: Vec<&String> = taken.iter().filter(|name| !TAKEN.contains(&name.as_str())).collect();
    assert!(beyond.is_empty(), "{beyond:?}: may they be called in malloc and in signal handlers?");
}

#[test]
fn shared_library_exports_match_header() {
    let header: String = ["cairn_capture.h", "cairn_heap.h"]
        .iter()
        .map(|name| fs::read_to_string(installed().join("include").join(name)).unwrap())
        .collect();
    let mut declared: BTreeSet<String> = header
        .lines()
        .filter(|line| line.ends_with(");") && !line.starts_with([' ', '/', '#']))
        .map(|line| {
            let name = line.split('(').next().unwrap();
            name.rsplit([' ', '*']).next().unwrap().to_owned()
        })
        .collect();
    assert!(declared.contains("cairn_capture") && declared.contains("cairn_version"), "{declared:?}");
    declared.insert("dlclose".to_owned());
    assert_eq!(symbols(&installed().join("lib/libcairn.so"), "--defined-only"), declared);
}

#[test]
fn shared_library_is_loaded_by_versioned_name() {
    let text = output_of(Command::new("readelf").arg("-dW").arg(installed().join("lib/libcairn.so")));
    assert!(text.contains("[libcairn.so.0]"), "{text}");
    assert!(text.contains("NODELETE"), "{text}");
}

/// The compilers a program for C and C++ has to pass, without a warning.
fn compilers() -> Vec<Command> {
    let compilers = [
        ["cc", "-xc", "-std=c99"],
        ["cc", "-xc", "-std=c11"],
        ["c++", "-xc++", "-std=c++11"],
        ["c++", "-xc++", "-std=c++20"],
    ];
    compilers
        .iter()
        .filter(|[name, ..]| *name != "c++" || is_here("c++"))
        .map(|[name, flags @ ..]| {
            let mut command = Command::new(name);
            command.args(flags).args(["-D_GNU_SOURCE", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]);
            command.arg("-I").arg(installed().join("include"));
            command
        })
        .collect()
}

/// Debian's smallest C tool chain has no C++ compiler.
fn is_here(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}

#[test]
fn header_compiles_alone_in_c_and_cpp() {
    let file = scratch().join("header.c");
    fs::write(&file, "#include <cairn_capture.h>\n#include <cairn_heap.h>\n#include <cairn_capture.h>\n#include <cairn_heap.h>\nextern int x;\n").unwrap();
    for mut compiler in compilers() {
        run(compiler.arg("-fsyntax-only").arg(&file));
    }
}

#[test]
fn c_guide_snippets_compile_and_run() {
    let guide: String =
        ["c-and-rust.md", "reference/c-api.md", "reference/annotate.md", "reference/backtrace9.md"]
            .iter()
            .map(|name| fs::read_to_string(workspace().join("docs/book").join(name)).unwrap())
            .collect();
    let snippets: Vec<&str> =
        guide.split("```c\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert!(snippets.len() >= 7, "the guide has {} programs", snippets.len());
    let program = scratch().join("snippet");
    for (number, snippet) in snippets.iter().enumerate() {
        let file = scratch().join(format!("snippet-{number}.c"));
        fs::write(&file, snippet).unwrap();
        for mut compiler in compilers() {
            let library = installed().join("lib/libcairn.a");
            run(compiler.arg(&file).args(["-x", "none"]).arg(library).arg("-o").arg(&program));
            run(&mut Command::new(&program));
        }
    }
}

/// The value of `key` in a pkg-config file, its own variables put in.
fn pkg_config(text: &str, key: &str) -> String {
    let mut variables = Vec::new();
    for line in text.lines() {
        let expand = |value: &str, variables: &[(String, String)]| {
            variables
                .iter()
                .rev()
                .fold(value.to_owned(), |value, (name, with)| value.replace(&format!("${{{name}}}"), with))
        };
        if let Some((name, value)) = line.split_once('=')
            && !name.contains(' ')
        {
            let value = expand(value, &variables);
            variables.push((name.to_owned(), value));
        } else if let Some(value) = line.strip_prefix(key).and_then(|rest| rest.strip_prefix(": ")) {
            return expand(value, &variables);
        }
    }
    panic!("no {key} in {text}");
}

#[test]
fn shared_link_by_pkg_config_works() {
    let text = fs::read_to_string(installed().join("lib/pkgconfig/cairn.pc")).unwrap();
    assert_eq!(pkg_config(&text, "Version"), env!("CARGO_PKG_VERSION"));
    let file = scratch().join("linked.c");
    fs::write(
        &file,
        "#include <cairn_capture.h>\n#include <stdio.h>\nint main(void) { puts(cairn_version()); fflush(stdout);
         return cairn_stack_print(cairn_capture(), 1); }\n",
    )
    .unwrap();
    let program = scratch().join("linked");
    let mut compiler = support::c_compiler();
    compiler.arg(&file).arg("-o").arg(&program);
    for key in ["Cflags", "Libs"] {
        compiler.args(pkg_config(&text, key).split(' '));
    }
    run(&mut compiler);
    let output = output_of(Command::new(&program).env("LD_LIBRARY_PATH", installed().join("lib")));
    let (version, stack) = output.split_once('\n').unwrap();
    assert_eq!(version, env!("CARGO_PKG_VERSION"));
    // The caller of cairn_capture is the innermost frame, and nothing of the library is in the
    // stack.
    assert!(stack.lines().next().unwrap().contains("/linked+0x"), "{stack}");
    assert!(!stack.contains("libcairn"), "{stack}");
}

// Failed with: no `Libs.private` in the file.
#[test]
fn static_link_by_pkg_config_works() {
    let text = fs::read_to_string(installed().join("lib/pkgconfig/cairn.pc")).unwrap();
    let file = scratch().join("linked_static.c");
    let program = scratch().join("linked_static");
    let source =
        "#include <cairn_capture.h>\nint main(void) { return cairn_stack_print(cairn_capture(), 1); }\n";
    fs::write(&file, source).unwrap();
    let mut compiler = support::c_compiler();
    compiler.arg("-static").arg(&file).arg("-o").arg(&program);
    for key in ["Cflags", "Libs", "Libs.private"] {
        compiler.args(pkg_config(&text, key).split(' '));
    }
    run(&mut compiler);
    let headers = output_of(Command::new("readelf").arg("-lW").arg(&program));
    assert!(headers.contains("GNU_EH_FRAME"), "{headers}");
    let stack = output_of(&mut Command::new(&program));
    assert!(stack.lines().count() >= 3 && !stack.contains("goes on"), "{stack}");
}

/// Compiles a program of `tests/c` with the static library, and runs it.
fn run_c_test(name: &str) {
    let program = scratch().join(name);
    let mut compiler = support::c_compiler();
    compiler.args(["-O1", "-fno-optimize-sibling-calls"]);
    compiler
        .arg(workspace().join(format!("crates/cairn-c/tests/c/{name}.c")))
        .arg("-I")
        .arg(installed().join("include"));
    run(compiler.arg(installed().join("lib/libcairn.a")).arg("-o").arg(&program));
    run(&mut Command::new(&program));
}

#[test]
fn annotated_blocks_of_c_are_found() {
    run_c_test("annotated");
}

#[test]
fn c_api_survives_invalid_arguments() {
    run_c_test("edges");
}

#[test]
#[cfg(target_arch = "x86_64")]
fn capture_uses_little_stack() {
    run_c_test("stack_use");
}

// Failed with: no such functions.
#[test]
fn frame_walks_follow_backtrace9_controls() {
    for level in ["-O0", "-O2"] {
        let program = scratch().join(format!("walk{level}"));
        let mut compiler = support::c_compiler();
        compiler.args([
            level,
            "-fno-omit-frame-pointer",
            "-fno-optimize-sibling-calls",
            "-mno-omit-leaf-frame-pointer",
        ]);
        compiler.arg(workspace().join("crates/cairn-c/tests/c/walk.c"));
        compiler.arg("-I").arg(installed().join("include"));
        run(compiler.arg(installed().join("lib/libcairn.a")).arg("-o").arg(&program));
        run(&mut Command::new(&program));
    }
}

/// Marks, blocks, a crash, a child: what C programs record, read with the format's own readers.
#[test]
fn c_recording_holds_marks() {
    let program = scratch().join("recording");
    let mut compiler = support::c_compiler();
    compiler.args(["-O1", "-fno-optimize-sibling-calls"]);
    compiler
        .arg(workspace().join("crates/cairn-c/tests/c/recording.c"))
        .arg("-I")
        .arg(installed().join("include"));
    run(compiler.arg(installed().join("lib/libcairn.a")).arg("-o").arg(&program));
    let path = scratch().join("recording.cairn");
    for old in [path.clone(), scratch().join("recording.cairn.1")] {
        let _ = fs::remove_file(old);
    }
    let output = Command::new(&program).env("CAIRN_RECORDING", &path).output().unwrap();
    let signal = std::os::unix::process::ExitStatusExt::signal(&output.status);
    assert_eq!(signal, Some(11), "{}", String::from_utf8_lossy(&output.stderr));

    let spool = spool::Spool::open(&path);
    spool.check();
    let marks: Vec<(&str, u16)> = spool.marks.iter().map(|mark| (mark.text.as_str(), mark.skip)).collect();
    assert_eq!(
        marks,
        [("constructor", 0), ("", 0), ("number", 1), ("whole", 70), ("handler", 0), ("crash", 0)]
    );
    let value = |index: usize| spool.marks[index].value;
    assert_eq!(value(2), cairn_format::recording::MarkValue::Float(-2.5));
    assert_eq!(value(3), cairn_format::recording::MarkValue::Integer(-7));
    // The innermost frames are the program's own, as its symbols tell.
    let names = |stack: u32| -> Vec<String> {
        let frames = spool.stack(stack);
        let own: Vec<u64> = frames
            .iter()
            .filter(|(_, _, module)| spool.modules[module].path.ends_with("/recording"))
            .map(|(kind, address, module)| {
                let is_return = *kind == cairn_format::recording::PcKind::ReturnAddress;
                address - u64::from(is_return) - spool.modules[module].bias
            })
            .collect();
        let mut command = Command::new("addr2line");
        command.args(["-f", "-e"]).arg(&program).args(own.iter().map(|address| format!("{address:#x}")));
        output_of(&mut command).lines().step_by(2).map(str::to_owned).collect()
    };
    assert_eq!(names(spool.marks[0].stack)[0], "before_main");
    assert_eq!(names(spool.marks[2].stack)[..3], ["inner", "outer", "main"]);
    assert_eq!(names(spool.marks[4].stack)[0], "on_crash");
    assert_eq!(names(spool.marks[5].stack)[..2], ["crash", "main"]);
    let pairing = spool.pair();
    assert_eq!((pairing.local, pairing.live.len()), (1, 1));
    assert_eq!(pairing.live[0].1, 100);
    assert!(!scratch().join("recording.cairn.1").exists(), "the child has no file");
    assert_eq!(spool.lost_events, 0);
}
