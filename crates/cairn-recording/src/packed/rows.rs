//! Chunks of rows: the tables, and the events that are rare.

use std::collections::BTreeMap;

use cairn_format::AbsoluteAddress;
use cairn_format::recording::{
    Clock, Code, EndReason, InterpreterState, LineTableFormat, LoadedModule, LossKind, MappingKind, PcKind,
    ThreadEvent,
};

use super::columns::{Put, Take};
use crate::model::{At, Change, Events, Fact, Mapping, Module, ModuleId, StackId, Thread, ThreadId, Usage};
use crate::tables::{HEAD, TableBuilder};

const BAD: &str = "its rows cannot be read";

/// A module: number, loaded, one more than unloaded or 0, start, size, bias less start, build id,
/// path.
pub(crate) fn put_module(row: &mut Vec<u8>, module: &Module) {
    row.put_number(module.id.0.into());
    row.put_number(module.loaded_nanos);
    row.put_number(module.unloaded_nanos.map_or(0, |nanos| nanos.saturating_add(1)));
    row.put_number(module.start.value());
    row.put_number(module.size_bytes());
    row.put_signed(module.bias.wrapping_sub(module.start.value()) as i64);
    row.put_bytes(&module.build_id);
    row.put_bytes(&module.path);
}

/// Where the modules begin, to which addresses are relative.
pub(crate) type Starts = BTreeMap<u32, u64>;

pub(crate) fn take_modules(
    payload: &[u8],
    start_counter: u64,
    tables: &mut TableBuilder,
    starts: &mut Starts,
) -> Result<(), &'static str> {
    let mut take = Take::new(payload);
    while !take.is_empty() {
        take_module(&mut take, start_counter, tables, starts).ok_or(BAD)?;
    }
    Ok(())
}

fn take_module(
    take: &mut Take<'_>,
    start_counter: u64,
    tables: &mut TableBuilder,
    starts: &mut Starts,
) -> Option<()> {
    let number = take.number32()?;
    let counter = start_counter.saturating_add(take.number()?);
    let unloaded = take.number()?;
    let start = take.number()?;
    let end = start.checked_add(take.number()?)?;
    let bias = start.wrapping_add(take.signed()? as u64);
    let (build_id, path) = (take.column()?, take.column()?);
    tables.module_loaded(&LoadedModule { number, counter, start, end, bias, build_id, path });
    if unloaded > 0 {
        tables.module_unloaded(number, start_counter.saturating_add(unloaded - 1));
    }
    starts.insert(number, start);
    Some(())
}

/// A thread: number, the kernel's, began, one more than ended or 0, name. A row for each name that
/// it had; the answer is how many.
pub(crate) fn put_thread(row: &mut Vec<u8>, thread: &Thread) -> u32 {
    let mut rows = 0;
    for name in thread.earlier_names.iter().chain([&thread.name]) {
        row.put_number(thread.id.0.into());
        row.put_number(thread.kernel_thread.into());
        row.put_number(thread.began_nanos);
        row.put_number(thread.ended_nanos.map_or(0, |nanos| nanos.saturating_add(1)));
        row.put_bytes(name);
        rows += 1;
    }
    rows
}

pub(crate) fn take_threads(
    payload: &[u8],
    start_counter: u64,
    tables: &mut TableBuilder,
) -> Result<(), &'static str> {
    let mut take = Take::new(payload);
    while !take.is_empty() {
        take_thread(&mut take, start_counter, tables).ok_or(BAD)?;
    }
    Ok(())
}

fn take_thread(take: &mut Take<'_>, start_counter: u64, tables: &mut TableBuilder) -> Option<()> {
    let (number, kernel_thread) = (take.number32()?, take.number32()?);
    let (began, ended, name) = (take.number()?, take.number()?, take.column()?);
    let at = |nanos: u64| start_counter.saturating_add(nanos);
    let threads = &mut tables.threads;
    threads.row(number, at(began), ThreadEvent::Began { kernel_thread });
    if !name.is_empty() {
        threads.row(number, at(began), ThreadEvent::Named(name));
    }
    if ended > 0 {
        threads.row(number, at(ended - 1), ThreadEvent::Ended);
    }
    Some(())
}

