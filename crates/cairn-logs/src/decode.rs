//! One kind of value for everything that can be decoded: [`StackRecord`], from bytes in a known
//! format, or from text that says itself what it is.

use std::fmt;

use cairn_format::{AbsoluteAddress, Frame, WordSize};
use cairn_wire::{base64, cbf, cif, lws, swift_json, xnu};

/// The formats that [`records`] reads.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Format {
    /// libwebsockets compressed backtrace.
    Lws,
    /// Compact Backtrace Format.
    Cbf,
    /// Compact ImageMap Format.
    Cif,
    /// XNU packed backtrace.
    Xnu,
    /// Swift's JSON around CBF and CIF.
    SwiftJson,
    /// Addresses as text: what cairn prints, and lines of nothing but addresses.
    Text,
}

impl Format {
    /// Returns the name that the command line uses.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lws => "lws",
            Self::Cbf => "cbf",
            Self::Cif => "cif",
            Self::Xnu => "xnu",
            Self::SwiftJson => "swift-json",
            Self::Text => "text",
        }
    }
}

/// Properties that the bytes do not state themselves.
#[derive(Clone, Copy, Debug)]
pub struct DecodeOptions {
    /// Word size of the machine, where the format does not state it.
    pub word_size: WordSize,
    /// Refuses input that the format's document does not allow, instead of reading as much as
    /// possible.
    pub strict: bool,
    /// How XNU packed its addresses.
    pub xnu_packing: xnu::Packing,
}

/// The decoded content.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record {
    /// A call stack.
    Stack(StackRecord),
    /// A list of modules without a stack.
    Images(ImageMap),
}

/// One call stack, from whatever format.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StackRecord {
    /// Where it came from.
    pub format: Format,
    /// Width of its addresses.
    pub word_size: WordSize,
    /// Size of the allocation that the stack belongs to, where the format has one.
    pub allocation_size_bytes: Option<u64>,
    /// The frames, innermost first, each with its number of repeats. A few bytes may claim 2^63
    /// repeats.
    pub runs: Vec<(Frame, u64)>,
    /// Name of the processor architecture, where the format has one.
    pub architecture: Option<String>,
    /// The modules, where the format has them.
    pub images: Option<ImageMap>,
    /// Faults of the record that did not prevent reading it.
    pub faults: Vec<DecodeError>,
    /// Indices in the stack of addresses with only 31 certain low bits. The 64-bit encoder of
    /// libwebsockets damages wide values.
    pub uncertain: Vec<usize>,
    /// The same encoder may have damaged the allocation size: do not add it up.
    pub is_size_uncertain: bool,
}

/// The modules of a process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ImageMap {
    /// The platform's name, such as `Linux`.
    pub platform: String,
    /// Width of the addresses.
    pub word_size: WordSize,
    /// The modules in the order of the record.
    pub images: Vec<Image>,
    /// Faults of the map that did not prevent reading it.
    pub faults: Vec<DecodeError>,
}

/// One module of a process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Image {
    /// Where it begins.
    pub base: AbsoluteAddress,
    /// Where its code ends.
    pub end_of_text: AbsoluteAddress,
    /// Its build id, if any.
    pub build_id: Option<Vec<u8>>,
    /// Its path, if any. Bytes that are no UTF-8 are replaced.
    pub path: Option<String>,
}

/// Why something could not be decoded, or not fully.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DecodeError {
    /// The text of a marked backtrace is damaged.
    Text(lws::log_line::TextError),
    /// A libwebsockets blob is damaged.
    Lws(lws::LwsError),
    /// A CBF record is damaged.
    Cbf(cbf::CbfError),
    /// A CIF record is damaged.
    Cif(cif::CifError),
    /// The size of an XNU buffer does not fit its packing.
    Xnu(xnu::UnpackError),
    /// The JSON is damaged.
    SwiftJson(swift_json::SwiftJsonError),
    /// The base64 text inside the JSON is damaged.
    Base64(base64::Base64Error),
    /// Values of a libwebsockets blob are as its 64-bit encoder writes the remains of longer ones.
    SuspectedLoss {
        /// How many addresses.
        addresses: usize,
        /// Whether the allocation size is one of the values.
        size: bool,
    },
    /// The paths of an image map are, put together, far longer than the map itself; the rest is
    /// left out.
    PathsTooLong {
        /// Where the first image without its path is in the map.
        offset: usize,
        /// The most bytes that the paths of this map may have together.
        limit_bytes: usize,
    },
    /// A line holds no addresses in text form.
    NoAddresses,
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(error) => error.fmt(f),
            Self::Lws(error) => write!(f, "bad blob: {error}"),
            Self::Cbf(error) => write!(f, "bad CBF record: {error}"),
            Self::Cif(error) => write!(f, "bad CIF record: {error}"),
            Self::Xnu(error) => write!(f, "bad XNU buffer: {error}"),
            Self::SwiftJson(error) => write!(f, "bad Swift JSON: {error}"),
            Self::Base64(error) => error.fmt(f),
            Self::SuspectedLoss { addresses, size } => write_loss(f, *addresses, *size),
            Self::PathsTooLong { offset, limit_bytes } => write!(
                f,
                "the paths of this image map have more than {limit_bytes} bytes together; they are left out from the \
                 image at byte {offset} on"
            ),
            Self::NoAddresses => f.write_str("a line without addresses such as 0x1000"),
        }
    }
}

