//! `cairn heap --attach` and `--detach`: recording a process that runs already.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cairn_analysis::format::recording::control::{self, State};
use cairn_analysis::format::recording::{FILE_HEADER_BYTES, FileHeader, Shape};
use cairn_analysis::process::{self, FoundBy, StopReason, StoppedProcess, ThreadSource};
use cairn_run::{Announcements, AttachError, End, Interrupts, Library, Target};

use super::live::Recordings;
use super::{Heap, Refused};
use crate::output::{Outcome, complain};

impl From<AttachError> for Refused {
    fn from(error: AttachError) -> Self {
        Self { status: 2, message: error.to_string() }
    }
}

impl Heap {
    pub(super) fn attach(&self, process: u32) -> Result<Outcome, Refused> {
        let target = Target::inspect(process)?;
        // Who may not follow these links learns it from the library.
        if target.shared_files().any(|path| is_recorded_to(&path, process)) {
            return Err(Refused { status: 2, message: format!("process {process}: is recorded already") });
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
                let detached = with_thread(process, target, |thread| target.detach(thread, library));
                if let Err(refused) = detached
                    && target.has_library()
                {
                    recordings.pause();
                    complain(&format_args!(
                        "{}; the recording is paused, `cairn heap --detach {process}` tries again",
                        refused.message
                    ));
                }
                break;
            }
        }
        // How it ended is its parent's to know.
        recordings.finish(End::Signal(0), self.quiet);
        Ok(Outcome::Done)
    }
}

/// Ends what `--attach` began, maybe from another terminal.
pub(super) fn detach(process: u32) -> Result<Outcome, Refused> {
    let target = Target::inspect(process)?;
    let Some(library) = target.loaded_library() else {
        return Err(Refused { status: 2, message: format!("process {process}: is not attached to") });
    };
    with_thread(process, &target, |thread| target.detach(thread, &library))?;
    Ok(Outcome::Done)
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

/// How often a thread is looked for that can be used.
const ATTEMPTS: u64 = 400;
/// Frames of a thread's stack, at most; a deeper one is not used.
const MOST_FRAMES: u32 = 4096;
/// So many threads are looked at.
const MOST_THREADS: usize = 512;

/// Stops the process, and calls `act` with a thread of it that holds no lock which loading a library needs. All others go on
/// before that, so what they hold is given back in time.
fn with_thread(
    process: u32,
    target: &Target,
    act: impl Fn(u32) -> Result<(), AttachError> + Sync + Send,
) -> Result<(), Refused> {
    let mut why = "";
    for attempt in 0..ATTEMPTS {
        let look = |stopped: &StoppedProcess| {
            let thread = usable_thread(stopped, target)?;
            for other in stopped.threads().iter().filter(|other| other.id != thread) {
                Target::release(other.id, stopped.pending_signal(other.id));
            }
            Ok(act(thread))
        };
        match process::while_stopped(process, look) {
            Ok(Ok(result)) => return Ok(result?),
            Ok(Err(reason)) => why = reason,
            Err(error) => return Err(Refused { status: 2, message: error.to_string() }),
        }
        // Of another length each time: what the program does may be periodic.
        std::thread::sleep(Duration::from_micros(500 + attempt * 7919 % 20_000));
    }
    Err(Refused {
        status: 2,
        message: format!(
            "process {process}: {why}, each of {ATTEMPTS} times that it was looked at; nothing was changed, try again later"
        ),
    })
}

/// A thread that can be used, or why there is none.
fn usable_thread(stopped: &StoppedProcess, target: &Target) -> Result<u32, &'static str> {
    let mut why = "no thread of it can be stopped";
    let mut found = None;
    for thread in stopped.threads().iter().take(MOST_THREADS) {
        let Ok(registers) = &thread.registers else { continue };
        let stack = stopped.stack(registers, MOST_FRAMES);
        let addresses =
            || stack.frames.iter().filter_map(|frame| frame.frame.lookup_address()).map(|it| it.value());
        if addresses().any(|address| target.is_loader(address)) {
            return Err("a thread of it is inside the loader");
        }
        if found.is_some() {
            continue;
        }
        let is_sure =
            stack.frames.iter().all(|frame| matches!(frame.found_by, FoundBy::Context | FoundBy::Cfi));
        if stopped.pending_signal(thread.id) != 0 || !is_sure {
            why = "all of its threads handle signals or have stacks that cannot be read for sure";
        } else if stack.stop != StopReason::EndOfStack {
            why = "the stacks of its threads cannot be read to their end";
        } else if addresses().any(|address| target.forbids(address)) {
            why = "all of its threads are inside the allocator";
        } else {
            found = Some(thread.id);
        }
    }
    found.ok_or(why)
}
