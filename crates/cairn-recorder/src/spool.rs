//! The file: its mapping in this process, and who gets which block of it.
//!
//! ```text
//!   window:  | header, control words, facts | block | block | block | block | nothing yet, room to grow ...
//!                                                           ^ CLAIMED       ^ open      ^ BACKED, end of the file
//! ```
//!
//! The window grows where it lies ([`Extent`]), and only as far as the file has storage (`BACKED_SEGMENTS`): a full disk is an
//! error when the file is extended and never a SIGBUS. It takes no more of the address space than is recorded, because programs
//! read how much they have mapped and set limits by it; and nothing of it is an error for code that reads all readable memory
//! (leak checkers, `mlockall`). No descriptor is kept, because programs close and reuse descriptors that they did not open;
//! to extend the file it is opened, checked to be the same one, and closed. To extend the window, no descriptor is needed.
//!
//! Claiming a block takes no lock: from the ring of those that `cairn` has drained, else from the end. In a recording that keeps
//! its last part only, event blocks come from a fixed set instead, oldest first.

use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

use cairn_format::recording::control::EarlyEnd;
use cairn_format::recording::{
    FileHeader, Lane, LossKind, Record, Records, SEGMENT_BYTES, SEGMENT_HEADER_BYTES, SegmentHeader, Shape,
    control,
};

use crate::clock;
use crate::extent::{Alone, Extent, Ungrown, alone};
use crate::os::{self, Errno, File};
use crate::recorder;
use crate::thread_log::most_events_between_stamps;

/// What a block is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Use {
    /// Events of a thread. A ring takes such blocks back.
    Events,
    /// Modules, addresses and stacks: needed for as long as any event is.
    Tables,
}

/// A block that a thread has just got.
pub(crate) struct Claimed {
    /// Address of the first byte.
    pub(crate) address: usize,
    /// How many blocks were ever claimed, this one included.
    pub(crate) claim: u64,
    /// Its place in the ring of event blocks, to be given back; [`NO_PLACE`] otherwise.
    pub(crate) place: u32,
    /// How many events it held before, which are overwritten now.
    pub(crate) overwritten: u64,
}

/// In place of a place in a ring.
pub(crate) const NO_PLACE: u32 = u32::MAX;

/// Why there is no block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NoBlock {
    /// There will be none any more, for this reason.
    Full(EarlyEnd),
    /// All blocks of the ring are in use by other threads.
    AllInUse,
}

/// As many event blocks as a ring can have: 1 GiB.
const RING_LIMIT_BLOCKS: usize = 1 << 14;
/// As few: two for each of eight threads.
const RING_LEAST_BLOCKS: u64 = 16;

/// So many blocks stay in the program's memory when they are full: a parent that keeps up gives them back soon, and then they cost nothing.
const RESIDENT_BLOCKS: u64 = 128;

/// How far the file grows in one step, in blocks: 4 MiB, later an eighth of what is there, up to 64 MiB.
const LEAST_STEP: u64 = 64;
const LARGEST_STEP: u64 = 1024;
/// Where there is no room for the first step, a smaller one: the last one has the head alone, which says why nothing else is there.
const FIRST_STEPS: [u64; 6] = [LEAST_STEP, 32, 16, 8, 4, 1];

/// The parent gives a block back when its thread has taken the next one: of fewer blocks than this, none may ever be given back.
const FEW_BLOCKS: u64 = 16;

/// The window has no more bytes,
const WINDOW_BYTES: u64 = 1 << 36;
/// and no more than such a part of what a limit of the address space allows.
const WINDOW_SHARE: u64 = 4;
/// Where windows lie.
static ZONE: os::Zone = os::Zone { from: 1 << 38, bytes: 1 << 42, count: AtomicU32::new(0) };

/// Room for the path, with its NUL.
pub(crate) const PATH_BYTES: usize = 4096;

const BLOCK: u64 = SEGMENT_BYTES as u64;

/// What is asked of a new spool.
pub(crate) struct Wanted<'a> {
    /// `None` for memory without a file.
    pub(crate) path: Option<&'a CStr>,
    /// Bytes of event blocks to keep; `None` to keep all.
    pub(crate) ring_bytes: Option<u64>,
    /// How old they may be, in nanoseconds; `u64::MAX` for any age.
    pub(crate) ring_nanos: u64,
    pub(crate) limit_bytes: u64,
    pub(crate) has_parent: bool,
    pub(crate) stamp_interval: u32,
}

