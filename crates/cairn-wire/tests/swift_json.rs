//! Swift's JSON of a backtrace: against the vectors, and against a general JSON reader.

mod support;

use cairn_format::{SliceSink, WordSize};
use cairn_wire::cbf::{CbfDecoder, Rules};
use cairn_wire::swift_json::{
    self, Document, MAX_DEPTH, SwiftJsonError, SwiftJsonErrorKind, read, read_first, word_size_of,
};
use proptest::prelude::*;
use serde_json::Value;
use support::mutate::assert_changes_are_noticed;
use support::{cases, hex_field, name, text};

#[test]
fn swift_json_vectors_are_read_and_written() {
    let judged_in_cbf = "judged in cbf.rs, with the decoder";
    let unjudged = [("json/frames/*/*", 15, judged_in_cbf), ("json/frames/*[]", 5, judged_in_cbf)];
    assert_changes_are_noticed(&cases("swift_cbf.json", Some("json")), check, &unjudged);
}

fn check(case: &Value) {
    {
        let name = name(case);
        let json = text(case, "json");
        let document = read(json.as_bytes()).unwrap();
        assert_eq!(document.architecture, text(case, "architecture"), "{name}");
        assert_eq!(document.backtrace, text(case, "base64"), "{name}");
        assert_eq!(backtrace(&document), hex_field(case, "reference_hex"), "{name}");

        let general: Value = serde_json::from_str(json).unwrap();
        let image_map = general.get("imageMap").map(|map| map.as_str().unwrap().to_owned());
        assert_eq!(document.image_map.map(|map| map.to_string()), image_map, "{name}");
        assert_eq!(
            document.word_size(),
            CbfDecoder::new(&backtrace(&document), Rules::LENIENT).word_size(),
            "{name}"
        );

        let mut map = vec![0; json.len()];
        let map = document.image_map.map(|text| text.decode_base64(&mut map).unwrap());
        let written = written(text(case, "architecture"), &hex_field(case, "reference_hex"), map);
        assert_eq!(written, json, "{name}");

        let frames = CbfDecoder::new(&backtrace(&document), Rules::LENIENT).count();
        assert_eq!(frames, case["frames"].as_array().unwrap().len(), "{name}");
    }
}

