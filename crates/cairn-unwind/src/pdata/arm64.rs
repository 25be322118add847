//! arm64: prologues and epilogues by codes, packed in the function table or in full.
//!
//! ```text
//!   entry      | begin | place of unwind data |             lowest two bits of the second word: 0
//!              | begin | flag: 2, length / 4: 11, vectors: 3, registers: 4, home: 1, chain: 2, frame / 16: 9 |
//!
//!   data       | length / 4: 18, version: 2, handler: 1, one epilogue: 1, epilogues: 5, words of codes: 5 |
//!              both numbers 0:  | epilogues: 16, words of codes: 8 | follows
//!              epilogues, unless there is one at the end:  | start / 4: 18, 0: 4, first code: 10 | ...
//!              codes, one for each instruction of the prologue, last instruction first, then `end`
//! ```
//!
//! A packed description is written out as codes, so that both forms are undone by the same code.
//!
//! Tested by tables of bytes only; see the module's documentation.

use super::sketch::FrameSketch;
use super::{FunctionTable, PdataError, PeImage};

const X19: u16 = 19;
const FP: u16 = 29;
const LR: u16 = 30;

/// Bytes of an instruction.
const INSTRUCTION: u32 = 4;
/// Maximum codes of a function; 1024, those that the largest number of words holds.
const MAX_CODES: usize = 1024;

/// One entry of the function table.
#[derive(Clone, Copy)]
pub(super) struct Arm64Function {
    pub(super) begin: u32,
    pub(super) end: u32,
    description: Description,
}

#[derive(Clone, Copy)]
enum Description {
    /// When the entry has the place of the unwind data.
    Full { data: u32 },
    /// When the entry has all of it.
    Packed { word: u32 },
}

impl Arm64Function {
    pub(super) fn entry(table: &FunctionTable<'_>, index: u32) -> Option<Self> {
        let [a, b, c, d, e, f, g, h] = table.image.array(table.entry_place(index)?)?;
        let (begin, word) = (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]));
        let (length, description) = match word & 3 {
            0 => (table.image.u32(word)? & 0x3_ffff, Description::Full { data: word }),
            _ => (word >> 2 & 0x7ff, Description::Packed { word }),
        };
        Some(Self { begin, end: begin.checked_add(length * INSTRUCTION)?, description })
    }
}

/// The frame at an instruction. For a return address, `is_exact` is false and `lookup` lies in the
/// call.
pub(super) fn sketch(
    table: &FunctionTable<'_>,
    lookup: u32,
    is_exact: bool,
) -> Result<FrameSketch, PdataError> {
    let leaf = || if is_exact { Ok(FrameSketch::linked()) } else { Err(PdataError::NotCovered) };
    let Some(index) = table.find(lookup) else { return leaf() };
    let function = Arm64Function::entry(table, index).ok_or(PdataError::UnexpectedEnd)?;
    if lookup >= function.end {
        return leaf();
    }
    let executed = (lookup - function.begin) / INSTRUCTION;
    let length = (function.end - function.begin) / INSTRUCTION;
    match function.description {
        Description::Full { data } => full(&table.image, data, executed, length),
        Description::Packed { word } => packed(word, executed, length),
    }
}

fn full(image: &PeImage<'_>, data: u32, executed: u32, length: u32) -> Result<FrameSketch, PdataError> {
    let end = || PdataError::UnexpectedEnd;
    let header = image.u32(data).ok_or_else(end)?;
    if header >> 18 & 3 != 0 {
        return Err(PdataError::UnknownVersion);
    }
    let has_one_epilogue = header >> 21 & 1 != 0;
    let (mut epilogues, mut code_words) = (header >> 22 & 0x1f, header >> 27);
    let mut place = data.checked_add(4).ok_or_else(end)?;
    if (epilogues, code_words) == (0, 0) {
        let more = image.u32(place).ok_or_else(end)?;
        (epilogues, code_words) = (more & 0xffff, more >> 16 & 0xff);
        place = place.checked_add(4).ok_or_else(end)?;
    }
    let scopes = place;
    if !has_one_epilogue {
        place = place.checked_add(epilogues * 4).ok_or_else(end)?;
    }
    let codes = image.from(place).and_then(|bytes| bytes.get(..code_words as usize * 4)).ok_or_else(end)?;
    let prologue = instructions(codes)?;
    if executed < prologue {
        return undo_behind(codes, prologue - executed);
    }
    // The first code of the epilogue, and its first instruction.
    let epilogue_at = |start: u32, first: u32| -> Result<Option<FrameSketch>, PdataError> {
        let codes = codes.get(first as usize..).ok_or(PdataError::UnexpectedEnd)?;
        // One more than its codes: the return.
        match executed.checked_sub(start) {
            Some(done) if done <= instructions(codes)? => undo_behind(codes, done).map(Some),
            _ => Ok(None),
        }
    };
    if has_one_epilogue {
        let codes = codes.get(epilogues as usize..).ok_or_else(end)?;
        let start = length.saturating_sub(instructions(codes)? + 1);
        if let Some(sketch) = epilogue_at(start, epilogues)? {
            return Ok(sketch);
        }
    } else {
        for index in 0..epilogues {
            let scope = image.u32(scopes + index * 4).ok_or_else(end)?;
            if let Some(sketch) = epilogue_at(scope & 0x3_ffff, scope >> 22)? {
                return Ok(sketch);
            }
        }
    }
    undo_behind(codes, 0)
}

