//! Caches compressed backtraces for the next block of the same stack.

use core::sync::atomic::{AtomicU32, Ordering, fence};

use cairn_format::SliceSink;
use cairn_wire::lws::LwsEncoder;

use crate::atomic::SwapU32;
use crate::stack::UserBits;

/// Logarithm of the number of entries; 10, because they then take 256 KiB with [`WORDS`]. A program
/// touches only the entries that it uses.
const ENTRIES_LOG2: u32 = 10;
/// Words of the longest cached backtrace; 60, which make an entry of four cache lines. 31 addresses
/// of usual programs take about 40.
const WORDS: usize = 60;

/// Cache of backtraces of the lws layout, by the number of their stack. They are cached without the
/// size, which differs between blocks.
///
/// Threads share it without waiting for each other: one that finds an entry being changed
/// compresses the stack itself. So do signal handlers, and children that were forked during a
/// change.
#[derive(Debug)]
pub struct CompressedStacks {
    entries: [CacheEntry; 1 << ENTRIES_LOG2],
}

#[derive(Debug)]
#[repr(align(64))]
struct CacheEntry {
    /// Odd while the entry is being changed; 0 before its first use.
    sequence: SwapU32,
    bits: AtomicU32,
    number: AtomicU32,
    left_out: AtomicU32,
    /// Words of 32 bits, because devices have no larger atomics.
    words: [AtomicU32; WORDS],
}

/// Key of a backtrace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BacktraceKey {
    number: u32,
    /// Number of frames left out at either end.
    left_out: u32,
}

impl BacktraceKey {
    /// Returns the key; `None` if more frames are left out than any stack has.
    pub(crate) fn new(number: u32, pre: usize, post: usize) -> Option<Self> {
        let (pre, post) = (u16::try_from(pre).ok()?, u16::try_from(post).ok()?);
        Some(Self { number, left_out: u32::from(pre) << 16 | u32::from(post) })
    }
}

impl Default for CompressedStacks {
    fn default() -> Self {
        Self::new()
    }
}

