//! One unchanging stack, captured again and again: the cost when everything is in the caches and
//! every guess is right.

use std::ffi::c_int;

use cairn_bench_unwinders::{CAIRN, Capture, UNWINDERS, Unwinder};

use crate::capture::programs::{self, RunFixedStack};
use crate::capture::rust_stack;

/// Frames from the capture's caller to the thread's start, both counted.
pub(crate) const DEPTHS: [u32; 3] = [14, 34, 104];

/// How long one timed run of a capture lasts; shorter ones measure the clock.
const RUN_NANOS: f64 = 150_000.0;

const ROUNDS: u32 = 400;

/// Subject of the measurement, as in fixed_stack.cpp lays it out.
#[repr(C)]
pub(crate) struct Job {
    captures: *const Capture,
    calls: *const u32,
    nanos: *mut f64,
    results: *mut u64,
    capture_count: u32,
    rounds: u32,
}

const _: () = assert!(size_of::<Job>() == 40);

impl Job {
    pub(crate) fn rounds(&self) -> usize {
        self.rounds as usize
    }

    pub(crate) fn count(&self) -> usize {
        self.capture_count as usize
    }

    /// Returns the capture of this index, and how many times to call it in a round.
    pub(crate) fn capture(&self, index: usize) -> (Capture, u32) {
        assert!(index < self.count());
        // SAFETY: both arrays have `count` elements.
        unsafe { (*self.captures.add(index), *self.calls.add(index)) }
    }

    pub(crate) fn record(&self, round: usize, index: usize, nanos: f64, result: u64) {
        assert!(round < self.rounds() && index < self.count());
        // SAFETY: `nanos` has `rounds` rows of `count` elements, `results` has `count`.
        unsafe {
            self.nanos.add(round * self.count() + index).write(nanos);
            self.results.add(index).write(result);
        }
    }
}

/// Returns the fixed-stack programs by name, each with what its table says of it.
pub(crate) fn programs() -> Vec<(&'static str, &'static str, Result<RunFixedStack, String>)> {
    let fixed = |flags: &[&str]| programs::load_fixed_stack(flags).map(|program| program.fixed);
    vec![
        ("cpp", "C++ -O2", fixed(&["-fomit-frame-pointer"])),
        ("cpp-fp", "C++ -O2 -fno-omit-frame-pointer", fixed(&["-fno-omit-frame-pointer"])),
        ("rust", "Rust, release", Ok(rust_stack::run_fixed_stack)),
    ]
}

/// Nanoseconds per capture over the rounds, and what the last capture returned.
pub(crate) struct StackTiming {
    pub(crate) first_nanos: f64,
    pub(crate) low_nanos: f64,
    pub(crate) median_nanos: f64,
    result: u64,
}

pub(crate) fn run() -> Result<(), String> {
    let unwinders = available();
    println!(
        "ns per stack: 2nd percentile of {ROUNDS} interleaved runs / median. In brackets the frames seen.\n"
    );
    println!("| program | by | {} |", DEPTHS.map(|depth| format!("{depth} frames")).join(" | "));
    println!("|---|---|---:|---:|---:|");
    for (_, title, program) in programs() {
        let program = match program {
            Ok(program) => program,
            Err(why) => {
                println!("| {title} | missing: {why} | | | |");
                continue;
            }
        };
        let mut columns = Vec::new();
        for depth in DEPTHS {
            columns.push(measure(program, depth, &unwinders)?);
        }
        for (index, unwinder) in unwinders.iter().enumerate() {
            let cells: Vec<String> = columns.iter().map(|timings| cell(unwinder, &timings[index])).collect();
            println!("| {title} | {} | {} |", unwinder.name, cells.join(" | "));
        }
    }
    Ok(())
}

fn cell(unwinder: &Unwinder, timing: &StackTiming) -> String {
    let StackTiming { low_nanos, median_nanos, result, .. } = timing;
    format!("{low_nanos:.1} / {median_nanos:.1} [{}]", frame_count(unwinder, *result))
}

fn frame_count(unwinder: &Unwinder, result: u64) -> usize {
    if unwinder.name != CAIRN {
        return result as usize;
    }
    cairn_bench_unwinders::cairn_frames(result).len()
}

/// Those that are on this machine; the others are named.
pub(crate) fn available() -> Vec<Unwinder> {
    let mut there = Vec::new();
    for unwinder in UNWINDERS {
        match (unwinder.prepare)() {
            Ok(()) => there.push(*unwinder),
            Err(why) => println!("- {} is missing: {why}", unwinder.name),
        }
    }
    there
}

extern "C" fn prepare_all() {
    for unwinder in UNWINDERS {
        // Those that are missing were named before.
        let _ = (unwinder.prepare)();
    }
}

fn measure(program: RunFixedStack, depth: u32, unwinders: &[Unwinder]) -> Result<Vec<StackTiming>, String> {
    let trial = run_rounds(program, depth, unwinders, &vec![16; unwinders.len()], 5)?;
    let calls: Vec<u32> =
        trial.iter().map(|timing| (RUN_NANOS / timing.low_nanos.max(1.0)) as u32 + 1).collect();
    run_rounds(program, depth, unwinders, &calls, ROUNDS)
}

pub(crate) fn run_rounds(
    program: RunFixedStack,
    depth: u32,
    unwinders: &[Unwinder],
    calls: &[u32],
    rounds: u32,
) -> Result<Vec<StackTiming>, String> {
    let count = unwinders.len();
    let captures: Vec<Capture> = unwinders.iter().map(|unwinder| unwinder.capture).collect();
    let mut nanos = vec![0.0; count * rounds as usize];
    let mut results = vec![0; count];
    let mut job = Job {
        captures: captures.as_ptr(),
        calls: calls.as_ptr(),
        nanos: nanos.as_mut_ptr(),
        results: results.as_mut_ptr(),
        capture_count: count as u32,
        rounds,
    };
    if program(&raw mut job, depth as c_int, prepare_all) != 0 {
        return Err(format!("the program of {depth} frames did not run"));
    }
    Ok((0..count)
        .map(|index| {
            let mut column: Vec<f64> = nanos.iter().skip(index).step_by(count).copied().collect();
            let first_nanos = column[0];
            column.sort_by(f64::total_cmp);
            StackTiming {
                first_nanos,
                low_nanos: column[column.len() / 50],
                median_nanos: column[column.len() / 2],
                result: results[index],
            }
        })
        .collect())
}

/// Runs one capture `calls` times on one program.
pub(crate) fn run_one(program: &str, depth: u32, unwinder: &str, calls: u32) -> Result<(), String> {
    let unwinder =
        cairn_bench_unwinders::by_name(unwinder).ok_or_else(|| format!("{unwinder}: no such unwinder"))?;
    let programs = programs();
    let found = programs.into_iter().find(|(name, ..)| *name == program);
    let (_, _, program) = found.ok_or_else(|| format!("{program}: no such program"))?;
    let timings = run_rounds(program?, depth, &[unwinder], &[calls], 1)?;
    println!("{:#x}", timings[0].result);
    Ok(())
}
