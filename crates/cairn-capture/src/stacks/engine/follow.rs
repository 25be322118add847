//! Following: the path of stacks that change every time.
//!
//! A record is worth making if its stack comes back before the record is replaced. In a compiler or
//! a tree walker it does not. There the current shadow follows the stack instead: it always is the
//! stack of the last capture, and only its inner frames are replaced.
//!
//! ```text
//!   outermost frame ... known ... meeting height | changed: stepped over, numbered, written
//! ```
//!
//! From the outermost frame inwards, the shadow's return addresses are compared with the words on
//! the stack; the first difference ends the known part. So the frame to meet is known *before* the
//! first step. Then frames are stepped over from the innermost one until that frame is reached.
//! This is exact for the same reason as everything here: the frame met is in the place that the
//! shadow recorded, it was reached by real steps, and all words outside of it are unchanged.
//!
//! No record is made, no discriminator is learned, and no shadow is copied. Everything that is not
//! a plain step is left to [`step`](super::step), which also takes every 32nd capture: when
//! records hold for most of these, the following ends.

use cairn_unwind::Machine;

use super::learn::note_fps;
use super::step::pc_number;
use super::{extra_differs, frame_difference, load, raw_step_difference, shadow_frame, slot};
use crate::stacks::arch::{self, Native, Rule};
use crate::stacks::counters::{self, Counter};
use crate::stacks::process::Process;
use crate::stacks::thread::ThreadState;
use crate::stacks::thread::shadow::{PendingFrame, SHADOW_PADDING, SHADOWS, ShadowFrame, TURN_FRAMES};

/// Captures that follow between two that take the usual path.
///
/// 31, because the usual path costs several times as much, and is needed only to notice that
/// records hold again.
pub(super) const FOLLOWS: u32 = 31;

/// Lowest height that can be met. The shadow's frame at height 1 may be a mark for the end of the
/// stack, which is no frame.
const MIN_HEIGHT: usize = 2;

/// Returns the node of the stack, if the current shadow can follow it; `None` otherwise. The shadow
/// then is that stack.
///
/// # Safety
///
/// - The frame (pc, sp, fp) is live, and lies on the thread's own stack: sp is in
///   `thread.low..thread.high`.
#[inline(never)]
pub(super) unsafe fn follow(
    process: &Process,
    thread: &mut ThreadState,
    pc: u64,
    sp: u64,
    fp: u64,
) -> Option<u32> {
    // SAFETY: the caller promises the same.
    let node = unsafe { try_follow(process, thread, pc, sp, fp) };
    match node {
        Some(_) => {
            thread.follows_left -= 1;
            counters::add(Counter::Followed, 1);
        }
        None => {
            // The next attempt has to be earned again: most of these stacks cannot be followed.
            (thread.follows_left, thread.misses) = (0, 0);
            counters::add(Counter::NotFollowed, 1);
        }
    }
    node
}

