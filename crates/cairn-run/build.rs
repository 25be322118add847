//! Builds the library that is put into programs, so that it can be carried inside the command.
//!
//! It is built by a cargo of its own, because it needs another profile: without unwinding,
//! optimised, one object file.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// Sources of the library; a change in one of them rebuilds it.
const CRATES: [&str; 7] = [
    "cairn-preload",
    "cairn-recorder",
    "cairn-heap",
    "cairn-capture",
    "cairn-unwind",
    "cairn-wire",
    "cairn-format",
];
/// Sources of the library for Windows.
const CRATES_OF_WINDOWS: [&str; 6] =
    ["cairn-hooks-windows", "cairn-recorder", "cairn-capture", "cairn-unwind", "cairn-wire", "cairn-format"];
const PROFILE: &str = "c-library";
const WINDOWS_SETTINGS: [&str; 4] =
    ["--config", "profile.c-library.lto=\"off\"", "--config", "profile.c-library.strip=true"];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(has_library)");
    let target = env::var("TARGET").unwrap_or_default();
    println!("cargo::rerun-if-env-changed=CAIRN_WITHOUT_HOOKS");
    // For checks on machines that cannot link for the target.
    let is_left_out = env::var_os("CAIRN_WITHOUT_HOOKS").is_some();
    if matches!(&*target, "x86_64-pc-windows-gnu" | "x86_64-pc-windows-msvc") && !is_left_out {
        return build_for_windows(&target);
    }
    if !matches!(&*target, "x86_64-unknown-linux-gnu" | "aarch64-unknown-linux-gnu") {
        println!("cargo::warning=no library for recording on {target}: cairn heap will say so");
        return;
    }
    let crates = watch(&CRATES);
    let manifest = crates.join("cairn-preload/Cargo.toml");
    // The second one is for programs that use another allocator than the C library's; the third
    // annotates and records nothing.
    for (variable, features) in [
        ("CAIRN_PRELOAD_LIBRARY", ""),
        ("CAIRN_PRELOAD_ALLOCATORS", "allocators"),
        ("CAIRN_PRELOAD_ANNOTATE", "annotate"),
    ] {
        let built = build(&manifest, &target, features);
        let retained = built.with_file_name(format!("{variable}.so"));
        fs::copy(&built, &retained).unwrap_or_else(|error| panic!("{}: {error}", built.display()));
        println!("cargo::rustc-env={variable}={}", retained.display());
    }
    println!("cargo::rustc-cfg=has_library");
}

/// Rebuilds the library after a change in one of these crates; returns the directory of all.
fn watch(names: &[&str]) -> PathBuf {
    let crates = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("..");
    let sources = names.iter().map(|name| crates.join(name)).filter(|path| path.exists());
    for source in sources {
        for part in ["Cargo.toml", "build.rs", "src"] {
            let part = source.join(part);
            if part.exists() {
                println!("cargo::rerun-if-changed={}", part.display());
            }
        }
    }
    println!("cargo::rerun-if-changed={}", crates.join("../Cargo.toml").display());
    crates
}

fn build_for_windows(target: &str) {
    let manifest = watch(&CRATES_OF_WINDOWS).join("cairn-hooks-windows/Cargo.toml");
    let built = build(&manifest, target, "").with_file_name("cairn_hooks.dll");
    println!("cargo::rustc-env=CAIRN_HOOKS_LIBRARY={}", built.display());
    println!("cargo::rustc-cfg=has_library");
}

fn build(manifest: &Path, target: &str, features: &str) -> PathBuf {
    let directory = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it")).join("preload");
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .args(["build", "--quiet", "--profile", PROFILE, "--target", target, "--features", features])
        .arg("--manifest-path")
        .arg(manifest)
        .arg("--target-dir")
        .arg(&directory)
        // Debug information of the library has no reader. Without std, link-time optimization saves
        // little on Windows, and standard libraries built for tests have no bitcode for it.
        .args(if target.contains("windows") { &WINDOWS_SETTINGS[..] } else { &[] })
        // Settings of the outer cargo (a wrapper for coverage, a linter, flags) do not apply to the
        // library.
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .env_remove("RUSTC_WRAPPER")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("RUSTFLAGS");
    let status = command.status().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(status.success(), "{command:?}: {status}");
    directory.join(target).join(PROFILE).join("libcairn_preload.so")
}
