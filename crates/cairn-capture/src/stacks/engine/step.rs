//! Stepping: finds the frames that no record covers, one by one, until a frame is in a shadow.
//!
//! Where no table covers the code, as in the output of a JIT compiler, a frame is stepped by its
//! frame pointer or ends the stack, as in the whole walk. The mark for such an end is the outermost
//! frame for the tree, the records and the shadows.

use super::follow::FOLLOWS;
use super::{
    NeedsWholeWalk, extra_differs, height_difference, load, match_record, pc_hash, pc_tag, shadow_difference,
    slot,
};
use crate::CallSite;
use crate::stacks::arch::{self, Rule};
use crate::stacks::counters::{self, Counter};
use crate::stacks::modules::KnownModules;
use crate::stacks::own_memory;
use crate::stacks::pc_kind::PcKind;
use crate::stacks::pcs::NUMBER_BITS;
use crate::stacks::process::Process;
use crate::stacks::stack_memory::StackMemory;
use crate::stacks::thread::ThreadState;
use crate::stacks::thread::record::Record;
use crate::stacks::thread::shadow::{PendingFrame, SHADOW_PADDING, SHADOWS};

/// A capture that steps over frames.
pub(crate) struct SteppedCapture<'a> {
    pub(crate) process: &'a Process,
    pub(crate) thread: &'a mut ThreadState,
    /// The readable part of the stack that is stepped over.
    pub(crate) memory: StackMemory,
    pub(super) innermost: CallSite,
    /// The outermost frame found, whose caller comes next.
    pub(crate) frame: CallSite,
    /// The number of frames stepped over; they are in the thread's `pending`.
    pub(crate) pending_count: usize,
    /// The shadow to meet, and the height in it that is compared next, from the innermost frame
    /// outwards.
    pub(super) number: usize,
    cursor: u32,
    /// The lowest slot of the shadow's frames at the cursor and outside of it.
    cursor_slot: u32,
    /// The node of the record for this call site; 0 if there is none.
    pub(super) expected_node: u32,
    pub(crate) code_steps: CodeSteps,
}

/// The treatment of steps that depend on the bytes of the code. Nothing can be learned of stacks
/// with such a step: a record compares stack words, and a JIT compiler may put other code there.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CodeSteps {
    /// Such a step ends the capture; none was met yet.
    Refused,
    /// Such a step has ended the capture.
    Met,
    /// Such steps are taken. The bytes must be compared before the stack is used.
    Taken,
}

/// A frame whose node is known, by its height in the shadow. Height 0 is outside of the outermost
/// frame.
#[derive(Clone, Copy)]
pub(super) struct KnownFrame {
    pub(super) node: u32,
    pub(super) height: u32,
}

/// The second part of [`capture`](super::capture), for stacks without a matching record: steps,
/// meets a shadow, learns.
///
/// # Safety
///
/// - The frame (pc, sp, fp) is live, and lies on the thread's own stack: sp is in
///   `thread.low..thread.high`.
#[inline(never)]
pub(super) unsafe fn step_and_learn(
    process: &Process,
    thread: &mut ThreadState,
    key: u64,
    pc: u64,
    sp: u64,
    fp: u64,
) -> Result<u32, NeedsWholeWalk> {
    let site = CallSite { pc, sp, fp };
    if !sp.is_multiple_of(8) {
        return Err(NeedsWholeWalk);
    }
    let record = *thread.record(key);
    let is_same_site = record.is_for(pc, slot(thread, sp));
    if is_same_site && rebind_record(thread, key, &record) {
        // SAFETY: the frame is live and on the thread's own stack, as the caller promises.
        if let Some(node) = unsafe { match_record(thread, key, site) } {
            counters::add(Counter::HeldAfterBinding, 1);
            thread.note_held();
            return Ok(node);
        }
    }
    let number = if is_same_site { record.shadow() } else { thread.current as usize % SHADOWS };
    let mut capture = SteppedCapture {
        process,
        memory: thread.own_stack(),
        innermost: site,
        frame: site,
        pending_count: 0,
        number,
        cursor: thread.sizes[number].end.saturating_sub(1),
        cursor_slot: 0,
        expected_node: if is_same_site { record.node() } else { 0 },
        code_steps: CodeSteps::Refused,
        thread,
    };
    // SAFETY: the frame is live, and `memory` is the readable part of its stack.
    match unsafe { capture.step_to_known() } {
        Ok(known) => {
            counters::add_walk(capture.pending_count);
            let node = capture.intern_and_learn(known)?;
            note_missed(process, capture.thread);
            Ok(node)
        }
        Err(NeedsWholeWalk) if capture.code_steps == CodeSteps::Met => {
            // SAFETY: as for `step_to_known`.
            unsafe { capture.step_and_intern() }?.ok_or(NeedsWholeWalk)
        }
        Err(NeedsWholeWalk) => Err(NeedsWholeWalk),
    }
}

