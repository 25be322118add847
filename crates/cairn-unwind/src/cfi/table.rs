//! The table of one module: from an address to its FDE, and from there to a row or a rule.

use cairn_format::{AbsoluteAddress, WordSize};

use super::cursor::Cursor;
use super::entry::{Cie, CieCache, Found, FrameEntries, FrameEntry};
use super::interpreter::{self, Position};
use super::pointer::{self, PointerContext};
use super::row::{CoreRow, CoreState, Row, RowHead, RowState};
use super::{CfiError, CfiErrorKind};
use crate::{AddressRange, Machine};

/// The bytes of a section, and the address of the first of them in the watched process.
///
/// The slice may be larger than the section, for instance the whole read-only segment that holds
/// `.eh_frame_hdr` and `.eh_frame`; only the bytes to which the tables lead are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Section<'a> {
    /// The bytes.
    pub bytes: &'a [u8],
    /// The address of the first byte.
    pub address: AbsoluteAddress,
}

impl<'a> Section<'a> {
    /// The bytes that lie at `address`.
    #[must_use]
    pub const fn new(bytes: &'a [u8], address: AbsoluteAddress) -> Self {
        Self { bytes, address }
    }

    /// The offset of `address` in the slice.
    #[inline]
    fn offset_of(&self, address: u64) -> Option<usize> {
        let offset = usize::try_from(address.checked_sub(self.address.value())?).ok()?;
        (offset <= self.bytes.len()).then_some(offset)
    }
}

/// The section of the entries. The two differ in the reference from an FDE to its CIE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flavor {
    /// `.eh_frame`: in memory at run time; the reference is the distance back to the CIE.
    EhFrame,
    /// `.debug_frame`: in files only; the reference is the CIE's offset in the section.
    DebugFrame,
}

/// The bases of pointers in rarer encodings.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Bases {
    /// The address of the code section.
    pub text: Option<AbsoluteAddress>,
    /// The address of the global offset table.
    pub data: Option<AbsoluteAddress>,
    /// Added to absolute pointers. Zero in memory, where the loader has relocated them; for a
    /// section from a file, the difference of the module's address and the one stated in the file.
    pub absolute_bias: u64,
}

/// One entry of an index that the caller builds where there is no header: see
/// [`FrameTable::entries`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct IndexEntry {
    /// The first address that the FDE covers. The index is sorted by it.
    pub start: AbsoluteAddress,
    /// The FDE's [`offset`](FrameEntry::offset).
    pub entry_offset: usize,
}

/// The way in which the FDE of an address is found.
#[derive(Clone, Copy, Debug)]
enum Search<'a> {
    /// The header's table in its usual form: pairs of distances from the header.
    Sorted { table: &'a [[u8; 8]], header_address: u64 },
    /// The header's table in any other form: `count` pairs of `2 x entry_bytes`.
    SortedUnusual { header: Section<'a>, start: usize, count: usize, encoding: u8, entry_bytes: usize },
    /// The caller's index.
    Index(&'a [IndexEntry]),
    /// Linearly. Time grows with the section; for offline use.
    Linear,
}

/// The unwind table of one module.
///
/// ```no_run
/// use cairn_format::AbsoluteAddress;
/// use cairn_unwind::{cfi::{CfiError, FrameTable, Section}, x86_64::X86_64};
///
/// # let (hdr_bytes, frame_bytes): (&[u8], &[u8]) = (&[], &[]);
/// let header = Section::new(hdr_bytes, AbsoluteAddress::new(0x7f00_0001_0000));
/// let frames = Section::new(frame_bytes, AbsoluteAddress::new(0x7f00_0001_4000));
/// let table = FrameTable::with_header(header, frames)?;
/// let found = table.rule::<X86_64>(AbsoluteAddress::new(0x7f00_0000_1234))?;
/// println!("{:?} holds for {:?}", found.rule, found.range);
/// # Ok::<(), CfiError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct FrameTable<'a> {
    flavor: Flavor,
    frames: Section<'a>,
    bases: Bases,
    word_size: WordSize,
    search: Search<'a>,
}

/// A packed rule, and the addresses for which it is valid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RuleAt<R> {
    /// The rule.
    pub rule: R,
    /// The addresses for which the packed row is valid.
    pub range: AddressRange,
}

