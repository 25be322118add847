//! Stacks on their way into the file: what a capture adds to the stack table is in the spool before the capture answers.
//!
//! Tables go to blocks of their own, so that a recording which keeps its last part only can keep them all. A thread that
//! has something to write takes any of a few [`TableLog`]s that is free; so a signal handler in the midst of it, and one
//! inside that one, find a place too, and no thread waits for another. Should all be taken, what was to be written is
//! remembered as a lower bound, and written by whoever gives a place back next, or comes next.
//!
//! Written twice is no harm: each record says all there is to say of its number.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use cairn_capture::{FrameId, NewStacks, StackCursor, StackId, StackRow, StopReason};
use cairn_format::Frame;
use cairn_format::recording::{Lane, MAX_TREE_WORDS, PcKind, RecordSink, SinkTooSmall, control};

use crate::os::KeptErrno;
use crate::recorder::{self, Recorder};
use crate::spool::Use;
use crate::writer::Writer;

/// So many threads and handlers may publish at once.
const TABLE_LOGS: usize = 16;
/// Room for a path and what else has no place on small stacks.
const SCRATCH_BYTES: usize = 8192;
/// Frame numbers are smaller than this.
const PCS: usize = 1 << 24;

/// Where tables are written to. All-zero bytes are one without a block.
#[repr(C)]
pub(crate) struct TableLog {
    is_taken: AtomicU32,
    writer: Writer,
    pub(crate) scratch: [u8; SCRATCH_BYTES],
}

/// See the module documentation.
#[repr(C)]
pub(crate) struct TableLogs {
    logs: [TableLog; TABLE_LOGS],
    /// From this word of the stack table on something was left out; 0 for nothing.
    left_out_from: AtomicU32,
}

/// Which frames are in the file.
#[repr(C)]
pub(crate) struct PublishedPcs([AtomicU64; PCS / 64]);

impl PublishedPcs {
    fn has(&self, pc: FrameId) -> bool {
        let word = self.0.get(pc.number() as usize / 64);
        word.is_some_and(|word| word.load(Ordering::Acquire) >> (pc.number() % 64) & 1 != 0)
    }

    fn add(&self, pc: FrameId) {
        if let Some(word) = self.0.get(pc.number() as usize / 64) {
            word.fetch_or(1 << (pc.number() % 64), Ordering::Release);
        }
    }
}

/// A table log that this thread has to itself.
pub(crate) struct Tables<'a> {
    recorder: &'a Recorder,
    log: *mut TableLog,
}

impl<'a> Tables<'a> {
    pub(crate) fn take(recorder: &'a Recorder) -> Option<Self> {
        let log =
            recorder.tables.logs.iter().find(|log| {
                log.is_taken.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
            })?;
        let mut tables = Self { recorder, log: core::ptr::from_ref(log).cast_mut() };
        let writer = tables.writer();
        if writer.thread == 0 {
            writer.thread = recorder.next_thread();
        }
        Some(tables)
    }

    fn writer(&mut self) -> &mut Writer {
        // SAFETY: taken, so that nobody else uses it.
        unsafe { &mut (*self.log).writer }
    }

    /// Bytes to work with.
    pub(crate) fn scratch(&mut self) -> &'a mut [u8; SCRATCH_BYTES] {
        // SAFETY: taken, and the one caller that holds the scratch at a time is `modules::publish`.
        unsafe { &mut (*self.log).scratch }
    }

    /// Appends a record; false when there is no storage for it.
    pub(crate) fn append(
        &mut self,
        slots: usize,
        write: impl FnOnce(&mut RecordSink<'_>) -> Result<(), SinkTooSmall>,
    ) -> bool {
        let recorder = self.recorder;
        let result = self.writer().append(recorder, Use::Tables, Lane::Outer, slots, write);
        if let Err(why) = result {
            recorder.no_block(why);
        }
        result.is_ok()
    }

    /// The frame of a row, and its module, if they are not in the file yet.
    fn publish_frame(&mut self, row: &StackRow) {
        if self.recorder.published.has(row.frame_id) {
            return;
        }
        let (kind, address) = meaning(row);
        let module = self.recorder.modules.number_of(row.module, address, self);
        if self.append(3, |sink| sink.pc(row.frame_id.number(), kind, address, module)) {
            self.recorder.published.add(row.frame_id);
        }
    }

    fn publish_new(&mut self, stacks: NewStacks) {
        stacks.rows().for_each(|row| self.publish_frame(&row));
        let mut first = stacks.first_word();
        let mut words = stacks.words();
        while words.len() > 0 {
            let count = words.len().min(MAX_TREE_WORDS);
            let part = Part { words: &mut words, left: count };
            if !self.append(2 + count.div_ceil(2), |sink| sink.tree_words(first, part)) {
                self.recorder.spool.word(control::LOST_STACKS).fetch_add(1, Ordering::Relaxed);
                return;
            }
            first += count as u32;
        }
    }

    /// All stacks whose number is at least `from`.
    fn publish_known(&mut self, from: u32) {
        let mut cursor = StackCursor::START;
        loop {
            while let Some(row) = cursor.next_row() {
                if row.id.number() >= from {
                    self.publish_row(&row);
                }
            }
            if !cursor.skip_unfinished() {
                break;
            }
        }
    }

    fn publish_row(&mut self, row: &StackRow) {
        self.publish_frame(row);
        let (number, pc) = (row.id.number(), row.frame_id.number());
        if row.parent.number() == number - 1 && row.parent != StackId::EMPTY {
            self.append(3, |sink| sink.tree_words(number, [pc].into_iter()));
        } else {
            let head = HEAD | row.parent.number();
            self.append(3, |sink| sink.tree_words(number - 1, [head, pc].into_iter()));
        }
    }
}

