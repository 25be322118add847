//! The Compact Backtrace Format against the conformance vectors and its own rules.

mod support;

use std::collections::BTreeSet;

use cairn_format::{AbsoluteAddress, Frame, Sink, SinkFull, SliceSink, WordSize};
use cairn_wire::base64;
use cairn_wire::cbf::{
    Accumulator, CaptureLimit, CbfDecoder, CbfDialect, CbfEncodeError, CbfEncoder, CbfErrorKind, End,
    RecordEnding, Records, Rules, encode,
};
use proptest::prelude::*;
use serde_json::Value;
use support::mutate::assert_changes_are_noticed;
use support::{cases, hex_field, name, number, text, to_hex};

// Failed with: unnoticed changes, and a panic of the check itself for stacks given as
// `frames_run_length` and for empty `accumulate` inputs.
#[test]
fn cbf_vectors_hold_and_every_field_is_judged() {
    let cases = cases("swift_cbf.json", None);
    let groups: BTreeSet<_> = cases.iter().map(|case| text(case, "group")).collect();
    assert!(groups.len() >= 7, "groups are missing: {groups:?}");
    assert_changes_are_noticed(
        &cases,
        check,
        &[
            ("accumulate/hex", 7, "input: bytes behind the record, and operands that the record keeps"),
            ("decode/hex", 29, "input: bytes behind an error or an end"),
            ("encode/frames/*/*", 1, "input: a frame behind the truncation mark"),
            ("encode/frames[]", 1, "input: the same"),
            ("json/architecture", 6, "judged in swift_json.rs"),
            ("json/json", 6, "judged in swift_json.rs"),
            ("json/base64", 1, "the low bits of a last character hold no bits of a byte"),
            ("limit/frame_count", 4, "input: the result is the same for it"),
            ("limit/limit", 5, "input: the same"),
            ("limit/offset", 1, "input: the same"),
            ("limit/top", 8, "input: the same"),
        ],
    );
}

fn check(case: &Value) {
    match text(case, "group") {
        "encode" => check_encode(case),
        "encode-invalid" => check_encode_invalid(case),
        "decode" => check_decode(case),
        "repeat-limit" => check_repeat_limit(case),
        "accumulate" => check_accumulate(case),
        "limit" => check_limit(case),
        "json" => check_json_payload(case),
        unknown => panic!("{}: no test for group {unknown}", name(case)),
    }
}

#[test]
fn cbf_vectors_allow_other_forms() {
    let run_length = serde_json::json!({
        "id": "own-1", "group": "encode", "word_bits": 16, "frames_run_length": [[["pc", "0x80"], 1], [["ra", "0x90"], 3]],
        "reference_hex": "00110080201081",
        "reference_newer_hex": "0011008020108100",
        "strict_hex": "0019008020108100",
    });
    // check-words: quoted
    let empty = serde_json::json!({ "id": "own-2", "group": "accumulate", "hex": "", "kept_hex": "" });
    assert_changes_are_noticed(&[run_length, empty], check, &[]);
}

fn check_encode(case: &Value) {
    let name = name(case);
    let frames = listed_frames(case);
    let word_size = WordSize::from_bits(number(&case["word_bits"]) as u32).unwrap();
    let retained =
        frames.iter().position(|&frame| frame == Frame::Truncated).map_or(frames.len(), |at| at + 1);
    for (dialect, key) in [
        (CbfDialect::Strict, "strict_hex"),
        (CbfDialect::Swift62, "reference_hex"),
        (CbfDialect::SwiftNewer, "reference_newer_hex"),
    ] {
        let (bytes, result) = encoded(&frames, word_size, dialect);
        // Swift drops what follows the truncation mark; the strict encoder writes the same, and
        // says so.
        let surplus = retained < frames.len() && dialect == CbfDialect::Strict;
        assert_eq!(
            result,
            if surplus { Err(CbfEncodeError::AfterTruncated) } else { Ok(()) },
            "{name} ({key})"
        );
        assert_eq!(to_hex(&bytes), text(case, key), "{name} ({key})");

        let mut lenient = CbfDecoder::new(&bytes, Rules::LENIENT);
        let back: Result<Vec<Frame>, _> = lenient.by_ref().collect();
        assert_eq!(back.unwrap(), frames[..retained], "{name} ({key})");
        let end = match (frames.get(retained.wrapping_sub(1)), dialect) {
            (Some(Frame::Truncated), _) => End::Truncated,
            (_, CbfDialect::Swift62) => End::None,
            _ => End::End,
        };
        assert_eq!(lenient.end(), end, "{name} ({key})");
        assert_eq!(lenient.word_size(), Some(word_size), "{name} ({key})");
    }
    let (strict, _) = encoded(&frames, word_size, CbfDialect::Strict);
    let back: Result<Vec<Frame>, _> = CbfDecoder::new(&strict, Rules::STRICT).collect();
    assert_eq!(back.unwrap(), frames[..retained], "{name} (strict)");
}

