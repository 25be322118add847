//! Encoded pointers (`DW_EH_PE_*`): one byte states the width of a pointer and its base.
//!
//! ```text
//!   7          6    4  3    0
//!   | indirect | base | form |       0xff: there is no pointer
//! ```

use cairn_format::WordSize;

use super::cursor::Cursor;
use super::table::{Bases, Section};
use super::{CfiError, CfiErrorKind};

/// There is no pointer.
pub(super) const OMIT: u8 = 0xff;
/// Relative to the section's start (of the header, in practice), as a signed 32-bit number. All
/// linkers use it in the search table.
pub(super) const DATA_RELATIVE_I32: u8 = 0x3b;
/// Relative to the pointer itself, as a signed 32-bit number. Compilers use it for
/// position-independent code.
const PC_RELATIVE_I32: u8 = 0x1b;

const INDIRECT: u8 = 0x80;

/// The bases of encoded pointers in one section.
#[derive(Clone, Copy, Debug)]
pub(super) struct PointerContext<'a> {
    pub(super) section: Section<'a>,
    pub(super) bases: Bases,
    pub(super) word_size: WordSize,
    /// The base of `datarel`. It is the header's own address in `.eh_frame_hdr`, the global offset
    /// table elsewhere.
    pub(super) data_base: Option<u64>,
}

/// Reads a pointer and resolves it to an address.
#[inline]
pub(super) fn read_pointer(
    cursor: &mut Cursor<'_>,
    encoding: u8,
    context: &PointerContext<'_>,
    function_start: Option<u64>,
) -> Result<u64, CfiError> {
    if encoding == PC_RELATIVE_I32 {
        let at = context.section.address.value().wrapping_add(cursor.offset() as u64);
        let distance = cursor.u32()? as i32;
        return Ok(context.word_size.truncate(at.wrapping_add_signed(i64::from(distance))));
    }
    read_any_pointer(cursor, encoding, context, function_start)
}

fn read_any_pointer(
    cursor: &mut Cursor<'_>,
    encoding: u8,
    context: &PointerContext<'_>,
    function_start: Option<u64>,
) -> Result<u64, CfiError> {
    let unknown = cursor.error(CfiErrorKind::UnknownPointerEncoding);
    // An indirect pointer would have to be loaded from the module's data, which is not unwind
    // information.
    if encoding & INDIRECT != 0 {
        return Err(unknown);
    }
    let at = context.section.address.value().wrapping_add(cursor.offset() as u64);
    let base = match encoding >> 4 & 7 {
        0 => context.bases.absolute_bias,
        1 => at,
        2 => context.bases.text.ok_or(unknown)?.value(),
        3 => context.data_base.ok_or(unknown)?,
        4 => function_start.ok_or(unknown)?,
        5 => {
            skip_to_alignment(cursor, at, context.word_size)?;
            context.bases.absolute_bias
        }
        _ => return Err(unknown),
    };
    let value = read_form(cursor, encoding, context.word_size)?;
    Ok(context.word_size.truncate(base.wrapping_add(value)))
}

fn skip_to_alignment(cursor: &mut Cursor<'_>, at: u64, word_size: WordSize) -> Result<(), CfiError> {
    let word_bytes = word_size.bytes() as u64;
    let padding = at.wrapping_neg() & (word_bytes - 1);
    cursor.take(padding).map(|_| ())
}

/// Reads the number of a pointer without adding its base. The length of an FDE's range is encoded
/// in this way too.
#[inline]
pub(super) fn read_form(cursor: &mut Cursor<'_>, encoding: u8, word_size: WordSize) -> Result<u64, CfiError> {
    Ok(match encoding & 0xf {
        0x0 => match word_size {
            WordSize::Bits64 => cursor.u64()?,
            WordSize::Bits32 => u64::from(cursor.u32()?),
            WordSize::Bits16 => u64::from(cursor.u16()?),
        },
        0x1 => cursor.uleb()?,
        0x2 => u64::from(cursor.u16()?),
        0x3 => u64::from(cursor.u32()?),
        0x4 | 0xc => cursor.u64()?,
        0x9 => cursor.sleb()? as u64,
        0xa => i64::from(cursor.u16()? as i16) as u64,
        0xb => i64::from(cursor.u32()? as i32) as u64,
        _ => return Err(cursor.error(CfiErrorKind::UnknownPointerEncoding)),
    })
}