impl<'a> FrameTable<'a> {
    /// The table of a 64-bit module with a header, as linkers emit it for programs that unwind.
    ///
    /// `frames` is any slice that contains `.eh_frame`; `header` starts with `.eh_frame_hdr`.
    ///
    /// # Errors
    ///
    /// [`CfiErrorKind::UnknownVersion`], [`CfiErrorKind::UnknownPointerEncoding`] or
    /// [`CfiErrorKind::UnexpectedEnd`] when the header is not usable; its offset counts from the
    /// start of the header.
    pub fn with_header(header: Section<'a>, frames: Section<'a>) -> Result<Self, CfiError> {
        Self::with_header_and_bases(header, frames, Bases::default(), WordSize::Bits64)
    }

    /// Creates a table as [`with_header`](Self::with_header) does, with given bases and word size.
    ///
    /// # Errors
    ///
    /// The errors of [`with_header`](Self::with_header).
    pub fn with_header_and_bases(
        header: Section<'a>,
        frames: Section<'a>,
        bases: Bases,
        word_size: WordSize,
    ) -> Result<Self, CfiError> {
        let search = parse_header(header, bases, word_size)?;
        Ok(Self { flavor: Flavor::EhFrame, frames, bases, word_size, search })
    }

    /// A table without header and index, which is searched linearly. For files only; for several
    /// look-ups, build an index from [`entries`](Self::entries).
    #[must_use]
    pub fn linear(flavor: Flavor, frames: Section<'a>, bases: Bases, word_size: WordSize) -> Self {
        Self { flavor, frames, bases, word_size, search: Search::Linear }
    }

    /// Adds an index, sorted by `start`, from [`entries`](Self::entries).
    #[must_use]
    pub fn with_index(self, index: &'a [IndexEntry]) -> Self {
        Self { search: Search::Index(index), ..self }
    }