/// Notes a capture that no record answered. After enough of them the next ones follow the current
/// shadow.
#[inline]
fn note_missed(process: &Process, thread: &mut ThreadState) {
    if thread.note_missed(process.follow_after()) {
        thread.follows_left = FOLLOWS;
        // That shadow changes from now on, and is no longer equal to others.
        thread.common.cut(thread.current as usize % SHADOWS, 0);
    }
}

/// Binds a record whose shadow was replaced to another shadow that has its join. False when there
/// is none, or when the record's own shadow has it.
fn rebind_record(thread: &mut ThreadState, key: u64, record: &Record) -> bool {
    let (height, wanted) = (record.join_height(), record.join_place());
    let has_join = |number: &usize| {
        height < thread.sizes[*number].end && thread.shadow_at(*number, height as usize).place() == wanted
    };
    match (0..SHADOWS).find(has_join) {
        Some(number) if !has_join(&record.shadow()) => {
            thread.record_mut(key).set_shadow(number);
            true
        }
        _ => false,
    }
}

/// Captures a stack that is not the thread's own: a coroutine's, or a signal handler's.
///
/// The frames are stepped by packed rules, and nothing is learned: such memory may go away at any
/// time. For the same reason the kernel is queried each time how far the memory is readable.
///
/// # Safety
///
/// - `site` is a live frame of this thread.
/// - Nothing writes the memory from its sp up to the top of that stack before this function
///   returns.
#[cold]
#[inline(never)]
pub(super) unsafe fn capture_elsewhere(
    process: &Process,
    thread: &mut ThreadState,
    site: CallSite,
) -> Result<u32, NeedsWholeWalk> {
    /// Pages probed at first; 4, because most coroutines have few frames and each probed page costs
    /// time.
    const FIRST_PAGES: usize = 4;
    if !site.sp.is_multiple_of(8) {
        return Err(NeedsWholeWalk);
    }
    let mut capture = SteppedCapture {
        process,
        memory: StackMemory::UNKNOWN,
        innermost: site,
        frame: site,
        pending_count: 0,
        number: 0,
        cursor: 0,
        cursor_slot: 0,
        expected_node: 0,
        code_steps: CodeSteps::Taken,
        thread,
    };
    for pages in [FIRST_PAGES, own_memory::PROBE_PAGES] {
        capture.memory = StackMemory::elsewhere_in(site.sp, pages);
        // SAFETY: the frame is live, as the caller promises, and `memory`, from its sp up, was
        // readable a moment ago.
        if let Some(node) = unsafe { capture.step_and_intern()? } {
            return Ok(node);
        }
    }
    Err(NeedsWholeWalk)
}

