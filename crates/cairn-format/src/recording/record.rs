//! The records in a segment of a spool.
//!
//! A record is a sequence of eight-byte little-endian slots. The upper 16 bits of the first slot
//! are its *tag*:
//!
//! ```text
//! tag            first slot below the tag         further slots
//! 0x0000         no record: memory that was never written
//! 0x0001 alloc   address: 48 bits                 | stack: u32 | epoch: u32 |   size: u64
//! 0x0002 free    address: 48 bits                                                          (local)
//! 0x0003 free    address: 48 bits                 | 0 | ticket: u32 |
//! 0x0004 move    old address: 48 bits             | is local: u32 | ticket: u32 |          (an alloc follows)
//! 0x0005 stamp   (counter - start) >> 5: 48 bits
//! 0x0010-0x00ff  | value: u32 | slots: u16 |      `slots` is the length of the whole record
//! 0x0100-0xffff  address: 48 bits                 | stack: u32 | epoch: u32 |              (alloc of tag - 0x100 bytes)
//! ```
//!
//! The hot ones are first and last: an allocation takes two slots and a local free one. Tags that
//! are not known are skipped by their length.
//!
//! Long because reader and writer of every record are in one file: each arm of one mirrors a
//! method of the other, and both change together.

use core::fmt;

use crate::bytes::array_at;

/// Maximum bits of an address in user space.
///
/// Events at wider addresses are not recorded, and are counted as lost.
pub const ADDRESS_BITS: u32 = 48;
/// A [`Record::Stamp`] leaves out as many of the counter's low bits: some ten nanoseconds.
pub const STAMP_SHIFT: u32 = 5;
/// Longer texts of marks are cut, and the cut is marked.
pub const MAX_MARK_TEXT_BYTES: usize = 4096;
/// Maximum words of one [`Record::TreeWords`]; longer segments are written in parts.
pub const MAX_TREE_WORDS: usize = 4096;
/// Maximum bytes of each name of a [`Record::Code`]; longer ones are cut.
pub const MAX_CODE_NAME_BYTES: usize = 4096;
/// Maximum bytes of one [`Record::CodeLines`]; longer tables are written in parts.
pub const MAX_CODE_LINES_BYTES: usize = 16 << 10;

const ADDRESS_MASK: u64 = (1 << ADDRESS_BITS) - 1;
const FIRST_SIZED_TAG: u64 = 0x100;
const MAX_SIZE_IN_TAG: u64 = 0xffff - FIRST_SIZED_TAG;

mod tag {
    pub(super) const ALLOC: u16 = 0x01;
    pub(super) const FREE_LOCAL: u16 = 0x02;
    pub(super) const FREE_REMOTE: u16 = 0x03;
    pub(super) const MOVE: u16 = 0x04;
    pub(super) const STAMP: u16 = 0x05;
    pub(super) const PC: u16 = 0x10;
    pub(super) const TREE_WORDS: u16 = 0x11;
    pub(super) const MODULE_LOADED: u16 = 0x12;
    pub(super) const MODULE_UNLOADED: u16 = 0x13;
    pub(super) const MARK: u16 = 0x14;
    pub(super) const THREAD: u16 = 0x15;
    pub(super) const MAPPING: u16 = 0x16;
    pub(super) const SAMPLE: u16 = 0x17;
    pub(super) const LOSS: u16 = 0x18;
    pub(super) const CLOCK: u16 = 0x19;
    pub(super) const END: u16 = 0x1a;
    /// The same as `PC`, for [`PcKind::Interpreted`](super::PcKind::Interpreted).
    ///
    /// Readers of earlier versions skip tags that they do not know, but refuse kinds.
    pub(super) const INTERPRETED_PC: u16 = 0x1b;
    pub(super) const CODE: u16 = 0x1c;
    pub(super) const CODE_LINES: u16 = 0x1d;
    pub(super) const INTERPRETER: u16 = 0x1e;
}