fn check_encode_invalid(case: &Value) {
    assert_eq!((text(case, "expected"), text(case, "reference")), ("error", "traps"), "{}", name(case));
    let word_size = WordSize::from_bits(number(&case["word_bits"]) as u32).unwrap();
    for dialect in [CbfDialect::Strict, CbfDialect::Swift62, CbfDialect::SwiftNewer] {
        let (_, result) = encoded(&listed_frames(case), word_size, dialect);
        assert!(result.is_err(), "{} ({dialect:?})", name(case));
    }
}

fn check_decode(case: &Value) {
    let name = name(case);
    let bytes = hex_field(case, "hex");
    let strict_case = &case["strict"];
    let mut strict = CbfDecoder::new(&bytes, Rules::STRICT);
    let items: Vec<_> = strict.by_ref().take(MOST_FRAMES).collect();
    let strict_frames: Vec<Frame> = items.iter().copied().flatten().collect();
    if strict_case["ok"].as_bool().unwrap() {
        assert!(items.iter().all(Result::is_ok), "{name}: {items:?}");
        let end = match strict_case["end"].as_str().unwrap() {
            "end" => End::End,
            "trunc" => End::Truncated,
            "none" => End::None,
            unknown => panic!("{name}: end {unknown}"),
        };
        assert_eq!(strict.end(), end, "{name}");
        let lenient = CbfDecoder::new(&bytes, Rules::LENIENT);
        assert!(
            CbfDecoder::new(&bytes, Rules::LENIENT).take(MOST_FRAMES).eq(items.iter().copied()),
            "{name}"
        );
        let mut lenient_runs = lenient.runs();
        assert_eq!(lenient_runs.by_ref().filter(Result::is_err).count(), 0, "{name}");
        assert!(lenient_runs.findings().is_empty(), "{name}: {:?}", lenient_runs.findings());
        if let Some(expected) = strict_case.get("frames") {
            assert_eq!(strict_frames, frames(expected), "{name}");
        } else if case["reference"].get("traps").is_none() {
            let mut expected = reference_frames(case);
            if end == End::None {
                assert_eq!(expected.pop(), Some(Frame::Truncated), "{name}");
            }
            assert_eq!(strict_frames, expected, "{name}");
        }
    } else {
        let error = items.last().unwrap().expect_err(&name);
        assert_eq!(items.iter().filter(|item| item.is_err()).count(), 1, "{name}");
        assert_eq!(error_name(error.kind), text(strict_case, "error"), "{name}");
        assert!(error.offset <= bytes.len(), "{name}");
        // Strict decoding refuses the fault that lenient decoding notes first or stops at.
        let mut lenient = CbfDecoder::new(&bytes, Rules::LENIENT);
        assert!(lenient.by_ref().take(MOST_FRAMES).all(|item| item.is_ok()), "{name}");
        if !matches!(error.kind, CbfErrorKind::RepeatTooLarge) {
            assert_eq!(lenient.findings().first(error.kind), Some(error.offset), "{name}");
        }
    }
    if let Some(traps) = case["reference"].get("traps") {
        assert_eq!(traps.as_bool(), Some(true), "{name}");
    } else {
        let shown: Result<Vec<Frame>, _> =
            CbfDecoder::new(&bytes, Rules::SWIFT_62).take(MOST_FRAMES).collect();
        assert_eq!(shown.unwrap(), reference_frames(case), "{name} (swift 6.2)");
    }
}

