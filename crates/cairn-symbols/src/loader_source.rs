//! The kinds of files that have no source of their own here: what `addr2line`'s loader knows of them.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use addr2line::Loader;
use cairn_format::{StatedAddress, WordSize};

use crate::source::{FrameSink, Language, RawFrame, SymbolSource};
use crate::{Error, FileSymbols, Unknown};

/// One file behind a lock: the loader reads lazily.
pub(crate) struct LoaderSource {
    loader: Mutex<Loader>,
    path: PathBuf,
    word_size: WordSize,
}

impl LoaderSource {
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let (loader, word_size) = FileSymbols::open(path)?.into_parts();
        Ok(Self { loader: Mutex::new(loader), path: path.to_owned(), word_size })
    }
}

impl SymbolSource for LoaderSource {
    fn frames_at(&self, address: StatedAddress, out: &mut FrameSink) -> Result<(), Unknown> {
        let loader = self.loader.lock().unwrap_or_else(PoisonError::into_inner);
        let broken = |error: &dyn std::fmt::Display| Unknown::Broken { problem: error.to_string().into() };
        let mut frames = loader.find_frames(address.value()).map_err(|error| broken(&error))?;
        let mut next = frames.next().map_err(|error| broken(&error))?;
        while let (Some(frame), true) = (next.take(), out.frames().len() < crate::MAX_INLINE_DEPTH) {
            next = frames.next().unwrap_or_default();
            let name = frame.function.as_ref().and_then(|name| name.raw_name().ok());
            let place = frame.location.as_ref();
            out.push(RawFrame {
                name: name.as_deref(),
                language: Language::Unknown,
                file: place.and_then(|place| place.file),
                line: place.and_then(|place| place.line),
                column: place.and_then(|place| place.column),
                inlined: next.is_some(),
            });
        }
        if let Some(symbol) = loader.find_symbol_info(address.value()) {
            out.name_outermost(symbol.name(), Language::Unknown);
            out.set_function_start(StatedAddress::new(symbol.address()));
        }
        if out.frames().is_empty() { Err(Unknown::NotCovered) } else { Ok(()) }
    }

    fn word_size(&self) -> WordSize {
        self.word_size
    }

    fn base(&self) -> StatedAddress {
        let loader = self.loader.lock().unwrap_or_else(PoisonError::into_inner);
        StatedAddress::new(loader.relative_address_base())
    }

    fn files(&self) -> Vec<PathBuf> {
        vec![self.path.clone()]
    }
}
