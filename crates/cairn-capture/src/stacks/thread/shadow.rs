//! Shadows: earlier stacks of a thread, stored as the words that must be unchanged for them to be
//! there still.
//!
//! A frame's *height* counts from the outermost frame, which has height 1. Frames, extra checks and
//! frame pointers of all four shadows are interleaved in *turns* of 128 heights, so that shallow
//! stacks share their pages of memory:
//!
//! ```text
//! turn 0:  | shadow 0, heights 1..121 | shadow 1 ... | shadow 2 ... | shadow 3 ... | pending frames |
//! turn 1:  | shadow 0, heights 121..249 | ...
//! ```

use core::ptr::NonNull;

use cairn_unwind::Machine;

use crate::stacks::arch::Native;
use crate::stacks::mapping;
use crate::stacks::pcs::NUMBER_BITS;
use crate::stacks::thread::ThreadState;
use crate::stacks::thread::record::place;
use crate::stacks::walk::MAX_DEPTH;

/// One frame of a shadow.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ShadowFrame {
    /// The return address into this frame. Where calls do not push it, the upper bits are the
    /// distance in words of [`return_address_below`](Self::return_address_below).
    word: u64,
    /// The place just below the frame, in bytes from [`ThreadState::slot_base`]. On x86-64 it holds
    /// the return address into the frame.
    pub(crate) slot: u32,
    /// The node of this frame, and the flag [`NEEDS_FP`].
    flagged_node: u32,
}

/// Flag of [`ShadowFrame::flagged_node`]; nodes have 31 bits.
const NEEDS_FP: u32 = 1 << 31;

/// Bits of a return address in [`ShadowFrame::word`] where calls do not push it. Code at higher
/// addresses is left to the whole walk; see [`is_code_address`](crate::stacks::arch).
const ADDRESS_BITS: u32 = 48;

impl ShadowFrame {
    /// A frame where calls push the return address `pc` to the slot.
    #[inline(always)]
    pub(crate) fn pushed(pc: u64, slot: u32, node: u32) -> Self {
        Self { word: pc, slot, flagged_node: node }
    }

    /// A frame where calls do not push. `pc` has 48 bits.
    #[inline(always)]
    pub(crate) fn new(pc: u64, return_address_below: u64, slot: u32, node: u32) -> Self {
        debug_assert!(pc >> ADDRESS_BITS == 0, "other code has no rule here");
        // At least one word, so that a word is readable even where no step reads one.
        let words = (return_address_below / 8).max(1);
        Self { word: words << ADDRESS_BITS | pc, slot, flagged_node: node }
    }

    /// The return address into this frame.
    #[inline(always)]
    pub(crate) fn pc(&self) -> u64 {
        if Native::CALL_PUSHES { self.word } else { self.word & ((1 << ADDRESS_BITS) - 1) }
    }

    /// Bytes from the caller's stack pointer down to the return address that the step reads.
    ///
    /// Stored only where calls do not push.
    #[inline(always)]
    pub(crate) fn return_address_below(&self) -> u64 {
        (self.word >> ADDRESS_BITS) * 8
    }

    /// Replaces the return address of a frame that a call has not pushed it for.
    #[inline(always)]
    pub(crate) fn set_pushed(&mut self, pc: u64) {
        self.word = pc;
    }

    /// The node of this frame.
    #[inline(always)]
    pub(crate) fn node(&self) -> u32 {
        self.flagged_node & !NEEDS_FP
    }

    /// True when the frames outside of this one depend on the frame pointer in it.
    #[inline(always)]
    pub(crate) fn needs_fp(&self) -> bool {
        self.flagged_node & NEEDS_FP != 0
    }

    pub(crate) fn set_needs_fp(&mut self) {
        self.flagged_node |= NEEDS_FP;
    }

    /// Slot, node and flag in one number; see [`place`].
    #[inline(always)]
    pub(crate) fn place(&self) -> u64 {
        place(self.slot, self.flagged_node)
    }
}

/// A stack word other than a return address that decides where an outer frame lies. It is a saved
/// frame pointer that is used, or the word in which a realigned frame stores its CFA.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ExtraCheck {
    pub(crate) value: u64,
    pub(crate) slot: u32,
    /// Height of the frame whose step reads the word.
    pub(crate) height: u32,
}

