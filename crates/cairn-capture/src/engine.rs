//! The hot path: this thread's stack as a number, by verification instead of walking.
//!
//! One step of a stack walk is a function of (pc, sp, fp) and of the stack words that it reads. So when the starting
//! state equals one that was seen before, and every word that the steps from there read still holds its value, then
//! the whole tail is the same, by induction: exact, not a guess. Checking words is much cheaper than walking, because
//! the loads do not wait for each other.
//!
//! ```text
//!   leaf (pc, sp) --predict--> a node of the tree: what the stack probably is
//!        |
//!        |  follow: step by the rule of the node's pc; the return address found must be the parent's pc
//!        v
//!   a frame that is also in the shadow (the last stack of this thread) at the same place
//!        |
//!        |  verify: all return addresses outside of it, which lie in one array, in one loop without branches
//!        v
//!   outermost frame: the predicted node is the answer
//! ```
//!
//! Where a prediction fails, what was followed so far is still right; the frame found in its place is predicted anew, or
//! stepped without prediction, until the two paths meet again. The frames in between are then added to the tree.
//!
//! Everything unusual (signal frames, rows that do not fit a packed rule, a foreign stack) answers [`Unusual`], and the
//! whole walk is done by [`crate::walk`].

use core::sync::atomic::Ordering;

use crate::arch::{Rule, RuleKind};
use crate::modules::rule_of;
use crate::pcs::{NUMBER_BITS, PcEntry, PcKind};
use crate::process::{PROCESS, is_unloading};
use crate::stack_bounds;
use crate::thread::{
    ExtraCheck, MAX_DEPTH, NEEDS_FP, PREDICTIONS, PendingFrame, Prediction, RECORD_CHECKS, RECORDS, Record,
    SHADOW_BLOCK, SHADOW_PADDING, ShadowFrame, ThreadState, place,
};
use crate::tree::Words;

/// The registers of a frame that has made a call: all that a packed rule needs.
#[derive(Clone, Copy)]
pub(crate) struct Frame {
    /// Return address.
    pub(crate) pc: u64,
    /// The stack pointer after the return.
    pub(crate) sp: u64,
    pub(crate) fp: u64,
}

/// The fast way does not lead there.
pub(crate) struct Unusual;

/// A node that is known, and its height: the number of frames from the outermost one to it, both counted.
#[derive(Clone, Copy)]
struct Known {
    node: u32,
    height: u32,
}

impl Known {
    /// Outside of the outermost frame.
    const ROOT: Self = Self { node: 0, height: 0 };
}

/// How far the frames of a capture are known.
struct Found {
    /// The shadow holds this height and all outside of it; the pending frames lie inside.
    shadow_height: u32,
    /// The node of pending frame number `known_from`, or of the shadow's frame when that is no pending frame.
    known: Known,
    known_from: usize,
}

/// What became of a prediction.
enum Followed {
    /// It is right: everything outside the pending frames is verified, from this height of the shadow on.
    Right { shadow_height: u32 },
    /// It is wrong, or leads no further; the frame to go on with is in the capture.
    Lost,
    /// It is wrong, and following the stack led to its end all the same.
    LostAtEnd,
}

struct Capture<'a> {
    thread: &'a mut ThreadState,
    words: Words<'static>,
    pcs: &'static [PcEntry],
    /// The outermost frame found, whose caller is wanted.
    frame: Frame,
    pending_count: usize,
    /// Pending frames at which the prediction was missing or wrong, to be told the right one.
    lessons: [u32; LESSONS],
    lesson_count: usize,
}

/// The shadow need not be the last stack, only one that was: it is rewritten when so many frames had to be followed one
/// by one, and not for the few that change with every call.
const FRAMES_OUTSIDE_SHADOW: usize = RECORD_CHECKS + 1;

/// Most captures need one; what is not learned now is learned next time.
const LESSONS: usize = 4;

