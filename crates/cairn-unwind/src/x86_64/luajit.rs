//! The step out of a trace of LuaJIT.
//!
//! A trace is a piece of machine code that LuaJIT's compiler has made. The interpreter jumps to it,
//! so that it runs in the interpreter's own C frame, lowered by a constant of the trace:
//!
//! ```text
//!   CFA    -> | frame of lua_pcall or the like |
//!   CFA-8     | return address                 |
//!   CFA-16    | saved rbp                      |
//!             | ...                            |
//!   C + 16    | L, the Lua state that runs     |
//!   C      -> |                                |  C = CFA - 80, which L has as its C frame
//!             | two registers, spilled values  |
//!             |                                | <- rsp = C - 16 - (the trace's adjustment)
//! ```
//!
//! The adjustment is found by data alone, and each link is checked: the state on the stack names
//! this C frame, and its list of traces has one that covers the return address and has this
//! adjustment. LuaJIT has no trace and no interpreter inside of a running trace, so the innermost
//! C frame is the trace's.
//!
//! The offsets are those of LuaJIT 2.1 with 64-bit references (`LJ_GC64`), its default on x86-64.
//! That of the list of traces depends on the version, and is found by its contents.

use cairn_format::AbsoluteAddress;

use crate::{CoreRegisters, MemoryReader};

/// Bytes from the C frame up to its CFA.
const FRAME_BYTES: u64 = 80;
/// Bytes from the C frame up to the word that has the Lua state.
const STATE_IN_FRAME: u64 = 16;
/// Bytes from a trace's stack pointer up to the C frame, without its adjustment.
///
/// 16, the room for two registers.
const SAVED_BYTES: u64 = 16;
/// Most bytes of an adjustment: 256 slots of 4 bytes.
const MOST_SPILLED_BYTES: u64 = 1024;
/// The unit of adjustments.
const SPILL_UNIT: u64 = 16;

/// The part of a Lua state that is read: up to the end of its C frame.
const STATE_BYTES: usize = 88;
const STATE_TYPE: usize = 9;
const STATE_GLOBAL: usize = 16;
const STATE_C_FRAME: usize = 80;
/// The type of a Lua state, as objects have it.
const TYPE_STATE: u8 = 6;
/// The low bits of a C frame are flags.
const C_FRAME_FLAGS: u64 = 3;

/// The part of a trace that is read: up to its number.
const TRACE_BYTES: usize = 106;
const TRACE_TYPE: usize = 9;
const TRACE_CODE_BYTES: usize = 84;
const TRACE_CODE: usize = 88;
const TRACE_ADJUSTMENT: usize = 102;
const TRACE_NUMBER: usize = 104;
/// The type of a trace, as objects have it.
const TYPE_TRACE: u8 = 9;

/// Bytes behind the global state in which the list of traces is searched.
///
/// 8 KiB, because it lies 1 KiB behind in Debian's version, and the part up to its neighbours has
/// less than 8.
const SEARCHED_BYTES: u64 = 8192;
/// Bytes that are read at once in a search; 512, because a signal handler's stack is small.
const PIECE_BYTES: usize = 512;
/// Bytes that say where the list of traces is: its start, its first free number, and its size.
const LIST_BYTES: usize = 16;
/// Most traces of a state: their numbers have 16 bits.
const MOST_TRACES: u32 = 1 << 16;

/// The place of a trace, which an earlier step has found. Any value is allowed: it is checked.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct TracePlace {
    /// Bytes from the global state to its list of traces.
    pub list_offset: u64,
    /// The number of the trace.
    pub number: u32,
}

/// A step out of a trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TraceStep {
    /// The registers in the caller of the interpreter.
    pub caller: CoreRegisters,
    /// The place of the trace, for the next step from this address.
    pub place: TracePlace,
}

/// Steps from a return address in a trace; `None` when it is in none.
///
/// `is_return_address` decides whether a call returns to an address. `place` is where the trace was
/// when it was last found; if it is somewhere else, it is searched.
pub fn step(
    trace: CoreRegisters,
    memory: &dyn MemoryReader,
    place: TracePlace,
    is_return_address: &mut dyn FnMut(AbsoluteAddress) -> bool,
) -> Option<TraceStep> {
    let lowest = trace.sp.checked_add(SAVED_BYTES)?;
    (0..=MOST_SPILLED_BYTES / SPILL_UNIT).find_map(|unit| {
        let frame = Frame { at: lowest.checked_add(unit * SPILL_UNIT)?, memory };
        let global = frame.global_state()?;
        let return_address = frame.return_address()?;
        if !is_return_address(AbsoluteAddress::new(return_address)) {
            return None;
        }
        let wanted = Wanted { pc: trace.pc, adjustment: unit * SPILL_UNIT, memory };
        let place = match wanted.is_at(global, place) {
            Some(()) => place,
            None => wanted.search(global)?,
        };
        let caller = CoreRegisters {
            pc: return_address,
            sp: frame.at.checked_add(FRAME_BYTES)?,
            fp: frame.word(FRAME_BYTES - 16)?,
            link: 0,
        };
        Some(TraceStep { caller, place })
    })
}

/// A place that may be a C frame of the interpreter.
#[derive(Clone, Copy)]
struct Frame<'a> {
    at: u64,
    memory: &'a dyn MemoryReader,
}

