//! Writes a spool of made-up heap events and marks of several threads: `write_spool PATH [EVENTS
//! [THREADS]]`.

#![allow(clippy::print_stderr, reason = "a program for the terminal")]

use std::hint::black_box;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use cairn_recorder::{EndReason, MarkValue, Options, heap, mark, mark_value, start, stop};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let path = arguments.first().map_or("spool.cairn", String::as_str);
    let number = |at: usize, default| arguments.get(at).and_then(|text| text.parse().ok()).unwrap_or(default);
    let (events, threads) = (number(1, 10_000), number(2, 3));

    let mut options = Options::new(Path::new(path).as_os_str().as_bytes());
    options.environment = b"LANG,HOME";
    if let Err(why) = start(&options) {
        eprintln!("{path}: {why}");
        std::process::exit(1);
    }
    mark("threads begin");
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let name = format!("worker {thread}");
            let work = move || churn(events / threads.max(1), thread);
            std::thread::Builder::new().name(name).spawn_scoped(scope, work).unwrap();
        }
    });
    mark_value("threads have ended", MarkValue::Integer(threads as i64));
    stop(EndReason::Exit);
}

/// It handles one thread at a time: a long run takes no more memory than a short one.
const MOST_BLOCKS: usize = 1000;

/// Allocates, moves and frees blocks of all sizes, at several depths of the stack.
fn churn(events: usize, seed: usize) {
    let mut random = seed as u64 * 2 + 1;
    let mut blocks: Vec<Vec<u8>> = Vec::new();
    for event in 0..events {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let size = 1 + (random >> 33) as usize % 3000 * if random >> 60 == 0 { 20 } else { 1 };
        match random >> 20 & 3 {
            0 | 1 if blocks.len() < MOST_BLOCKS => blocks.push(nested(random >> 25 & 7, size)),
            2 if !blocks.is_empty() => {
                let at = (random >> 40) as usize % blocks.len();
                grow(&mut blocks[at]);
            }
            _ if !blocks.is_empty() => {
                let block = blocks.swap_remove((random >> 40) as usize % blocks.len());
                heap::freeing(block.as_ptr() as u64);
                drop(block);
            }
            _ => {}
        }
        if event % 1000 == 999 {
            mark_value("blocks", MarkValue::Integer(blocks.len() as i64));
        }
    }
    // Every second block is left, as a leak is.
    for block in blocks.into_iter().step_by(2) {
        heap::freeing(block.as_ptr() as u64);
        drop(block);
    }
}

#[inline(never)]
fn nested(depth: u64, size: usize) -> Vec<u8> {
    if depth > 0 {
        return black_box(nested(depth - 1, size));
    }
    let block = vec![0_u8; size];
    heap::allocated_by(block.as_ptr() as u64, size as u64, cairn_capture::capture());
    block
}

#[inline(never)]
fn grow(block: &mut Vec<u8>) {
    let moving = heap::moving(block.as_ptr() as u64);
    block.reserve_exact((block.len() + 100).min(1 << 16));
    heap::moved_by(moving, block.as_ptr() as u64, block.capacity() as u64, cairn_capture::capture());
}
