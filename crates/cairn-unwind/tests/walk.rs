//! Whole walks: on synthesized stacks for every way to find a frame and every reason to stop, and
//! on this very thread against libgcc.

mod support;

use cairn_format::{AbsoluteAddress, Frame, WordSize};
use cairn_unwind::aarch64::{self, Aarch64};
use cairn_unwind::cfi::{Bases, Flavor, FrameTable, Section};
use cairn_unwind::x86_64::X86_64;
use cairn_unwind::{AddressRange, FoundBy, Modules, OneModule, Registers, SliceMemory, StopReason, Walk};
use support::assembler::{Bytes, CieSpec, Format, SectionBuilder, program};

const CODE: u64 = 0x10_0000;
const FRAMES: u64 = 0x20_0000;
const STACK: u64 = 0x7000;

fn at(address: u64) -> AbsoluteAddress {
    AbsoluteAddress::new(address)
}

/// Functions of 0x100 bytes side by side from `CODE`, with these programs.
fn functions(spec: &CieSpec, programs: &[Bytes]) -> SectionBuilder {
    let mut section = SectionBuilder::new(Format::Eh, FRAMES);
    let cie = section.cie(spec);
    for (number, program) in programs.iter().enumerate() {
        section.fde(cie, CODE + 0x100 * number as u64, 0x100, program);
    }
    section
}

fn module(section: &SectionBuilder) -> OneModule<'_> {
    let frames = Section::new(&section.bytes, at(FRAMES));
    let table = FrameTable::linear(Flavor::EhFrame, frames, Bases::default(), WordSize::Bits64);
    OneModule::new(AddressRange::new(at(CODE), at(CODE + 0x10000)), Some(table))
}

type Found = (Vec<(Frame, FoundBy)>, StopReason);

fn walk(registers: Registers<X86_64>, words: &[u64], module: OneModule<'_>) -> Found {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let memory = SliceMemory::new(at(STACK), &bytes);
    let stack = AddressRange::new(at(STACK), at(STACK + bytes.len() as u64));
    let mut walk = Walk::new(registers, memory, module).with_stack(stack);
    let frames = walk.by_ref().map(|frame| (frame.frame, frame.found_by)).collect();
    (frames, walk.stop_reason().unwrap())
}

const fn pc(address: u64) -> Frame {
    Frame::ProgramCounter(AbsoluteAddress::new(address))
}

const fn ra(address: u64) -> Frame {
    Frame::ReturnAddress(AbsoluteAddress::new(address))
}

#[test]
fn walk_by_tables_ends_at_frame_without_caller() {
    let section = functions(
        &CieSpec::x86_64(),
        &[
            program(),
            program().def_cfa_offset(24),
            program().def_cfa(6, 16).offset(6, 2),
            program().undefined(16),
        ],
    );
    // Leaf, then a frame of 24 bytes, then one with a frame pointer, whose call is the last
    // instruction of its function.
    let words = [CODE + 0x150, 0, 0, CODE + 0x300, 0, 0xbeef, CODE + 0x310, 0];
    let registers = Registers::new(CODE + 5, STACK, STACK + 0x28);
    let (frames, stop) = walk(registers, &words, module(&section));
    assert_eq!(
        frames,
        [
            (pc(CODE + 5), FoundBy::Context),
            (ra(CODE + 0x150), FoundBy::Cfi),
            (ra(CODE + 0x300), FoundBy::Cfi),
            (ra(CODE + 0x310), FoundBy::Cfi),
        ]
    );
    assert_eq!(stop, StopReason::EndOfStack);
}

#[test]
fn code_without_tables_is_walked_by_frame_pointer() {
    let section = functions(&CieSpec::x86_64(), &[program().def_cfa_offset(16), program().undefined(16)]);
    // Code at 0x5000 has no tables; its record at STACK+8 leads to function 0 and on by tables.
    let words = [0, STACK + 0x40, CODE + 0x10, 0, CODE + 0x110, 0];
    let registers = Registers::new(CODE + 0x5000, STACK, STACK + 8);
    let (frames, stop) = walk(registers, &words, module(&section));
    assert_eq!(
        frames,
        [
            (pc(CODE + 0x5000), FoundBy::Context),
            (ra(CODE + 0x10), FoundBy::FramePointer),
            (ra(CODE + 0x110), FoundBy::Cfi),
        ]
    );
    assert_eq!(stop, StopReason::EndOfStack);
}

