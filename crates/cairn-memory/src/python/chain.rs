//! Reads the lists of frames of all thread states.
//!
//! ```text
//! a list, innermost first:   F F M F M     the native frame around the first mark M runs the first
//!                                          two frames F, the one around the second M the third
//! ```
//!
//! A mark is an address inside of the stack frame of one call of the evaluation function. 3.8 and
//! 3.9 have none: there each frame is a run of its own, [`Place::Counted`].

use std::collections::HashSet;

use cairn_unwind::MemoryReader;
use cairn_unwind::python::{
    C_FRAME_CURRENT_3_11, C_FRAME_CURRENT_3_12, C_FRAME_PREVIOUS_3_10, C_FRAME_PREVIOUS_3_11,
    C_FRAME_PREVIOUS_3_12, ChainKind, FIRST_MARK_OWNER, GENERATOR_3_10, MAX_LINKS, STACK_DEPTH_3_10,
    STATE_C_FRAME_3_10,
};

use super::code::{CodeReader, ReadCode};
use super::interpreter::PythonInterpreter;
use super::{PythonFrame, Words};

/// Maximum frames and marks of all threads; 2^20, which take some 100 MiB. An image may say that
/// every thread has [`MAX_LINKS`].
pub(super) const MAX_LINKS_OF_ALL: usize = 1 << 20;
/// Maximum interpreters in the list of a runtime.
const MAX_INTERPRETERS: usize = 1 << 10;
/// Maximum thread states.
const MAX_STATES: usize = 1 << 16;

/// The frames of a thread state.
#[derive(Debug)]
pub(super) struct PythonChain {
    /// Index of its interpreter.
    pub(super) interpreter: usize,
    /// Its thread, as `pthread_self` says it.
    pub(super) thread_id: u64,
    /// Innermost first.
    pub(super) runs: Vec<PythonRun>,
    /// False if the list was not read to its end.
    pub(super) is_whole: bool,
}

/// The frames that one native frame runs.
#[derive(Debug)]
pub(super) struct PythonRun {
    pub(super) place: Place,
    /// Innermost first.
    pub(super) frames: Vec<PythonFrame>,
}

/// Where the native frame of a run is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// Around this address.
    Around(u64),
    /// The next call of the evaluation function.
    Counted,
    /// Nowhere: the list ended without a mark.
    Unknown,
}

/// The list cannot be read.
struct BadChain;

/// Reads the lists of an interpreter's threads.
pub(super) fn read_all<M: MemoryReader>(
    interpreter: &PythonInterpreter,
    index: usize,
    words: Words<'_, M>,
    codes: &mut CodeReader,
    budget: &mut usize,
) -> Vec<PythonChain> {
    let threads = &interpreter.threads;
    let mut chains = Vec::new();
    let mut states = 0;
    let mut next = words.word(interpreter.runtime.wrapping_add(threads.runtime_interpreters));
    for _ in 0..MAX_INTERPRETERS {
        let Some(at) = next.filter(|&at| at != 0) else { break };
        let mut state = words.word(at.wrapping_add(threads.interpreter_threads));
        while let Some(address) = state.filter(|&state| state != 0)
            && states < MAX_STATES
        {
            states += 1;
            let mut reader = ChainReader {
                interpreter,
                index,
                words,
                codes,
                budget,
                runs: Vec::new(),
                run: Vec::new(),
                seen: HashSet::new(),
            };
            let is_whole = reader.read(address).is_ok();
            reader.close(Place::Unknown);
            let runs = reader.runs;
            let thread_id = words.word(address.wrapping_add(threads.state_thread_id)).unwrap_or(0);
            if !runs.is_empty() || !is_whole {
                chains.push(PythonChain { interpreter: index, thread_id, runs, is_whole });
            }
            state = words.word(address.wrapping_add(threads.state_next));
        }
        next = words.word(at.wrapping_add(threads.interpreter_next));
    }
    chains
}

struct ChainReader<'a, M> {
    interpreter: &'a PythonInterpreter,
    index: usize,
    words: Words<'a, M>,
    codes: &'a mut CodeReader,
    /// The rest of [`MAX_LINKS_OF_ALL`].
    budget: &'a mut usize,
    runs: Vec<PythonRun>,
    /// The frames since the last mark.
    run: Vec<PythonFrame>,
    /// Addresses that were on the list: none is there twice.
    seen: HashSet<u64>,
}

