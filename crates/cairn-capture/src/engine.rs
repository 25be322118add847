//! The hot path: this thread's stack as a number, by verification instead of walking.
//!
//! One step of a stack walk is a function of (pc, sp, fp) and of the stack words that it reads. So when the starting
//! state equals one that was seen before, and every word that the steps from there read still holds its value, then
//! the whole tail is the same, by induction: exact, not a guess. Checking words is much cheaper than walking, because
//! the loads do not wait for each other.
//!
//! ```text
//!   innermost frame (pc, sp)
//!        |   its record: up to six frames, as a list of words to compare
//!        v
//!   a frame of a shadow (a stack that was there before), at the same place
//!        |   the shadow: all return addresses outside of it, in one array, to compare in one loop
//!        v
//!   outermost frame: the record's node is the answer
//! ```
//!
//! When no record holds, the frames are stepped one by one, each by the packed rule of its pc, until one of them is in a
//! shadow. They get their nodes from the tree, a record is made, and when there were many of them, a shadow too.
//!
//! A record is found by (pc, sp) and two more stack words: those in which stacks of the same place were seen to differ
//! ([`record_key`]). Without them a quarter of all captures in an interpreter find the wrong record, with them one in two hundred.
//!
//! Where no table covers the code, as in what a JIT compiler writes, a frame is stepped by its frame pointer or ends the
//! stack, as in the whole walk. The mark that says so is the outermost frame to the tree, the records and the shadows.
//!
//! A stack that is not the thread's own is stepped, too, and nothing of it is kept ([`capture_elsewhere`]). Everything unusual (signal
//! frames, rows that do not fit a packed rule) answers [`Unusual`], and the whole walk is done by [`crate::walk`].

use core::ops::Range;
use core::sync::atomic::Ordering;

use cairn_format::AbsoluteAddress;
use cairn_unwind::Modules;

use crate::arch::{Rule, RuleKind};
use crate::index::MIX;
use crate::modules::{KnownModules, LoadedModules};
use crate::own_memory;
use crate::pcs::{NUMBER_BITS, PcEntry, PcKind};
use crate::process::{PROCESS, is_unloading};
use crate::stack_bounds;
use crate::thread::{
    EXTRA_WEAVE, ExtraCheck, FP_IN_REGISTER, HANGS_ON_FP, HANGS_ON_FPS, NEEDS_FP, PC_BITS, PC_TAG_BITS,
    PendingFrame, RECORD_CHECKS, Record, SHADOW_BLOCK, SHADOW_NUMBER, SHADOW_PADDING, SHADOWS, ShadowFrame,
    ShadowSize, Telling, ThreadState, Turn, WEAVE, place,
};
use crate::walk::OwnMemory;

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

/// A shadow need not be the last stack, only one that was: a new one is made when so many frames had to be stepped one by
/// one, and not for the few that change with every call and that a record can hold.
const FRAMES_OUTSIDE_SHADOW: usize = RECORD_CHECKS + 1;

/// The node of the stack that starts at `frame`.
///
/// # Safety
///
/// `frame` is a live frame of this thread: memory from its sp up to the top of the stack is not written meanwhile.
#[inline(always)]
pub(crate) unsafe fn capture(thread: &mut ThreadState, frame: Frame) -> Result<u32, Unusual> {
    // All else waits for it.
    let place_key = place_key(frame.pc, frame.sp);
    let module_state = PROCESS.module_state.load(Ordering::Acquire);
    if thread.module_state != module_state {
        if is_unloading(module_state) {
            return Err(Unusual);
        }
        thread.forget_modules(module_state);
    }
    if frame.sp.wrapping_sub(thread.low) >= thread.high.wrapping_sub(thread.low)
        && stack_bounds::enter(thread, frame.sp).is_none()
    {
        // SAFETY: by contract.
        return unsafe { capture_elsewhere(thread, frame) };
    }
    // SAFETY: by contract, and the frame lies in the thread's readable range.
    let key = unsafe { record_key(thread, place_key, frame.sp) };
    // SAFETY: as above.
    if let Some(node) = unsafe { as_recorded(thread, key, frame) } {
        return Ok(node);
    }
    // SAFETY: as above.
    unsafe { find_out(thread, key, frame.pc, frame.sp, frame.fp) }
}

