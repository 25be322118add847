//! x64: prologues by codes, epilogues by bytes (version 1) or by codes (version 2).
//!
//! ```text
//!   unwind data   | version: 3, flags: 5 | prologue bytes | codes | frame register: 4, offset / 16: 4 | code: u16 ... | rest
//!   code          | offset in the prologue behind its instruction | operation: 4, operand: 4 |
//!   rest          at an even number of codes: | begin | end | unwind data | of the function that a chain continues with
//! ```
//!
//! A function may be cut into several ranges. The unwind data of the others then refers to the
//! first one, whose prologue was executed whole.
//!
//! Practice differs from Microsoft's document:
//! - The unwind data of an entry may be odd: the rest of it is the place of another entry.
//! - In an epilogue of version 2 only the pops are left to do. Where it begins, the allocation was
//!   released already.
//! - `jmp` to another function ends an epilogue; within its function it may lead to one.
//! - A register that is saved by `mov` may lie above the frame, in the room that the caller has
//!   made for four arguments.

use super::sketch::FrameSketch;
use super::{FunctionTable, MAX_CHAIN, PdataError, PeImage};
use crate::x86_64::{R8, R9, R10, R11, R12, R13, R14, R15, RAX, RBP, RBX, RCX, RDI, RDX, RSI, RSP};

/// DWARF numbers by the processor's own.
const DWARF: [u16; 16] = [RAX, RCX, RDX, RBX, RSP, RBP, RSI, RDI, R8, R9, R10, R11, R12, R13, R14, R15];
/// Registers that callees preserve on Windows and not elsewhere.
const ALSO_PRESERVED: &[u16] = &[RSI, RDI];

/// Jumps within a function that are followed to the end of an epilogue.
const MAX_JUMPS: u32 = 4;

const CHAINED: u8 = 4;

/// The operations of codes.
const PUSH: u8 = 0;
const ALLOCATE_LARGE: u8 = 1;
const ALLOCATE_SMALL: u8 = 2;
const SET_FRAME_POINTER: u8 = 3;
const SAVE: u8 = 4;
const SAVE_FAR: u8 = 5;
/// An epilogue in version 2; in version 1, half of a vector register (two slots).
const EPILOGUE: u8 = 6;
/// Unused in version 2 (two slots); in version 1, half of a vector register (three slots).
const SPARE: u8 = 7;
const SAVE_VECTOR: u8 = 8;
const SAVE_VECTOR_FAR: u8 = 9;
const PUSH_MACHINE_FRAME: u8 = 10;

/// One entry of the function table.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Function {
    pub(super) begin: u32,
    pub(super) end: u32,
    data: u32,
}

impl Function {
    pub(super) fn entry(table: &FunctionTable<'_>, index: u32) -> Option<Self> {
        Self::at(&table.image, table.entry_place(index)?)
    }

    fn at(image: &PeImage<'_>, place: u32) -> Option<Self> {
        let [begin, end, data] = words(image.array(place)?);
        Some(Self { begin, end, data })
    }

    fn find(table: &FunctionTable<'_>, place: u32) -> Result<Self, PdataError> {
        let index = table.find(place).ok_or(PdataError::NotCovered)?;
        let function = Self::entry(table, index).ok_or(PdataError::UnexpectedEnd)?;
        if function.contains(place) { Ok(function) } else { Err(PdataError::NotCovered) }
    }

    fn contains(&self, place: u32) -> bool {
        (self.begin..self.end).contains(&place)
    }

    fn info<'a>(&self, image: &PeImage<'a>) -> Result<UnwindInfo<'a>, PdataError> {
        let mut data = self.data;
        for _ in 0..MAX_CHAIN {
            if data & 1 == 0 {
                return UnwindInfo::at(image, data);
            }
            data = Self::at(image, data & !1).ok_or(PdataError::UnexpectedEnd)?.data;
        }
        Err(PdataError::TooLong)
    }
}

fn words(bytes: [u8; 12]) -> [u32; 3] {
    let [a, b, c, d, e, f, g, h, i, j, k, l] = bytes;
    [[a, b, c, d], [e, f, g, h], [i, j, k, l]].map(u32::from_le_bytes)
}

