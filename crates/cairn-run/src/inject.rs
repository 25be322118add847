//! Calling functions inside another process, in one of its threads that stands still and is traced by this thread.
//!
//! The thread is used as a processor: its registers, its signal mask and its floating-point state are kept, functions are
//! called on a stack of their own, and all of it is put back, whatever happens. A system call that was interrupted goes on
//! afterwards as after any stop.

use std::ffi::{c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::time::{Duration, Instant};

/// Places in the process's code.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places {
    /// A system call instruction.
    pub(crate) system_call: u64,
    /// A breakpoint instruction: where functions return to.
    pub(crate) trap: u64,
}

/// A thread whose state is kept.
pub(crate) struct Borrowed {
    thread: i32,
    places: Places,
    registers: libc::user_regs_struct,
    extended: Vec<u8>,
    mask: u64,
    stack: u64,
    /// A signal that came meanwhile and stops processes.
    kept: Vec<c_int>,
}

const PTRACE_GETSIGMASK: u32 = 0x420a;
const PTRACE_SETSIGMASK: u32 = 0x420b;
const NT_X86_XSTATE: usize = 0x202;
const STACK_BYTES: u64 = 1 << 20;
/// The first bytes of the mapping are for texts; functions have the rest.
const TEXT_BYTES: u64 = 3 << 14;
/// Loading a library takes milliseconds, where nobody holds the loader's lock.
const PATIENCE: Duration = Duration::from_secs(20);
/// So often it is waited for a thread that does not wait for a lock: to give up in the midst of its work would leave that half done, and
/// whatever locks it holds taken for ever.
const TIMES: u32 = 15;

fn request(what: u32, thread: i32, address: usize, data: *mut c_void) -> io::Result<()> {
    let address: *mut c_void = ptr::without_provenance_mut(address);
    // SAFETY: the callers pass places that are as large as the request wants.
    let status = unsafe { libc::ptrace(what, thread, address, data) };
    if status == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn registers(thread: i32) -> io::Result<libc::user_regs_struct> {
    let mut place = MaybeUninit::<libc::user_regs_struct>::zeroed();
    request(libc::PTRACE_GETREGS, thread, 0, place.as_mut_ptr().cast())?;
    // SAFETY: zeroed, and filled in.
    Ok(unsafe { place.assume_init() })
}

fn set_registers(thread: i32, registers: &libc::user_regs_struct) -> io::Result<()> {
    request(libc::PTRACE_SETREGS, thread, 0, ptr::from_ref(registers).cast_mut().cast())
}

/// Whether a stopped thread stands in the system call that locks wait in.
fn waits_for_lock(registers: &libc::user_regs_struct) -> bool {
    registers.orig_rax.cast_signed() == libc::SYS_futex
}

fn gone() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "the thread has ended")
}

impl Borrowed {
    /// Takes a stopped thread of `process`.
    pub(crate) fn take(thread: i32, places: Places) -> io::Result<Self> {
        let registers = registers(thread)?;
        let mut extended = vec![0; 1 << 14];
        let mut vector = libc::iovec { iov_base: extended.as_mut_ptr().cast(), iov_len: extended.len() };
        request(libc::PTRACE_GETREGSET, thread, NT_X86_XSTATE, (&raw mut vector).cast())?;
        extended.truncate(vector.iov_len);
        let mut mask = 0_u64;
        request(PTRACE_GETSIGMASK, thread, 8, (&raw mut mask).cast())?;
        let mut borrowed = Self { thread, places, registers, extended, mask, stack: 0, kept: Vec::new() };
        borrowed.block_signals()?;
        let protection = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
        let at =
            borrowed.system_call(libc::SYS_mmap as u64, [0, STACK_BYTES, protection, flags, u64::MAX, 0])?;
        if at > u64::MAX - 4096 {
            return Err(io::Error::from_raw_os_error(at.wrapping_neg() as i32));
        }
        borrowed.stack = at;
        Ok(borrowed)
    }

    /// All but those that tell of a fault of the code that runs: blocked, these would be deadly.
    fn block_signals(&self) -> io::Result<()> {
        let faults = [libc::SIGTRAP, libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE];
        let mut mask = faults.iter().fold(u64::MAX, |mask, signal| mask & !(1 << (signal - 1)));
        request(PTRACE_SETSIGMASK, self.thread, 8, (&raw mut mask).cast())
    }

    fn system_call(&mut self, number: u64, arguments: [u64; 6]) -> io::Result<u64> {
        let mut registers = self.registers;
        registers.rip = self.places.system_call;
        registers.rax = number;
        registers.orig_rax = u64::MAX;
        [registers.rdi, registers.rsi, registers.rdx, registers.r10, registers.r8, registers.r9] = arguments;
        set_registers(self.thread, &registers)?;
        self.go(libc::PTRACE_SINGLESTEP, self.places.system_call + 2)
    }

