//! From a decoded record to the bytes of any format, and what is lost on the way.

use std::fmt;

use cairn_format::{AbsoluteAddress, Frame, Module, Sink, SinkFull, WordSize};
use cairn_wire::{base64, cbf, cif, lws, swift_json, xnu};

use crate::decode::{Format, Image, ImageMap, Record, StackRecord};

/// Grows with what is written into it.
#[derive(Default)]
struct VecSink(Vec<u8>);

impl Sink for VecSink {
    fn put(&mut self, bytes: &[u8]) -> Result<(), SinkFull> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }
}

/// More frames than this are not written into formats that spell each one out.
const MAX_FRAMES: usize = 1 << 20;

/// Maximum repeats of frames in one CBF record; 2^26, which takes 64 instructions of a million
/// each. A stack of 1 GiB with the smallest frames there are has as many.
const MAX_REPEATS: u64 = 1 << 26;

/// More frames of one stack than this are counted, not printed.
const MAX_TEXT_FRAMES: u64 = 1 << 16;

/// A record in another format.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Converted {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// Content that the target cannot hold.
    pub losses: Vec<Loss>,
}

/// Something that the target format cannot hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Loss {
    /// Frames beyond the depth that the format allows.
    OuterFrames {
        /// How many.
        count: u64,
    },
    /// Marks for omitted or missing frames, in a format that knows addresses only.
    Marks {
        /// How many.
        count: u64,
    },
    /// The modules.
    Images,
    /// Repeats of frames beyond those that any stack has; a mark for omitted frames represents
    /// them.
    Repeats {
        /// How many.
        count: u64,
    },
    /// Doubts about addresses, in a format that has no mark for them.
    Doubts {
        /// How many addresses.
        count: u64,
    },
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OuterFrames { count } => {
                write!(f, "the {count} outermost frames are left out: the target format holds no more")
            }
            Self::Marks { count } => {
                write!(
                    f,
                    "{count} marks for omitted frames are left out: the target format holds addresses only"
                )
            }
            Self::Images => {
                f.write_str("the list of images is left out: the target format holds a stack only")
            }
            Self::Repeats { count } => {
                write!(
                    f,
                    "{count} repeats of frames are written as a mark for omitted frames: no stack has as many"
                )
            }
            Self::Doubts { count } => {
                write!(
                    f,
                    "{count} uncertain addresses are written as they were read: the target format has no mark for them"
                )
            }
        }
    }
}

/// Why a record cannot be converted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ConvertError {
    /// The record has no stack, or no images, and the target is made of these.
    NothingToHold,
    /// Swift's JSON must name an architecture, and none is known.
    NoArchitecture,
    /// The libwebsockets format cannot hold a value.
    Lws(lws::LwsEncodeError),
    /// CBF cannot hold a frame.
    Cbf(cbf::CbfEncodeError),
    /// CIF cannot hold an image.
    Cif(cif::CifEncodeError),
    /// XNU's packing cannot hold an address.
    Xnu(xnu::PackError),
}

impl fmt::Display for ConvertError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NothingToHold => f.write_str("nothing in this record can be held by the target format"),
            Self::NoArchitecture => f.write_str("the architecture is not known; name it with --architecture"),
            Self::Lws(error) => error.fmt(f),
            Self::Cbf(error) => error.fmt(f),
            Self::Cif(error) => error.fmt(f),
            Self::Xnu(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ConvertError {}

/// ConvertOptions of a conversion.
#[derive(Clone, Copy, Debug)]
pub struct ConvertOptions<'a> {
    /// Architecture to name where the record has none.
    pub architecture: Option<&'a str>,
    /// Dialect of the CBF bytes to write.
    pub dialect: cbf::CbfDialect,
    /// How XNU packs addresses.
    pub xnu_packing: xnu::Packing,
}

