//! The memory of a program, wherever it came from: an ELF core, a minidump, bytes that a debug probe read, a process.
//!
//! ```no_run
//! use cairn_memory::image::{Image, OpenOptions};
//!
//! let image = Image::open("core.4711".as_ref(), &OpenOptions::default())?;
//! println!("{} bytes, {} threads", image.dumped_bytes(), image.threads().len());
//! for finding in image.findings() {
//!     println!("note: {finding}");
//! }
//! # Ok::<(), cairn_memory::image::ImageError>(())
//! ```
//!
//! ```text
//!   ELF core (kernel, gcore) ---.                        .---> pieces: which bytes lie at which addresses
//!   minidump -------------------+--> one Image ----------+---> modules: which files, where, of which build
//!   raw dumps with addresses ---+                        +---> threads: registers
//!   a process that stands still '                        '---> findings: what is missing or contradicts itself
//! ```
//!
//! Files are mapped, not read: memory does not grow with the image. What an image leaves out and a file on disk has (code,
//! constants) is taken from that file if its build id is the one in the image, and else not at all.
//!
//! Images come from strangers and from broken devices. Whatever in one cannot be, the rest is used, and a [`Finding`] says so.

mod elf_core;
mod fields;
mod live;
mod mapped_file;
mod minidump;
mod modules;
mod raw;
mod registers;
mod unpack;

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use cairn_format::{AbsoluteAddress, WordSize};
use cairn_unwind::{AddressRange, MemoryReader};
use cairn_wire::heapblock::ByteOrder;

use crate::process::{self, Mapping, ModuleMap, ProcessMemory, Thread, ThreadSource};
use fields::Fields;
use mapped_file::FileBytes;
use unpack::Packed;

pub use modules::{FileState, ImageModule};
pub use registers::ImageThread;

/// How an image is opened.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct OpenOptions {
    /// The program, where it lies elsewhere than the image says.
    pub program: Option<PathBuf>,
    /// The directory below which the paths of modules are looked up.
    pub root: PathBuf,
    /// A compressed image may unpack to so many bytes; what is usual for its size where this is not
    /// set ([`UnpackBound::IMAGE`](cairn_format::unpack::UnpackBound::IMAGE)).
    pub unpack_limit_bytes: Option<u64>,
}

impl Default for OpenOptions {
    /// Files where the image says they are; what is usual.
    fn default() -> Self {
        Self { program: None, root: "/".into(), unpack_limit_bytes: None }
    }
}

/// The machine that an image is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Machine {
    /// Width of an address.
    pub word_size: WordSize,
    /// Which byte of a number comes first.
    pub byte_order: ByteOrder,
}

impl Default for Machine {
    /// The machine this code runs on.
    fn default() -> Self {
        Self { word_size: WordSize::NATIVE, byte_order: ByteOrder::NATIVE }
    }
}

/// Where the bytes of a piece are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Backing {
    /// In the file of this index, from this offset on.
    File { file: usize, offset: usize },
    /// In the process that is looked at.
    Process,
}

/// A stretch of memory whose bytes are at hand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// Where it lies.
    pub range: AddressRange,
    /// Whether the program could write to it; true where that is not known.
    pub is_writable: bool,
    /// True for what is not in the image and was taken from a file of the same build.
    pub is_from_file: bool,
    backing: Backing,
}

/// What an image says of the program as a whole.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct About {
    /// What the image is: `ELF core`, `minidump`, `raw memory`, `process`.
    pub kind: &'static str,
    /// The machine's name, if it says so.
    pub machine: Option<&'static str>,
    /// The process.
    pub process: Option<u32>,
    /// What the program is called; at most 15 characters in a core.
    pub name: String,
    /// Its command line; at most 80 characters in a core.
    pub command_line: String,
    /// The signal that ended it, or that it stopped for.
    pub signal: Option<u32>,
    /// The address that the signal is about, where it is about one.
    pub fault_address: Option<u64>,
}