impl Frame<'_> {
    fn word(self, offset: u64) -> Option<u64> {
        self.memory.word64(AbsoluteAddress::new(self.at.checked_add(offset)?))
    }

    fn return_address(self) -> Option<u64> {
        self.word(FRAME_BYTES - 8)
    }

    /// The global state, if a Lua state has this C frame.
    fn global_state(self) -> Option<u64> {
        let state = self.word(STATE_IN_FRAME).filter(|state| is_object(*state))?;
        let mut bytes = [0; STATE_BYTES];
        self.memory.read(AbsoluteAddress::new(state), &mut bytes)?;
        let is_state = *bytes.get(STATE_TYPE)? == TYPE_STATE
            && word_at(&bytes, STATE_C_FRAME)? & !C_FRAME_FLAGS == self.at;
        word_at(&bytes, STATE_GLOBAL).filter(|global| is_state && is_object(*global))
    }
}

/// The trace that is searched.
#[derive(Clone, Copy)]
struct Wanted<'a> {
    pc: u64,
    adjustment: u64,
    memory: &'a dyn MemoryReader,
}

impl Wanted<'_> {
    /// Checks that the trace is at this place.
    fn is_at(self, global: u64, place: TracePlace) -> Option<()> {
        if place.list_offset >= SEARCHED_BYTES {
            return None;
        }
        let mut bytes = [0; LIST_BYTES];
        self.memory.read(AbsoluteAddress::new(global.checked_add(place.list_offset)?), &mut bytes)?;
        let list = List::of(&bytes)?;
        if place.number >= list.count {
            return None;
        }
        let entry = list.start.checked_add(u64::from(place.number) * 8)?;
        self.is_trace(self.memory.word64(AbsoluteAddress::new(entry))?, place.number)
    }

    /// Searches the list of traces, and the trace in it.
    #[cold]
    fn search(self, global: u64) -> Option<TracePlace> {
        const STEP: u64 = (PIECE_BYTES - LIST_BYTES + 8) as u64;
        let mut start = 0;
        while start < SEARCHED_BYTES {
            let mut piece = [0; PIECE_BYTES];
            self.memory.read(AbsoluteAddress::new(global.checked_add(start)?), &mut piece)?;
            for offset in (0..STEP).step_by(8) {
                let list = List::of(piece.get(offset as usize..)?);
                if let Some(number) = list.and_then(|list| self.search_in(list)) {
                    return Some(TracePlace { list_offset: start + offset, number });
                }
            }
            start += STEP;
        }
        None
    }

    /// The number of the trace in this list, which may be none.
    fn search_in(self, list: List) -> Option<u32> {
        const PER_PIECE: u32 = (PIECE_BYTES / 8) as u32;
        let mut first = 0;
        while first < list.count {
            let mut piece = [0; PIECE_BYTES];
            let count = PER_PIECE.min(list.count - first);
            let entries = piece.get_mut(..count as usize * 8)?;
            self.memory.read(AbsoluteAddress::new(list.start.checked_add(u64::from(first) * 8)?), entries)?;
            for index in 0..count {
                let trace = word_at(entries, index as usize * 8)?;
                if trace != 0 && !is_object(trace) {
                    return None;
                }
                if trace != 0 && self.is_trace(trace, first + index).is_some() {
                    return Some(first + index);
                }
            }
            first += count;
        }
        None
    }

    /// Checks that this is the trace of that number, and covers the return address.
    fn is_trace(self, trace: u64, number: u32) -> Option<()> {
        if !is_object(trace) || number == 0 {
            return None;
        }
        let mut bytes = [0; TRACE_BYTES];
        self.memory.read(AbsoluteAddress::new(trace), &mut bytes)?;
        let code = word_at(&bytes, TRACE_CODE)?;
        let code_bytes = word_at(&bytes, TRACE_CODE_BYTES)? & u64::from(u32::MAX);
        let half = |offset: usize| Some(u16::from_le_bytes(*bytes.get(offset..)?.first_chunk()?));
        let is_wanted = *bytes.get(TRACE_TYPE)? == TYPE_TRACE
            && u32::from(half(TRACE_NUMBER)?) == number
            // The call lies below its return address.
            && self.pc.wrapping_sub(1).wrapping_sub(code) < code_bytes
            && u64::from(half(TRACE_ADJUSTMENT)?) == self.adjustment;
        is_wanted.then_some(())
    }
}

/// A list of traces.
#[derive(Clone, Copy)]
struct List {
    start: u64,
    count: u32,
}

impl List {
    /// The list that these bytes describe, if they can.
    fn of(bytes: &[u8]) -> Option<Self> {
        let (start, sizes) = (word_at(bytes, 0)?, word_at(bytes, 8)?);
        let (first_free, count) = (sizes as u32, (sizes >> 32) as u32);
        let is_list = is_object(start) && 0 < count && count <= MOST_TRACES && first_free <= count;
        is_list.then_some(Self { start, count })
    }
}

/// True for addresses that a reference to an object can have: 47 bits, and aligned.
fn is_object(address: u64) -> bool {
    const LOWEST: u64 = 4096;
    LOWEST <= address && address >> 47 == 0 && address.is_multiple_of(8)
}

fn word_at(bytes: &[u8], offset: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(offset..)?.first_chunk()?))
}
