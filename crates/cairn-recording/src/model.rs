//! Contents of a recording: modules, stacks, threads and events, the same for every shape of file.

use std::borrow::Cow;

use cairn_format::recording::{EndReason, LossKind, MappingKind, MarkValue, PcKind};
use cairn_format::{AbsoluteAddress, Frame, ModuleOffset};

macro_rules! number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub struct $name(pub(crate) u32);

        impl $name {
            /// The number.
            #[must_use]
            pub const fn number(self) -> u32 {
                self.0
            }

            /// The number as an index: numbers are given densely, so that tables can be indexed by
            /// them.
            #[must_use]
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }
    };
}

number! {
    /// One *load* of a module; another load of the same file has another number.
    ModuleId
}

number! {
    /// A stack of the recording. The parent of a stack has a smaller number; [`StackId::EMPTY`] is
    /// the root.
    StackId
}

number! {
    /// A thread; given once and never again in one recording, other than the kernel's numbers.
    ThreadId
}

number! {
    /// A block of memory for as long as it lives: its number is given to another block after its
    /// free. The numbers are dense: no larger than the most blocks that were ever alive at once.
    ObjectId
}

impl StackId {
    /// The stack without frames; parent of the outermost ones.
    pub const EMPTY: Self = Self(0);
    /// The stack that was not recorded because there was no room for it.
    pub const LOST: Self = Self(u32::MAX);

    /// The stack of that number, as it was stored elsewhere.
    #[must_use]
    pub const fn from_number(number: u32) -> Self {
        Self(number)
    }
}

/// One load of a module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Module {
    /// Its number.
    pub id: ModuleId,
    /// The path as the loader knew it. A name from a stranger's file, not one to open unasked.
    pub path: Vec<u8>,
    /// The GNU build id, or what identifies a build on Windows; empty when it has none.
    pub build_id: Vec<u8>,
    /// The first address of what was mapped: offsets count from here.
    pub start: AbsoluteAddress,
    /// The first address behind it.
    pub end: AbsoluteAddress,
    /// Addresses in memory less the ones stated in the file.
    pub bias: u64,
    /// When it was loaded or first seen.
    pub loaded_nanos: u64,
    /// When it was unloaded.
    pub unloaded_nanos: Option<u64>,
}

impl Module {
    /// The path as text; bytes that are none are replaced.
    #[must_use]
    pub fn path_text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.path)
    }

    /// How many bytes were mapped.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.end.value().saturating_sub(self.start.value())
    }
}

/// Where an address of a stack lay.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Place {
    /// In a module, so far from its start.
    Module(ModuleId, ModuleOffset),
    /// In no module that is known.
    Absolute(AbsoluteAddress),
}

/// One frame of a stack: equal frames have one entry in the table, and [`PcId`]s to compare them
/// by.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct StackFrame {
    /// Kind of the address, or the reason why the stack ends here.
    pub kind: PcKind,
    /// Where it lies.
    pub place: Place,
    /// The address in the process.
    pub address: AbsoluteAddress,
}

impl StackFrame {
    /// As the frame that every format knows; [`Frame::Truncated`] where the stack could not be
    /// followed.
    #[must_use]
    pub const fn frame(self) -> Frame {
        match self.kind {
            PcKind::ReturnAddress | PcKind::ReturnWithoutTables => Frame::ReturnAddress(self.address),
            PcKind::ProgramCounter => Frame::ProgramCounter(self.address),
            _ => Frame::Truncated,
        }
    }

    /// The place to look up in symbol tables: one byte before a return address. `None` when this is
    /// no code.
    #[must_use]
    pub fn lookup_place(self) -> Option<Place> {
        let less = match self.kind {
            PcKind::ReturnAddress | PcKind::ReturnWithoutTables => 1,
            PcKind::ProgramCounter => 0,
            _ => return None,
        };
        Some(match self.place {
            Place::Module(module, offset) => {
                Place::Module(module, ModuleOffset::new(offset.value().saturating_sub(less)))
            }
            Place::Absolute(address) => {
                Place::Absolute(AbsoluteAddress::new(address.value().saturating_sub(less)))
            }
        })
    }
}