/// One place of the ring of event blocks.
#[repr(C)]
struct Place {
    /// Not 0 while a thread writes to it.
    owned: AtomicU32,
    /// The block, 0 while it has none yet.
    block: AtomicU32,
    /// The counter when its last owner left it.
    left: AtomicU64,
    /// What is lost when it is taken again.
    events: AtomicU64,
}

/// See the module documentation. Lies in memory that a forked child finds wiped.
#[repr(C)]
pub(crate) struct Spool {
    base: usize,
    /// How many blocks the window may have.
    window_blocks: AtomicU64,
    /// How many the options allow.
    allowed_blocks: u64,
    /// What is mapped of it: blocks that may be read and written.
    extent: Extent,
    pub(crate) start_counter: u64,
    pub(crate) start_monotonic_nanos: u64,
    pub(crate) stamp_interval: u32,
    has_parent: AtomicBool,
    /// The parent's tick when it was given up; it is believed again when it ticks on.
    silent_tick: AtomicU64,
    is_frugal: AtomicBool,
    has_path: bool,
    /// Device and inode.
    file: (u64, u64),
    ring_places: u64,
    /// `u64::MAX` for a ring that is limited by size alone.
    ring_nanos: u64,
    /// How many places of the ring have a block, where it is limited by time as well.
    filled_places: AtomicU64,
    next_place: AtomicU64,
    /// Process and thread of who writes zeros to the end of the file; 0 for nobody.
    zero_writer: AtomicU64,
    path: [u8; PATH_BYTES],
    ring: [Place; RING_LIMIT_BLOCKS],
}

/// Why a spool cannot be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unmade {
    Exists,
    Create(Errno),
    Storage(Errno),
    AddressSpace(Errno),
}

impl Spool {
    /// Makes the file and maps it. It gets its name when its header is there, so that whoever finds it can read it.
    pub(crate) fn make(&mut self, wanted: &Wanted<'_>) -> Result<(), Unmade> {
        self.allowed_blocks = wanted.limit_bytes / BLOCK;
        let limit = self.allowed_blocks.min(os::soft_limit(libc::RLIMIT_FSIZE as i32) / BLOCK);
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
        wanted: &Wanted<'_>,
        limit: u64,
        is_named: bool,
    ) -> Result<(), Unmade> {
        self.file = file.identity().map_err(Unmade::Create)?;
        let least = RING_LEAST_BLOCKS.min(RING_LIMIT_BLOCKS as u64);
        self.ring_places =
            wanted.ring_bytes.map_or(0, |bytes| (bytes / BLOCK).clamp(least, RING_LIMIT_BLOCKS as u64));
        let first_step = give_first_storage(file, wanted, self.ring_places, limit)?;
        let most = os::soft_limit(libc::RLIMIT_AS as i32) / WINDOW_SHARE;
        let window = WINDOW_BYTES.min(most) / BLOCK;
        *self.window_blocks.get_mut() = window.min(limit).max(first_step);
        let bytes = (first_step * BLOCK) as usize;
        self.base = file.map(bytes, SEGMENT_BYTES, &ZONE).map_err(Unmade::AddressSpace)?;
        self.extent.begin(self.base + bytes);
        if let Some(path) = wanted.path {
            let bytes = path.to_bytes_with_nul();
            match self.path.get_mut(..bytes.len()) {
                Some(place) => place.copy_from_slice(bytes),
                None => return Err(Unmade::Create(Errno(libc::ENAMETOOLONG))),
            }
        }
        self.has_path = wanted.path.is_some();
        self.write_header(first_step);
        match wanted.path {
            Some(path) if !is_named => os::link(file, path).map_err(|error| {
                if error == Errno(libc::EEXIST) { Unmade::Exists } else { Unmade::Create(error) }
            }),
            _ => Ok(()),
        }
    }

