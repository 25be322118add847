//! One kind of value for everything that can be decoded: [`StackRecord`], from bytes in a known format, or from text that
//! says itself what it is.

use std::fmt;

use cairn_format::{AbsoluteAddress, Frame, WordSize, base64, cbf, cif, lws, swift_json, xnu};

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
}

impl Format {
    /// The name that the command line uses.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lws => "lws",
            Self::Cbf => "cbf",
            Self::Cif => "cif",
            Self::Xnu => "xnu",
            Self::SwiftJson => "swift-json",
        }
    }
}

/// What the bytes do not say of themselves.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Word size of the machine, where the format does not state it.
    pub word_size: WordSize,
    /// Refuse what the format's document does not allow, rather than take what can be had.
    pub strict: bool,
    /// How XNU packed its addresses.
    pub xnu_packing: xnu::Packing,
}

/// What was decoded.
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
    /// The frames, innermost first, each with how often it comes in a row: a few bytes may claim 2^63 repeats.
    pub runs: Vec<(Frame, u64)>,
    /// Name of the processor architecture, where the format has one.
    pub architecture: Option<String>,
    /// The modules, where the format has them.
    pub images: Option<ImageMap>,
    /// What is wrong with the record although something could be read of it.
    pub faults: Vec<Error>,
    /// The addresses (by their place in the stack) of which only the low 31 bits are certain, because the 64-bit
    /// encoder of libwebsockets damages wide values.
    pub uncertain: Vec<usize>,
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
    /// What is wrong with the map although something could be read of it.
    pub faults: Vec<Error>,
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
pub enum Error {
    /// The text of a marked backtrace is damaged.
    Text(lws::log_line::TextError),
    /// A libwebsockets blob is damaged.
    Lws(lws::DecodeError),
    /// A CBF record is damaged.
    Cbf(cbf::DecodeError),
    /// A CIF record is damaged.
    Cif(cif::DecodeError),
    /// The size of an XNU buffer does not fit its packing.
    Xnu(xnu::UnpackError),
    /// The JSON is damaged.
    SwiftJson(swift_json::ReadError),
    /// The base64 text inside the JSON is damaged.
    Base64(base64::DecodeError),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(error) => error.fmt(f),
            Self::Lws(error) => write!(f, "bad blob: {error}"),
            Self::Cbf(error) => write!(f, "bad CBF record: {error}"),
            Self::Cif(error) => write!(f, "bad CIF record: {error}"),
            Self::Xnu(error) => write!(f, "bad XNU buffer: {error}"),
            Self::SwiftJson(error) => write!(f, "bad Swift JSON: {error}"),
            Self::Base64(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {}

impl Record {
    /// What is wrong with it although something could be read.
    pub fn faults(&self) -> impl Iterator<Item = &Error> {
        let (of_stack, images) = match self {
            Self::Stack(stack) => (&stack.faults[..], stack.images.as_ref()),
            Self::Images(images) => (&[][..], Some(images)),
        };
        of_stack.iter().chain(images.into_iter().flat_map(|images| &images.faults))
    }
}

impl StackRecord {
    fn new(format: Format, word_size: WordSize) -> Self {
        Self {
            format,
            word_size,
            allocation_size_bytes: None,
            runs: Vec::new(),
            architecture: None,
            images: None,
            faults: Vec::new(),
            uncertain: Vec::new(),
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

    /// The addresses of all frames that have one, without expanding repeats beyond `limit`.
    pub fn addresses(&self, limit: usize) -> impl Iterator<Item = AbsoluteAddress> + '_ {
        self.frames().filter_map(Frame::address).take(limit)
    }

    /// How many frames there are, repeats counted.
    #[must_use]
    pub fn frame_count(&self) -> u64 {
        self.runs.iter().fold(0, |total, (_, count)| total.saturating_add(*count))
    }

    /// The frames, repeats expanded: there may be 2^63 of them.
    pub fn frames(&self) -> impl Iterator<Item = Frame> + '_ {
        self.runs.iter().flat_map(|&(frame, count)| (0..count).map(move |_| frame))
    }
}

/// Decodes a backtrace found in a log line; `buffer` is best [`lws::log_line::BUFFER_BYTES`] long.
///
/// # Errors
///
/// [`Error::Text`] when nothing can be had of it. When something can, the record's faults say what is wrong.
pub fn mark(
    mark: &lws::log_line::Mark<'_>,
    options: &Options,
    buffer: &mut [u8],
) -> Result<StackRecord, Error> {
    match mark {
        lws::log_line::Mark::Compressed(text) => {
            let base64_start = text.range().end - text.base64().len();
            let salvage = text.salvage(options.word_size, buffer).map_err(Error::Text)?;
            let in_text = |error| {
                Error::Text(lws::log_line::TextError {
                    offset: base64_start,
                    kind: lws::log_line::TextErrorKind::Blob(error),
                })
            };
            salvaged(&salvage, options, in_text)
        }
        lws::log_line::Mark::Decoded(text) => {
            let (size_bytes, addresses) = text.parse().map_err(Error::Text)?;
            let mut record = StackRecord::new(Format::Lws, options.word_size);
            record.allocation_size_bytes = Some(size_bytes);
            for address in addresses {
                match address {
                    Ok(address) => record.runs.push((Frame::ReturnAddress(address), 1)),
                    Err(error) => record.faults.push(Error::Text(error)),
                }
            }
            Ok(record)
        }
    }
}

/// Turns what could be had of a blob into a record, unless that is nothing.
fn salvaged(
    salvage: &lws::Salvage,
    options: &Options,
    place: impl Fn(lws::DecodeError) -> Error,
) -> Result<StackRecord, Error> {
    let faults: Vec<_> = salvage.findings.faults().map(place).collect();
    match faults.first() {
        Some(&fault) if salvage.addresses.is_empty() || options.strict => return Err(fault),
        _ => {}
    }
    let suspected = salvage.findings.suspected_losses;
    Ok(StackRecord {
        allocation_size_bytes: salvage.allocation_size_bytes,
        faults,
        uncertain: (0..salvage.addresses.len()).filter(|&index| suspected.address(index)).collect(),
        ..StackRecord::return_addresses(Format::Lws, options.word_size, salvage.addresses.iter().copied())
    })
}

/// Decodes all records in `bytes`, which are of a known format, and hands each to `found`.
///
/// # Errors
///
/// What stopped the decoder. Records before it were handed out.
pub fn records(
    format: Format,
    bytes: &[u8],
    options: &Options,
    mut found: impl FnMut(Record),
) -> Result<(), Error> {
    match format {
        Format::Lws => {
            let salvage = lws::salvage(bytes, options.word_size);
            found(Record::Stack(salvaged(&salvage, options, Error::Lws)?));
        }
        Format::Xnu => {
            let strict = xnu::unpack(bytes, options.xnu_packing);
            let addresses = match strict {
                Err(error) if options.strict => return Err(Error::Xnu(error)),
                _ => xnu::unpack_lenient(bytes, options.xnu_packing),
            };
            let mut record = StackRecord::return_addresses(format, WordSize::Bits64, addresses);
            record.faults.extend(strict.err().map(Error::Xnu));
            found(Record::Stack(record));
        }
        Format::Cbf => {
            for record in cbf::Records::new(bytes) {
                // Behind a byte that was refused nothing tells where a record begins: the decoder gets to say why.
                let refused = matches!(record.ending, cbf::Ending::Refused(_));
                let rest = bytes.get(record.offset..).unwrap_or_default();
                let bytes = if refused { rest } else { record.bytes };
                found(Record::Stack(cbf_record(bytes, record.offset, options)?));
            }
        }
        Format::Cif => found(Record::Images(image_map(bytes, options)?)),
        Format::SwiftJson => found(Record::Stack(swift_json_record(bytes, options)?)),
    }
    Ok(())
}

/// Decodes one CBF record, which stands at `offset` in its input.
fn cbf_record(bytes: &[u8], offset: usize, options: &Options) -> Result<StackRecord, Error> {
    let rules = if options.strict { cbf::Rules::STRICT } else { cbf::Rules::LENIENT };
    let in_input = |error: cbf::DecodeError| {
        Error::Cbf(cbf::DecodeError { offset: error.offset.saturating_add(offset), ..error })
    };
    let decoder = cbf::Decoder::new(bytes, rules);
    let mut record = StackRecord::new(Format::Cbf, decoder.word_size().unwrap_or(options.word_size));
    let mut runs = decoder.runs();
    for run in runs.by_ref() {
        let (frame, count) = run.map_err(in_input)?;
        // A repeat comes as a run of its own.
        match record.runs.last_mut() {
            Some((last, total)) if *last == frame => *total = total.saturating_add(count),
            _ => record.runs.push((frame, count)),
        }
    }
    // Swift writes the first address relative, whatever its document says: nothing to complain about.
    let is_fault = |error: &cbf::DecodeError| error.kind != cbf::DecodeErrorKind::FirstAddressRelative;
    record.faults = runs.findings().iter().filter(is_fault).map(in_input).collect();
    match record.faults.last() {
        Some(&fault) if record.runs.is_empty() => Err(fault),
        _ => Ok(record),
    }
}

/// Decodes one image map.
fn image_map(bytes: &[u8], options: &Options) -> Result<ImageMap, Error> {
    let mut slots = vec![cif::DecoderSlot::EMPTY; cif::slots_needed(bytes)];
    let decoder = if options.strict {
        cif::Decoder::strict(bytes, &mut slots)
    } else {
        cif::Decoder::lenient(bytes, &mut slots)
    };
    let mut decoder = decoder.map_err(Error::Cif)?;
    let mut map = ImageMap {
        platform: String::from_utf8_lossy(decoder.platform()).into_owned(),
        word_size: decoder.word_size(),
        images: Vec::new(),
        faults: decoder.findings().iter().copied().map(Error::Cif).collect(),
    };
    for image in decoder.by_ref() {
        match image {
            Ok(image) => {
                map.faults.extend(image.findings().iter().copied().map(Error::Cif));
                let module = image.module;
                let path = module.path.map(|path| path.bytes().collect::<Vec<_>>());
                map.images.push(Image {
                    base: module.base,
                    end_of_text: module.end,
                    build_id: module.build_id.map(<[u8]>::to_vec),
                    path: path.map(|path| String::from_utf8_lossy(&path).into_owned()),
                });
            }
            Err(error) if options.strict => return Err(Error::Cif(error)),
            Err(error) => map.faults.push(Error::Cif(error)),
        }
    }
    Ok(map)
}

/// The format that `bytes` are in, if they are a sound record of one. Only formats that give themselves away are tried.
#[must_use]
pub fn guess(bytes: &[u8], options: &Options) -> Option<Format> {
    if lws::decode(bytes, options.word_size).is_ok_and(|backtrace| !backtrace.addresses.is_empty()) {
        return Some(Format::Lws);
    }
    let strict = Options { strict: true, ..*options };
    let is_stack = |record: StackRecord| {
        record.faults.is_empty() && record.frames().any(|frame| frame.address().is_some())
    };
    if cbf_record(bytes, 0, options).is_ok_and(is_stack) {
        return Some(Format::Cbf);
    }
    image_map(bytes, &strict).is_ok_and(|map| !map.images.is_empty()).then_some(Format::Cif)
}

/// Decodes Swift's JSON: the stack, and the image map where there is one.
fn swift_json_record(bytes: &[u8], options: &Options) -> Result<StackRecord, Error> {
    let document = swift_json::read(bytes).map_err(Error::SwiftJson)?;
    let binary = |text: swift_json::JsonText<'_>| {
        text.base64_bytes().collect::<Result<Vec<_>, _>>().map_err(Error::Base64)
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
