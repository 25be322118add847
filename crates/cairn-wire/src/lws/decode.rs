//! Reads compressed backtraces: one load per address in the usual case.

use core::fmt;
use core::ops::Deref;

use crate::bits::{BitReader, top_bits};
use crate::lws::{HISTORY, LENGTH_BYTES, MAX_DEPTH};
use cairn_format::{AbsoluteAddress, Frame, WordSize};

/// Reports a fault in a blob and its offset.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LwsError {
    /// Distance in bits of the fault from the first byte of the blob. It counts from the input if
    /// the blob could not be found in it.
    pub offset_bits: u64,
    /// Kind of the fault.
    pub kind: LwsErrorKind,
}

/// Faults of a blob.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum LwsErrorKind {
    /// The input is shorter than the two bytes of a length field.
    NoLength,
    /// The length field is 0: the program had no room for the backtrace
    /// ([`GIVE_UP_BLOB`](crate::lws::GIVE_UP_BLOB)).
    GaveUp,
    /// The length field differs from the number of bytes that are there.
    WrongLength {
        /// The content of the length field.
        stated_bytes: u16,
        /// The length of the input, or the part of it in which the blob would have to lie.
        actual_bytes: usize,
    },
    /// A field goes on past the last byte before the length field.
    CutShort,
    /// A delta refers to an address before the first one.
    NoSuchBase {
        /// How many addresses back it refers, 1 to 8.
        back: u8,
    },
    /// An address is wider than the requested word size. The blob comes from a machine with wider
    /// words.
    WiderThanWord {
        /// Significant bits of the address.
        bits: u32,
    },
    /// Whole bytes lie between the last field read and the length field. They may be the program's
    /// own fields.
    UnusedBytes {
        /// How many.
        count: usize,
    },
    /// The bits that fill the last byte are not all 0.
    PaddingNotZero,
}

impl fmt::Display for LwsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            LwsErrorKind::NoLength => f.write_str("no room for an lws blob's 2-byte length"),
            LwsErrorKind::GaveUp => {
                f.write_str("length field is 0: the program had no room for this backtrace")
            }
            LwsErrorKind::WrongLength { stated_bytes, actual_bytes } => {
                write!(f, "length field says {stated_bytes} bytes, but there are {actual_bytes}")
            }
            LwsErrorKind::CutShort => f.write_str("the field is cut short"),
            LwsErrorKind::NoSuchBase { back } => {
                write!(f, "a distance from {back} addresses back, before the first one")
            }
            LwsErrorKind::WiderThanWord { bits } => {
                write!(f, "an address of {bits} bits, more than the word size given")
            }
            LwsErrorKind::UnusedBytes { count } => write!(f, "{count} unused bytes behind the size"),
            LwsErrorKind::PaddingNotZero => f.write_str("padding bits are not 0"),
        }?;
        write!(f, " (at bit {})", self.offset_bits)
    }
}

impl core::error::Error for LwsError {}

/// The bytes of one blob, found but not decoded.
#[derive(Clone, Copy, Debug)]
pub struct Blob<'a> {
    /// Everything before the length field.
    body: &'a [u8],
}

impl<'a> Blob<'a> {
    /// Returns the blob that is all of `bytes`.
    ///
    /// # Errors
    ///
    /// [`LwsErrorKind::NoLength`], [`LwsErrorKind::GaveUp`] or
    /// [`LwsErrorKind::WrongLength`].
    pub fn whole(bytes: &'a [u8]) -> Result<Self, LwsError> {
        let (before, stated_bytes) = split_length(bytes)?;
        let error = |kind| LwsError { offset_bits: bits_in(before), kind };
        if stated_bytes == 0 && before.is_empty() {
            return Err(error(LwsErrorKind::GaveUp));
        }
        if usize::from(stated_bytes) != bytes.len() {
            return Err(error(LwsErrorKind::WrongLength { stated_bytes, actual_bytes: bytes.len() }));
        }
        Ok(Self { body: before })
    }

