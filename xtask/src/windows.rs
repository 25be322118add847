//! `cargo xtask windows`: what works without a Linux process, built for Windows and tested by wine.
//!
//! Users of Windows need none of this: there the crates build with stable Rust. Here no toolchain
//! has a standard library for Windows, so it is built from the source of Debian's newest compiler,
//! once, with `cargo -Z build-std`; the linker is mingw's. Debian's wine 8 lacks a library that
//! Rust's standard library takes random numbers from; three lines of C make it.
//!
//! ```text
//! <cache>/apple/    Debian's compiler with its source, as `portability` has it for Apple's systems
//! <cache>/std/      lib/rustlib/x86_64-pc-windows-gnu/lib: the standard library
//! <cache>/prefix/   wine's drive C
//! target/windows/build/    what cargo builds
//! ```
//!
//! The cache is `target/windows`, or `$CAIRN_WINDOWS_CACHE`; with `$CAIRN_PORTABILITY_CACHE` of the
//! same value both chores use one compiler. They do not by themselves, because CI removes what the
//! other one has built while this one runs. Delete the cache directory to fetch newer packages.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::debian::{self, Tool};
use crate::portability::{APPLE, Compiler, library_source};
use crate::process::{self, Failure, Outcome, at, cargo, read, workspace_root};

/// The crates that read, the recorder, the hooks, and what they need.
const CRATES: &[&str] = &[
    "cairn-analysis",
    "cairn-cli",
    "cairn-exchange",
    "cairn-files",
    "cairn-format",
    "cairn-heap",
    "cairn-hooks-windows",
    "cairn-logs",
    "cairn-memory",
    "cairn-recorder",
    "cairn-recording",
    "cairn-run",
    "cairn-symbols",
    "cairn-unwind",
    "cairn-web",
    "cairn-wire",
];

const TRIPLE: &str = "x86_64-pc-windows-gnu";
const MSVC_TRIPLE: &str = "x86_64-pc-windows-msvc";
const LINKER: &str = "x86_64-w64-mingw32-gcc";
const CXX: &str = "x86_64-w64-mingw32-g++";
const WINE: &str = "/usr/lib/wine/wine64";
const WINE_SERVER: &str = "/usr/lib/wine/wineserver64";

const TOOLS: &[Tool] = &[
    Tool { program: LINKER, package: "gcc-mingw-w64-x86-64-win32", also: &[] },
    Tool { program: CXX, package: "g++-mingw-w64-x86-64-win32", also: &[] },
    Tool { program: WINE, package: "wine64", also: &[] },
];

const BUILD_DIRECTORY: &str = "target/windows/build";

/// Settings of a build that takes little time.
///
/// Compiling takes most of the time, running next to none: nothing is optimised, and nothing has
/// debug information or, in programs, symbols.
/// Exceptions are compression, for tests unpack gigabytes, and the formats, which tests read and
/// damage in millions of ways.
const FAST_TO_BUILD: &[&str] = &[
    "profile.dev.package.\"*\".opt-level=0",
    "profile.dev.package.crc32fast.opt-level=2",
    "profile.dev.package.lz4_flex.opt-level=2",
    "profile.dev.package.zlib-rs.opt-level=2",
    "profile.dev.package.zstd-sys.opt-level=2",
    "profile.dev.package.cairn-format.opt-level=1",
    "profile.dev.package.cairn-heap.opt-level=1",
    "profile.dev.package.cairn-recording.opt-level=1",
    "profile.dev.package.cairn-wire.opt-level=1",
    "profile.dev.debug=0",
    "profile.dev.strip=true",
];

/// The library that wine 8 lacks. Its one function is that of an older one.
const RANDOM_LIBRARY: &str = "bcryptprimitives.dll";
const RANDOM_SOURCE: &str = "#include <windows.h>\n\
    BOOLEAN NTAPI SystemFunction036(PVOID, ULONG);\n\
    __declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE bytes, SIZE_T count) {\n\
    \treturn SystemFunction036(bytes, (ULONG)count);\n\
    }\n";

/// Crates with tests that need Windows, and the files of these tests.
///
/// The others repeat here what they show on Linux; two thirds of the time go into these.
const SYSTEM_TESTS: &[(&str, &[&str])] = &[
    ("cairn-cli", &["heap_windows", "play_windows", "windows", "windows_console"]),
    ("cairn-recorder", &["module_table", "windows"]),
];

