//! Stopping the threads of a process, and letting them go again.
//!
//! ```text
//!            seize, interrupt            it stops                 registers
//!   listed ------------------> seized ------------> stopped -----------------> looked at --> detached
//!      |                          |
//!      | gone: not listed again   | gone, or no stop within the time: a reason in place of registers
//! ```
//!
//! Tracing belongs to a thread of the tracer, so all of it happens in a thread of its own. When that ends, the kernel
//! detaches whatever is still attached: a thread that did not stop in time, everything after a panic.

use std::fmt;
use std::fs;
use std::io::{self, Read};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::image;
use super::mapping::parse_mappings;
use super::ptrace::{self, Stop};
use super::{ModuleMap, NoRegisters, ProcessMemory, Thread, ThreadRegisters, ThreadSource};

/// Threads that run stop within microseconds, those that have no processor when they get one. What takes longer sits in
/// the kernel, perhaps for ever.
const TIME_TO_STOP: Duration = Duration::from_secs(2);
/// So much longer it takes at most to get a processor.
const TIME_FOR_PROCESSOR: Duration = Duration::from_secs(20);

/// Registers of any machine fit.
const MAX_REGISTER_BYTES: usize = 1024;

/// Why the stacks of a process cannot be had.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// When there is no process of that number.
    NoSuchProcess {
        /// The number.
        process: u32,
    },
    /// When the number is that of a thread, not of a process.
    IsThread {
        /// The number.
        thread: u32,
        /// The process that it belongs to.
        process: u32,
    },
    /// When the process has ended and its parent has not noticed yet.
    Zombie {
        /// The process.
        process: u32,
    },
    /// When it is a thread of the kernel, which has no memory of its own.
    KernelThread {
        /// The process.
        process: u32,
    },
    /// When it is the process that asks.
    OwnProcess,
    /// When it is a program of 32 bits, whose stacks are not known here.
    Is32Bit {
        /// The process.
        process: u32,
    },
    /// When another program traces it already, as a debugger does.
    TracedBy {
        /// The process.
        process: u32,
        /// Who traces it.
        tracer: u32,
    },
    /// When the kernel does not let this user look.
    NoPermission {
        /// The process.
        process: u32,
    },
    /// When the kernel refuses for another reason.
    Kernel {
        /// The process.
        process: u32,
        /// What was asked.
        asked: &'static str,
        /// What it answered.
        source: io::Error,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchProcess { process } => write!(f, "there is no process {process}"),
            Self::IsThread { thread, process } => {
                write!(f, "{thread} is a thread of process {process}; give the number of the process")
            }
            Self::Zombie { process } => {
                write!(f, "process {process} has ended; only its exit status is left, for its parent to read")
            }
            Self::KernelThread { process } => {
                write!(f, "{process} is a thread of the kernel; it has no stack in user space")
            }
            Self::OwnProcess => f.write_str("a process cannot stop itself to look at its own stacks"),
            Self::Is32Bit { process } => {
                write!(f, "process {process} is a 32-bit program; only 64-bit programs can be looked at")
            }
            Self::TracedBy { process, tracer } => {
                write!(f, "process {process} is traced by process {tracer} already; end that first")
            }
            Self::NoPermission { process } => {
                write!(f, "no permission to look at process {process}: {}", permission_advice())
            }
            Self::Kernel { process, asked, source } => {
                write!(f, "process {process}: cannot {asked}: {source}")
            }
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Kernel { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// What to do when Linux does not allow to look at a process: depends on how this machine is set up.
fn permission_advice() -> &'static str {
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    match scope.trim() {
        "1" => {
            "this machine lets only parents look at their children (kernel.yama.ptrace_scope is 1): use sudo, or \
             `sudo sysctl kernel.yama.ptrace_scope=0` until the next start"
        }
        "2" => "this machine lets only root look (kernel.yama.ptrace_scope is 2): use sudo",
        "3" => {
            "nobody may look at processes on this machine (kernel.yama.ptrace_scope is 3), and only a restart \
             changes that"
        }
        _ => {
            "look as the user the process belongs to, or as root (sudo); in a container it takes CAP_SYS_PTRACE"
        }
    }
}

/// A process all of whose threads stand still. See [`while_stopped`].
#[derive(Debug)]
pub struct StoppedProcess {
    threads: Vec<Thread>,
    memory: ProcessMemory,
    modules: ModuleMap,
    process: u32,
    /// Threads and the signals that they were about to get.
    pending: Vec<(u32, i32)>,
}

impl StoppedProcess {
    /// The signal that a thread was about to get when it stopped, and gets when it goes on; 0 for none.
    #[must_use]
    pub fn pending_signal(&self, thread: u32) -> i32 {
        self.pending.iter().find(|(id, _)| *id == thread).map_or(0, |(_, signal)| *signal)
    }

    /// The number of the process.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.process
    }
}

