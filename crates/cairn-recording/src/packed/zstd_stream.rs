//! Chunks that are pieces of one zstd stream.
//!
//! A program that goes round in a loop allocates and frees the same way each time, and a chunk
//! holds less than one such round of many programs. As one stream, each chunk refers back to those
//! in front of it. They can be read in their order only anyway, because what they say builds on all
//! that was said before.
//!
//! The stream searches repetitions thoroughly while that finds many: there is little to search
//! then, and it pays. A program whose allocations resemble noise would pay three times as much for
//! next to nothing.
//!
//! Each piece ends with a flush, so that it can be read as soon as it is written, and a file that
//! is cut behind it loses nothing.

use std::io;

use cairn_format::recording::{MAX_CHUNK_BYTES, MAX_STREAM_RATIO, STREAM_WINDOW_BITS};
use zstd::stream::raw::{Decoder, Encoder, InBuffer, Operation, OutBuffer};
use zstd::zstd_safe::{CParameter, DParameter, Strategy, compress_bound};

use super::chunk::{OTHER_LENGTH, TOO_MUCH};

/// Empty zstd block that is not the last one.
///
/// It pads data that compresses better than readers accept.
const EMPTY_BLOCK: [u8; 3] = [0; 3];

/// Parameters of the thorough search: about zstd's level 7, with tables of one mebibyte each.
///
/// The several mebibytes of that level would have to be cleared for the shortest recording.
const THOROUGH: [CParameter; 6] = [
    CParameter::Strategy(Strategy::ZSTD_lazy2),
    CParameter::HashLog(18),
    CParameter::ChainLog(18),
    CParameter::SearchLog(4),
    CParameter::MinMatch(6),
    CParameter::TargetLength(16),
];
/// Minimum compression at which the thorough search continues: one byte left of each 4.
///
/// It is checked at [`ASKED_AT`] bytes, because the start of a recording is mostly new data.
const WORTHWHILE: u64 = 4;
const ASKED_AT: u64 = 1 << 19;
/// Bytes for each event from which most data is numbers without repetition.
///
/// This decides before any attempt, but for short recordings.
const NOISE_BYTES: u64 = 2;
const SHORT: u64 = 1 << 18;

/// Compresses.
pub(crate) struct Outflow {
    /// zstd's, where being thorough does not pay.
    level: i32,
    is_thorough: bool,
    unpacked_bytes: u64,
    stored_bytes: u64,
    /// From the first piece on: files without allocations need no window.
    encoder: Option<Encoder<'static>>,
}

impl Outflow {
    pub(crate) fn new(level: i32) -> Self {
        Self { level, is_thorough: true, unpacked_bytes: 0, stored_bytes: 0, encoder: None }
    }

    fn begin(&mut self, unpacked_bytes: usize, events: u32) -> io::Result<Encoder<'static>> {
        let bytes = unpacked_bytes as u64;
        self.is_thorough &= bytes < SHORT || bytes < u64::from(events) * NOISE_BYTES;
        let mut encoder = Encoder::new(self.level)?;
        encoder.set_parameter(CParameter::WindowLog(STREAM_WINDOW_BITS))?;
        if self.is_thorough {
            THOROUGH.into_iter().try_for_each(|parameter| encoder.set_parameter(parameter))?;
        }
        Ok(encoder)
    }

    /// Appends the next piece, which has that many events.
    pub(crate) fn add(&mut self, unpacked: &[u8], events: u32, into: &mut Vec<u8>) -> io::Result<()> {
        let mut encoder = match self.encoder.take() {
            Some(encoder) => encoder,
            None => self.begin(unpacked.len(), events)?,
        };
        let begin = into.len();
        // With room for the ends of blocks that a flush cuts short.
        into.reserve(compress_bound(unpacked.len()) + 64);
        let mut input = InBuffer::around(unpacked);
        while input.pos() < unpacked.len() {
            write(into, |output| encoder.run(&mut input, output))?;
        }
        while write(into, |output| encoder.flush(output))? > 0 {}
        self.unpacked_bytes += unpacked.len() as u64;
        self.stored_bytes += (into.len() - begin) as u64;
        let is_worthwhile = self.unpacked_bytes < ASKED_AT
            || self.stored_bytes.saturating_mul(WORTHWHILE) <= self.unpacked_bytes;
        if self.is_thorough && !is_worthwhile {
            // The next piece begins a frame of its own.
            while write(into, |output| encoder.finish(output, true))? > 0 {}
            self.is_thorough = false;
        } else {
            self.encoder = Some(encoder);
        }
        let least = unpacked.len().div_ceil(MAX_STREAM_RATIO);
        while into.len() - begin < least {
            into.extend(EMPTY_BLOCK);
        }
        Ok(())
    }
}

