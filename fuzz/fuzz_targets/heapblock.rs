//! Whatever the bytes: headers, anchors and stack tables are read or refused, and what was read is
//! written as it was.
#![no_main]

use cairn_wire::heapblock::{
    Anchor, BlockState, ByteOrder, HEADER_BYTES, Header, StackReference, guard, inline_stack,
    stack_table::{Entry, Head},
};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((&[choice, low, high], bytes)) = data.split_first_chunk() else { return };
    let order = if choice & 1 == 0 { ByteOrder::LittleEndian } else { ByteOrder::BigEndian };
    let address = u64::from(u16::from_le_bytes([low, high])) << (choice >> 2);

    if let Some(header) = bytes.first_chunk::<HEADER_BYTES>() {
        // A header of random bytes is one where it says that it is.
        let place = Header::implied_address(*header, order).unwrap_or(address);
        match Header::from_bytes(*header, place, order) {
            Ok((found, state)) => {
                let written = found.to_bytes(place, order);
                if state == BlockState::Live {
                    assert_eq!(written, *header);
                }
                assert!(found.prefix_bytes() >= 16 && found.guard_bytes() <= 8);
                assert!(Header::from_bytes(written, place, order) == Ok((found, BlockState::Live)));
                if let StackReference::Inline { length_bytes, .. } = found.stack()
                    && let Some(stack) = bytes.get(16..16 + usize::from(length_bytes))
                {
                    let _ = inline_stack::is_intact(found.stack(), stack);
                }
                let tail = bytes.get(16..).unwrap_or_default();
                assert!(guard::damaged_bytes(found.size_bytes(), tail) <= 8);
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
        let _ = Header::from_bytes(*header, address, order);
    }
    match Anchor::parse(bytes, order) {
        Ok(anchor) => assert_eq!(Anchor::parse(&anchor.to_bytes(order), order), Ok(anchor)),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    if let Ok(head) = Head::parse(bytes, order) {
        assert_eq!(Head::parse(&head.to_bytes(order), order), Ok(head));
        for number in [0, 1, address as u32, u32::MAX] {
            if let Some((segment, offset)) = head.place_of(number) {
                assert!(segment < head.segment_count && offset < 16 << head.segment_entries_log2);
            }
        }
    }
    if let Some(entry) = bytes.first_chunk()
        && let Ok(found) = Entry::from_bytes(*entry, address as u32, order)
    {
        assert!(found.parent < address as u32);
        assert_eq!(found.to_bytes(order), *entry);
        let _ = found.frame();
    }
});
