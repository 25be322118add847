//! Log lines: the `~m#` and `~b#` texts of libwebsockets, against its base64 code.

use cairn_format::{SliceSink, WordSize};
use cairn_wire::lws::{self, log_line};

use super::{CAIRN, Inputs, LOW, fold, used};
use crate::corpus::Stacks;
use crate::lws_reference::LwsReference;
use crate::measure::{Case, Unit};
use crate::records::Records;

/// Text that a device prints before its record.
const LINE_START: &[u8] = b"[2022/03/01 10:00:00:1234] N: ";

const PEER: &str = "libwebsockets C (base64 alone)";

pub(crate) fn add<'a>(inputs: &'a Inputs, cases: &mut Vec<Case<'a>>) {
    let stacks = &inputs.low_cut;
    let blobs = Records::of(stacks, |stack, sink| {
        lws::encode(stack.addresses, stack.requested_bytes, sink).expect("a sink without end");
    });
    let compressed = lines_of(&blobs);
    let decoded = Records::of(stacks, |stack, sink| {
        let addresses = stack.addresses.iter().copied();
        log_line::write_decoded(stack.requested_bytes, addresses, sink).expect("a sink without end");
    });
    assert_eq!(parse_compressed(&compressed), parse_decoded(&decoded), "the two texts differ");

    let (compressed_bytes, decoded_bytes) = (compressed.bytes(), decoded.bytes());
    let case = |operation, implementation, bytes, pass| Case {
        operation,
        implementation,
        input: LOW,
        unit: Unit::Frame,
        units: stacks.frames(),
        bytes,
        pass,
    };
    if let Ok(peer) = inputs.peer.as_ref() {
        let (written, texts) = (blobs.clone(), base64_of(&blobs));
        let write = move || peer_write(peer, &written);
        cases.push(case("~m# line write", PEER, compressed_bytes, Box::new(write)));
        cases.push(case(
            "~m# line to blob",
            PEER,
            compressed_bytes,
            Box::new(move || peer_read(peer, &texts)),
        ));
    }
    let to_blob = compressed.clone();
    cases.push(case("~m# line write", CAIRN, compressed_bytes, Box::new(move || write_compressed(&blobs))));
    cases.push(case("~m# line to blob", CAIRN, compressed_bytes, Box::new(move || find_blobs(&to_blob))));
    cases.push(case(
        "~m# line decode",
        CAIRN,
        compressed_bytes,
        Box::new(move || parse_compressed(&compressed)),
    ));
    cases.push(case("~b# line write", CAIRN, decoded_bytes, Box::new(|| write_decoded(stacks))));
    cases.push(case("~b# line parse", CAIRN, decoded_bytes, Box::new(move || parse_decoded(&decoded))));
}

fn lines_of(blobs: &Records) -> Records {
    let mut lines = Records::default();
    for blob in blobs.iter() {
        lines.push(|sink| {
            sink.0.extend_from_slice(LINE_START);
            log_line::write_compressed(blob, sink).expect("a sink without end");
        });
    }
    lines
}

fn base64_of(blobs: &Records) -> Records {
    let mut texts = Records::default();
    for blob in blobs.iter() {
        texts.push(|sink| {
            let padding = cairn_wire::base64::Padding::Written;
            cairn_wire::base64::encode(blob, padding, sink).expect("a sink without end");
        });
    }
    texts
}

fn write_compressed(blobs: &Records) -> u64 {
    let mut buffer = [0; log_line::BUFFER_BYTES];
    let mut written = 0;
    for blob in blobs.iter() {
        let mut sink = SliceSink::new(&mut buffer);
        log_line::write_compressed(blob, &mut sink).expect("room for a line");
        written += used(sink.written());
    }
    written
}

fn find_blobs(lines: &Records) -> u64 {
    let mut buffer = [0; log_line::BUFFER_BYTES];
    let mut checksum = 0;
    for line in lines.iter() {
        for mark in log_line::marks(line) {
            let log_line::Mark::Compressed(text) = mark else { panic!("not a line of the writer") };
            let blob = text.bytes(&mut buffer).expect("a line of the writer");
            checksum = fold(checksum, used(blob));
        }
    }
    checksum
}

fn parse_compressed(lines: &Records) -> u64 {
    let mut buffer = [0; log_line::BUFFER_BYTES];
    let mut checksum = 0;
    for line in lines.iter() {
        for mark in log_line::marks(line) {
            let log_line::Mark::Compressed(text) = mark else { panic!("not a line of the writer") };
            let backtrace = text.decode(WordSize::Bits64, &mut buffer).expect("a line of the writer");
            let addresses = backtrace.addresses.iter();
            checksum = addresses.fold(checksum, |sum, address| fold(sum, address.value()));
            checksum = fold(checksum, backtrace.allocation_size_bytes);
        }
    }
    checksum
}

fn write_decoded(stacks: &Stacks) -> u64 {
    let mut buffer = [0; log_line::BUFFER_BYTES];
    let mut written = 0;
    for stack in stacks.iter() {
        let mut sink = SliceSink::new(&mut buffer);
        let addresses = stack.addresses.iter().copied();
        log_line::write_decoded(stack.requested_bytes, addresses, &mut sink).expect("room for a line");
        written += used(sink.written());
    }
    written
}

fn parse_decoded(lines: &Records) -> u64 {
    let mut checksum = 0;
    for line in lines.iter() {
        for mark in log_line::marks(line) {
            let log_line::Mark::Decoded(text) = mark else { panic!("not a line of the writer") };
            let (size_bytes, addresses) = text.parse().expect("a line of the writer");
            for address in addresses {
                checksum = fold(checksum, address.expect("a line of the writer").value());
            }
            checksum = fold(checksum, size_bytes);
        }
    }
    checksum
}

fn peer_write(peer: &LwsReference, blobs: &Records) -> u64 {
    let mut buffer = [0; log_line::BUFFER_BYTES];
    let write = |blob| peer.base64_encode(blob, &mut buffer).expect("room for a line") as u64;
    blobs.iter().map(write).sum()
}

fn peer_read(peer: &LwsReference, texts: &Records) -> u64 {
    let mut buffer = [0; log_line::BUFFER_BYTES];
    let read = |text| peer.base64_decode(text, &mut buffer).expect("room for a blob") as u64;
    texts.iter().map(read).sum()
}
