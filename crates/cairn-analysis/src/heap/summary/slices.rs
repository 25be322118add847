//! The bytes of the slices of time in a summary.

use super::SummaryTables;
use super::columns::{Columns, numbers, put_column};
use crate::heap::aggregate::{HeapProfile, LOST_STACK};
use crate::heap::slices::{SliceEntry, Slices};
use crate::heap::{LIFETIME_CLASSES, SIZE_CLASSES};
use cairn_recording::{Put, Take};

/// Entries of slices that are stored, at most: what a stranger's file says must not fill memory.
pub(super) const MAX_ENTRIES: usize = 4 << 20;
/// Slices that are stored, at most.
const MAX_SLICES: u64 = 1 << 16;

/// The bytes of the slices.
pub(super) fn put(slices: &Slices) -> Vec<u8> {
    let mut into = Vec::new();
    into.put_number(slices.count as u64);
    into.put_number(slices.slice_nanos);
    for entries in [&slices.stacks, &slices.sizes, &slices.threads, &slices.lifetimes] {
        put_entries(&mut into, entries);
    }
    into
}

/// Parses the bytes of this profile's slices.
///
/// Returns `None` when they contradict each other or the recording.
pub(super) fn take(bytes: &[u8], tables: SummaryTables, profile: &HeapProfile) -> Option<Slices> {
    let mut take = Take::new(bytes);
    let take = &mut take;
    let [count, slice_nanos] = numbers(take)?;
    // They end with the recording.
    let last = profile.end_nanos.checked_div(slice_nanos)?;
    if count > MAX_SLICES || last.checked_add(1)? != count {
        return None;
    }
    let mut room = MAX_ENTRIES;
    let slices = Slices {
        count: usize::try_from(count).ok()?,
        slice_nanos,
        stacks: take_entries(take, tables.stacks, true, count, &mut room)?,
        sizes: take_entries(take, SIZE_CLASSES, false, count, &mut room)?,
        threads: take_entries(take, tables.threads, false, count, &mut room)?,
        lifetimes: take_entries(take, LIFETIME_CLASSES, false, count, &mut room)?,
    };
    (take.is_empty() && is_of(&slices, profile)).then_some(slices)
}

/// Whether slices add up to the sums.
fn is_of(slices: &Slices, profile: &HeapProfile) -> bool {
    let totals = &profile.totals;
    [&slices.stacks, &slices.sizes, &slices.threads].into_iter().all(|entries| {
        let mut sum = SliceEntry::default();
        entries.iter().for_each(|entry| sum.add(entry));
        let blocks = profile.sampling.blocks(sum.allocations);
        let same = (sum.allocated_bytes, blocks, sum.temporary)
            == (totals.allocated_bytes, totals.allocations, totals.temporary);
        same && u64::try_from(sum.grown_bytes) == Ok(totals.live_bytes)
            && sum.leaked_bytes == totals.live_bytes
    })
}

/// | count | columns: rows less the one before, slices (less the one before of the same row), sums |
fn put_entries(into: &mut Vec<u8>, entries: &[SliceEntry]) {
    into.put_number(entries.len() as u64);
    let before = || std::iter::once(None).chain(entries.iter().map(Some));
    put_column(
        into,
        entries
            .iter()
            .zip(before())
            .map(|(entry, before)| u64::from(entry.row - before.map_or(0, |before| before.row))),
    );
    put_column(
        into,
        entries.iter().zip(before()).map(|(entry, before)| {
            let of_row = before.filter(|before| before.row == entry.row);
            u64::from(entry.slice - of_row.map_or(0, |before| before.slice))
        }),
    );
    put_column(into, entries.iter().map(|entry| entry.allocated_bytes));
    put_column(into, entries.iter().map(|entry| entry.allocations));
    // Freed bytes: mostly of blocks that were allocated here, so that the number occurs twice.
    let freed = |entry: &SliceEntry| entry.allocated_bytes.wrapping_sub(entry.grown_bytes.cast_unsigned());
    put_column(into, entries.iter().map(freed));
    put_column(into, entries.iter().map(|entry| entry.leaked_bytes));
    put_column(into, entries.iter().map(|entry| entry.temporary));
}

/// `rows` is how many there are; beyond these only that of lost stacks may be.
fn take_entries(
    take: &mut Take<'_>,
    rows: usize,
    has_lost: bool,
    slices: u64,
    room: &mut usize,
) -> Option<Vec<SliceEntry>> {
    let count = take.number()?;
    let mut columns = Columns::<7>::new(take)?;
    *room = room.checked_sub(usize::try_from(count).ok()?)?;
    let mut entries: Vec<SliceEntry> = Vec::new();
    for _ in 0..count {
        let [row, slice, allocated_bytes, allocations, freed_bytes, leaked_bytes, temporary] =
            columns.row()?;
        let before = entries.last().map(|before| (before.row, before.slice));
        let is_same_row = row == 0 && before.is_some();
        let row = u32::try_from(row).ok()?.checked_add(before.map_or(0, |(row, _)| row))?;
        let from = before.filter(|_| is_same_row).map_or(0, |(_, slice)| slice);
        let is_repeated = is_same_row && slice == 0;
        let slice = u32::try_from(slice).ok()?.checked_add(from)?;
        let is_row = (row as usize) < rows || has_lost && row == LOST_STACK;
        if is_repeated || !is_row || u64::from(slice) >= slices {
            return None;
        }
        let grown_bytes = allocated_bytes.wrapping_sub(freed_bytes).cast_signed();
        entries.push(SliceEntry {
            row,
            slice,
            allocated_bytes,
            allocations,
            grown_bytes,
            leaked_bytes,
            temporary,
        });
    }
    columns.end()?;
    Some(entries)
}
