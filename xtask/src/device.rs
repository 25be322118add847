//! `cargo xtask device`: the annotated heap on devices without an operating system.
//!
//! Each example is built in each layout, run by an emulator, and what it says over its UART decoded
//! by `cairn decode`: every layout must report the same blocks, and name the functions that
//! allocated them. Prints code, memory, and bytes a block.
//!
//! | name | example | processor |
//! |---|---|---|
//! | `cortex-m4` | `examples/annotated-device`, in Rust | Cortex-M4, and the same in code for a Cortex-M0 |
//! | `cortex-m0` | `examples/annotated-device-c` | Cortex-M0, without compare-and-swap |
//! | `riscv32` | the same | RV32IMC, without compare-and-swap |
//! | `i686` | the same, as a program for Linux | 32-bit x86 |

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::c_library;
use crate::process::{self, Failure, Outcome, at, cargo, read, workspace_root};

/// A Cortex-M4, and one that is used as a Cortex-M0: without compare-and-swap.
const TRIPLES: [&str; 2] = ["thumbv7em-none-eabi", "thumbv6m-none-eabi"];
const EMULATOR: &str = "qemu-system-arm";

/// Live blocks of the Rust program at its dump. They are 19 connections with their buffers, the
/// vector that holds them, and a tree.
const EXPECTED_BLOCKS: usize = 58;
/// Live blocks of the program in C: 20 connections with their buffers, and 10 samples.
const EXPECTED_BLOCKS_OF_C: usize = 50;
const EXPECTED_FUNCTIONS: [&str; 3] = ["read_packet", "accept", "sample_sensors"];

const LAYOUTS: [(&str, &str); 3] = [("lws", "1"), ("heapprof", "2"), ("cairn", "3")];

/// A processor that the program in C is built and run for.
struct Board {
    name: &'static str,
    triple: &'static str,
    compiler: &'static str,
    /// The Debian package of the compiler, and that of the emulator.
    packages: [&'static str; 2],
    flags: &'static [&'static str],
    /// For the compiler, as a linker, in the directory of the example.
    script: Option<&'static str>,
    source: &'static str,
    /// The command that runs it; nothing where this machine does.
    emulator: &'static [&'static str],
}

/// The flags of programs without a C library.
const FREESTANDING: [&str; 6] = [
    "-ffreestanding",
    "-nostdlib",
    "-ffunction-sections",
    "-fdata-sections",
    "-Wl,--gc-sections",
    "-DNEEDS_CRITICAL_SECTION",
];

const BOARDS: [Board; 3] = [
    Board {
        name: "cortex-m0",
        triple: "thumbv6m-none-eabi",
        compiler: "arm-none-eabi-gcc",
        packages: ["gcc-arm-none-eabi", "qemu-system-arm"],
        flags: &[
            "-mcpu=cortex-m0",
            "-mthumb",
            "-funwind-tables",
            "-DBOARD_UNWINDS",
            "-Wl,--no-warn-execstack",
        ],
        script: Some("cortex-m0.ld"),
        source: "cortex-m0.c",
        emulator: &[
            EMULATOR,
            "-machine",
            "microbit",
            "-nographic",
            "-monitor",
            "none",
            "-serial",
            "stdio",
            "-semihosting-config",
            "enable=on,target=native",
            "-kernel",
        ],
    },
    Board {
        name: "riscv32",
        triple: "riscv32imc-unknown-none-elf",
        compiler: "riscv64-unknown-elf-gcc",
        packages: ["gcc-riscv64-unknown-elf", "qemu-system-misc"],
        flags: &[
            "-march=rv32imc_zicsr",
            "-mabi=ilp32",
            "-fno-omit-frame-pointer",
            "-Wl,--no-warn-rwx-segments",
        ],
        script: Some("riscv32.ld"),
        source: "riscv32.c",
        emulator: &[
            "qemu-system-riscv32",
            "-machine",
            "virt",
            "-bios",
            "none",
            "-nographic",
            "-monitor",
            "none",
            "-serial",
            "stdio",
            "-kernel",
        ],
    },
    Board {
        name: "i686",
        triple: "i686-unknown-linux-gnu",
        compiler: "i686-linux-gnu-gcc",
        packages: ["gcc-i686-linux-gnu", "libc6-dev-i386-cross"],
        flags: &["-fno-omit-frame-pointer", "-static"],
        script: None,
        source: "linux.c",
        emulator: &[],
    },
];

