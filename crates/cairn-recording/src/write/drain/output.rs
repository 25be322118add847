//! The packed file while a spool is drained, and what goes into it beside allocations and frees.

use std::fs::File;
use std::io::BufWriter;
use std::time::{Duration, Instant};

use cairn_format::AbsoluteAddress;
use cairn_format::recording::{BadRecord, EndReason, Record, Records, ThreadEvent};

use crate::clock::TimeScale;
use crate::error::{Finding, RecordingError};
use crate::model::{Module, ModuleId, Thread};
use crate::packed::progress::Progress;
use crate::spool::control_words::note_loss;
use crate::spool::follower::WhileMerging;
use crate::spool::lives::{LaneKey, Lives};
use crate::tables::TableBuilder;
use crate::write::pack::Packer;

/// How long anything waits to be written, unless something else is said.
const FLUSH_AFTER: Duration = Duration::from_millis(500);

/// The file, and the tables that are being written to it.
pub(super) struct Output {
    /// Another descriptor of what the packer writes to.
    pub(super) file: File,
    pub(super) packer: Packer<BufWriter<File>>,
    tables: TableBuilder,
    pub(super) findings: Vec<Finding>,
    pub(super) end: Option<EndReason>,
    pub(super) last_flush: Instant,
    pub(super) flush_after: Duration,
}

impl Output {
    pub(super) fn new(file: File, packer: Packer<BufWriter<File>>) -> Self {
        Self {
            file,
            packer,
            tables: TableBuilder::default(),
            findings: Vec::new(),
            end: None,
            last_flush: Instant::now(),
            flush_after: FLUSH_AFTER,
        }
    }

    /// Takes the rare records of a piece.
    pub(super) fn take_records(&mut self, bytes: &[u8], offset: usize, scale: &TimeScale) {
        let mut records = Records::new(bytes, offset);
        loop {
            records.skip_frequent();
            match records.next() {
                Some(Ok(placed)) => self.take_record(&placed.record, scale),
                // Unreadable data is noted when it is merged.
                Some(Err(_)) | None => return,
            }
        }
    }

    fn take_record(&mut self, record: &Record<'_>, scale: &TimeScale) {
        // The clocks are read here; the program's readings would only make the list long. And
        // stacks and code are written and forgotten.
        let is_forgotten = matches!(
            record,
            Record::Clock(_)
                | Record::Pc { .. }
                | Record::TreeWords { .. }
                | Record::Code(_)
                | Record::CodeLines { .. }
                | Record::Interpreter { .. }
        );
        if !is_forgotten {
            self.tables.record(record);
        }
        match *record {
            Record::Pc { number, kind, address, module } => {
                let start = self.tables.raw_modules().get(&module).map(|module| module.start);
                self.packer.pc(number, kind, address, module, start);
            }
            Record::Code(code) => self.packer.code(&code),
            Record::CodeLines { code, offset, bytes } => self.packer.code_lines(code, offset, bytes),
            Record::Interpreter { version, state } => self.packer.interpreter(version, state),
            Record::TreeWords { first, words } => self.packer.words(first, words),
            Record::ModuleLoaded(module) => self.write_module(module.number, scale),
            Record::ModuleUnloaded { number, .. } => self.write_module(number, scale),
            Record::Loss { kind, count } => note_loss(kind, count, &mut self.findings),
            Record::End { reason, .. } => self.end = Some(reason),
            _ => {}
        }
    }

    fn write_module(&mut self, number: u32, scale: &TimeScale) {
        let Some(module) = self.tables.raw_modules().get(&number).filter(|module| module.end != 0) else {
            return;
        };
        let module = Module {
            id: ModuleId(number),
            path: module.path.clone(),
            build_id: module.build_id.clone(),
            start: AbsoluteAddress::new(module.start),
            end: AbsoluteAddress::new(module.end),
            bias: module.bias,
            loaded_nanos: scale.nanos(module.loaded),
            unloaded_nanos: module.unloaded.map(|counter| scale.nanos(counter)),
        };
        self.packer.module(&module);
    }

    /// Takes what merging met beside events.
    pub(super) fn take_merged(&mut self, merged: &mut MergedRecords, scale: &TimeScale) {
        if !merged.ends.is_empty() {
            let mut begin = 0;
            for &end in &merged.ends {
                for placed in Records::new(merged.bytes.get(begin..end).unwrap_or_default(), 0).flatten() {
                    self.take_record(&placed.record, scale);
                }
                begin = end;
            }
            merged.bytes.clear();
            merged.ends.clear();
        }
        // For a recording that is not closed; the last word on threads is written at the end.
        for (number, name) in merged.threads.drain(..) {
            if let Some(thread) = merged.lives.thread(number, scale) {
                let name = name.unwrap_or_default();
                self.packer.thread(&Thread { name, earlier_names: Vec::new(), ..thread });
            }
        }
        self.findings.append(&mut merged.findings);
    }

    /// True when something has waited for long enough.
    pub(super) fn is_due(&self, has_drained: bool) -> bool {
        self.last_flush.elapsed() >= self.flush_after && (self.packer.has_unwritten() || has_drained)
    }

    pub(super) fn flush(
        &mut self,
        progress: impl Iterator<Item = Progress>,
        until_nanos: u64,
    ) -> Result<(), RecordingError> {
        self.packer.flush_with_progress(progress, until_nanos)?;
        self.last_flush = Instant::now();
        Ok(())
    }
}

/// Records that merging meets beside events.
#[derive(Default)]
pub(super) struct MergedRecords {
    pub(super) lives: Lives,
    /// Records of threads that are not in the packed recording yet.
    ///
    /// Each has the thread's number, and its name where the record is a name.
    threads: Vec<(u32, Option<Vec<u8>>)>,
    /// Rare records, one behind the other, each with where it ends.
    bytes: Vec<u8>,
    ends: Vec<usize>,
    /// Segments that are merged to their end.
    pub(super) segments: Vec<u32>,
    findings: Vec<Finding>,
}

impl WhileMerging for MergedRecords {
    fn segment_begins(&mut self, lane: LaneKey, kernel_thread: u32, counter: u64) -> u32 {
        self.lives.block(lane, kernel_thread, counter)
    }

    fn thread(&mut self, lane: LaneKey, counter: u64, event: ThreadEvent<'_>) -> Option<u32> {
        let thread = self.lives.record(lane, counter, event)?;
        let name = if let ThreadEvent::Named(name) = event { Some(name.to_vec()) } else { None };
        self.threads.push((thread, name));
        Some(thread)
    }

    fn rare_record(&mut self, record: &[u8]) {
        self.bytes.extend_from_slice(record);
        self.ends.push(self.bytes.len());
    }

    fn damaged(&mut self, error: BadRecord, lost_bytes: u64) {
        // Where the segment was says nothing: it will be used again.
        self.findings.push(Finding::DamagedRecords { offset: 0, error, lost_bytes });
    }

    fn merged(&mut self, segment: u32) {
        self.segments.push(segment);
    }
}
