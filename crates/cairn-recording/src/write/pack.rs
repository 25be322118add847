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
    fn has_many_sites(&self) -> bool {
        self.heap.has_many_sites()
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
mod tests;
