//! Whatever the bytes: strict and lenient reading agree, the work is bounded, and what was read can
//! be written and read again.
#![no_main]

use cairn_format::{Module, Sink, SinkFull, WordSize};
use cairn_wire::cif::{
    CifDecoder, CifDialect, CifEncodeErrorKind, CifError, CifErrorKind, DecoderSlot, EncoderSlot, ImageMap,
    MAX_PATH_BYTES, encode, slots_needed,
};

/// An image with its path as text; paths above this length are not built, to keep the runs short.
type Image<'a> = (Module<'a, ()>, Option<Vec<u8>>);
const LONGEST_BUILT_PATH: usize = 4096;

struct VecSink(Vec<u8>);

impl Sink for VecSink {
    fn put(&mut self, bytes: &[u8]) -> Result<(), SinkFull> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }
}

struct Map<'a> {
    word_size: WordSize,
    platform: &'a [u8],
    images: Vec<Image<'a>>,
    findings: Vec<CifError>,
    error: Option<CifError>,
}

fn read<'a>(mut decoder: CifDecoder<'a>) -> Map<'a> {
    let mut findings = decoder.findings().to_vec();
    let (in_header, mut images, mut error) = (findings.len(), Vec::new(), None);
    for item in decoder.by_ref() {
        assert!(error.is_none());
        match item {
            Err(found) => error = Some(found),
            Ok(image) => {
                findings.extend_from_slice(image.findings());
                let Module { base, end, build_id, path } = image.module;
                let path = path.filter(|path| path.len() <= LONGEST_BUILT_PATH).map(|path| {
                    let bytes: Vec<u8> = path.bytes().collect();
                    assert_eq!(path.len(), bytes.len());
                    assert!(path == bytes[..]);
                    assert_eq!(path.to_string(), String::from_utf8_lossy(&bytes));
                    let said_bad =
                        image.findings().iter().any(|found| found.kind == CifErrorKind::PathNotUtf8);
                    assert!(said_bad || core::str::from_utf8(&bytes).is_ok());
                    bytes
                });
                assert!(image.module.path.is_none_or(|path| path.len() as u64 <= MAX_PATH_BYTES));
                images.push((Module { base, end, build_id, path: path.as_ref().map(|_| ()) }, path));
            }
        }
    }
    assert!(decoder.next().is_none());
    findings.extend_from_slice(&decoder.findings()[in_header..]);
    Map { word_size: decoder.word_size(), platform: decoder.platform(), images, findings, error }
}

fn write(map: &Map<'_>) -> Option<Vec<u8>> {
    let modules: Vec<Module<'_>> = map
        .images
        .iter()
        .map(|(module, path)| Module {
            base: module.base,
            end: module.end,
            build_id: module.build_id,
            path: path.as_deref(),
        })
        .collect();
    let platform = core::str::from_utf8(map.platform).ok()?;
    let image_map = ImageMap { word_size: map.word_size, platform, images: &modules };
    let mut slots = vec![EncoderSlot::EMPTY; modules.len()];
    let mut sink = VecSink(Vec::new());
    match encode(&image_map, CifDialect::Canonical, &mut slots, &mut sink) {
        Ok(()) => Some(sink.0),
        Err(error) => {
            // A reader cannot produce anything else that the writer refuses.
            let refusable = [
                CifEncodeErrorKind::EndBeforeBase,
                CifEncodeErrorKind::TextCrossesMiddle,
                CifEncodeErrorKind::PathNotUtf8,
                CifEncodeErrorKind::BuildIdTooLong,
            ];
            assert!(refusable.contains(&error.kind), "{error}");
            assert!(!map.findings.is_empty());
            None
        }
    }
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let needed = slots_needed(data);
    assert!(needed <= data.len());
    let mut slots = vec![DecoderSlot::EMPTY; needed];
    let mut strict_slots = slots.clone();
    let strict = CifDecoder::strict(data, &mut strict_slots).map(read);
    let lenient = match CifDecoder::lenient(data, &mut slots) {
        Ok(decoder) => read(decoder),
        Err(error) => {
            // Strict reading may have stopped earlier: at the platform's name, when the count
            // behind it is cut.
            assert!(strict.is_err_and(|strict| strict.offset <= error.offset));
            return;
        }
    };
    let stopped_by = match strict {
        Ok(strict) => {
            assert!(lenient.images.starts_with(&strict.images));
            strict.error
        }
        Err(error) => Some(error),
    };
    let serious =
        lenient.findings.iter().chain(&lenient.error).find(|fault| fault.kind != CifErrorKind::EmptyText);
    assert_eq!(serious, stopped_by.as_ref());

    if let Some(bytes) = write(&lenient) {
        let mut slots = vec![DecoderSlot::EMPTY; slots_needed(&bytes)];
        let again = read(CifDecoder::strict(&bytes, &mut slots).unwrap());
        assert_eq!(again.error, None);
        assert_eq!(again.images, lenient.images);
        assert_eq!((again.word_size, again.platform), (lenient.word_size, lenient.platform));
    }
});
