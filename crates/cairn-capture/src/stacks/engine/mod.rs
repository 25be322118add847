//! The hot path: this thread's stack as a number, by verification instead of walking.
//!
//! One step of a stack walk is a function of (pc, sp, fp) and of the stack words that it reads. So
//! when the start equals one that was seen before, and all words that the steps from there read are
//! unchanged, the rest of the stack is the same. This is exact, by induction over the frames.
//! Comparing words is much cheaper than walking, because the loads do not depend on each other.
//!
//! ```text
//!   innermost frame (pc, sp)
//!        |   its record: up to 12 frames, as a list of words to compare
//!        v
//!   the join: a frame of a shadow (an earlier stack), at the same place
//!        |   the shadow: all return addresses outside of the join, in one array, compared in one loop
//!        v
//!   outermost frame: the record's node is the answer
//! ```
//!
//! When no record holds, [`step`] steps over the frames one by one, each by the packed rule of its
//! pc, until one of them is in a shadow. Then [`learn`] takes their nodes from the tree and makes a
//! record, and a shadow too when there were many frames.
//!
//! A record is found by (pc, sp) and up to two more stack words, in which stacks of the same call
//! site differed before ([`record_key`]). Without these words a quarter of all captures in an
//! interpreter find the wrong record; with them, one in two hundred does.
//!
//! Where stacks change every time, as in compilers, hardly any record holds, and making them would
//! be the greatest cost. After some captures in a row without one, [`follow`] replaces all of this
//! for most captures: one shadow follows the stack.
//!
//! # Words of a frame
//!
//! On x86-64 the return address into a frame lies just below the frame's stack pointer, whatever
//! was called. So a shadow's entry names one word: the return address into its own frame.
//!
//! On AArch64 the callee stores that word, anywhere in its own frame. The place follows from the
//! rule of the callee's pc. So the word of an entry is the one that *its own step* reads: the
//! return address into the frame outside of it. Entries then depend on their own frames alone, and
//! shadows with equal outer parts have equal entries there, whatever was called from the join.
//!
//! ```text
//!   x86-64:   | frame h+1 | ra into h | frame h             | ra into h-1 |
//!                           word of h                         word of h-1
//!   AArch64:  | frame h+1 ..ra into h.. | frame h ..ra into h-1.. |
//!                           word of h+1             word of h
//! ```
//!
//! The innermost frame's pc is in no entry's word there: a register has it. And a record compares
//! the word that leads to its join besides, because no entry at or outside of the join has it.
//!
//! Signatures of return addresses are not compared, since no step depends on them.
//!
//! The hot path returns [`NeedsWholeWalk`] for signal frames and for rows that do not fit a packed
//! rule; then [`crate::stacks::walk`] walks the stack.

mod follow;
pub(crate) mod learn;
pub(crate) mod step;

use cairn_unwind::Machine;

use crate::CallSite;
use crate::stacks::arch::{self, Native, Rule};
use crate::stacks::counters::{self, Counter};
use crate::stacks::index::MIX;
use crate::stacks::module_state::is_unloading;
use crate::stacks::process::Process;
use crate::stacks::stack_bounds;
use crate::stacks::thread::ThreadState;
use crate::stacks::thread::record::{Discriminator, FpCheck, LastCheck, PC_BITS, PC_TAG_BITS};
use crate::stacks::thread::shadow::{
    ExtraCheck, PendingFrame, SHADOW_PADDING, SHADOW_RUN, ShadowFrame, TURN_FRAMES,
};

/// The fast path cannot handle this stack.
pub(crate) struct NeedsWholeWalk;

