//! Makes a recording of what was found out in another way than by a recorder inside the program: a
//! snapshot of a process.
//!
//! It is a spool as the recorder writes it, so every command reads it. Times are nanoseconds from
//! its start.
//!
//! ```
//! use cairn_recording::Recording;
//! use cairn_recording::spool_builder::{BuiltFrame, SpoolBuilder};
//! use cairn_format::recording::{MarkValue, PcKind};
//!
//! let mut spool = SpoolBuilder::new(4711, 1_523_217_944_000_000_000);
//! let app = spool.module_loaded(0, 0x1000..0x3000, 0x1000, b"\x1d\x46", b"/usr/bin/app");
//! let thread = spool.thread(0, 4711, b"main");
//! let frame = BuiltFrame { kind: PcKind::ReturnAddress, address: 0x1234, module: app };
//! spool.mark(thread, 1_000, &[frame], MarkValue::None, b"here");
//! let recording = Recording::from_bytes(spool.finish(2_000))?;
//! assert_eq!(recording.modules()[0].path_text(), "/usr/bin/app");
//! # Ok::<(), cairn_recording::RecordingError>(())
//! ```

use std::collections::HashMap;
use std::ops::Range;

use cairn_format::recording::{
    Code, CounterKind, EndReason, FileHeader, InterpreterState, Lane, LineTableFormat, LoadedModule,
    LossKind, MAX_CODE_LINES_BYTES, MAX_CODE_NAME_BYTES, MAX_MARK_TEXT_BYTES, MAX_TREE_WORDS, MarkValue,
    PcKind, RecordSink, SEGMENT_BYTES, SEGMENT_HEADER_BYTES, SegmentHeader, Shape, SinkTooSmall, ThreadEvent,
    control,
};

/// Slots that are enough for any record of this file's: the longest one holds tree words.
const MAX_SLOTS: usize = MAX_TREE_WORDS / 2 + 8;

const _: () = assert!(MAX_SLOTS * 8 <= SEGMENT_BYTES - SEGMENT_HEADER_BYTES);
const _: () = assert!(MAX_MARK_TEXT_BYTES + 64 <= MAX_SLOTS * 8);

/// Bytes of a line table in one record; half of what a record may have, so that one fits
/// [`MAX_SLOTS`].
const CODE_LINES_BYTES: usize = MAX_CODE_LINES_BYTES / 2;

const _: () = assert!(CODE_LINES_BYTES + 64 <= MAX_SLOTS * 8);
const _: () = assert!(2 * MAX_CODE_NAME_BYTES + 64 <= MAX_SLOTS * 8);

/// Marks a word of the tree as the parent of the node behind it.
const HEAD: u32 = 1 << 31;

#[cfg(target_arch = "aarch64")]
const MACHINE: u32 = 183;
#[cfg(not(target_arch = "aarch64"))]
const MACHINE: u32 = 62;

/// A module of a recording that is being made.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct BuiltModule(u32);

impl BuiltModule {
    /// For addresses in no module.
    pub const NONE: Self = Self(0);
}

/// A thread of a recording that is being made.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct BuiltThread(usize);

/// A frame to write.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct BuiltFrame {
    /// Kind of the frame, or, as the outermost one, the reason why the stack ends.
    pub kind: PcKind,
    /// Its address.
    pub address: u64,
    /// Where that lies.
    pub module: BuiltModule,
}

/// Code of an interpreter to write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BuiltCode<'a> {
    /// The source file; cut to [`MAX_CODE_NAME_BYTES`].
    pub file: &'a [u8],
    /// The function; cut to the same length.
    pub name: &'a [u8],
    /// The line that the line table begins with.
    pub first_line: u32,
    /// Encoding of the line table.
    pub format: LineTableFormat,
    /// The line table.
    pub line_table: &'a [u8],
}

/// See the [module](self).
#[derive(Debug)]
pub struct SpoolBuilder {
    header: FileHeader,
    facts: Vec<u8>,
    threads: Vec<ThreadBlocks>,
    blocks: Vec<Vec<u8>>,
    modules: u32,
    codes: u32,
    pcs: HashMap<BuiltFrame, u32>,
    /// From a stack and the frame inside of it to the stack with that frame.
    nodes: HashMap<(u32, u32), u32>,
    next_word: u32,
}

