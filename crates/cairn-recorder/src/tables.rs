//! Writes records of modules, frames and stacks through a claimed table log.

use cairn_format::recording::{Lane, RecordSink, SinkTooSmall};

use crate::recorder::Recorder;
use crate::spool::SegmentUse;
use crate::table_log::TakenLog;

/// A table log that this thread has to itself, and its recording.
pub(crate) struct TableWriter<'a> {
    recorder: &'a Recorder,
    log: TakenLog<'a>,
}

impl<'a> TableWriter<'a> {
    /// Claims a free log; `None` while all are in use.
    pub(crate) fn take(recorder: &'a Recorder) -> Option<Self> {
        let log = recorder.tables.take()?;
        if log.writer.thread == 0 {
            log.writer.thread = recorder.next_thread();
        }
        Some(Self { recorder, log })
    }

    pub(crate) fn recorder(&self) -> &'a Recorder {
        self.recorder
    }

    /// Lends the log's scratch memory out, until [`return_scratch`](Self::return_scratch); empty
    /// while it is lent out.
    pub(crate) fn take_scratch(&mut self) -> &'a mut [u8] {
        core::mem::take(&mut self.log.scratch)
    }

    pub(crate) fn return_scratch(&mut self, scratch: &'a mut [u8]) {
        self.log.scratch = scratch;
    }

    /// Appends a record; returns false when there is no storage for it.
    pub(crate) fn append(
        &mut self,
        slots: usize,
        write: impl FnOnce(&mut RecordSink<'_>) -> Result<(), SinkTooSmall>,
    ) -> bool {
        let result = self.recorder.append(self.log.writer, SegmentUse::Tables, Lane::Outer, slots, write);
        if let Err(why) = result {
            self.recorder.no_segment(why);
        }
        result.is_ok()
    }
}
