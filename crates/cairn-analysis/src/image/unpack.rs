//! Compressed images: unpacked as a stream into a file without a name, which is then mapped as any other.
//!
//! Not into memory: an image is often larger than what is free. Stretches of zeros become holes, of which most heaps have
//! many.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};

/// A way to compress.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Packed {
    Zstd,
    Lz4,
    Gzip,
}

/// Stretches of this many zeros are left out.
const PIECE: usize = 1 << 16;

impl Packed {
    /// What the first bytes of a file say.
    pub(super) fn of(start: &[u8]) -> Option<Self> {
        match start {
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Some(Self::Zstd),
            [0x04, 0x22, 0x4d, 0x18, ..] => Some(Self::Lz4),
            [0x1f, 0x8b, 8, ..] => Some(Self::Gzip),
            _ => None,
        }
    }

    /// The file as it was before. The second value says why there is no more of it, when it ends too early.
    pub(super) fn unpack(self, packed: &[u8], limit_bytes: u64) -> io::Result<(File, Option<io::Error>)> {
        // Private from its creation on, and in no directory: memory images hold secrets.
        let mut output = cairn_files::unnamed_file()?;
        let problem = match self {
            Self::Zstd => copy(zstd::stream::read::Decoder::new(packed)?, &mut output, limit_bytes),
            Self::Lz4 => copy(lz4_flex::frame::FrameDecoder::new(packed), &mut output, limit_bytes),
            Self::Gzip => copy(flate2::read::MultiGzDecoder::new(packed), &mut output, limit_bytes),
        }?;
        Ok((output, problem))
    }
}

/// Errors of writing end it; an error of reading is an answer.
fn copy(mut from: impl Read, to: &mut File, limit_bytes: u64) -> io::Result<Option<io::Error>> {
    let mut buffer = vec![0; PIECE];
    let mut written = 0_u64;
    let problem = loop {
        let mut filled = 0;
        let problem = loop {
            let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) else { break None };
            match from.read(rest) {
                Ok(0) => break None,
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break Some(error),
            }
        };
        let piece = buffer.get(..filled).unwrap_or_default();
        written = written.saturating_add(filled as u64);
        if written > limit_bytes {
            break Some(io::Error::other(format!(
                "it unpacks to more than the limit of {limit_bytes} bytes"
            )));
        }
        if piece.iter().all(|&byte| byte == 0) {
            to.seek(SeekFrom::Current(filled as i64))?;
        } else {
            to.write_all(piece)?;
        }
        if problem.is_some() || filled < PIECE {
            break problem;
        }
    };
    to.set_len(written.min(limit_bytes))?;
    Ok(problem)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image() -> Vec<u8> {
        let mut bytes: Vec<u8> =
            (0..300_000_u32).flat_map(|n| n.wrapping_mul(0x9e37_79b9).to_le_bytes()).collect();
        bytes.extend(vec![0; 5 * PIECE]);
        bytes.extend(b"the end");
        bytes
    }

    fn unpacked(packed: &[u8]) -> (Vec<u8>, bool) {
        let (mut file, problem) = Packed::of(packed).unwrap().unpack(packed, u64::MAX).unwrap();
        file.rewind().unwrap();
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).unwrap();
        (bytes, problem.is_some())
    }

    #[test]
    fn all_three_ways_give_the_bytes_back_and_a_cut_file_what_it_holds() {
        let plain = image();
        let zstd = zstd::encode_all(&*plain, 1).unwrap();
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(&plain).unwrap();
        let mut lz4 = lz4_flex::frame::FrameEncoder::new(Vec::new());
        lz4.write_all(&plain).unwrap();
        for packed in [zstd, gzip.finish().unwrap(), lz4.finish().unwrap()] {
            assert!(unpacked(&packed) == (plain.clone(), false));
            let (part, cut) = unpacked(&packed[..packed.len() / 2]);
            assert!(cut && part.len() < plain.len() && plain.starts_with(&part), "{}", part.len());
        }
    }

    #[test]
    fn what_unpacks_to_too_much_is_cut() {
        let packed = zstd::encode_all(&*vec![7; 10 * PIECE], 1).unwrap();
        let (file, problem) = Packed::Zstd.unpack(&packed, 3 * PIECE as u64).unwrap();
        assert!(problem.unwrap().to_string().contains("limit"));
        assert!(file.metadata().unwrap().len() <= 3 * PIECE as u64);
    }

    /// It had mode 0644, and a name in the directory for temporary files, for a moment.
    #[test]
    fn unpacked_image_is_private_and_in_no_directory() {
        use std::os::unix::fs::MetadataExt;

        let packed = zstd::encode_all(&b"secret"[..], 1).unwrap();
        let (file, _) = Packed::of(&packed).unwrap().unpack(&packed, u64::MAX).unwrap();
        let facts = file.metadata().unwrap();
        assert_eq!((facts.mode() & 0o777, facts.nlink()), (0o600, 0));
    }
}