/// Says which values of a blob are in doubt, and why.
fn write_loss(f: &mut fmt::Formatter<'_>, addresses: usize, size: bool) -> fmt::Result {
    match (addresses, size) {
        (0, _) => f.write_str("the size is")?,
        (1, false) => f.write_str("1 address is")?,
        (1, true) => f.write_str("1 address and the size are")?,
        (count, false) => write!(f, "{count} addresses are")?,
        (count, true) => write!(f, "{count} addresses and the size are")?,
    }
    f.write_str(
        " uncertain (marked with ?): a 64-bit libwebsockets damages values of more than 31 bits in this way, and at most \
         their low 31 bits are right",
    )
}

impl std::error::Error for DecodeError {}

impl Record {
    /// Returns what is wrong with it although something could be read.
    pub fn faults(&self) -> impl Iterator<Item = &DecodeError> {
        let (of_stack, images) = match self {
            Self::Stack(stack) => (&stack.faults[..], stack.images.as_ref()),
            Self::Images(images) => (&[][..], Some(images)),
        };
        of_stack.iter().chain(images.into_iter().flat_map(|images| &images.faults))
    }
}

impl StackRecord {
    pub(crate) fn new(format: Format, word_size: WordSize) -> Self {
        Self {
            format,
            word_size,
            allocation_size_bytes: None,
            runs: Vec::new(),
            architecture: None,
            images: None,
            faults: Vec::new(),
            uncertain: Vec::new(),
            is_size_uncertain: false,
        }
    }

    fn return_addresses(
        format: Format,
        word_size: WordSize,
        addresses: impl IntoIterator<Item = AbsoluteAddress>,
    ) -> Self {
        let runs = addresses.into_iter().map(|address| (Frame::ReturnAddress(address), 1)).collect();
        Self { runs, ..Self::new(format, word_size) }
    }

    /// Returns the addresses of all frames that have one, without expanding repeats beyond `limit`.
    pub fn addresses(&self, limit: usize) -> impl Iterator<Item = AbsoluteAddress> + '_ {
        // Run by run: a mark without an address may be repeated 2^63 times.
        let runs = self.runs.iter().filter_map(|&(frame, count)| Some((frame.address()?, count)));
        runs.flat_map(|(address, count)| (0..count).map(move |_| address)).take(limit)
    }

    /// Adds one frame of a text.
    fn push_text(&mut self, frame: lws::log_line::TextFrame) {
        if frame.is_uncertain {
            self.uncertain.push(self.runs.len());
        }
        self.runs.push((frame.frame, 1));
    }

    /// Adds the fault of uncertain values, if there are any.
    fn note_uncertain(&mut self) {
        if self.is_size_uncertain || !self.uncertain.is_empty() {
            let (addresses, size) = (self.uncertain.len(), self.is_size_uncertain);
            self.faults.push(DecodeError::SuspectedLoss { addresses, size });
        }
    }

    /// Returns how many frames there are, repeats counted.
    #[must_use]
    pub fn frame_count(&self) -> u64 {
        self.runs.iter().fold(0, |total, (_, count)| total.saturating_add(*count))
    }

    /// Returns the frames, repeats expanded: there may be 2^63 of them.
    pub fn frames(&self) -> impl Iterator<Item = Frame> + '_ {
        self.runs.iter().flat_map(|&(frame, count)| (0..count).map(move |_| frame))
    }
}

