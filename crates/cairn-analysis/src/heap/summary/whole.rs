//! The bytes of a whole summary: everything of a [`HeapRead`], each list a count and a column for
//! each field. Rows about which nothing is known are left out. `docs/book/reference/format.md` has
//! the layout.
//!
//! The bytes may come from anywhere and be damaged. Indices are compared with the tables of the
//! recording, columns have to end where they should, and sums by stack, thread and class of size
//! have to add up to the same: what does not is no answer, and the events are read instead.

use super::SummaryTables;
use super::columns::{Columns, numbers, put_column, put_places, put_steps};
use crate::heap::aggregate::{Anomalies, HeapProfile};
use crate::heap::heap_read::{HeapMark, HeapRead, MOST_MARKS};
use crate::heap::resident::{MOST_SAMPLES, Resident, UsageSample};
use crate::heap::sampling::{Errors, Sampling};
use crate::heap::timeline::{Bin, MAX_BINS, Timeline};
use crate::heap::{LIFETIME_CLASSES, Lifetimes, SIZE_CLASSES, Sums};
use cairn_recording::{Put, Take};

/// The bytes of the sums.
pub(super) fn put(read: &HeapRead) -> Vec<u8> {
    let mut into = Vec::new();
    let profile = &read.profile;
    into.put_number(mean_bytes(profile.sampling));
    let Anomalies { unknown_frees, reused_objects, bad_numbers } = profile.anomalies;
    let single = [
        profile.end_nanos,
        profile.peak_nanos,
        profile.peak_bytes_of_all,
        profile.live_bytes_of_all,
        read.unmatched_frees,
        unknown_frees,
        reused_objects,
        bad_numbers,
    ];
    single.into_iter().for_each(|number| into.put_number(number));
    for rows in [&[profile.totals, profile.lost_stack][..], &profile.stacks, &profile.threads, &profile.sizes]
    {
        put_sums(&mut into, rows);
    }
    put_lifetimes(&mut into, &profile.lifetimes);
    put_errors(&mut into, &profile.errors, &profile.stack_errors);
    put_timeline(&mut into, &profile.timeline);
    put_usage(&mut into, &read.usage);
    put_resident(&mut into, read.resident.as_ref());
    put_marks(&mut into, &read.marks, read.more_marks);
    put_own(&mut into, read.resident.as_ref(), &read.usage);
    into
}

/// Parses the bytes; `None` when they contradict each other or the recording.
pub(super) fn take(bytes: &[u8], tables: SummaryTables) -> Option<HeapRead> {
    let mut take = Take::new(bytes);
    let take = &mut take;
    if take.number()? != mean_bytes(tables.sampling) {
        return None;
    }
    let [end_nanos, peak_nanos, peak_bytes_of_all, live_bytes_of_all, unmatched_frees, a, b, c] =
        numbers(take)?;
    let anomalies = Anomalies { unknown_frees: a, reused_objects: b, bad_numbers: c };
    let first = take_sums(take, 2)?;
    let profile = HeapProfile {
        totals: *first.first()?,
        lost_stack: *first.get(1)?,
        stacks: take_sums(take, tables.stacks)?,
        threads: take_sums(take, tables.threads)?,
        sizes: take_sums(take, SIZE_CLASSES)?,
        lifetimes: take_lifetimes(take)?,
        errors: take_row_of_errors(take)?,
        stack_errors: take_stack_errors(take, tables)?,
        timeline: take_timeline(take)?,
        peak_nanos,
        peak_bytes_of_all,
        live_bytes_of_all,
        end_nanos,
        sampling: tables.sampling,
        anomalies,
    };
    let mut usage = take_usage(take)?;
    let mut resident = take_resident(take)?;
    let (marks, more_marks) = take_marks(take)?;
    take_own(take, resident.as_mut(), &mut usage)?;
    let read = HeapRead {
        profile,
        unmatched_frees,
        most_resident_bytes: resident.as_ref().map(|most| most.sample.resident_bytes),
        page_faults: usage.iter().map(|sample| sample.page_faults).max(),
        resident,
        usage,
        marks,
        more_marks,
        findings: Vec::new(),
    };
    (take.is_empty() && adds_up(&read.profile)).then_some(read)
}

