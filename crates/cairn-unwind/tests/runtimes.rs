//! Steps out of the code of LuaJIT and PHP, over memory that is made by hand.

use std::collections::BTreeMap;

use cairn_format::AbsoluteAddress;
use cairn_unwind::x86_64::X86_64Rule;
use cairn_unwind::x86_64::luajit::{self, TracePlace, TraceStep};
use cairn_unwind::x86_64::php::{self, PhpCode, PhpFunctions};
use cairn_unwind::{CoreRegisters, MemoryReader};

/// Memory by words; all others are unreadable, or zero in pages that have a word.
#[derive(Clone, Default)]
struct Words(BTreeMap<u64, u64>);

impl Words {
    fn set(&mut self, address: u64, word: u64) {
        self.0.insert(address, word);
    }

    fn set_byte(&mut self, address: u64, byte: u8) {
        let word = self.0.entry(address & !7).or_default();
        let shift = 8 * (address % 8);
        *word = *word & !(0xff << shift) | u64::from(byte) << shift;
    }

    fn set_half(&mut self, address: u64, half: u16) {
        let [low, high] = half.to_le_bytes();
        self.set_byte(address, low);
        self.set_byte(address + 1, high);
    }
}

impl MemoryReader for Words {
    fn read(&self, address: AbsoluteAddress, into: &mut [u8]) -> Option<()> {
        for (address, byte) in (address.value()..).zip(into) {
            let page = address & !0xfff;
            self.0.range(page..page + 0x1000).next()?;
            let word = self.0.get(&(address & !7)).copied().unwrap_or(0);
            *byte = word.to_le_bytes()[(address % 8) as usize];
        }
        Some(())
    }
}

const SP: u64 = 0x7ffe_0000_1000;
const STATE: u64 = 0x10_0000;
const GLOBAL: u64 = 0x20_0000;
const LIST: u64 = 0x30_0000;
const TRACE: u64 = 0x40_0000;
const CODE: u64 = 0x5000_0000;
const CALLER: u64 = 0x60_1234;

/// A thread in trace 3, which has lowered the stack pointer by `adjustment`.
fn in_trace(adjustment: u64) -> Words {
    let mut memory = Words::default();
    let frame = SP + 16 + adjustment;
    for word in 0..64 {
        // Pointers to nothing, as spilled values may be.
        memory.set(SP + 8 * word, 0x7777_0000);
    }
    memory.set(frame + 16, STATE);
    memory.set(frame + 64, 0xbeef);
    memory.set(frame + 72, CALLER);
    memory.set_byte(STATE + 9, 6);
    memory.set(STATE + 16, GLOBAL);
    memory.set(STATE + 80, frame | 1);
    memory.set(GLOBAL + 0x1008, LIST);
    memory.set(GLOBAL + 0x1010, 8 << 32 | 4);
    // Readable up to the end of the search.
    for page in 0..3 {
        memory.set(GLOBAL + 0x1000 * page, 1);
    }
    memory.set(LIST + 3 * 8, TRACE);
    memory.set_byte(TRACE + 9, 9);
    memory.set_half(TRACE + 84, 0x200);
    memory.set(TRACE + 88, CODE);
    memory.set_half(TRACE + 102, adjustment as u16);
    memory.set_half(TRACE + 104, 3);
    memory
}

fn step(memory: &Words, place: TracePlace) -> Option<TraceStep> {
    let registers = CoreRegisters { pc: CODE + 0x100, sp: SP, fp: 0x1234, link: 0 };
    luajit::step(registers, memory, place, &mut |address| address.value() == CALLER)
}

const PLACE: TracePlace = TracePlace { list_offset: 0x1008, number: 3 };

#[test]
fn trace_of_luajit_is_left_by_its_adjustment() {
    for adjustment in [0, 16, 144, 1008] {
        let memory = in_trace(adjustment);
        let sp = SP + 16 + adjustment + 80;
        let caller = CoreRegisters { pc: CALLER, sp, fp: 0xbeef, link: 0 };
        // Searched, at its place, and at another one than it was.
        for place in [TracePlace::default(), PLACE, TracePlace { list_offset: 0x1008, number: 2 }] {
            let found = step(&memory, place);
            assert_eq!(found, Some(TraceStep { caller, place: PLACE }), "{adjustment} {place:?}");
        }
    }
}

#[test]
fn trace_of_luajit_proves_itself_by_every_link() {
    let frame = SP + 16 + 32;
    let changes: &[(&str, u64, u64)] = &[
        ("no state on the stack", frame + 16, 0),
        ("the state has another C frame", STATE + 80, frame + 16),
        ("the state is another object", STATE + 8, 0x0500),
        ("the state is unreadable", frame + 16, 0x9999_0000),
        ("the return address is none", frame + 72, 0x4444),
        ("the trace was freed", LIST + 3 * 8, 0),
        ("the trace has another adjustment", TRACE + 96, 48 << 48),
        ("the trace is elsewhere", TRACE + 88, CODE + 0x1000),
        ("the trace is another object", TRACE + 8, 0x0400),
        ("the trace has another number", TRACE + 104, 4),
        ("the list is too short", GLOBAL + 0x1010, 3 << 32 | 1),
    ];
    for (change, address, word) in changes {
        let mut memory = in_trace(32);
        memory.set(*address, *word);
        for place in [TracePlace::default(), PLACE] {
            assert_eq!(step(&memory, place), None, "{change}");
        }
    }
}

