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
//!         println!("  {:?}", snapshot.source_frames(frame, Some(&mut names)));
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

use cairn_format::recording::{InterpreterState, LineTableFormat, MarkValue, PcKind};
use cairn_format::{AbsoluteAddress, Frame, StatedAddress};
use cairn_symbols::{AddressKind, Lookup, Place, SourceFrame, SymbolizerOptions};
use cairn_unwind::{AddressRange, FoundBy, StopReason};

use crate::code_names::CodeNames;
use crate::heap::InterpretedCode;
use crate::names::{AddressNames, ModuleKey, named_frames};
use cairn_memory::process::{self, NoRegisters, StoppedProcess, ThreadSource};
use cairn_memory::python::{
    MixedFrame, PythonCode, PythonFrame, PythonFrames, PythonNote, PythonRefusal, PythonRefusalReason,
};
use cairn_recording::spool_builder::{BuiltCode, BuiltFrame, BuiltModule, SpoolBuilder};
use cairn_recording::{CodePiece, Recording, RecordingError, code_files_of, pack};

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
    /// The code of Python frames, by [`PythonFrame::code`].
    pub codes: Vec<PythonCode>,
    /// Names of code by JIT compilers, if a frame lies outside of all modules.
    code_files: Vec<CodePiece>,
    /// Names of native frames outside of all modules.
    generated: HashMap<Frame, SourceFrame>,
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
    /// Gaps in its Python frames.
    pub notes: Vec<PythonNote>,
}

/// A frame of a [`SnapshotStack`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SnapshotFrame {
    /// A native frame.
    Native(NativeFrame),
    /// A frame of Python code, which the next native frame runs.
    Python(PythonFrame),
}

/// A native frame of a [`SnapshotStack`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NativeFrame {
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
        let (modules, threads, codes) = process::while_stopped(process, |process| look(process, max_frames))?;
        let stopped_for = started.elapsed();
        let mut snapshot = Self {
            process,
            command_line,
            taken,
            stopped_for,
            modules,
            threads,
            codes,
            code_files: Vec::new(),
            generated: HashMap::new(),
            root,
        };
        if snapshot.natives().any(|native| native.module.is_none()) {
            snapshot.add_code_files(code_files_of(process));
        }
        Ok(snapshot)
    }

    /// Names frames in the code of JIT compilers by these pieces of perf maps and jitdumps.
    ///
    /// [`take`](Self::take) has read those of the process, as far as it finds them.
    pub fn add_code_files(&mut self, pieces: Vec<CodePiece>) {
        self.code_files.extend(pieces);
        let Some(names) = CodeNames::new(&self.code_files) else { return };
        let mut frames: Vec<Frame> =
            self.natives().filter(|native| native.module.is_none()).map(|native| native.frame).collect();
        frames.dedup();
        let asked: Vec<(PcKind, u64)> = frames
            .iter()
            .map(|frame| {
                let kind = match frame {
                    Frame::ReturnAddress(_) => PcKind::ReturnAddress,
                    _ => PcKind::ProgramCounter,
                };
                (kind, frame.address().unwrap_or_default().value())
            })
            .collect();
        let named = frames.into_iter().zip(names.resolve(&asked));
        self.generated.extend(named.filter_map(|(frame, name)| Some((frame, name?))));
    }

    /// Iterates over the native frames of all threads.
    fn natives(&self) -> impl Iterator<Item = &NativeFrame> {
        let frames = self.threads.iter().flat_map(|thread| &thread.stack).flat_map(|stack| &stack.frames);
        frames.filter_map(|frame| match frame {
            SnapshotFrame::Native(native) => Some(native),
            SnapshotFrame::Python(_) => None,
        })
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
    pub fn module(&self, frame: &NativeFrame) -> Option<&SnapshotModule> {
        self.modules.get(frame.module?)
    }

    /// Returns the address of a frame in its module's file, without subtracting the lookup byte.
    #[must_use]
    pub fn stated_address(&self, frame: &NativeFrame) -> Option<StatedAddress> {
        let address = frame.frame.address()?.value();
        Some(StatedAddress::new(address.wrapping_sub(self.module(frame)?.bias)))
    }

    /// Returns the function at a frame and those inlined there, innermost first.
    ///
    /// Empty where none is known. Python frames need no `names`.
    pub fn source_frames(&self, frame: &SnapshotFrame, names: Option<&mut AddressNames>) -> Vec<SourceFrame> {
        match frame {
            SnapshotFrame::Native(native) => {
                if let Some(generated) = self.generated.get(&native.frame) {
                    return vec![generated.clone()];
                }
                let found = names.and_then(|names| {
                    let lookup = self.lookup(native)?;
                    Some(names.resolve(&self.module(native)?.key(), lookup))
                });
                found.map_or(&[][..], named_frames).to_vec()
            }
            SnapshotFrame::Python(frame) => {
                let code = frame.code.and_then(|code| self.codes.get(code as usize));
                let code = code.map_or_else(InterpretedCode::unreadable, InterpretedCode::of_image);
                vec![code.source_frame(frame.offset)]
            }
        }
    }

    /// Explains what cannot be said of a Python frame.
    #[must_use]
    pub fn gap(&self, frame: PythonFrame) -> Option<&'static str> {
        let code = frame.code.and_then(|code| self.codes.get(code as usize));
        code.map_or(Some(PythonCode::UNREADABLE), PythonCode::gap)
    }

    /// Resolves all frames at once; [`source_frames`](Self::source_frames) then uses the cache.
    pub fn prepare(&self, names: &mut AddressNames) {
        let keys: Vec<ModuleKey> = self.modules.iter().map(SnapshotModule::key).collect();
        names.prepare(
            self.natives().filter_map(|frame| Some((keys.get(frame.module?)?, self.lookup(frame)?))),
        );
    }

    /// Converts to a recording with one mark per thread, for `cairn play` and other readers.
    ///
    /// # Errors
    ///
    /// [`RecordingError`], if names of generated code cannot be stored in it.
    pub fn to_recording(&self) -> Result<Vec<u8>, RecordingError> {
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
        let codes: Vec<u32> = self.codes.iter().map(|code| spool.code(0, &built_code(code))).collect();
        let notes = self.threads.iter().flat_map(|thread| &thread.stack).flat_map(|stack| &stack.notes);
        let mut refusals: Vec<PythonRefusal> = Vec::new();
        for note in notes {
            if let PythonNote::Refused(refusal) = note
                && !refusals.contains(refusal)
            {
                refusals.push(*refusal);
                spool.interpreter(0, refusal.version, state_of(refusal.reason));
            }
        }
        for thread in &self.threads {
            let built = spool.thread(0, thread.id, thread.name.as_bytes());
            match &thread.stack {
                Ok(stack) => {
                    let frames = built_frames(stack, &modules, &codes);
                    spool.mark(built, 0, &frames, MarkValue::None, b"snapshot");
                }
                Err(reason) => spool.mark(built, 0, &[], MarkValue::None, reason.to_string().as_bytes()),
            }
        }
        let bytes = spool.finish(nanos(self.stopped_for));
        if self.code_files.is_empty() {
            return Ok(bytes);
        }
        // Only packed recordings have names of generated code.
        let mut recording = Recording::from_bytes(bytes)?;
        recording.add_generated_code(self.code_files.iter().cloned());
        let mut packed = Vec::new();
        pack(&recording, &mut packed)?;
        Ok(packed)
    }

    fn lookup(&self, frame: &NativeFrame) -> Option<Lookup> {
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
fn look(
    process: &StoppedProcess,
    max_frames: u32,
) -> (Vec<SnapshotModule>, Vec<SnapshotThread>, Vec<PythonCode>) {
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
    let python = PythonFrames::find(process);
    let frame = |frame: MixedFrame| match frame {
        MixedFrame::Native(found) => SnapshotFrame::Native(NativeFrame {
            frame: found.frame,
            found_by: found.found_by,
            module: module_of(found.frame),
        }),
        MixedFrame::Python(frame) => SnapshotFrame::Python(frame),
    };
    let threads = process.threads().iter().map(|thread| SnapshotThread {
        id: thread.id,
        name: thread.name.clone(),
        stack: thread.registers.as_ref().map_err(|&reason| reason).map(|registers| {
            let stack = process.stack(registers, max_frames);
            let stack = python.merge(process, thread, stack, max_frames);
            let frames = stack.frames.iter().map(|&found| frame(found)).collect();
            SnapshotStack { frames, stop: stack.stop, notes: stack.notes }
        }),
    });
    let threads = threads.collect();
    (modules, threads, python.codes().to_vec())
}

/// Converts the code of an image to that of a recording.
fn built_code(code: &PythonCode) -> BuiltCode<'_> {
    BuiltCode {
        file: code.file.as_deref().unwrap_or_default(),
        name: code.name.as_deref().unwrap_or(PythonCode::NO_NAME.as_bytes()),
        first_line: code.first_line.unwrap_or(0),
        format: if code.line_table.is_some() { code.format } else { LineTableFormat::Python311 },
        line_table: code.line_table.as_deref().unwrap_or_default(),
    }
}