impl<M: MemoryReader> ChainReader<'_, M> {
    fn read(&mut self, state: u64) -> Result<(), BadChain> {
        let layout = &self.interpreter.layout;
        let first = self.word(state, layout.state_frames)?;
        match layout.chain {
            ChainKind::Marks => self.read_marked(first),
            ChainKind::MarksBehindCFrame => {
                let frame = self.first_behind_c_frame(first)?;
                self.read_marked(frame)
            }
            ChainKind::CFrames => self.read_by_c_frames(first, state.wrapping_add(layout.state_root)),
            ChainKind::ObjectsAndCFrames => self.read_objects_with_c_frames(state, first),
            ChainKind::Objects => self.read_objects(first),
        }
    }

    fn read_marked(&mut self, first: u64) -> Result<(), BadChain> {
        let layout = &self.interpreter.layout;
        let mut frame = first;
        for _ in 0..MAX_LINKS {
            if frame == 0 {
                return Ok(());
            }
            self.meet(frame)?;
            let owner = self.words.byte(frame.wrapping_add(layout.frame_owner)).ok_or(BadChain)?;
            if owner >= FIRST_MARK_OWNER {
                self.close(Place::Around(frame));
            } else {
                self.frame(frame)?;
            }
            frame = self.word(frame, layout.frame_previous)?;
        }
        Err(BadChain)
    }

    /// 3.11: the frames of one C frame are those down to the innermost one of the C frame before.
    fn read_by_c_frames(&mut self, first: u64, root: u64) -> Result<(), BadChain> {
        let previous = self.interpreter.layout.frame_previous;
        let mut c_frame = first;
        if c_frame != 0 && c_frame != root {
            let before = self.word(c_frame, C_FRAME_PREVIOUS_3_11)?;
            let current = self.word(c_frame, C_FRAME_CURRENT_3_11)?;
            let outer = if before == 0 { 0 } else { self.word(before, C_FRAME_CURRENT_3_11)? };
            if before != 0 && !self.leads_to(current, outer) {
                c_frame = before;
            }
        }
        let mut frame = if c_frame == 0 { 0 } else { self.word(c_frame, C_FRAME_CURRENT_3_11)? };
        while c_frame != 0 && c_frame != root && frame != 0 {
            let before = self.word(c_frame, C_FRAME_PREVIOUS_3_11)?;
            let outer = if before == 0 { 0 } else { self.word(before, C_FRAME_CURRENT_3_11)? };
            self.meet(c_frame)?;
            while frame != outer && frame != 0 {
                self.meet(frame)?;
                self.frame(frame)?;
                frame = self.word(frame, previous)?;
            }
            self.close(Place::Around(c_frame));
            c_frame = before;
        }
        Ok(())
    }

    /// 3.12: the innermost frame, by the innermost C frame.
    fn first_behind_c_frame(&mut self, c_frame: u64) -> Result<u64, BadChain> {
        let frame = self.word(c_frame, C_FRAME_CURRENT_3_12)?;
        let before = self.word(c_frame, C_FRAME_PREVIOUS_3_12)?;
        if before == 0 {
            return Ok(frame);
        }
        let outer = self.word(before, C_FRAME_CURRENT_3_12)?;
        Ok(if self.leads_to(frame, outer) { frame } else { outer })
    }

    /// Decides whether the frames of the innermost C frame are stored in it already.
    ///
    /// A call links its C frame some instructions before it stores a frame there; a thread that was
    /// stopped in between has what was there before. Right frames have code, and lead to those of
    /// the C frame before; or their list ends, as that of a greenlet does.
    fn leads_to(&mut self, first: u64, outer: u64) -> bool {
        let layout = &self.interpreter.layout;
        let mut frame = first;
        let mut is_behind_mark = false;
        let mut seen = HashSet::new();
        for _ in 0..MAX_LINKS {
            if frame == outer || frame == 0 {
                return true;
            }
            if is_behind_mark || !seen.insert(frame) || self.spend().is_err() {
                return false;
            }
            if layout.chain == ChainKind::MarksBehindCFrame {
                let owner = self.words.byte(frame.wrapping_add(layout.frame_owner));
                is_behind_mark = owner.is_none_or(|owner| owner >= FIRST_MARK_OWNER);
            }
            let code = self.words.word(frame.wrapping_add(layout.frame_code)).map(|code| code & !3);
            let is_code = code.is_some_and(|code| {
                is_behind_mark
                    || self.codes.read(code, self.interpreter, self.index, self.words) != ReadCode::Unreadable
            });
            let Some(previous) =
                self.words.word(frame.wrapping_add(layout.frame_previous)).filter(|_| is_code)
            else {
                return false;
            };
            frame = previous;
        }
        false
    }

    /// 3.8, 3.9: one call of the evaluation function for each frame.
    fn read_objects(&mut self, first: u64) -> Result<(), BadChain> {
        let mut frame = first;
        while frame != 0 {
            self.meet(frame)?;
            self.frame(frame)?;
            self.close(Place::Counted);
            frame = self.word(frame, self.interpreter.layout.frame_previous)?;
        }
        Ok(())
    }

    /// 3.10: a list of frames, and one of the C frames that run them.
    ///
    /// They differ in length where a generator into which `throw` delegates does not run; and for
    /// some instructions at the start and the end of a call, when its C frame is in the list and
    /// its frame is not, or the reverse.
    fn read_objects_with_c_frames(&mut self, state: u64, first: u64) -> Result<(), BadChain> {
        let root = state.wrapping_add(self.interpreter.layout.state_root);
        let frames = self.list(first, self.interpreter.layout.frame_previous, 0)?;
        let c_frames = self.list(self.word(state, STATE_C_FRAME_3_10)?, C_FRAME_PREVIOUS_3_10, root)?;
        let mut waiting = Vec::with_capacity(frames.len());
        for (index, &frame) in frames.iter().enumerate() {
            waiting.push(index > 0 && self.is_suspended_generator(frame)?);
        }
        let waiting_count = waiting.iter().filter(|&&is_waiting| is_waiting).count();
        let mut without = frames.len().saturating_sub(c_frames.len());
        let is_leaving = without > waiting_count;
        let is_entering = c_frames.len() > frames.len();
        let mut marks = c_frames.iter().skip(usize::from(is_entering)).copied();
        for (index, (&frame, &is_waiting)) in frames.iter().zip(&waiting).enumerate() {
            self.frame(frame)?;
            if index == 0 && is_leaving {
                without = without.saturating_sub(1);
            } else if is_waiting && without > 0 {
                without -= 1;
            } else if let Some(mark) = marks.next() {
                self.close(Place::Around(mark));
            }
        }
        Ok(())
    }

    fn list(&mut self, first: u64, previous: u64, end: u64) -> Result<Vec<u64>, BadChain> {
        let mut all = Vec::new();
        let mut at = first;
        while at != 0 && at != end {
            self.meet(at)?;
            all.push(at);
            if all.len() > MAX_LINKS {
                return Err(BadChain);
            }
            at = self.word(at, previous)?;
        }
        Ok(all)
    }

    /// A frame that runs has no stack of values.
    fn is_suspended_generator(&self, frame: u64) -> Result<bool, BadChain> {
        let depth = self.words.half(frame.wrapping_add(STACK_DEPTH_3_10)).ok_or(BadChain)? as i32;
        Ok(depth >= 0 && self.word(frame, GENERATOR_3_10)? != 0)
    }

    /// Adds a frame to the run.
    fn frame(&mut self, frame: u64) -> Result<(), BadChain> {
        let layout = &self.interpreter.layout;
        // The low two bits may be a tag.
        let code = self.word(frame, layout.frame_code)? & !3;
        let instruction = match layout.chain {
            ChainKind::Objects | ChainKind::ObjectsAndCFrames => {
                let index = self.words.half(frame.wrapping_add(layout.frame_instruction)).ok_or(BadChain)?;
                i64::from(index as i32) * if layout.chain == ChainKind::Objects { 1 } else { 2 }
            }
            _ => {
                let pointer = self.word(frame, layout.frame_instruction)?;
                pointer.wrapping_sub(code.wrapping_add(layout.code_start)) as i64
            }
        };
        let offset = u32::try_from(instruction).unwrap_or(PythonFrame::NOT_BEGUN);
        let code = match self.codes.read(code, self.interpreter, self.index, self.words) {
            ReadCode::Contents(number) => Some(number),
            ReadCode::Unreadable => None,
            ReadCode::Artificial => return Ok(()),
        };
        self.run.push(PythonFrame { code, offset });
        Ok(())
    }

    /// Ends the run. One without frames has no place: the call has just begun, or is ending.
    fn close(&mut self, place: Place) {
        if !self.run.is_empty() {
            self.runs.push(PythonRun { place, frames: std::mem::take(&mut self.run) });
        }
    }

    /// Counts what lies at an address. One that is on the list already makes it a cycle.
    fn meet(&mut self, address: u64) -> Result<(), BadChain> {
        if !self.seen.insert(address) {
            return Err(BadChain);
        }
        self.spend()
    }

    fn spend(&mut self) -> Result<(), BadChain> {
        *self.budget = self.budget.checked_sub(1).ok_or(BadChain)?;
        Ok(())
    }

    fn word(&self, address: u64, offset: u64) -> Result<u64, BadChain> {
        self.words.word(address.wrapping_add(offset)).ok_or(BadChain)
    }
}
