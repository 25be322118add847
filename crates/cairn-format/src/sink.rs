//! Where encoders write: a caller's buffer, a counter, or anything that implements [`Sink`].

use core::fmt;

/// Takes the bytes that an encoder makes, in order.
///
/// Implement it for a UART, a ring buffer or a file. A sink whose device fails keeps the cause and
/// answers [`SinkFull`]; the encoder stops at once and passes that on.
///
/// ```
/// use cairn_format::{Sink, SinkFull};
///
/// struct Uart(Vec<u8>);
/// impl Sink for Uart {
///     fn put(&mut self, bytes: &[u8]) -> Result<(), SinkFull> {
///         self.0.extend_from_slice(bytes);
///         Ok(())
///     }
/// }
/// ```
pub trait Sink {
    /// Takes all of `bytes`, or none of them.
    ///
    /// # Errors
    ///
    /// [`SinkFull`] when the bytes do not fit or the device after the sink failed.
    fn put(&mut self, bytes: &[u8]) -> Result<(), SinkFull>;

    /// Takes the first `count` (at most 16) bytes of `bytes`, most significant first. The same as
    /// [`put`](Self::put), for encoders that write a few bytes at a time: a sink with memory after
    /// it may store all 16 at once, which costs two instructions in place of a call to `memcpy`. A
    /// number and not an array, because an array goes through memory.
    ///
    /// # Errors
    ///
    /// As [`put`](Self::put).
    #[inline]
    fn put_front(&mut self, bytes: u128, count: usize) -> Result<(), SinkFull> {
        let bytes = bytes.to_be_bytes();
        self.put(bytes.get(..count).unwrap_or(&bytes))
    }
}

impl<S: Sink + ?Sized> Sink for &mut S {
    #[inline]
    fn put(&mut self, bytes: &[u8]) -> Result<(), SinkFull> {
        (**self).put(bytes)
    }

    #[inline]
    fn put_front(&mut self, bytes: u128, count: usize) -> Result<(), SinkFull> {
        (**self).put_front(bytes, count)
    }
}

/// The sink has no room for the next bytes; what was written before stays.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SinkFull;

impl fmt::Display for SinkFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the output buffer is full")
    }
}

impl core::error::Error for SinkFull {}

/// Writes into a caller's buffer. The bytes after what is [`written`](Self::written) may be
/// anything.
///
/// ```
/// use cairn_format::{Sink, SinkFull, SliceSink};
/// let mut buffer = [0; 3];
/// let mut sink = SliceSink::new(&mut buffer);
/// sink.put(b"ab")?;
/// assert_eq!(sink.put(b"cd"), Err(SinkFull));
/// assert_eq!(sink.written(), b"ab");
/// # Ok::<(), SinkFull>(())
/// ```
#[derive(Debug)]
pub struct SliceSink<'a> {
    buffer: &'a mut [u8],
    used: usize,
}

impl<'a> SliceSink<'a> {
    /// Creates a sink that fills `buffer` from its first byte.
    pub fn new(buffer: &'a mut [u8]) -> Self {
        Self { buffer, used: 0 }
    }

    /// Returns the bytes written so far.
    #[must_use]
    pub fn written(&self) -> &[u8] {
        // `used` never passes the end, so the fallback is unreachable; it keeps the panic machinery
        // out of firmware.
        self.buffer.get(..self.used).unwrap_or_default()
    }

    /// Returns the bytes written, for as long as the buffer lives.
    #[must_use]
    pub fn into_written(self) -> &'a [u8] {
        self.buffer.get(..self.used).unwrap_or_default()
    }
}

impl Sink for SliceSink<'_> {
    #[inline]
    fn put(&mut self, bytes: &[u8]) -> Result<(), SinkFull> {
        let end = self.used.checked_add(bytes.len()).ok_or(SinkFull)?;
        self.buffer.get_mut(self.used..end).ok_or(SinkFull)?.copy_from_slice(bytes);
        self.used = end;
        Ok(())
    }

    #[inline]
    fn put_front(&mut self, bytes: u128, count: usize) -> Result<(), SinkFull> {
        let room = self.buffer.get_mut(self.used..).and_then(|rest| rest.first_chunk_mut::<16>());
        match room {
            Some(room) if count <= 16 => {
                *room = bytes.to_be_bytes();
                self.used += count;
                Ok(())
            }
            _ => {
                let bytes = bytes.to_be_bytes();
                self.put(bytes.get(..count).unwrap_or(&bytes))
            }
        }
    }
}

/// Counts bytes and keeps none: encode once to learn the size, then again into a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct CountingSink {
    /// How many bytes were written.
    pub count: usize,
}

impl Sink for CountingSink {
    #[inline]
    fn put(&mut self, bytes: &[u8]) -> Result<(), SinkFull> {
        self.count = self.count.checked_add(bytes.len()).ok_or(SinkFull)?;
        Ok(())
    }
}
