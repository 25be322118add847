//! Writes packed recordings: events go in in their order, chunks come out when they are full.

use std::io::Write;

use cairn_format::recording::control::EarlyEnd;
use cairn_format::recording::{
    ChunkKind, Code, CounterKind, EndReason, FileHeader, InterpreterState, LossKind, MAX_CODE_LINES_BYTES,
    PcKind, Shape,
};

use crate::error::{EndedEarly, Finding, RecordingError};
use crate::generated::CodePiece;
use crate::model::{
    Alloc, At, Change, Events, Fact, Free, Mapping, Mark, Module, ModuleId, ObjectId, PcId, StackId, Thread,
    Usage, Wanted,
};
use crate::packed::chunk::ChunkWriter;
use crate::packed::columns::{Put, Take};
use crate::packed::heap_events::HeapEncoder;
use crate::packed::marks::MarkEncoder;
#[cfg(target_os = "linux")]
use crate::packed::progress::Progress;
use crate::packed::rows::{self, ChangeRows, CodeRows, EventPlace, PcRows, Rare, WordRows};
use crate::{HEAP_TIME_QUANTUM_NANOS, Recording};

/// Rows go to the file when they are so long.
const LONG_ROWS: usize = 1 << 20;

/// Totals of a recording.
#[derive(Clone, PartialEq, Default, Debug)]
#[non_exhaustive]
pub struct Totals {
    /// When the last event was.
    pub end_nanos: u64,
    /// Why it was the last; `None` when the program was killed or the recording was left.
    pub end_reason: Option<EndReason>,
    /// How many blocks were allocated, by reallocations as well.
    pub allocations: u64,
    /// How large they were in sum.
    pub allocated_bytes: u64,
    /// How many of them were freed, by reallocations as well.
    pub frees: u64,
    /// How many of the allocations were made by reallocations.
    pub moves: u64,
    /// Frees of blocks that are older than the recording.
    pub unmatched_frees: u64,
    /// The most bytes that were allocated at once.
    pub peak_bytes: u64,
    /// When that was, as exact as [`HEAP_TIME_QUANTUM_NANOS`] is.
    pub peak_nanos: u64,
    /// How many bytes were allocated at the end.
    pub live_bytes: u64,
    /// In how many blocks.
    pub live_blocks: u64,
    /// How many marks there are.
    pub marks: u64,
    /// How many rarer events there are.
    pub changes: u64,
    /// Kinds and amounts of the losses.
    pub lost: Vec<(LossKind, u64)>,
    /// Why the recording ended before its program did, if it did.
    pub ended_early: Option<EndedEarly>,
    /// Problems of reading the events that were [packed](pack). No file stores them: its own
    /// contents are whole.
    pub findings: Vec<Finding>,
}

impl Totals {
    /// Notes that the recording ended before its program did.
    pub(crate) fn end_early(&mut self, early: EndedEarly) {
        self.end_reason = Some(EndReason::Stopped);
        self.ended_early = Some(early);
        // For readers that do not know of early ends.
        if early.missed > 0 {
            self.lost.push((LossKind::NoStorage, early.missed));
        }
    }

    /// Returns the losses, without those that are counted with an early end.
    pub(crate) fn losses(&self) -> impl Iterator<Item = (LossKind, u64)> {
        let mut missed = self.ended_early.map_or(0, |early| early.missed);
        self.lost.iter().filter_map(move |&(kind, count)| {
            let reported = if kind == LossKind::NoStorage { count.min(missed) } else { 0 };
            missed -= reported;
            (count > reported).then_some((kind, count - reported))
        })
    }

    fn put(&self, payload: &mut Vec<u8>) {
        let numbers = [
            self.end_nanos,
            self.end_reason.map_or(0, |reason| u64::from(reason.number()) + 1),
            self.allocations,
            self.allocated_bytes,
            self.frees,
            self.moves,
            self.unmatched_frees,
            self.peak_bytes,
            self.peak_nanos,
            self.live_bytes,
            self.live_blocks,
            self.marks,
            self.changes,
        ];
        numbers.into_iter().for_each(|number| payload.put_number(number));
        payload.put_number(self.lost.len() as u64);
        for (kind, count) in &self.lost {
            payload.put_number(kind.number().into());
            payload.put_number(*count);
        }
        if let Some(early) = &self.ended_early {
            payload.put_number(early.cause.to_word());
            payload.put_number(early.nanos);
            payload.put_number(early.missed);
        }
    }