/// The text forms of the vectors, turned around, spread out, and with strangers between.
#[test]
fn swift_json_ignores_order_spaces_and_unknown_keys() {
    for case in cases("swift_cbf.json", Some("json")) {
        let (architecture, base64) = (text(&case, "architecture"), text(&case, "base64"));
        let backtrace_member = format!(r#""backtrace":"{base64}""#);
        let architecture_member = format!(r#""architecture":"{architecture}""#);
        for json in [
            format!("{{{backtrace_member},{architecture_member}}}"),
            format!("\r\n {{ {architecture_member}\t,\n{backtrace_member} }} \n"),
            format!(
                r#"{{"threads":[{{"a":[[],{{}},-0.5e+3,null]}},"}}\""],{backtrace_member},"x":{{"backtrace":7}},{architecture_member},"y":true}}"#
            ),
            format!(r#"{{{backtrace_member},"imageMap":null,{architecture_member}}}"#),
            format!(r#"{{"\u0062acktrace":"{base64}==","\u0061rchitecture":"{architecture}"}}"#),
        ] {
            let document = read(json.as_bytes()).unwrap_or_else(|error| panic!("{json}: {error}"));
            assert_eq!(document.architecture, architecture, "{json}");
            assert_eq!(backtrace(&document), hex_field(&case, "reference_hex"), "{json}");
            assert!(document.image_map.is_none(), "{json}");
        }
    }
}

#[test]
fn swift_json_unescapes_slashes_in_base64() {
    // Swift's JSON encoder writes `/` as `\/`.
    let document = read(br#"{"architecture":"arm","backtrace":"\/\/8\u002F","imageMap":"_-\/+"}"#).unwrap();
    assert_eq!(backtrace(&document), [0xff, 0xff, 0x3f]);
    let image_map = document.image_map.unwrap();
    assert_eq!(image_map.as_plain(), None);
    assert_eq!(image_map.decode_base64(&mut [0; 3]).unwrap(), [0xff, 0xef, 0xfe]);
    assert!(image_map.decode_base64(&mut [0; 2]).is_err());
}

#[test]
fn swift_json_reports_bad_base64_at_its_character() {
    for (json, offset, character) in [
        (&br#"{"architecture":"","backtrace":"Ag*A"}"#[..], 2, b'*'),
        (br#"{"architecture":"","backtrace":"\/g\"A"}"#, 2, b'"'),
        ("{\"architecture\":\"\",\"backtrace\":\"Agé\"}".as_bytes(), 2, 0xff),
    ] {
        let mut bytes = read(json).unwrap().backtrace.base64_bytes();
        let error = bytes.find_map(Result::err).unwrap();
        assert_eq!((error.offset, error.character), (offset, character));
        assert_eq!(bytes.next(), None);
        assert!(read(json).unwrap().backtrace.decode_base64(&mut [0; 9]).is_err());
    }
}

#[test]
fn swift_json_faults_are_reported_with_their_offset() {
    let not_json = |expected| SwiftJsonErrorKind::NotJson { expected };
    for (json, offset, kind) in [
        ("", 0, SwiftJsonErrorKind::UnexpectedEnd),
        ("[]", 0, not_json("an object")),
        ("{", 1, SwiftJsonErrorKind::UnexpectedEnd),
        ("{}", 1, SwiftJsonErrorKind::MissingKey { key: "architecture" }),
        (r#"{"architecture":"a"}"#, 19, SwiftJsonErrorKind::MissingKey { key: "backtrace" }),
        (r#"{"architecture":null}"#, 16, SwiftJsonErrorKind::NotAString { key: "architecture" }),
        (r#"{"backtrace":["Ag"]}"#, 13, SwiftJsonErrorKind::NotAString { key: "backtrace" }),
        (r#"{"backtrace":"","backtrace":""}"#, 16, SwiftJsonErrorKind::DuplicateKey),
        (r#"{"imageMap":null,"imageMap":null}"#, 17, SwiftJsonErrorKind::DuplicateKey),
        (r#"{"imageMap":nil}"#, 13, not_json("true, false or null")),
        (r#"{"architecture" "a"}"#, 16, not_json("a colon")),
        (r#"{"architecture":"a",}"#, 20, not_json("a key")),
        (r#"{"architecture":"a" "b"}"#, 20, not_json("a comma or the end of the object")),
        (r#"{"x":[1,]}"#, 8, not_json("a value")),
        (r#"{"x":[1 2]}"#, 8, not_json("a comma or the end of the list")),
        (r#"{"x":01}"#, 6, not_json("a comma or the end of the object")),
        (r#"{"x":-}"#, 6, not_json("a digit")),
        (r#"{"x":1.}"#, 7, not_json("a digit")),
        (r#"{"x":[}"#, 6, not_json("a value")),
        ("{\"x\":\"a\nb\"}", 7, SwiftJsonErrorKind::ControlCharacter),
        (r#"{"x":"a\x41"}"#, 7, SwiftJsonErrorKind::BadEscape),
        (r#"{"x":"\ud800 later and more"}"#, 6, SwiftJsonErrorKind::BadEscape),
        (r#"{"x":"\udc00\ud800"}"#, 6, SwiftJsonErrorKind::BadEscape),
        (r#"{"x":"\u+123"}"#, 6, SwiftJsonErrorKind::BadEscape),
        (r#"{"x":"\u12"#, 10, SwiftJsonErrorKind::UnexpectedEnd),
        (r#"{"architecture":"a","backtrace":""} x"#, 36, SwiftJsonErrorKind::TrailingData),
    ] {
        assert_eq!(read(json.as_bytes()).map(|_| ()), Err(SwiftJsonError { offset, kind }), "{json}");
    }
    let error = read(b"{\"x\":\"a\xff\"}").unwrap_err();
    assert_eq!(error, SwiftJsonError { offset: 7, kind: SwiftJsonErrorKind::NotUtf8 });
    assert_eq!(error.to_string(), "not UTF-8, at byte 7");
}

#[test]
fn swift_json_depth_is_bounded() {
    let nested = |depth: usize, open: &str, close: &str| {
        let inside = format!("{}0{}", open.repeat(depth), close.repeat(depth));
        format!(r#"{{"x":{inside},"architecture":"arm","backtrace":""}}"#)
    };
    let most = MAX_DEPTH as usize;
    for (open, close) in [("[", "]"), (r#"{"a":"#, "}"), ("[[],", "]"), (r#"[{"a":1},"#, "]")] {
        let extra = usize::from(open.len() > 3 && open.starts_with('['));
        assert!(read(nested(most - extra, open, close).as_bytes()).is_ok(), "{open}");
        let error = read(nested(most + 1, open, close).as_bytes()).unwrap_err();
        assert_eq!(error.kind, SwiftJsonErrorKind::TooDeep, "{open}");
    }
    // A million brackets take neither stack nor time.
    assert_eq!(read(nested(1_000_000, "[", "]").as_bytes()).unwrap_err().kind, SwiftJsonErrorKind::TooDeep);
}

#[test]
fn swift_json_knows_word_sizes_of_architectures() {
    for (architecture, word_size) in [
        ("x86_64", Some(WordSize::Bits64)),
        ("arm64", Some(WordSize::Bits64)),
        ("arm64_32", Some(WordSize::Bits32)),
        ("i386", Some(WordSize::Bits32)),
        ("arm", Some(WordSize::Bits32)),
        ("msp430", Some(WordSize::Bits16)),
        ("ARM64", None),
        ("", None),
    ] {
        assert_eq!(word_size_of(architecture), word_size, "{architecture}");
        let json = written(architecture, &[], None);
        assert_eq!(read(json.as_bytes()).unwrap().word_size(), word_size, "{architecture}");
    }
}

proptest! {
    #[test]
    fn swift_json_output_is_read_by_other_parsers(
        architecture in any::<String>(),
        bytes in prop::collection::vec(any::<u8>(), 0..50),
        map in prop::option::of(prop::collection::vec(any::<u8>(), 0..50)),
    ) {
        let json = written(&architecture, &bytes, map.as_deref());
        let document = read(json.as_bytes()).unwrap();
        prop_assert_eq!(document.architecture.to_string(), architecture.clone());
        prop_assert_eq!(backtrace(&document), bytes);
        let mut buffer = [0; 50];
        let back = document.image_map.map(|text| text.decode_base64(&mut buffer).unwrap());
        prop_assert_eq!(back, map.as_deref());
        let general: Value = serde_json::from_str(&json).unwrap();
        prop_assert_eq!(general["architecture"].as_str(), Some(architecture.as_str()));

        // The rest is not read, and every shorter text is an error.
        let two = format!("{json}{json}");
        let (_, rest) = read_first(two.as_bytes()).unwrap();
        prop_assert_eq!(rest, json.as_bytes());
        for cut in 0..json.len() {
            prop_assert!(read_first(&json.as_bytes()[..cut]).is_err(), "cut at {}", cut);
        }
    }

    #[test]
    fn swift_json_agrees_with_a_general_reader(mut json in documents(), damage in prop::option::of((any::<prop::sample::Index>(), any::<u8>()))) {
        if let Some((at, byte)) = damage {
            let at = at.index(json.len());
            json[at] = byte;
        }
        let general: Result<Value, _> = serde_json::from_slice(&json);
        match read(&json) {
            Ok(document) => {
                let general = general.expect("what is read here is JSON");
                let architecture = document.architecture.to_string();
                prop_assert_eq!(general["architecture"].as_str(), Some(architecture.as_str()));
                let backtrace = document.backtrace.to_string();
                prop_assert_eq!(general["backtrace"].as_str(), Some(backtrace.as_str()));
                let map = document.image_map.map(|map| map.to_string());
                prop_assert_eq!(general.get("imageMap").and_then(Value::as_str), map.as_deref());
            }
            Err(error) => {
                prop_assert!(error.offset <= json.len());
                let is_about_meaning = matches!(
                    error.kind,
                    SwiftJsonErrorKind::MissingKey { .. } | SwiftJsonErrorKind::NotAString { .. } | SwiftJsonErrorKind::DuplicateKey
                );
                let is_object = general.as_ref().is_ok_and(Value::is_object);
                prop_assert!(is_about_meaning || !is_object, "{}: {}", error, String::from_utf8_lossy(&json));
            }
        }
    }
}

/// JSON objects with the known keys, perhaps, and others, in any order.
fn documents() -> impl Strategy<Value = Vec<u8>> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        (-1.0e9..1.0e9).prop_map(Value::from),
        ".{0,6}".prop_map(Value::from),
        "[\"\\\\/\n\t\u{1}é😀]{0,4}".prop_map(Value::from),
    ];
    let value = leaf.prop_recursive(5, 20, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::hash_map(".{0,3}", inner, 0..4).prop_map(Value::from_iter),
        ]
    });
    let known = prop_oneof![
        4 => Just("architecture"), 4 => Just("backtrace"), 1 => Just("imageMap"), 1 => Just("back"),
    ];
    let member = prop_oneof![
        4 => (known, "[A-Za-z/\"]{0,8}").prop_map(|(key, text)| (key.to_owned(), Value::from(text))),
        1 => (".{0,3}", value),
    ];
    (prop::collection::vec(member, 0..6), any::<bool>()).prop_map(|(members, pretty)| {
        let members: Vec<String> =
            members.iter().map(|(key, value)| format!("{}:{value}", Value::from(key.as_str()))).collect();
        let separator = if pretty { " ,\n " } else { "," };
        format!("{{{}}}", members.join(separator)).into_bytes()
    })
}

fn written(architecture: &str, backtrace: &[u8], image_map: Option<&[u8]>) -> String {
    let mut buffer =
        vec![0; 100 + architecture.len() * 6 + backtrace.len() * 2 + image_map.map_or(0, <[u8]>::len) * 2];
    let mut sink = SliceSink::new(&mut buffer);
    swift_json::write(architecture, backtrace, image_map, &mut sink).unwrap();
    String::from_utf8(sink.written().to_vec()).unwrap()
}

/// Returns the bytes of the backtrace, read both ways.
fn backtrace(document: &Document) -> Vec<u8> {
    let one_by_one: Result<Vec<u8>, _> = document.backtrace.base64_bytes().collect();
    let mut buffer = vec![0; document.backtrace.escaped().len()];
    let at_once = document.backtrace.decode_base64(&mut buffer).unwrap();
    assert_eq!(at_once, one_by_one.unwrap());
    at_once.to_vec()
}