/// Code of a JIT compiler from 0x50_0000 on, and a module without tables from `CODE` on.
struct Generated {
    code: Vec<u8>,
}

const GENERATED: u64 = 0x50_0000;

impl Modules for Generated {
    fn frame_table(&self, _address: AbsoluteAddress) -> Option<FrameTable<'_>> {
        None
    }

    fn is_executable(&self, address: AbsoluteAddress) -> bool {
        self.is_generated(address) || (CODE..CODE + 0x100).contains(&address.value())
    }

    fn is_generated(&self, address: AbsoluteAddress) -> bool {
        (GENERATED..GENERATED + self.code.len() as u64).contains(&address.value())
    }

    fn read_code(&self, address: AbsoluteAddress, into: &mut [u8]) -> Option<()> {
        for (address, byte) in (address.value()..).zip(into) {
            let place = address.checked_sub(GENERATED).and_then(|place| usize::try_from(place).ok());
            // The module is of calls only.
            let of_module = if address % 2 == 0 { 0xff } else { 0xd0 };
            *byte = place.and_then(|place| self.code.get(place)).copied().unwrap_or(of_module);
        }
        Some(())
    }
}

fn walk_generated(code: &[(usize, &[u8])], fp: u64, words: &[u64]) -> Found {
    let mut generated = Generated { code: vec![0x90; 0x100] };
    for (place, bytes) in code {
        generated.code[*place..place + bytes.len()].copy_from_slice(bytes);
    }
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let memory = SliceMemory::new(at(STACK), &bytes);
    let stack = AddressRange::new(at(STACK), at(STACK + bytes.len() as u64));
    let registers = Registers::<X86_64>::new(GENERATED + 0x20, STACK, fp);
    let walk = Walk::new(registers, memory, generated).with_stack(stack);
    let mut walk = walk.from_return_address();
    let frames = walk.by_ref().map(|frame| (frame.frame, frame.found_by)).collect();
    (frames, walk.stop_reason().unwrap())
}

const CALL: &[u8] = &[0xff, 0xd7];

#[test]
fn frame_pointer_step_needs_a_call_before_its_return() {
    let first = (ra(GENERATED + 0x20), FoundBy::Context);
    let by_frame_pointer = |address| (ra(address), FoundBy::FramePointer);
    let words = [0, STACK + 0x30, GENERATED + 0x82, 0, 0, 0, 0, CODE + 0x10];
    let (frames, stop) = walk_generated(&[(0x80, CALL)], STACK + 8, &words);
    assert_eq!(frames, [first, by_frame_pointer(GENERATED + 0x82), by_frame_pointer(CODE + 0x10)]);
    assert_eq!(stop, StopReason::EndOfStack, "the last frame pointer is zero");

    // Without a call, in a JIT's code, it counts if the next record is one.
    let (frames, _) = walk_generated(&[], STACK + 8, &words);
    assert_eq!(frames.len(), 3);
    for (what, saved, next) in [
        ("the next record returns to data", STACK + 0x30, 0x1234),
        ("the next record lies below", STACK, CODE + 0x10),
        ("there is no next record", 0, CODE + 0x10),
        ("the next record is unaligned", STACK + 0x31, CODE + 0x10),
    ] {
        let words = [0, saved, GENERATED + 0x82, 0, 0, 0, 0, next];
        let (frames, stop) = walk_generated(&[], STACK + 8, &words);
        assert_eq!(frames, [first], "{what}");
        assert_eq!(stop, StopReason::NoUnwindInfo { pc: at(GENERATED + 0x20) }, "{what}");
    }
}

