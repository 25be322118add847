//! Plays a recording: its events in order, each stack with the modules loaded *at its time*.
//!
//! ```text
//!   a cairn recording ----+
//!                         +--> events --> Filter --> names, in batches --> a printer
//!   a tracker recording --+                                        \--> or Collapsed
//! ```
//!
//! A module here is one *load* of a file. A later load at the same addresses is another module, so
//! a stack keeps the names of its own time.
//!
//! ```
//! use std::ops::ControlFlow;
//! use cairn_analysis::names::AddressNames;
//! use cairn_analysis::player::{Filter, Player};
//! use cairn_symbols::SymbolizerOptions;
//! # use cairn_format::{AbsoluteAddress, SliceSink};
//! # use cairn_wire::tracker::{TrackerLayout, Writer};
//! # let mut buffer = [0; 100];
//! # let mut writer = Writer::new(SliceSink::new(&mut buffer), TrackerLayout::WINDOWS_64);
//! # writer.module_loaded(1_000, r"C:\app.exe", AbsoluteAddress::new(0x7ff6_0000_0000), 0x3000)?;
//! # writer.stack(2_000, [0x7ff6_0000_0123, 0x10].map(AbsoluteAddress::new))?;
//! # let file = writer.into_sink().into_written().to_vec();
//! let mut player = Player::from_bytes(file)?;
//! let mut names = AddressNames::new(SymbolizerOptions::new());
//! let mut modules = Vec::new();
//! player.play(&Filter::default(), Some(&mut names), &mut |event, tables, _names| {
//!     if let Some(stack) = event.stack() {
//!         modules.extend(tables.frames(stack).iter().map(|frame| frame.module));
//!     }
//!     ControlFlow::Continue(())
//! })?;
//! assert_eq!(modules, [Some(0), None]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod cairn;
mod collapse;
mod error;
mod event;
mod filter;
mod follow;
mod picture;
mod tracker;

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read};
use std::ops::ControlFlow;
use std::path::Path;

use cairn::CairnRecording;
pub use collapse::{Collapsed, StackGroup};
pub use error::PlayError;
pub use event::{Event, PlayedFrame, PlayedModule, PlayedThread, StackKey, Tables, What};
use filter::Sieve;
pub use filter::{Filter, TimeBound};
pub use picture::{Bar, bars};
use tracker::TrackerRecording;

use crate::names::AddressNames;
use cairn_format::WordSize;
use cairn_format::recording::MAGIC;
use cairn_recording::{CodePiece, Recording};

/// Maximum bytes of a tracker recording; 256 MiB.
///
/// The tracker's buffer is 1 MiB, but can be enlarged.
const MAX_TRACKER_BYTES: u64 = 256 << 20;

/// Events per batch of name lookups; 512, enough for all processors, and few enough for quick
/// output.
const BATCH: usize = 512;

/// Maximum stacks that are remembered as resolved.
const MAX_PREPARED: usize = 1 << 20;

/// Receives each event; [`ControlFlow::Break`] ends the playback.
pub type EventSink<'a> = dyn FnMut(&Event, &dyn Tables, Option<&mut AddressNames>) -> ControlFlow<()> + 'a;

/// An open recording.
#[derive(Debug)]
pub struct Player {
    source: Source,
}

#[derive(Debug)]
enum Source {
    Cairn(Box<CairnRecording>),
    Tracker(TrackerRecording),
}

impl Player {
    /// Opens the recording in a file, of any supported kind.
    ///
    /// # Errors
    ///
    /// [`PlayError`] if it cannot be read, or is of an unknown kind.
    pub fn open(path: &Path) -> Result<Self, PlayError> {
        Self::open_file(path, None)
    }

