//! libwebsockets blobs, their place in memory and their text forms, against the conformance vectors
//! and against a model of the format that works on strings of `0` and `1`.
//!
//! Long because the bit-string model, the vectors and the properties of one format share their
//! helpers.

mod support;

use cairn_format::{AbsoluteAddress, CountingSink, Frame, SliceSink, WordSize};
use cairn_wire::bits::{BitReader, BitWriter};
use cairn_wire::lws::log_line::{self, Mark, TextErrorKind};
use cairn_wire::lws::{self, BlobCapacity, LwsEncodeErrorKind, LwsErrorKind, metadata};
use proptest::prelude::*;
use serde_json::Value;
use support::mutate::assert_changes_are_noticed;
use support::{cases, hex, hex_field, name, number, numbers, text, to_hex};

const FILE: &str = "lws_backtrace.json";

// Failed with: unnoticed changes, among them of `log_line_cut`, `reference_agrees`,
// `reference_on_64bit_host_decodes_to` and `reference_decodes_its_own_blob_to`.
#[test]
fn lws_vectors_hold_and_every_field_is_judged() {
    assert_changes_are_noticed(
        &cases(FILE, None),
        check,
        &[
            ("capacity/addresses/*", 12, "input: it does not fit all the same"),
            ("capacity/alloc_size", 3, "input: the same"),
            ("capacity/buffer_bytes", 4, "input: the blob fits, or does not, all the same"),
            ("capture-trim/post", 1, "input: fewer frames are there"),
            ("capture-trim/unwound/*", 19, "input: a frame that is left out"),
            ("capture-trim/unwound[]", 3, "input: the same"),
            ("encode-64bit-high/addresses/*", 3, "input: 64 bits, which are not written, all the same"),
            ("encode-64bit-high/addresses[]", 1, "input: the same"),
            ("encode-64bit-high/alloc_size", 2, "input: of a blob that is not written"),
            ("encode-64bit-high/reference_blob_hex", 19, "input: spare bits, padding and the length field"),
            ("encode/spare_bit_variants/clang-x86_64-O2", 4, "input: spare bits"),
            ("encode/spare_bit_variants/gcc-x86_64-O3", 4, "input: spare bits"),
            ("malformed/blob_hex", 23, "input: malformed all the same"),
            ("memory-layout/memory_hex", 3, "input: spare bits"),
            ("text/text", 25, "input: refused all the same, or bits that no byte has"),
        ],
    );
}

fn check(case: &Value) {
    match text(case, "group") {
        "encode" => check_encode(case),
        "encode-32bit-high" => check_encode_32bit_high(case),
        "encode-64bit-high" => check_encode_64bit_high(case),
        "decode" => check_decode(case),
        "malformed" => check_malformed(case),
        "dump-line-limit" => check_dump_line_limit(case),
        "capacity" => check_capacity(case),
        "memory-layout" => check_memory_layout(case),
        "capture-trim" => check_capture_trim(case),
        "text" => check_text(case),
        unknown => panic!("{}: no check for group {unknown:?}", name(case)),
    }
}

fn check_encode(case: &Value) {
    check_both_ways(case, "blob_hex", WordSize::Bits64);
    check_both_ways(case, "blob_hex", WordSize::Bits32);
    for variant in case["spare_bit_variants"].as_object().unwrap().values() {
        assert_decodes(case, &hex(variant.as_str().unwrap()), WordSize::Bits64);
    }
    for (key, word_size) in
        [("prefix_bytes_64bit", WordSize::Bits64), ("prefix_bytes_32bit", WordSize::Bits32)]
    {
        let layout = metadata::PrefixLayout::new(hex_field(case, "blob_hex").len(), word_size).unwrap();
        assert_eq!(layout.prefix_bytes() as u64, number(&case[key]), "{}: {key}", name(case));
    }
}

fn check_encode_32bit_high(case: &Value) {
    check_both_ways(case, "blob_hex", WordSize::Bits32);
    assert_decodes(case, &hex_field(case, "blob_hex_from_i386_reference"), WordSize::Bits32);
    // Nothing here depends on the decoder's word size, other than in the reference.
    assert_decodes(case, &hex_field(case, "blob_hex_from_i386_reference"), WordSize::Bits64);
    let expected = &case["reference_on_64bit_host_decodes_to"];
    assert_reference_decodes_to(case, &hex_field(case, "blob_hex_from_i386_reference"), expected);
}

/// The reference's decoder of a 64-bit machine, by its model, reads the blob so.
fn assert_reference_decodes_to(case: &Value, blob: &[u8], expected: &Value) {
    let (addresses, size) = model::decode_as_reference(blob);
    let expected = (numbers(&expected["addresses"]), number(&expected["alloc_size"]));
    assert_eq!((addresses, size), expected, "{}", name(case));
}

