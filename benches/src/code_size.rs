//! How many bytes of machine code the encoders cost an embedded user.
//!
//! Builds `examples/embedded-encoders` (`no_std`, `opt-level = "z"`, one LTO unit), links it with
//! `--gc-sections` so that only what the exported functions reach stays, and reads the section
//! sizes with `size`.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The machines that are tried; those whose `core` is not installed are named and left out.
const TARGETS: [&str; 3] = ["thumbv7em-none-eabi", "aarch64-unknown-none", "x86_64-unknown-linux-gnu"];

/// Code that the linker retains, by the names of the example's functions.
const RETAINED: [(&str, &[&str]); 3] = [
    ("CBF encode", &["cairn_cbf_encode"]),
    ("lws encode", &["cairn_lws_encode"]),
    ("both", &["cairn_cbf_encode", "cairn_lws_encode"]),
];

/// The goal for both encoders together.
const GOAL_BYTES: u64 = 4096;

/// Prints a table of section sizes.
pub(crate) fn run() -> Result<(), String> {
    println!("| target | functions | text bytes | read-only data bytes |");
    println!("|---|---|---:|---:|");
    let mut missing = Vec::new();
    for target in TARGETS {
        if !installed(target)? {
            missing.push(target);
            continue;
        }
        let library = build(target)?;
        for (label, functions) in RETAINED {
            let linked = link(&library, functions)?;
            let sizes = section_sizes(&linked)?;
            let verdict = match label {
                "both" if sizes.text < GOAL_BYTES => " (goal met)",
                "both" => " (goal missed)",
                _ => "",
            };
            println!("| {target} | {label} | {}{verdict} | {} |", sizes.text, sizes.read_only);
        }
    }
    println!("\nGoal: both encoders under {GOAL_BYTES} bytes of text.");
    for target in missing {
        println!("Not measured: {target} (`rustup target add {target}`).");
    }
    Ok(())
}

fn example() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/embedded-encoders")
}

fn installed(target: &str) -> Result<bool, String> {
    let directory = output(Command::new("rustc").args(["--print", "target-libdir", "--target", target]))?;
    Ok(Path::new(directory.trim()).exists())
}

fn build(target: &str) -> Result<PathBuf, String> {
    let cargo = env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    output(
        Command::new(cargo)
            .args(["build", "--quiet", "--release", "--target", target])
            .current_dir(example())
            .env_remove("RUSTFLAGS"),
    )?;
    Ok(example().join("target").join(target).join("release/libembedded_encoders.a"))
}

/// Links with Rust's own linker, which knows every target. Functions of the C library (`memcpy`)
/// stay unresolved where the target has no copy in Rust: an embedded program has them already.
fn link(library: &Path, functions: &[&str]) -> Result<PathBuf, String> {
    let sysroot = output(Command::new("rustc").args(["--print", "sysroot"]))?;
    let version = output(Command::new("rustc").arg("-vV"))?;
    let host =
        version.lines().find_map(|line| line.strip_prefix("host: ")).ok_or("rustc -vV names no host")?;
    let linker = Path::new(sysroot.trim()).join("lib/rustlib").join(host).join("bin/rust-lld");
    let linked = library.with_file_name(functions.join("+"));
    let mut command = Command::new(linker);
    command.args(["-flavor", "gnu", "--gc-sections", "--unresolved-symbols=ignore-all", "-o"]).arg(&linked);
    command.args(["-e", functions[0]]);
    for function in functions {
        command.args(["-u", function]);
    }
    output(command.arg(library))?;
    Ok(linked)
}

struct Sizes {
    text: u64,
    read_only: u64,
}

fn section_sizes(linked: &Path) -> Result<Sizes, String> {
    let table = output(Command::new("size").args(["-A", "-d"]).arg(linked))?;
    let total = |prefix: &str| -> u64 {
        let rows = table.lines().filter(|line| line.starts_with(prefix));
        rows.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).sum()
    };
    let sizes = Sizes { text: total(".text"), read_only: total(".rodata") };
    if sizes.text == 0 { Err(format!("{}: no text section", linked.display())) } else { Ok(sizes) }
}

/// Standard output of a command that must succeed.
fn output(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| format!("{name}: {error}"))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(format!(
            "{name} ended with {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        ))
    }
}
