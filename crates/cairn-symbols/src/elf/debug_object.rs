//! Maps one file with debug information, and inflates its compressed sections.

use std::borrow::Cow;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use cairn_format::unpack::UnpackBound;
use gimli::{RunTimeEndian, SectionId};
use object::{CompressionFormat, Object, ObjectSection};

use crate::mapped_file::FileBytes;

/// The sections that names and lines need; not those of variables, type units and macros.
const NEEDED: [SectionId; 17] = [
    SectionId::DebugAbbrev,
    SectionId::DebugAddr,
    SectionId::DebugAranges,
    SectionId::DebugInfo,
    SectionId::DebugLine,
    SectionId::DebugLineStr,
    SectionId::DebugRanges,
    SectionId::DebugRngLists,
    SectionId::DebugStr,
    SectionId::DebugStrOffsets,
    SectionId::DebugCuIndex,
    SectionId::DebugTuIndex,
    // Never parsed, but a package states each unit's part of them, and is invalid if one is
    // missing.
    SectionId::DebugLoc,
    SectionId::DebugLocLists,
    SectionId::DebugMacinfo,
    SectionId::DebugMacro,
    SectionId::DebugTypes,
];

/// Number of sections that are parsed, from the start of [`NEEDED`].
const READ: usize = 12;

/// A file with debug information.
#[derive(Debug)]
pub(crate) struct DebugObject {
    path: PathBuf,
    bytes: FileBytes,
    endian: RunTimeEndian,
    /// In the order of [`NEEDED`]: the plain sections, and those of split files.
    plain: Vec<SectionBytes>,
    split: Vec<SectionBytes>,
}

#[derive(Debug, Default)]
enum SectionBytes {
    #[default]
    Absent,
    Stored(Range<usize>),
    Compressed {
        range: Range<usize>,
        format: CompressionFormat,
        size_bytes: u64,
        inflated: OnceLock<Vec<u8>>,
    },
}

impl DebugObject {
    /// Parses the section headers.
    ///
    /// Refuses a file whose sections together unpack to more than the default limit, or than
    /// `chosen_limit_bytes` instead, because all of them may be unpacked.
    pub(crate) fn parse(
        path: &Path,
        bytes: FileBytes,
        chosen_limit_bytes: Option<u64>,
    ) -> Result<Self, Arc<str>> {
        let object = object::File::parse(&*bytes).map_err(|error| Arc::from(error.to_string()))?;
        let endian = if object.is_little_endian() { RunTimeEndian::Little } else { RunTimeEndian::Big };
        let sections = |name: fn(SectionId) -> Option<&'static str>| {
            NEEDED
                .iter()
                .map(|&id| {
                    name(id).map_or(Ok(SectionBytes::Absent), |name| section(&object, bytes.len(), name))
                })
                .collect::<Result<Vec<_>, Arc<str>>>()
        };
        let (plain, split) = (sections(|id| Some(id.name()))?, sections(|id| id.dwo_name())?);
        let (mut packed_bytes, mut unpacked_bytes) = (0_u64, 0_u64);
        for section in plain.iter().chain(&split) {
            if let SectionBytes::Compressed { range, size_bytes, .. } = section {
                packed_bytes = packed_bytes.saturating_add(range.len() as u64);
                unpacked_bytes = unpacked_bytes.saturating_add(*size_bytes);
            }
        }
        let limit = UnpackBound::DEBUG_SECTIONS.limit(packed_bytes, chosen_limit_bytes);
        if unpacked_bytes > limit.limit_bytes {
            return Err(Arc::from(format!("its debug information {limit}")));
        }
        Ok(Self { path: path.to_owned(), endian, plain, split, bytes })
    }

    /// Returns the path of the file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the bytes of the file.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the container format, for everything but debug information.
    pub(crate) fn object(&self) -> object::Result<object::File<'_>> {
        object::File::parse(&*self.bytes)
    }

    /// Reports whether the file has debug information with functions.
    pub(crate) fn has_debug_info(&self) -> bool {
        let at = NEEDED.iter().position(|&id| id == SectionId::DebugInfo).unwrap_or_default();
        [&self.plain[at], &self.split[at]].iter().any(|section| !matches!(section, SectionBytes::Absent))
    }

    /// Returns the inflated size of a section.
    pub(crate) fn section_bytes(&self, id: SectionId) -> u64 {
        let at = NEEDED.iter().position(|&needed| needed == id);
        at.map_or(0, |at| match &self.plain[at] {
            SectionBytes::Absent => 0,
            SectionBytes::Stored(range) => range.len() as u64,
            SectionBytes::Compressed { size_bytes, .. } => *size_bytes,
        })
    }

    /// Returns a section of the file itself.
    pub(crate) fn plain(&self, id: SectionId) -> gimli::EndianSlice<'_, RunTimeEndian> {
        self.contents(&self.plain, id)
    }

    /// Returns a section of the file itself if it is among [`NEEDED`]; others are not inflated.
    pub(crate) fn needed(&self, id: SectionId) -> gimli::EndianSlice<'_, RunTimeEndian> {
        if NEEDED[..READ].contains(&id) { self.plain(id) } else { gimli::EndianSlice::new(&[], self.endian) }
    }

    /// Returns a section with the name that it has in split files.
    pub(crate) fn split(&self, id: SectionId) -> gimli::EndianSlice<'_, RunTimeEndian> {
        self.contents(&self.split, id)
    }

    fn contents<'a>(
        &'a self,
        sections: &'a [SectionBytes],
        id: SectionId,
    ) -> gimli::EndianSlice<'a, RunTimeEndian> {
        let at = NEEDED.iter().position(|&needed| needed == id);
        let bytes = at.map_or(&[][..], |at| sections[at].bytes(&self.bytes));
        gimli::EndianSlice::new(bytes, self.endian)
    }

    /// Inflates compressed sections in parallel: the three large ones dominate, in about equal
    /// parts.
    pub(crate) fn inflate_all(&self) {
        let compressed: Vec<&SectionBytes> = (self.plain[..READ].iter().chain(&self.split[..READ]))
            .filter(|section| matches!(section, SectionBytes::Compressed { .. }))
            .collect();
        if compressed.iter().map(|section| section.stored_bytes()).sum::<usize>() < WORTH_THREADS_BYTES {
            return;
        }
        std::thread::scope(|scope| {
            for section in compressed {
                scope.spawn(|| section.bytes(&self.bytes).len());
            }
        });
    }
}