/// Whether all ways to sum up lead to the same. Estimates are rounded in each row, so that they
/// need not.
pub(super) fn adds_up(profile: &HeapProfile) -> bool {
    if profile.sampling.is_estimate() {
        return true;
    }
    let sum = |rows: &[Sums], first: Sums| {
        rows.iter().fold(first, |mut sum, row| {
            sum.add(row);
            sum
        })
    };
    let totals = profile.totals;
    let sizes = sum(&profile.sizes, Sums::default());
    let by_size = [(sizes.allocations, totals.allocations), (sizes.allocated_bytes, totals.allocated_bytes)];
    // A brief summary has these two of sizes.
    let is_brief = profile.lifetimes.is_empty();
    sum(&profile.stacks, profile.lost_stack) == totals
        && sum(&profile.threads, Sums::default()) == totals
        && by_size.iter().all(|(size, total)| size == total)
        && (is_brief || sizes == totals)
}

fn mean_bytes(sampling: Sampling) -> u64 {
    match sampling {
        Sampling::All => 0,
        Sampling::Poisson { mean_bytes } => mean_bytes,
    }
}

/// | count of rows that are not empty | how many empty ones are in front of each | a column for each sum |
pub(super) fn put_sums(into: &mut Vec<u8>, rows: &[Sums]) {
    let used = || rows.iter().enumerate().filter(|(_, sums)| !sums.is_empty());
    put_places(into, used().map(|(row, _)| row));
    let fields: [fn(&Sums) -> u64; 7] = [
        |sums| sums.allocations,
        |sums| sums.allocated_bytes,
        |sums| sums.live_blocks,
        |sums| sums.live_bytes,
        |sums| sums.peak_blocks,
        |sums| sums.peak_bytes,
        |sums| sums.temporary,
    ];
    for field in fields {
        put_column(into, used().map(|(_, sums)| field(sums)));
    }
}

pub(super) fn take_sums(take: &mut Take<'_>, rows: usize) -> Option<Vec<Sums>> {
    let count = take.number()?;
    let mut columns = Columns::<8>::new(take)?;
    let mut all = vec![Sums::default(); rows];
    let mut next = 0_usize;
    for _ in 0..count {
        let [
            left_out,
            allocations,
            allocated_bytes,
            live_blocks,
            live_bytes,
            peak_blocks,
            peak_bytes,
            temporary,
        ] = columns.row()?;
        let row = next.checked_add(usize::try_from(left_out).ok()?)?;
        *all.get_mut(row)? = Sums {
            allocations,
            allocated_bytes,
            live_blocks,
            live_bytes,
            peak_blocks,
            peak_bytes,
            temporary,
        };
        next = row + 1;
    }
    columns.end()?;
    Some(all)
}

fn put_lifetimes(into: &mut Vec<u8>, lifetimes: &[Lifetimes]) {
    put_column(into, lifetimes.iter().map(|lifetime| lifetime.blocks));
    put_column(into, lifetimes.iter().map(|lifetime| lifetime.bytes));
}

fn take_lifetimes(take: &mut Take<'_>) -> Option<Vec<Lifetimes>> {
    let mut columns = Columns::<2>::new(take)?;
    let mut all = Vec::with_capacity(LIFETIME_CLASSES);
    for _ in 0..LIFETIME_CLASSES {
        let [blocks, bytes] = columns.row()?;
        all.push(Lifetimes { blocks, bytes });
    }
    columns.end()?;
    Some(all)
}

fn of_errors(errors: &Errors) -> [f64; 6] {
    let Errors { allocations, allocated_bytes, live_blocks, live_bytes, peak_blocks, peak_bytes } = *errors;
    [allocations, allocated_bytes, live_blocks, live_bytes, peak_blocks, peak_bytes]
}

