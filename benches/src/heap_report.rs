//! How fast the heap's questions are answered: events added up a second, and the time to a report against heaptrack_print.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use cairn_analysis::heap::{Aggregator, HeapProfile, Sampling, Scope};

use crate::machine;

const EVENTS: u64 = 100_000_000;
const STACKS: u32 = 50_000;
const THREADS: u32 = 4;
const ROUNDS: usize = 5;

/// With recordings: the commands on them; without: the aggregator alone.
pub(crate) fn run(arguments: &[&str]) -> Result<(), String> {
    match arguments {
        [] => {
            println!("{}", machine::description());
            aggregator();
            Ok(())
        }
        [cairn, heaptrack] => {
            println!("{}", machine::description());
            against_heaptrack(Path::new(cairn), Path::new(heaptrack))
        }
        _ => Err("report takes nothing, or a recording of cairn and one of heaptrack".to_owned()),
    }
}

/// A program's life: how many blocks it holds.
struct Life {
    name: &'static str,
    live: usize,
}

fn aggregator() {
    println!(
        "| live blocks | million events a second, median of {ROUNDS} | lowest - highest | MiB for blocks and stacks |"
    );
    println!("|---:|---:|---:|---:|");
    for life in [
        Life { name: "1 thousand", live: 1_000 },
        Life { name: "100 thousand", live: 100_000 },
        Life { name: "4 million", live: 4_000_000 },
    ] {
        let mut rates: Vec<f64> = (0..ROUNDS)
            .map(|_| {
                let start = Instant::now();
                let profile = synthesize(life.live);
                let rate = EVENTS as f64 / start.elapsed().as_secs_f64() / 1e6;
                assert_eq!(profile.totals.allocations + profile.totals.frees(), EVENTS, "every event counts");
                rate
            })
            .collect();
        rates.sort_by(f64::total_cmp);
        let memory = (life.live * 24 + STACKS as usize * 64) as f64 / f64::from(1 << 20);
        println!(
            "| {} | {:.1} | {:.1} - {:.1} | {memory:.1} |",
            life.name,
            rates[ROUNDS / 2],
            rates[0],
            rates[ROUNDS - 1]
        );
    }
}

/// Allocations and frees of blocks at random, after the first `live` blocks; a tenth of the stacks makes most of them.
fn synthesize(live: usize) -> HeapProfile {
    let mut heap = Aggregator::new(STACKS as usize, THREADS as usize, Scope::default(), Sampling::All);
    let mut random = 0x1234_5678_9abc_def1_u64;
    let mut nanos = 0;
    let mut events = 0;
    let allocate = |heap: &mut Aggregator, object: u32, random: u64, nanos: u64| {
        let stack = if random & 15 == 0 {
            (random >> 8) as u32 % STACKS
        } else {
            (random >> 8) as u32 % (STACKS / 10)
        };
        heap.allocated(object, stack, (random >> 40) as u32 % THREADS, 16 + (random >> 44 & 0xfff), nanos);
    };
    for object in 0..live as u32 {
        random = next(random);
        nanos += 40;
        allocate(&mut heap, object, random, nanos);
        events += 1;
    }
    while events + 2 <= EVENTS {
        random = next(random);
        nanos += 40;
        let object = ((random >> 20) % live as u64) as u32;
        heap.freed(object, nanos);
        allocate(&mut heap, object, next(random), nanos);
        events += 2;
    }
    heap.finish(nanos)
}

/// xorshift: the same numbers in every run.
fn next(mut random: u64) -> u64 {
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    random
}

/// Both commands in turn on recordings of the same work, output to nowhere.
fn against_heaptrack(cairn: &Path, heaptrack: &Path) -> Result<(), String> {
    let program = std::env::var("CAIRN").unwrap_or_else(|_| "target/release/cairn".to_owned());
    let mut ours = Command::new(program);
    ours.arg("report").arg(cairn);
    let mut theirs = Command::new("heaptrack_print");
    theirs.arg(heaptrack);
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        for (command, times) in [&mut ours, &mut theirs].into_iter().zip(&mut times) {
            let before = children_seconds();
            let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
            let status = status.map_err(|error| format!("{command:?}: {error}"))?;
            if !status.success() && status.code() != Some(3) {
                return Err(format!("{command:?}: {status}"));
            }
            times.push(children_seconds() - before);
        }
    }
    let medians = times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        times[ROUNDS / 2]
    });
    println!("| command | CPU seconds, median of {ROUNDS} |\n|---|---:|");
    println!("| cairn report | {:.3} |\n| heaptrack_print | {:.3} |", medians[0], medians[1]);
    println!("\nratio: {:.2}", medians[1] / medians[0]);
    Ok(())
}

/// User and system time of all children that have ended.
fn children_seconds() -> f64 {
    // SAFETY: all bytes of the struct may be zero.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the struct is writable and of the type that is asked for.
    unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage) };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}