#[derive(Debug)]
struct ThreadBlocks {
    kernel_thread: u32,
    /// The segment that it writes to.
    block: usize,
    sequence: u32,
}

impl SpoolBuilder {
    /// A recording of this process that began at that many nanoseconds after 1970.
    #[must_use]
    pub fn new(process: u32, start_wall_nanos: u64) -> Self {
        let header = FileHeader {
            shape: Shape::Spool,
            address_bits: 64,
            machine: MACHINE,
            counter: CounterKind::MonotonicNanos,
            process,
            start_wall_nanos,
            start_monotonic_nanos: 0,
            start_counter: 0,
            stamp_interval: 1,
        };
        let mut spool = Self {
            header,
            facts: Vec::new(),
            threads: Vec::new(),
            blocks: Vec::new(),
            modules: 0,
            codes: 0,
            pcs: HashMap::new(),
            nodes: HashMap::new(),
            next_word: 1,
        };
        // Records without a thread are in the first one's segments; it has no name and no events.
        spool.add_thread(0, 0);
        spool
    }

    /// Adds a fact of the process. Facts that do not fit any more are left out.
    pub fn fact(&mut self, name: &str, value: &[u8]) {
        let fact: Vec<u8> = name.bytes().chain(*b"=").chain(value.iter().copied()).collect();
        // A NUL would end it.
        let fact = fact.into_iter().map(|byte| if byte == 0 { b' ' } else { byte });
        let fact: Vec<u8> = fact.chain([0]).collect();
        if self.facts.len() + fact.len() <= control::FACTS_LIMIT_BYTES {
            self.facts.extend(fact);
        }
    }

    /// A thread from now on.
    pub fn thread(&mut self, nanos: u64, kernel_thread: u32, name: &[u8]) -> BuiltThread {
        let thread = self.add_thread(nanos, kernel_thread);
        self.append(thread, nanos, |sink| sink.thread(nanos, ThreadEvent::Began { kernel_thread }));
        if !name.is_empty() {
            self.append(thread, nanos, |sink| sink.thread(nanos, ThreadEvent::Named(name)));
        }
        thread
    }

    /// A module is there from now on.
    pub fn module_loaded(
        &mut self,
        nanos: u64,
        range: Range<u64>,
        bias: u64,
        build_id: &[u8],
        path: &[u8],
    ) -> BuiltModule {
        self.modules += 1;
        let (number, counter) = (self.modules, nanos);
        let module =
            LoadedModule { number, counter, start: range.start, end: range.end, bias, build_id, path };
        self.append(BuiltThread(0), nanos, |sink| sink.module_loaded(&module));
        BuiltModule(number)
    }

    /// A module is gone from now on.
    pub fn module_unloaded(&mut self, nanos: u64, module: BuiltModule) {
        self.append(BuiltThread(0), nanos, |sink| sink.module_unloaded(module.0, nanos));
    }

    /// Code that frames of an interpreter lie in. Returns its number: the upper half of the address
    /// of such a frame.
    pub fn code(&mut self, nanos: u64, built: &BuiltCode<'_>) -> u32 {
        self.codes += 1;
        let cut = |text: &'_ [u8]| text.len().min(MAX_CODE_NAME_BYTES);
        let code = Code {
            number: self.codes,
            first_line: built.first_line,
            format: built.format,
            line_table_bytes: u32::try_from(built.line_table.len()).unwrap_or(u32::MAX),
            file: built.file.get(..cut(built.file)).unwrap_or_default(),
            name: built.name.get(..cut(built.name)).unwrap_or_default(),
        };
        self.append(BuiltThread(0), nanos, |sink| sink.code(&code));
        for (index, part) in built.line_table.chunks(CODE_LINES_BYTES).enumerate() {
            let offset = u32::try_from(index * CODE_LINES_BYTES).unwrap_or(u32::MAX);
            self.append(BuiltThread(0), nanos, |sink| sink.code_lines(code.number, offset, part));
        }
        code.number
    }