#[test]
fn module_code_needs_a_call_before_its_return() {
    // The module's code is `call rax` throughout: odd addresses are inside of one.
    for (address, frames) in [(CODE + 0x10, 2), (CODE + 0x11, 1), (CODE + 0x200, 1)] {
        assert_eq!(walk_generated(&[], STACK + 8, &[0, 0, address]).0.len(), frames, "{address:#x}");
    }
}

#[test]
fn trampoline_of_python_is_stepped_without_frame_pointer() {
    let code = [0x48, 0x83, 0xec, 0x08, 0xff, 0xd1, 0x48, 0x83, 0xc4, 0x08, 0xc3];
    let words = [0xdead, CODE + 0x10, 0, 0];
    let (frames, _) = walk_generated(&[(0x1a, &code)], 0x1234, &words);
    let found = [(ra(GENERATED + 0x20), FoundBy::Context), (ra(CODE + 0x10), FoundBy::KnownCode)];
    assert_eq!(frames, found);
    // The word where the return address belongs is data: the shape alone proves nothing.
    let (frames, _) = walk_generated(&[(0x1a, &code)], 0x1234, &[0xdead, 0x1234, 0, 0]);
    assert_eq!(frames.len(), 1);
}

#[test]
fn walk_ends_at_implausible_frame_pointer() {
    let section = functions(&CieSpec::x86_64(), &[program()]);
    let start = CODE + 0x5000;
    // Below the stack pointer; outside; unaligned; to a return address that is no code.
    for fp in [STACK - 16, STACK + 0x1000, STACK + 3, STACK + 8] {
        let (frames, stop) =
            walk(Registers::new(start, STACK, fp), &[0, STACK + 0x20, 0x1234, 0], module(&section));
        assert_eq!((frames.len(), stop), (1, StopReason::NoUnwindInfo { pc: at(start) }), "{fp:#x}");
    }
    let (_, stop) = walk(Registers::new(start, STACK, 0), &[0; 4], module(&section));
    assert_eq!(stop, StopReason::EndOfStack, "a zero frame pointer is how the outermost frame says so");
}

#[test]
fn walk_after_call_through_null_pointer_finds_caller() {
    let section = functions(&CieSpec::x86_64(), &[program().undefined(16)]);
    let (frames, stop) = walk(Registers::new(0, STACK, 0x1234), &[CODE + 0x10, 0], module(&section));
    assert_eq!(frames, [(pc(0), FoundBy::Context), (ra(CODE + 0x10), FoundBy::BadCall)]);
    assert_eq!(stop, StopReason::EndOfStack);
}

#[test]
fn interrupted_pc_is_looked_up_unchanged() {
    let place = |offset: i64| Bytes::default().u8(0x77).sleb(offset).0;
    let mut cfa = place(160);
    cfa.push(6);
    let trampoline = program()
        .def_cfa_expression(&cfa)
        .expression(6, &place(120))
        .expression(7, &place(160))
        .expression(16, &place(168));
    let mut section = functions(&CieSpec { augmentation: "zRS", ..CieSpec::x86_64() }, &[trampoline]);
    let plain = section.cie(&CieSpec::x86_64());
    // The interrupted instruction is the first of its function: one byte lower is another function.
    section.fde(plain, CODE + 0x100, 0x100, &program().def_cfa_offset(0x2000));
    section.fde(plain, CODE + 0x200, 0x100, &program().def_cfa_offset(8));
    section.fde(plain, CODE + 0x300, 0x100, &program().undefined(16));
    let mut words = [0_u64; 32];
    (words[15], words[20], words[21]) = (0xabc, STACK + 0xc0, CODE + 0x200);
    words[24] = CODE + 0x301;
    let (frames, stop) = walk(Registers::new(CODE + 0x10, STACK, 0), &words, module(&section));
    assert_eq!(
        frames,
        [
            (pc(CODE + 0x10), FoundBy::Context),
            (pc(CODE + 0x200), FoundBy::SignalFrame),
            (ra(CODE + 0x301), FoundBy::Cfi),
        ]
    );
    assert_eq!(stop, StopReason::EndOfStack);

    // It may have interrupted a call through a null pointer, which is no end of a stack.
    words[21] = 0;
    let (frames, stop) = walk(Registers::new(CODE + 0x10, STACK, 0), &words, module(&section));
    let last = (ra(CODE + 0x301), FoundBy::BadCall);
    assert_eq!(frames, [(pc(CODE + 0x10), FoundBy::Context), (pc(0), FoundBy::SignalFrame), last]);
    assert_eq!(stop, StopReason::EndOfStack);
}

