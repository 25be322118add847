//! The spool: the recording's file, its mapping in this process, and the owners of its segments.
//!
//! ```text
//!   window:  | header, control words, facts | segment | segment | segment | room to grow ...
//!                                                    ^ CLAIMED ^ open    ^ BACKED, end of the file
//! ```
//!
//! A *segment* is a piece of 64 KiB. The window, the mapping of the file, grows in place
//! ([`Extent`]), and only as far as the file has storage (`BACKED_SEGMENTS`): a full disk is an
//! error when the file is extended, and never a SIGBUS. The window takes no more of the address
//! space than is recorded, because programs read how much they have mapped and set limits by it.
//! All of it is readable, for code that reads all mapped memory (leak checkers, `mlockall`). No
//! descriptor stays open, because programs close and reuse descriptors that they did not open: to
//! extend the file it is opened, compared with the original one, and closed. Extending the window
//! needs no descriptor.
//!
//! Claiming a segment takes no lock. It comes from the ring of those that `cairn` has drained, or
//! else from the end of the file. In a recording that keeps its last part only, event segments come
//! from a fixed set instead, oldest first.
//!
//! Long because the lock-free claim, the growth of the file and the ring change the same control
//! words, whose order of writes is only correct as a whole.

use core::ffi::{CStr, c_char};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

use cairn_format::recording::control::EarlyEnd;
use cairn_format::recording::{
    FileHeader, Lane, LossKind, Record, Records, SEGMENT_BYTES, SEGMENT_HEADER_BYTES, SegmentHeader, Shape,
    control,
};

use crate::clock;
use crate::extent::{Extent, ExtentError, Outcome, alone};
use crate::os::{self, Errno, File};
use crate::zone::Zone;

/// Use of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SegmentUse {
    /// Events of a thread. A ring reuses such segments.
    Events,
    /// Modules, addresses and stacks: needed as long as any event is.
    Tables,
}

/// A segment that a thread has just claimed.
pub(crate) struct ClaimedSegment {
    /// Address of the first byte.
    pub(crate) address: usize,
    /// Number of segments that were ever claimed, including this one.
    pub(crate) claim: u64,
    /// Index in the ring of event segments, for [`Spool::leave`]; [`NO_RING_ENTRY`] outside of a
    /// ring.
    pub(crate) ring_index: u32,
    /// Number of events that it held before, which are overwritten now.
    pub(crate) overwritten: u64,
}

/// Index of a segment that belongs to no ring.
pub(crate) const NO_RING_ENTRY: u32 = u32::MAX;

/// Reason why no segment can be claimed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NoSegment {
    /// There will never be another one, for this reason.
    Full(EarlyEnd),
    /// All segments of the ring are in use by other threads.
    AllInUse,
}

/// Maximum event segments of a ring; 2^14, which are 1 GiB.
const RING_LIMIT_SEGMENTS: usize = 1 << 14;
/// Minimum event segments of a ring; 16, two for each of eight threads.
const RING_LEAST_SEGMENTS: u64 = 16;

/// Number of segments that stay resident when they are full; 128, because a parent returns them
/// soon. It does so if it keeps up, and a resident segment is reused without a page fault.
const RESIDENT_SEGMENTS: u64 = 128;

/// Segments that the file grows by in one step: 4 MiB, later an eighth of its size, up to 64 MiB.
const LEAST_STEP: u64 = 64;
const LARGEST_STEP: u64 = 1024;
/// First steps, tried in this order on a full disk. The last one has only the first segment, whose
/// control words can state why nothing else was recorded.
const FIRST_STEPS: [u64; 6] = [LEAST_STEP, 32, 16, 8, 4, 1];

/// Number of segments below which the parent may never return one. It returns a segment only after
/// its thread has taken the next one, and each of a few threads needs two.
const FEW_SEGMENTS: u64 = 16;

/// Maximum bytes of the window,
const WINDOW_BYTES: u64 = 1 << 36;
/// which is also limited to a quarter of a limit of the address space.
const WINDOW_SHARE: u64 = 4;
/// Part of the address space where windows lie.
static ZONE: Zone = Zone { from: 1 << 38, bytes: 1 << 42, count: AtomicU32::new(0) };

/// Maximum bytes of the path, including its NUL.
pub(crate) const PATH_BYTES: usize = 4096;

const SEGMENT: u64 = SEGMENT_BYTES as u64;

/// Options of a new spool.
pub(crate) struct SpoolOptions<'a> {
    /// `None` for memory without a file.
    pub(crate) path: Option<&'a CStr>,
    /// Bytes of event segments in a ring; `None` for a recording that keeps all events.
    pub(crate) ring_bytes: Option<u64>,
    /// Maximum age of events in a ring, in nanoseconds; `u64::MAX` for any age.
    pub(crate) ring_nanos: u64,
    pub(crate) limit_bytes: u64,
    pub(crate) has_parent: bool,
    pub(crate) stamp_interval: u32,
    /// The same as the header of the file states it.
    pub(crate) most_events_between_stamps: u32,
}