number! {
    /// A frame as an entry of the recording's address table.
    PcId
}

/// A thread: one life of one thread of the kernel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Thread {
    /// Its number in the recording.
    pub id: ThreadId,
    /// Thread identifier of the kernel.
    pub kernel_thread: u32,
    /// Its last name; empty when none was recorded.
    pub name: Vec<u8>,
    /// The names that it had before, each once, oldest first; at most 1,000 of them.
    pub earlier_names: Vec<Vec<u8>>,
    /// When it was first seen.
    pub began_nanos: u64,
    /// Time of its end; `None` when it is unknown.
    ///
    /// A thread reports its end itself; otherwise this is when the recorder found that it had ended
    /// and gave its part of the recording to the next thread.
    pub ended_nanos: Option<u64>,
}

impl Thread {
    /// Whether this is or was its name.
    #[must_use]
    pub fn is_called(&self, name: &[u8]) -> bool {
        self.name == name || self.earlier_names.iter().any(|known| known == name)
    }

    /// Adds the names of the same thread in a later part of the recording.
    pub(crate) fn add_names(&mut self, later: Self) {
        for name in later.earlier_names.into_iter().chain([later.name]) {
            if name.is_empty() || name == self.name {
                continue;
            }
            self.earlier_names.retain(|known| *known != name);
            let before = std::mem::replace(&mut self.name, name);
            if !before.is_empty() {
                self.earlier_names.push(before);
            }
        }
    }
}

/// A fact about the process: the command line, the host, a variable of the environment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fact {
    /// Name of the fact, as `command` or `host`; see `docs/book/reference/format.md`.
    pub name: String,
    /// Value of the fact.
    pub value: Vec<u8>,
}

/// When and where an event happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct At {
    /// Nanoseconds from the start of the recording. Never goes back from event to event. For
    /// allocations and frees it is as exact as the stamps between which they lie, and as
    /// [`HEAP_TIME_QUANTUM_NANOS`](super::HEAP_TIME_QUANTUM_NANOS) once packed; their order is what
    /// tells.
    pub nanos: u64,
    /// The thread.
    pub thread: ThreadId,
}

/// A block was allocated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Alloc {
    /// When and where.
    pub at: At,
    /// The block's number while it lives.
    pub object: ObjectId,
    /// The stack of the call.
    pub stack: StackId,
    /// Bytes that the program asked for.
    pub size_bytes: u64,
    /// Made by a reallocation, whose [`Free`] came before.
    pub is_move: bool,
}

/// A block was freed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Free {
    /// When and where.
    pub at: At,
    /// The block's number, which may be given again from now on.
    pub object: ObjectId,
    /// The stack that allocated it.
    pub stack: StackId,
    /// Its size.
    pub size_bytes: u64,
    /// The first half of a reallocation.
    pub is_move: bool,
}

/// The program marked a moment.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Mark<'a> {
    /// When and where.
    pub at: At,
    /// The stack.
    pub stack: StackId,
    /// How many of its innermost frames are not of interest.
    pub skip: u16,
    /// The number that came with it.
    pub value: MarkValue,
    /// The text that came with it; bytes as the program gave them.
    pub text: &'a [u8],
    /// The text was longer.
    pub is_cut: bool,
}

/// A range of addresses was mapped or unmapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// When and where.
    pub at: At,
    /// Kind of the event.
    pub kind: MappingKind,
    /// The first address.
    pub address: AbsoluteAddress,
    /// How much.
    pub size_bytes: u64,
    /// The stack.
    pub stack: StackId,
}

/// Resources that the process used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Usage {
    /// When; the thread is the one that asked.
    pub at: At,
    /// Resident memory of the process, cairn's own included.
    pub resident_bytes: u64,
    /// How much of it is cairn's own: the recording that is mapped, its tables, its library. `None`
    /// where that is not known.
    pub own_bytes: Option<u64>,
    /// Page faults since the start.
    pub page_faults: u64,
    /// Threads.
    pub threads: u32,
}

impl Usage {
    /// Resident memory without cairn's own, as far as that is known.
    #[must_use]
    pub fn program_bytes(&self) -> u64 {
        self.resident_bytes.saturating_sub(self.own_bytes.unwrap_or(0))
    }
}

