//! `cargo xtask c-library`: the libraries for C, and with `--prefix` an installation of them.
//!
//! With `--target`, for another processor. Where cairn captures stacks (Linux on x86-64 and
//! AArch64) that is the same; for all others, 32-bit x86 and microcontrollers, it is `libcairn.a`
//! with the functions of `cairn_heap.h` alone, which needs nothing of its surroundings but `memcpy`
//! and its kind.

use std::fs;
use std::path::{Path, PathBuf};

use crate::process::{Failure, Outcome, at, cargo, run as run_command, workspace_root};

/// The profile of the root Cargo.toml, and with it the directory below `target`.
const PROFILE: &str = "c-library";

/// Soname of the shared library, by which programs request it; equal to that in cairn-c's
/// `build.rs`.
const SONAME: &str = "libcairn.so.0";

const USAGE: &str = "usage: cargo xtask c-library [--target TRIPLE] [--prefix DIRECTORY]";

/// Builds `libcairn.{so,a}`; with a prefix, copies them there with the headers and `cairn.pc`.
pub(crate) fn run(arguments: &[String]) -> Outcome {
    let (mut target, mut prefix) = (None, None);
    let mut rest = arguments.iter();
    while let Some(flag) = rest.next() {
        let place = match flag.as_str() {
            "--target" => &mut target,
            "--prefix" => &mut prefix,
            _ => return Err(Failure::usage(USAGE)),
        };
        match rest.next() {
            Some(value) if place.is_none() => *place = Some(value.as_str()),
            _ => return Err(Failure::usage(USAGE)),
        }
    }
    let built = build(target)?;
    prefix.map_or(Ok(()), |prefix| install(&built, Path::new(prefix)))
}

/// The files that were built.
pub(crate) struct Built {
    /// The static library.
    pub(crate) library: PathBuf,
    /// The shared library, where the target has one.
    shared: Option<PathBuf>,
    headers: &'static [&'static str],
}

/// Returns whether stacks are captured there, which the whole library is made for.
fn captures_stacks(triple: &str) -> bool {
    let (processor, system) = triple.split_once('-').unwrap_or((triple, ""));
    matches!(processor, "x86_64" | "aarch64") && system.ends_with("linux-gnu")
}

/// Builds the library for a target, or for this machine.
pub(crate) fn build(target: Option<&str>) -> Outcome<Built> {
    let directory = std::env::var_os("CARGO_TARGET_DIR").map_or(workspace_root().join("target"), Into::into);
    let built = target.map_or(directory.clone(), |triple| directory.join(triple)).join(PROFILE);
    let is_whole = target.is_none_or(captures_stacks);
    let mut command = cargo();
    if is_whole {
        command.args(["build", "--package", "cairn-c"]);
    } else {
        command.args(["rustc", "--package", "cairn-heap", "--features", "staticlib"]);
        command.args(["--crate-type", "staticlib"]);
    }
    command.args(["--locked", "--profile", PROFILE]);
    if let Some(triple) = target {
        command.args(["--target", triple]);
    }
    run_command(&mut command).map_err(|failure| match target {
        Some(triple) => {
            Failure::new(format!("{failure}; the target's libraries come with `rustup target add {triple}`"))
        }
        None => failure,
    })?;
    Ok(if is_whole {
        Built {
            library: built.join("libcairn.a"),
            shared: Some(built.join("libcairn.so")),
            headers: &["include/cairn_capture.h", "include/cairn_heap.h"],
        }
    } else {
        Built { library: built.join("libcairn_heap.a"), shared: None, headers: &["include/cairn_heap.h"] }
    })
}

fn install(built: &Built, prefix: &Path) -> Outcome {
    fs::create_dir_all(prefix).map_err(at(prefix))?;
    // pkg-config hands the prefix to compilers that run elsewhere.
    let prefix = &fs::canonicalize(prefix).map_err(at(prefix))?;
    let crate_directory = workspace_root().join("crates/cairn-c");
    copy(&built.library, &prefix.join("lib/libcairn.a"))?;
    for header in built.headers {
        copy(&crate_directory.join(header), &prefix.join(header))?;
    }
    if let Some(shared) = &built.shared {
        copy(shared, &prefix.join("lib").join(SONAME))?;
        let link = prefix.join("lib/libcairn.so");
        let _ = fs::remove_file(&link);
        std::os::unix::fs::symlink(SONAME, &link).map_err(at(&link))?;
    }
    let template = crate_directory.join("cairn.pc.in");
    let text = fs::read_to_string(&template)
        .map_err(at(&template))?
        .replace("@PREFIX@", &prefix.to_string_lossy())
        .replace("@VERSION@", env!("CARGO_PKG_VERSION"));
    let description = prefix.join("lib/pkgconfig/cairn.pc");
    make_parent(&description)?;
    fs::write(&description, text).map_err(at(&description))
}

/// Copies beside the place and renames, so that a program which has the old file mapped keeps it
/// whole.
fn copy(from: &Path, to: &Path) -> Outcome {
    make_parent(to)?;
    let fresh = to.with_extension("new");
    fs::copy(from, &fresh).map_err(at(from))?;
    fs::rename(&fresh, to).map_err(at(to))
}

fn make_parent(path: &Path) -> Outcome {
    path.parent().map_or(Ok(()), |parent| fs::create_dir_all(parent).map_err(at(parent)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c_library_is_whole_for_targets_with_captures() {
        for triple in ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"] {
            assert!(captures_stacks(triple), "{triple}");
        }
        let others = [
            "i686-unknown-linux-gnu",
            "x86_64-unknown-linux-musl",
            "aarch64-unknown-none",
            "thumbv6m-none-eabi",
        ];
        for triple in others {
            assert!(!captures_stacks(triple), "{triple}");
        }
    }

    #[test]
    fn c_library_refuses_unknown_arguments() {
        let cases: [&[&str]; 4] = [&["--prefix"], &["x"], &["--target"], &["--target", "a", "--target", "b"]];
        for arguments in cases {
            let arguments: Vec<String> = arguments.iter().map(|&word| word.to_owned()).collect();
            let failure = run(&arguments).unwrap_err();
            assert_eq!(failure, Failure::usage(USAGE), "{arguments:?}");
        }
    }
}
