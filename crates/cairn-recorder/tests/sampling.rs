//! Sampled recordings: how often blocks are chosen, that their frees are found, and nothing of the
//! others.

mod support;

use std::collections::HashMap;

use cairn_capture::capture;
use cairn_recorder::{EndReason, Options, heap, start, stop};
use support::{Heap, Spool, fresh_path};

const MEAN_BYTES: u64 = 4096;
/// Each with how many blocks of it are allocated.
const SIZES: [(u64, u64); 6] =
    [(0, 200_000), (16, 400_000), (100, 200_000), (1000, 60_000), (5000, 20_000), (100_000, 2_000)];

/// Counts, for each size, the blocks whose allocation is in the recording.
fn recorded(spool: &Spool) -> HashMap<u64, u64> {
    let mut counts = HashMap::new();
    for (_, event) in spool.sequences.values().flat_map(|sequence| &sequence.heap) {
        if let Heap::Alloc { size, .. } = event {
            *counts.entry(*size).or_insert(0) += 1;
        }
    }
    counts
}

#[test]
fn sampling_chooses_blocks_by_size() {
    let path = fresh_path("sampling");
    let mut options = Options::new(path.as_os_str().as_encoded_bytes());
    options.sample_bytes = Some(MEAN_BYTES);
    options.sample_seed = 20_240_229;
    start(&options).unwrap();

    let stack = capture();
    // All sizes in turn, from four threads, blocks freed by another thread than the one that made
    // them.
    let (sender, receiver) = std::sync::mpsc::channel::<Vec<u64>>();
    let freeing = std::thread::spawn(move || {
        for addresses in receiver {
            addresses.into_iter().for_each(heap::freeing);
        }
    });
    let threads: Vec<_> = (0..4_u64)
        .map(|thread| {
            let sender = sender.clone();
            std::thread::spawn(move || {
                let mut address = (thread + 1) << 36;
                let most = SIZES.iter().map(|(_, count)| count / 4).max().unwrap();
                for turn in 0..most {
                    let mut batch = Vec::new();
                    for (size, count) in SIZES {
                        if turn * (count / 4) / most != (turn + 1) * (count / 4) / most {
                            address += 16;
                            heap::allocated_by(address, size, stack);
                            batch.push(address);
                        }
                    }
                    if turn % 2 == 0 {
                        batch.into_iter().for_each(heap::freeing);
                    } else {
                        sender.send(batch).unwrap();
                    }
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    drop(sender);
    freeing.join().unwrap();
    stop(EndReason::Exit);

    let spool = Spool::open(&path);
    spool.check();
    assert!(spool.facts.contains(&("sample_bytes".to_owned(), MEAN_BYTES.to_string())), "{:?}", spool.facts);
    assert_eq!(spool.lost_events, 0);
    let pairing = spool.pair();
    assert_eq!((pairing.unmatched, pairing.live.len()), (0, 0), "each chosen block is freed, and no other");
    let recorded = recorded(&spool);
    for (size, count) in SIZES {
        let p = 1.0 - (-(size.max(1) as f64) / MEAN_BYTES as f64).exp();
        let (expected, found) = (count as f64 * p, recorded.get(&size).copied().unwrap_or(0) as f64);
        let deviation = (count as f64 * p * (1.0 - p)).sqrt().max(1e-9);
        let off = (found - expected) / deviation;
        // Four deviations: once in 16,000 seeds, and the seed is given.
        assert!(
            off.abs() < 4.0,
            "{size} bytes: {found} of {count}, expected {expected:.1}, {off:.1} deviations"
        );
    }
    // And so the estimate of all bytes is near.
    let weigh = |(size, found): (&u64, &u64)| {
        *found as f64 * *size as f64 / (1.0 - (-((*size).max(1) as f64) / MEAN_BYTES as f64).exp())
    };
    let estimate: f64 = recorded.iter().map(weigh).sum();
    let all: f64 = SIZES.iter().map(|(size, count)| (size * count) as f64).sum();
    assert!((estimate / all - 1.0).abs() < 0.01, "{estimate} of {all}");
    std::fs::remove_file(path).unwrap();
}
