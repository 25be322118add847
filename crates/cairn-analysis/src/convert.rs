//! From a decoded record to the bytes of any format, and what is lost on the way.

use std::fmt;

use cairn_format::{
    AbsoluteAddress, Module, Sink, SinkFull, WordSize, base64, cbf, cif, lws, swift_json, xnu,
};

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

/// A record in another format.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Converted {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// What the target cannot hold.
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
        }
    }
}

/// Why a record cannot be converted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Error {
    /// The record has no stack, or no images, and the target is made of these.
    NothingToHold,
    /// Swift's JSON must name an architecture, and none is known.
    NoArchitecture,
    /// The libwebsockets format cannot hold a value.
    Lws(lws::EncodeError),
    /// CBF cannot hold a frame.
    Cbf(cbf::EncodeError),
    /// CIF cannot hold an image.
    Cif(cif::EncodeError),
    /// XNU's packing cannot hold an address.
    Xnu(xnu::PackError),
}

impl fmt::Display for Error {
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

impl std::error::Error for Error {}

/// What a conversion needs to know beside the record.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    /// Architecture to name where the record has none.
    pub architecture: Option<&'a str>,
    /// Whose CBF bytes to write.
    pub dialect: cbf::Dialect,
    /// How XNU packs addresses.
    pub xnu_packing: xnu::Packing,
}

/// Writes `record` in another format.
///
/// # Errors
///
/// [`Error`] when the target cannot hold the record at all. What it cannot hold of it is in [`Converted::losses`].
pub fn convert(record: &Record, format: Format, options: &Options<'_>) -> Result<Converted, Error> {
    let mut losses = Vec::new();
    let bytes = match (format, record) {
        (Format::Cif, Record::Images(map)) => image_map(map)?,
        (Format::Cif, Record::Stack(StackRecord { images: Some(map), .. })) => image_map(map)?,
        (_, Record::Images(_)) | (Format::Cif, _) => return Err(Error::NothingToHold),
        (Format::Lws, Record::Stack(stack)) => lws_blob(stack, &mut losses)?,
        (Format::Xnu, Record::Stack(stack)) => xnu_buffer(stack, options, &mut losses)?,
        (Format::Cbf, Record::Stack(stack)) => cbf_record(stack, stack.word_size, options)?,
        (Format::SwiftJson, Record::Stack(stack)) => swift_json(stack, options)?,
    };
    if let (Record::Stack(StackRecord { images: Some(_), .. }), Format::Lws | Format::Xnu | Format::Cbf) =
        (record, format)
    {
        losses.push(Loss::Images);
    }
    Ok(Converted { bytes, losses })
}

/// Base64 with padding.
#[must_use]
pub fn base64_text(bytes: &[u8]) -> String {
    let mut sink = VecSink::default();
    // A vector takes everything, and base64 is ASCII.
    let _ = base64::encode(bytes, base64::Padding::Written, &mut sink);
    String::from_utf8_lossy(&sink.0).into_owned()
}

fn lws_blob(stack: &StackRecord, losses: &mut Vec<Loss>) -> Result<Vec<u8>, Error> {
    let addresses = addresses(stack, lws::MAX_DEPTH, losses);
    let mut sink = VecSink::default();
    lws::encode(&addresses, stack.allocation_size_bytes.unwrap_or(0), &mut sink).map_err(Error::Lws)?;
    Ok(sink.0)
}

fn xnu_buffer(stack: &StackRecord, options: &Options<'_>, losses: &mut Vec<Loss>) -> Result<Vec<u8>, Error> {
    let addresses = addresses(stack, MAX_FRAMES, losses);
    let mut sink = VecSink::default();
    xnu::Packer::new(options.xnu_packing).encode(addresses, &mut sink).map_err(Error::Xnu)?;
    Ok(sink.0)
}

/// The frames that are addresses, `limit` at most. What is left out is noted.
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

fn cbf_record(stack: &StackRecord, word_size: WordSize, options: &Options<'_>) -> Result<Vec<u8>, Error> {
    let mut encoder =
        cbf::Encoder::new(VecSink::default(), word_size, options.dialect).map_err(Error::Cbf)?;
    for &(frame, count) in &stack.runs {
        encoder.push_run(frame, count).map_err(Error::Cbf)?;
    }
    Ok(encoder.finish().map_err(Error::Cbf)?.0)
}

fn image_map(map: &ImageMap) -> Result<Vec<u8>, Error> {
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
    cif::encode(&map, cif::Dialect::Canonical, &mut slots, &mut sink).map_err(Error::Cif)?;
    Ok(sink.0)
}

fn swift_json(stack: &StackRecord, options: &Options<'_>) -> Result<Vec<u8>, Error> {
    let architecture = stack.architecture.as_deref().or(options.architecture).ok_or(Error::NoArchitecture)?;
    // A format that does not state its word size was read with a guess; the architecture knows better.
    let word_size = swift_json::word_size_of(architecture).unwrap_or(stack.word_size);
    let backtrace = cbf_record(stack, word_size, options)?;
    let images = stack.images.as_ref().map(image_map).transpose()?;
    let mut sink = VecSink::default();
    swift_json::write(architecture, &backtrace, images.as_deref(), &mut sink)
        .map_err(|SinkFull| Error::NothingToHold)?;
    Ok(sink.0)
}
