//! Memory straight from the kernel: the only source of memory in this crate.
//!
//! `mmap` is a plain system call without locks or allocator behind it, so it may be used inside malloc and in signal
//! handlers. What others may know of is never given back: ids and caches point into it until the process ends.

use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicUsize, Ordering};

/// From this size on, room is mostly never touched, and a debugger's dump of the process would be a gigabyte of zeros: it is left out of
/// dumps. What a reader of a dump needs is kept elsewhere. The rooms of threads are smaller, and cost no further system call.
const LARGE_BYTES: usize = 16 << 20;

/// A piece of memory that is reserved; the address is 0 when it was given back.
struct Piece {
    address: AtomicUsize,
    bytes: AtomicUsize,
}

/// What is reserved, so that a reader outside can separate it from the program's memory. Entries
/// are used again only after [`drop_released_entries`].
static PIECES: [Piece; MOST_PIECES] =
    [const { Piece { address: AtomicUsize::new(0), bytes: AtomicUsize::new(0) } }; MOST_PIECES];
const MOST_PIECES: usize = 500;
/// How many there ever were, those that have no entry included.
static PIECES_MADE: AtomicUsize = AtomicUsize::new(0);
static CHANGES: AtomicUsize = AtomicUsize::new(0);

fn note(address: usize, bytes: usize) {
    let index = PIECES_MADE.fetch_add(1, Ordering::Relaxed);
    if let Some(piece) = PIECES.get(index) {
        piece.bytes.store(bytes, Ordering::Relaxed);
        piece.address.store(address, Ordering::Release);
    }
    CHANGES.fetch_add(1, Ordering::Release);
}

/// Notes that the piece that ended at `end` is longer.
fn note_growth(end: usize, more: usize) {
    for piece in PIECES.iter().take(PIECES_MADE.load(Ordering::Relaxed)) {
        let (start, bytes) = (piece.address.load(Ordering::Acquire), piece.bytes.load(Ordering::Relaxed));
        if start != 0 && start.wrapping_add(bytes) == end {
            piece.bytes.store(bytes + more, Ordering::Relaxed);
        }
    }
    CHANGES.fetch_add(1, Ordering::Release);
}

/// Notes that memory goes back: a piece, or its end.
fn note_release(address: usize) {
    for piece in PIECES.iter().take(PIECES_MADE.load(Ordering::Relaxed)) {
        let (start, bytes) = (piece.address.load(Ordering::Acquire), piece.bytes.load(Ordering::Relaxed));
        if start == address {
            piece.address.store(0, Ordering::Relaxed);
        } else if start != 0 && (start..start.saturating_add(bytes)).contains(&address) {
            piece.bytes.store(address - start, Ordering::Relaxed);
        }
    }
    CHANGES.fetch_add(1, Ordering::Release);
}

/// Makes the entries of what was given back free for later pieces.
///
/// # Safety
///
/// No other thread is in this module meanwhile.
pub(crate) unsafe fn drop_released_entries() {
    let made = PIECES_MADE.load(Ordering::Relaxed);
    if made > MOST_PIECES {
        // There are pieces without an entry, and the count says so.
        return;
    }
    let mut left = 0;
    for piece in PIECES.iter().take(made) {
        let address = piece.address.load(Ordering::Relaxed);
        if address == 0 {
            continue;
        }
        let bytes = piece.bytes.load(Ordering::Relaxed);
        piece.address.store(0, Ordering::Relaxed);
        if let Some(place) = PIECES.get(left) {
            place.bytes.store(bytes, Ordering::Relaxed);
            place.address.store(address, Ordering::Release);
        }
        left += 1;
    }
    PIECES_MADE.store(left, Ordering::Release);
    CHANGES.fetch_add(1, Ordering::Release);
}

/// Another number when what [`own_memory`] tells may have changed.
#[must_use]
pub fn own_memory_changes() -> usize {
    CHANGES.load(Ordering::Acquire)
}

/// Tells the address and the bytes of each piece of memory that this crate has reserved; most of
/// that is never touched. False when there are more pieces than it remembers.
pub fn own_memory(mut tell: impl FnMut(usize, usize)) -> bool {
    let made = PIECES_MADE.load(Ordering::Relaxed);
    for piece in PIECES.iter().take(made) {
        let address = piece.address.load(Ordering::Acquire);
        if address != 0 {
            tell(address, piece.bytes.load(Ordering::Relaxed));
        }
    }
    made <= MOST_PIECES
}