/// The node of the stack that starts at `frame`.
///
/// # Safety
///
/// `frame` is a live frame of this thread: memory from its sp up to the top of the stack is not written meanwhile.
#[inline(always)]
pub(crate) unsafe fn capture(thread: &mut ThreadState, frame: Frame) -> Result<u32, Unusual> {
    let module_state = PROCESS.module_state.load(Ordering::Acquire);
    if thread.module_state != module_state {
        if is_unloading(module_state) {
            return Err(Unusual);
        }
        thread.forget_modules(module_state);
    }
    if frame.sp < thread.low || frame.sp >= thread.high {
        stack_bounds::enter(thread, frame.sp).ok_or(Unusual)?;
    }
    // SAFETY: by contract, and the frame lies in the thread's readable range.
    let key = unsafe { prediction_key(thread, frame.pc, frame.sp) };
    // SAFETY: as above.
    if let Some(node) = unsafe { as_recorded(thread, key, frame) } {
        return Ok(node);
    }
    // SAFETY: as above.
    unsafe { capture_otherwise(thread, key, frame) }
}

/// What [`capture`] does when no record holds.
#[inline(never)]
unsafe fn capture_otherwise(thread: &mut ThreadState, key: u64, frame: Frame) -> Result<u32, Unusual> {
    let words = PROCESS.tree.words();
    let pcs = PROCESS.pcs.entries();
    let record = &thread.records[record_index(key)];
    if record.is_not_usable_at(slot(thread, frame.sp)) {
        // SAFETY: by this function's contract.
        if let Some(node) = unsafe { as_predicted(thread, words, pcs, key, frame) } {
            return Ok(node);
        }
    }
    // SAFETY: by this function's contract.
    unsafe { find_out(thread, words, pcs, frame) }
}

/// The usual way: nothing but a list of words to compare, and one branch at its end.
#[inline(always)]
unsafe fn as_recorded(thread: &ThreadState, key: u64, frame: Frame) -> Option<u32> {
    let record = &thread.records[record_index(key)];
    let height = record.pc_and_height as u16;
    if height as u32 >= thread.shadow_end {
        return None;
    }
    // SAFETY: the end is at most the size of the array without its padding.
    let join = unsafe { thread.shadow.get_unchecked(usize::from(height) + SHADOW_PADDING) };
    let elsewhere = (record.pc_and_height >> 16 ^ frame.pc)
        | u64::from(record.leaf as u32 ^ slot(thread, frame.sp))
        | (record.join ^ join.place());
    if elsewhere != 0 {
        return None;
    }
    let return_address = frame.sp.wrapping_sub(8);
    // SAFETY: the record was made for a frame at this very place; its words and the shadow's lie above, on this stack.
    let mut difference = unsafe { shadow_difference(thread, height.into()) };
    for check in record.checks {
        // SAFETY: as above.
        difference |= unsafe { load(return_address.wrapping_add((check & 0xffff) * 8)) } ^ check >> 16;
    }
    (difference == 0).then_some((record.leaf >> 32) as u32)
}

/// Zero when every word that the steps from the callee of the shadow's frame at `height` outwards read holds what it held.
#[inline(always)]
unsafe fn shadow_difference(thread: &ThreadState, height: u32) -> u64 {
    let base = thread.slot_base;
    let mut end = height as usize + SHADOW_BLOCK;
    let mut difference = 0;
    while end > SHADOW_BLOCK {
        // SAFETY: the height is below the shadow's end; the padding makes the last block whole.
        let block = unsafe { thread.shadow.get_unchecked(end - SHADOW_BLOCK..end) };
        for frame in block {
            // SAFETY: the slot was read before on this stack, above the live frame it belongs to.
            difference |= unsafe { load(base.wrapping_add(frame.slot.into())) } ^ frame.pc;
        }
        end -= SHADOW_BLOCK;
    }
    if thread.extra_count > 0 {
        let extra = thread.extra.get(..thread.extra_count as usize).unwrap_or_default();
        for check in extra.iter().take_while(|check| check.height <= height) {
            // SAFETY: as above.
            difference |= unsafe { load(base.wrapping_add(check.slot.into())) } ^ check.value;
        }
    }
    difference
}

