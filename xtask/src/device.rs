//! `cargo xtask device`: the annotated heap on a device without an operating system, `examples/annotated-device`.
//!
//! Built for a Cortex-M4 in each layout, run by qemu, and what it says over its UART decoded by `cairn decode`: every layout
//! must tell of the same blocks, and name the functions that allocated them. Prints code, memory, and bytes a block.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use crate::process::{self, Failure, Outcome, at, cargo, read, workspace_root};

const TRIPLE: &str = "thumbv7em-none-eabi";
const EMULATOR: &str = "qemu-system-arm";

/// What the program has when it dumps: 19 connections with their buffers, what holds them, and a tree.
const EXPECTED_BLOCKS: usize = 58;
const EXPECTED_FUNCTIONS: [&str; 3] = ["read_packet", "accept", "sample_sensors"];

pub(crate) fn run(arguments: &[String]) -> Outcome {
    if !arguments.is_empty() {
        return Err(Failure::usage("usage: cargo xtask device"));
    }
    if !process::on_path(EMULATOR) {
        return Err(Failure::new(format!("{EMULATOR} is missing; install the package qemu-system-arm")));
    }
    process::run(cargo().args(["build", "--package", "cairn-cli"]))?;
    let plain = run_layout("plain")?;
    let plain_pool = plain.number("pool")?;
    for layout in ["cairn", "lws", "heapprof"] {
        let found = run_layout(layout)?;
        let wrong = |what: &str| Failure::new(format!("{layout}: {what}\n{}", found.totals));
        let lines = found.output.lines().filter(|line| line.starts_with("~m#")).count();
        if lines != EXPECTED_BLOCKS || found.number("blocks")? != EXPECTED_BLOCKS {
            return Err(wrong(&format!("{lines} blocks in place of {EXPECTED_BLOCKS}")));
        }
        let total = format!("# Total instrumented allocation {}", found.number("bytes")?);
        if !found.totals.lines().any(|line| line == total) {
            return Err(wrong(&format!("the line `{total}` is missing")));
        }
        if let Some(name) = EXPECTED_FUNCTIONS.iter().find(|name| !found.totals.contains(*name)) {
            return Err(wrong(&format!("the function {name} is missing")));
        }
        let more = found.number("pool")?.saturating_sub(plain_pool);
        println!(
            "{layout:9} {} bytes of code (without: {}), {:.1} bytes for each of {EXPECTED_BLOCKS} blocks",
            found.code_bytes,
            plain.code_bytes,
            more as f64 / EXPECTED_BLOCKS as f64
        );
    }
    Ok(())
}

struct Found {
    output: String,
    totals: String,
    code_bytes: u64,
}

impl Found {
    /// The number behind a name at the start of a line.
    fn number(&self, name: &str) -> Outcome<usize> {
        let values: BTreeMap<&str, &str> =
            self.output.lines().filter_map(|line| line.trim_end().split_once(' ')).collect();
        let value = values.get(name).and_then(|value| value.parse().ok());
        value.ok_or_else(|| Failure::new(format!("the device did not say `{name}`:\n{}", self.output)))
    }
}

fn run_layout(layout: &str) -> Outcome<Found> {
    let example = workspace_root().join("examples/annotated-device");
    let target = workspace_root().join("target/device");
    let mut build = cargo();
    build.current_dir(&example).args(["build", "--release", "--locked"]).env("CARGO_TARGET_DIR", &target);
    if layout != "cairn" {
        build.args(["--features", layout]);
    }
    process::run(&mut build).map_err(|failure| {
        Failure::new(format!("{failure}; the target's libraries come with `rustup target add {TRIPLE}`"))
    })?;
    let program = target.join(TRIPLE).join("release/annotated-device");
    let machine = "-machine mps2-an386 -nographic -monitor none -serial stdio -semihosting-config enable=on,target=native";
    let output = read(Command::new(EMULATOR).args(machine.split(' ')).arg("-kernel").arg(&program))?;
    let log = target.join(format!("{layout}.log"));
    fs::write(&log, &output).map_err(at(&log))?;
    let cairn = workspace_root().join("target/debug/cairn");
    let totals = read(Command::new(&cairn).args(["decode", "--totals", "-e"]).arg(&program).arg(&log))?;
    let elf = fs::read(&program).map_err(at(&program))?;
    let code_bytes = loaded_bytes(&elf)
        .ok_or_else(|| Failure::new(format!("{}: no 32-bit ELF file", program.display())))?;
    Ok(Found { output, totals, code_bytes })
}

/// What of the file is put into the device's flash: the bytes of all loaded segments.
fn loaded_bytes(elf: &[u8]) -> Option<u64> {
    const PT_LOAD: u32 = 1;
    let word = |at: usize| Some(u32::from_le_bytes(elf.get(at..at.checked_add(4)?)?.try_into().ok()?));
    let half = |at: usize| Some(u16::from_le_bytes(elf.get(at..at.checked_add(2)?)?.try_into().ok()?));
    if elf.get(..5)? != b"\x7fELF\x01" {
        return None;
    }
    let (table, size, count) = (word(28)? as usize, usize::from(half(42)?), usize::from(half(44)?));
    (0..count).try_fold(0_u64, |sum, index| {
        let entry = table.checked_add(index * size)?;
        Some(if word(entry)? == PT_LOAD { sum + u64::from(word(entry + 16)?) } else { sum })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_loaded_is_counted() {
        let mut elf = vec![0_u8; 52 + 64];
        elf[..5].copy_from_slice(b"\x7fELF\x01");
        (elf[28], elf[42], elf[44]) = (52, 32, 2);
        (elf[52], elf[52 + 16]) = (1, 100);
        (elf[84], elf[84 + 16]) = (2, 50);
        assert_eq!(loaded_bytes(&elf), Some(100));
        assert_eq!(loaded_bytes(&elf[..80]), None);
        assert_eq!(loaded_bytes(b"\x7fELF\x02"), None);
    }
}