/// Writes `record` in another format.
///
/// # Errors
///
/// [`ConvertError`] when the target cannot hold the record at all. [`Converted::losses`] lists the
/// content that it cannot hold.
pub fn convert(
    record: &Record,
    format: Format,
    options: &ConvertOptions<'_>,
) -> Result<Converted, ConvertError> {
    let mut losses = Vec::new();
    let bytes = match (format, record) {
        (Format::Cif, Record::Images(map)) => image_map(map)?,
        (Format::Cif, Record::Stack(StackRecord { images: Some(map), .. })) => image_map(map)?,
        (_, Record::Images(_)) | (Format::Cif, _) => return Err(ConvertError::NothingToHold),
        (Format::Lws, Record::Stack(stack)) => lws_blob(stack, &mut losses)?,
        (Format::Xnu, Record::Stack(stack)) => xnu_buffer(stack, options, &mut losses)?,
        (Format::Cbf, Record::Stack(stack)) => cbf_record(stack, stack.word_size, options, &mut losses)?,
        (Format::SwiftJson, Record::Stack(stack)) => swift_json(stack, options, &mut losses)?,
        (Format::Text, Record::Stack(stack)) => TextLine { stack, with_kinds: true }.to_string().into_bytes(),
    };
    if let Record::Stack(stack) = record {
        if stack.images.is_some() && !matches!(format, Format::SwiftJson | Format::Cif) {
            losses.push(Loss::Images);
        }
        // Damaged values carry their sign in the bits of a libwebsockets blob themselves.
        let count = stack.uncertain.len() as u64;
        if count > 0 && matches!(format, Format::Xnu | Format::Cbf | Format::SwiftJson) {
            losses.push(Loss::Doubts { count });
        }
    }
    Ok(Converted { bytes, losses })
}

/// A stack as a line of text, as `~b#size: 16, 0x1000 0x2000 `, which
/// [`decode::mark`](crate::decode::mark) reads back.
///
/// A `?` follows uncertain numbers. With kinds, `pc:`, `ra:` or `async:` comes before each address;
/// without, all addresses come back as return addresses. Frames beyond 65536 are counted.
///
/// ```
/// use cairn_logs::convert::TextLine;
/// use cairn_logs::decode::{DecodeOptions, address_line};
/// use cairn_format::WordSize;
/// use cairn_wire::xnu;
/// let options = DecodeOptions { word_size: WordSize::Bits64, strict: false, xnu_packing: xnu::Packing::None };
/// let stack = &address_line(b"pc:0x1000 0x2000", &options).unwrap();
/// assert_eq!(TextLine { stack, with_kinds: true }.to_string(), "~b#pc:0x1000 ra:0x2000 ");
/// assert_eq!(TextLine { stack, with_kinds: false }.to_string(), "~b#0x1000 0x2000 ");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct TextLine<'a> {
    /// The stack.
    pub stack: &'a StackRecord,
    /// Whether the kind of each frame is written.
    pub with_kinds: bool,
}

impl fmt::Display for TextLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = |is_uncertain: bool| if is_uncertain { "?" } else { "" };
        f.write_str("~b#")?;
        if let Some(size_bytes) = self.stack.allocation_size_bytes {
            write!(f, "size: {size_bytes}{}, ", mark(self.stack.is_size_uncertain))?;
        }
        let (mut room, mut left_out) = (MAX_TEXT_FRAMES, 0_u64);
        for (index, &(frame, count)) in self.stack.runs.iter().enumerate() {
            let is_uncertain = self.stack.uncertain.binary_search(&index).is_ok();
            let kind = if self.with_kinds { lws::log_line::kind_prefix(frame) } else { "" };
            let shown = count.min(room);
            for _ in 0..shown {
                match frame {
                    Frame::Omitted(count) => write!(f, "...{count} ")?,
                    Frame::Truncated => f.write_str("... ")?,
                    frame => {
                        write!(f, "{kind}{}{} ", frame.address().unwrap_or_default(), mark(is_uncertain))?
                    }
                }
            }
            room -= shown;
            left_out = left_out.saturating_add(count - shown);
        }
        if left_out > 0 { write!(f, "...{left_out} ") } else { Ok(()) }
    }
}

/// Base64 with padding.
#[must_use]
pub fn base64_text(bytes: &[u8]) -> String {
    let mut sink = VecSink::default();
    // A vector takes everything, and base64 is ASCII.
    let _ = base64::encode(bytes, base64::Padding::Written, &mut sink);
    String::from_utf8_lossy(&sink.0).into_owned()
}

fn lws_blob(stack: &StackRecord, losses: &mut Vec<Loss>) -> Result<Vec<u8>, ConvertError> {
    let addresses = addresses(stack, lws::MAX_DEPTH, losses);
    let mut sink = VecSink::default();
    lws::encode(&addresses, stack.allocation_size_bytes.unwrap_or(0), &mut sink)
        .map_err(ConvertError::Lws)?;
    Ok(sink.0)
}

