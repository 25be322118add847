//! Decompresses input in bounded time and memory.
//!
//! A few compressed bytes can unpack to more than any machine can store. So the unpacked bytes are
//! counted, which bounds the time, and so is what a reader retains of them: a [`Budget`]. The
//! limits are in [`cairn_format::unpack`].

use std::cell::Cell;
use std::io::{self, BufRead, BufReader, Read};
use std::rc::Rc;

use cairn_format::unpack::{UnpackBound, UnpackLimit};

use crate::error::ExchangeError;

/// The size of a file, and the user's limit for unpacking it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Limits {
    /// The size of the file as stored.
    pub(crate) packed_bytes: u64,
    /// The user's limit, which replaces the default.
    pub(crate) chosen_bytes: Option<u64>,
}

impl Limits {
    fn text(self) -> UnpackLimit {
        UnpackBound::PROFILE_TEXT.limit(self.packed_bytes, self.chosen_bytes)
    }

    /// Returns the memory limit.
    ///
    /// Parsed text takes more memory than bytes, so a lower limit by the user does not reduce it.
    fn memory(self) -> UnpackLimit {
        let default = UnpackBound::PROFILE_MEMORY.limit(self.packed_bytes, None);
        // Lower in the tests of this crate, so that they need not fill it.
        let least = if cfg!(test) { 1 << 20 } else { default.limit_bytes };
        UnpackLimit { limit_bytes: self.chosen_bytes.unwrap_or(0).max(least), ..default }
    }
}

/// A decompressed file: gzip, zstd, or none, by its first bytes.
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

    /// Returns the budget of the file's reader.
    pub(crate) fn budget(&self) -> Budget {
        Budget::of(self.format, self.limits)
    }

    /// Returns the next bytes; empty at the end.
    pub(crate) fn chunk(&mut self) -> Result<&[u8], ExchangeError> {
        let place = self.read_bytes.get();
        self.reader.fill_buf().map_err(|error| broken(self.format, place, error))
    }

    /// Advances within the [`chunk`](Self::chunk).
    pub(crate) fn consume(&mut self, bytes: usize) -> Result<(), ExchangeError> {
        self.reader.consume(bytes);
        self.count(bytes)
    }

    /// Appends the next line with its end, up to a maximum length; nothing at the end of the file.
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

/// Classifies a read error: system errors are I/O errors, all others are violations of the format.
fn broken(format: &'static str, place: u64, error: io::Error) -> ExchangeError {
    if error.raw_os_error().is_some() {
        return ExchangeError::reading(error);
    }
    let place = format!("before byte {place} as it lies there");
    ExchangeError::Malformed { format, place, problem: format!("its compression is broken: {error}") }
}

/// Returns the bytes, and whether they are decompressed on the way.
fn unpacked<'r>(input: impl Read + 'r) -> io::Result<(Box<dyn BufRead + 'r>, bool)> {
    let mut input = BufReader::with_capacity(1 << 16, input);
    let start = input.fill_buf()?;
    Ok(match start {
        [0x1f, 0x8b, ..] => {
            (Box::new(BufReader::with_capacity(1 << 16, flate2::bufread::MultiGzDecoder::new(input))), true)
        }
        [0x28, 0xb5, 0x2f, 0xfd, ..] => {
            let mut decoder = zstd::stream::read::Decoder::with_buffer(input)?;
            // The largest window that the format's document requires of readers; one more bit is 4
            // GiB.
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

/// The memory that a reader may still retain of a file.
pub(crate) struct Budget {
    format: &'static str,
    limit: UnpackLimit,
    retained_bytes: u64,
}

impl Budget {
    /// The whole budget of a file that is not unpacked here.
    pub(crate) fn of(format: &'static str, limits: Limits) -> Self {
        Self { format, limit: limits.memory(), retained_bytes: 0 }
    }

    /// Charges memory that is about to be allocated.
    pub(crate) fn keep(&mut self, bytes: usize) -> Result<(), ExchangeError> {
        self.retained_bytes = self.retained_bytes.saturating_add(bytes as u64);
        if self.retained_bytes > self.limit.limit_bytes {
            return Err(ExchangeError::TooLarge { format: self.format, limit: self.limit });
        }
        Ok(())
    }

    /// Refunds memory that was freed.
    pub(crate) fn release(&mut self, bytes: usize) {
        self.retained_bytes = self.retained_bytes.saturating_sub(bytes as u64);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Write, repeat};

    use super::*;

    #[test]
    fn budget_bounds_memory_of_small_files() {
        let mut packed = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
        io::copy(&mut repeat(b'a').take(1 << 20), &mut packed).unwrap();
        packed.write_all(b"\n").unwrap();
        let packed = packed.finish().unwrap();
        let mut input = Unpacked::new("test", &packed[..], Limits::default()).unwrap();
        let mut budget = input.budget();
        let mut unpacked_bytes = 0;
        // As if a reader retained every byte a hundred times.
        let error = loop {
            let bytes = input.chunk().unwrap().len();
            assert!(bytes > 0, "the budget has no end");
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
    fn broken_compression_states_the_position() {
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
