//! Finds the module that covers a code address of this process, and its function table.
//!
//! The kernel says which mapping an address belongs to, and whether that is an image. The headers
//! at its start lead to the function table. No list of the loader is read, so no lock is taken, and
//! the answer is right while another thread loads or unloads modules. The addresses asked for are
//! on the caller's own stack, whose modules stay loaded.

use cairn_format::AbsoluteAddress;
use cairn_unwind::Modules;
use cairn_unwind::cfi::FrameTable;
use cairn_unwind::pdata::{CodePlace, FunctionTable, PdataError, PeImage};

use super::calls::PageRange;
use super::registered;
use crate::stacks::arch::{self, Native, Rule};
use crate::stacks::index::MIX;
use crate::stacks::module_state::ModuleState;
use crate::stacks::own_memory;
use crate::stacks::pc_kind::{self, PcKind};

/// A loaded image.
#[derive(Clone, Copy)]
#[repr(C)]
struct LoadedImage {
    start: u64,
    end: u64,
    /// The time stamp and the checksum of its headers, which differ between builds.
    stamp: u64,
}

impl LoadedImage {
    /// The image that covers `address`, which is on a stack: its module stays loaded.
    #[inline(never)]
    fn find(address: u64) -> Option<Self> {
        Self::read(address, |start, into| {
            // Linkers leave the headers in one page, whose first bytes are asked for.
            let page = PageRange::around(start).filter(PageRange::is_readable)?;
            if page.end() - start < into.len() as u64 {
                return None;
            }
            // SAFETY: the bytes are readable, by the comparison above, and the module stays
            // loaded; `into` is not a part of a module's headers.
            unsafe { core::ptr::copy_nonoverlapping(start as *const u8, into.as_mut_ptr(), into.len()) };
            Some(())
        })
    }

    /// Finds the image as [`find`](Self::find) does, while another thread may unload it.
    fn find_unloadable(address: u64) -> Option<Self> {
        Self::read(address, |start, into| (own_memory::read_bytes(start, into) == into.len()).then_some(()))
    }

    #[inline(always)]
    fn read(address: u64, read: impl FnOnce(u64, &mut [u8]) -> Option<()>) -> Option<Self> {
        let range = PageRange::around(address).filter(PageRange::is_image)?;
        let start = range.allocation;
        let mut headers = [0; HEADER_BYTES];
        read(start, &mut headers)?;
        let u32_at = |place: usize| Some(u32::from_le_bytes(*headers.get(place..)?.first_chunk()?));
        let header = u32_at(0x3c)? as usize;
        // Time stamp, size of the image, checksum.
        let stamp = u32_at(header.checked_add(8)?)?;
        let (size, checksum) = (u32_at(header.checked_add(80)?)?, u32_at(header.checked_add(88)?)?);
        let end = start.checked_add(size.into())?;
        let stamp = u64::from(stamp) << 32 | u64::from(checksum);
        (address < end).then_some(Self { start, end, stamp })
    }

    /// The whole image, as bytes.
    ///
    /// # Safety
    ///
    /// - The image stays loaded while the table is used.
    unsafe fn table<'a>(self) -> Option<FunctionTable<'a>> {
        let start = AbsoluteAddress::new(self.start);
        let length = usize::try_from(self.end - self.start).ok()?;
        // SAFETY: the kernel says that an image is mapped there, and the caller that it stays. The
        // function table, the unwind data and code are in sections that are readable, by the ABI:
        // the system's own unwinder reads them in the same way.
        let bytes = unsafe { core::slice::from_raw_parts(self.start as *const u8, length) };
        FunctionTable::of_image(PeImage::loaded(start, bytes))
    }

    fn identity(self) -> u32 {
        let parts = [self.start, self.end, self.stamp];
        let hash = parts.iter().fold(1, |hash: u64, part| (hash ^ part).wrapping_mul(MIX).rotate_left(23));
        (hash >> 32) as u32 | 1
    }
}

/// Bytes of the headers that are read: those of all linkers have the PE header in them.
const HEADER_BYTES: usize = 1024;