fn xnu_buffer(
    stack: &StackRecord,
    options: &ConvertOptions<'_>,
    losses: &mut Vec<Loss>,
) -> Result<Vec<u8>, ConvertError> {
    let addresses = addresses(stack, MAX_FRAMES, losses);
    let mut sink = VecSink::default();
    xnu::Packer::new(options.xnu_packing).encode(addresses, &mut sink).map_err(ConvertError::Xnu)?;
    Ok(sink.0)
}

/// Returns the frames that are addresses, `limit` at most. Omissions are noted.
fn addresses(stack: &StackRecord, limit: usize, losses: &mut Vec<Loss>) -> Vec<AbsoluteAddress> {
    let mut addresses = Vec::new();
    let (mut marks, mut left_out) = (0_u64, 0_u64);
    for &(frame, count) in &stack.runs {
        let Some(address) = frame.address() else {
            marks = marks.saturating_add(count);
            continue;
        };
        let room = (limit - addresses.len()) as u64;
        let taken = count.min(room);
        addresses.extend((0..taken).map(|_| address));
        left_out = left_out.saturating_add(count - taken);
    }
    losses.extend((marks > 0).then_some(Loss::Marks { count: marks }));
    losses.extend((left_out > 0).then_some(Loss::OuterFrames { count: left_out }));
    addresses
}

fn cbf_record(
    stack: &StackRecord,
    word_size: WordSize,
    options: &ConvertOptions<'_>,
    losses: &mut Vec<Loss>,
) -> Result<Vec<u8>, ConvertError> {
    let mut encoder =
        cbf::CbfEncoder::new(VecSink::default(), word_size, options.dialect).map_err(ConvertError::Cbf)?;
    // Swift 6.2 writes any number of repeats in one instruction.
    let mut room = if options.dialect == cbf::CbfDialect::Swift62 { u64::MAX } else { MAX_REPEATS };
    let mut left_out = 0_u64;
    for &(frame, count) in &stack.runs {
        let repeats = count.saturating_sub(1);
        let beyond = repeats.saturating_sub(room);
        room = room.saturating_sub(repeats);
        encoder.push_run(frame, count - beyond).map_err(ConvertError::Cbf)?;
        if beyond > 0 {
            // In a narrow word the mark says as much as it can.
            let mark = Frame::Omitted(beyond.min(word_size.max_address()));
            encoder.push(mark).map_err(ConvertError::Cbf)?;
            left_out = left_out.saturating_add(beyond);
        }
    }
    losses.extend((left_out > 0).then_some(Loss::Repeats { count: left_out }));
    Ok(encoder.finish().map_err(ConvertError::Cbf)?.0)
}

fn image_map(map: &ImageMap) -> Result<Vec<u8>, ConvertError> {
    let modules: Vec<_> = map
        .images
        .iter()
        .map(|Image { base, end_of_text, build_id, path }| Module {
            base: *base,
            end: *end_of_text,
            build_id: build_id.as_deref(),
            path: path.as_deref().map(str::as_bytes),
        })
        .collect();
    let mut slots = vec![cif::EncoderSlot::EMPTY; modules.len()];
    let map = cif::ImageMap { word_size: map.word_size, platform: &map.platform, images: &modules };
    let mut sink = VecSink::default();
    cif::encode(&map, cif::CifDialect::Canonical, &mut slots, &mut sink).map_err(ConvertError::Cif)?;
    Ok(sink.0)
}

fn swift_json(
    stack: &StackRecord,
    options: &ConvertOptions<'_>,
    losses: &mut Vec<Loss>,
) -> Result<Vec<u8>, ConvertError> {
    let architecture =
        stack.architecture.as_deref().or(options.architecture).ok_or(ConvertError::NoArchitecture)?;
    // A format that does not state its word size was read with a guess; the architecture knows
    // better.
    let word_size = swift_json::word_size_of(architecture).unwrap_or(stack.word_size);
    let backtrace = cbf_record(stack, word_size, options, losses)?;
    let images = stack.images.as_ref().map(image_map).transpose()?;
    let mut sink = VecSink::default();
    swift_json::write(architecture, &backtrace, images.as_deref(), &mut sink)
        .map_err(|SinkFull| ConvertError::NothingToHold)?;
    Ok(sink.0)
}
