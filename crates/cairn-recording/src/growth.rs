//! Whether a program still writes a recording, and up to which moment such a recording was read.
//!
//! ```text
//!   spool that `cairn` drains:  packed file up to its last PROG chunk; the spool is not read,
//!                               its blocks are used again meanwhile
//!   spool that nobody drains:   all blocks, events up to the moment at which the reading began
//!   packed file + spool:        as above; `cairn` was killed, and the program goes on
//! ```
//!
//! So every event before that moment is counted once, each free finds its block, and nothing behind
//! that moment is counted. The reading says which moment it is.

use std::fmt;
use std::path::Path;

use cairn_format::recording::{FileHeader, SEGMENT_BYTES, Shape, control};

use super::error::{Finding, RecordingError};
use super::source::Source;
use super::{Layout, NEW, Recording, beside, drained_from, drained_into, header_of, is_drained_at_present};
use super::{is_of_same, open_source};
use crate::spool::reader::{self, ChooseWindow};

/// What changes while it is opened is opened again so often at most.
const ATTEMPTS: u32 = 8;

/// Up to which moment a recording was read that still grows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Growth {
    /// Nanoseconds from the start; `None` where the file does not say it.
    pub until_nanos: Option<u64>,
    /// How long before the reading that was.
    pub age_nanos: Option<u64>,
    /// Another process packs it meanwhile, and what was packed was read.
    pub is_drained: bool,
}

/// A packed recording is written twice in a second; one that is older than this is written by a
/// process that gets no processor.
const STALLED_NANOS: u64 = 3_000_000_000;

impl fmt::Display for Growth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the program still runs and is recorded: these are the numbers ")?;
        match self.until_nanos {
            Some(until) => write!(f, "of its first {:.1} s", until as f64 / 1e9)?,
            None => f.write_str("of what is packed so far")?,
        }
        if let Some(age) = self.age_nanos.filter(|_| self.is_drained) {
            write!(f, ", as of {:.1} s ago", age as f64 / 1e9)?;
        }
        if self.is_stalled() {
            f.write_str(
                "; the cairn that packs it has not packed anything since, it is stopped or has no processor",
            )?;
        }
        Ok(())
    }
}

impl Growth {
    /// Whether whoever packs the recording has fallen behind the program.
    #[must_use]
    pub fn is_stalled(&self) -> bool {
        self.is_drained && self.age_nanos.is_some_and(|age| age > STALLED_NANOS)
    }
}

/// The moment at which a reading began, of a recording that a program of this machine writes.
struct Moment {
    ticks: u64,
    nanos: u64,
}

impl Moment {
    /// `None` when no process has the file mapped, or that cannot be known.
    fn of_writer(path: &Path) -> Option<Self> {
        let header = header_of(path)?;
        is_written(path, header.process).then(|| Self::now(&header)).flatten()
    }

    #[cfg(target_os = "linux")]
    fn now(header: &FileHeader) -> Option<Self> {
        // A packed recording has another counter; only its nanoseconds are asked for.
        let clock = super::mapped_file::read_clocks(header.counter);
        let ticks = clock.counter.checked_sub(header.start_counter)?;
        let nanos = clock.monotonic_nanos.checked_sub(header.start_monotonic_nanos)?;
        Some(Self { ticks, nanos })
    }

    #[cfg(not(target_os = "linux"))]
    fn now(_: &FileHeader) -> Option<Self> {
        None
    }
}

/// Nanoseconds from the start of the recording with this header to now, on the machine that it was
/// made on.
pub fn nanos_since_start(header: &FileHeader) -> Option<u64> {
    Moment::now(header).map(|moment| moment.nanos)
}

/// Whether `process` has the recording at `path` mapped, as the program that writes it has. A
/// process that may not be looked at counts for as long as it lives.
#[must_use]
pub fn is_written(path: &Path, process: u32) -> bool {
    let text = match std::fs::read(format!("/proc/{process}/maps")) {
        Ok(text) => text,
        Err(error) => return error.kind() == std::io::ErrorKind::PermissionDenied,
    };
    let inode = inode_of(path).map(|inode| inode.to_string().into_bytes());
    let name = path.as_os_str().as_encoded_bytes();
    text.split(|&byte| byte == b'\n').any(|line| {
        // | range | permissions | offset | device | inode | path |
        // In containers the device is that of a layer below.
        let mut words = line.split(|&byte| byte == b' ').filter(|word| !word.is_empty());
        words.nth(1) == Some(b"rw-s")
            && (inode.is_some() && inode.as_deref() == words.nth(2) || line.ends_with(name))
    })
}

