//! Finds blocks in memory images: conformance vectors, synthesized cores, and this program itself.
#![cfg(target_os = "linux")]

#[path = "../../cairn-memory/tests/support/core_file.rs"]
mod core_file;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use cairn_analysis::heap::CoreStacks;
use cairn_format::{AbsoluteAddress, Frame, WordSize};
use cairn_memory::heap::{
    Annotated, BlockLayout, ChunkState, Damage, FindOptions, GlibcHeap, Holder, NearPlace, Reachability,
    References,
};
use cairn_memory::image::{Finding, Image, ImageError, Machine, OpenOptions, RawFile};
use cairn_memory::process::{StopReason, ThreadSource};
use cairn_wire::heapblock::{
    Anchor, ByteOrder, Header, StackReference, guard, inline_stack,
    stack_table::{Entry, FrameKind, Head},
};
use cairn_wire::heapprof::{HeapprofLayout, Search};
use core_file::{CoreFile, Note, Segment};

const LITTLE_64: Machine = Machine { word_size: WordSize::Bits64, byte_order: ByteOrder::LittleEndian };
const MACHINES: [Machine; 4] = [
    LITTLE_64,
    Machine { word_size: WordSize::Bits32, byte_order: ByteOrder::LittleEndian },
    Machine { word_size: WordSize::Bits64, byte_order: ByteOrder::BigEndian },
    Machine { word_size: WordSize::Bits32, byte_order: ByteOrder::BigEndian },
];

fn at(address: u64) -> AbsoluteAddress {
    AbsoluteAddress::new(address)
}

