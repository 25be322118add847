//! Compressed input, in bounded memory.
//!
//! A few compressed bytes can unpack into more than any machine has. So what a reader keeps is held against what it has read of the file as it
//! lies there: a [`Budget`].

use std::cell::Cell;
use std::io::{self, BufRead, BufReader, Read};
use std::rc::Rc;

use crate::error::ExchangeError;

/// What any file may keep. A program that leaks the same block over and over compresses to almost nothing, and is no attack. In the tests of this crate
/// it is less, so that they need not fill it.
const FREE_BYTES: u64 = if cfg!(test) { 1 << 20 } else { 1 << 30 };
/// What a file may keep for each byte of it. Tables of real ones, which do not repeat themselves, unpack to ten times their size.
const BYTES_PER_BYTE: u64 = 64;
/// More than that is not kept of any file. It also keeps every count of things below 2^32: none of them takes less than 16 bytes.
const MOST_BYTES: u64 = 32 << 30;

/// A file without its compression: gzip, zstd, or none, by its first bytes.
pub(crate) struct Unpacked<'r> {
    format: &'static str,
    reader: Box<dyn BufRead + 'r>,
    packed_bytes: Rc<Cell<u64>>,
}

impl<'r> Unpacked<'r> {
    pub(crate) fn new(format: &'static str, input: impl Read + 'r) -> Result<Self, ExchangeError> {
        let packed_bytes = Rc::new(Cell::new(0));
        let input = Counted { input, bytes: Rc::clone(&packed_bytes) };
        let reader = unpacked(input).map_err(ExchangeError::reading)?;
        Ok(Self { format, reader, packed_bytes })
    }

    /// What the file may make a reader keep, as far as it has been read at any time.
    pub(crate) fn budget(&self) -> Budget {
        Budget { format: self.format, packed_bytes: Rc::clone(&self.packed_bytes), kept_bytes: 0 }
    }

    /// The next bytes; none at the end.
    pub(crate) fn chunk(&mut self) -> Result<&[u8], ExchangeError> {
        let place = self.packed_bytes.get();
        self.reader.fill_buf().map_err(|error| broken(self.format, place, error))
    }

    /// Goes past bytes of the [`chunk`](Self::chunk).
    pub(crate) fn consume(&mut self, bytes: usize) {
        self.reader.consume(bytes);
    }

    /// Appends the next line, up to a number of bytes, with its end; nothing at the end of the file.
    pub(crate) fn line(&mut self, most_bytes: u64, line: &mut Vec<u8>) -> Result<(), ExchangeError> {
        let read = self.reader.by_ref().take(most_bytes).read_until(b'\n', line);
        read.map(drop).map_err(|error| broken(self.format, self.packed_bytes.get(), error))
    }
}

/// What the system says is an error of reading; anything else is one of the bytes.
fn broken(format: &'static str, place: u64, error: io::Error) -> ExchangeError {
    if error.raw_os_error().is_some() {
        return ExchangeError::reading(error);
    }
    let place = format!("before byte {place} as it lies there");
    ExchangeError::Malformed { format, place, problem: format!("its compression is broken: {error}") }
}

fn unpacked<'r>(input: impl Read + 'r) -> io::Result<Box<dyn BufRead + 'r>> {
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

struct Counted<R> {
    input: R,
    bytes: Rc<Cell<u64>>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.input.read(buffer)?;
        self.bytes.set(self.bytes.get().saturating_add(read as u64));
        Ok(read)
    }
}

/// What may still be kept of a file.
pub(crate) struct Budget {
    format: &'static str,
    packed_bytes: Rc<Cell<u64>>,
    kept_bytes: u64,
}

impl Budget {
    /// Notes memory that is about to be taken.
    pub(crate) fn keep(&mut self, bytes: usize) -> Result<(), ExchangeError> {
        self.kept_bytes = self.kept_bytes.saturating_add(bytes as u64);
        let by_size = self.packed_bytes.get().saturating_mul(BYTES_PER_BYTE);
        let limit_bytes = by_size.saturating_add(FREE_BYTES).min(MOST_BYTES);
        if self.kept_bytes > limit_bytes {
            return Err(ExchangeError::TooLarge { format: self.format, limit_bytes });
        }
        Ok(())
    }

    /// Notes that memory was given back.
    pub(crate) fn release(&mut self, bytes: usize) {
        self.kept_bytes = self.kept_bytes.saturating_sub(bytes as u64);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Write, repeat};

    use super::*;

    #[test]
    fn few_bytes_cannot_fill_the_memory() {
        let mut packed = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
        io::copy(&mut repeat(b'a').take(1 << 20), &mut packed).unwrap();
        packed.write_all(b"\n").unwrap();
        let packed = packed.finish().unwrap();
        let mut input = Unpacked::new("test", &packed[..]).unwrap();
        let mut budget = input.budget();
        let mut unpacked_bytes = 0;
        // As if every byte were kept a hundred times.
        let error = loop {
            let bytes = input.chunk().unwrap().len();
            assert!(bytes > 0, "nobody has said stop");
            unpacked_bytes += bytes;
            input.consume(bytes);
            if let Err(error) = budget.keep(100 * bytes) {
                break error;
            }
        };
        assert!(unpacked_bytes <= 1 << 18, "{unpacked_bytes}");
        assert!(matches!(error, ExchangeError::TooLarge { format: "test", .. }), "{error}");
        budget.release(1 << 40);
        assert!(budget.keep(1).is_ok());
    }

    #[test]
    fn broken_compression_has_a_place() {
        let packed = zstd::encode_all(&[b'x'; 1000][..], 1).unwrap();
        let mut input = Unpacked::new("test", &packed[..packed.len() - 3]).unwrap();
        let error = loop {
            match input.chunk().map(<[u8]>::len) {
                Ok(bytes) => input.consume(bytes),
                Err(error) => break error.to_string(),
            }
        };
        assert!(error.contains("before byte") && error.contains("compression is broken"), "{error}");
    }
}
