//! The heap of a program that runs: sums that grow with its recording.
//!
//! ```text
//!   file      what is watched                                how it ends
//!   spool     the spool: it is not drained                   read once more, with all clocks: times are exact then
//!   spool     its packed file, as soon as there is one       closed: all was added up, nothing is read again
//!   packed    the file itself                                closed, or left unfinished: then with the rest in the spool
//! ```
//!
//! Adding up is the code that adds up a recording that is read at once (`recording_fold`); only
//! room is made between.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cairn_format::recording::Shape;

use super::about::{About, about, threads};
use super::aggregate::Scope;
use super::heap_read::HeapRead;
use super::recorded::HeapRecording;
use super::recording_fold::RecordingFold;
use super::recording_stacks::{sampling, stacks};
use super::slices::{SliceOptions, Slices};
use super::stacks::Stacks;
use cairn_recording::{
    Live, Recording, RecordingError, ThreadId, Wanted, drained_from, drained_into, is_drained_at_present,
    is_running, nanos_since_start,
};

/// A recording that may still grow, and what it says of the heap so far.
///
/// Opens what `cairn heap` is writing, what a program writes by itself, and recordings that are
/// finished. Each [`update`](Self::update) reads only what is new; a [`snapshot`](Self::snapshot)
/// costs as much as there are stacks, not events.
///
/// Sums by stack hold for what was read. Where the recording is not drained, times and the order
/// across threads are known to about a millisecond while it grows, and so is what depends on them,
/// such as the peak. When the program has ended, a snapshot is equal to what
/// [`HeapRecording::read`] gives.
///
/// ```no_run
/// use cairn_analysis::heap::{Cost, Folding, Group, LiveHeap, Names, NoNames, Questions};
/// use std::path::Path;
/// use std::time::Duration;
///
/// let mut heap = LiveHeap::open(Path::new("program.4711.cairn"))?;
/// loop {
///     let update = heap.update()?;
///     if update.has_ended {
///         break;
///     }
///     let (read, stacks) = (heap.snapshot(), heap.stacks());
///     let questions = Questions::new(&read.profile, Names::new(&stacks, &NoNames, Folding::default()));
///     for entry in questions.top(Group::Function, Cost::Leaked).iter().take(10) {
///         println!("{} {}", entry.sums.live_bytes, questions.names().function_of(entry.line).name);
///     }
///     if !update.is_behind {
///         std::thread::sleep(Duration::from_secs(1));
///     }
/// }
/// # Ok::<(), cairn_recording::RecordingError>(())
/// ```
pub struct LiveHeap {
    asked: LiveRequest,
    state: State,
    stacks: Arc<Stacks>,
}

/// The blocks that a [`LiveHeap`] counts; all of them by default.
///
/// Threads are given as names, because a recording that grows learns of its threads one by one, and
/// a thread may get its name after its first allocations.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LiveFilter {
    /// Only blocks of these sizes are counted.
    pub sizes: RangeInclusive<u64>,
    /// Names and kernel numbers of the threads whose blocks are counted; `None` for all threads.
    ///
    /// Earlier names of a thread count as well.
    pub threads: Option<Vec<String>>,
}

impl Default for LiveFilter {
    /// Everything.
    fn default() -> Self {
        Self { sizes: 0..=u64::MAX, threads: None }
    }
}

impl LiveFilter {
    /// Returns the scope in a recording, as far as its threads are known.
    fn scope(&self, recording: &Recording) -> Scope {
        let matching = |wanted: &Vec<String>| {
            let threads = (0..).zip(threads(recording));
            let matches = threads.filter(|(_, thread)| wanted.iter().any(|name| thread.is_called(name)));
            matches.map(|(index, _)| index).collect()
        };
        Scope { sizes: self.sizes.clone(), threads: self.threads.as_ref().map(matching), ..Scope::default() }
    }

    /// Returns the threads that match; none without a list of threads.
    fn threads(&self, recording: &Recording) -> Vec<ThreadId> {
        let indices = self.scope(recording).threads.unwrap_or_default();
        let id = |index: u32| recording.threads().get(index as usize).map(|thread| thread.id);
        indices.into_iter().filter_map(id).collect()
    }
}

/// Describes the file to read, and how.
struct LiveRequest {
    path: PathBuf,
    slices: Option<SliceOptions>,
    filter: LiveFilter,
}

enum State {
    Growing(Box<Growing>),
    /// The process that drained it is gone, and the program goes on; or it is a ring. Read as a
    /// whole now and then.
    Left(Box<Left>),
    Ended(Box<Whole>),
}

