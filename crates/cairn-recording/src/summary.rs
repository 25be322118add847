//! Summaries of recordings: sums of all events and slices of their time, stored behind the events
//! of a packed recording.
//!
//! Here they are bytes; [`cairn_analysis::heap`] gives them their meaning. They are added to a
//! recording that is closed, behind its trailer, with another index and trailer behind them. So
//! what was there is not touched, and when they cannot be written the file is cut to what it was.
//!
//! ```text
//!   HEAP ... SUMM INDX trailer | SUMS ... SLCS ... INDX trailer
//! ```
//!
//! Sums of other events than those in front are worse than none, so they begin with what they were
//! made from: a checksum of where each chunk is and what its header says of it, and place and
//! checksum of the last chunk of events. A recording that was cut, continued or damaged where its
//! tables and headers are does not match it.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

use cairn_format::recording::{CHUNK_HEADER_BYTES, ChunkHeader, ChunkKind, MAX_CHUNK_BYTES};

use crate::error::{Finding, RecordingError};
use crate::packed::chunk::{self, ChunkReader, ChunkWriter};
use crate::packed::columns::{Put, Take};
use crate::packed::reader::EVENTS;
use crate::recording::{Layout, Recording};
use crate::source::Source;

/// The chunks of a summary: sums, and slices.
const SUMMARY_KINDS: [ChunkKind; 2] = [ChunkKind::SUMS, ChunkKind::SLICES];

/// How much a summary has, which is also the number of the layout of its chunks. Those of another
/// layout are passed over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Detail {
    /// Everything.
    Whole = 1,
    /// Data of the first screen of a report.
    Brief = 2,
}

/// Bytes of a part of a summary; with the numbers in front of it, it is within what a chunk may
/// hold.
const PART_BYTES: usize = MAX_CHUNK_BYTES / 4;
/// Bytes that are compressed at the highest level; 64 KiB, which takes a millisecond.
const FEW_BYTES: usize = 64 << 10;
/// Bytes of a stored chunk: not more than it holds unpacked.
const MAX_STORED_BYTES: usize = MAX_CHUNK_BYTES;
/// Bytes of a summary; 128 MiB, because a file from elsewhere must not fill memory.
const MOST_BYTES: usize = 128 << 20;

/// One kind of chunks of a summary, joined.
#[derive(Debug)]
#[non_exhaustive]
pub struct StoredSummary {
    /// Where it begins.
    pub offset: u64,
    /// The bytes, as they were written.
    pub bytes: Vec<u8>,
}

/// Source of a summary.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Basis {
    chunks: u64,
    /// CRC-32 of all that the headers of chunks say but their checksums.
    places: u32,
    /// Where the last chunk of events begins, and its checksum; 0 when there is none.
    last_offset: u64,
    last_check: u32,
}

impl Basis {
    fn put(&self, stream: &mut Vec<u8>) {
        stream.put_number(self.chunks);
        stream.put_number(self.places.into());
        stream.put_number(self.last_offset);
        stream.put_number(self.last_check.into());
    }

    fn take(take: &mut Take<'_>) -> Option<Self> {
        Some(Self {
            chunks: take.number()?,
            places: take.number32()?,
            last_offset: take.number()?,
            last_check: take.number32()?,
        })
    }
}

impl Recording {
    /// How long the file is.
    pub fn length(&self) -> Result<u64, RecordingError> {
        self.source.length()
    }

