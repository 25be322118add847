//! Writes compressed backtraces: runs in the watched program, so it is small, fast and without
//! panic paths.

use core::fmt;

use crate::bits::BitWriter;
use crate::lws::{GIVE_UP_BLOB, HISTORY, LENGTH_BYTES, MAX_BLOB_BYTES, MAX_DEPTH};
use cairn_format::{AbsoluteAddress, Sink, SinkFull, SliceSink};

/// Cost in bits of a delta without its distance, and of a literal without its value. These are the
/// encoder's figures. The true costs are 16 and 10: the C code forgets the spare bits on both
/// sides, and so must we to choose alike.
const DELTA_OVERHEAD_BITS: u32 = 11;
const LITERAL_OVERHEAD_BITS: u32 = 7;

/// Why a backtrace could not be encoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LwsEncodeError {
    /// Index of the address at fault; the number of addresses when the fault is in what follows
    /// them.
    pub item: usize,
    /// Kind of the fault.
    pub kind: LwsEncodeErrorKind,
}

/// Kinds of [`LwsEncodeError`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum LwsEncodeErrorKind {
    /// There are more than 31 addresses: the depth field has 5 bits. libwebsockets writes 32 as 0
    /// and loses them all.
    TooDeep,
    /// An address that has to be written out has bit 63 set, and the width field ends at 63.
    /// libwebsockets writes a blob that cannot be read.
    AddressTooWide,
    /// The allocation size has bit 63 set.
    SizeTooWide,
    /// More or fewer addresses were given than [`LwsEncoder::new`] was given.
    WrongCount,
    /// With the caller's own fields the blob passes the 65535 bytes that its length field can
    /// state.
    BlobTooLong,
    /// The sink has no room for the rest.
    SinkFull,
}

impl fmt::Display for LwsEncodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let item = self.item;
        match self.kind {
            LwsEncodeErrorKind::TooDeep => {
                write!(f, "{item} addresses are too many for an lws backtrace (at most {MAX_DEPTH})")
            }
            LwsEncodeErrorKind::AddressTooWide => write!(f, "address {item} needs 64 bits (at most 63 fit)"),
            LwsEncodeErrorKind::SizeTooWide => {
                f.write_str("the allocation size needs 64 bits (at most 63 fit)")
            }
            LwsEncodeErrorKind::WrongCount => {
                write!(f, "the number of addresses given ({item}) is not the depth announced")
            }
            LwsEncodeErrorKind::BlobTooLong => write!(f, "the blob is longer than {MAX_BLOB_BYTES} bytes"),
            LwsEncodeErrorKind::SinkFull => write!(f, "the output buffer is full at item {item}"),
        }
    }
}

impl core::error::Error for LwsEncodeError {}

/// Writes one blob, address by address: stores only the last eight addresses.
///
/// ```
/// use cairn_format::{AbsoluteAddress, SliceSink};
/// use cairn_wire::lws;
///
/// let mut buffer = [0; 64];
/// let mut encoder = lws::LwsEncoder::new(SliceSink::new(&mut buffer), 2)?;
/// encoder.address(AbsoluteAddress::new(0x406651))?;
/// encoder.address(AbsoluteAddress::new(0x406294))?;
/// let mut blob = encoder.allocation_size(7520)?;
/// blob.user_fields().field(9, 4).unwrap(); // the caller's own: say, a thread number
/// let (blob_bytes, sink) = blob.close()?;
/// assert_eq!(sink.written().len(), blob_bytes);
/// # Ok::<(), lws::LwsEncodeError>(())
/// ```
#[derive(Debug)]
pub struct LwsEncoder<S> {
    bits: BitWriter<S>,
    /// Address n is at n modulo 8.
    history: [u64; HISTORY],
    count: usize,
    depth: usize,
}

impl<S: Sink> LwsEncoder<S> {
    /// Starts a blob of exactly `depth` addresses.
    ///
    /// # Errors
    ///
    /// [`LwsEncodeErrorKind::TooDeep`] or [`LwsEncodeErrorKind::SinkFull`].
    pub fn new(sink: S, depth: usize) -> Result<Self, LwsEncodeError> {
        if depth > MAX_DEPTH {
            return Err(LwsEncodeError { item: depth, kind: LwsEncodeErrorKind::TooDeep });
        }
        let mut encoder = Self { bits: BitWriter::new(sink), history: [0; HISTORY], count: 0, depth };
        let written = encoder.bits.field(depth as u64, 5);
        encoder.located(written)?;
        Ok(encoder)
    }