macro_rules! numbered {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $number:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[non_exhaustive]
        pub enum $name { $($(#[$variant_doc])* $variant,)* }

        impl $name {
            /// The number in the file.
            #[must_use]
            pub const fn number(self) -> u32 {
                match self { $(Self::$variant => $number,)* }
            }

            /// The one of that number.
            #[must_use]
            pub const fn from_number(number: u32) -> Option<Self> {
                match number { $($number => Some(Self::$variant),)* _ => None }
            }
        }
    };
}

numbered! {
    /// Kind of a numbered address. The kinds from [`NoUnwindInfo`](Self::NoUnwindInfo) to
    /// [`Limit`](Self::Limit) take the place outside the outermost frame of a stack that was not
    /// followed to its start, and give the reason; the address is the one in the reason.
    PcKind {
        /// A call returns there; looked up one byte before.
        ReturnAddress = 0,
        /// The instruction that was about to run.
        ProgramCounter = 1,
        /// No unwind information covers the address.
        NoUnwindInfo = 2,
        /// The unwind information at the address cannot be read.
        BadUnwindInfo = 3,
        /// The stack could not be read at the address.
        UnreadableMemory = 4,
        /// The next frame would have been the same one, or an inner one.
        NoProgress = 5,
        /// The next frame would have been outside the thread's stack.
        OutsideStack = 6,
        /// The next frame depends on a register whose value is not known; the address is the
        /// register's number.
        UnknownRegister = 7,
        /// The stack is deeper than a recorded stack can be.
        Limit = 8,
        /// A frame of an interpreter.
        ///
        /// The address is the number of the [code](Record::Code) << 32 | the byte offset of the
        /// instruction in it.
        Interpreted = 9,
        /// A call returns there, to code that no unwind table covers; looked up one byte before.
        /// The frame outside of it was found by its frame pointer, or by the known bytes of its
        /// code.
        ReturnWithoutTables = 10,
    }
}

numbered! {
    /// Encoding of the line table of interpreted code.
    LineTableFormat {
        /// Python 3.8 and 3.9: pairs of steps, `co_lnotab`.
        Python38 = 0,
        /// Python 3.10: pairs of length and step, `co_linetable`.
        Python310 = 1,
        /// Python 3.11 and later: entries of several kinds, `co_linetable`.
        Python311 = 2,
    }
}

numbered! {
    /// Whether the frames of an interpreter in the process are recorded.
    InterpreterState {
        /// They are.
        Read = 0,
        /// No: where this version has them is not known.
        UnknownVersion = 1,
        /// No: it is built without a global lock.
        FreeThreaded = 2,
        /// No: it does not export what leads to them.
        NotExported = 3,
        /// No: its data are not where its version should have them, as in a debug build.
        OtherLayout = 4,
        /// No: this cairn reads them on x86-64 only.
        OtherProcessor = 5,
    }
}

numbered! {
    /// Event in the life of a range of addresses.
    MappingKind {
        /// `mmap` of a file or of anonymous memory.
        Map = 0,
        /// `munmap`.
        Unmap = 1,
        /// The program break moved; the range is from the old to the new one.
        Grow = 2,
        /// The program break moved back.
        Shrink = 3,
    }
}

numbered! {
    /// Kind of a loss, with its reason.
    LossKind {
        /// Events: there was no segment to write them to.
        NoStorage = 0,
        /// Events: they came in a signal handler that interrupted a handler that interrupted the
        /// recorder.
        NestedTooDeep = 1,
        /// Stacks: no memory was left for them.
        NoStackMemory = 2,
        /// Events: their address does not fit [`ADDRESS_BITS`].
        WideAddress = 3,
        /// Events that a ring overwrote, as it is meant to.
        Overwritten = 4,
        /// Places in modules that lead past the recorder's hooks.
        ///
        /// Calls through them are not recorded; the count is of places, not of calls.
        Passing = 5,
        /// Bytes of the files in which JIT compilers name their code: there were too many.
        CodeNames = 7,
        /// Stacks without the frames of an interpreter: these could not be read.
        UnreadFrames = 8,
    }
}

numbered! {
    /// Why nothing follows.
    EndReason {
        /// The recorder was stopped by command.
        Stopped = 0,
        /// The program ended through `exit`.
        Exit = 1,
        /// The program replaced itself through `exec`.
        Exec = 2,
        /// The process was gone: `_exit`, or a signal. The observer had not started the process,
        /// and cannot know which of the two.
        Gone = 3,
    }
}

/// The number that a mark carries.
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub enum MarkValue {
    /// None.
    None,
    /// A whole number.
    Integer(i64),
    /// Any number.
    Float(f64),
}

/// Event in the life of a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ThreadEvent<'a> {
    /// It was seen for the first time.
    Began {
        /// Thread identifier of the kernel.
        kernel_thread: u32,
    },
    /// It has this name from now on.
    Named(&'a [u8]),
    /// It has ended.
    Ended,
}

/// A module as the recorder found it in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LoadedModule<'a> {
    /// The recorder's number for this *load*: another load of the same file has another one.
    pub number: u32,
    /// The counter when it was first seen.
    pub counter: u64,
    /// Address of the first mapped byte.
    pub start: u64,
    /// Address behind the last mapped byte.
    pub end: u64,
    /// Addresses in memory less the ones stated in the file.
    pub bias: u64,
    /// The GNU build id, or what identifies a build on Windows; empty when it has none.
    ///
    /// There it is GUID and age of the PDB, 20 bytes, or time stamp, image size and checksum, 12
    /// bytes.
    pub build_id: &'a [u8],
    /// The path as the loader knows it; bytes, as paths are, and WTF-8 on Windows.
    pub path: &'a [u8],
}

/// Code of an interpreter, as it was when it was first on a stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Code<'a> {
    /// The recorder's number, from 1. Equal contents have one number.
    pub number: u32,
    /// The line that its line table begins with.
    pub first_line: u32,
    /// Encoding of its line table.
    pub format: LineTableFormat,
    /// Bytes of its line table, which [`Record::CodeLines`] has; some may be missing.
    pub line_table_bytes: u32,
    /// The source file, as the interpreter names it; bytes, as paths are.
    pub file: &'a [u8],
    /// The function, qualified where the interpreter knows that.
    pub name: &'a [u8],
}