#[test]
fn walk_reports_every_other_stop_reason() {
    let section = functions(
        &CieSpec::x86_64(),
        &[program(), program().def_cfa_sf(7, 0), program().u8(0x3f), program().def_cfa(10, 0)],
    );
    let start = |function: u64| Registers::new(CODE + 0x100 * function + 4, STACK, 0x1001);
    let (_, stop) = walk(start(0), &[], module(&section));
    assert_eq!(stop, StopReason::UnreadableMemory { address: at(STACK) });
    let (_, stop) = walk(start(2), &[0; 4], module(&section));
    assert_eq!(stop, StopReason::BadUnwindInfo { pc: at(CODE + 0x204) });
    let (_, stop) = walk(start(3), &[0; 4], module(&section));
    assert_eq!(stop, StopReason::UnknownRegister { register: 10 });
    // A frame of no size whose return address is itself: the caller is not above.
    let bytes = (CODE + 0x110).to_le_bytes().repeat(2);
    let memory = SliceMemory::new(at(STACK - 8), &bytes);
    let mut cycle = Walk::new(start(1), memory, module(&section));
    assert_eq!(cycle.by_ref().count(), 1);
    assert_eq!(cycle.stop_reason(), Some(StopReason::NoProgress { pc: at(CODE + 0x104) }));
    // More frames than asked for.
    let bytes = (CODE + 0x10).to_le_bytes().repeat(100);
    let memory = SliceMemory::new(at(STACK), &bytes);
    let mut long = Walk::new(start(0), memory, module(&section)).with_limit(10);
    assert_eq!(long.by_ref().count(), 10);
    assert_eq!(long.stop_reason(), Some(StopReason::Limit));
    // Exactly as many as asked for: nothing is missing.
    let (mut words, frames) = ([CODE + 0x10; 10], 10);
    words[9] = 0;
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let mut exact =
        Walk::new(start(0), SliceMemory::new(at(STACK), &bytes), module(&section)).with_limit(frames);
    assert_eq!(exact.by_ref().count(), 10);
    assert_eq!(exact.stop_reason(), Some(StopReason::EndOfStack));
}

#[test]
fn an_aarch64_leaf_may_share_its_callers_stack_pointer_once() {
    let section = functions(
        &CieSpec::aarch64(),
        &[program(), program().def_cfa_offset(16).offset(29, 2).offset(30, 1), program().undefined(30)],
    );
    let words = [0xbeef_u64, CODE + 0x204 + (0x55 << 48)];
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let mut registers = Registers::<Aarch64>::new(CODE + 4, STACK, 0).with_address_mask((1 << 48) - 1);
    registers.set(aarch64::X30, CODE + 0x110);
    let mut walk = Walk::new(registers, SliceMemory::new(at(STACK), &bytes), module(&section));
    let frames: Vec<Frame> = walk.by_ref().map(|frame| frame.frame).collect();
    assert_eq!(frames, [pc(CODE + 4), ra(CODE + 0x110), ra(CODE + 0x204)]);
    assert_eq!(walk.stop_reason(), Some(StopReason::EndOfStack));
    // A caller that claims to be a leaf too has lost its return address.
    registers.set(aarch64::X30, CODE + 8);
    let mut walk = Walk::new(registers, SliceMemory::new(at(STACK), &bytes), module(&section));
    assert_eq!(walk.by_ref().count(), 2);
    assert_eq!(walk.stop_reason(), Some(StopReason::UnknownRegister { register: 30 }));
}

