//! Any bytes decode under all rules, the ways to read agree, and what was read comes back from the
//! encoder.
#![no_main]

use cairn_format::{Frame, SliceSink, WordSize};
use cairn_wire::cbf::{
    Accumulator, CaptureLimit, CbfDecoder, CbfDialect, CbfError, End, RecordEnding, Records, Rules, encode,
};

/// Maximum frames to check one by one. A few bytes may claim 2^64 frames; all are checked as runs.
const FRAMES: usize = 500;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let strict = read_all_ways(data, Rules::STRICT);
    let lenient = read_all_ways(data, Rules::LENIENT);
    read_all_ways(data, Rules::SWIFT_62);
    read_all_ways(data, Rules::SWIFT_NEWER);

    let lenient: Vec<Frame> =
        lenient.into_iter().map(|item| item.expect("lenient yields no error")).collect();
    let retained: Vec<Frame> = strict.iter().copied().flatten().collect();
    assert_eq!(lenient[..retained.len()], retained, "lenient keeps what strict gives");

    check_split(data);
    check_limits(&lenient, data);
    check_encoder(&lenient, data);
});

/// Frame by frame, by runs, by folding and by skipping.
fn read_all_ways(data: &[u8], rules: Rules) -> Vec<Result<Frame, CbfError>> {
    let one_by_one: Vec<_> = CbfDecoder::new(data, rules).take(FRAMES).collect();
    let mut runs = CbfDecoder::new(data, rules).runs();
    let mut total = 0u64;
    let mut instructions = 0;
    let mut by_runs = Vec::new();
    for run in runs.by_ref() {
        let (item, count) = match run {
            Ok((frame, count)) => (Ok(frame), count),
            Err(error) => (Err(error), 1),
        };
        assert!(count > 0);
        total = total.saturating_add(count);
        instructions += 1;
        let room = FRAMES - by_runs.len();
        by_runs.extend(std::iter::repeat_n(item, room.min(count.try_into().unwrap_or(room))));
    }
    assert!(instructions <= data.len() + 1, "reading costs no more than the record is long");
    assert_eq!(by_runs, one_by_one);
    assert_eq!(CbfDecoder::new(data, rules).count() as u64, total);
    if total <= FRAMES as u64 {
        let folded = CbfDecoder::new(data, rules).fold(Vec::new(), |mut items, item| {
            items.push(item);
            items
        });
        assert_eq!(folded, one_by_one);
        let mut decoder = CbfDecoder::new(data, rules);
        decoder.by_ref().for_each(drop);
        assert_eq!(decoder.end(), runs.end());
        assert_eq!(decoder.findings(), runs.findings());
        assert_eq!(decoder.next(), None);
    }
    for (skip, item) in one_by_one.iter().enumerate().step_by(7) {
        assert_eq!(CbfDecoder::new(data, rules).nth(skip), Some(*item));
    }
    one_by_one
}

/// Checks that splitter and decoder agree on the end of a record. In one piece or byte by byte, the
/// splitter agrees with itself.
fn check_split(data: &[u8]) {
    let mut end = 0;
    for record in Records::new(data) {
        assert_eq!(record.offset, end);
        end += record.bytes.len();
        let mut runs = CbfDecoder::new(record.bytes, Rules::LENIENT).runs();
        runs.by_ref().for_each(drop);
        // At a repeat of nothing the decoder stops, and the splitter, which reads lengths only,
        // does not.
        if runs.findings().stopped_by().is_none() {
            assert_eq!(record.ending == RecordEnding::Complete, runs.end() != End::None);
        }
        let mut accumulator = Accumulator::new();
        let taken: usize = data[record.offset..].chunks(1).map(|byte| accumulator.extend(byte).taken).sum();
        assert_eq!((taken, accumulator.ending()), (record.bytes.len(), record.ending));
    }
    assert!(end <= data.len());
}

/// The three ways to limit agree.
fn check_limits(frames: &[Frame], data: &[u8]) {
    let byte = |index: usize| usize::from(data.get(index).copied().unwrap_or(0) % 24);
    let limit = CaptureLimit { limit: byte(1), offset: byte(2), top: byte(3) };
    let mut ring = vec![Frame::Truncated; limit.ring_frames()];
    let known: Vec<Frame> = limit.slice(frames).collect();
    let streamed: Vec<Frame> =
        limit.streaming(frames.iter().copied(), &mut ring).expect("the ring is large enough").collect();
    assert_eq!(known, streamed);
    assert!(known.len() <= limit.limit);
}

/// Frames that were read are written and read again, in every dialect.
fn check_encoder(frames: &[Frame], data: &[u8]) {
    let word_size = CbfDecoder::new(data, Rules::LENIENT).word_size().unwrap_or(WordSize::NATIVE);
    let writable = |frame: &Frame| !matches!(frame, Frame::Omitted(count) if *count == 0 || *count > word_size.max_address());
    let mut frames: Vec<Frame> = frames.iter().copied().filter(writable).collect();
    if let Some(mark) = frames.iter().position(|frame| *frame == Frame::Truncated) {
        frames.truncate(mark + 1);
    }
    let mut buffer = vec![0; 2 + frames.len() * 9];
    let mut lengths = Vec::new();
    for (dialect, rules) in [
        (CbfDialect::Strict, Rules::STRICT),
        (CbfDialect::SwiftNewer, Rules::SWIFT_NEWER),
        (CbfDialect::Swift62, Rules::LENIENT),
    ] {
        let mut sink = SliceSink::new(&mut buffer);
        encode(frames.iter().copied(), word_size, dialect, &mut sink).expect("these can be written");
        let back: Result<Vec<Frame>, _> = CbfDecoder::new(sink.written(), rules).collect();
        assert_eq!(back.expect("own output"), frames);
        lengths.push(sink.written().len());
    }
    assert!(lengths[2] <= lengths[1], "the end mark is the only difference");
    assert_eq!(lengths[0], lengths[1], "absolute and relative to 0 have the same length");
}
