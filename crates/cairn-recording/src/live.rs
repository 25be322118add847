//! Reads a recording while it grows: each look reads what is new, and nothing twice.

use std::path::{Path, PathBuf};

use crate::clock::TimeScale;
use crate::error::{Finding, RecordingError};
use crate::files::open_source;
use crate::model::{Events, Wanted};
use crate::packed::live::{LivePacked, PackedLook};
use crate::recording::{Layout, Recording};
use crate::source::Source;
use crate::spool::control_words::counter_hz;
use crate::spool::live::{LiveSpool, SpoolLook};
use crate::tables::TableBuilder;

/// Follows a recording that grows. Goes with one [`Recording`], whose tables it keeps up to date.
pub struct Live {
    path: PathBuf,
    tables: TableBuilder,
    reader: LiveReader,
}

enum LiveReader {
    Spool(Box<LiveSpool>),
    Packed(Box<LivePacked>),
}

impl Live {
    /// Begins with nothing but the header and the facts.
    pub fn open(path: &Path) -> Result<(Recording, Self), RecordingError> {
        let recording = Recording::empty(open_source(path)?)?;
        let reader = match &recording.layout {
            Layout::Spool(_) => LiveReader::Spool(Box::new(LiveSpool::new(recording.header.start_counter))),
            Layout::Packed(_) => LiveReader::Packed(Box::new(LivePacked::new()?)),
        };
        Ok((recording, Self { path: path.to_owned(), tables: TableBuilder::default(), reader }))
    }

    /// Limits the bytes read of each thread ahead of the events that can be handed on.
    ///
    /// This bounds the memory for a large spool that exists already; [`has_more`](Self::has_more)
    /// reports whether there is more to read at once.
    pub fn set_lane_limit(&mut self, bytes: usize) {
        if let LiveReader::Spool(spool) = &mut self.reader {
            spool.set_lane_limit(bytes);
        }
    }

    /// Limits the events of a packed recording that are handed on at once.
    ///
    /// [`has_more`](Self::has_more) reports whether there are more.
    pub fn set_event_limit(&mut self, events: u64) {
        if let LiveReader::Packed(packed) = &mut self.reader {
            packed.set_event_limit(events);
        }
    }

    /// Whether something was left unread because of a limit.
    pub fn has_more(&self) -> bool {
        match &self.reader {
            LiveReader::Spool(spool) => spool.unread_from().is_some(),
            LiveReader::Packed(packed) => packed.has_more(),
        }
    }

    /// Returns the time up to which all events were handed on, in nanoseconds from the start.
    ///
    /// `None` where the file does not give it.
    pub fn read_until_nanos(&self, recording: &Recording) -> Option<u64> {
        match &self.reader {
            LiveReader::Spool(spool) => {
                spool.unread_from().map(|ticks| recording.scale.nanos_of_ticks(ticks))
            }
            LiveReader::Packed(packed) => Some(packed.read_until_nanos()).filter(|&nanos| nanos > 0),
        }
    }

    /// Until when at least there is something to read.
    pub fn known_until_nanos(&self, recording: &Recording) -> u64 {
        match &self.reader {
            LiveReader::Spool(spool) => recording.scale.nanos_of_ticks(spool.latest_ticks()),
            LiveReader::Packed(packed) => packed.known_until_nanos(),
        }
    }

    /// Whether the last look found anything new.
    pub fn had_news(&self) -> bool {
        match &self.reader {
            LiveReader::Spool(spool) => spool.had_news(),
            LiveReader::Packed(packed) => packed.idle_reads() == 0,
        }
    }

    /// Frees so far that found no block.
    pub fn unmatched_frees(&self, recording: &Recording) -> u64 {
        match &self.reader {
            LiveReader::Spool(spool) => spool.unmatched_frees(),
            LiveReader::Packed(_) => recording.totals().map_or(0, |totals| totals.unmatched_frees),
        }
    }

    /// Equal for as long as no modules, addresses and stacks come to the tables.
    pub fn tables_version(&self) -> (usize, usize, usize) {
        self.tables.version()
    }