/// Runs the tests.
///
/// With `system` it runs those alone that need Windows, as CI does; with `build` it builds the
/// command alone, and with `msvc` it checks the crates for Microsoft's linker.
pub(crate) fn run(arguments: &[String]) -> Outcome {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        [] => test(&Toolchain::set_up()?, Tests::All),
        ["system"] => test(&Toolchain::set_up()?, Tests::System),
        ["build"] => build(&Toolchain::set_up()?),
        ["msvc"] => check_msvc(),
        _ => Err(Failure::usage("usage: cargo xtask windows [system|build|msvc]")),
    }
}

/// Everything that building and running takes.
struct Toolchain {
    compiler: Compiler,
    sysroot: PathBuf,
    prefix: PathBuf,
}

impl Toolchain {
    fn set_up() -> Outcome<Self> {
        debian::require(TOOLS)?;
        let cache = cache_directory();
        fs::create_dir_all(&cache).map_err(at(&cache))?;
        // Another run may set up the same cache.
        let lock = cache.join("lock");
        let lock = File::create(&lock).and_then(|file| file.lock().map(|()| file)).map_err(at(&lock))?;
        let compiler = Compiler::in_cache(&cache, APPLE)?;
        let toolchain = Self { compiler, sysroot: cache.join("std"), prefix: cache.join("prefix") };
        toolchain.build_std(&cache)?;
        toolchain.make_prefix(&cache)?;
        drop(lock);
        Ok(toolchain)
    }

    /// Builds the standard library, without its own backtraces, which take a sixth of it.
    fn build_std(&self, cache: &Path) -> Outcome {
        let version = read(Command::new(self.compiler.rustc()).arg("--version"))?;
        let complete = self.sysroot.join("complete");
        if fs::read_to_string(&complete).is_ok_and(|built_by| built_by == version) {
            println!("using the standard library in {}", self.sysroot.display());
            return Ok(());
        }
        let _ = fs::remove_dir_all(&self.sysroot);
        let build = cache.join("std-build");
        build_standard_library(&self.compiler, &build, "build", TRIPLE, &["-Zbuild-std-features="])?;
        let built = build.join("target").join(TRIPLE).join("debug/deps");
        copy_libraries(&built, &self.sysroot, TRIPLE, "rlib")?;
        fs::remove_dir_all(&build).map_err(at(&build))?;
        fs::write(&complete, version).map_err(at(&complete))
    }

    /// Makes drive C, with the library that wine lacks.
    fn make_prefix(&self, cache: &Path) -> Outcome {
        let complete = self.prefix.join("complete");
        if complete.exists() {
            return Ok(());
        }
        let _ = fs::remove_dir_all(&self.prefix);
        fs::create_dir_all(&self.prefix).map_err(at(&self.prefix))?;
        process::run(self.wine(WINE).args(["wineboot", "--init"]))?;
        self.wait_for_wine()?;
        let source = cache.join("random.c");
        fs::write(&source, RANDOM_SOURCE).map_err(at(&source))?;
        let library = self.prefix.join("drive_c/windows/system32").join(RANDOM_LIBRARY);
        let mut command = Command::new(LINKER);
        command.args(["-Os", "-s", "-shared", "-o"]).arg(library).arg(&source).arg("-ladvapi32");
        process::run(&mut command)?;
        fs::write(&complete, "").map_err(at(&complete))
    }

    /// A program of wine's, with our drive C, and without its questions and messages.
    fn wine(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        self.set_wine(&mut command);
        command
    }

    fn set_wine(&self, command: &mut Command) {
        command.env("WINEPREFIX", &self.prefix).env("WINEDEBUG", "-all");
        // The browser and the runtime that wine would offer to install.
        command.env("WINEDLLOVERRIDES", "mscoree,mshtml=").env_remove("DISPLAY");
    }

    /// Waits until wine's server has written everything and ended.
    fn wait_for_wine(&self) -> Outcome {
        process::run(self.wine(WINE_SERVER).arg("-w"))
    }

