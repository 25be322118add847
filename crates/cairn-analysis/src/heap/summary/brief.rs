//! Data of the whole picture of a report, and no more, in as few bytes as possible: so that
//! reports of short programs need not read the events either.
//!
//! The whole summary of a large recording is more than many a small one has bytes: most of it is
//! the curve of memory over time, in two thousand steps of five numbers, then the samples, then the
//! marks. The picture has one curve, which is no wider than a terminal and of a few rows, the sums
//! of stacks and threads, and how many blocks there were by size. [`abridge`] leaves just that,
//! from whatever source, so that the picture is the same from the events, from all sums, and from
//! the brief ones.

use super::SummaryTables;
use super::columns::{Columns, numbers, put_column, put_places};
use super::whole::{adds_up, put_own, put_resident, put_sums, take_own, take_resident, take_sums};
use crate::heap::aggregate::{Anomalies, HeapProfile};
use crate::heap::heap_read::HeapRead;
use crate::heap::sampling::{Errors, Sampling};
use crate::heap::timeline::{Bin, Timeline};
use crate::heap::{SIZE_CLASSES, Sums};
use cairn_recording::{Put, Take};

/// Most steps of the curve; a picture has at most half as many columns.
const MOST_BINS: usize = 256;
/// Levels of the peak; 255, at least twice the rows of a picture.
const LEVELS: u64 = 255;

/// Reduces the data to that of the whole picture.
///
/// There are no lifetimes, samples and marks, only allocations by size, and a curve over time of
/// at most 256 steps, each of 256 levels.
pub(in crate::heap) fn abridge(read: &mut HeapRead) {
    let profile = &mut read.profile;
    profile.lifetimes.clear();
    for sums in &mut profile.sizes {
        *sums = of_size(sums.allocations, sums.allocated_bytes);
    }
    profile.timeline = curve(&profile.timeline);
    read.page_faults = None;
    read.usage.clear();
    read.marks.clear();
    read.more_marks = 0;
}

fn of_size(allocations: u64, allocated_bytes: u64) -> Sums {
    Sums { allocations, allocated_bytes, ..Sums::default() }
}

/// The most that was held in each of fewer and wider bins, as levels.
fn curve(timeline: &Timeline) -> Timeline {
    let mut wide = timeline.clone();
    while wide.bins.len() > MOST_BINS {
        wide.halve();
    }
    let most = most_bytes(&wide);
    let levels = levels(&wide, most);
    of_levels(wide.bin_nanos, levels.into_iter(), most)
}

fn most_bytes(timeline: &Timeline) -> u64 {
    timeline.bins.iter().map(|bin| bin.most_bytes).max().unwrap_or(0)
}

fn levels(timeline: &Timeline, most: u64) -> Vec<u8> {
    let level = |bin: &Bin| {
        let level = (u128::from(bin.most_bytes) * u128::from(LEVELS) + u128::from(most / 2))
            / u128::from(most.max(1));
        level.min(u128::from(LEVELS)) as u8
    };
    timeline.bins.iter().map(level).collect()
}

fn of_levels(bin_nanos: u64, levels: impl Iterator<Item = u8>, most: u64) -> Timeline {
    let bin = |level: u8| {
        let most_bytes = (u128::from(level) * u128::from(most) / u128::from(LEVELS)) as u64;
        Bin { most_bytes, ..Bin::default() }
    };
    Timeline { bin_nanos, bins: levels.map(bin).collect() }
}

/// The bytes of what was [abridged](abridge). Estimates have no brief summary: a sample has few
/// events.
pub(super) fn put(read: &HeapRead) -> Vec<u8> {
    let mut into = Vec::new();
    let profile = &read.profile;
    let Anomalies { unknown_frees, reused_objects, bad_numbers } = profile.anomalies;
    let single = [
        profile.end_nanos,
        profile.peak_nanos,
        read.unmatched_frees,
        unknown_frees,
        reused_objects,
        bad_numbers,
        profile.timeline.bin_nanos,
        profile.timeline.bins.len() as u64,
    ];
    single.into_iter().for_each(|number| into.put_number(number));
    // Steps from level to level, modulo 256: a curve that rises is few of them.
    let mut before = 0_u8;
    for level in levels(&profile.timeline, most_bytes(&profile.timeline)) {
        into.push(level.wrapping_sub(before));
        before = level;
    }
    put_stacks(&mut into, profile);
    put_threads(&mut into, profile);
    let used = || profile.sizes.iter().enumerate().filter(|(_, sums)| !sums.is_empty());
    put_places(&mut into, used().map(|(class, _)| class));
    put_column(&mut into, used().map(|(_, sums)| sums.allocations));
    put_column(&mut into, used().map(|(_, sums)| sums.allocated_bytes));
    put_resident(&mut into, read.resident.as_ref());
    put_own(&mut into, read.resident.as_ref(), &[]);
    into
}

