//! Any text is read or refused in its place; a text that was read survives writing and reading.
#![no_main]

use cairn_format::{SliceSink, WordSize};
use cairn_wire::base64::DecodeIntoError;
use cairn_wire::swift_json::{SwiftJsonErrorKind, read, read_first, write};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let (document, rest) = match read_first(data) {
        Ok(found) => found,
        Err(error) => {
            assert!(error.offset <= data.len());
            assert_eq!(read(data).map(|_| ()), Err(error), "both refuse for the same reason");
            return;
        }
    };
    assert!(data.ends_with(rest));
    match read(data) {
        Ok(_) => assert!(rest.iter().all(u8::is_ascii_whitespace)),
        Err(error) => assert_eq!(error.kind, SwiftJsonErrorKind::TrailingData),
    }
    // The object alone is the same document; a part of it is not a document.
    let object = &data[..data.len() - rest.len()];
    assert_eq!(read(object).expect("the object alone").backtrace, document.backtrace);
    assert!(read(&object[..object.len() - 1]).is_err());

    let architecture = document.architecture.to_string();
    assert!(document.architecture == architecture.as_str());
    let _: Option<WordSize> = document.word_size();
    let Some(backtrace) = decoded(document.backtrace) else { return };
    let image_map = match document.image_map.map(decoded) {
        Some(None) => return,
        Some(map) => map,
        None => None,
    };
    let mut text = vec![0; 64 + architecture.len() * 6 + data.len() * 2];
    let mut sink = SliceSink::new(&mut text);
    write(&architecture, &backtrace, image_map.as_deref(), &mut sink).expect("room enough");
    let again = read(sink.written()).expect("own output");
    assert!(again.architecture == architecture.as_str());
    assert_eq!(decoded(again.backtrace), Some(backtrace));
    assert_eq!(again.image_map.map(decoded), image_map.map(Some));
});

/// Returns the bytes behind base64, which both ways to decode agree on.
fn decoded(text: cairn_wire::swift_json::JsonText<'_>) -> Option<Vec<u8>> {
    let one_by_one: Result<Vec<u8>, _> = text.base64_bytes().collect();
    let mut buffer = vec![0; text.escaped().len()];
    match (text.decode_base64(&mut buffer), one_by_one) {
        (Ok(at_once), Ok(bytes)) => {
            assert_eq!(at_once, bytes);
            Some(bytes)
        }
        (Err(DecodeIntoError::NotBase64(_)), Err(_)) => None,
        (at_once, one_by_one) => panic!("{at_once:?} but {one_by_one:?}"),
    }
}