    fn cargo(&self, subcommand: &str) -> Command {
        let mut command = cargo_for(&self.compiler, subcommand, TRIPLE, &self.sysroot);
        command.env(variable(TRIPLE, "LINKER"), LINKER).env(variable(TRIPLE, "RUNNER"), WINE);
        self.set_wine(&mut command);
        command
    }
}

fn cache_directory() -> PathBuf {
    match std::env::var_os("CAIRN_WINDOWS_CACHE") {
        // Relative to where the chore was started; cargo and rustc run elsewhere.
        Some(directory) => std::path::absolute(&directory).unwrap_or_else(|_| directory.into()),
        None => workspace_root().join("target/windows"),
    }
}

/// Part of cargo's variables for a target.
fn variable(triple: &str, what: &str) -> String {
    format!("CARGO_TARGET_{}_{what}", triple.to_uppercase().replace('-', "_"))
}

fn cargo_for(compiler: &Compiler, subcommand: &str, triple: &str, sysroot: &Path) -> Command {
    let mut command = cargo();
    command.env("RUSTC", compiler.rustc()).env("CARGO_INCREMENTAL", "0");
    command.env(variable(triple, "RUSTFLAGS"), format!("--sysroot={}", sysroot.display()));
    command.env_remove("RUSTFLAGS").env_remove("CARGO_ENCODED_RUSTFLAGS");
    command.args([subcommand, "--locked"]);
    for setting in FAST_TO_BUILD {
        command.args(["--config", setting]);
    }
    command.args(["--target", triple, "--target-dir", BUILD_DIRECTORY]);
    command
}

#[derive(Clone, Copy, PartialEq)]
enum Tests {
    All,
    System,
}

fn test(toolchain: &Toolchain, which: Tests) -> Outcome {
    let libraries = libraries()?;
    c_programs(toolchain, &libraries)?;
    let cargo_test = || {
        let mut tests = toolchain.cargo("test");
        tests.arg("--no-fail-fast").env("CAIRN_WINDOWS_LIBRARIES", &libraries);
        // Nothing is optimised, so that deep recursion takes several times the stack.
        tests.env("RUST_MIN_STACK", TEST_STACK_BYTES);
        if std::env::var_os("PROPTEST_CASES").is_none() {
            tests.env("PROPTEST_CASES", PROPTEST_CASES);
        }
        tests
    };
    let mut runs = Vec::new();
    match which {
        Tests::All => {
            let mut tests = cargo_test();
            tests.args(["--lib", "--bins", "--tests"]);
            for name in CRATES {
                tests.args(["--package", name]);
            }
            runs.push(tests);
        }
        Tests::System => {
            for (package, files) in SYSTEM_TESTS {
                let mut tests = cargo_test();
                tests.args(["--package", package]);
                for file in *files {
                    tests.args(["--test", file]);
                }
                runs.push(tests);
            }
            let mut tests = cargo_test();
            tests.args(["--lib", "--tests", "--package", "cairn-hooks-windows", "--package", "cairn-run"]);
            runs.push(tests);
        }
    }
    // Its other tests are of Linux.
    let mut captures = cargo_test();
    captures.args(["--package", "cairn-capture", "--test", "windows"]);
    runs.push(captures);
    let tested = runs.iter_mut().try_for_each(process::run);
    toolchain.wait_for_wine()?;
    if which == Tests::System {
        println!("not run: tests that need no Windows; `cargo xtask windows` runs them here as well");
    }
    tested
}

/// Compiles the libraries between whose functions captures are tested, and returns their directory.
fn libraries() -> Outcome<PathBuf> {
    let sources = workspace_root().join("crates/cairn-capture/tests/support");
    let directory = workspace_root().join("target/windows/libraries");
    fs::create_dir_all(&directory).map_err(at(&directory))?;
    for (compiler, source, library, frame_pointer) in [
        (LINKER, "random_calls.c", "random_calls.dll", "-fomit-frame-pointer"),
        (LINKER, "random_calls.c", "random_calls_frame_pointer.dll", "-fno-omit-frame-pointer"),
        (CXX, "random_throws.cpp", "random_throws.dll", "-fomit-frame-pointer"),
    ] {
        let mut command = Command::new(compiler);
        // Its own runtime library inside, which wine would search elsewhere.
        command.args(["-O2", "-shared", "-static", "-fno-optimize-sibling-calls", frame_pointer, "-o"]);
        process::run(command.arg(directory.join(library)).arg(sources.join(source)))?;
    }
    Ok(directory)
}

