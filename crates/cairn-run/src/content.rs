//! Distinguishes the content of libraries that are written to files.

use std::fs::File;
use std::io::{self, Read};

/// Returns whether a file has this content.
pub(crate) fn holds(mut file: File, content: &[u8]) -> io::Result<bool> {
    let mut piece = [0; 1 << 14];
    let mut rest = content;
    loop {
        let count = file.read(&mut piece)?;
        match (piece.get(..count), rest.split_at_checked(count)) {
            (Some([]), _) => return Ok(rest.is_empty()),
            (Some(read), Some((expected, behind))) if read == expected => rest = behind,
            _ => return Ok(false),
        }
    }
}

/// Hashes as 64-bit FNV-1a, but eight bytes at a time. It distinguishes versions, and every start
/// waits for it.
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks();
    let words = words.iter().map(|word| u64::from_le_bytes(*word));
    words.chain(rest.iter().map(|byte| u64::from(*byte))).fold(0xcbf2_9ce4_8422_2325, |hash, word| {
        // Mixes the upper bits into the lower ones.
        let mixed = (hash ^ word).wrapping_mul(0x0000_0100_0000_01b3);
        mixed ^ mixed >> 32
    })
}
