//! What every kind of symbol file is inside: something that knows the frames of a stated address.
//!
//! A source hands over names as they are stored; demangling, sharing of equal texts and the names of functions of which
//! only the start is known are done once, in [`FrameSink`].

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

/// The source language of a name, where the file says it; decides how it is demangled.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub(crate) enum Language {
    /// By the look of the name.
    #[default]
    Unknown,
    Rust,
    Cpp,
    /// C, assembly and whatever else does not mangle.
    Plain,
    Swift,
}

/// One frame as a source knows it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RawFrame<'a> {
    /// The function's name as it is stored: mangled, where the language mangles.
    pub(crate) name: Option<&'a str>,
    pub(crate) language: Language,
    pub(crate) file: Option<&'a str>,
    pub(crate) line: Option<u32>,
    pub(crate) column: Option<u32>,
    pub(crate) discriminator: Option<u32>,
    /// True for all frames of an answer but the last.
    pub(crate) inlined: bool,
}

/// Where a text is stored. A place that was read once need not be read again to know its text: most frames of most
/// answers are calls of the same few functions.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct TextPlace {
    /// Which reader of which file; never given twice in a process. With it, what kind of place it is.
    pub(crate) reader: u64,
    pub(crate) at: u64,
}

/// Tables by [`TextPlace`]. The numbers come from files, and nobody must be able to choose such as fall together, so each
/// table has a secret of its own.
pub(crate) type ByPlace<T> = HashMap<TextPlace, T, Mixing>;

/// Makes the hashers of one table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mixing(u64);

impl Default for Mixing {
    fn default() -> Self {
        Self(RandomState::new().hash_one(0_u8))
    }
}

impl BuildHasher for Mixing {
    type Hasher = Mixed;

    fn build_hasher(&self) -> Mixed {
        Mixed(self.0)
    }
}

/// Folds both halves of a product into the next state: some instructions for each number.
#[derive(Debug)]
pub(crate) struct Mixed(u64);

impl Hasher for Mixed {
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
        // The fraction of the golden ratio: odd, and without a pattern.
        const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
        let wide = u128::from(self.0 ^ value) * u128::from(MULTIPLIER);
        self.0 = (wide as u64) ^ (wide >> 64) as u64;
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

/// Where the symbols of one module come from.
pub(crate) trait SymbolSource: Send + Sync {
    /// Pushes the frames of one address, as the file itself counts, innermost first. Pushes nothing when it fails.
    fn frames_at(&self, address: StatedAddress, out: &mut FrameSink) -> Result<(), Unknown>;

    /// Where the function of each frame of an address is declared; of all frames, or of none.
    fn declarations_at(&self, _address: StatedAddress) -> Vec<Declaration> {
        Vec::new()
    }

    /// What symbol tables name at an address.
    fn data_at(&self, _address: StatedAddress) -> Option<DataSymbol> {
        None
    }

    /// The stated address of the module's base: what a [`ModuleOffset`](cairn_format::ModuleOffset) is added to.
    fn base(&self) -> StatedAddress {
        StatedAddress::new(0)
    }

    /// Width of an address in this file.
    fn word_size(&self) -> WordSize {
        WordSize::Bits64
    }

    /// True when the answers are worth keeping on disk, and are not there yet.
    fn wants_index(&self) -> bool {
        false
    }

    /// True when the answers come from the index on disk.
    fn has_index(&self) -> bool {
        false
    }

    /// Writes all answers to disk; true when they are there now.
    fn build_index(&self, _cache: &Cache, _cancelled: &AtomicBool) -> bool {
        false
    }

    /// The files that answer, the one that was mapped first.
    fn files(&self) -> Vec<PathBuf>;
}

/// True when a function's name may be only the last part of what the linker knows: GCC leaves the linker's name out for
/// functions that it made out of others, and for those that no other file sees.
pub(crate) fn may_be_qualified(raw: &str, language: Language) -> bool {
    !matches!(language, Language::Plain | Language::Rust) && scheme(raw).is_none()
}

/// The linker's name of a function that covers an address and whose name is only `raw` in the debug information.
pub(crate) fn qualified<'a>(raw: &str, symbol: &'a str) -> Option<&'a str> {
    let symbol = without_cold(symbol);
    let readable = demangle(symbol, Language::Unknown)?;
    is_last_part(raw, &readable).then_some(symbol)
}

/// The part of a function that seldom runs lies elsewhere and has a symbol of its own. It is the same function.
fn without_cold(symbol: &str) -> &str {
    symbol.strip_suffix(".cold").unwrap_or(symbol)
}

/// Template arguments are written in different ways, so the name in front of them must do.
fn is_last_part(raw: &str, readable: &str) -> bool {
    let bare = if raw.starts_with("operator") { raw } else { raw.split('<').next().unwrap_or(raw) };
    let ends_there = |at: usize| {
        let (before, after) = (&readable[..at], &readable[at + bare.len()..]);
        before.ends_with("::") && (after.is_empty() || after.starts_with(['(', '<', '[', ' ']))
    };
    !bare.is_empty() && readable.match_indices(bare).any(|(at, _)| ends_there(at))
}

