//! The Compact ImageMap Format against the conformance vectors, and against two plain models of the
//! format's rules.
//!
//! Long because the plain model, the vectors and the properties of one format share their helpers.

mod support;

use cairn_format::{AbsoluteAddress, CountingSink, Module, Sink, SinkFull, SliceSink, WordSize};
use cairn_wire::cif::{
    CifDecoder, CifDialect, CifEncodeErrorKind, CifError, CifErrorKind, DecoderSlot, EncoderSlot, ImageMap,
    MAX_IMAGES, MAX_PATH_BYTES, encode, slots_needed,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::Value;
use support::mutate::assert_changes_are_noticed;

const VECTORS: &str = "swift_cif.json";

/// An image with everything owned, to compare with.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct OwnedImage {
    base: u64,
    end: u64,
    build_id: Option<Vec<u8>>,
    path: Option<Vec<u8>>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct OwnedMap {
    word_size: WordSize,
    platform: String,
    images: Vec<OwnedImage>,
}

struct VecSink(Vec<u8>);

impl Sink for VecSink {
    fn put(&mut self, bytes: &[u8]) -> Result<(), SinkFull> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }
}

impl OwnedMap {
    fn encode_with(&self, dialect: CifDialect, slots: usize) -> Result<Vec<u8>, CifEncodeErrorKind> {
        let images: Vec<Module<'_>> = self
            .images
            .iter()
            .map(|image| Module {
                base: AbsoluteAddress::new(image.base),
                end: AbsoluteAddress::new(image.end),
                build_id: image.build_id.as_deref(),
                path: image.path.as_deref(),
            })
            .collect();
        let map = ImageMap { word_size: self.word_size, platform: &self.platform, images: &images };
        let mut sink = VecSink(Vec::new());
        // Slots that hold something already must not matter.
        let mut slots = vec![EncoderSlot::EMPTY; slots];
        let _ = encode(&map, dialect, &mut slots, &mut CountingSink::default());
        encode(&map, dialect, &mut slots, &mut sink).map(|()| sink.0).map_err(|error| error.kind)
    }

    fn encode(&self, dialect: CifDialect) -> Result<Vec<u8>, CifEncodeErrorKind> {
        self.encode_with(dialect, self.images.len())
    }

    /// Returns this map as it is read back: an empty build id or path is absent.
    fn read_back(mut self) -> Self {
        for image in &mut self.images {
            image.build_id = image.build_id.take().filter(|build_id| !build_id.is_empty());
            image.path = image.path.take().filter(|path| !path.is_empty());
        }
        self
    }
}

/// All that a decoder says about an input.
#[derive(Debug)]
struct Decoded {
    map: OwnedMap,
    findings: Vec<CifError>,
    error: Option<CifError>,
}

impl Decoded {
    fn finding_kinds(&self) -> Vec<CifErrorKind> {
        self.findings.iter().map(|finding| finding.kind).collect()
    }
}

fn owned(image: &cairn_wire::cif::Image<'_>) -> OwnedImage {
    let module = &image.module;
    let path = module.path.map(|path| {
        let bytes: Vec<u8> = path.bytes().collect();
        assert_eq!(bytes.len(), path.len());
        assert!(path == bytes[..]);
        assert_eq!(path.to_string(), String::from_utf8_lossy(&bytes));
        bytes
    });
    OwnedImage {
        base: module.base.value(),
        end: module.end.value(),
        build_id: module.build_id.map(<[u8]>::to_vec),
        path,
    }
}

fn decode(input: &[u8], lenient: bool) -> Result<Decoded, CifError> {
    decode_with(input, lenient, slots_needed(input))
}

fn decode_with(input: &[u8], lenient: bool, slots: usize) -> Result<Decoded, CifError> {
    let mut slots = vec![DecoderSlot::EMPTY; slots];
    let mut decoder = if lenient {
        CifDecoder::lenient(input, &mut slots)?
    } else {
        CifDecoder::strict(input, &mut slots)?
    };
    let mut images = Vec::new();
    let mut findings = decoder.findings().to_vec();
    let in_header = findings.len();
    let mut error = None;
    for item in decoder.by_ref() {
        assert!(error.is_none(), "an item after an error");
        match item {
            Ok(image) => {
                findings.extend_from_slice(image.findings());
                images.push(owned(&image));
            }
            Err(found) => error = Some(found),
        }
    }
    assert!(decoder.next().is_none());
    findings.extend_from_slice(&decoder.findings()[in_header..]);
    assert!(findings.iter().chain(&error).all(|found| found.offset <= input.len()));
    let platform = String::from_utf8_lossy(decoder.platform()).into_owned();
    Ok(Decoded { map: OwnedMap { word_size: decoder.word_size(), platform, images }, findings, error })
}

fn decode_strict(input: &[u8]) -> Result<OwnedMap, CifError> {
    let decoded = decode(input, false)?;
    match decoded.error {
        Some(error) => Err(error),
        None => Ok(decoded.map),
    }
}

fn map_of(value: &Value) -> OwnedMap {
    let image = |image: &Value| OwnedImage {
        base: support::number(&image["base"]),
        end: support::number(&image["end_of_text"]),
        build_id: image["build_id"].as_str().map(support::hex),
        path: image["path"].as_str().map(|path| path.as_bytes().to_vec()),
    };
    OwnedMap {
        word_size: WordSize::from_bits(support::number(&value["word_bits"]) as u32).unwrap(),
        platform: support::text(value, "platform").to_owned(),
        images: value["images"].as_array().unwrap().iter().map(image).collect(),
    }
}

// ---- conformance vectors ----