/// # Safety
///
/// - As for [`follow`].
#[inline(always)]
unsafe fn try_follow(
    process: &Process,
    thread: &mut ThreadState,
    mut pc: u64,
    mut sp: u64,
    fp: u64,
) -> Option<u32> {
    let number = thread.current as usize % SHADOWS;
    let innermost = slot(thread, sp);
    let (low, high) = (thread.low, thread.high);
    let site_pc = pc;
    if !sp.is_multiple_of(8) || thread.sizes[number].end as usize + SHADOW_PADDING > TURN_FRAMES {
        return None;
    }
    // SAFETY: the frame at `sp` is live, and the shadow lies in the first turn, as compared above.
    let mut height = unsafe { unchanged_height(thread, number, innermost) };
    if height < MIN_HEIGHT {
        return None;
    }
    let mut meeting_slot = thread.shadow_at(number, height).slot;
    let room = TURN_FRAMES - SHADOW_PADDING - 1 - height;
    // The place of the frame pointer of the present frame: most are saved and never needed.
    let mut fp_place = (&raw const fp) as u64;
    // Once for all steps, because it costs as much as a comparison.
    let address_mask = arch::strip(u64::MAX);
    let mut rules = 0;
    let mut count = 0;
    loop {
        let here = slot(thread, sp);
        if here >= meeting_slot {
            // SAFETY: `fp_place` is the address of `fp`, or of a word on the stack that was
            // compared with its bounds when its frame was stepped over.
            height = unsafe { meet(thread, number, height, here, pc, fp_place) }?;
            meeting_slot = thread.shadow_at(number, height).slot;
            if meeting_slot == here {
                break;
            }
        }
        if count >= room {
            return None;
        }
        let (pc_number, rule) = pc_number(process, thread, pc).ok()?;
        // SAFETY: count < TURN_FRAMES, and the room is at least one turn.
        *unsafe { thread.pending_unchecked_mut(count) } =
            PendingFrame::new(pc_number, here, fp_place, rule.depends_on_fp());
        count += 1;
        rules |= rule.bits();
        if !rule.is_plain() {
            return None;
        }
        let base = match rule.is_from_fp() {
            // SAFETY: as for `meet`.
            true => unsafe { load(fp_place) },
            false => sp,
        };
        let cfa = base.wrapping_add(rule.cfa_offset());
        let lowest = sp.wrapping_add(8);
        // As in `plain_step`: between sp and the top, and a whole number of words from sp.
        if cfa.wrapping_sub(lowest).rotate_right(3) > high.wrapping_sub(lowest) >> 3 {
            return None;
        }
        let return_address_below = arch::return_address_below(rule);
        if !arch::reads_within(rule, cfa - sp) {
            return None;
        }
        // SAFETY: low <= sp <= cfa - return_address_below < high, a multiple of 8, by the
        // comparisons above.
        pc = unsafe { load(cfa - return_address_below) } & address_mask;
        let below = rule.slot_below_cfa();
        // The captured frames alone do not change before the word is read.
        if below > cfa - sp {
            return None;
        }
        fp_place = if below == 0 { fp_place } else { cfa - below };
        sp = cfa;
    }
    debug_assert!(low <= sp && sp <= high, "the frame met lies on the stack");
    counters::add(Counter::FollowedSteps, count as u64);
    let join = *thread.shadow_at(number, height);
    if count == 0 {
        // The shadow stays as it is: it has this stack as its outer part.
        return Some(join.node());
    }
    // The shadow ends here until all frames are written.
    cut_shadow(thread, number, height);
    // SAFETY: count <= room, so that the entries are in the first turn; the pending frames are
    // those that were stepped over.
    let leaf = unsafe { write_frames(process, thread, number, height, count, join.node()) }?;
    if Native::CALL_PUSHES {
        // As in `make_shadow`.
        thread.shadow_at_mut(number, height + count).set_pushed(site_pc);
    }
    thread.sizes[number].end = (height + count + 1) as u32;
    if join.needs_fp() || Rule::from_bits(rules).depends_on_fp() {
        // SAFETY: the places are those of `fp`, or of words on the stack, as for `meet`.
        unsafe { load_fps(thread, count) };
        note_fps(process, thread, number, count, height, join.needs_fp());
    }
    Some(leaf)
}

/// The greatest height of a shadow up to which all frames are unchanged.
///
/// All words that steps from there outwards read are unchanged too, and its frame lies at the slot
/// `innermost` or further out.
///
/// # Safety
///
/// - A live frame of this thread's own stack lies at the slot `innermost`.
/// - The shadow's frames are all in the first turn.
#[inline(always)]
unsafe fn unchanged_height(thread: &ThreadState, number: usize, innermost: u32) -> usize {
    // The first of these frames is that of height 1.
    let first = SHADOW_PADDING + 1;
    let end = (thread.sizes[number].end as usize + SHADOW_PADDING).max(first);
    // SAFETY: first <= end, and end <= TURN_FRAMES, as the caller promises.
    let frames = unsafe { thread.first_turn_of_shadow(number).get_unchecked(first..end) };
    let address_mask = arch::strip(u64::MAX);
    let height = if Native::CALL_PUSHES {
        let has_changed = |frame: &ShadowFrame| {
            // Words inside of the innermost frame are not read: they may be anything.
            // SAFETY: at or above the live frame, by the first comparison, and below the top.
            frame.slot < innermost || unsafe { frame_difference(thread, frame) } != 0
        };
        frames.iter().position(has_changed).unwrap_or(frames.len())
    } else {
        let has_changed = |pair: &[ShadowFrame]| {
            // SAFETY: as above: the word lies in the frame `pair[1]`.
            pair[1].slot < innermost
                || unsafe { raw_step_difference(thread, &pair[0], &pair[1]) } & address_mask != 0
        };
        let is_outermost_there = frames.first().is_some_and(|frame| frame.slot >= innermost);
        let changed = frames.windows(2).position(has_changed).map(|pairs| pairs + 1);
        if is_outermost_there { changed.unwrap_or(frames.len()) } else { 0 }
    };
    for index in 0..thread.sizes[number].extra_count as usize {
        let check = thread.extra(number, index);
        if check.height as usize > height {
            break;
        }
        // SAFETY: a step from a frame at or outside of `height` has read this word, above the live
        // frame.
        if unsafe { extra_differs(thread, &check) } {
            return (check.height as usize).saturating_sub(1);
        }
    }
    height
}

