//! Learning: gives stepped frames their nodes, and makes the records and shadows that later
//! captures compare.

use cairn_unwind::Machine;

use super::step::{KnownFrame, SteppedCapture};
use super::{
    NeedsWholeWalk, frame_sp, load_slot, record_key, return_address_slot, shadow_frame, site_key, slot,
};
use crate::CallSite;
use crate::stacks::arch::{self, Native, Rule};
use crate::stacks::counters::{self, Counter};
use crate::stacks::pcs::PcEntry;
use crate::stacks::process::Process;
use crate::stacks::thread::ThreadState;
use crate::stacks::thread::record::{
    ChecksFull, Discriminator, FP_IN_REGISTER, FURTHER_CHECKS, FpCheck, Join, MAX_JOIN_HEIGHT,
    MAX_WORDS_ABOVE, RECORD_CHECKS, Record, RecordChecks, WordCheck,
};
use crate::stacks::thread::shadow::{ExtraCheck, PendingFrame, SHADOW_PADDING, SHADOWS, ShadowFrame};

/// Most frames inside of the join that get a record and no shadow. A shadow need not be the last
/// stack: a new one is worth its cost only when more frames changed than a record can hold.
const MAX_RECORDED_FRAMES: usize = RECORD_CHECKS + FURTHER_CHECKS;

/// A record of the frames cannot be made: they depend on too many words, or on words too far away.
struct NotRecordable;

impl From<ChecksFull> for NotRecordable {
    fn from(_: ChecksFull) -> Self {
        Self
    }
}