/// Runs the examples that are named, or all.
pub(crate) fn run(arguments: &[String]) -> Outcome {
    let names: Vec<&str> = BOARDS.iter().map(|board| board.name).collect();
    let is_known = |name: &String| name == "cortex-m4" || names.contains(&name.as_str());
    if !arguments.iter().all(is_known) {
        return Err(Failure::usage(format!("usage: cargo xtask device [cortex-m4] [{}]", names.join("] ["))));
    }
    let is_wanted = |name: &str| arguments.is_empty() || arguments.iter().any(|argument| argument == name);
    process::run(cargo().args(["build", "--package", "cairn-cli"]))?;
    if is_wanted("cortex-m4") {
        run_rust()?;
    }
    BOARDS.iter().filter(|board| is_wanted(board.name)).try_for_each(Board::run)
}

impl Board {
    fn run(&self) -> Outcome {
        let programs = [Some(&self.compiler), self.emulator.first()];
        for (program, package) in programs.into_iter().zip(self.packages) {
            if program.is_some_and(|program| !process::on_path(program)) {
                let program = program.copied().unwrap_or_default();
                return Err(Failure::new(format!("{program} is missing; install the package {package}")));
            }
        }
        let built = c_library::build(Some(self.triple))?;
        for (layout, number) in LAYOUTS {
            let program = self.compile(&built.library, layout, number)?;
            let found = self.run_program(&program, layout)?;
            found.check(layout, EXPECTED_BLOCKS_OF_C)?;
            found.check_callers()?;
            // An interrupt may come at any instruction; without interrupts nothing of that is
            // tested.
            if found.number("interrupts")? < 5000 {
                return Err(Failure::new(format!("{}: too few interrupts:\n{}", self.name, found.output)));
            }
            println!("{:9} {layout:9} {} bytes of code", self.name, found.code_bytes);
        }
        Ok(())
    }

    fn compile(&self, library: &Path, layout: &str, number: &str) -> Outcome<PathBuf> {
        let example = workspace_root().join("examples/annotated-device-c");
        let directory = workspace_root().join("target/device");
        fs::create_dir_all(&directory).map_err(at(&directory))?;
        let program = directory.join(format!("{}-{layout}", self.name));
        let mut command = Command::new(self.compiler);
        command.args([
            "-std=gnu11",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-g",
            "-Os",
            "-fno-optimize-sibling-calls",
        ]);
        command.args(self.flags).arg(format!("-DLAYOUT={number}"));
        command.arg("-I").arg(workspace_root().join("crates/cairn-c/include"));
        if let Some(script) = self.script {
            command.args(FREESTANDING).arg("-T").arg(example.join(script));
        }
        command.arg(example.join("main.c")).arg(example.join(self.source)).arg(library);
        if self.script.is_some() {
            command.arg("-lgcc");
        }
        process::run(command.arg("-o").arg(&program))?;
        Ok(program)
    }

    fn run_program(&self, program: &Path, layout: &str) -> Outcome<Found> {
        // A device whose lists are damaged may never end.
        let mut command = Command::new("timeout");
        let output = read(command.arg("120").args(self.emulator).arg(program))?;
        decode(output, program, &format!("{}-{layout}", self.name))
    }
}

fn run_rust() -> Outcome {
    if !process::on_path(EMULATOR) {
        return Err(Failure::new(format!("{EMULATOR} is missing; install the package qemu-system-arm")));
    }
    TRIPLES.into_iter().try_for_each(run_rust_for)
}