/// The usual way: nothing but a list of words to compare, and one branch at its end.
#[inline(always)]
unsafe fn as_recorded(thread: &ThreadState, key: u64, frame: Frame) -> Option<u32> {
    let record = thread.record(key);
    let height = u32::from(record.pc_and_height as u16);
    let number = record.shadow();
    if height >= thread.sizes[number].end {
        return None;
    }
    // SAFETY: the end is at most the room without the padding.
    let join = unsafe { thread.shadow_unchecked(number, height as usize + SHADOW_PADDING) };
    let elsewhere = (record.pc_and_height >> 16 ^ frame.pc)
        | u64::from(record.leaf as u32 ^ slot(thread, frame.sp))
        | (record.join_place() ^ join.place());
    if elsewhere != 0 {
        return None;
    }
    let return_address = frame.sp.wrapping_sub(8);
    // SAFETY: the record was made for a frame at this very place; its words and the shadow's lie above, on this stack.
    let mut difference = unsafe { shadow_difference(thread, number, height) };
    let word = |words_above: u64| {
        // SAFETY: as above.
        unsafe { load(return_address.wrapping_add(words_above * 8)) }
    };
    let [checks @ .., last] = record.checks;
    for check in checks {
        difference |= word(check & 0xffff) ^ check >> 16;
    }
    if record.join & HANGS_ON_FPS != 0 {
        let (place, in_register) = (last & 0xffff, last >> 16);
        if join.node & NEEDS_FP != 0 {
            let fp = if place == FP_IN_REGISTER { frame.fp } else { word(place) };
            difference |= fp ^ thread.shadow_fp_at(number, height as usize);
        }
        if in_register != 0 {
            difference |= frame.fp ^ in_register;
        }
    } else {
        difference |= word(last & 0xffff) ^ last >> 16;
    }
    (difference == 0).then_some(record.node())
}

/// Zero when every word holds what it held that the steps read which lead to the shadow's frame at `height` and outwards.
#[inline(always)]
unsafe fn shadow_difference(thread: &ThreadState, number: usize, height: u32) -> u64 {
    let end = height as usize + SHADOW_BLOCK;
    let mut difference = 0;
    if end <= WEAVE {
        // All in one turn of the weave, as the stacks of most programs are: whole blocks, to have few branches.
        let frames = thread.first_of_shadow(number);
        let mut start = end;
        while start > SHADOW_BLOCK {
            start -= SHADOW_BLOCK;
            // SAFETY: the height is below the shadow's end; the padding makes the last block whole.
            for frame in unsafe { frames.get_unchecked(start..start + SHADOW_BLOCK) } {
                // SAFETY: by this function's contract.
                difference |= unsafe { frame_difference(thread, frame) };
            }
        }
    } else {
        // SAFETY: by this function's contract.
        difference = unsafe { deep_difference(thread, number, height) };
    }
    if thread.sizes[number].extra_count > 0 {
        // SAFETY: as above.
        difference |= unsafe { extra_difference(thread, number, height) };
    }
    difference
}

#[inline(always)]
unsafe fn frame_difference(thread: &ThreadState, frame: &ShadowFrame) -> u64 {
    // SAFETY: the slot was read before on this stack, above the live frame it belongs to.
    unsafe { load(thread.slot_base.wrapping_add(frame.slot.into())) ^ frame.pc }
}

/// Of the return addresses of a stack that takes more than one turn of the weave.
#[inline(never)]
unsafe fn deep_difference(thread: &ThreadState, number: usize, height: u32) -> u64 {
    (1..=height).fold(0, |difference, height| {
        // SAFETY: as in `shadow_difference`.
        difference | unsafe { frame_difference(thread, thread.shadow_at(number, height as usize)) }
    })
}

/// Zero when the words beside the return addresses hold what they held.
#[inline(never)]
unsafe fn extra_difference(thread: &ThreadState, number: usize, height: u32) -> u64 {
    let base = thread.slot_base;
    let mut rest = thread.sizes[number].extra_count as usize;
    // Those further in than the frame are at the end, and mostly there are none.
    while rest > 0 && thread.extra(number, rest - 1).height > height {
        rest -= 1;
    }
    let mut difference = 0;
    for checks in thread.extras(number) {
        let count = rest.min(checks.len());
        for check in &checks[..count] {
            // SAFETY: the slot was read before on this stack, above the live frame it belongs to.
            difference |= unsafe { load(base.wrapping_add(check.slot.into())) } ^ check.value;
        }
        rest -= count;
        if rest == 0 {
            break;
        }
    }
    difference
}

/// After [`shadow_difference`] was not zero: the greatest height, up to `height`, whose word does not hold what it held.
/// Without it a stack that has moved would be compared again at every frame, which makes its cost quadratic.
#[cold]
unsafe fn innermost_difference(thread: &ThreadState, number: usize, height: u32) -> u32 {
    let base = thread.slot_base;
    let is_changed = |slot: u32, value: u64| {
        // SAFETY: as in `shadow_difference`.
        unsafe { load(base.wrapping_add(slot.into())) != value }
    };
    let changed_return_address = (1..=height).rev().find(|&height| {
        let frame = thread.shadow_at(number, height as usize);
        is_changed(frame.slot, frame.pc)
    });
    let changed_extra = (0..thread.sizes[number].extra_count as usize)
        .map(|index| thread.extra(number, index))
        .filter(|check| check.height <= height && is_changed(check.slot, check.value))
        .map(|check| check.height)
        .max();
    changed_return_address.max(changed_extra).unwrap_or(height)
}

