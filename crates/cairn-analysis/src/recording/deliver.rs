//! From merged records to the events that a visitor sees.

use std::collections::HashMap;

use cairn_format::AbsoluteAddress;
use cairn_format::recording::{FrequentKind, Record, ThreadEvent};

use super::clock::{Segment, TimeScale};
use super::merge::{Merged, Origin, RawAlloc, RawEvent, RawFree};
use super::model::{
    Alloc, At, Change, Events, Free, Mapping, Mark, ModuleId, ObjectId, StackId, ThreadId, Usage, Wanted,
};
use super::pairing::{Object, Paired, Pairing};

/// Pairs what was merged, and hands it to a visitor.
pub(super) struct Delivery<'a, E> {
    scale: &'a TimeScale,
    pub(super) pairing: Pairing,
    out: Out<'a, E>,
    /// The latest time, and the stretch of the scale that it lies in.
    ticks: u64,
    segment: Segment,
}

struct Out<'a, E> {
    wanted: Wanted,
    nanos: u64,
    events: &'a mut E,
}

impl<'a, E: Events> Delivery<'a, E> {
    /// Goes on where another one ended, or begins.
    pub(super) fn resume(
        scale: &'a TimeScale,
        wanted: Wanted,
        events: &'a mut E,
        pairing: Pairing,
        nanos: u64,
    ) -> Self {
        let out = Out { wanted, nanos, events };
        Self { scale, pairing, out, ticks: 0, segment: scale.segment(0) }
    }

    /// What another one needs to go on.
    pub(super) fn into_parts(self) -> (Pairing, u64) {
        (self.pairing, self.out.nanos)
    }

    pub(super) fn is_enough(&self) -> bool {
        self.out.nanos >= self.out.wanted.until_nanos || self.out.events.is_enough()
    }

    #[inline]
    fn advance(&mut self, ticks: u64) {
        // Time that goes back a little stands still.
        if ticks > self.ticks {
            if !self.segment.has(ticks) {
                self.segment = self.scale.segment(ticks);
            }
            self.ticks = ticks;
            self.out.nanos = self.out.nanos.max(self.segment.nanos(ticks));
        }
    }
}

impl<E: Events> Merged for Delivery<'_, E> {
    #[inline]
    fn ahead(&mut self, events: &[RawEvent]) {
        if !self.out.wanted.heap {
            return;
        }
        let records = events.iter().filter_map(RawEvent::frequent);
        self.pairing.expect(records.clone().map(|record| record.low));
        for record in records.filter(|record| record.kind == FrequentKind::Alloc) {
            self.out.events.expect(StackId(record.stack), record.size_bytes);
        }
    }

    #[inline]
    fn alloc(&mut self, ticks: u64, origin: Origin, block: RawAlloc) {
        if self.out.wanted.heap {
            self.advance(ticks);
            self.pairing.alloc(origin, block, &mut self.out);
        }
    }

    #[inline]
    fn free(&mut self, ticks: u64, origin: Origin, block: RawFree) {
        if self.out.wanted.heap {
            self.advance(ticks);
            self.pairing.free(origin, block, &mut self.out);
        }
    }

    fn other(&mut self, ticks: u64, origin: Origin, record: &Record<'_>) {
        self.advance(ticks);
        if self.out.wanted.others && self.out.wanted.has(self.out.nanos) {
            let at = At { nanos: self.out.nanos, thread: ThreadId(origin.thread) };
            deliver_other(at, record, self.out.events);
        }
    }
}

impl<E: Events> Paired for Out<'_, E> {
    #[inline]
    fn alloc(&mut self, thread: u32, slot: u32, object: &Object, is_move: bool) {
        if self.wanted.has(self.nanos) {
            self.events.alloc(&Alloc {
                at: At { nanos: self.nanos, thread: ThreadId(thread) },
                object: ObjectId(slot),
                stack: StackId(object.stack),
                size_bytes: object.size_bytes,
                is_move,
            });
        }
    }

    #[inline]
    fn free(&mut self, thread: u32, slot: u32, object: &Object, is_move: bool) {
        if self.wanted.has(self.nanos) {
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
pub(super) fn deliver_other(at: At, record: &Record<'_>, events: &mut impl Events) {
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

/// Which numbers blocks have: an allocation takes the one that was freed last, or else the next one that never was taken.
#[derive(Default)]
pub(super) struct Slots {
    pub(super) free: Vec<u32>,
    pub(super) next: u32,
}

impl Slots {
    fn take(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.next = self.next.saturating_add(1);
            self.next - 1
        })
    }
}

/// Hands everything on, with the numbers that blocks get behind those of another part of the recording.
pub(super) struct Renumbered<'a, E> {
    events: &'a mut E,
    slots: Slots,
    /// From the number in this part.
    numbers: HashMap<u32, u32>,
}

impl<'a, E> Renumbered<'a, E> {
    pub(super) fn new(events: &'a mut E, slots: Slots) -> Self {
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
