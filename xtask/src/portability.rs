//! `cargo xtask portability`: the portable crates' tests, built for other processors and run there
//! by an emulator.
//!
//! Purpose of each target: `aarch64` (64-bit, the other common host), `armv7` (32-bit), `s390x`
//! (big-endian), and `bare-metal` (`thumbv7m-none-eabi`: there is no std and no alloc that a crate
//! could use by mistake).
//!
//! A rustup toolchain has no standard library for most of these without fetching one, and rustup is
//! not everywhere; Debian signs compilers and libraries for all of them. The compiler and its
//! libraries must be of one version (`E0514` otherwise) and Debian's versions cannot be installed
//! next to each other, so nothing is installed: the packages are unpacked into a cache directory,
//! `target/portability` or `$CAIRN_PORTABILITY_CACHE`. The version is the newest that Debian has
//! for every target, in Debian 12 that is 1.85, and so this also proves the portable crates'
//! `rust-version`. Only the cross linkers and the emulator are installed, and only where they are
//! missing.
//!
//! The crates that capture stacks want the workspace's newer compiler, and run on Linux on two
//! processors. Theirs is the newest that Debian has for these two, from its security updates. It
//! also builds the library that `cairn heap` puts into programs; C programs are recorded in the
//! emulator, and what this machine's cairn reads must be what they counted.
//!
//! `darwin` compiles the capture crates for Apple's systems, against `core` built from the newer
//! compiler's source. Nothing is linked, because Apple's linker inputs are not available here, and
//! nothing runs. Where Debian's source cannot be fetched it says what was not checked, and the
//! other targets go on.
//!
//! ```text
//! <cache>/apt/     package lists of all architectures, an apt that knows nothing of this machine's packages
//! <cache>/rust/    usr/bin/rustc, usr/lib/rustlib/<triple>/lib, usr/src/rustc-*/library   (and `complete`, see below)
//! <cache>/new/     the same of the newer compiler, without the source
//! <cache>/bare/    lib/rustlib/thumbv7m-none-eabi/lib: core alone, built from that source
//! <cache>/apple/   the newer compiler with its source
//! <cache>/apple-core/  lib/rustlib/<triple>/lib: core alone, built from that source
//! target/portability/build/    what cargo builds
//! ```
//!
//! Delete the cache directory to fetch newer packages. Doc tests are left out: running them for
//! another target needs a newer rustdoc than this compiler's.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::debian::{self, PrivateApt, Tool};
use crate::process::{self, Failure, Outcome, at, cargo, read, workspace_root};

/// The crates that must work everywhere. A crate joins when a microcontroller or another processor
/// is to run it.
const PORTABLE_CRATES: &[&str] = &["cairn-format", "cairn-wire"];

/// Crates that run inside a watched program, or read one. They are tested on each processor where
/// programs are watched.
const CAPTURE_CRATES: &[&str] = &["cairn-unwind", "cairn-capture"];

/// The library that is put into programs, and the profile that it is shipped in.
const LIBRARY_CRATE: &str = "cairn-preload";
const LIBRARY_PROFILE: &str = "c-library";
const LIBRARY_FILE: &str = "libcairn_preload.so";

/// The test of `cairn-cli` that records with it.
const RECORDING_TEST: &str = "heap_emulated";

/// Where cargo builds for other processors.
const BUILD_DIRECTORY: &str = "target/portability/build";

/// A processor on which the tests are run.
struct Target {
    name: &'static str,
    why: &'static str,
    /// True where programs are watched.
    captures: bool,
    /// Debian's name of the architecture.
    architecture: &'static str,
    triple: &'static str,
    linker: Tool,
    emulator: Tool,
    /// Where Debian's cross packages put the C library that the tests load.
    libraries: &'static str,
}