/// This thread, as /proc shows it, against what libgcc's unwinder says at the same place.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod live {
    use super::*;
    use std::os::unix::fs::FileExt;

    use cairn_unwind::FnMemory;
    use object::{Object, ObjectSection};

    struct LoadedModule {
        range: AddressRange,
        base: u64,
        header: (u64, Vec<u8>),
        frames: (u64, Vec<u8>),
    }

    struct Loaded {
        modules: Vec<LoadedModule>,
        executable: Vec<AddressRange>,
    }

    impl Loaded {
        /// The modules of this process, read from their files.
        fn read() -> Self {
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            let mut loaded = Self { modules: Vec::new(), executable: Vec::new() };
            let mut ranges: Vec<(String, u64, u64)> = Vec::new();
            for line in maps.lines() {
                let fields: Vec<&str> = line.split_whitespace().collect();
                let (start, end) = fields[0].split_once('-').unwrap();
                let (start, end) =
                    (u64::from_str_radix(start, 16).unwrap(), u64::from_str_radix(end, 16).unwrap());
                if fields[1].contains('x') {
                    loaded.executable.push(AddressRange::new(at(start), at(end)));
                }
                let path = fields.get(5).filter(|path| path.starts_with('/')).map(|path| path.to_string());
                match (path, ranges.last_mut()) {
                    (Some(path), Some(last)) if last.0 == path => last.2 = end,
                    (Some(path), _) => ranges.push((path, start, end)),
                    _ => {}
                }
            }
            for (path, start, end) in ranges {
                let Ok(file) = std::fs::read(&path) else { continue };
                let Ok(object) = object::File::parse(&*file) else { continue };
                let section = |name: &str| {
                    let section = object.section_by_name(name)?;
                    Some((start + section.address(), section.data().ok()?.to_vec()))
                };
                if let (Some(header), Some(frames)) = (section(".eh_frame_hdr"), section(".eh_frame")) {
                    let range = AddressRange::new(at(start), at(end));
                    loaded.modules.push(LoadedModule { range, base: start, header, frames });
                }
            }
            loaded
        }
    }

    impl Modules for Loaded {
        fn frame_table(&self, address: AbsoluteAddress) -> Option<FrameTable<'_>> {
            let module = self.modules.iter().find(|module| module.range.contains(address))?;
            assert!(module.base <= address.value());
            let section = |part: &'static str| {
                let (address, bytes) = if part == "header" { &module.header } else { &module.frames };
                Section::new(bytes, at(*address))
            };
            FrameTable::with_header(section("header"), section("frames")).ok()
        }

        fn is_executable(&self, address: AbsoluteAddress) -> bool {
            self.executable.iter().any(|range| range.contains(address))
        }
    }

    unsafe extern "C" {
        fn _Unwind_Backtrace(
            visit: extern "C" fn(*mut core::ffi::c_void, *mut core::ffi::c_void) -> i32,
            data: *mut core::ffi::c_void,
        ) -> i32;
        fn _Unwind_GetIP(context: *mut core::ffi::c_void) -> usize;
    }

    extern "C" fn visit(context: *mut core::ffi::c_void, data: *mut core::ffi::c_void) -> i32 {
        // SAFETY: `data` is the vector that `both_stacks` passes, and `context` is libgcc's own.
        unsafe { (*data.cast::<Vec<u64>>()).push(_Unwind_GetIP(context) as u64) };
        0
    }

    /// The stack of this call, by us and by libgcc, without the frame of this function.
    #[inline(never)]
    fn both_stacks(loaded: &Loaded) -> (Vec<u64>, Vec<u64>, StopReason) {
        let mut theirs: Vec<u64> = Vec::with_capacity(512);
        // SAFETY: the callback gets the vector that it expects, which outlives the call.
        unsafe { _Unwind_Backtrace(visit, (&raw mut theirs).cast()) };
        let (pc, sp, fp): (u64, u64, u64);
        let mut saved = [0_u64; 5];
        // SAFETY: it copies registers into `saved`, which has room for five, and touches nothing
        // else.
        unsafe {
            core::arch::asm!(
                "lea {pc}, [rip]", "mov {sp}, rsp", "mov {fp}, rbp", "mov [{saved}], rbx", "mov [{saved} + 8], r12",
                "mov [{saved} + 16], r13", "mov [{saved} + 24], r14", "mov [{saved} + 32], r15",
                pc = out(reg) pc, sp = out(reg) sp, fp = out(reg) fp,
                saved = in(reg) saved.as_mut_ptr(),
                options(nostack, preserves_flags),
            );
        }
        let mut registers = Registers::<X86_64>::new(pc, sp, fp);
        for (register, value) in [3, 12, 13, 14, 15].into_iter().zip(saved) {
            registers.set(register, value);
        }
        let memory_file = std::fs::File::open("/proc/self/mem").unwrap();
        let memory = FnMemory(|address: AbsoluteAddress, into: &mut [u8]| {
            memory_file.read_exact_at(into, address.value()).ok()
        });
        let mut walk = Walk::new(registers, memory, loaded);
        let ours: Vec<u64> = walk.by_ref().map(|frame| frame.frame.address().unwrap().value()).collect();
        let stop = walk.stop_reason().unwrap();
        (ours[1..].to_vec(), theirs[1..].to_vec(), stop)
    }

    /// Recursion through closures, so that the stack has frames of several shapes.
    #[inline(never)]
    fn deep(depth: u32, loaded: &Loaded, padding: &dyn Fn(u32) -> u64) -> (Vec<u64>, Vec<u64>, StopReason) {
        let large = [padding(depth); 100];
        let result = if depth == 0 {
            both_stacks(loaded)
        } else {
            deep(depth - 1, loaded, &|depth| padding(depth) + 1)
        };
        assert_eq!(std::hint::black_box(large)[99], padding(depth));
        result
    }

    #[test]
    fn walk_of_this_thread_equals_libgcc() {
        let loaded = Loaded::read();
        for depth in [0, 1, 30] {
            let (ours, theirs, stop) = deep(depth, &loaded, &u64::from);
            assert!(ours.len() > depth as usize + 5, "{ours:x?}");
            // libgcc reports one more: the null above the outermost frame, on some versions.
            let theirs: Vec<u64> = theirs.into_iter().filter(|&address| address != 0).collect();
            assert_eq!(ours, theirs, "{stop}");
            assert_eq!(stop, StopReason::EndOfStack);
        }
    }
}