/// | those of all: six doubles | count of stacks that have some | how many others are in front of each | six doubles for each |
fn put_errors(into: &mut Vec<u8>, all: &Errors, stacks: &[Errors]) {
    let put_row = |into: &mut Vec<u8>, errors: &Errors| {
        of_errors(errors).into_iter().for_each(|error| into.extend(error.to_bits().to_le_bytes()));
    };
    put_row(into, all);
    let used = || stacks.iter().enumerate().filter(|(_, errors)| **errors != Errors::default());
    put_places(into, used().map(|(row, _)| row));
    let mut rows = Vec::new();
    used().for_each(|(_, errors)| put_row(&mut rows, errors));
    into.put_bytes(&rows);
}

fn take_row_of_errors(take: &mut Take<'_>) -> Option<Errors> {
    let mut row = [0.0; 6];
    for error in &mut row {
        let (bits, rest) = take.bytes.split_first_chunk()?;
        take.bytes = rest;
        *error = Some(f64::from_bits(u64::from_le_bytes(*bits))).filter(|it| it.is_finite() && *it >= 0.0)?;
    }
    let [allocations, allocated_bytes, live_blocks, live_bytes, peak_blocks, peak_bytes] = row;
    Some(Errors { allocations, allocated_bytes, live_blocks, live_bytes, peak_blocks, peak_bytes })
}

fn take_stack_errors(take: &mut Take<'_>, tables: SummaryTables) -> Option<Vec<Errors>> {
    let count = take.number()?;
    let mut steps = Columns::<1>::new(take)?;
    let mut rows = Take::new(take.column()?);
    let stacks = if tables.sampling.is_estimate() { tables.stacks } else { 0 };
    let mut all = vec![Errors::default(); stacks];
    let mut next = 0_usize;
    for _ in 0..count {
        let [left_out] = steps.row()?;
        let row = next.checked_add(usize::try_from(left_out).ok()?)?;
        *all.get_mut(row)? = take_row_of_errors(&mut rows)?;
        next = row + 1;
    }
    steps.end()?;
    rows.is_empty().then_some(all)
}

/// | width of a bin | count | columns |
fn put_timeline(into: &mut Vec<u8>, timeline: &Timeline) {
    let bins = &timeline.bins;
    into.put_number(timeline.bin_nanos);
    into.put_number(bins.len() as u64);
    let fields: [fn(&Bin) -> u64; 5] = [
        |bin| bin.most_bytes,
        |bin| bin.last_bytes,
        |bin| bin.last_blocks,
        |bin| bin.allocations,
        |bin| bin.allocated_bytes,
    ];
    for field in fields {
        put_steps(into, bins.iter().map(field));
    }
}

fn take_timeline(take: &mut Take<'_>) -> Option<Timeline> {
    let [bin_nanos, count] = numbers(take)?;
    let mut columns = Columns::<5>::new(take)?;
    if bin_nanos == 0 || count > MAX_BINS as u64 {
        return None;
    }
    let mut row = [0; 5];
    let mut bins = Vec::new();
    for _ in 0..count {
        columns.step(&mut row)?;
        let [most_bytes, last_bytes, last_blocks, allocations, allocated_bytes] = row;
        bins.push(Bin { most_bytes, last_bytes, last_blocks, allocations, allocated_bytes });
    }
    columns.end()?;
    Some(Timeline { bin_nanos, bins })
}

fn of_sample(sample: &UsageSample) -> [u64; 4] {
    [sample.nanos, sample.resident_bytes, sample.page_faults, sample.threads.into()]
}

fn sample([nanos, resident_bytes, page_faults, threads]: [u64; 4]) -> Option<UsageSample> {
    let threads = u32::try_from(threads).ok()?;
    Some(UsageSample { nanos, resident_bytes, own_bytes: None, page_faults, threads })
}

fn put_usage(into: &mut Vec<u8>, usage: &[UsageSample]) {
    into.put_number(usage.len() as u64);
    for field in 0..4 {
        put_steps(into, usage.iter().map(|sample| of_sample(sample)[field]));
    }
}

fn take_usage(take: &mut Take<'_>) -> Option<Vec<UsageSample>> {
    let count = take.number()?;
    let mut columns = Columns::<4>::new(take)?;
    if count > MOST_SAMPLES as u64 {
        return None;
    }
    let mut row = [0; 4];
    let mut usage = Vec::new();
    for _ in 0..count {
        columns.step(&mut row)?;
        usage.push(sample(row)?);
    }
    columns.end()?;
    Some(usage)
}

