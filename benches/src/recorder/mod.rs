//! Measures the cost that the recorder adds to a capture: heap events and marks, in 1, 2 and 8
//! threads, with a process that drains the spool, in a ring, and stored in a file.
//!
//! Every case runs in one process in turn with the bare capture of the same stack, so that a ratio
//! is of the same moments.

mod drain;
pub(crate) mod modules;

use std::env;
use std::hint::black_box;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Barrier;
use std::time::Instant;

use cairn_capture::capture;
use cairn_recorder::{Keep, MarkValue, Options, heap, mark_stack, start};

/// Frames between the work and the function that calls it.
const DEPTH: u32 = 20;
const ROUNDS: usize = 61;
/// Events of a thread in a round of one case.
const EVENTS: usize = 4000;

/// One kind of work; does it [`EVENTS`] times.
struct RecorderCase {
    name: &'static str,
    /// Captures in one event.
    captures: f64,
    work: fn(),
}

const CASES: [RecorderCase; 5] = [
    RecorderCase { name: "bare capture", captures: 1.0, work: bare_capture },
    RecorderCase { name: "allocation and its free", captures: 1.0, work: heap_pair },
    RecorderCase { name: "mark", captures: 1.0, work: plain_mark },
    RecorderCase { name: "mark of 16 characters", captures: 1.0, work: text_mark },
    RecorderCase { name: "mark of 16 characters with a number", captures: 1.0, work: value_mark },
];

fn bare_capture() {
    for _ in 0..EVENTS {
        black_box(capture());
    }
}

/// Addresses as an allocator gives them: a few, again and again.
fn heap_pair() {
    let base = 0x5500_0000_0000 + u64::from(thread_number()) * 0x10_0000;
    for event in 0..EVENTS as u64 {
        let address = base + event % 64 * 48;
        heap::allocated_by(black_box(address), 40, capture());
        heap::freeing(black_box(address));
    }
}

fn plain_mark() {
    (0..EVENTS).for_each(|_| mark_stack(capture(), 0, MarkValue::None, b""));
}

fn text_mark() {
    (0..EVENTS).for_each(|_| mark_stack(capture(), 0, MarkValue::None, black_box(b"request finished")));
}

fn value_mark() {
    for event in 0..EVENTS {
        mark_stack(capture(), 0, MarkValue::Integer(event as i64), black_box(b"request finished"));
    }
}

fn thread_number() -> u32 {
    // SAFETY: only asks.
    unsafe { libc::syscall(libc::SYS_gettid) as u32 & 0xff }
}

/// Runs `work` below some frames, as code of a program is.
#[inline(never)]
fn below(depth: u32, work: fn()) {
    if depth == 0 {
        work();
    } else {
        below(depth - 1, work);
    }
    black_box(depth);
}

pub(crate) fn run() -> Result<(), String> {
    println!(
        "ns per event in each thread: median of {ROUNDS} interleaved rounds of {EVENTS} events, in each thread at once; {} frames.",
        DEPTH + 6
    );
    println!("In brackets the ratio to the bare capture of the same run.\n");
    println!("| spool | threads | {} |", CASES.map(|case| case.name).join(" | "));
    println!("|---|---:|{}", "---:|".repeat(CASES.len()));
    for way in ["drained", "ring", "stored"] {
        for threads in ["1", "2", "8"] {
            println!("{}", child(&["marks-child", way, threads])?);
        }
    }
    println!(
        "\nInstructions per event, by callgrind, one thread, the spool drained (no stamps but every eighth event):\n"
    );
    println!("| {} |\n|{}", CASES.map(|case| case.name).join(" | "), "---:|".repeat(CASES.len()));
    let counts: Result<Vec<String>, String> = (0..CASES.len()).map(instructions).collect();
    println!("| {} |", counts?.join(" | "));
    println!("\n{}", child(&["marks-long"])?);
    Ok(())
}