/// Entry of the ring of event segments.
#[repr(C)]
struct RingEntry {
    /// 1 while a thread writes to the segment.
    owned: AtomicU32,
    /// Index of the segment; 0 before its first use.
    segment: AtomicU32,
    /// Value of the counter when its last owner left it.
    left: AtomicU64,
    /// Number of events that are lost when it is reused.
    events: AtomicU64,
}

/// File and window of a recording. Lies in memory that a forked child finds wiped.
#[repr(C)]
pub(crate) struct Spool {
    base: usize,
    /// Maximum segments of the window.
    window_segments: AtomicU64,
    /// Maximum segments by the options.
    allowed_segments: u64,
    /// The mapped part of the window, which may be read and written.
    extent: Extent,
    pub(crate) start_counter: u64,
    pub(crate) start_monotonic_nanos: u64,
    pub(crate) stamp_interval: u32,
    has_parent: AtomicBool,
    /// The parent's tick when waiting for it timed out; a later tick ends that state.
    silent_tick: AtomicU64,
    makes_no_calls: AtomicBool,
    has_path: bool,
    /// Device and inode.
    file: (u64, u64),
    ring_entries: u64,
    /// Maximum age of events; `u64::MAX` for a ring that is limited by size alone.
    ring_nanos: u64,
    /// Number of entries with a segment, in a ring that is limited by time as well.
    filled_entries: AtomicU64,
    next_entry: AtomicU64,
    /// Process and thread that write zeros to the end of the file; 0 for none.
    zero_writer: AtomicU64,
    path: [u8; PATH_BYTES],
    ring: [RingEntry; RING_LIMIT_SEGMENTS],
}

/// Reason why a spool cannot be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SpoolError {
    Exists,
    Create(Errno),
    Storage(Errno),
    AddressSpace(Errno),
}

impl Spool {
    /// Makes the file and maps it. The file gets its name after its header, so that every process
    /// that finds it can read it.
    pub(crate) fn make(&mut self, wanted: &SpoolOptions<'_>) -> Result<(), SpoolError> {
        self.allowed_segments = wanted.limit_bytes / SEGMENT;
        let limit = self.allowed_segments.min(os::file_size_limit() / SEGMENT);
        self.stamp_interval = wanted.stamp_interval;
        self.ring_nanos = wanted.ring_nanos;
        self.has_parent.store(wanted.has_parent, Ordering::Relaxed);
        self.silent_tick.store(u64::MAX, Ordering::Relaxed);
        let (file, is_named) = create(wanted.path)?;
        let made = self.make_in(&file, wanted, limit, is_named);
        if let (Err(_), true, Some(path)) = (made, is_named, wanted.path) {
            os::unlink(path);
        }
        made
    }

    fn make_in(
        &mut self,
        file: &File,
        wanted: &SpoolOptions<'_>,
        limit: u64,
        is_named: bool,
    ) -> Result<(), SpoolError> {
        self.file = file.identity().map_err(SpoolError::Create)?;
        let least = RING_LEAST_SEGMENTS.min(RING_LIMIT_SEGMENTS as u64);
        self.ring_entries =
            wanted.ring_bytes.map_or(0, |bytes| (bytes / SEGMENT).clamp(least, RING_LIMIT_SEGMENTS as u64));
        let first_step = give_first_storage(file, wanted, self.ring_entries, limit)?;
        let most = os::address_space_limit() / WINDOW_SHARE;
        let window = WINDOW_BYTES.min(most) / SEGMENT;
        *self.window_segments.get_mut() = window.min(limit).max(first_step);
        let bytes = (first_step * SEGMENT) as usize;
        self.base = file.map(bytes, SEGMENT_BYTES, &ZONE).map_err(SpoolError::AddressSpace)?;
        self.extent.begin(self.base + bytes);
        if let Some(path) = wanted.path {
            let bytes = path.to_bytes_with_nul();
            match self.path.get_mut(..bytes.len()) {
                Some(place) => place.copy_from_slice(bytes),
                None => return Err(SpoolError::Create(Errno::NAME_TOO_LONG)),
            }
        }
        self.has_path = wanted.path.is_some();
        self.write_header(first_step, wanted.most_events_between_stamps);
        match wanted.path {
            Some(path) if !is_named => os::link(file, path).map_err(|error| {
                if error == Errno::EXISTS { SpoolError::Exists } else { SpoolError::Create(error) }
            }),
            _ => Ok(()),
        }
    }

    fn write_header(&mut self, backed: u64, most_events_between_stamps: u32) {
        let clocks = clock::reading();
        self.start_counter = clocks.counter;
        self.start_monotonic_nanos = clocks.monotonic_nanos;
        let header = FileHeader {
            shape: Shape::Spool,
            address_bits: usize::BITS,
            machine: if cfg!(target_arch = "x86_64") { 62 } else { 183 },
            counter: clock::KIND,
            process: os::process_id(),
            start_wall_nanos: clocks.wall_nanos,
            start_monotonic_nanos: clocks.monotonic_nanos,
            start_counter: self.start_counter,
            stamp_interval: most_events_between_stamps,
        };
        self.word(control::BACKED_SEGMENTS).store(backed, Ordering::Relaxed);
        self.word(control::CLAIMED_SEGMENTS).store(1, Ordering::Relaxed);
        self.word(control::STATE).store(control::State::Starting.to_word(), Ordering::Relaxed);
        self.word(control::MAPPED_AT).store(self.base as u64, Ordering::Relaxed);
        // SAFETY: `make_in` has mapped segment 0, which has storage, and has not shared its address
        // yet.
        unsafe { copy_to(self.base, &header.to_bytes()) };
        fence(Ordering::SeqCst);
    }

