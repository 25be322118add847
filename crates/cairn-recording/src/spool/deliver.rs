//! From merged records to the events that a visitor sees.

use std::collections::HashMap;

use cairn_format::AbsoluteAddress;
use cairn_format::recording::{Record, Records, ThreadEvent};

use super::merge::{Merged, NO_PLACE, OTHER, Origin, RawAlloc, RawEvent, RawFree, RawKind};
use super::pairing::{Object, Paired, Pairing};
use crate::clock::{Stretch, TimeScale};
use crate::model::{
    Alloc, At, Change, Events, Free, Mapping, Mark, ModuleId, ObjectId, StackId, ThreadId, Usage, Wanted,
};

/// Pairs what was merged, and hands it to a visitor.
pub(crate) struct Delivery<'a, E> {
    scale: &'a TimeScale,
    pub(crate) pairing: Pairing,
    out: Out<'a, E>,
    /// The latest time, and the stretch of the scale that it lies in.
    ticks: u64,
    stretch: Stretch,
    /// Until then the time need not be looked at.
    same_until_ticks: u64,
}

struct Out<'a, E> {
    wanted: Wanted,
    nanos: u64,
    /// Whether what happens at that time is wanted.
    is_wanted: bool,
    events: &'a mut E,
}

impl<'a, E: Events> Delivery<'a, E> {
    /// Goes on where another one ended, or begins.
    pub(crate) fn resume(
        scale: &'a TimeScale,
        wanted: Wanted,
        events: &'a mut E,
        pairing: Pairing,
        nanos: u64,
    ) -> Self {
        let out = Out { wanted, nanos, is_wanted: wanted.has(nanos), events };
        Self { scale, pairing, out, ticks: 0, stretch: scale.stretch(0), same_until_ticks: 0 }
    }

    /// Returns the state that a successor needs to continue.
    pub(crate) fn into_parts(self) -> (Pairing, u64) {
        (self.pairing, self.out.nanos)
    }

    pub(crate) fn is_enough(&self) -> bool {
        self.out.nanos >= self.out.wanted.until_nanos || self.out.events.is_enough()
    }

    fn advance(&mut self, ticks: u64) {
        // Time never goes back.
        if ticks <= self.ticks {
            return;
        }
        if !self.stretch.has(ticks) {
            self.stretch = self.scale.stretch(ticks);
        }
        self.ticks = ticks;
        let nanos = self.stretch.nanos(ticks);
        self.out.nanos = self.out.nanos.max(nanos);
        self.out.is_wanted = self.out.wanted.has(self.out.nanos);
        let quantum = self.out.events.time_quantum_nanos();
        self.same_until_ticks = if quantum > 1 {
            let end_nanos = (self.out.nanos / quantum + 1).saturating_mul(quantum);
            self.stretch
                .ticks_of(end_nanos.saturating_sub(nanos + 1))
                .saturating_add(ticks)
                .min(self.stretch.end_ticks())
        } else {
            0
        };
    }

    #[cold]
    fn other(&mut self, ticks: u64, origin: Origin, position: u64, bytes: &[u8]) {
        let position = usize::try_from(position).unwrap_or(usize::MAX);
        let rest = bytes.get(position..).unwrap_or_default();
        let Some(Ok(placed)) = Records::new(rest, position).next() else { return };
        self.advance(ticks);
        if self.out.wanted.others && self.out.wanted.has(self.out.nanos) {
            let at = At { nanos: self.out.nanos, thread: ThreadId(origin.thread) };
            deliver_other(at, &placed.record, self.out.events);
        }
    }
}