    /// Further numbers behind those that are known here are left alone.
    pub(crate) fn take(payload: &[u8]) -> Option<Self> {
        let mut take = Take::new(payload);
        let mut totals = Self {
            end_nanos: take.number()?,
            end_reason: take.number32()?.checked_sub(1).and_then(EndReason::from_number),
            allocations: take.number()?,
            allocated_bytes: take.number()?,
            frees: take.number()?,
            moves: take.number()?,
            unmatched_frees: take.number()?,
            peak_bytes: take.number()?,
            peak_nanos: take.number()?,
            live_bytes: take.number()?,
            live_blocks: take.number()?,
            marks: take.number()?,
            changes: take.number()?,
            lost: Vec::new(),
            ended_early: None,
            findings: Vec::new(),
        };
        for _ in 0..take.number()? {
            let (kind, count) = (take.number32()?, take.number()?);
            totals.lost.extend(LossKind::from_number(kind).map(|kind| (kind, count)));
        }
        // Earlier versions wrote nothing here.
        if !take.is_empty() {
            let (cause, nanos, missed) =
                (EarlyEnd::from_word(take.number()?), take.number()?, take.number()?);
            totals.ended_early = cause.map(|cause| EndedEarly { cause, nanos, missed });
        }
        Some(totals)
    }
}

/// Writes a packed recording.
pub(crate) struct Packer<W: Write> {
    chunks: ChunkWriter<W>,
    heap: HeapEncoder,
    marks: MarkEncoder,
    changes: ChangeRows,
    modules: (Vec<u8>, u32),
    threads: (Vec<u8>, u32),
    clocks: (Vec<u8>, u32),
    codes: CodeRows,
    pcs: PcRows,
    words: WordRows,
    /// As [`settled`](Self::settle) last.
    pub(crate) totals: Totals,
    /// Time of the last allocation or free.
    heap_nanos: u64,
    payload: Vec<u8>,
    /// Names of generated code may not be in the file yet.
    has_unwritten_code: bool,
    failure: Option<RecordingError>,
}

impl<W: Write> Packer<W> {
    /// Begins a recording of the process in `header`.
    pub(crate) fn new(out: W, header: &FileHeader, facts: &[Fact]) -> Result<Self, RecordingError> {
        let header = FileHeader {
            shape: Shape::Packed,
            counter: CounterKind::MonotonicNanos,
            start_counter: header.start_monotonic_nanos,
            stamp_interval: 0,
            ..*header
        };
        let mut chunks = ChunkWriter::new(out, &header)?;
        chunks.write(ChunkKind::FACTS, facts.len() as u32, 0, &rows::put_facts(facts))?;
        Ok(Self {
            chunks,
            heap: HeapEncoder::new(),
            marks: MarkEncoder::default(),
            changes: ChangeRows::default(),
            modules: Default::default(),
            threads: Default::default(),
            clocks: Default::default(),
            codes: CodeRows::default(),
            pcs: PcRows::default(),
            words: WordRows::new(),
            totals: Totals::default(),
            heap_nanos: 0,
            payload: Vec::new(),
            has_unwritten_code: false,
            failure: None,
        })
    }

    /// Adds a fact to those that were there at the start.
    #[cfg(target_os = "linux")]
    pub(crate) fn fact(&mut self, name: &str, value: &str) {
        let fact = Fact { name: name.to_owned(), value: value.as_bytes().to_vec() };
        self.keep(|packer| packer.chunks.write(ChunkKind::FACTS, 1, 0, &rows::put_facts(&[fact])));
    }

    pub(crate) fn module(&mut self, module: &Module) {
        rows::put_module(&mut self.modules.0, module);
        self.modules.1 += 1;
        self.flush_long_rows();
    }

    pub(crate) fn thread(&mut self, thread: &Thread) {
        self.threads.1 += rows::put_thread(&mut self.threads.0, thread);
        self.flush_long_rows();
    }

    pub(crate) fn clock(&mut self, nanos: u64, wall_nanos: u64) {
        rows::put_clock(&mut self.clocks.0, nanos, wall_nanos);
        self.clocks.1 += 1;
    }

    pub(crate) fn code(&mut self, code: &Code<'_>) {
        self.codes.code(code);
        self.flush_long_rows();
    }

