//! Chunks of packed recordings: written one behind the other, found again by the index or by one
//! scan.

use std::io::Write;

use cairn_format::recording::{
    CHUNK_HEADER_BYTES, ChunkHeader, ChunkKind, FILE_HEADER_BYTES, FileHeader, MAX_CHUNK_BYTES,
    MAX_CHUNK_RATIO, TRAILER_BYTES, TRAILER_MAGIC,
};
use zstd::bulk::{Compressor, Decompressor};

use crate::packed::zstd_stream::{Inflow, Outflow};

use super::columns::{Put, Take};
use crate::error::{Finding, RecordingError};
use crate::source::Source;

/// zstd's level: higher ones save some percent and cost more than all the rest of the packing.
const LEVEL: i32 = 1;
/// For what is small.
const HIGH_LEVEL: i32 = 19;
/// Marks a part of zstd data that is skipped; the length follows.
const SKIPPABLE_FRAME: u32 = 0x184d_2a50;

/// Where a chunk is, and what its header says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ChunkPlace {
    pub(crate) kind: ChunkKind,
    pub(crate) offset: u64,
    pub(crate) stored_bytes: u32,
    pub(crate) events: u32,
    pub(crate) first_nanos: u64,
}

/// Writes chunks.
pub(crate) struct ChunkWriter<W> {
    out: W,
    offset: u64,
    places: Vec<ChunkPlace>,
    /// Place of the index of the chunks that are not in `places`.
    index_at: Option<u64>,
    compressor: Compressor<'static>,
    stream: Outflow,
    buffer: Vec<u8>,
    frame: Vec<u8>,
}

impl<W: Write> ChunkWriter<W> {
    pub(crate) fn new(mut out: W, header: &FileHeader) -> Result<Self, RecordingError> {
        out.write_all(&header.to_bytes()).map_err(RecordingError::io("writing the header"))?;
        let compressor = Compressor::new(LEVEL).map_err(RecordingError::io("starting zstd"))?;
        Ok(Self {
            out,
            offset: FILE_HEADER_BYTES as u64,
            places: Vec::new(),
            index_at: None,
            compressor,
            stream: Outflow::new(LEVEL),
            buffer: Vec::new(),
            frame: Vec::new(),
        })
    }

    /// Continues behind the end of a file of this length, with these chunks and its index.
    ///
    /// Small data may be compressed for longer.
    pub(crate) fn resume(
        out: W,
        offset: u64,
        places: Vec<ChunkPlace>,
        index_at: Option<u64>,
        is_small: bool,
    ) -> Result<Self, RecordingError> {
        let level = if is_small { HIGH_LEVEL } else { LEVEL };
        let compressor = Compressor::new(level).map_err(RecordingError::io("starting zstd"))?;
        let stream = Outflow::new(LEVEL);
        Ok(Self { out, offset, places, index_at, compressor, stream, buffer: Vec::new(), frame: Vec::new() })
    }