/// The modules of this process. Each query goes to the kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoadedModules;

impl LoadedModules {
    /// The first address of the module that covers `address`, and the first one behind it.
    pub(crate) fn bounds(self, address: AbsoluteAddress) -> Option<(AbsoluteAddress, AbsoluteAddress)> {
        let image = LoadedImage::find(address.value())?;
        Some((AbsoluteAddress::new(image.start), AbsoluteAddress::new(image.end)))
    }
}

impl Modules for LoadedModules {
    fn frame_table(&self, _address: AbsoluteAddress) -> Option<FrameTable<'_>> {
        None
    }

    #[inline(never)]
    fn function_table(&self, address: AbsoluteAddress) -> Option<FunctionTable<'_>> {
        let Some(image) = LoadedImage::find(address.value()) else {
            return registered::table(address.value());
        };
        // SAFETY: the module stays loaded while its code is on a stack that is walked.
        unsafe { image.table() }
    }

    /// True in modules only. Walks ask [`Process`](crate::stacks::process::Process) instead, which
    /// knows the code that a JIT made as well.
    fn is_executable(&self, address: AbsoluteAddress) -> bool {
        is_in_module(address.value())
    }
}

/// True when `address` lies in a module.
pub(crate) fn is_in_module(address: u64) -> bool {
    PageRange::around(address).is_some_and(|range| range.is_image())
}

/// A thread's cache of modules: new addresses mostly come from the same few. It must be cleared
/// when modules are unloaded. Zeros are an empty cache.
#[repr(C)]
pub(crate) struct KnownModules {
    images: [LoadedImage; Self::PLACES],
    next: usize,
}

impl KnownModules {
    const PLACES: usize = 4;

    pub(crate) fn forget(&mut self) {
        for image in &mut self.images {
            (image.start, image.end) = (0, 0);
        }
    }

    /// The packed rule at a return address, from its module's table, and the module's identity.
    #[inline]
    pub(crate) fn rule_and_identity(&mut self, pc: u64, _state: &ModuleState) -> (Rule, u32) {
        let lookup = pc.wrapping_sub(1);
        let is_in = |image: &&LoadedImage| image.start <= lookup && lookup < image.end;
        match self.images.iter().find(is_in).copied().or_else(|| self.add(lookup)) {
            Some(image) => (rule_in(image, pc), image.identity()),
            None => (rule_of(pc), 0),
        }
    }

    #[cold]
    #[inline(never)]
    fn add(&mut self, lookup: u64) -> Option<LoadedImage> {
        let image = LoadedImage::find(lookup)?;
        *self.images.get_mut(self.next)? = image;
        self.next = (self.next + 1) % Self::PLACES;
        Some(image)
    }
}

fn rule_in(image: LoadedImage, pc: u64) -> Rule {
    // SAFETY: the module stays loaded while its code is on a stack that is walked; a cache of it is
    // cleared when a module is unloaded.
    let table = unsafe { image.table() };
    let place = CodePlace::ReturnAddress(AbsoluteAddress::new(pc));
    match table {
        Some(table) => rule_from(&table, place),
        None => Rule::NO_TABLES,
    }
}

fn rule_from(table: &FunctionTable<'_>, place: CodePlace) -> Rule {
    match table.rule::<Native>(place) {
        Ok(_) if is_start_of_threads(table, place) => Rule::END_OF_STACK,
        Ok(rule) => rule,
        Err(PdataError::NotCovered) => Rule::NO_TABLES,
        Err(_) => Rule::NEEDS_FULL_EVALUATION,
    }
}

/// The packed rule at a return address, from its module's table.
#[inline(never)]
pub(crate) fn rule_of(pc: u64) -> Rule {
    let rule = match LoadedImage::find(pc.wrapping_sub(1)) {
        Some(image) => rule_in(image, pc),
        None => match registered::table(pc.wrapping_sub(1)) {
            Some(table) => rule_from(&table, CodePlace::ReturnAddress(AbsoluteAddress::new(pc))),
            None => Rule::NO_TABLES,
        },
    };
    if rule == Rule::NO_TABLES { arch::rule_without_tables(pc) } else { rule }
}