    /// Returns the blob that ends where `memory` ends; its length field states the start.
    ///
    /// # Errors
    ///
    /// As for [`whole`](Self::whole); here [`LwsErrorKind::WrongLength`] says that the blob
    /// would begin before `memory`, or be shorter than its own length field.
    pub fn at_end_of(memory: &'a [u8]) -> Result<Self, LwsError> {
        let (before, stated_bytes) = split_length(memory)?;
        let error = |kind| LwsError { offset_bits: bits_in(before), kind };
        if stated_bytes == 0 {
            return Err(error(LwsErrorKind::GaveUp));
        }
        let wrong = error(LwsErrorKind::WrongLength { stated_bytes, actual_bytes: memory.len() });
        let body_bytes = usize::from(stated_bytes).checked_sub(LENGTH_BYTES).ok_or(wrong)?;
        let start = before.len().checked_sub(body_bytes).ok_or(wrong)?;
        Ok(Self { body: before.get(start..).unwrap_or_default() })
    }

    /// Starts to decode the blob of a machine of this word size.
    ///
    /// # Errors
    ///
    /// [`LwsErrorKind::CutShort`] when there is no depth field.
    pub fn decoder(self, word_size: WordSize) -> Result<LwsDecoder<'a>, LwsError> {
        LwsDecoder::new(self.body, word_size)
    }

    /// Decodes all of the blob, strictly: besides the padding nothing may follow the size.
    ///
    /// A blob with the program's own fields after the size is read with
    /// [`decoder`](Self::decoder).
    ///
    /// # Errors
    ///
    /// See [`LwsErrorKind`].
    pub fn decode(self, word_size: WordSize) -> Result<Backtrace, LwsError> {
        let mut backtrace = Backtrace::EMPTY;
        self.decode_to(&mut backtrace, word_size)?.check_nothing_left()?;
        Ok(backtrace)
    }

    /// Decodes the addresses and the size, and allows whatever follows them in the blob.
    ///
    /// # Errors
    ///
    /// See [`LwsErrorKind`].
    pub fn decode_leading(self, word_size: WordSize) -> Result<Backtrace, LwsError> {
        let mut backtrace = Backtrace::EMPTY;
        self.decode_to(&mut backtrace, word_size)?;
        Ok(backtrace)
    }

    /// Fills a backtrace in its place, because moving its 31 slots costs as much as decoding some.
    #[inline]
    fn decode_to(self, backtrace: &mut Backtrace, word_size: WordSize) -> Result<BlobEnding<'a>, LwsError> {
        // Not by way of `LwsDecoder`: here the list itself is the history, and the position stays
        // in a register.
        let mut bits = BitReader::new(self.body);
        let depth = read_depth(&mut bits)?;
        let mut suspected_losses = SuspectedLosses::default();
        let max_address = word_size.max_address();
        let slots = &mut backtrace.addresses.addresses;
        for index in 0..depth {
            let earlier = |index: usize| slots.get(index).map_or(0, |address| address.value());
            let address = read_item(&mut bits, index, max_address, &mut suspected_losses, earlier)?;
            if let Some(slot) = slots.get_mut(index as usize) {
                *slot = AbsoluteAddress::new(address);
            }
        }
        backtrace.addresses.count = depth as usize;
        let ending = read_ending(bits, suspected_losses)?;
        backtrace.allocation_size_bytes = ending.allocation_size_bytes;
        backtrace.suspected_losses = ending.suspected_losses;
        Ok(ending)
    }
}

/// Decodes the blob that is all of `bytes`, strictly.
///
/// # Errors
///
/// See [`LwsErrorKind`].
///
/// ```
/// use cairn_format::{AbsoluteAddress, WordSize};
/// use cairn_wire::lws;
/// let blob = [0x08, 0x21, 0x90, 0x11, 0x20, 0x00, 0x07];
/// let backtrace = lws::decode(&blob, WordSize::Bits64)?;
/// assert_eq!(*backtrace.addresses, [AbsoluteAddress::new(0xc8)]);
/// assert_eq!(backtrace.allocation_size_bytes, 9);
/// # Ok::<(), lws::LwsError>(())
/// ```
pub fn decode(bytes: &[u8], word_size: WordSize) -> Result<Backtrace, LwsError> {
    Blob::whole(bytes)?.decode(word_size)
}

