//! Any text decodes or is refused; what decodes comes back from its canonical text.
#![no_main]

use cairn_format::SliceSink;
use cairn_wire::base64;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Ok(bytes) = base64::Base64Decoder::new(data).collect::<Result<Vec<u8>, _>>() else { return };
    let mut text = vec![0; bytes.len().div_ceil(3) * 4];
    let mut sink = SliceSink::new(&mut text);
    base64::encode(&bytes, base64::Padding::Written, &mut sink).expect("the buffer has the exact size");
    let again: Vec<u8> =
        base64::Base64Decoder::new(sink.written()).map(|byte| byte.expect("own output")).collect();
    assert_eq!(again, bytes);
});