/// The second way, without a store: the predicted node, if it is right and meets the shadow soon.
#[inline(always)]
unsafe fn as_predicted(
    thread: &ThreadState,
    words: Words<'_>,
    pcs: &[PcEntry],
    key: u64,
    frame: Frame,
) -> Option<u32> {
    let Frame { mut pc, mut sp, mut fp } = frame;
    let prediction = &thread.predictions[prediction_index(key)];
    if prediction.key != key {
        return None;
    }
    let answer = prediction.node;
    let (mut node, mut height) = (answer, prediction.height);
    for _ in 0..=FRAMES_OUTSIDE_SHADOW {
        // SAFETY: a predicted node and its callers are nodes of the tree, and their words are numbers of addresses.
        let entry = unsafe { pcs.get_unchecked(words.pc_unchecked(node) as usize) };
        if entry.pc() != pc {
            return None;
        }
        // SAFETY: by this function's contract; the frame is a live one.
        match unsafe { meets_shadow(thread, node, height, sp, fp) } {
            Meeting::Elsewhere => {}
            Meeting::Holds => return Some(answer),
            Meeting::Changed => return None,
        }
        // SAFETY: as above.
        match unsafe { plain_step(thread, entry.rule(), sp, fp) } {
            Some(caller) => Frame { pc, sp, fp } = caller,
            None if entry.rule() == Rule::END_OF_STACK => {}
            None => return None,
        }
        // SAFETY: as above.
        node = unsafe { words.parent_unchecked(node) };
        if node == 0 {
            return (entry.rule() == Rule::END_OF_STACK).then_some(answer);
        }
        height = height.wrapping_sub(1);
    }
    None
}

/// How a frame relates to the last stack.
enum Meeting {
    /// The last stack did not have it, at this place.
    Elsewhere,
    /// It had, and everything outside is unchanged.
    Holds,
    /// It had, and something outside has changed.
    Changed,
}

/// Compares a frame with the shadow, and the memory outside of it when they are the same.
#[inline(always)]
unsafe fn meets_shadow(thread: &ThreadState, node: u32, height: u32, sp: u64, fp: u64) -> Meeting {
    if height >= thread.shadow_end {
        return Meeting::Elsewhere;
    }
    // SAFETY: the end is at most the size of the array.
    let shadow = unsafe { thread.shadow.get_unchecked(height as usize + SHADOW_PADDING) };
    // One comparison for both, and for the flag.
    let difference = shadow.place() ^ place(slot(thread, sp), node);
    if difference << 1 != 0 {
        return Meeting::Elsewhere;
    }
    // SAFETY: as above; both arrays have the same size.
    if difference != 0 && unsafe { *thread.shadow_fp.get_unchecked(height as usize) } != fp {
        return Meeting::Elsewhere;
    }
    // SAFETY: by this function's contract.
    if unsafe { shadow_difference(thread, height) } == 0 { Meeting::Holds } else { Meeting::Changed }
}

/// Steps by a plain rule; `None` for other rules, and where the caller's frame would not lie above on this stack.
#[inline(always)]
unsafe fn plain_step(thread: &ThreadState, rule: Rule, sp: u64, fp: u64) -> Option<Frame> {
    if !rule.is_plain() {
        return None;
    }
    let base = if rule.is_from_fp() { fp } else { sp };
    let cfa = base.wrapping_add(rule.cfa_offset());
    // The return address lies between sp and the top: one comparison for both bounds.
    let lowest = sp.wrapping_add(8);
    if cfa.wrapping_sub(lowest) > thread.high.wrapping_sub(lowest) {
        return None;
    }
    // SAFETY: sp <= cfa - 8 < high.
    let pc = unsafe { load(cfa - 8) };
    let below = rule.slot_below_cfa();
    if below == 0 {
        return Some(Frame { pc, sp: cfa, fp });
    }
    if below > cfa - thread.low {
        return None;
    }
    // SAFETY: low <= cfa - below < high, since `below` is at least a word.
    let fp = unsafe { load(cfa - below) };
    Some(Frame { pc, sp: cfa, fp })
}