/// Decodes as much as possible of `bytes`, one blob that may be cut, damaged or overlong.
///
/// When the length field is right, or is the only thing wrong, nothing is lost. When the end is
/// missing, the addresses before the cut are there.
///
/// ```
/// use cairn_format::WordSize;
/// use cairn_wire::lws;
/// let cut = [0x10, 0x21, 0x90, 0x11]; // depth 2, address 0xc8, then nothing
/// let salvage = lws::salvage(&cut, WordSize::Bits64);
/// assert_eq!(salvage.addresses.len(), 1);
/// assert!(salvage.allocation_size_bytes.is_none());
/// assert!(salvage.findings.length.is_some() && salvage.findings.stopped.is_some());
/// ```
#[must_use]
pub fn salvage(bytes: &[u8], word_size: WordSize) -> Salvage {
    let (body, length_error) = match Blob::whole(bytes) {
        Ok(blob) => (blob.body, None),
        // Two zero bytes would read as no addresses and a size of 0. The program did not write
        // that.
        Err(error) if error.kind == LwsErrorKind::GaveUp => (&[][..], Some(error)),
        // Wherever the true end is, the fields still begin at the first byte.
        Err(error) => (bytes, Some(error)),
    };
    let mut salvage = Salvage {
        addresses: AddressList::new(),
        allocation_size_bytes: None,
        findings: LwsFindings { length: length_error, ..LwsFindings::default() },
    };
    salvage.findings.stopped = salvage.take_body(body, word_size).err();
    salvage
}

/// Reads the addresses of one blob lazily, innermost first.
///
/// Iterate to get the addresses, then ask [`finish`](Self::finish) for the allocation size and for
/// the program's own fields. Return addresses as frames are
/// `decoder.map(|address| address.map(Frame::ReturnAddress))`.
///
/// ```
/// use cairn_format::{AbsoluteAddress, SliceSink, WordSize};
/// use cairn_wire::lws;
///
/// let mut buffer = [0; 64];
/// let mut encoder = lws::LwsEncoder::new(SliceSink::new(&mut buffer), 1)?;
/// encoder.address(AbsoluteAddress::new(0x406651))?;
/// let mut blob = encoder.allocation_size(100)?;
/// blob.user_fields().field(7, 4).unwrap();
/// let written = blob.close()?.1.into_written();
///
/// let mut decoder = lws::Blob::at_end_of(written).unwrap().decoder(WordSize::Bits64).unwrap();
/// assert_eq!(decoder.next(), Some(Ok(AbsoluteAddress::new(0x406651))));
/// assert_eq!(decoder.next(), None);
/// let mut ending = decoder.finish().unwrap();
/// assert_eq!(ending.allocation_size_bytes, 100);
/// assert_eq!(ending.user_fields.field(4), Some(7));
/// assert_eq!(ending.check_nothing_left(), Ok(()));
/// # Ok::<(), lws::LwsEncodeError>(())
/// ```
#[derive(Clone, Debug)]
pub struct LwsDecoder<'a> {
    bits: BitReader<'a>,
    word_size: WordSize,
    /// Address n is at n modulo 8.
    history: [u64; HISTORY],
    count: u32,
    depth: u32,
    suspected_losses: SuspectedLosses,
    failed: Option<LwsError>,
}

impl<'a> LwsDecoder<'a> {
    fn new(body: &'a [u8], word_size: WordSize) -> Result<Self, LwsError> {
        let mut bits = BitReader::new(body);
        let depth = read_depth(&mut bits)?;
        Ok(Self {
            bits,
            word_size,
            history: [0; HISTORY],
            count: 0,
            depth,
            suspected_losses: SuspectedLosses::default(),
            failed: None,
        })
    }

    /// Returns how many addresses the blob claims to hold, 0 to 31.
    #[must_use]
    pub const fn depth(&self) -> usize {
        self.depth as usize
    }

    /// Returns the losses suspected in the addresses read so far.
    #[must_use]
    pub const fn suspected_losses(&self) -> SuspectedLosses {
        self.suspected_losses
    }

