//! Builds an index that holds every answer of a file.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicBool, Ordering};

use super::format::{
    BLOCK_SEGMENTS, HEADER_BYTES, MAGIC, PAGE_BYTES, PARTS, Segment, VERSION, language_number, scope,
    segment, write_number,
};
use crate::dwarf::{ScopeId, SegmentSink, SourcePosition};
use crate::elf::ElfSource;
use crate::source::{Language, SeededHash, may_be_qualified, qualified};

/// An index in memory: its header, and its parts in file order.
pub(crate) struct Built {
    header: Vec<u8>,
    parts: [Vec<u8>; PARTS],
}

impl Built {
    /// Returns the bytes of the index, part by part.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        std::iter::once(&self.header).chain(&self.parts).map(Vec::as_slice)
    }

    /// Returns the checksum of each page of the first `bytes`.
    fn page_checks(&self, bytes: usize) -> Vec<u8> {
        let mut checks = Vec::new();
        let mut checksum = flate2::Crc::new();
        let mut done = 0;
        for mut piece in self.pieces() {
            while done < bytes && !piece.is_empty() {
                let end = (done / PAGE_BYTES + 1) * PAGE_BYTES;
                let (now, rest) = piece.split_at(piece.len().min(end.min(bytes) - done));
                checksum.update(now);
                (piece, done) = (rest, done + now.len());
                if done == end || done == bytes {
                    checks.extend(checksum.sum().to_le_bytes());
                    checksum.reset();
                }
            }
        }
        checks
    }

    pub(crate) fn len_bytes(&self) -> u64 {
        self.pieces().map(|piece| piece.len() as u64).sum()
    }
}

/// Builds the index of every answer of `source`.
///
/// Returns `None` if the debug information is broken, the code spans more than four gigabytes, or
/// the build was cancelled.
pub(crate) fn build(source: &ElfSource, identity: &[u8], cancelled: &AtomicBool) -> Option<Built> {
    let code = source.code();
    let (base, end) = (code.first()?.0, code.iter().map(|&(_, end)| end).max()?);
    u32::try_from(end.checked_sub(base)?).ok()?;
    // Addresses at which symbol tables may change the answer.
    let mut extra: Vec<u64> = source.symbols().boundaries().chain(source.function_boundaries()).collect();
    extra.sort_unstable();
    extra.dedup();
    let mut builder = Builder::new(source, base);
    let mut engine = source.own_engine().ok()?;
    let mut reached = base;
    for &(begin, end) in code {
        // No sound program has overlapping segments.
        if begin < reached {
            return None;
        }
        let mut window = begin;
        while window < end {
            if cancelled.load(Ordering::Relaxed) {
                return None;
            }
            let after = end.min(window.saturating_add(WINDOW_BYTES));
            let first = extra.partition_point(|&cut| cut < window);
            let behind = extra.partition_point(|&cut| cut < after);
            engine.emit_window(window, after, &extra[first..behind], &mut builder).ok()?;
            // Files that are missing today may be present tomorrow.
            if engine.misses_split_files() {
                return None;
            }
            window = after;
            engine.forget_before(window);
            // Units whose code lies far apart stay cached for long; with many of them, the engine
            // is recreated.
            if engine.retained_bytes() > MAX_RETAINED_BYTES {
                engine = source.own_engine().ok()?;
            }
        }
        builder.segment(end, None);
        reached = end;
    }
    builder.finish(code, identity)
}

/// Bytes of code per window; 1 MiB, because the state of one window is a fraction of that of its
/// units.
const WINDOW_BYTES: u64 = 1 << 20;

/// Maximum bytes of parsed debug information during a build; 512 MiB.
const MAX_RETAINED_BYTES: u64 = 512 << 20;

struct Builder<'a> {
    source: &'a ElfSource,
    base: u64,
    blocks: Vec<u8>,
    segments: Vec<u8>,
    scopes: Vec<u8>,
    names: Texts,
    files: Texts,
    text: Vec<u8>,
    /// Functions without a name, by the start of their symbol, each with the symbol's file.
    unnamed: HashMap<Option<u64>, (ScopeId, Option<u32>)>,
    /// The content of the last segment, and the reader's state after it.
    last: Option<Segment>,
    before: Segment,
    last_start: u32,
    in_block: usize,
    failed: bool,
}

/// Numbers texts, and deduplicates them.
///
/// The table holds hashes only, and compares texts in place: a table of copies would be as large as
/// the index. Two texts with one hash evict each other; an evicted text is written again, which
/// costs space and nothing else.
struct Texts {
    hashing: SeededHash,
    numbers: HashMap<u64, u32, SeededHash>,
    table: Vec<u8>,
}

