//! The stack table as rows, for a recorder or a crash report that stores it outside of this
//! process.
//!
//! A stack is the stack of its caller and one frame more, so the table of all stacks is a list of
//! (parent, frame). A parent has a smaller number than its children: in the order of numbers, every
//! row refers to earlier ones only.
//!
//! Runs in signal handlers as well, and while other threads capture, without waiting for them.

use core::sync::atomic::{AtomicPtr, Ordering};
use core::{mem, ptr};

use cairn_format::{AbsoluteAddress, Frame};
use cairn_unwind::StopReason;

use crate::stacks::modules::{self, LoadedModules};
use crate::stacks::own_memory;
use crate::stacks::pc_kind::{self, PcKind};
use crate::stacks::pcs::Meaning;
use crate::stacks::process::process;
use crate::stacks::stack::StackId;
use crate::stacks::tree::TreeWord;

/// Number of a frame: of a code address in one module, the same in every stack that contains it.
///
/// If the module is unloaded and another one is loaded there, the same address gets another number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FrameId(u32);

impl FrameId {
    /// The number. Numbers start at 1 and have no large gaps.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }
}

/// Identity of the module that an address belonged to when it was first on a stack.
///
/// The number is constant while the module is loaded, and differs for another module at the same
/// place, as far as 32 bits allow.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ModuleIdentity(u32);

impl ModuleIdentity {
    /// Identifies code in no module, and addresses that are not code.
    pub const NONE: Self = Self(0);

    /// The number.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }
}

/// One row of the stack table: a stack as the stack of its caller, and one frame more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct StackRow {
    /// The stack.
    pub id: StackId,
    /// The stack without its innermost frame; [`StackId::EMPTY`] if that was the only one. Its
    /// number is smaller than `id`'s.
    pub parent: StackId,
    /// The innermost frame, or the reason why the frames inside of this row cannot be followed
    /// outward. [`Frame::Omitted`] for a frame of an interpreter.
    pub frame: Result<Frame, StopReason>,
    /// The frame of an interpreter, if it is one.
    ///
    /// The upper half is the number of its code, the lower one the byte offset of its instruction.
    pub interpreted: Option<u64>,
    /// True when the frame is a return address in code that no unwind table covers. The frame
    /// outside of it was found by its frame pointer, or by the known shape of its code.
    pub is_without_tables: bool,
    /// The number of that frame.
    pub frame_id: FrameId,
    /// The module of that frame.
    pub module: ModuleIdentity,
}

impl StackRow {
    /// Returns the kind and the address of the row's frame, as recordings have them.
    #[must_use]
    pub fn kind_and_address(&self) -> (PcKind, u64) {
        if let Some(address) = self.interpreted {
            return (PcKind::Interpreted, address);
        }
        match self.frame {
            Ok(Frame::ProgramCounter(address)) => (PcKind::ProgramCounter, address.value()),
            Ok(frame) if self.is_without_tables => (PcKind::ReturnWithoutTables, address_of(frame)),
            Ok(frame) => (PcKind::ReturnAddress, address_of(frame)),
            Err(reason) => pc_kind::of_stop(reason).unwrap_or((PcKind::Limit, 0)),
        }
    }
}

fn address_of(frame: Frame) -> u64 {
    frame.address().map_or(0, AbsoluteAddress::value)
}

impl StackId {
    /// This stack as a row of the stack table. `None` for the stack without frames, for a lost one,
    /// and for one that another thread is adding at this moment.
    ///
    /// ```
    /// use cairn_capture::{StackId, capture};
    ///
    /// let stack = capture();
    /// let mut id = stack.id();
    /// for frame in stack.frames() {
    ///     let row = id.row().unwrap();
    ///     assert_eq!(row.frame, Ok(frame));
    ///     id = row.parent;
    /// }
    /// assert_eq!(id, StackId::EMPTY);
    /// ```
    #[must_use]
    pub fn row(self) -> Option<StackRow> {
        match process().tree.word(self.number())? {
            TreeWord::Node { parent, pc } => row(self, parent, pc),
            TreeWord::Head | TreeWord::Unfinished => None,
        }
    }
}

