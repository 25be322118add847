//! Unwind tables that the program has registered for its own code.
//!
//! LLVM's and other compilers pass the tables of the code that they make to libgcc
//! (`__register_frame`), so that exceptions can be thrown through it. libgcc finds them behind a
//! lock. So a copy is made here when a table is registered: its rules, packed, in runs of ascending
//! addresses. Code is removed only after its table was, and a frame that is live has code: while a
//! step from it is taken, its run is there.
//!
//! ```text
//!   run:   | state | capacity | first row | rows | start | end | table |
//!   row:   | address | rule |; the last one has the end of the run and no rule
//! ```
//!
//! A removed run's rows are used again. A reader meanwhile may get a wrong rule for code that is
//! gone, which no live frame has; it reads no memory that is not there.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use cairn_format::{AbsoluteAddress, WordSize};
use cairn_unwind::cfi::{Bases, Flavor, FrameEntry, FrameTable, Section};

use crate::stacks::arch::{Native, Rule};
use crate::stacks::own_memory;
use crate::stacks::region::{Region, ZeroedAtomics};

/// States of a run: free, then being written, then in use.
const FREE: u32 = 0;
const WRITING: u32 = 1;
const LIVE: u32 = 2;

#[repr(C)]
struct Run {
    state: AtomicU32,
    capacity: AtomicU32,
    first_row: AtomicU32,
    rows: AtomicU32,
    start: AtomicU64,
    end: AtomicU64,
    /// The table's address, by which it is removed.
    table: AtomicU64,
}

#[repr(C)]
struct Row {
    address: AtomicU64,
    /// Bits of the rule, in the lower half.
    rule: AtomicU64,
}

// SAFETY: the fields are atomics, and fill the 40 bytes without padding.
unsafe impl ZeroedAtomics for Run {}
// SAFETY: the two fields are atomics, and fill the 16 bytes without padding.
unsafe impl ZeroedAtomics for Row {}

const _: () = assert!(size_of::<Run>() == 40 && size_of::<Row>() == 16);

/// Distances of the two regions below other mappings; see `pcs`.
const RUNS_DISTANCE: usize = 56 << 30;
const ROWS_DISTANCE: usize = 64 << 30;

/// Most runs; 2^14, because each look-up searches all of them.
static RUNS: Region<Run> = Region::new(&[1 << 14, 1 << 12], RUNS_DISTANCE);
/// Most rows: 2^22, in 64 MiB.
static ROWS: Region<Row> = Region::new(&[1 << 22, 1 << 18], ROWS_DISTANCE);

/// True once some table was registered.
static HAS_TABLES: AtomicBool = AtomicBool::new(false);

pub(crate) fn are_known() -> bool {
    HAS_TABLES.load(Ordering::Relaxed)
}

/// Takes in a table that the program is about to register: a whole `.eh_frame`.
///
/// Safe wherever a capture is. Code whose table does not fit is stepped as without one.
///
/// # Safety
///
/// - The caller of `__register_frame` has passed `table`, and the memory there does not change
///   until this function returns.
pub unsafe fn add_frame_table(table: u64) {
    HAS_TABLES.store(true, Ordering::Relaxed);
    let Some(length) = section_bytes(table) else { return };
    // SAFETY: these bytes were readable a moment ago, and the caller promises that they do not
    // change meanwhile.
    let bytes = unsafe { core::slice::from_raw_parts(table as *const u8, length as usize) };
    let section = Section::new(bytes, AbsoluteAddress::new(table));
    let frames = FrameTable::linear(Flavor::EhFrame, section, Bases::default(), WordSize::NATIVE);
    let mut entries = frames.entries().map_while(Result::ok).filter(|entry| !is_empty(entry)).peekable();
    while let Some(first) = entries.peek() {
        // One run: entries of ascending addresses.
        let (start, mut end, mut rows) = (first.range.start, first.range.start, 0);
        let beginning = entries.clone();
        let mut count = 0;
        while let Some(entry) = entries.next_if(|entry| entry.range.start >= end) {
            rows += 1 + rules(&frames, &entry, &mut |_, _| {});
            end = entry.range.end;
            count += 1;
        }
        let range = (start.value(), end.value());
        let Some(run) = take(rows, range, table) else { return };
        run.fill(&frames, beginning.take(count));
        run.state.store(LIVE, Ordering::Release);
    }
}

/// Forgets a table that the program is about to remove.
pub fn remove_frame_table(table: u64) {
    for run in runs() {
        if run.state.load(Ordering::Acquire) == LIVE && run.table.load(Ordering::Relaxed) == table {
            run.state.store(FREE, Ordering::Release);
        }
    }
}

