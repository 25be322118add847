//! `cairn heap --attach` and `--detach`: records a running process.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cairn_format::recording::control::{self, State};
use cairn_format::recording::{FILE_HEADER_BYTES, FileHeader, Shape};
use cairn_memory::process::{self, FoundBy, StopReason, StoppedProcess, ThreadSource};
use cairn_run::{Announcements, AttachError, End, Interrupts, Library, Target};

use super::live::Recordings;
use super::{HeapCommand, Refused};
use crate::output::{Outcome, complain};

impl From<AttachError> for Refused {
    fn from(error: AttachError) -> Self {
        let outcome = match error {
            // As for `cairn heap ctl`, which needs a recorded process too.
            AttachError::NoSuchProcess { .. }
            | AttachError::Ended { .. }
            | AttachError::NotAttached { .. } => Outcome::Partly,
            _ => Outcome::Refused,
        };
        Self { outcome, message: error.to_string() }
    }
}

impl HeapCommand {
    pub(super) fn attach(&self, process: u32) -> Result<Outcome, Refused> {
        let mut target = inspect(process)?;
        // If these links may not be followed, the library refuses instead.
        if target.shared_files().any(|path| is_recorded_to(&path, process)) {
            let message = format!("process {process}: is recorded already");
            return Err(Refused { outcome: Outcome::Refused, message });
        }
        let library = match target.loaded_library() {
            Some(path) => path,
            None => unpacked(&target)?,
        };
        let output = self.output()?;
        let announcements = Announcements::new()
            .map_err(|error| Refused::because("the directory for temporary files", &error))?;
        target.sees(&library)?;
        target.sees(announcements.path())?;
        target.sees(output.parent().unwrap_or(Path::new("/")))?;
        let options = self.options(&named(&output, process), announcements.path());
        let interrupts = Interrupts::hold();
        with_thread(process, &target, |thread| target.attach(thread, &library, &options))?;
        target.look_again();
        if !self.quiet {
            complain(&format_args!(
                "process {process} is recorded; Ctrl-C ends the recording, and the process continues"
            ));
        }
        self.follow_attached(process, &target, &library, announcements, &interrupts)
    }

    fn follow_attached(
        &self,
        process: u32,
        target: &Target,
        library: &Path,
        mut announcements: Announcements,
        interrupts: &Interrupts,
    ) -> Result<Outcome, Refused> {
        const TICK: Duration = Duration::from_millis(1);
        /// Pause between two reads of the mappings, which cost more than reads of the recording.
        const LOOK: Duration = Duration::from_millis(200);
        let began = Instant::now();
        let mut looked = Instant::now();
        let shows_status = !self.quiet && io::stderr().is_terminal();
        let mut recordings = Recordings::new(None, shows_status, self.max_size.unwrap_or(u64::MAX));
        let mut failure = None;
        loop {
            for announced in announcements.read().unwrap_or_default() {
                recordings.add(announced);
            }
            recordings.tick();
            if recordings.has_ended() {
                break;
            }
            if looked.elapsed() > LOOK {
                looked = Instant::now();
                if !target.has_library() {
                    break;
                }
            }
            let is_over = self.duration.is_some_and(|duration| began.elapsed() >= duration);
            if interrupts.wait(TICK) || is_over {
                failure = end_recording(process, target, library).err();
                break;
            }
        }
        // No error if another command has detached, or the process has ended meanwhile.
        for announced in announcements.read().unwrap_or_default() {
            recordings.add(announced);
        }
        recordings.tick();
        let failure = failure.filter(|_| target.has_library() && !recordings.has_ended());
        if failure.is_some() {
            recordings.pause();
        }
        // Only its parent knows how it ended.
        recordings.finish(End::Signal(0), self.quiet);
        match failure {
            None => Ok(Outcome::Done),
            Some(Refused { outcome, message }) => Err(Refused {
                outcome,
                message: format!(
                    "{message}; the recording is paused, `cairn heap --detach {process}` tries again"
                ),
            }),
        }
    }
}

/// Ends a recording that `--attach` began, possibly from another terminal.
pub(super) fn detach(process: u32) -> Result<Outcome, Refused> {
    let target = inspect(process)?;
    let Some(library) = target.loaded_library() else {
        return Err(AttachError::NotAttached { process }.into());
    };
    end_recording(process, &target, &library)?;
    Ok(Outcome::Done)
}

