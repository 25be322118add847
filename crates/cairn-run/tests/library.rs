//! Imports of the library that is loaded into programs, and its cost for each of their threads.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use std::collections::BTreeSet;
use std::process::Command;

use cairn_run::Library;

/// All that it may take from its surroundings, each for a reason.
const TAKEN: &[&str] = &[
    // Symbols that every shared library has from the linker's own start files.
    "_ITM_deregisterTMCloneTable",
    "_ITM_registerTMCloneTable",
    "__cxa_finalize",
    "__gmon_start__",
    // The caller's errno is saved and restored.
    "__errno_location",
    // Properties of the process: its first stack, its environment, its modules. Data, or functions
    // without a lock.
    "__libc_stack_end",
    "_r_debug",
    "environ",
    "getauxval",
    // With a lock, once, in the constructor, and only in emulators that do not wipe memory in
    // forked children.
    "__register_atfork",
    // With the loader's lock: at the start, and in front of the program's own calls of the loader.
    "dl_iterate_phdr",
    // One system call each, and no cancellation point.
    "getpid",
    "clock_gettime",
    "madvise",
    "uname",
    // Copying memory.
    "bcmp",
    "memcmp",
    "memcpy",
    "memmove",
    "memset",
    "strlen",
];

fn output_of(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn libraries() -> [Library; 2] {
    [Library::unpack().unwrap(), Library::unpack_for_allocators().unwrap()]
}

#[test]
fn library_imports_only_allowed_symbols() {
    for library in libraries() {
        let text = output_of(Command::new("nm").args(["-D", "--undefined-only"]).arg(library.path()));
        let name = |line: &str| line.split_whitespace().last().unwrap().split('@').next().unwrap().to_owned();
        let taken: BTreeSet<String> = text.lines().map(name).collect();
        assert!(taken.contains("_r_debug"), "{taken:?}");
        let beyond: Vec<&String> = taken.iter().filter(|name| !TAKEN.contains(&name.as_str())).collect();
        assert!(beyond.is_empty(), "{beyond:?}: may they be called in malloc and in signal handlers?");
    }
}

/// A weak symbol of a newer version keeps the library, and so every program, from starting.
#[test]
fn library_needs_no_c_library_after_2_17() {
    let annotate = Library::unpack_for_annotation().unwrap();
    for library in libraries().into_iter().chain([annotate]) {
        let text = output_of(Command::new("readelf").args(["--version-info", "-W"]).arg(library.path()));
        let versions = text.split("Name: GLIBC_").skip(1).map(|rest| {
            let version = rest.split_whitespace().next().unwrap();
            version.split('.').map(|part| part.parse::<u32>().unwrap()).collect::<Vec<_>>()
        });
        let newest = versions.max().unwrap();
        assert!(newest <= vec![2, 17], "GLIBC_{newest:?}: {text}");
    }
}

#[test]
fn library_exports_no_versions_and_no_cpp_names() {
    let [plain, allocators] = libraries();
    let names =
        |library: &Library| output_of(Command::new("nm").args(["-D", "--defined-only"]).arg(library.path()));
    assert!(!names(&plain).contains('@'), "{}", names(&plain));
    assert!(names(&plain).contains(" malloc\n") && names(&plain).contains(" free_aligned_sized\n"));
    assert!(!names(&plain).contains("_Zn") && !names(&plain).contains("mi_"));
    assert!(names(&allocators).contains(" _Znwm\n") && names(&allocators).contains(" mi_malloc\n"));
}

#[test]
fn library_uses_little_thread_local_storage() {
    for library in libraries() {
        let text = output_of(Command::new("readelf").arg("-lW").arg(library.path()));
        let line = text.lines().find(|line| line.trim_start().starts_with("TLS")).unwrap();
        let size = line.split_whitespace().nth(5).unwrap().trim_start_matches("0x");
        let bytes = u64::from_str_radix(size, 16).unwrap();
        assert!(bytes <= 64, "{bytes} bytes of static thread-local storage: {line}");
        let dynamic = output_of(Command::new("readelf").arg("-dW").arg(library.path()));
        assert!(dynamic.contains("NODELETE") && dynamic.contains("NOW"), "{dynamic}");
        assert!(!dynamic.contains("(NEEDED)") || dynamic.matches("(NEEDED)").count() <= 2, "{dynamic}");
    }
}
