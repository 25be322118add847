//! The aggregator against a model that is too slow and too simple to be wrong: it keeps every
//! block, and copies all of them at each new peak.

use std::collections::BTreeMap;

use cairn_analysis::heap::{
    Aggregator, HeapProfile, LOST_STACK, Sampling, Scope, Sums, lifetime_class, size_class,
};
use proptest::prelude::*;

const STACKS: u32 = 5;
const THREADS: u32 = 3;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Thread, stack, size.
    Allocate(u32, u32, u64),
    /// Which of the live blocks.
    Free(usize),
    /// The thread's latest block, if it lives.
    FreeLatest(u32),
    Wait(u64),
}

/// An event as the aggregator sees it.
#[derive(Clone, Copy, Debug)]
enum Event {
    Allocated { object: u32, stack: u32, thread: u32, size_bytes: u64, nanos: u64 },
    Freed { object: u32, nanos: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    let size = prop_oneof![0_u64..100, Just(64), 1000_u64..5000];
    let stack = prop_oneof![9 => 0..STACKS, 1 => Just(LOST_STACK)];
    prop_oneof![
        5 => (0..THREADS, stack, size).prop_map(|(thread, stack, size)| Step::Allocate(thread, stack, size)),
        3 => any::<usize>().prop_map(Step::Free),
        2 => (0..THREADS).prop_map(Step::FreeLatest),
        2 => (0_u64..3000).prop_map(Step::Wait),
    ]
}

/// Events of a program that takes the steps, objects given again latest first.
fn events(steps: &[Step]) -> Vec<Event> {
    let (mut events, mut nanos) = (Vec::new(), 0);
    let (mut live, mut given_back, mut next) = (Vec::<u32>::new(), Vec::new(), 0);
    let mut latest = [None; THREADS as usize];
    for &step in steps {
        let victim = match step {
            Step::Wait(wait) => {
                nanos += wait;
                continue;
            }
            Step::Allocate(thread, stack, size_bytes) => {
                let object = given_back.pop().unwrap_or_else(|| {
                    next += 1;
                    next - 1
                });
                live.push(object);
                latest[thread as usize] = Some(object);
                events.push(Event::Allocated { object, stack, thread, size_bytes, nanos });
                continue;
            }
            Step::Free(_) if live.is_empty() => continue,
            Step::Free(which) => live[which % live.len()],
            Step::FreeLatest(thread) => match latest[thread as usize] {
                Some(object) if live.contains(&object) => object,
                _ => continue,
            },
        };
        live.retain(|&object| object != victim);
        given_back.push(victim);
        events.push(Event::Freed { object: victim, nanos });
    }
    events
}

fn aggregate(events: &[Event], scope: Scope, sampling: Sampling) -> HeapProfile {
    let mut heap = Aggregator::new(STACKS as usize, THREADS as usize, scope, sampling);
    let mut end = 0;
    for &event in events {
        match event {
            Event::Allocated { object, stack, thread, size_bytes, nanos } => {
                heap.allocated(object, stack, thread, size_bytes, nanos);
                end = nanos;
            }
            Event::Freed { object, nanos } => {
                heap.freed(object, nanos);
                end = nanos;
            }
        }
    }
    heap.finish(end)
}

#[derive(Clone, Debug)]
struct Block {
    stack: u32,
    thread: u32,
    size_bytes: u64,
    born: u64,
    /// Place among all allocations of its thread.
    ordinal: usize,
    counted: bool,
}

#[derive(Default)]
struct Model {
    live: BTreeMap<u32, Block>,
    allocations_by_thread: [usize; THREADS as usize],
    /// All counted blocks that ever were, and whether each ended as a temporary one.
    ever: Vec<Block>,
    freed: Vec<(Block, u64, bool)>,
    peak: Vec<Block>,
    peak_bytes: u64,
    peak_nanos: u64,
}

impl Model {
    fn run(events: &[Event], scope: &Scope) -> Self {
        let mut model = Self::default();
        for &event in events {
            match event {
                Event::Allocated { nanos, .. } | Event::Freed { nanos, .. } if nanos > scope.to_nanos => {
                    break;
                }
                Event::Allocated { object, stack, thread, size_bytes, nanos } => {
                    let ordinal = &mut model.allocations_by_thread[thread as usize];
                    *ordinal += 1;
                    let counted = nanos >= scope.from_nanos
                        && scope.sizes.contains(&size_bytes)
                        && scope.threads.as_ref().is_none_or(|threads| threads.contains(&thread))
                        && scope
                            .stacks
                            .as_ref()
                            .is_none_or(|stacks| stack < STACKS && stacks[stack as usize]);
                    let block = Block { stack, thread, size_bytes, born: nanos, ordinal: *ordinal, counted };
                    if counted {
                        model.ever.push(block.clone());
                    }
                    model.live.insert(object, block);
                    let held = model.live.values().map(|block| block.size_bytes).sum();
                    if held > model.peak_bytes {
                        model.peak = model.live.values().cloned().collect();
                        model.peak_bytes = held;
                        model.peak_nanos = nanos;
                    }
                }
                Event::Freed { object, nanos } => {
                    let block = model.live.remove(&object).expect("only live objects are freed here");
                    let temporary = block.ordinal == model.allocations_by_thread[block.thread as usize];
                    model.freed.push((block, nanos, temporary));
                }
            }
        }
        model
    }

