//! Builds core files and minidumps by hand, without the layouts of the code that reads them.

use cairn_format::WordSize;
use cairn_memory::image::Machine;
use cairn_wire::heapblock::ByteOrder;

pub(crate) struct Segment {
    pub(crate) address: u64,
    /// 1 code, 2 writable, 4 readable.
    pub(crate) flags: u32,
    pub(crate) bytes: Vec<u8>,
    pub(crate) memory_bytes: u64,
}

pub(crate) struct Note {
    pub(crate) kind: u32,
    pub(crate) value: Vec<u8>,
}

pub(crate) struct CoreFile {
    machine: Machine,
    pub(crate) notes: Vec<Note>,
    pub(crate) segments: Vec<Segment>,
    /// Replaces the true length of the notes.
    pub(crate) stated_note_bytes: Option<u64>,
}

struct Writer {
    machine: Machine,
    bytes: Vec<u8>,
}

impl Writer {
    fn number(&mut self, value: u64, width: usize) {
        let little = value.to_le_bytes();
        let mut bytes = little[..width].to_vec();
        if self.machine.byte_order == ByteOrder::BigEndian {
            bytes.reverse();
        }
        self.bytes.extend(bytes);
    }

    fn word(&mut self, value: u64) {
        self.number(value, if self.machine.word_size == WordSize::Bits64 { 8 } else { 4 });
    }

    fn pad(&mut self, multiple: usize) {
        self.bytes.resize(self.bytes.len().next_multiple_of(multiple), 0);
    }
}

/// The processors of these tests: x86-64 and Arm, in either byte order.
fn processor(machine: Machine) -> u64 {
    if machine.word_size == WordSize::Bits64 { 62 } else { 40 }
}

impl Note {
    /// Builds a `struct elf_prstatus` with zeros except for the arguments.
    pub(crate) fn status(machine: Machine, thread: u64, signal: u64, pc: u64, sp: u64) -> Self {
        let mut writer = Writer { machine, bytes: vec![0; 12] };
        writer.number(signal, 2);
        let is_wide = machine.word_size == WordSize::Bits64;
        writer.bytes.resize(if is_wide { 32 } else { 24 }, 0);
        writer.number(thread, 4);
        writer.bytes.resize(if is_wide { 112 } else { 72 }, 0);
        let (count, pc_at, sp_at) = if is_wide { (27, 16, 19) } else { (18, 15, 13) };
        for index in 0..count {
            writer.word(if index == pc_at {
                pc
            } else if index == sp_at {
                sp
            } else {
                0
            });
        }
        writer.word(0);
        Self { kind: 1, value: writer.bytes }
    }

    /// `struct elf_prpsinfo`.
    pub(crate) fn info(machine: Machine, process: u64, name: &str, command: &str) -> Self {
        let is_wide = machine.word_size == WordSize::Bits64;
        let (process_at, name_at) = if is_wide { (24, 40) } else { (12, 28) };
        let mut writer = Writer { machine, bytes: vec![0; process_at] };
        writer.number(process, 4);
        writer.bytes.resize(name_at, 0);
        for (text, length) in [(name, 16), (command, 80)] {
            let mut bytes = text.as_bytes().to_vec();
            bytes.resize(length, 0);
            writer.bytes.extend(bytes);
        }
        Self { kind: 3, value: writer.bytes }
    }
}

impl CoreFile {
    pub(crate) fn new(machine: Machine) -> Self {
        Self { machine, notes: Vec::new(), segments: Vec::new(), stated_note_bytes: None }
    }

    fn is_wide(&self) -> bool {
        self.machine.word_size == WordSize::Bits64
    }

    fn header_bytes(&self) -> usize {
        let (header, entry) = if self.is_wide() { (64, 56) } else { (52, 32) };
        // Reserves space for one more than the list has.
        header + entry * (self.segments.len() + 2)
    }

