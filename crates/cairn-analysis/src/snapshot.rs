//! Captures the stacks of all threads of a running process, like `pstack` of debuggers.
//!
//! The process is stopped only for the stack walks, some milliseconds; names are resolved
//! afterwards.
//!
//! ```no_run
//! use cairn_analysis::snapshot::Snapshot;
//! use cairn_symbols::SymbolizerOptions;
//!
//! let snapshot = Snapshot::take(1234, 1000)?;
//! let mut names = snapshot.names(SymbolizerOptions::new(), true);
//! for thread in &snapshot.threads {
//!     println!("{} {}", thread.id, thread.name);
//!     for frame in thread.stack.iter().flat_map(|stack| &stack.frames) {
//!         println!("  {:?} {:?}", frame.frame, snapshot.resolve(frame, &mut names));
//!     }
//! }
//! # Ok::<(), cairn_memory::process::Error>(())
//! ```

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use cairn_format::recording::{MarkValue, PcKind};
use cairn_format::{AbsoluteAddress, Frame, StatedAddress};
use cairn_symbols::{AddressKind, Lookup, Place, Resolution, SymbolizerOptions};
use cairn_unwind::{AddressRange, FoundBy, StopReason};

use crate::names::{AddressNames, ModuleKey};
use cairn_memory::process::{self, NoRegisters, StoppedProcess, ThreadSource};
use cairn_recording::spool_builder::{BuiltFrame, BuiltModule, SpoolBuilder};

/// The threads of a process at one moment.
#[derive(Debug)]
pub struct Snapshot {
    /// The process id.
    pub process: u32,
    /// The program and its arguments; empty if unreadable.
    pub command_line: Vec<String>,
    /// The time of the capture.
    pub taken: SystemTime,
    /// The duration for which the threads were stopped.
    pub stopped_for: Duration,
    /// Loaded modules, lowest address first.
    pub modules: Vec<SnapshotModule>,
    /// The threads; the main thread is first, if it still runs.
    pub threads: Vec<SnapshotThread>,
    /// The process's root directory, if it differs from ours. Held open, because the process may
    /// exit.
    root: Option<File>,
}

/// A module of a [`Snapshot`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SnapshotModule {
    /// The file as the process sees it, or the kernel's name of a mapping without a file.
    pub path: PathBuf,
    /// The addresses of the module.
    pub range: AddressRange,
    /// Difference of addresses in memory and those stated in the file.
    pub bias: u64,
    /// GNU build id; empty if it has none.
    pub build_id: Vec<u8>,
    /// False if the file at this path is not the loaded one, or is missing.
    pub file_is_there: bool,
}

impl SnapshotModule {
    fn key(&self) -> ModuleKey {
        ModuleKey { path: self.path.clone(), build_id: self.build_id.clone(), size_bytes: None }
    }
}

/// A thread of a [`Snapshot`].
#[derive(Clone, PartialEq, Debug)]
pub struct SnapshotThread {
    /// The thread's number.
    pub id: u32,
    /// The thread's name, at most 15 bytes.
    pub name: String,
    /// The stack, or the reason why it is missing.
    pub stack: Result<SnapshotStack, NoRegisters>,
}

/// The stack of a thread.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SnapshotStack {
    /// Its frames, innermost first.
    pub frames: Vec<SnapshotFrame>,
    /// The reason why the walk ended.
    pub stop: StopReason,
}

/// A frame of a [`SnapshotStack`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SnapshotFrame {
    /// The frame.
    pub frame: Frame,
    /// The method that found it.
    pub found_by: FoundBy,
    /// Index of its module in [`Snapshot::modules`].
    pub module: Option<usize>,
}

impl Snapshot {
    /// Stops a process, walks the stacks of its threads, up to `max_frames` each, and resumes it.
    ///
    /// # Errors
    ///
    /// [`process::Error`].
    pub fn take(process: u32, max_frames: u32) -> Result<Self, process::Error> {
        let root = foreign_root(process);
        let command_line = command_line(process);
        let started = Instant::now();
        let taken = SystemTime::now();
        let (modules, threads) = process::while_stopped(process, |process| look(process, max_frames))?;
        let stopped_for = started.elapsed();
        Ok(Self { process, command_line, taken, stopped_for, modules, threads, root })
    }

