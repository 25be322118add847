//! Slices of time against a model that visits every block by itself.

use std::collections::BTreeMap;

use cairn_analysis::heap::slices::{SliceEntry, SliceOptions, Slices};
use cairn_analysis::heap::{Aggregator, LOST_STACK, Sampling, Scope, lifetime_class, size_class};
use proptest::prelude::*;

const STACKS: u32 = 70;
const THREADS: u32 = 3;

/// A block's whole life. Times are distinct, so that their order is that of the events.
#[derive(Clone, Copy, Debug)]
struct Life {
    stack: u32,
    thread: u32,
    size_bytes: u64,
    born: u64,
    died: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Allocated(usize),
    Freed(usize),
}

fn life() -> impl Strategy<Value = Life> {
    let stack = prop_oneof![9 => 0..STACKS, 1 => Just(LOST_STACK)];
    let size = prop_oneof![0_u64..100, Just(64), 1000_u64..5000];
    (stack, 0..THREADS, size, 0_u64..50_000, prop::option::of(1_u64..20_000)).prop_map(
        |(stack, thread, size_bytes, born, lived)| {
            let died = lived.map(|lived| born + lived);
            Life { stack, thread, size_bytes, born, died }
        },
    )
}

/// In the order of time; of the same time, in that of the blocks.
fn events(lives: &[Life]) -> Vec<(u64, Event)> {
    let born = lives.iter().enumerate().map(|(index, life)| (life.born, Event::Allocated(index)));
    let died = lives.iter().enumerate().filter_map(|(index, life)| Some((life.died?, Event::Freed(index))));
    let mut events: Vec<(u64, Event)> = born.chain(died).collect();
    events.sort_by_key(|&(nanos, _)| nanos);
    events
}

