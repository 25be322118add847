//! The memory that a recorded program shares with this process, the clocks that both read, and
//! advice on memory of our own.
//!
//! The one file with unsafe code of the recordings. It promises of shared memory that every access
//! lies in the window and in front of the file's end as last seen, is of eight aligned bytes, and
//! is atomic, because the program writes at the same time. It cannot prevent one failure: a
//! process that makes the file shorter between two checks of its length ends this process with
//! SIGBUS. The spool is private to the two, and neither does.

#![allow(unsafe_code, reason = "see above")]

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use cairn_format::recording::{Clock, CounterKind};

/// Room for the largest spool; less where the address space is limited.
const WINDOWS: [usize; 5] = [1 << 36, 1 << 34, 1 << 32, 1 << 30, 1 << 26];

/// A file that both map.
pub(crate) struct SharedFile {
    file: File,
    start: NonNull<AtomicU64>,
    window_bytes: usize,
    length: u64,
}

// SAFETY: the memory belongs to this value alone in this process, and all accesses are atomic.
unsafe impl Send for SharedFile {}

impl SharedFile {
    /// Marks the file as drained by this process while this value lives.
    ///
    /// The mark ends with the process, however that ends. On file systems without locks the tick
    /// is the only mark.
    pub(crate) fn hold(&self) {
        hold(&self.file);
    }

    /// Maps a file that was opened for reading and writing.
    pub(crate) fn map(file: File) -> io::Result<Self> {
        let mut failure = io::Error::from(io::ErrorKind::OutOfMemory);
        for window_bytes in WINDOWS {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
            // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
            let start = unsafe {
                libc::mmap(std::ptr::null_mut(), window_bytes, protection, flags, file.as_raw_fd(), 0)
            };
            match NonNull::new(start.cast()).filter(|_| start != libc::MAP_FAILED) {
                Some(start) => {
                    let length = file.metadata()?.len();
                    return Ok(Self { file, start, window_bytes, length });
                }
                None => failure = io::Error::last_os_error(),
            }
        }
        Err(failure)
    }

    /// Bytes that can be read and written; grows with the file when asked for.
    pub(crate) fn length(&mut self) -> u64 {
        if let Ok(metadata) = self.file.metadata() {
            self.length = metadata.len().min(self.window_bytes as u64);
        }
        self.length
    }

    fn word(&self, offset: u64) -> Option<&AtomicU64> {
        if !offset.is_multiple_of(8) || offset.checked_add(8)? > self.length {
            return None;
        }
        let index = usize::try_from(offset / 8).ok()?;
        // SAFETY: the word is inside of the window, as `length` is; it is aligned, because a
        // mapping begins at a page; the file has storage there, so the page is there; and it stays
        // mapped for as long as `self` lives.
        Some(unsafe { self.start.add(index).as_ref() })
    }

    /// The word there, and all that was written before it; 0 past the end.
    pub(crate) fn load(&self, offset: u64) -> u64 {
        self.word(offset).map_or(0, |word| u64::from_le(word.load(Ordering::Acquire)))
    }

    /// Lets the program see the word, and all that was written before it.
    pub(crate) fn store(&self, offset: u64, value: u64) {
        if let Some(word) = self.word(offset) {
            word.store(value.to_le(), Ordering::Release);
        }
    }

    /// Bytes that can be read and written, as last asked for.
    pub(crate) fn known_length(&self) -> u64 {
        self.length
    }