/// The memory of a program, its modules and its threads.
#[derive(Debug)]
pub struct Image {
    machine: Machine,
    about: About,
    /// Sorted, without overlaps.
    pieces: Vec<Piece>,
    files: Vec<FileBytes>,
    process: Option<ProcessMemory>,
    modules: Vec<ImageModule>,
    map: ModuleMap,
    threads: Vec<ImageThread>,
    walkable: Vec<Thread>,
    findings: Vec<Finding>,
    lost_bytes: u64,
}

/// Why an image cannot be opened.
#[derive(Debug)]
#[non_exhaustive]
pub enum ImageError {
    /// When the file cannot be read.
    Open {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// When the file is no memory image.
    NotAnImage {
        /// The file.
        path: PathBuf,
        /// What it is.
        is: &'static str,
    },
    /// When the file is one, and not even its beginning can be understood.
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where.
        offset: u64,
        /// What is wrong there.
        problem: String,
    },
    /// When it is a process, and that cannot be looked at.
    Process(process::Error),
}

impl fmt::Display for ImageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open { path, source } => write!(f, "{}: {source}", path.display()),
            Self::NotAnImage { path, is } => {
                write!(
                    f,
                    "{}: {is}, not a core file or minidump; for plain bytes of memory use --raw",
                    path.display()
                )
            }
            Self::Damaged { path, offset, problem } => {
                write!(f, "{}: {problem} at byte {offset}", path.display())
            }
            Self::Process(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ImageError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Open { source, .. } => Some(source),
            Self::Process(error) => Some(error),
            _ => None,
        }
    }
}

/// What a reader of an image should know of it.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Finding {
    /// When the file ends before the memory that it states.
    Cut {
        /// Bytes that are not there.
        missing_bytes: u64,
        /// Bytes that should be.
        stated_bytes: u64,
        /// Segments that are cut or gone.
        segments: usize,
    },
    /// When a compressed file ends too early or is damaged.
    PackedCut {
        /// What the decompressor said.
        problem: String,
    },
    /// When two segments claim the same addresses; the first one is believed.
    Overlap {
        /// Where the overlap begins.
        address: AbsoluteAddress,
        /// How many bytes of the second one are passed over.
        bytes: u64,
    },
    /// When there are fewer entries of a table than it states.
    ShortTable {
        /// Which table.
        table: &'static str,
        /// How many entries it states.
        stated: u64,
        /// How many are there.
        found: u64,
    },
    /// When a note reaches past the end of the notes, or of the file.
    NoteCut {
        /// Where in the file the note begins.
        offset: u64,
    },
    /// When a segment's addresses go past the end of the address space.
    ImpossibleSegment {
        /// Its number.
        number: usize,
        /// Where it begins.
        address: AbsoluteAddress,
    },
    /// When a module's file on disk is not the one that ran.
    DifferentFile {
        /// The file.
        path: PathBuf,
        /// The build id in the image.
        expected: String,
        /// The build id of the file, if it has one.
        found: Option<String>,
    },
    /// When a module without a build id has other ELF headers on disk than in the image.
    DifferentHeader {
        /// The file.
        path: PathBuf,
    },
    /// When the image holds neither the build id nor the ELF header of a module.
    NotIdentified {
        /// The file.
        path: PathBuf,
        /// How many bytes of it are missing in the image.
        bytes: u64,
    },
    /// When the image leaves out parts of a module and there is no file to take them from.
    NotFilled {
        /// The file.
        path: PathBuf,
        /// How many bytes are missing.
        bytes: u64,
        /// Why the file was not taken.
        reason: &'static str,
    },
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cut { missing_bytes, stated_bytes, segments } => write!(
                f,
                "the file is cut short: {missing_bytes} of {stated_bytes} bytes of memory, in {segments} segments, \
                 are missing; what is there was looked at"
            ),
            Self::PackedCut { problem } => {
                write!(
                    f,
                    "the compressed file could not be unpacked to its end: {problem}; what came out was looked at"
                )
            }
            Self::Overlap { address, bytes } => {
                write!(f, "two segments lie at {address}; {bytes} bytes of the second were passed over")
            }
            Self::ShortTable { table, stated, found } => {
                write!(f, "the file states {stated} {table}, and has room for {found}")
            }
            Self::NoteCut { offset } => {
                write!(
                    f,
                    "the note at byte {offset} reaches past the end of the notes; it and those behind it were not read"
                )
            }
            Self::ImpossibleSegment { number, address } => {
                write!(
                    f,
                    "segment {number} at {address} reaches past the end of the address space; it was cut there"
                )
            }
            Self::DifferentFile { path, expected, found: Some(found) } => write!(
                f,
                "{} is of a different build than what ran: its build id is {found}, in the image is {expected}; it was \
                 not used",
                path.display()
            ),
            Self::DifferentFile { path, expected, found: None } => write!(
                f,
                "{} is of a different build than what ran: it has no build id, in the image is {expected}; it was not \
                 used",
                path.display()
            ),
            Self::DifferentHeader { path } => write!(
                f,
                "{} is of a different build than what ran: its ELF headers are not those in the image; it was not used",
                path.display()
            ),
            Self::NotIdentified { path, bytes } => {
                let path = path.display();
                write!(
                    f,
                    "nothing in the image says which build of {path} ran: its functions are not named"
                )?;
                if *bytes > 0 {
                    write!(f, ", and {bytes} bytes of it are missing")?;
                }
                write!(f, "; --allow-mismatch takes the names of the file on disk, which may be wrong")
            }
            Self::NotFilled { path, bytes, reason } => {
                write!(f, "{bytes} bytes of {} are not in the image: {reason}", path.display())
            }
        }
    }
}