/// Resources that the process uses, as the kernel reports them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sample {
    /// When.
    pub counter: u64,
    /// Resident memory.
    pub resident_bytes: u64,
    /// Major and minor page faults since the start.
    pub page_faults: u64,
    /// Threads at that time.
    pub threads: u32,
}

/// One reading of three clocks at the same moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Clock {
    /// The counter that the events are stamped with.
    pub counter: u64,
    /// `CLOCK_MONOTONIC`.
    pub monotonic_nanos: u64,
    /// Nanoseconds since 1970.
    pub wall_nanos: u64,
}

/// One record.
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub enum Record<'a> {
    /// A block was allocated.
    Alloc {
        /// Its address.
        address: u64,
        /// Bytes that the program asked for.
        size_bytes: u64,
        /// The counter of its address's hash, read after the real call; see [the
        /// module](super#order-without-a-clock).
        epoch: u32,
        /// Number of the stack; [`u32::MAX`] when it was lost.
        stack: u32,
    },
    /// A block is about to be freed.
    Free {
        /// Its address.
        address: u64,
        /// `None` for a local free; see [the module](super#order-without-a-clock).
        ticket: Option<u32>,
    },
    /// A block was reallocated: its old address is free.
    ///
    /// The [`Alloc`](Self::Alloc) that follows has the new address. Only calls that succeed are
    /// recorded.
    Move {
        /// The address before.
        address: u64,
        /// As for [`Free`](Self::Free).
        ticket: Option<u32>,
    },
    /// The time of what follows.
    Stamp {
        /// The counter, less its value at the start of the recording, without the low
        /// [`STAMP_SHIFT`] bits.
        ticks: u64,
    },
    /// An address was given a number. Comes before any tree word with that number that any thread
    /// can see.
    Pc {
        /// The number, from 1.
        number: u32,
        /// Kind of the address.
        kind: PcKind,
        /// The address in the process.
        address: u64,
        /// Number of the module that lay there; 0 for none.
        module: u32,
    },
    /// A part of the stack tree, as the recorder has it in memory.
    TreeWords {
        /// Index of the first word.
        first: u32,
        /// The words.
        words: WordIter<'a>,
    },
    /// A module was loaded, or was found to be.
    ModuleLoaded(LoadedModule<'a>),
    /// A module is being unloaded.
    ModuleUnloaded {
        /// Its number.
        number: u32,
        /// When.
        counter: u64,
    },
    /// The program marked a moment.
    Mark {
        /// When.
        counter: u64,
        /// Number of the stack; 0 for none, [`u32::MAX`] when it was lost.
        stack: u32,
        /// How many of its innermost frames are not of interest.
        skip: u16,
        /// The number that came with it.
        value: MarkValue,
        /// The text that came with it.
        text: &'a [u8],
        /// The text was longer.
        is_cut: bool,
    },
    /// Something happened to the thread whose segment this is.
    Thread {
        /// When.
        counter: u64,
        /// What.
        event: ThreadEvent<'a>,
    },
    /// Something happened to a range of addresses.
    Mapping {
        /// What.
        kind: MappingKind,
        /// When.
        counter: u64,
        /// The first address.
        address: u64,
        /// How much.
        size_bytes: u64,
        /// Number of the stack.
        stack: u32,
    },
    /// Resources that the process uses.
    Sample(Sample),
    /// Something was lost since the last such record of this thread.
    Loss {
        /// What.
        kind: LossKind,
        /// How often.
        count: u64,
    },
    /// One reading of three clocks.
    Clock(Clock),
    /// The recorder ended.
    End {
        /// Why.
        reason: EndReason,
        /// When.
        counter: u64,
    },
    /// Code of an interpreter was first on a stack. Comes before any [`Pc`](Self::Pc) in it.
    Code(Code<'a>),
    /// A part of the line table of interpreted code.
    CodeLines {
        /// Number of the code.
        code: u32,
        /// Where in the table the part begins.
        offset: u32,
        /// The part.
        bytes: &'a [u8],
    },
    /// An interpreter was found in the process.
    Interpreter {
        /// Its version, as CPython's `PY_VERSION_HEX`; 0 when it is not known.
        version: u32,
        /// Whether its frames are recorded.
        state: InterpreterState,
    },
    /// Written by a newer recorder.
    Unknown {
        /// The tag.
        tag: u16,
    },
}

/// A record and where it was.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Placed<'a> {
    /// Bytes from the start of the segment to the record.
    pub offset: usize,
    /// The record.
    pub record: Record<'a>,
}

/// The words of a [`Record::TreeWords`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WordIter<'a>(&'a [u8]);

impl<'a> WordIter<'a> {
    /// The words in `bytes`, four bytes each, little-endian. A rest of less is left out.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }
}

impl Iterator for WordIter<'_> {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        let (word, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_le_bytes(*word))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.0.len() / 4, Some(self.0.len() / 4))
    }
}

impl ExactSizeIterator for WordIter<'_> {}

/// Why no further record of a segment can be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadRecord {
    /// Bytes from the start of the segment to the record.
    pub offset: usize,
    /// Its tag. 0 where memory was committed that was never written, as after a power cut.
    pub tag: u16,
}