/// Writes cairn's own memory, behind all else and only where it is known of a sample.
///
/// The layout is | at the moment of most resident memory | column: of each sample |, each one
/// more, or 0 when it is not known.
pub(super) fn put_own(into: &mut Vec<u8>, resident: Option<&Resident>, usage: &[UsageSample]) {
    let of = |sample: &UsageSample| sample.own_bytes.map_or(0, |bytes| bytes.saturating_add(1));
    let most = resident.map_or(0, |most| of(&most.sample));
    if most > 0 || usage.iter().any(|sample| sample.own_bytes.is_some()) {
        into.put_number(most);
        put_column(into, usage.iter().map(of));
    }
}

pub(super) fn take_own(
    take: &mut Take<'_>,
    resident: Option<&mut Resident>,
    usage: &mut [UsageSample],
) -> Option<()> {
    if take.is_empty() {
        return Some(());
    }
    let most = take.number()?;
    if let Some(resident) = resident {
        resident.sample.own_bytes = most.checked_sub(1);
    }
    let mut columns = Columns::<1>::new(take)?;
    for sample in usage {
        let [own] = columns.row()?;
        sample.own_bytes = own.checked_sub(1);
    }
    columns.end()
}

/// | 1, or 0 when nothing was sampled | the sample | held | mapped | count | columns: stacks, bytes |
pub(super) fn put_resident(into: &mut Vec<u8>, resident: Option<&Resident>) {
    into.put_number(resident.is_some().into());
    let Some(resident) = resident else { return };
    of_sample(&resident.sample).into_iter().for_each(|number| into.put_number(number));
    into.put_number(resident.held_bytes);
    into.put_number(resident.mapped_bytes);
    into.put_number(resident.mapped_by_stack.len() as u64);
    put_column(into, resident.mapped_by_stack.iter().map(|&(stack, _)| stack.into()));
    put_column(into, resident.mapped_by_stack.iter().map(|&(_, bytes)| bytes));
}

pub(super) fn take_resident(take: &mut Take<'_>) -> Option<Option<Resident>> {
    match take.number()? {
        0 => return Some(None),
        1 => {}
        _ => return None,
    }
    let sample = sample(numbers(take)?)?;
    let [held_bytes, mapped_bytes, count] = numbers(take)?;
    let mut columns = Columns::<2>::new(take)?;
    let mut mapped_by_stack = Vec::new();
    for _ in 0..count {
        let [stack, bytes] = columns.row()?;
        mapped_by_stack.push((u32::try_from(stack).ok()?, bytes));
    }
    columns.end()?;
    Some(Some(Resident { sample, held_bytes, mapped_bytes, mapped_by_stack }))
}

/// | count | columns: times, threads (one more, 0 when not known) | texts | marks beyond these |
fn put_marks(into: &mut Vec<u8>, marks: &[HeapMark], more: u64) {
    into.put_number(marks.len() as u64);
    put_steps(into, marks.iter().map(|mark| mark.nanos));
    put_column(into, marks.iter().map(|mark| u64::from(mark.thread.wrapping_add(1))));
    marks.iter().for_each(|mark| into.put_bytes(mark.text.as_bytes()));
    into.put_number(more);
}

fn take_marks(take: &mut Take<'_>) -> Option<(Vec<HeapMark>, u64)> {
    let count = take.number()?;
    let mut times = Columns::<1>::new(take)?;
    let mut threads = Columns::<1>::new(take)?;
    if count > MOST_MARKS as u64 {
        return None;
    }
    let mut marks = Vec::new();
    let mut time = [0];
    for _ in 0..count {
        times.step(&mut time)?;
        let [thread] = threads.row()?;
        let thread = u32::try_from(thread).ok()?.wrapping_sub(1);
        let text = std::str::from_utf8(take.column()?).ok()?.to_owned();
        marks.push(HeapMark { nanos: time[0], thread, text });
    }
    times.end()?;
    threads.end()?;
    Some((marks, take.number()?))
}