    /// Puts `new` in the place of `current`; false when another value was there.
    pub(crate) fn exchange(&self, offset: u64, current: u64, new: u64) -> bool {
        self.word(offset).is_some_and(|word| {
            let (current, new) = (current.to_le(), new.to_le());
            word.compare_exchange(current, new, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        })
    }

    /// Makes the word there at least `least`.
    pub(crate) fn raise(&self, offset: u64, least: u64) {
        let mut before = self.load(offset);
        while before < least && self.word(offset).is_some() && !self.exchange(offset, before, least) {
            before = self.load(offset);
        }
    }

    /// Adds to the word there, and tells what it was; 0 past the end.
    pub(crate) fn add(&self, offset: u64, more: u64) -> u64 {
        loop {
            let before = self.load(offset);
            if self.word(offset).is_none() || self.exchange(offset, before, before.wrapping_add(more)) {
                return before;
            }
        }
    }

    /// Appends the bytes from `offset` to `end`, both multiples of eight, as far as they exist.
    pub(crate) fn copy(&self, offset: u64, end: u64, into: &mut Vec<u8>) {
        let end = end.min(self.length);
        let (first, count) = (offset / 8, end.saturating_sub(offset) / 8);
        if !offset.is_multiple_of(8) || count == 0 {
            return;
        }
        // SAFETY: as for `word`, for each of the words: their end is not behind `length`.
        let words =
            unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(first as usize), count as usize) };
        // The copied bytes were committed by a release store that a `load` has seen.
        into.reserve(words.len() * 8);
        let spare = into.spare_capacity_mut().as_chunks_mut::<8>().0;
        for (place, word) in spare.iter_mut().zip(words) {
            *place = word.load(Ordering::Relaxed).to_ne_bytes().map(MaybeUninit::new);
        }
        // SAFETY: there is room for as many words, and all of them were written.
        unsafe { into.set_len(into.len() + words.len() * 8) };
    }

    /// Gives the file storage up to `length`, so that writing to it cannot fail later.
    pub(crate) fn reserve(&mut self, length: u64) -> io::Result<()> {
        let length = length.min(self.window_bytes as u64);
        if length <= self.length {
            return Ok(());
        }
        let (offset, more) = (self.length as libc::off_t, (length - self.length) as libc::off_t);
        // SAFETY: the descriptor is ours; the call touches no memory.
        let result = unsafe { libc::fallocate(self.file.as_raw_fd(), 0, offset, more) };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        self.length();
        Ok(())
    }
}

impl Drop for SharedFile {
    fn drop(&mut self) {
        // SAFETY: mapped by `open` with this length; no reference is left.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.window_bytes) };
    }
}

/// As [`SharedFile::hold`], of what is made of it.
pub(crate) fn hold(file: &File) {
    let _ = ask_for_lock(file, libc::F_OFD_SETLK, libc::F_WRLCK);
}

/// Whether a process [holds](SharedFile::hold) the file. Only asks: a reader must not hinder the
/// process that drains.
pub(crate) fn is_held(file: &File) -> bool {
    ask_for_lock(file, libc::F_OFD_GETLK, libc::F_RDLCK).is_ok_and(|found| found != libc::F_UNLCK)
}

/// Asks for a lock of the open file, not of the process.
///
/// Closing another descriptor of the same file in this process does not end it.
fn ask_for_lock(file: &File, what: libc::c_int, kind: libc::c_int) -> io::Result<libc::c_int> {
    // SAFETY: zeros are a value of it: from the first byte to the last, whatever the length.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    // SAFETY: the descriptor is open, and the call reads and writes the struct alone.
    let status = unsafe { libc::fcntl(file.as_raw_fd(), what, &raw mut lock) };
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(lock.l_type.into()) }
}

/// One reading of the clocks that the program reads as well.
pub(crate) fn read_clocks(kind: CounterKind) -> Clock {
    /// An interruption between two clocks disturbs one attempt, rarely two.
    const ATTEMPTS: u32 = 3;
    let wall_nanos = clock(libc::CLOCK_REALTIME);
    if kind == CounterKind::MonotonicNanos {
        let monotonic_nanos = clock(libc::CLOCK_MONOTONIC);
        return Clock { counter: monotonic_nanos, monotonic_nanos, wall_nanos };
    }
    let attempt = || {
        let before = counter();
        let monotonic_nanos = clock(libc::CLOCK_MONOTONIC);
        let width = counter().wrapping_sub(before);
        (width, Clock { counter: before.wrapping_add(width / 2), monotonic_nanos, wall_nanos })
    };
    let mut best = attempt();
    for _ in 1..ATTEMPTS {
        let next = attempt();
        if next.0 < best.0 {
            best = next;
        }
    }
    best.1
}