impl ThreadSource for StoppedProcess {
    type Memory = ProcessMemory;

    fn threads(&self) -> &[Thread] {
        &self.threads
    }

    fn memory(&self) -> &ProcessMemory {
        &self.memory
    }

    fn modules(&self) -> &ModuleMap {
        &self.modules
    }
}

/// Stops a process, calls `look`, and lets the process go on. `look` should be quick; naming what was found can wait.
///
/// # Errors
///
/// [`Error`]. The process goes on in every case.
pub fn while_stopped<R: Send>(
    process: u32,
    look: impl FnOnce(&StoppedProcess) -> R + Send,
) -> Result<R, Error> {
    check(process)?;
    let tracer = || {
        let attached = Attached::all_of(process)?;
        let stopped = attached.describe()?;
        Ok(look(&stopped))
    };
    // Its end is what detaches in the last resort.
    let result = std::thread::scope(|scope| scope.spawn(tracer).join());
    result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Answers with an error what would otherwise be a riddle of the kernel's.
fn check(process: u32) -> Result<(), Error> {
    const KERNEL_THREAD: u64 = 0x20_0000;
    if process == std::process::id() {
        return Err(Error::OwnProcess);
    }
    let status = fs::read_to_string(format!("/proc/{process}/status"))
        .map_err(|_| Error::NoSuchProcess { process })?;
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.strip_prefix(':')?.trim().parse::<u32>().ok()
    };
    if let Some(owner) = field("Tgid").filter(|&owner| owner != process) {
        return Err(Error::IsThread { thread: process, process: owner });
    }
    if let Some(stat) = Stat::read(&format!("/proc/{process}/stat")) {
        if stat.flags & KERNEL_THREAD != 0 {
            return Err(Error::KernelThread { process });
        }
        // The first thread may end before the others: then the process lives.
        if stat.has_ended() && threads_of(process).is_none_or(|threads| threads.len() < 2) {
            return Err(Error::Zombie { process });
        }
    }
    if let Some(tracer) = field("TracerPid").filter(|&tracer| tracer != 0) {
        return Err(Error::TracedBy { process, tracer });
    }
    let mut start = [0; 5];
    let program = fs::File::open(format!("/proc/{process}/exe"));
    if program.and_then(|mut file| file.read_exact(&mut start)).is_ok() && image::is_32_bit(&start) {
        return Err(Error::Is32Bit { process });
    }
    Ok(())
}

/// What `/proc/PID/stat` says of a thread.
struct Stat {
    state: char,
    flags: u64,
}

impl Stat {
    fn read(path: &str) -> Option<Self> {
        let text = fs::read(path).ok()?;
        // `1234 (a name, which may hold anything) S 1 1234 1234 0 -1 4194560 ...`
        let behind_name = text.iter().rposition(|&byte| byte == b')')? + 1;
        let mut fields = std::str::from_utf8(text.get(behind_name..)?).ok()?.split_ascii_whitespace();
        let state = fields.next()?.chars().next()?;
        Some(Self { state, flags: fields.nth(5)?.parse().ok()? })
    }

    fn has_ended(&self) -> bool {
        matches!(self.state, 'Z' | 'X' | 'x')
    }
}

/// The numbers of all threads; `None` when the process is gone.
fn threads_of(process: u32) -> Option<Vec<u32>> {
    let entries = fs::read_dir(format!("/proc/{process}/task")).ok()?;
    let number = |entry: io::Result<fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
    let mut threads: Vec<u32> = entries.filter_map(number).collect();
    // The process's first thread has its number; the order of the others is that of the list.
    threads.sort_by_key(|&thread| thread != process);
    Some(threads)
}

