//! Walks the stacks of a running process: stops its threads for some milliseconds, and resumes
//! them.
//!
//! ```no_run
//! use cairn_memory::process::{self, ThreadSource};
//!
//! let stacks = process::while_stopped(1234, |process| {
//!     let walk = |thread: &process::Thread| process.stack(thread.registers.as_ref().ok()?, 1000).into();
//!     process.threads().iter().map(walk).collect::<Vec<Option<process::ThreadStack>>>()
//! })?;
//! println!("{} threads", stacks.len());
//! # Ok::<(), cairn_memory::process::Error>(())
//! ```
//!
//! ```text
//!   threads:  list, seize, interrupt -- until no new one appears -- wait until each has stopped
//!   modules:  /proc/PID/maps, ELF headers in memory --> the unwind table of an address
//!   memory:   process_vm_readv, 16 pages at a time, each page once; /proc/PID/mem if that fails
//!   then:     cairn_unwind::Walk for each thread; detach
//! ```
//!
//! [`ThreadSource`] separates walks from Linux processes: a core file has threads, memory and
//! modules too, and the same code walks it.
//!
//! Effects on the process: blocking system calls are interrupted and continue afterwards. On
//! x86-64, those for which Linux returns `EINTR` (`epoll_wait`, `semop`, reads of `inotify`; see
//! `signal(7)`) are restarted with their whole timeout. Signals that arrive meanwhile are delivered
//! afterwards. No effect outlasts [`while_stopped`], not even after a panic: the kernel detaches
//! everything when the tracing thread ends.

mod elf_headers;
#[cfg(target_os = "linux")]
mod live;
mod mapping;
#[cfg_attr(not(target_os = "linux"), path = "memory_elsewhere.rs")]
mod memory;
mod modules;
#[cfg(target_os = "linux")]
mod ptrace;
mod registers;

use cairn_format::{AbsoluteAddress, Frame};
use cairn_unwind::{AddressRange, Machine, MemoryReader, Registers, Walk};

pub use cairn_unwind::{FoundBy, StopReason};

#[cfg(target_os = "linux")]
pub use live::{Error, StoppedProcess, while_stopped};
pub use mapping::{Mapping, parse_mappings};
pub use memory::ProcessMemory;
pub use modules::{LoadedModule, ModuleMap};
pub use registers::ThreadRegisters;

/// A thread of a stopped process.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct Thread {
    /// The number of the thread.
    pub id: u32,
    /// The thread's name, at most 15 bytes.
    pub name: String,
    /// The registers, or the reason why they are missing.
    pub registers: Result<ThreadRegisters, NoRegisters>,
    /// The address of the thread's own data, which is what `pthread_self` returns. Known on x86-64
    /// only, and not in a minidump.
    pub thread_pointer: Option<u64>,
}

impl Thread {
    /// Creates a thread of a source that is made elsewhere.
    #[must_use]
    pub fn new(
        id: u32,
        name: String,
        registers: Result<ThreadRegisters, NoRegisters>,
        thread_pointer: Option<u64>,
    ) -> Self {
        Self { id, name, registers, thread_pointer }
    }
}

/// The reason why a thread has no stack.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum NoRegisters {
    /// When the thread has ended but its process continues.
    Ended,
    /// When the thread did not stop within two seconds.
    ///
    /// It waits in the kernel for a device, or for the child of a `vfork`.
    DidNotStop,
    /// When the kernel refused, with this error number.
    Refused(i32),
}

impl std::fmt::Display for NoRegisters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {
            Self::Ended => f.write_str("the thread has ended"),
            Self::DidNotStop => {
                f.write_str("the thread did not stop within two seconds: it waits inside the kernel")
            }
            Self::Refused(error) => {
                write!(f, "its registers cannot be read: {}", std::io::Error::from_raw_os_error(error))
            }
        }
    }
}

/// A frame of a thread, and its reliability.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ThreadFrame {
    /// The frame.
    pub frame: Frame,
    /// The method that found it.
    pub found_by: FoundBy,
    /// The stack pointer in it. Its own part of the stack lies from there up to that of its caller.
    pub sp: u64,
}

/// The stack of a thread.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ThreadStack {
    /// Its frames, innermost first.
    pub frames: Vec<ThreadFrame>,
    /// The reason why the walk ended.
    pub stop: StopReason,
}

/// Stopped threads, with everything that walks need: a stopped process, a core file.
pub trait ThreadSource {
    /// The memory of these threads.
    type Memory: MemoryReader;

    /// Returns all threads; the main thread is first, if present.
    fn threads(&self) -> &[Thread];

    /// Returns the memory of the threads.
    fn memory(&self) -> &Self::Memory;

    /// Returns the mappings and modules.
    fn modules(&self) -> &ModuleMap;

    /// Walks the stack of a thread with these registers, up to `limit` frames.
    fn stack(&self, registers: &ThreadRegisters, limit: u32) -> ThreadStack {
        match registers {
            ThreadRegisters::X86_64(registers) => walk(self, *registers, limit),
            ThreadRegisters::Aarch64(registers) => walk(self, *registers, limit),
        }
    }
}

fn walk<M: Machine, S: ThreadSource + ?Sized>(
    source: &S,
    registers: Registers<M>,
    limit: u32,
) -> ThreadStack {
    let modules = source.modules().with_memory(source.memory());
    let sp = AbsoluteAddress::new(registers.sp());
    let stack = source.modules().mapping_at(sp).map_or(AddressRange::ALL, |mapping| mapping.range);
    let mut walk = Walk::new(registers, source.memory(), modules).with_stack(stack).with_limit(limit);
    let frames = walk.by_ref().map(|found| ThreadFrame {
        frame: found.frame,
        found_by: found.found_by,
        sp: found.registers.sp(),
    });
    let frames = frames.collect();
    ThreadStack { frames, stop: walk.stop_reason().unwrap_or(StopReason::Limit) }
}
