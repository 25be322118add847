//! PDB: the symbols of Windows programs, from Microsoft's and LLVM's linkers.
//!
//! `pdb-addr2line` parses it, restricted to input on which it terminates (`streams`). Addresses
//! count from the module's base, which a PDB does not state.

mod streams;

use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use cairn_format::StatedAddress;
use pdb_addr2line::pdb::{self, PDB, Source, SourceSlice, SourceView};
use pdb_addr2line::{Context, FunctionFrames};

use self::streams::PdbStreams;
use super::pe::{build_id, undecorated};
use super::{Bytes, FormatError};
use crate::source::{FrameSink, Language, RawFrame, SymbolSource};
use crate::{BuildId, MAX_INLINE_DEPTH, Unknown};

/// The symbols of a PDB.
pub(crate) struct Pdb {
    path: PathBuf,
    build_id: BuildId,
    /// Names of 32-bit x86 include their calling convention.
    is_x86: bool,
    /// `None` after a panic: the parser's state after a broken file is not used again.
    open: Mutex<Option<OpenPdb>>,
}

self_cell::self_cell!(
    /// The parsed streams, and the index over them.
    struct OpenPdb {
        owner: PdbStreams,

        #[not_covariant]
        dependent: PdbContext,
    }
);

type PdbContext<'a> = Context<'a, 'static>;

impl Pdb {
    /// Opens a PDB.
    ///
    /// # Errors
    ///
    /// If it is not a PDB, or has no debug information.
    pub(crate) fn parse(path: &Path, bytes: Bytes) -> Result<Self, FormatError> {
        let opening = || -> Result<Self, FormatError> {
            let mut pdb = PDB::open(PdbBytes(bytes))?;
            let build_id = id_of(&mut pdb)?;
            let is_x86 = matches!(pdb.debug_information()?.machine_type(), Ok(pdb::MachineType::X86));
            let open = OpenPdb::try_new(PdbStreams::read(pdb)?, PdbStreams::context)?;
            Ok(Self { path: path.to_owned(), build_id, is_x86, open: Mutex::new(Some(open)) })
        };
        guarded(opening).unwrap_or_else(|| Err(PANICKED.into()))
    }

    /// Returns the id by which a program refers to this PDB.
    pub(crate) fn id(&self) -> &BuildId {
        &self.build_id
    }
}

/// Reads the id without opening the PDB fully. `None` if it is not a PDB.
pub(crate) fn read_id(content: &[u8]) -> Option<BuildId> {
    guarded(|| PDB::open(io::Cursor::new(content)).and_then(|mut pdb| id_of(&mut pdb)).ok())?
}

/// Tools that modify a PDB increase its own age; programs state the age from the linker.
fn id_of<'s>(pdb: &mut PDB<'s, impl Source<'s> + 's>) -> Result<BuildId, pdb::Error> {
    let information = pdb.pdb_information()?;
    let age = pdb.debug_information()?.age().unwrap_or(information.age);
    Ok(build_id(&information.guid.to_bytes_le(), age))
}

const PANICKED: &str = "the PDB holds what its reader has no words for";

/// Catches panics of the PDB parser, which some broken files cause. The parser only writes to its
/// own memory, so nothing else is affected.
fn guarded<T>(work: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(work)).ok()
}

impl SymbolSource for Pdb {
    fn frames_at(&self, address: StatedAddress, out: &mut FrameSink) -> Result<(), Unknown> {
        let address = u32::try_from(address.value()).map_err(|_| Unknown::AddressOutside)?;
        let broken = |problem: &dyn fmt::Display| Unknown::Broken { problem: problem.to_string().into() };
        let mut slot = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(open) = &*slot else { return Err(broken(&PANICKED)) };
        let asked = guarded(|| {
            open.with_dependent(|_, context| {
                let found = context.find_frames(address).map_err(|error| broken(&error))?;
                self.push(&found.ok_or(Unknown::NotCovered)?, out)
            })
        });
        asked.unwrap_or_else(|| {
            *slot = None;
            Err(broken(&PANICKED))
        })
    }

    fn files(&self) -> Vec<PathBuf> {
        vec![self.path.clone()]
    }
}