/// The packed rule at exactly this address; `None` where no table covers it.
#[inline(never)]
pub(crate) fn rule_at(address: AbsoluteAddress) -> Option<Rule> {
    let table = LoadedModules.function_table(address)?;
    let place = CodePlace::ReturnAddress(AbsoluteAddress::new(address.value().wrapping_add(1)));
    match rule_from(&table, place) {
        Rule::NO_TABLES => None,
        rule => Some(rule),
    }
}

/// Computes the identity of the module that a numbered address belongs to; 0 where there is none.
pub(crate) fn identity_at(pc: u64, kind: PcKind, _state: &ModuleState) -> u32 {
    let image = pc_kind::code_address(kind, pc).and_then(|address| LoadedImage::find(address.value()));
    image.map_or(0, LoadedImage::identity)
}

/// Computes the identity as [`identity_at`] does, while another thread may unload the module.
/// Returns `None` in place of 0.
pub(crate) fn identity_of_loaded(address: AbsoluteAddress) -> Option<u32> {
    LoadedImage::find_unloadable(address.value()).map(LoadedImage::identity)
}

/// Computes identities for the pass over all addresses of the process.
pub(crate) struct Identities;

impl Identities {
    pub(crate) const fn new() -> Self {
        Self
    }

    pub(crate) fn identity_at(&mut self, pc: u64, kind: PcKind) -> u32 {
        pc_kind::code_address(kind, pc).and_then(identity_of_loaded).unwrap_or(0)
    }
}

/// The name of a module, and the difference of addresses in memory and in the file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinkMap {
    /// The address at which the image begins: its file states distances from there.
    pub(crate) bias: u64,
    /// Address of the name that its table of exports states, a C string; 0 without one.
    pub(crate) name: u64,
}

/// Reads the headers of the module that covers `address`.
pub(crate) fn link_map_at(address: u64) -> Option<LinkMap> {
    let image = LoadedImage::find_unloadable(address)?;
    let name = exports_of(image).and_then(|exports| exports.word(12)).filter(|&place| place != 0);
    Some(LinkMap { bias: image.start, name: name.map_or(0, |place| image.start + u64::from(place)) })
}

/// The table of exports of an image.
#[derive(Clone, Copy)]
struct Exports {
    image: u64,
    place: u32,
}

fn exports_of(image: LoadedImage) -> Option<Exports> {
    let header = read_u32(image.start + 0x3c)?;
    let place = read_u32(image.start.checked_add(u64::from(header) + 136)?)?;
    (place != 0).then_some(Exports { image: image.start, place })
}

impl Exports {
    fn word(self, offset: u32) -> Option<u32> {
        read_u32(self.image + u64::from(self.place) + u64::from(offset))
    }
}

fn read_u32(address: u64) -> Option<u32> {
    let mut bytes = [0; 4];
    (own_memory::read_bytes(address, &mut bytes) == bytes.len()).then(|| u32::from_le_bytes(bytes))
}

/// True in the function that the system starts every thread with.
///
/// Its return address is null, so that the stack ends there. A null return address alone may mean
/// several things, and is left to whole walks.
fn is_start_of_threads(table: &FunctionTable<'_>, place: CodePlace) -> bool {
    let start = thread_start::address();
    start != 0
        && table
            .function_at(place.lookup_address())
            .is_some_and(|(first, end)| first.value() <= start && start < end.value())
}

/// `RtlUserThreadStart` of ntdll.
mod thread_start {
    #[link(name = "ntdll")]
    unsafe extern "system" {
        /// Declared as data, whose address is the function's own.
        ///
        /// That of an imported function would be the address of a jump in this module.
        #[link_name = "RtlUserThreadStart"]
        static FUNCTION: u8;
    }

    pub(super) fn address() -> u64 {
        (&raw const FUNCTION) as u64
    }
}