    /// Returns the memory for the facts.
    ///
    /// # Safety
    ///
    /// No other slice that this function returned is in use, and the file has not been shared.
    pub(crate) unsafe fn facts(&self) -> &'static mut [u8] {
        let at = (self.base + control::FACTS) as *mut u8;
        // SAFETY: the range is in segment 0 behind the control words, and has storage; the caller
        // is the only user, by contract.
        unsafe { core::slice::from_raw_parts_mut(at, control::FACTS_LIMIT_BYTES) }
    }

    /// Returns the control word at this offset.
    #[inline(always)]
    pub(crate) fn word(&self, offset: usize) -> &'static AtomicU64 {
        control_word(self.base, offset)
    }

    /// Returns the address of the control words.
    pub(crate) fn base(&self) -> usize {
        self.base
    }

    /// Returns true when only a ring keeps the last part of the events.
    pub(crate) fn is_ring(&self) -> bool {
        self.ring_entries > 0
    }

    /// Makes no system call from now on.
    pub(crate) fn forbid_calls(&self) {
        self.makes_no_calls.store(true, Ordering::Relaxed);
    }

    /// Returns true after [`forbid_calls`](Self::forbid_calls).
    pub(crate) fn makes_no_calls(&self) -> bool {
        self.makes_no_calls.load(Ordering::Relaxed)
    }

    /// Claims a segment for the calling thread.
    #[cold]
    pub(crate) fn claim(&self, segment_use: SegmentUse) -> Result<ClaimedSegment, NoSegment> {
        if segment_use == SegmentUse::Events && self.is_ring() {
            return if self.ring_nanos == u64::MAX { self.claim_from_ring() } else { self.claim_by_age() };
        }
        let segment = match self.take_given_back() {
            Some(segment) => {
                // `leave_full` has taken its pages out of memory.
                if segment >= RESIDENT_SEGMENTS && !self.makes_no_calls() {
                    os::populate(self.base + segment as usize * SEGMENT_BYTES, SEGMENT_BYTES);
                }
                segment
            }
            None => self.take_from_end()?,
        };
        Ok(self.claimed(segment, NO_RING_ENTRY, 0))
    }

    /// Ends the use of the full segment at `address`. Its pages leave the program's memory, which
    /// must not grow with the recording while events wait for the parent, or when there is none.
    pub(crate) fn leave_full(&self, address: usize) {
        let segment = (address - self.base) as u64 / SEGMENT;
        if segment >= RESIDENT_SEGMENTS && self.has_path && !self.is_ring() && !self.makes_no_calls() {
            os::leave_to_file(address, SEGMENT_BYTES);
        }
    }

    fn claimed(&self, segment: u64, ring_index: u32, overwritten: u64) -> ClaimedSegment {
        let claim = self.word(control::CLAIMS).fetch_add(1, Ordering::Relaxed) + 1;
        ClaimedSegment {
            address: self.base + segment as usize * SEGMENT_BYTES,
            claim,
            ring_index,
            overwritten,
        }
    }

    /// Takes a segment that the parent has drained.
    fn take_given_back(&self) -> Option<u64> {
        let taken_word = self.word(control::FREE_TAKEN);
        let mut taken = taken_word.load(Ordering::Relaxed);
        while taken < self.word(control::FREE_GIVEN).load(Ordering::Acquire) {
            let at = self.base + control::FREE_RING + taken as usize % control::FREE_RING_ENTRIES * 4;
            // SAFETY: an aligned word of the ring in segment 0, which is mapped; the parent writes
            // it as a whole.
            let segment = unsafe { &*(at as *const AtomicU32) }.load(Ordering::Relaxed);
            match taken_word.compare_exchange(taken, taken + 1, Ordering::AcqRel, Ordering::Relaxed) {
                // A number that is no segment of this file is an error of the parent, and skipped.
                Ok(_) if (1..self.backed()).contains(&u64::from(segment)) => return Some(segment.into()),
                Ok(_) => taken += 1,
                Err(other) => taken = other,
            }
        }
        None
    }

    /// Takes the next segment at the end, and extends window and file for it.
    fn take_from_end(&self) -> Result<u64, NoSegment> {
        let claimed_word = self.word(control::CLAIMED_SEGMENTS);
        let mut claimed = claimed_word.load(Ordering::Relaxed);
        loop {
            if claimed >= self.backed() {
                // The parent extends the file in advance; that storage has only to be mapped.
                if claimed < self.stored() && self.open(claimed + 1).is_ok() {
                    continue;
                }
                if self.stored() < LEAST_STEP {
                    // The disk had no room for the first step. All of a few segments may be in use,
                    // so that waiting for the parent could not help.
                    match self.grow(claimed + 1) {
                        Ok(()) => continue,
                        Err(why) if claimed < FEW_SEGMENTS => return Err(why),
                        Err(_) => {}
                    }
                }
                if let Some(segment) = self.wait_for_parent() {
                    return Ok(segment);
                }
                if claimed >= self.backed() {
                    self.grow(claimed + 1)?;
                }
            }
            match claimed_word.compare_exchange(claimed, claimed + 1, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => break,
                Err(other) => claimed = other,
            }
        }
        if !self.makes_no_calls() {
            os::populate(self.base + claimed as usize * SEGMENT_BYTES, SEGMENT_BYTES);
        }
        Ok(claimed)
    }

    /// Returns the number of segments that have storage and are mapped.
    fn backed(&self) -> u64 {
        self.stored().min(self.open_segments())
    }

    /// Returns the number of segments that have storage, limited to those that the window may have.
    fn stored(&self) -> u64 {
        let window = self.window_segments.load(Ordering::Relaxed);
        self.word(control::BACKED_SEGMENTS).load(Ordering::Acquire).min(window)
    }

    /// Returns the number of mapped segments.
    fn open_segments(&self) -> u64 {
        (self.extent.end() - self.base) as u64 / SEGMENT
    }

    /// Maps at least `segments` segments, which have storage, and some more that have it.
    #[cold]
    fn open(&self, segments: u64) -> Result<(), NoSegment> {
        if self.makes_no_calls() {
            return Err(NoSegment::Full(EarlyEnd::Sandbox));
        }
        let ahead = (self.open_segments() + self.step()).min(self.stored());
        let end = |segments: u64| self.base + (segments * SEGMENT) as usize;
        let note = |end: usize| note_open(self.base, end);
        let lengthen = |end: usize, more: usize| {
            os::lengthen_file(end, more, (end - self.base) as u64, || self.reopen())
        };
        // Without room for all of them, the least number.
        for segments in [ahead.max(segments), segments] {
            match self.extent.reach(end(segments), lengthen, note) {
                Ok(()) => return Ok(()),
                Err(ExtentError::Busy) => return Err(NoSegment::AllInUse),
                Err(ExtentError::Refused(_)) => {}
            }
        }
        Err(NoSegment::Full(EarlyEnd::AddressSpace))
    }

    /// Returns the number of segments that file and window grow by at once.
    fn step(&self) -> u64 {
        (self.backed() / 8).clamp(LEAST_STEP, LARGEST_STEP)
    }

    /// Limits the window to `most_bytes`, or to its present size if that is larger.
    pub(crate) fn shrink(&self, most_bytes: u64) {
        let wanted = (most_bytes / SEGMENT).max(self.open_segments());
        self.window_segments.fetch_min(wanted, Ordering::Relaxed);
    }

    /// Waits for a parent that may return a segment or extend the file. An exact recording is worth
    /// up to ten seconds. Returns at once without a parent.
    fn wait_for_parent(&self) -> Option<u64> {
        const STEP_MICROS: u32 = 100;
        const STEPS: u32 = 100_000;
        /// Steps without a tick after which the parent counts as gone or stopped; 2000, which are
        /// 0.2 s.
        const PATIENCE_STEPS: u32 = 2_000;

        if !self.has_parent.load(Ordering::Relaxed) || self.makes_no_calls() {
            return None;
        }
        let (tick, stored) = (self.word(control::TICK), self.stored());
        let (mut last, mut idle) = (tick.load(Ordering::Relaxed), 0);
        if last == self.silent_tick.load(Ordering::Relaxed) {
            return None;
        }
        for _ in 0..STEPS {
            if let Some(segment) = self.take_given_back() {
                return Some(segment);
            }
            if self.stored() > stored {
                return None;
            }
            os::sleep_micros(STEP_MICROS);
            let now = tick.load(Ordering::Relaxed);
            idle = if now == last { idle + 1 } else { 0 };
            last = now;
            if idle > PATIENCE_STEPS {
                self.silent_tick.store(now, Ordering::Relaxed);
                break;
            }
        }
        None
    }

    /// Extends file and window to at least `segments` segments. Two threads may do so at once, with
    /// the same result.
    fn grow(&self, segments: u64) -> Result<(), NoSegment> {
        if self.stored() < segments {
            match self.extend(segments) {
                // Another thread has extended it meanwhile.
                Err(NoSegment::Full(_)) if self.stored() >= segments => {}
                result => result?,
            }
        }
        self.open(segments)
    }

    /// Extends the file.
    fn extend(&self, segments: u64) -> Result<(), NoSegment> {
        let stored = self.stored();
        let window = self.window_segments.load(Ordering::Relaxed);
        if self.makes_no_calls() {
            return Err(NoSegment::Full(EarlyEnd::Sandbox));
        }
        // Beyond this limit the kernel sends SIGXFSZ, which ends the program.
        let most_in_file = os::file_size_limit() / SEGMENT;
        let limits = [
            (self.allowed_segments, EarlyEnd::MaxSize),
            (most_in_file, EarlyEnd::FileSizeLimit),
            (window, EarlyEnd::AddressSpace),
        ];
        if !self.has_path {
            return Err(NoSegment::Full(EarlyEnd::MemoryFull));
        }
        if let Some((_, cause)) = limits.into_iter().find(|(most, _)| segments > *most) {
            return Err(NoSegment::Full(cause));
        }
        let most = window.min(most_in_file);
        let wanted = (stored + self.step()).min(most);
        let file = self.reopen().map_err(NoSegment::Full)?;
        // The last space of a disk is taken in small steps.
        let mut cause = EarlyEnd::Other;
        for wanted in [wanted, segments + 3, segments] {
            if wanted < segments || wanted > most {
                continue;
            }
            let from = stored.min(wanted);
            let given = match file.allocate(from * SEGMENT, (wanted - from) * SEGMENT) {
                Err(error) if error.is_allocation_unknown() => self.write_zeros(&file, segments, wanted)?,
                result => result,
            };
            match given {
                Ok(()) => {
                    self.word(control::BACKED_SEGMENTS).fetch_max(wanted, Ordering::AcqRel);
                    return Ok(());
                }
                Err(error) => cause = cause_of(error),
            }
        }
        Err(NoSegment::Full(cause))
    }

    /// Opens the file again; an error is the reason why the recording cannot continue in it.
    fn reopen(&self) -> Result<File, EarlyEnd> {
        let path = self.path().ok_or(EarlyEnd::FileLost)?;
        match self.checked(File::open_spool(path)) {
            Err(EarlyEnd::FileLost) if self.word(control::NEW_PATH).load(Ordering::Acquire) != 0 => {
                let renamed = (self.base + control::NEW_PATH) as *const c_char;
                // SAFETY: segment 0 is mapped and has storage, and `control` asserts that 4,096
                // bytes of it follow.
                self.checked(unsafe { File::open_shared_spool(renamed) })
            }
            result => result,
        }
    }

    /// Returns `opened` if it is the file of this recording, and as long as it must be.
    fn checked(&self, opened: Result<File, Errno>) -> Result<File, EarlyEnd> {
        let file = opened.map_err(|error| {
            if error.is_file_missing() { EarlyEnd::FileLost } else { EarlyEnd::Unreachable(error.0 as u16) }
        })?;
        let (identity, bytes) = file.identity_and_length().map_err(|_| EarlyEnd::FileLost)?;
        if identity != self.file {
            return Err(EarlyEnd::FileLost);
        }
        // Writing to a mapped page behind the end of the file raises SIGBUS, which ends the
        // program.
        if bytes < self.word(control::BACKED_SEGMENTS).load(Ordering::Acquire) * SEGMENT {
            return Err(EarlyEnd::FileCut);
        }
        Ok(file)
    }

    /// Writes zeros up to the wanted end, on a file system that cannot allocate storage otherwise.
    /// One thread at a time: a second one could overwrite events in the segments that the first has
    /// added.
    fn write_zeros(&self, file: &File, segments: u64, wanted: u64) -> Result<Result<(), Errno>, NoSegment> {
        let write = || {
            let from = self.word(control::BACKED_SEGMENTS).load(Ordering::Acquire).min(wanted);
            let written = file.write_zeros(from * SEGMENT, (wanted - from) * SEGMENT);
            if written.is_ok() {
                self.word(control::BACKED_SEGMENTS).fetch_max(wanted, Ordering::AcqRel);
            }
            written
        };
        match alone(&self.zero_writer, || self.stored() >= segments, write) {
            Outcome::Done(written) => Ok(written),
            Outcome::Unneeded => Ok(Ok(())),
            Outcome::Busy => Err(NoSegment::AllInUse),
        }
    }

    /// Returns the path of the file.
    pub(crate) fn path(&self) -> Option<&CStr> {
        if self.has_path { CStr::from_bytes_until_nul(&self.path).ok() } else { None }
    }

    /// Claims the oldest event segment that no thread is writing to.
    fn claim_from_ring(&self) -> Result<ClaimedSegment, NoSegment> {
        for _ in 0..self.ring_entries * 2 {
            let index = self.next_entry.fetch_add(1, Ordering::Relaxed) % self.ring_entries;
            let Some(entry) = self.ring.get(index as usize) else { break };
            if entry.owned.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
                continue;
            }
            return self.claim_entry(entry, index as u32);
        }
        Err(NoSegment::AllInUse)
    }

    /// Claims the segment of an entry that this thread owns, or a fresh one for it. Gives the entry
    /// back when there is none.
    fn claim_entry(&self, entry: &RingEntry, index: u32) -> Result<ClaimedSegment, NoSegment> {
        let mut segment = u64::from(entry.segment.load(Ordering::Relaxed));
        let mut overwritten = 0;
        if segment == 0 {
            segment = self.take_from_end().inspect_err(|_| entry.owned.store(0, Ordering::Release))?;
            entry.segment.store(segment as u32, Ordering::Relaxed);
        } else {
            overwritten = entry.events.load(Ordering::Relaxed);
        }
        Ok(self.claimed(segment, index, overwritten))
    }

    /// Claims a segment in a ring that is limited by time as well. It claims the one that was left
    /// first, if all its events are too old, and else a fresh one while the size allows it. So the
    /// file is only as large as the time needs.
    fn claim_by_age(&self) -> Result<ClaimedSegment, NoSegment> {
        let oldest_wanted = self.counter_before(self.ring_nanos);
        // Each further round means that another thread has changed the ring meanwhile.
        for _ in 0..self.ring_entries * 2 {
            let oldest = self.oldest_entry();
            let fresh = self.filled_entries.load(Ordering::Relaxed);
            let is_outdated = oldest.is_some_and(|(_, left)| left < oldest_wanted);
            if !is_outdated && fresh < self.ring_entries {
                let added = fresh + 1;
                let order = Ordering::Relaxed;
                if self.filled_entries.compare_exchange(fresh, added, order, order).is_err() {
                    continue;
                }
                // No other thread claims the entry before it has a segment.
                let Some(entry) = self.ring.get(fresh as usize) else { break };
                entry.owned.store(1, Ordering::Relaxed);
                match self.claim_entry(entry, fresh as u32) {
                    // Without storage the ring keeps its present size.
                    Err(_) if oldest.is_some() => {}
                    result => return result,
                }
            }
            let Some((index, _)) = oldest else { continue };
            let Some(entry) = self.ring.get(index) else { break };
            if entry.owned.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return self.claim_entry(entry, index as u32);
            }
        }
        Err(NoSegment::AllInUse)
    }

    /// Returns the entry that was left first among those that no thread writes to, and when it was
    /// left.
    fn oldest_entry(&self) -> Option<(usize, u64)> {
        let filled = self.filled_entries.load(Ordering::Relaxed).min(self.ring_entries);
        let entries = self.ring.iter().take(filled as usize).enumerate();
        let is_free = |entry: &RingEntry| {
            entry.owned.load(Ordering::Acquire) == 0 && entry.segment.load(Ordering::Relaxed) != 0
        };
        let free = entries.filter(|(_, entry)| is_free(entry));
        free.map(|(index, entry)| (index, entry.left.load(Ordering::Relaxed))).min_by_key(|&(_, left)| left)
    }

    /// Computes the value of the counter `nanos` nanoseconds ago, from its mean rate since the
    /// start.
    pub(crate) fn counter_before(&self, nanos: u64) -> u64 {
        let clocks = clock::reading();
        let elapsed_nanos = clocks.monotonic_nanos.saturating_sub(self.start_monotonic_nanos).max(1);
        let elapsed = clocks.counter.saturating_sub(self.start_counter);
        // Not in 128 bits: their division on AArch64 refers to Rust's unwinding runtime, which the
        // shipped library does not contain.
        let counts = elapsed as f64 * nanos as f64 / elapsed_nanos as f64;
        clocks.counter.saturating_sub(counts as u64)
    }

    /// Returns the maximum age of events in nanoseconds; `u64::MAX` for any age.
    pub(crate) fn ring_nanos(&self) -> u64 {
        self.ring_nanos
    }

    /// Ends the use of a ring's segment by its thread.
    pub(crate) fn leave(&self, ring_index: u32) {
        if let Some(entry) = self.ring.get(ring_index as usize).filter(|_| ring_index != NO_RING_ENTRY) {
            entry.left.store(clock::counter(), Ordering::Relaxed);
            // Counted now, while the segment is in the caches.
            let segment = entry.segment.load(Ordering::Relaxed);
            entry.events.store(self.events_in(segment.into()), Ordering::Relaxed);
            entry.owned.store(0, Ordering::Release);
        }
    }

    /// Counts the events that are lost with a segment of a ring. They are its own, and those that
    /// were lost when it was claimed.
    fn events_in(&self, segment: u64) -> u64 {
        let Some(bytes) = self.committed(segment) else { return 0 };
        let count = |record: Record<'_>| match record {
            Record::Alloc { .. } | Record::Free { .. } | Record::Mark { .. } | Record::Mapping { .. } => 1,
            Record::Loss { kind: LossKind::Overwritten, count } => count,
            _ => 0,
        };
        let records = Records::new(bytes, SEGMENT_HEADER_BYTES);
        records.map_while(Result::ok).map(|placed| count(placed.record)).sum()
    }

    /// Returns the committed records of a segment; its thread may append to it meanwhile.
    pub(crate) fn committed(&self, segment: u64) -> Option<&'static [u8]> {
        if segment == 0 || segment >= self.backed() {
            return None;
        }
        let at = self.base + segment as usize * SEGMENT_BYTES;
        let committed = committed_word(at).load(Ordering::Acquire) as usize;
        let length = committed.checked_sub(SEGMENT_HEADER_BYTES).filter(|_| committed <= SEGMENT_BYTES)?;
        // SAFETY: the segment is mapped and has storage, by the checks above, and committed bytes
        // do not change, except when a ring reuses the segment: `dump` detects that by the header,
        // which it reads again afterwards, and discards the copy. The bytes are only copied by the
        // kernel or parsed by a decoder that accepts any bytes.
        Some(unsafe { core::slice::from_raw_parts((at + SEGMENT_HEADER_BYTES) as *const u8, length) })
    }

    /// Returns the header of a segment.
    pub(crate) fn header(&self, segment: u64) -> Option<[u8; SEGMENT_HEADER_BYTES]> {
        if segment == 0 || segment >= self.backed() {
            return None;
        }
        let at = (self.base + segment as usize * SEGMENT_BYTES) as *const [u8; SEGMENT_HEADER_BYTES];
        // SAFETY: the segment is mapped and has storage, by the check above. Another thread may be
        // writing: the read is volatile, and the checksum decides whether the bytes are valid.
        Some(unsafe { at.read_volatile() })
    }

    /// Returns the first segment: header of the file, control words and facts.
    pub(crate) fn first_segment(&self) -> &'static [u8] {
        // SAFETY: segment 0 is mapped as long as the spool. Its words change meanwhile; the slice
        // is only passed to the kernel, which copies it.
        unsafe { core::slice::from_raw_parts(self.base as *const u8, SEGMENT_BYTES) }
    }

    /// Returns the number of segments that were taken from the end, including the first one.
    pub(crate) fn claimed_segments(&self) -> u64 {
        self.word(control::CLAIMED_SEGMENTS).load(Ordering::Acquire).min(self.backed())
    }

    /// Returns true for an event segment that its last thread left before the counter had this
    /// value.
    pub(crate) fn was_left_before(&self, segment: u64, counter: u64) -> bool {
        let mut entries = self.ring.iter().take(self.ring_entries as usize);
        entries.any(|entry| {
            u64::from(entry.segment.load(Ordering::Relaxed)) == segment
                && entry.owned.load(Ordering::Relaxed) == 0
                && entry.left.load(Ordering::Relaxed) < counter
        })
    }

    /// Waits until the kernel has written everything to the disk.
    pub(crate) fn synchronise(&self) -> Result<(), Errno> {
        let bytes = self.claimed_segments() as usize * SEGMENT_BYTES;
        os::synchronise(self.base, bytes, || self.reopen())
    }

    /// Gives up the file of a recording that has ended. It also gives up the memory and storage
    /// that only this mapping uses. A thread that is writing an event meanwhile finds zeros in
    /// place of the file, and gets no further segment.
    pub(crate) fn leave_file(&self) {
        self.forbid_calls();
        self.has_parent.store(false, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.shrink(0);
        // SAFETY: the window is mapped up to the end of the extent. Writers that are still in it
        // need no contents: they find valid zeros, and what they write is dropped.
        unsafe { os::replace_by_zeros(self.base, self.extent.end() - self.base) };
    }

    /// Unmaps the window, after [`leave_file`](Self::leave_file).
    ///
    /// # Safety
    ///
    /// No thread uses the spool now or later.
    #[cfg(target_os = "linux")]
    pub(crate) unsafe fn release(&self) {
        if self.base != 0 {
            // SAFETY: the extent is this spool's own mapping, and nobody uses it, by contract.
            unsafe { os::unmap(self.base, self.extent.end() - self.base) };
        }
    }

    /// Makes this window the one that a forked child gives up.
    pub(crate) fn publish_window(&self) {
        // Another thread may fork between two of these stores: the end 0 prevents that a child
        // combines the base of one window with the end of another.
        WINDOW_END.store(0, Ordering::SeqCst);
        WINDOW_BASE.store(self.base, Ordering::SeqCst);
        WINDOW_END.store(self.extent.end(), Ordering::SeqCst);
    }
}

