//! Any bytes as the memory of a CPython interpreter: its lists end, every frame has a code that is
//! there or says that it is not, and stacks with these frames keep their native ones in order.
//!
//! The first byte chooses the version. The rest is the interpreter's data, from `_PyRuntime` on; in
//! it, a word whose highest byte is 0xff is an address in these data.
#![no_main]

use cairn_format::AbsoluteAddress;
use cairn_memory::process::{ModuleMap, Thread, ThreadRegisters, ThreadSource, parse_mappings};
use cairn_memory::python::{MixedFrame, PythonFrames};
use cairn_unwind::SliceMemory;

/// The module: headers, symbols, and behind them the data.
const MODULE: u64 = 0x40_0000;
const DATA_AT: usize = 0x1000;
const DATA: u64 = MODULE + DATA_AT as u64;
const DATA_BYTES: usize = 0x4000;
const LIMIT: u32 = 200;

const VERSIONS: [u32; 9] = [
    0x0307_10f0,
    0x0308_12f0,
    0x0309_12f0,
    0x030a_0df0,
    0x030b_07f0,
    0x030c_01f0,
    0x030d_00f0,
    0x030e_00f0,
    0x0310_00f0,
];

/// Exported names, and their distances from the start of the module.
const SYMBOLS: [(&str, u64); 5] = [
    ("Py_GetVersion", 0x800),
    ("Py_Version", 0xf00),
    ("_PyRuntime", DATA_AT as u64),
    ("PyCode_Type", 0xe00),
    ("_PyEval_EvalFrameDefault", 0x900),
];

struct Process<'a> {
    modules: ModuleMap,
    memory: SliceMemory<'a>,
    threads: Vec<Thread>,
}

impl<'a> ThreadSource for Process<'a> {
    type Memory = SliceMemory<'a>;

    fn threads(&self) -> &[Thread] {
        &self.threads
    }

    fn memory(&self) -> &SliceMemory<'a> {
        &self.memory
    }

    fn modules(&self) -> &ModuleMap {
        &self.modules
    }
}

/// A program that exports the symbols, with one bucket in its hash table.
fn module(version: u32) -> Vec<u8> {
    let mut bytes = vec![0_u8; DATA_AT];
    let put =
        |bytes: &mut Vec<u8>, at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    let word = |value: u64| value.to_le_bytes();
    put(&mut bytes, 0, b"\x7fELF\x02\x01\x01");
    put(&mut bytes, 32, &word(64));
    put(&mut bytes, 54, &56_u16.to_le_bytes());
    put(&mut bytes, 56, &2_u16.to_le_bytes());
    let length = (DATA_AT + DATA_BYTES) as u64;
    for (at, kind, address, size) in [(64, 1_u32, 0, length), (120, 2, 0x200, 0x60)] {
        put(&mut bytes, at, &kind.to_le_bytes());
        put(&mut bytes, at + 8, &word(address));
        put(&mut bytes, at + 16, &word(address));
        put(&mut bytes, at + 32, &word(size));
        put(&mut bytes, at + 40, &word(size));
    }
    for (index, (tag, value)) in [(5, 0x300), (6, 0x400), (4, 0x600), (0, 0)].into_iter().enumerate() {
        put(&mut bytes, 0x200 + index * 16, &word(tag));
        put(&mut bytes, 0x208 + index * 16, &word(value));
    }
    let mut name_at = 1;
    put(&mut bytes, 0x600, &1_u32.to_le_bytes());
    put(&mut bytes, 0x604, &(SYMBOLS.len() as u32 + 1).to_le_bytes());
    put(&mut bytes, 0x608, &1_u32.to_le_bytes());
    for (index, (name, value)) in (1_u32..).zip(SYMBOLS) {
        put(&mut bytes, 0x300 + name_at, name.as_bytes());
        let entry = 0x400 + index as usize * 24;
        put(&mut bytes, entry, &(name_at as u32).to_le_bytes());
        put(&mut bytes, entry + 6, &1_u16.to_le_bytes());
        put(&mut bytes, entry + 8, &word(value));
        put(&mut bytes, entry + 16, &word(0x200));
        name_at += name.len() + 1;
        let next = if index as usize == SYMBOLS.len() { 0 } else { index + 1 };
        put(&mut bytes, 0x60c + index as usize * 4, &next.to_le_bytes());
    }
    put(&mut bytes, 0xe18, &word(MODULE + 0xf10));
    put(&mut bytes, 0xf00, &word(version.into()));
    put(&mut bytes, 0xf10, b"code\0");
    bytes
}

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Some((&choice, data)) = input.split_first() else { return };
    let mut memory = module(VERSIONS[usize::from(choice) % VERSIONS.len()]);
    let mut data = data.get(..DATA_BYTES).unwrap_or(data).to_vec();
    data.resize(DATA_BYTES, 0);
    for word in data.chunks_exact(8) {
        let value = u64::from_le_bytes(word.try_into().unwrap());
        let is_inside = value >> 56 == 0xff;
        let value = if is_inside { DATA + (value & 0xffff) % DATA_BYTES as u64 } else { value };
        memory.extend(value.to_le_bytes());
    }
    let end = MODULE + memory.len() as u64;
    let maps = format!("{MODULE:x}-{end:x} r-xp 00000000 00:01 7 /usr/bin/python3\n");
    let memory = SliceMemory::new(AbsoluteAddress::new(MODULE), &memory);
    let modules = ModuleMap::new(parse_mappings(maps.as_bytes()), &memory, None);
    // The frame pointers in the data are the native stack: rip, rsp, rbp.
    let mut registers = [0_u64; 27];
    (registers[16], registers[19], registers[4], registers[21]) = (MODULE + 0x900, DATA, DATA, DATA + 8);
    let bytes: Vec<u8> = registers.iter().flat_map(|word| word.to_le_bytes()).collect();
    let registers = ThreadRegisters::from_x86_64(&bytes).unwrap();
    let thread = Thread::new(1, "python3".to_owned(), Ok(registers), Some(DATA + 8));
    let process = Process { modules, memory, threads: vec![thread] };
    let python = PythonFrames::find(&process);
    let stack = process.stack(&registers, LIMIT);
    let mixed = python.merge(&process, &process.threads[0], stack.clone(), LIMIT);
    assert!(mixed.frames.len() <= LIMIT as usize);
    let natives = mixed.frames.iter().filter_map(|frame| match frame {
        MixedFrame::Native(native) => Some(native),
        MixedFrame::Python(frame) => {
            assert!(frame.code.is_none() || python.code(*frame).is_some());
            let _ = python.line(*frame);
            None
        }
    });
    assert!(natives.zip(&stack.frames).all(|(found, native)| found == native));
    for note in mixed.notes {
        assert!(!note.to_string().is_empty());
    }
});