fn run_rust_for(triple: &str) -> Outcome {
    let plain = run_layout(triple, "plain")?;
    let plain_pool = plain.number("pool")?;
    for layout in ["cairn", "lws", "heapprof"] {
        let found = run_layout(triple, layout)?;
        found.check(layout, EXPECTED_BLOCKS)?;
        let more = found.number("pool")?.saturating_sub(plain_pool);
        println!(
            "{triple} {layout:9} {} bytes of code (without: {}), {:.1} bytes for each of {EXPECTED_BLOCKS} blocks",
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
    /// Compares the device's counters with its lines.
    fn check(&self, layout: &str, expected_blocks: usize) -> Outcome {
        let wrong = |what: &str| Failure::new(format!("{layout}: {what}\n{}", self.totals));
        let lines = self.output.lines().filter(|line| line.starts_with("~m#")).count();
        if lines != expected_blocks || self.number("blocks")? != expected_blocks {
            return Err(wrong(&format!("{lines} blocks in place of {expected_blocks}")));
        }
        let total = format!("# Total instrumented allocation {}", self.number("bytes")?);
        if !self.totals.lines().any(|line| line == total) {
            return Err(wrong(&format!("the line `{total}` is missing")));
        }
        if let Some(name) = EXPECTED_FUNCTIONS.iter().find(|name| !self.totals.contains(*name)) {
            return Err(wrong(&format!("the function {name} is missing")));
        }
        Ok(())
    }

    /// Every stack must begin in a function that allocates: no frame of cairn's, nor of the
    /// board's.
    fn check_callers(&self) -> Outcome {
        let lines: Vec<&str> = self.totals.lines().collect();
        let stacks = lines.windows(2).filter(|pair| pair[0].contains(" bytes in ")).map(|pair| pair[1]);
        let is_wrong = |first: &&str| !EXPECTED_FUNCTIONS.iter().any(|name| first.contains(name));
        match stacks.into_iter().find(is_wrong) {
            Some(first) => Err(Failure::new(format!("a stack begins with `{first}`:\n{}", self.totals))),
            None => Ok(()),
        }
    }

    /// Returns the number behind a name at the start of a line.
    fn number(&self, name: &str) -> Outcome<usize> {
        let values: BTreeMap<&str, &str> =
            self.output.lines().filter_map(|line| line.trim_end().split_once(' ')).collect();
        let value = values.get(name).and_then(|value| value.parse().ok());
        value.ok_or_else(|| Failure::new(format!("the device did not say `{name}`:\n{}", self.output)))
    }
}

fn run_layout(triple: &str, layout: &str) -> Outcome<Found> {
    let example = workspace_root().join("examples/annotated-device");
    let target = workspace_root().join("target/device");
    let mut build = cargo();
    build
        .current_dir(&example)
        .args(["build", "--release", "--locked", "--target", triple])
        .env("CARGO_TARGET_DIR", &target);
    if layout != "cairn" {
        build.args(["--features", layout]);
    }
    process::run(&mut build).map_err(|failure| {
        Failure::new(format!("{failure}; the target's libraries come with `rustup target add {triple}`"))
    })?;
    let program = target.join(triple).join("release/annotated-device");
    let machine = "-machine mps2-an386 -nographic -monitor none -serial stdio -semihosting-config enable=on,target=native";
    let output = read(Command::new(EMULATOR).args(machine.split(' ')).arg("-kernel").arg(&program))?;
    decode(output, &program, &format!("{triple}-{layout}"))
}

/// Decodes the output of a program with the program's own symbols.
fn decode(output: String, program: &Path, name: &str) -> Outcome<Found> {
    let log = workspace_root().join("target/device").join(format!("{name}.log"));
    fs::write(&log, &output).map_err(at(&log))?;
    let cairn = workspace_root().join("target/debug/cairn");
    let totals = read(Command::new(&cairn).args(["decode", "--totals", "-e"]).arg(program).arg(&log))?;
    let elf = fs::read(program).map_err(at(program))?;
    let code_bytes = loaded_bytes(&elf)
        .ok_or_else(|| Failure::new(format!("{}: no 32-bit ELF file", program.display())))?;
    Ok(Found { output, totals, code_bytes })
}

/// Returns what of the file is put into the device's flash: the bytes of all loaded segments.
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
    fn device_counts_loaded_bytes() {
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