    pub(crate) fn code_lines(&mut self, code: u32, offset: u32, bytes: &[u8]) {
        self.codes.lines(code, offset, bytes);
        self.flush_long_rows();
    }

    pub(crate) fn interpreter(&mut self, version: u32, state: InterpreterState) {
        self.codes.interpreter(version, state);
    }

    /// `start` is where its module begins, when that is known.
    pub(crate) fn pc(&mut self, number: u32, kind: PcKind, address: u64, module: u32, start: Option<u64>) {
        self.pcs.put(number, kind, address, module, start);
        self.flush_long_rows();
    }

    /// Writes a piece of a file that names generated code.
    ///
    /// Addresses that wait to be written follow it: the file was read after they were.
    pub(crate) fn code_piece(&mut self, piece: &CodePiece) {
        self.keep(|packer| {
            packer.payload.clear();
            piece.put(&mut packer.payload);
            packer.chunks.write(ChunkKind::GENERATED, 1, piece.nanos, &packer.payload)
        });
        self.has_unwritten_code = true;
    }

    /// Writes the tables that wait: pieces of files that are given later are behind them.
    pub(crate) fn write_tables(&mut self) {
        self.keep(Self::flush_tables);
    }

    pub(crate) fn words(&mut self, first: u32, words: impl ExactSizeIterator<Item = u32>) {
        self.words.put(first, words);
        self.flush_long_rows();
    }

    fn flush_long_rows(&mut self) {
        let rows = [
            &self.modules.0,
            &self.threads.0,
            &self.clocks.0,
            &self.codes.bytes,
            &self.pcs.bytes,
            &self.words.bytes,
        ];
        if rows.iter().any(|bytes| bytes.len() >= LONG_ROWS) {
            self.keep(Self::flush_tables);
        }
    }

    /// Once something could not be written, nothing more is.
    fn keep(&mut self, action: impl FnOnce(&mut Self) -> Result<(), RecordingError>) {
        if self.failure.is_none() {
            self.failure = action(self).err();
        }
    }

    fn flush_tables(&mut self) -> Result<(), RecordingError> {
        for (kind, (bytes, rows)) in [
            (ChunkKind::MODULES, &mut self.modules),
            (ChunkKind::THREADS, &mut self.threads),
            (ChunkKind::CLOCKS, &mut self.clocks),
        ] {
            if *rows > 0 {
                self.chunks.write(kind, *rows, 0, bytes)?;
                bytes.clear();
                *rows = 0;
            }
        }
        if self.codes.rows > 0 {
            self.chunks.write(ChunkKind::CODE, self.codes.rows, 0, &self.codes.bytes)?;
            self.codes.clear();
        }
        if self.pcs.rows > 0 {
            self.chunks.write(ChunkKind::ADDRESSES, self.pcs.rows, 0, &self.pcs.bytes)?;
            self.pcs.clear();
        }
        if self.words.words > 0 {
            self.chunks.write(ChunkKind::STACKS, self.words.words, 0, &self.words.bytes)?;
            self.words.clear();
        }
        Ok(())
    }

    fn flush_heap(&mut self) -> Result<(), RecordingError> {
        if self.heap.is_empty() {
            return Ok(());
        }
        // Tables first, so that a file that is cut behind any chunk has the stacks of its events.
        self.flush_tables()?;
        self.payload.clear();
        let filled = self.heap.flush(&mut self.payload);
        self.chunks.write_streamed(ChunkKind::HEAP_STREAM, filled.events, filled.first_nanos, &self.payload)
    }

    fn flush_marks(&mut self) -> Result<(), RecordingError> {
        if self.marks.is_empty() {
            return Ok(());
        }
        self.flush_tables()?;
        self.payload.clear();
        let filled = self.marks.flush(&mut self.payload);
        self.chunks.write(ChunkKind::MARKS, filled.events, filled.first_nanos, &self.payload)
    }

    fn flush_changes(&mut self) -> Result<(), RecordingError> {
        if self.changes.rows == 0 {
            return Ok(());
        }
        self.flush_tables()?;
        let ChangeRows { rows, first_nanos, .. } = self.changes;
        self.chunks.write(ChunkKind::CHANGES, rows, first_nanos, &self.changes.bytes)?;
        self.changes.clear();
        Ok(())
    }