/// Writes the rows of addresses.
///
/// Each has the number less the one before, twice the kind plus 1 when it is relative, module, and
/// address or distance from the module's start.
#[derive(Default)]
pub(crate) struct PcRows {
    pub(crate) bytes: Vec<u8>,
    pub(crate) rows: u32,
    last: u32,
}

impl PcRows {
    pub(crate) fn put(&mut self, number: u32, kind: PcKind, address: u64, module: u32, start: Option<u64>) {
        let bytes = &mut self.bytes;
        bytes.put_signed(i64::from(number) - i64::from(self.last));
        bytes.put_number(u64::from(kind.number()) * 2 + u64::from(start.is_some()));
        bytes.put_number(module.into());
        match start {
            Some(start) => bytes.put_signed(address.wrapping_sub(start) as i64),
            None => bytes.put_number(address),
        }
        self.last = number;
        self.rows += 1;
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.rows = 0;
        self.last = 0;
    }
}

pub(crate) fn take_pcs(
    payload: &[u8],
    tables: &mut TableBuilder,
    starts: &Starts,
) -> Result<(), &'static str> {
    let mut take = Take::new(payload);
    let mut last = 0;
    while !take.is_empty() {
        take_pc(&mut take, &mut last, tables, starts).ok_or(BAD)?;
    }
    Ok(())
}

fn take_pc(take: &mut Take<'_>, last: &mut u32, tables: &mut TableBuilder, starts: &Starts) -> Option<()> {
    let number = u32::try_from(i64::from(*last).checked_add(take.signed()?)?).ok()?;
    *last = number;
    let kind = take.number()?;
    let module = take.number32()?;
    let address = if kind & 1 == 1 {
        let distance = take.signed()?;
        // The module's row may be in a chunk that is damaged.
        let Some(start) = starts.get(&module) else {
            tables.bad_rows += 1;
            return Some(());
        };
        start.wrapping_add(distance as u64)
    } else {
        take.number()?
    };
    match u32::try_from(kind >> 1).ok().and_then(PcKind::from_number) {
        Some(kind) => tables.pc(number, kind, address, module),
        None => tables.bad_rows += 1,
    }
    Some(())
}

const CODE: u8 = 0;
const CODE_LINES: u8 = 1;
const INTERPRETER: u8 = 2;

/// Writes the rows of code of interpreters, each a column with a tag in front, as records have
/// them.
#[derive(Default)]
pub(crate) struct CodeRows {
    pub(crate) bytes: Vec<u8>,
    pub(crate) rows: u32,
    row: Vec<u8>,
}

impl CodeRows {
    fn put(&mut self, tag: u8, fill: impl FnOnce(&mut Vec<u8>)) {
        self.row.clear();
        self.row.push(tag);
        fill(&mut self.row);
        self.bytes.put_bytes(&self.row);
        self.rows += 1;
    }

    /// Number, first line, format, bytes of the line table, file, name.
    pub(crate) fn code(&mut self, code: &Code<'_>) {
        self.put(CODE, |row| {
            row.put_number(code.number.into());
            row.put_number(code.first_line.into());
            row.put_number(code.format.number().into());
            row.put_number(code.line_table_bytes.into());
            row.put_bytes(code.file);
            row.put_bytes(code.name);
        });
    }

    /// Number of the code, offset, bytes.
    pub(crate) fn lines(&mut self, code: u32, offset: u32, bytes: &[u8]) {
        self.put(CODE_LINES, |row| {
            row.put_number(code.into());
            row.put_number(offset.into());
            row.put_bytes(bytes);
        });
    }

    /// Version, state.
    pub(crate) fn interpreter(&mut self, version: u32, state: InterpreterState) {
        self.put(INTERPRETER, |row| {
            row.put_number(version.into());
            row.put_number(state.number().into());
        });
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.rows = 0;
    }
}

pub(crate) fn take_codes(payload: &[u8], tables: &mut TableBuilder) -> Result<(), &'static str> {
    let mut take = Take::new(payload);
    while !take.is_empty() {
        let mut row = Take::new(take.column().ok_or(BAD)?);
        take_code(&mut row, tables).ok_or(BAD)?;
    }
    Ok(())
}

