//! The walkers of devices, over memory images: RISC-V with frame pointers, Xtensa with register
//! windows.
//!
//! The images come from models of the processors that know nothing of the walkers: what a compiled
//! function pushes, what a call, an entry and a window overflow do. Random programs call to random
//! depths; the walk must find the calls that were made.

use cairn_format::{AbsoluteAddress, Frame, WordSize};
use cairn_unwind::{AddressRange, FrameLayout, FramePointerWalk, SliceMemory, StopReason, riscv, xtensa};
use proptest::prelude::*;

fn at(address: u64) -> AbsoluteAddress {
    AbsoluteAddress::new(address)
}

fn frames(pc: u64, returns: &[u64]) -> Vec<Frame> {
    let mut frames = vec![Frame::ProgramCounter(at(pc))];
    frames.extend(returns.iter().map(|address| Frame::ReturnAddress(at(*address))));
    frames
}

/// A stack that grows down from its end, as bytes at their addresses.
#[derive(Debug)]
struct Stack {
    start: u64,
    bytes: Vec<u8>,
}

impl Stack {
    fn new(start: u64, size_bytes: usize) -> Self {
        Self { start, bytes: vec![0xa5; size_bytes] }
    }

    fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }

    fn put(&mut self, address: u64, value: u64, word_bytes: usize) {
        let offset = (address - self.start) as usize;
        self.bytes[offset..offset + word_bytes].copy_from_slice(&value.to_le_bytes()[..word_bytes]);
    }

    fn memory(&self) -> SliceMemory<'_> {
        SliceMemory::new(at(self.start), &self.bytes)
    }

    fn range(&self) -> AddressRange {
        AddressRange::new(at(self.start), at(self.end()))
    }
}

/// A RISC-V thread: what functions with frame pointers do to its stack.
#[derive(Debug)]
struct RiscV {
    stack: Stack,
    word_size: WordSize,
    registers: riscv::RiscvRegisters,
    /// Innermost last.
    returns: Vec<u64>,
}

impl RiscV {
    fn new(start: u64, word_size: WordSize) -> Self {
        let stack = Stack::new(start, 1 << 14);
        let registers = riscv::RiscvRegisters { pc: 0x2000_0000, ra: 0, sp: stack.end(), fp: 0 };
        Self { stack, word_size, registers, returns: Vec::new() }
    }

    /// Calls a function with a frame of `locals_bytes` and the saved registers.
    fn call(&mut self, locals_bytes: u64, is_leaf: bool) {
        let word_bytes = self.word_size.bytes();
        let word = word_bytes as u64;
        let Self { stack, registers, .. } = self;
        registers.ra = registers.pc + 2 + locals_bytes % 7 * 2;
        self.returns.push(registers.ra);
        registers.pc = 0x2000_0000 + self.returns.len() as u64 * 0x100;
        let entry = registers.sp;
        registers.sp -= (2 * word + locals_bytes).next_multiple_of(16);
        if is_leaf {
            stack.put(entry - word, registers.fp, word_bytes);
        } else {
            stack.put(entry - word, registers.ra, word_bytes);
            stack.put(entry - 2 * word, registers.fp, word_bytes);
            // The next call overwrites it.
            registers.ra = 0x7777_7776;
        }
        registers.fp = entry;
    }

    fn walk(&self) -> (Vec<Frame>, Option<StopReason>) {
        let mut walk =
            riscv::RiscvWalk::new(self.stack.memory(), self.registers, self.stack.range(), self.word_size);
        (walk.by_ref().collect(), walk.stop_reason())
    }

    fn expected(&self) -> Vec<Frame> {
        let returns: Vec<u64> = self.returns.iter().rev().copied().collect();
        frames(self.registers.pc, &returns)
    }
}

fn riscv_model() -> impl Strategy<Value = RiscV> {
    let word_size = prop_oneof![Just(WordSize::Bits32), Just(WordSize::Bits64)];
    (word_size, prop::collection::vec(0_u64..200, 1..40), any::<bool>()).prop_map(
        |(word_size, calls, ends_in_leaf)| {
            let mut thread = RiscV::new(0x8000_4000, word_size);
            for (index, locals_bytes) in calls.iter().enumerate() {
                let is_last = index + 1 == calls.len();
                // The first function has no caller with a frame, which a leaf cannot be
                // distinguished by.
                thread.call(*locals_bytes, is_last && index > 0 && ends_in_leaf);
            }
            thread
        },
    )
}

/// An Xtensa processor: its register file, and what calls, entries and overflows do to it.
#[derive(Debug)]
struct Xtensa {
    stack: Stack,
    file: Vec<u32>,
    base: usize,
    start: u32,
    pc: u32,
    /// Innermost last.
    returns: Vec<u64>,
}

impl Xtensa {
    fn new(registers: usize) -> Self {
        let stack = Stack::new(0x3ffb_0000, 1 << 15);
        // Everything that was not set by a function is junk that would be seen.
        let mut file = vec![0xdead_beef; registers];
        // The first function: called by nobody.
        (file[0], file[1]) = (0, stack.end() as u32);
        Self { stack, file, base: 0, start: 1, pc: 0x400d_0000, returns: Vec::new() }
    }