    /// Whether anything is not in the file yet.
    pub(crate) fn has_unwritten(&self) -> bool {
        !self.heap.is_empty()
            || !self.marks.is_empty()
            || self.changes.rows > 0
            || self.pcs.rows > 0
            || self.has_unwritten_code
    }

    /// Everything that was given goes to the file, in chunks that may be short.
    pub(crate) fn flush(&mut self) -> Result<(), RecordingError> {
        self.keep(|packer| {
            packer.flush_tables()?;
            packer.flush_heap()?;
            packer.flush_marks()?;
            packer.flush_changes()?;
            packer.chunks.flush()
        });
        self.has_unwritten_code = false;
        match self.failure.take() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// As [`flush`](Self::flush), and says behind it how far the spool is read, and until when that
    /// is everything.
    #[cfg(target_os = "linux")]
    pub(crate) fn flush_with_progress(
        &mut self,
        streams: impl Iterator<Item = Progress>,
        until_nanos: u64,
    ) -> Result<(), RecordingError> {
        self.flush()?;
        self.payload.clear();
        let mut count = 0;
        for progress in streams {
            progress.put(&mut self.payload);
            count += 1;
        }
        self.chunks.write(ChunkKind::PROGRESS, count, until_nanos, &self.payload)?;
        self.chunks.flush()
    }

    /// Makes the totals complete: what follows from other numbers is not counted with each event.
    fn settle(&mut self) {
        let totals = &mut self.totals;
        totals.frees = self.heap.position() - totals.allocations;
        totals.live_blocks = totals.allocations.saturating_sub(totals.frees);
        totals.end_nanos = totals.end_nanos.max(self.heap_nanos);
    }

    /// Writes what is left, the totals and the index.
    pub(crate) fn close(mut self) -> Result<(W, Totals), RecordingError> {
        self.flush()?;
        self.settle();
        let mut payload = Vec::new();
        self.totals.put(&mut payload);
        self.chunks.write(ChunkKind::SUMMARY, 1, 0, &payload)?;
        Ok((self.chunks.close()?, self.totals))
    }

    pub(crate) fn written_bytes(&self) -> u64 {
        self.chunks.offset()
    }

    #[inline(always)]
    fn happened(&mut self, at: At) {
        self.totals.end_nanos = self.totals.end_nanos.max(at.nanos);
    }

    fn place(&self) -> EventPlace {
        EventPlace { position: self.heap.position(), ordinal: self.totals.marks + self.totals.changes }
    }

    fn rare(&mut self, rare: &Rare) {
        self.changes.put(rare, self.place());
        self.totals.changes += 1;
        if self.changes.bytes.len() >= LONG_ROWS {
            self.keep(Self::flush_changes);
        }
    }
}

impl<W: Write> Events for Packer<W> {
    #[inline(always)]
    fn alloc(&mut self, event: &Alloc) {
        self.heap_nanos = event.at.nanos;
        let totals = &mut self.totals;
        totals.allocations += 1;
        totals.moves += u64::from(event.is_move);
        // Sizes of a stranger's file may add up to more than there is.
        totals.allocated_bytes = totals.allocated_bytes.wrapping_add(event.size_bytes);
        totals.live_bytes = totals.live_bytes.wrapping_add(event.size_bytes);
        if totals.live_bytes > totals.peak_bytes {
            totals.peak_bytes = totals.live_bytes;
            totals.peak_nanos = event.at.nanos / HEAP_TIME_QUANTUM_NANOS * HEAP_TIME_QUANTUM_NANOS;
        }
        self.heap.alloc(event);
        if self.heap.is_full() {
            self.keep(Self::flush_heap);
        }
    }

    #[inline(always)]
    fn free(&mut self, event: &Free) {
        self.heap_nanos = event.at.nanos;
        self.totals.live_bytes = self.totals.live_bytes.wrapping_sub(event.size_bytes);
        self.heap.free(event);
        if self.heap.is_full() {
            self.keep(Self::flush_heap);
        }
    }

    #[inline(always)]
    fn prefetch_site(&mut self, stack: StackId, size_bytes: u64) {
        self.heap.prefetch_site(stack, size_bytes);
    }

    #[inline(always)]
    fn prefetch_object(&mut self, object: ObjectId, stack: StackId, size_bytes: u64) {
        self.heap.prefetch_object(object.index(), stack, size_bytes);
    }

    #[inline(always)]
    fn time_quantum_nanos(&self) -> u64 {
        HEAP_TIME_QUANTUM_NANOS
    }

