//! Puts Python frames into native stacks.
//!
//! ```text
//!   native frames, by stack pointer      marks      merged, innermost first
//!   0x7f40..0x80c0  evaluation           0x7f88     inner(), outer(), evaluation
//!   0x80c0..0x8100  list.sort                       list.sort
//!   0x8100..0x8280  evaluation           0x8148     <module>, evaluation
//! ```
//!
//! The native frame around a mark runs the Python frames of that mark, if it runs code of the
//! interpreter's own module. Names of functions decide nothing, because compilers split the
//! evaluation function; only 3.8 and 3.9, which have no marks, are counted by its symbol.

use cairn_format::AbsoluteAddress;
use cairn_unwind::AddressRange;

use super::chain::{Place, PythonChain, PythonRun};
use super::interpreter::PythonInterpreter;
use super::{MixedFrame, MixedStack, PythonFrames, PythonNote};
use crate::process::{StopReason, Thread, ThreadFrame, ThreadSource, ThreadStack};

impl PythonFrames {
    /// Puts the Python frames of a thread into its native stack, which was walked up to `limit`
    /// frames. The result has at most as many.
    #[must_use]
    pub fn merge<S: ThreadSource>(
        &self,
        source: &S,
        thread: &Thread,
        stack: ThreadStack,
        limit: u32,
    ) -> MixedStack {
        let ThreadStack { frames: natives, stop } = stack;
        let mut notes: Vec<PythonNote> = self
            .refused
            .iter()
            .filter(|(module, _)| natives.iter().any(|native| runs_in(*native, *module)))
            .map(|(_, refusal)| PythonNote::Refused(*refusal))
            .collect();
        let placed_natives = PlacedNatives::new(&natives);
        let chains: Vec<&PythonChain> = self
            .chains
            .iter()
            .filter(|chain| self.is_of_thread(chain, source, thread, &placed_natives))
            .collect();
        if chains.iter().any(|chain| !chain.is_whole) {
            notes.push(PythonNote::Unreadable);
        }
        let counted = chains.iter().filter(|chain| is_counted(chain)).count();
        let mut placed: Vec<(Option<usize>, &PythonRun)> = Vec::new();
        if counted > 1 {
            notes.push(PythonNote::SeveralInterpreters);
        } else {
            for chain in &chains {
                let Some(interpreter) = self.interpreters.get(chain.interpreter) else { continue };
                let places = match is_counted(chain) {
                    true => places_by_count(chain, interpreter, &natives, stop),
                    false => places_by_marks(chain, interpreter, &placed_natives),
                };
                placed.extend(places.into_iter().zip(&chain.runs));
            }
            // Several interpreters on one stack; the runs of each are in order already.
            placed.sort_by_key(|(place, _)| place.unwrap_or(usize::MAX));
        }
        let is_cut = stop == StopReason::Limit;
        let mut runs = placed.into_iter().filter(|(place, _)| place.is_some() || !is_cut).peekable();
        let mut frames = Vec::with_capacity(natives.len());
        for (index, native) in natives.into_iter().enumerate() {
            while let Some((_, run)) = runs.next_if(|(place, _)| *place == Some(index)) {
                frames.extend(run.frames.iter().copied().map(MixedFrame::Python));
            }
            frames.push(MixedFrame::Native(native));
        }
        if runs.peek().is_some() {
            notes.push(PythonNote::Unplaced);
            frames.extend(runs.flat_map(|(_, run)| &run.frames).copied().map(MixedFrame::Python));
        }
        frames.truncate(limit as usize);
        MixedStack { frames, stop, notes }
    }