/// A thread that is traced, or was found to be beyond it.
struct AttachedThread {
    id: u32,
    state: AttachedState,
}

enum AttachedState {
    Seized,
    Stopped(Stop),
    Without(NoRegisters),
}

/// The threads of a process, traced by this thread.
struct Attached {
    process: u32,
    threads: Vec<AttachedThread>,
}

impl Attached {
    /// Stops all threads. While one of them still runs it may make new ones, so the list is read until it holds nothing
    /// new once all that were known stand still.
    fn all_of(process: u32) -> Result<Self, Error> {
        let deadline = Instant::now() + TIME_TO_STOP;
        let mut attached = Self { process, threads: Vec::new() };
        loop {
            let listed = threads_of(process).ok_or(Error::NoSuchProcess { process })?;
            let known = |thread: &u32| attached.threads.iter().any(|other| other.id == *thread);
            let fresh: Vec<u32> = listed.into_iter().filter(|thread| !known(thread)).collect();
            if fresh.is_empty() {
                return Ok(attached);
            }
            let known_before = attached.threads.len();
            for thread in fresh {
                attached.seize(thread)?;
            }
            attached.wait(deadline);
            // Listed for ever, yet not to be had: not seen so far, but this loop must end.
            if attached.threads.len() == known_before && Instant::now() > deadline {
                return Ok(attached);
            }
        }
    }

