//! The memory of a program, from an ELF core, a minidump, raw dumps, or a process.
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
//!   ELF core (kernel, gcore) ---.                        .---> pieces: which bytes are at which addresses
//!   minidump -------------------+--> one Image ----------+---> modules: files, addresses, builds
//!   raw dumps with addresses ---+                        +---> threads: registers
//!   a stopped process ----------'                        '---> findings: gaps and contradictions
//! ```
//!
//! Files are mapped, not read: memory use does not grow with the image. Content that an image omits
//! (code, constants) is taken from the module's file on disk, only if its build id is that of the
//! image.
//!
//! Images come from strangers and broken devices. Invalid parts are skipped and reported as a
//! [`Finding`]; the rest is used.

mod assemble;
mod elf_core;
mod errors;
mod fields;
#[cfg(target_os = "linux")]
mod live;
mod minidump;
mod module_files;
mod modules;
mod raw;
mod registers;
mod unpack;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cairn_format::{AbsoluteAddress, WordSize};
use cairn_unwind::{AddressRange, MemoryReader};
use cairn_wire::heapblock::ByteOrder;

use crate::mapped_file::FileBytes;
use crate::process::{Mapping, ModuleMap, ProcessMemory, Thread, ThreadSource};
use assemble::Parts;
use fields::Fields;
use unpack::Packed;

pub use errors::{Finding, ImageError};
pub use modules::{FileState, ImageModule};
pub use registers::ImageThread;

/// Options for opening an image.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct OpenOptions {
    /// The program's file, if its path differs from the recorded one.
    pub program: Option<PathBuf>,
    /// The directory below which the paths of modules are looked up.
    pub root: PathBuf,
    /// Maximum bytes to which a compressed image may unpack. The default depends on its size
    /// ([`UnpackBound::IMAGE`](cairn_format::unpack::UnpackBound::IMAGE)).
    pub unpack_limit_bytes: Option<u64>,
}

impl Default for OpenOptions {
    /// Looks up files at their recorded paths.
    fn default() -> Self {
        Self { program: None, root: "/".into(), unpack_limit_bytes: None }
    }
}

/// The machine of an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Machine {
    /// Width of an address.
    pub word_size: WordSize,
    /// The order of the bytes in a number.
    pub byte_order: ByteOrder,
}

impl Default for Machine {
    /// Returns the machine that this code runs on.
    fn default() -> Self {
        Self { word_size: WordSize::NATIVE, byte_order: ByteOrder::NATIVE }
    }
}

/// The storage of a piece's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Backing {
    /// In the file of this index, from this offset on.
    File { file: usize, offset: usize },
    /// In the inspected process.
    Process,
}

/// A range of memory with available bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Piece {
    /// The addresses of the piece.
    pub range: AddressRange,
    /// Whether the program could write to it; true if unknown.
    pub is_writable: bool,
    /// True for bytes that are not in the image but in a file of the same build.
    pub is_from_file: bool,
    backing: Backing,
}

/// The facts that an image states about its program.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct About {
    /// The kind of image: `ELF core`, `minidump`, `raw memory`, `process`.
    pub kind: &'static str,
    /// The machine's name, if known.
    pub machine: Option<&'static str>,
    /// The process id.
    pub process: Option<u32>,
    /// The program's name; at most 15 characters in a core.
    pub name: String,
    /// The command line; at most 80 characters in a core.
    pub command_line: String,
    /// The signal that ended or stopped the program.
    pub signal: Option<u32>,
    /// The address that the signal refers to, if any.
    pub fault_address: Option<u64>,
}

/// The memory of a program, its modules and its threads.
#[derive(Debug)]
pub struct Image {
    machine: Machine,
    about: About,
    /// Sorted, without overlaps.
    pieces: Vec<Piece>,
    files: Vec<Arc<FileBytes>>,
    process: Option<ProcessMemory>,
    modules: Vec<ImageModule>,
    map: ModuleMap,
    threads: Vec<ImageThread>,
    walkable: Vec<Thread>,
    findings: Vec<Finding>,
    lost_bytes: u64,
}

/// A file of raw memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RawFile {
    /// The file.
    pub path: PathBuf,
    /// The address of its first byte.
    pub load_address: AbsoluteAddress,
}

impl Image {
    /// Opens a core file or a minidump, compressed or not.
    ///
    /// # Errors
    ///
    /// [`ImageError`]. A truncated or contradictory file is opened as far as possible.
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

    /// Parses a core file or a minidump in memory. Errors refer to it as `path`.
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

    /// Opens memory that was read from a device: files, each with its load address. The rest is
    /// absent.
    ///
    /// # Errors
    ///
    /// [`ImageError`], if a file cannot be read.
    pub fn open_raw(files: &[RawFile], machine: Machine, options: &OpenOptions) -> Result<Self, ImageError> {
        raw::read(files, machine, options)
    }

    /// Stops a process, inspects its memory, and resumes it. Nothing in it is changed.
    ///
    /// # Errors
    ///
    /// [`ImageError::Process`], and [`ImageError::NoProcesses`] elsewhere than on Linux.
    pub fn of_process<R: Send>(process: u32, look: impl FnOnce(&Self) -> R + Send) -> Result<R, ImageError> {
        #[cfg(target_os = "linux")]
        return live::look(process, look);
        #[cfg(not(target_os = "linux"))]
        {
            drop((process, look));
            Err(ImageError::NoProcesses)
        }
    }