/// The slot of the return address into a frame.
#[inline(always)]
fn slot(thread: &ThreadState, sp: u64) -> u32 {
    sp.wrapping_sub(8).wrapping_sub(thread.slot_base) as u32
}

/// The stack pointer of the frame whose return address is in this slot.
fn frame_sp(thread: &ThreadState, slot: u32) -> u64 {
    thread.slot_base.wrapping_add(slot.into()).wrapping_add(8)
}

/// Everything else: follows, steps, learns.
#[inline(never)]
unsafe fn find_out(
    thread: &mut ThreadState,
    words: Words<'static>,
    pcs: &'static [PcEntry],
    frame: Frame,
) -> Result<u32, Unusual> {
    if !frame.sp.is_multiple_of(8) {
        return Err(Unusual);
    }
    let mut capture =
        Capture { thread, words, pcs, frame, pending_count: 0, lessons: [0; LESSONS], lesson_count: 0 };
    // SAFETY: by this function's contract.
    let found = unsafe { capture.find_known()? };
    capture.settle(&found)
}

impl Capture<'_> {
    /// Follows predictions and steps until the rest of the stack is known.
    #[inline(always)]
    unsafe fn find_known(&mut self) -> Result<Found, Unusual> {
        loop {
            let Frame { pc, sp, .. } = self.frame;
            // SAFETY: by this function's contract.
            let key = unsafe { prediction_key(self.thread, pc, sp) };
            let Prediction { key: predicted_key, node, height } =
                self.thread.predictions[prediction_index(key)];
            let before = self.pending_count;
            if predicted_key == key {
                // SAFETY: by this function's contract.
                match unsafe { self.follow(node, height)? } {
                    Followed::Right { shadow_height } => {
                        return Ok(Found {
                            shadow_height,
                            known: Known { node, height },
                            known_from: before,
                        });
                    }
                    Followed::Lost => self.tell_apart(pc, sp),
                    Followed::LostAtEnd => return Ok(self.found_end()),
                }
            }
            if let Some(lesson) = self.lessons.get_mut(self.lesson_count) {
                *lesson = before as u32;
                self.lesson_count += 1;
            }
            // SAFETY: by this function's contract.
            if self.pending_count == before && unsafe { self.step()? }.is_none() {
                return Ok(self.found_end());
            }
        }
    }

    /// The prediction for a frame at (pc, sp) was wrong, and the word that showed it is the return address into the
    /// current frame: from now on that word is a part of what the prediction goes by.
    #[inline(always)]
    fn tell_apart(&mut self, pc: u64, sp: u64) {
        let words_above = self.frame.sp.wrapping_sub(8).wrapping_sub(sp) / 8;
        if let Ok(words_above) = u16::try_from(words_above) {
            self.thread.telling[prediction_index(place_key(pc, sp))] = words_above;
        }
    }

    /// Nothing was known, but the frames found are all there are.
    fn found_end(&self) -> Found {
        Found { shadow_height: 0, known: Known::ROOT, known_from: self.pending_count }
    }

    /// Steps outwards from the current frame for as long as the return addresses are those of `node` and its callers.
    #[inline(always)]
    unsafe fn follow(&mut self, node: u32, height: u32) -> Result<Followed, Unusual> {
        let (mut node, mut height) = (node, height);
        loop {
            let pc_number = self.words.pc(node);
            let Some(entry) = self.pcs.get(pc_number as usize) else { return Ok(Followed::Lost) };
            if entry.pc() != self.frame.pc {
                return Ok(Followed::Lost);
            }
            let Frame { sp, fp, .. } = self.frame;
            // SAFETY: by this function's contract.
            match unsafe { meets_shadow(self.thread, node, height, sp, fp) } {
                Meeting::Elsewhere => {}
                Meeting::Holds => return Ok(Followed::Right { shadow_height: height }),
                // SAFETY: by this function's contract.
                Meeting::Changed => return unsafe { self.leave_shadow(height) },
            }
            self.add_pending(pc_number)?;
            // SAFETY: by this function's contract.
            let has_caller = unsafe { self.advance(entry.rule())? }.is_some();
            node = self.words.parent(node);
            height = height.wrapping_sub(1);
            match (has_caller, node) {
                (true, 0) => return Ok(Followed::Lost),
                (true, _) => {}
                (false, 0) => return Ok(Followed::Right { shadow_height: 0 }),
                (false, _) => return Ok(Followed::LostAtEnd),
            }
        }
    }

    /// Steps once without a prediction; `None` when the frame has no caller.
    #[inline(always)]
    unsafe fn step(&mut self) -> Result<Option<()>, Unusual> {
        let pc_number = self.pc_number(self.frame.pc)?;
        let Some(entry) = self.pcs.get(pc_number as usize) else { return Err(Unusual) };
        let rule = entry.rule();
        self.add_pending(pc_number)?;
        // SAFETY: by this function's contract.
        unsafe { self.advance(rule) }
    }

    /// Moves to the caller of the current frame; `None` when it has none.
    #[inline(always)]
    unsafe fn advance(&mut self, rule: Rule) -> Result<Option<()>, Unusual> {
        let Frame { sp, fp, .. } = self.frame;
        // SAFETY: by this function's contract.
        if let Some(caller) = unsafe { plain_step(self.thread, rule, sp, fp) } {
            self.frame = caller;
            return Ok(Some(()));
        }
        match rule.kind() {
            RuleKind::EndOfStack => Ok(None),
            RuleKind::Realigned { slot_below_fp, fp_is_saved } => {
                // SAFETY: by this function's contract.
                self.frame = unsafe { self.realigned_step(slot_below_fp, fp_is_saved)? };
                Ok(Some(()))
            }
            _ => Err(Unusual),
        }
    }

    #[cold]
    unsafe fn realigned_step(&self, slot_below_fp: u64, fp_is_saved: bool) -> Result<Frame, Unusual> {
        let Frame { sp, fp, .. } = self.frame;
        // SAFETY: each address is checked to lie in the readable part of the stack.
        let cfa = unsafe { self.load_checked(fp.wrapping_sub(slot_below_fp))? };
        if cfa <= sp {
            return Err(Unusual);
        }
        // SAFETY: as above.
        let pc = unsafe { self.load_checked(cfa.wrapping_sub(8))? };
        // SAFETY: as above.
        let fp = if fp_is_saved { unsafe { self.load_checked(fp)? } } else { fp };
        Ok(Frame { pc, sp: cfa, fp })
    }

    #[inline(always)]
    unsafe fn load_checked(&self, address: u64) -> Result<u64, Unusual> {
        if address < self.thread.low
            || address > self.thread.high.wrapping_sub(8)
            || !address.is_multiple_of(8)
        {
            return Err(Unusual);
        }
        // SAFETY: inside the readable part of this thread's stack.
        Ok(unsafe { load(address) })
    }

    #[inline(always)]
    fn add_pending(&mut self, pc_number: u32) -> Result<(), Unusual> {
        let slot = slot(self.thread, self.frame.sp);
        let place = self.thread.pending.get_mut(self.pending_count).ok_or(Unusual)?;
        *place = PendingFrame { fp: self.frame.fp, pc_number, slot };
        self.pending_count += 1;
        Ok(())
    }

    /// After a failed verification: takes over the shadow's frames up to the first step that leads elsewhere.
    #[cold]
    unsafe fn leave_shadow(&mut self, height: u32) -> Result<Followed, Unusual> {
        let mut height = height;
        loop {
            let Some(&ShadowFrame { node, slot: shadow_slot, .. }) =
                self.thread.shadow.get(height as usize + SHADOW_PADDING)
            else {
                return Err(Unusual);
            };
            let pc_number = self.words.pc(node & !NEEDS_FP);
            let Some(entry) = self.pcs.get(pc_number as usize) else { return Err(Unusual) };
            let is_same = entry.pc() == self.frame.pc && shadow_slot == slot(self.thread, self.frame.sp);
            if height == 0 || !is_same {
                self.thread.shadow_end = self.thread.shadow_end.min(height);
                return Ok(Followed::Lost);
            }
            self.add_pending(pc_number)?;
            // SAFETY: by this function's contract.
            if unsafe { self.advance(entry.rule())? }.is_none() {
                return Ok(Followed::LostAtEnd);
            }
            height -= 1;
        }
    }

    /// The number of the address that a call returns to.
    #[inline(always)]
    fn pc_number(&mut self, pc: u64) -> Result<u32, Unusual> {
        let (set, tag) = cache_place(pc);
        let ways = &mut self.thread.pc_cache[set];
        for way in *ways {
            if way >> NUMBER_BITS == tag && way != 0 {
                return Ok((way & ((1 << NUMBER_BITS) - 1)) as u32);
            }
        }
        let number = number_of_new(pc)?;
        *ways = [tag << NUMBER_BITS | u64::from(number), ways[0]];
        // A first address may have made the table.
        self.pcs = PROCESS.pcs.entries();
        Ok(number)
    }

    /// Gives the pending frames their nodes, and makes this stack the shadow.
    #[inline(never)]
    fn settle(&mut self, found: &Found) -> Result<u32, Unusual> {
        let unknown = self.thread.pending.get(..found.known_from).ok_or(Unusual)?;
        let numbers = unknown.iter().rev().map(|frame| frame.pc_number);
        let leaf = PROCESS.tree.descend(found.known.node, numbers).map_err(|_| Unusual)?;
        // The tree may have got its memory only now.
        self.words = PROCESS.tree.words();
        let leaf_height = found.known.height as usize + found.known_from;
        let shadow_height = found.shadow_height as usize;
        if leaf_height >= MAX_DEPTH {
            self.thread.forget_stack();
        } else if self.pending_count > FRAMES_OUTSIDE_SHADOW || shadow_height == 0 {
            self.rewrite_shadow(leaf, shadow_height);
            self.record(leaf, leaf_height, 0);
        } else {
            self.record(leaf, shadow_height, self.pending_count);
        }
        self.teach(leaf, leaf_height as u32);
        Ok(leaf)
    }

    /// Makes the record of this stack, whose innermost node is `leaf`: `count` pending frames inside of the shadow's frame
    /// at `join_height`.
    fn record(&mut self, leaf: u32, join_height: usize, count: usize) {
        let thread = &mut *self.thread;
        if join_height >= thread.shadow_end as usize {
            return;
        }
        let join = thread.shadow[join_height + SHADOW_PADDING];
        let Some((pc, innermost_slot)) = (match thread.pending[..count].first() {
            Some(frame) => self.pcs.get(frame.pc_number as usize).map(|entry| (entry.pc(), frame.slot)),
            None => Some((join.pc, join.slot)),
        }) else {
            return;
        };
        let mut checks = [pc << 16; RECORD_CHECKS];
        for (frame, check) in thread.pending[..count].iter().skip(1).zip(&mut checks) {
            let Some(entry) = self.pcs.get(frame.pc_number as usize) else { return };
            let Ok(words_above) = u16::try_from(frame.slot.wrapping_sub(innermost_slot) / 8) else { return };
            *check = entry.pc() << 16 | u64::from(words_above);
        }
        let hangs_on_fp = |frame: &PendingFrame| {
            self.pcs.get(frame.pc_number as usize).is_none_or(|entry| {
                let rule = entry.rule();
                !rule.is_plain() || rule.is_from_fp()
            })
        };
        // SAFETY: the frame is the innermost of the live stack.
        let key = unsafe { prediction_key(thread, pc, frame_sp(thread, innermost_slot)) };
        let is_usable =
            join.node & NEEDS_FP == 0 && pc >> 48 == 0 && !thread.pending[..count].iter().any(hangs_on_fp);
        thread.records[record_index(key)] = Record {
            // A record that cannot match keeps its place free of one that would only be in the way.
            pc_and_height: if is_usable { pc << 16 | join_height as u64 } else { 0 },
            leaf: place(innermost_slot, leaf),
            join: join.place(),
            checks,
        };
    }

    /// Replaces the shadow inside of `known_height` by the pending frames, whose innermost node is `leaf`.
    fn rewrite_shadow(&mut self, leaf: u32, known_height: usize) {
        let thread = &mut *self.thread;
        let count = self.pending_count;
        let mut node = leaf;
        for (index, frame) in thread.pending[..count].iter().enumerate() {
            let height = known_height + count - index;
            let pc = self.pcs.get(frame.pc_number as usize).map_or(0, PcEntry::pc);
            thread.shadow[height + SHADOW_PADDING] = ShadowFrame { pc, slot: frame.slot, node };
            thread.shadow_fp[height] = frame.fp;
            node = self.words.parent(node);
        }
        let kept = thread.extra[..thread.extra_count as usize]
            .iter()
            .rposition(|check| check.height as usize <= known_height)
            .map_or(0, |last| last + 1);
        thread.extra_count = kept as u32;
        let mut needs_fp =
            known_height > 0 && thread.shadow[known_height + SHADOW_PADDING].node & NEEDS_FP != 0;
        thread.shadow_end = (known_height + count + 1) as u32;
        if known_height == 0 {
            let outermost = thread.shadow[1 + SHADOW_PADDING];
            thread.shadow[1..=SHADOW_PADDING].fill(outermost);
        }
        for index in (0..count).rev() {
            let height = known_height + count - index;
            let frame = thread.pending[index];
            let rule = self.pcs.get(frame.pc_number as usize).map_or(Rule::END_OF_STACK, PcEntry::rule);
            let Ok(needs) = note_extra_checks(thread, rule, height, frame, needs_fp) else {
                // No room for the checks: this shadow must not be believed further in than here.
                thread.shadow_end = height as u32;
                return;
            };
            needs_fp = needs;
            if needs_fp {
                thread.shadow[height + SHADOW_PADDING].node |= NEEDS_FP;
            }
        }
    }

    /// Tells the predictor what it did not know.
    fn teach(&mut self, leaf: u32, leaf_height: u32) {
        let mut node = leaf;
        let mut at = 0;
        for &lesson in &self.lessons[..self.lesson_count] {
            while at < lesson {
                node = self.words.parent(node);
                at += 1;
            }
            let Some(frame) = self.thread.pending.get(lesson as usize) else { return };
            let Some(entry) = self.pcs.get(frame.pc_number as usize) else { return };
            let sp = frame_sp(self.thread, frame.slot);
            // SAFETY: the frame is one of the live stack.
            let key = unsafe { prediction_key(self.thread, entry.pc(), sp) };
            self.thread.predictions[prediction_index(key)] =
                Prediction { key, node, height: leaf_height - at };
        }
    }
}

