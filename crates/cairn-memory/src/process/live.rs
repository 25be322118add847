//! Stops the threads of a process, and resumes them.
//!
//! ```text
//!            seize, interrupt            it stops                 registers
//!   listed ------------------> seized ------------> stopped -----------------> inspected --> detached
//!      |                          |
//!      | gone: not listed again   | gone, or no stop in time: a reason instead of registers
//! ```
//!
//! ptrace ties a tracee to the tracing thread, so a dedicated thread does all of it. When that
//! thread ends, the kernel detaches everything that is still attached: threads that did not stop in
//! time, and all threads after a panic.

use std::fmt;
use std::fs;
use std::io::{self, Read};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::elf_headers;
use super::mapping::parse_mappings;
use super::ptrace::{self, Stop};
use super::{ModuleMap, NoRegisters, ProcessMemory, Thread, ThreadRegisters, ThreadSource};

/// Maximum wait for a stop; two seconds. Running threads stop within microseconds, preempted ones
/// when scheduled; a thread that takes longer is blocked in the kernel, perhaps indefinitely.
const TIME_TO_STOP: Duration = Duration::from_secs(2);
/// Maximum additional wait for a runnable thread to be scheduled; 20 seconds.
const TIME_FOR_PROCESSOR: Duration = Duration::from_secs(20);

/// Bytes for registers; 1 KiB, enough for any machine.
const MAX_REGISTER_BYTES: usize = 1024;

/// The reason why a process cannot be inspected.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// When no process has this number.
    NoSuchProcess {
        /// The requested number.
        process: u32,
    },
    /// When the number belongs to a thread, not to a process.
    IsThread {
        /// The thread.
        thread: u32,
        /// The process of the thread.
        process: u32,
    },
    /// When the process has ended, and its parent has not waited for it.
    Zombie {
        /// The process.
        process: u32,
    },
    /// When it is a kernel thread, which has no memory of its own.
    KernelThread {
        /// The process.
        process: u32,
    },
    /// When the process would inspect itself.
    OwnProcess,
    /// When it is a 32-bit program, whose stacks are not supported.
    Is32Bit {
        /// The process.
        process: u32,
    },
    /// When another program traces it already, as a debugger.
    TracedBy {
        /// The process.
        process: u32,
        /// The tracing process.
        tracer: u32,
    },
    /// When this user lacks permission.
    NoPermission {
        /// The process.
        process: u32,
    },
    /// When the kernel refuses for another reason.
    Kernel {
        /// The process.
        process: u32,
        /// The refused operation.
        asked: &'static str,
        /// The kernel's error.
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
                write!(f, "process {process} is a 32-bit program; only 64-bit programs are supported")
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

/// Returns advice for a refused inspection, depending on this machine's settings.
fn permission_advice() -> &'static str {
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    match scope.trim() {
        "1" => {
            "this machine lets only parents look at their children (kernel.yama.ptrace_scope is 1): use sudo, or \
             `sudo sysctl kernel.yama.ptrace_scope=0` until the next start"
        }
        "2" => "this machine lets only root look (kernel.yama.ptrace_scope is 2): use sudo",
        "3" => {
            "no user may inspect processes on this machine (kernel.yama.ptrace_scope is 3), and only a restart \
             changes that"
        }
        _ => {
            "look as the user the process belongs to, or as root (sudo); in a container it takes CAP_SYS_PTRACE"
        }
    }
}

/// A process whose threads are all stopped. See [`while_stopped`].
#[derive(Debug)]
pub struct StoppedProcess {
    threads: Vec<Thread>,
    memory: ProcessMemory,
    modules: ModuleMap,
    process: u32,
    /// Threads, with the signals that were about to be delivered.
    pending: Vec<(u32, i32)>,
}

impl StoppedProcess {
    /// Returns the signal that a thread will receive when it resumes; 0 for none.
    #[must_use]
    pub fn pending_signal(&self, thread: u32) -> i32 {
        self.pending.iter().find(|(id, _)| *id == thread).map_or(0, |(_, signal)| *signal)
    }

    /// Returns the process id.
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

/// Stops a process, calls `look`, and resumes the process.
///
/// `look` should be quick; names can be resolved afterwards.
///
/// # Errors
///
/// [`Error`]. The process resumes in every case.
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
    // The end of this thread detaches everything, as a last resort.
    let result = std::thread::scope(|scope| scope.spawn(tracer).join());
    result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Replaces obscure kernel errors by specific ones.
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
        // The main thread may exit before the others; the process then continues.
        if stat.has_ended() && threads_of(process).is_none_or(|threads| threads.len() < 2) {
            return Err(Error::Zombie { process });
        }
    }
    if let Some(tracer) = field("TracerPid").filter(|&tracer| tracer != 0) {
        return Err(Error::TracedBy { process, tracer });
    }
    let mut start = [0; 5];
    let program = fs::File::open(format!("/proc/{process}/exe"));
    if program.and_then(|mut file| file.read_exact(&mut start)).is_ok() && elf_headers::is_32_bit(&start) {
        return Err(Error::Is32Bit { process });
    }
    Ok(())
}

/// The relevant fields of `/proc/PID/stat`.
struct Stat {
    state: char,
    flags: u64,
}

