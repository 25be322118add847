//! The Compact Backtrace Format, against the same rule written plainly.

use cairn_format::{AbsoluteAddress, CountingSink, Frame, SliceSink, WordSize};
use cairn_wire::cbf::{CbfDecoder, CbfDialect, CbfError, Rules, encode};

use super::{CAIRN, Inputs, LOW, REAL, fold, used};
use crate::corpus::Stacks;
use crate::measure::{Case, Unit};
use crate::plain_cbf;
use crate::records::Records;

/// The yardstick's name in the tables.
const PLAIN: &str = "plain rule";

/// The columns of [`encoded_bytes`].
const DIALECTS: [CbfDialect; 3] = [CbfDialect::Strict, CbfDialect::Swift62, CbfDialect::SwiftNewer];
pub(crate) const DIALECT_NAMES: [&str; 3] = ["strict", "Swift 6.2", "newer Swift"];

/// Room for a record of the deepest stack of the corpus: no frame takes more than nine bytes.
const RECORD_BYTES: usize = 9 * 512;

pub(crate) fn add<'a>(inputs: &'a Inputs, cases: &mut Vec<Case<'a>>) {
    for (input, stacks) in [(REAL, &inputs.real), (LOW, &inputs.low)] {
        let records = encoded(stacks);
        let bytes = records.bytes();
        let case = |operation, implementation, pass| Case {
            operation,
            implementation,
            input,
            unit: Unit::Frame,
            units: stacks.frames(),
            bytes,
            pass,
        };
        check(stacks, &records);
        cases.push(case("CBF encode", CAIRN, Box::new(|| encode_all(stacks))));
        cases.push(case("CBF encode", PLAIN, Box::new(plain_encoder(stacks))));
        let (stepped, plain_records) = (encoded(stacks), encoded(stacks));
        cases.push(case("CBF decode", CAIRN, Box::new(move || decode_all(&records))));
        cases.push(case("CBF decode, for loop", CAIRN, Box::new(move || step_all(&stepped))));
        cases.push(case("CBF decode", PLAIN, Box::new(move || plain_decode_all(&plain_records))));
    }
}

/// Returns bytes of one stack's record in each dialect.
pub(crate) fn encoded_bytes(addresses: &[AbsoluteAddress]) -> [usize; 3] {
    DIALECTS.map(|dialect| {
        let mut sink = CountingSink::default();
        encode(frames(addresses), WordSize::Bits64, dialect, &mut sink).expect("a counter takes all");
        sink.count
    })
}

fn frames(addresses: &[AbsoluteAddress]) -> impl Iterator<Item = Frame> {
    addresses.iter().copied().map(Frame::ReturnAddress)
}

fn encoded(stacks: &Stacks) -> Records {
    Records::of(stacks, |stack, sink| {
        encode(frames(stack.addresses), WordSize::Bits64, CbfDialect::Strict, sink)
            .expect("a sink without end");
    })
}

fn check(stacks: &Stacks, records: &Records) {
    let mut plain = Vec::new();
    for (stack, record) in stacks.iter().zip(records.iter()) {
        let decoded =
            CbfDecoder::new(record, Rules::STRICT).map(|frame| frame.expect("a record of the encoder"));
        assert!(decoded.eq(frames(stack.addresses)), "CBF does not round-trip");
        plain.clear();
        plain_cbf::encode(stack.addresses, &mut plain);
        assert_eq!(plain, record, "the plain rule writes other bytes");
    }
}

fn encode_all(stacks: &Stacks) -> u64 {
    let mut buffer = [0; RECORD_BYTES];
    let mut written = 0;
    for stack in stacks.iter() {
        let mut sink = SliceSink::new(&mut buffer);
        encode(frames(stack.addresses), WordSize::Bits64, CbfDialect::Strict, &mut sink)
            .expect("room for a record");
        written += used(sink.written());
    }
    written
}

fn plain_encoder(stacks: &Stacks) -> impl FnMut() -> u64 {
    let mut buffer = Vec::with_capacity(RECORD_BYTES);
    move || {
        let mut written = 0;
        for stack in stacks.iter() {
            buffer.clear();
            plain_cbf::encode(stack.addresses, &mut buffer);
            written += used(&buffer);
        }
        written
    }
}

fn decode_all(records: &Records) -> u64 {
    let mut checksum = 0;
    for record in records.iter() {
        CbfDecoder::new(record, Rules::STRICT).for_each(|frame| checksum = fold(checksum, address(frame)));
    }
    checksum
}

/// Returns the same frames asked for one by one.
fn step_all(records: &Records) -> u64 {
    let mut checksum = 0;
    for record in records.iter() {
        for frame in CbfDecoder::new(record, Rules::STRICT) {
            checksum = fold(checksum, address(frame));
        }
    }
    checksum
}

fn address(frame: Result<Frame, CbfError>) -> u64 {
    let Ok(Frame::ReturnAddress(address)) = frame else { panic!("not a record of the encoder") };
    address.value()
}

fn plain_decode_all(records: &Records) -> u64 {
    let mut checksum = 0;
    for record in records.iter() {
        let is_whole =
            plain_cbf::decode(record.iter().copied(), |address| checksum = fold(checksum, address));
        assert!(is_whole, "not a record of the encoder");
    }
    checksum
}