/// Notes which words the step from the frame at `height` reads beside the return address, as far as the frames outside
/// depend on them. Answers whether this frame's own fp matters.
fn note_extra_checks(
    thread: &mut ThreadState,
    rule: Rule,
    height: usize,
    frame: PendingFrame,
    outer_needs_fp: bool,
) -> Result<bool, Unusual> {
    // Read again from memory that has not changed since: the frames are live.
    let cfa = if height > 1 {
        thread.slot_base.wrapping_add(thread.shadow[height - 1 + SHADOW_PADDING].slot.into()).wrapping_add(8)
    } else {
        0
    };
    let outer_fp = thread.shadow_fp[height - 1];
    let mut note = |address: u64, value: u64| {
        let check =
            ExtraCheck { value, slot: address.wrapping_sub(thread.slot_base) as u32, height: height as u32 };
        *thread.extra.get_mut(thread.extra_count as usize).ok_or(Unusual)? = check;
        thread.extra_count += 1;
        Ok(())
    };
    match rule.kind() {
        RuleKind::FromSp { saved_fp_below: None, .. } => Ok(outer_needs_fp),
        RuleKind::FromSp { saved_fp_below: Some(below), .. } => {
            if outer_needs_fp {
                note(cfa.wrapping_sub(below), outer_fp)?;
            }
            Ok(false)
        }
        RuleKind::FromFp { saved_fp_below, .. } => {
            if let (true, Some(below)) = (outer_needs_fp, saved_fp_below) {
                note(cfa.wrapping_sub(below), outer_fp)?;
            }
            Ok(true)
        }
        RuleKind::Realigned { slot_below_fp, fp_is_saved } => {
            note(frame.fp.wrapping_sub(slot_below_fp), cfa)?;
            if outer_needs_fp && fp_is_saved {
                note(frame.fp, outer_fp)?;
            }
            Ok(true)
        }
        _ => Ok(false),
    }
}