/// Reserves `bytes` of zeroed memory that costs nothing until it is touched. `None` when the kernel refuses, as under a
/// limit of the address space.
pub(crate) fn reserve(bytes: usize) -> Option<NonNull<u8>> {
    let saved_errno = errno();
    // SAFETY: an anonymous private mapping at an address of the kernel's choice touches no existing memory.
    let address = unsafe {
        libc::mmap(
            ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if address == libc::MAP_FAILED {
        // The watched program must not see an error that it did not cause.
        set_errno(saved_errno);
        return None;
    }
    // SAFETY: the mapping from above. A kernel that does not know the advice refuses it, which does no harm.
    if bytes >= LARGE_BYTES && unsafe { libc::madvise(address, bytes, libc::MADV_DONTDUMP) } != 0 {
        set_errno(saved_errno);
    }
    note(address as usize, bytes);
    NonNull::new(address.cast())
}

/// As [`reserve`], at a place where the memory can grow ([`lengthen`]): `distance` below the one that the kernel chooses by itself, or
/// half, a quarter and so on of that, down to `least_distance`; at the kernel's own place where nothing else can be had.
pub(crate) fn reserve_apart(bytes: usize, distance: usize, least_distance: usize) -> Option<NonNull<u8>> {
    let saved_errno = errno();
    let map_at = |hint: usize| {
        // SAFETY: an anonymous private mapping; at an address that is not free the kernel passes the wish over.
        let address = unsafe {
            libc::mmap(
                ptr::without_provenance_mut(hint),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        Some(address).filter(|&address| address != libc::MAP_FAILED)
    };
    let found = map_at(0).map(|near| {
        let mut distance = distance;
        while distance >= least_distance.max(1) {
            let wanted = (near as usize).checked_sub(distance).filter(|&at| at >= distance);
            if let Some(wanted) = wanted.map(|at| at & !(ALIGNMENT - 1)) {
                // Where both together are more than a limit allows, the one that is there serves.
                let Some(got) = map_at(wanted) else { break };
                let is_there = got as usize == wanted;
                // SAFETY: a mapping of a moment ago, which nobody knows.
                unsafe { libc::munmap(if is_there { near } else { got }, bytes) };
                if is_there {
                    return got;
                }
            }
            distance /= 2;
        }
        near
    });
    if let Some(address) = found {
        // SAFETY: the mapping from above. What is added to it later is left out of dumps as well.
        unsafe { libc::madvise(address, bytes, libc::MADV_DONTDUMP) };
        note(address as usize, bytes);
    }
    // The watched program must not see an error that it did not cause.
    set_errno(saved_errno);
    NonNull::new(found?.cast())
}

/// Places that are chosen here begin at a multiple of this.
const ALIGNMENT: usize = 1 << 21;

/// Makes the mapping that ends at `end` longer where it lies, by whole pages of any system; false where another mapping is behind it, or
/// another thread has done it meanwhile.
pub(crate) fn lengthen(end: usize, more: usize) -> bool {
    let saved_errno = errno();
    let from = end - PAGE_BYTES;
    // SAFETY: the last page of a mapping of this crate's; without the flag that allows it, nothing is moved, and nothing is replaced.
    let result = unsafe { libc::syscall(libc::SYS_mremap, from, PAGE_BYTES, PAGE_BYTES + more, 0) };
    set_errno(saved_errno);
    let is_longer = result != -1;
    if is_longer {
        note_growth(end, more);
    }
    is_longer
}

/// The largest page of any system we know.
pub(crate) const PAGE_BYTES: usize = 1 << 16;

/// Gives back a mapping that nobody has seen yet, or that its thread has replaced and nobody else knows, or a part of one.
///
/// # Safety
///
/// `bytes` at `address`, which begins a page, came from [`reserve`], and nothing points into them.
pub(crate) unsafe fn release(address: NonNull<u8>, bytes: usize) {
    let saved_errno = errno();
    note_release(address.as_ptr() as usize);
    // SAFETY: by this function's contract.
    unsafe { libc::munmap(address.as_ptr().cast(), bytes) };
    set_errno(saved_errno);
}

fn errno() -> libc::c_int {
    // SAFETY: the address of this thread's errno is always valid.
    unsafe { *libc::__errno_location() }
}

fn set_errno(value: libc::c_int) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = value }
}
