//! The interface of every symbol source: from a stated address to frames.
//!
//! Sources return names as stored. [`FrameSink`] demangles them, deduplicates texts, and names
//! functions if only their start is known.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use cairn_format::{StatedAddress, WordSize};

use crate::demangle::{demangle, scheme};
use crate::index::Cache;
use crate::{AnsweredBy, DataSymbol, Declaration, SourceFrame, Unknown};

/// The source language of a name, if the file states it; selects the demangler.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub(crate) enum Language {
    /// Detect the scheme from the name.
    #[default]
    Unknown,
    Rust,
    Cpp,
    /// C, assembly and other languages without mangling.
    Plain,
    Swift,
}

/// A frame as its source stores it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RawFrame<'a> {
    /// The function's name as stored: mangled, in languages that mangle.
    pub(crate) name: Option<&'a str>,
    pub(crate) language: Language,
    pub(crate) file: Option<&'a str>,
    pub(crate) line: Option<u32>,
    pub(crate) column: Option<u32>,
    pub(crate) discriminator: Option<u32>,
    /// True for all frames of an answer but the outermost.
    pub(crate) inlined: bool,
}

/// The location of a stored text, used as a cache key.
///
/// Most frames of most answers are calls of the same few functions, and a location that was read
/// once need not be read again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct TextKey {
    /// Identifies engine and kind of location; unique in the process.
    pub(crate) reader: u64,
    pub(crate) at: u64,
}

/// A table keyed by [`TextKey`].
///
/// The keys come from files, so each table has a secret seed against chosen collisions.
pub(crate) type TextTable<T> = HashMap<TextKey, T, SeededHash>;

/// Creates the hashers of one table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SeededHash(u64);

impl Default for SeededHash {
    fn default() -> Self {
        Self(RandomState::new().hash_one(0_u8))
    }
}

impl BuildHasher for SeededHash {
    type Hasher = SeededHasher;

    fn build_hasher(&self) -> SeededHasher {
        SeededHasher(self.0)
    }
}

/// Mixes both halves of a product into the next state: a few instructions per number.
#[derive(Debug)]
pub(crate) struct SeededHasher(u64);

impl Hasher for SeededHasher {
    fn write(&mut self, bytes: &[u8]) {
        let mut words = bytes.chunks_exact(8);
        for word in &mut words {
            self.write_u64(word.try_into().map_or(0, u64::from_le_bytes));
        }
        let rest = words.remainder().iter().fold(0, |rest, &byte| rest << 8 | u64::from(byte));
        self.write_u64(rest);
        self.write_u64(bytes.len() as u64);
    }

    #[inline]
    fn write_u64(&mut self, value: u64) {
        // The fractional part of the golden ratio: odd, and without a pattern.
        const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
        let wide = u128::from(self.0 ^ value) * u128::from(MULTIPLIER);
        self.0 = (wide as u64) ^ (wide >> 64) as u64;
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

/// Answers queries for one module.
pub(crate) trait SymbolSource: Send + Sync {
    /// Pushes the frames of a stated address, innermost first. Pushes nothing if it fails.
    fn frames_at(&self, address: StatedAddress, out: &mut FrameSink) -> Result<(), Unknown>;

    /// Returns the declaration of each frame's function: for all frames, or for none.
    fn declarations_at(&self, _address: StatedAddress) -> Vec<Declaration> {
        Vec::new()
    }

    /// Returns the symbol at an address.
    fn data_at(&self, _address: StatedAddress) -> Option<DataSymbol> {
        None
    }

    /// Returns the module's stated base, to which a [`ModuleOffset`](cairn_format::ModuleOffset) is
    /// added.
    fn base(&self) -> StatedAddress {
        StatedAddress::new(0)
    }

    /// Returns the width of an address in this file.
    fn word_size(&self) -> WordSize {
        WordSize::Bits64
    }

    /// Reports whether an index on disk is worthwhile and missing.
    fn wants_index(&self) -> bool {
        false
    }

    /// Reports whether the answers come from the index on disk.
    fn has_index(&self) -> bool {
        false
    }

    /// Writes all answers to disk; true if the index is complete.
    fn build_index(&self, _cache: &Cache, _cancelled: &AtomicBool) -> bool {
        false
    }

    /// Returns the files that answer; the mapped file first.
    fn files(&self) -> Vec<PathBuf>;
}

/// Reports whether a name may be only the last part of the linkage name.
///
/// GCC omits the linkage name of functions that it derives from others, and of functions with
/// internal linkage.
pub(crate) fn may_be_qualified(raw: &str, language: Language) -> bool {
    !matches!(language, Language::Plain | Language::Rust) && scheme(raw).is_none()
}

/// Returns the linkage name of the function that covers an address, if `raw` is the last part of
/// it.
pub(crate) fn qualified<'a>(raw: &str, symbol: &'a str) -> Option<&'a str> {
    let symbol = without_cold(symbol);
    let readable = demangle(symbol, Language::Unknown)?;
    is_last_part(raw, &readable).then_some(symbol)
}

