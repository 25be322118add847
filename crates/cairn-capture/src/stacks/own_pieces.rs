//! The list of this crate's mappings, so that a recorder can separate them from the program's
//! memory.

use core::sync::atomic::{AtomicUsize, Ordering};

/// A mapping of this crate; the address is 0 once it was unmapped.
struct OwnPiece {
    address: AtomicUsize,
    bytes: AtomicUsize,
}

/// The mappings. Entries are reused only after [`drop_released_entries`].
static PIECES: [OwnPiece; MAX_PIECES] =
    [const { OwnPiece { address: AtomicUsize::new(0), bytes: AtomicUsize::new(0) } }; MAX_PIECES];
/// Entries of the list; 500, enough for some 400 threads.
const MAX_PIECES: usize = 500;
/// Number of all mappings so far, including those without an entry.
static PIECES_MADE: AtomicUsize = AtomicUsize::new(0);
static CHANGES: AtomicUsize = AtomicUsize::new(0);

/// Notes a mapping.
pub(crate) fn note(address: usize, bytes: usize) {
    let index = PIECES_MADE.fetch_add(1, Ordering::Relaxed);
    if let Some(piece) = PIECES.get(index) {
        piece.bytes.store(bytes, Ordering::Relaxed);
        piece.address.store(address, Ordering::Release);
    }
    CHANGES.fetch_add(1, Ordering::Release);
}

/// Notes that the mapping that ended at `end` has grown.
pub(crate) fn note_growth(end: usize, more: usize) {
    for piece in PIECES.iter().take(PIECES_MADE.load(Ordering::Relaxed)) {
        let (start, bytes) = (piece.address.load(Ordering::Acquire), piece.bytes.load(Ordering::Relaxed));
        if start != 0 && start.wrapping_add(bytes) == end {
            piece.bytes.store(bytes + more, Ordering::Relaxed);
        }
    }
    CHANGES.fetch_add(1, Ordering::Release);
}

/// Notes that a mapping, or its end, was unmapped.
pub(crate) fn note_release(address: usize) {
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

/// Frees the entries of unmapped memory for later mappings.
///
/// # Safety
///
/// - No other thread runs a function of this module meanwhile.
pub(crate) unsafe fn drop_released_entries() {
    let made = PIECES_MADE.load(Ordering::Relaxed);
    if made > MAX_PIECES {
        // There are mappings without an entry, and the count must continue to show that.
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

/// Returns a number that changes whenever the answer of [`own_memory`] may have changed.
#[must_use]
pub fn own_memory_changes() -> usize {
    CHANGES.load(Ordering::Acquire)
}

/// Passes the address and the size in bytes of each mapping of this crate to `visit`. Most of that
/// memory is never touched.
///
/// Returns false when the list of mappings is incomplete, because it has too many.
pub fn own_memory(mut visit: impl FnMut(usize, usize)) -> bool {
    let made = PIECES_MADE.load(Ordering::Relaxed);
    for piece in PIECES.iter().take(made) {
        let address = piece.address.load(Ordering::Acquire);
        if address != 0 {
            visit(address, piece.bytes.load(Ordering::Relaxed));
        }
    }
    made <= MAX_PIECES
}