fn row(id: StackId, parent: u32, pc: u32) -> Option<StackRow> {
    let entries = process().pcs.entries();
    let entry = entries.get(pc as usize)?;
    let (frame, interpreted) = match entry.meaning() {
        Meaning::Frame(frame) => (Ok(frame), None),
        Meaning::Interpreted(address) => (Ok(Frame::Omitted(1)), Some(address)),
        Meaning::End(reason) => (Err(reason), None),
    };
    let is_without_tables = entry.kind() == PcKind::ReturnWithoutTables;
    let module = ModuleIdentity(process().pcs.identity(pc));
    let parent = StackId::from_node(parent);
    Some(StackRow { id, parent, frame, interpreted, is_without_tables, frame_id: FrameId(pc), module })
}

/// A place in the stack table, to read the rows that were added since the last time.
///
/// ```
/// use cairn_capture::{StackCursor, capture};
///
/// let mut cursor = StackCursor::START;
/// let id = capture().id();
/// let mut is_there = false;
/// while let Some(row) = cursor.next_row() {
///     assert!(row.parent < row.id);
///     is_there |= row.id == id;
/// }
/// assert!(is_there);
/// assert_eq!(cursor.next_row(), None, "nothing was added since");
/// ```
///
/// The table may contain rows that no capture returned: a stack that two threads added at once is
/// in it twice, and only one of the two numbers is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StackCursor {
    next: u32,
}

impl StackCursor {
    /// The place in front of the first row.
    pub const START: Self = Self { next: 1 };

    /// Returns the next row, in the order of numbers. Returns `None` when there is none yet, or
    /// when another thread is adding it. Try again later.
    pub fn next_row(&mut self) -> Option<StackRow> {
        loop {
            let number = self.next;
            match process().tree.word(number)? {
                TreeWord::Node { parent, pc } => {
                    let row = row(StackId::from_node(number), parent, pc)?;
                    self.next = number + 1;
                    return Some(row);
                }
                TreeWord::Head => self.next = number + 1,
                TreeWord::Unfinished => return None,
            }
        }
    }

    /// Skips unfinished rows up to the next finished one; false when there is none.
    ///
    /// A thread that is killed while it adds a stack leaves unfinished rows, and so does a signal
    /// handler that is left by `longjmp`. Use this where no thread captures any more, as at the end
    /// of a process or in a forked child. Rows that are finished later are not returned.
    pub fn skip_unfinished(&mut self) -> bool {
        let start = self.next;
        while let Some(word) = process().tree.word(self.next) {
            // A segment is filled from its start, so behind a gap only the head of the next segment
            // can be trusted.
            if word == TreeWord::Head || (self.next == start && word != TreeWord::Unfinished) {
                return true;
            }
            self.next += 1;
        }
        self.next = start;
        false
    }
}

/// Stacks that a capture is adding to the table at this moment. They form a chain, each the caller
/// of the next one.
///
/// The observer ([`observe_new_stacks`]) receives them before any thread can receive their numbers.
/// It can store the words unchanged: the first is the parent of the chain, with the highest bit
/// set; each further one is the number of a frame, and its index in the table is the number of a
/// stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NewStacks {
    head: u32,
    count: u32,
}

impl NewStacks {
    /// Index of the first word in the table.
    #[must_use]
    pub const fn first_word(self) -> u32 {
        self.head
    }

    /// The words: one more than there are stacks.
    pub fn words(self) -> impl ExactSizeIterator<Item = u32> + Clone {
        let words = process().tree.words();
        (0..self.count + 1).map(move |index| words.at(self.head + index))
    }

    /// The stacks, outermost first.
    pub fn rows(self) -> impl Iterator<Item = StackRow> {
        let first = self.head + 1;
        (first..first + self.count).filter_map(|number| StackId::from_node(number).row())
    }
}