fn check_encode_64bit_high(case: &Value) {
    let blob = encode(&addresses(case), number(&case["alloc_size"]));
    if case["canonical_not_encodable"] == true {
        assert!(matches!(
            blob.expect_err(text(case, "id")).kind,
            LwsEncodeErrorKind::AddressTooWide | LwsEncodeErrorKind::SizeTooWide
        ));
        // Values that cannot be written are neither bytes nor under suspicion.
        assert!(case["canonical_blob_hex"].is_null(), "{}", name(case));
        assert!(case["alias_suspected_in_canonical_blob"].is_null(), "{}", name(case));
    } else {
        let blob = blob.unwrap_or_else(|error| panic!("{}: {error}", name(case)));
        assert_eq!(to_hex(&blob), text(case, "canonical_blob_hex"), "{}", name(case));
        assert_decodes(case, &blob, WordSize::Bits64);
        let suspected = lws::decode(&blob, WordSize::Bits64).unwrap().suspected_losses.any();
        assert_eq!(suspected, case["alias_suspected_in_canonical_blob"] == true, "{}", name(case));
    }

    let reference = &case["reference_decodes_its_own_blob_to"];
    let reference_blob = hex_field(case, "reference_blob_hex");
    assert_reference_decodes_to(case, &reference_blob, reference);
    assert_eq!(reference["error"].as_bool(), Some(false), "{}", name(case));
    let round_trips = (numbers(&reference["addresses"]), number(&reference["alloc_size"]))
        == (numbers(&case["addresses"]), number(&case["alloc_size"]));
    assert_eq!(case["reference_round_trips"].as_bool(), Some(round_trips), "{}", name(case));
    let salvage = lws::salvage(&reference_blob, WordSize::Bits64);
    let losses = salvage.findings.suspected_losses;
    let expected = case["alias_suspected_in_reference_blob"] == true;
    assert_eq!(losses.any(), expected, "{}", name(case));
    // Whatever is lost, the low 31 bits are there; what is not suspected is right altogether.
    if expected || case["reference_round_trips"] == true {
        let written = addresses(case);
        assert_eq!(salvage.addresses.len(), written.len(), "{}", name(case));
        for (index, (read, written)) in salvage.addresses.iter().zip(written).enumerate() {
            let mask = if losses.address(index) { lws::CERTAIN_BITS } else { u64::MAX };
            assert_eq!(read.value() & mask, written.value() & mask, "{}: address {index}", name(case));
        }
        let mask = if losses.allocation_size() { lws::CERTAIN_BITS } else { u64::MAX };
        let size = salvage.allocation_size_bytes.unwrap();
        assert_eq!(size & mask, number(&case["alloc_size"]) & mask, "{}", name(case));
    }
}

fn check_decode(case: &Value) {
    let blob = hex_field(case, "blob_hex");
    assert_decodes(case, &blob, WordSize::Bits64);
    if let Some(line) = case["log_line"].as_str() {
        assert_eq!(compressed_line(&blob), line, "{}", name(case));
        assert_line_decodes(case, line);
    }
    if case["decoded_line"].is_string() {
        assert_eq!(decoded_line(&blob), text(case, "decoded_line"), "{}", name(case));
    }
    if let Some(agrees) = case.get("reference_agrees") {
        let reference = model::decode_as_reference(&blob);
        let ours = (numbers(&case["addresses"]), number(&case["alloc_size"]));
        assert_eq!(agrees.as_bool(), Some(reference == ours), "{}", name(case));
    }
}

fn check_malformed(case: &Value) {
    let blob = hex_field(case, "blob_hex");
    assert_eq!(text(case, "strict"), "error");
    let error = lws::decode(&blob, WordSize::Bits64).expect_err(text(case, "id"));
    assert!(error.offset_bits <= blob.len() as u64 * 8, "{}: {error}", name(case));
    let salvage = lws::salvage(&blob, WordSize::Bits64);
    assert!(salvage.findings.faults().count() > 0, "{}", name(case));
    assert_eq!(text(case, "reference"), reference_verdict(&blob), "{}", name(case));
    let expected = &case["lenient"];
    if !expected.is_null() {
        assert_eq!(*salvage.addresses, addresses(expected), "{}", name(case));
        assert_eq!(salvage.allocation_size_bytes, Some(number(&expected["alloc_size"])), "{}", name(case));
    }
}

/// Returns what the reference makes of a malformed blob. It does not look at what follows the size.
fn reference_verdict(blob: &[u8]) -> &'static str {
    const FIRST_ITEM_BITS: u64 = 6;
    let Ok(whole) = lws::Blob::whole(blob) else { return "the decode tool refuses the length" };
    match whole.decode_leading(WordSize::Bits64) {
        Ok(_) => "accepts",
        Err(error)
            if matches!(error.kind, LwsErrorKind::NoSuchBase { .. })
                && error.offset_bits == FIRST_ITEM_BITS =>
        {
            "aborts (assertion)"
        }
        Err(_) => "error",
    }
}

fn check_dump_line_limit(case: &Value) {
    check_both_ways(case, "blob_hex", WordSize::Bits64);
    // check-words: quoted
    assert_eq!(number(&case["characters_kept"]), log_line::DUMP_LIMIT_CHARACTERS as u64);
    let expected = addresses(case);
    let mut buffer = [0; log_line::BUFFER_BYTES];
    let Some(cut) = case["log_line_cut"].as_str() else {
        let whole = text(case, "log_line");
        assert_line_decodes(case, whole);
        let run_on = format!("{whole}AAAA");
        let salvage = only_compressed(run_on.as_bytes()).salvage(WordSize::Bits64, &mut buffer).unwrap();
        assert_eq!(*salvage.addresses, expected, "{}", name(case));
        assert!(salvage.findings.length.is_some(), "{}", name(case));
        return;
    };
    let whole = compressed_line(&hex_field(case, "blob_hex"));
    assert_eq!(cut, &whole[..3 + log_line::DUMP_LIMIT_CHARACTERS], "{}", name(case));
    for garbage in ["", "A", "////garbage//of//the//stack////"] {
        let line = format!("N: {cut}{garbage}\n");
        let mark = only_compressed(line.as_bytes());
        assert!(mark.decode(WordSize::Bits64, &mut buffer).is_err(), "{}", name(case));
        let salvage = mark.salvage(WordSize::Bits64, &mut buffer).unwrap();
        assert!(salvage.findings.length.is_some(), "{}", name(case));
        assert!(expected.starts_with(&salvage.addresses), "{}: {garbage:?}", name(case));
        assert!(salvage.addresses.len() + 2 >= expected.len(), "{}: {garbage:?}", name(case));
    }
}