    /// All FDEs in the order of the section. An entry that is malformed ends the iteration with its
    /// error.
    #[must_use]
    pub fn entries(&self) -> FrameEntries<'a> {
        FrameEntries::new(self.context(), self.flavor)
    }

    #[inline]
    fn context(&self) -> PointerContext<'a> {
        PointerContext {
            section: self.frames,
            bases: self.bases,
            word_size: self.word_size,
            data_base: self.bases.data.map(AbsoluteAddress::value),
        }
    }

    /// The FDE that covers `address`.
    ///
    /// # Errors
    ///
    /// [`CfiErrorKind::NotCovered`] when there is none; the others when the table is malformed.
    pub fn find(&self, address: AbsoluteAddress) -> Result<FrameEntry<'a>, CfiError> {
        let mut found = Found::empty();
        self.find_into(address, &mut found)?;
        Ok(found.entry)
    }

    /// The rules of all registers at `address`. For a return address, pass the address one below:
    /// the call is unwound, and it may be the last instruction of its function.
    ///
    /// # Errors
    ///
    /// [`CfiErrorKind::NotCovered`] when no entry covers the address; the others when the table is
    /// malformed.
    pub fn row<M: Machine>(&self, address: AbsoluteAddress) -> Result<Row<'a, M>, CfiError> {
        let mut row = Row::empty();
        let (head, state) = row.parts_mut();
        self.fill_row(address, head, state)?;
        Ok(row)
    }

    /// Fills the empty parts of a row as [`row`](Self::row) does. A signal handler has no stack for
    /// copies, and its caller may store the larger part elsewhere.
    pub(crate) fn fill_row<M: Machine>(
        &self,
        address: AbsoluteAddress,
        head: &mut RowHead<'a>,
        state: &mut RowState<M>,
    ) -> Result<(), CfiError> {
        let mut found = Found::empty();
        self.find_into(address, &mut found)?;
        self.fill_row_in(&found, address, head, state)
    }

    #[inline(never)]
    fn fill_row_in<M: Machine>(
        &self,
        found: &Found<'a>,
        address: AbsoluteAddress,
        head: &mut RowHead<'a>,
        state: &mut RowState<M>,
    ) -> Result<(), CfiError> {
        let Found { entry, cie } = found;
        let position = evaluate(cie, entry, address, state)?;
        head.complete(self.frames, self.word_size, cie, position.range());
        Ok(())
    }

    /// The packed rule at `address`, evaluated in one pass. For a return address, pass the address
    /// one below.
    ///
    /// # Errors
    ///
    /// [`CfiErrorKind::NotCovered`] when no entry covers the address; the others when the table is
    /// malformed. A row that does not fit a rule is not an error: there is a rule for it.
    #[inline]
    pub fn rule<M: Machine>(&self, address: AbsoluteAddress) -> Result<RuleAt<M::Rule>, CfiError> {
        let mut found = Found::empty();
        self.find_into(address, &mut found)?;
        self.rule_in::<M>(&found.entry, &found.cie, address)
    }

    #[inline(never)]
    fn rule_in<M: Machine>(
        &self,
        entry: &FrameEntry<'a>,
        cie: &Cie<'a>,
        address: AbsoluteAddress,
    ) -> Result<RuleAt<M::Rule>, CfiError> {
        let mut state = CoreState::<M>::new(cie.return_address_register);
        let position = evaluate(cie, entry, address, &mut state)?;
        let mut row = CoreRow::new(&state, self.frames.bytes, cie.is_signal_frame, address);
        if self.word_size != WordSize::Bits64 {
            // Packed rules load 8 bytes.
            row.give_up();
        }
        // A CFA computed from the pc itself (the entries of a procedure linkage table) is valid for
        // that pc alone.
        let range = if row.depends_on_pc { single_address(address) } else { position.range() };
        Ok(RuleAt { rule: M::pack(&row), range })
    }

    /// The packed rule at `address`, by this FDE, which covers it.
    ///
    /// # Errors
    ///
    /// When the FDE or its CIE is malformed.
    pub fn rule_of<M: Machine>(
        &self,
        entry: &FrameEntry<'a>,
        address: AbsoluteAddress,
    ) -> Result<RuleAt<M::Rule>, CfiError> {
        let cie = Cie::parse(&self.context(), self.flavor, entry.cie_offset)?;
        self.rule_in::<M>(entry, &cie, address)
    }

    /// Calls `visit` with each row of an FDE and its range, for printing tables and for tests.
    ///
    /// Each row is evaluated from the start of the program, so time grows with the square of its
    /// length.
    ///
    /// # Errors
    ///
    /// When the FDE or its CIE is malformed; rows before the error have been visited.
    pub fn rows<M: Machine>(
        &self,
        entry: &FrameEntry<'a>,
        mut visit: impl FnMut(&Row<'a, M>),
    ) -> Result<(), CfiError> {
        let mut address = entry.range.start;
        while entry.range.contains(address) {
            let cie = Cie::parse(&self.context(), self.flavor, entry.cie_offset)?;
            let mut row = Row::empty();
            let (head, state) = row.parts_mut();
            let position = evaluate(&cie, entry, address, state)?;
            head.complete(self.frames, self.word_size, &cie, position.range());
            visit(&row);
            // A row never ends before the requested address, so this advances.
            address = position.range().end;
        }
        Ok(())
    }

    /// Fills `found` with the FDE that covers `address`. A separate function, so that its stack
    /// space is free before the programs run.
    #[inline(never)]
    fn find_into(&self, address: AbsoluteAddress, found: &mut Found<'a>) -> Result<(), CfiError> {
        let offset = self.find_offset(address)?;
        found.fill(&self.context(), self.flavor, offset)?;
        if found.entry.range.contains(address) {
            Ok(())
        } else {
            Err(CfiError { offset, kind: CfiErrorKind::NotCovered })
        }
    }

    /// The offset of the FDE that covers `address`, if there is one.
    #[inline(never)]
    fn find_offset(&self, address: AbsoluteAddress) -> Result<usize, CfiError> {
        let not_covered = CfiError { offset: 0, kind: CfiErrorKind::NotCovered };
        match self.search {
            Search::Sorted { table, header_address } => {
                let fde_address = search_sorted(table, header_address, address.value()).ok_or(not_covered)?;
                self.frames.offset_of(fde_address).ok_or(not_covered)
            }
            Search::SortedUnusual { .. } => self.search_unusual(address.value())?.ok_or(not_covered),
            Search::Index(index) => {
                let after = index.partition_point(|entry| entry.start <= address);
                let before = after.checked_sub(1).and_then(|last| index.get(last));
                Ok(before.ok_or(not_covered)?.entry_offset)
            }
            Search::Linear => self.search_linear(address)?.ok_or(not_covered),
        }
    }

    /// Linear search: the offset of the first FDE that covers the address.
    #[cold]
    #[inline(never)]
    fn search_linear(&self, address: AbsoluteAddress) -> Result<Option<usize>, CfiError> {
        for entry in self.entries() {
            let entry = entry?;
            if entry.range.contains(address) {
                return Ok(Some(entry.offset));
            }
        }
        Ok(None)
    }

    /// Binary search in a header table of unusual encoding: the offset of the FDE.
    #[cold]
    fn search_unusual(&self, address: u64) -> Result<Option<usize>, CfiError> {
        let Search::SortedUnusual { header, start, count, encoding, entry_bytes } = self.search else {
            return Ok(None);
        };
        let context = header_context(header, self.bases, self.word_size);
        let read = |index: usize| -> Result<(u64, u64), CfiError> {
            let at = start + index * 2 * entry_bytes;
            let mut cursor = Cursor::new(header.bytes, at, header.bytes.len())?;
            let function = pointer::read_pointer(&mut cursor, encoding, &context, None)?;
            Ok((function, pointer::read_pointer(&mut cursor, encoding, &context, None)?))
        };
        let (mut low, mut high) = (0, count);
        while low < high {
            let middle = low + (high - low) / 2;
            if read(middle)?.0 <= address { low = middle + 1 } else { high = middle }
        }
        let Some(index) = low.checked_sub(1) else { return Ok(None) };
        Ok(self.frames.offset_of(read(index)?.1))
    }
}