struct Growing {
    recording: Recording,
    live: Live,
    fold: RecordingFold,
    /// The file that is read.
    path: PathBuf,
    /// Where the program writes, if what is read is made of that.
    spool: Option<PathBuf>,
    tables: (usize, usize, usize),
    news: Instant,
    /// The events of the opening are not added up yet.
    is_fresh: bool,
    /// The packed recording since it is drained, and since when.
    drained: Option<(Box<Growing>, Instant)>,
    /// Threads that match the filter.
    counted: BTreeSet<ThreadId>,
    /// A thread got its name after some of its events: the sums lack those.
    is_short: bool,
}

struct Left {
    whole: Whole,
    spool: PathBuf,
    next: Instant,
}

/// A recording that was read from its beginning to its end.
struct Whole {
    heap: HeapRecording,
    read: HeapRead,
    slices: Option<Slices>,
}

impl Whole {
    fn read(recording: Recording, asked: &LiveRequest) -> Result<Self, RecordingError> {
        let heap = HeapRecording::new(recording);
        let scope = asked.filter.scope(heap.recording());
        let (read, slices) = match &asked.slices {
            Some(options) => {
                let (read, slices) = heap.read_sliced(scope, options.most_slices)?;
                (read, Some(slices))
            }
            None => (heap.read(scope)?, None),
        };
        Ok(Self { heap, read, slices })
    }
}

/// Result of an [`update`](LiveHeap::update).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Update {
    /// Something is new since the update before.
    pub is_new: bool,
    /// There is more to read than was read at once: another update is due at once, and brings it.
    pub is_behind: bool,
    /// Nothing follows.
    pub has_ended: bool,
    /// Age of the data, relative to the available data, or to now while the program runs.
    ///
    /// It is set when the data is [behind](Self::is_behind), and when the process that packs the
    /// recording has packed nothing for a while. `None` for a state of now.
    pub behind_nanos: Option<u64>,
}

/// Events that are added up at once; half a million, a fraction of a second.
const EVENTS: u64 = 1 << 19;
/// So much of each thread is read ahead of what is in order.
const LANE_BYTES: usize = 4 << 20;
/// Silence after which a drain may be over; 2 s.
///
/// A drain writes twice in a second while anything happens, and may take a moment for the end.
const PATIENCE: Duration = Duration::from_secs(2);
/// And is stopped, or has no processor, when nothing came for so long.
const STALLED: Duration = Duration::from_secs(3);
/// Time for which the packed file may catch up with the spool; 1 s.
///
/// If no process drains the spool after that, the missing data is never written.
const CATCHES_UP: Duration = Duration::from_secs(1);
/// Minimum pause between two reads of a whole file, in durations of such a read; 10.
const SHARE_OF_READING: u32 = 10;

impl std::fmt::Debug for LiveHeap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LiveHeap").field("path", &self.asked.path).finish_non_exhaustive()
    }
}

impl LiveHeap {
    /// Opens the recording in a file. Where it is a spool that is being drained, the packed file
    /// that is made of it is read. Nothing is added up before the first [`update`](Self::update).
    ///
    /// # Errors
    ///
    /// When it cannot be read, or is no recording.
    pub fn open(path: &Path) -> Result<Self, RecordingError> {
        Self::open_filtered(path, LiveFilter::default())
    }

    /// The same, and counts only the blocks that the filter lets in.
    ///
    /// When a thread gets a name of the filter after its first events, the recording is read again
    /// from its beginning; until then it [is behind](Update::is_behind).
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn open_filtered(path: &Path, filter: LiveFilter) -> Result<Self, RecordingError> {
        Self::open_as(LiveRequest { path: path.to_owned(), slices: None, filter })
    }

