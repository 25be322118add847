//! The events of a playback, common to every kind of recording.

use std::borrow::Cow;

use cairn_format::recording::{EndReason, LossKind, MappingKind, MarkValue, PcKind};
use cairn_format::{AbsoluteAddress, ModuleOffset, StatedAddress};
use cairn_symbols::{AddressKind, Lookup, Place, SourceFrame};

use crate::names::{ModuleKey, file_name};

/// A load of a module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlayedModule {
    /// The file: path and build id. Untrusted: not to be opened without the user's consent.
    pub file: ModuleKey,
    /// The path as text.
    pub path: String,
    /// First address.
    pub start: AbsoluteAddress,
    /// End address.
    pub end: AbsoluteAddress,
    /// Difference of addresses in memory and those stated in the file, if recorded.
    pub bias: Option<u64>,
    /// Time of loading, in nanoseconds since the start of the recording.
    pub loaded_nanos: i64,
    /// Time of unloading, or when it was found to be missing.
    pub unloaded_nanos: Option<i64>,
}

impl PlayedModule {
    /// Returns the last component of the path.
    #[must_use]
    pub fn name(&self) -> &str {
        file_name(&self.path)
    }

    /// Returns the offset of an address from the module's start.
    #[must_use]
    pub fn offset(&self, address: AbsoluteAddress) -> ModuleOffset {
        ModuleOffset::new(address.value().wrapping_sub(self.start.value()))
    }

    /// Returns the address for a symbolizer.
    fn place(&self, address: AbsoluteAddress) -> Place {
        match self.bias {
            Some(bias) => Place::Stated(StatedAddress::new(address.value().wrapping_sub(bias))),
            None => Place::Offset(self.offset(address)),
        }
    }
}

/// A thread of the recorded program.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PlayedThread {
    /// The kernel's thread id.
    pub kernel_thread: u32,
    /// The thread's name; its last one, if it had several.
    pub name: String,
    /// The previous names.
    pub earlier_names: Vec<String>,
}

/// A frame of a stack.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PlayedFrame {
    /// The kind of the address; kinds other than those of code state why the stack ends here.
    pub kind: PcKind,
    /// The address in the process.
    pub address: AbsoluteAddress,
    /// The module load at this address at the time: an index into [`Tables::modules`].
    pub module: Option<usize>,
    /// Identifies the frame for [`Tables::own_name`].
    pub own_name: Option<u32>,
}

impl PlayedFrame {
    /// Reports whether this is code, as opposed to the reason why the stack ends.
    #[must_use]
    pub const fn is_code(&self) -> bool {
        matches!(
            self.kind,
            PcKind::ReturnAddress
                | PcKind::ReturnWithoutTables
                | PcKind::ProgramCounter
                | PcKind::Interpreted
        )
    }

    /// Returns the lookup of the frame, and its file; `None` outside of all modules.
    #[must_use]
    pub fn lookup<'t>(&self, tables: &'t dyn Tables) -> Option<(&'t ModuleKey, Lookup)> {
        let kind = match self.kind {
            PcKind::ReturnAddress | PcKind::ReturnWithoutTables => AddressKind::ReturnAddress,
            PcKind::ProgramCounter => AddressKind::ProgramCounter,
            _ => return None,
        };
        let module = tables.modules().get(self.module?)?;
        Some((&module.file, Lookup { place: module.place(self.address), kind }))
    }

    /// Returns the reason why the stack ends here; `None` for code.
    #[must_use]
    pub fn end_reason(&self) -> Option<String> {
        let address = self.address;
        Some(match self.kind {
            PcKind::ReturnAddress
            | PcKind::ReturnWithoutTables
            | PcKind::ProgramCounter
            | PcKind::Interpreted => return None,
            PcKind::NoUnwindInfo => format!("no unwind information at {address}"),
            PcKind::BadUnwindInfo => format!("malformed unwind information at {address}"),
            PcKind::UnreadableMemory => format!("unreadable memory at {address}"),
            PcKind::NoProgress => format!("the caller of {address} is not above it on the stack"),
            PcKind::OutsideStack => format!("the frame pointer leads outside the stack, to {address}"),
            PcKind::UnknownRegister => format!("the value of register {} is not known", address.value()),
            PcKind::Limit => "deeper than the limit of recorded stacks".to_owned(),
            _ => "the stack was not followed further".to_owned(),
        })
    }
}

/// Identifies a stack within a recording.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StackKey(pub u32);

/// The tables to which events refer.
pub trait Tables {
    /// Returns all module loads.
    fn modules(&self) -> &[PlayedModule];

    /// Returns all threads.
    fn threads(&self) -> &[PlayedThread];

