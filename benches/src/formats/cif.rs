//! The Compact ImageMap Format, on the module tables of the corpus.

use cairn_format::{AbsoluteAddress, Module, SliceSink, WordSize};
use cairn_wire::cif::{CifDecoder, CifDialect, DecoderSlot, EncoderSlot, ImageMap, encode};

use super::{CAIRN, Inputs, REAL, fold, used};
use crate::corpus::Program;
use crate::measure::{Case, Unit};
use crate::records::{GrowingSink, Records};

/// Room for the map of the program with the most modules.
const MAP_BYTES: usize = 1 << 14;

/// The paths of one program, in the order of its modules; [`Module`] borrows from them.
struct Paths<'a> {
    program: &'a Program,
    texts: Vec<String>,
}

impl<'a> Paths<'a> {
    fn new(program: &'a Program) -> Self {
        Self { program, texts: program.modules.iter().map(|module| module.path()).collect() }
    }

    fn modules(&self) -> Vec<Module<'_>> {
        let modules = self.program.modules.iter().zip(&self.texts).map(|(module, path)| Module {
            base: AbsoluteAddress::new(module.base),
            end: AbsoluteAddress::new(module.end_of_text()),
            build_id: (!module.build_id.is_empty()).then_some(&module.build_id),
            path: Some(path.as_bytes()),
        });
        modules.collect()
    }
}

pub(crate) fn add<'a>(inputs: &'a Inputs, cases: &mut Vec<Case<'a>>) {
    let paths: Vec<Paths<'_>> = inputs.programs.iter().map(Paths::new).collect();
    let units = paths.iter().map(|paths| paths.texts.len()).sum();
    let mut records = Records::default();
    for paths in &paths {
        records.push(|sink| encode_one(&paths.modules(), sink));
    }
    check(&paths, &records);
    let bytes = records.bytes();
    let case = |operation, pass| Case {
        operation,
        implementation: CAIRN,
        input: REAL,
        unit: Unit::Image,
        units,
        bytes,
        pass,
    };
    cases.push(case("CIF encode", Box::new(move || encode_all(&paths))));
    cases.push(case("CIF decode", Box::new(move || decode_all(&records))));
}

fn encode_one(images: &[Module<'_>], sink: &mut impl cairn_format::Sink) {
    let map = ImageMap { word_size: WordSize::Bits64, platform: "Linux", images };
    encode(&map, CifDialect::Canonical, &mut [EncoderSlot::EMPTY; 128], sink).expect("room for the map");
}

fn check(paths: &[Paths<'_>], records: &Records) {
    for (paths, record) in paths.iter().zip(records.iter()) {
        let mut slots = [DecoderSlot::EMPTY; 256];
        let decoder = CifDecoder::strict(record, &mut slots).expect("a map of the encoder");
        let mut expected = paths.modules().into_iter();
        for image in decoder {
            let (image, expected) =
                (image.expect("a map of the encoder").module, expected.next().expect("no more"));
            let path: Option<Vec<u8>> = image.path.map(|path| path.bytes().collect());
            assert_eq!(path.as_deref(), expected.path, "CIF does not round-trip");
            assert_eq!((image.base, image.end), (expected.base, expected.end), "CIF does not round-trip");
            assert_eq!(image.build_id, expected.build_id, "CIF does not round-trip");
        }
        assert_eq!(expected.next(), None, "CIF lost an image");
    }
}

fn encode_all(paths: &[Paths<'_>]) -> u64 {
    let mut buffer = [0; MAP_BYTES];
    let mut written = 0;
    for paths in paths {
        let mut sink = SliceSink::new(&mut buffer);
        encode_one(&paths.modules(), &mut sink);
        written += used(sink.written());
    }
    written
}

/// Decodes the maps and reads the text of every path.
fn decode_all(records: &Records) -> u64 {
    let mut slots = [DecoderSlot::EMPTY; 256];
    let mut text = Vec::with_capacity(256);
    let mut checksum = 0;
    for record in records.iter() {
        for image in CifDecoder::strict(record, &mut slots).expect("a map of the encoder") {
            let module = image.expect("a map of the encoder").module;
            text.clear();
            if let Some(path) = module.path {
                path.write_to(&mut GrowingSink(&mut text)).expect("a sink without end");
            }
            checksum = fold(fold(checksum, module.base.value()), module.end.value() + text.len() as u64);
        }
    }
    checksum
}
