//! One file with debug information: its bytes, and its sections, inflated where they are compressed.

use std::borrow::Cow;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use cairn_format::unpack::UnpackBound;
use gimli::{RunTimeEndian, SectionId};
use object::{CompressionFormat, Object, ObjectSection};

use crate::mapped_file::FileBytes;

/// The sections that names and lines need. Variables, types of their own and macros are not read.
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
    // Not read either, but a package states which part of each belongs to a unit, and is broken when a part is missing.
    SectionId::DebugLoc,
    SectionId::DebugLocLists,
    SectionId::DebugMacinfo,
    SectionId::DebugMacro,
    SectionId::DebugTypes,
];

/// How many of these are read.
const READ: usize = 12;

/// One file with debug information.
#[derive(Debug)]
pub(crate) struct DebugObject {
    path: PathBuf,
    bytes: FileBytes,
    endian: RunTimeEndian,
    /// As in [`NEEDED`], the plain ones and those of split files.
    plain: Vec<Section>,
    split: Vec<Section>,
}

#[derive(Debug, Default)]
enum Section {
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
    /// Reads the section headers. A file whose sections unpack to more than their limit, or than
    /// `chosen_limit_bytes` in its place, is refused: all of them together count, as all of them
    /// may be unpacked.
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
                .map(|&id| name(id).map_or(Ok(Section::Absent), |name| section(&object, bytes.len(), name)))
                .collect::<Result<Vec<_>, Arc<str>>>()
        };
        let (plain, split) = (sections(|id| Some(id.name()))?, sections(|id| id.dwo_name())?);
        let (mut packed_bytes, mut unpacked_bytes) = (0_u64, 0_u64);
        for section in plain.iter().chain(&split) {
            if let Section::Compressed { range, size_bytes, .. } = section {
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

    /// Where the file lies.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The whole file.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The container, for what is not debug information.
    pub(crate) fn object(&self) -> object::Result<object::File<'_>> {
        object::File::parse(&*self.bytes)
    }

    /// True when there is debug information of the kind that has functions.
    pub(crate) fn has_debug_info(&self) -> bool {
        let at = NEEDED.iter().position(|&id| id == SectionId::DebugInfo).unwrap_or_default();
        [&self.plain[at], &self.split[at]].iter().any(|section| !matches!(section, Section::Absent))
    }

    /// How many bytes the section has, inflated.
    pub(crate) fn section_bytes(&self, id: SectionId) -> u64 {
        let at = NEEDED.iter().position(|&needed| needed == id);
        at.map_or(0, |at| match &self.plain[at] {
            Section::Absent => 0,
            Section::Stored(range) => range.len() as u64,
            Section::Compressed { size_bytes, .. } => *size_bytes,
        })
    }

    /// A section of the file itself.
    pub(crate) fn plain(&self, id: SectionId) -> gimli::EndianSlice<'_, RunTimeEndian> {
        self.contents(&self.plain, id)
    }

    /// A section of the file itself, if it is read; what is not read is not inflated.
    pub(crate) fn needed(&self, id: SectionId) -> gimli::EndianSlice<'_, RunTimeEndian> {
        if NEEDED[..READ].contains(&id) { self.plain(id) } else { gimli::EndianSlice::new(&[], self.endian) }
    }

    /// A section as split files have it.
    pub(crate) fn split(&self, id: SectionId) -> gimli::EndianSlice<'_, RunTimeEndian> {
        self.contents(&self.split, id)
    }

    fn contents<'a>(
        &'a self,
        sections: &'a [Section],
        id: SectionId,
    ) -> gimli::EndianSlice<'a, RunTimeEndian> {
        let at = NEEDED.iter().position(|&needed| needed == id);
        let bytes = at.map_or(&[][..], |at| sections[at].bytes(&self.bytes));
        gimli::EndianSlice::new(bytes, self.endian)
    }

    /// Inflates what is compressed, side by side: the three large sections take most of the time, and about as much each.
    pub(crate) fn inflate_all(&self) {
        let compressed: Vec<&Section> = (self.plain[..READ].iter().chain(&self.split[..READ]))
            .filter(|section| matches!(section, Section::Compressed { .. }))
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

/// Starting threads costs as much as inflating this.
const WORTH_THREADS_BYTES: usize = 1 << 20;

impl Section {
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

fn section(object: &object::File<'_>, file_bytes: usize, name: &str) -> Result<Section, Arc<str>> {
    let Some(section) = object.section_by_name(name) else { return Ok(Section::Absent) };
    let broken = |error: object::Error| Arc::from(format!("section {name}: {error}"));
    let place = section.compressed_file_range().map_err(broken)?;
    let range = usize::try_from(place.offset)
        .ok()
        .zip(place.offset.checked_add(place.compressed_size).and_then(|end| usize::try_from(end).ok()));
    let Some((start, end)) = range else { return Ok(Section::Absent) };
    if end > file_bytes {
        // The file is cut, or says anything: nothing of the section is there, whatever it claims.
        return Ok(Section::Stored(0..0));
    }
    if place.format == CompressionFormat::None {
        return Ok(if start == end { Section::Absent } else { Section::Stored(start..end) });
    }
    Ok(Section::Compressed {
        range: start..end,
        format: place.format,
        size_bytes: place.uncompressed_size,
        inflated: OnceLock::new(),
    })
}