fn check_repeat_limit(case: &Value) {
    let name = name(case);
    let bytes = hex_field(case, "hex");
    let shipped = number(&case["shipped_frame_count"]);
    let newer = number(&case["newer_frame_count"]);
    let newer_truncated = case["newer_truncated"].as_bool().unwrap();
    let count = |rules| CbfDecoder::new(&bytes, rules).count() as u64;
    assert_eq!(count(Rules::SWIFT_62), shipped, "{name}");
    assert_eq!(count(Rules::LENIENT), shipped, "{name}");
    assert_eq!(count(Rules::SWIFT_NEWER), newer, "{name}");
    assert_eq!(CbfDecoder::new(&bytes, Rules::LENIENT).fold(0, |total, _| total + 1), shipped, "{name}");
    let last = CbfDecoder::new(&bytes, Rules::SWIFT_NEWER).nth(newer as usize - 1);
    assert_eq!(last == Some(Ok(Frame::Truncated)), newer_truncated, "{name}");
    assert_eq!(CbfDecoder::new(&bytes, Rules::STRICT).any(|item| item.is_err()), newer_truncated, "{name}");
}

fn check_accumulate(case: &Value) {
    let name = name(case);
    let bytes = hex_field(case, "hex");
    // check-words: quoted
    let retained = text(case, "kept_hex");
    // No bytes hold no record; those that are refused at once hold an empty one.
    let record = Records::new(&bytes).next();
    assert_eq!(record.is_none(), bytes.is_empty(), "{name}");
    assert_eq!(to_hex(record.map_or(&[][..], |record| record.bytes)), retained, "{name}");
    let ending = record.map_or(Accumulator::new().ending(), |record| record.ending);
    // In any two pieces the same.
    for cut in 0..=bytes.len() {
        let mut accumulator = Accumulator::new();
        let mut taken = accumulator.extend(&bytes[..cut]).taken;
        if taken == cut {
            taken += accumulator.extend(&bytes[cut..]).taken;
        }
        assert_eq!((to_hex(&bytes[..taken]).as_str(), accumulator.ending()), (retained, ending), "{name}");
    }
}

fn check_limit(case: &Value) {
    let name = name(case);
    let limit = CaptureLimit {
        limit: number(&case["limit"]) as usize,
        offset: number(&case["offset"]) as usize,
        top: number(&case["top"]) as usize,
    };
    // "frames are pc 1, ra 2, ra 3 ...": the first is always there.
    let mut stack = vec![Frame::ProgramCounter(AbsoluteAddress::new(1))];
    stack.extend((2..=number(&case["frame_count"])).map(|n| Frame::ReturnAddress(AbsoluteAddress::new(n))));
    let results = limited_three_ways(limit, &stack);
    // A reference that stops the program has no result.
    assert_eq!(case["reference_traps"].as_bool(), Some(case["result"].is_null()), "{name}");
    if !case["result"].is_null() {
        assert_eq!(results[0], frames(&case["result"]), "{name}");
    }
    assert!(results.iter().all(|result| *result == results[0]), "{name}: {results:?}");
    assert!(results[0].len() <= limit.limit, "{name}");
}

/// Checks that the base64 of a vector is the reference form of its frames. The rest of the text
/// form is tested in `swift_json.rs`.
fn check_json_payload(case: &Value) {
    let bytes: Result<Vec<u8>, _> = base64::Base64Decoder::new(text(case, "base64").as_bytes()).collect();
    let bytes = bytes.unwrap();
    assert_eq!(to_hex(&bytes), text(case, "reference_hex"), "{}", name(case));
    let back: Result<Vec<Frame>, _> = CbfDecoder::new(&bytes, Rules::LENIENT).collect();
    assert_eq!(back.unwrap(), frames(&case["frames"]), "{}", name(case));
}

// ---- what the vectors say ----

/// More than any vector expands to; a vector may also claim 2^63.
const MOST_FRAMES: usize = 2_000_000;

fn frames(list: &Value) -> Vec<Frame> {
    list.as_array().unwrap().iter().map(frame).collect()
}

fn frame(value: &Value) -> Frame {
    let address = || AbsoluteAddress::new(number(&value[1]));
    match value[0].as_str().unwrap() {
        "pc" => Frame::ProgramCounter(address()),
        "ra" => Frame::ReturnAddress(address()),
        "async" => Frame::AsyncResumePoint(address()),
        // The reference reads counts as signed numbers.
        "omit" => Frame::Omitted(value[1].as_i64().map_or_else(|| number(&value[1]), |count| count as u64)),
        "truncated" => Frame::Truncated,
        unknown => panic!("frame {unknown}"),
    }
}

