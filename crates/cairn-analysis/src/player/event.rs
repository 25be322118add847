//! What a player plays: the same words for every kind of recording.

use std::borrow::Cow;

use cairn_format::recording::{EndReason, LossKind, MappingKind, MarkValue, PcKind};
use cairn_format::{AbsoluteAddress, ModuleOffset, StatedAddress};
use cairn_symbols::{AddressKind, Lookup, Place};

use crate::names::{ModuleKey, file_name};

/// One load of a module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlayedModule {
    /// The file: path, build id. A name from a stranger, not one to open unasked.
    pub file: ModuleKey,
    /// Its path as text.
    pub path: String,
    /// The first address.
    pub start: AbsoluteAddress,
    /// The first address behind it.
    pub end: AbsoluteAddress,
    /// What addresses in memory were larger by than the ones stated in the file, where that is recorded.
    pub bias: Option<u64>,
    /// When it was loaded, in nanoseconds from the start of the recording.
    pub loaded_nanos: i64,
    /// When it was unloaded, or was found to be gone.
    pub unloaded_nanos: Option<i64>,
}

impl PlayedModule {
    /// The last part of its path.
    #[must_use]
    pub fn name(&self) -> &str {
        file_name(&self.path)
    }

    /// How far behind its start an address lies.
    #[must_use]
    pub fn offset(&self, address: AbsoluteAddress) -> ModuleOffset {
        ModuleOffset::new(address.value().wrapping_sub(self.start.value()))
    }

    /// What to ask a symbolizer.
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
    /// What the kernel calls it.
    pub kernel_thread: u32,
    /// What it calls itself; the last one of its names.
    pub name: String,
    /// What it called itself before.
    pub earlier_names: Vec<String>,
}

/// One frame of a stack.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PlayedFrame {
    /// What the address is; kinds beyond the two kinds of code say why the stack ends here.
    pub kind: PcKind,
    /// The address in the process.
    pub address: AbsoluteAddress,
    /// The load of a module that was there then: an index into [`Tables::modules`].
    pub module: Option<usize>,
}

impl PlayedFrame {
    /// True for code; false where it says why the stack was not followed further.
    #[must_use]
    pub const fn is_code(&self) -> bool {
        matches!(self.kind, PcKind::ReturnAddress | PcKind::ProgramCounter)
    }

    /// What to ask a symbolizer, and of which file; `None` outside of all modules.
    #[must_use]
    pub fn lookup<'t>(&self, tables: &'t dyn Tables) -> Option<(&'t ModuleKey, Lookup)> {
        let kind = match self.kind {
            PcKind::ReturnAddress => AddressKind::ReturnAddress,
            PcKind::ProgramCounter => AddressKind::ProgramCounter,
            _ => return None,
        };
        let module = tables.modules().get(self.module?)?;
        Some((&module.file, Lookup { place: module.place(self.address), kind }))
    }

    /// Why the stack ends here; `None` for code.
    #[must_use]
    pub fn end_reason(&self) -> Option<String> {
        let address = self.address;
        Some(match self.kind {
            PcKind::ReturnAddress | PcKind::ProgramCounter => return None,
            PcKind::NoUnwindInfo => format!("no unwind information at {address}"),
            PcKind::BadUnwindInfo => format!("malformed unwind information at {address}"),
            PcKind::UnreadableMemory => format!("unreadable memory at {address}"),
            PcKind::NoProgress => format!("the caller of {address} is not above it on the stack"),
            PcKind::OutsideStack => format!("the frame pointer leads outside the stack, to {address}"),
            PcKind::UnknownRegister => format!("the value of register {} is not known", address.value()),
            PcKind::Limit => "deeper than what is kept of a stack".to_owned(),
            _ => "the stack was not followed further".to_owned(),
        })
    }
}

/// A stack of a recording, by the number it has there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StackKey(pub u32);

/// What the events of a recording refer to.
pub trait Tables {
    /// All loads of modules.
    fn modules(&self) -> &[PlayedModule];

    /// All threads.
    fn threads(&self) -> &[PlayedThread];

    /// The frames of a stack, innermost first; none for a stack that was lost or that nothing is known of.
    fn frames(&self, stack: StackKey) -> Cow<'_, [PlayedFrame]>;

