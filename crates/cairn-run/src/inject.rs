//! Calling functions inside another process, in one of its threads that is stopped and traced by
//! this thread.
//!
//! The thread is used as a processor: functions are called in it, and afterwards its registers, its
//! signal mask and its floating-point state are what they were. A system call that was interrupted
//! goes on afterwards as after any stop.
//!
//! **The thread needs no help to return.** A call is prepared as the kernel prepares the call of a
//! signal handler: below the thread's stack lies a frame with all of its state, and the function
//! returns to the C library's code that asks the kernel to restore that state (`rt_sigreturn`). If
//! this process is killed at any moment, the thread finishes the call and continues where it was.
//! While this process lives, it stops the thread at that system call and skips it. It restores the
//! state from outside, and with it the state of an interrupted system call, which `rt_sigreturn`
//! would lose.
//!
//! Stops at system calls make a call slow. The library's own functions, which make many system
//! calls, run without these stops: they set a word when they are done, and wait a little to be
//! stopped.
//!
//! ```text
//!   stopped --registers: the function, its frame--> runs --PTRACE_SYSCALL--> at rt_sigreturn --> next call
//!      |                                             |  |                          |
//!      |                                      fault, |  | killed: rt_sigreturn     | not made
//!      |                                     timeout |  '--> as it was             v
//!      '<------- registers, mask, state, from outside <----------------------- put back
//! ```

use std::ffi::{c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::time::{Duration, Instant};

/// Places in the process's code and data.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    /// Code that writes the result of a function to memory, and returns.
    pub(crate) keeper: Keeper,
    /// Code of the C library that makes the system call `rt_sigreturn`: the return address of
    /// calls.
    pub(crate) restorer: u64,
    /// The C library's functions of these names.
    pub(crate) mmap: u64,
    pub(crate) munmap: u64,
    /// The loader's writable data, which contains its locks.
    pub(crate) loader_data: Vec<(u64, u64)>,
    /// The lock that the loader holds while it loads or unloads, if it was found.
    pub(crate) load_lock: Option<u64>,
}

/// The last instructions of some function: `mov %rax, distance(%rbx); pop %rbx; ret`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keeper {
    address: u64,
    distance: i8,
}

impl Keeper {
    /// Searches for these instructions in code that lies at `start`.
    pub(crate) fn find(code: &[u8], start: u64) -> Option<Self> {
        code.windows(6).enumerate().find_map(|(at, bytes)| {
            let distance = match *bytes {
                [0x48, 0x89, 0x43, distance, 0x5b, 0xc3] => distance.cast_signed(),
                [0x48, 0x89, 0x03, 0x5b, 0xc3, _] => 0,
                _ => return None,
            };
            Some(Self { address: start + at as u64, distance })
        })
    }
}

/// `mov $15, %rax; syscall`: [`Places::restorer`].
pub(crate) const RESTORER: [u8; 9] = [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];

/// The place where a thread continues after a fault while it held the loader's lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recovery {
    /// The address of the code.
    pub(crate) code: u64,
    /// The address of the word with its stack pointer; a 0 in the word means that there is no such
    /// place.
    pub(crate) stack_word: u64,
}

/// A thread whose state is saved.
pub(crate) struct Borrowed {
    thread: i32,
    places: Places,
    registers: libc::user_regs_struct,
    extended: Vec<u8>,
    mask: u64,
    /// The mapping that functions use as their stack; 0 for none.
    stack: u64,
    /// Two words in the process with the stack's address and size. A later process reads them if
    /// this one was killed.
    note: Option<u64>,
    /// How the thread is stopped between calls.
    parked: Parked,
    /// Memory at the thread pointer, saved before the first call.
    control_block: Vec<u8>,
    pub(crate) recovery: Option<Recovery>,
    /// Word that a long call sets when it is done, during that call.
    done_at: Option<u64>,
    /// A signal that came meanwhile and stops processes.
    held_signals: Vec<c_int>,
}