/// What [`capture`] does when no record holds: steps, meets a shadow, learns.
#[inline(never)]
unsafe fn find_out(thread: &mut ThreadState, key: u64, pc: u64, sp: u64, fp: u64) -> Result<u32, Unusual> {
    let frame = Frame { pc, sp, fp };
    if !frame.sp.is_multiple_of(8) {
        return Err(Unusual);
    }
    let record = *thread.record(key);
    let is_guess = record.is_of(frame.pc, slot(thread, frame.sp));
    if is_guess && move_record(thread, key, &record) {
        // SAFETY: by this function's contract.
        if let Some(node) = unsafe { as_recorded(thread, key, frame) } {
            return Ok(node);
        }
    }
    let number = if is_guess { record.shadow() } else { thread.current as usize % SHADOWS };
    let size = thread.sizes[number];
    let mut capture = Capture {
        memory: OwnMemory::own(thread),
        innermost: frame,
        frame,
        pending_count: 0,
        number,
        // Outwards from the innermost frame of the shadow.
        cursor: size.end.saturating_sub(1),
        cursor_slot: 0,
        guess: if is_guess { record.node() } else { 0 },
        thread,
    };
    // SAFETY: by this function's contract.
    let known = unsafe { capture.find_known()? };
    capture.settle(known)
}

/// Binds a record whose shadow was replaced to another shadow that has the same frame. False when there is none, or when the
/// record's own one has it.
fn move_record(thread: &mut ThreadState, key: u64, record: &Record) -> bool {
    let height = record.pc_and_height as u16;
    let wanted = record.join_place();
    let has_it = |number: &usize| {
        u32::from(height) < thread.sizes[*number].end
            && thread.shadow_at(*number, height.into()).place() == wanted
    };
    match (0..SHADOWS).find(has_it) {
        Some(number) if !has_it(&record.shadow()) => {
            thread.record_mut(key).join = record.join & !SHADOW_NUMBER | number as u64;
            true
        }
        _ => false,
    }
}

/// The node of a stack that is not the thread's own: a coroutine's, or one that a signal handler has. Stepped by packed rules, and nothing
/// is learned: nobody says how long that memory stays, so the kernel is asked each time how far it reaches.
///
/// # Safety
///
/// As for [`capture`].
#[cold]
#[inline(never)]
unsafe fn capture_elsewhere(thread: &mut ThreadState, frame: Frame) -> Result<u32, Unusual> {
    /// Most coroutines have few frames, and asking for pages costs.
    const FIRST_PAGES: usize = 4;
    if !frame.sp.is_multiple_of(8) {
        return Err(Unusual);
    }
    let mut capture = Capture {
        memory: OwnMemory::own(thread),
        innermost: frame,
        frame,
        pending_count: 0,
        number: 0,
        cursor: 0,
        cursor_slot: 0,
        guess: 0,
        thread,
    };
    let mut pages = FIRST_PAGES;
    loop {
        capture.memory = OwnMemory::elsewhere(frame.sp, pages);
        // SAFETY: by contract; the memory was readable a moment ago, and its lower end is in use.
        if unsafe { capture.step_through()? } {
            let thread = &*capture.thread;
            let numbers = (0..capture.pending_count).rev().map(|index| thread.pending(index).pc_number());
            return PROCESS.tree.descend(0, numbers).map_err(|_| Unusual);
        }
        if pages == own_memory::PROBE_PAGES {
            return Err(Unusual);
        }
        pages = own_memory::PROBE_PAGES;
    }
}

/// Steps by a plain rule; `None` for other rules, and where the caller's frame would not lie above on this stack.
#[inline(always)]
unsafe fn plain_step(stack: OwnMemory, rule: Rule, sp: u64, fp: u64) -> Option<Frame> {
    if !rule.is_plain() {
        return None;
    }
    let base = if rule.is_from_fp() { fp } else { sp };
    let cfa = base.wrapping_add(rule.cfa_offset());
    // The return address lies between sp and the top, in whole words from it, as sp and the top do: one comparison for all,
    // because a distance in parts of words becomes huge when it is turned.
    let lowest = sp.wrapping_add(8);
    if cfa.wrapping_sub(lowest).rotate_right(3) > stack.high.wrapping_sub(lowest) >> 3 {
        return None;
    }
    // SAFETY: sp <= cfa - 8 < high, a multiple of 8.
    let pc = unsafe { load(cfa - 8) };
    let below = rule.slot_below_cfa();
    if below == 0 {
        return Some(Frame { pc, sp: cfa, fp });
    }
    if below > cfa - stack.low {
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
    frame_sp_above(thread.slot_base, slot)
}

fn frame_sp_above(slot_base: u64, slot: u32) -> u64 {
    slot_base.wrapping_add(slot.into()).wrapping_add(8)
}

/// A capture that steps.
struct Capture<'a> {
    thread: &'a mut ThreadState,
    /// What is known of the stack that is stepped through.
    memory: OwnMemory,
    innermost: Frame,
    /// The outermost frame found, whose caller is wanted.
    frame: Frame,
    /// So many frames were stepped over; they stand in the thread's `pending`.
    pending_count: usize,
    /// The shadow to meet, and the height in it that was compared last.
    number: usize,
    cursor: u32,
    /// No frame below this slot is in the shadow at the cursor or outside of it.
    cursor_slot: u32,
    /// The node that the record of this place has, 0 if there is none.
    guess: u32,
}