/// Numbers an address that this thread's cache does not have.
#[cold]
#[inline(never)]
fn number_of_new(pc: u64) -> Result<u32, Unusual> {
    if let Some(number) = PROCESS.pcs.number(pc, PcKind::ReturnAddress) {
        return Ok(number);
    }
    let rule = rule_of(pc).ok_or(Unusual)?;
    PROCESS.pcs.add(pc, PcKind::ReturnAddress, rule).ok_or(Unusual)
}

/// # Safety
///
/// `address` is readable and a multiple of 8.
#[inline(always)]
unsafe fn load(address: u64) -> u64 {
    // Volatile: the word may change between two captures behind the compiler's back.
    // SAFETY: by contract.
    unsafe { (address as *const u64).read_volatile() }
}

/// What a prediction goes by: the place, and the stack word that told the stacks of this place apart the last time.
///
/// # Safety
///
/// `sp` belongs to a live frame on the thread's own stack.
#[inline(always)]
unsafe fn prediction_key(thread: &ThreadState, pc: u64, sp: u64) -> u64 {
    let key = place_key(pc, sp);
    let words_above = u64::from(thread.telling[prediction_index(key)]);
    let address = sp.wrapping_add(words_above * 8);
    if address >= thread.high {
        return key;
    }
    // SAFETY: sp <= address < high, in whole words above sp.
    let word = unsafe { load(address) };
    // Loaded and masked in any case, to spare the branch.
    let mask = u64::from(words_above != 0).wrapping_neg();
    (key ^ word & mask).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[inline(always)]
fn place_key(pc: u64, sp: u64) -> u64 {
    (pc ^ sp.rotate_left(29)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[inline(always)]
fn record_index(key: u64) -> usize {
    (key >> (64 - RECORDS.ilog2())) as usize
}

#[inline(always)]
fn prediction_index(key: u64) -> usize {
    (key >> (64 - PREDICTIONS.ilog2())) as usize
}

/// Set and tag of an address in the pc cache. The multiplication can be undone, so set and tag together are the address.
#[inline(always)]
fn cache_place(pc: u64) -> (usize, u64) {
    let mixed = pc.wrapping_mul(0x9e37_79b9_7f4a_7c15 & MASK_47 | 1) & MASK_47;
    ((mixed >> 37) as usize, mixed & ((1 << 37) - 1))
}

const MASK_47: u64 = (1 << 47) - 1;
const _: () = assert!(NUMBER_BITS + 37 == 64);