// Failed with: unnoticed changes, most of them of `reference_reads_canonical_bytes` and of
// what the reference reads.
#[test]
fn cif_vectors_hold_and_every_field_is_judged() {
    assert_changes_are_noticed(
        &support::cases(VECTORS, None),
        check,
        &[
            ("decode/hex", 25, "input: bytes behind an error, or of what the error leaves out"),
            ("encode-invalid/platform", 2, "input: another part is refused"),
            ("encode-invalid/images/*/base", 2, "input: it is refused all the same"),
            ("encode-invalid/images/*/end_of_text", 2, "input: the same"),
            ("encode-invalid/images/*/build_id", 1, "input: another part is refused"),
            ("encode-invalid/images/*/path", 6, "input: another part is refused"),
        ],
    );
}

fn check(case: &Value) {
    match support::text(case, "group") {
        "encode" => check_encode(case),
        "encode-invalid" => check_encode_invalid(case),
        "decode" => check_decode(case),
        group => panic!("no test for {group}"),
    }
}

/// Maps are written byte for byte.
fn check_encode(case: &Value) {
    let name = support::name(case);
    let map = map_of(case);
    let canonical = map.encode(CifDialect::Canonical).unwrap();
    let reference = map.encode(CifDialect::Swift62).unwrap();
    assert_eq!(support::to_hex(&canonical), support::text(case, "canonical_hex"), "{name}");
    assert_eq!(support::to_hex(&reference), support::text(case, "reference_hex"), "{name}");
    assert_eq!(canonical == reference, case["same_bytes"].as_bool().unwrap(), "{name}");
    assert_eq!(decode_strict(&canonical), Ok(map.clone()), "{name}");

    let reads_back = case["reference_reads_back_its_own_bytes"].as_bool().unwrap();
    assert_eq!(decode(&reference, true).unwrap().map == map, reads_back, "{name}");
    // The lenient decoder reads what Swift reads.
    let reads_canonical = case["reference_reads_canonical_bytes"].as_bool().unwrap();
    assert_eq!(decode(&canonical, true).unwrap().map == map, reads_canonical, "{name}");
    // A frugal writer loses nothing.
    let without_slots = map.encode_with(CifDialect::Canonical, 0).unwrap();
    assert!(without_slots.len() >= canonical.len(), "{name}");
    assert_eq!(decode_strict(&without_slots), Ok(map), "{name}");
}

/// Input that traps Swift is refused.
fn check_encode_invalid(case: &Value) {
    let name = support::name(case);
    let map = map_of(case);
    assert_eq!(support::text(case, "reference"), "traps", "{name}");
    assert!(map.encode(CifDialect::Swift62).is_err(), "{name}");
    let canonical = map.encode(CifDialect::Canonical);
    if map.images.iter().any(|image| image.build_id.as_deref() == Some(&[])) {
        assert_eq!(decode_strict(&canonical.unwrap()), Ok(map.read_back()), "{name}");
    } else {
        assert!(canonical.is_err(), "{name}");
    }
}

/// Maps are read as the vectors say.
fn check_decode(case: &Value) {
    let name = support::name(case);
    let input = support::hex_field(case, "hex");
    let strict = &case["strict"];
    let decoded = decode_strict(&input);
    if strict["ok"].as_bool().unwrap() {
        assert_eq!(decoded, Ok(map_of(strict)), "{name}");
    } else {
        let error = decoded.expect_err(&name);
        assert!(kinds_called(support::text(strict, "error")).contains(&error.kind), "{name}: {error}");
    }
    check_lenient_against_reference(case, &input);
    check_newer_upstream(case, &input);
}

/// Returns what the vectors call an error. Their names are suggestions, but each must be about the
/// same thing.
fn kinds_called(name: &str) -> &'static [CifErrorKind] {
    use CifErrorKind as Kind;
    match name {
        "empty" => &[Kind::Empty],
        "version" => &[Kind::UnknownVersion(1)],
        "reserved-size" => &[Kind::ReservedWordSize],
        "truncated" => &[Kind::Truncated],
        "platform-utf8" => &[Kind::PlatformNotUtf8],
        "count-too-large" => &[Kind::TooManyImages, Kind::BuildIdTooLong],
        "end-before-base" => &[Kind::EndBeforeBase],
        "path-utf8" => &[Kind::PathNotUtf8],
        "unknown-prefix-code" => &[Kind::UnknownPrefixCode],
        "trailing-data" => &[Kind::TrailingData],
        "reserved-header-bit" => &[Kind::ReservedHeaderBit],
        other => panic!("unknown error name {other}"),
    }
}

/// Lenient reading agrees with Swift 6.2 wherever that reads. The exception is the version byte
/// that Swift 6.2 does not know.
fn check_lenient_against_reference(case: &Value, input: &[u8]) {
    let name = support::name(case);
    let reference = &case["reference_6_2"];
    if reference.is_string() {
        assert!(["rejects", "traps"].contains(&reference.as_str().unwrap()), "{name}");
        return;
    }
    let lenient = decode(input, true).unwrap().map;
    let expected = map_of(reference);
    let shown = |map: &OwnedMap| -> Vec<Option<String>> {
        let text = |path: &Vec<u8>| String::from_utf8_lossy(path).replace("/Versions/\u{1}/", "/");
        map.images.iter().map(|image| image.path.as_ref().map(text)).collect()
    };
    assert_eq!(lenient.platform, expected.platform, "{name}");
    assert_eq!(lenient.word_size, expected.word_size, "{name}");
    assert_eq!(shown(&lenient), shown(&expected), "{name}");
    for (image, expected) in lenient.images.iter().zip(&expected.images) {
        assert_eq!(
            (image.base, image.end, &image.build_id),
            (expected.base, expected.end, &expected.build_id),
            "{name}"
        );
    }
}

