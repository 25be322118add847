//! Reads a thread's list of Python frames, with the marks that tell which C frame runs which of
//! them.
//!
//! ```text
//! links, innermost first:   F F M F M     the first M's C frame runs the first two frames F,
//!                                         the second M's the third
//! ```
//!
//! A mark is an address inside of the stack frame of one call of the evaluation function. 3.8 and
//! 3.9 have none: each frame is followed by [`Link::UNPLACED`], which any such call may match.

use cairn_unwind::python::{
    C_FRAME_CURRENT_3_11, C_FRAME_PREVIOUS_3_10, C_FRAME_PREVIOUS_3_11, ChainKind, FIRST_MARK_OWNER,
    GENERATOR_3_10, Layout, MAX_LINKS, STACK_DEPTH_3_10, STATE_C_FRAME_3_10,
};

use super::memory::{Direct, Words};
use super::room::Room;

/// A frame, or a mark.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub(super) struct Link {
    /// Address of the structure, where marks are frames; 0 in other lists. The words of its code
    /// and of its instruction, as they are there.
    pub(super) frame: u64,
    pub(super) code_word: u64,
    place_word: u64,
    /// Address of the frame's code object; [`Link::MARK`] for a mark.
    pub(super) code: u64,
    /// The frame's instruction, as the interpreter has it, or the mark's address.
    pub(super) place: u64,
}

impl Link {
    const MARK: u64 = 1;
    /// The mark of an evaluation function that has none.
    pub(super) const UNPLACED: Self = Self::mark(0);

    const fn new(code: u64, place: u64) -> Self {
        Self { frame: 0, code_word: 0, place_word: 0, code, place }
    }

    const fn mark(address: u64) -> Self {
        Self::new(Self::MARK, address)
    }

    pub(super) const fn is_mark(self) -> bool {
        self.code == Self::MARK
    }
}

/// The list ended in a way that it cannot, or there was no memory for it.
pub(super) struct BadChain;

#[inline(always)]
const fn is_mark(owner: u8) -> bool {
    owner >= FIRST_MARK_OWNER
}

/// Reads the frames of a thread state into `links`, innermost first, and returns their number.
#[inline(always)]
pub(super) fn read(
    layout: &Layout,
    state: u64,
    memory: &impl Words,
    links: &mut Room<Link>,
) -> Result<usize, BadChain> {
    let first = memory.word(state.wrapping_add(layout.state_frames)).ok_or(BadChain)?;
    match layout.chain {
        ChainKind::Marks => read_marked(layout, first, memory, links),
        ChainKind::MarksBehindCFrame => {
            let frame = memory.word(first).ok_or(BadChain)?;
            read_marked(layout, frame, memory, links)
        }
        ChainKind::CFrames => {
            let root = state.wrapping_add(layout.state_root);
            read_by_c_frames(layout, first, root, memory, links)
        }
        ChainKind::Objects | ChainKind::ObjectsAndCFrames => {
            read_objects(layout, state, first, memory, links)
        }
    }
}

/// A list beside the one before it; see [`follow`].
#[derive(Clone, Copy)]
pub(super) struct Followed {
    /// How many entries are unchanged, from the outermost one on.
    pub(super) same: usize,
    /// How many entries are the same frames; the ones behind `same` may have gone on.
    pub(super) common: usize,
    /// How many further entries there are, at the start of `links`, innermost first.
    pub(super) added: usize,
}

/// Entries of the known list among which a frame is searched; 8.
///
/// Few calls return between two allocations.
const NEAR: usize = 8;
/// Frames that are read before the whole list is.
const MOST_ADDED: usize = 32;