    /// Reads the summary in chunks of this kind, when it is of this recording as it is. The inner
    /// error says why it cannot be used.
    ///
    /// # Errors
    ///
    /// When the file cannot be read any more.
    pub fn read_summary(
        &self,
        kind: ChunkKind,
        detail: Detail,
    ) -> Result<Option<Result<StoredSummary, Finding>>, RecordingError> {
        let Some(places) = self.closed_places() else { return Ok(None) };
        let mut reader = ChunkReader::new()?;
        let (mut stream, mut parts, mut of_parts) = (Vec::new(), 0, 0);
        let mut first = 0;
        for place in places.iter().filter(|place| place.kind == kind) {
            let unusable = |problem| Ok(Some(Err(Finding::UnusableSums { offset: place.offset, problem })));
            let payload = match reader.read(&self.source, place)? {
                Ok(payload) => payload,
                Err(problem) => return unusable(problem),
            };
            let mut take = Take::new(payload);
            match take.number() {
                Some(layout) if layout == detail as u64 => {}
                Some(_) => continue,
                None => return unusable("a part of them is empty"),
            }
            let (Some(part), Some(count)) = (take.number(), take.number()) else {
                return unusable("a part of them is cut");
            };
            // A recording that lost its index may show older ones too: the last ones count.
            if part == 0 {
                stream.clear();
                (parts, first) = (0, place.offset);
            }
            if part != parts {
                return unusable("a part of them is missing");
            }
            if stream.len() + take.bytes.len() > MOST_BYTES {
                return unusable("they are more than they may be");
            }
            stream.extend_from_slice(take.bytes);
            parts += 1;
            of_parts = count;
        }
        if parts == 0 {
            return Ok(None);
        }
        let unusable = |problem| Ok(Some(Err(Finding::UnusableSums { offset: first, problem })));
        if parts != of_parts {
            return unusable("a part of them is missing");
        }
        let mut take = Take::new(&stream);
        let Some(basis) = Basis::take(&mut take) else { return unusable("they are cut") };
        if Some(basis) != self.basis(places)? {
            return unusable("they are of another state of the recording");
        }
        let begin = stream.len() - take.bytes.len();
        stream.drain(..begin);
        Ok(Some(Ok(StoredSummary { offset: first, bytes: stream })))
    }

    /// Adds a summary to this recording, and returns by how many bytes its file at `path` grew.
    ///
    /// When that would be more than `most_bytes`, or this is no closed and intact packed
    /// recording, nothing is written.
    ///
    /// # Errors
    ///
    /// When the file cannot be read or written any more.
    pub fn write_summary(
        &self,
        path: &Path,
        detail: Detail,
        parts: &[(ChunkKind, &[u8])],
        most_bytes: u64,
    ) -> Result<Option<u64>, RecordingError> {
        let Some(places) = self.closed_places() else { return Ok(None) };
        let Some(basis) = self.basis(places)? else { return Ok(None) };
        let length = self.source.length()?;
        if self.findings.contains(&Finding::NoIndex)
            || self.findings.contains(&Finding::DamagedIndex)
            || !length.is_multiple_of(8)
        {
            return Ok(None);
        }
        // Where no summary is there yet, the index that is there needs no copy.
        let has_summary = places.iter().any(|place| SUMMARY_KINDS.contains(&place.kind));
        let (index_at, known) = match chunk::last_index(&self.source)? {
            Some(index_at) if !has_summary => (Some(index_at), Vec::new()),
            _ => {
                (None, places.iter().filter(|place| !SUMMARY_KINDS.contains(&place.kind)).copied().collect())
            }
        };
        let bytes: usize = parts.iter().map(|(_, sums)| sums.len()).sum();
        let mut chunks = ChunkWriter::resume(Vec::new(), length, known, index_at, bytes <= FEW_BYTES)?;
        for &(kind, sums) in parts {
            let mut stream = Vec::new();
            basis.put(&mut stream);
            stream.extend_from_slice(sums);
            if stream.len() > MOST_BYTES {
                return Ok(None);
            }
            write_parts(&mut chunks, kind, detail, &stream)?;
        }
        if chunks.offset() - length > most_bytes {
            return Ok(None);
        }
        let added = chunks.close()?;
        let is_added = self.append(path, length, &added)?;
        Ok(is_added.then_some(added.len() as u64))
    }

    /// Writes behind the end of the file, when it still is what is open here.
    fn append(&self, path: &Path, length: u64, bytes: &[u8]) -> Result<bool, RecordingError> {
        let action = || RecordingError::io(format!("adding sums to {}", path.display()));
        let Some(mut file) = self.source.open_for_writing(path).map_err(action())? else { return Ok(false) };
        let is_same =
            file.metadata().map_err(action())?.len() == length && self.is_at_end_of(&file, length)?;
        if !is_same {
            return Ok(false);
        }
        let written = file.seek(SeekFrom::Start(length)).and_then(|_| file.write_all(bytes));
        if let Err(error) = written {
            // The bytes of them that were written would only be in the way.
            let _ = file.set_len(length);
            return Err(action()(error));
        }
        Ok(true)
    }