/// Input that newer Swift refuses is refused in strict mode, or has a finding. An image that it
/// reads without path is an error or has that path.
fn check_newer_upstream(case: &Value, input: &[u8]) {
    let name = support::name(case);
    let Some(newer) = case.get("newer_upstream") else { return };
    let strict = decode(input, false);
    if newer == "rejects" {
        let complaints = strict.map(|decoded| decoded.error.is_some() || !decoded.findings.is_empty());
        assert!(complaints.unwrap_or(true), "{name}");
        return;
    }
    assert!(newer.is_object(), "{name}: {newer}");
    let path = newer["path"].as_str().map(str::as_bytes);
    let decoded = strict.unwrap();
    match path {
        Some(path) => assert_eq!(decoded.map.images[0].path.as_deref(), Some(path), "{name}"),
        None => assert!(decoded.error.is_some(), "{name}"),
    }
}

// ---- a model of the writer: a list of all prefixes, as the rules put it ----

fn model_encode(map: &OwnedMap, dialect: CifDialect) -> Vec<u8> {
    let canonical = dialect == CifDialect::Canonical;
    let signed = |address: u64| map.word_size.sign_extend(address);
    let count = |value: usize| {
        let digits = format!("{value:b}");
        let mut groups = digits.len().div_ceil(7);
        if !canonical && value > 0 && digits.len() % 7 == 0 {
            groups += 1;
        }
        let group = |index: usize| (value >> (7 * index) & 0x7f) as u8 | if index > 0 { 0x80 } else { 0 };
        (0..groups).rev().map(group).collect::<Vec<u8>>()
    };
    // The shortest cut from which sign extension gives the number back.
    let shortest = |value: i64| {
        let bytes = value.to_be_bytes();
        let fits = |length: &usize| {
            let shift = 64 - 8 * *length as u32;
            value << shift >> shift == value
        };
        bytes[8 - (1..=8).find(fits).unwrap()..].to_vec()
    };

    let mut output = vec![map.word_size.bytes() as u8 / 4, map.platform.len() as u8];
    output.extend_from_slice(map.platform.as_bytes());
    output.extend(count(map.images.len()));
    let mut prefixes: Vec<(usize, Vec<u8>)> = [
        "/lib",
        "/usr/lib",
        "/usr/local/lib",
        "/opt/lib",
        "/System/Library/Frameworks",
        "/System/Library/PrivateFrameworks",
        "/System/iOSSupport",
        "/Library/Frameworks",
        "/System/Applications",
        "/Applications",
        "C:\\Windows\\System32",
        "C:\\Program Files",
    ]
    .iter()
    .enumerate()
    .map(|(code, prefix)| (code, prefix.as_bytes().to_vec()))
    .collect();
    let mut next_code = 32;
    let mut last = 0_i64;
    for image in &map.images {
        let (base, end) = (signed(image.base), signed(image.end));
        let (absolute, relative) = (shortest(base), shortest(base.wrapping_sub(last)));
        last = base;
        let offset = shortest(end.wrapping_sub(base));
        let (flag, address) = if absolute.len() <= relative.len() { (0, absolute) } else { (0x80, relative) };
        output.push(flag | ((address.len() - 1) << 3) as u8 | (offset.len() - 1) as u8);
        output.extend(address);
        output.extend(offset);
        let build_id = image.build_id.clone().unwrap_or_default();
        output.extend(count(build_id.len()));
        output.extend(build_id);

        let path = image.path.clone().unwrap_or_default();
        let name = path.rsplit(|byte| b"/\\".contains(byte)).next().unwrap();
        let mut rest = &path[..];
        while let Some((code, prefix)) = prefixes
            .iter()
            .filter(|(_, prefix)| rest.starts_with(prefix))
            .rev()
            .max_by_key(|(_, prefix)| prefix.len())
        {
            rest = &rest[prefix.len()..];
            if *code < 64 {
                output.push(0x80 | *code as u8);
            } else {
                let digits = format!("{:b}", code - 64);
                let bits = if *code == 64 { 0 } else { digits.len() };
                let length = if canonical { bits.div_ceil(8) } else { bits / 8 }.max(1);
                output.push(0xc0 | (length - 1) as u8);
                output.extend(&(*code as u64 - 64).to_be_bytes()[8 - length..]);
            }
        }
        let shape = |version: u8| [b"/", name, b".framework/Versions/", &[version], b"/", name].concat();
        let version = (0..=0x7f).find(|&version| !name.is_empty() && rest == shape(version));
        if let Some(version) = version {
            if !canonical || (name.len() <= 64 && version != 1) {
                output.extend([0x40 | (name.len() - 1) as u8, version]);
                output.extend(name);
                continue;
            }
        }
        for at in 1..rest.len() {
            if b"/\\".contains(&rest[at]) {
                prefixes.push((next_code, rest[..at].to_vec()));
                next_code += 1;
            }
        }
        for piece in rest.chunks(63) {
            output.push(piece.len() as u8);
            output.extend(piece);
        }
        output.push(0);
    }
    output
}

// ---- a model of the reader's paths: every prefix stored as text ----