/// Calls `observer` for all stacks that are added to the table from now on. There is one observer
/// at a time.
///
/// The capture that adds a stack calls the observer before it returns, and before any other capture
/// returns that stack. To read the stacks that were added before, set the observer first and then
/// use a [`StackCursor`]: no stack is missed, and duplicates are equal.
///
/// The observer runs inside captures: in malloc, in signal handlers, on small stacks. It must not
/// capture.
///
/// ```
/// use std::sync::atomic::{AtomicU32, Ordering};
/// use cairn_capture::{NewStacks, capture, observe_new_stacks};
///
/// static FRAMES: AtomicU32 = AtomicU32::new(0);
/// fn count(stacks: NewStacks) {
///     FRAMES.fetch_add(stacks.rows().count() as u32, Ordering::Relaxed);
/// }
/// observe_new_stacks(count);
/// let stack = capture();
/// assert_eq!(FRAMES.load(Ordering::Relaxed) as usize, stack.frames().count());
/// ```
pub fn observe_new_stacks(observer: fn(NewStacks)) {
    static OBSERVER: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());

    fn notify(head: u32, count: u32) {
        let function = OBSERVER.load(Ordering::Acquire);
        // SAFETY: `observe_new_stacks` stores functions of this type alone, and did so before it
        // passed `notify` on.
        let observer = unsafe { mem::transmute::<*mut (), fn(NewStacks)>(function) };
        observer(NewStacks { head, count });
    }

    OBSERVER.store(observer as *mut (), Ordering::Release);
    process().tree.set_observer(notify);
}

/// A module that is loaded now.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct LoadedModule {
    /// Equals the identity in the rows of the stack table whose frames are in this module.
    pub identity: ModuleIdentity,
    /// The first address of what the loader mapped: the file's ELF header lies there.
    pub start: AbsoluteAddress,
    /// The first address behind it.
    pub end: AbsoluteAddress,
    /// Difference of addresses in memory and addresses stated in the file.
    pub bias: u64,
    name: u64,
}

impl LoadedModule {
    /// The module that covers `address`. Takes no lock, so another thread may unload the module at
    /// any moment. A module that is already unmapped, but still in the loader's list, gives `None`.
    ///
    /// ```
    /// use cairn_capture::{LoadedModule, capture};
    ///
    /// let row = capture().id().row().unwrap();
    /// let address = row.frame.unwrap().lookup_address().unwrap();
    /// let module = LoadedModule::at(address).unwrap();
    /// assert_eq!(module.identity, row.module);
    /// assert!(module.start <= address && address < module.end);
    /// ```
    #[must_use]
    pub fn at(address: AbsoluteAddress) -> Option<Self> {
        let (start, end) = LoadedModules.bounds(address)?;
        let loaded = modules::link_map_at(address.value())?;
        let identity = ModuleIdentity(modules::identity_of_loaded(address)?);
        Some(Self { identity, start, end, bias: loaded.bias, name: loaded.name })
    }

    /// Returns the first address of the module that covers `address`. It is the `start` of
    /// [`at`](Self::at), at a hundredth of the cost.
    #[must_use]
    pub fn start_at(address: AbsoluteAddress) -> Option<AbsoluteAddress> {
        LoadedModules.bounds(address).map(|(start, _)| start)
    }

    /// True if the file's name is still `name`, a result of [`copy_name`](Self::copy_name). False
    /// if the loader had already freed the memory that was copied.
    #[must_use]
    pub fn has_name(&self, name: &[u8]) -> bool {
        // On Windows a module without exports states no name.
        if self.name == 0 {
            return name.is_empty();
        }
        let mut place = self.name;
        let mut is_next = |text: &[u8]| {
            let mut bytes = [0; 64];
            let there = bytes.get_mut(..text.len()).unwrap_or_default();
            let is_there = own_memory::read_bytes(place, there) == text.len() && there == text;
            place = place.wrapping_add(text.len() as u64);
            is_there
        };
        name.chunks(64).all(&mut is_next) && is_next(b"\0")
    }

    /// Copies the name of its file, cut to the length of `into`. Empty for the program itself,
    /// whose name is `/proc/self/exe`, and when the module was unloaded meanwhile.
    #[must_use]
    pub fn copy_name<'a>(&self, into: &'a mut [u8]) -> &'a [u8] {
        let count = own_memory::read_bytes(self.name, into);
        let copied = into.get(..count).unwrap_or_default();
        copied.split(|&byte| byte == 0).next().unwrap_or_default()
    }
}
