//! `cairn heap --attach` and `--detach`: recording a process that runs already.

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
            AttachError::NoSuchProcess { .. } | AttachError::Ended { .. } => Outcome::Partly,
            _ => Outcome::Refused,
        };
        Self { outcome, message: error.to_string() }
    }
}

impl HeapCommand {
    pub(super) fn attach(&self, process: u32) -> Result<Outcome, Refused> {
        let mut target = inspect(process)?;
        // Who may not follow these links learns it from the library.
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
            complain(&format_args!("process {process} is recorded; Ctrl-C ends that, and it goes on"));
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
        /// Looking at its mappings costs more than looking at its recording.
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
        // Another command may have detached, or the process may have ended meanwhile: then there is nothing to complain of.
        for announced in announcements.read().unwrap_or_default() {
            recordings.add(announced);
        }
        recordings.tick();
        let failure = failure.filter(|_| target.has_library() && !recordings.has_ended());
        if failure.is_some() {
            recordings.pause();
        }
        // How it ended is its parent's to know.
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

/// Ends what `--attach` began, maybe from another terminal.
pub(super) fn detach(process: u32) -> Result<Outcome, Refused> {
    let target = inspect(process)?;
    let Some(library) = target.loaded_library() else {
        // As for `cairn heap ctl`, which needs a recorded process too.
        let message = format!("process {process}: cairn is not attached to it");
        return Err(Refused { outcome: Outcome::Partly, message });
    };
    end_recording(process, &target, &library)?;
    Ok(Outcome::Done)
}

/// Looks whether a process can be attached to. Another command that is at it traces it for moments only, a debugger for longer.
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

/// Ends the recording of an attached process, and has it give back what the recording took.
fn end_recording(process: u32, target: &Target, library: &Path) -> Result<(), Refused> {
    with_thread(process, target, |thread| target.detach(thread, library))?;
    release_memory(process, target);
    Ok(())
}

/// Waits for a moment in which no thread is inside the library, and unmaps what recordings have left. Where none comes, that stays until
/// the next attach or detach.
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

/// The pattern of the output with the program's name in it: the program may have changed what it calls itself.
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

/// Whether the file at `path` is what `process` records to just now.
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

/// So long a thread is looked for that can be used, and a process asked again that is busy.
const PATIENCE: Duration = Duration::from_secs(15);
/// Between two tries where the process is busy: its thread is to get on in the meantime.
const BUSY_PAUSE: Duration = Duration::from_millis(200);
/// At most so long a pause between two looks.
const LONGEST_PAUSE_MICROS: u64 = 20_000;
/// Frames of a thread's stack, at most; a deeper one is not used.
const MOST_FRAMES: u32 = 4096;
/// So many threads are looked at.
const MOST_THREADS: usize = 512;

/// Stops the process, and calls `act` with a thread of it that holds no lock which loading a library needs. All others go on
/// before that, so what they hold is given back in time. As long as that answers that the process is busy, it is tried again.
fn with_thread(
    process: u32,
    target: &Target,
    act: impl Fn(u32) -> Result<(), AttachError> + Sync + Send,
) -> Result<(), Refused> {
    let began = Instant::now();
    let mut looks = 0;
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
        looks += 1;
        let why = match process::while_stopped(process, look) {
            Ok(Ok(Ok(()))) => return Ok(()),
            Ok(Ok(Err(busy @ AttachError::Busy { .. }))) => {
                std::thread::sleep(BUSY_PAUSE);
                busy.to_string()
            }
            Ok(Ok(Err(error))) => return Err(error.into()),
            Ok(Err(reason)) => format!(
                "process {process}: {reason}, each of {looks} times that it was looked at; nothing was changed, try \
                 again later"
            ),
            // Another command is at it: whether this one may trace it was asked before.
            Err(error @ (process::Error::TracedBy { .. } | process::Error::NoPermission { .. })) => {
                error.to_string()
            }
            Err(error) => return Err(Refused { outcome: Outcome::Refused, message: error.to_string() }),
        };
        if began.elapsed() > PATIENCE {
            return Err(Refused { outcome: Outcome::Refused, message: why });
        }
        // Of another length each time: what the program does may be periodic.
        std::thread::sleep(Duration::from_micros(
            300 + looks * 7919 % (looks * 500).min(LONGEST_PAUSE_MICROS),
        ));
    }
}

/// A stopped thread, as far as it matters here.
struct ThreadView {
    thread: u32,
    /// Why it cannot be used.
    obstacle: Option<&'static str>,
    /// It waits in the kernel.
    waits: bool,
    /// It is certain that it is not inside the library.
    is_outside: bool,
}

/// The threads, as far as they are needed: up to one that can well be used, or all, when memory is to be released.
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

/// A thread that can be used, or why there is none. One that waits in the kernel is in no short piece of code that holds a lock.
fn usable_thread(views: &[ThreadView]) -> Result<u32, &'static str> {
    let usable = || views.iter().filter(|view| view.obstacle.is_none());
    let found = usable().find(|view| view.waits).or_else(|| usable().next());
    let why = views.iter().find_map(|view| view.obstacle);
    found.map(|view| view.thread).ok_or(why.unwrap_or("no thread of it can be stopped"))
}

/// Unmaps what recordings have left, if no thread is inside the library. All threads are stopped.
fn release_if_quiet(stopped: &StoppedProcess, target: &Target, views: &[ThreadView]) {
    let has_all = stopped.threads().len() <= MOST_THREADS;
    if target.has_left_memory()
        && has_all
        && views.iter().all(|view| view.is_outside)
        && let Ok(caller) = usable_thread(views)
    {
        let threads: Vec<u32> = views.iter().map(|view| view.thread).collect();
        // What cannot be given back now stays until the next time.
        let _ = target.release_memory(&threads, caller);
    }
}
