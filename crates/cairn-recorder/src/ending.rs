//! Ends a recording, and gives back what it holds of the process.

use core::sync::atomic::Ordering;

use cairn_format::recording::control::EarlyEnd;
use cairn_format::recording::{Clock, EndReason, control};

use crate::clock;
use crate::lanes;
use crate::mode::{self, Mode, RECORDING, generation_of, mode_of, word_of};
use crate::os;
use crate::recorder::{self, Recorder, current};
use crate::sampling;

/// Ends the recording. Events that other threads are writing at this moment may still be added.
pub fn stop(reason: EndReason) {
    if let Some(recorder) = current() {
        end_in(recorder, reason, Mode::Ended);
    }
}

/// Notes in the recording that this process calls `exec`, or that the call has failed.
///
/// A recording that ends with this note is that of a program which became another one.
pub fn note_exec(is_calling: bool) {
    if let Some(recorder) = current() {
        recorder.spool.word(control::IN_EXEC).store(is_calling.into(), Ordering::Release);
    }
}

/// Ends the recording right before the program forbids itself system calls (seccomp). It makes none
/// from then on. The recording states why it ended, and counts the events that are not in it.
///
/// A child that is forked afterwards is not recorded, as after
/// [`forbid_system_calls`](crate::forbid_system_calls).
pub fn end_before_sandbox() {
    mode::forbid_calls();
    let Some(recorder) = current() else { return };
    recorder.spool.forbid_calls();
    // A full recording has stated another reason already.
    if matches!(mode::mode(), Mode::Recording | Mode::Paused) {
        recorder.note_early_end(EarlyEnd::Sandbox);
    }
    end_in(recorder, EndReason::Stopped, Mode::LockedIn);
}

/// Ends the recording of `recorder` in that mode.
fn end_in(recorder: &Recorder, reason: EndReason, ended: Mode) {
    let _errno = os::ErrnoGuard::new();
    if mode::mode() == Mode::Recording {
        let clocks = clock::reading();
        lanes::append(4, |sink| sink.clock(&clocks));
        let Clock { counter, .. } = clocks;
        lanes::append(2, |sink| sink.end(reason, counter));
    }
    // A single update: other threads may pause and resume meanwhile.
    let own = recorder.generation();
    let end = |word: u64| {
        let is_own = generation_of(word) == own;
        let is_under_way = matches!(mode_of(word), Mode::Recording | Mode::Paused | Mode::Full);
        (is_own && is_under_way).then_some(word_of(ended, own))
    };
    if RECORDING.fetch_update(Ordering::SeqCst, Ordering::Relaxed, end).is_ok() {
        recorder.publish_state();
    }
}

/// Gives back the file of a recording that has [ended](stop), and most of its memory.
///
/// The file's storage is free as soon as no other process uses it. Some KiB for each thread remain,
/// because a thread may be writing an event. Meant for processes that run on for long.
///
/// On Windows the file stays mapped, and cannot be removed, until the process ends.
pub fn leave_file() {
    let Some(recorder) = current() else { return };
    if mode::mode() == Mode::Ended && !mode::forbids_calls() {
        let _errno = os::ErrnoGuard::new();
        recorder.shrink(0);
        recorder.spool.leave_file();
        recorder.logs().for_each(crate::thread_log::ThreadLog::forget_filter);
    }
}

/// Returns true when recordings have ended whose memory is still mapped.
#[must_use]
pub fn has_ended_memory() -> bool {
    mode::mode() == Mode::Ended && current().is_some()
}

/// Unmaps what ended recordings have left: windows, tables, the logs of threads, the stack table.
///
/// Afterwards the recorder is as if no recording had begun, except that the numbers of recordings
/// continue.
///
/// # Safety
///
/// No other thread runs before it returns, none was stopped inside the recorder or a capture, and
/// the [word](crate::thread_word_offset) of every thread is null. The calling thread is not inside
/// an event either.
#[cfg(target_os = "linux")]
pub unsafe fn release_ended() {
    if !has_ended_memory() || mode::forbids_calls() {
        return;
    }
    let _errno = os::ErrnoGuard::new();
    RECORDING.store(word_of(Mode::Off, 0), Ordering::SeqCst);
    let mut at = recorder::unpublish();
    // SAFETY: null, or a published recorder; unmapped in this loop alone, after its last use.
    while let Some(recorder) = unsafe { at.as_ref() } {
        at = recorder.previous.load(Ordering::Relaxed);
        // SAFETY: the recording has ended, because a new one starts only after that; no thread uses
        // it, by contract.
        unsafe { recorder.release() };
    }
    // SAFETY: no thread is inside a capture, by contract, and the recorders, which were all that
    // held numbers of stacks, are unmapped.
    unsafe { cairn_capture::forget_stacks() };
}

/// Wipes the recorder's memory in a forked child where the kernel does not.
/// [`needs_fork_hook`](crate::needs_fork_hook) reports that. The child's first event then finds
/// that it is in a child.
///
/// # Safety
///
/// The process is a child that `fork` has just made of the one that records, and has one thread.
pub unsafe fn wipe_in_child() {
    // SAFETY: the contract of this function is that of `wipe`.
    unsafe { recorder::wipe() };
    sampling::wipe_in_child();
}

/// Notes that the process ends through `exit`, when, and its most resident memory. Later exit
/// handlers are still recorded. It makes no system call after the program has forbidden them to
/// itself.
///
/// The C library calls it among the destructors of the program or library that contains this crate,
/// also when `main` returns. A second call changes nothing.
pub fn exiting() {
    // Wiped in a forked child, whose end is not that of the program.
    let Some(recorder) = recorder::published().filter(|recorder| !recorder.is_wiped()) else { return };
    let forbids_calls = mode::forbids_calls();
    // A child whose memory is not wiped, or is its parent's.
    if !forbids_calls && os::process_id() != recorder.process {
        return;
    }
    let word = |at: usize| recorder.spool.word(at);
    // Without a vDSO, reading the clocks is a system call.
    if !forbids_calls && word(control::EXIT_COUNTER).load(Ordering::Relaxed) == 0 {
        let _errno = os::ErrnoGuard::new();
        let clocks = clock::reading();
        word(control::EXIT_MONOTONIC_NANOS).store(clocks.monotonic_nanos, Ordering::Relaxed);
        word(control::EXIT_WALL_NANOS).store(clocks.wall_nanos, Ordering::Relaxed);
        word(control::EXIT_COUNTER).store(clocks.counter, Ordering::Release);
        word(control::PEAK_RESIDENT_BYTES).store(os::peak_resident_bytes(), Ordering::Relaxed);
    }
    word(control::EXITING).store(1, Ordering::Release);
}

#[cfg(target_os = "linux")]
extern "C" fn note_exit() {
    exiting();
}

/// Entry of the destructors, which run when the process calls `exit` or returns from `main`. They
/// do not run when it is killed or calls `_exit`. A static entry: a list of exit handlers would
/// have to grow in a signal handler that marks something first.
#[cfg(target_os = "linux")]
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = note_exit;