/// The ways in which a thread is stopped.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Parked {
    /// At a stop where registers can be set and system calls can be restarted.
    AtStop,
    /// At the beginning of the system call that ends a call.
    AtReturn,
    /// The thread has returned by itself, before it was stopped.
    Back,
    /// The thread has ended.
    Gone,
}

const PTRACE_GETSIGMASK: u32 = 0x420a;
const PTRACE_SETSIGMASK: u32 = 0x420b;
const NT_X86_XSTATE: usize = 0x202;
const STACK_BYTES: u64 = 1 << 20;
/// Bytes at the start of the mapping for texts; functions use the rest.
const TEXT_BYTES: u64 = 3 << 14;
/// Bytes below the stack pointer that the ABI lets functions use.
const RED_ZONE_BYTES: u64 = 128;
/// Bytes of a thread's control block that are searched; the C library's has at least as many.
const CONTROL_BLOCK_BYTES: usize = 2304;
/// Maximum time to load a library. It takes milliseconds when no thread holds the loader's lock.
const PATIENCE: Duration = Duration::from_secs(20);
/// Maximum wait for the loader's lock before another attempt. The holder may be waiting for this
/// very thread.
const LOCK_PATIENCE: Duration = Duration::from_millis(200);
/// Number of waits for a thread that does not wait for a lock. Giving up during its work would
/// leave that work incomplete, and its locks taken for ever.
const TIMES: u32 = 15;

fn request(what: u32, thread: i32, address: usize, data: *mut c_void) -> io::Result<()> {
    let address: *mut c_void = ptr::without_provenance_mut(address);
    // SAFETY: the callers pass places of the size that the request requires.
    let status = unsafe { libc::ptrace(what, thread, address, data) };
    if status == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn registers(thread: i32) -> io::Result<libc::user_regs_struct> {
    let mut place = MaybeUninit::<libc::user_regs_struct>::zeroed();
    request(libc::PTRACE_GETREGS, thread, 0, place.as_mut_ptr().cast())?;
    // SAFETY: zeros are a value of it, and the call fills it in.
    Ok(unsafe { place.assume_init() })
}

fn set_registers(thread: i32, registers: &libc::user_regs_struct) -> io::Result<()> {
    request(libc::PTRACE_SETREGS, thread, 0, ptr::from_ref(registers).cast_mut().cast())
}

/// Returns whether the pending signal is a fault of the running code, not sent by a process.
fn is_own_fault(thread: i32) -> bool {
    let mut place = MaybeUninit::<libc::siginfo_t>::zeroed();
    let asked = request(libc::PTRACE_GETSIGINFO, thread, 0, place.as_mut_ptr().cast());
    // SAFETY: zeros are a value of it, and the call fills it in.
    asked.is_err() || unsafe { place.assume_init() }.si_code > 0
}

/// Returns whether a stopped thread waits for the lock at this address and was not woken. A woken
/// thread that leaves would make the other waiters sleep for ever.
fn waits_for_lock(registers: &libc::user_regs_struct, lock: Option<u64>) -> bool {
    const ERESTARTSYS: i64 = -512;
    registers.orig_rax.cast_signed() == libc::SYS_futex
        && registers.rax.cast_signed() == ERESTARTSYS
        && Some(registers.rdi) == lock
}

fn gone() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "the thread has ended")
}

/// Returns whether the error means that a call did not end, so that another thread is to be tried.
pub(crate) fn is_late(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::TimedOut
}

/// Returns whether a stopped thread was waiting in a system call. The kernel repeats that call, or
/// ends it with `EINTR`.
pub(crate) fn waits(thread: i32) -> bool {
    registers(thread).is_ok_and(|registers| {
        let result = registers.rax.cast_signed();
        registers.orig_rax.cast_signed() >= 0
            && (result == -i64::from(libc::EINTR) || (-516..=-512).contains(&result))
    })
}

/// Returns whether the error means that the thread had ended.
pub(crate) fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
}

/// Returns a stopped thread's stack pointer.
pub(crate) fn stack_pointer(thread: i32) -> io::Result<u64> {
    registers(thread).map(|registers| registers.rsp)
}