    fn sums(&self, of: impl Fn(&Block) -> bool) -> Sums {
        let ever = self.ever.iter().filter(|block| of(block));
        let live = self.live.values().filter(|block| block.counted && of(block));
        let peak = self.peak.iter().filter(|block| block.counted && of(block));
        let freed = self.freed.iter().filter(|(block, ..)| block.counted && of(block));
        Sums {
            allocations: ever.clone().count() as u64,
            allocated_bytes: ever.map(|block| block.size_bytes).sum(),
            live_blocks: live.clone().count() as u64,
            live_bytes: live.map(|block| block.size_bytes).sum(),
            peak_blocks: peak.clone().count() as u64,
            peak_bytes: peak.map(|block| block.size_bytes).sum(),
            temporary: freed.filter(|(.., temporary)| *temporary).count() as u64,
        }
    }
}

fn check(events: &[Event], scope: &Scope) {
    let profile = aggregate(events, scope.clone(), Sampling::All);
    let model = Model::run(events, scope);
    assert_eq!(profile.totals, model.sums(|_| true));
    assert_eq!((profile.peak_bytes_of_all, profile.peak_nanos), (model.peak_bytes, model.peak_nanos));
    assert_eq!(profile.live_bytes_of_all, model.live.values().map(|block| block.size_bytes).sum::<u64>());
    for stack in 0..STACKS {
        assert_eq!(profile.stacks[stack as usize], model.sums(|block| block.stack == stack), "stack {stack}");
    }
    assert_eq!(profile.lost_stack, model.sums(|block| block.stack == LOST_STACK));
    for thread in 0..THREADS {
        assert_eq!(
            profile.threads[thread as usize],
            model.sums(|block| block.thread == thread),
            "thread {thread}"
        );
    }
    for (class, sums) in profile.sizes.iter().enumerate() {
        assert_eq!(
            *sums,
            model.sums(|block| size_class(block.size_bytes) == class),
            "sizes of class {class}"
        );
    }
    for (class, lifetimes) in profile.lifetimes.iter().enumerate() {
        let of_class = model
            .freed
            .iter()
            .filter(|(block, died, _)| block.counted && lifetime_class(died - block.born) == class);
        assert_eq!(lifetimes.blocks, of_class.clone().count() as u64, "lifetimes of class {class}");
        assert_eq!(lifetimes.bytes, of_class.map(|(block, ..)| block.size_bytes).sum::<u64>());
    }
    assert_eq!(profile.anomalies, cairn_analysis::heap::Anomalies::default());
    let bins = &profile.timeline.bins;
    assert_eq!(bins.iter().map(|bin| bin.most_bytes).max(), Some(model.peak_bytes));
    assert_eq!(bins.last().map(|bin| bin.last_bytes), Some(profile.live_bytes_of_all));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn sums_are_those_of_the_model(steps in prop::collection::vec(step(), 0..120)) {
        check(&events(&steps), &Scope::default());
    }

    #[test]
    fn sums_of_a_part_are_those_of_the_model(
        steps in prop::collection::vec(step(), 0..120),
        times in (0_u64..60_000, 0_u64..60_000),
        sizes in (0_u64..100, 0_u64..5000),
        threads in prop::option::of(prop::collection::vec(0..THREADS, 0..3)),
        stacks in prop::option::of(prop::collection::vec(any::<bool>(), STACKS as usize)),
    ) {
        let scope = Scope {
            from_nanos: times.0.min(times.1),
            to_nanos: times.0.max(times.1),
            sizes: sizes.0..=sizes.1,
            threads,
            stacks,
        };
        check(&events(&steps), &scope);
    }

    #[test]
    fn what_grows_has_at_any_moment_the_sums_of_an_end_there(
        steps in prop::collection::vec(step(), 0..60),
        mean_bytes in prop::option::of(100_u64..5000),
    ) {
        let sampling = mean_bytes.map_or(Sampling::All, |mean_bytes| Sampling::Poisson { mean_bytes });
        let events = events(&steps);
        let mut heap = Aggregator::new(0, 0, Scope::default(), sampling);
        for (count, &event) in (1..).zip(&events) {
            let end = match event {
                Event::Allocated { object, stack, thread, size_bytes, nanos } => {
                    let stacks = if stack == LOST_STACK { 0 } else { stack as usize + 1 };
                    heap.grow(stacks, thread as usize + 1);
                    heap.allocated(object, stack, thread, size_bytes, nanos);
                    nanos
                }
                Event::Freed { object, nanos } => {
                    heap.freed(object, nanos);
                    nanos
                }
            };
            let mut snapshot = heap.snapshot(end);
            let whole = aggregate(&events[..count], Scope::default(), sampling);
            // Stacks that have not been met yet have no row.
            snapshot.stacks.resize(whole.stacks.len(), Sums::default());
            snapshot.threads.resize(whole.threads.len(), Sums::default());
            snapshot.stack_errors.resize(whole.stack_errors.len(), cairn_analysis::heap::Errors::default());
            prop_assert_eq!(snapshot, whole);
        }
    }

    #[test]
    fn nonsense_is_counted_and_breaks_nothing(
        steps in prop::collection::vec((any::<bool>(), 0_u32..70_000, 0_u32..8, 0_u32..5, any::<u64>(), any::<u64>()), 0..100)
    ) {
        let mut heap = Aggregator::new(STACKS as usize, THREADS as usize, Scope::default(), Sampling::All);
        let mut taken = 0;
        for &(allocates, object, stack, thread, size_bytes, nanos) in &steps {
            if allocates {
                heap.allocated(object, stack, thread, size_bytes, nanos);
            } else {
                heap.freed(object, nanos);
            }
            taken += u64::from(allocates);
        }
        let profile = heap.finish(0);
        prop_assert_eq!(profile.totals.allocations + profile.anomalies.bad_numbers, taken);
        prop_assert!(profile.timeline.bins.len() <= cairn_analysis::heap::MAX_BINS);
    }
}

#[test]
fn an_object_far_above_all_others_takes_no_memory() {
    let mut heap = Aggregator::new(1, 1, Scope::default(), Sampling::All);
    heap.allocated(u32::MAX - 3, 0, 0, 8, 0);
    heap.allocated(u32::MAX, 0, 0, 8, 0);
    let profile = heap.finish(0);
    assert_eq!((profile.anomalies.bad_numbers, profile.totals.allocations), (2, 0));
}

/// The estimates of many sampled recordings of one program are unbiased.
///
/// They are on average the truth, and as far off as they say.
#[test]
fn sampled_sums_are_unbiased_and_know_their_error() {
    const MEAN_BYTES: u64 = 4096;
    const RUNS: u64 = 400;
    let blocks: Vec<(u32, u64)> =
        (0..2000).map(|index| (index % STACKS, 16 + u64::from(index * 7919) % 3000)).collect();
    let truth: u64 = blocks.iter().map(|(_, size)| size).sum();
    let mut random = Random(0x5eed);
    let (mut sum, mut square, mut stated, mut count) = (0.0, 0.0, 0.0, 0.0);
    for _ in 0..RUNS {
        let mut heap = Aggregator::new(
            STACKS as usize,
            1,
            Scope::default(),
            Sampling::Poisson { mean_bytes: MEAN_BYTES },
        );
        let mut object = 0;
        for &(stack, size) in &blocks {
            if random.next() < 1.0 - (-(size as f64) / MEAN_BYTES as f64).exp() {
                heap.allocated(object, stack, 0, size, 0);
                object += 1;
            }
        }
        for freed in 0..object / 2 {
            heap.freed(freed, 1);
        }
        let profile = heap.finish(1);
        let off = profile.totals.allocated_bytes as f64 - truth as f64;
        sum += off;
        square += off * off;
        stated += profile.errors.allocated_bytes.powi(2);
        count += profile.totals.allocations as f64;
        assert_eq!(profile.totals.temporary, 0);
        let parts: u64 = profile.stacks.iter().map(|sums| sums.allocated_bytes).sum();
        assert_eq!(parts, profile.totals.allocated_bytes);
        assert_eq!(profile.totals.peak_bytes, profile.totals.allocated_bytes);
        assert!(profile.errors.live_bytes < profile.errors.allocated_bytes);
    }
    let runs = RUNS as f64;
    let spread = (square / runs).sqrt();
    assert!((sum / runs).abs() < 4.0 * spread / runs.sqrt(), "biased by {} of {truth}", sum / runs);
    assert!(
        (0.85..1.15).contains(&(spread / (stated / runs).sqrt())),
        "{spread} against {}",
        (stated / runs).sqrt()
    );
    assert!((count / runs / blocks.len() as f64 - 1.0).abs() < 0.05, "{}", count / runs);
}

/// Marsaglia's xorshift64*, for numbers that are the same each time.
struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as f64 / (1_u64 << 53) as f64
    }
}
