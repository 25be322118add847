//! Turns measurements into Markdown, ready for `benchmarks/record/`.

use std::path::Path;

use crate::measure::{self, Case, Timing, Unit};
use crate::{corpus, formats, instructions, machine, traces};

/// Times every format and prints the tables.
pub(crate) fn formats() -> Result<(), String> {
    let inputs = formats::Inputs::load()?;
    let mut cases = formats::cases(&inputs);
    eprintln!("timing {} cases", cases.len());
    let timings = measure::interleaved(&mut cases);
    let rows: Vec<Row<'_>> = cases.iter().zip(&timings).map(|(case, &timing)| Row { case, timing }).collect();

    print!("{}", machine::description());
    println!(
        "- libwebsockets C code: {}",
        inputs.peer.as_ref().map_or_else(|why| format!("missing, {why}"), |_| "in the run".to_owned())
    );
    println!(
        "- Swift's encoder: missing (needs a Swift compiler); `plain rule` is the yardstick next to ours\n"
    );
    print_timings(&rows);
    println!();
    print_ratios(&rows);
    println!();
    formats::print_bytes_per_frame(&inputs);
    Ok(())
}

struct Row<'a> {
    case: &'a Case<'a>,
    timing: Timing,
}

fn print_timings(rows: &[Row<'_>]) {
    println!("| operation | by | on | bytes/unit | ns/unit (median) | lowest-highest | GB/s |");
    println!("|---|---|---|---:|---:|---:|---:|");
    for Row { case, timing } in rows {
        let gigabytes_per_second = case.bytes_per_unit() / timing.median_nanos;
        let (bytes, nanos) = match case.unit {
            Unit::Byte => ("-".to_owned(), "-".to_owned()),
            unit => {
                let bytes = format!("{:.3} /{}", case.bytes_per_unit(), unit.name());
                (bytes, format!("{:.2} /{}", timing.median_nanos, unit.name()))
            }
        };
        let range = match case.unit {
            Unit::Byte => "-".to_owned(),
            _ => format!("{:.2}-{:.2}", timing.lowest_nanos, timing.highest_nanos),
        };
        let speed = format!("{gigabytes_per_second:.2}");
        println!(
            "| {} | {} | {} | {bytes} | {nanos} | {range} | {speed} |",
            case.operation, case.implementation, case.input
        );
    }
}

/// Every other implementation of an operation on the same input, against cairn's. The lowest times
/// are those that a busy machine disturbs least: where the two columns differ much, it was busy.
fn print_ratios(rows: &[Row<'_>]) {
    println!("| operation | on | against | times faster, by medians | by lowest |");
    println!("|---|---|---|---:|---:|");
    for Row { case, timing } in rows.iter().filter(|row| row.case.implementation == formats::CAIRN) {
        let others = rows.iter().filter(|other| {
            other.case.operation == case.operation
                && other.case.input == case.input
                && other.case.implementation != case.implementation
        });
        for other in others {
            let median = other.timing.median_nanos / timing.median_nanos;
            let lowest = other.timing.lowest_nanos / timing.lowest_nanos;
            let (operation, input, peer) = (case.operation, case.input, other.case.implementation);
            println!("| {operation} | {input} | {peer} | {median:.1} | {lowest:.1} |");
        }
    }
}

/// Counts instructions per frame of the CBF and lws loops.
pub(crate) fn instructions() -> Result<(), String> {
    let inputs = formats::Inputs::load()?;
    println!("{}", machine::description());
    println!("| operation | by | on | instructions/frame |");
    println!("|---|---|---|---:|");
    for case in formats::cases(&inputs) {
        let counted = ["CBF ", "lws "].iter().any(|format| case.operation.starts_with(format));
        if counted && case.unit == Unit::Frame {
            let per_frame = instructions::per_pass(&case.id())? / case.units as f64;
            println!("| {} | {} | {} | {per_frame:.1} |", case.operation, case.implementation, case.input);
        }
    }
    Ok(())
}

/// Counts encoded bytes per frame over full traces.
pub(crate) fn traces(directory: &Path) -> Result<(), String> {
    println!("| program | frames | {} |", formats::cbf::DIALECT_NAMES.join(" | "));
    println!("|---|---:|---:|---:|---:|");
    let mut total = Bytes::default();
    for name in corpus::program_names(directory, ".stacks.zst")? {
        let mut bytes = Bytes::default();
        traces::for_each(&directory.join(format!("{name}.stacks.zst")), |_, addresses| {
            bytes.frames += addresses.len();
            for (sum, size) in bytes.dialects.iter_mut().zip(formats::cbf::encoded_bytes(addresses)) {
                *sum += size;
            }
        })?;
        bytes.print(&name);
        total.frames += bytes.frames;
        total.dialects.iter_mut().zip(bytes.dialects).for_each(|(sum, size)| *sum += size);
    }
    total.print("all");
    Ok(())
}

#[derive(Default)]
struct Bytes {
    frames: usize,
    dialects: [usize; 3],
}

impl Bytes {
    fn print(&self, name: &str) {
        let [strict, swift_6_2, swift_newer] = self.dialects.map(|bytes| bytes as f64 / self.frames as f64);
        println!("| {name} | {} | {strict:.3} | {swift_6_2:.3} | {swift_newer:.3} |", self.frames);
    }
}
