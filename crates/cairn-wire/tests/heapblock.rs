//! cairn's heap blocks: what is written is read, and what was not written is not taken for a block.

use cairn_wire::heapblock::{
    Anchor, AnchorError, BlockLayout, BlockState, ByteOrder, FREED_MAGIC, Header, HeaderError, LIVE_MAGIC,
    SIZE_LIMIT, StackReference, guard, inline_stack,
    stack_table::{Entry, FrameKind, Head, TableError},
};
use proptest::prelude::*;

/// The layout as its document draws it, without the code of the crate.
#[test]
fn heapblock_header_has_these_bytes() {
    let header = Header::new(0x01_2345_6789, StackReference::Number(0xdead_beef), 12, true).unwrap();
    let little = header.to_bytes(0x7f12_3456_7000, ByteOrder::LittleEndian);
    assert_eq!(little[4..], [0x89, 0x67, 0x45, 0x23, 0xef, 0xbe, 0xad, 0xde, 0x6c, 0x01, 0x1a, 0xca]);
    let big = header.to_bytes(0x7f12_3456_7000, ByteOrder::BigEndian);
    assert_eq!(big[4..], [0x23, 0x45, 0x67, 0x89, 0xde, 0xad, 0xbe, 0xef, 0xca, 0x1a, 0x01, 0x6c]);
    assert!(little[..4].iter().eq(big[..4].iter().rev()));
    // The check, as a few lines of Python reckon it: it is part of the format and must never
    // change.
    assert_eq!(little[..4], 0x247b_2fae_u32.to_le_bytes());
    assert_eq!(header.prefix_bytes(), 4096);
}

#[test]
fn heapblock_distinguishes_copies_and_freed_blocks() {
    let header = Header::new(40, StackReference::Tag(1), 3, false).unwrap();
    let mut words = header.to_words(0x2000_0100);
    assert_eq!(Header::from_words(words, 0x2000_0100), Ok((header, BlockState::Live)));
    for elsewhere in [0x2000_0104, 0x2000_00fc, 0x100, 0x2_2000_0100] {
        assert_eq!(Header::from_words(words, elsewhere), Err(HeaderError::WrongCheck), "{elsewhere:#x}");
    }
    words[3] = Header::freed(words[3]);
    assert_eq!(Header::from_words(words, 0x2000_0100), Ok((header, BlockState::Freed)));
    assert_eq!(Header::from_words([0; 4], 0), Err(HeaderError::NoMagic));
    assert_eq!(Header::from_words([u32::MAX; 4], 0x1000), Err(HeaderError::NoMagic));
}

#[test]
fn heapblock_clamps_or_refuses_extremes() {
    let header = Header::new(u64::MAX, StackReference::None, 0, false).unwrap();
    assert_eq!((header.size_bytes(), header.prefix_bytes(), header.guard_bytes()), (SIZE_LIMIT, 16, 0));
    assert_eq!(Header::new(0, StackReference::None, 32, false), None);
    let inline = inline_stack::reference(&[0; 65_535]).unwrap();
    assert_eq!(Header::new(1, inline, 31, true).unwrap().prefix_bytes(), 1 << 31);
    assert_eq!(inline_stack::reference(&[0; 65_536]), None);
}

/// 2^20 random headers with a right magic: their checks must be right as often as chance has it.
/// The test compares 14 of 32 bits, so that collisions can be counted: 64 are expected, and a fair
/// hash is within 5 standard deviations of that.
#[test]
fn heapblock_checks_collide_only_by_chance() {
    let mut random = Random(0x1234_5678_9abc_def1);
    for magic in [LIVE_MAGIC, FREED_MAGIC] {
        let mut agreeing = 0;
        for _ in 0..1 << 20 {
            let (a, b) = (random.next(), random.next());
            let word_3 = u32::from(magic) << 16 | (b >> 32) as u32 & 0xffff;
            let bytes = [a as u32, (a >> 32) as u32, b as u32, word_3].map(u32::to_le_bytes).concat();
            let implied =
                Header::implied_address(bytes.try_into().unwrap(), ByteOrder::LittleEndian).unwrap();
            agreeing += u32::from(implied >> 2 & 0x3fff == 0x1234);
        }
        assert!((64 - 40..=64 + 40).contains(&agreeing), "{agreeing} of 2^20 with the magic {magic:#x}");
    }
}