    /// Resumes a blob after its last address. `words` holds its `bits` bits
    /// ([`backtrace_bits`](Self::backtrace_bits)), most significant bit first. The next block of
    /// the same stack differs in its size alone, which is what may follow.
    ///
    /// # Errors
    ///
    /// [`LwsEncodeErrorKind::SinkFull`], and [`LwsEncodeErrorKind::WrongCount`] when there are
    /// fewer words than that.
    ///
    /// ```
    /// use cairn_format::{AbsoluteAddress, SliceSink};
    /// use cairn_wire::lws;
    ///
    /// let addresses = [0x406651, 0x406294].map(AbsoluteAddress::new);
    /// let mut first = [0; 24];
    /// let mut encoder = lws::LwsEncoder::new(SliceSink::new(&mut first), 2)?;
    /// encoder.address(addresses[0])?;
    /// encoder.address(addresses[1])?;
    /// let bits = encoder.backtrace_bits();
    /// encoder.allocation_size(7520)?.close()?;
    ///
    /// let words: Vec<u64> = first.chunks(8).map(|word| u64::from_be_bytes(word.try_into().unwrap())).collect();
    /// let mut second = [0; 24];
    /// let encoder = lws::LwsEncoder::behind(SliceSink::new(&mut second), &words, bits as u32)?;
    /// let blob_bytes = encoder.allocation_size(16)?.close()?.0;
    ///
    /// let mut expected = [0; 24];
    /// assert_eq!(lws::encode(&addresses, 16, SliceSink::new(&mut expected))?, blob_bytes);
    /// assert_eq!(second, expected);
    /// # Ok::<(), lws::LwsEncodeError>(())
    /// ```
    pub fn behind(sink: S, words: &[u64], bits: u32) -> Result<Self, LwsEncodeError> {
        let depth = words.first().map_or(0, |word| (word >> 59) as usize);
        let mut encoder = Self { bits: BitWriter::new(sink), history: [0; HISTORY], count: depth, depth };
        let (whole, rest) = (bits as usize / 64, bits % 64);
        let (Some(words), last) = (words.get(..whole), words.get(whole).copied()) else {
            return Err(LwsEncodeError { item: depth, kind: LwsEncodeErrorKind::WrongCount });
        };
        for &word in words {
            let written = encoder.bits.bits(word, 64);
            encoder.located(written)?;
        }
        if rest > 0 {
            let Some(last) = last else {
                return Err(LwsEncodeError { item: depth, kind: LwsEncodeErrorKind::WrongCount });
            };
            let written = encoder.bits.bits(last >> (64 - rest), rest);
            encoder.located(written)?;
        }
        Ok(encoder)
    }

    /// Returns how many bits there are so far: of the depth and the addresses.
    #[must_use]
    pub fn backtrace_bits(&self) -> u64 {
        self.bits.position_bits()
    }

    /// Writes the next address, as a distance where libwebsockets would, else in full. The distance
    /// counts from one of the eight addresses before.
    ///
    /// # Errors
    ///
    /// [`LwsEncodeErrorKind::AddressTooWide`], [`LwsEncodeErrorKind::WrongCount`] or
    /// [`LwsEncodeErrorKind::SinkFull`].
    pub fn address(&mut self, address: AbsoluteAddress) -> Result<(), LwsEncodeError> {
        if self.count >= self.depth {
            return Err(LwsEncodeError { item: self.count + 1, kind: LwsEncodeErrorKind::WrongCount });
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
            return Err(LwsEncodeError { item: self.count, kind: LwsEncodeErrorKind::AddressTooWide });
        };
        self.located(written)?;
        self.history[self.count % HISTORY] = value;
        self.count += 1;
        Ok(())
    }

    /// Returns the index and the distance of the nearest of the last eight addresses. On a tie it
    /// is the one farthest back.
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
    /// [`LwsEncodeErrorKind::SizeTooWide`], [`LwsEncodeErrorKind::WrongCount`] or
    /// [`LwsEncodeErrorKind::SinkFull`].
    pub fn allocation_size(mut self, size_bytes: u64) -> Result<OpenBlob<S>, LwsEncodeError> {
        let width = significant_bits(size_bytes);
        if self.count != self.depth {
            return Err(LwsEncodeError { item: self.count, kind: LwsEncodeErrorKind::WrongCount });
        }
        if width > 63 {
            return Err(LwsEncodeError { item: self.count, kind: LwsEncodeErrorKind::SizeTooWide });
        }
        let written = self.bits.field(u64::from(width), 6).and_then(|()| self.bits.field(size_bytes, width));
        self.located(written)?;
        Ok(OpenBlob { bits: self.bits, depth: self.depth })
    }

    /// Adds to a full sink the item it happened at.
    fn located(&self, written: Result<(), SinkFull>) -> Result<(), LwsEncodeError> {
        written.map_err(|SinkFull| LwsEncodeError { item: self.count, kind: LwsEncodeErrorKind::SinkFull })
    }
}