/// Takes in the frames of one address after the other, and keeps every distinct text once.
#[derive(Default)]
pub(crate) struct FrameSink {
    frames: Vec<SourceFrame>,
    /// Of the frame that was pushed last.
    language: Language,
    function_start: Option<StatedAddress>,
    answered_by: Option<AnsweredBy>,
    /// By language: from each name as it is stored to the readable one.
    names: [HashMap<Arc<str>, Arc<str>, Mixing>; LANGUAGES],
    files: HashSet<Arc<str>, Mixing>,
    name_places: ByPlace<Option<Name>>,
    file_places: ByPlace<Option<Arc<str>>>,
}

/// A name that is kept, as it is stored and as it is read.
#[derive(Clone)]
pub(crate) struct Name {
    raw: Arc<str>,
    readable: Arc<str>,
}

const LANGUAGES: usize = 5;

/// Some ten to a hundred megabytes.
const MAX_TEXTS: usize = 1 << 17;

impl FrameSink {
    /// Adds the next outer frame.
    pub(crate) fn push(&mut self, frame: RawFrame<'_>) {
        let name = frame.name.map(|name| self.name(name, frame.language));
        let file = frame.file.map(|file| self.file(file));
        self.push_kept(frame, name, file);
    }

    /// Adds the next outer frame, of kept texts.
    pub(crate) fn push_kept(&mut self, frame: RawFrame<'_>, name: Option<Name>, file: Option<Arc<str>>) {
        let (function, raw_name) = name.map(|name| (name.readable, name.raw)).unzip();
        let RawFrame { line, column, discriminator, inlined, language, .. } = frame;
        self.language = language;
        self.frames.push(SourceFrame { function, raw_name, file, line, column, discriminator, inlined });
    }

    /// The name that is stored at a place, if there is one; `read` reads it if it was not read before.
    pub(crate) fn name_at<'a, E>(
        &mut self,
        place: Option<TextPlace>,
        language: Language,
        read: impl FnOnce() -> Result<Option<Cow<'a, str>>, E>,
    ) -> Result<Option<Name>, E> {
        if let Some(known) = place.and_then(|place| self.name_places.get(&place)) {
            return Ok(known.clone());
        }
        let name = read()?.map(|name| self.name(&name, language));
        if let Some(place) = place {
            self.name_places.insert(place, name.clone());
        }
        Ok(name)
    }

    /// The file that is stored at a place, if there is one; `read` reads it if it was not read before.
    pub(crate) fn file_at<'a>(
        &mut self,
        place: Option<TextPlace>,
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

    /// States where the function that holds the address begins. A frame without a name is called `module+0x…` by it.
    pub(crate) fn set_function_start(&mut self, start: StatedAddress) {
        self.function_start = Some(start);
    }

    /// Adds the frame of a function of which a symbol is all that is known.
    pub(crate) fn push_symbol(&mut self, name: &str, file: Option<&str>) {
        self.push(RawFrame { name: Some(name), file, ..RawFrame::default() });
    }

    /// Names the outermost frame, if it has no name yet; adds it, if there is none.
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

    /// Gives the outermost frame a name that no linker knows.
    pub(crate) fn name_outermost_readable(&mut self, name: &str) {
        if self.frames.is_empty() {
            self.frames.push(SourceFrame::default());
        }
        if let Some(outermost) = self.frames.last_mut() {
            outermost.function = Some(name.into());
        }
    }

    /// States which of a module's sources knows the present address.
    pub(crate) fn set_answered_by(&mut self, source: AnsweredBy) {
        self.answered_by = Some(source);
    }

    /// Which source that is, if it was stated; forgets it.
    pub(crate) fn take_answered_by(&mut self) -> Option<AnsweredBy> {
        self.answered_by.take()
    }

    /// Where the function that holds the present address begins, if that was stated.
    pub(crate) fn function_start(&self) -> Option<StatedAddress> {
        self.function_start
    }

    /// True when [`qualify_outermost`](Self::qualify_outermost) may change something.
    pub(crate) fn wants_qualified_name(&self) -> bool {
        let raw = self.frames.last().and_then(|outermost| outermost.raw_name.as_deref());
        raw.is_some_and(|raw| may_be_qualified(raw, self.language))
    }

    /// Gives the outermost frame the name of the symbol that covers the address, when its own is the last part of that.
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

    /// The frames of the present address so far.
    pub(crate) fn frames(&self) -> &[SourceFrame] {
        &self.frames
    }

    /// True when nothing was said of the present address.
    pub(crate) fn is_empty(&self) -> bool {
        self.frames.is_empty() && self.function_start.is_none()
    }

    /// Forgets what was said of the present address.
    pub(crate) fn clear(&mut self) {
        self.frames.clear();
        self.function_start = None;
        self.answered_by = None;
    }

    /// Hands over the frames of the present address and makes room for the next one.
    pub(crate) fn take(&mut self) -> (Arc<[SourceFrame]>, Option<StatedAddress>) {
        (self.frames.drain(..).collect(), self.function_start.take())
    }

    /// Forgets the texts when they have become many: a reader of a log may ask for days.
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

    fn name(&mut self, raw: &str, language: Language) -> Name {
        let known = &mut self.names[language as usize];
        if let Some((raw, readable)) = known.get_key_value(raw) {
            return Name { raw: Arc::clone(raw), readable: Arc::clone(readable) };
        }
        let shared: Arc<str> = raw.into();
        let readable = demangle(raw, language).map_or_else(|| Arc::clone(&shared), Arc::from);
        known.insert(Arc::clone(&shared), Arc::clone(&readable));
        Name { raw: shared, readable }
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