    /// An interpreter whose frames are not in the stacks, and why.
    pub fn interpreter(&mut self, nanos: u64, version: u32, state: InterpreterState) {
        self.append(BuiltThread(0), nanos, |sink| sink.interpreter(version, state));
    }

    /// A marked stack, innermost frame first. Without frames it is a mark without a stack.
    pub fn mark(
        &mut self,
        thread: BuiltThread,
        nanos: u64,
        frames: &[BuiltFrame],
        value: MarkValue,
        text: &[u8],
    ) {
        let stack = self.stack(thread, nanos, frames);
        self.append(thread, nanos, |sink| sink.mark(nanos, stack, 0, value, text));
    }

    /// A loss, and how many it is of.
    pub fn lost(&mut self, thread: BuiltThread, nanos: u64, kind: LossKind, count: u64) {
        self.append(thread, nanos, |sink| sink.loss(kind, count));
    }

    /// The bytes of the recording, which ends at this time.
    #[must_use]
    pub fn finish(mut self, nanos: u64) -> Vec<u8> {
        self.append(BuiltThread(0), nanos, |sink| sink.end(EndReason::Stopped, nanos));
        self.bytes(control::State::Ended)
    }

    /// The bytes of the recording so far, as they are while the program goes on.
    #[must_use]
    pub fn so_far(&self) -> Vec<u8> {
        self.bytes(control::State::Recording)
    }

    fn bytes(&self, state: control::State) -> Vec<u8> {
        let mut bytes = vec![0; SEGMENT_BYTES];
        let count = self.blocks.len() as u64 + 1;
        let words = [
            (control::BACKED_SEGMENTS, count),
            (control::CLAIMED_SEGMENTS, count),
            (control::CLAIMS, count - 1),
            (control::STATE, state.to_word()),
            (control::FACTS_BYTES, self.facts.len() as u64),
        ];
        put(&mut bytes, 0, &self.header.to_bytes());
        for (at, word) in words {
            put(&mut bytes, at, &word.to_le_bytes());
        }
        put(&mut bytes, control::FACTS, &self.facts);
        for block in &self.blocks {
            let mut block = block.clone();
            let committed = block.len() as u64;
            put(&mut block, SegmentHeader::COMMITTED_OFFSET, &committed.to_le_bytes());
            block.resize(SEGMENT_BYTES, 0);
            bytes.extend(block);
        }
        bytes
    }

    fn add_thread(&mut self, nanos: u64, kernel_thread: u32) -> BuiltThread {
        let thread = self.threads.len();
        self.threads.push(ThreadBlocks { kernel_thread, block: 0, sequence: 0 });
        self.claim(thread, nanos);
        BuiltThread(thread)
    }

    /// Gives the thread a segment.
    fn claim(&mut self, thread: usize, nanos: u64) {
        let Some(own) = self.threads.get_mut(thread) else { return };
        let header = SegmentHeader {
            has_no_tables: false,
            thread: u32::try_from(thread + 1).unwrap_or(u32::MAX),
            lane: Lane::Outer,
            sequence: own.sequence,
            committed_bytes: SEGMENT_HEADER_BYTES as u64,
            counter: nanos,
            kernel_thread: own.kernel_thread,
            claim: self.blocks.len() as u64,
        };
        own.sequence += 1;
        own.block = self.blocks.len();
        self.blocks.push(header.to_bytes().to_vec());
    }

    /// The number of a stack, after the records of all of it that is new.
    fn stack(&mut self, thread: BuiltThread, nanos: u64, frames: &[BuiltFrame]) -> u32 {
        let mut node = 0;
        let mut words: Vec<u32> = Vec::new();
        for frame in frames.iter().rev() {
            let pc = self.pc(thread, nanos, *frame);
            if let Some(&known) = self.nodes.get(&(node, pc)) {
                node = known;
                continue;
            }
            if words.is_empty() {
                words.push(HEAD | node);
            }
            let number = self.next_word + u32::try_from(words.len()).unwrap_or(u32::MAX);
            words.push(pc);
            self.nodes.insert((node, pc), number);
            node = number;
        }
        for part in words.chunks(MAX_TREE_WORDS) {
            let first = self.next_word;
            self.append(thread, nanos, |sink| sink.tree_words(first, part.iter().copied()));
            self.next_word += u32::try_from(part.len()).unwrap_or(u32::MAX);
        }
        node
    }