/// A table whose look-ups remember the CIEs that they read.
///
/// For a caller that asks the table of one module again and again. The answers are those of
/// [`FrameTable::rule`].
///
/// ```
/// use cairn_format::{AbsoluteAddress, WordSize};
/// use cairn_unwind::{cfi::{Bases, CachingTable, Flavor, FrameTable, Section}, x86_64::X86_64};
///
/// let frames = Section::new(&[], AbsoluteAddress::new(0x7f00_0001_4000));
/// let table = FrameTable::linear(Flavor::EhFrame, frames, Bases::default(), WordSize::Bits64);
/// let mut caching = CachingTable::new(table);
/// for address in [0x7f00_0000_1234, 0x7f00_0000_1300].map(AbsoluteAddress::new) {
///     assert_eq!(caching.rule::<X86_64>(address), table.rule::<X86_64>(address));
/// }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct CachingTable<'a> {
    table: FrameTable<'a>,
    cies: CieCache<'a>,
}

impl<'a> CachingTable<'a> {
    /// Remembers nothing yet.
    #[must_use]
    pub fn new(table: FrameTable<'a>) -> Self {
        Self { table, cies: CieCache::empty() }
    }

    /// The packed rule at `address`, as [`FrameTable::rule`] returns it.
    ///
    /// # Errors
    ///
    /// The errors of [`FrameTable::rule`].
    #[inline]
    pub fn rule<M: Machine>(&mut self, address: AbsoluteAddress) -> Result<RuleAt<M::Rule>, CfiError> {
        let mut entry = FrameEntry::empty();
        let place = self.find_into(address, &mut entry)?;
        self.table.rule_in::<M>(&entry, self.cies.cie(place)?, address)
    }

    /// Fills `entry` with the FDE that covers `address`, and returns the place of its CIE. A
    /// separate function, so that its stack space is free before the programs run.
    #[inline(never)]
    fn find_into(&mut self, address: AbsoluteAddress, entry: &mut FrameEntry<'a>) -> Result<usize, CfiError> {
        let Self { table, cies } = self;
        let offset = table.find_offset(address)?;
        let place = cies.fill(&table.context(), table.flavor, offset, entry)?;
        if entry.range.contains(address) {
            Ok(place)
        } else {
            Err(CfiError { offset, kind: CfiErrorKind::NotCovered })
        }
    }
}

/// Only `address`.
fn single_address(address: AbsoluteAddress) -> AddressRange {
    AddressRange::new(address, address.checked_add(1).unwrap_or(address))
}

/// Runs the CIE's program and then the FDE's, up to the row that contains `address`.
#[inline]
fn evaluate<S: interpreter::State>(
    cie: &Cie<'_>,
    entry: &FrameEntry<'_>,
    address: AbsoluteAddress,
    state: &mut S,
) -> Result<Position, CfiError> {
    evaluate_common(cie, state)?;
    let mut position = Position::new(entry.range, address);
    interpreter::run(cie, entry.program, &mut position, state)?;
    if state.has_restored() {
        restore(cie, state)?;
    }
    Ok(position)
}