/// A frame that was found by stepping and has no node yet.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct PendingFrame {
    pub(crate) fp: u64,
    /// The number of its pc, and the flag [`DEPENDS_ON_FP`].
    flagged_number: u32,
    pub(crate) slot: u32,
}

/// Flag of [`PendingFrame::flagged_number`].
const DEPENDS_ON_FP: u32 = 1 << 31;
const _: () = assert!(NUMBER_BITS < DEPENDS_ON_FP.ilog2());

impl PendingFrame {
    #[inline(always)]
    pub(crate) fn new(pc_number: u32, slot: u32, fp: u64, depends_on_fp: bool) -> Self {
        let flag = u32::from(depends_on_fp) << DEPENDS_ON_FP.ilog2();
        Self { fp, flagged_number: pc_number | flag, slot }
    }

    /// The number of its pc.
    #[inline(always)]
    pub(crate) fn pc_number(&self) -> u32 {
        self.flagged_number & !DEPENDS_ON_FP
    }

    /// True when the rule at its pc reads or restores the frame pointer.
    #[inline(always)]
    pub(crate) fn depends_on_fp(&self) -> bool {
        self.flagged_number & DEPENDS_ON_FP != 0
    }
}

/// Heights up to which pairs of shadows are known to be equal. Copying one shadow to the other then
/// copies little.
#[repr(C)]
pub(crate) struct CommonHeights([[u32; SHADOWS]; SHADOWS]);

impl CommonHeights {
    pub(super) const NONE: Self = Self([[0; SHADOWS]; SHADOWS]);

    pub(crate) fn height(&self, one: usize, other: usize) -> u32 {
        self.0[one][other]
    }

    /// Notes that the frames of a shadow change inside of this height.
    pub(crate) fn cut(&mut self, number: usize, height: u32) {
        for other in 0..SHADOWS {
            self.set(number, other, self.0[number][other].min(height));
        }
    }

    /// Notes that a shadow was copied to another one, up to this height.
    pub(crate) fn copied(&mut self, from: usize, to: usize, height: u32) {
        for other in 0..SHADOWS {
            let common = if other == from { height } else { self.0[from][other].min(height) };
            self.set(to, other, common);
        }
    }

    fn set(&mut self, one: usize, other: usize, height: u32) {
        self.0[one][other] = height;
        self.0[other][one] = height;
    }
}

const _: () = assert!(size_of::<ShadowFrame>() == 16);
const _: () = assert!(size_of::<ExtraCheck>() == 16);
const _: () = assert!(size_of::<PendingFrame>() == 16);

/// Shadows of one thread; stacks that alternate below a common part need one each.
pub(crate) const SHADOWS: usize = 4;
/// Frames that the hot path compares between two branches.
pub(crate) const SHADOW_RUN: usize = 8;
/// Copies of the outermost frame in front of it, which complete the last run.
pub(crate) const SHADOW_PADDING: usize = SHADOW_RUN - 1;

/// Heights in one turn.
pub(crate) const TURN_FRAMES: usize = 128;
/// Extra checks of each shadow in one turn; most shadows have few.
pub(crate) const TURN_EXTRAS: usize = 32;
const _: () = assert!(TURN_FRAMES.is_multiple_of(SHADOW_RUN));

/// 128 heights of all shadows, and as many pending frames.
#[repr(C, align(4096))]
pub(crate) struct Turn {
    /// By height, moved up by [`SHADOW_PADDING`].
    shadows: [[ShadowFrame; TURN_FRAMES]; SHADOWS],
    /// By height: the frame pointer in each frame that [needs it](ShadowFrame::needs_fp). Others
    /// are not written.
    fps: [[u64; TURN_FRAMES]; SHADOWS],
    /// Innermost first.
    pending: [PendingFrame; TURN_FRAMES],
    /// By rising height.
    extras: [[ExtraCheck; TURN_EXTRAS]; SHADOWS],
}

const _: () = assert!(size_of::<Turn>() == 16 << 10);

/// Turns of a new thread: room for 512 frames, which few threads exceed.
pub(super) const FIRST_TURNS: usize = 4;
/// Growth factor when the room does not suffice.
const TURNS_FACTOR: usize = 8;
const MAX_TURNS: usize = MAX_DEPTH / TURN_FRAMES;

/// Size of a shadow.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ShadowSize {
    /// Heights from 1 to below this one are filled. At most [`ThreadState::room`] less the padding.
    pub(crate) end: u32,
    pub(crate) extra_count: u32,
}