    fn groups(&self) -> usize {
        self.file.len() / 4
    }

    fn register(&mut self, number: usize) -> &mut u32 {
        let count = self.file.len();
        &mut self.file[(self.base * 4 + number) % count]
    }

    /// Raises the window overflow exception. The oldest function loses its registers, to below the
    /// stack pointer of its callee.
    fn spill(&mut self, group: usize) {
        assert!(self.start >> group & 1 == 1);
        let next =
            (1..self.groups()).map(|by| (group + by) % self.groups()).find(|g| self.start >> g & 1 == 1);
        let callee_stack_pointer = self.file[next.unwrap() * 4 + 1];
        for index in 0..4 {
            let place = u64::from(callee_stack_pointer) - 16 + index * 4;
            self.stack.put(place, self.file[group * 4 + index as usize].into(), 4);
        }
        self.start &= !(1 << group);
        for index in 0..4 {
            self.file[group * 4 + index] = 0xdead_beef;
        }
    }

    /// `call4`, `call8` or `call12` and the `entry` of the function called.
    fn call(&mut self, rotation: usize, frame_bytes: u32) {
        self.pc += 3 + frame_bytes % 5 * 3;
        self.returns.push(self.pc.into());
        let return_address = (rotation as u32) << 30 | self.pc & 0x3fff_ffff;
        let stack_pointer = *self.register(1) - frame_bytes;
        // Touching registers of the new window that older functions still have spills these: all
        // that a function may use, 16 registers, from the group behind its caller's own.
        for by in 1..rotation + 4 {
            let group = (self.base + by) % self.groups();
            if self.start >> group & 1 == 1 {
                self.spill(group);
            }
        }
        *self.register(rotation * 4) = return_address;
        *self.register(rotation * 4 + 1) = stack_pointer;
        self.base = (self.base + rotation) % self.groups();
        self.start |= 1 << self.base;
        self.pc = 0x400d_0000 + self.returns.len() as u32 * 0x100;
    }

    /// Spills all windows, as an exception handler does before it dumps memory or switches tasks.
    fn spill_all(&mut self) {
        for by in 1..self.groups() {
            let group = (self.base + by) % self.groups();
            if self.start >> group & 1 == 1 {
                self.spill(group);
            }
        }
    }

    fn walk(&self, with_file: bool) -> (Vec<Frame>, Option<StopReason>) {
        let first = self.base * 4;
        let windows = xtensa::Windows { file: &self.file, base: self.base as u32, start: self.start };
        let registers = xtensa::XtensaRegisters {
            pc: self.pc,
            a0: self.file[first],
            a1: self.file[first + 1],
            windows: with_file.then_some(windows),
        };
        let mut walk = xtensa::XtensaWalk::new(self.stack.memory(), registers, self.stack.range());
        (walk.by_ref().collect(), walk.stop_reason())
    }

    fn expected(&self) -> Vec<Frame> {
        let returns: Vec<u64> = self.returns.iter().rev().copied().collect();
        frames(self.pc.into(), &returns)
    }
}

fn xtensa_model() -> impl Strategy<Value = Xtensa> {
    let calls = prop::collection::vec((1_usize..4, 1_u32..12), 0..60);
    (prop_oneof![Just(32_usize), Just(64)], calls).prop_map(|(registers, calls)| {
        let mut processor = Xtensa::new(registers);
        for (rotation, frame) in calls {
            processor.call(rotation, frame * 16 + 16);
        }
        processor
    })
}

proptest! {
    /// Failed with: unresolved import `cairn_unwind::riscv`.
    #[test]
    fn riscv_walk_finds_all_calls(thread in riscv_model()) {
        prop_assert_eq!(thread.walk(), (thread.expected(), Some(StopReason::EndOfStack)));
    }

    /// Failed with: unresolved import `cairn_unwind::xtensa`.
    #[test]
    fn xtensa_walk_finds_all_calls_in_the_register_file(processor in xtensa_model()) {
        prop_assert_eq!(processor.walk(true), (processor.expected(), Some(StopReason::EndOfStack)));
    }

    /// Failed with: unresolved import `cairn_unwind::xtensa`.
    #[test]
    fn xtensa_walk_finds_all_calls_after_a_spill(mut processor in xtensa_model()) {
        processor.spill_all();
        let expected = (processor.expected(), Some(StopReason::EndOfStack));
        prop_assert_eq!(processor.walk(false), expected.clone());
        prop_assert_eq!(processor.walk(true), expected);
    }

    /// Whatever memory and registers hold, a walk ends, and stack pointers only rise.
    #[test]
    fn device_walks_of_junk_end(
        bytes in prop::collection::vec(any::<u8>(), 256),
        words in prop::collection::vec((0_u32..0x110, any::<u32>(), any::<bool>()), 64),
        near in any::<bool>(),
    ) {
        let mut stack = Stack { start: 0x1000, bytes };
        for (index, (offset, any, is_near)) in words.iter().enumerate() {
            let value = if *is_near { 0x1000 + (offset & !3) } else { *any };
            stack.put(0x1000 + index as u64 * 4, value.into(), 4);
        }
        let word = |index: usize| {
            let (offset, any, _) = words[index];
            if near { 0x1000 + (offset & !15) } else { any }
        };
        let file: Vec<u32> = (0..64).map(word).collect();
        let windows = xtensa::Windows { file: &file, base: word(3), start: word(4) };
        let registers = xtensa::XtensaRegisters { pc: word(0), a0: word(1) | 1 << 30, a1: word(2), windows: Some(windows) };
        let walk = xtensa::XtensaWalk::new(stack.memory(), registers, stack.range());
        prop_assert!(walk.take(1000).count() < 100);
        let registers = riscv::RiscvRegisters {
            pc: word(0).into(),
            ra: word(1).into(),
            sp: 0x1000,
            fp: word(2).into(),
        };
        let walk = riscv::RiscvWalk::new(stack.memory(), registers, stack.range(), WordSize::Bits32);
        prop_assert!(walk.take(1000).count() < 100);
    }
}