/// Runs the CIE's program. It has no locations: every row starts with all of it.
#[inline]
fn evaluate_common<S: interpreter::State>(cie: &Cie<'_>, state: &mut S) -> Result<(), CfiError> {
    if state.set_usual(cie.program.rest(), cie.data_alignment) {
        return Ok(());
    }
    interpreter::run(cie, cie.program, &mut Position::everywhere(), state)?;
    if state.has_restored() {
        // There is no state to restore yet.
        state.begin_restoring();
        state.end_restoring();
    }
    Ok(())
}

#[inline(never)]
fn restore<S: interpreter::State>(cie: &Cie<'_>, state: &mut S) -> Result<(), CfiError> {
    state.begin_restoring();
    let result = evaluate_common(cie, state);
    state.end_restoring();
    result
}

/// The address of the FDE whose function starts last before `address`.
///
/// The comparison happens in distances from the header, so that the loop does no 64-bit arithmetic,
/// and `partition_point` compiles to conditional moves: a mispredicted branch costs more than the
/// probe.
#[inline]
fn search_sorted(table: &[[u8; 8]], header_address: u64, address: u64) -> Option<u64> {
    let wanted = i32::try_from(address.wrapping_sub(header_address) as i64).ok()?;
    let after = table.partition_point(|&[a, b, c, d, ..]| i32::from_le_bytes([a, b, c, d]) <= wanted);
    let &[.., a, b, c, d] = table.get(after.checked_sub(1)?)?;
    Some(header_address.wrapping_add_signed(i64::from(i32::from_le_bytes([a, b, c, d]))))
}

fn header_context(header: Section<'_>, bases: Bases, word_size: WordSize) -> PointerContext<'_> {
    PointerContext { section: header, bases, word_size, data_base: Some(header.address.value()) }
}

fn parse_header(header: Section<'_>, bases: Bases, word_size: WordSize) -> Result<Search<'_>, CfiError> {
    let mut cursor = Cursor::new(header.bytes, 0, header.bytes.len())?;
    let [version, frames_encoding, count_encoding, table_encoding] = cursor.array::<4>()?;
    if version != 1 {
        return Err(CfiError { offset: 0, kind: CfiErrorKind::UnknownVersion });
    }
    let context = header_context(header, bases, word_size);
    if frames_encoding != pointer::OMIT {
        // The address of `.eh_frame`, which is not needed: the table's entries lead there.
        pointer::read_pointer(&mut cursor, frames_encoding, &context, None)?;
    }
    if count_encoding == pointer::OMIT || table_encoding == pointer::OMIT {
        return Ok(Search::Linear);
    }
    let count = pointer::read_pointer(&mut cursor, count_encoding, &context, None)?;
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    if table_encoding == pointer::DATA_RELATIVE_I32 && word_size == WordSize::Bits64 {
        let (table, _) = cursor.rest().as_chunks::<8>();
        let table = table.get(..count).ok_or(cursor.error(CfiErrorKind::UnexpectedEnd))?;
        return Ok(Search::Sorted { table, header_address: header.address.value() });
    }
    unusual_table(header, &cursor, count, table_encoding, word_size)
}

fn unusual_table<'a>(
    header: Section<'a>,
    cursor: &Cursor<'a>,
    count: usize,
    encoding: u8,
    word_size: WordSize,
) -> Result<Search<'a>, CfiError> {
    let entry_bytes = match encoding & 0xf {
        0x0 => word_size.bytes(),
        0x2 | 0xa => 2,
        0x3 | 0xb => 4,
        0x4 | 0xc => 8,
        // Numbers of varying length exclude a binary search.
        _ => return Err(cursor.error(CfiErrorKind::UnknownPointerEncoding)),
    };
    let table_bytes = count.checked_mul(2 * entry_bytes);
    if table_bytes.is_none_or(|bytes| bytes > cursor.rest().len()) {
        return Err(cursor.error(CfiErrorKind::UnexpectedEnd));
    }
    Ok(Search::SortedUnusual { header, start: cursor.offset(), count, encoding, entry_bytes })
}