/// Decodes a backtrace found in a log line; `buffer` is best [`lws::log_line::BUFFER_BYTES`] long.
///
/// # Errors
///
/// [`DecodeError::Text`] if nothing can be decoded. Otherwise the record's faults list what is
/// wrong.
pub fn mark(
    mark: &lws::log_line::Mark<'_>,
    options: &DecodeOptions,
    buffer: &mut [u8],
) -> Result<StackRecord, DecodeError> {
    match mark {
        lws::log_line::Mark::Compressed(text) => {
            let base64_start = text.range().end - text.base64().len();
            let salvage = text.salvage(options.word_size, buffer).map_err(DecodeError::Text)?;
            let in_text = |error| {
                DecodeError::Text(lws::log_line::TextError {
                    offset: base64_start,
                    kind: lws::log_line::TextErrorKind::Blob(error),
                })
            };
            salvaged(&salvage, options, in_text)
        }
        lws::log_line::Mark::Decoded(text) => {
            let (size, frames) = text.frames().map_err(DecodeError::Text)?;
            let format = if size.is_some() { Format::Lws } else { Format::Text };
            let mut record = StackRecord::new(format, options.word_size);
            record.allocation_size_bytes = size.map(|size| size.bytes);
            record.is_size_uncertain = size.is_some_and(|size| size.is_uncertain);
            for frame in frames {
                match frame {
                    Ok(frame) => record.push_text(frame),
                    Err(error) => record.faults.push(DecodeError::Text(error)),
                }
            }
            record.note_uncertain();
            Ok(record)
        }
    }
}

/// Reads a line of addresses only, such as `0x1000 pc:0x2000`; `None` for other lines. White space
/// or commas separate the addresses.
///
/// ```
/// use cairn_logs::decode::{DecodeOptions, address_line};
/// use cairn_format::{AbsoluteAddress, WordSize};
/// use cairn_wire::xnu;
/// let options = DecodeOptions { word_size: WordSize::Bits64, strict: false, xnu_packing: xnu::Packing::None };
/// let record = address_line(b" 0x1000, 0x2000\r", &options).unwrap();
/// assert!(record.addresses(9).eq([0x1000, 0x2000].map(AbsoluteAddress::new)));
/// assert!(address_line(b"0x1000 in main", &options).is_none());
/// ```
#[must_use]
pub fn address_line(line: &[u8], options: &DecodeOptions) -> Option<StackRecord> {
    let is_separator = |byte: &u8| byte.is_ascii_whitespace() || *byte == b',';
    let mut record = StackRecord::new(Format::Text, options.word_size);
    let mut has_address = false;
    for token in line.split(is_separator).filter(|token| !token.is_empty()) {
        let in_line = |error: lws::log_line::TextError| {
            let start = token.as_ptr().addr().saturating_sub(line.as_ptr().addr());
            DecodeError::Text(lws::log_line::TextError { offset: error.offset + start, ..error })
        };
        match lws::log_line::parse_frame(token)? {
            Ok(frame) => record.push_text(frame),
            Err(error) => record.faults.push(in_line(error)),
        }
        has_address |= !token.starts_with(b"...");
    }
    record.note_uncertain();
    has_address.then_some(record)
}

/// Converts the salvaged part of a blob into a record, unless it is empty.
fn salvaged(
    salvage: &lws::Salvage,
    options: &DecodeOptions,
    place: impl Fn(lws::LwsError) -> DecodeError,
) -> Result<StackRecord, DecodeError> {
    let faults: Vec<_> = salvage.findings.faults().map(place).collect();
    match faults.first() {
        // A size is worth having without addresses, too: the allocation is in the totals.
        Some(&fault) if options.strict || is_empty(salvage) => return Err(fault),
        _ => {}
    }
    let suspected = salvage.findings.suspected_losses;
    let misread_from = misread_from(salvage);
    let is_uncertain = |index| suspected.address(index) || misread_from.is_some_and(|first| first <= index);
    let mut record = StackRecord {
        allocation_size_bytes: salvage.allocation_size_bytes,
        faults,
        uncertain: (0..salvage.addresses.len()).filter(|&index| is_uncertain(index)).collect(),
        is_size_uncertain: suspected.allocation_size() || misread_from.is_some(),
        ..StackRecord::return_addresses(Format::Lws, options.word_size, salvage.addresses.iter().copied())
    };
    record.note_uncertain();
    Ok(record)
}