/// Headers of real heaps differ in few bits, as they have small sizes and small numbers. The check
/// of one must not be that of its neighbours: about half of its bits change with each bit.
#[test]
fn heapblock_check_covers_every_header_bit() {
    let mut changed = [0_u32; 96];
    let rounds = 2048;
    for round in 0..rounds {
        let header = Header::new(round * 8, StackReference::Number(round as u32 * 3), 4, true).unwrap();
        let words = header.to_words(0x5555_0000_0010);
        for (bit, changed) in changed.iter_mut().enumerate() {
            if bit >= 80 {
                continue; // the magic
            }
            let mut other = words;
            other[1 + bit / 32] ^= 1 << (bit % 32);
            let bytes = |words: [u32; 4]| words.map(u32::to_le_bytes).concat().try_into().unwrap();
            let implied =
                |words| Header::implied_address(bytes(words), ByteOrder::LittleEndian).unwrap() >> 2;
            assert_ne!(implied(words), implied(other), "bit {bit}");
            let check = |words: [u32; 4]| words[0].wrapping_sub(implied(words) as u32);
            *changed += (check(words) ^ check(other)).count_ones();
        }
    }
    for (bit, changed) in changed.iter().take(80).enumerate() {
        let mean = f64::from(*changed) / rounds as f64;
        assert!((13.0..19.0).contains(&mean), "bit {bit} changes {mean} of 32 bits of the check");
    }
}

#[test]
fn heapblock_refuses_damaged_anchors() {
    let anchor = Anchor {
        layout: BlockLayout::Lws,
        own_address: 0x1000,
        parameter: 16,
        lists_address: 0x2000,
        list_count: 64,
        list_stride_bytes: 64,
        stack_table_address: 0,
    };
    for order in [ByteOrder::LittleEndian, ByteOrder::BigEndian] {
        let bytes = anchor.to_bytes(order);
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(Anchor::parse(&damaged, order).is_err(), "bit {bit}");
        }
        for length in 0..bytes.len() {
            assert_eq!(Anchor::parse(&bytes[..length], order), Err(AnchorError::TooShort));
        }
    }
    let other_order = Anchor::parse(&anchor.to_bytes(ByteOrder::BigEndian), ByteOrder::LittleEndian);
    assert_eq!(other_order, Err(AnchorError::WrongCheck));
}

#[test]
fn heapblock_refuses_damaged_tables() {
    let head = Head { segment_entries_log2: 16, end: 1 << 20, segment_count: 16 };
    let bytes = head.to_bytes(ByteOrder::BigEndian);
    assert_eq!(Head::parse(&bytes, ByteOrder::BigEndian), Ok(head));
    assert_eq!(Head::parse(&bytes, ByteOrder::LittleEndian), Err(TableError::UnknownVersion(1 << 24)));
    assert_eq!(Head::parse(&bytes[1..], ByteOrder::BigEndian), Err(TableError::TooShort));
    let large = Head { segment_entries_log2: 29, ..head };
    assert_eq!(
        Head::parse(&large.to_bytes(ByteOrder::BigEndian), ByteOrder::BigEndian),
        Err(TableError::TooLarge)
    );
    assert_eq!(head.place_of(0), None);
    assert_eq!(head.place_of((1 << 20) - 1), Some((15, 0xffff * 16)));
    assert_eq!(Head { segment_count: 15, ..head }.place_of((1 << 20) - 1), None);

    let order = ByteOrder::LittleEndian;
    let entry = Entry { address: u64::MAX, parent: 4, kind: FrameKind::Truncated };
    assert_eq!(Entry::from_bytes(entry.to_bytes(order), 5, order), Ok(entry));
    assert_eq!(Entry::from_bytes(entry.to_bytes(order), 4, order), Err(TableError::DamagedEntry));
    assert_eq!(Entry::from_bytes([0; 16], 4, order), Err(TableError::NoEntry));
    assert_eq!(Entry::from_bytes([9; 16], u32::MAX, order), Err(TableError::DamagedEntry));
}