impl ThreadState {
    #[inline(always)]
    fn turns(&self) -> &[Turn] {
        // SAFETY: `first_turn` points to `turn_count` turns (`ThreadBlock::make`, `make_room`),
        // which are zeroed memory or written by this thread; zeros are a value of each of their
        // fields. No `&mut` exists while `self` is borrowed.
        unsafe { core::slice::from_raw_parts(self.first_turn, self.turn_count as usize) }
    }

    #[inline(always)]
    fn turns_mut(&mut self) -> &mut [Turn] {
        // SAFETY: as in `turns`; the exclusive borrow of `self`, the only owner of the turns, makes
        // the slice unique.
        unsafe { core::slice::from_raw_parts_mut(self.first_turn, self.turn_count as usize) }
    }

    /// The number of frames that fit into a shadow, padding included, and the number of pending
    /// frames.
    #[inline(always)]
    pub(crate) fn room(&self) -> usize {
        self.turn_count as usize * TURN_FRAMES
    }

    /// Makes room for more frames; `None` where the kernel gives no memory, or the stack is too
    /// deep.
    #[cold]
    #[inline(never)]
    pub(crate) fn make_room(&mut self) -> Option<()> {
        let old_count = self.turn_count as usize;
        let count = (old_count * TURNS_FACTOR).min(MAX_TURNS);
        if count <= old_count {
            return None;
        }
        let fresh = mapping::reserve(count * size_of::<Turn>())?;
        let first = fresh.cast::<Turn>().as_ptr();
        let old = core::mem::replace(&mut self.first_turn, first);
        // SAFETY: both hold `turn_count` turns, the new mapping being larger, and a new mapping
        // does not overlap the old one.
        unsafe { core::ptr::copy_nonoverlapping(old, first, old_count) };
        if old_count > FIRST_TURNS {
            // SAFETY: more turns than the block's own means that `old` is a mapping made here, and
            // `first_turn` was the only pointer to it. It is not null, as no mapping is.
            unsafe { mapping::release(NonNull::new_unchecked(old.cast()), old_count * size_of::<Turn>()) };
        }
        self.turn_count = count as u32;
        Some(())
    }

    /// The entry of a shadow at this index, which is a height with [`SHADOW_PADDING`] added.
    ///
    /// # Safety
    ///
    /// - The index is below [`room`](Self::room).
    #[inline(always)]
    pub(crate) unsafe fn shadow_unchecked(&self, number: usize, index: usize) -> &ShadowFrame {
        // SAFETY: the caller promises index < turn_count * TURN_FRAMES, so the quotient is below
        // `turn_count`. The remainders are below the lengths of the arrays.
        unsafe {
            let turn = self.turns().get_unchecked(index / TURN_FRAMES);
            turn.shadows.get_unchecked(number % SHADOWS).get_unchecked(index % TURN_FRAMES)
        }
    }

    /// The entry of [`shadow_unchecked`](Self::shadow_unchecked), for writing.
    ///
    /// # Safety
    ///
    /// - The index is below [`room`](Self::room).
    #[inline(always)]
    pub(crate) unsafe fn shadow_unchecked_mut(&mut self, number: usize, index: usize) -> &mut ShadowFrame {
        // SAFETY: the caller promises index < turn_count * TURN_FRAMES, so the quotient is below
        // `turn_count`. The remainders are below the lengths of the arrays.
        unsafe {
            let turn = self.turns_mut().get_unchecked_mut(index / TURN_FRAMES);
            turn.shadows.get_unchecked_mut(number % SHADOWS).get_unchecked_mut(index % TURN_FRAMES)
        }
    }

    /// All entries of a shadow in the first turn.
    #[inline(always)]
    pub(crate) fn first_turn_of_shadow(&self, number: usize) -> &[ShadowFrame; TURN_FRAMES] {
        // SAFETY: `turn_count` is at least `FIRST_TURNS` from `ThreadBlock::make` on.
        unsafe { &self.turns().get_unchecked(0).shadows[number % SHADOWS] }
    }

    /// The frame of a shadow at this height.
    #[inline(always)]
    pub(crate) fn shadow_at(&self, number: usize, height: usize) -> &ShadowFrame {
        let index = height + SHADOW_PADDING;
        &self.turns()[index / TURN_FRAMES].shadows[number % SHADOWS][index % TURN_FRAMES]
    }

