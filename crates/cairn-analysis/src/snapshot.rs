//! The stacks of all threads of a running process, as one value: what debuggers' `pstack` shows.
//!
//! The process stands still only while its stacks are walked, some milliseconds; names are looked up when it runs again.
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

use crate::names::{ModuleKey, Names};
use cairn_memory::process::{self, NoRegisters, StoppedProcess, ThreadSource};
use cairn_recording::spool_builder::{BuiltFrame, BuiltModule, SpoolBuilder};

/// All threads of a process at one moment.
#[derive(Debug)]
pub struct Snapshot {
    /// The process.
    pub process: u32,
    /// Its program and arguments; empty when they cannot be read.
    pub command_line: Vec<String>,
    /// When it was looked at.
    pub taken: SystemTime,
    /// How long its threads stood still.
    pub stopped_for: Duration,
    /// What is loaded, lowest first.
    pub modules: Vec<SnapshotModule>,
    /// Its threads; the first one is the one it started with, if that lives.
    pub threads: Vec<SnapshotThread>,
    /// The process's root directory, where that is not ours. Held open: the process may be gone when it is wanted.
    root: Option<File>,
}

/// A module of a [`Snapshot`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SnapshotModule {
    /// The file as the process sees it, or the kernel's word for what is no file.
    pub path: PathBuf,
    /// Where it lies.
    pub range: AddressRange,
    /// What addresses in memory are larger by than the ones stated in the file.
    pub bias: u64,
    /// The GNU build id; empty when it has none.
    pub build_id: Vec<u8>,
    /// False when the file under this path is not the one that was loaded, or is gone.
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
    /// Its number.
    pub id: u32,
    /// What it calls itself, at most 15 bytes.
    pub name: String,
    /// Its stack, or why it cannot be had.
    pub stack: Result<SnapshotStack, NoRegisters>,
}

/// The stack of a thread.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SnapshotStack {
    /// Its frames, innermost first.
    pub frames: Vec<SnapshotFrame>,
    /// Why there are no more.
    pub stop: StopReason,
}

/// A frame of a [`SnapshotStack`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SnapshotFrame {
    /// The frame.
    pub frame: Frame,
    /// How it was found.
    pub found_by: FoundBy,
    /// Index of its module in [`Snapshot::modules`].
    pub module: Option<usize>,
}

impl Snapshot {
    /// Stops the process, walks the stacks of all its threads, at most `max_frames` of each, and lets it go on.
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

    /// Names for this snapshot's frames, by files that are searched for as `options` say.
    ///
    /// With `in_own_root`, and where the process has a root directory of its own, as in a container, files are searched
    /// for below that directory.
    #[must_use]
    pub fn names(&self, options: SymbolizerOptions, in_own_root: bool) -> Names {
        match self.root.as_ref().filter(|_| in_own_root) {
            Some(root) => Names::new(options.sysroot(format!("/proc/self/fd/{}", root.as_raw_fd()))),
            None => Names::new(options),
        }
    }

    /// The module that a frame lies in.
    #[must_use]
    pub fn module(&self, frame: &SnapshotFrame) -> Option<&SnapshotModule> {
        self.modules.get(frame.module?)
    }

    /// Where in its module's file a frame lies: the address itself, not the byte before it.
    #[must_use]
    pub fn stated_address(&self, frame: &SnapshotFrame) -> Option<StatedAddress> {
        let address = frame.frame.address()?.value();
        Some(StatedAddress::new(address.wrapping_sub(self.module(frame)?.bias)))
    }

    /// The names of a frame; `None` when it lies in no module.
    pub fn resolve<'n>(&self, frame: &SnapshotFrame, names: &'n mut Names) -> Option<&'n Resolution> {
        let lookup = self.lookup(frame)?;
        Some(names.resolve(&self.module(frame)?.key(), lookup))
    }

    /// Finds the names of all frames at once; [`resolve`](Self::resolve) then answers from memory.
    pub fn prepare(&self, names: &mut Names) {
        let keys: Vec<ModuleKey> = self.modules.iter().map(SnapshotModule::key).collect();
        let frames = self.threads.iter().flat_map(|thread| &thread.stack).flat_map(|stack| &stack.frames);
        names.prepare(frames.filter_map(|frame| Some((keys.get(frame.module?)?, self.lookup(frame)?))));
    }

    /// A recording with one mark for each thread, for `cairn play` and everything else that reads recordings.
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
        // Without a build id the symbolizer could not tell another file from the one that was loaded.
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

/// All that must be found out while the process stands still.
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

/// The frames of a stack as a recording keeps them, with the reason for its end as the outermost one.
fn built_frames(stack: &SnapshotStack, modules: &[BuiltModule]) -> Vec<BuiltFrame> {
    let module = |index: Option<usize>| index.and_then(|index| modules.get(index)).copied();
    let frames = stack.frames.iter().filter_map(|frame| {
        let kind = match frame.frame {
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

/// The root directory of a process, if it is another one than ours.
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