impl Texts {
    fn new() -> Self {
        Self { hashing: SeededHash::default(), numbers: HashMap::default(), table: Vec::new() }
    }

    /// Reports whether entry `number` of the table is this text.
    fn is(&self, number: u32, value: &str, kind_number: u32, text: &[u8]) -> bool {
        let entry = self.table.get(number as usize * 8..).and_then(|rest| rest.first_chunk::<8>());
        let Some([a, b, c, d, rest @ ..]) = entry else { return false };
        let first = u32::from_le_bytes([*a, *b, *c, *d]) as usize;
        u32::from_le_bytes(*rest) == value.len() as u32 | kind_number << 24
            && text.get(first..).is_some_and(|text| text.starts_with(value.as_bytes()))
    }

    /// Returns the number of a text. A text that does not fit becomes empty, and `failed` is set.
    fn number(&mut self, value: &str, kind_number: u32, text: &mut Vec<u8>, failed: &mut bool) -> u32 {
        let hash = self.hashing.hash_one((value, kind_number));
        if let Some(&number) = self.numbers.get(&hash)
            && self.is(number, value, kind_number, text)
        {
            return number;
        }
        let number = (self.table.len() / 8) as u32;
        let (Ok(first), true) = (u32::try_from(text.len()), value.len() < 1 << 24) else {
            *failed = true;
            return 0;
        };
        self.table.extend(first.to_le_bytes());
        self.table.extend((value.len() as u32 | kind_number << 24).to_le_bytes());
        text.extend_from_slice(value.as_bytes());
        self.numbers.insert(hash, number);
        number
    }
}

impl<'a> Builder<'a> {
    fn new(source: &'a ElfSource, base: u64) -> Self {
        Self {
            source,
            base,
            blocks: Vec::new(),
            segments: Vec::new(),
            scopes: Vec::new(),
            names: Texts::new(),
            files: Texts::new(),
            text: Vec::new(),
            unnamed: HashMap::new(),
            last: None,
            before: Segment::default(),
            last_start: 0,
            in_block: 0,
            failed: false,
        }
    }

    fn number_of_name(&mut self, (name, language): (&str, Language)) -> u32 {
        self.names.number(name, language_number(language), &mut self.text, &mut self.failed)
    }

    fn scope(
        &mut self,
        parent: Option<ScopeId>,
        name: Option<u32>,
        call: SourcePosition,
        start: Option<u64>,
    ) -> ScopeId {
        let Ok(id) = u32::try_from(self.scopes.len()) else {
            self.failed = true;
            return 0;
        };
        let start = start.and_then(|start| u32::try_from(start.checked_sub(self.base)?).ok());
        let fields = [
            (parent.map(|parent| id - parent), scope::PARENT),
            (name, scope::NAME),
            (call.file, scope::FILE),
            (call.line, scope::LINE),
            (call.column, scope::COLUMN),
            (start, scope::START),
        ];
        let flags = fields.iter().filter(|(value, _)| value.is_some()).map(|(_, flag)| flag);
        self.scopes.push(flags.fold(0, |all, flag| all | flag));
        for value in fields.iter().filter_map(|(value, _)| *value) {
            write_number(value, &mut self.scopes);
        }
        id
    }

