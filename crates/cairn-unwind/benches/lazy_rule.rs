//! Measures the time of one lazy rule, for random pcs of a real library, each used once.
//!
//! `cargo bench -p cairn-unwind --bench lazy_rule [-- PATH…]`. Prints, per module, nanoseconds per
//! rule for random pcs, for the search alone, and for the whole row.

#![allow(clippy::print_stdout, reason = "it is a program that prints its results")]

use std::hint::black_box;
use std::time::Instant;

use cairn_format::AbsoluteAddress;
use cairn_unwind::cfi::{FrameTable, Section};
use cairn_unwind::x86_64::X86_64;
use object::{Object, ObjectSection};

/// A shuffled list of pcs: one within each function, as the return addresses of a stack are.
fn random_pcs(table: &FrameTable<'_>) -> Vec<AbsoluteAddress> {
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    let mut pcs: Vec<AbsoluteAddress> = Vec::new();
    for entry in table.entries().map_while(Result::ok) {
        let (start, end) = (entry.range.start.value(), entry.range.end.value());
        if end > start {
            pcs.extend((0..4).map(|_| AbsoluteAddress::new(start + random() % (end - start))));
        }
    }
    for at in (1..pcs.len()).rev() {
        pcs.swap(at, (random() % (at as u64 + 1)) as usize);
    }
    pcs
}

/// The least time per call over several rounds: interruptions only ever add.
fn nanos_per_call(pcs: &[AbsoluteAddress], mut call: impl FnMut(AbsoluteAddress)) -> f64 {
    let mut best = f64::MAX;
    for _ in 0..15 {
        let start = Instant::now();
        for &pc in pcs {
            call(black_box(pc));
        }
        best = best.min(start.elapsed().as_nanos() as f64 / pcs.len() as f64);
    }
    best
}

fn measure(path: &str) {
    let Ok(file) = std::fs::read(path) else { return println!("{path}: not there") };
    let Ok(object) = object::File::parse(&*file) else { return println!("{path}: not an ELF file") };
    let section = |name: &str| {
        let section = object.section_by_name(name)?;
        Some(Section::new(section.data().ok()?, AbsoluteAddress::new(section.address())))
    };
    let (Some(header), Some(frames)) = (section(".eh_frame_hdr"), section(".eh_frame")) else {
        return println!("{path}: no unwind tables");
    };
    let table = FrameTable::with_header(header, frames).expect("a linker made this header");
    let pcs = random_pcs(&table);
    let rule = nanos_per_call(&pcs, |pc| {
        let _ = black_box(table.rule::<X86_64>(pc));
    });
    let find = nanos_per_call(&pcs, |pc| {
        let _ = black_box(table.find(pc));
    });
    let row = nanos_per_call(&pcs, |pc| {
        let _ = black_box(table.row::<X86_64>(pc).is_ok());
    });
    println!(
        "{path}: {} pcs, rule {rule:.1} ns, of it search and headers {find:.1} ns; whole row {row:.1} ns",
        pcs.len()
    );
}

fn main() {
    let given: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let usual = ["libc.so.6", "libstdc++.so.6", "libcrypto.so.3"]
        .map(|name| format!("/usr/lib/x86_64-linux-gnu/{name}"));
    for path in if given.is_empty() { &usual[..] } else { &given[..] } {
        measure(path);
    }
}
