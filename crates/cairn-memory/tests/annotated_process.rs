//! Compares the blocks of `cairn-heap`'s allocators in a running process with that process's own
//! list.
#![cfg(target_os = "linux")]

#[path = "support/asleep.rs"]
mod asleep;

use std::alloc::System;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use cairn_heap::{Global, Heap, Options};
use cairn_memory::heap::{Annotated, BlockLayout, FindOptions, GlibcHeap, NearPlace, Reachability};
use cairn_memory::image::Image;

static LWS: Heap<Global<System>> = Heap::new(Global(System), Options::new(BlockLayout::Lws));
static HEAPPROF: Heap<Global<System>> = Heap::new(Global(System), Options::new(BlockLayout::Heapprof));
static CAIRN: Heap<Global<System>> = Heap::new(Global(System), Options::new(BlockLayout::Cairn));

const CHILD: &str = "CAIRN_ANNOTATED_TEST_CHILD";
const BLOCKS: usize = 3000;

/// Address, size and frames of a block.
type ReportedBlock = (u64, u64, Vec<u64>);

fn stack_of(number: usize) -> Vec<usize> {
    (0..1 + number % 7).map(|depth| 0x40_1000 + number % 50 * 64 + depth * 4096).collect()
}

/// Allocates, frees and resizes with one heap, and returns the live blocks.
fn work(heap: &'static Heap<Global<System>>, seed: usize) -> Vec<(usize, usize, Vec<usize>)> {
    let mut random = seed;
    let mut next = |end: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % end
    };
    let mut live = Vec::new();
    for number in 0..BLOCKS {
        let size = [next(64), next(600), next(20_000)][next(3)];
        let alignment = 1 << if next(10) == 0 { next(13) } else { next(5) };
        let stack = stack_of(number);
        let block = heap.allocate(size, alignment, false, &*stack);
        assert!(!block.is_null() && (block as usize).is_multiple_of(alignment));
        // SAFETY: `size` bytes were just allocated at `block`.
        unsafe { block.write_bytes(number as u8, size) };
        live.push((block as usize, size, alignment, stack));
        if next(3) == 0 {
            let (block, _, alignment, _) = live.swap_remove(next(live.len()));
            // SAFETY: `block` was allocated above with this alignment, and is not used again.
            unsafe { heap.release(std::ptr::with_exposed_provenance_mut(block), alignment) };
        }
    }
    live.into_iter().map(|(block, size, _, stack)| (block, size, stack)).collect()
}

#[test]
fn child_that_annotates() {
    let Some(layout) = std::env::var_os(CHILD) else { return };
    let heap = match layout.to_str() {
        Some("lws") => &LWS,
        Some("heapprof") => &HEAPPROF,
        _ => &CAIRN,
    };
    let live = work(heap, 12345);
    let mut out = std::io::stdout().lock();
    for (block, size, stack) in &live {
        let frames: Vec<String> = stack.iter().map(|frame| format!("{frame:x}")).collect();
        writeln!(out, "\nheld: {block:x} {size:x} {}", frames.join(" ")).unwrap();
    }
    writeln!(out, "\nheld all").unwrap();
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    std::hint::black_box(&live);
}

fn check(name: &str, layout: BlockLayout) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_that_annotates", "--nocapture", "--test-threads=1"])
        .env(CHILD, name)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = child.stdout.take().unwrap();
    let mut reported = BTreeSet::<ReportedBlock>::new();
    let mut lines = BufReader::new(output).lines();
    for line in lines.by_ref().map_while(Result::ok) {
        let Some(text) = line.split("held: ").nth(1) else {
            if line.ends_with("held all") {
                break;
            }
            continue;
        };
        let mut numbers = text.split_whitespace().map(|word| u64::from_str_radix(word, 16).unwrap());
        reported.insert((numbers.next().unwrap(), numbers.next().unwrap(), numbers.collect()));
    }
    assert!(reported.len() > BLOCKS / 2, "{}", reported.len());
    // Not during an allocation by the code that it waits in.
    asleep::wait_until_asleep(child.id());

    let looked = Image::of_process(child.id(), |image| {
        let found = Annotated::find(image, &FindOptions::default());
        let of_layout = found.blocks().iter().filter(|block| block.layout == Some(layout));
        let blocks: BTreeSet<ReportedBlock> = of_layout
            .map(|block| {
                let frames = found.stacks().frames(block.stack).iter().filter_map(|frame| frame.address());
                (block.user_address, block.size_bytes, frames.map(|address| address.value()).collect())
            })
            .collect();
        let missing: Vec<_> = reported.difference(&blocks).take(5).collect();
        let invented: Vec<_> = blocks.difference(&reported).take(5).collect();
        assert!(
            missing.is_empty() && invented.is_empty(),
            "{name}: missing {missing:x?}, invented {invented:x?}"
        );
        assert_eq!(found.blocks().len(), reported.len(), "{name}: of another layout");
        assert_eq!(found.damage(image), [], "{name}");
        for (address, size, _) in reported.iter().step_by(100) {
            let near = found.near(address + size).unwrap();
            let is_next = near.block.user_address != *address || *size == 0;
            assert!(is_next || near.place == NearPlace::Behind(0), "{near:?}");
        }
        // The C library's heap contains all of them.
        let heap = GlibcHeap::find(image).expect("a program with glibc's malloc");
        assert_eq!(heap.damage(), []);
        let reach = Reachability::find(image, found.blocks(), Some(&heap));
        assert_eq!(reach.leaked().count() + reach.indirectly_leaked().count(), 0, "{name}");
    });
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    lines.for_each(drop);
    child.wait().unwrap();
    looked.unwrap();
}

#[test]
fn annotated_lws_blocks_are_found() {
    check("lws", BlockLayout::Lws);
}

#[test]
fn annotated_heapprof_blocks_are_found() {
    check("heapprof", BlockLayout::Heapprof);
}

#[test]
fn annotated_cairn_blocks_are_found() {
    check("cairn", BlockLayout::Cairn);
}