    /// Creates the names for this snapshot's frames.
    ///
    /// With `in_own_root`, and if the process has a root directory of its own, as in a container,
    /// files are searched below that directory.
    #[must_use]
    pub fn names(&self, options: SymbolizerOptions, in_own_root: bool) -> AddressNames {
        match self.root.as_ref().filter(|_| in_own_root) {
            Some(root) => AddressNames::new(options.sysroot(format!("/proc/self/fd/{}", root.as_raw_fd()))),
            None => AddressNames::new(options),
        }
    }

    /// Returns the module of a frame.
    #[must_use]
    pub fn module(&self, frame: &SnapshotFrame) -> Option<&SnapshotModule> {
        self.modules.get(frame.module?)
    }

    /// Returns the address of a frame in its module's file, without subtracting the lookup byte.
    #[must_use]
    pub fn stated_address(&self, frame: &SnapshotFrame) -> Option<StatedAddress> {
        let address = frame.frame.address()?.value();
        Some(StatedAddress::new(address.wrapping_sub(self.module(frame)?.bias)))
    }

    /// Resolves a frame; `None` outside of all modules.
    pub fn resolve<'n>(&self, frame: &SnapshotFrame, names: &'n mut AddressNames) -> Option<&'n Resolution> {
        let lookup = self.lookup(frame)?;
        Some(names.resolve(&self.module(frame)?.key(), lookup))
    }

    /// Resolves all frames at once; [`resolve`](Self::resolve) then uses the cache.
    pub fn prepare(&self, names: &mut AddressNames) {
        let keys: Vec<ModuleKey> = self.modules.iter().map(SnapshotModule::key).collect();
        let frames = self.threads.iter().flat_map(|thread| &thread.stack).flat_map(|stack| &stack.frames);
        names.prepare(frames.filter_map(|frame| Some((keys.get(frame.module?)?, self.lookup(frame)?))));
    }

    /// Converts to a recording with one mark per thread, for `cairn play` and other readers.
    #[must_use]
    pub fn to_recording(&self) -> Vec<u8> {
        let nanos = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let taken = self.taken.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let mut spool = SpoolBuilder::new(self.process, nanos(taken));
        spool.fact("mode", b"snapshot");
        let mut command = String::new();
        for argument in &self.command_line {
            command.push_str(if command.is_empty() { "" } else { " " });
            command.push_str(argument);
        }
        spool.fact("command", command.as_bytes());
        let modules: Vec<BuiltModule> = self
            .modules
            .iter()
            .map(|module| {
                let range = module.range.start.value()..module.range.end.value();
                let path = module.path.as_os_str().as_bytes();
                spool.module_loaded(0, range, module.bias, &module.build_id, path)
            })
            .collect();
        for thread in &self.threads {
            let built = spool.thread(0, thread.id, thread.name.as_bytes());
            match &thread.stack {
                Ok(stack) => {
                    let frames = built_frames(stack, &modules);
                    spool.mark(built, 0, &frames, MarkValue::None, b"snapshot");
                }
                Err(reason) => spool.mark(built, 0, &[], MarkValue::None, reason.to_string().as_bytes()),
            }
        }
        spool.finish(nanos(self.stopped_for))
    }

    fn lookup(&self, frame: &SnapshotFrame) -> Option<Lookup> {
        // Without a build id, the symbolizer could not detect a replaced file.
        let is_sure = |module: &&SnapshotModule| module.file_is_there || !module.build_id.is_empty();
        self.module(frame).filter(is_sure)?;
        let kind = match frame.frame {
            Frame::ReturnAddress(_) => AddressKind::ReturnAddress,
            Frame::AsyncResumePoint(_) => AddressKind::AsyncResumePoint,
            _ => AddressKind::ProgramCounter,
        };
        Some(Lookup { place: Place::Stated(self.stated_address(frame)?), kind })
    }
}