/// One step, with room for what it gives.
fn write(
    into: &mut Vec<u8>,
    step: impl FnOnce(&mut OutBuffer<'_, Vec<u8>>) -> io::Result<usize>,
) -> io::Result<usize> {
    let written = into.len();
    into.reserve(64);
    step(&mut OutBuffer::around_pos(into, written))
}

/// Unpacks.
pub(crate) struct Inflow {
    /// From the first piece on.
    decoder: Option<Decoder<'static>>,
}

impl Inflow {
    pub(crate) fn new() -> Self {
        Self { decoder: None }
    }

    /// Replaces what is in `into` by what the next piece holds, which claims that length.
    pub(crate) fn take(
        &mut self,
        piece: &[u8],
        unpacked_bytes: usize,
        into: &mut Vec<u8>,
    ) -> Result<(), &'static str> {
        if unpacked_bytes > MAX_CHUNK_BYTES || unpacked_bytes.div_ceil(MAX_STREAM_RATIO) > piece.len() {
            return Err(TOO_MUCH);
        }
        into.clear();
        // A byte too many shows there; more than there is room for is not written.
        into.reserve(unpacked_bytes + 1);
        match self.unpack(piece, into) {
            Ok(()) if into.len() == unpacked_bytes => Ok(()),
            _ => Err(OTHER_LENGTH),
        }
    }

    /// Appends what comes out, when the whole piece can be used.
    fn unpack(&mut self, piece: &[u8], into: &mut Vec<u8>) -> io::Result<()> {
        let decoder = match &mut self.decoder {
            Some(decoder) => decoder,
            none => {
                let mut decoder = Decoder::new()?;
                decoder.set_parameter(DParameter::WindowLogMax(STREAM_WINDOW_BITS))?;
                none.insert(decoder)
            }
        };
        let mut input = InBuffer::around(piece);
        let mut output = OutBuffer::around(into);
        while input.pos() < piece.len() {
            let before = (input.pos(), output.pos());
            decoder.run(&mut input, &mut output)?;
            if (input.pos(), output.pos()) == before {
                return Err(io::ErrorKind::InvalidData.into());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(outflow: &mut Outflow, bytes: &[u8]) -> Vec<u8> {
        let mut stored = vec![7];
        outflow.add(bytes, bytes.len() as u32, &mut stored).unwrap();
        stored.split_off(1)
    }

    fn noise(length: usize) -> Vec<u8> {
        let mut seed = 1_u32;
        let random = std::iter::repeat_with(|| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 24) as u8
        });
        random.take(length).collect()
    }

    /// How long the stored pieces are.
    fn there_and_back(pieces: &[&[u8]]) -> Vec<usize> {
        let (mut outflow, mut inflow) = (Outflow::new(1), Inflow::new());
        let mut unpacked = Vec::new();
        let stored = |bytes: &&[u8]| {
            let stored = piece(&mut outflow, bytes);
            inflow.take(&stored, bytes.len(), &mut unpacked).unwrap();
            assert!(unpacked == *bytes);
            stored.len()
        };
        pieces.iter().map(stored).collect()
    }

    #[test]
    fn pieces_give_again_what_they_were_made_of_and_refer_back() {
        let noise = noise(300_000);
        let lengths = there_and_back(&[&[5; MAX_CHUNK_BYTES], b"", b"a few", &noise, &noise]);
        let [constant, _, few, first, again] = lengths[..] else { panic!() };
        // Padded: constant bytes would be a few hundred.
        let least = MAX_CHUNK_BYTES / MAX_STREAM_RATIO;
        assert!((least..least + 3).contains(&constant), "{lengths:?}");
        assert!(few < 32 && first > 299_000 && again < 3_000, "{lengths:?}");
    }

    #[test]
    fn behind_noise_a_less_thorough_frame_begins() {
        let noise = noise(600_000);
        let lengths = there_and_back(&[b"", &noise, b"some bytes", &noise, &noise, &[5; 1_000_000]]);
        assert!(lengths[1] > 599_000 && lengths[3] > 599_000 && lengths[4] < 40_000, "{lengths:?}");
        let mut outflow = Outflow::new(1);
        piece(&mut outflow, b"many bytes ".repeat(100).as_slice());
        piece(&mut outflow, &noise[..300_000]);
        assert!(outflow.is_thorough);
        piece(&mut outflow, &noise[300_000..]);
        assert!(!outflow.is_thorough);
        for (length, events, is_thorough) in
            [(300_000, 150_000, false), (300_000, 150_001, true), (250_000, 1, true)]
        {
            let mut outflow = Outflow::new(1);
            outflow.add(&vec![5; length], events, &mut Vec::new()).unwrap();
            assert_eq!(outflow.is_thorough, is_thorough, "{length} {events}");
        }
    }

    #[test]
    fn a_piece_of_another_length_than_it_claims_is_refused() {
        let stored = piece(&mut Outflow::new(1), &b"some bytes".repeat(30));
        let take = |piece: &[u8], claim| Inflow::new().take(piece, claim, &mut Vec::new());
        assert_eq!(take(&stored, 300), Ok(()));
        assert_eq!(take(&stored, 299), Err(OTHER_LENGTH));
        assert_eq!(take(&stored, 301), Err(OTHER_LENGTH));
        assert_eq!(take(&stored[..stored.len() - 1], 300), Err(OTHER_LENGTH));
        assert_eq!(take(&stored, MAX_CHUNK_BYTES + 1), Err(TOO_MUCH));
        assert_eq!(take(&stored, stored.len() * MAX_STREAM_RATIO + 1), Err(TOO_MUCH));
        assert_eq!(take(b"no zstd at all", 10), Err(OTHER_LENGTH));
    }

    #[test]
    fn a_window_larger_than_the_format_allows_is_refused() {
        let mut encoder = Encoder::new(1).unwrap();
        encoder.set_parameter(CParameter::WindowLog(STREAM_WINDOW_BITS + 1)).unwrap();
        let mut outflow = Outflow { encoder: Some(encoder), ..Outflow::new(1) };
        let stored = piece(&mut outflow, b"some bytes");
        assert_eq!(Inflow::new().take(&stored, 10, &mut Vec::new()), Err(OTHER_LENGTH));
    }
}