/// A blob whose backtrace and size are written, open for the caller's own fields.
#[derive(Debug)]
pub struct OpenBlob<S> {
    bits: BitWriter<S>,
    depth: usize,
}

impl<S: Sink> OpenBlob<S> {
    /// Returns the bit stream, right after the size.
    /// [`BlobEnding::user_fields`](crate::lws::BlobEnding::user_fields) reads these fields.
    pub const fn user_fields(&mut self) -> &mut BitWriter<S> {
        &mut self.bits
    }

    /// Fills the last byte, writes the total length after it, and returns that length and the
    /// sink.
    ///
    /// # Errors
    ///
    /// [`LwsEncodeErrorKind::BlobTooLong`] or [`LwsEncodeErrorKind::SinkFull`].
    pub fn close(mut self) -> Result<(usize, S), LwsEncodeError> {
        let error = |kind| LwsEncodeError { item: self.depth, kind };
        let blob_bytes = self.bits.position_bits().div_ceil(8) + LENGTH_BYTES as u64;
        if blob_bytes > MAX_BLOB_BYTES as u64 {
            return Err(error(LwsEncodeErrorKind::BlobTooLong));
        }
        let sink =
            self.bits.align().and_then(|()| self.bits.bits(blob_bytes, 16)).and_then(|()| self.bits.finish());
        Ok((blob_bytes as usize, sink.map_err(|SinkFull| error(LwsEncodeErrorKind::SinkFull))?))
    }
}

/// Writes the blob of these addresses and this allocation size, and returns its length in bytes.
///
/// The bytes are those of libwebsockets wherever libwebsockets reads its own blob back (every value
/// below 2^31 on 64-bit machines), and are right beyond that, too.
///
/// # Errors
///
/// See [`LwsEncodeErrorKind`]. Bytes written before the error stay in the sink.
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
/// # Ok::<(), lws::LwsEncodeError>(())
/// ```
pub fn encode(
    addresses: &[AbsoluteAddress],
    allocation_size_bytes: u64,
    sink: impl Sink,
) -> Result<usize, LwsEncodeError> {
    let mut encoder = LwsEncoder::new(sink, addresses.len())?;
    for &address in addresses {
        encoder.address(address)?;
    }
    Ok(encoder.allocation_size(allocation_size_bytes)?.close()?.0)
}

/// How much of a buffer a blob may fill.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlobCapacity {
    /// All of it.
    WholeBuffer,
    /// All but the last byte, which is the limit of libwebsockets.
    Reference,
}

/// Writes the blob to the start of `buffer` and returns it.
///
/// # Errors
///
/// See [`LwsEncodeErrorKind`]; the content of `buffer` is then unspecified.
pub fn encode_into<'b>(
    addresses: &[AbsoluteAddress],
    allocation_size_bytes: u64,
    buffer: &'b mut [u8],
    capacity: BlobCapacity,
) -> Result<&'b [u8], LwsEncodeError> {
    let usable_bytes = match capacity {
        BlobCapacity::WholeBuffer => buffer.len(),
        BlobCapacity::Reference => buffer.len().saturating_sub(1),
    };
    let usable = buffer.get_mut(..usable_bytes).unwrap_or_default();
    let blob_bytes = encode(addresses, allocation_size_bytes, SliceSink::new(usable))?;
    Ok(buffer.get(..blob_bytes).unwrap_or_default())
}

/// Returns the blob, or [`GIVE_UP_BLOB`] with the reason. This is for an allocator that must put
/// something in front of the block.
///
/// ```
/// use cairn_format::AbsoluteAddress;
/// use cairn_wire::lws;
/// let mut too_small = [0; 8];
/// let (blob, reason) = lws::encode_or_give_up(&[AbsoluteAddress::new(0x406651)], 1, &mut too_small);
/// assert_eq!(blob, lws::GIVE_UP_BLOB);
/// assert_eq!(reason.unwrap().kind, lws::LwsEncodeErrorKind::SinkFull);
/// ```
///
/// libwebsockets does the same when its buffer is too small, by the rule
/// [`BlobCapacity::Reference`] that is applied here.
pub fn encode_or_give_up<'b>(
    addresses: &[AbsoluteAddress],
    allocation_size_bytes: u64,
    buffer: &'b mut [u8],
) -> (&'b [u8], Option<LwsEncodeError>) {
    match encode_into(addresses, allocation_size_bytes, buffer, BlobCapacity::Reference).map(<[u8]>::len) {
        Ok(blob_bytes) => (buffer.get(..blob_bytes).unwrap_or_default(), None),
        Err(error) => (&GIVE_UP_BLOB, Some(error)),
    }
}

/// Returns the number of bits up to the highest 1; one bit for 0, which the encoder writes as a
/// bit.
const fn significant_bits(value: u64) -> u32 {
    64 - (value | 1).leading_zeros()
}