fn check_capacity(case: &Value) {
    let mut buffer = vec![0xee; number(&case["buffer_bytes"]) as usize];
    let expected = hex_field(case, "blob_hex");
    let gives_up = expected == lws::GIVE_UP_BLOB;
    let (addresses, size) = (addresses(case), number(&case["alloc_size"]));

    let (blob, reason) = lws::encode_or_give_up(&addresses, size, &mut buffer);
    assert_eq!(blob, expected, "{}", name(case));
    assert_eq!(
        reason.map(|error| error.kind),
        gives_up.then_some(LwsEncodeErrorKind::SinkFull),
        "{}",
        name(case)
    );
    let layout = metadata::PrefixLayout::new(blob.len(), WordSize::Bits64).unwrap();
    assert_eq!(layout.prefix_bytes() as u64, number(&case["prefix_bytes_64bit"]), "{}", name(case));

    let strict = lws::encode_into(&addresses, size, &mut buffer, BlobCapacity::Reference);
    assert_eq!(strict.is_err(), gives_up, "{}", name(case));
    let needed = encode(&addresses, size).unwrap().len();
    let whole = lws::encode_into(&addresses, size, &mut buffer, BlobCapacity::WholeBuffer).map(<[u8]>::len);
    let fits = needed as u64 <= number(&case["buffer_bytes"]);
    assert_eq!(whole.ok(), fits.then_some(needed), "{}", name(case));
}

fn check_memory_layout(case: &Value) {
    let memory = hex_field(case, "memory_hex");
    let word_size = WordSize::from_bits(number(&case["word_bits"]) as u32).unwrap();
    let offset = |key: &str| number(&case[key]) as usize;
    let found = metadata::find(&memory, offset("user_pointer_offset"), word_size)
        .unwrap_or_else(|error| panic!("{}: {error}", name(case)));
    assert_eq!(found.blob_offset, offset("blob_offset"), "{}", name(case));
    assert_eq!(found.list_node_offset, offset("list_node_offset"), "{}", name(case));
    assert_eq!(found.user_offset, offset("user_pointer_offset"), "{}", name(case));
    assert_eq!(found.true_allocation_offset, Some(offset("true_allocation_offset")), "{}", name(case));
    assert_eq!(found.blob.len() - 2, offset("blob_bytes_without_length"), "{}", name(case));
    assert!(!found.gave_up, "{}", name(case));
    assert_decodes(case, found.blob, word_size);
    assert_eq!(metadata::find_before_list_node(&memory, found.list_node_offset, word_size), Ok(found));

    let before_node = &memory[..found.list_node_offset];
    let by_its_end = lws::Blob::at_end_of(before_node).unwrap().decode(word_size).unwrap();
    assert_eq!(*by_its_end.addresses, addresses(case), "{}", name(case));

    let layout = metadata::PrefixLayout::new(found.blob.len(), word_size).unwrap();
    assert_eq!(layout.blob_offset(), found.blob_offset, "{}", name(case));
    assert_eq!(layout.list_node_offset(), found.list_node_offset, "{}", name(case));
    assert_eq!(layout.prefix_bytes(), found.user_offset, "{}", name(case));
    let fill = hex_field(case, "fill_byte_before_blob")[0];
    assert!(memory[..layout.pad_bytes()].iter().all(|&byte| byte == fill), "{}", name(case));
    let user_fill = hex_field(case, "fill_byte_user")[0];
    assert!(memory[layout.prefix_bytes()..].iter().all(|&byte| byte == user_fill), "{}", name(case));
}

fn check_capture_trim(case: &Value) {
    let walked = numbers(&case["unwound"]).into_iter().map(AbsoluteAddress::new);
    let selected = lws::trim(walked, number(&case["pre"]) as usize, number(&case["post"]) as usize);
    assert_eq!(selected.collect::<Vec<_>>(), addresses(case), "{}", name(case));
}

fn check_text(case: &Value) {
    let mut buffer = [0; log_line::BUFFER_BYTES];
    let decoded = log_line::decode_text(text(case, "text").as_bytes(), WordSize::Bits64, &mut buffer);
    let expected = &case["reference"];
    if expected == "error" {
        let error = decoded.expect_err(text(case, "id"));
        assert!(error.offset <= text(case, "text").len(), "{}: {error}", name(case));
        return;
    }
    let decoded = decoded.unwrap_or_else(|error| panic!("{}: {error}", name(case)));
    assert_eq!(*decoded.addresses, addresses(expected), "{}", name(case));
    assert_eq!(decoded.allocation_size_bytes, number(&expected["alloc_size"]), "{}", name(case));
}

/// Addresses and size to blob and texts and back, exactly.
fn check_both_ways(case: &Value, blob_key: &str, word_size: WordSize) {
    let (addresses, size) = (addresses(case), number(&case["alloc_size"]));
    let blob = encode(&addresses, size).unwrap_or_else(|error| panic!("{}: {error}", name(case)));
    assert_eq!(to_hex(&blob), text(case, blob_key), "{}", name(case));
    assert_decodes(case, &blob, word_size);
    assert_eq!(to_hex(&model::encode(&addresses, size)), text(case, blob_key), "{}: model", name(case));
    let line = compressed_line(&blob);
    if case["log_line"].is_string() {
        assert_eq!(line, text(case, "log_line"), "{}", name(case));
        assert_line_decodes(case, &line);
    }
    if case["decoded_line"].is_string() {
        assert_eq!(decoded_line(&blob), text(case, "decoded_line"), "{}", name(case));
        assert_decoded_line_parses(text(case, "decoded_line"), size, &addresses);
    }
}