/// Undoes all codes behind the first `skipped` ones.
fn undo_behind(codes: &[u8], skipped: u32) -> Result<FrameSketch, PdataError> {
    let mut undoing = Undoing { sketch: FrameSketch::linked(), further_pairs: 0 };
    let mut number = 0;
    visit(codes, |code| {
        number += 1;
        if number <= skipped { Ok(()) } else { undoing.code(code) }
    })?;
    Ok(undoing.sketch)
}

/// Number of codes up to `end`, which is that of instructions.
fn instructions(codes: &[u8]) -> Result<u32, PdataError> {
    let mut count = 0;
    visit(codes, |_| {
        count += 1;
        Ok(())
    })?;
    Ok(count)
}

/// Visits the codes up to `end`. A code has one to five bytes, highest first.
fn visit(codes: &[u8], mut visit: impl FnMut(u32) -> Result<(), PdataError>) -> Result<(), PdataError> {
    const END: u8 = 0xe4;
    /// Ends the prologue of a part of a function that is described by another part as well.
    const END_OF_PART: u8 = 0xe5;
    let mut rest = codes;
    for _ in 0..MAX_CODES {
        let &first = rest.first().ok_or(PdataError::UnexpectedEnd)?;
        let length = match first {
            END => return Ok(()),
            // The codes behind belong to the other part, and are undone as well.
            END_OF_PART => {
                rest = rest.get(1..).unwrap_or_default();
                continue;
            }
            0..=0xbf | 0xe1 | 0xe3 | 0xe6 | 0xe8..=0xec | 0xfc => 1,
            0xc0..=0xdf | 0xe2 => 2,
            0xe7 => 3,
            0xe0 => 4,
            _ => return Err(PdataError::UnknownCode),
        };
        let bytes = rest.get(..length).ok_or(PdataError::UnexpectedEnd)?;
        visit(bytes.iter().fold(0, |code, &byte| code << 8 | u32::from(byte)))?;
        rest = rest.get(length..).unwrap_or_default();
    }
    Err(PdataError::TooLong)
}

/// The state between two codes.
struct Undoing {
    sketch: FrameSketch,
    /// Pairs that the next save of a pair stores besides its own.
    further_pairs: u16,
}

impl Undoing {
    fn code(&mut self, code: u32) -> Result<(), PdataError> {
        // Fields of one and two bytes.
        let (low5, low6, low8) = (code & 0x1f, code & 0x3f, code & 0xff);
        let register4 = (code >> 6 & 0xf) as u16;
        let register3 = (code >> 6 & 7) as u16;
        match code {
            // alloc_s
            0x00..=0x1f => self.sketch.release(low5 * 16),
            // save_r19r20_x
            0x20..=0x3f => self.pair((X19, X19 + 1), 0, low5 * 8),
            // save_fplr, save_fplr_x
            0x40..=0x7f => self.pair((FP, LR), low6 * 8, 0),
            0x80..=0xbf => self.pair((FP, LR), 0, low6 * 8 + 8),
            // set_fp, add_fp
            0xe1 => self.set_frame_pointer(0),
            0xe200..=0xe2ff => self.set_frame_pointer(low8 * 8),
            // nop, and the signature of the return address, which is masked.
            0xe3 | 0xfc => Ok(()),
            // save_next
            0xe6 => {
                self.further_pairs += 1;
                Ok(())
            }
            // alloc_m
            0xc000..=0xc7ff => self.sketch.release((code & 0x7ff) * 16),
            // save_regp, save_regp_x
            0xc800..=0xcbff => self.pair((X19 + register4, X19 + register4 + 1), low6 * 8, 0),
            0xcc00..=0xcfff => self.pair((X19 + register4, X19 + register4 + 1), 0, low6 * 8 + 8),
            // save_reg, save_reg_x
            0xd000..=0xd3ff => self.one(X19 + register4, low6 * 8, 0),
            0xd400..=0xd5ff => self.one(X19 + (code >> 5 & 0xf) as u16, 0, low5 * 8 + 8),
            // save_lrpair
            0xd600..=0xd7ff => self.pair((X19 + 2 * register3, LR), low6 * 8, 0),
            // save_fregp, save_fregp_x, save_freg, save_freg_x: vector registers are not tracked.
            0xd800..=0xd9ff | 0xdc00..=0xddff => self.vectors(0),
            0xda00..=0xdbff => self.vectors(low6 * 8 + 8),
            0xde00..=0xdeff => self.vectors(low5 * 8 + 8),
            // alloc_l
            0xe000_0000..=0xe0ff_ffff => self.sketch.release((code & 0xff_ffff) * 16),
            // save_any_reg
            0xe7_0000..=0xe7_ffff => self.any(code),
            // The frames of interrupts have contexts that are not documented; alloc_z depends on
            // the size of the processor's vectors.
            _ => Err(PdataError::UnknownCode),
        }
    }