impl SteppedCapture<'_> {
    /// Gives the pending frames their nodes, learns this stack, and returns its node.
    pub(super) fn intern_and_learn(&mut self, known: KnownFrame) -> Result<u32, NeedsWholeWalk> {
        let thread = &*self.thread;
        let numbers = (0..self.pending_count).rev().map(|index| thread.pending(index).pc_number());
        let leaf = self.process.tree.descend(known.node, numbers).map_err(|_| NeedsWholeWalk)?;
        if self.expected_node != 0 && self.expected_node != leaf {
            counters::add(Counter::OtherThanExpected, 1);
            self.learn_discriminator(known);
        }
        let join_height = known.height as usize;
        let leaf_height = join_height + self.pending_count;
        while leaf_height + SHADOW_PADDING >= self.thread.room() {
            if self.thread.make_room().is_none() {
                return Ok(leaf);
            }
        }
        // A stack that does not fit a record gets a shadow, and a record whose join is the
        // innermost frame of that shadow.
        let is_recorded = join_height > 0
            && self.pending_count <= MAX_RECORDED_FRAMES
            && self.make_record(leaf, join_height, self.pending_count).is_ok();
        if !is_recorded {
            self.make_shadow(leaf, join_height);
            let _ = self.make_record(leaf, leaf_height, 0);
        }
        self.thread.current = self.number as u32;
        Ok(leaf)
    }

    /// Adds a discriminator to the keys of this call site. It is the innermost word in which this
    /// stack and the one of the record differ.
    #[inline(never)]
    fn learn_discriminator(&mut self, known: KnownFrame) {
        /// Frames compared; 64, because differences lie rarely only further out, and comparing
        /// costs time.
        const MAX_COMPARED: usize = 64;
        let (thread, number) = (&*self.thread, self.number);
        let words = self.process.tree.words();
        // The frame inside of the present one.
        let mut callee = thread.pending(0).pc_number();
        let outside = (1..=known.height as usize).rev().map(|height| thread.shadow_at(number, height));
        let outside = outside.map(|frame| (words.pc(frame.node()), frame.slot));
        let pending = (0..self.pending_count).map(|index| thread.pending(index));
        let present = pending.map(|frame| (frame.pc_number(), frame.slot)).chain(outside);
        let mut expected = self.expected_node;
        let mut differing = None;
        for (pc_number, slot) in present.take(MAX_COMPARED) {
            if expected == 0 || words.pc(expected) != pc_number {
                differing = Some(return_address_slot(self.process, slot, callee));
                break;
            }
            callee = pc_number;
            expected = words.parent(expected);
        }
        let Some(differing) = differing else { return };
        let return_address = self.return_address(differing);
        // The distance counts from sp, which is one word above the innermost return address.
        let distance = differing.wrapping_sub(slot(self.thread, self.innermost.sp)).wrapping_sub(8);
        let Some(discriminator) = Discriminator::new(distance, return_address) else { return };
        let key = site_key(self.innermost.pc, self.innermost.sp);
        let known = self.thread.discriminators(key);
        if !known.iter().any(|known| known.bytes_above() == discriminator.bytes_above()) {
            self.thread.set_discriminators(key, [discriminator, known[0]]);
        }
    }

    /// The return address in this slot, which was read while the captured stack was stepped over.
    fn return_address(&self, slot: u32) -> u64 {
        // SAFETY: the return addresses into pending frames and the met shadow's frames lie on the
        // thread's own stack, at or above the live innermost frame, in multiples of 8.
        arch::strip(unsafe { load_slot(self.thread, slot) })
    }

    /// Adds the return addresses into the pending frames to a record's checks. Where a call does
    /// not push it, the one into the join is the last.
    #[inline(always)]
    fn check_return_addresses(
        &self,
        checks: &mut RecordChecks,
        join_height: usize,
        count: usize,
    ) -> Result<(), NotRecordable> {
        let innermost = slot(self.thread, self.innermost.sp);
        let mut push = |slot: u32, value: u64| {
            checks.push(WordCheck::new(words_above(slot.wrapping_sub(innermost).into())?, value))?;
            Ok(())
        };
        if Native::CALL_PUSHES {
            // The innermost return address has its own field.
            return (1..count).try_for_each(|index| {
                let slot = self.thread.pending(index).slot;
                push(slot, self.return_address(slot))
            });
        }
        for index in 0..count {
            let callee = self.thread.pending(index).pc_number();
            let outer = match index + 1 < count {
                true => self.thread.pending(index + 1).slot,
                false => self.thread.shadow_at(self.number, join_height).slot,
            };
            let slot = return_address_slot(self.process, outer, callee);
            push(slot, self.return_address(slot))?;
        }
        if count == 0 {
            // The shadow compares this word too. It serves as the neutral check.
            let outer_height = join_height.checked_sub(1).filter(|&outer| outer > 0);
            let outer = self.thread.shadow_at(self.number, outer_height.ok_or(NotRecordable)?);
            let join = self.thread.shadow_at(self.number, join_height);
            push(outer.slot.wrapping_add(8).wrapping_sub(join.return_address_below() as u32), outer.pc())?;
        }
        Ok(())
    }

    /// Makes the record of this stack, whose innermost node is `leaf`. `count` pending frames lie
    /// inside of the shadow's frame at `join_height`. A stack whose numbers do not fit the fields
    /// of any record is left without one.
    fn make_record(&mut self, leaf: u32, join_height: usize, count: usize) -> Result<(), NotRecordable> {
        if join_height >= self.thread.sizes[self.number].end as usize {
            return Ok(());
        }
        let join = *self.thread.shadow_at(self.number, join_height);
        let CallSite { pc, sp, .. } = self.innermost;
        let innermost_slot = slot(self.thread, sp);
        let depends_on_fps =
            join.needs_fp() || (0..count).any(|index| self.thread.pending(index).depends_on_fp());
        let mut checks = RecordChecks::NONE;
        self.check_return_addresses(&mut checks, join_height, count)?;
        if pc >> 48 != 0 || join_height + count > MAX_JOIN_HEIGHT {
            return Ok(());
        }
        let fp_check = match depends_on_fps {
            true => Some(self.check_fps(&mut checks, &join, count)?),
            false => None,
        };
        let thread = &mut *self.thread;
        // SAFETY: the innermost frame is live on the thread's own stack, so its sp lies in the
        // readable range.
        let key = unsafe { record_key(thread, site_key(pc, sp), sp) };
        let old = thread.record(key);
        counters::add(Counter::Records, 1);
        if !old.is_empty() && !old.is_for(pc, innermost_slot) {
            counters::add(Counter::RecordsReplaced, 1);
            thread.count_replaced();
        }
        let join = Join { shadow: self.number, height: join_height as u16, place: join.place() };
        let record = Record::new(pc, innermost_slot, leaf, join, &checks, fp_check);
        thread.set_record(key, record, &checks);
        Ok(())
    }

    /// Adds the frame pointers that the pending frames and the join need to a record's checks.
    #[inline(never)]
    fn check_fps(
        &self,
        checks: &mut RecordChecks,
        join: &ShadowFrame,
        count: usize,
    ) -> Result<FpCheck, NotRecordable> {
        /// The frame pointer that the frames found so far need in their innermost frame.
        #[derive(PartialEq)]
        enum NeededFp {
            None,
            OfJoin,
            Value(u64),
        }
        let pcs = self.process.pcs.entries();
        let (mut source, mut outer_slot) = (FP_IN_REGISTER, join.slot);
        let mut needed = if join.needs_fp() { NeededFp::OfJoin } else { NeededFp::None };
        for index in (0..count).rev() {
            let frame = self.thread.pending(index);
            let rule = pcs.get(frame.pc_number() as usize).ok_or(NotRecordable)?.rule();
            if !rule.is_plain() {
                return Err(NotRecordable);
            }
            if rule.slot_below_cfa() != 0 && needed != NeededFp::None {
                let address = frame_sp(self.thread, outer_slot).wrapping_sub(rule.slot_below_cfa());
                let words_above = words_above(address.wrapping_sub(self.innermost.sp.wrapping_sub(8)))?;
                match needed {
                    _ if words_above == FP_IN_REGISTER => return Err(NotRecordable),
                    NeededFp::OfJoin => source = words_above,
                    NeededFp::Value(fp) if fp >> 48 == 0 => checks.push(WordCheck::of_fp(words_above, fp))?,
                    _ => return Err(NotRecordable),
                }
                needed = NeededFp::None;
            }
            if rule.is_from_fp() {
                if needed != NeededFp::None {
                    return Err(NotRecordable);
                }
                needed = NeededFp::Value(frame.fp);
            }
            outer_slot = frame.slot;
        }
        let in_register = match needed {
            NeededFp::Value(fp) if fp == 0 || fp >> 48 != 0 => return Err(NotRecordable),
            NeededFp::Value(fp) => fp,
            _ => 0,
        };
        Ok(FpCheck::new(source, in_register))
    }

    /// Makes a shadow of this stack, whose innermost node is `leaf`. It has the frames of the
    /// present shadow up to `known_height`, and the pending frames.
    fn make_shadow(&mut self, leaf: u32, known_height: usize) {
        let words = self.process.tree.words();
        let count = self.pending_count;
        if self.thread.sizes[self.number].end as usize != known_height + 1 {
            // The shadow has more frames, which other stacks may still share: change a copy.
            let next = (self.number + 1) % SHADOWS;
            self.thread.copy_shadow(self.number, next, known_height);
            counters::add(Counter::CopiedFrames, known_height as u64);
            self.number = next;
        }
        let number = self.number;
        counters::add(Counter::Shadows, 1);
        counters::add(Counter::ShadowFrames, count as u64);
        self.thread.common.cut(number, known_height as u32);
        let mut node = leaf;
        let needs_fp = known_height > 0 && self.thread.shadow_at(number, known_height).needs_fp();
        let mut depends_on_fp = needs_fp;
        for index in 0..count {
            let frame = self.thread.pending(index);
            depends_on_fp |= frame.depends_on_fp();
            // SAFETY: the pending frames are those of the captured stack.
            let shadow_frame = unsafe { shadow_frame(self.process, self.thread, frame, node) };
            let entry = known_height + count - index + SHADOW_PADDING;
            // SAFETY: entry <= known_height + count + SHADOW_PADDING < room, as `intern_and_learn`
            // has made sure.
            *unsafe { self.thread.shadow_unchecked_mut(number, entry) } = shadow_frame;
            node = words.parent(node);
        }
        let thread = &mut *self.thread;
        if Native::CALL_PUSHES {
            // The caller states the innermost frame's pc, which need not be on the stack.
            thread.shadow_at_mut(number, known_height + count).set_pushed(self.innermost.pc);
        }
        thread.sizes[number].end = (known_height + count + 1) as u32;
        if known_height == 0 {
            thread.sizes[number].extra_count = 0;
            thread.fill_padding(number);
        }
        if depends_on_fp {
            note_fps(self.process, self.thread, number, count, known_height, needs_fp);
        }
    }
}