impl fmt::Display for BadRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { offset, tag } = self;
        if *tag == 0 {
            write!(f, "no record at byte {offset} of the segment: the storage was never written")
        } else {
            write!(
                f,
                "record of tag {tag:#x} at byte {offset} of the segment is cut or has impossible values"
            )
        }
    }
}

impl core::error::Error for BadRecord {}

/// Reads the records of a segment, in order; ends behind the first error.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    bytes: &'a [u8],
    /// Where `bytes` begins in the segment.
    offset: usize,
}

impl<'a> Records<'a> {
    /// Creates an iterator over the records in `bytes`, which begin `offset` bytes into the
    /// segment.
    ///
    /// That is behind the header, or where an earlier read ended. Pass no more than the committed
    /// bytes.
    #[must_use]
    pub fn new(bytes: &'a [u8], offset: usize) -> Self {
        Self { bytes, offset }
    }

    /// Bytes from the start of the segment to the next record.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.offset
    }
}

impl Records<'_> {
    /// Goes past allocations, frees, moves and stamps: to the next record that is not one of many.
    ///
    /// ```
    /// use cairn_format::recording::{EndReason, Record, RecordSink, Records};
    /// let mut slots = [0; 16];
    /// let mut sink = RecordSink::new(&mut slots);
    /// sink.stamp(5)?;
    /// sink.alloc(0x5581_0000_12a0, 4096, 7, 42)?;
    /// sink.end(EndReason::Exit, 1000)?;
    /// let bytes: Vec<u8> = sink.written().iter().flat_map(|slot| slot.to_le_bytes()).collect();
    /// let mut records = Records::new(&bytes, 0);
    /// records.skip_frequent();
    /// assert_eq!(records.next().unwrap().unwrap().record, Record::End { reason: EndReason::Exit, counter: 1000 });
    /// # Ok::<(), cairn_format::recording::SinkTooSmall>(())
    /// ```
    #[inline]
    pub fn skip_frequent(&mut self) {
        let mut rest = self.bytes;
        // Branches that are foreseen are faster here than a table of lengths: then the next record
        // need not wait for this one.
        while let Some(first) = array_at(rest, 0).map(u64::from_le_bytes) {
            let length = match (first >> ADDRESS_BITS) as u16 {
                0x100.. => 16,
                tag::FREE_LOCAL | tag::STAMP => 8,
                tag::FREE_REMOTE | tag::MOVE => 16,
                tag::ALLOC => 24,
                _ => break,
            };
            // One that is cut is left to `next` to complain of.
            let Some(behind) = rest.get(length..) else { break };
            rest = behind;
        }
        self.offset += self.bytes.len() - rest.len();
        self.bytes = rest;
    }

    /// Returns the next record when it is an allocation, a free, a move or a stamp.
    ///
    /// Returns `None` for other records and at the end; then call [`next`](Iterator::next) to
    /// distinguish the two. This reads nearly all records in half the time.
    ///
    /// ```
    /// use cairn_format::recording::{Frequent, FrequentKind, RecordSink, Records};
    /// let mut slots = [0; 16];
    /// let mut sink = RecordSink::new(&mut slots);
    /// sink.alloc(0x5581_0000_12a0, 48, 7, 42)?;
    /// sink.free(0x5581_0000_12a0, Some(9))?;
    /// let bytes: Vec<u8> = sink.written().iter().flat_map(|slot| slot.to_le_bytes()).collect();
    /// let mut records = Records::new(&bytes, 0);
    /// let alloc = records.next_frequent().unwrap();
    /// assert_eq!((alloc.kind, alloc.low, alloc.size_bytes), (FrequentKind::Alloc, 0x5581_0000_12a0, 48));
    /// assert_eq!((alloc.number, alloc.stack), (7, 42));
    /// // The last three slots are for `next`.
    /// assert!(records.next_frequent().is_none() && records.next().is_some());
    /// # Ok::<(), cairn_format::recording::SinkTooSmall>(())
    /// ```
    #[inline(always)]
    pub fn next_frequent(&mut self) -> Option<Frequent> {
        let slots: &[u8; 24] = self.bytes.first_chunk()?;
        let slot = |index: usize| array_at(slots, index * 8).map_or(0, u64::from_le_bytes);
        let (first, second) = (slot(0), slot(1));
        let (tag, low) = (first >> ADDRESS_BITS, first & ADDRESS_MASK);
        let (stack, number) = (second as u32, (second >> 32) as u32);
        let record = |kind, size_bytes| Frequent { kind, low, size_bytes, stack, number };
        // Each way goes on by a constant, so that the next record need not wait for this one.
        if tag >= FIRST_SIZED_TAG {
            self.go_past::<16>();
            return Some(record(FrequentKind::Alloc, tag - FIRST_SIZED_TAG));
        }
        Some(match tag as u16 {
            tag::FREE_LOCAL => {
                self.go_past::<8>();
                record(FrequentKind::LocalFree, 0)
            }
            tag::STAMP => {
                self.go_past::<8>();
                record(FrequentKind::Stamp, 0)
            }
            tag::FREE_REMOTE => {
                self.go_past::<16>();
                record(FrequentKind::Free, 0)
            }
            tag::MOVE => {
                self.go_past::<16>();
                record(if stack == 0 { FrequentKind::Move } else { FrequentKind::LocalMove }, 0)
            }
            tag::ALLOC => {
                self.go_past::<24>();
                record(FrequentKind::Alloc, slot(2))
            }
            _ => return None,
        })
    }

    #[inline(always)]
    fn go_past<const N: usize>(&mut self) {
        self.bytes = self.bytes.get(N..).unwrap_or_default();
        self.offset += N;
    }
}