/// Returns the node of the stack that starts at `site`.
///
/// # Safety
///
/// - `site` is a live frame of this thread, whose stack pointer lies on the stack of that frame.
/// - Nothing writes the memory from there up to the top of the stack before this function returns.
#[inline(always)]
pub(crate) unsafe fn capture(
    process: &Process,
    thread: &mut ThreadState,
    site: CallSite,
) -> Result<u32, NeedsWholeWalk> {
    let site = CallSite { pc: arch::strip(site.pc), ..site };
    // Computed first, because all loads depend on it.
    let site_key = site_key(site.pc, site.sp);
    let module_state = process.module_state.value();
    if thread.module_state != module_state {
        if is_unloading(module_state) {
            return Err(NeedsWholeWalk);
        }
        thread.forget_modules(module_state);
    }
    if (site.sp.wrapping_sub(thread.low) >= thread.high.wrapping_sub(thread.low)
        || stack_bounds::has_changed(thread.high))
        && thread.enter_own_stack(site.sp).is_none()
    {
        // SAFETY: `site` is a live frame whose stack is not written meanwhile, as the caller
        // promises.
        return unsafe { step::capture_elsewhere(process, thread, site) };
    }
    if thread.follows_left != 0 {
        // SAFETY: the frame is live, and its sp lies in thread.low..thread.high: either the
        // comparison above or `enter_own_stack` found that.
        if let Some(node) = unsafe { follow::follow(process, thread, site.pc, site.sp, site.fp) } {
            return Ok(node);
        }
    }
    // SAFETY: as for `follow`, `site.sp` lies in thread.low..thread.high.
    let key = unsafe { record_key(thread, site_key, site.sp) };
    // SAFETY: as for `record_key`, and the frame is live, as the caller promises.
    if let Some(node) = unsafe { match_record(thread, key, site) } {
        counters::add(Counter::HeldAtOnce, 1);
        thread.note_held();
        return Ok(node);
    }
    // SAFETY: as for `match_record`.
    unsafe { step::step_and_learn(process, thread, key, site.pc, site.sp, site.fp) }
}

/// Returns the node of the record at `key`, if all words that it lists are unchanged.
///
/// # Safety
///
/// - `site` is a live frame on the thread's own stack: its sp lies in `thread.low..thread.high`.
#[inline(always)]
unsafe fn match_record(thread: &ThreadState, key: u64, site: CallSite) -> Option<u32> {
    let record = thread.record(key);
    let (number, height) = (record.shadow(), record.join_height());
    if height >= thread.sizes[number].end {
        return None;
    }
    // SAFETY: height < end, and `ShadowSize::end` is at most the room less the padding.
    let join = unsafe { thread.shadow_unchecked(number, height as usize + SHADOW_PADDING) };
    let is_elsewhere = (record.pc() ^ site.pc)
        | u64::from(record.slot() ^ slot(thread, site.sp))
        | (record.join_place() ^ join.place());
    if is_elsewhere != 0 {
        return None;
    }
    let return_address = site.sp.wrapping_sub(8);
    let word = |words_above: u64| {
        // SAFETY: the record was made for a frame at this slot of the same stack, and its words lie
        // between that frame and the top, which does not move. The live frame is at the same place,
        // so they are readable.
        unsafe { load(return_address.wrapping_add(words_above * 8)) }
    };
    let address_mask = arch::strip(u64::MAX);
    // SAFETY: the join lies at the place that the record names, at or above the live frame.
    let mut difference = unsafe { shadow_difference(thread, number, height) };
    for check in record.word_checks() {
        difference |= check.difference(word(check.words_above()), address_mask);
    }
    difference |= match record.last_check() {
        LastCheck::Word(check) => check.difference(word(check.words_above()), address_mask),
        LastCheck::Fps(check) => {
            let join_fp = join.needs_fp().then(|| thread.shadow_fp_at(number, height as usize));
            fp_difference(check, join_fp, site.fp, word)
        }
    };
    if difference != 0 {
        return None;
    }
    if record.is_long() {
        for check in thread.further_checks(key)? {
            difference |= check.difference(word(check.words_above()), address_mask);
        }
    }
    (difference == 0).then_some(record.node())
}