impl<E: Events> Merged for Delivery<'_, E> {
    #[inline]
    fn prefetch_regions(&mut self, events: &[RawEvent]) {
        if !self.out.wanted.heap {
            return;
        }
        // No branch on the kind: prefetching what an event does not have costs nothing.
        if self.pairing.has_many_regions() {
            events.iter().for_each(|event| self.pairing.prefetch_region(event.address));
        }
        events.iter().for_each(|event| self.out.events.prefetch_site(StackId(event.stack), event.size_bytes));
    }

    #[inline]
    fn resolve_cells(&mut self, events: &mut [RawEvent]) {
        if self.out.wanted.heap {
            events.iter_mut().for_each(|event| event.place = self.pairing.resolve(event.address));
        }
    }

    #[inline]
    fn generation(&self) -> u32 {
        self.pairing.generation()
    }

    #[inline]
    fn prefetch_objects(&mut self, events: &[RawEvent]) {
        let has_many_objects = self.pairing.is_large();
        if !self.out.wanted.heap || !(has_many_objects || self.out.events.has_many_sites()) {
            return;
        }
        for event in events {
            let slot = if has_many_objects { self.pairing.prefetch_object(event.place) } else { 0 };
            self.out.events.prefetch_object(ObjectId(slot), StackId(event.stack), event.size_bytes);
        }
    }

    #[inline]
    fn hand_on(&mut self, origin: Origin, events: &[RawEvent], bytes: &[u8], is_moving: &mut bool) {
        self.pairing.count_events(events.len() as u64);
        if !self.out.wanted.heap {
            return self.without_heap(origin, events, bytes);
        }
        let left = self.pass_on::<true>(origin, events, bytes, is_moving);
        if !left.is_empty() {
            self.without_places(origin, left, bytes, is_moving);
        }
    }
}

impl<E: Events> Delivery<'_, E> {
    #[inline(never)]
    fn without_heap(&mut self, origin: Origin, events: &[RawEvent], bytes: &[u8]) {
        for event in events {
            self.pairing.count_other();
            if event.kind == OTHER {
                self.other(event.ticks, origin, event.address, bytes);
            }
        }
    }

    /// Passes on events whose places may be wrong.
    #[cold]
    fn without_places(&mut self, origin: Origin, events: &[RawEvent], bytes: &[u8], is_moving: &mut bool) {
        self.pass_on::<false>(origin, events, bytes, is_moving);
    }

    /// Pairs events up to one that makes the places of the others wrong, which are the answer.
    #[inline(always)]
    fn pass_on<'b, const HAS_PLACES: bool>(
        &mut self,
        origin: Origin,
        events: &'b [RawEvent],
        bytes: &[u8],
        is_moving: &mut bool,
    ) -> &'b [RawEvent] {
        // Mostly all of them are of one time that is known.
        let is_same = events.last().is_some_and(|event| event.ticks < self.same_until_ticks);
        let mut rest = events;
        while let Some((event, behind)) = rest.split_first() {
            rest = behind;
            let place = if HAS_PLACES { event.place } else { NO_PLACE };
            if !is_same && event.ticks >= self.same_until_ticks && event.kind != OTHER {
                self.advance(event.ticks);
            }
            // Fields that the kind does not have are ignored.
            let is_outdated = match event.kind {
                RawKind::Alloc => {
                    let &RawEvent { address, size_bytes, stack, number, .. } = event;
                    let is_move = std::mem::take(is_moving);
                    let block = RawAlloc { address, place, size_bytes, epoch: number, stack, is_move };
                    self.pairing.alloc(origin, block, &mut self.out)
                }
                RawKind::LocalFree | RawKind::LocalMove => {
                    let is_move = event.kind == RawKind::LocalMove;
                    *is_moving |= is_move;
                    let block = RawFree { address: event.address, place, ticket: None, is_move };
                    self.pairing.free(origin, block, &mut self.out)
                }
                RawKind::Free | RawKind::Move => {
                    let is_move = event.kind == RawKind::Move;
                    *is_moving |= is_move;
                    let block =
                        RawFree { address: event.address, place, ticket: Some(event.number), is_move };
                    self.pairing.free(origin, block, &mut self.out)
                }
                OTHER => {
                    self.pairing.count_other();
                    self.other(event.ticks, origin, event.address, bytes);
                    false
                }
            };
            if is_outdated && HAS_PLACES {
                return rest;
            }
        }
        rest
    }
}