/// Clears the word at `distance` from a stopped thread's thread pointer.
pub(crate) fn clear_word(thread: i32, distance: u64) -> io::Result<()> {
    /// The thread control block contains its own address in this word.
    const OWN_ADDRESS: u64 = 16;
    let base = registers(thread)?.fs_base;
    let read = |address| -> io::Result<u64> {
        let mut bytes = [0; 8];
        let count = read_memory(thread, address, &mut bytes)?;
        if count == bytes.len() {
            Ok(u64::from_le_bytes(bytes))
        } else {
            Err(io::ErrorKind::UnexpectedEof.into())
        }
    };
    if distance == 0 || read(base.wrapping_add(OWN_ADDRESS))? != base {
        return Err(io::Error::other("a thread of it has no control block of the C library's"));
    }
    let place = base.wrapping_add(distance);
    if read(place)? == 0 { Ok(()) } else { write_memory(thread, place, &[0; 8]) }
}

impl Borrowed {
    /// Takes a thread that is stopped, but not by a signal, and gives it a stack for functions.
    pub(crate) fn take(thread: i32, places: &Places) -> io::Result<Self> {
        let mut borrowed = Self::take_plain(thread, places)?;
        let mut control_block = vec![0; CONTROL_BLOCK_BYTES];
        let count = read_memory(thread, borrowed.registers.fs_base, &mut control_block).unwrap_or(0);
        control_block.truncate(count);
        borrowed.control_block = control_block;
        let protection = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as u64;
        let map = borrowed.places.mmap;
        let at = borrowed.call_on_own(map, [0, STACK_BYTES, protection, flags, u64::MAX, 0])?;
        if at > u64::MAX - 4096 {
            return Err(io::Error::other("there is no memory for a stack"));
        }
        borrowed.stack = at;
        Ok(borrowed)
    }

    /// Takes a stopped thread for one short call, and makes it on the thread's own stack.
    pub(crate) fn call_once(thread: i32, places: &Places, address: u64) -> io::Result<u64> {
        Self::take_plain(thread, places)?.call_on_own(address, [0; 6])
    }

    fn take_plain(thread: i32, places: &Places) -> io::Result<Self> {
        let registers = registers(thread)?;
        let mut extended = vec![0; 1 << 14];
        let mut vector = libc::iovec { iov_base: extended.as_mut_ptr().cast(), iov_len: extended.len() };
        request(libc::PTRACE_GETREGSET, thread, NT_X86_XSTATE, (&raw mut vector).cast())?;
        extended.truncate(vector.iov_len);
        let mut mask = 0_u64;
        request(PTRACE_GETSIGMASK, thread, 8, (&raw mut mask).cast())?;
        // A stop at a system call is then no signal for the thread, even when this process is
        // killed.
        let options = ptr::without_provenance_mut(libc::PTRACE_O_TRACESYSGOOD as usize);
        request(libc::PTRACE_SETOPTIONS, thread, 0, options)?;
        Ok(Self {
            thread,
            places: places.clone(),
            registers,
            extended,
            mask,
            stack: 0,
            note: None,
            parked: Parked::AtStop,
            control_block: Vec::new(),
            recovery: None,
            done_at: None,
            held_signals: Vec::new(),
        })
    }

    /// Blocks all signals but those that report a fault of the running code. A fault with a blocked
    /// signal would end the process.
    fn block_signals(&self) -> io::Result<()> {
        let faults = [libc::SIGTRAP, libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE];
        let mut mask = faults.iter().fold(u64::MAX, |mask, signal| mask & !(1 << (signal - 1)));
        request(PTRACE_SETSIGMASK, self.thread, 8, (&raw mut mask).cast())
    }

    /// Writes the address and the size of the stack for injected calls to the two words at `place`.
    pub(crate) fn note_stack(&mut self, place: u64) -> io::Result<()> {
        let mut first = [0; 8];
        read_memory(self.thread, place, &mut first)?;
        // A stack that is already noted is to be unmapped first.
        if self.note.is_none() && first == [0; 8] {
            let words = [self.stack.to_le_bytes(), STACK_BYTES.to_le_bytes()];
            write_memory(self.thread, place, words.as_flattened())?;
            self.note = Some(place);
        }
        Ok(())
    }

