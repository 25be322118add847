//! Line tables of CPython's code objects: from the byte offset of an instruction to its line.
//!
//! ```
//! use cairn_wire::python_lines::{LineTableFormat, line_at};
//!
//! // Two instructions at line 7, then one at line 9.
//! let table = [4, 0, 2, 2];
//! assert_eq!(line_at(LineTableFormat::Python310, 7, &table, 2), Some(7));
//! assert_eq!(line_at(LineTableFormat::Python310, 7, &table, 4), Some(9));
//! assert_eq!(line_at(LineTableFormat::Python310, 7, &table, 6), None, "behind the table");
//! ```
//!
//! | format | attribute | entries |
//! |---|---|---|
//! | 3.8, 3.9 | `co_lnotab` | pairs: offset step `u8`, line step `i8` |
//! | 3.10 | `co_linetable` | pairs: length `u8`, line step `i8`; a step of -128 is code without a line |
//! | 3.11 to 3.15 | `co_linetable` | first byte `1kkkklll`: kind k, (l + 1) * 2 bytes of code; then bytes by kind |
//!
//! Kinds of the last format: 0 to 9 one more byte, the line is that of the entry before; 10 to 12
//! two more bytes, line step k - 10; 13 a signed number, the step; 14 the same and three numbers;
//! 15 code without a line. A number has 6 bits in a byte, the lowest first, and bit 6 where more
//! follow; a signed one has its sign in bit 0.
//!
//! Code without a line is real: the interpreter adds instructions that no source line has. Tables
//! come from strangers' recordings: a walk reads each byte at most once, and lines wrap.

pub use cairn_format::recording::LineTableFormat;

/// Returns the line of the instruction at byte `offset`.
///
/// `None` for an instruction without a line, and where the table ends before the offset. In the
/// oldest format the last line goes on behind the table's end.
#[must_use]
pub fn line_at(format: LineTableFormat, first_line: u32, table: &[u8], offset: u32) -> Option<u32> {
    match format {
        LineTableFormat::Python38 => Some(line_by_steps(first_line, table, offset)),
        LineTableFormat::Python310 => line_by_pairs(first_line, table, offset),
        LineTableFormat::Python311 => line_by_entries(first_line, table, offset),
        _ => None,
    }
}

/// The pairs of bytes; half a pair at the end is left out.
fn pairs(table: &[u8]) -> impl Iterator<Item = (u8, u8)> {
    table.chunks_exact(2).filter_map(|pair| Some((*pair.first()?, *pair.last()?)))
}

fn line_by_steps(first_line: u32, table: &[u8], offset: u32) -> u32 {
    let (mut at, mut line) = (0_u32, first_line);
    for (offset_step, line_step) in pairs(table) {
        at = at.saturating_add(offset_step.into());
        if at > offset {
            break;
        }
        line = line.wrapping_add_signed((line_step as i8).into());
    }
    line
}

fn line_by_pairs(first_line: u32, table: &[u8], offset: u32) -> Option<u32> {
    const NO_LINE: i8 = i8::MIN;
    let (mut end, mut line) = (0_u32, first_line);
    for (length, step) in pairs(table) {
        let step = step as i8;
        end = end.saturating_add(length.into());
        if step != NO_LINE {
            line = line.wrapping_add_signed(step.into());
        }
        if offset < end {
            return (step != NO_LINE).then_some(line);
        }
    }
    None
}

fn line_by_entries(first_line: u32, table: &[u8], offset: u32) -> Option<u32> {
    let (mut end, mut line) = (0_u32, first_line);
    let mut bytes = table.iter().copied();
    while let Some(head) = bytes.next() {
        end = end.saturating_add((u32::from(head & 7) + 1) * 2);
        let kind = head >> 3 & 15;
        let step = match kind {
            0..=9 => {
                bytes.next()?;
                0
            }
            10..=12 => {
                bytes.next()?;
                bytes.next()?;
                i32::from(kind) - 10
            }
            13 => signed(number(&mut bytes)?),
            14 => {
                let step = signed(number(&mut bytes)?);
                for _ in 0..3 {
                    number(&mut bytes)?;
                }
                step
            }
            _ => 0,
        };
        line = line.wrapping_add_signed(step);
        if offset < end {
            return (kind != 15).then_some(line);
        }
    }
    None
}

fn number(bytes: &mut impl Iterator<Item = u8>) -> Option<u32> {
    let (mut value, mut shift) = (0_u32, 0_u32);
    loop {
        let byte = bytes.next()?;
        value |= u32::from(byte & 63).checked_shl(shift).unwrap_or(0);
        if byte & 64 == 0 {
            return Some(value);
        }
        shift = shift.saturating_add(6);
    }
}

fn signed(value: u32) -> i32 {
    let size = (value >> 1) as i32;
    if value & 1 == 0 { size } else { -size }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::LineTableFormat::{Python38, Python310, Python311};
    use super::line_at;

    #[test]
    fn python38_steps_back_and_past_long_code() {
        // 300 bytes of code at line 5 take two pairs, then a step back.
        let table = [255, 0, 45, 10, 6, 0xfe];
        for (offset, line) in [(0, 5), (299, 5), (300, 15), (305, 15), (306, 13), (9999, 13)] {
            assert_eq!(line_at(Python38, 5, &table, offset), Some(line), "at {offset}");
        }
    }

    #[test]
    fn python310_has_code_without_line() {
        let table = [6, 1, 4, 0x80, 2, 0xff, 0, 100, 2, 0];
        for (offset, line) in
            [(0, Some(11)), (6, None), (8, None), (10, Some(10)), (12, Some(110)), (14, None)]
        {
            assert_eq!(line_at(Python310, 10, &table, offset), line, "at {offset}");
        }
    }

    #[test]
    fn python311_reads_every_kind() {
        let entry = |kind: u8, length: u8| 0x80 | kind << 3 | (length - 1);
        let table = [
            // Kind 13: step -3, one instruction.
            &[entry(13, 1), 7][..],
            &[entry(0, 2), 0x12],
            &[entry(11, 1), 1, 2],
            // Kind 14: step +40 in two bytes (80 = 16 + 64 * 1), then three numbers.
            &[entry(14, 1), 64 | 16, 1, 0, 64 | 3, 1, 2],
            &[entry(15, 1)],
            &[entry(10, 8), 0, 0],
        ]
        .concat();
        let expected = [
            (0, Some(97)),
            (2, Some(97)),
            (5, Some(97)),
            (6, Some(98)),
            (8, Some(138)),
            (10, None),
            (12, Some(138)),
        ];
        for (offset, line) in expected {
            assert_eq!(line_at(Python311, 100, &table, offset), line, "at {offset}");
        }
        assert_eq!(line_at(Python311, 100, &table, 28), None);
        // Cut inside of an entry.
        assert_eq!(line_at(Python311, 100, &table[..8], 8), None);
    }

    proptest::proptest! {
        #[test]
        fn line_at_ends_on_any_bytes(
            table in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..300),
            first in proptest::prelude::any::<u32>(),
            offset in proptest::prelude::any::<u32>(),
        ) {
            for format in [Python38, Python310, Python311] {
                let _ = line_at(format, first, &table, offset);
            }
        }
    }
}