/// A frame whose node is known, by its height in the shadow; height 0 is outside of the outermost frame.
#[derive(Clone, Copy)]
struct Known {
    node: u32,
    height: u32,
}

impl Capture<'_> {
    /// Steps outwards until a frame is in the shadow, and all outside of it unchanged.
    #[inline(always)]
    unsafe fn find_known(&mut self) -> Result<Known, Unusual> {
        loop {
            if let Some(height) = self.meet_shadow() {
                // SAFETY: by this function's contract.
                if unsafe { shadow_difference(self.thread, self.number, height) } == 0 {
                    let node = self.thread.shadow_at(self.number, height as usize).node;
                    return Ok(Known { node: node & !NEEDS_FP, height });
                }
                // Something outside has changed; no frame on this side of it can be known.
                // SAFETY: by this function's contract.
                self.cursor =
                    unsafe { innermost_difference(self.thread, self.number, height) }.saturating_sub(1);
            }
            let (pc_number, rule) = self.pc_number(self.frame.pc)?;
            self.add_pending(pc_number, rule)?;
            // SAFETY: by this function's contract.
            if unsafe { self.advance(rule)? }.is_none() {
                return Ok(Known { node: 0, height: 0 });
            }
        }
    }

    /// The height of the current frame in the shadow, if it is there. Each height is looked at once in a capture.
    #[inline(always)]
    fn meet_shadow(&mut self) -> Option<u32> {
        let slot = slot(self.thread, self.frame.sp);
        if slot < self.cursor_slot { None } else { self.meet_shadow_at(slot) }
    }

    #[inline(always)]
    fn meet_shadow_at(&mut self, slot: u32) -> Option<u32> {
        while self.cursor > 0 {
            // SAFETY: the cursor is below the end of the shadow, for which there is room.
            let shadow =
                *unsafe { self.thread.shadow_unchecked(self.number, self.cursor as usize + SHADOW_PADDING) };
            self.cursor_slot = shadow.slot;
            if shadow.slot > slot {
                return None;
            }
            let height = self.cursor;
            self.cursor -= 1;
            if shadow.slot == slot {
                let is_same = shadow.pc == self.frame.pc
                    && (shadow.node & NEEDS_FP == 0
                        || self.thread.shadow_fp_at(self.number, height as usize) == self.frame.fp);
                return (is_same && !self.is_mark(height)).then_some(height);
            }
        }
        self.cursor_slot = u32::MAX;
        None
    }

    /// True when no frame stands there in the shadow, but the mark outside of one, whose place it repeats.
    #[inline(always)]
    fn is_mark(&self, height: u32) -> bool {
        height == 1
            && self.thread.sizes[self.number].end > 2
            && self.thread.shadow_at(self.number, 1).slot == self.thread.shadow_at(self.number, 2).slot
    }

    /// Moves to the caller of the current frame; `None` when it has none.
    #[inline(always)]
    unsafe fn advance(&mut self, rule: Rule) -> Result<Option<()>, Unusual> {
        let Frame { sp, fp, .. } = self.frame;
        // SAFETY: by this function's contract.
        if let Some(caller) = unsafe { plain_step(self.memory, rule, sp, fp) } {
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
            // SAFETY: by this function's contract.
            RuleKind::NoTables => unsafe { self.step_without_tables() },
            _ => Err(Unusual),
        }
    }

    /// Steps to the end of the stack; false where its memory ends before. A null return address, which may mean several things, is left to
    /// the whole walk.
    unsafe fn step_through(&mut self) -> Result<bool, Unusual> {
        (self.frame, self.pending_count) = (self.innermost, 0);
        loop {
            let (pc_number, rule) = self.pc_number(self.frame.pc)?;
            self.add_pending(pc_number, rule)?;
            // SAFETY: by this function's contract.
            match unsafe { self.advance(rule) } {
                Ok(Some(())) if self.frame.pc != 0 => {}
                Ok(None) => return Ok(true),
                Err(Unusual) if rule.is_plain() => return Ok(false),
                _ => return Err(Unusual),
            }
        }
    }

    /// What the whole walk does where no table covers the code: steps by the frame pointer, if it leads to code of a module.
    /// If not, the stack ends here with a mark, which becomes the outermost of the pending frames; its place repeats that of
    /// the last frame, and what stands as its frame pointer is the return address that was no code.
    #[cold]
    #[inline(never)]
    unsafe fn step_without_tables(&mut self) -> Result<Option<()>, Unusual> {
        let Frame { pc, sp, fp } = self.frame;
        if sp >= self.memory.high {
            return Err(Unusual);
        }
        let mut return_address = 0;
        if may_be_frame_record(sp, fp) {
            // SAFETY: checked to lie in the readable part of the stack.
            let found = unsafe { self.load_checked(fp.wrapping_add(8)) };
            return_address = match found {
                Ok(word) => word,
                // One outside of this stack is read through the kernel, and could not be compared the next time.
                Err(Unusual) if self.memory.is_own() => return Err(Unusual),
                // A coroutine begins with whatever frame pointer its maker had.
                Err(Unusual) => 0,
            };
            if return_address != 0 && LoadedModules.is_executable(AbsoluteAddress::new(return_address)) {
                // SAFETY: as above.
                let caller_fp = unsafe { self.load_checked(fp)? };
                self.frame = Frame { pc: return_address, sp: fp.wrapping_add(16), fp: caller_fp };
                return Ok(Some(()));
            }
        }
        let mark = PROCESS.pcs.number(pc, PcKind::NoUnwindInfo);
        let add = || PROCESS.pcs.add(pc, PcKind::NoUnwindInfo, Rule::NEEDS_FULL_EVALUATION);
        self.add_pending(mark.or_else(add).ok_or(Unusual)?, Rule::NEEDS_FULL_EVALUATION)?;
        self.thread.pending_mut(self.pending_count - 1).fp = return_address;
        Ok(None)
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

    unsafe fn load_checked(&self, address: u64) -> Result<u64, Unusual> {
        if address < self.memory.low
            || address > self.memory.high.wrapping_sub(8)
            || !address.is_multiple_of(8)
        {
            return Err(Unusual);
        }
        // SAFETY: inside the readable part of this thread's stack.
        Ok(unsafe { load(address) })
    }

    #[inline(always)]
    fn add_pending(&mut self, pc_number: u32, rule: Rule) -> Result<(), Unusual> {
        let slot = slot(self.thread, self.frame.sp);
        if self.pending_count >= self.thread.room() {
            self.thread.make_room().ok_or(Unusual)?;
        }
        let flag = u32::from(rule.hangs_on_fp()) << HANGS_ON_FP.ilog2();
        // SAFETY: there is room, as was just seen.
        *unsafe { self.thread.pending_unchecked_mut(self.pending_count) } =
            PendingFrame { fp: self.frame.fp, flagged_number: pc_number | flag, slot };
        self.pending_count += 1;
        Ok(())
    }

    /// The number of the address that a call returns to, and its rule.
    #[inline(always)]
    fn pc_number(&mut self, pc: u64) -> Result<(u32, Rule), Unusual> {
        let hash = pc_hash(pc);
        let tag = pc_tag(hash);
        let set = self.thread.pc_set(hash);
        for (way, rule) in set.ways.iter().zip(set.rules) {
            if (way ^ tag) >> NUMBER_BITS == 0 && *way != 0 {
                return Ok(((way & ((1 << NUMBER_BITS) - 1)) as u32, Rule::from_bits(rule)));
            }
        }
        let (number, rule) = number_of_new(&mut self.thread.modules, pc)?;
        let set = self.thread.pc_set(hash);
        let is_full = set.ways[1] != 0;
        set.ways = [tag | u64::from(number), set.ways[0]];
        set.rules = [rule.bits(), set.rules[0]];
        if is_full {
            self.thread.count_replaced();
        }
        Ok((number, rule))
    }

    /// Gives the pending frames their nodes, and learns this stack.
    fn settle(&mut self, known: Known) -> Result<u32, Unusual> {
        let thread = &*self.thread;
        let numbers = (0..self.pending_count).rev().map(|index| thread.pending(index).pc_number());
        let leaf = PROCESS.tree.descend(known.node, numbers).map_err(|_| Unusual)?;
        if self.guess != 0 && self.guess != leaf {
            self.tell_apart(known);
        }
        let shadow_height = known.height as usize;
        let leaf_height = shadow_height + self.pending_count;
        while leaf_height + SHADOW_PADDING >= self.thread.room() {
            if self.thread.make_room().is_none() {
                return Ok(leaf);
            }
        }
        // What is too much for a record gets a shadow, and a record that lies at the innermost frame of that.
        let is_recorded = shadow_height > 0
            && self.pending_count <= FRAMES_OUTSIDE_SHADOW
            && self.record(leaf, shadow_height, self.pending_count);
        if !is_recorded {
            self.make_shadow(leaf, shadow_height);
            self.record(leaf, leaf_height, 0);
        }
        self.thread.current = self.number as u32;
        Ok(leaf)
    }

    /// The record of this place was about another stack: from now on the innermost word in which the two differ is a part
    /// of what records of this place are found by.
    #[inline(never)]
    fn tell_apart(&mut self, known: Known) {
        /// Stacks of one place that differ only further out are rare, and looking for the place costs.
        const LOOK_AT: usize = 64;
        let (thread, number) = (&*self.thread, self.number);
        let words = PROCESS.tree.words();
        let outside = (1..=known.height as usize).rev().map(|height| thread.shadow_at(number, height));
        let outside = outside.map(|frame| (words.pc(frame.node & !NEEDS_FP), frame.slot));
        let pending = (0..self.pending_count).map(|index| thread.pending(index));
        let now = pending.map(|frame| (frame.pc_number(), frame.slot)).chain(outside);
        let mut other = self.guess;
        let innermost_slot = slot(self.thread, self.innermost.sp);
        let mut differing = None;
        for (pc_number, slot) in now.take(LOOK_AT) {
            if other == 0 || words.pc(other) != pc_number {
                differing = Some(slot);
                break;
            }
            other = words.parent(other);
        }
        let Some(slot) = differing else { return };
        // SAFETY: the return address into a frame of the live stack.
        let pc = unsafe { load(self.thread.slot_base.wrapping_add(slot.into())) };
        let sp = self.innermost.sp;
        // Counted from sp, which is one word above the innermost return address.
        let Some(telling) = Telling::new(slot.wrapping_sub(innermost_slot).wrapping_sub(8), pc) else {
            return;
        };
        let key = place_key(self.innermost.pc, sp);
        let known = self.thread.telling(key);
        if !known.iter().any(|known| known.bytes_above() == telling.bytes_above()) {
            self.thread.set_telling(key, [telling, known[0]]);
        }
    }

    /// Makes the record of this stack, whose innermost node is `leaf`: `count` pending frames inside of the shadow's frame
    /// at `join_height`. False when these are too much for a record.
    fn record(&mut self, leaf: u32, join_height: usize, count: usize) -> bool {
        let thread = &mut *self.thread;
        if join_height >= thread.sizes[self.number].end as usize {
            return true;
        }
        let join = *thread.shadow_at(self.number, join_height);
        let Frame { pc, sp, .. } = self.innermost;
        let innermost_slot = slot(thread, sp);
        let mut hangs_on_fp = false;
        let mut checks = [pc << 16; RECORD_CHECKS];
        for index in 0..count {
            let frame = thread.pending(index);
            hangs_on_fp |= frame.hangs_on_fp();
            let Ok(words_above) = u16::try_from(frame.slot.wrapping_sub(innermost_slot) / 8) else {
                return false;
            };
            // The innermost return address was compared by itself.
            if let Some(check) = index.checked_sub(1).and_then(|index| checks.get_mut(index)) {
                // SAFETY: the return address into a frame of the live stack.
                let pc = unsafe { load(thread.slot_base.wrapping_add(frame.slot.into())) };
                *check = pc << 16 | u64::from(words_above);
            }
        }
        if pc >> 48 != 0 || join_height + count > u16::MAX.into() {
            return true;
        }
        let hangs_on_fp = hangs_on_fp || join.node & NEEDS_FP != 0;
        if hangs_on_fp && self.check_fps(&mut checks, count.saturating_sub(1), &join, count).is_none() {
            return false;
        }
        let thread = &mut *self.thread;
        let flag = if hangs_on_fp { HANGS_ON_FPS } else { 0 };
        // SAFETY: the frame is the innermost of the live stack.
        let key = unsafe { record_key(thread, place_key(pc, sp), sp) };
        let old = thread.record(key);
        if old.leaf != 0 && !old.is_of(pc, innermost_slot) {
            thread.count_replaced();
        }
        *thread.record_mut(key) = Record {
            pc_and_height: pc << 16 | join_height as u64,
            leaf: place(innermost_slot, leaf),
            join: join.place() | flag | self.number as u64,
            checks,
        };
        true
    }

    /// Adds to the `used` checks of a record the frame pointers that `count` pending frames and the frame of the shadow outside of them
    /// hang on. `None` where that is too much for a record.
    #[inline(never)]
    fn check_fps(
        &self,
        checks: &mut [u64; RECORD_CHECKS],
        mut used: usize,
        join: &ShadowFrame,
        count: usize,
    ) -> Option<()> {
        #[derive(PartialEq)]
        enum Needed {
            Nothing,
            AtJoin,
            Value(u64),
        }
        const LAST: usize = RECORD_CHECKS - 1;

        let pcs = PROCESS.pcs.entries();
        let (mut place, mut outer_slot) = (FP_IN_REGISTER, join.slot);
        let mut needed = if join.node & NEEDS_FP != 0 { Needed::AtJoin } else { Needed::Nothing };
        for index in (0..count).rev() {
            let frame = self.thread.pending(index);
            let rule = pcs.get(frame.pc_number() as usize)?.rule();
            if !rule.is_plain() {
                return None;
            }
            if rule.slot_below_cfa() != 0 && needed != Needed::Nothing {
                let address = frame_sp(self.thread, outer_slot).wrapping_sub(rule.slot_below_cfa());
                let words_above = address.wrapping_sub(self.innermost.sp.wrapping_sub(8)) / 8;
                if words_above >= FP_IN_REGISTER {
                    return None;
                }
                match needed {
                    Needed::AtJoin => place = words_above,
                    Needed::Value(fp) if used < LAST && fp >> 48 == 0 => {
                        *checks.get_mut(used)? = fp << 16 | words_above;
                        used += 1;
                    }
                    _ => return None,
                }
                needed = Needed::Nothing;
            }
            if rule.is_from_fp() {
                if needed != Needed::Nothing {
                    return None;
                }
                needed = Needed::Value(frame.fp);
            }
            outer_slot = frame.slot;
        }
        let in_register = match needed {
            Needed::Value(fp) if fp == 0 || fp >> 48 != 0 => return None,
            Needed::Value(fp) => fp,
            _ => 0,
        };
        checks[LAST] = in_register << 16 | place;
        (used <= LAST).then_some(())
    }

    /// Makes a shadow of this stack: what the present one has up to `known_height`, and the pending frames, whose innermost
    /// node is `leaf`.
    fn make_shadow(&mut self, leaf: u32, known_height: usize) {
        let thread = &mut *self.thread;
        let words = PROCESS.tree.words();
        let count = self.pending_count;
        if thread.sizes[self.number].end as usize != known_height + 1 {
            // Frames inside of here would be lost; some other stack may still be like them.
            let next = (self.number + 1) % SHADOWS;
            copy_shadow(thread, self.number, next, known_height);
            self.number = next;
        }
        let number = self.number;
        thread.common.cut(number, known_height as u32);
        let mut node = leaf;
        let needs_fp = known_height > 0 && thread.shadow_at(number, known_height).node & NEEDS_FP != 0;
        let mut hangs_on_fp = needs_fp;
        for index in 0..count {
            let frame = thread.pending(index);
            hangs_on_fp |= frame.hangs_on_fp();
            // SAFETY: the return address into a frame of the live stack.
            let pc = unsafe { load(thread.slot_base.wrapping_add(frame.slot.into())) };
            let place = known_height + count - index + SHADOW_PADDING;
            // SAFETY: `settle` has made room for the innermost frame, and the others lie outside of it.
            *unsafe { thread.shadow_unchecked_mut(number, place) } =
                ShadowFrame { pc, slot: frame.slot, node };
            node = words.parent(node);
        }
        // What the caller says of the innermost frame counts, whatever the stack holds there.
        thread.shadow_at_mut(number, known_height + count).pc = self.innermost.pc;
        thread.sizes[number].end = (known_height + count + 1) as u32;
        if known_height == 0 {
            thread.sizes[number].extra_count = 0;
            let outermost = *thread.shadow_at(number, 1);
            thread.turns_mut()[0].shadow[number][1..=SHADOW_PADDING].fill(outermost);
        }
        if hangs_on_fp {
            self.note_fps(known_height, needs_fp);
        }
    }

    /// Completes the frames of the new shadow inside of `known_height` where frames hang on frame pointers.
    #[inline(never)]
    fn note_fps(&mut self, known_height: usize, mut needs_fp: bool) {
        let (thread, number, count) = (&mut *self.thread, self.number, self.pending_count);
        let pcs = PROCESS.pcs.entries();
        for index in (0..count).rev() {
            let height = known_height + count - index;
            let frame = thread.pending(index);
            // The frame pointer in the caller's frame.
            let outer_fp = match index + 1 < count {
                true => thread.pending(index + 1).fp,
                false if needs_fp => thread.shadow_fp_at(number, known_height),
                false => 0,
            };
            let rule = pcs.get(frame.pc_number() as usize).map_or(Rule::END_OF_STACK, PcEntry::rule);
            let outer = OuterFrame { needs_fp, fp: outer_fp };
            let Ok(needs) = note_extra_checks(thread, number, rule, height, frame, outer) else {
                // No room for the checks: this shadow must not be believed further in than here.
                thread.sizes[number].end = height as u32;
                return;
            };
            needs_fp = needs;
            if needs_fp {
                thread.shadow_at_mut(number, height).node |= NEEDS_FP;
                thread.set_shadow_fp(number, height, frame.fp);
            }
        }
    }
}

