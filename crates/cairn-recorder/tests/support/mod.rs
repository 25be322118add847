//! Reads a spool as plainly as can be, and checks what every spool must keep.

#![allow(dead_code, unreachable_pub, reason = "each test program uses a part")]

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};

use cairn_format::recording::{
    FileHeader, Lane, MarkValue, PcKind, Record, Records, SEGMENT_BYTES, SEGMENT_HEADER_BYTES, STAMP_SHIFT,
    SegmentError, SegmentHeader, control,
};

/// A path for a spool of this test; nothing is there.
pub fn fresh_path(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("cairn-recorder-{name}-{}.cairn", std::process::id()));
    let _ = std::fs::remove_file(&path);
    path
}

#[derive(Clone, Debug, PartialEq)]
pub struct Mark {
    pub thread: u32,
    pub kernel_thread: u32,
    pub counter: u64,
    pub stack: u32,
    pub skip: u16,
    pub value: MarkValue,
    pub text: String,
}

#[derive(Clone, Debug)]
pub struct Module {
    pub loaded: u64,
    pub unloaded: Option<u64>,
    pub start: u64,
    pub end: u64,
    pub bias: u64,
    pub build_id: Vec<u8>,
    pub path: String,
}

/// A heap event, in the order of its thread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Heap {
    Alloc { address: u64, size: u64, epoch: u32, stack: u32 },
    Free { address: u64, ticket: Option<u32> },
    Move { address: u64, ticket: Option<u32> },
}

/// One sequence of segments.
#[derive(Default, Debug)]
pub struct Sequence {
    pub kernel_threads: Vec<u32>,
    /// With the counter of the last stamp before each.
    pub heap: Vec<(u64, Heap)>,
    pub ended: u32,
    pub names: Vec<String>,
    pub segments: u32,
}

#[derive(Debug)]
pub struct Spool {
    pub header: FileHeader,
    pub state: control::State,
    pub lost_events: u64,
    pub facts: Vec<(String, String)>,
    pub marks: Vec<Mark>,
    pub modules: BTreeMap<u32, Module>,
    pub pcs: HashMap<u32, (PcKind, u64, u32)>,
    pub words: HashMap<u32, u32>,
    pub sequences: BTreeMap<(u32, Lane), Sequence>,
    pub overwritten: u64,
    pub ends: u32,
    pub mappings: u32,
    pub segments_used: u64,
}

const HEAD: u32 = 1 << 31;

impl Spool {
    pub fn open(path: &Path) -> Self {
        let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Self::read(&bytes)
    }

