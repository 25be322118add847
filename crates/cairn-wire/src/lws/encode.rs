//! Writes compressed backtraces: runs in the watched program, so it is small, fast and without
//! panic paths.

use core::fmt;

use crate::bits::BitWriter;
use crate::lws::{GIVE_UP_BLOB, HISTORY, LENGTH_BYTES, MAX_BLOB_BYTES, MAX_DEPTH};
use cairn_format::{AbsoluteAddress, Sink, SinkFull, SliceSink};

/// Cost of a delta beside its distance, and of a literal beside its value, as the encoder reckons
/// them. The true costs are 16 and 10: the C code forgets the spare bits on both sides, and so must
/// we to choose alike.
const DELTA_OVERHEAD_BITS: u32 = 11;
const LITERAL_OVERHEAD_BITS: u32 = 7;

/// Why a backtrace could not be encoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EncodeError {
    /// Index of the address at fault; the number of addresses when the fault is in what follows
    /// them.
    pub item: usize,
    /// What is wrong there.
    pub kind: EncodeErrorKind,
}

/// What kept a backtrace from being encoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum EncodeErrorKind {
    /// There are more than 31 addresses: the depth field has 5 bits. libwebsockets writes 32 as 0
    /// and loses them all.
    TooDeep,
    /// An address that has to be written out has bit 63 set, and the width field ends at 63.
    /// libwebsockets writes a blob that cannot be read.
    AddressTooWide,
    /// The allocation size has bit 63 set.
    SizeTooWide,
    /// More or fewer addresses were given than [`Encoder::new`] was told.
    WrongCount,
    /// With the caller's own fields the blob passes the 65535 bytes that its length field can
    /// state.
    BlobTooLong,
    /// The sink has no room for the rest.
    SinkFull,
}

impl fmt::Display for EncodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let item = self.item;
        match self.kind {
            EncodeErrorKind::TooDeep => {
                write!(f, "{item} addresses are too many for an lws backtrace (at most {MAX_DEPTH})")
            }
            EncodeErrorKind::AddressTooWide => write!(f, "address {item} needs 64 bits (at most 63 fit)"),
            EncodeErrorKind::SizeTooWide => f.write_str("the allocation size needs 64 bits (at most 63 fit)"),
            EncodeErrorKind::WrongCount => {
                write!(f, "the number of addresses given ({item}) is not the depth announced")
            }
            EncodeErrorKind::BlobTooLong => write!(f, "the blob is longer than {MAX_BLOB_BYTES} bytes"),
            EncodeErrorKind::SinkFull => write!(f, "the output buffer is full at item {item}"),
        }
    }
}

impl core::error::Error for EncodeError {}

/// Writes one blob, address by address: nothing but the last eight addresses is kept.
///
/// ```
/// use cairn_format::{AbsoluteAddress, SliceSink};
/// use cairn_wire::lws;
///
/// let mut buffer = [0; 64];
/// let mut encoder = lws::Encoder::new(SliceSink::new(&mut buffer), 2)?;
/// encoder.address(AbsoluteAddress::new(0x406651))?;
/// encoder.address(AbsoluteAddress::new(0x406294))?;
/// let mut blob = encoder.allocation_size(7520)?;
/// blob.user_fields().field(9, 4).unwrap(); // the caller's own: say, a thread number
/// let (blob_bytes, sink) = blob.close()?;
/// assert_eq!(sink.written().len(), blob_bytes);
/// # Ok::<(), lws::EncodeError>(())
/// ```
#[derive(Debug)]
pub struct Encoder<S> {
    bits: BitWriter<S>,
    /// Address n is at n modulo 8.
    history: [u64; HISTORY],
    count: usize,
    depth: usize,
}