/// Returns the stack of a case or of an answer: one by one, or as runs.
fn listed_frames(of: &Value) -> Vec<Frame> {
    match of.get("frames_run_length") {
        Some(runs) => {
            let runs = runs.as_array().unwrap().iter();
            runs.flat_map(|run| vec![frame(&run[0]); number(&run[1]) as usize]).collect()
        }
        None => frames(&of["frames"]),
    }
}

fn reference_frames(case: &Value) -> Vec<Frame> {
    let reference = &case["reference"];
    let all = listed_frames(reference);
    assert_eq!(all.len() as u64, number(&reference["frame_count"]), "{}", name(case));
    all
}

fn error_name(kind: CbfErrorKind) -> &'static str {
    match kind {
        CbfErrorKind::Empty => "empty",
        CbfErrorKind::UnsupportedVersion { .. } => "version",
        CbfErrorKind::ReservedWordSize => "reserved-size",
        CbfErrorKind::ReservedOpcode { .. } => "reserved-opcode",
        CbfErrorKind::TruncatedOperand { .. } => "truncated-operand",
        CbfErrorKind::OperandTooWide => "operand-too-wide",
        CbfErrorKind::FirstAddressRelative => "first-address-relative",
        CbfErrorKind::RepeatFirst => "repeat-first",
        CbfErrorKind::ZeroRepeat => "zero-repeat",
        CbfErrorKind::RepeatTooLarge => "repeat-too-large",
        CbfErrorKind::TrailingData => "trailing-data",
        unknown => panic!("no name for {unknown:?}"),
    }
}

// ---- helpers ----

fn encoded(
    frames: &[Frame],
    word_size: WordSize,
    dialect: CbfDialect,
) -> (Vec<u8>, Result<(), CbfEncodeError>) {
    let mut buffer = vec![0; 16 + frames.len() * 10];
    let mut sink = SliceSink::new(&mut buffer);
    let result = encode(frames.iter().copied(), word_size, dialect, &mut sink);
    (sink.written().to_vec(), result)
}

fn limited_three_ways(limit: CaptureLimit, stack: &[Frame]) -> [Vec<Frame>; 3] {
    let mut ring = vec![Frame::Truncated; limit.ring_frames()];
    let streamed = limit.streaming(stack.iter().copied(), &mut ring).unwrap().collect();
    let mut pushed = Vec::new();
    let mut tail = limit.ring(&mut ring).unwrap();
    pushed.extend(stack.iter().filter_map(|&frame| tail.push(frame)));
    pushed.extend(tail.finish());
    [limit.slice(stack).collect(), streamed, pushed]
}

/// Straight from the rules, byte by byte, without the encoder's code: the forms with the fewest
/// bytes.
fn encoded_by_the_book(frames: &[Frame], word_size: WordSize) -> Vec<u8> {
    fn signed(value: i64) -> Vec<u8> {
        let all = value.to_be_bytes();
        let fits = |&length: &usize| {
            let sign = if all[8 - length] & 0x80 == 0 { 0 } else { 0xff };
            all[..8 - length].iter().all(|&byte| byte == sign)
        };
        all[8 - (1..=8).find(fits).unwrap()..].to_vec()
    }
    fn unsigned(value: u64) -> Vec<u8> {
        let all = value.to_be_bytes();
        all[all.iter().position(|&byte| byte != 0).unwrap()..].to_vec()
    }
    let mut out = vec![[0, 1, 2][word_size.bytes().ilog2() as usize - 1]];
    let mut base = None;
    let mut at = 0;
    while let Some(&frame) = frames.get(at) {
        let run = frames[at..].iter().take_while(|&&other| other == frame).count();
        match frame {
            Frame::ProgramCounter(address)
            | Frame::ReturnAddress(address)
            | Frame::AsyncResumePoint(address) => {
                let opcode = match frame {
                    Frame::ProgramCounter(_) => 0x10,
                    Frame::ReturnAddress(_) => 0x20,
                    _ => 0x30,
                };
                let absolute = signed(word_size.sign_extend(address.value()));
                let relative =
                    base.map(|base: u64| signed(word_size.sign_extend(address.value().wrapping_sub(base))));
                let (opcode, operand) = match relative {
                    Some(relative) if relative.len() <= absolute.len() => (opcode, relative),
                    _ => (opcode | 8, absolute),
                };
                out.push(opcode | (operand.len() as u8 - 1));
                out.extend(operand);
                base = Some(address.value());
            }
            Frame::Omitted(count @ 1..=31) => out.push(0x40 + count as u8 - 1),
            Frame::Omitted(count) => {
                out.push(0x60 + unsigned(count).len() as u8 - 1);
                out.extend(unsigned(count));
            }
            Frame::Truncated => {
                out.push(1);
                return out;
            }
        }
        match run - 1 {
            0 => {}
            repeats @ 1..=8 => out.push(0x80 + repeats as u8 - 1),
            repeats => {
                out.push(0x88 + unsigned(repeats as u64).len() as u8 - 1);
                out.extend(unsigned(repeats as u64));
            }
        }
        at += run;
    }
    out.push(0);
    out
}