/// The unwind data of a function.
#[derive(Clone, Copy)]
struct UnwindInfo<'a> {
    version: u8,
    prologue_bytes: u8,
    /// The frame register, and the distance from the stack pointer at which it was set.
    frame: Option<(u16, i32)>,
    codes: &'a [[u8; 2]],
    chained: Option<Function>,
}

impl<'a> UnwindInfo<'a> {
    fn at(image: &PeImage<'a>, place: u32) -> Result<Self, PdataError> {
        let bytes = image.from(place).ok_or(PdataError::UnexpectedEnd)?;
        let (&[version_and_flags, prologue_bytes, count, frame], rest) =
            bytes.split_first_chunk().ok_or(PdataError::UnexpectedEnd)?;
        let (version, flags) = (version_and_flags & 7, version_and_flags >> 3);
        if !matches!(version, 1 | 2) {
            return Err(PdataError::UnknownVersion);
        }
        let (codes, _) = rest.as_chunks::<2>();
        let codes = codes.get(..count.into()).ok_or(PdataError::UnexpectedEnd)?;
        let chained = match flags & CHAINED {
            0 => None,
            _ => {
                let rest = rest.get(usize::from(count).next_multiple_of(2) * 2..);
                let bytes = rest.and_then(|rest| rest.first_chunk()).ok_or(PdataError::UnexpectedEnd)?;
                let [begin, end, data] = words(*bytes);
                Some(Function { begin, end, data })
            }
        };
        let register = usize::from(frame & 0xf);
        let frame = match DWARF.get(register) {
            Some(&number) if register != 0 => Some((number, i32::from(frame >> 4) * 16)),
            _ => None,
        };
        Ok(Self { version, prologue_bytes, frame, codes, chained })
    }

    /// Visits the codes in their order, from the last instruction to the first.
    fn visit(&self, mut visit: impl FnMut(Code) -> Result<(), PdataError>) -> Result<(), PdataError> {
        let mut rest = self.codes;
        while let Some((&[offset, both], more)) = rest.split_first() {
            let (operation, operand) = (both & 0xf, both >> 4);
            let slots = self.further_slots(operation, operand)?;
            let further = more.get(..slots).ok_or(PdataError::UnexpectedEnd)?;
            rest = more.get(slots..).unwrap_or_default();
            let number = match *further {
                [low] => u32::from(u16::from_le_bytes(low)),
                [[a, b], [c, d]] => u32::from_le_bytes([a, b, c, d]),
                _ => 0,
            };
            visit(Code { offset, operation, operand, number })?;
        }
        Ok(())
    }

    fn further_slots(&self, operation: u8, operand: u8) -> Result<usize, PdataError> {
        Ok(match (operation, operand) {
            (PUSH | ALLOCATE_SMALL | SET_FRAME_POINTER | PUSH_MACHINE_FRAME, _) => 0,
            (ALLOCATE_LARGE, 0) | (SAVE | SAVE_VECTOR, _) => 1,
            (ALLOCATE_LARGE, 1) | (SAVE_FAR | SAVE_VECTOR_FAR, _) => 2,
            (EPILOGUE, _) => {
                if self.version == 1 {
                    1
                } else {
                    0
                }
            }
            (SPARE, _) => {
                if self.version == 1 {
                    2
                } else {
                    1
                }
            }
            _ => return Err(PdataError::UnknownCode),
        })
    }
}

/// One code, with the number in the slots behind it.
#[derive(Clone, Copy)]
struct Code {
    offset: u8,
    operation: u8,
    operand: u8,
    number: u32,
}

impl Code {
    /// The register that was saved. No compiler saves the stack pointer, which codes change
    /// themselves.
    fn register(self) -> Result<u16, PdataError> {
        let register = DWARF.get(usize::from(self.operand)).filter(|&&register| register != RSP);
        register.copied().ok_or(PdataError::UnknownCode)
    }

    fn allocated_bytes(self) -> Result<u32, PdataError> {
        match (self.operation, self.operand) {
            (ALLOCATE_SMALL, _) => Ok(u32::from(self.operand) * 8 + 8),
            (ALLOCATE_LARGE, 0) => Ok(self.number * 8),
            (ALLOCATE_LARGE, _) => Ok(self.number),
            _ => Ok(0),
        }
    }