    /// Bytes that were written, the header included.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    pub(crate) fn write(
        &mut self,
        kind: ChunkKind,
        events: u32,
        first_nanos: u64,
        unpacked: &[u8],
    ) -> Result<(), RecordingError> {
        self.check_length(kind, unpacked)?;
        let bound = zstd::zstd_safe::compress_bound(unpacked.len());
        let mut stored = self.begin_chunk();
        self.frame.clear();
        self.frame.reserve(bound);
        self.compressor
            .compress_to_buffer(unpacked, &mut self.frame)
            .map_err(RecordingError::io(writing(kind, self.offset)))?;
        if self.frame.len() < unpacked.len() {
            stored.extend_from_slice(&self.frame);
            pad(&mut stored, unpacked.len());
        }
        // Padding is for the smallest only, but what is not smaller than the original is stored as
        // the original.
        if stored.len() == CHUNK_HEADER_BYTES || stored.len() - CHUNK_HEADER_BYTES >= unpacked.len() {
            stored.truncate(CHUNK_HEADER_BYTES);
            stored.extend_from_slice(unpacked);
        }
        self.put(kind, events, first_nanos, unpacked.len(), stored)
    }

    /// As [`write`](Self::write), as the next piece of the stream that all chunks of this kind are.
    /// There may be one such kind in a file.
    pub(crate) fn write_streamed(
        &mut self,
        kind: ChunkKind,
        events: u32,
        first_nanos: u64,
        unpacked: &[u8],
    ) -> Result<(), RecordingError> {
        self.check_length(kind, unpacked)?;
        let mut stored = self.begin_chunk();
        let added = self.stream.add(unpacked, events, &mut stored);
        added.map_err(RecordingError::io(writing(kind, self.offset)))?;
        self.put(kind, events, first_nanos, unpacked.len(), stored)
    }

    fn check_length(&self, kind: ChunkKind, unpacked: &[u8]) -> Result<(), RecordingError> {
        if unpacked.len() > MAX_CHUNK_BYTES {
            let problem = "one of its rows is longer than a chunk may be";
            return Err(RecordingError::Chunk { offset: self.offset, kind, problem });
        }
        Ok(())
    }

    /// Room for the header.
    fn begin_chunk(&mut self) -> Vec<u8> {
        let mut stored = std::mem::take(&mut self.buffer);
        stored.clear();
        stored.resize(CHUNK_HEADER_BYTES, 0);
        stored
    }

    /// The bytes behind the room for the header go to the file.
    fn put(
        &mut self,
        kind: ChunkKind,
        events: u32,
        first_nanos: u64,
        unpacked_bytes: usize,
        mut stored: Vec<u8>,
    ) -> Result<(), RecordingError> {
        let body = stored.get(CHUNK_HEADER_BYTES..).unwrap_or_default();
        let stored_bytes = body.len() as u32;
        let header = ChunkHeader {
            kind,
            stored_bytes,
            unpacked_bytes: unpacked_bytes as u32,
            events,
            first_nanos,
            check: crc32fast::hash(body),
        };
        if let Some(front) = stored.first_chunk_mut() {
            *front = header.to_bytes();
        }
        stored.resize(stored.len().next_multiple_of(8), 0);
        self.out.write_all(&stored).map_err(RecordingError::io(writing(kind, self.offset)))?;
        self.places.push(ChunkPlace { kind, offset: self.offset, stored_bytes, events, first_nanos });
        self.offset += stored.len() as u64;
        self.buffer = stored;
        Ok(())
    }

    /// Hands everything to the file.
    pub(crate) fn flush(&mut self) -> Result<(), RecordingError> {
        self.out.flush().map_err(RecordingError::io("writing the recording"))
    }

    /// Writes the index and the trailer.
    pub(crate) fn close(mut self) -> Result<W, RecordingError> {
        let mut index_at = self.index_at;
        // Each part of the index names the part before, for recordings of very many chunks.
        let places = std::mem::take(&mut self.places);
        for part in places.chunks(MAX_CHUNK_BYTES / MOST_BYTES_OF_AN_ENTRY) {
            let payload = index_payload(part, index_at);
            index_at = Some(self.offset);
            self.write(ChunkKind::INDEX, part.len() as u32, 0, &payload)?;
        }
        let mut trailer = [0; TRAILER_BYTES];
        let offset = index_at.unwrap_or(0).to_le_bytes();
        trailer.iter_mut().zip(TRAILER_MAGIC.iter().chain(&offset)).for_each(|(place, byte)| *place = *byte);
        self.out.write_all(&trailer).map_err(RecordingError::io("writing the trailer"))?;
        self.flush()?;
        Ok(self.out)
    }
}

fn writing(kind: ChunkKind, offset: u64) -> String {
    format!("writing chunk {kind} at byte {offset}")
}

