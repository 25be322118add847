//! Frees find their blocks, in whatever order the threads' events arrive.

use super::super::address_table::AREA_SHIFT;
use super::super::merge::NO_PLACE;
use super::*;
use proptest::prelude::*;

/// Live blocks, by the number that the model gave as stack.
#[derive(Default)]
struct LiveBlocks(HashMap<u32, u32>);

impl Paired for LiveBlocks {
    fn alloc(&mut self, _: u32, slot: u32, object: &Object, _: bool) {
        assert_eq!(self.0.insert(slot, object.stack), None);
    }
    fn free(&mut self, _: u32, slot: u32, object: &Object, _: bool) {
        assert_eq!(self.0.remove(&slot), Some(object.stack));
    }
}

#[derive(Clone, Copy)]
enum Event {
    Alloc(RawAlloc),
    Free(RawFree),
}

/// Builds the events of threads in a true order, and the blocks that are live at the end.
///
/// Each event has its thread; addresses are few, so that they are used again at once.
fn history(steps: &[(u8, bool, u8)], threads: u32, addresses: usize) -> (Vec<(u32, Event)>, Vec<u32>) {
    let mut live: Vec<(u64, u32, u32, u32)> = Vec::new();
    let mut free: Vec<u64> = (1..=addresses as u64).map(|number| number * 16).collect();
    let mut epoch = u32::MAX - 30;
    let mut events = Vec::new();
    for (number, &(thread, wants_alloc, choice)) in (0..).zip(steps) {
        let thread = u32::from(thread) % threads;
        if live.is_empty() || (wants_alloc && !free.is_empty()) {
            let Some(address) = free.pop() else { continue };
            live.push((address, thread, epoch, number));
            let block =
                RawAlloc { address, place: NO_PLACE, size_bytes: 1, epoch, stack: number, is_move: false };
            events.push((thread, Event::Alloc(block)));
        } else {
            let (address, owner, made, _) = live.swap_remove(usize::from(choice) % live.len());
            let ticket = if owner == thread && made == epoch {
                None
            } else {
                epoch = epoch.wrapping_add(1);
                Some(epoch.wrapping_sub(1))
            };
            free.push(address);
            events.push((thread, Event::Free(RawFree { address, place: NO_PLACE, ticket, is_move: false })));
        }
    }
    let mut left: Vec<u32> = live.iter().map(|block| block.3).collect();
    left.sort_unstable();
    (events, left)
}

fn give(pairing: &mut Pairing, thread: u32, event: Event, live: &mut LiveBlocks) {
    let origin = Origin { lane: thread, thread };
    pairing.count_events(1);
    match event {
        Event::Alloc(block) => {
            let place = pairing.resolve(block.address);
            pairing.alloc(origin, RawAlloc { place, ..block }, live);
        }
        Event::Free(block) => {
            let place = pairing.resolve(block.address);
            pairing.free(origin, RawFree { place, ..block }, live);
        }
    }
}

proptest! {
    #[test]
    fn same_blocks_live_in_any_order_of_the_threads(
        steps in prop::collection::vec(any::<(u8, bool, u8)>(), 1..1500),
        threads in 1_u32..6, addresses in 1_usize..12,
        delays in prop::collection::vec(prop_oneof![4 => 0_usize..200, 1 => 0_usize..2000], 1..20),
    ) {
        let (events, left) = history(&steps, threads, addresses);
        let mut pairing = Pairing::new();
        let mut live = LiveBlocks::default();
        // Each thread has its own order; which one is late changes now and then.
        let mut queues: Vec<std::collections::VecDeque<(usize, Event)>> = vec![Default::default(); threads as usize];
        for (number, &(thread, event)) in events.iter().enumerate() {
            queues[thread as usize].push_back((number, event));
            for (thread, queue) in queues.iter_mut().enumerate() {
                let delay = delays[(number / 300 + thread) % delays.len()];
                while queue.front().is_some_and(|(made, _)| made + delay <= number) {
                    let (_, event) = queue.pop_front().unwrap();
                    give(&mut pairing, thread as u32, event, &mut live);
                }
            }
        }
        for (thread, queue) in queues.into_iter().enumerate() {
            queue.into_iter().for_each(|(_, event)| give(&mut pairing, thread as u32, event, &mut live));
        }
        let mut found: Vec<u32> = live.0.into_values().collect();
        found.sort_unstable();
        prop_assert_eq!(found, left);
        prop_assert_eq!(pairing.unmatched_frees(), 0);
    }
}

fn alloc(address: u64, epoch: u32, stack: u32) -> Event {
    Event::Alloc(RawAlloc { address, place: NO_PLACE, size_bytes: 1, epoch, stack, is_move: false })
}

fn free(address: u64, ticket: Option<u32>) -> Event {
    Event::Free(RawFree { address, place: NO_PLACE, ticket, is_move: false })
}

/// Returns the blocks that live after these events, and how many frees matched no block.
fn left(events: &[(u32, Event)]) -> (Vec<u32>, u64) {
    let (mut pairing, mut live) = (Pairing::new(), LiveBlocks::default());
    events.iter().for_each(|&(thread, event)| give(&mut pairing, thread, event, &mut live));
    let mut left: Vec<u32> = live.0.into_values().collect();
    left.sort_unstable();
    (left, pairing.unmatched_frees())
}