impl<S: Sink> Encoder<S> {
    /// Starts a blob of exactly `depth` addresses.
    ///
    /// # Errors
    ///
    /// [`EncodeErrorKind::TooDeep`] or [`EncodeErrorKind::SinkFull`].
    pub fn new(sink: S, depth: usize) -> Result<Self, EncodeError> {
        if depth > MAX_DEPTH {
            return Err(EncodeError { item: depth, kind: EncodeErrorKind::TooDeep });
        }
        let mut encoder = Self { bits: BitWriter::new(sink), history: [0; HISTORY], count: 0, depth };
        let written = encoder.bits.field(depth as u64, 5);
        encoder.located(written)?;
        Ok(encoder)
    }

    /// Goes on behind the last address of a blob that was begun before: `bits` is how many bits of
    /// it there are ([`backtrace_bits`](Self::backtrace_bits)), `words` holds them, most
    /// significant bit first. The next block of the same stack differs in its size alone, which is
    /// what may follow.
    ///
    /// # Errors
    ///
    /// [`EncodeErrorKind::SinkFull`], and [`EncodeErrorKind::WrongCount`] when there are fewer
    /// words than that.
    ///
    /// ```
    /// use cairn_format::{AbsoluteAddress, SliceSink};
    /// use cairn_wire::lws;
    ///
    /// let addresses = [0x406651, 0x406294].map(AbsoluteAddress::new);
    /// let mut first = [0; 24];
    /// let mut encoder = lws::Encoder::new(SliceSink::new(&mut first), 2)?;
    /// encoder.address(addresses[0])?;
    /// encoder.address(addresses[1])?;
    /// let bits = encoder.backtrace_bits();
    /// encoder.allocation_size(7520)?.close()?;
    ///
    /// let words: Vec<u64> = first.chunks(8).map(|word| u64::from_be_bytes(word.try_into().unwrap())).collect();
    /// let mut second = [0; 24];
    /// let encoder = lws::Encoder::behind(SliceSink::new(&mut second), &words, bits as u32)?;
    /// let blob_bytes = encoder.allocation_size(16)?.close()?.0;
    ///
    /// let mut expected = [0; 24];
    /// assert_eq!(lws::encode(&addresses, 16, SliceSink::new(&mut expected))?, blob_bytes);
    /// assert_eq!(second, expected);
    /// # Ok::<(), lws::EncodeError>(())
    /// ```
    pub fn behind(sink: S, words: &[u64], bits: u32) -> Result<Self, EncodeError> {
        let depth = words.first().map_or(0, |word| (word >> 59) as usize);
        let mut encoder = Self { bits: BitWriter::new(sink), history: [0; HISTORY], count: depth, depth };
        let (whole, rest) = (bits as usize / 64, bits % 64);
        let (Some(words), last) = (words.get(..whole), words.get(whole).copied()) else {
            return Err(EncodeError { item: depth, kind: EncodeErrorKind::WrongCount });
        };
        for &word in words {
            let written = encoder.bits.bits(word, 64);
            encoder.located(written)?;
        }
        if rest > 0 {
            let Some(last) = last else {
                return Err(EncodeError { item: depth, kind: EncodeErrorKind::WrongCount });
            };
            let written = encoder.bits.bits(last >> (64 - rest), rest);
            encoder.located(written)?;
        }
        Ok(encoder)
    }

    /// How many bits there are so far: of the depth and the addresses.
    #[must_use]
    pub fn backtrace_bits(&self) -> u64 {
        self.bits.position_bits()
    }