    fn mark(&mut self, event: &Mark<'_>) {
        self.happened(event.at);
        self.marks.mark(event, self.place());
        self.totals.marks += 1;
        if self.marks.is_full() {
            self.keep(Self::flush_marks);
        }
    }

    fn mapping(&mut self, event: &Mapping) {
        self.happened(event.at);
        self.rare(&Rare::Mapping(*event));
    }

    fn usage(&mut self, event: &Usage) {
        self.happened(event.at);
        self.rare(&Rare::Usage(*event));
    }

    fn change(&mut self, at: At, change: Change) {
        self.happened(at);
        if let Change::Ended(reason) = change {
            self.totals.end_reason = Some(reason);
        }
        self.rare(&Rare::Change(at, change));
    }

    fn is_enough(&self) -> bool {
        self.failure.is_some()
    }
}

/// Writes `recording` in its packed shape to `out`.
///
/// It writes many small pieces; wrap a file into a [`BufWriter`](std::io::BufWriter).
///
/// # Errors
///
/// When the recording cannot be read or `out` cannot be written.
///
/// # Examples
///
/// ```no_run
/// use cairn_recording::{Recording, pack};
/// let spool = Recording::open("program.4711.spool")?;
/// let mut packed = Vec::new();
/// let totals = pack(&spool, &mut packed)?;
/// println!("{} allocations in {} bytes", totals.allocations, packed.len());
/// # Ok::<(), cairn_recording::RecordingError>(())
/// ```
pub fn pack(recording: &Recording, out: impl Write) -> Result<Totals, RecordingError> {
    let mut packer = Packer::new(out, recording.header(), recording.facts())?;
    recording.modules().iter().for_each(|module| packer.module(module));
    recording.threads().iter().for_each(|thread| packer.thread(thread));
    for &(nanos, wall_nanos) in recording.time_scale().readings().iter().skip(1) {
        packer.clock(nanos, wall_nanos);
    }
    pack_stacks(recording, &mut packer);
    let outcome = recording.read(&Wanted::ALL, &mut packer)?;
    packer.totals.unmatched_frees = outcome.unmatched_frees;
    packer.totals.end_reason = recording.end().map(|(reason, _)| reason);
    for finding in recording.findings() {
        if let Finding::Lost { kind, count } = finding {
            packer.totals.lost.push((*kind, *count));
        }
    }
    if let Some(early) = recording.ended_early() {
        packer.totals.end_early(early);
    }
    let (_, totals) = packer.close()?;
    Ok(Totals { findings: outcome.findings, ..totals })
}

fn pack_stacks<W: Write>(recording: &Recording, packer: &mut Packer<W>) {
    let stacks = recording.stacks();
    for interpreter in recording.interpreters() {
        packer.interpreter(interpreter.version, interpreter.state());
    }
    for (number, code) in stacks.codes() {
        packer.code(&Code {
            number,
            first_line: code.first_line,
            format: code.format,
            line_table_bytes: code.line_table.len() as u32,
            file: &code.file,
            name: &code.name,
        });
        let mut offset = 0;
        for part in code.line_table.chunks(MAX_CODE_LINES_BYTES) {
            packer.code_lines(number, offset, part);
            offset += part.len() as u32;
        }
    }
    let generated = recording.generated_code();
    // Each address between the pieces that it was seen between. Most recordings have none.
    let mut later: Vec<(usize, u32)> = Vec::new();
    for number in 1..stacks.pcs_len() as u32 {
        match generated.pieces_before(PcId(number)) {
            0 => pack_pc(recording, packer, number),
            before => later.push((before, number)),
        }
    }
    later.sort_unstable();
    let mut later = later.into_iter().peekable();
    for (index, piece) in generated.pieces().enumerate() {
        packer.write_tables();
        packer.code_piece(piece);
        while let Some((_, number)) = later.next_if(|&(before, _)| before == index + 1) {
            pack_pc(recording, packer, number);
        }
    }
    let mut run: Vec<u32> = Vec::new();
    for index in 1..=stacks.len() {
        let word = stacks.word(index).unwrap_or(0);
        if word != 0 && run.len() < 1 << 16 {
            run.push(word);
        } else if !run.is_empty() {
            packer.words((index - run.len()) as u32, run.drain(..));
            if word != 0 {
                run.push(word);
            }
        }
    }
    if !run.is_empty() {
        packer.words((stacks.len() + 1 - run.len()) as u32, run.drain(..));
    }
}

fn pack_pc<W: Write>(recording: &Recording, packer: &mut Packer<W>, number: u32) {
    if let Some((pc, kind)) = recording.stacks().raw_pc(number).and_then(|pc| Some((pc, pc.kind()?))) {
        let module = recording.module(ModuleId(pc.module));
        packer.pc(number, kind, pc.address, pc.module, module.map(|module| module.start.value()));
    }
}

#[cfg(test)]
mod tests {
    use cairn_format::recording::{CHUNK_HEADER_BYTES, ChunkHeader};