const TARGETS: &[Target] = &[
    Target {
        name: "aarch64",
        why: "64-bit, little-endian",
        captures: true,
        architecture: "arm64",
        triple: "aarch64-unknown-linux-gnu",
        linker: cross_gcc("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu", &["libc6-dev-arm64-cross"]),
        emulator: emulator("qemu-aarch64-static"),
        libraries: "/usr/aarch64-linux-gnu",
    },
    Target {
        name: "armv7",
        why: "32-bit, little-endian",
        captures: false,
        architecture: "armhf",
        triple: "armv7-unknown-linux-gnueabihf",
        linker: cross_gcc("arm-linux-gnueabihf-gcc", "gcc-arm-linux-gnueabihf", &["libc6-dev-armhf-cross"]),
        emulator: emulator("qemu-arm-static"),
        libraries: "/usr/arm-linux-gnueabihf",
    },
    Target {
        name: "s390x",
        why: "64-bit, big-endian",
        captures: false,
        architecture: "s390x",
        triple: "s390x-unknown-linux-gnu",
        linker: cross_gcc("s390x-linux-gnu-gcc", "gcc-s390x-linux-gnu", &["libc6-dev-s390x-cross"]),
        emulator: emulator("qemu-s390x-static"),
        libraries: "/usr/s390x-linux-gnu",
    },
];

const fn cross_gcc(program: &'static str, package: &'static str, also: &'static [&'static str]) -> Tool {
    Tool { program, package, also }
}

const fn emulator(program: &'static str) -> Tool {
    Tool { program, package: "qemu-user-static", also: &[] }
}

const BARE_METAL: &str = "bare-metal";
const BARE_METAL_TRIPLE: &str = "thumbv7m-none-eabi";

const DARWIN: &str = "darwin";
const DARWIN_TRIPLES: &[&str] = &["aarch64-apple-darwin", "x86_64-apple-darwin"];

/// Property tests run this many cases in an emulator, which is many times slower than the
/// processor. The cases that depend on word size or byte order are in the conformance vectors, and
/// all of these run.
const EMULATED_PROPTEST_CASES: &str = "32";

/// Runs the targets named in `arguments`, or all.
pub(crate) fn run(arguments: &[String]) -> Outcome {
    let wanted = Wanted::parse(arguments)?;
    let tools: Vec<Tool> =
        wanted.targets.iter().flat_map(|target| [target.linker, target.emulator]).collect();
    debian::require(&tools)?;
    let cache = cache_directory();
    if !wanted.targets.is_empty() || wanted.bare_metal {
        test_portable_crates(&wanted, &cache)?;
    }
    for target in wanted.targets.iter().filter(|target| target.captures) {
        println!("\n-- {} (capture)", target.name);
        Compiler::in_cache(&cache, CAPTURE)
            .and_then(|compiler| {
                test_on(target, &compiler, Forks::Some).and_then(|()| record_on(target, &compiler))
            })
            .map_err(|failure| Failure::new(format!("{} (capture): {failure}", target.name)))?;
    }
    if wanted.darwin {
        println!("\n-- {DARWIN} ({}: compiled, neither linked nor run)", DARWIN_TRIPLES.join(", "));
        check_darwin(&cache).map_err(|failure| Failure::new(format!("{DARWIN}: {failure}")))?;
    }
    Ok(())
}

/// Tests the portable crates on the targets, and builds them for a microcontroller.
fn test_portable_crates(wanted: &Wanted, cache: &Path) -> Outcome {
    let compiler = Compiler::in_cache(cache, PORTABLE)?;
    for target in &wanted.targets {
        println!("\n-- {} ({})", target.name, target.why);
        test_on(target, &compiler, Forks::None)
            .map_err(|failure| Failure::new(format!("{}: {failure}", target.name)))?;
    }
    if wanted.bare_metal {
        println!("\n-- {BARE_METAL} ({BARE_METAL_TRIPLE}: core alone)");
        build_bare_metal(&compiler, &cache.join("bare"))
            .map_err(|failure| Failure::new(format!("{BARE_METAL}: {failure}")))?;
    }
    Ok(())
}

