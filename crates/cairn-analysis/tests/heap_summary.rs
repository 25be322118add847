//! Summaries of recordings: they equal what reading the events gives, in every field, or they are
//! not used.

#[path = "../../cairn-recording/tests/support/spool.rs"]
mod spool;

use std::path::{Path, PathBuf};

use cairn_analysis::heap::slices::Slices;
use cairn_analysis::heap::{HeapRead, HeapRecording, Sampling, Scope, SummarySize};
use cairn_format::recording::{CHUNK_HEADER_BYTES, ChunkHeader, ChunkKind, Lane, Sample};
use cairn_recording::{Finding, MappingKind, Recording, pack};
use proptest::prelude::*;
use spool::{Program, Random};

const LOST: u32 = u32::MAX;
const WHOLE: SummarySize = SummarySize::Whole { most_bytes: u64::MAX };
const BRIEF: SummarySize = SummarySize::Brief { most_bytes: u64::MAX };
const EVERYTHING: Scope =
    Scope { from_nanos: 0, to_nanos: u64::MAX, sizes: 0..=u64::MAX, threads: None, stacks: None };

/// A file that is gone when the test is.
struct TestFile(PathBuf);

impl TestFile {
    fn new(name: &str, bytes: &[u8]) -> Self {
        let name = format!("cairn-summary-{name}-{}-{:?}", std::process::id(), std::thread::current().id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, bytes).unwrap();
        Self(path)
    }

    fn heap(&self) -> HeapRecording {
        HeapRecording::new(Recording::open(&self.0).unwrap())
    }

    fn bytes(&self) -> Vec<u8> {
        std::fs::read(&self.0).unwrap()
    }
}

impl Drop for TestFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Builds a packed recording of a program that does everything that is summed up.
///
/// It has threads, marks, mappings, samples, losses, and frees of older blocks. With `sampled`,
/// the recorder picks some of the allocations.
fn packed(seed: u64, steps: u32, sampled: bool) -> Vec<u8> {
    let mut random = Random(seed);
    let mut program = Program::new(3, 4);
    if sampled {
        program.spool.facts(&[("command", "program"), ("sample_bytes", "4096")]);
    }
    let mut stacks = program.spool.stacks(40);
    stacks.push(LOST);
    for step in 0..steps {
        program.counter += random.below(60_000);
        let thread = 1 + random.below(3) as u32;
        let stack = stacks[random.below(stacks.len() as u64) as usize];
        match random.below(20) {
            0..=10 => {
                program.alloc(thread, random.below(5000), stack);
                // Freed at once, as temporary blocks are.
                if random.below(3) == 0 {
                    program.free(thread, program.live.len() - 1);
                }
            }
            11..=16 if !program.live.is_empty() => {
                let index = random.below(program.live.len() as u64) as usize;
                program.free(thread, index);
            }
            17 => {
                let counter = program.counter;
                let sample = Sample {
                    counter,
                    resident_bytes: 1 << 20 | random.below(1 << 20),
                    page_faults: u64::from(step),
                    threads: 3,
                };
                program.spool.write(thread, Lane::Outer, counter, |sink| sink.sample(&sample));
            }
            18 => {
                let (counter, address) = (program.counter, 0x7000_0000 + (random.below(8) << 12));
                let kind = if random.below(3) == 0 { MappingKind::Unmap } else { MappingKind::Map };
                program.spool.write(thread, Lane::Outer, counter, |sink| {
                    sink.mapping(kind, counter, address, 8192, stack)
                });
            }
            19 if random.below(4) == 0 => program.free_older(thread, 0x1234_5000 + (random.below(100) << 5)),
            _ => {
                let counter = program.counter;
                program.spool.mark(thread, counter, stacks[0], &format!("step {step} of \u{1fab6}"));
            }
        }
    }
    let spool = Recording::from_bytes(program.finish()).unwrap();
    let mut packed = Vec::new();
    pack(&spool, &mut packed).unwrap();
    packed
}

fn read_all(heap: &HeapRecording) -> (HeapRead, Slices) {
    heap.read_sliced(EVERYTHING, 256).unwrap()
}

