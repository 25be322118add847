//! Opens recordings, in one way:
//!
//! ```text
//!   path ──> bytes ──────────────> kind ─────> reader ────────────> findings
//!            the file at rest,     spool or    tables, and where    of the bytes, and of the
//!            the packed one that   packed      the events are       situation: no end, not
//!            grows, or a copy                                       closed, growing
//!            of a ring
//! ```
//!
//! A packed recording that was not closed is opened together with the spool that it was made of.
//! Files change while they are opened: a spool is closed, a drain begins or ends. So a file is
//! opened again until it was the same before and after.

use std::io::Read;
use std::path::Path;
use std::time::Duration;

use cairn_format::recording::{
    FILE_HEADER_BYTES, FileHeader, InterpreterState, SEGMENT_BYTES, Shape, control,
};

use crate::clock::TimeScale;
use crate::error::{Finding, RecordingError};
use crate::files::{
    drained_from, drained_into, header_of, is_drained_at_present, is_drained_now, is_of_same, open_source,
    packed_of, spool_of,
};
use crate::growth::{Growth, Moment, is_written, nanos_since_start};
use crate::model::ThreadId;
use crate::packed::reader::{self as packed, Extent, Packed};
use crate::recording::{Layout, Recording, Rest};
use crate::source::Source;
use crate::spool::control_words::{self, RawEarlyEnd, counter_hz, word};
use crate::spool::reader::Spool;
use crate::spool::scan::{self, ChooseWindow, Part};
use crate::spool::{lives, ring};
use crate::tables::TableBuilder;

/// Maximum attempts to open a file that changes meanwhile; 8, 5 ms apart.
///
/// Closing a recording takes less than that.
const ATTEMPTS: u32 = 8;

/// One try to open a recording.
enum Attempt {
    Settled(Recording),
    /// The files changed meanwhile, so they are to be opened again. The result of this attempt is
    /// the answer if that does not help.
    Changed(Result<Recording, RecordingError>),
}

impl Recording {
    /// Opens a file.
    ///
    /// # Errors
    ///
    /// When it cannot be read, or is no recording. A damaged one opens, with
    /// [`findings`](Self::findings).
    pub fn open(path: impl AsRef<Path>) -> Result<Self, RecordingError> {
        Self::open_path(path.as_ref(), None)
    }

    /// Opens a packed recording that was not closed, together with the spool that it was made
    /// from.
    ///
    /// That happens when `cairn` itself was killed. Every event is read once, from the file that
    /// has it. [`open`](Self::open) does this by itself where the two have the names that `cairn`
    /// gives them (the packed one that of the spool with `.new` behind it).
    ///
    /// Packed events have no addresses any more. So frees behind the end of the packed recording,
    /// of blocks from before it, find no block: they are counted as
    /// [unmatched](crate::Outcome::unmatched_frees), and their blocks seem to live on. Where the
    /// two files meet, that count may be wrong by the few frees that came in another order than
    /// their threads'.
    ///
    /// A packed recording that was closed is whole, and the spool is not read; nor is one of
    /// another process, or one that is still drained. [`Finding::Continued`] tells when it was.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open), for either file.
    pub fn open_with_rest(packed: impl AsRef<Path>, spool: impl AsRef<Path>) -> Result<Self, RecordingError> {
        let recording = read(open_source(packed.as_ref())?, Extent::Whole, None)?;
        let joined = recording.joined_with(spool.as_ref())?;
        Ok(joined.unwrap_or(recording).with_situation(None))
    }