/// Strips the suffix of a function's rarely executed part, which has a symbol of its own.
fn without_cold(symbol: &str) -> &str {
    symbol.strip_suffix(".cold").unwrap_or(symbol)
}

/// Compares names without their template arguments, which are written in different ways.
fn is_last_part(raw: &str, readable: &str) -> bool {
    let bare = if raw.starts_with("operator") { raw } else { raw.split('<').next().unwrap_or(raw) };
    let ends_there = |at: usize| {
        let (before, after) = (&readable[..at], &readable[at + bare.len()..]);
        before.ends_with("::") && (after.is_empty() || after.starts_with(['(', '<', '[', ' ']))
    };
    !bare.is_empty() && readable.match_indices(bare).any(|(at, _)| ends_there(at))
}

/// Collects the frames of one address after another, and deduplicates all texts.
#[derive(Default)]
pub(crate) struct FrameSink {
    frames: Vec<SourceFrame>,
    /// Language of the last pushed frame.
    language: Language,
    function_start: Option<StatedAddress>,
    answered_by: Option<AnsweredBy>,
    /// By language: from each stored name to its readable form.
    names: [HashMap<Arc<str>, Arc<str>, SeededHash>; LANGUAGES],
    files: HashSet<Arc<str>, SeededHash>,
    name_places: TextTable<Option<CachedName>>,
    file_places: TextTable<Option<Arc<str>>>,
}

/// A deduplicated name, as stored and in readable form.
#[derive(Clone)]
pub(crate) struct CachedName {
    raw: Arc<str>,
    readable: Arc<str>,
}

const LANGUAGES: usize = 5;

/// Maximum cached texts; 128 Ki, which take ten to a hundred megabytes.
const MAX_TEXTS: usize = 1 << 17;

impl FrameSink {
    /// Adds the next outer frame.
    pub(crate) fn push(&mut self, frame: RawFrame<'_>) {
        let name = frame.name.map(|name| self.name(name, frame.language));
        let file = frame.file.map(|file| self.file(file));
        self.push_retained(frame, name, file);
    }

    /// Adds the next outer frame from deduplicated texts.
    pub(crate) fn push_retained(
        &mut self,
        frame: RawFrame<'_>,
        name: Option<CachedName>,
        file: Option<Arc<str>>,
    ) {
        let (function, raw_name) = name.map(|name| (name.readable, name.raw)).unzip();
        let RawFrame { line, column, discriminator, inlined, language, .. } = frame;
        self.language = language;
        self.frames.push(SourceFrame { function, raw_name, file, line, column, discriminator, inlined });
    }