fn state_of(reason: PythonRefusalReason) -> InterpreterState {
    match reason {
        PythonRefusalReason::FreeThreaded => InterpreterState::FreeThreaded,
        PythonRefusalReason::NotExported => InterpreterState::NotExported,
        PythonRefusalReason::OtherProcessor => InterpreterState::OtherProcessor,
        PythonRefusalReason::OtherLayout | PythonRefusalReason::DebugBuild => InterpreterState::OtherLayout,
        _ => InterpreterState::UnknownVersion,
    }
}

/// Converts the frames of a stack to those of a recording; the outermost one states why it ends.
fn built_frames(stack: &SnapshotStack, modules: &[BuiltModule], codes: &[u32]) -> Vec<BuiltFrame> {
    let module = |index: Option<usize>| index.and_then(|index| modules.get(index)).copied();
    let mut caller_found_by = None;
    let frames = stack.frames.iter().rev().filter_map(|frame| {
        let frame = match frame {
            SnapshotFrame::Native(native) => native,
            SnapshotFrame::Python(python) => {
                let code = python.code.and_then(|code| codes.get(code as usize)).copied().unwrap_or(0);
                let address = u64::from(code) << 32 | u64::from(python.offset);
                let kind = PcKind::Interpreted;
                return Some(BuiltFrame { kind, address, module: BuiltModule::NONE });
            }
        };
        let caller_found_by = caller_found_by.replace(frame.found_by);
        let kind = match frame.frame {
            Frame::ReturnAddress(_)
                if matches!(
                    caller_found_by,
                    Some(FoundBy::FramePointer | FoundBy::KnownCode | FoundBy::Runtime)
                ) =>
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
    let mut frames: Vec<BuiltFrame> = frames.collect();
    frames.reverse();
    frames.extend(end);
    frames
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