/// Collects everything that requires the process to be stopped.
fn look(process: &StoppedProcess, max_frames: u32) -> (Vec<SnapshotModule>, Vec<SnapshotThread>) {
    let map = process.modules();
    let modules = map.modules().iter().map(|module| SnapshotModule {
        path: PathBuf::from(OsStr::from_bytes(module.name())),
        range: module.range(),
        bias: 0_u64.wrapping_sub(module.stated_address(AbsoluteAddress::new(0)).value()),
        build_id: module.build_id().unwrap_or_default().to_vec(),
        file_is_there: map.file_of(module).is_some(),
    });
    let modules: Vec<SnapshotModule> = modules.collect();
    let starts: HashMap<u64, usize> =
        modules.iter().enumerate().map(|(index, module)| (module.range.start.value(), index)).collect();
    let module_of = |frame: Frame| {
        let module = map.module_at(frame.lookup_address()?)?;
        starts.get(&module.range().start.value()).copied()
    };
    let threads = process.threads().iter().map(|thread| SnapshotThread {
        id: thread.id,
        name: thread.name.clone(),
        stack: thread.registers.as_ref().map_err(|&reason| reason).map(|registers| {
            let stack = process.stack(registers, max_frames);
            let frames = stack.frames.iter().map(|found| SnapshotFrame {
                frame: found.frame,
                found_by: found.found_by,
                module: module_of(found.frame),
            });
            SnapshotStack { frames: frames.collect(), stop: stack.stop }
        }),
    });
    let threads = threads.collect();
    (modules, threads)
}

/// Converts the frames of a stack to those of a recording; the outermost one states why it ends.
fn built_frames(stack: &SnapshotStack, modules: &[BuiltModule]) -> Vec<BuiltFrame> {
    let module = |index: Option<usize>| index.and_then(|index| modules.get(index)).copied();
    let callers = stack.frames.iter().skip(1).map(|caller| Some(caller.found_by)).chain([None]);
    let frames = stack.frames.iter().zip(callers).filter_map(|(frame, caller_found_by)| {
        let kind = match frame.frame {
            Frame::ReturnAddress(_)
                if matches!(caller_found_by, Some(FoundBy::FramePointer | FoundBy::KnownCode)) =>
            {
                PcKind::ReturnWithoutTables
            }
            Frame::ReturnAddress(_) => PcKind::ReturnAddress,
            _ => PcKind::ProgramCounter,
        };
        let module = module(frame.module).unwrap_or(BuiltModule::NONE);
        Some(BuiltFrame { kind, address: frame.frame.address()?.value(), module })
    });
    let end = |kind, address: u64| Some(BuiltFrame { kind, address, module: BuiltModule::NONE });
    let end = match stack.stop {
        StopReason::NoUnwindInfo { pc } => end(PcKind::NoUnwindInfo, pc.value()),
        StopReason::BadUnwindInfo { pc } => end(PcKind::BadUnwindInfo, pc.value()),
        StopReason::UnknownRegister { register } => end(PcKind::UnknownRegister, register.into()),
        StopReason::UnreadableMemory { address } => end(PcKind::UnreadableMemory, address.value()),
        StopReason::OutsideStack { address } => end(PcKind::OutsideStack, address.value()),
        StopReason::NoProgress { pc } => end(PcKind::NoProgress, pc.value()),
        StopReason::Limit => end(PcKind::Limit, 0),
        _ => None,
    };
    frames.chain(end).collect()
}

/// Returns a process's root directory, if it differs from ours.
fn foreign_root(process: u32) -> Option<File> {
    let root = File::open(format!("/proc/{process}/root")).ok()?;
    let theirs = root.metadata().ok()?;
    let ours = fs::metadata("/").ok()?;
    ((theirs.dev(), theirs.ino()) != (ours.dev(), ours.ino())).then_some(root)
}

fn command_line(process: u32) -> Vec<String> {
    let bytes = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
    let bytes = bytes.strip_suffix(b"\0").unwrap_or(&bytes);
    if bytes.is_empty() {
        return Vec::new();
    }
    bytes.split(|&byte| byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}