/// Copies a shadow's frames up to `height`, and what they hang on, as far as the other shadow does not have them.
fn copy_shadow(thread: &mut ThreadState, from: usize, to: usize, height: usize) {
    let common = thread.common.height(from, to).min(height as u32) as usize;
    // Of the outermost frame there are copies in front of it.
    let first = if common == 0 { 0 } else { common + 1 + SHADOW_PADDING };
    copy_woven(thread.turns_mut(), from, to, first..height + SHADOW_PADDING + 1);
    let count_up_to = |thread: &ThreadState, height: usize| {
        (0..thread.sizes[from].extra_count as usize)
            .rposition(|index| thread.extra(from, index).height as usize <= height)
            .map_or(0, |last| last + 1)
    };
    let extra_count = count_up_to(thread, height);
    for index in count_up_to(thread, common)..extra_count {
        thread.set_extra(to, index, thread.extra(from, index));
    }
    for index in common + 1..=height {
        if thread.shadow_at(to, index).node & NEEDS_FP != 0 {
            thread.set_shadow_fp(to, index, thread.shadow_fp_at(from, index));
        }
    }
    thread.sizes[to] = ShadowSize { end: height as u32 + 1, extra_count: extra_count as u32 };
    thread.common.copied(from, to, height as u32);
}