fn clock(which: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to the struct alone.
    unsafe { libc::clock_gettime(which, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(target_arch = "x86_64")]
fn counter() -> u64 {
    // SAFETY: every x86-64 processor has the instruction.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(target_arch = "aarch64")]
fn counter() -> u64 {
    let count: u64;
    // SAFETY: Linux lets every program read this register; nothing else is touched.
    unsafe { core::arch::asm!("mrs {}, cntvct_el0", out(reg) count, options(nomem, nostack)) };
    count
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn counter() -> u64 {
    clock(libc::CLOCK_MONOTONIC)
}

/// Asks the processor for the line with the element of that index, if there is one; returns at
/// once.
#[inline(always)]
pub fn prefetch<T>(slice: &[T], index: usize) {
    let place = slice.as_ptr().wrapping_add(index);
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has the instruction. It is a hint for any address, and reads
    // nothing into the program.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(place.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        core::arch::asm!("prfm pldl1keep, [{}]", in(reg) place.cast::<u8>(), options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = place;
}

/// Table of elements that begin as zeros, page-aligned, in memory of its own.
///
/// Only the pages in use take memory.
pub(crate) struct Table<T> {
    start: NonNull<T>,
    length: usize,
}

// SAFETY: the memory belongs to this value alone, as that of a vector does.
unsafe impl<T: Send> Send for Table<T> {}

impl<const N: usize> Table<[u32; N]> {
    /// Ends the process when there is no memory, as vectors do.
    pub(crate) fn new(length: usize) -> Self {
        let bytes = length.saturating_mul(size_of::<[u32; N]>()).max(1);
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
        match NonNull::new(start.cast::<[u32; N]>()).filter(|_| start != libc::MAP_FAILED) {
            Some(start) => Self { start, length },
            None => std::alloc::handle_alloc_error(std::alloc::Layout::new::<[u32; N]>()),
        }
    }

    /// Appends zeros, for a length that is not less than before. Where the memory is may change,
    /// what is in it is not copied.
    pub(crate) fn grow(&mut self, length: usize) {
        let bytes = |length: usize| length.saturating_mul(size_of::<[u32; N]>()).max(1);
        let (before, after) = (bytes(self.length), bytes(length.max(self.length)));
        let start = self.start.as_ptr().cast();
        // SAFETY: mapped by `new` or here, with the length of before; no reference exists while
        // `self` is borrowed.
        let moved = unsafe { libc::mremap(start, before, after, libc::MREMAP_MAYMOVE) };
        match NonNull::new(moved.cast::<[u32; N]>()).filter(|_| moved != libc::MAP_FAILED) {
            Some(start) => (self.start, self.length) = (start, length.max(self.length)),
            None => std::alloc::handle_alloc_error(std::alloc::Layout::new::<[u32; N]>()),
        }
    }

    /// Asks the kernel for the memory of `count` elements from `first` on at once.
    ///
    /// That takes two thirds of the time of faulting the pages in one by one.
    pub(crate) fn prepare(&mut self, first: usize, count: usize) {
        const PAGE: usize = 4096;
        let end = first.saturating_add(count).min(self.length) * size_of::<[u32; N]>();
        let begin = (first * size_of::<[u32; N]>()).min(end) / PAGE * PAGE;
        let start = self.start.as_ptr().wrapping_byte_add(begin).cast();
        // SAFETY: mapped by `new` or `grow`, and of this value alone; what is in the memory stays,
        // and kernels that do not know the advice do nothing.
        unsafe { libc::madvise(start, end - begin, libc::MADV_POPULATE_WRITE) };
    }

    #[inline(always)]
    pub(crate) fn as_slice(&self) -> &[[u32; N]] {
        // SAFETY: `length` elements are mapped, aligned to a page, for as long as `self` lives;
        // zeros are a value of the type.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }

    #[inline(always)]
    pub(crate) fn as_mut_slice(&mut self) -> &mut [[u32; N]] {
        // SAFETY: as above, and the memory is of this value alone.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }
}

impl<T> Drop for Table<T> {
    fn drop(&mut self) {
        let bytes = self.length.saturating_mul(size_of::<T>()).max(1);
        // SAFETY: mapped by `new` with this length; no reference is left.
        unsafe { libc::munmap(self.start.as_ptr().cast(), bytes) };
    }
}
