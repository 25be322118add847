//! Measures recordings after the program: packing, opening, reading, a window of time, and bytes
//! for each event.
//!
//! The spools are made by the test support of `cairn-analysis`, by the rules that a recorder
//! follows, in memory.

use std::fs::File;
use std::io::BufWriter;

use cairn_format::recording::{Lane, RecordSink};
use cairn_recording::{Alloc, Events, Free, Mark, MarkValue, Recording, Wanted, pack};

use crate::machine;
use crate::spool::{Program, Random};

/// Live bytes by stack: what every report does at least.
#[derive(Default)]
struct Totals {
    by_stack: Vec<(u64, u64)>,
    live: u64,
    peak: u64,
    events: u64,
}

impl Events for Totals {
    #[inline]
    fn alloc(&mut self, event: &Alloc) {
        self.events += 1;
        let stack = event.stack.index();
        if self.by_stack.len() <= stack {
            self.by_stack.resize(stack + 1, (0, 0));
        }
        self.by_stack[stack].0 += 1;
        self.by_stack[stack].1 += event.size_bytes;
        self.live += event.size_bytes;
        self.peak = self.peak.max(self.live);
    }

    #[inline]
    fn free(&mut self, event: &Free) {
        self.events += 1;
        self.by_stack[event.stack.index()].1 -= event.size_bytes;
        self.live -= event.size_bytes;
    }

    fn mark(&mut self, event: &Mark<'_>) {
        self.events += 1;
        self.peak += event.text.len() as u64;
    }
}

struct EventWork {
    name: &'static str,
    events: u64,
    /// Divisor of the bytes.
    units: u64,
    spool: Vec<u8>,
}

/// Sizes and stacks drawn at random, blocks freed at random: nothing to foresee.
fn churn(name: &'static str, pairs: u64, threads: u64, stacks: u64, sizes: u64) -> EventWork {
    let mut random = Random(42);
    let mut program = Program::new(threads as u32, 8);
    let stacks = program.spool.stacks(stacks as u32);
    for _ in 0..pairs {
        program.counter += 87;
        let stack = stacks[random.below(stacks.len() as u64) as usize];
        program.alloc(1 + random.below(threads) as u32, 16 + 8 * random.below(sizes), stack);
        if program.live.len() > 1000 {
            let index = random.below(1000) as usize;
            program.free(1 + random.below(threads) as u32, index);
        }
    }
    while !program.live.is_empty() {
        program.free(1, 0);
    }
    EventWork { name, events: pairs * 2, units: pairs, spool: program.finish() }
}

/// Returns a program of loops. Each round allocates the same nodes and strings, now and then one
/// that stays.
fn loops(pairs: u64) -> EventWork {
    let mut random = Random(43);
    let mut program = Program::new(1, 8);
    let stacks = program.spool.stacks(2000);
    let mut done = 0;
    while done < pairs {
        let round = random.below(40) as usize;
        let length = 3 + round % 9;
        let base = program.live.len();
        for step in 0..length {
            program.counter += 200;
            let stack = stacks[(round * 37 + step * 11) % stacks.len()];
            program.alloc(1, 16 + (step as u64 * 24) % 200, stack);
        }
        let retained = usize::from(random.below(4) == 0);
        while program.live.len() > base + retained {
            program.counter += 100;
            let last = program.live.len() - 1;
            program.free(1, last);
        }
        if program.live.len() > 20_000 {
            let index = random.below(20_000) as usize;
            program.free(1, index);
        }
        done += length as u64;
    }
    while let Some(last) = program.live.len().checked_sub(1) {
        program.free(1, last);
    }
    EventWork {
        name: "loops, 1 thread",
        events: program.allocations * 2,
        units: program.allocations,
        spool: program.finish(),
    }
}

fn marks(count: u64) -> EventWork {
    let mut random = Random(44);
    let mut program = Program::new(4, 8);
    let stacks = program.spool.stacks(5000);
    let texts = ["request", "cache miss", "retry", "slow query"];
    for _ in 0..count {
        program.counter += 1 + random.below(6000);
        let stack = stacks[(random.below(70) * random.below(70)) as usize];
        let thread = 1 + random.below(4) as u32;
        let counter = program.counter;
        let text = texts[random.below(4) as usize].as_bytes();
        program
            .spool
            .write(thread, Lane::Outer, counter, |sink| sink.mark(counter, stack, 1, MarkValue::None, text));
    }
    EventWork { name: "marks, 4 threads", events: count, units: count, spool: program.finish() }
}

/// Time of the processor that this thread took: the machine is shared.
fn processor_nanos() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the struct is there, and large enough.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// Returns the best of three.
fn nanos(mut work: impl FnMut()) -> f64 {
    (0..3)
        .map(|_| {
            let start = processor_nanos();
            work();
            processor_nanos() - start
        })
        .fold(f64::MAX, f64::min)
}

