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

use super::memory::Words;
use super::room::Room;

/// A frame, or a mark.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub(super) struct Link {
    /// Address of the frame's code object; [`Link::MARK`] for a mark.
    pub(super) code: u64,
    /// The frame's instruction, as the interpreter has it, or the mark's address.
    pub(super) place: u64,
}

impl Link {
    const MARK: u64 = 1;
    /// The mark of an evaluation function that has none.
    pub(super) const UNPLACED: Self = Self { code: Self::MARK, place: 0 };

    const fn mark(address: u64) -> Self {
        Self { code: Self::MARK, place: address }
    }

    pub(super) const fn is_mark(self) -> bool {
        self.code == Self::MARK
    }
}

/// The list ended in a way that it cannot, or there was no memory for it.
pub(super) struct BadChain;

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

fn push(links: &mut Room<Link>, count: &mut usize, link: Link) -> Result<(), BadChain> {
    if *count >= MAX_LINKS {
        return Err(BadChain);
    }
    links.put(*count, link).ok_or(BadChain)?;
    *count += 1;
    Ok(())
}

/// The frame's code without the tag in its lowest bits.
#[inline(always)]
fn frame_link(layout: &Layout, frame: u64, memory: &impl Words) -> Result<Link, BadChain> {
    let code = memory.word(frame.wrapping_add(layout.frame_code)).ok_or(BadChain)? & !3;
    let place = memory.word(frame.wrapping_add(layout.frame_instruction)).ok_or(BadChain)?;
    Ok(Link { code, place })
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
        let owner = memory.byte(frame.wrapping_add(layout.frame_owner)).ok_or(BadChain)?;
        let link =
            if owner >= FIRST_MARK_OWNER { Link::mark(frame) } else { frame_link(layout, frame, memory)? };
        push(links, &mut count, link)?;
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
        push(links, &mut count, Link { code, place: place.into() })?;
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