/// Compares the list of a thread state with the known one, without copying it.
///
/// The known one is outermost first. `None` where they have no frame in common, or the list has
/// other kinds of entries: then [`read`] it.
///
/// Frames are compared by two words each. Equal words mean the same kind of entry as well: the
/// caller has made sure that the word of a mark's code is that of no frame. From 3.13 on it is the
/// interpreter's `None`. In 3.12 it is a code object, which may be freed, so the kind is read
/// there.
///
/// The address of each frame is taken from the known list, after the comparison with the one that
/// the list has. So the loads of a frame do not wait for those of the frames inside of it.
#[inline(always)]
pub(super) fn follow(
    layout: &Layout,
    state: u64,
    memory: Direct,
    known: &[Link],
    links: &mut Room<Link>,
) -> Option<Followed> {
    let mut frame = memory.word(state.wrapping_add(layout.state_frames))?;
    let reads_kind = match layout.chain {
        ChainKind::Marks => false,
        ChainKind::MarksBehindCFrame => {
            frame = memory.word(frame)?;
            true
        }
        _ => return None,
    };
    let mut added = 0;
    let innermost = loop {
        let mut near = (0..known.len()).rev().take(NEAR);
        if let Some(index) = near.find(|&index| known.get(index).is_some_and(|link| link.frame == frame)) {
            break index;
        }
        if frame == 0 || added == MOST_ADDED {
            return None;
        }
        links.put(added, marked_link(layout, frame, &memory).ok()?)?;
        added += 1;
        frame = memory.word(frame.wrapping_add(layout.frame_previous))?;
    };
    let common = innermost + 1;
    let mut rest = known.get(..common)?;
    let mut same = common;
    while let [outer @ .., link] = rest {
        let frame = independent(link.frame);
        // SAFETY: the frame is in the list, so it is live; `marked_link` read these words of it.
        let word = |offset: u64| unsafe { memory.word_again(frame.wrapping_add(offset)) };
        let difference =
            (word(layout.frame_code) ^ link.code_word) | (word(layout.frame_instruction) ^ link.place_word);
        if difference != 0
            || reads_kind
                && memory.byte(frame.wrapping_add(layout.frame_owner)).map(is_mark) != Some(link.is_mark())
        {
            same = outer.len();
        }
        if word(layout.frame_previous) != outer.last().map_or(0, |outer| outer.frame) {
            return None;
        }
        rest = outer;
    }
    Some(Followed { same, common, added })
}

/// Reads an entry again that [`follow`] found in the list.
pub(super) fn read_again(layout: &Layout, frame: u64, memory: &impl Words) -> Result<Link, BadChain> {
    marked_link(layout, frame, memory)
}

/// Hides from the compiler that the address equals another one.
#[inline(always)]
fn independent(address: u64) -> u64 {
    let mut address = address;
    // SAFETY: no instruction.
    unsafe {
        core::arch::asm!("/* {0} */", inout(reg) address, options(pure, nomem, nostack, preserves_flags));
    }
    address
}

fn push(links: &mut Room<Link>, count: &mut usize, link: Link) -> Result<(), BadChain> {
    if *count >= MAX_LINKS {
        return Err(BadChain);
    }
    links.put(*count, link).ok_or(BadChain)?;
    *count += 1;
    Ok(())
}

/// Bits of the word of a frame's code that are no part of its address.
const CODE_TAG: u64 = 3;

/// The frame's code without the tag in its lowest bits.
#[inline(always)]
fn frame_link(layout: &Layout, frame: u64, memory: &impl Words) -> Result<Link, BadChain> {
    let code = memory.word(frame.wrapping_add(layout.frame_code)).ok_or(BadChain)? & !CODE_TAG;
    let place = memory.word(frame.wrapping_add(layout.frame_instruction)).ok_or(BadChain)?;
    Ok(Link::new(code, place))
}

/// A frame of a list in which marks are frames.
#[inline(always)]
fn marked_link(layout: &Layout, frame: u64, memory: &impl Words) -> Result<Link, BadChain> {
    let owner = memory.byte(frame.wrapping_add(layout.frame_owner)).ok_or(BadChain)?;
    let code_word = memory.word(frame.wrapping_add(layout.frame_code)).ok_or(BadChain)?;
    let place_word = memory.word(frame.wrapping_add(layout.frame_instruction)).ok_or(BadChain)?;
    let (code, place) =
        if is_mark(owner) { (Link::MARK, frame) } else { (code_word & !CODE_TAG, place_word) };
    Ok(Link { frame, code_word, place_word, code, place })
}

#[inline(always)]
fn read_marked(
    layout: &Layout,
    first: u64,
    memory: &impl Words,
    links: &mut Room<Link>,
) -> Result<usize, BadChain> {
    let (mut frame, mut count) = (first, 0);
    while frame != 0 {
        push(links, &mut count, marked_link(layout, frame, memory)?)?;
        frame = memory.word(frame.wrapping_add(layout.frame_previous)).ok_or(BadChain)?;
    }
    Ok(count)
}

