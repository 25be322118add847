//! Recordings: every record survives writing and reading, a cut is seen, and no bytes make a reader
//! fail otherwise.

use cairn_format::recording::{
    ChunkHeader, ChunkKind, Clock, Code, CounterKind, EPOCHS, EndReason, FileHeader, HeaderError,
    InterpreterState, Lane, LineTableFormat, LoadedModule, LossKind, MappingKind, MarkValue, PcKind, Record,
    RecordSink, Records, SEGMENT_BYTES, SEGMENT_HEADER_BYTES, Sample, SegmentError, SegmentHeader, Shape,
    SinkTooSmall, ThreadEvent, WordIter, epoch_of,
};
use proptest::collection::vec;
use proptest::prelude::*;

const HEADER: FileHeader = FileHeader {
    shape: Shape::Spool,
    address_bits: 64,
    machine: 62,
    counter: CounterKind::TimeStampCounter,
    process: 4711,
    start_wall_nanos: 1_800_000_000_000_000_000,
    start_monotonic_nanos: 123_456_789,
    start_counter: 987_654_321,
    stamp_interval: 8,
};

fn bytes_of(slots: &[u64]) -> Vec<u8> {
    slots.iter().flat_map(|slot| slot.to_le_bytes()).collect()
}

fn write(sink: &mut RecordSink<'_>, record: &Record<'_>) -> Result<(), SinkTooSmall> {
    match *record {
        Record::Alloc { address, size_bytes, epoch, stack } => sink.alloc(address, size_bytes, epoch, stack),
        Record::Free { address, ticket } => sink.free(address, ticket),
        Record::Move { address, ticket } => sink.moved(address, ticket),
        Record::Stamp { ticks } => sink.stamp(ticks),
        Record::Pc { number, kind, address, module } => sink.pc(number, kind, address, module),
        Record::TreeWords { first, words } => sink.tree_words(first, words),
        Record::ModuleLoaded(module) => sink.module_loaded(&module),
        Record::ModuleUnloaded { number, counter } => sink.module_unloaded(number, counter),
        Record::Mark { counter, stack, skip, value, text, .. } => {
            sink.mark(counter, stack, skip, value, text)
        }
        Record::Thread { counter, event } => sink.thread(counter, event),
        Record::Mapping { kind, counter, address, size_bytes, stack } => {
            sink.mapping(kind, counter, address, size_bytes, stack)
        }
        Record::Sample(sample) => sink.sample(&sample),
        Record::Loss { kind, count } => sink.loss(kind, count),
        Record::Clock(clock) => sink.clock(&clock),
        Record::End { reason, counter } => sink.end(reason, counter),
        Record::Code(code) => sink.code(&code),
        Record::CodeLines { code, offset, bytes } => sink.code_lines(code, offset, bytes),
        Record::Interpreter { version, state } => sink.interpreter(version, state),
        ref other => panic!("no writer for {other:?}"),
    }
}