/// The offset, header and place of the body of each chunk of a kind.
fn chunks(bytes: &[u8], kind: ChunkKind) -> Vec<(usize, ChunkHeader)> {
    let (mut at, mut found) = (64, Vec::new());
    while let Some(header) = bytes.get(at..).and_then(ChunkHeader::read) {
        if header.kind == kind {
            found.push((at, header));
        }
        at += (CHUNK_HEADER_BYTES + header.stored_bytes as usize).next_multiple_of(8);
        // Behind an index is a trailer.
        at += if header.kind == ChunkKind::INDEX { 16 } else { 0 };
    }
    found
}

/// Returns the answer of sums for events that [`spoil_events`] made unreadable.
///
/// It checks that the damage is reported.
fn in_spite_of_damage(mut read: HeapRead) -> HeapRead {
    let is_reported = |finding: &Finding| matches!(finding, Finding::DamagedBehindSums { .. });
    let events = read.profile.totals.allocations;
    assert!(read.findings.iter().all(is_reported), "{:?}", read.findings);
    assert!(events == 0 || !read.findings.is_empty(), "damage that no finding reports");
    read.findings.clear();
    read
}

fn all_in_spite_of_damage(heap: &HeapRecording) -> (HeapRead, Slices) {
    let (read, slices) = read_all(heap);
    (in_spite_of_damage(read), slices)
}

fn brief_in_spite_of_damage(heap: &HeapRecording) -> HeapRead {
    in_spite_of_damage(heap.read_brief(EVERYTHING).unwrap())
}