    /// The same, and cuts its time into [slices](super::slices), which [`slices`](Self::slices)
    /// gives.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn open_sliced(path: &Path, slices: &SliceOptions) -> Result<Self, RecordingError> {
        let filter = LiveFilter::default();
        Self::open_as(LiveRequest { path: path.to_owned(), slices: Some(slices.clone()), filter })
    }

    fn open_as(asked: LiveRequest) -> Result<Self, RecordingError> {
        let growing = Growing::open(&asked, None)?;
        let stacks = Arc::new(stacks(&growing.recording));
        Ok(Self { asked, state: State::Growing(Box::new(growing)), stacks })
    }

    /// Reads what is new, of a large recording a part of it: then it says that it [is
    /// behind](Update::is_behind).
    ///
    /// # Errors
    ///
    /// When the file cannot be read any more. The data read so far stays, and a later update may
    /// succeed.
    pub fn update(&mut self) -> Result<Update, RecordingError> {
        let Step { is_new, next } = match &mut self.state {
            State::Ended(_) => {
                return Ok(Update { is_new: false, is_behind: false, has_ended: true, behind_nanos: None });
            }
            State::Left(left) => left.update(&self.asked)?,
            State::Growing(growing) => growing.update(&self.asked)?,
        };
        let is_new = is_new || next.is_some();
        if let Some(next) = next {
            self.stacks = Arc::new(stacks(next.recording()));
            self.state = next;
        }
        if let State::Growing(growing) = &mut self.state
            && growing.has_new_tables()
        {
            self.stacks = Arc::new(stacks(&growing.recording));
        }
        let (is_behind, behind_nanos) = match &self.state {
            State::Growing(growing) => (growing.is_behind(), growing.behind_nanos()),
            _ => (false, None),
        };
        Ok(Update { is_new, is_behind, has_ended: self.has_ended(), behind_nanos })
    }

    /// [Updates](Self::update) until it is not behind any more, or until this time has passed.
    ///
    /// A caller may show the data read so far meanwhile. There is no wait in between.
    ///
    /// # Errors
    ///
    /// As [`update`](Self::update).
    pub fn catch_up(&mut self, most: Duration) -> Result<Update, RecordingError> {
        let began = Instant::now();
        let mut is_new = false;
        loop {
            let update = self.update()?;
            is_new |= update.is_new;
            if !update.is_behind || began.elapsed() >= most {
                return Ok(Update { is_new, ..update });
            }
        }
    }

    /// The sums of what was read so far, of the blocks that are counted.
    #[must_use]
    pub fn snapshot(&self) -> HeapRead {
        match &self.state {
            State::Growing(growing) => growing.snapshot(),
            State::Left(left) => left.whole.read.clone(),
            State::Ended(whole) => whole.read.clone(),
        }
    }

    /// Returns the sums of each slice of the time so far, where [slices](Self::open_sliced) are
    /// on. Costs as much as there are slices and blocks that live.
    #[must_use]
    pub fn slices(&self) -> Option<Slices> {
        match &self.state {
            State::Growing(growing) => growing.slices(),
            State::Left(left) => left.whole.slices.clone(),
            State::Ended(whole) => whole.slices.clone(),
        }
    }

    /// Returns the stacks that the sums are of.
    ///
    /// They stay the same until an [`update`](Self::update) meets others, which get the numbers
    /// behind them.
    #[must_use]
    pub fn stacks(&self) -> Arc<Stacks> {
        Arc::clone(&self.stacks)
    }

    /// The recording, with what it knows of modules, threads and facts by now. Its events are not
    /// for reading while it grows.
    #[must_use]
    pub fn recording(&self) -> &Recording {
        self.state.recording()
    }

    /// Returns the scope of what is counted, as far as the threads are known.
    #[must_use]
    pub fn scope(&self) -> Scope {
        self.asked.filter.scope(self.recording())
    }

    /// The recording for other questions, once it has ended.
    #[must_use]
    pub fn ended(&self) -> Option<&HeapRecording> {
        match &self.state {
            State::Ended(whole) => Some(&whole.heap),
            _ => None,
        }
    }

    /// Returns the facts about it beside its sums.
    #[must_use]
    pub fn about(&self) -> About {
        match &self.state {
            State::Growing(growing) => about(&growing.recording, growing.live.findings()),
            State::Left(left) => left.whole.heap.about(),
            State::Ended(whole) => whole.heap.about(),
        }
    }

    /// True once nothing follows.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        matches!(self.state, State::Ended(_))
    }

    /// Returns the file that the program writes to, while it accepts commands.
    ///
    /// These are to pause, to continue, and to add a mark.
    #[must_use]
    pub fn spool(&self) -> Option<&Path> {
        match &self.state {
            State::Growing(growing) => Some(growing.spool.as_deref().unwrap_or(&growing.path)),
            State::Left(left) => Some(&left.spool),
            State::Ended(_) => None,
        }
    }
}

impl State {
    fn recording(&self) -> &Recording {
        match self {
            Self::Growing(growing) => &growing.recording,
            Self::Left(left) => left.whole.heap.recording(),
            Self::Ended(whole) => whole.heap.recording(),
        }
    }
}