/// Returns the text of a path and what follows it, or `None` if it is broken. `prefixes` grows.
fn model_path<'a>(mut input: &'a [u8], prefixes: &mut Vec<Vec<u8>>) -> Option<(Vec<u8>, &'a [u8])> {
    let mut text = Vec::new();
    let mut data_start = None;
    loop {
        let (&opcode, rest) = input.split_first()?;
        let count = usize::from(opcode & 0x3f);
        input = rest;
        match opcode {
            0 => return Some((text, input)),
            0x01..=0x3f => {
                let start = *data_start.get_or_insert(text.len());
                for &byte in input.get(..count)? {
                    if b"/\\".contains(&byte) && text.len() > start {
                        prefixes.push(text[start..].to_vec());
                    }
                    text.push(byte);
                }
                input = &input[count..];
            }
            0x40..=0x7f => {
                let version = *input.first()?;
                let name = input.get(1..count + 2)?;
                text.extend([b"/", name, b".framework/"].concat());
                if version != 1 {
                    text.extend([b"Versions/", &[version][..], b"/"].concat());
                }
                text.extend(name);
                return Some((text, &input[count + 2..]));
            }
            _ => {
                let mut code = count;
                if opcode >= 0xc0 {
                    code =
                        input.get(..=count)?.iter().fold(0, |value, &byte| value * 256 + usize::from(byte))
                            + 64;
                    input = &input[count + 1..];
                }
                let fixed: &[&[u8]] = &[
                    b"/lib",
                    b"/usr/lib",
                    b"/usr/local/lib",
                    b"/opt/lib",
                    b"/System/Library/Frameworks",
                    b"/System/Library/PrivateFrameworks",
                    b"/System/iOSSupport",
                    b"/Library/Frameworks",
                    b"/System/Applications",
                    b"/Applications",
                    b"C:\\Windows\\System32",
                    b"C:\\Program Files",
                ];
                let prefix = if code < 32 {
                    fixed.get(code).copied()
                } else {
                    prefixes.get(code - 32).map(|text| &text[..])
                };
                text.extend(prefix?);
            }
        }
    }
}

// ---- properties ----

/// Names that make many shared, nested and nearly shared prefixes.
fn component() -> impl Strategy<Value = String> + Clone {
    prop_oneof![
        8 => select(vec!["a", "ab", "abc", "lib", "library", "usr", "opt", "x64", "é", "", "System", "Library", "Frameworks"])
            .prop_map(str::to_owned),
        1 => "[a-c]{1,3}",
        1 => "[a-z]{60,70}",
        1 => any::<char>().prop_map(String::from),
    ]
}

fn path() -> impl Strategy<Value = String> + Clone {
    let framework = (component(), select(vec!["A", "B", "\u{1}", "é", "/"]), component(), any::<bool>())
        .prop_map(|(name, version, other, same)| {
            let last = if same { &name } else { &other };
            format!("/{name}.framework/Versions/{version}/{last}")
        });
    let start = select(vec![
        "",
        "/",
        "C:\\Windows\\System32",
        "C:\\Program Files\\",
        "/usr/lib",
        "/System/Library/Frameworks",
    ]);
    let plain = (start, vec((component(), select(vec!["/", "\\", "/"])), 0..6), component()).prop_map(
        |(start, folders, name)| {
            let folders: String =
                folders.iter().map(|(folder, separator)| format!("{folder}{separator}")).collect();
            format!("{start}{folders}{name}")
        },
    );
    prop_oneof![4 => plain.clone(), 1 => framework.clone(), 1 => (plain, framework).prop_map(|(a, b)| a + &b)]
}

fn address() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        0..0x1_0000_u64,
        (0..64_u32).prop_map(|bit| 1 << bit),
        (0..64_u32).prop_map(|bit| !0 << bit)
    ]
}

fn map() -> impl Strategy<Value = OwnedMap> {
    let word_size = select(vec![WordSize::Bits16, WordSize::Bits32, WordSize::Bits64]);
    let build_id = prop_oneof![vec(any::<u8>(), 1..24), vec(any::<u8>(), 60..130)];
    let image = (address(), address(), prop::option::of(build_id), prop::option::of(path()));
    (word_size, "\\PC{0,8}", vec(image, 0..40)).prop_map(|(word_size, platform, images)| {
        let image = |(base, end, build_id, path): (u64, u64, _, Option<String>)| {
            let (base, end) = (word_size.truncate(base), word_size.truncate(end));
            let (base, mut end) = (base.min(end), base.max(end));
            // No text crosses the middle of 64 bits.
            if word_size == WordSize::Bits64 && base < 1 << 63 {
                end = end.min(1 << 63);
            }
            OwnedImage { base, end, build_id, path: path.map(String::into_bytes) }
        };
        OwnedMap { word_size, platform, images: images.into_iter().map(image).collect() }
    })
}

/// Returns bytes that resemble a map: real ones with faults, and paths made of random opcodes.
fn bytes_like_a_map() -> impl Strategy<Value = Vec<u8>> {
    let damaged = (
        map(),
        vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        any::<prop::sample::Index>(),
        any::<bool>(),
    )
        .prop_map(|(map, faults, cut, is_cut)| {
            let mut bytes = map.encode(CifDialect::Canonical).unwrap();
            for (index, byte) in faults {
                let index = index.index(bytes.len());
                bytes[index] = byte;
            }
            if is_cut {
                bytes.truncate(cut.index(bytes.len()));
            }
            bytes
        });
    prop_oneof![damaged, map_of_odd_paths().prop_map(|(bytes, _)| bytes), vec(any::<u8>(), 0..200)]
}