    /// Whether the file ends as what is open here does: its index tells where all is.
    fn is_at_end_of(&self, file: &File, length: u64) -> Result<bool, RecordingError> {
        const COMPARED: usize = 4096;
        let file = Source::File(file.try_clone().map_err(RecordingError::io("opening it again"))?);
        let (mut here, mut there) = (Vec::new(), Vec::new());
        for offset in [0, length.saturating_sub(COMPARED as u64)] {
            self.source.read_at(offset, COMPARED, &mut here)?;
            file.read_at(offset, COMPARED, &mut there)?;
            if here != there {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Checks the chunks of events of a packed recording that was closed, without unpacking them.
    ///
    /// It compares the header of each with the index, and the checksums of at most `most_bytes` of
    /// their contents. When they hold more, these are of chunks from all parts of the file.
    /// Returns the findings.
    ///
    /// Nothing is checked of a spool or of a recording that was not closed: opening and reading
    /// them reports all there is to find.
    ///
    /// # Errors
    ///
    /// When the file cannot be read any more.
    pub fn check_events(&self, most_bytes: u64) -> Result<Vec<Finding>, RecordingError> {
        let mut findings = Vec::new();
        let Some(places) = self.closed_places() else { return Ok(findings) };
        let places: Vec<&chunk::ChunkPlace> =
            places.iter().filter(|place| EVENTS.contains(&place.kind)).collect();
        let held: u64 = places.iter().map(|place| u64::from(place.stored_bytes)).sum();
        let step = usize::try_from(held.div_ceil(most_bytes.max(1)).max(1)).unwrap_or(usize::MAX);
        let mut bytes = Vec::new();
        for (index, place) in places.iter().enumerate() {
            let is_last = index + 1 == places.len();
            let is_read = index % step == 0 || is_last;
            let body = if is_read { place.stored_bytes as usize } else { 0 };
            // An index may say more than a chunk can hold.
            let length = CHUNK_HEADER_BYTES + body.min(MAX_STORED_BYTES);
            self.source.read_at(place.offset, length, &mut bytes)?;
            let problem = chunk::problem_of(&bytes, place, is_read);
            findings.extend(problem.map(|problem| crate::packed::reader::damaged(place, problem)));
        }
        Ok(findings)
    }

    /// The chunks of a packed recording that was closed and is whole, as far as opening it shows.
    fn closed_places(&self) -> Option<&[chunk::ChunkPlace]> {
        let Layout::Packed(packed) = &self.layout else { return None };
        let is_damage = |finding: &Finding| {
            matches!(
                finding,
                Finding::TornTail { .. }
                    | Finding::DamagedChunk { .. }
                    | Finding::SkippedBytes { .. }
                    | Finding::DamagedIndex
                    | Finding::NotClosed
                    | Finding::Continued { .. }
            )
        };
        let is_whole = packed.totals.is_some()
            && self.rest.is_none()
            && self.window.is_none()
            && !self.findings.iter().any(is_damage);
        is_whole.then_some(packed.places.as_slice())
    }

    fn basis(&self, places: &[chunk::ChunkPlace]) -> Result<Option<Basis>, RecordingError> {
        let of_recording = |place: &&chunk::ChunkPlace| {
            place.kind != ChunkKind::INDEX && !SUMMARY_KINDS.contains(&place.kind)
        };
        let mut chunks = 0;
        let mut sum = crc32fast::Hasher::new();
        let mut last = None;
        for place in places.iter().filter(of_recording) {
            chunks += 1;
            sum.update(&place.kind.0);
            sum.update(&place.offset.to_le_bytes());
            sum.update(&place.stored_bytes.to_le_bytes());
            sum.update(&place.events.to_le_bytes());
            sum.update(&place.first_nanos.to_le_bytes());
            last = Some(place).filter(|place| EVENTS.contains(&place.kind)).or(last);
        }
        let basis = Basis { chunks, places: sum.finalize(), last_offset: 0, last_check: 0 };
        let Some(last) = last else { return Ok(Some(basis)) };
        let mut header = Vec::new();
        self.source.read_at(last.offset, CHUNK_HEADER_BYTES, &mut header)?;
        let header = ChunkHeader::read(&header);
        Ok(header.map(|header| Basis { last_offset: last.offset, last_check: header.check, ..basis }))
    }
}

fn write_parts(
    chunks: &mut ChunkWriter<Vec<u8>>,
    kind: ChunkKind,
    detail: Detail,
    stream: &[u8],
) -> Result<(), RecordingError> {
    let parts = stream.chunks(PART_BYTES);
    let count = parts.len() as u64;
    for (number, part) in parts.enumerate() {
        let mut payload = Vec::with_capacity(part.len() + 32);
        payload.put_number(detail as u64);
        payload.put_number(number as u64);
        payload.put_number(count);
        payload.extend_from_slice(part);
        chunks.write(kind, 1, 0, &payload)?;
    }
    Ok(())
}
