//! Any bytes as a log line: the marks lie in it, in order; what decodes strictly is salvaged alike;
//! what parses is written alike.
#![no_main]

use cairn_format::{Sink, SinkFull, WordSize};
use cairn_wire::lws::log_line::{self, BUFFER_BYTES, Mark};

libfuzzer_sys::fuzz_target!(|line: &[u8]| {
    let mut buffer = [0; BUFFER_BYTES];
    let mut end_of_last = 0;
    let mut found = 0;
    for mark in log_line::marks(line) {
        found += 1;
        let range = match mark {
            Mark::Compressed(text) => compressed(line, text, &mut buffer),
            Mark::Decoded(text) => decoded(line, text),
        };
        assert!(range.start >= end_of_last && range.end <= line.len() && range.len() >= 3);
        end_of_last = range.end;
    }
    let plainly = line.windows(3).filter(|window| [&b"~m#"[..], b"~b#"].contains(window)).count();
    assert_eq!(found, plainly);
    if let Ok(backtrace) = log_line::decode_text(line, WordSize::Bits64, &mut buffer) {
        assert!(backtrace.addresses.len() <= 31 && line.len() <= log_line::REFERENCE_TEXT_LIMIT);
    }
});

fn compressed(line: &[u8], text: log_line::CompressedText<'_>, buffer: &mut [u8]) -> core::ops::Range<usize> {
    assert_eq!(&line[text.range()][3..], text.base64());
    let strict = text.decode(WordSize::Bits64, buffer);
    match (strict, text.salvage(WordSize::Bits64, buffer)) {
        (Ok(strict), salvage) => {
            let salvage = salvage.unwrap();
            assert_eq!(strict.addresses, salvage.addresses);
            assert_eq!(Some(strict.allocation_size_bytes), salvage.allocation_size_bytes);
        }
        (Err(error), salvage) => {
            assert!(error.offset <= line.len() && !error.to_string().is_empty());
            assert!(salvage.map_or_else(|other| other == error, |found| found.findings.faults().count() > 0));
        }
    }
    text.range()
}

fn decoded(line: &[u8], text: log_line::DecodedText<'_>) -> core::ops::Range<usize> {
    match text.parse() {
        Ok((size, addresses)) => {
            let addresses: Vec<_> = addresses.map_while(Result::ok).collect();
            let mut written = Bytes(Vec::new());
            log_line::write_decoded(size, addresses.iter().copied(), &mut written).unwrap();
            let Some(Mark::Decoded(again)) = log_line::marks(&written.0).next() else { panic!("no mark") };
            let (size_again, addresses_again) = again.parse().unwrap();
            assert_eq!(size_again, size);
            assert!(addresses_again.map(Result::unwrap).eq(addresses));
        }
        Err(error) => assert!(error.offset <= line.len() && !error.to_string().is_empty()),
    }
    text.range()
}

struct Bytes(Vec<u8>);

impl Sink for Bytes {
    fn put(&mut self, bytes: &[u8]) -> Result<(), SinkFull> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }
}