fn take_code(row: &mut Take<'_>, tables: &mut TableBuilder) -> Option<()> {
    match row.byte()? {
        CODE => {
            let (number, first_line) = (row.number32()?, row.number32()?);
            let (format, line_table_bytes) = (LineTableFormat::from_number(row.number32()?), row.number32()?);
            let (file, name) = (row.column()?, row.column()?);
            match format {
                Some(format) => {
                    tables.code(&Code { number, first_line, format, line_table_bytes, file, name });
                }
                None => tables.bad_rows += 1,
            }
        }
        CODE_LINES => {
            let (code, offset) = (row.number32()?, row.number32()?);
            tables.code_lines(code, offset, row.column()?);
        }
        INTERPRETER => {
            let (version, state) = (row.number32()?, row.number32()?);
            tables.interpreter(
                version,
                InterpreterState::from_number(state).unwrap_or(InterpreterState::UnknownVersion),
            );
        }
        // A newer cairn's.
        _ => {}
    }
    Some(())
}

/// Runs of words of the stack tree: first index less the one behind the run before, count, words.
///
/// A word that names a parent is twice the distance to it, plus 1. A frame is 0 when it is the one
/// that last followed a frame whose number has the same low 12 bits as that of the word before (0
/// behind a parent); otherwise twice its number.
pub(crate) struct WordRows {
    pub(crate) bytes: Vec<u8>,
    pub(crate) words: u32,
    next: u32,
    followers: Vec<u32>,
}

const FOLLOWERS: usize = 1 << 12;

fn follower(followers: &mut [u32], before: u32) -> &mut u32 {
    // Never out of range; an empty table would have no entry to give.
    followers.get_mut(before as usize % FOLLOWERS).expect("the table has 4096 entries")
}

impl WordRows {
    pub(crate) fn new() -> Self {
        Self { bytes: Vec::new(), words: 0, next: 0, followers: vec![0; FOLLOWERS] }
    }

    pub(crate) fn put(&mut self, first: u32, words: impl ExactSizeIterator<Item = u32>) {
        let count = words.len() as u32;
        self.bytes.put_signed(i64::from(first) - i64::from(self.next));
        self.bytes.put_number(count.into());
        let mut before = 0;
        for (index, word) in (first..).zip(words) {
            if word & HEAD != 0 {
                self.bytes.put_number(u64::from(index.wrapping_sub(word & !HEAD)) << 1 | 1);
                before = 0;
                continue;
            }
            let follower = follower(&mut self.followers, before);
            self.bytes.put_number(if *follower == word { 0 } else { u64::from(word) << 1 });
            *follower = word;
            before = word;
        }
        self.next = first.wrapping_add(count);
        self.words += count;
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.words = 0;
        self.next = 0;
        self.followers.fill(0);
    }
}

pub(crate) fn take_words(payload: &[u8], tables: &mut TableBuilder) -> Result<(), &'static str> {
    let mut take = Take::new(payload);
    let mut followers = vec![0; FOLLOWERS];
    let mut next = 0;
    let mut words = Vec::new();
    while !take.is_empty() {
        let first = take_run(&mut take, &mut next, &mut followers, &mut words).ok_or(BAD)?;
        tables.words(first, words.iter().copied());
    }
    Ok(())
}

fn take_run(take: &mut Take<'_>, next: &mut u32, followers: &mut [u32], words: &mut Vec<u32>) -> Option<u32> {
    let first = u32::try_from(i64::from(*next).checked_add(take.signed()?)?).ok()?;
    let count = take.number32()?;
    *next = first.checked_add(count)?;
    words.clear();
    let mut before = 0;
    for index in first..*next {
        let coded = take.number()?;
        if coded & 1 == 1 {
            let distance = u32::try_from(coded >> 1).ok()?;
            // A distance of 0 or past the start is left to the table to refuse.
            words.push(HEAD | index.checked_sub(distance).unwrap_or(index) & !HEAD);
            before = 0;
            continue;
        }
        let follower = follower(followers, before);
        let word = if coded == 0 {
            *follower
        } else {
            u32::try_from(coded >> 1).ok().filter(|word| word & HEAD == 0)?
        };
        *follower = word;
        words.push(word);
        before = word;
    }
    Some(first)
}

/// Facts as they are in a spool.
pub(crate) fn put_facts(facts: &[Fact]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for fact in facts {
        bytes.extend(fact.name.bytes().filter(|&byte| byte != 0));
        bytes.push(b'=');
        bytes.extend(fact.value.iter().filter(|&&byte| byte != 0));
        bytes.push(0);
    }
    bytes
}

