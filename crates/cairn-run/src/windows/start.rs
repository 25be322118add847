//! Starts the program, and waits for its end.

use std::ffi::{OsStr, OsString};
use std::os::windows::io::AsRawHandle;
use std::os::windows::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::{fmt, io};

use super::calls::{
    CloseHandle, IsWow64Process, NtResumeProcess, OpenProcess, SetConsoleCtrlHandler, WaitForSingleObject,
};
use super::exchange::{Answer, Exchange, Request};
use super::unrecorded::{Run, Unrecorded};
use super::{Library, find, inject};

/// A program to be started.
#[derive(Clone, Copy, Debug)]
pub struct Start<'a> {
    /// Its name, or the path of its file.
    pub program: &'a OsStr,
    /// Its arguments.
    pub arguments: &'a [OsString],
    /// The library that records it.
    pub library: &'a Library,
    /// Whether its children are recorded as well, each into a file of its own.
    pub children: bool,
    /// Whether the ranges of addresses that it maps are recorded as well.
    pub mappings: bool,
}

/// Reason why a program does not run, or is not recorded.
#[derive(Debug)]
#[non_exhaustive]
pub enum StartError {
    /// There is no file of that name.
    NotFound(OsString),
    /// The file cannot be read.
    Unreadable(PathBuf, io::Error),
    /// The file is no 64-bit program for x86-64; the text says what it is.
    OtherMachine(PathBuf, &'static str),
    /// The system does not start it.
    NotStarted(PathBuf, io::Error),
    /// The library cannot be loaded into it.
    NotLoaded(PathBuf, io::Error),
    /// The library cannot record, for this reason.
    NotRecorded(PathBuf, String),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound(name) => write!(f, "{}: there is no such program", Path::new(name).display()),
            Self::Unreadable(path, error) => write!(f, "{}: cannot be read: {error}", path.display()),
            Self::OtherMachine(path, reason) => {
                write!(f, "{}: {reason}; cairn records 64-bit programs for x86-64 on Windows", path.display())
            }
            Self::NotStarted(path, error) => write!(f, "{}: cannot be started: {error}", path.display()),
            Self::NotLoaded(path, error) => write!(
                f,
                "{}: the recording library cannot be loaded into it: {error}; it was not run",
                path.display()
            ),
            Self::NotRecorded(path, reason) => {
                write!(f, "{}: it cannot be recorded: {reason}; it was not run", path.display())
            }
        }
    }
}

impl std::error::Error for StartError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Unreadable(_, error) | Self::NotStarted(_, error) | Self::NotLoaded(_, error) => {
                Some(error)
            }
            Self::NotFound(_) | Self::OtherMachine(..) | Self::NotRecorded(..) => None,
        }
    }
}

/// A program that runs and is recorded.
#[derive(Debug)]
pub struct Running {
    child: Child,
    recording: PathBuf,
    run: Option<Run>,
}

impl Start<'_> {
    /// Starts the program.
    ///
    /// `recording` returns the absolute path of the recording for a process id. If a file has that
    /// name, the recorder appends a number. With children, it is the path of a directory, in which
    /// each recording is called `%n.%p.cairn`: name of the program, process id.
    ///
    /// Until the command ends, Ctrl-C ends the program only.
    ///
    /// # Errors
    ///
    /// [`StartError`]; no instruction of the program was executed then.
    pub fn run(&self, recording: impl FnOnce(u32) -> PathBuf) -> Result<Running, StartError> {
        const CREATE_SUSPENDED: u32 = 4;
        let path = find(self.program)?;
        let mut command = Command::new(&path);
        command.args(self.arguments).creation_flags(CREATE_SUSPENDED);
        let run = if self.children {
            Some(Run::make().map_err(|error| StartError::NotRecorded(path.clone(), error.to_string()))?)
        } else {
            None
        };
        let mut child = command.spawn().map_err(|error| StartError::NotStarted(path.clone(), error))?;
        // SAFETY: the function stays, and takes no state. It is not inherited, as the attribute to
        // ignore Ctrl-C would be.
        unsafe { SetConsoleCtrlHandler(Some(leave_to_program), 1) };
        match self.record(&child, path, &recording(child.id())) {
            Ok(recording) => Ok(Running { child, recording, run }),
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(error)
            }
        }
    }

    /// Loads the library into the suspended program, and resumes it.
    fn record(&self, child: &Child, path: PathBuf, recording: &Path) -> Result<PathBuf, StartError> {
        let process = child.as_raw_handle();
        let mut is_32_bit = 0;
        // SAFETY: the handle is the child's, and the call writes one number.
        if unsafe { IsWow64Process(process, &raw mut is_32_bit) } == 0 || is_32_bit != 0 {
            return Err(StartError::OtherMachine(path, "it runs as a 32-bit program"));
        }
        let request = Request {
            path: recording,
            library: self.library.path(),
            children: self.children,
            mappings: self.mappings,
        };
        let exchange = Exchange::make(child.id(), request)
            .map_err(|error| StartError::NotRecorded(path.clone(), error.to_string()))?;
        let is_loaded = inject::load(process, self.library.path())
            .map_err(|error| StartError::NotLoaded(path.clone(), error))?;
        let recording = match exchange.answer() {
            Answer::Recording(recording) => recording,
            Answer::Refused(reason) => return Err(StartError::NotRecorded(path, reason)),
            Answer::None => {
                let reason =
                    if is_loaded { "the library does not answer" } else { "its loader refuses the library" };
                return Err(StartError::NotLoaded(path, io::Error::other(reason)));
            }
        };
        // SAFETY: the handle is the child's; its own thread is suspended since its creation.
        let status = unsafe { NtResumeProcess(process) };
        if status < 0 {
            return Err(StartError::NotStarted(path, io::Error::other(format!("status {status:#010x}"))));
        }
        Ok(recording)
    }
}

impl Running {
    /// Returns the process id.
    #[must_use]
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// Returns the path of the recording.
    #[must_use]
    pub fn recording(&self) -> &Path {
        &self.recording
    }

    /// Returns the children that were started and not recorded until now.
    #[must_use]
    pub fn unrecorded(&self) -> Vec<Unrecorded> {
        self.run.as_ref().map(Run::unrecorded).unwrap_or_default()
    }

    /// Waits for the end; returns the exit code.
    ///
    /// # Errors
    ///
    /// Those of the system's wait.
    pub fn wait(&mut self) -> io::Result<i32> {
        // Windows has an exit code for each end.
        Ok(self.child.wait()?.code().unwrap_or_default())
    }
}

/// Returns true if a process of this number runs; also if it is another user's.
#[must_use]
pub fn is_running(process: u32) -> bool {
    const SYNCHRONIZE: u32 = 0x0010_0000;
    const DENIED: i32 = 5;
    const TIMED_OUT: u32 = 258;
    // SAFETY: the call takes numbers.
    let handle = unsafe { OpenProcess(SYNCHRONIZE, 0, process) };
    if handle.is_null() {
        return io::Error::last_os_error().raw_os_error() == Some(DENIED);
    }
    // SAFETY: the handle was opened above, and is not used afterwards.
    unsafe {
        let waited = WaitForSingleObject(handle, 0);
        CloseHandle(handle);
        waited == TIMED_OUT
    }
}

/// Leaves Ctrl-C and Ctrl-Break to the program, which gets them as well.
///
/// # Safety
///
/// None is necessary: a type of the system.
unsafe extern "system" fn leave_to_program(event: u32) -> i32 {
    const BREAK: u32 = 1;
    i32::from(event <= BREAK)
}