    /// The frame of a shadow at this height, for writing.
    #[inline(always)]
    pub(crate) fn shadow_at_mut(&mut self, number: usize, height: usize) -> &mut ShadowFrame {
        let index = height + SHADOW_PADDING;
        &mut self.turns_mut()[index / TURN_FRAMES].shadows[number % SHADOWS][index % TURN_FRAMES]
    }

    /// Repeats the outermost frame of a shadow in the padding in front of it.
    pub(crate) fn fill_padding(&mut self, number: usize) {
        let outermost = *self.shadow_at(number, 1);
        self.turns_mut()[0].shadows[number][1..=SHADOW_PADDING].fill(outermost);
    }

    /// The frame pointer in the frame of a shadow at this height, if the frame [needs
    /// it](ShadowFrame::needs_fp).
    #[inline(always)]
    pub(crate) fn shadow_fp_at(&self, number: usize, height: usize) -> u64 {
        self.turns()[height / TURN_FRAMES].fps[number % SHADOWS][height % TURN_FRAMES]
    }

    pub(crate) fn set_shadow_fp(&mut self, number: usize, height: usize, fp: u64) {
        self.turns_mut()[height / TURN_FRAMES].fps[number % SHADOWS][height % TURN_FRAMES] = fp;
    }

    /// The pending frame of this index, innermost first.
    #[inline(always)]
    pub(crate) fn pending(&self, index: usize) -> PendingFrame {
        self.turns()[index / TURN_FRAMES].pending[index % TURN_FRAMES]
    }

    #[inline(always)]
    pub(crate) fn pending_mut(&mut self, index: usize) -> &mut PendingFrame {
        &mut self.turns_mut()[index / TURN_FRAMES].pending[index % TURN_FRAMES]
    }

    /// The frame of [`pending_mut`](Self::pending_mut), for the hot path.
    ///
    /// # Safety
    ///
    /// - The index is below [`room`](Self::room).
    #[inline(always)]
    pub(crate) unsafe fn pending_unchecked_mut(&mut self, index: usize) -> &mut PendingFrame {
        // SAFETY: the caller promises index < turn_count * TURN_FRAMES, so the quotient is below
        // `turn_count`.
        unsafe {
            let turn = self.turns_mut().get_unchecked_mut(index / TURN_FRAMES);
            turn.pending.get_unchecked_mut(index % TURN_FRAMES)
        }
    }

    /// An extra check of a shadow.
    #[inline(always)]
    pub(crate) fn extra(&self, number: usize, index: usize) -> ExtraCheck {
        self.turns()[index / TURN_EXTRAS].extras[number % SHADOWS][index % TURN_EXTRAS]
    }

    /// The room for extra checks of a shadow, turn by turn.
    #[inline(always)]
    pub(crate) fn extras(&self, number: usize) -> impl Iterator<Item = &[ExtraCheck; TURN_EXTRAS]> {
        self.turns().iter().map(move |turn| &turn.extras[number % SHADOWS])
    }

    /// Appends an extra check to a shadow; `None` where there is no memory for it.
    pub(crate) fn push_extra(&mut self, number: usize, check: ExtraCheck) -> Option<()> {
        let index = self.sizes[number].extra_count as usize;
        if index >= self.turn_count as usize * TURN_EXTRAS {
            self.make_room()?;
        }
        self.set_extra(number, index, check);
        self.sizes[number].extra_count += 1;
        Some(())
    }

    fn set_extra(&mut self, number: usize, index: usize, check: ExtraCheck) {
        self.turns_mut()[index / TURN_EXTRAS].extras[number % SHADOWS][index % TURN_EXTRAS] = check;
    }

    /// Copies the frames of a shadow up to `height`, and the words that they depend on. Frames that
    /// the other shadow has are not copied.
    pub(crate) fn copy_shadow(&mut self, from: usize, to: usize, height: usize) {
        let common = self.common.height(from, to).min(height as u32) as usize;
        // Index 0 includes the padding, which repeats the outermost frame.
        let first = if common == 0 { 0 } else { common + 1 + SHADOW_PADDING };
        self.copy_frames(from, to, first..height + SHADOW_PADDING + 1);
        let count_up_to = |state: &Self, height: usize| {
            (0..state.sizes[from].extra_count as usize)
                .rposition(|index| state.extra(from, index).height as usize <= height)
                .map_or(0, |last| last + 1)
        };
        let extra_count = count_up_to(self, height);
        for index in count_up_to(self, common)..extra_count {
            self.set_extra(to, index, self.extra(from, index));
        }
        for index in common + 1..=height {
            if self.shadow_at(to, index).needs_fp() {
                self.set_shadow_fp(to, index, self.shadow_fp_at(from, index));
            }
        }
        self.sizes[to] = ShadowSize { end: height as u32 + 1, extra_count: extra_count as u32 };
        self.common.copied(from, to, height as u32);
    }

