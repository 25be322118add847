//! Python frames of captured stacks, compared with those that the interpreter itself reports.

pub mod runs;

use std::ffi::{c_char, c_int};
use std::sync::atomic::{AtomicU64, Ordering};

use cairn_capture::{PythonSymbols, StackId, capture, python_code, read_python_frames};
use cairn_format::recording::InterpreterState;
use cairn_wire::python_lines::line_at;

use crate::report::{Counter, add, store_wrong};

/// Addresses of an interpreter, as `fixtures/programs/python_hooks.c` finds them.
#[repr(C)]
pub struct FoundSymbols {
    version: u64,
    runtime: u64,
    code_type: u64,
    current_state: u64,
    own_state: u64,
    evaluation: u64,
    evaluation_bytes: u64,
}

/// A frame as the interpreter reports it; a length of -1 is a text that is not UTF-8.
#[repr(C)]
pub struct TrueFrame {
    file: *const c_char,
    name: *const c_char,
    file_bytes: i64,
    name_bytes: i64,
    line: i64,
}

/// Address and bytes of the evaluation function.
static EVALUATION: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// A function whose symbol is shorter was split by the compiler: its address tells nothing.
const WHOLE_BYTES: u64 = 10_000;

/// Reads Python frames from now on; 1 when they can be read.
///
/// # Safety
///
/// - The addresses are those of a loaded interpreter's symbols.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn truth_python_begin(found: &FoundSymbols) -> c_int {
    let symbols = PythonSymbols {
        version: found.version as u32,
        runtime: found.runtime,
        code_type: found.code_type,
        current_state: found.current_state,
        own_state: found.own_state,
        evaluation: (found.evaluation, found.evaluation_bytes),
    };
    EVALUATION[0].store(found.evaluation, Ordering::Relaxed);
    EVALUATION[1].store(found.evaluation_bytes, Ordering::Relaxed);
    // SAFETY: the caller's promise.
    let state = unsafe { read_python_frames(&symbols) };
    add(Counter::Failed, u64::from(state.is_some_and(|state| state != InterpreterState::Read)));
    c_int::from(state.is_none_or(|state| state == InterpreterState::Read))
}

/// Captures the caller's stack, and compares its native frames as [`truth_check`] does.
///
/// [`truth_check`]: crate::checks::truth_check
#[unsafe(no_mangle)]
pub extern "C" fn truth_python_capture() -> u32 {
    let stack = capture();
    crate::checks::compare_with_callers(stack, Counter::Stacks);
    stack.id().number()
}

/// Compares the Python frames of a stack with the interpreter's own answer.
///
/// A count of `usize::MAX` is for a thread without the interpreter's lock, which cannot ask.
///
/// # Safety
///
/// - `frames` has `count` frames, and their texts are valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn truth_python_compare(stack: u32, frames: *const TrueFrame, count: usize) {
    let own = || python_frames(stack);
    if count == usize::MAX {
        add(Counter::PythonWithoutLock, u64::from(own().next().is_some()));
        return;
    }
    let truth = match count {
        0 => &[],
        // SAFETY: the caller promises that many frames.
        count => unsafe { std::slice::from_raw_parts(frames, count) },
    };
    add(Counter::PythonStacks, 1);
    add(Counter::PythonFrames, truth.len() as u64);
    // The interpreter does not report a function that has not run its first instruction of its own.
    let hidden = own().count().checked_sub(truth.len()).filter(|&hidden| hidden <= 1);
    let is_hidden = |frame: u64| frame as u32 == u32::MAX || (frame as u32) < MOST_PROLOGUE_BYTES;
    let is_right = hidden.is_some_and(|hidden| {
        own().take(hidden).all(is_hidden)
            // SAFETY: the caller promises valid texts.
            && own().skip(hidden).zip(truth).all(|(frame, truth)| unsafe { is_same(frame, truth) })
    });
    add(Counter::PythonHidden, hidden.unwrap_or(0) as u64);
    if !is_right {
        add(Counter::PythonWrong, 1);
        store_wrong(own(), truth.iter().map(|frame| frame.line as u64));
    }
    check_places(stack);
}

/// Longest beginning of a function that the interpreter hides: its cells and free variables.
const MOST_PROLOGUE_BYTES: u32 = 512;

/// The Python frames of a stack, innermost first.
fn python_frames(stack: u32) -> impl Iterator<Item = u64> {
    rows(stack).filter_map(|row| row.interpreted)
}

fn rows(stack: u32) -> impl Iterator<Item = cairn_capture::StackRow> {
    let first = StackId::from_number(stack).and_then(StackId::row);
    std::iter::successors(first, |row| row.parent.row())
}

/// # Safety
///
/// - The texts of `truth` are valid.
unsafe fn is_same(frame: u64, truth: &TrueFrame) -> bool {
    let Some(code) = python_code((frame >> 32) as u32) else { return false };
    let is_text = |text: *const c_char, length: i64, own: &[u8]| match usize::try_from(length) {
        // SAFETY: the caller promises valid texts.
        Ok(length) => own == unsafe { std::slice::from_raw_parts(text.cast::<u8>(), length) },
        Err(_) => true,
    };
    let line = match frame as u32 {
        u32::MAX => Some(code.first_line),
        offset => line_at(code.format, code.first_line, code.line_table, offset),
    };
    is_text(truth.file, truth.file_bytes, code.file)
        && is_text(truth.name, truth.name_bytes, code.name)
        && line.map_or(truth.line <= 0, |line| i64::from(line) == truth.line)
}

/// Checks that every run of Python frames lies in a call of the evaluation function.
///
/// Counts the calls that have none.
fn check_places(stack: u32) {
    let [start, bytes] = EVALUATION.each_ref().map(|word| word.load(Ordering::Relaxed));
    if bytes < WHOLE_BYTES {
        return;
    }
    let mut is_inside = false;
    for row in rows(stack) {
        let is_python = row.interpreted.is_some();
        let address = row.frame.ok().and_then(cairn_format::Frame::lookup_address);
        let evaluates = address.is_some_and(|address| address.value().wrapping_sub(start) < bytes);
        if is_inside && !is_python && !evaluates {
            add(Counter::PythonElsewhere, 1);
        }
        if evaluates && !is_inside {
            add(Counter::PythonBare, 1);
        }
        is_inside = is_python;
    }
    // Outside of the outermost native frame.
    add(Counter::PythonElsewhere, u64::from(is_inside));
}