    /// Returns the name that a frame of this function gets.
    fn qualified<'n>(&self, address: u64, (raw, language): (&'n str, Language)) -> (&'n str, Language)
    where
        'a: 'n,
    {
        if !may_be_qualified(raw, language) {
            return (raw, language);
        }
        let symbol = self.source.symbols().find(address);
        match symbol.and_then(|symbol| qualified(raw, symbol.name)) {
            Some(symbol) => (symbol, Language::Unknown),
            None => (raw, language),
        }
    }

    /// Returns the scope of code outside every DWARF function: a symbol, a function start, or
    /// nothing.
    fn unnamed_root(&mut self, address: u64) -> (ScopeId, Option<u32>) {
        let source = self.source;
        let symbol = source.symbols().find(address);
        let start = symbol.map(|symbol| symbol.start).or_else(|| source.function_start(address));
        if let Some(&known) = self.unnamed.get(&start) {
            return known;
        }
        if start.is_some_and(|start| start < self.base) {
            self.failed = true;
        }
        let name = symbol.map(|symbol| self.number_of_name((symbol.name, Language::Unknown)));
        let id = self.scope(None, name, SourcePosition::default(), start);
        let file = symbol.and_then(|symbol| symbol.file).map(|file| self.file(file));
        self.unnamed.insert(start, (id, file));
        (id, file)
    }

    fn write_segment(&mut self, address: u64, known: Option<Segment>) {
        if self.last.is_some() && known == self.last || self.blocks.is_empty() && known.is_none() {
            return;
        }
        if known.is_none() && self.last.is_none() {
            return;
        }
        let Ok(start) = u32::try_from(address.wrapping_sub(self.base)) else {
            self.failed = true;
            return;
        };
        let step = if self.in_block.is_multiple_of(BLOCK_SEGMENTS) {
            let Ok(at) = u32::try_from(self.segments.len()) else {
                self.failed = true;
                return;
            };
            self.blocks.extend(start.to_le_bytes());
            self.blocks.extend(at.to_le_bytes());
            self.before = Segment::default();
            None
        } else {
            Some(start - self.last_start)
        };
        match &known {
            Some(known) => known.write(&mut self.before, step, &mut self.segments),
            None => {
                self.segments.push(segment::NOTHING);
                step.into_iter().for_each(|step| write_number(step, &mut self.segments));
            }
        }
        self.in_block += 1;
        self.last_start = start;
        self.last = known;
    }

    fn finish(self, code: &[(u64, u64)], identity: &[u8]) -> Option<Built> {
        if self.failed {
            return None;
        }
        let code = code.iter().flat_map(|(begin, end)| [begin.to_le_bytes(), end.to_le_bytes()]).flatten();
        let mut parts: [Vec<u8>; PARTS] = [
            identity.to_vec(),
            code.collect(),
            self.blocks,
            self.segments,
            self.scopes,
            self.names.table,
            self.files.table,
            self.text,
            Vec::new(),
        ];
        let front_bytes = HEADER_BYTES + parts.iter().map(Vec::len).sum::<usize>();
        if let Some(checks) = parts.last_mut() {
            checks.resize(front_bytes.div_ceil(PAGE_BYTES) * 4, 0);
        }
        let mut checked = self.base.to_le_bytes().to_vec();
        let mut end = HEADER_BYTES as u64;
        for part in &parts {
            end += part.len() as u64;
            checked.extend(end.to_le_bytes());
        }
        let mut checksum = flate2::Crc::new();
        checksum.update(&checked);
        let mut header = Vec::with_capacity(HEADER_BYTES);
        header.extend(MAGIC);
        header.extend(VERSION.to_le_bytes());
        header.extend(checksum.sum().to_le_bytes());
        header.extend(checked);
        let mut built = Built { header, parts };
        let checks = built.page_checks(front_bytes);
        if let Some(place) = built.parts.last_mut() {
            *place = checks;
        }
        Some(built)
    }
}

impl SegmentSink for Builder<'_> {
    fn root(&mut self, address: u64, name: Option<(&str, Language)>) -> ScopeId {
        match name {
            Some(name) => {
                let name = self.qualified(address, name);
                let name = self.number_of_name(name);
                self.scope(None, Some(name), SourcePosition::default(), None)
            }
            None => self.unnamed_root(address).0,
        }
    }

    fn name(&mut self, name: (&str, Language)) -> u32 {
        self.number_of_name(name)
    }

    fn inlined(&mut self, into: ScopeId, name: Option<u32>, call: SourcePosition) -> ScopeId {
        self.scope(Some(into), name, call, None)
    }

    fn file(&mut self, path: &str) -> u32 {
        self.files.number(path, 0, &mut self.text, &mut self.failed)
    }

    fn segment(&mut self, address: u64, known: Option<(ScopeId, SourcePosition)>) {
        let known = match known {
            Some(known) => Some(known),
            None if self.source.is_code(address) && self.source.is_function(address) => {
                let (scope, file) = self.unnamed_root(address);
                Some((scope, SourcePosition { file, ..SourcePosition::default() }))
            }
            None => None,
        };
        let known = known.map(|(scope, place)| {
            let flags = [
                (place.file, segment::HAS_FILE),
                (place.line, segment::HAS_LINE),
                (place.column, segment::HAS_COLUMN),
            ];
            Segment {
                flags: flags.iter().filter(|(value, _)| value.is_some()).fold(0, |all, (_, flag)| all | flag),
                scope,
                file: place.file.unwrap_or(0),
                line: place.line.unwrap_or(0),
                column: place.column.unwrap_or(0),
                discriminator: place.discriminator.filter(|_| place.line.is_some()).unwrap_or(0),
            }
        });
        self.write_segment(address, known);
    }
}