/// Returns one record of every kind, with values at the edges of their fields.
fn samples() -> Vec<Record<'static>> {
    let address = (1 << 48) - 1;
    vec![
        Record::Alloc { address, size_bytes: 0, epoch: 0, stack: u32::MAX },
        Record::Alloc { address: 16, size_bytes: 0xfeff, epoch: u32::MAX, stack: 0 },
        Record::Alloc { address: 16, size_bytes: 0xff00, epoch: 1, stack: 2 },
        Record::Alloc { address, size_bytes: u64::MAX, epoch: 1, stack: 2 },
        Record::Free { address, ticket: None },
        Record::Free { address, ticket: Some(u32::MAX) },
        Record::Move { address, ticket: None },
        Record::Move { address, ticket: Some(0) },
        Record::Stamp { ticks: address },
        Record::Pc { number: u32::MAX, kind: PcKind::Limit, address: u64::MAX, module: u32::MAX },
        Record::TreeWords { first: 1, words: WordIter::new(&[]) },
        Record::TreeWords { first: u32::MAX, words: WordIter::new(&[1, 0, 0, 0x80, 2, 0, 0, 0, 3, 0, 0, 0]) },
        Record::ModuleLoaded(LoadedModule {
            number: 1,
            counter: u64::MAX,
            start: 0x1000,
            end: 0x2000,
            bias: 0x1000_u64.wrapping_neg(),
            build_id: &[0xab; 20],
            path: "/opt/foo测试/libfoo.so".as_bytes(),
        }),
        Record::ModuleUnloaded { number: 1, counter: 0 },
        Record::Mark {
            counter: 1,
            stack: 2,
            skip: u16::MAX,
            value: MarkValue::None,
            text: b"",
            is_cut: false,
        },
        Record::Mark {
            counter: 1,
            stack: 2,
            skip: 0,
            value: MarkValue::Integer(i64::MIN),
            text: b"slow request",
            is_cut: false,
        },
        Record::Mark {
            counter: 1,
            stack: 2,
            skip: 0,
            value: MarkValue::Float(-0.5),
            text: b"12345678",
            is_cut: false,
        },
        Record::Thread { counter: 1, event: ThreadEvent::Began { kernel_thread: 99 } },
        Record::Thread { counter: 1, event: ThreadEvent::Named(b"worker") },
        Record::Thread { counter: 1, event: ThreadEvent::Ended },
        Record::Mapping { kind: MappingKind::Shrink, counter: 1, address: u64::MAX, size_bytes: 3, stack: 4 },
        Record::Sample(Sample { counter: 1, resident_bytes: 2, page_faults: 3, threads: 4 }),
        Record::Loss { kind: LossKind::NestedTooDeep, count: u64::MAX },
        Record::Clock(Clock { counter: 1, monotonic_nanos: 2, wall_nanos: 3 }),
        Record::End { reason: EndReason::Exec, counter: 1 },
        Record::Pc { number: 1, kind: PcKind::Interpreted, address: 7 << 32 | 12, module: 0 },
        Record::Code(Code {
            number: u32::MAX,
            first_line: 12,
            format: LineTableFormat::Python311,
            line_table_bytes: 5,
            file: b"/srv/app.py",
            name: "Größe.<locals>.<lambda>".as_bytes(),
        }),
        Record::Code(Code {
            number: 1,
            first_line: u32::MAX,
            format: LineTableFormat::Python38,
            line_table_bytes: u32::MAX,
            file: b"",
            name: b"",
        }),
        Record::CodeLines { code: 1, offset: u32::MAX, bytes: b"12345" },
        Record::CodeLines { code: 1, offset: 0, bytes: b"" },
        Record::Interpreter { version: 0x030d_00f0, state: InterpreterState::FreeThreaded },
    ]
}

#[test]
fn record_round_trips_every_kind() {
    let mut slots = [0; 4096];
    let mut sink = RecordSink::new(&mut slots);
    let mut offsets = Vec::new();
    for record in samples() {
        offsets.push(SEGMENT_HEADER_BYTES + sink.written().len() * 8);
        write(&mut sink, &record).unwrap();
    }
    let bytes = bytes_of(sink.written());
    let read: Vec<_> = Records::new(&bytes, SEGMENT_HEADER_BYTES).map(Result::unwrap).collect();
    assert_eq!(read.iter().map(|placed| placed.record).collect::<Vec<_>>(), samples());
    assert_eq!(read.iter().map(|placed| placed.offset).collect::<Vec<_>>(), offsets);
}