    /// Writes `bytes` to the place for texts, `at` bytes behind its beginning; returns the address.
    pub(crate) fn write(&self, at: u64, bytes: &[u8]) -> io::Result<u64> {
        if at + bytes.len() as u64 > TEXT_BYTES {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let address = self.stack + at;
        write_memory(self.thread, address, bytes)?;
        Ok(address)
    }

    /// Calls the function at `address`.
    pub(crate) fn call(&mut self, address: u64, arguments: [u64; 3]) -> io::Result<u64> {
        let mut registers = self.registers;
        // As after a call instruction: the return address lies at the top, and the stack was aligned before.
        registers.rsp = self.stack + STACK_BYTES - 64 - 8;
        write_memory(self.thread, registers.rsp, &self.places.trap.to_le_bytes())?;
        registers.rbp = 0;
        registers.rip = address;
        registers.rax = 0;
        registers.orig_rax = u64::MAX;
        // No direction, no single step.
        registers.eflags &= !0x500;
        [registers.rdi, registers.rsi, registers.rdx] = arguments;
        set_registers(self.thread, &registers)?;
        self.go(libc::PTRACE_CONT, self.places.trap + 1)
    }

    /// Lets the thread run until it stops at `end`; returns what is in `rax`.
    fn go(&mut self, how: u32, end: u64) -> io::Result<u64> {
        let mut deadline = Instant::now() + PATIENCE;
        let (mut is_late, mut times) = (false, 1);
        request(how, self.thread, 0, ptr::null_mut())?;
        loop {
            let mut status = 0;
            // SAFETY: a traced thread, and a place for its status.
            let found = unsafe { libc::waitpid(self.thread, &raw mut status, libc::__WALL | libc::WNOHANG) };
            if found < 0 {
                return Err(io::Error::last_os_error());
            }
            if found == 0 {
                if Instant::now() > deadline && !is_late {
                    is_late = true;
                    request(libc::PTRACE_INTERRUPT, self.thread, 0, ptr::null_mut())?;
                }
                std::thread::sleep(Duration::from_micros(100));
                continue;
            }
            if !libc::WIFSTOPPED(status) {
                return Err(gone());
            }
            let signal = libc::WSTOPSIG(status);
            let is_event = status >> 16 != 0;
            if is_late && is_event && times < TIMES && !waits_for_lock(&registers(self.thread)?) {
                (is_late, times, deadline) = (false, times + 1, Instant::now() + PATIENCE);
            } else if is_late && is_event {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "it did not come back: another thread may hold the loader's lock",
                ));
            }
            if !is_event && matches!(signal, libc::SIGSEGV | libc::SIGBUS | libc::SIGILL | libc::SIGFPE) {
                return Err(io::Error::other(format!("it ended with signal {signal}")));
            }
            if !is_event && signal == libc::SIGTRAP {
                let now = registers(self.thread)?;
                if now.rip == end {
                    return Ok(now.rax);
                }
            } else if !is_event {
                self.kept.push(signal);
            }
            request(how, self.thread, 0, ptr::null_mut())?;
        }
    }

    fn put_back(&mut self) -> io::Result<()> {
        if self.stack != 0 {
            let _ = self.system_call(libc::SYS_munmap as u64, [self.stack, STACK_BYTES, 0, 0, 0, 0]);
        }
        let mut vector =
            libc::iovec { iov_base: self.extended.as_mut_ptr().cast(), iov_len: self.extended.len() };
        request(libc::PTRACE_SETREGSET, self.thread, NT_X86_XSTATE, (&raw mut vector).cast())?;
        request(PTRACE_SETSIGMASK, self.thread, 8, (&raw mut self.mask).cast())?;
        set_registers(self.thread, &self.registers)
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        // A thread that is gone needs nothing.
        let _ = self.put_back();
        for signal in self.kept.drain(..) {
            // SAFETY: sends a signal that was on its way there.
            unsafe { libc::syscall(libc::SYS_tkill, self.thread, signal) };
        }
    }
}

/// Lets a stopped thread go that is traced by this one.
pub(crate) fn release(thread: i32, signal: c_int) {
    let _ = request(libc::PTRACE_DETACH, thread, 0, ptr::without_provenance_mut(signal as usize));
}

pub(crate) fn write_memory(process: i32, address: u64, bytes: &[u8]) -> io::Result<()> {
    let local = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let remote =
        libc::iovec { iov_base: ptr::without_provenance_mut(address as usize), iov_len: bytes.len() };
    // SAFETY: reads the bytes; the remote address is the kernel's to check.
    let count = unsafe { libc::process_vm_writev(process, &raw const local, 1, &raw const remote, 1, 0) };
    if count == bytes.len() as isize { Ok(()) } else { Err(io::Error::last_os_error()) }
}

pub(crate) fn read_memory(process: i32, address: u64, into: &mut [u8]) -> io::Result<usize> {
    let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let remote = libc::iovec { iov_base: ptr::without_provenance_mut(address as usize), iov_len: into.len() };
    // SAFETY: the kernel writes no more than there is room for.
    let count = unsafe { libc::process_vm_readv(process, &raw const local, 1, &raw const remote, 1, 0) };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}