/// Steps by a plain rule. Returns `None` for other rules, and where the caller's frame would not
/// lie above on this stack.
///
/// # Safety
///
/// - `memory` is readable, and sp is a multiple of 8 at or above `memory.low`.
#[inline(always)]
pub(crate) unsafe fn plain_step(memory: StackMemory, rule: Rule, sp: u64, fp: u64) -> Option<CallSite> {
    if !rule.is_plain() {
        return None;
    }
    let base = if rule.is_from_fp() { fp } else { sp };
    let cfa = base.wrapping_add(rule.cfa_offset());
    // The return address lies between sp and the top, at a whole number of words from sp, as sp and
    // the top do. One comparison covers all of this: the rotation makes a distance in parts of
    // words huge.
    let lowest = sp.wrapping_add(8);
    if cfa.wrapping_sub(lowest).rotate_right(3) > memory.high.wrapping_sub(lowest) >> 3 {
        return None;
    }
    let return_address_below = arch::return_address_below(rule);
    if !arch::reads_within(rule, cfa - sp) {
        return None;
    }
    // SAFETY: low <= sp <= cfa - return_address_below < high, a multiple of 8, by the comparisons
    // above.
    let pc = arch::strip(unsafe { load(cfa - return_address_below) });
    let below = rule.slot_below_cfa();
    if below == 0 {
        return Some(CallSite { pc, sp: cfa, fp });
    }
    if below > cfa - memory.low {
        return None;
    }
    // SAFETY: low <= cfa - below < high, since `below` is a multiple of 8 and at least 8.
    let fp = unsafe { load(cfa - below) };
    Some(CallSite { pc, sp: cfa, fp })
}