    /// Writes `bytes` to the place for texts, `at` bytes behind its beginning, and returns the
    /// address.
    pub(crate) fn write(&self, at: u64, bytes: &[u8]) -> io::Result<u64> {
        if at + bytes.len() as u64 > TEXT_BYTES {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let address = self.stack + at;
        write_memory(self.thread, address, bytes)?;
        Ok(address)
    }

    /// Calls the function at `address`.
    pub(crate) fn call(&mut self, address: u64, [a, b, c]: [u64; 3]) -> io::Result<u64> {
        self.call_at(self.stack + STACK_BYTES, address, [a, b, c, 0, 0, 0])
    }

    /// Calls a function that makes many system calls; none of them must stop the thread. Its third
    /// argument is `done_at`, the address of a word that it makes nonzero when it is done; then it
    /// waits some seconds to be stopped.
    pub(crate) fn call_long(&mut self, address: u64, [a, b]: [u64; 2], done_at: u64) -> io::Result<u64> {
        self.done_at = Some(done_at);
        let result = self.call(address, [a, b, done_at]);
        self.done_at = None;
        result
    }

    /// Returns whether this process can still call functions in the thread.
    pub(crate) fn is_held(&self) -> bool {
        !matches!(self.parked, Parked::Gone | Parked::Back)
    }

    /// Calls a short function on the thread's own stack.
    fn call_on_own(&mut self, address: u64, arguments: [u64; 6]) -> io::Result<u64> {
        self.call_at(self.registers.rsp - RED_ZONE_BYTES, address, arguments)
    }

    /// Calls a function whose stack, with the frame for the return, is below `top`.
    fn call_at(&mut self, top: u64, address: u64, arguments: [u64; 6]) -> io::Result<u64> {
        if !self.is_held() {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "its thread has gone on"));
        }
        let (frame_at, frame) = self.frame_below(top);
        write_memory(self.thread, frame_at, &frame)?;
        self.leave_return()?;
        let result_at = frame_at + FRAME_BYTES - 8;
        let mut registers = self.registers;
        registers.rsp = frame_at;
        registers.rbp = 0;
        registers.rbx = result_at.wrapping_sub(i64::from(self.places.keeper.distance).cast_unsigned());
        registers.rip = address;
        registers.rax = 0;
        registers.orig_rax = u64::MAX;
        // Clears the direction flag and the single-step flag.
        registers.eflags &= !0x500;
        [registers.rdi, registers.rsi, registers.rdx, registers.rcx, registers.r8, registers.r9] = arguments;
        // One step sets all registers, and comes first: from here on the thread returns by itself,
        // with its mask.
        set_registers(self.thread, &registers)?;
        self.block_signals()?;
        if let Err(error) = self.go(frame_at + RETURN_BYTES) {
            if self.is_held() {
                self.parked = Parked::AtStop;
            }
            return Err(error);
        }
        let mut result = [0; 8];
        read_memory(self.thread, result_at, &mut result)?;
        Ok(u64::from_le_bytes(result))
    }

    /// Returns the frame that leads the thread back to its state, and the frame's address. A
    /// function finds that address as its stack pointer: the return address lies there. The layout
    /// is that of the kernel's `struct rt_sigframe`.
    fn frame_below(&self, top: u64) -> (u64, Vec<u8>) {
        let state = restorable_state(&self.extended);
        let state_at = (top - state.len() as u64) & !63;
        let frame_at = ((state_at - FRAME_BYTES) & !15) - 8;
        let mut words = Vec::with_capacity(FRAME_BYTES as usize / 8);
        let old = resumed(&self.registers);
        words.extend([self.places.keeper.address, 0, self.places.restorer]);
        // uc_flags: extended state is present, and the stack segment is valid.
        words.extend([1 | 2 | 4, 0]);
        // uc_stack: a stack that the kernel refuses, so that the thread's alternate stack remains
        // unchanged.
        words.extend([0, 0xdead, 0]);
        words.extend([old.r8, old.r9, old.r10, old.r11, old.r12, old.r13, old.r14, old.r15]);
        words.extend([old.rdi, old.rsi, old.rbp, old.rbx, old.rdx, old.rax, old.rcx, old.rsp, old.rip]);
        words.push(old.eflags);
        words.push(old.cs & 0xffff | (old.ss & 0xffff) << 48);
        // err, trapno, oldmask, cr2.
        words.extend([0; 4]);
        words.push(state_at);
        words.extend([0; 8]);
        words.push(self.mask);
        // Address for the result.
        words.push(0);
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.resize((state_at - frame_at) as usize, 0);
        bytes.extend(state);
        (frame_at, bytes)
    }

    /// Goes from the beginning of `rt_sigreturn`, which is skipped, to the end of that system call.
    /// If this process is killed meanwhile, the thread makes the call once more.
    fn leave_return(&mut self) -> io::Result<()> {
        if self.parked != Parked::AtReturn {
            return Ok(());
        }
        let mut now = registers(self.thread)?;
        now.orig_rax = u64::MAX;
        now.rip = self.places.restorer;
        set_registers(self.thread, &now)?;
        request(libc::PTRACE_INTERRUPT, self.thread, 0, ptr::null_mut())?;
        request(libc::PTRACE_CONT, self.thread, 0, ptr::null_mut())?;
        loop {
            let status = self.wait()?;
            if status >> 16 != 0 {
                self.parked = Parked::AtStop;
                return Ok(());
            }
            // All signals that can be blocked are blocked; the remaining ones stop processes.
            self.keep(libc::WSTOPSIG(status));
            request(libc::PTRACE_CONT, self.thread, 0, ptr::null_mut())?;
        }
    }

    fn keep(&mut self, signal: c_int) {
        if signal & 0x80 == 0 && signal != libc::SIGTRAP {
            self.held_signals.push(signal);
        }
    }

    /// Waits for the next stop, which is about to come.
    fn wait(&mut self) -> io::Result<c_int> {
        let deadline = Instant::now() + PATIENCE;
        let mut pause = Pause::new();
        loop {
            if let Some(status) = self.poll()? {
                return Ok(status);
            }
            if Instant::now() > deadline {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "it did not stop"));
            }
            pause.take();
        }
    }

    /// Returns how the thread has stopped, if it has.
    fn poll(&mut self) -> io::Result<Option<c_int>> {
        let mut status = 0;
        // SAFETY: a traced thread, and a place for its status.
        let found = unsafe { libc::waitpid(self.thread, &raw mut status, libc::__WALL | libc::WNOHANG) };
        if found == 0 {
            return Ok(None);
        }
        if found < 0 || !libc::WIFSTOPPED(status) {
            self.parked = Parked::Gone;
            return Err(gone());
        }
        Ok(Some(status))
    }

    /// Runs the thread up to the system call that ends the call, with its stack pointer at `end`.
    fn go(&mut self, end: u64) -> io::Result<()> {
        let started = Instant::now();
        let mut deadline = started + LOCK_PATIENCE.min(PATIENCE);
        let (mut is_late, mut times) = (false, 1);
        let mut pause = Pause::new();
        let mut done_at = self.done_at;
        let go_on =
            |done_at: Option<u64>| if done_at.is_some() { libc::PTRACE_CONT } else { libc::PTRACE_SYSCALL };
        request(go_on(done_at), self.thread, 0, ptr::null_mut())?;
        loop {
            let Some(status) = self.poll()? else {
                if !is_late && (self.is_done(done_at) || Instant::now() > deadline) {
                    is_late = true;
                    request(libc::PTRACE_INTERRUPT, self.thread, 0, ptr::null_mut())?;
                }
                pause.take();
                continue;
            };
            pause = Pause::new();
            let signal = libc::WSTOPSIG(status);
            let is_event = status >> 16 != 0;
            if is_event && is_late {
                is_late = false;
                if self.is_done(done_at) {
                    done_at = None;
                    let at = registers(self.thread)?.rsp;
                    if !(self.stack..self.stack + STACK_BYTES).contains(&at) {
                        self.parked = Parked::Back;
                        return Ok(());
                    }
                    // The rest of the call is short.
                    deadline = Instant::now() + LOCK_PATIENCE;
                    request(libc::PTRACE_SYSCALL, self.thread, 0, ptr::null_mut())?;
                    continue;
                }
                // A call that waits for this lock has done nothing yet and can be given up. A call
                // that waits for anything else cannot.
                if waits_for_lock(&registers(self.thread)?, self.places.load_lock) {
                    self.forget_stack();
                    return Err(io::Error::new(
                        io::ErrorKind::TimedOut,
                        "another thread holds the loader's lock, and does not give it back",
                    ));
                }
                if started.elapsed() > PATIENCE {
                    times += 1;
                }
                if times >= TIMES {
                    return Err(io::Error::other("it did not come back"));
                }
                let patience = if started.elapsed() > PATIENCE { PATIENCE } else { LOCK_PATIENCE };
                deadline = Instant::now() + patience;
            }
            if !is_event && signal == libc::SIGTRAP | 0x80 {
                let now = registers(self.thread)?;
                let behind = self.places.restorer + RESTORER.len() as u64;
                if now.rip == behind && now.rsp == end && now.orig_rax.cast_signed() == libc::SYS_rt_sigreturn
                {
                    self.parked = Parked::AtReturn;
                    return Ok(());
                }
                // A stop at a system call replaces the requested stop.
                if is_late {
                    request(libc::PTRACE_INTERRUPT, self.thread, 0, ptr::null_mut())?;
                }
            } else if !is_event
                && matches!(
                    signal,
                    libc::SIGSEGV | libc::SIGBUS | libc::SIGILL | libc::SIGFPE | libc::SIGTRAP
                )
                && is_own_fault(self.thread)
            {
                if !self.recover()? {
                    self.forget_stack();
                    return Err(io::Error::other(format!("it ended with signal {signal}")));
                }
            } else if !is_event {
                self.keep(signal);
            }
            request(go_on(done_at), self.thread, 0, ptr::null_mut())?;
        }
    }

    fn is_done(&self, done_at: Option<u64>) -> bool {
        let mut word = [0; 8];
        done_at.is_some_and(|at| read_memory(self.thread, at, &mut word).is_ok() && word != [0; 8])
    }

    /// Continues the thread, after a fault, where it releases the loader's lock. Returns false when
    /// it does not hold that lock.
    fn recover(&self) -> io::Result<bool> {
        let Some(Recovery { code, stack_word }) = self.recovery else { return Ok(false) };
        let mut bytes = [0; 8];
        read_memory(self.thread, stack_word, &mut bytes)?;
        let stack = u64::from_le_bytes(bytes);
        if !(self.stack..self.stack + STACK_BYTES).contains(&stack) {
            return Ok(false);
        }
        // Only once: a second fault there cannot be repaired.
        write_memory(self.thread, stack_word, &[0; 8])?;
        let mut now = registers(self.thread)?;
        (now.rip, now.rsp, now.orig_rax) = (code, stack, u64::MAX);
        set_registers(self.thread, &now)?;
        Ok(true)
    }

    /// Removes the notes of an abandoned call from the thread's control block. They must not lead
    /// to a stack that is about to be unmapped.
    fn forget_stack(&self) {
        let mut now = vec![0; self.control_block.len()];
        if self.stack == 0 || read_memory(self.thread, self.registers.fs_base, &mut now).is_err() {
            return;
        }
        let (old, _) = self.control_block.as_chunks::<8>();
        for (index, (old, now)) in old.iter().zip(now.as_chunks::<8>().0).enumerate() {
            let word = u64::from_le_bytes(*now);
            if old != now && (self.stack..self.stack + STACK_BYTES).contains(&word) {
                let _ = write_memory(self.thread, self.registers.fs_base + index as u64 * 8, old);
            }
        }
    }

    fn put_back(&mut self) -> io::Result<()> {
        if self.stack != 0 && self.is_held() {
            // This comes first: the unmapped memory may soon belong to another mapping.
            if let Some(place) = self.note.take() {
                let _ = write_memory(self.thread, place, &[0; 16]);
            }
            let unmap = self.places.munmap;
            let stack = std::mem::take(&mut self.stack);
            let _ = self.call_on_own(unmap, [stack, STACK_BYTES, 0, 0, 0, 0]);
        }
        if !self.is_held() {
            return Ok(());
        }
        self.leave_return()?;
        let mut vector =
            libc::iovec { iov_base: self.extended.as_mut_ptr().cast(), iov_len: self.extended.len() };
        request(libc::PTRACE_SETREGSET, self.thread, NT_X86_XSTATE, (&raw mut vector).cast())?;
        request(PTRACE_SETSIGMASK, self.thread, 8, (&raw mut self.mask).cast())?;
        set_registers(self.thread, &self.registers)
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        // A thread that has ended needs no signal.
        let _ = self.put_back();
        for signal in self.held_signals.drain(..) {
            // SAFETY: sends a signal that was on its way to the thread.
            unsafe { libc::syscall(libc::SYS_tkill, self.thread, signal) };
        }
    }
}

