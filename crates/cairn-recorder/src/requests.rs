//! Pauses and resumes recording, as the program or its parent process requests it, and starts the
//! recording of a forked child.

use core::sync::atomic::{AtomicPtr, Ordering};

use cairn_format::recording::control;

use crate::epochs;
use crate::mode::{self, Mode, RECORDING, Starter, generation_of, is_on, mode_of};
use crate::os;
use crate::recorder::{self, Recorder, current, published};

/// Returns the recorder if events are recorded now. Notices a fork, and requests of the parent.
#[cold]
pub(crate) fn recording() -> Option<&'static Recorder> {
    let Some(recorder) = current() else { return child() };
    match mode::mode() {
        Mode::Recording => Some(recorder),
        Mode::Paused => {
            obey(recorder.spool.base());
            is_on().then_some(recorder)
        }
        Mode::Full | Mode::LockedIn => {
            recorder.count_lost_events(1);
            None
        }
        _ => None,
    }
}

/// Function that starts the recording of a forked child; null when children are not recorded.
static CHILD_STARTER: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

/// Sets a function that is called in each forked child, at its first event. It may call
/// [`start_in_child`](crate::start_in_child). It runs wherever the event is, on that stack: in
/// malloc, or in a signal handler.
pub fn set_child_starter(starter: extern "C" fn()) {
    CHILD_STARTER.store(starter as *mut (), Ordering::Release);
}

/// Returns the recorder of a forked child, which is started at the first call.
#[cold]
fn child() -> Option<&'static Recorder> {
    let starter = CHILD_STARTER.load(Ordering::Acquire);
    if mode::mode() != Mode::Child
        || starter.is_null()
        || mode::forbids_calls()
        || !recorder::is_first_child_start()
    {
        return None;
    }
    let _errno = os::ErrnoGuard::new();
    // SAFETY: not null, so `set_child_starter` has stored it, which takes this type only.
    let starter = unsafe { core::mem::transmute::<*mut (), extern "C" fn()>(starter) };
    starter();
    let recorder = current()?;
    is_on().then_some(recorder)
}

/// Lets events of a new recording come, and obeys requests that came before it could be paused.
pub(crate) fn finish_start(starter: Starter, recorder: &Recorder, is_paused: bool) {
    starter.finish(recorder.generation(), is_paused);
    recorder.publish_state();
    obey(recorder.spool.base());
}

/// Returns true while events are recorded.
#[inline]
#[must_use]
pub fn is_recording() -> bool {
    is_on() && current().is_some()
}

/// Returns true from the start of a recording to its end, also while it is paused or full.
#[must_use]
pub fn is_under_way() -> bool {
    current().is_some()
        && matches!(mode::mode(), Mode::Recording | Mode::Paused | Mode::Full | Mode::Starting)
}

/// Returns true while recording is paused and no request to resume is pending.
///
/// A hook that asks this first has nothing else to do then, and takes a few instructions. False in
/// a forked child, which has to leave its parent's recording.
#[inline(always)]
#[must_use]
pub fn is_at_rest() -> bool {
    let Some(word) = mode::paused_word() else { return false };
    let Some(recorder) = published() else { return false };
    // The generation is wiped in a child, which must not touch the file.
    recorder.generation() == generation_of(word)
        && recorder.spool.word(control::COMMAND).load(Ordering::Relaxed) == control::Command::Pause.to_word()
}

/// Records no events until [`resume`], by the program or by its parent. Modules and stacks are
/// still followed.
pub fn pause() {
    request(control::Command::Pause);
}

/// Records events again after [`pause`].
pub fn resume() {
    request(control::Command::Record);
}

/// Stores a request; the last one counts, whether it is the program's or its parent's.
fn request(command: control::Command) {
    let Some(recorder) = current() else { return };
    recorder.spool.word(control::COMMAND).store(command.to_word(), Ordering::Release);
    obey(recorder.spool.base());
}

/// Pauses or resumes as the command word at `base` requests. The word of an earlier recording, to
/// which a thread may still write an event, is ignored.
pub(crate) fn obey(base: usize) {
    let Some(recorder) = current().filter(|recorder| recorder.spool.base() == base) else { return };
    let requested = || recorder.spool.word(control::COMMAND).load(Ordering::SeqCst);
    let own = recorder.generation();
    loop {
        let (word, now) = (requested(), RECORDING.load(Ordering::SeqCst));
        let is_paused = mode_of(now) == Mode::Paused && generation_of(now) == own;
        let wants_pause = matches!(control::Command::from_word(word), control::Command::Pause);
        let is_done = match (wants_pause, is_paused) {
            (true, false) if now == own => mode::change(now, mode::next_pause(own)),
            (false, true) => {
                epochs::forget_blocks();
                mode::change(now, own)
            }
            _ => true,
        };
        recorder.publish_state();
        if is_done && requested() == word {
            return;
        }
    }
}

/// Limits the recorder's use of the address space. The program is about to limit its own to
/// `limit_bytes`, or to lock all of it in memory. The recording may end earlier by it.
pub fn limit_room(limit_bytes: u64) {
    if mode::forbids_calls() {
        return;
    }
    let _errno = os::ErrnoGuard::new();
    match current() {
        Some(recorder) => recorder.shrink(limit_bytes),
        None if mode::mode() == Mode::Child => {}
        None => return,
    }
    cairn_capture::take_less_room(limit_bytes);
}

/// Makes no more system calls: call it before the program forbids them to itself (seccomp).
///
/// From then on events have to fit into the storage that the file has already. The strict mode of
/// seccomp forbids reading the processor's counter as well: [`stop`](crate::stop) the recording
/// there.
///
/// A child that is forked afterwards is not recorded, and neither is one that has not recorded
/// anything before this call: a recording begins with system calls.
pub fn forbid_system_calls() {
    mode::forbid_calls();
    if let Some(recorder) = current() {
        recorder.spool.forbid_calls();
    }
}

/// Returns true after [`forbid_system_calls`], in this process or in the one it was forked from.
#[must_use]
pub fn forbids_system_calls() -> bool {
    mode::forbids_calls()
}

/// Leaves the parent's recording in a forked child at once, and releases the parent's file. Without
/// this call the child's first event does it. In any other process it does nothing.
///
/// A `vfork` child may call it too: it shares its parent's memory and counts as the parent's
/// thread.
pub fn forked_child() {
    let _ = current();
}

/// Notes the number of function pointers in modules that bypass the hooks of a preloaded library.
/// Calls through them are not in the recording.
pub fn note_bypassing_slots(count: u64) {
    if let Some(recorder) = current() {
        recorder.spool.word(control::PASSING_SLOTS).fetch_max(count, Ordering::Relaxed);
    }
}
