//! Decompresses images as a stream into an unnamed file, which is then mapped like any other.
//!
//! Not into memory: images are often larger than free memory. Runs of zeros, which most heaps
//! contain, become holes.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};

use cairn_format::unpack::{UnpackBound, UnpackLimit};

/// A compression format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Packed {
    Zstd,
    Lz4,
    Gzip,
}

/// Bytes per read.
const PIECE: usize = 1 << 16;
/// Minimum run of zeros that becomes a hole; 4096, the page and file-block size of most systems.
const HOLE: usize = 1 << 12;
static ZEROS: [u8; HOLE] = [0; HOLE];

impl Packed {
    /// Detects the format from the first bytes of a file.
    pub(super) fn of(start: &[u8]) -> Option<Self> {
        match start {
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Some(Self::Zstd),
            [0x04, 0x22, 0x4d, 0x18, ..] => Some(Self::Lz4),
            [0x1f, 0x8b, 8, ..] => Some(Self::Gzip),
            _ => None,
        }
    }

    /// Decompresses the file. The second value is the error of an input that ends early.
    ///
    /// Refuses a file that unpacks to more than its limit, or than `chosen_limit_bytes` instead.
    pub(super) fn unpack(
        self,
        packed: &[u8],
        chosen_limit_bytes: Option<u64>,
    ) -> io::Result<(File, Option<io::Error>)> {
        // Private from its creation and without a name: memory images contain secrets.
        let mut output = cairn_files::unnamed_file()?;
        let limits = Limits {
            whole: UnpackBound::IMAGE.limit(packed.len() as u64, chosen_limit_bytes),
            data: UnpackBound::IMAGE_DATA.limit(packed.len() as u64, chosen_limit_bytes),
        };
        let problem = match self {
            Self::Zstd => copy(zstd::stream::read::Decoder::new(packed)?, &mut output, limits),
            Self::Lz4 => copy(lz4_flex::frame::FrameDecoder::new(packed), &mut output, limits),
            Self::Gzip => copy(flate2::read::MultiGzDecoder::new(packed), &mut output, limits),
        }?;
        Ok((output, problem))
    }
}

/// The maximum length of the output, and the maximum of its nonzero bytes.
#[derive(Clone, Copy)]
struct Limits {
    whole: UnpackLimit,
    data: UnpackLimit,
}

/// Copies until the end. Write errors and limits fail; a read error is returned as a value.
fn copy(mut from: impl Read, to: &mut File, limits: Limits) -> io::Result<Option<io::Error>> {
    let mut buffer = vec![0; PIECE];
    let (mut whole_bytes, mut data_bytes) = (0_u64, 0_u64);
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
        whole_bytes = whole_bytes.saturating_add(filled as u64);
        refuse_beyond(limits.whole, whole_bytes)?;
        let is_hole = |block: &[u8]| ZEROS.get(..block.len()) == Some(block);
        let blocks: Vec<&[u8]> = piece.chunks(HOLE).collect();
        for run in blocks.chunk_by(|one, next| is_hole(one) == is_hole(next)) {
            let run_bytes: usize = run.iter().map(|block| block.len()).sum();
            if run.first().is_some_and(|block| is_hole(block)) {
                to.seek(SeekFrom::Current(run_bytes as i64))?;
                continue;
            }
            data_bytes = data_bytes.saturating_add(run_bytes as u64);
            refuse_beyond(limits.data, data_bytes)?;
            run.iter().try_for_each(|block| to.write_all(block))?;
        }
        if problem.is_some() || filled < PIECE {
            break problem;
        }
    };
    to.set_len(whole_bytes)?;
    Ok(problem)
}

fn refuse_beyond(limit: UnpackLimit, bytes: u64) -> io::Result<()> {
    if bytes <= limit.limit_bytes { Ok(()) } else { Err(io::Error::other(limit.to_string())) }
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
        let (mut file, problem) = Packed::of(packed).unwrap().unpack(packed, None).unwrap();
        file.rewind().unwrap();
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).unwrap();
        (bytes, problem.is_some())
    }

    #[test]
    fn unpack_reads_all_formats_and_truncated_files() {
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

    fn packed_three_ways(plain: impl Fn() -> io::Take<io::Repeat>) -> [(Packed, Vec<u8>); 3] {
        let mut zstd = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        let mut lz4 = lz4_flex::frame::FrameEncoder::new(Vec::new());
        io::copy(&mut plain(), &mut zstd).unwrap();
        io::copy(&mut plain(), &mut gzip).unwrap();
        io::copy(&mut plain(), &mut lz4).unwrap();
        let (zstd, gzip, lz4) = (zstd.finish().unwrap(), gzip.finish().unwrap(), lz4.finish().unwrap());
        [(Packed::Zstd, zstd), (Packed::Gzip, gzip), (Packed::Lz4, lz4)]
    }

    // Failed with: an image that was cut at a terabyte, and a full disk before that.
    #[test]
    fn unpack_refuses_images_beyond_the_limit() {
        // An attacker's file, and one of zeros, which take no space.
        for byte in [b'A', 0] {
            for (format, packed) in packed_three_ways(|| io::repeat(byte).take(64 << 20)) {
                let error = format.unpack(&packed, Some(32 << 20)).unwrap_err().to_string();
                assert!(error.starts_with("would unpack to more than 32 MiB ("), "{format:?}: {error}");
                assert!(error.ends_with("--max-unpacked SIZE"), "{format:?}: {error}");
            }
        }
    }

    // Failed with: 727 KB unpacked to 20 GiB of zeros, and, without zeros, filled as much disk.
    #[test]
    fn unpack_limits_admit_cores_but_no_bombs() {
        let limits = |packed: u64| {
            [UnpackBound::IMAGE, UnpackBound::IMAGE_DATA].map(|bound| bound.limit(packed, None).limit_bytes)
        };
        let [whole, data] = limits(727 << 10);
        assert!(whole < 20 << 30 && data <= 1 << 30);
        // A core of 64 GiB; a fortieth of it is nonzero and shrinks to a sixth.
        let [whole, data] = limits((64 << 30) / 40 / 6);
        assert!(whole > 64 << 30 && data > (64 << 30) / 40);
    }

    // Failed with: the sparse image used its full size on disk, because each 64 KiB contains a
    // byte.
    #[cfg(target_os = "linux")]
    #[test]
    fn unpack_leaves_holes_for_zero_pages() {
        use std::os::unix::fs::MetadataExt;

        let pages = 1 << 12;
        let mut plain = vec![0; pages * HOLE];
        plain.iter_mut().step_by(16 * HOLE).for_each(|byte| *byte = 1);
        let packed = zstd::encode_all(&*plain, 1).unwrap();
        let (file, problem) = Packed::Zstd.unpack(&packed, None).unwrap();
        assert!(problem.is_none());
        let facts = file.metadata().unwrap();
        assert_eq!(facts.len(), plain.len() as u64);
        assert!(facts.blocks() * 512 <= plain.len() as u64 / 8, "{} blocks", facts.blocks());
        assert!(unpacked(&packed) == (plain, false));
    }

    /// Failed with: mode 0644, and briefly a name in the temporary directory.
    #[cfg(target_os = "linux")]
    #[test]
    fn unpack_output_is_private_and_unnamed() {
        use std::os::unix::fs::MetadataExt;

        let packed = zstd::encode_all(&b"secret"[..], 1).unwrap();
        let (file, _) = Packed::of(&packed).unwrap().unpack(&packed, None).unwrap();
        let facts = file.metadata().unwrap();
        assert_eq!((facts.mode() & 0o777, facts.nlink()), (0o600, 0));
    }
}