    use super::*;
    use crate::ThreadId;

    fn header() -> FileHeader {
        FileHeader {
            shape: Shape::Packed,
            address_bits: 64,
            machine: 62,
            counter: CounterKind::MonotonicNanos,
            process: 1,
            start_wall_nanos: 0,
            start_monotonic_nanos: 0,
            start_counter: 0,
            stamp_interval: 0,
        }
    }

    /// The numbers behind the losses were not there before; a reader of before leaves them alone.
    #[test]
    fn summaries_say_early_ends_behind_all_else() {
        let lost = vec![(LossKind::NoStorage, 5), (LossKind::NestedTooDeep, 2)];
        let mut totals = Totals { allocations: 7, lost, ..Totals::default() };
        let mut plain = Vec::new();
        totals.put(&mut plain);
        let ended = EndedEarly { cause: EarlyEnd::DiskFull(28), nanos: 300_000_000, missed: 40 };
        totals.end_early(ended);
        let mut payload = Vec::new();
        totals.put(&mut payload);
        let read = Totals::take(&payload).unwrap();
        assert_eq!((read.ended_early, read.end_reason), (Some(ended), Some(EndReason::Stopped)));
        assert_eq!(read, totals);
        // The events behind the end are noted with it, and others as losses.
        let losses: Vec<_> = read.losses().collect();
        assert_eq!(losses, [(LossKind::NestedTooDeep, 2), (LossKind::NoStorage, 5)]);
        assert_eq!(Totals::take(&plain).unwrap().ended_early, None);
        let text = "recording ended early: the disk was full after 0.3 s; what the program did later is not in the numbers";
        assert_eq!(ended.to_string(), format!("{text} (40 events)"));
    }

    /// Events handed on or expected, as lines, because events have no equality.
    #[derive(Default)]
    struct Lines(Vec<String>);

    impl Events for Lines {
        fn alloc(&mut self, event: &Alloc) {
            self.0.push(format!("{event:?}"));
        }
        fn free(&mut self, event: &Free) {
            self.0.push(format!("{event:?}"));
        }
    }

    /// A program of some threads. Each frees at random, in order, in turns, or all that is old.
    struct Program {
        seed: u32,
        nanos: u64,
        /// By thread, in the order of their allocations.
        alive: [Vec<(ObjectId, StackId, u64)>; 3],
        free: Vec<u32>,
        next: u32,
        lines: Lines,
    }

    impl Program {
        fn random(&mut self, below: u32) -> u32 {
            self.seed = self.seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (self.seed >> 8) % below
        }

        fn alloc(&mut self, packer: &mut Packer<Vec<u8>>, thread: u32, is_move: bool) {
            let slot = self.free.pop().unwrap_or_else(|| {
                self.next += 1;
                self.next - 1
            });
            let (stack, size_bytes) = (StackId(self.random(9)), u64::from(self.random(3)) << 40 | 5);
            let object = ObjectId(slot);
            let at = At { nanos: self.nanos, thread: ThreadId(thread + 1) };
            let event = Alloc { at, object, stack, size_bytes, is_move };
            packer.alloc(&event);
            self.lines.alloc(&event);
            self.alive[thread as usize].push((object, stack, size_bytes));
        }

        fn free(&mut self, packer: &mut Packer<Vec<u8>>, thread: u32, of: u32, place: usize, is_move: bool) {
            if place >= self.alive[of as usize].len() {
                return;
            }
            let (object, stack, size_bytes) = self.alive[of as usize].remove(place);
            let at = At { nanos: self.nanos, thread: ThreadId(thread + 1) };
            let event = Free { at, object, stack, size_bytes, is_move };
            packer.free(&event);
            self.lines.free(&event);
            self.free.push(object.0);
        }

