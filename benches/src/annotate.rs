//! Measures annotated blocks (ns, instructions and bytes), next to heapprof's own library if it is
//! given.
//!
//! One program, `annotate_churn.c`, runs plain and with each library in turn, round after round;
//! the medians of the added time are compared.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::machine;

/// Frames of `annotate_churn` below which `malloc` is called. 17 with `pairs`, one more of its own,
/// main and the three of the C library's start.
const DEPTH: &str = "11";
const PAIRS: u32 = 400_000;

struct Variant {
    name: &'static str,
    library: Option<PathBuf>,
    options: &'static str,
}

#[derive(Clone, Copy)]
struct BlockCost {
    nanos: f64,
    bytes: f64,
}

/// Measures all variants `rounds` times and prints a table.
pub(crate) fn run(rounds: usize) -> Result<(), String> {
    let directory = std::env::temp_dir().join(format!("cairn-bench-annotate-{}", std::process::id()));
    fs::create_dir_all(&directory).map_err(|error| error.to_string())?;
    let result = run_in(&directory, rounds);
    let _ = fs::remove_dir_all(&directory);
    result
}

fn run_in(directory: &Path, rounds: usize) -> Result<(), String> {
    let program = directory.join("churn");
    let mut compiler = Command::new("cc");
    compiler.args(["-O2", "-fno-builtin", "-o"]).arg(&program).arg("benches/src/annotate_churn.c");
    succeed(&mut compiler)?;
    let variants = variants()?;
    let mut costs: Vec<Vec<BlockCost>> = vec![Vec::new(); variants.len()];
    for _ in 0..rounds.max(1) {
        for (variant, costs) in variants.iter().zip(&mut costs) {
            costs.push(once(&program, variant)?);
        }
    }
    let medians: Vec<BlockCost> = costs.into_iter().map(median).collect();
    let plain = medians[0];
    let peer = variants
        .iter()
        .position(|variant| variant.name == "heapprof.so")
        .map(|at| medians[at].nanos - plain.nanos);
    print!("{}", machine::description());
    println!("- {rounds} rounds of {PAIRS} pairs of malloc and free, 17 frames deep; medians\n");
    println!(
        "| blocks | ns a pair | added | heapprof.so's added time as a multiple | instructions a pair | bytes a block beyond the user's |"
    );
    println!("|---|---:|---:|---:|---:|---:|");
    for (variant, cost) in variants.iter().zip(&medians) {
        let added = cost.nanos - plain.nanos;
        let multiple = match peer {
            Some(peer) if added > 0.0 => format!("{:.1}x", peer / added),
            _ => "-".to_owned(),
        };
        let instructions =
            instructions(directory, &program, variant).map_or("-".to_owned(), |count| format!("{count:.0}"));
        println!(
            "| {} | {:.0} | {added:.0} | {multiple} | {instructions} | {:.1} |",
            variant.name, cost.nanos, cost.bytes
        );
    }
    Ok(())
}

fn variants() -> Result<Vec<Variant>, String> {
    let mut build = Command::new("cargo");
    build.args(["build", "--quiet", "--profile", "c-library", "--package", "cairn-preload"]);
    // Apart from the recording library, which has the same name.
    succeed(build.args(["--features", "annotate", "--target-dir", "target/annotate"]))?;
    let library = fs::canonicalize("target/annotate/c-library/libcairn_preload.so");
    let library = library.map_err(|error| error.to_string())?;
    let ours = |name, options| Variant { name, library: Some(library.clone()), options };
    let mut variants = vec![
        Variant { name: "plain", library: None, options: "" },
        ours("cairn", "cairn"),
        ours("cairn without guards", "cairn,no-guards"),
        ours("cairn, inline stacks", "cairn,inline"),
        ours("lws", "lws"),
        ours("heapprof's layout", "heapprof,frames=16"),
    ];
    match std::env::var_os("CAIRN_PEER_HEAPPROF_SO") {
        Some(path) => {
            variants.push(Variant { name: "heapprof.so", library: Some(path.into()), options: "" });
        }
        None => println!("- heapprof.so: not measured; CAIRN_PEER_HEAPPROF_SO names none"),
    }
    Ok(variants)
}

fn command(program: &Path, variant: &Variant, wrapper: &[&str]) -> Command {
    let mut words = wrapper.iter().map(|word| (*word).to_owned()).chain([program.display().to_string()]);
    let mut command = Command::new(words.next().unwrap_or_default());
    command.args(words).env("CAIRN_HEAP", variant.options).env("HEAPPROF_FRAMES", "16");
    if let Some(library) = &variant.library {
        command.env("LD_PRELOAD", library);
    }
    command
}

fn once(program: &Path, variant: &Variant) -> Result<BlockCost, String> {
    let text = succeed(command(program, variant, &[]).args([DEPTH, &PAIRS.to_string()]))?;
    // heapprof.so prints a line of its own.
    let line = text.lines().last().unwrap_or_default();
    let mut numbers = line.split(' ').map(|number| number.parse::<f64>());
    match (numbers.next(), numbers.next()) {
        (Some(Ok(nanos)), Some(Ok(bytes))) => Ok(BlockCost { nanos, bytes }),
        _ => Err(format!("{}: no figures in {text:?}", variant.name)),
    }
}

/// Returns what a pair more costs, by valgrind's callgrind; `None` where that is not there.
fn instructions(directory: &Path, program: &Path, variant: &Variant) -> Option<f64> {
    const FEW: u32 = 5_000;
    let output = format!("--callgrind-out-file={}", directory.join("callgrind").display());
    let count = |pairs: u32| -> Option<f64> {
        let wrapper = ["valgrind", "--tool=callgrind", &output];
        let run = command(program, variant, &wrapper).args([DEPTH, &pairs.to_string()]).output().ok()?;
        let text = String::from_utf8_lossy(&run.stderr).into_owned();
        let line = text.lines().find(|line| line.contains("Collected"))?;
        line.rsplit(' ').next()?.parse().ok()
    };
    Some((count(2 * FEW)? - count(FEW)?) / f64::from(FEW))
}

fn succeed(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(format!("{command:?}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr)))
    }
}

fn median(mut costs: Vec<BlockCost>) -> BlockCost {
    let bytes = costs[0].bytes;
    costs.sort_by(|a, b| a.nanos.total_cmp(&b.nanos));
    BlockCost { nanos: costs[costs.len() / 2].nanos, bytes }
}