/// One of the frequent records, as [`Records::next_frequent`] reads it. Fields that its kind does
/// not have hold no meaning.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frequent {
    /// Which one it is.
    pub kind: FrequentKind,
    /// The address, or a stamp's ticks.
    pub low: u64,
    /// Bytes that an allocation asked for.
    pub size_bytes: u64,
    /// An allocation's stack.
    pub stack: u32,
    /// The epoch of an allocation, or the ticket of a free or move.
    pub number: u32,
}

/// Kind of a [`Frequent`] record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrequentKind {
    /// [`Record::Alloc`].
    Alloc,
    /// [`Record::Free`] without a ticket.
    LocalFree,
    /// [`Record::Free`] with one.
    Free,
    /// [`Record::Move`] without a ticket.
    LocalMove,
    /// [`Record::Move`] with one.
    Move,
    /// [`Record::Stamp`].
    Stamp,
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Placed<'a>, BadRecord>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.bytes.is_empty() {
            return None;
        }
        let offset = self.offset;
        match read(self.bytes) {
            Ok((record, length)) => {
                self.bytes = self.bytes.get(length..).unwrap_or_default();
                self.offset += length;
                Some(Ok(Placed { offset, record }))
            }
            Err(tag) => {
                self.bytes = &[];
                Some(Err(BadRecord { offset, tag }))
            }
        }
    }
}

/// The record at the start of `bytes` and its length, or its tag.
#[inline]
fn read(bytes: &[u8]) -> Result<(Record<'_>, usize), u16> {
    let slot = |index: usize| array_at(bytes, index * 8).map(u64::from_le_bytes);
    let first = slot(0).ok_or(u16::MAX)?;
    let tag = (first >> ADDRESS_BITS) as u16;
    let address = first & ADDRESS_MASK;
    let halves = |index: usize| slot(index).map(|slot| (slot as u32, (slot >> 32) as u32)).ok_or(tag);
    Ok(match tag {
        0 => return Err(0),
        tag::ALLOC => {
            let (stack, epoch) = halves(1)?;
            (Record::Alloc { address, size_bytes: slot(2).ok_or(tag)?, epoch, stack }, 24)
        }
        tag::FREE_LOCAL => (Record::Free { address, ticket: None }, 8),
        tag::FREE_REMOTE => (Record::Free { address, ticket: Some(halves(1)?.1) }, 16),
        tag::MOVE => {
            let (is_local, ticket) = halves(1)?;
            (Record::Move { address, ticket: (is_local == 0).then_some(ticket) }, 16)
        }
        tag::STAMP => (Record::Stamp { ticks: address }, 8),
        0x06..=0x0f => return Err(tag),
        0x10..0x100 => {
            let length = usize::from((first >> 32) as u16) * 8;
            let body = bytes.get(8..length).ok_or(tag)?;
            (read_long(tag, first as u32, body).ok_or(tag)?, length)
        }
        _ => {
            let (stack, epoch) = halves(1)?;
            (Record::Alloc { address, size_bytes: u64::from(tag) - FIRST_SIZED_TAG, epoch, stack }, 16)
        }
    })
}