fn child(arguments: &[&str]) -> Result<String, String> {
    let program = env::current_exe().map_err(|error| format!("this program: {error}"))?;
    let output = Command::new(program).args(arguments).output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(format!("{arguments:?}: {}", String::from_utf8_lossy(&output.stderr)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
}

fn spool_path(name: &str) -> PathBuf {
    env::temp_dir().join(format!("cairn-bench-{name}-{}.cairn", std::process::id()))
}

fn begin(path: &Path, way: &str) -> Result<(), String> {
    let mut options = Options::new(path.as_os_str().as_bytes());
    match way {
        "drained" => {
            options.has_parent = true;
            options.stamp_interval = 8;
        }
        "ring" => options.keep = Keep::Last { bytes: 16 << 20, nanos: u64::MAX },
        _ => {}
    }
    start(&options).map_err(|error| error.to_string())
}

/// Returns one line of the table.
pub(crate) fn run_child(way: &str, threads: &str) -> Result<(), String> {
    let threads: usize = threads.parse().map_err(|_| "not a number".to_owned())?;
    let path = spool_path(way);
    begin(&path, way)?;
    let drain = (way == "drained").then(|| drain::begin(&path));
    let barrier = Barrier::new(threads);
    let mut results: Vec<Vec<f64>> = Vec::new();
    std::thread::scope(|scope| {
        let measure = || {
            let mut nanos = vec![Vec::with_capacity(ROUNDS); CASES.len()];
            for round in 0..ROUNDS + 2 {
                for (case, nanos) in CASES.iter().zip(&mut nanos) {
                    barrier.wait();
                    let start = Instant::now();
                    below(DEPTH, case.work);
                    let elapsed = start.elapsed().as_nanos() as f64 / EVENTS as f64;
                    // The first rounds learn the stacks.
                    if round >= 2 {
                        nanos.push(elapsed);
                    }
                }
            }
            nanos.into_iter().map(median).collect()
        };
        let handles: Vec<_> = (0..threads).map(|_| scope.spawn(measure)).collect();
        results = handles.into_iter().map(|handle| handle.join().expect("a thread")).collect();
    });
    drop(drain);
    let _ = std::fs::remove_file(&path);
    let all: Vec<f64> =
        (0..CASES.len()).map(|case| median(results.iter().map(|nanos| nanos[case]).collect())).collect();
    let cell =
        |(case, nanos): (&RecorderCase, &f64)| format!("{nanos:.1} [{:.2}]", nanos / all[0] / case.captures);
    let cells: Vec<String> = CASES.iter().zip(&all).map(cell).collect();
    println!("| {way} | {threads} | {} |", cells.join(" | "));
    Ok(())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn instructions(case: usize) -> Result<String, String> {
    let total = |rounds: &str| -> Result<f64, String> {
        let program = env::current_exe().map_err(|error| format!("this program: {error}"))?;
        let output = Command::new("valgrind")
            .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
            .arg(program)
            .args(["marks-loop", &case.to_string(), rounds])
            .output()
            .map_err(|error| format!("valgrind: {error}"))?;
        let log = String::from_utf8_lossy(&output.stderr);
        let count = log.lines().find_map(|line| line.split_once("Collected : ")?.1.trim().parse().ok());
        count.ok_or_else(|| format!("valgrind: no count: {}", log.lines().last().unwrap_or_default()))
    };
    Ok(format!("{:.1}", (total("6")? - total("2")?) / 4.0 / EVENTS as f64))
}

/// Returns the number of rounds of one case, for a profiler; nobody drains.
pub(crate) fn run_loop(case: &str, rounds: &str) -> Result<(), String> {
    let number = |text: &str| text.parse::<usize>().map_err(|_| format!("{text}: not a number"));
    let case = CASES.get(number(case)?).ok_or("no such case")?;
    let path = spool_path("loop");
    let mut options = Options::new(path.as_os_str().as_bytes());
    options.stamp_interval = 8;
    start(&options).map_err(|error| error.to_string())?;
    (0..number(rounds)?).for_each(|_| below(DEPTH, case.work));
    let _ = std::fs::remove_file(&path);
    Ok(())
}

/// Ten million marks of many stacks, stored in a file.
pub(crate) fn run_long() -> Result<(), String> {
    const MARKS: usize = 10_000_000;
    let path = spool_path("long");
    begin(&path, "stored")?;
    let start = cpu_nanos();
    for number in 0..MARKS / 4000 {
        below(10 + number as u32 % 30, || {
            (0..4000).for_each(|_| mark_stack(capture(), 0, MarkValue::None, b"request finished"));
        });
    }
    let nanos = (cpu_nanos() - start) as f64 / MARKS as f64;
    cairn_recorder::stop(cairn_recorder::EndReason::Stopped);
    let blocks = drain::claimed_blocks(&path);
    let _ = std::fs::remove_file(&path);
    println!(
        "{MARKS} marks of 16 characters at 30 depths, one thread, stored in a file: {nanos:.1} ns of processor time and {:.1} bytes of the spool a mark.",
        blocks as f64 * 65536.0 / MARKS as f64
    );
    Ok(())
}

/// Processor time of this thread, the kernel's part included.
fn cpu_nanos() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to the variable.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