/// The frames of one C frame are those down to the innermost one of the C frame before.
#[inline(always)]
fn read_by_c_frames(
    layout: &Layout,
    first: u64,
    root: u64,
    memory: &impl Words,
    links: &mut Room<Link>,
) -> Result<usize, BadChain> {
    let current_of = |c_frame: u64| memory.word(c_frame.wrapping_add(C_FRAME_CURRENT_3_11)).ok_or(BadChain);
    let (mut c_frame, mut count) = (first, 0);
    let mut frame = if c_frame == 0 { 0 } else { current_of(c_frame)? };
    while c_frame != 0 && c_frame != root && frame != 0 {
        let before = memory.word(c_frame.wrapping_add(C_FRAME_PREVIOUS_3_11)).ok_or(BadChain)?;
        let outer = if before == 0 { 0 } else { current_of(before)? };
        while frame != outer && frame != 0 {
            push(links, &mut count, frame_link(layout, frame, memory)?)?;
            frame = memory.word(frame.wrapping_add(layout.frame_previous)).ok_or(BadChain)?;
        }
        push(links, &mut count, Link::mark(c_frame))?;
        c_frame = before;
    }
    Ok(count)
}

/// 3.8 to 3.10: one call of the evaluation function for each frame.
fn read_objects(
    layout: &Layout,
    state: u64,
    first: u64,
    memory: &impl Words,
    links: &mut Room<Link>,
) -> Result<usize, BadChain> {
    let has_c_frames = layout.chain == ChainKind::ObjectsAndCFrames;
    let root = state.wrapping_add(layout.state_root);
    let mut c_frame = match has_c_frames {
        true => memory.word(state.wrapping_add(STATE_C_FRAME_3_10)).ok_or(BadChain)?,
        false => 0,
    };
    let mut without_c_frame = match has_c_frames {
        true => count_of(first, layout.frame_previous, 0, memory)?.saturating_sub(count_of(
            c_frame,
            C_FRAME_PREVIOUS_3_10,
            root,
            memory,
        )?),
        false => 0,
    };
    let (mut frame, mut count) = (first, 0);
    while frame != 0 {
        let code = memory.word(frame.wrapping_add(layout.frame_code)).ok_or(BadChain)?;
        let place = memory.half(frame.wrapping_add(layout.frame_instruction)).ok_or(BadChain)?;
        push(links, &mut count, Link::new(code, place.into()))?;
        if !has_c_frames {
            push(links, &mut count, Link::UNPLACED)?;
        } else if without_c_frame > 0 && frame != first && is_suspended_generator(frame, memory)? {
            // `throw` was called in a generator that waits for another one: it is in the list, and
            // no C frame runs it.
            without_c_frame -= 1;
        } else if c_frame != 0 && c_frame != root {
            push(links, &mut count, Link::mark(c_frame))?;
            c_frame = memory.word(c_frame.wrapping_add(C_FRAME_PREVIOUS_3_10)).ok_or(BadChain)?;
        }
        frame = memory.word(frame.wrapping_add(layout.frame_previous)).ok_or(BadChain)?;
    }
    Ok(count)
}

/// Counts a list up to its end.
fn count_of(first: u64, previous: u64, end: u64, memory: &impl Words) -> Result<usize, BadChain> {
    let (mut at, mut count) = (first, 0);
    while at != 0 && at != end {
        count += 1;
        if count > MAX_LINKS {
            return Err(BadChain);
        }
        at = memory.word(at.wrapping_add(previous)).ok_or(BadChain)?;
    }
    Ok(count)
}