impl<E: Events> Paired for Out<'_, E> {
    #[inline(always)]
    fn alloc(&mut self, thread: u32, slot: u32, object: &Object, is_move: bool) {
        if self.is_wanted {
            self.events.alloc(&Alloc {
                at: At { nanos: self.nanos, thread: ThreadId(thread) },
                object: ObjectId(slot),
                stack: StackId(object.stack),
                size_bytes: object.size_bytes,
                is_move,
            });
        }
    }

    #[inline(always)]
    fn free(&mut self, thread: u32, slot: u32, object: &Object, is_move: bool) {
        if self.is_wanted {
            self.events.free(&Free {
                at: At { nanos: self.nanos, thread: ThreadId(thread) },
                object: ObjectId(slot),
                stack: StackId(object.stack),
                size_bytes: object.size_bytes,
                is_move,
            });
        }
    }
}

/// Everything but allocations and frees.
pub(crate) fn deliver_other(at: At, record: &Record<'_>, events: &mut impl Events) {
    match *record {
        Record::Mark { stack, skip, value, text, is_cut, .. } => {
            events.mark(&Mark { at, stack: StackId(stack), skip, value, text, is_cut });
        }
        Record::Mapping { kind, address, size_bytes, stack, .. } => events.mapping(&Mapping {
            at,
            kind,
            address: AbsoluteAddress::new(address),
            size_bytes,
            stack: StackId(stack),
        }),
        Record::Sample(sample) => events.usage(&Usage {
            at,
            resident_bytes: sample.resident_bytes,
            own_bytes: None,
            page_faults: sample.page_faults,
            threads: sample.threads,
        }),
        Record::ModuleLoaded(module) => events.change(at, Change::ModuleLoaded(ModuleId(module.number))),
        Record::ModuleUnloaded { number, .. } => events.change(at, Change::ModuleUnloaded(ModuleId(number))),
        Record::Thread { event, .. } => match event {
            ThreadEvent::Began { .. } => events.change(at, Change::ThreadBegan),
            ThreadEvent::Named(_) => events.change(at, Change::ThreadNamed),
            ThreadEvent::Ended => events.change(at, Change::ThreadEnded),
            _ => {}
        },
        Record::Loss { kind, count } => events.change(at, Change::Lost { kind, count }),
        Record::End { reason, .. } => events.change(at, Change::Ended(reason)),
        _ => {}
    }
}

/// Assigns numbers to blocks.
///
/// An allocation takes the number that was freed last, or else the next one that was never taken.
#[derive(Default)]
pub(crate) struct Slots {
    pub(crate) free: Vec<u32>,
    pub(crate) next: u32,
}

impl Slots {
    fn take(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.next = self.next.saturating_add(1);
            self.next - 1
        })
    }
}

/// Hands everything on, with the numbers that blocks get behind those of another part of the
/// recording.
pub(crate) struct Renumbered<'a, E> {
    events: &'a mut E,
    slots: Slots,
    /// From the number in this part.
    numbers: HashMap<u32, u32>,
}

impl<'a, E> Renumbered<'a, E> {
    pub(crate) fn new(events: &'a mut E, slots: Slots) -> Self {
        Self { events, slots, numbers: HashMap::new() }
    }
}

