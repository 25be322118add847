//! The stack table as rows, for whoever keeps it outside of this process: a recorder, a crash report.
//!
//! A stack is the stack of its caller and one frame more, so the table of all stacks is a list of (parent, frame), and a
//! parent has a smaller number than its children: written in the order of numbers, every row stands on earlier ones.
//!
//! Runs in signal handlers as well, and beside threads that capture: nothing here waits for them.

use core::sync::atomic::{AtomicPtr, Ordering};
use core::{mem, ptr};

use cairn_format::{AbsoluteAddress, Frame};
use cairn_unwind::StopReason;

use crate::modules::{self, LoadedModules};
use crate::own_memory;
use crate::process::PROCESS;
use crate::tree::{StackId, Word};

/// Number of a frame: of a code address in one module, the same in every stack that has it.
///
/// An address whose module was unloaded and where another one came to lie has another number there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FrameId(u32);

impl FrameId {
    /// The number. Numbers are given from 1 on, without large gaps.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }
}

/// Which module an address belonged to when it was first on a stack, as a number that is the same for as long as the
/// module is loaded, and another one, as far as 32 bits go, for another module at the same place.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ModuleIdentity(u32);

impl ModuleIdentity {
    /// Of code that is in no module, and of what is no code.
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
    /// The stack without its innermost frame; [`StackId::EMPTY`] where that was the only one. Its number is the smaller.
    pub parent: StackId,
    /// The innermost frame, or why the stack could not be followed further out than the frames inside of here.
    pub frame: Result<Frame, StopReason>,
    /// The number of that frame.
    pub frame_id: FrameId,
    /// The module of that frame.
    pub module: ModuleIdentity,
}

impl StackId {
    /// This stack as a row of the stack table. `None` for the stack without frames, for a lost one, and for one that another
    /// thread is just adding.
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
        match PROCESS.tree.word(self.number())? {
            Word::Node { parent, pc } => row(self, parent, pc),
            Word::Head | Word::Unfinished => None,
        }
    }
}

fn row(id: StackId, parent: u32, pc: u32) -> Option<StackRow> {
    let frame = PROCESS.pcs.entries().get(pc as usize)?.meaning();
    let module = ModuleIdentity(PROCESS.pcs.identity(pc));
    Some(StackRow { id, parent: StackId::from_node(parent), frame, frame_id: FrameId(pc), module })
}

/// A place in the stack table, to read what was added since the last time.
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
/// The table may hold rows that no capture answered with: a stack that two threads added at once is in it twice, and one of
/// the two numbers is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StackCursor {
    next: u32,
}

impl StackCursor {
    /// In front of the first row.
    pub const START: Self = Self { next: 1 };

    /// The next row, in the order of numbers; `None` when there is none yet, or when another thread is just adding it.
    /// Ask again later.
    pub fn next_row(&mut self) -> Option<StackRow> {
        loop {
            let number = self.next;
            match PROCESS.tree.word(number)? {
                Word::Node { parent, pc } => {
                    let row = row(StackId::from_node(number), parent, pc)?;
                    self.next = number + 1;
                    return Some(row);
                }
                Word::Head => self.next = number + 1,
                Word::Unfinished => return None,
            }
        }
    }

    /// Goes past rows that were begun and are not finished, to the next one that is; false when there is none.
    ///
    /// A thread that was ended, or whose signal handler was left by `longjmp`, in the midst of adding a stack leaves rows
    /// that nobody will finish. Where nobody captures any more, as at the end of a process or in a forked child, this
    /// leads past them. Rows that are finished later are not met again.
    pub fn skip_unfinished(&mut self) -> bool {
        let start = self.next;
        while let Some(word) = PROCESS.tree.word(self.next) {
            // A segment is filled from its start, so only the beginning of the next one is known to be what it seems.
            if word == Word::Head || (self.next == start && word != Word::Unfinished) {
                return true;
            }
            self.next += 1;
        }
        self.next = start;
        false
    }
}

/// Stacks that a capture is adding to the table at this moment: a chain, each the caller of the next one.
///
/// Whoever keeps the table outside of this process ([`observe_new_stacks`]) has them before any thread can meet their numbers.
/// The words are what the table holds, to be kept as they are: the first names the parent of the chain, with the highest
/// bit set; each further one is the number of a frame, and its index in the table is the number of a stack.
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
        let words = PROCESS.tree.words();
        (0..self.count + 1).map(move |index| words.at(self.head + index))
    }

    /// The stacks, outermost first.
    pub fn rows(self) -> impl Iterator<Item = StackRow> {
        let first = self.head + 1;
        (first..first + self.count).filter_map(|number| StackId::from_node(number).row())
    }
}

/// Has `observer` called for all stacks that are added to the table from now on, by the capture that adds them, before
/// the capture answers and before any other thread is answered with them. One observer at a time.
///
/// What was added before is read with a [`StackCursor`]; set the observer first, then nothing is missed, and what is met
/// twice is equal.
///
/// The observer runs inside captures: in malloc, in signal handlers, on small stacks. It must not capture.
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

    fn tell(head: u32, count: u32) {
        let function = OBSERVER.load(Ordering::Acquire);
        // SAFETY: set before `tell` was, to a function of this type.
        let observer = unsafe { mem::transmute::<*mut (), fn(NewStacks)>(function) };
        observer(NewStacks { head, count });
    }

    OBSERVER.store(observer as *mut (), Ordering::Release);
    PROCESS.tree.observe(tell);
}

/// A module that is loaded now.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct LoadedModule {
    /// Whether it is the one that a row of the stack table is about.
    pub identity: ModuleIdentity,
    /// The first address of what the loader mapped: the file's ELF header lies there.
    pub start: AbsoluteAddress,
    /// The first address behind it.
    pub end: AbsoluteAddress,
    /// What addresses in memory are larger by than the ones stated in the file.
    pub bias: u64,
    name: u64,
}

impl LoadedModule {
    /// The module that covers `address`. Takes no lock, so another thread may unload it at any moment: one whose memory is gone
    /// already, while the loader still tells of it, is `None`.
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
        let loaded = modules::loaded_as(address.value())?;
        let identity = ModuleIdentity(modules::identity_of_loaded(address)?);
        Some(Self { identity, start, end, bias: loaded.bias, name: loaded.name })
    }

    /// Where the module that covers `address` begins: what [`at`](Self::at) says first, at a hundredth of the cost.
    #[must_use]
    pub fn start_at(address: AbsoluteAddress) -> Option<AbsoluteAddress> {
        LoadedModules.bounds(address).map(|(start, _)| start)
    }

    /// Whether its file still has this name, which [`copy_name`](Self::copy_name) once told: not when that was memory which the
    /// loader had given back.
    #[must_use]
    pub fn has_name(&self, name: &[u8]) -> bool {
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

    /// Copies the name of its file, as much of it as there is room for; empty for the program itself, whose name is
    /// `/proc/self/exe`, and when the module has gone meanwhile.
    #[must_use]
    pub fn copy_name<'a>(&self, into: &'a mut [u8]) -> &'a [u8] {
        let count = own_memory::read_bytes(self.name, into);
        let copied = into.get(..count).unwrap_or_default();
        copied.split(|&byte| byte == 0).next().unwrap_or_default()
    }
}