/// Parses the bytes; `None` when they contradict each other or the recording.
pub(super) fn take(bytes: &[u8], tables: SummaryTables) -> Option<HeapRead> {
    if tables.sampling != Sampling::All {
        return None;
    }
    let mut take = Take::new(bytes);
    let take = &mut take;
    let [end_nanos, peak_nanos, unmatched_frees, a, b, c, bin_nanos, bins] = numbers(take)?;
    let anomalies = Anomalies { unknown_frees: a, reused_objects: b, bad_numbers: c };
    if bin_nanos == 0 || bins > MOST_BINS as u64 {
        return None;
    }
    let (steps, rest) = take.bytes.split_at_checked(usize::try_from(bins).ok()?)?;
    take.bytes = rest;
    let (stacks, lost_stack) = take_stacks(take, tables.stacks)?;
    let mut totals = lost_stack;
    stacks.iter().for_each(|sums| totals.add(sums));
    let threads = take_threads(take, tables.threads, &totals)?;
    let sizes = take_sizes(take)?;
    let levels = steps.iter().scan(0_u8, |level, &step| {
        *level = level.wrapping_add(step);
        Some(*level)
    });
    let mut resident = take_resident(take)?;
    take_own(take, resident.as_mut(), &mut [])?;
    let profile = HeapProfile {
        totals,
        errors: Errors::default(),
        stacks,
        lost_stack,
        stack_errors: Vec::new(),
        threads,
        sizes,
        lifetimes: Vec::new(),
        timeline: of_levels(bin_nanos, levels, totals.peak_bytes),
        peak_nanos,
        peak_bytes_of_all: totals.peak_bytes,
        live_bytes_of_all: totals.live_bytes,
        end_nanos,
        sampling: tables.sampling,
        anomalies,
    };
    let read = HeapRead {
        most_resident_bytes: resident.as_ref().map(|most| most.sample.resident_bytes),
        resident,
        ..HeapRead::of_sums(profile, unmatched_frees, Vec::new())
    };
    (take.is_empty() && adds_up(&read.profile)).then_some(read)
}

/// | rows | columns: allocations, bytes of each, rest of the bytes, blocks alive, bytes of these less what is usual, the same two of the peak,
/// temporary ones |, the row of lost stacks behind those of stacks
///
/// Most stacks ask for the same size again and again: then most of these are zeros.
fn put_stacks(into: &mut Vec<u8>, profile: &HeapProfile) {
    let all = || profile.stacks.iter().chain([&profile.lost_stack]);
    let used = || all().enumerate().filter(|(_, sums)| !sums.is_empty());
    put_places(into, used().map(|(stack, _)| stack));
    let each = |sums: &Sums| sums.allocated_bytes.checked_div(sums.allocations).unwrap_or(0);
    let beyond = |bytes: u64, blocks: u64, sums: &Sums| {
        let more = bytes.wrapping_sub(blocks.wrapping_mul(each(sums))).cast_signed();
        (more << 1 ^ more >> 63).cast_unsigned()
    };
    put_column(into, used().map(|(_, sums)| sums.allocations));
    put_column(into, used().map(|(_, sums)| each(sums)));
    put_column(into, used().map(|(_, sums)| beyond(sums.allocated_bytes, sums.allocations, sums)));
    put_column(into, used().map(|(_, sums)| sums.live_blocks));
    put_column(into, used().map(|(_, sums)| beyond(sums.live_bytes, sums.live_blocks, sums)));
    put_column(into, used().map(|(_, sums)| sums.peak_blocks));
    put_column(into, used().map(|(_, sums)| beyond(sums.peak_bytes, sums.peak_blocks, sums)));
    put_column(into, used().map(|(_, sums)| sums.temporary));
}

fn take_stacks(take: &mut Take<'_>, stacks: usize) -> Option<(Vec<Sums>, Sums)> {
    let count = take.number()?;
    let mut columns = Columns::<9>::new(take)?;
    let mut all = vec![Sums::default(); stacks.checked_add(1)?];
    let mut next = 0_usize;
    for _ in 0..count {
        let [left_out, allocations, each, rest, live_blocks, live, peak_blocks, peak, temporary] =
            columns.row()?;
        let row = next.checked_add(usize::try_from(left_out).ok()?)?;
        let bytes = |blocks: u64, beyond: u64| {
            let more = (beyond >> 1).cast_signed() ^ -((beyond & 1).cast_signed());
            blocks.wrapping_mul(each).wrapping_add_signed(more)
        };
        *all.get_mut(row)? = Sums {
            allocations,
            allocated_bytes: bytes(allocations, rest),
            live_blocks,
            live_bytes: bytes(live_blocks, live),
            peak_blocks,
            peak_bytes: bytes(peak_blocks, peak),
            temporary,
        };
        next = row.checked_add(1)?;
    }
    columns.end()?;
    let lost = all.pop()?;
    Some((all, lost))
}

/// One more than the index of the thread that did all, or 0 and all of them.
fn put_threads(into: &mut Vec<u8>, profile: &HeapProfile) {
    let mut used = profile.threads.iter().enumerate().filter(|(_, sums)| !sums.is_empty());
    match (used.next(), used.next()) {
        (Some((alone, sums)), None) if *sums == profile.totals => into.put_number(alone as u64 + 1),
        _ => {
            into.put_number(0);
            put_sums(into, &profile.threads);
        }
    }
}

fn take_threads(take: &mut Take<'_>, threads: usize, totals: &Sums) -> Option<Vec<Sums>> {
    let Some(alone) = take.number()?.checked_sub(1) else { return take_sums(take, threads) };
    let mut all = vec![Sums::default(); threads];
    *all.get_mut(usize::try_from(alone).ok()?)? = *totals;
    Some(all)
}

fn take_sizes(take: &mut Take<'_>) -> Option<Vec<Sums>> {
    let count = take.number()?;
    let mut columns = Columns::<3>::new(take)?;
    let mut all = vec![Sums::default(); SIZE_CLASSES];
    let mut next = 0_usize;
    for _ in 0..count {
        let [left_out, allocations, allocated_bytes] = columns.row()?;
        let class = next.checked_add(usize::try_from(left_out).ok()?)?;
        *all.get_mut(class)? = of_size(allocations, allocated_bytes);
        next = class.checked_add(1)?;
    }
    columns.end()?;
    Some(all)
}
