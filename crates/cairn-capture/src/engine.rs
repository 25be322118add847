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

use core::sync::atomic::{Ordering, compiler_fence};

use cairn_unwind::x86_64::{Rule, RuleKind};

use crate::modules::rule_of;
use crate::pcs::{NUMBER_BITS, PcEntry, PcKind};
use crate::process::{PROCESS, is_unloading};
use crate::stack_bounds;
use crate::thread::{ExtraCheck, MAX_DEPTH, NEEDS_FP, PendingFrame, Prediction, ShadowFrame, ThreadState};
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
        enter_stack(thread, frame.sp)?;
    }
    if !frame.sp.is_multiple_of(8) {
        return Err(Unusual);
    }
    let mut capture = Capture {
        thread,
        words: PROCESS.tree.words(),
        pcs: PROCESS.pcs.entries(),
        frame,
        pending_count: 0,
        lessons: [0; LESSONS],
        lesson_count: 0,
    };
    // SAFETY: by contract, and the frame lies in the thread's readable range.
    let found = unsafe { capture.find_known()? };
    if capture.pending_count == 0 {
        return Ok(found.known.node);
    }
    capture.settle(&found)
}

/// Learns the bounds of the stack that `sp` lies on.
#[cold]
pub(crate) fn enter_stack(thread: &mut ThreadState, sp: u64) -> Result<(), Unusual> {
    let top = stack_bounds::top_of_own_stack(sp).ok_or(Unusual)?;
    let low = sp & !0xfff;
    let known_from = if thread.high == top { thread.low } else { top };
    if !stack_bounds::is_readable(low, known_from) {
        return Err(Unusual);
    }
    if thread.high != top {
        thread.forget_stack();
        // A signal handler that comes between must find a range that is readable, if an empty one.
        thread.high = 0;
        compiler_fence(Ordering::SeqCst);
        thread.slot_base = top.wrapping_sub(1 << 32);
    }
    thread.low = low;
    compiler_fence(Ordering::SeqCst);
    thread.high = top;
    Ok(())
}