    /// Distance from the frame's base at which a register was saved.
    fn saved_at(self) -> Result<i32, PdataError> {
        let bytes = if self.operation == SAVE { self.number * 8 } else { self.number };
        i32::try_from(bytes).map_err(|_| PdataError::OutOfRange)
    }
}

/// The frame at an instruction. For a return address, `is_exact` is false and `lookup` lies in the
/// call.
pub(super) fn sketch(
    table: &FunctionTable<'_>,
    lookup: u32,
    is_exact: bool,
) -> Result<FrameSketch, PdataError> {
    let mut sketch = FrameSketch::pushed(ALSO_PRESERVED);
    let function = match Function::find(table, lookup) {
        // A leaf function.
        Err(PdataError::NotCovered) if is_exact => return Ok(sketch),
        other => other?,
    };
    let info = function.info(&table.image)?;
    let is_behind_prologue = lookup - function.begin >= info.prologue_bytes.into();
    if is_exact && is_behind_prologue {
        let at = Epilogue { table, function, info };
        if let Some(sketch) = at.sketch(lookup)? {
            return Ok(sketch);
        }
    }
    // Where the frame pointer was set, for the codes that count from it.
    let mut frame_x = None;
    let mut x = 0_i32;
    visit_executed(table, function, lookup, |info, code| {
        if code.operation == SET_FRAME_POINTER {
            frame_x = frame_x.or(info.frame.map(|frame| (frame, x)));
        }
        x = x.saturating_add_unsigned(code.allocated_bytes()? + if code.operation == PUSH { 8 } else { 0 });
        Ok(())
    })?;
    // Distance of the stack pointer after the prologue. Without a frame pointer it is the present
    // one.
    let base_x = frame_x.map_or(0, |(_, x)| x);
    if let Some(((register, offset), x)) = frame_x {
        sketch.count_from(register, x.saturating_add(offset))?;
    }
    visit_executed(table, function, lookup, |_, code| {
        match code.operation {
            PUSH => sketch.pop(code.register()?),
            ALLOCATE_LARGE | ALLOCATE_SMALL => sketch.release(code.allocated_bytes()?),
            SET_FRAME_POINTER => sketch.continue_at(base_x),
            SAVE | SAVE_FAR => sketch.save(code.register()?, base_x.saturating_add(code.saved_at()?)),
            PUSH_MACHINE_FRAME => {
                // The processor has pushed an error code below, for some interrupts.
                sketch.release(u32::from(code.operand & 1) * 8)?;
                sketch.end_with_machine_frame();
                Ok(())
            }
            _ => Ok(()),
        }
    })?;
    Ok(sketch)
}