/// Index of the first misread value of a blob, counted in addresses. The size follows the last
/// address.
///
/// The 64-bit encoder of libwebsockets states the width of a 64-bit value, such as a kernel
/// address, as 0, and writes its 64 bits in spite of that. The value reads as 0, and what follows
/// from its bits, so that bytes are left over at the end or missing. No stack holds the address 0,
/// and no encoder states a width of 0 for any other value.
fn misread_from(salvage: &lws::Salvage) -> Option<usize> {
    let findings = &salvage.findings;
    let is_out_of_step = findings.unused_bytes.is_some() || findings.stopped.is_some();
    let zero = salvage.addresses.iter().position(|address| address.value() == 0);
    let size = (salvage.allocation_size_bytes == Some(0)).then_some(salvage.addresses.len());
    zero.or(size).filter(|_| is_out_of_step)
}

fn is_empty(salvage: &lws::Salvage) -> bool {
    salvage.allocation_size_bytes.is_none() && salvage.addresses.is_empty()
}

/// Decodes all records in `bytes`, which are of a known format, and hands each to `found`.
///
/// # Errors
///
/// Fault that stopped the decoder. Records before it were yielded.
pub fn records(
    format: Format,
    bytes: &[u8],
    options: &DecodeOptions,
    mut found: impl FnMut(Record),
) -> Result<(), DecodeError> {
    match format {
        Format::Lws => {
            let salvage = lws::salvage(bytes, options.word_size);
            found(Record::Stack(salvaged(&salvage, options, DecodeError::Lws)?));
        }
        Format::Xnu => {
            let strict = xnu::unpack(bytes, options.xnu_packing);
            let addresses = match strict {
                Err(error) if options.strict => return Err(DecodeError::Xnu(error)),
                _ => xnu::unpack_lenient(bytes, options.xnu_packing),
            };
            let mut record = StackRecord::return_addresses(format, WordSize::Bits64, addresses);
            record.faults.extend(strict.err().map(DecodeError::Xnu));
            found(Record::Stack(record));
        }
        Format::Cbf => {
            for record in cbf::Records::new(bytes) {
                // After a refused byte the start of the next record is unknown: the decoder
                // gets to say why.
                let refused = matches!(record.ending, cbf::RecordEnding::Refused(_));
                let rest = bytes.get(record.offset..).unwrap_or_default();
                let bytes = if refused { rest } else { record.bytes };
                found(Record::Stack(cbf_record(bytes, record.offset, options)?));
            }
        }
        Format::Cif => found(Record::Images(image_map(bytes, options)?)),
        Format::SwiftJson => found(Record::Stack(swift_json_record(bytes, options)?)),
        Format::Text => {
            for line in bytes.split(|&byte| byte == b'\n').filter(|line| !line.trim_ascii().is_empty()) {
                let decoded = lws::log_line::marks(line)
                    .next()
                    .map(|mark| self::mark(&mark, options, &mut [0; lws::log_line::BUFFER_BYTES]));
                let record = match decoded {
                    Some(record) => record?,
                    None => address_line(line, options).ok_or(DecodeError::NoAddresses)?,
                };
                found(Record::Stack(record));
            }
        }
    }
    Ok(())
}

/// Decodes one CBF record, which is at `offset` in its input.
fn cbf_record(bytes: &[u8], offset: usize, options: &DecodeOptions) -> Result<StackRecord, DecodeError> {
    let rules = if options.strict { cbf::Rules::STRICT } else { cbf::Rules::LENIENT };
    let in_input = |error: cbf::CbfError| {
        DecodeError::Cbf(cbf::CbfError { offset: error.offset.saturating_add(offset), ..error })
    };
    let decoder = cbf::CbfDecoder::new(bytes, rules);
    let mut record = StackRecord::new(Format::Cbf, decoder.word_size().unwrap_or(options.word_size));
    let mut runs = decoder.runs();
    for run in runs.by_ref() {
        let (frame, count) = run.map_err(in_input)?;
        // A repeat comes as a run of its own.
        match record.runs.last_mut() {
            Some((last, total)) if *last == frame && count <= u64::MAX - *total => *total += count,
            _ => record.runs.push((frame, count)),
        }
    }
    // Swift writes the first address relative, whatever its document says: nothing to complain
    // about.
    let is_fault = |error: &cbf::CbfError| error.kind != cbf::CbfErrorKind::FirstAddressRelative;
    record.faults = runs.findings().iter().filter(is_fault).map(in_input).collect();
    match record.faults.last() {
        Some(&fault) if record.runs.is_empty() => Err(fault),
        _ => Ok(record),
    }
}