/// The greatest height, up to `height`, whose frame is at the slot `here` or further out.
///
/// A frame at `here` must be the present one. `None` where no frame can be met any more.
///
/// # Safety
///
/// - `fp_place` is readable.
#[inline(always)]
unsafe fn meet(
    thread: &ThreadState,
    number: usize,
    mut height: usize,
    here: u32,
    pc: u64,
    fp_place: u64,
) -> Option<usize> {
    while height >= MIN_HEIGHT {
        let frame = thread.shadow_at(number, height);
        if frame.slot > here {
            return Some(height);
        }
        // A frame that was passed over is no frame of this stack.
        if frame.slot == here && frame.pc() == pc {
            // SAFETY: the caller promises that the place is readable.
            if !frame.needs_fp() || thread.shadow_fp_at(number, height) == unsafe { load(fp_place) } {
                return Some(height);
            }
        }
        height -= 1;
    }
    None
}

/// Drops the frames of a shadow inside of `height`, and their extra checks.
#[inline(always)]
fn cut_shadow(thread: &mut ThreadState, number: usize, height: usize) {
    let size = &mut thread.sizes[number];
    size.end = height as u32 + 1;
    let mut extra_count = size.extra_count as usize;
    while extra_count > 0 && thread.extra(number, extra_count - 1).height as usize > height {
        extra_count -= 1;
    }
    thread.sizes[number].extra_count = extra_count as u32;
}

/// Writes the pending frames to a shadow, inside of `height`, whose frame has the node `parent`.
/// Returns the innermost node; `None` without memory for new nodes.
///
/// # Safety
///
/// - The entries are in the first turn of the shadow, and the pending frames are live.
#[inline(always)]
unsafe fn write_frames(
    process: &Process,
    thread: &mut ThreadState,
    number: usize,
    height: usize,
    count: usize,
    parent: u32,
) -> Option<u32> {
    counters::add(Counter::ShadowFrames, count as u64);
    let tree = &process.tree;
    let mut node = parent;
    for index in (0..count).rev() {
        let pending = thread.pending(index);
        node = match tree.child(node, pending.pc_number()) {
            Some(child) => child,
            // SAFETY: the caller promises the same.
            None => return unsafe { add_frames(process, thread, number, height, count, index, node) },
        };
        // SAFETY: as the caller promises.
        unsafe { write_frame(process, thread, number, height + count - index, pending, node) };
    }
    Some(node)
}

/// Continues [`write_frames`] with the pending frame `first`, which has no node yet.
///
/// # Safety
///
/// - As for [`write_frames`].
#[cold]
#[inline(never)]
unsafe fn add_frames(
    process: &Process,
    thread: &mut ThreadState,
    number: usize,
    height: usize,
    count: usize,
    first: usize,
    parent: u32,
) -> Option<u32> {
    let numbers = (0..first + 1).rev().map(|index| thread.pending(index).pc_number());
    let leaf = process.tree.descend(parent, numbers).ok()?;
    let words = process.tree.words();
    let mut node = leaf;
    for index in 0..=first {
        let pending = thread.pending(index);
        // SAFETY: as the caller promises.
        unsafe { write_frame(process, thread, number, height + count - index, pending, node) };
        node = words.parent(node);
    }
    Some(leaf)
}

/// Writes the frame of a shadow at a height.
///
/// # Safety
///
/// - The entry is in the first turn, and the pending frame is live.
#[inline(always)]
unsafe fn write_frame(
    process: &Process,
    thread: &mut ThreadState,
    number: usize,
    height: usize,
    pending: PendingFrame,
    node: u32,
) {
    // SAFETY: the caller promises a live frame.
    let frame = unsafe { shadow_frame(process, thread, pending, node) };
    // SAFETY: the caller promises an entry of the first turn, which is always there.
    *unsafe { thread.shadow_unchecked_mut(number, height + SHADOW_PADDING) } = frame;
}

/// Replaces the places of frame pointers in the pending frames by their values.
///
/// # Safety
///
/// - The places are readable.
#[cold]
#[inline(never)]
unsafe fn load_fps(thread: &mut ThreadState, count: usize) {
    for index in 0..count {
        let frame = thread.pending_mut(index);
        // SAFETY: the caller promises that the place is readable.
        frame.fp = unsafe { load(frame.fp) };
    }
}