/// The rule for the code at `address`, which lies in no module.
pub(crate) fn rule(address: u64) -> Option<Rule> {
    if !are_known() {
        return None;
    }
    let covers = |run: &&Run| {
        run.start.load(Ordering::Relaxed) <= address
            && address < run.end.load(Ordering::Relaxed)
            && run.state.load(Ordering::Acquire) == LIVE
    };
    let rule = runs().find(covers)?.rule(address)?;
    (rule != Rule::NO_TABLES).then_some(rule)
}

fn runs() -> impl Iterator<Item = &'static Run> {
    let elements = RUNS.elements();
    (1..RUNS.used()).map_while(move |index| elements.get(index))
}

/// A free run with room for `rows`. `None` without memory.
fn take(rows: u32, (start, end): (u64, u64), table: u64) -> Option<&'static Run> {
    let is_usable = |run: &&Run| {
        run.capacity.load(Ordering::Relaxed) >= rows
            && run.state.compare_exchange(FREE, WRITING, Ordering::Acquire, Ordering::Relaxed).is_ok()
    };
    let run = runs().find(is_usable).or_else(|| {
        let first_row = u32::try_from(ROWS.take(rows as usize)?).ok()?;
        let run = RUNS.elements().get(RUNS.take(1)?)?;
        run.state.store(WRITING, Ordering::Relaxed);
        run.first_row.store(first_row, Ordering::Relaxed);
        run.capacity.store(rows, Ordering::Relaxed);
        Some(run)
    })?;
    run.start.store(start, Ordering::Relaxed);
    run.end.store(end, Ordering::Relaxed);
    run.table.store(table, Ordering::Relaxed);
    Some(run)
}

impl Run {
    fn fill<'a>(&self, frames: &FrameTable<'a>, entries: impl Iterator<Item = FrameEntry<'a>>) {
        let mut used = 0;
        let mut push = |address: AbsoluteAddress, rule: Rule| {
            if used < self.capacity.load(Ordering::Relaxed)
                && let Some(row) = self.row(used)
            {
                row.address.store(address.value(), Ordering::Relaxed);
                row.rule.store(rule.bits().into(), Ordering::Relaxed);
                used += 1;
            }
        };
        for entry in entries {
            rules(frames, &entry, &mut push);
            push(entry.range.end, Rule::NO_TABLES);
        }
        self.rows.store(used, Ordering::Relaxed);
    }

    fn row(&self, index: u32) -> Option<&'static Row> {
        ROWS.elements().get(self.first_row.load(Ordering::Relaxed).checked_add(index)? as usize)
    }

    /// The last row that begins at `address` or below.
    fn rule(&self, address: u64) -> Option<Rule> {
        let (mut low, mut high) = (0, self.rows.load(Ordering::Relaxed));
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if self.row(middle)?.address.load(Ordering::Relaxed) <= address {
                low = middle;
            } else {
                high = middle;
            }
        }
        Some(Rule::from_bits(self.row(low)?.rule.load(Ordering::Relaxed) as u32))
    }
}

fn is_empty(entry: &FrameEntry<'_>) -> bool {
    entry.range.start >= entry.range.end
}

/// Visits the rules of an entry, and returns their number. Code behind a malformed or an overlong
/// part has no tables.
fn rules(
    frames: &FrameTable<'_>,
    entry: &FrameEntry<'_>,
    visit: &mut dyn FnMut(AbsoluteAddress, Rule),
) -> u32 {
    /// Most rows of one function; 2^10, because the time to find them grows with the square.
    const MOST: u32 = 1 << 10;
    let mut count = 0;
    let mut address = entry.range.start;
    while entry.range.contains(address) {
        let found = frames.rule_of::<Native>(entry, address).ok().filter(|_| count < MOST);
        let (rule, end) =
            found.map_or((Rule::NO_TABLES, entry.range.end), |found| (found.rule, found.range.end));
        visit(address, rule);
        count += 1;
        address = end.max(AbsoluteAddress::new(address.value().saturating_add(1)));
    }
    count
}

/// The size of the section at `start`, which ends with a length of 0. `None` for one that is too
/// long or not readable: other libraries than libgcc accept single entries as well.
fn section_bytes(start: u64) -> Option<u64> {
    const MOST_BYTES: u64 = 1 << 26;
    let mut end = start;
    while end - start <= MOST_BYTES {
        let mut length = [0; 4];
        if own_memory::read_bytes(end, &mut length) != length.len() {
            return None;
        }
        end = end.checked_add(4)?;
        match u32::from_ne_bytes(length) {
            0 => return own_memory::is_readable(start, end).then_some(end - start),
            // A length of 64 bits follows `u32::MAX`; no compiler emits that.
            length => end = end.checked_add(length.into())?,
        }
    }
    None
}