/// Minimum bytes worth an additional thread.
const WORTH_THREADS_BYTES: usize = 1 << 20;

impl SectionBytes {
    fn bytes<'a>(&'a self, file: &'a [u8]) -> &'a [u8] {
        match self {
            Self::Absent => &[],
            Self::Stored(range) => file.get(range.clone()).unwrap_or_default(),
            Self::Compressed { range, format, size_bytes, inflated } => inflated.get_or_init(|| {
                let data = file.get(range.clone()).unwrap_or_default();
                let compressed =
                    object::CompressedData { format: *format, data, uncompressed_size: *size_bytes };
                compressed.decompress().map(Cow::into_owned).unwrap_or_default()
            }),
        }
    }

    fn stored_bytes(&self) -> usize {
        match self {
            Self::Compressed { range, .. } => range.len(),
            _ => 0,
        }
    }
}

fn section(object: &object::File<'_>, file_bytes: usize, name: &str) -> Result<SectionBytes, Arc<str>> {
    let Some(section) = object.section_by_name(name) else { return Ok(SectionBytes::Absent) };
    let broken = |error: object::Error| Arc::from(format!("section {name}: {error}"));
    let place = section.compressed_file_range().map_err(broken)?;
    let range = usize::try_from(place.offset)
        .ok()
        .zip(place.offset.checked_add(place.compressed_size).and_then(|end| usize::try_from(end).ok()));
    let Some((start, end)) = range else { return Ok(SectionBytes::Absent) };
    if end > file_bytes {
        // The file is truncated or its header is wrong: the section counts as absent, whatever it
        // claims.
        return Ok(SectionBytes::Stored(0..0));
    }
    if place.format == CompressionFormat::None {
        return Ok(if start == end { SectionBytes::Absent } else { SectionBytes::Stored(start..end) });
    }
    Ok(SectionBytes::Compressed {
        range: start..end,
        format: place.format,
        size_bytes: place.uncompressed_size,
        inflated: OnceLock::new(),
    })
}
