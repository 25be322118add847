//! Any text as the mappings of a process and any bytes as its memory: modules lie where mappings
//! say and do not overlap, and every stack has an end and a reason.
//!
//! The input is the text, an empty line, and the memory, which lies at `MEMORY`.
#![no_main]

use cairn_format::AbsoluteAddress;
use cairn_memory::process::{ModuleMap, NoRegisters, Thread, ThreadRegisters, ThreadSource, parse_mappings};
use cairn_unwind::SliceMemory;

const MEMORY: u64 = 0x40_0000;
const LIMIT: u32 = 1000;

struct Process<'a> {
    modules: ModuleMap,
    memory: SliceMemory<'a>,
}

impl<'a> ThreadSource for Process<'a> {
    type Memory = SliceMemory<'a>;

    fn threads(&self) -> &[Thread] {
        &[]
    }

    fn memory(&self) -> &SliceMemory<'a> {
        &self.memory
    }

    fn modules(&self) -> &ModuleMap {
        &self.modules
    }
}

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let text_end = input.windows(2).position(|pair| pair == b"\n\n").unwrap_or(0);
    let (text, bytes) = input.split_at(text_end);
    let memory = SliceMemory::new(AbsoluteAddress::new(MEMORY), bytes);
    let mappings = parse_mappings(text);
    assert!(mappings.len() <= 1 + text.len() / 20);
    let modules = ModuleMap::new(mappings, &memory, None);
    let mask = modules.address_mask();
    assert!(modules.modules().is_sorted_by(|one, next| one.range().end <= next.range().start));
    for module in modules.modules() {
        let start = module.range().start;
        assert!(modules.mapping_at(start).is_some_and(|mapping| mapping.range.contains(start)));
        assert!(start.value() >> 55 != 0 || start.value() & mask == start.value());
        assert!(modules.module_at(start).is_none_or(|found| found.range().contains(start)));
    }
    let process = Process { modules, memory };
    // The last bytes are registers as well as memory.
    let tail = |length: usize| bytes.get(bytes.len().saturating_sub(length)..).unwrap_or_default();
    let threads =
        [ThreadRegisters::from_x86_64(tail(27 * 8)), ThreadRegisters::from_aarch64(tail(34 * 8), mask)];
    for registers in threads.into_iter().map(|found| found.ok_or(NoRegisters::Ended)) {
        let Ok(registers) = registers else { continue };
        let stack = process.stack(&registers, LIMIT);
        assert!(!stack.frames.is_empty() && stack.frames.len() <= LIMIT as usize);
    }
});