/// Builds the library for C, and a program with each form of it.
fn c_programs(toolchain: &Toolchain, directory: &Path) -> Outcome {
    process::run(toolchain.cargo("build").args(["--package", "cairn-c"]))?;
    let built = workspace_root().join(BUILD_DIRECTORY).join(TRIPLE).join("debug");
    let library = built.join(C_LIBRARY);
    fs::copy(&library, directory.join(C_LIBRARY)).map_err(at(&library))?;
    let crate_c = workspace_root().join("crates/cairn-c");
    for (name, linked, system) in [
        ("c_shared.exe", "libcairn.dll.a", &[][..]),
        ("c_static.exe", "libcairn.a", &["-lntdll", "-lws2_32", "-luserenv", "-ldbghelp"]),
    ] {
        let mut command = Command::new(LINKER);
        command
            .args(["-O2", "-g", "-municode", "-fno-optimize-sibling-calls", "-I"])
            .arg(crate_c.join("include"));
        command.arg(crate_c.join("tests/c/windows.c")).arg(built.join(linked)).args(system);
        process::run(command.arg("-o").arg(directory.join(name)))?;
    }
    Ok(())
}

const C_LIBRARY: &str = "cairn.dll";

/// Stack of a test's thread; 16 MiB, eight times what is usual.
const TEST_STACK_BYTES: &str = "16777216";

/// Cases of a property test. The properties do not depend on the system, and nothing is optimised.
const PROPTEST_CASES: &str = "8";

fn build(toolchain: &Toolchain) -> Outcome {
    process::run(toolchain.cargo("build").args(["--package", "cairn-cli"]))?;
    let program = Path::new(BUILD_DIRECTORY).join(TRIPLE).join("debug/cairn.exe");
    println!("{}", program.display());
    let prefix = toolchain.prefix.display();
    println!("run it by: WINEPREFIX={prefix} WINEDEBUG=-all {WINE} {} --help", program.display());
    Ok(())
}

/// Checks the crates for Microsoft's linker, which is not to be had here: nothing is linked.
///
/// The C library zstd is compiled by mingw's compiler, for checking Rust code reads no object file.
fn check_msvc() -> Outcome {
    debian::require(TOOLS)?;
    let cache = cache_directory();
    fs::create_dir_all(&cache).map_err(at(&cache))?;
    let compiler = Compiler::in_cache(&cache, APPLE)?;
    let sysroot = cache.join("std-msvc");
    let complete = sysroot.join("complete");
    if !complete.exists() {
        let build = cache.join("std-msvc-build");
        build_standard_library(&compiler, &build, "check", MSVC_TRIPLE, &[])?;
        let built = build.join("target").join(MSVC_TRIPLE).join("debug/deps");
        copy_libraries(&built, &sysroot, MSVC_TRIPLE, "rmeta")?;
        fs::remove_dir_all(&build).map_err(at(&build))?;
        fs::write(&complete, "").map_err(at(&complete))?;
    }
    let librarian = cache.join("librarian");
    fs::write(&librarian, LIBRARIAN).map_err(at(&librarian))?;
    fs::set_permissions(&librarian, fs::Permissions::from_mode(0o755)).map_err(at(&librarian))?;
    let mut command = cargo_for(&compiler, "check", MSVC_TRIPLE, &sysroot);
    for (tool, program) in [("CC", Path::new(LINKER)), ("AR", &librarian)] {
        command.env(format!("{tool}_{}", MSVC_TRIPLE.replace('-', "_")), program);
    }
    // The library that the command carries is built for real, which needs Microsoft's linker.
    command.env("CAIRN_WITHOUT_HOOKS", "1");
    for name in CRATES {
        command.args(["--package", name]);
    }
    process::run(&mut command)?;
    println!("checked: {} for {MSVC_TRIPLE}", CRATES.join(", "));
    println!("not checked: the link with Microsoft's libraries, and every run: neither is to be had here");
    Ok(())
}