/// Waits in growing steps: a stop usually comes within microseconds.
struct Pause(u32);

impl Pause {
    const fn new() -> Self {
        Self(0)
    }

    fn take(&mut self) {
        if self.0 < 50 {
            self.0 += 1;
            std::thread::yield_now();
        } else {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

/// Two return addresses and the words between them: the kernel's frame is behind.
const RETURN_BYTES: u64 = 8 * 3;
const FRAME_BYTES: u64 = RETURN_BYTES + 8 * (2 + 3 + 8 + 9 + 1 + 1 + 4 + 1 + 8 + 1) + 8;

/// Returns the registers with which a thread continues after a stop in a system call. The kernel
/// repeats the call if its result says so.
fn resumed(registers: &libc::user_regs_struct) -> libc::user_regs_struct {
    const ERESTARTSYS: i64 = -512;
    const ERESTARTNOINTR: i64 = -513;
    const ERESTARTNOHAND: i64 = -514;
    const ERESTART_RESTARTBLOCK: i64 = -516;
    let mut registers = *registers;
    if registers.orig_rax.cast_signed() >= 0 {
        match registers.rax.cast_signed() {
            ERESTARTSYS | ERESTARTNOINTR | ERESTARTNOHAND => {
                registers.rax = registers.orig_rax;
                registers.rip -= 2;
            }
            ERESTART_RESTARTBLOCK => {
                registers.rax = libc::SYS_restart_syscall as u64;
                registers.rip -= 2;
            }
            _ => {}
        }
    }
    registers
}

/// Converts the floating-point and vector state from a tracer's form to that of a signal frame. The
/// latter has words that describe its content. Tiles (AMX) are left out: most threads may not use
/// them.
fn restorable_state(extended: &[u8]) -> Vec<u8> {
    const WORDS_AT: usize = 464;
    const LEGACY_BYTES: u32 = 576;
    /// The state components up to the protection keys.
    const FEATURES: u64 = (1 << 10) - 1;
    let mut state = extended.to_vec();
    let Some(features) = extended.get(WORDS_AT..WORDS_AT + 8).and_then(|bytes| bytes.first_chunk()) else {
        return state;
    };
    let features = u64::from_le_bytes(*features) & FEATURES;
    let behind = |feature: u32| {
        let part = core::arch::x86_64::__cpuid_count(0xd, feature);
        part.eax + part.ebx
    };
    let parts = (2..10).filter(|feature| features >> feature & 1 != 0).map(behind);
    let bytes = parts.max().unwrap_or(0).max(LEGACY_BYTES);
    state.resize(bytes as usize, 0);
    let mut put = |at: usize, bytes: &[u8]| {
        if let Some(place) = state.get_mut(at..at + bytes.len()) {
            place.copy_from_slice(bytes);
        }
    };
    put(WORDS_AT, &0x4650_5853_u32.to_le_bytes());
    put(WORDS_AT + 4, &(bytes + 4).to_le_bytes());
    put(WORDS_AT + 8, &features.to_le_bytes());
    put(WORDS_AT + 16, &bytes.to_le_bytes());
    put(WORDS_AT + 20, &[0; 28]);
    state.extend(0x4650_5845_u32.to_le_bytes());
    state
}

/// A recursive mutex of the C library, in words. They are the state, the depth, the owner, the
/// number of users, the kind, and words that only other kinds use.
const MUTEX_WORDS: usize = 10;
const RECURSIVE: u32 = 1;

/// Returns the thread that holds the mutex; 0 for none. Returns `None` when these words are no
/// recursive mutex.
fn owner(words: &[u32]) -> Option<u32> {
    match *words {
        [0, 0, 0, 0, RECURSIVE, 0, 0, 0, 0, 0] => Some(0),
        // A thread that has just taken it has not stored its id yet; a thread about to release it
        // has already removed its id.
        [1 | 2, _, owner, _, RECURSIVE, 0, 0, 0, 0, 0] => Some(owner),
        _ => None,
    }
}

/// Returns the words of a process's memory between two addresses.
fn words(process: i32, (start, end): (u64, u64)) -> Vec<u32> {
    let mut bytes = vec![0; (end - start) as usize];
    let count = read_memory(process, start, &mut bytes).unwrap_or(0);
    bytes.truncate(count);
    bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect()
}

/// Returns the lock that the loader holds while it loads or unloads. It is the first of those that
/// lie side by side in its data.
pub(crate) fn load_lock(process: i32, parts: &[(u64, u64)]) -> Option<u64> {
    parts.iter().find_map(|part| {
        let words = words(process, *part);
        let is_mutex =
            |from: usize| words.get(from..from + MUTEX_WORDS).is_some_and(|words| owner(words).is_some());
        let index = (0..words.len()).step_by(2).find(|&at| is_mutex(at) && is_mutex(at + MUTEX_WORDS))?;
        Some(part.0 + index as u64 * 4)
    })
}

/// Returns the threads that hold recursive mutexes in these parts of a process's memory.
pub(crate) fn owners(process: i32, parts: &[(u64, u64)]) -> Vec<u32> {
    let all = parts.iter().map(|part| words(process, *part));
    let mut found = Vec::new();
    for words in all {
        let mutexes = words.windows(MUTEX_WORDS).step_by(2).filter_map(owner);
        found.extend(mutexes.filter(|&owner| owner != 0));
    }
    found
}

/// Releases a stopped thread that is traced by this one.
pub(crate) fn release(thread: i32, signal: c_int) {
    let _ = request(libc::PTRACE_DETACH, thread, 0, ptr::without_provenance_mut(signal as usize));
}

pub(crate) fn write_memory(process: i32, address: u64, bytes: &[u8]) -> io::Result<()> {
    let local = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let remote =
        libc::iovec { iov_base: ptr::without_provenance_mut(address as usize), iov_len: bytes.len() };
    // SAFETY: reads the bytes; the kernel checks the remote address.
    let count = unsafe { libc::process_vm_writev(process, &raw const local, 1, &raw const remote, 1, 0) };
    match count {
        -1 => Err(io::Error::last_os_error()),
        count if count == bytes.len() as isize => Ok(()),
        _ => Err(io::Error::other("there is no room in its memory")),
    }
}

pub(crate) fn read_memory(process: i32, address: u64, into: &mut [u8]) -> io::Result<usize> {
    let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let remote = libc::iovec { iov_base: ptr::without_provenance_mut(address as usize), iov_len: into.len() };
    // SAFETY: the kernel writes at most the size of the buffer.
    let count = unsafe { libc::process_vm_readv(process, &raw const local, 1, &raw const remote, 1, 0) };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}