/// One file of raw memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RawFile {
    /// The file.
    pub path: PathBuf,
    /// Where its first byte was.
    pub load_address: AbsoluteAddress,
}

impl Image {
    /// Opens a core file or a minidump, compressed or not.
    ///
    /// # Errors
    ///
    /// [`ImageError`]. A file that is cut, or contradicts itself, is opened as far as it goes.
    pub fn open(path: &Path, options: &OpenOptions) -> Result<Self, ImageError> {
        let failed = |source| ImageError::Open { path: path.to_owned(), source };
        let mut bytes = FileBytes::open(path).map_err(failed)?;
        let mut findings = Vec::new();
        if let Some(packed) = Packed::of(&bytes) {
            let (file, problem) = packed.unpack(&bytes, options.unpack_limit_bytes).map_err(failed)?;
            findings.extend(problem.map(|problem| Finding::PackedCut { problem: problem.to_string() }));
            bytes = FileBytes::map(file).map_err(failed)?;
        }
        Self::of_bytes(bytes, path, options, findings)
    }

    /// Reads a core file or a minidump that is in memory. `path` is what errors call it.
    ///
    /// # Errors
    ///
    /// As for [`open`](Self::open).
    pub fn from_bytes(bytes: Vec<u8>, path: &Path, options: &OpenOptions) -> Result<Self, ImageError> {
        Self::of_bytes(FileBytes::Owned(bytes), path, options, Vec::new())
    }

    fn of_bytes(
        bytes: FileBytes,
        path: &Path,
        options: &OpenOptions,
        findings: Vec<Finding>,
    ) -> Result<Self, ImageError> {
        let is = match bytes.first_chunk::<4>() {
            Some(b"\x7fELF") => return elf_core::read(bytes, path, options, findings),
            Some(b"MDMP") => return minidump::read(bytes, path, options, findings),
            _ if bytes.is_empty() => "an empty file",
            _ => "a file of another kind",
        };
        Err(ImageError::NotAnImage { path: path.to_owned(), is })
    }

    /// Memory that was read from a device: files, and where each of them was. What is not in them is a hole.
    ///
    /// # Errors
    ///
    /// When a file cannot be read.
    pub fn open_raw(files: &[RawFile], machine: Machine, options: &OpenOptions) -> Result<Self, ImageError> {
        raw::read(files, machine, options)
    }

    /// Stops a process, looks at its memory, and lets it go on. Nothing in it is changed.
    ///
    /// # Errors
    ///
    /// [`ImageError::Process`].
    pub fn of_process<R: Send>(process: u32, look: impl FnOnce(&Self) -> R + Send) -> Result<R, ImageError> {
        live::look(process, look)
    }

    /// The machine that it is of.
    #[must_use]
    pub fn machine(&self) -> Machine {
        self.machine
    }