impl Pdb {
    fn push(&self, found: &FunctionFrames<'_>, out: &mut FrameSink) -> Result<(), Unknown> {
        let frames = &found.frames;
        // Only the object file is known for this part of the program, which gives no name.
        if frames.iter().all(|frame| frame.function.is_none() && frame.file.is_none()) {
            return Err(Unknown::NotCovered);
        }
        for (index, frame) in frames.iter().enumerate().skip(frames.len().saturating_sub(MAX_INLINE_DEPTH)) {
            let name = frame.function.as_deref();
            out.push(RawFrame {
                name: if self.is_x86 { name.map(undecorated) } else { name },
                language: Language::Unknown,
                file: frame.file.as_deref(),
                line: frame.line.filter(|&line| !matches!(line, 0 | HIDDEN_LINE | NO_STEP_LINE)),
                inlined: index + 1 < frames.len(),
                ..RawFrame::default()
            });
        }
        out.set_function_start(StatedAddress::new(found.start_rva.into()));
        Ok(())
    }
}

/// Line number that Microsoft's compilers emit for code without a line.
const HIDDEN_LINE: u32 = 0x00f0_0f00;
const NO_STEP_LINE: u32 = 0x00fe_efee;

/// The file as input of the PDB parser. A contiguous stream is read in place.
struct PdbBytes(Bytes);

impl fmt::Debug for PdbBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PdbBytes")
    }
}

impl Source<'static> for PdbBytes {
    fn view(&mut self, slices: &[SourceSlice]) -> io::Result<Box<dyn SourceView<'static> + Send + Sync>> {
        let content = &**self.0;
        let bytes: u64 = slices.iter().fold(0, |sum, slice| sum.saturating_add(slice.size as u64));
        // Streams share no pages, so a stream larger than the file is an attempt to exhaust memory.
        if bytes > content.len() as u64 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a stream is longer than the PDB"));
        }
        let (mut start, mut end) = (None, 0);
        let in_one_piece = slices.iter().all(|slice| {
            let fits = start.is_none() || end == slice.offset;
            start.get_or_insert(slice.offset);
            end = slice.offset.saturating_add(slice.size as u64);
            fits
        });
        if in_one_piece {
            let range = start.unwrap_or(0) as usize..end as usize;
            content.get(range.clone()).ok_or(io::ErrorKind::UnexpectedEof)?;
            return Ok(Box::new(StreamView::Piece(self.0.clone(), range)));
        }
        let mut copied = Vec::with_capacity(bytes as usize);
        for slice in slices {
            let end = slice.offset.saturating_add(slice.size as u64);
            let piece =
                content.get(slice.offset as usize..end as usize).ok_or(io::ErrorKind::UnexpectedEof)?;
            copied.extend_from_slice(piece);
        }
        Ok(Box::new(StreamView::Copied(copied)))
    }
}

enum StreamView {
    Piece(Bytes, std::ops::Range<usize>),
    Copied(Vec<u8>),
}

impl fmt::Debug for StreamView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StreamView")
    }
}

impl SourceView<'_> for StreamView {
    fn as_slice(&self) -> &[u8] {
        match self {
            Self::Piece(bytes, range) => bytes.get(range.clone()).unwrap_or_default(),
            Self::Copied(bytes) => bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapped_file::FileBytes;

    #[test]
    fn pdb_stream_longer_than_the_file_is_refused() {
        let mut bytes = PdbBytes(std::sync::Arc::new(FileBytes::Owned(vec![7; 64])));
        let page = |offset| SourceSlice { offset, size: 16 };
        let mut view = |slices: &[SourceSlice]| bytes.view(slices).map(|view| view.as_slice().len());
        assert_eq!(view(&[page(0), page(16)]).unwrap(), 32);
        assert_eq!(view(&[page(48), page(16)]).unwrap(), 32);
        assert!(view(&[page(0); 5]).is_err());
        assert!(view(&[page(56)]).is_err());
        assert!(view(&[SourceSlice { offset: u64::MAX, size: 2 }]).is_err());
        assert_eq!(view(&[]).unwrap(), 0);
    }
}