    /// Nanoseconds since 1970 at so many nanoseconds from the start of the recording.
    fn wall_nanos(&self, nanos: i64) -> u64;

    /// Nanoseconds from the start of the recording at so many since 1970.
    fn nanos_at_wall(&self, wall_nanos: u64) -> i64;

    /// When the first and the last thing happened, in nanoseconds from the start.
    fn extent(&self) -> (i64, i64);
}

/// One event.
#[derive(Clone, PartialEq, Debug)]
pub struct Event {
    /// When, in nanoseconds from the start of the recording. Negative where the wall clock went back.
    pub nanos: i64,
    /// Which thread: an index into [`Tables::threads`].
    pub thread: Option<usize>,
    /// What.
    pub what: What,
}

/// What happened.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum What {
    /// The program marked a moment, and its stack was taken.
    Mark {
        /// The stack; `None` when it was lost, or not asked for.
        stack: Option<StackKey>,
        /// The stack was asked for, and there was no room to keep it.
        is_lost: bool,
        /// How many of its innermost frames are not of interest.
        skip: u16,
        /// The number that came with it.
        value: MarkValue,
        /// The text that came with it.
        text: Box<[u8]>,
        /// The text was longer.
        is_cut: bool,
    },
    /// A module was loaded, or found to be: an index into [`Tables::modules`].
    ModuleLoaded(usize),
    /// A module was unloaded.
    ModuleUnloaded(usize),
    /// The thread was first seen.
    ThreadBegan,
    /// The thread has another name.
    ThreadNamed,
    /// The thread ended.
    ThreadEnded,
    /// A block was allocated.
    Alloc {
        /// By whom.
        stack: StackKey,
        /// How large it is.
        size_bytes: u64,
    },
    /// A block was freed.
    Free {
        /// Who allocated it.
        stack: StackKey,
        /// How large it was.
        size_bytes: u64,
    },
    /// Addresses were mapped or unmapped.
    Mapping {
        /// What happened.
        kind: MappingKind,
        /// Where.
        address: AbsoluteAddress,
        /// How much.
        size_bytes: u64,
        /// By whom.
        stack: StackKey,
    },
    /// What the process used.
    Usage {
        /// Resident memory, without cairn's own where that is known.
        resident_bytes: u64,
        /// Cairn's own beside it; `None` where it is not known, and included.
        own_bytes: Option<u64>,
        /// Page faults since the start.
        page_faults: u64,
        /// Threads.
        threads: u32,
    },
    /// Something was lost.
    Lost {
        /// Why.
        kind: LossKind,
        /// How many.
        count: u64,
    },
    /// Nothing follows.
    Ended(EndReason),
    /// Something is odd about the recording at this place.
    Odd(String),
}

impl Event {
    /// The stack of the event, if it has one.
    #[must_use]
    pub const fn stack(&self) -> Option<StackKey> {
        match self.what {
            What::Mark { stack, .. } => stack,
            What::Alloc { stack, .. } | What::Free { stack, .. } | What::Mapping { stack, .. } => Some(stack),
            _ => None,
        }
    }

    /// How many innermost frames of the stack are not of interest.
    #[must_use]
    pub const fn skip(&self) -> usize {
        match self.what {
            What::Mark { skip, .. } => skip as usize,
            _ => 0,
        }
    }

    /// The frames of its stack that are of interest, innermost first.
    #[must_use]
    pub fn frames<'t>(&self, tables: &'t dyn Tables) -> Cow<'t, [PlayedFrame]> {
        let Some(stack) = self.stack() else { return Cow::Borrowed(&[]) };
        match tables.frames(stack) {
            Cow::Borrowed(frames) => Cow::Borrowed(frames.get(self.skip()..).unwrap_or_default()),
            Cow::Owned(frames) => Cow::Owned(frames.into_iter().skip(self.skip()).collect()),
        }
    }

    /// The load of a module that it is about.
    #[must_use]
    pub const fn module(&self) -> Option<usize> {
        match self.what {
            What::ModuleLoaded(module) | What::ModuleUnloaded(module) => Some(module),
            _ => None,
        }
    }
}