impl SteppedCapture<'_> {
    /// Steps outwards until a frame is in the shadow, and all words outside of it are unchanged.
    ///
    /// # Safety
    ///
    /// - `self.frame` is a live frame on the thread's own stack, and `self.memory` is the readable
    ///   part of that stack.
    #[inline(always)]
    unsafe fn step_to_known(&mut self) -> Result<KnownFrame, NeedsWholeWalk> {
        loop {
            if let Some(height) = self.meet_shadow() {
                // SAFETY: the shadow's frame at `height` is the current frame, which lies at or
                // above the live innermost one.
                if unsafe { shadow_difference(self.thread, self.number, height) } == 0 {
                    let node = self.thread.shadow_at(self.number, height as usize).node();
                    return Ok(KnownFrame { node, height });
                }
                // A word outside has changed; no frame inside of it can be known.
                // SAFETY: as for `shadow_difference`.
                let changed = unsafe { innermost_change(self.thread, self.number, height) };
                self.cursor = changed.saturating_sub(1);
            }
            let (pc_number, rule) = self.pc_number(self.frame.pc)?;
            self.add_pending(pc_number, rule)?;
            // SAFETY: `self.memory` is readable, and `self.frame.sp` lies in it: at first by this
            // function's contract, later because `advance` checks it.
            if unsafe { self.advance(rule)? }.is_none() {
                return Ok(KnownFrame { node: 0, height: 0 });
            }
        }
    }

    /// The height of the current frame in the shadow, if it is there. Each height is compared once
    /// in a capture.
    #[inline(always)]
    fn meet_shadow(&mut self) -> Option<u32> {
        let slot = slot(self.thread, self.frame.sp);
        if slot < self.cursor_slot { None } else { self.meet_shadow_at(slot) }
    }

    #[inline(always)]
    fn meet_shadow_at(&mut self, slot: u32) -> Option<u32> {
        while self.cursor > 0 {
            // SAFETY: the cursor starts below the end of the shadow and only decreases;
            // `ShadowSize::end` is at most the room less the padding.
            let shadow =
                *unsafe { self.thread.shadow_unchecked(self.number, self.cursor as usize + SHADOW_PADDING) };
            counters::add(Counter::MeetComparisons, 1);
            self.cursor_slot = shadow.slot;
            if shadow.slot > slot {
                return None;
            }
            let height = self.cursor;
            self.cursor -= 1;
            if shadow.slot == slot {
                let is_same = shadow.pc() == self.frame.pc
                    && (!shadow.needs_fp()
                        || self.thread.shadow_fp_at(self.number, height as usize) == self.frame.fp);
                return (is_same && !self.is_end_mark(height)).then_some(height);
            }
        }
        self.cursor_slot = u32::MAX;
        None
    }

    /// Returns true when the shadow has, at this height, no frame but the mark for its end. The
    /// mark repeats the slot of the outermost frame.
    #[inline(always)]
    fn is_end_mark(&self, height: u32) -> bool {
        height == 1
            && self.thread.sizes[self.number].end > 2
            && self.thread.shadow_at(self.number, 1).slot == self.thread.shadow_at(self.number, 2).slot
    }

    /// Moves to the caller of the current frame; `None` when it has none.
    ///
    /// # Safety
    ///
    /// - `self.memory` is readable, and `self.frame.sp` is a multiple of 8 at or above
    ///   `self.memory.low`.
    #[inline(always)]
    unsafe fn advance(&mut self, rule: Rule) -> Result<Option<()>, NeedsWholeWalk> {
        let CallSite { sp, fp, .. } = self.frame;
        // SAFETY: the caller promises that `self.memory` is readable and that sp lies in it.
        if let Some(caller) = unsafe { plain_step(self.memory, rule, sp, fp) } {
            self.frame = caller;
            return Ok(Some(()));
        }
        // SAFETY: the caller promises the same.
        unsafe { self.special_step(rule) }
    }

    /// Steps to the end of the stack and returns its node, without learning anything. `None` where
    /// the readable memory ends before.
    ///
    /// # Safety
    ///
    /// - `self.innermost` is a live frame whose sp is `self.memory.low` or above, and `self.memory`
    ///   is readable.
    #[cold]
    #[inline(never)]
    unsafe fn step_and_intern(&mut self) -> Result<Option<u32>, NeedsWholeWalk> {
        counters::add(Counter::SteppedOnly, 1);
        self.code_steps = CodeSteps::Taken;
        // SAFETY: the caller promises the same.
        if !unsafe { self.step_to_end()? } {
            return Ok(None);
        }
        if !self.codes_are_unchanged() {
            return Err(NeedsWholeWalk);
        }
        let thread = &*self.thread;
        let numbers = (0..self.pending_count).map(|index| thread.pending(index).pc_number());
        self.process.intern(numbers.rev()).map(Some).map_err(|_| NeedsWholeWalk)
    }

    /// Steps to the end of the stack; false where its readable memory ends before. A null return
    /// address, which may mean several things, is left to the whole walk.
    ///
    /// # Safety
    ///
    /// - `self.innermost` is a live frame whose sp is `self.memory.low` or above, and `self.memory`
    ///   is readable.
    unsafe fn step_to_end(&mut self) -> Result<bool, NeedsWholeWalk> {
        (self.frame, self.pending_count) = (self.innermost, 0);
        loop {
            let (pc_number, rule) = self.pc_number(self.frame.pc)?;
            self.add_pending(pc_number, rule)?;
            // SAFETY: `self.memory` is readable, and sp lies in it: at first by this function's
            // contract, later because `advance` checks it.
            match unsafe { self.advance(rule) } {
                Ok(Some(())) if self.frame.pc != 0 => {}
                Ok(None) => return Ok(true),
                Err(NeedsWholeWalk) if rule.is_plain() => return Ok(false),
                _ => return Err(NeedsWholeWalk),
            }
        }
    }

    #[inline(always)]
    pub(crate) fn add_pending(&mut self, pc_number: u32, rule: Rule) -> Result<(), NeedsWholeWalk> {
        let slot = slot(self.thread, self.frame.sp);
        if self.pending_count >= self.thread.room() {
            self.thread.make_room().ok_or(NeedsWholeWalk)?;
        }
        // SAFETY: pending_count < room: compared above, and `make_room` enlarges the room by more
        // than one frame.
        *unsafe { self.thread.pending_unchecked_mut(self.pending_count) } =
            PendingFrame::new(pc_number, slot, self.frame.fp, rule.depends_on_fp());
        self.pending_count += 1;
        Ok(())
    }

    /// The number of a return address, and its rule.
    #[inline(always)]
    fn pc_number(&mut self, pc: u64) -> Result<(u32, Rule), NeedsWholeWalk> {
        pc_number(self.process, self.thread, pc)
    }
}