#[test]
fn lost_free_leaves_one_block_at_an_address() {
    assert_eq!(left(&[(1, alloc(16, 5, 1)), (1, alloc(16, 5, 2))]), (vec![2], 0));
    assert_eq!(left(&[(1, alloc(16, 5, 1)), (2, alloc(16, 6, 2))]), (vec![2], 0));
    assert_eq!(left(&[(2, alloc(16, 6, 2)), (1, alloc(16, 5, 1))]), (vec![2], 0));
}

#[test]
fn blocks_of_one_epoch_wait_for_the_local_free_of_one() {
    let [a, b] = [(1, alloc(16, 5, 1)), (2, alloc(16, 5, 2))];
    for first in [[a, b], [b, a]] {
        assert_eq!(left(&first).0, [1, 2]);
        assert_eq!(left(&[first[0], first[1], (1, free(16, None))]).0, [2]);
        assert_eq!(left(&[first[0], first[1], (3, free(16, Some(5))), (1, free(16, None))]), (vec![], 0));
    }
}

#[test]
fn a_free_of_an_unknown_block_is_counted_and_takes_nothing() {
    assert_eq!(left(&[(1, free(16, Some(4))), (1, alloc(16, 5, 1))]), (vec![1], 1));
    assert_eq!(left(&[(1, alloc(16, 5, 1)), (2, free(16, None))]), (vec![1], 1));
    assert_eq!(left(&[(1, free(1 << 47, None)), (1, free(0, Some(1)))]), (vec![], 2));
}

#[test]
fn blocks_closer_than_cells_are_distinguished() {
    let addresses = [160, 164, 168, 175, 176];
    let all = addresses.iter().zip(1..).map(|(&address, stack)| (1, alloc(address, 5, stack)));
    let mut events: Vec<(u32, Event)> = all.collect();
    assert_eq!(left(&events), (vec![1, 2, 3, 4, 5], 0));
    events.extend([(1, free(164, None)), (2, free(168, Some(5))), (2, free(160, Some(4)))]);
    assert_eq!(left(&events), (vec![1, 4, 5], 1));
    events.extend([(1, alloc(168, 5, 6)), (1, alloc(168, 6, 7))]);
    // Another one that was dead already: the ticket of its address is not smaller than its
    // epoch.
    assert_eq!(left(&events), (vec![1, 4, 5, 7], 0));
}

#[test]
fn addresses_all_over_memory_take_no_table_each() {
    let (mut pairing, mut live) = (Pairing::new(), LiveBlocks::default());
    let addresses = (1..4000).map(|number| number << AREA_SHIFT);
    for (address, stack) in addresses.clone().zip(0..) {
        give(&mut pairing, 1, alloc(address, 5, stack), &mut live);
    }
    assert_eq!(live.0.len(), 3999);
    assert!(pairing.table.used_areas <= 262, "{}", pairing.table.used_areas);
    assert_eq!(pairing.table.between.len(), 4000 - pairing.table.used_areas);
    // In such an area, all blocks stay where the first one is.
    give(&mut pairing, 1, alloc(16 + (3999 << AREA_SHIFT), 5, 1), &mut live);
    addresses.for_each(|address| give(&mut pairing, 1, free(address, None), &mut live));
    assert_eq!((live.0.len(), pairing.unmatched_frees()), (1, 0));
}

#[test]
fn regions_without_blocks_make_room_for_others() {
    let (mut pairing, mut live) = (Pairing::new(), LiveBlocks::default());
    for round in 0..50 {
        let addresses = (1..=1000).map(|number| (round * 1000 + number) << 12);
        for (address, stack) in addresses.clone().zip(0..) {
            give(&mut pairing, 1, alloc(address, 5, stack), &mut live);
        }
        assert_eq!(live.0.len(), 1000);
        addresses.for_each(|address| give(&mut pairing, 1, free(address, None), &mut live));
        assert!(live.0.is_empty());
    }
    assert_eq!(pairing.unmatched_frees(), 0);
    assert!(pairing.table.used_leaves < 5000, "{}", pairing.table.used_leaves);
    assert!(pairing.table.generation > 0);
    assert!(pairing.table.cells().iter().all(|&cell| cell == 0));
}

#[test]
fn tickets_survive_table_growth_and_expire_with_age() {
    let mut events: Vec<(u32, Event)> = (1..=5000).map(|n| (1, free(n * 16, Some(7)))).collect();
    events.extend((1..=5000).map(|n| (2, alloc(n * 16, 7, n as u32))));
    assert_eq!(left(&events), (vec![], 0));

    let (mut pairing, mut live) = (Pairing::new(), LiveBlocks::default());
    give(&mut pairing, 1, free(16, Some(7)), &mut live);
    pairing.count_events(2 * WINDOW);
    give(&mut pairing, 2, alloc(16, 7, 1), &mut live);
    assert_eq!(live.0.len(), 1);
}