#[test]
fn segment_cut_anywhere_yields_records_before_the_cut() {
    let mut slots = [0; 4096];
    let mut sink = RecordSink::new(&mut slots);
    let mut ends = vec![0];
    for record in samples() {
        write(&mut sink, &record).unwrap();
        ends.push(sink.written().len() * 8);
    }
    let bytes = bytes_of(sink.written());
    for cut in 0..bytes.len() {
        let whole = ends.iter().filter(|&&end| end <= cut).count() - 1;
        let read: Vec<_> = Records::new(&bytes[..cut], 0).collect();
        assert_eq!(read.iter().filter(|record| record.is_ok()).count(), whole, "cut at {cut}");
        let is_between = ends.contains(&cut);
        assert_eq!(read.last().is_some_and(|record| record.is_err()), !is_between, "cut at {cut}");
    }
}

#[test]
fn record_that_does_not_fit_leaves_sink_unchanged() {
    for record in samples() {
        let mut slots = [0; 1100];
        let mut whole = RecordSink::new(&mut slots);
        write(&mut whole, &record).unwrap();
        let length = whole.written().len();
        let mut small = vec![u64::MAX; length - 1];
        let mut sink = RecordSink::new(&mut small);
        assert_eq!(write(&mut sink, &record), Err(SinkTooSmall), "{record:?}");
        assert!(sink.written().is_empty());
        assert!(small.iter().all(|&slot| slot == u64::MAX), "{record:?}");
    }
}

#[test]
fn record_is_none_in_unwritten_memory() {
    let mut records = Records::new(&[0; 64], 640);
    let error = records.next().unwrap().unwrap_err();
    assert_eq!((error.offset, error.tag), (640, 0));
    assert!(records.next().is_none());
}

#[test]
fn record_marks_a_truncated_text() {
    let mut slots = [0; 1100];
    let mut sink = RecordSink::new(&mut slots);
    sink.mark(1, 2, 0, MarkValue::None, &[b'a'; 5000]).unwrap();
    let bytes = bytes_of(sink.written());
    let Record::Mark { text, is_cut, .. } = Records::new(&bytes, 0).next().unwrap().unwrap().record else {
        panic!("another record");
    };
    assert_eq!((text.len(), is_cut), (4096, true));
}

#[test]
fn record_of_newer_recorder_is_skipped() {
    let mut slots = [0; 16];
    slots[0] = 0xee << 48 | 3 << 32;
    let mut sink = RecordSink::new(&mut slots[3..]);
    sink.stamp(5).unwrap();
    let bytes = bytes_of(&slots[..4]);
    let read: Vec<_> = Records::new(&bytes, 0).map(|placed| placed.unwrap().record).collect();
    assert_eq!(read, [Record::Unknown { tag: 0xee }, Record::Stamp { ticks: 5 }]);
}

#[test]
fn header_round_trips_and_detects_damage() {
    let bytes = HEADER.to_bytes();
    assert_eq!(FileHeader::read(&bytes), Ok(HEADER));
    for length in 0..bytes.len() {
        assert_eq!(FileHeader::read(&bytes[..length]), Err(HeaderError::Short), "{length} bytes");
    }
    for byte in 0..bytes.len() {
        let mut damaged = bytes;
        damaged[byte] ^= 0x10;
        assert!(FileHeader::read(&damaged).is_err(), "byte {byte}");
    }
    assert_eq!(FileHeader::read(b"\x7fELF"), Err(HeaderError::NoRecording));

    let chunk = ChunkHeader {
        kind: ChunkKind::HEAP,
        stored_bytes: 1,
        unpacked_bytes: 2,
        events: 3,
        first_nanos: 4,
        check: 5,
    };
    let bytes = chunk.to_bytes();
    assert_eq!(ChunkHeader::read(&bytes), Some(chunk));
    for byte in 0..bytes.len() {
        let mut damaged = bytes;
        damaged[byte] ^= 1;
        assert_eq!(ChunkHeader::read(&damaged), None, "byte {byte}");
    }
}