    /// Opens a part of the time of a file, and reads only the segments of a spool that may belong
    /// to it.
    ///
    /// That takes some milliseconds in place of a second for each gigabyte. `choose` returns the
    /// part, in nanoseconds from the start: from the first on, before the second.
    ///
    /// [`read`](Self::read) then gives the marks and rare events of that part, and no allocations
    /// and frees: these depend on all that came before. Modules and stacks are all there;
    /// [`findings`](Self::findings) are those of what was read.
    ///
    /// ```no_run
    /// # use cairn_recording::Recording;
    /// let second = |_: &_| (60_000_000_000, 61_000_000_000);
    /// let recording = Recording::open_window("program.4711.cairn", second)?;
    /// # Ok::<(), cairn_recording::RecordingError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn open_window(
        path: impl AsRef<Path>,
        choose: impl FnOnce(&TimeScale) -> (u64, u64),
    ) -> Result<Self, RecordingError> {
        Self::open_path(path.as_ref(), Some(Box::new(choose)))
    }

    /// Opens what is in memory.
    ///
    /// # Errors
    ///
    /// When it is no recording.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, RecordingError> {
        Ok(read(Source::Bytes(bytes), Extent::Whole, None)?.with_situation(None))
    }

    /// As [`open_window`](Self::open_window), of what is in memory.
    ///
    /// # Errors
    ///
    /// When it is no recording.
    pub fn from_bytes_window(
        bytes: Vec<u8>,
        choose: impl FnOnce(&TimeScale) -> (u64, u64),
    ) -> Result<Self, RecordingError> {
        let choose: Box<ChooseWindow<'_>> = Box::new(choose);
        Ok(read(Source::Bytes(bytes), Extent::Whole, Some(choose))?.with_situation(None))
    }

    /// Opens what comes out of a pipe, when it has come whole.
    ///
    /// # Errors
    ///
    /// When it cannot be read, or is no recording.
    pub fn from_reader(reader: impl Read) -> Result<Self, RecordingError> {
        Ok(read(Source::from_reader(reader)?, Extent::Whole, None)?.with_situation(None))
    }

    /// Opens the same file again, whatever its name is now.
    ///
    /// A recording that was read by [`Live`](crate::Live) gets the findings of an opening.
    pub fn reopened(&self) -> Result<Self, RecordingError> {
        Ok(read(self.source.again()?, Extent::Whole, None)?.with_situation(None))
    }

    /// A recording without events and tables, which [`Live`](crate::Live) fills.
    pub(crate) fn empty(source: Source) -> Result<Self, RecordingError> {
        let mut start = Vec::new();
        source.read_at(0, SEGMENT_BYTES, &mut start)?;
        let header = FileHeader::read(&start)?;
        let (layout, facts) = match header.shape {
            Shape::Spool => (Layout::Spool(Spool::empty()), control_words::facts(&start)),
            Shape::Packed => (Layout::Packed(Box::new(Packed::empty())), Vec::new()),
        };
        let scale = TimeScale::new(&header, &[], counter_hz(&facts), &mut Vec::new());
        let tables = TableBuilder::default().finish(&scale);
        let (end, early, window, rest, findings) = (None, None, None, None, Vec::new());
        Ok(Self { header, source, layout, facts, tables, scale, end, early, findings, window, rest })
    }

    fn open_path(path: &Path, mut choose: Option<Box<ChooseWindow<'_>>>) -> Result<Self, RecordingError> {
        if !path.metadata().is_ok_and(|facts| facts.is_file()) {
            // A pipe is read once.
            return Ok(read(open_source(path)?, Extent::Whole, choose)?.with_situation(None));
        }
        let mut attempt = 0;
        loop {
            attempt += 1;
            let last = match open_once(path, &mut choose)? {
                Attempt::Settled(recording) => return Ok(recording),
                Attempt::Changed(last) => last,
            };
            if attempt >= ATTEMPTS {
                // Its findings say that a part is missing.
                return last;
            }
            if let Ok(Some(window)) = last.map(|recording| recording.window) {
                choose = Some(Box::new(move |_| window));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Adds what depends on the situation to the findings of the bytes.
    fn with_situation(mut self, growth: Option<Growth>) -> Self {
        if self.end.is_none() && growth.is_none() {
            self.findings.push(Finding::NoEnd);
        }
        if self.is_left() && self.rest.is_none() && growth.is_none() {
            self.findings.push(Finding::NotClosed);
        }
        self.findings.extend(growth.map(Finding::Growing));
        self
    }

    /// Whether this is a packed recording that was not closed.
    fn is_left(&self) -> bool {
        matches!(&self.layout, Layout::Packed(packed) if packed.totals.is_none())
    }

    /// Returns whether the files are unchanged since their reading began.
    ///
    /// That was at `moment`, if the program ran then.
    fn settled_since(mut self, path: &Path, moment: Option<Moment>) -> Attempt {
        let spool = match &self.rest {
            Some(_) => spool_of(path).unwrap_or_else(|| path.to_owned()),
            None => path.to_owned(),
        };
        let is_spool = self.rest.is_some() || matches!(self.layout, Layout::Spool(_));
        let is_there = header_of(&spool).is_some_and(|header| is_of_same(&header, &self.header));
        let is_drained_now = drained_into(&spool).is_some() && is_drained_at_present(&spool);
        let is_closed =
            is_spool && is_there && header_of(&spool).is_some_and(|header| header.shape == Shape::Packed);
        if is_spool && (is_drained_now || is_closed) {
            return Attempt::Changed(Ok(self.with_situation(None)));
        }
        let Some(Moment { ticks, nanos }) = moment.filter(|_| is_spool && self.end.is_none()) else {
            return Attempt::Settled(self.with_situation(None));
        };
        if !is_written(&spool, self.header.process) {
            // It has ended, and what it wrote last may have been missed.
            return Attempt::Changed(Ok(self.with_situation(None)));
        }
        match (&mut self.rest, &mut self.layout) {
            (Some(rest), _) => rest.spool.grows_since(ticks),
            (None, Layout::Spool(spool)) => spool.grows_since(ticks),
            (None, Layout::Packed(_)) => {}
        }
        // A segment that was taken behind the place that was read last, and the one after it in
        // front of that place.
        let is_torn = self.findings.iter().any(|finding| matches!(finding, Finding::MissingSegments { .. }));
        let growth = Growth { until_nanos: Some(nanos), age_nanos: Some(0), is_drained: false };
        let recording = self.with_situation(Some(growth));
        if is_torn { Attempt::Changed(Ok(recording)) } else { Attempt::Settled(recording) }
    }

    /// Reads this unclosed packed recording together with the spool that it was made from.
    ///
    /// `None` when the spool adds nothing.
    fn joined_with(&self, path: &Path) -> Result<Option<Self>, RecordingError> {
        let Layout::Packed(packed) = &self.layout else { return Ok(None) };
        if packed.totals.is_some() {
            return Ok(None);
        }
        let source = open_source(path)?;
        let mut first = Vec::new();
        source.read_at(0, SEGMENT_BYTES, &mut first)?;
        let Ok(header) = FileHeader::read(&first) else { return Ok(None) };
        if header.shape != Shape::Spool || !is_of_same(&header, &self.header) {
            return Ok(None);
        }
        let is_given_back = word(&first, control::FREE_GIVEN) > 0;
        if packed.progress.is_none() && is_given_back || is_drained_now(&source, &first)? {
            return Ok(None);
        }
        // The process that drained it may have gone on, and closed it, since it was read here; from
        // now on none does.
        let again = read(self.source.again()?, Extent::UpToProgress, None)?;
        let mut joined = Self { window: self.window, ..again };
        source.read_at(0, SEGMENT_BYTES, &mut first)?;
        let Layout::Packed(packed) = &mut joined.layout else { return Ok(None) };
        if packed.totals.is_some() {
            return Ok(Some(joined));
        }
        let is_given_back = word(&first, control::FREE_GIVEN) > 0;
        if packed.progress.is_none() && is_given_back {
            return Ok(None);
        }
        packed.unmatched_frees = word(&first, control::UNMATCHED_FREES);
        joined.add_rest(source, &header)?;
        joined.findings.push(Finding::Continued { spool: path.to_owned() });
        Ok(Some(joined))
    }

    /// Adds what a spool has behind the places up to which it was drained.
    fn add_rest(&mut self, source: Source, header: &FileHeader) -> Result<(), RecordingError> {
        let Layout::Packed(packed) = &self.layout else { return Ok(()) };
        let mut findings = Vec::new();
        let (mut scanned, _) = scan::scan(&source, header, Part::Rest(packed.lanes()), &mut findings)?;
        let hz = counter_hz(&scanned.facts);
        let scale = TimeScale::new(header, &scanned.tables.clocks, hz, &mut findings);
        let mut rest = scanned.tables.finish(&scale);
        let has_began_record = |number| scanned.tables.threads.has_began_record(number);
        let numbers = lives::numbers_behind(&self.tables.threads, &rest.threads, has_began_record);
        let number = |id: u32| numbers.get(&id).copied().unwrap_or(id);
        scanned.spool.renumber_threads(number);
        rest.threads.iter_mut().for_each(|thread| thread.id = ThreadId(number(thread.id.0)));
        self.tables.absorb(rest);
        let bad_rows = scanned.tables.bad_rows;
        if bad_rows > 0 {
            findings.push(Finding::BadTableRows { count: bad_rows });
        }
        if let Some((reason, counter)) = scanned.end {
            self.end = Some((reason, self.header.start_counter.saturating_add(scale.nanos(counter))));
        }
        if let Some(early) = scanned.early {
            let ended = early.ended(&scale);
            let nanos =
                if ended.nanos == 0 { 0 } else { self.header.start_counter.saturating_add(ended.nanos) };
            self.early = Some(RawEarlyEnd { counter: nanos, ..early });
            self.findings.insert(0, Finding::EndedEarly(ended));
        }
        self.findings.append(&mut findings);
        self.rest = Some(Rest { source, spool: scanned.spool, scale });
        Ok(())
    }
}

/// Reads the tables of what is in `source`, with the findings of its bytes alone.
fn read(
    source: Source,
    extent: Extent,
    mut choose: Option<Box<ChooseWindow<'_>>>,
) -> Result<Recording, RecordingError> {
    let mut start = Vec::new();
    source.read_at(0, FILE_HEADER_BYTES, &mut start)?;
    let header = FileHeader::read(&start)?;
    let mut findings = Vec::new();
    let mut window = None;
    let (layout, facts, mut tables, end, early) = match header.shape {
        Shape::Spool => {
            let part = choose.take().map_or(Part::Whole, Part::Window);
            let scanned;
            (scanned, window) = scan::scan(&source, &header, part, &mut findings)?;
            (Layout::Spool(scanned.spool), scanned.facts, scanned.tables, scanned.end, scanned.early)
        }
        Shape::Packed => {
            let opened = packed::open(&source, &header, extent, &mut findings)?;
            (Layout::Packed(Box::new(opened.packed)), opened.facts, opened.tables, opened.end, opened.early)
        }
    };
    let scale = TimeScale::new(&header, &tables.clocks, counter_hz(&facts), &mut findings);
    if let Some(early) = early {
        findings.insert(0, Finding::EndedEarly(early.ended(&scale)));
    }
    if tables.bad_rows > 0 {
        findings.push(Finding::BadTableRows { count: tables.bad_rows });
    }
    let window = choose.map_or(window, |choose| Some(choose(&scale)));
    let tables = tables.take_tables(&scale);
    let unread = tables.interpreters.iter().filter(|found| found.state() != InterpreterState::Read);
    findings.extend(unread.map(|&found| Finding::NoInterpretedFrames(found)));
    let rest = None;
    Ok(Recording { header, source, layout, facts, tables, scale, end, early, findings, window, rest })
}

fn open_once(path: &Path, choose: &mut Option<Box<ChooseWindow<'_>>>) -> Result<Attempt, RecordingError> {
    let pair = match drained_into(path) {
        Some(packed) => Some((packed, path.to_owned())),
        None => drained_from(path).map(|spool| (path.to_owned(), spool)),
    };
    if let Some((packed, spool)) = pair
        && is_drained_at_present(&spool)
    {
        // Closed a moment later, it has the spool's name.
        return match open_source(&packed) {
            Ok(source) => open_drained(source, &spool, choose),
            Err(error) => Ok(Attempt::Changed(Err(error))),
        };
    }
    let moment = Moment::of_writer(&drained_from(path).unwrap_or_else(|| path.to_owned()));
    let mut source = open_source(path)?;
    let mut overwritten = 0;
    if moment.is_some() && matches!(source, Source::File(_)) {
        let mut first = Vec::new();
        source.read_at(0, SEGMENT_BYTES, &mut first)?;
        let is_spool = FileHeader::read(&first).is_ok_and(|header| header.shape == Shape::Spool);
        if is_spool && control_words::is_ring(&control_words::facts(&first)) {
            let copy;
            (copy, overwritten) = ring::copy_of_ring(&source)?;
            source = Source::Bytes(copy);
        }
    }
    let mut recording = open_at_rest(path, source, choose.take())?;
    if overwritten > 0 {
        recording.findings.push(Finding::Overwritten { segments: overwritten });
    }
    Ok(recording.settled_since(path, moment))
}

/// Opens what is packed of a spool that is drained at present. All of it up to its last `PROG`
/// chunk is complete.
fn open_drained(
    source: Source,
    spool: &Path,
    choose: &mut Option<Box<ChooseWindow<'_>>>,
) -> Result<Attempt, RecordingError> {
    let unmatched_before = unmatched_frees(spool);
    let mut recording = read(source, Extent::UpToProgress, choose.take())?;
    let Layout::Packed(packed) = &mut recording.layout else {
        return Ok(Attempt::Changed(Ok(recording.with_situation(None))));
    };
    if packed.totals.is_some() {
        return Ok(Attempt::Settled(recording.with_situation(None)));
    }
    // Written behind each PROG chunk: the same before and after means that it is of the one that
    // was read.
    packed.unmatched_frees = unmatched_frees(spool);
    let is_settled = packed.progress.is_some() && packed.unmatched_frees == unmatched_before;
    let until_nanos = packed.progress.as_ref().and_then(|progress| progress.nanos);
    let now = nanos_since_start(&recording.header);
    let age_nanos = until_nanos.and_then(|until| now?.checked_sub(until));
    let recording = recording.with_situation(Some(Growth { until_nanos, age_nanos, is_drained: true }));
    Ok(if is_settled { Attempt::Settled(recording) } else { Attempt::Changed(Ok(recording)) })
}

/// Opens a file that was not drained when the opening began.
///
/// Opens the other file of the two as well where it needs that.
fn open_at_rest(
    path: &Path,
    source: Source,
    choose: Option<Box<ChooseWindow<'_>>>,
) -> Result<Recording, RecordingError> {
    let recording = read(source, Extent::Whole, choose)?;
    if recording.is_left()
        && let Some(spool) = spool_of(path)
        && let Some(joined) = recording.joined_with(&spool)?
    {
        return Ok(joined);
    }
    let is_drained = |finding: &Finding| matches!(finding, Finding::Drained { .. });
    if recording.findings.iter().any(is_drained) {
        // Where there is no packed recording, or it is of another process, what is left in the
        // spool is what there is.
        let packed = open_source(&packed_of(path)).and_then(|source| read(source, Extent::Whole, None));
        if let Ok(packed) = packed
            && let Some(joined) = packed.joined_with(path)?
        {
            return Ok(Recording { window: recording.window, ..joined });
        }
    }
    Ok(recording)
}

/// As the process that drains a spool counts them.
fn unmatched_frees(spool: &Path) -> u64 {
    let mut bytes = Vec::new();
    let read =
        open_source(spool).and_then(|source| source.read_at(control::UNMATCHED_FREES as u64, 8, &mut bytes));
    read.map_or(0, |()| word(&bytes, 0))
}