/// The number of a return address, and its rule.
#[inline(always)]
pub(super) fn pc_number(
    process: &Process,
    thread: &mut ThreadState,
    pc: u64,
) -> Result<(u32, Rule), NeedsWholeWalk> {
    if !arch::is_code_address(pc) {
        return Err(NeedsWholeWalk);
    }
    let hash = pc_hash(pc);
    let tag = pc_tag(hash);
    let set = thread.pc_set(hash);
    for (way, rule) in set.ways.iter().zip(set.rules) {
        // Equal tags leave the number, which is not 0. An empty way leaves 0 or more bits.
        let number = way ^ tag;
        if number.wrapping_sub(1) < (1 << NUMBER_BITS) - 1 {
            return Ok((number as u32, Rule::from_bits(rule)));
        }
    }
    add_to_cache(process, thread, pc)
}

/// Numbers a return address that this thread's cache does not contain, and adds it there.
#[cold]
#[inline(never)]
fn add_to_cache(process: &Process, thread: &mut ThreadState, pc: u64) -> Result<(u32, Rule), NeedsWholeWalk> {
    let (number, rule) = number_of_uncached(process, &mut thread.modules, pc)?;
    let hash = pc_hash(pc);
    let set = thread.pc_set(hash);
    let is_full = set.ways[1] != 0;
    set.ways = [pc_tag(hash) | u64::from(number), set.ways[0]];
    set.rules = [rule.bits(), set.rules[0]];
    if is_full {
        thread.count_replaced();
    }
    Ok((number, rule))
}

/// Returns the greatest height, up to `height`, whose word has changed. [`shadow_difference`] was
/// not zero before.
///
/// Without it a stack that has moved would be compared again at every frame, at quadratic cost.
///
/// # Safety
///
/// - A live frame of this thread's own stack lies at or below the shadow's frame at `height`.
#[cold]
unsafe fn innermost_change(thread: &ThreadState, number: usize, height: u32) -> u32 {
    // SAFETY: the words of frames at or outside of `height` lie above a live frame, on this
    // thread's own stack.
    let is_changed = |height: &u32| unsafe { height_difference(thread, number, *height as usize) } != 0;
    let changed_return_address = (1..=height).rev().find(is_changed);
    let changed_extra = (0..thread.sizes[number].extra_count as usize)
        .map(|index| thread.extra(number, index))
        // SAFETY: as above.
        .filter(|check| check.height <= height && unsafe { extra_differs(thread, check) })
        .map(|check| check.height)
        .max();
    changed_return_address.max(changed_extra).unwrap_or(height)
}

/// The number and the rule of a return address that this thread's cache does not contain.
fn number_of_uncached(
    process: &Process,
    modules: &mut KnownModules,
    pc: u64,
) -> Result<(u32, Rule), NeedsWholeWalk> {
    counters::add(Counter::UncachedAddresses, 1);
    let pcs = &process.pcs;
    let searched = pcs.tables();
    if let Some(number) = pcs.number(pc, PcKind::ReturnAddress) {
        return Ok((number, pcs.entries().get(number as usize).ok_or(NeedsWholeWalk)?.rule()));
    }
    counters::add(Counter::NewAddresses, 1);
    let (rule, identity) = modules.rule_and_identity(pc, &process.module_state);
    let number = pcs.add(pc, PcKind::ReturnAddress, rule, identity, searched);
    Ok((number.ok_or(NeedsWholeWalk)?, rule))
}