#[test]
fn segment_header_check_excludes_changing_fields() {
    let header = SegmentHeader {
        has_no_tables: true,
        thread: 3,
        lane: Lane::Nested,
        sequence: 9,
        committed_bytes: SEGMENT_HEADER_BYTES as u64,
        counter: 77,
        kernel_thread: 1234,
        claim: 5,
    };
    let bytes = header.to_bytes();
    assert_eq!(SegmentHeader::read(&bytes), Ok(header));
    let mut grown = bytes;
    grown[SegmentHeader::COMMITTED_OFFSET..][..8].copy_from_slice(&(SEGMENT_BYTES as u64).to_le_bytes());
    assert_eq!(SegmentHeader::read(&grown).map(|header| header.committed_bytes), Ok(SEGMENT_BYTES as u64));
    // A process that dies while it writes a header leaves a block in which nothing is committed.
    grown[SegmentHeader::COMMITTED_OFFSET..][..8].fill(0);
    assert_eq!(SegmentHeader::read(&grown), Err(SegmentError::Unused));
    for impossible in [1_u64, 63, 65, SEGMENT_BYTES as u64 + 8, u64::MAX] {
        grown[SegmentHeader::COMMITTED_OFFSET..][..8].copy_from_slice(&impossible.to_le_bytes());
        assert_eq!(SegmentHeader::read(&grown), Err(SegmentError::Committed { found: impossible }));
    }
    for byte in (0..16).chain(24..40) {
        let mut damaged = bytes;
        damaged[byte] ^= 4;
        assert_eq!(SegmentHeader::read(&damaged), Err(SegmentError::Damaged), "byte {byte}");
    }
    assert_eq!(SegmentHeader::read(&[0; SEGMENT_BYTES]), Err(SegmentError::Unused));
}

#[test]
fn epoch_differs_for_neighbouring_addresses() {
    let used: std::collections::HashSet<usize> =
        (0..1024).map(|block| epoch_of(0x5500_0000_0000 + block * 32)).collect();
    assert!(used.len() > EPOCHS * 9 / 10, "{} of {EPOCHS}", used.len());
    assert!(used.iter().all(|&epoch| epoch < EPOCHS));
}

proptest! {
    #[test]
    fn record_readers_end_without_panic_on_any_bytes(slots in vec(any::<u64>(), 0..64), tags in vec(0_u64..0x20, 0..64)) {
        let mut slots = slots;
        for (slot, tag) in slots.iter_mut().zip(tags) {
            *slot = *slot & 0x0000_0007_ffff_ffff | tag << 48;
        }
        let bytes = bytes_of(&slots);
        prop_assert!(Records::new(&bytes, 0).count() <= slots.len() + 1);
        let _ = (FileHeader::read(&bytes), SegmentHeader::read(&bytes), ChunkHeader::read(&bytes));
    }
}

/// Without these words nothing in a file said why a recording had ended.
#[test]
fn early_end_round_trips() {
    use cairn_format::recording::control::EarlyEnd;
    let all = [
        EarlyEnd::Sandbox,
        EarlyEnd::DiskFull(28),
        EarlyEnd::FileSizeLimit,
        EarlyEnd::MaxSize,
        EarlyEnd::AddressSpace,
        EarlyEnd::FileLost,
        EarlyEnd::Unreachable(13),
        EarlyEnd::FileCut,
        EarlyEnd::Storage(5),
        EarlyEnd::TimeOver,
        EarlyEnd::Paused,
        EarlyEnd::MemoryFull,
        EarlyEnd::NoRoom,
        EarlyEnd::Other,
    ];
    for (index, early) in all.into_iter().enumerate() {
        assert_eq!(EarlyEnd::from_word(early.to_word()), Some(early));
        assert!(all[..index].iter().all(|other| other.to_word() != early.to_word()), "{early:?}");
    }
    assert_eq!(EarlyEnd::from_word(0), None);
    // Headers of a later version, and of a damaged file.
    for word in [14, 1 << 16, u64::MAX] {
        assert_eq!(EarlyEnd::from_word(word), Some(EarlyEnd::Other));
    }
}