/// A record of variable length: `value` from its first slot, `body` from the others.
#[inline(never)]
fn read_long(tag: u16, value: u32, body: &[u8]) -> Option<Record<'_>> {
    let long = |index: usize| array_at(body, index * 8).map(u64::from_le_bytes);
    let word = |index: usize| array_at(body, index * 4).map(u32::from_le_bytes);
    let text = |from: usize, length: usize| body.get(from..from.checked_add(length)?);
    Some(match tag {
        tag::PC | tag::INTERPRETED_PC => Record::Pc {
            number: value,
            address: long(0)?,
            module: word(2)?,
            kind: PcKind::from_number(word(3)?)?,
        },
        tag::TREE_WORDS => {
            let count = usize::try_from(long(0)?).ok()?;
            Record::TreeWords { first: value, words: WordIter(text(8, count.checked_mul(4)?)?) }
        }
        tag::MODULE_LOADED => {
            let (build_id, path) = (word(8)? as usize, word(9)? as usize);
            Record::ModuleLoaded(LoadedModule {
                number: value,
                counter: long(0)?,
                start: long(1)?,
                end: long(2)?,
                bias: long(3)?,
                build_id: text(40, build_id)?,
                path: text(40 + build_id, path)?,
            })
        }
        tag::MODULE_UNLOADED => Record::ModuleUnloaded { number: value, counter: long(0)? },
        tag::MARK => {
            let lengths = word(2)?;
            Record::Mark {
                stack: value,
                counter: long(0)?,
                text: text(24, (lengths & 0xffff) as usize)?,
                skip: (lengths >> 16) as u16,
                is_cut: word(3)? & CUT != 0,
                value: match word(3)? & !CUT {
                    0 => MarkValue::None,
                    1 => MarkValue::Integer(long(2)? as i64),
                    2 => MarkValue::Float(f64::from_bits(long(2)?)),
                    _ => return None,
                },
            }
        }
        tag::THREAD => Record::Thread {
            counter: long(0)?,
            event: match value {
                0 => ThreadEvent::Began { kernel_thread: word(2)? },
                1 => ThreadEvent::Named(text(16, word(2)? as usize)?),
                2 => ThreadEvent::Ended,
                _ => return None,
            },
        },
        tag::MAPPING => Record::Mapping {
            stack: value,
            counter: long(0)?,
            address: long(1)?,
            size_bytes: long(2)?,
            kind: MappingKind::from_number(word(6)?)?,
        },
        tag::SAMPLE => Record::Sample(Sample {
            threads: value,
            counter: long(0)?,
            resident_bytes: long(1)?,
            page_faults: long(2)?,
        }),
        tag::LOSS => Record::Loss { kind: LossKind::from_number(value)?, count: long(0)? },
        tag::CLOCK => {
            Record::Clock(Clock { counter: long(0)?, monotonic_nanos: long(1)?, wall_nanos: long(2)? })
        }
        tag::END => Record::End { reason: EndReason::from_number(value)?, counter: long(0)? },
        tag::CODE => {
            let (file, name) = (word(4)? as usize, word(5)? as usize);
            Record::Code(Code {
                number: value,
                first_line: word(0)?,
                format: LineTableFormat::from_number(word(1)?)?,
                line_table_bytes: word(2)?,
                file: text(24, file)?,
                name: text(24_usize.checked_add(file)?, name)?,
            })
        }
        tag::CODE_LINES => {
            Record::CodeLines { code: value, offset: word(0)?, bytes: text(8, word(1)? as usize)? }
        }
        tag::INTERPRETER => {
            Record::Interpreter { version: value, state: InterpreterState::from_number(word(0)?)? }
        }
        _ => Record::Unknown { tag },
    })
}

const CUT: u32 = 1 << 31;

/// A record does not fit the slots that are left. Nothing of it was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SinkTooSmall;

impl fmt::Display for SinkTooSmall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no room for the record")
    }
}

impl core::error::Error for SinkTooSmall {}

/// Writes records into slots, each wholly or not at all.
#[derive(Debug)]
pub struct RecordSink<'a> {
    slots: &'a mut [u64],
    used: usize,
}

impl<'a> RecordSink<'a> {
    /// Writes into `slots` from their start.
    #[must_use]
    pub fn new(slots: &'a mut [u64]) -> Self {
        Self { slots, used: 0 }
    }

    /// The slots written so far. Their bytes are the record's on a little-endian machine; elsewhere
    /// they have to be swapped.
    #[must_use]
    pub fn written(&self) -> &[u64] {
        self.slots.get(..self.used).unwrap_or_default()
    }

    #[inline(always)]
    fn put<const N: usize>(&mut self, record: [u64; N]) -> Result<(), SinkTooSmall> {
        let place = self.slots.get_mut(self.used..).and_then(<[u64]>::first_chunk_mut).ok_or(SinkTooSmall)?;
        *place = record;
        self.used += N;
        Ok(())
    }

    /// [`Record::Alloc`].
    ///
    /// # Errors
    ///
    /// [`SinkTooSmall`], as all others here.
    #[inline(always)]
    pub fn alloc(
        &mut self,
        address: u64,
        size_bytes: u64,
        epoch: u32,
        stack: u32,
    ) -> Result<(), SinkTooSmall> {
        let place = u64::from(stack) | u64::from(epoch) << 32;
        if size_bytes <= MAX_SIZE_IN_TAG {
            self.put([address | (size_bytes + FIRST_SIZED_TAG) << ADDRESS_BITS, place])
        } else {
            self.put([with_tag(tag::ALLOC, address), place, size_bytes])
        }
    }

    /// [`Record::Free`].
    ///
    /// # Errors
    ///
    /// [`SinkTooSmall`].
    #[inline(always)]
    pub fn free(&mut self, address: u64, ticket: Option<u32>) -> Result<(), SinkTooSmall> {
        match ticket {
            None => self.put([with_tag(tag::FREE_LOCAL, address)]),
            Some(ticket) => self.put([with_tag(tag::FREE_REMOTE, address), u64::from(ticket) << 32]),
        }
    }

    /// [`Record::Move`]; write the [`alloc`](Self::alloc) into the same slots and commit both at
    /// once.
    ///
    /// # Errors
    ///
    /// [`SinkTooSmall`].
    #[inline]
    pub fn moved(&mut self, address: u64, ticket: Option<u32>) -> Result<(), SinkTooSmall> {
        let halves = ticket.map_or(1, |ticket| u64::from(ticket) << 32);
        self.put([with_tag(tag::MOVE, address), halves])
    }