/// The blob holds the addresses and the size of the case, for every kind of decoder.
fn assert_decodes(case: &Value, blob: &[u8], word_size: WordSize) {
    let (addresses, size) = (addresses(case), number(&case["alloc_size"]));
    let strict = lws::decode(blob, word_size).unwrap_or_else(|error| panic!("{}: {error}", name(case)));
    assert_eq!(*strict.addresses, addresses, "{}", name(case));
    assert_eq!(strict.allocation_size_bytes, size, "{}", name(case));
    let salvage = lws::salvage(blob, word_size);
    assert_eq!(salvage.addresses, strict.addresses, "{}", name(case));
    assert_eq!(salvage.allocation_size_bytes, Some(size), "{}", name(case));
    assert_eq!(salvage.findings.faults().count(), 0, "{}", name(case));
    let memory = [&[0xa5; 9][..], blob].concat();
    let decoder = lws::Blob::at_end_of(&memory).unwrap().decoder(word_size).unwrap();
    assert_eq!(decoder.depth(), addresses.len(), "{}", name(case));
    assert_eq!(decoder.collect::<Result<Vec<_>, _>>(), Ok(addresses), "{}", name(case));
}

fn assert_line_decodes(case: &Value, mark_text: &str) {
    let line = format!("\x1b[31m~ ~m[2022/03/01] N: {mark_text}\x1b[0m tail");
    let mark = only_compressed(line.as_bytes());
    assert_eq!(&line[mark.range()], mark_text, "{}", name(case));
    let decoded = mark
        .decode(WordSize::Bits64, &mut [0; log_line::BUFFER_BYTES])
        .unwrap_or_else(|error| panic!("{}: {error}", name(case)));
    assert_eq!(*decoded.addresses, addresses(case), "{}", name(case));
    assert_eq!(decoded.allocation_size_bytes, number(&case["alloc_size"]), "{}", name(case));
}

fn assert_decoded_line_parses(line: &str, size: u64, addresses: &[AbsoluteAddress]) {
    let Some(Mark::Decoded(mark)) = log_line::marks(line.as_bytes()).next() else {
        panic!("no mark: {line}")
    };
    assert_eq!(mark.range(), 0..line.len() - 1, "{line}");
    let (parsed_size, parsed) = mark.parse().unwrap();
    assert_eq!(parsed_size, size, "{line}");
    assert_eq!(parsed.collect::<Result<Vec<_>, _>>().unwrap(), addresses, "{line}");
}

fn only_compressed(line: &[u8]) -> log_line::CompressedText<'_> {
    let marks: Vec<_> = log_line::marks(line).collect();
    let [Mark::Compressed(mark)] = marks[..] else { panic!("not one compressed mark: {marks:?}") };
    mark
}

fn addresses(case: &Value) -> Vec<AbsoluteAddress> {
    numbers(&case["addresses"]).into_iter().map(AbsoluteAddress::new).collect()
}

fn encode(addresses: &[AbsoluteAddress], size: u64) -> Result<Vec<u8>, lws::LwsEncodeError> {
    let mut buffer = [0; lws::BLOB_BUFFER_BYTES];
    lws::encode_into(addresses, size, &mut buffer, BlobCapacity::Reference).map(<[u8]>::to_vec)
}

fn compressed_line(blob: &[u8]) -> String {
    let mut buffer = [0; 1024];
    let mut sink = SliceSink::new(&mut buffer);
    log_line::write_compressed(blob, &mut sink).unwrap();
    String::from_utf8(sink.written().to_vec()).unwrap()
}

fn decoded_line(blob: &[u8]) -> String {
    let backtrace = lws::decode(blob, WordSize::Bits64).unwrap();
    let mut buffer = [0; 1024];
    let mut sink = SliceSink::new(&mut buffer);
    log_line::write_decoded(backtrace.allocation_size_bytes, backtrace.addresses.iter().copied(), &mut sink)
        .unwrap();
    String::from_utf8(sink.written().to_vec()).unwrap()
}

/// Encodes from the description alone, with strings of `0` and `1`. There are no shifts and no
/// history buffer.
mod model {
    use cairn_format::AbsoluteAddress;

    pub(super) fn encode(addresses: &[AbsoluteAddress], size: u64) -> Vec<u8> {
        let values: Vec<u64> = addresses.iter().map(|address| address.value()).collect();
        let mut bits = field(values.len() as u64, 5);
        for (n, &value) in values.iter().enumerate() {
            let candidates = n.saturating_sub(8)..n;
            // `min_by_key` gives the first of equals, which is the one farthest back.
            let best = candidates.min_by_key(|&m| value.abs_diff(values[m])).unwrap_or(0);
            let distance = value.abs_diff(values[best]);
            if best != 0 && width(distance) + 11 < width(value) + 7 {
                bits += &field(1, 1);
                bits += &field((n - best - 1) as u64, 3);
                bits += &field(u64::from(value <= values[best]), 1);
                bits += &sized(distance);
            } else {
                bits += &field(0, 1);
                bits += &sized(value);
            }
        }
        bits += &sized(size);
        close(bits)
    }

    /// Returns a number as its width in 6 bits and itself.
    pub(super) fn sized(value: u64) -> String {
        field(width(value) as u64, 6) + &field(value, width(value))
    }

    pub(super) fn field(value: u64, width: usize) -> String {
        format!("{value:0width$b}0")
    }

    fn width(value: u64) -> usize {
        format!("{value:b}").len()
    }