/// The window of the present file, outside of the memory that a forked child finds wiped.
static WINDOW_BASE: AtomicUsize = AtomicUsize::new(0);
static WINDOW_END: AtomicUsize = AtomicUsize::new(0);

/// Notes that the window at `base` is mapped up to `end`.
fn note_open(base: usize, end: usize) {
    if WINDOW_BASE.load(Ordering::Relaxed) == base {
        WINDOW_END.fetch_max(end, Ordering::Relaxed);
    }
}

/// Notes that there is no window.
#[cfg(target_os = "linux")]
pub(crate) fn unpublish_window() {
    for word in [&WINDOW_END, &WINDOW_BASE] {
        word.store(0, Ordering::SeqCst);
    }
}

/// Gives up the parent's file in a forked child: writes to the window stay in this process.
///
/// # Safety
///
/// The published window is that of the parent, and this process is its child.
pub(crate) unsafe fn abandon_window() {
    let (base, end) = (WINDOW_BASE.load(Ordering::Relaxed), WINDOW_END.load(Ordering::Relaxed));
    if base < end {
        // SAFETY: the range is the inherited mapping of the parent's window, by contract; nothing
        // in this process reads it any more.
        unsafe { os::replace_by_zeros(base, end - base) };
    }
}

/// Returns the control word at this offset of the window at `base`.
#[inline(always)]
pub(crate) fn control_word(base: usize, offset: usize) -> &'static AtomicU64 {
    // SAFETY: `base` is that of a spool, whose segment 0 is mapped before the spool is used and as
    // long as any thread may use it (`release_ended`); offsets come from `control`, multiples of 8
    // in it.
    unsafe { &*((base + offset) as *const AtomicU64) }
}

