//! libwebsockets blobs, against libwebsockets.
//!
//! On real addresses its encoder loses bits above 2^31, so the comparison is on low addresses,
//! where both sides write the same bytes; the real ones are measured for cairn alone.

use cairn_format::{SliceSink, WordSize};
use cairn_wire::lws::{BLOB_BUFFER_BYTES, decode, encode};

use super::{CAIRN, Inputs, LOW, REAL, fold, used};
use crate::corpus::{Stack, Stacks};
use crate::lws_reference::{Decoded, LwsReference};
use crate::measure::{Case, Unit};
use crate::records::Records;

const PEER: &str = "libwebsockets C";

pub(crate) fn add<'a>(inputs: &'a Inputs, cases: &mut Vec<Case<'a>>) {
    for (input, stacks) in [(REAL, &inputs.real_cut), (LOW, &inputs.low_cut)] {
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
        cases.push(case("lws encode", CAIRN, Box::new(|| encode_all(stacks))));
        let decoded = encoded(stacks);
        cases.push(case("lws decode", CAIRN, Box::new(move || decode_all(&decoded))));
        if let (Ok(peer), LOW) = (inputs.peer.as_ref(), input) {
            check_peer(peer, stacks, &records);
            cases.push(case("lws encode", PEER, Box::new(|| peer_encode_all(peer, stacks))));
            cases.push(case("lws decode", PEER, Box::new(move || peer_decode_all(peer, &records))));
        }
    }
}

/// Returns bytes of one stack's blob, cut to the frames it can hold.
pub(crate) fn encoded_bytes(stack: Stack<'_>) -> usize {
    encode_one(stack, &mut [0; BLOB_BUFFER_BYTES])
}

fn encode_one(stack: Stack<'_>, buffer: &mut [u8]) -> usize {
    encode(stack.addresses, stack.requested_bytes, SliceSink::new(buffer)).expect("room for a blob")
}

fn encoded(stacks: &Stacks) -> Records {
    Records::of(stacks, |stack, sink| {
        encode(stack.addresses, stack.requested_bytes, sink).expect("a sink without end");
    })
}

fn check(stacks: &Stacks, records: &Records) {
    for (stack, blob) in stacks.iter().zip(records.iter()) {
        let backtrace = decode(blob, WordSize::Bits64).expect("a blob of the encoder");
        assert_eq!(*backtrace.addresses, *stack.addresses, "lws does not round-trip");
        assert_eq!(backtrace.allocation_size_bytes, stack.requested_bytes, "lws does not round-trip");
    }
}

fn check_peer(peer: &LwsReference, stacks: &Stacks, records: &Records) {
    let mut buffer = [0; BLOB_BUFFER_BYTES];
    let mut decoded = Decoded::new();
    for (stack, blob) in stacks.iter().zip(records.iter()) {
        let length = peer.encode(stack.addresses, stack.requested_bytes as usize, &mut buffer);
        assert_eq!(length.map(|length| &buffer[..length]), Some(blob), "libwebsockets writes other bytes");
        assert!(peer.decode(blob, &mut decoded), "libwebsockets cannot read a blob");
        let addresses = decoded.addresses().iter().map(|&address| address as u64);
        assert!(
            addresses.eq(stack.addresses.iter().map(|address| address.value())),
            "libwebsockets reads otherwise"
        );
        assert_eq!(decoded.allocation_bytes() as u64, stack.requested_bytes, "libwebsockets reads otherwise");
    }
}

fn encode_all(stacks: &Stacks) -> u64 {
    let mut buffer = [0; BLOB_BUFFER_BYTES];
    let mut written = 0;
    for stack in stacks.iter() {
        let length = encode_one(stack, &mut buffer);
        written += used(&buffer[..length]);
    }
    written
}

fn peer_encode_all(peer: &LwsReference, stacks: &Stacks) -> u64 {
    let mut buffer = [0; BLOB_BUFFER_BYTES];
    let encode = |stack: Stack<'_>| peer.encode(stack.addresses, stack.requested_bytes as usize, &mut buffer);
    stacks.iter().map(encode).map(|length| length.expect("room for a blob") as u64).sum()
}

fn decode_all(records: &Records) -> u64 {
    let mut checksum = 0;
    for blob in records.iter() {
        let backtrace = decode(blob, WordSize::Bits64).expect("a blob of the encoder");
        for address in &*backtrace.addresses {
            checksum = fold(checksum, address.value());
        }
        checksum = fold(checksum, backtrace.allocation_size_bytes);
    }
    checksum
}

fn peer_decode_all(peer: &LwsReference, records: &Records) -> u64 {
    let mut decoded = Decoded::new();
    let mut checksum = 0;
    for blob in records.iter() {
        assert!(peer.decode(blob, &mut decoded), "not a blob of the encoder");
        for &address in decoded.addresses() {
            checksum = fold(checksum, address as u64);
        }
        checksum = fold(checksum, decoded.allocation_bytes() as u64);
    }
    checksum
}