    /// Returns the frames of a stack, innermost first; empty for a lost or unknown stack.
    fn frames(&self, stack: StackKey) -> Cow<'_, [PlayedFrame]>;

    /// Returns the recording's own name for a frame.
    ///
    /// Frames of interpreters and in the code of JIT compilers have one.
    fn own_name(&self, _frame: &PlayedFrame) -> Option<SourceFrame> {
        None
    }

    /// Converts a time in the recording to nanoseconds since 1970.
    fn wall_nanos(&self, nanos: i64) -> u64;

    /// Converts nanoseconds since 1970 to a time in the recording.
    fn nanos_at_wall(&self, wall_nanos: u64) -> i64;

    /// Returns the times of the first and the last event, in nanoseconds since the start.
    fn extent(&self) -> (i64, i64);
}

/// An event.
#[derive(Clone, PartialEq, Debug)]
pub struct Event {
    /// Nanoseconds since the start of the recording; negative if the wall clock was set back.
    pub nanos: i64,
    /// Index of the thread in [`Tables::threads`].
    pub thread: Option<usize>,
    /// The kind of event, with its data.
    pub what: What,
}

/// A kind of event, with its data.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum What {
    /// When the program made a mark, and its stack was captured.
    Mark {
        /// The stack; `None` if it was lost or not requested.
        stack: Option<StackKey>,
        /// Whether a requested stack was lost for lack of space.
        is_lost: bool,
        /// The number of irrelevant innermost frames.
        skip: u16,
        /// The attached value.
        value: MarkValue,
        /// The attached text.
        text: Box<[u8]>,
        /// Whether the text was truncated.
        is_cut: bool,
    },
    /// When a module was loaded, or found to be: an index into [`Tables::modules`].
    ModuleLoaded(usize),
    /// When a module was unloaded.
    ModuleUnloaded(usize),
    /// When a thread was first seen.
    ThreadBegan,
    /// When a thread's name changed.
    ThreadNamed,
    /// When a thread ended.
    ThreadEnded,
    /// When a block was allocated.
    Alloc {
        /// The allocating stack.
        stack: StackKey,
        /// The size of the block.
        size_bytes: u64,
    },
    /// When a block was freed.
    Free {
        /// The stack that allocated it.
        stack: StackKey,
        /// The size of the block.
        size_bytes: u64,
    },
    /// When addresses were mapped or unmapped.
    Mapping {
        /// The operation.
        kind: MappingKind,
        /// The first address.
        address: AbsoluteAddress,
        /// The size of the range.
        size_bytes: u64,
        /// The stack of the operation.
        stack: StackKey,
    },
    /// When resource usage was sampled.
    Usage {
        /// Resident memory, excluding cairn's own where known.
        resident_bytes: u64,
        /// cairn's own memory; `None` if unknown, and then included above.
        own_bytes: Option<u64>,
        /// Page faults since the start.
        page_faults: u64,
        /// The number of threads.
        threads: u32,
    },
    /// When events were lost.
    Lost {
        /// The reason.
        kind: LossKind,
        /// The number of lost events.
        count: u64,
    },
    /// When the recording ended.
    Ended(EndReason),
    /// When the recording contradicts itself at this point.
    Anomaly(String),
}

impl Event {
    /// Returns the stack of the event, if it has one.
    #[must_use]
    pub const fn stack(&self) -> Option<StackKey> {
        match self.what {
            What::Mark { stack, .. } => stack,
            What::Alloc { stack, .. } | What::Free { stack, .. } | What::Mapping { stack, .. } => Some(stack),
            _ => None,
        }
    }

    /// Returns the number of irrelevant innermost frames.
    #[must_use]
    pub const fn skip(&self) -> usize {
        match self.what {
            What::Mark { skip, .. } => skip as usize,
            _ => 0,
        }
    }

    /// Returns the relevant frames of its stack, innermost first.
    #[must_use]
    pub fn frames<'t>(&self, tables: &'t dyn Tables) -> Cow<'t, [PlayedFrame]> {
        let Some(stack) = self.stack() else { return Cow::Borrowed(&[]) };
        match tables.frames(stack) {
            Cow::Borrowed(frames) => Cow::Borrowed(frames.get(self.skip()..).unwrap_or_default()),
            Cow::Owned(frames) => Cow::Owned(frames.into_iter().skip(self.skip()).collect()),
        }
    }

    /// Returns the module load that the event is about.
    #[must_use]
    pub const fn module(&self) -> Option<usize> {
        match self.what {
            What::ModuleLoaded(module) | What::ModuleUnloaded(module) => Some(module),
            _ => None,
        }
    }
}