    fn write_header(&mut self, backed: u64) {
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
            stamp_interval: most_events_between_stamps(self.stamp_interval),
        };
        self.word(control::BACKED_SEGMENTS).store(backed, Ordering::Relaxed);
        self.word(control::CLAIMED_SEGMENTS).store(1, Ordering::Relaxed);
        self.word(control::STATE).store(control::State::Starting.to_word(), Ordering::Relaxed);
        self.word(control::MAPPED_AT).store(self.base as u64, Ordering::Relaxed);
        // SAFETY: block 0 has storage and nobody else knows the mapping yet.
        unsafe { copy_to(self.base, &header.to_bytes()) };
        fence(Ordering::SeqCst);
    }

    /// The place of the facts, while they are being written.
    ///
    /// # Safety
    ///
    /// One caller at a time.
    pub(crate) unsafe fn facts(&self) -> &'static mut [u8] {
        let at = (self.base + control::FACTS) as *mut u8;
        // SAFETY: within block 0, which has storage and is never unmapped; one caller by contract.
        unsafe { core::slice::from_raw_parts_mut(at, control::FACTS_LIMIT_BYTES) }
    }

    /// A control word.
    #[inline(always)]
    pub(crate) fn word(&self, offset: usize) -> &'static AtomicU64 {
        control_word(self.base, offset)
    }

    /// Address of the control words.
    pub(crate) fn base(&self) -> usize {
        self.base
    }

    /// True when only the last part is kept.
    pub(crate) fn is_ring(&self) -> bool {
        self.ring_places > 0
    }

    /// From now on no system call is made.
    pub(crate) fn be_frugal(&self) {
        self.is_frugal.store(true, Ordering::Relaxed);
    }

    /// True after [`be_frugal`](Self::be_frugal).
    pub(crate) fn is_frugal(&self) -> bool {
        self.is_frugal.load(Ordering::Relaxed)
    }

    /// Takes a block.
    #[cold]
    pub(crate) fn claim(&self, use_of_it: Use) -> Result<Claimed, NoBlock> {
        if use_of_it == Use::Events && self.is_ring() {
            return if self.ring_nanos == u64::MAX { self.claim_from_ring() } else { self.claim_by_age() };
        }
        let block = match self.take_given_back() {
            Some(block) => {
                // Its pages were left to the file when it was full.
                if block >= RESIDENT_BLOCKS && !self.is_frugal() {
                    os::populate(self.base + block as usize * SEGMENT_BYTES, SEGMENT_BYTES);
                }
                block
            }
            None => self.take_from_end()?,
        };
        Ok(self.claimed(block, NO_PLACE, 0))
    }

    /// Ends the use of the block at `address`, which is full, by its thread. Where events wait for the parent, or there is none to read
    /// them, the program's memory shall not grow with the recording.
    pub(crate) fn leave_full(&self, address: usize) {
        let block = (address - self.base) as u64 / BLOCK;
        if block >= RESIDENT_BLOCKS && self.has_path && !self.is_ring() && !self.is_frugal() {
            os::leave_to_file(address, SEGMENT_BYTES);
        }
    }

    fn claimed(&self, block: u64, place: u32, overwritten: u64) -> Claimed {
        let claim = self.word(control::CLAIMS).fetch_add(1, Ordering::Relaxed) + 1;
        Claimed { address: self.base + block as usize * SEGMENT_BYTES, claim, place, overwritten }
    }

    /// A block that the parent has drained.
    fn take_given_back(&self) -> Option<u64> {
        let taken_word = self.word(control::FREE_TAKEN);
        let mut taken = taken_word.load(Ordering::Relaxed);
        while taken < self.word(control::FREE_GIVEN).load(Ordering::Acquire) {
            let at = self.base + control::FREE_RING + taken as usize % control::FREE_RING_ENTRIES * 4;
            // SAFETY: within block 0; entries are written by the parent, whole words.
            let block = unsafe { &*(at as *const AtomicU32) }.load(Ordering::Relaxed);
            match taken_word.compare_exchange(taken, taken + 1, Ordering::AcqRel, Ordering::Relaxed) {
                // A block that never was ours to write is a mistake of the parent's: leave it.
                Ok(_) if (1..self.backed()).contains(&u64::from(block)) => return Some(block.into()),
                Ok(_) => taken += 1,
                Err(other) => taken = other,
            }
        }
        None
    }

    fn take_from_end(&self) -> Result<u64, NoBlock> {
        let claimed_word = self.word(control::CLAIMED_SEGMENTS);
        let mut claimed = claimed_word.load(Ordering::Relaxed);
        loop {
            if claimed >= self.backed() {
                // The parent extends the file ahead of the program; that has only to be mapped.
                if claimed < self.stored() && self.open(claimed + 1).is_ok() {
                    continue;
                }
                if self.stored() < LEAST_STEP {
                    // The disk had no room for the first step. Of so few blocks, all may be such that the parent cannot give back.
                    match self.grow(claimed + 1) {
                        Ok(()) => continue,
                        Err(why) if claimed < FEW_BLOCKS => return Err(why),
                        Err(_) => {}
                    }
                }
                if let Some(block) = self.wait_for_parent() {
                    return Ok(block);
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
        if !self.is_frugal() {
            os::populate(self.base + claimed as usize * SEGMENT_BYTES, SEGMENT_BYTES);
        }
        Ok(claimed)
    }

    /// How many blocks have storage and may be touched.
    fn backed(&self) -> u64 {
        self.stored().min(self.open_blocks())
    }

    /// How many blocks have storage, of those that the window may have.
    fn stored(&self) -> u64 {
        let window = self.window_blocks.load(Ordering::Relaxed);
        self.word(control::BACKED_SEGMENTS).load(Ordering::Acquire).min(window)
    }

    /// How many blocks are mapped.
    fn open_blocks(&self) -> u64 {
        (self.extent.end() - self.base) as u64 / BLOCK
    }

    /// Maps at least so many blocks, which have storage, and some of those behind them that have it too.
    #[cold]
    fn open(&self, blocks: u64) -> Result<(), NoBlock> {
        if self.is_frugal() {
            return Err(NoBlock::Full(EarlyEnd::Sandbox));
        }
        let ahead = (self.open_blocks() + self.step()).min(self.stored());
        let end = |blocks: u64| self.base + (blocks * BLOCK) as usize;
        let note = |end: usize| recorder::note_open(self.base, end);
        // Where there is room for a part only, the part.
        for blocks in [ahead.max(blocks), blocks] {
            match self.extent.reach(end(blocks), note) {
                Ok(()) => return Ok(()),
                Err(Ungrown::Busy) => return Err(NoBlock::AllInUse),
                Err(Ungrown::Refused(_)) => {}
            }
        }
        Err(NoBlock::Full(EarlyEnd::AddressSpace))
    }

    /// How far file and window grow at once, in blocks.
    fn step(&self) -> u64 {
        (self.backed() / 8).clamp(LEAST_STEP, LARGEST_STEP)
    }

    /// Lets the window have no more than `most_bytes`, or what it has already.
    pub(crate) fn shrink(&self, most_bytes: u64) {
        let wanted = (most_bytes / BLOCK).max(self.open_blocks());
        self.window_blocks.fetch_min(wanted, Ordering::Relaxed);
    }

    /// Waits while a parent lives that may give a block back or extend the file: an exact recording is worth a little
    /// time. Answers at once where there is none.
    fn wait_for_parent(&self) -> Option<u64> {
        const STEP_MICROS: u32 = 100;
        const STEPS: u32 = 100_000;
        /// A parent that has not ticked for so many steps is gone, or stopped, or gets no processor.
        const PATIENCE_STEPS: u32 = 2_000;

        if !self.has_parent.load(Ordering::Relaxed) || self.is_frugal() {
            return None;
        }
        let (tick, stored) = (self.word(control::TICK), self.stored());
        let (mut last, mut idle) = (tick.load(Ordering::Relaxed), 0);
        if last == self.silent_tick.load(Ordering::Relaxed) {
            return None;
        }
        for _ in 0..STEPS {
            if let Some(block) = self.take_given_back() {
                return Some(block);
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

    /// Extends the file and the window so that they have at least so many blocks. Two threads may do it at once, to the same effect.
    fn grow(&self, blocks: u64) -> Result<(), NoBlock> {
        if self.stored() < blocks {
            match self.extend(blocks) {
                // Another thread may have had more luck.
                Err(NoBlock::Full(_)) if self.stored() >= blocks => {}
                result => result?,
            }
        }
        self.open(blocks)
    }

    /// Extends the file.
    fn extend(&self, blocks: u64) -> Result<(), NoBlock> {
        let stored = self.stored();
        let window = self.window_blocks.load(Ordering::Relaxed);
        if self.is_frugal() {
            return Err(NoBlock::Full(EarlyEnd::Sandbox));
        }
        // Beyond the limit the kernel would send SIGXFSZ, which ends the program.
        let most_in_file = os::soft_limit(libc::RLIMIT_FSIZE as i32) / BLOCK;
        let limits = [
            (self.allowed_blocks, EarlyEnd::MaxSize),
            (most_in_file, EarlyEnd::FileSizeLimit),
            (window, EarlyEnd::AddressSpace),
        ];
        if !self.has_path {
            return Err(NoBlock::Full(EarlyEnd::MemoryFull));
        }
        if let Some((_, cause)) = limits.into_iter().find(|(most, _)| blocks > *most) {
            return Err(NoBlock::Full(cause));
        }
        let most = window.min(most_in_file);
        let wanted = (stored + self.step()).min(most);
        let file = self.reopen().map_err(NoBlock::Full)?;
        // The last space of a disk comes in small steps.
        let mut cause = EarlyEnd::Other;
        for wanted in [wanted, blocks + 3, blocks] {
            if wanted < blocks || wanted > most {
                continue;
            }
            let from = stored.min(wanted);
            let given = match file.allocate(from * BLOCK, (wanted - from) * BLOCK) {
                Err(error) if cannot_allocate(error) => self.write_zeros(&file, blocks, wanted)?,
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
        Err(NoBlock::Full(cause))
    }

    /// Opens the file, or says why the recording cannot go on in it.
    fn reopen(&self) -> Result<File, EarlyEnd> {
        let path = self.path().ok_or(EarlyEnd::FileLost)?;
        let file =
            File::open(path, libc::O_RDWR | libc::O_NOFOLLOW, 0).map_err(|Errno(error)| match error {
                libc::ENOENT | libc::ENOTDIR | libc::ELOOP | libc::EISDIR => EarlyEnd::FileLost,
                error => EarlyEnd::Unreachable(error as u16),
            })?;
        let (identity, bytes) = file.identity_and_length().map_err(|_| EarlyEnd::FileLost)?;
        if identity != self.file {
            return Err(EarlyEnd::FileLost);
        }
        // What is not there any more must not be written to: that ends the program.
        if bytes < self.word(control::BACKED_SEGMENTS).load(Ordering::Acquire) * BLOCK {
            return Err(EarlyEnd::FileCut);
        }
        Ok(file)
    }

    /// Writes zeros up to the end that is wanted, where a file system knows no other way to give storage.
    /// One thread at a time: what it writes must not be the block of an event already, by another thread that was faster.
    fn write_zeros(&self, file: &File, blocks: u64, wanted: u64) -> Result<Result<(), Errno>, NoBlock> {
        let write = || {
            let from = self.word(control::BACKED_SEGMENTS).load(Ordering::Acquire).min(wanted);
            let written = file.write_zeros(from * BLOCK, (wanted - from) * BLOCK);
            if written.is_ok() {
                self.word(control::BACKED_SEGMENTS).fetch_max(wanted, Ordering::AcqRel);
            }
            written
        };
        match alone(&self.zero_writer, || self.stored() >= blocks, write) {
            Alone::Done(written) => Ok(written),
            Alone::Unneeded => Ok(Ok(())),
            Alone::Busy => Err(NoBlock::AllInUse),
        }
    }

    /// Where the file is.
    pub(crate) fn path(&self) -> Option<&CStr> {
        if self.has_path { CStr::from_bytes_until_nul(&self.path).ok() } else { None }
    }

    /// The oldest event block that no thread is writing to.
    fn claim_from_ring(&self) -> Result<Claimed, NoBlock> {
        for _ in 0..self.ring_places * 2 {
            let index = self.next_place.fetch_add(1, Ordering::Relaxed) % self.ring_places;
            let Some(place) = self.ring.get(index as usize) else { break };
            if place.owned.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
                continue;
            }
            return self.claim_place(place, index as u32);
        }
        Err(NoBlock::AllInUse)
    }

    /// The block of a place that this thread owns, or a fresh one for it. Gives the place back when there is none.
    fn claim_place(&self, place: &Place, index: u32) -> Result<Claimed, NoBlock> {
        let mut block = u64::from(place.block.load(Ordering::Relaxed));
        let mut overwritten = 0;
        if block == 0 {
            block = self.take_from_end().inspect_err(|_| place.owned.store(0, Ordering::Release))?;
            place.block.store(block as u32, Ordering::Relaxed);
        } else {
            overwritten = place.events.load(Ordering::Relaxed);
        }
        Ok(self.claimed(block, index, overwritten))
    }

    /// In a ring that is limited by time too: the block that was left first, if all in it is too old, and else a fresh one as long as
    /// the size allows. So the file is only as large as that time needs.
    fn claim_by_age(&self) -> Result<Claimed, NoBlock> {
        let oldest_wanted = self.counter_before(self.ring_nanos);
        // Each further round means that another thread was faster.
        for _ in 0..self.ring_places * 2 {
            let oldest = self.oldest_place();
            let fresh = self.filled_places.load(Ordering::Relaxed);
            let is_outdated = oldest.is_some_and(|(_, left)| left < oldest_wanted);
            if !is_outdated && fresh < self.ring_places {
                let added = fresh + 1;
                let order = Ordering::Relaxed;
                if self.filled_places.compare_exchange(fresh, added, order, order).is_err() {
                    continue;
                }
                // Only this thread knows of the place until it has a block.
                let Some(place) = self.ring.get(fresh as usize) else { break };
                place.owned.store(1, Ordering::Relaxed);
                match self.claim_place(place, fresh as u32) {
                    // No storage: from now on the ring is as large as it is.
                    Err(_) if oldest.is_some() => {}
                    result => return result,
                }
            }
            let Some((index, _)) = oldest else { continue };
            let Some(place) = self.ring.get(index) else { break };
            if place.owned.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return self.claim_place(place, index as u32);
            }
        }
        Err(NoBlock::AllInUse)
    }

    /// Of the places with a block that no thread writes to, the one that was left first, and when.
    fn oldest_place(&self) -> Option<(usize, u64)> {
        let filled = self.filled_places.load(Ordering::Relaxed).min(self.ring_places);
        let places = self.ring.iter().take(filled as usize).enumerate();
        let is_free = |place: &Place| {
            place.owned.load(Ordering::Acquire) == 0 && place.block.load(Ordering::Relaxed) != 0
        };
        let free = places.filter(|(_, place)| is_free(place));
        free.map(|(index, place)| (index, place.left.load(Ordering::Relaxed))).min_by_key(|&(_, left)| left)
    }

    /// What the counter was so many nanoseconds ago, by how it went since the start.
    pub(crate) fn counter_before(&self, nanos: u64) -> u64 {
        let clocks = clock::reading();
        let elapsed_nanos = clocks.monotonic_nanos.saturating_sub(self.start_monotonic_nanos).max(1);
        let elapsed = clocks.counter.saturating_sub(self.start_counter);
        // Not in 128 bits: on AArch64 their division is a function that refers to Rust's unwinding runtime, which is not there.
        let counts = elapsed as f64 * nanos as f64 / elapsed_nanos as f64;
        clocks.counter.saturating_sub(counts as u64)
    }

    /// Beyond how many nanoseconds events are not kept; `u64::MAX` for no such limit.
    pub(crate) fn ring_nanos(&self) -> u64 {
        self.ring_nanos
    }

    /// Ends the use of a ring's block by its thread.
    pub(crate) fn leave(&self, place: u32) {
        if let Some(place) = self.ring.get(place as usize).filter(|_| place != NO_PLACE) {
            place.left.store(clock::counter(), Ordering::Relaxed);
            // Now, while the block is in the caches.
            let block = place.block.load(Ordering::Relaxed);
            place.events.store(self.events_in(block.into()), Ordering::Relaxed);
            place.owned.store(0, Ordering::Release);
        }
    }

    /// How many events are lost with a block of a ring: those in it, and those that it says were lost when it was taken.
    fn events_in(&self, block: u64) -> u64 {
        let Some(bytes) = self.committed(block) else { return 0 };
        let count = |record: Record<'_>| match record {
            Record::Alloc { .. } | Record::Free { .. } | Record::Mark { .. } | Record::Mapping { .. } => 1,
            Record::Loss { kind: LossKind::Overwritten, count } => count,
            _ => 0,
        };
        let records = Records::new(bytes, SEGMENT_HEADER_BYTES);
        records.map_while(Result::ok).map(|placed| count(placed.record)).sum()
    }

    /// The committed records of a block that may be written to at this moment.
    pub(crate) fn committed(&self, block: u64) -> Option<&'static [u8]> {
        if block == 0 || block >= self.backed() {
            return None;
        }
        let at = self.base + block as usize * SEGMENT_BYTES;
        let committed = committed_word(at).load(Ordering::Acquire) as usize;
        let length = committed.checked_sub(SEGMENT_HEADER_BYTES).filter(|_| committed <= SEGMENT_BYTES)?;
        // SAFETY: the block has storage, and what is committed is not written any more, but by a ring that takes the block
        // again: a reader of a ring checks the number of the claim afterwards.
        Some(unsafe { core::slice::from_raw_parts((at + SEGMENT_HEADER_BYTES) as *const u8, length) })
    }

    /// The bytes in front of a block.
    pub(crate) fn header(&self, block: u64) -> Option<[u8; SEGMENT_HEADER_BYTES]> {
        if block == 0 || block >= self.backed() {
            return None;
        }
        let at = (self.base + block as usize * SEGMENT_BYTES) as *const [u8; SEGMENT_HEADER_BYTES];
        // SAFETY: the block has storage; another thread may be writing, so each byte is read once and believed only by its sum.
        Some(unsafe { at.read_volatile() })
    }

    /// The header of the file, the control words and the facts.
    pub(crate) fn first_block(&self) -> &'static [u8] {
        // SAFETY: has storage from the start and is never unmapped. Words in it change while it is read, which is for the
        // kernel to do.
        unsafe { core::slice::from_raw_parts(self.base as *const u8, SEGMENT_BYTES) }
    }

    /// How many blocks were taken from the end, the first one included.
    pub(crate) fn claimed_blocks(&self) -> u64 {
        self.word(control::CLAIMED_SEGMENTS).load(Ordering::Acquire).min(self.backed())
    }

    /// True for an event block whose last thread left it before the counter had this value.
    pub(crate) fn was_left_before(&self, block: u64, counter: u64) -> bool {
        let mut places = self.ring.iter().take(self.ring_places as usize);
        places.any(|place| {
            u64::from(place.block.load(Ordering::Relaxed)) == block
                && place.owned.load(Ordering::Relaxed) == 0
                && place.left.load(Ordering::Relaxed) < counter
        })
    }

    /// Waits until the kernel has written everything to the disk.
    pub(crate) fn synchronise(&self) -> Result<(), Errno> {
        os::synchronise(self.base, self.claimed_blocks() as usize * SEGMENT_BYTES)
    }

    /// Gives up the file, in a forked child: what is written to the window from now on is nobody's.
    ///
    /// # Safety
    ///
    /// The numbers are those of the parent's spool, and this process is its child.
    pub(crate) unsafe fn abandon(base: usize, end: usize) {
        if base < end {
            // SAFETY: by contract the memory is shared with the parent, and nothing here needs it.
            unsafe { os::replace_by_zeros(base, end - base) };
        }
    }

    /// Gives up the file where the recording has ended, and with it the memory and the storage that only this mapping keeps. A thread
    /// that was in the midst of an event finds zeros in place of the file, and no block after its last one.
    pub(crate) fn leave_file(&self) {
        self.be_frugal();
        self.has_parent.store(false, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.shrink(0);
        // SAFETY: what was recorded is in the file, and nothing of it is read here any more.
        unsafe { os::replace_by_zeros(self.base, self.extent.end() - self.base) };
    }

    /// Unmaps the whole window, after [`leave_file`](Self::leave_file).
    ///
    /// # Safety
    ///
    /// No thread uses the spool now or later.
    pub(crate) unsafe fn release(&self) {
        if self.base != 0 {
            // SAFETY: the window, of which nothing else is mapped; nobody uses it, by contract.
            unsafe { os::unmap(self.base, self.extent.end() - self.base) };
        }
    }

    /// The window: where it begins and ends.
    pub(crate) fn window(&self) -> (usize, usize) {
        (self.base, self.extent.end())
    }
}

/// A control word of the window at `base`.
#[inline(always)]
pub(crate) fn control_word(base: usize, offset: usize) -> &'static AtomicU64 {
    // SAFETY: within block 0, which has storage from the start; the window is never unmapped, and the offset is one of
    // `control`, a multiple of 8.
    unsafe { &*((base + offset) as *const AtomicU64) }
}

/// The committed length of the block at this address.
#[inline(always)]
pub(crate) fn committed_word(block: usize) -> &'static AtomicU64 {
    // SAFETY: as above; blocks are only looked at when they have storage.
    unsafe { &*((block + SegmentHeader::COMMITTED_OFFSET) as *const AtomicU64) }
}

/// Writes the header of a block. What it held before is gone with the first store, and what it is now is there with the
/// last: whenever the process dies, a reader sees one of the two, or an unused block.
pub(crate) fn begin_block(
    claimed: &Claimed,
    use_of_it: Use,
    thread: u32,
    lane: Lane,
    sequence: u32,
    kernel_thread: u32,
) {
    let header = SegmentHeader {
        has_no_tables: use_of_it == Use::Events,
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
    // SAFETY: the block is this thread's alone and has storage.
    unsafe {
        copy_to(claimed.address, front);
        copy_to(claimed.address + SegmentHeader::COMMITTED_OFFSET + 8, back.get(8..).unwrap_or_default());
    }
    committed.store(SEGMENT_HEADER_BYTES as u64, Ordering::Release);
}

/// # Safety
///
/// The memory at `at` is mapped, has storage, and is written by nobody else.
unsafe fn copy_to(at: usize, bytes: &[u8]) {
    // SAFETY: by contract.
    unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), at as *mut u8, bytes.len()) };
}