/// A skippable frame behind what compresses better than readers believe.
fn pad(stored: &mut Vec<u8>, unpacked: usize) {
    let least = unpacked.div_ceil(MAX_CHUNK_RATIO);
    let present = stored.len() - CHUNK_HEADER_BYTES;
    if present < least {
        let zeros = least.saturating_sub(present + 8);
        stored.extend(SKIPPABLE_FRAME.to_le_bytes());
        stored.extend((zeros as u32).to_le_bytes());
        stored.resize(stored.len() + zeros, 0);
    }
}

/// A kind and four numbers.
const MOST_BYTES_OF_AN_ENTRY: usize = 4 + 10 + 5 + 5 + 10;

/// | offset of the part before, or 0 | entries: kind, distance from the end of the entry before, stored bytes, events, nanos |
fn index_payload(places: &[ChunkPlace], before: Option<u64>) -> Vec<u8> {
    let mut payload = Vec::new();
    payload.put_number(before.unwrap_or(0));
    let mut end = 0;
    for place in places {
        payload.extend(place.kind.0);
        payload.put_number(place.offset - end);
        payload.put_number(place.stored_bytes.into());
        payload.put_number(place.events.into());
        payload.put_number(place.first_nanos);
        end = place.offset;
    }
    payload
}

/// Reads chunks.
pub(crate) struct ChunkReader {
    decompressor: Decompressor<'static>,
    stream: Inflow,
    stored: Vec<u8>,
    unpacked: Vec<u8>,
}

impl ChunkReader {
    pub(crate) fn new() -> Result<Self, RecordingError> {
        let decompressor = Decompressor::new().map_err(RecordingError::io("starting zstd"))?;
        Ok(Self { decompressor, stream: Inflow::new(), stored: Vec::new(), unpacked: Vec::new() })
    }

    /// The unpacked bytes of a chunk; the inner error says what is wrong with it. The pieces of a
    /// stream have to be read by one reader, in their order, each once.
    pub(crate) fn read(
        &mut self,
        source: &Source,
        place: &ChunkPlace,
    ) -> Result<Result<&[u8], &'static str>, RecordingError> {
        let whole = CHUNK_HEADER_BYTES + place.stored_bytes as usize;
        source.read_at(place.offset, whole.min(CHUNK_HEADER_BYTES + MAX_CHUNK_BYTES), &mut self.stored)?;
        Ok(self.unpack())
    }

    fn unpack(&mut self) -> Result<&[u8], &'static str> {
        let header = ChunkHeader::read(&self.stored).ok_or("its header is damaged")?;
        let body = self.stored.get(CHUNK_HEADER_BYTES..).unwrap_or_default();
        let body = body.get(..header.stored_bytes as usize).ok_or("the file ends inside of it")?;
        if crc32fast::hash(body) != header.check {
            return Err("its checksum does not match");
        }
        let unpacked_bytes = header.unpacked_bytes as usize;
        if header.kind == ChunkKind::HEAP_STREAM {
            self.stream.take(body, unpacked_bytes, &mut self.unpacked)?;
            return Ok(&self.unpacked);
        }
        if unpacked_bytes == body.len() {
            return self
                .stored
                .get(CHUNK_HEADER_BYTES..CHUNK_HEADER_BYTES + unpacked_bytes)
                .ok_or("it is cut");
        }
        if unpacked_bytes > MAX_CHUNK_BYTES || unpacked_bytes.div_ceil(MAX_CHUNK_RATIO) > body.len() {
            return Err(TOO_MUCH);
        }
        self.unpacked.clear();
        self.unpacked.reserve(unpacked_bytes);
        // Writes to what is reserved and no further.
        let count = self.decompressor.decompress_to_buffer(body, &mut self.unpacked);
        match count {
            Ok(count) if count == unpacked_bytes => Ok(&self.unpacked),
            _ => Err(OTHER_LENGTH),
        }
    }
}

pub(crate) const TOO_MUCH: &str = "it claims to unpack to more than a chunk may";
pub(crate) const OTHER_LENGTH: &str = "it does not unpack to the length it claims";

