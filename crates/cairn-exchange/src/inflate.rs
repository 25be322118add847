//! Compressed input, in bounded time and memory.
//!
//! A few compressed bytes can unpack into more than any machine has. So the bytes that come out are
//! counted, which bounds the time, and what a reader keeps of them is counted too: a [`Budget`].
//! How much is allowed stands in [`cairn_format::unpack`].

use std::cell::Cell;
use std::io::{self, BufRead, BufReader, Read};
use std::rc::Rc;

use cairn_format::unpack::{UnpackBound, UnpackLimit};

use crate::error::ExchangeError;

/// How large a file is, and how much the user lets it unpack to.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Limits {
    /// Size of the file as it is stored.
    pub(crate) packed_bytes: u64,
    /// The user's limit, in place of the default.
    pub(crate) chosen_bytes: Option<u64>,
}

impl Limits {
    fn text(self) -> UnpackLimit {
        UnpackBound::PROFILE_TEXT.limit(self.packed_bytes, self.chosen_bytes)
    }

    /// Text becomes more bytes than it has when it is read: the default holds where the user's
    /// limit is lower.
    fn memory(self) -> UnpackLimit {
        let default = UnpackBound::PROFILE_MEMORY.limit(self.packed_bytes, None);
        // In the tests of this crate it is less, so that they need not fill it.
        let least = if cfg!(test) { 1 << 20 } else { default.limit_bytes };
        UnpackLimit { limit_bytes: self.chosen_bytes.unwrap_or(0).max(least), ..default }
    }
}

/// A file without its compression: gzip, zstd, or none, by its first bytes.
pub(crate) struct Unpacked<'r> {
    format: &'static str,
    limits: Limits,
    reader: Box<dyn BufRead + 'r>,
    is_packed: bool,
    unpacked_bytes: u64,
    read_bytes: Rc<Cell<u64>>,
}

impl<'r> Unpacked<'r> {
    pub(crate) fn new(
        format: &'static str,
        input: impl Read + 'r,
        limits: Limits,
    ) -> Result<Self, ExchangeError> {
        let read_bytes = Rc::new(Cell::new(0));
        let input = Counted { input, bytes: Rc::clone(&read_bytes) };
        let (reader, is_packed) = unpacked(input).map_err(ExchangeError::reading)?;
        Ok(Self { format, limits, reader, is_packed, unpacked_bytes: 0, read_bytes })
    }

    /// What the file may make a reader keep.
    pub(crate) fn budget(&self) -> Budget {
        Budget { format: self.format, limit: self.limits.memory(), kept_bytes: 0 }
    }

    /// The next bytes; none at the end.
    pub(crate) fn chunk(&mut self) -> Result<&[u8], ExchangeError> {
        let place = self.read_bytes.get();
        self.reader.fill_buf().map_err(|error| broken(self.format, place, error))
    }

    /// Goes past bytes of the [`chunk`](Self::chunk).
    pub(crate) fn consume(&mut self, bytes: usize) -> Result<(), ExchangeError> {
        self.reader.consume(bytes);
        self.count(bytes)
    }

    /// Appends the next line, up to a number of bytes, with its end; nothing at the end of the file.
    pub(crate) fn line(&mut self, most_bytes: u64, line: &mut Vec<u8>) -> Result<(), ExchangeError> {
        let read = self.reader.by_ref().take(most_bytes).read_until(b'\n', line);
        let read = read.map_err(|error| broken(self.format, self.read_bytes.get(), error))?;
        self.count(read)
    }

    fn count(&mut self, bytes: usize) -> Result<(), ExchangeError> {
        self.unpacked_bytes = self.unpacked_bytes.saturating_add(bytes as u64);
        let limit = self.limits.text();
        if self.is_packed && self.unpacked_bytes > limit.limit_bytes {
            return Err(ExchangeError::UnpacksTooFar { format: self.format, limit });
        }
        Ok(())
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

/// The bytes, and whether they are unpacked on the way.
fn unpacked<'r>(input: impl Read + 'r) -> io::Result<(Box<dyn BufRead + 'r>, bool)> {
    let mut input = BufReader::with_capacity(1 << 16, input);
    let start = input.fill_buf()?;
    Ok(match start {
        [0x1f, 0x8b, ..] => {
            (Box::new(BufReader::with_capacity(1 << 16, flate2::bufread::MultiGzDecoder::new(input))), true)
        }
        [0x28, 0xb5, 0x2f, 0xfd, ..] => {
            let mut decoder = zstd::stream::read::Decoder::with_buffer(input)?;
            // The largest window that a reader has to have by the format's document; one more is 4 GiB.
            decoder.window_log_max(27)?;
            (Box::new(BufReader::with_capacity(1 << 16, decoder)), true)
        }
        _ => (Box::new(input), false),
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
    limit: UnpackLimit,
    kept_bytes: u64,
}

impl Budget {
    /// Notes memory that is about to be taken.
    pub(crate) fn keep(&mut self, bytes: usize) -> Result<(), ExchangeError> {
        self.kept_bytes = self.kept_bytes.saturating_add(bytes as u64);
        if self.kept_bytes > self.limit.limit_bytes {
            return Err(ExchangeError::TooLarge { format: self.format, limit: self.limit });
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
        let mut input = Unpacked::new("test", &packed[..], Limits::default()).unwrap();
        let mut budget = input.budget();
        let mut unpacked_bytes = 0;
        // As if every byte were kept a hundred times.
        let error = loop {
            let bytes = input.chunk().unwrap().len();
            assert!(bytes > 0, "nobody has said stop");
            unpacked_bytes += bytes;
            input.consume(bytes).unwrap();
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
        let mut input = Unpacked::new("test", &packed[..packed.len() - 3], Limits::default()).unwrap();
        let error = loop {
            match input.chunk().map(<[u8]>::len) {
                Ok(bytes) => input.consume(bytes).unwrap(),
                Err(error) => break error.to_string(),
            }
        };
        assert!(error.contains("before byte") && error.contains("compression is broken"), "{error}");
    }
}