    /// Returns the name stored at a location; calls `read` on the first use.
    pub(crate) fn name_at<'a, E>(
        &mut self,
        place: Option<TextKey>,
        language: Language,
        read: impl FnOnce() -> Result<Option<Cow<'a, str>>, E>,
    ) -> Result<Option<CachedName>, E> {
        if let Some(known) = place.and_then(|place| self.name_places.get(&place)) {
            return Ok(known.clone());
        }
        let name = read()?.map(|name| self.name(&name, language));
        if let Some(place) = place {
            self.name_places.insert(place, name.clone());
        }
        Ok(name)
    }

    /// Returns the file stored at a location; calls `read` on the first use.
    pub(crate) fn file_at<'a>(
        &mut self,
        place: Option<TextKey>,
        read: impl FnOnce() -> Option<&'a str>,
    ) -> Option<Arc<str>> {
        if let Some(known) = place.and_then(|place| self.file_places.get(&place)) {
            return known.clone();
        }
        let file = read().map(|file| self.file(file));
        if let Some(place) = place {
            self.file_places.insert(place, file.clone());
        }
        file
    }

    /// Sets the start of the function that holds the address; a nameless frame becomes
    /// `module+0x…`.
    pub(crate) fn set_function_start(&mut self, start: StatedAddress) {
        self.function_start = Some(start);
    }

    /// Adds a frame from a symbol alone.
    pub(crate) fn push_symbol(&mut self, name: &str, file: Option<&str>) {
        self.push(RawFrame { name: Some(name), file, ..RawFrame::default() });
    }

    /// Names the outermost frame if it has no name; adds one if there is none.
    pub(crate) fn name_outermost(&mut self, name: &str, language: Language) {
        let name = self.name(name, language);
        if self.frames.is_empty() {
            self.frames.push(SourceFrame::default());
        }
        if let Some(outermost) = self.frames.last_mut()
            && outermost.function.is_none()
        {
            outermost.function = Some(name.readable);
            outermost.raw_name = Some(name.raw);
        }
    }

    /// Gives the outermost frame a readable name without a linkage name.
    pub(crate) fn name_outermost_readable(&mut self, name: &str) {
        if self.frames.is_empty() {
            self.frames.push(SourceFrame::default());
        }
        if let Some(outermost) = self.frames.last_mut() {
            outermost.function = Some(name.into());
        }
    }

    /// Records which source of a module answered for the current address.
    pub(crate) fn set_answered_by(&mut self, source: AnsweredBy) {
        self.answered_by = Some(source);
    }

    /// Takes the source that answered, if it was recorded.
    pub(crate) fn take_answered_by(&mut self) -> Option<AnsweredBy> {
        self.answered_by.take()
    }

    /// Returns the start of the function that holds the current address, if it was set.
    pub(crate) fn function_start(&self) -> Option<StatedAddress> {
        self.function_start
    }

    /// Reports whether [`qualify_outermost`](Self::qualify_outermost) may change the name.
    pub(crate) fn wants_qualified_name(&self) -> bool {
        let raw = self.frames.last().and_then(|outermost| outermost.raw_name.as_deref());
        raw.is_some_and(|raw| may_be_qualified(raw, self.language))
    }

    /// Gives the outermost frame the symbol's name, if its own is the last part of that.
    pub(crate) fn qualify_outermost(&mut self, symbol: &str) {
        let Some(raw) = self.frames.last().and_then(|outermost| outermost.raw_name.clone()) else { return };
        let symbol = without_cold(symbol);
        if scheme(symbol).is_none() {
            return;
        }
        let name = self.name(symbol, Language::Unknown);
        if let (true, Some(outermost)) = (is_last_part(&raw, &name.readable), self.frames.last_mut()) {
            outermost.function = Some(name.readable);
            outermost.raw_name = Some(name.raw);
        }
    }

    /// Returns the frames of the current address so far.
    pub(crate) fn frames(&self) -> &[SourceFrame] {
        &self.frames
    }

    /// Reports whether the current address has no facts yet.
    pub(crate) fn is_empty(&self) -> bool {
        self.frames.is_empty() && self.function_start.is_none()
    }

    /// Discards the facts of the current address.
    pub(crate) fn clear(&mut self) {
        self.frames.clear();
        self.function_start = None;
        self.answered_by = None;
    }

    /// Takes the frames of the current address, and prepares for the next one.
    pub(crate) fn take(&mut self) -> (Arc<[SourceFrame]>, Option<StatedAddress>) {
        (self.frames.drain(..).collect(), self.function_start.take())
    }

    /// Evicts all cached texts above the limit: a log reader may run for days.
    pub(crate) fn tidy(&mut self) {
        if self.names.iter().map(HashMap::len).sum::<usize>() > MAX_TEXTS {
            self.names = Default::default();
        }
        if self.files.len() > MAX_TEXTS {
            self.files = HashSet::default();
        }
        if self.name_places.len() > MAX_TEXTS {
            self.name_places = HashMap::default();
        }
        if self.file_places.len() > MAX_TEXTS {
            self.file_places = HashMap::default();
        }
    }

    fn name(&mut self, raw: &str, language: Language) -> CachedName {
        let known = &mut self.names[language as usize];
        if let Some((raw, readable)) = known.get_key_value(raw) {
            return CachedName { raw: Arc::clone(raw), readable: Arc::clone(readable) };
        }
        let shared: Arc<str> = raw.into();
        let readable = demangle(raw, language).map_or_else(|| Arc::clone(&shared), Arc::from);
        known.insert(Arc::clone(&shared), Arc::clone(&readable));
        CachedName { raw: shared, readable }
    }

    fn file(&mut self, file: &str) -> Arc<str> {
        if let Some(known) = self.files.get(file) {
            return Arc::clone(known);
        }
        let shared: Arc<str> = file.into();
        self.files.insert(Arc::clone(&shared));
        shared
    }
}