/// Returns zero when the frame pointers are those that the record expects. `join_fp` is the one in
/// the join's frame, if that matters.
#[inline(always)]
fn fp_difference(check: FpCheck, join_fp: Option<u64>, fp: u64, word: impl Fn(u64) -> u64) -> u64 {
    let mut difference = 0;
    if let Some(join_fp) = join_fp {
        difference |= check.join_words_above().map_or(fp, word) ^ join_fp;
    }
    if check.in_register() != 0 {
        difference |= fp ^ check.in_register();
    }
    difference
}

/// Zero when all words are unchanged that the steps from the shadow's frame at `height` outwards
/// read.
///
/// # Safety
///
/// - `height` is below the end of the shadow.
/// - A live frame of this thread's own stack lies at or below the shadow's frame at `height`.
#[inline(always)]
unsafe fn shadow_difference(thread: &ThreadState, number: usize, height: u32) -> u64 {
    let end = height as usize + SHADOW_RUN;
    let mut difference = 0;
    if end <= TURN_FRAMES && !Native::CALL_PUSHES {
        // An outermost frame reads no word, so no padding could complete a run.
        let frames = thread.first_turn_of_shadow(number);
        // SAFETY: SHADOW_PADDING + 1 <= end <= TURN_FRAMES.
        let frames = unsafe { frames.get_unchecked(SHADOW_PADDING + 1..end) };
        for pair in frames.windows(2) {
            // SAFETY: the frames are at `height` or outside of it, at or above the live frame that
            // the caller promises.
            difference |= unsafe { raw_step_difference(thread, &pair[0], &pair[1]) };
        }
        // Once for all, because the mask costs as much as a comparison.
        difference = arch::strip(difference);
    } else if end <= TURN_FRAMES {
        // All in one turn, as for most programs: whole runs, which need few branches.
        let frames = thread.first_turn_of_shadow(number);
        let mut start = end;
        while start > SHADOW_RUN {
            start -= SHADOW_RUN;
            // SAFETY: start + SHADOW_RUN <= end <= TURN_FRAMES. The padding completes the last run.
            for frame in unsafe { frames.get_unchecked(start..start + SHADOW_RUN) } {
                // SAFETY: the frame is at `height` or outside of it, at or above the live frame
                // that the caller promises.
                difference |= unsafe { frame_difference(thread, frame) };
            }
        }
    } else {
        // SAFETY: the caller promises a live frame at or below the shadow's frame at `height`.
        difference = unsafe { deep_difference(thread, number, height) };
    }
    if thread.sizes[number].extra_count > 0 {
        // SAFETY: the caller promises a live frame at or below the shadow's frame at `height`.
        difference |= unsafe { extra_difference(thread, number, height) };
    }
    difference
}

/// Zero when the return address into the frame is unchanged, where calls push it.
///
/// # Safety
///
/// - A live frame of this thread's own stack lies at or below the shadow's frame.
#[inline(always)]
unsafe fn frame_difference(thread: &ThreadState, frame: &ShadowFrame) -> u64 {
    // SAFETY: slots of shadows lie on this thread's own stack, whose top has not moved since;
    // everything from a live frame up to the top is readable. Slots are multiples of 8, as the slot
    // base is.
    unsafe { load(thread.slot_base.wrapping_add(frame.slot.into())) ^ frame.pc() }
}

/// Zero when the step from `frame` still reads the return address into `outer`.
///
/// `outer` is the next frame outside of it in the same shadow.
///
/// # Safety
///
/// - A live frame of this thread's own stack lies at or below `frame`.
#[inline(always)]
unsafe fn step_difference(thread: &ThreadState, outer: &ShadowFrame, frame: &ShadowFrame) -> u64 {
    // SAFETY: the caller promises the same.
    arch::strip(unsafe { raw_step_difference(thread, outer, frame) })
}