/// An empty file, and whether it has its name already.
fn create(path: Option<&CStr>) -> Result<(File, bool), Unmade> {
    let Some(path) = path else {
        return File::in_memory(c"cairn").map(|file| (file, false)).map_err(Unmade::Create);
    };
    let mut buffer = [0_u8; 512];
    let nameless = directory_of(path, &mut buffer)
        .and_then(|directory| File::open(directory, libc::O_TMPFILE | libc::O_RDWR, 0o600).ok());
    if let Some(file) = nameless {
        return Ok((file, false));
    }
    // A file system without nameless files: for a moment there is an empty one.
    let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;
    match File::open(path, flags, 0o600) {
        Ok(file) => Ok((file, true)),
        Err(Errno(libc::EEXIST)) => Err(Unmade::Exists),
        Err(error) => Err(Unmade::Create(error)),
    }
}

/// The directory that a path leads to; `None` when it is too long for the buffer.
fn directory_of<'a>(path: &CStr, buffer: &'a mut [u8]) -> Option<&'a CStr> {
    let bytes = path.to_bytes();
    let directory = match bytes.iter().rposition(|&byte| byte == b'/') {
        None => b".".as_slice(),
        Some(0) => b"/",
        Some(end) => bytes.get(..end)?,
    };
    let place = buffer.get_mut(..directory.len() + 1)?;
    place[..directory.len()].copy_from_slice(directory);
    place[directory.len()] = 0;
    CStr::from_bytes_with_nul(place).ok()
}