    /// True for a spool whose segments are drained and written to again.
    pub fn is_drained(&self) -> bool {
        matches!(&self.reader, LiveReader::Spool(spool) if spool.is_drained())
    }

    /// Reads what is new. With `is_last` nothing will follow.
    pub fn look(&mut self, recording: &mut Recording, is_last: bool) -> Result<(), RecordingError> {
        // Under the same name there may be a newer state of it; and when it has another name now,
        // what is open goes on.
        if let Ok(source) = open_source(&self.path)
            && is_same(&source, recording)
        {
            recording.source = source;
        }
        self.tables.give_stacks(&mut recording.tables);
        let Recording { header, source, layout, facts, end, early, .. } = recording;
        let tables = &mut self.tables;
        let looked = match (&mut self.reader, layout) {
            (LiveReader::Spool(spool), _) => {
                spool.look(source, &mut SpoolLook { tables, end, early }, is_last)
            }
            (LiveReader::Packed(packed), Layout::Packed(into)) => {
                let totals = &mut into.totals;
                let mut look = PackedLook { header, facts, tables, end, early, totals };
                packed.look(source, &mut look, is_last)
            }
            // Both were made of one header.
            (LiveReader::Packed(_), Layout::Spool(_)) => Ok(()),
        };
        let hz = counter_hz(&recording.facts);
        recording.scale = TimeScale::new(&recording.header, &self.tables.clocks, hz, &mut Vec::new());
        recording.tables = self.tables.take_tables(&recording.scale);
        looked
    }

    /// Hands on what is in order by now.
    pub fn read_new<E: Events>(
        &mut self,
        recording: &Recording,
        wanted: &Wanted,
        events: &mut E,
    ) -> Result<(), RecordingError> {
        match &mut self.reader {
            LiveReader::Spool(spool) => spool.read_new(&recording.scale, wanted, events),
            LiveReader::Packed(packed) => packed.read_new(&recording.source, wanted, events)?,
        }
        Ok(())
    }

    /// Returns whether the data of a program that has ended is complete.
    ///
    /// Until then, the process that drains it needs a moment more.
    pub fn is_settled(&self, recording: &Recording) -> bool {
        match &self.reader {
            LiveReader::Spool(_) => true,
            LiveReader::Packed(packed) => packed.idle_reads() >= SETTLED_READS && !recording.source.is_held(),
        }
    }

    /// Returns the findings about the file so far.
    pub fn findings(&self) -> &[Finding] {
        match &self.reader {
            LiveReader::Spool(spool) => spool.findings(),
            LiveReader::Packed(packed) => packed.findings(),
        }
    }
}

/// Number of reads without new data after which a file is finished; 10.
///
/// Used where the kernel does not report whether the file is held.
const SETTLED_READS: u32 = 10;

/// Whether the recorded process is there. Where that cannot be known it is taken to be.
pub fn is_running(process: u32) -> bool {
    let all = Path::new("/proc");
    if !all.join("self").exists() {
        return true;
    }
    // The name in parentheses may hold anything; what follows is the state, the third word.
    let stat = std::fs::read(all.join(process.to_string()).join("stat"));
    stat.is_ok_and(|stat| {
        let stat = String::from_utf8_lossy(&stat);
        let Some((_, words)) = stat.rsplit_once(") ") else { return false };
        let words: Vec<&str> = words.split_ascii_whitespace().collect();
        let threads = words.get(THREADS - STATE).and_then(|word| word.parse::<u32>().ok()).unwrap_or(1);
        // One that has ended and was not waited for has a line of its own still; and its first
        // thread may end before the others.
        words.first().is_some_and(|state| !matches!(*state, "Z" | "X") || threads > 1)
    })
}

/// Which of the words of `/proc/PID/stat` these are.
const STATE: usize = 3;
const THREADS: usize = 20;

fn is_same(source: &Source, recording: &Recording) -> bool {
    let mut start = Vec::new();
    let read = source.read_at(0, cairn_format::recording::FILE_HEADER_BYTES, &mut start);
    read.is_ok() && start == recording.header.to_bytes()
}