/// The difference of [`step_difference`], and the word's signature, which is to be stripped.
///
/// # Safety
///
/// - As for [`step_difference`].
#[inline(always)]
unsafe fn raw_step_difference(thread: &ThreadState, outer: &ShadowFrame, frame: &ShadowFrame) -> u64 {
    let place = frame_sp(thread, outer.slot).wrapping_sub(frame.return_address_below());
    // SAFETY: the step from `frame` has read this word, in the frame, which lies at or above a live
    // one on this thread's own stack. It is at least one word below the outer frame, which lies at
    // or below the top. Both are multiples of 8.
    unsafe { load(place) ^ outer.pc() }
}

/// Zero when the word of a shadow's frame is unchanged; see the module's documentation.
///
/// # Safety
///
/// - `height` is at least 1 and below the end of the shadow.
/// - A live frame of this thread's own stack lies at or below the shadow's frame at `height`.
#[inline(always)]
unsafe fn height_difference(thread: &ThreadState, number: usize, height: usize) -> u64 {
    let frame = thread.shadow_at(number, height);
    if Native::CALL_PUSHES {
        // SAFETY: the caller promises a live frame at or below this one.
        return unsafe { frame_difference(thread, frame) };
    }
    // The outermost frame has no caller.
    let Some(outer) = height.checked_sub(1).filter(|&outer| outer > 0) else { return 0 };
    // SAFETY: the caller promises a live frame at or below this one.
    unsafe { step_difference(thread, thread.shadow_at(number, outer), frame) }
}

/// Zero when the words of all frames up to `height` are unchanged, in any number of turns.
///
/// # Safety
///
/// - `height` is below the end of the shadow.
/// - A live frame of this thread's own stack lies at or below the shadow's frame at `height`.
#[inline(never)]
unsafe fn deep_difference(thread: &ThreadState, number: usize, height: u32) -> u64 {
    (1..=height).fold(0, |difference, height| {
        // SAFETY: outer frames lie above inner ones, and so above the live frame that the caller
        // promises.
        difference | unsafe { height_difference(thread, number, height as usize) }
    })
}

/// Zero when the words other than return addresses are unchanged.
///
/// # Safety
///
/// - A live frame of this thread's own stack lies at or below the shadow's frame at `height`.
#[inline(never)]
unsafe fn extra_difference(thread: &ThreadState, number: usize, height: u32) -> u64 {
    let mut rest = thread.sizes[number].extra_count as usize;
    // The checks of frames inside of `height` come last, and mostly there are none.
    while rest > 0 && thread.extra(number, rest - 1).height > height {
        rest -= 1;
    }
    let mut difference = 0;
    for checks in thread.extras(number) {
        let count = rest.min(checks.len());
        for check in &checks[..count] {
            // SAFETY: a step from a frame at or outside of `height` has read this word, above the
            // live frame that the caller promises.
            difference |= unsafe { load_slot(thread, check.slot) } ^ check.value;
        }
        rest -= count;
        if rest == 0 {
            break;
        }
    }
    difference
}

/// True when a word other than a return address has changed.
///
/// # Safety
///
/// - A live frame of this thread's own stack lies at or below the shadow's frame of the check.
#[inline(always)]
unsafe fn extra_differs(thread: &ThreadState, check: &ExtraCheck) -> bool {
    // SAFETY: a step from the check's frame has read this word, above the live frame that the
    // caller promises.
    unsafe { load_slot(thread, check.slot) != check.value }
}

/// Makes the entry of a shadow for a pending frame.
///
/// # Safety
///
/// - The pending frame is a live one of this thread's own stack.
#[inline(always)]
unsafe fn shadow_frame(
    process: &Process,
    thread: &ThreadState,
    frame: PendingFrame,
    node: u32,
) -> ShadowFrame {
    if Native::CALL_PUSHES {
        // SAFETY: the slot is that of a live frame, whose return address is readable.
        return ShadowFrame::pushed(unsafe { load_slot(thread, frame.slot) }, frame.slot, node);
    }
    let (pc, rule) = pc_and_rule(process, frame.pc_number());
    ShadowFrame::new(pc, arch::return_address_below(rule), frame.slot, node)
}

