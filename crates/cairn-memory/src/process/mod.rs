//! The stacks of another process, while it runs: its threads are stopped for some milliseconds, walked, and let go.
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
//!   threads:  list, seize, interrupt -- again until no new one turns up -- wait until each stands still
//!   modules:  /proc/PID/maps, ELF headers in memory --> where the unwind table of an address lies
//!   memory:   process_vm_readv, 16 pages at a time, each page once; /proc/PID/mem where that is refused
//!   then:     cairn_unwind::Walk for each thread; detach
//! ```
//!
//! [`ThreadSource`] is the border to what is not about Linux processes: a core file has threads, memory and modules too,
//! and is walked by the same code.
//!
//! What it does to the process: system calls that wait are interrupted and go on afterwards. Those that Linux lets return `EINTR` then
//! (`epoll_wait`, `semop`, reading from `inotify`; see `signal(7)`) are begun anew on x86-64, with their whole time. Signals that
//! arrive meanwhile are delivered afterwards. Nothing of it outlasts [`while_stopped`], however that ends, not even in a
//! panic: the kernel itself lets go of everything when the thread ends that did the stopping.

mod image;
mod live;
mod mapping;
mod memory;
mod modules;
mod ptrace;
mod registers;

use cairn_format::{AbsoluteAddress, Frame};
use cairn_unwind::{AddressRange, Machine, MemoryReader, Registers, Walk};

pub use cairn_unwind::{FoundBy, StopReason};

pub use live::{Error, StoppedProcess, while_stopped};
pub use mapping::{Mapping, parse_mappings};
pub use memory::ProcessMemory;
pub use modules::{LoadedModule, ModuleMap};
pub use registers::ThreadRegisters;

/// One thread of a process that holds still.
#[derive(Clone, PartialEq, Debug)]
pub struct Thread {
    /// Its number.
    pub id: u32,
    /// What it calls itself, at most 15 bytes.
    pub name: String,
    /// Its registers, or why they could not be had.
    pub registers: Result<ThreadRegisters, NoRegisters>,
}

/// Why a thread has no stack to show.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum NoRegisters {
    /// When the thread has ended and others of its process have not.
    Ended,
    /// When the thread did not stop within two seconds: it waits inside the kernel for a device, or for the child of a
    /// `vfork`.
    DidNotStop,
    /// When the kernel refused; the number is its error.
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

/// One frame of a thread, and how far it can be trusted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ThreadFrame {
    /// The frame.
    pub frame: Frame,
    /// How it was found.
    pub found_by: FoundBy,
}

/// The stack of a thread.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ThreadStack {
    /// Its frames, innermost first.
    pub frames: Vec<ThreadFrame>,
    /// Why there are no more.
    pub stop: StopReason,
}

/// Threads that hold still, and what is needed to walk their stacks: a stopped process, a core file.
pub trait ThreadSource {
    /// Where the memory of these threads is read from.
    type Memory: MemoryReader;

    /// All threads; the one the process started with is the first, if it is there.
    fn threads(&self) -> &[Thread];

    /// Their memory.
    fn memory(&self) -> &Self::Memory;

    /// What is mapped into it.
    fn modules(&self) -> &ModuleMap;

    /// The stack of a thread with these registers, of at most `limit` frames.
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
    let frames =
        walk.by_ref().map(|found| ThreadFrame { frame: found.frame, found_by: found.found_by }).collect();
    ThreadStack { frames, stop: walk.stop_reason().unwrap_or(StopReason::Limit) }
}