/// Recognizes the frame of a signal on AArch64 Linux, whose trampoline has no tables. The two words
/// that it holds twice identify it.
#[test]
fn a_signal_frame_of_aarch64_is_known_by_its_form() {
    const SP: u64 = 0x7000;
    const RECORD: u64 = SP + 4688;
    let mut bytes = vec![0_u8; 8192];
    let mut put = |address: u64, value: u64| {
        let at = (address - SP) as usize;
        bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
    };
    for register in 0..31 {
        put(SP + 312 + 8 * register, 0x100 + register);
    }
    let (interrupted_pc, interrupted_sp) = (0x40_2000, SP + 5000);
    put(SP + 312 + 8 * 30, 0x40_3000);
    put(SP + 560, interrupted_sp);
    put(SP + 568, interrupted_pc);
    put(RECORD, 0x100 + 29);
    put(RECORD + 8, 0x40_3000);
    let program = OneModule::new(AddressRange::new(at(0x40_0000), at(0x50_0000)), None);
    let walk = |bytes: &[u8]| {
        let memory = SliceMemory::new(at(SP), bytes);
        let registers = Registers::<Aarch64>::new(0x40_1000, SP, RECORD);
        Walk::new(registers, memory, program).from_return_address().nth(1)
    };
    let frame = walk(&bytes).expect("the interrupted frame");
    assert_eq!(frame.frame, Frame::ProgramCounter(at(interrupted_pc)));
    assert_eq!(frame.found_by, FoundBy::SignalFrame);
    assert_eq!(
        (frame.registers.sp(), frame.registers.value(aarch64::X30)),
        (interrupted_sp, Some(0x40_3000))
    );
    assert_eq!(frame.registers.value(19), Some(0x100 + 19));
    // One of the words differs: it is a frame record like any other.
    bytes[(RECORD - SP) as usize] ^= 1;
    assert_eq!(walk(&bytes).map(|frame| frame.found_by), Some(FoundBy::FramePointer));
}
