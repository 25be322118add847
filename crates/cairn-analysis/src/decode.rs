//! One kind of value for everything that can be decoded: [`StackRecord`], from bytes in a known format, or from text that
//! says itself what it is.

use std::fmt;

use cairn_format::{AbsoluteAddress, Frame, WordSize, base64, cbf, cif, lws, swift_json, xnu};

/// The formats that [`bytes`] reads.
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
    SwiftJson(swift_json::Error),
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

    fn return_addresses(format: Format, word_size: WordSize, addresses: impl IntoIterator<Item = AbsoluteAddress>) -> Self {
        let runs = addresses.into_iter().map(|address| (Frame::ReturnAddress(address), 1)).collect();
        Self { runs, ..Self::new(format, word_size) }
    }

    /// The addresses of all frames that have one, without expanding repeats beyond `limit`.
    pub fn addresses(&self, limit: usize) -> impl Iterator<Item = AbsoluteAddress> + '_ {
        self.frames().filter_map(Frame::address).take(limit)
    }

    /// The frames, repeats expanded: there may be 2^63 of them.
    pub fn frames(&self) -> impl Iterator<Item = Frame> + '_ {
        self.runs.iter().flat_map(|&(frame, count)| (0..count).map(move |_| frame))
    }
}