    /// What it says of the program as a whole.
    #[must_use]
    pub fn about(&self) -> &About {
        &self.about
    }

    /// What memory there is, by address.
    #[must_use]
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// What was loaded, by address.
    #[must_use]
    pub fn modules(&self) -> &[ImageModule] {
        &self.modules
    }

    /// The threads; the one that the image was made for comes first.
    #[must_use]
    pub fn threads(&self) -> &[ImageThread] {
        &self.threads
    }

    /// What is missing in it, or contradicts itself.
    #[must_use]
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// Bytes of memory in the image itself.
    #[must_use]
    pub fn dumped_bytes(&self) -> u64 {
        let dumped = self.pieces.iter().filter(|piece| !piece.is_from_file);
        dumped.fold(0, |sum, piece| sum.saturating_add(length(piece.range)))
    }

    /// Bytes that the image states and does not have, because it was cut.
    #[must_use]
    pub fn lost_bytes(&self) -> u64 {
        self.lost_bytes
    }

    /// The piece around an address.
    #[must_use]
    pub fn piece_at(&self, address: AbsoluteAddress) -> Option<&Piece> {
        let after = self.pieces.partition_point(|piece| piece.range.start <= address);
        self.pieces.get(after.checked_sub(1)?).filter(|piece| piece.range.contains(address))
    }

    /// The module around an address.
    #[must_use]
    pub fn module_at(&self, address: AbsoluteAddress) -> Option<&ImageModule> {
        self.modules.get(self.module_index_at(address)?)
    }

    /// Index of the module around an address.
    #[must_use]
    pub fn module_index_at(&self, address: AbsoluteAddress) -> Option<usize> {
        let after = self.modules.partition_point(|module| module.range.start <= address);
        let index = after.checked_sub(1)?;
        self.modules.get(index)?.range.contains(address).then_some(index)
    }

    /// The mapping around an address, as the image lists it.
    #[must_use]
    pub fn mapping_at(&self, address: AbsoluteAddress) -> Option<&Mapping> {
        self.map.mapping_at(address)
    }

    /// The word at an address, in the machine's width and byte order.
    #[must_use]
    #[inline]
    pub fn word(&self, address: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        let word_size = self.machine.word_size;
        let field = bytes.get_mut(..word_size.bytes())?;
        self.read(AbsoluteAddress::new(address), field)?;
        self.number(field)
    }

    /// The 32-bit number at an address.
    #[must_use]
    pub fn half(&self, address: u64) -> Option<u32> {
        let mut bytes = [0; 4];
        self.read(AbsoluteAddress::new(address), &mut bytes)?;
        Some(self.machine.byte_order.u32(bytes))
    }

    /// The number that a word of this machine is.
    #[must_use]
    #[inline]
    pub fn number(&self, word: &[u8]) -> Option<u64> {
        match self.machine.word_size {
            WordSize::Bits64 => Some(self.machine.byte_order.u64(*word.first_chunk()?)),
            WordSize::Bits32 => Some(self.machine.byte_order.u32(*word.first_chunk()?).into()),
            WordSize::Bits16 => None,
        }
    }

    /// The bytes from an address on, as they lie in a mapped file, up to the end of the piece. `None` for a process, and
    /// where there is nothing.
    fn mapped(&self, address: AbsoluteAddress) -> Option<&[u8]> {
        let piece = self.piece_at(address)?;
        let Backing::File { file, offset } = piece.backing else { return None };
        let into = usize::try_from(address.value() - piece.range.start.value()).ok()?;
        let length = usize::try_from(piece.range.end.value() - address.value()).ok()?;
        self.files.get(file)?.get(offset.checked_add(into)?..)?.get(..length)
    }