/// Visits the codes of all instructions that were executed before `lookup`, through the whole
/// chain.
fn visit_executed(
    table: &FunctionTable<'_>,
    first: Function,
    lookup: u32,
    mut visit: impl FnMut(&UnwindInfo<'_>, Code) -> Result<(), PdataError>,
) -> Result<(), PdataError> {
    let mut function = first;
    for _ in 0..MAX_CHAIN {
        let info = function.info(&table.image)?;
        // Not compared with the length of the prologue: hand-written code states wrong ones.
        let executed = if function.contains(lookup) { lookup - function.begin } else { u32::MAX };
        info.visit(|code| {
            if u32::from(code.offset) <= executed || is_unordered(&info, code) {
                visit(&info, code)
            } else {
                Ok(())
            }
        })?;
        match info.chained {
            Some(next) => function = next,
            None => return Ok(()),
        }
    }
    Err(PdataError::TooLong)
}

/// True for codes whose offset is no place in the prologue.
fn is_unordered(info: &UnwindInfo<'_>, code: Code) -> bool {
    info.version == 2 && matches!(code.operation, EPILOGUE | SPARE)
}

/// A search for the epilogue that a place may be in.
struct Epilogue<'t, 'a> {
    table: &'t FunctionTable<'a>,
    function: Function,
    info: UnwindInfo<'a>,
}

impl Epilogue<'_, '_> {
    /// The frame within an epilogue; `None` elsewhere.
    fn sketch(&self, lookup: u32) -> Result<Option<FrameSketch>, PdataError> {
        let has_codes = self.info.version == 2
            && matches!(self.info.codes.first(), Some([_, both]) if both & 0xf == EPILOGUE);
        if !has_codes {
            // Bytes that are not in the image cannot be recognized.
            return Ok(self.by_bytes(lookup));
        }
        match self.offset_by_codes(lookup) {
            Some(executed) => self.by_codes(executed).map(Some),
            None => Ok(None),
        }
    }

    /// Bytes from the start of the epilogue that covers `lookup`, by the codes of version 2. The
    /// first code has the length of all, and whether one ends the function; the others have their
    /// distances from its end.
    fn offset_by_codes(&self, lookup: u32) -> Option<u32> {
        let mut codes = self.info.codes.iter().filter(|[_, both]| both & 0xf == EPILOGUE);
        let &[length, first] = codes.next()?;
        let last = if first >> 4 & 1 != 0 { u32::from(length) } else { 0 };
        let distances = codes.map(|&[low, both]| u32::from(low) | u32::from(both >> 4) << 8);
        let offset = |distance: u32| {
            let start = self.function.end.checked_sub(distance).filter(|_| distance != 0)?;
            lookup.checked_sub(start).filter(|&offset| offset < length.into())
        };
        core::iter::once(last).chain(distances).find_map(offset)
    }

    /// The frame after `executed` bytes of an epilogue of version 2.
    ///
    /// It pops in the reverse order of the pushes.
    fn by_codes(&self, executed: u32) -> Result<FrameSketch, PdataError> {
        let mut sketch = FrameSketch::pushed(ALSO_PRESERVED);
        let (mut offset, mut has_begun) = (0, false);
        visit_executed(self.table, self.function, u32::MAX, |_, code| {
            // `pop` of r8 to r15 has a prefix. A pushed flags register is popped to a volatile one.
            let bytes = match code.operation {
                PUSH => 1 + u32::from(code.operand >> 3),
                ALLOCATE_SMALL if has_begun && code.operand == 0 => 1,
                _ => return Ok(()),
            };
            has_begun = true;
            let is_left = offset >= executed;
            offset += bytes;
            match code.operation {
                _ if !is_left => Ok(()),
                PUSH => sketch.pop(code.register()?),
                _ => sketch.release(8),
            }
        })?;
        Ok(sketch)
    }

    /// The frame at `lookup`, if the bytes from there on are the rest of an epilogue.
    ///
    /// ```text
    ///   add rsp, n   or   lea rsp, [frame register + n]      at most one, first
    ///   pop register ...
    ///   ret   or   jmp to another function
    /// ```
    fn by_bytes(&self, lookup: u32) -> Option<FrameSketch> {
        let mut sketch = FrameSketch::pushed(ALSO_PRESERVED);
        let mut place = lookup;
        let (released, length) = self.release(self.code(place)?, &mut sketch);
        released.ok()?;
        place += length;
        let mut jumps = 0;
        loop {
            match *self.code(place)? {
                // pop rsp: the processor's number 4.
                [0x5c, ..] | [0x40 | 0x42 | 0x44 | 0x46 | 0x48 | 0x4a | 0x4c | 0x4e, 0x5c, ..] => {
                    return None;
                }
                [byte @ 0x58..=0x5f, ..] => {
                    sketch.pop(*DWARF.get(usize::from(byte & 7))?).ok()?;
                    place += 1;
                }
                [prefix @ 0x40..=0x4f, byte @ 0x58..=0x5f, ..] => {
                    let number = usize::from(prefix & 1) * 8 + usize::from(byte & 7);
                    sketch.pop(*DWARF.get(number)?).ok()?;
                    place += 2;
                }
                // ret; ret n; rep ret; bnd ret.
                [0xc3 | 0xc2, ..] | [0xf3 | 0xf2, 0xc3, ..] => return Some(sketch),
                // jmp [rip + n], with or without a prefix that has no meaning.
                [0xff, 0x25, ..] | [0x48, 0xff, 0x25, ..] => return Some(sketch),
                // jmp register, which has this prefix in epilogues only.
                [0x48..=0x4f, 0xff, operand, ..] if operand >> 3 & 7 == 4 => return Some(sketch),
                [0xeb, distance, ..] => {
                    let distance = i32::from(distance.cast_signed());
                    place = self.jump(place.checked_add(2)?, distance, &mut jumps)?;
                }
                [0xe9, a, b, c, d, ..] => {
                    let distance = i32::from_le_bytes([a, b, c, d]);
                    place = self.jump(place.checked_add(5)?, distance, &mut jumps)?;
                }
                _ => return None,
            }
            if place == LEFT {
                return Some(sketch);
            }
        }
    }

    /// The code from `place` to the end of the function.
    fn code(&self, place: u32) -> Option<&[u8]> {
        let length = self.function.end.checked_sub(place)? as usize;
        let bytes = self.table.image.from(place)?;
        bytes.get(..length.min(bytes.len()))
    }

    /// Undoes what may begin an epilogue: the release of the frame. Returns its length; 0 when
    /// there is none.
    fn release(&self, code: &[u8], sketch: &mut FrameSketch) -> (Result<(), PdataError>, u32) {
        match *code {
            [0x48, 0x83, 0xc4, n, ..] => (release_signed(sketch, i32::from(n.cast_signed())), 4),
            [0x48, 0x81, 0xc4, a, b, c, d, ..] => {
                (release_signed(sketch, i32::from_le_bytes([a, b, c, d])), 7)
            }
            [prefix @ (0x48 | 0x49), 0x8d, operand, ref rest @ ..] => {
                let number = usize::from(prefix & 1) * 8 + usize::from(operand & 7);
                let register = DWARF.get(number).copied().unwrap_or(RSP);
                // To rsp, from the frame register, without another one.
                let is_frame = self.info.frame.is_some_and(|(frame, _)| frame == register);
                let (distance, length) = match (operand >> 6, rest) {
                    (0, _) if operand & 7 != 5 => (0, 3),
                    (1, &[n, ..]) => (i32::from(n.cast_signed()), 4),
                    (2, &[a, b, c, d, ..]) => (i32::from_le_bytes([a, b, c, d]), 7),
                    _ => return (Err(PdataError::UnknownCode), 0),
                };
                if !is_frame || operand >> 3 & 7 != 4 || operand & 7 == 4 {
                    return (Err(PdataError::UnknownCode), 0);
                }
                let distance = distance.checked_neg().ok_or(PdataError::OutOfRange);
                (distance.and_then(|x| sketch.count_from(register, x)), length)
            }
            _ => (Ok(()), 0),
        }
    }

    /// The place to which a jump in an epilogue leads; [`LEFT`] when it leaves the function. `None`
    /// when it leads to another part of the same function.
    fn jump(&self, from: u32, distance: i32, jumps: &mut u32) -> Option<u32> {
        *jumps += 1;
        let target = from.checked_add_signed(distance).filter(|_| *jumps <= MAX_JUMPS)?;
        if self.function.contains(target) {
            // A call of the function by itself, as a jump to its start.
            let is_start = target == self.function.begin && self.info.chained.is_none();
            return Some(if is_start { LEFT } else { target });
        }
        let is_other = match Function::find(self.table, target) {
            Ok(other) => self.primary(other)?.begin != self.primary(self.function)?.begin,
            Err(_) => true,
        };
        is_other.then_some(LEFT)
    }

    /// The part of a function that has the prologue.
    fn primary(&self, function: Function) -> Option<Function> {
        let mut function = function;
        for _ in 0..MAX_CHAIN {
            match function.info(&self.table.image).ok()?.chained {
                Some(next) => function = next,
                None => return Some(function),
            }
        }
        None
    }
}

/// A place outside of the function; no code is there.
const LEFT: u32 = u32::MAX;

fn release_signed(sketch: &mut FrameSketch, bytes: i32) -> Result<(), PdataError> {
    sketch.release(u32::try_from(bytes).map_err(|_| PdataError::OutOfRange)?)
}