/// Returns the word with the committed length of the segment at this address.
#[inline(always)]
pub(crate) fn committed_word(segment: usize) -> &'static AtomicU64 {
    // SAFETY: callers pass the address of a segment that was claimed or is below `backed`, so that
    // it is mapped and has storage; the word is aligned.
    unsafe { &*((segment + SegmentHeader::COMMITTED_OFFSET) as *const AtomicU64) }
}

/// Writes the header of a segment. The first store discards its old contents, and the last one
/// makes the new header valid: whenever the process is killed, a reader sees one of the two, or an
/// unused segment.
pub(crate) fn begin_segment(
    claimed: &ClaimedSegment,
    segment_use: SegmentUse,
    thread: u32,
    lane: Lane,
    sequence: u32,
    kernel_thread: u32,
) {
    let header = SegmentHeader {
        has_no_tables: segment_use == SegmentUse::Events,
        thread,
        lane,
        sequence,
        committed_bytes: SEGMENT_HEADER_BYTES as u64,
        counter: clock::counter(),
        kernel_thread,
        claim: claimed.claim,
    };
    let committed = committed_word(claimed.address);
    committed.store(0, Ordering::Release);
    fence(Ordering::SeqCst);
    let bytes = header.to_bytes();
    let (front, back) = bytes.split_at(SegmentHeader::COMMITTED_OFFSET);
    // SAFETY: `claim` has given the segment to this thread alone, mapped and with storage; both
    // parts of the header are in it.
    unsafe {
        copy_to(claimed.address, front);
        copy_to(claimed.address + SegmentHeader::COMMITTED_OFFSET + 8, back.get(8..).unwrap_or_default());
    }
    committed.store(SEGMENT_HEADER_BYTES as u64, Ordering::Release);
}