    pub fn read(bytes: &[u8]) -> Self {
        let header = FileHeader::read(bytes).expect("header");
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        let facts = &bytes[control::FACTS..][..word(control::FACTS_BYTES) as usize];
        let mut spool = Self {
            header,
            state: control::State::from_word(word(control::STATE)),
            lost_events: word(control::LOST_EVENTS),
            facts: facts
                .split(|&byte| byte == 0)
                .filter_map(|fact| {
                    let text = String::from_utf8_lossy(fact).into_owned();
                    text.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()))
                })
                .collect(),
            marks: Vec::new(),
            modules: BTreeMap::new(),
            pcs: HashMap::new(),
            words: HashMap::new(),
            sequences: BTreeMap::new(),
            overwritten: 0,
            ends: 0,
            mappings: 0,
            segments_used: 0,
        };
        let mut segments = Vec::new();
        for (index, segment) in bytes.chunks(SEGMENT_BYTES).enumerate().skip(1) {
            match SegmentHeader::read(segment) {
                Ok(header) => segments.push((header, segment)),
                Err(SegmentError::Unused) => {}
                Err(error) => panic!("segment {index}: {error}"),
            }
        }
        segments.sort_by_key(|(header, _)| (header.thread, header.lane, header.sequence));
        for (header, segment) in &segments {
            spool.segments_used += 1;
            spool.read_segment(header, segment);
        }
        spool
    }

    fn read_segment(&mut self, header: &SegmentHeader, segment: &[u8]) {
        let committed = header.committed_bytes as usize;
        let sequence = self.sequences.entry((header.thread, header.lane)).or_default();
        sequence.segments += 1;
        let mut stamp = header.counter;
        let mut kernel_thread = header.kernel_thread;
        for placed in Records::new(&segment[SEGMENT_HEADER_BYTES..committed], SEGMENT_HEADER_BYTES) {
            let placed = placed.unwrap_or_else(|error| panic!("thread {}: {error}", header.thread));
            match placed.record {
                Record::Alloc { address, size_bytes, epoch, stack } => {
                    sequence.heap.push((stamp, Heap::Alloc { address, size: size_bytes, epoch, stack }));
                }
                Record::Free { address, ticket } => {
                    sequence.heap.push((stamp, Heap::Free { address, ticket }))
                }
                Record::Move { address, ticket } => {
                    sequence.heap.push((stamp, Heap::Move { address, ticket }))
                }
                Record::Stamp { ticks } => stamp = self.header.start_counter + (ticks << STAMP_SHIFT),
                Record::Pc { number, kind, address, module } => {
                    self.pcs.insert(number, (kind, address, module));
                }
                Record::TreeWords { first, words } => self.words.extend((first..).zip(words)),
                Record::ModuleLoaded(module) => {
                    let loaded = Module {
                        loaded: module.counter,
                        // Tables lie in several sequences: an unload may be read before its load.
                        unloaded: self.modules.get(&module.number).and_then(|known| known.unloaded),
                        start: module.start,
                        end: module.end,
                        bias: module.bias,
                        build_id: module.build_id.to_vec(),
                        path: String::from_utf8_lossy(module.path).into_owned(),
                    };
                    self.modules.insert(module.number, loaded);
                }
                Record::ModuleUnloaded { number, counter } => {
                    let module = self.modules.entry(number).or_insert(Module {
                        loaded: 0,
                        unloaded: None,
                        start: 0,
                        end: 0,
                        bias: 0,
                        build_id: Vec::new(),
                        path: String::new(),
                    });
                    module.unloaded = Some(counter);
                }
                Record::Mark { counter, stack, skip, value, text, .. } => self.marks.push(Mark {
                    thread: header.thread,
                    kernel_thread,
                    counter,
                    stack,
                    skip,
                    value,
                    text: String::from_utf8_lossy(text).into_owned(),
                }),
                Record::Thread { event, .. } => match event {
                    cairn_format::recording::ThreadEvent::Began { kernel_thread: number } => {
                        kernel_thread = number;
                        sequence.kernel_threads.push(number);
                    }
                    cairn_format::recording::ThreadEvent::Named(name) => {
                        sequence.names.push(String::from_utf8_lossy(name).into_owned());
                    }
                    cairn_format::recording::ThreadEvent::Ended => sequence.ended += 1,
                    other => panic!("unexpected {other:?}"),
                },
                Record::Loss { count, .. } => self.overwritten += count,
                Record::End { .. } => self.ends += 1,
                Record::Mapping { .. } => self.mappings += 1,
                Record::Clock(_) | Record::Sample(_) => {}
                other => panic!("unexpected {other:?}"),
            }
        }
    }

    /// Addresses of a stack with their modules, innermost first; panics where a number leads
    /// nowhere.
    pub fn stack(&self, number: u32) -> Vec<(PcKind, u64, u32)> {
        let mut frames = Vec::new();
        let mut node = number;
        while node != 0 && node != u32::MAX {
            let pc = *self.words.get(&node).unwrap_or_else(|| panic!("stack {number}: no word {node}"));
            assert_eq!(pc & HEAD, 0, "stack {number}: word {node} is no node");
            frames.push(*self.pcs.get(&pc).unwrap_or_else(|| panic!("stack {number}: no frame {pc}")));
            let before = *self.words.get(&(node - 1)).unwrap_or_else(|| panic!("no word {}", node - 1));
            node = if before & HEAD != 0 { before & !HEAD } else { node - 1 };
            assert!(frames.len() < 1 << 21, "stack {number} has no end");
        }
        frames
    }

    /// Checks every stack of every event and every module number, and returns the number of events.
    /// Every stack must be readable and every module number known.
    pub fn check(&self) -> usize {
        let heap = self.sequences.values().flat_map(|sequence| &sequence.heap);
        let allocs = heap.clone().filter_map(|(_, event)| match event {
            Heap::Alloc { stack, .. } => Some(*stack),
            _ => None,
        });
        let stacks: HashSet<u32> = allocs.chain(self.marks.iter().map(|mark| mark.stack)).collect();
        for stack in stacks {
            for (_, _, module) in self.stack(stack) {
                assert!(module == 0 || self.modules.contains_key(&module), "module {module} is not known");
            }
        }
        heap.count() + self.marks.len()
    }

    /// Pairs frees with allocations by the published rules, in any order of threads; see
    /// [`Pairing`].
    pub fn pair(&self) -> Pairing {
        Pairing::of(self)
    }
}