fn read_ns(recording: &Recording, wanted: &Wanted) -> (f64, u64) {
    let mut events = 0;
    let nanos = nanos(|| {
        let mut totals = Totals::default();
        recording.read(wanted, &mut totals).expect("it was read before");
        events = totals.events;
        std::hint::black_box(totals.peak);
    });
    (nanos, events)
}

/// Prints the table. `millions` is how many millions of allocations, and of marks.
pub(crate) fn run(millions: u64) -> Result<(), String> {
    let count = millions * 1_000_000;
    print!("{}", machine::description());
    println!(
        "- {millions} million allocations with their frees, or marks; processor time, best of three, in the page cache\n"
    );
    println!(
        "| work | spool B/unit | packed B/unit | pack ns/unit | read spool ns/event | read packed ns/event | open spool ms | open packed ms | a second's window ms |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|---:|---:|");
    let works: [&dyn Fn() -> EventWork; 5] = [
        &|| churn("churn, 1 thread, 1000 stacks x 126 sizes", count, 1, 1000, 126),
        &|| churn("churn, 1 thread, 200 stacks x 8 sizes", count, 1, 200, 8),
        &|| churn("churn, 4 threads, 200 stacks x 8 sizes", count, 4, 200, 8),
        &|| loops(count),
        &|| marks(count),
    ];
    let directory = std::env::temp_dir().join(format!("cairn-bench-{}", std::process::id()));
    std::fs::create_dir_all(&directory).map_err(|error| error.to_string())?;
    let result = works.iter().try_for_each(|work| row(&work(), &directory));
    let _ = std::fs::remove_dir_all(&directory);
    result
}

fn row(work: &EventWork, directory: &std::path::Path) -> Result<(), String> {
    let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", work.name);
    let (spool_path, packed_path) = (directory.join("spool.cairn"), directory.join("packed.cairn"));
    std::fs::write(&spool_path, &work.spool).map_err(|error| failed(&error))?;
    let spool = Recording::open(&spool_path).map_err(|error| failed(&error))?;
    let open_spool = nanos(|| drop(Recording::open(&spool_path)));
    let mut failure = None;
    let pack_nanos = nanos(|| {
        let file = File::create(&packed_path).map(BufWriter::new);
        let result = file.map_err(|error| error.to_string());
        if let Err(error) = result.and_then(|file| pack(&spool, file).map_err(|error| error.to_string())) {
            failure = Some(error);
        }
    });
    if let Some(error) = failure {
        return Err(failed(&error));
    }
    let packed_bytes = std::fs::metadata(&packed_path).map_err(|error| failed(&error))?.len();
    let packed = Recording::open(&packed_path).map_err(|error| failed(&error))?;
    let open_packed = nanos(|| drop(Recording::open(&packed_path)));
    let (spool_read, spool_events) = read_ns(&spool, &Wanted::ALL);
    let (packed_read, packed_events) = read_ns(&packed, &Wanted::ALL);
    if spool_events != packed_events || spool_events != work.events {
        return Err(failed(&format!("{spool_events} and {packed_events} events of {}", work.events)));
    }
    let middle = packed.totals().map_or(0, |totals| totals.end_nanos) / 2;
    let window = Wanted::OTHERS.between(middle, middle + 1_000_000_000);
    let window_nanos = nanos(|| {
        let packed = Recording::open(&packed_path).expect("it was opened before");
        let mut totals = Totals::default();
        packed.read(&window, &mut totals).expect("it was read before");
        std::hint::black_box(totals.events);
    });
    let (units, events) = (work.units as f64, work.events as f64);
    println!(
        "| {} | {:.2} | {:.3} | {:.1} | {:.1} | {:.1} | {:.1} | {:.1} | {:.1} |",
        work.name,
        work.spool.len() as f64 / units,
        packed_bytes as f64 / units,
        pack_nanos / units,
        spool_read / events,
        packed_read / events,
        open_spool / 1e6,
        open_packed / 1e6,
        window_nanos / 1e6,
    );
    Ok(())
}

/// Marks with unpredictable text, such as request numbers. The packed recording is nearly as large
/// as the spool. A mark each 30 us on average, by four threads, at one of some thousand stacks.
fn unforeseen_marks(count: u64) -> Vec<u8> {
    let mut random = Random(45);
    let mut program = Program::new(4, 8);
    program.spool.keep_tables_apart();
    let stacks = program.spool.stacks(5000);
    for _ in 0..count {
        program.counter += random.below(180_000);
        let stack = stacks[(random.below(70) * random.below(70)) as usize];
        let thread = 1 + random.below(4) as u32;
        let counter = program.counter;
        let mut text = [0; 64];
        text.iter_mut().for_each(|byte| *byte = b'0' + random.below(64) as u8);
        let write = |sink: &mut RecordSink<'_>| sink.mark(counter, stack, 1, MarkValue::None, &text);
        program.spool.write(thread, Lane::Outer, counter, write);
    }
    program.finish()
}