/// Where all chunks are: from the index where there is a sound one, else by a scan.
pub(crate) fn find_chunks(
    source: &Source,
    reader: &mut ChunkReader,
    findings: &mut Vec<Finding>,
) -> Result<Vec<ChunkPlace>, RecordingError> {
    if let Some(places) = indexed(source, reader)? {
        return Ok(places);
    }
    let is_closed = last_index(source)?.is_some();
    findings.push(if is_closed { Finding::DamagedIndex } else { Finding::NoIndex });
    let mut scan = ChunkScan::new();
    scan.go_on(source, findings, true)?;
    Ok(scan.places)
}

/// Where the last part of the index begins, as the trailer says.
pub(crate) fn last_index(source: &Source) -> Result<Option<u64>, RecordingError> {
    let Some(trailer_at) = source.length()?.checked_sub(TRAILER_BYTES as u64) else { return Ok(None) };
    let mut trailer = Vec::new();
    source.read_at(trailer_at, TRAILER_BYTES, &mut trailer)?;
    let Some((magic, offset)) = trailer.split_first_chunk() else { return Ok(None) };
    let offset = offset.first_chunk().filter(|_| *magic == TRAILER_MAGIC);
    Ok(offset.map(|&offset| u64::from_le_bytes(offset)))
}

fn indexed(source: &Source, reader: &mut ChunkReader) -> Result<Option<Vec<ChunkPlace>>, RecordingError> {
    let Some(mut offset) = last_index(source)? else { return Ok(None) };
    let trailer_at = source.length()?.saturating_sub(TRAILER_BYTES as u64);
    let mut parts = Vec::new();
    let mut header = Vec::new();
    let mut limit = trailer_at;
    while offset != 0 {
        // Each part lies before the one that names it.
        if offset >= limit {
            return Ok(None);
        }
        limit = offset;
        source.read_at(offset, CHUNK_HEADER_BYTES, &mut header)?;
        let Some(found) = ChunkHeader::read(&header).filter(|found| found.kind == ChunkKind::INDEX) else {
            return Ok(None);
        };
        let place = place_of(&found, offset);
        let Ok(payload) = reader.read(source, &place)? else { return Ok(None) };
        let Some((before, places)) = parse_index(payload, found.events, trailer_at) else { return Ok(None) };
        parts.push(places);
        offset = before;
    }
    parts.reverse();
    Ok(Some(parts.concat()))
}

/// Returns the problem of a chunk with these first bytes, which are all of them when `is_whole`.
pub(crate) fn problem_of(bytes: &[u8], place: &ChunkPlace, is_whole: bool) -> Option<&'static str> {
    let Some(header) = ChunkHeader::read(bytes) else { return Some("its header is damaged") };
    let found = place_of(&header, place.offset);
    let is_it = (found.kind, found.stored_bytes, found.events, found.first_nanos)
        == (place.kind, place.stored_bytes, place.events, place.first_nanos);
    if !is_it {
        return Some("its header is not the one that the index names");
    }
    if !is_whole {
        return None;
    }
    let Some(body) = bytes.get(CHUNK_HEADER_BYTES..CHUNK_HEADER_BYTES + header.stored_bytes as usize) else {
        return Some("the file ends inside of it");
    };
    (crc32fast::hash(body) != header.check).then_some("its checksum does not match")
}

fn place_of(header: &ChunkHeader, offset: u64) -> ChunkPlace {
    let ChunkHeader { kind, stored_bytes, events, first_nanos, .. } = *header;
    ChunkPlace { kind, offset, stored_bytes, events, first_nanos }
}