/// Whether a frame object of 3.10 is that of a generator that does not run.
///
/// A frame that runs has no stack of values.
fn is_suspended_generator(frame: u64, memory: &impl Words) -> Result<bool, BadChain> {
    let depth = memory.half(frame.wrapping_add(STACK_DEPTH_3_10)).ok_or(BadChain)? as i32;
    Ok(depth >= 0 && memory.word(frame.wrapping_add(GENERATOR_3_10)).ok_or(BadChain)? != 0)
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::boxed::Box;
    use std::vec::Vec;

    use super::*;
    use crate::stacks::python::memory::Guarded;

    /// Frames of 3.12, outermost first, each with its words in memory of its own.
    struct Frames {
        #[expect(clippy::vec_box, reason = "a frame stays at its address while the list grows")]
        list: Vec<Box<[u64; 10]>>,
        c_frame: Box<[u64; 1]>,
        state: Box<[u64; 8]>,
    }

    const CODE: usize = 0;
    const PREVIOUS: usize = 1;
    const INSTRUCTION: usize = 7;
    /// The owner is the seventh byte of this word.
    const OWNER: usize = 8;
    const MARK: u64 = 3 << 48;
    const MARK_CODE: u64 = 0xabc0;

    impl Frames {
        fn new() -> Self {
            let mut frames = Self { list: Vec::new(), c_frame: Box::new([0]), state: Box::new([0; 8]) };
            frames.push(MARK_CODE, 1, MARK);
            frames.push(0x1000, 0x1010, 0);
            frames.push(0x2000, 0x2020, 0);
            frames
        }

        fn push(&mut self, code: u64, instruction: u64, owner: u64) {
            let mut words = Box::new([0; 10]);
            words[CODE] = code;
            words[PREVIOUS] = self.list.last().map_or(0, |outer| address(&**outer));
            words[INSTRUCTION] = instruction;
            words[OWNER] = owner;
            self.list.push(words);
        }

        fn state(&mut self) -> u64 {
            self.c_frame[0] = self.list.last().map_or(0, |frame| address(&**frame));
            self.state[7] = address(&*self.c_frame);
            address(&*self.state)
        }

        fn layout() -> Layout {
            Layout::of(0x030c_0000, 0, &Guarded).unwrap()
        }

        /// All entries, outermost first.
        fn read(&mut self) -> Vec<Link> {
            let mut links = room();
            let state = self.state();
            let count = read(&Self::layout(), state, &Guarded, &mut links).ok().unwrap();
            links.all(count).iter().rev().copied().collect()
        }

        fn follow(&mut self, known: &[Link]) -> Option<(usize, usize, usize)> {
            let state = self.state();
            // SAFETY: the list is this value's own memory.
            let memory = unsafe { Direct::new() };
            let followed = follow(&Self::layout(), state, memory, known, &mut room())?;
            Some((followed.same, followed.common, followed.added))
        }
    }

    fn address<T>(place: &T) -> u64 {
        core::ptr::from_ref(place) as u64
    }

    fn room<T>() -> Room<T> {
        // SAFETY: zeros are an empty room, by its documentation.
        unsafe { core::mem::zeroed() }
    }

    #[test]
    fn follow_finds_what_changed_in_a_list() {
        let mut frames = Frames::new();
        let known = frames.read();
        assert_eq!(frames.follow(&known), Some((3, 3, 0)), "unchanged");
        frames.list[1][INSTRUCTION] += 2;
        assert_eq!(frames.follow(&known), Some((1, 3, 0)), "an outer frame went on");
        frames.list[1][INSTRUCTION] -= 2;
        frames.push(0x3000, 0x3004, 1);
        assert_eq!(frames.follow(&known), Some((3, 3, 1)), "a call");
        // They stay allocated, so that the next frame has another address.
        let _returned = frames.list.split_off(2);
        assert_eq!(frames.follow(&known), Some((2, 2, 0)), "a return");
        frames.push(0x4000, 0x4004, 0);
        assert_eq!(frames.follow(&known), Some((2, 2, 1)), "a return and a call");
        let known = frames.read();
        (frames.list[2][CODE], frames.list[2][INSTRUCTION]) = (0x5000, 0x5008);
        assert_eq!(
            frames.follow(&known),
            Some((2, 3, 0)),
            "another call at the address of one that returned"
        );
        assert_eq!(frames.follow(&[]), None, "nothing known");
    }

    #[test]
    fn follow_refuses_a_list_that_leads_elsewhere() {
        let mut frames = Frames::new();
        let known = frames.read();
        frames.list[2][PREVIOUS] = address(&*frames.list[0]);
        assert_eq!(frames.follow(&known), None);
    }

    #[test]
    fn follow_tells_a_mark_from_a_frame_of_equal_words() {
        let mut frames = Frames::new();
        let known = frames.read();
        frames.list[1][OWNER] = MARK;
        assert_eq!(frames.follow(&known), Some((1, 3, 0)));
    }
}