/// Something rare happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Change {
    /// A module was loaded or first seen.
    ModuleLoaded(ModuleId),
    /// A module was unloaded.
    ModuleUnloaded(ModuleId),
    /// The thread was first seen.
    ThreadBegan,
    /// The thread has another name; the latest is in [`Thread::name`].
    ThreadNamed,
    /// The thread ended.
    ThreadEnded,
    /// Events were lost.
    Lost {
        /// Why.
        kind: LossKind,
        /// How many.
        count: u64,
    },
    /// Nothing follows.
    Ended(EndReason),
}

/// Receives the events of a recording in order; implement what is of interest.
///
/// The calls are static, so a visitor that counts is as fast as a loop over an array.
pub trait Events {
    /// A block was allocated.
    #[inline]
    fn alloc(&mut self, event: &Alloc) {
        let _ = event;
    }

    /// A block was freed. Comes behind the [`alloc`](Self::alloc) of the same object always.
    #[inline]
    fn free(&mut self, event: &Free) {
        let _ = event;
    }

    /// The program marked a moment.
    fn mark(&mut self, event: &Mark<'_>) {
        let _ = event;
    }

    /// A range of addresses was mapped or unmapped.
    fn mapping(&mut self, event: &Mapping) {
        let _ = event;
    }

    /// Receives the resources that the process used at a time.
    fn usage(&mut self, event: &Usage) {
        let _ = event;
    }

    /// Something rare happened.
    fn change(&mut self, at: At, change: Change) {
        let _ = (at, change);
    }

    /// Loads what an allocation with this stack and of this size will need, into the caches. One is
    /// likely to come soon; before events of other kinds, the two mean nothing. Nothing has
    /// happened yet.
    #[inline]
    fn prefetch_site(&mut self, stack: StackId, size_bytes: u64) {
        let _ = (stack, size_bytes);
    }

    /// Loads what an event of this object will need, a little after
    /// [`prefetch_site`](Self::prefetch_site). The object means nothing unless a free is likely.
    #[inline]
    fn prefetch_object(&mut self, object: ObjectId, stack: StackId, size_bytes: u64) {
        let _ = (object, stack, size_bytes);
    }

    /// Loads what a free of this object will need beside the object itself.
    ///
    /// Comes some events after [`prefetch_object`](Self::prefetch_object), which loaded that.
    #[inline]
    fn prefetch_free(&mut self, object: ObjectId) {
        let _ = object;
    }

    /// Returns true when sites are in no near cache.
    ///
    /// Then [`prefetch_object`](Self::prefetch_object) is worth its time however few objects live.
    #[inline]
    fn has_many_sites(&self) -> bool {
        false
    }

    /// Returns the precision needed of the times of allocations and frees, in nanoseconds.
    ///
    /// Several events between two multiples of this may all get the time of the first one.
    #[inline]
    fn time_quantum_nanos(&self) -> u64 {
        1
    }

    /// True once nothing more is of interest; asked from time to time, not after each event.
    fn is_enough(&self) -> bool {
        false
    }
}

/// Selects the wanted events. Other events cost little or nothing to skip.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// Allocations and frees.
    pub heap: bool,
    /// Everything else.
    pub others: bool,
    /// Not before.
    pub since_nanos: u64,
    /// Before.
    pub until_nanos: u64,
}

impl Wanted {
    /// Everything.
    pub const ALL: Self = Self { heap: true, others: true, since_nanos: 0, until_nanos: u64::MAX };
    /// Allocations and frees.
    pub const HEAP: Self = Self { others: false, ..Self::ALL };
    /// Marks, mappings, usage and changes.
    pub const OTHERS: Self = Self { heap: false, ..Self::ALL };

    /// Narrows the selection to the events between two times.
    #[must_use]
    pub const fn between(self, since_nanos: u64, until_nanos: u64) -> Self {
        Self { since_nanos, until_nanos, ..self }
    }

    pub(crate) const fn has(self, nanos: u64) -> bool {
        self.since_nanos <= nanos && nanos < self.until_nanos
    }
}
