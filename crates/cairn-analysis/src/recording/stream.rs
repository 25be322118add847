//! Chunks that are pieces of one zstd stream.
//!
//! A program that goes round in a loop allocates and frees the same way each time, and a chunk holds less than one such round of many
//! programs. As one stream, each chunk refers back to those in front of it. They can be read in their order only anyway, because what they
//! say builds on all that was said before.
//!
//! Each piece ends with a flush, so that it can be read as soon as it is written, and a file that is cut behind it loses nothing.

use std::io;

use cairn_format::recording::{MAX_CHUNK_BYTES, MAX_STREAM_RATIO, STREAM_WINDOW_BITS};
use zstd::stream::raw::{Decoder, Encoder, InBuffer, Operation, OutBuffer};
use zstd::zstd_safe::{CParameter, DParameter, compress_bound};

use super::chunk::{OTHER_LENGTH, TOO_MUCH};

/// A block of zstd's without bytes, which is not the last one: pads what compresses better than readers believe.
const EMPTY_BLOCK: [u8; 3] = [0; 3];

/// Compresses.
pub(super) struct Outflow {
    level: i32,
    /// From the first piece on: files without allocations need no window.
    encoder: Option<Encoder<'static>>,
}

impl Outflow {
    pub(super) fn new(level: i32) -> Self {
        Self { level, encoder: None }
    }

    /// Appends the next piece.
    pub(super) fn add(&mut self, unpacked: &[u8], into: &mut Vec<u8>) -> io::Result<()> {
        let encoder = match &mut self.encoder {
            Some(encoder) => encoder,
            none => {
                let mut encoder = Encoder::new(self.level)?;
                encoder.set_parameter(CParameter::WindowLog(STREAM_WINDOW_BITS))?;
                none.insert(encoder)
            }
        };
        let begin = into.len();
        // With room for the ends of blocks that a flush cuts short.
        into.reserve(compress_bound(unpacked.len()) + 64);
        let mut input = InBuffer::around(unpacked);
        while input.pos() < unpacked.len() {
            write(into, |output| encoder.run(&mut input, output))?;
        }
        while write(into, |output| encoder.flush(output))? > 0 {}
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
pub(super) struct Inflow {
    /// From the first piece on.
    decoder: Option<Decoder<'static>>,
}

impl Inflow {
    pub(super) fn new() -> Self {
        Self { decoder: None }
    }

    /// Replaces what is in `into` by what the next piece holds, which claims to be so many bytes.
    pub(super) fn take(
        &mut self,
        piece: &[u8],
        unpacked_bytes: usize,
        into: &mut Vec<u8>,
    ) -> Result<(), &'static str> {
        if unpacked_bytes > MAX_CHUNK_BYTES || unpacked_bytes.div_ceil(MAX_STREAM_RATIO) > piece.len() {
            return Err(TOO_MUCH);
        }
        into.clear();
        // A byte too many shows there; more than that is not written.
        into.resize(unpacked_bytes + 1, 0);
        let written = self.unpack(piece, into);
        into.truncate(unpacked_bytes);
        match written {
            Ok(written) if written == unpacked_bytes => Ok(()),
            _ => Err(OTHER_LENGTH),
        }
    }

    /// How many bytes came out, when the whole piece was used.
    fn unpack(&mut self, piece: &[u8], into: &mut [u8]) -> io::Result<usize> {
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
        Ok(output.pos())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(outflow: &mut Outflow, bytes: &[u8]) -> Vec<u8> {
        let mut stored = vec![7];
        outflow.add(bytes, &mut stored).unwrap();
        stored.split_off(1)
    }

    #[test]
    fn pieces_give_again_what_they_were_made_of_and_refer_back() {
        let mut noise = 1_u32;
        let random: Vec<u8> = std::iter::repeat_with(|| {
            noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (noise >> 24) as u8
        })
        .take(300_000)
        .collect();
        let (mut outflow, mut inflow) = (Outflow::new(1), Inflow::new());
        let mut lengths = Vec::new();
        let mut unpacked = Vec::new();
        for bytes in [&random[..], b"", b"a few", &random, &[5; MAX_CHUNK_BYTES]] {
            let stored = piece(&mut outflow, bytes);
            inflow.take(&stored, bytes.len(), &mut unpacked).unwrap();
            assert!(unpacked == bytes);
            lengths.push(stored.len());
        }
        let [first, _, few, again, constant] = lengths[..] else { panic!() };
        assert!(first > 299_000 && few < 32 && again < 3_000, "{lengths:?}");
        // Padded: constant bytes would be a few hundred.
        assert!(
            (MAX_CHUNK_BYTES / MAX_STREAM_RATIO..MAX_CHUNK_BYTES / MAX_STREAM_RATIO + 3).contains(&constant)
        );
    }

    #[test]
    fn a_piece_of_another_length_than_it_claims_is_refused() {
        let mut outflow = Outflow::new(1);
        let stored = piece(&mut outflow, b"some bytes");
        let take = |piece: &[u8], claim| Inflow::new().take(piece, claim, &mut Vec::new());
        assert_eq!(take(&stored, 10), Ok(()));
        assert_eq!(take(&stored, 9), Err(OTHER_LENGTH));
        assert_eq!(take(&stored, 11), Err(OTHER_LENGTH));
        assert_eq!(take(&stored[..stored.len() - 1], 10), Err(OTHER_LENGTH));
        assert_eq!(take(&stored, MAX_CHUNK_BYTES + 1), Err(TOO_MUCH));
        assert_eq!(take(&stored, stored.len() * MAX_STREAM_RATIO + 1), Err(TOO_MUCH));
        assert_eq!(take(b"no zstd at all", 10), Err(OTHER_LENGTH));
    }

    #[test]
    fn a_window_larger_than_the_format_allows_is_refused() {
        let mut encoder = Encoder::new(1).unwrap();
        encoder.set_parameter(CParameter::WindowLog(STREAM_WINDOW_BITS + 1)).unwrap();
        let mut outflow = Outflow { level: 1, encoder: Some(encoder) };
        let stored = piece(&mut outflow, b"some bytes");
        assert_eq!(Inflow::new().take(&stored, 10, &mut Vec::new()), Err(OTHER_LENGTH));
    }
}