fn word_sizes() -> impl Strategy<Value = WordSize> {
    prop_oneof![Just(WordSize::Bits16), Just(WordSize::Bits32), Just(WordSize::Bits64)]
}

/// Returns a stack as in real programs. Addresses are near each other, now and then far away, with
/// runs, and the other frames.
fn stacks(word_size: WordSize) -> impl Strategy<Value = Vec<Frame>> {
    let address = prop_oneof![
        3 => (0u64..4, 0u64..0x300).prop_map(|(module, offset)| module * 0x5555_1234_0000 + 0x1000 + offset),
        1 => any::<u64>(),
        1 => (0u32..64, 0u64..3).prop_map(|(bit, around)| (1u64 << bit).wrapping_add(around).wrapping_sub(1)),
    ]
    .prop_map(move |value| AbsoluteAddress::new(word_size.truncate(value)));
    let count = prop_oneof![1u64..40, 1..=word_size.max_address()];
    let frame = prop_oneof![
        1 => address.clone().prop_map(Frame::ProgramCounter),
        5 => address.clone().prop_map(Frame::ReturnAddress),
        1 => address.prop_map(Frame::AsyncResumePoint),
        1 => count.prop_map(Frame::Omitted),
    ];
    let run = (frame, prop_oneof![4 => Just(1usize), 1 => 1usize..20]);
    (prop::collection::vec(run, 0..30), any::<bool>()).prop_map(|(runs, truncated)| {
        let mut stack: Vec<Frame> = runs.into_iter().flat_map(|(frame, count)| vec![frame; count]).collect();
        stack.extend(truncated.then_some(Frame::Truncated));
        stack
    })
}

fn words_and_stacks() -> impl Strategy<Value = (WordSize, Vec<Frame>)> {
    word_sizes().prop_flat_map(|word_size| (Just(word_size), stacks(word_size)))
}

/// Returns bytes that look like a record, wrong in places.
fn near_records() -> impl Strategy<Value = Vec<u8>> {
    let instruction = prop_oneof![
        3 => prop_oneof![0x10u8..0x40, 0x20u8..0x24],
        1 => 0x40u8..0x90,
        1 => any::<u8>(),
    ];
    let piece = (instruction, prop::collection::vec(any::<u8>(), 0..6)).prop_map(|(opcode, mut operand)| {
        operand.insert(0, opcode);
        operand
    });
    (prop_oneof![9 => 0u8..3, 1 => any::<u8>()], prop::collection::vec(piece, 0..20)).prop_map(
        |(info, pieces)| {
            let mut bytes = vec![info];
            bytes.extend(pieces.concat());
            bytes
        },
    )
}