const EXECUTE: u64 = 0x60_0000;
const VARIABLE: u64 = 0x70_0000;

/// Compiled code at `CODE`; a caller of `execute_ex` by the bytes in front of [`CALLER`].
struct Php {
    call: [u8; 8],
}

impl PhpCode for Php {
    fn is_return_address(&self, address: AbsoluteAddress) -> bool {
        self.is_generated(address) || address.value() == CALLER
    }

    fn is_generated(&self, address: AbsoluteAddress) -> bool {
        (CODE..CODE + 0x1000).contains(&address.value())
    }

    fn read(&self, address: AbsoluteAddress, into: &mut [u8]) -> Option<()> {
        let bytes = match address.value() {
            EXIT => &[0x48, 0x81, 0xc4, 0, 1, 0, 0],
            COMPILED => &[0x90; 7],
            address => {
                assert_eq!(address, CALLER - 8);
                &self.call[..]
            }
        };
        into.copy_from_slice(bytes);
        Some(())
    }
}

const COMPILED: u64 = CODE + 0x100;
const EXIT: u64 = CODE + 0x200;
const BY_REGISTER: [u8; 8] = [0x48, 0x8d, 0x05, 0, 0, 0, 0xff, 0x10];

fn php_step(call: [u8; 8], words: &[(u64, u64)]) -> Option<CoreRegisters> {
    php_step_from(COMPILED, call, words)
}

fn php_step_from(pc: u64, call: [u8; 8], words: &[(u64, u64)]) -> Option<CoreRegisters> {
    let functions = PhpFunctions {
        execute: EXECUTE,
        execute_variable: VARIABLE,
        rule: X86_64Rule::from_sp(160, Some(32)).unwrap(),
    };
    let mut memory = Words::default();
    for (offset, word) in words {
        memory.set(SP + offset, *word);
    }
    let registers = CoreRegisters { pc, sp: SP, fp: 0x1234, link: 0 };
    php::step(&functions, registers, &memory, &Php { call })
}

#[test]
fn compiled_code_of_php_is_left_through_execute_ex() {
    let caller = CoreRegisters { pc: CALLER, sp: SP + 160, fp: 0xbeef, link: 0 };
    let words = [(152, CALLER), (128, 0xbeef)];
    let relative = |target: u64| i32::try_from(target as i64 - CALLER as i64).unwrap().to_le_bytes();
    let [a, b, c, d] = relative(EXECUTE);
    let direct = [0x90, 0x90, 0x90, 0xe8, a, b, c, d];
    let [a, b, c, d] = relative(VARIABLE);
    let by_variable = [0x90, 0x90, 0xff, 0x15, a, b, c, d];
    for call in [BY_REGISTER, direct, by_variable] {
        assert_eq!(php_step(call, &words), Some(caller), "{call:x?}");
    }
    // Calls of other functions, by another variable, by a word on the stack.
    let [a, b, c, d] = relative(EXECUTE + 16);
    for call in [
        [0x90, 0x90, 0x90, 0xe8, a, b, c, d],
        [0x90, 0x90, 0xff, 0x15, a, b, c, d],
        [0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0xff, 0xd0],
        [0x90, 0x90, 0x90, 0x90, 0x90, 0xff, 0x14, 0x24],
    ] {
        assert_eq!(php_step(call, &words), None, "{call:x?}");
    }
    assert_eq!(php_step(BY_REGISTER, &[(152, CALLER + 1), (128, 0xbeef)]), None);
}

#[test]
fn exit_of_a_trace_is_left_by_its_next_instruction() {
    let caller = CoreRegisters { pc: CALLER, sp: SP + 256 + 160, fp: 0xbeef, link: 0 };
    let words = [(256 + 152, CALLER), (256 + 128, 0xbeef)];
    assert_eq!(php_step_from(EXIT, BY_REGISTER, &words), Some(caller));
    assert_eq!(php_step_from(COMPILED, BY_REGISTER, &words), None);
}

#[test]
fn part_of_compiled_code_returns_to_its_caller() {
    let words = [(8, CODE + 0x300), (16 + 152, CALLER), (16 + 128, 0xbeef)];
    let caller = CoreRegisters { pc: CODE + 0x300, sp: SP + 16, fp: 0x1234, link: 0 };
    assert_eq!(php_step(BY_REGISTER, &words), Some(caller));
    // Not in compiled code; not called by `execute_ex`.
    assert_eq!(php_step(BY_REGISTER, &[(8, CALLER), words[1], words[2]]), None);
    assert_eq!(php_step(BY_REGISTER, &[words[0], (16 + 152, 0), words[2]]), None);
}