/// Returns what the kernel says of this process, in bytes.
pub(crate) fn status_bytes(name: &str) -> Result<u64, String> {
    let text = std::fs::read_to_string("/proc/self/status").map_err(|error| error.to_string())?;
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    number.map(|kib| kib << 10).ok_or_else(|| format!("/proc/self/status says nothing of {name}"))
}

/// Returns the most memory that `work` takes beyond what there is now, in bytes.
fn peak_bytes(work: impl FnOnce()) -> Result<u64, String> {
    // Begins to count the peak anew.
    std::fs::write("/proc/self/clear_refs", "5").map_err(|error| error.to_string())?;
    let before = status_bytes("VmRSS:")?;
    work();
    Ok(status_bytes("VmHWM:")?.saturating_sub(before))
}

/// Prints what a second out of the middle of a long recording takes. `millions` is how many
/// millions of marks.
pub(crate) fn run_window(millions: u64) -> Result<(), String> {
    print!("{}", machine::description());
    println!(
        "- {millions} million marks of 64 unforeseen characters, 4 threads; processor time, best of three, in the page cache\n"
    );
    println!(
        "| recording | MB | length | open whole ms | MB for that | a second's window ms | marks in it | MB for that |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|---:|");
    let directory = std::env::temp_dir().join(format!("cairn-bench-{}", std::process::id()));
    std::fs::create_dir_all(&directory).map_err(|error| error.to_string())?;
    let result = window_rows(millions * 1_000_000, &directory);
    let _ = std::fs::remove_dir_all(&directory);
    result
}

fn window_rows(count: u64, directory: &std::path::Path) -> Result<(), String> {
    let failed = |error: &dyn std::fmt::Display| error.to_string();
    let (spool_path, packed_path) = (directory.join("spool.cairn"), directory.join("packed.cairn"));
    std::fs::write(&spool_path, unforeseen_marks(count)).map_err(|error| failed(&error))?;
    let spool = Recording::open(&spool_path).map_err(|error| failed(&error))?;
    let file = File::create(&packed_path).map(BufWriter::new).map_err(|error| failed(&error))?;
    pack(&spool, file).map_err(|error| failed(&error))?;
    drop(spool);
    for (name, path) in [("spool", &spool_path), ("packed", &packed_path)] {
        // In a process of its own: what this one took and gave back would hide what is taken.
        let program = std::env::current_exe().map_err(|error| failed(&error))?;
        let mut child = std::process::Command::new(program);
        let status = child.args(["recording", "window-row", name]).arg(path).status();
        if !status.map_err(|error| failed(&error))?.success() {
            return Err(format!("the {name} could not be measured"));
        }
    }
    Ok(())
}

/// Returns the line of the table for one file.
pub(crate) fn window_row(name: &str, path: &std::path::Path) -> Result<(), String> {
    let megabytes = |bytes: u64| bytes as f64 / 1e6;
    let length = std::fs::metadata(path).map_err(|error| error.to_string())?.len();
    let mut seconds = 0.0;
    // The part first: memory that the whole took would be there for it.
    let mut peaks = Vec::new();
    for whole in [false, true] {
        peaks.push(peak_bytes(|| {
            let recording = match whole {
                true => Recording::open(path),
                false => Recording::open_window(path, |_| (0, 1_000_000_000)),
            };
            let recording = recording.expect("it was written a moment ago");
            let wanted = Wanted::OTHERS.between(0, 1_000_000_000);
            recording.read(&wanted, &mut Totals::default()).expect("as above");
            seconds = recording.end().map_or(0, |(_, nanos)| nanos) as f64 / 1e9;
        })?);
    }
    let open = nanos(|| drop(Recording::open(path)));
    let middle = (seconds / 2.0 * 1e9) as u64;
    let mut marks = 0;
    let window = || {
        let part = Recording::open_window(path, |_| (middle, middle + 1_000_000_000));
        let mut totals = Totals::default();
        part.expect("as above").read(&Wanted::OTHERS, &mut totals).expect("as above");
        marks = totals.events;
    };
    let window_nanos = nanos(window);
    println!(
        "| {name} | {:.0} | {seconds:.0} s | {:.1} | {:.1} | {:.1} | {marks} | {:.1} |",
        megabytes(length),
        open / 1e6,
        megabytes(peaks.pop().unwrap_or_default()),
        window_nanos / 1e6,
        megabytes(peaks.pop().unwrap_or_default()),
    );
    Ok(())
}