proptest! {
    #[test]
    fn cbf_round_trips_all_dialects((word_size, stack) in words_and_stacks()) {
        for (dialect, rules) in [
            (CbfDialect::Strict, Rules::STRICT),
            (CbfDialect::Strict, Rules::SWIFT_NEWER),
            (CbfDialect::SwiftNewer, Rules::SWIFT_NEWER),
            (CbfDialect::Swift62, Rules::LENIENT),
        ] {
            let (bytes, result) = encoded(&stack, word_size, dialect);
            prop_assert_eq!(result, Ok(()));
            let back: Result<Vec<Frame>, _> = CbfDecoder::new(&bytes, rules).collect();
            prop_assert_eq!(back.unwrap(), stack.as_slice());
        }
    }

    #[test]
    fn cbf_encoding_is_the_shortest((word_size, stack) in words_and_stacks()) {
        let (bytes, _) = encoded(&stack, word_size, CbfDialect::Strict);
        prop_assert_eq!(to_hex(&bytes), to_hex(&encoded_by_the_book(&stack, word_size)));
    }

    #[test]
    fn cbf_readers_agree(bytes in near_records(), lenient in any::<bool>()) {
        let rules = if lenient { Rules::LENIENT } else { Rules::STRICT };
        let most = 300;
        let one_by_one: Vec<_> = CbfDecoder::new(&bytes, rules).take(most).collect();
        let by_runs: Vec<_> = CbfDecoder::new(&bytes, rules)
            .runs()
            .flat_map(|run| match run {
                Ok((frame, count)) => vec![Ok(frame); count.min(most as u64) as usize],
                Err(error) => vec![Err(error)],
            })
            .take(most)
            .collect();
        prop_assert_eq!(&one_by_one, &by_runs);
        for skip in [0, 1, 2, 5, 40] {
            prop_assert_eq!(CbfDecoder::new(&bytes, rules).nth(skip), one_by_one.get(skip).copied());
        }
        if one_by_one.len() < most {
            let folded = CbfDecoder::new(&bytes, rules).fold(Vec::new(), |mut items, item| {
                items.push(item);
                items
            });
            prop_assert_eq!(&one_by_one, &folded);
            prop_assert_eq!(CbfDecoder::new(&bytes, rules).count(), one_by_one.len());
        }
        // From the middle of a run or a pair, too.
        for taken in 0..one_by_one.len().min(8) {
            let mut decoder = CbfDecoder::new(&bytes, rules);
            decoder.by_ref().take(taken).for_each(drop);
            let rest: Vec<_> = decoder.runs().map(|run| run.map(|(frame, _)| frame)).take(1).collect();
            prop_assert_eq!(rest.first(), one_by_one.get(taken));
        }
    }

    #[test]
    fn cbf_lenient_includes_strict(bytes in near_records()) {
        let strict: Vec<_> = CbfDecoder::new(&bytes, Rules::STRICT).take(300).collect();
        let mut lenient = CbfDecoder::new(&bytes, Rules::LENIENT);
        let all: Result<Vec<Frame>, _> = lenient.by_ref().take(300).collect();
        let all = all.unwrap();
        let retained: Vec<Frame> = strict.iter().copied().flatten().collect();
        prop_assert_eq!(&all[..retained.len()], &retained[..]);
        if all.len() < 300 {
            let refused = strict.iter().any(Result::is_err);
            prop_assert_eq!(refused, !lenient.findings().is_empty());
            prop_assert_eq!(all.len() == 300 || lenient.next().is_none(), true);
        }
    }

    #[test]
    fn cbf_swift_rules_differ_from_lenient_at_end_only(bytes in near_records()) {
        let lenient: Vec<_> = CbfDecoder::new(&bytes, Rules::LENIENT).take(300).collect();
        let mut decoder = CbfDecoder::new(&bytes, Rules::SWIFT_62);
        let swift: Vec<_> = decoder.by_ref().take(301).collect();
        let has_negative_repeat = bytes.contains(&0x8f);
        if !has_negative_repeat && lenient.len() < 300 {
            let added = swift.len() - lenient.len();
            prop_assert_eq!(&swift[..lenient.len()], &lenient[..]);
            let missing_end = decoder.end() == End::None
                && decoder.findings().stopped_by().is_none()
                && decoder.word_size().is_some();
            prop_assert_eq!(added, usize::from(missing_end));
        }
    }

    #[test]
    fn cbf_splits_consecutive_records(
        stacks in prop::collection::vec(words_and_stacks(), 0..5),
        cut in 0usize..200,
    ) {
        let records: Vec<Vec<u8>> = stacks
            .iter()
            .map(|(word_size, stack)| encoded(stack, *word_size, CbfDialect::SwiftNewer).0)
            .collect();
        let stream = records.concat();
        let found: Vec<_> = Records::new(&stream).collect();
        prop_assert_eq!(found.iter().map(|record| record.bytes.to_vec()).collect::<Vec<_>>(), records.clone());
        prop_assert!(found.iter().all(|record| record.ending == RecordEnding::Complete));
        // Cut anywhere: whole records stay whole, and at most the last is unfinished.
        let cut = cut.min(stream.len());
        let cut_records: Vec<_> = Records::new(&stream[..cut]).collect();
        prop_assert_eq!(cut_records.iter().map(|record| record.bytes.len()).sum::<usize>(), cut);
        for (at, record) in cut_records.iter().enumerate() {
            let whole = record.bytes == records[at];
            prop_assert_eq!(record.ending == RecordEnding::Complete, whole);
        }
    }

    #[test]
    fn cbf_capture_limits_agree(
        depth in 0usize..60, limit in 0usize..20, offset in 0usize..10, top in 0usize..25,
    ) {
        let stack: Vec<Frame> =
            (0..depth).map(|n| Frame::ReturnAddress(AbsoluteAddress::new(n as u64))).collect();
        let results = limited_three_ways(CaptureLimit { limit, offset, top }, &stack);
        let dropped = &stack[offset.min(depth)..];
        let expected = if limit == 0 {
            vec![]
        } else if dropped.len() <= limit {
            dropped.to_vec()
        } else {
            let top = top.min(limit - 1);
            let mut retained = dropped[..limit - top - 1].to_vec();
            retained.push(match top {
                0 => Frame::Truncated,
                _ => Frame::Omitted((dropped.len() - limit + 1) as u64),
            });
            retained.extend(&dropped[dropped.len() - top..]);
            retained
        };
        for result in results {
            prop_assert_eq!(&result, &expected);
        }
    }
}