    /// [`Record::Stamp`].
    ///
    /// # Errors
    ///
    /// [`SinkTooSmall`].
    #[inline(always)]
    pub fn stamp(&mut self, ticks: u64) -> Result<(), SinkTooSmall> {
        self.put([with_tag(tag::STAMP, ticks & ADDRESS_MASK)])
    }

    /// [`Record::Pc`].
    ///
    /// # Errors
    ///
    /// [`SinkTooSmall`].
    pub fn pc(&mut self, number: u32, kind: PcKind, address: u64, module: u32) -> Result<(), SinkTooSmall> {
        let place = u64::from(module) | u64::from(kind.number()) << 32;
        let tag = if kind == PcKind::Interpreted { tag::INTERPRETED_PC } else { tag::PC };
        self.put([long_head(tag, number, 3), address, place])
    }

    /// [`Record::Code`]. Names are cut to [`MAX_CODE_NAME_BYTES`].
    ///
    /// # Errors
    ///
    /// [`SinkTooSmall`].
    pub fn code(&mut self, code: &Code<'_>) -> Result<(), SinkTooSmall> {
        let file = code.file.get(..MAX_CODE_NAME_BYTES).unwrap_or(code.file);
        let name = code.name.get(..MAX_CODE_NAME_BYTES).unwrap_or(code.name);
        let place = self.long(tag::CODE, code.number, 4 + (file.len() + name.len()).div_ceil(8))?;
        if let Some((front, body)) = place.split_first_chunk_mut() {
            *front = [
                u64::from(code.first_line) | u64::from(code.format.number()) << 32,
                code.line_table_bytes.into(),
                file.len() as u64 | (name.len() as u64) << 32,
            ];
            put_two(body, file, name);
        }
        Ok(())
    }

    /// [`Record::CodeLines`]; at most [`MAX_CODE_LINES_BYTES`].
    ///
    /// # Errors
    ///
    /// [`SinkTooSmall`].
    pub fn code_lines(&mut self, code: u32, offset: u32, bytes: &[u8]) -> Result<(), SinkTooSmall> {
        let place = self.long(tag::CODE_LINES, code, 2 + bytes.len().div_ceil(8))?;
        if let Some((head, body)) = place.split_first_mut() {
            *head = u64::from(offset) | (bytes.len() as u64) << 32;
            put_bytes(body, bytes);
        }
        Ok(())
    }

    /// [`Record::Interpreter`].
    ///
    /// # Errors
    ///
    /// [`SinkTooSmall`].
    pub fn interpreter(&mut self, version: u32, state: InterpreterState) -> Result<(), SinkTooSmall> {
        self.put([long_head(tag::INTERPRETER, version, 2), state.number().into()])
    }

    /// [`Record::TreeWords`]; at most [`MAX_TREE_WORDS`].
    ///
    /// # Errors
    ///
    /// [`SinkTooSmall`].
    pub fn tree_words(
        &mut self,
        first: u32,
        words: impl ExactSizeIterator<Item = u32>,
    ) -> Result<(), SinkTooSmall> {
        let count = words.len();
        let slots = 2 + count.div_ceil(2);
        let place = self.long(tag::TREE_WORDS, first, slots)?;
        if let Some((head, body)) = place.split_first_mut() {
            *head = count as u64;
            for (index, word) in words.enumerate() {
                if let Some(slot) = body.get_mut(index / 2) {
                    *slot |= u64::from(word) << (index % 2 * 32);
                }
            }
        }
        Ok(())
    }

    /// [`Record::ModuleLoaded`]. Build ids are cut to 64 bytes and paths to 4096.
    ///
    /// # Errors
    ///
    /// [`SinkTooSmall`].
    pub fn module_loaded(&mut self, module: &LoadedModule<'_>) -> Result<(), SinkTooSmall> {
        let build_id = module.build_id.get(..64).unwrap_or(module.build_id);
        let path = module.path.get(..4096).unwrap_or(module.path);
        let slots = 6 + (build_id.len() + path.len()).div_ceil(8);
        let place = self.long(tag::MODULE_LOADED, module.number, slots)?;
        let lengths = build_id.len() as u64 | (path.len() as u64) << 32;
        let head = [module.counter, module.start, module.end, module.bias, lengths];
        if let Some((front, body)) = place.split_first_chunk_mut() {
            *front = head;
            put_two(body, build_id, path);
        }
        Ok(())
    }

    /// [`Record::ModuleUnloaded`].
    ///
    /// # Errors
    ///
    /// [`SinkTooSmall`].
    pub fn module_unloaded(&mut self, number: u32, counter: u64) -> Result<(), SinkTooSmall> {
        self.put([long_head(tag::MODULE_UNLOADED, number, 2), counter])
    }