    /// Skips the addresses not read yet, and reads the allocation size after them.
    ///
    /// # Errors
    ///
    /// [`LwsErrorKind::CutShort`], or what the iterator reported or would have reported.
    pub fn finish(mut self) -> Result<BlobEnding<'a>, LwsError> {
        while self.next_address()?.is_some() {}
        read_ending(self.bits, self.suspected_losses)
    }

    #[inline]
    fn next_address(&mut self) -> Result<Option<u64>, LwsError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        if self.count >= self.depth {
            return Ok(None);
        }
        let Self { history, suspected_losses, .. } = self;
        let max_address = self.word_size.max_address();
        let earlier = |index: usize| history[index % HISTORY];
        match read_item(&mut self.bits, self.count, max_address, suspected_losses, earlier) {
            Ok(address) => {
                self.history[self.count as usize % HISTORY] = address;
                self.count += 1;
                Ok(Some(address))
            }
            Err(error) => {
                self.failed = Some(error);
                Err(error)
            }
        }
    }
}

#[inline]
fn read_depth(bits: &mut BitReader<'_>) -> Result<u32, LwsError> {
    let depth = bits.field(5).ok_or(LwsError { offset_bits: 0, kind: LwsErrorKind::CutShort })?;
    Ok(depth as u32)
}

/// Reads the size at the position of `bits`.
#[inline]
fn read_ending<'a>(
    mut bits: BitReader<'a>,
    mut suspected_losses: SuspectedLosses,
) -> Result<BlobEnding<'a>, LwsError> {
    let start = bits;
    let window = start.window();
    let width = top_bits(window, 6) as u32;
    let size = value_behind(&mut bits, 7, width, window).ok_or_else(|| cut_short(&start))?;
    if loss_suspected(size, width) {
        suspected_losses.0 |= 1 << SuspectedLosses::SIZE;
    }
    Ok(BlobEnding { allocation_size_bytes: size, suspected_losses, user_fields: bits })
}

/// Reads item number `index` and returns its address; `earlier` returns addresses before it.
///
/// One window holds the header, and as a rule the value as well. Literals and deltas mix in a way
/// that no processor predicts, so there is no branch between them: a literal is a delta that is
/// added to 0.
#[inline(always)]
fn read_item(
    bits: &mut BitReader<'_>,
    index: u32,
    max_address: u64,
    suspected_losses: &mut SuspectedLosses,
    earlier: impl FnOnce(usize) -> u64,
) -> Result<u64, LwsError> {
    let start_bits = bits.position_bits();
    let error = |kind| LwsError { offset_bits: start_bits, kind };
    let window = bits.window();
    let is_delta = window >> 63 != 0;
    // 1 1, back 3 + 1, sign 1 + 1, width 6 + 1: 15 bits.   0 1, width 6 + 1: 9 bits.
    let header_bits = if is_delta { 15 } else { 9 };
    let width = (window >> if is_delta { 50 } else { 56 }) as u32 & 63;
    let value = value_behind(bits, header_bits, width, window).ok_or(error(LwsErrorKind::CutShort))?;

    let back = (window >> 59 & 7) as u32 + 1;
    let base_index = index.wrapping_sub(back);
    if is_delta && back > index {
        return Err(error(LwsErrorKind::NoSuchBase { back: back as u8 }));
    }
    let delta_mask = u64::from(is_delta).wrapping_neg();
    let base = earlier(base_index as usize) & delta_mask;
    let subtract_mask = (window >> 57 & 1).wrapping_neg() & delta_mask;
    let address = base.wrapping_add((value ^ subtract_mask).wrapping_sub(subtract_mask));

    if width > 32 || suspected_losses.any() {
        // An uncertain base makes the address computed from it uncertain.
        let base_suspected = is_delta && suspected_losses.0 >> base_index & 1 != 0;
        suspected_losses.0 |= u32::from(base_suspected || loss_suspected(value, width)) << index;
    }
    if address > max_address && !is_delta {
        return Err(error(LwsErrorKind::WiderThanWord { bits: 64 - address.leading_zeros() }));
    }
    Ok(address & max_address)
}

/// Reads a value of `width` bits, 63 at most, after `header_bits`, and moves past its spare bit.
/// `window` was taken at the current position.
#[inline(always)]
fn value_behind(bits: &mut BitReader<'_>, header_bits: u32, width: u32, window: u64) -> Option<u64> {
    let start = *bits;
    bits.skip(header_bits + width + 1)?;
    if header_bits + width > BitReader::WINDOW_BITS {
        return wide_value_behind(start, header_bits, width);
    }
    // In two steps, because a shift by 64 is undefined.
    Some(window << header_bits >> 1 >> (63 - width))
}