/// The return address of this number, and its rule.
fn pc_and_rule(process: &Process, pc_number: u32) -> (u64, Rule) {
    let entry = process.pcs.entries().get(pc_number as usize);
    entry.map_or((0, Rule::END_OF_STACK), |entry| (entry.pc(), entry.rule()))
}

/// The slot of the return address into the frame at `slot`, whose callee has this pc number.
#[inline(always)]
fn return_address_slot(process: &Process, slot: u32, callee: u32) -> u32 {
    if Native::CALL_PUSHES {
        return slot;
    }
    let below = arch::return_address_below(pc_and_rule(process, callee).1).max(8);
    slot.wrapping_add(8).wrapping_sub(below as u32)
}

/// The stack word in this slot.
///
/// # Safety
///
/// - The slot is a multiple of 8, and readable.
#[inline(always)]
unsafe fn load_slot(thread: &ThreadState, slot: u32) -> u64 {
    // SAFETY: the caller promises a readable slot; the slot base is a multiple of 8.
    unsafe { load(thread.slot_base.wrapping_add(slot.into())) }
}

/// The stack word at `address`.
///
/// # Safety
///
/// - `address` is readable and a multiple of 8.
#[inline(always)]
pub(crate) unsafe fn load(address: u64) -> u64 {
    // Volatile, because the word may change between two captures without the compiler's knowledge.
    // SAFETY: the caller promises an aligned, readable address; all bits are a value.
    unsafe { (address as *const u64).read_volatile() }
}

/// The key of a record: the call site, and the stack words that distinguished its stacks.
///
/// # Safety
///
/// - `sp` lies in `thread.low..thread.high`.
#[inline(always)]
unsafe fn record_key(thread: &ThreadState, site_key: u64, sp: u64) -> u64 {
    // A caller that breaks the ABI may have any stack pointer; the whole walk handles it.
    let sp = sp & !7;
    let part = |discriminator: Discriminator| {
        let address = sp.wrapping_add(discriminator.bytes_above());
        if address >= thread.high {
            return 0;
        }
        // SAFETY: low <= address < high, and all three are multiples of 8. `low` begins a page, so
        // rounding `sp` down stays above it.
        discriminator.key_part(arch::strip(unsafe { load(address) }))
    };
    // Branches, because they are predictable, and cost less than the loads: most call sites keep
    // their discriminators.
    let [newer, older] = thread.discriminators(site_key);
    if newer.is_none() {
        return site_key;
    }
    let mut key = site_key ^ part(newer);
    if !older.is_none() {
        key ^= part(older).rotate_left(32);
    }
    key.wrapping_mul(MIX)
}

/// The hash of a call site.
#[inline(always)]
fn site_key(pc: u64, sp: u64) -> u64 {
    (pc ^ sp.rotate_left(29)).wrapping_mul(MIX)
}

/// The slot of the frame at `sp`: on x86-64 that of the return address into it.
#[inline(always)]
fn slot(thread: &ThreadState, sp: u64) -> u32 {
    sp.wrapping_sub(8).wrapping_sub(thread.slot_base) as u32
}

/// The stack pointer of the frame at this slot.
#[inline(always)]
fn frame_sp(thread: &ThreadState, slot: u32) -> u64 {
    thread.slot_base.wrapping_add(slot.into()).wrapping_add(8)
}

/// The hash of an address in the pc cache. An odd factor can be undone, so the highest bits, which
/// select the set, and the others, which are the tag, determine the address together.
#[inline(always)]
fn pc_hash(pc: u64) -> u64 {
    (pc >> arch::PC_ZERO_BITS).wrapping_mul(MIX << (u64::BITS - PC_BITS))
}

/// The tag of an address in its set, above the bits of a number.
#[inline(always)]
fn pc_tag(hash: u64) -> u64 {
    hash << (PC_BITS - PC_TAG_BITS)
}

const _: () = assert!(MIX & 1 == 1);
