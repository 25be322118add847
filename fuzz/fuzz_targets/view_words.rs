//! Any bytes as the address of a request to `cairn view`: a path, and the words behind its question
//! mark.
#![no_main]

use cairn_web::view::reads_words;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let (path, query) = text.split_once('?').unwrap_or((text, ""));
    let makes_sense = reads_words(path, query);
    // A parameter that is given twice is invalid.
    if let Some(word) = query.split('&').find(|word| !word.is_empty()) {
        assert!(!reads_words(path, &format!("{query}&{word}")));
    }
    assert_eq!(makes_sense, reads_words(path, &format!("&{query}&")));
});