/// Takes the arguments of Microsoft's librarian, which zstd's build script gives.
const LIBRARIAN: &str = "#!/bin/sh\n\
    for argument do\n\
    \tshift\n\
    \tcase $argument in\n\
    \t-out:*) library=${argument#-out:} ;;\n\
    \t-nologo) ;;\n\
    \t*) set -- \"$@\" \"$argument\" ;;\n\
    \tesac\n\
    done\n\
    exec x86_64-w64-mingw32-ar cr \"$library\" \"$@\"\n";

/// Builds or checks the standard library, as the dependency of an empty crate in `directory`.
fn build_standard_library(
    compiler: &Compiler,
    directory: &Path,
    subcommand: &str,
    triple: &str,
    more: &[&str],
) -> Outcome {
    link_source(compiler)?;
    let source = directory.join("src");
    fs::create_dir_all(&source).map_err(at(&source))?;
    let manifest = directory.join("Cargo.toml");
    let text = format!("[package]\nname = \"{EMPTY_CRATE}\"\nedition = \"2024\"\n\n[workspace]\n");
    fs::write(&manifest, text).map_err(at(&manifest))?;
    let root = source.join("lib.rs");
    fs::write(&root, "").map_err(at(&root))?;
    let mut command = cargo();
    command.current_dir(directory).env("RUSTC", compiler.rustc()).env("CARGO_INCREMENTAL", "0");
    // The source is Debian's, for this very compiler; cargo's option and the library's own unstable
    // features are let in by this.
    command.env("RUSTC_BOOTSTRAP", "1");
    command.env_remove("RUSTFLAGS").env_remove("CARGO_ENCODED_RUSTFLAGS");
    command.args([subcommand, "-Zbuild-std=std,panic_unwind,test"]).args(more);
    command.args(["--config", "profile.dev.debug=0", "--target", triple, "--target-dir", "target"]);
    process::run(&mut command)
}

const EMPTY_CRATE: &str = "empty";

/// Cargo searches for the source where rustup puts it.
fn link_source(compiler: &Compiler) -> Outcome {
    let library = library_source(compiler.root())?;
    let source = library.parent().expect("`library` is in a directory");
    let place = compiler.root().join("usr/lib/rustlib/src");
    fs::create_dir_all(&place).map_err(at(&place))?;
    let link = place.join("rust");
    // It may lead to where the cache was before.
    let _ = fs::remove_file(&link);
    std::os::unix::fs::symlink(source, &link).map_err(at(&link))
}

/// Copies the libraries of a kind into a sysroot, but for the empty crate.
fn copy_libraries(from: &Path, sysroot: &Path, triple: &str, kind: &str) -> Outcome {
    let to = sysroot.join("lib/rustlib").join(triple).join("lib");
    fs::create_dir_all(&to).map_err(at(&to))?;
    let entries = fs::read_dir(from).map_err(at(from))?;
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        let is_library = path.extension().is_some_and(|extension| extension == kind);
        if is_library && !name.starts_with(&format!("lib{EMPTY_CRATE}-")) {
            fs::copy(&path, to.join(name)).map_err(at(&path))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_variables_are_those_that_cargo_reads() {
        assert_eq!(variable(TRIPLE, "LINKER"), "CARGO_TARGET_X86_64_PC_WINDOWS_GNU_LINKER");
    }

    #[test]
    fn windows_refuses_unknown_arguments() {
        let failure = run(&["test".to_owned()]).unwrap_err();
        assert!(failure.to_string().contains("[system|build|msvc]"), "{failure}");
    }

    #[test]
    fn windows_copies_all_libraries_but_the_empty_one() {
        let directory = std::env::temp_dir().join(format!("cairn-windows-{}", std::process::id()));
        let from = directory.join("from");
        fs::create_dir_all(&from).unwrap();
        for name in ["libstd-1.rlib", "libempty-2.rlib", "libstd-1.rmeta", "std-1.d"] {
            fs::write(from.join(name), "").unwrap();
        }
        copy_libraries(&from, &directory.join("to"), TRIPLE, "rlib").unwrap();
        let to = directory.join("to/lib/rustlib").join(TRIPLE).join("lib");
        let names: Vec<_> = fs::read_dir(to).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        fs::remove_dir_all(&directory).unwrap();
        assert_eq!(names, ["libstd-1.rlib"]);
    }
}