/// Readings of the clocks: nanoseconds since the start, wall clock.
pub(crate) fn put_clock(row: &mut Vec<u8>, nanos: u64, wall_nanos: u64) {
    row.put_number(nanos);
    row.put_number(wall_nanos);
}

pub(crate) fn take_clocks(
    payload: &[u8],
    start_counter: u64,
    clocks: &mut Vec<Clock>,
) -> Result<(), &'static str> {
    let mut take = Take::new(payload);
    while !take.is_empty() {
        let (nanos, wall_nanos) = (take.number().ok_or(BAD)?, take.number().ok_or(BAD)?);
        let counter = start_counter.saturating_add(nanos);
        clocks.push(Clock { counter, monotonic_nanos: counter, wall_nanos });
    }
    Ok(())
}

/// Where a mark or a rare event is in the order of all events.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub(crate) struct EventPlace {
    /// How many marks and rare events come before.
    pub(crate) ordinal: u64,
    /// How many allocations and frees come before.
    pub(crate) position: u64,
}

const USAGE: u8 = 0;
const MAPPING: u8 = 1;
const MODULE_LOADED: u8 = 2;
const MODULE_UNLOADED: u8 = 3;
const THREAD_BEGAN: u8 = 4;
const THREAD_NAMED: u8 = 5;
const THREAD_ENDED: u8 = 6;
const LOST: u8 = 7;
const ENDED: u8 = 8;

/// Writes the rows of rare events, with one column for each tag.
///
/// Each row has the allocations and frees, marks and nanoseconds since the row before, then the
/// thread and the fields of the tag.
#[derive(Default)]
pub(crate) struct ChangeRows {
    pub(crate) bytes: Vec<u8>,
    pub(crate) rows: u32,
    pub(crate) first_nanos: u64,
    nanos: u64,
    place: EventPlace,
    row: Vec<u8>,
}

/// Kind of a row of rare events.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rare {
    Usage(Usage),
    Mapping(Mapping),
    Change(At, Change),
}

impl Rare {
    pub(crate) fn nanos(&self) -> u64 {
        match self {
            Self::Usage(usage) => usage.at.nanos,
            Self::Mapping(mapping) => mapping.at.nanos,
            Self::Change(at, _) => at.nanos,
        }
    }

    /// The same, not before a time.
    pub(crate) fn not_before(self, nanos: u64) -> Self {
        let later = |at: At| At { nanos: at.nanos.max(nanos), ..at };
        match self {
            Self::Usage(usage) => Self::Usage(Usage { at: later(usage.at), ..usage }),
            Self::Mapping(mapping) => Self::Mapping(Mapping { at: later(mapping.at), ..mapping }),
            Self::Change(at, change) => Self::Change(later(at), change),
        }
    }

    pub(crate) fn deliver(&self, events: &mut impl Events) {
        match self {
            Self::Usage(usage) => events.usage(usage),
            Self::Mapping(mapping) => events.mapping(mapping),
            Self::Change(at, change) => events.change(*at, *change),
        }
    }
}

