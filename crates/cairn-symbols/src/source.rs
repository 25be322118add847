//! What every kind of symbol file is inside: something that knows the frames of a stated address.
//!
//! A source hands over names as they are stored; demangling, sharing of equal texts and the names of functions of which
//! only the start is known are done once, in [`FrameSink`].

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use cairn_format::{StatedAddress, WordSize};

use crate::demangle::demangle;
use crate::index::Cache;
use crate::{SourceFrame, Unknown};

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
    /// True for all frames of an answer but the last.
    pub(crate) inlined: bool,
}

/// Where the symbols of one module come from.
pub(crate) trait SymbolSource: Send + Sync {
    /// Pushes the frames of one address, as the file itself counts, innermost first. Pushes nothing when it fails.
    fn frames_at(&self, address: StatedAddress, out: &mut FrameSink) -> Result<(), Unknown>;

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

/// Takes in the frames of one address after the other, and keeps every distinct text once.
#[derive(Default)]
pub(crate) struct FrameSink {
    frames: Vec<SourceFrame>,
    function_start: Option<StatedAddress>,
    names: HashMap<Box<str>, [Option<Name>; LANGUAGES]>,
    files: HashMap<Box<str>, Arc<str>>,
}

#[derive(Clone)]
struct Name {
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
        let (function, raw_name) = name.map(|name| (name.readable, name.raw)).unzip();
        let RawFrame { line, column, inlined, .. } = frame;
        self.frames.push(SourceFrame { function, raw_name, file, line, column, inlined });
    }

    /// States where the function that holds the address begins. A frame without a name is called `module+0x…` by it.
    pub(crate) fn set_function_start(&mut self, start: StatedAddress) {
        self.function_start = Some(start);
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

    /// Where the function that holds the present address begins, if that was stated.
    pub(crate) fn function_start(&self) -> Option<StatedAddress> {
        self.function_start
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
    }

    /// Hands over the frames of the present address and makes room for the next one.
    pub(crate) fn take(&mut self) -> (Vec<SourceFrame>, Option<StatedAddress>) {
        (std::mem::take(&mut self.frames), self.function_start.take())
    }

    /// Forgets the texts when they have become many: a reader of a log may ask for days.
    pub(crate) fn tidy(&mut self) {
        if self.names.len() > MAX_TEXTS {
            self.names = HashMap::new();
        }
        if self.files.len() > MAX_TEXTS {
            self.files = HashMap::new();
        }
    }

    fn name(&mut self, raw: &str, language: Language) -> Name {
        if let Some(known) = self.names.get(raw)
            && let Some(name) = &known[language as usize]
        {
            return name.clone();
        }
        let shared: Arc<str> = raw.into();
        let readable = demangle(raw, language).map_or_else(|| Arc::clone(&shared), Arc::from);
        let name = Name { raw: shared, readable };
        self.names.entry(raw.into()).or_default()[language as usize] = Some(name.clone());
        name
    }

    fn file(&mut self, file: &str) -> Arc<str> {
        if let Some(known) = self.files.get(file) {
            return Arc::clone(known);
        }
        let shared: Arc<str> = file.into();
        self.files.insert(file.into(), Arc::clone(&shared));
        shared
    }
}