impl<E: Events> Events for Renumbered<'_, E> {
    fn alloc(&mut self, event: &Alloc) {
        let number = self.slots.take();
        self.numbers.insert(event.object.0, number);
        self.events.alloc(&Alloc { object: ObjectId(number), ..*event });
    }

    fn free(&mut self, event: &Free) {
        // Without a number when it was allocated before the time that is wanted.
        let number = self.numbers.remove(&event.object.0).unwrap_or_else(|| self.slots.take());
        self.slots.free.push(number);
        self.events.free(&Free { object: ObjectId(number), ..*event });
    }

    fn mark(&mut self, event: &Mark<'_>) {
        self.events.mark(event);
    }

    fn mapping(&mut self, event: &Mapping) {
        self.events.mapping(event);
    }

    fn usage(&mut self, event: &Usage) {
        self.events.usage(event);
    }

    fn change(&mut self, at: At, change: Change) {
        self.events.change(at, change);
    }

    fn is_enough(&self) -> bool {
        self.events.is_enough()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use cairn_format::recording::{BadRecord, CounterKind, FileHeader, RecordSink, Shape};

    use super::super::merge::{Feed, Merger, NextPiece};
    use super::*;

    /// One piece for one lane.
    struct OnePiece(Option<Vec<u8>>);

    impl Feed for OnePiece {
        fn more(&mut self, _: u32, bytes: &mut Vec<u8>) -> Option<NextPiece> {
            *bytes = self.0.take()?;
            Some(NextPiece { ticks: 0, offset: 0, thread: 1 })
        }

        fn thread(&mut self, _: u32, _: u64, _: ThreadEvent<'_>) -> Option<u32> {
            None
        }

        fn damaged(&mut self, _: u32, error: BadRecord, _: u64) {
            panic!("{error:?}");
        }
    }

    /// Sizes by object, of what lives.
    #[derive(Default)]
    struct LiveSizes {
        sizes: HashMap<u32, u64>,
        allocated: u64,
    }

    impl Events for LiveSizes {
        fn alloc(&mut self, event: &Alloc) {
            self.allocated += 1;
            assert_eq!(self.sizes.insert(event.object.number(), event.size_bytes), None);
        }

        fn free(&mut self, event: &Free) {
            assert_eq!(self.sizes.remove(&event.object.number()), Some(event.size_bytes));
        }
    }

    #[test]
    fn blocks_are_found_while_leaves_go_from_region_to_region() {
        let header = FileHeader {
            shape: Shape::Spool,
            address_bits: 64,
            machine: 62,
            counter: CounterKind::MonotonicNanos,
            process: 1,
            start_wall_nanos: 0,
            start_monotonic_nanos: 0,
            start_counter: 0,
            stamp_interval: 0,
        };
        let scale = TimeScale::new(&header, &[], None, &mut Vec::new());
        let mut random = 1_u64;
        let mut below = |limit: u64| {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (random >> 33) % limit
        };
        // More regions than are used at once, most of them without a block at any time.
        let (mut bytes, mut live, mut allocations) = (Vec::new(), Vec::new(), 0_u64);
        for _ in 0..100_000 {
            let mut slots = [0; 8];
            let mut sink = RecordSink::new(&mut slots);
            let address = below(3000) << 10;
            if live.len() < 40 && !live.contains(&address) {
                allocations += 1;
                sink.alloc(address, allocations % 1000, 1, 0).unwrap();
                live.push(address);
            } else {
                let freed = live.swap_remove(below(live.len() as u64) as usize);
                sink.free(freed, None).unwrap();
            }
            bytes.extend(sink.written().iter().flat_map(|slot| slot.to_le_bytes()));
        }
        let mut merger = Merger::new(0);
        let mut feed = OnePiece(Some(bytes));
        let mut seen = LiveSizes::default();
        let mut delivery = Delivery::resume(&scale, Wanted::ALL, &mut seen, Pairing::new(), 0);
        let lane = merger.add_lane();
        merger.wake(lane, &mut feed);
        merger.run(u64::MAX, &mut feed, &mut delivery, |_| false);
        let (pairing, _) = delivery.into_parts();
        assert!(pairing.generation() > 10, "{}", pairing.generation());
        assert_eq!(pairing.unmatched_frees(), 0);
        assert_eq!((seen.allocated, seen.sizes.len()), (allocations, live.len()));
    }
}
