//! The start of a program, the signals during its run, and its end.
//!
//! Rust's own `Command` gives the program an empty signal mask and a default SIGPIPE, whatever we
//! inherited. Here the program gets the same state as without us.
//!
//! Signals are not handled but waited for: those that a terminal or an administrator may send are
//! blocked in this process and taken by [`Running::wait`]. A terminal sends to the program too, so
//! only signals that a process sent to us alone are forwarded.

use std::ffi::{CString, NulError, OsStr, OsString, c_int};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;
use std::{env, fmt, mem, ptr};

use crate::{Library, Program, inherited, outliving};

/// The program to start.
#[derive(Debug)]
pub struct Start<'a> {
    /// The program.
    pub program: &'a Program,
    /// Its arguments, without its name.
    pub arguments: &'a [OsString],
    /// The library to put into it, with the value of its variable `CAIRN_HEAP`.
    pub library: Option<(&'a Library, &'a OsStr)>,
}

/// A reason why the program did not start.
#[derive(Debug)]
#[non_exhaustive]
pub enum StartError {
    /// An argument has a NUL in it.
    Nul(NulError),
    /// The system refused.
    System(io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nul(error) => write!(f, "an argument cannot be passed on: {error}"),
            Self::System(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for StartError {}

impl From<NulError> for StartError {
    fn from(error: NulError) -> Self {
        Self::Nul(error)
    }
}

impl From<io::Error> for StartError {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

/// Returns whether a line on the terminal at standard error is harmless. This process is then in
/// the foreground, and the terminal takes whole lines. A program that draws on the terminal, or
/// reads its keys, uses it alone; and a terminal may stop a process in the background that writes
/// to it.
#[must_use]
pub fn terminal_takes_lines() -> bool {
    // SAFETY: zeros are a value of it, and the call only writes to it.
    let is_by_line = unsafe {
        let mut modes: libc::termios = mem::zeroed();
        libc::tcgetattr(libc::STDERR_FILENO, &raw mut modes) == 0 && modes.c_lflag & libc::ICANON != 0
    };
    // SAFETY: both calls only read state. The first one fails for a terminal that controls another
    // session; no terminal stops us there.
    let (foreground, own) = unsafe { (libc::tcgetpgrp(libc::STDERR_FILENO), libc::getpgrp()) };
    is_by_line && (foreground < 0 || foreground == own)
}

/// A program that was started.
#[derive(Debug)]
pub struct Running {
    process: libc::pid_t,
    signals: libc::sigset_t,
    failure: Failure,
}

/// A word shared with the child until it executes the program: the error number if that fails. Not
/// a pipe: under a tight limit there may be no descriptor left for it.
#[derive(Debug)]
struct Failure(*mut c_int);

impl Failure {
    fn new() -> io::Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        // SAFETY: an anonymous mapping at an address that the kernel chooses touches no existing
        // memory.
        match unsafe { libc::mmap(ptr::null_mut(), size_of::<c_int>(), protection, flags, -1, 0) } {
            libc::MAP_FAILED => Err(io::Error::last_os_error()),
            address => Ok(Self(address.cast())),
        }
    }

    const fn word(&self) -> &AtomicI32 {
        // SAFETY: mapped as long as `self` lives, zeroed, aligned to a page.
        unsafe { AtomicI32::from_ptr(self.0) }
    }
}

impl Drop for Failure {
    fn drop(&mut self) {
        // SAFETY: `new` made the mapping.
        unsafe { libc::munmap(self.0.cast(), size_of::<c_int>()) };
    }
}

/// An event that [`Running::wait`] reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Event {
    /// The time is over.
    Tick,
    /// A signal that asks for an end came; the program has received it too.
    Asked(c_int),
    /// The program ended.
    Ended(End),
}

/// How a program ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// By exit, with this status.
    Status(u8),
    /// By this signal.
    Signal(c_int),
}

/// The signals that this process waits for.
const TAKEN: [c_int; 7] =
    [libc::SIGCHLD, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGHUP, libc::SIGUSR1, libc::SIGUSR2];

/// Environment variable with the libraries that the loader loads first.
const PRELOAD: &str = "LD_PRELOAD";
const OPTIONS: &str = "CAIRN_HEAP";

impl Start<'_> {
    /// Starts the program. Call this before the process has a second thread: such a thread would
    /// not have the signals blocked.
    ///
    /// # Errors
    ///
    /// [`StartError`].
    pub fn run(&self) -> Result<Running, StartError> {
        let path = text(self.program.path().as_os_str())?;
        let mut arguments = vec![text(self.program.name())?];
        for argument in self.arguments {
            arguments.push(text(argument)?);
        }
        let environment = self.environment()?;
        // Imitates the shell for a file that is neither a program nor has an interpreter.
        let mut as_script = vec![c"sh".to_owned(), path.clone()];
        as_script.extend(arguments.iter().skip(1).cloned());
        let (arguments, as_script) = (pointers(&arguments), pointers(&as_script));
        let environment = pointers(&environment);
        let failure = Failure::new()?;

        let (signals, mut inherited_mask) = (set_of(&TAKEN), set_of(&[]));
        // SAFETY: the sets live here.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const signals, &raw mut inherited_mask) };
        // Ended children must stay until they are waited for, whatever we inherited.
        // SAFETY: no handler is set.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
        // SAFETY: the child makes only calls that are allowed between fork and exec.
        let process = unsafe { libc::fork() };
        match process {
            -1 => {
                let error = io::Error::last_os_error();
                // SAFETY: the set is the one from above.
                unsafe {
                    libc::pthread_sigmask(libc::SIG_SETMASK, &raw const inherited_mask, ptr::null_mut())
                };
                Err(error.into())
            }
            0 => {
                inherited::restore();
                // SAFETY: both are arrays of texts with a null pointer at their ends.
                let error = unsafe {
                    libc::pthread_sigmask(libc::SIG_SETMASK, &raw const inherited_mask, ptr::null_mut());
                    libc::execve(path.as_ptr(), arguments.as_ptr(), environment.as_ptr());
                    if *libc::__errno_location() == libc::ENOEXEC {
                        libc::execve(c"/bin/sh".as_ptr(), as_script.as_ptr(), environment.as_ptr());
                    }
                    *libc::__errno_location()
                };
                failure.word().store(error, Ordering::Release);
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(127) }
            }
            process => {
                outliving::note_start(process);
                Ok(Running { process, signals, failure })
            }
        }
    }

    /// Returns our environment with the library in it. The library comes before those that are
    /// preloaded already, in the same variable.
    fn environment(&self) -> Result<Vec<CString>, NulError> {
        let mut variables: Vec<(OsString, OsString)> = env::vars_os().collect();
        if let Some((library, options)) = self.library {
            variables.retain(|(name, _)| name != OPTIONS);
            let mut list = library.path().as_os_str().to_owned();
            match variables.iter_mut().find(|(name, _)| name == PRELOAD) {
                Some((_, present)) => {
                    if !present.is_empty() {
                        list.push(":");
                        list.push(&*present);
                    }
                    *present = list;
                }
                None => variables.push((PRELOAD.into(), list)),
            }
            variables.push((OPTIONS.into(), options.to_owned()));
        }
        let joined = variables.into_iter().map(|(name, value)| {
            let mut both = name;
            both.push("=");
            both.push(value);
            text(&both)
        });
        joined.collect()
    }
}