impl Growing {
    /// Opens the file at its beginning.
    ///
    /// Threads that `earlier` found to match are counted from their first event on, wherever their
    /// names come in the file. Another file may number its threads differently.
    fn open(asked: &LiveRequest, earlier: Option<&Self>) -> Result<Self, RecordingError> {
        let (path, spool) = match drained_into(&asked.path) {
            Some(packed) => (packed, Some(asked.path.clone())),
            None => (asked.path.clone(), drained_from(&asked.path)),
        };
        let (mut recording, mut live) = Live::open(&path)?;
        live.set_lane_limit(LANE_BYTES);
        live.set_event_limit(EVENTS);
        // Facts say how to add up.
        live.look(&mut recording, false)?;
        // Threads are counted one by one, as they become known.
        let scope = Scope {
            threads: asked.filter.threads.as_ref().map(|_| Vec::new()),
            ..asked.filter.scope(&recording)
        };
        let fold = RecordingFold::new(&recording, sampling(&recording), scope, asked.slices.as_ref());
        let (tables, is_fresh) = (live.tables_version(), live.had_news());
        // A file that was not written to for a while may have been left long ago.
        let age =
            path.metadata().and_then(|facts| facts.modified()).ok().and_then(|time| time.elapsed().ok());
        let news = Instant::now();
        let news = age.and_then(|age| news.checked_sub(age)).unwrap_or(news);
        let known = earlier.filter(|earlier| earlier.path == path);
        let counted = known.map(|known| known.counted.clone()).unwrap_or_default();
        let mut growing = Self {
            recording,
            live,
            fold,
            path,
            spool,
            tables,
            news,
            is_fresh,
            drained: None,
            counted,
            is_short: false,
        };
        growing.count_threads(&asked.filter);
        Ok(growing)
    }

    fn update(&mut self, asked: &LiveRequest) -> Result<Step, RecordingError> {
        let is_spool = self.recording.header().shape == Shape::Spool;
        if is_spool && self.drained.is_none() && drained_into(&asked.path).is_some() {
            self.drained = Some((Box::new(Self::open(asked, None)?), Instant::now()));
        }
        if let Some((fresh, since)) = &mut self.drained {
            fresh.read_new(asked)?;
            // Events that were shown stay visible until they are in the other file as well.
            let is_there = fresh.fold.has_all_of(&self.fold)
                || fresh.recording.totals().is_some()
                || since.elapsed() > CATCHES_UP && !is_drained_at_present(&asked.path);
            let next = is_there.then(|| self.drained.take()).flatten();
            return Ok(Step { is_new: false, next: next.map(|(fresh, _)| State::Growing(fresh)) });
        }
        // Before the file is read: what a program that is gone wrote is all there.
        let is_running = is_running(self.recording.header().process);
        if is_spool && (!is_running || self.recording.end().is_some()) {
            return Ok(Step::to(State::Ended(Box::new(self.whole(asked)?))));
        }
        if is_spool && self.live.is_drained() && is_drained_at_present(&asked.path) {
            return Err(RecordingError::Drained { path: asked.path.clone() });
        }
        if is_spool && (self.live.is_drained() || self.recording.fact("mode") == Some(b"ring")) {
            // Its blocks are used again while they are read, and nothing says where their contents
            // went.
            return Ok(Step::to(State::Left(Box::new(Left::new(self.whole(asked)?, asked.path.clone())))));
        }
        let is_new = self.read_new(asked)?;
        let next = if self.live.has_more() {
            None
        } else if self.is_short {
            Some(State::Growing(Box::new(Self::open(asked, Some(self))?)))
        } else if self.recording.totals().is_some() {
            Some(State::Ended(Box::new(self.closed(asked)?)))
        } else if !is_spool && self.news.elapsed() > PATIENCE {
            self.left(asked, is_running)?
        } else {
            None
        };
        Ok(Step { is_new, next })
    }

    /// Counts the blocks of all threads that match by now.
    fn count_threads(&mut self, filter: &LiveFilter) {
        self.counted.extend(filter.threads(&self.recording));
        for &thread in &self.counted {
            self.is_short |= !self.fold.count_thread(thread);
        }
    }

    /// True when there was anything.
    fn read_new(&mut self, asked: &LiveRequest) -> Result<bool, RecordingError> {
        let is_spool = self.recording.header().shape == Shape::Spool;
        let mut is_new = std::mem::take(&mut self.is_fresh);
        // Events that one read of a spool returns are in order after the next read.
        for _ in 0..if is_spool { 2 } else { 1 } {
            self.live.look(&mut self.recording, false)?;
            if self.live.had_news() {
                (is_new, self.news) = (true, Instant::now());
            }
            self.fold.grow(&self.recording);
            self.count_threads(&asked.filter);
            let was_behind = self.live.has_more();
            self.live.read_new(&self.recording, &Wanted::ALL, &mut self.fold)?;
            is_new |= was_behind;
        }
        Ok(is_new)
    }