impl ChangeRows {
    pub(crate) fn put(&mut self, rare: &Rare, place: EventPlace) {
        if self.rows == 0 {
            self.first_nanos = rare.nanos();
        }
        let at = match rare {
            Rare::Usage(usage) => usage.at,
            Rare::Mapping(mapping) => mapping.at,
            Rare::Change(at, _) => *at,
        };
        let row = &mut self.row;
        row.clear();
        let tag = match rare {
            Rare::Usage(_) => USAGE,
            Rare::Mapping(_) => MAPPING,
            Rare::Change(_, change) => match change {
                Change::ModuleLoaded(_) => MODULE_LOADED,
                Change::ModuleUnloaded(_) => MODULE_UNLOADED,
                Change::ThreadBegan => THREAD_BEGAN,
                Change::ThreadNamed => THREAD_NAMED,
                Change::ThreadEnded => THREAD_ENDED,
                Change::Lost { .. } => LOST,
                Change::Ended(_) => ENDED,
            },
        };
        row.push(tag);
        row.put_number(place.position - self.place.position);
        row.put_number(place.ordinal - self.place.ordinal);
        row.put_number(at.nanos.saturating_sub(self.nanos));
        row.put_number(at.thread.0.into());
        match rare {
            Rare::Usage(usage) => {
                row.put_number(usage.resident_bytes);
                row.put_number(usage.page_faults);
                row.put_number(usage.threads.into());
                if let Some(own_bytes) = usage.own_bytes {
                    row.put_number(own_bytes);
                }
            }
            Rare::Mapping(mapping) => {
                row.put_number(mapping.kind.number().into());
                row.put_number(mapping.address.value());
                row.put_number(mapping.size_bytes);
                row.put_number(mapping.stack.0.into());
            }
            Rare::Change(_, Change::ModuleLoaded(module) | Change::ModuleUnloaded(module)) => {
                row.put_number(module.0.into());
            }
            Rare::Change(_, Change::Lost { kind, count }) => {
                row.put_number(kind.number().into());
                row.put_number(*count);
            }
            Rare::Change(_, Change::Ended(reason)) => row.put_number(reason.number().into()),
            Rare::Change(..) => {}
        }
        self.place = EventPlace { position: place.position, ordinal: place.ordinal + 1 };
        self.nanos = at.nanos;
        self.bytes.put_bytes(row);
        self.rows += 1;
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.rows = 0;
        self.nanos = 0;
        self.place = EventPlace::default();
    }
}

/// Reads the rare events of one chunk.
pub(crate) struct ChangeCursor<'a> {
    take: Take<'a>,
    nanos: u64,
    place: EventPlace,
}

impl<'a> ChangeCursor<'a> {
    pub(crate) fn new(payload: &'a [u8]) -> Self {
        Self { take: Take::new(payload), nanos: 0, place: EventPlace::default() }
    }

    /// The next event and its place; `Ok(None)` at the end.
    pub(crate) fn next(&mut self) -> Result<Option<(EventPlace, Rare)>, &'static str> {
        while !self.take.is_empty() {
            let mut row = Take::new(self.take.column().ok_or(BAD)?);
            let rare = self.read(&mut row).ok_or(BAD)?;
            let place = self.place;
            self.place.ordinal = place.ordinal.checked_add(1).ok_or(BAD)?;
            if let Some(rare) = rare {
                return Ok(Some((place, rare)));
            }
        }
        Ok(None)
    }

    /// The inner `None` is a row of a newer cairn.
    fn read(&mut self, row: &mut Take<'_>) -> Option<Option<Rare>> {
        let tag = row.byte()?;
        self.place.position = self.place.position.checked_add(row.number()?)?;
        self.place.ordinal = self.place.ordinal.checked_add(row.number()?)?;
        self.nanos = self.nanos.checked_add(row.number()?)?;
        let at = At { nanos: self.nanos, thread: ThreadId(row.number32()?) };
        let change = match tag {
            USAGE => {
                let (resident_bytes, page_faults) = (row.number()?, row.number()?);
                let threads = row.number32()?;
                let own_bytes = if row.is_empty() { None } else { Some(row.number()?) };
                let usage = Usage { at, resident_bytes, own_bytes, page_faults, threads };
                return Some(Some(Rare::Usage(usage)));
            }
            MAPPING => {
                let kind = MappingKind::from_number(row.number32()?);
                let (address, size_bytes) = (AbsoluteAddress::new(row.number()?), row.number()?);
                let stack = StackId(row.number32()?);
                return Some(
                    kind.map(|kind| Rare::Mapping(Mapping { at, kind, address, size_bytes, stack })),
                );
            }
            MODULE_LOADED => Some(Change::ModuleLoaded(ModuleId(row.number32()?))),
            MODULE_UNLOADED => Some(Change::ModuleUnloaded(ModuleId(row.number32()?))),
            THREAD_BEGAN => Some(Change::ThreadBegan),
            THREAD_NAMED => Some(Change::ThreadNamed),
            THREAD_ENDED => Some(Change::ThreadEnded),
            LOST => {
                let (kind, count) = (LossKind::from_number(row.number32()?), row.number()?);
                kind.map(|kind| Change::Lost { kind, count })
            }
            ENDED => EndReason::from_number(row.number32()?).map(Change::Ended),
            _ => None,
        };
        Some(change.map(|change| Rare::Change(at, change)))
    }
}
