//! Fields of any width, written and read back: the reader sees what the writer was given, at the
//! position that the widths add up to.
#![no_main]

use cairn_format::SliceSink;
use cairn_wire::bits::{BitReader, BitWriter};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    read_only(data);
    // Nine bytes make a field: the form and the width, then the value.
    let fields: Vec<(bool, u32, u64)> = data
        .chunks_exact(9)
        .map(|chunk| {
            let value = u64::from_be_bytes(chunk[1..].try_into().unwrap());
            (chunk[0] & 0x80 != 0, u32::from(chunk[0] & 0x7f), value)
        })
        .collect();

    let mut buffer = vec![0; fields.len() * 9 + 1];
    let mut writer = BitWriter::new(SliceSink::new(&mut buffer));
    let mut expected_bits = 0;
    for &(with_spare, width, value) in &fields {
        if with_spare { writer.field(value, width) } else { writer.bits(value, width) }.unwrap();
        expected_bits += u64::from(width.min(64)) + u64::from(with_spare);
        assert_eq!(writer.position_bits(), expected_bits);
    }
    let written = writer.finish().unwrap().into_written();
    assert_eq!(written.len() as u64, expected_bits.div_ceil(8));

    let mut reader = BitReader::new(written);
    for &(with_spare, width, value) in &fields {
        let read = if with_spare { reader.field(width) } else { reader.bits(width) };
        let width = width.min(64);
        let expected = if width == 0 { 0 } else { value << (64 - width) >> (64 - width) };
        assert_eq!(read, Some(expected));
    }
    assert_eq!(reader.position_bits(), expected_bits);
    let padding_bits = reader.remaining_bits() as u32;
    assert!(padding_bits < 8);
    assert_eq!(reader.bits(padding_bits), Some(0));
});

/// Reads the input itself in widths taken from it, and compares with reading bit by bit.
fn read_only(data: &[u8]) {
    let mut reader = BitReader::new(data);
    for &width in data {
        let width = u32::from(width) % 70;
        let before = reader.position_bits();
        let window = reader.window();
        let mut bit_reader = reader;
        let Some(value) = reader.bits(width) else {
            assert!(u64::from(width.min(64)) > reader.remaining_bits());
            assert_eq!(reader.position_bits(), before);
            return;
        };
        let bit_by_bit = (0..width.min(64)).fold(0, |value, _| value << 1 | bit_reader.bits(1).unwrap());
        assert_eq!(value, bit_by_bit);
        assert_eq!(reader.position_bits(), bit_reader.position_bits());
        if (1..=BitReader::WINDOW_BITS).contains(&width) {
            assert_eq!(window >> (64 - width), value);
        }
    }
}