/// Failed with: no method `layout`; `FramePointerWalk` knew one layout.
#[test]
fn riscv_records_lie_below_the_frame_pointer() {
    let mut stack = Stack::new(0x8000_0000, 64);
    for (offset, value) in [(0, 0x8000_0020_u64), (4, 0x1004), (24, 0), (28, 0x1008)] {
        stack.put(0x8000_0000 + offset, value, 4);
    }
    // (frame pointer, return addresses, why it ends)
    let cases: &[(u64, &[u64], StopReason)] = &[
        (0x8000_0008, &[0x1004, 0x1008], StopReason::EndOfStack),
        (0, &[], StopReason::EndOfStack),
        (4, &[], StopReason::OutsideStack { address: at(4) }),
        (0x8000_0004, &[], StopReason::OutsideStack { address: at(0x7fff_fffc) }),
        (0x8000_000a, &[], StopReason::OutsideStack { address: at(0x8000_0002) }),
        (0x8000_0044, &[], StopReason::OutsideStack { address: at(0x8000_003c) }),
    ];
    for (frame_pointer, expected, stop) in cases {
        let mut walk = FramePointerWalk::new(stack.memory(), *frame_pointer, stack.range(), WordSize::Bits32)
            .layout(FrameLayout::RISC_V);
        let found: Vec<u64> = walk.by_ref().map(|record| record.return_address.value()).collect();
        assert_eq!(&found, expected, "{frame_pointer:#x}");
        assert_eq!(walk.stop_reason(), Some(*stop), "{frame_pointer:#x}");
    }
}

/// Damaged stacks: the frames that were found stay, and the reason names the place.
///
/// Failed with: unresolved import `cairn_unwind::xtensa`.
#[test]
fn xtensa_walk_reports_its_stop_reason() {
    let stack = Stack::new(0x3ffb_0000, 0x100);
    let walk = |words: &[(u64, u32)], a0: u32, a1: u32| {
        let mut stack = Stack { start: stack.start, bytes: stack.bytes.clone() };
        words.iter().for_each(|(offset, value)| stack.put(0x3ffb_0000 + offset, (*value).into(), 4));
        let registers = xtensa::XtensaRegisters { pc: 0x400d_1000, a0, a1, windows: None };
        let mut walk = xtensa::XtensaWalk::new(stack.memory(), registers, stack.range());
        let frames: Vec<Frame> = walk.by_ref().collect();
        (frames, walk.stop_reason().unwrap())
    };
    let one = frames(0x400d_1000, &[0x400d_0010]);
    let none = frames(0x400d_1000, &[]);
    let cases = [
        (walk(&[], 0, 0x3ffb_0010), (none.clone(), StopReason::EndOfStack)),
        // A call0 function: no rotation.
        (walk(&[], 0x000d_0010, 0x3ffb_0010), (none, StopReason::NoUnwindInfo { pc: at(0x400d_1000) })),
        // Its caller's registers were never spilled.
        (
            walk(&[], 0x800d_0010, 0x3ffb_0010),
            (one.clone(), StopReason::OutsideStack { address: at(0xa5a5_a5a5) }),
        ),
        (
            walk(&[(0, 0), (4, 0x3ffb_0010)], 0x800d_0010, 0x3ffb_0010),
            (one.clone(), StopReason::NoProgress { pc: at(0x400d_0010) }),
        ),
        (
            walk(&[(0, 0), (4, 0x3ffb_0018)], 0x800d_0010, 0x3ffb_0010),
            (one.clone(), StopReason::OutsideStack { address: at(0x3ffb_0018) }),
        ),
        (
            walk(&[], 0x800d_0010, 0x3ffa_0010),
            (one.clone(), StopReason::UnreadableMemory { address: at(0x3ffa_0000) }),
        ),
        (walk(&[], 0x800d_0010, 8), (one, StopReason::OutsideStack { address: at(8) })),
    ];
    for (index, (found, expected)) in cases.into_iter().enumerate() {
        assert_eq!(found, expected, "case {index}");
    }
}