    /// The bytes of a stretch: as they lie in a mapped file, else read into `buffer`.
    pub(crate) fn bytes<'b>(
        &'b self,
        address: u64,
        length: usize,
        buffer: &'b mut Vec<u8>,
    ) -> Option<&'b [u8]> {
        let address = AbsoluteAddress::new(address);
        if let Some(bytes) = self.mapped(address).and_then(|bytes| bytes.get(..length)) {
            return Some(bytes);
        }
        // A size from a damaged header asks for what is not there; memory is taken only for what is.
        let last = address.checked_add((length as u64).checked_sub(1)?)?;
        self.piece_at(address)?;
        self.piece_at(last)?;
        buffer.resize(length, 0);
        self.read(address, buffer)?;
        Some(buffer)
    }

    /// Shows all memory that the program could write to, in windows of at most `window_bytes`, each of which begins with the
    /// last `overlap_bytes` of the one before it where both are of one stretch. `look` gets the address of the window, its
    /// bytes, and whether the stretch ends there.
    ///
    /// What a sparse file does not hold is passed over. Pages that were seen are given back.
    pub fn scan_writable(
        &self,
        window_bytes: usize,
        overlap_bytes: usize,
        mut look: impl FnMut(AbsoluteAddress, &[u8], bool),
    ) {
        let mut buffer = Vec::new();
        for piece in self.pieces.iter().filter(|piece| piece.is_writable && !piece.is_from_file) {
            for part in self.data_of(piece) {
                self.scan_part(piece, part, window_bytes, overlap_bytes, &mut buffer, &mut look);
            }
        }
    }

    /// The addresses of a piece that a sparse file holds.
    fn data_of(&self, piece: &Piece) -> Vec<AddressRange> {
        let Backing::File { file, offset } = piece.backing else { return vec![piece.range] };
        let Some(bytes) = self.files.get(file) else { return Vec::new() };
        let start = piece.range.start.value();
        let from = offset as u64;
        let address = |at: u64| AbsoluteAddress::new(start.saturating_add(at - from));
        let data = bytes.data_in(from..from.saturating_add(length(piece.range)));
        data.into_iter().map(|data| AddressRange::new(address(data.start), address(data.end))).collect()
    }

    fn scan_part(
        &self,
        piece: &Piece,
        part: AddressRange,
        window_bytes: usize,
        overlap_bytes: usize,
        buffer: &mut Vec<u8>,
        look: &mut impl FnMut(AbsoluteAddress, &[u8], bool),
    ) {
        let step = window_bytes.saturating_sub(overlap_bytes).max(1) as u64;
        let mut at = part.start.value();
        while at < part.end.value() {
            let left = part.end.value() - at;
            let wanted = left.min(window_bytes as u64) as usize;
            let is_last = left <= window_bytes as u64;
            let address = AbsoluteAddress::new(at);
            match piece.backing {
                Backing::File { file, offset } => {
                    let start = offset.saturating_add((at - piece.range.start.value()) as usize);
                    if let Some(file) = self.files.get(file) {
                        file.about_to_read(start..start.saturating_add(wanted));
                        if let Some(bytes) = file.get(start..).and_then(|bytes| bytes.get(..wanted)) {
                            look(address, bytes, is_last);
                        }
                        file.done_with(start..start.saturating_add(wanted));
                    }
                }
                Backing::Process => {
                    buffer.resize(wanted, 0);
                    if self.read(address, buffer).is_some() {
                        look(address, buffer, is_last);
                    }
                }
            }
            if is_last {
                break;
            }
            at = at.saturating_add(step);
        }
    }

    /// Puts an image together. `pieces` may be in any order and overlap.
    fn assemble(parts: Parts, options: &OpenOptions) -> Self {
        let Parts {
            machine,
            about,
            pieces,
            files,
            process,
            mappings,
            without_segment,
            named,
            threads,
            mut findings,
            lost_bytes,
        } = parts;
        let mut pieces = pieces;
        pieces.iter_mut().for_each(|piece| piece.range = below_the_end(piece.range));
        let mut mappings = mappings;
        mappings.iter_mut().for_each(|mapping| mapping.range = below_the_end(mapping.range));
        let pieces = without_overlaps(pieces, &mut findings);
        let mut image = Self {
            machine,
            about,
            pieces,
            files,
            process,
            modules: Vec::new(),
            map: ModuleMap::new(Vec::new(), &NoMemory, None),
            threads: Vec::new(),
            walkable: Vec::new(),
            findings,
            lost_bytes,
        };
        let in_parts = modules::complete_rights(&image, &mut mappings, &without_segment, &threads, options);
        image.modules = modules::find(&image, named, &mappings, &in_parts, options);
        image.threads = threads;
        image.fill_from_files(&mappings);
        image.map = ModuleMap::new(mappings, &image, Some(options.root.clone()));
        let mask = image.map.address_mask();
        image.walkable = image.threads.iter().filter_map(|thread| thread.walkable(mask)).collect();
        image
    }

    /// Adds what the image leaves out of modules, from files of the same build; says where that cannot be.
    fn fill_from_files(&mut self, mappings: &[Mapping]) {
        let mut unfilled: Vec<u64> = vec![0; self.modules.len()];
        let mut leave_out = |index: usize, hole: AddressRange| {
            if let Some(bytes) = unfilled.get_mut(index) {
                *bytes = bytes.saturating_add(length(hole));
            }
        };
        let mut opened: Vec<Option<usize>> = vec![None; self.modules.len()];
        let mut writable: Vec<Vec<AddressRange>> = vec![Vec::new(); self.modules.len()];
        let mut unknown_data: Vec<u64> = vec![0; self.modules.len()];
        // Pages that the program wrote to are dumped where its stacks are, by one rule for both; a page that is not there is
        // still the file's. A minidump has stacks and no data.
        let is_minidump = self.about.kind == "minidump";
        let has_stack =
            self.threads.iter().any(|thread| thread.sp.is_some_and(|sp| self.piece_at(sp).is_some()));
        let has_all_writes = has_stack && !is_minidump;
        let mut added = Vec::new();
        for mapping in mappings.iter().filter(|mapping| mapping.inode != 0) {
            let Some(index) = self.module_index_at(mapping.range.start) else { continue };
            let Some(module) = self.modules.get(index) else { continue };
            for hole in self.holes_in(mapping.range) {
                let FileState::Same(path) = &module.file else {
                    leave_out(index, hole);
                    continue;
                };
                let file = match opened.get(index).copied().flatten() {
                    Some(file) => file,
                    None => {
                        let Ok(bytes) = FileBytes::open(path) else {
                            leave_out(index, hole);
                            continue;
                        };
                        self.files.push(bytes);
                        let file = self.files.len() - 1;
                        if let (Some(known), Some(pages), Some(bytes)) =
                            (opened.get_mut(index), writable.get_mut(index), self.files.last())
                        {
                            *known = Some(file);
                            *pages = modules::writable_pages(bytes, module.range.start);
                        }
                        file
                    }
                };
                let is_writable = writable
                    .get(index)
                    .is_some_and(|pages| pages.iter().any(|pages| pages.contains(hole.start)));
                if is_writable && !has_all_writes {
                    if let Some(bytes) = unknown_data.get_mut(index) {
                        *bytes = bytes.saturating_add(length(hole));
                    }
                    continue;
                }
                let into = hole.start.value() - mapping.range.start.value();
                let offset = mapping.file_offset.value().saturating_add(into);
                let there = self.files.get(file).map_or(0, |file| file.len() as u64);
                let bytes = length(hole).min(there.saturating_sub(offset));
                if bytes > 0 {
                    added.push(Piece {
                        range: AddressRange::new(
                            hole.start,
                            AbsoluteAddress::new(hole.start.value().saturating_add(bytes)),
                        ),
                        is_writable: false,
                        is_from_file: true,
                        backing: Backing::File { file, offset: offset as usize },
                    });
                }
            }
        }
        self.pieces.extend(added);
        self.pieces.sort_by_key(|piece| piece.range.start);
        for (module, (bytes, data_bytes)) in self.modules.iter().zip(unfilled.into_iter().zip(unknown_data)) {
            if let Some(finding) = module.complaint() {
                self.findings.push(finding);
            }
            // The kernel's own library is no file.
            let is_file = !module.path.as_os_str().as_encoded_bytes().starts_with(b"[");
            if !module.is_identified && is_file {
                let path = module.path.clone();
                self.findings
                    .push(Finding::NotIdentified { path, bytes: if is_minidump { 0 } else { bytes } });
                continue;
            }
            // A minidump leaves out all modules, on purpose.
            let missing = [
                (bytes, module.file.reason()),
                (data_bytes, "the program could write there, and the file has what it began with"),
            ];
            for (bytes, reason) in missing.into_iter().filter(|(bytes, _)| *bytes > 0 && !is_minidump) {
                self.findings.push(Finding::NotFilled { path: module.path.clone(), bytes, reason });
            }
        }
    }

    /// The parts of a range that no piece covers.
    fn holes_in(&self, range: AddressRange) -> Vec<AddressRange> {
        let first = self.pieces.partition_point(|piece| piece.range.end <= range.start);
        let mut holes = Vec::new();
        let mut at = range.start;
        for piece in self.pieces.iter().skip(first).take_while(|piece| piece.range.start < range.end) {
            if at < piece.range.start {
                holes.push(AddressRange::new(at, piece.range.start));
            }
            at = at.max(piece.range.end);
        }
        if at < range.end {
            holes.push(AddressRange::new(at, range.end));
        }
        holes
    }
}