    fn is_behind(&self) -> bool {
        let is_behind = |growing: &Self| growing.live.has_more() || growing.is_short;
        is_behind(self) || self.drained.as_ref().is_some_and(|(fresh, _)| is_behind(fresh))
    }

    /// How much older what was read is than what there is, or than now.
    fn behind_nanos(&self) -> Option<u64> {
        let header = self.recording.header();
        let now = || nanos_since_start(header).filter(|_| is_running(header.process));
        let read = self.live.read_until_nanos(&self.recording);
        if self.is_behind() {
            let read = read.unwrap_or_else(|| self.fold.seen_nanos());
            let there = self.live.known_until_nanos(&self.recording).max(now().unwrap_or(0));
            return Some(there.saturating_sub(read));
        }
        // All available data of a spool was read just now.
        let is_packed = header.shape == Shape::Packed;
        let age =
            read.filter(|_| is_packed && self.spool.is_some()).and_then(|read| now()?.checked_sub(read));
        age.filter(|&age| age > STALLED.as_nanos() as u64)
    }

    fn has_new_tables(&mut self) -> bool {
        let tables = self.live.tables_version();
        std::mem::replace(&mut self.tables, tables) != tables
    }

    fn end_nanos(&self) -> Option<u64> {
        match self.recording.totals() {
            Some(_) => self.recording.end().map(|(_, nanos)| nanos),
            None => {
                Some(self.live.read_until_nanos(&self.recording).unwrap_or_else(|| self.fold.seen_nanos()))
            }
        }
    }

    fn snapshot(&self) -> HeapRead {
        let unmatched_frees = self.live.unmatched_frees(&self.recording);
        self.fold.read(self.recording.threads(), self.end_nanos(), unmatched_frees)
    }

    fn slices(&self) -> Option<Slices> {
        self.fold.slices(self.recording.threads(), self.end_nanos())
    }

    /// Returns the sums as final.
    fn closed(&self, asked: &LiveRequest) -> Result<Whole, RecordingError> {
        let recording = self.recording.reopened()?;
        // In a damaged file a row may have been missed that came too late.
        let is_exact = self.live.findings().is_empty() && !self.fold.left_out_some() && !self.is_short;
        if !is_exact {
            return Whole::read(recording, asked);
        }
        Ok(Whole { heap: HeapRecording::new(recording), read: self.snapshot(), slices: self.slices() })
    }

    /// Reads everything once more.
    fn whole(&self, asked: &LiveRequest) -> Result<Whole, RecordingError> {
        // Under its name there may be more by now: what was drained of it, with the rest.
        let is_here = |path: &&PathBuf| self.recording.is_at(path);
        let recording = match [&self.path, &asked.path].into_iter().find(is_here) {
            Some(path) => Recording::open(path)?,
            None => self.recording.reopened()?,
        };
        Whole::read(recording, asked)
    }

    /// Returns the next state when a packed recording does not grow any more.
    ///
    /// Returns `None` while the spool is drained into it.
    fn left(&mut self, asked: &LiveRequest, is_running: bool) -> Result<Option<State>, RecordingError> {
        self.news = Instant::now();
        match &self.spool {
            Some(spool) if is_drained_at_present(spool) => Ok(None),
            Some(spool) if is_running => {
                Ok(Some(State::Left(Box::new(Left::new(self.whole(asked)?, spool.clone())))))
            }
            None if is_running => Ok(None),
            _ => Ok(Some(State::Ended(Box::new(self.whole(asked)?)))),
        }
    }
}

impl Left {
    fn new(whole: Whole, spool: PathBuf) -> Self {
        Self { whole, spool, next: Instant::now() }
    }

    fn update(&mut self, asked: &LiveRequest) -> Result<Step, RecordingError> {
        let began = Instant::now();
        if began < self.next {
            return Ok(Step { is_new: false, next: None });
        }
        let is_over = !is_running(self.whole.heap.recording().header().process);
        let recording = Recording::open(&asked.path)?;
        let has_ended = is_over || recording.end().is_some();
        let whole = Whole::read(recording, asked)?;
        let state = if has_ended {
            State::Ended(Box::new(whole))
        } else {
            let next = Instant::now() + began.elapsed() * SHARE_OF_READING;
            State::Left(Box::new(Self { whole, spool: self.spool.clone(), next }))
        };
        Ok(Step::to(state))
    }
}

/// Result of an update.
struct Step {
    is_new: bool,
    next: Option<State>,
}

impl Step {
    fn to(next: State) -> Self {
        Self { is_new: true, next: Some(next) }
    }
}