/// Compiles the capture crates for Darwin, if a compiler is available together with its source.
fn check_darwin(cache: &Path) -> Outcome {
    let compiler = match Compiler::in_cache(cache, APPLE) {
        Ok(compiler) => compiler,
        Err(failure) => {
            println!("{failure}");
            println!(
                "NOT CHECKED: {} for {}: Debian's rustc-web and rust-web-src of one version could not be fetched",
                CAPTURE_CRATES.join(", "),
                DARWIN_TRIPLES.join(", ")
            );
            return Ok(());
        }
    };
    let sysroot = cache.join("apple-core");
    for triple in DARWIN_TRIPLES {
        build_core(&compiler, &sysroot.join(triple), triple)?;
        let mut command = compiler.cargo("build", triple);
        command.arg("--release");
        command.env("RUSTFLAGS", format!("-Dwarnings --sysroot={}", sysroot.join(triple).display()));
        process::run(command.env_remove("CARGO_ENCODED_RUSTFLAGS"))?;
    }
    println!("checked: {} compile for {}", CAPTURE_CRATES.join(", "), DARWIN_TRIPLES.join(", "));
    println!("not checked: the link with Apple's libraries, and every run: neither is to be had here");
    Ok(())
}

struct Wanted {
    targets: Vec<&'static Target>,
    bare_metal: bool,
    darwin: bool,
}

impl Wanted {
    fn parse(names: &[String]) -> Outcome<Self> {
        if names.is_empty() {
            return Ok(Self { targets: TARGETS.iter().collect(), bare_metal: true, darwin: true });
        }
        let mut wanted = Self { targets: Vec::new(), bare_metal: false, darwin: false };
        for name in names {
            match TARGETS.iter().find(|target| target.name == name) {
                Some(target) => wanted.targets.push(target),
                None if name == BARE_METAL => wanted.bare_metal = true,
                None if name == DARWIN => wanted.darwin = true,
                None => {
                    let known: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
                    let known = known.join(", ");
                    return Err(Failure::usage(format!(
                        "no target {name:?}; there are: {known}, {BARE_METAL}, {DARWIN}"
                    )));
                }
            }
        }
        Ok(wanted)
    }
}

fn cache_directory() -> PathBuf {
    match std::env::var_os("CAIRN_PORTABILITY_CACHE") {
        // Relative to where the chore was started, as its user means it; cargo and rustc run
        // elsewhere.
        Some(directory) => std::path::absolute(&directory).unwrap_or_else(|_| directory.into()),
        None => workspace_root().join("target/portability"),
    }
}

/// Architecture that a compiler targets.
#[derive(Clone, Copy)]
pub(crate) struct Purpose {
    /// The compiler's directory in the cache.
    directory: &'static str,
    crates: &'static [&'static str],
    /// The targets that it has libraries for.
    serves: fn(&Target) -> bool,
    /// The library's source comes with it.
    with_source: bool,
}

const PORTABLE: Purpose =
    Purpose { directory: "rust", crates: PORTABLE_CRATES, serves: |_| true, with_source: true };
const CAPTURE: Purpose = Purpose {
    directory: "new",
    crates: CAPTURE_CRATES,
    serves: |target| target.captures,
    with_source: false,
};

/// The host's library alone, for what runs while crates are built.
pub(crate) const APPLE: Purpose =
    Purpose { directory: "apple", crates: CAPTURE_CRATES, serves: |_| false, with_source: true };

/// Debian's rustc, unpacked, with the libraries of its targets.
pub(crate) struct Compiler {
    /// The directory that represents `/`.
    root: PathBuf,
    /// A script that starts rustc with the shared libraries that were unpacked with it.
    rustc: PathBuf,
    crates: &'static [&'static str],
}

impl Compiler {
    /// Returns the compiler in a cache, which is filled first if need be.
    pub(crate) fn in_cache(cache: &Path, purpose: Purpose) -> Outcome<Self> {
        let root = cache.join(purpose.directory);
        let targets = TARGETS.iter().filter(|target| (purpose.serves)(target));
        let architectures: Vec<&str> =
            std::iter::once("amd64").chain(targets.map(|target| target.architecture)).collect();
        // Written last, with what the directory then holds: an interrupted run or a new target
        // fetches again.
        let complete = root.join("complete");
        let contents = format!("libraries: {}\n", architectures.join(" "));
        if fs::read_to_string(&complete).is_ok_and(|found| found == contents) {
            println!("using the compiler in {}", root.display());
        } else {
            fetch(cache, &root, &architectures, purpose.with_source)?;
            fs::write(&complete, contents).map_err(at(&complete))?;
        }
        let compiler = Self { rustc: root.join("rustc"), root, crates: purpose.crates };
        compiler.write_script()?;
        println!("{}", read(Command::new(&compiler.rustc).arg("--version"))?.trim_end());
        Ok(compiler)
    }