    fn one(&mut self, register: u16, distance: u32, released: u32) -> Result<(), PdataError> {
        self.sketch.save(register, self.at(distance)?)?;
        self.sketch.release(released)
    }

    /// A pair of registers, and the pairs that follow it by `save_next`.
    fn pair(&mut self, registers: (u16, u16), distance: u32, released: u32) -> Result<(), PdataError> {
        for pair in (0..=core::mem::take(&mut self.further_pairs)).rev() {
            let at = self.at(distance + u32::from(pair) * 16)?;
            // A further pair is the next two registers, which end with the return address.
            self.save_preserved(registers.0 + 2 * pair, at)?;
            self.save_preserved(registers.1 + 2 * pair, at.saturating_add(8))?;
        }
        self.sketch.release(released)
    }

    fn save_preserved(&mut self, register: u16, at: i32) -> Result<(), PdataError> {
        if (X19..=LR).contains(&register) {
            self.sketch.save(register, at)
        } else {
            Err(PdataError::UnknownCode)
        }
    }

    fn vectors(&mut self, released: u32) -> Result<(), PdataError> {
        self.further_pairs = 0;
        self.sketch.release(released)
    }

    /// `save_any_reg`: `0: 1, pair: 1, release: 1, register: 5 | kind: 2, distance: 6`.
    fn any(&mut self, code: u32) -> Result<(), PdataError> {
        let (is_pair, releases) = (code >> 14 & 1 != 0, code >> 13 & 1 != 0);
        let (register, kind, distance) = ((code >> 8 & 0x1f) as u16, code >> 6 & 3, code & 0x3f);
        if code >> 15 & 1 != 0 || kind == 3 {
            return Err(PdataError::UnknownCode);
        }
        // Distances count by the size of what is stored; released room by 16.
        let unit = if is_pair || releases || kind == 2 { 16 } else { 8 };
        let released = if releases { distance * 16 + 16 } else { 0 };
        let at = self.at(if releases { 0 } else { distance * unit })?;
        if kind == 0 {
            self.sketch.save(register, at)?;
            if is_pair {
                self.sketch.save(register + 1, at.saturating_add(8))?;
            }
        }
        self.sketch.release(released)
    }

    /// The frame pointer leads `above` bytes above the stack pointer at this place.
    fn set_frame_pointer(&mut self, above: u32) -> Result<(), PdataError> {
        let x = self.at(above)?;
        self.sketch.count_from(FP, x)
    }

    /// The distance of a place above the stack pointer.
    fn at(&self, above: u32) -> Result<i32, PdataError> {
        Ok(self.sketch.x().saturating_add_unsigned(above))
    }
}

/// The codes of a packed description, last instruction first.
struct WrittenOut {
    bytes: [u8; Self::ROOM],
    used: usize,
}

impl WrittenOut {
    /// Most bytes; 48, because the codes take no more.
    ///
    /// They are `mov`, a pair, two allocations of 2, four homed pairs, 5 pairs of vectors and 6 of
    /// registers of 2 each, a signature, `end`.
    const ROOM: usize = 48;

    fn push(&mut self, code: u32, length: usize) {
        for &byte in code.to_be_bytes().get(4 - length..).unwrap_or_default() {
            if let Some(place) = self.bytes.get_mut(self.used) {
                *place = byte;
                self.used += 1;
            }
        }
    }

    fn allocate(&mut self, bytes: u32) {
        match bytes / 16 {
            0 => {}
            sixteenths => self.push(0xc000 | sixteenths, 2),
        }
    }

    fn codes(&self) -> &[u8] {
        self.bytes.get(..self.used).unwrap_or_default()
    }
}