/// What the readers of the kinds of images find.
struct Parts {
    machine: Machine,
    about: About,
    pieces: Vec<Piece>,
    files: Vec<FileBytes>,
    process: Option<ProcessMemory>,
    mappings: Vec<Mapping>,
    /// Starts of the mapped files whose access rights the image does not state.
    without_segment: BTreeSet<AbsoluteAddress>,
    /// Modules that the image lists by itself.
    named: Vec<ImageModule>,
    threads: Vec<ImageThread>,
    findings: Vec<Finding>,
    lost_bytes: u64,
}

/// Memory of which there is none.
struct NoMemory;

impl MemoryReader for NoMemory {
    fn read(&self, _address: AbsoluteAddress, _into: &mut [u8]) -> Option<()> {
        None
    }
}

/// Bytes from the start of a range to its end.
pub(crate) fn length(range: AddressRange) -> u64 {
    range.end.value().saturating_sub(range.start.value())
}

/// A range without the last 64 KiB of 64 bits, where no system has anything: so what lies a header or a page behind any address of an
/// image is an address too.
fn below_the_end(range: AddressRange) -> AddressRange {
    const END: AbsoluteAddress = AbsoluteAddress::new(u64::MAX << 16);
    AddressRange::new(range.start.min(END), range.end.min(END))
}