        fn step(&mut self, packer: &mut Packer<Vec<u8>>) {
            self.nanos += u64::from(self.random(3)) * HEAP_TIME_QUANTUM_NANOS;
            let thread = self.random(3);
            let many = self.random(90) as usize;
            match self.random(12) {
                0..=4 => (0..many).for_each(|_| self.alloc(packer, thread, false)),
                5 => (0..many).for_each(|_| self.free(packer, thread, thread, 0, false)),
                6 => {
                    for _ in 0..many {
                        let last = self.alive[thread as usize].len().wrapping_sub(1);
                        self.free(packer, thread, thread, last, false);
                    }
                }
                7 | 8 => {
                    for _ in 0..many {
                        let of = self.random(3);
                        let place = self.random(900) as usize;
                        self.free(packer, thread, of, place, false);
                    }
                }
                9 => {
                    let (before, place) = (self.lines.0.len(), self.random(50) as usize);
                    self.free(packer, thread, thread, place, true);
                    if self.lines.0.len() > before {
                        self.alloc(packer, thread, true);
                    }
                }
                _ => packer.flush().unwrap(),
            }
        }
    }

    fn recorded(seed: u32, steps: u32) -> (Vec<u8>, Vec<String>) {
        let mut packer = Packer::new(Vec::new(), &header(), &[]).unwrap();
        let mut program = Program {
            seed,
            nanos: 0,
            alive: Default::default(),
            free: Vec::new(),
            next: 0,
            lines: Lines::default(),
        };
        (0..steps).for_each(|_| program.step(&mut packer));
        let (bytes, _) = packer.close().unwrap();
        (bytes, program.lines.0)
    }

    fn read(bytes: &[u8]) -> (Vec<String>, Vec<Finding>) {
        let recording = Recording::from_bytes(bytes.to_vec()).unwrap();
        let mut lines = Lines::default();
        let outcome = recording.read(&Wanted::HEAP, &mut lines).unwrap();
        (lines.0, outcome.findings)
    }

    /// Where the chunks of allocations are, and how many events are in each.
    fn streamed(bytes: &[u8]) -> Vec<(usize, ChunkHeader)> {
        let (mut at, mut found) = (64, Vec::new());
        while let Some(header) = bytes.get(at..).and_then(ChunkHeader::read) {
            if header.kind == ChunkKind::HEAP_STREAM {
                found.push((at, header));
            }
            at += (CHUNK_HEADER_BYTES + header.stored_bytes as usize).next_multiple_of(8);
        }
        found
    }

    #[test]
    fn many_packed_chunks_are_read_again() {
        for seed in 0..20 {
            let (bytes, expected) = recorded(seed, 400);
            assert!(streamed(&bytes).len() > 30 && expected.len() > 3_000, "{seed}");
            let (lines, findings) = read(&bytes);
            assert!(lines == expected && findings.is_empty(), "{seed}: {findings:?}");
        }
    }

    #[test]
    fn events_before_a_damaged_piece_are_read() {
        let (bytes, expected) = recorded(99, 60);
        let chunks = streamed(&bytes);
        assert!(chunks.len() > 4);
        let mut before = 0;
        for (at, header) in &chunks {
            for place in 0..header.stored_bytes as usize {
                let mut damaged = bytes.clone();
                damaged[at + CHUNK_HEADER_BYTES + place] ^= 0x10;
                let (lines, findings) = read(&damaged);
                assert_eq!(lines, expected[..before]);
                let [Finding::DamagedChunk { offset, .. }] = findings[..] else { panic!("{findings:?}") };
                assert_eq!(offset, *at as u64);
            }
            before += header.events as usize;
        }
        assert_eq!(before, expected.len());
    }

    #[test]
    fn what_is_cut_tells_whole_chunks() {
        let (bytes, expected) = recorded(7, 40);
        let chunks = streamed(&bytes);
        for cut in 64..bytes.len() {
            let whole = |(at, header): &&(usize, ChunkHeader)| {
                at + CHUNK_HEADER_BYTES + header.stored_bytes as usize <= cut
            };
            let events: usize = chunks.iter().filter(whole).map(|(_, header)| header.events as usize).sum();
            let (lines, _) = read(&bytes[..cut]);
            assert_eq!(lines, expected[..events], "cut at {cut}");
        }
    }
}