fn parse_index(payload: &[u8], entries: u32, limit: u64) -> Option<(u64, Vec<ChunkPlace>)> {
    let mut take = Take::new(payload);
    let before = take.number()?;
    let mut places = Vec::new();
    let mut offset = 0_u64;
    for _ in 0..entries {
        let kind = ChunkKind([take.byte()?, take.byte()?, take.byte()?, take.byte()?]);
        offset = offset.checked_add(take.number()?)?;
        let (stored_bytes, events, first_nanos) = (take.number32()?, take.number32()?, take.number()?);
        let end = offset.checked_add(CHUNK_HEADER_BYTES as u64 + u64::from(stored_bytes))?;
        if end > limit {
            return None;
        }
        places.push(ChunkPlace { kind, offset, stored_bytes, events, first_nanos });
    }
    Some((before, places))
}

/// Goes from header to header; can go on later when the file has grown.
pub(crate) struct ChunkScan {
    next: u64,
    pub(crate) places: Vec<ChunkPlace>,
}

impl ChunkScan {
    pub(crate) fn new() -> Self {
        Self { next: FILE_HEADER_BYTES as u64, places: Vec::new() }
    }

    /// Finds the chunks up to the end of the file. `is_last` when the file grows no more: what is
    /// incomplete at its end is noted then.
    pub(crate) fn go_on(
        &mut self,
        source: &Source,
        findings: &mut Vec<Finding>,
        is_last: bool,
    ) -> Result<(), RecordingError> {
        let length = source.length()?;
        let mut bytes = Vec::new();
        while self.next < length {
            source.read_at(self.next, CHUNK_HEADER_BYTES, &mut bytes)?;
            let left = length - self.next;
            let header = ChunkHeader::read(&bytes);
            if let Some(header) = header {
                let end = CHUNK_HEADER_BYTES as u64 + u64::from(header.stored_bytes);
                if end <= left {
                    self.places.push(place_of(&header, self.next));
                    self.next += end.next_multiple_of(8);
                    continue;
                }
            }
            if self.is_trailer(&bytes) {
                if left == TRAILER_BYTES as u64 {
                    return Ok(());
                }
                // The file was closed here, and chunks were added later.
                self.next += TRAILER_BYTES as u64;
                continue;
            }
            if !is_last {
                return Ok(());
            }
            let is_cut = header.is_some() || bytes.len() < CHUNK_HEADER_BYTES;
            let found = if is_cut { None } else { self.next_header(source, length)? };
            match found {
                Some(offset) => {
                    findings.push(Finding::SkippedBytes { offset: self.next, count: offset - self.next });
                    self.next = offset;
                }
                None => {
                    findings.push(Finding::TornTail { offset: self.next, lost_bytes: left });
                    self.next = length;
                }
            }
        }
        Ok(())
    }

    /// Whether this is the trailer that belongs to the chunk in front.
    fn is_trailer(&self, bytes: &[u8]) -> bool {
        let last = self.places.last().filter(|place| place.kind == ChunkKind::INDEX);
        let offset = last.map_or(0, |place| place.offset);
        bytes.strip_prefix(&TRAILER_MAGIC).and_then(|rest| rest.first_chunk()) == Some(&offset.to_le_bytes())
    }

    /// The next place where an intact header is: chunks begin at multiples of eight.
    fn next_header(&self, source: &Source, length: u64) -> Result<Option<u64>, RecordingError> {
        const WINDOW: usize = 1 << 20;
        let mut bytes = Vec::new();
        let mut offset = self.next + 8;
        while offset + CHUNK_HEADER_BYTES as u64 <= length {
            source.read_at(offset, WINDOW, &mut bytes)?;
            let starts = (0..(bytes.len() + 1).saturating_sub(CHUNK_HEADER_BYTES)).step_by(8);
            for start in starts {
                // The sum of 28 bytes for each eight of a damaged file: slow, and rare enough.
                if bytes.get(start..).and_then(ChunkHeader::read).is_some() {
                    return Ok(Some(offset + start as u64));
                }
            }
            offset += (WINDOW - CHUNK_HEADER_BYTES) as u64;
        }
        Ok(None)
    }
}