impl Capture<'_> {
    /// Follows predictions and steps until the rest of the stack is known.
    #[inline(always)]
    unsafe fn find_known(&mut self) -> Result<Found, Unusual> {
        loop {
            let Frame { pc, sp, .. } = self.frame;
            let key = prediction_key(pc, sp);
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
                    Followed::Lost => {}
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
            if self.is_in_shadow(node, height) {
                // SAFETY: by this function's contract.
                if unsafe { self.verify_shadow(height) } {
                    return Ok(Followed::Right { shadow_height: height });
                }
                // SAFETY: by this function's contract.
                return unsafe { self.leave_shadow(height) };
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
        let (cfa, saved_fp) = if rule.is_plain() {
            let base = if rule.is_from_fp() { fp } else { sp };
            let cfa = base.wrapping_add(rule.cfa_offset());
            (cfa, cfa.wrapping_sub(rule.slot_below_cfa()))
        } else {
            match rule.kind() {
                RuleKind::EndOfStack => return Ok(None),
                RuleKind::Realigned { slot_below_fp, fp_is_saved } => {
                    let place = fp.wrapping_sub(slot_below_fp);
                    // SAFETY: checked to lie in the readable part of the stack.
                    let cfa = unsafe { self.load_checked(place)? };
                    (cfa, if fp_is_saved { fp } else { cfa })
                }
                _ => return Err(Unusual),
            }
        };
        // One comparison for both bounds; a caller lies above its callee, and its return address inside the stack.
        if cfa.wrapping_sub(sp).wrapping_sub(8) > self.thread.high.wrapping_sub(sp).wrapping_sub(8)
            || !cfa.is_multiple_of(8)
        {
            return Err(Unusual);
        }
        // SAFETY: sp <= cfa - 8 < high, aligned.
        let pc = unsafe { load(cfa - 8) };
        let fp = if saved_fp == cfa {
            fp
        } else {
            // SAFETY: checked to lie in the readable part of the stack.
            unsafe { self.load_checked(saved_fp)? }
        };
        self.frame = Frame { pc, sp: cfa, fp };
        Ok(Some(()))
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

    /// The slot of the return address into the current frame.
    #[inline(always)]
    fn slot(&self) -> u32 {
        self.frame.sp.wrapping_sub(8).wrapping_sub(self.thread.slot_base) as u32
    }

    #[inline(always)]
    fn add_pending(&mut self, pc_number: u32) -> Result<(), Unusual> {
        let slot = self.slot();
        let place = self.thread.pending.get_mut(self.pending_count).ok_or(Unusual)?;
        *place = PendingFrame { fp: self.frame.fp, pc_number, slot };
        self.pending_count += 1;
        Ok(())
    }

    /// True when the last stack had the current frame, as this node, at this place.
    #[inline(always)]
    fn is_in_shadow(&self, node: u32, height: u32) -> bool {
        if height >= self.thread.shadow_end {
            return false;
        }
        let Some(shadow) = self.thread.shadow.get(height as usize) else { return false };
        if shadow.node & !NEEDS_FP != node || shadow.slot != self.slot() {
            return false;
        }
        shadow.node & NEEDS_FP == 0 || self.thread.shadow_fp.get(height as usize) == Some(&self.frame.fp)
    }

    /// True when every word that the steps outwards from the shadow's frame at `height` read holds what it held.
    #[inline(always)]
    unsafe fn verify_shadow(&self, height: u32) -> bool {
        let base = self.thread.slot_base;
        let outside = self.thread.shadow.get(1..height as usize).unwrap_or_default();
        let mut difference = 0;
        for frame in outside {
            // SAFETY: the slot was read before on this stack, above the live frame it belongs to.
            difference |= unsafe { load(base.wrapping_add(frame.slot.into())) } ^ frame.pc;
        }
        let extra = self.thread.extra.get(..self.thread.extra_count as usize).unwrap_or_default();
        for check in extra.iter().take_while(|check| check.height <= height) {
            // SAFETY: as above.
            difference |= unsafe { load(base.wrapping_add(check.slot.into())) } ^ check.value;
        }
        difference == 0
    }

    /// After a failed verification: takes over the shadow's frames up to the first step that leads elsewhere.
    #[cold]
    unsafe fn leave_shadow(&mut self, height: u32) -> Result<Followed, Unusual> {
        let mut height = height;
        loop {
            let Some(&ShadowFrame { node, slot, .. }) = self.thread.shadow.get(height as usize) else {
                return Err(Unusual);
            };
            let pc_number = self.words.pc(node & !NEEDS_FP);
            let Some(entry) = self.pcs.get(pc_number as usize) else { return Err(Unusual) };
            if height == 0 || entry.pc() != self.frame.pc || slot != self.slot() {
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
        if leaf_height < MAX_DEPTH {
            self.rewrite_shadow(leaf, found.shadow_height as usize);
        } else {
            self.thread.forget_stack();
        }
        self.teach(leaf, leaf_height as u32);
        Ok(leaf)
    }

    /// Replaces the shadow inside of `known_height` by the pending frames, whose innermost node is `leaf`.
    fn rewrite_shadow(&mut self, leaf: u32, known_height: usize) {
        let thread = &mut *self.thread;
        let count = self.pending_count;
        let mut node = leaf;
        for (index, frame) in thread.pending[..count].iter().enumerate() {
            let height = known_height + count - index;
            let pc = self.pcs.get(frame.pc_number as usize).map_or(0, PcEntry::pc);
            thread.shadow[height] = ShadowFrame { pc, slot: frame.slot, node };
            thread.shadow_fp[height] = frame.fp;
            node = self.words.parent(node);
        }
        let kept = thread.extra[..thread.extra_count as usize]
            .iter()
            .rposition(|check| check.height as usize <= known_height)
            .map_or(0, |last| last + 1);
        thread.extra_count = kept as u32;
        let mut needs_fp = known_height > 0 && thread.shadow[known_height].node & NEEDS_FP != 0;
        thread.shadow_end = (known_height + count + 1) as u32;
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
                thread.shadow[height].node |= NEEDS_FP;
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
            let sp = self.thread.slot_base.wrapping_add(frame.slot.into()).wrapping_add(8);
            let key = prediction_key(entry.pc(), sp);
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
        thread.slot_base.wrapping_add(thread.shadow[height - 1].slot.into()).wrapping_add(8)
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

#[inline(always)]
fn prediction_key(pc: u64, sp: u64) -> u64 {
    (pc ^ sp.rotate_left(29)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[inline(always)]
fn prediction_index(key: u64) -> usize {
    (key >> 54) as usize
}

/// Set and tag of an address in the pc cache. The multiplication can be undone, so set and tag together are the address.
#[inline(always)]
fn cache_place(pc: u64) -> (usize, u64) {
    let mixed = pc.wrapping_mul(0x9e37_79b9_7f4a_7c15 & MASK_47 | 1) & MASK_47;
    ((mixed >> 37) as usize, mixed & ((1 << 37) - 1))
}

const MASK_47: u64 = (1 << 47) - 1;
const _: () = assert!(NUMBER_BITS + 37 == 64);