/// Returns the same for a value that one window does not show.
#[inline(never)]
fn wide_value_behind(mut bits: BitReader<'_>, header_bits: u32, width: u32) -> Option<u64> {
    bits.skip(header_bits)?;
    bits.bits(width)
}

impl Iterator for LwsDecoder<'_> {
    type Item = Result<AbsoluteAddress, LwsError>;

    /// Returns the next address. After an error the iterator ends.
    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.failed.is_some() {
            return None;
        }
        self.next_address().map(|address| address.map(AbsoluteAddress::new)).transpose()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, Some((self.depth - self.count) as usize))
    }
}

impl core::iter::FusedIterator for LwsDecoder<'_> {}

/// Content of a blob after the addresses.
#[derive(Clone, Copy, Debug)]
pub struct BlobEnding<'a> {
    /// Size of the allocation that the backtrace belongs to.
    pub allocation_size_bytes: u64,
    /// The losses suspected in the addresses and in the size.
    pub suspected_losses: SuspectedLosses,
    /// Follows the size: read here what
    /// [`OpenBlob::user_fields`](crate::lws::OpenBlob::user_fields) wrote.
    pub user_fields: BitReader<'a>,
}

impl BlobEnding<'_> {
    /// Checks that only zero padding is left after the last field read from
    /// [`user_fields`](Self::user_fields).
    ///
    /// # Errors
    ///
    /// [`LwsErrorKind::UnusedBytes`] or [`LwsErrorKind::PaddingNotZero`].
    pub fn check_nothing_left(&self) -> Result<(), LwsError> {
        self.unused_bytes().or(self.padding()).map_or(Ok(()), Err)
    }

    fn unused_bytes(&self) -> Option<LwsError> {
        let count = (self.user_fields.remaining_bits() / 8) as usize;
        let offset_bits = self.user_fields.position_bits().next_multiple_of(8);
        (count > 0).then_some(LwsError { offset_bits, kind: LwsErrorKind::UnusedBytes { count } })
    }

    fn padding(&self) -> Option<LwsError> {
        let mut rest = self.user_fields;
        let set = rest.bits((rest.remaining_bits() % 8) as u32) != Some(0);
        set.then_some(LwsError {
            offset_bits: self.user_fields.position_bits(),
            kind: LwsErrorKind::PaddingNotZero,
        })
    }
}

/// One blob, decoded whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Backtrace {
    /// The return addresses, innermost first.
    pub addresses: AddressList,
    /// Size of the allocation that the backtrace belongs to.
    pub allocation_size_bytes: u64,
    /// The values that may be the remains of longer ones.
    pub suspected_losses: SuspectedLosses,
}

impl Backtrace {
    const EMPTY: Self = Self {
        addresses: AddressList::new(),
        allocation_size_bytes: 0,
        suspected_losses: SuspectedLosses(0),
    };
}

/// Content that could be decoded from a damaged blob, and its faults.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Salvage {
    /// The return addresses before the first fault, innermost first.
    pub addresses: AddressList,
    /// Size of the allocation, if decoding got that far.
    pub allocation_size_bytes: Option<u64>,
    /// Everything that strict decoding objects to, and suspected losses.
    pub findings: LwsFindings,
}

impl Salvage {
    fn take_body(&mut self, body: &[u8], word_size: WordSize) -> Result<(), LwsError> {
        if self.findings.length.is_some_and(|error| error.kind == LwsErrorKind::GaveUp) {
            return Ok(());
        }
        let mut decoder = LwsDecoder::new(body, word_size)?;
        while let Some(address) = decoder.next_address()? {
            self.addresses.push(address);
            self.findings.suspected_losses = decoder.suspected_losses;
        }
        let ending = decoder.finish()?;
        self.allocation_size_bytes = Some(ending.allocation_size_bytes);
        self.findings.suspected_losses = ending.suspected_losses;
        // With a wrong length nobody knows where the padding is.
        if self.findings.length.is_none() {
            self.findings.unused_bytes = ending.unused_bytes();
            self.findings.padding = ending.padding();
        }
        Ok(())
    }
}