    /// Returns the directory that represents `/`.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the script that starts it.
    pub(crate) fn rustc(&self) -> &Path {
        &self.rustc
    }

    /// Writes the script, every time: the cache may have been moved since.
    fn write_script(&self) -> Outcome {
        let root = self.root.display();
        let script = format!(
            "#!/bin/sh\nroot='{root}'\nexec env LD_LIBRARY_PATH=\"$root/usr/lib/x86_64-linux-gnu\" \
             \"$root/usr/bin/rustc\" \"$@\"\n"
        );
        fs::write(&self.rustc, script).map_err(at(&self.rustc))?;
        fs::set_permissions(&self.rustc, fs::Permissions::from_mode(0o755)).map_err(at(&self.rustc))
    }

    /// Returns a cargo command on the crates that this compiler is for.
    fn cargo(&self, subcommand: &str, triple: &str) -> Command {
        self.cargo_on(self.crates, subcommand, triple)
    }

    fn cargo_on(&self, crates: &[&str], subcommand: &str, triple: &str) -> Command {
        let mut command = cargo();
        command.env("RUSTC", &self.rustc).args([subcommand, "--locked"]);
        for name in crates {
            command.args(["--package", name]);
        }
        command.args(["--target", triple, "--target-dir", BUILD_DIRECTORY]);
        command
    }
}

/// Fetches and unpacks compiler, libraries and, if wanted, source.
fn fetch(cache: &Path, root: &Path, architectures: &[&str], with_source: bool) -> Outcome {
    let own = debian::own_architecture()
        .map_err(|failure| Failure::new(format!("portability works on Debian only: {failure}")))?;
    if own != "amd64" {
        return Err(Failure::new(format!("portability is written for amd64 machines; this one is {own}")));
    }
    let apt = PrivateApt::new(&cache.join("apt"), architectures)?;
    apt.update();
    let version = common_version(&apt, architectures, with_source)?;
    let downloads = cache.join("apt/downloads");
    // Files of an interrupted run would otherwise be unpacked too.
    let _ = fs::remove_dir_all(&downloads);
    let _ = fs::remove_dir_all(root);
    apt.download(&packages(&apt, &version, architectures, with_source)?, &downloads)?;
    for archive in debian::archives(&downloads)? {
        let is_source =
            archive.file_name().is_some_and(|name| name.to_string_lossy().starts_with("rust-web-src"));
        // The source of the whole compiler is large; only that of the library is of use.
        debian::unpack(&archive, if is_source { "./usr/src/rustc-*/library" } else { "./usr" }, root)?;
    }
    fs::remove_dir_all(&downloads).map_err(at(&downloads))
}

/// Returns the newest version with a compiler, a source and a library for every architecture.
fn common_version(apt: &PrivateApt, architectures: &[&str], with_source: bool) -> Outcome<String> {
    let mut packages = vec!["rustc-web:amd64".to_owned()];
    packages.extend(with_source.then(|| "rust-web-src".to_owned()));
    packages.extend(architectures.iter().map(|architecture| format!("libstd-rust-web-dev:{architecture}")));
    let versions = packages.iter().map(|package| apt.versions(package)).collect::<Outcome<Vec<_>>>()?;
    newest_common(&versions).ok_or_else(|| {
        let found = packages
            .iter()
            .zip(&versions)
            .map(|(package, list)| format!("\n  {package}: {}", list.join(", ")));
        Failure::new(format!(
            "the package sources have no version of all of these (they must include Debian 12 main):{}",
            found.collect::<String>()
        ))
    })
}

/// Returns the first entry of the first list that every list has.
fn newest_common(lists: &[Vec<String>]) -> Option<String> {
    let (first, others) = lists.split_first()?;
    first.iter().find(|version| others.iter().all(|list| list.contains(version))).cloned()
}