/// Storage for the first blocks of a new file: how many these are.
fn give_first_storage(file: &File, wanted: &Wanted<'_>, ring_places: u64, limit: u64) -> Result<u64, Unmade> {
    // Without a path there is no way back to the file: everything is taken at once, a quarter of it for tables.
    let whole = (ring_places + (ring_places / 4).max(64) + 1).max(LEAST_STEP);
    let steps = if wanted.path.is_none() { [whole; FIRST_STEPS.len()] } else { FIRST_STEPS };
    // On a small disk, the packed recording that the parent makes needs some of the room.
    let half = if wanted.has_parent { (file.free_bytes() / 2 / BLOCK).max(1) } else { u64::MAX };
    let mut last = Errno(libc::EFBIG);
    let mut tried = u64::MAX;
    for step in steps.map(|step| step.min(limit).min(half)) {
        if step == 0 || step == tried {
            continue;
        }
        tried = step;
        match give_storage(file, 0, step * BLOCK) {
            Ok(()) => return Ok(step),
            Err(error) => {
                last = error;
                // What was given of it stays in the way of the next try.
                let _ = file.set_length(0);
            }
        }
    }
    Err(Unmade::Storage(last))
}

/// Why a file cannot be made larger, by the error of the kernel.
fn cause_of(Errno(error): Errno) -> EarlyEnd {
    match error {
        libc::ENOSPC | libc::EDQUOT => EarlyEnd::DiskFull(error as u16),
        libc::EFBIG => EarlyEnd::FileSizeLimit,
        error => EarlyEnd::Storage(error as u16),
    }
}

/// Storage for a range of a file that nobody else knows.
fn give_storage(file: &File, from: u64, bytes: u64) -> Result<(), Errno> {
    match file.allocate(from, bytes) {
        Err(error) if cannot_allocate(error) => file.write_zeros(from, bytes),
        result => result,
    }
}

/// Whether a file system has answered that it does not know how.
fn cannot_allocate(Errno(error): Errno) -> bool {
    matches!(error, libc::EOPNOTSUPP | libc::ENOSYS | libc::EPERM)
}