    /// [`Record::Mark`]. A text longer than [`MAX_MARK_TEXT_BYTES`] is cut.
    ///
    /// # Errors
    ///
    /// [`SinkTooSmall`].
    pub fn mark(
        &mut self,
        counter: u64,
        stack: u32,
        skip: u16,
        value: MarkValue,
        text: &[u8],
    ) -> Result<(), SinkTooSmall> {
        let retained = text.get(..MAX_MARK_TEXT_BYTES).unwrap_or(text);
        let (kind, bits) = match value {
            MarkValue::None => (0, 0),
            MarkValue::Integer(value) => (1, value as u64),
            MarkValue::Float(value) => (2, value.to_bits()),
        };
        let kind = if retained.len() < text.len() { kind | CUT } else { kind };
        let place = self.long(tag::MARK, stack, 4 + retained.len().div_ceil(8))?;
        if let Some((front, body)) = place.split_first_chunk_mut() {
            *front = [counter, retained.len() as u64 | u64::from(skip) << 16 | u64::from(kind) << 32, bits];
            put_bytes(body, retained);
        }
        Ok(())
    }

    /// [`Record::Thread`]. Names are cut to 64 bytes.
    ///
    /// # Errors
    ///
    /// [`SinkTooSmall`].
    pub fn thread(&mut self, counter: u64, event: ThreadEvent<'_>) -> Result<(), SinkTooSmall> {
        match event {
            ThreadEvent::Began { kernel_thread } => {
                self.put([long_head(tag::THREAD, 0, 3), counter, kernel_thread.into()])
            }
            ThreadEvent::Named(name) => {
                let name = name.get(..64).unwrap_or(name);
                let place = self.long(tag::THREAD, 1, 3 + name.len().div_ceil(8))?;
                if let Some((front, body)) = place.split_first_chunk_mut() {
                    *front = [counter, name.len() as u64];
                    put_bytes(body, name);
                }
                Ok(())
            }
            ThreadEvent::Ended => self.put([long_head(tag::THREAD, 2, 2), counter]),
        }
    }

    /// [`Record::Mapping`].
    ///
    /// # Errors
    ///
    /// [`SinkTooSmall`].
    pub fn mapping(
        &mut self,
        kind: MappingKind,
        counter: u64,
        address: u64,
        size_bytes: u64,
        stack: u32,
    ) -> Result<(), SinkTooSmall> {
        self.put([long_head(tag::MAPPING, stack, 5), counter, address, size_bytes, kind.number().into()])
    }

    /// [`Record::Sample`].
    ///
    /// # Errors
    ///
    /// [`SinkTooSmall`].
    pub fn sample(&mut self, sample: &Sample) -> Result<(), SinkTooSmall> {
        let Sample { counter, resident_bytes, page_faults, threads } = *sample;
        self.put([long_head(tag::SAMPLE, threads, 4), counter, resident_bytes, page_faults])
    }

    /// [`Record::Loss`].
    ///
    /// # Errors
    ///
    /// [`SinkTooSmall`].
    pub fn loss(&mut self, kind: LossKind, count: u64) -> Result<(), SinkTooSmall> {
        self.put([long_head(tag::LOSS, kind.number(), 2), count])
    }

    /// [`Record::Clock`].
    ///
    /// # Errors
    ///
    /// [`SinkTooSmall`].
    pub fn clock(&mut self, clock: &Clock) -> Result<(), SinkTooSmall> {
        self.put([long_head(tag::CLOCK, 0, 4), clock.counter, clock.monotonic_nanos, clock.wall_nanos])
    }

    /// [`Record::End`].
    ///
    /// # Errors
    ///
    /// [`SinkTooSmall`].
    pub fn end(&mut self, reason: EndReason, counter: u64) -> Result<(), SinkTooSmall> {
        self.put([long_head(tag::END, reason.number(), 2), counter])
    }

    /// Takes `slots` slots for a record, writes its first one, and hands out the others, zeroed.
    fn long(&mut self, tag: u16, value: u32, slots: usize) -> Result<&mut [u64], SinkTooSmall> {
        let count = u16::try_from(slots).map_err(|_| SinkTooSmall)?;
        let place =
            self.slots.get_mut(self.used..).and_then(|rest| rest.get_mut(..slots)).ok_or(SinkTooSmall)?;
        self.used += slots;
        let (first, body) = place.split_first_mut().ok_or(SinkTooSmall)?;
        *first = long_head(tag, value, count);
        body.fill(0);
        Ok(body)
    }
}

#[inline(always)]
const fn with_tag(tag: u16, low: u64) -> u64 {
    low | (tag as u64) << ADDRESS_BITS
}

const fn long_head(tag: u16, value: u32, slots: u16) -> u64 {
    (tag as u64) << ADDRESS_BITS | (slots as u64) << 32 | value as u64
}

/// As [`put_bytes`], with one after the other.
fn put_two(slots: &mut [u64], first: &[u8], second: &[u8]) {
    for (index, byte) in first.iter().chain(second).enumerate() {
        if let Some(slot) = slots.get_mut(index / 8) {
            *slot |= u64::from(*byte) << (index % 8 * 8);
        }
    }
}

/// Fills zeroed slots with bytes, as they lie in memory on a little-endian machine.
fn put_bytes(slots: &mut [u64], bytes: &[u8]) {
    let mut rest = bytes;
    for slot in slots {
        if let Some((chunk, behind)) = rest.split_first_chunk() {
            *slot = u64::from_le_bytes(*chunk);
            rest = behind;
            continue;
        }
        for (index, byte) in rest.iter().enumerate() {
            *slot |= u64::from(*byte) << (index * 8);
        }
        return;
    }
}