/// xorshift64*.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

fn any_reference() -> impl Strategy<Value = StackReference> {
    prop_oneof![
        Just(StackReference::None),
        any::<u32>().prop_map(StackReference::Number),
        any::<(u16, u16)>().prop_map(|(length_bytes, check)| StackReference::Inline { length_bytes, check }),
        any::<u32>().prop_map(StackReference::Tag),
    ]
}

fn any_order() -> impl Strategy<Value = ByteOrder> {
    prop_oneof![Just(ByteOrder::LittleEndian), Just(ByteOrder::BigEndian)]
}

proptest! {
    #[test]
    fn heapblock_round_trips_headers(
        size in 0..=SIZE_LIMIT, stack in any_reference(), alignment in 0..32_u32, guarded: bool,
        address in any::<u64>().prop_map(|address| address & !3), order in any_order(),
    ) {
        let header = Header::new(size, stack, alignment, guarded).unwrap();
        let bytes = header.to_bytes(address, order);
        prop_assert_eq!(Header::from_bytes(bytes, address, order), Ok((header, BlockState::Live)));
        prop_assert_eq!(Header::implied_address(bytes, order), Some(address & 0x3_ffff_fffc));
        prop_assert!(header.prefix_bytes() >= 16 + stack.inline_bytes());
        prop_assert_eq!(header.prefix_bytes() % (1 << alignment), 0);
        prop_assert!(header.prefix_bytes() < 16 + stack.inline_bytes() + (1 << alignment));
    }

    #[test]
    fn heapblock_notices_any_changed_bit(
        size in 0..=SIZE_LIMIT, stack in any_reference(), address in any::<u64>().prop_map(|address| address & !3),
        bit in 0..128_usize,
    ) {
        let header = Header::new(size, stack, 4, true).unwrap();
        let mut bytes = header.to_bytes(address, ByteOrder::NATIVE);
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(Header::from_bytes(bytes, address, ByteOrder::NATIVE).is_err());
    }

    #[test]
    fn heapblock_guard_counts_overwritten_bytes(size in 0..100_000_u64, overflow in 0..9_usize, byte in 0..0x80_u8) {
        let mut found: Vec<u8> = guard::pattern(size).collect();
        prop_assert_eq!(found.len(), guard::bytes_behind(size));
        prop_assert_eq!((size as usize + found.len()) % 8, 0);
        let overflow = overflow.min(found.len());
        found[..overflow].fill(byte);
        prop_assert_eq!(guard::damaged_bytes(size, &found), overflow);
    }

    /// 16 bits of check let one damage in 65,536 pass; of 255, more than three never.
    #[test]
    fn heapblock_checks_inline_stacks(bytes in prop::collection::vec(any::<u8>(), 1..200), at: prop::sample::Index) {
        let reference = inline_stack::reference(&bytes).unwrap();
        prop_assert!(inline_stack::is_intact(reference, &bytes));
        prop_assert!(!inline_stack::is_intact(reference, &bytes[1..]));
        prop_assert!(!inline_stack::is_intact(StackReference::Tag(0), &bytes));
        let passing = (1..=255_u8).filter(|by| {
            let mut damaged = bytes.clone();
            damaged[at.index(bytes.len())] ^= by;
            inline_stack::is_intact(reference, &damaged)
        });
        prop_assert!(passing.count() <= 3);
    }
}