/// Outcome of each block.
#[derive(Default, Debug)]
pub struct Pairing {
    /// Allocations by (address, what identifies it): (stack, size) of those never freed.
    pub live: Vec<(u64, u64)>,
    /// For each pair (allocation's size, whether it was local).
    pub local: u64,
    pub remote: u64,
    pub unmatched: u64,
    /// Pairs as (sequence of the allocation and its index, sequence of the free and its index).
    pub pairs: Vec<(Place, Place)>,
}

/// Thread, nested, index of the event.
pub type Place = (u32, bool, usize);

impl Pairing {
    fn of(spool: &Spool) -> Self {
        #[derive(Clone, Copy)]
        struct Known {
            epoch: u32,
            size: u64,
            place: Place,
        }
        let mut pairing = Self::default();
        // First the local frees, each the latest allocation of its own sequence.
        let mut remaining: HashMap<u64, Vec<Known>> = HashMap::new();
        let mut remote: HashMap<u64, Vec<(u32, Place)>> = HashMap::new();
        for (&(thread, lane), sequence) in &spool.sequences {
            let mut latest: HashMap<u64, Vec<Known>> = HashMap::new();
            for (index, (_, event)) in sequence.heap.iter().enumerate() {
                let place = (thread, lane == Lane::Nested, index);
                match *event {
                    Heap::Alloc { address, size, epoch, .. } => {
                        latest.entry(address).or_default().push(Known { epoch, size, place });
                    }
                    Heap::Free { address, ticket } | Heap::Move { address, ticket } => match ticket {
                        None => match latest.get_mut(&address).and_then(Vec::pop) {
                            Some(known) => {
                                pairing.local += 1;
                                pairing.pairs.push((known.place, place));
                            }
                            // Older than the recording.
                            None => pairing.unmatched += 1,
                        },
                        Some(ticket) => remote.entry(address).or_default().push((ticket, place)),
                    },
                }
            }
            for (address, known) in latest {
                remaining.entry(address).or_default().extend(known);
            }
        }
        // Then the others: the allocation with the greatest epoch that is not above the ticket.
        for (address, mut frees) in remote {
            frees.sort_by_key(|(ticket, _)| *ticket);
            let known = remaining.entry(address).or_default();
            for (ticket, place) in frees {
                let best = (0..known.len())
                    .filter(|&at| ticket.wrapping_sub(known[at].epoch) < 1 << 31)
                    .min_by_key(|&at| ticket.wrapping_sub(known[at].epoch));
                match best {
                    Some(at) => {
                        let known = known.swap_remove(at);
                        pairing.remote += 1;
                        pairing.pairs.push((known.place, place));
                    }
                    None => pairing.unmatched += 1,
                }
            }
        }
        pairing.live = remaining
            .iter()
            .flat_map(|(&address, known)| known.iter().map(move |known| (address, known.size)))
            .collect();
        pairing
    }
}