#[cfg(unix)]
fn inode_of(path: &Path) -> Option<u64> {
    std::os::unix::fs::MetadataExt::ino(&path.metadata().ok()?).into()
}

#[cfg(not(unix))]
fn inode_of(_: &Path) -> Option<u64> {
    None
}

/// One try to open a recording.
enum Opened {
    Settled(Recording),
    /// Somebody changed the files meanwhile: it is to be opened again. What was read is the answer
    /// if that does not help.
    Changed(Result<Recording, RecordingError>),
}

impl Recording {
    /// Up to which moment the recording was read, when the program still writes it.
    #[must_use]
    pub fn growth(&self) -> Option<Growth> {
        self.findings.iter().find_map(|finding| match finding {
            Finding::Growing(growth) => Some(*growth),
            _ => None,
        })
    }

    /// Opens what is at `path` at one moment, also while a program writes it and another process
    /// packs it.
    pub(crate) fn open_path(
        path: &Path,
        mut choose: Option<Box<ChooseWindow<'_>>>,
    ) -> Result<Self, RecordingError> {
        if !path.metadata().is_ok_and(|facts| facts.is_file()) {
            // A pipe is read once.
            return Self::from_source(open_source(path)?, choose);
        }
        let mut attempt = 0;
        loop {
            attempt += 1;
            let last = match Self::open_once(path, &mut choose)? {
                Opened::Settled(recording) => return Ok(recording),
                Opened::Changed(last) => last,
            };
            if attempt >= ATTEMPTS {
                // Its findings say that a part is missing.
                return last;
            }
            if let Ok(Some(window)) = last.map(|recording| recording.window) {
                choose = Some(Box::new(move |_| window));
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    fn open_once(path: &Path, choose: &mut Option<Box<ChooseWindow<'_>>>) -> Result<Opened, RecordingError> {
        let pair = match drained_into(path) {
            Some(packed) => Some((packed, path.to_owned())),
            None => drained_from(path).map(|spool| (path.to_owned(), spool)),
        };
        if let Some((packed, spool)) = pair
            && is_drained_at_present(&spool)
        {
            // Closed a moment later, it has the spool's name.
            return match open_source(&packed) {
                Ok(source) => Self::open_drained(source, &spool, choose),
                Err(error) => Ok(Opened::Changed(Err(error))),
            };
        }
        let moment = Moment::of_writer(&drained_from(path).unwrap_or_else(|| path.to_owned()));
        let mut source = open_source(path)?;
        let mut first = Vec::new();
        let mut overwritten = 0;
        if moment.is_some() && matches!(source, Source::File(_)) {
            source.read_at(0, SEGMENT_BYTES, &mut first)?;
            let is_spool = FileHeader::read(&first).is_ok_and(|header| header.shape == Shape::Spool);
            if is_spool && reader::is_ring(&reader::facts(&first)) {
                let copy;
                (copy, overwritten) = reader::copy_of_ring(&source)?;
                source = Source::Bytes(copy);
            }
        }
        let mut recording = Self::open_at_rest(path, source, choose.take())?;
        if overwritten > 0 {
            recording.findings.push(Finding::Overwritten { segments: overwritten });
        }
        Ok(recording.settled_since(path, moment))
    }

    /// What is packed of a spool that is drained at present. All of it up to its last `PROG` chunk
    /// is complete.
    fn open_drained(
        source: Source,
        spool: &Path,
        choose: &mut Option<Box<ChooseWindow<'_>>>,
    ) -> Result<Opened, RecordingError> {
        let unmatched_before = unmatched_frees(spool);
        let mut recording = Self::from_source(source, choose.take())?;
        let Layout::Packed(packed) = &mut recording.layout else {
            return Ok(Opened::Changed(Ok(recording)));
        };
        if packed.summary.is_some() {
            return Ok(Opened::Settled(recording));
        }
        // Written behind each PROG chunk: the same before and after means that it is of the one
        // that was read.
        packed.unmatched_frees = unmatched_frees(spool);
        let is_settled = packed.progress.is_some() && packed.unmatched_frees == unmatched_before;
        let until_nanos = packed.progress.as_ref().and_then(|progress| progress.nanos);
        let cut = packed.end_at_progress();
        recording.findings.retain(|finding| match finding {
            Finding::NotClosed | Finding::NoIndex | Finding::NoEnd => false,
            Finding::TornTail { offset, .. } | Finding::SkippedBytes { offset, .. } => *offset < cut,
            _ => true,
        });
        let now = nanos_since_start(&recording.header);
        let age_nanos = until_nanos.and_then(|until| now?.checked_sub(until));
        recording.findings.push(Finding::Growing(Growth { until_nanos, age_nanos, is_drained: true }));
        Ok(if is_settled { Opened::Settled(recording) } else { Opened::Changed(Ok(recording)) })
    }

    /// What nobody drained when the opening began.
    fn open_at_rest(
        path: &Path,
        source: Source,
        choose: Option<Box<ChooseWindow<'_>>>,
    ) -> Result<Self, RecordingError> {
        let mut recording = Self::from_source(source, choose)?;
        let is_left = recording.findings.contains(&Finding::NotClosed);
        if let Some(spool) = beside(path, is_left) {
            recording.continue_in(&spool)?;
        }
        if recording.findings.iter().any(is_drained) {
            let mut name = path.as_os_str().to_owned();
            name.push(NEW);
            let packed = open_source(Path::new(&name)).and_then(|source| Self::from_source(source, None));
            // Where there is none, or it is another one's, what is left in the spool is what there
            // is.
            if let Ok(mut packed) = packed
                && packed.continue_in(path)?
            {
                packed.window = recording.window;
                return Ok(packed);
            }
        }
        Ok(recording)
    }

    /// Whether the files are what they were when the reading of them began, at `moment` while the
    /// program ran.
    fn settled_since(mut self, path: &Path, moment: Option<Moment>) -> Opened {
        let spool = match &self.rest {
            Some(_) => beside(path, true).unwrap_or_else(|| path.to_owned()),
            None => path.to_owned(),
        };
        let is_spool = self.rest.is_some() || matches!(self.layout, Layout::Spool(_));
        let is_there = header_of(&spool).is_some_and(|header| is_of_same(&header, &self.header));
        let is_drained_now = drained_into(&spool).is_some() && is_drained_at_present(&spool);
        let is_closed = is_spool && is_there && self.is_replaced_at(&spool);
        if is_spool && (is_drained_now || is_closed) {
            return Opened::Changed(Ok(self));
        }
        let Some(Moment { ticks, nanos }) = moment.filter(|_| is_spool && self.end.is_none()) else {
            return Opened::Settled(self);
        };
        if !is_written(&spool, self.header.process) {
            // It has ended, and what it wrote last may have been missed.
            return Opened::Changed(Ok(self));
        }
        let read = match (&mut self.rest, &mut self.layout) {
            (Some(rest), _) => &mut rest.spool,
            (None, Layout::Spool(spool)) => spool,
            (None, Layout::Packed(_)) => return Opened::Settled(self),
        };
        read.grows_since(ticks);
        self.findings.retain(|finding| *finding != Finding::NoEnd);
        let growth = Growth { until_nanos: Some(nanos), age_nanos: Some(0), is_drained: false };
        self.findings.push(Finding::Growing(growth));
        // A block that was taken behind the place that was read last, and the one after it in front
        // of that place.
        let is_torn = self.findings.iter().any(|finding| matches!(finding, Finding::MissingSegments { .. }));
        if is_torn { Opened::Changed(Ok(self)) } else { Opened::Settled(self) }
    }

    /// Whether a packed recording has taken the place of the spool that was read.
    fn is_replaced_at(&self, spool: &Path) -> bool {
        header_of(spool).is_some_and(|header| header.shape == Shape::Packed)
    }
}

/// As whoever drains a spool counts them.
fn unmatched_frees(spool: &Path) -> u64 {
    let mut bytes = Vec::new();
    let read =
        open_source(spool).and_then(|source| source.read_at(control::UNMATCHED_FREES as u64, 8, &mut bytes));
    read.map_or(0, |()| reader::word(&bytes, 0))
}

fn is_drained(finding: &Finding) -> bool {
    matches!(finding, Finding::Drained { .. })
}