/// The distance in words of a check, from one in bytes.
#[inline(always)]
fn words_above(bytes_above: u64) -> Result<u16, NotRecordable> {
    let words = u16::try_from(bytes_above / 8).map_err(|_| NotRecordable)?;
    if words & MAX_WORDS_ABOVE == words { Ok(words) } else { Err(NotRecordable) }
}

/// Adds frame pointers and extra checks to the new frames of a shadow.
///
/// These lie inside of `known_height`, and are the `count` pending ones. `needs_fp` is that of the
/// frame at `known_height`.
#[inline(never)]
pub(super) fn note_fps(
    process: &Process,
    thread: &mut ThreadState,
    number: usize,
    count: usize,
    known_height: usize,
    mut needs_fp: bool,
) {
    let pcs = process.pcs.entries();
    for index in (0..count).rev() {
        let height = known_height + count - index;
        let frame = thread.pending(index);
        let outer_fp = match index + 1 < count {
            true => thread.pending(index + 1).fp,
            false if needs_fp => thread.shadow_fp_at(number, known_height),
            false => 0,
        };
        let rule = pcs.get(frame.pc_number() as usize).map_or(Rule::END_OF_STACK, PcEntry::rule);
        let outer = OuterFrame { needs_fp, fp: outer_fp };
        let Some(needs) = note_extra_checks(thread, number, rule, height, frame, outer) else {
            // No room for the checks: the shadow is valid only outside of here.
            thread.sizes[number].end = height as u32;
            return;
        };
        needs_fp = needs;
        if needs_fp {
            thread.shadow_at_mut(number, height).set_needs_fp();
            thread.set_shadow_fp(number, height, frame.fp);
        }
    }
}