fn text(text: &OsStr) -> Result<CString, NulError> {
    CString::new(text.as_bytes())
}

fn pointers(texts: &[CString]) -> Vec<*const libc::c_char> {
    texts.iter().map(|text| text.as_ptr()).chain([ptr::null()]).collect()
}

fn set_of(signals: &[c_int]) -> libc::sigset_t {
    // SAFETY: an integer array is valid in any state, and the call makes it a set.
    unsafe {
        let mut set = mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in signals {
            libc::sigaddset(&raw mut set, *signal);
        }
        set
    }
}

impl Running {
    /// Returns the program's process id.
    #[must_use]
    pub const fn process(&self) -> u32 {
        self.process as u32
    }

    /// Waits until an event happens, at most for `time`.
    ///
    /// # Errors
    ///
    /// When the program could not be started after all, or is no child of this process any more.
    pub fn wait(&mut self, time: Duration) -> io::Result<Event> {
        if let Some(end) = self.end()? {
            return Ok(Event::Ended(end));
        }
        let time = libc::timespec {
            tv_sec: time.as_secs().try_into().unwrap_or(libc::time_t::MAX),
            tv_nsec: time.subsec_nanos().into(),
        };
        // SAFETY: zeros are a value of it, and the call writes to it.
        let mut facts: libc::siginfo_t = unsafe { mem::zeroed() };
        // SAFETY: a set, a place and a time that live here.
        let signal = unsafe { libc::sigtimedwait(&raw const self.signals, &raw mut facts, &raw const time) };
        match signal {
            // The time is over, or a signal interrupted: both are the same for the caller.
            -1 => Ok(Event::Tick),
            libc::SIGCHLD => Ok(self.end()?.map_or(Event::Tick, Event::Ended)),
            signal => {
                // A signal from a terminal went to the program too; one from a process, to us
                // alone.
                if facts.si_code != libc::SI_KERNEL {
                    // SAFETY: our child, which was not waited for.
                    unsafe { libc::kill(self.process, signal) };
                }
                Ok(Event::Asked(signal))
            }
        }
    }

    fn end(&self) -> io::Result<Option<End>> {
        let mut status = 0;
        // SAFETY: our child, and a place for the status.
        match unsafe { libc::waitpid(self.process, &raw mut status, libc::WNOHANG) } {
            0 => Ok(None),
            -1 => Err(io::Error::last_os_error()),
            _ => {
                let failure = self.failure.word().load(Ordering::Acquire);
                let end = (failure == 0).then(|| End::of(status));
                outliving::note_end(end);
                end.map(Some).ok_or_else(|| io::Error::from_raw_os_error(failure))
            }
        }
    }
}

impl End {
    /// Returns the result of `waitpid`.
    pub(crate) fn of(status: c_int) -> Self {
        if libc::WIFSIGNALED(status) {
            Self::Signal(libc::WTERMSIG(status))
        } else {
            Self::Status(libc::WEXITSTATUS(status) as u8)
        }
    }

    /// Ends this process in the same way, without a second core file.
    pub fn imitate(self) -> ! {
        self.imitate_by(|status| std::process::exit(status))
    }

    /// Does the same as [`imitate`](Self::imitate), with another way to end with a status.
    pub(crate) fn imitate_by(self, exit: fn(c_int) -> !) -> ! {
        let signal = match self {
            Self::Status(status) => exit(status.into()),
            Self::Signal(signal) => signal,
        };
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        let set = set_of(&[signal]);
        // SAFETY: no handler is set, and the limit and the set live here.
        unsafe {
            libc::setrlimit(libc::RLIMIT_CORE, &raw const none);
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, ptr::null_mut());
        }
        // Only reached for signals that end no process.
        exit(128 + signal)
    }
}