impl Stat {
    fn read(path: &str) -> Option<Self> {
        let text = fs::read(path).ok()?;
        // `1234 (a name with any characters) S 1 1234 1234 0 -1 4194560 ...`
        let behind_name = text.iter().rposition(|&byte| byte == b')')? + 1;
        let mut fields = std::str::from_utf8(text.get(behind_name..)?).ok()?.split_ascii_whitespace();
        let state = fields.next()?.chars().next()?;
        Some(Self { state, flags: fields.nth(5)?.parse().ok()? })
    }

    fn has_ended(&self) -> bool {
        matches!(self.state, 'Z' | 'X' | 'x')
    }
}

/// Returns the ids of all threads; `None` if the process is gone.
fn threads_of(process: u32) -> Option<Vec<u32>> {
    let entries = fs::read_dir(format!("/proc/{process}/task")).ok()?;
    let number = |entry: io::Result<fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
    let mut threads: Vec<u32> = entries.filter_map(number).collect();
    // The main thread has the process's number; the others follow in listed order.
    threads.sort_by_key(|&thread| thread != process);
    Some(threads)
}

/// A thread that is traced, or was found to be untraceable.
struct AttachedThread {
    id: u32,
    state: AttachedState,
}

enum AttachedState {
    Seized,
    Stopped(Stop),
    Without(NoRegisters),
}

/// The threads of a process, traced by the calling thread.
struct Attached {
    process: u32,
    threads: Vec<AttachedThread>,
}

impl Attached {
    /// Stops all threads.
    ///
    /// Running threads may create new ones, so the list is read until it has no new entry after all
    /// known threads have stopped.
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
            // Always listed, but never stopped: not observed so far, but the loop must end.
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

    /// Reports whether to continue waiting: until the deadline, and longer for a runnable thread.
    fn may_still_stop(&self, thread: u32, deadline: Instant) -> bool {
        let late = Instant::now().saturating_duration_since(deadline);
        let stat = || Stat::read(&format!("/proc/{}/task/{thread}/stat", self.process));
        late.is_zero() || late < TIME_FOR_PROCESSOR && stat().is_some_and(|stat| stat.state == 'R')
    }

    /// Waits until every seized thread has stopped or ended, or time is up.
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

    /// Returns the new state of a seized thread; `None` if unchanged.
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

    /// Reads everything, now that all threads are stopped.
    fn describe(&self) -> Result<StoppedProcess, Error> {
        let process = self.process;
        // After the main thread has ended, its number gives no memory; every other thread's does.
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
            let mut thread_pointer = None;
            let registers = match thread.state {
                AttachedState::Stopped(stop) => {
                    self.registers(thread.id, stop, modules.address_mask(), &mut thread_pointer)?
                }
                AttachedState::Without(reason) => Err(reason),
                AttachedState::Seized => Err(NoRegisters::DidNotStop),
            };
            threads.push(Thread { id: thread.id, name, registers, thread_pointer });
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
        thread_pointer: &mut Option<u64>,
    ) -> Result<Result<ThreadRegisters, NoRegisters>, Error> {
        let mut bytes = [0; MAX_REGISTER_BYTES];
        let filled = match ptrace::register_set(thread as i32, ptrace::GENERAL_REGISTERS, &mut bytes) {
            Ok(length) => bytes.get_mut(..length).unwrap_or_default(),
            // Killed while stopped, the one event that can still happen.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(Err(NoRegisters::Ended)),
            Err(error) => return Ok(Err(NoRegisters::Refused(error.raw_os_error().unwrap_or(0)))),
        };
        let registers = own_machine(thread, filled, address_mask);
        *thread_pointer = registers.as_ref().and_then(|registers| registers.thread_pointer(filled));
        if stop.signal == 0 && registers.is_some() {
            // A thread that is gone has no wait to continue.
            let _ = ptrace::restart_wait(thread as i32, filled);
        }
        registers.map(Ok).ok_or(Error::Is32Bit { process: self.process })
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        for thread in &self.threads {
            if let AttachedState::Stopped(stop) = thread.state {
                // It may have been killed meanwhile; then there is nothing to detach.
                let _ = ptrace::detach(thread.id as i32, stop.signal);
            }
        }
    }
}

/// Parses registers; the kernel only traces programs of its own architecture.
#[cfg(target_arch = "x86_64")]
fn own_machine(_thread: u32, bytes: &[u8], _address_mask: u64) -> Option<ThreadRegisters> {
    ThreadRegisters::from_x86_64(bytes)
}

#[cfg(target_arch = "aarch64")]
fn own_machine(thread: u32, bytes: &[u8], address_mask: u64) -> Option<ThreadRegisters> {
    ThreadRegisters::from_aarch64(bytes, signature_mask(thread).unwrap_or(address_mask))
}

/// Returns the bits of a code address without a signature, if the kernel supports signatures.
#[cfg(target_arch = "aarch64")]
fn signature_mask(thread: u32) -> Option<u64> {
    let mut masks = [0; 16];
    ptrace::register_set(thread as i32, ptrace::SIGNATURE_MASKS, &mut masks).ok()?;
    let [_data, code] = masks.as_chunks::<8>().0 else { return None };
    Some(!u64::from_le_bytes(*code))
}