/// Returns a map whose paths no writer makes, with the number of images.
fn map_of_odd_paths() -> impl Strategy<Value = (Vec<u8>, usize)> {
    let text = prop_oneof![
        4 => select(vec!["a", "/", "a/b", "/a/b/c", "\\x", "é/"]).prop_map(|text| text.as_bytes().to_vec()),
        1 => vec(any::<u8>(), 1..5),
    ];
    let str_opcode = text.prop_map(|text| [&[text.len() as u8], &text[..]].concat());
    let expand = prop_oneof![(0x80..0x8c_u8), (0xa0..0xb0_u8), 0x80..0xc0_u8].prop_map(|opcode| vec![opcode]);
    let extended = vec(any::<u8>(), 0..3).prop_map(|zeros| {
        let mut operand = vec![0; zeros.len()];
        operand.push(zeros.first().copied().unwrap_or(0) % 8);
        [&[0xbf + operand.len() as u8], &operand[..]].concat()
    });
    let end = prop_oneof![4 => Just(vec![0]), 1 => select(vec!["A", "\u{1}", "é"]).prop_map(|version| [&[0x41, version.as_bytes()[0]], &b"ab"[..]].concat())];
    let path = (vec(prop_oneof![3 => str_opcode, 2 => expand, 1 => extended], 0..6), end)
        .prop_map(|(opcodes, end)| [opcodes.concat(), end].concat());
    vec(path, 0..20).prop_map(|paths| {
        let mut bytes = vec![2, 0, paths.len() as u8];
        for path in &paths {
            bytes.extend([0x00, 0x10, 0x01, 0x00]);
            bytes.extend(path);
        }
        (bytes, paths.len())
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn cif_round_trips_by_the_rules(map in map()) {
        let canonical = map.encode(CifDialect::Canonical).unwrap();
        prop_assert_eq!(&canonical, &model_encode(&map, CifDialect::Canonical));
        let reference = map.encode(CifDialect::Swift62).unwrap();
        prop_assert_eq!(&reference, &model_encode(&map, CifDialect::Swift62));

        prop_assert_eq!(decode_strict(&canonical), Ok(map.clone().read_back()));
        let lenient = decode(&canonical, true).unwrap();
        prop_assert_eq!(lenient.error, None);
        prop_assert!(lenient.findings.iter().all(|finding| finding.kind == CifErrorKind::EmptyText));
        prop_assert_eq!(lenient.map, map.read_back());
    }

    #[test]
    fn cif_encoder_with_few_slots_only_costs_bytes(map in map(), slots in 0..10_usize) {
        let canonical = map.encode(CifDialect::Canonical).unwrap();
        let frugal = map.encode_with(CifDialect::Canonical, slots).unwrap();
        prop_assert_eq!(decode_strict(&frugal), Ok(map.clone().read_back()));
        if slots >= map.images.len() {
            prop_assert_eq!(canonical, frugal);
        }
    }

    #[test]
    fn cif_lenient_includes_strict(bytes in bytes_like_a_map()) {
        let (strict, lenient) = (decode(&bytes, false), decode(&bytes, true));
        if let Ok(strict) = strict {
            let lenient = lenient.unwrap();
            prop_assert!(lenient.map.images.starts_with(&strict.map.images));
            prop_assert!(lenient.findings.starts_with(&strict.findings));
            if let Some(error) = strict.error {
                // The first thing that strict reading stops at is the first thing that lenient
                // reading tells.
                let reported = lenient.findings.iter().chain(&lenient.error).find(|fault| fault.kind != CifErrorKind::EmptyText);
                prop_assert_eq!(reported, Some(&error));
            }
        } else if let Ok(lenient) = lenient {
            prop_assert_eq!(lenient.findings.first(), strict.as_ref().err());
        }
    }

    #[test]
    fn cif_decoder_with_few_slots_only_loses_paths(bytes in bytes_like_a_map(), slots in 0..4_usize) {
        if let (Ok(all), Ok(some)) = (decode(&bytes, true), decode_with(&bytes, true, slots)) {
            prop_assert_eq!(all.error, some.error);
            prop_assert_eq!(all.map.images.len(), some.map.images.len());
            for (all, some) in all.map.images.iter().zip(&some.map.images) {
                prop_assert!(some.path.is_none() || some.path == all.path);
                prop_assert_eq!((all.base, all.end, &all.build_id), (some.base, some.end, &some.build_id));
            }
        }
    }

    #[test]
    fn cif_paths_agree_with_a_plain_model((bytes, count) in map_of_odd_paths()) {
        let lenient = decode(&bytes, true).unwrap();
        prop_assert_eq!(lenient.map.images.len(), count);
        let mut rest = &bytes[3..];
        let mut prefixes = Vec::new();
        for image in &lenient.map.images {
            let Some((text, after)) = model_path(&rest[4..], &mut prefixes) else {
                // The model stops at a broken path, as Swift does. The decoder goes on after it.
                prop_assert_eq!(&image.path, &None);
                return Ok(());
            };
            prop_assert_eq!(image.path.clone().unwrap_or_default(), text);
            rest = after;
        }
        let all_utf8 = lenient.map.images.iter().flat_map(|image| &image.path).all(|path| std::str::from_utf8(path).is_ok());
        prop_assert_eq!(decode(&bytes, false).unwrap().error.is_none(), all_utf8);
    }

    #[test]
    fn cif_reading_stops_with_the_input(bytes in vec(any::<u8>(), 0..300)) {
        prop_assert!(slots_needed(&bytes) <= bytes.len());
        if let Ok(decoded) = decode(&bytes, true) {
            prop_assert!(decoded.map.images.len() <= bytes.len() / 4);
        }
    }
}

// ---- single rules ----

/// Returns a 64-bit map without platform; every image has base 0x10, end 0x11 and this path.
fn map_of_paths(paths: &[&[u8]]) -> Vec<u8> {
    let mut bytes = vec![2, 0, 0x80 | (paths.len() >> 7) as u8, (paths.len() & 0x7f) as u8];
    for path in paths {
        bytes.extend([0x00, 0x10, 0x01, 0x00]);
        bytes.extend(*path);
    }
    bytes
}

fn paths_of(decoded: &Decoded) -> Vec<Option<&[u8]>> {
    decoded.map.images.iter().map(|image| image.path.as_deref()).collect()
}

#[test]
fn cif_prefix_includes_text_expanded_within() {
    // "x" + "/lib" + "/y" defines only "x/lib": the '/' of the fixed prefix is no string data.
    let bytes = map_of_paths(&[b"\x01x\x80\x02/y\x00", b"\xa0\x00", b"\xa1\x00"]);
    let lenient = decode(&bytes, true).unwrap();
    assert_eq!(paths_of(&lenient), [Some(&b"x/lib/y"[..]), Some(b"x/lib"), None]);
    assert_eq!(lenient.finding_kinds(), [CifErrorKind::UnknownPrefixCode]);
}

#[test]
fn cif_path_may_use_its_own_prefix() {
    let bytes = map_of_paths(&[b"\x03/a/\xa0\x00"]);
    assert_eq!(decode_strict(&bytes).unwrap().images[0].path.as_deref(), Some(&b"/a//a"[..]));
}

#[test]
fn cif_broken_path_keeps_later_codes() {
    let bytes = map_of_paths(&[b"\x9f\x04/a/b\x00", b"\x04/c/d\x00", b"\xa0\x00", b"\xa1\x00"]);
    let lenient = decode(&bytes, true).unwrap();
    assert_eq!(paths_of(&lenient), [None, Some(&b"/c/d"[..]), Some(b"/a"), Some(b"/c")]);
    assert_eq!(lenient.findings, [CifError { offset: 8, kind: CifErrorKind::UnknownPrefixCode }]);
}

#[test]
fn cif_prefix_with_unknown_part_is_unknown() {
    let bytes = map_of_paths(&[b"\x03/a/\x9f\x02/b\x00", b"\xa0\x00", b"\xa1\x00", b"\xa2\x00"]);
    let lenient = decode(&bytes, true).unwrap();
    assert_eq!(paths_of(&lenient), [None, Some(&b"/a"[..]), None, None]);
}

#[test]
fn cif_prefixes_nest_at_most_sixteen_deep() {
    let mut paths: Vec<Vec<u8>> = vec![b"\x02x/\x00".to_vec()];
    for code in 0..20 {
        // "x", the prefix before, "/": one deeper.
        paths.push(vec![0x01, b'x', 0xa0 + code, 0x01, b'/', 0x00]);
    }
    let paths: Vec<&[u8]> = paths.iter().map(Vec::as_slice).collect();
    let lenient = decode(&map_of_paths(&paths), true).unwrap();
    for (depth, path) in paths_of(&lenient).into_iter().enumerate() {
        let expected = ["x".repeat(depth + 1), "/".to_owned()].concat();
        assert_eq!(path, (depth <= 16).then_some(expected.as_bytes()), "depth {depth}");
    }
    assert_eq!(lenient.findings[0].kind, CifErrorKind::PrefixesNestTooDeep);
    assert_eq!(lenient.findings[1].kind, CifErrorKind::UnknownPrefixCode);
}

#[test]
fn cif_doubling_prefixes_end_at_path_limit() {
    // Image 0 defines 63 bytes as code 32; each further one defines eight times the text of the one
    // before.
    let mut first = vec![0x3f];
    first.extend([b'x'; 62]);
    first.extend(b"/\x00");
    let mut paths = vec![first];
    for code in 0..12_u8 {
        let mut path = vec![0x01, b'x'];
        path.extend([0xa0 + code; 8]);
        path.extend(b"\x01/\x00");
        paths.push(path);
    }
    let paths: Vec<&[u8]> = paths.iter().map(Vec::as_slice).collect();
    let lenient = decode(&map_of_paths(&paths), true).unwrap();
    let lengths: Vec<usize> = paths_of(&lenient).iter().map(|path| path.map_or(0, <[u8]>::len)).collect();
    assert_eq!(lengths[..4], [63, 498, 3978, 31818]);
    assert!(lengths[4..].iter().all(|&length| length == 0), "{lengths:?}");
    assert!(lenient.finding_kinds().contains(&CifErrorKind::PathTooLong));
}

#[test]
fn cif_longest_path_is_accepted_and_longer_refused() {
    let mut map = OwnedMap {
        word_size: WordSize::Bits64,
        platform: String::new(),
        images: vec![OwnedImage::default()],
    };
    map.images[0].path = Some(vec![b'x'; MAX_PATH_BYTES as usize]);
    let bytes = map.encode(CifDialect::Canonical).unwrap();
    assert_eq!(decode_strict(&bytes), Ok(map.clone()));
    map.images[0].path = Some(vec![b'x'; MAX_PATH_BYTES as usize + 1]);
    assert_eq!(map.encode(CifDialect::Canonical), Err(CifEncodeErrorKind::PathTooLong));
    let bytes = map.encode(CifDialect::Swift62).unwrap();
    assert_eq!(decode_strict(&bytes).unwrap_err().kind, CifErrorKind::PathTooLong);
}

#[test]
fn cif_decoder_reports_missing_slots() {
    let bytes = map_of_paths(&[b"\x04/a/b\x00", b"\x04/c/d\x00", b"\xa0\x00", b"\xa1\x00"]);
    assert_eq!(slots_needed(&bytes), 2);
    let lenient = decode_with(&bytes, true, 1).unwrap();
    assert_eq!(paths_of(&lenient)[2..], [Some(&b"/a"[..]), None]);
    assert_eq!(lenient.finding_kinds(), [CifErrorKind::NoSlotForPrefix]);
    let strict = decode_with(&bytes, false, 1).unwrap();
    assert_eq!(strict.error.unwrap().kind, CifErrorKind::NoSlotForPrefix);
    assert_eq!(strict.map.images.len(), 3);
}

#[test]
fn cif_characters_may_span_pieces_only() {
    let cases: [(&[u8], bool); 7] = [
        (b"\x02a\xc3\x01\xa9\x00", true),
        (b"\x01\xe6\x01\xb5\x02\x8b/\x00", true),
        (b"\x02a\xc3\x80\x01\xa9\x00", false),
        (b"\x02a\xc3\x00", false),
        (b"\x02a\xc3\x02/b\x00", false),
        (b"\x02a\xc3\x40A\xa9", false),
        (b"\x40\xc3b", false),
    ];
    for (path, is_utf8) in cases {
        let bytes = map_of_paths(&[path]);
        let strict = decode(&bytes, false).unwrap();
        assert_eq!(strict.error.is_none(), is_utf8, "{path:x?}");
        let lenient = decode(&bytes, true).unwrap();
        assert!(lenient.map.images[0].path.is_some(), "{path:x?}");
        assert_eq!(lenient.finding_kinds().contains(&CifErrorKind::PathNotUtf8), !is_utf8, "{path:x?}");
    }
}

#[test]
fn cif_bad_utf8_is_reported_at_each_use() {
    let bytes =
        map_of_paths(&[b"\x06/a/\xff/b\x00", b"\xa0\x00", b"\xa1\x00", b"\x02/x\xa1\x02/y\x00", b"\xa2\x00"]);
    let lenient = decode(&bytes, true).unwrap();
    let bad: Vec<bool> =
        paths_of(&lenient).iter().map(|path| std::str::from_utf8(path.unwrap()).is_err()).collect();
    assert_eq!(bad, [true, false, true, true, true]);
    assert_eq!(lenient.finding_kinds(), [CifErrorKind::PathNotUtf8; 4]);
}

/// Returns a map of this info byte with one image of this header, base and end.
fn one_image(info: u8, addresses: &[u8]) -> Vec<u8> {
    [&[info, 0, 1], addresses, &[0, 0]].concat()
}

#[test]
fn cif_refuses_addresses_wider_than_the_word() {
    use CifErrorKind as Kind;
    type BaseAndEnd = Result<(u64, u64), CifErrorKind>;
    let cases: [(u8, &[u8], BaseAndEnd); 20] = [
        (0, b"\x08\x7f\x00\x10", Ok((0x7f00, 0x7f10))),
        (0, b"\x08\xff\x00\x10", Ok((0xff00, 0xff10))),
        (0, b"\x00\xff\x00", Ok((0xffff, 0xffff))),
        (0, b"\x00\xff\x01", Err(Kind::EndOutsideWord)),
        (0, b"\x10\x00\x10\x00\x10", Err(Kind::OperandTooWide)),
        (0, b"\x02\x10\x00\x00\x10", Err(Kind::OperandTooWide)),
        // Across the middle: Swift's own form, with a byte more than the word, but not with two.
        (0, b"\x0a\x7f\x00\xff\x02\x00", Ok((0x7f00, 0x8100))),
        (0, b"\x09\x7f\x00\x02\x00", Ok((0x7f00, 0x8100))),
        (0, b"\x0b\x7f\x00\xff\xff\x02\x00", Err(Kind::OperandTooWide)),
        (0, b"\x0a\x10\x00\xff\x02\x00", Err(Kind::OperandTooWide)),
        (0, b"\x09\x10\x00\xff\x00", Err(Kind::EndBeforeBase)),
        (1, b"\x18\x80\x00\x00\x00\xff", Err(Kind::EndBeforeBase)),
        (1, b"\x1b\x80\x00\x00\x00\x7f\xff\xff\xff", Ok((0x8000_0000, 0xffff_ffff))),
        (1, b"\x44\x00\x01\x00\x00\x00\x00", Err(Kind::ReservedHeaderBit)),
        // Not so in 64 bits, in either form. These failed with: `Ok` and 0x10 to
        // 0xffff_ffff_ffff_ffcb, and so on.
        (2, b"\x00\x10\xbb", Err(Kind::TextCrossesMiddle)),
        (2, b"\x39\x7f\xff\xff\xff\xff\xff\xff\xff\x10\x00", Err(Kind::TextCrossesMiddle)),
        (2, b"\x38\x7f\xff\xff\xff\xff\xff\xff\xff\x02", Err(Kind::TextCrossesMiddle)),
        (2, b"\x38\x7f\xff\xff\xff\xff\xff\xff\xff\x01", Ok((i64::MAX as u64, 1 << 63))),
        (2, b"\x38\x80\x00\x00\x00\x00\x00\x00\x00\xff", Err(Kind::EndBeforeBase)),
        (2, b"\x09\xff\xff\x10\x00", Err(Kind::EndOutsideWord)),
    ];
    for (info, addresses, expected) in cases {
        let strict = decode_strict(&one_image(info, addresses));
        let found = strict.map(|map| (map.images[0].base, map.images[0].end)).map_err(|error| error.kind);
        assert_eq!(found, expected, "{info} {addresses:x?}");
        let lenient = decode(&one_image(info, addresses), true).unwrap();
        assert_eq!(lenient.map.images.len(), 1, "{info} {addresses:x?}");
    }
}

#[test]
fn cif_relative_base_wraps_in_64_bits_only() {
    let two_images =
        |info: u8, first: &[u8], second: &[u8]| [&[info, 0, 2], first, &[0, 0], second, &[0, 0]].concat();
    let wraps = two_images(2, b"\x38\x7f\xff\xff\xff\xff\xff\xff\xf0\x01", b"\x80\x20\x01");
    assert_eq!(decode_strict(&wraps).unwrap().images[1].base, 0x8000_0000_0000_0010);
    let unsigned = two_images(0, b"\x08\x7f\xf0\x01", b"\x80\x20\x01");
    assert_eq!(decode_strict(&unsigned).unwrap().images[1].base, 0x8010);
    let outside = two_images(0, b"\x08\x80\x00\x01", b"\x80\xff\x01");
    assert_eq!(
        decode_strict(&outside).unwrap_err(),
        CifError { offset: 10, kind: CifErrorKind::BaseOutsideWord }
    );
    assert_eq!(decode(&outside, true).unwrap().map.images[1].base, 0x7fff);
}

#[test]
fn cif_counts_may_be_padded_but_not_large() {
    for (count, expected) in [
        (&b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x00"[..], Ok(())),
        (b"\xc0\x80\x00", Err(CifErrorKind::Truncated)),
        (b"\xc0\x80\x01", Err(CifErrorKind::TooManyImages)),
        (b"\x82\x80\x80\x80\x80\x80\x80\x80\x80\x80\x00", Err(CifErrorKind::TooManyImages)),
        (b"\x80\x80", Err(CifErrorKind::Truncated)),
    ] {
        let input = [&[2, 0], count].concat();
        let found = decode_strict(&input).map(|_| ()).map_err(|error| error.kind);
        assert_eq!(found, expected, "{count:x?}");
    }
    assert_eq!(MAX_IMAGES, 0x10_0000);
}

#[test]
fn cif_writer_refuses_unsupported_content() {
    use CifEncodeErrorKind as Kind;
    let fails = |map: &OwnedMap, canonical: Option<Kind>, swift: Option<Kind>| {
        assert_eq!(map.encode(CifDialect::Canonical).err(), canonical, "{:?}", map.images);
        assert_eq!(map.encode(CifDialect::Swift62).err(), swift, "{:?}", map.images);
    };
    let map = |image: OwnedImage| OwnedMap {
        word_size: WordSize::Bits32,
        platform: "x".into(),
        images: vec![image],
    };
    let image = OwnedImage { base: 0x1000, end: 0x2000, build_id: None, path: None };
    let framework = |length: usize| {
        let name = "n".repeat(length);
        Some(format!("/{name}.framework/Versions/A/{name}").into_bytes())
    };
    fails(&map(image.clone()), None, None);
    fails(
        &OwnedMap { platform: "p".repeat(256), ..map(image.clone()) },
        Some(Kind::PlatformTooLong),
        Some(Kind::PlatformTooLong),
    );
    fails(
        &map(OwnedImage { end: 1 << 32, ..image.clone() }),
        Some(Kind::AddressOutsideWord),
        Some(Kind::AddressOutsideWord),
    );
    fails(
        &map(OwnedImage { end: 0xfff, ..image.clone() }),
        Some(Kind::EndBeforeBase),
        Some(Kind::EndBeforeBase),
    );
    let crossing =
        OwnedMap { word_size: WordSize::Bits64, ..map(OwnedImage { end: 1 << 63 | 1, ..image.clone() }) };
    fails(&crossing, Some(Kind::TextCrossesMiddle), Some(Kind::TextCrossesMiddle));
    fails(
        &map(OwnedImage { build_id: Some(vec![1; 1025]), ..image.clone() }),
        Some(Kind::BuildIdTooLong),
        None,
    );
    fails(&map(OwnedImage { build_id: Some(vec![1; 1024]), ..image.clone() }), None, None);
    fails(&map(OwnedImage { build_id: Some(vec![]), ..image.clone() }), None, Some(Kind::EmptyBuildId));
    fails(
        &map(OwnedImage { path: Some(b"/\xff".to_vec()), ..image.clone() }),
        Some(Kind::PathNotUtf8),
        Some(Kind::PathNotUtf8),
    );
    fails(&map(OwnedImage { path: framework(256), ..image.clone() }), None, None);
    fails(&map(OwnedImage { path: framework(257), ..image.clone() }), None, Some(Kind::FrameworkNameTooLong));

    let images = vec![
        Module {
            base: AbsoluteAddress::new(0),
            end: AbsoluteAddress::new(1),
            build_id: None,
            path: None
        };
        (1 << 20) + 1
    ];
    let map = ImageMap { word_size: WordSize::Bits64, platform: "", images: &images };
    let error = encode(&map, CifDialect::Canonical, &mut [], &mut CountingSink::default()).unwrap_err();
    assert_eq!((error.image, error.kind), (None, Kind::TooManyImages));
    assert_eq!(encode(&map, CifDialect::Swift62, &mut [], &mut CountingSink::default()), Ok(()));

    let error = encode(&map, CifDialect::Swift62, &mut [], &mut SliceSink::new(&mut [0; 11])).unwrap_err();
    assert_eq!((error.image, error.to_string().as_str()), (Some(1), "image 1: the output buffer is full"));
}

#[test]
fn cif_time_is_linear_in_images() {
    // All keys share a long start, which is the worst for a list. Enough of them that n * n would
    // be felt.
    let image = |index: u64| OwnedImage {
        base: index << 12,
        end: (index << 12) + 0x800,
        build_id: None,
        path: Some(
            format!("/home-of-the-application-{:05}/lib/module.so", index * 7919 % 20_000).into_bytes(),
        ),
    };
    let map = OwnedMap {
        word_size: WordSize::Bits64,
        platform: "Linux".into(),
        images: (0..20_000).map(image).collect(),
    };
    let bytes = map.encode(CifDialect::Canonical).unwrap();
    assert_eq!(decode_strict(&bytes), Ok(map));
}