/// Checks whether a process can be attached to. Retries while it is traced: another cairn does so
/// for moments, a debugger for longer.
fn inspect(process: u32) -> Result<Target, AttachError> {
    const LONGEST: Duration = Duration::from_secs(1);
    let began = Instant::now();
    loop {
        match Target::inspect(process) {
            Err(AttachError::Busy { .. }) if began.elapsed() < LONGEST => {
                std::thread::sleep(Duration::from_millis(20));
            }
            result => return result,
        }
    }
}

/// Ends the recording of an attached process and releases the memory of the recording.
fn end_recording(process: u32, target: &Target, library: &Path) -> Result<(), Refused> {
    with_thread(process, target, |thread| target.detach(thread, library))?;
    release_memory(process, target);
    Ok(())
}

/// Waits for a moment in which no thread is inside the library, and unmaps the memory of
/// recordings. Without such a moment, the memory stays until the next attach or detach.
fn release_memory(process: u32, target: &Target) {
    const ATTEMPTS: u32 = 100;
    for attempt in 0..ATTEMPTS {
        if !target.has_left_memory() {
            return;
        }
        let look = |stopped: &StoppedProcess| release_if_quiet(stopped, target, &views(stopped, target));
        if process::while_stopped(process, look).is_err() {
            return;
        }
        std::thread::sleep(Duration::from_micros(200 + u64::from(attempt) * 100));
    }
}

fn unpacked(target: &Target) -> Result<PathBuf, Refused> {
    let library = if target.program().uses_other_allocator() {
        Library::unpack_for_allocators()
    } else {
        Library::unpack()
    };
    library
        .map(|library| library.path().to_owned())
        .map_err(|error| Refused::because("the library for recording", &error))
}

/// Fills the program's name into the pattern of the output: the program may have changed its own
/// name.
fn named(output: &Path, process: u32) -> PathBuf {
    let program = std::fs::read_link(format!("/proc/{process}/exe")).unwrap_or_default();
    let name = program.file_name().map_or_else(
        || "program".to_owned(),
        |name| name.to_string_lossy().trim_end_matches(" (deleted)").replace('%', "%%"),
    );
    let text = output.to_string_lossy().into_owned();
    let mut filled = String::new();
    let mut rest = text.as_str();
    while let Some(at) = rest.find('%') {
        let (before, field) = rest.split_at(at);
        filled.push_str(before);
        let length = field.chars().take(2).map(char::len_utf8).sum();
        let (field, behind) = field.split_at(length);
        filled.push_str(if field == "%n" { &name } else { field });
        rest = behind;
    }
    filled.push_str(rest);
    OsString::from(filled).into()
}

/// True if `process` is recording to the file at `path`.
fn is_recorded_to(path: &Path, process: u32) -> bool {
    let mut bytes = [0; FILE_HEADER_BYTES];
    let mut state = [0; 8];
    let is_read = File::open(path).is_ok_and(|file| {
        file.read_exact_at(&mut bytes, 0).is_ok()
            && file.read_exact_at(&mut state, control::STATE as u64).is_ok()
    });
    is_read
        && u64::from_le_bytes(state) != State::Ended.to_word()
        && FileHeader::read(&bytes)
            .is_ok_and(|header| header.shape == Shape::Spool && header.process == process)
}

/// Maximum time to find a usable thread, and to retry while the process is busy.
const PATIENCE: Duration = Duration::from_secs(15);
/// Pause before a retry while the process is busy, for its thread to continue.
const BUSY_PAUSE: Duration = Duration::from_millis(200);
/// Maximum pause between two stops of the process.
const LONGEST_PAUSE_MICROS: u64 = 20_000;
/// Maximum frames of a thread's stack; threads with deeper stacks are not used.
const MOST_FRAMES: u32 = 4096;
/// Maximum threads that are examined.
const MOST_THREADS: usize = 512;

