//! Full malloc traces, which are too large to commit: the corpus is cut from them, and bytes per
//! frame can be counted over all of them.
//!
//! A trace is `NAME.stacks.zst` beside `NAME.modules.tsv`. Unpacked by `zstd --long=27` it is
//! little-endian words, one record after the other:
//! `| requested size << 16 \| depth | depth return addresses, innermost first |`.

use std::fs;
use std::io::{BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use cairn_format::AbsoluteAddress;

use crate::corpus::{self, Stacks, Window};

/// Stacks retained per program: eight runs of 64 calls, evenly spread. Neighbours stay similar, and
/// the variety of the whole run survives.
const WINDOWS: u64 = 8;
const WINDOW_STACKS: u64 = 64;

/// Cuts the corpus out of the traces in `traces` and writes it to `output`.
pub(crate) fn pack_corpus(traces: &Path, output: &Path) -> Result<(), String> {
    let report = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
    fs::create_dir_all(output).map_err(|error| report(output, error))?;
    for name in corpus::program_names(traces, ".stacks.zst")? {
        let source = traces.join(format!("{name}.stacks.zst"));
        let windows = cut(&source)?;
        let stacks: usize = windows.iter().map(|window| window.stacks.len()).sum();
        let bytes = corpus::pack(&windows);
        let target = output.join(format!("{name}.stacks"));
        fs::write(&target, &bytes).map_err(|error| report(&target, error))?;
        let modules = format!("{name}.modules.tsv");
        fs::copy(traces.join(&modules), output.join(&modules))
            .map_err(|error| report(&traces.join(&modules), error))?;
        println!("{name}: {stacks} stacks, {} bytes", bytes.len());
    }
    Ok(())
}

fn cut(source: &Path) -> Result<Vec<Window>, String> {
    let mut total = 0_u64;
    for_each(source, |_, _| total += 1)?;
    let first = |window: u64| window * total.saturating_sub(WINDOW_STACKS) / (WINDOWS - 1);
    let mut windows: Vec<Window> =
        (0..WINDOWS).map(|window| Window { first: first(window), stacks: Stacks::default() }).collect();
    let mut number = 0;
    for_each(source, |requested_bytes, addresses| {
        for window in &mut windows {
            if (window.first..window.first + WINDOW_STACKS).contains(&number) {
                window.stacks.push(requested_bytes, addresses.iter().copied());
            }
        }
        number += 1;
    })?;
    Ok(windows)
}

/// Calls `visit(requested size, return addresses)` for every record of the trace in `source`.
pub(crate) fn for_each(source: &Path, mut visit: impl FnMut(u64, &[AbsoluteAddress])) -> Result<(), String> {
    let mut unpacker = Unpacker::start(source)?;
    let mut addresses = Vec::new();
    while let Some(head) = unpacker.word() {
        addresses.clear();
        for _ in 0..head & 0xffff {
            let word = unpacker.word().ok_or_else(|| format!("{}: cut in a record", source.display()))?;
            addresses.push(AbsoluteAddress::new(word));
        }
        visit(head >> 16, &addresses);
    }
    unpacker.finish(source)
}

struct Unpacker {
    process: Child,
    output: BufReader<ChildStdout>,
}

impl Unpacker {
    fn start(source: &Path) -> Result<Self, String> {
        let mut process = Command::new("zstd")
            .args(["--decompress", "--stdout", "--quiet", "--long=27"])
            .arg(source)
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("zstd: {error}; install it to read traces"))?;
        let output = process.stdout.take().ok_or("zstd: no output")?;
        Ok(Self { process, output: BufReader::with_capacity(1 << 20, output) })
    }

    fn word(&mut self) -> Option<u64> {
        let mut bytes = [0; 8];
        self.output.read_exact(&mut bytes).ok()?;
        Some(u64::from_le_bytes(bytes))
    }

    fn finish(mut self, source: &Path) -> Result<(), String> {
        match self.process.wait() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(format!("{}: zstd ended with {status}", source.display())),
            Err(error) => Err(format!("zstd: {error}")),
        }
    }
}