    fn pc(&mut self, thread: BuiltThread, nanos: u64, frame: BuiltFrame) -> u32 {
        if let Some(&known) = self.pcs.get(&frame) {
            return known;
        }
        let number = u32::try_from(self.pcs.len() + 1).unwrap_or(u32::MAX);
        self.pcs.insert(frame, number);
        let BuiltFrame { kind, address, module } = frame;
        self.append(thread, nanos, |sink| sink.pc(number, kind, address, module.0));
        number
    }

    fn append(
        &mut self,
        BuiltThread(thread): BuiltThread,
        nanos: u64,
        write: impl FnOnce(&mut RecordSink<'_>) -> Result<(), SinkTooSmall>,
    ) {
        let mut slots = vec![0; MAX_SLOTS];
        let mut sink = RecordSink::new(&mut slots);
        // Everything that is written here was cut to what fits.
        if write(&mut sink).is_err() {
            return;
        }
        let bytes: Vec<u8> = sink.written().iter().flat_map(|slot| slot.to_le_bytes()).collect();
        let block = |builder: &Self| builder.threads.get(thread).map_or(0, |thread| thread.block);
        let used = self.blocks.get(block(self)).map_or(SEGMENT_BYTES, Vec::len);
        if used + bytes.len() > SEGMENT_BYTES {
            self.claim(thread, nanos);
        }
        let block = block(self);
        if let Some(block) = self.blocks.get_mut(block) {
            block.extend(bytes);
        }
    }
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    if let Some(place) = bytes.get_mut(at..at + value.len()) {
        place.copy_from_slice(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Events, Mark, Recording, StackId, Wanted};
    use proptest::prelude::*;

    /// Address and kind of each frame.
    type Frames = Vec<(u64, PcKind)>;

    struct Marks<'a> {
        recording: &'a Recording,
        found: Vec<(u64, String, Frames)>,
    }

    impl Events for Marks<'_> {
        fn mark(&mut self, mark: &Mark<'_>) {
            let frames = match mark.stack {
                StackId::EMPTY => Vec::new(),
                stack => {
                    self.recording.frames(stack).map(|frame| (frame.address.value(), frame.kind)).collect()
                }
            };
            let text = String::from_utf8_lossy(mark.text).into_owned();
            self.found.push((mark.at.nanos, text, frames));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn what_is_written_is_read(
            stacks in prop::collection::vec(
                (prop::collection::vec(1_u64..40, 0..30), 0_usize..3,
                prop_oneof![20 => 1_usize..10, 1 => 200_usize..300]), 0..60)
        ) {
            let mut spool = SpoolBuilder::new(1, 1000);
            let threads: Vec<_> = (0..3).map(|thread| spool.thread(0, 10 + thread, b"t")).collect();
            let mut expected = Vec::new();
            for (index, (addresses, thread, repeated)) in stacks.iter().enumerate() {
                let nanos = 100 * (index as u64 + 1);
                // Deep ones take several segments.
                let addresses: Vec<u64> =
                    addresses.iter().flat_map(|&address| (0..*repeated as u64).map(move |n| address * 1000 + n)).collect();
                let frames: Vec<_> = addresses.iter().map(|&address| BuiltFrame {
                    kind: PcKind::ReturnAddress, address, module: BuiltModule::NONE,
                }).collect();
                let text = format!("mark {index}");
                spool.mark(threads[*thread], nanos, &frames, MarkValue::None, text.as_bytes());
                let frames = addresses.into_iter().map(|address| (address, PcKind::ReturnAddress)).collect::<Vec<_>>();
                expected.push((nanos, text, frames));
            }
            let recording = Recording::from_bytes(spool.finish(1_000_000)).unwrap();
            let mut marks = Marks { recording: &recording, found: Vec::new() };
            recording.read(&Wanted::ALL, &mut marks).unwrap();
            prop_assert_eq!(marks.found, expected);
            prop_assert!(recording.findings().is_empty(), "{:?}", recording.findings());
            prop_assert_eq!(recording.end().map(|end| end.1), Some(1_000_000));
        }
    }
}