/// Stops the process and calls `act` with a thread that holds no lock needed for loading a library.
/// All other threads continue first, so that they release their locks. Retries while the process is
/// busy.
fn with_thread(
    process: u32,
    target: &Target,
    act: impl Fn(u32) -> Result<(), AttachError> + Sync + Send,
) -> Result<(), Refused> {
    let began = Instant::now();
    let mut attempts = 0;
    loop {
        let look = |stopped: &StoppedProcess| -> Result<_, &'static str> {
            let views = views(stopped, target);
            release_if_quiet(stopped, target, &views);
            let thread = usable_thread(&views)?;
            for other in stopped.threads().iter().filter(|other| other.id != thread) {
                Target::release(other.id, stopped.pending_signal(other.id));
            }
            Ok(act(thread))
        };
        attempts += 1;
        let why = match process::while_stopped(process, look) {
            Ok(Ok(Ok(()))) => return Ok(()),
            Ok(Ok(Err(busy @ AttachError::Busy { .. }))) => {
                std::thread::sleep(BUSY_PAUSE);
                busy.to_string()
            }
            Ok(Ok(Err(error))) => return Err(error.into()),
            Ok(Err(reason)) => format!(
                "process {process}: {reason}, each of the {attempts} times that it was stopped; nothing was changed, try \
                 again later"
            ),
            // Another command traces it now: permission was checked before.
            Err(error @ (process::Error::TracedBy { .. } | process::Error::NoPermission { .. })) => {
                error.to_string()
            }
            Err(error) => return Err(Refused { outcome: Outcome::Refused, message: error.to_string() }),
        };
        if began.elapsed() > PATIENCE {
            return Err(Refused { outcome: Outcome::Refused, message: why });
        }
        // The pause varies, because the program may be periodic.
        std::thread::sleep(Duration::from_micros(
            300 + attempts * 7919 % (attempts * 500).min(LONGEST_PAUSE_MICROS),
        ));
    }
}

/// A stopped thread that may be used.
struct ThreadView {
    thread: u32,
    /// The reason why it cannot be used.
    obstacle: Option<&'static str>,
    /// It waits in the kernel.
    waits: bool,
    /// It is certainly outside of the library.
    is_outside: bool,
}

/// Examines threads until one can be used well, or all of them if memory is to be released.
fn views(stopped: &StoppedProcess, target: &Target) -> Vec<ThreadView> {
    let owners = target.lock_owners();
    let view = |thread: &process::Thread| {
        let registers = match &thread.registers {
            Ok(registers) => registers,
            Err(process::NoRegisters::Ended) => return None,
            Err(_) => {
                let obstacle = Some("no thread of it can be stopped");
                return Some(ThreadView { thread: thread.id, obstacle, waits: false, is_outside: false });
            }
        };
        let stack = stopped.stack(registers, MOST_FRAMES);
        let addresses =
            || stack.frames.iter().filter_map(|frame| frame.frame.lookup_address()).map(|it| it.value());
        let is_sure =
            stack.frames.iter().all(|frame| matches!(frame.found_by, FoundBy::Context | FoundBy::Cfi));
        let is_whole = is_sure && stack.stop == StopReason::EndOfStack;
        let obstacle = if stopped.pending_signal(thread.id) != 0 || !is_sure {
            Some("all of its threads handle signals or have stacks that cannot be read for sure")
        } else if stack.stop != StopReason::EndOfStack {
            Some("the stacks of its threads cannot be read to their end")
        } else if owners.contains(&thread.id) || addresses().any(|address| target.forbids(address)) {
            Some("all of its threads are inside the loader or the allocator")
        } else if addresses().all(|address| target.is_system_code(address)) {
            Some("all of its threads are about to begin or to end")
        } else {
            None
        };
        let is_outside = is_whole && !addresses().any(|address| target.is_own_code(address));
        Some(ThreadView { thread: thread.id, obstacle, waits: Target::waits(thread.id), is_outside })
    };
    let needs_all = target.has_left_memory();
    let mut views = Vec::new();
    for view in stopped.threads().iter().take(MOST_THREADS).filter_map(view) {
        let is_enough = !needs_all && view.obstacle.is_none() && view.waits;
        views.push(view);
        if is_enough {
            break;
        }
    }
    views
}

/// Returns a usable thread, or the reason why there is none. A thread that waits in the kernel is
/// preferred: it is not inside a short critical section.
fn usable_thread(views: &[ThreadView]) -> Result<u32, &'static str> {
    let usable = || views.iter().filter(|view| view.obstacle.is_none());
    let found = usable().find(|view| view.waits).or_else(|| usable().next());
    let why = views.iter().find_map(|view| view.obstacle);
    found.map(|view| view.thread).ok_or(why.unwrap_or("no thread of it can be stopped"))
}

/// Unmaps the memory of recordings if no thread is inside the library. All threads are stopped.
fn release_if_quiet(stopped: &StoppedProcess, target: &Target, views: &[ThreadView]) {
    let has_all = stopped.threads().len() <= MOST_THREADS;
    if target.has_left_memory()
        && has_all
        && views.iter().all(|view| view.is_outside)
        && let Ok(caller) = usable_thread(views)
    {
        let threads: Vec<u32> = views.iter().map(|view| view.thread).collect();
        // On failure, the memory stays until the next attach or detach.
        let _ = target.release_memory(&threads, caller);
    }
}