    /// Decides whether a list is of this thread.
    ///
    /// A mark of it lies in a native frame, or the list names the thread and lies on its stack,
    /// whose native frames ended before.
    fn is_of_thread<S: ThreadSource>(
        &self,
        chain: &PythonChain,
        source: &S,
        thread: &Thread,
        natives: &PlacedNatives<'_>,
    ) -> bool {
        let names_thread = thread.thread_pointer.is_some_and(|id| id == chain.thread_id);
        let mut marks = chain.runs.iter().filter_map(|run| match run.place {
            Place::Around(mark) => Some(mark),
            _ => None,
        });
        let Some(first) = marks.clone().next() else { return names_thread };
        let Some(interpreter) = self.interpreters.get(chain.interpreter) else { return false };
        if marks.any(|mark| natives.around(mark, interpreter).is_some()) {
            return true;
        }
        let Some(innermost) = natives.frames.first() else { return false };
        let stack = source.modules().mapping_at(AbsoluteAddress::new(innermost.sp));
        names_thread
            && first >= innermost.sp
            && stack.is_some_and(|stack| stack.range.contains(AbsoluteAddress::new(first)))
    }
}

fn is_counted(chain: &PythonChain) -> bool {
    chain.runs.iter().any(|run| run.place == Place::Counted)
}

/// Native frames, to be found by an address on the stack.
struct PlacedNatives<'a> {
    frames: &'a [ThreadFrame],
    /// Indices, by ascending stack pointer; of equal ones, outer frames last.
    by_sp: Vec<usize>,
}

impl<'a> PlacedNatives<'a> {
    fn new(frames: &'a [ThreadFrame]) -> Self {
        let mut by_sp: Vec<usize> = (0..frames.len()).collect();
        by_sp.sort_by_key(|&index| frames.get(index).map(|frame| frame.sp));
        Self { frames, by_sp }
    }

    /// Finds the frame around a mark, if it runs code of the interpreter.
    fn around(&self, mark: u64, interpreter: &PythonInterpreter) -> Option<usize> {
        let behind =
            self.by_sp.partition_point(|&index| self.frames.get(index).is_some_and(|frame| frame.sp <= mark));
        let index = *self.by_sp.get(behind.checked_sub(1)?)?;
        // Nothing lies in the outermost frame of all.
        let (frame, outer) = (self.frames.get(index)?, self.frames.get(index + 1)?);
        (mark < outer.sp && runs_in(*frame, interpreter.module)).then_some(index)
    }
}

/// Finds the native frame of each run. A run without a mark goes with the next one that has a
/// place; those outside of the last one have none.
fn places_by_marks(
    chain: &PythonChain,
    interpreter: &PythonInterpreter,
    natives: &PlacedNatives<'_>,
) -> Vec<Option<usize>> {
    let mut from = 0;
    let mut places: Vec<Option<usize>> = chain
        .runs
        .iter()
        .map(|run| {
            let Place::Around(mark) = run.place else { return None };
            let found = natives.around(mark, interpreter).filter(|&found| found >= from)?;
            from = found;
            Some(found)
        })
        .collect();
    let mut next = None;
    for place in places.iter_mut().rev() {
        next = place.or(next);
        *place = next;
    }
    places
}

/// Matches each frame with a call of the evaluation function, from the innermost one on.
///
/// Calls may be more: 3.9 cuts its list in a generator into which `throw` delegates, and a call
/// that has just begun has no frame yet. If they are fewer, none of them is certain.
fn places_by_count(
    chain: &PythonChain,
    interpreter: &PythonInterpreter,
    natives: &[ThreadFrame],
    stop: StopReason,
) -> Vec<Option<usize>> {
    let is_call = |native: &ThreadFrame| runs_in(*native, interpreter.evaluation);
    let calls: Vec<usize> =
        (0..natives.len()).filter(|&index| natives.get(index).is_some_and(is_call)).collect();
    let runs = chain.runs.len();
    let is_entering = calls.len() == runs + 1 && calls.first() == Some(&0);
    let is_cut = stop != StopReason::EndOfStack;
    if calls.len() < runs && !is_cut {
        return vec![None; runs];
    }
    let mut calls = calls.into_iter().skip(usize::from(is_entering));
    chain.runs.iter().map(|_| calls.next()).collect()
}

fn runs_in(native: ThreadFrame, range: AddressRange) -> bool {
    native.frame.lookup_address().is_some_and(|address| range.contains(address))
}