/// Copies bytes to an address.
///
/// # Safety
///
/// The memory at `at` is mapped, has storage, and is written by nobody else.
unsafe fn copy_to(at: usize, bytes: &[u8]) {
    // SAFETY: the destination is valid by contract, and no slice overlaps the window.
    unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), at as *mut u8, bytes.len()) };
}

/// Makes an empty file; returns it, and whether it has its name already.
fn create(path: Option<&CStr>) -> Result<(File, bool), SpoolError> {
    let Some(path) = path else {
        return File::in_memory(c"cairn").map(|file| (file, false)).map_err(SpoolError::Create);
    };
    File::create_spool(path)
        .map_err(|error| if error == Errno::EXISTS { SpoolError::Exists } else { SpoolError::Create(error) })
}

/// Allocates storage for the first segments of a new file; returns their number.
fn give_first_storage(
    file: &File,
    wanted: &SpoolOptions<'_>,
    ring_entries: u64,
    limit: u64,
) -> Result<u64, SpoolError> {
    // A file without a path cannot be opened again: all storage is taken at once, a fifth of it for
    // tables.
    let whole = (ring_entries + (ring_entries / 4).max(64) + 1).max(LEAST_STEP);
    let steps = if wanted.path.is_none() { [whole; FIRST_STEPS.len()] } else { FIRST_STEPS };
    // The packed recording that the parent writes needs room on the same disk.
    let half = if wanted.has_parent { (file.free_bytes() / 2 / SEGMENT).max(1) } else { u64::MAX };
    let mut last = Errno::FILE_TOO_LARGE;
    let mut tried = u64::MAX;
    for step in steps.map(|step| step.min(limit).min(half)) {
        if step == 0 || step == tried {
            continue;
        }
        tried = step;
        match give_storage(file, 0, step * SEGMENT) {
            Ok(()) => return Ok(step),
            Err(error) => {
                last = error;
                // Storage of a failed attempt would be missing in the next one.
                let _ = file.set_length(0);
            }
        }
    }
    Err(SpoolError::Storage(last))
}

/// Translates the error of an extension into the reason for the early end.
fn cause_of(error: Errno) -> EarlyEnd {
    if error.is_disk_full() {
        EarlyEnd::DiskFull(error.0 as u16)
    } else if error == Errno::FILE_TOO_LARGE {
        EarlyEnd::FileSizeLimit
    } else {
        EarlyEnd::Storage(error.0 as u16)
    }
}

/// Allocates storage for a range of a file that has no name yet.
fn give_storage(file: &File, from: u64, bytes: u64) -> Result<(), Errno> {
    match file.allocate(from, bytes) {
        Err(error) if error.is_allocation_unknown() => file.write_zeros(from, bytes),
        result => result,
    }
}