    /// Returns the addresses and the size that the reference's decoder gives on a 64-bit machine.
    ///
    /// Its loop takes the spare bit for bit -1 of the value, and shifts an `int` by the number of
    /// the bit modulo 32: a 1 in bit 31, or in the spare bit, sets all bits from 31 up. A width
    /// with such a bit is negative, and nothing is read.
    pub(super) fn decode_as_reference(blob: &[u8]) -> (Vec<u64>, u64) {
        let text: String = blob.iter().map(|byte| format!("{byte:08b}")).collect();
        let mut bits = text.chars();
        let mut read = |width: i32| {
            (0..=width).rev().fold(0_u64, |value, above| match bits.next() {
                Some('1') => {
                    // `above` counts the bits after this one, the spare bit among them.
                    let number = (above - 1).rem_euclid(32);
                    value | i64::from(1_i32 << number) as u64
                }
                Some(_) => value,
                None => panic!("the reference finds an error"),
            })
        };
        let mut addresses = Vec::new();
        for _ in 0..read(5) {
            let address = if read(1) == 0 {
                let width = read(6) as i32;
                read(width)
            } else {
                let (back, subtract) = (read(3) as usize, read(1));
                let width = read(6) as i32;
                let (base, distance): (u64, u64) = (addresses[addresses.len() - 1 - back], read(width));
                if subtract == 0 { base.wrapping_add(distance) } else { base.wrapping_sub(distance) }
            };
            addresses.push(address);
        }
        let width = read(6) as i32;
        let size = read(width);
        (addresses, size)
    }

    pub(super) fn close(mut bits: String) -> Vec<u8> {
        while bits.len() % 8 != 0 {
            bits.push('0');
        }
        let total = bits.len() / 8 + 2;
        bits += &format!("{total:016b}");
        (0..total).map(|at| u8::from_str_radix(&bits[at * 8..at * 8 + 8], 2).unwrap()).collect()
    }
}

#[test]
fn lws_encoder_refuses_more_than_31_addresses() {
    let deep = vec![AbsoluteAddress::new(1); 32];
    assert_eq!(encode(&deep, 1).unwrap_err().kind, LwsEncodeErrorKind::TooDeep);
    assert!(encode(&deep[..31], 1).is_ok());
}

#[test]
fn lws_encoder_refuses_64_bit_values() {
    let addresses = [5, 6, 1 << 63].map(AbsoluteAddress::new);
    assert_eq!(
        encode(&addresses, 1),
        Err(lws::LwsEncodeError { item: 2, kind: LwsEncodeErrorKind::AddressTooWide })
    );
    assert_eq!(encode(&addresses[..2], 1 << 63).unwrap_err().kind, LwsEncodeErrorKind::SizeTooWide);
    assert!(encode(&[AbsoluteAddress::new(u64::MAX >> 1)], u64::MAX >> 1).is_ok());
}

#[test]
fn lws_encoder_reports_a_wrong_depth() {
    let mut encoder = lws::LwsEncoder::new(CountingSink::default(), 1).unwrap();
    let early = lws::LwsEncoder::new(CountingSink::default(), 1).unwrap().allocation_size(1);
    assert_eq!(early.unwrap_err().kind, LwsEncodeErrorKind::WrongCount);
    encoder.address(AbsoluteAddress::new(1)).unwrap();
    assert_eq!(encoder.address(AbsoluteAddress::new(1)).unwrap_err().kind, LwsEncodeErrorKind::WrongCount);
}

#[test]
fn lws_blob_has_at_most_65535_bytes() {
    for (field_bytes, fits) in [(65_531_u32, true), (65_532, false)] {
        // Depth 0 (6 bits) and size 1 (9 bits) take two bytes, with one bit of padding.
        let mut buffer = vec![0; 70_000];
        let encoder = lws::LwsEncoder::new(SliceSink::new(&mut buffer), 0).unwrap();
        let mut blob = encoder.allocation_size(1).unwrap();
        for _ in 0..field_bytes {
            blob.user_fields().bits(0xff, 8).unwrap();
        }
        blob.user_fields().bits(1, 1).unwrap();
        let closed = blob.close();
        assert_eq!(closed.is_ok(), fits);
        match closed {
            Ok((blob_bytes, sink)) => {
                assert_eq!((blob_bytes, sink.written().len()), (65_535, 65_535));
            }
            Err(error) => assert_eq!(error.kind, LwsEncodeErrorKind::BlobTooLong),
        }
    }
}

#[test]
fn lws_delta_wraps_in_the_machine_word() {
    // Items: 9; one back, subtract 17. Size 9.
    let bits = [
        model::field(2, 5),
        model::field(0, 1) + &model::sized(9),
        model::field(1, 1) + &model::field(0, 3) + &model::field(1, 1) + &model::sized(17),
        model::sized(9),
    ];
    let blob = model::close(bits.concat());
    for (word_size, wrapped) in [
        (WordSize::Bits16, 0xfff8),
        (WordSize::Bits32, 0xffff_fff8),
        (WordSize::Bits64, 0xffff_ffff_ffff_fff8),
    ] {
        let backtrace = lws::decode(&blob, word_size).unwrap();
        assert_eq!(backtrace.addresses[1].value(), wrapped);
    }
}

#[test]
fn lws_refuses_addresses_wider_than_the_word() {
    let blob = encode(&[0x1234, 0x7f00_0000_0000].map(AbsoluteAddress::new), 1).unwrap();
    let error = lws::decode(&blob, WordSize::Bits32).unwrap_err();
    assert_eq!(error.kind, LwsErrorKind::WiderThanWord { bits: 47 });
    assert_eq!(error.offset_bits, 6 + 10 + 13);
    assert_eq!(lws::salvage(&blob, WordSize::Bits32).addresses.len(), 1);
}

