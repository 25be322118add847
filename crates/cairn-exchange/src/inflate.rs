//! Compressed input, in bounded memory.

use std::io::{self, BufRead, BufReader, Read};

/// The input without its compression, by its first bytes: gzip, zstd, or none.
pub(crate) fn inflated<'r>(input: impl Read + 'r) -> io::Result<Box<dyn BufRead + 'r>> {
    let mut input = BufReader::with_capacity(1 << 16, input);
    let start = input.fill_buf()?;
    Ok(match start {
        [0x1f, 0x8b, ..] => {
            Box::new(BufReader::with_capacity(1 << 16, flate2::bufread::MultiGzDecoder::new(input)))
        }
        [0x28, 0xb5, 0x2f, 0xfd, ..] => {
            let mut decoder = zstd::stream::read::Decoder::with_buffer(input)?;
            // The largest window that a reader has to have by the format's document; one more is 4 GiB.
            decoder.window_log_max(27)?;
            Box::new(BufReader::with_capacity(1 << 16, decoder))
        }
        _ => Box::new(input),
    })
}