/// Copies entries of one shadow to another, turn by turn of the weave.
fn copy_woven(turns: &mut [Turn], from: usize, to: usize, indices: Range<usize>) {
    let Range { mut start, end } = indices;
    while start < end {
        let count = (end - start).min(WEAVE - start % WEAVE);
        let source = from * WEAVE + start % WEAVE;
        let frames = turns[start / WEAVE].shadow.as_flattened_mut();
        frames.copy_within(source..source + count, to * WEAVE + start % WEAVE);
        start += count;
    }
}

/// What a frame's step must keep for the frame outside of it.
#[derive(Clone, Copy)]
struct OuterFrame {
    needs_fp: bool,
    fp: u64,
}

/// Notes which words the step from the frame at `height` reads beside the return address, as far as the frames outside
/// depend on them. Answers whether this frame's own fp matters.
fn note_extra_checks(
    thread: &mut ThreadState,
    number: usize,
    rule: Rule,
    height: usize,
    frame: PendingFrame,
    outer: OuterFrame,
) -> Result<bool, Unusual> {
    let cfa = match height {
        0 | 1 => 0,
        _ => frame_sp(thread, thread.shadow_at(number, height - 1).slot),
    };
    let slot_base = thread.slot_base;
    let mut note = |address: u64, value: u64| {
        let slot = address.wrapping_sub(slot_base) as u32;
        let check = ExtraCheck { value, slot, height: height as u32 };
        let index = thread.sizes[number].extra_count as usize;
        if index >= thread.room() / WEAVE * EXTRA_WEAVE {
            thread.make_room().ok_or(Unusual)?;
        }
        thread.set_extra(number, index, check);
        thread.sizes[number].extra_count += 1;
        Ok(())
    };
    match rule.kind() {
        RuleKind::FromSp { saved_fp_below: None, .. } => Ok(outer.needs_fp),
        RuleKind::FromSp { saved_fp_below: Some(below), .. } => {
            if outer.needs_fp {
                note(cfa.wrapping_sub(below), outer.fp)?;
            }
            Ok(false)
        }
        RuleKind::FromFp { saved_fp_below, .. } => {
            if let (true, Some(below)) = (outer.needs_fp, saved_fp_below) {
                note(cfa.wrapping_sub(below), outer.fp)?;
            }
            Ok(true)
        }
        RuleKind::Realigned { slot_below_fp, fp_is_saved } => {
            note(frame.fp.wrapping_sub(slot_below_fp), cfa)?;
            if outer.needs_fp && fp_is_saved {
                note(frame.fp, outer.fp)?;
            }
            Ok(true)
        }
        RuleKind::NoTables => {
            let sp = frame_sp_above(slot_base, frame.slot);
            if cfa != sp {
                if outer.needs_fp {
                    note(frame.fp, outer.fp)?;
                }
            } else if may_be_frame_record(sp, frame.fp) {
                // The caller is the mark that the stack ends here.
                note(frame.fp.wrapping_add(8), outer.fp)?;
            }
            Ok(true)
        }
        _ => Ok(false),
    }
}