#[test]
fn lws_suspicion_passes_from_base_to_delta() {
    // 33 bits whose top bit equals the lowest one; a delta of 4 on it; then a literal that is
    // sound.
    let bits = [
        model::field(3, 5),
        model::field(0, 1) + &model::sized(0x1_0000_0001),
        model::field(1, 1) + &model::field(0, 3) + &model::field(0, 1) + &model::sized(4),
        model::field(0, 1) + &model::sized(0x1000),
        model::sized(0x1_0000_0003),
    ];
    let losses = lws::decode(&model::close(bits.concat()), WordSize::Bits64).unwrap().suspected_losses;
    assert_eq!([0, 1, 2, 3].map(|index| losses.address(index)), [true, true, false, false]);
    assert!(losses.allocation_size());
}

#[test]
fn lws_length_field_stays_inside_the_memory() {
    let kind = |memory: &[u8]| lws::Blob::at_end_of(memory).map(|_| ()).unwrap_err().kind;
    assert_eq!(kind(&[]), LwsErrorKind::NoLength);
    assert_eq!(kind(&[1]), LwsErrorKind::NoLength);
    assert_eq!(kind(&[9, 9, 0, 0]), LwsErrorKind::GaveUp);
    for stated in [1, 5, 255] {
        let wrong = LwsErrorKind::WrongLength { stated_bytes: stated, actual_bytes: 4 };
        assert_eq!(kind(&[9, 9, 0, stated as u8]), wrong);
    }
}

#[test]
fn lws_give_up_blob_has_no_addresses_and_no_size() {
    assert_eq!(lws::decode(&lws::GIVE_UP_BLOB, WordSize::Bits64).unwrap_err().kind, LwsErrorKind::GaveUp);
    let salvage = lws::salvage(&lws::GIVE_UP_BLOB, WordSize::Bits64);
    assert_eq!((salvage.addresses.len(), salvage.allocation_size_bytes), (0, None));
    assert_eq!(salvage.findings.faults().count(), 1);
}

#[test]
fn lws_give_up_allocation_is_four_pointers_below_user() {
    for (word_size, word) in [(WordSize::Bits16, 2), (WordSize::Bits32, 4), (WordSize::Bits64, 8)] {
        let memory = [vec![0xcc; word - 2], vec![0; 2 + 3 * word], vec![0xaa; 8]].concat();
        let found = metadata::find(&memory, 4 * word, word_size).unwrap();
        assert!(found.gave_up);
        assert_eq!(found.blob, lws::GIVE_UP_BLOB);
        assert_eq!(found.true_allocation_offset, Some(0));
    }
}

#[test]
fn lws_metadata_outside_of_the_image_is_an_error() {
    use metadata::MetadataErrorKind as Kind;
    let kind = |memory: &[u8], user| metadata::find(memory, user, WordSize::Bits32).unwrap_err().kind;
    let image = |length: u16| [&[0xcc, 0xcc][..], &length.to_be_bytes(), &[0; 12]].concat();
    assert_eq!(kind(&[], 0), Kind::OutsideMemory);
    assert_eq!(kind(&image(3), 13), Kind::OutsideMemory);
    assert_eq!(kind(&image(3), 1000), Kind::OutsideMemory);
    assert_eq!(kind(&image(3), usize::MAX), Kind::OutsideMemory);
    assert_eq!(kind(&image(1), 16), Kind::LengthTooSmall);
    assert_eq!(kind(&image(5), 16), Kind::BlobBeforeMemory { stated_bytes: 5 });
    // The blob is there, but not the start of the allocation: an image may begin anywhere.
    let late_image = &image(3)[1..];
    let found = metadata::find(late_image, 15, WordSize::Bits32).unwrap();
    assert_eq!((found.blob_offset, found.true_allocation_offset), (0, None));
}

#[test]
fn lws_trim_selects_the_frames_of_libwebsockets() {
    let walked = |range: std::ops::Range<u64>| range.map(AbsoluteAddress::new);
    let selected = |range, pre, post| {
        lws::trim(walked(range), pre, post).map(AbsoluteAddress::value).collect::<Vec<_>>()
    };
    assert_eq!(selected(0..4, 0, 0), [1, 2, 3], "zero is left out");
    assert_eq!(selected(0..4, 1, 1), [1, 2], "a zero counts among the first frames");
    assert!(selected(1..4, 5, 1).is_empty());
    assert_eq!(selected(1..3, 0, 2), [1, 2], "not more than `post` there: all stay");
    assert_eq!(selected(1..100, 0, 0).len(), 32);
    assert_eq!(selected(1..100, 0, 1).last(), Some(&31), "the 32nd is dropped, not the outermost");
}

#[test]
fn lws_finds_several_marks_in_a_line() {
    let line = b"~~m#CF0BmUQKAAg= x ~b#size: 7, 0x1 0x20 ~m#~m#CF0BmUQKAAg==~m";
    let mut found = Vec::new();
    for mark in log_line::marks(line) {
        match mark {
            Mark::Compressed(text) => found.push(("m", text.range(), text.base64())),
            Mark::Decoded(text) => found.push(("b", text.range(), b"")),
        }
    }
    let base64 = &b"CF0BmUQKAAg="[..];
    let expected =
        [("m", 1..16, base64), ("b", 19..40, b""), ("m", 40..43, b""), ("m", 43..59, b"CF0BmUQKAAg==")];
    assert_eq!(found, expected);
}