fn packages(
    apt: &PrivateApt,
    version: &str,
    architectures: &[&str],
    with_source: bool,
) -> Outcome<Vec<String>> {
    let mut packages = vec![format!("rustc-web:amd64={version}")];
    packages.extend(with_source.then(|| format!("rust-web-src={version}")));
    packages.extend(
        architectures.iter().map(|architecture| format!("libstd-rust-web-dev:{architecture}={version}")),
    );
    // The shared libraries of rustc itself are in a package named after the series,
    // `libstd-rust-web-1.85`.
    let series: Vec<&str> = version.splitn(3, '.').take(2).collect();
    packages.extend(apt.missing_closure(&format!("libstd-rust-web-{}:amd64", series.join(".")))?);
    Ok(packages)
}

impl Target {
    /// Parts of cargo's variables for a target.
    fn variable(&self, what: &str) -> String {
        format!("CARGO_TARGET_{}_{what}", self.triple.to_uppercase().replace('-', "_"))
    }

    /// Returns what runs its programs.
    fn runner(&self) -> String {
        format!("{} -L {}", self.emulator.program, self.libraries)
    }
}

/// Whether a test forks. A child of the emulator can hang when another of its threads was inside
/// the emulator's own locks: one run of six did.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Forks {
    None,
    Some,
}

fn test_on(target: &Target, compiler: &Compiler, forks: Forks) -> Outcome {
    let mut command = compiler.cargo("test", target.triple);
    command.args(["--lib", "--tests"]);
    command.env(target.variable("LINKER"), target.linker.program);
    command.env(target.variable("RUNNER"), target.runner());
    if std::env::var_os("PROPTEST_CASES").is_none() {
        command.env("PROPTEST_CASES", EMULATED_PROPTEST_CASES);
    }
    match forks {
        // An emulator runs unoptimised code six times slower than code that is optimised a little,
        // and takes longer for it than the compiler does.
        Forks::None => command.env("CARGO_PROFILE_DEV_OPT_LEVEL", "1"),
        Forks::Some => command.env("RUST_TEST_THREADS", "1"),
    };
    process::run(&mut command)
}

/// Builds the library that records, and records programs with it in the emulator.
///
/// The test belongs to this machine: of all default members, because `cargo test` then finds
/// everything built.
fn record_on(target: &Target, compiler: &Compiler) -> Outcome {
    let mut build = compiler.cargo_on(&[LIBRARY_CRATE], "build", target.triple);
    build.args(["--profile", LIBRARY_PROFILE]).env(target.variable("LINKER"), target.linker.program);
    process::run(&mut build)?;
    let built = workspace_root().join(BUILD_DIRECTORY).join(target.triple).join(LIBRARY_PROFILE);
    let mut test = cargo();
    test.args(["test", "--locked", "--test", RECORDING_TEST]);
    test.env("CAIRN_EMULATED_LIBRARY", built.join(LIBRARY_FILE));
    test.env("CAIRN_EMULATED_COMPILER", target.linker.program);
    test.env("CAIRN_EMULATED_RUNNER", target.runner());
    process::run(&mut test)
}

/// Builds the crates, machine code included, in a world where `core` is the only library.
fn build_bare_metal(compiler: &Compiler, sysroot: &Path) -> Outcome {
    build_core(compiler, sysroot, BARE_METAL_TRIPLE)?;
    let mut command = compiler.cargo("build", BARE_METAL_TRIPLE);
    command.arg("--release").env("RUSTFLAGS", format!("--sysroot={}", sysroot.display()));
    process::run(command.env_remove("CARGO_ENCODED_RUSTFLAGS"))
}

