//! The symbols of one file, without the search for its debug file and without a cache: the shortest way to a few names.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use addr2line::Loader;
use cairn_format::{StatedAddress, WordSize};
use object::FileKind;

use crate::{Error, MAX_INLINE_DEPTH};

/// The symbols and line tables of one executable or library.
pub struct FileSymbols {
    loader: Loader,
    word_size: WordSize,
}

impl fmt::Debug for FileSymbols {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileSymbols").finish_non_exhaustive()
    }
}

impl FileSymbols {
    /// Opens an ELF, Mach-O or PE file together with the debug information it names.
    ///
    /// # Errors
    ///
    /// [`Error::Open`] when the file cannot be read or is no executable format.
    pub fn open(path: &Path) -> Result<Self, Error> {
        // The loader maps whatever it is given; a FIFO or a device would make that hang or fail with a riddle.
        let open_error = |source| Error::Open { path: path.to_owned(), source };
        let metadata = std::fs::metadata(path).map_err(|error| open_error(error.into()))?;
        if !metadata.is_file() {
            return Err(open_error("not a regular file".into()));
        }
        let word_size = word_size(path).map_err(|error| open_error(error.into()))?;
        // The loader's own error cannot cross threads; its text can.
        let loader = Loader::new(path).map_err(|error| open_error(error.to_string().into()))?;
        Ok(Self { loader, word_size })
    }

    pub(crate) fn into_parts(self) -> (Loader, WordSize) {
        (self.loader, self.word_size)
    }

    /// Width of an address in this file.
    #[must_use]
    pub fn word_size(&self) -> WordSize {
        self.word_size
    }

    /// The source locations of one address: innermost inlined call first, the function that holds it last. Empty when
    /// nothing is known of the address.
    ///
    /// Look up [`Frame::lookup_address`](cairn_format::Frame::lookup_address), not the bare return address. Broken debug
    /// information reads as none: the symbol table still answers.
    #[must_use]
    pub fn resolve(&self, address: StatedAddress) -> Vec<Location> {
        let mut locations = self.resolve_debug_information(address).unwrap_or_default();
        if locations.iter().all(|location| location.function.is_none())
            && let Some(symbol) = self.loader.find_symbol(address.value())
        {
            let function = Some(addr2line::demangle_auto(symbol.into(), None).into_owned());
            match locations.last_mut() {
                Some(location) => location.function = function,
                None => locations.push(Location { function, ..Location::default() }),
            }
        }
        locations
    }

    fn resolve_debug_information(&self, address: StatedAddress) -> Option<Vec<Location>> {
        let mut frames = self.loader.find_frames(address.value()).ok()?;
        let mut locations: Vec<Location> = Vec::new();
        // A hostile file can claim inline chains without end.
        while let (Ok(Some(frame)), true) = (frames.next(), locations.len() < MAX_INLINE_DEPTH) {
            let function = frame.function.as_ref().and_then(|name| Some(name.demangle().ok()?.into_owned()));
            let place = frame.location.as_ref();
            locations.push(Location {
                function,
                file: place.and_then(|place| place.file).map(str::to_owned),
                line: place.and_then(|place| place.line),
                column: place.and_then(|place| place.column),
                inlined: true,
            });
        }
        locations.last_mut()?.inlined = false;
        Some(locations)
    }
}

/// The word size that the file's header states; 64 bits where it is none that is known here.
fn word_size(path: &Path) -> std::io::Result<WordSize> {
    let mut header = Vec::new();
    File::open(path)?.take(HEADER_BYTES).read_to_end(&mut header)?;
    Ok(match FileKind::parse(&*header) {
        Ok(FileKind::Elf32 | FileKind::MachO32 | FileKind::Pe32 | FileKind::Coff) => WordSize::Bits32,
        _ => WordSize::Bits64,
    })
}

/// Enough to tell the kinds of executables apart: the headers of PE lie behind those of DOS.
const HEADER_BYTES: u64 = 4096;

/// One source location of an address.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Location {
    /// Demangled name of the function.
    pub function: Option<String>,
    /// Source file as the compiler wrote it.
    pub file: Option<String>,
    /// Line in the source file, from 1.
    pub line: Option<u32>,
    /// Column in the line, from 1.
    pub column: Option<u32>,
    /// True when the compiler put this function's body into the next location's function.
    pub inlined: bool,
}

impl fmt::Display for Location {
    /// `function at file:line`, as far as it is known.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.function.as_deref().unwrap_or("??"))?;
        match (&self.file, self.line) {
            (Some(file), Some(line)) => write!(f, " at {file}:{line}"),
            (Some(file), None) => write!(f, " at {file}"),
            (None, _) => Ok(()),
        }
    }
}