#[test]
fn lws_text_faults_are_distinguished() {
    let mut buffer = [0; 8];
    let mut error = |line: &[u8]| only_compressed(line).decode(WordSize::Bits64, &mut buffer).unwrap_err();
    assert_eq!(error(b"x ~m#\n"), log_line::TextError { offset: 5, kind: TextErrorKind::Empty });
    assert_eq!(error(b"~m#AAAAAAAAAAAAAAAA").kind, TextErrorKind::BufferTooSmall { buffer_bytes: 8 });
    assert!(matches!(
        error(b"~m#AAA=").kind,
        TextErrorKind::Blob(blob_error) if blob_error.kind == LwsErrorKind::GaveUp
    ));

    let parse = |line: &'static [u8]| match log_line::marks(line).next() {
        Some(Mark::Decoded(text)) => {
            text.parse().and_then(|(_, addresses)| addresses.collect::<Result<Vec<_>, _>>())
        }
        other => panic!("{other:?}"),
    };
    for (line, offset, kind) in [
        (&b"~b#"[..], 3, TextErrorKind::NoSize),
        (b"~b#size:7, 0x1", 3, TextErrorKind::NoSize),
        (b"~b#size: , 0x1", 9, TextErrorKind::BadNumber),
        (b"~b#size: 7 0x1", 9, TextErrorKind::BadNumber),
        (b"~b#size: 18446744073709551616, 0x1", 9, TextErrorKind::BadNumber),
        (b"~b#size: 7, 0x1 0x ", 18, TextErrorKind::BadNumber),
        (b"~b#size: 7, 0x1 0x12g", 18, TextErrorKind::BadNumber),
        (b"~b#size: 7, 0x10000000000000000", 14, TextErrorKind::BadNumber),
    ] {
        assert_eq!(parse(line), Err(log_line::TextError { offset, kind }), "{}", line.escape_ascii());
    }
    assert_eq!(parse(b"~b#size: 7, \n"), Ok(vec![]));
    assert_eq!(parse(b"~b#size: 7, 0xFFFFffffFFFFffff"), Ok(vec![AbsoluteAddress::new(u64::MAX)]));
}

#[test]
fn lws_reference_text_rule_has_its_limits() {
    let mut buffer = [0; log_line::BUFFER_BYTES];
    let mut kind = |text: &[u8]| log_line::decode_text(text, WordSize::Bits64, &mut buffer).unwrap_err().kind;
    assert_eq!(kind(b"CF0"), TextErrorKind::TooShort);
    assert_eq!(kind(b"CF0BmUQ\x0cKAAg="), TextErrorKind::NotBase64 { character: 0x0c });
    assert_eq!(kind(&[b' '; 2049]), TextErrorKind::TooLong);
    assert!(matches!(kind(&[b' '; 2048]), TextErrorKind::Blob(_)));
}

/// Addresses as stacks have them: a few regions, and near neighbours within each.
fn stack() -> impl Strategy<Value = Vec<AbsoluteAddress>> {
    let address = prop_oneof![
        4 => (0_u64..3, 0_u64..0x4000).prop_map(|(region, at)| 0x5555_5555_0000 + region * 0x2aaa_0000_0000 + at),
        2 => 0x0040_0000_u64..0x0041_0000,
        1 => (0_u32..63, any::<u64>()).prop_map(|(bits, value)| value & ((1 << bits) | ((1 << bits) - 1))),
    ];
    prop::collection::vec(address.prop_map(AbsoluteAddress::new), 0..=31)
}

