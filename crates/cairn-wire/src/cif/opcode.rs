//! The opcodes that a path is made of, read one at a time.

use super::prefixes::FIRST_EXTENDED_CODE;
use cairn_format::bytes::ByteReader;

/// One instruction of a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Opcode<'a> {
    /// `00`: the path is complete.
    End,
    /// `01`-`3f`: that many bytes of text.
    Str(&'a [u8]),
    /// `40`-`7f`: a framework, with one version byte. The path is complete.
    Framework { version: &'a [u8], name: &'a [u8] },
    /// `80`-`ff`: a prefix by its code. A code beyond 64 bits reads as `u64::MAX`, which nothing
    /// ever gets.
    Expand(u64),
}

/// The input ends within an opcode or before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Cut;

/// Reads one opcode with its operands. The reader stays at the opcode if it is cut.
pub(super) fn next_opcode<'a>(reader: &mut ByteReader<'a>) -> Result<Opcode<'a>, Cut> {
    let mut ahead = *reader;
    let opcode = read(&mut ahead).ok_or(Cut)?;
    *reader = ahead;
    Ok(opcode)
}

fn read<'a>(reader: &mut ByteReader<'a>) -> Option<Opcode<'a>> {
    let opcode = reader.byte()?;
    let count = usize::from(opcode & 0x3f);
    Some(match opcode {
        0x00 => Opcode::End,
        0x01..=0x3f => Opcode::Str(reader.take(count)?),
        0x40..=0x7f => Opcode::Framework { version: reader.take(1)?, name: reader.take(count + 1)? },
        0x80..=0xbf => Opcode::Expand(u64::from(opcode & 0x3f)),
        0xc0..=0xff => Opcode::Expand(extended_code(reader.take(count + 1)?)),
    })
}

/// Returns the code of an extended `expand`: its operand, most significant byte first, counted from
/// 64.
fn extended_code(operand: &[u8]) -> u64 {
    let value =
        operand.iter().try_fold(0_u64, |value, &byte| value.checked_mul(256)?.checked_add(byte.into()));
    value.and_then(|value| value.checked_add(FIRST_EXTENDED_CODE)).unwrap_or(u64::MAX)
}