impl CompressedStacks {
    /// Returns an empty cache. Can initialise a static.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            entries: [const {
                CacheEntry {
                    sequence: SwapU32::new(0),
                    bits: AtomicU32::new(0),
                    number: AtomicU32::new(0),
                    left_out: AtomicU32::new(0),
                    words: [const { AtomicU32::new(0) }; WORDS],
                }
            }; 1 << ENTRIES_LOG2],
        }
    }

    fn entry(&self, key: BacktraceKey) -> Option<&CacheEntry> {
        let hash = (key.number ^ key.left_out).wrapping_mul(0x9e37_79b9) >> (32 - ENTRIES_LOG2);
        self.entries.get(hash as usize)
    }

    /// Writes the blob of a block of `size` bytes to the start of `buffer`. Returns its length if
    /// the backtrace is cached.
    pub(crate) fn blob(
        &self,
        key: BacktraceKey,
        size: usize,
        bits: UserBits,
        buffer: &mut [u8],
    ) -> Option<usize> {
        let entry = self.entry(key)?;
        let sequence = entry.sequence.load(Ordering::Acquire);
        let load = |place: &AtomicU32| place.load(Ordering::Relaxed);
        let found = BacktraceKey { number: load(&entry.number), left_out: load(&entry.left_out) };
        if sequence % 2 == 1 || sequence == 0 || found != key {
            return None;
        }
        let backtrace_bits = load(&entry.bits);
        let mut words = [0; WORDS / 2];
        let used = words.get_mut(..(backtrace_bits as usize).div_ceil(64))?;
        for (word, [upper, lower]) in used.iter_mut().zip(entry.words.as_chunks().0) {
            *word = u64::from(load(upper)) << 32 | u64::from(load(lower));
        }
        fence(Ordering::Acquire);
        if entry.sequence.load(Ordering::Relaxed) != sequence {
            return None;
        }
        let encoder = LwsEncoder::behind(SliceSink::new(buffer), used, backtrace_bits).ok()?;
        let mut open = encoder.allocation_size(size as u64).ok()?;
        bits.fields()(open.user_fields());
        Some(open.close().ok()?.0)
    }

    /// Stores the backtrace of a blob, which is its first `bits` bits.
    pub(crate) fn store(&self, key: BacktraceKey, blob: &[u8], bits: u32) {
        let Some(entry) = self.entry(key) else { return };
        let used_bytes = (bits as usize).div_ceil(8);
        let Some(used) = blob.get(..used_bytes).filter(|used| used.len() <= WORDS * 4) else { return };
        let sequence = entry.sequence.load(Ordering::Relaxed);
        let odd = sequence | 1;
        if sequence == odd
            || entry.sequence.compare_exchange(sequence, odd, Ordering::Acquire, Ordering::Relaxed).is_err()
        {
            return;
        }
        fence(Ordering::Release);
        let store = |place: &AtomicU32, value| place.store(value, Ordering::Relaxed);
        store(&entry.number, key.number);
        store(&entry.left_out, key.left_out);
        store(&entry.bits, bits);
        for (place, bytes) in entry.words.iter().zip(used.chunks(4)) {
            let mut word = [0; 4];
            word.iter_mut().zip(bytes).for_each(|(place, byte)| *place = *byte);
            store(place, u32::from_be_bytes(word));
        }
        // Even again, and never 0.
        entry.sequence.store(odd.wrapping_add(1).max(2), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use cairn_wire::lws::BLOB_BUFFER_BYTES;

    use super::*;
    use crate::lws::encode;

    static CACHE: CompressedStacks = CompressedStacks::new();

    fn stack(number: u32) -> std::vec::Vec<usize> {
        let depth = number as usize % 32;
        (0..depth)
            .map(|index| 0x7f00_1234_0000 + (number as usize * 977 + index * index * 40_961) % (1 << 30))
            .collect()
    }

    /// Each blob is that of its own stack, while threads share entries. There are more stacks than
    /// entries, and threads read and change entries at the same time.
    #[test]
    fn cached_backtrace_gives_the_same_blob() {
        let hits = AtomicU32::new(0);
        let work = |seed: u32| {
            let mut state = seed;
            for _ in 0..40_000 {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let (number, size) = ((state >> 8) % 3000, (state >> 4) as usize % 5000);
                let key = BacktraceKey::new(number, 0, number as usize % 2).unwrap();
                let addresses = stack(number);
                let mut fresh = [0; BLOB_BUFFER_BYTES];
                let bits = UserBits { value: u64::from(state), count: state % 9 };
                let (bytes, backtrace_bits) = encode(&addresses, size, bits.fields(), &mut fresh).unwrap();
                let mut again = [0; BLOB_BUFFER_BYTES];
                match CACHE.blob(key, size, bits, &mut again) {
                    Some(length) => {
                        assert_eq!(again.get(..length), fresh.get(..bytes), "{number} {size}");
                        hits.fetch_add(1, Ordering::Relaxed);
                    }
                    None => CACHE.store(key, &fresh, backtrace_bits as u32),
                }
            }
        };
        std::thread::scope(|scope| (1..4).for_each(|seed| drop(scope.spawn(move || work(seed)))));
        assert!(hits.load(Ordering::Relaxed) > 1000, "{hits:?}");
    }

    #[test]
    fn cache_refuses_long_backtraces() {
        assert_eq!(BacktraceKey::new(1, 1 << 16, 0), None);
        let key = BacktraceKey::new(70_000, 0, 0).unwrap();
        let cache = CompressedStacks::new();
        let mut buffer = [0; BLOB_BUFFER_BYTES];
        cache.store(key, &[0xf8; BLOB_BUFFER_BYTES], 61 * 32);
        assert_eq!(cache.blob(key, 1, UserBits::NONE, &mut buffer), None);
        let (_, bits) = encode(&[0x1234], 1, |_| (), &mut buffer).unwrap();
        cache.store(key, &buffer, bits as u32);
        assert!(cache.blob(key, 1, UserBits::NONE, &mut buffer).is_some());
        assert_eq!(
            cache.blob(BacktraceKey::new(70_000, 1, 0).unwrap(), 1, UserBits::NONE, &mut buffer),
            None
        );
    }
}