    /// Returns the machine of the image.
    #[must_use]
    pub fn machine(&self) -> Machine {
        self.machine
    }

    /// Returns the facts about the program.
    #[must_use]
    pub fn about(&self) -> &About {
        &self.about
    }

    /// Returns the pieces of memory, by address.
    #[must_use]
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// Returns the loaded modules, by address.
    #[must_use]
    pub fn modules(&self) -> &[ImageModule] {
        &self.modules
    }

    /// Returns the threads; the one for which the image was made is first.
    #[must_use]
    pub fn threads(&self) -> &[ImageThread] {
        &self.threads
    }

    /// Returns the gaps and contradictions of the image.
    #[must_use]
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// Returns the bytes of memory in the image itself.
    #[must_use]
    pub fn dumped_bytes(&self) -> u64 {
        let dumped = self.pieces.iter().filter(|piece| !piece.is_from_file);
        dumped.fold(0, |sum, piece| sum.saturating_add(length(piece.range)))
    }

    /// Returns the bytes that are missing because the image is truncated.
    #[must_use]
    pub fn lost_bytes(&self) -> u64 {
        self.lost_bytes
    }

    /// Finds the piece that contains an address.
    #[must_use]
    pub fn piece_at(&self, address: AbsoluteAddress) -> Option<&Piece> {
        let after = self.pieces.partition_point(|piece| piece.range.start <= address);
        self.pieces.get(after.checked_sub(1)?).filter(|piece| piece.range.contains(address))
    }

    /// Finds the module that contains an address.
    #[must_use]
    pub fn module_at(&self, address: AbsoluteAddress) -> Option<&ImageModule> {
        self.modules.get(self.module_index_at(address)?)
    }

    /// Finds the index of the module that contains an address.
    #[must_use]
    pub fn module_index_at(&self, address: AbsoluteAddress) -> Option<usize> {
        let after = self.modules.partition_point(|module| module.range.start <= address);
        let index = after.checked_sub(1)?;
        self.modules.get(index)?.range.contains(address).then_some(index)
    }

    /// Finds the mapping that contains an address.
    #[must_use]
    pub fn mapping_at(&self, address: AbsoluteAddress) -> Option<&Mapping> {
        self.map.mapping_at(address)
    }

    /// Reads the machine word at an address.
    #[must_use]
    #[inline]
    pub fn word(&self, address: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        let word_size = self.machine.word_size;
        let field = bytes.get_mut(..word_size.bytes())?;
        self.read(AbsoluteAddress::new(address), field)?;
        self.number(field)
    }

    /// Reads the 32-bit number at an address.
    #[must_use]
    pub fn half(&self, address: u64) -> Option<u32> {
        let mut bytes = [0; 4];
        self.read(AbsoluteAddress::new(address), &mut bytes)?;
        Some(self.machine.byte_order.u32(bytes))
    }

    /// Decodes a machine word.
    #[must_use]
    #[inline]
    pub fn number(&self, word: &[u8]) -> Option<u64> {
        match self.machine.word_size {
            WordSize::Bits64 => Some(self.machine.byte_order.u64(*word.first_chunk()?)),
            WordSize::Bits32 => Some(self.machine.byte_order.u32(*word.first_chunk()?).into()),
            WordSize::Bits16 => None,
        }
    }

    /// Returns the bytes from an address to the end of its piece.
    ///
    /// `None` for a process, and for absent memory.
    fn mapped(&self, address: AbsoluteAddress) -> Option<&[u8]> {
        let piece = self.piece_at(address)?;
        let Backing::File { file, offset } = piece.backing else { return None };
        let into = usize::try_from(address.value() - piece.range.start.value()).ok()?;
        let length = usize::try_from(piece.range.end.value() - address.value()).ok()?;
        self.files.get(file)?.get(offset.checked_add(into)?..)?.get(..length)
    }

    /// Returns the bytes of a range: borrowed from a mapped file, or else read into `buffer`.
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
        // A damaged header may state any size; allocate only for memory that exists.
        let last = address.checked_add((length as u64).checked_sub(1)?)?;
        self.piece_at(address)?;
        self.piece_at(last)?;
        buffer.resize(length, 0);
        self.read(address, buffer)?;
        Some(buffer)
    }

    /// Passes all memory that the program could write to, in windows of at most `window_bytes`.
    ///
    /// Each window begins with the last `overlap_bytes` of the previous one, within a contiguous
    /// range. `look` gets the address of the window, its bytes, and whether the range ends there.
    /// Holes of a sparse file are skipped, and pages are released after use.
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

    /// Returns the ranges of a piece that a sparse file stores.
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
}

/// Returns the number of bytes in a range.
pub(crate) fn length(range: AddressRange) -> u64 {
    range.end.value().saturating_sub(range.start.value())
}

impl MemoryReader for Image {
    fn read(&self, address: AbsoluteAddress, into: &mut [u8]) -> Option<()> {
        if let Some(process) = &self.process
            && self.piece_at(address)?.backing == Backing::Process
        {
            return process.read(address, into);
        }
        // A read may span pieces, as where access rights split a segment.
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

    /// Returns the threads whose stacks can be walked.
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