/// Sorts pieces; of two at one address, the one that came first stays whole.
fn without_overlaps(mut pieces: Vec<Piece>, findings: &mut Vec<Finding>) -> Vec<Piece> {
    pieces.retain(|piece| piece.range.start < piece.range.end);
    pieces.sort_by_key(|piece| piece.range.start);
    let mut kept: Vec<Piece> = Vec::with_capacity(pieces.len());
    for mut piece in pieces {
        if let Some(last) = kept.last()
            && piece.range.start < last.range.end
        {
            let end = last.range.end.min(piece.range.end);
            let bytes = end.value() - piece.range.start.value();
            findings.push(Finding::Overlap { address: piece.range.start, bytes });
            if let Backing::File { offset, .. } = &mut piece.backing {
                *offset = offset.saturating_add(bytes as usize);
            }
            piece.range.start = end;
            if piece.range.start >= piece.range.end {
                continue;
            }
        }
        kept.push(piece);
    }
    kept
}

impl MemoryReader for Image {
    fn read(&self, address: AbsoluteAddress, into: &mut [u8]) -> Option<()> {
        if let Some(process) = &self.process
            && self.piece_at(address)?.backing == Backing::Process
        {
            return process.read(address, into);
        }
        // A read may go from one piece into the next, as where a segment was cut in two by its access rights.
        let mut address = address;
        let mut rest = into;
        loop {
            let bytes = self.mapped(address)?;
            let take = bytes.len().min(rest.len());
            let (part, behind) = rest.split_at_mut_checked(take)?;
            part.copy_from_slice(bytes.get(..take)?);
            if behind.is_empty() {
                return Some(());
            }
            address = address.checked_add(take as u64)?;
            rest = behind;
        }
    }
}

impl ThreadSource for Image {
    type Memory = Self;

    /// Those whose stacks can be walked.
    fn threads(&self) -> &[Thread] {
        &self.walkable
    }

    fn memory(&self) -> &Self {
        self
    }

    fn modules(&self) -> &ModuleMap {
        &self.map
    }
}
