//! `cargo xtask c-library`: the libraries for C, and with `--prefix` an installation of them.

use std::fs;
use std::path::Path;

use crate::process::{Failure, Outcome, at, cargo, run as run_command, workspace_root};

/// The profile of the root Cargo.toml, and with it the directory below `target`.
const PROFILE: &str = "c-library";

/// The name that programs which link the shared library ask the loader for; `build.rs` of cairn-c says the same.
const SONAME: &str = "libcairn.so.0";

/// Builds `target/c-library/libcairn.{so,a}`; with a prefix, copies them there with the header and `cairn.pc`.
pub(crate) fn run(arguments: &[String]) -> Outcome {
    let prefix = match arguments {
        [] => None,
        [flag, prefix] if flag == "--prefix" => Some(Path::new(prefix)),
        _ => return Err(Failure::usage("usage: cargo xtask c-library [--prefix DIRECTORY]")),
    };
    run_command(cargo().args(["build", "--locked", "--package", "cairn-c", "--profile", PROFILE]))?;
    prefix.map_or(Ok(()), install)
}

fn install(prefix: &Path) -> Outcome {
    fs::create_dir_all(prefix).map_err(at(prefix))?;
    // pkg-config hands the prefix to compilers that run elsewhere.
    let prefix = &fs::canonicalize(prefix).map_err(at(prefix))?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(workspace_root().join("target"), Into::into);
    let built = target.join(PROFILE);
    let crate_directory = workspace_root().join("crates/cairn-c");
    copy(&built.join("libcairn.a"), &prefix.join("lib/libcairn.a"))?;
    copy(&built.join("libcairn.so"), &prefix.join("lib").join(SONAME))?;
    for header in ["include/cairn_capture.h", "include/cairn_heap.h"] {
        copy(&crate_directory.join(header), &prefix.join(header))?;
    }
    let link = prefix.join("lib/libcairn.so");
    let _ = fs::remove_file(&link);
    std::os::unix::fs::symlink(SONAME, &link).map_err(at(&link))?;
    let template = crate_directory.join("cairn.pc.in");
    let text = fs::read_to_string(&template)
        .map_err(at(&template))?
        .replace("@PREFIX@", &prefix.to_string_lossy())
        .replace("@VERSION@", env!("CARGO_PKG_VERSION"));
    let description = prefix.join("lib/pkgconfig/cairn.pc");
    make_parent(&description)?;
    fs::write(&description, text).map_err(at(&description))
}

/// Copies beside the place and renames, so that a program which has the old file mapped keeps it whole.
fn copy(from: &Path, to: &Path) -> Outcome {
    make_parent(to)?;
    let fresh = to.with_extension("new");
    fs::copy(from, &fresh).map_err(at(from))?;
    fs::rename(&fresh, to).map_err(at(to))
}

fn make_parent(path: &Path) -> Outcome {
    path.parent().map_or(Ok(()), |parent| fs::create_dir_all(parent).map_err(at(parent)))
}