/// A file that is removed at the end of the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str, bytes: &[u8]) -> Self {
        let path = std::env::temp_dir().join(format!("cairn-core-{}-{name}", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn raw(name: &str, parts: &[(u64, &[u8])], machine: Machine) -> Image {
    let files: Vec<Scratch> =
        parts.iter().map(|(address, bytes)| Scratch::new(&format!("{name}-{address:x}"), bytes)).collect();
    let raw: Vec<RawFile> = files
        .iter()
        .zip(parts)
        .map(|(file, (address, _))| RawFile { path: file.0.clone(), load_address: at(*address) })
        .collect();
    Image::open_raw(&raw, machine, &OpenOptions::default()).unwrap()
}

fn open(bytes: &[u8]) -> Result<Image, ImageError> {
    Image::from_bytes(bytes.to_vec(), Path::new("a core"), &OpenOptions::default())
}

/// Memory into which blocks are written.
struct Memory {
    start: u64,
    bytes: Vec<u8>,
    machine: Machine,
}

impl Memory {
    fn new(start: u64, length: usize, machine: Machine) -> Self {
        Self { start, bytes: vec![0; length], machine }
    }

    fn put(&mut self, address: u64, bytes: &[u8]) {
        let offset = (address - self.start) as usize;
        self.bytes[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    fn put_word(&mut self, address: u64, value: u64) {
        let order = self.machine.byte_order;
        match self.machine.word_size {
            WordSize::Bits64 => self.put(address, &order.u64_bytes(value)),
            _ => self.put(address, &order.u32_bytes(value as u32)),
        }
    }

    fn put_cairn(&mut self, user: u64, size: u64, stack: StackReference, guarded: bool) -> Header {
        let header = Header::new(size, stack, 4, guarded).unwrap();
        self.put(user - 16, &header.to_bytes(user, self.machine.byte_order));
        if guarded {
            let pattern: Vec<u8> = guard::pattern(size).collect();
            self.put(user + size, &pattern);
        }
        header
    }

    fn image(&self, name: &str) -> Image {
        raw(name, &[(self.start, &self.bytes)], self.machine)
    }
}

#[test]
fn heapprof_blocks_match_conformance_vectors() {
    let text =
        std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/vectors/heapprof.json")).unwrap();
    let vectors: serde_json::Value = serde_json::from_slice(&text).unwrap();
    let mut compared = 0;
    for case in vectors["cases"].as_array().unwrap() {
        let name = case["id"].as_str().unwrap();
        let is_wide = case["word_bits"] == 64;
        let is_big = case["endian"] == "big";
        let memory = match case["memory_hex"].as_str() {
            Some(hex) => {
                let digit = |index: usize| u8::from_str_radix(&hex[index..index + 2], 16).unwrap();
                (0..hex.len()).step_by(2).map(digit).collect()
            }
            None => {
                let file = case["memory_file"].as_str().unwrap();
                let directory = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/vectors"));
                std::fs::read(directory.join(file)).unwrap()
            }
        };
        let layout = match (is_wide, is_big) {
            (true, false) => HeapprofLayout::LittleEndian64,
            (true, true) => HeapprofLayout::BigEndian64,
            (false, false) => HeapprofLayout::LittleEndian32,
            (false, true) => HeapprofLayout::BigEndian32,
        };
        let machine = Machine {
            word_size: if is_wide { WordSize::Bits64 } else { WordSize::Bits32 },
            byte_order: if is_big { ByteOrder::BigEndian } else { ByteOrder::LittleEndian },
        };
        let start = 0x1000_0000;
        let image = raw(name, &[(start, &memory)], machine);
        let found = Annotated::find(&image, &FindOptions::only(BlockLayout::Heapprof));
        let mut blocks: Vec<(u64, u64, Vec<Frame>)> = found
            .blocks()
            .iter()
            .map(|block| (block.user_address, block.size_bytes, found.stacks().raw(block.stack).to_vec()))
            .collect();
        let mut expected: Vec<(u64, u64, Vec<Frame>)> = Search::robust(layout)
            .blocks(&memory)
            .map(|block| {
                let frames = block.callers().map(Frame::ReturnAddress).collect();
                (start + block.user_offset(), block.size_bytes(), frames)
            })
            .collect();
        blocks.sort_by_key(|block| block.0);
        expected.sort_by_key(|block| block.0);
        assert_eq!(blocks, expected, "{name}");
        compared += blocks.len();
    }
    assert!(compared > 50, "{compared}");
}

#[test]
fn blocks_are_found_across_search_windows() {
    // At the ends of windows of 512 KiB, which overlap by 1 KiB.
    let window = (512 << 10) - 1024;
    for edge in [window, 512 << 10, 2 * window] {
        let mut memory = Memory::new(0x10_0000, 3 * window, LITTLE_64);
        let users: Vec<u64> = (0..64).map(|index| 0x10_0000 + edge as u64 - 1024 + index * 48).collect();
        for &user in &users {
            memory.put_cairn(user, 20, StackReference::Tag(7), false);
        }
        let found = Annotated::find(&memory.image(&format!("windows-{edge}")), &FindOptions::default());
        let addresses: Vec<u64> = found.blocks().iter().map(|block| block.user_address).collect();
        assert_eq!(addresses, users);
        assert_eq!(found.scanned_bytes(), 3 * window as u64);
    }
}

#[test]
fn cairn_blocks_have_stacks_on_every_machine() {
    for machine in MACHINES {
        let base = 0x2000_0000;
        let mut memory = Memory::new(base, 0x4000, machine);
        let order = machine.byte_order;
        // A table of two segments of two entries: stack 3 is main, main -> load.
        let table = base + 0x1000;
        let head = Head { segment_entries_log2: 1, end: 4, segment_count: 2 };
        memory.put(table, &head.to_bytes(order));
        for (segment, place) in [(0, base + 0x1100), (1, base + 0x1200)] {
            memory.put(table + 32 + segment * 8, &order.u64_bytes(place));
        }
        let entry = |address, parent| Entry { address, parent, kind: FrameKind::ReturnAddress };
        memory.put(base + 0x1110, &entry(0x40_0100, 0).to_bytes(order));
        memory.put(base + 0x1200, &entry(0x40_0200, 1).to_bytes(order));
        memory.put(base + 0x1210, &entry(0x40_0300, 2).to_bytes(order));
        let anchor = Anchor {
            layout: BlockLayout::Cairn,
            own_address: base + 0x800,
            parameter: 1,
            lists_address: 0,
            list_count: 0,
            list_stride_bytes: 0,
            stack_table_address: table,
        };
        memory.put(base + 0x800, &anchor.to_bytes(order));
        memory.put_cairn(base + 0x2010, 100, StackReference::Number(3), true);
        // Inline stack: two frames in the Compact Backtrace Format for 32 bits: absolute, then the
        // end.
        let mut buffer = [0; 64];
        let mut sink = cairn_format::SliceSink::new(&mut buffer);
        let frames = [0x40_0500, 0x40_0400].map(|address| Frame::ReturnAddress(at(address)));
        cairn_wire::cbf::encode(frames, machine.word_size, cairn_wire::cbf::CbfDialect::Strict, &mut sink)
            .unwrap();
        let bytes = sink.written().to_vec();
        let user = base + 0x2200;
        memory.put(user - 16 - bytes.len() as u64, &bytes);
        memory.put_cairn(user, 8, inline_stack::reference(&bytes).unwrap(), false);
        memory.put_cairn(base + 0x2400, 1, StackReference::Tag(0x40_0600), false);
        memory.put_cairn(base + 0x2500, 2, StackReference::None, false);
        // A freed block, and a copied header, which is invalid at its address.
        let header = memory.put_cairn(base + 0x2600, 64, StackReference::None, false);
        let mut words = header.to_words(base + 0x2600);
        words[3] = Header::freed(words[3]);
        let freed: Vec<u8> = words.iter().flat_map(|word| order.u32_bytes(*word)).collect();
        memory.put(base + 0x25f0, &freed);
        memory.put(base + 0x2700, &header.to_bytes(base + 0x2600, order));

        let image = memory.image(&format!("stacks-{machine:?}").replace([' ', '{', '}', ':'], ""));
        let found = Annotated::find(&image, &FindOptions::default());
        let reported: Vec<(u64, u64, Vec<u64>)> = found
            .blocks()
            .iter()
            .map(|block| {
                let frames = found.stacks().frames(block.stack).iter().filter_map(|frame| frame.address());
                (block.user_address - base, block.size_bytes, frames.map(AbsoluteAddress::value).collect())
            })
            .collect();
        let expected = vec![
            (0x2010, 100, vec![0x40_0300, 0x40_0200, 0x40_0100]),
            (0x2200, 8, vec![0x40_0500, 0x40_0400]),
            (0x2400, 1, vec![0x40_0600]),
            (0x2500, 2, vec![]),
        ];
        assert_eq!(reported, expected, "{machine:?}");
        assert_eq!(found.freed_count(), 1);
        assert_eq!(found.anchors(), [anchor]);
        assert_eq!(found.damage(&image), []);
    }
}

#[test]
fn damage_names_the_overflowing_block() {
    let base = 0x5000_0000;
    let mut memory = Memory::new(base, 0x2000, LITTLE_64);
    memory.put_cairn(base + 0x110, 13, StackReference::Tag(0x11), true);
    memory.put_cairn(base + 0x210, 16, StackReference::Tag(0x22), false);
    memory.put_cairn(base + 0x230, 16, StackReference::Tag(0x33), false);
    memory.put_cairn(base + 0x310, 400, StackReference::Tag(0x44), false);
    memory.put_cairn(base + 0x410, 16, StackReference::Tag(0x55), false);
    memory.put_cairn(base + 0x1f10, 0x1000, StackReference::Tag(0x66), false);
    // One byte past 13, and four past 16, which overwrite the next header's check.
    memory.put(base + 0x110 + 13, &[0]);
    memory.put(base + 0x220, b"AAAA");
    // A header-like pattern where no block can begin.
    memory.put_cairn(base + 0x434, 16, StackReference::Tag(0x77), false);
    memory.put(base + 0x424, b"AAAA");
    let image = memory.image("damage");
    let found = Annotated::find(&image, &FindOptions::default());
    let damage = found.damage(&image);
    let reported: Vec<(u64, u64)> =
        damage.iter().map(|damage| (damage.address() - base, damage.block().user_address - base)).collect();
    assert_eq!(reported, [(0x110, 0x110), (0x230, 0x210), (0x410, 0x310), (0x1f10, 0x1f10)]);
    assert!(matches!(damage[0], Damage::TailOverwritten { bytes: 1, .. }));
    assert!(matches!(damage[1], Damage::HeaderOverwritten { layout: BlockLayout::Cairn, .. }));
    assert!(matches!(damage[2], Damage::Overlap { .. }));
    assert!(matches!(damage[3], Damage::PastMemory { .. }));

    let near =
        |address: u64| found.near(base + address).map(|near| (near.block.user_address - base, near.place));
    assert_eq!(near(0x110), Some((0x110, NearPlace::Inside(0))));
    assert_eq!(near(0x11c), Some((0x110, NearPlace::Inside(12))));
    assert_eq!(near(0x11d), Some((0x110, NearPlace::Behind(0))));
    assert_eq!(near(0x205), Some((0x210, NearPlace::InAnnotation(11))));
    assert_eq!(near(0x50), None);
}

#[test]
fn lws_blocks_are_found_by_their_list() {
    for machine in MACHINES {
        let word = machine.word_size.bytes() as u64;
        let base = 0x3000_0000;
        let mut memory = Memory::new(base, 0x2000, machine);
        let owner = base + 0x80;
        let nodes = [base + 0x400, base + 0x600, base + 0x900];
        for (index, &node) in nodes.iter().enumerate() {
            let frames = [0x40_1000 + index as u64 * 64, 0x40_2000];
            let mut buffer = [0; 64];
            let mut sink = cairn_format::SliceSink::new(&mut buffer);
            cairn_wire::lws::encode(&frames.map(at), 100 + index as u64, &mut sink).unwrap();
            let blob = sink.written().to_vec();
            memory.put(node - blob.len() as u64, &blob);
            memory.put_word(node, if index == 0 { 0 } else { nodes[index - 1] });
            memory.put_word(node + word, nodes.get(index + 1).copied().unwrap_or(0));
            memory.put_word(node + 2 * word, owner);
        }
        memory.put_word(owner, nodes[2]);
        memory.put_word(owner + word, nodes[0]);
        memory.put_word(owner + 2 * word, 3);
        let found = Annotated::find(
            &memory.image(&format!("lws-{}-{:?}", word, machine.byte_order)),
            &FindOptions::default(),
        );
        let reported: Vec<(u64, u64, Option<BlockLayout>)> =
            found.blocks().iter().map(|block| (block.user_address, block.size_bytes, block.layout)).collect();
        let expected: Vec<_> = nodes
            .iter()
            .zip(100..)
            .map(|(node, size)| (node + 3 * word, size, Some(BlockLayout::Lws)))
            .collect();
        assert_eq!(reported, expected, "{machine:?}");
        let frames: Vec<Option<AbsoluteAddress>> =
            found.stacks().frames(found.blocks()[1].stack).iter().map(|frame| frame.address()).collect();
        assert_eq!(frames, [Some(at(0x40_1040)), Some(at(0x40_2000))]);
    }
}

/// Five blocks on a list; the second and the fourth have dropped their stacks.
fn list_with_given_up_blocks(machine: Machine) -> (Memory, Vec<u64>) {
    let word = machine.word_size.bytes() as u64;
    let base = 0x3000_0000;
    let mut memory = Memory::new(base, 0x2000, machine);
    let owner = base + 0x80;
    let nodes: Vec<u64> = (0..5).map(|index| base + 0x400 + index * 0x100).collect();
    for (index, &node) in nodes.iter().enumerate() {
        let mut buffer = [0; 64];
        let mut sink = cairn_format::SliceSink::new(&mut buffer);
        cairn_wire::lws::encode(&[at(0x40_1000)], 100 + index as u64, &mut sink).unwrap();
        let blob = if index % 2 == 1 { &[0, 0][..] } else { sink.written() };
        memory.put(node - blob.len() as u64, blob);
        memory.put_word(node, if index == 0 { 0 } else { nodes[index - 1] });
        memory.put_word(node + word, nodes.get(index + 1).copied().unwrap_or(0));
        memory.put_word(node + 2 * word, owner);
    }
    memory.put_word(owner, nodes[4]);
    memory.put_word(owner + word, nodes[0]);
    memory.put_word(owner + 2 * word, 5);
    let anchor = Anchor {
        layout: BlockLayout::Lws,
        own_address: base + 8,
        parameter: 16,
        lists_address: owner,
        list_count: 1,
        list_stride_bytes: 3 * word as u32,
        stack_table_address: 0,
    };
    memory.put(base + 8, &anchor.to_bytes(machine.byte_order));
    (memory, nodes)
}

#[test]
fn lws_blocks_without_stacks_are_found_by_anchor() {
    for machine in MACHINES {
        let word = machine.word_size.bytes() as u64;
        let (mut memory, nodes) = list_with_given_up_blocks(machine);
        let name = |what: &str| format!("lws-{what}-{word}-{:?}", machine.byte_order);
        let found_in = |memory: &Memory, what: &str| -> Vec<(u64, u64)> {
            let found = Annotated::find(&memory.image(&name(what)), &FindOptions::default());
            found.blocks().iter().map(|block| (block.user_address - 3 * word, block.size_bytes)).collect()
        };
        let sizes = [100, 0, 102, 0, 104];
        let expected: Vec<(u64, u64)> = nodes.iter().copied().zip(sizes).collect();
        assert_eq!(found_in(&memory, "gave-up"), expected);

        // Break the list in the middle: both ends are followed up to there.
        memory.put_word(nodes[2], 0x41);
        memory.put_word(nodes[2] + word, 0x41);
        let ends: Vec<(u64, u64)> = [0, 1, 3, 4].map(|index| expected[index]).to_vec();
        assert_eq!(found_in(&memory, "cut"), ends);

        // Make the list cyclic.
        memory.put_word(nodes[4] + word, nodes[3]);
        memory.put_word(nodes[2], nodes[1]);
        memory.put_word(nodes[2] + word, nodes[3]);
        assert!(found_in(&memory, "circle").len() <= 5);
    }
}

/// Builds a core with a thread, a heap of blocks, a stack, and omitted code.
fn usual_core(machine: Machine) -> (CoreFile, u64) {
    let mut heap = Memory::new(0x60_0000, 0x8000, machine);
    for index in 0..100 {
        heap.put_cairn(0x60_0100 + index * 0x100, 0x40, StackReference::Tag(0x40_0123), true);
    }
    // The stack refers to the first block, the first to the second; nothing refers to the others.
    heap.put_word(0x60_0100, 0x60_0200);
    let mut stack = Memory::new(0x7000_0000, 0x1000, machine);
    stack.put_word(0x7000_0800, 0x60_0110);
    stack.put_word(0x7000_0100, 0x60_0300);
    let mut core = CoreFile::new(machine);
    core.notes = vec![
        Note::status(machine, 42, 11, 0x40_0100, 0x7000_0400),
        Note::info(machine, 42, "prog", "prog -x"),
    ];
    core.segments = vec![
        Segment { address: 0x40_0000, flags: 5, bytes: Vec::new(), memory_bytes: 0x1000 },
        Segment { address: 0x60_0000, flags: 6, bytes: heap.bytes, memory_bytes: 0x8000 },
        Segment { address: 0x7000_0000, flags: 6, bytes: stack.bytes, memory_bytes: 0x1000 },
    ];
    (core, 100)
}

#[test]
fn core_of_every_machine_is_read() {
    for machine in MACHINES {
        let (core, blocks) = usual_core(machine);
        let image = open(&core.bytes()).unwrap();
        assert_eq!(image.machine(), machine);
        assert_eq!(image.findings(), [], "{machine:?}");
        let about = image.about();
        assert_eq!(
            (about.process, about.signal, about.command_line.as_str()),
            (Some(42), Some(11), "prog -x")
        );
        let [thread] = image.threads() else { panic!("{:?}", image.threads()) };
        assert_eq!((thread.id, thread.name.as_str()), (42, "prog"));
        assert_eq!((thread.pc, thread.sp), (Some(at(0x40_0100)), Some(at(0x7000_0400))), "{machine:?}");
        let found = Annotated::find(&image, &FindOptions::default());
        assert_eq!(found.blocks().len() as u64, blocks);
        assert_eq!(found.live_bytes(), 100 * 0x40);

        let reach = Reachability::find(&image, found.blocks(), None);
        let leaked: Vec<usize> = reach.leaked().collect();
        // Values below the stack pointer are not references.
        assert_eq!(leaked, (2..100).collect::<Vec<usize>>(), "{machine:?}");
        let references = References::find(&image, 0x60_0100, 0x60_0140, 10);
        assert_eq!(
            references.found.iter().map(|found| found.holder).collect::<Vec<_>>(),
            [Holder::Memory(0x7000_0800)]
        );

        let stacks = CoreStacks::new(&image, found.stacks(), &[], &[]);
        let profile = stacks.profile(found.blocks());
        assert_eq!((profile.totals.live_blocks, profile.totals.live_bytes), (100, 6400));
    }
}

#[test]
fn core_truncated_anywhere_is_read_and_reported() {
    let (core, blocks) = usual_core(LITTLE_64);
    let whole = core.bytes();
    let mut last = 0;
    for length in
        (0..whole.len()).step_by(509).chain((0..whole.len()).step_by(4096)).collect::<BTreeSet<usize>>()
    {
        match open(&whole[..length]) {
            Err(error) => assert!(length < 64, "{length}: {error}"),
            Ok(image) => {
                assert!(!image.findings().is_empty(), "{length}");
                for finding in image.findings() {
                    let text = finding.to_string();
                    assert!(text.len() > 20, "{text}");
                }
                let found = Annotated::find(&image, &FindOptions::default()).blocks().len();
                assert!(found >= last && found as u64 <= blocks, "{length}: {found} after {last}");
                last = found;
            }
        }
    }
    assert!(last as u64 >= blocks - 1, "{last}");
    assert_eq!(open(&whole).unwrap().findings(), []);
}

#[test]
fn core_with_impossible_numbers_is_partly_read() {
    let found = |core: &[u8]| {
        let image = open(core).unwrap();
        (Annotated::find(&image, &FindOptions::default()).blocks().len(), image.findings().to_vec())
    };
    // Two segments at one address: the first is used.
    let (mut core, blocks) = usual_core(LITTLE_64);
    core.segments.push(Segment {
        address: 0x60_4000,
        flags: 6,
        bytes: vec![0xff; 0x8000],
        memory_bytes: 0x8000,
    });
    let (count, findings) = found(&core.bytes());
    assert_eq!(count as u64, blocks);
    assert!(matches!(findings[..], [Finding::Overlap { bytes: 0x4000, .. }]), "{findings:?}");

    // More segments stated than present: the present ones are read.
    let (core, _) = usual_core(LITTLE_64);
    let mut bytes = core.bytes();
    bytes[56..58].copy_from_slice(&0xfffe_u16.to_le_bytes());
    assert!(
        found(&bytes).1.iter().any(|finding| matches!(finding, Finding::ShortTable { stated: 0xfffe, .. }))
    );

    // A segment at the end of the address space.
    let (mut core, _) = usual_core(LITTLE_64);
    core.segments.push(Segment {
        address: u64::MAX - 0xff,
        flags: 6,
        bytes: vec![0; 0x1000],
        memory_bytes: 0x1000,
    });
    let (count, findings) = found(&core.bytes());
    assert_eq!(count as u64, blocks);
    assert!(matches!(findings[..], [Finding::ImpossibleSegment { .. }]), "{findings:?}");

    // Notes that extend past the end.
    let (mut core, _) = usual_core(LITTLE_64);
    core.notes.push(Note { kind: 0x4649_4c45, value: vec![0xff; 64] });
    core.stated_note_bytes = Some(1 << 40);
    let (count, findings) = found(&core.bytes());
    assert_eq!(count as u64, blocks);
    assert!(findings.iter().any(|finding| matches!(finding, Finding::NoteCut { .. })), "{findings:?}");
    assert!(findings.iter().any(|finding| matches!(finding, Finding::ShortTable { .. })), "{findings:?}");
}

#[test]
fn core_sparse_terabyte_takes_no_time_or_memory() {
    let (mut core, _) = usual_core(LITTLE_64);
    core.segments.truncate(1);
    let tail = {
        let mut memory = Memory::new(0x100_0000_0000, 0x1000, LITTLE_64);
        memory.put_cairn(0x100_0000_0200, 99, StackReference::None, false);
        memory.bytes
    };
    let mut bytes = core.bytes();
    let terabyte = 1_u64 << 40;
    let offset = core.add_stated_segment(&mut bytes, 0, terabyte + 0x1000);
    let file = Scratch::new("sparse", &bytes);
    let handle = std::fs::File::options().write(true).open(&file.0).unwrap();
    if handle.set_len(offset + terabyte + 0x1000).is_err() {
        // Skipped on file systems without files of this length.
        return;
    }
    std::os::unix::fs::FileExt::write_all_at(&handle, &tail, offset + terabyte).unwrap();
    let image = Image::open(&file.0, &OpenOptions::default()).unwrap();
    let found = Annotated::find(&image, &FindOptions::default());
    // The segment's load address is 0, so its last page is at one terabyte.
    assert_eq!(found.blocks().iter().map(|block| block.user_address).collect::<Vec<_>>(), [0x100_0000_0200]);
    assert!(found.scanned_bytes() < 1 << 20, "{}", found.scanned_bytes());
}

#[test]
fn core_compressed_equals_plain() {
    let (core, blocks) = usual_core(LITTLE_64);
    let whole = core.bytes();
    let packed = zstd::encode_all(&*whole, 3).unwrap();
    let file = Scratch::new("packed.zst", &packed);
    let image = Image::open(&file.0, &OpenOptions::default()).unwrap();
    assert_eq!(Annotated::find(&image, &FindOptions::default()).blocks().len() as u64, blocks);
    assert_eq!(image.findings(), []);
    let cut = Scratch::new("cut.zst", &packed[..packed.len() * 9 / 10]);
    match Image::open(&cut.0, &OpenOptions::default()) {
        Ok(image) => assert!(matches!(image.findings()[0], Finding::PackedCut { .. })),
        // So small a file may unpack to nothing.
        Err(error) => assert!(matches!(error, ImageError::NotAnImage { .. }), "{error}"),
    }
}

#[test]
fn core_of_another_kind_is_refused_with_advice() {
    let own = std::env::current_exe().unwrap();
    let errors = [
        Image::open(&own, &OpenOptions::default()).unwrap_err(),
        Image::open(Path::new("/nowhere/core"), &OpenOptions::default()).unwrap_err(),
        Image::open(Path::new("/dev/null"), &OpenOptions::default()).unwrap_err(),
        open(b"").unwrap_err(),
        open(b"\x7fELF").unwrap_err(),
        open(b"MDMP").unwrap_err(),
        open(b"hello").unwrap_err(),
    ];
    for error in errors {
        let text = error.to_string();
        assert!(text.len() > 15 && !text.contains("Error {"), "{text}");
    }
}

#[test]
fn raw_memory_with_holes_is_searched() {
    let mut low = Memory::new(0x2000_0000, 0x1000, MACHINES[1]);
    low.put_cairn(0x2000_0100, 5, StackReference::Tag(1), false);
    let mut high = Memory::new(0xc000_0004, 0x1000, MACHINES[1]);
    high.put_cairn(0xc000_0204, 6, StackReference::Tag(2), false);
    let image = raw("holes", &[(low.start, &low.bytes), (high.start, &high.bytes)], MACHINES[1]);
    let found = Annotated::find(&image, &FindOptions::default());
    let reported: Vec<u64> = found.blocks().iter().map(|block| block.user_address).collect();
    assert_eq!(reported, [0x2000_0100, 0xc000_0204]);
    assert_eq!(image.word(0x2000_0ffe), None);
    assert_eq!(image.word(0x2000_1000), None);
}

/// A minidump built by hand: system, one thread with its stack, one module, memory.
#[test]
fn minidump_is_read() {
    let mut heap = Memory::new(0x60_0000, 0x1000, LITTLE_64);
    heap.put_cairn(0x60_0100, 77, StackReference::Tag(0x40_0001), false);
    let bytes =
        core_file::minidump(&[(0x7000_0000, vec![1; 256]), (0x60_0000, heap.bytes)], 0x7000_0010, 0x40_1234);
    let image = open(&bytes).unwrap();
    assert_eq!(image.findings(), []);
    assert_eq!(image.about().machine, Some("x86-64"));
    let [thread] = image.threads() else { panic!("{:?}", image.threads()) };
    assert_eq!((thread.id, thread.pc, thread.sp), (7, Some(at(0x40_1234)), Some(at(0x7000_0010))));
    assert_eq!(image.modules().len(), 1);
    assert_eq!(image.modules()[0].path, Path::new("/usr/bin/prog"));
    assert_eq!(image.modules()[0].build_id, [1, 2, 3, 4]);
    let found = Annotated::find(&image, &FindOptions::default());
    assert_eq!(found.blocks().iter().map(|block| block.size_bytes).collect::<Vec<_>>(), [77]);
    for length in 0..bytes.len() {
        if let Ok(image) = open(&bytes[..length]) {
            let _ = Annotated::find(&image, &FindOptions::default());
        }
    }
}

const CHILD: &str = "CAIRN_CORE_TEST_CHILD";

/// Inspected by the next test, as a process of its own: blocks of known sizes, one hidden, some
/// freed.
#[test]
fn child_that_holds_blocks() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let retained: Vec<Vec<u8>> = (0..500).map(|index| vec![index as u8; 5000]).collect();
    let big = vec![1_u8; 3 << 20];
    let hidden = Box::into_raw(Box::new([7_u8; 7777])) as usize;
    let freed: Vec<Vec<u8>> = (0..100).map(|_| vec![1_u8; 9000]).collect();
    let freed_at: Vec<usize> = freed.iter().map(|block| block.as_ptr() as usize).collect();
    let _keep_apart = vec![2_u8; 9000];
    drop(freed);
    // Reversed digits are not a pointer.
    let reversed: String = format!("{hidden:x}").chars().rev().collect();
    let (retained_at, big_at, freed_at) =
        (retained[250].as_ptr() as usize, big.as_ptr() as usize, freed_at[50]);
    writeln!(std::io::stdout(), "held: {retained_at:x} {big_at:x} {reversed} {freed_at:x}").unwrap();
    let mut line = String::new();
    std::hint::black_box((&retained, &big));
    std::io::stdin().read_line(&mut line).unwrap();
    std::hint::black_box((&retained, &big));
}

#[test]
fn heap_of_a_running_program_is_read() {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_that_holds_blocks", "--nocapture", "--test-threads=1"])
        .env(CHILD, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    // The test runner writes on the same line before it.
    let reported = lines.find_map(|line| Some(line.split_once("held: ")?.1.to_owned())).unwrap();
    let words: Vec<String> = reported.split_whitespace().map(str::to_owned).collect();
    let address = |text: &str| u64::from_str_radix(text, 16).unwrap();
    let reversed: String = words[2].chars().rev().collect();
    let (retained, big, hidden, freed) =
        (address(&words[0]), address(&words[1]), address(&reversed), address(&words[3]));

    let looked = Image::of_process(child.id(), |image| {
        assert_eq!(Annotated::find(image, &FindOptions::default()).blocks(), []);
        let heap = GlibcHeap::find(image).expect("a program with glibc's malloc");
        assert_eq!(heap.damage(), []);
        let chunk = |address| {
            let chunk = heap.chunk_at(address).unwrap();
            (heap.user_part(chunk), chunk.state)
        };
        let ((user, length), state) = chunk(retained);
        assert_eq!((user, state), (retained, ChunkState::InUse));
        assert!((5000..5064).contains(&length), "{length}");
        assert_eq!(chunk(big).1, ChunkState::Mapped);
        assert!(!chunk(freed).1.is_in_use(), "{:?}", chunk(freed));
        let fives = heap
            .sizes()
            .iter()
            .filter(|size| (5000..5064).contains(&size.usable_bytes))
            .map(|size| size.in_use)
            .sum::<u64>();
        assert!(fives >= 500, "{fives}");

        let blocks = heap.blocks();
        let index_of = |address: u64| blocks.iter().position(|block| block.contains(address)).unwrap();
        let reach = Reachability::find(image, &blocks, Some(&heap));
        let leaked: Vec<usize> = reach.leaked().chain(reach.indirectly_leaked()).collect();
        assert!(!leaked.contains(&index_of(retained)) && !leaked.contains(&index_of(big)));
        // A register or a dead stack slot may still refer to the hidden block; then its location is
        // reported.
        if !leaked.contains(&index_of(hidden)) {
            assert!(!References::find(image, hidden, hidden + 7777, 10).found.is_empty());
        }
        let references = References::find(image, retained, retained + 5000, 10);
        assert!(references.found.iter().any(|found| found.value == retained), "{references:?}");
        let walked = ThreadSource::threads(image).iter().map(|thread| {
            let stack = image.stack(thread.registers.as_ref().unwrap(), 1000);
            (stack.frames.len(), stack.stop)
        });
        let walked: Vec<_> = walked.collect();
        assert!(
            walked.iter().any(|(frames, stop)| *frames > 3 && *stop == StopReason::EndOfStack),
            "{walked:?}"
        );
    });
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    child.wait().unwrap();
    looked.unwrap();
}
