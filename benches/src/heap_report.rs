//! How fast the heap's questions are answered: events added up a second, and the time to a report
//! against heaptrack_print.

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
        [ours @ .., heaptrack] if !ours.is_empty() => {
            println!("{}", machine::description());
            against_heaptrack(ours, heaptrack)
        }
        _ => Err("report takes nothing, or recordings of cairn and one of heaptrack".to_owned()),
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
        // 16 bytes for a block, and as much for its time, which is another one for each here.
        let memory = (life.live * 32 + STACKS as usize * 64) as f64 / f64::from(1 << 20);
        println!(
            "| {} | {:.1} | {:.1} - {:.1} | {memory:.1} |",
            life.name,
            rates[ROUNDS / 2],
            rates[0],
            rates[ROUNDS - 1]
        );
    }
}

/// Allocations and frees of blocks at random. They follow the first `live` blocks; a tenth of the
/// stacks makes most of them.
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

/// Cost of one run of a command.
#[derive(Clone, Copy, Default)]
pub(crate) struct CommandCost {
    pub(crate) wall_seconds: f64,
    pub(crate) processor_seconds: f64,
    pub(crate) peak_mib: f64,
}

/// Returns all commands in turn on recordings of the same work, output to nowhere.
fn against_heaptrack(ours: &[&str], theirs: &str) -> Result<(), String> {
    let program = std::env::var("CAIRN").unwrap_or_else(|_| "target/release/cairn".to_owned());
    let reports =
        ours.iter().map(|&recording| [program.as_str(), "report", recording].map(str::to_owned).to_vec());
    let mut commands: Vec<Vec<String>> = reports.collect();
    commands.push(vec!["heaptrack_print".to_owned(), theirs.to_owned()]);
    let mut costs = vec![Vec::new(); commands.len()];
    for _ in 0..ROUNDS {
        for (command, costs) in commands.iter().zip(&mut costs) {
            costs.push(cost(command)?);
        }
    }
    println!("\n| command | wall | processor | peak memory |\n|---|---:|---:|---:|");
    for (command, costs) in commands.iter().zip(&costs) {
        let CommandCost { wall_seconds, processor_seconds, peak_mib } = median(costs);
        let name: Vec<&str> = command.iter().filter_map(|word| word.rsplit('/').next()).collect();
        println!(
            "| {} | {wall_seconds:.3} s | {processor_seconds:.3} s | {peak_mib:.1} MiB |",
            name.join(" ")
        );
    }
    Ok(())
}

/// Each figure's own median.
fn median(costs: &[CommandCost]) -> CommandCost {
    let of = |figure: fn(&CommandCost) -> f64| {
        let mut figures: Vec<f64> = costs.iter().map(figure).collect();
        figures.sort_by(f64::total_cmp);
        figures.get(figures.len() / 2).copied().unwrap_or_default()
    };
    CommandCost {
        wall_seconds: of(|cost| cost.wall_seconds),
        processor_seconds: of(|cost| cost.processor_seconds),
        peak_mib: of(|cost| cost.peak_mib),
    }
}

/// Runs a command to its end, output to nowhere.
#[allow(clippy::zombie_processes, reason = "wait4 waits for it, and tells what it used")]
pub(crate) fn cost(words: &[String]) -> Result<CommandCost, String> {
    let (program, arguments) = words.split_first().ok_or("no command")?;
    let mut command = Command::new(program);
    command.args(arguments).stdout(Stdio::null()).stderr(Stdio::null());
    let start = Instant::now();
    let child = command.spawn().map_err(|error| format!("{program}: {error}"))?;
    // SAFETY: all bytes of the struct may be zero.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    let mut status = 0;
    // SAFETY: our child, which nobody else waits for, and two places that are writable and of the
    // types that are asked for.
    let waited = unsafe { libc::wait4(child.id() as libc::pid_t, &raw mut status, 0, &raw mut usage) };
    let wall_seconds = start.elapsed().as_secs_f64();
    // A recording that has no end is given with 3.
    if waited < 0 || !libc::WIFEXITED(status) || !matches!(libc::WEXITSTATUS(status), 0 | 3) {
        return Err(format!("{program}: status {status}"));
    }
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    let processor_seconds = seconds(usage.ru_utime) + seconds(usage.ru_stime);
    Ok(CommandCost { wall_seconds, processor_seconds, peak_mib: usage.ru_maxrss as f64 / 1024.0 })
}