proptest! {
    #[test]
    fn lws_encoder_agrees_with_model_and_round_trips(
        addresses in stack(), size in 0_u64..1 << 63, capacity in 0_usize..300,
    ) {
        let blob = encode(&addresses, size).unwrap();
        prop_assert_eq!(to_hex(&blob), to_hex(&model::encode(&addresses, size)));
        let backtrace = lws::decode(&blob, WordSize::Bits64).unwrap();
        prop_assert_eq!(&*backtrace.addresses, &addresses[..]);
        prop_assert_eq!(backtrace.allocation_size_bytes, size);
        let counted = lws::encode(&addresses, size, CountingSink::default());
        prop_assert_eq!(counted, Ok(blob.len()));
        let mut small = vec![0; capacity];
        let fitted = lws::encode_into(&addresses, size, &mut small, BlobCapacity::WholeBuffer);
        prop_assert_eq!(fitted.is_ok(), blob.len() <= capacity);
    }

    #[test]
    fn lws_user_fields_round_trip(
        addresses in stack(), fields in prop::collection::vec((any::<u64>(), 0_u32..=64, any::<bool>()), 0..20),
    ) {
        let mut buffer = [0; 1024];
        let mut encoder = lws::LwsEncoder::new(SliceSink::new(&mut buffer), addresses.len()).unwrap();
        for &address in &addresses {
            encoder.address(address).unwrap();
        }
        let mut blob = encoder.allocation_size(77).unwrap();
        for &(value, width, spare) in &fields {
            let user: &mut BitWriter<_> = blob.user_fields();
            if spare { user.field(value, width).unwrap() } else { user.bits(value, width).unwrap() }
        }
        let written = blob.close().unwrap().1.into_written();

        let decoder = lws::Blob::whole(written).unwrap().decoder(WordSize::Bits64).unwrap();
        let mut ending = decoder.finish().unwrap();
        prop_assert_eq!(ending.allocation_size_bytes, 77);
        let user: &mut BitReader<'_> = &mut ending.user_fields;
        for &(value, width, spare) in &fields {
            let read = if spare { user.field(width) } else { user.bits(width) };
            prop_assert_eq!(read, Some(value & u64::MAX.checked_shr(64 - width).unwrap_or(0)));
        }
        prop_assert_eq!(ending.check_nothing_left(), Ok(()));
    }

    #[test]
    fn lws_truncated_blob_yields_leading_addresses(addresses in stack(), keep in 0.0..1.0) {
        let blob = encode(&addresses, 100).unwrap();
        let cut = &blob[..(blob.len() as f64 * keep) as usize];
        // By chance the last two bytes may be a right length.
        prop_assume!(!cut.ends_with(&(cut.len() as u16).to_be_bytes()));
        prop_assert!(lws::decode(cut, WordSize::Bits64).is_err());
        let salvage = lws::salvage(cut, WordSize::Bits64);
        prop_assert!(addresses.starts_with(&salvage.addresses));
        prop_assert!(salvage.findings.length.is_some());
        prop_assert!(salvage.allocation_size_bytes.is_none_or(|size| size == 100));
    }

    #[test]
    fn lws_strict_and_salvage_agree_on_random_bytes(
        mut bytes in prop::collection::vec(any::<u8>(), 0..60), true_length in any::<bool>(), depth in 0_u8..4,
    ) {
        if let [first, .., _, low] = &mut bytes[..] {
            *first = depth << 3 | *first & 7;
            *low = if true_length { 0 } else { *low };
        }
        let total = bytes.len();
        if true_length && total >= 2 {
            bytes[total - 2..].copy_from_slice(&(total as u16).to_be_bytes());
        }
        for word_size in [WordSize::Bits16, WordSize::Bits32, WordSize::Bits64] {
            let salvage = lws::salvage(&bytes, word_size);
            match lws::decode(&bytes, word_size) {
                Ok(backtrace) => {
                    prop_assert_eq!(backtrace.addresses, salvage.addresses);
                    prop_assert_eq!(Some(backtrace.allocation_size_bytes), salvage.allocation_size_bytes);
                    prop_assert_eq!(salvage.findings.faults().count(), 0);
                }
                Err(error) => prop_assert_eq!(salvage.findings.faults().next(), Some(error)),
            }
        }
    }

    #[test]
    fn lws_decoded_lines_round_trip(size in any::<u64>(), values in prop::collection::vec(any::<u64>(), 0..50)) {
        let addresses: Vec<_> = values.into_iter().map(AbsoluteAddress::new).collect();
        let mut buffer = [0; 2000];
        let mut sink = SliceSink::new(&mut buffer);
        log_line::write_decoded(size, addresses.iter().copied(), &mut sink).unwrap();
        assert_decoded_line_parses(std::str::from_utf8(sink.written()).unwrap(), size, &addresses);
    }

    #[test]
    fn lws_finds_marks_after_any_text(before in "[^~]{0,40}", after in "[ \n\x1b*][^~]{0,40}") {
        let line = format!("{before}~m#CF0BmUQKAAg={after}");
        let mark = only_compressed(line.as_bytes());
        prop_assert_eq!(mark.range(), before.len()..before.len() + 15);
        prop_assert_eq!(mark.base64(), b"CF0BmUQKAAg=");
    }
}

// Failed with: no function read these texts; `~b#0x1000 0x1010` was `NoSize`.
#[test]
fn lws_reads_whole_lines_of_frames() {
    let frames = |line: &'static str| match log_line::marks(line.as_bytes()).next() {
        Some(Mark::Decoded(text)) => text.frames().and_then(|(size, frames)| {
            Ok((
                size,
                frames
                    .map(|frame| frame.map(|read| (read.frame, read.is_uncertain)))
                    .collect::<Result<Vec<_>, _>>()?,
            ))
        }),
        other => panic!("{other:?}"),
    };
    let at = AbsoluteAddress::new;
    let size = |bytes, is_uncertain| Some(log_line::TextSize { bytes, is_uncertain });
    let ra = |value| (Frame::ReturnAddress(at(value)), false);
    for (line, expected) in [
        ("~b#0x1000 0x1010 ", (None, vec![ra(0x1000), ra(0x1010)])),
        ("~b#size: 7, 0x1 0x2 \n", (size(7, false), vec![ra(1), ra(2)])),
        ("~b#size: 7?, ", (size(7, true), vec![])),
        (
            "~b#pc:0x10 ra:0x20 async:0x30 ...5 0x40? ... ",
            (
                None,
                vec![
                    (Frame::ProgramCounter(at(0x10)), false),
                    ra(0x20),
                    (Frame::AsyncResumePoint(at(0x30)), false),
                    (Frame::Omitted(5), false),
                    (Frame::ReturnAddress(at(0x40)), true),
                    (Frame::Truncated, false),
                ],
            ),
        ),
        ("~b#... pc:16", (None, vec![(Frame::Truncated, false)])),
        ("~b#0x1, 0x2", (None, vec![ra(1)])),
    ] {
        assert_eq!(frames(line), Ok(expected), "{line}");
    }
    for (line, offset, kind) in [
        ("~b#1000", 3, TextErrorKind::NoSize),
        ("~b# 0x1000", 3, TextErrorKind::NoSize),
        ("~b#0x", 5, TextErrorKind::BadNumber),
        ("~b#0x1 pc:0x1g", 12, TextErrorKind::BadNumber),
        ("~b#0x1 ...0", 10, TextErrorKind::BadNumber),
        ("~b#0x1 ...5x", 10, TextErrorKind::BadNumber),
        ("~b#0x1 0x10000000000000000", 9, TextErrorKind::BadNumber),
        ("~b#size: 7??, 0x1", 9, TextErrorKind::BadNumber),
    ] {
        assert_eq!(frames(line), Err(log_line::TextError { offset, kind }), "{line}");
    }
    let Some(Mark::Decoded(text)) = log_line::marks(b"x ~b#0x1 ...5 tail").next() else { panic!() };
    assert_eq!(text.range(), 2..14);
}