    /// Writes the next address: as the distance from one of the eight before it where libwebsockets
    /// would, else in full.
    ///
    /// # Errors
    ///
    /// [`EncodeErrorKind::AddressTooWide`], [`EncodeErrorKind::WrongCount`] or
    /// [`EncodeErrorKind::SinkFull`].
    pub fn address(&mut self, address: AbsoluteAddress) -> Result<(), EncodeError> {
        if self.count >= self.depth {
            return Err(EncodeError { item: self.count + 1, kind: EncodeErrorKind::WrongCount });
        }
        let value = address.value();
        let value_bits = significant_bits(value);
        let (base_index, distance) = self.nearest(value);
        let distance_bits = significant_bits(distance);
        // The first address is no base: the C code takes its index, 0, for "none found".
        // Byte-exactness keeps that.
        let pays = distance_bits + DELTA_OVERHEAD_BITS < value_bits + LITERAL_OVERHEAD_BITS;
        let written = if base_index != 0 && pays {
            let base = self.history[base_index % HISTORY];
            let back = (self.count - base_index - 1) as u64;
            let header = 1 << 14 | back << 10 | u64::from(value <= base) << 8 | u64::from(distance_bits) << 1;
            self.bits.bits(header, 15).and_then(|()| self.bits.field(distance, distance_bits))
        } else if value_bits < 64 {
            self.bits.bits(u64::from(value_bits) << 1, 9).and_then(|()| self.bits.field(value, value_bits))
        } else {
            return Err(EncodeError { item: self.count, kind: EncodeErrorKind::AddressTooWide });
        };
        self.located(written)?;
        self.history[self.count % HISTORY] = value;
        self.count += 1;
        Ok(())
    }

    /// Index of the nearest of the last eight addresses and its distance; of equals, the one
    /// farthest back.
    fn nearest(&self, value: u64) -> (usize, u64) {
        let mut nearest = (0, u64::MAX);
        for index in self.count.saturating_sub(HISTORY)..self.count {
            let distance = value.abs_diff(self.history[index % HISTORY]);
            if distance < nearest.1 {
                nearest = (index, distance);
            }
        }
        nearest
    }

    /// Writes the size of the allocation that the backtrace belongs to, and hands over the open
    /// blob.
    ///
    /// # Errors
    ///
    /// [`EncodeErrorKind::SizeTooWide`], [`EncodeErrorKind::WrongCount`] or
    /// [`EncodeErrorKind::SinkFull`].
    pub fn allocation_size(mut self, size_bytes: u64) -> Result<OpenBlob<S>, EncodeError> {
        let width = significant_bits(size_bytes);
        if self.count != self.depth {
            return Err(EncodeError { item: self.count, kind: EncodeErrorKind::WrongCount });
        }
        if width > 63 {
            return Err(EncodeError { item: self.count, kind: EncodeErrorKind::SizeTooWide });
        }
        let written = self.bits.field(u64::from(width), 6).and_then(|()| self.bits.field(size_bytes, width));
        self.located(written)?;
        Ok(OpenBlob { bits: self.bits, depth: self.depth })
    }

    /// Adds to a full sink the item it happened at.
    fn located(&self, written: Result<(), SinkFull>) -> Result<(), EncodeError> {
        written.map_err(|SinkFull| EncodeError { item: self.count, kind: EncodeErrorKind::SinkFull })
    }
}

/// A blob whose backtrace and size are written, open for the caller's own fields.
#[derive(Debug)]
pub struct OpenBlob<S> {
    bits: BitWriter<S>,
    depth: usize,
}

impl<S: Sink> OpenBlob<S> {
    /// The bit stream, right behind the size. What is written here is found again at
    /// [`Ending::user_fields`](crate::lws::Ending::user_fields).
    pub const fn user_fields(&mut self) -> &mut BitWriter<S> {
        &mut self.bits
    }

    /// Fills the last byte, writes the total length behind it, and gives back that length and the
    /// sink.
    ///
    /// # Errors
    ///
    /// [`EncodeErrorKind::BlobTooLong`] or [`EncodeErrorKind::SinkFull`].
    pub fn close(mut self) -> Result<(usize, S), EncodeError> {
        let error = |kind| EncodeError { item: self.depth, kind };
        let blob_bytes = self.bits.position_bits().div_ceil(8) + LENGTH_BYTES as u64;
        if blob_bytes > MAX_BLOB_BYTES as u64 {
            return Err(error(EncodeErrorKind::BlobTooLong));
        }
        let sink =
            self.bits.align().and_then(|()| self.bits.bits(blob_bytes, 16)).and_then(|()| self.bits.finish());
        Ok((blob_bytes as usize, sink.map_err(|SinkFull| error(EncodeErrorKind::SinkFull))?))
    }
}