#[test]
fn cbf_huge_repeats_are_lazy() {
    // pc 0x7f and 2^64 - 1 more of it, twice.
    let bytes = [&[0x02, 0x18, 0x7f][..], &[0x8f, 255, 255, 255, 255, 255, 255, 255, 255].repeat(2)].concat();
    let frame = Frame::ProgramCounter(AbsoluteAddress::new(0x7f));
    let decoder = CbfDecoder::new(&bytes, Rules::LENIENT);
    assert_eq!(decoder.clone().nth(usize::MAX), Some(Ok(frame)));
    assert_eq!(decoder.clone().count(), usize::MAX);
    assert!(decoder.clone().take(1_000).all(|item| item == Ok(frame)));
    let runs: Result<Vec<_>, _> = decoder.clone().runs().collect();
    assert_eq!(runs.unwrap(), [(frame, 1), (frame, u64::MAX), (frame, u64::MAX)]);
    // A `Vec` reserves what is promised.
    let mut started = decoder;
    started.nth(3);
    assert!(started.size_hint().0 <= 1024);
    // The capture limit steps over them as well.
    let limit = CaptureLimit { limit: 4, offset: 0, top: 1 };
    let frames = CbfDecoder::new(&bytes, Rules::LENIENT).flatten();
    let retained: Vec<Frame> = limit.known_length(frames.take(1_000_000), 1_000_000).collect();
    assert_eq!(retained, [frame, frame, Frame::Omitted(999_997), frame]);
}

#[test]
fn cbf_strict_decoder_reads_long_runs() {
    let frame = Frame::ReturnAddress(AbsoluteAddress::new(0x1234));
    for word_size in [WordSize::Bits16, WordSize::Bits32, WordSize::Bits64] {
        for dialect in [CbfDialect::Strict, CbfDialect::SwiftNewer, CbfDialect::Swift62] {
            for count in [1, 2, 9, 10, 65_535, 65_536, 65_537, 1_048_577, 1_048_578, 1_048_579, 5_000_000] {
                let mut buffer = [0; 256];
                let mut encoder = CbfEncoder::new(SliceSink::new(&mut buffer), word_size, dialect).unwrap();
                encoder.push_run(frame, count).unwrap();
                let bytes = encoder.finish().unwrap().into_written();
                let rules = match dialect {
                    CbfDialect::Strict => Rules::STRICT,
                    CbfDialect::Swift62 => Rules::SWIFT_62.with_repeat_limit(count),
                    _ => Rules::LENIENT.with_repeat_limit(1_048_577),
                };
                let mut total = 0;
                for run in CbfDecoder::new(bytes, rules).runs() {
                    let (found, times) = run.unwrap_or_else(|error| panic!("{count} {dialect:?}: {error}"));
                    total += if found == frame { times } else { 0 };
                }
                assert_eq!(total, count, "{word_size:?} {dialect:?}");
            }
        }
    }
}