    fn program_header(
        &self,
        kind: u64,
        flags: u32,
        offset: u64,
        address: u64,
        file: u64,
        memory: u64,
    ) -> Vec<u8> {
        let mut writer = Writer { machine: self.machine, bytes: Vec::new() };
        writer.number(kind, 4);
        if self.is_wide() {
            writer.number(flags.into(), 4);
        }
        for value in [offset, address, 0, file, memory] {
            writer.word(value);
        }
        if !self.is_wide() {
            writer.number(flags.into(), 4);
        }
        writer.word(0x1000);
        writer.bytes
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut notes = Writer { machine: self.machine, bytes: Vec::new() };
        for note in &self.notes {
            notes.number(5, 4);
            notes.number(note.value.len() as u64, 4);
            notes.number(note.kind.into(), 4);
            notes.bytes.extend(b"CORE\0\0\0\0");
            notes.bytes.extend(&note.value);
            notes.pad(4);
        }
        let notes = notes.bytes;
        let notes_at = self.header_bytes();
        let stated = self.stated_note_bytes.unwrap_or(notes.len() as u64);
        let mut headers = self.program_header(4, 0, notes_at as u64, 0, stated, 0);
        let mut body: Vec<u8> = Vec::new();
        let body_at = (notes_at + notes.len()).next_multiple_of(0x1000);
        for segment in &self.segments {
            let offset = (body_at + body.len()) as u64;
            let length = segment.bytes.len() as u64;
            headers.extend(self.program_header(
                1,
                segment.flags,
                offset,
                segment.address,
                length,
                segment.memory_bytes,
            ));
            body.extend(&segment.bytes);
        }
        let is_big = self.machine.byte_order == ByteOrder::BigEndian;
        let mut file = Writer { machine: self.machine, bytes: b"\x7fELF".to_vec() };
        file.bytes.extend([if self.is_wide() { 2 } else { 1 }, if is_big { 2 } else { 1 }, 1]);
        file.bytes.resize(16, 0);
        file.number(4, 2);
        file.number(processor(self.machine), 2);
        file.number(1, 4);
        file.word(0);
        file.word(if self.is_wide() { 64 } else { 52 });
        file.word(0);
        file.number(0, 4);
        file.number(if self.is_wide() { 64 } else { 52 }, 2);
        file.number(if self.is_wide() { 56 } else { 32 }, 2);
        file.number(1 + self.segments.len() as u64, 2);
        file.bytes.resize(if self.is_wide() { 64 } else { 52 }, 0);
        file.bytes.extend(headers);
        file.bytes.resize(notes_at, 0);
        file.bytes.extend(notes);
        file.bytes.resize(body_at, 0);
        file.bytes.extend(body);
        file.bytes
    }

    /// States one more segment, whose bytes are past the end of the file; returns its offset.
    pub(crate) fn add_stated_segment(&self, bytes: &mut [u8], address: u64, length: u64) -> u64 {
        let offset = (bytes.len() as u64).next_multiple_of(0x1000);
        let header = self.program_header(1, 6, offset, address, length, length);
        let count = 1 + self.segments.len();
        let at = 64 + 56 * count;
        bytes[at..at + 56].copy_from_slice(&header);
        bytes[56..58].copy_from_slice(&(count as u16 + 1).to_le_bytes());
        offset
    }
}

/// Builds an x86-64 minidump with one thread, number 7, and one module; the first range is its
/// stack.
pub(crate) fn minidump(memory: &[(u64, Vec<u8>)], sp: u64, pc: u64) -> Vec<u8> {
    const DIRECTORY: usize = 32;
    let mut file = vec![0_u8; DIRECTORY + 4 * 12];
    let put32 = |file: &mut Vec<u8>, at: usize, value: u64| {
        file[at..at + 4].copy_from_slice(&(value as u32).to_le_bytes())
    };
    file[..4].copy_from_slice(b"MDMP");
    put32(&mut file, 8, 4);
    put32(&mut file, 12, DIRECTORY as u64);

    let mut places = Vec::new();
    for (_, bytes) in memory {
        places.push((file.len() as u64, bytes.len() as u64));
        file.extend(bytes);
    }
    let context = file.len() as u64;
    let mut registers = vec![0_u8; 1232];
    registers[152..160].copy_from_slice(&sp.to_le_bytes());
    registers[248..256].copy_from_slice(&pc.to_le_bytes());
    file.extend(registers);
    let name = file.len() as u64;
    let units: Vec<u8> = "/usr/bin/prog".encode_utf16().flat_map(u16::to_le_bytes).collect();
    file.extend((units.len() as u32).to_le_bytes());
    file.extend(units);
    let record = file.len() as u64;
    file.extend(b"LEpB\x01\x02\x03\x04");

    let mut streams = Vec::new();
    let mut stream = |file: &mut Vec<u8>, kind: u64, bytes: Vec<u8>| {
        streams.push((kind, bytes.len() as u64, file.len() as u64));
        file.extend(bytes);
    };
    let mut system = vec![0; 56];
    system[0] = 9;
    stream(&mut file, 7, system);
    let words = |values: &[(u64, usize)]| -> Vec<u8> {
        values.iter().flat_map(|(value, width)| value.to_le_bytes()[..*width].to_vec()).collect()
    };
    let thread = [(1, 4), (7, 4), (0, 4), (0, 4), (0, 4), (0, 8)];
    let (stack_at, stack_bytes) = places[0];
    let rest = [(memory[0].0, 8), (stack_bytes, 4), (stack_at, 4), (1232, 4), (context, 4)];
    stream(&mut file, 3, words(&[&thread[..], &rest[..]].concat()));
    let mut module = words(&[(1, 4), (0x40_0000, 8), (0x1000, 4), (0, 4), (0, 4), (name, 4)]);
    module.extend(vec![0; 52]);
    module.extend(words(&[(8, 4), (record, 4), (0, 4), (0, 4), (0, 8), (0, 8)]));
    stream(&mut file, 4, module);
    let mut list = words(&[(memory.len() as u64, 4)]);
    for ((address, _), (at, bytes)) in memory.iter().zip(&places) {
        list.extend(words(&[(*address, 8), (*bytes, 4), (*at, 4)]));
    }
    stream(&mut file, 5, list);
    for (index, (kind, length, at)) in streams.into_iter().enumerate() {
        let entry = DIRECTORY + index * 12;
        put32(&mut file, entry, kind);
        put32(&mut file, entry + 4, length);
        put32(&mut file, entry + 8, at);
    }
    file
}