type Key = (&'static str, u32, u32);

/// Returns the entries of slices of this width, from the first events.
fn model(
    lives: &[Life],
    events: &[(u64, Event)],
    scope: &Scope,
    slice_nanos: u64,
) -> BTreeMap<Key, SliceEntry> {
    let mut entries: BTreeMap<Key, SliceEntry> = BTreeMap::new();
    let mut latest = [usize::MAX; THREADS as usize];
    let mut alive = vec![false; lives.len()];
    let slice = |nanos: u64| (nanos / slice_nanos) as u32;
    let is_counted = |life: &Life| scope.counts(life.born, life.size_bytes, life.stack, life.thread);
    let rows = |life: &Life| {
        [("stack", life.stack), ("size", size_class(life.size_bytes) as u32), ("thread", life.thread)]
    };
    let mut change = |kind, row, slice, change: &dyn Fn(&mut SliceEntry)| {
        let entry =
            entries.entry((kind, row, slice)).or_insert(SliceEntry { row, slice, ..SliceEntry::default() });
        change(entry);
    };
    for &(nanos, event) in events.iter().take_while(|&&(nanos, _)| nanos <= scope.to_nanos) {
        match event {
            Event::Allocated(index) => {
                let life = &lives[index];
                latest[life.thread as usize] = index;
                alive[index] = true;
                for (kind, row) in rows(life).into_iter().filter(|_| is_counted(life)) {
                    change(kind, row, slice(nanos), &|entry| {
                        entry.allocated_bytes += life.size_bytes;
                        entry.allocations += 1;
                        entry.grown_bytes += life.size_bytes as i64;
                    });
                }
            }
            Event::Freed(index) => {
                let life = &lives[index];
                alive[index] = false;
                if !is_counted(life) {
                    continue;
                }
                let is_temporary = latest[life.thread as usize] == index;
                for (kind, row) in rows(life) {
                    change(kind, row, slice(nanos), &|entry| {
                        entry.grown_bytes -= life.size_bytes as i64;
                        entry.temporary += u64::from(is_temporary);
                    });
                }
                let class = lifetime_class(nanos - life.born) as u32;
                change("lifetime", class, slice(nanos), &|entry| {
                    entry.allocated_bytes += life.size_bytes;
                    entry.allocations += 1;
                });
            }
        }
    }
    for (life, _) in lives.iter().zip(alive).filter(|(life, alive)| *alive && is_counted(life)) {
        for (kind, row) in rows(life) {
            change(kind, row, slice(life.born), &|entry| entry.leaked_bytes += life.size_bytes);
        }
    }
    // Blocks without bytes that were allocated and freed leave an entry: their number.
    entries.retain(|_, entry| {
        *entry != SliceEntry { row: entry.row, slice: entry.slice, ..SliceEntry::default() }
    });
    entries
}

fn reported(slices: &Slices) -> BTreeMap<Key, SliceEntry> {
    let lists = [
        ("stack", &slices.stacks),
        ("size", &slices.sizes),
        ("thread", &slices.threads),
        ("lifetime", &slices.lifetimes),
    ];
    let mut all = BTreeMap::new();
    for (kind, list) in lists {
        assert!(list.is_sorted_by_key(|entry| (entry.row, entry.slice)), "{kind}");
        for entry in list {
            assert!((entry.slice as usize) < slices.count, "{kind}: {entry:?}");
            let nothing = SliceEntry { row: entry.row, slice: entry.slice, ..SliceEntry::default() };
            if *entry != nothing {
                assert_eq!(all.insert((kind, entry.row, entry.slice), *entry), None, "{kind}");
            }
        }
    }
    all
}

fn feed(heap: &mut Aggregator, lives: &[Life], events: &[(u64, Event)]) {
    for &(nanos, event) in events {
        match event {
            // Blocks are never given again here: that is no part of what is tested.
            Event::Allocated(index) => {
                let Life { stack, thread, size_bytes, .. } = lives[index];
                heap.allocated(index as u32, stack, thread, size_bytes, nanos);
            }
            Event::Freed(index) => heap.freed(index as u32, nanos),
        }
    }
}

fn options() -> impl Strategy<Value = SliceOptions> {
    let end = prop_oneof![Just(None), Just(Some(70_000)), (0_u64..100_000).prop_map(Some)];
    let most_entries = prop_oneof![Just(usize::MAX), Just(20), Just(0)];
    (2_usize..40, end, most_entries).prop_map(|(most_slices, end_nanos, most_entries)| {
        let mut options = SliceOptions::default();
        (options.most_slices, options.end_nanos, options.most_entries) =
            (most_slices, end_nanos, most_entries);
        options
    })
}

proptest! {
    #[test]
    fn every_entry_is_what_happened_to_its_row_in_its_slice(
        lives in prop::collection::vec(life(), 0..120),
        options in options(),
        part in 0.0..1.0,
        from in prop_oneof![Just(0_u64), 0_u64..60_000],
        to in prop_oneof![Just(u64::MAX), 0_u64..60_000],
        threads in prop::option::of(prop::collection::vec(0..THREADS, 1..3)),
    ) {
        let scope = Scope { from_nanos: from, to_nanos: to, threads, ..Scope::default() };
        let events = events(&lives);
        let (first, rest) = events.split_at((events.len() as f64 * part) as usize);
        let heap = Aggregator::new(STACKS as usize, THREADS as usize, scope.clone(), Sampling::All);
        let mut heap = heap.sliced(&options);
        feed(&mut heap, &lives, first);
        let until = first.last().map_or(0, |&(nanos, _)| nanos);
        // An answer in between disturbs nothing.
        let early = heap.slices(until).unwrap();
        prop_assert!(reported(&early) == model(&lives, first, &scope, early.slice_nanos));
        feed(&mut heap, &lives, rest);
        let (profile, slices) = heap.finish_sliced(80_000);
        let slices = slices.unwrap();
        let expected = model(&lives, &events, &scope, slices.slice_nanos);
        prop_assert_eq!(reported(&slices), expected);
        prop_assert!(slices.count <= options.most_slices, "{} slices", slices.count);
        prop_assert_eq!(slices.count as u64, profile.end_nanos / slices.slice_nanos + 1);
        if options.end_nanos == Some(profile.end_nanos) && options.most_entries == usize::MAX {
            prop_assert!(slices.count * 2 > options.most_slices);
        }
        // The same sums, whether time is cut or not.
        let mut uncut = Aggregator::new(STACKS as usize, THREADS as usize, scope.clone(), Sampling::All);
        feed(&mut uncut, &lives, &events);
        prop_assert_eq!(&profile, &uncut.finish(80_000));
        let mut wider = slices.clone();
        wider.halve();
        prop_assert_eq!(reported(&wider), model(&lives, &events, &scope, wider.slice_nanos));
    }

    #[test]
    fn nonsense_breaks_nothing_and_takes_no_memory(
        steps in prop::collection::vec((any::<bool>(), 0_u32..70_000, 0_u32..80, 0_u32..5, any::<u64>(), any::<u64>()), 0..100),
        options in options(),
    ) {
        let mut heap = Aggregator::new(STACKS as usize, THREADS as usize, Scope::default(), Sampling::All);
        heap = heap.sliced(&options);
        for &(allocates, object, stack, thread, size_bytes, nanos) in &steps {
            if allocates {
                heap.allocated(object, stack, thread, size_bytes, nanos);
            } else {
                heap.freed(object, nanos);
            }
        }
        let (_, slices) = heap.finish_sliced(u64::MAX);
        let slices = slices.unwrap();
        prop_assert!(slices.count <= options.most_slices);
        reported(&slices);
    }
}

/// While a program runs, its end is not known: slices widen, and memory stays.
#[test]
fn a_long_run_has_no_more_slices_than_a_short_one() {
    let mut heap = Aggregator::new(1, 1, Scope::default(), Sampling::All).sliced(&SliceOptions::default());
    for second in 0..100_000_u64 {
        heap.allocated(0, 0, 0, 100, second * 1_000_000_000);
        heap.freed(0, second * 1_000_000_000 + 500);
        if second.is_multiple_of(9973) {
            let slices = heap.slices(second * 1_000_000_000 + 600).unwrap();
            assert!(slices.count <= 256, "{}", slices.count);
            let allocations: u64 = slices.stacks.iter().map(|entry| entry.allocations).sum();
            assert_eq!(allocations, second + 1);
        }
    }
    let slices = heap.slices(100_000_000_000_000).unwrap();
    assert!((128..=256).contains(&slices.count), "{}", slices.count);
    assert!(slices.stacks.len() >= 127, "{}", slices.stacks.len());
}