#[test]
fn cbf_encoder_refuses_a_frame_without_trace() {
    let mut buffer = [0; 64];
    let sink = SliceSink::new(&mut buffer);
    let mut encoder = CbfEncoder::new(sink, WordSize::Bits16, CbfDialect::Strict).unwrap();
    let good = Frame::ProgramCounter(AbsoluteAddress::new(0x1234));
    let wide = Frame::ReturnAddress(AbsoluteAddress::new(0x1_0000));
    assert_eq!(encoder.push(wide), Err(CbfEncodeError::AddressTooWide));
    assert_eq!(encoder.push(good), Ok(()));
    assert_eq!(encoder.push(good), Ok(()));
    assert_eq!(encoder.push(wide), Err(CbfEncodeError::AddressTooWide));
    assert_eq!(encoder.push(Frame::Omitted(0)), Err(CbfEncodeError::OmittedNothing));
    assert_eq!(encoder.push(Frame::Omitted(0x1_0000)), Err(CbfEncodeError::OmittedTooWide));
    assert_eq!(encoder.push(good), Ok(()));
    assert_eq!(encoder.push_run(Frame::Truncated, 2), Err(CbfEncodeError::AfterTruncated));
    assert_eq!(encoder.push(good), Err(CbfEncodeError::AfterTruncated));
    assert_eq!(encoder.finish().unwrap().written(), [0x00, 0x19, 0x12, 0x34, 0x81, 0x01]);
}

#[test]
fn cbf_full_buffers_hold_whole_instructions() {
    let stack: Vec<Frame> =
        [0x5555_0000_1000, 0x5555_0000_1010, 0x5555_0000_1010, 0x7fff_0000_0000, u64::MAX, 3]
            .map(|address| Frame::ReturnAddress(AbsoluteAddress::new(address)))
            .to_vec();
    let (whole, _) = encoded(&stack, WordSize::Bits64, CbfDialect::Strict);
    for room in 0..=whole.len() + 20 {
        let mut buffer = vec![0; room];
        let mut sink = SliceSink::new(&mut buffer);
        let result = encode(stack.iter().copied(), WordSize::Bits64, CbfDialect::Strict, &mut sink);
        if room < whole.len() {
            assert_eq!(result, Err(CbfEncodeError::SinkFull), "room for {room}");
            let written = sink.written();
            assert_eq!(written, &whole[..written.len()], "room for {room}");
            assert!(written.is_empty() || !CbfDecoder::new(written, Rules::STRICT).any(|item| item.is_err()));
        } else {
            assert_eq!((result, sink.written()), (Ok(()), whole.as_slice()), "room for {room}");
        }
    }
}

/// A sink with nothing but `put` gets the same bytes as one with a buffer.
#[test]
fn cbf_any_sink_gets_the_same_bytes() {
    struct ByteSink(Vec<u8>);
    impl Sink for ByteSink {
        fn put(&mut self, bytes: &[u8]) -> Result<(), SinkFull> {
            self.0.extend_from_slice(bytes);
            Ok(())
        }
    }
    let stack =
        [Frame::ReturnAddress(AbsoluteAddress::new(0x1234_5678)), Frame::Omitted(77), Frame::Truncated];
    let mut pieces = ByteSink(Vec::new());
    encode(stack, WordSize::Bits32, CbfDialect::Strict, &mut pieces).unwrap();
    assert_eq!(pieces.0, encoded(&stack, WordSize::Bits32, CbfDialect::Strict).0);
}

#[test]
fn cbf_errors_state_fault_and_offset() {
    for (bytes, message) in [
        (&[][..], "no data, not even an info byte, at byte 0"),
        (&[0x06], "unknown backtrace format version 1 (only 0 is known), at byte 0"),
        (&[0x02, 0x18, 0x7f, 0x90], "reserved instruction 0x90, at byte 3"),
        (&[0x02, 0x1b, 1, 2], "an operand of 4 bytes is cut after 2, at byte 1"),
        (&[0x02, 0x00, 9], "data after the end, at byte 2"),
    ] {
        let error = CbfDecoder::new(bytes, Rules::STRICT).find_map(Result::err).unwrap();
        assert_eq!(error.to_string(), message);
    }
}