    fn seize(&mut self, thread: u32) -> Result<(), Error> {
        let process = self.process;
        let kernel = |asked, source| Error::Kernel { process, asked, source };
        let state = match ptrace::seize(thread as i32) {
            Ok(()) => AttachedState::Seized,
            // It has ended since it was listed.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(()),
            Err(_) if self.has_ended(thread) => AttachedState::Without(NoRegisters::Ended),
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
                return Err(Error::NoPermission { process });
            }
            Err(error) => return Err(kernel("trace it", error)),
        };
        self.threads.push(AttachedThread { id: thread, state });
        match ptrace::interrupt(thread as i32) {
            Err(error) if error.raw_os_error() != Some(libc::ESRCH) => Err(kernel("stop it", error)),
            _ => Ok(()),
        }
    }

    fn has_ended(&self, thread: u32) -> bool {
        Stat::read(&format!("/proc/{}/task/{thread}/stat", self.process)).is_none_or(|stat| stat.has_ended())
    }

    /// Whether it is worth while to wait: in time, and longer for a thread that would run if it had a processor.
    fn may_still_stop(&self, thread: u32, deadline: Instant) -> bool {
        let late = Instant::now().saturating_duration_since(deadline);
        let stat = || Stat::read(&format!("/proc/{}/task/{thread}/stat", self.process));
        late.is_zero() || late < TIME_FOR_PROCESSOR && stat().is_some_and(|stat| stat.state == 'R')
    }

    /// Waits until every seized thread stands still, has ended, or the time is over.
    fn wait(&mut self, deadline: Instant) {
        let mut pause = Duration::from_micros(20);
        loop {
            let mut waiting = false;
            for index in 0..self.threads.len() {
                if let Some(state) =
                    self.threads.get(index).and_then(|thread| self.next_state(thread, deadline))
                    && let Some(thread) = self.threads.get_mut(index)
                {
                    thread.state = state;
                }
                waiting |= self
                    .threads
                    .get(index)
                    .is_some_and(|thread| matches!(thread.state, AttachedState::Seized));
            }
            if !waiting {
                return;
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(5));
        }
    }

    /// What has become of a seized thread; `None` when nothing has.
    fn next_state(&self, thread: &AttachedThread, deadline: Instant) -> Option<AttachedState> {
        if !matches!(thread.state, AttachedState::Seized) {
            return None;
        }
        match ptrace::stop_of(thread.id as i32) {
            Ok(Some(stop)) => Some(AttachedState::Stopped(stop)),
            _ if self.has_ended(thread.id) => Some(AttachedState::Without(NoRegisters::Ended)),
            _ if !self.may_still_stop(thread.id, deadline) => {
                Some(AttachedState::Without(NoRegisters::DidNotStop))
            }
            _ => None,
        }
    }

    /// What there is to see, now that nothing moves.
    fn describe(&self) -> Result<StoppedProcess, Error> {
        let process = self.process;
        // Where the first thread has ended, the process's own number shows no memory any more; every thread's does.
        let is_stopped = |thread: &&AttachedThread| matches!(thread.state, AttachedState::Stopped(_));
        let view = self.threads.iter().find(is_stopped).map_or(process, |thread| thread.id);
        let maps = fs::read(format!("/proc/{view}/maps")).map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => Error::NoPermission { process },
            _ => Error::Kernel { process, asked: "read its mappings", source: error },
        })?;
        let memory = ProcessMemory::new(view as i32);
        let root = PathBuf::from(format!("/proc/{view}/root"));
        let modules = ModuleMap::new(parse_mappings(&maps), &memory, Some(root));
        let mut threads = Vec::with_capacity(self.threads.len());
        for thread in &self.threads {
            let name = fs::read(format!("/proc/{process}/task/{}/comm", thread.id)).unwrap_or_default();
            let name = String::from_utf8_lossy(name.trim_ascii_end()).into_owned();
            let registers = match thread.state {
                AttachedState::Stopped(stop) => self.registers(thread.id, stop, modules.address_mask())?,
                AttachedState::Without(reason) => Err(reason),
                AttachedState::Seized => Err(NoRegisters::DidNotStop),
            };
            threads.push(Thread { id: thread.id, name, registers });
        }
        let signal_of = |thread: &AttachedThread| match thread.state {
            AttachedState::Stopped(Stop { signal }) => Some((thread.id, signal)),
            _ => None,
        };
        let pending = self.threads.iter().filter_map(signal_of).collect();
        Ok(StoppedProcess { threads, memory, modules, process, pending })
    }

    fn registers(
        &self,
        thread: u32,
        stop: Stop,
        address_mask: u64,
    ) -> Result<Result<ThreadRegisters, NoRegisters>, Error> {
        let mut bytes = [0; MAX_REGISTER_BYTES];
        let filled = match ptrace::register_set(thread as i32, ptrace::GENERAL_REGISTERS, &mut bytes) {
            Ok(length) => bytes.get_mut(..length).unwrap_or_default(),
            // Killed while it stood still: the one thing that a stopped thread can do.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(Err(NoRegisters::Ended)),
            Err(error) => return Ok(Err(NoRegisters::Refused(error.raw_os_error().unwrap_or(0)))),
        };
        let registers = own_machine(thread, filled, address_mask);
        if stop.signal == 0 && registers.is_some() {
            // A thread that is gone waits no more.
            let _ = ptrace::keep_waiting(thread as i32, filled);
        }
        registers.map(Ok).ok_or(Error::Is32Bit { process: self.process })
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        for thread in &self.threads {
            if let AttachedState::Stopped(stop) = thread.state {
                // It may have been killed meanwhile; then there is nothing to let go.
                let _ = ptrace::detach(thread.id as i32, stop.signal);
            }
        }
    }
}

/// The kernel lets a program trace its own machine only.
#[cfg(target_arch = "x86_64")]
fn own_machine(_thread: u32, bytes: &[u8], _address_mask: u64) -> Option<ThreadRegisters> {
    ThreadRegisters::from_x86_64(bytes)
}

#[cfg(target_arch = "aarch64")]
fn own_machine(thread: u32, bytes: &[u8], address_mask: u64) -> Option<ThreadRegisters> {
    ThreadRegisters::from_aarch64(bytes, told_mask(thread).unwrap_or(address_mask))
}

/// The bits of a code address that hold no signature, where the kernel knows of signatures.
#[cfg(target_arch = "aarch64")]
fn told_mask(thread: u32) -> Option<u64> {
    let mut masks = [0; 16];
    ptrace::register_set(thread as i32, ptrace::SIGNATURE_MASKS, &mut masks).ok()?;
    let [_data, code] = masks.as_chunks::<8>().0 else { return None };
    Some(!u64::from_le_bytes(*code))
}