/// True when a frame record at `fp` could be of the frame at `sp` or of one further out.
fn may_be_frame_record(sp: u64, fp: u64) -> bool {
    fp >= sp && fp.is_multiple_of(8) && fp.checked_add(16).is_some()
}

/// Numbers an address that this thread's cache does not have.
#[cold]
#[inline(never)]
fn number_of_new(modules: &mut KnownModules, pc: u64) -> Result<(u32, Rule), Unusual> {
    let searched = PROCESS.pcs.tables();
    if let Some(number) = PROCESS.pcs.number(pc, PcKind::ReturnAddress) {
        return Ok((number, PROCESS.pcs.entries().get(number as usize).ok_or(Unusual)?.rule()));
    }
    let (rule, identity) = modules.rule_and_identity(pc);
    let number = PROCESS.pcs.add_of_module(pc, PcKind::ReturnAddress, rule, identity, searched);
    Ok((number.ok_or(Unusual)?, rule))
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

/// What a record is found by: the place, and the stack words that told the stacks of this place apart the last times.
///
/// # Safety
///
/// `sp` belongs to a live frame on the thread's own stack.
#[inline(always)]
unsafe fn record_key(thread: &ThreadState, place_key: u64, sp: u64) -> u64 {
    // A caller that breaks the ABI may have any stack pointer; the whole walk deals with it.
    let sp = sp & !7;
    let part = |telling: Telling| {
        let address = sp.wrapping_add(telling.bytes_above());
        if address >= thread.high {
            return 0;
        }
        // SAFETY: low <= address < high, and a whole word.
        telling.part(unsafe { load(address) })
    };
    // Most places have as many as they will ever have, so that these branches cost less than the loads.
    let [newer, older] = thread.telling(place_key);
    if newer.is_none() {
        return place_key;
    }
    let mut key = place_key ^ part(newer);
    if !older.is_none() {
        key ^= part(older).rotate_left(32);
    }
    key.wrapping_mul(MIX)
}

#[inline(always)]
fn place_key(pc: u64, sp: u64) -> u64 {
    (pc ^ sp.rotate_left(29)).wrapping_mul(MIX)
}

/// What an address is found by in the pc cache. The multiplication can be undone, so the highest bits, by which a set is found, and the
/// others, which tell its addresses apart, together are the address.
#[inline(always)]
fn pc_hash(pc: u64) -> u64 {
    pc.wrapping_mul(MIX << (u64::BITS - PC_BITS))
}

/// What tells an address apart from those in the same set, above the bits of a number.
#[inline(always)]
fn pc_tag(hash: u64) -> u64 {
    hash << (PC_BITS - PC_TAG_BITS)
}

const _: () = assert!(MIX & 1 == 1);