/// Writes the blob of these addresses and this allocation size, and returns its length in bytes.
///
/// The bytes are those of libwebsockets wherever libwebsockets reads its own blob back (every value
/// below 2^31 on 64-bit machines), and are right beyond that, too.
///
/// # Errors
///
/// See [`EncodeErrorKind`]. What went into the sink before the error stays there.
///
/// ```
/// use cairn_format::{AbsoluteAddress, SliceSink};
/// use cairn_wire::lws;
///
/// let addresses = [0x406651, 0x406852, 0x406c1b, 0x406294].map(AbsoluteAddress::new);
/// let mut buffer = [0; 64];
/// let mut sink = SliceSink::new(&mut buffer);
/// assert_eq!(lws::encode(&addresses, 7520, &mut sink)?, 21);
/// assert_eq!(sink.written().last(), Some(&21)); // the blob ends with its own length
/// # Ok::<(), lws::EncodeError>(())
/// ```
pub fn encode(
    addresses: &[AbsoluteAddress],
    allocation_size_bytes: u64,
    sink: impl Sink,
) -> Result<usize, EncodeError> {
    let mut encoder = Encoder::new(sink, addresses.len())?;
    for &address in addresses {
        encoder.address(address)?;
    }
    Ok(encoder.allocation_size(allocation_size_bytes)?.close()?.0)
}

/// How much of a buffer a blob may fill.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Capacity {
    /// All of it.
    WholeBuffer,
    /// All but the last byte, which is the limit of libwebsockets.
    Reference,
}

/// Writes the blob to the start of `buffer` and returns it.
///
/// # Errors
///
/// See [`EncodeErrorKind`]; the content of `buffer` is then unspecified.
pub fn encode_into<'b>(
    addresses: &[AbsoluteAddress],
    allocation_size_bytes: u64,
    buffer: &'b mut [u8],
    capacity: Capacity,
) -> Result<&'b [u8], EncodeError> {
    let usable_bytes = match capacity {
        Capacity::WholeBuffer => buffer.len(),
        Capacity::Reference => buffer.len().saturating_sub(1),
    };
    let usable = buffer.get_mut(..usable_bytes).unwrap_or_default();
    let blob_bytes = encode(addresses, allocation_size_bytes, SliceSink::new(usable))?;
    Ok(buffer.get(..blob_bytes).unwrap_or_default())
}

/// The blob, or [`GIVE_UP_BLOB`] together with the reason: for an allocator that must put something
/// in front of the block.
///
/// ```
/// use cairn_format::AbsoluteAddress;
/// use cairn_wire::lws;
/// let mut too_small = [0; 8];
/// let (blob, reason) = lws::encode_or_give_up(&[AbsoluteAddress::new(0x406651)], 1, &mut too_small);
/// assert_eq!(blob, lws::GIVE_UP_BLOB);
/// assert_eq!(reason.unwrap().kind, lws::EncodeErrorKind::SinkFull);
/// ```
///
/// libwebsockets does the same when its buffer is too small, by the rule [`Capacity::Reference`]
/// that is applied here.
pub fn encode_or_give_up<'b>(
    addresses: &[AbsoluteAddress],
    allocation_size_bytes: u64,
    buffer: &'b mut [u8],
) -> (&'b [u8], Option<EncodeError>) {
    match encode_into(addresses, allocation_size_bytes, buffer, Capacity::Reference).map(<[u8]>::len) {
        Ok(blob_bytes) => (buffer.get(..blob_bytes).unwrap_or_default(), None),
        Err(error) => (&GIVE_UP_BLOB, Some(error)),
    }
}

/// Number of bits up to the highest 1; one bit for 0, which the encoder writes as a bit.
const fn significant_bits(value: u64) -> u32 {
    64 - (value | 1).leading_zeros()
}
