//! Numbers the code objects that were ever on a stack, and keeps a copy of what names their frames.
//!
//! A number identifies contents: file, name, first line, line table. Two code objects with equal
//! contents get one number, because nothing that is ever shown could differ. So a program that
//! compiles the same text a million times has one number for it.
//!
//! A code object is recognised by its address. [`Codes::forget`] is called when one is freed, from
//! the interpreter's own function for that, so that an address that is used again is never taken
//! for the earlier object. Everything is lock-free, and runs inside captures.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use cairn_format::recording::{LineTableFormat, MAX_CODE_NAME_BYTES};
use cairn_unwind::python::{BYTES_DATA, BYTES_LENGTH, Layout, OBJECT_TYPE, copy_text};

use super::memory::{Readable, Words};
use crate::stacks::index::{Index, MIX};
use crate::stacks::region::{Region, ZeroedAtomics};

/// Longer line tables are cut: frames behind the cut have no line. 1 MiB; a file of a hundred
/// thousand lines of data has less.
const MAX_TABLE_BYTES: u64 = 1 << 20;

/// Number of a code object's contents.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum CodeNumber {
    /// When it is a program's code; from 1.
    Contents(u32),
    /// When the interpreter made it up; its frames are not shown.
    Artificial,
}

/// Why a code object has no number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NoCode {
    /// When it is no code object: the interpreter has another layout than its version should have.
    OtherLayout,
    /// When there is no memory for it.
    Full,
}

/// A code object that was on a stack, by its address.
#[repr(C)]
struct Known {
    address: AtomicU64,
    /// 0 once the object was freed; [`ARTIFICIAL`]; or the number of its contents.
    number: AtomicU32,
    unused: AtomicU32,
}

const ARTIFICIAL: u32 = u32::MAX;

// SAFETY: the fields are atomics, and fill the 16 bytes without padding.
unsafe impl ZeroedAtomics for Known {}

/// Contents, by number.
#[repr(C)]
struct Contents {
    hash: [AtomicU64; 2],
    /// First word of the copy: file, name and table, each from a new word on.
    first_word: AtomicU32,
    file_bytes: AtomicU32,
    name_bytes: AtomicU32,
    table_bytes: AtomicU32,
    first_line: AtomicU32,
    format: AtomicU32,
}

// SAFETY: the fields are atomics, and fill the 40 bytes without padding.
unsafe impl ZeroedAtomics for Contents {}

const _: () = assert!(size_of::<Known>() == 16 && size_of::<Contents>() == 40);

/// Distances of the regions below other mappings; see [`crate::stacks::pcs`] for those of others.
const KNOWN_DISTANCE: usize = 64 << 30;
const CONTENTS_DISTANCE: usize = 60 << 30;
const WORDS_DISTANCE: usize = 56 << 30;

pub(super) struct Codes {
    known: Region<Known>,
    by_address: Index,
    contents: Region<Contents>,
    by_contents: Index,
    words: Region<AtomicU64>,
    /// Code objects that were freed.
    freed: AtomicU64,
}

/// The contents of a code object, which name its frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CodeContents {
    /// The source file, as the interpreter names it.
    pub file: &'static [u8],
    /// The function; qualified where the interpreter knows that.
    pub name: &'static [u8],
    /// The line that the line table begins with.
    pub first_line: u32,
    /// Encoding of the line table.
    pub format: LineTableFormat,
    /// The line table.
    pub line_table: &'static [u8],
}

/// Memory for names, which small stacks have no room for.
#[repr(C)]
pub(super) struct NameRoom {
    file: [u8; MAX_CODE_NAME_BYTES],
    name: [u8; MAX_CODE_NAME_BYTES],
}

/// The fields of a code object that are read.
struct Described<'a> {
    file: &'a [u8],
    name: &'a [u8],
    first_line: u32,
    format: LineTableFormat,
    table_address: u64,
    table_bytes: u64,
}

impl Codes {
    pub(super) const fn new() -> Self {
        Self {
            known: Region::new(&[1 << 24, 1 << 20, 1 << 16], KNOWN_DISTANCE),
            by_address: Index::new(),
            contents: Region::new(&[1 << 24, 1 << 20, 1 << 16], CONTENTS_DISTANCE),
            by_contents: Index::new(),
            words: Region::new(&[1 << 27, 1 << 24, 1 << 20], WORDS_DISTANCE),
            freed: AtomicU64::new(0),
        }
    }

    /// Changes whenever an address may belong to another code object than before.
    #[inline(always)]
    pub(super) fn generation(&self) -> u64 {
        self.freed.load(Ordering::Acquire)
    }

