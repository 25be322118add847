//! Any bytes as a libwebsockets blob, as memory in front of an allocation, and as addresses to
//! encode.
#![no_main]

use cairn_format::{AbsoluteAddress, CountingSink, WordSize};
use cairn_wire::lws::{self, BlobCapacity, metadata};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    for word_size in [WordSize::Bits16, WordSize::Bits32, WordSize::Bits64] {
        decode(data, word_size);
        find(data, word_size);
    }
    // Most inputs have a wrong length; with the right one the rest is reached.
    let Ok(total) = u16::try_from(data.len() + 2) else { return };
    let with_length = [data, &total.to_be_bytes()].concat();
    for word_size in [WordSize::Bits16, WordSize::Bits32, WordSize::Bits64] {
        decode(&with_length, word_size);
    }
    encode(data);
});

/// Strict and lenient decoding agree, and lenient decoding never yields less.
fn decode(bytes: &[u8], word_size: WordSize) {
    let salvage = lws::salvage(bytes, word_size);
    let first_fault = salvage.findings.faults().next();
    if let Some(fault) = first_fault {
        assert!(fault.offset_bits <= bytes.len() as u64 * 8, "{fault}");
        assert!(!fault.to_string().is_empty());
    }
    match lws::decode(bytes, word_size) {
        Ok(backtrace) => {
            assert_eq!(first_fault, None);
            assert_eq!(backtrace.addresses, salvage.addresses);
            assert_eq!(Some(backtrace.allocation_size_bytes), salvage.allocation_size_bytes);
            assert_eq!(backtrace.suspected_losses, salvage.findings.suspected_losses);
            encode_again(&backtrace);
        }
        Err(error) => assert_eq!(first_fault, Some(error)),
    }
    assert!(salvage.addresses.iter().all(|address| address.value() <= word_size.max_address()));

    let Ok(blob) = lws::Blob::at_end_of(bytes) else { return };
    let Ok(mut decoder) = blob.decoder(word_size) else { return };
    let yielded = decoder.by_ref().count();
    assert!(yielded <= decoder.depth());
    assert!(decoder.next().is_none());
    if let Ok(ending) = decoder.finish() {
        assert!(ending.user_fields.remaining_bits() <= bytes.len() as u64 * 8);
    }
}

/// Decoded values can be encoded (unless they have 64 bits) and come back.
fn encode_again(backtrace: &lws::Backtrace) {
    let mut buffer = [0; lws::BLOB_BUFFER_BYTES];
    let size = backtrace.allocation_size_bytes;
    match lws::encode_into(&backtrace.addresses, size, &mut buffer, BlobCapacity::Reference) {
        Ok(blob) => {
            let again = lws::decode(blob, WordSize::Bits64).unwrap();
            assert_eq!((again.addresses, again.allocation_size_bytes), (backtrace.addresses, size));
        }
        Err(error) => {
            assert_eq!(error.kind, lws::LwsEncodeErrorKind::AddressTooWide);
            assert!(backtrace.addresses[error.item].value() >> 63 != 0);
        }
    }
}

/// Eight bytes make an address; the counted size is the written size; capacity is exact.
fn encode(data: &[u8]) {
    let words: Vec<u64> =
        data.chunks_exact(8).map(|word| u64::from_be_bytes(word.try_into().unwrap())).collect();
    let Some((&size, values)) = words.split_first() else { return };
    let addresses: Vec<_> = values.iter().map(|&value| AbsoluteAddress::new(value)).collect();
    let counted = lws::encode(&addresses, size, CountingSink::default());
    let mut buffer = [0; lws::BLOB_BUFFER_BYTES];
    let written = lws::encode_into(&addresses, size, &mut buffer, BlobCapacity::Reference).map(<[u8]>::len);
    assert_eq!(written, counted);
    let Ok(blob_bytes) = counted else { return };
    let backtrace = lws::decode(&buffer[..blob_bytes], WordSize::Bits64).unwrap();
    assert_eq!(*backtrace.addresses, addresses);
    assert_eq!(backtrace.allocation_size_bytes, size);
    for (capacity, needed) in
        [(BlobCapacity::WholeBuffer, blob_bytes), (BlobCapacity::Reference, blob_bytes + 1)]
    {
        assert!(lws::encode_into(&addresses, size, &mut buffer[..needed], capacity).is_ok());
        assert!(lws::encode_into(&addresses, size, &mut buffer[..needed - 1], capacity).is_err());
    }
}

/// The parts found lie one behind the other inside the memory.
fn find(memory: &[u8], word_size: WordSize) {
    let user_offset = memory.len().saturating_sub(usize::from(memory.first().copied().unwrap_or(0) % 32));
    let Ok(found) = metadata::find(memory, user_offset, word_size) else { return };
    assert_eq!(&memory[found.blob_offset..found.list_node_offset], found.blob);
    assert_eq!(found.list_node_offset + 3 * word_size.bytes(), found.user_offset);
    assert_eq!(metadata::find_before_list_node(memory, found.list_node_offset, word_size), Ok(found));
    let layout = metadata::PrefixLayout::new(found.blob.len(), word_size).unwrap();
    assert!(layout.pad_bytes() < word_size.bytes());
    if let Some(start) = found.true_allocation_offset {
        assert_eq!(start + layout.prefix_bytes(), user_offset);
        assert_eq!(start + layout.blob_offset(), found.blob_offset);
    }
}