/// Builds `core` from Debian's source, as a sysroot of one library.
///
/// `cargo -Zbuild-std=core` does it too, but fetches everything the library's lock file names and
/// needs a cargo whose unstable option fits a library of another version. `compiler_builtins`,
/// which `no_std` crates name, would come from there; as nothing is linked here, an empty one
/// serves.
fn build_core(compiler: &Compiler, sysroot: &Path, triple: &str) -> Outcome {
    let libraries = sysroot.join("lib/rustlib").join(triple).join("lib");
    let complete = sysroot.join("complete");
    let version = read(Command::new(&compiler.rustc).arg("--version"))?;
    if fs::read_to_string(&complete).is_ok_and(|built_by| built_by == version) {
        println!("using the core that is in {}", sysroot.display());
        return Ok(());
    }
    let _ = fs::remove_dir_all(sysroot);
    fs::create_dir_all(&libraries).map_err(at(&libraries))?;
    let source = library_source(&compiler.root)?.join("core");
    let manifest = source.join("Cargo.toml");
    let edition = edition(&fs::read_to_string(&manifest).map_err(at(&manifest))?)
        .ok_or_else(|| Failure::new(format!("{}: no edition", manifest.display())))?;
    let library = |name: &str, edition: &str, root: &Path| {
        let mut command = Command::new(&compiler.rustc);
        // The source is Debian's, for this very compiler; only its own unstable features are let in
        // by this.
        command.env("RUSTC_BOOTSTRAP", "1");
        command.args(["--crate-type=rlib", "--target", triple, "-Cpanic=abort", "--cap-lints=allow"]);
        command
            .args(["--crate-name", name, "--edition", edition])
            .arg(format!("--sysroot={}", sysroot.display()));
        command.arg("-o").arg(libraries.join(format!("lib{name}-bare.rlib"))).arg(root);
        process::run(&mut command)
    };
    library("core", &edition, &source.join("src/lib.rs"))?;
    let empty = sysroot.join("compiler_builtins.rs");
    let text = "#![feature(compiler_builtins)]\n#![compiler_builtins]\n#![no_std]\n";
    fs::write(&empty, text).map_err(at(&empty))?;
    library("compiler_builtins", "2021", &empty)?;
    fs::write(&complete, version).map_err(at(&complete))
}

/// `usr/src/rustc-<version>/library`.
pub(crate) fn library_source(root: &Path) -> Outcome<PathBuf> {
    let sources = root.join("usr/src");
    let entries = fs::read_dir(&sources).map_err(at(&sources))?;
    let mut found = entries.filter_map(|entry| Some(entry.ok()?.path().join("library")));
    found
        .find(|library| library.is_dir())
        .ok_or_else(|| Failure::new(format!("{}: no rustc-*/library; delete the cache", sources.display())))
}

/// Returns the value of `edition = "…"` in a manifest.
fn edition(manifest: &str) -> Option<String> {
    let line = manifest.lines().find(|line| line.starts_with("edition"))?;
    line.split('"').nth(1).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(versions: &[&str]) -> Vec<String> {
        versions.iter().map(|&version| version.to_owned()).collect()
    }

    #[test]
    fn portability_takes_newest_common_version() {
        let compiler = list(&["1.96.0-1", "1.85.0-3", "1.70.0-1"]);
        assert_eq!(
            newest_common(&[compiler.clone(), list(&["1.85.0-3", "1.70.0-1"])]),
            Some("1.85.0-3".to_owned())
        );
        assert_eq!(newest_common(&[compiler.clone(), compiler.clone()]), Some("1.96.0-1".to_owned()));
        assert_eq!(newest_common(&[compiler, list(&[])]), None);
    }

    #[test]
    fn portability_chooses_targets_by_name() {
        let wanted = Wanted::parse(&list(&["s390x", "bare-metal"])).unwrap();
        assert_eq!(wanted.targets.iter().map(|target| target.name).collect::<Vec<_>>(), ["s390x"]);
        assert!(wanted.bare_metal);
        let all = Wanted::parse(&[]).unwrap();
        assert!(all.bare_metal && all.darwin && all.targets.len() == TARGETS.len());
        assert!(Wanted::parse(&list(&["darwin"])).unwrap().darwin);
        let Err(failure) = Wanted::parse(&list(&["vax"])) else { panic!("vax is no target") };
        assert!(failure.to_string().contains("\"vax\""), "{failure}");
    }

    #[test]
    fn portability_reads_the_edition_from_a_manifest() {
        assert_eq!(edition("[package]\nname = \"core\"\nedition = \"2021\"\n"), Some("2021".to_owned()));
        assert_eq!(edition("[package]\n"), None);
    }
}