/// The paths of a map may be, put together, as long as this and [`PATH_BYTES_PER_BYTE`] times the
/// map.
///
/// Prefix codes let two bytes represent a path of 128 KiB. The maps of real processes unfold to
/// four times their size; 4 MiB hold the paths of forty thousand images.
const MIN_PATH_BYTES: usize = 4 << 20;

/// See [`MIN_PATH_BYTES`].
const PATH_BYTES_PER_BYTE: usize = 16;

/// Decodes one image map.
fn image_map(bytes: &[u8], options: &DecodeOptions) -> Result<ImageMap, DecodeError> {
    let mut slots = vec![cif::DecoderSlot::EMPTY; cif::slots_needed(bytes)];
    let decoder = if options.strict {
        cif::CifDecoder::strict(bytes, &mut slots)
    } else {
        cif::CifDecoder::lenient(bytes, &mut slots)
    };
    let mut decoder = decoder.map_err(DecodeError::Cif)?;
    let mut map = ImageMap {
        platform: String::from_utf8_lossy(decoder.platform()).into_owned(),
        word_size: decoder.word_size(),
        images: Vec::new(),
        faults: decoder.findings().iter().copied().map(DecodeError::Cif).collect(),
    };
    let limit_bytes = bytes.len().saturating_mul(PATH_BYTES_PER_BYTE).saturating_add(MIN_PATH_BYTES);
    let mut room = limit_bytes;
    for image in decoder.by_ref() {
        match image {
            Ok(image) => {
                map.faults.extend(image.findings().iter().copied().map(DecodeError::Cif));
                let (module, offset) = (image.module, image.offset);
                let path = match module.path.map(|path| (path, room.checked_sub(path.len()))) {
                    Some((path, Some(left))) => {
                        room = left;
                        Some(path.bytes().collect::<Vec<_>>())
                    }
                    Some((_, None)) if options.strict => {
                        return Err(DecodeError::PathsTooLong { offset, limit_bytes });
                    }
                    Some((_, None)) => {
                        // One fault for all: no path fits into no room.
                        if room > 0 {
                            map.faults.push(DecodeError::PathsTooLong { offset, limit_bytes });
                        }
                        room = 0;
                        None
                    }
                    None => None,
                };
                map.images.push(Image {
                    base: module.base,
                    end_of_text: module.end,
                    build_id: module.build_id.map(<[u8]>::to_vec),
                    path: path.map(|path| String::from_utf8_lossy(&path).into_owned()),
                });
            }
            Err(error) if options.strict => return Err(DecodeError::Cif(error)),
            Err(error) => map.faults.push(DecodeError::Cif(error)),
        }
    }
    Ok(map)
}

/// Returns the format that `bytes` are in, if they are a sound record of one. Only formats that
/// give themselves away are tried.
#[must_use]
pub fn guess(bytes: &[u8], options: &DecodeOptions) -> Option<Format> {
    if lws::decode(bytes, options.word_size).is_ok_and(|backtrace| !backtrace.addresses.is_empty()) {
        return Some(Format::Lws);
    }
    let strict = DecodeOptions { strict: true, ..*options };
    let is_stack = |record: StackRecord| {
        // By runs: a mark without an address may be repeated 2^63 times.
        record.faults.is_empty() && record.runs.iter().any(|(frame, _)| frame.address().is_some())
    };
    if cbf_record(bytes, 0, options).is_ok_and(is_stack) {
        return Some(Format::Cbf);
    }
    image_map(bytes, &strict).is_ok_and(|map| !map.images.is_empty()).then_some(Format::Cif)
}

/// Decodes Swift's JSON: the stack, and the image map where there is one.
fn swift_json_record(bytes: &[u8], options: &DecodeOptions) -> Result<StackRecord, DecodeError> {
    let document = swift_json::read(bytes).map_err(DecodeError::SwiftJson)?;
    let binary = |text: swift_json::JsonText<'_>| {
        text.base64_bytes().collect::<Result<Vec<_>, _>>().map_err(DecodeError::Base64)
    };
    let mut record = cbf_record(&binary(document.backtrace)?, 0, options)?;
    record.format = Format::SwiftJson;
    record.architecture = Some(document.architecture.to_string());
    record.images = match document.image_map {
        Some(text) => Some(image_map(&binary(text)?, options)?),
        None => None,
    };
    Ok(record)
}