    /// Opens a recording like [`open`](Self::open), to play only events that pass this filter.
    ///
    /// If the filter has times and excludes allocations, only that part of the file is read.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn open_for(path: &Path, filter: &Filter) -> Result<Self, PlayError> {
        let has_times = filter.since.is_some() || filter.until.is_some();
        Self::open_file(path, Some(filter).filter(|filter| has_times && !filter.heap))
    }

    fn open_file(path: &Path, window: Option<&Filter>) -> Result<Self, PlayError> {
        // Windows opens no directory.
        if path.is_dir() {
            return Err(PlayError::NoRecording { problem: "it is a directory; name a recording in it" });
        }
        let mut file = File::open(path).map_err(PlayError::Io)?;
        let metadata = file.metadata().map_err(PlayError::Io)?;
        if !metadata.is_file() {
            return Self::from_reader(file);
        }
        let mut start = Vec::new();
        file.by_ref().take(MAGIC.len() as u64).read_to_end(&mut start).map_err(PlayError::Io)?;
        if is_cairns(&start) {
            let recording = match window {
                Some(filter) => cairn::open_window(path, filter),
                None => Recording::open(path),
            };
            let recording = CairnRecording::new(recording.map_err(PlayError::Recording)?);
            return Ok(Self { source: Source::Cairn(Box::new(recording)) });
        }
        Self::from_reader(io::Cursor::new(start).chain(file))
    }

    /// Names frames in the code of JIT compilers by further perf maps and jitdumps.
    ///
    /// Recordings of other tools have no such frames.
    pub fn add_code_files(&mut self, pieces: Vec<CodePiece>) {
        if let Source::Cairn(recording) = &mut self.source {
            recording.add_code_files(pieces);
        }
    }

    /// Opens a recording from a pipe, after reading all of it.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn from_reader(mut reader: impl Read) -> Result<Self, PlayError> {
        let mut bytes = Vec::new();
        reader.by_ref().take(MAGIC.len() as u64).read_to_end(&mut bytes).map_err(PlayError::Io)?;
        // A recording by another tool is small; anything else is unknown.
        let limit = if is_cairns(&bytes) { u64::MAX } else { MAX_TRACKER_BYTES };
        reader.take(limit).read_to_end(&mut bytes).map_err(PlayError::Io)?;
        if bytes.len() as u64 >= limit {
            return Err(PlayError::NoRecording { problem: "it begins with other bytes" });
        }
        Self::from_bytes(bytes)
    }

    /// Opens a recording in memory, of any supported kind.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, PlayError> {
        if is_cairns(&bytes) {
            let recording = Recording::from_bytes(bytes).map_err(PlayError::Recording)?;
            return Ok(Self { source: Source::Cairn(Box::new(CairnRecording::new(recording))) });
        }
        Self::tracker(&bytes, None)
    }

    /// Opens a recording of call-stack-tracker.
    ///
    /// It does not state the width of its addresses, which is guessed if not given.
    ///
    /// # Errors
    ///
    /// [`PlayError::NoRecording`] if not a single event can be read.
    pub fn tracker(bytes: &[u8], word_size: Option<WordSize>) -> Result<Self, PlayError> {
        Ok(Self { source: Source::Tracker(TrackerRecording::read(bytes, word_size)?) })
    }

    /// Plays the events that pass `filter`, in order.
    ///
    /// With `names`, the names of an event's stack are resolved before the sink receives it.
    ///
    /// # Errors
    ///
    /// [`PlayError`], after all earlier events were played.
    pub fn play(
        &mut self,
        filter: &Filter,
        names: Option<&mut AddressNames>,
        sink: &mut EventSink<'_>,
    ) -> Result<(), PlayError> {
        match &self.source {
            Source::Cairn(recording) => {
                let mut stage = Stage::new(filter, &**recording, names, sink);
                recording.play(filter, &mut |event| stage.push(event))?;
                let _ = stage.flush();
                Ok(())
            }
            Source::Tracker(recording) => {
                let mut stage = Stage::new(filter, recording, names, sink);
                for event in recording.events() {
                    if stage.push(event.clone()).is_break() {
                        return Ok(());
                    }
                }
                let _ = stage.flush();
                Ok(())
            }
        }
    }

    /// Returns modules, stacks and threads.
    #[must_use]
    pub fn tables(&self) -> &dyn Tables {
        match &self.source {
            Source::Cairn(recording) => &**recording,
            Source::Tracker(recording) => recording,
        }
    }

    /// Returns sentences about defects of the recording that did not prevent reading it.
    #[must_use]
    pub fn findings(&self) -> Vec<String> {
        match &self.source {
            Source::Cairn(recording) => recording.findings(),
            Source::Tracker(recording) => recording.findings(),
        }
    }

    /// Reports whether the recording is complete and undamaged.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        match &self.source {
            Source::Cairn(recording) => recording.is_whole(),
            Source::Tracker(recording) => recording.is_whole(),
        }
    }
}

/// Between source and sink: filters events, resolves names in batches, and passes them on.
struct Stage<'a, 'n> {
    sieve: Sieve<'a>,
    tables: &'a dyn Tables,
    names: Option<&'n mut AddressNames>,
    sink: &'a mut EventSink<'a>,
    waiting: Vec<Event>,
    /// Stacks whose names were resolved.
    prepared: HashSet<(StackKey, usize)>,
}

impl<'a, 'n> Stage<'a, 'n> {
    fn new(
        filter: &'a Filter,
        tables: &'a dyn Tables,
        names: Option<&'n mut AddressNames>,
        sink: &'a mut EventSink<'a>,
    ) -> Self {
        Self {
            sieve: Sieve::new(filter, tables),
            tables,
            names,
            sink,
            waiting: Vec::new(),
            prepared: HashSet::new(),
        }
    }

    fn push(&mut self, event: Event) -> ControlFlow<()> {
        if self.sieve.may_pass(&event, self.tables) {
            self.waiting.push(event);
        }
        if self.waiting.len() < BATCH { ControlFlow::Continue(()) } else { self.flush() }
    }

    /// Passes on the waiting events.
    fn flush(&mut self) -> ControlFlow<()> {
        self.prepare();
        for event in std::mem::take(&mut self.waiting) {
            if self.sieve.passes(&event, self.tables, self.names.as_deref_mut()) {
                (self.sink)(&event, self.tables, self.names.as_deref_mut())?;
            }
        }
        ControlFlow::Continue(())
    }

    /// Resolves the names of all new stacks among the waiting events.
    fn prepare(&mut self) {
        let Some(names) = self.names.as_deref_mut() else { return };
        if self.prepared.len() > MAX_PREPARED {
            self.prepared.clear();
        }
        let mut frames = Vec::new();
        for event in &self.waiting {
            if let Some(stack) = event.stack()
                && self.prepared.insert((stack, event.skip()))
            {
                frames.extend_from_slice(&event.frames(self.tables));
            }
        }
        names.prepare(frames.iter().filter_map(|frame| frame.lookup(self.tables)));
    }
}

fn is_cairns(start: &[u8]) -> bool {
    // Also a file that was truncated within these bytes: the reader reports that.
    !start.is_empty() && start.iter().zip(MAGIC).all(|(&byte, magic)| byte == magic)
}

/// Computes `a - b`, saturating.
fn difference(a: u64, b: u64) -> i64 {
    let difference = i128::from(a) - i128::from(b);
    i64::try_from(difference).unwrap_or(if difference < 0 { i64::MIN } else { i64::MAX })
}

/// Describes bytes that are not a recording.
fn recording_problem(bytes: &[u8]) -> &'static str {
    match bytes {
        [] => "the file is empty",
        [0x7f, b'E', b'L', b'F', ..] => "it is a program or library",
        _ => "it begins with other bytes",
    }
}
