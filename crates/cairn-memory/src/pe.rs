//! Files of Windows modules: their build, and the image that unwind tables are read from.

use std::cell::OnceCell;
use std::sync::Arc;

use cairn_unwind::pdata::{FunctionTable, PeImage, PeMachine};
use cairn_unwind::{AddressRange, MemoryReader};
use object::LittleEndian;
use object::pe::{ImageNtHeaders32, ImageNtHeaders64};
use object::read::pe::{ImageNtHeaders, ImageOptionalHeader as _, PeFile};
use object::{FileKind, Object as _};

use crate::mapped_file::FileBytes;

/// Maximum bytes of a loaded image; 512 MiB, more than real ones have. Tables of larger ones are
/// not read.
const MAX_IMAGE_BYTES: u64 = 1 << 29;

/// Bytes of memory that are read at once.
const PAGE_BYTES: usize = 4096;

/// The link time and the loaded size, by which Windows itself distinguishes builds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PeStamp {
    pub(crate) time: u32,
    pub(crate) image_bytes: u32,
}

/// The parts of a file that identify its build.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct PeIdentity {
    pub(crate) stamp: PeStamp,
    /// GUID and age of its PDB; empty if it states none.
    pub(crate) build_id: Vec<u8>,
    /// The address that its own addresses begin at.
    pub(crate) image_base: u64,
}

impl PeIdentity {
    /// `None` for a file of another kind.
    pub(crate) fn of_file(file: &[u8]) -> Option<Self> {
        match FileKind::parse(file).ok()? {
            FileKind::Pe32 => Self::read::<ImageNtHeaders32>(file),
            FileKind::Pe64 => Self::read::<ImageNtHeaders64>(file),
            _ => None,
        }
    }

    fn read<Headers: ImageNtHeaders>(file: &[u8]) -> Option<Self> {
        let file = PeFile::<Headers>::parse(file).ok()?;
        let headers = file.nt_headers();
        let optional = headers.optional_header();
        let time = headers.file_header().time_date_stamp.get(LittleEndian);
        let stamp = PeStamp { time, image_bytes: optional.size_of_image() };
        // A broken debug directory counts as absent.
        let build_id = file.pdb_info().ok().flatten();
        let build_id = build_id.map(|stated| [&stated.guid()[..], &stated.age().to_le_bytes()].concat());
        let build_id = build_id.unwrap_or_default();
        Some(Self { stamp, build_id, image_base: optional.image_base() })
    }

    /// True for the build with this stamp and, where both state one, this PDB.
    pub(crate) fn is_of(&self, stamp: PeStamp, build_id: &[u8]) -> bool {
        if self.build_id.is_empty() || build_id.is_empty() {
            return self.stamp == stamp;
        }
        self.build_id == build_id
    }
}

/// A loaded module whose unwind tables are a function table.
#[derive(Debug)]
pub(crate) struct PeModule {
    range: AddressRange,
    file: Option<Arc<FileBytes>>,
    image: OnceCell<Option<Vec<u8>>>,
}

impl PeModule {
    /// A module at these addresses; `file` is that of the same build, if it was found.
    pub(crate) const fn new(range: AddressRange, file: Option<Arc<FileBytes>>) -> Self {
        Self { range, file, image: OnceCell::new() }
    }

    pub(crate) const fn range(&self) -> AddressRange {
        self.range
    }

    /// A module whose content is missing has a table that covers nothing: walks end there. Its code
    /// uses the frame pointer for something else.
    pub(crate) fn function_table(&self, memory: &impl MemoryReader) -> FunctionTable<'_> {
        let image = self.image(memory).unwrap_or_default();
        let image = PeImage::loaded(self.range.start, image);
        FunctionTable::of_image(image).unwrap_or(FunctionTable::new(image, PeMachine::X64, 0, 0))
    }

    /// Reads code that memory does not contain.
    pub(crate) fn read(&self, address: u64, into: &mut [u8], memory: &impl MemoryReader) -> Option<()> {
        let within = usize::try_from(address.checked_sub(self.range.start.value())?).ok()?;
        let end = within.checked_add(into.len())?;
        into.copy_from_slice(self.image(memory)?.get(within..end)?);
        Some(())
    }

    /// The image as the loader has mapped it: the file's content, and memory where it is known.
    fn image(&self, memory: &impl MemoryReader) -> Option<&[u8]> {
        self.image.get_or_init(|| self.read_image(memory)).as_deref()
    }

    fn read_image(&self, memory: &impl MemoryReader) -> Option<Vec<u8>> {
        let length = self.range.end.value().checked_sub(self.range.start.value())?;
        if length > MAX_IMAGE_BYTES {
            return None;
        }
        // Pages that nothing is copied to take no memory.
        let mut image = vec![0; usize::try_from(length).ok()?];
        let mut is_known = self.file.as_ref().is_some_and(|file| lay_out(file, &mut image).is_some());
        let mut page = [0; PAGE_BYTES];
        for (at, known) in (0_u64..).step_by(PAGE_BYTES).zip(image.chunks_exact_mut(PAGE_BYTES)) {
            if memory.read(self.range.start.checked_add(at)?, &mut page).is_some() {
                known.copy_from_slice(&page);
                is_known = true;
            }
        }
        is_known.then_some(image)
    }
}

/// Copies a file's headers and sections to where the loader maps them.
fn lay_out(file: &[u8], image: &mut [u8]) -> Option<()> {
    let parsed = PeFile::<ImageNtHeaders64>::parse(file).ok()?;
    let headers = parsed.nt_headers().optional_header().size_of_headers();
    copy(file, (0, headers), image, 0)?;
    for section in parsed.section_table().iter() {
        let (from, bytes) = section.pe_file_range();
        let bytes = bytes.min(section.virtual_size.get(LittleEndian));
        // A section that lies outside of the image or of the file is not loaded.
        let _ = copy(file, (from, bytes), image, section.virtual_address.get(LittleEndian));
    }
    Some(())
}

/// Copies as many bytes as there are.
fn copy(file: &[u8], (from, bytes): (u32, u32), image: &mut [u8], to: u32) -> Option<()> {
    let from = file.get(from as usize..)?;
    let to = image.get_mut(to as usize..)?;
    let bytes = from.len().min(to.len()).min(bytes as usize);
    to.get_mut(..bytes)?.copy_from_slice(from.get(..bytes)?);
    Some(())
}