    /// The number of the code object at `address`, which is on the caller's stack and so alive.
    #[inline]
    pub(super) fn number(
        &self,
        address: u64,
        code_type: u64,
        layout: &Layout,
        memory: &impl Words,
        room: &mut NameRoom,
    ) -> Result<CodeNumber, NoCode> {
        let found = self.find(address);
        let number = found.map_or(0, |known| known.number.load(Ordering::Acquire));
        match number {
            0 => self.meet(address, code_type, layout, memory, room),
            ARTIFICIAL => Ok(CodeNumber::Artificial),
            number => Ok(CodeNumber::Contents(number)),
        }
    }

    /// Notes that the code object at `address` is being freed.
    pub(super) fn forget(&self, address: u64) {
        if let Some(known) = self.find(address) {
            known.number.store(0, Ordering::Release);
            self.freed.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Returns the contents of the code of this number.
    pub(super) fn contents(&self, number: u32) -> Option<CodeContents> {
        let row = self.contents.elements().get(number as usize).filter(|_| number != 0)?;
        let bytes_of = |field: &AtomicU32| field.load(Ordering::Relaxed) as usize;
        let (file, name, table) =
            (bytes_of(&row.file_bytes), bytes_of(&row.name_bytes), bytes_of(&row.table_bytes));
        let mut word = row.first_word.load(Ordering::Acquire) as usize;
        if word == 0 {
            return None;
        }
        let mut next = |length: usize| {
            let start = self.words.elements().get(word)?;
            word += length.div_ceil(8);
            // SAFETY: `add` took this many words from here, wrote them before it stored the first
            // one's index, and nobody writes them again; the region stays mapped.
            Some(unsafe { core::slice::from_raw_parts(core::ptr::from_ref(start).cast::<u8>(), length) })
        };
        Some(CodeContents {
            file: next(file)?,
            name: next(name)?,
            line_table: next(table)?,
            first_line: row.first_line.load(Ordering::Relaxed),
            format: LineTableFormat::from_number(row.format.load(Ordering::Relaxed))?,
        })
    }

    #[inline]
    fn find(&self, address: u64) -> Option<&Known> {
        let known = self.known.elements();
        let index =
            self.by_address.find(hash(address), |index| has_address(known.get(index as usize), address))?;
        known.get(index as usize)
    }

    #[cold]
    #[inline(never)]
    fn meet(
        &self,
        address: u64,
        code_type: u64,
        layout: &Layout,
        memory: &impl Words,
        room: &mut NameRoom,
    ) -> Result<CodeNumber, NoCode> {
        let number = self.describe(address, code_type, layout, memory, room)?;
        let stored = match number {
            CodeNumber::Artificial => ARTIFICIAL,
            CodeNumber::Contents(number) => number,
        };
        let known = match self.find(address) {
            Some(known) => known,
            None => self.remember(address).ok_or(NoCode::Full)?,
        };
        known.number.store(stored, Ordering::Release);
        Ok(number)
    }

    fn remember(&self, address: u64) -> Option<&Known> {
        let index = self.known.take(1)?;
        let known = self.known.elements();
        known.get(index)?.address.store(address, Ordering::Release);
        let is_key = |index: u32| has_address(known.get(index as usize), address);
        let index = self.by_address.insert(hash(address), u32::try_from(index).ok()?, 0, is_key).ok()?;
        known.get(index as usize)
    }

    fn describe(
        &self,
        address: u64,
        code_type: u64,
        layout: &Layout,
        memory: &impl Words,
        room: &mut NameRoom,
    ) -> Result<CodeNumber, NoCode> {
        let word = |offset: u64| memory.word(address.wrapping_add(offset)).ok_or(NoCode::OtherLayout);
        if word(OBJECT_TYPE)? != code_type {
            return Err(NoCode::OtherLayout);
        }
        let (file, plain_name) = (word(layout.code_file)?, word(layout.code_name)?);
        // The code of a frame that cleans up behind `__init__`: one string serves as both.
        if file == plain_name {
            return Ok(CodeNumber::Artificial);
        }
        let name = match layout.code_qualified_name {
            0 => plain_name,
            place => word(place)?,
        };
        let table = word(layout.code_lines)?;
        let length = memory.word(table.wrapping_add(BYTES_LENGTH)).ok_or(NoCode::OtherLayout)?;
        let first_line = address.wrapping_add(layout.code_first_line);
        let file = copy_text(file, layout, &Readable(memory), &mut room.file).ok_or(NoCode::OtherLayout)?;
        let name = copy_text(name, layout, &Readable(memory), &mut room.name).ok_or(NoCode::OtherLayout)?;
        let described = Described {
            file: room.file.get(..file).unwrap_or_default(),
            name: room.name.get(..name).unwrap_or_default(),
            first_line: memory.half(first_line).ok_or(NoCode::OtherLayout)?,
            format: layout.line_format,
            table_address: table.wrapping_add(BYTES_DATA),
            table_bytes: length.min(MAX_TABLE_BYTES),
        };
        self.number_of_contents(&described, memory)
    }

    fn number_of_contents(&self, code: &Described<'_>, memory: &impl Words) -> Result<CodeNumber, NoCode> {
        let wanted = code.hash(memory).ok_or(NoCode::OtherLayout)?;
        let rows = self.contents.elements();
        let is_key = |index: u32| {
            rows.get(index as usize).is_some_and(|row| {
                row.hash[0].load(Ordering::Acquire) == wanted[0]
                    && row.hash[1].load(Ordering::Relaxed) == wanted[1]
            })
        };
        let short = (wanted[0] >> 32) as u32;
        if let Some(number) = self.by_contents.find(short, is_key) {
            return Ok(CodeNumber::Contents(number));
        }
        let index = self.add(code, wanted, memory)?;
        let number = self.by_contents.insert(short, index, 0, is_key).map_err(|_| NoCode::Full)?;
        Ok(CodeNumber::Contents(number))
    }

    fn add(&self, code: &Described<'_>, hash: [u64; 2], memory: &impl Words) -> Result<u32, NoCode> {
        let parts = [code.file.len(), code.name.len(), code.table_bytes as usize];
        let count = parts.iter().map(|length| length.div_ceil(8)).sum::<usize>();
        let index = self.contents.take(1).ok_or(NoCode::Full)?;
        let first = self.words.take(count.max(1)).ok_or(NoCode::Full)?;
        let words = self.words.elements();
        let mut at = first;
        for text in [code.file, code.name] {
            for chunk in text.chunks(8) {
                let mut bytes = [0; 8];
                bytes[..chunk.len()].copy_from_slice(chunk);
                words.get(at).ok_or(NoCode::Full)?.store(u64::from_ne_bytes(bytes), Ordering::Relaxed);
                at += 1;
            }
        }
        code.each_table_word(memory, |word| {
            if let Some(place) = words.get(at) {
                place.store(word, Ordering::Relaxed);
            }
            at += 1;
        })
        .ok_or(NoCode::OtherLayout)?;
        let row = self.contents.elements().get(index).ok_or(NoCode::Full)?;
        let lengths = [&row.file_bytes, &row.name_bytes, &row.table_bytes];
        for (place, length) in lengths.into_iter().zip(parts) {
            place.store(length as u32, Ordering::Relaxed);
        }
        row.first_line.store(code.first_line, Ordering::Relaxed);
        row.format.store(code.format.number(), Ordering::Relaxed);
        row.first_word.store(u32::try_from(first).map_err(|_| NoCode::Full)?, Ordering::Release);
        row.hash[1].store(hash[1], Ordering::Relaxed);
        row.hash[0].store(hash[0], Ordering::Release);
        u32::try_from(index).map_err(|_| NoCode::Full)
    }
}

impl Described<'_> {
    /// 128 bits, so that two different contents never have one number.
    fn hash(&self, memory: &impl Words) -> Option<[u64; 2]> {
        let mut hash = [u64::from(self.first_line) ^ MIX, u64::from(self.format.number())];
        let mut mix = |word: u64| {
            let product = u128::from(hash[0] ^ word).wrapping_mul(u128::from(MIX | 1));
            hash[0] = (product as u64) ^ (product >> 64) as u64;
            hash[1] = (hash[1] ^ word).wrapping_mul(0x2545_f491_4f6c_dd1d).rotate_left(23);
        };
        for text in [self.file, self.name] {
            mix(text.len() as u64);
            for chunk in text.chunks(8) {
                let mut bytes = [0; 8];
                bytes[..chunk.len()].copy_from_slice(chunk);
                mix(u64::from_ne_bytes(bytes));
            }
        }
        mix(self.table_bytes);
        self.each_table_word(memory, &mut mix)?;
        // The first word finds the row, and 0 is a row that is not written yet.
        Some([hash[0] | 1, hash[1]])
    }

    /// Passes the line table on, in words; the last one is filled up with zeros.
    fn each_table_word(&self, memory: &impl Words, mut visit: impl FnMut(u64)) -> Option<()> {
        const PIECE_BYTES: u64 = 256;
        let mut at = 0;
        while at < self.table_bytes {
            let mut piece = [0_u8; PIECE_BYTES as usize];
            let length = (self.table_bytes - at).min(PIECE_BYTES) as usize;
            let bytes = piece.get_mut(..length)?;
            if !memory.copy(self.table_address.wrapping_add(at), bytes) {
                return None;
            }
            for chunk in piece.get(..length.next_multiple_of(8))?.chunks_exact(8) {
                visit(u64::from_ne_bytes(*chunk.first_chunk()?));
            }
            at += PIECE_BYTES;
        }
        Some(())
    }
}

fn has_address(known: Option<&Known>, address: u64) -> bool {
    known.is_some_and(|known| known.address.load(Ordering::Acquire) == address)
}

fn hash(address: u64) -> u32 {
    (address.wrapping_mul(MIX) >> 32) as u32
}