/// Makes all events unreadable, and nothing that opening reads.
fn spoil_events(bytes: &mut [u8]) {
    let kinds = [ChunkKind::HEAP, ChunkKind::HEAP_STREAM];
    for (at, header) in kinds.into_iter().flat_map(|kind| chunks(bytes, kind)).collect::<Vec<_>>() {
        bytes[at + CHUNK_HEADER_BYTES..][..header.stored_bytes as usize].fill(0xff);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn whole_summary_equals_reading_the_events(seed in any::<u64>(), steps in 0_u32..900, sampled in any::<bool>()) {
        let file = TestFile::new("same", &packed(seed, steps, sampled));
        let before = file.bytes();
        let expected = read_all(&file.heap());
        prop_assert_eq!(expected.0.profile.sampling != Sampling::All, sampled);
        let retained = file.heap().write_summary(&file.0, WHOLE).unwrap();
        prop_assert_eq!(&retained.read, &expected.0);
        let added = retained.added.unwrap() as usize;
        let mut bytes = file.bytes();
        prop_assert!(added > 0 && bytes.len() == before.len() + added);
        prop_assert!(bytes.starts_with(&before));
        prop_assert!(file.heap().findings().is_empty(), "{:?}", file.heap().findings());
        prop_assert_eq!(&read_all(&file.heap()), &expected);
        prop_assert_eq!(&file.heap().read(EVERYTHING).unwrap(), &expected.0);
        // And no event was looked at for it.
        spoil_events(&mut bytes);
        std::fs::write(&file.0, &bytes).unwrap();
        prop_assert_eq!(&all_in_spite_of_damage(&file.heap()), &expected);
        // Once is enough.
        prop_assert_eq!(file.heap().write_summary(&file.0, WHOLE).unwrap().added.unwrap(), 0);
        prop_assert_eq!(file.bytes(), bytes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn brief_summary_equals_reading_the_events(seed in any::<u64>(), steps in 0_u32..900) {
        let file = TestFile::new("brief", &packed(seed, steps, false));
        let whole = read_all(&file.heap());
        let brief = file.heap().read_brief(EVERYTHING).unwrap();
        let (all, picture) = (&whole.0.profile, &brief.profile);
        prop_assert_eq!(&picture.stacks, &all.stacks);
        prop_assert_eq!(&picture.threads, &all.threads);
        prop_assert_eq!((picture.totals, picture.lost_stack), (all.totals, all.lost_stack));
        prop_assert_eq!((picture.peak_nanos, picture.end_nanos), (all.peak_nanos, all.end_nanos));
        prop_assert_eq!((&brief.resident, brief.unmatched_frees), (&whole.0.resident, whole.0.unmatched_frees));
        let before = file.bytes();
        let retained = file.heap().write_summary(&file.0, BRIEF).unwrap();
        prop_assert_eq!(&retained.read, &whole.0);
        let added = retained.added.unwrap() as usize;
        let bytes = file.bytes();
        prop_assert!(added > 0 && bytes.len() == before.len() + added && bytes.starts_with(&before));
        prop_assert!(file.heap().findings().is_empty(), "{:?}", file.heap().findings());
        prop_assert_eq!(&file.heap().read_brief(EVERYTHING).unwrap(), &brief);
        // Once is enough, and who asks for more is answered from the events.
        prop_assert_eq!(file.heap().write_summary(&file.0, BRIEF).unwrap().added.unwrap(), 0);
        prop_assert!(!file.heap().has_summary().unwrap());
        prop_assert_eq!(&read_all(&file.heap()), &whole);
        let mut spoiled = bytes.clone();
        spoil_events(&mut spoiled);
        let heap = HeapRecording::new(Recording::from_bytes(spoiled).unwrap());
        prop_assert_eq!(&brief_in_spite_of_damage(&heap), &brief);
        // All sums go in front of these.
        prop_assert!(file.heap().write_summary(&file.0, WHOLE).unwrap().added.unwrap() > 0);
        let mut spoiled = file.bytes();
        spoil_events(&mut spoiled);
        let heap = HeapRecording::new(Recording::from_bytes(spoiled).unwrap());
        prop_assert_eq!(&all_in_spite_of_damage(&heap), &whole);
        prop_assert_eq!(&brief_in_spite_of_damage(&heap), &brief);
    }
}

#[test]
fn brief_curve_is_that_of_the_events_in_fewer_steps() {
    let file = TestFile::new("curve", &packed(77, 20_000, false));
    let fine = file.heap().read(EVERYTHING).unwrap().profile.timeline;
    let brief = file.heap().read_brief(EVERYTHING).unwrap();
    let coarse = &brief.profile.timeline;
    assert!(fine.bins.len() > 256 && (129..=256).contains(&coarse.bins.len()), "{}", coarse.bins.len());
    let peak = brief.profile.peak_bytes_of_all;
    assert_eq!(coarse.bins.iter().map(|bin| bin.most_bytes).max(), Some(peak));
    let in_each = (coarse.bin_nanos / fine.bin_nanos) as usize;
    for (step, bins) in coarse.bins.iter().zip(fine.bins.chunks(in_each)) {
        let most = bins.iter().map(|bin| bin.most_bytes).max().unwrap();
        assert!(step.most_bytes.abs_diff(most) <= peak / 255, "{} for {most}", step.most_bytes);
    }
}

/// The file with one bit of a byte of that chunk changed; if it is repaired, with a checksum that
/// fits.
fn with_other_bit(
    bytes: &[u8],
    (at, header): (usize, ChunkHeader),
    place: usize,
    random: &mut Random,
    repaired: bool,
) -> Vec<u8> {
    let mut changed = bytes.to_vec();
    changed[place] ^= 1 << random.below(8);
    if repaired {
        let body = at + CHUNK_HEADER_BYTES..at + CHUNK_HEADER_BYTES + header.stored_bytes as usize;
        let header = ChunkHeader { check: crc32fast::hash(&changed[body]), ..header };
        changed[at..at + CHUNK_HEADER_BYTES].copy_from_slice(&header.to_bytes());
    }
    changed
}

#[test]
fn damaged_brief_summary_is_reported_and_events_are_read() {
    let file = TestFile::new("brief-damaged", &packed(3, 600, false));
    let expected = file.heap().read_brief(EVERYTHING).unwrap();
    assert!(file.heap().write_summary(&file.0, BRIEF).unwrap().added.unwrap() > 0);
    let bytes = file.bytes();
    let mut random = Random(9);
    let (at, header) = chunks(&bytes, ChunkKind::SUMS)[0];
    let body = at + CHUNK_HEADER_BYTES..at + CHUNK_HEADER_BYTES + header.stored_bytes as usize;
    let mut refused = 0;
    for place in body.clone() {
        for repaired in [false, true] {
            let changed = with_other_bit(&bytes, (at, header), place, &mut random, repaired);
            let heap = HeapRecording::new(Recording::from_bytes(changed).unwrap());
            let mut read = heap.read_brief(EVERYTHING).unwrap();
            let findings = std::mem::take(&mut read.findings);
            if findings.is_empty() {
                // A writer that repairs checksums can state another peak, or another layout.
                assert!(repaired, "byte {place}");
            } else {
                assert!(matches!(findings[..], [Finding::UnusableSums { .. }]), "{findings:?}");
                assert!(read == expected, "byte {place}");
                refused += 1;
            }
        }
    }
    assert!(refused > body.len(), "{refused} of {}", body.len());
}

#[test]
fn brief_summary_is_written_where_there_is_room() {
    let file = TestFile::new("room", &packed(5, 600, false));
    let before = file.bytes();
    assert_eq!(
        file.heap().write_summary(&file.0, SummarySize::Brief { most_bytes: 40 }).unwrap().added.unwrap(),
        0
    );
    // So few events are read at once.
    assert_eq!(file.heap().write_summary(&file.0, SummarySize::Small).unwrap().added.unwrap(), 0);
    assert_eq!(file.bytes(), before);
    let sampled = TestFile::new("estimates", &packed(5, 600, true));
    assert_eq!(sampled.heap().write_summary(&sampled.0, BRIEF).unwrap().added.unwrap(), 0);
}

#[test]
fn summary_answers_for_everything_alone() {
    let file = TestFile::new("parts", &packed(5, 3000, false));
    let scopes = [
        Scope { from_nanos: 5_000_000, ..EVERYTHING },
        Scope { to_nanos: 20_000_000, ..EVERYTHING },
        Scope { sizes: 0..=100, ..EVERYTHING },
        Scope { threads: Some(vec![1]), ..EVERYTHING },
        Scope { stacks: Some(vec![true; 20]), ..EVERYTHING },
    ];
    let read = |scope: &Scope| file.heap().read(scope.clone()).unwrap();
    let expected: Vec<HeapRead> = scopes.iter().map(read).collect();
    assert!(file.heap().write_summary(&file.0, WHOLE).unwrap().added.unwrap() > 0);
    for (scope, expected) in scopes.iter().zip(&expected) {
        assert_eq!(&read(scope), expected, "{scope:?}");
        assert_ne!(expected.profile.totals, read(&EVERYTHING).profile.totals, "{scope:?}");
    }
}

#[test]
fn summary_slices_widen_and_then_go_when_room_is_short() {
    let bytes = packed(11, 20_000, false);
    let whole = TestFile::new("wide", &bytes);
    let expected = read_all(&whole.heap());
    let added = whole.heap().write_summary(&whole.0, WHOLE).unwrap().added.unwrap();
    let (mut counts, mut refused) = (Vec::new(), 0);
    for part in [2, 4, 8, 16, 32, 64, 1024] {
        let file = TestFile::new("narrow", &bytes);
        let retained =
            file.heap().write_summary(&file.0, SummarySize::Whole { most_bytes: added / part }).unwrap();
        let grown = file.bytes().len() - bytes.len();
        assert_eq!(retained.added.unwrap(), grown as u64);
        // The index comes with it.
        assert!(grown as u64 <= added / part + 4096, "{grown} of {}", added / part);
        refused += u32::from(grown == 0);
        let (read, slices) = read_all(&file.heap());
        assert_eq!(read, expected.0);
        counts.push(slices.count);
        let mut coarse = expected.1.clone();
        while coarse.count > slices.count {
            coarse.halve();
        }
        assert_eq!(slices, coarse);
    }
    assert!(counts[0] < expected.1.count && counts[0] >= 16, "{counts:?}");
    // Without stored slices, they are of the events.
    assert_eq!(counts.last(), Some(&expected.1.count));
    assert!(refused >= 1, "{counts:?}");
}

/// Changes one place of a file after the other, and checks the answer each time.
fn check_changed(name: &str, kind: ChunkKind, repaired: bool) -> (u32, u32) {
    let file = TestFile::new(name, &packed(3, 600, false));
    let expected = read_all(&file.heap());
    file.heap().write_summary(&file.0, WHOLE).unwrap().added.unwrap();
    let bytes = file.bytes();
    let (mut used, mut refused) = (0, 0);
    let mut random = Random(9);
    for (at, header) in chunks(&bytes, kind) {
        let body = at + CHUNK_HEADER_BYTES..at + CHUNK_HEADER_BYTES + header.stored_bytes as usize;
        // Every place would take minutes.
        for place in body.clone().step_by((body.len() / 200).max(1)) {
            let changed = with_other_bit(&bytes, (at, header), place, &mut random, repaired);
            let heap = HeapRecording::new(Recording::from_bytes(changed).unwrap());
            let (mut read, slices) = read_all(&heap);
            let findings = std::mem::take(&mut read.findings);
            if findings.is_empty() {
                used += 1;
            } else {
                assert!(matches!(findings[..], [Finding::UnusableSums { .. }]), "{findings:?}");
                assert!((read, slices) == expected, "byte {place}");
                refused += 1;
            }
        }
    }
    (used, refused)
}

#[test]
fn damaged_summary_is_reported_and_events_are_read() {
    for kind in [ChunkKind::SUMS, ChunkKind::SLICES] {
        let (used, refused) = check_changed("damaged", kind, false);
        assert!(used == 0 && refused > 100, "{used} used, {refused} refused");
    }
}

#[test]
fn inconsistent_summary_is_reported_and_events_are_read() {
    for kind in [ChunkKind::SUMS, ChunkKind::SLICES] {
        // A writer that repairs checksums can state another peak; sums that contradict each other
        // are found.
        let (_, refused) = check_changed("repaired", kind, true);
        assert!(refused > 100, "{refused} refused");
    }
}

/// Puts another file's events in front of stored sums.
#[test]
fn summary_of_another_state_is_refused() {
    let file = TestFile::new("state", &packed(21, 2000, false));
    let plain = file.bytes();
    file.heap().write_summary(&file.0, WHOLE).unwrap().added.unwrap();
    let retained = file.bytes();
    let first = |bytes: &[u8], kind| chunks(bytes, kind)[0].0;
    let sums = &retained[first(&retained, ChunkKind::SUMS)..first(&retained[..], ChunkKind::SUMS) + {
        let (_, header) = chunks(&retained, ChunkKind::SUMS)[0];
        (CHUNK_HEADER_BYTES + header.stored_bytes as usize).next_multiple_of(8)
    }];
    let other = packed(22, 2000, false);
    // In front of the index, which knows nothing of them, and without it: a reader finds them by a
    // scan.
    let index = first(&other, ChunkKind::INDEX);
    let bytes = [&other[..index], sums].concat();
    let heap = HeapRecording::new(Recording::from_bytes(bytes).unwrap());
    assert!(heap.findings().contains(&Finding::NoIndex));
    let read = heap.read(EVERYTHING).unwrap();
    let expected = HeapRecording::new(Recording::from_bytes(other).unwrap()).read(EVERYTHING).unwrap();
    assert!(matches!(read.findings[..], [Finding::UnusableSums { .. }]), "{:?}", read.findings);
    assert_eq!(read.profile, expected.profile);
    // Events of its own file are found so too.
    let own = [&plain[..first(&plain, ChunkKind::INDEX)], sums].concat();
    let mut spoiled = own.clone();
    spoil_events(&mut spoiled);
    let expected = HeapRecording::new(Recording::from_bytes(plain).unwrap()).read(EVERYTHING).unwrap();
    for bytes in [own, spoiled] {
        let heap = HeapRecording::new(Recording::from_bytes(bytes).unwrap());
        assert_eq!(heap.read(EVERYTHING).map(in_spite_of_damage_if_any).unwrap(), expected);
    }
}

fn in_spite_of_damage_if_any(read: HeapRead) -> HeapRead {
    if read.findings.is_empty() { read } else { in_spite_of_damage(read) }
}

#[test]
fn cut_recording_answers_from_its_events() {
    let file = TestFile::new("cut", &packed(31, 400, false));
    let plain = file.bytes();
    file.heap().write_summary(&file.0, WHOLE).unwrap().added.unwrap();
    let bytes = file.bytes();
    for length in (64..bytes.len()).step_by(29) {
        let cut = &bytes[..length];
        let heap = HeapRecording::new(Recording::from_bytes(cut.to_vec()).unwrap());
        let read = heap.read(EVERYTHING).unwrap();
        // As if nothing had been added: of the part in front of it.
        let part =
            HeapRecording::new(Recording::from_bytes(cut[..length.min(plain.len())].to_vec()).unwrap());
        let expected = part.read(EVERYTHING).unwrap();
        assert!(read.profile == expected.profile && read.usage == expected.usage, "{length}");
    }
}

#[test]
fn partly_written_summary_is_found_and_harmless() {
    let file = TestFile::new("part", &packed(41, 400, false));
    let plain = file.bytes();
    let expected = read_all(&file.heap());
    file.heap().write_summary(&file.0, WHOLE).unwrap().added.unwrap();
    let bytes = file.bytes();
    // Behind whole chunks: the trailer in the middle is no damage.
    for (at, _) in chunks(&bytes, ChunkKind::SUMS).into_iter().chain(chunks(&bytes, ChunkKind::SLICES)) {
        let heap = HeapRecording::new(Recording::from_bytes(bytes[..at].to_vec()).unwrap());
        let is_plain = at == plain.len();
        let shown: &[Finding] = if is_plain { &[] } else { &[Finding::NoIndex] };
        assert_eq!(heap.findings(), shown);
        assert_eq!(read_all(&heap), expected);
    }
}

#[test]
fn summary_is_written_to_closed_unchanged_recordings_alone() {
    let bytes = packed(51, 400, false);
    let index = chunks(&bytes, ChunkKind::INDEX)[0].0;
    let summary = chunks(&bytes, ChunkKind::SUMMARY)[0].0;
    let is_added = |file: &TestFile| {
        let before = file.bytes();
        let added = file.heap().write_summary(&file.0, WHOLE).unwrap().added.unwrap();
        assert_eq!(file.bytes().len(), before.len() + added as usize);
        added > 0
    };
    assert!(is_added(&TestFile::new("closed", &bytes)));
    assert!(!is_added(&TestFile::new("no-index", &bytes[..index])));
    assert!(!is_added(&TestFile::new("not-closed", &bytes[..summary])));
    let spool = {
        let mut program = Program::new(1, 4);
        let stacks = program.spool.stacks(2);
        program.alloc(1, 100, stacks[0]);
        program.finish()
    };
    assert!(!is_added(&TestFile::new("spool", &spool)));
    // Another process has put another file there.
    let (one, other) = (TestFile::new("one", &bytes), TestFile::new("other", &packed(52, 400, false)));
    let before = other.bytes();
    assert_eq!(one.heap().write_summary(&other.0, WHOLE).unwrap().added.unwrap(), 0);
    assert_eq!(other.bytes(), before);
    let retained = one.heap().write_summary(Path::new("/nowhere/at/all"), WHOLE).unwrap();
    assert!(retained.added.unwrap_err().to_string().contains("/nowhere/at/all"));
    assert_eq!(retained.read, one.heap().read(EVERYTHING).unwrap());
}

/// The layout of stored sums is as much a promise as that of the events.
#[test]
fn version_1_answers_from_its_whole_summary() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/recordings/v1");
    let from_events = Recording::open(format!("{directory}/packed.cairn")).unwrap();
    let expected = read_all(&HeapRecording::new(from_events));
    let mut bytes = std::fs::read(format!("{directory}/summary.cairn")).unwrap();
    spoil_events(&mut bytes);
    let heap = HeapRecording::new(Recording::from_bytes(bytes).unwrap());
    assert!(heap.has_summary().unwrap());
    assert_eq!(all_in_spite_of_damage(&heap), expected);
}

#[test]
fn version_1_answers_from_its_brief_summary() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/recordings/v1");
    let from_events = Recording::open(format!("{directory}/packed.cairn")).unwrap();
    let expected = HeapRecording::new(from_events).read_brief(EVERYTHING).unwrap();
    let mut bytes = std::fs::read(format!("{directory}/brief.cairn")).unwrap();
    spoil_events(&mut bytes);
    let heap = HeapRecording::new(Recording::from_bytes(bytes).unwrap());
    assert_eq!(brief_in_spite_of_damage(&heap), expected);
}