/// The frame by a packed description.
fn packed(word: u32, executed: u32, length: u32) -> Result<FrameSketch, PdataError> {
    /// Part of a function without its prologue and epilogue.
    const FRAGMENT: u32 = 2;
    let flag = word & 3;
    if flag == 3 {
        return Err(PdataError::UnknownVersion);
    }
    let prologue = write_out(word, true)?;
    let epilogue = write_out(word, false)?;
    if flag == FRAGMENT {
        return undo_behind(prologue.codes(), 0);
    }
    let count = instructions(prologue.codes())?;
    if executed < count {
        return undo_behind(prologue.codes(), count - executed);
    }
    let count = instructions(epilogue.codes())?;
    match executed.checked_sub(length.saturating_sub(count + 1)) {
        Some(done) => undo_behind(epilogue.codes(), done),
        None => undo_behind(prologue.codes(), 0),
    }
}

/// Writes out a packed description. An epilogue does not undo `mov x29, sp`, and has nothing in
/// place of the stores to the arguments' home.
fn write_out(word: u32, is_prologue: bool) -> Result<WrittenOut, PdataError> {
    /// The largest allocation of one instruction.
    const MAX_ALLOCATED: u32 = 4080;
    /// The largest release of a load of a pair.
    const MAX_OF_PAIR: u32 = 512;
    let vectors = match word >> 13 & 7 {
        0 => 0,
        number => number + 1,
    };
    let registers = word >> 16 & 0xf;
    let (has_home, chain, frame) = (word >> 20 & 1 != 0, word >> 21 & 3, (word >> 23) * 16);
    // x19 to x28.
    if registers > 10 {
        return Err(PdataError::UnknownCode);
    }
    let saves_return_address = chain == 1;
    let saved = registers * 8 + u32::from(saves_return_address) * 8 + vectors * 8;
    let area = (saved + if has_home { 64 } else { 0 }).next_multiple_of(16);
    let local = frame.checked_sub(area).ok_or(PdataError::OutOfRange)?;
    let mut codes = WrittenOut { bytes: [0; WrittenOut::ROOM], used: 0 };
    if chain >= 2 {
        if is_prologue {
            codes.push(0xe1, 1);
        }
        if local == 0 {
            return Err(PdataError::UnknownCode);
        }
        if local <= MAX_OF_PAIR {
            codes.push(0x80 | (local / 8 - 1), 1);
        } else {
            codes.push(0x40, 1);
        }
    }
    if chain < 2 || local > MAX_OF_PAIR {
        codes.allocate(local.saturating_sub(MAX_ALLOCATED));
        codes.allocate(local.min(MAX_ALLOCATED));
    }
    // Stores of the prologue in its order: distance from the area's start, and code. The first one
    // makes the area.
    let mut stores = [(0_u32, 0_u32); 16];
    let mut count = 0;
    let mut add = |code: u32, with_area: u32| {
        if let Some(place) = stores.get_mut(count) {
            *place = (code, with_area);
            count += 1;
        }
    };
    let sixty_fourth = area / 8;
    let mut register = 0;
    while register < registers {
        let at = register;
        if register + 1 < registers {
            add(0xc800 | register << 6 | at, 0xcc00 | register << 6 | (sixty_fourth.saturating_sub(1)));
            register += 2;
        } else if saves_return_address {
            // x19, x21, ...; the number counts pairs.
            add(0xd600 | (register / 2) << 6 | at, u32::MAX);
            register += 1;
        } else {
            add(0xd000 | register << 6 | at, 0xd400 | register << 5 | (sixty_fourth.saturating_sub(1)));
            register += 1;
        }
    }
    if saves_return_address && registers.is_multiple_of(2) {
        let number = u32::from(LR - X19);
        add(0xd000 | number << 6 | registers, 0xd400 | number << 5 | (sixty_fourth.saturating_sub(1)));
    }
    let first_vector = registers + u32::from(saves_return_address);
    let mut vector = 0;
    while vector < vectors {
        let at = first_vector + vector;
        if vector + 1 < vectors {
            add(0xd800 | vector << 6 | at, 0xda00 | vector << 6 | (sixty_fourth.saturating_sub(1)));
            vector += 2;
        } else {
            add(0xdc00 | vector << 6 | at, 0xde00 | vector << 5 | (sixty_fourth.saturating_sub(1)));
            vector += 1;
        }
    }
    if has_home && is_prologue {
        (0..4).for_each(|_| codes.push(0xe3, 1));
    }
    let stores = stores.get(..count).unwrap_or_default();
    for (index, &(code, with_area)) in stores.iter().enumerate().rev() {
        if index > 0 {
            codes.push(code, 2);
        } else if with_area == u32::MAX {
            // `stp x19, lr` cannot make the area: a `sub` does.
            codes.push(code, 2);
            codes.allocate(area);
        } else {
            codes.push(with_area, 2);
        }
    }
    if stores.is_empty() && area > 0 {
        // The first store to the home makes the area.
        codes.allocate(area);
    }
    if chain == 2 {
        codes.push(0xfc, 1);
    }
    codes.push(0xe4, 1);
    Ok(codes)
}