    /// Copies entries of one shadow to another, turn by turn.
    fn copy_frames(&mut self, from: usize, to: usize, indices: core::ops::Range<usize>) {
        let core::ops::Range { mut start, end } = indices;
        while start < end {
            let first = start % TURN_FRAMES;
            let count = (end - start).min(TURN_FRAMES - first);
            let frames = self.turns_mut()[start / TURN_FRAMES].shadows.as_flattened_mut();
            let source = from * TURN_FRAMES + first;
            frames.copy_within(source..source + count, to * TURN_FRAMES + first);
            start += count;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stacks::thread::ThreadBlock;

    fn frame(height: usize) -> ShadowFrame {
        ShadowFrame::pushed(0x5000_0000 + height as u64, 8 * height as u32, height as u32)
    }

    /// Makes a state with a shadow of `frames` frames, and an extra check for each eighth of them.
    fn state_with_shadow(frames: usize) -> &'static mut ThreadState {
        let block = ThreadBlock::make(-1, -1).unwrap();
        // SAFETY: no thread's word leads to this block, and no process has this number, so no
        // capture acquires it; this is the only reference to its state.
        let state = unsafe { block.state() };
        for height in 1..=frames {
            *state.shadow_at_mut(0, height) = frame(height);
            if height % 8 == 0 {
                state.shadow_at_mut(0, height).set_needs_fp();
                state.set_shadow_fp(0, height, 16 * height as u64);
                let check = ExtraCheck { value: height as u64, slot: 0, height: height as u32 };
                state.push_extra(0, check).unwrap();
            }
        }
        state.fill_padding(0);
        state.sizes[0].end = frames as u32 + 1;
        state
    }

    #[test]
    fn copied_shadow_has_equal_frames_and_checks() {
        // More than one turn in any case; Miri takes long for each frame.
        let (frames, copied) = if cfg!(miri) { (136, 128) } else { (400, 304) };
        let state = state_with_shadow(frames);
        state.copy_shadow(0, 2, copied);
        assert_eq!(
            (state.sizes[2].end as usize, state.sizes[2].extra_count as usize),
            (copied + 1, copied / 8)
        );
        assert_eq!((state.common.height(0, 2), state.common.height(2, 1)), (copied as u32, 0));
        for height in 1..=copied {
            assert_eq!(state.shadow_at(2, height).place(), state.shadow_at(0, height).place());
            assert_eq!(state.shadow_at(2, height).node(), height as u32);
            if state.shadow_at(2, height).needs_fp() {
                assert_eq!(state.shadow_fp_at(2, height), 16 * height as u64);
                assert_eq!(state.extra(2, height / 8 - 1).value, height as u64);
            }
        }
        // SAFETY: the index is below the room of four turns.
        assert_eq!(unsafe { state.shadow_unchecked(2, 1) }.pc(), frame(1).pc(), "the padding is copied too");
        state.common.cut(2, 100);
        assert_eq!(state.common.height(0, 2), 100);
    }

    #[test]
    fn more_room_keeps_frames_and_ends_at_the_maximum() {
        let frames = if cfg!(miri) { 125 } else { 500 };
        let state = state_with_shadow(frames);
        *state.pending_mut(511) = PendingFrame::new(77, 8, 0x7000, true);
        let mut rooms = [0; 4];
        for room in &mut rooms {
            *room = state.room();
            assert_eq!(state.shadow_at(0, frames).node() as usize, frames);
            assert_eq!((state.pending(511).pc_number(), state.pending(511).depends_on_fp()), (77, true));
            state.make_room().unwrap();
            if cfg!(miri) {
                // Larger rooms take Miri too long.
                return;
            }
        }
        assert_eq!(rooms, [512, 4096, 32_768, 262_144]);
        assert_eq!((state.room(), state.make_room()), (MAX_DEPTH, None));
    }
}