/// As in the stack table: marks the word that names the parent of those that follow.
const HEAD: u32 = 1 << 31;

impl Drop for Tables<'_> {
    fn drop(&mut self) {
        // SAFETY: the log lives as long as the recorder.
        unsafe { &(*self.log).is_taken }.store(0, Ordering::Release);
    }
}

/// The next few of many words.
struct Part<'a, W> {
    words: &'a mut W,
    left: usize,
}

impl<W: Iterator<Item = u32>> Iterator for Part<'_, W> {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        self.left = self.left.checked_sub(1)?;
        self.words.next()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl<W: Iterator<Item = u32>> ExactSizeIterator for Part<'_, W> {}

/// Called inside captures; see [`cairn_capture::observe_new_stacks`].
fn on_new_stacks(stacks: NewStacks) {
    // The stacks are in the table: either this finds a recorder that is just published, or that one's begin finds them.
    fence(Ordering::SeqCst);
    let Some(recorder) = recorder::current() else { return };
    let _errno = KeptErrno::new();
    match Tables::take(recorder) {
        Some(mut tables) => tables.publish_new(stacks),
        None => recorder.tables.leave_out(stacks.first_word()),
    }
    publish_left_out(recorder);
}

impl TableLogs {
    /// Notes that stacks from this word on are to be written by somebody else.
    fn leave_out(&self, first: u32) {
        let first = first.max(1);
        let lower = |known: u32| (known == 0 || first < known).then_some(first);
        let _ = self.left_out_from.fetch_update(Ordering::SeqCst, Ordering::Relaxed, lower);
    }
}

/// Writes what others had no place for. Who could not take one has noted it before it looks here, and who gives one back looks here
/// afterwards: one of them finds the other's.
fn publish_left_out(recorder: &Recorder) {
    loop {
        fence(Ordering::SeqCst);
        if recorder.tables.left_out_from.load(Ordering::SeqCst) == 0 {
            return;
        }
        let Some(mut tables) = Tables::take(recorder) else { return };
        let first = recorder.tables.left_out_from.swap(0, Ordering::SeqCst);
        if first != 0 {
            tables.publish_known(first);
        }
    }
}

/// Writes what is known of stacks, and has everything that comes written.
pub(crate) fn begin(recorder: &Recorder) {
    // First, so that nothing is missed between.
    cairn_capture::observe_new_stacks(on_new_stacks);
    fence(Ordering::SeqCst);
    match Tables::take(recorder) {
        Some(mut tables) => tables.publish_known(0),
        None => recorder.tables.leave_out(0),
    }
    publish_left_out(recorder);
}

/// How the format says what a row says.
fn meaning(row: &StackRow) -> (PcKind, u64) {
    match row.frame {
        Ok(Frame::ProgramCounter(address)) => (PcKind::ProgramCounter, address.value()),
        Ok(frame) => (PcKind::ReturnAddress, frame.address().map_or(0, |address| address.value())),
        Err(StopReason::NoUnwindInfo { pc }) => (PcKind::NoUnwindInfo, pc.value()),
        Err(StopReason::BadUnwindInfo { pc }) => (PcKind::BadUnwindInfo, pc.value()),
        Err(StopReason::UnreadableMemory { address }) => (PcKind::UnreadableMemory, address.value()),
        Err(StopReason::NoProgress { pc }) => (PcKind::NoProgress, pc.value()),
        Err(StopReason::OutsideStack { address }) => (PcKind::OutsideStack, address.value()),
        Err(StopReason::UnknownRegister { register }) => (PcKind::UnknownRegister, register.into()),
        Err(_) => (PcKind::Limit, 0),
    }
}