/// Faults that [`salvage`] found.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct LwsFindings {
    /// The length field is missing, wrong, or says that the program gave up.
    pub length: Option<LwsError>,
    /// The fault that ended decoding. Addresses or the size are missing.
    pub stopped: Option<LwsError>,
    /// Whole bytes after the size that nothing here reads.
    pub unused_bytes: Option<LwsError>,
    /// Padding bits that are not 0.
    pub padding: Option<LwsError>,
    /// The values that may be the remains of longer ones.
    pub suspected_losses: SuspectedLosses,
}

impl LwsFindings {
    /// Returns the faults for which a strict decoder refuses the blob, gravest first.
    pub fn faults(&self) -> impl Iterator<Item = LwsError> + use<> {
        [self.length, self.stopped, self.unused_bytes, self.padding].into_iter().flatten()
    }
}

/// Which values of a blob may be the remains of longer ones (finding `reference-64-bit-loss`).
///
/// In a field of k bits, k above 32, the 64-bit libwebsockets encoder of 2022 writes a 1 for bit
/// 31, and for the k-32 bits above it the lowest k-32 bits once more. Such a field is recognized by
/// its top k-32 bits, which equal its lowest k-32. A sound field of k bits resembles that by chance
/// once in 2^(k-32) cases, hence "suspected". The low 31 bits
/// ([`CERTAIN_BITS`](crate::lws::CERTAIN_BITS)) are right in any case.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SuspectedLosses(u32);

impl SuspectedLosses {
    /// The bit of the size; those below belong to the addresses.
    const SIZE: u32 = MAX_DEPTH as u32;

    /// Returns true when any value is under suspicion.
    #[must_use]
    pub const fn any(self) -> bool {
        self.0 != 0
    }

    /// Returns true if the address at `index`, or one it was computed from, is under suspicion.
    #[must_use]
    pub const fn address(self, index: usize) -> bool {
        index < MAX_DEPTH && self.0 >> index & 1 != 0
    }

    /// Returns true when the allocation size is under suspicion.
    #[must_use]
    pub const fn allocation_size(self) -> bool {
        self.0 >> Self::SIZE & 1 != 0
    }
}

/// Up to 31 return addresses, in place.
#[derive(Clone, Copy)]
pub struct AddressList {
    addresses: [AbsoluteAddress; MAX_DEPTH],
    count: usize,
}

impl AddressList {
    const fn new() -> Self {
        Self { addresses: [AbsoluteAddress::new(0); MAX_DEPTH], count: 0 }
    }

    #[inline]
    fn push(&mut self, address: u64) {
        // A blob cannot state a depth above 31, so the slot is always there.
        if let Some(slot) = self.addresses.get_mut(self.count) {
            *slot = AbsoluteAddress::new(address);
            self.count += 1;
        }
    }

    /// Returns the addresses as frames.
    pub fn frames(&self) -> impl Iterator<Item = Frame> + '_ {
        self.iter().copied().map(Frame::ReturnAddress)
    }
}

impl Deref for AddressList {
    type Target = [AbsoluteAddress];

    fn deref(&self) -> &[AbsoluteAddress] {
        self.addresses.get(..self.count).unwrap_or_default()
    }
}

impl PartialEq for AddressList {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for AddressList {}

impl fmt::Debug for AddressList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// Returns the fields before the length field, and its content.
fn split_length(bytes: &[u8]) -> Result<(&[u8], u16), LwsError> {
    match bytes.split_last_chunk() {
        Some((before, length)) => Ok((before, u16::from_be_bytes(*length))),
        None => Err(LwsError { offset_bits: 0, kind: LwsErrorKind::NoLength }),
    }
}

const fn bits_in(bytes: &[u8]) -> u64 {
    (bytes.len() as u64).saturating_mul(8)
}

#[cold]
fn cut_short(field_start: &BitReader<'_>) -> LwsError {
    LwsError { offset_bits: field_start.position_bits(), kind: LwsErrorKind::CutShort }
}

/// Returns the mark of the 64-bit encoder's fault in a field of `width` bits.
#[inline]
const fn loss_suspected(value: u64, width: u32) -> bool {
    // Equal top and bottom bits: their difference has none of the bottom ones set.
    width > 32 && (value >> 32 ^ value) & ((1 << (width - 32)) - 1) == 0
}