/// The frame outside of a frame whose step is noted.
#[derive(Clone, Copy)]
pub(crate) struct OuterFrame {
    pub(crate) needs_fp: bool,
    pub(crate) fp: u64,
}

/// A frame whose step is not plain and is noted.
#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "no such step reads a word there"))]
pub(crate) struct SpecialFrame {
    pub(crate) sp: u64,
    /// The stack pointer of the outer frame.
    pub(crate) cfa: u64,
    pub(crate) fp: u64,
    pub(crate) outer: OuterFrame,
}

/// Notes the words other than the return address that the step from the frame at `height` reads.
/// Only words on which the outer frames depend are noted. Returns true if the outer frames depend
/// on this frame's own fp; `None` without memory for the checks.
fn note_extra_checks(
    thread: &mut ThreadState,
    number: usize,
    rule: Rule,
    height: usize,
    frame: PendingFrame,
    outer: OuterFrame,
) -> Option<bool> {
    let cfa = match height {
        0 | 1 => 0,
        _ => frame_sp(thread, thread.shadow_at(number, height - 1).slot),
    };
    let sp = frame_sp(thread, frame.slot);
    let slot_base = thread.slot_base;
    let mut note = |address: u64, value: u64| {
        let slot = address.wrapping_sub(slot_base) as u32;
        thread.push_extra(number, ExtraCheck { value, slot, height: height as u32 })
    };
    if !rule.is_plain() {
        let frame = SpecialFrame { sp, cfa, fp: frame.fp, outer };
        return arch::note_special_checks(rule, frame, note);
    }
    let below = rule.slot_below_cfa();
    if outer.needs_fp && below != 0 {
        note(cfa.wrapping_sub(below), outer.fp)?;
    }
    Some(rule.is_from_fp() || outer.needs_fp && below == 0)
}
